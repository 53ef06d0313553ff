/* SPDX-License-Identifier: Apache-2.0 */
#include "sampling.h"

#include <math.h>

/* A location and its rounding error; exact in the plain form. */
typedef struct location {
    double at, error;
} location;

static int level_of(const msda_problem *p, int64_t k)
{
    int level = 0;
    while (k >= p->levels[level].points)
        k -= p->levels[level++].points;
    return level;
}

static int64_t first_point_of(const msda_problem *p, int level)
{
    int64_t first = 0;
    for (int l = 0; l < level; ++l)
        first += p->levels[l].points;
    return first;
}

int64_t sampling_reference(const sampling_head *head, int64_t k)
{
    const msda_problem *p = &head->t->problem;
    const int level = level_of(p, k);
    int64_t element = 2 * level;
    if (p->reference_kind == MSDA_REFERENCE_BOXES)
        element = 4 * level;
    if (p->reference_kind == MSDA_REFERENCE_ANCHORS)
        element = 2 * ((k - first_point_of(p, level)) % p->num_anchors);
    return trial_index(head->t, MSDA_TENSOR_REFERENCES, head->n, head->q, 0, element);
}

double sampling_offset_scale(const sampling_head *head, int64_t k, int axis)
{
    const msda_problem *p = &head->t->problem;
    const msda_level *level = &p->levels[level_of(p, k)];
    if (!head->t->fused)
        return 1.0;
    if (p->reference_kind != MSDA_REFERENCE_BOXES)
        return 1.0 / (axis ? level->height : level->width);
    const double box_scale = p->box_scale == 0.0f ? 0.5 : (double)p->box_scale;
    const double extent = trial_get(head->t, MSDA_TENSOR_REFERENCES, sampling_reference(head, k) + 2 + axis);
    return extent * box_scale / level->points;
}

static location locate(const sampling_head *head, int64_t k, int axis)
{
    const int64_t index = trial_index(head->t, MSDA_TENSOR_LOCATIONS, head->n, head->q, head->m, 2 * k + axis);
    const double given = trial_get(head->t, MSDA_TENSOR_LOCATIONS, index);
    if (!head->t->fused)
        return (location){given, 0.0};
    const double reference = trial_get(head->t, MSDA_TENSOR_REFERENCES, sampling_reference(head, k) + axis);
    const double shift = given * sampling_offset_scale(head, k, axis);
    /* up to four roundings in the shift, one in the sum, and an order of operations that we do not know */
    return (location){reference + shift, 4.0 * fabs(shift) + fabs(reference) + fabs(reference + shift)};
}

static double distance_to_integer(double x)
{
    return fabs(x - rint(x));
}

static place place_discrete(location at, int32_t size)
{
    const double position = trunc(at.at * size + 0.5);
    const double clamped = fmin(fmax(position, 0.0), size - 1.0);
    return (place){!isnan(position), clamped, 0.0, 0.0, distance_to_integer(at.at * size + 0.5)};
}

static place find_place(const msda_problem *p, location at, int32_t size)
{
    if (p->sampling == MSDA_SAMPLING_DISCRETE)
        return place_discrete(at, size);
    const double slope = p->align_corners ? size - 1.0 : size;
    const double position = at.at * slope - (p->align_corners ? 0.0 : 0.5);
    const double error = slope * at.error + fabs(at.at * slope) + fabs(position);
    const double knot = distance_to_integer(position);
    if (p->padding == MSDA_PADDING_BORDER && position < 0.0)
        return (place){1, 0.0, 0.0, 0.0, knot};
    if (p->padding == MSDA_PADDING_BORDER && position >= size - 1.0)
        return (place){1, size - 1.0, 0.0, 0.0, knot};
    return (place){position > -1.0 && position < size, position, error, slope, knot};
}

/* A corner's weight along one axis, the weight's error, and the direction in which it grows. */
typedef struct hat {
    int64_t pixel;
    double weight, error, direction;
} hat;

static hat hat_of(const place *at, int side)
{
    const double pixel = floor(at->position), fraction = at->position - pixel;
    return (hat){(int64_t)pixel + side, side ? fraction : 1.0 - fraction, at->error + 1.0, side ? 1.0 : -1.0};
}

static void find_corners(sample *s, const msda_problem *p)
{
    const msda_level *level = &p->levels[s->level];
    const int sides = p->sampling == MSDA_SAMPLING_DISCRETE ? 1 : 2;
    s->num_corners = 0;
    if (!s->x.counts || !s->y.counts)
        return;
    for (int i = 0; i < sides; ++i)
        for (int j = 0; j < sides; ++j) {
            const hat x = hat_of(&s->x, j), y = hat_of(&s->y, i);
            if (x.pixel < 0 || x.pixel >= level->width || y.pixel < 0 || y.pixel >= level->height)
                continue;
            const double slope_x = x.direction * s->x.slope, slope_y = y.direction * s->y.slope;
            s->corners[s->num_corners++] = (corner){.row = level->start + y.pixel * level->width + x.pixel,
                                                    .weight = x.weight * y.weight,
                                                    .weight_error = x.error * y.weight + y.error * x.weight,
                                                    .slope_x = slope_x * y.weight,
                                                    .slope_x_error = fabs(slope_x) * (y.error + 2.0 * y.weight),
                                                    .slope_y = slope_y * x.weight,
                                                    .slope_y_error = fabs(slope_y) * (x.error + 2.0 * x.weight)};
        }
}

sampling_head sampling_open(const trial *t, int64_t n, int64_t q, int64_t m)
{
    sampling_head head = {t, n, q, m, t->tensors[MSDA_TENSOR_WEIGHTS].layout.run, -INFINITY, 0.0};
    if (!t->fused)
        return head;
    const int64_t first = trial_index(t, MSDA_TENSOR_WEIGHTS, n, q, m, 0);
    for (int64_t k = 0; k < head.num_points; ++k)
        head.largest_logit = fmax(head.largest_logit, trial_get(t, MSDA_TENSOR_WEIGHTS, first + k));
    for (int64_t k = 0; k < head.num_points; ++k)
        head.sum_of_exponentials += exp(trial_get(t, MSDA_TENSOR_WEIGHTS, first + k) - head.largest_logit);
    return head;
}

sample sampling_point(const sampling_head *head, int64_t k)
{
    const msda_problem *p = &head->t->problem;
    sample s = {.level = level_of(p, k)};
    const double given = trial_get(head->t, MSDA_TENSOR_WEIGHTS,
                                   trial_index(head->t, MSDA_TENSOR_WEIGHTS, head->n, head->q, head->m, k));
    s.weight = given;
    if (head->t->fused) {
        /* exp turns the absolute error of its argument into a relative one; then a sum of num_points and a division */
        s.weight = exp(given - head->largest_logit) / head->sum_of_exponentials;
        s.weight_error = s.weight * (fabs(given - head->largest_logit) + (double)head->num_points + 12.0);
    }
    s.x = find_place(p, locate(head, k, 0), p->levels[s.level].width);
    s.y = find_place(p, locate(head, k, 1), p->levels[s.level].height);
    find_corners(&s, p);
    return s;
}
