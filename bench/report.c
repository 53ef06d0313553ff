/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "storage_types.h"

#define L1_BYTES_PER_CLOCK 128.0 /* of one multiprocessor: one cache line */

static const char *const accumulate_names[] = {"fp32", "native", "deterministic"};

/* ---- machine ----------------------------------------------------------------------------------------------------- */

static void processor_name(char *name, size_t size)
{
    char line[256];
    snprintf(name, size, "unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "model name", 10) == 0) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(name, size, "%s", line + strcspn(line, ":") + 2);
            break;
        }
    if (file != NULL)
        fclose(file);
}

static bool describe_machine(report *r, char *text, size_t size)
{
    char processor[128], date[32], gpu[320] = "";
    const time_t now = time(NULL);
    processor_name(processor, sizeof processor);
    strftime(date, sizeof date, "%Y-%m-%d", localtime(&now));
    if (r->on_cuda) {
        gpu_facts facts;
        if (!gpu_look(&facts))
            return false;
        r->l1_bytes_per_second = L1_BYTES_PER_CLOCK * facts.multiprocessors * facts.clock_hz;
        snprintf(gpu, sizeof gpu, "%s, %d SM at %.2f GHz, %.0f MB L2; ", facts.name, facts.multiprocessors,
                 facts.clock_hz * 1e-9, (double)facts.l2_bytes * 0x1p-20);
    }
    const int version = msda_version();
    snprintf(text, size, "%s%s, %ld cores, %s; %s; msda %d.%d.%d%s%s", gpu, processor, sysconf(_SC_NPROCESSORS_ONLN),
             msda_cpu_isa(), date, version / 10000, version / 100 % 100, version % 100,
             MSDA_BENCH_REVISION[0] != '\0' ? ", revision " : "", MSDA_BENCH_REVISION);
    return true;
}

/* ---- head and foot ----------------------------------------------------------------------------------------------- */

static const char csv_head[] =
    "preset,backend,form,direction,value_dtype,point_dtype,accumulate,locations,layout,threads,batch,queries,heads,"
    "head_dim,points,median_us,min_us,p90_us,repeats,points_per_s,l1_floor_us,dram_floor_us,gathered_gb_s,"
    "workspace_bytes,growth_bytes,error,tolerance_used,heads_checked,heads_total,kernel\n";

static void write_opening(FILE *to, const char *machine, int argc, char **argv)
{
    fprintf(to, "# machine: %s\n# command: msda_bench", machine);
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], "--csv") != 0 && strcmp(argv[i], "--dump") != 0) /* somebody's folders */
            fprintf(to, " %s %s", argv[i], argv[i + 1]);
    fputc('\n', to);
}

bool report_open(report *r, backend on, double dram_bytes_per_second, const char *csv_path, int argc, char **argv)
{
    char machine[640];
    *r = (report){.on_cuda = on == BACKEND_CUDA,
                  .progress = isatty(STDERR_FILENO),
                  .dram_bytes_per_second = dram_bytes_per_second};
    if (!describe_machine(r, machine, sizeof machine))
        return false;
    if (csv_path != NULL) {
        r->csv = fopen(csv_path, "w");
        if (r->csv == NULL) {
            perror(csv_path);
            return false;
        }
        write_opening(r->csv, machine, argc, argv);
        fputs(csv_head, r->csv);
    }
    write_opening(stdout, machine, argc, argv);
    printf("%-24s %-8s %-4s %-5s %-6s %-7s %3s %11s %11s %11s %9s", "preset", "", "dtype", "points", "sums", "where",
           "thr", "median us", "min us", "p90 us", "Mpoints/s");
    printf(r->on_cuda ? " %6s %6s" : " %6s%.0s", r->on_cuda ? "L1" : "GB/s", "DRAM");
    printf(" %9s %8s\n", "error", "checked");
    fflush(stdout);
    return true;
}

void report_close(report *r)
{
    if (r->csv != NULL)
        fclose(r->csv);
}

/* ---- while it runs ----------------------------------------------------------------------------------------------- */

static void wipe_progress(const report *r)
{
    if (r->progress)
        fputs("\r\033[K", stderr);
}

void report_progress(const report *r, int step, int steps, const preset *shape, msda_dtype dtype, const char *doing)
{
    if (r->progress)
        fprintf(stderr, "\r\033[K[%d/%d] %s %s: %s", step, steps, shape->name, dtype_name(dtype), doing);
}

void report_failed_check(const report *r, const result *found)
{
    wipe_progress(r);
    fflush(stdout);
    fprintf(stderr, "msda_bench: %s %s %s on %s is WRONG: %s is off by %.2e, allowed are %.2e; not timed\n",
            found->w->shape->name, dtype_name(found->w->how.value_dtype), found->backward ? "backward" : "forward",
            backend_names[found->on], agreement_tensor_name(found->check.which), found->check.error,
            found->check.tolerance);
}

static void print_row(const report *r, const result *found)
{
    const setup *how = &found->w->how;
    const timing *t = &found->measured.time;
    const double seconds = t->median_us * 1e-6, gathered = (double)workload_gathered_bytes(found->w);
    char threads[16] = "-", checked[32];
    if (found->on == BACKEND_CPU)
        snprintf(threads, sizeof threads, "%d", found->threads);
    snprintf(checked, sizeof checked, "%d/%d", found->heads_checked, found->heads);
    printf("%-24s %-8s %-5s %-6s %-6.6s %-7s %3s %11.1f %11.1f %11.1f %9.0f", found->w->shape->name,
           found->backward ? "backward" : "forward", dtype_name(how->value_dtype), dtype_name(how->point_dtype),
           found->backward ? accumulate_names[how->accumulate] : "-", spread_names[how->locations], threads,
           t->median_us, t->min_us, t->p90_us, (double)preset_points(found->w->shape) / seconds * 1e-6);
    if (r->on_cuda)
        printf(" %5.1f%% %5.1f%%", 100.0 * gathered / r->l1_bytes_per_second / seconds,
               100.0 * (double)workload_bytes(found->w, found->backward) / r->dram_bytes_per_second / seconds);
    else
        printf(" %6.1f", gathered / seconds * 1e-9);
    printf(" %9.1e %8s\n", found->check.largest, checked);
    fflush(stdout);
}

static void write_csv(const report *r, const result *found)
{
    const workload *w = found->w;
    const setup *how = &w->how;
    const msda_problem *p = &w->problem;
    const measurement *m = &found->measured;
    const double seconds = m->time.median_us * 1e-6, gathered = (double)workload_gathered_bytes(w);
    fprintf(r->csv, "%s,%s,%s,%s,%s,%s,%s,%s,%s,%d,", w->shape->name, backend_names[found->on],
            how->fused ? "fused" : "plain", found->backward ? "backward" : "forward", dtype_name(how->value_dtype),
            dtype_name(how->point_dtype), accumulate_names[how->accumulate], spread_names[how->locations],
            how->head_major ? "head" : "pixel", found->threads);
    fprintf(r->csv, "%d,%d,%d,%d,%lld,%.3f,%.3f,%.3f,%d,%.6g,", p->batch, p->queries, p->heads, p->head_dim,
            (long long)preset_points(w->shape), m->time.median_us, m->time.min_us, m->time.p90_us, m->time.repeats,
            (double)preset_points(w->shape) / seconds);
    if (r->on_cuda)
        fprintf(r->csv, "%.3f,%.3f,", gathered / r->l1_bytes_per_second * 1e6,
                (double)workload_bytes(w, found->backward) / r->dram_bytes_per_second * 1e6);
    else
        fputs(",,", r->csv);
    fprintf(r->csv, "%.3f,%lld,%lld,%.3e,%.3f,%d,%d,%s\n", gathered / seconds * 1e-9, (long long)m->workspace,
            (long long)m->growth, found->check.largest, found->check.error / found->check.tolerance,
            found->heads_checked, found->heads, m->kernel);
    fflush(r->csv);
}

void report_result(const report *r, const result *found)
{
    wipe_progress(r);
    print_row(r, found);
    if (r->csv != NULL)
        write_csv(r, found);
}
