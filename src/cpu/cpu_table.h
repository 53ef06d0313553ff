/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU's kernels: a row is one line of kernels.def for one instruction set, and holds passes; a pass is a number of
 * independent items, each of which owns what it writes, so that threads may take them in any order.
 */
#ifndef MSDA_CPU_TABLE_H
#define MSDA_CPU_TABLE_H

#include "../shape.h"
#include "cpu_isa.h"
#include "cpu_plan.h"

/* What a pass works on. */
typedef struct msda_cpu_job {
    msda_shape shape;
    msda_tensors tensors;
    msda_cpu_plan plan;
    void *workspace;
} msda_cpu_job;

/* Queries that are visited in an order of their own: at most so many at a time, so that each thread has room for it. */
#define MSDA_CPU_WINDOW 1024

typedef struct msda_cpu_order {
    int64_t n, first; /* whose: the window of batch item n that begins with query `first`; n < 0: nobody's yet */
    uint16_t query[MSDA_CPU_WINDOW]; /* counted from `first` */
} msda_cpu_order;

/* What a thread has of its own from item to item. */
typedef struct msda_cpu_thread {
    void *scratch; /* its part of the workspace, plan.scratch_size bytes */
    msda_cpu_order order;
} msda_cpu_thread;

typedef struct msda_cpu_pass {
    /* 0 where the job does not ask for what the pass makes. */
    int64_t (*count)(const msda_cpu_job *job);
    void (*run)(const msda_cpu_job *job, msda_cpu_thread *thread, int64_t first, int64_t last);
    /* Neighbouring items share cache: a thread takes many at once, in stretches of so many. 0: one at a time. */
    int stretch;
} msda_cpu_pass;

#define MSDA_CPU_BACKWARD_PASSES 5

typedef struct msda_cpu_row {
    const char *name;
    msda_dtype value_dtype, point_dtype;
    int32_t head_dim; /* 0: any */
    msda_cpu_pass forward;
    msda_cpu_pass backward[MSDA_CPU_BACKWARD_PASSES]; /* in this order; unused ones at the end are empty */
} msda_cpu_row;

/* The first row of the kernel list that fits, in the instruction set in use. Every problem has one. */
const msda_cpu_row *msda_cpu_select(const msda_shape *shape);

/* What the passes of all vector sets count their items with. */
int64_t msda_cpu_count_forward(const msda_cpu_job *job);         /* (n, tile) */
int64_t msda_cpu_count_statistics(const msda_cpu_job *job);      /* (n, tile): softmax, fused form */
int64_t msda_cpu_count_point_gradients(const msda_cpu_job *job); /* (n, tile) */
int64_t msda_cpu_count_cleared(const msda_cpu_job *job);         /* (n, row of value) */
int64_t msda_cpu_count_value_gradients(const msda_cpu_job *job); /* the plan's */
int64_t msda_cpu_count_image(const msda_cpu_job *job);           /* (n, row of value) */

/* Zeroes what the value gradient will be summed in; items are (n, row of value). */
void msda_cpu_clear(const msda_cpu_job *job, msda_cpu_thread *thread, int64_t first, int64_t last);

/* The rows of one instruction set, ended by an empty one; null where the build has none. */
extern const msda_cpu_row msda_cpu_rows_scalar[];
#if MSDA_CPU_X86
extern const msda_cpu_row msda_cpu_rows_avx2[];
extern const msda_cpu_row msda_cpu_rows_avx512[];
#elif MSDA_CPU_ARM64
extern const msda_cpu_row msda_cpu_rows_neon[];
#endif

#endif
