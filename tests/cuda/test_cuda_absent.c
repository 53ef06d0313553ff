/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA entry points where nothing can run: without a device, or in a build without CUDA. Mistakes in the arguments are
 * told as everywhere; what is right is refused with the reason; nothing is printed, no output touched. Skips where there is
 * a device.
 */
#define _POSIX_C_SOURCE 200809L

#include "bounds.h"
#include "inputs.h"
#include "problems.h"

#include <stdio.h>
#include <unistd.h>

static msda_status expected_status(void)
{
    return msda_cuda_is_built() ? MSDA_STATUS_NO_DEVICE : MSDA_STATUS_NOT_BUILT;
}

static void require_status(msda_status got, msda_status expected)
{
    if (got != expected)
        fail_msg("status \"%s\", expected \"%s\"; text: %s", msda_status_string(got), msda_status_string(expected),
                 msda_last_error());
}

static msda_status forward(trial *t)
{
    const msda_forward_args args = trial_forward_args(t);
    const msda_fused_forward_args fused_args = trial_fused_forward_args(t);
    return t->fused ? msda_cuda_fused_forward(&t->problem, &fused_args, NULL)
                    : msda_cuda_forward(&t->problem, &args, NULL);
}

/* `workspace` holds as much as the problem needs, and is aligned. */
static msda_status backward(trial *t, void *workspace, size_t size)
{
    const msda_backward_args args = trial_backward_args(t);
    const msda_fused_backward_args fused_args = trial_fused_backward_args(t);
    return t->fused ? msda_cuda_fused_backward(&t->problem, &fused_args, workspace, size, NULL)
                    : msda_cuda_backward(&t->problem, &args, workspace, size, NULL);
}

static void check_refusal(const msda_problem *problem, int fused)
{
    static _Alignas(256) char workspace[1 << 20];
    trial t, before;
    trial_open(&t, problem, fused);
    trial_open(&before, problem, fused);
    require_status(forward(&t), expected_status());
    require_status(backward(&t, workspace, sizeof workspace), expected_status());
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (t.tensors[i].memory.pages)
            assert_true(trial_equal(&t, &before, (msda_tensor)i));
    trial_close(&before);
    trial_close(&t);
}

static void test_calls_are_refused(void **state)
{
    (void)state;
    static const msda_dtype dtypes[] = {MSDA_DTYPE_F64, MSDA_DTYPE_F32, MSDA_DTYPE_F16, MSDA_DTYPE_BF16};
    const msda_problem empty = problem_of_level(2, 0, 3, 4, 5, 6, 2);
    for (int fused = 0; fused <= 1; ++fused) {
        check_refusal(&empty, fused);
        for (int i = 0; i < 4; ++i)
            for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate) {
                msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtypes[i]);
                problem.accumulate = (msda_accumulate)accumulate;
                check_refusal(&problem, fused);
            }
    }
}

static void test_mistakes_are_told_first(void **state)
{
    (void)state;
    trial t;
    const msda_problem problem = problem_of(rich_problem);
    for (int fused = 0; fused <= 1; ++fused) {
        trial_open(&t, &problem, fused);
        t.unwanted = 1u << MSDA_TENSOR_VALUE;
        require_status(forward(&t), MSDA_STATUS_NULL_POINTER);
        require_status(backward(&t, NULL, 0), MSDA_STATUS_NULL_POINTER);
        t.unwanted = 0;
        t.problem.head_dim = -1;
        require_status(forward(&t), MSDA_STATUS_INVALID_PROBLEM);
        require_status(backward(&t, NULL, 0), MSDA_STATUS_INVALID_PROBLEM);
        trial_close(&t);
    }
    require_status(msda_cuda_forward(NULL, NULL, NULL), MSDA_STATUS_NULL_POINTER);
    require_status(msda_cuda_forward(&problem, NULL, NULL), MSDA_STATUS_NULL_POINTER);
    require_status(msda_cuda_backward(&problem, NULL, NULL, 0, NULL), MSDA_STATUS_NULL_POINTER);
    require_status(msda_cuda_fused_forward(&problem, NULL, NULL), MSDA_STATUS_NULL_POINTER);
    require_status(msda_cuda_fused_backward(&problem, NULL, NULL, 0, NULL), MSDA_STATUS_NULL_POINTER);
}

/* The size depends on the problem alone, so it is known without a device. */
static void test_workspace_size(void **state)
{
    (void)state;
    const msda_problem problem = problem_of(rich_problem);
    msda_problem broken = problem;
    size_t size;
    broken.queries = -1;
    const msda_status expected = msda_cuda_is_built() ? MSDA_STATUS_SUCCESS : MSDA_STATUS_NOT_BUILT;
    require_status(msda_cuda_backward_workspace(&problem, &size), expected);
    require_status(msda_cuda_fused_backward_workspace(&problem, &size), expected);
    require_status(msda_cuda_backward_workspace(&problem, NULL), MSDA_STATUS_NULL_POINTER);
    require_status(msda_cuda_fused_backward_workspace(&problem, NULL), MSDA_STATUS_NULL_POINTER);
    require_status(msda_cuda_backward_workspace(&broken, &size), MSDA_STATUS_INVALID_PROBLEM);
    require_status(msda_cuda_fused_backward_workspace(&broken, &size), MSDA_STATUS_INVALID_PROBLEM);
}

static void test_queries(void **state)
{
    (void)state;
    int count = 7;
    const msda_problem problem = problem_of(rich_problem);
    require_status(msda_cuda_device_count(&count), expected_status());
    assert_int_equal(count, 0);
    require_status(msda_cuda_device_count(NULL), MSDA_STATUS_NULL_POINTER);
    if (msda_cuda_is_built()) {
        assert_true(strlen(msda_cuda_architectures()) > 0);
        assert_string_equal(msda_cuda_kernel_name(&problem), "f32_f32_dany__cuda");
    } else {
        assert_string_equal(msda_cuda_architectures(), "");
        assert_string_equal(msda_cuda_kernel_name(&problem), "");
    }
    assert_string_equal(msda_cuda_kernel_name(NULL), "");
}

/* While `act` runs, standard output and error lead into a file, which must stay empty. */
static void test_nothing_is_printed(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    fflush(stderr);
    const int kept_out = dup(STDOUT_FILENO), kept_err = dup(STDERR_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    const msda_problem problem = problem_of(rich_problem);
    check_refusal(&problem, 0);
    fflush(stdout);
    fflush(stderr);
    dup2(kept_out, STDOUT_FILENO);
    dup2(kept_err, STDERR_FILENO);
    close(kept_out);
    close(kept_err);
    assert_int_equal(lseek(fileno(file), 0, SEEK_END), 0);
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_are_refused),  cmocka_unit_test(test_mistakes_are_told_first),
        cmocka_unit_test(test_workspace_size),     cmocka_unit_test(test_queries),
        cmocka_unit_test(test_nothing_is_printed),
    };
    int count = 0;
    if (msda_cuda_device_count(&count) == MSDA_STATUS_SUCCESS) {
        for (size_t i = 0; i < sizeof tests / sizeof tests[0]; ++i)
            printf("[  SKIPPED ] %s: this machine has %d CUDA devices\n", tests[i].name, count);
        return EXIT_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
