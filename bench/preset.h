/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes of shapes.def. */
#ifndef MSDA_BENCH_PRESET_H
#define MSDA_BENCH_PRESET_H

#include <stdbool.h>
#include <stdint.h>

#define PRESET_MAX_GRIDS 8

typedef struct preset_grid {
    int32_t height, width, points; /* points of a head; 0 where only places are meant */
} preset_grid;

/* Lists of grids end at the first of height 0. */
typedef struct preset {
    const char *name;
    int32_t batch, heads, head_dim;
    bool for_tests;                            /* of no model */
    int32_t anywhere;                          /* queries at random places; 0: at the pixels of query_grids */
    preset_grid query_grids[PRESET_MAX_GRIDS]; /* empty: the levels themselves */
    preset_grid levels[PRESET_MAX_GRIDS];
} preset;

extern const preset presets[];
extern const int num_presets;

/* Null if there is none of that name. */
const preset *preset_find(const char *name);

/* Where the queries are; null if anywhere. */
const preset_grid *preset_query_grids(const preset *shape);

int64_t preset_pixels(const preset_grid *grids);
int32_t preset_queries(const preset *shape);
int64_t preset_points_of_head(const preset *shape);

/* Points of a whole call. */
int64_t preset_points(const preset *shape);

#endif
