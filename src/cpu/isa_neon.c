/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu_isa.h"

#if MSDA_CPU_ARM64
#define MSDA_ISA neon
#include "simd_neon.h"
#include "kernel.inc"
#endif
