/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device for which the library holds no code. ctest runs this with two variables that make the driver ignore what there
 * is: CUDA_FORCE_PTX_JIT (no machine code) and CUDA_DISABLE_PTX_JIT (nothing made from PTX). Every call must be refused with
 * the device's compute capability and the library's list, and leave outputs alone.
 */
#define _POSIX_C_SOURCE 200809L

#include "device_trial.h"

#include <stdio.h>
#include <stdlib.h>

static void require_no_image(msda_status status)
{
    if (status != MSDA_STATUS_NO_DEVICE)
        fail_msg("status \"%s\", expected \"%s\"; text: %s", msda_status_string(status),
                 msda_status_string(MSDA_STATUS_NO_DEVICE), msda_last_error());
    struct cudaDeviceProp properties;
    char capability[24];
    REQUIRE(cudaGetDeviceProperties(&properties, 0));
    snprintf(capability, sizeof capability, "%d.%d", properties.major, properties.minor);
    assert_non_null(strstr(msda_last_error(), capability));
    assert_non_null(strstr(msda_last_error(), msda_cuda_architectures()));
    require_no_error_waiting();
}

static void test_no_kernel_image(void **state)
{
    (void)state;
    for (int fused = 0; fused <= 1; ++fused)
        for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate) {
            msda_problem problem = problem_of(rich_problem);
            problem.accumulate = (msda_accumulate)accumulate;
            trial t;
            device_trial d;
            trial_open(&t, &problem, fused);
            inputs_fill(&t, 1);
            device_trial_open(&d, &t);
            device_trial_send_outputs(&d, NULL);
            require_no_image(device_trial_forward(&d, NULL));
            require_no_image(device_trial_backward(&d, NULL));
            device_trial_fetch_outputs(&d, NULL);
            for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
                for (size_t k = 0; trial_is_output((msda_tensor)i) && k < t.tensors[i].memory.size; ++k)
                    assert_int_equal(t.tensors[i].memory.data[k], 0xFF);
            device_trial_close(&d);
            trial_close(&t);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_kernel_image)};
    if (!getenv("CUDA_FORCE_PTX_JIT") || !getenv("CUDA_DISABLE_PTX_JIT")) {
        fprintf(stderr, "%s: set CUDA_FORCE_PTX_JIT=1 and CUDA_DISABLE_PTX_JIT=1\n", argv[0]);
        return EXIT_FAILURE;
    }
    return RUN_PROGRAM(argc, argv, &backend_cuda, tests);
}
