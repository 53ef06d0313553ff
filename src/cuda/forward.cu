/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward: a team of lanes takes one query and head. Each lane of the team places one point at a time (coordinates,
 * corner rows, corner weights) and hands it round through shared memory; then the team gathers: every lane owns 16 bytes
 * of the head's channels and sums them over all corners in registers. One launch, no workspace.
 */
#include "cuda_table.h"
#include "launch.cuh"

namespace msda
{
namespace
{

/*
 * Lanes: lanes side by side over the channels, Width elements each. Split: such groups in a team, each taking a share of
 * the points (for problems with too few queries and heads to fill the chip).
 */
template <class Value, class Point, int Lanes, int Width, int Split, class Row>
__global__ void __launch_bounds__(threads_per_block) forward_kernel(const __grid_constant__ params p, int heads_per_tile)
{
    using Real = real_of<Value>;
    constexpr int team = Lanes * Split;
    constexpr int teams = threads_per_block / team;

    struct alignas(16) corner_weights {
        Real of[4];
    };
    struct alignas(16) corner_rows {
        Row of[4]; /* -1: outside */
    };
    /* One record more than a team has lanes: teams of a warp read records that lie in different banks. */
    __shared__ corner_weights weights[teams][team + 1];
    __shared__ corner_rows rows[teams][team + 1];
    __shared__ level levels[MSDA_MAX_LEVELS + 1];
    load_levels(p, levels);

    const int lane = threadIdx.x % team;
    const int own = threadIdx.x / team;
    const int share = lane / Lanes;
    const int queries_per_tile = teams / heads_per_tile;
    const int64_t query_tiles = (p.queries + queries_per_tile - 1) / queries_per_tile;
    const int head_tiles = p.heads / heads_per_tile;
    const int channel_tiles = (p.head_dim + Lanes * Width - 1) / (Lanes * Width);
    const int64_t tiles = query_tiles * head_tiles * channel_tiles * p.batch;

    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        /* Queries vary fastest: what runs at the same time reads the same head's neighbourhood. */
        int64_t rest = tile;
        const int64_t q = rest % query_tiles * queries_per_tile + own / heads_per_tile;
        rest /= query_tiles;
        const int channel = int(rest % channel_tiles) * Lanes * Width + lane % Lanes * Width;
        rest /= channel_tiles;
        const int m = int(rest % head_tiles) * heads_per_tile + own % heads_per_tile;
        const int64_t n = rest / head_tiles;
        const bool in_range = q < p.queries;
        const bool has_channels = in_range && channel < p.head_dim;

        head<Point> h = open_head<Point>(p, n, in_range ? q : 0, m);
        if (p.fused)
            h.softmax = find_softmax<team>(p, h, lane);
        const Value *value = static_cast<const Value *>(p.t.value) + p.value(n, 0, m) + channel;
        const Row row_bytes = Row(p.value.row * int64_t(sizeof(Value)));
        Real sum[Width] = {};

        for (int k0 = 0; k0 < p.num_points; k0 += team) {
            const int k = k0 + lane;
            const point<Real, Row> placed =
                in_range && k < p.num_points ? point_of<Row>(p, levels, h, k) : no_point<Real, Row>();
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                weights[own][lane].of[i] = placed.weight * placed.corner_weight(i);
                rows[own][lane].of[i] = placed.corner_row(i);
            }
            __syncwarp();
            const int count = min(team, p.num_points - k0);
#pragma unroll 2
            for (int j = share; j < count; j += Split) {
                const corner_weights w = weights[own][j];
                const corner_rows r = rows[own][j];
                raw<Value, Width> corner[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const Value *row = at_row(value, r.of[i], row_bytes);
                    if (r.of[i] >= 0 && has_channels)
                        corner[i] = load_raw<Value, Width>(row);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (r.of[i] >= 0 && has_channels) {
                        const unpacked<Value, Width> v = unpack<Value, Width>(corner[i]);
#pragma unroll
                        for (int c = 0; c < Width; ++c)
                            sum[c] = fma(w.of[i], v.at[c], sum[c]);
                    }
            }
            __syncwarp();
        }

#pragma unroll
        for (int distance = Lanes; distance < team; distance *= 2)
#pragma unroll
            for (int c = 0; c < Width; ++c)
                sum[c] += __shfl_xor_sync(~0u, sum[c], distance);
        if (has_channels && share == 0)
            store<Value, Width>(static_cast<Value *>(p.t.output) + p.output(n, q, m) + channel, sum);
    }
}

template <class Value, class Point, int Lanes, int Width, int Split, class Row>
cudaError_t launch_teams(const msda_shape &shape, const params &p, cudaStream_t stream)
{
    /* A head whose row is a part of a 128-byte line shares its warp with the heads in the rest of the line. */
    const int heads_in_line = int(128 / (Lanes * Width * sizeof(Value)));
    const int heads_per_tile = heads_in_line > 1 && p.heads % heads_in_line == 0 ? heads_in_line : 1;
    const int queries_per_tile = threads_per_block / (Lanes * Split) / heads_per_tile;
    const int64_t query_tiles = (p.queries + queries_per_tile - 1) / queries_per_tile;
    const int64_t channel_tiles = (p.head_dim + Lanes * Width - 1) / (Lanes * Width);
    return launch(forward_kernel<Value, Point, Lanes, Width, Split, Row>,
                  grid_of(query_tiles * channel_tiles * (p.heads / heads_per_tile) * p.batch), threads_per_block, 0, stream,
                  p, heads_per_tile);
}

/* Fewer threads than this leave multiprocessors of today's devices idle; then a head's points are split over lanes. */
constexpr int64_t full_chip = 512 * 1024;

template <class Value, class Point, int Lanes, int Width, class Row>
cudaError_t launch_lanes(const msda_shape &shape, const params &p, cudaStream_t stream)
{
    constexpr int split = Lanes <= 8 ? 4 : 32 / Lanes;
    if (int64_t(p.batch) * p.queries * p.heads * Lanes < full_chip)
        return launch_teams<Value, Point, Lanes, Width, split, Row>(shape, p, stream);
    return launch_teams<Value, Point, Lanes, Width, 1, Row>(shape, p, stream);
}

template <class Value, class Point, class Row>
cudaError_t launch_any(const msda_shape &shape, const params &p, bool vectors, cudaStream_t stream)
{
    constexpr int width = 16 / sizeof(Value);
    if (vectors)
        return launch_lanes<Value, Point, 8, width, Row>(shape, p, stream);
    if (p.head_dim <= 4)
        return launch_lanes<Value, Point, 4, 1, Row>(shape, p, stream);
    return launch_lanes<Value, Point, 32, 1, Row>(shape, p, stream);
}

} // namespace

template <class Value, class Point, int HeadDim>
cudaError_t launch_forward(const msda_shape &shape, const msda_tensors &tensors, cudaStream_t stream)
{
    const params p = make_params(shape, tensors);
    const bool vectors = is_vector_aligned(tensors.value, p.value, p.head_dim, sizeof(Value)) &&
                         is_vector_aligned(tensors.output, p.output, p.head_dim, sizeof(Value));
    if (is_wide(shape))
        return launch_any<Value, Point, int64_t>(shape, p, vectors, stream);
    if constexpr (HeadDim != MSDA_ANY) {
        constexpr int width = 16 / sizeof(Value);
        if (vectors)
            return launch_lanes<Value, Point, HeadDim / width, width, int>(shape, p, stream);
    }
    return launch_any<Value, Point, int>(shape, p, vectors, stream);
}

#define MSDA_KERNEL(value, point, head_dim)                                                                            \
    template cudaError_t launch_forward<value, point, head_dim>(const msda_shape &, const msda_tensors &, cudaStream_t);
#include "../kernels.def"

} // namespace msda
