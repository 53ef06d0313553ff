/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward on the CPU, checked against finite differences. The loss is the sum of output * grad_output; its derivative
 * by any input is what msda_cpu_backward() returns, and also what you get by nudging that input and looking at the loss.
 * In f64, so that the nudge can be small.
 *
 *     cc 02_backward.c $(pkg-config --cflags --libs msda) -lm && ./a.out
 */
#include <msda/msda.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    HEADS = 2,
    HEAD_DIM = 3,
    QUERIES = 5,
    ROWS = 4 * 6 + 2 * 3, /* pixels of both levels */
    POINTS = 2 + 1,       /* of one head, over both levels */
    VALUES = ROWS * HEADS * HEAD_DIM,
    OUTPUTS = QUERIES * HEADS * HEAD_DIM,
    WEIGHTS = QUERIES * HEADS * POINTS,
    LOCATIONS = WEIGHTS * 2
};

static msda_problem problem;
static double value[VALUES], locations[LOCATIONS], weights[WEIGHTS], output[OUTPUTS], grad_output[OUTPUTS];
static double grad_value[VALUES], grad_locations[LOCATIONS], grad_weights[WEIGHTS];

static void succeed_or_exit(msda_status status)
{
    if (status != MSDA_STATUS_SUCCESS) {
        fprintf(stderr, "%s: %s\n", msda_status_string(status), msda_last_error());
        exit(1);
    }
}

static void fill(double *x, int count, double low, double high)
{
    for (int i = 0; i < count; ++i)
        x[i] = low + (high - low) * rand() / RAND_MAX;
}

static double loss(void)
{
    const msda_forward_args args = {
        .value = value, .sampling_locations = locations, .attention_weights = weights, .output = output};
    succeed_or_exit(msda_cpu_forward(&problem, &args, 0));

    double sum = 0.0;
    for (int i = 0; i < OUTPUTS; ++i)
        sum += output[i] * grad_output[i];
    return sum;
}

/* Compares every element of a gradient with the slope of the loss; returns the largest difference. */
static double compare(const char *name, double *input, const double *gradient, int count)
{
    const double step = 1e-6;
    double worst = 0.0;
    int shown = 0;
    for (int i = 0; i < count; ++i) {
        const double kept = input[i];
        input[i] = kept + step;
        const double above = loss();
        input[i] = kept - step;
        const double below = loss();
        input[i] = kept;

        const double slope = (above - below) / (2 * step);
        worst = fmax(worst, fabs(slope - gradient[i]));
        if (gradient[i] != 0.0 && shown++ < 3)
            printf("%-18s [%2d]  gradient %12.8f   finite difference %12.8f\n", name, i, gradient[i], slope);
    }
    printf("%-18s largest difference over %d elements: %.1e\n\n", name, count, worst);
    return worst;
}

int main(void)
{
    msda_problem_init(&problem);
    problem.value_dtype = MSDA_DTYPE_F64;
    problem.batch = 1;
    problem.queries = QUERIES;
    problem.heads = HEADS;
    problem.head_dim = HEAD_DIM;
    msda_problem_add_level(&problem, 4, 6, 2); /* 4 rows of 6 pixels, 2 points */
    msda_problem_add_level(&problem, 2, 3, 1);

    fill(value, VALUES, -1, 1);
    fill(locations, LOCATIONS, -0.1, 1.1); /* some points lie outside their level */
    fill(weights, WEIGHTS, 0, 1);
    fill(grad_output, OUTPUTS, -1, 1);

    const msda_backward_args args = {
        .value = value,
        .sampling_locations = locations,
        .attention_weights = weights,
        .grad_output = grad_output,
        .grad_value = grad_value, /* each of the three may be left out: it is not computed then */
        .grad_sampling_locations = grad_locations,
        .grad_attention_weights = grad_weights,
    };
    size_t size;
    succeed_or_exit(msda_cpu_backward_workspace(&problem, 0, &size));
    void *workspace = aligned_alloc(64, (size + 63) / 64 * 64);
    succeed_or_exit(msda_cpu_backward(&problem, &args, workspace, size, 0));
    free(workspace);

    double worst = compare("value", value, grad_value, VALUES);
    worst = fmax(worst, compare("sampling_locations", locations, grad_locations, LOCATIONS));
    worst = fmax(worst, compare("attention_weights", weights, grad_weights, WEIGHTS));
    return worst < 1e-6 ? 0 : 1;
}
