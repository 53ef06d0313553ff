/* SPDX-License-Identifier: Apache-2.0 */
#include "numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *const spread_names[SPREAD_COUNT] = {"near", "uniform", "wide", "hot"};

void *numbers_allocate(int64_t size)
{
    void *memory = malloc(size > 0 ? (size_t)size : 1);
    if (memory == NULL) {
        fprintf(stderr, "msda_bench: no memory for %lld bytes\n", (long long)size);
        exit(1);
    }
    return memory;
}

/* ---- random bits: splitmix64 of a counter, so that any thread can draw any element ------------------------------- */

static uint64_t draw(uint64_t stream, uint64_t counter)
{
    uint64_t x = (stream << 56) + (counter + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

enum { STREAM_TABLE, STREAM_VALUE, STREAM_GRAD_OUTPUT, STREAM_POINT, STREAM_PLACE };

static float unit_interval(uint64_t bits24)
{
    return ((float)(bits24 & 0xFFFFFF) + 0.5f) * 0x1p-24f;
}

/* ---- normal numbers: 16 bits pick one of a fixed sample, which is far faster than a logarithm each --------------- */

#define SAMPLE_SIZE 65536
static float normal_sample[SAMPLE_SIZE];
static float exp_sample[SAMPLE_SIZE]; /* exp(normal_sample) */

static void make_samples(void)
{
    if (exp_sample[0] != 0.0f)
        return;
    for (int i = 0; i < SAMPLE_SIZE; ++i) {
        const uint64_t bits = draw(STREAM_TABLE, (uint64_t)i);
        const double radius = sqrt(-2.0 * log(unit_interval(bits)));
        normal_sample[i] = (float)(radius * cos(6.283185307179586 * unit_interval(bits >> 24)));
        exp_sample[i] = expf(normal_sample[i]);
    }
}

static void fill_normal(float *to, int64_t count, uint64_t stream)
{
#pragma omp parallel for schedule(static)
    for (int64_t four = 0; four < (count + 3) / 4; ++four) {
        const uint64_t bits = draw(stream, (uint64_t)four);
        for (int64_t i = 4 * four; i < 4 * four + 4 && i < count; ++i)
            to[i] = normal_sample[bits >> (16 * (i & 3)) & 0xFFFF];
    }
}

/* ---- places and points ------------------------------------------------------------------------------------------- */

typedef struct place {
    float x, y;
} place;

/* Normalised: 0..1 from edge to edge. */
static place place_of_query(const preset *shape, int64_t batch_item, int64_t query)
{
    const preset_grid *grid = preset_query_grids(shape);
    if (grid == NULL) {
        const uint64_t bits = draw(STREAM_PLACE, (uint64_t)(batch_item * preset_queries(shape) + query));
        return (place){unit_interval(bits), unit_interval(bits >> 24)};
    }
    for (; query >= (int64_t)grid->height * grid->width; ++grid)
        query -= (int64_t)grid->height * grid->width;
    return (place){((float)(query % grid->width) + 0.5f) / (float)grid->width,
                   ((float)(query / grid->width) + 0.5f) / (float)grid->height};
}

/* Deformable-DETR's initial offsets: heads look in directions around the circle, scaled to the unit square. */
static place direction_of_head(int head, int heads)
{
    const float angle = 6.2831853f * (float)head / (float)heads;
    const float x = cosf(angle), y = sinf(angle), longest = fmaxf(fabsf(x), fabsf(y));
    return (place){x / longest, y / longest};
}

/*
 * Moves a pixel position off the integers. There the location gradient jumps, and a rounding error would decide which
 * of two right answers comes out; the check could then not be strict.
 */
static float off_the_knot(float position)
{
    return fabsf(position - rintf(position)) < 0x1p-10f ? position + 0x1p-9f : position;
}

typedef struct aim {
    spread locations;
    place query, direction;
    int64_t first_point; /* counts all points of the call: the stream's counter */
} aim;

/* The pixel position of one point. */
static place sample_place(const aim *at, const preset_grid *level, int point, uint64_t bits)
{
    const float width = (float)level->width, height = (float)level->height;
    const float noise = at->locations == SPREAD_WIDE ? 8.0f : 1.0f;
    place pixel = {0.0f, 0.0f};
    switch (at->locations) {
    case SPREAD_UNIFORM:
        pixel = (place){unit_interval(bits) * width - 0.5f, unit_interval(bits >> 24) * height - 0.5f};
        break;
    case SPREAD_HOT:
        pixel = (place){floorf(width / 2) + 0.25f, floorf(height / 2) + 0.25f};
        break;
    case SPREAD_NEAR:
    case SPREAD_WIDE:
        pixel.x =
            at->query.x * width - 0.5f + at->direction.x * (float)(point + 1) + noise * normal_sample[bits & 0xFFFF];
        pixel.y = at->query.y * height - 0.5f + at->direction.y * (float)(point + 1) +
                  noise * normal_sample[bits >> 24 & 0xFFFF];
    }
    return (place){off_the_knot(pixel.x), off_the_knot(pixel.y)};
}

static void normalise(float *weights, int64_t count)
{
    float sum = 0.0f;
    for (int64_t k = 0; k < count; ++k)
        sum += weights[k];
    for (int64_t k = 0; k < count; ++k)
        weights[k] /= sum;
}

static void make_head(numbers *made, const preset *shape, const aim *at, bool fused)
{
    int64_t k = at->first_point;
    for (const preset_grid *level = shape->levels; level->height != 0; ++level)
        for (int point = 0; point < level->points; ++point, ++k) {
            const uint64_t bits = draw(STREAM_POINT, (uint64_t)k);
            const place pixel = sample_place(at, level, point, bits);
            const float x = (pixel.x + 0.5f) / (float)level->width, y = (pixel.y + 0.5f) / (float)level->height;
            made->locations[2 * k] = fused ? (x - at->query.x) * (float)level->width : x;
            made->locations[2 * k + 1] = fused ? (y - at->query.y) * (float)level->height : y;
            made->weights[k] = (fused ? normal_sample : exp_sample)[bits >> 48];
        }
    if (!fused)
        normalise(made->weights + at->first_point, k - at->first_point);
}

static void make_points(numbers *made, const preset *shape, spread locations, bool fused)
{
    const int64_t queries = preset_queries(shape), points = preset_points_of_head(shape);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < shape->batch * queries; ++row)
        for (int head = 0; head < shape->heads; ++head) {
            const aim at = {locations, place_of_query(shape, row / queries, row % queries),
                            direction_of_head(head, shape->heads), (row * shape->heads + head) * points};
            make_head(made, shape, &at, fused);
        }
}

static void make_references(numbers *made, const preset *shape)
{
    const int64_t queries = preset_queries(shape);
    int levels = 0;
    while (shape->levels[levels].height != 0)
        ++levels;
    made->references = numbers_allocate(shape->batch * queries * levels * 2 * (int64_t)sizeof(float));
    for (int64_t i = 0; i < shape->batch * queries * levels; ++i) {
        const int64_t row = i / levels;
        const place query = place_of_query(shape, row / queries, row % queries);
        made->references[2 * i] = query.x;
        made->references[2 * i + 1] = query.y;
    }
}

void numbers_make(numbers *made, const preset *shape, spread locations, bool fused)
{
    const int64_t element = sizeof(float);
    make_samples();
    *made = (numbers){0};
    made->num_value = shape->batch * preset_pixels(shape->levels) * shape->heads * shape->head_dim;
    made->num_output = (int64_t)shape->batch * preset_queries(shape) * shape->heads * shape->head_dim;
    made->num_points = preset_points(shape);
    made->value = numbers_allocate(made->num_value * element);
    made->grad_output = numbers_allocate(made->num_output * element);
    made->locations = numbers_allocate(made->num_points * 2 * element);
    made->weights = numbers_allocate(made->num_points * element);
    fill_normal(made->value, made->num_value, STREAM_VALUE);
    fill_normal(made->grad_output, made->num_output, STREAM_GRAD_OUTPUT);
    make_points(made, shape, locations, fused);
    if (fused)
        make_references(made, shape);
}

void numbers_free(numbers *made)
{
    free(made->value);
    free(made->grad_output);
    free(made->locations);
    free(made->weights);
    free(made->references);
    *made = (numbers){0};
}
