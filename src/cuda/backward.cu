/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward: which kernels run, in what memory.
 *
 * grad_value is summed in one of three ways, chosen from the problem alone:
 *   direct  the gather scatters as it goes, with atomic reductions. Best where few points fall on a pixel (decoders);
 *           always for NATIVE.
 *   runs    points are sorted by where they lie and summed in registers, cell by cell, before the atomic reductions
 *           (backward_runs.cuh). For FP32 from `runs_from` points a row of value on.
 *   tiles   points are sorted by where they lie, and every pixel is summed in a fixed order (backward_tiles.cuh). Always for
 *           DETERMINISTIC.
 * The first two sum in grad_value itself or, for 16-bit types with FP32, in an fp32 image that is rounded once at the end.
 * The small gradients come from the gather in any case and are always written by the lane that owns the point. For the
 * fused form's references it leaves each head's share, which a last kernel adds up.
 */
#include "backward_dots.cuh"
#include "backward_points.cuh"
#include "backward_runs.cuh"
#include "backward_tiles.cuh"
#include "cuda_table.h"

namespace msda
{
namespace
{

/* Points for each row of value from which sorting beats atomics; see docs/performance.md. */
constexpr int64_t runs_from = 4;

constexpr size_t alignment = 256;

enum class method { direct, runs, tiles };

method method_of(const msda_shape &shape)
{
    switch (shape.p.accumulate) {
    case MSDA_ACCUMULATE_DETERMINISTIC:
        return method::tiles;
    case MSDA_ACCUMULATE_NATIVE:
        return method::direct;
    default:
        return shape.p.queries * shape.num_points >= runs_from * shape.p.value_length ? method::runs : method::direct;
    }
}

struct plan {
    method how;
    bool image;
    /* offsets into the workspace, bytes */
    size_t kept_points, reference_shares, softmax, image_at, begins, records, seams, total;
};

size_t take(size_t *total, size_t size)
{
    const size_t at = *total;
    *total += (size + alignment - 1) / alignment * alignment;
    return at;
}

template <class Value> plan make_plan(const msda_shape &shape)
{
    using Real = real_of<Value>;
    const msda_problem &p = shape.p;
    const size_t slices = size_t(p.batch) * p.heads, heads = slices * p.queries, points = heads * shape.num_points;
    plan to = {};
    to.how = method_of(shape);
    to.image = to.how != method::tiles && sizeof(Value) == 2 && p.grad_value_dtype != MSDA_DTYPE_F32 &&
               p.accumulate != MSDA_ACCUMULATE_NATIVE;
    if (shape.fused) {
        /* Which lanes run depends on the pointers' alignment, so there is room for the smallest teams. */
        const int lanes = std::clamp(p.head_dim * int(sizeof(Value)) / 16, 1, 8);
        if (kept_bytes<Real>(lanes, int(shape.num_points)) == 0)
            to.kept_points = take(&to.total, points * sizeof(kept_point<Real>));
        to.reference_shares = take(&to.total, heads * reference_pairs<form::any>(p) * sizeof(pair_of<Real>));
        to.softmax = take(&to.total, heads * sizeof(softmax_state<Real>));
    }
    if (to.image)
        to.image_at = take(&to.total, slices * p.value_length * p.head_dim * sizeof(float));
    if (to.how != method::direct) {
        const tiling t = to.how == method::runs ? make_runs_tiling<Real>(shape) : make_tiles_tiling<Real>(shape);
        to.begins = take(&to.total, slices * t.chunks * (bins_of_pass(t) + 1) * sizeof(unsigned short));
        to.records = take(&to.total, slices * t.chunks * points_per_chunk<Real> * sizeof(point_record<Real>));
        if (to.how == method::tiles)
            to.seams = take(&to.total, slices * t.seams * p.head_dim * sizeof(Real));
    }
    return to;
}

/* ---- rows of grad_value ---------------------------------------------------------------------------------------- */

/* Zeroes rows first .. first + rows - 1 of every batch item. */
template <class T>
__global__ void __launch_bounds__(threads_per_block)
    clear_rows_kernel(T *to, stride s, int64_t first, int64_t rows, int heads, int head_dim, int64_t elements)
{
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < elements;
         i += int64_t(gridDim.x) * blockDim.x) {
        int64_t rest = i / head_dim;
        const int m = int(rest % heads);
        rest /= heads;
        to[s(rest / rows, first + rest % rows, m) + i % head_dim] = narrow<T>(0);
    }
}

template <class T>
cudaError_t clear_rows(const params &p, T *to, const stride &s, int64_t first, int64_t rows, int64_t value_length,
                       cudaStream_t stream)
{
    const int64_t elements = p.batch * rows * p.heads * p.head_dim;
    const bool dense = s.head == p.head_dim && s.row == s.head * p.heads && s.batch == s.row * value_length;
    if (rows == 0)
        return cudaSuccess;
    if (dense && rows == value_length)
        return cudaMemsetAsync(to, 0, size_t(elements) * sizeof(T), stream);
    return launch(clear_rows_kernel<T>, grid_of((elements + threads_per_block - 1) / threads_per_block),
                  threads_per_block, 0, stream, to, s, first, rows, p.heads, p.head_dim, elements);
}

/* Zeroes the rows that no level covers. */
template <class T> cudaError_t clear_gaps(const msda_shape &shape, const params &p, T *to, cudaStream_t stream)
{
    int64_t covered = 0; /* rows before this one are done */
    while (covered < shape.p.value_length) {
        int64_t next = shape.p.value_length, end = next; /* the first level from here on */
        for (int l = 0; l < shape.p.num_levels; ++l) {
            const msda_level &level = shape.p.levels[l];
            if (level.start >= covered && level.start < next) {
                next = level.start;
                end = next + int64_t(level.height) * level.width;
            }
        }
        const cudaError_t error =
            clear_rows(p, to, p.grad_value, covered, next - covered, shape.p.value_length, stream);
        if (error != cudaSuccess)
            return error;
        covered = end;
    }
    return cudaSuccess;
}

/* The fp32 image [batch][value_length][heads][head_dim], rounded into grad_value or added to it. */
template <class T, int Width>
__global__ void __launch_bounds__(threads_per_block)
    round_image_kernel(const __grid_constant__ params p, const float *image, int64_t value_length, int64_t vectors)
{
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors;
         i += int64_t(gridDim.x) * blockDim.x) {
        const int64_t element = i * Width;
        int64_t rest = element / p.head_dim;
        const int m = int(rest % p.heads);
        rest /= p.heads;
        T *to = static_cast<T *>(p.t.grad_value) + p.grad_value(rest / value_length, rest % value_length, m) +
                element % p.head_dim;
        float sum[Width];
#pragma unroll
        for (int c = 0; c < Width; ++c)
            sum[c] = image[element + c] + (p.add ? widen(to[c]) : 0.0f);
        store<T, Width>(to, sum);
    }
}

template <class T>
cudaError_t round_image(const msda_shape &shape, const params &p, const float *image, cudaStream_t stream)
{
    const int64_t elements = p.batch * shape.p.value_length * p.heads * p.head_dim;
    const bool vectors = is_vector_aligned(p.t.grad_value, p.grad_value, p.head_dim, sizeof(T));
    const int64_t count = vectors ? elements / 8 : elements;
    return launch(vectors ? round_image_kernel<T, 8> : round_image_kernel<T, 1>,
                  grid_of((count + threads_per_block - 1) / threads_per_block), threads_per_block, 0, stream, p, image,
                  shape.p.value_length, count);
}

/* ---- the fused form's own gradients ---------------------------------------------------------------------------- */

/*
 * softmax_state for the kernels that meet a head's points one by one. Few lanes a head, and no divisions: it is there to
 * be cheap beside them.
 */
constexpr int softmax_lanes = 4;

template <class Point>
__global__ void __launch_bounds__(threads_per_block)
    softmax_kernel(const __grid_constant__ params p, softmax_state<real_of<Point>> *states)
{
    constexpr int teams = threads_per_block / softmax_lanes;
    const int lane = threadIdx.x % softmax_lanes;
    for (int n = blockIdx.z; n < p.batch; n += gridDim.z)
        for (int m = blockIdx.y; m < p.heads; m += gridDim.y) {
            const head<Point> slice = open_slice<form::any, Point>(p, n, m);
            for (int64_t first = int64_t(blockIdx.x) * teams; first < p.queries; first += int64_t(gridDim.x) * teams) {
                const int64_t q = first + int(threadIdx.x) / softmax_lanes;
                const head<Point> h = open_head<form::any>(p, slice, int(min(q, int64_t(p.queries) - 1)));
                const softmax_state<real_of<Point>> state = find_softmax<softmax_lanes>(p, h, lane);
                if (lane == 0 && q < p.queries)
                    states[(int64_t(n) * p.queries + q) * p.heads + m] = state;
            }
        }
}

/* One thread a component of a query's references: the sum of all heads' shares in its gradient, in order. */
template <class Point>
__global__ void __launch_bounds__(threads_per_block)
    sum_references_kernel(const __grid_constant__ params p, const real_of<Point> *shares)
{
    using Real = real_of<Point>;
    const int64_t length = 2 * int64_t(reference_pairs<form::any>(p)), count = p.queries * length;
    for (int n = blockIdx.y; n < p.batch; n += gridDim.y)
        for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
             i += int64_t(gridDim.x) * blockDim.x) {
            const int64_t q = i / length, component = i % length;
            const Real *share = shares + (int64_t(n) * p.queries + q) * p.heads * length + component;
            Real sum = Real(0);
            for (int m = 0; m < p.heads; ++m)
                sum += share[m * length];
            write_gradient(p, static_cast<Point *>(p.t.grad_references) + p.grad_references(n, q, 0) + component, sum);
        }
}

/* ---- the three ways to sum grad_value -------------------------------------------------------------------------- */

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const cudaError_t error_ = (call);                                                                             \
        if (error_ != cudaSuccess)                                                                                     \
            return error_;                                                                                             \
    } while (0)

/* Sums wider than the values set the pace: a lane's reduction is one vector, and a warp's are whole sectors. */
template <class Value, class Sum, int HeadDim, bool Scatter>
constexpr int gather_lanes = HeadDim *int(Scatter ? sizeof(Sum) : sizeof(Value)) / 16;

template <class Value, class Point, class Sum, int HeadDim, bool Scatter, form F>
cudaError_t gather_exactly(const params &p, const backward_scratch &scratch, cudaStream_t stream)
{
    constexpr int lanes = gather_lanes<Value, Sum, HeadDim, Scatter>, width = HeadDim / lanes;
    if (is_small(p, lanes))
        return launch_points<Value, Point, Sum, lanes, width, split_of<lanes>, Scatter, int, F>(p, scratch, stream);
    return launch_points<Value, Point, Sum, lanes, width, 1, Scatter, int, F>(p, scratch, stream);
}

template <class Value, class Point, class Sum, int HeadDim, bool Scatter>
cudaError_t gather(const msda_shape &shape, const params &p, const backward_scratch &scratch, cudaStream_t stream)
{
    constexpr int width = 16 / sizeof(Value);
    const bool vectors =
        is_vector_aligned(p.t.value, p.value, p.head_dim, sizeof(Value)) &&
        is_vector_aligned(p.t.grad_output, p.grad_output, p.head_dim, sizeof(Value)) &&
        (!scratch.sums || is_vector_aligned(scratch.sums, scratch.sum_strides, p.head_dim, sizeof(Sum)));
    const bool wide = is_wide(p.value, shape.p.value_length, sizeof(Value)) ||
                      (scratch.sums && is_wide(scratch.sum_strides, shape.p.value_length, sizeof(Sum)));
    if (!vectors || wide)
        return launch_points<Value, Point, Sum, 32, 1, 1, true, int64_t, form::any>(p, scratch, stream);
    if constexpr (HeadDim != MSDA_ANY && sizeof(Value) == 2 && !Scatter)
        if (can_find_dots<Point>(p))
            return launch_dots<Value, Point, HeadDim>(p, stream);
    if constexpr (HeadDim != MSDA_ANY) {
        switch (form_of<Point>(p)) {
        case form::plain:
            return gather_exactly<Value, Point, Sum, HeadDim, Scatter, form::plain>(p, scratch, stream);
        case form::fused:
            if (kept_bytes<real_of<Value>>(gather_lanes<Value, Sum, HeadDim, Scatter>, p.num_points) > 0)
                return gather_exactly<Value, Point, Sum, HeadDim, Scatter, form::fused>(p, scratch, stream);
            break;
        case form::any:
            break;
        }
    }
    return launch_points<Value, Point, Sum, 8, width, 1, true, int, form::any>(p, scratch, stream);
}

/*
 * Sorts the points of each pass, then calls sum(p, slice, slices, first_bin, bins) and finish(p, slice, slices): one pass,
 * unless the queries, the tiles or the slices are too many.
 */
template <class Value, class Point, form F, class SumBins, class Finish>
cudaError_t for_each_pass(const params &whole, const tiling &t, const bin_scratch &scratch, cudaStream_t stream,
                          const SumBins &sum, const Finish &finish)
{
    int64_t q = 0;
    do {
        params p = whole;
        p.t.locations = static_cast<const Point *>(p.t.locations) + q * p.locations.row;
        p.t.weights = static_cast<const Point *>(p.t.weights) + q * p.weights.row;
        p.t.grad_output = static_cast<const Value *>(p.t.grad_output) + q * p.grad_output.row;
        if (p.fused)
            p.t.references = static_cast<const Point *>(p.t.references) + q * p.references.row;
        p.queries = int(std::min(int64_t(t.queries), whole.queries - q));
        p.add = whole.add || q > 0;

        slice_index slice = {};
        for (int64_t slices = int64_t(p.batch) * p.heads; slices > 0; slices -= most_blocks_yz) {
            for (int first = 0; first < t.bins; first += bins_at_once) {
                const int bins = std::min(t.bins - first, bins_at_once);
                TRY(launch(sort_points_kernel<Point, F>, grid_of(t.chunks, slices), threads_per_block,
                           sort_memory<real_of<Value>>(bins), stream, p, t, scratch, whole.queries, q, slice, first,
                           bins));
                TRY(sum(p, slice, slices, first, bins));
            }
            TRY(finish(p, slice, slices));
            slice = slice.next(p.heads, most_blocks_yz);
        }
        q += t.queries;
    } while (q < whole.queries);
    return cudaSuccess;
}

template <class Value, class Point, class Sum, int Lanes, int Width, form F>
cudaError_t sum_tiles(const msda_shape &shape, const params &whole, const bin_scratch &scratch, cudaStream_t stream)
{
    using Real = real_of<Value>;
    const tiling t = make_tiles_tiling<Real>(shape);
    const int channel_tiles = (whole.head_dim + Lanes * Width - 1) / (Lanes * Width);
    return for_each_pass<Value, Point, F>(
        whole, t, scratch, stream,
        [&](const params &p, const slice_index &slice, int64_t slices, int first, int bins) {
            if (is_sparse(shape)) {
                constexpr int warps = sparse_threads / 32;
                const int tasks_a_bin = (p.head_dim + sparse_lanes * Width - 1) / (sparse_lanes * Width);
                return launch(sum_sparse_tiles_kernel<Value, Sum, Width>,
                              grid_of((int64_t(bins) * tasks_a_bin + warps - 1) / warps, slices), sparse_threads, 0,
                              stream, p, t, scratch, slice, first, bins);
            }
            return launch(sum_tiles_kernel<Value, Sum, Lanes, Width>, grid_of(int64_t(bins) * channel_tiles, slices),
                          threads_per_block, sizeof(tile_memory<Real, Lanes, Width>), stream, p, t, scratch, slice,
                          first, bins);
        },
        [&](const params &p, const slice_index &slice, int64_t slices) {
            return launch(join_seams_kernel<Sum, Lanes, Width>, grid_of((t.bins + seam_tiles - 1) / seam_tiles, slices),
                          32 * seam_tiles, 0, stream, p, t, scratch, slice);
        });
}

template <class Value, class Point, class Sum, int Lanes, bool Exact, form F>
cudaError_t sum_runs(const msda_shape &shape, const params &whole, const bin_scratch &scratch,
                     const backward_scratch &out, cudaStream_t stream)
{
    const tiling t = make_runs_tiling<real_of<Value>>(shape);
    return for_each_pass<Value, Point, F>(
        whole, t, scratch, stream,
        [&](const params &p, const slice_index &slice, int64_t slices, int first, int bins) {
            return launch(sum_runs_kernel<Value, Sum, Lanes, Exact>, grid_of(bins, slices), threads_per_block, 0,
                          stream, p, t, scratch, out, slice, first, bins);
        },
        [](const params &, const slice_index &, int64_t) { return cudaSuccess; });
}

/* grad_value by tiles. */
template <class Value, class Point, class Sum, int HeadDim>
cudaError_t sum_in_order(const msda_shape &shape, const params &p, const bin_scratch &scratch, cudaStream_t stream)
{
    constexpr int width = sum_width<Value>, lanes = HeadDim == 16 ? 4 : 8;
    if (!p.add)
        TRY(clear_gaps(shape, p, static_cast<Sum *>(p.t.grad_value), stream));
    const bool vectors = is_vector_aligned(p.t.grad_output, p.grad_output, p.head_dim, sizeof(Value)) &&
                         is_vector_aligned(p.t.grad_value, p.grad_value, p.head_dim, sizeof(Sum));
    const bool narrow_rows =
        p.grad_output.row <= INT_MAX / int64_t(sizeof(Value)) && p.grad_value.row <= INT_MAX / int64_t(sizeof(Sum));
    if (!vectors || !narrow_rows)
        return sum_tiles < Value, Point, Sum, sizeof(Value) == 8 ? 16 : 32, 1, form::any > (shape, p, scratch, stream);
    if constexpr (HeadDim != MSDA_ANY) {
        switch (form_of<Point>(p)) {
        case form::plain:
            return sum_tiles<Value, Point, Sum, lanes, width, form::plain>(shape, p, scratch, stream);
        case form::fused:
            return sum_tiles<Value, Point, Sum, lanes, width, form::fused>(shape, p, scratch, stream);
        case form::any:
            break;
        }
    }
    return sum_tiles<Value, Point, Sum, lanes, width, form::any>(shape, p, scratch, stream);
}

/* What the runs ask of the tensors; the direct way takes what they can't. */
template <class Value, class Sum> bool can_run(const params &p, const backward_scratch &out, int64_t value_length)
{
    return is_vector_aligned(p.t.grad_output, p.grad_output, p.head_dim, sizeof(Value)) &&
           is_vector_aligned(out.sums, out.sum_strides, p.head_dim, sizeof(Sum)) &&
           p.grad_output.row <= INT_MAX / int64_t(sizeof(Value)) &&
           !is_wide(out.sum_strides, value_length, sizeof(Sum));
}

/* grad_value by runs, in out.sums. */
template <class Value, class Point, class Sum, int HeadDim>
cudaError_t sum_sorted(const msda_shape &shape, const params &p, const bin_scratch &scratch,
                       const backward_scratch &out, cudaStream_t stream)
{
    if constexpr (HeadDim != MSDA_ANY) {
        constexpr int lanes = HeadDim / sum_width<Value>;
        switch (form_of<Point>(p)) {
        case form::plain:
            return sum_runs<Value, Point, Sum, lanes, true, form::plain>(shape, p, scratch, out, stream);
        case form::fused:
            return sum_runs<Value, Point, Sum, lanes, true, form::fused>(shape, p, scratch, out, stream);
        case form::any:
            break;
        }
        return sum_runs<Value, Point, Sum, lanes, true, form::any>(shape, p, scratch, out, stream);
    }
    return sum_runs<Value, Point, Sum, 8, false, form::any>(shape, p, scratch, out, stream);
}

/* grad_value with atomics, direct or by runs, in `sums`; and the small gradients. */
template <class Value, class Point, class Sum, int HeadDim>
cudaError_t sum_atomically(const msda_shape &shape, const params &p, method how, const bin_scratch &lists,
                           backward_scratch scratch, Sum *sums, const stride &strides, bool clear, bool want_points,
                           cudaStream_t stream)
{
    scratch.sums = sums;
    scratch.sum_strides = strides;
    if (clear)
        TRY(clear_rows(p, sums, strides, 0, shape.p.value_length, shape.p.value_length, stream));
    if constexpr (sizeof(Sum) > 2) /* sums in 16 bits are NATIVE's, and always direct */
        if (how == method::runs && can_run<Value, Sum>(p, scratch, shape.p.value_length)) {
            backward_scratch no_sums = scratch;
            no_sums.sums = nullptr;
            if (want_points)
                TRY((gather<Value, Point, Sum, HeadDim, false>(shape, p, no_sums, stream)));
            return sum_sorted<Value, Point, Sum, HeadDim>(shape, p, lists, scratch, stream);
        }
    return gather<Value, Point, Sum, HeadDim, true>(shape, p, scratch, stream);
}

template <class Value, class Point, class Sum, int HeadDim>
cudaError_t run_backward(const msda_shape &shape, const params &p, char *workspace, cudaStream_t stream)
{
    using Real = real_of<Value>;
    const plan at = make_plan<Value>(shape);
    const bool want_points = p.t.grad_locations || p.t.grad_weights || p.t.grad_references;
    backward_scratch scratch = {};
    scratch.kept_points = workspace + at.kept_points; /* means nothing where there is room for them in shared memory */
    scratch.reference_shares = workspace + at.reference_shares;
    softmax_state<Real> *states = reinterpret_cast<softmax_state<Real> *>(workspace + at.softmax);
    const bin_scratch lists = {reinterpret_cast<unsigned short *>(workspace + at.begins), workspace + at.records,
                               workspace + at.seams, states};
    Sum *grad_value = static_cast<Sum *>(p.t.grad_value);

    /* The kernels that meet a head's points one by one come after the gather, which leaves them the softmax. */
    if (p.fused && grad_value && at.how != method::direct) {
        if (want_points)
            scratch.softmax = states;
        else
            TRY(launch(softmax_kernel<Point>,
                       grid_of((int64_t(p.queries) * softmax_lanes + threads_per_block - 1) / threads_per_block,
                               p.heads, p.batch),
                       threads_per_block, 0, stream, p, states));
    }
    if (grad_value && at.how == method::tiles) {
        if (want_points)
            TRY((gather<Value, Point, Sum, HeadDim, false>(shape, p, scratch, stream)));
        TRY((sum_in_order<Value, Point, Sum, HeadDim>(shape, p, lists, stream)));
    } else if (grad_value && at.image) {
        float *image = reinterpret_cast<float *>(workspace + at.image_at);
        const int64_t row = int64_t(p.heads) * p.head_dim;
        const stride dense = {row * shape.p.value_length, row, p.head_dim};
        if constexpr (sizeof(Sum) == 2) {
            TRY((sum_atomically<Value, Point, float, HeadDim>(shape, p, at.how, lists, scratch, image, dense, true,
                                                              want_points, stream)));
            TRY(round_image<Value>(shape, p, image, stream));
        }
    } else if (grad_value) {
        TRY((sum_atomically<Value, Point, Sum, HeadDim>(shape, p, at.how, lists, scratch, grad_value, p.grad_value,
                                                        !p.add, want_points, stream)));
    } else if (want_points) {
        TRY((gather<Value, Point, Sum, HeadDim, false>(shape, p, scratch, stream)));
    }
    if (p.t.grad_references)
        TRY(launch(sum_references_kernel<Point>,
                   grid_of((int64_t(p.queries) * 2 * reference_pairs<form::any>(p) + threads_per_block - 1) /
                               threads_per_block,
                           p.batch),
                   threads_per_block, 0, stream, p, static_cast<const Real *>(scratch.reference_shares)));
    return cudaSuccess;
}

} // namespace

template <class Value, class Point, int HeadDim> size_t backward_workspace(const msda_shape &shape)
{
    return make_plan<Value>(shape).total;
}

template <class Value, class Point, int HeadDim>
cudaError_t launch_backward(const msda_shape &shape, const msda_tensors &tensors, void *workspace, cudaStream_t stream)
{
    const params p = make_params(shape, tensors);
    char *bytes = static_cast<char *>(workspace);
    if constexpr (sizeof(Value) == 2)
        if (shape.p.grad_value_dtype == MSDA_DTYPE_F32)
            return run_backward<Value, Point, float, HeadDim>(shape, p, bytes, stream);
    return run_backward<Value, Point, Value, HeadDim>(shape, p, bytes, stream);
}

#define MSDA_KERNEL(value, point, head_dim)                                                                            \
    template size_t backward_workspace<value, point, head_dim>(const msda_shape &);                                    \
    template cudaError_t launch_backward<value, point, head_dim>(const msda_shape &, const msda_tensors &, void *,     \
                                                                 cudaStream_t);
#include "../kernels.def"

} // namespace msda
