/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu_table.h"

#include "naive.h"

#include <stdbool.h>
#include <string.h>

/* ---- how many items a pass has ---------------------------------------------------------------------------------- */

int64_t msda_cpu_count_forward(const msda_cpu_job *job)
{
    return job->shape.p.batch * msda_cpu_count_tiles(&job->shape);
}

int64_t msda_cpu_count_statistics(const msda_cpu_job *job)
{
    const msda_tensors *t = &job->tensors;
    const bool wanted = t->grad_value || t->grad_locations || t->grad_weights || t->grad_references;
    return job->shape.fused && wanted ? msda_cpu_count_forward(job) : 0;
}

int64_t msda_cpu_count_point_gradients(const msda_cpu_job *job)
{
    const msda_tensors *t = &job->tensors;
    return t->grad_locations || t->grad_weights || t->grad_references ? msda_cpu_count_forward(job) : 0;
}

int64_t msda_cpu_count_value_gradients(const msda_cpu_job *job)
{
    return job->tensors.grad_value ? msda_cpu_count_value_items(&job->plan, &job->shape) : 0;
}

static int64_t count_value_rows(const msda_cpu_job *job)
{
    return job->tensors.grad_value ? job->shape.p.batch * job->shape.p.value_length : 0;
}

int64_t msda_cpu_count_cleared(const msda_cpu_job *job)
{
    const bool adds_in_place =
        (job->shape.p.flags & MSDA_FLAG_ADD_TO_GRADIENTS) != 0 && !msda_cpu_sums_in_image(&job->shape);
    return adds_in_place ? 0 : count_value_rows(job);
}

int64_t msda_cpu_count_image(const msda_cpu_job *job)
{
    return msda_cpu_sums_in_image(&job->shape) ? count_value_rows(job) : 0;
}

/* ---- clearing the sums of the value gradient ---------------------------------------------------------------------- */

static void clear_image(const msda_cpu_job *job, int64_t first, int64_t last)
{
    const size_t row = (size_t)job->shape.p.heads * (size_t)job->shape.p.head_dim * sizeof(float);
    memset((unsigned char *)job->workspace + job->plan.image_offset + (size_t)first * row, 0,
           (size_t)(last - first) * row);
}

/* As many bytes at once as lie together. */
static void clear_rows(const msda_cpu_job *job, int64_t n, int64_t first, int64_t last)
{
    const msda_problem *p = &job->shape.p;
    const msda_stride *stride = &p->strides[MSDA_TENSOR_GRAD_VALUE];
    const int64_t size = (int64_t)msda_dtype_size(p->grad_value_dtype), channels = p->head_dim;
    const bool heads_together = stride->head == channels;
    const bool rows_together = heads_together && stride->row == p->heads * channels;
    const int64_t rows = rows_together ? last - first : 1, heads = heads_together ? p->heads : 1;
    unsigned char *to = (unsigned char *)job->tensors.grad_value + n * stride->batch * size;
    for (int64_t r = first; r < last; r += rows)
        for (int64_t m = 0; m < p->heads; m += heads)
            memset(to + (r * stride->row + m * stride->head) * size, 0, (size_t)(rows * heads * channels * size));
}

void msda_cpu_clear(const msda_cpu_job *job, msda_cpu_thread *thread, int64_t first, int64_t last)
{
    (void)thread;
    const int64_t length = job->shape.p.value_length;
    if (msda_cpu_sums_in_image(&job->shape)) {
        clear_image(job, first, last);
        return;
    }
    while (first < last) { /* a batch item at a time */
        const int64_t n = first / length, end = (n + 1) * length < last ? (n + 1) * length : last;
        clear_rows(job, n, first - n * length, end - n * length);
        first = end;
    }
}

/* ---- f64: the definition itself ---------------------------------------------------------------------------------- */

static int64_t count_naive_backward(const msda_cpu_job *job)
{
    const msda_tensors *t = &job->tensors;
    return t->grad_value || t->grad_locations || t->grad_weights ? (int64_t)job->shape.p.batch * job->shape.p.heads : 0;
}

static int64_t count_naive_queries(const msda_cpu_job *job)
{
    return (int64_t)job->shape.p.batch * job->shape.p.queries;
}

static int64_t count_naive_references(const msda_cpu_job *job)
{
    return job->tensors.grad_references ? count_naive_queries(job) : 0;
}

static void naive_forward(const msda_cpu_job *job, msda_cpu_thread *thread, int64_t first, int64_t last)
{
    (void)thread;
    msda_naive_forward_items(&job->shape, &job->tensors, first, last);
}

static void naive_backward(const msda_cpu_job *job, msda_cpu_thread *thread, int64_t first, int64_t last)
{
    (void)thread;
    msda_naive_backward_items(&job->shape, &job->tensors, first, last);
}

static void naive_references(const msda_cpu_job *job, msda_cpu_thread *thread, int64_t first, int64_t last)
{
    (void)thread;
    msda_naive_reference_items(&job->shape, &job->tensors, first, last);
}

static const msda_cpu_row f64_row = {
    "f64_f64_dany__naive",
    MSDA_DTYPE_F64,
    MSDA_DTYPE_F64,
    0,
    {count_naive_queries, naive_forward, 1},
    {{count_naive_backward, naive_backward, 0}, {count_naive_references, naive_references, 1}}};

/* ---- selection --------------------------------------------------------------------------------------------------- */

static const msda_cpu_row *const rows[MSDA_ISA_COUNT] = {
    [MSDA_ISA_SCALAR] = msda_cpu_rows_scalar,
#if MSDA_CPU_X86
    [MSDA_ISA_AVX2] = msda_cpu_rows_avx2,
    [MSDA_ISA_AVX512] = msda_cpu_rows_avx512,
#elif MSDA_CPU_ARM64
    [MSDA_ISA_NEON] = msda_cpu_rows_neon,
#endif
};

static bool fits(const msda_cpu_row *row, const msda_problem *p)
{
    return row->value_dtype == p->value_dtype && row->point_dtype == p->point_dtype &&
           (row->head_dim == 0 || row->head_dim == p->head_dim);
}

const msda_cpu_row *msda_cpu_select(const msda_shape *shape)
{
    if (shape->p.value_dtype == MSDA_DTYPE_F64)
        return &f64_row;
    /* The vector sets count rows of value in 32 bits. */
    const msda_isa isa = shape->p.value_length <= INT32_MAX ? msda_cpu_find_isa() : MSDA_ISA_SCALAR;
    const msda_cpu_row *row = rows[isa];
    while (!fits(row, &shape->p))
        ++row;
    return row;
}
