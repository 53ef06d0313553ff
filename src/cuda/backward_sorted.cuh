/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grad_value with few atomics: a thread block takes the points of one tile, up to points_per_round at a time, sorts them by
 * cell in shared memory and gives each team of lanes an equal run of them. For as long as the cell stays the same, the team
 * sums weight * grad_output for the cell's four corners in registers; it adds to memory when the cell changes. An encoder's
 * coarse levels have hundreds of points a cell; what is left of the atomics is about a tenth.
 */
#ifndef MSDA_BACKWARD_SORTED_CUH
#define MSDA_BACKWARD_SORTED_CUH

#include "backward_bins.cuh"
#include "backward_points.cuh"

namespace msda
{

constexpr int log2_most_cells = 8; /* of a tile */

/* Tiles small enough that a round of points fills them well, from 16 x 16 cells down to one. */
inline tiling make_sorted_tiling(const msda_shape &shape)
{
    return make_tiling(shape, false, [&](const msda_level &l, int &log2_width, int &log2_height) {
        const double points_per_cell = double(shape.p.queries) * l.points / (double(l.width) * l.height);
        int cells = log2_most_cells;
        while (cells > 0 && points_per_cell * (1 << (cells - 1)) >= points_per_round * 3 / 4)
            --cells;
        log2_width = (cells + 1) / 2;
        log2_height = cells / 2;
    });
}

/* Elements of a lane: of 16-bit types half a vector, so that the sums of four rows stay in registers. */
template <class Value> constexpr int run_width = sizeof(Value) == 8 ? 2 : 4;

/* A point in a run. */
template <class Real> struct alignas(16) run_point {
    Real fraction_x, fraction_y, weight;
    unsigned number;
};

/* The corners of a cell, in slices of less than 4 GiB: which lie inside the level, and the row of corner 00 (mod 2^32). */
struct cell_corners {
    unsigned row, inside;

    __device__ __forceinline__ bool is_inside(int corner) const
    {
        return (inside & 1u << corner) != 0;
    }
};

template <form F>
__device__ __forceinline__ cell_corners find_cell(const params &p, const tiled_level &tiles, const level &l,
                                                  int origin_x, int origin_y, int cell)
{
    const int x = origin_x + (cell & ((1 << tiles.log2_width) - 1)), y = origin_y + (cell >> tiles.log2_width);
    const unsigned columns = unsigned(x >= 0) | unsigned(x + 1 < l.width) << 1;
    const unsigned inside = (y >= 0 ? columns : 0u) | (y + 1 < l.height ? columns << 2 : 0u);
    /* discrete sampling reads one pixel */
    return {unsigned(l.start) + unsigned(y * l.width + x), is_set<F>(p.discrete) ? inside & 1u : inside};
}

/* `base` moved by a number of bytes. */
template <class T> __device__ __forceinline__ T *move(T *base, unsigned bytes)
{
    return reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(base) + bytes);
}

/*
 * Lanes over the channels, run_width elements each; wider heads take several turns over the channels. Sum: the type that
 * grad_value is summed in.
 */
template <class Value, class Point, class Sum, int Lanes, form F>
__global__ void __launch_bounds__(threads_per_block, sizeof(Value) == 8 ? 2 : 3)
    sum_runs_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t, const bin_scratch scratch,
                    const backward_scratch out, int64_t all_queries, int64_t first_query, int first_bin, int bins)
{
    using Real = real_of<Value>;
    constexpr int Width = run_width<Value>;
    constexpr int points_per_thread = points_per_round / threads_per_block;
    constexpr int teams = threads_per_block / Lanes;
    constexpr int most_cells = 1 << log2_most_cells;
    constexpr int at_once = 2; /* points whose rows of grad_output are under way together */

    __shared__ run_point<Real> sorted[points_per_round];
    __shared__ cell_counts<most_cells> counts;
    __shared__ unsigned short begins[most_cells + 1];
    __shared__ level levels[MSDA_MAX_LEVELS + 1];
    load_levels(p, levels);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned k_mask = (1u << t.log2_points) - 1;
    const int bin = blockIdx.x;
    int at_level = 0;
    while (at_level + 1 < p.num_levels && bin + first_bin >= t.levels[at_level + 1].first_bin)
        ++at_level;
    const tiled_level &tiles = t.levels[at_level];
    const int l = tiles.level, tile = bin + first_bin - tiles.first_bin;
    const int origin_x = (tile % tiles.tiles_x << tiles.log2_width) - 1;
    const int origin_y = (tile / tiles.tiles_x << tiles.log2_height) - 1;

    for (int n = blockIdx.z; n < p.batch; n += gridDim.z)
        for (int m = blockIdx.y; m < p.heads; m += gridDim.y) {
            const int64_t slice = int64_t(n) * p.heads + m;
            const unsigned *bounds = scratch.begins + slice * (bins + 1) + bin;
            const unsigned *list = scratch.list + slice * t.list_length;
            const unsigned end = bounds[1];
            const head<Point> points_of_slice = open_slice<F, Point>(p, n, m);

            for (unsigned begin = bounds[0]; begin < end; begin += points_per_round) {
                const int count = int(min(end - begin, unsigned(points_per_round)));
                clear(counts);

                const int loads = (count + threads_per_block - 1) / threads_per_block;
                run_point<Real> mine[points_per_thread];
                given_point<Real> given[points_per_thread];
                int cell[points_per_thread], rank[points_per_thread];
#pragma unroll
                for (int i = 0; i < points_per_thread; ++i) {
                    const int entry = (warp * loads + i) * 32 + lane;
                    mine[i].number = i < loads && entry < count ? list[begin + entry] : ~0u;
                }
#pragma unroll
                for (int i = 0; i < points_per_thread; ++i)
                    given[i] =
                        mine[i].number == ~0u
                            ? nowhere<Real>()
                            : load_point<F>(open_head<F>(p, points_of_slice, int(mine[i].number >> t.log2_points)),
                                            int(mine[i].number & k_mask));
#pragma unroll
                for (int i = 0; i < points_per_thread; ++i) {
                    cell[i] = -1;
                    if (i >= loads)
                        continue;
                    if (mine[i].number != ~0u) {
                        const int q = int(mine[i].number >> t.log2_points), k = int(mine[i].number & k_mask);
                        head<Point> h = open_head<F>(p, points_of_slice, q);
                        if (is_fused<F>(p))
                            h.softmax = static_cast<const softmax_state<Real> *>(
                                scratch.softmax)[(n * all_queries + first_query + q) * p.heads + m];
                        const auto at = place_point<F, int64_t>(p, levels, h, l, k, given[i]);
                        cell[i] = ((at.line - origin_y) << tiles.log2_width) + at.column - origin_x;
                        mine[i].fraction_x = at.fraction_x;
                        mine[i].fraction_y = at.fraction_y;
                        mine[i].weight = at.weight;
                    }
                    rank[i] = int(take_numbers(counts.of[warp], cell[i]));
                }
                find_begins(counts, begins);
#pragma unroll
                for (int i = 0; i < points_per_thread; ++i)
                    if (cell[i] >= 0)
                        sorted[begins[cell[i]] + counts.of[warp][cell[i]] + rank[i]] = mine[i];
                __syncthreads();

                const int run = (count + teams - 1) / teams;
                const int first = int(threadIdx.x) / Lanes * run, last = min(first + run, count);
                for (int turn = 0; F == form::any ? turn < p.head_dim : turn == 0; turn += Lanes * Width) {
                    const int channel = turn + int(threadIdx.x) % Lanes * Width;
                    const bool has_channels = F != form::any || channel < p.head_dim;
                    const int present = has_channels ? channel : 0;
                    const Value *grad_output =
                        keep(static_cast<const Value *>(p.t.grad_output) + p.grad_output(n, 0, m) + present);
                    Sum *sums = keep(static_cast<Sum *>(out.sums) + out.sum_strides(n, 0, m) + present);
                    const unsigned row_bytes = unsigned(p.grad_output.row * int64_t(sizeof(Value)));
                    const unsigned sum_bytes = unsigned(out.sum_strides.row * int64_t(sizeof(Sum)));
                    const unsigned width = unsigned(levels[l].width);

                    Real sum[4][Width] = {};
                    cell_corners corners = {};
                    int own_cell = -1, cell_end = first;
                    const auto flush = [&] {
                        const unsigned at = corners.row * sum_bytes;
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const unsigned offset = at + (i >> 1 ? width * sum_bytes : 0u) + (i & 1 ? sum_bytes : 0u);
                            reduce_if<Width>(has_channels && corners.is_inside(i), move(sums, offset), sum[i]);
#pragma unroll
                            for (int c = 0; c < Width; ++c)
                                sum[i][c] = Real(0);
                        }
                    };
                    /* To the cell of point e: the last that begins at or before e; empty ones before it do no harm. */
                    const auto enter_cell = [&](int e) {
                        if (own_cell < 0) {
                            own_cell = 0;
#pragma unroll
                            for (int step = most_cells / 2; step > 0; step /= 2)
                                own_cell += begins[own_cell + step] <= e ? step : 0;
                        } else {
                            while (begins[own_cell + 1] <= e)
                                ++own_cell;
                        }
                        cell_end = begins[own_cell + 1];
                        corners = find_cell<F>(p, tiles, levels[l], origin_x, origin_y, own_cell);
                    };

                    for (int base = first; base < last; base += at_once) {
                        run_point<Real> at[at_once];
                        raw<Value, Width> row[at_once];
#pragma unroll
                        for (int i = 0; i < at_once; ++i) {
                            at[i] = sorted[min(base + i, last - 1)];
                            row[i] = load_raw<Value, Width>(
                                reinterpret_cast<const Value *>(reinterpret_cast<uintptr_t>(grad_output) +
                                                                uint64_t(at[i].number >> t.log2_points) * row_bytes));
                        }
#pragma unroll
                        for (int i = 0; i < at_once; ++i) {
                            if (base + i >= last)
                                break;
                            if (base + i >= cell_end) {
                                if (own_cell >= 0)
                                    flush();
                                enter_cell(base + i);
                            }
                            const unpacked<Value, Width> g = unpack<Value, Width>(row[i]);
                            const Real right = at[i].weight * at[i].fraction_x,
                                       left = at[i].weight * (Real(1) - at[i].fraction_x);
                            const Real above = Real(1) - at[i].fraction_y, below = at[i].fraction_y;
                            const Real weight[4] = {left * above, right * above, left * below, right * below};
#pragma unroll
                            for (int j = 0; j < 4; ++j)
#pragma unroll
                                for (int c = 0; c < Width; ++c)
                                    sum[j][c] = fma(weight[j], g.at[c], sum[j][c]);
                        }
                    }
                    if (own_cell >= 0)
                        flush();
                }
                __syncthreads();
            }
        }
}

} // namespace msda

#endif
