/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the backward is cut into items for a number of threads, and what workspace that needs. The cut never changes the
 * order in which the contributions to one element are added, so it never changes a byte of the result.
 */
#ifndef MSDA_CPU_PLAN_H
#define MSDA_CPU_PLAN_H

#include "../shape.h"

/*
 * The value gradient's items are (level, band, n, m, block), block fastest: a band of a level's pixel rows, one batch
 * item, one head, a block of its channels.
 */
typedef struct msda_cpu_plan {
    int32_t block_channels; /* 16, 32 or 64 */
    int32_t blocks;         /* of one head */
    int32_t band_height[MSDA_MAX_LEVELS];
    int64_t first_item[MSDA_MAX_LEVELS + 1]; /* first_item[l]: number of items on the levels before l */

    int64_t padded_points;    /* K rounded up, so that vectors of points may run over its end */
    int64_t reference_length; /* elements of one query's references; 0 in the plain form */

    size_t scratch_offset; /* where the threads' own parts begin; before them: the fused form's softmax statistics */
    size_t scratch_size;   /* bytes of one thread */
    size_t workspace_size;
} msda_cpu_plan;

/* One band of one level, of one batch item and head, and a block of the head's channels. */
typedef struct msda_cpu_value_item {
    int32_t level, first_line, last_line; /* pixel rows of the level */
    int64_t n, m, first_channel;
} msda_cpu_value_item;

void msda_cpu_plan_backward(msda_cpu_plan *plan, const msda_shape *shape, int threads);

msda_cpu_value_item msda_cpu_find_value_item(const msda_cpu_plan *plan, const msda_shape *shape, int64_t item);

#endif
