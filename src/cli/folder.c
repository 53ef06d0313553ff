/* SPDX-License-Identifier: Apache-2.0 */
#include "folder.h"

#include "complain.h"
#include "storage.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const names[2][MSDA_TENSOR_COUNT] = {
    {"value", "sampling_locations", "attention_weights", NULL, "output", "grad_output", "grad_value",
     "grad_sampling_locations", "grad_attention_weights", NULL},
    {"value", "sampling_offsets", "attention_logits", "reference_points", "output", "grad_output", "grad_value",
     "grad_sampling_offsets", "grad_attention_logits", "grad_reference_points"},
};

const msda_tensor msda_report_order[MSDA_REPORT_COUNT] = {MSDA_TENSOR_OUTPUT, MSDA_TENSOR_GRAD_VALUE,
                                                          MSDA_TENSOR_GRAD_LOCATIONS, MSDA_TENSOR_GRAD_WEIGHTS,
                                                          MSDA_TENSOR_GRAD_REFERENCES};

const char *msda_folder_tensor_name(const msda_folder *folder, msda_tensor tensor)
{
    return names[folder->fused][tensor];
}

bool msda_folder_is_input(msda_tensor tensor)
{
    return tensor <= MSDA_TENSOR_REFERENCES || tensor == MSDA_TENSOR_GRAD_OUTPUT;
}

bool msda_folder_computes(const msda_folder *folder, msda_tensor tensor)
{
    return !msda_folder_is_input(tensor) && msda_folder_tensor_name(folder, tensor) != NULL &&
           (folder->backward || tensor == MSDA_TENSOR_OUTPUT);
}

msda_dtype msda_folder_dtype(const msda_problem *problem, msda_tensor tensor)
{
    switch (tensor) {
    case MSDA_TENSOR_VALUE:
    case MSDA_TENSOR_OUTPUT:
    case MSDA_TENSOR_GRAD_OUTPUT:
    case MSDA_TENSOR_GRAD_VALUE:
        return problem->value_dtype;
    default:
        return problem->point_dtype;
    }
}

/* ---- files ----------------------------------------------------------------------------------------------------- */

static void join_path(char path[PATH_MAX], const msda_folder *folder, const char *name)
{
    snprintf(path, PATH_MAX, "%s/%s.npy", folder->path, name);
}

/* Anything but "it is not there" counts as there, so that opening it tells what is wrong. */
static bool exists(const msda_folder *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat status;
    join_path(path, folder, name);
    return stat(path, &status) == 0 || errno != ENOENT;
}

static bool read_array(const msda_folder *folder, const char *name, msda_array *array, msda_npy_type *type)
{
    char path[PATH_MAX];
    msda_npy npy;
    join_path(path, folder, name);
    if (!msda_npy_read(&npy, path))
        return false;
    const bool is_integer = msda_npy_is_integer(&npy);
    array->data = is_integer ? NULL : malloc(npy.count * sizeof(double) + 1);
    if (array->data != NULL) {
        *type = npy.type;
        array->rank = npy.rank;
        memcpy(array->shape, npy.shape, sizeof array->shape);
        array->count = npy.count;
        for (size_t i = 0; i < npy.count; ++i)
            array->data[i] = msda_npy_float(&npy, i);
    }
    msda_npy_free(&npy);
    if (is_integer)
        return msda_complain("%s: integers, where f2, f4 or f8 is needed", path);
    return array->data != NULL || msda_complain("%s: no memory for %zu numbers", path, array->count);
}

static bool matches(const int64_t *shape, int rank, const int64_t *wanted, int wanted_rank)
{
    bool same = rank == wanted_rank;
    for (int i = 0; same && i < rank; ++i)
        same = wanted[i] < 0 || shape[i] == wanted[i];
    return same;
}

/* A negative size in `wanted` stands for any. */
static bool shape_complaint(const msda_folder *folder, const char *name, const int64_t *shape, int rank,
                            const int64_t *wanted, int wanted_rank)
{
    char is[MSDA_NPY_SHAPE_TEXT_SIZE], should_be[MSDA_NPY_SHAPE_TEXT_SIZE];
    return msda_complain("%s/%s.npy: shape %s, where %s is needed", folder->path, name,
                         msda_npy_shape_text(is, shape, rank), msda_npy_shape_text(should_be, wanted, wanted_rank));
}

/* Reads a table of whole numbers that fit `lowest`..`highest`: spatial_shapes, level_start_index, points_per_level. */
static bool read_table(const msda_folder *folder, const char *name, const int64_t *wanted, int rank, int64_t lowest,
                       int64_t highest, int64_t table[2 * MSDA_MAX_LEVELS], int64_t *rows)
{
    char path[PATH_MAX];
    msda_npy npy;
    join_path(path, folder, name);
    if (!msda_npy_read(&npy, path))
        return false;
    bool valid = true;
    if (!msda_npy_is_integer(&npy))
        valid = msda_complain("%s: not integers (i4 or i8)", path);
    else if (!matches(npy.shape, npy.rank, wanted, rank))
        valid = shape_complaint(folder, name, npy.shape, npy.rank, wanted, rank);
    else if (npy.shape[0] > MSDA_MAX_LEVELS)
        valid = msda_complain("%s: %" PRId64 " levels; at most %d", path, npy.shape[0], MSDA_MAX_LEVELS);
    for (size_t i = 0; valid && i < npy.count; ++i) {
        table[i] = msda_npy_integer(&npy, i);
        if (table[i] < lowest || table[i] > highest)
            valid = msda_complain("%s: %" PRId64 " is not in %" PRId64 "..%" PRId64, path, table[i], lowest, highest);
    }
    *rows = valid ? npy.shape[0] : 0;
    msda_npy_free(&npy);
    return valid;
}

/* ---- the problem ----------------------------------------------------------------------------------------------- */

static bool read_value(msda_folder *folder, const msda_settings *settings)
{
    static const msda_dtype dtypes[] = {
        [MSDA_NPY_F2] = MSDA_DTYPE_F16, [MSDA_NPY_F4] = MSDA_DTYPE_F32, [MSDA_NPY_F8] = MSDA_DTYPE_F64};
    msda_array *const value = &folder->tensors[MSDA_TENSOR_VALUE];
    msda_problem *const problem = &folder->problem;
    msda_npy_type type;
    if (!read_array(folder, "value", value, &type))
        return false;
    if (value->rank != 4)
        return msda_complain("%s/value.npy: %d axes, where [N, S, M, D] is needed", folder->path, value->rank);
    if (value->shape[0] > INT32_MAX || value->shape[2] > INT32_MAX || value->shape[3] > INT32_MAX)
        return msda_complain("%s/value.npy: batch, heads or channels past 2^31", folder->path);
    problem->batch = (int32_t)value->shape[0];
    problem->value_length = value->shape[1];
    problem->heads = (int32_t)value->shape[2];
    problem->head_dim = (int32_t)value->shape[3];
    problem->value_dtype = settings->value_dtype != MSDA_DTYPE_DEFAULT ? settings->value_dtype : dtypes[type];
    problem->point_dtype = settings->point_dtype != MSDA_DTYPE_DEFAULT ? settings->point_dtype
                           : problem->value_dtype == MSDA_DTYPE_F64    ? MSDA_DTYPE_F64
                                                                       : MSDA_DTYPE_F32;
    return true;
}

/* Without level_start_index.npy the levels follow one another and fill value. */
static bool place_levels(msda_folder *folder)
{
    msda_problem *const problem = &folder->problem;
    int64_t length = 0;
    for (int l = 0; l < problem->num_levels; ++l) {
        msda_level *const level = &problem->levels[l];
        level->start = length;
        if ((int64_t)level->height * level->width > INT64_MAX - length)
            return msda_complain("%s/spatial_shapes.npy: more pixels than 2^63", folder->path);
        length += (int64_t)level->height * level->width;
    }
    if (length == problem->value_length)
        return true;
    return msda_complain("%s/value.npy: %" PRId64 " rows, where spatial_shapes.npy has %" PRId64
                         " pixels and no level_start_index.npy tells of gaps",
                         folder->path, problem->value_length, length);
}

static bool read_levels(msda_folder *folder)
{
    msda_problem *const problem = &folder->problem;
    static const int64_t shapes_wanted[2] = {-1, 2};
    int64_t table[2 * MSDA_MAX_LEVELS] = {0}, num_levels;
    if (!read_table(folder, "spatial_shapes", shapes_wanted, 2, 1, INT32_MAX, table, &num_levels))
        return false;
    problem->num_levels = (int32_t)num_levels;
    for (int l = 0; l < num_levels; ++l) {
        problem->levels[l].height = (int32_t)table[2 * l];
        problem->levels[l].width = (int32_t)table[2 * l + 1];
    }
    if (!exists(folder, "level_start_index"))
        return place_levels(folder);
    if (!read_table(folder, "level_start_index", &num_levels, 1, 0, INT64_MAX, table, &num_levels))
        return false;
    for (int l = 0; l < num_levels; ++l)
        problem->levels[l].start = table[l];
    return true;
}

/* ---- points ---------------------------------------------------------------------------------------------------- */

static bool read_points_per_level(msda_folder *folder)
{
    int64_t num_levels = folder->problem.num_levels, table[2 * MSDA_MAX_LEVELS] = {0};
    if (!read_table(folder, "points_per_level", &num_levels, 1, 0, INT32_MAX, table, &num_levels))
        return false;
    for (int l = 0; l < num_levels; ++l)
        folder->problem.levels[l].points = (int32_t)table[l];
    return true;
}

static int64_t count_points(const msda_problem *problem)
{
    int64_t points = 0;
    for (int l = 0; l < problem->num_levels; ++l)
        points += problem->levels[l].points;
    return points;
}

/* [N, Q, M, K, 2] with points_per_level.npy, else [N, Q, M, L, P, 2]. */
static bool read_locations(msda_folder *folder)
{
    msda_problem *const problem = &folder->problem;
    msda_array *const locations = &folder->tensors[MSDA_TENSOR_LOCATIONS];
    const char *const name = msda_folder_tensor_name(folder, MSDA_TENSOR_LOCATIONS);
    const bool per_level = exists(folder, "points_per_level");
    msda_npy_type type;
    if (!read_array(folder, name, locations, &type) || (per_level && !read_points_per_level(folder)))
        return false;
    const int64_t by_table[5] = {problem->batch, -1, problem->heads, count_points(problem), 2};
    const int64_t by_level[6] = {problem->batch, -1, problem->heads, problem->num_levels, -1, 2};
    const int64_t *const wanted = per_level ? by_table : by_level;
    const int rank = per_level ? 5 : 6;
    if (!matches(locations->shape, locations->rank, wanted, rank))
        return shape_complaint(folder, name, locations->shape, locations->rank, wanted, rank);
    if (locations->shape[1] > INT32_MAX || locations->shape[4] > INT32_MAX)
        return msda_complain("%s/%s.npy: more queries or points than 2^31", folder->path, name);
    problem->queries = (int32_t)locations->shape[1];
    for (int l = 0; !per_level && l < problem->num_levels; ++l)
        problem->levels[l].points = (int32_t)locations->shape[4];
    return true;
}

/* The tensor may have either shape; the first is what a complaint asks for. */
static bool read_shaped(msda_folder *folder, msda_tensor tensor, const int64_t *wanted, int rank,
                        const int64_t *also_wanted, int also_rank)
{
    msda_array *const array = &folder->tensors[tensor];
    const char *const name = msda_folder_tensor_name(folder, tensor);
    msda_npy_type type;
    if (!read_array(folder, name, array, &type))
        return false;
    return matches(array->shape, array->rank, wanted, rank) ||
           matches(array->shape, array->rank, also_wanted, also_rank) ||
           shape_complaint(folder, name, array->shape, array->rank, wanted, rank);
}

static bool read_weights(msda_folder *folder)
{
    const msda_problem *const problem = &folder->problem;
    const msda_array *const locations = &folder->tensors[MSDA_TENSOR_LOCATIONS];
    const int64_t flat[4] = {problem->batch, problem->queries, problem->heads, count_points(problem)};
    return read_shaped(folder, MSDA_TENSOR_WEIGHTS, locations->shape, locations->rank - 1, flat, 4);
}

/* [N, Q, L, 4] are boxes; [N, Q, L, 2] points, unless anchors are asked for; [N, Q, Z, 2] anchors. */
static bool read_references(msda_folder *folder, const msda_settings *settings)
{
    msda_problem *const problem = &folder->problem;
    const msda_array *const references = &folder->tensors[MSDA_TENSOR_REFERENCES];
    const int64_t planar[4] = {problem->batch, problem->queries, -1, 2};
    const int64_t boxes[4] = {problem->batch, problem->queries, problem->num_levels, 4};
    const bool may_be_boxes = !settings->anchors;
    if (!read_shaped(folder, MSDA_TENSOR_REFERENCES, planar, 4, may_be_boxes ? boxes : planar, 4))
        return false;
    if (references->shape[2] > INT32_MAX)
        return msda_complain("%s/reference_points.npy: more anchors than 2^31", folder->path);
    const bool one_per_level = references->shape[2] == problem->num_levels;
    problem->reference_kind = references->shape[3] == 4             ? MSDA_REFERENCE_BOXES
                              : one_per_level && !settings->anchors ? MSDA_REFERENCE_POINTS
                                                                    : MSDA_REFERENCE_ANCHORS;
    problem->num_anchors = (int32_t)references->shape[2];
    return true;
}

/* [N, Q, M*D]; [N, Q, M, D] is the same memory. */
static bool read_grad_output(msda_folder *folder)
{
    const msda_problem *const problem = &folder->problem;
    const msda_array *const output = &folder->tensors[MSDA_TENSOR_OUTPUT];
    const int64_t by_head[4] = {problem->batch, problem->queries, problem->heads, problem->head_dim};
    return read_shaped(folder, MSDA_TENSOR_GRAD_OUTPUT, output->shape, output->rank, by_head, 4);
}

static void shape_like(msda_folder *folder, msda_tensor tensor, msda_tensor model)
{
    folder->tensors[tensor] = folder->tensors[model];
    folder->tensors[tensor].data = NULL;
}

static void shape_results(msda_folder *folder)
{
    const msda_problem *const problem = &folder->problem;
    msda_array *const output = &folder->tensors[MSDA_TENSOR_OUTPUT];
    output->rank = 3;
    output->shape[0] = problem->batch;
    output->shape[1] = problem->queries;
    output->shape[2] = (int64_t)problem->heads * problem->head_dim;
    output->count = (size_t)(output->shape[0] * output->shape[1] * output->shape[2]);
    shape_like(folder, MSDA_TENSOR_GRAD_VALUE, MSDA_TENSOR_VALUE);
    shape_like(folder, MSDA_TENSOR_GRAD_LOCATIONS, MSDA_TENSOR_LOCATIONS);
    shape_like(folder, MSDA_TENSOR_GRAD_WEIGHTS, MSDA_TENSOR_WEIGHTS);
    shape_like(folder, MSDA_TENSOR_GRAD_REFERENCES, MSDA_TENSOR_REFERENCES);
}

static bool read_everything(msda_folder *folder, const msda_settings *settings)
{
    msda_problem *const problem = &folder->problem;
    if (!read_value(folder, settings) || !read_levels(folder) || !read_locations(folder) || !read_weights(folder))
        return false;
    if (folder->fused && !read_references(folder, settings))
        return false;
    problem->accumulate = settings->accumulate;
    problem->padding = settings->padding;
    problem->sampling = settings->sampling;
    problem->align_corners = settings->align_corners;
    if (msda_problem_check(problem) != MSDA_STATUS_SUCCESS)
        return msda_complain("%s: %s", folder->path, msda_last_error());
    shape_results(folder);
    return !folder->backward || read_grad_output(folder);
}

bool msda_folder_read(msda_folder *folder, const char *path, const msda_settings *settings)
{
    memset(folder, 0, sizeof *folder);
    folder->path = path;
    folder->fused = exists(folder, "reference_points");
    folder->backward = exists(folder, "grad_output");
    msda_problem_init(&folder->problem);
    if (read_everything(folder, settings))
        return true;
    msda_folder_free(folder);
    return false;
}

void msda_folder_free(msda_folder *folder)
{
    for (int t = 0; t < MSDA_TENSOR_COUNT; ++t) {
        free(folder->tensors[t].data);
        folder->tensors[t].data = NULL;
    }
}

bool msda_folder_read_expected(const msda_folder *folder, msda_tensor tensor, msda_array *expected, bool *found)
{
    const msda_problem *const problem = &folder->problem;
    const msda_array *const wanted = &folder->tensors[tensor];
    const int64_t by_head[4] = {problem->batch, problem->queries, problem->heads, problem->head_dim};
    char name[64];
    msda_npy_type type;
    snprintf(name, sizeof name, "expected/%s", msda_folder_tensor_name(folder, tensor));
    memset(expected, 0, sizeof *expected);
    *found = exists(folder, name);
    if (!*found)
        return true;
    if (!msda_folder_computes(folder, tensor))
        return msda_complain("%s/%s.npy: there is no grad_output.npy to compute this gradient from", folder->path,
                             name);
    if (!read_array(folder, name, expected, &type))
        return false;
    if (matches(expected->shape, expected->rank, wanted->shape, wanted->rank) ||
        (tensor == MSDA_TENSOR_OUTPUT && matches(expected->shape, expected->rank, by_head, 4)))
        return true;
    free(expected->data);
    expected->data = NULL;
    return shape_complaint(folder, name, expected->shape, expected->rank, wanted->shape, wanted->rank);
}

/* ---- rounding -------------------------------------------------------------------------------------------------- */

bool msda_folder_is_stored_exactly(const msda_folder *folder)
{
    for (int t = 0; t < MSDA_TENSOR_COUNT; ++t) {
        const msda_array *const array = &folder->tensors[t];
        const msda_dtype dtype = msda_folder_dtype(&folder->problem, (msda_tensor)t);
        for (size_t i = 0; array->data != NULL && i < array->count; ++i)
            if (msda_storage_round(dtype, array->data[i]) != array->data[i] && array->data[i] == array->data[i])
                return false;
    }
    return true;
}

void msda_folder_round_inputs(msda_folder *folder)
{
    for (int t = 0; t < MSDA_TENSOR_COUNT; ++t) {
        msda_array *const array = &folder->tensors[t];
        const msda_dtype dtype = msda_folder_dtype(&folder->problem, (msda_tensor)t);
        for (size_t i = 0; array->data != NULL && i < array->count; ++i)
            array->data[i] = msda_storage_round(dtype, array->data[i]);
    }
}
