/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs and results as .npy, f32 (f64 for f64), for other programs to run on the same numbers. */
#ifndef MSDA_BENCH_DUMP_H
#define MSDA_BENCH_DUMP_H

#include "workload.h"

/*
 * Makes the folder if there is none and writes levels.npy, rows (height, width, points), and each tensor by its name in
 * msda.h. Returns false if it could not; it has said why.
 */
bool dump_workload(const workload *w, const bool directions[2], const char *folder);

#endif
