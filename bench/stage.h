/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where calls run and are timed. On the host: one set of tensors, the workload's own. On the GPU: copies of them, at
 * least three and more than the L2 cache together, used in turn, so that a call finds none of its input in the cache.
 * Functions that return false have said why on stderr.
 */
#ifndef MSDA_BENCH_STAGE_H
#define MSDA_BENCH_STAGE_H

#include "call.h"
#include "timing.h"

typedef struct stage {
    workload *w;
    backend on;
    int num_sets;
    void *(*sets)[MSDA_TENSOR_COUNT]; /* device memory; null on the host */
} stage;

typedef struct measurement {
    timing time;
    int64_t workspace; /* bytes that the library asked for */
    int64_t growth;    /* bytes of resident memory that the first call added, workspace included; -1: not known */
    const char *kernel;
} measurement;

/* `min_sets` is for the GPU; 0: as many as needed. */
bool stage_open(stage *s, workload *w, backend on, int min_sets);
void stage_close(stage *s);

/* Runs one call whole on poisoned outputs; they are in the workload then. Notes what it needed. */
bool stage_rehearse(stage *s, bool backward, int threads, measurement *m);

bool stage_measure(stage *s, bool backward, int threads, patience asked, measurement *m);

/* ---- the parts, host.c and gpu.c (gpu_none.c in a build without CUDA) -------------------------------------------- */

bool host_rehearse(const stage *s, call *c, measurement *m);
bool host_measure(const stage *s, call *c, patience asked, measurement *m);

typedef struct gpu_facts {
    char name[256];
    int multiprocessors;
    double clock_hz;
    int64_t l2_bytes;
} gpu_facts;

bool gpu_look(gpu_facts *facts);
bool gpu_open(stage *s, int min_sets);
void gpu_close(stage *s);
bool gpu_rehearse(const stage *s, call *c, measurement *m);
bool gpu_measure(const stage *s, call *c, patience asked, measurement *m);

/* Runs a call; says why not. */
bool stage_run(const call *c);

#endif
