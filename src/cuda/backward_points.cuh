/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward's gather: the same teams as the forward's. Each lane multiplies its channels of grad_output with the four
 * corners of a point; the team adds up these four dot products and the lane that placed the point turns them into the
 * gradients of its location and weight. With Scatter the same loop adds weight * grad_output to the corners' rows of
 * grad_value (or of its fp32 image) with atomic reductions.
 */
#ifndef MSDA_BACKWARD_POINTS_CUH
#define MSDA_BACKWARD_POINTS_CUH

#include "launch.cuh"
#include "reduce.cuh"

namespace msda
{
/* Blocks of a multiprocessor: as many as fit without spilling registers. */
template <class Value, int Split, bool Scatter, form F>
constexpr int resident_gather_blocks = sizeof(Value) == 8 || Scatter                         ? 2
                                       : sizeof(Value) == 4 && F == form::plain &&Split == 1 ? 4
                                                                                             : 3;

/* Where the gather leaves its results when they are not final; see backward.cu. */
struct backward_scratch {
    void *sums; /* what grad_value is summed in: grad_value itself or its image */
    stride sum_strides;
    void *weight_gradients;   /* fused: [batch][queries][heads][points], with respect to the weights after softmax */
    void *location_gradients; /* fused: the same [2], with respect to the locations */
};

/*
 * The dot products of Batch points, of which every lane holds its channels' part: on return a lane whose number ends in
 * the bits of t holds those of point t in dots[0], summed over all Lanes lanes. Halving the points at every step that
 * swaps lanes takes a third of the shuffles of summing each point on its own.
 */
template <int Lanes, int Batch, class Real> __device__ __forceinline__ void sum_dots(Real (&dots)[Batch][4], int lane)
{
#pragma unroll
    for (int half = 1; half < Batch; half *= 2) {
        const bool odd = lane & half;
#pragma unroll
        for (int t = 0; t < Batch / half; t += 2)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Real keep = odd ? dots[t + 1][i] : dots[t][i];
                const Real give = odd ? dots[t][i] : dots[t + 1][i];
                dots[t / 2][i] = keep + __shfl_xor_sync(~0u, give, half);
            }
    }
#pragma unroll
    for (int distance = Batch; distance < Lanes; distance *= 2)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            dots[0][i] += __shfl_xor_sync(~0u, dots[0][i], distance);
}

/* Writes the gradients of point k from its four dot products. */
template <form F, class Point, class Real, class Row>
__device__ __forceinline__ void write_point_gradients(const params &p, const backward_scratch &scratch, int64_t n,
                                                      int64_t q, int64_t m, int k, const point<Real, Row> &at,
                                                      const Real (&dot)[4])
{
    const Real x = at.fraction_x, y = at.fraction_y;
    const Real weight = (Real(1) - x) * (Real(1) - y) * dot[0] + x * (Real(1) - y) * dot[1] +
                        (Real(1) - x) * y * dot[2] + x * y * dot[3];
    const Real along_x = at.weight * at.slope_x * ((Real(1) - y) * (dot[1] - dot[0]) + y * (dot[3] - dot[2]));
    const Real along_y = at.weight * at.slope_y * ((Real(1) - x) * (dot[2] - dot[0]) + x * (dot[3] - dot[1]));
    if (is_fused<F>(p)) {
        const int64_t at_point = ((n * p.queries + q) * p.heads + m) * p.num_points + k;
        static_cast<Real *>(scratch.weight_gradients)[at_point] = weight;
        static_cast<Real *>(scratch.location_gradients)[2 * at_point] = along_x;
        static_cast<Real *>(scratch.location_gradients)[2 * at_point + 1] = along_y;
        return;
    }
    if (p.t.grad_weights) {
        Point *to = static_cast<Point *>(p.t.grad_weights) + p.grad_weights(n, q, m) + k;
        *to = narrow<Point>(p.add ? widen(*to) + weight : weight);
    }
    if (p.t.grad_locations) {
        Point *to = static_cast<Point *>(p.t.grad_locations) + p.grad_locations(n, q, m) + 2 * int64_t(k);
        to[0] = narrow<Point>(p.add ? widen(to[0]) + along_x : along_x);
        to[1] = narrow<Point>(p.add ? widen(to[1]) + along_y : along_y);
    }
}

/*
 * Lanes, Width, Split as in the forward. Heads wider than Lanes * Width channels take several turns over the channels,
 * adding up the dot products. Sum is the type that grad_value is summed in.
 */
template <class Value, class Point, class Sum, int Lanes, int Width, int Split, bool Scatter, class Row, form F>
__global__ void __launch_bounds__(threads_per_block, resident_gather_blocks<Value, Split, Scatter, F>)
    backward_points_kernel(const __grid_constant__ params p, const backward_scratch scratch, const team_grid grid)
{
    using Real = real_of<Value>;
    constexpr int team = Lanes * Split;
    constexpr int teams = threads_per_block / team;
    constexpr int batch = Lanes < 4 ? Lanes : 4; /* points whose dot products are summed together */
    constexpr int ahead =
        Scatter && batch > 1 ? 2 : 1; /* points that are read before the atomics of the first of them */

    __shared__ corner_weights<Real> all_weights[Scatter ? teams : 1][team + 1];
    __shared__ corner_places<Row> all_places[teams][team + 1];
    __shared__ corner_places<Row> all_sum_places[Scatter ? teams : 1][team + 1];

    const int lane = threadIdx.x % team;
    const int own = threadIdx.x / team;
    const int share = lane / Lanes;
    /* A share's points are every Split-th: lane i of a share places and finishes its i-th. */
    const int slot = share + Split * (lane % Lanes);
    corner_weights<Real> *const weights = all_weights[Scatter ? own : 0];
    corner_places<Row> *const places = all_places[own];
    corner_places<Row> *const sum_places = all_sum_places[Scatter ? own : 0];
    const Row row_bytes = Row(p.value.row * int64_t(sizeof(Value)));
    const Row sum_bytes = Row(scratch.sum_strides.row * int64_t(sizeof(Sum)));
    const bool want_points = is_fused<F>(p) || p.t.grad_weights || p.t.grad_locations;
    const bool want_sums = Scatter && scratch.sums;

    const auto differentiate = [&](int n, int y, int x) {
        const int q = x * (teams >> grid.log2_heads) + (own >> grid.log2_heads);
        const int m = (y << grid.log2_heads) + (own & ((1 << grid.log2_heads) - 1));
        const bool in_range = q < p.queries;
        const int present_query = min(q, p.queries - 1);

        head<Point> h = open_head<F>(p, open_slice<F, Point>(p, n, m), present_query);
        if (is_fused<F>(p))
            h.softmax = find_softmax<team>(p, h, lane);
        const Value *value = keep(static_cast<const Value *>(p.t.value) + p.value(n, 0, m) +
                                  (F == form::any ? 0 : lane % Lanes * Width));
        const Value *grad_output = static_cast<const Value *>(p.t.grad_output) + p.grad_output(n, present_query, m);
        Sum *sums = keep(static_cast<Sum *>(scratch.sums) + scratch.sum_strides(n, 0, m) +
                         (F == form::any ? 0 : lane % Lanes * Width));

        for (int k0 = 0; k0 < p.num_points; k0 += team) {
            const int k = k0 + slot, present = min(k, p.num_points - 1);
            const bool has_point = in_range && k < p.num_points;
            const point<Real, Row> placed =
                place_point<F, Row>(p, p.levels, h, level_of(p, p.levels, present), present,
                                    has_point ? load_point<F>(h, present) : nowhere<Real>());
            places[slot].set(placed, row_bytes);
            if (Scatter) {
                weights[slot].set(placed);
                sum_places[slot].set(placed, sum_bytes);
            }
            __syncwarp();
            Real dot[4] = {};
            const int count = min(Lanes, (p.num_points - k0 + Split - 1) / Split); /* of the fullest share */
            for (int turn = 0; F == form::any ? turn < p.head_dim : turn == 0; turn += Lanes * Width) {
                const int channel = turn + lane % Lanes * Width;
                const bool has_channels = F != form::any || channel < p.head_dim;
                unpacked<Value, Width> g = {};
                if (has_channels)
                    g = unpack<Value, Width>(load_raw<Value, Width>(grad_output + channel));
                for (int first = 0; first < count; first += batch) {
                    Real dots[batch][4];
#pragma unroll
                    for (int t0 = 0; t0 < batch; t0 += ahead) {
                        const int j0 = share + Split * (first + t0);
                        raw<Value, Width> corner[ahead][4];
                        bool inside[ahead][4];
#pragma unroll
                        for (int t = 0; t < ahead; ++t) {
                            const corner_places<Row> place = places[j0 + Split * t];
#pragma unroll
                            for (int i = 0; i < 4; ++i) {
                                inside[t][i] = place.is_inside(i) && has_channels;
                                if (inside[t][i] && want_points)
                                    corner[t][i] = load_raw<Value, Width>(
                                        place.find(value + (F == form::any ? channel : 0), i, row_bytes));
                            }
                        }
                        if (want_sums)
#pragma unroll
                            for (int t = 0; t < ahead; ++t) {
                                const corner_weights<Real> weight = weights[j0 + Split * t];
                                const corner_places<Row> place = sum_places[j0 + Split * t];
#pragma unroll
                                for (int i = 0; i < 4; ++i) {
                                    real_of<Sum> part[Width];
#pragma unroll
                                    for (int c = 0; c < Width; ++c)
                                        part[c] = weight.of[i] * g.at[c];
                                    reduce_if<Width>(inside[t][i],
                                                     place.find(sums + (F == form::any ? channel : 0), i, sum_bytes),
                                                     part);
                                }
                            }
#pragma unroll
                        for (int t = 0; t < ahead; ++t)
#pragma unroll
                            for (int i = 0; i < 4; ++i) {
                                dots[t0 + t][i] = Real(0);
                                if (inside[t][i] && want_points) {
                                    const unpacked<Value, Width> v = unpack<Value, Width>(corner[t][i]);
#pragma unroll
                                    for (int c = 0; c < Width; ++c)
                                        dots[t0 + t][i] = fma(g.at[c], v.at[c], dots[t0 + t][i]);
                                }
                            }
                    }
                    if (!want_points)
                        continue;
                    sum_dots<Lanes, batch>(dots, lane);
                    if (lane % Lanes / batch == first / batch)
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            dot[i] += dots[0][i];
                }
            }
            if (want_points && has_point)
                write_point_gradients<F, Point>(p, scratch, n, q, m, k, placed, dot);
            __syncwarp();
        }
    };
    for_each_tile<F>(grid.query_tiles, grid.head_tiles, p.batch, differentiate);
}

template <class Value, class Point, class Sum, int Lanes, int Width, int Split, bool Scatter, class Row, form F>
cudaError_t launch_points(const params &p, const backward_scratch &scratch, cudaStream_t stream)
{
    const team_grid grid = make_team_grid<Value, Lanes, Width, Split>(p);
    return launch(backward_points_kernel<Value, Point, Sum, Lanes, Width, Split, Scatter, Row, F>,
                  grid_of(grid.query_tiles, grid.head_tiles, p.batch), threads_per_block, 0, stream, p, scratch, grid);
}

} // namespace msda

#endif
