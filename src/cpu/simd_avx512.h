/* SPDX-License-Identifier: Apache-2.0 */
/* The vector verbs over 16 lanes of AVX-512 (F, BW, DQ, VL). simd_scalar.h says what each means. */
#ifndef MSDA_SIMD_AVX512_H
#define MSDA_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define LANES         16
#define BLOCK_VECTORS 4

typedef __m512 vec;
typedef __mmask16 mask;
typedef __m512i row_vec;
typedef int32_t row_number;

/* ---- memory --------------------------------------------------------------------------------------------------- */

static inline mask first_lanes(int count)
{
    return (mask)((1u << count) - 1);
}

static inline vec load_f32(const float *from, int count)
{
    return count == LANES ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(first_lanes(count), from);
}

static inline __m256i load_16_bits(const uint16_t *from, int count)
{
    return count == LANES ? _mm256_loadu_si256((const __m256i *)from)
                          : _mm256_maskz_loadu_epi16(first_lanes(count), from);
}

static inline vec load_f16(const uint16_t *from, int count)
{
    return _mm512_cvtph_ps(load_16_bits(from, count));
}

static inline vec load_bf16(const uint16_t *from, int count)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_bits(from, count)), 16));
}

static inline void store_f32(float *to, vec v, int count)
{
    if (count == LANES)
        _mm512_storeu_ps(to, v);
    else
        _mm512_mask_storeu_ps(to, first_lanes(count), v);
}

static inline void store_16_bits(uint16_t *to, __m256i bits, int count)
{
    if (count == LANES)
        _mm256_storeu_si256((__m256i *)to, bits);
    else
        _mm256_mask_storeu_epi16(to, first_lanes(count), bits);
}

static inline void store_f16(uint16_t *to, vec v, int count)
{
    store_16_bits(to, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT), count);
}

static inline void store_bf16(uint16_t *to, vec v, int count)
{
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i result = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), rounded, quiet);
    store_16_bits(to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16)), count);
}

static inline row_vec load_rows(const row_number *from)
{
    return _mm512_loadu_si512(from);
}

static inline void store_rows(row_number *to, row_vec i)
{
    _mm512_storeu_si512(to, i);
}

static inline void split_pairs(const float *from, vec *x, vec *y)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const vec low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + LANES);
    *x = _mm512_permutex2var_ps(low, even, high);
    *y = _mm512_permutex2var_ps(low, odd, high);
}

static inline void join_pairs(float *to, vec x, vec y)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    _mm512_storeu_ps(to, _mm512_permutex2var_ps(x, low, y));
    _mm512_storeu_ps(to + LANES, _mm512_permutex2var_ps(x, high, y));
}

static inline int lanes_in(mask m)
{
    return __builtin_popcount(m);
}

static inline int append(row_number *rows, float *weights, int count, mask m, row_vec row, vec weight)
{
    _mm512_storeu_si512(rows + count, _mm512_maskz_compress_epi32(m, row));
    _mm512_storeu_ps(weights + count, _mm512_maskz_compress_ps(m, weight));
    return count + lanes_in(m);
}

static inline vec expand(const float *packed, mask m)
{
    return _mm512_maskz_expand_ps(m, _mm512_loadu_ps(packed));
}

/* ---- arithmetic ----------------------------------------------------------------------------------------------- */

static inline vec set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vec add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

static inline vec subtract(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

static inline vec multiply(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

static inline vec divide(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}

static inline vec multiply_add(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec round_down(vec v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

static inline vec power_of_two(vec n)
{
    return _mm512_scalef_ps(_mm512_set1_ps(1.0f), n);
}

static inline float sum(vec v)
{
    return _mm512_reduce_add_ps(v);
}

static inline float largest(vec v)
{
    return _mm512_reduce_max_ps(v);
}

static inline vec maximum(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

/* Each step adds halves of lanes, so that four vectors become one whose every fourth lane belongs to one of them. */
static inline void store_sums(float to[4], vec a, vec b, vec c, vec d)
{
    const vec ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const vec cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const vec abcd = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

/* ---- row numbers ---------------------------------------------------------------------------------------------- */

static inline row_vec to_rows(vec v)
{
    return _mm512_cvttps_epi32(v);
}

static inline row_vec set1_rows(row_number i)
{
    return _mm512_set1_epi32(i);
}

static inline row_vec add_rows(row_vec a, row_vec b)
{
    return _mm512_add_epi32(a, b);
}

static inline row_vec subtract_rows(row_vec a, row_vec b)
{
    return _mm512_sub_epi32(a, b);
}

static inline row_vec multiply_rows(row_vec a, row_vec b)
{
    return _mm512_mullo_epi32(a, b);
}

/* ---- truths --------------------------------------------------------------------------------------------------- */

static inline mask less(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

static inline mask less_equal(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}

static inline mask within(row_vec i, row_vec limit)
{
    return _mm512_cmplt_epu32_mask(i, limit);
}

static inline mask both(mask a, mask b)
{
    return a & b;
}

static inline vec select(mask m, vec yes, vec no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}

static inline row_vec select_rows(mask m, row_vec yes, row_vec no)
{
    return _mm512_mask_blend_epi32(m, no, yes);
}

#endif
