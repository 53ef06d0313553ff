/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grad_value with few atomics: a thread block takes the points of one tile of cells, a round at a time, and gives each team
 * of lanes an equal run of them, sorted by cell. For as long as the cell stays the same, the team sums weight * grad_output
 * for the cell's four corners in registers; it adds to memory when the cell changes. An encoder's coarse levels have
 * hundreds of points a cell; what is left of the atomics is about a tenth.
 */
#ifndef MSDA_BACKWARD_RUNS_CUH
#define MSDA_BACKWARD_RUNS_CUH

#include "backward_points.cuh"
#include "backward_rounds.cuh"

namespace msda
{

/* Tiles that a round of points fills well, from 16 x 16 cells down to one. */
template <class Real> tiling make_runs_tiling(const msda_shape &shape)
{
    return make_tiling<Real>(shape, cell_bits, points_per_round * 7 / 8);
}

/* The corners of a cell, in slices of less than 4 GiB: which lie inside the level, and the row of corner 00 (mod 2^32). */
struct cell_corners {
    unsigned row, inside;

    __device__ __forceinline__ cell_corners(const tiled_level &tiles, const level &l, const tile_place &place, int cell)
    {
        const int x = place.first_x + (cell & ((1 << tiles.log2_width) - 1)),
                  y = place.first_y + (cell >> tiles.log2_width);
        const unsigned columns = unsigned(x >= 0) | unsigned(x + 1 < l.width) << 1;
        inside = (y >= 0 ? columns : 0u) | (y + 1 < l.height ? columns << 2 : 0u);
        row = unsigned(l.start) + unsigned(y * l.width + x);
    }
};

/*
 * Lanes over the channels, sum_width elements each; a head is as wide, or takes several turns if not Exact. Sum: the type
 * that grad_value is summed in.
 */
template <class Value, class Sum, int Lanes, bool Exact>
__global__ void __launch_bounds__(threads_per_block, sizeof(Value) == 8 ? 2 : 3)
    sum_runs_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t, const bin_scratch scratch,
                    const backward_scratch out, slice_index first_slice, int first_bin, int bins)
{
    using Real = real_of<Value>;
    using Record = point_record<Real>;
    constexpr int Width = sum_width<Value>, teams = threads_per_block / Lanes;

    __shared__ Record sorted[points_per_round];
    __shared__ unsigned short counts[warps_per_block << cell_bits], begins[(1 << cell_bits) + 1];
    __shared__ chunk_parts parts;

    const int bin = blockIdx.x;
    const tiled_level &tiles = find_tiles(t, p.num_levels, first_bin + bin);
    const level &l = p.levels[tiles.level];
    const tile_place place(tiles, first_bin + bin - tiles.first_bin);
    const int log2_cells = tiles.log2_width + tiles.log2_height, cells = 1 << log2_cells;
    const slice_index own_slice = first_slice.next(p.heads, blockIdx.y);
    const int n = own_slice.batch, m = own_slice.head;
    const unsigned slice = own_slice.number(p.heads);
    const Record *records = scratch.records_of<Real>(t, slice);
    const unsigned used = p.discrete ? 1u : 15u; /* corners: discrete sampling reads one pixel */
    const unsigned row_bytes = keep(unsigned(p.grad_output.row * int64_t(sizeof(Value))));
    const unsigned sum_bytes = unsigned(out.sum_strides.row * int64_t(sizeof(Sum)));
    const unsigned line_bytes = unsigned(l.width) * sum_bytes;

    const auto sum_round = [&](unsigned done, int count) {
        for (int i = threadIdx.x; i < warps_per_block << log2_cells; i += threads_per_block)
            counts[i] = 0;
        round_points<Real> points;
        points.load(records, parts, done, count);
        __syncthreads();
        points.count(counts, cells);
        __syncthreads();
        find_begins(counts, begins, cells);
        __syncthreads();
        points.store(sorted, counts, cells);
        __syncthreads();

        const int run = (count + teams - 1) / teams;
        const int first = int(threadIdx.x) / Lanes * run, last = min(first + run, count);
        for (int turn = 0; Exact ? turn == 0 : turn < p.head_dim; turn += Lanes * Width) {
            const int channel = turn + int(threadIdx.x) % Lanes * Width;
            const bool has_channels = Exact || channel < p.head_dim;
            const int present = has_channels ? channel : 0;
            const Value *grad_output =
                keep(static_cast<const Value *>(p.t.grad_output) + p.grad_output(n, 0, m) + present);
            Sum *sums = keep(static_cast<Sum *>(out.sums) + out.sum_strides(n, 0, m) + present);

            lane_sum<Real, Width> sum[4] = {};
            int cell = 0, cell_end = 0;
            /* Adds the cell's sums to memory; its right column stays if the next cell shares it. */
            const auto leave_cell = [&](bool shares) {
                const cell_corners corners(tiles, l, place, cell);
                const unsigned at = corners.row * sum_bytes, wanted = corners.inside & used & (shares ? 5u : 15u);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    reduce_if<Width>(has_channels && (wanted & 1u << i) != 0,
                                     move(sums, at + (i >> 1 ? line_bytes : 0u) + (i & 1 ? sum_bytes : 0u)), sum[i].of);
#pragma unroll
                for (int i = 0; i < 4; i += 2)
#pragma unroll
                    for (int c = 0; c < Width; ++c) {
                        sum[i].of[c] = shares ? sum[i + 1].of[c] : Real(0);
                        sum[i + 1].of[c] = Real(0);
                    }
            };
            const auto add = [&](int e, const Record &at, raw<Value, Width> row) {
                if (e >= cell_end) {
                    int next = cell;
                    if (e == first) {
                        /* The last cell that begins at or before the point. */
                        for (unsigned step = unsigned(cells) / 2; step > 0; step >>= 1)
                            next += begins[next + int(step)] <= first ? int(step) : 0;
                    } else {
                        do
                            ++next;
                        while (begins[next + 1] <= e);
                        leave_cell(!p.discrete && next == cell + 1 && (next & ((1 << tiles.log2_width) - 1)) != 0);
                    }
                    cell = next;
                    cell_end = begins[cell + 1];
                }
                add_point<Value, Width>(sum, at, row);
            };
            for_each_point<Value, Width>(sorted, first, last, grad_output, row_bytes, add);
            if (first < last)
                leave_cell(false);
        }
    };
    for_each_round(parts, t, scratch.begins_of(t, slice, bins) + bin, unsigned(bins + 1), points_per_chunk<Real>,
                   sum_round);
}

} // namespace msda

#endif
