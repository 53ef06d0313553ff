/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu_plan.h"

#include <stddef.h>

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- tiles of queries -------------------------------------------------------------------------------------------- */

#define TILE_HEIGHT 8
#define TILE_WIDTH  16
#define RUN_LENGTH  8

static int64_t tiles_of_level(const msda_level *level)
{
    return divide_up(level->height, TILE_HEIGHT) * divide_up(level->width, TILE_WIDTH);
}

int64_t msda_cpu_count_tiles(const msda_shape *shape)
{
    if (!shape->queries_are_pixels)
        return divide_up(shape->p.queries, RUN_LENGTH);
    int64_t tiles = 0;
    for (int l = 0; l < shape->p.num_levels; ++l)
        tiles += tiles_of_level(&shape->p.levels[l]);
    return tiles;
}

msda_cpu_tile msda_cpu_find_tile(const msda_shape *shape, int64_t tile)
{
    if (!shape->queries_are_pixels) {
        const int64_t first = tile * RUN_LENGTH;
        return (msda_cpu_tile){first, RUN_LENGTH, 1, (int32_t)smaller(RUN_LENGTH, shape->p.queries - first), NULL};
    }
    const msda_level *level = shape->p.levels;
    for (; tile >= tiles_of_level(level); ++level)
        tile -= tiles_of_level(level);
    const int64_t across = divide_up(level->width, TILE_WIDTH);
    const int64_t x = tile % across * TILE_WIDTH, y = tile / across * TILE_HEIGHT;
    return (msda_cpu_tile){level->start + y * level->width + x, level->width,
                           (int32_t)smaller(TILE_HEIGHT, level->height - y),
                           (int32_t)smaller(TILE_WIDTH, level->width - x), NULL};
}

/* ---- items of the value gradient --------------------------------------------------------------------------------- */

/* Items that a thread should find, so that unequal ones balance. */
#define ITEMS_PER_THREAD 2

#define SMALLEST_BLOCK 16
#define LARGEST_BLOCK  64

int64_t msda_cpu_count_value_items(const msda_cpu_plan *plan, const msda_shape *shape)
{
    return (int64_t)plan->groups * plan->bands * shape->p.batch * plan->head_groups * plan->blocks;
}

static void set_block_channels(msda_cpu_plan *plan, const msda_shape *shape, int32_t block_channels)
{
    plan->block_channels = block_channels;
    plan->blocks = (int32_t)divide_up(shape->p.head_dim, block_channels);
}

/*
 * Cuts until there are enough items: between heads first, which costs least, then between levels, between channels, and
 * between lines last, since each band looks at all points.
 */
static void cut_value_gradient(msda_cpu_plan *plan, const msda_shape *shape, int threads)
{
    const int64_t wanted = threads == 1 ? 1 : (int64_t)threads * ITEMS_PER_THREAD;
    int32_t block_channels = SMALLEST_BLOCK;
    while (block_channels < LARGEST_BLOCK && block_channels < shape->p.head_dim)
        block_channels *= 2;
    plan->groups = plan->bands = 1;
    plan->head_groups = (int32_t)smaller(shape->p.heads, divide_up(wanted, shape->p.batch > 0 ? shape->p.batch : 1));
    set_block_channels(plan, shape, block_channels);
    if (msda_cpu_count_value_items(plan, shape) < wanted && shape->p.num_levels > 1)
        plan->groups = shape->p.num_levels;
    while (msda_cpu_count_value_items(plan, shape) < wanted && plan->block_channels > SMALLEST_BLOCK)
        set_block_channels(plan, shape, plan->block_channels / 2);
    const int64_t items = msda_cpu_count_value_items(plan, shape);
    if (items > 0)
        plan->bands = (int32_t)divide_up(wanted, items);
}

msda_cpu_value_item msda_cpu_find_value_item(const msda_cpu_plan *plan, const msda_shape *shape, int64_t item)
{
    const int64_t block = item % plan->blocks, heads = item / plan->blocks % plan->head_groups;
    const int64_t rest = item / plan->blocks / plan->head_groups;
    const int64_t n = rest % shape->p.batch, band = rest / shape->p.batch % plan->bands;
    const int64_t group = rest / shape->p.batch / plan->bands;
    return (msda_cpu_value_item){.first_level = plan->groups == 1 ? 0 : (int32_t)group,
                                 .last_level = plan->groups == 1 ? shape->p.num_levels : (int32_t)group + 1,
                                 .band = (int32_t)band,
                                 .first_head = (int32_t)(shape->p.heads * heads / plan->head_groups),
                                 .last_head = (int32_t)(shape->p.heads * (heads + 1) / plan->head_groups),
                                 .n = n,
                                 .first_channel = block * plan->block_channels};
}

/* ---- workspace --------------------------------------------------------------------------------------------------- */

/* An image costs a pass over all of grad_value, which pays from about so many points on each of its rows. */
#define POINTS_PER_ROW 4

int msda_cpu_sums_in_image(const msda_shape *shape)
{
    if (shape->p.grad_value_dtype == MSDA_DTYPE_F32)
        return shape->p.queries * shape->num_points >= POINTS_PER_ROW * shape->p.value_length;
    return shape->p.accumulate != MSDA_ACCUMULATE_NATIVE;
}

static int64_t reference_length(const msda_shape *shape)
{
    if (!shape->fused)
        return 0;
    switch (shape->p.reference_kind) {
    case MSDA_REFERENCE_BOXES:
        return 4 * (int64_t)shape->p.num_levels;
    case MSDA_REFERENCE_ANCHORS:
        return 2 * (int64_t)shape->p.num_anchors;
    default:
        return 2 * (int64_t)shape->p.num_levels;
    }
}

/* Bytes of so many f32, in whole cache lines, so that threads share none. */
static size_t whole_lines(int64_t floats)
{
    return (size_t)divide_up(floats, 16) * 64;
}

void msda_cpu_plan_backward(msda_cpu_plan *plan, const msda_shape *shape, int threads)
{
    const msda_problem *p = &shape->p;
    *plan = (msda_cpu_plan){0};
    if (p->value_dtype == MSDA_DTYPE_F64)
        return; /* naive needs none of this */
    cut_value_gradient(plan, shape, threads);
    plan->padded_points = divide_up(shape->num_points, 64) * 64;
    plan->reference_length = reference_length(shape);

    /* Per head: largest logit and inverse sum. Per thread: a head's weights and their gradients, the
     * references of a tile. */
    const int64_t statistics = shape->fused ? (int64_t)p->batch * p->queries * p->heads * 2 : 0;
    const int64_t image = msda_cpu_sums_in_image(shape) ? p->batch * p->value_length * p->heads * p->head_dim : 0;
    const int64_t scratch =
        shape->fused ? 2 * plan->padded_points + TILE_HEIGHT * TILE_WIDTH * plan->reference_length : 0;
    plan->image_offset = whole_lines(statistics);
    plan->scratch_offset = plan->image_offset + whole_lines(image);
    plan->scratch_size = whole_lines(scratch);
    plan->workspace_size = plan->scratch_offset + (size_t)threads * plan->scratch_size;
}
