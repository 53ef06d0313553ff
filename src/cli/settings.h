/* SPDX-License-Identifier: Apache-2.0 */
/* What `msda run` and `msda check` are asked to do. */
#ifndef MSDA_SETTINGS_H
#define MSDA_SETTINGS_H

#include "arguments.h"

#include <msda/msda.h>

typedef enum msda_backend { MSDA_BACKEND_NAIVE, MSDA_BACKEND_CPU, MSDA_BACKEND_CUDA } msda_backend;

typedef struct msda_settings {
    msda_backend backend;
    msda_dtype value_dtype; /* DEFAULT: that of value.npy */
    msda_dtype point_dtype;
    msda_accumulate accumulate;
    msda_padding padding;
    msda_sampling sampling;
    int align_corners;
    int anchors;
    int threads;
    int repeat;      /* 0: not timed */
    double rtol;     /* negative: the table of tolerances */
    const char *out; /* null: nothing is written */
} msda_settings;

void msda_settings_init(msda_settings *settings);

extern const msda_flag msda_run_flags[];   /* all but --rtol */
extern const msda_flag msda_check_flags[]; /* all but --out */
extern const msda_flag msda_file_flags[];  /* both, for DIR/options, which either command reads */

const char *msda_backend_name(msda_backend backend);

#endif
