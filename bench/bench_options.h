/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: `msda_bench --help`. */
#ifndef MSDA_BENCH_OPTIONS_H
#define MSDA_BENCH_OPTIONS_H

#include "call.h"
#include "timing.h"

#define OPTIONS_MAX_LIST 64

typedef struct bench_options {
    backend on;
    bool directions[2]; /* forward, backward */
    bool fused, head_major;
    msda_accumulate accumulate;
    bool point_as_value; /* else f64 beside f64, f32 beside the others */
    const preset *shapes[OPTIONS_MAX_LIST];
    int num_shapes;
    msda_dtype dtypes[OPTIONS_MAX_LIST];
    int num_dtypes;
    spread locations[OPTIONS_MAX_LIST];
    int num_locations;
    int threads[OPTIONS_MAX_LIST];
    int num_threads;
    patience asked;
    int min_sets;
    int64_t check_points; /* 0: by the number of cores */
    double dram_bytes_per_second;
    const char *csv_path, *dump_path; /* null: none */
    bool list;
} bench_options;

/* Returns -1 to go on, else the exit status: 0 after --help, 2 (said why on stderr) if the command line is wrong. */
int bench_options_read(bench_options *options, int argc, char **argv);

/* The dtypes and so on of one run; the options' defaults written out. */
setup bench_options_setup(const bench_options *options, msda_dtype value_dtype, spread locations);

#endif
