/* SPDX-License-Identifier: Apache-2.0 */
/* The vector verbs over 8 lanes of AVX2 with FMA and F16C. simd_scalar.h says what each means. */
#ifndef MSDA_SIMD_AVX2_H
#define MSDA_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES         8
#define BLOCK_VECTORS 4

typedef __m256 vec;
typedef __m256 mask; /* all bits of a lane set: true */
typedef __m256i row_vec;
typedef int32_t row_number;

/* ---- memory --------------------------------------------------------------------------------------------------- */

static inline __m256i first_lanes(int count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vec load_f32(const float *from, int count)
{
    return count == LANES ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, first_lanes(count));
}

static inline __m128i load_16_bits(const uint16_t *from, int count)
{
    if (count == LANES)
        return _mm_loadu_si128((const __m128i *)from);
    uint16_t whole[LANES] = {0};
    memcpy(whole, from, (size_t)count * sizeof *from);
    return _mm_loadu_si128((const __m128i *)whole);
}

static inline vec load_f16(const uint16_t *from, int count)
{
    return _mm256_cvtph_ps(load_16_bits(from, count));
}

static inline vec load_bf16(const uint16_t *from, int count)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16_bits(from, count)), 16));
}

static inline void store_f32(float *to, vec v, int count)
{
    if (count == LANES)
        _mm256_storeu_ps(to, v);
    else
        _mm256_maskstore_ps(to, first_lanes(count), v);
}

static inline void store_16_bits(uint16_t *to, __m128i bits, int count)
{
    if (count == LANES) {
        _mm_storeu_si128((__m128i *)to, bits);
        return;
    }
    uint16_t whole[LANES];
    _mm_storeu_si128((__m128i *)whole, bits);
    memcpy(to, whole, (size_t)count * sizeof *to);
}

static inline void store_f16(uint16_t *to, vec v, int count)
{
    store_16_bits(to, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT), count);
}

static inline void store_bf16(uint16_t *to, vec v, int count)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 result =
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i upper = _mm256_srli_epi32(_mm256_castps_si256(result), 16);
    store_16_bits(to, _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1)), count);
}

static inline row_vec load_rows(const row_number *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}

static inline void store_rows(row_number *to, row_vec i)
{
    _mm256_storeu_si256((__m256i *)to, i);
}

static inline void split_pairs(const float *from, vec *x, vec *y)
{
    const vec low = _mm256_loadu_ps(from), high = _mm256_loadu_ps(from + LANES);
    const vec first = _mm256_permute2f128_ps(low, high, 0x20), second = _mm256_permute2f128_ps(low, high, 0x31);
    *x = _mm256_shuffle_ps(first, second, 0x88);
    *y = _mm256_shuffle_ps(first, second, 0xdd);
}

static inline void join_pairs(float *to, vec x, vec y)
{
    const vec first = _mm256_unpacklo_ps(x, y), second = _mm256_unpackhi_ps(x, y);
    _mm256_storeu_ps(to, _mm256_permute2f128_ps(first, second, 0x20));
    _mm256_storeu_ps(to + LANES, _mm256_permute2f128_ps(first, second, 0x31));
}

static inline int lanes_in(mask m)
{
    return __builtin_popcount((unsigned)_mm256_movemask_ps(m));
}

static inline int append(row_number *rows, float *weights, int count, mask m, row_vec row, vec weight)
{
    const unsigned lanes = (unsigned)_mm256_movemask_ps(m);
    _mm256_storeu_si256((__m256i *)(rows + count), row);
    _mm256_storeu_ps(weights + count, weight);
    if (lanes == 0xff)
        return count + LANES;
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) { /* moves lanes down in place, lowest first */
        const int lane = __builtin_ctz(rest), kept = __builtin_popcount(lanes & ((1u << lane) - 1));
        rows[count + kept] = rows[count + lane];
        weights[count + kept] = weights[count + lane];
    }
    return count + __builtin_popcount(lanes);
}

static inline vec expand(const float *packed, mask m)
{
    const unsigned lanes = (unsigned)_mm256_movemask_ps(m);
    if (lanes == 0xff)
        return _mm256_loadu_ps(packed);
    float whole[LANES] = {0};
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1)
        whole[__builtin_ctz(rest)] = *packed++;
    return _mm256_loadu_ps(whole);
}

/* ---- arithmetic ----------------------------------------------------------------------------------------------- */

static inline vec set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline vec add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

static inline vec subtract(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}

static inline vec multiply(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

static inline vec divide(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}

static inline vec multiply_add(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec round_down(vec v)
{
    return _mm256_floor_ps(v);
}

static inline vec power_of_two(vec n)
{
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

static inline float sum(vec v)
{
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

static inline float largest(vec v)
{
    const __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 quarter = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}

static inline vec maximum(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

/* Each step adds halves of lanes, so that four vectors become one whose every fourth lane belongs to one of them. */
static inline void store_sums(float to[4], vec a, vec b, vec c, vec d)
{
    const vec ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const vec cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const vec abcd = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
}

/* ---- row numbers ---------------------------------------------------------------------------------------------- */

static inline row_vec to_rows(vec v)
{
    return _mm256_cvttps_epi32(v);
}

static inline row_vec set1_rows(row_number i)
{
    return _mm256_set1_epi32(i);
}

static inline row_vec add_rows(row_vec a, row_vec b)
{
    return _mm256_add_epi32(a, b);
}

static inline row_vec subtract_rows(row_vec a, row_vec b)
{
    return _mm256_sub_epi32(a, b);
}

static inline row_vec multiply_rows(row_vec a, row_vec b)
{
    return _mm256_mullo_epi32(a, b);
}

/* ---- truths --------------------------------------------------------------------------------------------------- */

static inline mask less(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

static inline mask less_equal(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_LE_OQ);
}

static inline mask within(row_vec i, row_vec limit)
{
    const __m256i negative = _mm256_srai_epi32(i, 31);
    return _mm256_castsi256_ps(_mm256_andnot_si256(negative, _mm256_cmpgt_epi32(limit, i)));
}

static inline mask both(mask a, mask b)
{
    return _mm256_and_ps(a, b);
}

static inline vec select(mask m, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, m);
}

static inline row_vec select_rows(mask m, row_vec yes, row_vec no)
{
    return _mm256_blendv_epi8(no, yes, _mm256_castps_si256(m));
}

#endif
