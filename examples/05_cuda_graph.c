/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training step's forward and backward captured in a CUDA graph, then replayed on new inputs in the same memory. No call
 * allocates, synchronises or reads anything back, so all of them can be captured; memory, the workspace included, is the
 * caller's and must stay where it is as long as the graph lives.
 *
 *     cc 05_cuda_graph.c $(pkg-config --cflags --libs msda) -lcudart && ./a.out
 */
#include <msda/msda.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEIGHT = 32, WIDTH = 48, QUERIES = 100, HEADS = 8, HEAD_DIM = 32, POINTS = 4, REPLAYS = 4 };
enum { VALUES = HEIGHT * WIDTH * HEADS * HEAD_DIM, OUTPUTS = QUERIES * HEADS * HEAD_DIM };
enum { WEIGHTS = QUERIES * HEADS * POINTS, LOCATIONS = WEIGHTS * 2 };
enum { NO_DEVICE = 77 }; /* exit status: ctest counts it as skipped */

static void succeed_or_exit(cudaError_t error)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
        exit(1);
    }
}

static void msda_or_exit(msda_status status)
{
    if (status != MSDA_STATUS_SUCCESS) {
        fprintf(stderr, "%s: %s\n", msda_status_string(status), msda_last_error());
        exit(1);
    }
}

static float *floats_on_device(int count)
{
    void *device;
    succeed_or_exit(cudaMalloc(&device, (size_t)count * sizeof(float)));
    return device;
}

static void send(float *device, const float *host, int count, cudaStream_t stream)
{
    succeed_or_exit(cudaMemcpyAsync(device, host, (size_t)count * sizeof(float), cudaMemcpyHostToDevice, stream));
}

static void fill(float *x, int count, float low, float high)
{
    for (int i = 0; i < count; ++i)
        x[i] = low + (high - low) * (float)rand() / (float)RAND_MAX;
}

int main(void)
{
    static float value[VALUES], locations[LOCATIONS], weights[WEIGHTS], grad_output[OUTPUTS], grad_value[VALUES];
    int devices;
    if (msda_cuda_device_count(&devices) != MSDA_STATUS_SUCCESS) {
        printf("skipped: %s\n", msda_last_error());
        return NO_DEVICE;
    }

    msda_problem problem;
    msda_problem_init(&problem);
    problem.value_dtype = MSDA_DTYPE_F32;
    problem.batch = 1;
    problem.queries = QUERIES;
    problem.heads = HEADS;
    problem.head_dim = HEAD_DIM;
    msda_problem_add_level(&problem, HEIGHT, WIDTH, POINTS);

    float *device_value = floats_on_device(VALUES), *device_locations = floats_on_device(LOCATIONS);
    float *device_weights = floats_on_device(WEIGHTS), *device_output = floats_on_device(OUTPUTS);
    float *device_grad_output = floats_on_device(OUTPUTS), *device_grad_value = floats_on_device(VALUES);
    size_t workspace_size;
    void *workspace;
    msda_or_exit(msda_cuda_backward_workspace(&problem, &workspace_size));
    succeed_or_exit(cudaMalloc(&workspace, workspace_size > 0 ? workspace_size : 1));

    const msda_forward_args forward = {
        .value = device_value,
        .sampling_locations = device_locations,
        .attention_weights = device_weights,
        .output = device_output,
    };
    const msda_backward_args backward = {
        .value = device_value,
        .sampling_locations = device_locations,
        .attention_weights = device_weights,
        .grad_output = device_grad_output,
        .grad_value = device_grad_value,
    };

    /* Between begin and end the calls are recorded, not run. */
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    succeed_or_exit(cudaStreamCreate(&stream));
    succeed_or_exit(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    msda_or_exit(msda_cuda_forward(&problem, &forward, stream));
    msda_or_exit(msda_cuda_backward(&problem, &backward, workspace, workspace_size, stream));
    succeed_or_exit(cudaStreamEndCapture(stream, &graph));
    succeed_or_exit(cudaGraphInstantiate(&executable, graph, 0));

    int failures = 0;
    for (int replay = 0; replay < REPLAYS; ++replay) {
        fill(value, VALUES, -1.0f, 1.0f);
        fill(locations, LOCATIONS, 0.1f, 0.9f);
        for (int i = 0; i < WEIGHTS; ++i)
            weights[i] = 1.0f / POINTS;
        for (int i = 0; i < OUTPUTS; ++i)
            grad_output[i] = (float)(replay + 1);
        send(device_value, value, VALUES, stream);
        send(device_locations, locations, LOCATIONS, stream);
        send(device_weights, weights, WEIGHTS, stream);
        send(device_grad_output, grad_output, OUTPUTS, stream);
        succeed_or_exit(cudaGraphLaunch(executable, stream));
        succeed_or_exit(
            cudaMemcpyAsync(grad_value, device_grad_value, sizeof grad_value, cudaMemcpyDeviceToHost, stream));
        succeed_or_exit(cudaStreamSynchronize(stream));

        /* Weights of a head add up to 1 and all points lie inside, so the gradient hands on exactly what came in. */
        double sum = 0.0;
        for (int i = 0; i < VALUES; ++i)
            sum += grad_value[i];
        const double expected = (double)OUTPUTS * (replay + 1);
        printf("replay %d: sum of grad_value %.2f, of grad_output %.2f\n", replay, sum, expected);
        failures += sum > expected * 0.9999 && sum < expected * 1.0001 ? 0 : 1;
    }
    return failures == 0 ? 0 : 1;
}
