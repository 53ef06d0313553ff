/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the current CUDA device. Each fails with a complaint; in a tool without CUDA all of them do. */
#ifndef MSDA_DEVICE_H
#define MSDA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

bool msda_device_allocate(void **memory, size_t size); /* aligned to 256 bytes */
void msda_device_free(void *memory);
bool msda_device_upload(void *to, const void *from, size_t size);
bool msda_device_download(void *to, const void *from, size_t size);
bool msda_device_wait(void); /* for all queued work, whose errors surface here */

/* "NVIDIA H200, compute capability 9.0" of device `index`. */
bool msda_device_describe(int index, char *text, size_t size);

#endif
