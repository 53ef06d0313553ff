/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NumPy's .npy files: versions 1 to 3, little-endian f2, f4, f8, i4, i8, C order. Anything else is refused with a
 * complaint that names the file. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
 */
#ifndef MSDA_NPY_H
#define MSDA_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSDA_NPY_MAX_RANK 8

typedef enum msda_npy_type { MSDA_NPY_F2, MSDA_NPY_F4, MSDA_NPY_F8, MSDA_NPY_I4, MSDA_NPY_I8 } msda_npy_type;

typedef struct msda_npy {
    msda_npy_type type;
    int rank;
    int64_t shape[MSDA_NPY_MAX_RANK];
    size_t count;              /* product of shape */
    const unsigned char *data; /* count elements, little-endian, of any alignment; inside the file's bytes */
    unsigned char *bytes;      /* the whole file, if msda_npy_read() brought it */
} msda_npy;

/* Reads a file that is already in memory; `name` is what complaints call it. The bytes stay the caller's. */
bool msda_npy_parse(msda_npy *npy, const unsigned char *bytes, size_t size, const char *name);

/* Reads a file; free with msda_npy_free(), which is also safe after a failure. */
bool msda_npy_read(msda_npy *npy, const char *path);
void msda_npy_free(msda_npy *npy);

bool msda_npy_is_integer(const msda_npy *npy);

/* Element i of a floating-point file, exact; element i of an integer file. */
double msda_npy_float(const msda_npy *npy, size_t i);
int64_t msda_npy_integer(const msda_npy *npy, size_t i);

/* "[2, 9, 16]"; a negative size reads "any". */
#define MSDA_NPY_SHAPE_TEXT_SIZE 192
const char *msda_npy_shape_text(char text[MSDA_NPY_SHAPE_TEXT_SIZE], const int64_t *shape, int rank);

/* Writes an F8 or F4 file of `count` = product of shape elements, version 1. */
bool msda_npy_write(const char *path, msda_npy_type type, const int64_t *shape, int rank, const double *data);

#endif
