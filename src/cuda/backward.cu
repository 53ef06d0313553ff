/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward: which kernels run, in what memory.
 *
 * grad_value is summed in one of two ways, chosen from the problem alone:
 *   direct  the gather scatters as it goes, with atomic reductions: into grad_value itself, or, for 16-bit types with FP32,
 *           into an fp32 image that is rounded once at the end. Best where few points fall on a pixel (decoders).
 *   owned   every pixel is summed by its owner in a fixed order (backward_owned.cuh). Always for DETERMINISTIC; for FP32
 *           from `owned_from` points a row of value on.
 * NATIVE is direct in the storage type. The small gradients come from the gather in either case and are always written by
 * the lane that owns the point. The fused form turns them into those of offsets, logits and references in a last kernel.
 */
#include "backward_owned.cuh"
#include "backward_points.cuh"
#include "cuda_table.h"

namespace msda
{
namespace
{

/* Points for each row of value from which owners beat atomics; see docs/performance.md. */
constexpr int64_t owned_from = 4;

constexpr size_t alignment = 256;

struct plan {
    bool owned, image;
    /* offsets into the workspace, bytes */
    size_t weight_gradients, location_gradients, softmax, image_at, offsets, list, total;
};

bool is_owned(const msda_shape &shape)
{
    switch (shape.p.accumulate) {
    case MSDA_ACCUMULATE_DETERMINISTIC:
        return true;
    case MSDA_ACCUMULATE_NATIVE:
        return false;
    default:
        return shape.p.queries * shape.num_points >= owned_from * shape.p.value_length;
    }
}

size_t take(size_t *total, size_t size)
{
    const size_t at = *total;
    *total += (size + alignment - 1) / alignment * alignment;
    return at;
}

/* Lanes over the channels: of a specialised head_dim, or of any. */
template <class Value, int HeadDim> constexpr int lanes_of = HeadDim == MSDA_ANY ? 8 : HeadDim * int(sizeof(Value)) / 16;

/* Queries whose points are numbered in 32 bits, and counted four times over. */
int64_t queries_at_once(const msda_shape &shape)
{
    const int64_t most = (int64_t(1) << 30) / shape.num_points;
    return most < 1 ? 1 : most < shape.p.queries ? most : shape.p.queries;
}

template <int Lanes> tiling tiling_of(const msda_shape &shape)
{
    return make_tiling(shape, queries_at_once(shape), tile_width<Lanes>, tile_height<Lanes>);
}

template <class Value, int HeadDim> plan make_plan(const msda_shape &shape)
{
    using Real = real_of<Value>;
    const msda_problem &p = shape.p;
    const size_t heads = size_t(p.batch) * p.queries * p.heads, points = heads * shape.num_points;
    plan to = {};
    to.owned = is_owned(shape);
    to.image = !to.owned && sizeof(Value) == 2 && p.grad_value_dtype != MSDA_DTYPE_F32 && p.accumulate != MSDA_ACCUMULATE_NATIVE;
    if (shape.fused) {
        to.weight_gradients = take(&to.total, points * sizeof(Real));
        to.location_gradients = take(&to.total, points * 2 * sizeof(Real));
        to.softmax = take(&to.total, heads * sizeof(softmax_state<Real>));
    }
    if (to.image)
        to.image_at = take(&to.total, size_t(p.batch) * p.value_length * p.heads * p.head_dim * sizeof(float));
    if (to.owned) {
        /* Which lanes run depends on the pointers' alignment, so there is room for either. */
        const tiling exact = tiling_of<lanes_of<Value, HeadDim>>(shape), any = tiling_of<8>(shape);
        const int64_t offsets = offsets_of_slice(exact) > offsets_of_slice(any) ? offsets_of_slice(exact) : offsets_of_slice(any);
        to.offsets = take(&to.total, size_t(p.batch) * p.heads * offsets * sizeof(unsigned));
        to.list = take(&to.total, size_t(p.batch) * p.heads * exact.points_capacity * sizeof(unsigned));
    }
    return to;
}

/* ---- rows of grad_value ---------------------------------------------------------------------------------------- */

/* Zeroes rows first .. first + rows - 1 of every batch item. */
template <class T>
__global__ void __launch_bounds__(threads_per_block)
    clear_rows_kernel(T *to, stride s, int64_t first, int64_t rows, int heads, int head_dim, int64_t elements)
{
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += int64_t(gridDim.x) * blockDim.x) {
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
    return launch(clear_rows_kernel<T>, grid_of((elements + threads_per_block - 1) / threads_per_block), threads_per_block, 0,
                  stream, to, s, first, rows, p.heads, p.head_dim, elements);
}

/* Zeroes the rows that no level covers. */
template <class T>
cudaError_t clear_gaps(const msda_shape &shape, const params &p, T *to, cudaStream_t stream)
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
        const cudaError_t error = clear_rows(p, to, p.grad_value, covered, next - covered, shape.p.value_length, stream);
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
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors; i += int64_t(gridDim.x) * blockDim.x) {
        const int64_t element = i * Width;
        int64_t rest = element / p.head_dim;
        const int m = int(rest % p.heads);
        rest /= p.heads;
        T *to = static_cast<T *>(p.t.grad_value) + p.grad_value(rest / value_length, rest % value_length, m) + element % p.head_dim;
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

/* One warp a query and head: softmax_state for the kernels that meet a head's points one by one. */
template <class Point>
__global__ void __launch_bounds__(threads_per_block)
    softmax_kernel(const __grid_constant__ params p, softmax_state<real_of<Point>> *states)
{
    const int lane = threadIdx.x % 32;
    const int64_t heads = int64_t(p.batch) * p.queries * p.heads;
    for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32; i < heads;
         i += int64_t(gridDim.x) * warps_per_block) {
        const int64_t query = i / p.heads;
        const head<Point> h = open_head<Point>(p, query / p.queries, query % p.queries, i % p.heads);
        const softmax_state<real_of<Point>> state = find_softmax<32>(p, h, lane);
        if (lane == 0)
            states[i] = state;
    }
}

template <class Point, class Real> __device__ __forceinline__ void write_gradient(const params &p, Point *to, Real gradient)
{
    *to = narrow<Point>(p.add ? widen(*to) + gradient : gradient);
}

/*
 * One warp a query: from the gradients G of the weights and those of the locations to
 *   logits      weight_k * (G_k - sum_j weight_j G_j),
 *   offsets     location gradient * (location / offset),
 *   references  the sum over all heads and points that refer to them, by one lane each, in order.
 */
template <class Point>
__global__ void __launch_bounds__(threads_per_block)
    finish_fused_kernel(const __grid_constant__ params p, const real_of<Point> *weight_gradients,
                        const real_of<Point> *location_gradients)
{
    using Real = real_of<Point>;
    __shared__ level levels[MSDA_MAX_LEVELS + 1];
    load_levels(p, levels);
    const int lane = threadIdx.x % 32;
    const bool boxes = p.reference_kind == MSDA_REFERENCE_BOXES;
    const int64_t queries = int64_t(p.batch) * p.queries;

    for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32; i < queries;
         i += int64_t(gridDim.x) * warps_per_block) {
        const int64_t n = i / p.queries, q = i % p.queries;
        const int64_t first_point = i * p.heads * p.num_points;

        for (int m = 0; m < p.heads; ++m) {
            head<Point> h = open_head<Point>(p, n, q, m);
            const Real *own_weights = weight_gradients + first_point + int64_t(m) * p.num_points;
            const Real *own_locations = location_gradients + 2 * (first_point + int64_t(m) * p.num_points);
            if (p.t.grad_weights) {
                h.softmax = find_softmax<32>(p, h, lane);
                const auto weight_of = [&](int k) { return exp(widen(h.weights[k]) - h.softmax.largest) * h.softmax.scale; };
                Real mean = 0;
                for (int k = lane; k < p.num_points; k += 32)
                    mean += weight_of(k) * own_weights[k];
#pragma unroll
                for (int distance = 16; distance > 0; distance /= 2)
                    mean += __shfl_xor_sync(~0u, mean, distance);
                Point *to = static_cast<Point *>(p.t.grad_weights) + p.grad_weights(n, q, m);
                for (int k = lane; k < p.num_points; k += 32)
                    write_gradient(p, to + k, weight_of(k) * (own_weights[k] - mean));
            }
            if (p.t.grad_locations) {
                Point *to = static_cast<Point *>(p.t.grad_locations) + p.grad_locations(n, q, m);
                for (int k = lane; k < p.num_points; k += 32) {
                    const int l = level_of(p, levels, k);
                    Real x, y;
                    offset_scale(p, levels, h, l, reference_of(p, levels, l, k), x, y);
                    write_gradient(p, to + 2 * int64_t(k), own_locations[2 * int64_t(k)] * x);
                    write_gradient(p, to + 2 * int64_t(k) + 1, own_locations[2 * int64_t(k) + 1] * y);
                }
            }
        }

        if (p.t.grad_references) {
            const bool anchors = p.reference_kind == MSDA_REFERENCE_ANCHORS;
            const int components = boxes ? 4 : 2;
            const int length = components * (anchors ? p.num_anchors : p.num_levels);
            for (int component = lane; component < length; component += 32) {
                const int axis = component % 2, which = component / components;
                Real sum = 0;
                for (int m = 0; m < p.heads; ++m) {
                    const head<Point> h = open_head<Point>(p, n, q, m);
                    const Real *own_locations = location_gradients + 2 * (first_point + int64_t(m) * p.num_points);
                    for (int l = anchors ? 0 : which; l < (anchors ? p.num_levels : which + 1); ++l) {
                        const int end = levels[l + 1].first_point;
                        const Real size_scale = Real(p.box_scale) / Real(end - levels[l].first_point);
                        for (int k = levels[l].first_point + (anchors ? which : 0); k < end; k += anchors ? p.num_anchors : 1) {
                            const Real gradient = own_locations[2 * int64_t(k) + axis];
                            sum += component % components < 2
                                       ? gradient
                                       : gradient * widen(h.locations[2 * int64_t(k) + axis]) * size_scale;
                        }
                    }
                }
                write_gradient(p, static_cast<Point *>(p.t.grad_references) + p.grad_references(n, q, 0) + component, sum);
            }
        }
    }
}

unsigned warps(int64_t count)
{
    return grid_of((count + warps_per_block - 1) / warps_per_block);
}

/* ---- the two ways to sum grad_value ---------------------------------------------------------------------------- */

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const cudaError_t error_ = (call);                                                                             \
        if (error_ != cudaSuccess)                                                                                     \
            return error_;                                                                                             \
    } while (0)

/* Fewer threads than this leave multiprocessors idle; then a head's points are split over lanes. */
constexpr int64_t full_chip = 512 * 1024;

template <class Value, class Point, class Sum, int HeadDim, bool Scatter>
cudaError_t gather(const msda_shape &shape, const params &p, const backward_scratch &scratch, cudaStream_t stream)
{
    constexpr int width = 16 / sizeof(Value);
    constexpr int sums_at_once = 16 / sizeof(Sum);
    const bool vectors = is_vector_aligned(p.t.value, p.value, p.head_dim, sizeof(Value)) &&
                         is_vector_aligned(p.t.grad_output, p.grad_output, p.head_dim, sizeof(Value)) &&
                         (!scratch.sums || is_vector_aligned(scratch.sums, scratch.sum_strides, p.head_dim, sizeof(Sum)));
    static_assert(width % sums_at_once == 0, "a lane's channels are whole vectors of sums");
    const bool few = int64_t(p.batch) * p.queries * p.heads * 8 < full_chip;
    if (is_wide(shape))
        return launch_points<Value, Point, Sum, 32, 1, 1, true, int64_t>(p, scratch, stream);
    if (!vectors)
        return launch_points<Value, Point, Sum, 32, 1, 1, true, int>(p, scratch, stream);
    if constexpr (HeadDim != MSDA_ANY) {
        constexpr int lanes = lanes_of<Value, HeadDim>;
        constexpr int split = lanes <= 8 ? 4 : 32 / lanes;
        if (few)
            return launch_points<Value, Point, Sum, lanes, width, split, Scatter, int>(p, scratch, stream);
        return launch_points<Value, Point, Sum, lanes, width, 1, Scatter, int>(p, scratch, stream);
    }
    return launch_points<Value, Point, Sum, 8, width, 1, true, int>(p, scratch, stream);
}

template <class Value, class Point, class Sum, int HeadDim>
cudaError_t sum_directly(const msda_shape &shape, const params &p, backward_scratch scratch, Sum *sums, const stride &strides,
                         bool clear, cudaStream_t stream)
{
    scratch.sums = sums;
    scratch.sum_strides = strides;
    if (clear)
        TRY(clear_rows(p, sums, strides, 0, shape.p.value_length, shape.p.value_length, stream));
    return gather<Value, Point, Sum, HeadDim, true>(shape, p, scratch, stream);
}

template <class Value, class Point, class Sum, int Lanes, int Width>
cudaError_t sum_tiles(const msda_shape &shape, const params &whole, const owned_scratch &scratch, cudaStream_t stream)
{
    const int64_t window = queries_at_once(shape);
    for (int64_t q = 0; q < whole.queries; q += window) {
        params p = whole;
        p.t.locations = static_cast<const Point *>(p.t.locations) + q * p.locations.row;
        p.t.weights = static_cast<const Point *>(p.t.weights) + q * p.weights.row;
        p.t.grad_output = static_cast<const Value *>(p.t.grad_output) + q * p.grad_output.row;
        if (p.fused)
            p.t.references = static_cast<const Point *>(p.t.references) + q * p.references.row;
        p.queries = int(window < whole.queries - q ? window : whole.queries - q);
        p.add = whole.add || q > 0;

        const tiling t = tiling_of<Lanes>(shape);
        const int64_t offsets_per_slice = offsets_of_slice(t);
        const unsigned slices = unsigned(p.batch) * unsigned(p.heads);
        const int channel_tiles = (p.head_dim + Lanes * Width - 1) / (Lanes * Width);
        const unsigned chunks = grid_of(int64_t(slices) * t.chunks);
        for (int first = 0; first < t.bins; first += bins_at_once) {
            const int bins = t.bins - first < bins_at_once ? t.bins - first : bins_at_once;
            const size_t shared = size_t(bins) * warps_per_block * sizeof(unsigned);
            TRY(cudaFuncSetAttribute(bin_points_kernel<Point, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)));
            TRY(cudaFuncSetAttribute(bin_points_kernel<Point, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)));
            TRY(launch(bin_points_kernel<Point, false>, chunks, threads_per_block, shared, stream, p, t, scratch, first,
                       offsets_per_slice));
            TRY(launch(scan_kernel, slices, scan_threads, 0, stream, scratch.offsets, offsets_per_slice, int64_t(bins) * t.chunks));
            TRY(launch(bin_points_kernel<Point, true>, chunks, threads_per_block, shared, stream, p, t, scratch, first,
                       offsets_per_slice));
            TRY(launch(own_tiles_kernel<Value, Point, Sum, Lanes, Width>, grid_of(int64_t(bins) * slices * channel_tiles),
                       threads_per_block, 0, stream, p, t, scratch, first, offsets_per_slice));
        }
    }
    return cudaSuccess;
}

template <class Value, class Point, class Sum, int HeadDim>
cudaError_t sum_by_owner(const msda_shape &shape, const params &p, const owned_scratch &scratch, cudaStream_t stream)
{
    constexpr int width = 16 / sizeof(Value);
    if (!p.add)
        TRY(clear_gaps(shape, p, static_cast<Sum *>(p.t.grad_value), stream));
    const bool vectors = is_vector_aligned(p.t.grad_output, p.grad_output, p.head_dim, sizeof(Value)) &&
                         is_vector_aligned(p.t.grad_value, p.grad_value, p.head_dim, sizeof(Sum));
    if (!vectors)
        return sum_tiles<Value, Point, Sum, 8, 1>(shape, p, scratch, stream);
    return sum_tiles<Value, Point, Sum, lanes_of<Value, HeadDim>, width>(shape, p, scratch, stream);
}

template <class Value, class Point, class Sum, int HeadDim>
cudaError_t run_backward(const msda_shape &shape, const params &p, char *workspace, cudaStream_t stream)
{
    using Real = real_of<Value>;
    const plan at = make_plan<Value, HeadDim>(shape);
    const bool want_points = p.t.grad_locations || p.t.grad_weights || p.t.grad_references;
    backward_scratch scratch = {};
    scratch.weight_gradients = workspace + at.weight_gradients;
    scratch.location_gradients = workspace + at.location_gradients;
    Sum *grad_value = static_cast<Sum *>(p.t.grad_value);

    if (p.t.grad_value && at.owned) {
        softmax_state<Real> *states = reinterpret_cast<softmax_state<Real> *>(workspace + at.softmax);
        if (p.fused)
            TRY(launch(softmax_kernel<Point>, warps(int64_t(p.batch) * p.queries * p.heads), threads_per_block, 0, stream, p, states));
        const owned_scratch owned = {reinterpret_cast<unsigned *>(workspace + at.offsets),
                                     reinterpret_cast<unsigned *>(workspace + at.list), states};
        TRY((sum_by_owner<Value, Point, Sum, HeadDim>(shape, p, owned, stream)));
        if (want_points)
            TRY((gather<Value, Point, Sum, HeadDim, false>(shape, p, scratch, stream)));
    } else if (p.t.grad_value && at.image) {
        float *image = reinterpret_cast<float *>(workspace + at.image_at);
        const int64_t row = int64_t(p.heads) * p.head_dim;
        const stride dense = {row * shape.p.value_length, row, p.head_dim};
        if constexpr (sizeof(Sum) == 2) {
            TRY((sum_directly<Value, Point, float, HeadDim>(shape, p, scratch, image, dense, true, stream)));
            TRY(round_image<Value>(shape, p, image, stream));
        }
    } else if (p.t.grad_value) {
        TRY((sum_directly<Value, Point, Sum, HeadDim>(shape, p, scratch, grad_value, p.grad_value, !p.add, stream)));
    } else if (want_points) {
        TRY((gather<Value, Point, Sum, HeadDim, false>(shape, p, scratch, stream)));
    }
    if (p.fused && want_points)
        TRY(launch(finish_fused_kernel<Point>, warps(int64_t(p.batch) * p.queries), threads_per_block, 0, stream, p,
                   static_cast<const Real *>(scratch.weight_gradients), static_cast<const Real *>(scratch.location_gradients)));
    return cudaSuccess;
}

} // namespace

template <class Value, class Point, int HeadDim> size_t backward_workspace(const msda_shape &shape)
{
    return make_plan<Value, HeadDim>(shape).total;
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
