/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every row of the kernel list against naive: each on every named problem with default options, and each with every
 * option on the rich problem. A row is tested because it is in the list.
 */
#include "bounds.h"
#include "trial.h"

#include <stdio.h>
#include <stdlib.h>

#include "element.h"
#include "inputs.h"
#include "problems.h"

#define MSDA_ANY 0

typedef struct row {
    const char *value, *point;
    int32_t head_dim;
} row;

static const row rows[] = {
#define MSDA_KERNEL(value, point, head_dim) {#value, #point, head_dim},
#include "../src/kernels.def"
};

static const int num_rows = sizeof rows / sizeof rows[0];

typedef struct option {
    const char *name;
    msda_accumulate accumulate;
    msda_padding padding;
    msda_sampling sampling;
    int32_t align_corners;
    uint32_t flags;
    int grad_value_is_f32; /* beside a 16-bit value */
    unsigned unwanted;
    int fused;
    msda_reference_kind reference_kind;
    float box_scale;
} option;

#define BIT(tensor) (1u << MSDA_TENSOR_##tensor)

static const option options[] = {
    {.name = "native", .accumulate = MSDA_ACCUMULATE_NATIVE},
    {.name = "deterministic", .accumulate = MSDA_ACCUMULATE_DETERMINISTIC},
    {.name = "border", .padding = MSDA_PADDING_BORDER},
    {.name = "align_corners", .align_corners = 1},
    {.name = "border align_corners", .padding = MSDA_PADDING_BORDER, .align_corners = 1},
    {.name = "discrete", .sampling = MSDA_SAMPLING_DISCRETE},
    {.name = "add", .flags = MSDA_FLAG_ADD_TO_GRADIENTS},
    {.name = "add native", .flags = MSDA_FLAG_ADD_TO_GRADIENTS, .accumulate = MSDA_ACCUMULATE_NATIVE},
    {.name = "add deterministic", .flags = MSDA_FLAG_ADD_TO_GRADIENTS, .accumulate = MSDA_ACCUMULATE_DETERMINISTIC},
    {.name = "f32 grad_value", .grad_value_is_f32 = 1},
    {.name = "f32 grad_value native", .grad_value_is_f32 = 1, .accumulate = MSDA_ACCUMULATE_NATIVE},
    {.name = "f32 grad_value add", .grad_value_is_f32 = 1, .flags = MSDA_FLAG_ADD_TO_GRADIENTS},
    {.name = "only grad_value", .unwanted = BIT(GRAD_LOCATIONS) | BIT(GRAD_WEIGHTS)},
    {.name = "only grad_locations", .unwanted = BIT(GRAD_VALUE) | BIT(GRAD_WEIGHTS)},
    {.name = "only grad_weights", .unwanted = BIT(GRAD_VALUE) | BIT(GRAD_LOCATIONS)},
    {.name = "no grad_value", .unwanted = BIT(GRAD_VALUE)},
    {.name = "no gradients", .unwanted = BIT(GRAD_VALUE) | BIT(GRAD_LOCATIONS) | BIT(GRAD_WEIGHTS)},
    {.name = "fused points", .fused = 1},
    {.name = "fused boxes", .fused = 1, .reference_kind = MSDA_REFERENCE_BOXES},
    {.name = "fused boxes scaled", .fused = 1, .reference_kind = MSDA_REFERENCE_BOXES, .box_scale = 1.25f},
    {.name = "fused anchors", .fused = 1, .reference_kind = MSDA_REFERENCE_ANCHORS},
    {.name = "fused border", .fused = 1, .padding = MSDA_PADDING_BORDER},
    {.name = "fused align_corners", .fused = 1, .align_corners = 1},
    {.name = "fused discrete", .fused = 1, .sampling = MSDA_SAMPLING_DISCRETE},
    {.name = "fused native", .fused = 1, .accumulate = MSDA_ACCUMULATE_NATIVE},
    {.name = "fused deterministic", .fused = 1, .accumulate = MSDA_ACCUMULATE_DETERMINISTIC},
    {.name = "fused add", .fused = 1, .flags = MSDA_FLAG_ADD_TO_GRADIENTS, .reference_kind = MSDA_REFERENCE_BOXES},
    {.name = "fused only grad_value",
     .fused = 1,
     .unwanted = BIT(GRAD_LOCATIONS) | BIT(GRAD_WEIGHTS) | BIT(GRAD_REFERENCES)},
    {.name = "fused only grad_references",
     .fused = 1,
     .unwanted = BIT(GRAD_VALUE) | BIT(GRAD_LOCATIONS) | BIT(GRAD_WEIGHTS)},
    {.name = "fused only grad_logits",
     .fused = 1,
     .unwanted = BIT(GRAD_VALUE) | BIT(GRAD_LOCATIONS) | BIT(GRAD_REFERENCES)},
    {.name = "fused no grad_references", .fused = 1, .unwanted = BIT(GRAD_REFERENCES)},
};

static const int num_options = sizeof options / sizeof options[0];

/* One cmocka test: a row with an option on the rich problem (option set), or with default options on a problem. */
typedef struct combination {
    char name[100];
    const row *row;
    const named_problem *problem;
    const option *option;
} combination;

static msda_dtype dtype_named(const char *name)
{
    for (int dtype = MSDA_DTYPE_F64; dtype <= MSDA_DTYPE_BF16; ++dtype)
        if (strcmp(element_name((msda_dtype)dtype), name) == 0)
            return (msda_dtype)dtype;
    return MSDA_DTYPE_DEFAULT;
}

static msda_problem problem_of_row(const row *r, const named_problem *named)
{
    msda_problem problem = problem_with_dtype(problem_of(named), dtype_named(r->value));
    problem.point_dtype = dtype_named(r->point);
    if (r->head_dim != MSDA_ANY)
        problem.head_dim = r->head_dim;
    return problem;
}

static void apply(const option *o, msda_problem *problem)
{
    problem->accumulate = o->accumulate;
    problem->padding = o->padding;
    problem->sampling = o->sampling;
    problem->align_corners = o->align_corners;
    problem->flags = o->flags;
    problem->reference_kind = o->reference_kind;
    problem->num_anchors = 2;
    problem->box_scale = o->box_scale;
    if (o->grad_value_is_f32 && element_size(problem->value_dtype) == 2)
        problem->grad_value_dtype = MSDA_DTYPE_F32;
}

/* Old gradients of the size of new ones. */
static void fill_gradients(trial *t)
{
    uint64_t state = 99;
    for (int tensor = MSDA_TENSOR_GRAD_VALUE; tensor < MSDA_TENSOR_COUNT; ++tensor)
        inputs_fill_tensor(t, (msda_tensor)tensor, &state, -2.0, 2.0);
}

static void combination_agrees_with_naive(void **state)
{
    const combination *c = *state;
    msda_problem problem = problem_of_row(c->row, c->problem);
    if (!backend_under_test->takes(problem.value_dtype))
        skip();
    if (c->option)
        apply(c->option, &problem);
    trial t;
    trial_open(&t, &problem, c->option && c->option->fused);
    t.name = c->name;
    t.unwanted = c->option ? c->option->unwanted : 0;
    inputs_fill(&t, 3);
    fill_gradients(&t);
    trial_check(&t);
    trial_close(&t);
}

/* The row that is listed is the row that runs. */
static void rows_are_dispatched(void **state)
{
    (void)state;
    if (backend_under_test == &backend_naive)
        skip();
    for (int r = 0; r < num_rows; ++r) {
        char start[40];
        msda_problem problem = problem_of_row(&rows[r], rich_problem);
        if (rows[r].head_dim == MSDA_ANY)
            snprintf(start, sizeof start, "%s_%s_dany__", rows[r].value, rows[r].point);
        else
            snprintf(start, sizeof start, "%s_%s_d%d__", rows[r].value, rows[r].point, (int)rows[r].head_dim);
        const char *name =
            backend_under_test == &backend_cuda ? msda_cuda_kernel_name(&problem) : msda_cpu_kernel_name(&problem);
        if (strncmp(name, start, strlen(start)) != 0)
            fail_msg("%s: row %s is run by \"%s\"", backend_label(), start, name);
    }
}

static void add_combination(combination *c, struct CMUnitTest *test, const row *r, const named_problem *problem,
                            const option *o)
{
    char head_dim[12] = "any";
    if (r->head_dim != MSDA_ANY)
        snprintf(head_dim, sizeof head_dim, "%d", (int)r->head_dim);
    c->row = r;
    c->problem = problem;
    c->option = o;
    snprintf(c->name, sizeof c->name, "%s %s d%s: %s", r->value, r->point, head_dim, o ? o->name : problem->name);
    *test = (struct CMUnitTest){c->name, combination_agrees_with_naive, NULL, NULL, c};
}

int main(int argc, char **argv)
{
    const size_t per_row = (size_t)num_problems + (size_t)num_options, count = (size_t)num_rows * per_row;
    combination *combinations = calloc(count, sizeof *combinations);
    struct CMUnitTest *tests = calloc(count + 1, sizeof *tests);
    if (combinations == NULL || tests == NULL)
        return EXIT_FAILURE;
    size_t k = 0;
    for (int r = 0; r < num_rows; ++r) {
        for (int i = 0; i < num_problems; ++i, ++k)
            add_combination(&combinations[k], &tests[k], &rows[r], &problems[i], NULL);
        for (int i = 0; i < num_options; ++i, ++k)
            add_combination(&combinations[k], &tests[k], &rows[r], rich_problem, &options[i]);
    }
    tests[count] = (struct CMUnitTest)cmocka_unit_test(rows_are_dispatched);
    const int status = run_program(argc, argv, NULL, tests, count + 1);
    free(tests);
    free(combinations);
    return status;
}
