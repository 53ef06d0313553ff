/* SPDX-License-Identifier: Apache-2.0 */
#include "complain.h"

#include <stdarg.h>
#include <stdio.h>

static char complaint[1024];

/* File names and flags are echoed: a line break or an escape sequence in one must not reach the terminal. */
static void mask_control_characters(char *text)
{
    for (; *text != '\0'; ++text)
        if ((unsigned char)*text < ' ' || *text == 127)
            *text = '?';
}

bool msda_complain(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(complaint, sizeof complaint, format, values);
    va_end(values);
    mask_control_characters(complaint);
    return false;
}

const char *msda_complaint(void)
{
    return complaint;
}
