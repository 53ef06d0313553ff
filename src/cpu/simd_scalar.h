/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vector verbs in plain C, one lane wide: the definition of what each verb means. simd_avx2.h, simd_avx512.h and
 * simd_neon.h offer the same names over more lanes; kernel.inc is written in these words alone.
 *
 *   vec   LANES numbers in f32        row_vec   LANES row numbers; in memory each is a row_number
 *   mask  LANES truths
 *
 * `count` is how many lanes take part (1..LANES): a load leaves the others 0, a store does not touch them.
 */
#ifndef MSDA_SIMD_SCALAR_H
#define MSDA_SIMD_SCALAR_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LANES         1
#define BLOCK_VECTORS 8 /* accumulators that fit in registers beside everything else */

typedef float vec;
typedef bool mask;
typedef int64_t row_vec; /* the one set whose row numbers have no limit */
typedef int64_t row_number;

/* ---- f16 and bf16 as bits ------------------------------------------------------------------------------------- */

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float widen_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = (uint32_t)(half & 0x7fff) << 13;
    if ((half & 0x7c00) == 0x7c00)
        return float_of(sign | magnitude | 0x7f800000);
    const float two_to_112 = float_of(0x77800000); /* rebiases the exponent; makes subnormals normal */
    return float_of(sign | bits_of(float_of(magnitude) * two_to_112));
}

/* To nearest, ties to even. */
static inline uint16_t narrow_f16(float x)
{
    const uint32_t sign = bits_of(x) >> 16 & 0x8000, magnitude = bits_of(x) & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* 65520: half way to what would be the next number */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* 2^-14: a subnormal, whose unit 2^-24 is that of 0.5f */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

static inline float widen_bf16(uint16_t half)
{
    return float_of((uint32_t)half << 16);
}

/* To nearest, ties to even. */
static inline uint16_t narrow_bf16(float x)
{
    const uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

static inline vec load_f32(const float *from, int count)
{
    (void)count;
    return *from;
}

static inline vec load_f16(const uint16_t *from, int count)
{
    (void)count;
    return widen_f16(*from);
}

static inline vec load_bf16(const uint16_t *from, int count)
{
    (void)count;
    return widen_bf16(*from);
}

static inline void store_f32(float *to, vec v, int count)
{
    (void)count;
    *to = v;
}

static inline void store_f16(uint16_t *to, vec v, int count)
{
    (void)count;
    *to = narrow_f16(v);
}

static inline void store_bf16(uint16_t *to, vec v, int count)
{
    (void)count;
    *to = narrow_bf16(v);
}

static inline row_vec load_rows(const row_number *from)
{
    return *from;
}

static inline void store_rows(row_number *to, row_vec i)
{
    *to = i;
}

/* x and y of LANES pairs. */
static inline void split_pairs(const float *from, vec *x, vec *y)
{
    *x = from[0];
    *y = from[1];
}

static inline void join_pairs(float *to, vec x, vec y)
{
    to[0] = x;
    to[1] = y;
}

/*
 * Appends the lanes that the mask holds to two lists that have `count` elements; returns their new length. May write
 * LANES elements to each.
 */
static inline int append(row_number *rows, float *weights, int count, mask m, row_vec row, vec weight)
{
    rows[count] = row;
    weights[count] = weight;
    return count + m;
}

/* The opposite: the lanes of the mask come from `packed`, the others are 0. May read LANES elements. */
static inline vec expand(const float *packed, mask m)
{
    return m ? *packed : 0.0f;
}

/* ---- arithmetic ----------------------------------------------------------------------------------------------- */

static inline vec set1(float x)
{
    return x;
}

static inline vec add(vec a, vec b)
{
    return a + b;
}

static inline vec subtract(vec a, vec b)
{
    return a - b;
}

static inline vec multiply(vec a, vec b)
{
    return a * b;
}

static inline vec divide(vec a, vec b)
{
    return a / b;
}

/* a * b + c: rounded once where the instruction set can, and only where this verb is used. */
static inline vec multiply_add(vec a, vec b, vec c)
{
    return a * b + c;
}

/* For numbers within the range of int32. */
static inline vec round_down(vec v)
{
    const float truncated = (float)(int32_t)v;
    return truncated - (float)(truncated > v);
}

/* 2^n for a whole n in -126..127; NaN gives anything. */
static inline vec power_of_two(vec n)
{
    return exp2f(n);
}

static inline float sum(vec v)
{
    return v;
}

static inline float largest(vec v)
{
    return v;
}

/* b where a is NaN. */
static inline vec maximum(vec a, vec b)
{
    return a > b ? a : b;
}

/* to[i] = the sum of the lanes of the i-th vector. */
static inline void store_sums(float to[4], vec a, vec b, vec c, vec d)
{
    to[0] = a;
    to[1] = b;
    to[2] = c;
    to[3] = d;
}

/* ---- row numbers ---------------------------------------------------------------------------------------------- */

/* For whole numbers within the range of int32. */
static inline row_vec to_rows(vec v)
{
    return (row_vec)v;
}

static inline row_vec set1_rows(row_number i)
{
    return i;
}

static inline row_vec add_rows(row_vec a, row_vec b)
{
    return a + b;
}

static inline row_vec subtract_rows(row_vec a, row_vec b)
{
    return a - b;
}

static inline row_vec multiply_rows(row_vec a, row_vec b)
{
    return a * b;
}

/* ---- truths --------------------------------------------------------------------------------------------------- */

static inline mask less(vec a, vec b)
{
    return a < b;
}

static inline mask less_equal(vec a, vec b)
{
    return a <= b;
}

/* 0 <= i < limit */
static inline mask within(row_vec i, row_vec limit)
{
    return i >= 0 && i < limit;
}

static inline mask both(mask a, mask b)
{
    return a && b;
}

static inline int lanes_in(mask m)
{
    return m;
}

static inline vec select(mask m, vec yes, vec no)
{
    return m ? yes : no;
}

static inline row_vec select_rows(mask m, row_vec yes, row_vec no)
{
    return m ? yes : no;
}

#endif
