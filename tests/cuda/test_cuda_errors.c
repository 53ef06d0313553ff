/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that fail on the device: the status, the name in the text, outputs as they were, no error left in the thread's
 * slot; and an error of somebody else that waits in the slot: not ours, and still there afterwards.
 *
 * The library is linked statically here, so that it shares the CUDA runtime, and with it the slot, with the test.
 */
#include "device_trial.h"

typedef struct fixture {
    trial t;
    device_trial d;
} fixture;

static void fixture_open(fixture *b, int fused)
{
    msda_problem problem = problem_with_dtype(problem_of(rich_problem), MSDA_DTYPE_F16);
    trial_open(&b->t, &problem, fused);
    b->t.name = "failing call";
    inputs_fill(&b->t, 1);
    device_trial_open(&b->d, &b->t);
    device_trial_send_outputs(&b->d, NULL);
}

static void fixture_close(fixture *b)
{
    device_trial_close(&b->d);
    trial_close(&b->t);
}

/* Outputs hold the 0xFF that was sent. */
static void require_untouched_outputs(fixture *b)
{
    REQUIRE(cudaDeviceSynchronize());
    device_trial_fetch_outputs(&b->d, NULL);
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        for (size_t k = 0; trial_is_output((msda_tensor)i) && k < b->t.tensors[i].memory.size; ++k)
            if (b->t.tensors[i].memory.data[k] != 0xFF)
                fail_msg("%s was written by a call that failed", trial_tensor_name(&b->t, (msda_tensor)i));
}

static void require_failure(fixture *b, msda_status got, msda_status expected, const char *in_text)
{
    if (got != expected)
        fail_msg("status \"%s\", expected \"%s\"; text: %s", msda_status_string(got), msda_status_string(expected),
                 msda_last_error());
    if (strstr(msda_last_error(), in_text) == NULL)
        fail_msg("the text \"%s\" does not say \"%s\"", msda_last_error(), in_text);
    require_no_error_waiting();
    require_untouched_outputs(b);
}

static int is_of_forward(msda_tensor tensor)
{
    return tensor <= MSDA_TENSOR_OUTPUT;
}

static msda_status call_for(fixture *b, msda_tensor tensor)
{
    return is_of_forward(tensor) ? device_trial_forward(&b->d, NULL) : device_trial_backward(&b->d, NULL);
}

/* Runs with one tensor's pointer replaced. */
static void check_bad_pointer(msda_tensor tensor, int fused, void *(*bad)(fixture *, msda_tensor), msda_status expected)
{
    fixture b;
    fixture_open(&b, fused);
    if (b.d.tensors[tensor]) {
        void *const good = b.d.tensors[tensor];
        b.d.tensors[tensor] = bad(&b, tensor);
        const msda_status status = call_for(&b, tensor);
        b.d.tensors[tensor] = good;
        require_failure(&b, status, expected, trial_tensor_name(&b.t, tensor));
    }
    fixture_close(&b);
}

static void *in_host_memory(fixture *b, msda_tensor tensor)
{
    return b->t.tensors[tensor].memory.data;
}

static void *off_by_one_byte(fixture *b, msda_tensor tensor)
{
    return (char *)b->d.tensors[tensor] + 1;
}

static void test_host_pointers(void **state)
{
    (void)state;
    for (int fused = 0; fused <= 1; ++fused)
        for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
            check_bad_pointer((msda_tensor)tensor, fused, in_host_memory, MSDA_STATUS_WRONG_DEVICE);
}

static void test_misaligned_pointers(void **state)
{
    (void)state;
    for (int fused = 0; fused <= 1; ++fused)
        for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
            check_bad_pointer((msda_tensor)tensor, fused, off_by_one_byte, MSDA_STATUS_MISALIGNED);
}

static void test_null_pointers(void **state)
{
    (void)state;
    for (int tensor = 0; tensor <= MSDA_TENSOR_GRAD_OUTPUT; ++tensor) {
        fixture b;
        fixture_open(&b, 1);
        void *const good = b.d.tensors[tensor];
        b.d.tensors[tensor] = NULL;
        const msda_status status = call_for(&b, (msda_tensor)tensor);
        b.d.tensors[tensor] = good;
        require_failure(&b, status, MSDA_STATUS_NULL_POINTER, trial_tensor_name(&b.t, (msda_tensor)tensor));
        fixture_close(&b);
    }
}

static void test_overlapping_tensors(void **state)
{
    (void)state;
    fixture b;
    fixture_open(&b, 0);
    void *const good = b.d.tensors[MSDA_TENSOR_OUTPUT];
    b.d.tensors[MSDA_TENSOR_OUTPUT] = b.d.tensors[MSDA_TENSOR_VALUE];
    const msda_status status = device_trial_forward(&b.d, NULL);
    b.d.tensors[MSDA_TENSOR_OUTPUT] = good;
    require_failure(&b, status, MSDA_STATUS_OVERLAP, "output");
    fixture_close(&b);
}

static void test_workspaces(void **state)
{
    (void)state;
    for (int fused = 0; fused <= 1; ++fused) {
        fixture b;
        fixture_open(&b, fused);
        const size_t size = b.d.workspace_size;
        char *const workspace = b.d.workspace;
        static _Alignas(256) char host[256];
        assert_true(size > 0);

        b.d.workspace_size = size - 1;
        require_failure(&b, device_trial_backward(&b.d, NULL), MSDA_STATUS_WORKSPACE_TOO_SMALL, "workspace");
        b.d.workspace_size = size;
        b.d.workspace = NULL;
        require_failure(&b, device_trial_backward(&b.d, NULL), MSDA_STATUS_NULL_POINTER, "workspace");
        b.d.workspace = workspace + 128;
        require_failure(&b, device_trial_backward(&b.d, NULL), MSDA_STATUS_MISALIGNED, "workspace");
        b.d.workspace = b.d.tensors[MSDA_TENSOR_GRAD_VALUE];
        require_failure(&b, device_trial_backward(&b.d, NULL), MSDA_STATUS_OVERLAP, "workspace");
        b.d.workspace = host;
        require_failure(&b, device_trial_backward(&b.d, NULL), MSDA_STATUS_WRONG_DEVICE, "workspace");
        b.d.workspace = workspace;
        fixture_close(&b);
    }
}

/* Host memory that CUDA knows, and managed memory, are as good as the device's own. */
static void test_memory_that_the_device_reaches(void **state)
{
    (void)state;
    for (int managed = 0; managed <= 1; ++managed) {
        fixture b;
        expectation e;
        fixture_open(&b, 0);
        expectation_open(&e, &b.t);
        const guarded *host = &b.t.tensors[MSDA_TENSOR_VALUE].memory;
        void *const own = b.d.tensors[MSDA_TENSOR_VALUE];
        void *other;
        if (managed)
            REQUIRE(cudaMallocManaged(&other, host->size, cudaMemAttachGlobal));
        else
            REQUIRE(cudaHostAlloc(&other, host->size, cudaHostAllocMapped));
        memcpy(other, host->data, host->size);
        b.d.tensors[MSDA_TENSOR_VALUE] = other;
        device_trial_run(&b.d, NULL);
        device_trial_fetch_outputs(&b.d, NULL);
        for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
            if (trial_is_output((msda_tensor)i))
                expectation_check(&e, &b.t, (msda_tensor)i);
        b.d.tensors[MSDA_TENSOR_VALUE] = own;
        REQUIRE(managed ? cudaFree(other) : cudaFreeHost(other));
        expectation_close(&e);
        fixture_close(&b);
    }
}

/* A launch that CUDA refuses: into a capture that somebody has already broken. */
static void test_refused_launch(void **state)
{
    (void)state;
    for (int backward = 0; backward <= 1; ++backward) {
        fixture b;
        cudaStream_t stream;
        cudaGraph_t graph;
        fixture_open(&b, 0);
        REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        assert_int_not_equal(cudaStreamSynchronize(stream), cudaSuccess);
        cudaGetLastError();
        const msda_status status = backward ? device_trial_backward(&b.d, stream) : device_trial_forward(&b.d, stream);
        assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
        assert_int_not_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        cudaGetLastError();
        require_failure(&b, status, MSDA_STATUS_CUDA_ERROR, "cudaErrorStreamCapture");
        REQUIRE(cudaStreamDestroy(stream));
        fixture_close(&b);
    }
}

/* Leaves an error in the slot, as a careless caller would. */
static void leave_an_error(void)
{
    assert_int_equal(cudaSetDevice(-1), cudaErrorInvalidDevice);
}

static void require_the_error_left(void)
{
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
    require_no_error_waiting();
}

static void test_errors_of_others(void **state)
{
    (void)state;
    for (int fused = 0; fused <= 1; ++fused) {
        fixture b;
        fixture_open(&b, fused);
        leave_an_error();
        const msda_status forward = device_trial_forward(&b.d, NULL), backward = device_trial_backward(&b.d, NULL);
        require_the_error_left();
        require_success(forward);
        require_success(backward);

        /* a failure of ours that CUDA has no part in leaves it alone, too */
        leave_an_error();
        --b.d.workspace_size;
        assert_int_equal(device_trial_backward(&b.d, NULL), MSDA_STATUS_WORKSPACE_TOO_SMALL);
        require_the_error_left();
        fixture_close(&b);
    }
}

static void test_queries(void **state)
{
    (void)state;
    int count = 0, expected;
    assert_int_equal(msda_cuda_is_built(), 1);
    assert_true(strlen(msda_cuda_architectures()) > 0);
    assert_int_equal(msda_cuda_device_count(&count), MSDA_STATUS_SUCCESS);
    REQUIRE(cudaGetDeviceCount(&expected));
    assert_int_equal(count, expected);
    assert_int_equal(msda_cuda_device_count(NULL), MSDA_STATUS_NULL_POINTER);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_pointers),  cmocka_unit_test(test_misaligned_pointers),
        cmocka_unit_test(test_null_pointers),  cmocka_unit_test(test_overlapping_tensors),
        cmocka_unit_test(test_workspaces),     cmocka_unit_test(test_memory_that_the_device_reaches),
        cmocka_unit_test(test_refused_launch), cmocka_unit_test(test_errors_of_others),
        cmocka_unit_test(test_queries),
    };
    return RUN_PROGRAM(argc, argv, &backend_cuda, tests);
}
