/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door: msda_problem -> msda_shape, and the argument structs -> msda_tensors. Everything that can be refused is
 * refused here; what lies behind may trust its input. The only validation in the library.
 */
#ifndef MSDA_SHAPE_H
#define MSDA_SHAPE_H

#include <msda/msda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A checked problem with every default written out: dtypes, strides (never 0 where the extent needs one), box_scale. */
typedef struct msda_shape {
    msda_problem p;
    int64_t num_points;                       /* K: points of one query and head over all levels */
    int32_t first_point[MSDA_MAX_LEVELS + 1]; /* first_point[l]: number of points on the levels before l */
    int fused;                                /* references, offsets and logits instead of locations and weights */
    int empty;                                /* N, Q, M, D or K is 0: nothing to sample */
    int queries_are_pixels;                   /* query q is row q of value: an encoder's levels, without gaps */
} msda_shape;

/* The tensors of either form under one set of names; null where the form or direction has none. */
typedef struct msda_tensors {
    const void *value;
    const void *locations;  /* fused: offsets */
    const void *weights;    /* fused: logits */
    const void *references; /* fused only */
    const void *grad_output;
    void *output;
    void *grad_value;
    void *grad_locations;
    void *grad_weights;
    void *grad_references;
} msda_tensors;

typedef enum msda_direction { MSDA_FORWARD = 0, MSDA_BACKWARD = 1 } msda_direction;

/* Checks and completes. `fused` says which form the caller's entry point belongs to. */
msda_status msda_shape_init(msda_shape *shape, const msda_problem *problem, int fused);

/* Each checks the problem and the pointers and fills both outputs; the first things that every entry point calls. */
msda_status msda_open_forward(msda_shape *shape, msda_tensors *tensors, const msda_problem *problem,
                              const msda_forward_args *args);
msda_status msda_open_backward(msda_shape *shape, msda_tensors *tensors, const msda_problem *problem,
                               const msda_backward_args *args);
msda_status msda_open_fused_forward(msda_shape *shape, msda_tensors *tensors, const msda_problem *problem,
                                    const msda_fused_forward_args *args);
msda_status msda_open_fused_backward(msda_shape *shape, msda_tensors *tensors, const msda_problem *problem,
                                     const msda_fused_backward_args *args);

/* Refuses a null, misaligned or too small workspace, and one that overlaps a tensor. */
msda_status msda_check_workspace(const msda_shape *shape, const msda_tensors *tensors, const void *workspace,
                                 size_t size, size_t needed, size_t alignment);

/* Elements of one tensor: batch x row x head runs of `run` elements each, msda_problem.strides apart. */
typedef struct msda_runs {
    int64_t batch, row, head, run;
} msda_runs;

msda_runs msda_runs_of(const msda_shape *shape, msda_tensor tensor);

/* The caller's name of a tensor, such as "sampling_offsets", and its pointer. */
const char *msda_tensor_name(const msda_shape *shape, msda_tensor tensor);
const void *msda_tensor_pointer(const msda_tensors *tensors, msda_tensor tensor);

/* Bytes from the first to past the last element of a tensor; 0 if it has none. Cannot overflow behind the door. */
size_t msda_extent(const msda_shape *shape, msda_tensor tensor);

/* The tensor's dtype in this problem. */
msda_dtype msda_tensor_dtype(const msda_shape *shape, msda_tensor tensor);

size_t msda_dtype_size(msda_dtype dtype);      /* bytes of one element; 0 for no dtype */
const char *msda_dtype_name(msda_dtype dtype); /* "f32"...; "?" for no dtype */

/* Notes a text for msda_last_error() and returns the status, so that it reads `return msda_fail(...)`. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
msda_status
msda_fail(msda_status status, const char *format, ...);

/* Hands a failure of `call` on to the caller. */
#define MSDA_TRY(call)                                                                                                 \
    do {                                                                                                               \
        const msda_status status_ = (call);                                                                            \
        if (status_ != MSDA_STATUS_SUCCESS)                                                                            \
            return status_;                                                                                            \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
