/* SPDX-License-Identifier: Apache-2.0 */
/* Validation: each thing that can be refused is refused with its own status and a text that says what was wrong. */
#include "trial.h"

#include <math.h>
#include <stdlib.h>

#include "inputs.h"
#include "problems.h"

/* Two levels, 2 x 3 and 4 x 5, of 26 pixels in all. */
static const named_problem base = {"base", 2, 3, 2, 4, 0, {{2, 3, 1, 0}, {4, 5, 2, 0}}};

/* ---- every field ----------------------------------------------------------------------------------------------- */

typedef struct mutation {
    size_t offset, size;
    int64_t number;
} mutation;

#define FIELD(field, number)                                                                                           \
    {                                                                                                                  \
        offsetof(msda_problem, field), sizeof(((msda_problem *)0)->field), number                                      \
    }
#define STRIDE(tensor, axis, number) FIELD(strides[tensor].axis, number)

static const struct refusal {
    mutation mutations[4];
    const char *field, *value, *limit; /* that the text must hold */
} refusals[] = {
    {{FIELD(struct_size, 0)}, "struct_size", "is 0", "msda_problem_init"},
    {{FIELD(struct_size, sizeof(msda_problem) - 1)}, "struct_size", "is ", "expected"},
    {{FIELD(struct_size, UINT32_MAX)}, "struct_size", "4294967295", "expected"},
    {{FIELD(flags, 2)}, "flags", "0x2", "MSDA_FLAG"},
    {{FIELD(flags, UINT32_MAX)}, "flags", "0xffffffff", "MSDA_FLAG"},
    {{FIELD(value_dtype, 0)}, "value_dtype", "is 0", "MSDA_DTYPE"},
    {{FIELD(value_dtype, 5)}, "value_dtype", "is 5", "0..4"},
    {{FIELD(value_dtype, -1)}, "value_dtype", "is -1", "0..4"},
    {{FIELD(point_dtype, 5)}, "point_dtype", "is 5", "0..4"},
    {{FIELD(point_dtype, MSDA_DTYPE_F16)}, "point_dtype", "f16", "expected f32"},
    {{FIELD(point_dtype, MSDA_DTYPE_F64)}, "point_dtype", "f64", "expected f32"},
    {{FIELD(value_dtype, MSDA_DTYPE_F64), FIELD(point_dtype, MSDA_DTYPE_F32)}, "point_dtype", "f32", "expected f64"},
    {{FIELD(value_dtype, MSDA_DTYPE_F16), FIELD(point_dtype, MSDA_DTYPE_BF16)}, "point_dtype", "bf16", "f16 or f32"},
    {{FIELD(grad_value_dtype, 5)}, "grad_value_dtype", "is 5", "0..4"},
    {{FIELD(grad_value_dtype, MSDA_DTYPE_F16)}, "grad_value_dtype", "f16", "expected f32"},
    {{FIELD(value_dtype, MSDA_DTYPE_BF16), FIELD(grad_value_dtype, MSDA_DTYPE_F16)},
     "grad_value_dtype",
     "is f16",
     "bf16 or f32"},
    {{FIELD(accumulate, 3)}, "accumulate", "is 3", "0..2"},
    {{FIELD(accumulate, -1)}, "accumulate", "is -1", "0..2"},
    {{FIELD(padding, 2)}, "padding", "is 2", "0..1"},
    {{FIELD(sampling, 2)}, "sampling", "is 2", "0..1"},
    {{FIELD(align_corners, 2)}, "align_corners", "is 2", "0..1"},
    {{FIELD(align_corners, -1)}, "align_corners", "is -1", "0..1"},
    {{FIELD(batch, -1)}, "batch", "is -1", ">= 0"},
    {{FIELD(queries, -7)}, "queries", "is -7", ">= 0"},
    {{FIELD(heads, -1)}, "heads", "is -1", ">= 0"},
    {{FIELD(head_dim, -1)}, "head_dim", "is -1", ">= 0"},
    {{FIELD(num_levels, -1)}, "num_levels", "is -1", "0..64"},
    {{FIELD(num_levels, 65)}, "num_levels", "is 65", "0..64"},
    {{FIELD(value_length, -1)}, "value_length", "is -1", ">= 0"},
    {{FIELD(value_length, 25)}, "levels[1]", "4 x 5", "value_length 25"},
    {{FIELD(value_length, 0)}, "levels[0]", "2 x 3", "value_length 0"},
    {{FIELD(reference_kind, 3)}, "reference_kind", "is 3", "0..2"},
    {{FIELD(num_anchors, -1)}, "num_anchors", "is -1", ">= 0"},
    {{FIELD(reference_kind, MSDA_REFERENCE_ANCHORS)}, "num_anchors", "is 0", ">= 1"},
    {{FIELD(box_scale, 0x7FC00000)}, "box_scale", "nan", "finite"},
    {{FIELD(box_scale, 0x7F800000)}, "box_scale", "inf", "finite"},
    {{FIELD(reserved, 1)}, "reserved", "is 1", "expected 0"},
    {{FIELD(levels[0].height, 0)}, "levels[0].height", "is 0", ">= 1"},
    {{FIELD(levels[1].height, -4)}, "levels[1].height", "is -4", ">= 1"},
    {{FIELD(levels[0].width, 0)}, "levels[0].width", "is 0", ">= 1"},
    {{FIELD(levels[1].width, -5)}, "levels[1].width", "is -5", ">= 1"},
    {{FIELD(levels[1].points, -1)}, "levels[1].points", "is -1", ">= 0"},
    {{FIELD(levels[1].reserved, 9)}, "levels[1].reserved", "is 9", "expected 0"},
    {{FIELD(levels[0].start, -1)}, "levels[0].start", "is -1", ">= 0"},
    {{FIELD(levels[1].start, 7)}, "levels[1]", "start 7", "value_length 26"},
    {{FIELD(levels[1].start, 5)}, "levels[1].start", "is 5", "levels[0]"},
    {{FIELD(levels[1].start, INT64_MAX)}, "levels[1]", "start 9223372036854775807", "value_length 26"},
    {{FIELD(levels[0].height, INT32_MAX), FIELD(levels[0].width, INT32_MAX)},
     "levels[0]",
     "2147483647 x 2147483647",
     "value_length 26"},
    {{FIELD(levels[0].points, INT32_MAX), FIELD(levels[1].points, INT32_MAX)}, "points", "4294967294", "2147483647"},
    {{FIELD(value_length, INT64_MAX)}, "value", "9223372036854775807", "addressed"},
    {{FIELD(batch, INT32_MAX), FIELD(queries, INT32_MAX), FIELD(heads, INT32_MAX)}, "value", "2147483647", "addressed"},
    {{FIELD(queries, INT32_MAX), FIELD(heads, INT32_MAX), FIELD(levels[0].points, 1 << 20)},
     "sampling_locations",
     "2147483647",
     "addressed"},
    {{STRIDE(MSDA_TENSOR_VALUE, row, -8)}, "value", "-8", ">= 0"},
    {{STRIDE(MSDA_TENSOR_VALUE, row, 7)}, "row stride of value", "is 7", ">= 8"},
    {{STRIDE(MSDA_TENSOR_VALUE, head, 3)}, "head stride of value", "is 3", ">= 4"},
    {{STRIDE(MSDA_TENSOR_VALUE, batch, 26 * 8 - 1)}, "batch stride of value", "is 207", ">= 208"},
    {{STRIDE(MSDA_TENSOR_VALUE, row, INT64_MAX / 2)}, "row stride of value", "4611686018427387903", "addressed"},
    {{STRIDE(MSDA_TENSOR_LOCATIONS, row, 11)}, "row stride of sampling_locations", "is 11", ">= 12"},
    {{STRIDE(MSDA_TENSOR_WEIGHTS, head, 2)}, "head stride of attention_weights", "is 2", ">= 3"},
    {{STRIDE(MSDA_TENSOR_OUTPUT, row, 1)}, "row stride of output", "is 1", ">= 4"},
    {{STRIDE(MSDA_TENSOR_GRAD_OUTPUT, batch, 4)}, "stride of grad_output", "is", "overlap"},
    {{STRIDE(MSDA_TENSOR_GRAD_VALUE, row, 5)}, "row stride of grad_value", "is 5", "overlap"},
    {{STRIDE(MSDA_TENSOR_GRAD_LOCATIONS, head, 5)}, "head stride of grad_sampling_locations", "is 5", ">= 6"},
    {{STRIDE(MSDA_TENSOR_GRAD_WEIGHTS, head, 2)}, "head stride of grad_attention_weights", "is 2", ">= 3"},
    {{STRIDE(MSDA_TENSOR_REFERENCES, head, 4)}, "head stride of reference_points", "is 4", "expected 0"},
    {{STRIDE(MSDA_TENSOR_REFERENCES, row, 3)}, "row stride of reference_points", "is 3", ">= 4"},
    {{STRIDE(MSDA_TENSOR_GRAD_REFERENCES, head, 4)}, "head stride of grad_reference_points", "is 4", "expected 0"},
};

static msda_problem mutate(msda_problem problem, const mutation *mutations)
{
    for (int i = 0; i < 4 && mutations[i].size > 0; ++i) {
        unsigned char *field = (unsigned char *)&problem + mutations[i].offset;
        const int32_t narrow = (int32_t)mutations[i].number;
        if (mutations[i].size == sizeof narrow)
            memcpy(field, &narrow, sizeof narrow);
        else
            memcpy(field, &mutations[i].number, sizeof mutations[i].number);
    }
    return problem;
}

static void require_text(const char *part)
{
    if (strstr(msda_last_error(), part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", msda_last_error(), part);
}

static void every_field_is_checked(void **state)
{
    (void)state;
    const msda_problem good = problem_of(&base);
    assert_int_equal(msda_problem_check(&good), MSDA_STATUS_SUCCESS);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; ++i) {
        const msda_problem problem = mutate(good, refusals[i].mutations);
        if (msda_problem_check(&problem) != MSDA_STATUS_INVALID_PROBLEM)
            fail_msg("refusal %zu (%s) was accepted", i, refusals[i].field);
        require_text(refusals[i].field);
        require_text(refusals[i].value);
        require_text(refusals[i].limit);
    }
}

static msda_status call(const trial *t, int backward)
{
    const msda_forward_args forward = trial_forward_args(t);
    const msda_backward_args backward_args = trial_backward_args(t);
    const msda_fused_forward_args fused_forward = trial_fused_forward_args(t);
    const msda_fused_backward_args fused_backward = trial_fused_backward_args(t);
    if (t->fused)
        return backward ? backend_under_test->fused_backward(&t->problem, &fused_backward)
                        : backend_under_test->fused_forward(&t->problem, &fused_forward);
    return backward ? backend_under_test->backward(&t->problem, &backward_args)
                    : backend_under_test->forward(&t->problem, &forward);
}

static void open_base(trial *t, int fused)
{
    const msda_problem problem = problem_with_dtype(problem_of(&base), MSDA_DTYPE_F64);
    trial_open(t, &problem, fused);
    inputs_fill(t, 1);
}

/* 1 if every byte of every output is still the poison. */
static int outputs_are_untouched(const trial *t)
{
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        for (size_t i = 0; trial_is_output((msda_tensor)tensor) && i < t->tensors[tensor].memory.size; ++i)
            if (t->tensors[tensor].memory.data[i] != 0xFF)
                return 0;
    return 1;
}

static void every_entry_point_refuses_and_touches_nothing(void **state)
{
    (void)state;
    for (int fused = 0; fused < 2; ++fused)
        for (int backward = 0; backward < 2; ++backward) {
            trial t;
            open_base(&t, fused);
            const msda_problem good = t.problem;
            for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; ++i) {
                t.problem = mutate(problem_of(&base), refusals[i].mutations);
                assert_int_equal(call(&t, backward), MSDA_STATUS_INVALID_PROBLEM);
            }
            assert_true(outputs_are_untouched(&t));
            t.problem = good;
            assert_int_equal(call(&t, backward), MSDA_STATUS_SUCCESS);
            trial_close(&t);
        }
}

/* ---- struct_size: older and newer callers ---------------------------------------------------------------------- */

static void newer_callers_are_served_while_new_fields_are_zero(void **state)
{
    (void)state;
    struct newer {
        msda_problem problem;
        int64_t new_field;
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.problem = problem_of(&base);
    newer.problem.struct_size = sizeof newer;
    assert_int_equal(msda_problem_check(&newer.problem), MSDA_STATUS_SUCCESS);
    newer.new_field = 1;
    assert_int_equal(msda_problem_check(&newer.problem), MSDA_STATUS_INVALID_PROBLEM);
    require_text("struct_size");
    require_text("newer");
}

/* ---- levels ---------------------------------------------------------------------------------------------------- */

static void levels_are_appended(void **state)
{
    (void)state;
    msda_problem problem;
    msda_problem_init(&problem);
    assert_int_equal(msda_problem_add_level(&problem, 2, 3, 1), MSDA_STATUS_SUCCESS);
    assert_int_equal(msda_problem_add_level(&problem, 4, 5, 0), MSDA_STATUS_SUCCESS);
    assert_int_equal(problem.num_levels, 2);
    assert_int_equal(problem.levels[0].start, 0);
    assert_int_equal(problem.levels[1].start, 6);
    assert_int_equal(problem.levels[1].height, 4);
    assert_int_equal(problem.levels[1].width, 5);
    assert_int_equal(problem.value_length, 26);

    problem.levels[0].start = 100; /* the next one goes behind the highest, and a longer value stays */
    problem.value_length = 1000;
    assert_int_equal(msda_problem_add_level(&problem, 1, 1, 1), MSDA_STATUS_SUCCESS);
    assert_int_equal(problem.levels[2].start, 106);
    assert_int_equal(problem.value_length, 1000);
}

static void impossible_levels_are_not_added(void **state)
{
    (void)state;
    static const struct {
        int32_t height, width, points;
        const char *text;
    } bad[] = {{0, 3, 1, "height is 0"},
               {-1, 3, 1, "height is -1"},
               {2, 0, 1, "width is 0"},
               {2, -9, 1, "width is -9"},
               {2, 3, -1, "points is -1"}};
    const msda_problem before = problem_of(&base);
    msda_problem problem = before;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        assert_int_equal(msda_problem_add_level(&problem, bad[i].height, bad[i].width, bad[i].points),
                         MSDA_STATUS_INVALID_PROBLEM);
        require_text(bad[i].text);
        assert_memory_equal(&problem, &before, sizeof problem);
    }
    assert_int_equal(msda_problem_add_level(NULL, 1, 1, 1), MSDA_STATUS_NULL_POINTER);
    for (int32_t num_levels = -1; num_levels < 66; num_levels += 65) {
        problem.num_levels = num_levels;
        assert_int_equal(msda_problem_add_level(&problem, 1, 1, 1), MSDA_STATUS_INVALID_PROBLEM);
        require_text("num_levels");
        assert_int_equal(problem.num_levels, num_levels);
    }
}

static void levels_past_all_addresses_are_not_added(void **state)
{
    (void)state;
    msda_problem problem;
    msda_problem_init(&problem);
    assert_int_equal(msda_problem_add_level(&problem, INT32_MAX, INT32_MAX, 1), MSDA_STATUS_SUCCESS);
    assert_int_equal(msda_problem_add_level(&problem, INT32_MAX, INT32_MAX, 1), MSDA_STATUS_SUCCESS);
    assert_int_equal(msda_problem_add_level(&problem, INT32_MAX, INT32_MAX, 1), MSDA_STATUS_INVALID_PROBLEM);
    assert_int_equal(problem.num_levels, 2);
}

static void all_64_levels_can_be_used(void **state)
{
    (void)state;
    msda_problem problem;
    msda_problem_init(&problem);
    problem.value_dtype = MSDA_DTYPE_F32;
    for (int l = 0; l < MSDA_MAX_LEVELS; ++l)
        assert_int_equal(msda_problem_add_level(&problem, 1, 2, 1), MSDA_STATUS_SUCCESS);
    assert_int_equal(msda_problem_check(&problem), MSDA_STATUS_SUCCESS);
}

/* Gaps, any order, and levels that touch are fine. */
static void levels_may_leave_gaps(void **state)
{
    (void)state;
    msda_problem problem = problem_of(&base);
    problem.levels[0].start = 30;
    problem.levels[1].start = 2;
    problem.value_length = 36;
    assert_int_equal(msda_problem_check(&problem), MSDA_STATUS_SUCCESS);
    problem.levels[1].start = 10;
    assert_int_equal(msda_problem_check(&problem), MSDA_STATUS_SUCCESS);
    problem.levels[1].start = 11;
    assert_int_equal(msda_problem_check(&problem), MSDA_STATUS_INVALID_PROBLEM);
}

/* ---- tensors --------------------------------------------------------------------------------------------------- */

static void tensor_sizes_are_those_of_the_layouts(void **state)
{
    (void)state;
    for (int i = 0; i < num_problems; ++i)
        for (int fused = 0; fused < 2; ++fused) {
            trial t;
            msda_problem problem = problem_with_dtype(problem_of(&problems[i]), MSDA_DTYPE_BF16);
            problem.grad_value_dtype = MSDA_DTYPE_F32;
            problem.strides[MSDA_TENSOR_VALUE] = (msda_stride){1000000, 1000, 0};
            problem.strides[MSDA_TENSOR_WEIGHTS].batch = 100000;
            trial_open(&t, &problem, fused);
            for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor) {
                size_t size = 0;
                assert_int_equal(msda_tensor_size(&problem, (msda_tensor)tensor, &size), MSDA_STATUS_SUCCESS);
                if (t.tensors[tensor].memory.pages)
                    assert_int_equal(size, t.tensors[tensor].memory.size);
            }
            trial_close(&t);
        }
}

/* base: 2 images of 26 pixels, 2 heads of 4 channels. */
static void strides_left_out_pack_what_they_enclose(void **state)
{
    (void)state;
    static const struct packing {
        msda_stride stride;
        size_t elements; /* from the first to past the last */
    } packings[] = {
        {{0, 0, 0}, 2 * 26 * 2 * 4},
        {{0, 24, 0}, 51 * 24 + 8},                /* every third of a row of 24: the next image follows the last row */
        {{0, 0, 12}, (2 * 26 - 1) * 24 + 12 + 4}, /* a third of each head's run */
        {{0, 4, 26 * 4}, 2 * 26 * 2 * 4},         /* head-major: the next image follows the last head */
    };
    for (size_t i = 0; i < sizeof packings / sizeof packings[0]; ++i) {
        msda_problem problem = problem_of(&base);
        problem.strides[MSDA_TENSOR_VALUE] = packings[i].stride;
        size_t size = 0;
        assert_int_equal(msda_tensor_size(&problem, MSDA_TENSOR_VALUE, &size), MSDA_STATUS_SUCCESS);
        assert_int_equal(size, packings[i].elements * (problem.value_dtype == MSDA_DTYPE_F64 ? 8 : 4));
    }
}

static void tensor_size_checks_its_arguments(void **state)
{
    (void)state;
    size_t size = 7;
    msda_problem problem = problem_of(&base);
    assert_int_equal(msda_tensor_size(NULL, MSDA_TENSOR_VALUE, &size), MSDA_STATUS_NULL_POINTER);
    assert_int_equal(msda_tensor_size(&problem, MSDA_TENSOR_VALUE, NULL), MSDA_STATUS_NULL_POINTER);
    assert_int_equal(msda_tensor_size(&problem, (msda_tensor)MSDA_TENSOR_COUNT, &size), MSDA_STATUS_INVALID_PROBLEM);
    require_text("tensor is 10");
    assert_int_equal(msda_tensor_size(&problem, (msda_tensor)-1, &size), MSDA_STATUS_INVALID_PROBLEM);
    problem.batch = -1;
    assert_int_equal(msda_tensor_size(&problem, MSDA_TENSOR_VALUE, &size), MSDA_STATUS_INVALID_PROBLEM);
    assert_int_equal(size, 7);
}

/* The direction that reads or writes the tensor. */
static int is_backward(int tensor)
{
    return tensor >= MSDA_TENSOR_GRAD_OUTPUT;
}

static void required_pointers_may_not_be_null(void **state)
{
    (void)state;
    for (int fused = 0; fused < 2; ++fused)
        for (int tensor = 0; tensor <= MSDA_TENSOR_GRAD_OUTPUT; ++tensor) {
            trial t;
            open_base(&t, fused);
            t.unwanted = 1u << tensor;
            if (t.tensors[tensor].memory.pages) {
                assert_int_equal(call(&t, is_backward(tensor)), MSDA_STATUS_NULL_POINTER);
                require_text(trial_tensor_name(&t, (msda_tensor)tensor));
                require_text("is null");
            }
            assert_true(outputs_are_untouched(&t));
            trial_close(&t);
        }
}

static void structs_may_not_be_null(void **state)
{
    (void)state;
    trial t;
    open_base(&t, 0);
    const msda_forward_args forward = trial_forward_args(&t);
    const msda_backward_args backward = trial_backward_args(&t);
    const msda_fused_forward_args fused_forward = trial_fused_forward_args(&t);
    const msda_fused_backward_args fused_backward = trial_fused_backward_args(&t);
    const backend *b = backend_under_test;
    assert_int_equal(b->forward(&t.problem, NULL), MSDA_STATUS_NULL_POINTER);
    require_text("args");
    assert_int_equal(b->backward(&t.problem, NULL), MSDA_STATUS_NULL_POINTER);
    assert_int_equal(b->fused_forward(&t.problem, NULL), MSDA_STATUS_NULL_POINTER);
    assert_int_equal(b->fused_backward(&t.problem, NULL), MSDA_STATUS_NULL_POINTER);
    assert_int_equal(b->forward(NULL, &forward), MSDA_STATUS_NULL_POINTER);
    require_text("problem");
    assert_int_equal(b->backward(NULL, &backward), MSDA_STATUS_NULL_POINTER);
    assert_int_equal(b->fused_forward(NULL, &fused_forward), MSDA_STATUS_NULL_POINTER);
    assert_int_equal(b->fused_backward(NULL, &fused_backward), MSDA_STATUS_NULL_POINTER);
    trial_close(&t);
}

static void misaligned_pointers_are_refused(void **state)
{
    (void)state;
    for (int fused = 0; fused < 2; ++fused)
        for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor) {
            trial t;
            open_base(&t, fused);
            if (t.tensors[tensor].memory.pages) {
                t.tensors[tensor].memory.data += 4; /* half an f64 */
                assert_int_equal(call(&t, is_backward(tensor)), MSDA_STATUS_MISALIGNED);
                require_text(trial_tensor_name(&t, (msda_tensor)tensor));
                require_text("multiple of 8");
                t.tensors[tensor].memory.data -= 4;
            }
            assert_true(outputs_are_untouched(&t));
            trial_close(&t);
        }
}

/* Outputs that share memory with any other tensor of the call. */
static void overlapping_outputs_are_refused(void **state)
{
    (void)state;
    for (int fused = 0; fused < 2; ++fused)
        for (int written = MSDA_TENSOR_OUTPUT; written < MSDA_TENSOR_COUNT; ++written)
            for (int other = 0; other < MSDA_TENSOR_COUNT; ++other) {
                trial t;
                open_base(&t, fused);
                const int backward = is_backward(written);
                const int in_call = other <= MSDA_TENSOR_REFERENCES || is_backward(other) == backward;
                if (!trial_is_output((msda_tensor)written) || other == written || !in_call ||
                    !t.tensors[other].memory.pages || !t.tensors[written].memory.pages) {
                    trial_close(&t);
                    continue;
                }
                unsigned char *const own = t.tensors[written].memory.data;
                /* the written tensor begins at the other's last element */
                t.tensors[written].memory.data = t.tensors[other].memory.data + t.tensors[other].memory.size - 8;
                assert_int_equal(call(&t, backward), MSDA_STATUS_OVERLAP);
                require_text(trial_tensor_name(&t, (msda_tensor)written));
                require_text(trial_tensor_name(&t, (msda_tensor)other));
                t.tensors[written].memory.data = own;
                trial_close(&t);
            }
}

/* ---- cpu: threads and workspace -------------------------------------------------------------------------------- */

static void negative_thread_counts_are_refused(void **state)
{
    (void)state;
    if (backend_under_test != &backend_cpu)
        skip();
    for (int fused = 0; fused < 2; ++fused) {
        trial t;
        open_base(&t, fused);
        size_t size = 0;
        backend_set_threads(-1);
        assert_int_equal(call(&t, 0), MSDA_STATUS_INVALID_PROBLEM);
        require_text("num_threads");
        require_text("-1");
        assert_int_equal(call(&t, 1), MSDA_STATUS_INVALID_PROBLEM);
        backend_set_threads(0);
        const msda_backward_args backward = trial_backward_args(&t);
        const msda_fused_backward_args fused_backward = trial_fused_backward_args(&t);
        assert_int_equal(fused ? msda_cpu_fused_backward_workspace(&t.problem, -2, &size)
                               : msda_cpu_backward_workspace(&t.problem, -2, &size),
                         MSDA_STATUS_INVALID_PROBLEM);
        assert_int_equal(fused ? msda_cpu_fused_backward(&t.problem, &fused_backward, NULL, 0, -1)
                               : msda_cpu_backward(&t.problem, &backward, NULL, 0, -1),
                         MSDA_STATUS_INVALID_PROBLEM);
        trial_close(&t);
    }
}

static void workspace_query_checks_its_arguments(void **state)
{
    (void)state;
    if (backend_under_test != &backend_cpu)
        skip();
    const msda_problem problem = problem_of(&base);
    size_t size = 0;
    assert_int_equal(msda_cpu_backward_workspace(&problem, 1, NULL), MSDA_STATUS_NULL_POINTER);
    require_text("size");
    assert_int_equal(msda_cpu_fused_backward_workspace(&problem, 1, NULL), MSDA_STATUS_NULL_POINTER);
    assert_int_equal(msda_cpu_backward_workspace(NULL, 1, &size), MSDA_STATUS_NULL_POINTER);
    assert_int_equal(msda_cpu_fused_backward_workspace(NULL, 1, &size), MSDA_STATUS_NULL_POINTER);
}

/* An f16 problem, whose fp32 image needs scratch memory. */
static void workspace_is_checked(void **state)
{
    (void)state;
    if (backend_under_test != &backend_cpu)
        skip();
    trial t;
    size_t size = 0;
    const msda_problem problem = problem_with_dtype(problem_of(&base), MSDA_DTYPE_F16);
    trial_open(&t, &problem, 0);
    inputs_fill(&t, 1);
    const msda_backward_args args = trial_backward_args(&t);
    assert_int_equal(msda_cpu_backward_workspace(&problem, 2, &size), MSDA_STATUS_SUCCESS);
    assert_true(size > 0);

    guarded workspace = guarded_open(size + 64, 64);
    assert_int_equal(msda_cpu_backward(&problem, &args, NULL, size, 2), MSDA_STATUS_NULL_POINTER);
    require_text("workspace");
    assert_int_equal(msda_cpu_backward(&problem, &args, workspace.data + 16, size, 2), MSDA_STATUS_MISALIGNED);
    require_text("multiple of 64");
    assert_int_equal(msda_cpu_backward(&problem, &args, workspace.data, size - 1, 2), MSDA_STATUS_WORKSPACE_TOO_SMALL);
    require_text("workspace_size");
    assert_true(outputs_are_untouched(&t));
    assert_int_equal(msda_cpu_backward(&problem, &args, workspace.data, size, 2), MSDA_STATUS_SUCCESS);
    assert_false(outputs_are_untouched(&t));
    guarded_close(&workspace);
    trial_close(&t);
}

static void workspace_may_not_overlap_tensors(void **state)
{
    (void)state;
    if (backend_under_test != &backend_cpu)
        skip();
    trial t;
    size_t size = 0;
    const msda_problem problem = problem_with_dtype(problem_of(&base), MSDA_DTYPE_F16);
    trial_open(&t, &problem, 0);
    inputs_fill(&t, 1);
    assert_int_equal(msda_cpu_backward_workspace(&problem, 1, &size), MSDA_STATUS_SUCCESS);
    guarded memory = guarded_open(size + t.tensors[MSDA_TENSOR_GRAD_VALUE].memory.size, 64);
    msda_backward_args args = trial_backward_args(&t);
    args.grad_value = memory.data + size - 2;
    assert_int_equal(msda_cpu_backward(&problem, &args, memory.data, size, 1), MSDA_STATUS_OVERLAP);
    require_text("workspace");
    require_text("grad_value");
    guarded_close(&memory);
    trial_close(&t);
}

/* ---- naive: f64 only ------------------------------------------------------------------------------------------- */

static void naive_takes_f64_only(void **state)
{
    (void)state;
    if (backend_under_test != &backend_naive)
        skip();
    for (int fused = 0; fused < 2; ++fused) {
        trial t;
        const msda_problem problem = problem_of(&base);
        trial_open(&t, &problem, fused);
        assert_int_equal(call(&t, 0), MSDA_STATUS_UNSUPPORTED);
        require_text("f32");
        require_text("f64");
        assert_int_equal(call(&t, 1), MSDA_STATUS_UNSUPPORTED);
        assert_true(outputs_are_untouched(&t));
        trial_close(&t);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_is_checked),
        cmocka_unit_test(every_entry_point_refuses_and_touches_nothing),
        cmocka_unit_test(newer_callers_are_served_while_new_fields_are_zero),
        cmocka_unit_test(levels_are_appended),
        cmocka_unit_test(impossible_levels_are_not_added),
        cmocka_unit_test(levels_past_all_addresses_are_not_added),
        cmocka_unit_test(all_64_levels_can_be_used),
        cmocka_unit_test(levels_may_leave_gaps),
        cmocka_unit_test(tensor_sizes_are_those_of_the_layouts),
        cmocka_unit_test(strides_left_out_pack_what_they_enclose),
        cmocka_unit_test(tensor_size_checks_its_arguments),
        cmocka_unit_test(required_pointers_may_not_be_null),
        cmocka_unit_test(structs_may_not_be_null),
        cmocka_unit_test(misaligned_pointers_are_refused),
        cmocka_unit_test(overlapping_outputs_are_refused),
        cmocka_unit_test(negative_thread_counts_are_refused),
        cmocka_unit_test(workspace_query_checks_its_arguments),
        cmocka_unit_test(workspace_is_checked),
        cmocka_unit_test(workspace_may_not_overlap_tensors),
        cmocka_unit_test(naive_takes_f64_only),
    };
    return RUN_PROGRAM(argc, argv, NULL, tests);
}
