/* SPDX-License-Identifier: Apache-2.0 */
/* msda info: what this build is and what it finds on this machine. */
#include "commands.h"
#include "complain.h"
#include "device.h"

#include <msda/msda.h>

#include <stdio.h>
#include <stdlib.h>

static void print_devices(void)
{
    int count = 0;
    if (msda_cuda_device_count(&count) != MSDA_STATUS_SUCCESS) {
        printf("cuda devices         none: %s\n", msda_last_error());
        return;
    }
    printf("cuda devices         %d\n", count);
    for (int i = 0; i < count; ++i) {
        char text[320];
        printf("  device %-10d  %s\n", i, msda_device_cuda->describe(i, text, sizeof text) ? text : msda_complaint());
    }
}

int msda_command_info(int count, char **words)
{
    if (count > 1) {
        msda_complain("%s: unexpected argument '%s'", words[0], words[1]);
        return MSDA_EXIT_BAD;
    }
    const char *const wanted_isa = getenv("MSDA_CPU_ISA");
    const int version = msda_version();
    printf("version              %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
    printf("build                %s\n", MSDA_CLI_BUILD);
    printf("cpu instruction set  %s%s%s\n", msda_cpu_isa(), wanted_isa != NULL ? ", MSDA_CPU_ISA=" : "",
           wanted_isa != NULL ? wanted_isa : "");
    printf("cuda                 %s%s\n", msda_device_cuda != NULL ? "built for compute capability " : "not built",
           msda_cuda_architectures());
    if (msda_device_cuda != NULL)
        print_devices();
    printf("view                 %s\n", MSDA_CLI_HAS_VIEW ? "built" : "not built: libpng and cairo were missing");
    return MSDA_EXIT_GOOD;
}
