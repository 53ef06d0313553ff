/* SPDX-License-Identifier: Apache-2.0 */
#include "problems.h"

const named_problem problems[] = {
    {"rich", 2, 3, 3, 5, 80, {{2, 3, 1, 70}, {4, 9, 3, 20}, {5, 1, 2, 10}}},
    {"one_point", 1, 1, 1, 1, 0, {{2, 3, 1, 0}}},
    {"one_pixel", 1, 2, 2, 4, 0, {{1, 1, 3, 0}}},
    {"wide_strip", 1, 3, 2, 8, 0, {{1, 7, 2, 0}}},
    {"tall_strip", 1, 3, 2, 8, 0, {{7, 1, 2, 0}}},
    {"single_level", 2, 4, 2, 17, 0, {{5, 8, 1, 0}}},
    {"encoder_like", 1, 24, 2, 16, 0, {{4, 6, 4, 0}, {2, 3, 4, 0}, {1, 2, 4, 0}}},
    {"mixed_points", 2, 3, 2, 8, 0, {{6, 4, 3, 0}, {3, 4, 6, 0}, {2, 3, 0, 0}, {3, 2, 3, 0}}},
    {"low_resolution_first", 1, 3, 2, 12, 0, {{1, 2, 2, 0}, {2, 4, 2, 0}, {4, 8, 2, 0}}},
    {"gaps", 2, 2, 2, 6, 64, {{3, 4, 2, 5}, {2, 7, 2, 30}}},
    {"batch_5", 5, 2, 3, 4, 0, {{3, 5, 2, 0}}},
    {"batch_65", 65, 1, 1, 3, 0, {{2, 3, 1, 0}}},
    {"many_points", 1, 2, 1, 7, 0, {{6, 5, 37, 0}, {2, 3, 30, 0}}},
    {"head_dim_33", 1, 2, 2, 33, 0, {{3, 4, 2, 0}}},
    {"head_dim_80", 1, 2, 2, 80, 0, {{3, 4, 2, 0}}},
};

const int num_problems = sizeof problems / sizeof problems[0];

const named_problem *const rich_problem = &problems[0];

msda_problem problem_of(const named_problem *named)
{
    msda_problem problem;
    msda_problem_init(&problem);
    problem.value_dtype = MSDA_DTYPE_F32;
    problem.batch = named->batch;
    problem.queries = named->queries;
    problem.heads = named->heads;
    problem.head_dim = named->head_dim;
    for (const problem_level *level = named->levels; level->height > 0; ++level) {
        msda_problem_add_level(&problem, level->height, level->width, level->points);
        if (level->start > 0)
            problem.levels[problem.num_levels - 1].start = level->start;
    }
    if (named->value_length > 0)
        problem.value_length = named->value_length;
    return problem;
}

msda_problem problem_of_level(int32_t batch, int32_t queries, int32_t heads, int32_t head_dim, int32_t height,
                              int32_t width, int32_t points)
{
    const named_problem named = {"", batch, queries, heads, head_dim, 0, {{height, width, points, 0}}};
    return problem_of(&named);
}

msda_problem problem_with_dtype(msda_problem problem, msda_dtype value_dtype)
{
    problem.value_dtype = value_dtype;
    return problem;
}
