/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines as tables: one row a flag, which says what its value may be and which field of a struct takes it. */
#ifndef MSDA_ARGUMENTS_H
#define MSDA_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum msda_flag_kind {
    MSDA_FLAG_SWITCH,  /* no value; the field is an int and becomes `lowest` */
    MSDA_FLAG_CHOICE,  /* one of `choices`; the field is an int or an enum and becomes `lowest` + the index */
    MSDA_FLAG_INTEGER, /* lowest..highest; the field is an int */
    MSDA_FLAG_NUMBER,  /* lowest..highest; the field is a double */
    MSDA_FLAG_TEXT     /* anything; the field is a const char *, which points into the words */
} msda_flag_kind;

typedef struct msda_flag {
    const char *name; /* without the dashes; null ends the table */
    msda_flag_kind kind;
    size_t field; /* offset in the struct */
    double lowest;
    double highest;
    const char *const *choices; /* ends with null */
} msda_flag;

/*
 * Puts the value of every flag of words[1..count) where it belongs. The one word that is no flag becomes *operand; a
 * second one, or any where `operand` is null, is refused. Complaints begin with words[0].
 */
bool msda_arguments_parse(int count, char **words, const msda_flag *flags, void *settings, const char **operand);

/* The same for a file of flags separated by blanks, without quoting; a file that is not there holds none. */
bool msda_arguments_parse_file(const char *path, const msda_flag *flags, void *settings);

#endif
