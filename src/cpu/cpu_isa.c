/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu_isa.h"

#include <msda/msda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[MSDA_ISA_COUNT] = {"scalar", "avx2", "avx512", "neon"};

static bool machine_has(msda_isa isa)
{
    switch (isa) {
    case MSDA_ISA_SCALAR:
        return true;
#if MSDA_CPU_X86
    case MSDA_ISA_AVX2:
        /* Every machine with AVX2 has F16C, which clang 14 cannot ask for. */
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case MSDA_ISA_AVX512:
        return machine_has(MSDA_ISA_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#elif MSDA_CPU_ARM64
    case MSDA_ISA_NEON: /* part of every AArch64 */
        return true;
#endif
    default:
        return false;
    }
}

static msda_isa detect(void)
{
    const char *wanted = getenv("MSDA_CPU_ISA");
    msda_isa best = MSDA_ISA_SCALAR;
    for (int isa = 0; isa < MSDA_ISA_COUNT; ++isa) {
        if (!machine_has((msda_isa)isa))
            continue;
        best = (msda_isa)isa;
        if (wanted != NULL && strcmp(wanted, names[isa]) == 0)
            break;
    }
    return best;
}

/* Threads that race here all find the same answer. */
msda_isa msda_cpu_find_isa(void)
{
    static atomic_int found = -1;
    int isa = atomic_load_explicit(&found, memory_order_relaxed);
    if (isa < 0) {
        isa = (int)detect();
        atomic_store_explicit(&found, isa, memory_order_relaxed);
    }
    return (msda_isa)isa;
}

const char *msda_cpu_isa_name(msda_isa isa)
{
    return names[isa];
}

const char *msda_cpu_isa(void)
{
    return msda_cpu_isa_name(msda_cpu_find_isa());
}
