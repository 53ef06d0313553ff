/* SPDX-License-Identifier: Apache-2.0 */
/* Fails unless header and library are of one version and a 1 x 1 level gives its only value back. */
#include <msda/msda.h>

#include <stdio.h>

int main(void)
{
    const float value = 7.0f, location[2] = {0.5f, 0.5f}, weight = 1.0f;
    float output = 0.0f;
    const msda_forward_args args = {&value, location, &weight, &output};

    msda_problem problem;
    msda_problem_init(&problem);
    problem.value_dtype = MSDA_DTYPE_F32;
    problem.batch = problem.queries = problem.heads = problem.head_dim = 1;
    if (msda_problem_add_level(&problem, 1, 1, 1) != MSDA_STATUS_SUCCESS ||
        msda_cpu_forward(&problem, &args, 0) != MSDA_STATUS_SUCCESS) {
        fprintf(stderr, "%s\n", msda_last_error());
        return 1;
    }
    printf("msda %d: %.1f, expected %.1f\n", msda_version(), output, value);
    return output == value && msda_version() == MSDA_VERSION ? 0 : 1;
}
