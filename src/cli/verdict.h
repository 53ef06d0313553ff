/* SPDX-License-Identifier: Apache-2.0 */
/* A computed tensor beside the one that was expected: how far apart, too far or not, and what that looks like. */
#ifndef MSDA_VERDICT_H
#define MSDA_VERDICT_H

#include "folder.h"

/*
 * A tensor is within tolerance if
 *     ||out - ref||  <=  rtol * ||ref|| + floor * sqrt(elements)         over the tensor, and
 *     |out - ref|    <=  8 * rtol * max|ref| + floor                     at every element, which no size can hide;
 * and NaN and infinities stand where they are expected, with their signs.
 * The floor is what no arithmetic can undercut: it matters only where a tensor is zero, or cancels to almost zero.
 */
typedef struct msda_tolerance {
    double rtol;
    double element_rtol; /* 8 * rtol, or infinite */
    double floor;
} msda_tolerance;

/*
 * The tolerance of one tensor of a folder by the table of the operator's definition. A user's own rtol (not negative)
 * stands alone: ||out - ref|| <= rtol * ||ref||, without floor and without the rule for elements.
 */
msda_tolerance msda_tolerance_of(const msda_folder *folder, msda_tensor tensor, double own_rtol);

typedef struct msda_verdict {
    double max_error;      /* over the elements that both hold as finite numbers */
    double relative_error; /* ||out - ref|| / ||ref||; infinite if only ref is zero */
    double cosine;
    bool passed;
    char hint[384]; /* what the numbers suggest, if it failed */
} msda_verdict;

/*
 * Compares computed with expected. `stored` is the type the tensor was computed in: an expected number past its range
 * counts as infinite.
 */
msda_verdict msda_verdict_of(const double *computed, const msda_array *expected, msda_dtype stored,
                             msda_tolerance tolerance);

#endif
