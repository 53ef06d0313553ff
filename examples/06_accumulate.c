/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How to sum grad_value of 16-bit values: FP32 (an fp32 image in the workspace, rounded once) or NATIVE (the device's
 * 16-bit atomics, no image). Prints error and time of both, for f16 and bf16, on a decoder's queries, and once more when
 * all of them look at the same spot. The error is that of the whole tensor, ||got - exact|| / ||exact||, against f64.
 *
 *     cc 06_accumulate.c $(pkg-config --cflags --libs msda) -lcudart -lm && ./a.out
 */
#include <msda/msda.h>

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { QUERIES = 900, HEADS = 8, HEAD_DIM = 32, LEVELS = 4, POINTS = 4, WARM_UP = 5, RUNS = 50 };
enum { OUTPUTS = QUERIES * HEADS * HEAD_DIM, WEIGHTS = QUERIES * HEADS * LEVELS * POINTS };
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

/* ---- 16-bit numbers ------------------------------------------------------------------------------------------------- */

/* Multiples of 1/64 between -1 and 1: both 16-bit types hold them exactly, so that inputs cost no error. */
static double draw(void)
{
    return (rand() % 129 - 64) / 64.0;
}

/* Of a number that f16 holds exactly. */
static uint16_t f16_of(double number)
{
    int exponent;
    if (number == 0.0)
        return 0;
    const double fraction = frexp(fabs(number), &exponent); /* 0.5 <= fraction < 1 */
    return (uint16_t)((number < 0.0 ? 0x8000 : 0) + (exponent + 13) * 1024 + (int)(fraction * 2048.0));
}

static double from_f16(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

/* bf16 is the upper half of an f32. */
static uint16_t bf16_of(double number)
{
    const float single = (float)number;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static double from_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float single;
    memcpy(&single, &wide, sizeof single);
    return single;
}

/* ---- one problem in f64 on the CPU: the exact answer -------------------------------------------------------------- */

typedef struct scene {
    msda_problem problem;
    int values;
    double *value, *locations, *weights, *grad_output, *grad_value;
} scene;

static double *doubles(int count)
{
    double *x = malloc((size_t)count * sizeof *x);
    if (x == NULL)
        exit(1);
    return x;
}

static scene make_scene(int same_spot)
{
    scene s;
    msda_problem_init(&s.problem);
    s.problem.value_dtype = MSDA_DTYPE_F64;
    s.problem.batch = 1;
    s.problem.queries = QUERIES;
    s.problem.heads = HEADS;
    s.problem.head_dim = HEAD_DIM;
    for (int l = 0, height = 100, width = 132; l < LEVELS; ++l, height /= 2, width /= 2)
        msda_problem_add_level(&s.problem, height, width, POINTS);
    s.values = (int)s.problem.value_length * HEADS * HEAD_DIM;

    s.value = doubles(s.values);
    s.grad_value = doubles(s.values);
    s.grad_output = doubles(OUTPUTS);
    s.weights = doubles(WEIGHTS);
    s.locations = doubles(WEIGHTS * 2);
    for (int i = 0; i < s.values; ++i)
        s.value[i] = draw();
    for (int i = 0; i < OUTPUTS; ++i)
        s.grad_output[i] = draw();
    for (int i = 0; i < WEIGHTS; ++i)
        s.weights[i] = 1.0 / (LEVELS * POINTS);
    for (int i = 0; i < WEIGHTS * 2; ++i)
        s.locations[i] = same_spot ? 0.5 : (float)(rand() / (RAND_MAX + 1.0));

    const msda_backward_args args = {
        .value = s.value,
        .sampling_locations = s.locations,
        .attention_weights = s.weights,
        .grad_output = s.grad_output,
        .grad_value = s.grad_value,
    };
    size_t size;
    msda_or_exit(msda_cpu_backward_workspace(&s.problem, 0, &size));
    void *workspace = aligned_alloc(64, (size + 63) / 64 * 64);
    msda_or_exit(msda_cpu_backward(&s.problem, &args, workspace, size, 0));
    free(workspace);
    return s;
}

static void free_scene(scene *s)
{
    free(s->value);
    free(s->grad_value);
    free(s->grad_output);
    free(s->weights);
    free(s->locations);
}

/* ---- the same on the device --------------------------------------------------------------------------------------- */

static void *upload_16_bit(const double *from, int count, uint16_t (*narrow)(double))
{
    uint16_t *host = malloc((size_t)count * sizeof *host);
    void *device;
    if (host == NULL)
        exit(1);
    for (int i = 0; i < count; ++i)
        host[i] = narrow(from[i]);
    succeed_or_exit(cudaMalloc(&device, (size_t)count * sizeof *host));
    succeed_or_exit(cudaMemcpy(device, host, (size_t)count * sizeof *host, cudaMemcpyHostToDevice));
    free(host);
    return device;
}

static void *upload_f32(const double *from, int count)
{
    float *host = malloc((size_t)count * sizeof *host);
    void *device;
    if (host == NULL)
        exit(1);
    for (int i = 0; i < count; ++i)
        host[i] = (float)from[i];
    succeed_or_exit(cudaMalloc(&device, (size_t)count * sizeof *host));
    succeed_or_exit(cudaMemcpy(device, host, (size_t)count * sizeof *host, cudaMemcpyHostToDevice));
    free(host);
    return device;
}

static double relative_error(const scene *s, const void *device_gradient, double (*widen)(uint16_t))
{
    uint16_t *got = malloc((size_t)s->values * sizeof *got);
    if (got == NULL)
        exit(1);
    succeed_or_exit(cudaMemcpy(got, device_gradient, (size_t)s->values * sizeof *got, cudaMemcpyDeviceToHost));
    double errors = 0.0, answers = 0.0;
    for (int i = 0; i < s->values; ++i) {
        const double error = widen(got[i]) - s->grad_value[i];
        errors += error * error;
        answers += s->grad_value[i] * s->grad_value[i];
    }
    free(got);
    return sqrt(errors / answers);
}

typedef struct measurement {
    double error, microseconds;
    size_t workspace_size;
} measurement;

static measurement measure(const scene *s, msda_dtype dtype, msda_accumulate accumulate)
{
    uint16_t (*const narrow)(double) = dtype == MSDA_DTYPE_F16 ? f16_of : bf16_of;
    double (*const widen)(uint16_t) = dtype == MSDA_DTYPE_F16 ? from_f16 : from_bf16;
    msda_problem problem = s->problem;
    problem.value_dtype = dtype; /* locations and weights are f32, the default beside 16-bit values */
    problem.accumulate = accumulate;

    measurement result;
    void *workspace, *grad_value;
    msda_or_exit(msda_cuda_backward_workspace(&problem, &result.workspace_size));
    succeed_or_exit(cudaMalloc(&workspace, result.workspace_size > 0 ? result.workspace_size : 1));
    succeed_or_exit(cudaMalloc(&grad_value, (size_t)s->values * sizeof(uint16_t)));
    void *value = upload_16_bit(s->value, s->values, narrow);
    void *grad_output = upload_16_bit(s->grad_output, OUTPUTS, narrow);
    void *locations = upload_f32(s->locations, WEIGHTS * 2);
    void *weights = upload_f32(s->weights, WEIGHTS);
    const msda_backward_args args = {
        .value = value,
        .sampling_locations = locations,
        .attention_weights = weights,
        .grad_output = grad_output,
        .grad_value = grad_value,
    };

    cudaStream_t stream;
    cudaEvent_t begin, end;
    float milliseconds;
    succeed_or_exit(cudaStreamCreate(&stream));
    succeed_or_exit(cudaEventCreate(&begin));
    succeed_or_exit(cudaEventCreate(&end));
    for (int i = 0; i < WARM_UP; ++i)
        msda_or_exit(msda_cuda_backward(&problem, &args, workspace, result.workspace_size, stream));
    succeed_or_exit(cudaEventRecord(begin, stream));
    for (int i = 0; i < RUNS; ++i)
        msda_or_exit(msda_cuda_backward(&problem, &args, workspace, result.workspace_size, stream));
    succeed_or_exit(cudaEventRecord(end, stream));
    succeed_or_exit(cudaEventSynchronize(end));
    succeed_or_exit(cudaEventElapsedTime(&milliseconds, begin, end));
    result.microseconds = 1000.0 * milliseconds / RUNS;
    result.error = relative_error(s, grad_value, widen);

    void *const buffers[] = {workspace, grad_value, value, grad_output, locations, weights};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; ++i)
        succeed_or_exit(cudaFree(buffers[i]));
    succeed_or_exit(cudaEventDestroy(begin));
    succeed_or_exit(cudaEventDestroy(end));
    succeed_or_exit(cudaStreamDestroy(stream));
    return result;
}

int main(void)
{
    int devices, failures = 0;
    if (msda_cuda_device_count(&devices) != MSDA_STATUS_SUCCESS) {
        printf("skipped: %s\n", msda_last_error());
        return NO_DEVICE;
    }
    printf("%-22s %-5s %-7s %10s %10s %14s\n", "points", "type", "mode", "error", "time, us", "workspace, KiB");
    for (int same_spot = 0; same_spot <= 1; ++same_spot) {
        scene s = make_scene(same_spot);
        for (int type = 0; type < 2; ++type) {
            const msda_dtype dtype = type == 0 ? MSDA_DTYPE_F16 : MSDA_DTYPE_BF16;
            const measurement fp32 = measure(&s, dtype, MSDA_ACCUMULATE_FP32);
            const measurement native = measure(&s, dtype, MSDA_ACCUMULATE_NATIVE);
            const char *points = same_spot ? "all on the same spot" : "spread over the levels";
            const char *name = type == 0 ? "f16" : "bf16";
            printf("%-22s %-5s %-7s %10.1e %10.1f %14zu\n", points, name, "fp32", fp32.error, fp32.microseconds,
                   fp32.workspace_size / 1024);
            printf("%-22s %-5s %-7s %10.1e %10.1f %14zu\n", points, name, "native", native.error, native.microseconds,
                   native.workspace_size / 1024);
            failures += fp32.error > (type == 0 ? 1e-3 : 8e-3); /* one rounding; native has no such bound */
        }
        free_scene(&s);
    }
    return failures == 0 ? 0 : 1;
}
