/* SPDX-License-Identifier: Apache-2.0 */
#include "verdict.h"

#include "storage.h"

#include <math.h>
#include <stdio.h>

/* ---- tolerance ------------------------------------------------------------------------------------------------- */

static double largest_extent(const msda_problem *problem)
{
    int32_t extent = 1;
    for (int l = 0; l < problem->num_levels; ++l) {
        extent = problem->levels[l].height > extent ? problem->levels[l].height : extent;
        extent = problem->levels[l].width > extent ? problem->levels[l].width : extent;
    }
    return extent;
}

static double rtol_of(const msda_problem *problem, msda_tensor tensor)
{
    const bool native = tensor == MSDA_TENSOR_GRAD_VALUE && problem->accumulate == MSDA_ACCUMULATE_NATIVE;
    switch (problem->value_dtype) {
    case MSDA_DTYPE_F64:
        return 1e-13;
    case MSDA_DTYPE_F16:
        return native ? 2e-2 : 1e-3;
    case MSDA_DTYPE_BF16:
        return native ? 1e-1 : 8e-3;
    default:
        return 1e-6 + 6e-8 * largest_extent(problem);
    }
}

static double largest(const msda_array *array)
{
    double magnitude = 0.0;
    for (size_t i = 0; array->data != NULL && i < array->count; ++i)
        if (isfinite(array->data[i]))
            magnitude = fmax(magnitude, fabs(array->data[i]));
    return magnitude;
}

/* The largest single term that a sum of this tensor can have. */
static double largest_term(const msda_folder *folder, msda_tensor tensor)
{
    const double value = largest(&folder->tensors[MSDA_TENSOR_VALUE]);
    const double gradient = largest(&folder->tensors[MSDA_TENSOR_GRAD_OUTPUT]);
    const double weight = folder->fused ? 1.0 : largest(&folder->tensors[MSDA_TENSOR_WEIGHTS]);
    const bool per_pixel = folder->fused && folder->problem.reference_kind != MSDA_REFERENCE_BOXES;
    switch (tensor) {
    case MSDA_TENSOR_OUTPUT:
        return weight * value;
    case MSDA_TENSOR_GRAD_VALUE:
        return weight * gradient;
    case MSDA_TENSOR_GRAD_WEIGHTS:
        return gradient * value;
    case MSDA_TENSOR_GRAD_LOCATIONS:
        return weight * gradient * value * (per_pixel ? 1.0 : largest_extent(&folder->problem));
    default:
        return weight * gradient * value * largest_extent(&folder->problem);
    }
}

msda_tolerance msda_tolerance_of(const msda_folder *folder, msda_tensor tensor, double own_rtol)
{
    if (own_rtol >= 0.0)
        return (msda_tolerance){own_rtol, INFINITY, 0.0};
    const msda_problem *const problem = &folder->problem;
    const msda_dtype arithmetic = problem->value_dtype == MSDA_DTYPE_F64 ? MSDA_DTYPE_F64 : MSDA_DTYPE_F32;
    const double rtol = rtol_of(problem, tensor);
    const double one_rounding = msda_storage_roundoff(arithmetic) * largest_term(folder, tensor);
    const double underflow = 0.5 * msda_storage_smallest(msda_folder_dtype(problem, tensor));
    return (msda_tolerance){rtol, 8.0 * rtol, fmax(one_rounding, underflow)};
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

typedef struct sums {
    long double error, computed, expected, product; /* of squares; long double has the range for squares of doubles */
    double max_error, max_expected;
    size_t finite;      /* elements that both hold as finite numbers: what the sums are about */
    size_t misplaced;   /* NaN or infinite, and not the same in both */
    size_t first_wrong; /* the first of them */
} sums;

static bool same_class(double computed, double stored)
{
    return isnan(stored) ? isnan(computed) : computed == stored;
}

static sums add_up(const double *computed, const msda_array *expected, msda_dtype stored_as)
{
    sums s = {0};
    for (size_t i = 0; i < expected->count; ++i) {
        const double out = computed[i], ref = expected->data[i], stored = msda_storage_round(stored_as, ref);
        if (!isfinite(out) || !isfinite(stored)) {
            if (!same_class(out, stored) && s.misplaced++ == 0)
                s.first_wrong = i;
            continue;
        }
        const long double difference = (long double)out - ref;
        ++s.finite;
        s.error += difference * difference;
        s.computed += (long double)out * out;
        s.expected += (long double)ref * ref;
        s.product += (long double)out * ref;
        s.max_error = fmax(s.max_error, (double)fabsl(difference));
        s.max_expected = fmax(s.max_expected, fabs(ref));
    }
    return s;
}

static double cosine_of(long double product, long double a, long double b)
{
    if (a == 0.0L || b == 0.0L)
        return a == b ? 1.0 : 0.0;
    return (double)(product / (sqrtl(a) * sqrtl(b)));
}

/* ---- what the numbers suggest ---------------------------------------------------------------------------------- */

static void write_index(char *text, size_t size, const msda_array *array, size_t flat)
{
    int64_t index[MSDA_NPY_MAX_RANK];
    char shape[MSDA_NPY_SHAPE_TEXT_SIZE];
    for (int axis = array->rank - 1; axis >= 0; --axis) {
        index[axis] = (int64_t)(flat % (size_t)array->shape[axis]);
        flat /= (size_t)array->shape[axis];
    }
    snprintf(text, size, "%s", msda_npy_shape_text(shape, index, array->rank));
}

/* The part of the error that scaling the expected tensor leaves, squared. */
static long double error_after_scaling(const double *computed, const msda_array *expected, long double scale)
{
    long double error = 0.0L;
    for (size_t i = 0; i < expected->count; ++i) {
        const long double difference = computed[i] - scale * expected->data[i];
        error += isfinite(difference) ? difference * difference : 0.0L;
    }
    return error;
}

/* The cosine with x and y exchanged; 0 for a tensor that does not end in pairs. */
static double cosine_swapped(const double *computed, const msda_array *expected, const sums *s)
{
    long double product = 0.0L;
    if (expected->rank == 0 || expected->shape[expected->rank - 1] != 2)
        return 0.0;
    for (size_t i = 0; i < expected->count; ++i)
        if (isfinite(computed[i ^ 1]) && isfinite(expected->data[i]))
            product += (long double)computed[i ^ 1] * expected->data[i];
    return cosine_of(product, s->computed, s->expected);
}

/* Elements whose error no rounding explains: a hundredth of their own and the typical size together. */
static size_t count_wrong(const double *computed, const msda_array *expected, const sums *s, size_t *first)
{
    const double typical = (double)sqrtl(s->expected / (long double)s->finite);
    size_t wrong = 0;
    for (size_t i = 0; i < expected->count; ++i)
        if (fabs(computed[i] - expected->data[i]) > 0.01 * (fabs(expected->data[i]) + typical) && wrong++ == 0)
            *first = i;
    return wrong;
}

static void write_hint(msda_verdict *verdict, const double *computed, const msda_array *expected, const sums *s)
{
    char *const hint = verdict->hint;
    const size_t size = sizeof verdict->hint;
    char index[MSDA_NPY_SHAPE_TEXT_SIZE];
    if (s->misplaced > 0) {
        write_index(index, sizeof index, expected, s->first_wrong);
        snprintf(hint, size, "NaN or infinity on one side only: %zu of %zu elements, first %s", s->misplaced,
                 expected->count, index);
        return;
    }
    if (s->expected == 0.0L) {
        snprintf(hint, size, "not zero where only zeros are expected");
        return;
    }
    if (s->computed == 0.0L) {
        snprintf(hint, size, "all zero: not computed?");
        return;
    }
    const long double scale = s->product / s->expected;
    if (error_after_scaling(computed, expected, scale) < 0.1L * s->error) {
        snprintf(hint, size, "%s: out is %.9Lg times ref", scale < 0.0L ? "sign" : "scale", scale);
        return;
    }
    if (cosine_swapped(computed, expected, s) > 0.99) {
        snprintf(hint, size, "x and y swapped");
        return;
    }
    size_t first = 0;
    const size_t wrong = count_wrong(computed, expected, s, &first);
    if (verdict->cosine > 0.5 && wrong > 0 && wrong <= s->finite / 10 + 1) {
        write_index(index, sizeof index, expected, first);
        snprintf(hint, size, "few bad elements, borders? %zu of %zu, first %s", wrong, expected->count, index);
        return;
    }
    snprintf(hint, size, "%s",
             verdict->cosine < -0.5   ? "opposite: the sign of some terms?"
             : verdict->cosine < 0.5  ? "unrelated: transposed axes, or x and y swapped?"
             : verdict->cosine > 0.99 ? "small errors everywhere: rounding, a narrower type?"
                                      : "partly alike: some points, levels or borders differ?");
}

msda_verdict msda_verdict_of(const double *computed, const msda_array *expected, msda_dtype stored,
                             msda_tolerance tolerance)
{
    const sums s = add_up(computed, expected, stored);
    const double error = (double)sqrtl(s.error), norm = (double)sqrtl(s.expected);
    msda_verdict verdict = {
        .max_error = s.max_error,
        .relative_error = error == 0.0 ? 0.0 : error / norm,
        .cosine = cosine_of(s.product, s.computed, s.expected),
    };
    const double allowed = tolerance.rtol * norm + tolerance.floor * sqrt((double)s.finite);
    verdict.passed =
        s.misplaced == 0 && error <= allowed &&
        (s.max_error <= tolerance.element_rtol * s.max_expected + tolerance.floor || isinf(tolerance.element_rtol));
    if (!verdict.passed)
        write_hint(&verdict, computed, expected, &s);
    return verdict;
}
