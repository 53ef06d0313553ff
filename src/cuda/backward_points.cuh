/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward's gather: the same teams as the forward's. Each lane multiplies its channels of grad_output with the four
 * corners of a point; the team adds up these four dot products and the lane that placed the point turns them into the
 * gradients of its location and weight. With Scatter the same loop adds weight * grad_output to the corners' rows of
 * grad_value (or of its fp32 image) with atomic reductions.
 *
 * Fused form: the gradient of an offset is the location's times a factor, written at once. That of a logit needs
 *   sum_j weight_j * G_j,  G the gradients of the weights,
 * and that of a reference is a sum over points, so a team keeps what they need of its points until it has met them all.
 * References are shared by heads: each leaves its share, and a last kernel adds them up in order.
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

/* Fused form: a point's weight after softmax, the gradient of this weight, and that of its location. */
template <class Real> struct alignas(4 * sizeof(Real)) kept_point {
    Real weight, weight_gradient;
    Real location_gradient[2];
};

/* Where the gather leaves its results when they are not final; see backward.cu. */
struct backward_scratch {
    void *sums; /* what grad_value is summed in: grad_value itself or its image */
    stride sum_strides;
    const void *softmax; /* fused: softmax_state[n][q][m], or null: found by the gather itself */
    void *kept_points;   /* fused: kept_point[n][q][m][k], for heads of so many points that a block cannot keep them */
    void *reference_shares; /* fused: [n][q][m][reference_length()] */
};

/*
 * Shared memory for the points that teams of `lanes` lanes keep, or 0 where it would take too much of the first-level
 * cache. One more than a head has: the same points of a warp's heads lie in different banks.
 */
template <class Real> size_t kept_bytes(int lanes, int64_t num_points)
{
    constexpr int64_t most = 36 * 1024;
    const int64_t bytes = threads_per_block / lanes * (num_points + 1) * int64_t(sizeof(kept_point<Real>));
    return bytes <= most ? size_t(bytes) : 0;
}

/* Elements of one query's references. */
template <class Problem> __host__ __device__ int64_t reference_length(const Problem &p)
{
    switch (p.reference_kind) {
    case MSDA_REFERENCE_BOXES:
        return 4 * p.num_levels;
    case MSDA_REFERENCE_ANCHORS:
        return 2 * int64_t(p.num_anchors);
    default:
        return 2 * p.num_levels;
    }
}

template <class Point, class Real>
__device__ __forceinline__ void write_gradient(const params &p, Point *to, Real gradient)
{
    *to = narrow<Point>(p.add ? widen(*to) + gradient : gradient);
}

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

/*
 * The gradients of a point's weight and location from its four dot products. With form::fused that of the location is left
 * in pixels, which makes it the offset's.
 */
template <class Real> struct point_gradients {
    Real weight, x, y;
};

template <form F, class Real, class Row>
__device__ __forceinline__ point_gradients<Real> find_gradients(const point<Real, Row> &at, const Real (&dot)[4])
{
    const Real x = at.fraction_x, y = at.fraction_y;
    const Real scale_x = F == form::fused ? at.weight : at.weight * at.slope_x;
    const Real scale_y = F == form::fused ? at.weight : at.weight * at.slope_y;
    return {(Real(1) - x) * (Real(1) - y) * dot[0] + x * (Real(1) - y) * dot[1] + (Real(1) - x) * y * dot[2] +
                x * y * dot[3],
            scale_x * ((Real(1) - y) * (dot[1] - dot[0]) + y * (dot[3] - dot[2])),
            scale_y * ((Real(1) - x) * (dot[2] - dot[0]) + x * (dot[3] - dot[1]))};
}

/* Plain form: what is found is final. */
template <class Point, class Real>
__device__ __forceinline__ void write_point(const params &p, int64_t n, int64_t q, int64_t m, int k,
                                            const point_gradients<Real> &found)
{
    if (p.t.grad_weights)
        write_gradient(p, static_cast<Point *>(p.t.grad_weights) + p.grad_weights(n, q, m) + k, found.weight);
    if (p.t.grad_locations) {
        Point *to = static_cast<Point *>(p.t.grad_locations) + p.grad_locations(n, q, m) + 2 * int64_t(k);
        write_gradient(p, to, found.x);
        write_gradient(p, to + 1, found.y);
    }
}

/* One head's share in the gradient of a component of its query's references. */
template <form F, class Point, class Real>
__device__ __forceinline__ Real sum_reference(const params &p, const head<Point> &h, const kept_point<Real> *kept,
                                              int component)
{
    const bool boxes = is_set<F>(p.reference_kind == MSDA_REFERENCE_BOXES);
    const bool anchors = is_set<F>(p.reference_kind == MSDA_REFERENCE_ANCHORS);
    const int components = boxes ? 4 : 2, which = component / components, axis = component % 2;
    const bool is_size = component % components >= 2; /* it scales the offset */
    Real sum = Real(0);
    for (int l = anchors ? 0 : which; l < (anchors ? p.num_levels : which + 1); ++l) {
        const int first = p.levels[l].first_point, end = p.levels[l + 1].first_point;
        const Real size_scale = Real(p.box_scale) / Real(end - first);
#pragma unroll 1
        for (int k = first + (anchors ? which : 0); k < end; k += anchors ? p.num_anchors : 1) {
            const Real gradient = kept[k].location_gradient[axis];
            sum += is_size ? gradient * widen(h.locations[2 * int64_t(k) + axis]) * size_scale : gradient;
        }
    }
    if (F == form::fused)
        sum *= Real(axis == 0 ? p.levels[which].width : p.levels[which].height);
    return sum;
}

/* Fused form: the gradients of a head from the points that its team has kept. */
template <int Lanes, form F, class Point, class Real>
__device__ __forceinline__ void finish_head(const params &p, const backward_scratch &scratch, const head<Point> &h,
                                            int64_t n, int64_t q, int64_t m, const kept_point<Real> *kept, int lane,
                                            bool in_range)
{
    const int num_points = in_range ? p.num_points : 0;
    Real mean = Real(0);
#pragma unroll 1
    for (int k = lane; k < num_points; k += Lanes)
        mean += kept[k].weight * kept[k].weight_gradient;
    mean = sum_over_lanes<Lanes>(mean);

    Point *logits = static_cast<Point *>(p.t.grad_weights) + p.grad_weights(n, q, m);
    Point *offsets = static_cast<Point *>(p.t.grad_locations) + p.grad_locations(n, q, m);
#pragma unroll 1
    for (int k = lane; k < num_points; k += Lanes) {
        const kept_point<Real> at = kept[k];
        if (p.t.grad_weights)
            write_gradient(p, logits + k, at.weight * (at.weight_gradient - mean));
        if (p.t.grad_locations) {
            const int l = level_of(p, p.levels, k);
            Real scale_x = Real(1), scale_y = Real(1);
            if (F != form::fused)
                offset_scale<F>(p, p.levels, h, l, reference_of<F>(p, p.levels, l, k), scale_x, scale_y);
            write_gradient(p, offsets + 2 * int64_t(k), at.location_gradient[0] * scale_x);
            write_gradient(p, offsets + 2 * int64_t(k) + 1, at.location_gradient[1] * scale_y);
        }
    }
    if (p.t.grad_references && in_range) {
        const int64_t length = reference_length(p);
        Real *to = static_cast<Real *>(scratch.reference_shares) + ((n * p.queries + q) * p.heads + m) * length;
#pragma unroll 1
        for (int64_t component = lane; component < length; component += Lanes)
            to[component] = sum_reference<F>(p, h, kept, int(component));
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
    extern __shared__ uint4 shared_memory[]; /* kept points */

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
    const bool want_points = p.t.grad_weights || p.t.grad_locations || p.t.grad_references;
    const bool want_sums = Scatter && scratch.sums;

    const auto differentiate = [&](int n, int y, int x) {
        const int q = x * (teams >> grid.log2_heads) + (own >> grid.log2_heads);
        const int m = (y << grid.log2_heads) + (own & ((1 << grid.log2_heads) - 1));
        const bool in_range = q < p.queries;
        const int present_query = min(q, p.queries - 1);

        head<Point> h = open_head<F>(p, open_slice<F, Point>(p, n, m), present_query);
        kept_point<Real> *kept = reinterpret_cast<kept_point<Real> *>(shared_memory) + own * (p.num_points + 1);
        if (is_fused<F>(p)) {
            const int64_t head_number = (int64_t(n) * p.queries + present_query) * p.heads + m;
            if (F == form::any && scratch.kept_points)
                kept = static_cast<kept_point<Real> *>(scratch.kept_points) + head_number * p.num_points;
            if (scratch.softmax)
                h.softmax = static_cast<const softmax_state<Real> *>(scratch.softmax)[head_number];
            else
                h.softmax = find_softmax<team>(p, h, lane);
        }
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
            if (want_points && has_point) {
                const point_gradients<Real> found = find_gradients<F>(placed, dot);
                if (is_fused<F>(p))
                    kept[k] = {placed.weight, found.weight, {found.x, found.y}};
                else
                    write_point<Point>(p, n, q, m, k, found);
            }
            __syncwarp();
        }
        if (is_fused<F>(p) && want_points) {
            finish_head<team, F>(p, scratch, h, n, q, m, kept, lane, in_range);
            __syncwarp();
        }
    };
    for_each_tile<F>(grid.query_tiles, grid.head_tiles, p.batch, differentiate);
}

template <class Value, class Point, class Sum, int Lanes, int Width, int Split, bool Scatter, class Row, form F>
cudaError_t launch_points(const params &p, backward_scratch scratch, cudaStream_t stream)
{
    const team_grid grid = make_team_grid<Value, Lanes, Width, Split>(p);
    const size_t shared = p.fused ? kept_bytes<real_of<Value>>(Lanes * Split, p.num_points) : 0;
    if (shared > 0)
        scratch.kept_points = nullptr;
    return launch(backward_points_kernel<Value, Point, Sum, Lanes, Width, Split, Scatter, Row, F>,
                  grid_of(grid.query_tiles, grid.head_tiles, p.batch), threads_per_block, shared, stream, p, scratch,
                  grid);
}

} // namespace msda

#endif
