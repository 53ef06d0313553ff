/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes: a whole encoder, many queries, wide heads, and more elements than 32 bits count. Answers come from the CPU; where
 * the problem is too large for it, from a small problem that contains the same samples.
 */
#include "against_cpu.h"
#include "element.h"

#include <stdlib.h>

/* ---- a whole encoder, and any head_dim --------------------------------------------------------------------------- */

/* Deformable-DETR at 800 x 1333: every pixel of four levels asks, S = Q = 22223. */
static msda_problem encoder(int32_t batch)
{
    msda_problem problem = problem_of_level(batch, 22223, 8, 32, 100, 167, 4);
    msda_problem_add_level(&problem, 50, 84, 4);
    msda_problem_add_level(&problem, 25, 42, 4);
    msda_problem_add_level(&problem, 13, 21, 4);
    return problem;
}

static void check_modes_against_cpu(const msda_problem *problem, const char *name)
{
    trial t, answer;
    trial_open(&t, problem, 0);
    t.name = name;
    inputs_fill(&t, 1);
    cpu_answer_open(&answer, &t);
    for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate) {
        t.problem.accumulate = (msda_accumulate)accumulate;
        check_against_answer(&t, &answer);
    }
    trial_close(&answer);
    trial_close(&t);
}

static void test_encoder_f32(void **state)
{
    (void)state;
    const msda_problem problem = encoder(full_or_few(2, 1));
    assert_int_equal(problem.value_length, 22223);
    check_modes_against_cpu(&problem, "encoder");
}

static void test_encoder_f16(void **state)
{
    (void)state;
    const msda_problem problem = problem_with_dtype(encoder(full_or_few(2, 1)), MSDA_DTYPE_F16);
    check_modes_against_cpu(&problem, "encoder");
}

static void test_head_dims(void **state)
{
    (void)state;
    static const int32_t head_dims[] = {1, 3, 17, 33, 80, 513, 1025};
    static const msda_dtype dtypes[] = {MSDA_DTYPE_F32, MSDA_DTYPE_F16, MSDA_DTYPE_BF16, MSDA_DTYPE_F64};
    for (size_t i = 0; i < sizeof head_dims / sizeof head_dims[0]; ++i)
        for (int k = 0; k < 4; ++k) {
            msda_problem problem = problem_of_level(2, 300, 3, head_dims[i], 20, 31, 4);
            msda_problem_add_level(&problem, 10, 16, 3);
            problem.value_dtype = dtypes[k];
            check_modes_against_cpu(&problem, "head_dim");
        }
}

/* ---- many queries: each like a call of its own ----------------------------------------------------------------------- */

/* Copies query q of one trial to query 0 of the other. */
static void copy_query(trial *to, const trial *from, msda_tensor tensor, int64_t q)
{
    const int64_t count = trial_count(to, tensor), first = q * count;
    for (int64_t i = 0; i < count; ++i)
        trial_set(to, tensor, i, trial_get(from, tensor, first + i));
}

static void check_query(const trial *all, int64_t q)
{
    static const msda_tensor inputs[] = {MSDA_TENSOR_LOCATIONS, MSDA_TENSOR_WEIGHTS, MSDA_TENSOR_GRAD_OUTPUT};
    static const msda_tensor outputs[] = {MSDA_TENSOR_OUTPUT, MSDA_TENSOR_GRAD_LOCATIONS, MSDA_TENSOR_GRAD_WEIGHTS};
    msda_problem problem = all->problem;
    problem.queries = 1;
    trial one;
    expectation e;
    trial_open(&one, &problem, 0);
    one.name = "one of many queries";
    trial_copy(&one, all, MSDA_TENSOR_VALUE);
    for (int i = 0; i < 3; ++i)
        copy_query(&one, all, inputs[i], q);
    expectation_open(&e, &one);
    for (int i = 0; i < 3; ++i) {
        copy_query(&one, all, outputs[i], q);
        expectation_check(&e, &one, outputs[i]);
    }
    expectation_close(&e);
    trial_close(&one);
}

static void check_many_queries(int32_t queries, int32_t heads, int32_t head_dim, msda_dtype dtype)
{
    msda_problem problem = problem_of_level(1, queries, heads, head_dim, 4, 6, 2);
    problem.value_dtype = dtype;
    trial t;
    trial_open(&t, &problem, 0);
    inputs_fill(&t, 2);
    device_trial_once(&t);
    check_query(&t, 0);
    check_query(&t, queries / 2);
    check_query(&t, queries - 1);
    trial_close(&t);
}

/* 4096 and 65535 blocks are where other implementations cap their grids. */
static void test_many_queries(void **state)
{
    (void)state;
    static const int32_t queries[] = {512, 513, 1024, 5000, 8192, 22000};
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; ++i)
        check_many_queries(queries[i], 8, 4, MSDA_DTYPE_F32);
    check_many_queries(200000, 8, 1, MSDA_DTYPE_F32);
    check_many_queries(70000, 1, 3, MSDA_DTYPE_F16);
    check_many_queries(3000, 8, 96, MSDA_DTYPE_F32);
}

/* ---- more elements than 32 bits count ------------------------------------------------------------------------------ */

/*
 * A level of f16 with 1.125 * 2^31 elements. It is NaN but for small windows, one a query, far apart; a query's points lie
 * inside its window. Sides are powers of two and offsets are multiples of 1/64, so that every location is exact, in the
 * level as well as in the window: the answer is that of a batch of windows, with the location gradients scaled.
 */
enum {
    HUGE_WIDTH = 4096,
    HUGE_HEIGHT = 2048,
    HUGE_HEADS = 9,
    HUGE_HEAD_DIM = 32,
    WINDOW = 4, /* pixels a side */
    WINDOWS = 20,
    HUGE_POINTS = 3
};

static const size_t huge_row_size = (size_t)HUGE_HEADS * HUGE_HEAD_DIM * 2;
static const size_t huge_size = (size_t)HUGE_WIDTH * HUGE_HEIGHT * HUGE_HEADS * HUGE_HEAD_DIM * 2;

/* The upper left pixel of window i: corners and edges of the level first, and beyond 2^31 elements. */
static void window_at(int i, int *x, int *y)
{
    *x = i % 4 * ((HUGE_WIDTH - WINDOW) / 3);
    *y = i / 4 * ((HUGE_HEIGHT - WINDOW) / (WINDOWS / 4 - 1));
}

static msda_problem windows_problem(void)
{
    return problem_with_dtype(problem_of_level(WINDOWS, 1, HUGE_HEADS, HUGE_HEAD_DIM, WINDOW, WINDOW, HUGE_POINTS),
                              MSDA_DTYPE_F16);
}

static msda_problem huge_problem(msda_accumulate accumulate)
{
    msda_problem problem = problem_with_dtype(
        problem_of_level(1, WINDOWS, HUGE_HEADS, HUGE_HEAD_DIM, HUGE_HEIGHT, HUGE_WIDTH, HUGE_POINTS), MSDA_DTYPE_F16);
    problem.accumulate = accumulate;
    return problem;
}

/* In pixels of the window, between its outermost pixels' centres and off the knots; in multiples of 1/64. */
static void fill_windows(trial *t)
{
    uint64_t state = 3;
    inputs_fill_tensor(t, MSDA_TENSOR_VALUE, &state, -1.0, 1.0);
    inputs_fill_tensor(t, MSDA_TENSOR_WEIGHTS, &state, -1.0, 1.0);
    inputs_fill_tensor(t, MSDA_TENSOR_GRAD_OUTPUT, &state, -1.0, 1.0);
    for (int64_t i = 0; i < trial_count(t, MSDA_TENSOR_LOCATIONS); ++i) {
        const double pixel = (double)random_below(&state, WINDOW - 1) + (double)(8 + random_below(&state, 48)) / 64.0;
        trial_set(t, MSDA_TENSOR_LOCATIONS, i, (pixel + 0.5) / WINDOW);
    }
}

/* The windows' locations, in the level. */
static float *huge_locations(const trial *windows)
{
    const int64_t count = trial_count(windows, MSDA_TENSOR_LOCATIONS), per_window = count / WINDOWS;
    float *locations = malloc((size_t)count * sizeof *locations);
    assert_non_null(locations);
    for (int64_t i = 0; i < count; ++i) {
        int x, y;
        window_at((int)(i / per_window), &x, &y);
        const double pixel = trial_get(windows, MSDA_TENSOR_LOCATIONS, i) * WINDOW;
        locations[i] = (float)(i % 2 ? (y + pixel) / HUGE_HEIGHT : (x + pixel) / HUGE_WIDTH);
    }
    return locations;
}

/* Copies windows between the level on the device and a trial's tensor: WINDOW rows of WINDOW pixels each. */
static void copy_windows(trial *windows, msda_tensor tensor, char *level, enum cudaMemcpyKind kind)
{
    char *host = (char *)windows->tensors[tensor].memory.data;
    const size_t run = WINDOW * huge_row_size;
    for (int i = 0; i < WINDOWS; ++i) {
        int x, y;
        window_at(i, &x, &y);
        char *const device = level + ((size_t)y * HUGE_WIDTH + (size_t)x) * huge_row_size;
        char *const window = host + (size_t)i * WINDOW * run;
        if (kind == cudaMemcpyHostToDevice)
            REQUIRE(cudaMemcpy2D(device, HUGE_WIDTH * huge_row_size, window, run, run, WINDOW, kind));
        else
            REQUIRE(cudaMemcpy2D(window, run, device, HUGE_WIDTH * huge_row_size, run, WINDOW, kind));
    }
}

/* Once the windows are taken out, nothing is left. */
static void require_zero(char *level)
{
    enum { CHUNK = 1 << 26 };
    static const char zeros[1 << 16];
    for (int i = 0; i < WINDOWS; ++i) {
        int x, y;
        window_at(i, &x, &y);
        REQUIRE(cudaMemset2D(level + ((size_t)y * HUGE_WIDTH + (size_t)x) * huge_row_size, HUGE_WIDTH * huge_row_size,
                             0, WINDOW * huge_row_size, WINDOW));
    }
    char *chunk = malloc(CHUNK);
    assert_non_null(chunk);
    for (size_t at = 0; at < huge_size; at += CHUNK) {
        const size_t size = huge_size - at < CHUNK ? huge_size - at : CHUNK;
        REQUIRE(cudaMemcpy(chunk, level + at, size, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < size; i += sizeof zeros) {
            const size_t rest = size - i < sizeof zeros ? size - i : sizeof zeros;
            if (memcmp(chunk + i, zeros, rest) != 0)
                fail_msg("grad_value is not 0 somewhere in bytes %zu..%zu, where no point is", at + i,
                         at + i + rest - 1);
        }
    }
    free(chunk);
}

static void skip_unless_free(const char *test, size_t needed)
{
    size_t available, total;
    REQUIRE(cudaMemGetInfo(&available, &total));
    if (available >= needed)
        return;
    print_message("%s: needs %zu MiB of device memory, %zu are free\n", test, needed >> 20, available >> 20);
    skip();
}

/* Location gradients grow with the level: a unit of location is more pixels. */
static void scale_location_gradients(trial *windows)
{
    for (int64_t i = 0; i < trial_count(windows, MSDA_TENSOR_GRAD_LOCATIONS); ++i)
        trial_set(windows, MSDA_TENSOR_GRAD_LOCATIONS, i,
                  trial_get(windows, MSDA_TENSOR_GRAD_LOCATIONS, i) * WINDOW / (i % 2 ? HUGE_HEIGHT : HUGE_WIDTH));
}

static void check_huge(const char *test, msda_accumulate accumulate)
{
    const msda_problem small = windows_problem(), huge = huge_problem(accumulate);
    size_t workspace_size;
    require_success(msda_cuda_backward_workspace(&huge, &workspace_size));
    skip_unless_free(test, 2 * huge_size + workspace_size + ((size_t)1 << 28));

    /* The trial is a batch of windows; on the device its small tensors serve the large problem as they are. */
    trial t;
    device_trial d;
    expectation e;
    trial_open(&t, &small, 0);
    t.name = test;
    t.problem.accumulate = accumulate;
    fill_windows(&t);
    expectation_open(&e, &t);
    device_trial_open(&d, &t);

    char *value, *grad_value;
    void *workspace = NULL;
    float *locations = huge_locations(&t);
    REQUIRE(cudaMalloc((void **)&value, huge_size));
    REQUIRE(cudaMalloc((void **)&grad_value, huge_size));
    if (workspace_size > 0)
        REQUIRE(cudaMalloc(&workspace, workspace_size));
    REQUIRE(cudaMemset(value, 0xFF, huge_size));
    REQUIRE(cudaMemset(grad_value, 0xFF, huge_size));
    copy_windows(&t, MSDA_TENSOR_VALUE, value, cudaMemcpyHostToDevice);
    REQUIRE(cudaMemcpy(d.tensors[MSDA_TENSOR_LOCATIONS], locations, t.tensors[MSDA_TENSOR_LOCATIONS].memory.size,
                       cudaMemcpyHostToDevice));

    const msda_forward_args forward = {value, d.tensors[MSDA_TENSOR_LOCATIONS], d.tensors[MSDA_TENSOR_WEIGHTS],
                                       d.tensors[MSDA_TENSOR_OUTPUT]};
    const msda_backward_args backward = {value,
                                         d.tensors[MSDA_TENSOR_LOCATIONS],
                                         d.tensors[MSDA_TENSOR_WEIGHTS],
                                         d.tensors[MSDA_TENSOR_GRAD_OUTPUT],
                                         grad_value,
                                         d.tensors[MSDA_TENSOR_GRAD_LOCATIONS],
                                         d.tensors[MSDA_TENSOR_GRAD_WEIGHTS]};
    require_success(msda_cuda_forward(&huge, &forward, NULL));
    require_success(msda_cuda_backward(&huge, &backward, workspace, workspace_size, NULL));
    device_trial_fetch(&d, MSDA_TENSOR_OUTPUT, NULL);
    device_trial_fetch(&d, MSDA_TENSOR_GRAD_LOCATIONS, NULL);
    device_trial_fetch(&d, MSDA_TENSOR_GRAD_WEIGHTS, NULL);
    copy_windows(&t, MSDA_TENSOR_GRAD_VALUE, grad_value, cudaMemcpyDeviceToHost);
    scale_location_gradients(&t);
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        if (trial_is_output((msda_tensor)tensor))
            expectation_check(&e, &t, (msda_tensor)tensor);
    require_zero(grad_value);

    free(locations);
    REQUIRE(cudaFree(workspace));
    REQUIRE(cudaFree(grad_value));
    REQUIRE(cudaFree(value));
    device_trial_close(&d);
    expectation_close(&e);
    trial_close(&t);
}

static void test_huge_value_fp32(void **state)
{
    (void)state;
    check_huge("test_huge_value_fp32", MSDA_ACCUMULATE_FP32);
}

static void test_huge_value_native(void **state)
{
    (void)state;
    check_huge("test_huge_value_native", MSDA_ACCUMULATE_NATIVE);
}

static void test_huge_value_deterministic(void **state)
{
    (void)state;
    check_huge("test_huge_value_deterministic", MSDA_ACCUMULATE_DETERMINISTIC);
}

/*
 * More than 2^31 location numbers, all of them NaN (no point counts) but those of the last query, whose results must be
 * those of a call with that query alone; grad_value shows that none of the others was mistaken for it.
 */
static void test_huge_locations(void **state)
{
    (void)state;
    enum { POINTS = 32, HEAD_DIM = 4 };
    const int32_t queries = (1 << 25) + 1;
    const msda_problem problem = problem_of_level(1, queries, 1, HEAD_DIM, 5, 7, POINTS);
    msda_problem last_problem = problem;
    last_problem.queries = 1;
    size_t sizes[MSDA_TENSOR_COUNT], workspace_size, needed = (size_t)1 << 28;
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i) {
        require_success(msda_tensor_size(&problem, (msda_tensor)i, &sizes[i]));
        needed += i == MSDA_TENSOR_REFERENCES || i == MSDA_TENSOR_GRAD_REFERENCES ? 0 : sizes[i];
    }
    require_success(msda_cuda_backward_workspace(&problem, &workspace_size));
    skip_unless_free("test_huge_locations", needed + workspace_size);

    trial last;
    expectation e;
    trial_open(&last, &last_problem, 0);
    last.name = "last of many queries";
    inputs_fill(&last, 4);
    expectation_open(&e, &last);

    char *at[MSDA_TENSOR_COUNT] = {NULL};
    void *workspace = NULL;
    if (workspace_size > 0)
        REQUIRE(cudaMalloc(&workspace, workspace_size));
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i) {
        const guarded *host = &last.tensors[i].memory;
        if (host->size == 0)
            continue;
        REQUIRE(cudaMalloc((void **)&at[i], sizes[i]));
        REQUIRE(cudaMemset(at[i], i == MSDA_TENSOR_GRAD_OUTPUT ? 0 : 0xFF, sizes[i]));
        REQUIRE(cudaMemcpy(at[i] + sizes[i] - host->size, host->data, host->size, cudaMemcpyHostToDevice));
    }
    const msda_forward_args forward = {at[MSDA_TENSOR_VALUE], at[MSDA_TENSOR_LOCATIONS], at[MSDA_TENSOR_WEIGHTS],
                                       at[MSDA_TENSOR_OUTPUT]};
    const msda_backward_args backward = {at[MSDA_TENSOR_VALUE],       at[MSDA_TENSOR_LOCATIONS],
                                         at[MSDA_TENSOR_WEIGHTS],     at[MSDA_TENSOR_GRAD_OUTPUT],
                                         at[MSDA_TENSOR_GRAD_VALUE],  at[MSDA_TENSOR_GRAD_LOCATIONS],
                                         at[MSDA_TENSOR_GRAD_WEIGHTS]};
    require_success(msda_cuda_forward(&problem, &forward, NULL));
    require_success(msda_cuda_backward(&problem, &backward, workspace, workspace_size, NULL));
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i) {
        const guarded *host = &last.tensors[i].memory;
        if (at[i] && trial_is_output((msda_tensor)i)) {
            REQUIRE(cudaMemcpy(host->data, at[i] + sizes[i] - host->size, host->size, cudaMemcpyDeviceToHost));
            expectation_check(&e, &last, (msda_tensor)i);
        }
        REQUIRE(cudaFree(at[i]));
    }
    REQUIRE(cudaFree(workspace));
    expectation_close(&e);
    trial_close(&last);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encoder_f32),
        cmocka_unit_test(test_encoder_f16),
        cmocka_unit_test(test_head_dims),
        cmocka_unit_test(test_many_queries),
        cmocka_unit_test(test_huge_value_fp32),
        cmocka_unit_test(test_huge_value_native),
        cmocka_unit_test(test_huge_value_deterministic),
        cmocka_unit_test(test_huge_locations),
    };
    return RUN_PROGRAM(argc, argv, &backend_cuda, tests);
}
