/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward's gather where nothing is left to scatter: the gradients of locations and weights from four dot products a
 * point, summed over lanes by the tensor cores instead of shuffles. A warp takes several units (a query and head) at once.
 * Each lane places one point and hands it round; teams of lanes read the corners' rows; the tensor cores' layout brings
 * a point's dot products back to the lane that placed it.
 */
#ifndef RES
#define RES 4
#endif
#ifndef MSDA_BACKWARD_DOTS_CUH
#define MSDA_BACKWARD_DOTS_CUH

#include "backward_points.cuh"

namespace msda
{

#ifdef NARROW
/*
 * Where a point's corners lie in a slice, in vectors of 16 bytes. What would lie outside of the level is moved to where
 * the other corners are, so that every read can be made without asking; its dot product is dropped.
 */
struct corner_box {
    unsigned first; /* corner 00; the top bit tells whether the corners to its right are others */
    unsigned line;  /* from corners 0j to 1j */

    __device__ __forceinline__ void set(const point<float, int> &from, unsigned row_vectors, unsigned slice)
    {
        const bool left = from.inside & 5, right = from.inside & 10, top = from.inside & 3, bottom = from.inside & 12;
        const unsigned width = from.width * row_vectors;
        first = slice + (from.inside ? from.row * row_vectors + (left ? 0 : row_vectors) + (top ? 0 : width) : 0) |
                (left && right ? 1u << 31 : 0u);
        line = top && bottom ? width : 0;
    }
    __device__ __forceinline__ void find(unsigned row_vectors, unsigned (&at)[4]) const
    {
        at[0] = first & ~(1u << 31);
        at[1] = at[0] + (first >> 31) * row_vectors;
        at[2] = at[0] + line;
        at[3] = at[1] + line;
    }
};

#else
/*
 * Where a point's four corners lie in a slice, in vectors of 16 bytes. A corner outside lies at the slice's first row, so
 * that every read can be made without asking; its dot product is dropped.
 */
struct alignas(16) corner_box {
    unsigned row[4];

    __device__ __forceinline__ void set(const point<float, int> &from, unsigned row_vectors, unsigned slice)
    {
        const unsigned first = slice + unsigned(from.row) * row_vectors;
        const unsigned line = unsigned(from.width) * row_vectors;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            row[i] = from.inside & 1u << i ? first + (i >> 1 ? line : 0u) + (i & 1 ? row_vectors : 0u) : slice;
    }
    __device__ __forceinline__ void find(unsigned, unsigned (&at)[4]) const
    {
        const corner_box all = *this;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            at[i] = all.row[i];
    }
};

#endif
#if __CUDA_ARCH__ >= 800
/*
 * c += a b on the tensor cores, a [16][k] and b [k][8], spread over a warp: lane 4 i + j holds rows i and i + 8 of a in its
 * registers by turns, column i of b, and of c columns 2 j and 2 j + 1 of rows i (c[0], c[1]) and i + 8 (c[2], c[3]). Lanes
 * j = 0 to 3 share out k among them, in a as in b.
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

/* c[0] and c[1] = the sums of x over lanes 8 j to 8 j + 3 and 8 j + 4 to 8 j + 7, j the lane's number modulo 4. */
__device__ __forceinline__ void sum_quads(float (&c)[4], float x)
{
    /* tf32 keeps 11 bits: x as a sum of two. An infinite x leaves an infinite sum. */
    const unsigned high = __float_as_uint(x) & 0xffffe000u;
    const unsigned low = __float_as_uint(fminf(x - __uint_as_float(high), 0x1p127f));
    const unsigned one = 0x3f800000u;
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(one), "r"(high), "r"(low));
}
#endif

/* 16-bit values: quads read rows of all four units by turns, in an order that keeps their lines' halves apart. */
template <class Value, int HeadDim> struct half_dots {
    static constexpr int points = 8; /* of a unit, that a warp takes at once */
    static constexpr int width = HeadDim < 32 ? HeadDim / 4 : 8, count = HeadDim / (4 * width);

    static __device__ __forceinline__ unsigned unit_of(unsigned lane)
    {
        return lane % 4;
    }
    static __device__ __forceinline__ unsigned point_of(unsigned lane)
    {
        return lane / 4 ^ 4 * (lane & 1);
    }
    static __device__ __forceinline__ unsigned grad_unit_of(unsigned lane)
    {
        return lane / 8;
    }

    /*
     * Rows of two parts are read in the other order by every other quad. Column i of b has the grad_output of unit i / 2: in
     * even columns what the rows' even registers are multiplied with, in odd columns the rest.
     */
    const Value *value;
    unsigned grad[count][width / 4];

    __device__ __forceinline__ half_dots(const Value *slice, const Value *grad_output, unsigned lane)
    {
        const unsigned quad = lane / 4, part = lane % 4;
        value = keep(slice + part * width);
#pragma unroll
        for (unsigned v = 0; v < count; ++v)
#pragma unroll
            for (int i = 0; i < width / 4; ++i)
                grad[v][i] = load_raw<Value, 2>(grad_output + part * width + part_of_row(v, quad / 2) * 4 * width + 4 * i +
                                                2 * (quad & 1));
    }

    static __device__ __forceinline__ unsigned part_of_row(unsigned v, unsigned unit)
    {
        return count == 1 ? 0 : v ^ (unit & 1);
    }

    /* The dot product of a row, which the lane's quad holds, and the grad_output of `unit`; for lanes of that unit alone. */
    __device__ __forceinline__ float multiply_row(const raw<Value, width> (&row)[count], unsigned unit, unsigned lane) const
    {
#if __CUDA_ARCH__ >= 800
        float c[4] = {};
#pragma unroll
        for (int v = 0; v < count; ++v)
            multiply(c, row[v], grad[v], Value());
        return c[0] + c[3];
#else
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < count; ++v) {
            const unpacked<Value, width> at = unpack<Value, width>(row[v]);
#pragma unroll
            for (int pair = 0; pair < width / 2; ++pair) {
                const unpacked<Value, 2> g =
                    unpack<Value, 2>(__shfl_sync(~0u, grad[v][pair / 2], 8 * unit + 4 * (pair & 1) + lane % 4));
                sum = fma(at.at[2 * pair], g.at[0], fma(at.at[2 * pair + 1], g.at[1], sum));
            }
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        return sum + __shfl_xor_sync(~0u, sum, 2);
#endif
    }

    /* The four dot products of the lane's own point, whatever for corners outside. */
    __device__ __forceinline__ void find(const corner_box *boxes, unsigned row_vectors, unsigned lane,
                                         float (&dot)[4]) const
    {
        const unsigned quad = lane / 4;
        constexpr unsigned at_once = 2 / count; /* points whose reads are under way together */
#pragma unroll 1
        for (unsigned first = 0; first < 4; first += at_once) {
            raw<Value, width> corner[at_once][4][count];
#pragma unroll
            for (unsigned s = 0; s < at_once; ++s) {
                const unsigned unit = (quad & 3) ^ (first + s);
                unsigned at[4];
                boxes[4 * quad + unit].find(row_vectors, at);
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int v = 0; v < count; ++v)
                        corner[s][i][v] =
                            load_raw<Value, width>(value + int64_t(at[i] + part_of_row(v, unit) * (width / 2)) * 8);
            }
#pragma unroll
            for (unsigned s = 0; s < at_once; ++s) {
                const unsigned unit = (quad & 3) ^ (first + s);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float product = multiply_row(corner[s][i], unit, lane);
                    if (unit == lane % 4)
                        dot[i] = product;
                }
            }
        }
    }
};

/* f32: each team of lanes reads the rows of a unit of its own, whole lines or neighbouring heads' halves. */
template <class Value, int HeadDim> struct float_dots {
    static constexpr int lanes = HeadDim < 32 ? 4 : 8, points = lanes;
    static constexpr int width = 4, count = HeadDim / (lanes * width);

    static __device__ __forceinline__ unsigned unit_of(unsigned lane)
    {
        return lanes == 8 ? lane % 4 : 2 * (lane % 4) + (lane / 4 & 1);
    }
    static __device__ __forceinline__ unsigned point_of(unsigned lane)
    {
        return lanes == 8 ? lane / 4 : lane / 8;
    }
    static __device__ __forceinline__ unsigned grad_unit_of(unsigned lane)
    {
        return lane / lanes;
    }

    const Value *value;
    unpacked<Value, width> grad[count];

    __device__ __forceinline__ float_dots(const Value *slice, const Value *grad_output, unsigned lane)
    {
        value = keep(slice + lane % lanes * width);
#pragma unroll
        for (int v = 0; v < count; ++v)
            grad[v] = unpack<Value, width>(load_raw<Value, width>(grad_output + (v * lanes + lane % lanes) * width));
    }

    /* The sum of x over the team of the lane's own unit. */
    static __device__ __forceinline__ float sum_team(float x, unsigned lane)
    {
#if __CUDA_ARCH__ >= 800
        float c[4] = {};
        sum_quads(c, x);
        return lanes == 8 ? c[0] + c[1] : lane & 4 ? c[1] : c[0];
#else
#pragma unroll
        for (int distance = 1; distance < lanes; distance *= 2)
            x += __shfl_xor_sync(~0u, x, distance);
        return __shfl_sync(~0u, x, unit_of(lane) * lanes);
#endif
    }

    __device__ __forceinline__ void find(const corner_box *boxes, unsigned row_vectors, unsigned lane,
                                         float (&dot)[4]) const
    {
        const unsigned unit = lane / lanes;
        const unsigned first = lanes == 8 ? unit : unit / 2 + 4 * (unit & 1); /* the lane of the unit's first point */
#ifndef ATONCE
#define ATONCE 2
#endif
        constexpr int at_once = ATONCE;
#pragma unroll at_once
        for (unsigned s = 0; s < points; ++s) {
            unsigned at[4];
            boxes[first + s * (32 / points)].find(row_vectors, at);
            raw<Value, width> corner[4][count];
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int v = 0; v < count; ++v)
                    corner[i][v] = load_raw<Value, width>(value + (int64_t(at[i]) * width + v * lanes * width));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float product = 0.0f;
#pragma unroll
                for (int v = 0; v < count; ++v) {
                    const unpacked<Value, width> x = unpack<Value, width>(corner[i][v]);
#pragma unroll
                    for (int c = 0; c < width; ++c)
                        product = fma(grad[v].at[c], x.at[c], product);
                }
                product = sum_team(product, lane);
                if (s == point_of(lane))
                    dot[i] = product;
            }
        }
    }
};

template <class Value, int HeadDim>
using dots_of = std::conditional_t<sizeof(Value) == 2, half_dots<Value, HeadDim>, float_dots<Value, HeadDim>>;

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

/* A query and head among those of a block. */
struct block_unit {
    unsigned query, head;

    __device__ __forceinline__ unsigned of(const stride &s) const
    {
        return query * unsigned(s.row) + head * unsigned(s.head);
    }
};

template <class Value, class Point, int HeadDim, form F>
__global__ void __launch_bounds__(threads_per_block, RES)
    backward_dots_kernel(const __grid_constant__ params p, const backward_scratch scratch, const team_grid grid)
{
    using dots = dots_of<Value, HeadDim>;
    constexpr int units = 32 / dots::points; /* of a warp */

    __shared__ corner_box all_boxes[threads_per_block / 32][32];

    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned n = blockIdx.z, first_head = blockIdx.y << grid.log2_heads;
    const unsigned first_query = blockIdx.x * (threads_per_block / dots::points >> grid.log2_heads);
    const unsigned last_query = p.queries - 1 - first_query;

    const auto find_unit = [&](unsigned unit) -> block_unit {
        unit += warp * units;
        return {min(unit >> grid.log2_heads, last_query), unit & ((1u << grid.log2_heads) - 1)};
    };
    const block_unit own = find_unit(dots::unit_of(lane)), other = find_unit(dots::grad_unit_of(lane));
    const bool in_range = warp * units + dots::unit_of(lane) >> grid.log2_heads <= last_query;
    const unsigned num_points = in_range ? p.num_points : 0;

    const unsigned row_vectors = unsigned(p.value.row) / (16 / sizeof(Value));
    const unsigned slice = own.head * (unsigned(p.value.head) / (16 / sizeof(Value)));
    const dots products(static_cast<const Value *>(p.t.value) + p.value(n, 0, first_head),
                        static_cast<const Value *>(p.t.grad_output) +
                            (p.grad_output(n, first_query, first_head) + other.of(p.grad_output)),
                        lane);
    /* Points are numbered alike in all their tensors: see are_alike(). */
    const int64_t first_point = p.weights(n, first_query, first_head);
    unsigned k = dots::point_of(lane), index = own.of(p.weights) + k;
    const head<Point> h = {static_cast<const Point *>(p.t.locations), static_cast<const Point *>(p.t.weights), nullptr, {}};

    given_point<float> given = k < num_points ? load_point<F>(h, first_point + index) : nowhere<float>();
    corner_box *const boxes = all_boxes[warp];
    for (unsigned k0 = 0; k0 < p.num_points; k0 += dots::points) {
        const bool has_point = k < num_points;
#ifdef NOAHEAD
        given = k < num_points ? load_point<F>(h, first_point + index) : nowhere<float>();
#endif
        const unsigned present = min(k, p.num_points - 1);
        const point<float, int> placed =
            place_point<F, int>(p, p.levels, h, level_of(p, p.levels, present), present, given);
        const float scale_x = placed.weight * placed.slope_x, scale_y = placed.weight * placed.slope_y;
        corner_box box;
        box.set(placed, row_vectors, slice);
        __syncwarp();
        boxes[lane] = box;
        __syncwarp();
        const int64_t at = first_point + index;
        k += dots::points;
        index += dots::points;
#ifndef NOAHEAD
        given = k < num_points ? load_point<F>(h, first_point + index) : nowhere<float>();
#endif
        float dot[4] = {};
        products.find(boxes, row_vectors, lane, dot);
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
    const team_grid grid = make_team_grid<Value, points, HeadDim / points, 1>(p);
    return launch(backward_dots_kernel<Value, Point, HeadDim, F>, grid_of(grid.query_tiles, grid.head_tiles, p.batch),
                  threads_per_block, 0, stream, p, scratch, grid);
}

} // namespace msda

#endif
