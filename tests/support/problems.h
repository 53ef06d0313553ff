/* SPDX-License-Identifier: Apache-2.0 */
/* Named problems: small, and rectangular wherever there is room, because squares hide swapped axes. */
#ifndef MSDA_TEST_PROBLEMS_H
#define MSDA_TEST_PROBLEMS_H

#include <msda/msda.h>

#define PROBLEM_MAX_LEVELS 6

typedef struct problem_level {
    int32_t height, width, points;
    int64_t start; /* 0: behind the levels before it */
} problem_level;

typedef struct named_problem {
    const char *name;
    int32_t batch, queries, heads, head_dim;
    int64_t value_length;                     /* 0: as long as the levels need */
    problem_level levels[PROBLEM_MAX_LEVELS]; /* up to the first of height 0 */
} named_problem;

extern const named_problem problems[];
extern const int num_problems;

/* The one that every option is tried on: two batch items, levels of mixed shape, order and point count, a gap. */
extern const named_problem *const rich_problem;

/* f32, everything else default. */
msda_problem problem_of(const named_problem *named);

/* One line for ad-hoc problems: a single level. */
msda_problem problem_of_level(int32_t batch, int32_t queries, int32_t heads, int32_t head_dim, int32_t height,
                              int32_t width, int32_t points);

/* The same in another storage type. */
msda_problem problem_with_dtype(msda_problem problem, msda_dtype value_dtype);

#endif
