/* SPDX-License-Identifier: Apache-2.0 */
/*
 * f32 to every storage type and every storage type to f64, for whole tensors on all threads: hundreds of megabytes for
 * each preset, where the tool's slow converter would take most of the time.
 */
#ifndef MSDA_BENCH_STORAGE_TYPES_H
#define MSDA_BENCH_STORAGE_TYPES_H

#include <stdint.h>

#include <msda/msda.h>

int64_t dtype_size(msda_dtype dtype);
const char *dtype_name(msda_dtype dtype);

/* Half the distance between 1 and the next number. */
double dtype_roundoff(msda_dtype dtype);

/* Rounds to nearest even. */
void dtype_store(msda_dtype dtype, const float *from, int64_t count, void *to);

/* Exact. `from` is the tensor's first element, `first` the element to begin with. */
void dtype_load(msda_dtype dtype, const void *from, int64_t first, int64_t count, double *to);

#endif
