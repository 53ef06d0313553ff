/* SPDX-License-Identifier: Apache-2.0 */
/* The stage in device memory. */
#include "stage.h"

#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if (!succeeded((call), #call))                                                                                 \
            return false;                                                                                              \
    } while (0)

static bool succeeded(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fprintf(stderr, "msda_bench: %s: %s\n", what, cudaGetErrorString(error));
    return error == cudaSuccess;
}

bool gpu_look(gpu_facts *facts)
{
    struct cudaDeviceProp properties;
    int count = 0, kilohertz = 0;
    if (msda_cuda_device_count(&count) != MSDA_STATUS_SUCCESS) {
        fprintf(stderr, "msda_bench: no CUDA device: %s\n", msda_last_error());
        return false;
    }
    TRY(cudaGetDeviceProperties(&properties, 0));
    TRY(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, 0));
    *facts = (gpu_facts){.multiprocessors = properties.multiProcessorCount,
                         .clock_hz = kilohertz * 1e3,
                         .l2_bytes = properties.l2CacheSize};
    snprintf(facts->name, sizeof facts->name, "%s", properties.name);
    return true;
}

/* ---- buffer sets ------------------------------------------------------------------------------------------------- */

static bool fill_set(const stage *s, int set)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i) {
        const tensor *t = &s->w->tensors[i];
        if (t->size == 0)
            continue;
        TRY(cudaMalloc(&s->sets[set][i], (size_t)t->size));
        if (!workload_reads(s->w, true, (msda_tensor)i))
            TRY(cudaMemset(s->sets[set][i], 0xFF, (size_t)t->size));
        else if (set == 0)
            TRY(cudaMemcpy(s->sets[set][i], t->data, (size_t)t->size, cudaMemcpyHostToDevice));
        else
            TRY(cudaMemcpy(s->sets[set][i], s->sets[0][i], (size_t)t->size, cudaMemcpyDeviceToDevice));
    }
    return true;
}

bool gpu_open(stage *s, int min_sets)
{
    gpu_facts facts;
    if (!gpu_look(&facts))
        return false;
    s->num_sets = min_sets > 0 ? min_sets : (int)(facts.l2_bytes / workload_bytes(s->w, false)) + 1;
    s->num_sets = s->num_sets < 3 ? 3 : s->num_sets;
    s->sets = calloc((size_t)s->num_sets, sizeof *s->sets);
    if (s->sets == NULL)
        return false;
    for (int set = 0; set < s->num_sets; ++set)
        if (!fill_set(s, set))
            return false;
    return true;
}

void gpu_close(stage *s)
{
    for (int set = 0; s->sets != NULL && set < s->num_sets; ++set)
        for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
            cudaFree(s->sets[set][i]);
    free(s->sets);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static bool run_on_set(const stage *s, call *c, int set)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        c->tensors[i] = s->sets[set % s->num_sets][i];
    return stage_run(c);
}

static bool allocate_workspace(call *c)
{
    if (call_workspace(c, &c->workspace_size) != MSDA_STATUS_SUCCESS) {
        fprintf(stderr, "msda_bench: %s\n", msda_last_error());
        return false;
    }
    if (c->workspace_size != 0) {
        TRY(cudaMalloc(&c->workspace, c->workspace_size));
        TRY(cudaMemset(c->workspace, 0xFF, c->workspace_size));
    }
    return true;
}

static bool rehearse(const stage *s, call *c)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (workload_writes(s->w, c->backward, (msda_tensor)i))
            TRY(cudaMemset(s->sets[0][i], 0xFF, (size_t)s->w->tensors[i].size));
    if (!run_on_set(s, c, 0))
        return false;
    TRY(cudaDeviceSynchronize());
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i) {
        const tensor *t = &s->w->tensors[i];
        if (workload_writes(s->w, c->backward, (msda_tensor)i))
            TRY(cudaMemcpy(t->data, s->sets[0][i], (size_t)t->size, cudaMemcpyDeviceToHost));
    }
    return true;
}

bool gpu_rehearse(const stage *s, call *c, measurement *m)
{
    const bool ran = allocate_workspace(c) && rehearse(s, c);
    m->workspace = (int64_t)c->workspace_size;
    cudaFree(c->workspace);
    return ran;
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

/*
 * A batch of calls is queued behind a plug, a millisecond or so of other work, so that the device never waits for the
 * host and the events around each call enclose the call alone. The plug is stores to memory of its own.
 */
#define BATCH        64 /* at most */
#define PLUG_SIZE    ((size_t)256 << 20)
#define PLUG_REPEATS 16

typedef struct clockwork {
    void *plug;
    cudaEvent_t start[BATCH], stop[BATCH];
} clockwork;

static bool wind_up(clockwork *k)
{
    TRY(cudaMalloc(&k->plug, PLUG_SIZE));
    for (int i = 0; i < BATCH; ++i) {
        TRY(cudaEventCreate(&k->start[i]));
        TRY(cudaEventCreate(&k->stop[i]));
    }
    return true;
}

static void wind_down(clockwork *k)
{
    for (int i = 0; i < BATCH; ++i) {
        cudaEventDestroy(k->start[i]);
        cudaEventDestroy(k->stop[i]);
    }
    cudaFree(k->plug);
}

static bool time_batch(const stage *s, call *c, clockwork *k, int batch, samples *taken)
{
    for (int i = 0; i < PLUG_REPEATS; ++i)
        TRY(cudaMemsetAsync(k->plug, i, PLUG_SIZE, NULL));
    for (int i = 0; i < batch; ++i) {
        TRY(cudaEventRecord(k->start[i], NULL));
        if (!run_on_set(s, c, i))
            return false;
        TRY(cudaEventRecord(k->stop[i], NULL));
    }
    TRY(cudaDeviceSynchronize());
    for (int i = 0; i < batch; ++i) {
        float milliseconds = 0.0f;
        TRY(cudaEventElapsedTime(&milliseconds, k->start[i], k->stop[i]));
        samples_add(taken, milliseconds * 1e3);
    }
    return true;
}

static bool warm_up(const stage *s, call *c)
{
    for (int set = 0; set < s->num_sets; ++set)
        if (!run_on_set(s, c, set))
            return false;
    TRY(cudaDeviceSynchronize());
    return true;
}

bool gpu_measure(const stage *s, call *c, patience asked, measurement *m)
{
    clockwork k = {0};
    samples taken = {0};
    bool ran = allocate_workspace(c) && wind_up(&k) && warm_up(s, c);
    while (ran && !samples_suffice(&taken, asked))
        ran = time_batch(s, c, &k, asked.repeat < BATCH ? asked.repeat : BATCH, &taken);
    wind_down(&k);
    cudaFree(c->workspace);
    if (ran)
        m->time = samples_close(&taken);
    return ran;
}
