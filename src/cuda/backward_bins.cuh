/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Points sorted by where they lie. Levels are cut into tiles of cells; the cell of a point is its corner 00, one pixel
 * further out than the level at the top and left. Each slice (a batch item and head) has its points in chunks, in the order
 * of the queries; a thread block places a chunk's points and writes them down tile by tile, with a table of where each
 * tile begins. What the sums need of a point is in its record, so that nobody places it again, and no order of execution
 * shows in the list.
 */
#ifndef MSDA_BACKWARD_BINS_CUH
#define MSDA_BACKWARD_BINS_CUH

#include "launch.cuh"

namespace msda
{

constexpr int warps_per_block = threads_per_block / 32;
constexpr int bins_at_once = 2560; /* tiles that one pass counts in 40 KiB of shared memory, which every device has */
constexpr int cell_bits = 8;

/* A point as the sums need it. Its corners' weights are left and right, each times (1 - fraction_y) and fraction_y. */
template <class Real> struct alignas(16) point_record {
    Real left, right, fraction_y;
    unsigned number; /* query << cell_bits | cell within the tile */
};

template <class Real> constexpr int points_per_chunk = int(32768 / sizeof(point_record<Real>));

/* The tiles of one level; levels are listed with the most points a tile first, so that long tiles start early. */
struct tiled_level {
    int level; /* index of params.levels */
    int log2_width, log2_height;
    int tiles_x, tiles_y;
    int first_bin;
    int first_seam; /* see backward_tiles.cuh */
};

struct tiling {
    int bins;    /* tiles of a slice */
    int queries; /* of one pass: their numbers fit a record */
    int chunks;  /* of a slice and pass */
    int seams;   /* of a slice */
    tiled_level levels[MSDA_MAX_LEVELS];
};

/* Device memory of the lists. */
struct bin_scratch {
    unsigned short *begins; /* [slice][chunk][bin of the pass, and one more]: where a bin begins in the chunk */
    void *records;          /* [slice][chunk][points_per_chunk]: point_record, bin by bin */
    void *seams;            /* [slice][seam][head_dim]: sums; see backward_tiles.cuh */
    const void *softmax;    /* fused: softmax_state[n][q][m] */

    /* Those of a slice. */
    __device__ __forceinline__ unsigned short *begins_of(const tiling &t, unsigned slice, int bins) const
    {
        return begins + uint64_t(slice) * unsigned(t.chunks * (bins + 1));
    }
    template <class Real>
    __device__ __forceinline__ point_record<Real> *records_of(const tiling &t, unsigned slice) const
    {
        return static_cast<point_record<Real> *>(records) +
               uint64_t(slice) * unsigned(t.chunks * points_per_chunk<Real>);
    }
};

/* Tiles of at most 1 << log2_most_cells cells, and about most_points points if these were spread evenly. */
template <class Real> tiling make_tiling(const msda_shape &shape, int log2_most_cells, int most_points)
{
    tiling t = {};
    /* Numbers of 32 bits, the last of which names no point. */
    const int64_t most_queries = std::min((int64_t(1) << (32 - cell_bits)) - 1, (int64_t(1) << 30) / shape.num_points);
    t.queries = int(std::max(int64_t(1), std::min(most_queries, int64_t(shape.p.queries))));
    t.chunks = int((t.queries * shape.num_points + points_per_chunk<Real> - 1) / points_per_chunk<Real>);
    double load[MSDA_MAX_LEVELS]; /* points a tile */
    for (int l = 0; l < shape.p.num_levels; ++l) {
        const msda_level &from = shape.p.levels[l];
        const double per_cell = double(shape.p.queries) * from.points / (double(from.width) * from.height);
        int cells = log2_most_cells;
        while (cells > 0 && per_cell * (1 << cells) > most_points)
            --cells;
        tiled_level to = {l};
        to.log2_width = (cells + 1) / 2;
        to.log2_height = cells / 2;
        to.tiles_x = (from.width >> to.log2_width) + 1;
        to.tiles_y = (from.height >> to.log2_height) + 1;
        const double own = double(from.points) / (double(to.tiles_x) * to.tiles_y);
        int at = l;
        for (; at > 0 && load[at - 1] < own; --at) {
            t.levels[at] = t.levels[at - 1];
            load[at] = load[at - 1];
        }
        t.levels[at] = to;
        load[at] = own;
    }
    for (int l = 0; l < shape.p.num_levels; ++l) {
        tiled_level &own = t.levels[l];
        own.first_bin = t.bins;
        own.first_seam = t.seams;
        t.bins += own.tiles_x * own.tiles_y;
        t.seams += own.tiles_x * own.tiles_y * 2 * ((1 << own.log2_width) + (1 << own.log2_height));
    }
    return t;
}

inline int bins_of_pass(const tiling &t)
{
    return t.bins < bins_at_once ? t.bins : bins_at_once;
}

/* A batch item and head. The blocks along y of a launch are consecutive slices. */
struct slice_index {
    int batch, head;

    __host__ __device__ __forceinline__ slice_index next(int heads, unsigned count) const
    {
        const unsigned sum = unsigned(head) + count;
        return {batch + int(sum / unsigned(heads)), int(sum % unsigned(heads))};
    }
    /* Of all slices. 32 bits do: every slice has a chunk of records. */
    __device__ __forceinline__ unsigned number(int heads) const
    {
        return unsigned(batch) * unsigned(heads) + unsigned(head);
    }
};

/* The sum of `x` over the lanes of a warp up to this one. */
__device__ __forceinline__ unsigned scan_warp(unsigned x)
{
#pragma unroll
    for (unsigned distance = 1; distance < 32; distance *= 2) {
        const unsigned below = __shfl_up_sync(~0u, x, distance);
        x += threadIdx.x % 32 >= distance ? below : 0;
    }
    return x;
}

/* The sum of `x` over the threads of a block before this one; *total receives that of all. */
__device__ __forceinline__ unsigned scan_block(unsigned x, unsigned *total)
{
    __shared__ unsigned warp_sums[warps_per_block];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned inclusive = scan_warp(x);
    if (lane == 31)
        warp_sums[warp] = inclusive;
    __syncthreads();
    unsigned before = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < warps_per_block; ++w) {
        before += w < warp ? warp_sums[w] : 0;
        sum += warp_sums[w];
    }
    __syncthreads();
    *total = sum;
    return before + inclusive - x;
}

/*
 * Numbers for the lanes of a warp, from the counter of the bin that each names: lanes that name the same bin get
 * consecutive ones, in the order of the lanes. A negative bin names none, and its lane's number means nothing.
 */
__device__ __forceinline__ unsigned take_numbers(unsigned short *counters, int bin)
{
    const unsigned same = __match_any_sync(~0u, bin);
    const unsigned before = __popc(same & ((1u << threadIdx.x % 32) - 1));
    unsigned first = 0;
    if (bin >= 0)
        first = counters[bin];
    __syncwarp();
    if (bin >= 0 && before == 0)
        counters[bin] = (unsigned short)(first + __popc(same));
    __syncwarp();
    return first + before;
}

/*
 * counts[warp][bin] of a block's warps become where each warp's points of the bin begin; begins[bin], and begins[bins],
 * where the bin does. Returns the number of all points. Needs a __syncthreads() before and after.
 */
__device__ __forceinline__ unsigned find_begins(unsigned short *counts, unsigned short *begins, int bins)
{
    unsigned all = 0;
    for (int first = 0; first < bins; first += threads_per_block) {
        const int bin = first + threadIdx.x;
        unsigned of_warp[warps_per_block], in_bin = 0, total;
#pragma unroll
        for (int w = 0; w < warps_per_block; ++w) {
            of_warp[w] = bin < bins ? counts[w * bins + bin] : 0;
            in_bin += of_warp[w];
        }
        unsigned begin = all + scan_block(in_bin, &total);
        if (bin < bins) {
            begins[bin] = (unsigned short)begin;
#pragma unroll
            for (int w = 0; w < warps_per_block; ++w) {
                counts[w * bins + bin] = (unsigned short)begin;
                begin += of_warp[w];
            }
        }
        all += total;
    }
    if (threadIdx.x == 0)
        begins[bins] = (unsigned short)all;
    return all;
}

/* Dynamic shared memory of sort_points_kernel: the counts, and in their place the chunk's records. */
template <class Real> size_t sort_memory(int bins)
{
    return std::max(size_t(warps_per_block) * bins * sizeof(unsigned short),
                    points_per_chunk<Real> * sizeof(point_record<Real>));
}

/* One block: one slice and chunk. p.queries are those of the pass, the first of them is first_query of all_queries. */
template <class Point, form F>
__global__ void __launch_bounds__(threads_per_block, F == form::plain && sizeof(Point) < 8 ? 3 : 2)
    sort_points_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t, const bin_scratch scratch,
                       int64_t all_queries, int64_t first_query, slice_index first_slice, int first_bin, int bins)
{
    using Real = real_of<Point>;
    using Record = point_record<Real>;
    constexpr int per_chunk = points_per_chunk<Real>, per_thread = per_chunk / threads_per_block;
    extern __shared__ uint4 memory[];
    unsigned short *const counts = reinterpret_cast<unsigned short *>(memory);
    Record *const sorted = reinterpret_cast<Record *>(memory);
    __shared__ level levels[MSDA_MAX_LEVELS + 1];
    __shared__ tiled_level tiles[MSDA_MAX_LEVELS]; /* by index of params.levels */
    for (int l = threadIdx.x; l < p.num_levels; l += blockDim.x)
        tiles[t.levels[l].level] = t.levels[l];
    load_levels(p, levels);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned points = unsigned(p.queries) * unsigned(p.num_points), num_points = unsigned(p.num_points);

    const slice_index own_slice = first_slice.next(p.heads, blockIdx.y);
    const int n = own_slice.batch, m = own_slice.head;
    const unsigned slice = own_slice.number(p.heads);
    const int chunk = int(blockIdx.x);
    const head<Point> points_of_slice = open_slice<F, Point>(p, n, m);
    for (int i = threadIdx.x; i < warps_per_block * bins; i += threads_per_block)
        counts[i] = 0;

    const unsigned first = unsigned(chunk) * per_chunk + unsigned(warp) * 32 * per_thread;
    const unsigned whole = first / num_points, rest = first - whole * num_points;
    int query[per_thread], k[per_thread];
    given_point<Real> given[per_thread];
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
        const unsigned from = rest + unsigned(i * 32 + lane);
        const unsigned more = p.point_multiplier ? __umulhi(from, p.point_multiplier) : from / num_points;
        k[i] = int(from - more * num_points);
        query[i] = int(whole + more);
        const bool present = first + unsigned(i * 32 + lane) < points;
        given[i] = present ? load_point<F>(open_head<F>(p, points_of_slice, query[i]), k[i]) : nowhere<Real>();
        if (!present)
            query[i] = 0;
    }
    __syncthreads();

    Record mine[per_thread];
    unsigned place[per_thread]; /* rank << 16 | bin */
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
        const int l = level_of(p, levels, k[i]);
        head<Point> h = open_head<F>(p, points_of_slice, query[i]);
        if (is_fused<F>(p))
            h.softmax = static_cast<const softmax_state<Real> *>(
                scratch.softmax)[(n * all_queries + first_query + query[i]) * p.heads + m];
        const auto at = place_point<F, int64_t>(p, levels, h, l, k[i], given[i]);
        const tiled_level &own = tiles[l];
        const int column = at.column + 1, line = at.line + 1;
        const int cell =
            (line & ((1 << own.log2_height) - 1)) << own.log2_width | (column & ((1 << own.log2_width) - 1));
        mine[i].right = at.weight * at.fraction_x;
        mine[i].left = at.weight * (Real(1) - at.fraction_x);
        mine[i].fraction_y = at.fraction_y;
        mine[i].number = unsigned(query[i]) << cell_bits | unsigned(cell);
        int bin = own.first_bin + (line >> own.log2_height) * own.tiles_x + (column >> own.log2_width) - first_bin;
        if (at.inside == 0 || unsigned(bin) >= unsigned(bins))
            bin = -1;
        place[i] = take_numbers(counts + warp * bins, bin) << 16 | (unsigned(bin) & 0xffffu);
    }
    __syncthreads();
    const unsigned all = find_begins(counts, scratch.begins_of(t, slice, bins) + unsigned(chunk * (bins + 1)), bins);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < per_thread; ++i)
        if ((place[i] & 0xffffu) != 0xffffu)
            place[i] = counts[warp * bins + int(place[i] & 0xffffu)] + (place[i] >> 16);
        else
            place[i] = ~0u;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < per_thread; ++i)
        if (place[i] != ~0u)
            sorted[place[i]] = mine[i];
    __syncthreads();
    Record *records = scratch.records_of<Real>(t, slice) + unsigned(chunk * per_chunk);
    for (unsigned i = threadIdx.x; i < all; i += threads_per_block)
        records[i] = sorted[i];
    __syncthreads();
}

} // namespace msda

#endif
