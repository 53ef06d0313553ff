/* SPDX-License-Identifier: Apache-2.0 */
#include "bounds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "element.h"
#include "sampling.h"

/* Of every output element: what is summed in it. Three f64 twins of the trial. */
typedef struct ledger {
    trial terms;  /* sum of |terms| */
    trial errors; /* sum of their errors, in roundoffs */
    trial counts; /* how many are summed */
} ledger;

static void note(ledger *l, msda_tensor tensor, int64_t index, double term, double error, double count)
{
    trial_set(&l->terms, tensor, index, trial_get(&l->terms, tensor, index) + fabs(term));
    trial_set(&l->errors, tensor, index, trial_get(&l->errors, tensor, index) + fabs(error));
    trial_set(&l->counts, tensor, index, trial_get(&l->counts, tensor, index) + count);
}

/* A sum of absolute terms and their error. */
typedef struct sum {
    double terms, errors;
} sum;

static sum plus(sum s, double term, double error)
{
    return (sum){s.terms + fabs(term), s.errors + fabs(error)};
}

/* Of one point: |d output . g / d weight| and the like along x and y, before the attention weight. */
typedef struct point_sums {
    sum weight, x, y;
} point_sums;

static point_sums sums_of(const trial *t, const sampling_head *head, const sample *s)
{
    point_sums sums = {{0, 0}, {0, 0}, {0, 0}};
    const int64_t g = trial_index(t, MSDA_TENSOR_GRAD_OUTPUT, head->n, head->q, head->m, 0);
    for (int i = 0; i < s->num_corners; ++i) {
        const corner *at = &s->corners[i];
        const int64_t v = trial_index(t, MSDA_TENSOR_VALUE, head->n, at->row, head->m, 0);
        double dot = 0.0;
        for (int64_t c = 0; c < t->problem.head_dim; ++c)
            dot += fabs(trial_get(t, MSDA_TENSOR_GRAD_OUTPUT, g + c) * trial_get(t, MSDA_TENSOR_VALUE, v + c));
        sums.weight = plus(sums.weight, at->weight * dot, at->weight_error * dot);
        sums.x = plus(sums.x, at->slope_x * dot, at->slope_x_error * dot);
        sums.y = plus(sums.y, at->slope_y * dot, at->slope_y_error * dot);
    }
    return sums;
}

/* output and grad_value: one term a corner and channel. */
static void note_channels(ledger *l, const trial *t, const sampling_head *head, const sample *s)
{
    const int64_t out = trial_index(t, MSDA_TENSOR_OUTPUT, head->n, head->q, head->m, 0);
    for (int i = 0; i < s->num_corners; ++i) {
        const corner *at = &s->corners[i];
        const int64_t v = trial_index(t, MSDA_TENSOR_VALUE, head->n, at->row, head->m, 0);
        const double factor = s->weight * at->weight;
        const double error = fabs(s->weight) * at->weight_error + s->weight_error * at->weight;
        for (int64_t c = 0; c < t->problem.head_dim; ++c) {
            const double value = trial_get(t, MSDA_TENSOR_VALUE, v + c);
            const double g = trial_get(t, MSDA_TENSOR_GRAD_OUTPUT, out + c);
            note(l, MSDA_TENSOR_OUTPUT, out + c, factor * value, error * value, 1.0);
            note(l, MSDA_TENSOR_GRAD_VALUE, v + c, factor * g, error * g, 1.0);
        }
    }
}

/* Of grad_locations (fused: of the offsets), and of the reference that the location hangs on. */
static void note_location(ledger *l, const trial *t, const sampling_head *head, const sample *s, int64_t k, sum slope,
                          int axis)
{
    const double channels = t->problem.head_dim;
    const double term = s->weight * slope.terms;
    const double error = fabs(s->weight) * slope.errors + s->weight_error * slope.terms;
    const double scale = fabs(sampling_offset_scale(head, k, axis));
    const int64_t index = trial_index(t, MSDA_TENSOR_LOCATIONS, head->n, head->q, head->m, 2 * k + axis);
    note(l, MSDA_TENSOR_GRAD_LOCATIONS, index, term * scale, (error + 4.0 * fabs(term)) * scale, channels);
    if (!t->fused)
        return;
    const int64_t reference = sampling_reference(head, k);
    /* a reference sums over heads and points what was summed over channels before */
    note(l, MSDA_TENSOR_GRAD_REFERENCES, reference + axis, term, error + channels * fabs(term), 1.0);
    if (t->problem.reference_kind != MSDA_REFERENCE_BOXES)
        return;
    const double extent = fabs(trial_get(t, MSDA_TENSOR_REFERENCES, reference + 2 + axis));
    const double by_extent = extent > 0.0 ? scale / extent * fabs(trial_get(t, MSDA_TENSOR_LOCATIONS, index)) : 0.0;
    note(l, MSDA_TENSOR_GRAD_REFERENCES, reference + 2 + axis, term * by_extent,
         (error + (channels + 4.0) * fabs(term)) * by_extent, 1.0);
}

/* Plain: G_k, the gradient of the weight. Fused: weight_k * (G_k - sum_j weight_j G_j). */
static void note_weights(ledger *l, const trial *t, const sampling_head *head, const sum *gradients)
{
    const double channels = t->problem.head_dim, points = (double)head->num_points;
    const int64_t first = trial_index(t, MSDA_TENSOR_WEIGHTS, head->n, head->q, head->m, 0);
    sum mean = {0.0, 0.0};
    for (int64_t k = 0; t->fused && k < head->num_points; ++k) {
        const sample s = sampling_point(head, k);
        mean = plus(mean, s.weight * gradients[k].terms,
                    s.weight * gradients[k].errors + s.weight_error * gradients[k].terms);
    }
    for (int64_t k = 0; k < head->num_points; ++k) {
        const sample s = sampling_point(head, k);
        const sum all = plus(mean, gradients[k].terms, gradients[k].errors);
        if (t->fused)
            note(l, MSDA_TENSOR_GRAD_WEIGHTS, first + k, s.weight * all.terms,
                 s.weight * all.errors + s.weight_error * all.terms, channels + points);
        else
            note(l, MSDA_TENSOR_GRAD_WEIGHTS, first + k, all.terms, all.errors, channels);
    }
}

static void note_head(ledger *l, const trial *t, const sampling_head *head)
{
    sum *gradients = calloc((size_t)head->num_points, sizeof *gradients);
    assert_true(gradients != NULL || head->num_points == 0);
    for (int64_t k = 0; k < head->num_points; ++k) {
        const sample s = sampling_point(head, k);
        const point_sums sums = sums_of(t, head, &s);
        gradients[k] = sums.weight;
        note_channels(l, t, head, &s);
        note_location(l, t, head, &s, k, sums.x, 0);
        note_location(l, t, head, &s, k, sums.y, 1);
    }
    note_weights(l, t, head, gradients);
    free(gradients);
}

static int is_added_to(const trial *t, msda_tensor tensor)
{
    return tensor >= MSDA_TENSOR_GRAD_VALUE && (t->problem.flags & MSDA_FLAG_ADD_TO_GRADIENTS) != 0;
}

static double bound_of(const ledger *l, const expectation *e, const trial *t, msda_tensor tensor, int64_t index)
{
    const msda_dtype dtype = t->tensors[tensor].dtype;
    const double storage = element_roundoff(dtype), underflow = element_underflow(dtype);
    const double terms = trial_get(&l->terms, tensor, index), count = trial_get(&l->counts, tensor, index);
    const double inside =
        t->problem.value_dtype == MSDA_DTYPE_F64 ? element_roundoff(MSDA_DTYPE_F64) : element_roundoff(MSDA_DTYPE_F32);
    const double summing = inside * ((count + 8.0) * terms + trial_get(&l->errors, tensor, index));
    const double store = storage * (fabs(trial_get(&e->answer, tensor, index)) + summing) + underflow;
    const int is_native = tensor == MSDA_TENSOR_GRAD_VALUE && t->problem.accumulate == MSDA_ACCUMULATE_NATIVE;
    const double adding = is_native ? (count + 1.0) * (storage * terms + underflow) : 0.0;
    /* in f64 the answer itself was computed with the same roundoff */
    return (t->problem.value_dtype == MSDA_DTYPE_F64 ? 2.0 : 1.0) * summing + store + adding;
}

static void open_ledger(ledger *l, const trial *t)
{
    trial *const twins[] = {&l->terms, &l->errors, &l->counts};
    for (int i = 0; i < 3; ++i) {
        trial_open_widened(twins[i], t);
        for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
            if (trial_is_output((msda_tensor)tensor) && !(i == 0 && is_added_to(t, (msda_tensor)tensor)))
                trial_set_all(twins[i], (msda_tensor)tensor, 0.0);
    }
    for (int tensor = MSDA_TENSOR_GRAD_VALUE; tensor < MSDA_TENSOR_COUNT; ++tensor)
        for (int64_t i = 0; is_added_to(t, (msda_tensor)tensor) && i < trial_count(t, (msda_tensor)tensor); ++i)
            trial_set(&l->terms, (msda_tensor)tensor, i, fabs(trial_get(t, (msda_tensor)tensor, i)));
}

void expectation_open(expectation *e, const trial *t)
{
    trial_open_widened(&e->answer, t);
    trial_open_widened(&e->bound, t);
    if (trial_call_forward(&e->answer, &backend_naive) != MSDA_STATUS_SUCCESS ||
        trial_call_backward(&e->answer, &backend_naive) != MSDA_STATUS_SUCCESS)
        fail_msg("naive: %s: %s", t->name, msda_last_error());

    ledger l;
    open_ledger(&l, t);
    for (int64_t n = 0; n < t->problem.batch; ++n)
        for (int64_t q = 0; q < t->problem.queries; ++q)
            for (int64_t m = 0; m < t->problem.heads; ++m) {
                const sampling_head head = sampling_open(t, n, q, m);
                note_head(&l, t, &head);
            }
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        for (int64_t i = 0; trial_is_output((msda_tensor)tensor) && i < trial_count(t, (msda_tensor)tensor); ++i)
            trial_set(&e->bound, (msda_tensor)tensor, i, bound_of(&l, e, t, (msda_tensor)tensor, i));
    trial_close(&l.terms);
    trial_close(&l.errors);
    trial_close(&l.counts);
}

void expectation_close(expectation *e)
{
    trial_close(&e->answer);
    trial_close(&e->bound);
}

/* ---- comparing ------------------------------------------------------------------------------------------------- */

/* What the errors of a whole tensor look like. */
typedef struct diagnosis {
    int64_t num_bad, first_bad;
    double max_error, error_norm, answer_norm, got_norm, dot; /* norms squared */
} diagnosis;

static int is_within(double got, double answer, double bound)
{
    if (isnan(answer))
        return isnan(got);
    if (isinf(answer))
        return got == answer;
    return fabs(got - answer) <= bound; /* false for NaN */
}

static diagnosis diagnose(const expectation *e, const trial *t, msda_tensor tensor)
{
    diagnosis d = {0, -1, 0, 0, 0, 0, 0};
    for (int64_t i = 0; i < trial_count(t, tensor); ++i) {
        const double got = trial_get(t, tensor, i), answer = trial_get(&e->answer, tensor, i);
        if (!is_within(got, answer, trial_get(&e->bound, tensor, i))) {
            d.first_bad = d.num_bad == 0 ? i : d.first_bad;
            ++d.num_bad;
        }
        d.max_error = fmax(d.max_error, fabs(got - answer));
        d.error_norm += (got - answer) * (got - answer);
        d.answer_norm += answer * answer;
        d.got_norm += got * got;
        d.dot += got * answer;
    }
    return d;
}

void expectation_check(const expectation *e, const trial *t, msda_tensor tensor)
{
    if (t->unwanted >> tensor & 1)
        return;
    const diagnosis d = diagnose(e, t, tensor);
    if (d.num_bad == 0)
        return;
    const int64_t i = d.first_bad;
    fail_msg("%s: %s: %s %s: %lld of %lld elements are off; max error %.3g, relative norm %.3g, cosine %.6f; first at "
             "%s: got %.9g, expected %.9g +- %.3g",
             backend_label(), t->name, element_name(t->tensors[tensor].dtype), trial_tensor_name(t, tensor),
             (long long)d.num_bad, (long long)trial_count(t, tensor), d.max_error, sqrt(d.error_norm / d.answer_norm),
             d.dot / sqrt(d.got_norm * d.answer_norm), trial_describe(t, tensor, i), trial_get(t, tensor, i),
             trial_get(&e->answer, tensor, i), trial_get(&e->bound, tensor, i));
}

void trial_check(trial *t)
{
    expectation e;
    if (!(t->problem.flags & MSDA_FLAG_ADD_TO_GRADIENTS))
        trial_poison_outputs(t);
    expectation_open(&e, t);
    trial_forward(t);
    trial_backward(t);
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        if (trial_is_output((msda_tensor)tensor))
            expectation_check(&e, t, (msda_tensor)tensor);
    expectation_close(&e);
}
