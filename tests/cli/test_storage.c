/* SPDX-License-Identifier: Apache-2.0 */
/* The tool's own conversions: every 16-bit number there is, and rounding where it is easily wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "storage.h"

#include <math.h>
#include <string.h>

static void every_16_bit_number_survives(void **state)
{
    (void)state;
    static const msda_dtype dtypes[] = {MSDA_DTYPE_F16, MSDA_DTYPE_BF16};
    for (int d = 0; d < 2; ++d)
        for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
            const uint16_t stored = (uint16_t)bits;
            uint16_t again;
            double value;
            msda_storage_decode(dtypes[d], &stored, 1, &value);
            msda_storage_encode(dtypes[d], &value, 1, &again);
            if (isnan(value)) {
                msda_storage_decode(dtypes[d], &again, 1, &value);
                assert_true(isnan(value));
            } else {
                assert_int_equal(stored, again);
                assert_true(msda_storage_round(dtypes[d], value) == value);
            }
        }
}

/* Between two neighbours: below the middle goes down, above goes up, the middle goes to the even one. */
static void rounds_to_nearest_even(void **state)
{
    (void)state;
    static const msda_dtype dtypes[] = {MSDA_DTYPE_F16, MSDA_DTYPE_BF16};
    static const uint16_t infinity[] = {0x7C00, 0x7F80};
    for (int d = 0; d < 2; ++d)
        for (uint16_t bits = 0; bits + 1 < infinity[d]; ++bits) {
            const uint16_t pair[2] = {bits, (uint16_t)(bits + 1)};
            double values[2];
            msda_storage_decode(dtypes[d], pair, 2, values);
            const double middle = 0.5 * (values[0] + values[1]), nudge = (values[1] - values[0]) * 0x1p-20;
            assert_true(msda_storage_round(dtypes[d], middle - nudge) == values[0]);
            assert_true(msda_storage_round(dtypes[d], middle + nudge) == values[1]);
            assert_true(msda_storage_round(dtypes[d], middle) == values[bits & 1]);
            assert_true(msda_storage_round(dtypes[d], -middle) == -values[bits & 1]);
        }
}

static void rounds_once(void **state)
{
    (void)state;
    /* Rounded to f32 first, this would land on the middle between two f16 numbers and then go down. */
    assert_true(msda_storage_round(MSDA_DTYPE_F16, 1.0 + 0x1p-11 + 0x1p-40) == 1.0 + 0x1p-10);
    assert_true(msda_storage_round(MSDA_DTYPE_BF16, 1.0 + 0x1p-8 + 0x1p-40) == 1.0 + 0x1p-7);
}

static void overflows_to_infinity(void **state)
{
    (void)state;
    assert_true(msda_storage_round(MSDA_DTYPE_F16, 65519.99) == 65504.0);
    assert_true(msda_storage_round(MSDA_DTYPE_F16, 65520.0) == INFINITY);
    assert_true(msda_storage_round(MSDA_DTYPE_F16, -1e300) == -INFINITY);
    assert_true(msda_storage_round(MSDA_DTYPE_BF16, 3.4e38) == INFINITY);
    assert_true(msda_storage_round(MSDA_DTYPE_F32, 1e39) == INFINITY);
    assert_true(msda_storage_round(MSDA_DTYPE_F64, 1e300) == 1e300);
    assert_true(msda_storage_round(MSDA_DTYPE_F16, 0x1p-25) == 0.0);
    assert_true(msda_storage_round(MSDA_DTYPE_F16, 0x1.8p-25) == 0x1p-24);
    assert_true(isnan(msda_storage_round(MSDA_DTYPE_BF16, NAN)));
}

static void wide_types_keep_their_numbers(void **state)
{
    (void)state;
    const double values[4] = {1.0 / 3.0, -0.0, INFINITY, 1e-300};
    double wide[4], back[4];
    float narrow[4];
    msda_storage_encode(MSDA_DTYPE_F64, values, 4, wide);
    msda_storage_decode(MSDA_DTYPE_F64, wide, 4, back);
    assert_memory_equal(values, back, sizeof values);
    msda_storage_encode(MSDA_DTYPE_F32, values, 4, narrow);
    msda_storage_decode(MSDA_DTYPE_F32, narrow, 4, back);
    for (int i = 0; i < 4; ++i)
        assert_true(back[i] == (double)(float)values[i]);
}

static void knows_its_types(void **state)
{
    (void)state;
    assert_string_equal(msda_storage_name(MSDA_DTYPE_BF16), "bf16");
    assert_int_equal(msda_storage_size(MSDA_DTYPE_F64), 8);
    assert_true(msda_storage_roundoff(MSDA_DTYPE_F32) == 0x1p-24);
    assert_true(msda_storage_smallest(MSDA_DTYPE_F16) == 0x1p-24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_number_survives),
        cmocka_unit_test(rounds_to_nearest_even),
        cmocka_unit_test(rounds_once),
        cmocka_unit_test(overflows_to_infinity),
        cmocka_unit_test(wide_types_keep_their_numbers),
        cmocka_unit_test(knows_its_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
