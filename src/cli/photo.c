/* SPDX-License-Identifier: Apache-2.0 */
#include "photo.h"

#include "complain.h"

#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LARGEST_SIDE = 32768, LARGEST_AREA = 1 << 27 };

static bool allocate(msda_photo *photo, int width, int height)
{
    photo->width = width;
    photo->height = height;
    photo->pixels = malloc((size_t)width * (size_t)height * 3 * sizeof *photo->pixels);
    return photo->pixels != NULL || msda_complain("no memory for a photo of %d x %d pixels", width, height);
}

static bool decode(msda_photo *photo, png_image *image, const char *path)
{
    static const png_color white = {255, 255, 255};
    image->format = PNG_FORMAT_RGB;
    if (image->width > LARGEST_SIDE || image->height > LARGEST_SIDE ||
        (size_t)image->width * image->height > LARGEST_AREA)
        return msda_complain("%s: %u x %u pixels are too many", path, image->width, image->height);
    const size_t count = (size_t)image->width * image->height * 3;
    unsigned char *const bytes = malloc(count);
    bool decoded = bytes != NULL && allocate(photo, (int)image->width, (int)image->height);
    if (!decoded)
        msda_complain("%s: no memory for %u x %u pixels", path, image->width, image->height);
    else if (!png_image_finish_read(image, &white, bytes, 0, NULL))
        decoded = msda_complain("%s: %s", path, image->message);
    for (size_t i = 0; decoded && i < count; ++i)
        photo->pixels[i] = (float)bytes[i] / 255.0f;
    free(bytes);
    return decoded;
}

bool msda_photo_read(msda_photo *photo, const char *path)
{
    struct stat status;
    *photo = (msda_photo){0};
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return msda_complain("%s: not a regular file", path);
    png_image image = {.version = PNG_IMAGE_VERSION};
    if (!png_image_begin_read_from_file(&image, path))
        return msda_complain("%s: %s", path, image.message);
    const bool decoded = decode(photo, &image, path);
    png_image_free(&image);
    if (!decoded)
        msda_photo_free(photo);
    return decoded;
}

/* How much of pixel `i` lies in first..last, which are positions on the same axis. */
static double overlap(int i, double first, double last)
{
    return fmax(0.0, fmin(i + 1.0, last) - fmax(i, first));
}

static void average(float mean[3], const msda_photo *original, double left, double right, double top, double bottom)
{
    double sum[3] = {0}, area = 0.0;
    for (int y = (int)top; y < original->height && y < bottom; ++y)
        for (int x = (int)left; x < original->width && x < right; ++x) {
            const float *const pixel = original->pixels + 3 * ((size_t)y * (size_t)original->width + (size_t)x);
            const double part = overlap(x, left, right) * overlap(y, top, bottom);
            for (int c = 0; c < 3; ++c)
                sum[c] += part * pixel[c];
            area += part;
        }
    for (int c = 0; c < 3; ++c)
        mean[c] = (float)(sum[c] / area);
}

bool msda_photo_shrink(msda_photo *small, const msda_photo *original, int width, int height)
{
    if (!allocate(small, width, height))
        return false;
    const double step_x = (double)original->width / width, step_y = (double)original->height / height;
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x)
            average(small->pixels + 3 * ((size_t)y * (size_t)width + (size_t)x), original, x * step_x, (x + 1) * step_x,
                    y * step_y, (y + 1) * step_y);
    return true;
}

void msda_photo_free(msda_photo *photo)
{
    free(photo->pixels);
    *photo = (msda_photo){0};
}
