/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The definition: multi-scale deformable attention in plain loops over double. Read this file first; the fast back ends
 * are checked against it. It never gets faster: a change here is a change of the specification.
 *
 * Letters: n batch item, q query, m head, l level, k point of a head (over all levels), c channel, r row of value.
 *
 *   output[n,q,m,c] = sum over k, over the corners of k:  weight[k] * corner.weight * value[n, corner.row, m, c]
 *
 * and with g = grad_output[n,q,m,:] every gradient is one partial derivative of that line:
 *
 *   grad_value[n, corner.row, m, c] += weight[k] * corner.weight  * g[c]
 *   grad_weight[k]                  += corner.weight              * dot(g, value[n, corner.row, m, :])
 *   grad_location[k].x              += weight[k] * corner.slope_x * dot(g, value[n, corner.row, m, :])
 *   grad_location[k].y              += weight[k] * corner.slope_y * dot(g, value[n, corner.row, m, :])
 */
#include "naive.h"

#include <math.h>
#include <stdbool.h>

/* ---- where a point samples ------------------------------------------------------------------------------------ */

/* A point's place along one axis of a level. */
typedef struct place {
    bool counts;     /* false: the point contributes nothing */
    double pixel;    /* the lower of the two pixels around the point; may be -1 */
    double fraction; /* of the way to the next pixel */
    double slope;    /* pixels that the point moves by for one unit of location */
} place;

static place find_place(const msda_problem *p, double location, int32_t size)
{
    const double last = size - 1.0;
    if (p->sampling == MSDA_SAMPLING_DISCRETE) {
        const double pixel = trunc(location * size + 0.5);
        return (place){!isnan(pixel), fmin(fmax(pixel, 0.0), last), 0.0, 0.0};
    }

    /* Two roundings: the build forbids contraction to a fused multiply-add. */
    double slope = p->align_corners ? last : size;
    double position = p->align_corners ? location * last : location * size - 0.5;
    if (p->padding == MSDA_PADDING_BORDER && position < 0.0) {
        position = 0.0;
        slope = 0.0;
    }
    /* On the last pixel itself the right-hand slope is that of the constant continuation: 0. */
    if (p->padding == MSDA_PADDING_BORDER && position >= last) {
        position = last;
        slope = 0.0;
    }
    const bool counts = position > -1.0 && position < size; /* false for NaN */
    const double pixel = floor(position);
    return (place){counts, pixel, position - pixel, slope};
}

/* A pixel that a point reads: its row of value, its bilinear weight, and how that changes with the location. */
typedef struct corner {
    int64_t row;
    double weight, slope_x, slope_y;
} corner;

/* The corners of a point at location (x, y) that lie inside the level; outside ones count as zero, so they are absent. */
static int find_corners(const msda_problem *p, const msda_level *level, double x, double y, corner corners[4])
{
    const place px = find_place(p, x, level->width);
    const place py = find_place(p, y, level->height);
    if (!px.counts || !py.counts)
        return 0;

    const int per_axis = p->sampling == MSDA_SAMPLING_DISCRETE ? 1 : 2;
    int count = 0;
    for (int i = 0; i < per_axis; ++i)
        for (int j = 0; j < per_axis; ++j) {
            const int64_t row = (int64_t)py.pixel + i, column = (int64_t)px.pixel + j;
            if (row < 0 || row >= level->height || column < 0 || column >= level->width)
                continue;
            const double weight_y = i ? py.fraction : 1.0 - py.fraction;
            const double weight_x = j ? px.fraction : 1.0 - px.fraction;
            corners[count++] = (corner){.row = level->start + row * level->width + column,
                                        .weight = weight_x * weight_y,
                                        .slope_x = (j ? px.slope : -px.slope) * weight_y,
                                        .slope_y = (i ? py.slope : -py.slope) * weight_x};
        }
    return count;
}

/* ---- the tensors of one query and head ------------------------------------------------------------------------ */

/* The element where row `row` (pixel or query) of head m of batch item n begins. */
static int64_t begin(const msda_shape *shape, msda_tensor tensor, int64_t n, int64_t row, int64_t m)
{
    const msda_stride *stride = &shape->p.strides[tensor];
    return n * stride->batch + row * stride->row + m * stride->head;
}

/* What one query and head of either form gives: its points' levels, locations and weights. */
typedef struct head {
    const msda_shape *shape;
    const double *locations;  /* [k][2]; fused: offsets */
    const double *weights;    /* [k]; fused: logits */
    const double *references; /* fused: of the query */
    double largest_logit, sum_of_exponentials;
} head;

static double weight_of(const head *h, int64_t k)
{
    return h->shape->fused ? exp(h->weights[k] - h->largest_logit) / h->sum_of_exponentials : h->weights[k];
}

static head open_head(const msda_shape *shape, const msda_tensors *t, int64_t n, int64_t q, int64_t m)
{
    head h = {shape,
              (const double *)t->locations + begin(shape, MSDA_TENSOR_LOCATIONS, n, q, m),
              (const double *)t->weights + begin(shape, MSDA_TENSOR_WEIGHTS, n, q, m),
              NULL,
              -INFINITY,
              0.0};
    if (!shape->fused)
        return h;
    h.references = (const double *)t->references + begin(shape, MSDA_TENSOR_REFERENCES, n, q, 0);
    for (int64_t k = 0; k < shape->num_points; ++k)
        h.largest_logit = h.weights[k] > h.largest_logit ? h.weights[k] : h.largest_logit;
    for (int64_t k = 0; k < shape->num_points; ++k)
        h.sum_of_exponentials += exp(h.weights[k] - h.largest_logit);
    return h;
}

/* The index in a query's references of the (x, y) that point k, on level l, refers to. In a box, (w, h) follow. */
static int64_t reference_of(const msda_shape *shape, int l, int64_t k)
{
    switch (shape->p.reference_kind) {
    case MSDA_REFERENCE_BOXES:
        return 4 * l;
    case MSDA_REFERENCE_ANCHORS:
        return 2 * ((k - shape->first_point[l]) % shape->p.num_anchors);
    default:
        return 2 * l;
    }
}

/* How far one unit of offset moves a location along an axis (0: x, 1: y). */
static double offset_scale(const head *h, int l, int64_t k, int axis)
{
    const msda_level *level = &h->shape->p.levels[l];
    if (h->shape->p.reference_kind == MSDA_REFERENCE_BOXES)
        return h->references[reference_of(h->shape, l, k) + 2 + axis] * (double)h->shape->p.box_scale / level->points;
    return 1.0 / (axis == 0 ? level->width : level->height);
}

static double location_of(const head *h, int l, int64_t k, int axis)
{
    const double given = h->locations[2 * k + axis];
    if (!h->shape->fused)
        return given;
    return h->references[reference_of(h->shape, l, k) + axis] + given * offset_scale(h, l, k, axis);
}

static int corners_of(const head *h, int l, int64_t k, corner corners[4])
{
    return find_corners(&h->shape->p, &h->shape->p.levels[l], location_of(h, l, k, 0), location_of(h, l, k, 1),
                        corners);
}

/* ---- forward -------------------------------------------------------------------------------------------------- */

static void forward_head(const msda_shape *shape, const msda_tensors *t, int64_t n, int64_t q, int64_t m)
{
    const head h = open_head(shape, t, n, q, m);
    const double *value = t->value;
    double *output = (double *)t->output + begin(shape, MSDA_TENSOR_OUTPUT, n, q, m);
    for (int32_t c = 0; c < shape->p.head_dim; ++c)
        output[c] = 0.0;
    for (int l = 0; l < shape->p.num_levels; ++l)
        for (int64_t k = shape->first_point[l]; k < shape->first_point[l + 1]; ++k) {
            corner corners[4];
            const int count = corners_of(&h, l, k, corners);
            for (int i = 0; i < count; ++i) {
                const double *row = value + begin(shape, MSDA_TENSOR_VALUE, n, corners[i].row, m);
                for (int32_t c = 0; c < shape->p.head_dim; ++c)
                    output[c] += weight_of(&h, k) * corners[i].weight * row[c];
            }
        }
}

void msda_naive_forward_items(const msda_shape *shape, const msda_tensors *tensors, int64_t first, int64_t last)
{
    for (int64_t item = first; item < last; ++item)
        for (int64_t m = 0; m < shape->p.heads; ++m)
            forward_head(shape, tensors, item / shape->p.queries, item % shape->p.queries, m);
}

/* ---- backward ------------------------------------------------------------------------------------------------- */

/* What one query and head needs for its gradients. */
typedef struct head_gradient {
    head h;
    const double *value;       /* of the batch item and head: row r begins at r * value_stride */
    const double *grad_output; /* [c] */
    int64_t value_stride;
} head_gradient;

static head_gradient open_gradient(const msda_shape *shape, const msda_tensors *t, int64_t n, int64_t q, int64_t m)
{
    return (head_gradient){open_head(shape, t, n, q, m),
                           (const double *)t->value + begin(shape, MSDA_TENSOR_VALUE, n, 0, m),
                           (const double *)t->grad_output + begin(shape, MSDA_TENSOR_GRAD_OUTPUT, n, q, m),
                           shape->p.strides[MSDA_TENSOR_VALUE].row};
}

/* The gradients of one point with respect to its weight and its location. */
typedef struct point_gradient {
    double weight, x, y;
} point_gradient;

static point_gradient gradient_of(const head_gradient *hg, int l, int64_t k)
{
    point_gradient gradient = {0.0, 0.0, 0.0};
    corner corners[4];
    const int count = corners_of(&hg->h, l, k, corners);
    const double weight = weight_of(&hg->h, k);
    for (int i = 0; i < count; ++i) {
        const double *row = hg->value + corners[i].row * hg->value_stride;
        double dot = 0.0;
        for (int32_t c = 0; c < hg->h.shape->p.head_dim; ++c)
            dot += hg->grad_output[c] * row[c];
        gradient.weight += corners[i].weight * dot;
        gradient.x += weight * corners[i].slope_x * dot;
        gradient.y += weight * corners[i].slope_y * dot;
    }
    return gradient;
}

static void write(const msda_shape *shape, double *to, double gradient)
{
    *to = (shape->p.flags & MSDA_FLAG_ADD_TO_GRADIENTS) ? *to + gradient : gradient;
}

static void write_grad_locations(const head_gradient *hg, double *grad_locations)
{
    const msda_shape *shape = hg->h.shape;
    for (int l = 0; l < shape->p.num_levels; ++l)
        for (int64_t k = shape->first_point[l]; k < shape->first_point[l + 1]; ++k) {
            const point_gradient gradient = gradient_of(hg, l, k);
            /* fused: location = reference + offset * scale */
            const double scale_x = shape->fused ? offset_scale(&hg->h, l, k, 0) : 1.0;
            const double scale_y = shape->fused ? offset_scale(&hg->h, l, k, 1) : 1.0;
            write(shape, &grad_locations[2 * k], gradient.x * scale_x);
            write(shape, &grad_locations[2 * k + 1], gradient.y * scale_y);
        }
}

/* Fused: softmax turns the weights' gradients G into those of the logits, weight[k] * (G[k] - sum_j weight[j] G[j]). */
static void write_grad_weights(const head_gradient *hg, double *grad_weights)
{
    const msda_shape *shape = hg->h.shape;
    double mean = 0.0;
    for (int l = 0; shape->fused && l < shape->p.num_levels; ++l)
        for (int64_t k = shape->first_point[l]; k < shape->first_point[l + 1]; ++k)
            mean += weight_of(&hg->h, k) * gradient_of(hg, l, k).weight;
    for (int l = 0; l < shape->p.num_levels; ++l)
        for (int64_t k = shape->first_point[l]; k < shape->first_point[l + 1]; ++k) {
            const double gradient = gradient_of(hg, l, k).weight;
            write(shape, &grad_weights[k], shape->fused ? weight_of(&hg->h, k) * (gradient - mean) : gradient);
        }
}

/* grad_value points at the batch item's head. */
static void add_grad_value(const head_gradient *hg, double *grad_value)
{
    const msda_shape *shape = hg->h.shape;
    for (int l = 0; l < shape->p.num_levels; ++l)
        for (int64_t k = shape->first_point[l]; k < shape->first_point[l + 1]; ++k) {
            corner corners[4];
            const int count = corners_of(&hg->h, l, k, corners);
            for (int i = 0; i < count; ++i) {
                double *row = grad_value + corners[i].row * shape->p.strides[MSDA_TENSOR_GRAD_VALUE].row;
                for (int32_t c = 0; c < shape->p.head_dim; ++c)
                    row[c] += weight_of(&hg->h, k) * corners[i].weight * hg->grad_output[c];
            }
        }
}

static void clear_grad_value(const msda_shape *shape, double *grad_value)
{
    for (int64_t r = 0; r < shape->p.value_length; ++r)
        for (int32_t c = 0; c < shape->p.head_dim; ++c)
            grad_value[r * shape->p.strides[MSDA_TENSOR_GRAD_VALUE].row + c] = 0.0;
}

static void backward_head(const msda_shape *shape, const msda_tensors *t, int64_t n, int64_t m)
{
    double *grad_value = t->grad_value ? (double *)t->grad_value + begin(shape, MSDA_TENSOR_GRAD_VALUE, n, 0, m) : NULL;
    if (grad_value && !(shape->p.flags & MSDA_FLAG_ADD_TO_GRADIENTS))
        clear_grad_value(shape, grad_value);
    for (int64_t q = 0; q < shape->p.queries; ++q) {
        const head_gradient hg = open_gradient(shape, t, n, q, m);
        if (grad_value)
            add_grad_value(&hg, grad_value);
        if (t->grad_locations)
            write_grad_locations(&hg, (double *)t->grad_locations + begin(shape, MSDA_TENSOR_GRAD_LOCATIONS, n, q, m));
        if (t->grad_weights)
            write_grad_weights(&hg, (double *)t->grad_weights + begin(shape, MSDA_TENSOR_GRAD_WEIGHTS, n, q, m));
    }
}

void msda_naive_backward_items(const msda_shape *shape, const msda_tensors *tensors, int64_t first, int64_t last)
{
    for (int64_t item = first; item < last; ++item)
        backward_head(shape, tensors, item / shape->p.heads, item % shape->p.heads);
}

/* The gradient of element `i` of a query's references: the sum over every head and point that refers to it. */
static double reference_gradient(const msda_shape *shape, const msda_tensors *t, int64_t n, int64_t q, int64_t i)
{
    double sum = 0.0;
    for (int64_t m = 0; m < shape->p.heads; ++m) {
        const head_gradient hg = open_gradient(shape, t, n, q, m);
        for (int l = 0; l < shape->p.num_levels; ++l)
            for (int64_t k = shape->first_point[l]; k < shape->first_point[l + 1]; ++k) {
                const int64_t component = i - reference_of(shape, l, k); /* x, y, and of a box w, h */
                const bool is_box = shape->p.reference_kind == MSDA_REFERENCE_BOXES;
                if (component < 0 || component >= (is_box ? 4 : 2))
                    continue;
                const point_gradient gradient = gradient_of(&hg, l, k);
                const double along_axis = component % 2 == 0 ? gradient.x : gradient.y;
                /* A box's size scales the offset. */
                const double size_scale =
                    hg.h.locations[2 * k + component % 2] * (double)shape->p.box_scale / shape->p.levels[l].points;
                sum += component < 2 ? along_axis : along_axis * size_scale;
            }
    }
    return sum;
}

void msda_naive_reference_items(const msda_shape *shape, const msda_tensors *tensors, int64_t first, int64_t last)
{
    const int64_t length = shape->p.reference_kind == MSDA_REFERENCE_ANCHORS ? 2 * (int64_t)shape->p.num_anchors
                           : shape->p.reference_kind == MSDA_REFERENCE_BOXES ? 4 * (int64_t)shape->p.num_levels
                                                                             : 2 * (int64_t)shape->p.num_levels;
    for (int64_t item = first; item < last; ++item) {
        const int64_t n = item / shape->p.queries, q = item % shape->p.queries;
        double *grad = (double *)tensors->grad_references + begin(shape, MSDA_TENSOR_GRAD_REFERENCES, n, q, 0);
        for (int64_t i = 0; i < length; ++i)
            write(shape, &grad[i], reference_gradient(shape, tensors, n, q, i));
    }
}

/* ---- entry points --------------------------------------------------------------------------------------------- */

static msda_status require_f64(const msda_shape *shape)
{
    if (shape->p.value_dtype != MSDA_DTYPE_F64)
        return msda_fail(MSDA_STATUS_UNSUPPORTED,
                         "value_dtype is %s, naive takes f64: widen the tensors, which is exact",
                         msda_dtype_name(shape->p.value_dtype));
    return MSDA_STATUS_SUCCESS;
}

static msda_status run_forward(const msda_shape *shape, const msda_tensors *tensors)
{
    const msda_status status = require_f64(shape);
    if (status == MSDA_STATUS_SUCCESS)
        msda_naive_forward_items(shape, tensors, 0, (int64_t)shape->p.batch * shape->p.queries);
    return status;
}

static msda_status run_backward(const msda_shape *shape, const msda_tensors *tensors)
{
    const msda_status status = require_f64(shape);
    if (status != MSDA_STATUS_SUCCESS)
        return status;
    msda_naive_backward_items(shape, tensors, 0, (int64_t)shape->p.batch * shape->p.heads);
    if (tensors->grad_references)
        msda_naive_reference_items(shape, tensors, 0, (int64_t)shape->p.batch * shape->p.queries);
    return MSDA_STATUS_SUCCESS;
}

msda_status msda_naive_forward(const msda_problem *problem, const msda_forward_args *args)
{
    msda_shape shape;
    msda_tensors tensors;
    const msda_status status = msda_open_forward(&shape, &tensors, problem, args);
    return status == MSDA_STATUS_SUCCESS ? run_forward(&shape, &tensors) : status;
}

msda_status msda_naive_backward(const msda_problem *problem, const msda_backward_args *args)
{
    msda_shape shape;
    msda_tensors tensors;
    const msda_status status = msda_open_backward(&shape, &tensors, problem, args);
    return status == MSDA_STATUS_SUCCESS ? run_backward(&shape, &tensors) : status;
}

msda_status msda_naive_fused_forward(const msda_problem *problem, const msda_fused_forward_args *args)
{
    msda_shape shape;
    msda_tensors tensors;
    const msda_status status = msda_open_fused_forward(&shape, &tensors, problem, args);
    return status == MSDA_STATUS_SUCCESS ? run_forward(&shape, &tensors) : status;
}

msda_status msda_naive_fused_backward(const msda_problem *problem, const msda_fused_backward_args *args)
{
    msda_shape shape;
    msda_tensors tensors;
    const msda_status status = msda_open_fused_backward(&shape, &tensors, problem, args);
    return status == MSDA_STATUS_SUCCESS ? run_backward(&shape, &tensors) : status;
}
