/* SPDX-License-Identifier: Apache-2.0 */
#include "shape.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>

#define INVALID(...) msda_fail(MSDA_STATUS_INVALID_PROBLEM, __VA_ARGS__)

/* A larger struct_size is garbage, not a newer caller. */
#define LARGEST_STRUCT 65536u

/* Bytes of one tensor stay addressable by a signed offset. */
#define LARGEST_TENSOR ((int64_t)(PTRDIFF_MAX < INT64_MAX ? PTRDIFF_MAX : INT64_MAX))

static const char *const tensor_names[MSDA_TENSOR_COUNT] = {
    "value",       "sampling_locations", "attention_weights",       "reference_points",       "output",
    "grad_output", "grad_value",         "grad_sampling_locations", "grad_attention_weights", "grad_reference_points"};

static const char *const fused_tensor_names[MSDA_TENSOR_COUNT] = {
    "value",       "sampling_offsets", "attention_logits",      "reference_points",      "output",
    "grad_output", "grad_value",       "grad_sampling_offsets", "grad_attention_logits", "grad_reference_points"};

const char *msda_tensor_name(const msda_shape *shape, msda_tensor tensor)
{
    return (shape->fused ? fused_tensor_names : tensor_names)[tensor];
}

/* ---- dtypes --------------------------------------------------------------------------------------------------- */

size_t msda_dtype_size(msda_dtype dtype)
{
    switch (dtype) {
    case MSDA_DTYPE_F64:
        return 8;
    case MSDA_DTYPE_F32:
        return 4;
    case MSDA_DTYPE_F16:
    case MSDA_DTYPE_BF16:
        return 2;
    case MSDA_DTYPE_DEFAULT:
        break;
    }
    return 0;
}

const char *msda_dtype_name(msda_dtype dtype)
{
    switch (dtype) {
    case MSDA_DTYPE_F64:
        return "f64";
    case MSDA_DTYPE_F32:
        return "f32";
    case MSDA_DTYPE_F16:
        return "f16";
    case MSDA_DTYPE_BF16:
        return "bf16";
    case MSDA_DTYPE_DEFAULT:
        break;
    }
    return "?";
}

msda_dtype msda_tensor_dtype(const msda_shape *shape, msda_tensor tensor)
{
    switch (tensor) {
    case MSDA_TENSOR_VALUE:
    case MSDA_TENSOR_OUTPUT:
    case MSDA_TENSOR_GRAD_OUTPUT:
        return shape->p.value_dtype;
    case MSDA_TENSOR_GRAD_VALUE:
        return shape->p.grad_value_dtype;
    default:
        return shape->p.point_dtype;
    }
}

static bool is_16_bit(msda_dtype dtype)
{
    return dtype == MSDA_DTYPE_F16 || dtype == MSDA_DTYPE_BF16;
}

/* ---- the problem ---------------------------------------------------------------------------------------------- */

/* Copies what caller and library both know. A newer caller's fields must hold their default, 0. */
static msda_status copy_problem(msda_problem *to, const msda_problem *from)
{
    if (from == NULL)
        return msda_fail(MSDA_STATUS_NULL_POINTER, "problem is null");
    const uint32_t size = from->struct_size;
    if (size < sizeof *to || size > LARGEST_STRUCT)
        return INVALID("struct_size is %" PRIu32 ", expected %zu: call msda_problem_init()", size, sizeof *to);
    const unsigned char *bytes = (const unsigned char *)from;
    for (uint32_t i = sizeof *to; i < size; ++i)
        if (bytes[i] != 0)
            return INVALID("struct_size is %" PRIu32 " and byte %" PRIu32 " is set: a field newer than this library",
                           size, i);
    *to = *from;
    return MSDA_STATUS_SUCCESS;
}

/* Caller structs are C: any number may stand in an enum, so compare as integers. */
static msda_status check_choice(const char *field, int value, int last)
{
    if (value < 0 || value > last)
        return INVALID("%s is %d, expected 0..%d", field, value, last);
    return MSDA_STATUS_SUCCESS;
}

static msda_status check_count(const char *field, int64_t value)
{
    if (value < 0)
        return INVALID("%s is %" PRId64 ", expected >= 0", field, value);
    return MSDA_STATUS_SUCCESS;
}

static msda_status complete_dtypes(msda_problem *p)
{
    MSDA_TRY(check_choice("value_dtype", (int)p->value_dtype, MSDA_DTYPE_BF16));
    MSDA_TRY(check_choice("point_dtype", (int)p->point_dtype, MSDA_DTYPE_BF16));
    MSDA_TRY(check_choice("grad_value_dtype", (int)p->grad_value_dtype, MSDA_DTYPE_BF16));
    if (p->value_dtype == MSDA_DTYPE_DEFAULT)
        return INVALID("value_dtype is 0, expected one of MSDA_DTYPE_*");
    if (p->point_dtype == MSDA_DTYPE_DEFAULT)
        p->point_dtype = p->value_dtype == MSDA_DTYPE_F64 ? MSDA_DTYPE_F64 : MSDA_DTYPE_F32;
    if (p->grad_value_dtype == MSDA_DTYPE_DEFAULT)
        p->grad_value_dtype = p->value_dtype;

    const bool f32_beside_16_bit = is_16_bit(p->value_dtype);
    if (p->point_dtype != p->value_dtype && !(f32_beside_16_bit && p->point_dtype == MSDA_DTYPE_F32))
        return INVALID("point_dtype is %s beside value_dtype %s, expected %s%s", msda_dtype_name(p->point_dtype),
                       msda_dtype_name(p->value_dtype), msda_dtype_name(p->value_dtype),
                       f32_beside_16_bit ? " or f32" : "");
    if (p->grad_value_dtype != p->value_dtype && !(f32_beside_16_bit && p->grad_value_dtype == MSDA_DTYPE_F32))
        return INVALID("grad_value_dtype is %s beside value_dtype %s, expected %s%s",
                       msda_dtype_name(p->grad_value_dtype), msda_dtype_name(p->value_dtype),
                       msda_dtype_name(p->value_dtype), f32_beside_16_bit ? " or f32" : "");
    return MSDA_STATUS_SUCCESS;
}

static msda_status complete_options(msda_problem *p)
{
    if ((p->flags & ~MSDA_FLAG_ADD_TO_GRADIENTS) != 0)
        return INVALID("flags is 0x%" PRIx32 ", expected none but MSDA_FLAG_*", p->flags);
    MSDA_TRY(check_choice("accumulate", (int)p->accumulate, MSDA_ACCUMULATE_DETERMINISTIC));
    MSDA_TRY(check_choice("padding", (int)p->padding, MSDA_PADDING_BORDER));
    MSDA_TRY(check_choice("sampling", (int)p->sampling, MSDA_SAMPLING_DISCRETE));
    MSDA_TRY(check_choice("align_corners", p->align_corners, 1));
    MSDA_TRY(check_choice("reference_kind", (int)p->reference_kind, MSDA_REFERENCE_ANCHORS));
    MSDA_TRY(check_count("num_anchors", p->num_anchors));
    if (p->reference_kind == MSDA_REFERENCE_ANCHORS && p->num_anchors == 0)
        return INVALID("num_anchors is 0, expected >= 1 with anchors");
    if (!isfinite(p->box_scale))
        return INVALID("box_scale is %g, expected a finite number", (double)p->box_scale);
    if (p->reserved != 0)
        return INVALID("reserved is %" PRId32 ", expected 0", p->reserved);
    if (p->box_scale == 0.0f)
        p->box_scale = 0.5f;
    return MSDA_STATUS_SUCCESS;
}

static msda_status check_level(const msda_problem *p, int l)
{
    const msda_level *level = &p->levels[l];
    if (level->height < 1)
        return INVALID("levels[%d].height is %" PRId32 ", expected >= 1", l, level->height);
    if (level->width < 1)
        return INVALID("levels[%d].width is %" PRId32 ", expected >= 1", l, level->width);
    if (level->points < 0)
        return INVALID("levels[%d].points is %" PRId32 ", expected >= 0", l, level->points);
    if (level->reserved != 0)
        return INVALID("levels[%d].reserved is %" PRId32 ", expected 0", l, level->reserved);
    if (level->start < 0)
        return INVALID("levels[%d].start is %" PRId64 ", expected >= 0", l, level->start);
    const int64_t rows = (int64_t)level->height * level->width;
    if (rows > p->value_length || level->start > p->value_length - rows)
        return INVALID("levels[%d] has start %" PRId64 " and %" PRId32 " x %" PRId32
                       " rows, past value_length %" PRId64,
                       l, level->start, level->height, level->width, p->value_length);
    for (int k = 0; k < l; ++k) {
        const msda_level *other = &p->levels[k];
        const int64_t other_rows = (int64_t)other->height * other->width;
        if (level->start < other->start + other_rows && other->start < level->start + rows)
            return INVALID("levels[%d].start is %" PRId64 ", overlaps levels[%d] (rows %" PRId64 "..%" PRId64 ")", l,
                           level->start, k, other->start, other->start + other_rows - 1);
    }
    return MSDA_STATUS_SUCCESS;
}

static msda_status complete_sizes(msda_shape *shape)
{
    const msda_problem *p = &shape->p;
    MSDA_TRY(check_count("batch", p->batch));
    MSDA_TRY(check_count("queries", p->queries));
    MSDA_TRY(check_count("heads", p->heads));
    MSDA_TRY(check_count("head_dim", p->head_dim));
    MSDA_TRY(check_count("value_length", p->value_length));
    if (p->num_levels < 0 || p->num_levels > MSDA_MAX_LEVELS)
        return INVALID("num_levels is %" PRId32 ", expected 0..%d", p->num_levels, MSDA_MAX_LEVELS);

    int64_t pixels = 0;
    int dense = 1; /* one level begins where the one before it ends */
    shape->num_points = 0;
    shape->first_point[0] = 0;
    for (int l = 0; l < p->num_levels; ++l) {
        MSDA_TRY(check_level(p, l));
        dense = dense && p->levels[l].start == pixels;
        pixels += (int64_t)p->levels[l].height * p->levels[l].width;
        shape->num_points += p->levels[l].points;
        if (shape->num_points > INT32_MAX)
            return INVALID("levels[%d].points is %" PRId32 ", which makes %" PRId64 " points a head, expected <= %d", l,
                           p->levels[l].points, shape->num_points, INT32_MAX);
        shape->first_point[l + 1] = (int32_t)shape->num_points;
    }
    shape->queries_are_pixels = dense && pixels == p->queries;
    shape->empty = p->batch == 0 || p->queries == 0 || p->heads == 0 || p->head_dim == 0 || shape->num_points == 0;
    return MSDA_STATUS_SUCCESS;
}

/* ---- extents and strides -------------------------------------------------------------------------------------- */

msda_runs msda_runs_of(const msda_shape *shape, msda_tensor tensor)
{
    const msda_problem *p = &shape->p;
    msda_runs e = {p->batch, p->queries, p->heads, p->head_dim};
    switch (tensor) {
    case MSDA_TENSOR_VALUE:
    case MSDA_TENSOR_GRAD_VALUE:
        e.row = p->value_length;
        break;
    case MSDA_TENSOR_LOCATIONS:
    case MSDA_TENSOR_GRAD_LOCATIONS:
        e.run = shape->num_points * 2;
        break;
    case MSDA_TENSOR_WEIGHTS:
    case MSDA_TENSOR_GRAD_WEIGHTS:
        e.run = shape->num_points;
        break;
    case MSDA_TENSOR_REFERENCES:
    case MSDA_TENSOR_GRAD_REFERENCES:
        e.head = 1;
        e.run = p->reference_kind == MSDA_REFERENCE_ANCHORS ? (int64_t)p->num_anchors * 2
                : p->reference_kind == MSDA_REFERENCE_BOXES ? (int64_t)p->num_levels * 4
                                                            : (int64_t)p->num_levels * 2;
        break;
    default:
        break;
    }
    return e;
}

static bool has_elements(msda_runs e)
{
    return e.batch > 0 && e.row > 0 && e.head > 0 && e.run > 0;
}

/* *product = a * b for a, b >= 0; false if it passes LARGEST_TENSOR. */
static bool multiply(int64_t a, int64_t b, int64_t *product)
{
    if (a != 0 && b > LARGEST_TENSOR / a)
        return false;
    *product = a * b;
    return true;
}

typedef struct axis {
    const char *name;
    int64_t extent, stride;
} axis;

/* The three axes of a tensor, the smallest stride first. */
static void sort_axes(axis axes[3], msda_runs e, const msda_stride *stride)
{
    axes[0] = (axis){"head", e.head, stride->head};
    axes[1] = (axis){"row", e.row, stride->row};
    axes[2] = (axis){"batch", e.batch, stride->batch};
    for (int i = 1; i < 3; ++i)
        for (int j = i; j > 0 && axes[j].stride < axes[j - 1].stride; --j) {
            const axis swap = axes[j];
            axes[j] = axes[j - 1];
            axes[j - 1] = swap;
        }
}

/* Fills in dense strides, refuses negative and overlapping ones and tensors too large to address. */
static msda_status complete_strides(msda_shape *shape, int tensor)
{
    const char *name = msda_tensor_name(shape, tensor);
    const msda_runs e = msda_runs_of(shape, tensor);
    msda_stride *stride = &shape->p.strides[tensor];
    const int64_t size = (int64_t)msda_dtype_size(msda_tensor_dtype(shape, (msda_tensor)tensor));

    if (stride->batch < 0 || stride->row < 0 || stride->head < 0)
        return INVALID("strides of %s are %" PRId64 ", %" PRId64 ", %" PRId64 ", expected >= 0", name, stride->batch,
                       stride->row, stride->head);
    const bool is_reference = tensor == MSDA_TENSOR_REFERENCES || tensor == MSDA_TENSOR_GRAD_REFERENCES;
    if (is_reference && stride->head != 0)
        return INVALID("head stride of %s is %" PRId64 ", expected 0: it has no heads", name, stride->head);

    int64_t row, batch, bytes;
    if (!multiply(e.run, e.head, &row) || !multiply(row, e.row, &batch) || !multiply(batch, e.batch, &bytes) ||
        !multiply(bytes, size, &bytes))
        return INVALID("%s has %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64
                       " elements, more than can be addressed",
                       name, e.batch, e.row, e.head, e.run);
    /* A stride of 0 packs what lies inside it, whatever its own strides. */
    if (stride->head == 0)
        stride->head = e.run;
    int64_t rows, heads;
    if (!multiply(e.head, stride->head, &heads))
        return INVALID("head stride of %s is %" PRId64 ", which makes it larger than can be addressed", name,
                       stride->head);
    if (stride->row == 0)
        stride->row = heads;
    if (!multiply(e.row, stride->row, &rows))
        return INVALID("row stride of %s is %" PRId64 ", which makes it larger than can be addressed", name,
                       stride->row);
    if (stride->batch == 0)
        stride->batch = rows > heads ? rows : heads;
    if (!has_elements(e))
        return MSDA_STATUS_SUCCESS;

    axis axes[3];
    sort_axes(axes, e, stride);
    int64_t span = e.run; /* elements from the first to past the last over the axes so far */
    for (int i = 0; i < 3; ++i) {
        if (axes[i].extent == 1)
            continue;
        if (axes[i].stride < span)
            return INVALID("%s stride of %s is %" PRId64 ", expected 0 (dense) or >= %" PRId64 ": its elements overlap",
                           axes[i].name, name, axes[i].stride, span);
        int64_t reach;
        if (!multiply(axes[i].extent - 1, axes[i].stride, &reach) || reach > LARGEST_TENSOR - span ||
            !multiply(reach + span, size, &bytes))
            return INVALID("%s stride of %s is %" PRId64 ", which makes it larger than can be addressed", axes[i].name,
                           name, axes[i].stride);
        span += reach;
    }
    return MSDA_STATUS_SUCCESS;
}

size_t msda_extent(const msda_shape *shape, msda_tensor tensor)
{
    const msda_runs e = msda_runs_of(shape, tensor);
    if (!has_elements(e))
        return 0;
    const msda_stride *stride = &shape->p.strides[tensor];
    const int64_t span =
        e.run + (e.head - 1) * stride->head + (e.row - 1) * stride->row + (e.batch - 1) * stride->batch;
    return (size_t)span * msda_dtype_size(msda_tensor_dtype(shape, tensor));
}

msda_status msda_shape_init(msda_shape *shape, const msda_problem *problem, int fused)
{
    shape->fused = fused;
    MSDA_TRY(copy_problem(&shape->p, problem));
    MSDA_TRY(complete_dtypes(&shape->p));
    MSDA_TRY(complete_options(&shape->p));
    MSDA_TRY(complete_sizes(shape));
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        MSDA_TRY(complete_strides(shape, tensor));
    return MSDA_STATUS_SUCCESS;
}

msda_status msda_problem_check(const msda_problem *problem)
{
    msda_shape shape;
    return msda_shape_init(&shape, problem, 0);
}

msda_status msda_tensor_size(const msda_problem *problem, msda_tensor tensor, size_t *size)
{
    msda_shape shape;
    if (size == NULL)
        return msda_fail(MSDA_STATUS_NULL_POINTER, "size is null");
    MSDA_TRY(msda_shape_init(&shape, problem, 0));
    MSDA_TRY(check_choice("tensor", (int)tensor, MSDA_TENSOR_COUNT - 1));
    *size = msda_extent(&shape, tensor);
    return MSDA_STATUS_SUCCESS;
}

msda_status msda_problem_add_level(msda_problem *problem, int32_t height, int32_t width, int32_t points)
{
    if (problem == NULL)
        return msda_fail(MSDA_STATUS_NULL_POINTER, "problem is null");
    if (problem->num_levels < 0 || problem->num_levels >= MSDA_MAX_LEVELS)
        return INVALID("num_levels is %" PRId32 ", expected 0..%d to add one", problem->num_levels,
                       MSDA_MAX_LEVELS - 1);
    if (height < 1)
        return INVALID("height is %" PRId32 ", expected >= 1", height);
    if (width < 1)
        return INVALID("width is %" PRId32 ", expected >= 1", width);
    if (points < 0)
        return INVALID("points is %" PRId32 ", expected >= 0", points);

    const int64_t rows = (int64_t)height * width;
    int64_t start = 0;
    for (int l = 0; l < problem->num_levels; ++l) {
        const msda_level *level = &problem->levels[l];
        const int64_t level_rows = (int64_t)level->height * level->width;
        if (level->start > INT64_MAX - rows - level_rows)
            return INVALID("height is %" PRId32 " and width is %" PRId32 ", past any value_length behind levels[%d]",
                           height, width, l);
        const int64_t end = level->start + level_rows;
        start = end > start ? end : start;
    }
    const msda_level level = {start, height, width, points, 0};
    const int64_t end = start + rows;
    problem->levels[problem->num_levels++] = level;
    if (problem->value_length < end)
        problem->value_length = end;
    return MSDA_STATUS_SUCCESS;
}

/* ---- tensors -------------------------------------------------------------------------------------------------- */

static int64_t greatest_common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A tensor in memory as runs of `run` bytes at distances that are multiples of `step` bytes (0: a single run). */
typedef struct footprint {
    uintptr_t first;
    int64_t run, step;
} footprint;

static footprint footprint_of(const msda_shape *shape, int tensor, const void *pointer)
{
    const int64_t size = (int64_t)msda_dtype_size(msda_tensor_dtype(shape, (msda_tensor)tensor));
    const msda_runs e = msda_runs_of(shape, tensor);
    axis axes[3];
    sort_axes(axes, e, &shape->p.strides[tensor]);
    footprint f = {(uintptr_t)pointer, e.run, 0};
    for (int i = 0; i < 3; ++i) {
        if (axes[i].extent == 1)
            continue;
        if (f.step == 0 && axes[i].stride == f.run)
            f.run *= axes[i].extent; /* dense so far: one longer run */
        else
            f.step = greatest_common_divisor(f.step, axes[i].stride);
    }
    f.run *= size;
    f.step *= size;
    return f;
}

/*
 * Whether two tensors are known to share a byte. Interleaved slices of one wider tensor are told apart by where their
 * runs lie within the common step. Two interleaved tensors with unlike steps are given the benefit of the doubt.
 */
static bool overlap(const msda_shape *shape, int a, const void *a_pointer, int b, const void *b_pointer)
{
    const uintptr_t a_first = (uintptr_t)a_pointer, b_first = (uintptr_t)b_pointer;
    const size_t a_size = msda_extent(shape, (msda_tensor)a), b_size = msda_extent(shape, (msda_tensor)b);
    if (a_size == 0 || b_size == 0 || a_first + a_size <= b_first || b_first + b_size <= a_first)
        return false;
    const footprint f = footprint_of(shape, a, a_pointer), g = footprint_of(shape, b, b_pointer);
    if (f.step == 0 && g.step == 0)
        return true;
    const int64_t step = greatest_common_divisor(f.step, g.step);
    const int64_t distance = g.first >= f.first ? (int64_t)((g.first - f.first) % (uintptr_t)step)
                                                : (step - (int64_t)((f.first - g.first) % (uintptr_t)step)) % step;
    const bool apart = distance >= f.run && step - distance >= g.run;
    return !apart && f.step == g.step;
}

const void *msda_tensor_pointer(const msda_tensors *tensors, msda_tensor tensor)
{
    switch (tensor) {
    case MSDA_TENSOR_VALUE:
        return tensors->value;
    case MSDA_TENSOR_LOCATIONS:
        return tensors->locations;
    case MSDA_TENSOR_WEIGHTS:
        return tensors->weights;
    case MSDA_TENSOR_REFERENCES:
        return tensors->references;
    case MSDA_TENSOR_OUTPUT:
        return tensors->output;
    case MSDA_TENSOR_GRAD_OUTPUT:
        return tensors->grad_output;
    case MSDA_TENSOR_GRAD_VALUE:
        return tensors->grad_value;
    case MSDA_TENSOR_GRAD_LOCATIONS:
        return tensors->grad_locations;
    case MSDA_TENSOR_GRAD_WEIGHTS:
        return tensors->grad_weights;
    default:
        return tensors->grad_references;
    }
}

static bool is_written(int tensor)
{
    return tensor == MSDA_TENSOR_OUTPUT || tensor >= MSDA_TENSOR_GRAD_VALUE;
}

static bool is_required(const msda_shape *shape, int tensor, msda_direction direction)
{
    switch (tensor) {
    case MSDA_TENSOR_VALUE:
    case MSDA_TENSOR_LOCATIONS:
    case MSDA_TENSOR_WEIGHTS:
        return true;
    case MSDA_TENSOR_REFERENCES:
        return shape->fused != 0;
    case MSDA_TENSOR_OUTPUT:
        return direction == MSDA_FORWARD;
    case MSDA_TENSOR_GRAD_OUTPUT:
        return direction == MSDA_BACKWARD;
    default:
        return false;
    }
}

static msda_status check_tensors(const msda_shape *shape, const msda_tensors *tensors, msda_direction direction)
{
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor) {
        const void *pointer = msda_tensor_pointer(tensors, tensor);
        const size_t size = msda_dtype_size(msda_tensor_dtype(shape, (msda_tensor)tensor));
        if (pointer == NULL && is_required(shape, tensor, direction) && msda_extent(shape, (msda_tensor)tensor) > 0)
            return msda_fail(MSDA_STATUS_NULL_POINTER, "%s is null", msda_tensor_name(shape, tensor));
        /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a checked problem has no dtype without a size. */
        if ((uintptr_t)pointer % size != 0)
            return msda_fail(MSDA_STATUS_MISALIGNED, "%s is at %p, expected a multiple of %zu bytes",
                             msda_tensor_name(shape, tensor), pointer, size);
    }
    for (int written = 0; written < MSDA_TENSOR_COUNT; ++written) {
        const void *pointer = msda_tensor_pointer(tensors, written);
        if (pointer == NULL || !is_written(written))
            continue;
        for (int other = 0; other < MSDA_TENSOR_COUNT; ++other) {
            const void *other_pointer = msda_tensor_pointer(tensors, other);
            const bool seen = other == written || (is_written(other) && other < written);
            if (other_pointer != NULL && !seen && overlap(shape, written, pointer, other, other_pointer))
                return msda_fail(MSDA_STATUS_OVERLAP, "%s at %p overlaps %s at %p", msda_tensor_name(shape, written),
                                 pointer, msda_tensor_name(shape, other), other_pointer);
        }
    }
    return MSDA_STATUS_SUCCESS;
}

static msda_status check_args(const void *args)
{
    return args == NULL ? msda_fail(MSDA_STATUS_NULL_POINTER, "args is null") : MSDA_STATUS_SUCCESS;
}

msda_status msda_open_forward(msda_shape *shape, msda_tensors *tensors, const msda_problem *problem,
                              const msda_forward_args *args)
{
    MSDA_TRY(msda_shape_init(shape, problem, 0));
    MSDA_TRY(check_args(args));
    *tensors = (msda_tensors){.value = args->value,
                              .locations = args->sampling_locations,
                              .weights = args->attention_weights,
                              .output = args->output};
    return check_tensors(shape, tensors, MSDA_FORWARD);
}

msda_status msda_open_backward(msda_shape *shape, msda_tensors *tensors, const msda_problem *problem,
                               const msda_backward_args *args)
{
    MSDA_TRY(msda_shape_init(shape, problem, 0));
    MSDA_TRY(check_args(args));
    *tensors = (msda_tensors){.value = args->value,
                              .locations = args->sampling_locations,
                              .weights = args->attention_weights,
                              .grad_output = args->grad_output,
                              .grad_value = args->grad_value,
                              .grad_locations = args->grad_sampling_locations,
                              .grad_weights = args->grad_attention_weights};
    return check_tensors(shape, tensors, MSDA_BACKWARD);
}

msda_status msda_open_fused_forward(msda_shape *shape, msda_tensors *tensors, const msda_problem *problem,
                                    const msda_fused_forward_args *args)
{
    MSDA_TRY(msda_shape_init(shape, problem, 1));
    MSDA_TRY(check_args(args));
    *tensors = (msda_tensors){.value = args->value,
                              .locations = args->sampling_offsets,
                              .weights = args->attention_logits,
                              .references = args->reference_points,
                              .output = args->output};
    return check_tensors(shape, tensors, MSDA_FORWARD);
}

msda_status msda_open_fused_backward(msda_shape *shape, msda_tensors *tensors, const msda_problem *problem,
                                     const msda_fused_backward_args *args)
{
    MSDA_TRY(msda_shape_init(shape, problem, 1));
    MSDA_TRY(check_args(args));
    *tensors = (msda_tensors){.value = args->value,
                              .locations = args->sampling_offsets,
                              .weights = args->attention_logits,
                              .references = args->reference_points,
                              .grad_output = args->grad_output,
                              .grad_value = args->grad_value,
                              .grad_locations = args->grad_sampling_offsets,
                              .grad_weights = args->grad_attention_logits,
                              .grad_references = args->grad_reference_points};
    return check_tensors(shape, tensors, MSDA_BACKWARD);
}

msda_status msda_check_workspace(const msda_shape *shape, const msda_tensors *tensors, const void *workspace,
                                 size_t size, size_t needed, size_t alignment)
{
    if (needed == 0)
        return MSDA_STATUS_SUCCESS;
    if (workspace == NULL)
        return msda_fail(MSDA_STATUS_NULL_POINTER, "workspace is null, expected %zu bytes", needed);
    if ((uintptr_t)workspace % alignment != 0)
        return msda_fail(MSDA_STATUS_MISALIGNED, "workspace is at %p, expected a multiple of %zu bytes", workspace,
                         alignment);
    if (size < needed)
        return msda_fail(MSDA_STATUS_WORKSPACE_TOO_SMALL, "workspace_size is %zu, expected >= %zu", size, needed);
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor) {
        const uintptr_t first = (uintptr_t)msda_tensor_pointer(tensors, tensor), begin = (uintptr_t)workspace;
        const size_t extent_size = msda_extent(shape, (msda_tensor)tensor);
        if (first != 0 && extent_size > 0 && first < begin + needed && begin < first + extent_size)
            return msda_fail(MSDA_STATUS_OVERLAP, "workspace at %p overlaps %s at %p", workspace,
                             msda_tensor_name(shape, tensor), (const void *)first);
    }
    return MSDA_STATUS_SUCCESS;
}
