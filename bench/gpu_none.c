/* SPDX-License-Identifier: Apache-2.0 */
/* The stage in device memory, in a build without CUDA: there is none. */
#include "stage.h"

#include <stdio.h>

bool gpu_look(gpu_facts *facts)
{
    (void)facts;
    fputs("msda_bench: this build has no CUDA back end\n", stderr);
    return false;
}

bool gpu_open(stage *s, int min_sets)
{
    (void)s, (void)min_sets;
    return false;
}

void gpu_close(stage *s)
{
    (void)s;
}

bool gpu_rehearse(const stage *s, call *c, measurement *m)
{
    (void)s, (void)c, (void)m;
    return false;
}

bool gpu_measure(const stage *s, call *c, patience asked, measurement *m)
{
    (void)s, (void)c, (void)asked, (void)m;
    return false;
}
