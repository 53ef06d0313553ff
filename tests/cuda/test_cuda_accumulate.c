/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP32 against NATIVE: how far grad_value is off when 1 to 65536 contributions meet in one pixel. Prints the table that
 * docs/performance.md shows, and checks what both modes promise.
 *
 * Every query has one head and one point, on the centre of the middle pixel, which f32 hits exactly, so that each channel
 * of that pixel's gradient is the sum over queries of weight * grad_output. The exact sum is taken here, in f64, on the
 * rounded numbers.
 */
#include "device_trial.h"

#include "element.h"

#include <math.h>
#include <stdio.h>

enum { HEAD_DIM = 32, HEIGHT = 3, WIDTH = 5, HOT_ROW = HEIGHT / 2 * WIDTH + WIDTH / 2, MOST_HITS = 65536 };

static void fill_hot_pixel(trial *t, double lowest)
{
    uint64_t state = 1;
    inputs_fill_tensor(t, MSDA_TENSOR_VALUE, &state, -1.0, 1.0);
    inputs_fill_tensor(t, MSDA_TENSOR_WEIGHTS, &state, 0.0, 1.0);
    inputs_fill_tensor(t, MSDA_TENSOR_GRAD_OUTPUT, &state, lowest, 1.0);
    trial_set_all(t, MSDA_TENSOR_LOCATIONS, 0.5);
}

/* Of the hot pixel's channels: the largest |error| relative to the sum of the |terms|. */
static double measure(msda_dtype dtype, msda_accumulate accumulate, int32_t hits, double lowest)
{
    msda_problem problem = problem_with_dtype(problem_of_level(1, hits, 1, HEAD_DIM, HEIGHT, WIDTH, 1), dtype);
    problem.accumulate = accumulate;
    trial t;
    trial_open(&t, &problem, 0);
    fill_hot_pixel(&t, lowest);
    device_trial_once(&t);
    double worst = 0.0;
    for (int c = 0; c < HEAD_DIM; ++c) {
        double sum = 0.0, terms = 0.0;
        for (int64_t q = 0; q < hits; ++q) {
            const double term =
                trial_get(&t, MSDA_TENSOR_WEIGHTS, q) * trial_get(&t, MSDA_TENSOR_GRAD_OUTPUT, q * HEAD_DIM + c);
            sum += term;
            terms += fabs(term);
        }
        const double error = fabs(trial_get(&t, MSDA_TENSOR_GRAD_VALUE, HOT_ROW * HEAD_DIM + c) - sum) / terms;
        worst = error <= worst ? worst : error; /* NaN stays */
    }
    trial_close(&t);
    return worst;
}

/*
 * FP32: sums in f32 (f64), in any order, then one rounding. NATIVE: one rounding an add; where the sum has grown so far
 * that an add no longer moves it, all that follows is lost, but never more than there was.
 */
static double promised(msda_dtype dtype, msda_accumulate accumulate, int32_t hits)
{
    const msda_dtype arithmetic = dtype == MSDA_DTYPE_F64 ? MSDA_DTYPE_F64 : MSDA_DTYPE_F32;
    const double summing = element_roundoff(arithmetic) * (hits + 2);
    return accumulate == MSDA_ACCUMULATE_NATIVE ? fmin(summing + element_roundoff(dtype) * (hits + 2), 0.999)
                                                : summing + 2 * element_roundoff(dtype);
}

static double check_mode(msda_dtype dtype, msda_accumulate accumulate, int32_t hits, double lowest)
{
    const double error = measure(dtype, accumulate, hits, lowest), limit = promised(dtype, accumulate, hits);
    if (!(error <= limit))
        fail_msg("%s, %s, %d hits: error %.3g of the terms' sum, promised <= %.3g", element_name(dtype),
                 accumulate == MSDA_ACCUMULATE_NATIVE ? "native" : "fp32", hits, error, limit);
    return error;
}

static void print_table(double lowest, const char *what)
{
    printf("\nlargest error of grad_value, relative to the sum of its |terms|; terms %s\n", what);
    printf("%8s  %12s %12s  %12s %12s\n", "hits", "f16 fp32", "f16 native", "bf16 fp32", "bf16 native");
    for (int32_t hits = 1; hits <= full_or_few(MOST_HITS, 16); hits *= 4) {
        printf("%8d", hits);
        for (int i = 0; i < 2; ++i) {
            const msda_dtype dtype = i == 0 ? MSDA_DTYPE_F16 : MSDA_DTYPE_BF16;
            printf("  %12.2e", check_mode(dtype, MSDA_ACCUMULATE_FP32, hits, lowest));
            printf(" %12.2e", check_mode(dtype, MSDA_ACCUMULATE_NATIVE, hits, lowest));
        }
        printf("\n");
    }
}

static void test_table_of_one_sign(void **state)
{
    (void)state;
    print_table(0.0, "of one sign");
}

static void test_table_of_both_signs(void **state)
{
    (void)state;
    print_table(-1.0, "of both signs");
}

/* At f32 and f64 the two are the same computation. */
static void test_wide_types_agree(void **state)
{
    (void)state;
    for (int i = 0; i < 2; ++i)
        for (int32_t hits = 1; hits <= full_or_few(MOST_HITS, 16); hits *= 16) {
            const msda_dtype dtype = i == 0 ? MSDA_DTYPE_F32 : MSDA_DTYPE_F64;
            const double fp32 = check_mode(dtype, MSDA_ACCUMULATE_FP32, hits, -1.0);
            const double native = check_mode(dtype, MSDA_ACCUMULATE_NATIVE, hits, -1.0);
            const double tight = 8.0 * sqrt((double)hits) * element_roundoff(dtype);
            if (!(fp32 <= tight && native <= tight))
                fail_msg("%s, %d hits: fp32 is off by %.3g and native by %.3g, expected <= %.3g", element_name(dtype),
                         hits, fp32, native, tight);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_of_one_sign),
        cmocka_unit_test(test_table_of_both_signs),
        cmocka_unit_test(test_wide_types_agree),
    };
    return RUN_PROGRAM(argc, argv, &backend_cuda, tests);
}
