/* SPDX-License-Identifier: Apache-2.0 */
#include "against_cpu.h"

#include <math.h>

#include "element.h"

void cpu_answer_open(trial *answer, const trial *t)
{
    trial_open_widened(answer, t);
    require_success(trial_call_forward(answer, &backend_cpu));
    require_success(trial_call_backward(answer, &backend_cpu));
}

static int32_t longest_side(const msda_problem *p)
{
    int32_t longest = 1;
    for (int l = 0; l < p->num_levels; ++l) {
        longest = p->levels[l].width > longest ? p->levels[l].width : longest;
        longest = p->levels[l].height > longest ? p->levels[l].height : longest;
    }
    return longest;
}

/* What arithmetic in f32 (f64 for f64) may add up to; a location rounded to f32 is off by up to side * 2^-24 pixels. */
static double arithmetic_tolerance(const trial *t)
{
    return t->problem.value_dtype == MSDA_DTYPE_F64 ? 1e-13 : 1e-6 + 6e-8 * longest_side(&t->problem);
}

static double tolerance(const trial *t, msda_tensor tensor)
{
    const int native = tensor == MSDA_TENSOR_GRAD_VALUE && t->problem.accumulate == MSDA_ACCUMULATE_NATIVE;
    switch (t->tensors[tensor].dtype) {
    case MSDA_DTYPE_F16:
        return native ? 2e-2 : 1e-3;
    case MSDA_DTYPE_BF16:
        return native ? 1e-1 : 8e-3;
    default:
        return arithmetic_tolerance(t);
    }
}

static void require_tensor_near(const trial *t, const trial *answer, msda_tensor tensor)
{
    double error_norm = 0.0, answer_norm = 0.0, max_error = 0.0;
    int64_t worst = 0;
    for (int64_t i = 0; i < trial_count(t, tensor); ++i) {
        const double expected = trial_get(answer, tensor, i), error = trial_get(t, tensor, i) - expected;
        error_norm += error * error;
        answer_norm += expected * expected;
        if (!(fabs(error) <= max_error)) { /* also for NaN */
            max_error = fabs(error);
            worst = i;
        }
    }
    const double relative = sqrt(error_norm / answer_norm), limit = tolerance(t, tensor);
    if (!(relative <= limit) && error_norm != 0.0)
        fail_msg("%s: %s %s: relative norm of the error %.3g, expected <= %.3g; worst at %s: got %.9g, expected %.9g",
                 t->name, element_name(t->tensors[tensor].dtype), trial_tensor_name(t, tensor), relative, limit,
                 trial_describe(t, tensor, worst), trial_get(t, tensor, worst), trial_get(answer, tensor, worst));
}

void require_near(const trial *t, const trial *answer)
{
    for (int i = 0; i < MSDA_TENSOR_COUNT; ++i)
        if (trial_is_output((msda_tensor)i) && !(t->unwanted >> i & 1))
            require_tensor_near(t, answer, (msda_tensor)i);
}

void check_against_answer(trial *t, const trial *answer)
{
    device_trial_once(t);
    require_near(t, answer);
}

void check_against_cpu(trial *t)
{
    trial answer;
    cpu_answer_open(&answer, t);
    check_against_answer(t, &answer);
    trial_close(&answer);
}
