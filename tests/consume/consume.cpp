/* SPDX-License-Identifier: Apache-2.0 */
/* As consume.c, in C++: the gradient of a 1 x 1 level is the weight, and a mistake is reported. */
#include <msda/msda.h>

#include <cstdio>
#include <vector>

int main()
{
    const std::vector<double> value{7.0}, location{0.5, 0.5}, weight{0.25}, grad_output{1.0};
    std::vector<double> grad_value(1);

    msda_problem problem;
    msda_problem_init(&problem);
    problem.value_dtype = MSDA_DTYPE_F64;
    problem.batch = problem.queries = problem.heads = problem.head_dim = 1;
    msda_problem_add_level(&problem, 1, 1, 1);

    msda_backward_args args{};
    args.value = value.data();
    args.sampling_locations = location.data();
    args.attention_weights = weight.data();
    args.grad_output = grad_output.data();
    args.grad_value = grad_value.data();
    if (msda_naive_backward(&problem, &args) != MSDA_STATUS_SUCCESS) {
        std::fprintf(stderr, "%s\n", msda_last_error());
        return 1;
    }
    std::printf("gradient %.2f, expected %.2f\n", grad_value[0], weight[0]);

    problem.heads = -1;
    const msda_status refused = msda_naive_backward(&problem, &args);
    std::printf("heads = -1: %s: %s\n", msda_status_string(refused), msda_last_error());
    return grad_value[0] == weight[0] && refused == MSDA_STATUS_INVALID_PROBLEM ? 0 : 1;
}
