/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for device.c in a tool without CUDA. */
#include "device.h"

const msda_device *const msda_device_cuda = NULL;
