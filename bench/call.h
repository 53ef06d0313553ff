/* SPDX-License-Identifier: Apache-2.0 */
/* The back ends under one door: form, direction and back end become fields. */
#ifndef MSDA_BENCH_CALL_H
#define MSDA_BENCH_CALL_H

#include "workload.h"

typedef enum backend { BACKEND_CPU, BACKEND_CUDA, BACKEND_NAIVE } backend;

#define BACKEND_COUNT 3
extern const char *const backend_names[BACKEND_COUNT];

typedef struct call {
    backend on;
    bool fused, backward;
    const msda_problem *problem;
    void *tensors[MSDA_TENSOR_COUNT]; /* host or device memory; null: not wanted */
    void *workspace;
    size_t workspace_size;
    int threads; /* cpu */
} call;

msda_status call_run(const call *c);

/* Of problem, fused, backward and threads. */
msda_status call_workspace(const call *c, size_t *size);

/* The library's name of the kernel that runs. */
const char *call_kernel(const call *c);

#endif
