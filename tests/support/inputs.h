/* SPDX-License-Identifier: Apache-2.0 */
/* Deterministic random inputs. */
#ifndef MSDA_TEST_INPUTS_H
#define MSDA_TEST_INPUTS_H

#include "trial.h"

/* splitmix64; the state is the seed. */
double random_between(uint64_t *state, double low, double high);
int64_t random_below(uint64_t *state, int64_t limit);

void inputs_fill_tensor(trial *t, msda_tensor tensor, uint64_t *state, double low, double high);

/*
 * Fills every input. Values, gradients and weights have both signs. Most points lie inside their level or in the
 * one-pixel band around it, some anywhere in -0.5..1.5; each keeps its pixel fraction in [0.05, 0.95] after rounding to
 * the storage type, so that no rounding error can carry it over a knot, where the location gradient jumps.
 */
void inputs_fill(trial *t, uint64_t seed);

#endif
