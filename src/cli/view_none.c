/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for command_view.c in a tool without libpng or cairo. */
#include "commands.h"
#include "complain.h"

int msda_command_view(int count, char **words)
{
    (void)count;
    msda_complain("%s: this msda was built without libpng and cairo", words[0]);
    return MSDA_EXIT_BAD;
}
