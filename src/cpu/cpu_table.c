/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu_table.h"

#include "naive.h"

#include <stdbool.h>
#include <string.h>

/* ---- how many items a pass has ---------------------------------------------------------------------------------- */

int64_t msda_cpu_count_queries(const msda_cpu_job *job)
{
    return (int64_t)job->shape.p.batch * job->shape.p.queries;
}

int64_t msda_cpu_count_statistics(const msda_cpu_job *job)
{
    const msda_tensors *t = &job->tensors;
    const bool wanted = t->grad_value || t->grad_locations || t->grad_weights || t->grad_references;
    return job->shape.fused && wanted ? msda_cpu_count_queries(job) : 0;
}

int64_t msda_cpu_count_point_gradients(const msda_cpu_job *job)
{
    const msda_tensors *t = &job->tensors;
    return t->grad_locations || t->grad_weights || t->grad_references ? msda_cpu_count_queries(job) : 0;
}

int64_t msda_cpu_count_value_gradients(const msda_cpu_job *job)
{
    return job->tensors.grad_value ? job->plan.first_item[job->shape.p.num_levels] : 0;
}

int64_t msda_cpu_count_gaps(const msda_cpu_job *job)
{
    const bool adds = (job->shape.p.flags & MSDA_FLAG_ADD_TO_GRADIENTS) != 0;
    return job->tensors.grad_value && !adds ? job->shape.p.batch : 0;
}

/* ---- rows of value that no level covers -------------------------------------------------------------------------- */

/* The end of the level that covers row r; r itself if none does. */
static int64_t end_of_level_at(const msda_problem *p, int64_t r)
{
    for (int l = 0; l < p->num_levels; ++l) {
        const int64_t start = p->levels[l].start, end = start + (int64_t)p->levels[l].height * p->levels[l].width;
        if (start <= r && r < end)
            return end;
    }
    return r;
}

static int64_t next_level_start(const msda_problem *p, int64_t r)
{
    int64_t next = p->value_length;
    for (int l = 0; l < p->num_levels; ++l)
        if (p->levels[l].start >= r && p->levels[l].start < next)
            next = p->levels[l].start;
    return next;
}

static void clear_rows(const msda_cpu_job *job, int64_t n, int64_t first, int64_t last)
{
    const msda_stride *stride = &job->shape.p.strides[MSDA_TENSOR_GRAD_VALUE];
    const size_t size = msda_dtype_size(job->shape.p.grad_value_dtype);
    unsigned char *grad_value = job->tensors.grad_value;
    for (int64_t r = first; r < last; ++r)
        for (int64_t m = 0; m < job->shape.p.heads; ++m) {
            const int64_t element = n * stride->batch + r * stride->row + m * stride->head;
            memset(grad_value + (size_t)element * size, 0, (size_t)job->shape.p.head_dim * size);
        }
}

void msda_cpu_clear_gaps(const msda_cpu_job *job, void *scratch, int64_t first, int64_t last)
{
    (void)scratch;
    const msda_problem *p = &job->shape.p;
    for (int64_t n = first; n < last; ++n)
        for (int64_t r = end_of_level_at(p, 0); r < p->value_length; r = end_of_level_at(p, r)) {
            const int64_t gap_end = next_level_start(p, r);
            clear_rows(job, n, r, gap_end);
            r = gap_end;
        }
}

/* ---- f64: the definition itself ---------------------------------------------------------------------------------- */

static int64_t count_naive_backward(const msda_cpu_job *job)
{
    const msda_tensors *t = &job->tensors;
    return t->grad_value || t->grad_locations || t->grad_weights ? (int64_t)job->shape.p.batch * job->shape.p.heads : 0;
}

static int64_t count_naive_references(const msda_cpu_job *job)
{
    return job->tensors.grad_references ? msda_cpu_count_queries(job) : 0;
}

static void naive_forward(const msda_cpu_job *job, void *scratch, int64_t first, int64_t last)
{
    (void)scratch;
    msda_naive_forward_items(&job->shape, &job->tensors, first, last);
}

static void naive_backward(const msda_cpu_job *job, void *scratch, int64_t first, int64_t last)
{
    (void)scratch;
    msda_naive_backward_items(&job->shape, &job->tensors, first, last);
}

static void naive_references(const msda_cpu_job *job, void *scratch, int64_t first, int64_t last)
{
    (void)scratch;
    msda_naive_reference_items(&job->shape, &job->tensors, first, last);
}

static const msda_cpu_row f64_row = {
    "f64_f64_dany__naive",
    MSDA_DTYPE_F64,
    MSDA_DTYPE_F64,
    0,
    {msda_cpu_count_queries, naive_forward, 1},
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
