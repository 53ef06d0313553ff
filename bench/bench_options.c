/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "msda_bench: checks, then times calls of the library at the shapes of published models\n"
    "\n"
    "what runs\n"
    "  --backend cpu|cuda|naive         default cpu\n"
    "  --direction forward|backward|both  default both\n"
    "  --form plain|fused               default plain\n"
    "  --preset NAME[,NAME] | all       default encoder1,decoder; --list shows them; all: those of models\n"
    "  --dtype f32,f16,bf16,f64         of value; default f32 (naive: f64)\n"
    "  --point-dtype f32|value          of locations and weights; default f32 (beside f64: f64)\n"
    "  --accumulate fp32|native|deterministic\n"
    "                                   how grad_value is summed; default fp32\n"
    "  --locations near|uniform|wide|hot[,...]\n"
    "                                   near (default): around the query's place; wide: with 8 pixels of noise;\n"
    "                                   hot: every query on one pixel\n"
    "  --layout pixel|head              value as [pixels][heads] (default) or [heads][pixels]\n"
    "  --threads N[,N]                  cpu; default as many as there are cores; 0: the library's own choice\n"
    "\n"
    "how long\n"
    "  --repeat N                       at least N calls; default 32\n"
    "  --min-time SECONDS               and so long; default 0.2, cuda 0.02\n"
    "  --sets N                         cuda: buffer sets; default at least 3 and more than the L2 cache\n"
    "  --check-points N                 points that the check computes; default 500000 a core\n"
    "\n"
    "what comes out\n"
    "  --csv FILE                       everything, one line a timing\n"
    "  --dump FOLDER                    inputs and results of the last workload as .npy\n"
    "  --dram-gb-s X                    for the DRAM floor; default 4300, a copy measured on an H200\n"
    "  --list                           the presets\n"
    "\n"
    "Exit status: 0; 1 if a check or a call failed; 2 for a wrong command line.\n";

static bool complain(const char *option, const char *text)
{
    fprintf(stderr, "msda_bench: %s: \"%s\" is not understood; see --help\n", option, text);
    return false;
}

/* ---- one item of a list; each returns false if the text is none -------------------------------------------------- */

/* The index of a text among names; -1 if it is none. */
static int index_of(const char *text, const char *const *names, int count)
{
    for (int i = 0; i < count; ++i)
        if (strcmp(text, names[i]) == 0)
            return i;
    return -1;
}

static bool add_preset(bench_options *o, const char *text)
{
    o->shapes[o->num_shapes] = preset_find(text);
    return o->shapes[o->num_shapes++] != NULL;
}

static bool add_dtype(bench_options *o, const char *text)
{
    static const char *const names[] = {"f64", "f32", "f16", "bf16"};
    const int i = index_of(text, names, 4);
    o->dtypes[o->num_dtypes++] = (msda_dtype)(MSDA_DTYPE_F64 + i);
    return i >= 0;
}

static bool add_locations(bench_options *o, const char *text)
{
    const int i = index_of(text, spread_names, SPREAD_COUNT);
    o->locations[o->num_locations++] = (spread)i;
    return i >= 0;
}

static bool read_count(const char *text, long least, int *number)
{
    char *end;
    const long read = strtol(text, &end, 10);
    *number = (int)read;
    return end != text && *end == '\0' && read >= least && read <= 1000000000;
}

static bool add_threads(bench_options *o, const char *text)
{
    return read_count(text, 0, &o->threads[o->num_threads++]);
}

static bool read_list(bench_options *o, const char *text, int *count, bool (*add)(bench_options *, const char *))
{
    char item[64];
    *count = 0;
    for (size_t length; *count < OPTIONS_MAX_LIST; text += length + 1) {
        length = strcspn(text, ",");
        snprintf(item, sizeof item, "%.*s", (int)length, text);
        if (!add(o, item))
            return false;
        if (text[length] == '\0')
            return true;
    }
    return false;
}

/* ---- one option -------------------------------------------------------------------------------------------------- */

static bool read_choice(const char *text, const char *const *names, int count, int *choice)
{
    *choice = index_of(text, names, count);
    return *choice >= 0;
}

static bool read_backend(bench_options *o, const char *text)
{
    int choice;
    if (!read_choice(text, backend_names, BACKEND_COUNT, &choice))
        return false;
    o->on = (backend)choice;
    return true;
}

static bool read_direction(bench_options *o, const char *text)
{
    static const char *const names[] = {"forward", "backward", "both"};
    int choice;
    if (!read_choice(text, names, 3, &choice))
        return false;
    o->directions[0] = choice != 1;
    o->directions[1] = choice != 0;
    return true;
}

static bool read_flag(const char *text, const char *off, const char *on, bool *flag)
{
    *flag = strcmp(text, on) == 0;
    return *flag || strcmp(text, off) == 0;
}

static bool read_form(bench_options *o, const char *text)
{
    return read_flag(text, "plain", "fused", &o->fused);
}

static bool read_layout(bench_options *o, const char *text)
{
    return read_flag(text, "pixel", "head", &o->head_major);
}

static bool read_point_dtype(bench_options *o, const char *text)
{
    return read_flag(text, "f32", "value", &o->point_as_value);
}

static bool read_accumulate(bench_options *o, const char *text)
{
    static const char *const names[] = {"fp32", "native", "deterministic"};
    int choice;
    if (!read_choice(text, names, 3, &choice))
        return false;
    o->accumulate = (msda_accumulate)choice;
    return true;
}

static bool read_presets(bench_options *o, const char *text)
{
    if (strcmp(text, "all") != 0)
        return read_list(o, text, &o->num_shapes, add_preset);
    o->num_shapes = 0;
    for (int i = 0; i < num_presets; ++i)
        if (!presets[i].for_tests)
            o->shapes[o->num_shapes++] = &presets[i];
    return true;
}

static bool read_dtypes(bench_options *o, const char *text)
{
    return read_list(o, text, &o->num_dtypes, add_dtype);
}

static bool read_locations(bench_options *o, const char *text)
{
    return read_list(o, text, &o->num_locations, add_locations);
}

static bool read_threads(bench_options *o, const char *text)
{
    return read_list(o, text, &o->num_threads, add_threads);
}

static bool read_repeat(bench_options *o, const char *text)
{
    return read_count(text, 1, &o->asked.repeat);
}

static bool read_sets(bench_options *o, const char *text)
{
    return read_count(text, 1, &o->min_sets);
}

static bool read_check_points(bench_options *o, const char *text)
{
    int points;
    const bool read = read_count(text, 1, &points);
    o->check_points = points;
    return read;
}

static bool read_number(const char *text, double *number)
{
    char *end;
    *number = strtod(text, &end);
    return end != text && *end == '\0' && *number >= 0.0;
}

static bool read_min_time(bench_options *o, const char *text)
{
    return read_number(text, &o->asked.min_seconds);
}

static bool read_dram(bench_options *o, const char *text)
{
    const bool read = read_number(text, &o->dram_bytes_per_second);
    o->dram_bytes_per_second *= 1e9;
    return read && o->dram_bytes_per_second > 0.0;
}

static bool read_csv(bench_options *o, const char *text)
{
    o->csv_path = text;
    return true;
}

static bool read_dump(bench_options *o, const char *text)
{
    o->dump_path = text;
    return true;
}

static const struct {
    const char *name;
    bool (*read)(bench_options *, const char *);
} table[] = {
    {"--backend", read_backend},
    {"--direction", read_direction},
    {"--form", read_form},
    {"--preset", read_presets},
    {"--dtype", read_dtypes},
    {"--point-dtype", read_point_dtype},
    {"--accumulate", read_accumulate},
    {"--locations", read_locations},
    {"--layout", read_layout},
    {"--threads", read_threads},
    {"--repeat", read_repeat},
    {"--min-time", read_min_time},
    {"--sets", read_sets},
    {"--check-points", read_check_points},
    {"--csv", read_csv},
    {"--dump", read_dump},
    {"--dram-gb-s", read_dram},
};

static bool read_option(bench_options *o, const char *name, const char *text)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; ++i)
        if (strcmp(name, table[i].name) == 0)
            return text != NULL && table[i].read(o, text) ? true : complain(name, text == NULL ? "" : text);
    return complain("command line", name);
}

static void complete(bench_options *o)
{
    if (o->asked.min_seconds < 0.0)
        o->asked.min_seconds = o->on == BACKEND_CUDA ? 0.02 : 0.2;
    if (o->num_dtypes == 0)
        add_dtype(o, o->on == BACKEND_NAIVE ? "f64" : "f32");
}

static bool is_possible(const bench_options *o)
{
    if (o->dump_path != NULL && (o->fused || o->head_major)) {
        fputs("msda_bench: --dump writes the plain form and the pixel layout only\n", stderr);
        return false;
    }
    return true;
}

int bench_options_read(bench_options *options, int argc, char **argv)
{
    *options = (bench_options){.directions = {true, true},
                               .shapes = {preset_find("encoder1"), preset_find("decoder")},
                               .num_shapes = 2,
                               .num_locations = 1,
                               .threads = {(int)sysconf(_SC_NPROCESSORS_ONLN)},
                               .num_threads = 1,
                               .asked = {.repeat = 32, .min_seconds = -1.0},
                               .dram_bytes_per_second = 4.3e12};
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--list") == 0) {
            options->list = true;
            --i;
        } else if (!read_option(options, argv[i], i + 1 < argc ? argv[i + 1] : NULL)) {
            return 2;
        }
    }
    complete(options);
    return is_possible(options) ? -1 : 2;
}

setup bench_options_setup(const bench_options *options, msda_dtype value_dtype, spread locations)
{
    const bool as_value = options->point_as_value || value_dtype == MSDA_DTYPE_F64;
    return (setup){.value_dtype = value_dtype,
                   .point_dtype = as_value ? value_dtype : MSDA_DTYPE_F32,
                   .accumulate = options->accumulate,
                   .locations = locations,
                   .fused = options->fused,
                   .head_major = options->head_major};
}
