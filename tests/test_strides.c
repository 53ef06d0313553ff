/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are slices of wider ones give what dense ones give (on the CPU, the same bytes), and what lies between the
 * slices is neither read (it is poison) nor written (the trial looks). Offsets past 2^31 elements work.
 */
#define _DEFAULT_SOURCE
#include "bounds.h"
#include "trial.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "element.h"
#include "inputs.h"
#include "problems.h"

static void set_strides(msda_problem *problem, msda_tensor tensor, int64_t batch, int64_t row, int64_t head)
{
    problem->strides[tensor] = (msda_stride){batch, row, head};
}

static int64_t points_of(const msda_problem *problem)
{
    int64_t points = 0;
    for (int l = 0; l < problem->num_levels; ++l)
        points += problem->levels[l].points;
    return points;
}

/* One chunk of a projection shared by three layers: value is [N, S, 3 * M * D]. */
static void slice_value(msda_problem *p)
{
    const int64_t row = 3 * (int64_t)p->heads * p->head_dim;
    set_strides(p, MSDA_TENSOR_VALUE, p->value_length * row, row, 0);
    set_strides(p, MSDA_TENSOR_GRAD_VALUE, p->value_length * row, row, 0);
}

/* Offsets and logits as parts of one projection, [N, Q, M * K * 3]. */
static void slice_points(msda_problem *p)
{
    const int64_t row = 3 * points_of(p) * p->heads;
    for (int tensor = MSDA_TENSOR_LOCATIONS; tensor <= MSDA_TENSOR_WEIGHTS; ++tensor) {
        set_strides(p, (msda_tensor)tensor, p->queries * row, row, 0);
        set_strides(p, (msda_tensor)(tensor + MSDA_TENSOR_GRAD_LOCATIONS - MSDA_TENSOR_LOCATIONS), p->queries * row,
                    row, 0);
    }
}

/* [N, M, S, D] and [N, M, Q, ...]: head-major. */
static void make_head_major(msda_problem *p)
{
    const int64_t points = points_of(p), dim = p->head_dim;
    const struct {
        msda_tensor tensor;
        int64_t rows, run;
    } tensors[] = {
        {MSDA_TENSOR_VALUE, p->value_length, dim},       {MSDA_TENSOR_GRAD_VALUE, p->value_length, dim},
        {MSDA_TENSOR_OUTPUT, p->queries, dim},           {MSDA_TENSOR_GRAD_OUTPUT, p->queries, dim},
        {MSDA_TENSOR_LOCATIONS, p->queries, 2 * points}, {MSDA_TENSOR_GRAD_LOCATIONS, p->queries, 2 * points},
        {MSDA_TENSOR_WEIGHTS, p->queries, points},       {MSDA_TENSOR_GRAD_WEIGHTS, p->queries, points}};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; ++i) {
        const int64_t rows = tensors[i].rows, run = tensors[i].run;
        set_strides(p, tensors[i].tensor, p->heads * rows * run, run, rows * run);
    }
}

/* Outputs and everything else with odd gaps, so that nothing is aligned; references too. */
static void add_odd_gaps(msda_problem *p)
{
    const int64_t points = points_of(p), heads = p->heads, dim = p->head_dim, queries = p->queries;
    const int64_t references =
        p->reference_kind == MSDA_REFERENCE_ANCHORS ? 2 * (int64_t)p->num_anchors : 4 * (int64_t)p->num_levels;
    const int64_t value_row = heads * (dim + 1) + 3, out_row = heads * (dim + 3) + 1;
    const int64_t location_row = heads * (2 * points + 1) + 5, weight_row = heads * (points + 3) + 1;
    set_strides(p, MSDA_TENSOR_VALUE, p->value_length * value_row + 7, value_row, dim + 1);
    set_strides(p, MSDA_TENSOR_GRAD_VALUE, p->value_length * value_row + 1, value_row, dim + 1);
    set_strides(p, MSDA_TENSOR_OUTPUT, queries * out_row + 1, out_row, dim + 3);
    set_strides(p, MSDA_TENSOR_GRAD_OUTPUT, queries * out_row + 5, out_row, dim + 3);
    set_strides(p, MSDA_TENSOR_LOCATIONS, queries * location_row + 1, location_row, 2 * points + 1);
    set_strides(p, MSDA_TENSOR_GRAD_LOCATIONS, queries * location_row + 3, location_row, 2 * points + 1);
    set_strides(p, MSDA_TENSOR_WEIGHTS, queries * weight_row + 1, weight_row, points + 3);
    set_strides(p, MSDA_TENSOR_GRAD_WEIGHTS, queries * weight_row + 3, weight_row, points + 3);
    set_strides(p, MSDA_TENSOR_REFERENCES, queries * (references + 1) + 1, references + 1, 0);
    set_strides(p, MSDA_TENSOR_GRAD_REFERENCES, queries * (references + 3) + 1, references + 3, 0);
}

static const struct slicing {
    const char *name;
    void (*apply)(msda_problem *problem);
} slicings[] = {
    {"value of shared layers", slice_value},
    {"offsets and logits of one projection", slice_points},
    {"head-major", make_head_major},
    {"odd gaps", add_odd_gaps},
};

/* Dense and sliced twins of one problem. */
static void check_twins(msda_problem problem, int fused, const struct slicing *slicing)
{
    trial dense, sliced;
    trial_open(&dense, &problem, fused);
    slicing->apply(&problem);
    trial_open(&sliced, &problem, fused);
    dense.name = sliced.name = slicing->name;
    inputs_fill(&dense, 13);
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        trial_copy(&sliced, &dense, (msda_tensor)tensor);
    trial_forward(&dense);
    trial_backward(&dense);
    trial_check(&sliced);
    /* cuda may read unaligned slices in smaller pieces and then sums in another order */
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT && backend_under_test != &backend_cuda; ++tensor)
        if (trial_count(&dense, (msda_tensor)tensor) > 0 && !trial_equal(&dense, &sliced, (msda_tensor)tensor))
            fail_msg("%s: %s, %s, head_dim %d: %s differs from the dense tensor's", backend_label(), slicing->name,
                     element_name(problem.value_dtype), (int)problem.head_dim,
                     trial_tensor_name(&dense, (msda_tensor)tensor));
    trial_close(&dense);
    trial_close(&sliced);
}

static void check_slicings(msda_dtype dtype)
{
    static const int32_t head_dims[] = {5, 16, 32, 48};
    for (size_t s = 0; s < sizeof slicings / sizeof slicings[0]; ++s)
        for (size_t d = 0; d < sizeof head_dims / sizeof head_dims[0]; ++d)
            for (int fused = 0; fused < 3; ++fused) {
                msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtype);
                problem.head_dim = head_dims[d];
                problem.num_anchors = 3;
                problem.reference_kind = fused == 2 ? MSDA_REFERENCE_ANCHORS : MSDA_REFERENCE_BOXES;
                check_twins(problem, fused > 0, &slicings[s]);
            }
}

static void slices_equal_dense_tensors(void **state)
{
    (void)state;
    backend_for_each_dtype(check_slicings);
}

static void check_against_naive(msda_dtype dtype)
{
    for (size_t s = 0; s < sizeof slicings / sizeof slicings[0]; ++s)
        for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate)
            for (int add = 0; add < 2; ++add) {
                trial t;
                uint64_t seed = 4;
                msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtype);
                problem.accumulate = (msda_accumulate)accumulate;
                problem.flags = add ? MSDA_FLAG_ADD_TO_GRADIENTS : 0;
                slicings[s].apply(&problem);
                trial_open(&t, &problem, 0);
                t.name = slicings[s].name;
                inputs_fill(&t, 17);
                for (int tensor = MSDA_TENSOR_GRAD_VALUE; tensor < MSDA_TENSOR_COUNT; ++tensor)
                    inputs_fill_tensor(&t, (msda_tensor)tensor, &seed, -1.0, 1.0);
                trial_check(&t);
                trial_close(&t);
            }
}

static void slices_agree_with_naive(void **state)
{
    (void)state;
    backend_for_each_dtype(check_against_naive);
}

/* Two outputs that interleave in one wider tensor do not overlap; shifted by one element they do. */
static void interleaved_outputs_are_told_from_overlapping_ones(void **state)
{
    (void)state;
    trial t;
    msda_problem problem = problem_with_dtype(problem_of(rich_problem), MSDA_DTYPE_F64);
    const int64_t points = points_of(&problem), row = 3 * points * problem.heads;
    slice_points(&problem);
    trial_open(&t, &problem, 0);
    inputs_fill(&t, 1);
    guarded wide = guarded_open((size_t)(problem.batch * problem.queries * row) * sizeof(double), sizeof(double));
    msda_backward_args args = trial_backward_args(&t);
    args.grad_sampling_locations = wide.data;
    args.grad_attention_weights = wide.data + (size_t)(2 * points * problem.heads) * sizeof(double);
    assert_int_equal(backend_naive.backward(&problem, &args), MSDA_STATUS_SUCCESS);
    args.grad_attention_weights = wide.data + (size_t)(2 * points * problem.heads - 1) * sizeof(double);
    assert_int_equal(backend_naive.backward(&problem, &args), MSDA_STATUS_OVERLAP);
    assert_true(guarded_is_intact(&wide));
    guarded_close(&wide);
    trial_close(&t);
}

/* ---- far apart --------------------------------------------------------------------------------------------------- */

/* Address space that becomes memory, zeroed, only where it is touched. */
static void *map_sparse(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

/* A value whose second row, head or batch item lies past 2^31 elements: 32-bit offsets would wrap into another place. */
static void check_far(msda_dtype dtype, msda_stride stride)
{
    msda_problem problem = problem_with_dtype(problem_of_level(2, 1, 2, 4, 1, 2, 1), dtype);
    trial near;
    size_t size = 0;
    trial_open(&near, &problem, 0);
    inputs_fill(&near, 5);
    trial_forward(&near);
    trial_backward(&near);

    problem.strides[MSDA_TENSOR_VALUE] = problem.strides[MSDA_TENSOR_GRAD_VALUE] = stride;
    assert_int_equal(msda_tensor_size(&problem, MSDA_TENSOR_VALUE, &size), MSDA_STATUS_SUCCESS);
    unsigned char *value = map_sparse(size), *grad_value = map_sparse(size);
    trial far;
    const msda_problem dense = near.problem;
    trial_open(&far, &dense, 0);
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        trial_copy(&far, &near, (msda_tensor)tensor);
    trial_poison_outputs(&far);
    for (int64_t i = 0; i < trial_count(&near, MSDA_TENSOR_VALUE); ++i) {
        const int64_t at = i / 16 * stride.batch + i / 8 % 2 * stride.row + i / 4 % 2 * stride.head + i % 4;
        element_set(dtype, value, at, trial_get(&near, MSDA_TENSOR_VALUE, i));
    }
    msda_forward_args forward = trial_forward_args(&far);
    msda_backward_args backward = trial_backward_args(&far);
    forward.value = backward.value = value;
    backward.grad_value = grad_value;
    assert_int_equal(backend_under_test->forward(&problem, &forward), MSDA_STATUS_SUCCESS);
    assert_int_equal(backend_under_test->backward(&problem, &backward), MSDA_STATUS_SUCCESS);
    assert_true(trial_equal(&near, &far, MSDA_TENSOR_OUTPUT));
    assert_true(trial_equal(&near, &far, MSDA_TENSOR_GRAD_LOCATIONS));
    assert_true(trial_equal(&near, &far, MSDA_TENSOR_GRAD_WEIGHTS));
    for (int64_t i = 0; i < trial_count(&near, MSDA_TENSOR_VALUE); ++i) {
        const int64_t at = i / 16 * stride.batch + i / 8 % 2 * stride.row + i / 4 % 2 * stride.head + i % 4;
        assert_true(element_get(dtype, grad_value, at) == trial_get(&near, MSDA_TENSOR_GRAD_VALUE, i));
    }
    munmap(value, size);
    munmap(grad_value, size);
    trial_close(&near);
    trial_close(&far);
}

static void check_far_offsets(msda_dtype dtype)
{
    const int64_t far = ((int64_t)1 << 31) + 64;
    check_far(dtype, (msda_stride){far, 8, 4});
    check_far(dtype, (msda_stride){2 * far, far, 4});
    check_far(dtype, (msda_stride){2 * far, 4, far});
}

static void offsets_pass_2_31_elements(void **state)
{
    (void)state;
    if (backend_under_test == &backend_cuda)
        skip(); /* the adapter would copy every byte between; tests/cuda has its own */
    backend_for_each_dtype(check_far_offsets);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_equal_dense_tensors),
        cmocka_unit_test(slices_agree_with_naive),
        cmocka_unit_test(interleaved_outputs_are_told_from_overlapping_ones),
        cmocka_unit_test(offsets_pass_2_31_elements),
    };
    return RUN_PROGRAM(argc, argv, NULL, tests);
}
