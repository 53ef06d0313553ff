/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The back end as a parameter: the same test source runs on naive, cpu (with the instruction set that MSDA_CPU_ISA asks
 * for) and cuda. Every function takes tensors in host memory, whatever the back end computes on; workspaces are the
 * adapter's business (they are exactly as large as the library asks for, guarded and poisoned).
 *
 * A test program is started as `PROGRAM [naive|cpu|cuda]`, by default cpu.
 */
#ifndef MSDA_TEST_BACKEND_H
#define MSDA_TEST_BACKEND_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <msda/msda.h>

typedef struct backend {
    const char *name;
    /* Why it cannot run here; null if it can. */
    const char *(*unavailable)(void);
    /* naive takes f64 only. */
    int (*takes)(msda_dtype value_dtype);
    msda_status (*forward)(const msda_problem *problem, const msda_forward_args *args);
    msda_status (*backward)(const msda_problem *problem, const msda_backward_args *args);
    msda_status (*fused_forward)(const msda_problem *problem, const msda_fused_forward_args *args);
    msda_status (*fused_backward)(const msda_problem *problem, const msda_fused_backward_args *args);
} backend;

extern const backend backend_naive;
extern const backend backend_cpu;
extern const backend backend_cuda; /* in a build without CUDA it is unavailable */

/* The back end under test; set by run_program(). */
extern const backend *backend_under_test;

/* "cpu/avx2" and the like: for messages. */
const char *backend_label(void);

/* Runs a test once with each value dtype that the back end takes. */
void backend_for_each_dtype(void (*test)(msda_dtype value_dtype));

/* Threads for backend_cpu from here on; 0 (the default) is the library's own choice. */
void backend_set_threads(int num_threads);

/* The exit status that ctest counts as "skipped". */
#define EXIT_SKIPPED 77

/*
 * main() of a test program: picks the back end from the command line and runs the tests; where the back end cannot run,
 * names every test that is skipped, says why, and returns EXIT_SKIPPED. `one_backend` (null: any) is for programs that make
 * sense on one alone.
 */
int run_program(int argc, char **argv, const backend *one_backend, const struct CMUnitTest *tests, size_t num_tests);

#define RUN_PROGRAM(argc, argv, one_backend, tests)                                                                    \
    run_program(argc, argv, one_backend, tests, sizeof(tests) / sizeof(tests)[0])

#endif
