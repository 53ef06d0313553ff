/* SPDX-License-Identifier: Apache-2.0 */
#include "compute.h"

#include "complain.h"
#include "device.h"
#include "folder.h"
#include "storage.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A task on its way through the library. */
typedef struct call {
    const msda_task *task;
    msda_problem problem;      /* as the back end gets it: naive's is F64 throughout */
    const msda_device *device; /* null on the CPU */
    void *host[MSDA_TENSOR_COUNT];
    void *remote[MSDA_TENSOR_COUNT]; /* copies on the device */
    void *const *at;                 /* one of the two: where the back end finds the tensors */
    size_t size[MSDA_TENSOR_COUNT];  /* bytes */
    void *workspace;
    size_t workspace_size;
} call;

static size_t at_least_one(size_t size)
{
    return size > 0 ? size : 1;
}

/* ---- the library's entry points -------------------------------------------------------------------------------- */

static msda_status forward_plain(const call *c)
{
    const msda_forward_args args = {c->at[MSDA_TENSOR_VALUE], c->at[MSDA_TENSOR_LOCATIONS], c->at[MSDA_TENSOR_WEIGHTS],
                                    c->at[MSDA_TENSOR_OUTPUT]};
    switch (c->task->backend) {
    case MSDA_BACKEND_NAIVE:
        return msda_naive_forward(&c->problem, &args);
    case MSDA_BACKEND_CPU:
        return msda_cpu_forward(&c->problem, &args, c->task->threads);
    default:
        return msda_cuda_forward(&c->problem, &args, NULL);
    }
}

static msda_status forward_fused(const call *c)
{
    const msda_fused_forward_args args = {c->at[MSDA_TENSOR_VALUE], c->at[MSDA_TENSOR_REFERENCES],
                                          c->at[MSDA_TENSOR_LOCATIONS], c->at[MSDA_TENSOR_WEIGHTS],
                                          c->at[MSDA_TENSOR_OUTPUT]};
    switch (c->task->backend) {
    case MSDA_BACKEND_NAIVE:
        return msda_naive_fused_forward(&c->problem, &args);
    case MSDA_BACKEND_CPU:
        return msda_cpu_fused_forward(&c->problem, &args, c->task->threads);
    default:
        return msda_cuda_fused_forward(&c->problem, &args, NULL);
    }
}

static msda_status backward_plain(const call *c)
{
    const msda_backward_args args = {c->at[MSDA_TENSOR_VALUE],       c->at[MSDA_TENSOR_LOCATIONS],
                                     c->at[MSDA_TENSOR_WEIGHTS],     c->at[MSDA_TENSOR_GRAD_OUTPUT],
                                     c->at[MSDA_TENSOR_GRAD_VALUE],  c->at[MSDA_TENSOR_GRAD_LOCATIONS],
                                     c->at[MSDA_TENSOR_GRAD_WEIGHTS]};
    switch (c->task->backend) {
    case MSDA_BACKEND_NAIVE:
        return msda_naive_backward(&c->problem, &args);
    case MSDA_BACKEND_CPU:
        return msda_cpu_backward(&c->problem, &args, c->workspace, c->workspace_size, c->task->threads);
    default:
        return msda_cuda_backward(&c->problem, &args, c->workspace, c->workspace_size, NULL);
    }
}

static msda_status backward_fused(const call *c)
{
    const msda_fused_backward_args args = {
        c->at[MSDA_TENSOR_VALUE],           c->at[MSDA_TENSOR_REFERENCES],     c->at[MSDA_TENSOR_LOCATIONS],
        c->at[MSDA_TENSOR_WEIGHTS],         c->at[MSDA_TENSOR_GRAD_OUTPUT],    c->at[MSDA_TENSOR_GRAD_VALUE],
        c->at[MSDA_TENSOR_GRAD_REFERENCES], c->at[MSDA_TENSOR_GRAD_LOCATIONS], c->at[MSDA_TENSOR_GRAD_WEIGHTS]};
    switch (c->task->backend) {
    case MSDA_BACKEND_NAIVE:
        return msda_naive_fused_backward(&c->problem, &args);
    case MSDA_BACKEND_CPU:
        return msda_cpu_fused_backward(&c->problem, &args, c->workspace, c->workspace_size, c->task->threads);
    default:
        return msda_cuda_fused_backward(&c->problem, &args, c->workspace, c->workspace_size, NULL);
    }
}

static msda_status ask_workspace_size(call *c)
{
    const bool fused = c->task->fused;
    switch (c->task->backend) {
    case MSDA_BACKEND_NAIVE:
        c->workspace_size = 0;
        return MSDA_STATUS_SUCCESS;
    case MSDA_BACKEND_CPU:
        return (fused ? msda_cpu_fused_backward_workspace : msda_cpu_backward_workspace)(&c->problem, c->task->threads,
                                                                                         &c->workspace_size);
    default:
        return (fused ? msda_cuda_fused_backward_workspace : msda_cuda_backward_workspace)(&c->problem,
                                                                                           &c->workspace_size);
    }
}

static bool succeeded(const call *c, msda_status status)
{
    if (status == MSDA_STATUS_SUCCESS)
        return true;
    return msda_complain("%s: %s: %s", msda_backend_name(c->task->backend), msda_status_string(status),
                         msda_last_error());
}

static bool run(const call *c, int direction)
{
    const msda_status status = direction == MSDA_FORWARD_TIMING ? (c->task->fused ? forward_fused : forward_plain)(c)
                                                                : (c->task->fused ? backward_fused : backward_plain)(c);
    return succeeded(c, status) && (c->device == NULL || c->device->wait());
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static bool allocate_host(void **memory, size_t size)
{
    *memory = aligned_alloc(64, (at_least_one(size) + 63) / 64 * 64);
    return *memory != NULL || msda_complain("no memory for a tensor of %zu bytes", size);
}

static msda_dtype dtype_of(const call *c, int tensor)
{
    return msda_folder_dtype(&c->problem, (msda_tensor)tensor);
}

static size_t count_of(const call *c, int tensor)
{
    return c->size[tensor] / msda_storage_size(dtype_of(c, tensor));
}

/* Inputs are encoded; results start as NaN (all bits set, in every type), so that one left unwritten shows. */
static bool fill_host(call *c, double *const tensors[MSDA_TENSOR_COUNT])
{
    for (int t = 0; t < MSDA_TENSOR_COUNT; ++t) {
        if (tensors[t] == NULL)
            continue;
        if (!succeeded(c, msda_tensor_size(&c->problem, (msda_tensor)t, &c->size[t])) ||
            !allocate_host(&c->host[t], c->size[t]))
            return false;
        if (msda_folder_is_input((msda_tensor)t))
            msda_storage_encode(dtype_of(c, t), tensors[t], count_of(c, t), c->host[t]);
        else
            memset(c->host[t], 0xFF, c->size[t]);
    }
    return true;
}

static bool fill_device(call *c)
{
    for (int t = 0; c->device != NULL && t < MSDA_TENSOR_COUNT; ++t)
        if (c->host[t] != NULL && (!c->device->allocate(&c->remote[t], at_least_one(c->size[t])) ||
                                   !c->device->upload(c->remote[t], c->host[t], c->size[t])))
            return false;
    return true;
}

static bool allocate_workspace(call *c)
{
    if (!succeeded(c, ask_workspace_size(c)))
        return false;
    return c->device != NULL ? c->device->allocate(&c->workspace, at_least_one(c->workspace_size))
                             : allocate_host(&c->workspace, c->workspace_size);
}

static bool fetch_results(const call *c, double *const tensors[MSDA_TENSOR_COUNT])
{
    for (int t = 0; t < MSDA_TENSOR_COUNT; ++t) {
        if (tensors[t] == NULL || msda_folder_is_input((msda_tensor)t))
            continue;
        if (c->device != NULL && !c->device->download(c->host[t], c->remote[t], c->size[t]))
            return false;
        msda_storage_decode(dtype_of(c, t), c->host[t], count_of(c, t), tensors[t]);
        const msda_dtype wanted = msda_folder_dtype(c->task->problem, (msda_tensor)t);
        for (size_t i = 0; c->task->backend == MSDA_BACKEND_NAIVE && i < count_of(c, t); ++i)
            tensors[t][i] = msda_storage_round(wanted, tensors[t][i]);
    }
    return true;
}

static void release(call *c)
{
    for (int t = 0; t < MSDA_TENSOR_COUNT; ++t) {
        free(c->host[t]);
        if (c->remote[t] != NULL)
            c->device->release(c->remote[t]);
    }
    if (c->device == NULL)
        free(c->workspace);
    else if (c->workspace != NULL)
        c->device->release(c->workspace);
}

/* ---- time ------------------------------------------------------------------------------------------------------ */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int compare_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static msda_timing summarise(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, compare_numbers);
    return (msda_timing){0.5 * (seconds[(count - 1) / 2] + seconds[count / 2]), seconds[0], seconds[count - 1]};
}

/* One run that is not timed, for it wakes threads and touches pages, then the timed ones. */
static bool run_repeatedly(const call *c, int direction, msda_timing *timings)
{
    const int repeat = c->task->repeat;
    if (!run(c, direction))
        return false;
    if (repeat == 0)
        return true;
    double *const seconds = malloc((size_t)repeat * sizeof *seconds);
    if (seconds == NULL)
        return msda_complain("no memory for %d timings", repeat);
    bool ran = true;
    for (int i = 0; ran && i < repeat; ++i) {
        const double start = now();
        ran = run(c, direction);
        seconds[i] = now() - start;
    }
    if (ran)
        timings[direction] = summarise(seconds, repeat);
    free(seconds);
    return ran;
}

/* ---- the task -------------------------------------------------------------------------------------------------- */

static void widen_for_naive(msda_problem *problem)
{
    problem->value_dtype = problem->point_dtype = MSDA_DTYPE_F64;
    problem->grad_value_dtype = MSDA_DTYPE_DEFAULT;
}

bool msda_compute(const msda_task *task, double *const tensors[MSDA_TENSOR_COUNT], msda_timing *timings)
{
    call c = {.task = task, .problem = *task->problem};
    c.device = task->backend == MSDA_BACKEND_CUDA ? msda_device_cuda : NULL;
    c.at = c.device != NULL ? c.remote : c.host;
    if (task->backend == MSDA_BACKEND_CUDA && c.device == NULL)
        return msda_complain("cuda: this msda was built without CUDA");
    if (task->backend == MSDA_BACKEND_NAIVE)
        widen_for_naive(&c.problem);
    const bool done =
        fill_host(&c, tensors) && fill_device(&c) && run_repeatedly(&c, MSDA_FORWARD_TIMING, timings) &&
        (!task->backward || (allocate_workspace(&c) && run_repeatedly(&c, MSDA_BACKWARD_TIMING, timings))) &&
        fetch_results(&c, tensors);
    release(&c);
    return done;
}

const char *msda_compute_kernel_name(const msda_task *task)
{
    switch (task->backend) {
    case MSDA_BACKEND_NAIVE:
        return "loops over double";
    case MSDA_BACKEND_CPU:
        return msda_cpu_kernel_name(task->problem);
    default:
        return msda_cuda_kernel_name(task->problem);
    }
}
