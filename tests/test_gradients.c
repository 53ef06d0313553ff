/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients against the forward alone, no reference in between. With g = grad_output and F(v, w) linear in each of value and
 * weights: <g, F> = <grad_value, value> = <grad_weights, weights>, in every dtype. And central differences in f64.
 */
#include "bounds.h"
#include "trial.h"

#include <math.h>

#include "inputs.h"
#include "problems.h"

typedef struct setting {
    const char *name;
    int fused;
    msda_reference_kind reference_kind;
    msda_padding padding;
    msda_sampling sampling;
    int32_t align_corners;
} setting;

static const setting settings[] = {
    {"zeros", 0, 0, MSDA_PADDING_ZEROS, MSDA_SAMPLING_BILINEAR, 0},
    {"border", 0, 0, MSDA_PADDING_BORDER, MSDA_SAMPLING_BILINEAR, 0},
    {"align_corners", 0, 0, MSDA_PADDING_ZEROS, MSDA_SAMPLING_BILINEAR, 1},
    {"border align_corners", 0, 0, MSDA_PADDING_BORDER, MSDA_SAMPLING_BILINEAR, 1},
    {"discrete", 0, 0, MSDA_PADDING_ZEROS, MSDA_SAMPLING_DISCRETE, 0},
    {"fused points", 1, MSDA_REFERENCE_POINTS, MSDA_PADDING_ZEROS, MSDA_SAMPLING_BILINEAR, 0},
    {"fused boxes", 1, MSDA_REFERENCE_BOXES, MSDA_PADDING_ZEROS, MSDA_SAMPLING_BILINEAR, 0},
    {"fused anchors", 1, MSDA_REFERENCE_ANCHORS, MSDA_PADDING_ZEROS, MSDA_SAMPLING_BILINEAR, 0},
    {"fused boxes border", 1, MSDA_REFERENCE_BOXES, MSDA_PADDING_BORDER, MSDA_SAMPLING_BILINEAR, 0},
    {"fused points align_corners", 1, MSDA_REFERENCE_POINTS, MSDA_PADDING_ZEROS, MSDA_SAMPLING_BILINEAR, 1},
    {"fused anchors discrete", 1, MSDA_REFERENCE_ANCHORS, MSDA_PADDING_ZEROS, MSDA_SAMPLING_DISCRETE, 0},
};

static const int num_settings = sizeof settings / sizeof settings[0];

static void open_setting(trial *t, const setting *s, msda_problem problem)
{
    problem.padding = s->padding;
    problem.sampling = s->sampling;
    problem.align_corners = s->align_corners;
    problem.reference_kind = s->reference_kind;
    problem.num_anchors = 2;
    trial_open(t, &problem, s->fused);
    t->name = s->name;
    inputs_fill(t, 11);
}

static double inner(const trial *t, msda_tensor a, msda_tensor b)
{
    double sum = 0.0;
    for (int64_t i = 0; i < trial_count(t, a); ++i)
        sum += trial_get(t, a, i) * trial_get(t, b, i);
    return sum;
}

/* How far <a, b> may be off when each element of a is off by its bound. */
static double inner_bound(const expectation *e, msda_tensor a, msda_tensor b)
{
    double sum = 0.0;
    for (int64_t i = 0; i < trial_count(&e->bound, a); ++i)
        sum += trial_get(&e->bound, a, i) * fabs(trial_get(&e->answer, b, i));
    return sum;
}

static void check_identity(const trial *t, const expectation *e, msda_tensor gradient, msda_tensor input)
{
    const double left = inner(t, MSDA_TENSOR_OUTPUT, MSDA_TENSOR_GRAD_OUTPUT), right = inner(t, gradient, input);
    const double bound = inner_bound(e, MSDA_TENSOR_OUTPUT, MSDA_TENSOR_GRAD_OUTPUT) + inner_bound(e, gradient, input);
    if (!(fabs(left - right) <= bound))
        fail_msg("%s: %s: <g, output> = %.12g but <%s, %s> = %.12g; may differ by %.3g", backend_label(), t->name, left,
                 trial_tensor_name(t, gradient), trial_tensor_name(t, input), right, bound);
}

static void check_adjoints(msda_dtype dtype)
{
    for (int i = 0; i < num_settings; ++i) {
        trial t;
        expectation e;
        open_setting(&t, &settings[i], problem_with_dtype(problem_of(rich_problem), dtype));
        expectation_open(&e, &t);
        trial_forward(&t);
        trial_backward(&t);
        check_identity(&t, &e, MSDA_TENSOR_GRAD_VALUE, MSDA_TENSOR_VALUE);
        if (!t.fused)
            check_identity(&t, &e, MSDA_TENSOR_GRAD_WEIGHTS, MSDA_TENSOR_WEIGHTS);
        expectation_close(&e);
        trial_close(&t);
    }
}

static void adjoint_identities_hold(void **state)
{
    (void)state;
    backend_for_each_dtype(check_adjoints);
}

static double loss_at(trial *t, msda_tensor input, int64_t index, double number)
{
    trial_set(t, input, index, number);
    trial_forward(t);
    return inner(t, MSDA_TENSOR_OUTPUT, MSDA_TENSOR_GRAD_OUTPUT);
}

/*
 * Along one coordinate the loss is linear (value, weights) or linear within a cell (locations, offsets, references), where
 * the difference is exact up to cancellation, 1e-16 * |loss| / step; for logits the step's square adds its part.
 */
static void check_difference(trial *t, msda_tensor input, msda_tensor gradient, int64_t index)
{
    const double step = 1e-4, middle = trial_get(t, input, index);
    const double above = loss_at(t, input, index, middle + step), below = loss_at(t, input, index, middle - step);
    trial_set(t, input, index, middle);
    const double difference = (above - below) / (2.0 * step), got = trial_get(t, gradient, index);
    if (!(fabs(difference - got) <= 1e-7 * (1.0 + fabs(difference))))
        fail_msg("%s: %s: %s at %s: got %.10g, central difference %.10g", backend_label(), t->name,
                 trial_tensor_name(t, gradient), trial_describe(t, gradient, index), got, difference);
}

#define DIFFERENCES_PER_TENSOR 60

static void check_differences(trial *t, msda_tensor input, msda_tensor gradient)
{
    uint64_t state = 5;
    const int64_t count = trial_count(t, input);
    for (int64_t i = 0; i < count && i < DIFFERENCES_PER_TENSOR; ++i)
        check_difference(t, input, gradient, count <= DIFFERENCES_PER_TENSOR ? i : random_below(&state, count));
}

static void check_every_gradient(trial *t)
{
    trial_backward(t);
    check_differences(t, MSDA_TENSOR_VALUE, MSDA_TENSOR_GRAD_VALUE);
    check_differences(t, MSDA_TENSOR_LOCATIONS, MSDA_TENSOR_GRAD_LOCATIONS);
    check_differences(t, MSDA_TENSOR_WEIGHTS, MSDA_TENSOR_GRAD_WEIGHTS);
    check_differences(t, MSDA_TENSOR_REFERENCES, MSDA_TENSOR_GRAD_REFERENCES);
}

static void central_differences_agree(void **state)
{
    (void)state;
    for (int i = 0; i < num_settings; ++i) {
        trial t;
        open_setting(&t, &settings[i], problem_with_dtype(problem_of(rich_problem), MSDA_DTYPE_F64));
        check_every_gradient(&t);
        trial_close(&t);
    }
}

/* Wide heads need no Jacobian in memory. */
static void central_differences_agree_at_wide_heads(void **state)
{
    (void)state;
    static const named_problem wide = {"wide heads", 1, 1, 1, 2048, 0, {{3, 4, 2, 0}}};
    trial t;
    open_setting(&t, &settings[0], problem_with_dtype(problem_of(&wide), MSDA_DTYPE_F64));
    check_every_gradient(&t);
    trial_close(&t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adjoint_identities_hold),
        cmocka_unit_test(central_differences_agree),
        cmocka_unit_test(central_differences_agree_at_wide_heads),
    };
    return RUN_PROGRAM(argc, argv, NULL, tests);
}
