/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msda: multi-scale deformable attention, the sampling operator of Deformable-DETR (Zhu et al., 2020,
 * arXiv:2010.04159) and its descendants. Forward and all three gradients, on CPU and CUDA, behind a C API.
 *
 * WHAT IT COMPUTES
 *
 *   output[n,q,m,:] = sum over the points k of head m:  weight_k * sample(level(k), x_k, y_k)[n,m,:]
 *
 *   A point has a normalised location (x, y); 0..1 spans its level from edge to edge. In pixels
 *       px = x * W - 0.5,      py = y * H - 0.5         align_corners == 0 (pixel centres at half-integers)
 *       px = x * (W - 1),      py = y * (H - 1)         align_corners == 1
 *   (rounded after the multiplication and again after the subtraction, never fused, on every back end).
 *   sample() interpolates bilinearly between the four pixels ("corners") around (px, py):
 *       x0 = floor(px), fx = px - x0, y0 = floor(py), fy = py - y0
 *       (1-fx)(1-fy) v00 + fx(1-fy) v01 + (1-fx)fy v10 + fx fy v11,    v_ij = value at row y0+i, column x0+j
 *
 *   Padding zeros:  a point counts only if -1 < px < W and -1 < py < H; a corner outside the level is zero and is
 *                   not read. So a one-pixel band around the level fades linearly.
 *   Padding border: px and py are clamped to [0, W-1] and [0, H-1]; where the clamp acts, the slope is 0.
 *   A NaN location contributes nothing and gets zero gradients; so do, with zeros padding, infinite and huge ones.
 *   A corner inside the level is read and multiplied even if its weight is 0 (0 * Inf is NaN, as IEEE says).
 *
 *   With g = grad_output[n,q,m,:] and the dot products d_ij = sum_c g_c * v_ij,c (0 for a corner outside):
 *       grad_weight           = (1-fx)(1-fy) d00 + fx(1-fy) d01 + (1-fx)fy d10 + fx fy d11
 *       grad_x                = weight * W * ((1-fy)(d01-d00) + fy (d11-d10))       (W-1 with align_corners)
 *       grad_y                = weight * H * ((1-fx)(d10-d00) + fx (d11-d01))       (H-1 with align_corners)
 *       grad_value[corner ij] += weight * w_ij * g
 *   At an integer px the slope is the right-hand one. Second derivatives are not offered.
 *
 *   Sampling discrete (the rule of RT-DETRv2): the one pixel trunc(x*W + 0.5), trunc(y*H + 0.5), each clamped to the
 *   level; the location gradient is 0.
 *
 * LAYOUTS (last axis fastest). Shapes are (height, width); locations are (x, y): x goes with width.
 *
 *   value                [batch][value_length][heads][head_dim]      value_dtype    levels one after another, rows of H x W
 *   sampling_locations   [batch][queries][heads][points][2]          point_dtype    points: all of level 0, then of level 1...
 *   attention_weights    [batch][queries][heads][points]             point_dtype    used as given; need not sum to 1
 *   output, grad_output  [batch][queries][heads][head_dim]           value_dtype
 *   A gradient has the layout and the dtype of what it is a gradient of (grad_value may be F32 beside a 16-bit value).
 *   Row strides (msda_problem.strides) let each tensor be a slice of a wider one.
 *
 * THE FUSED FORM takes reference points, sampling offsets and attention logits instead of locations and weights:
 *   weight = softmax of the logits over all points of a head; location by msda_reference_kind.
 *
 * RULES
 *
 *   1. No call allocates, prints, exits, synchronises a device, or keeps state: the instruction set found at first use,
 *      the CUDA devices on which a kernel was found, and a thread-local text of the last error are the only memory.
 *      Every call is re-entrant, from any thread.
 *   2. Everything that can be checked on the host is checked before any data is touched. On failure no output is
 *      touched, the status says what kind of failure it is, and msda_last_error() names the field, the value, the limit.
 *   3. Every element of every tensor handed in as output is written (value pixels that no level covers get gradient 0),
 *      or added to, with MSDA_FLAG_ADD_TO_GRADIENTS. A null gradient pointer means: not wanted, and not computed.
 *   4. On the CPU the bytes of the result do not depend on the number of threads.
 *   5. Pointers need the alignment of their element; 16 bytes and head_dim * element size a multiple of 16 are fastest.
 *   6. Outputs may not overlap inputs or one another.
 *   7. An empty problem (any of batch, queries, heads, head_dim or the number of points is 0) succeeds.
 *
 * SYMBOLS in comments: N batch, S value_length, M heads, D head_dim, L levels, Q queries, P_l points of one head on
 * level l, K = sum of P_l.
 */
#ifndef MSDA_MSDA_H
#define MSDA_MSDA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(MSDA_STATIC)
#define MSDA_API
#elif defined(_WIN32)
#if defined(MSDA_BUILDING)
#define MSDA_API __declspec(dllexport)
#else
#define MSDA_API __declspec(dllimport)
#endif
#else
#define MSDA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ------------------------------------------------------------------------------------------------- */

#define MSDA_VERSION_MAJOR 0
#define MSDA_VERSION_MINOR 1
#define MSDA_VERSION_PATCH 0
#define MSDA_VERSION       (MSDA_VERSION_MAJOR * 10000 + MSDA_VERSION_MINOR * 100 + MSDA_VERSION_PATCH)

/* The version of the library that was linked; compare with MSDA_VERSION, the version of this header. */
MSDA_API int msda_version(void);

/* ---- status -------------------------------------------------------------------------------------------------- */

/* What became of a call. The numbers are part of the ABI: never renumbered, never reused. */
typedef enum msda_status {
    MSDA_STATUS_SUCCESS = 0,
    MSDA_STATUS_INVALID_PROBLEM = 1,     /* a field of the problem is out of range */
    MSDA_STATUS_NULL_POINTER = 2,        /* a required pointer is null */
    MSDA_STATUS_MISALIGNED = 3,          /* a pointer is not aligned to its element */
    MSDA_STATUS_OVERLAP = 4,             /* an output overlaps an input or another output */
    MSDA_STATUS_UNSUPPORTED = 5,         /* valid, but this back end has no kernel for it */
    MSDA_STATUS_WORKSPACE_TOO_SMALL = 6, /* ask the matching *_workspace() function for the size */
    MSDA_STATUS_NOT_BUILT = 7,           /* this library was built without CUDA */
    MSDA_STATUS_NO_DEVICE = 8,           /* no driver, no device, or no kernel image for the device */
    MSDA_STATUS_WRONG_DEVICE = 9,        /* a pointer is not accessible from the stream's device */
    MSDA_STATUS_CUDA_ERROR = 10          /* CUDA reported an error; the text carries its name */
} msda_status;

/* A short static text for a status, never null; "unknown status" for a number that is none. */
MSDA_API const char *msda_status_string(msda_status status);

/*
 * The calling thread's last failure in words: which field, which value, which limit. "" before the first failure.
 * Owned by the library, valid until the thread's next failing call. For people and logs; branch on the status instead.
 */
MSDA_API const char *msda_last_error(void);

/* ---- the problem --------------------------------------------------------------------------------------------- */

/* Storage types. 0 is no type, so that a forgotten value_dtype is caught. */
typedef enum msda_dtype {
    MSDA_DTYPE_DEFAULT = 0,
    MSDA_DTYPE_F64 = 1,
    MSDA_DTYPE_F32 = 2,
    MSDA_DTYPE_F16 = 3, /* IEEE binary16 */
    MSDA_DTYPE_BF16 = 4 /* upper half of binary32 */
} msda_dtype;

/* How the contributions to one element of grad_value are summed. Everything else is always deterministic. */
typedef enum msda_accumulate {
    MSDA_ACCUMULATE_FP32 = 0,         /* in fp32 (f64 for F64), rounded to the storage type once */
    MSDA_ACCUMULATE_NATIVE = 1,       /* in the storage type: on CUDA with the device's own atomics, 16-bit ones too */
    MSDA_ACCUMULATE_DETERMINISTIC = 2 /* as FP32, in a fixed order: the same bytes from run to run */
} msda_accumulate;

typedef enum msda_padding { MSDA_PADDING_ZEROS = 0, MSDA_PADDING_BORDER = 1 } msda_padding;

typedef enum msda_sampling { MSDA_SAMPLING_BILINEAR = 0, MSDA_SAMPLING_DISCRETE = 1 } msda_sampling;

/* Fused form: what a reference is, and how a location comes from it (offset: one (x, y) of sampling_offsets). */
typedef enum msda_reference_kind {
    MSDA_REFERENCE_POINTS = 0, /* [batch][queries][levels][2]:  ref_l + offset / (W_l, H_l) */
    MSDA_REFERENCE_BOXES =
        1, /* [batch][queries][levels][4], (cx, cy, w, h):  ref_xy + offset / P_l * ref_wh * box_scale */
    MSDA_REFERENCE_ANCHORS =
        2 /* [batch][queries][num_anchors][2]:  ref_z + offset / (W_l, H_l), z = point of the level mod
                                  num_anchors (BEVFormer) */
} msda_reference_kind;

/* The tensors of both forms; indexes msda_problem.strides. The fused form's offsets and logits count as locations and
 * weights. */
typedef enum msda_tensor {
    MSDA_TENSOR_VALUE = 0,
    MSDA_TENSOR_LOCATIONS = 1, /* sampling_locations or sampling_offsets */
    MSDA_TENSOR_WEIGHTS = 2,   /* attention_weights or attention_logits */
    MSDA_TENSOR_REFERENCES = 3,
    MSDA_TENSOR_OUTPUT = 4,
    MSDA_TENSOR_GRAD_OUTPUT = 5,
    MSDA_TENSOR_GRAD_VALUE = 6,
    MSDA_TENSOR_GRAD_LOCATIONS = 7,
    MSDA_TENSOR_GRAD_WEIGHTS = 8,
    MSDA_TENSOR_GRAD_REFERENCES = 9
} msda_tensor;

#define MSDA_TENSOR_COUNT 10
#define MSDA_MAX_LEVELS   64

#define MSDA_FLAG_ADD_TO_GRADIENTS (1u << 0) /* backward adds to its outputs instead of overwriting them */

/* One feature level. */
typedef struct msda_level {
    int64_t start;    /* row of value where the level begins, >= 0; levels may leave gaps but not overlap */
    int32_t height;   /* pixels, >= 1 */
    int32_t width;    /* pixels, >= 1 */
    int32_t points;   /* sampling points of one head on this level (P_l), >= 0 */
    int32_t reserved; /* 0 */
} msda_level;

/*
 * Row strides of one tensor, in elements; 0 means packed: head the length of a head's run, row heads x head stride, batch
 * the larger of rows x row stride and heads x head stride. All 0 is exactly the layout above. "row" is the pixel of value
 * and grad_value and the query of everything else. What lies inside a head (head_dim channels; a query-head's points) is
 * always dense. References have no head: theirs stays 0.
 */
typedef struct msda_stride {
    int64_t batch;
    int64_t row;
    int64_t head;
} msda_stride;

/*
 * Everything about a call except its tensors. Plain host memory: copy it, keep it, share it between threads.
 * Call msda_problem_init() first, then set fields; 0 is the default of every optional one.
 */
typedef struct msda_problem {
    uint32_t struct_size;        /* bytes; set by msda_problem_init(), never by hand */
    uint32_t flags;              /* MSDA_FLAG_*; default none */
    msda_dtype value_dtype;      /* value, output and their gradients; required */
    msda_dtype point_dtype;      /* locations, weights, references and theirs: F32 or value_dtype (F64 beside F64);
                                    default F64 beside F64, else F32. 16-bit locations are coarse: 0.1 pixel at 200 pixels */
    msda_dtype grad_value_dtype; /* value_dtype, or F32 beside a 16-bit value; default value_dtype */
    msda_accumulate accumulate;  /* backward; default FP32 */
    msda_padding padding;        /* default zeros */
    msda_sampling sampling;      /* default bilinear */
    int32_t align_corners;       /* 0 or 1; default 0 */
    int32_t batch;               /* N >= 0 */
    int32_t queries;             /* Q >= 0 */
    int32_t heads;               /* M >= 0 */
    int32_t head_dim;            /* D >= 0, channels of one head; any number */
    int32_t num_levels;          /* L, 0..MSDA_MAX_LEVELS */
    int64_t value_length;        /* S >= 0: rows of value in one batch item, gaps included */

    msda_reference_kind reference_kind; /* fused form; default points */
    int32_t num_anchors;                /* fused form with anchors: Z >= 1; else ignored */
    float box_scale;                    /* fused form with boxes; default 0.5 */
    int32_t reserved;                   /* 0 */

    msda_stride strides[MSDA_TENSOR_COUNT]; /* by msda_tensor; default dense */
    msda_level levels[MSDA_MAX_LEVELS];
} msda_problem;

/* Zeroes the problem and notes its size. In the header, so that the size is the one that the caller was compiled with. */
static inline void msda_problem_init(msda_problem *problem)
{
    memset(problem, 0, sizeof *problem);
    problem->struct_size = sizeof *problem;
}

/*
 * Appends a level of height x width pixels with `points` sampling points a head, right behind the rows that the levels
 * so far reach, and extends value_length to cover it. For levels with gaps or in another order, fill levels[] yourself.
 * INVALID_PROBLEM if there are MSDA_MAX_LEVELS already or an argument is out of range (the problem is unchanged).
 */
MSDA_API msda_status msda_problem_add_level(msda_problem *problem, int32_t height, int32_t width, int32_t points);

/* Checks every field as each call below does. SUCCESS, NULL_POINTER or INVALID_PROBLEM. */
MSDA_API msda_status msda_problem_check(const msda_problem *problem);

/*
 * *size = the bytes from the first to past the last element of a tensor of this problem, strides included: what a buffer
 * must hold. Compare it with what you have; the calls below see only pointers.
 */
MSDA_API msda_status msda_tensor_size(const msda_problem *problem, msda_tensor tensor, size_t *size);

/* ---- tensors ------------------------------------------------------------------------------------------------- */

/* All pointers are the caller's. Host memory for naive and cpu, device-accessible memory for cuda. */

typedef struct msda_forward_args {
    const void *value;
    const void *sampling_locations;
    const void *attention_weights;
    void *output;
} msda_forward_args;

typedef struct msda_backward_args {
    const void *value;
    const void *sampling_locations;
    const void *attention_weights;
    const void *grad_output;
    void *grad_value; /* each of the three may be null: not wanted */
    void *grad_sampling_locations;
    void *grad_attention_weights;
} msda_backward_args;

typedef struct msda_fused_forward_args {
    const void *value;
    const void *reference_points; /* by reference_kind; point_dtype */
    const void *sampling_offsets; /* [batch][queries][heads][points][2], point_dtype; pixels for points and anchors */
    const void *attention_logits; /* [batch][queries][heads][points], point_dtype */
    void *output;
} msda_fused_forward_args;

typedef struct msda_fused_backward_args {
    const void *value;
    const void *reference_points;
    const void *sampling_offsets;
    const void *attention_logits;
    const void *grad_output;
    void *grad_value; /* each of the four may be null: not wanted */
    void *grad_reference_points;
    void *grad_sampling_offsets;
    void *grad_attention_logits;
} msda_fused_backward_args;

/* ---- naive: the definition, in plain loops over double ------------------------------------------------------- */

/*
 * The reference that the other back ends are checked against; also what cpu runs for F64. One thread, slow on purpose.
 * F64 tensors only (UNSUPPORTED otherwise): widening f32, f16 and bf16 to f64 is exact, so every dtype can be checked.
 */
MSDA_API msda_status msda_naive_forward(const msda_problem *problem, const msda_forward_args *args);
MSDA_API msda_status msda_naive_backward(const msda_problem *problem, const msda_backward_args *args);
MSDA_API msda_status msda_naive_fused_forward(const msda_problem *problem, const msda_fused_forward_args *args);
MSDA_API msda_status msda_naive_fused_backward(const msda_problem *problem, const msda_fused_backward_args *args);

/* ---- cpu: OpenMP and the machine's vector instructions ------------------------------------------------------- */

/*
 * num_threads: how many threads to use at most; 0 means OpenMP's own number (OMP_NUM_THREADS; 1 inside a parallel region
 * and in builds without OpenMP). Negative is INVALID_PROBLEM.
 *
 * The backward needs scratch memory whose size the matching *_workspace() function tells; it depends on the problem and
 * the thread count alone and may be 0. The workspace is the caller's, aligned to 64 bytes, of at least that size, may be
 * null if the size is 0, and holds nothing between calls.
 */
MSDA_API msda_status msda_cpu_forward(const msda_problem *problem, const msda_forward_args *args, int num_threads);
MSDA_API msda_status msda_cpu_backward_workspace(const msda_problem *problem, int num_threads, size_t *size);
MSDA_API msda_status msda_cpu_backward(const msda_problem *problem, const msda_backward_args *args, void *workspace,
                                       size_t workspace_size, int num_threads);

MSDA_API msda_status msda_cpu_fused_forward(const msda_problem *problem, const msda_fused_forward_args *args,
                                            int num_threads);
MSDA_API msda_status msda_cpu_fused_backward_workspace(const msda_problem *problem, int num_threads, size_t *size);
MSDA_API msda_status msda_cpu_fused_backward(const msda_problem *problem, const msda_fused_backward_args *args,
                                             void *workspace, size_t workspace_size, int num_threads);

/*
 * The instruction set in use: "scalar", "avx2", "avx512" or "neon"; the best that library and machine both have.
 * The environment variable MSDA_CPU_ISA, read once at first use, asks for a lesser one; a name that the machine or the
 * build does not have is ignored.
 */
MSDA_API const char *msda_cpu_isa(void);

/* The kernel that this problem runs on the CPU, such as "f16_f32_d32__avx2"; "" for an invalid problem. For logs. */
MSDA_API const char *msda_cpu_kernel_name(const msda_problem *problem);

/* ---- cuda ---------------------------------------------------------------------------------------------------- */

/*
 * Work is queued on `stream` (null: the default stream) of the device that the stream belongs to; the calling thread's
 * current device is the same before and after. Everything may be captured in a CUDA graph; a stream that captures must
 * belong to the current device. Pointers are device-accessible memory of that device. A launch error is returned,
 * cleared, and not blamed on us if it was there before; an error while kernels run surfaces where the stream is
 * synchronised, as always in CUDA.
 * The workspace is device memory, aligned to 256 bytes, of the size that the matching *_workspace() function tells (by
 * the problem alone; may be 0, then the pointer may be null). It must stay alive until the work on the stream is done.
 *
 * These functions exist in every build; without CUDA they answer NOT_BUILT.
 */
struct CUstream_st; /* what cudaStream_t points to: no CUDA header is needed here */

MSDA_API msda_status msda_cuda_forward(const msda_problem *problem, const msda_forward_args *args,
                                       struct CUstream_st *stream);
MSDA_API msda_status msda_cuda_backward_workspace(const msda_problem *problem, size_t *size);
MSDA_API msda_status msda_cuda_backward(const msda_problem *problem, const msda_backward_args *args, void *workspace,
                                        size_t workspace_size, struct CUstream_st *stream);

MSDA_API msda_status msda_cuda_fused_forward(const msda_problem *problem, const msda_fused_forward_args *args,
                                             struct CUstream_st *stream);
MSDA_API msda_status msda_cuda_fused_backward_workspace(const msda_problem *problem, size_t *size);
MSDA_API msda_status msda_cuda_fused_backward(const msda_problem *problem, const msda_fused_backward_args *args,
                                              void *workspace, size_t workspace_size, struct CUstream_st *stream);

/* 1 if this library was built with CUDA, else 0. */
MSDA_API int msda_cuda_is_built(void);

/* *count = CUDA devices that can be used now. NOT_BUILT or NO_DEVICE (with *count = 0) when there are none. */
MSDA_API msda_status msda_cuda_device_count(int *count);

/* The architectures compiled in, such as "80;90"; "" without CUDA. */
MSDA_API const char *msda_cuda_architectures(void);

/* The kernel that this problem runs on CUDA; "" for an invalid problem or without CUDA. For logs. */
MSDA_API const char *msda_cuda_kernel_name(const msda_problem *problem);

#ifdef __cplusplus
}
#endif

#endif
