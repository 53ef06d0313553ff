/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of every storage type as double: widening is exact, narrowing rounds once, to nearest even. */
#ifndef MSDA_TEST_ELEMENT_H
#define MSDA_TEST_ELEMENT_H

#include <msda/msda.h>

size_t element_size(msda_dtype dtype);
const char *element_name(msda_dtype dtype);

double element_get(msda_dtype dtype, const void *data, int64_t index);
void element_set(msda_dtype dtype, void *data, int64_t index, double number);

/* Half the distance between 1 and the next number: the relative error of one rounding. */
double element_roundoff(msda_dtype dtype);

/* The largest absolute error of one rounding near 0, where the relative one means nothing. */
double element_underflow(msda_dtype dtype);

#endif
