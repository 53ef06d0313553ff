/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grad_value without atomics: every pixel has an owner that sums all its contributions in a fixed order and writes it
 * once. A thread block takes a tile of pixels, sorts its points by cell in shared memory and lets each team of lanes walk
 * the cells around its two pixels: grad_output rows times bilinear weights. The same bytes from run to run; nothing has to
 * be cleared or rounded afterwards.
 */
#ifndef MSDA_BACKWARD_OWNED_CUH
#define MSDA_BACKWARD_OWNED_CUH

#include "backward_bins.cuh"

namespace msda
{

/* A team's two pixels lie side by side; tiles are as square as that allows. */
template <int Lanes> constexpr int tile_pixels = 2 * threads_per_block / Lanes;
template <int Lanes> constexpr int log2_tile_width = tile_pixels<Lanes> >= 128 ? 4 : tile_pixels<Lanes> >= 32 ? 3 : 2;
template <int Lanes> constexpr int tile_width = 1 << log2_tile_width<Lanes>;
template <int Lanes> constexpr int tile_height = tile_pixels<Lanes> / tile_width<Lanes>;
template <int Lanes> constexpr int log2_tile_height = tile_height<Lanes> >= 16 ? 4 : tile_height<Lanes> >= 8 ? 3 : 2;

/* A point as the owner of a tile needs it: its weight, split between the lines above and below it, and its query. */
template <class Real> struct alignas(16) tile_point {
    Real fraction_x, top, bottom;
    unsigned query;
};

/* Lanes, Width as in the gather. Sum: the type of grad_value. */
template <class Value, class Point, class Sum, int Lanes, int Width, form F>
__global__ void __launch_bounds__(threads_per_block, 2)
    own_tiles_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t, const bin_scratch scratch,
                     int64_t all_queries, int64_t first_query, int first_bin, int bins)
{
    using Real = real_of<Value>;
    using Offset = std::conditional_t<Width == 1, int64_t, unsigned>; /* vectors come with slices of less than 4 GiB */
    constexpr int columns = tile_width<Lanes> + 1, lines = tile_height<Lanes> + 1, cells = columns * lines;
    constexpr int points_per_thread = points_per_round / threads_per_block;

    __shared__ tile_point<Real> sorted[points_per_round + 1]; /* one more: points are read in pairs */
    __shared__ cell_counts<cells> counts;
    __shared__ unsigned short begins[cells + 1];
    __shared__ level levels[MSDA_MAX_LEVELS + 1];
    load_levels(p, levels);

    const int64_t slices = int64_t(p.batch) * p.heads;
    const int channel_tiles = (p.head_dim + Lanes * Width - 1) / (Lanes * Width);
    const int64_t tasks = bins * slices * channel_tiles;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int team = threadIdx.x / Lanes;
    const int pixel_x = team * 2 % tile_width<Lanes>, pixel_y = team * 2 / tile_width<Lanes>;
    const Offset row_bytes = Offset(p.grad_output.row * int64_t(sizeof(Value)));

    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        /* Tiles of a level and slice vary fastest, levels slowest. */
        int64_t rest = task / channel_tiles;
        const int channel = int(task % channel_tiles) * Lanes * Width + threadIdx.x % Lanes * Width;
        int at_level = 0, first_of_level, tiles_of_level;
        for (;; ++at_level) {
            const tiled_level &candidate = t.levels[at_level];
            first_of_level = max(candidate.first_bin, first_bin);
            tiles_of_level = max(
                min(candidate.first_bin + candidate.tiles_x * candidate.tiles_y, first_bin + bins) - first_of_level, 0);
            if (rest < tiles_of_level * slices)
                break;
            rest -= tiles_of_level * slices;
        }
        const tiled_level &tiles = t.levels[at_level];
        const int bin = first_of_level + int(rest % tiles_of_level);
        const int64_t slice = rest / tiles_of_level;
        const int n = int(slice / p.heads), m = int(slice % p.heads);
        const int l = tiles.level;
        const int origin_x = (bin - tiles.first_bin) % tiles.tiles_x * tile_width<Lanes>;
        const int origin_y = (bin - tiles.first_bin) / tiles.tiles_x * tile_height<Lanes>;
        const bool has_channels = channel < p.head_dim;

        const unsigned *bounds = scratch.begins + slice * (bins + 1) + (bin - first_bin);
        const unsigned begin = bounds[0], count = bounds[1] - begin;
        const unsigned *list = scratch.list + slice * t.list_length + begin;
        const head<Point> points_of_slice = open_slice<F, Point>(p, n, m);
        const Value *grad_output =
            static_cast<const Value *>(p.t.grad_output) + p.grad_output(n, 0, m) + (has_channels ? channel : 0);
        Real sum[2][Width] = {};

        /*
         * Each round takes eight neighbours of the list out of every eight times `rounds`, so that its points are spread
         * over the tile and keep all teams busy.
         */
        const unsigned rounds = (count + points_per_round - 1) / points_per_round;
        for (unsigned round = 0; round < rounds; ++round) {
            const int loads =
                int(((count + 7) / 8 + rounds - 1) / rounds * 8 + threads_per_block - 1) / threads_per_block;
            clear(counts);

            unsigned number[points_per_thread];
            given_point<Real> given[points_per_thread];
            tile_point<Real> mine[points_per_thread];
            int cell[points_per_thread], rank[points_per_thread];
#pragma unroll
            for (int i = 0; i < points_per_thread; ++i) {
                const unsigned slot = unsigned(warp * loads + i) * 32 + lane;
                const unsigned entry = ((slot / 8) * rounds + round) * 8 + slot % 8;
                number[i] = i < loads && entry < count ? list[entry] : ~0u;
            }
#pragma unroll
            for (int i = 0; i < points_per_thread; ++i) {
                const int q = int(number[i] >> t.log2_points), k = int(number[i] & ((1u << t.log2_points) - 1));
                given[i] = number[i] == ~0u ? nowhere<Real>() : load_point<F>(open_head<F>(p, points_of_slice, q), k);
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
                    const Real bottom = at.weight * at.fraction_y;
                    mine[i] = {at.fraction_x, at.weight * (Real(1) - at.fraction_y), bottom, unsigned(q)};
                    cell[i] = (at.line - origin_y + 1) * columns + at.column - origin_x + 1;
                }
                rank[i] = int(take_numbers(counts.of[warp], cell[i]));
            }
            find_begins(counts, begins);
#pragma unroll
            for (int i = 0; i < points_per_thread; ++i)
                if (cell[i] >= 0)
                    sorted[begins[cell[i]] + counts.of[warp][cell[i]] + rank[i]] = mine[i];
            __syncthreads();

            /* Pixels x, x + 1 of line y are corners of the points in cells x - 1 .. x + 1 of lines y - 1 and y. */
            const auto load_row = [&](const tile_point<Real> &at) {
                return load_raw<Value, Width>(reinterpret_cast<const Value *>(reinterpret_cast<uintptr_t>(grad_output) +
                                                                              Offset(at.query) * row_bytes));
            };
#pragma unroll
            for (int side = 0; side < 6; ++side) {
                const int above = side / 3 == 0, column = side % 3; /* of the cell: line y - 1 or y; x - 1 + column */
                const bool one_corner = is_set<F>(p.discrete);      /* then only corner 00 counts */
                if (one_corner && above)
                    continue;
                const int own_cell = (pixel_y + 1 - above) * columns + pixel_x + column;
                const auto add = [&](const tile_point<Real> &at, const raw<Value, Width> &row) {
                    const unpacked<Value, Width> g = unpack<Value, Width>(row);
                    const Real weight = above ? at.bottom : at.top;
                    const Real right = weight * at.fraction_x, left = weight * (Real(1) - at.fraction_x);
#pragma unroll
                    for (int c = 0; c < Width; ++c) {
                        if (column == 1 || (column == 0 && !one_corner))
                            sum[0][c] = fma(column == 0 ? right : left, g.at[c], sum[0][c]);
                        if (column == 2 || (column == 1 && !one_corner))
                            sum[1][c] = fma(column == 1 ? right : left, g.at[c], sum[1][c]);
                    }
                };
                const int end = begins[own_cell + 1];
                for (int e = begins[own_cell]; e < end; e += 2) {
                    const tile_point<Real> first = sorted[e], second = sorted[e + 1];
                    const bool both = e + 1 < end;
                    const raw<Value, Width> first_row = load_row(first), second_row = load_row(both ? second : first);
                    add(first, first_row);
                    if (both)
                        add(second, second_row);
                }
            }
            __syncthreads();
        }

        const level &own_level = levels[l];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int x = origin_x + pixel_x + i, y = origin_y + pixel_y;
            if (!has_channels || x >= own_level.width || y >= own_level.height)
                continue;
            const int64_t row = own_level.start + int64_t(y) * own_level.width + x;
            Sum *to = static_cast<Sum *>(p.t.grad_value) + p.grad_value(n, row, m) + channel;
            real_of<Sum> result[Width];
#pragma unroll
            for (int c = 0; c < Width; ++c)
                result[c] = p.add ? widen(to[c]) + sum[i][c] : sum[i][c];
            store<Sum, Width>(to, result);
        }
    }
}

} // namespace msda

#endif
