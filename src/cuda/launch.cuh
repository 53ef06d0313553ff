/* SPDX-License-Identifier: Apache-2.0 */
/* What the launchers of all kernels share: parameters from a shape, vector width by alignment, the launch itself. */
#ifndef MSDA_LAUNCH_CUH
#define MSDA_LAUNCH_CUH

#include "sample.cuh"

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
    p.equal_points = problem.levels[0].points;
    p.border = problem.padding == MSDA_PADDING_BORDER;
    p.align_corners = problem.align_corners;
    p.discrete = problem.sampling == MSDA_SAMPLING_DISCRETE;
    p.add = (problem.flags & MSDA_FLAG_ADD_TO_GRADIENTS) != 0;
    p.fused = shape.fused;
    p.reference_kind = problem.reference_kind;
    p.num_anchors = problem.num_anchors;
    p.box_scale = problem.box_scale;
    for (int l = 0; l < problem.num_levels; ++l) {
        const msda_level &from = problem.levels[l];
        p.levels[l] = {from.start, from.height, from.width, shape.first_point[l], 0};
        if (from.points != p.equal_points)
            p.equal_points = 0;
    }
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

/* Whether rows of value need 64-bit arithmetic: more of them, or farther apart in bytes, than an int counts. */
inline bool is_wide(const msda_shape &shape)
{
    const int64_t size = int64_t(msda_dtype_size(shape.p.value_dtype)), grad_size = int64_t(msda_dtype_size(shape.p.grad_value_dtype));
    return shape.p.value_length > INT_MAX / 2 || shape.p.strides[MSDA_TENSOR_VALUE].row > INT_MAX / size ||
           shape.p.strides[MSDA_TENSOR_GRAD_VALUE].row > INT_MAX / grad_size;
}

/* One thread block for each of `items`, or as many as a grid holds: kernels step by gridDim.x. */
inline unsigned grid_of(int64_t items)
{
    return unsigned(items < INT_MAX ? items : INT_MAX);
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
cudaError_t launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, size_t shared, cudaStream_t stream,
                   Arguments... arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

} // namespace msda

#endif
