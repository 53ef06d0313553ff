/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MSDA_COMPLAIN_H
#define MSDA_COMPLAIN_H

#include <stdbool.h>

/*
 * Notes what is wrong, in one line, and returns false, so that it reads `return msda_complain(...)`. Nothing below main
 * prints errors or exits: whoever fails complains, and the last complaint is what the user sees.
 */
__attribute__((format(printf, 1, 2))) bool msda_complain(const char *format, ...);

const char *msda_complaint(void);

#endif
