/* SPDX-License-Identifier: Apache-2.0 */
#include "device_trial.h"

#include <stdlib.h>

#include "element.h"

void require_success(msda_status status)
{
    if (status != MSDA_STATUS_SUCCESS)
        fail_msg("%s: %s", msda_status_string(status), msda_last_error());
}

void require_cuda(cudaError_t error, const char *call)
{
    if (error != cudaSuccess)
        fail_msg("%s: %s: %s", call, cudaGetErrorName(error), cudaGetErrorString(error));
}

void require_no_error_waiting(void)
{
    require_cuda(cudaPeekAtLastError(), "an error is waiting");
}

int full_or_few(int full, int few)
{
    return getenv("MSDA_TEST_REDUCED") ? few : full;
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

static int has_gaps(const trial *t, msda_tensor tensor)
{
    const guarded_tensor *x = &t->tensors[tensor];
    return (size_t)trial_count(t, tensor) * element_size(x->dtype) != x->memory.size;
}

static int starts_defined(const trial *t, msda_tensor tensor)
{
    const int adds = (t->problem.flags & MSDA_FLAG_ADD_TO_GRADIENTS) != 0;
    return !trial_is_output(tensor) || (adds && tensor != MSDA_TENSOR_OUTPUT) || has_gaps(t, tensor);
}

void device_trial_open(device_trial *d, trial *host)
{
    *d = (device_trial){.host = host};
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i) {
        const size_t size = host->tensors[i].memory.size;
        if (size == 0)
            continue;
        REQUIRE(cudaMalloc(&d->tensors[i], size));
        if (starts_defined(host, (msda_tensor)i))
            device_trial_send(d, (msda_tensor)i, NULL);
    }
    require_success(host->fused ? msda_cuda_fused_backward_workspace(&host->problem, &d->workspace_size)
                                : msda_cuda_backward_workspace(&host->problem, &d->workspace_size));
    if (d->workspace_size > 0)
        REQUIRE(cudaMalloc(&d->workspace, d->workspace_size));
}

void device_trial_close(device_trial *d)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        REQUIRE(cudaFree(d->tensors[i]));
    REQUIRE(cudaFree(d->workspace));
}

void device_trial_send(device_trial *d, msda_tensor tensor, cudaStream_t stream)
{
    const guarded *host = &d->host->tensors[tensor].memory;
    REQUIRE(cudaMemcpyAsync(d->tensors[tensor], host->data, host->size, cudaMemcpyHostToDevice, stream));
    REQUIRE(cudaStreamSynchronize(stream));
}

void device_trial_fetch(device_trial *d, msda_tensor tensor, cudaStream_t stream)
{
    const guarded *host = &d->host->tensors[tensor].memory;
    REQUIRE(cudaMemcpyAsync(host->data, d->tensors[tensor], host->size, cudaMemcpyDeviceToHost, stream));
    REQUIRE(cudaStreamSynchronize(stream));
}

static int is_wanted_output(const device_trial *d, int tensor)
{
    return d->tensors[tensor] && trial_is_output((msda_tensor)tensor) && !(d->host->unwanted >> tensor & 1);
}

void device_trial_send_outputs(device_trial *d, cudaStream_t stream)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (is_wanted_output(d, i))
            device_trial_send(d, (msda_tensor)i, stream);
}

void device_trial_fetch_outputs(device_trial *d, cudaStream_t stream)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (is_wanted_output(d, i))
            device_trial_fetch(d, (msda_tensor)i, stream);
}

/* ---- calls -------------------------------------------------------------------------------------------------------- */

msda_status device_trial_forward(device_trial *d, cudaStream_t stream)
{
    void *const *at = d->tensors;
    const msda_forward_args args = {at[MSDA_TENSOR_VALUE], at[MSDA_TENSOR_LOCATIONS], at[MSDA_TENSOR_WEIGHTS],
                                    at[MSDA_TENSOR_OUTPUT]};
    const msda_fused_forward_args fused_args = {at[MSDA_TENSOR_VALUE], at[MSDA_TENSOR_REFERENCES],
                                                at[MSDA_TENSOR_LOCATIONS], at[MSDA_TENSOR_WEIGHTS],
                                                at[MSDA_TENSOR_OUTPUT]};
    return d->host->fused ? msda_cuda_fused_forward(&d->host->problem, &fused_args, stream)
                          : msda_cuda_forward(&d->host->problem, &args, stream);
}

static void *wanted(const device_trial *d, msda_tensor tensor)
{
    return d->host->unwanted >> tensor & 1 ? NULL : d->tensors[tensor];
}

msda_status device_trial_backward(device_trial *d, cudaStream_t stream)
{
    void *const *at = d->tensors;
    const msda_backward_args args = {at[MSDA_TENSOR_VALUE],
                                     at[MSDA_TENSOR_LOCATIONS],
                                     at[MSDA_TENSOR_WEIGHTS],
                                     at[MSDA_TENSOR_GRAD_OUTPUT],
                                     wanted(d, MSDA_TENSOR_GRAD_VALUE),
                                     wanted(d, MSDA_TENSOR_GRAD_LOCATIONS),
                                     wanted(d, MSDA_TENSOR_GRAD_WEIGHTS)};
    const msda_fused_backward_args fused_args = {at[MSDA_TENSOR_VALUE],
                                                 at[MSDA_TENSOR_REFERENCES],
                                                 at[MSDA_TENSOR_LOCATIONS],
                                                 at[MSDA_TENSOR_WEIGHTS],
                                                 at[MSDA_TENSOR_GRAD_OUTPUT],
                                                 wanted(d, MSDA_TENSOR_GRAD_VALUE),
                                                 wanted(d, MSDA_TENSOR_GRAD_REFERENCES),
                                                 wanted(d, MSDA_TENSOR_GRAD_LOCATIONS),
                                                 wanted(d, MSDA_TENSOR_GRAD_WEIGHTS)};
    return d->host->fused
               ? msda_cuda_fused_backward(&d->host->problem, &fused_args, d->workspace, d->workspace_size, stream)
               : msda_cuda_backward(&d->host->problem, &args, d->workspace, d->workspace_size, stream);
}

void device_trial_run(device_trial *d, cudaStream_t stream)
{
    require_success(device_trial_forward(d, stream));
    require_success(device_trial_backward(d, stream));
}

void device_trial_once(trial *t)
{
    device_trial d;
    device_trial_open(&d, t);
    device_trial_run(&d, NULL);
    device_trial_fetch_outputs(&d, NULL);
    device_trial_close(&d);
}
