/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How work is cut into items for threads, in which order queries are visited, and what workspace the backward needs. No cut
 * changes the order in which the contributions to one element are added, so none changes a byte of the result.
 */
#ifndef MSDA_CPU_PLAN_H
#define MSDA_CPU_PLAN_H

#include "../shape.h"

/* Queries of one batch item that are visited together, since they sample close to one another: `runs` runs of
 * `run_length` queries, each `pitch` queries after the one before; with an order (cpu_order.inc) one run of those that it
 * names, counted from first_query. */
typedef struct msda_cpu_tile {
    int64_t first_query, pitch;
    int32_t runs, run_length;
    const uint16_t *order;
} msda_cpu_tile;

/* Tiles of one batch item: rectangles of pixels if the queries are the pixels of all levels (an encoder), else runs. */
int64_t msda_cpu_count_tiles(const msda_shape *shape);
msda_cpu_tile msda_cpu_find_tile(const msda_shape *shape, int64_t tile);

typedef struct msda_cpu_plan {
    /* The value gradient's items are (level group, band, n, head group, block), block fastest. */
    int32_t head_groups;
    int32_t groups;         /* of levels: 1 (all of them), or as many as levels */
    int32_t bands;          /* of the pixel rows of each level */
    int32_t blocks;         /* of a head's channels */
    int32_t block_channels; /* 16, 32 or 64 */

    int64_t padded_points;    /* K rounded up, so that vectors of points may run over its end */
    int64_t reference_length; /* elements of one query's references; 0 in the plain form */

    /* The workspace, in bytes: softmax statistics (fused), f32 image of grad_value, the threads' own parts. */
    size_t image_offset, scratch_offset;
    size_t scratch_size; /* of one thread */
    size_t workspace_size;
} msda_cpu_plan;

/* What one item of the value gradient owns: lines (pixel rows) [H * band / bands, H * (band + 1) / bands) of each of its
 * levels, for a block of the channels of its heads of batch item n. */
typedef struct msda_cpu_value_item {
    int32_t first_level, last_level, band;
    int32_t first_head, last_head;
    int64_t n, first_channel;
} msda_cpu_value_item;

void msda_cpu_plan_backward(msda_cpu_plan *plan, const msda_shape *shape, int threads);

/*
 * Whether grad_value is summed in an f32 image in the workspace, [n][m][row of value][c], and written at the end; else it
 * is summed in place. 16-bit types need it for f32 sums; f32 uses it where rows are added to so often that it pays to have
 * them dense: rows of one head that lie a power of two apart share few sets of the cache, and are mistaken for one another.
 */
int msda_cpu_sums_in_image(const msda_shape *shape);

int64_t msda_cpu_count_value_items(const msda_cpu_plan *plan, const msda_shape *shape);
msda_cpu_value_item msda_cpu_find_value_item(const msda_cpu_plan *plan, const msda_shape *shape, int64_t item);

#endif
