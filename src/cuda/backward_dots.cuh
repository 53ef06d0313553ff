/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gather without a scatter, for 16-bit values: the gradients of locations and weights from four dot products a
 * point, which the tensor cores compute. Products of two 16-bit numbers are exact in fp32, and their sums are kept in
 * fp32. Rows go into the matrices as they come from memory, and every dot product comes out in the lane that placed its
 * point.
 */
#ifndef MSDA_BACKWARD_DOTS_CUH
#define MSDA_BACKWARD_DOTS_CUH

#include "backward_points.cuh"

namespace msda
{

/* A warp takes the same eight points of four units (a query and head) at once. Lanes 4 i to 4 i + 3 are quad i. */
constexpr unsigned units_of_warp = 4, points_at_once = 8;

/*
 * Where a point's corners lie in a slice, in vectors of 16 bytes. A corner outside is put on the slice's first row, so
 * that all are read without asking; what is read there is dropped.
 */
struct alignas(16) corner_rows {
    unsigned at[4];

    __device__ __forceinline__ void set(const point<float, int> &from, unsigned row_vectors, unsigned slice)
    {
        const unsigned first = slice + unsigned(from.row) * row_vectors, line = unsigned(from.width) * row_vectors;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            at[i] = from.inside & 1u << i ? first + (i >> 1 ? line : 0u) + (i & 1 ? row_vectors : 0u) : slice;
    }
};

/*
 * grad_output of a warp's four units, ready to be multiplied with rows of value. A quad reads a row together: each lane
 * `width` elements at once, `count` times. What one quad loads is both rows i and i + 8 of a: the even registers' share
 * of its dot product ends in row i, the odd registers' in row i + 8. So b has two columns a unit, 2 u for the even and
 * 2 u + 1 for the odd registers, and lane 4 i + u finds both shares of the dot product with unit u in its c.
 */
template <class Value, int HeadDim> struct warp_gradients {
    static constexpr int width = HeadDim < 32 ? HeadDim / 4 : 8, count = HeadDim / (4 * width);

    unsigned columns[count][width / 4];

    /*
     * How far on in its row a lane's v-th read lies. Rows of a whole line are read in the other order by odd units, so
     * that neighbouring quads read different halves of their lines.
     */
    static __device__ __forceinline__ unsigned offset(unsigned v, unsigned unit)
    {
        return count == 1 ? 0 : (v ^ (unit & 1)) * 4 * width;
    }

    /* `row` is the grad_output of unit `lane` / 8, from the lane's first element on. */
    __device__ __forceinline__ void load(const Value *row, unsigned lane)
    {
#pragma unroll
        for (int v = 0; v < count; ++v)
#pragma unroll
            for (int i = 0; i < width / 4; ++i)
                columns[v][i] = load_raw<Value, 2>(row + offset(v, lane / 8) + 4 * i + 2 * (lane / 4 & 1));
    }

    /* The dot product of the row that the lane's quad has read, in the quad's lane of that row's `unit`. */
    __device__ __forceinline__ float multiply_row(const raw<Value, width> (&row)[count], unsigned unit,
                                                  unsigned lane) const
    {
#if __CUDA_ARCH__ >= 800
        float c[4] = {};
#pragma unroll
        for (int v = 0; v < count; ++v)
            multiply(c, row[v], columns[v], Value());
        return c[0] + c[3];
#else
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < count; ++v) {
            const unpacked<Value, width> x = unpack<Value, width>(row[v]);
#pragma unroll
            for (int i = 0; i < width; i += 2) {
                const unsigned from = 8 * unit + 4 * (i / 2 & 1) + lane % 4;
                const unpacked<Value, 2> g = unpack<Value, 2>(__shfl_sync(~0u, columns[v][i / 4], from));
                sum = fma(x.at[i], g.at[0], fma(x.at[i + 1], g.at[1], sum));
            }
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        return sum + __shfl_xor_sync(~0u, sum, 2);
#endif
    }
};

/*
 * The four dot products of the lane's own point, whatever for corners outside. `slice` begins with the lane's first
 * element; `rows` are those of the quad's points.
 */
template <class Value, int HeadDim>
__device__ __forceinline__ void find_dots(const Value *slice, const warp_gradients<Value, HeadDim> &gradients,
                                          const corner_rows *rows, unsigned lane, float (&dot)[4])
{
    using gradients_type = warp_gradients<Value, HeadDim>;
    constexpr int width = gradients_type::width, count = gradients_type::count;
    constexpr unsigned ahead = 2 / count; /* points whose rows are under way together */

    /*
     * Neighbouring quads take their units in different orders: of heads that share their lines, they read different
     * ones.
     */
    const unsigned first_unit = lane / 4 % units_of_warp;
#pragma unroll 1
    for (unsigned first = 0; first < units_of_warp; first += ahead) {
        raw<Value, width> corner[ahead][4][count];
#pragma unroll
        for (unsigned s = 0; s < ahead; ++s) {
            const unsigned unit = first_unit ^ (first + s);
            const corner_rows row = rows[unit];
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int v = 0; v < count; ++v)
                    corner[s][i][v] =
                        load_raw<Value, width>(slice + int64_t(row.at[i] + gradients_type::offset(v, unit) / 8) * 8);
        }
#pragma unroll
        for (unsigned s = 0; s < ahead; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const unsigned unit = first_unit ^ (first + s);
                const float product = gradients.multiply_row(corner[s][i], unit, lane);
                if (unit == lane % 4)
                    dot[i] = product;
            }
    }
}

/* A query and head, counted from the first ones of a block. */
struct block_unit {
    unsigned query, head;

    __device__ __forceinline__ unsigned at(const stride &s) const
    {
        return query * unsigned(s.row) + head * unsigned(s.head);
    }
};

/*
 * Lane 4 i + u places point i of unit u, and finishes it; odd units' points in another order, against bank conflicts.
 */
template <class Value, class Point, int HeadDim>
__global__ void __launch_bounds__(threads_per_block, 4)
    backward_dots_kernel(const __grid_constant__ params p, const team_grid grid)
{
    constexpr form F = form::plain;
    __shared__ corner_rows all_rows[threads_per_block];

    const unsigned lane = threadIdx.x % 32;
    const unsigned n = blockIdx.z, first_head = blockIdx.y << grid.log2_heads;
    const unsigned first_query = blockIdx.x * (threads_per_block / points_at_once >> grid.log2_heads);
    const auto find_unit = [&](unsigned unit) -> block_unit {
        unit += threadIdx.x / 32 * units_of_warp;
        return {unit >> grid.log2_heads, unit & ((1u << grid.log2_heads) - 1)};
    };
    const block_unit own = find_unit(lane % 4);
    block_unit other = find_unit(lane / 8);
    const bool in_range = first_query + own.query < p.queries;
    other.query = min(other.query, p.queries - 1 - first_query);

    using gradients_type = warp_gradients<Value, HeadDim>;
    const unsigned first_element = lane % 4 * gradients_type::width;
    const Value *slice = keep(static_cast<const Value *>(p.t.value) + p.value(n, 0, first_head) + first_element);
    const unsigned row_vectors = unsigned(p.value.row) / 8, own_slice = own.head * (unsigned(p.value.head) / 8);
    gradients_type gradients;
    gradients.load(static_cast<const Value *>(p.t.grad_output) +
                       (p.grad_output(n, first_query, first_head) + other.at(p.grad_output) + first_element),
                   lane);

    const int64_t first_point = p.weights(n, first_query, first_head);
    const unsigned num_points = in_range ? p.num_points : 0;
    unsigned k = lane / 4 ^ 4 * (lane & 1), index = own.at(p.weights) + k;
    const auto load = [&]() -> given_point<float> {
        if (k >= num_points)
            return nowhere<float>();
        const int64_t at = first_point + index;
        const Point *location = static_cast<const Point *>(p.t.locations) + 2 * at;
        const unpacked<Point, 2> both = unpack<Point, 2>(load_raw<Point, 2>(location));
        return {both.at[0], both.at[1], widen(static_cast<const Point *>(p.t.weights)[at])};
    };

    given_point<float> given = load();
    for (unsigned k0 = 0; k0 < p.num_points; k0 += points_at_once) {
        const unsigned present = min(k, p.num_points - 1);
        const point<float, int> placed =
            place_point<F, int>(p, p.levels, head<Point>(), level_of(p, p.levels, present), present, given);
        const pair_of<float> scale = location_scale<F>(placed);
        corner_rows rows;
        rows.set(placed, row_vectors, own_slice);
        __syncwarp();
        all_rows[threadIdx.x] = rows;
        __syncwarp();
        const bool has_point = k < num_points;
        const int64_t at = first_point + index;
        k += points_at_once;
        index += points_at_once;
        given = load();

        float dot[4] = {};
        find_dots<Value, HeadDim>(slice, gradients, all_rows + threadIdx.x / 4 * 4, lane, dot);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (!(placed.inside & 1u << i))
                dot[i] = 0.0f;
        if (has_point) {
            const point_gradients<float> found = find_gradients(placed.fraction_x, placed.fraction_y, scale, dot);
            if (p.t.grad_weights)
                write_gradient(p, static_cast<Point *>(p.t.grad_weights) + at, found.weight);
            if (p.t.grad_locations)
                write_pair<F>(p, static_cast<Point *>(p.t.grad_locations) + 2 * at, found.location);
        }
    }
}

/*
 * Whether launch_dots() takes the problem: a point has the same number in all tensors, pairs are aligned, and what a
 * block reads lies near enough for 32-bit offsets.
 */
template <class Point> bool can_find_dots(const params &p)
{
    const auto is_alike = [&](const stride &s, int factor) {
        return s.batch == factor * p.weights.batch && s.row == factor * p.weights.row &&
               s.head == factor * p.weights.head;
    };
    const auto is_near = [](const stride &s) { return s.row <= INT_MAX / 256 && s.head <= INT_MAX / 256; };
    return form_of<Point>(p) == form::plain && is_alike(p.locations, 2) &&
           (!p.t.grad_locations || is_alike(p.grad_locations, 2)) &&
           (!p.t.grad_weights || is_alike(p.grad_weights, 1)) &&
           reinterpret_cast<uintptr_t>(p.t.grad_locations) % (2 * sizeof(Point)) == 0 && is_near(p.weights) &&
           is_near(p.grad_output) && p.value.head <= INT_MAX;
}

template <class Value, class Point, int HeadDim> cudaError_t launch_dots(const params &p, cudaStream_t stream)
{
    const team_grid grid = make_team_grid<Value, int(points_at_once), HeadDim / int(points_at_once), 1>(p);
    return launch(backward_dots_kernel<Value, Point, HeadDim>, grid_of(grid.query_tiles, grid.head_tiles, p.batch),
                  threads_per_block, 0, stream, p, grid);
}

} // namespace msda

#endif
