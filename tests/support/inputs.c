/* SPDX-License-Identifier: Apache-2.0 */
#include "inputs.h"

#include "sampling.h"

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double random_between(uint64_t *state, double low, double high)
{
    return low + (high - low) * (double)(next_random(state) >> 11) * 0x1p-53;
}

int64_t random_below(uint64_t *state, int64_t limit)
{
    return (int64_t)(next_random(state) % (uint64_t)limit);
}

void inputs_fill_tensor(trial *t, msda_tensor tensor, uint64_t *state, double low, double high)
{
    for (int64_t i = 0; i < trial_count(t, tensor); ++i)
        trial_set(t, tensor, i, random_between(state, low, high));
}

static double draw_location(const msda_problem *p, int32_t size, uint64_t *state)
{
    if (random_below(state, 4) == 0)
        return random_between(state, -0.5, 1.5);
    const double position = random_between(state, -1.0, size);
    return p->align_corners ? position / (size > 1 ? size - 1.0 : 1.0) : (position + 0.5) / size;
}

/* With align_corners every location on an axis of one pixel is pixel 0, exactly. */
static int is_off_knot(const msda_problem *p, const place *at, int32_t size)
{
    return at->to_knot >= 0.05 || (p->align_corners && size == 1 && p->sampling == MSDA_SAMPLING_BILINEAR);
}

static void draw_point(trial *t, const sampling_head *head, int64_t k, uint64_t *state)
{
    const msda_level *level = &t->problem.levels[sampling_point(head, k).level];
    const int64_t index = trial_index(t, MSDA_TENSOR_LOCATIONS, head->n, head->q, head->m, 2 * k);
    for (int attempt = 0; attempt < 10000; ++attempt) {
        for (int axis = 0; axis < 2; ++axis) {
            double at = draw_location(&t->problem, axis ? level->height : level->width, state);
            if (t->fused)
                at -= trial_get(t, MSDA_TENSOR_REFERENCES, sampling_reference(head, k) + axis);
            trial_set(t, MSDA_TENSOR_LOCATIONS, index + axis, at / sampling_offset_scale(head, k, axis));
        }
        const sample s = sampling_point(head, k);
        if (is_off_knot(&t->problem, &s.x, level->width) && is_off_knot(&t->problem, &s.y, level->height))
            return;
    }
    fail_msg("%s: no location of point %lld is clear of the knots", t->name, (long long)k);
}

static void draw_boxes(trial *t, uint64_t *state)
{
    for (int64_t i = 0; i < trial_count(t, MSDA_TENSOR_REFERENCES); ++i)
        trial_set(t, MSDA_TENSOR_REFERENCES, i,
                  i % 4 < 2 ? random_between(state, 0.2, 0.8) : random_between(state, 0.1, 0.6));
}

void inputs_fill(trial *t, uint64_t seed)
{
    uint64_t state = seed;
    inputs_fill_tensor(t, MSDA_TENSOR_VALUE, &state, -1.0, 1.0);
    inputs_fill_tensor(t, MSDA_TENSOR_GRAD_OUTPUT, &state, -1.0, 1.0);
    inputs_fill_tensor(t, MSDA_TENSOR_WEIGHTS, &state, t->fused ? -3.0 : -1.0, t->fused ? 3.0 : 1.0);
    inputs_fill_tensor(t, MSDA_TENSOR_REFERENCES, &state, 0.0, 1.0);
    if (t->fused && t->problem.reference_kind == MSDA_REFERENCE_BOXES)
        draw_boxes(t, &state);
    for (int64_t n = 0; n < t->problem.batch; ++n)
        for (int64_t q = 0; q < t->problem.queries; ++q)
            for (int64_t m = 0; m < t->problem.heads; ++m) {
                const sampling_head head = sampling_open(t, n, q, m);
                for (int64_t k = 0; k < head.num_points; ++k)
                    draw_point(t, &head, k, &state);
            }
}
