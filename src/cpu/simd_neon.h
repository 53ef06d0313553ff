/* SPDX-License-Identifier: Apache-2.0 */
/* The vector verbs over 4 lanes of NEON (AArch64). simd_scalar.h says what each means. */
#ifndef MSDA_SIMD_NEON_H
#define MSDA_SIMD_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define LANES         4
#define BLOCK_VECTORS 8

typedef float32x4_t vec;
typedef uint32x4_t mask; /* all bits of a lane set: true */
typedef int32x4_t row_vec;
typedef int32_t row_number;

/* ---- memory --------------------------------------------------------------------------------------------------- */

static inline vec load_f32(const float *from, int count)
{
    if (count == LANES)
        return vld1q_f32(from);
    float whole[LANES] = {0};
    memcpy(whole, from, (size_t)count * sizeof *from);
    return vld1q_f32(whole);
}

static inline uint16x4_t load_16_bits(const uint16_t *from, int count)
{
    if (count == LANES)
        return vld1_u16(from);
    uint16_t whole[LANES] = {0};
    memcpy(whole, from, (size_t)count * sizeof *from);
    return vld1_u16(whole);
}

static inline vec load_f16(const uint16_t *from, int count)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(load_16_bits(from, count)));
}

static inline vec load_bf16(const uint16_t *from, int count)
{
    return vreinterpretq_f32_u32(vshll_n_u16(load_16_bits(from, count), 16));
}

static inline void store_f32(float *to, vec v, int count)
{
    if (count == LANES) {
        vst1q_f32(to, v);
        return;
    }
    float whole[LANES];
    vst1q_f32(whole, v);
    memcpy(to, whole, (size_t)count * sizeof *to);
}

static inline void store_16_bits(uint16_t *to, uint16x4_t bits, int count)
{
    if (count == LANES) {
        vst1_u16(to, bits);
        return;
    }
    uint16_t whole[LANES];
    vst1_u16(whole, bits);
    memcpy(to, whole, (size_t)count * sizeof *to);
}

static inline void store_f16(uint16_t *to, vec v, int count)
{
    store_16_bits(to, vreinterpret_u16_f16(vcvt_f16_f32(v)), count);
}

static inline void store_bf16(uint16_t *to, vec v, int count)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    store_16_bits(to, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16), count);
}

static inline row_vec load_rows(const row_number *from)
{
    return vld1q_s32(from);
}

static inline void store_rows(row_number *to, row_vec i)
{
    vst1q_s32(to, i);
}

static inline void split_pairs(const float *from, vec *x, vec *y)
{
    const float32x4x2_t pairs = vld2q_f32(from);
    *x = pairs.val[0];
    *y = pairs.val[1];
}

static inline void join_pairs(float *to, vec x, vec y)
{
    const float32x4x2_t pairs = {{x, y}};
    vst2q_f32(to, pairs);
}

static inline int lanes_in(mask m)
{
    return (int)vaddvq_u32(vshrq_n_u32(m, 31));
}

static inline int append(row_number *rows, float *weights, int count, mask m, row_vec row, vec weight)
{
    vst1q_s32(rows + count, row);
    vst1q_f32(weights + count, weight);
    if (vminvq_u32(m) != 0)
        return count + LANES;
    uint32_t holds[LANES];
    vst1q_u32(holds, m);
    int kept = count;
    for (int lane = 0; lane < LANES; ++lane) { /* moves lanes down in place, lowest first */
        rows[kept] = rows[count + lane];
        weights[kept] = weights[count + lane];
        kept += holds[lane] != 0;
    }
    return kept;
}

static inline vec expand(const float *packed, mask m)
{
    if (vminvq_u32(m) != 0)
        return vld1q_f32(packed);
    uint32_t holds[LANES];
    vst1q_u32(holds, m);
    float whole[LANES];
    for (int lane = 0; lane < LANES; ++lane)
        whole[lane] = holds[lane] != 0 ? *packed++ : 0.0f;
    return vld1q_f32(whole);
}

/* ---- arithmetic ----------------------------------------------------------------------------------------------- */

static inline vec set1(float x)
{
    return vdupq_n_f32(x);
}

static inline vec add(vec a, vec b)
{
    return vaddq_f32(a, b);
}

static inline vec subtract(vec a, vec b)
{
    return vsubq_f32(a, b);
}

static inline vec multiply(vec a, vec b)
{
    return vmulq_f32(a, b);
}

static inline vec divide(vec a, vec b)
{
    return vdivq_f32(a, b);
}

static inline vec multiply_add(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}

static inline vec round_down(vec v)
{
    return vrndmq_f32(v);
}

static inline vec power_of_two(vec n)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}

static inline float sum(vec v)
{
    return vaddvq_f32(v);
}

static inline float largest(vec v)
{
    return vmaxvq_f32(v);
}

static inline vec maximum(vec a, vec b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline void store_sums(float to[4], vec a, vec b, vec c, vec d)
{
    vst1q_f32(to, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

/* ---- row numbers ---------------------------------------------------------------------------------------------- */

static inline row_vec to_rows(vec v)
{
    return vcvtq_s32_f32(v);
}

static inline row_vec set1_rows(row_number i)
{
    return vdupq_n_s32(i);
}

static inline row_vec add_rows(row_vec a, row_vec b)
{
    return vaddq_s32(a, b);
}

static inline row_vec subtract_rows(row_vec a, row_vec b)
{
    return vsubq_s32(a, b);
}

static inline row_vec multiply_rows(row_vec a, row_vec b)
{
    return vmulq_s32(a, b);
}

/* ---- truths --------------------------------------------------------------------------------------------------- */

static inline mask less(vec a, vec b)
{
    return vcltq_f32(a, b);
}

static inline mask less_equal(vec a, vec b)
{
    return vcleq_f32(a, b);
}

static inline mask within(row_vec i, row_vec limit)
{
    return vcltq_u32(vreinterpretq_u32_s32(i), vreinterpretq_u32_s32(limit));
}

static inline mask both(mask a, mask b)
{
    return vandq_u32(a, b);
}

static inline vec select(mask m, vec yes, vec no)
{
    return vbslq_f32(m, yes, no);
}

static inline row_vec select_rows(mask m, row_vec yes, row_vec no)
{
    return vbslq_s32(m, yes, no);
}

#endif
