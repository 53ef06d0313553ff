/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Points sorted by where they lie, for the two ways to sum grad_value that want them so. Levels are cut into tiles; each
 * slice (a batch item and head) gets a list of its points, tile by tile, within a tile in the order of the queries:
 *   1. count:      how many points of each chunk of queries fall into each tile,
 *   2. scan:       where each (tile, chunk) begins in the list,
 *   3. distribute: the points' numbers.
 * The list depends on the data alone: no order of execution shows in it.
 *
 * Tiles are of cells: the cell of a point is its corner 00, one pixel further out than the level at the top and left.
 * With Halo they are of pixels, and a point belongs to every tile (at most four) that holds one of its corners.
 */
#ifndef MSDA_BACKWARD_BINS_CUH
#define MSDA_BACKWARD_BINS_CUH

#include "launch.cuh"

namespace msda
{

constexpr int warps_per_block = threads_per_block / 32;
constexpr int bins_at_once = 1280; /* tiles that one pass counts in 40 KiB of shared memory, which every device has */
constexpr int64_t points_per_chunk = 4096; /* roughly; a chunk is whole queries, eight at least */
constexpr int points_per_round = 1024;     /* that a block sorts at once: four a thread */

/* The tiles of one level; levels are listed with the most points a tile first, so that long tiles start early. */
struct tiled_level {
    int level; /* index of params.levels */
    int log2_width, log2_height;
    int tiles_x, tiles_y;
    int first_bin;
};

struct tiling {
    int bins;        /* tiles of a slice */
    int log2_points; /* a point's number is query << log2_points | k */
    int queries;     /* of one pass: their points' numbers fit 30 bits */
    int queries_per_chunk, chunks;
    int64_t list_length; /* of a slice: four tiles a point at most */
    tiled_level levels[MSDA_MAX_LEVELS];
};

/* Device memory of the lists. */
struct bin_scratch {
    unsigned *offsets;   /* [slice][chunk][bin of the pass]: counts, then where in the list they go */
    unsigned *begins;    /* [slice][bin of the pass] + 1: where a bin's part of the list begins */
    unsigned *list;      /* [slice][list_length]: numbers of points */
    void *point_bins;    /* [slice][query][k]: point_bins */
    const void *softmax; /* fused: softmax_state[n][q][m] */
};

/*
 * size_of(level) -> {log2 width, log2 height} of its tiles. `halo` adds the column and line of cells that begin outside the
 * level, `copies` is how many tiles a point may belong to.
 */
template <class SizeOf> tiling make_tiling(const msda_shape &shape, bool halo, const SizeOf &size_of)
{
    tiling t = {};
    while ((int64_t(1) << t.log2_points) < shape.num_points)
        ++t.log2_points;
    const int query_bits = t.log2_points < 30 ? 30 - t.log2_points : 0;
    const int64_t most = int64_t(1) << (query_bits < 24 ? query_bits : 24);
    t.queries = int(most < shape.p.queries ? most : shape.p.queries);
    t.list_length = (halo ? 4 : 1) * int64_t(t.queries) * shape.num_points;
    double load[MSDA_MAX_LEVELS]; /* points a tile, as if they were spread evenly */
    const int count = shape.p.num_levels, outside = halo ? 0 : 1;
    for (int l = 0; l < count; ++l) {
        const msda_level &from = shape.p.levels[l];
        tiled_level to = {l};
        size_of(from, to.log2_width, to.log2_height);
        to.tiles_x = ((from.width + outside - 1) >> to.log2_width) + 1;
        to.tiles_y = ((from.height + outside - 1) >> to.log2_height) + 1;
        const double own = double(from.points) / (double(to.tiles_x) * to.tiles_y);
        int at = l;
        for (; at > 0 && load[at - 1] < own; --at) {
            t.levels[at] = t.levels[at - 1];
            load[at] = load[at - 1];
        }
        t.levels[at] = to;
        load[at] = own;
    }
    for (int l = 0; l < count; ++l) {
        t.levels[l].first_bin = t.bins;
        t.bins += t.levels[l].tiles_x * t.levels[l].tiles_y;
    }
    const int64_t per_warp = points_per_chunk / (warps_per_block * shape.num_points);
    t.queries_per_chunk = warps_per_block * int(per_warp > 1 ? per_warp : 1);
    t.chunks = (t.queries + t.queries_per_chunk - 1) / t.queries_per_chunk;
    return t;
}

inline int bins_of_pass(const tiling &t)
{
    return t.bins < bins_at_once ? t.bins : bins_at_once;
}

/* ---- steps 1 and 3 --------------------------------------------------------------------------------------------- */

/* Tiles that a point may belong to. */
template <bool Halo> constexpr int most_bins = Halo ? 4 : 1;

/* The tiles that a point belongs to, as bins of the pass; no_bin where it has fewer. */
constexpr unsigned short no_bin = 0xffff;

template <bool Halo> struct alignas(2 * most_bins<Halo>) point_bins {
    unsigned short of[most_bins<Halo>];
};

template <bool Halo, class Real>
__device__ __forceinline__ point_bins<Halo> find_bins(const tiled_level &tiles, const level &l,
                                                      const point<Real, int64_t> &at, int first_bin, int bins)
{
    const auto in_pass = [&](bool counts, int bin) {
        return counts && unsigned(bin - first_bin) < unsigned(bins) ? (unsigned short)(bin - first_bin) : no_bin;
    };
    const bool counts = at.inside != 0;
    if constexpr (Halo) {
        const int left = max(at.column, 0) >> tiles.log2_width,
                  right = min(at.column + 1, l.width - 1) >> tiles.log2_width;
        const int top = max(at.line, 0) >> tiles.log2_height,
                  bottom = min(at.line + 1, l.height - 1) >> tiles.log2_height;
        const int bin = tiles.first_bin + top * tiles.tiles_x + left;
        return {in_pass(counts, bin), in_pass(counts && right > left, bin + 1),
                in_pass(counts && bottom > top, bin + tiles.tiles_x),
                in_pass(counts && bottom > top && right > left, bin + tiles.tiles_x + 1)};
    } else {
        const int column = (at.column + 1) >> tiles.log2_width, line = (at.line + 1) >> tiles.log2_height;
        return {in_pass(counts, tiles.first_bin + line * tiles.tiles_x + column)};
    }
}

/*
 * Numbers for the lanes of a warp, from the counter of the slot that each names: lanes that name the same slot get
 * consecutive ones, in the order of the lanes. A negative slot names none, and its lane gets no number.
 */
template <class Count> __device__ __forceinline__ unsigned take_numbers(Count *counters, int slot)
{
    const unsigned same = __match_any_sync(~0u, slot);
    const unsigned before = __popc(same & ((1u << threadIdx.x % 32) - 1));
    unsigned first = 0;
    if (slot >= 0)
        first = counters[slot];
    __syncwarp();
    if (slot >= 0 && before == 0)
        counters[slot] = Count(first + __popc(same));
    __syncwarp();
    return first + before;
}

/* A chunk's share of a warp: a run of whole queries. */
struct warp_share {
    int first_query;
    unsigned points;
    int64_t slice;
};

__device__ __forceinline__ warp_share share_of(const params &p, const tiling &t, int n, int m, int chunk)
{
    const int queries_per_warp = t.queries_per_chunk / warps_per_block;
    const int first_query = chunk * t.queries_per_chunk + int(threadIdx.x) / 32 * queries_per_warp;
    const int queries = max(0, min(queries_per_warp, p.queries - first_query));
    return {first_query, unsigned(queries) * unsigned(p.num_points), int64_t(n) * p.heads + m};
}

/* Counts each warp's points by bin in shared memory: counts[warp][bin]. bins_of(i) are those of the warp's i-th point. */
template <bool Halo, class BinsOf>
__device__ __forceinline__ void count_points(unsigned *counts, int bins, unsigned points, const BinsOf &bins_of)
{
    for (int i = threadIdx.x; i < warps_per_block * bins; i += threads_per_block)
        counts[i] = 0;
    __syncthreads();
    unsigned *own_counts = counts + int(threadIdx.x) / 32 * bins;
    for (unsigned i = threadIdx.x % 32; i < points; i += 32) {
        const point_bins<Halo> in = bins_of(i);
#pragma unroll
        for (int j = 0; j < most_bins<Halo>; ++j)
            if (in.of[j] != no_bin)
                atomicAdd(own_counts + in.of[j], 1u);
    }
    __syncthreads();
}

/* Step 1. One block: one slice and chunk of queries. */
template <class Point, bool Halo, form F>
__global__ void __launch_bounds__(threads_per_block)
    count_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t, const bin_scratch scratch,
                 int first_bin, int bins)
{
    using Real = real_of<Point>;
    extern __shared__ unsigned counts[];
    __shared__ level levels[MSDA_MAX_LEVELS + 1];
    __shared__ tiled_level tiles[MSDA_MAX_LEVELS]; /* by index of params.levels */
    for (int l = threadIdx.x; l < p.num_levels; l += blockDim.x)
        tiles[t.levels[l].level] = t.levels[l];
    load_levels(p, levels);

    for (int n = blockIdx.z; n < p.batch; n += gridDim.z)
        for (int m = blockIdx.y; m < p.heads; m += gridDim.y)
            for (int chunk = blockIdx.x; chunk < t.chunks; chunk += gridDim.x) {
                const warp_share share = share_of(p, t, n, m, chunk);
                const head<Point> points_of_slice = open_slice<F, Point>(p, n, m);
                point_bins<Halo> *point_bins_of_share = static_cast<point_bins<Halo> *>(scratch.point_bins) +
                                                        (share.slice * t.queries + share.first_query) * p.num_points;

                count_points<Halo>(counts, bins, share.points, [&](unsigned i) {
                    const unsigned query =
                        p.point_multiplier ? __umulhi(i, p.point_multiplier) : i / unsigned(p.num_points);
                    const int k = int(i - query * unsigned(p.num_points));
                    const int l = level_of(p, levels, k);
                    const int q = share.first_query + int(query);
                    const head<Point> h = open_head<F>(p, points_of_slice, q);
                    const auto at = place_point<F, int64_t>(p, levels, h, l, k, load_point<F>(h, k));
                    return point_bins_of_share[i] = find_bins<Halo>(tiles[l], levels[l], at, first_bin, bins);
                });

                unsigned *offsets = scratch.offsets + (share.slice * t.chunks + chunk) * bins;
                for (int bin = threadIdx.x; bin < bins; bin += threads_per_block) {
                    unsigned sum = 0;
                    for (int w = 0; w < warps_per_block; ++w)
                        sum += counts[w * bins + bin];
                    offsets[bin] = sum;
                }
                __syncthreads();
            }
}

/* Step 3. The same blocks write the numbers of their points, each warp's behind those of the warps before it. */
template <bool Halo>
__global__ void __launch_bounds__(threads_per_block)
    distribute_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t, const bin_scratch scratch,
                      int bins)
{
    extern __shared__ unsigned counts[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int n = blockIdx.z; n < p.batch; n += gridDim.z)
        for (int m = blockIdx.y; m < p.heads; m += gridDim.y)
            for (int chunk = blockIdx.x; chunk < t.chunks; chunk += gridDim.x) {
                const warp_share share = share_of(p, t, n, m, chunk);
                const point_bins<Halo> *point_bins_of_share =
                    static_cast<const point_bins<Halo> *>(scratch.point_bins) +
                    (share.slice * t.queries + share.first_query) * p.num_points;
                count_points<Halo>(counts, bins, share.points, [&](unsigned i) { return point_bins_of_share[i]; });

                const unsigned *offsets = scratch.offsets + (share.slice * t.chunks + chunk) * bins;
                for (int bin = threadIdx.x; bin < bins; bin += threads_per_block) {
                    unsigned at = offsets[bin];
                    for (int w = 0; w < warps_per_block; ++w) {
                        const unsigned count = counts[w * bins + bin];
                        counts[w * bins + bin] = at;
                        at += count;
                    }
                }
                __syncthreads();

                unsigned *own_offsets = counts + warp * bins;
                unsigned *list = scratch.list + share.slice * t.list_length;
                const auto load = [&](unsigned i) {
                    point_bins<Halo> in;
#pragma unroll
                    for (int j = 0; j < most_bins<Halo>; ++j)
                        in.of[j] = no_bin;
                    return i < share.points ? point_bins_of_share[i] : in;
                };
                point_bins<Halo> next = load(lane);
                for (unsigned round = 0; round < share.points; round += 32) {
                    const unsigned i = round + lane;
                    const point_bins<Halo> in = next;
                    next = load(i + 32);
                    const unsigned query =
                        p.point_multiplier ? __umulhi(i, p.point_multiplier) : i / unsigned(p.num_points);
                    const unsigned number =
                        (unsigned(share.first_query) + query) << t.log2_points | (i - query * unsigned(p.num_points));
#pragma unroll
                    for (int j = 0; j < most_bins<Halo>; ++j) {
                        const int bin = in.of[j] == no_bin ? -1 : int(in.of[j]);
                        if (!__any_sync(~0u, bin >= 0))
                            continue;
                        const unsigned at = take_numbers(own_offsets, bin);
                        if (bin >= 0)
                            list[at] = number;
                    }
                }
                __syncthreads();
            }
}

/* ---- step 2 ---------------------------------------------------------------------------------------------------- */

/* Exclusive prefix sum over a block's `x`; *total receives the sum. */
template <int Threads> __device__ __forceinline__ unsigned scan_block(unsigned x, unsigned *total)
{
    __shared__ unsigned warp_sums[Threads / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned inclusive = x;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const unsigned below = __shfl_up_sync(~0u, inclusive, distance);
        inclusive += lane >= distance ? below : 0;
    }
    if (lane == 31)
        warp_sums[warp] = inclusive;
    __syncthreads();
    unsigned before = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < Threads / 32; ++w) {
        before += w < warp ? warp_sums[w] : 0;
        sum += warp_sums[w];
    }
    __syncthreads();
    *total = sum;
    return before + inclusive - x;
}

constexpr int scan_threads = 1024;

/* One block a slice, one thread a bin: counts of chunks become offsets into the slice's list. */
static __global__ void __launch_bounds__(scan_threads)
    scan_kernel(const __grid_constant__ tiling t, const bin_scratch scratch, int64_t slices, int bins)
{
    for (int64_t slice = blockIdx.x; slice < slices; slice += gridDim.x) {
        unsigned *begins = scratch.begins + slice * (bins + 1);
        unsigned carry = 0;
        for (int first = 0; first < bins; first += scan_threads) {
            const int bin = first + threadIdx.x;
            unsigned *offsets = scratch.offsets + slice * t.chunks * bins + bin;
            unsigned sum = 0, total;
#pragma unroll 8
            for (int chunk = 0; chunk < t.chunks; ++chunk)
                sum += bin < bins ? offsets[int64_t(chunk) * bins] : 0;
            unsigned at = carry + scan_block<scan_threads>(sum, &total);
            carry += total;
            if (bin >= bins)
                continue;
            begins[bin] = at;
#pragma unroll 8
            for (int chunk = 0; chunk < t.chunks; ++chunk) {
                const unsigned count = offsets[int64_t(chunk) * bins];
                offsets[int64_t(chunk) * bins] = at;
                at += count;
            }
        }
        if (threadIdx.x == 0)
            if (threadIdx.x == 0)
                begins[bins] = carry;
    }
}

/* ---- a round of points, sorted by cell in shared memory --------------------------------------------------------- */

/* How many points each warp of a block has in each cell; after find_begins(), where they begin within the cell. */
template <int Cells> struct cell_counts {
    unsigned short of[warps_per_block][Cells];
};

template <int Cells> __device__ __forceinline__ void clear(cell_counts<Cells> &counts)
{
    for (int i = threadIdx.x; i < warps_per_block * Cells; i += threads_per_block)
        (&counts.of[0][0])[i] = 0;
    __syncthreads();
}

/* begins[c]: the points in cells before c; begins[Cells]: all. A block calls this together, its warps' counts complete. */
template <int Cells>
__device__ __forceinline__ void find_begins(cell_counts<Cells> &counts, unsigned short (&begins)[Cells + 1])
{
    __syncthreads();
    unsigned before = 0;
    for (int first = 0; first < Cells; first += threads_per_block) {
        const int cell = first + threadIdx.x;
        unsigned in_cell = 0, total;
        if (cell < Cells)
#pragma unroll
            for (int w = 0; w < warps_per_block; ++w) {
                const unsigned of_warp = counts.of[w][cell];
                counts.of[w][cell] = (unsigned short)in_cell;
                in_cell += of_warp;
            }
        const unsigned begin = before + scan_block<threads_per_block>(in_cell, &total);
        if (cell < Cells)
            begins[cell] = (unsigned short)begin;
        before += total;
    }
    if (threadIdx.x == 0)
        begins[Cells] = (unsigned short)before;
    __syncthreads();
}

} // namespace msda

#endif
