/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The msda_cuda_* functions of a build without CUDA. A mistake in the arguments is told first, as in every other build, so
 * that a program's error handling can be tested without CUDA; what is right is NOT_BUILT.
 */
#include "../shape.h"

static msda_status not_built(msda_status opened)
{
    return opened != MSDA_STATUS_SUCCESS ? opened
                                         : msda_fail(MSDA_STATUS_NOT_BUILT, "this library was built without CUDA");
}

static msda_status no_workspace(const msda_problem *problem, int fused, size_t *size)
{
    msda_shape shape;
    if (size == NULL)
        return msda_fail(MSDA_STATUS_NULL_POINTER, "size is null");
    return not_built(msda_shape_init(&shape, problem, fused));
}

msda_status msda_cuda_forward(const msda_problem *problem, const msda_forward_args *args, struct CUstream_st *stream)
{
    msda_shape shape;
    msda_tensors tensors;
    (void)stream;
    return not_built(msda_open_forward(&shape, &tensors, problem, args));
}

msda_status msda_cuda_backward_workspace(const msda_problem *problem, size_t *size)
{
    return no_workspace(problem, 0, size);
}

msda_status msda_cuda_backward(const msda_problem *problem, const msda_backward_args *args, void *workspace,
                               size_t workspace_size, struct CUstream_st *stream)
{
    msda_shape shape;
    msda_tensors tensors;
    (void)workspace;
    (void)workspace_size;
    (void)stream;
    return not_built(msda_open_backward(&shape, &tensors, problem, args));
}

msda_status msda_cuda_fused_forward(const msda_problem *problem, const msda_fused_forward_args *args,
                                    struct CUstream_st *stream)
{
    msda_shape shape;
    msda_tensors tensors;
    (void)stream;
    return not_built(msda_open_fused_forward(&shape, &tensors, problem, args));
}

msda_status msda_cuda_fused_backward_workspace(const msda_problem *problem, size_t *size)
{
    return no_workspace(problem, 1, size);
}

msda_status msda_cuda_fused_backward(const msda_problem *problem, const msda_fused_backward_args *args, void *workspace,
                                     size_t workspace_size, struct CUstream_st *stream)
{
    msda_shape shape;
    msda_tensors tensors;
    (void)workspace;
    (void)workspace_size;
    (void)stream;
    return not_built(msda_open_fused_backward(&shape, &tensors, problem, args));
}

int msda_cuda_is_built(void)
{
    return 0;
}

msda_status msda_cuda_device_count(int *count)
{
    if (count == NULL)
        return msda_fail(MSDA_STATUS_NULL_POINTER, "count is null");
    *count = 0;
    return not_built(MSDA_STATUS_SUCCESS);
}

const char *msda_cuda_architectures(void)
{
    return "";
}

const char *msda_cuda_kernel_name(const msda_problem *problem)
{
    (void)problem;
    return "";
}
