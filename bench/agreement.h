/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check before each timing: all queries of some heads (as many as are cheap; all where they are) are computed by
 * the reference, in f64 on the same stored numbers, and compared as |result - reference| / |reference| of each tensor.
 *
 * A head of one batch item shares nothing with the others, so it is a problem of its own, and the call under test runs
 * whole, as it is timed. The reference is msda_naive_*(), whose loops the CPU path runs for f64; heads run in parallel.
 */
#ifndef MSDA_BENCH_AGREEMENT_H
#define MSDA_BENCH_AGREEMENT_H

#include "workload.h"

typedef struct head_answer {
    int64_t batch_item, head;
    double *tensors[MSDA_TENSOR_COUNT]; /* dense; null: not an output */
} head_answer;

typedef struct reference {
    const workload *of;
    bool backward;
    int heads, all_heads;
    head_answer *answers; /* [heads] */
} reference;

typedef struct agreement {
    bool holds;
    double largest; /* error of any tensor */
    /* the tensor whose error is nearest to its tolerance, or the first that passes it */
    msda_tensor which;
    double error, tolerance;
} agreement;

/* `points`: about how many to compute; at least one head is. Exits if the reference refuses the problem. */
void reference_open(reference *r, const workload *w, bool backward, int64_t points);
void reference_close(reference *r);

/* Compares the workload's outputs. A NaN, such as the poison of an element that was not written, never agrees. */
agreement reference_compare(const reference *r);

/* What the error may be, and why: agreement.c. */
double agreement_tolerance(const workload *w, msda_tensor which);

const char *agreement_tensor_name(msda_tensor which);

#endif
