/* SPDX-License-Identifier: Apache-2.0 */
#include "agreement.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "call.h"
#include "storage_types.h"

/* ---- tolerance --------------------------------------------------------------------------------------------------- */

static double largest_side(const workload *w)
{
    double side = 1.0;
    for (const preset_grid *level = w->shape->levels; level->height != 0; ++level)
        side = fmax(side, fmax(level->height, level->width));
    return side;
}

/* How many terms one element of grad_value sums, on the level where they are most. */
static double hits_of_pixel(const workload *w)
{
    double hits = 1.0;
    for (const preset_grid *level = w->shape->levels; level->height != 0; ++level) {
        const double points = (double)w->problem.queries * level->points;
        const double pixels = w->how.locations == SPREAD_HOT ? 4.0 : (double)level->height * level->width;
        hits = fmax(hits, 4.0 * points / pixels);
    }
    return hits;
}

/*
 * In units of roundoff:
 *   storage     2        the one rounding at the store, and one to spare
 *   arithmetic  16       a short sum of products of a few factors (the random signs of its errors cancel)
 *               side     a coordinate rounded to f32 is off by up to side x roundoff pixels, in the fused form, which
 *                        also divides and adds, by four times that
 *               sqrt(hits) in grad_value: a sum of numbers of both signs grows as the square root of their number, and
 *                        so do the errors of its additions; NATIVE makes them in the storage type. Times 4: hits are
 *                        an average.
 *   knots       16-bit references and offsets add up to positions on a lattice of a few roundoffs of a pixel, so a share
 *               of about 4 roundoffs of the points lies exactly on an integer, where the rounding in f32 picks the side;
 *               each of those location gradients may be off by about itself.
 */
double agreement_tolerance(const workload *w, msda_tensor which)
{
    const msda_dtype stored = w->tensors[which].dtype;
    const double arithmetic = dtype_roundoff(w->how.value_dtype == MSDA_DTYPE_F64 ? MSDA_DTYPE_F64 : MSDA_DTYPE_F32);
    const double pixel_error = largest_side(w) * (w->how.fused ? 4.0 : 1.0) * arithmetic;
    double tolerance = 2.0 * dtype_roundoff(stored) + 16.0 * arithmetic + pixel_error;
    if (which == MSDA_TENSOR_GRAD_VALUE) {
        const bool native = w->how.accumulate == MSDA_ACCUMULATE_NATIVE;
        tolerance += 4.0 * sqrt(hits_of_pixel(w)) * (native ? dtype_roundoff(stored) : arithmetic);
    }
    const bool knots = which == MSDA_TENSOR_GRAD_LOCATIONS && w->how.fused && dtype_size(w->how.point_dtype) == 2;
    return tolerance + (knots ? sqrt(2.0 * 4.0 * dtype_roundoff(stored)) : 0.0);
}

const char *agreement_tensor_name(msda_tensor which)
{
    switch (which) {
    case MSDA_TENSOR_OUTPUT:
        return "output";
    case MSDA_TENSOR_GRAD_VALUE:
        return "grad_value";
    case MSDA_TENSOR_GRAD_LOCATIONS:
        return "grad_locations";
    default:
        return "grad_weights";
    }
}

/* ---- the reference, one head at a time --------------------------------------------------------------------------- */

static int64_t elements_of_head(const tensor *t)
{
    return t->row * t->run;
}

/* References are shared by the heads. */
static void load_head(const tensor *t, int64_t batch_item, int64_t head, double *to)
{
    const int64_t first = batch_item * t->stride.batch + (t->head == 1 ? 0 : head) * t->stride.head;
    for (int64_t row = 0; row < t->row; ++row)
        dtype_load(t->dtype, t->data, first + row * t->stride.row, t->run, to + row * t->run);
}

static msda_problem problem_of_head(const msda_problem *whole)
{
    msda_problem p = *whole;
    p.value_dtype = MSDA_DTYPE_F64;
    p.point_dtype = MSDA_DTYPE_F64;
    p.accumulate = MSDA_ACCUMULATE_FP32;
    p.batch = 1;
    p.heads = 1;
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        p.strides[i] = (msda_stride){0};
    return p;
}

static msda_status answer_head(const workload *w, bool backward, head_answer *answer)
{
    const msda_problem problem = problem_of_head(&w->problem);
    call c = {.on = BACKEND_NAIVE, .fused = w->how.fused, .backward = backward, .problem = &problem};
    double *inputs[MSDA_TENSOR_COUNT] = {NULL};
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i) {
        const tensor *t = &w->tensors[i];
        const bool reads = workload_reads(w, backward, (msda_tensor)i);
        const bool writes = workload_writes(w, backward, (msda_tensor)i);
        if (!reads && !writes)
            continue;
        double *memory = numbers_allocate(elements_of_head(t) * (int64_t)sizeof(double));
        if (reads)
            load_head(t, answer->batch_item, answer->head, memory);
        *(reads ? &inputs[i] : &answer->tensors[i]) = memory;
        c.tensors[i] = memory;
    }
    const msda_status status = call_run(&c);
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        free(inputs[i]);
    return status;
}

void reference_open(reference *r, const workload *w, bool backward, int64_t points)
{
    const int64_t all = (int64_t)w->problem.batch * w->problem.heads;
    const int64_t affordable = points / (preset_points(w->shape) / all) + 1;
    *r = (reference){.of = w, .backward = backward, .all_heads = (int)all};
    r->heads = (int)(affordable < all ? affordable : all);
    r->answers = numbers_allocate(r->heads * (int64_t)sizeof *r->answers);
    int refusals = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : refusals)
    for (int i = 0; i < r->heads; ++i) {
        const int64_t pick = r->heads == 1 ? all - 1 : i * (all - 1) / (r->heads - 1); /* spread from first to last */
        r->answers[i] = (head_answer){.batch_item = pick / w->problem.heads, .head = pick % w->problem.heads};
        refusals += answer_head(w, backward, &r->answers[i]) != MSDA_STATUS_SUCCESS;
    }
    if (refusals != 0) {
        fprintf(stderr, "msda_bench: the reference refuses %s\n", w->shape->name);
        exit(1);
    }
}

void reference_close(reference *r)
{
    for (int i = 0; i < r->heads; ++i)
        for (int t = 0; t < MSDA_TENSOR_COUNT; ++t)
            free(r->answers[i].tensors[t]);
    free(r->answers);
    *r = (reference){0};
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static double relative_error(const reference *r, msda_tensor which)
{
    const tensor *t = &r->of->tensors[which];
    double difference = 0.0, size = 0.0;
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : difference, size)
    for (int i = 0; i < r->heads; ++i) {
        const head_answer *answer = &r->answers[i];
        const int64_t count = elements_of_head(t);
        double *result = numbers_allocate(count * (int64_t)sizeof *result);
        load_head(t, answer->batch_item, answer->head, result);
        for (int64_t e = 0; e < count; ++e) {
            const double right = answer->tensors[which][e], off = result[e] - right;
            difference += off * off;
            size += right * right;
        }
        free(result);
    }
    return sqrt(difference / size);
}

agreement reference_compare(const reference *r)
{
    agreement found = {.holds = true, .error = -1.0, .tolerance = 1.0};
    for (int i = 0; i < MSDA_TENSOR_COUNT && found.holds; ++i) {
        const msda_tensor which = (msda_tensor)i;
        if (!workload_writes(r->of, r->backward, which))
            continue;
        const double error = relative_error(r, which), tolerance = agreement_tolerance(r->of, which);
        const double largest = fmax(found.largest, error);
        if (!(error / tolerance <= found.error / found.tolerance))
            found = (agreement){error <= tolerance, largest, which, error, tolerance};
        found.largest = largest;
    }
    return found;
}
