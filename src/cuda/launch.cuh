/* SPDX-License-Identifier: Apache-2.0 */
/* What the launchers of all kernels share: parameters from a shape, vector width by alignment, the launch itself. */
#ifndef MSDA_LAUNCH_CUH
#define MSDA_LAUNCH_CUH

#include "sample.cuh"

#include <algorithm>
#include <limits.h>

namespace msda
{

constexpr int threads_per_block = 256;

inline stride stride_of(const msda_shape &shape, msda_tensor tensor)
{
    const msda_stride &s = shape.p.strides[tensor];
    return {s.batch, s.row, s.head};
}

inline params make_params(const msda_shape &shape, const msda_tensors &tensors)
{
    const msda_problem &problem = shape.p;
    params p = {};
    p.t = tensors;
    p.value = stride_of(shape, MSDA_TENSOR_VALUE);
    p.locations = stride_of(shape, MSDA_TENSOR_LOCATIONS);
    p.weights = stride_of(shape, MSDA_TENSOR_WEIGHTS);
    p.references = stride_of(shape, MSDA_TENSOR_REFERENCES);
    p.output = stride_of(shape, MSDA_TENSOR_OUTPUT);
    p.grad_output = stride_of(shape, MSDA_TENSOR_GRAD_OUTPUT);
    p.grad_value = stride_of(shape, MSDA_TENSOR_GRAD_VALUE);
    p.grad_locations = stride_of(shape, MSDA_TENSOR_GRAD_LOCATIONS);
    p.grad_weights = stride_of(shape, MSDA_TENSOR_GRAD_WEIGHTS);
    p.grad_references = stride_of(shape, MSDA_TENSOR_GRAD_REFERENCES);
    p.batch = problem.batch;
    p.queries = problem.queries;
    p.heads = problem.heads;
    p.head_dim = problem.head_dim;
    p.num_points = int(shape.num_points);
    p.num_levels = problem.num_levels;
    p.border = problem.padding == MSDA_PADDING_BORDER;
    p.align_corners = problem.align_corners;
    p.discrete = problem.sampling == MSDA_SAMPLING_DISCRETE;
    p.add = (problem.flags & MSDA_FLAG_ADD_TO_GRADIENTS) != 0;
    p.fused = shape.fused;
    p.reference_kind = problem.reference_kind;
    p.num_anchors = problem.num_anchors;
    p.box_scale = problem.box_scale;
    bool equal = shape.num_points < 65536 && problem.levels[0].points > 1;
    for (int l = 0; l < problem.num_levels; ++l) {
        const msda_level &from = problem.levels[l];
        p.levels[l] = {from.start, from.height, from.width, shape.first_point[l]};
        if (from.points != problem.levels[0].points)
            equal = false;
    }
    p.equal_points = equal ? problem.levels[0].points : 0;
    p.point_multiplier =
        shape.num_points > 1 && shape.num_points < 65000 ? unsigned((uint64_t(1) << 32) / shape.num_points + 1) : 0;
    p.level_multiplier = equal ? unsigned((uint64_t(1) << 32) / p.equal_points + 1) : 0;
    p.levels[problem.num_levels].first_point = p.num_points;
    return p;
}

/* Whether every run of head_dim channels of a tensor can be read 16 bytes at a time. */
inline bool is_vector_aligned(const void *pointer, const stride &s, int head_dim, size_t size)
{
    const int64_t width = int64_t(16 / size);
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && s.batch % width == 0 && s.row % width == 0 &&
           s.head % width == 0 && head_dim % width == 0;
}

/* Whether a slice of a tensor of `rows` rows is too long for 32-bit offsets. */
inline bool is_wide(const stride &s, int64_t rows, size_t size)
{
    return s.row > INT_MAX / int64_t(size) || rows > (int64_t(1) << 32) / (s.row * int64_t(size)) - 1;
}

constexpr int most_blocks_yz = 65535; /* of a grid along y, and along z */

/* The form that the specialised kernels can take the problem in. */
template <class Point> form form_of(const params &p)
{
    const auto in_pairs = [](const void *pointer, const stride &s) {
        return !pointer || (reinterpret_cast<uintptr_t>(pointer) % (2 * sizeof(Point)) == 0 && s.batch % 2 == 0 &&
                            s.row % 2 == 0 && s.head % 2 == 0);
    };
    const bool pairs = in_pairs(p.t.locations, p.locations) && in_pairs(p.t.references, p.references) &&
                       in_pairs(p.t.grad_locations, p.grad_locations);
    const bool one_grid = p.heads <= most_blocks_yz && p.batch <= most_blocks_yz;
    if (!pairs || !one_grid || p.border || p.align_corners || p.discrete ||
        (p.fused && p.reference_kind != MSDA_REFERENCE_POINTS))
        return form::any;
    return p.fused ? form::fused : form::plain;
}

/*
 * Teams of lanes (see forward.cu). A problem that would not fill the chip with one team of Lanes lanes for each query and
 * head splits a head's points over several.
 */
template <int Lanes> constexpr int split_of = Lanes <= 8 ? 4 : 32 / Lanes;

inline bool is_small(const params &p, int lanes)
{
    constexpr int64_t full_chip = 512 * 1024; /* threads: twice what an H200 holds */
    return int64_t(p.batch) * p.queries * p.heads * lanes < full_chip;
}

/* How teams are dealt to queries, heads and channels: found on the host, where a division costs nothing. */
struct team_grid {
    int query_tiles, head_tiles, channel_tiles;
    /*
     * Heads that a block's teams are spread over: a head whose row is only a part of a 128-byte line shares its warp with
     * the heads in the rest of the line, so that their reads fall on different banks.
     */
    int log2_heads;
};

template <class Value, int Lanes, int Width, int Split> team_grid make_team_grid(const params &p)
{
    constexpr int teams = threads_per_block / (Lanes * Split);
    constexpr int heads_in_line = int(128 / (Lanes * Width * sizeof(Value)));
    int log2_heads = 0;
    while (2 << log2_heads <= heads_in_line && 2 << log2_heads <= 32 / Lanes && p.heads % (2 << log2_heads) == 0)
        ++log2_heads;
    const int queries = teams >> log2_heads;
    return {(p.queries + queries - 1) / queries, p.heads >> log2_heads,
            (p.head_dim + Lanes * Width - 1) / (Lanes * Width), log2_heads};
}

/* One thread block for each of x * y * z items, or as many as a grid holds: kernels step by gridDim along each axis. */
inline dim3 grid_of(int64_t x, int64_t y = 1, int64_t z = 1)
{
    const int64_t most_x = INT_MAX, most_yz = most_blocks_yz;
    return dim3(unsigned(x < most_x ? x : most_x), unsigned(y < most_yz ? y : most_yz),
                unsigned(z < most_yz ? z : most_yz));
}

/*
 * Calls work(z, y, x) for the tiles of a block. The grid of a specialised form has a block for each (see form_of()): its
 * kernels are spared the loops.
 */
template <form F, class Work>
__device__ __forceinline__ void for_each_tile(int tiles_x, int tiles_y, int tiles_z, const Work &work)
{
    if constexpr (F == form::any) {
        for (int z = blockIdx.z; z < tiles_z; z += gridDim.z)
            for (int y = blockIdx.y; y < tiles_y; y += gridDim.y)
                for (int x = blockIdx.x; x < tiles_x; x += gridDim.x)
                    work(z, y, x);
    } else {
        work(int(blockIdx.z), int(blockIdx.y), int(blockIdx.x));
    }
}

/* Every block keeps the level table in shared memory: lanes of one warp read different entries. */
__device__ __forceinline__ void load_levels(const params &p, level *levels)
{
    for (int l = threadIdx.x; l <= p.num_levels; l += blockDim.x)
        levels[l] = p.levels[l];
    __syncthreads();
}

/*
 * The launch's own status, whatever error an earlier call of the thread has left pending: that one is neither returned
 * nor cleared.
 */
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 blocks, unsigned threads, size_t shared, cudaStream_t stream,
                   Arguments... arguments)
{
    constexpr size_t without_asking = 48 * 1024; /* of dynamic shared memory */
    if (shared > without_asking) {
        const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
        if (error != cudaSuccess)
            return error;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

} // namespace msda

#endif
