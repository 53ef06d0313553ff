/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "complain.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

static bool succeeded(cudaError_t error, const char *what)
{
    return error == cudaSuccess ||
           msda_complain("cuda: %s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

static bool allocate(void **memory, size_t size)
{
    return succeeded(cudaMalloc(memory, size), "allocating device memory");
}

static void release(void *memory)
{
    cudaFree(memory);
}

static bool upload(void *to, const void *from, size_t size)
{
    return succeeded(cudaMemcpy(to, from, size, cudaMemcpyHostToDevice), "copying to the device");
}

static bool download(void *to, const void *from, size_t size)
{
    return succeeded(cudaMemcpy(to, from, size, cudaMemcpyDeviceToHost), "copying from the device");
}

static bool wait_for_work(void)
{
    return succeeded(cudaDeviceSynchronize(), "running");
}

static bool describe(int index, char *text, size_t size)
{
    struct cudaDeviceProp properties;
    if (!succeeded(cudaGetDeviceProperties(&properties, index), "asking for a device's properties"))
        return false;
    snprintf(text, size, "%s, compute capability %d.%d", properties.name, properties.major, properties.minor);
    return true;
}

static const msda_device cuda = {allocate, release, upload, download, wait_for_work, describe};
const msda_device *const msda_device_cuda = &cuda;
