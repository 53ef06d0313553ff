/* SPDX-License-Identifier: Apache-2.0 */
#include "storage.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const struct format {
    const char *name;
    size_t size;
    int digits;       /* of the significand, the hidden one included */
    int min_exponent; /* of the last digit: 2^min_exponent is the smallest number above 0 */
    double largest;
} formats[] = {
    [MSDA_DTYPE_F64] = {"f64", 8, 53, -1074, DBL_MAX},
    [MSDA_DTYPE_F32] = {"f32", 4, 24, -149, FLT_MAX},
    [MSDA_DTYPE_F16] = {"f16", 2, 11, -24, 65504.0},
    [MSDA_DTYPE_BF16] = {"bf16", 2, 8, -133, 0x1.FEp127},
};

size_t msda_storage_size(msda_dtype dtype)
{
    return formats[dtype].size;
}

const char *msda_storage_name(msda_dtype dtype)
{
    return formats[dtype].name;
}

double msda_storage_roundoff(msda_dtype dtype)
{
    return ldexp(1.0, -formats[dtype].digits);
}

double msda_storage_smallest(msda_dtype dtype)
{
    return ldexp(1.0, formats[dtype].min_exponent);
}

double msda_storage_round(msda_dtype dtype, double value)
{
    if (dtype == MSDA_DTYPE_F64 || value == 0.0 || !isfinite(value))
        return value;
    if (dtype == MSDA_DTYPE_F32)
        return (float)value;
    const struct format *const format = &formats[dtype];
    int exponent;
    frexp(value, &exponent);
    const int last_digit =
        exponent - format->digits > format->min_exponent ? exponent - format->digits : format->min_exponent;
    const double rounded = ldexp(nearbyint(ldexp(value, -last_digit)), last_digit);
    return fabs(rounded) > format->largest ? copysign(INFINITY, value) : rounded;
}

static uint16_t to_bf16(double value)
{
    const float rounded = (float)msda_storage_round(MSDA_DTYPE_BF16, value);
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    return (uint16_t)(isnan(value) ? 0x7FC0 : bits >> 16);
}

static double from_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t to_f16(double value)
{
    if (isnan(value))
        return 0x7E00;
    const double magnitude = fabs(msda_storage_round(MSDA_DTYPE_F16, value));
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isinf(magnitude))
        return sign | 0x7C00;
    if (magnitude < 0x1p-14) /* subnormal: units of 2^-24 */
        return sign | (uint16_t)(magnitude * 0x1p24);
    int exponent;
    const double significand = frexp(magnitude, &exponent); /* 0.5 .. 1 */
    return sign | (uint16_t)((exponent + 14) << 10) | (uint16_t)(significand * 2048.0 - 1024.0);
}

double msda_storage_from_f16(uint16_t bits)
{
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const double magnitude = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                             : exponent == 0 ? ldexp(fraction, -24)
                                             : ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

void msda_storage_encode(msda_dtype dtype, const double *from, size_t count, void *to)
{
    for (size_t i = 0; i < count; ++i)
        switch (dtype) {
        case MSDA_DTYPE_F32:
            ((float *)to)[i] = (float)from[i];
            break;
        case MSDA_DTYPE_F16:
            ((uint16_t *)to)[i] = to_f16(from[i]);
            break;
        case MSDA_DTYPE_BF16:
            ((uint16_t *)to)[i] = to_bf16(from[i]);
            break;
        default:
            ((double *)to)[i] = from[i];
        }
}

void msda_storage_decode(msda_dtype dtype, const void *from, size_t count, double *to)
{
    for (size_t i = 0; i < count; ++i)
        switch (dtype) {
        case MSDA_DTYPE_F32:
            to[i] = ((const float *)from)[i];
            break;
        case MSDA_DTYPE_F16:
            to[i] = msda_storage_from_f16(((const uint16_t *)from)[i]);
            break;
        case MSDA_DTYPE_BF16:
            to[i] = from_bf16(((const uint16_t *)from)[i]);
            break;
        default:
            to[i] = ((const double *)from)[i];
        }
}
