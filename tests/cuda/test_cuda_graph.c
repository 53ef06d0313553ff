/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls captured in a CUDA graph and replayed on inputs that changed in place, against the same calls made directly.
 * The first test must run first: it captures before the process has made any call, when nothing is loaded yet.
 */
#include "device_trial.h"

enum { REPLAYS = 10 };

/* Forward and backward on the stream, recorded instead of run. */
static cudaGraphExec_t capture(device_trial *d, cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    device_trial_run(d, stream);
    REQUIRE(cudaStreamEndCapture(stream, &graph));
    REQUIRE(cudaGraphInstantiate(&executable, graph, 0));
    REQUIRE(cudaGraphDestroy(graph));
    return executable;
}

static void fill_and_send(device_trial *d, uint64_t seed, cudaStream_t stream)
{
    trial_poison_outputs(d->host);
    inputs_fill(d->host, seed);
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (d->tensors[i])
            device_trial_send(d, (msda_tensor)i, stream);
}

static void require_as_expected(device_trial *d, cudaStream_t stream)
{
    expectation e;
    expectation_open(&e, d->host);
    device_trial_fetch_outputs(d, stream);
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (trial_is_output((msda_tensor)i))
            expectation_check(&e, d->host, (msda_tensor)i);
    expectation_close(&e);
}

static void check_graph(const msda_problem *problem, int fused)
{
    trial t;
    device_trial d;
    cudaStream_t stream;
    trial_open(&t, problem, fused);
    t.name = "replayed graph";
    inputs_fill(&t, 0);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    device_trial_open(&d, &t);

    const cudaGraphExec_t graph = capture(&d, stream);
    require_no_error_waiting();
    for (int replay = 1; replay <= full_or_few(REPLAYS, 2); ++replay) {
        fill_and_send(&d, (uint64_t)replay, stream);
        REQUIRE(cudaGraphLaunch(graph, stream));
        require_as_expected(&d, stream);
    }
    REQUIRE(cudaGraphExecDestroy(graph));
    device_trial_close(&d);
    REQUIRE(cudaStreamDestroy(stream));
    trial_close(&t);
}

static void test_the_first_call_of_all_is_captured(void **state)
{
    (void)state;
    const msda_problem problem = problem_of(rich_problem);
    check_graph(&problem, 0);
}

static void check_every_mode(int fused)
{
    static const msda_dtype dtypes[] = {MSDA_DTYPE_F64, MSDA_DTYPE_F32, MSDA_DTYPE_F16, MSDA_DTYPE_BF16};
    for (int i = 0; i < 4; ++i)
        for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate) {
            msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtypes[i]);
            problem.accumulate = (msda_accumulate)accumulate;
            check_graph(&problem, fused);
        }
}

static void test_plain(void **state)
{
    (void)state;
    check_every_mode(0);
}

static void test_fused(void **state)
{
    (void)state;
    check_every_mode(1);
}

static void test_nothing_to_sample(void **state)
{
    (void)state;
    const msda_problem problem = problem_of_level(2, 3, 2, 4, 3, 5, 0);
    check_graph(&problem, 0);
}

/* Workspace that belongs to the graph: allocated and freed by nodes of it, without memory behind it while it is captured. */
static void test_memory_of_the_graph(void **state)
{
    (void)state;
    msda_problem problem = problem_with_dtype(problem_of(rich_problem), MSDA_DTYPE_F16);
    trial t;
    device_trial d;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    trial_open(&t, &problem, 0);
    t.name = "workspace of the graph";
    inputs_fill(&t, 1);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    device_trial_open(&d, &t);
    assert_true(d.workspace_size > 0);
    void *const own_workspace = d.workspace;

    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    REQUIRE(cudaMallocAsync(&d.workspace, d.workspace_size, stream));
    device_trial_run(&d, stream);
    REQUIRE(cudaFreeAsync(d.workspace, stream));
    REQUIRE(cudaStreamEndCapture(stream, &graph));
    REQUIRE(cudaGraphInstantiate(&executable, graph, 0));
    REQUIRE(cudaGraphLaunch(executable, stream));
    require_as_expected(&d, stream);

    d.workspace = own_workspace;
    REQUIRE(cudaGraphExecDestroy(executable));
    REQUIRE(cudaGraphDestroy(graph));
    device_trial_close(&d);
    REQUIRE(cudaStreamDestroy(stream));
    trial_close(&t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_call_of_all_is_captured),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_nothing_to_sample),
        cmocka_unit_test(test_memory_of_the_graph),
    };
    return RUN_PROGRAM(argc, argv, &backend_cuda, tests);
}
