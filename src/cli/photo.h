/* SPDX-License-Identifier: Apache-2.0 */
/* A photo in memory: read from any PNG, and made smaller. */
#ifndef MSDA_PHOTO_H
#define MSDA_PHOTO_H

#include <stdbool.h>
#include <stddef.h>

/* Red, green, blue, 0..1 as the PNG has them; [height][width][3]. */
typedef struct msda_photo {
    int width, height;
    float *pixels;
} msda_photo;

/* Any colour type and depth; transparent parts lie on white. */
bool msda_photo_read(msda_photo *photo, const char *path);

/* The mean colour of each of width x height equal rectangles of the original. */
bool msda_photo_shrink(msda_photo *small, const msda_photo *original, int width, int height);

void msda_photo_free(msda_photo *photo);

#endif
