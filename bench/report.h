/* SPDX-License-Identifier: Apache-2.0 */
/* The table on stdout, the CSV, and the progress line on stderr. */
#ifndef MSDA_BENCH_REPORT_H
#define MSDA_BENCH_REPORT_H

#include <stdio.h>

#include "agreement.h"
#include "stage.h"

typedef struct report {
    FILE *csv;    /* null: none */
    bool on_cuda; /* else host: the columns differ */
    bool progress;
    double l1_bytes_per_second, dram_bytes_per_second; /* cuda */
} report;

typedef struct result {
    const workload *w;
    backend on;
    bool backward;
    int threads;
    int heads_checked, heads;
    agreement check;
    measurement measured;
} result;

/* Opens the CSV and prints the machine and the head of the table. Returns false if it could not; it has said why. */
bool report_open(report *r, backend on, double dram_bytes_per_second, const char *csv_path, int argc, char **argv);
void report_close(report *r);

void report_progress(const report *r, int step, int steps, const preset *shape, msda_dtype dtype, const char *doing);
void report_failed_check(const report *r, const result *found);
void report_result(const report *r, const result *found);

#endif
