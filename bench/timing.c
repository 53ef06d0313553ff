/* SPDX-License-Identifier: Apache-2.0 */
#include "timing.h"

#include <stdio.h>
#include <stdlib.h>

void samples_add(samples *taken, double microseconds)
{
    if (taken->count == taken->capacity) {
        taken->capacity = taken->capacity == 0 ? 64 : 2 * taken->capacity;
        taken->microseconds = realloc(taken->microseconds, (size_t)taken->capacity * sizeof *taken->microseconds);
        if (taken->microseconds == NULL) {
            fputs("msda_bench: no memory for the samples\n", stderr);
            exit(1);
        }
    }
    taken->microseconds[taken->count++] = microseconds;
    taken->sum += microseconds;
}

bool samples_suffice(const samples *taken, patience asked)
{
    return taken->count >= asked.repeat && taken->sum >= asked.min_seconds * 1e6;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

timing samples_close(samples *taken)
{
    const int n = taken->count;
    qsort(taken->microseconds, (size_t)n, sizeof *taken->microseconds, ascending);
    const double *sorted = taken->microseconds;
    const timing sum = {.median_us = 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]),
                        .min_us = sorted[0],
                        .p90_us = sorted[(9 * n + 9) / 10 - 1],
                        .repeats = n};
    free(taken->microseconds);
    *taken = (samples){0};
    return sum;
}
