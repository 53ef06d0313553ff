/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads, stores and conversions of up to 16 bytes. `raw` holds loaded elements in as few registers as their bytes need, so
 * that many loads can be in flight; they are widened to the arithmetic type where they are used.
 */
#ifndef MSDA_VEC_CUH
#define MSDA_VEC_CUH

#include "types.cuh"

#include <type_traits>

namespace msda
{

/* The arithmetic type beside a storage type. */
template <class T> using real_of = std::conditional_t<std::is_same_v<T, f64>, double, float>;

template <int Bytes> struct bytes;
template <> struct bytes<16> {
    using type = uint4;
};
template <> struct bytes<8> {
    using type = uint2;
};
template <> struct bytes<4> {
    using type = unsigned int;
};
template <> struct bytes<2> {
    using type = unsigned short;
};

template <class T, int Width> using raw = typename bytes<int(sizeof(T)) * Width>::type;

template <class T, int Width> __device__ __forceinline__ raw<T, Width> load_raw(const T *from)
{
    return __ldg(reinterpret_cast<const raw<T, Width> *>(from));
}

/* The pointer or number, in registers from here on: keeps the compiler from computing it anew at every use. */
template <class T> __device__ __forceinline__ T *keep(T *pointer)
{
    asm volatile("" : "+l"(pointer));
    return pointer;
}
__device__ __forceinline__ unsigned keep(unsigned number)
{
    asm volatile("" : "+r"(number));
    return number;
}
__device__ __forceinline__ uint64_t keep(uint64_t number)
{
    asm volatile("" : "+l"(number));
    return number;
}

__device__ __forceinline__ float widen(float x)
{
    return x;
}
__device__ __forceinline__ double widen(double x)
{
    return x;
}
__device__ __forceinline__ float widen(f16 x)
{
    return __half2float(x);
}
__device__ __forceinline__ float widen(bf16 x)
{
    return __bfloat162float(x);
}

template <class T> __device__ __forceinline__ T narrow(real_of<T> x)
{
    if constexpr (std::is_same_v<T, f16>)
        return __float2half_rn(x);
    else if constexpr (std::is_same_v<T, bf16>)
        return __float2bfloat16_rn(x);
    else
        return x;
}

template <class T, int Width> struct unpacked {
    real_of<T> at[Width];
};

template <class T, int Width> __device__ __forceinline__ unpacked<T, Width> unpack(raw<T, Width> from)
{
    union U {
        raw<T, Width> bits;
        T elements[Width];
        __device__ U()
        {
        }
    } u;
    u.bits = from;
    unpacked<T, Width> to;
#pragma unroll
    for (int i = 0; i < Width; ++i)
        to.at[i] = widen(u.elements[i]);
    return to;
}

/* Any Width, in stores of at most 16 bytes. */
template <class T, int Width> __device__ __forceinline__ void store(T *to, const real_of<T> (&from)[Width])
{
    constexpr int at_once = int(sizeof(T)) * Width > 16 ? int(16 / sizeof(T)) : Width;
#pragma unroll
    for (int first = 0; first < Width; first += at_once) {
        union U {
            raw<T, at_once> bits;
            T elements[at_once];
            __device__ U()
            {
            }
        } u;
#pragma unroll
        for (int i = 0; i < at_once; ++i)
            u.elements[i] = narrow<T>(from[first + i]);
        __stwb(reinterpret_cast<raw<T, at_once> *>(to + first), u.bits); /* the compiler would split an assignment */
    }
}

} // namespace msda

#endif
