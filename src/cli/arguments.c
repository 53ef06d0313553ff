/* SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"

#include "complain.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FLAGS = 32, MAX_FILE_SIZE = 4096, MAX_FILE_WORDS = MAX_FILE_SIZE / 2 + 2 };

/* getopt_long's answers for our flags lie past every character, so that there are no short options. */
enum { FIRST_FLAG = 256 };

/* ---- values ---------------------------------------------------------------------------------------------------- */

static bool set_choice(const msda_flag *flag, const char *source, const char *value, void *field)
{
    char list[128] = "";
    for (int i = 0; flag->choices[i] != NULL; ++i) {
        if (strcmp(value, flag->choices[i]) == 0) {
            const int chosen = (int)flag->lowest + i;
            memcpy(field, &chosen, sizeof chosen);
            return true;
        }
        const size_t length = strlen(list);
        snprintf(list + length, sizeof list - length, "%s%s", i == 0 ? "" : ", ", flag->choices[i]);
    }
    return msda_complain("%s: --%s: '%s' is none of %s", source, flag->name, value, list);
}

static bool set_number(const msda_flag *flag, const char *source, const char *value, void *field)
{
    char *end;
    errno = 0;
    const double number = flag->kind == MSDA_FLAG_INTEGER ? (double)strtol(value, &end, 10) : strtod(value, &end);
    if (end == value || *end != '\0')
        return msda_complain("%s: --%s: '%s' is not a %snumber", source, flag->name, value,
                             flag->kind == MSDA_FLAG_INTEGER ? "whole " : "");
    if (!(number >= flag->lowest && number <= flag->highest)) /* NaN fails too */
        return msda_complain("%s: --%s: %s is not in %g..%g", source, flag->name, value, flag->lowest, flag->highest);
    const int integer = flag->kind == MSDA_FLAG_INTEGER ? (int)number : 0;
    if (flag->kind == MSDA_FLAG_INTEGER)
        memcpy(field, &integer, sizeof integer);
    else
        memcpy(field, &number, sizeof number);
    return true;
}

static bool set_field(const msda_flag *flag, const char *source, const char *value, void *settings)
{
    void *const field = (char *)settings + flag->field;
    const int on = (int)flag->lowest;
    switch (flag->kind) {
    case MSDA_FLAG_SWITCH:
        memcpy(field, &on, sizeof on);
        return true;
    case MSDA_FLAG_CHOICE:
        return set_choice(flag, source, value, field);
    case MSDA_FLAG_TEXT:
        memcpy(field, &value, sizeof value);
        return true;
    default:
        return set_number(flag, source, value, field);
    }
}

/* ---- words ----------------------------------------------------------------------------------------------------- */

static void list_long_options(const msda_flag *flags, struct option options[MAX_FLAGS])
{
    memset(options, 0, MAX_FLAGS * sizeof *options);
    for (int i = 0; flags[i].name != NULL; ++i) {
        options[i].name = flags[i].name;
        options[i].has_arg = flags[i].kind == MSDA_FLAG_SWITCH ? no_argument : required_argument;
        options[i].val = FIRST_FLAG + i;
    }
}

static bool take_operand(const char *source, const char *word, const char **operand)
{
    if (operand == NULL || *operand != NULL)
        return msda_complain("%s: unexpected argument '%s'", source, word);
    *operand = word;
    return true;
}

bool msda_arguments_parse(int count, char **words, const msda_flag *flags, void *settings, const char **operand)
{
    const char *const source = words[0];
    struct option options[MAX_FLAGS];
    list_long_options(flags, options);
    opterr = 0;
    optind = 0; /* start afresh */
    for (int next; (next = getopt_long(count, words, "-:", options, NULL)) != -1;) {
        bool taken;
        if (next == ':')
            taken = msda_complain("%s: %s needs a value", source, words[optind - 1]);
        else if (next == '?')
            taken = msda_complain("%s: %s %s", source, optopt < FIRST_FLAG ? "unknown flag" : "no value belongs to",
                                  words[optind - 1]);
        else if (next == 1) /* what getopt_long calls a word that is no flag */
            taken = take_operand(source, optarg, operand);
        else
            taken = set_field(&flags[next - FIRST_FLAG], source, optarg, settings);
        if (!taken)
            return false;
    }
    for (; optind < count; ++optind) /* behind "--" */
        if (!take_operand(source, words[optind], operand))
            return false;
    return true;
}

/* ---- files ----------------------------------------------------------------------------------------------------- */

static bool read_text(const char *path, char text[MAX_FILE_SIZE + 1])
{
    FILE *const file = fopen(path, "rb");
    if (file == NULL)
        return msda_complain("%s: %s", path, strerror(errno));
    const size_t size = fread(text, 1, MAX_FILE_SIZE + 1, file);
    const bool failed = ferror(file) != 0;
    fclose(file);
    if (failed)
        return msda_complain("%s: cannot be read", path);
    if (size > MAX_FILE_SIZE)
        return msda_complain("%s: larger than %d bytes", path, MAX_FILE_SIZE);
    if (memchr(text, '\0', size) != NULL)
        return msda_complain("%s: not a text file", path);
    text[size] = '\0';
    return true;
}

bool msda_arguments_parse_file(const char *path, const msda_flag *flags, void *settings)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return true;
    static char text[MAX_FILE_SIZE + 1]; /* static, since texts are kept by pointer */
    if (!read_text(path, text))
        return false;
    char source[1024];
    char *words[MAX_FILE_WORDS] = {source};
    int count = 1;
    snprintf(source, sizeof source, "%s", path);
    for (char *word = strtok(text, " \t\r\n\f\v"); word != NULL; word = strtok(NULL, " \t\r\n\f\v"))
        words[count++] = word;
    return msda_arguments_parse(count, words, flags, settings, NULL);
}
