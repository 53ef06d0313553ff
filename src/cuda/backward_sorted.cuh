/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grad_value with few atomics: a thread block takes up to points_per_round points of one tile, sorts them by cell in
 * shared memory, and gives each team of lanes an equal run of them. The team adds weight * grad_output to four corner rows
 * in registers for as long as the cell stays the same, and only then to memory. An encoder's coarse levels have hundreds
 * of points a cell; what is left of the atomics is about a tenth.
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

/* A point in a run: its weight, split between its two lines; its query, and above 24 bits its cell within the tile. */
template <class Real> struct alignas(16) run_point {
    Real fraction_x, top, bottom;
    unsigned query_and_cell;
};

/* Lanes, Width as in the gather. Sum: the type that grad_value is summed in. */
template <class Value, class Point, class Sum, int Lanes, int Width, form F>
__global__ void __launch_bounds__(threads_per_block, 3)
    sum_runs_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t, const bin_scratch scratch,
                    const backward_scratch sums, int64_t all_queries, int64_t first_query, int first_bin, int bins)
{
    using Real = real_of<Value>;
    constexpr int points_per_thread = points_per_round / threads_per_block;
    constexpr int teams = threads_per_block / Lanes;
    constexpr int most_cells = 1 << log2_most_cells;
    static_assert(most_cells == threads_per_block, "one thread scans one cell");

    __shared__ run_point<Real> sorted[points_per_round];
    __shared__ unsigned short counts[warps_per_block][most_cells];
    __shared__ unsigned short begins[most_cells];
    __shared__ level levels[MSDA_MAX_LEVELS + 1];
    load_levels(p, levels);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned row_bytes = unsigned(p.grad_output.row * int64_t(sizeof(Value)));
    const int most_rounds = bins + int(t.list_length / points_per_round) + 1;

    for (int n = blockIdx.z; n < p.batch; n += gridDim.z)
        for (int m = blockIdx.y; m < p.heads; m += gridDim.y)
            for (int round = blockIdx.x; round < most_rounds; round += gridDim.x) {
                const int64_t slice = int64_t(n) * p.heads + m;
                const unsigned *rounds = scratch.rounds + slice * (bins + 1);
                if (unsigned(round) >= rounds[bins])
                    break;
                int bin = 0; /* the last bin whose rounds begin at or before this one */
                for (int step = 1 << (31 - __clz(bins)); step > 0; step /= 2)
                    if (bin + step < bins && rounds[bin + step] <= unsigned(round))
                        bin += step;
                const unsigned *bounds = scratch.begins + slice * (bins + 1) + bin;
                const unsigned begin = bounds[0] + (unsigned(round) - rounds[bin]) * points_per_round;
                const int count = int(min(bounds[1] - begin, unsigned(points_per_round)));
                const unsigned *list = scratch.list + slice * t.list_length + begin;

                int at_level = 0;
                while (at_level + 1 < p.num_levels && bin + first_bin >= t.levels[at_level + 1].first_bin)
                    ++at_level;
                const tiled_level &tiles = t.levels[at_level];
                const int l = tiles.level, tile = bin + first_bin - tiles.first_bin;
                const int origin_x = (tile % tiles.tiles_x << tiles.log2_width) - 1;
                const int origin_y = (tile / tiles.tiles_x << tiles.log2_height) - 1;
                const head<Point> points_of_slice = open_slice<F, Point>(p, n, m);

                for (int i = threadIdx.x; i < warps_per_block * most_cells / 2; i += threads_per_block)
                    reinterpret_cast<unsigned *>(&counts[0][0])[i] = 0;
                __syncthreads();

                const int loads = (count + threads_per_block - 1) / threads_per_block;
                unsigned number[points_per_thread];
                given_point<Real> given[points_per_thread];
                run_point<Real> mine[points_per_thread];
                int cell[points_per_thread], rank[points_per_thread];
#pragma unroll
                for (int i = 0; i < points_per_thread; ++i) {
                    const int entry = (warp * loads + i) * 32 + lane;
                    number[i] = i < loads && entry < count ? list[entry] : ~0u;
                }
#pragma unroll
                for (int i = 0; i < points_per_thread; ++i) {
                    const int q = int(number[i] >> t.log2_points), k = int(number[i] & ((1u << t.log2_points) - 1));
                    given[i] =
                        number[i] == ~0u ? nowhere<Real>() : load_point<F>(open_head<F>(p, points_of_slice, q), k);
                }
#pragma unroll
                for (int i = 0; i < points_per_thread; ++i) {
                    cell[i] = -1;
                    if (i >= loads)
                        continue;
                    if (number[i] != ~0u) {
                        const int q = int(number[i] >> t.log2_points), k = int(number[i] & ((1u << t.log2_points) - 1));
                        head<Point> h = open_head<F>(p, points_of_slice, q);
                        if (is_fused<F>(p))
                            h.softmax = static_cast<const softmax_state<Real> *>(
                                scratch.softmax)[(n * all_queries + first_query + q) * p.heads + m];
                        const auto at = place_point<F, int64_t>(p, levels, h, l, k, given[i]);
                        cell[i] = ((at.line - origin_y) << tiles.log2_width) + at.column - origin_x;
                        mine[i] = {at.fraction_x, at.weight * (Real(1) - at.fraction_y), at.weight * at.fraction_y,
                                   unsigned(q) | unsigned(cell[i]) << 24};
                    }
                    const unsigned same = __match_any_sync(~0u, cell[i]);
                    const unsigned before = same & ((1u << lane) - 1);
                    unsigned seen = 0;
                    if (cell[i] >= 0)
                        seen = counts[warp][cell[i]];
                    rank[i] = int(seen) + __popc(before);
                    __syncwarp();
                    if (cell[i] >= 0 && before == 0)
                        counts[warp][cell[i]] = (unsigned short)(seen + __popc(same));
                    __syncwarp();
                }
                __syncthreads();

                unsigned in_cell = 0, total;
#pragma unroll
                for (int w = 0; w < warps_per_block; ++w) {
                    const unsigned of_warp = counts[w][threadIdx.x];
                    counts[w][threadIdx.x] = (unsigned short)in_cell; /* where this warp's points begin in the cell */
                    in_cell += of_warp;
                }
                begins[threadIdx.x] = (unsigned short)scan_block<threads_per_block>(in_cell, &total);
                __syncthreads();
#pragma unroll
                for (int i = 0; i < points_per_thread; ++i)
                    if (cell[i] >= 0)
                        sorted[begins[cell[i]] + counts[warp][cell[i]] + rank[i]] = mine[i];
                __syncthreads();

                const int run = (count + teams - 1) / teams;
                const int first = threadIdx.x / Lanes * run, last = min(first + run, count);
                for (int turn = 0; F == form::any ? turn < p.head_dim : turn == 0; turn += Lanes * Width) {
                    const int channel = turn + threadIdx.x % Lanes * Width;
                    if (F == form::any && channel >= p.head_dim)
                        continue;
                    const Value *grad_output =
                        static_cast<const Value *>(p.t.grad_output) + p.grad_output(n, 0, m) + channel;
                    Sum *to = static_cast<Sum *>(sums.sums) + sums.sum_strides(n, levels[l].start, m) + channel;
                    Real sum[4][Width] = {};
                    unsigned current = first < last ? sorted[first].query_and_cell >> 24 : 0;

                    const auto flush = [&] {
                        const int column = origin_x + int(current & ((1u << tiles.log2_width) - 1));
                        const int line = origin_y + int(current >> tiles.log2_width);
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const int x = column + (i & 1), y = line + (i >> 1);
                            const bool wanted =
                                !is_set<F>(p.discrete) || i == 0; /* discrete sampling reads one pixel */
                            if (wanted && unsigned(x) < unsigned(levels[l].width) &&
                                unsigned(y) < unsigned(levels[l].height))
                                reduce<Width>(to + (int64_t(y) * levels[l].width + x) * sums.sum_strides.row, sum[i]);
#pragma unroll
                            for (int c = 0; c < Width; ++c)
                                sum[i][c] = Real(0);
                        }
                    };
                    constexpr int at_once = 2;
                    for (int e = first; e < last; e += at_once) {
                        run_point<Real> at[at_once];
                        raw<Value, Width> row[at_once];
#pragma unroll
                        for (int i = 0; i < at_once; ++i) {
                            at[i] = sorted[min(e + i, last - 1)];
                            row[i] = load_raw<Value, Width>(reinterpret_cast<const Value *>(
                                reinterpret_cast<uintptr_t>(grad_output) +
                                uint64_t(at[i].query_and_cell & 0xffffffu) * row_bytes));
                        }
#pragma unroll
                        for (int i = 0; i < at_once; ++i) {
                            if (e + i >= last)
                                break;
                            if (at[i].query_and_cell >> 24 != current) {
                                flush();
                                current = at[i].query_and_cell >> 24;
                            }
                            const unpacked<Value, Width> g = unpack<Value, Width>(row[i]);
                            const Real left = Real(1) - at[i].fraction_x;
                            const Real weight[4] = {at[i].top * left, at[i].top * at[i].fraction_x, at[i].bottom * left,
                                                    at[i].bottom * at[i].fraction_x};
#pragma unroll
                            for (int j = 0; j < 4; ++j)
#pragma unroll
                                for (int c = 0; c < Width; ++c)
                                    sum[j][c] = fma(weight[j], g.at[c], sum[j][c]);
                        }
                    }
                    if (first < last)
                        flush();
                }
                __syncthreads();
            }
}

} // namespace msda

#endif
