/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU back end's entry points: check, select, lay out the workspace, run. The only file with threads. */
#include "cpu_table.h"

#if defined(_OPENMP)
#include <omp.h>
#define OPENMP(directive) _Pragma(#directive)
#else
#define OPENMP(directive)
#endif

#define WORKSPACE_ALIGNMENT 64

/* ---- threads ---------------------------------------------------------------------------------------------------- */

static msda_status check_threads(int num_threads)
{
    if (num_threads < 0)
        return msda_fail(MSDA_STATUS_INVALID_PROBLEM, "num_threads is %d, expected >= 0", num_threads);
    return MSDA_STATUS_SUCCESS;
}

static int threads_for(int num_threads)
{
#if defined(_OPENMP)
    if (num_threads == 0)
        return omp_in_parallel() ? 1 : omp_get_max_threads();
    return num_threads;
#else
    (void)num_threads;
    return 1;
#endif
}

static void open_thread(msda_cpu_thread *thread, const msda_cpu_job *job)
{
#if defined(_OPENMP)
    const size_t number = (size_t)omp_get_thread_num();
#else
    const size_t number = 0;
#endif
    const msda_cpu_plan *plan = &job->plan;
    thread->order.n = -1;
    thread->scratch = plan->scratch_size == 0
                          ? NULL
                          : (unsigned char *)job->workspace + plan->scratch_offset + number * plan->scratch_size;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* guided: a thread takes many stretches first, whose items share its cache, and few at the end. */
static void run_stretches(const msda_cpu_pass *pass, const msda_cpu_job *job, msda_cpu_thread *thread, int64_t items)
{
    const int64_t length = pass->stretch, stretches = (items + length - 1) / length;
    OPENMP(omp for schedule(guided) nowait)
    for (int64_t i = 0; i < stretches; ++i)
        pass->run(job, thread, i * length, smaller((i + 1) * length, items));
}

static void run_one_by_one(const msda_cpu_pass *pass, const msda_cpu_job *job, msda_cpu_thread *thread, int64_t items)
{
    OPENMP(omp for schedule(dynamic, 1) nowait)
    for (int64_t item = 0; item < items; ++item)
        pass->run(job, thread, item, item + 1);
}

static void run_pass(const msda_cpu_pass *pass, const msda_cpu_job *job, int threads)
{
    const int64_t items = pass->count ? pass->count(job) : 0;
    (void)threads; /* unused without OpenMP */
    if (items == 0)
        return;
    OPENMP(omp parallel num_threads(threads))
    {
        msda_cpu_thread thread;
        open_thread(&thread, job);
        if (pass->stretch > 0)
            run_stretches(pass, job, &thread, items);
        else
            run_one_by_one(pass, job, &thread, items);
    }
}

/* ---- forward and backward of either form ------------------------------------------------------------------------- */

static msda_status run_forward(const msda_cpu_job *job, int num_threads)
{
    MSDA_TRY(check_threads(num_threads));
    run_pass(&msda_cpu_select(&job->shape)->forward, job, threads_for(num_threads));
    return MSDA_STATUS_SUCCESS;
}

static msda_status run_backward(msda_cpu_job *job, void *workspace, size_t workspace_size, int num_threads)
{
    MSDA_TRY(check_threads(num_threads));
    const int threads = threads_for(num_threads);
    msda_cpu_plan_backward(&job->plan, &job->shape, threads);
    MSDA_TRY(msda_check_workspace(&job->shape, &job->tensors, workspace, workspace_size, job->plan.workspace_size,
                                  WORKSPACE_ALIGNMENT));
    job->workspace = workspace;
    const msda_cpu_row *row = msda_cpu_select(&job->shape);
    for (int i = 0; i < MSDA_CPU_BACKWARD_PASSES; ++i)
        run_pass(&row->backward[i], job, threads);
    return MSDA_STATUS_SUCCESS;
}

static msda_status find_workspace(const msda_problem *problem, int fused, int num_threads, size_t *size)
{
    msda_shape shape;
    msda_cpu_plan plan;
    if (size == NULL)
        return msda_fail(MSDA_STATUS_NULL_POINTER, "size is null");
    MSDA_TRY(msda_shape_init(&shape, problem, fused));
    MSDA_TRY(check_threads(num_threads));
    msda_cpu_plan_backward(&plan, &shape, threads_for(num_threads));
    *size = plan.workspace_size;
    return MSDA_STATUS_SUCCESS;
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

msda_status msda_cpu_forward(const msda_problem *problem, const msda_forward_args *args, int num_threads)
{
    msda_cpu_job job = {0};
    MSDA_TRY(msda_open_forward(&job.shape, &job.tensors, problem, args));
    return run_forward(&job, num_threads);
}

msda_status msda_cpu_fused_forward(const msda_problem *problem, const msda_fused_forward_args *args, int num_threads)
{
    msda_cpu_job job = {0};
    MSDA_TRY(msda_open_fused_forward(&job.shape, &job.tensors, problem, args));
    return run_forward(&job, num_threads);
}

msda_status msda_cpu_backward(const msda_problem *problem, const msda_backward_args *args, void *workspace,
                              size_t workspace_size, int num_threads)
{
    msda_cpu_job job = {0};
    MSDA_TRY(msda_open_backward(&job.shape, &job.tensors, problem, args));
    return run_backward(&job, workspace, workspace_size, num_threads);
}

msda_status msda_cpu_fused_backward(const msda_problem *problem, const msda_fused_backward_args *args, void *workspace,
                                    size_t workspace_size, int num_threads)
{
    msda_cpu_job job = {0};
    MSDA_TRY(msda_open_fused_backward(&job.shape, &job.tensors, problem, args));
    return run_backward(&job, workspace, workspace_size, num_threads);
}

msda_status msda_cpu_backward_workspace(const msda_problem *problem, int num_threads, size_t *size)
{
    return find_workspace(problem, 0, num_threads, size);
}

msda_status msda_cpu_fused_backward_workspace(const msda_problem *problem, int num_threads, size_t *size)
{
    return find_workspace(problem, 1, num_threads, size);
}

const char *msda_cpu_kernel_name(const msda_problem *problem)
{
    msda_shape shape;
    return msda_shape_init(&shape, problem, 0) == MSDA_STATUS_SUCCESS ? msda_cpu_select(&shape)->name : "";
}
