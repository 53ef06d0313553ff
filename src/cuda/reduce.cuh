/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adding to memory that others add to: the widest reduction that the architecture has for the storage type. A vector form
 * covers exactly the Width elements given, aligned to their size; the scalar forms touch one element.
 */
#ifndef MSDA_REDUCE_CUH
#define MSDA_REDUCE_CUH

#include "ptx.cuh"
#include "vec.cuh"

namespace msda
{

/* No native form: exchange the storage bits until nobody came in between. `sum` maps old bits to new ones. */
template <class Bits, class Sum> __device__ __forceinline__ void exchange(Bits *bits, Sum sum)
{
    Bits seen = *bits, expected;
    do {
        expected = seen;
        seen = atomicCAS(bits, expected, sum(expected));
    } while (seen != expected);
}

__device__ __forceinline__ void add_atomically(__nv_bfloat162 *to, __nv_bfloat162 x)
{
#if __CUDA_ARCH__ >= 800
    atomicAdd(to, x);
#else
    exchange(reinterpret_cast<unsigned int *>(to), [x](unsigned int old) {
        union {
            unsigned int bits;
            __nv_bfloat16 of[2];
        } u = {old};
        u.of[0] = narrow<bf16>(widen(u.of[0]) + widen(x.x));
        u.of[1] = narrow<bf16>(widen(u.of[1]) + widen(x.y));
        return u.bits;
    });
#endif
}

/*
 * A single 16-bit element. The hardware adds pairs; exchanging just these 16 bits cannot touch a neighbour or leave the
 * buffer.
 */
template <class T> __device__ __forceinline__ void add_16_bit(T *to, float x)
{
    exchange(reinterpret_cast<unsigned short *>(to), [x](unsigned short old) {
        union U {
            unsigned short bits;
            T of;
            __device__ U()
            {
            }
        } u;
        u.bits = old;
        u.of = narrow<T>(widen(u.of) + widen(narrow<T>(x)));
        return u.bits;
    });
}
__device__ __forceinline__ void add_atomically(f16 *to, float x)
{
    add_16_bit(to, x);
}
__device__ __forceinline__ void add_atomically(bf16 *to, float x)
{
    add_16_bit(to, x);
}

__device__ __forceinline__ __half2 pair(float x, float y, f16)
{
    return __floats2half2_rn(x, y);
}
__device__ __forceinline__ __nv_bfloat162 pair(float x, float y, bf16)
{
    return __floats2bfloat162_rn(x, y);
}

/* Width elements of `x` added to `to`. */
template <int Width, class Sum> __device__ __forceinline__ void reduce(Sum *to, const real_of<Sum> (&x)[Width])
{
    if constexpr (std::is_same_v<Sum, float> && Width % 4 == 0) {
#pragma unroll
        for (int i = 0; i < Width; i += 4) {
#if __CUDA_ARCH__ >= 900
            add_vector_atomically(to + i, x + i);
#else
            for (int j = 0; j < 4; ++j)
                add_atomically(to + i + j, x[i + j]);
#endif
        }
    } else if constexpr (sizeof(Sum) == 2 && Width == 8) {
        union {
            decltype(pair(0.0f, 0.0f, Sum())) pairs[4];
            unsigned int bits[4];
        } u = {{pair(x[0], x[1], Sum()), pair(x[2], x[3], Sum()), pair(x[4], x[5], Sum()), pair(x[6], x[7], Sum())}};
#if __CUDA_ARCH__ >= 900
        add_vector_atomically(to, u.bits);
#else
        for (int i = 0; i < 4; ++i)
            add_atomically(reinterpret_cast<decltype(pair(0.0f, 0.0f, Sum())) *>(to) + i, u.pairs[i]);
#endif
    } else {
#pragma unroll
        for (int i = 0; i < Width; ++i)
            add_atomically(to + i, x[i]);
    }
}

/* The same where `wanted`: one predicated instruction where there is one, rather than a branch. */
template <int Width, class Sum>
__device__ __forceinline__ void reduce_if(bool wanted, Sum *to, const real_of<Sum> (&x)[Width])
{
#if __CUDA_ARCH__ >= 900
    if constexpr (std::is_same_v<Sum, float> && Width == 4) {
        add_vector_atomically(to, x, wanted);
        return;
    }
#endif
    if (wanted)
        reduce<Width>(to, x);
}

} // namespace msda

#endif
