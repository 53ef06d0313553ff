/* SPDX-License-Identifier: Apache-2.0 */
#include "dump.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "npy.h"
#include "storage_types.h"

static const char *const names[MSDA_TENSOR_COUNT] = {
    [MSDA_TENSOR_VALUE] = "value",
    [MSDA_TENSOR_LOCATIONS] = "sampling_locations",
    [MSDA_TENSOR_WEIGHTS] = "attention_weights",
    [MSDA_TENSOR_OUTPUT] = "output",
    [MSDA_TENSOR_GRAD_OUTPUT] = "grad_output",
    [MSDA_TENSOR_GRAD_VALUE] = "grad_value",
    [MSDA_TENSOR_GRAD_LOCATIONS] = "grad_sampling_locations",
    [MSDA_TENSOR_GRAD_WEIGHTS] = "grad_attention_weights",
};

static bool write_array(const char *folder, const char *name, msda_npy_type type, const int64_t *shape, int rank,
                        const double *data)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.npy", folder, name);
    return msda_npy_write(path, type, shape, rank, data);
}

static bool dump_tensor(const workload *w, msda_tensor which, const char *folder)
{
    const tensor *t = &w->tensors[which];
    const bool of_locations = which == MSDA_TENSOR_LOCATIONS || which == MSDA_TENSOR_GRAD_LOCATIONS;
    const int64_t shape[] = {t->batch, t->row, t->head, of_locations ? t->run / 2 : t->run, 2};
    const int64_t count = t->batch * t->row * t->head * t->run;
    double *elements = numbers_allocate(count * (int64_t)sizeof *elements);
    dtype_load(t->dtype, t->data, 0, count, elements);
    const bool written = write_array(folder, names[which], t->dtype == MSDA_DTYPE_F64 ? MSDA_NPY_F8 : MSDA_NPY_F4,
                                     shape, of_locations ? 5 : 4, elements);
    free(elements);
    return written;
}

static bool dump_levels(const workload *w, const char *folder)
{
    double rows[3 * PRESET_MAX_GRIDS];
    for (int l = 0; l < w->problem.num_levels; ++l) {
        rows[3 * l] = w->shape->levels[l].height;
        rows[3 * l + 1] = w->shape->levels[l].width;
        rows[3 * l + 2] = w->shape->levels[l].points;
    }
    return write_array(folder, "levels", MSDA_NPY_F8, (const int64_t[]){w->problem.num_levels, 3}, 2, rows);
}

bool dump_workload(const workload *w, const bool directions[2], const char *folder)
{
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        perror(folder);
        return false;
    }
    bool written = dump_levels(w, folder);
    for (int i = 0; i < MSDA_TENSOR_COUNT && written; ++i) {
        const msda_tensor which = (msda_tensor)i;
        if (workload_reads(w, true, which) || (directions[0] && workload_writes(w, false, which)) ||
            (directions[1] && workload_writes(w, true, which)))
            written = dump_tensor(w, which, folder);
    }
    return written;
}
