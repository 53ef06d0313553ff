/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a back end should answer, and how far off it may be. The answer is naive's, on the same numbers widened to f64. The
 * bound is derived for each element from the terms that are summed in it:
 *
 *   roundoff * ((count + 8) * sum of |terms|            the sum in any order, each term a product of a few factors
 *               + sum of |terms' sensitivity|)          a coordinate rounded to f32 moves the corners' weights
 *   + storage roundoff * |answer|                       the one rounding at the store
 *
 * and with NATIVE accumulation storage roundoff * (count + 1) * sum of |terms| in grad_value: one rounding an add.
 */
#ifndef MSDA_TEST_BOUNDS_H
#define MSDA_TEST_BOUNDS_H

#include "trial.h"

typedef struct expectation {
    trial answer; /* f64; outputs and gradients */
    trial bound;  /* f64: largest allowed |error| of each output element */
} expectation;

/* Of a trial that has not run yet: with ADD_TO_GRADIENTS what stands in the gradients counts. */
void expectation_open(expectation *e, const trial *t);
void expectation_close(expectation *e);

/* Fails the test, with a diagnosis, if an element is off by more than its bound. Unwanted gradients are passed over. */
void expectation_check(const expectation *e, const trial *t, msda_tensor tensor);

/* Poisons the outputs unless they are added to, runs forward and backward, checks every output. */
void trial_check(trial *t);

#endif
