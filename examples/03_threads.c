/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One problem per thread, as in a server: every call is re-entrant, so threads need no lock. Each thread owns its tensors
 * and one workspace, which it uses again for every call. One of the threads makes a mistake, to show what comes back.
 * Values are bf16 here, gradients sum up in fp32: that is what the workspace is for.
 *
 *     cc 03_threads.c $(pkg-config --cflags --libs msda) -lpthread && ./a.out
 */
#include <msda/msda.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, CALLS = 8, HEIGHT = 12, WIDTH = 20, QUERIES = 50, HEADS = 4, HEAD_DIM = 16, POINTS = 4 };
enum { VALUES = HEIGHT * WIDTH * HEADS * HEAD_DIM, OUTPUTS = QUERIES * HEADS * HEAD_DIM };
enum { WEIGHTS = QUERIES * HEADS * POINTS };

static const uint16_t bf16_one = 0x3f80;

/* Everything that a thread owns. Points are f32 beside 16-bit values: the default, and the precise choice. */
typedef struct job {
    int number;
    msda_problem problem;
    uint16_t value[VALUES], output[OUTPUTS], grad_output[OUTPUTS];
    float grad_value[VALUES];
    float locations[WEIGHTS * 2], weights[WEIGHTS];
    void *workspace;
    size_t workspace_size;
    msda_status status;
    char text[256]; /* msda_last_error() belongs to the thread: copy what should outlive it */
} job;

static msda_status prepare(job *j)
{
    msda_problem_init(&j->problem);
    j->problem.value_dtype = MSDA_DTYPE_BF16;
    j->problem.grad_value_dtype = MSDA_DTYPE_F32;
    j->problem.batch = 1;
    j->problem.queries = QUERIES;
    j->problem.heads = HEADS;
    j->problem.head_dim = j->number == 2 ? -HEAD_DIM : HEAD_DIM; /* the mistake */
    msda_problem_add_level(&j->problem, HEIGHT, WIDTH, POINTS);

    for (int i = 0; i < VALUES; ++i)
        j->value[i] = bf16_one;
    for (int i = 0; i < OUTPUTS; ++i)
        j->grad_output[i] = bf16_one;
    for (int i = 0; i < WEIGHTS; ++i) {
        j->weights[i] = 1.0f / POINTS;
        j->locations[2 * i] = 0.1f + 0.8f * (float)i / WEIGHTS;
        j->locations[2 * i + 1] = 0.9f - 0.8f * (float)i / WEIGHTS;
    }

    const msda_status status = msda_cpu_backward_workspace(&j->problem, 1, &j->workspace_size);
    if (status == MSDA_STATUS_SUCCESS && j->workspace_size > 0)
        j->workspace = aligned_alloc(64, (j->workspace_size + 63) / 64 * 64);
    return status;
}

static msda_status forward_and_backward(job *j)
{
    const msda_forward_args forward = {
        .value = j->value,
        .sampling_locations = j->locations,
        .attention_weights = j->weights,
        .output = j->output,
    };
    const msda_backward_args backward = {
        .value = j->value,
        .sampling_locations = j->locations,
        .attention_weights = j->weights,
        .grad_output = j->grad_output,
        .grad_value = j->grad_value,
    };
    const msda_status status = msda_cpu_forward(&j->problem, &forward, 1);
    if (status != MSDA_STATUS_SUCCESS)
        return status;
    return msda_cpu_backward(&j->problem, &backward, j->workspace, j->workspace_size, 1);
}

static void *run(void *argument)
{
    job *j = argument;
    j->status = prepare(j);
    for (int call = 0; call < CALLS && j->status == MSDA_STATUS_SUCCESS; ++call)
        j->status = forward_and_backward(j);
    snprintf(j->text, sizeof j->text, "%s", msda_last_error());
    free(j->workspace);
    return NULL;
}

int main(void)
{
    static job jobs[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        jobs[i].number = i;
        if (pthread_create(&threads[i], NULL, run, &jobs[i]) != 0)
            return 1;
    }

    int failures = 0;
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(threads[i], NULL);
        if (jobs[i].status != MSDA_STATUS_SUCCESS) {
            printf("thread %d: %s: %s\n", i, msda_status_string(jobs[i].status), jobs[i].text);
            failures += 1;
            continue;
        }
        /* Weights of a head add up to 1 and all points lie inside, so the gradient hands on exactly what came in. */
        double sum = 0.0;
        for (int k = 0; k < VALUES; ++k)
            sum += jobs[i].grad_value[k];
        printf("thread %d: %d calls, sum of grad_value %.1f of %d\n", i, CALLS, sum, OUTPUTS);
        failures += sum > OUTPUTS - 0.5 && sum < OUTPUTS + 0.5 ? 0 : 1;
    }
    return failures == 1 ? 0 : 1; /* the one mistake, and no other */
}
