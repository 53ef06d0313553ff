/* SPDX-License-Identifier: Apache-2.0 */
/* The stage in host memory. */
#include "stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WORKSPACE_ALIGNMENT 64

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- resident memory (Linux; elsewhere not known) ---------------------------------------------------------------- */

/* A line of the process's status, in bytes; -1 if there is none. */
static int64_t status_bytes(const char *field)
{
    char line[256];
    long long kilobytes = -1;
    FILE *file = fopen("/proc/self/status", "r");
    if (file == NULL)
        return -1;
    while (kilobytes < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, field, strlen(field)) == 0)
            kilobytes = strtoll(line + strlen(field), NULL, 10);
    fclose(file);
    return kilobytes < 0 ? -1 : kilobytes * 1024;
}

static bool forget_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file == NULL)
        return false;
    const bool written = fputs("5", file) >= 0;
    return fclose(file) == 0 && written;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static bool set_up(const stage *s, call *c)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (workload_reads(s->w, c->backward, (msda_tensor)i) || workload_writes(s->w, c->backward, (msda_tensor)i))
            c->tensors[i] = s->w->tensors[i].data;
    if (call_workspace(c, &c->workspace_size) != MSDA_STATUS_SUCCESS) {
        fprintf(stderr, "msda_bench: %s\n", msda_last_error());
        return false;
    }
    const size_t rounded = (c->workspace_size + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    c->workspace = rounded == 0 ? NULL : aligned_alloc(WORKSPACE_ALIGNMENT, rounded);
    if (rounded != 0 && c->workspace == NULL)
        fprintf(stderr, "msda_bench: no memory for a workspace of %zu bytes\n", c->workspace_size);
    return rounded == 0 || c->workspace != NULL;
}

bool host_rehearse(const stage *s, call *c, measurement *m)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (workload_writes(s->w, c->backward, (msda_tensor)i))
            memset(s->w->tensors[i].data, 0xFF, (size_t)s->w->tensors[i].size);
    if (!set_up(s, c))
        return false;
    m->workspace = (int64_t)c->workspace_size;
    const bool peak_is_known = forget_peak();
    const int64_t before = status_bytes("VmRSS:");
    const bool ran = stage_run(c);
    if (peak_is_known && before >= 0)
        m->growth = status_bytes("VmHWM:") - before;
    free(c->workspace);
    return ran;
}

bool host_measure(const stage *s, call *c, patience asked, measurement *m)
{
    if (!set_up(s, c))
        return false;
    samples taken = {0};
    bool ran = stage_run(c); /* warm-up */
    while (ran && !samples_suffice(&taken, asked)) {
        const double start = now_us();
        ran = stage_run(c);
        samples_add(&taken, now_us() - start);
    }
    free(c->workspace);
    if (ran)
        m->time = samples_close(&taken);
    return ran;
}
