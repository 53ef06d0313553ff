/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused form against the plain one: locations and softmax written out by the test, the gradients carried back by
 * hand. And what only the fused form has: many points, logits of any size, null references' gradients.
 */
#include "bounds.h"
#include "trial.h"

#include <math.h>
#include <stdlib.h>

#include "inputs.h"
#include "problems.h"

static msda_problem fused_problem(const named_problem *named, msda_reference_kind kind, msda_dtype dtype)
{
    msda_problem problem = problem_with_dtype(problem_of(named), dtype);
    problem.reference_kind = kind;
    problem.num_anchors = 2;
    return problem;
}

/* ---- the plain form of a fused trial ----------------------------------------------------------------------------- */

/* One point of the fused trial. */
typedef struct fused_point {
    int64_t n, q, m, k;
    int level;
    int64_t of_level; /* its number among the points of its level */
} fused_point;

static void for_each_point(const trial *fused, trial *plain, void (*body)(const trial *, trial *, const fused_point *))
{
    const msda_problem *p = &fused->problem;
    for (int64_t n = 0; n < p->batch; ++n)
        for (int64_t q = 0; q < p->queries; ++q)
            for (int64_t m = 0; m < p->heads; ++m) {
                fused_point point = {n, q, m, 0, 0, 0};
                for (point.level = 0; point.level < p->num_levels; ++point.level)
                    for (point.of_level = 0; point.of_level < p->levels[point.level].points; ++point.of_level) {
                        body(fused, plain, &point);
                        ++point.k;
                    }
            }
}

static int64_t location_index(const trial *t, const fused_point *at, int axis)
{
    return trial_index(t, MSDA_TENSOR_LOCATIONS, at->n, at->q, at->m, 2 * at->k + axis);
}

static int64_t weight_index(const trial *t, const fused_point *at)
{
    return trial_index(t, MSDA_TENSOR_WEIGHTS, at->n, at->q, at->m, at->k);
}

static int64_t reference_index(const trial *t, const fused_point *at)
{
    int64_t element = 2 * at->level;
    if (t->problem.reference_kind == MSDA_REFERENCE_BOXES)
        element = 4 * at->level;
    if (t->problem.reference_kind == MSDA_REFERENCE_ANCHORS)
        element = 2 * (at->of_level % t->problem.num_anchors);
    return trial_index(t, MSDA_TENSOR_REFERENCES, at->n, at->q, 0, element);
}

/* location = reference + offset * scale */
static double scale_of(const trial *t, const fused_point *at, int axis)
{
    const msda_level *level = &t->problem.levels[at->level];
    if (t->problem.reference_kind != MSDA_REFERENCE_BOXES)
        return 1.0 / (axis ? level->height : level->width);
    return trial_get(t, MSDA_TENSOR_REFERENCES, reference_index(t, at) + 2 + axis) * 0.5 / level->points;
}

static void write_location_and_exponential(const trial *fused, trial *plain, const fused_point *at)
{
    for (int axis = 0; axis < 2; ++axis) {
        const double reference = trial_get(fused, MSDA_TENSOR_REFERENCES, reference_index(fused, at) + axis);
        const double offset = trial_get(fused, MSDA_TENSOR_LOCATIONS, location_index(fused, at, axis));
        trial_set(plain, MSDA_TENSOR_LOCATIONS, location_index(plain, at, axis),
                  reference + offset * scale_of(fused, at, axis));
    }
    trial_set(plain, MSDA_TENSOR_WEIGHTS, weight_index(plain, at),
              exp(trial_get(fused, MSDA_TENSOR_WEIGHTS, weight_index(fused, at))));
}

/* Divides by the sum over the head; the first point of a head finds exponentials in all of it. */
static void normalise_head(const trial *fused, trial *plain, const fused_point *at)
{
    double sum = 0.0;
    (void)fused;
    if (at->k > 0)
        return;
    const int64_t first = weight_index(plain, at), points = plain->tensors[MSDA_TENSOR_WEIGHTS].layout.run;
    for (int64_t k = 0; k < points; ++k)
        sum += trial_get(plain, MSDA_TENSOR_WEIGHTS, first + k);
    for (int64_t k = 0; k < points; ++k)
        trial_set(plain, MSDA_TENSOR_WEIGHTS, first + k, trial_get(plain, MSDA_TENSOR_WEIGHTS, first + k) / sum);
}

/* The fused trial's gradients are off from what the chain rule makes of the plain ones: none may be by much. */
static double worst_error;
static double *grad_references; /* summed over the plain gradients */

static void note_error(double got, double answer)
{
    worst_error = fmax(worst_error, fabs(got - answer) / (1.0 + fabs(answer)));
}

static void compare_offset(const trial *fused, trial *plain, const fused_point *at)
{
    for (int axis = 0; axis < 2; ++axis) {
        const double gradient = trial_get(plain, MSDA_TENSOR_GRAD_LOCATIONS, location_index(plain, at, axis));
        const double offset = trial_get(fused, MSDA_TENSOR_LOCATIONS, location_index(fused, at, axis));
        note_error(trial_get(fused, MSDA_TENSOR_GRAD_LOCATIONS, location_index(fused, at, axis)),
                   gradient * scale_of(fused, at, axis));
        grad_references[reference_index(fused, at) + axis] += gradient;
        if (fused->problem.reference_kind == MSDA_REFERENCE_BOXES)
            grad_references[reference_index(fused, at) + 2 + axis] +=
                gradient * offset * 0.5 / fused->problem.levels[at->level].points;
    }
}

static void compare_logit(const trial *fused, trial *plain, const fused_point *at)
{
    const int64_t points = plain->tensors[MSDA_TENSOR_WEIGHTS].layout.run, own = weight_index(plain, at);
    double mean = 0.0;
    for (int64_t k = own - at->k; k < own - at->k + points; ++k)
        mean += trial_get(plain, MSDA_TENSOR_WEIGHTS, k) * trial_get(plain, MSDA_TENSOR_GRAD_WEIGHTS, k);
    note_error(trial_get(fused, MSDA_TENSOR_GRAD_WEIGHTS, weight_index(fused, at)),
               trial_get(plain, MSDA_TENSOR_WEIGHTS, own) * (trial_get(plain, MSDA_TENSOR_GRAD_WEIGHTS, own) - mean));
}

static void compare_all(const trial *fused, trial *plain)
{
    const int64_t num_references = trial_count(fused, MSDA_TENSOR_REFERENCES);
    worst_error = 0.0;
    grad_references = calloc((size_t)num_references, sizeof *grad_references);
    assert_non_null(grad_references);
    for (int64_t i = 0; i < trial_count(fused, MSDA_TENSOR_OUTPUT); ++i)
        note_error(trial_get(fused, MSDA_TENSOR_OUTPUT, i), trial_get(plain, MSDA_TENSOR_OUTPUT, i));
    for (int64_t i = 0; i < trial_count(fused, MSDA_TENSOR_GRAD_VALUE); ++i)
        note_error(trial_get(fused, MSDA_TENSOR_GRAD_VALUE, i), trial_get(plain, MSDA_TENSOR_GRAD_VALUE, i));
    for_each_point(fused, plain, compare_offset);
    for_each_point(fused, plain, compare_logit);
    for (int64_t i = 0; i < num_references; ++i)
        note_error(trial_get(fused, MSDA_TENSOR_GRAD_REFERENCES, i), grad_references[i]);
    free(grad_references);
}

static void fused_equals_plain_with_locations_written_out(void **state)
{
    (void)state;
    for (int i = 0; i < num_problems; ++i)
        for (int kind = 0; kind <= MSDA_REFERENCE_ANCHORS; ++kind) {
            trial fused, plain;
            const msda_problem problem = fused_problem(&problems[i], (msda_reference_kind)kind, MSDA_DTYPE_F64);
            trial_open(&fused, &problem, 1);
            trial_open(&plain, &problem, 0);
            inputs_fill(&fused, 23);
            trial_copy(&plain, &fused, MSDA_TENSOR_VALUE);
            trial_copy(&plain, &fused, MSDA_TENSOR_GRAD_OUTPUT);
            for_each_point(&fused, &plain, write_location_and_exponential);
            for_each_point(&fused, &plain, normalise_head);
            trial_forward(&fused);
            trial_backward(&fused);
            trial_forward(&plain);
            trial_backward(&plain);
            compare_all(&fused, &plain);
            if (!(worst_error <= 1e-11))
                fail_msg("%s: %s, reference kind %d: off by %.3g of 1 + |answer|", backend_label(), problems[i].name,
                         kind, worst_error);
            trial_close(&fused);
            trial_close(&plain);
        }
}

/* ---- many points, and logits of any size -------------------------------------------------------------------------- */

static void check_many_points(msda_dtype dtype)
{
    static const named_problem many[] = {
        {"256 points", 1, 2, 2, 4, 0, {{6, 9, 200, 0}, {3, 4, 56, 0}}},
        {"1100 points", 1, 1, 2, 3, 0, {{6, 9, 600, 0}, {3, 4, 500, 0}}},
    };
    for (size_t i = 0; i < sizeof many / sizeof many[0]; ++i)
        for (int kind = 0; kind <= MSDA_REFERENCE_ANCHORS; ++kind) {
            trial t;
            const msda_problem problem = fused_problem(&many[i], (msda_reference_kind)kind, dtype);
            trial_open(&t, &problem, 1);
            t.name = many[i].name;
            inputs_fill(&t, 29);
            trial_check(&t);
            trial_close(&t);
        }
}

static void softmax_spans_many_points(void **state)
{
    (void)state;
    backend_for_each_dtype(check_many_points);
}

static void check_logits(msda_dtype dtype)
{
    /* added to every logit; without subtracting the largest, exp overflows or every weight is 0 */
    static const double shifts[] = {1000.0, -1000.0, 60000.0};
    for (size_t i = 0; i < sizeof shifts / sizeof shifts[0]; ++i) {
        trial t;
        const msda_problem problem = fused_problem(rich_problem, MSDA_REFERENCE_POINTS, dtype);
        trial_open(&t, &problem, 1);
        t.name = "shifted logits";
        inputs_fill(&t, 31);
        for (int64_t k = 0; k < trial_count(&t, MSDA_TENSOR_WEIGHTS); ++k)
            trial_set(&t, MSDA_TENSOR_WEIGHTS, k, shifts[i] + rint(trial_get(&t, MSDA_TENSOR_WEIGHTS, k)));
        trial_check(&t);
        trial_close(&t);
    }
}

static void softmax_is_stable(void **state)
{
    (void)state;
    backend_for_each_dtype(check_logits);
}

/* One logit far above the others takes all the weight; a masked one, -Inf, none. */
static void check_one_hot(msda_dtype dtype)
{
    trial t;
    const msda_problem problem = problem_with_dtype(problem_of_level(1, 1, 1, 1, 1, 4, 3), dtype);
    trial_open(&t, &problem, 1);
    trial_set_all(&t, MSDA_TENSOR_LOCATIONS, 0.0);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0, 0, 1, 0, 2, 0);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_REFERENCES, 0.125, 0.5);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_WEIGHTS, -INFINITY, 500, -500);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_GRAD_OUTPUT, 1);
    trial_forward(&t);
    trial_backward(&t);
    assert_true(trial_get(&t, MSDA_TENSOR_OUTPUT, 0) == 20.0);
    for (int k = 0; k < 3; ++k)
        assert_true(trial_get(&t, MSDA_TENSOR_GRAD_WEIGHTS, k) == 0.0);
    assert_true(trial_get(&t, MSDA_TENSOR_GRAD_VALUE, 0) == 0.0);
    assert_true(trial_get(&t, MSDA_TENSOR_GRAD_VALUE, 1) == 1.0);
    trial_close(&t);
}

static void extreme_logits_take_all_or_nothing(void **state)
{
    (void)state;
    backend_for_each_dtype(check_one_hot);
}

/* A NaN reference, or an infinite offset, places its points nowhere; their weights still count in the softmax. */
static void check_wild_references(msda_dtype dtype)
{
    trial t;
    const msda_problem problem = problem_with_dtype(problem_of_level(1, 3, 1, 1, 1, 4, 2), dtype);
    trial_open(&t, &problem, 1);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40);
    trial_set_all(&t, MSDA_TENSOR_LOCATIONS, 0.0);
    trial_set_all(&t, MSDA_TENSOR_WEIGHTS, 1.0);
    trial_set_all(&t, MSDA_TENSOR_GRAD_OUTPUT, 1.0);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_REFERENCES, NAN, 0.5, 0.375, 0.5, 0.375, 0.5);
    trial_set(&t, MSDA_TENSOR_LOCATIONS, 4, INFINITY);
    trial_set(&t, MSDA_TENSOR_LOCATIONS, 8, NAN);
    trial_forward(&t);
    trial_backward(&t);
    assert_true(trial_get(&t, MSDA_TENSOR_OUTPUT, 0) == 0.0);
    assert_true(trial_get(&t, MSDA_TENSOR_OUTPUT, 1) == 10.0);
    assert_true(trial_get(&t, MSDA_TENSOR_OUTPUT, 2) == 10.0);
    assert_true(trial_get(&t, MSDA_TENSOR_GRAD_VALUE, 1) == 1.0);
    for (int i = 0; i < 2; ++i) {
        assert_true(trial_get(&t, MSDA_TENSOR_GRAD_REFERENCES, i) == 0.0);
        assert_true(trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, 4 + i) == 0.0);
        assert_true(trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, 8 + i) == 0.0);
    }
    trial_close(&t);
}

static void wild_references_place_points_nowhere(void **state)
{
    (void)state;
    backend_for_each_dtype(check_wild_references);
}

/* ---- box scale, and the plain form's independence of it ------------------------------------------------------------ */

/* box_scale 0 means 0.5. */
static void check_default_box_scale(msda_dtype dtype)
{
    trial given, absent;
    msda_problem problem = fused_problem(rich_problem, MSDA_REFERENCE_BOXES, dtype);
    trial_open(&absent, &problem, 1);
    problem.box_scale = 0.5f;
    trial_open(&given, &problem, 1);
    inputs_fill(&absent, 37);
    inputs_fill(&given, 37);
    trial_forward(&absent);
    trial_forward(&given);
    assert_true(trial_equal(&absent, &given, MSDA_TENSOR_OUTPUT));
    trial_close(&absent);
    trial_close(&given);
}

static void box_scale_is_a_half_by_default(void **state)
{
    (void)state;
    backend_for_each_dtype(check_default_box_scale);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_equals_plain_with_locations_written_out),
        cmocka_unit_test(softmax_spans_many_points),
        cmocka_unit_test(softmax_is_stable),
        cmocka_unit_test(extreme_logits_take_all_or_nothing),
        cmocka_unit_test(wild_references_place_points_nowhere),
        cmocka_unit_test(box_scale_is_a_half_by_default),
    };
    return RUN_PROGRAM(argc, argv, NULL, tests);
}
