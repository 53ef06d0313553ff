/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

const char *const backend_names[BACKEND_COUNT] = {"cpu", "cuda", "naive"};

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static msda_forward_args forward_args(const call *c)
{
    return (msda_forward_args){
        .value = c->tensors[MSDA_TENSOR_VALUE],
        .sampling_locations = c->tensors[MSDA_TENSOR_LOCATIONS],
        .attention_weights = c->tensors[MSDA_TENSOR_WEIGHTS],
        .output = c->tensors[MSDA_TENSOR_OUTPUT],
    };
}

static msda_backward_args backward_args(const call *c)
{
    return (msda_backward_args){
        .value = c->tensors[MSDA_TENSOR_VALUE],
        .sampling_locations = c->tensors[MSDA_TENSOR_LOCATIONS],
        .attention_weights = c->tensors[MSDA_TENSOR_WEIGHTS],
        .grad_output = c->tensors[MSDA_TENSOR_GRAD_OUTPUT],
        .grad_value = c->tensors[MSDA_TENSOR_GRAD_VALUE],
        .grad_sampling_locations = c->tensors[MSDA_TENSOR_GRAD_LOCATIONS],
        .grad_attention_weights = c->tensors[MSDA_TENSOR_GRAD_WEIGHTS],
    };
}

static msda_fused_forward_args fused_forward_args(const call *c)
{
    return (msda_fused_forward_args){
        .value = c->tensors[MSDA_TENSOR_VALUE],
        .reference_points = c->tensors[MSDA_TENSOR_REFERENCES],
        .sampling_offsets = c->tensors[MSDA_TENSOR_LOCATIONS],
        .attention_logits = c->tensors[MSDA_TENSOR_WEIGHTS],
        .output = c->tensors[MSDA_TENSOR_OUTPUT],
    };
}

static msda_fused_backward_args fused_backward_args(const call *c)
{
    return (msda_fused_backward_args){
        .value = c->tensors[MSDA_TENSOR_VALUE],
        .reference_points = c->tensors[MSDA_TENSOR_REFERENCES],
        .sampling_offsets = c->tensors[MSDA_TENSOR_LOCATIONS],
        .attention_logits = c->tensors[MSDA_TENSOR_WEIGHTS],
        .grad_output = c->tensors[MSDA_TENSOR_GRAD_OUTPUT],
        .grad_value = c->tensors[MSDA_TENSOR_GRAD_VALUE],
        .grad_sampling_offsets = c->tensors[MSDA_TENSOR_GRAD_LOCATIONS],
        .grad_attention_logits = c->tensors[MSDA_TENSOR_GRAD_WEIGHTS],
    };
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static msda_status run_plain_forward(const call *c)
{
    const msda_forward_args args = forward_args(c);
    switch (c->on) {
    case BACKEND_CPU:
        return msda_cpu_forward(c->problem, &args, c->threads);
    case BACKEND_CUDA:
        return msda_cuda_forward(c->problem, &args, NULL);
    default:
        return msda_naive_forward(c->problem, &args);
    }
}

static msda_status run_plain_backward(const call *c)
{
    const msda_backward_args args = backward_args(c);
    switch (c->on) {
    case BACKEND_CPU:
        return msda_cpu_backward(c->problem, &args, c->workspace, c->workspace_size, c->threads);
    case BACKEND_CUDA:
        return msda_cuda_backward(c->problem, &args, c->workspace, c->workspace_size, NULL);
    default:
        return msda_naive_backward(c->problem, &args);
    }
}

static msda_status run_fused_forward(const call *c)
{
    const msda_fused_forward_args args = fused_forward_args(c);
    switch (c->on) {
    case BACKEND_CPU:
        return msda_cpu_fused_forward(c->problem, &args, c->threads);
    case BACKEND_CUDA:
        return msda_cuda_fused_forward(c->problem, &args, NULL);
    default:
        return msda_naive_fused_forward(c->problem, &args);
    }
}

static msda_status run_fused_backward(const call *c)
{
    const msda_fused_backward_args args = fused_backward_args(c);
    switch (c->on) {
    case BACKEND_CPU:
        return msda_cpu_fused_backward(c->problem, &args, c->workspace, c->workspace_size, c->threads);
    case BACKEND_CUDA:
        return msda_cuda_fused_backward(c->problem, &args, c->workspace, c->workspace_size, NULL);
    default:
        return msda_naive_fused_backward(c->problem, &args);
    }
}

msda_status call_run(const call *c)
{
    if (c->fused)
        return c->backward ? run_fused_backward(c) : run_fused_forward(c);
    return c->backward ? run_plain_backward(c) : run_plain_forward(c);
}

msda_status call_workspace(const call *c, size_t *size)
{
    *size = 0;
    if (!c->backward || c->on == BACKEND_NAIVE)
        return MSDA_STATUS_SUCCESS;
    if (c->on == BACKEND_CUDA)
        return c->fused ? msda_cuda_fused_backward_workspace(c->problem, size)
                        : msda_cuda_backward_workspace(c->problem, size);
    return c->fused ? msda_cpu_fused_backward_workspace(c->problem, c->threads, size)
                    : msda_cpu_backward_workspace(c->problem, c->threads, size);
}

const char *call_kernel(const call *c)
{
    if (c->on == BACKEND_NAIVE)
        return "naive";
    return c->on == BACKEND_CUDA ? msda_cuda_kernel_name(c->problem) : msda_cpu_kernel_name(c->problem);
}
