/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel list's type names as device types. */
#ifndef MSDA_TYPES_CUH
#define MSDA_TYPES_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace msda
{
using f64 = double;
using f32 = float;
using f16 = __half;
using bf16 = __nv_bfloat16;
} // namespace msda

#endif
