/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu_plan.h"

/* Items a thread should find, so that unequal ones balance. */
#define ITEMS_PER_THREAD 2

/* Cutting a level into bands costs a look at all its points for each band, so an image may be large, but not endless. */
#define LARGEST_IMAGE ((int64_t)32 << 20)

#define SMALLEST_BLOCK 16
#define LARGEST_BLOCK  64

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Whole cache lines, so that threads share none. */
static size_t whole_lines(int64_t bytes)
{
    return (size_t)divide_up(bytes, 64) * 64;
}

static int64_t items_without_bands(const msda_shape *shape, int32_t block_channels)
{
    return (int64_t)shape->p.batch * shape->p.heads * divide_up(shape->p.head_dim, block_channels) *
           shape->p.num_levels;
}

static void choose_blocks(msda_cpu_plan *plan, const msda_shape *shape, int64_t wanted)
{
    plan->block_channels = SMALLEST_BLOCK;
    while (plan->block_channels < LARGEST_BLOCK && plan->block_channels < shape->p.head_dim &&
           items_without_bands(shape, 2 * plan->block_channels) >= wanted)
        plan->block_channels *= 2;
    plan->blocks = (int32_t)divide_up(shape->p.head_dim, plan->block_channels);
}

static void choose_bands(msda_cpu_plan *plan, const msda_shape *shape, int64_t wanted)
{
    const int64_t items = items_without_bands(shape, plan->block_channels);
    const int64_t bands_to_balance = items > 0 ? divide_up(wanted, items) : 1;
    plan->first_item[0] = 0;
    for (int l = 0; l < shape->p.num_levels; ++l) {
        const msda_level *level = &shape->p.levels[l];
        const int64_t line_size = (int64_t)level->width * plan->block_channels * (int64_t)sizeof(float);
        const int64_t bands_to_fit = divide_up(level->height * line_size, LARGEST_IMAGE);
        const int64_t bands = bands_to_balance > bands_to_fit ? bands_to_balance : bands_to_fit;
        plan->band_height[l] = (int32_t)divide_up(level->height, bands);
        plan->first_item[l + 1] = plan->first_item[l] + divide_up(level->height, plan->band_height[l]) *
                                                            shape->p.batch * shape->p.heads * plan->blocks;
    }
}

static int64_t largest_image(const msda_cpu_plan *plan, const msda_shape *shape)
{
    int64_t largest = 0;
    for (int l = 0; l < shape->p.num_levels; ++l) {
        const int64_t size =
            (int64_t)plan->band_height[l] * shape->p.levels[l].width * plan->block_channels * (int64_t)sizeof(float);
        largest = size > largest ? size : largest;
    }
    return largest;
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

/* The fused form holds a head's weights and their gradients, and a query's reference gradients. */
static int64_t query_scratch(const msda_cpu_plan *plan, const msda_shape *shape)
{
    return shape->fused ? (2 * plan->padded_points + plan->reference_length) * (int64_t)sizeof(float) : 0;
}

void msda_cpu_plan_backward(msda_cpu_plan *plan, const msda_shape *shape, int threads)
{
    const int64_t wanted = (int64_t)threads * ITEMS_PER_THREAD;
    choose_blocks(plan, shape, threads == 1 ? 0 : wanted);
    choose_bands(plan, shape, threads == 1 ? 0 : wanted);

    plan->padded_points = divide_up(shape->num_points, LARGEST_BLOCK) * LARGEST_BLOCK;
    plan->reference_length = reference_length(shape);
    plan->scratch_offset = plan->scratch_size = plan->workspace_size = 0;
    if (shape->p.value_dtype == MSDA_DTYPE_F64 || shape->p.head_dim == 0)
        return; /* naive needs none */
    const int64_t statistics = shape->fused ? (int64_t)shape->p.batch * shape->p.queries * shape->p.heads : 0;
    const int64_t image = largest_image(plan, shape);
    const int64_t gradients = query_scratch(plan, shape);
    plan->scratch_offset = whole_lines(statistics * 2 * (int64_t)sizeof(float));
    plan->scratch_size = whole_lines(image > gradients ? image : gradients);
    plan->workspace_size = plan->scratch_offset + (size_t)threads * plan->scratch_size;
}

msda_cpu_value_item msda_cpu_find_value_item(const msda_cpu_plan *plan, const msda_shape *shape, int64_t item)
{
    int32_t l = 0;
    while (item >= plan->first_item[l + 1])
        ++l;
    const int64_t heads = shape->p.heads, batch = shape->p.batch;
    const int64_t inside = item - plan->first_item[l];
    const int64_t block = inside % plan->blocks, m = inside / plan->blocks % heads;
    const int64_t n = inside / plan->blocks / heads % batch;
    const int64_t first_line = inside / plan->blocks / heads / batch * plan->band_height[l];
    const int64_t end = first_line + plan->band_height[l], height = shape->p.levels[l].height;
    return (msda_cpu_value_item){.level = l,
                                 .first_line = (int32_t)first_line,
                                 .last_line = (int32_t)(end < height ? end : height),
                                 .n = n,
                                 .m = m,
                                 .first_channel = block * plan->block_channels};
}
