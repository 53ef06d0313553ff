/* SPDX-License-Identifier: Apache-2.0 */
/* The judgement of `msda check`: what passes, what fails, and what a failing tensor's numbers are said to suggest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "verdict.h"

#include <math.h>
#include <string.h>

enum { ROWS = 100, COUNT = 2 * ROWS };

static const msda_tolerance tolerance = {1e-6, 8e-6, 1e-12};

/* Two tensors [100, 2] that agree: pseudo-random numbers -1..1. */
typedef struct pair {
    double computed[COUNT], expected[COUNT];
    msda_array reference;
} pair;

static void make_pair(pair *p)
{
    uint32_t state = 1;
    for (int i = 0; i < COUNT; ++i) {
        state = state * 1664525u + 1013904223u;
        p->computed[i] = p->expected[i] = state / 2147483648.0 - 1.0;
    }
    p->reference = (msda_array){.rank = 2, .shape = {ROWS, 2}, .count = COUNT, .data = p->expected};
}

static void expect_failure(const pair *p, msda_dtype stored, const char *hint)
{
    const msda_verdict v = msda_verdict_of(p->computed, &p->reference, stored, tolerance);
    assert_false(v.passed);
    if (strstr(v.hint, hint) == NULL)
        fail_msg("hint '%s' does not say '%s'", v.hint, hint);
}

static void equal_tensors_pass(void **state)
{
    (void)state;
    pair p;
    make_pair(&p);
    const msda_verdict v = msda_verdict_of(p.computed, &p.reference, MSDA_DTYPE_F32, tolerance);
    assert_true(v.passed);
    assert_true(v.max_error == 0.0 && v.relative_error == 0.0);
    assert_true(fabs(v.cosine - 1.0) < 1e-15);
}

static void the_norm_decides(void **state)
{
    (void)state;
    pair p;
    make_pair(&p);
    for (int i = 0; i < COUNT; ++i)
        p.computed[i] = p.expected[i] * (1.0 + 0.99e-6);
    assert_true(msda_verdict_of(p.computed, &p.reference, MSDA_DTYPE_F32, tolerance).passed);
    for (int i = 0; i < COUNT; ++i)
        p.computed[i] = p.expected[i] * (1.0 + 1.01e-6);
    expect_failure(&p, MSDA_DTYPE_F32, "scale: out is 1.00000101 times ref");
}

/* In a large tensor one bad element hides in the norm, but not from the rule for elements. */
static void one_element_does_not_hide(void **state)
{
    (void)state;
    pair p;
    make_pair(&p);
    p.computed[17] += 1e-5;
    const msda_tolerance wide = {1e-6, INFINITY, 0.0};
    assert_true(
        msda_verdict_of(p.computed, &p.reference, MSDA_DTYPE_F32, (msda_tolerance){2e-6, INFINITY, 0.0}).passed);
    assert_false(msda_verdict_of(p.computed, &p.reference, MSDA_DTYPE_F32, (msda_tolerance){2e-6, 8e-6, 0.0}).passed);
    assert_false(msda_verdict_of(p.computed, &p.reference, MSDA_DTYPE_F32, wide).passed);
}

static void the_floor_is_for_zeros(void **state)
{
    (void)state;
    pair p;
    make_pair(&p);
    memset(p.expected, 0, sizeof p.expected);
    memset(p.computed, 0, sizeof p.computed);
    assert_true(msda_verdict_of(p.computed, &p.reference, MSDA_DTYPE_F32, (msda_tolerance){0}).passed);
    p.computed[3] = 0.9e-12;
    assert_true(msda_verdict_of(p.computed, &p.reference, MSDA_DTYPE_F32, tolerance).passed);
    p.computed[3] = 1e-10;
    expect_failure(&p, MSDA_DTYPE_F32, "only zeros are expected");
}

static void tells_scale_and_sign(void **state)
{
    (void)state;
    pair p;
    make_pair(&p);
    for (int i = 0; i < COUNT; ++i)
        p.computed[i] = 2.0 * p.expected[i];
    expect_failure(&p, MSDA_DTYPE_F32, "scale: out is 2 times ref");
    for (int i = 0; i < COUNT; ++i)
        p.computed[i] = -p.expected[i];
    expect_failure(&p, MSDA_DTYPE_F32, "sign: out is -1 times ref");
    for (int i = 0; i < COUNT; ++i)
        p.computed[i] = (i % 8 == 0 ? 1.0 : -1.0) * p.expected[i];
    expect_failure(&p, MSDA_DTYPE_F32, "opposite");
    memset(p.computed, 0, sizeof p.computed);
    expect_failure(&p, MSDA_DTYPE_F32, "all zero");
}

static void tells_swapped_and_unrelated(void **state)
{
    (void)state;
    pair p;
    make_pair(&p);
    for (int i = 0; i < COUNT; ++i)
        p.computed[i] = p.expected[i ^ 1];
    expect_failure(&p, MSDA_DTYPE_F32, "x and y swapped");
    for (int i = 0; i < COUNT; ++i)
        p.computed[i] = p.expected[(37 * i + 11) % COUNT];
    expect_failure(&p, MSDA_DTYPE_F32, "unrelated");
    p.reference.shape[0] = 2, p.reference.shape[1] = ROWS;
    for (int i = 0; i < COUNT; ++i)
        p.computed[i] = p.expected[i ^ 1];
    expect_failure(&p, MSDA_DTYPE_F32, "unrelated");
}

static void tells_few_bad_elements(void **state)
{
    (void)state;
    pair p;
    make_pair(&p);
    p.computed[21] += 0.5;
    p.computed[40] -= 0.5;
    expect_failure(&p, MSDA_DTYPE_F32, "borders? 2 of 200, first [10, 1]");
}

static void tells_noise(void **state)
{
    (void)state;
    pair p;
    make_pair(&p);
    for (int i = 0; i < COUNT; ++i)
        p.computed[i] += (i % 2 ? 1e-3 : -1e-3);
    expect_failure(&p, MSDA_DTYPE_F32, "small errors everywhere");
    for (int i = 0; i < COUNT; ++i)
        p.computed[i] = p.expected[i] + 0.7 * p.expected[(37 * i + 11) % COUNT];
    expect_failure(&p, MSDA_DTYPE_F32, "partly alike");
}

static void nonfinite_numbers_match_in_place(void **state)
{
    (void)state;
    pair p;
    make_pair(&p);
    p.expected[5] = p.computed[5] = NAN;
    p.expected[6] = p.computed[6] = -INFINITY;
    assert_true(msda_verdict_of(p.computed, &p.reference, MSDA_DTYPE_F32, tolerance).passed);
    p.computed[6] = INFINITY;
    expect_failure(&p, MSDA_DTYPE_F32, "1 of 200 elements, first [3, 0]");
    p.computed[6] = -INFINITY;
    p.computed[5] = 0.0;
    expect_failure(&p, MSDA_DTYPE_F32, "1 of 200 elements, first [2, 1]");
    p.computed[5] = NAN;
    p.computed[9] = NAN;
    expect_failure(&p, MSDA_DTYPE_F32, "first [4, 1]");
}

static void overflow_in_storage_is_expected(void **state)
{
    (void)state;
    pair p;
    make_pair(&p);
    p.expected[5] = 70000.0;
    p.computed[5] = INFINITY;
    assert_true(msda_verdict_of(p.computed, &p.reference, MSDA_DTYPE_F16, tolerance).passed);
    expect_failure(&p, MSDA_DTYPE_F32, "NaN or infinity");
}

static void huge_numbers_do_not_overflow_the_norm(void **state)
{
    (void)state;
    pair p;
    make_pair(&p);
    for (int i = 0; i < COUNT; ++i)
        p.computed[i] = p.expected[i] *= 1e250;
    assert_true(msda_verdict_of(p.computed, &p.reference, MSDA_DTYPE_F64, tolerance).passed);
    p.computed[0] *= 1.001;
    assert_false(msda_verdict_of(p.computed, &p.reference, MSDA_DTYPE_F64, tolerance).passed);
}

/* The operator's table, on levels of at most 50 pixels. */
static void tolerances_follow_the_table(void **state)
{
    (void)state;
    static const struct {
        msda_dtype dtype;
        msda_accumulate accumulate;
        msda_tensor tensor;
        double rtol;
    } table[] = {
        {MSDA_DTYPE_F64, MSDA_ACCUMULATE_NATIVE, MSDA_TENSOR_GRAD_VALUE, 1e-13},
        {MSDA_DTYPE_F32, MSDA_ACCUMULATE_NATIVE, MSDA_TENSOR_GRAD_VALUE, 4e-6},
        {MSDA_DTYPE_F32, MSDA_ACCUMULATE_FP32, MSDA_TENSOR_OUTPUT, 4e-6},
        {MSDA_DTYPE_F16, MSDA_ACCUMULATE_FP32, MSDA_TENSOR_GRAD_VALUE, 1e-3},
        {MSDA_DTYPE_F16, MSDA_ACCUMULATE_NATIVE, MSDA_TENSOR_GRAD_VALUE, 2e-2},
        {MSDA_DTYPE_F16, MSDA_ACCUMULATE_NATIVE, MSDA_TENSOR_GRAD_LOCATIONS, 1e-3},
        {MSDA_DTYPE_BF16, MSDA_ACCUMULATE_DETERMINISTIC, MSDA_TENSOR_GRAD_VALUE, 8e-3},
        {MSDA_DTYPE_BF16, MSDA_ACCUMULATE_NATIVE, MSDA_TENSOR_GRAD_VALUE, 1e-1},
    };
    msda_folder folder = {0};
    msda_problem_init(&folder.problem);
    assert_int_equal(msda_problem_add_level(&folder.problem, 50, 7, 1), MSDA_STATUS_SUCCESS);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; ++i) {
        folder.problem.value_dtype = table[i].dtype;
        folder.problem.point_dtype = table[i].dtype == MSDA_DTYPE_F64 ? MSDA_DTYPE_F64 : MSDA_DTYPE_F32;
        folder.problem.accumulate = table[i].accumulate;
        const msda_tolerance by_table = msda_tolerance_of(&folder, table[i].tensor, -1.0);
        assert_true(fabs(by_table.rtol / table[i].rtol - 1.0) < 1e-12);
        assert_true(by_table.element_rtol == 8.0 * by_table.rtol);
        const msda_tolerance own = msda_tolerance_of(&folder, table[i].tensor, 0.25);
        assert_true(own.rtol == 0.25 && own.floor == 0.0 && isinf(own.element_rtol));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_tensors_pass),
        cmocka_unit_test(the_norm_decides),
        cmocka_unit_test(one_element_does_not_hide),
        cmocka_unit_test(the_floor_is_for_zeros),
        cmocka_unit_test(tells_scale_and_sign),
        cmocka_unit_test(tells_swapped_and_unrelated),
        cmocka_unit_test(tells_few_bad_elements),
        cmocka_unit_test(tells_noise),
        cmocka_unit_test(nonfinite_numbers_match_in_place),
        cmocka_unit_test(overflow_in_storage_is_expected),
        cmocka_unit_test(huge_numbers_do_not_overflow_the_norm),
        cmocka_unit_test(tolerances_follow_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
