/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a point's location to the pixels it reads: what every kernel, forward and backward, plain and fused, shares.
 * The same formulas as find_place() and find_corners() in src/cpu/naive.c.
 */
#ifndef MSDA_SAMPLE_CUH
#define MSDA_SAMPLE_CUH

#include "../shape.h"
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
    int unused;
};

/* Everything a kernel knows, by value from host to device. */
struct params {
    msda_tensors t;
    stride value, locations, weights, references, output;
    stride grad_output, grad_value, grad_locations, grad_weights, grad_references;
    int batch, queries, heads, head_dim, num_points, num_levels;
    int equal_points; /* points of every level, or 0 when they differ */
    int border, align_corners, discrete, add;
    int fused, reference_kind, num_anchors;
    float box_scale;
    level levels[MSDA_MAX_LEVELS + 1]; /* the last one only ends the points */
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

template <class Real> __device__ __forceinline__ place<Real> find_place(const params &p, Real location, int size)
{
    const Real last = Real(size - 1);
    if (p.discrete) {
        const Real pixel = trunc(scale_and_shift(location, Real(size), Real(-0.5)));
        return {fmin(fmax(pixel, Real(0)), last), Real(0), Real(0), !isnan(pixel)};
    }
    Real slope = p.align_corners ? last : Real(size);
    Real position = scale_and_shift(location, slope, p.align_corners ? Real(0) : Real(0.5));
    if (p.border) {
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

    __device__ __forceinline__ Row corner_row(int corner) const
    {
        return (inside >> corner & 1u) ? row + Row(corner >> 1) * width + (corner & 1) : -1;
    }
    __device__ __forceinline__ Real corner_weight(int corner) const
    {
        return (corner & 1 ? fraction_x : Real(1) - fraction_x) * (corner >> 1 ? fraction_y : Real(1) - fraction_y);
    }
};

template <class Real, class Row> __device__ __forceinline__ point<Real, Row> no_point()
{
    return {Real(0), Real(0), Real(0), Real(0), Real(0), 0, 0, 0, 0, 0u};
}

template <class Row, class Real>
__device__ __forceinline__ point<Real, Row> find_point(const params &p, const level &l, Real x, Real y, Real weight)
{
    const place<Real> px = find_place(p, x, l.width), py = find_place(p, y, l.height);
    if (!(px.counts && py.counts))
        return no_point<Real, Row>();
    const int column = int(px.pixel), line = int(py.pixel);
    const bool second = !p.discrete; /* discrete sampling reads one pixel */
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
        return k / p.equal_points;
    int l = 0;
    while (k >= levels[l + 1].first_point)
        ++l;
    return l;
}

/* ---- the points of one query and head -------------------------------------------------------------------------- */

/* Fused form: weight = exp(logit - largest) * scale. */
template <class Real> struct softmax_state {
    Real largest, scale;
};

/* Where one query and head keeps its points, in either form. */
template <class Point> struct head {
    const Point *locations, *weights, *references;
    softmax_state<real_of<Point>> softmax;
};

template <class Point>
__device__ __forceinline__ head<Point> open_head(const params &p, int64_t n, int64_t q, int64_t m)
{
    return {static_cast<const Point *>(p.t.locations) + p.locations(n, q, m),
            static_cast<const Point *>(p.t.weights) + p.weights(n, q, m),
            p.fused ? static_cast<const Point *>(p.t.references) + p.references(n, q, 0) : nullptr, {}};
}

/* Softmax over all points of a head, by the Lanes lanes that work on it together. */
template <int Lanes, class Point>
__device__ __forceinline__ softmax_state<real_of<Point>> find_softmax(const params &p, const head<Point> &h, int lane)
{
    using Real = real_of<Point>;
    Real largest = -Real(INFINITY), sum = Real(0);
    for (int k = lane; k < p.num_points; k += Lanes)
        largest = fmax(largest, widen(h.weights[k]));
#pragma unroll
    for (int distance = Lanes / 2; distance > 0; distance /= 2)
        largest = fmax(largest, __shfl_xor_sync(~0u, largest, distance, Lanes));
    for (int k = lane; k < p.num_points; k += Lanes)
        sum += exp(widen(h.weights[k]) - largest);
#pragma unroll
    for (int distance = Lanes / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(~0u, sum, distance, Lanes);
    return {largest, Real(1) / sum};
}

/* Fused form: the index of the (x, y) in a query's references that point k of level l refers to. */
__device__ __forceinline__ int reference_of(const params &p, const level *levels, int l, int k)
{
    if (p.reference_kind == MSDA_REFERENCE_BOXES)
        return 4 * l;
    return p.reference_kind == MSDA_REFERENCE_ANCHORS ? 2 * ((k - levels[l].first_point) % p.num_anchors) : 2 * l;
}

/* Fused form: how far a unit of offset moves the location, x and y. */
template <class Point>
__device__ __forceinline__ void offset_scale(const params &p, const level *levels, const head<Point> &h, int l, int reference,
                                             real_of<Point> &x, real_of<Point> &y)
{
    using Real = real_of<Point>;
    if (p.reference_kind == MSDA_REFERENCE_BOXES) {
        const Real per_point = Real(p.box_scale) / Real(levels[l + 1].first_point - levels[l].first_point);
        x = widen(h.references[reference + 2]) * per_point;
        y = widen(h.references[reference + 3]) * per_point;
    } else {
        x = Real(1) / Real(levels[l].width);
        y = Real(1) / Real(levels[l].height);
    }
}

/* Point k of a head. */
template <class Row, class Point>
__device__ __forceinline__ point<real_of<Point>, Row> point_of(const params &p, const level *levels, const head<Point> &h, int k)
{
    using Real = real_of<Point>;
    const int l = level_of(p, levels, k);
    Real x = widen(h.locations[2 * int64_t(k)]), y = widen(h.locations[2 * int64_t(k) + 1]), weight = widen(h.weights[k]);
    if (p.fused) {
        const int reference = reference_of(p, levels, l, k);
        Real scale_x, scale_y;
        offset_scale(p, levels, h, l, reference, scale_x, scale_y);
        x = widen(h.references[reference]) + x * scale_x;
        y = widen(h.references[reference + 1]) + y * scale_y;
        weight = exp(weight - h.softmax.largest) * h.softmax.scale;
    }
    return find_point<Row>(p, levels[l], x, y, weight);
}

} // namespace msda

#endif
