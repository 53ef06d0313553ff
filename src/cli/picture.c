/* SPDX-License-Identifier: Apache-2.0 */
#include "picture.h"

#include "complain.h"

#include <cairo.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct colour {
    double red, green, blue;
} colour;

typedef struct box {
    double x, y, width, height;
} box;

/* A part of the photo (0..1 across it) and its place on the canvas. */
typedef struct window {
    box part, place;
} window;

/* A picture while it is drawn. Both panels have the same windows, one column apart. */
typedef struct canvas {
    cairo_t *cairo;
    const msda_photo *photo;
    const msda_scene *scene;
    window whole; /* the photo, in the left panel */
    window lens;  /* the finest level's points, magnified, in a corner of it */
    bool has_lens;
    double heaviest; /* weight of the heaviest point */
} canvas;

enum { WIDTH = 1600, MARGIN = 40, COLUMN = (WIDTH - 3 * MARGIN) / 2, HEADER = 124, LEGEND = 132, LENS = 290 };

static const double pi = 3.14159265358979323846;
static const char *const font = "DejaVu Sans";

static const colour background = {0.075, 0.086, 0.110};
static const colour black = {0.0, 0.0, 0.0};
static const colour bright = {0.96, 0.97, 0.98};
static const colour dim = {0.66, 0.70, 0.75};

/* Okabe and Ito's palette, which people with any colour vision tell apart; the finest level first. */
static const colour level_colours[MSDA_SCENE_MAX_LEVELS] = {
    {0.94, 0.89, 0.26}, {0.34, 0.71, 0.91}, {0.90, 0.62, 0.00},
    {0.00, 0.62, 0.45}, {0.80, 0.47, 0.65}, {0.84, 0.37, 0.00},
};

/* Black, through purple and orange, to pale yellow: lightness rises all the way, so it reads without colour too. */
static const colour heat_colours[] = {
    {0.00, 0.00, 0.02}, {0.22, 0.06, 0.42}, {0.58, 0.15, 0.40},
    {0.87, 0.32, 0.23}, {0.99, 0.65, 0.04}, {0.99, 1.00, 0.75},
};

static const double largest_radius = 10.0, smallest_radius = 1.5;

/* ---- strokes --------------------------------------------------------------------------------------------------- */

static void use_colour(cairo_t *cairo, colour c, double opacity)
{
    cairo_set_source_rgba(cairo, c.red, c.green, c.blue, opacity);
}

typedef enum alignment { LEFT, CENTRE, RIGHT } alignment;

static void write_text(cairo_t *cairo, double x, double y, double size, colour c, alignment aligned, const char *text)
{
    cairo_text_extents_t extents;
    cairo_set_font_size(cairo, size);
    cairo_text_extents(cairo, text, &extents);
    use_colour(cairo, c, 1.0);
    cairo_move_to(cairo, x - 0.5 * (double)aligned * extents.x_advance, y);
    cairo_show_text(cairo, text);
}

static void use_weight(cairo_t *cairo, cairo_font_weight_t weight)
{
    cairo_select_font_face(cairo, font, CAIRO_FONT_SLANT_NORMAL, weight);
}

/* Area grows with weight: a dot of twice the weight has twice the ink. */
static double radius_of(const canvas *c, double weight)
{
    return fmax(smallest_radius, largest_radius * sqrt(weight / c->heaviest));
}

static void draw_dot(cairo_t *cairo, double x, double y, double radius, colour c)
{
    cairo_new_path(cairo);
    cairo_arc(cairo, x, y, radius, 0.0, 2.0 * pi);
    use_colour(cairo, c, 1.0);
    cairo_fill_preserve(cairo);
    use_colour(cairo, black, 0.8);
    cairo_set_line_width(cairo, fmin(1.2, 0.35 * radius));
    cairo_stroke(cairo);
}

/* White on a dark edge shows on any photo. */
static void stroke_twice(cairo_t *cairo)
{
    cairo_set_line_width(cairo, 4.0);
    use_colour(cairo, black, 0.6);
    cairo_stroke_preserve(cairo);
    cairo_set_line_width(cairo, 2.0);
    use_colour(cairo, bright, 1.0);
    cairo_stroke(cairo);
}

static void draw_cross(cairo_t *cairo, double x, double y, double reach)
{
    cairo_new_path(cairo);
    cairo_move_to(cairo, x - reach, y);
    cairo_line_to(cairo, x + reach, y);
    cairo_move_to(cairo, x, y - reach);
    cairo_line_to(cairo, x, y + reach);
    stroke_twice(cairo);
}

static void draw_frame(cairo_t *cairo, box where)
{
    cairo_new_path(cairo);
    cairo_rectangle(cairo, where.x, where.y, where.width, where.height);
    stroke_twice(cairo);
}

/* ---- images ---------------------------------------------------------------------------------------------------- */

static uint32_t pack(colour c)
{
    const double channels[3] = {c.red, c.green, c.blue};
    uint32_t pixel = 0;
    for (int i = 0; i < 3; ++i)
        pixel = pixel << 8 | (uint32_t)lround(255.0 * fmin(fmax(channels[i], 0.0), 1.0));
    return pixel;
}

static colour mix(colour a, colour b, double part)
{
    return (colour){a.red + part * (b.red - a.red), a.green + part * (b.green - a.green),
                    a.blue + part * (b.blue - a.blue)};
}

static colour heat_colour(double heat)
{
    const int last = (int)(sizeof heat_colours / sizeof heat_colours[0]) - 1;
    const double position = fmin(fmax(heat, 0.0), 1.0) * last;
    const int i = position < last ? (int)position : last - 1;
    return mix(heat_colours[i], heat_colours[i + 1], position - i);
}

static colour photo_at(const msda_photo *photo, int x, int y)
{
    const float *const pixel = photo->pixels + 3 * ((size_t)y * (size_t)photo->width + (size_t)x);
    return (colour){pixel[0], pixel[1], pixel[2]};
}

/* Bilinear between pixel centres, as the operator samples, but with the border's value outside. */
static double heat_at(const msda_level *level, const float *heat, double x, double y)
{
    const double px = fmin(fmax(x * level->width - 0.5, 0.0), level->width - 1.0);
    const double py = fmin(fmax(y * level->height - 0.5, 0.0), level->height - 1.0);
    const int x0 = (int)px, y0 = (int)py;
    const int x1 = x0 + 1 < level->width ? x0 + 1 : x0, y1 = y0 + 1 < level->height ? y0 + 1 : y0;
    const double fx = px - x0, fy = py - y0;
    const float *const upper = heat + (size_t)y0 * (size_t)level->width;
    const float *const lower = heat + (size_t)y1 * (size_t)level->width;
    return (1.0 - fy) * ((1.0 - fx) * (double)upper[x0] + fx * (double)upper[x1]) +
           fy * ((1.0 - fx) * (double)lower[x0] + fx * (double)lower[x1]);
}

/* The gradients that the levels' pixels at one spot of the photo get, together. */
static double heat_of_levels(const msda_scene *scene, double x, double y)
{
    double heat = 0.0;
    for (int l = 0; l < scene->problem.num_levels; ++l)
        heat += heat_at(&scene->problem.levels[l], scene->heat[l], x, y);
    return heat;
}

typedef struct heat_map {
    double *heat; /* [height][width] of the photo */
    double highest;
} heat_map;

static bool make_heat_map(heat_map *map, const msda_photo *photo, const msda_scene *scene)
{
    map->highest = 0.0;
    map->heat = calloc((size_t)photo->width * (size_t)photo->height, sizeof *map->heat);
    if (map->heat == NULL)
        return msda_complain("view: no memory for a heat map");
    for (int y = 0; y < photo->height; ++y)
        for (int x = 0; x < photo->width; ++x) {
            const double heat = heat_of_levels(scene, (x + 0.5) / photo->width, (y + 0.5) / photo->height);
            map->heat[(size_t)y * (size_t)photo->width + (size_t)x] = heat;
            map->highest = fmax(map->highest, heat);
        }
    return true;
}

/* A root shows the faint reach of the coarse levels beside the peaks of the finest. */
static double tone(const heat_map *map, double heat)
{
    return map->highest > 0.0 ? pow(heat / map->highest, 0.5) : 0.0;
}

static colour glow(const heat_map *map, const msda_photo *photo, int x, int y)
{
    const colour c = photo_at(photo, x, y);
    const double grey = 0.45 * (0.30 * c.red + 0.59 * c.green + 0.11 * c.blue);
    const double heat = tone(map, map->heat[(size_t)y * (size_t)photo->width + (size_t)x]);
    return mix((colour){grey, grey, grey}, heat_colour(heat), fmin(1.0, 2.2 * heat));
}

/* The photo, or with a map its dark shadow under the heat. Null without memory. */
static cairo_surface_t *make_image(const msda_photo *photo, const heat_map *map)
{
    cairo_surface_t *const image = cairo_image_surface_create(CAIRO_FORMAT_RGB24, photo->width, photo->height);
    unsigned char *const pixels = cairo_image_surface_get_data(image);
    const int stride = cairo_image_surface_get_stride(image);
    for (int y = 0; pixels != NULL && y < photo->height; ++y) {
        uint32_t *const row = (uint32_t *)(void *)(pixels + (ptrdiff_t)y * stride);
        for (int x = 0; x < photo->width; ++x)
            row[x] = pack(map == NULL ? photo_at(photo, x, y) : glow(map, photo, x, y));
    }
    cairo_surface_mark_dirty(image);
    return image;
}

/* ---- panels ---------------------------------------------------------------------------------------------------- */

static double canvas_x(const window *w, double x)
{
    return w->place.x + (x - w->part.x) / w->part.width * w->place.width;
}

static double canvas_y(const window *w, double y)
{
    return w->place.y + (y - w->part.y) / w->part.height * w->place.height;
}

static void paint_image(cairo_t *cairo, const window *w, const msda_photo *photo, cairo_surface_t *image)
{
    cairo_save(cairo);
    cairo_translate(cairo, canvas_x(w, 0.0), canvas_y(w, 0.0));
    cairo_scale(cairo, w->place.width / w->part.width / photo->width, w->place.height / w->part.height / photo->height);
    cairo_set_source_surface(cairo, image, 0.0, 0.0);
    cairo_pattern_set_filter(cairo_get_source(cairo), CAIRO_FILTER_GOOD);
    cairo_pattern_set_extend(cairo_get_source(cairo), CAIRO_EXTEND_PAD);
    cairo_paint(cairo);
    cairo_restore(cairo);
}

/* The coarse levels lie below, so that their large dots do not hide the crowd of the finest. */
static void draw_points(const canvas *c, const window *w)
{
    for (int l = c->scene->problem.num_levels - 1; l >= 0; --l)
        for (int k = 0; k < c->scene->num_points; ++k) {
            const msda_scene_point *const point = &c->scene->points[k];
            if (point->level == l)
                draw_dot(c->cairo, canvas_x(w, point->x), canvas_y(w, point->y), radius_of(c, point->weight),
                         level_colours[l]);
        }
}

static void draw_window(const canvas *c, const window *w, cairo_surface_t *image, bool with_points)
{
    cairo_save(c->cairo);
    cairo_rectangle(c->cairo, w->place.x, w->place.y, w->place.width, w->place.height);
    cairo_clip(c->cairo);
    paint_image(c->cairo, w, c->photo, image);
    if (with_points)
        draw_points(c, w);
    cairo_restore(c->cairo);
}

/* The lens, a frame around what it shows, and lines that join the two. */
static void draw_lens(const canvas *c, const window *whole, const window *lens, cairo_surface_t *image,
                      bool with_points)
{
    const double left = canvas_x(whole, lens->part.x), top = canvas_y(whole, lens->part.y);
    const box shown = {left, top, canvas_x(whole, lens->part.x + lens->part.width) - left,
                       canvas_y(whole, lens->part.y + lens->part.height) - top};
    const bool falling = (lens->place.x > left) == (lens->place.y > top);
    cairo_set_line_width(c->cairo, 1.2);
    use_colour(c->cairo, bright, 0.7);
    for (int side = 0; side < 2; ++side) {
        const double right = side, bottom = falling ? 1 - side : side;
        cairo_new_path(c->cairo);
        cairo_move_to(c->cairo, shown.x + right * shown.width, shown.y + bottom * shown.height);
        cairo_line_to(c->cairo, lens->place.x + right * lens->place.width, lens->place.y + bottom * lens->place.height);
        cairo_stroke(c->cairo);
    }
    draw_frame(c->cairo, shown);
    draw_window(c, lens, image, with_points);
    draw_frame(c->cairo, lens->place);
    draw_cross(c->cairo, canvas_x(lens, c->scene->query_x), canvas_y(lens, c->scene->query_y), 8.0);
}

static void draw_panel(const canvas *c, int column, const heat_map *map)
{
    cairo_surface_t *const image = make_image(c->photo, map);
    const bool with_points = map == NULL;
    window whole = c->whole, lens = c->lens;
    whole.place.x += column * (COLUMN + MARGIN);
    lens.place.x += column * (COLUMN + MARGIN);
    draw_window(c, &whole, image, with_points);
    if (c->has_lens)
        draw_lens(c, &whole, &lens, image, with_points);
    else
        draw_cross(c->cairo, canvas_x(&whole, c->scene->query_x), canvas_y(&whole, c->scene->query_y), 8.0);
    cairo_surface_destroy(image);
}

/* ---- words ----------------------------------------------------------------------------------------------------- */

static void write_header(const canvas *c)
{
    char text[256];
    const msda_problem *const problem = &c->scene->problem;
    use_weight(c->cairo, CAIRO_FONT_WEIGHT_BOLD);
    write_text(c->cairo, MARGIN, 58, 32, bright, LEFT, "Where one query looks");
    use_weight(c->cairo, CAIRO_FONT_WEIGHT_NORMAL);
    snprintf(text, sizeof text, "multi-scale deformable attention, %d heads \303\227 %d levels \303\227 %d points",
             problem->heads, problem->num_levels, problem->levels[0].points);
    write_text(c->cairo, WIDTH - MARGIN, 58, 20, dim, RIGHT, text);
    write_text(c->cairo, MARGIN, HEADER - 14, 20, bright, LEFT, "forward: the points that it reads");
    write_text(c->cairo, COLUMN + 2 * MARGIN, HEADER - 14, 20, bright, LEFT,
               "backward: the features that its gradient reaches");
}

enum { LABELS = 225 }; /* width of the words before a row of the legend */

static void write_levels(const canvas *c, double y)
{
    char text[64];
    const msda_problem *const problem = &c->scene->problem;
    const double step = fmin(140.0, (double)(COLUMN - LABELS) / problem->num_levels);
    write_text(c->cairo, MARGIN, y, 17, dim, LEFT, "colour: level");
    for (int l = 0; l < problem->num_levels; ++l) {
        const double x = MARGIN + LABELS + step * l;
        draw_dot(c->cairo, x, y - 6, 8.0, level_colours[l]);
        snprintf(text, sizeof text, "%d\303\227%d", problem->levels[l].width, problem->levels[l].height);
        write_text(c->cairo, x + 14, y, problem->num_levels > 4 ? 14 : 16, bright, LEFT, text);
    }
}

static void write_sizes(const canvas *c, double y)
{
    char text[64];
    write_text(c->cairo, MARGIN, y, 17, dim, LEFT, "area: attention weight");
    for (int i = 0; i < 3; ++i) {
        const double weight = c->heaviest * ldexp(1.0, -2 * i), x = MARGIN + LABELS + 140.0 * i;
        draw_dot(c->cairo, x, y - 6, radius_of(c, weight), dim);
        snprintf(text, sizeof text, "%.2g%%", 100.0 * weight);
        write_text(c->cairo, x + 15, y, 16, bright, LEFT, text);
    }
}

static void write_scale(const canvas *c, double y)
{
    const double left = COLUMN + 2 * MARGIN, width = COLUMN - LABELS;
    write_text(c->cairo, left, y, 17, dim, LEFT, "|gradient of value|");
    for (int i = 0; i < (int)width; ++i) {
        use_colour(c->cairo, heat_colour(i / width), 1.0);
        cairo_rectangle(c->cairo, left + LABELS + i, y - 15, 1.5, 18);
        cairo_fill(c->cairo);
    }
    for (int i = 0; i <= 4; ++i) {
        char text[16];
        snprintf(text, sizeof text, "%g%%", 6.25 * i * i); /* the scale is a square root */
        write_text(c->cairo, left + LABELS + 0.25 * i * width, y + 24, 15, dim,
                   i == 0   ? LEFT
                   : i == 4 ? RIGHT
                            : CENTRE,
                   text);
    }
}

/* ---- layout ---------------------------------------------------------------------------------------------------- */

/* Around the query, as far as the finest level's points go, and inside the photo. */
static box around_query(const canvas *c)
{
    const msda_level *const finest = &c->scene->problem.levels[0];
    const double side = 2.0 * (finest->points + 1.0);
    box part = {0.0, 0.0, side / finest->width, side / finest->height};
    part.x = fmin(fmax(c->scene->query_x - part.width / 2.0, 0.0), 1.0 - part.width);
    part.y = fmin(fmax(c->scene->query_y - part.height / 2.0, 0.0), 1.0 - part.height);
    return part;
}

/* The lens lies in the corner farthest from the query, if it magnifies and leaves enough of the photo to see. */
static void place_lens(canvas *c)
{
    const box place = c->whole.place;
    const double inset = 16.0;
    c->lens.part = around_query(c);
    c->lens.place =
        (box){c->scene->query_x < 0.5 ? place.x + place.width - LENS - inset : place.x + inset,
              c->scene->query_y < 0.5 ? place.y + place.height - LENS - inset : place.y + inset, LENS, LENS};
    c->has_lens = LENS > 2.0 * c->lens.part.width * place.width && LENS > 2.0 * c->lens.part.height * place.height &&
                  place.width > 2.0 * LENS && place.height > 2.0 * LENS;
}

/* Fits both panels in their columns; returns the height of the picture. */
static int place_windows(canvas *c)
{
    const double aspect = (double)c->photo->height / c->photo->width;
    const double width = fmin(COLUMN, 1.2 * COLUMN / aspect), height = width * aspect;
    c->whole.part = (box){0.0, 0.0, 1.0, 1.0};
    c->whole.place = (box){MARGIN + (COLUMN - width) / 2.0, HEADER, width, height};
    place_lens(c);
    return (int)ceil(HEADER + height + LEGEND);
}

static void draw(const canvas *c, const heat_map *map)
{
    const double bottom = c->whole.place.y + c->whole.place.height;
    use_colour(c->cairo, background, 1.0);
    cairo_paint(c->cairo);
    draw_panel(c, 0, NULL);
    draw_panel(c, 1, map);
    write_header(c);
    write_levels(c, bottom + 46);
    write_sizes(c, bottom + 90);
    write_scale(c, bottom + 46);
    write_text(c->cairo, COLUMN + 2 * MARGIN, bottom + 102, 15, dim, LEFT,
               "weights: softmax of likeness in colour; gradient: summed over levels, heads and channels");
}

static cairo_status_t write_bytes(void *file, const unsigned char *bytes, unsigned int size)
{
    return fwrite(bytes, 1, size, file) == size ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

/* Written beside its place and moved there when it is complete. */
static bool write_png(cairo_surface_t *surface, const char *path)
{
    char unfinished[PATH_MAX];
    if (snprintf(unfinished, sizeof unfinished, "%s.part", path) >= PATH_MAX)
        return msda_complain("%.40s...: name too long", path);
    FILE *const file = fopen(unfinished, "wb");
    if (file == NULL)
        return msda_complain("%s: %s", path, strerror(errno));
    const cairo_status_t status = cairo_surface_write_to_png_stream(surface, write_bytes, file);
    if (fclose(file) == 0 && status == CAIRO_STATUS_SUCCESS && rename(unfinished, path) == 0)
        return true;
    msda_complain("%s: %s", path, status == CAIRO_STATUS_SUCCESS ? strerror(errno) : cairo_status_to_string(status));
    unlink(unfinished);
    return false;
}

bool msda_picture_write(const char *path, const msda_photo *photo, const msda_scene *scene)
{
    heat_map map;
    canvas c = {.photo = photo, .scene = scene};
    for (int k = 0; k < scene->num_points; ++k)
        c.heaviest = fmax(c.heaviest, scene->points[k].weight);
    if (!make_heat_map(&map, photo, scene))
        return false;
    cairo_surface_t *const surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, WIDTH, place_windows(&c));
    c.cairo = cairo_create(surface);
    draw(&c, &map);
    cairo_destroy(c.cairo);
    const bool written = write_png(surface, path);
    cairo_surface_destroy(surface);
    free(map.heat);
    return written;
}
