/* SPDX-License-Identifier: Apache-2.0 */
/* One preset in one storage type: the problem, its tensors in host memory, and what a call must move. */
#ifndef MSDA_BENCH_WORKLOAD_H
#define MSDA_BENCH_WORKLOAD_H

#include <stdbool.h>
#include <stddef.h>

#include <msda/msda.h>

#include "numbers.h"

/* What stays the same from preset to preset. */
typedef struct setup {
    msda_dtype value_dtype, point_dtype;
    msda_accumulate accumulate;
    spread locations;
    bool fused;
    bool head_major; /* value is [batch][heads][pixels][head_dim] */
} setup;

typedef struct tensor {
    msda_dtype dtype;
    int64_t batch, row, head, run; /* extents; a run is dense */
    msda_stride stride;            /* in elements, never 0 */
    int64_t size;                  /* bytes; 0: this form has no such tensor */
    void *data;
} tensor;

typedef struct workload {
    const preset *shape;
    setup how;
    msda_problem problem;
    tensor tensors[MSDA_TENSOR_COUNT];
} workload;

/* Stores the numbers in the workload's dtypes and allocates the outputs. */
void workload_open(workload *w, const preset *shape, const setup *how, const numbers *from);
void workload_close(workload *w);

/* Whether a call of this direction reads or writes the tensor. Gradients of references are not asked for. */
bool workload_reads(const workload *w, bool backward, msda_tensor which);
bool workload_writes(const workload *w, bool backward, msda_tensor which);

/* Bytes that a call must move if it touches each byte of its tensors once. */
int64_t workload_bytes(const workload *w, bool backward);

/* Bytes of the corner rows that a call reads, each time it reads them: 4 rows of head_dim a point. */
int64_t workload_gathered_bytes(const workload *w);

#endif
