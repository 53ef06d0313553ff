/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is: work goes to the caller's stream and nowhere else, in the stream's order, on the stream's device, from
 * any number of threads.
 */
#define _POSIX_C_SOURCE 200809L

#include "device_trial.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { LONGEST_WAIT_SECONDS = 10 };

/* ---- a stream that stands still until it is told to go on ---------------------------------------------------------- */

typedef struct gate {
    atomic_int open;
    atomic_int gave_up; /* whoever should open it was waiting for the stream */
} gate;

static void CUDART_CB wait_at(void *argument)
{
    gate *g = argument;
    const struct timespec moment = {.tv_nsec = 200000};
    const time_t end = time(NULL) + LONGEST_WAIT_SECONDS;
    while (!atomic_load(&g->open) && !atomic_load(&g->gave_up)) {
        nanosleep(&moment, NULL);
        if (time(NULL) > end)
            atomic_store(&g->gave_up, 1);
    }
}

static void close_gate(gate *g, cudaStream_t stream)
{
    atomic_store(&g->open, 0);
    atomic_store(&g->gave_up, 0);
    REQUIRE(cudaLaunchHostFunc(stream, wait_at, g));
}

static void open_gate(gate *g)
{
    atomic_store(&g->open, 1);
}

/* ---- trials -------------------------------------------------------------------------------------------------------- */

typedef struct streamed {
    trial t, answer; /* answer: the same, run alone */
    device_trial d;
    cudaStream_t stream;
} streamed;

static void streamed_open_mode(streamed *s, msda_dtype dtype, msda_accumulate accumulate, int fused, uint64_t seed)
{
    msda_problem problem = problem_with_dtype(problem_of_level(2, 40, 4, 32, 9, 14, 4), dtype);
    problem.accumulate = accumulate;
    trial_open(&s->t, &problem, fused);
    trial_open(&s->answer, &problem, fused);
    s->t.name = "streamed";
    inputs_fill(&s->t, seed);
    inputs_fill(&s->answer, seed);
    device_trial_once(&s->answer);
    device_trial_open(&s->d, &s->t);
    device_trial_send_outputs(&s->d, NULL);
    REQUIRE(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
}

/* Any disturbance shows as a changed bit. */
static void streamed_open(streamed *s, msda_dtype dtype, int fused, uint64_t seed)
{
    streamed_open_mode(s, dtype, MSDA_ACCUMULATE_DETERMINISTIC, fused, seed);
}

static void streamed_close(streamed *s)
{
    REQUIRE(cudaStreamDestroy(s->stream));
    device_trial_close(&s->d);
    trial_close(&s->answer);
    trial_close(&s->t);
}

static void require_answer(streamed *s)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i) {
        if (!trial_is_output((msda_tensor)i) || !s->d.tensors[i])
            continue;
        device_trial_fetch(&s->d, (msda_tensor)i, s->stream);
        if (!trial_equal(&s->t, &s->answer, (msda_tensor)i))
            fail_msg("%s differs from that of a run alone", trial_tensor_name(&s->t, (msda_tensor)i));
    }
}

/* ---- tests --------------------------------------------------------------------------------------------------------- */

static void test_side_stream_passes_a_busy_default_stream(void **state)
{
    (void)state;
    for (int fused = 0; fused <= 1; ++fused) {
        streamed s;
        gate g;
        streamed_open(&s, MSDA_DTYPE_F16, fused, 1);
        close_gate(&g, cudaStreamLegacy);
        device_trial_run(&s.d, s.stream);
        REQUIRE(cudaStreamSynchronize(s.stream));
        const int waited = atomic_load(&g.gave_up);
        open_gate(&g);
        if (waited)
            fail_msg("work for a stream of its own waited for the default stream");
        REQUIRE(cudaDeviceSynchronize());
        require_answer(&s);
        streamed_close(&s);
    }
}

/* Clearing and rounding must wait like the kernels: nothing may reach an output before the stream's turn. */
static void test_nothing_overtakes_its_stream(void **state)
{
    (void)state;
    static const msda_accumulate modes[] = {MSDA_ACCUMULATE_FP32, MSDA_ACCUMULATE_NATIVE,
                                            MSDA_ACCUMULATE_DETERMINISTIC};
    for (int i = 0; i < 3; ++i) {
        streamed s;
        gate g;
        cudaStream_t other;
        streamed_open_mode(&s, MSDA_DTYPE_F16, modes[i], 0, 2);
        REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        close_gate(&g, s.stream);
        device_trial_run(&s.d, s.stream);
        device_trial_fetch_outputs(&s.d, other);
        for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor) {
            const guarded *memory = &s.t.tensors[tensor].memory;
            for (size_t b = 0; trial_is_output((msda_tensor)tensor) && b < memory->size; ++b)
                if (memory->data[b] != 0xFF) {
                    open_gate(&g);
                    fail_msg("%s was written before the stream came to it",
                             trial_tensor_name(&s.t, (msda_tensor)tensor));
                }
        }
        assert_int_equal(atomic_load(&g.gave_up), 0);
        open_gate(&g);
        REQUIRE(cudaStreamSynchronize(s.stream));
        REQUIRE(cudaStreamDestroy(other));
        streamed_close(&s);
    }
}

static void test_two_streams_at_once(void **state)
{
    (void)state;
    streamed a, b;
    streamed_open(&a, MSDA_DTYPE_F32, 0, 3);
    streamed_open(&b, MSDA_DTYPE_BF16, 1, 4);
    for (int i = 0; i < full_or_few(200, 5); ++i) {
        device_trial_run(&a.d, a.stream);
        device_trial_run(&b.d, b.stream);
    }
    require_answer(&a);
    require_answer(&b);
    streamed_close(&a);
    streamed_close(&b);
}

static void test_default_streams(void **state)
{
    (void)state;
    static const cudaStream_t streams[] = {NULL, cudaStreamLegacy, cudaStreamPerThread};
    for (int i = 0; i < 3; ++i) {
        streamed s;
        streamed_open(&s, MSDA_DTYPE_F32, 0, 5);
        device_trial_run(&s.d, streams[i]);
        REQUIRE(cudaStreamSynchronize(streams[i]));
        require_answer(&s);
        streamed_close(&s);
    }
}

enum { THREADS = 4 };

typedef struct worker {
    streamed s;
    msda_status status;
    char text[300];
} worker;

/* No assertion here: cmocka's belong to the main thread. */
static void *work(void *argument)
{
    worker *w = argument;
    w->status = MSDA_STATUS_SUCCESS;
    for (int i = 0; i < full_or_few(100, 5) && w->status == MSDA_STATUS_SUCCESS; ++i) {
        w->status = device_trial_forward(&w->s.d, w->s.stream);
        if (w->status == MSDA_STATUS_SUCCESS)
            w->status = device_trial_backward(&w->s.d, w->s.stream);
    }
    snprintf(w->text, sizeof w->text, "%s", msda_last_error());
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    static worker workers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; ++i)
        streamed_open(&workers[i].s, i % 2 ? MSDA_DTYPE_F32 : MSDA_DTYPE_F16, i % 2, 10 + (uint64_t)i);
    for (int i = 0; i < THREADS; ++i)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (int i = 0; i < THREADS; ++i)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; ++i) {
        if (workers[i].status != MSDA_STATUS_SUCCESS)
            fail_msg("thread %d: %s", i, workers[i].text);
        require_answer(&workers[i].s);
        streamed_close(&workers[i].s);
    }
}

static void test_current_device_stays(void **state)
{
    (void)state;
    int count, before, after;
    REQUIRE(cudaGetDeviceCount(&count));
    for (int device = 0; device < count; ++device) {
        streamed s;
        REQUIRE(cudaSetDevice(device));
        streamed_open(&s, MSDA_DTYPE_F32, 0, 6);
        for (int current = 0; current < count; ++current) {
            REQUIRE(cudaSetDevice(current));
            REQUIRE(cudaGetDevice(&before));
            device_trial_run(&s.d, s.stream);
            REQUIRE(cudaGetDevice(&after));
            assert_int_equal(before, after);
        }
        REQUIRE(cudaSetDevice(device));
        require_answer(&s);
        streamed_close(&s);
    }
    REQUIRE(cudaSetDevice(0));
}

/* Data on device 1 through a stream of device 0, and through the default stream while device 0 is current. */
static void test_memory_of_another_device(void **state)
{
    (void)state;
    int count;
    REQUIRE(cudaGetDeviceCount(&count));
    if (count < 2) {
        print_message("test_memory_of_another_device: needs two devices, this machine has %d\n", count);
        skip();
    }
    streamed s;
    cudaStream_t wrong;
    REQUIRE(cudaStreamCreate(&wrong));
    REQUIRE(cudaSetDevice(1));
    streamed_open(&s, MSDA_DTYPE_F32, 0, 7);
    REQUIRE(cudaSetDevice(0));
    assert_int_equal(device_trial_forward(&s.d, wrong), MSDA_STATUS_WRONG_DEVICE);
    assert_int_equal(device_trial_backward(&s.d, NULL), MSDA_STATUS_WRONG_DEVICE);
    require_no_error_waiting();
    REQUIRE(cudaStreamDestroy(wrong));
    REQUIRE(cudaSetDevice(1));
    streamed_close(&s);
    REQUIRE(cudaSetDevice(0));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_side_stream_passes_a_busy_default_stream),
        cmocka_unit_test(test_nothing_overtakes_its_stream),
        cmocka_unit_test(test_two_streams_at_once),
        cmocka_unit_test(test_default_streams),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_current_device_stays),
        cmocka_unit_test(test_memory_of_another_device),
    };
    return RUN_PROGRAM(argc, argv, &backend_cuda, tests);
}
