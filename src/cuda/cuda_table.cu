/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_table.h"

#include "types.cuh"

namespace msda
{
namespace
{

template <class T> constexpr msda_dtype dtype_of = MSDA_DTYPE_DEFAULT;
template <> constexpr msda_dtype dtype_of<f64> = MSDA_DTYPE_F64;
template <> constexpr msda_dtype dtype_of<f32> = MSDA_DTYPE_F32;
template <> constexpr msda_dtype dtype_of<f16> = MSDA_DTYPE_F16;
template <> constexpr msda_dtype dtype_of<bf16> = MSDA_DTYPE_BF16;

#define MSDA_KERNEL(value, point, head_dim)                                                                            \
    {head_dim == MSDA_ANY ? #value "_" #point "_dany__cuda" : #value "_" #point "_d" #head_dim "__cuda",               \
     dtype_of<value>,                                                                                                  \
     dtype_of<point>,                                                                                                  \
     head_dim,                                                                                                         \
     launch_forward<value, point, head_dim>,                                                                           \
     backward_workspace<value, point, head_dim>,                                                                       \
     launch_backward<value, point, head_dim>},

constexpr msda_cuda_kernel kernels[] = {
#include "../kernels.def"
};

} // namespace
} // namespace msda

const msda_cuda_kernel *msda_cuda_select(const msda_shape &shape)
{
    for (const msda_cuda_kernel &kernel : msda::kernels)
        if (kernel.value_dtype == shape.p.value_dtype && kernel.point_dtype == shape.p.point_dtype &&
            (kernel.head_dim == MSDA_ANY || kernel.head_dim == shape.p.head_dim))
            return &kernel;
    return nullptr;
}
