/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses and their texts, the error text of each thread, and the version. */
#include "backend.h"

#include <pthread.h>

#include "problems.h"

static const struct pinned {
    msda_status status;
    int number;
} statuses[] = {
    {MSDA_STATUS_SUCCESS, 0},
    {MSDA_STATUS_INVALID_PROBLEM, 1},
    {MSDA_STATUS_NULL_POINTER, 2},
    {MSDA_STATUS_MISALIGNED, 3},
    {MSDA_STATUS_OVERLAP, 4},
    {MSDA_STATUS_UNSUPPORTED, 5},
    {MSDA_STATUS_WORKSPACE_TOO_SMALL, 6},
    {MSDA_STATUS_NOT_BUILT, 7},
    {MSDA_STATUS_NO_DEVICE, 8},
    {MSDA_STATUS_WRONG_DEVICE, 9},
    {MSDA_STATUS_CUDA_ERROR, 10},
};

static const int num_statuses = sizeof statuses / sizeof statuses[0];

static void status_numbers_are_pinned(void **state)
{
    (void)state;
    for (int i = 0; i < num_statuses; ++i)
        assert_int_equal(statuses[i].status, statuses[i].number);
}

static void every_status_has_its_own_text(void **state)
{
    (void)state;
    for (int i = 0; i < num_statuses; ++i) {
        assert_string_not_equal(msda_status_string(statuses[i].status), "");
        assert_string_not_equal(msda_status_string(statuses[i].status), "unknown status");
        for (int k = 0; k < i; ++k)
            assert_string_not_equal(msda_status_string(statuses[i].status), msda_status_string(statuses[k].status));
    }
}

static void other_numbers_are_unknown(void **state)
{
    (void)state;
    assert_string_equal(msda_status_string((msda_status)num_statuses), "unknown status");
    assert_string_equal(msda_status_string((msda_status)-1), "unknown status");
}

static void enum_numbers_are_pinned(void **state)
{
    (void)state;
    assert_int_equal(MSDA_DTYPE_F64, 1);
    assert_int_equal(MSDA_DTYPE_F32, 2);
    assert_int_equal(MSDA_DTYPE_F16, 3);
    assert_int_equal(MSDA_DTYPE_BF16, 4);
    assert_int_equal(MSDA_ACCUMULATE_FP32, 0);
    assert_int_equal(MSDA_ACCUMULATE_NATIVE, 1);
    assert_int_equal(MSDA_ACCUMULATE_DETERMINISTIC, 2);
    assert_int_equal(MSDA_PADDING_BORDER, 1);
    assert_int_equal(MSDA_SAMPLING_DISCRETE, 1);
    assert_int_equal(MSDA_REFERENCE_BOXES, 1);
    assert_int_equal(MSDA_REFERENCE_ANCHORS, 2);
    assert_int_equal(MSDA_TENSOR_GRAD_REFERENCES, MSDA_TENSOR_COUNT - 1);
}

static void *read_error_on_a_new_thread(void *text)
{
    strncpy(text, msda_last_error(), 63);
    return NULL;
}

static void error_text_belongs_to_its_thread(void **state)
{
    (void)state;
    char text[64] = "unread";
    pthread_t thread;
    assert_int_equal(msda_problem_check(NULL), MSDA_STATUS_NULL_POINTER);
    assert_string_not_equal(msda_last_error(), "");
    assert_int_equal(pthread_create(&thread, NULL, read_error_on_a_new_thread, text), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(text, "");
}

static void success_keeps_the_last_error(void **state)
{
    (void)state;
    char before[512];
    const msda_problem problem = problem_of(rich_problem);
    assert_int_equal(msda_problem_check(NULL), MSDA_STATUS_NULL_POINTER);
    strncpy(before, msda_last_error(), sizeof before - 1);
    before[sizeof before - 1] = '\0';
    assert_int_equal(msda_problem_check(&problem), MSDA_STATUS_SUCCESS);
    assert_string_equal(msda_last_error(), before);
}

static void library_and_header_have_one_version(void **state)
{
    (void)state;
    assert_int_equal(msda_version(), MSDA_VERSION);
}

static void kernel_names_are_empty_for_invalid_problems(void **state)
{
    (void)state;
    msda_problem problem = problem_of(rich_problem);
    problem.batch = -1;
    assert_string_equal(msda_cpu_kernel_name(&problem), "");
    assert_string_equal(msda_cpu_kernel_name(NULL), "");
    assert_string_equal(msda_cuda_kernel_name(&problem), "");
    assert_string_equal(msda_cuda_kernel_name(NULL), "");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_numbers_are_pinned),
        cmocka_unit_test(every_status_has_its_own_text),
        cmocka_unit_test(other_numbers_are_unknown),
        cmocka_unit_test(enum_numbers_are_pinned),
        cmocka_unit_test(error_text_belongs_to_its_thread),
        cmocka_unit_test(success_keeps_the_last_error),
        cmocka_unit_test(library_and_header_have_one_version),
        cmocka_unit_test(kernel_names_are_empty_for_invalid_problems),
    };
    return RUN_PROGRAM(argc, argv, NULL, tests);
}
