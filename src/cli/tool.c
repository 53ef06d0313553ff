/* SPDX-License-Identifier: Apache-2.0 */
/* The command-line tool: picks the command, prints the complaint, sets the exit status. docs/tool.md tells the rest. */
#include "commands.h"
#include "complain.h"

#include <msda/msda.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: msda run DIR   [options] [--out OUTDIR]   forward; with grad_output.npy in DIR the gradients too\n"
    "       msda check DIR [options] [--rtol X]       run, then compare with DIR/expected/*.npy\n"
    "       msda info                                 version, build, instruction set, CUDA devices\n"
    "       msda view IMAGE.png --out OUT.png [...]   picture: where a query looks\n"
    "       msda --help | --version\n"
    "\n"
    "run and check; DIR/options may hold the same flags, the command line wins:\n"
    "  --backend naive|cpu|cuda    (default cpu)\n"
    "  --dtype f64|f32|f16|bf16    storage of value, output and their gradients (default: that of value.npy)\n"
    "  --point-dtype f64|f32|f16|bf16   storage of locations and weights (default: f64 beside f64, else f32)\n"
    "  --accumulate fp32|native|deterministic   how grad_value is summed (default fp32)\n"
    "  --padding zeros|border      (default zeros)\n"
    "  --sampling bilinear|discrete   (default bilinear)\n"
    "  --align-corners             (--no-align-corners takes it back)\n"
    "  --anchors                   reference_points are anchors though there are as many as levels (--no-anchors)\n"
    "  --threads N                 of the cpu back end (default 0: as OpenMP has it)\n"
    "  --repeat N                  time N runs: median and spread on standard error\n"
    "  --out OUTDIR                run: write the results there as .npy\n"
    "  --rtol X                    check: pass if ||out-ref|| <= X ||ref||, instead of the table of tolerances\n"
    "\n"
    "view:\n"
    "  --out OUT.png               the picture to write\n"
    "  --query X,Y                 where the query stands: pixels (256,120) or, with a point, fractions (0.5,0.23);\n"
    "                              default: the middle\n"
    "  --noise S                   standard deviation of the offsets' noise in pixels of a level (default 0)\n"
    "  --seed N                    of the noise (default 1)\n"
    "  --heads M --points P --levels L   (default 8, 4, 4)\n"
    "  --threads N\n"
    "\n"
    "exit status: 0 good, 1 a tensor is off, 2 bad usage or bad input\n";

static int print_usage(int count, char **words)
{
    (void)count;
    (void)words;
    fputs(usage, stdout);
    return MSDA_EXIT_GOOD;
}

static int print_version(int count, char **words)
{
    (void)count;
    (void)words;
    const int version = msda_version();
    printf("msda %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
    return MSDA_EXIT_GOOD;
}

static const struct command {
    const char *name;
    char *title; /* what complaints about its arguments begin with */
    int (*run)(int count, char **words);
} commands[] = {
    {"run", "run", msda_command_run},    {"check", "check", msda_command_check},  {"info", "info", msda_command_info},
    {"view", "view", msda_command_view}, {"--help", "help", print_usage},         {"-h", "help", print_usage},
    {"help", "help", print_usage},       {"--version", "version", print_version},
};

static bool asks_for_help(int count, char **words)
{
    for (int i = 2; i < count; ++i)
        if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0)
            return true;
    return false;
}

static int run_command(int count, char **words)
{
    if (count < 2) {
        msda_complain("which command? run, check, info or view (msda --help)");
        return MSDA_EXIT_BAD;
    }
    if (asks_for_help(count, words))
        return print_usage(count, words);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; ++i)
        if (strcmp(words[1], commands[i].name) == 0) {
            words[1] = commands[i].title;
            return commands[i].run(count - 1, words + 1);
        }
    msda_complain("unknown command '%s'; run, check, info or view (msda --help)", words[1]);
    return MSDA_EXIT_BAD;
}

int main(int count, char **words)
{
    int status = run_command(count, words);
    if (status != MSDA_EXIT_BAD && fflush(stdout) != 0) {
        msda_complain("standard output: %s", strerror(errno));
        status = MSDA_EXIT_BAD;
    }
    if (status == MSDA_EXIT_BAD)
        fprintf(stderr, "msda: %s\n", msda_complaint());
    return status;
}
