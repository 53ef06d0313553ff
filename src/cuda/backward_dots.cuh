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

    /* The four dot products of the lane's own point; `rows` are those of the warp's points. */
    __device__ __forceinline__ void find(const corner_rows *rows, int quad, int part, float (&dot)[4]) const
    {
      const int swap = quad >> 1 & 1;
#pragma unroll 1
      for (int pair = 0; pair < 4; pair += 2) {
        float dots[2][4];
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            const corner_rows row = rows[4 * quad + (pair + s ^ swap)];
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
        sum_dots<4, 2>(dots, part ^ swap);
        if (pair == (part & 2))
#pragma unroll
            for (int i = 0; i < 4; ++i)
                dot[i] = dots[0][i];
      }
    }
};

#if __CUDA_ARCH__ >= 800
/*
 * c += a b on the tensor cores, a [16][2 R] and b [2 R][8] elements, each spread over a warp's lanes in registers of two: R
 * of a, R / 2 of b, and four of c. Lane 4 i + j has rows i and i + 8 of a, column i of b, and columns 2 j and 2 j + 1 of c.
 */
#define MULTIPLY(type, name)                                                                                           \
    __device__ __forceinline__ void multiply(float(&c)[4], const uint4 &a, const unsigned(&b)[2], type)                \
    {                                                                                                                  \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "         \
            "{%8, %9}, {%0, %1, %2, %3};"                                                                              \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                           \
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));                                           \
    }                                                                                                                  \
    __device__ __forceinline__ void multiply(float(&c)[4], const uint2 &a, const unsigned(&b)[1], type)                \
    {                                                                                                                  \
        asm("mma.sync.aligned.m16n8k8.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "            \
            "{%0, %1, %2, %3};"                                                                                        \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                           \
            : "r"(a.x), "r"(a.y), "r"(b[0]));                                                                          \
    }
MULTIPLY(f16, "f16")
MULTIPLY(bf16, "bf16")
#undef MULTIPLY
#endif

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

    /* The dot product of a row and the grad_output of `unit`, which the row's quad reads together. */
    __device__ __forceinline__ float multiply_row(const raw<Value, parts::width> (&row)[parts::count], int unit,
                                                  int part) const
    {
#if __CUDA_ARCH__ >= 800
        float c[4] = {};
#pragma unroll
        for (int v = 0; v < parts::count; ++v)
            multiply(c, row[v], grad[v], Value());
        return c[0] + c[3];
#else
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < parts::count; ++v) {
            const unpacked<Value, parts::width> at = unpack<Value, parts::width>(row[v]);
#pragma unroll
            for (int pair = 0; pair < parts::width / 2; ++pair) {
                const unpacked<Value, 2> g =
                    unpack<Value, 2>(__shfl_sync(~0u, grad[v][pair / 2], 8 * unit + 4 * (pair & 1) + part));
                sum = fma(at.at[2 * pair], g.at[0], fma(at.at[2 * pair + 1], g.at[1], sum));
            }
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        return sum + __shfl_xor_sync(~0u, sum, 2);
#endif
    }

    __device__ __forceinline__ void find(const corner_rows *rows, int quad, int part, float (&dot)[4]) const
    {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            dot[i] = 0.0f;
#pragma unroll 1
        for (int pair = 0; pair < 4; pair += 2)
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                const int unit = (quad & 3) ^ (pair + s);
                const corner_rows row = rows[4 * quad + unit];
                raw<Value, parts::width> corner[4][parts::count];
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int v = 0; v < parts::count; ++v)
                        corner[i][v] = load_raw<Value, parts::width>(value[parts::count > 1 ? v ^ s : v] +
                                                                     int64_t(row.at[i]) * int(16 / sizeof(Value)));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float product = multiply_row(corner[i], unit, part);
                    if (unit == part)
                        dot[i] = product;
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

struct point_gradient {
    float weight, x, y;
};

/* The gradients of a point's weight and location from its four dot products. */
__device__ __forceinline__ point_gradient gradient_of(float x, float y, float scale_x, float scale_y, const float (&dot)[4])
{
    return {(1.0f - x) * (1.0f - y) * dot[0] + x * (1.0f - y) * dot[1] + (1.0f - x) * y * dot[2] + x * y * dot[3],
            scale_x * ((1.0f - y) * (dot[1] - dot[0]) + y * (dot[3] - dot[2])),
            scale_y * ((1.0f - x) * (dot[2] - dot[0]) + x * (dot[3] - dot[1]))};
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

    __shared__ corner_rows all_rows[threads_per_block / 32][32];

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
    /* Points are numbered alike in all their tensors: see are_alike(). */
    const int64_t first_point = p.weights(n, first_query, first_head);
    unsigned index = unit.of(p.weights) + dots::point_of(quad, part);
    const unsigned num_points = in_range ? p.num_points : 0;
    const head<Point> h = {static_cast<const Point *>(p.t.locations), static_cast<const Point *>(p.t.weights), nullptr, {}};

    unsigned k = dots::point_of(quad, part);
    given_point<float> given = k < num_points ? load_point<F>(h, first_point + index) : nowhere<float>();
    corner_rows *const rows = all_rows[threadIdx.x / 32];
    for (unsigned k0 = 0; k0 < p.num_points; k0 += dots::points) {
        const bool has_point = k < num_points;
#ifdef NOAHEAD
        given = k < num_points ? load_point<F>(h, first_point + index) : nowhere<float>();
#endif
        const unsigned present = min(k, p.num_points - 1);
        const point<float, int> placed =
            place_point<F, int>(p, p.levels, h, level_of(p, p.levels, present), present, given);
        const float scale_x = placed.weight * placed.slope_x, scale_y = placed.weight * placed.slope_y;
        corner_rows own;
        own.set(placed, row_vectors, slice);
        __syncwarp();
        rows[threadIdx.x % 32] = own;
        __syncwarp();
        const int64_t at = first_point + index;
        k += dots::points;
        index += dots::points;
#ifndef NOAHEAD
        given = k < num_points ? load_point<F>(h, first_point + index) : nowhere<float>();
#endif
        float dot[4];
        products.find(rows, quad, part, dot);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (!(placed.inside & 1u << i))
                dot[i] = 0.0f;
        if (has_point) {
            const point_gradient gradient = gradient_of(placed.fraction_x, placed.fraction_y, scale_x, scale_y, dot);
            if (p.t.grad_weights)
                put<1>(static_cast<Point *>(p.t.grad_weights) + at, {gradient.weight}, p.add);
            if (p.t.grad_locations)
                put<2>(static_cast<Point *>(p.t.grad_locations) + 2 * at, {gradient.x, gradient.y}, p.add);
        }
    }
}

/* Whether a tensor's strides are `factor` times those of the weights. */
inline bool is_alike(const params &p, const stride &s, int factor)
{
    return s.batch == factor * p.weights.batch && s.row == factor * p.weights.row && s.head == factor * p.weights.head;
}

template <class Value, class Point, int HeadDim, form F>
cudaError_t launch_dots(const params &p, const backward_scratch &scratch, cudaStream_t stream)
{
    constexpr int points = dots_of<Value, HeadDim>::points;
    team_grid grid = make_team_grid<Value, points, HeadDim / points, 1>(p);
#ifdef EXPERIMENT
    if (getenv("LH")) {
        grid.log2_heads = atoi(getenv("LH"));
        const int queries = threads_per_block / points >> grid.log2_heads;
        grid.query_tiles = (p.queries + queries - 1) / queries;
        grid.head_tiles = p.heads >> grid.log2_heads;
    }
#endif
    return launch(backward_dots_kernel<Value, Point, HeadDim, F>, grid_of(grid.query_tiles, grid.head_tiles, p.batch),
                  threads_per_block, 0, stream, p, scratch, grid);
}

} // namespace msda

#endif
