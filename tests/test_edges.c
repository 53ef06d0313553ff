/* SPDX-License-Identifier: Apache-2.0 */
/* One case an assumption: the masks, boundaries, sizes and numbers at which sampling kernels break. */
#include "bounds.h"
#include "trial.h"

#include <math.h>
#include <stdio.h>

#include "element.h"
#include "inputs.h"
#include "problems.h"
#include "sampling.h"

/* Random inputs against naive, forward and every gradient. */
static void check_problem(const char *name, msda_problem problem)
{
    trial t;
    trial_open(&t, &problem, 0);
    t.name = name;
    inputs_fill(&t, 41);
    trial_check(&t);
    trial_close(&t);
}

static void open_filled(trial *t, const char *name, const msda_problem *problem)
{
    trial_open(t, problem, 0);
    t->name = name;
    inputs_fill(t, 43);
}

static void run(trial *t)
{
    trial_poison_outputs(t);
    trial_forward(t);
    trial_backward(t);
}

static void require_all(const trial *t, msda_tensor tensor, double number)
{
    for (int64_t i = 0; i < trial_count(t, tensor); ++i)
        if (trial_get(t, tensor, i) != number)
            fail_msg("%s: %s: %s at %s is %g, expected %g", backend_label(), t->name, trial_tensor_name(t, tensor),
                     trial_describe(t, tensor, i), trial_get(t, tensor, i), number);
}

static void require_equal(const trial *a, const trial *b, msda_tensor tensor)
{
    if (!trial_equal(a, b, tensor))
        fail_msg("%s: %s: %s differs from its twin's", backend_label(), a->name, trial_tensor_name(a, tensor));
}

static int is_reproducible(msda_tensor tensor)
{
    return backend_under_test != &backend_cuda || tensor != MSDA_TENSOR_GRAD_VALUE;
}

/* ---- where points lie --------------------------------------------------------------------------------------------- */

/* Moves every point: at(axis, size, state) is its pixel position. */
static void place_points(trial *t, double (*at)(int32_t size, uint64_t *state))
{
    uint64_t state = 47;
    for (int64_t i = 0; i < trial_count(t, MSDA_TENSOR_WEIGHTS); ++i) {
        const int64_t run_length = t->tensors[MSDA_TENSOR_WEIGHTS].layout.run;
        int level = 0;
        for (int64_t k = i % run_length; k >= t->problem.levels[level].points; ++level)
            k -= t->problem.levels[level].points;
        const int32_t sizes[] = {t->problem.levels[level].width, t->problem.levels[level].height};
        for (int axis = 0; axis < 2; ++axis)
            trial_set(t, MSDA_TENSOR_LOCATIONS, 2 * i + axis, (at(sizes[axis], &state) + 0.5) / sizes[axis]);
    }
}

/* Away from knots by 0.05 pixel: -0.5..1.5 of the level. */
static double anywhere(int32_t size, uint64_t *state)
{
    const double position = random_between(state, -0.5 * size - 0.5, 1.5 * size - 0.5);
    return floor(position) + 0.05 + 0.9 * (position - floor(position));
}

/* Within one pixel of the outer pixel centres: where corners are missing but the point still counts. */
static double in_the_band(int32_t size, uint64_t *state)
{
    const double fraction = random_between(state, 0.05, 0.95);
    return random_below(state, 2) ? -fraction : size - 1 + fraction;
}

static double beyond(int32_t size, uint64_t *state)
{
    return random_below(state, 2) ? random_between(state, size + 0.5, 3.0 * size + 2.0)
                                  : random_between(state, -3.0 * size - 2.0, -1.5);
}

/* On a pixel centre, from one pixel outside to one pixel outside. */
static double on_a_centre(int32_t size, uint64_t *state)
{
    return (double)(random_below(state, size + 3) - 1);
}

static const named_problem rectangles = {"rectangles", 2, 6, 2, 6, 0, {{4, 8, 4, 0}, {8, 2, 3, 0}, {1, 4, 2, 0}}};

static void check_placed(const char *name, msda_dtype dtype, double (*at)(int32_t size, uint64_t *state))
{
    for (int border = 0; border < 2; ++border) {
        trial t;
        msda_problem problem = problem_with_dtype(problem_of(&rectangles), dtype);
        problem.padding = border ? MSDA_PADDING_BORDER : MSDA_PADDING_ZEROS;
        open_filled(&t, name, &problem);
        place_points(&t, at);
        trial_check(&t);
        trial_close(&t);
    }
}

static void check_out_of_bounds(msda_dtype dtype)
{
    check_placed("out of bounds", dtype, anywhere);
}

static void check_band(msda_dtype dtype)
{
    check_placed("one-pixel band", dtype, in_the_band);
}

/* Sizes are powers of two, so that every centre is exact in every arithmetic. */
static void check_integer_coordinates(msda_dtype dtype)
{
    check_placed("integer coordinates", dtype, on_a_centre);
}

static void check_far_away(msda_dtype dtype)
{
    trial t;
    const msda_problem problem = problem_with_dtype(problem_of(&rectangles), dtype);
    open_filled(&t, "far away", &problem);
    place_points(&t, beyond);
    run(&t);
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        if (trial_is_output((msda_tensor)tensor))
            require_all(&t, (msda_tensor)tensor, 0.0);
    trial_close(&t);
}

/* The four corners of the level, exactly: pixel (-0.5, -0.5) and its mirror images see a quarter of one pixel. */
static void check_exact_corners(msda_dtype dtype)
{
    trial t;
    const msda_problem problem = problem_with_dtype(problem_of_level(1, 4, 1, 1, 2, 4, 1), dtype);
    trial_open(&t, &problem, 0);
    t.name = "exact corners";
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 4, 1, 1, 8, 16, 1, 1, 32);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0, 0, 1, 0, 0, 1, 1, 1);
    trial_set_all(&t, MSDA_TENSOR_WEIGHTS, 1.0);
    trial_set_all(&t, MSDA_TENSOR_GRAD_OUTPUT, 1.0);
    run(&t);
    for (int q = 0; q < 4; ++q)
        assert_true(trial_get(&t, MSDA_TENSOR_OUTPUT, q) == 1 << q);
    trial_close(&t);
}

static void check_all_nan(msda_dtype dtype)
{
    static const msda_padding paddings[] = {MSDA_PADDING_ZEROS, MSDA_PADDING_BORDER};
    for (int i = 0; i < 2; ++i)
        for (int sampling = 0; sampling < 2; ++sampling) {
            trial t;
            msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtype);
            problem.padding = paddings[i];
            problem.sampling = (msda_sampling)sampling;
            open_filled(&t, "all locations NaN", &problem);
            trial_set_all(&t, MSDA_TENSOR_LOCATIONS, NAN);
            run(&t);
            for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
                if (trial_is_output((msda_tensor)tensor))
                    require_all(&t, (msda_tensor)tensor, 0.0);
            trial_close(&t);
        }
}

/* ---- what values and weights hold --------------------------------------------------------------------------------- */

static void check_zero_weights(msda_dtype dtype)
{
    trial t;
    const msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtype);
    open_filled(&t, "zero weights", &problem);
    trial_set_all(&t, MSDA_TENSOR_WEIGHTS, 0.0);
    trial_check(&t);
    require_all(&t, MSDA_TENSOR_OUTPUT, 0.0);
    require_all(&t, MSDA_TENSOR_GRAD_VALUE, 0.0);
    require_all(&t, MSDA_TENSOR_GRAD_LOCATIONS, 0.0);
    double largest = 0.0;
    for (int64_t i = 0; i < trial_count(&t, MSDA_TENSOR_GRAD_WEIGHTS); ++i)
        largest = fmax(largest, fabs(trial_get(&t, MSDA_TENSOR_GRAD_WEIGHTS, i)));
    assert_true(largest > 0.0); /* a weight of 0 still learns */
    trial_close(&t);
}

/*
 * A row 1, 2, Inf, 4 of pixels. IEEE decides: a corner inside the level is read and multiplied even if its bilinear or
 * attention weight is 0 (0 * Inf is NaN); a point outside the level reads nothing.
 */
static void check_infinite_values(msda_dtype dtype)
{
    trial t;
    const msda_problem problem = problem_with_dtype(problem_of_level(1, 4, 1, 1, 1, 4, 1), dtype);
    trial_open(&t, &problem, 0);
    t.name = "infinite values";
    TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 1, 2, INFINITY, 4);
    /* pixel 0; pixel 1 exactly (its right corner, of weight 0, is the Inf); the Inf itself, weight 0; outside */
    TRIAL_NUMBERS(&t, MSDA_TENSOR_LOCATIONS, 0.125, 0.5, 0.375, 0.5, 0.625, 0.5, 1.5, 0.5);
    TRIAL_NUMBERS(&t, MSDA_TENSOR_WEIGHTS, 1, 1, 0, 1);
    trial_set_all(&t, MSDA_TENSOR_GRAD_OUTPUT, 1.0);
    run(&t);
    assert_true(trial_get(&t, MSDA_TENSOR_OUTPUT, 0) == 1.0);
    assert_true(isnan(trial_get(&t, MSDA_TENSOR_OUTPUT, 1)));
    assert_true(isnan(trial_get(&t, MSDA_TENSOR_OUTPUT, 2)));
    assert_true(trial_get(&t, MSDA_TENSOR_OUTPUT, 3) == 0.0);
    assert_true(trial_get(&t, MSDA_TENSOR_GRAD_WEIGHTS, 3) == 0.0);
    trial_close(&t);
}

/* All points of all queries between the same four pixels. */
static void check_hot_pixels(msda_dtype dtype)
{
    for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate) {
        trial t;
        msda_problem problem = problem_with_dtype(problem_of_level(1, 200, 2, 7, 3, 4, 3), dtype);
        problem.accumulate = (msda_accumulate)accumulate;
        open_filled(&t, "hot pixels", &problem);
        for (int64_t i = 0; i < trial_count(&t, MSDA_TENSOR_LOCATIONS); ++i)
            trial_set(&t, MSDA_TENSOR_LOCATIONS, i, 0.4375);
        trial_check(&t);
        trial_close(&t);
    }
}

/* ---- sizes -------------------------------------------------------------------------------------------------------- */

static void check_head_dims(msda_dtype dtype)
{
    static const int32_t head_dims[] = {1,   2,   3,   5,   7,   8,    9,    15,   16,   17,  31,
                                        32,  33,  48,  63,  64,  65,   80,   96,   127,  128, 129,
                                        255, 256, 257, 512, 513, 1023, 1024, 1025, 2048, 3096};
    for (size_t i = 0; i < sizeof head_dims / sizeof head_dims[0]; ++i) {
        char name[32];
        snprintf(name, sizeof name, "head_dim %d", (int)head_dims[i]);
        check_problem(name, problem_with_dtype(problem_of_level(1, 2, 2, head_dims[i], 2, 3, 2), dtype));
    }
}

static void check_heads(msda_dtype dtype)
{
    static const int32_t heads[] = {1, 3, 7, 16, 33};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; ++i)
        check_problem("heads", problem_with_dtype(problem_of_level(2, 2, heads[i], 5, 3, 4, 1), dtype));
}

static void check_tiny_maps(msda_dtype dtype)
{
    static const struct {
        int32_t height, width;
    } maps[] = {{1, 1}, {1, 2}, {2, 1}, {1, 9}, {9, 1}, {2, 2}};
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; ++i)
        for (int border = 0; border < 2; ++border)
            for (int align = 0; align < 2; ++align) {
                char name[48];
                msda_problem problem =
                    problem_with_dtype(problem_of_level(1, 5, 1, 4, maps[i].height, maps[i].width, 2), dtype);
                problem.padding = border ? MSDA_PADDING_BORDER : MSDA_PADDING_ZEROS;
                problem.align_corners = align;
                snprintf(name, sizeof name, "map %d x %d%s%s", (int)maps[i].height, (int)maps[i].width,
                         border ? " border" : "", align ? " align_corners" : "");
                check_problem(name, problem);
            }
}

static void check_single_point(msda_dtype dtype)
{
    check_problem("single point", problem_with_dtype(problem_of_level(1, 1, 1, 32, 3, 5, 1), dtype));
}

static void check_levels_64(msda_dtype dtype)
{
    msda_problem problem = problem_with_dtype(problem_of_level(1, 3, 2, 4, 2, 3, 1), dtype);
    while (problem.num_levels < MSDA_MAX_LEVELS)
        assert_int_equal(msda_problem_add_level(&problem, 1 + problem.num_levels % 3, 2, problem.num_levels % 2),
                         MSDA_STATUS_SUCCESS);
    check_problem("64 levels", problem);
}

/* Starts worked out by hand are those of msda_problem_add_level(). */
static void check_level_starts(msda_dtype dtype)
{
    trial appended, given;
    const msda_problem problem = problem_with_dtype(problem_of(&rectangles), dtype);
    msda_problem by_hand = problem;
    static const int64_t starts[] = {0, 32, 48};
    memset(by_hand.levels, 0, sizeof by_hand.levels);
    for (int l = 0; l < 3; ++l)
        by_hand.levels[l] = (msda_level){starts[l], rectangles.levels[l].height, rectangles.levels[l].width,
                                         rectangles.levels[l].points, 0};
    open_filled(&appended, "level starts", &problem);
    open_filled(&given, "level starts", &by_hand);
    run(&appended);
    run(&given);
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        if (is_reproducible((msda_tensor)tensor))
            require_equal(&appended, &given, (msda_tensor)tensor);
    trial_close(&appended);
    trial_close(&given);
}

/* Rows of value that no level covers are not read (they are NaN) and get gradient 0. */
static void check_gaps(msda_dtype dtype)
{
    trial t;
    const msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtype);
    open_filled(&t, "gaps", &problem);
    for (int64_t i = 0; i < trial_count(&t, MSDA_TENSOR_VALUE); ++i) {
        const int64_t s = i / problem.head_dim / problem.heads % problem.value_length;
        int covered = 0;
        for (int l = 0; l < problem.num_levels; ++l)
            covered = covered || (s >= problem.levels[l].start &&
                                  s < problem.levels[l].start + problem.levels[l].height * problem.levels[l].width);
        if (!covered)
            trial_set(&t, MSDA_TENSOR_VALUE, i, NAN);
    }
    trial_check(&t);
    trial_close(&t);
}

/* Any batch size, and each image as if it were alone. */
static void check_batches(msda_dtype dtype)
{
    static const int32_t batches[] = {1, 2, 5, 63, 65, 96, 154, 194};
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; ++i) {
        trial all;
        const msda_problem problem = problem_with_dtype(problem_of_level(batches[i], 2, 1, 3, 2, 3, 1), dtype);
        open_filled(&all, "batch", &problem);
        trial_check(&all);
        msda_problem alone = problem;
        alone.batch = 1;
        for (int32_t n = 0; n < batches[i]; n += batches[i] / 3 + 1) {
            trial one;
            trial_open(&one, &alone, 0);
            for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
                for (int64_t k = 0; k < trial_count(&one, (msda_tensor)tensor); ++k)
                    trial_set(&one, (msda_tensor)tensor, k,
                              trial_get(&all, (msda_tensor)tensor, n * trial_count(&one, (msda_tensor)tensor) + k));
            run(&one);
            for (int64_t k = 0; k < trial_count(&one, MSDA_TENSOR_OUTPUT); ++k)
                assert_true(trial_get(&one, MSDA_TENSOR_OUTPUT, k) ==
                            trial_get(&all, MSDA_TENSOR_OUTPUT, n * trial_count(&one, MSDA_TENSOR_OUTPUT) + k));
            trial_close(&one);
        }
        trial_close(&all);
    }
}

/* More (query, head) pairs than a capped grid has blocks; the last query as if it were alone. */
static void check_many_queries(msda_dtype dtype)
{
    trial all, one;
    msda_problem problem = problem_with_dtype(problem_of_level(1, 1030, 8, 4, 3, 5, 1), dtype);
    open_filled(&all, "many queries", &problem);
    trial_check(&all);
    problem.queries = 1;
    trial_open(&one, &problem, 0);
    trial_copy(&one, &all, MSDA_TENSOR_VALUE);
    for (int tensor = MSDA_TENSOR_LOCATIONS; tensor <= MSDA_TENSOR_GRAD_OUTPUT; ++tensor)
        for (int64_t i = 0; i < trial_count(&one, (msda_tensor)tensor); ++i)
            trial_set(&one, (msda_tensor)tensor, i,
                      trial_get(&all, (msda_tensor)tensor, 1029 * trial_count(&one, (msda_tensor)tensor) + i));
    run(&one);
    for (int tensor = MSDA_TENSOR_GRAD_LOCATIONS; tensor <= MSDA_TENSOR_GRAD_WEIGHTS; ++tensor)
        for (int64_t i = 0; i < trial_count(&one, (msda_tensor)tensor); ++i)
            assert_true(trial_get(&one, (msda_tensor)tensor, i) ==
                        trial_get(&all, (msda_tensor)tensor, 1029 * trial_count(&one, (msda_tensor)tensor) + i));
    trial_close(&all);
    trial_close(&one);
}

/* ---- empty problems ------------------------------------------------------------------------------------------------ */

static const struct empty {
    const char *name;
    int32_t batch, queries, heads, head_dim, num_levels, points;
} empties[] = {
    {"no batch", 0, 2, 2, 3, 1, 2},    {"no queries", 2, 0, 2, 3, 1, 2}, {"no heads", 2, 2, 0, 3, 1, 2},
    {"no channels", 2, 2, 2, 0, 1, 2}, {"no levels", 2, 2, 2, 3, 0, 0},  {"no points", 2, 2, 2, 3, 1, 0},
    {"nothing", 0, 0, 0, 0, 0, 0},
};

static void check_empty_problems(msda_dtype dtype)
{
    for (size_t i = 0; i < sizeof empties / sizeof empties[0]; ++i)
        for (int fused = 0; fused < 2; ++fused) {
            trial t;
            const struct empty *e = &empties[i];
            msda_problem problem = problem_with_dtype(
                problem_of_level(e->batch, e->queries, e->heads, e->head_dim, 2, 3, e->points), dtype);
            problem.num_levels = e->num_levels;
            problem.value_length = 10;
            trial_open(&t, &problem, fused);
            t.name = e->name;
            for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor) {
                if (!trial_is_output((msda_tensor)tensor))
                    trial_set_all(&t, (msda_tensor)tensor, 0.5);
                if (trial_count(&t, (msda_tensor)tensor) == 0)
                    t.unwanted |= 1u << tensor; /* null, which is fine for a tensor of no elements */
            }
            run(&t);
            for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
                if (trial_is_output((msda_tensor)tensor))
                    require_all(&t, (msda_tensor)tensor, 0.0);
            trial_close(&t);
        }
}

/* With ADD_TO_GRADIENTS an empty problem adds nothing. */
static void check_empty_adds_nothing(msda_dtype dtype)
{
    trial t;
    msda_problem problem = problem_with_dtype(problem_of_level(2, 0, 2, 3, 2, 3, 1), dtype);
    problem.flags = MSDA_FLAG_ADD_TO_GRADIENTS;
    trial_open(&t, &problem, 0);
    t.name = "empty add";
    trial_set_all(&t, MSDA_TENSOR_VALUE, 0.5);
    trial_set_all(&t, MSDA_TENSOR_GRAD_VALUE, 3.0);
    trial_backward(&t);
    require_all(&t, MSDA_TENSOR_GRAD_VALUE, 3.0);
    trial_close(&t);
}

/* ---- writing and adding -------------------------------------------------------------------------------------------- */

/* A second call overwrites what the first one left. */
static void check_second_call(msda_dtype dtype)
{
    trial once, twice;
    const msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtype);
    open_filled(&once, "second call", &problem);
    open_filled(&twice, "second call", &problem);
    run(&once);
    run(&twice);
    trial_forward(&twice);
    trial_backward(&twice);
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        if (is_reproducible((msda_tensor)tensor))
            require_equal(&once, &twice, (msda_tensor)tensor);
    trial_close(&once);
    trial_close(&twice);
}

/* Adding into zeros twice doubles: the second call is checked on top of what the first one wrote. */
static void check_adding_twice(msda_dtype dtype)
{
    for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate) {
        trial t;
        msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtype);
        problem.flags = MSDA_FLAG_ADD_TO_GRADIENTS;
        problem.accumulate = (msda_accumulate)accumulate;
        open_filled(&t, "adding twice", &problem);
        for (int tensor = MSDA_TENSOR_GRAD_VALUE; tensor < MSDA_TENSOR_COUNT; ++tensor)
            trial_set_all(&t, (msda_tensor)tensor, 0.0);
        trial_check(&t);
        trial_check(&t);
        trial_close(&t);
    }
}

/* In f32 and f64 FP32 and NATIVE are the same computation. */
static void check_native_and_fp32(msda_dtype dtype)
{
    trial fp32, native;
    expectation e;
    msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtype);
    if (element_size(dtype) == 2)
        return;
    open_filled(&fp32, "fp32", &problem);
    problem.accumulate = MSDA_ACCUMULATE_NATIVE;
    open_filled(&native, "native", &problem);
    run(&fp32);
    run(&native);
    if (is_reproducible(MSDA_TENSOR_GRAD_VALUE))
        require_equal(&fp32, &native, MSDA_TENSOR_GRAD_VALUE);
    expectation_open(&e, &fp32);
    trial_copy(&e.answer, &fp32, MSDA_TENSOR_GRAD_VALUE);
    expectation_check(&e, &native, MSDA_TENSOR_GRAD_VALUE);
    expectation_close(&e);
    trial_close(&fp32);
    trial_close(&native);
}

/* Leaving a gradient out changes none of the others. */
static void check_unwanted(msda_dtype dtype)
{
    static const unsigned gradients[] = {1u << MSDA_TENSOR_GRAD_VALUE, 1u << MSDA_TENSOR_GRAD_LOCATIONS,
                                         1u << MSDA_TENSOR_GRAD_WEIGHTS};
    trial all;
    const msda_problem problem = problem_with_dtype(problem_of(rich_problem), dtype);
    open_filled(&all, "all gradients", &problem);
    run(&all);
    for (unsigned left_out = 1; left_out < 8; ++left_out) {
        trial some;
        open_filled(&some, "some gradients", &problem);
        for (int i = 0; i < 3; ++i)
            some.unwanted |= left_out >> i & 1 ? gradients[i] : 0;
        trial_check(&some);
        /* cuda may run another kernel when less is wanted */
        for (int tensor = MSDA_TENSOR_GRAD_VALUE; tensor <= MSDA_TENSOR_GRAD_WEIGHTS; ++tensor)
            if (!(some.unwanted >> tensor & 1) && backend_under_test != &backend_cuda)
                require_equal(&all, &some, (msda_tensor)tensor);
        trial_close(&some);
    }
    trial_close(&all);
}

/* ---- precision ----------------------------------------------------------------------------------------------------- */

/* 200 pixels wide: a coordinate in 16 bits would be off by a tenth of a pixel, which the bound does not grant. */
static void check_wide_level(msda_dtype dtype)
{
    check_problem("200 pixels wide", problem_with_dtype(problem_of_level(1, 40, 1, 3, 3, 200, 2), dtype));
}

/* Rows past 2^24: a flat index in single precision would hit a neighbour. */
static void check_flat_index(msda_dtype dtype)
{
    const int64_t start = ((int64_t)1 << 24) + 1;
    trial t;
    msda_problem problem = problem_with_dtype(problem_of_level(1, 4, 1, 1, 1, 4, 1), dtype);
    problem.levels[0].start = start;
    problem.value_length = start + 4;
    trial_open(&t, &problem, 0);
    t.name = "rows past 2^24";
    for (int64_t s = start - 4; s < start + 4; ++s)
        trial_set(&t, MSDA_TENSOR_VALUE, s, (double)(s - start + 1));
    for (int q = 0; q < 4; ++q) {
        trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q, (q + 0.5) / 4);
        trial_set(&t, MSDA_TENSOR_LOCATIONS, 2 * q + 1, 0.5);
        trial_set(&t, MSDA_TENSOR_WEIGHTS, q, 1.0);
        trial_set(&t, MSDA_TENSOR_GRAD_OUTPUT, q, q + 1.0);
    }
    run(&t);
    for (int q = 0; q < 4; ++q) {
        /* pixel centres are exact, but a corner of weight 0 beside them is read: the rows must not be NaN */
        assert_true(trial_get(&t, MSDA_TENSOR_OUTPUT, q) == q + 1.0);
        assert_true(trial_get(&t, MSDA_TENSOR_GRAD_VALUE, start + q) == q + 1.0);
    }
    assert_true(trial_get(&t, MSDA_TENSOR_GRAD_VALUE, start - 1) == 0.0);
    assert_true(trial_get(&t, MSDA_TENSOR_GRAD_VALUE, 0) == 0.0);
    trial_close(&t);
}

static void rows_past_2_24(void **state)
{
    (void)state;
    check_flat_index(backend_under_test->takes(MSDA_DTYPE_F16) ? MSDA_DTYPE_F16 : MSDA_DTYPE_F64);
}

/* ---- the program --------------------------------------------------------------------------------------------------- */

#define ON_EVERY_DTYPE(name)                                                                                           \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        backend_for_each_dtype(check_##name);                                                                          \
    }

ON_EVERY_DTYPE(out_of_bounds)
ON_EVERY_DTYPE(band)
ON_EVERY_DTYPE(integer_coordinates)
ON_EVERY_DTYPE(far_away)
ON_EVERY_DTYPE(exact_corners)
ON_EVERY_DTYPE(all_nan)
ON_EVERY_DTYPE(zero_weights)
ON_EVERY_DTYPE(infinite_values)
ON_EVERY_DTYPE(hot_pixels)
ON_EVERY_DTYPE(head_dims)
ON_EVERY_DTYPE(heads)
ON_EVERY_DTYPE(tiny_maps)
ON_EVERY_DTYPE(single_point)
ON_EVERY_DTYPE(levels_64)
ON_EVERY_DTYPE(level_starts)
ON_EVERY_DTYPE(gaps)
ON_EVERY_DTYPE(batches)
ON_EVERY_DTYPE(many_queries)
ON_EVERY_DTYPE(empty_problems)
ON_EVERY_DTYPE(empty_adds_nothing)
ON_EVERY_DTYPE(second_call)
ON_EVERY_DTYPE(adding_twice)
ON_EVERY_DTYPE(native_and_fp32)
ON_EVERY_DTYPE(unwanted)
ON_EVERY_DTYPE(wide_level)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(out_of_bounds),
        cmocka_unit_test(band),
        cmocka_unit_test(integer_coordinates),
        cmocka_unit_test(far_away),
        cmocka_unit_test(exact_corners),
        cmocka_unit_test(all_nan),
        cmocka_unit_test(zero_weights),
        cmocka_unit_test(infinite_values),
        cmocka_unit_test(hot_pixels),
        cmocka_unit_test(head_dims),
        cmocka_unit_test(heads),
        cmocka_unit_test(tiny_maps),
        cmocka_unit_test(single_point),
        cmocka_unit_test(levels_64),
        cmocka_unit_test(level_starts),
        cmocka_unit_test(gaps),
        cmocka_unit_test(batches),
        cmocka_unit_test(many_queries),
        cmocka_unit_test(empty_problems),
        cmocka_unit_test(empty_adds_nothing),
        cmocka_unit_test(second_call),
        cmocka_unit_test(adding_twice),
        cmocka_unit_test(native_and_fp32),
        cmocka_unit_test(unwanted),
        cmocka_unit_test(wide_level),
        cmocka_unit_test(rows_past_2_24),
    };
    return RUN_PROGRAM(argc, argv, NULL, tests);
}
