/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu_isa.h"

#if MSDA_CPU_X86
#define MSDA_ISA avx2
#include "simd_avx2.h"
#include "kernel.inc"
#endif
