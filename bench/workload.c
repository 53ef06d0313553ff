/* SPDX-License-Identifier: Apache-2.0 */
#include "workload.h"

#include <stdlib.h>

#include "storage_types.h"

static void describe_problem(workload *w)
{
    msda_problem *p = &w->problem;
    msda_problem_init(p);
    p->value_dtype = w->how.value_dtype;
    p->point_dtype = w->how.point_dtype;
    p->accumulate = w->how.accumulate;
    p->batch = w->shape->batch;
    p->queries = preset_queries(w->shape);
    p->heads = w->shape->heads;
    p->head_dim = w->shape->head_dim;
    for (const preset_grid *level = w->shape->levels; level->height != 0; ++level)
        msda_problem_add_level(p, level->height, level->width, level->points);
    if (w->how.head_major) {
        const int64_t head = p->value_length * p->head_dim;
        const msda_stride stride = {.batch = p->heads * head, .row = p->head_dim, .head = head};
        p->strides[MSDA_TENSOR_VALUE] = stride;
        p->strides[MSDA_TENSOR_GRAD_VALUE] = stride;
    }
}

static void describe_tensor(workload *w, msda_tensor which, int64_t row, int64_t head, int64_t run)
{
    const msda_problem *p = &w->problem;
    const bool of_points = which == MSDA_TENSOR_LOCATIONS || which == MSDA_TENSOR_WEIGHTS ||
                           which == MSDA_TENSOR_REFERENCES || which == MSDA_TENSOR_GRAD_LOCATIONS ||
                           which == MSDA_TENSOR_GRAD_WEIGHTS;
    tensor *t = &w->tensors[which];
    *t = (tensor){.dtype = of_points ? p->point_dtype : p->value_dtype, .batch = p->batch, .row = row, .head = head};
    t->run = run;
    t->stride = p->strides[which];
    if (t->stride.row == 0)
        t->stride = (msda_stride){.batch = row * head * run, .row = head * run, .head = run};
    t->size = p->batch * row * head * run * dtype_size(t->dtype);
    t->data = numbers_allocate(t->size);
}

void workload_open(workload *w, const preset *shape, const setup *how, const numbers *from)
{
    *w = (workload){.shape = shape, .how = *how};
    describe_problem(w);

    const msda_problem *p = &w->problem;
    const int64_t points = preset_points_of_head(shape);
    describe_tensor(w, MSDA_TENSOR_VALUE, p->value_length, p->heads, p->head_dim);
    describe_tensor(w, MSDA_TENSOR_GRAD_VALUE, p->value_length, p->heads, p->head_dim);
    describe_tensor(w, MSDA_TENSOR_OUTPUT, p->queries, p->heads, p->head_dim);
    describe_tensor(w, MSDA_TENSOR_GRAD_OUTPUT, p->queries, p->heads, p->head_dim);
    describe_tensor(w, MSDA_TENSOR_LOCATIONS, p->queries, p->heads, points * 2);
    describe_tensor(w, MSDA_TENSOR_GRAD_LOCATIONS, p->queries, p->heads, points * 2);
    describe_tensor(w, MSDA_TENSOR_WEIGHTS, p->queries, p->heads, points);
    describe_tensor(w, MSDA_TENSOR_GRAD_WEIGHTS, p->queries, p->heads, points);
    if (how->fused)
        describe_tensor(w, MSDA_TENSOR_REFERENCES, p->queries, 1, p->num_levels * 2);

    const struct {
        msda_tensor which;
        const float *drawn;
    } inputs[] = {
        {MSDA_TENSOR_VALUE, from->value},           {MSDA_TENSOR_GRAD_OUTPUT, from->grad_output},
        {MSDA_TENSOR_LOCATIONS, from->locations},   {MSDA_TENSOR_WEIGHTS, from->weights},
        {MSDA_TENSOR_REFERENCES, from->references},
    };
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; ++i) {
        const tensor *t = &w->tensors[inputs[i].which];
        if (t->size != 0)
            dtype_store(t->dtype, inputs[i].drawn, t->size / dtype_size(t->dtype), t->data);
    }
}

void workload_close(workload *w)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        free(w->tensors[i].data);
    *w = (workload){0};
}

bool workload_reads(const workload *w, bool backward, msda_tensor which)
{
    if (w->tensors[which].size == 0)
        return false;
    return which <= MSDA_TENSOR_REFERENCES || (backward && which == MSDA_TENSOR_GRAD_OUTPUT);
}

bool workload_writes(const workload *w, bool backward, msda_tensor which)
{
    if (w->tensors[which].size == 0)
        return false;
    return backward ? which >= MSDA_TENSOR_GRAD_VALUE : which == MSDA_TENSOR_OUTPUT;
}

int64_t workload_bytes(const workload *w, bool backward)
{
    int64_t bytes = 0;
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (workload_reads(w, backward, (msda_tensor)i) || workload_writes(w, backward, (msda_tensor)i))
            bytes += w->tensors[i].size;
    return bytes;
}

int64_t workload_gathered_bytes(const workload *w)
{
    return preset_points(w->shape) * 4 * w->problem.head_dim * dtype_size(w->problem.value_dtype);
}
