/* SPDX-License-Identifier: Apache-2.0 */
#include "storage_types.h"

#include <string.h>

static const struct {
    const char *name;
    int64_t size;
    double roundoff;
} types[] = {
    [MSDA_DTYPE_F64] = {"f64", 8, 0x1p-53},
    [MSDA_DTYPE_F32] = {"f32", 4, 0x1p-24},
    [MSDA_DTYPE_F16] = {"f16", 2, 0x1p-11},
    [MSDA_DTYPE_BF16] = {"bf16", 2, 0x1p-8},
};

int64_t dtype_size(msda_dtype dtype)
{
    return types[dtype].size;
}

const char *dtype_name(msda_dtype dtype)
{
    return types[dtype].name;
}

double dtype_roundoff(msda_dtype dtype)
{
    return types[dtype].roundoff;
}

static uint32_t bits_of(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* Finite numbers only: nothing else is drawn. */
static uint16_t to_f16(float number)
{
    const uint32_t sign = bits_of(number) >> 16 & 0x8000, magnitude = bits_of(number) & 0x7FFFFFFF;
    if (magnitude >= bits_of(65520.0f))
        return (uint16_t)(sign | 0x7C00);
    if (magnitude < bits_of(0x1p-14f)) /* adding 0.5 leaves units of 2^-24, rounded, in the low bits */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    const uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | (magnitude - (112u << 23) + 0xFFF + odd) >> 13);
}

static uint16_t to_bf16(float number)
{
    const uint32_t bits = bits_of(number);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static float from_f16(uint16_t bits)
{
    const float magnitude = float_of((uint32_t)(bits & 0x7FFF) << 13) * 0x1p112f;
    const float special =
        (bits & 0x7C00) == 0x7C00 ? float_of(0x7F800000u | (uint32_t)(bits & 0x3FF) << 13) : magnitude;
    return bits & 0x8000 ? -special : special;
}

void dtype_store(msda_dtype dtype, const float *from, int64_t count, void *to)
{
    switch (dtype) {
    case MSDA_DTYPE_F32:
        memcpy(to, from, (size_t)count * sizeof *from);
        break;
    case MSDA_DTYPE_F16:
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < count; ++i)
            ((uint16_t *)to)[i] = to_f16(from[i]);
        break;
    case MSDA_DTYPE_BF16:
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < count; ++i)
            ((uint16_t *)to)[i] = to_bf16(from[i]);
        break;
    default:
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < count; ++i)
            ((double *)to)[i] = from[i];
    }
}

void dtype_load(msda_dtype dtype, const void *from, int64_t first, int64_t count, double *to)
{
    switch (dtype) {
    case MSDA_DTYPE_F32:
        for (int64_t i = 0; i < count; ++i)
            to[i] = ((const float *)from)[first + i];
        break;
    case MSDA_DTYPE_F16:
        for (int64_t i = 0; i < count; ++i)
            to[i] = from_f16(((const uint16_t *)from)[first + i]);
        break;
    case MSDA_DTYPE_BF16:
        for (int64_t i = 0; i < count; ++i)
            to[i] = float_of((uint32_t)((const uint16_t *)from)[first + i] << 16);
        break;
    default:
        memcpy(to, (const double *)from + first, (size_t)count * sizeof *to);
    }
}
