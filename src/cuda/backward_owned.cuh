/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grad_value without atomics: every pixel has an owner that sums all its contributions in a fixed order and writes it
 * once. Levels are cut into tiles of pixels; a point belongs to every tile (at most four) that holds one of its corners.
 *
 *   1. count:      how many points of each chunk of queries fall into each tile,
 *   2. scan:       where each (tile, chunk) begins in the list of points,
 *   3. distribute: the numbers of the points, tile by tile, in the order of the queries,
 *   4. own:        a thread block takes a tile, sorts its points by cell (the pixel of corner 00) in shared memory and lets
 *                  each team of lanes walk the cells around its two pixels, grad_output rows times bilinear weights.
 *
 * All four orders are fixed by the problem's data alone: the same bytes from run to run. Nothing has to be cleared or
 * rounded afterwards, and what is read of grad_output stays in the first-level cache, so that from a few points a pixel on
 * this is also the fastest way. "Slice" is one batch item and head.
 */
#ifndef MSDA_BACKWARD_OWNED_CUH
#define MSDA_BACKWARD_OWNED_CUH

#include "launch.cuh"

namespace msda
{

constexpr int warps_per_block = threads_per_block / 32;
constexpr int bins_at_once = 4096;          /* tiles that one pass counts in shared memory */
constexpr int64_t points_per_chunk = 4096;  /* roughly; a chunk is whole queries, eight at least */
constexpr int points_per_round = 1024;      /* that a block sorts at once: four a thread */

/* The tiles of one level; levels are listed with the most points a tile first, so that long tiles start early. */
struct tiled_level {
    int level;      /* index of params.levels */
    int tiles_x, tiles_y;
    int first_bin;
};

struct tiling {
    int width, height; /* of a tile, pixels */
    int bins;          /* tiles of a slice */
    int queries_per_chunk, chunks;
    int64_t points_capacity; /* list entries of a slice */
    tiled_level levels[MSDA_MAX_LEVELS];
};

/* Device memory of the four steps. */
struct owned_scratch {
    unsigned *offsets; /* [slice][bin of the pass][chunk] + 1: counts, then where they begin */
    unsigned *list;    /* [slice][points_capacity]: query * num_points + k */
    const void *softmax;   /* fused: [n][q][m] softmax_state */
};

/* A team's two pixels lie side by side; tiles are as square as that allows. */
template <int Lanes> constexpr int tile_pixels = 2 * threads_per_block / Lanes;
template <int Lanes> constexpr int tile_width = tile_pixels<Lanes> >= 128 ? 16 : tile_pixels<Lanes> >= 32 ? 8 : 4;
template <int Lanes> constexpr int tile_height = tile_pixels<Lanes> / tile_width<Lanes>;

/* `queries`: as many as one pass takes. */
inline tiling make_tiling(const msda_shape &shape, int64_t queries, int width, int height)
{
    tiling t = {width, height, 0, 0, 0, 4 * queries * shape.num_points, {}};
    double load[MSDA_MAX_LEVELS]; /* points a tile, as if they were spread evenly */
    const int count = shape.p.num_levels;
    for (int l = 0; l < count; ++l) {
        const msda_level &from = shape.p.levels[l];
        const tiled_level to = {l, (from.width + width - 1) / width, (from.height + height - 1) / height, 0};
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
    t.chunks = int((queries + t.queries_per_chunk - 1) / t.queries_per_chunk);
    return t;
}

inline int bins_of_pass(const tiling &t)
{
    return t.bins < bins_at_once ? t.bins : bins_at_once;
}

/* Offsets of a slice, of one pass. */
inline int64_t offsets_of_slice(const tiling &t)
{
    return int64_t(bins_of_pass(t)) * t.chunks + 1;
}

/* ---- steps 1 and 3 --------------------------------------------------------------------------------------------- */

/* Calls visit(bin) for every tile that holds a corner of the point, always in the same order. */
template <class Real, class Visit>
__device__ __forceinline__ void visit_bins(const tiling &t, const tiled_level &tiles, const level &l,
                                           const point<Real, int64_t> &at, const Visit &visit)
{
    const int left = max(at.column, 0) / t.width, right = min(at.column + 1, l.width - 1) / t.width;
    const int top = max(at.line, 0) / t.height, bottom = min(at.line + 1, l.height - 1) / t.height;
    const bool counts = at.inside != 0;
    const int bin = tiles.first_bin + top * tiles.tiles_x + left;
    visit(counts, bin);
    visit(counts && right > left, bin + 1);
    visit(counts && bottom > top, bin + tiles.tiles_x);
    visit(counts && bottom > top && right > left, bin + tiles.tiles_x + 1);
}

/*
 * One block: one slice and chunk of queries; a warp takes a run of the chunk's points, 32 at a time, in order.
 * Distribute false: counts. True: counts again, warp by warp, and writes the points' numbers where step 2 says.
 */
template <class Point, bool Distribute>
__global__ void __launch_bounds__(threads_per_block)
    bin_points_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t, const owned_scratch scratch,
                      int first_bin, int64_t offsets_per_slice)
{
    extern __shared__ unsigned counts[]; /* [warp][bin of the pass] */
    __shared__ level levels[MSDA_MAX_LEVELS + 1];
    __shared__ tiled_level tiles[MSDA_MAX_LEVELS]; /* by index of params.levels */
    for (int l = threadIdx.x; l < p.num_levels; l += blockDim.x)
        tiles[t.levels[l].level] = t.levels[l];
    load_levels(p, levels);

    const int bins = min(t.bins - first_bin, bins_at_once);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t tasks = int64_t(p.batch) * p.heads * t.chunks;
    unsigned *own_counts = counts + warp * bins;

    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        const int chunk = int(task % t.chunks);
        const int64_t slice = task / t.chunks, n = slice / p.heads;
        const int m = int(slice % p.heads);
        const int queries_per_warp = t.queries_per_chunk / warps_per_block;
        const int64_t first_query = int64_t(chunk) * t.queries_per_chunk + warp * queries_per_warp;
        const int64_t queries = max(int64_t(0), min(int64_t(queries_per_warp), p.queries - first_query));
        const unsigned points = unsigned(queries * p.num_points);
        unsigned *offsets = scratch.offsets + slice * offsets_per_slice + chunk;

        for (int i = threadIdx.x; i < warps_per_block * bins; i += threads_per_block)
            counts[i] = 0;
        __syncthreads();

        const auto place = [&](unsigned i, point<real_of<Point>, int64_t> &at) {
            const int64_t q = first_query + i / unsigned(p.num_points);
            const int k = int(i % unsigned(p.num_points));
            const head<Point> h = open_head<Point>(p, n, q, m);
            at = point_of<int64_t>(p, levels, h, k);
            return level_of(p, levels, k);
        };
        for (unsigned i = lane; i < points; i += 32) {
            point<real_of<Point>, int64_t> at;
            const int l = place(i, at);
            visit_bins(t, tiles[l], levels[l], at, [&](bool counts_here, int bin) {
                if (counts_here && unsigned(bin - first_bin) < unsigned(bins))
                    atomicAdd(own_counts + bin - first_bin, 1u);
            });
        }
        __syncthreads();

        /* A thread takes a bin: the block's total, or where each warp begins. */
        for (int bin = threadIdx.x; bin < bins; bin += threads_per_block) {
            unsigned at = Distribute ? offsets[int64_t(bin) * t.chunks] : 0;
            for (int w = 0; w < warps_per_block; ++w) {
                const unsigned count = counts[w * bins + bin];
                if (Distribute)
                    counts[w * bins + bin] = at;
                at += count;
            }
            if (!Distribute)
                offsets[int64_t(bin) * t.chunks] = at;
        }
        __syncthreads();

        if (Distribute) {
            unsigned *list = scratch.list + slice * t.points_capacity;
            for (unsigned round = 0; round < points; round += 32) {
                const unsigned i = round + lane;
                point<real_of<Point>, int64_t> at = no_point<real_of<Point>, int64_t>();
                int l = 0;
                if (i < points)
                    l = place(i, at);
                const unsigned number = unsigned(first_query * p.num_points + i);
                visit_bins(t, tiles[l], levels[l], at, [&](bool counts_here, int bin) {
                    const bool goes = counts_here && unsigned(bin - first_bin) < unsigned(bins);
                    const unsigned going = __ballot_sync(~0u, goes);
                    if (going == 0)
                        return;
                    /* Lanes that go to the same bin follow one another there. */
                    const unsigned same = __match_any_sync(~0u, goes ? bin : -1);
                    const unsigned before = same & ((1u << lane) - 1);
                    unsigned at_bin = 0;
                    if (goes) {
                        at_bin = own_counts[bin - first_bin];
                        list[at_bin + __popc(before)] = number;
                    }
                    __syncwarp();
                    if (goes && before == 0)
                        own_counts[bin - first_bin] = at_bin + __popc(same);
                    __syncwarp();
                });
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
constexpr int scan_items = 8; /* a thread takes this many neighbours at once */

/* One block a slice: counts become offsets, and one more, the total. */
__global__ void __launch_bounds__(scan_threads) scan_kernel(unsigned *offsets, int64_t offsets_per_slice, int64_t length)
{
    unsigned *own = offsets + blockIdx.x * offsets_per_slice;
    unsigned carry = 0;
    for (int64_t base = 0; base < length; base += scan_threads * scan_items) {
        const int64_t first = base + threadIdx.x * scan_items;
        unsigned item[scan_items], sum = 0;
#pragma unroll
        for (int i = 0; i < scan_items; ++i) {
            item[i] = first + i < length ? own[first + i] : 0;
            sum += item[i];
        }
        unsigned total;
        unsigned before = carry + scan_block<scan_threads>(sum, &total);
#pragma unroll
        for (int i = 0; i < scan_items; ++i) {
            if (first + i < length)
                own[first + i] = before;
            before += item[i];
        }
        carry += total;
    }
    if (threadIdx.x == 0)
        own[length] = carry;
}

/* ---- step 4 ---------------------------------------------------------------------------------------------------- */

/* A point as a tile's owner needs it: pixels from the tile's corner, weight, query. */
template <class Real> struct alignas(16) tile_point {
    Real x, y, weight;
    unsigned query;
};

/* How much of a point at distance d along an axis a pixel gets; negative: it is none of the point's corners. */
template <class Real> __device__ __forceinline__ Real hat(Real d)
{
    return Real(1) - fabs(d);
}

/* Lanes, Width as in the gather. Sum: the type of grad_value. */
template <class Value, class Point, class Sum, int Lanes, int Width>
__global__ void __launch_bounds__(threads_per_block)
    own_tiles_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t, const owned_scratch scratch,
                     int first_bin, int64_t offsets_per_slice)
{
    using Real = real_of<Value>;
    constexpr int columns = tile_width<Lanes> + 1, lines = tile_height<Lanes> + 1, cells = columns * lines;
    constexpr int points_per_thread = points_per_round / threads_per_block;

    __shared__ tile_point<Real> sorted[points_per_round];
    __shared__ unsigned short counts[warps_per_block][cells];
    __shared__ unsigned short begins[cells + 3];
    __shared__ level levels[MSDA_MAX_LEVELS + 1];
    load_levels(p, levels);

    const int bins = min(t.bins - first_bin, bins_at_once);
    const int slices = p.batch * p.heads;
    const int channel_tiles = (p.head_dim + Lanes * Width - 1) / (Lanes * Width);
    const int64_t tasks = int64_t(bins) * slices * channel_tiles;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int team = threadIdx.x / Lanes;
    const int pixel_x = team * 2 % tile_width<Lanes>, pixel_y = team * 2 / tile_width<Lanes>;

    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        /* Tiles of a level and slice vary fastest, levels slowest. */
        int64_t rest = task / channel_tiles;
        const int channel = int(task % channel_tiles) * Lanes * Width + threadIdx.x % Lanes * Width;
        int at_level = 0;
        int64_t first_of_level = 0, tiles_of_level;
        for (;; ++at_level) {
            const tiled_level &candidate = t.levels[at_level];
            const int begin = max(candidate.first_bin, first_bin);
            const int end = min(candidate.first_bin + candidate.tiles_x * candidate.tiles_y, first_bin + bins);
            tiles_of_level = max(end - begin, 0);
            if (rest < tiles_of_level * slices) {
                first_of_level = begin;
                break;
            }
            rest -= tiles_of_level * slices;
        }
        const tiled_level &tiles = t.levels[at_level];
        const int bin = int(first_of_level + rest % tiles_of_level);
        const int64_t slice = rest / tiles_of_level, n = slice / p.heads;
        const int m = int(slice % p.heads);
        const level &own_level = levels[tiles.level];
        const int origin_x = (bin - tiles.first_bin) % tiles.tiles_x * tile_width<Lanes>;
        const int origin_y = (bin - tiles.first_bin) / tiles.tiles_x * tile_height<Lanes>;
        const bool has_channels = channel < p.head_dim;

        const unsigned *offsets = scratch.offsets + slice * offsets_per_slice + int64_t(bin - first_bin) * t.chunks;
        const unsigned begin = offsets[0], end = offsets[t.chunks];
        const unsigned *list = scratch.list + slice * t.points_capacity;
        const Value *grad_output = static_cast<const Value *>(p.t.grad_output) + p.grad_output(n, 0, m) + channel;
        Real sum[2][Width] = {};

        for (unsigned round = begin; round < end; round += points_per_round) {
            for (int i = threadIdx.x; i < warps_per_block * cells; i += threads_per_block)
                (&counts[0][0])[i] = 0;
            __syncthreads();

            tile_point<Real> mine[points_per_thread];
            int cell[points_per_thread], rank[points_per_thread];
#pragma unroll
            for (int i = 0; i < points_per_thread; ++i) {
                const unsigned entry = round + warp * 32 * points_per_thread + i * 32 + lane;
                cell[i] = -1;
                if (entry < end) {
                    const unsigned number = list[entry];
                    const unsigned q = number / unsigned(p.num_points);
                    head<Point> h = open_head<Point>(p, n, q, m);
                    if (p.fused)
                        h.softmax = static_cast<const softmax_state<Real> *>(
                            scratch.softmax)[(n * p.queries + q) * p.heads + m];
                    const auto at = point_of<int64_t>(p, levels, h, int(number - q * unsigned(p.num_points)));
                    mine[i] = {Real(at.column - origin_x) + at.fraction_x, Real(at.line - origin_y) + at.fraction_y, at.weight, q};
                    cell[i] = (at.line - origin_y + 1) * columns + at.column - origin_x + 1;
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

            unsigned carry = 0;
            for (int base = 0; base < cells; base += threads_per_block) {
                const int own_cell = base + threadIdx.x;
                unsigned in_cell = 0;
                for (int w = 0; w < warps_per_block && own_cell < cells; ++w) {
                    const unsigned count = counts[w][own_cell];
                    counts[w][own_cell] = (unsigned short)in_cell; /* where this warp's points begin in the cell */
                    in_cell += count;
                }
                unsigned total;
                const unsigned before = scan_block<threads_per_block>(in_cell, &total);
                if (own_cell < cells)
                    begins[own_cell] = (unsigned short)(carry + before);
                carry += total;
            }
            if (threadIdx.x == 0)
                begins[cells] = (unsigned short)carry;
            __syncthreads();

#pragma unroll
            for (int i = 0; i < points_per_thread; ++i)
                if (cell[i] >= 0)
                    sorted[begins[cell[i]] + counts[warp][cell[i]] + rank[i]] = mine[i];
            __syncthreads();

            /* The corner pixels x, x + 1 of line y belong to the cells x - 1 .. x + 1 of lines y - 1 and y. */
#pragma unroll
            for (int line = 0; line < 2; ++line) {
                const int first_cell = (pixel_y + line) * columns + pixel_x;
                const int last = begins[first_cell + 3];
#pragma unroll 4
                for (int e = begins[first_cell]; e < last; ++e) {
                    const tile_point<Real> at = sorted[e];
                    unpacked<Value, Width> g = {};
                    if (has_channels)
                        g = unpack<Value, Width>(
                            load_raw<Value, Width>(grad_output + int64_t(at.query) * p.grad_output.row));
                    const Real along_y = hat(at.y - Real(pixel_y));
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const Real along_x = hat(at.x - Real(pixel_x + i));
                        const Real weight = at.weight * (along_x * along_y);
                        if (along_x > Real(0) && along_y > Real(0))
#pragma unroll
                            for (int c = 0; c < Width; ++c)
                                sum[i][c] = fma(weight, g.at[c], sum[i][c]);
                    }
                }
            }
            __syncthreads();
        }

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
