/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 01_forward on a GPU: the same problem struct, device pointers, and a stream in place of the number of threads. The call
 * only queues work; the result is there once the stream is synchronised.
 *
 *     cc 04_forward_cuda.c $(pkg-config --cflags --libs msda) -lcudart && ./a.out
 */
#include <msda/msda.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEIGHT = 4, WIDTH = 6, QUERIES = 4, HEADS = 1, HEAD_DIM = 2, POINTS = 1 };
enum { NO_DEVICE = 77 }; /* exit status: ctest counts it as skipped */

static void succeed_or_exit(cudaError_t error)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
        exit(1);
    }
}

/* A copy of host memory on the device. */
static void *on_device(const void *host, size_t size)
{
    void *device;
    succeed_or_exit(cudaMalloc(&device, size));
    succeed_or_exit(cudaMemcpy(device, host, size, cudaMemcpyHostToDevice));
    return device;
}

int main(void)
{
    int devices;
    if (msda_cuda_device_count(&devices) != MSDA_STATUS_SUCCESS) {
        printf("skipped: %s\n", msda_last_error());
        return NO_DEVICE;
    }

    static float value[1][HEIGHT * WIDTH][HEADS][HEAD_DIM];
    for (int row = 0; row < HEIGHT; ++row) {
        for (int column = 0; column < WIDTH; ++column) {
            value[0][row * WIDTH + column][0][0] = (float)column;
            value[0][row * WIDTH + column][0][1] = (float)row;
        }
    }
    const float locations[1][QUERIES][HEADS][POINTS][2] = {
        {{{{0.5f, 0.5f}}}, {{{0.5f / WIDTH, 0.5f / HEIGHT}}}, {{{0.25f, 0.75f}}}, {{{1.0f, 0.5f}}}}};
    const float weights[1][QUERIES][HEADS][POINTS] = {{{{1.0f}}, {{1.0f}}, {{1.0f}}, {{1.0f}}}};
    float output[1][QUERIES][HEADS][HEAD_DIM], expected[1][QUERIES][HEADS][HEAD_DIM];

    msda_problem problem;
    msda_problem_init(&problem);
    problem.value_dtype = MSDA_DTYPE_F32;
    problem.batch = 1;
    problem.queries = QUERIES;
    problem.heads = HEADS;
    problem.head_dim = HEAD_DIM;
    msda_problem_add_level(&problem, HEIGHT, WIDTH, POINTS);

    cudaStream_t stream;
    void *device_output;
    succeed_or_exit(cudaStreamCreate(&stream));
    succeed_or_exit(cudaMalloc(&device_output, sizeof output));
    const msda_forward_args args = {
        .value = on_device(value, sizeof value),
        .sampling_locations = on_device(locations, sizeof locations),
        .attention_weights = on_device(weights, sizeof weights),
        .output = device_output,
    };
    if (msda_cuda_forward(&problem, &args, stream) != MSDA_STATUS_SUCCESS) {
        fprintf(stderr, "%s\n", msda_last_error());
        return 1;
    }
    succeed_or_exit(cudaMemcpyAsync(output, device_output, sizeof output, cudaMemcpyDeviceToHost, stream));
    succeed_or_exit(cudaStreamSynchronize(stream));

    /* The same on the CPU: only the memory and the last argument differ. */
    const msda_forward_args host_args = {
        .value = value, .sampling_locations = locations, .attention_weights = weights, .output = expected};
    if (msda_cpu_forward(&problem, &host_args, 0) != MSDA_STATUS_SUCCESS) {
        fprintf(stderr, "%s\n", msda_last_error());
        return 1;
    }

    printf("kernel %s\nlocation (x, y)     CUDA (column, row)     CPU\n", msda_cuda_kernel_name(&problem));
    int differences = 0;
    for (int q = 0; q < QUERIES; ++q) {
        const float *on_gpu = output[0][q][0], *on_cpu = expected[0][q][0];
        printf("(%.4f, %.4f)    (%.3f, %.3f)         (%.3f, %.3f)\n", locations[0][q][0][0][0],
               locations[0][q][0][0][1], on_gpu[0], on_gpu[1], on_cpu[0], on_cpu[1]);
        for (int c = 0; c < HEAD_DIM; ++c)
            differences += on_gpu[c] - on_cpu[c] > 1e-5f || on_cpu[c] - on_gpu[c] > 1e-5f;
    }
    return differences == 0 ? 0 : 1;
}
