/* SPDX-License-Identifier: Apache-2.0 */
/* Draws a scene: the photo with the query's points beside the heat map of the value gradient, with a legend. */
#ifndef MSDA_PICTURE_H
#define MSDA_PICTURE_H

#include "scene.h"

/* Writes a PNG, whole or not at all. */
bool msda_picture_write(const char *path, const msda_photo *photo, const msda_scene *scene);

#endif
