/* SPDX-License-Identifier: Apache-2.0 */
/* The tool's commands. words[0] is "msda COMMAND"; each returns the exit status, 2 with a complaint noted. */
#ifndef MSDA_COMMANDS_H
#define MSDA_COMMANDS_H

enum { MSDA_EXIT_GOOD = 0, MSDA_EXIT_OFF = 1, MSDA_EXIT_BAD = 2 };

int msda_command_run(int count, char **words);
int msda_command_check(int count, char **words);
int msda_command_info(int count, char **words);
int msda_command_view(int count, char **words);

#endif
