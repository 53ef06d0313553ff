/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward's gather where nothing is left to scatter: the gradients of locations and weights from four dot products a
 * point. Four lanes (a quad) read a row together. What a team of more lanes spends on adding up the parts of its dot
 * products is saved twice over: 16-bit values go through the tensor cores as they come from memory, and sums over four
 * lanes cost f32 a third of the exchanges.
 */
#ifndef ATONCE
#define ATONCE 2
#endif
#ifndef MSDA_BACKWARD_DOTS_CUH
#define MSDA_BACKWARD_DOTS_CUH

#include "backward_points.cuh"

namespace msda
{

/*
 * Where a point's four corners lie in a slice, in vectors of 16 bytes. A corner outside lies at the slice's first row, so
 * that every read can be made without asking; its dot product is dropped.
 */
struct alignas(16) corner_rows {
    unsigned at[4];

    __device__ __forceinline__ void set(const point<float, int> &from, unsigned row_vectors, unsigned slice)
    {
        const unsigned first = slice + unsigned(from.row) * row_vectors;
        const unsigned line = unsigned(from.width) * row_vectors;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            at[i] = from.inside & 1u << i ? first + (i >> 1 ? line : 0u) + (i & 1 ? row_vectors : 0u) : slice;
    }
};

/*
 * How a quad reads a row: each lane `width` elements at once, `count` times. Rows of several such parts are read in another
 * order by every other quad, so that neighbouring quads read different halves of their lines.
 */
template <class Value, int HeadDim> struct row_parts {
    static constexpr int width = HeadDim * int(sizeof(Value)) < 64 ? HeadDim / 4 : int(16 / sizeof(Value));
    static constexpr int count = HeadDim / (4 * width);

    static __device__ __forceinline__ int channel(int v, int odd, int part)
    {
        return ((count > 1 ? v ^ odd : v) * 4 + part) * width;
    }
};

/* f32: quad i multiplies the rows of its own unit (a query and head) with the unit's row of grad_output. */
template <class Value, int HeadDim> struct quad_dots {
    using parts = row_parts<Value, HeadDim>;
    static constexpr int points = 4; /* of a unit, that a warp takes at once */

    static __device__ __forceinline__ int unit_of(int quad, int)
    {
        return quad;
    }
    static __device__ __forceinline__ int point_of(int, int part)
    {
        return part;
    }

    const Value *value[parts::count];
    unpacked<Value, parts::width> grad[parts::count];

    template <class Row> __device__ __forceinline__ quad_dots(const Value *slice, int quad, int part, const Row &grad_row)
    {
        const Value *row = grad_row(quad);
#pragma unroll
        for (int v = 0; v < parts::count; ++v) {
            const int channel = parts::channel(v, quad & 1, part);
            value[v] = keep(slice + channel);
            grad[v] = unpack<Value, parts::width>(load_raw<Value, parts::width>(row + channel));
        }
    }

    /* The four dot products of the lane's own point; `rows` are those of the quad's four points. */
    __device__ __forceinline__ void find(const corner_rows *rows, int, int part, float (&dot)[4]) const
    {
        float dots[4][4];
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            const corner_rows row = rows[s];
            raw<Value, parts::width> corner[4][parts::count];
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int v = 0; v < parts::count; ++v)
                    corner[i][v] = load_raw<Value, parts::width>(value[v] + int64_t(row.at[i]) * int(16 / sizeof(Value)));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                dots[s][i] = 0.0f;
#pragma unroll
                for (int v = 0; v < parts::count; ++v) {
                    const unpacked<Value, parts::width> at = unpack<Value, parts::width>(corner[i][v]);
#pragma unroll
                    for (int c = 0; c < parts::width; ++c)
                        dots[s][i] = fma(grad[v].at[c], at.at[c], dots[s][i]);
                }
            }
        }
        sum_dots<4, 4>(dots, part);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            dot[i] = dots[0][i];
    }
};

/* c += a b: a is 16 x 8 Registers, row-major, b 8 Registers x 8; every register holds two elements. */
__device__ __forceinline__ void multiply(float (&c)[4], const uint4 &a, const unsigned (&b)[2], f16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply(float (&c)[4], const uint4 &a, const unsigned (&b)[2], bf16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply(float (&c)[4], const uint2 &a, const unsigned (&b)[1], f16)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(b[0]));
}
__device__ __forceinline__ void multiply(float (&c)[4], const uint2 &a, const unsigned (&b)[1], bf16)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(b[0]));
}

/* 16-bit values */
template <class Value, int HeadDim> struct tensor_dots {
    using parts = row_parts<Value, HeadDim>;
    static constexpr int points = 8;
    static constexpr int registers = parts::width / 4;

    static __device__ __forceinline__ int unit_of(int, int part)
    {
        return part;
    }
    static __device__ __forceinline__ int point_of(int quad, int)
    {
        return quad;
    }

    const Value *value[parts::count];
    unsigned grad[parts::count][registers];

    template <class Row> __device__ __forceinline__ tensor_dots(const Value *slice, int quad, int part, const Row &grad_row)
    {
        const int unit = quad / 2;
        const Value *row = grad_row(unit) + 2 * (quad & 1);
#pragma unroll
        for (int v = 0; v < parts::count; ++v) {
            value[v] = keep(slice + parts::channel(v, quad & 1, part));
#pragma unroll
            for (int i = 0; i < registers; ++i)
                grad[v][i] = load_raw<Value, 2>(row + parts::channel(v, unit & 1, part) + 4 * i);
        }
    }

    __device__ __forceinline__ void find(const corner_rows *rows, int quad, int part, float (&dot)[4]) const
    {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            dot[i] = 0.0f;
constexpr int at_once = ATONCE;
#pragma unroll at_once
        for (int s = 0; s < 4; ++s) {
            const int unit = (quad & 3) ^ s;
            const corner_rows row = rows[unit];
            raw<Value, parts::width> corner[4][parts::count];
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int v = 0; v < parts::count; ++v)
                    corner[i][v] = load_raw<Value, parts::width>(value[parts::count > 1 ? v ^ (s & 1) : v] +
                                                                 int64_t(row.at[i]) * int(16 / sizeof(Value)));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float c[4] = {};
#pragma unroll
                for (int v = 0; v < parts::count; ++v)
                    multiply(c, corner[i][v], grad[v], Value());
                if (unit == part)
                    dot[i] = c[0] + c[3];
            }
        }
    }
};

template <class Value, int HeadDim>
using dots_of = std::conditional_t<sizeof(Value) == 2, tensor_dots<Value, HeadDim>, quad_dots<Value, HeadDim>>;

/* A query and head among those of a block. */
struct block_unit {
    unsigned query, head;

    __device__ __forceinline__ unsigned of(const stride &s) const
    {
        return query * unsigned(s.row) + head * unsigned(s.head);
    }
};

template <class Real> struct point_gradient {
    Real weight, x, y;
};

/* The gradients of a point's weight and location from its four dot products. */
template <class Real, class Row>
__device__ __forceinline__ point_gradient<Real> gradient_of(const point<Real, Row> &at, const Real (&dot)[4])
{
    const Real x = at.fraction_x, y = at.fraction_y;
    return {(Real(1) - x) * (Real(1) - y) * dot[0] + x * (Real(1) - y) * dot[1] + (Real(1) - x) * y * dot[2] +
                x * y * dot[3],
            at.weight * at.slope_x * ((Real(1) - y) * (dot[1] - dot[0]) + y * (dot[3] - dot[2])),
            at.weight * at.slope_y * ((Real(1) - x) * (dot[2] - dot[0]) + x * (dot[3] - dot[1]))};
}

template <int Width, class T> __device__ __forceinline__ void put(T *to, const real_of<T> (&gradient)[Width], bool add)
{
    real_of<T> sum[Width];
#pragma unroll
    for (int i = 0; i < Width; ++i)
        sum[i] = add ? widen(to[i]) + gradient[i] : gradient[i];
    store<T, Width>(to, sum);
}

#ifndef RES
#define RES 4
#endif

template <class Value, class Point, int HeadDim, form F>
__global__ void __launch_bounds__(threads_per_block, RES)
    backward_dots_kernel(const __grid_constant__ params p, const backward_scratch scratch, const team_grid grid)
{
    using dots = dots_of<Value, HeadDim>;
    constexpr int units = 32 / dots::points; /* of a warp */
    constexpr int block_units = threads_per_block / dots::points;

    __shared__ corner_rows all_rows[threads_per_block];

    const unsigned quad = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
    const unsigned n = blockIdx.z, first_head = blockIdx.y << grid.log2_heads;
    const unsigned first_query = blockIdx.x * (block_units >> grid.log2_heads);

    const auto find_unit = [&](unsigned unit) -> block_unit {
        unit += threadIdx.x / 32 * units;
        return {unit >> grid.log2_heads, unit & ((1u << grid.log2_heads) - 1)};
    };
    const unsigned last_query = p.queries - 1 - first_query;
    block_unit unit = find_unit(dots::unit_of(quad, part));
    const bool in_range = unit.query <= last_query;
    unit.query = min(unit.query, last_query);

    const unsigned row_vectors = unsigned(p.value.row) / (16 / sizeof(Value));
    const unsigned slice = unit.head * (unsigned(p.value.head) / (16 / sizeof(Value)));
    const Value *value = static_cast<const Value *>(p.t.value) + p.value(n, 0, first_head);
    const Value *grad_output =
        static_cast<const Value *>(p.t.grad_output) + p.grad_output(n, first_query, first_head);
    const dots products(value, quad, part, [&](unsigned other) {
        block_unit unit = find_unit(other);
        unit.query = min(unit.query, last_query);
        return grad_output + unit.of(p.grad_output);
    });
    const Point *const locations = static_cast<const Point *>(p.t.locations) + p.locations(n, first_query, first_head);
    const Point *const weights = static_cast<const Point *>(p.t.weights) + p.weights(n, first_query, first_head);
    Point *const grad_locations =
        static_cast<Point *>(p.t.grad_locations) + p.grad_locations(n, first_query, first_head);
    Point *const grad_weights = static_cast<Point *>(p.t.grad_weights) + p.grad_weights(n, first_query, first_head);
    const unsigned own_locations = unit.of(p.locations), own_weights = unit.of(p.weights),
                   own_grad_locations = unit.of(p.grad_locations), own_grad_weights = unit.of(p.grad_weights);

    const unsigned num_points = in_range ? p.num_points : 0;
    const auto load = [&](unsigned k) {
        const head<Point> h = {locations + own_locations, weights + own_weights, nullptr, {}};
        return k < num_points ? load_point<F>(h, k) : nowhere<float>();
    };
    unsigned k = dots::point_of(quad, part);
    given_point<float> given = load(k);
    for (unsigned k0 = 0; k0 < p.num_points; k0 += dots::points) {
        const unsigned present = min(k, p.num_points - 1);
        const point<float, int> placed =
            place_point<F, int>(p, p.levels, head<Point>(), level_of(p, p.levels, present), present, given);
        corner_rows rows;
        rows.set(placed, row_vectors, slice);
        __syncwarp();
        all_rows[threadIdx.x] = rows;
        __syncwarp();
        given = load(k + dots::points);
        float dot[4];
        products.find(all_rows + threadIdx.x - part, quad, part, dot);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (!(placed.inside & 1u << i))
                dot[i] = 0.0f;
        if (k < num_points) {
            const point_gradient<float> gradient = gradient_of(placed, dot);
            if (p.t.grad_weights)
                put<1>(grad_weights + (own_grad_weights + k), {gradient.weight}, p.add);
            if (p.t.grad_locations)
                put<2>(grad_locations + (own_grad_locations + 2 * k), {gradient.x, gradient.y}, p.add);
        }
        k += dots::points;
    }
}

template <class Value, class Point, int HeadDim, form F>
cudaError_t launch_dots(const params &p, const backward_scratch &scratch, cudaStream_t stream)
{
    constexpr int points = dots_of<Value, HeadDim>::points;
    const team_grid grid = make_team_grid<Value, points, HeadDim / points, 1>(p);
    return launch(backward_dots_kernel<Value, Point, HeadDim, F>, grid_of(grid.query_tiles, grid.head_tiles, p.batch),
                  threads_per_block, 0, stream, p, scratch, grid);
}

} // namespace msda

#endif
