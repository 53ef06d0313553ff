/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many calls: DETERMINISTIC gives the same bytes every time, whatever else the device does; no call allocates; the ten
 * thousandth is like the first.
 */
#include "device_trial.h"

static const msda_dtype dtypes[] = {MSDA_DTYPE_F64, MSDA_DTYPE_F32, MSDA_DTYPE_F16, MSDA_DTYPE_BF16};

/* ---- the same bytes ------------------------------------------------------------------------------------------------ */

/* Another stream's work, of changing size, so that ours meets a different schedule every time. */
typedef struct load {
    trial t;
    device_trial d;
    cudaStream_t stream;
} load;

static void load_open(load *l)
{
    msda_problem problem = problem_of_level(1, 3000, 8, 32, 30, 40, 4);
    problem.accumulate = MSDA_ACCUMULATE_NATIVE;
    trial_open(&l->t, &problem, 0);
    inputs_fill(&l->t, 99);
    device_trial_open(&l->d, &l->t);
    REQUIRE(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
}

static void load_close(load *l)
{
    REQUIRE(cudaStreamDestroy(l->stream));
    device_trial_close(&l->d);
    trial_close(&l->t);
}

/* Uniform points, and as many on one pixel again: long sums, where order shows. */
static void fill_with_hot_pixel(trial *t)
{
    inputs_fill(t, 5);
    if (t->fused)
        return;
    for (int64_t i = 0; i < trial_count(t, MSDA_TENSOR_LOCATIONS); i += 4) {
        trial_set(t, MSDA_TENSOR_LOCATIONS, i, 0.37);
        trial_set(t, MSDA_TENSOR_LOCATIONS, i + 1, 0.61);
    }
}

static void check_same_bytes(load *l, const msda_problem *problem, int fused)
{
    trial first, again;
    device_trial d;
    cudaStream_t stream;
    trial_open(&first, problem, fused);
    trial_open(&again, problem, fused);
    fill_with_hot_pixel(&first);
    fill_with_hot_pixel(&again);
    device_trial_once(&first);
    device_trial_open(&d, &again);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int run = 1; run < full_or_few(100, 3); ++run) {
        for (int i = 0; i < run % 5; ++i)
            device_trial_run(&l->d, l->stream);
        trial_poison_outputs(&again);
        device_trial_send_outputs(&d, stream);
        device_trial_run(&d, stream);
        device_trial_fetch_outputs(&d, stream);
        for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
            if (trial_is_output((msda_tensor)i) && !trial_equal(&first, &again, (msda_tensor)i))
                fail_msg("run %d: %s differs from the first run's", run, trial_tensor_name(&first, (msda_tensor)i));
    }
    REQUIRE(cudaStreamDestroy(stream));
    REQUIRE(cudaDeviceSynchronize());
    device_trial_close(&d);
    trial_close(&again);
    trial_close(&first);
}

static void check_deterministic(msda_dtype dtype)
{
    load l;
    load_open(&l);
    for (int fused = 0; fused <= 1; ++fused) {
        msda_problem problem = problem_with_dtype(problem_of_level(1, 300, 2, 32, 11, 17, 4), dtype);
        problem.accumulate = MSDA_ACCUMULATE_DETERMINISTIC;
        check_same_bytes(&l, &problem, fused);
        problem.head_dim = 5;
        check_same_bytes(&l, &problem, fused);
    }
    load_close(&l);
}

static void test_deterministic_f64(void **state)
{
    (void)state;
    check_deterministic(MSDA_DTYPE_F64);
}

static void test_deterministic_f32(void **state)
{
    (void)state;
    check_deterministic(MSDA_DTYPE_F32);
}

static void test_deterministic_f16(void **state)
{
    (void)state;
    check_deterministic(MSDA_DTYPE_F16);
}

static void test_deterministic_bf16(void **state)
{
    (void)state;
    check_deterministic(MSDA_DTYPE_BF16);
}

/* ---- no memory ------------------------------------------------------------------------------------------------------ */

static size_t free_memory(void)
{
    size_t available, total;
    REQUIRE(cudaDeviceSynchronize());
    REQUIRE(cudaMemGetInfo(&available, &total));
    return available;
}

static void check_no_allocation(const msda_problem *problem, int fused)
{
    trial t;
    device_trial d;
    trial_open(&t, problem, fused);
    inputs_fill(&t, 6);
    device_trial_open(&d, &t);
    device_trial_run(&d, NULL); /* CUDA loads a kernel when it is first launched */
    const size_t before = free_memory();
    for (int i = 0; i < full_or_few(100, 3); ++i)
        device_trial_run(&d, NULL);
    assert_int_equal(free_memory(), before);
    device_trial_close(&d);
    trial_close(&t);
}

static void test_no_call_allocates(void **state)
{
    (void)state;
    for (int i = 0; i < 4; ++i)
        for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate)
            for (int fused = 0; fused <= 1; ++fused) {
                msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtypes[i]);
                problem.accumulate = (msda_accumulate)accumulate;
                check_no_allocation(&problem, fused);
            }
}

/* ---- ten thousand calls ---------------------------------------------------------------------------------------------- */

static void test_ten_thousand_calls(void **state)
{
    (void)state;
    trial t;
    device_trial d;
    expectation e;
    const msda_problem problem = problem_with_dtype(problem_of(rich_problem), MSDA_DTYPE_F16);
    trial_open(&t, &problem, 0);
    t.name = "ten thousand calls";
    inputs_fill(&t, 7);
    expectation_open(&e, &t);
    device_trial_open(&d, &t);
    device_trial_run(&d, NULL);
    const size_t before = free_memory();
    for (int i = 0; i < full_or_few(5000, 20); ++i)
        device_trial_run(&d, NULL);
    assert_int_equal(free_memory(), before);
    device_trial_fetch_outputs(&d, NULL);
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (trial_is_output((msda_tensor)i))
            expectation_check(&e, &t, (msda_tensor)i);
    require_no_error_waiting();
    device_trial_close(&d);
    expectation_close(&e);
    trial_close(&t);
}

/* With ADD_TO_GRADIENTS a second run adds once more. */
static void test_two_runs_accumulate_twice(void **state)
{
    (void)state;
    for (int i = 0; i < 4; ++i)
        for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate) {
            msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtypes[i]);
            problem.accumulate = (msda_accumulate)accumulate;
            problem.flags = MSDA_FLAG_ADD_TO_GRADIENTS;
            trial t;
            device_trial d;
            trial_open(&t, &problem, 0);
            t.name = "added to twice";
            inputs_fill(&t, 8);
            for (int tensor = MSDA_TENSOR_GRAD_VALUE; tensor < MSDA_TENSOR_GRAD_REFERENCES; ++tensor)
                trial_set_all(&t, (msda_tensor)tensor, 0.0);
            device_trial_open(&d, &t);
            device_trial_run(&d, NULL);
            device_trial_fetch_outputs(&d, NULL);
            /* what the second run finds is what it is expected to add to */
            expectation e;
            expectation_open(&e, &t);
            device_trial_run(&d, NULL);
            device_trial_fetch_outputs(&d, NULL);
            for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
                if (trial_is_output((msda_tensor)tensor))
                    expectation_check(&e, &t, (msda_tensor)tensor);
            expectation_close(&e);
            device_trial_close(&d);
            trial_close(&t);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deterministic_f64),         cmocka_unit_test(test_deterministic_f32),
        cmocka_unit_test(test_deterministic_f16),         cmocka_unit_test(test_deterministic_bf16),
        cmocka_unit_test(test_no_call_allocates),         cmocka_unit_test(test_ten_thousand_calls),
        cmocka_unit_test(test_two_runs_accumulate_twice),
    };
    return RUN_PROGRAM(argc, argv, &backend_cuda, tests);
}
