/* SPDX-License-Identifier: Apache-2.0 */
/* Status texts, the thread's last error, the version. */
#include "shape.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

msda_status msda_fail(msda_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

const char *msda_last_error(void)
{
    return last_error;
}

/* No default: a status without a text fails the build (-Wswitch). */
const char *msda_status_string(msda_status status)
{
    switch (status) {
    case MSDA_STATUS_SUCCESS:
        return "success";
    case MSDA_STATUS_INVALID_PROBLEM:
        return "invalid problem";
    case MSDA_STATUS_NULL_POINTER:
        return "null pointer";
    case MSDA_STATUS_MISALIGNED:
        return "misaligned pointer";
    case MSDA_STATUS_OVERLAP:
        return "overlapping tensors";
    case MSDA_STATUS_UNSUPPORTED:
        return "unsupported by this back end";
    case MSDA_STATUS_WORKSPACE_TOO_SMALL:
        return "workspace too small";
    case MSDA_STATUS_NOT_BUILT:
        return "built without CUDA";
    case MSDA_STATUS_NO_DEVICE:
        return "no usable CUDA device";
    case MSDA_STATUS_WRONG_DEVICE:
        return "memory not accessible from the device";
    case MSDA_STATUS_CUDA_ERROR:
        return "CUDA error";
    }
    return "unknown status";
}

int msda_version(void)
{
    return MSDA_VERSION;
}
