/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers of one preset in f32, made once and then stored in each dtype: normal value and grad_output, weights that
 * are the softmax of normal logits, locations by one of four rules. The same for any number of threads.
 */
#ifndef MSDA_BENCH_NUMBERS_H
#define MSDA_BENCH_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include "preset.h"

typedef enum spread {
    SPREAD_NEAR,    /* query's place + head's direction x number of the point + 1 pixel of normal noise */
    SPREAD_UNIFORM, /* anywhere on the level */
    SPREAD_WIDE,    /* as near, with 8 pixels of noise */
    SPREAD_HOT      /* one pixel for all */
} spread;

#define SPREAD_COUNT 4
extern const char *const spread_names[SPREAD_COUNT];

typedef struct numbers {
    int64_t num_value, num_output, num_points;
    float *value;       /* [num_value], also the bits of any layout: every element is drawn alike */
    float *grad_output; /* [num_output] */
    float *locations;   /* [num_points][2]; the fused form's offsets, in pixels */
    float *weights;     /* [num_points]; the fused form's logits */
    float *references;  /* fused form only: [batch][queries][levels][2] */
} numbers;

/* Exits if there is no memory. */
void numbers_make(numbers *made, const preset *shape, spread locations, bool fused);
void numbers_free(numbers *made);

/* malloc() that never returns null: there is nothing to do about it here. */
void *numbers_allocate(int64_t size);

#endif
