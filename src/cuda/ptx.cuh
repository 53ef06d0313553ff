/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions that CUDA C++ has no word for, each as a function. All PTX is here. */
#ifndef MSDA_PTX_CUH
#define MSDA_PTX_CUH

#include "types.cuh"

#include <stdint.h>

namespace msda
{

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* 1 / x, to the last bit or the one before, without the branches of a division. */
__device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 2^x, to the last two bits. */
__device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- adding to memory that others add to ----------------------------------------------------------------------- */

/* Said to be global: a pointer of unknown space would be tested for being shared memory. */
__device__ __forceinline__ void add_atomically(double *to, double x)
{
    asm volatile("red.global.add.f64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "d"(x) : "memory");
}
__device__ __forceinline__ void add_atomically(float *to, float x)
{
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "f"(x) : "memory");
}

/* A pair of 16-bit elements on a 4-byte boundary. */
__device__ __forceinline__ void add_atomically(__half2 *to, __half2 x)
{
    union {
        __half2 pair;
        unsigned int bits;
    } u = {x};
    asm volatile("red.global.add.noftz.f16x2 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(u.bits) : "memory");
}

#if __CUDA_ARCH__ >= 900
/* 16 bytes on a 16-byte boundary. */
__device__ __forceinline__ void add_vector_atomically(float *to, const float *x)
{
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "f"(x[0]),
                 "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}
/* The same where `wanted`, without a branch. */
__device__ __forceinline__ void add_vector_atomically(float *to, const float *x, bool wanted)
{
    asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p red.global.add.v4.f32 [%0], {%1, %2, %3, %4};}" ::"l"(
                     __cvta_generic_to_global(to)),
                 "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(unsigned(wanted))
                 : "memory");
}
__device__ __forceinline__ void add_vector_atomically(f16 *to, const unsigned int (&pairs)[4])
{
    asm volatile("red.global.add.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
}
__device__ __forceinline__ void add_vector_atomically(bf16 *to, const unsigned int (&pairs)[4])
{
    asm volatile("red.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
}
#endif

/* ---- tensor cores ---------------------------------------------------------------------------------------------- */

#if __CUDA_ARCH__ >= 800
/*
 * c += a b, a [16][k] and b [k][8] elements, two in a register. Lane 4 i + j holds of a row i in its even and row i + 8
 * in its odd registers, of b column i, and of c columns 2 j and 2 j + 1: row i in c[0] and c[1], row i + 8 in c[2] and
 * c[3].
 */
#define MULTIPLY(type, name)                                                                                           \
    __device__ __forceinline__ void multiply(float(&c)[4], const uint4 &a, const unsigned(&b)[2], type)                \
    {                                                                                                                  \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "         \
            "{%8, %9}, {%0, %1, %2, %3};"                                                                              \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                           \
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));                                           \
    }                                                                                                                  \
    __device__ __forceinline__ void multiply(float(&c)[4], const uint2 &a, const unsigned(&b)[1], type)                \
    {                                                                                                                  \
        asm("mma.sync.aligned.m16n8k8.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "            \
            "{%0, %1, %2, %3};"                                                                                        \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                           \
            : "r"(a.x), "r"(a.y), "r"(b[0]));                                                                          \
    }
MULTIPLY(f16, "f16")
MULTIPLY(bf16, "bf16")
#undef MULTIPLY
#endif

} // namespace msda

#endif
