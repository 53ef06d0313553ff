/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward's gather: the same teams as the forward's. Each lane multiplies its channels of grad_output with the four
 * corners of a point; the team adds up these four dot products and the lane that placed the point turns them into the
 * gradients of its location and weight. With Scatter the same loop adds weight * grad_output to the corners' rows of
 * grad_value (or of its fp32 image) with atomic reductions.
 *
 * Fused form: the gradient of an offset is the location's times a factor. That of a logit needs
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
constexpr int resident_gather_blocks = sizeof(Value) == 8                                  ? 1
                                       : Scatter                                           ? 2
                                       : sizeof(Value) == 4 && F != form::any &&Split == 1 ? 4
                                                                                           : 3;

/*
 * Fused form: a point's weight, the gradient of this weight, and that of its location; before it is known, where in its
 * cell the point lies, and before it is placed, its exponential.
 */
template <class Real> struct alignas(16) kept_point {
    Real weight, weight_gradient;
    pair_of<Real> location;
};

/* Where the gather leaves its results when they are not final; see backward.cu. */
struct backward_scratch {
    void *sums; /* what grad_value is summed in: grad_value itself or its image */
    stride sum_strides;
    void *softmax;     /* fused: softmax_state[n][q][m] for the kernels that come after, or null */
    void *kept_points; /* fused: kept_point[n][q][m][k], for heads of so many points that a block cannot keep them */
    void *reference_shares; /* fused: [n][q][m][reference_pairs()], pair_of */
};

/* Points that a team has room for: an odd number, so that the teams of a warp keep theirs in different banks. */
__host__ __device__ constexpr int kept_stride(int num_points)
{
    return num_points | 1;
}

/*
 * Shared memory for the points that teams of `lanes` lanes keep; 0 if it would take too much of the first-level cache or,
 * with all else that the gather shares, more than the 48 KiB that every device has.
 */
template <class Real> size_t kept_bytes(int lanes, int num_points)
{
    constexpr int64_t most = sizeof(Real) == 8 ? 30 * 1024 : 34 * 1024;
    const int64_t points = threads_per_block / lanes * int64_t(kept_stride(num_points));
    const int64_t bytes = points * int64_t(sizeof(kept_point<Real>));
    return bytes <= most ? size_t(bytes) : 0;
}

/* The (x, y) and (w, h) of one query's references. */
template <form F, class Problem> __host__ __device__ int reference_pairs(const Problem &p)
{
    if (is_set<F>(p.reference_kind == MSDA_REFERENCE_BOXES))
        return 2 * p.num_levels;
    return is_set<F>(p.reference_kind == MSDA_REFERENCE_ANCHORS) ? p.num_anchors : p.num_levels;
}

template <class Point, class Real>
__device__ __forceinline__ void write_gradient(const params &p, Point *to, Real gradient)
{
    *to = narrow<Point>(p.add ? widen(*to) + gradient : gradient);
}

template <form F, class Point, class Real>
__device__ __forceinline__ void write_pair(const params &p, Point *to, pair_of<Real> gradient)
{
    if (p.add) {
        const pair_of<Real> old = {widen(to[0]), widen(to[1])};
        gradient = {old.x + gradient.x, old.y + gradient.y};
    }
    if constexpr (F == form::any) {
        to[0] = narrow<Point>(gradient.x);
        to[1] = narrow<Point>(gradient.y);
    } else {
        const Real both[2] = {gradient.x, gradient.y};
        store<Point, 2>(to, both);
    }
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
 * The scale of a point's gradient of location. With form::fused it is left in pixels, which makes the gradient the
 * offset's.
 */
template <form F, class Real, class Row>
__device__ __forceinline__ pair_of<Real> location_scale(const point<Real, Row> &at)
{
    if (F == form::fused)
        return {at.weight, at.weight};
    return {at.weight * at.slope_x, at.weight * at.slope_y};
}

/* The gradients of a point's weight and location from where it lies in its cell and its four dot products. */
template <class Real> struct point_gradients {
    Real weight;
    pair_of<Real> location;
};

template <class Real>
__device__ __forceinline__ point_gradients<Real> find_gradients(Real x, Real y, const pair_of<Real> &scale,
                                                                const Real (&dot)[4])
{
    return {(Real(1) - x) * (Real(1) - y) * dot[0] + x * (Real(1) - y) * dot[1] + (Real(1) - x) * y * dot[2] +
                x * y * dot[3],
            {scale.x * ((Real(1) - y) * (dot[1] - dot[0]) + y * (dot[3] - dot[2])),
             scale.y * ((Real(1) - x) * (dot[2] - dot[0]) + x * (dot[3] - dot[1]))}};
}

/* Plain form: what is found is final. */
template <form F, class Point, class Real>
__device__ __forceinline__ void write_point_gradients(const params &p, int64_t n, int64_t q, int64_t m, int k,
                                                      const point_gradients<Real> &found)
{
    if (p.t.grad_weights)
        write_gradient(p, static_cast<Point *>(p.t.grad_weights) + p.grad_weights(n, q, m) + k, found.weight);
    if (p.t.grad_locations)
        write_pair<F>(p, static_cast<Point *>(p.t.grad_locations) + p.grad_locations(n, q, m) + 2 * int64_t(k),
                      found.location);
}

/* Fused form: softmax over a head whose team keeps the exponentials. */
template <int Lanes, class Point, class Real>
__device__ __forceinline__ softmax_state<Real> keep_exponentials(const params &p, const head<Point> &h,
                                                                 kept_point<Real> *kept, int lane, bool in_range)
{
    const Real largest = find_largest<Lanes>(p, h, lane);
    Real sum = Real(0);
    for_each_logit<Lanes>(p, h, lane, [&](int k, Real logit) {
        const Real x = exponential(logit - largest);
        sum += x;
        if (in_range)
            kept[k].weight = x;
    });
    return {largest, reciprocal(sum_over_lanes<Lanes>(sum))};
}

/* One head's share in the gradient of a pair of its query's references. */
template <form F, class Point, class Real>
__device__ __forceinline__ pair_of<Real> sum_reference(const params &p, const head<Point> &h,
                                                       const kept_point<Real> *kept, int pair)
{
    const bool boxes = is_set<F>(p.reference_kind == MSDA_REFERENCE_BOXES);
    const bool anchors = is_set<F>(p.reference_kind == MSDA_REFERENCE_ANCHORS);
    const int own_level = boxes ? pair / 2 : pair;
    pair_of<Real> sum = {};
    for (int l = anchors ? 0 : own_level; l < (anchors ? p.num_levels : own_level + 1); ++l) {
        const int first = p.levels[l].first_point, end = p.levels[l + 1].first_point;
#pragma unroll 1
        for (int k = first + (anchors ? pair : 0); k < end; k += anchors ? p.num_anchors : 1) {
            pair_of<Real> factor = {Real(1), Real(1)};
            if (boxes && pair % 2 == 1) { /* (w, h) scales the offset */
                const Real per_point = Real(p.box_scale) / Real(end - first);
                factor = load_pair<F>(h.locations + 2 * int64_t(k));
                factor = {factor.x * per_point, factor.y * per_point};
            }
            sum.x += kept[k].location.x * factor.x;
            sum.y += kept[k].location.y * factor.y;
        }
    }
    if (F == form::fused)
        sum = {sum.x * Real(p.levels[pair].width), sum.y * Real(p.levels[pair].height)};
    return sum;
}

/* Fused form: the gradients of a head from the points that its team has kept; `mean`, of a lane's points, is its share. */
template <int Lanes, form F, class Point, class Real>
__device__ __forceinline__ void finish_head(const params &p, pair_of<Real> *shares, const head<Point> &h, int64_t n,
                                            int64_t q, int64_t m, const kept_point<Real> *kept, Real mean, int lane)
{
    Point *logits = static_cast<Point *>(p.t.grad_weights) + p.grad_weights(n, q, m);
    Point *offsets = static_cast<Point *>(p.t.grad_locations) + p.grad_locations(n, q, m);
#pragma unroll 1
    for (int k = lane; k < p.num_points; k += Lanes) {
        const kept_point<Real> at = kept[k];
        if (p.t.grad_weights)
            write_gradient(p, logits + k, at.weight * (at.weight_gradient - mean));
        if (p.t.grad_locations) {
            pair_of<Real> scale = {Real(1), Real(1)};
            if (F != form::fused)
                scale = offset_scale<F>(p, p.levels, h, level_of(p, p.levels, k), k);
            write_pair<F>(p, offsets + 2 * int64_t(k), pair_of<Real>{at.location.x * scale.x, at.location.y * scale.y});
        }
    }
    if (p.t.grad_references)
#pragma unroll 1
        for (int pair = lane; pair < reference_pairs<F>(p); pair += Lanes)
            shares[pair] = sum_reference<F>(p, h, kept, pair);
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

        head<Point> h = keep<F>(p, open_head<F>(p, open_slice<F, Point>(p, n, m), present_query));
        const int64_t head_number = (int64_t(n) * p.queries + present_query) * p.heads + m;
        kept_point<Real> *kept =
            reinterpret_cast<kept_point<Real> *>(shared_memory) + unsigned(own) * unsigned(kept_stride(p.num_points));
        if (F == form::any && scratch.kept_points)
            kept = static_cast<kept_point<Real> *>(scratch.kept_points) + head_number * p.num_points;
        if (is_fused<F>(p)) {
            h.softmax = keep_exponentials<team>(p, h, kept, lane, in_range);
            if (scratch.softmax && in_range && lane == 0)
                static_cast<softmax_state<Real> *>(scratch.softmax)[head_number] = h.softmax;
            __syncwarp();
        }
        Real mean = Real(0); /* fused form: of the weights' gradients, weighted; a lane's share */
        const Value *value = keep(static_cast<const Value *>(p.t.value) + p.value(n, 0, m) +
                                  (F == form::any ? 0 : lane % Lanes * Width));
        const Value *grad_output = static_cast<const Value *>(p.t.grad_output) + p.grad_output(n, present_query, m);
        Sum *sums = keep(static_cast<Sum *>(scratch.sums) + scratch.sum_strides(n, 0, m) +
                         (F == form::any ? 0 : lane % Lanes * Width));

        for (int k0 = 0; k0 < p.num_points; k0 += team) {
            const int k = k0 + slot, present = min(k, p.num_points - 1);
            const bool has_point = in_range && k < p.num_points;
            const int l = level_of(p, p.levels, present);
            const given_point<Real> given = has_point ? load_point<F>(h, present) : nowhere<Real>();
            const Real own_weight = !is_fused<F>(p) ? given.weight
                                    : has_point     ? kept[k].weight * h.softmax.scale
                                                    : Real(0);
            point<Real, Row> placed = place_weighted<F, Row>(p, p.levels, h, l, present, given,
                                                             load_reference<F>(p, p.levels, h, l, present), own_weight);
            places[slot].set(placed, row_bytes);
            if (is_fused<F>(p) && has_point)
                kept[k].location = {placed.fraction_x, placed.fraction_y};
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
                if (is_fused<F>(p)) {
                    const pair_of<Real> fraction = kept[k].location;
                    placed.fraction_x = fraction.x;
                    placed.fraction_y = fraction.y;
                }
                const point_gradients<Real> found =
                    find_gradients(placed.fraction_x, placed.fraction_y, location_scale<F>(placed), dot);
                if (is_fused<F>(p)) {
                    kept[k] = {placed.weight, found.weight, found.location};
                    mean += placed.weight * found.weight;
                } else {
                    write_point_gradients<F, Point>(p, n, q, m, k, found);
                }
            }
            __syncwarp();
        }
        if (is_fused<F>(p) && want_points) {
            mean = sum_over_lanes<team>(mean);
            if (in_range)
                finish_head<team, F>(
                    p, static_cast<pair_of<Real> *>(scratch.reference_shares) + head_number * reference_pairs<F>(p), h,
                    n, q, m, kept, mean, lane);
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
