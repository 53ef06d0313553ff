/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of the result do not depend on the number of threads, nor on other calls at the same time. */
#include "trial.h"

#include <pthread.h>

#include "inputs.h"
#include "problems.h"

static const named_problem busy = {"busy", 2, 29, 3, 19, 0, {{5, 9, 3, 0}, {3, 4, 2, 0}, {1, 1, 1, 0}}};

static void run(trial *t, int num_threads)
{
    trial_poison_outputs(t);
    backend_set_threads(num_threads);
    trial_forward(t);
    trial_backward(t);
    backend_set_threads(0);
}

static void require_same_bytes(const trial *one, const trial *many, int num_threads)
{
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        if (trial_count(one, (msda_tensor)tensor) > 0 && !trial_equal(one, many, (msda_tensor)tensor))
            fail_msg("%s: %s: %s differs between 1 and %d threads", backend_label(), one->name,
                     trial_tensor_name(one, (msda_tensor)tensor), num_threads);
}

static void check_thread_counts(msda_dtype dtype)
{
    static const int thread_counts[] = {2, 3, 7, 16, 0};
    for (int fused = 0; fused < 2; ++fused)
        for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate) {
            trial one, many;
            msda_problem problem = problem_with_dtype(problem_of(&busy), dtype);
            problem.accumulate = (msda_accumulate)accumulate;
            trial_open(&one, &problem, fused);
            trial_open(&many, &problem, fused);
            inputs_fill(&one, 7);
            inputs_fill(&many, 7);
            run(&one, 1);
            for (size_t i = 0; i < sizeof thread_counts / sizeof thread_counts[0]; ++i) {
                run(&many, thread_counts[i]);
                require_same_bytes(&one, &many, thread_counts[i]);
            }
            trial_close(&one);
            trial_close(&many);
        }
}

static void bytes_do_not_depend_on_thread_count(void **state)
{
    (void)state;
    backend_for_each_dtype(check_thread_counts);
}

static void check_sixteen_threads(const named_problem *shape, msda_dtype dtype)
{
    trial one, many;
    const msda_problem problem = problem_with_dtype(problem_of(shape), dtype);
    trial_open(&one, &problem, 0);
    trial_open(&many, &problem, 0);
    inputs_fill(&one, 7);
    inputs_fill(&many, 7);
    run(&one, 1);
    run(&many, 16);
    require_same_bytes(&one, &many, 16);
    trial_close(&one);
    trial_close(&many);
}

/* A level of few pixels and one head: fewer natural pieces of work than threads. */
static void check_few_items(msda_dtype dtype)
{
    static const named_problem narrow = {"narrow", 1, 40, 1, 8, 0, {{2, 3, 4, 0}}};
    check_sixteen_threads(&narrow, dtype);
}

static void more_threads_than_work_is_fine(void **state)
{
    (void)state;
    backend_for_each_dtype(check_few_items);
}

/* More queries than are put in order at a time. */
static void check_many_queries(msda_dtype dtype)
{
    static const named_problem crowd = {"crowd", 2, 1100, 2, 8, 0, {{7, 9, 2, 0}, {3, 4, 1, 0}}};
    check_sixteen_threads(&crowd, dtype);
}

static void the_order_of_queries_does_not_depend_on_threads(void **state)
{
    (void)state;
    backend_for_each_dtype(check_many_queries);
}

static void check_repetitions(msda_dtype dtype)
{
    trial first, again;
    const msda_problem problem = problem_with_dtype(problem_of(&busy), dtype);
    trial_open(&first, &problem, 0);
    trial_open(&again, &problem, 0);
    inputs_fill(&first, 7);
    inputs_fill(&again, 7);
    run(&first, 0);
    for (int i = 0; i < 100; ++i) {
        run(&again, 0);
        require_same_bytes(&first, &again, 0);
    }
    trial_close(&first);
    trial_close(&again);
}

static void one_hundred_runs_give_the_same_bytes(void **state)
{
    (void)state;
    backend_for_each_dtype(check_repetitions);
}

/* Asserts belong to the main thread, so callers only note what they saw. */
typedef struct caller {
    trial *t;
    msda_status status;
} caller;

static void *call_many_times(void *argument)
{
    caller *c = argument;
    const msda_forward_args args = trial_forward_args(c->t);
    for (int i = 0; i < 20 && c->status == MSDA_STATUS_SUCCESS; ++i)
        c->status = msda_cpu_forward(&c->t->problem, &args, 2);
    return NULL;
}

static void calls_may_run_at_the_same_time(void **state)
{
    (void)state;
    enum { num_callers = 4 };
    trial trials[num_callers];
    caller callers[num_callers];
    pthread_t threads[num_callers];
    const msda_problem problem = problem_of(&busy);
    for (int i = 0; i < num_callers; ++i) {
        trial_open(&trials[i], &problem, 0);
        inputs_fill(&trials[i], 7);
        callers[i] = (caller){&trials[i], MSDA_STATUS_SUCCESS};
        assert_int_equal(pthread_create(&threads[i], NULL, call_many_times, &callers[i]), 0);
    }
    for (int i = 0; i < num_callers; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(callers[i].status, MSDA_STATUS_SUCCESS);
    }
    for (int i = 1; i < num_callers; ++i)
        assert_true(trial_equal(&trials[0], &trials[i], MSDA_TENSOR_OUTPUT));
    for (int i = 0; i < num_callers; ++i)
        trial_close(&trials[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_do_not_depend_on_thread_count),
        cmocka_unit_test(more_threads_than_work_is_fine),
        cmocka_unit_test(the_order_of_queries_does_not_depend_on_threads),
        cmocka_unit_test(one_hundred_runs_give_the_same_bytes),
        cmocka_unit_test(calls_may_run_at_the_same_time),
    };
    return RUN_PROGRAM(argc, argv, &backend_cpu, tests);
}
