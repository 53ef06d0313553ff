/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tile's points (backward_bins.cuh), found in the chunks and sorted by cell in shared memory, a round of them at a time:
 * what the two ways to sum them share.
 */
#ifndef MSDA_BACKWARD_ROUNDS_CUH
#define MSDA_BACKWARD_ROUNDS_CUH

#include "backward_bins.cuh"

namespace msda
{

/* Elements of a lane: of 16-bit types half a vector, so that the sums of four corners stay in registers. */
template <class Value> constexpr int sum_width = sizeof(Value) == 8 ? 2 : 4;

constexpr int points_per_round = 1024;
constexpr int points_per_thread = points_per_round / threads_per_block;
constexpr int chunks_at_once = 2 * threads_per_block; /* whose parts of a tile are listed in shared memory */

/* A tile's place in its level: its first pixel may lie outside. */
struct tile_place {
    int first_x, first_y;

    __device__ __forceinline__ tile_place(const tiled_level &tiles, int tile)
        : first_x((tile % tiles.tiles_x << tiles.log2_width) - 1),
          first_y((tile / tiles.tiles_x << tiles.log2_height) - 1)
    {
    }
};

__device__ __forceinline__ const tiled_level &find_tiles(const tiling &t, int num_levels, int bin)
{
    int i = 0;
    while (i + 1 < num_levels && bin >= t.levels[i + 1].first_bin)
        ++i;
    return t.levels[i];
}

/*
 * Where a tile's points lie in the chunks of a group: entry e of them is records[sources[c] + e], where c is the last chunk
 * with first[c] <= e.
 */
struct chunk_parts {
    unsigned first[chunks_at_once];
    unsigned sources[chunks_at_once];

    /* `begins` are those of the tile in the group's first chunk. Returns the number of points. A block calls this together. */
    __device__ __forceinline__ unsigned list(const unsigned short *begins, unsigned pitch, int first_chunk, int count,
                                             unsigned per_chunk)
    {
        unsigned all = 0;
#pragma unroll
        for (int base = 0; base < chunks_at_once; base += threads_per_block) {
            const int chunk = base + int(threadIdx.x);
            first[chunk] = ~0u;
            if (base > 0 && base >= count)
                continue;
            unsigned begin = 0, end = 0, total;
            if (chunk < count) {
                const unsigned short *of_chunk = begins + unsigned(chunk) * pitch;
                begin = of_chunk[0];
                end = of_chunk[1];
            }
            const unsigned before = all + scan_block(end - begin, &total);
            if (chunk < count)
                first[chunk] = before;
            sources[chunk] = unsigned(first_chunk + chunk) * per_chunk + begin - before;
            all += total;
        }
        __syncthreads();
        return all;
    }
    /* The place of entry e among the slice's records. */
    __device__ __forceinline__ unsigned find(unsigned e) const
    {
        int chunk = 0;
#pragma unroll
        for (int step = chunks_at_once / 2; step > 0; step /= 2)
            chunk += first[chunk + step] <= e ? step : 0;
        return sources[chunk] + e;
    }
};

/* `base` moved by a number of bytes. */
template <class T, class Offset> __device__ __forceinline__ T *move(T *base, Offset bytes)
{
    return reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(base) + bytes);
}

/* A thread's points of a round. The steps have a __syncthreads() between them. */
template <class Real> struct round_points {
    point_record<Real> own[points_per_thread];
    unsigned rank[points_per_thread];
    int loads;

    /* Entries done .. done + count - 1 of the tile. */
    __device__ __forceinline__ void load(const point_record<Real> *records, const chunk_parts &parts, unsigned done,
                                         int count)
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        loads = (count + threads_per_block - 1) / threads_per_block;
#pragma unroll
        for (int i = 0; i < points_per_thread; ++i) {
            const int entry = (warp * loads + i) * 32 + lane;
            own[i].number = ~0u;
            if (i < loads && entry < count)
                own[i] = records[parts.find(done + unsigned(entry))];
        }
    }
    /* counts[warp][cell], which were 0, become the points of each warp; `cells` is a power of two. */
    __device__ __forceinline__ void count(unsigned short *counts, int cells)
    {
#pragma unroll
        for (int i = 0; i < points_per_thread; ++i)
            if (i < loads)
                rank[i] = take_numbers(counts + int(threadIdx.x) / 32 * cells,
                                       own[i].number == ~0u ? -1 : int(own[i].number) & (cells - 1));
    }
    /* Once counts[warp][cell] are where the points of each begin. Their numbers are queries then. */
    __device__ __forceinline__ void store(point_record<Real> *sorted, const unsigned short *counts, int cells) const
    {
#pragma unroll
        for (int i = 0; i < points_per_thread; ++i)
            if (i < loads && own[i].number != ~0u) {
                const int cell = int(own[i].number) & (cells - 1);
                sorted[counts[int(threadIdx.x) / 32 * cells + cell] + rank[i]] = {
                    own[i].left, own[i].right, own[i].fraction_y, own[i].number >> cell_bits};
            }
    }
};

/* The bilinear weights of a point's corners, times its own. */
template <class Real> __device__ __forceinline__ corner_weights<Real> weights_of(const point_record<Real> &at)
{
    return {fma(-at.left, at.fraction_y, at.left), fma(-at.right, at.fraction_y, at.right), at.left * at.fraction_y,
            at.right * at.fraction_y};
}

/* A lane's channels of a sum. */
template <class Real, int Width> struct alignas(sizeof(Real) * Width) lane_sum {
    Real of[Width];

    __device__ __forceinline__ void add(const lane_sum &other)
    {
#pragma unroll
        for (int c = 0; c < Width; ++c)
            of[c] += other.of[c];
    }
    __device__ __forceinline__ void add(Real weight, const Real (&x)[Width])
    {
#pragma unroll
        for (int c = 0; c < Width; ++c)
            of[c] = fma(weight, x[c], of[c]);
    }
};

/*
 * Calls work(e, point, row) for the points first .. last - 1 of `sorted`, `row` a lane's channels of their grad_output. Two
 * of these are under way at a time.
 */
template <class Value, int Width, class Stride, class Work>
__device__ __forceinline__ void for_each_point(const point_record<real_of<Value>> *sorted, int first, int last,
                                               const Value *grad_output, Stride row_bytes, const Work &work)
{
    constexpr int ahead = 2;
    point_record<real_of<Value>> at[ahead];
    raw<Value, Width> row[ahead];
    const auto load = [&](int i, int e) {
        if (e >= last)
            return;
        at[i] = sorted[e];
        row[i] = load_raw<Value, Width>(move(grad_output, uint64_t(at[i].number) * row_bytes));
    };
#pragma unroll
    for (int i = 0; i < ahead; ++i)
        load(i, first + i);
    for (int base = first; base < last; base += ahead)
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            if (base + i >= last)
                break;
            work(base + i, at[i], row[i]);
            load(i, base + i + ahead);
        }
}

/* A point's share in the sums of its cell's corners. */
template <class Value, int Width>
__device__ __forceinline__ void add_point(lane_sum<real_of<Value>, Width> (&sums)[4],
                                          const point_record<real_of<Value>> &at, raw<Value, Width> row)
{
    const unpacked<Value, Width> g = unpack<Value, Width>(row);
    const corner_weights<real_of<Value>> weight = weights_of(at);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        sums[i].add(weight.of[i], g.at);
}

/* Calls work(done, count) for the rounds of a tile, whose points `parts` lists. A block calls this together. */
template <class Work>
__device__ __forceinline__ void for_each_round(chunk_parts &parts, const tiling &t, const unsigned short *begins,
                                               unsigned pitch, unsigned per_chunk, const Work &work)
{
    for (int group = 0; group < t.chunks; group += chunks_at_once) {
        const int chunks = min(t.chunks - group, chunks_at_once);
        const unsigned all = parts.list(begins + int64_t(group) * pitch, pitch, group, chunks, per_chunk);
        unsigned per_round = all;
        if (all > points_per_round) {
            const unsigned rounds = (all + points_per_round - 1) / points_per_round;
            per_round = (all + rounds - 1) / rounds;
        }
        for (unsigned done = 0; done < all; done += per_round) {
            work(done, int(min(per_round, all - done)));
            __syncthreads();
        }
    }
}

} // namespace msda

#endif
