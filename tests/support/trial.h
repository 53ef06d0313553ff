/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trial: one problem with all its tensors in guarded host memory, ready to be run on any back end.
 *
 *   trial t;
 *   trial_open(&t, &problem, 0);               every tensor that the form has, poisoned
 *   inputs_fill(&t, seed);                     (inputs.h)
 *   trial_forward(&t);                         on the back end under test; fails the test on any status but SUCCESS
 *   trial_backward(&t);
 *   trial_check(&t);                           (bounds.h) every output against naive, within derived bounds
 *   trial_close(&t);
 *
 * Each run also checks that inputs, canaries, and the gaps between strided rows are what they were.
 *
 * Elements are addressed by their dense index: the position in the header's layout as if all strides were 0.
 */
#ifndef MSDA_TEST_TRIAL_H
#define MSDA_TEST_TRIAL_H

#include "backend.h"
#include "guarded.h"

/* batch x row x head runs of `run` elements, and the distances between them in elements. */
typedef struct layout {
    int64_t batch, row, head, run;
    int64_t batch_stride, row_stride, head_stride;
    int is_dense; /* the dense index is the offset */
} layout;

typedef struct guarded_tensor {
    msda_dtype dtype;
    layout layout;
    guarded memory; /* .pages is null: this form has no such tensor */
} guarded_tensor;

typedef struct trial {
    const char *name; /* for messages; "" by default */
    msda_problem problem;
    int fused;
    unsigned unwanted; /* gradients to pass as null: bit t for msda_tensor t */
    guarded_tensor tensors[MSDA_TENSOR_COUNT];
} trial;

void trial_open(trial *t, const msda_problem *problem, int fused);
void trial_close(trial *t);

/* The same problem and numbers in f64: what naive takes. Outputs are copied too. */
void trial_open_widened(trial *wide, const trial *t);

/* 1 if the two trials hold the same bytes in this tensor (gaps between strided rows aside). */
int trial_equal(const trial *a, const trial *b, msda_tensor tensor);

/* Copies numbers between tensors of the same extents, whatever their dtypes and strides. */
void trial_copy(trial *to, const trial *from, msda_tensor tensor);

/* Elements of a tensor; 0 if this form has none. */
int64_t trial_count(const trial *t, msda_tensor tensor);
double trial_get(const trial *t, msda_tensor tensor, int64_t index);
void trial_set(trial *t, msda_tensor tensor, int64_t index, double number);
void trial_set_all(trial *t, msda_tensor tensor, double number);

/* Sets the first elements of a tensor: TRIAL_NUMBERS(&t, MSDA_TENSOR_VALUE, 1, 2, 3, 4). */
void trial_set_numbers(trial *t, msda_tensor tensor, const double *numbers, size_t count);
#define TRIAL_NUMBERS(t, tensor, ...)                                                                                  \
    trial_set_numbers(t, tensor, (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

/* The dense index of element `i` of the run of row (pixel or query) and head. */
int64_t trial_index(const trial *t, msda_tensor tensor, int64_t n, int64_t row, int64_t m, int64_t i);

/* 0xFF over output and gradients: no element may survive a run. */
void trial_poison_outputs(trial *t);

int trial_is_output(msda_tensor tensor);
const char *trial_tensor_name(const trial *t, msda_tensor tensor);

/* "n=0 q=3 m=1 level=2 point=0 x" or "n=0 s=17 m=1 c=5", for messages. */
const char *trial_describe(const trial *t, msda_tensor tensor, int64_t index);

/* The call that the trial stands for, on any back end. Fails the test if anything but outputs changed. */
msda_status trial_call_forward(trial *t, const backend *b);
msda_status trial_call_backward(trial *t, const backend *b);

/* On the back end under test; fails the test with msda_last_error() on any status but SUCCESS. */
void trial_forward(trial *t);
void trial_backward(trial *t);

/* What to pass to an entry point directly. */
msda_forward_args trial_forward_args(const trial *t);
msda_backward_args trial_backward_args(const trial *t);
msda_fused_forward_args trial_fused_forward_args(const trial *t);
msda_fused_backward_args trial_fused_backward_args(const trial *t);

#endif
