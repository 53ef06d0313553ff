/* SPDX-License-Identifier: Apache-2.0 */
#include "element.h"

#include <math.h>

/* A binary format: `bits` of significand, and the frexp() exponent of its smallest normal number. */
typedef struct format {
    const char *name;
    size_t size;
    int bits, smallest_exponent;
} format;

static format format_of(msda_dtype dtype)
{
    switch (dtype) {
    case MSDA_DTYPE_F64:
        return (format){"f64", 8, 53, -1021};
    case MSDA_DTYPE_F32:
        return (format){"f32", 4, 24, -125};
    case MSDA_DTYPE_F16:
        return (format){"f16", 2, 11, -13};
    case MSDA_DTYPE_BF16:
        return (format){"bf16", 2, 8, -125};
    case MSDA_DTYPE_DEFAULT:
        break;
    }
    return (format){"?", 0, 0, 0};
}

size_t element_size(msda_dtype dtype)
{
    return format_of(dtype).size;
}

const char *element_name(msda_dtype dtype)
{
    return format_of(dtype).name;
}

double element_roundoff(msda_dtype dtype)
{
    return ldexp(1.0, -format_of(dtype).bits);
}

double element_underflow(msda_dtype dtype)
{
    const format f = format_of(dtype);
    return ldexp(1.0, f.smallest_exponent - f.bits - 1);
}

static uint32_t bits_of_float(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static float float_of_bits(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static double widen_f16(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double sign = bits >> 15 ? -1.0 : 1.0;
    if (exponent == 31)
        return fraction ? NAN : sign * INFINITY;
    return exponent ? sign * ldexp(1024 + fraction, exponent - 25) : sign * ldexp(fraction, -24);
}

/* The nearest number of the format, unbounded above. */
static double round_to(format f, double number)
{
    if (!isfinite(number) || number == 0.0)
        return number;
    int exponent;
    frexp(number, &exponent);
    if (exponent < f.smallest_exponent)
        exponent = f.smallest_exponent;
    return ldexp(rint(ldexp(number, f.bits - exponent)), exponent - f.bits);
}

static uint16_t narrow_f16(double number)
{
    const double rounded = fabs(round_to(format_of(MSDA_DTYPE_F16), number));
    const uint16_t sign = signbit(number) ? 0x8000 : 0;
    if (isnan(number))
        return sign | 0x7E00;
    if (rounded > 65504.0)
        return sign | 0x7C00;
    if (rounded < ldexp(1.0, -14))
        return sign | (uint16_t)ldexp(rounded, 24);
    int exponent; /* rounded = 1.fraction * 2^(exponent - 1) */
    const double fraction = frexp(rounded, &exponent) * 2.0 - 1.0;
    return sign | (uint16_t)((exponent + 14) << 10 | (int)(fraction * 1024.0));
}

static uint16_t narrow_bf16(double number)
{
    if (isnan(number))
        return 0x7FC0;
    return (uint16_t)(bits_of_float((float)round_to(format_of(MSDA_DTYPE_BF16), number)) >> 16);
}

double element_get(msda_dtype dtype, const void *data, int64_t index)
{
    switch (dtype) {
    case MSDA_DTYPE_F64:
        return ((const double *)data)[index];
    case MSDA_DTYPE_F32:
        return ((const float *)data)[index];
    case MSDA_DTYPE_F16:
        return widen_f16(((const uint16_t *)data)[index]);
    case MSDA_DTYPE_BF16:
        return float_of_bits((uint32_t)((const uint16_t *)data)[index] << 16);
    case MSDA_DTYPE_DEFAULT:
        break;
    }
    return NAN;
}

void element_set(msda_dtype dtype, void *data, int64_t index, double number)
{
    switch (dtype) {
    case MSDA_DTYPE_F64:
        ((double *)data)[index] = number;
        break;
    case MSDA_DTYPE_F32:
        ((float *)data)[index] = (float)number;
        break;
    case MSDA_DTYPE_F16:
        ((uint16_t *)data)[index] = narrow_f16(number);
        break;
    case MSDA_DTYPE_BF16:
        ((uint16_t *)data)[index] = narrow_bf16(number);
        break;
    case MSDA_DTYPE_DEFAULT:
        break;
    }
}
