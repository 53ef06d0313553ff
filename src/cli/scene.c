/* SPDX-License-Identifier: Apache-2.0 */
#include "scene.h"

#include "complain.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FINEST_STRIDE = 4, CHANNELS = 4 };

/* How much a difference in colour counts: the attention weight falls to 1/e at a distance of 0.35 in the unit cube. */
static const double sharpness = 16.0;

static const double pi = 3.14159265358979323846;

/* The tensors of the library's calls, f32, dense. */
typedef struct tensors {
    float *value, *locations, *weights, *output, *grad_output, *grad_value, *grad_weights;
} tensors;

/* ---- sizes ----------------------------------------------------------------------------------------------------- */

static int shrunk(int size, int stride)
{
    return size / stride > 0 ? size / stride : 1;
}

static bool describe(msda_problem *problem, const msda_photo *photo, const msda_scene_settings *settings)
{
    msda_problem_init(problem);
    problem->value_dtype = MSDA_DTYPE_F32;
    problem->batch = 1;
    problem->heads = settings->heads;
    problem->head_dim = CHANNELS;
    for (int l = 0; l < settings->levels; ++l) {
        const int stride = FINEST_STRIDE << l;
        if (msda_problem_add_level(problem, shrunk(photo->height, stride), shrunk(photo->width, stride),
                                   settings->points) != MSDA_STATUS_SUCCESS)
            return msda_complain("view: %s", msda_last_error());
    }
    problem->queries = (int32_t)problem->value_length; /* every pixel of every level asks */
    return true;
}

static float *allocate(const msda_problem *problem, msda_tensor tensor)
{
    size_t size = 0;
    return msda_tensor_size(problem, tensor, &size) == MSDA_STATUS_SUCCESS ? calloc(1, size) : NULL;
}

static bool allocate_all(tensors *t, const msda_problem *problem)
{
    t->value = allocate(problem, MSDA_TENSOR_VALUE);
    t->locations = allocate(problem, MSDA_TENSOR_LOCATIONS);
    t->weights = allocate(problem, MSDA_TENSOR_WEIGHTS);
    t->output = allocate(problem, MSDA_TENSOR_OUTPUT);
    t->grad_output = allocate(problem, MSDA_TENSOR_GRAD_OUTPUT);
    t->grad_value = allocate(problem, MSDA_TENSOR_GRAD_VALUE);
    t->grad_weights = allocate(problem, MSDA_TENSOR_GRAD_WEIGHTS);
    if (t->value && t->locations && t->weights && t->output && t->grad_output && t->grad_value && t->grad_weights)
        return true;
    msda_complain("view: no memory for %d queries of %d heads", problem->queries, problem->heads);
    return false;
}

static void free_all(tensors *t)
{
    free(t->value);
    free(t->locations);
    free(t->weights);
    free(t->output);
    free(t->grad_output);
    free(t->grad_value);
    free(t->grad_weights);
}

static size_t points_of_head(const msda_problem *problem)
{
    return (size_t)problem->num_levels * (size_t)problem->levels[0].points;
}

/* ---- inputs ---------------------------------------------------------------------------------------------------- */

/*
 * The channels of a pixel are its colour c, centred, and |c|^2 / 2. With them and a query of colour q that asks with
 * (q, -1), the dot product is q.c - |c|^2 / 2: how near the colours are, -|q - c|^2 / 2, up to a constant of the query.
 */
static void describe_colour(float feature[CHANNELS], const float colour[3])
{
    feature[3] = 0.0f;
    for (int c = 0; c < 3; ++c) {
        feature[c] = colour[c] - 0.5f;
        feature[3] += 0.5f * feature[c] * feature[c];
    }
}

/* Row s of value is pixel s of the pyramid, and query s stands on it and asks for colours like its own. */
static bool fill_features(tensors *t, const msda_problem *problem, const msda_photo *photo)
{
    for (int l = 0; l < problem->num_levels; ++l) {
        const msda_level *const level = &problem->levels[l];
        msda_photo small;
        if (!msda_photo_shrink(&small, photo, level->width, level->height))
            return false;
        for (int64_t i = 0; i < (int64_t)level->height * level->width; ++i)
            for (int64_t m = 0; m < problem->heads; ++m) {
                const int64_t at = ((level->start + i) * problem->heads + m) * CHANNELS;
                describe_colour(t->value + at, small.pixels + 3 * i);
                memcpy(t->grad_output + at, t->value + at, 3 * sizeof(float));
                t->grad_output[at + 3] = -1.0f;
            }
        msda_photo_free(&small);
    }
    return true;
}

/* splitmix64: the same noise on every machine. */
static double draw_uniform(uint64_t *state)
{
    uint64_t bits = *state += UINT64_C(0x9E3779B97F4A7C15);
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94D049BB133111EB);
    return ((double)((bits ^ (bits >> 31)) >> 11) + 0.5) * 0x1p-53;
}

static double draw_normal(uint64_t *state)
{
    const double radius = sqrt(-2.0 * log(draw_uniform(state)));
    return radius * cos(2.0 * pi * draw_uniform(state));
}

/* The locations of one query that stands at (x, y). On each level the offsets are in that level's pixels. */
static void place_points(float *locations, const msda_problem *problem, double x, double y, double noise,
                         uint64_t *random)
{
    for (int m = 0; m < problem->heads; ++m) {
        const double angle = 2.0 * pi * m / problem->heads;
        const double longest = fmax(fabs(cos(angle)), fabs(sin(angle)));
        for (int l = 0; l < problem->num_levels; ++l) {
            const msda_level *const level = &problem->levels[l];
            for (int p = 0; p < level->points; ++p) {
                const double offset_x = (p + 1) * cos(angle) / longest + noise * draw_normal(random);
                const double offset_y = (p + 1) * sin(angle) / longest + noise * draw_normal(random);
                *locations++ = (float)(x + offset_x / level->width);
                *locations++ = (float)(y + offset_y / level->height);
            }
        }
    }
}

static void fill_locations(tensors *t, const msda_problem *problem, const msda_scene_settings *settings)
{
    const size_t per_query = 2 * (size_t)problem->heads * points_of_head(problem);
    uint64_t random = (uint64_t)settings->seed;
    float *locations = t->locations;
    for (int l = 0; l < problem->num_levels; ++l)
        for (int row = 0; row < problem->levels[l].height; ++row)
            for (int column = 0; column < problem->levels[l].width; ++column) {
                place_points(locations, problem, (column + 0.5) / problem->levels[l].width,
                             (row + 0.5) / problem->levels[l].height, settings->noise, &random);
                locations += per_query;
            }
}

/* ---- the library ----------------------------------------------------------------------------------------------- */

static bool run_forward(const msda_problem *problem, const tensors *t, int threads)
{
    const msda_forward_args args = {t->value, t->locations, t->weights, t->output};
    return msda_cpu_forward(problem, &args, threads) == MSDA_STATUS_SUCCESS ||
           msda_complain("view: %s", msda_last_error());
}

static bool run_backward(const msda_problem *problem, const tensors *t, float *grad_value, float *grad_weights,
                         int threads)
{
    const msda_backward_args args = {t->value,   t->locations, t->weights,  t->grad_output,
                                     grad_value, NULL,         grad_weights};
    size_t size = 0;
    if (msda_cpu_backward_workspace(problem, threads, &size) != MSDA_STATUS_SUCCESS)
        return msda_complain("view: %s", msda_last_error());
    void *const workspace = aligned_alloc(64, (size + 64) / 64 * 64);
    const msda_status status = msda_cpu_backward(problem, &args, workspace, size, threads);
    free(workspace);
    return status == MSDA_STATUS_SUCCESS || msda_complain("view: %s", msda_last_error());
}

/* The softmax, over the points of each query and head, of how near their colour is to the query's. */
static void attend(float *weights, const float *nearness, const msda_problem *problem)
{
    const size_t count = points_of_head(problem), rows = (size_t)problem->queries * (size_t)problem->heads;
    for (size_t row = 0; row < rows; ++row, weights += count, nearness += count) {
        double highest = -INFINITY, sum = 0.0;
        for (size_t k = 0; k < count; ++k)
            highest = fmax(highest, nearness[k]);
        for (size_t k = 0; k < count; ++k)
            sum += exp(sharpness * (nearness[k] - highest));
        for (size_t k = 0; k < count; ++k)
            weights[k] = (float)(exp(sharpness * (nearness[k] - highest)) / sum);
    }
}

/* The gradient that arrives: one at every channel of the chosen query, nothing anywhere else. */
static void choose(float *grad_output, const msda_problem *problem, int64_t query)
{
    const int64_t channels = (int64_t)problem->heads * CHANNELS;
    memset(grad_output, 0, (size_t)(problem->queries * channels) * sizeof *grad_output);
    for (int64_t c = 0; c < channels; ++c)
        grad_output[query * channels + c] = 1.0f;
}

/* ---- the scene ------------------------------------------------------------------------------------------------- */

static int pixel_at(double position, int size)
{
    const int pixel = (int)(position * size);
    return pixel < size ? pixel : size - 1;
}

static bool keep_points(msda_scene *scene, const tensors *t, int64_t query)
{
    const int points = scene->problem.levels[0].points;
    scene->num_points = scene->problem.heads * scene->problem.num_levels * points;
    scene->points = malloc((size_t)scene->num_points * sizeof *scene->points);
    if (scene->points == NULL)
        return msda_complain("view: no memory for %d points", scene->num_points);
    for (int k = 0; k < scene->num_points; ++k) {
        const int64_t at = query * scene->num_points + k;
        scene->points[k] = (msda_scene_point){
            .x = t->locations[2 * at],
            .y = t->locations[2 * at + 1],
            .weight = t->weights[at],
            .head = k / (scene->problem.num_levels * points),
            .level = k / points % scene->problem.num_levels,
            .point = k % points,
        };
    }
    return true;
}

static bool keep_heat(msda_scene *scene, const tensors *t)
{
    const int64_t channels = (int64_t)scene->problem.heads * CHANNELS;
    for (int l = 0; l < scene->problem.num_levels; ++l) {
        const msda_level *const level = &scene->problem.levels[l];
        const int64_t area = (int64_t)level->height * level->width;
        scene->heat[l] = calloc((size_t)area, sizeof *scene->heat[l]);
        if (scene->heat[l] == NULL)
            return msda_complain("view: no memory for a heat map");
        for (int64_t i = 0; i < area * channels; ++i)
            scene->heat[l][i / channels] += fabsf(t->grad_value[level->start * channels + i]);
    }
    return true;
}

static bool compute(msda_scene *scene, tensors *t, const msda_photo *photo, const msda_scene_settings *settings)
{
    const msda_problem *const problem = &scene->problem;
    const msda_level *const finest = &problem->levels[0];
    const int row = pixel_at(settings->query_y, finest->height), column = pixel_at(settings->query_x, finest->width);
    const int64_t query = (int64_t)row * finest->width + column;
    scene->query_x = (column + 0.5) / finest->width;
    scene->query_y = (row + 0.5) / finest->height;

    if (!allocate_all(t, problem) || !fill_features(t, problem, photo))
        return false;
    fill_locations(t, problem, settings);
    /* The gradient of a weight is the dot product of what arrives and what its point saw: just the nearness we want. */
    if (!run_backward(problem, t, NULL, t->grad_weights, settings->threads))
        return false;
    attend(t->weights, t->grad_weights, problem);
    choose(t->grad_output, problem, query);
    return run_forward(problem, t, settings->threads) &&
           run_backward(problem, t, t->grad_value, t->grad_weights, settings->threads) &&
           keep_points(scene, t, query) && keep_heat(scene, t);
}

bool msda_scene_compute(msda_scene *scene, const msda_photo *photo, const msda_scene_settings *settings)
{
    tensors t = {0};
    *scene = (msda_scene){0};
    const bool done = describe(&scene->problem, photo, settings) && compute(scene, &t, photo, settings);
    free_all(&t);
    if (!done)
        msda_scene_free(scene);
    return done;
}

void msda_scene_free(msda_scene *scene)
{
    free(scene->points);
    for (int l = 0; l < MSDA_SCENE_MAX_LEVELS; ++l)
        free(scene->heat[l]);
    *scene = (msda_scene){0};
}
