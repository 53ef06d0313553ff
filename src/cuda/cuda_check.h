/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA's errors as ours. CUDA tells an error twice: as a call's return value, and in a slot of the thread, where it stays
 * until somebody fetches it. A caller may have an error of his own waiting there while he calls us. So:
 *
 * - We judge by return values alone. A launch goes through cudaLaunchKernelEx(), whose value is the launch's own; never
 *   through <<<>>> with a look at the slot afterwards. What waits in the slot is not blamed on us.
 * - Calls that succeed leave the slot as it is. When one of ours fails, CUDA has put the error into the slot: we take it
 *   out again, unless one was waiting before. CUDA has overwritten that one with ours, and an empty slot would hide that
 *   there was any.
 * - A fault of kernels that were queued earlier, by anybody, is returned by whichever call comes next and cannot be told
 *   from an error of that call. CUDA keeps it for every call after that; so do we.
 */
#ifndef MSDA_CUDA_CHECK_H
#define MSDA_CUDA_CHECK_H

#include "../shape.h"

#include <cuda_runtime_api.h>

namespace msda
{

/* The thread's slot for the length of one call of ours. */
class error_slot
{
  public:
    /* SUCCESS, or NO_DEVICE or CUDA_ERROR with the text "what: CUDA's name: CUDA's text". */
    msda_status report(cudaError_t error, const char *what) const
    {
        if (error == cudaSuccess)
            return MSDA_STATUS_SUCCESS;
        clear();
        return msda_fail(says_no_device(error) ? MSDA_STATUS_NO_DEVICE : MSDA_STATUS_CUDA_ERROR, "%s: %s: %s", what,
                         cudaGetErrorName(error), cudaGetErrorString(error));
    }

    /* After a call of ours that failed. */
    void clear() const
    {
        if (waiting_ == cudaSuccess)
            cudaGetLastError();
    }

  private:
    static bool says_no_device(cudaError_t error)
    {
        switch (error) {
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver: /* also: no driver at all */
        case cudaErrorStubLibrary:
        case cudaErrorInitializationError:
        case cudaErrorSystemNotReady:
        case cudaErrorSystemDriverMismatch:
        case cudaErrorCompatNotSupportedOnDevice:
        case cudaErrorDevicesUnavailable:
            return true;
        default:
            return false;
        }
    }

    const cudaError_t waiting_ = cudaPeekAtLastError();
};

} // namespace msda

#endif
