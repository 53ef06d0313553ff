/* SPDX-License-Identifier: Apache-2.0 */
#include "backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "guarded.h"

#define WORKSPACE_ALIGNMENT 64

const backend *backend_under_test;

static int cpu_threads;

void backend_set_threads(int num_threads)
{
    cpu_threads = num_threads;
}

/* ---- naive ---------------------------------------------------------------------------------------------------- */

static const char *always_available(void)
{
    return NULL;
}

static int takes_f64(msda_dtype value_dtype)
{
    return value_dtype == MSDA_DTYPE_F64;
}

const backend backend_naive = {"naive",
                               always_available,
                               takes_f64,
                               msda_naive_forward,
                               msda_naive_backward,
                               msda_naive_fused_forward,
                               msda_naive_fused_backward};

/* ---- cpu ------------------------------------------------------------------------------------------------------ */

/* A name that this machine lacks is ignored by the library; testing another set under its name would be a lie. */
static const char *cpu_unavailable(void)
{
    static char reason[160];
    const char *asked = getenv("MSDA_CPU_ISA");
    if (asked == NULL || strcmp(asked, msda_cpu_isa()) == 0)
        return NULL;
    snprintf(reason, sizeof reason, "this machine or build has no instruction set \"%s\" (it uses %s)", asked,
             msda_cpu_isa());
    return reason;
}

static int takes_any(msda_dtype value_dtype)
{
    (void)value_dtype;
    return 1;
}

static msda_status cpu_forward(const msda_problem *problem, const msda_forward_args *args)
{
    return msda_cpu_forward(problem, args, cpu_threads);
}

static msda_status cpu_fused_forward(const msda_problem *problem, const msda_fused_forward_args *args)
{
    return msda_cpu_fused_forward(problem, args, cpu_threads);
}

/* Closes the workspace and fails the test if somebody wrote around it. */
static void close_workspace(guarded *workspace)
{
    const int intact = guarded_is_intact(workspace);
    guarded_close(workspace);
    if (!intact)
        fail_msg("%s: bytes around the workspace were written", backend_label());
}

static msda_status cpu_backward(const msda_problem *problem, const msda_backward_args *args)
{
    size_t size = 0;
    msda_status status = msda_cpu_backward_workspace(problem, cpu_threads, &size);
    if (status != MSDA_STATUS_SUCCESS)
        return status;
    guarded workspace = guarded_open(size, WORKSPACE_ALIGNMENT);
    status = msda_cpu_backward(problem, args, workspace.data, size, cpu_threads);
    close_workspace(&workspace);
    return status;
}

static msda_status cpu_fused_backward(const msda_problem *problem, const msda_fused_backward_args *args)
{
    size_t size = 0;
    msda_status status = msda_cpu_fused_backward_workspace(problem, cpu_threads, &size);
    if (status != MSDA_STATUS_SUCCESS)
        return status;
    guarded workspace = guarded_open(size, WORKSPACE_ALIGNMENT);
    status = msda_cpu_fused_backward(problem, args, workspace.data, size, cpu_threads);
    close_workspace(&workspace);
    return status;
}

const backend backend_cpu = {"cpu",        cpu_unavailable,   takes_any,         cpu_forward,
                             cpu_backward, cpu_fused_forward, cpu_fused_backward};

/* ---- the program ---------------------------------------------------------------------------------------------- */

const char *backend_label(void)
{
    static char label[40];
    if (backend_under_test != &backend_cpu)
        return backend_under_test->name;
    snprintf(label, sizeof label, "cpu/%s", msda_cpu_isa());
    return label;
}

void backend_for_each_dtype(void (*test)(msda_dtype value_dtype))
{
    static const msda_dtype dtypes[] = {MSDA_DTYPE_F64, MSDA_DTYPE_F32, MSDA_DTYPE_F16, MSDA_DTYPE_BF16};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; ++i)
        if (backend_under_test->takes(dtypes[i]))
            test(dtypes[i]);
}

static const backend *find_backend(const char *name)
{
    static const backend *const all[] = {&backend_naive, &backend_cpu, &backend_cuda};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

int run_program(int argc, char **argv, const backend *one_backend, const struct CMUnitTest *tests, size_t num_tests)
{
    const char *name = argc > 1 ? argv[1] : one_backend ? one_backend->name : "cpu";
    backend_under_test = find_backend(name);
    if (backend_under_test == NULL || (one_backend && backend_under_test != one_backend)) {
        fprintf(stderr, "%s: no such back end for this test: %s\n", argv[0], name);
        return EXIT_FAILURE;
    }
    const char *reason = backend_under_test->unavailable();
    if (reason) {
        for (size_t i = 0; i < num_tests; ++i)
            printf("[  SKIPPED ] %s on %s: %s\n", tests[i].name, name, reason);
        return EXIT_SKIPPED;
    }
    printf("back end: %s\n", backend_label());
    return _cmocka_run_group_tests(argv[0], tests, num_tests, NULL, NULL) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
