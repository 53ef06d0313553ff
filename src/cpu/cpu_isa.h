/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction set the CPU kernels use: found once, at first use. */
#ifndef MSDA_CPU_ISA_H
#define MSDA_CPU_ISA_H

#if defined(__x86_64__) || defined(_M_X64)
#define MSDA_CPU_X86 1
#else
#define MSDA_CPU_X86 0
#endif

#if defined(__aarch64__) || defined(_M_ARM64)
#define MSDA_CPU_ARM64 1
#else
#define MSDA_CPU_ARM64 0
#endif

/* In the order of preference: a later one is better. */
typedef enum msda_isa { MSDA_ISA_SCALAR, MSDA_ISA_AVX2, MSDA_ISA_AVX512, MSDA_ISA_NEON } msda_isa;

#define MSDA_ISA_COUNT 4

/* The best that the machine has, or the lesser one that the environment variable MSDA_CPU_ISA asks for. */
msda_isa msda_cpu_find_isa(void);

const char *msda_cpu_isa_name(msda_isa isa);

#endif
