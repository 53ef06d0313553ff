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

/* Blocks of a multiprocessor: enough warps to hide a gather's latency, without spilling its registers. */
template <class Value, int Split, form F>
constexpr int resident_blocks = sizeof(Value) == 8 || F == form::any                  ? 2
                                : sizeof(Value) == 4 && Split > 1 && F == form::plain ? 5
                                                                                      : 4;

/*
 * An encoder has a query for each pixel. A block then takes a patch of pixels rather than a piece of a line: the points of
 * its queries lie closer together, and more reads hit the first-level cache. Measured for f32 only.
 */
template <class Value, int Split, form F>
constexpr bool takes_patches = sizeof(Value) == 4 && Split == 1 && F != form::any;

/* The i-th query when each level is walked in bands of eight lines, and a band column by column. */
__device__ __forceinline__ int query_in_bands(const params &p, int i)
{
    int l = 0;
    while (l + 1 < p.num_levels && i >= p.levels[l + 1].start)
        ++l;
    const unsigned start = unsigned(p.levels[l].start), width = p.levels[l].width, height = p.levels[l].height;
    const unsigned lines = min(8u, height);
    const unsigned pixel = i - start, band = pixel / (width * lines), in_band = pixel - band * (width * lines);
    const unsigned lines_left = min(lines, height - band * lines);
    const unsigned column = in_band / lines_left, line = band * lines + in_band - column * lines_left;
    return int(start + line * width + column);
}

/*
 * Lanes: lanes side by side over the channels, Width elements each. Split: such groups in a team, each taking a share of
 * the points (for problems with too few queries and heads to fill the chip).
 */
template <class Value, class Point, int Lanes, int Width, int Split, class Row, form F>
__global__ void __launch_bounds__(threads_per_block, resident_blocks<Value, Split, F>)
    forward_kernel(const __grid_constant__ params p, const team_grid grid, const bool in_bands)
{
    using Real = real_of<Value>;
    constexpr int team = Lanes * Split;
    constexpr int teams = threads_per_block / team;
    constexpr int at_once = Lanes < 4 ? Lanes : 4; /* points whose reads are under way together */

    /* One record more than a team has lanes: teams of a warp read records that lie in different banks. */
    __shared__ corner_weights<Real> all_weights[teams][team + 1];
    __shared__ corner_places<Row> all_places[teams][team + 1];

    const int lane = threadIdx.x % team;
    const int own = threadIdx.x / team;
    const int share = lane / Lanes;
    corner_weights<Real> *const weights = all_weights[own];
    corner_places<Row> *const places = all_places[own];
    const Row row_bytes = Row(p.value.row * int64_t(sizeof(Value)));

    /* Queries vary fastest: what runs at the same time reads the same head's neighbourhood. */
    const auto sample = [&](int n, int y, int x) {
        const int head_tile = F == form::any ? y / grid.channel_tiles : y;
        const int channel_tile = F == form::any ? y % grid.channel_tiles : 0;
        const int ordinal = x * (teams >> grid.log2_heads) + (own >> grid.log2_heads);
        /* A team without a query follows the last one, and keeps it to itself. */
        int q = min(ordinal, p.queries - 1);
        if (takes_patches<Value, Split, F> && in_bands)
            q = query_in_bands(p, q);
        const int m = (head_tile << grid.log2_heads) + (own & ((1 << grid.log2_heads) - 1));
        const int channel = (channel_tile * Lanes + lane % Lanes) * Width;
        const bool has_channels = F != form::any || channel < p.head_dim;
        const Value *value = keep(static_cast<const Value *>(p.t.value) + p.value(n, 0, m) + channel);
        head<Point> h = keep<F>(p, open_head<F>(p, open_slice<F, Point>(p, n, m), q));
        /* What a lane needs for its next point, under way while the team gathers. */
        given_point<Real> given;
        pair_of<Real> reference;
        int l;
        const auto load = [&](int k) {
            l = level_of(p, p.levels, min(k, p.num_points - 1));
            given = k < p.num_points ? load_point<F>(h, k) : nowhere<Real>();
            reference = load_reference<F>(p, p.levels, h, l, min(k, p.num_points - 1));
        };
        load(lane);
        /* The fused form divides the output by the sum of the exponentials, not every weight. */
        if (is_fused<F>(p))
            h.softmax = {find_largest<team>(p, h, lane), Real(1)};
        Real exponentials = Real(0);
        Real sum[Width] = {};

        for (int k0 = 0; k0 < p.num_points; k0 += team) {
            const int k = min(k0 + lane, p.num_points - 1);
            const Real own_weight = weight_of<F>(p, h, given);
            exponentials += own_weight;
            const point<Real, Row> placed = place_weighted<F, Row>(p, p.levels, h, l, k, given, reference, own_weight);
            load(k0 + team + lane);
            weights[lane].set(placed);
            places[lane].set(placed, row_bytes);
            __syncwarp();
            const int count = min(team, p.num_points - k0);
            for (int first = share; first < count; first += at_once * Split)
#pragma unroll
                for (int j = first; j < first + at_once * Split; j += Split) {
                    const corner_places<Row> place = places[j];
                    const corner_weights<Real> weight = weights[j];
                    raw<Value, Width> corner[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        if (place.is_inside(i) && has_channels)
                            corner[i] = load_raw<Value, Width>(place.find(value, i, row_bytes));
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        if (place.is_inside(i) && has_channels) {
                            const unpacked<Value, Width> v = unpack<Value, Width>(corner[i]);
#pragma unroll
                            for (int c = 0; c < Width; ++c)
                                sum[c] = fma(weight.of[i], v.at[c], sum[c]);
                        }
                }
            __syncwarp();
        }

#pragma unroll
        for (int distance = Lanes; distance < team; distance *= 2)
#pragma unroll
            for (int c = 0; c < Width; ++c)
                sum[c] += __shfl_xor_sync(~0u, sum[c], distance);
        if (is_fused<F>(p)) {
            const Real scale = reciprocal(sum_over_lanes<team>(exponentials));
#pragma unroll
            for (int c = 0; c < Width; ++c)
                sum[c] *= scale;
        }
        if (ordinal < p.queries && has_channels && share == 0)
            store<Value, Width>(static_cast<Value *>(p.t.output) + p.output(n, q, m) + channel, sum);
    };
    for_each_tile<F>(grid.query_tiles, grid.head_tiles * grid.channel_tiles, p.batch, sample);
}

template <class Value, class Point, int Lanes, int Width, int Split, class Row, form F>
cudaError_t launch_teams(const msda_shape &shape, const params &p, cudaStream_t stream)
{
    const team_grid grid = make_team_grid<Value, Lanes, Width, Split>(p);
    return launch(forward_kernel<Value, Point, Lanes, Width, Split, Row, F>,
                  grid_of(grid.query_tiles, int64_t(grid.head_tiles) * grid.channel_tiles, p.batch), threads_per_block,
                  0, stream, p, grid, takes_patches<Value, Split, F> && shape.queries_are_pixels);
}

/* Threads that an H200 runs at once in blocks of forward_kernel() that do not split. */
constexpr int64_t full_wave = 132 * resident_blocks<float, 1, form::plain> * threads_per_block;

template <class Value, class Point, int Lanes, int Width, form F>
cudaError_t launch_exact(const msda_shape &shape, const params &p, cudaStream_t stream)
{
    /* Splitting adds instructions: f32 problems that nearly fill one wave do without, larger ones need but little. */
    const int64_t threads = int64_t(p.batch) * p.queries * p.heads * Lanes;
    if constexpr (sizeof(Value) == 4 && F == form::plain)
        if (is_small(p, Lanes) && threads > full_wave * 3 / 4)
            return threads <= full_wave ? launch_teams<Value, Point, Lanes, Width, 1, int, F>(shape, p, stream)
                                        : launch_teams<Value, Point, Lanes, Width, 2, int, F>(shape, p, stream);
    if (is_small(p, Lanes))
        return launch_teams<Value, Point, Lanes, Width, split_of<Lanes>, int, F>(shape, p, stream);
    return launch_teams<Value, Point, Lanes, Width, 1, int, F>(shape, p, stream);
}

} // namespace

template <class Value, class Point, int HeadDim>
cudaError_t launch_forward(const msda_shape &shape, const msda_tensors &tensors, cudaStream_t stream)
{
    constexpr int width = 16 / sizeof(Value);
    const params p = make_params(shape, tensors);
    const bool vectors = is_vector_aligned(tensors.value, p.value, p.head_dim, sizeof(Value)) &&
                         is_vector_aligned(tensors.output, p.output, p.head_dim, sizeof(Value));
    if (!vectors || is_wide(p.value, shape.p.value_length, sizeof(Value)))
        return launch_teams<Value, Point, 32, 1, 1, int64_t, form::any>(shape, p, stream);
    if constexpr (HeadDim != MSDA_ANY) {
        switch (form_of<Point>(p)) {
        case form::plain:
            return launch_exact<Value, Point, HeadDim / width, width, form::plain>(shape, p, stream);
        case form::fused:
            return launch_exact<Value, Point, HeadDim / width, width, form::fused>(shape, p, stream);
        case form::any:
            break;
        }
    }
    return launch_exact<Value, Point, 8, width, form::any>(shape, p, stream);
}

#define MSDA_KERNEL(value, point, head_dim)                                                                            \
    template cudaError_t launch_forward<value, point, head_dim>(const msda_shape &, const msda_tensors &, cudaStream_t);
#include "../kernels.def"

} // namespace msda
