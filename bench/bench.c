/* SPDX-License-Identifier: Apache-2.0 */
/* msda_bench: for each preset, locations, dtype, direction and number of threads: check, then time. */
#include "bench_options.h"
#include "dump.h"
#include "report.h"
#include "storage_types.h"

#include <stdlib.h>
#include <unistd.h>

#define POINTS_A_CORE 500000

typedef struct run {
    bench_options options;
    report out;
    int step, steps;
    bool failed;
} run;

static void list_presets(void)
{
    printf("%-24s %5s %7s %5s %8s %9s  %s\n", "preset", "batch", "queries", "heads", "head_dim", "Mpoints",
           "levels (height x width, points)");
    for (const preset *shape = presets; shape < presets + num_presets; ++shape) {
        printf("%-24s %5d %7d %5d %8d %9.3f ", shape->name, shape->batch, preset_queries(shape), shape->heads,
               shape->head_dim, (double)preset_points(shape) * 1e-6);
        for (const preset_grid *level = shape->levels; level->height != 0; ++level)
            printf(" %dx%d,%d", level->height, level->width, level->points);
        putchar('\n');
    }
}

/* One row of the table. */
static bool check_and_time(run *r, stage *s, const reference *right, int threads)
{
    result found = {.w = s->w,
                    .on = s->on,
                    .backward = right->backward,
                    .threads = threads,
                    .heads_checked = right->heads,
                    .heads = right->all_heads};
    report_progress(&r->out, ++r->step, r->steps, s->w->shape, s->w->how.value_dtype,
                    right->backward ? "backward" : "forward");
    if (!stage_rehearse(s, right->backward, threads, &found.measured))
        return false;
    found.check = reference_compare(right);
    if (!found.check.holds) {
        report_failed_check(&r->out, &found);
        return false;
    }
    if (!stage_measure(s, right->backward, threads, r->options.asked, &found.measured))
        return false;
    report_result(&r->out, &found);
    return true;
}

static void bench_direction(run *r, stage *s, bool backward)
{
    reference right;
    report_progress(&r->out, r->step, r->steps, s->w->shape, s->w->how.value_dtype, "reference");
    reference_open(&right, s->w, backward, r->options.check_points);
    for (int i = 0; i < r->options.num_threads; ++i)
        r->failed |= !check_and_time(r, s, &right, r->options.threads[i]);
    reference_close(&right);
}

static void bench_workload(run *r, const preset *shape, const setup *how, const numbers *drawn)
{
    workload w;
    stage s;
    workload_open(&w, shape, how, drawn);
    if (stage_open(&s, &w, r->options.on, r->options.min_sets)) {
        for (int backward = 0; backward < 2; ++backward)
            if (r->options.directions[backward])
                bench_direction(r, &s, backward != 0);
        if (r->options.dump_path != NULL && !dump_workload(&w, r->options.directions, r->options.dump_path))
            r->failed = true;
    } else {
        r->failed = true;
    }
    stage_close(&s);
    workload_close(&w);
}

static void bench_preset(run *r, const preset *shape, spread locations)
{
    numbers drawn;
    report_progress(&r->out, r->step, r->steps, shape, r->options.dtypes[0], "drawing numbers");
    numbers_make(&drawn, shape, locations, r->options.fused);
    for (int i = 0; i < r->options.num_dtypes; ++i) {
        const setup how = bench_options_setup(&r->options, r->options.dtypes[i], locations);
        bench_workload(r, shape, &how, &drawn);
    }
    numbers_free(&drawn);
}

int main(int argc, char **argv)
{
    static run r;
    const bench_options *o = &r.options;
    const int status = bench_options_read(&r.options, argc, argv);
    if (status >= 0)
        return status;
    if (o->list) {
        list_presets();
        return 0;
    }
    if (r.options.check_points == 0)
        r.options.check_points = POINTS_A_CORE * sysconf(_SC_NPROCESSORS_ONLN);
    if (!report_open(&r.out, o->on, o->dram_bytes_per_second, o->csv_path, argc, argv))
        return 1;
    r.steps = o->num_shapes * o->num_locations * o->num_dtypes * (o->directions[0] + o->directions[1]) * o->num_threads;
    for (int i = 0; i < o->num_shapes; ++i)
        for (int j = 0; j < o->num_locations; ++j)
            bench_preset(&r, o->shapes[i], o->locations[j]);
    report_close(&r.out);
    return r.failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
