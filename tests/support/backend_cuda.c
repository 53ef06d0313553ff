/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend_cuda: host tensors in, host tensors out. Every tensor and the workspace live in device memory between guard
 * bands that are checked after the call. A tensor keeps its host address modulo 256, so that alignment-dependent kernels
 * meet what the test laid out. The workspace is poisoned.
 */
#include "backend.h"

#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#define BAND      4096
#define CANARY    0xC5
#define ALIGNMENT 256

#define MAX_TENSORS 10

/* One buffer on the device: a band, the data, a band. */
typedef struct device_tensor {
    unsigned char *memory, *data;
    size_t size;
    void *host;
} device_tensor;

typedef struct device_call {
    device_tensor tensors[MAX_TENSORS + 1]; /* and the workspace */
    int num_tensors;
} device_call;

static void require(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fail_msg("cuda: %s: %s: %s", what, cudaGetErrorName(error), cudaGetErrorString(error));
}

static const char *cuda_unavailable(void)
{
    static char reason[200];
    int count = 0;
    const msda_status status = msda_cuda_device_count(&count);
    if (status == MSDA_STATUS_SUCCESS && count > 0)
        return NULL;
    snprintf(reason, sizeof reason, "%s (%s)", msda_status_string(status), msda_last_error());
    return reason;
}

static int takes_any(msda_dtype value_dtype)
{
    (void)value_dtype;
    return 1;
}

static unsigned char *place_on_device(device_call *call, size_t size, size_t address, void *host)
{
    device_tensor *x = &call->tensors[call->num_tensors++];
    *x = (device_tensor){.size = size, .host = host};
    require(cudaMalloc((void **)&x->memory, size + 2 * BAND), "cudaMalloc");
    require(cudaMemset(x->memory, CANARY, size + 2 * BAND), "cudaMemset");
    x->data = x->memory + BAND / 2 + address % ALIGNMENT;
    return x->data;
}

/* The device copy of a host tensor; null for null. */
static void *send(device_call *call, const msda_problem *problem, msda_tensor tensor, const void *host)
{
    size_t size;
    if (host == NULL || msda_tensor_size(problem, tensor, &size) != MSDA_STATUS_SUCCESS)
        return NULL;
    unsigned char *data = place_on_device(call, size, (size_t)(uintptr_t)host, (void *)(uintptr_t)host);
    require(cudaMemcpy(data, host, size, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
    return data;
}

static void *open_workspace(device_call *call, size_t size)
{
    unsigned char *data = place_on_device(call, size, 0, NULL);
    require(cudaMemset(data, 0xFF, size), "cudaMemset");
    return data;
}

static int bands_are_intact(const device_tensor *x)
{
    unsigned char *copy = malloc(x->size + 2 * BAND);
    assert_non_null(copy);
    require(cudaMemcpy(copy, x->memory, x->size + 2 * BAND, cudaMemcpyDeviceToHost), "cudaMemcpy of guard bands");
    const size_t before = (size_t)(x->data - x->memory);
    int intact = 1;
    for (size_t i = 0; i < x->size + 2 * BAND; ++i)
        if ((i < before || i >= before + x->size) && copy[i] != CANARY)
            intact = 0;
    free(copy);
    return intact;
}

/* Waits, brings the outputs home, and fails the test if a guard band or an input was written. */
static void finish(device_call *call)
{
    require(cudaDeviceSynchronize(), "the kernels");
    int intact = 1;
    for (int i = 0; i < call->num_tensors; ++i) {
        device_tensor *x = &call->tensors[i];
        intact = intact && bands_are_intact(x);
        /* inputs come back too: the trial compares them with what was sent */
        if (x->host)
            require(cudaMemcpy(x->host, x->data, x->size, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
        require(cudaFree(x->memory), "cudaFree");
    }
    if (!intact)
        fail_msg("cuda: a guard band around a tensor or the workspace was written");
}

static msda_status cuda_forward(const msda_problem *problem, const msda_forward_args *args)
{
    device_call call = {.num_tensors = 0};
    msda_forward_args device = {0};
    if (args) {
        device.value = send(&call, problem, MSDA_TENSOR_VALUE, args->value);
        device.sampling_locations = send(&call, problem, MSDA_TENSOR_LOCATIONS, args->sampling_locations);
        device.attention_weights = send(&call, problem, MSDA_TENSOR_WEIGHTS, args->attention_weights);
        device.output = send(&call, problem, MSDA_TENSOR_OUTPUT, args->output);
    }
    const msda_status status = msda_cuda_forward(problem, args ? &device : NULL, NULL);
    finish(&call);
    return status;
}

static msda_status cuda_backward(const msda_problem *problem, const msda_backward_args *args)
{
    device_call call = {.num_tensors = 0};
    msda_backward_args device = {0};
    size_t size = 0;
    if (args) {
        device.value = send(&call, problem, MSDA_TENSOR_VALUE, args->value);
        device.sampling_locations = send(&call, problem, MSDA_TENSOR_LOCATIONS, args->sampling_locations);
        device.attention_weights = send(&call, problem, MSDA_TENSOR_WEIGHTS, args->attention_weights);
        device.grad_output = send(&call, problem, MSDA_TENSOR_GRAD_OUTPUT, args->grad_output);
        device.grad_value = send(&call, problem, MSDA_TENSOR_GRAD_VALUE, args->grad_value);
        device.grad_sampling_locations =
            send(&call, problem, MSDA_TENSOR_GRAD_LOCATIONS, args->grad_sampling_locations);
        device.grad_attention_weights = send(&call, problem, MSDA_TENSOR_GRAD_WEIGHTS, args->grad_attention_weights);
    }
    msda_status status = msda_cuda_backward_workspace(problem, &size);
    if (status == MSDA_STATUS_SUCCESS)
        status = msda_cuda_backward(problem, args ? &device : NULL, open_workspace(&call, size), size, NULL);
    finish(&call);
    return status;
}

static msda_status cuda_fused_forward(const msda_problem *problem, const msda_fused_forward_args *args)
{
    device_call call = {.num_tensors = 0};
    msda_fused_forward_args device = {0};
    if (args) {
        device.value = send(&call, problem, MSDA_TENSOR_VALUE, args->value);
        device.reference_points = send(&call, problem, MSDA_TENSOR_REFERENCES, args->reference_points);
        device.sampling_offsets = send(&call, problem, MSDA_TENSOR_LOCATIONS, args->sampling_offsets);
        device.attention_logits = send(&call, problem, MSDA_TENSOR_WEIGHTS, args->attention_logits);
        device.output = send(&call, problem, MSDA_TENSOR_OUTPUT, args->output);
    }
    const msda_status status = msda_cuda_fused_forward(problem, args ? &device : NULL, NULL);
    finish(&call);
    return status;
}

static msda_status cuda_fused_backward(const msda_problem *problem, const msda_fused_backward_args *args)
{
    device_call call = {.num_tensors = 0};
    msda_fused_backward_args device = {0};
    size_t size = 0;
    if (args) {
        device.value = send(&call, problem, MSDA_TENSOR_VALUE, args->value);
        device.reference_points = send(&call, problem, MSDA_TENSOR_REFERENCES, args->reference_points);
        device.sampling_offsets = send(&call, problem, MSDA_TENSOR_LOCATIONS, args->sampling_offsets);
        device.attention_logits = send(&call, problem, MSDA_TENSOR_WEIGHTS, args->attention_logits);
        device.grad_output = send(&call, problem, MSDA_TENSOR_GRAD_OUTPUT, args->grad_output);
        device.grad_value = send(&call, problem, MSDA_TENSOR_GRAD_VALUE, args->grad_value);
        device.grad_reference_points = send(&call, problem, MSDA_TENSOR_GRAD_REFERENCES, args->grad_reference_points);
        device.grad_sampling_offsets = send(&call, problem, MSDA_TENSOR_GRAD_LOCATIONS, args->grad_sampling_offsets);
        device.grad_attention_logits = send(&call, problem, MSDA_TENSOR_GRAD_WEIGHTS, args->grad_attention_logits);
    }
    msda_status status = msda_cuda_fused_backward_workspace(problem, &size);
    if (status == MSDA_STATUS_SUCCESS)
        status = msda_cuda_fused_backward(problem, args ? &device : NULL, open_workspace(&call, size), size, NULL);
    finish(&call);
    return status;
}

const backend backend_cuda = {"cuda",        cuda_unavailable,   takes_any,          cuda_forward,
                              cuda_backward, cuda_fused_forward, cuda_fused_backward};
