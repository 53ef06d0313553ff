/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grad_value without atomics, the same bytes from run to run. A thread block takes a tile of cells (backward_bins.cuh):
 *   1. it sorts the tile's points by cell in shared memory, a round of them at a time,
 *   2. cuts each cell's points into runs that teams of lanes sum in registers: for each corner of the cell, weight *
 *      grad_output,
 *   3. and adds up the runs' sums, pixel by pixel and in a fixed order.
 * A pixel that no other tile touches is final then. The others, along the tile's seams, are added up by a last kernel.
 */
#ifndef MSDA_BACKWARD_TILES_CUH
#define MSDA_BACKWARD_TILES_CUH

#include "backward_rounds.cuh"

namespace msda
{

constexpr int log2_most_cells = 6; /* of a tile: 8 x 8 */
constexpr int most_cells = 1 << log2_most_cells;
constexpr int most_pixels = 81;
constexpr int log2_shortest_run = 3;

/* Cells as a tile's pixels see them: `cell_pitch` a line, with a line of none above and below and a column of none aside. */
constexpr int cell_pitch = 10;
constexpr int cell_table = 10 * cell_pitch;

/* Whether there are few points for the pixels: a warp takes a tile then. */
inline bool is_sparse(const msda_shape &shape)
{
    return shape.p.queries * shape.num_points < 2 * shape.p.value_length;
}

template <class Real> tiling make_tiles_tiling(const msda_shape &shape)
{
    return make_tiling<Real>(shape, log2_most_cells, is_sparse(shape) ? 256 : points_per_round * 3 / 2);
}

/* Lanes: of a team. The dynamic shared memory of sum_tiles_kernel. */
template <class Real, int Lanes, int Width> struct tile_memory {
    static constexpr int teams = threads_per_block / Lanes;

    point_record<Real> sorted[points_per_round];
    lane_sum<Real, Width> sums[teams][4][Lanes]; /* of a team's run, by corner */
    lane_sum<Real, Width> pixels[most_pixels][Lanes];
};

/* A tile's seams are the pixels at its edge: the lines above and below, then the sides. Those of the tiles before it.. */
__device__ __forceinline__ int seams_before(const tiled_level &tiles, int tile)
{
    return tiles.first_seam + tile * 2 * ((1 << tiles.log2_width) + (1 << tiles.log2_height));
}

/* ..and of its own those before pixel (x, y). */
__device__ __forceinline__ int seam_of(const tiled_level &tiles, int x, int y)
{
    const int width = 1 << tiles.log2_width, height = 1 << tiles.log2_height;
    return y == 0 ? x : y == height ? width + 1 + x : 2 * (width + 1) + (x == 0 ? 0 : height - 1) + y - 1;
}

/* A round of points: who sums what. */
template <int Teams> struct round_plan {
    unsigned short counts[warps_per_block]
                         [most_cells]; /* points of each warp; then where they begin among the sorted ones */
    unsigned
        runs[most_cells + Teams]; /* begin | end << 11 | line of the cell << 22; one for a cell, and one for a team */
    unsigned cells[cell_table];   /* first run | last one's successor << 16 */
    unsigned num_runs;

    /* One warp: from complete counts to all else. No run is longer than 1 << log2_longest. */
    __device__ __forceinline__ void make(const tiled_level &tiles, int log2_longest)
    {
        /* Each lane takes two neighbouring cells; a word holds the counts of both, as no sum exceeds 16 bits. */
        const int lane = threadIdx.x % 32;
        unsigned before[warps_per_block], in_pair = 0;
#pragma unroll
        for (int w = 0; w < warps_per_block; ++w) {
            before[w] = in_pair;
            in_pair += reinterpret_cast<const unsigned *>(counts[w])[lane];
        }
        const unsigned most = (1u << log2_longest) - 1, points[2] = {in_pair & 0xffffu, in_pair >> 16};
        const unsigned own_runs[2] = {(points[0] + most) >> log2_longest, (points[1] + most) >> log2_longest};
        const unsigned own = points[0] + points[1] | (own_runs[0] + own_runs[1]) << 16;
        const unsigned inclusive = scan_warp(own);
        if (lane == 31)
            num_runs = inclusive >> 16;
        unsigned begin = (inclusive - own) & 0xffffu, run = (inclusive - own) >> 16;
        const unsigned begins = begin | (begin + points[0]) << 16;
#pragma unroll
        for (int w = 0; w < warps_per_block; ++w)
            reinterpret_cast<unsigned *>(counts[w])[lane] = begins + before[w];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int cell = 2 * lane + i, x = cell & ((1 << tiles.log2_width) - 1), y = cell >> tiles.log2_width;
            if (y < 1 << tiles.log2_height)
                cells[(y + 1) * cell_pitch + x + 1] = run | (run + own_runs[i]) << 16;
            for (const unsigned end = begin + points[i]; begin < end;) {
                const unsigned next = min(begin + most + 1, end);
                runs[run++] = begin | next << 11 | unsigned(y) << 22;
                begin = next;
            }
        }
    }
};

/* pixel * multiplier_of(columns) >> 12 is the line of a tile's pixel. */
__device__ __forceinline__ int multiplier_of(int columns)
{
    return 4096 / columns + 1;
}

/* The sum of a pixel's channels, rounded once. */
template <class Sum, class Real, int Width>
__device__ __forceinline__ void write_sum(const params &p, Sum *to, lane_sum<Real, Width> sum)
{
    if (p.add)
#pragma unroll
        for (int c = 0; c < Width; ++c)
            sum.of[c] += widen(to[c]);
    store<Sum, Width>(to, sum.of);
}

/*
 * Writes a tile's pixels [line][column][lane] where they belong: final ones to grad_value, those that neighbours share to the
 * seams. The caller's team takes every teams-th pixel.
 */
template <class Sum, int Lanes, int Width, class Real>
__device__ __forceinline__ void write_tile(const params &p, const tiling &t, const bin_scratch &scratch,
                                           const tiled_level &tiles, int tile, const slice_index &slice, int channel,
                                           const lane_sum<Real, Width> (*sums)[Lanes], int team, int teams)
{
    using Lane = lane_sum<Real, Width>;
    using Stride = std::conditional_t<Width == 1, uint64_t, unsigned>;
    const level &own_level = p.levels[tiles.level];
    const tile_place place(tiles, tile);
    const unsigned width = 1u << tiles.log2_width, height = 1u << tiles.log2_height;
    const int columns = int(width) + 1, pixels = columns * (int(height) + 1), line_multiplier = multiplier_of(columns);
    const Stride seam_bytes = Stride(p.head_dim * int64_t(sizeof(Real)));
    const Stride row_bytes = keep(Stride(p.grad_value.row * int64_t(sizeof(Sum))));
    Real *const seams = static_cast<Real *>(scratch.seams) +
                        (int64_t(slice.number(p.heads)) * t.seams + seams_before(tiles, tile)) * p.head_dim + channel;
    const int64_t first_row = own_level.start + int64_t(place.first_y) * own_level.width + place.first_x;
    Sum *const grad_value =
        static_cast<Sum *>(p.t.grad_value) + p.grad_value(slice.batch, first_row, slice.head) + channel;
    for (int pixel = team; pixel < pixels && channel < p.head_dim; pixel += teams) {
        const int y = pixel * line_multiplier >> 12, x = pixel - y * columns;
        if (unsigned(place.first_x + x) >= unsigned(own_level.width) ||
            unsigned(place.first_y + y) >= unsigned(own_level.height))
            continue;
        const Lane sum = sums[pixel][threadIdx.x % Lanes];
        /* Neighbours have cells at the pixels of the edge, too. (The last tiles of a level end outside of it.) */
        if (unsigned(x - 1) >= width - 1 || unsigned(y - 1) >= height - 1)
            *reinterpret_cast<Lane *>(move(seams, uint64_t(unsigned(seam_of(tiles, x, y))) * seam_bytes)) = sum;
        else
            write_sum<Sum>(p, move(grad_value, uint64_t(unsigned(y * own_level.width + x)) * row_bytes), sum);
    }
}

/* Blocks of a multiprocessor: as many as fit without spilling registers. */
#if __CUDA_ARCH__ >= 900
template <class Value> constexpr int resident_tile_blocks = sizeof(Value) == 8 ? 2 : 3;
#else
template <class Value> constexpr int resident_tile_blocks = sizeof(Value) == 4 ? 3 : 2;
#endif

/*
 * Lanes over the channels, Width elements each. Sum: the type of grad_value. Vectors (Width > 1) come with rows whose
 * strides are less than 4 GiB.
 */
template <class Value, class Sum, int Lanes, int Width>
__global__ void __launch_bounds__(threads_per_block, resident_tile_blocks<Value>)
    sum_tiles_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t, const bin_scratch scratch,
                     slice_index first_slice, int first_bin, int bins)
{
    using Real = real_of<Value>;
    using Record = point_record<Real>;
    using Stride = std::conditional_t<Width == 1, uint64_t, unsigned>;
    using Memory = tile_memory<Real, Lanes, Width>;
    using Lane = lane_sum<Real, Width>;
    constexpr int teams = Memory::teams;

    extern __shared__ uint4 dynamic[];
    Memory &memory = *reinterpret_cast<Memory *>(dynamic);
    __shared__ chunk_parts parts;
    __shared__ round_plan<teams> plan;

    const int team = threadIdx.x / Lanes, own = threadIdx.x % Lanes;
    const int channel_tiles = (p.head_dim + Lanes * Width - 1) / (Lanes * Width);
    const int bin = channel_tiles == 1 ? int(blockIdx.x) : int(blockIdx.x) / channel_tiles;
    const int channel = (int(blockIdx.x) - bin * channel_tiles) * Lanes * Width + own * Width;
    const bool has_channels = channel < p.head_dim;
    const tiled_level &tiles = find_tiles(t, p.num_levels, first_bin + bin);
    const int tile = first_bin + bin - tiles.first_bin;
    const int columns = (1 << tiles.log2_width) + 1, pixels = columns * ((1 << tiles.log2_height) + 1);
    const int line_multiplier = multiplier_of(columns);
    const Stride row_bytes = keep(Stride(p.grad_output.row * int64_t(sizeof(Value))));

    for (int i = threadIdx.x; i < cell_table; i += threads_per_block)
        plan.cells[i] = 0;

    const slice_index own_slice = first_slice.next(p.heads, blockIdx.y);
    const int n = own_slice.batch, m = own_slice.head;
    const unsigned slice = own_slice.number(p.heads);
    const Record *records = scratch.records_of<Real>(t, slice);
    for (int pixel = team; pixel < pixels; pixel += teams)
        memory.pixels[pixel][own] = {};

    const auto sum_round = [&](unsigned done, int count) {
        for (int i = threadIdx.x; i < warps_per_block * most_cells / 2; i += threads_per_block)
            reinterpret_cast<unsigned *>(plan.counts)[i] = 0;
        round_points<Real> points;
        points.load(records, parts, done, count);
        __syncthreads();
        points.count(plan.counts[0], most_cells);
        __syncthreads();
        /* No run is much longer than a team's fair share. */
        if (threadIdx.x < 32)
            plan.make(tiles, max(32 - __clz((count - 1) / teams), log2_shortest_run));
        __syncthreads();
        points.store(memory.sorted, plan.counts[0], most_cells);
        __syncthreads();

        const int num_runs = int(plan.num_runs);
        for (int first = 0; first < num_runs; first += teams) {
            if (first + team < num_runs) {
                const unsigned run = plan.runs[first + team];
                const Value *grad_output =
                    static_cast<const Value *>(p.t.grad_output) + p.grad_output(n, 0, m) + (has_channels ? channel : 0);
                Lane sum[4] = {};
                for_each_point<Value, Width>(
                    memory.sorted, int(run & 0x7ffu), int(run >> 11 & 0x7ffu), grad_output, row_bytes,
                    [&](int, const Record &at, raw<Value, Width> row) { add_point<Value, Width>(sum, at, row); });
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    memory.sums[team][i][own] = sum[i];
            }
            __syncthreads();
            /* The lines of pixels that this turn's cells touch. */
            const int first_line = int(plan.runs[first] >> 22);
            const int past_line = int(plan.runs[min(first + teams, num_runs) - 1] >> 22) + 2;
            for (int pixel = first_line * columns + team; pixel < past_line * columns; pixel += teams) {
                const int y = pixel * line_multiplier >> 12, x = pixel - y * columns;
                const unsigned *cell = &plan.cells[(y + 1) * cell_pitch + x + 1];
                Lane sum = memory.pixels[pixel][own];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const unsigned range = cell[-(i >> 1) * cell_pitch - (i & 1)];
                    const int past = min(int(range >> 16) - first, teams);
#pragma unroll 1
                    for (int r = max(int(range & 0xffffu) - first, 0); r < past; ++r)
                        sum.add(memory.sums[r][i][own]);
                    if (p.discrete)
                        break;
                }
                memory.pixels[pixel][own] = sum;
            }
            __syncthreads();
        }
    };
    for_each_round(parts, t, scratch.begins_of(t, slice, bins) + bin, unsigned(bins + 1), points_per_chunk<Real>,
                   sum_round);
    write_tile<Sum, Lanes, Width>(p, t, scratch, tiles, tile, own_slice, channel, memory.pixels, team, teams);
}

constexpr int sparse_threads = 128;
constexpr int sparse_lanes = 8;

/*
 * The same for tiles of few points: one warp a tile adds a point at a time, a quarter of the warp each of its corners, to
 * the tile's pixels in shared memory. Points come in the order of the list, which depends on the data alone.
 */
template <class Value, class Sum, int Width>
__global__ void __launch_bounds__(sparse_threads)
    sum_sparse_tiles_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t,
                            const bin_scratch scratch, slice_index first_slice, int first_bin, int bins)
{
    using Real = real_of<Value>;
    using Record = point_record<Real>;
    using Lane = lane_sum<Real, Width>;
    using Stride = std::conditional_t<Width == 1, uint64_t, unsigned>;
    constexpr int Lanes = sparse_lanes;
    constexpr int at_once = 4; /* points that are read together */

    __shared__ Lane all_pixels[sparse_threads / 32][most_pixels][Lanes];
    __shared__ Record all_points[sparse_threads / 32][32];

    const int lane = threadIdx.x % 32, own = lane % Lanes, corner = lane / Lanes;
    Lane(*const pixels)[Lanes] = all_pixels[threadIdx.x / 32];
    Record *const points = all_points[threadIdx.x / 32];
    const int channel_tiles = (p.head_dim + Lanes * Width - 1) / (Lanes * Width);
    const int task = int(blockIdx.x) * (sparse_threads / 32) + int(threadIdx.x) / 32;
    const int bin = channel_tiles == 1 ? task : task / channel_tiles;
    if (bin >= bins)
        return;
    const int channel = (task - bin * channel_tiles) * Lanes * Width + own * Width;
    const bool has_channels = channel < p.head_dim;
    const tiled_level &tiles = find_tiles(t, p.num_levels, first_bin + bin);
    const int columns = (1 << tiles.log2_width) + 1, num_pixels = columns * ((1 << tiles.log2_height) + 1);
    const slice_index slice = first_slice.next(p.heads, blockIdx.y);
    const unsigned number = slice.number(p.heads);
    const Record *records = scratch.records_of<Real>(t, number);
    const unsigned short *begins = scratch.begins_of(t, number, bins) + bin;
    const Value *grad_output = keep(static_cast<const Value *>(p.t.grad_output) +
                                    p.grad_output(slice.batch, 0, slice.head) + (has_channels ? channel : 0));
    const Stride row_bytes = keep(Stride(p.grad_output.row * int64_t(sizeof(Value))));

    for (int pixel = corner; pixel < num_pixels; pixel += 32 / Lanes)
        pixels[pixel][own] = {};
    __syncwarp();

    const bool right = corner & 1, below = corner >> 1;
    const bool is_used = corner == 0 || !p.discrete; /* discrete sampling reads one pixel */
    const int own_pixel = (below ? columns : 0) + right;
    for (int group = 0; group < t.chunks; group += 32) {
        unsigned begin = 0, end = 0;
        if (group + lane < t.chunks) {
            const unsigned short *of_chunk = begins + unsigned(group + lane) * unsigned(bins + 1);
            begin = of_chunk[0];
            end = of_chunk[1];
        }
        const unsigned past = scan_warp(end - begin); /* points of the chunks up to this one */
        const unsigned all = __shfl_sync(~0u, past, 31);
        const unsigned first = past - (end - begin);
        const unsigned source = unsigned(group + lane) * unsigned(points_per_chunk<Real>) + begin - first;
        for (unsigned done = 0; done < all; done += 32) {
            int chunk = 0; /* the last whose points begin at or before the lane's */
#pragma unroll
            for (int step = 16; step > 0; step /= 2)
                chunk += __shfl_sync(~0u, first, chunk + step) <= done + lane ? step : 0;
            const unsigned at = __shfl_sync(~0u, source, chunk) + done + lane;
            if (done + lane < all)
                points[lane] = records[at];
            __syncwarp();
            const int count = int(min(32u, all - done));
            for (int i = 0; i < count; i += at_once) {
                raw<Value, Width> row[at_once];
#pragma unroll
                for (int j = 0; j < at_once; ++j)
                    row[j] = load_raw<Value, Width>(
                        move(grad_output, uint64_t(points[min(i + j, count - 1)].number >> cell_bits) * row_bytes));
#pragma unroll
                for (int j = 0; j < at_once; ++j) {
                    if (i + j >= count)
                        break;
                    const Record point = points[i + j];
                    const unpacked<Value, Width> g = unpack<Value, Width>(row[j]);
                    const Real along = right ? point.right : point.left;
                    const Real weight = below ? along * point.fraction_y : fma(-along, point.fraction_y, along);
                    const int cell = int(point.number) & ((1 << cell_bits) - 1);
                    const int pixel = (cell >> tiles.log2_width) * columns + (cell & ((1 << tiles.log2_width) - 1));
                    if (is_used) {
                        Lane &to = pixels[pixel + own_pixel][own];
                        Lane sum = to;
                        sum.add(weight, g.at);
                        to = sum;
                    }
                    __syncwarp();
                }
            }
        }
    }
    __syncwarp();
    write_tile<Sum, Lanes, Width>(p, t, scratch, tiles, first_bin + bin - tiles.first_bin, slice, channel, pixels,
                                  corner, 32 / Lanes);
}

constexpr int seam_tiles = 4; /* of a block */

/* One warp: the pixels above and left of a tile, which it shares with the tiles before it. */
template <class Sum, int Lanes, int Width>
__global__ void __launch_bounds__(32 * seam_tiles)
    join_seams_kernel(const __grid_constant__ params p, const __grid_constant__ tiling t, const bin_scratch scratch,
                      slice_index first_slice)
{
    using Real = real_of<Sum>;
    using Lane = lane_sum<Real, Width>;
    constexpr int teams = 32 / Lanes;
    const int bin = int(blockIdx.x) * seam_tiles + int(threadIdx.x) / 32;
    if (bin >= t.bins)
        return;
    const tiled_level &tiles = find_tiles(t, p.num_levels, bin);
    const level &own_level = p.levels[tiles.level];
    const int tile = bin - tiles.first_bin, width = 1 << tiles.log2_width, height = 1 << tiles.log2_height;
    const tile_place place(tiles, tile);

    const slice_index own_slice = first_slice.next(p.heads, blockIdx.y);
    const int n = own_slice.batch, m = own_slice.head;
    const unsigned slice = own_slice.number(p.heads);
    const int64_t first_seam = int64_t(slice) * t.seams;
    for (int i = threadIdx.x % 32 / Lanes; i < width + height - 1; i += teams) {
        const int x = max(i - height + 1, 0), y = max(height - 1 - i, 0);
        const int level_x = place.first_x + x, level_y = place.first_y + y;
        if (unsigned(level_x) >= unsigned(own_level.width) || unsigned(level_y) >= unsigned(own_level.height))
            continue;
        const int64_t row = own_level.start + int64_t(level_y) * own_level.width + level_x;
        Sum *to = static_cast<Sum *>(p.t.grad_value) + p.grad_value(n, row, m);
        for (int channel = threadIdx.x % Lanes * Width; channel < p.head_dim; channel += Lanes * Width) {
            const auto sum_of = [&](int of_tile, int tile_x, int tile_y) {
                const int seam = seams_before(tiles, of_tile) + seam_of(tiles, tile_x, tile_y);
                return *reinterpret_cast<const Lane *>(static_cast<const Real *>(scratch.seams) +
                                                       (first_seam + seam) * p.head_dim + channel);
            };
            Lane sum = sum_of(tile, x, y);
            if (x == 0)
                sum.add(sum_of(tile - 1, width, y));
            if (y == 0)
                sum.add(sum_of(tile - tiles.tiles_x, x, height));
            if (x == 0 && y == 0)
                sum.add(sum_of(tile - tiles.tiles_x - 1, width, height));
            write_sum<Sum>(p, to + channel, sum);
        }
    }
}

} // namespace msda

#endif
