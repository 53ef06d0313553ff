/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the points of a trial sample, and how far off a back end's answer may be: the tests' own reading of the header,
 * in double, apart from the library's naive reference. Errors are in units of the roundoff of the arithmetic type.
 */
#ifndef MSDA_TEST_SAMPLING_H
#define MSDA_TEST_SAMPLING_H

#include "trial.h"

typedef struct place {
    int counts;      /* 0: contributes nothing */
    double position; /* in pixels, after clamping */
    double error;    /* of position */
    double slope;    /* pixels that the position moves by for one unit of location; 0 where clamped or discrete */
    double to_knot;  /* distance in pixels to where the formula changes: an integer position */
} place;

typedef struct corner {
    int64_t row; /* of value */
    double weight, weight_error;
    double slope_x, slope_x_error; /* change of weight with the location */
    double slope_y, slope_y_error;
} corner;

typedef struct sample {
    int level;
    double weight, weight_error; /* the attention weight */
    place x, y;
    int num_corners; /* those inside the level */
    corner corners[4];
} sample;

/* One query and head. */
typedef struct sampling_head {
    const trial *t;
    int64_t n, q, m, num_points;
    double largest_logit, sum_of_exponentials; /* fused form */
} sampling_head;

sampling_head sampling_open(const trial *t, int64_t n, int64_t q, int64_t m);
sample sampling_point(const sampling_head *head, int64_t k);

/* Fused form: the dense index in the references of the (x, y) that point k refers to; in a box (w, h) follow. */
int64_t sampling_reference(const sampling_head *head, int64_t k);

/* How far one unit of offset moves the location along an axis (0: x, 1: y); 1 in the plain form. */
double sampling_offset_scale(const sampling_head *head, int64_t k, int axis);

#endif
