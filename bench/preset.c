/* SPDX-License-Identifier: Apache-2.0 */
#include "preset.h"

#include <string.h>

/* clang-format off */
#define EVERY_PIXEL .anywhere = 0
#define ANYWHERE(n) .anywhere = n
#define GRIDS(...)  .query_grids = {__VA_ARGS__}
#define FOR_TESTS   .anywhere = 0, .for_tests = true
#define PRESET(name_, batch_, heads_, head_dim_, queries_, ...)                                                        \
    {.name = name_, .batch = batch_, .heads = heads_, .head_dim = head_dim_, queries_, .levels = {__VA_ARGS__}},
const preset presets[] = {
#include "shapes.def"
};
/* clang-format on */

const int num_presets = sizeof presets / sizeof presets[0];

const preset *preset_find(const char *name)
{
    for (int i = 0; i < num_presets; ++i)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}

const preset_grid *preset_query_grids(const preset *shape)
{
    if (shape->anywhere != 0)
        return NULL;
    return shape->query_grids[0].height != 0 ? shape->query_grids : shape->levels;
}

int64_t preset_pixels(const preset_grid *grids)
{
    int64_t pixels = 0;
    for (; grids->height != 0; ++grids)
        pixels += (int64_t)grids->height * grids->width;
    return pixels;
}

int32_t preset_queries(const preset *shape)
{
    const preset_grid *grids = preset_query_grids(shape);
    return grids == NULL ? shape->anywhere : (int32_t)preset_pixels(grids);
}

int64_t preset_points_of_head(const preset *shape)
{
    int64_t points = 0;
    for (const preset_grid *level = shape->levels; level->height != 0; ++level)
        points += level->points;
    return points;
}

int64_t preset_points(const preset *shape)
{
    return (int64_t)shape->batch * preset_queries(shape) * shape->heads * preset_points_of_head(shape);
}
