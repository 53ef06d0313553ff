/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every row of kernels.def, every way to accumulate, both forms, on tensors without a byte to spare: the program to run
 * under compute-sanitizer. The problems are chosen so that every kernel that a row can launch is launched: head_dims that
 * vectors divide and others, 16-byte aligned tensors and others, few queries and many.
 */
#include "against_cpu.h"
#include "element.h"

typedef struct kernel_row {
    const char *name;
    msda_dtype value_dtype, point_dtype;
    int32_t head_dim; /* 0: any */
} kernel_row;

enum {
    dtype_f64 = MSDA_DTYPE_F64,
    dtype_f32 = MSDA_DTYPE_F32,
    dtype_f16 = MSDA_DTYPE_F16,
    dtype_bf16 = MSDA_DTYPE_BF16
};
#define MSDA_ANY 0
#define MSDA_KERNEL(value, point, head_dim)                                                                            \
    {#value "_" #point "_" #head_dim, (msda_dtype)dtype_##value, (msda_dtype)dtype_##point, head_dim},
static const kernel_row rows[] = {
#include "kernels.def"
};

enum { NUM_ROWS = sizeof rows / sizeof rows[0] };

/* Head dims for the rows that take any: below, between and beyond the widths of vectors and teams. */
static const int32_t any_head_dims[] = {1, 3, 8, 33, 80};

static void check_on_device(trial *t)
{
    expectation e;
    expectation_open(&e, t);
    device_trial_once(t);
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        if (trial_is_output((msda_tensor)tensor))
            expectation_check(&e, t, (msda_tensor)tensor);
    expectation_close(&e);
}

static msda_problem problem_for(const kernel_row *row, int32_t head_dim)
{
    msda_problem problem = problem_of(rich_problem);
    problem.value_dtype = row->value_dtype;
    problem.point_dtype = row->point_dtype;
    problem.head_dim = head_dim;
    return problem;
}

static void run(const char *name, const msda_problem *problem, int fused)
{
    trial t;
    trial_open(&t, problem, fused);
    t.name = name;
    inputs_fill(&t, 1);
    /* what ADD_TO_GRADIENTS adds to */
    for (int i = MSDA_TENSOR_GRAD_VALUE; i < MSDA_TENSOR_COUNT; ++i)
        trial_set_all(&t, (msda_tensor)i, 0.25);
    check_on_device(&t);
    trial_close(&t);
}

static void run_modes(const char *name, msda_problem problem)
{
    for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate)
        for (int fused = 0; fused <= 1; ++fused) {
            problem.accumulate = (msda_accumulate)accumulate;
            run(name, &problem, fused);
        }
}

static void test_every_row(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_ROWS; ++i) {
        if (rows[i].head_dim > 0) {
            run_modes(rows[i].name, problem_for(&rows[i], rows[i].head_dim));
            continue;
        }
        const int num_dims = sizeof any_head_dims / sizeof any_head_dims[0];
        for (int k = 0; k < num_dims; ++k)
            run_modes(rows[i].name, problem_for(&rows[i], any_head_dims[k]));
    }
}

/*
 * So many queries and heads that the lanes of 16 bytes a head fill the device: then heads are not split over lanes. Under
 * a checker it is the checker that judges.
 */
static void test_many_queries(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_ROWS; ++i) {
        const int32_t head_dim = rows[i].head_dim > 0 ? rows[i].head_dim : 9;
        const int32_t lanes = head_dim * (int32_t)element_size(rows[i].value_dtype) / 16;
        const int32_t teams = 524288 / (lanes < 8 ? lanes : 8) + 1;
        msda_problem problem = problem_of_level(2, teams / 16 + 1, 8, head_dim, 7, 5, 1);
        problem.value_dtype = rows[i].value_dtype;
        problem.point_dtype = rows[i].point_dtype;
        trial t;
        trial_open(&t, &problem, 0);
        t.name = rows[i].name;
        inputs_fill(&t, 3);
        if (full_or_few(1, 0))
            check_against_cpu(&t);
        else
            device_trial_once(&t);
        trial_close(&t);
    }
}

/* Rows of f16 and f32 whose tensors start or step where no 16-byte access may. */
static void test_unaligned_rows(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_ROWS; ++i) {
        if (rows[i].head_dim != 32)
            continue;
        msda_problem problem = problem_for(&rows[i], 32);
        const int64_t row = 33 * problem.heads;
        problem.strides[MSDA_TENSOR_VALUE] = (msda_stride){row * problem.value_length, row, 33};
        problem.strides[MSDA_TENSOR_GRAD_VALUE] = problem.strides[MSDA_TENSOR_VALUE];
        run_modes(rows[i].name, problem);
    }
}

static void test_options(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_ROWS; ++i) {
        msda_problem problem = problem_for(&rows[i], rows[i].head_dim > 0 ? rows[i].head_dim : 5);
        problem.flags = MSDA_FLAG_ADD_TO_GRADIENTS;
        problem.padding = MSDA_PADDING_BORDER;
        problem.align_corners = 1;
        problem.reference_kind = MSDA_REFERENCE_BOXES;
        run_modes(rows[i].name, problem);
        problem.flags = 0;
        problem.sampling = MSDA_SAMPLING_DISCRETE;
        problem.reference_kind = MSDA_REFERENCE_ANCHORS;
        problem.num_anchors = 2;
        run_modes(rows[i].name, problem);
    }
}

static void test_gradients_in_f32(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_ROWS; ++i) {
        if (element_size(rows[i].value_dtype) != 2)
            continue;
        msda_problem problem = problem_for(&rows[i], rows[i].head_dim > 0 ? rows[i].head_dim : 5);
        problem.grad_value_dtype = MSDA_DTYPE_F32;
        run_modes(rows[i].name, problem);
    }
}

static void test_each_unwanted_gradient(void **state)
{
    (void)state;
    for (int fused = 0; fused <= 1; ++fused)
        for (unsigned wanted = 0; wanted < 16; ++wanted) {
            trial t;
            msda_problem problem = problem_of(rich_problem);
            trial_open(&t, &problem, fused);
            t.name = "unwanted gradients";
            t.unwanted = (~wanted & 15u) << MSDA_TENSOR_GRAD_VALUE;
            inputs_fill(&t, 2);
            check_on_device(&t);
            trial_close(&t);
        }
}

static void test_nothing_to_sample(void **state)
{
    (void)state;
    msda_problem problem = problem_of_level(2, 3, 2, 4, 3, 5, 0);
    run_modes("no points", problem);
    problem = problem_of_level(2, 0, 2, 4, 3, 5, 2);
    run_modes("no queries", problem);
    problem = problem_of_level(2, 3, 2, 0, 3, 5, 2);
    run_modes("no channels", problem);
    problem.strides[MSDA_TENSOR_GRAD_WEIGHTS] = (msda_stride){.batch = 200, .row = 50, .head = 7};
    run_modes("no channels, strided gradient", problem);
    problem.flags = MSDA_FLAG_ADD_TO_GRADIENTS;
    run_modes("no channels, added to", problem);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row),         cmocka_unit_test(test_many_queries),
        cmocka_unit_test(test_unaligned_rows),    cmocka_unit_test(test_options),
        cmocka_unit_test(test_gradients_in_f32),  cmocka_unit_test(test_each_unwanted_gradient),
        cmocka_unit_test(test_nothing_to_sample),
    };
    return RUN_PROGRAM(argc, argv, &backend_cuda, tests);
}
