/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The root of the chain of trust: answers worked out by hand, and inputs whose answer is plain to see. GVn refers to the
 * hand-worked vectors listed in docs/testing.md.
 */
#include "trial.h"

#include <math.h>
#include <stdlib.h>

#include "element.h"
#include "problems.h"

/* Few operations on small numbers: four roundings of the tensor's own type, relative to its largest number. */
static void expect(const trial *t, msda_tensor tensor, const double *numbers, size_t count)
{
    double largest = 0.0;
    assert_int_equal(trial_count(t, tensor), count);
    for (size_t i = 0; i < count; ++i)
        largest = fmax(largest, fabs(numbers[i]));
    const double roundoff =
        fmax(element_roundoff(t->tensors[tensor].dtype), element_roundoff(t->problem.value_dtype) / 4096.0);
    const double bound = 4.0 * roundoff * largest;
    for (size_t i = 0; i < count; ++i) {
        const double got = trial_get(t, tensor, (int64_t)i);
        if (!(fabs(got - numbers[i]) <= bound))
            fail_msg("%s: %s, value %s: %s at %s: got %.9g, expected %.9g +- %.2g", backend_label(), t->name,
                     element_name(t->problem.value_dtype), trial_tensor_name(t, tensor),
                     trial_describe(t, tensor, (int64_t)i), got, numbers[i], bound);
    }
}

#define EXPECT(t, tensor, ...)                                                                                         \
    expect(t, tensor, (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

/* One head and channel, weight 1 and g = 1 unless set afterwards. */
static void open_level(trial *t, const char *name, msda_dtype dtype, int32_t queries, int32_t height, int32_t width,
                       int32_t points)
{
    const msda_problem problem = problem_with_dtype(problem_of_level(1, queries, 1, 1, height, width, points), dtype);
    trial_open(t, &problem, 0);
    t->name = name;
    trial_set_all(t, MSDA_TENSOR_WEIGHTS, 1.0);
    trial_set_all(t, MSDA_TENSOR_GRAD_OUTPUT, 1.0);
}

static void run(trial *t)
{
    trial_poison_outputs(t);
    trial_forward(t);
    trial_backward(t);
}

/* ---- hand-worked vectors --------------------------------------------------------------------------------------- */

static void check_gv1(msda_dtype dtype)
{
    trial t;
    open_level(&t, "GV1", dtype, 1, 2, 2, 1);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 1, 2, 3, 4);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0.5, 0.5);
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, 2.5);
    EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 0.25, 0.25, 0.25, 0.25);
    EXPECT(&t, MSDA_TENSOR_GRAD_LOCATIONS, 2, 4);
    EXPECT(&t, MSDA_TENSOR_GRAD_WEIGHTS, 2.5);
    trial_close(&t);
}

/* A row of four pixels, swept from outside on the left to outside on the right. */
static void check_gv2(msda_dtype dtype)
{
    static const double x[] = {-0.125, -0.0625, 0, 0.125, 0.375, 0.5, 0.875, 1.0, 1.0625, 1.125, 1.2};
    trial t;
    open_level(&t, "GV2", dtype, 11, 1, 4, 1);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40);
    for (int q = 0; q < 11; ++q) {
        trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q, x[q]);
        trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q + 1, 0.5);
    }
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, 0, 2.5, 5, 10, 20, 25, 40, 20, 10, 0, 0);
    EXPECT(&t, MSDA_TENSOR_GRAD_WEIGHTS, 0, 2.5, 5, 10, 20, 25, 40, 20, 10, 0, 0);
    EXPECT(&t, MSDA_TENSOR_GRAD_LOCATIONS, 0, 0, 40, -2.5, 40, -5, 40, -10, 40, -20, 40, -25, -160, -40, -160, -20,
           -160, -10, 0, 0, 0, 0);
    EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 0.25 + 0.5 + 1, 1.5, 0.5, 1 + 0.5 + 0.25);
    trial_close(&t);
}

/* The same row where the map is continued by its border. */
static void check_gv2_border(msda_dtype dtype)
{
    static const double x[] = {-0.5, 0.0, 0.125, 0.5, 0.875, 1.0, 1.5};
    trial t;
    open_level(&t, "GV2 border", dtype, 7, 1, 4, 1);
    t.problem.padding = MSDA_PADDING_BORDER;
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40);
    for (int q = 0; q < 7; ++q) {
        trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q, x[q]);
        trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q + 1, 0.5);
    }
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, 10, 10, 10, 25, 40, 40, 40);
    EXPECT(&t, MSDA_TENSOR_GRAD_LOCATIONS, 0, 0, 0, 0, 40, 0, 40, 0, 0, 0, 0, 0, 0, 0);
    EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 3, 0.5, 0.5, 3);
    trial_close(&t);
}

/* align_corners: 0 and 1 are the centres of the outer pixels. */
static void check_gv2_align_corners(msda_dtype dtype)
{
    static const double x[] = {0, 0.5, 1};
    trial t;
    open_level(&t, "GV2 align_corners", dtype, 3, 1, 4, 1);
    t.problem.align_corners = 1;
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40);
    for (int q = 0; q < 3; ++q) {
        trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q, x[q]);
        trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q + 1, 0.5);
    }
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, 10, 25, 40);
    /* x moves by W - 1 pixels a unit, y by H - 1 = 0 */
    EXPECT(&t, MSDA_TENSOR_GRAD_LOCATIONS, 30, 0, 30, 0, -120, 0);
    trial_close(&t);
}

/* x goes with width: half a level to the right is W/2 pixels, not H/2. */
static void check_gv4(msda_dtype dtype)
{
    trial t;
    open_level(&t, "GV4", dtype, 1, 2, 4, 1);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 1, 2, 3, 4, 5, 6, 7, 8);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0.75, 0.5);
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, 5.5);
    EXPECT(&t, MSDA_TENSOR_GRAD_LOCATIONS, 4, 8);
    EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 0, 0, 0.25, 0.25, 0, 0, 0.25, 0.25);
    trial_close(&t);
}

static void check_gv5(msda_dtype dtype)
{
    trial t;
    open_level(&t, "GV5", dtype, 7, 1, 1, 1);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 8);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0.5, 0.5, 0, 0.5, 0, 0, 1, 1, 0.25, 0.75, -0.5, 0.5, 1.5, 0.5);
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, 8, 4, 2, 2, 4.5, 0, 0);
    EXPECT(&t, MSDA_TENSOR_GRAD_LOCATIONS, -8, -8, 8, -4, 4, 4, -4, -4, 6, -6, 0, 0, 0, 0);
    EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 1 + 0.5 + 0.25 + 0.25 + 0.5625);
    trial_close(&t);
}

static msda_problem two_heads_two_levels(msda_dtype dtype)
{
    static const named_problem named = {"GV6", 1, 1, 2, 2, 0, {{2, 2, 1, 0}, {1, 1, 1, 0}}};
    return problem_with_dtype(problem_of(&named), dtype);
}

static void check_gv6(msda_dtype dtype)
{
    trial t;
    const msda_problem problem = two_heads_two_levels(dtype);
    trial_open(&t, &problem, 0);
    t.name = "GV6";
    for (int i = 0; i < 20; ++i)
        trial_set(&t, MSDA_TENSOR_VALUE, i, i + 1);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0.5, 0.5, 0.5, 0.5, 0.25, 0.75, 0, 0.5);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_WEIGHTS, 0.25, 0.75, 0.5, 0.5);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_GRAD_OUTPUT, 1, 2, 3, 4);
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, 14.5, 15.5, 10.25, 11.0);
    EXPECT(&t, MSDA_TENSOR_GRAD_WEIGHTS, 23, 53, 81, 68.5);
    EXPECT(&t, MSDA_TENSOR_GRAD_LOCATIONS, 6, 12, -39.75, -39.75, 28, -81, 68.5, -34.25);
    EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 0.0625, 0.125, 0, 0, 0.0625, 0.125, 0, 0, 0.0625, 0.125, 1.5, 2.0, 0.0625, 0.125,
           0, 0, 0.75, 1.5, 0.75, 1.0);
    trial_close(&t);
}

static const double wild_numbers[] = {NAN, INFINITY, -INFINITY, 1e20, -1e20, 3e38, -3e38, 5e8, 1e9, 1e10};

/* Point A at pixel 1; point B at a wild x (first ten queries) or y. B contributes nothing, anywhere. */
static void check_gv8(msda_dtype dtype)
{
    trial t;
    open_level(&t, "GV8", dtype, 20, 1, 4, 2);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40);
    trial_set_all(&t, MSDA_TENSOR_WEIGHTS, 0.5);
    for (int q = 0; q < 20; ++q) {
        const double wild = wild_numbers[q % 10];
        const double locations[] = {0.375, 0.5, q < 10 ? wild : 0.375, q < 10 ? 0.5 : wild};
        for (int i = 0; i < 4; ++i)
            trial_set(&t, MSDA_TENSOR_LOCATIONS, 4 * q + i, locations[i]);
    }
    run(&t);
    EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 0, 10, 0, 0);
    for (int q = 0; q < 20; ++q) {
        assert_true(trial_get(&t, MSDA_TENSOR_OUTPUT, q) == 10.0);
        assert_true(trial_get(&t, MSDA_TENSOR_GRAD_WEIGHTS, 2 * q) == 20.0);
        assert_true(trial_get(&t, MSDA_TENSOR_GRAD_WEIGHTS, 2 * q + 1) == 0.0);
        assert_true(trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, 4 * q) == 20.0);
        assert_true(trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, 4 * q + 2) == 0.0);
        assert_true(trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, 4 * q + 3) == 0.0);
    }
    trial_close(&t);
}

/* With border padding and in discrete mode all but NaN clamp to the outer pixels. */
static void check_wild_numbers_clamp(msda_dtype dtype)
{
    for (int discrete = 0; discrete < 2; ++discrete) {
        trial t;
        open_level(&t, discrete ? "GV8 discrete" : "GV8 border", dtype, 20, 1, 4, 1);
        t.problem.padding = MSDA_PADDING_BORDER;
        t.problem.sampling = discrete ? MSDA_SAMPLING_DISCRETE : MSDA_SAMPLING_BILINEAR;
        TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40);
        for (int q = 0; q < 20; ++q) {
            trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q, q < 10 ? wild_numbers[q] : 0.875);
            trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q + 1, q < 10 ? 0.5 : wild_numbers[q - 10]);
        }
        run(&t);
        EXPECT(&t, MSDA_TENSOR_OUTPUT, 0, 40, 10, 40, 10, 40, 10, 40, 40, 40, 0, 40, 40, 40, 40, 40, 40, 40, 40, 40);
        EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 3, 0, 0, 15);
        for (int i = 0; i < 40; ++i)
            assert_true(trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, i) == 0.0);
        trial_close(&t);
    }
}

/* 4096 queries on one pixel centre; a running sum in f16 stalls at 2048, in bf16 at 256. */
static void check_gv10(msda_dtype dtype)
{
    trial t;
    open_level(&t, "GV10", dtype, 4096, 1, 2, 1);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 1, 2);
    for (int q = 0; q < 4096; ++q) {
        trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q, 0.25);
        trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q + 1, 0.5);
    }
    run(&t);
    EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 4096, 0);
    t.problem.accumulate = MSDA_ACCUMULATE_DETERMINISTIC;
    run(&t);
    EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 4096, 0);
    trial_close(&t);
}

/* Two contributions of 40000 pass the largest f16, 65504; a grad_value in f32 holds them. */
static void f16_sums_overflow_unless_grad_value_is_f32(void **state)
{
    (void)state;
    if (!backend_under_test->takes(MSDA_DTYPE_F16))
        skip();
    for (int wide = 0; wide < 2; ++wide) {
        trial t;
        msda_problem problem = problem_with_dtype(problem_of_level(1, 2, 1, 1, 1, 1, 1), MSDA_DTYPE_F16);
        problem.grad_value_dtype = wide ? MSDA_DTYPE_F32 : MSDA_DTYPE_DEFAULT;
        trial_open(&t, &problem, 0);
        trial_set_all(&t, MSDA_TENSOR_VALUE, 1.0);
        trial_set_all(&t, MSDA_TENSOR_WEIGHTS, 1.0);
        trial_set_all(&t, MSDA_TENSOR_LOCATIONS, 0.5);
        trial_set_all(&t, MSDA_TENSOR_GRAD_OUTPUT, 40000.0);
        run(&t);
        assert_true(trial_get(&t, MSDA_TENSOR_GRAD_VALUE, 0) == (wide ? 80000.0 : (double)INFINITY));
        trial_close(&t);
    }
}

/* Discrete: half a pixel right of nearest, clamped by each axis' own size, no location gradient. */
static void check_gv15(msda_dtype dtype)
{
    trial t;
    open_level(&t, "GV15", dtype, 6, 1, 4, 1);
    t.problem.sampling = MSDA_SAMPLING_DISCRETE;
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0.125, 0.5, 0.375, 0.5, 0.625, 0.5, 0.875, 0.5, 0.1, 0.5, -0.3, 0.5);
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, 20, 30, 40, 40, 10, 10);
    EXPECT(&t, MSDA_TENSOR_GRAD_WEIGHTS, 20, 30, 40, 40, 10, 10);
    EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 2, 1, 1, 2);
    EXPECT(&t, MSDA_TENSOR_GRAD_LOCATIONS, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    trial_close(&t);
}

static void check_gv16(msda_dtype dtype)
{
    static const named_problem named = {"GV16", 1, 1, 1, 1, 0, {{1, 4, 2, 0}, {1, 1, 1, 0}}};
    const msda_problem problem = problem_with_dtype(problem_of(&named), dtype);
    trial t;
    trial_open(&t, &problem, 0);
    t.name = named.name;
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40, 8);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0.125, 0.5, 0.375, 0.5, 0.5, 0.5);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_WEIGHTS, 0.2, 0.3, 0.5);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_GRAD_OUTPUT, 1);
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, 12);
    EXPECT(&t, MSDA_TENSOR_GRAD_WEIGHTS, 10, 20, 8);
    EXPECT(&t, MSDA_TENSOR_GRAD_VALUE, 0.2, 0.3, 0, 0, 0.5);
    trial_close(&t);
}

/* Fused: softmax(0, ln 3) = (1/4, 3/4); the second point comes from x = 0.125 and one pixel of offset. */
static void check_gv17(msda_dtype dtype)
{
    trial t;
    const msda_problem problem = problem_with_dtype(problem_of_level(1, 1, 1, 1, 1, 4, 2), dtype);
    trial_open(&t, &problem, 1);
    t.name = "GV17";
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_REFERENCES, 0.125, 0.5);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0, 0, 1, 0);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_WEIGHTS, 0, log(3));
    TRIAL_NUMBERS(&t, MSDA_TENSOR_GRAD_OUTPUT, 1);
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, 17.5);
    EXPECT(&t, MSDA_TENSOR_GRAD_WEIGHTS, -1.875, 1.875);
    /* per pixel: x slope 10, y slope minus the value; weights 1/4 and 3/4 */
    EXPECT(&t, MSDA_TENSOR_GRAD_LOCATIONS, 2.5, -2.5, 7.5, -15);
    EXPECT(&t, MSDA_TENSOR_GRAD_REFERENCES, 10 * 4, -17.5);
    trial_close(&t);
}

/* Fused, boxes: offset 1 of P = 2 in a box of width 1/2 moves x by 1/2 * 1/2 * 1/2 = 0.125, half a pixel of four. */
static void check_gv17_boxes(msda_dtype dtype)
{
    trial t;
    msda_problem problem = problem_with_dtype(problem_of_level(1, 1, 1, 1, 1, 4, 2), dtype);
    problem.reference_kind = MSDA_REFERENCE_BOXES;
    trial_open(&t, &problem, 1);
    t.name = "GV17 boxes";
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_REFERENCES, 0.375, 0.5, 0.5, 0.25);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 1, 0, 0, 0);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_WEIGHTS, 0, log(3));
    TRIAL_NUMBERS(&t, MSDA_TENSOR_GRAD_OUTPUT, 1);
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, 0.25 * 25 + 0.75 * 20);
    /* d/d offset x = weight * W * 10 * (w * 1/2 / P); y: weight * H * -sample * (h * 1/2 / P) */
    EXPECT(&t, MSDA_TENSOR_GRAD_LOCATIONS, 0.25 * 40 * 0.125, 0.25 * -25 * 0.0625, 0.75 * 40 * 0.125,
           0.75 * -20 * 0.0625);
    /* d/d w = weight * W * 10 * (offset * 1/2 / P) */
    EXPECT(&t, MSDA_TENSOR_GRAD_REFERENCES, 40, 0.25 * -25 + 0.75 * -20, 0.25 * 40 * 0.25, 0);
    trial_close(&t);
}

/* Fused, anchors: point z of a level hangs on anchor z mod Z, on every level from the first anchor on. */
static void check_anchors(msda_dtype dtype)
{
    static const named_problem named = {"anchors", 1, 1, 1, 1, 0, {{1, 4, 3, 0}, {1, 2, 1, 0}}};
    msda_problem problem = problem_with_dtype(problem_of(&named), dtype);
    trial t;
    problem.reference_kind = MSDA_REFERENCE_ANCHORS;
    problem.num_anchors = 2;
    trial_open(&t, &problem, 1);
    t.name = named.name;
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 30, 40, 100, 200);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_REFERENCES, 0.25, 0.5, 0.5, 0.5);
    /* pixels 0.5, 1.5 and (anchor 0 again, two pixels on) 2.5 of level 0; pixel 0 of level 1 */
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0, 0, 0, 0, 2, 0, 0, 0);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_WEIGHTS, 0, 0, 0, 0);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_GRAD_OUTPUT, 4);
    run(&t);
    EXPECT(&t, MSDA_TENSOR_OUTPUT, (15 + 25 + 35 + 100) / 4.0);
    EXPECT(&t, MSDA_TENSOR_GRAD_LOCATIONS, 10, -15, 10, -25, 10, -35, 100, -100);
    EXPECT(&t, MSDA_TENSOR_GRAD_REFERENCES, 40 + 40 + 200, -150, 40, -25);
    trial_close(&t);
}

/* ---- structured inputs ----------------------------------------------------------------------------------------- */

#define HEIGHT 5
#define WIDTH  7

/* HEIGHT x WIDTH queries, one on each pixel centre plus (dx, dy) pixels. */
static void open_grid(trial *t, const char *name, msda_dtype dtype, double dx, double dy)
{
    open_level(t, name, dtype, HEIGHT * WIDTH, HEIGHT, WIDTH, 1);
    for (int q = 0; q < HEIGHT * WIDTH; ++q) {
        trial_set(t, MSDA_TENSOR_LOCATIONS, 2 * q, (q % WIDTH + 0.5 + dx) / WIDTH);
        trial_set(t, MSDA_TENSOR_LOCATIONS, 2 * q + 1, (q / WIDTH + 0.5 + dy) / HEIGHT);
    }
}

/* Where query q of the grid, moved by (dx, dy) >= 0, is still between pixel centres. */
static int is_inside(int q, double dx, double dy)
{
    return q % WIDTH + dx < WIDTH - 1 && q / WIDTH + dy < HEIGHT - 1;
}

static double coordinate_error(const trial *t)
{
    return t->problem.value_dtype == MSDA_DTYPE_F64 ? 16 * 0x1p-53 : 16 * 0x1p-24;
}

static void check_identity(msda_dtype dtype)
{
    trial t;
    open_grid(&t, "identity", dtype, 0.0, 0.0);
    for (int q = 0; q < HEIGHT * WIDTH; ++q)
        trial_set(&t, MSDA_TENSOR_VALUE, q, q * q % 23);
    run(&t);
    for (int q = 0; q < HEIGHT * WIDTH; ++q) {
        const double bound = 23 * coordinate_error(&t) + 23 * element_roundoff(dtype);
        assert_true(fabs(trial_get(&t, MSDA_TENSOR_OUTPUT, q) - q * q % 23) <= bound);
        assert_true(fabs(trial_get(&t, MSDA_TENSOR_GRAD_VALUE, q) - 1.0) <= bound);
    }
    trial_close(&t);
}

static void check_constant(msda_dtype dtype)
{
    trial t;
    open_grid(&t, "constant", dtype, 0.375, 0.625);
    trial_set_all(&t, MSDA_TENSOR_VALUE, 3.0);
    run(&t);
    for (int q = 0; q < HEIGHT * WIDTH; ++q) {
        if (!is_inside(q, 0.375, 0.625))
            continue;
        const double bound = 3 * coordinate_error(&t) + 3 * element_roundoff(dtype);
        assert_true(fabs(trial_get(&t, MSDA_TENSOR_OUTPUT, q) - 3.0) <= bound);
        assert_true(fabs(trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, 2 * q)) <= WIDTH * bound);
        assert_true(fabs(trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, 2 * q + 1)) <= HEIGHT * bound);
    }
    trial_close(&t);
}

/* Bilinear interpolation reproduces a plane, and its slopes are the location's gradient. */
static void check_affine(msda_dtype dtype)
{
    trial t;
    open_grid(&t, "affine", dtype, 0.25, 0.75);
    for (int s = 0; s < HEIGHT * WIDTH; ++s)
        trial_set(&t, MSDA_TENSOR_VALUE, s, 1 + 2 * (s % WIDTH) + 5 * (s / WIDTH)); /* <= 33: exact in every type */
    run(&t);
    for (int q = 0; q < HEIGHT * WIDTH; ++q) {
        if (!is_inside(q, 0.25, 0.75))
            continue;
        const double answer = 1 + 2 * (q % WIDTH + 0.25) + 5 * (q / WIDTH + 0.75);
        const double bound = 64 * coordinate_error(&t);
        assert_true(fabs(trial_get(&t, MSDA_TENSOR_OUTPUT, q) - answer) <= bound + answer * element_roundoff(dtype));
        assert_true(fabs(trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, 2 * q) - 2 * WIDTH) <= WIDTH * bound);
        assert_true(fabs(trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, 2 * q + 1) - 5 * HEIGHT) <= HEIGHT * bound);
    }
    trial_close(&t);
}

/* ---- knots: which pixel a location on a pixel centre belongs to ------------------------------------------------- */

/* The pixel below x * width - 0.5, rounded twice as the header demands. */
static int pixel_below(msda_dtype dtype, double x, int width)
{
    if (dtype == MSDA_DTYPE_F64) {
        const volatile double product = x * width;
        return (int)floor(product - 0.5);
    }
    const volatile float product = (float)x * (float)width;
    const volatile float position = product - 0.5f;
    return (int)floorf(position);
}

static double zigzag(int width, int pixel)
{
    static const double pattern[] = {1, 2, 4};
    return pixel >= 0 && pixel < width ? pattern[pixel % 3] : 0.0;
}

/*
 * Encoder references sit on pixel centres, (j + 0.5) / W. After two roundings they are either j exactly or just off; a
 * fused multiply-add would tell another story and take the location gradient from the neighbouring cell.
 */
static void check_pixel_centres(msda_dtype dtype)
{
    for (int width = 2; width <= 96; ++width) {
        trial t;
        open_level(&t, "pixel centres", dtype, width, 1, width, 1);
        for (int j = 0; j < width; ++j) {
            trial_set(&t, MSDA_TENSOR_VALUE, j, zigzag(width, j));
            trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * j, (j + 0.5) / width);
            trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * j + 1, 0.5);
        }
        run(&t);
        for (int j = 0; j < width; ++j) {
            const int pixel = pixel_below(dtype, trial_get(&t, MSDA_TENSOR_LOCATIONS, 2 * j), width);
            const double slope = width * (zigzag(width, pixel + 1) - zigzag(width, pixel));
            const double got = trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, 2 * j);
            if (!(fabs(got - slope) <= 1e-4 * width))
                fail_msg("%s: %s, width %d, pixel %d: slope %g, expected %g", backend_label(), element_name(dtype),
                         width, j, got, slope);
        }
        trial_close(&t);
    }
}

/* Just below an integer pixel the left cell counts, in f64 too: the pixel may not be chosen in single precision. */
static void f64_pixels_are_chosen_in_f64(void **state)
{
    (void)state;
    trial t;
    open_level(&t, "just below a pixel", MSDA_DTYPE_F64, 1, 1, 4, 1);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 10, 20, 50, 100);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0.375 - 1e-12, 0.5);
    run(&t);
    assert_true(fabs(trial_get(&t, MSDA_TENSOR_GRAD_LOCATIONS, 0) - 40.0) < 1e-9);
    trial_close(&t);
}

/* ---- the program ------------------------------------------------------------------------------------------------ */

#define ON_EVERY_DTYPE(check)                                                                                          \
    static void test_##check(void **state)                                                                             \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        backend_for_each_dtype(check_##check);                                                                         \
    }

ON_EVERY_DTYPE(gv1)
ON_EVERY_DTYPE(gv2)
ON_EVERY_DTYPE(gv2_border)
ON_EVERY_DTYPE(gv2_align_corners)
ON_EVERY_DTYPE(gv4)
ON_EVERY_DTYPE(gv5)
ON_EVERY_DTYPE(gv6)
ON_EVERY_DTYPE(gv8)
ON_EVERY_DTYPE(wild_numbers_clamp)
ON_EVERY_DTYPE(gv10)
ON_EVERY_DTYPE(gv15)
ON_EVERY_DTYPE(gv16)
ON_EVERY_DTYPE(gv17)
ON_EVERY_DTYPE(gv17_boxes)
ON_EVERY_DTYPE(anchors)
ON_EVERY_DTYPE(identity)
ON_EVERY_DTYPE(constant)
ON_EVERY_DTYPE(affine)
ON_EVERY_DTYPE(pixel_centres)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gv1),
        cmocka_unit_test(test_gv2),
        cmocka_unit_test(test_gv2_border),
        cmocka_unit_test(test_gv2_align_corners),
        cmocka_unit_test(test_gv4),
        cmocka_unit_test(test_gv5),
        cmocka_unit_test(test_gv6),
        cmocka_unit_test(test_gv8),
        cmocka_unit_test(test_wild_numbers_clamp),
        cmocka_unit_test(test_gv10),
        cmocka_unit_test(f16_sums_overflow_unless_grad_value_is_f32),
        cmocka_unit_test(test_gv15),
        cmocka_unit_test(test_gv16),
        cmocka_unit_test(test_gv17),
        cmocka_unit_test(test_gv17_boxes),
        cmocka_unit_test(test_anchors),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_constant),
        cmocka_unit_test(test_affine),
        cmocka_unit_test(test_pixel_centres),
        cmocka_unit_test(f64_pixels_are_chosen_in_f64),
    };
    return RUN_PROGRAM(argc, argv, NULL, tests);
}
