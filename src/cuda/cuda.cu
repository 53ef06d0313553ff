/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msda_cuda_*: open the door, go to the stream's device, check what only CUDA can tell, launch, come back. The only state
 * is a note of the devices on which a kernel image was found.
 */
#include "cuda_check.h"
#include "cuda_table.h"
#include "launch.cuh"

#include <atomic>

#if CUDART_VERSION < 12080
#error "CUDA 12.8 or newer is needed: older ones cannot tell the device of a stream"
#endif

#define WORKSPACE_ALIGNMENT 256

namespace msda
{
namespace
{

/* ---- the stream's device ---------------------------------------------------------------------------------------- */

/*
 * For as long as it lives, the thread's current device is the stream's, and the thread may do what a capture of a graph
 * could suffer from. Nothing that we do is of that kind, but CUDA loads a kernel when it is first asked for, which is.
 */
class device_scope
{
  public:
    msda_status enter(cudaStream_t stream)
    {
        MSDA_TRY(report(cudaGetDevice(&callers_device_), "cudaGetDevice"));
        device_ = callers_device_;
        /* The default streams are those of the current device, and asking about them could disturb a capture. */
        const bool is_default = stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
        /* So would asking a stream that captures: that one has to be of the current device, or the launch is refused. */
        if (!is_default)
            MSDA_TRY(report(cudaStreamIsCapturing(stream, &capture_), "cudaStreamIsCapturing"));
        if (!is_default && !captures())
            MSDA_TRY(report(cudaStreamGetDevice(stream, &device_), "cudaStreamGetDevice"));
        if (device_ != callers_device_)
            MSDA_TRY(report(cudaSetDevice(device_), "cudaSetDevice"));
        MSDA_TRY(report(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"));
        entered_ = true;
        return MSDA_STATUS_SUCCESS;
    }

    ~device_scope()
    {
        if (entered_)
            cudaThreadExchangeStreamCaptureMode(&mode_);
        if (device_ != callers_device_)
            cudaSetDevice(callers_device_);
    }

    int device() const
    {
        return device_;
    }
    bool captures() const
    {
        return capture_ != cudaStreamCaptureStatusNone;
    }
    const error_slot &errors() const
    {
        return errors_;
    }
    msda_status report(cudaError_t error, const char *what) const
    {
        return errors_.report(error, what);
    }

  private:
    error_slot errors_;
    int callers_device_ = 0, device_ = 0;
    cudaStreamCaptureStatus capture_ = cudaStreamCaptureStatusNone;
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed; /* the caller's, once entered */
    bool entered_ = false;
};

/* ---- clearing: what an empty problem leaves to do ----------------------------------------------------------------- */

/* Every storage type is a whole number of these, and 0 in each is all bits 0. */
using half_word = uint16_t;

/* `runs` and `strides` are in half words. */
__global__ void clear_kernel(half_word *tensor, msda_runs runs, msda_stride strides)
{
    const int64_t count = runs.batch * runs.row * runs.head * runs.run;
    for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
        int64_t rest = i;
        const int64_t c = rest % runs.run;
        rest /= runs.run;
        const int64_t m = rest % runs.head;
        rest /= runs.head;
        const int64_t row = rest % runs.row;
        const int64_t n = rest / runs.row;
        tensor[n * strides.batch + row * strides.row + m * strides.head + c] = 0;
    }
}

cudaError_t clear(const msda_shape &shape, msda_tensor tensor, void *pointer, cudaStream_t stream)
{
    const int64_t scale = int64_t(msda_dtype_size(msda_tensor_dtype(&shape, tensor)) / sizeof(half_word));
    msda_runs runs = msda_runs_of(&shape, tensor);
    msda_stride strides = shape.p.strides[tensor];
    runs.run *= scale;
    strides.batch *= scale;
    strides.row *= scale;
    strides.head *= scale;
    const int64_t count = runs.batch * runs.row * runs.head * runs.run;
    return launch(clear_kernel, grid_of((count + threads_per_block - 1) / threads_per_block), threads_per_block, 0,
                  stream, static_cast<half_word *>(pointer), runs, strides);
}

cudaError_t clear_outputs(const msda_shape &shape, const msda_tensors &tensors, cudaStream_t stream)
{
    const struct {
        msda_tensor tensor;
        void *pointer;
    } outputs[] = {{MSDA_TENSOR_OUTPUT, tensors.output},
                   {MSDA_TENSOR_GRAD_VALUE, tensors.grad_value},
                   {MSDA_TENSOR_GRAD_LOCATIONS, tensors.grad_locations},
                   {MSDA_TENSOR_GRAD_WEIGHTS, tensors.grad_weights},
                   {MSDA_TENSOR_GRAD_REFERENCES, tensors.grad_references}};
    const bool adds = (shape.p.flags & MSDA_FLAG_ADD_TO_GRADIENTS) != 0;
    for (const auto &output : outputs) {
        const bool keeps = adds && output.tensor != MSDA_TENSOR_OUTPUT;
        if (output.pointer == nullptr || keeps || msda_extent(&shape, output.tensor) == 0)
            continue;
        const cudaError_t error = clear(shape, output.tensor, output.pointer, stream);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

/* ---- what only CUDA can tell -------------------------------------------------------------------------------------- */

/* Bit d: a kernel image was found on device d. Devices past the last bit are asked every time. */
std::atomic<uint64_t> devices_with_image;

/* Every kernel is compiled for the same architectures, so one speaks for all. */
msda_status check_image(const device_scope &scope)
{
    const int device = scope.device();
    const uint64_t bit = device < 64 ? uint64_t(1) << device : 0;
    if (devices_with_image.load(std::memory_order_relaxed) & bit)
        return MSDA_STATUS_SUCCESS;
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(clear_kernel));
    switch (error) {
    case cudaSuccess:
        devices_with_image.fetch_or(bit, std::memory_order_relaxed);
        return MSDA_STATUS_SUCCESS;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilationDisabled:
    case cudaErrorJitCompilerNotFound:
        break;
    default:
        return scope.report(error, "loading a kernel");
    }
    scope.errors().clear();
    int major = 0, minor = 0;
    MSDA_TRY(scope.report(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                          "cudaDeviceGetAttribute"));
    MSDA_TRY(scope.report(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                          "cudaDeviceGetAttribute"));
    return msda_fail(MSDA_STATUS_NO_DEVICE,
                     "device %d has compute capability %d.%d, this library is compiled for %s and newer than the last: "
                     "%s: %s",
                     device, major, minor, msda_cuda_architectures(), cudaGetErrorName(error),
                     cudaGetErrorString(error));
}

/*
 * Device memory must be of the stream's device. Host memory must be registered: a system on which kernels can read any
 * host memory is refused it too, so that a forgotten copy is the same error everywhere. Memory that a graph under capture
 * allocates itself is not known to CUDA yet, so that then nothing can be told of an unknown pointer.
 */
msda_status check_pointer(const device_scope &scope, const char *name, const void *pointer)
{
    cudaPointerAttributes attributes;
    MSDA_TRY(scope.report(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes"));
    switch (attributes.type) {
    case cudaMemoryTypeDevice:
        if (attributes.device == scope.device())
            return MSDA_STATUS_SUCCESS;
        return msda_fail(MSDA_STATUS_WRONG_DEVICE, "%s at %p is memory of device %d, expected device %d, the stream's",
                         name, pointer, attributes.device, scope.device());
    case cudaMemoryTypeManaged:
        return MSDA_STATUS_SUCCESS;
    case cudaMemoryTypeHost:
        if (attributes.devicePointer == pointer)
            return MSDA_STATUS_SUCCESS;
        return msda_fail(MSDA_STATUS_WRONG_DEVICE, "%s at %p is host memory that device %d knows at %p", name, pointer,
                         scope.device(), attributes.devicePointer);
    default:
        if (scope.captures())
            return MSDA_STATUS_SUCCESS;
        return msda_fail(MSDA_STATUS_WRONG_DEVICE,
                         "%s at %p is host memory that CUDA does not know, expected memory of device %d", name, pointer,
                         scope.device());
    }
}

msda_status check_pointers(const device_scope &scope, const msda_shape &shape, const msda_tensors &tensors)
{
    for (int t = 0; t < MSDA_TENSOR_COUNT; ++t) {
        const msda_tensor tensor = msda_tensor(t);
        const void *pointer = msda_tensor_pointer(&tensors, tensor);
        if (pointer != nullptr && msda_extent(&shape, tensor) > 0)
            MSDA_TRY(check_pointer(scope, msda_tensor_name(&shape, tensor), pointer));
    }
    return MSDA_STATUS_SUCCESS;
}

/* ---- the calls ---------------------------------------------------------------------------------------------------- */

msda_status find_kernel(const msda_shape &shape, const msda_cuda_kernel **kernel)
{
    *kernel = msda_cuda_select(shape);
    if (*kernel == nullptr)
        return msda_fail(MSDA_STATUS_UNSUPPORTED, "no CUDA kernel for value_dtype %s, point_dtype %s, head_dim %d",
                         msda_dtype_name(shape.p.value_dtype), msda_dtype_name(shape.p.point_dtype), shape.p.head_dim);
    return MSDA_STATUS_SUCCESS;
}

msda_status find_workspace(const msda_problem *problem, int fused, size_t *size)
{
    msda_shape shape;
    const msda_cuda_kernel *kernel;
    if (size == nullptr)
        return msda_fail(MSDA_STATUS_NULL_POINTER, "size is null");
    MSDA_TRY(msda_shape_init(&shape, problem, fused));
    MSDA_TRY(find_kernel(shape, &kernel));
    *size = shape.empty ? 0 : kernel->backward_workspace(shape);
    return MSDA_STATUS_SUCCESS;
}

msda_status forward(const msda_shape &shape, const msda_tensors &tensors, cudaStream_t stream)
{
    const msda_cuda_kernel *kernel;
    MSDA_TRY(find_kernel(shape, &kernel));

    device_scope scope;
    MSDA_TRY(scope.enter(stream));
    MSDA_TRY(check_image(scope));
    MSDA_TRY(check_pointers(scope, shape, tensors));
    return scope.report(shape.empty ? clear_outputs(shape, tensors, stream) : kernel->forward(shape, tensors, stream),
                        kernel->name);
}

msda_status backward(const msda_shape &shape, const msda_tensors &tensors, void *workspace, size_t workspace_size,
                     cudaStream_t stream)
{
    const msda_cuda_kernel *kernel;
    MSDA_TRY(find_kernel(shape, &kernel));
    const size_t needed = shape.empty ? 0 : kernel->backward_workspace(shape);
    MSDA_TRY(msda_check_workspace(&shape, &tensors, workspace, workspace_size, needed, WORKSPACE_ALIGNMENT));

    device_scope scope;
    MSDA_TRY(scope.enter(stream));
    MSDA_TRY(check_image(scope));
    MSDA_TRY(check_pointers(scope, shape, tensors));
    if (needed > 0)
        MSDA_TRY(check_pointer(scope, "workspace", workspace));
    return scope.report(shape.empty ? clear_outputs(shape, tensors, stream)
                                    : kernel->backward(shape, tensors, workspace, stream),
                        kernel->name);
}

} // namespace
} // namespace msda

msda_status msda_cuda_forward(const msda_problem *problem, const msda_forward_args *args, cudaStream_t stream)
{
    msda_shape shape;
    msda_tensors tensors;
    MSDA_TRY(msda_open_forward(&shape, &tensors, problem, args));
    return msda::forward(shape, tensors, stream);
}

msda_status msda_cuda_backward_workspace(const msda_problem *problem, size_t *size)
{
    return msda::find_workspace(problem, 0, size);
}

msda_status msda_cuda_backward(const msda_problem *problem, const msda_backward_args *args, void *workspace,
                               size_t workspace_size, cudaStream_t stream)
{
    msda_shape shape;
    msda_tensors tensors;
    MSDA_TRY(msda_open_backward(&shape, &tensors, problem, args));
    return msda::backward(shape, tensors, workspace, workspace_size, stream);
}

msda_status msda_cuda_fused_forward(const msda_problem *problem, const msda_fused_forward_args *args,
                                    cudaStream_t stream)
{
    msda_shape shape;
    msda_tensors tensors;
    MSDA_TRY(msda_open_fused_forward(&shape, &tensors, problem, args));
    return msda::forward(shape, tensors, stream);
}

msda_status msda_cuda_fused_backward_workspace(const msda_problem *problem, size_t *size)
{
    return msda::find_workspace(problem, 1, size);
}

msda_status msda_cuda_fused_backward(const msda_problem *problem, const msda_fused_backward_args *args, void *workspace,
                                     size_t workspace_size, cudaStream_t stream)
{
    msda_shape shape;
    msda_tensors tensors;
    MSDA_TRY(msda_open_fused_backward(&shape, &tensors, problem, args));
    return msda::backward(shape, tensors, workspace, workspace_size, stream);
}

int msda_cuda_is_built(void)
{
    return 1;
}

msda_status msda_cuda_device_count(int *count)
{
    if (count == nullptr)
        return msda_fail(MSDA_STATUS_NULL_POINTER, "count is null");
    const msda::error_slot errors;
    const cudaError_t error = cudaGetDeviceCount(count);
    if (error != cudaSuccess)
        *count = 0;
    return errors.report(error, "cudaGetDeviceCount");
}

const char *msda_cuda_architectures(void)
{
    return MSDA_CUDA_ARCHITECTURES;
}

const char *msda_cuda_kernel_name(const msda_problem *problem)
{
    msda_shape shape;
    if (msda_shape_init(&shape, problem, 0) != MSDA_STATUS_SUCCESS)
        return "";
    const msda_cuda_kernel *kernel = msda_cuda_select(shape);
    return kernel != nullptr ? kernel->name : "";
}
