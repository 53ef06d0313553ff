/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward on the CPU. The value of every pixel is its own column (channel 0) and row (channel 1), so that the output of a
 * query is simply where it looked, in pixels: what you see below is the library's coordinate convention.
 *
 *     cc 01_forward.c $(pkg-config --cflags --libs msda) && ./a.out
 */
#include <msda/msda.h>

#include <stdio.h>

enum { HEIGHT = 4, WIDTH = 6, QUERIES = 4, HEADS = 1, HEAD_DIM = 2, POINTS = 1 };

int main(void)
{
    /* [batch][value_length][heads][head_dim], row after row of the one level */
    static float value[1][HEIGHT * WIDTH][HEADS][HEAD_DIM];
    for (int row = 0; row < HEIGHT; ++row) {
        for (int column = 0; column < WIDTH; ++column) {
            value[0][row * WIDTH + column][0][0] = (float)column;
            value[0][row * WIDTH + column][0][1] = (float)row;
        }
    }

    /* [batch][queries][heads][points][2], (x, y): 0 is the left or upper edge of the level, 1 the right or lower one */
    const float locations[1][QUERIES][HEADS][POINTS][2] = {{
        {{{0.5f, 0.5f}}},                  /* the middle of the map */
        {{{0.5f / WIDTH, 0.5f / HEIGHT}}}, /* the centre of the first pixel */
        {{{0.25f, 0.75f}}},
        {{{1.0f, 0.5f}}}, /* on the right edge: half of the sample lies outside, where the value is 0 */
    }};
    /* [batch][queries][heads][points] */
    const float weights[1][QUERIES][HEADS][POINTS] = {{{{1.0f}}, {{1.0f}}, {{1.0f}}, {{1.0f}}}};
    float output[1][QUERIES][HEADS][HEAD_DIM];

    msda_problem problem;
    msda_problem_init(&problem);
    problem.value_dtype = MSDA_DTYPE_F32;
    problem.batch = 1;
    problem.queries = QUERIES;
    problem.heads = HEADS;
    problem.head_dim = HEAD_DIM;
    msda_problem_add_level(&problem, HEIGHT, WIDTH, POINTS); /* call it again for every further level */

    const msda_forward_args args = {
        .value = value,
        .sampling_locations = locations,
        .attention_weights = weights,
        .output = output,
    };
    if (msda_cpu_forward(&problem, &args, 0) != MSDA_STATUS_SUCCESS) { /* 0: as many threads as OpenMP would take */
        fprintf(stderr, "%s\n", msda_last_error());
        return 1;
    }

    puts("location (x, y)     output (column, row)");
    for (int q = 0; q < QUERIES; ++q) {
        printf("(%.4f, %.4f)    (%.3f, %.3f)\n", locations[0][q][0][0][0], locations[0][q][0][0][1], output[0][q][0][0],
               output[0][q][0][1]);
    }
    return 0;
}
