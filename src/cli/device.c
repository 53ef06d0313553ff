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

bool msda_device_allocate(void **memory, size_t size)
{
    return succeeded(cudaMalloc(memory, size), "allocating device memory");
}

void msda_device_free(void *memory)
{
    cudaFree(memory);
}

bool msda_device_upload(void *to, const void *from, size_t size)
{
    return succeeded(cudaMemcpy(to, from, size, cudaMemcpyHostToDevice), "copying to the device");
}

bool msda_device_download(void *to, const void *from, size_t size)
{
    return succeeded(cudaMemcpy(to, from, size, cudaMemcpyDeviceToHost), "copying from the device");
}

bool msda_device_wait(void)
{
    return succeeded(cudaDeviceSynchronize(), "running");
}

bool msda_device_describe(int index, char *text, size_t size)
{
    struct cudaDeviceProp properties;
    if (!succeeded(cudaGetDeviceProperties(&properties, index), "asking for a device's properties"))
        return false;
    snprintf(text, size, "%s, compute capability %d.%d", properties.name, properties.major, properties.minor);
    return true;
}
