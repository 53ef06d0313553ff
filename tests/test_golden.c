/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The golden cases of tests/golden, made by float64 autograd of an independent sampler or by hand. Each in every dtype
 * and accumulate mode: in f64 and f32 element by element within derived bounds, in 16 bits (where rounding the inputs
 * moves the answer too) by the relative norm over a tensor.
 */
#include "bounds.h"
#include "trial.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "complain.h"
#include "element.h"
#include "npy.h"
#include "problems.h"

/* Where the source was when this was built; MSDA_TEST_GOLDEN says where else, for a build that was carried somewhere. */
static const char *golden_folder(void)
{
    const char *elsewhere = getenv("MSDA_TEST_GOLDEN");
    return elsewhere ? elsewhere : MSDA_TEST_GOLDEN;
}

/* A file of a case; without one, shape and data are empty. */
static msda_npy read_npy(const char *name, const char *file)
{
    char path[1024];
    msda_npy npy = {0};
    snprintf(path, sizeof path, "%s/%s/%s.npy", golden_folder(), name, file);
    FILE *const exists = fopen(path, "rb");
    if (exists == NULL)
        return npy;
    fclose(exists);
    if (!msda_npy_read(&npy, path))
        fail_msg("%s", msda_complaint());
    return npy;
}

static int has_option(const char *name, const char *option)
{
    char path[1024], line[256] = "";
    snprintf(path, sizeof path, "%s/%s/options", golden_folder(), name);
    FILE *const file = fopen(path, "r");
    assert_non_null(file);
    const int has = fgets(line, sizeof line, file) != NULL && strstr(line, option) != NULL;
    fclose(file);
    return has;
}

static void add_levels(msda_problem *problem, const char *name, int32_t points)
{
    msda_npy shapes = read_npy(name, "spatial_shapes"), starts = read_npy(name, "level_start_index");
    msda_npy points_per_level = read_npy(name, "points_per_level");
    for (int64_t l = 0; l < shapes.shape[0]; ++l) {
        const size_t at = (size_t)l;
        const int32_t height = (int32_t)msda_npy_integer(&shapes, 2 * at);
        const int32_t width = (int32_t)msda_npy_integer(&shapes, 2 * at + 1);
        const int32_t own = points_per_level.count ? (int32_t)msda_npy_integer(&points_per_level, at) : points;
        assert_int_equal(msda_problem_add_level(problem, height, width, own), MSDA_STATUS_SUCCESS);
        if (starts.count)
            problem->levels[l].start = msda_npy_integer(&starts, at);
    }
    msda_npy_free(&shapes);
    msda_npy_free(&starts);
    msda_npy_free(&points_per_level);
}

static void set_references(msda_problem *problem, const msda_npy *references)
{
    if (references->shape[3] == 4)
        problem->reference_kind = MSDA_REFERENCE_BOXES;
    else if (references->shape[2] != problem->num_levels) {
        problem->reference_kind = MSDA_REFERENCE_ANCHORS;
        problem->num_anchors = (int32_t)references->shape[2];
    }
}

static void read_tensor(trial *t, msda_tensor tensor, const char *file)
{
    msda_npy npy = read_npy(t->name, file);
    assert_int_equal(npy.count, trial_count(t, tensor));
    for (size_t i = 0; i < npy.count; ++i)
        trial_set(t, tensor, (int64_t)i, msda_npy_float(&npy, i));
    msda_npy_free(&npy);
}

static void open_case(trial *t, const char *name, msda_dtype dtype)
{
    msda_npy value = read_npy(name, "value"), references = read_npy(name, "reference_points");
    const int fused = references.count > 0;
    msda_npy weights = read_npy(name, fused ? "attention_logits" : "attention_weights");
    msda_problem problem;
    msda_problem_init(&problem);
    problem.value_dtype = dtype;
    problem.batch = (int32_t)value.shape[0];
    problem.queries = (int32_t)weights.shape[1];
    problem.heads = (int32_t)value.shape[2];
    problem.head_dim = (int32_t)value.shape[3];
    add_levels(&problem, name, (int32_t)weights.shape[weights.rank - 1]);
    assert_int_equal(problem.value_length, value.shape[1]);
    problem.padding = has_option(name, "--padding border") ? MSDA_PADDING_BORDER : MSDA_PADDING_ZEROS;
    problem.sampling = has_option(name, "--sampling discrete") ? MSDA_SAMPLING_DISCRETE : MSDA_SAMPLING_BILINEAR;
    problem.align_corners = has_option(name, "--align-corners");
    if (fused)
        set_references(&problem, &references);
    trial_open(t, &problem, fused);
    t->name = name;
    read_tensor(t, MSDA_TENSOR_VALUE, "value");
    read_tensor(t, MSDA_TENSOR_GRAD_OUTPUT, "grad_output");
    read_tensor(t, MSDA_TENSOR_LOCATIONS, fused ? "sampling_offsets" : "sampling_locations");
    read_tensor(t, MSDA_TENSOR_WEIGHTS, fused ? "attention_logits" : "attention_weights");
    if (fused)
        read_tensor(t, MSDA_TENSOR_REFERENCES, "reference_points");
    msda_npy_free(&value);
    msda_npy_free(&references);
    msda_npy_free(&weights);
}

/* The relative norm that the operator's definition grants 16-bit storage; rounding the inputs is in it. */
static double allowed_norm(const trial *t)
{
    return t->problem.value_dtype == MSDA_DTYPE_F16 ? 1e-3 : 8e-3;
}

static void check_norm(const trial *t, msda_tensor tensor, const expectation *e)
{
    double error = 0.0, norm = 0.0;
    for (int64_t i = 0; i < trial_count(t, tensor); ++i) {
        const double answer = trial_get(&e->answer, tensor, i), got = trial_get(t, tensor, i);
        error += (got - answer) * (got - answer);
        norm += answer * answer;
    }
    if (!(sqrt(error) <= allowed_norm(t) * sqrt(norm)))
        fail_msg("%s: %s: %s, value %s: relative norm of the error is %.3g, allowed %.3g", backend_label(), t->name,
                 trial_tensor_name(t, tensor), element_name(t->problem.value_dtype), sqrt(error / norm),
                 allowed_norm(t));
}

/* Puts the golden answer in the place of naive's; 0 if the case does not tell this tensor. */
static int read_expected(expectation *e, msda_tensor tensor)
{
    char file[80];
    snprintf(file, sizeof file, "expected/%s", trial_tensor_name(&e->answer, tensor));
    msda_npy npy = read_npy(e->answer.name, file);
    const int told = npy.count > 0;
    msda_npy_free(&npy);
    if (told)
        read_tensor(&e->answer, tensor, file);
    return told;
}

/* Sums in 16 bits are off by more with every hit on a pixel: no figure for a whole tensor holds. */
static int is_rounded_each_time(const trial *t, msda_tensor tensor)
{
    return element_size(t->problem.value_dtype) == 2 && tensor == MSDA_TENSOR_GRAD_VALUE &&
           t->problem.accumulate == MSDA_ACCUMULATE_NATIVE;
}

/* First against naive on the numbers as they are stored, then against the case's answer. */
static int check_tensor(const trial *t, msda_tensor tensor, expectation *e)
{
    expectation_check(e, t, tensor);
    if (!read_expected(e, tensor))
        return 0;
    if (element_size(t->problem.value_dtype) != 2)
        expectation_check(e, t, tensor);
    else if (!is_rounded_each_time(t, tensor))
        check_norm(t, tensor, e);
    return 1;
}

static void check_case(const char *name, msda_dtype dtype, msda_accumulate accumulate)
{
    trial t;
    expectation e;
    int num_told = 0;
    open_case(&t, name, dtype);
    t.problem.accumulate = accumulate;
    expectation_open(&e, &t);
    trial_forward(&t);
    trial_backward(&t);
    for (int tensor = 0; tensor < MSDA_TENSOR_COUNT; ++tensor)
        if (trial_is_output((msda_tensor)tensor))
            num_told += check_tensor(&t, (msda_tensor)tensor, &e);
    assert_true(num_told > 0);
    expectation_close(&e);
    trial_close(&t);
}

static const char *current_case;

static void check_dtype(msda_dtype dtype)
{
    for (int accumulate = 0; accumulate <= MSDA_ACCUMULATE_DETERMINISTIC; ++accumulate)
        check_case(current_case, dtype, (msda_accumulate)accumulate);
}

static void case_agrees(void **state)
{
    current_case = *state;
    backend_for_each_dtype(check_dtype);
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Every folder is a test because it is there. */
int main(int argc, char **argv)
{
    struct dirent **folders;
    const int count = scandir(golden_folder(), &folders, is_visible, alphasort);
    struct CMUnitTest *tests = calloc(count > 0 ? (size_t)count : 1, sizeof *tests);
    if (count <= 0 || tests == NULL)
        return EXIT_FAILURE;
    for (int i = 0; i < count; ++i)
        tests[i] = (struct CMUnitTest){folders[i]->d_name, case_agrees, NULL, NULL, folders[i]->d_name};
    const int status = run_program(argc, argv, NULL, tests, (size_t)count);
    for (int i = 0; i < count; ++i)
        free(folders[i]);
    free(folders);
    free(tests);
    return status;
}
