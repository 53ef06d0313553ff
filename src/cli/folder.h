/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of .npy files as a problem and its tensors. */
#ifndef MSDA_FOLDER_H
#define MSDA_FOLDER_H

#include "npy.h"
#include "settings.h"

/* A tensor in double, whatever its file and the library store. */
typedef struct msda_array {
    int rank;
    int64_t shape[MSDA_NPY_MAX_RANK];
    size_t count;
    double *data;
} msda_array;

typedef struct msda_folder {
    const char *path;
    msda_problem problem;
    bool fused;                            /* reference_points.npy is there */
    bool backward;                         /* grad_output.npy is there */
    msda_array tensors[MSDA_TENSOR_COUNT]; /* inputs; of outputs the shape alone. What the form lacks has rank 0 */
} msda_folder;

/* Reads and checks everything but expected/. The flags of DIR/options are taken before, by msda_settings. */
bool msda_folder_read(msda_folder *folder, const char *path, const msda_settings *settings);
void msda_folder_free(msda_folder *folder);

/* Reads DIR/expected/NAME.npy in the shape of the tensor; *found is false, and the array empty, if it is not there. */
bool msda_folder_read_expected(const msda_folder *folder, msda_tensor tensor, msda_array *expected, bool *found);

/* The name of the tensor's file without .npy; null if the form has no such tensor. */
const char *msda_folder_tensor_name(const msda_folder *folder, msda_tensor tensor);

bool msda_folder_is_input(msda_tensor tensor);

/* The tensor is computed in this folder: the output, and with grad_output.npy the gradients. In the order of report. */
#define MSDA_REPORT_COUNT 5
extern const msda_tensor msda_report_order[MSDA_REPORT_COUNT];
bool msda_folder_computes(const msda_folder *folder, msda_tensor tensor);

/* What the library stores the tensor as. */
msda_dtype msda_folder_dtype(const msda_problem *problem, msda_tensor tensor);

/* True if no input changes when it is stored as the problem says; the second makes it so. */
bool msda_folder_is_stored_exactly(const msda_folder *folder);
void msda_folder_round_inputs(msda_folder *folder);

#endif
