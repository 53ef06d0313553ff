/* SPDX-License-Identifier: Apache-2.0 */
/* msda view: a picture of where a query looks and of what it teaches. */
#include "arguments.h"
#include "commands.h"
#include "complain.h"
#include "picture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger photos are made smaller first: the picture shows no more, and all their pixels would be queries. */
enum { LONGEST_SIDE = 1024 };

typedef struct view_settings {
    msda_scene_settings scene;
    const char *query;
    const char *out;
} view_settings;

#define FIELD(name) offsetof(view_settings, name)

/* clang-format off */
static const msda_flag flags[] = {
    {"out",     MSDA_FLAG_TEXT,    FIELD(out), 0, 0, NULL},
    {"query",   MSDA_FLAG_TEXT,    FIELD(query), 0, 0, NULL},
    {"noise",   MSDA_FLAG_NUMBER,  FIELD(scene.noise), 0, 1000, NULL},
    {"seed",    MSDA_FLAG_INTEGER, FIELD(scene.seed), 0, 2147483647, NULL},
    {"heads",   MSDA_FLAG_INTEGER, FIELD(scene.heads), 1, 32, NULL},
    {"points",  MSDA_FLAG_INTEGER, FIELD(scene.points), 1, 16, NULL},
    {"levels",  MSDA_FLAG_INTEGER, FIELD(scene.levels), 1, MSDA_SCENE_MAX_LEVELS, NULL},
    {"threads", MSDA_FLAG_INTEGER, FIELD(scene.threads), 0, 4096, NULL},
    {NULL,      MSDA_FLAG_SWITCH,  0, 0, 0, NULL},
};
/* clang-format on */

/* One coordinate: a pixel of the photo as a whole number, or with a decimal point a fraction of its size. */
static bool read_coordinate(const char *text, char end, int size, double *fraction, const char **rest)
{
    char *stop;
    const double number = strtod(text, &stop);
    const bool is_fraction = memchr(text, '.', (size_t)(stop - text)) != NULL;
    *rest = stop + 1;
    *fraction = is_fraction ? number : (number + 0.5) / size;
    return stop != text && *stop == end && *fraction >= 0.0 && *fraction <= 1.0;
}

static bool read_query(view_settings *settings, const msda_photo *photo)
{
    const char *rest;
    if (read_coordinate(settings->query, ',', photo->width, &settings->scene.query_x, &rest) &&
        read_coordinate(rest, '\0', photo->height, &settings->scene.query_y, &rest))
        return true;
    return msda_complain("view: --query: '%s' is not X,Y in pixels 0..%d,0..%d or fractions 0.0..1.0,0.0..1.0",
                         settings->query, photo->width - 1, photo->height - 1);
}

static bool make_smaller(msda_photo *photo)
{
    const int longest = photo->width > photo->height ? photo->width : photo->height;
    if (longest <= LONGEST_SIDE)
        return true;
    msda_photo small;
    const int width = photo->width * LONGEST_SIDE / longest, height = photo->height * LONGEST_SIDE / longest;
    if (!msda_photo_shrink(&small, photo, width > 0 ? width : 1, height > 0 ? height : 1))
        return false;
    msda_photo_free(photo);
    *photo = small;
    return true;
}

static bool draw(const msda_photo *photo, const view_settings *settings)
{
    msda_scene scene;
    if (!msda_scene_compute(&scene, photo, &settings->scene))
        return false;
    const bool written = msda_picture_write(settings->out, photo, &scene);
    if (written)
        printf("%s: %d queries, %d points each\n", settings->out, scene.problem.queries, scene.num_points);
    msda_scene_free(&scene);
    return written;
}

int msda_command_view(int count, char **words)
{
    msda_photo photo = {0};
    const char *path = NULL;
    view_settings settings = {.scene = {.heads = 8, .points = 4, .levels = 4, .noise = 0.0, .seed = 1},
                              .query = "0.5,0.5"};
    if (!msda_arguments_parse(count, words, flags, &settings, &path))
        return MSDA_EXIT_BAD;
    if (path == NULL || settings.out == NULL) {
        msda_complain("view: %s is missing (msda --help)", path == NULL ? "IMAGE.png" : "--out OUT.png");
        return MSDA_EXIT_BAD;
    }
    const bool done = msda_photo_read(&photo, path) && read_query(&settings, &photo) && make_smaller(&photo) &&
                      draw(&photo, &settings);
    msda_photo_free(&photo);
    return done ? MSDA_EXIT_GOOD : MSDA_EXIT_BAD;
}
