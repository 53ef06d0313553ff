/* SPDX-License-Identifier: Apache-2.0 */
#include "trial.h"

#include <stdio.h>
#include <stdlib.h>

#include "element.h"

static const char *const tensor_names[MSDA_TENSOR_COUNT] = {
    "value",       "sampling_locations", "attention_weights",       "reference_points",       "output",
    "grad_output", "grad_value",         "grad_sampling_locations", "grad_attention_weights", "grad_reference_points"};

static const char *const fused_tensor_names[MSDA_TENSOR_COUNT] = {
    "value",       "sampling_offsets", "attention_logits",      "reference_points",      "output",
    "grad_output", "grad_value",       "grad_sampling_offsets", "grad_attention_logits", "grad_reference_points"};

const char *trial_tensor_name(const trial *t, msda_tensor tensor)
{
    return (t->fused ? fused_tensor_names : tensor_names)[tensor];
}

int trial_is_output(msda_tensor tensor)
{
    return tensor == MSDA_TENSOR_OUTPUT || tensor >= MSDA_TENSOR_GRAD_VALUE;
}

/* ---- layout: the header's table, written a second time --------------------------------------------------------- */

static int64_t points_of(const msda_problem *p)
{
    int64_t points = 0;
    for (int l = 0; l < p->num_levels; ++l)
        points += p->levels[l].points;
    return points;
}

static int64_t references_of(const msda_problem *p)
{
    switch (p->reference_kind) {
    case MSDA_REFERENCE_BOXES:
        return 4 * (int64_t)p->num_levels;
    case MSDA_REFERENCE_ANCHORS:
        return 2 * (int64_t)p->num_anchors;
    default:
        return 2 * (int64_t)p->num_levels;
    }
}

static layout layout_of(const msda_problem *p, msda_tensor tensor)
{
    layout l = {p->batch, p->queries, p->heads, p->head_dim, 0, 0, 0, 0};
    switch (tensor) {
    case MSDA_TENSOR_VALUE:
    case MSDA_TENSOR_GRAD_VALUE:
        l.row = p->value_length;
        break;
    case MSDA_TENSOR_LOCATIONS:
    case MSDA_TENSOR_GRAD_LOCATIONS:
        l.run = 2 * points_of(p);
        break;
    case MSDA_TENSOR_WEIGHTS:
    case MSDA_TENSOR_GRAD_WEIGHTS:
        l.run = points_of(p);
        break;
    case MSDA_TENSOR_REFERENCES:
    case MSDA_TENSOR_GRAD_REFERENCES:
        l.head = 1;
        l.run = references_of(p);
        break;
    case MSDA_TENSOR_OUTPUT:
    case MSDA_TENSOR_GRAD_OUTPUT:
        break;
    }
    const msda_stride *stride = &p->strides[tensor];
    l.head_stride = stride->head ? stride->head : l.run;
    l.row_stride = stride->row ? stride->row : l.run * l.head;
    l.batch_stride = stride->batch ? stride->batch : l.run * l.head * l.row;
    l.is_dense = l.head_stride == l.run && l.row_stride == l.run * l.head && l.batch_stride == l.row_stride * l.row;
    return l;
}

static int64_t count_of(const layout *l)
{
    return l->batch * l->row * l->head * l->run;
}

static size_t elements_spanned(const layout *l)
{
    if (count_of(l) == 0)
        return 0;
    return (size_t)((l->batch - 1) * l->batch_stride + (l->row - 1) * l->row_stride + (l->head - 1) * l->head_stride +
                    l->run);
}

static int64_t offset_of(const layout *l, int64_t index)
{
    if (l->is_dense)
        return index;
    const int64_t i = index % l->run, head = index / l->run % l->head;
    const int64_t row = index / l->run / l->head % l->row, batch = index / l->run / l->head / l->row;
    return batch * l->batch_stride + row * l->row_stride + head * l->head_stride + i;
}

static msda_dtype dtype_of(const msda_problem *p, msda_tensor tensor)
{
    switch (tensor) {
    case MSDA_TENSOR_VALUE:
    case MSDA_TENSOR_OUTPUT:
    case MSDA_TENSOR_GRAD_OUTPUT:
        return p->value_dtype;
    case MSDA_TENSOR_GRAD_VALUE:
        return p->grad_value_dtype ? p->grad_value_dtype : p->value_dtype;
    default:
        if (p->point_dtype)
            return p->point_dtype;
        return p->value_dtype == MSDA_DTYPE_F64 ? MSDA_DTYPE_F64 : MSDA_DTYPE_F32;
    }
}

/* ---- opening, closing, elements -------------------------------------------------------------------------------- */

void trial_open(trial *t, const msda_problem *problem, int fused)
{
    *t = (trial){.name = "", .problem = *problem, .fused = fused};
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i) {
        if ((i == MSDA_TENSOR_REFERENCES || i == MSDA_TENSOR_GRAD_REFERENCES) && !fused)
            continue;
        guarded_tensor *x = &t->tensors[i];
        x->dtype = dtype_of(problem, (msda_tensor)i);
        x->layout = layout_of(problem, (msda_tensor)i);
        const size_t size = element_size(x->dtype);
        x->memory = guarded_open(elements_spanned(&x->layout) * size, size);
    }
}

void trial_close(trial *t)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        guarded_close(&t->tensors[i].memory);
}

int64_t trial_count(const trial *t, msda_tensor tensor)
{
    return t->tensors[tensor].memory.pages ? count_of(&t->tensors[tensor].layout) : 0;
}

double trial_get(const trial *t, msda_tensor tensor, int64_t index)
{
    const guarded_tensor *x = &t->tensors[tensor];
    return element_get(x->dtype, x->memory.data, offset_of(&x->layout, index));
}

void trial_set(trial *t, msda_tensor tensor, int64_t index, double number)
{
    guarded_tensor *x = &t->tensors[tensor];
    element_set(x->dtype, x->memory.data, offset_of(&x->layout, index), number);
}

void trial_set_all(trial *t, msda_tensor tensor, double number)
{
    for (int64_t i = 0; i < trial_count(t, tensor); ++i)
        trial_set(t, tensor, i, number);
}

void trial_set_numbers(trial *t, msda_tensor tensor, const double *numbers, size_t count)
{
    assert_true((int64_t)count <= trial_count(t, tensor));
    for (size_t i = 0; i < count; ++i)
        trial_set(t, tensor, (int64_t)i, numbers[i]);
}

int64_t trial_index(const trial *t, msda_tensor tensor, int64_t n, int64_t row, int64_t m, int64_t i)
{
    const layout *l = &t->tensors[tensor].layout;
    return ((n * l->row + row) * l->head + m) * l->run + i;
}

void trial_copy(trial *to, const trial *from, msda_tensor tensor)
{
    assert_int_equal(trial_count(to, tensor), trial_count(from, tensor));
    for (int64_t i = 0; i < trial_count(to, tensor); ++i)
        trial_set(to, tensor, i, trial_get(from, tensor, i));
}

void trial_open_widened(trial *wide, const trial *t)
{
    msda_problem problem = t->problem;
    problem.value_dtype = MSDA_DTYPE_F64;
    problem.point_dtype = MSDA_DTYPE_DEFAULT;
    problem.grad_value_dtype = MSDA_DTYPE_DEFAULT;
    trial_open(wide, &problem, t->fused);
    wide->name = t->name;
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        trial_copy(wide, t, (msda_tensor)i);
}

int trial_equal(const trial *a, const trial *b, msda_tensor tensor)
{
    const guarded_tensor *x = &a->tensors[tensor], *y = &b->tensors[tensor];
    const size_t size = element_size(x->dtype);
    assert_int_equal(x->dtype, y->dtype);
    assert_int_equal(trial_count(a, tensor), trial_count(b, tensor));
    for (int64_t i = 0; i < trial_count(a, tensor); ++i)
        if (memcmp(x->memory.data + (size_t)offset_of(&x->layout, i) * size,
                   y->memory.data + (size_t)offset_of(&y->layout, i) * size, size) != 0)
            return 0;
    return 1;
}

void trial_poison_outputs(trial *t)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (trial_is_output((msda_tensor)i) && t->tensors[i].memory.pages)
            guarded_poison(&t->tensors[i].memory);
}

const char *trial_describe(const trial *t, msda_tensor tensor, int64_t index)
{
    static char text[120];
    const layout *l = &t->tensors[tensor].layout;
    const int64_t i = index % l->run, m = index / l->run % l->head;
    const int64_t row = index / l->run / l->head % l->row, n = index / l->run / l->head / l->row;
    const char row_letter = tensor == MSDA_TENSOR_VALUE || tensor == MSDA_TENSOR_GRAD_VALUE ? 's' : 'q';
    if (tensor == MSDA_TENSOR_REFERENCES || tensor == MSDA_TENSOR_GRAD_REFERENCES) {
        snprintf(text, sizeof text, "n=%lld q=%lld reference element %lld", (long long)n, (long long)row, (long long)i);
        return text;
    }
    const int is_weight = tensor == MSDA_TENSOR_WEIGHTS || tensor == MSDA_TENSOR_GRAD_WEIGHTS;
    const int is_location = tensor == MSDA_TENSOR_LOCATIONS || tensor == MSDA_TENSOR_GRAD_LOCATIONS;
    if (!is_weight && !is_location) {
        snprintf(text, sizeof text, "n=%lld %c=%lld m=%lld c=%lld", (long long)n, row_letter, (long long)row,
                 (long long)m, (long long)i);
        return text;
    }
    int64_t point = is_location ? i / 2 : i;
    int level = 0;
    while (point >= t->problem.levels[level].points)
        point -= t->problem.levels[level++].points;
    snprintf(text, sizeof text, "n=%lld q=%lld m=%lld level=%d point=%lld%s", (long long)n, (long long)row,
             (long long)m, level, (long long)point,
             !is_location ? ""
             : i % 2      ? " y"
                          : " x");
    return text;
}

/* ---- running --------------------------------------------------------------------------------------------------- */

/* Passed as null where it is not wanted or the form has none. */
static void *pointer_of(const trial *t, msda_tensor tensor)
{
    return t->unwanted >> tensor & 1 ? NULL : t->tensors[tensor].memory.data;
}

msda_forward_args trial_forward_args(const trial *t)
{
    return (msda_forward_args){.value = pointer_of(t, MSDA_TENSOR_VALUE),
                               .sampling_locations = pointer_of(t, MSDA_TENSOR_LOCATIONS),
                               .attention_weights = pointer_of(t, MSDA_TENSOR_WEIGHTS),
                               .output = pointer_of(t, MSDA_TENSOR_OUTPUT)};
}

msda_backward_args trial_backward_args(const trial *t)
{
    return (msda_backward_args){.value = pointer_of(t, MSDA_TENSOR_VALUE),
                                .sampling_locations = pointer_of(t, MSDA_TENSOR_LOCATIONS),
                                .attention_weights = pointer_of(t, MSDA_TENSOR_WEIGHTS),
                                .grad_output = pointer_of(t, MSDA_TENSOR_GRAD_OUTPUT),
                                .grad_value = pointer_of(t, MSDA_TENSOR_GRAD_VALUE),
                                .grad_sampling_locations = pointer_of(t, MSDA_TENSOR_GRAD_LOCATIONS),
                                .grad_attention_weights = pointer_of(t, MSDA_TENSOR_GRAD_WEIGHTS)};
}

msda_fused_forward_args trial_fused_forward_args(const trial *t)
{
    return (msda_fused_forward_args){.value = pointer_of(t, MSDA_TENSOR_VALUE),
                                     .reference_points = pointer_of(t, MSDA_TENSOR_REFERENCES),
                                     .sampling_offsets = pointer_of(t, MSDA_TENSOR_LOCATIONS),
                                     .attention_logits = pointer_of(t, MSDA_TENSOR_WEIGHTS),
                                     .output = pointer_of(t, MSDA_TENSOR_OUTPUT)};
}

msda_fused_backward_args trial_fused_backward_args(const trial *t)
{
    return (msda_fused_backward_args){.value = pointer_of(t, MSDA_TENSOR_VALUE),
                                      .reference_points = pointer_of(t, MSDA_TENSOR_REFERENCES),
                                      .sampling_offsets = pointer_of(t, MSDA_TENSOR_LOCATIONS),
                                      .attention_logits = pointer_of(t, MSDA_TENSOR_WEIGHTS),
                                      .grad_output = pointer_of(t, MSDA_TENSOR_GRAD_OUTPUT),
                                      .grad_value = pointer_of(t, MSDA_TENSOR_GRAD_VALUE),
                                      .grad_reference_points = pointer_of(t, MSDA_TENSOR_GRAD_REFERENCES),
                                      .grad_sampling_offsets = pointer_of(t, MSDA_TENSOR_GRAD_LOCATIONS),
                                      .grad_attention_logits = pointer_of(t, MSDA_TENSOR_GRAD_WEIGHTS)};
}

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; ++i)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
}

/* Of all bytes that a call may not change: whole inputs, unwanted outputs, the gaps between the rows of outputs. */
static uint64_t hash_untouchable(const guarded_tensor *x, int is_written)
{
    const size_t size = element_size(x->dtype), run = (size_t)x->layout.run * size;
    uint64_t hash = 14695981039346656037u;
    if (!is_written || count_of(&x->layout) == 0)
        return hash_bytes(hash, x->memory.data, x->memory.size);

    if (x->layout.is_dense)
        return hash;
    unsigned char *is_element = calloc(x->memory.size, 1);
    assert_non_null(is_element);
    for (int64_t i = 0; i < count_of(&x->layout); i += x->layout.run)
        memset(is_element + (size_t)offset_of(&x->layout, i) * size, 1, run);
    for (size_t i = 0; i < x->memory.size; ++i)
        if (!is_element[i])
            hash = hash_bytes(hash, x->memory.data + i, 1);
    free(is_element);
    return hash;
}

typedef struct fingerprint {
    uint64_t of[MSDA_TENSOR_COUNT];
} fingerprint;

/* `backward`: which tensors the call is going to write. */
static fingerprint take_fingerprint(const trial *t, int backward)
{
    fingerprint f = {{0}};
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i) {
        const int is_written =
            (backward ? i >= MSDA_TENSOR_GRAD_VALUE : i == MSDA_TENSOR_OUTPUT) && pointer_of(t, (msda_tensor)i) != NULL;
        if (t->tensors[i].memory.pages)
            f.of[i] = hash_untouchable(&t->tensors[i], is_written);
    }
    return f;
}

static void check_untouched(const trial *t, const fingerprint *before, int backward)
{
    const fingerprint after = take_fingerprint(t, backward);
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i) {
        if (!t->tensors[i].memory.pages)
            continue;
        const char *name = trial_tensor_name(t, (msda_tensor)i);
        if (!guarded_is_intact(&t->tensors[i].memory))
            fail_msg("%s: %s: bytes around %s were written", backend_label(), t->name, name);
        if (before->of[i] != after.of[i])
            fail_msg("%s: %s: bytes of %s that are no output were written", backend_label(), t->name, name);
    }
}

msda_status trial_call_forward(trial *t, const backend *b)
{
    const msda_forward_args args = trial_forward_args(t);
    const msda_fused_forward_args fused_args = trial_fused_forward_args(t);
    const fingerprint before = take_fingerprint(t, 0);
    const msda_status status = t->fused ? b->fused_forward(&t->problem, &fused_args) : b->forward(&t->problem, &args);
    check_untouched(t, &before, 0);
    return status;
}

msda_status trial_call_backward(trial *t, const backend *b)
{
    const msda_backward_args args = trial_backward_args(t);
    const msda_fused_backward_args fused_args = trial_fused_backward_args(t);
    const fingerprint before = take_fingerprint(t, 1);
    const msda_status status = t->fused ? b->fused_backward(&t->problem, &fused_args) : b->backward(&t->problem, &args);
    check_untouched(t, &before, 1);
    return status;
}

static void require_success(const trial *t, const char *direction, msda_status status)
{
    if (status != MSDA_STATUS_SUCCESS)
        fail_msg("%s: %s: %s: %s: %s", backend_label(), t->name, direction, msda_status_string(status),
                 msda_last_error());
}

void trial_forward(trial *t)
{
    require_success(t, "forward", trial_call_forward(t, backend_under_test));
}

void trial_backward(trial *t)
{
    require_success(t, "backward", trial_call_backward(t, backend_under_test));
}
