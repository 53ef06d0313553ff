/* SPDX-License-Identifier: Apache-2.0 */
#define MSDA_ISA scalar
#include "simd_scalar.h"
#include "kernel.inc"
