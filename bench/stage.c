/* SPDX-License-Identifier: Apache-2.0 */
#include "stage.h"

#include <stdio.h>

static call call_of(const stage *s, bool backward, int threads)
{
    return (call){
        .on = s->on, .fused = s->w->how.fused, .backward = backward, .problem = &s->w->problem, .threads = threads};
}

bool stage_run(const call *c)
{
    const msda_status status = call_run(c);
    if (status == MSDA_STATUS_SUCCESS)
        return true;
    fprintf(stderr, "msda_bench: %s %s: %s: %s\n", backend_names[c->on], c->backward ? "backward" : "forward",
            msda_status_string(status), msda_last_error());
    return false;
}

bool stage_open(stage *s, workload *w, backend on, int min_sets)
{
    *s = (stage){.w = w, .on = on};
    return on != BACKEND_CUDA || gpu_open(s, min_sets);
}

void stage_close(stage *s)
{
    if (s->on == BACKEND_CUDA)
        gpu_close(s);
    *s = (stage){0};
}

bool stage_rehearse(stage *s, bool backward, int threads, measurement *m)
{
    call c = call_of(s, backward, threads);
    *m = (measurement){.growth = -1, .kernel = call_kernel(&c)};
    return s->on == BACKEND_CUDA ? gpu_rehearse(s, &c, m) : host_rehearse(s, &c, m);
}

bool stage_measure(stage *s, bool backward, int threads, patience asked, measurement *m)
{
    call c = call_of(s, backward, threads);
    return s->on == BACKEND_CUDA ? gpu_measure(s, &c, asked, m) : host_measure(s, &c, asked, m);
}
