/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as the library stores them: f64, f32, f16, bf16. The tool itself holds every tensor in double. */
#ifndef MSDA_STORAGE_H
#define MSDA_STORAGE_H

#include <msda/msda.h>

size_t msda_storage_size(msda_dtype dtype);      /* bytes of one element */
const char *msda_storage_name(msda_dtype dtype); /* "f64", "f32", "f16", "bf16" */

/* Half the distance from 1 to the next number: the largest relative error of one rounding. */
double msda_storage_roundoff(msda_dtype dtype);

/* The smallest number above 0. */
double msda_storage_smallest(msda_dtype dtype);

/* The nearest number of the type, ties to even, rounded once; past the largest finite one it is infinite. */
double msda_storage_round(msda_dtype dtype, double value);

void msda_storage_encode(msda_dtype dtype, const double *from, size_t count, void *to);
void msda_storage_decode(msda_dtype dtype, const void *from, size_t count, double *to);

double msda_storage_from_f16(uint16_t bits);

#endif
