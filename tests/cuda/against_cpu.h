/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For problems too large for a bound on every element: the CPU's answer in f64 on the same (rounded) numbers, and the
 * relative norm of the difference, which must be below the figures that the operator's definition gives for each type.
 */
#ifndef MSDA_TEST_AGAINST_CPU_H
#define MSDA_TEST_AGAINST_CPU_H

#include "device_trial.h"

/* Runs forward and backward on the CPU, in f64. */
void cpu_answer_open(trial *answer, const trial *t);

/* Fails the test if an output of t is farther from the answer than its type allows. Unwanted gradients are passed over. */
void require_near(const trial *t, const trial *answer);

/* The whole of it: answer, run on the device with t's accumulate, compare. */
void check_against_cpu(trial *t);

/* The same with an answer at hand, for trials that differ in accumulate alone. */
void check_against_answer(trial *t, const trial *answer);

#endif
