/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA kernels: one row for each line of kernels.def, and the launchers that a row is made of. */
#ifndef MSDA_CUDA_TABLE_H
#define MSDA_CUDA_TABLE_H

#include "../shape.h"

#include <cuda_runtime_api.h>

/* head_dim of a row that takes every head_dim. */
constexpr int MSDA_ANY = 0;

/*
 * A launcher is called with a checked problem that has something to sample, on the device of the stream. It queues its
 * work on the stream and does nothing else: no allocation, no synchronisation. It skips the gradients whose pointer is
 * null and writes (or adds to) every element of the others. It returns the status of its own launches: see cuda_check.h.
 */
struct msda_cuda_kernel {
    const char *name;
    msda_dtype value_dtype, point_dtype;
    int head_dim; /* MSDA_ANY or the one it is made for */
    cudaError_t (*forward)(const msda_shape &shape, const msda_tensors &tensors, cudaStream_t stream);
    /* Bytes of workspace, by the problem alone: not by which gradients are wanted, nor by the device. */
    size_t (*backward_workspace)(const msda_shape &shape);
    cudaError_t (*backward)(const msda_shape &shape, const msda_tensors &tensors, void *workspace, cudaStream_t stream);
};

/* The first row of the kernel list that fits; null if none does. */
const msda_cuda_kernel *msda_cuda_select(const msda_shape &shape);

namespace msda
{

/* forward.cu and backward.cu instantiate these for every line of kernels.def. */
template <class Value, class Point, int HeadDim>
cudaError_t launch_forward(const msda_shape &shape, const msda_tensors &tensors, cudaStream_t stream);
template <class Value, class Point, int HeadDim> size_t backward_workspace(const msda_shape &shape);
template <class Value, class Point, int HeadDim>
cudaError_t launch_backward(const msda_shape &shape, const msda_tensors &tensors, void *workspace, cudaStream_t stream);

} // namespace msda

#endif
