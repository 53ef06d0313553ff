/* SPDX-License-Identifier: Apache-2.0 */
/* One problem through one back end of the library. */
#ifndef MSDA_COMPUTE_H
#define MSDA_COMPUTE_H

#include "settings.h"

typedef struct msda_task {
    const msda_problem *problem;
    bool fused;
    bool backward; /* too, with every gradient */
    msda_backend backend;
    int threads; /* of the cpu back end; 0: OpenMP's own number */
    int repeat;  /* timed runs; 0: one run, not timed */
} msda_task;

/* Seconds of one call. */
typedef struct msda_timing {
    double median, lowest, highest;
} msda_timing;

/*
 * tensors[t] holds each input and takes each result, dense, in double; null for tensors that have no part in the task.
 * The back end gets them in the storage types of the problem. naive has no other than F64: for it the inputs must be
 * numbers of the storage types already, and the results are rounded to them afterwards.
 * timings[MSDA_FORWARD_TIMING] and [MSDA_BACKWARD_TIMING] are filled if repeat > 0; may be null if not.
 */
enum { MSDA_FORWARD_TIMING, MSDA_BACKWARD_TIMING, MSDA_TIMING_COUNT };
bool msda_compute(const msda_task *task, double *const tensors[MSDA_TENSOR_COUNT], msda_timing *timings);

/* The kernel that the task runs, for people. */
const char *msda_compute_kernel_name(const msda_task *task);

#endif
