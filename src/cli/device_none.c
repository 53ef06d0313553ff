/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for device.c in a tool without CUDA. */
#include "device.h"

#include "complain.h"

static bool refuse(void)
{
    return msda_complain("cuda: this msda was built without CUDA");
}

bool msda_device_allocate(void **memory, size_t size)
{
    (void)memory;
    (void)size;
    return refuse();
}

void msda_device_free(void *memory)
{
    (void)memory;
}

bool msda_device_upload(void *to, const void *from, size_t size)
{
    (void)to;
    (void)from;
    (void)size;
    return refuse();
}

bool msda_device_download(void *to, const void *from, size_t size)
{
    (void)to;
    (void)from;
    (void)size;
    return refuse();
}

bool msda_device_wait(void)
{
    return refuse();
}

bool msda_device_describe(int index, char *text, size_t size)
{
    (void)index;
    (void)text;
    (void)size;
    return refuse();
}
