/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operator as it is defined, over ranges of independent items. msda_naive_* runs all items on one thread; the CPU's
 * f64 row runs them on many. An item writes only what it owns, so that order and threads cannot change a byte.
 */
#ifndef MSDA_NAIVE_H
#define MSDA_NAIVE_H

#include "../shape.h"

/* Items are (n, q), q fastest: writes output[n,q,:,:]. */
void msda_naive_forward_items(const msda_shape *shape, const msda_tensors *tensors, int64_t first, int64_t last);

/* Items are (n, m), m fastest: writes grad_value[n,:,m,:], grad_locations[n,:,m,:] and grad_weights[n,:,m,:]. */
void msda_naive_backward_items(const msda_shape *shape, const msda_tensors *tensors, int64_t first, int64_t last);

/* Items are (n, q), q fastest: writes grad_references[n,q,:]. Fused form only. */
void msda_naive_reference_items(const msda_shape *shape, const msda_tensors *tensors, int64_t first, int64_t last);

#endif
