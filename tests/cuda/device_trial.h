/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trial on the device: one allocation for each tensor, exactly as large as the library says, so that the memory checker
 * sees every access past an end. Outputs stay uninitialised unless they are added to or have gaps, so that the
 * initialisation checker sees every read of what nobody wrote.
 *
 *   device_trial d;
 *   device_trial_open(&d, &t);             inputs on the device, workspace allocated
 *   device_trial_backward(&d, stream);     queued, not waited for
 *   device_trial_fetch(&d, MSDA_TENSOR_GRAD_VALUE, stream);      waits; then compare t
 *   device_trial_close(&d);
 */
#ifndef MSDA_TEST_DEVICE_TRIAL_H
#define MSDA_TEST_DEVICE_TRIAL_H

#include "bounds.h"
#include "inputs.h"
#include "problems.h"

#include <cuda_runtime_api.h>

typedef struct device_trial {
    trial *host;
    void *tensors[MSDA_TENSOR_COUNT];
    void *workspace;
    size_t workspace_size;
} device_trial;

void device_trial_open(device_trial *d, trial *host);
void device_trial_close(device_trial *d);

/* Host to device and back, in the order of the stream; both wait. */
void device_trial_send(device_trial *d, msda_tensor tensor, cudaStream_t stream);
void device_trial_fetch(device_trial *d, msda_tensor tensor, cudaStream_t stream);

/* Sends outputs that are poisoned, or fetches all. */
void device_trial_send_outputs(device_trial *d, cudaStream_t stream);
void device_trial_fetch_outputs(device_trial *d, cudaStream_t stream);

/* The plain or fused call that the trial stands for; only queues. Unwanted gradients are passed as null. */
msda_status device_trial_forward(device_trial *d, cudaStream_t stream);
msda_status device_trial_backward(device_trial *d, cudaStream_t stream);

/* Both, which must succeed; only queues. */
void device_trial_run(device_trial *d, cudaStream_t stream);

/* Opens, runs on the default stream, fetches, closes. */
void device_trial_once(trial *t);

/* Fails the test unless a status is SUCCESS, with the library's text. */
void require_success(msda_status status);

/* Fails the test unless a CUDA call succeeds. */
void require_cuda(cudaError_t error, const char *call);
#define REQUIRE(call) require_cuda((call), #call)

/* Fails the test if an error is waiting in the thread's slot. */
void require_no_error_waiting(void);

/* `full`, or `few` where the environment variable MSDA_TEST_REDUCED is set: for runs under a checker that slows down. */
int full_or_few(int full, int few);

#endif
