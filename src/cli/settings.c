/* SPDX-License-Identifier: Apache-2.0 */
#include "settings.h"

#include <float.h>

static const char *const backends[] = {"naive", "cpu", "cuda", NULL};
static const char *const dtypes[] = {"f64", "f32", "f16", "bf16", NULL};
static const char *const accumulates[] = {"fp32", "native", "deterministic", NULL};
static const char *const paddings[] = {"zeros", "border", NULL};
static const char *const samplings[] = {"bilinear", "discrete", NULL};

#define FIELD(name) offsetof(msda_settings, name)

/* clang-format off */
#define COMMON_FLAGS                                                                                    \
    {"backend",          MSDA_FLAG_CHOICE,  FIELD(backend), MSDA_BACKEND_NAIVE, 0, backends},           \
    {"dtype",            MSDA_FLAG_CHOICE,  FIELD(value_dtype), MSDA_DTYPE_F64, 0, dtypes},             \
    {"point-dtype",      MSDA_FLAG_CHOICE,  FIELD(point_dtype), MSDA_DTYPE_F64, 0, dtypes},             \
    {"accumulate",       MSDA_FLAG_CHOICE,  FIELD(accumulate), MSDA_ACCUMULATE_FP32, 0, accumulates},   \
    {"padding",          MSDA_FLAG_CHOICE,  FIELD(padding), MSDA_PADDING_ZEROS, 0, paddings},           \
    {"sampling",         MSDA_FLAG_CHOICE,  FIELD(sampling), MSDA_SAMPLING_BILINEAR, 0, samplings},     \
    {"align-corners",    MSDA_FLAG_SWITCH,  FIELD(align_corners), 1, 1, NULL},                          \
    {"no-align-corners", MSDA_FLAG_SWITCH,  FIELD(align_corners), 0, 0, NULL},                          \
    {"anchors",          MSDA_FLAG_SWITCH,  FIELD(anchors), 1, 1, NULL},                                \
    {"no-anchors",       MSDA_FLAG_SWITCH,  FIELD(anchors), 0, 0, NULL},                                \
    {"threads",          MSDA_FLAG_INTEGER, FIELD(threads), 0, 4096, NULL},                             \
    {"repeat",           MSDA_FLAG_INTEGER, FIELD(repeat), 1, 1000000, NULL}
#define OUT_FLAG  {"out",  MSDA_FLAG_TEXT,   FIELD(out), 0, 0, NULL}
#define RTOL_FLAG {"rtol", MSDA_FLAG_NUMBER, FIELD(rtol), 0, DBL_MAX, NULL}
#define LAST_FLAG {NULL,   MSDA_FLAG_SWITCH, 0, 0, 0, NULL}
/* clang-format on */

const msda_flag msda_run_flags[] = {COMMON_FLAGS, OUT_FLAG, LAST_FLAG};
const msda_flag msda_check_flags[] = {COMMON_FLAGS, RTOL_FLAG, LAST_FLAG};
const msda_flag msda_file_flags[] = {COMMON_FLAGS, OUT_FLAG, RTOL_FLAG, LAST_FLAG};

void msda_settings_init(msda_settings *settings)
{
    *settings = (msda_settings){.backend = MSDA_BACKEND_CPU, .rtol = -1.0};
}

const char *msda_backend_name(msda_backend backend)
{
    return backends[backend];
}
