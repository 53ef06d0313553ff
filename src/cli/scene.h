/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `msda view` draws. A pyramid of colour features is made from the photo, every pixel of every level is a query
 * with the initial offsets of Deformable-DETR (head m looks along direction m, point p lies p + 1 pixels of the level
 * away), and everything else comes from the library: how alike the query and each of its points are, the forward, and
 * the gradients that start from the chosen query.
 */
#ifndef MSDA_SCENE_H
#define MSDA_SCENE_H

#include "photo.h"

#include <msda/msda.h>

enum { MSDA_SCENE_MAX_LEVELS = 6 };

typedef struct msda_scene_settings {
    int heads, points, levels;
    double noise; /* standard deviation, in pixels of a level */
    int seed;
    int threads;
    double query_x, query_y; /* 0..1 across the photo */
} msda_scene_settings;

typedef struct msda_scene_point {
    double x, y; /* 0..1 across the photo; may lie outside */
    double weight;
    int level, head, point;
} msda_scene_point;

typedef struct msda_scene {
    msda_problem problem;
    double query_x, query_y;  /* the centre of the pixel of level 0 that was chosen */
    msda_scene_point *points; /* of the chosen query: [heads][levels][points] */
    int num_points;
    float *heat
        [MSDA_SCENE_MAX_LEVELS]; /* each level's value gradient: sum of |.| over heads and channels, [height][width] */
} msda_scene;

bool msda_scene_compute(msda_scene *scene, const msda_photo *photo, const msda_scene_settings *settings);
void msda_scene_free(msda_scene *scene);

#endif
