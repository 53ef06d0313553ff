/* SPDX-License-Identifier: Apache-2.0 */
/* msda run and msda check: a folder of tensors through the library. */
#include "commands.h"
#include "complain.h"
#include "compute.h"
#include "folder.h"
#include "storage.h"
#include "verdict.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a run makes of its folder: data[t] is an input of the folder or a result that is ours. */
typedef struct results {
    double *data[MSDA_TENSOR_COUNT];
    msda_timing timings[MSDA_TIMING_COUNT];
} results;

/* ---- arguments ------------------------------------------------------------------------------------------------- */

/* Leaves room for the names of the files inside, so that no path is ever cut short. */
static bool fits(const char *folder)
{
    return strlen(folder) < PATH_MAX - 64 || msda_complain("%.40s...: name too long", folder);
}

/* The command line names DIR, DIR/options has flags of its own, and the command line wins: so it is parsed twice. */
static bool parse(int count, char **words, const msda_flag *flags, msda_settings *settings, const char **directory)
{
    char path[PATH_MAX];
    *directory = NULL;
    msda_settings_init(settings);
    if (!msda_arguments_parse(count, words, flags, settings, directory))
        return false;
    if (*directory == NULL)
        return msda_complain("%s: which folder? (msda --help)", words[0]);
    if (!fits(*directory))
        return false;
    snprintf(path, sizeof path, "%s/options", *directory);
    msda_settings_init(settings);
    *directory = NULL;
    return msda_arguments_parse_file(path, msda_file_flags, settings) &&
           msda_arguments_parse(count, words, flags, settings, directory) &&
           (settings->out == NULL || fits(settings->out));
}

/* ---- computing ------------------------------------------------------------------------------------------------- */

static void free_results(results *r)
{
    for (int t = 0; t < MSDA_TENSOR_COUNT; ++t)
        if (!msda_folder_is_input((msda_tensor)t))
            free(r->data[t]);
    *r = (results){0};
}

static bool attach(results *r, const msda_folder *folder)
{
    *r = (results){0};
    for (int t = 0; t < MSDA_TENSOR_COUNT; ++t) {
        const msda_array *const array = &folder->tensors[t];
        if (msda_folder_is_input((msda_tensor)t)) {
            r->data[t] = array->data;
        } else if (msda_folder_computes(folder, (msda_tensor)t)) {
            r->data[t] = malloc(array->count * sizeof(double) + 1);
            if (r->data[t] == NULL)
                return msda_complain("%s: no memory for %zu numbers", folder->path, array->count);
        }
    }
    return true;
}

static msda_task task_of(const msda_folder *folder, const msda_settings *settings)
{
    return (msda_task){&folder->problem,  folder->fused,     folder->backward,
                       settings->backend, settings->threads, settings->repeat};
}

static bool compute(results *r, const msda_folder *folder, const msda_settings *settings)
{
    const msda_task task = task_of(folder, settings);
    return attach(r, folder) && msda_compute(&task, r->data, r->timings);
}

static void print_timing(const char *direction, msda_timing timing, int repeat, const msda_task *task)
{
    fprintf(stderr, "%-8s median %.4g ms, spread %.4g .. %.4g ms, %d runs, %s %s\n", direction, 1e3 * timing.median,
            1e3 * timing.lowest, 1e3 * timing.highest, repeat, msda_backend_name(task->backend),
            msda_compute_kernel_name(task));
}

static void print_timings(const results *r, const msda_folder *folder, const msda_settings *settings)
{
    const msda_task task = task_of(folder, settings);
    if (settings->repeat == 0)
        return;
    print_timing("forward", r->timings[MSDA_FORWARD_TIMING], settings->repeat, &task);
    if (folder->backward)
        print_timing("backward", r->timings[MSDA_BACKWARD_TIMING], settings->repeat, &task);
}

/* ---- run ------------------------------------------------------------------------------------------------------- */

static void print_summary(const msda_folder *folder, msda_tensor tensor, const double *data)
{
    const msda_array *const array = &folder->tensors[tensor];
    char shape[MSDA_NPY_SHAPE_TEXT_SIZE];
    double lowest = INFINITY, highest = -INFINITY, squares = 0.0;
    size_t finite = 0;
    for (size_t i = 0; i < array->count; ++i)
        if (isfinite(data[i])) {
            lowest = fmin(lowest, data[i]);
            highest = fmax(highest, data[i]);
            squares += data[i] * data[i];
            ++finite;
        }
    printf("%-24s %-24s", msda_folder_tensor_name(folder, tensor),
           msda_npy_shape_text(shape, array->shape, array->rank));
    if (finite > 0)
        printf("  min %-11.4g max %-11.4g norm %-11.4g", lowest, highest, sqrt(squares));
    if (finite < array->count)
        printf("  NaN or infinite: %zu", array->count - finite);
    printf("\n");
}

static void result_path(char path[PATH_MAX], const msda_folder *folder, msda_tensor tensor, const char *out,
                        const char *suffix)
{
    snprintf(path, PATH_MAX, "%s/%s.npy%s", out, msda_folder_tensor_name(folder, tensor), suffix);
}

typedef bool step(const msda_folder *folder, const results *r, msda_tensor tensor, const char *out);

#define UNFINISHED ".part"

static bool write_unfinished(const msda_folder *folder, const results *r, msda_tensor tensor, const char *out)
{
    const msda_npy_type type = folder->problem.value_dtype == MSDA_DTYPE_F64 ? MSDA_NPY_F8 : MSDA_NPY_F4;
    char path[PATH_MAX];
    result_path(path, folder, tensor, out, UNFINISHED);
    return msda_npy_write(path, type, folder->tensors[tensor].shape, folder->tensors[tensor].rank, r->data[tensor]);
}

static bool finish(const msda_folder *folder, const results *r, msda_tensor tensor, const char *out)
{
    (void)r;
    char from[PATH_MAX], to[PATH_MAX];
    result_path(from, folder, tensor, out, UNFINISHED);
    result_path(to, folder, tensor, out, "");
    return rename(from, to) == 0 || msda_complain("%s: %s", to, strerror(errno));
}

static bool discard_unfinished(const msda_folder *folder, const results *r, msda_tensor tensor, const char *out)
{
    (void)r;
    char path[PATH_MAX];
    result_path(path, folder, tensor, out, UNFINISHED);
    unlink(path);
    return true;
}

static bool for_each_result(step *what, const msda_folder *folder, const results *r, const char *out)
{
    for (int i = 0; i < MSDA_REPORT_COUNT; ++i)
        if (r->data[msda_report_order[i]] != NULL && !what(folder, r, msda_report_order[i], out))
            return false;
    return true;
}

/* All files or none: each is written whole beside its place, and moved there once all of them are. */
static bool write_results(const msda_folder *folder, const results *r, const char *out)
{
    const bool created = mkdir(out, 0777) == 0;
    if (!created && errno != EEXIST)
        return msda_complain("%s: %s", out, strerror(errno));
    if (for_each_result(write_unfinished, folder, r, out) && for_each_result(finish, folder, r, out))
        return true;
    for_each_result(discard_unfinished, folder, r, out);
    if (created)
        rmdir(out);
    return false;
}

static bool run(const msda_folder *folder, const msda_settings *settings)
{
    results r;
    const bool done =
        compute(&r, folder, settings) && (settings->out == NULL || write_results(folder, &r, settings->out));
    for (int i = 0; done && i < MSDA_REPORT_COUNT; ++i)
        if (r.data[msda_report_order[i]] != NULL)
            print_summary(folder, msda_report_order[i], r.data[msda_report_order[i]]);
    if (done)
        print_timings(&r, folder, settings);
    free_results(&r);
    return done;
}

int msda_command_run(int count, char **words)
{
    msda_settings settings;
    msda_folder folder;
    const char *directory;
    if (!parse(count, words, msda_run_flags, &settings, &directory) || !msda_folder_read(&folder, directory, &settings))
        return MSDA_EXIT_BAD;
    msda_folder_round_inputs(&folder);
    const bool done = run(&folder, &settings);
    msda_folder_free(&folder);
    return done ? MSDA_EXIT_GOOD : MSDA_EXIT_BAD;
}

/* ---- check ----------------------------------------------------------------------------------------------------- */

typedef struct expectations {
    msda_array tensors[MSDA_TENSOR_COUNT]; /* without data where expected/ has no file */
} expectations;

static void free_expectations(expectations *e)
{
    for (int t = 0; t < MSDA_TENSOR_COUNT; ++t)
        free(e->tensors[t].data);
}

static bool read_expectations(expectations *e, const msda_folder *folder)
{
    int num_found = 0;
    *e = (expectations){0};
    for (int i = 0; i < MSDA_REPORT_COUNT; ++i) {
        const msda_tensor tensor = msda_report_order[i];
        bool found = false;
        if (msda_folder_tensor_name(folder, tensor) != NULL &&
            !msda_folder_read_expected(folder, tensor, &e->tensors[tensor], &found))
            return false;
        num_found += found;
    }
    return num_found > 0 || msda_complain("%s/expected: no tensor of this problem to compare with", folder->path);
}

/* The definition, in f64, of whatever numbers the inputs hold now. */
static bool compute_exactly(results *r, const msda_folder *folder)
{
    msda_folder exact = *folder;
    exact.problem.value_dtype = exact.problem.point_dtype = MSDA_DTYPE_F64;
    const msda_settings settings = {.backend = MSDA_BACKEND_NAIVE};
    return compute(r, &exact, &settings);
}

static void move_array(msda_array *expected, const double *from, const double *to)
{
    for (size_t i = 0; i < expected->count; ++i)
        if (from[i] != to[i] && !(isnan(from[i]) && isnan(to[i])))
            expected->data[i] += to[i] - from[i];
}

/*
 * expected/ belongs to the numbers in the files. Where the storage types cannot hold those, the library is given other
 * numbers, and the tolerances are for its own errors alone: so the expectations are moved by what rounding the inputs
 * does to the definition.
 */
static bool round_inputs_and_move(expectations *e, msda_folder *folder)
{
    results before = {0}, after = {0};
    if (msda_folder_is_stored_exactly(folder))
        return true;
    bool moved = compute_exactly(&before, folder);
    msda_folder_round_inputs(folder);
    moved = moved && compute_exactly(&after, folder);
    for (int t = 0; moved && t < MSDA_TENSOR_COUNT; ++t)
        if (e->tensors[t].data != NULL)
            move_array(&e->tensors[t], before.data[t], after.data[t]);
    free_results(&before);
    free_results(&after);
    return moved;
}

/* One line; true if the tensor is within tolerance or has nothing to be compared with. */
static bool print_verdict(const msda_folder *folder, msda_tensor tensor, const double *computed,
                          const msda_array *expected, double own_rtol)
{
    const char *const name = msda_folder_tensor_name(folder, tensor);
    if (expected->data == NULL) {
        printf("%-24s not checked: no expected/%s.npy\n", name, name);
        return true;
    }
    const msda_tolerance tolerance = msda_tolerance_of(folder, tensor, own_rtol);
    const msda_verdict v = msda_verdict_of(computed, expected, msda_folder_dtype(&folder->problem, tensor), tolerance);
    printf("%-24s max|error| %-9.3g ||out-ref||/||ref|| %-9.3g cosine %-12.9f %s (tolerance %.3g)%s%s\n", name,
           v.max_error, v.relative_error, v.cosine, v.passed ? "ok" : "FAIL", tolerance.rtol, v.passed ? "" : ": ",
           v.hint);
    return v.passed;
}

static int check(const msda_folder *folder, const expectations *e, const msda_settings *settings)
{
    results r;
    int status = MSDA_EXIT_BAD;
    if (compute(&r, folder, settings)) {
        status = MSDA_EXIT_GOOD;
        for (int i = 0; i < MSDA_REPORT_COUNT; ++i) {
            const msda_tensor tensor = msda_report_order[i];
            if (r.data[tensor] != NULL &&
                !print_verdict(folder, tensor, r.data[tensor], &e->tensors[tensor], settings->rtol))
                status = MSDA_EXIT_OFF;
        }
        print_timings(&r, folder, settings);
    }
    free_results(&r);
    return status;
}

int msda_command_check(int count, char **words)
{
    msda_settings settings;
    msda_folder folder;
    expectations e;
    const char *directory;
    if (!parse(count, words, msda_check_flags, &settings, &directory) ||
        !msda_folder_read(&folder, directory, &settings))
        return MSDA_EXIT_BAD;
    const bool ready = read_expectations(&e, &folder) && round_inputs_and_move(&e, &folder);
    const int status = ready ? check(&folder, &e, &settings) : MSDA_EXIT_BAD;
    free_expectations(&e);
    msda_folder_free(&folder);
    return status;
}
