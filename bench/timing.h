/* SPDX-License-Identifier: Apache-2.0 */
/* How long to measure, and what comes out. */
#ifndef MSDA_BENCH_TIMING_H
#define MSDA_BENCH_TIMING_H

#include <stdbool.h>

typedef struct patience {
    int repeat;         /* at least so many calls */
    double min_seconds; /* and at least so long */
} patience;

typedef struct timing {
    double median_us, min_us, p90_us;
    int repeats;
} timing;

typedef struct samples {
    double *microseconds;
    int count, capacity;
    double sum;
} samples;

void samples_add(samples *taken, double microseconds);
bool samples_suffice(const samples *taken, patience asked);

/* Sorts, sums up and frees. */
timing samples_close(samples *taken);

#endif
