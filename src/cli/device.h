/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the current CUDA device. What fails does so with a complaint. */
#ifndef MSDA_DEVICE_H
#define MSDA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct msda_device {
    bool (*allocate)(void **memory, size_t size); /* aligned to 256 bytes */
    void (*release)(void *memory);
    bool (*upload)(void *to, const void *from, size_t size);
    bool (*download)(void *to, const void *from, size_t size);
    bool (*wait)(void);                                   /* for all queued work, whose errors surface here */
    bool (*describe)(int index, char *text, size_t size); /* "NVIDIA H200, compute capability 9.0" */
} msda_device;

extern const msda_device *const msda_device_cuda; /* null in a tool without CUDA */

#endif
