/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a point's location to the pixels it reads: what every kernel, forward and backward, plain and fused, shares.
 * The same formulas as find_place() and find_corners() in src/cpu/naive.c.
 */
#ifndef MSDA_SAMPLE_CUH
#define MSDA_SAMPLE_CUH

#include "../shape.h"
#include "ptx.cuh"
#include "vec.cuh"

namespace msda
{

/* Row strides in elements, as in msda_stride. */
struct stride {
    int64_t batch, row, head;
    __host__ __device__ int64_t operator()(int64_t n, int64_t r, int64_t m) const
    {
        return n * batch + r * row + m * head;
    }
};

struct level {
    int64_t start; /* row of value */
    int height, width;
    int first_point;
};

/* Everything a kernel knows, by value from host to device. */
struct params {
    msda_tensors t;
    stride value, locations, weights, references, output;
    stride grad_output, grad_value, grad_locations, grad_weights, grad_references;
    int batch, queries, heads, head_dim, num_points, num_levels;
    int equal_points;          /* points of every level, or 0 when they differ */
    unsigned level_multiplier; /* the upper 32 bits of its product with k are k / equal_points */
    unsigned point_multiplier; /* the same for i / num_points and small i; 0: divide */
    int border, align_corners, discrete, add;
    int fused, reference_kind, num_anchors;
    float box_scale;
    level levels[MSDA_MAX_LEVELS + 1]; /* the last one only ends the points */
};

/*
 * What a kernel knows at compile time. `plain` and `fused` have every option at its default (zeros padding, bilinear, no
 * align_corners, reference points) and locations aligned in pairs; `any` asks the parameters. Placing a point costs a
 * third less where it need not ask.
 */
enum class form { plain, fused, any };

template <form F> __device__ __forceinline__ bool is_fused(const params &p)
{
    return F == form::any ? p.fused != 0 : F == form::fused;
}
template <form F> __host__ __device__ __forceinline__ bool is_set(int option)
{
    return F == form::any && option != 0;
}

/* An (x, y). */
template <class Real> struct alignas(2 * sizeof(Real)) pair_of {
    Real x, y;
};

/* ---- a point's place on one axis ------------------------------------------------------------------------------- */

template <class Real> struct place {
    Real pixel, fraction, slope;
    bool counts;
};

/* Multiplication and subtraction stay two roundings, so that every back end picks the same pixel. */
__device__ __forceinline__ float scale_and_shift(float x, float scale, float shift)
{
    return __fsub_rn(__fmul_rn(x, scale), shift);
}
__device__ __forceinline__ double scale_and_shift(double x, double scale, double shift)
{
    return __dsub_rn(__dmul_rn(x, scale), shift);
}

/* With form::fused `location` is the reference, and the point lies `offset` pixels from it. */
template <form F, class Real>
__device__ __forceinline__ place<Real> find_place(const params &p, Real location, Real offset, int size)
{
    const Real last = Real(size - 1);
    if (is_set<F>(p.discrete)) {
        const Real pixel = trunc(scale_and_shift(location, Real(size), Real(-0.5)));
        return {fmin(fmax(pixel, Real(0)), last), Real(0), Real(0), !isnan(pixel)};
    }
    const bool align_corners = is_set<F>(p.align_corners);
    Real slope = align_corners ? last : Real(size);
    Real position = F == form::fused ? fma(location, slope, offset) - Real(0.5)
                                     : scale_and_shift(location, slope, align_corners ? Real(0) : Real(0.5));
    if (is_set<F>(p.border)) {
        if (position < Real(0)) {
            position = Real(0);
            slope = Real(0);
        }
        if (position >= last) {
            position = last;
            slope = Real(0);
        }
    }
    const Real pixel = floor(position);
    return {pixel, position - pixel, slope, position > Real(-1) && position < Real(size)};
}

/* ---- a point --------------------------------------------------------------------------------------------------- */

/*
 * A sampling point: where it lies and what it weighs. A point that does not count has no corner inside. Row is int, or
 * int64_t for values whose rows an int cannot count.
 */
template <class Real, class Row> struct point {
    Real weight;
    Real fraction_x, fraction_y;
    Real slope_x, slope_y; /* pixels a unit of location moves it by; 0 where a clamp acts */
    int line, column;      /* of corner 00, which may lie outside */
    Row row;               /* its row of value */
    int width;             /* rows from one line of the level to the next */
    unsigned inside;       /* bit 2i+j: corner ij (line i, column j) lies inside the level */
};

template <class Real, class Row> __device__ __forceinline__ point<Real, Row> no_point(Real weight)
{
    return {weight, Real(0), Real(0), Real(0), Real(0), 0, 0, 0, 0, 0u};
}

template <form F, class Row, class Real>
__device__ __forceinline__ point<Real, Row> find_point(const params &p, const level &l, const pair_of<Real> &location,
                                                       const pair_of<Real> &offset, Real weight)
{
    const place<Real> px = find_place<F>(p, location.x, offset.x, l.width),
                      py = find_place<F>(p, location.y, offset.y, l.height);
    if (!(px.counts && py.counts))
        return no_point<Real, Row>(is_fused<F>(p) ? fmax(weight, Real(0)) : Real(0));
    const int column = int(px.pixel), line = int(py.pixel);
    const bool second = !is_set<F>(p.discrete); /* discrete sampling reads one pixel */
    const bool left = column >= 0, right = second && column + 1 < l.width;
    const bool top = line >= 0, bottom = second && line + 1 < l.height;
    const unsigned inside = unsigned(top && left) | unsigned(top && right) << 1 | unsigned(bottom && left) << 2 |
                            unsigned(bottom && right) << 3;
    return {weight,   px.fraction, py.fraction, px.slope,
            py.slope, line,        column,      Row(l.start) + Row(line) * l.width + column,
            l.width,  inside};
}

/* The level that point k belongs to. */
__device__ __forceinline__ int level_of(const params &p, const level *levels, int k)
{
    if (p.equal_points)
        return int(__umulhi(unsigned(k), p.level_multiplier));
    int l = 0;
    while (k >= levels[l + 1].first_point)
        ++l;
    return l;
}

/* ---- the points of one query and head -------------------------------------------------------------------------- */

/* Fused form: weight = exponential(logit - largest) * scale. */
template <class Real> struct softmax_state {
    Real largest, scale;
};

/* Where a head keeps its points, in either form. */
template <class Point> struct head {
    const Point *locations, *weights, *references;
    softmax_state<real_of<Point>> softmax;
};

/* Those of query 0 of a batch item and head... */
template <form F, class Point> __device__ __forceinline__ head<Point> open_slice(const params &p, int64_t n, int64_t m)
{
    return {static_cast<const Point *>(p.t.locations) + p.locations(n, 0, m),
            static_cast<const Point *>(p.t.weights) + p.weights(n, 0, m),
            is_fused<F>(p) ? static_cast<const Point *>(p.t.references) + p.references(n, 0, 0) : nullptr,
            {}};
}

/* ...and of query q... */
template <form F, class Point>
__device__ __forceinline__ head<Point> open_head(const params &p, const head<Point> &slice, int q)
{
    return {slice.locations + q * p.locations.row,
            slice.weights + q * p.weights.row,
            is_fused<F>(p) ? slice.references + q * p.references.row : nullptr,
            {}};
}

/* ...for kernels that stay with it: with pointers that are not computed anew for every point. */
template <form F, class Point> __device__ __forceinline__ head<Point> keep(const params &p, const head<Point> &h)
{
    return {keep(h.locations), keep(h.weights), is_fused<F>(p) ? keep(h.references) : nullptr, h.softmax};
}

__device__ __forceinline__ double reciprocal(double x)
{
    return 1.0 / x;
}

/*
 * exp(x) for x <= 0: 2^(x log2 e), three instructions. Rounding the product costs it no more than the rounding of x, a
 * difference of logits, already has.
 */
__device__ __forceinline__ float exponential(float x)
{
    return power_of_two(x * 1.44269504f);
}
__device__ __forceinline__ double exponential(double x)
{
    return exp(x);
}

/* A weight or a logit. Said to be global and constant, which a kept pointer no longer shows. */
template <class Point> __device__ __forceinline__ real_of<Point> load_one(const Point *from)
{
    return unpack<Point, 1>(load_raw<Point, 1>(from)).at[0];
}

/*
 * Calls work(k, logit) for the logits of a head that a lane is dealt, every Lanes-th from its own on. A common head takes
 * one turn of the loop: the compiler's own unrolling would cost it more.
 */
template <int Lanes, class Point, class Work>
__device__ __forceinline__ void for_each_logit(const params &p, const head<Point> &h, int lane, const Work &work)
{
    constexpr int at_once = Lanes < 16 ? 16 / Lanes : 1;
#pragma unroll 1
    for (int first = lane; first < p.num_points; first += at_once * Lanes) {
        real_of<Point> logits[at_once];
#pragma unroll
        for (int i = 0; i < at_once; ++i)
            if (first < p.num_points - i * Lanes)
                logits[i] = load_one(h.weights + first + i * Lanes);
#pragma unroll
        for (int i = 0; i < at_once; ++i)
            if (first < p.num_points - i * Lanes)
                work(first + i * Lanes, logits[i]);
    }
}

/* The sum of `x` over Lanes lanes, in each of them. */
template <int Lanes, class Real> __device__ __forceinline__ Real sum_over_lanes(Real x)
{
#pragma unroll
    for (int distance = Lanes / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(~0u, x, distance, Lanes);
    return x;
}

/* The largest logit of a head, by the Lanes lanes that work on it together. */
template <int Lanes, class Point>
__device__ __forceinline__ real_of<Point> find_largest(const params &p, const head<Point> &h, int lane)
{
    using Real = real_of<Point>;
    Real largest = -Real(INFINITY);
    for_each_logit<Lanes>(p, h, lane, [&](int, Real logit) { largest = fmax(largest, logit); });
#pragma unroll
    for (int distance = Lanes / 2; distance > 0; distance /= 2)
        largest = fmax(largest, __shfl_xor_sync(~0u, largest, distance, Lanes));
    return largest;
}

/* Softmax over all points of a head. */
template <int Lanes, class Point>
__device__ __forceinline__ softmax_state<real_of<Point>> find_softmax(const params &p, const head<Point> &h, int lane)
{
    using Real = real_of<Point>;
    const Real largest = find_largest<Lanes>(p, h, lane);
    Real sum = Real(0);
    for_each_logit<Lanes>(p, h, lane, [&](int, Real logit) { sum += exponential(logit - largest); });
    return {largest, reciprocal(sum_over_lanes<Lanes>(sum))};
}

/* Fused form: the index of the (x, y) in a query's references that point k of level l refers to. */
template <form F> __device__ __forceinline__ int reference_of(const params &p, const level *levels, int l, int k)
{
    if (is_set<F>(p.reference_kind == MSDA_REFERENCE_BOXES))
        return 4 * l;
    return is_set<F>(p.reference_kind == MSDA_REFERENCE_ANCHORS) ? 2 * ((k - levels[l].first_point) % p.num_anchors)
                                                                 : 2 * l;
}

/* Fused form: how far a unit of offset moves the location. */
template <form F, class Point>
__device__ __forceinline__ pair_of<real_of<Point>> offset_scale(const params &p, const level *levels,
                                                                const head<Point> &h, int l, int k)
{
    using Real = real_of<Point>;
    if (!is_set<F>(p.reference_kind == MSDA_REFERENCE_BOXES))
        return {reciprocal(Real(levels[l].width)), reciprocal(Real(levels[l].height))};
    const Real per_point = Real(p.box_scale) / Real(levels[l + 1].first_point - levels[l].first_point);
    const Point *box = h.references + reference_of<F>(p, levels, l, k);
    return {widen(box[2]) * per_point, widen(box[3]) * per_point};
}

/* What the caller gives of a point: location and weight, or offset and logit. */
template <class Real> struct given_point {
    Real x, y, weight;
};

/* A point that lies nowhere and weighs nothing: as a weight -Inf is never used, as a logit it is softmax's zero. */
template <class Real> __device__ __forceinline__ given_point<Real> nowhere()
{
    return {Real(NAN), Real(NAN), -Real(INFINITY)};
}

/* Of locations, offsets or references. */
template <form F, class Point> __device__ __forceinline__ pair_of<real_of<Point>> load_pair(const Point *from)
{
    if constexpr (F == form::any)
        return {widen(from[0]), widen(from[1])};
    const unpacked<Point, 2> both = unpack<Point, 2>(load_raw<Point, 2>(from));
    return {both.at[0], both.at[1]};
}

/* Apart from placing it, so that the loads can be under way early. */
template <form F, class Point>
__device__ __forceinline__ given_point<real_of<Point>> load_point(const head<Point> &h, int k)
{
    const pair_of<real_of<Point>> location = load_pair<F>(h.locations + 2 * int64_t(k));
    return {location.x, location.y, load_one(h.weights + k)};
}

/* The weight of a point: as given, or its share of the softmax. */
template <form F, class Point>
__device__ __forceinline__ real_of<Point> weight_of(const params &p, const head<Point> &h,
                                                    const given_point<real_of<Point>> &given)
{
    return is_fused<F>(p) ? exponential(given.weight - h.softmax.largest) * h.softmax.scale : given.weight;
}

/* Fused form: what point k refers to. */
template <form F, class Point>
__device__ __forceinline__ pair_of<real_of<Point>> load_reference(const params &p, const level *levels,
                                                                  const head<Point> &h, int l, int k)
{
    if (!is_fused<F>(p))
        return {};
    return load_pair<F>(h.references + reference_of<F>(p, levels, l, k));
}

/* Point k of a head, on level l, whose reference and weight are known. */
template <form F, class Row, class Point>
__device__ __forceinline__ point<real_of<Point>, Row>
place_weighted(const params &p, const level *levels, const head<Point> &h, int l, int k,
               const given_point<real_of<Point>> &given, const pair_of<real_of<Point>> &reference,
               real_of<Point> weight)
{
    using Real = real_of<Point>;
    const pair_of<Real> location = {given.x, given.y};
    if (!is_fused<F>(p))
        return find_point<F, Row>(p, levels[l], location, {}, weight);
    if (F == form::fused)
        return find_point<F, Row>(p, levels[l], reference, location, weight);
    const pair_of<Real> scale = offset_scale<F>(p, levels, h, l, k);
    return find_point<F, Row>(p, levels[l], {reference.x + location.x * scale.x, reference.y + location.y * scale.y},
                              {}, weight);
}

/* Point k of a head, on level l. */
template <form F, class Row, class Point>
__device__ __forceinline__ point<real_of<Point>, Row> place_point(const params &p, const level *levels,
                                                                  const head<Point> &h, int l, int k,
                                                                  const given_point<real_of<Point>> &given)
{
    return place_weighted<F, Row>(p, levels, h, l, k, given, load_reference<F>(p, levels, h, l, k),
                                  weight_of<F>(p, h, given));
}

/* ---- corners, handed round in a team ---------------------------------------------------------------------------- */

/* The bilinear weights of a point's corners, times its own. */
template <class Real> struct alignas(16) corner_weights {
    Real of[4];

    template <class Row> __device__ __forceinline__ void set(const point<Real, Row> &at)
    {
        const Real right = at.weight * at.fraction_x, left = at.weight * (Real(1) - at.fraction_x);
        const Real top = Real(1) - at.fraction_y;
        of[0] = left * top;
        of[1] = right * top;
        of[2] = left * at.fraction_y;
        of[3] = right * at.fraction_y;
    }
};

/* Where a point's corners lie in a slice. Row is int: in 32 bits, for slices of less than 4 GiB in vectors of 16 bytes. */
template <class Row> struct corner_places {
    unsigned at; /* byte offset of corner 00 (modulo 2^32, it may lie outside); the four bits below 16 are `inside` */
    unsigned pitch; /* bytes from one line of the level to the next */

    template <class Real> __device__ __forceinline__ void set(const point<Real, int> &from, int row_bytes)
    {
        at = unsigned(from.row) * unsigned(row_bytes) | from.inside;
        pitch = unsigned(from.width) * unsigned(row_bytes);
    }
    __device__ __forceinline__ bool is_inside(int corner) const
    {
        return (at & 1u << corner) != 0;
    }
    /* `base` moved to the corner's row; means nothing for a corner outside. */
    template <class T> __device__ __forceinline__ T *find(T *base, int corner, int row_bytes) const
    {
        const unsigned offset = (at & ~15u) + (corner >> 1 ? pitch : 0u) + (corner & 1 ? unsigned(row_bytes) : 0u);
        return reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(base) + offset);
    }
};

/* Row is int64_t: any slice. */
template <> struct corner_places<int64_t> {
    int64_t row; /* of corner 00 */
    int width;
    unsigned inside;

    template <class Real> __device__ __forceinline__ void set(const point<Real, int64_t> &from, int64_t)
    {
        row = from.row;
        width = from.width;
        inside = from.inside;
    }
    __device__ __forceinline__ bool is_inside(int corner) const
    {
        return (inside & 1u << corner) != 0;
    }
    template <class T> __device__ __forceinline__ T *find(T *base, int corner, int64_t row_bytes) const
    {
        const int64_t offset = (row + (corner >> 1 ? width : 0) + (corner & 1)) * row_bytes;
        return reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(base) + offset);
    }
};

} // namespace msda

#endif
