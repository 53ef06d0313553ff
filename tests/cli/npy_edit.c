/* SPDX-License-Identifier: Apache-2.0 */
/*
 * npy_edit IN OUT scale X | swap | roll N | set INDEX X | axes N...: copies a floating-point .npy file as f8, with
 * its numbers scaled, the last axis reversed in pairs, shifted by N places or one of them replaced, or with another
 * shape of as many numbers. Spoils good files for test_tool.
 */
#include "complain.h"
#include "npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tensor {
    int rank;
    int64_t shape[MSDA_NPY_MAX_RANK];
    size_t count;
    double *data;
} tensor;

static tensor read_tensor(const char *path)
{
    msda_npy npy;
    if (!msda_npy_read(&npy, path)) {
        fprintf(stderr, "%s\n", msda_complaint());
        exit(2);
    }
    tensor t = {npy.rank, {0}, npy.count, malloc((npy.count + 1) * sizeof(double))};
    memcpy(t.shape, npy.shape, sizeof t.shape);
    for (size_t i = 0; t.data != NULL && i < npy.count; ++i)
        t.data[i] = msda_npy_float(&npy, i);
    msda_npy_free(&npy);
    return t;
}

static void rotate(tensor *t, size_t places)
{
    double *const copy = malloc((t->count + 1) * sizeof *copy);
    if (copy == NULL)
        exit(2);
    memcpy(copy, t->data, t->count * sizeof *copy);
    for (size_t i = 0; i < t->count; ++i)
        t->data[(i + places) % t->count] = copy[i];
    free(copy);
}

static void edit(tensor *t, int count, char **words)
{
    const char *const action = words[0];
    const double number = count > 1 ? strtod(words[count - 1], NULL) : 0.0;
    if (strcmp(action, "scale") == 0) {
        for (size_t i = 0; i < t->count; ++i)
            t->data[i] *= number;
    } else if (strcmp(action, "swap") == 0) {
        for (size_t i = 0; i + 1 < t->count; i += 2) {
            const double x = t->data[i];
            t->data[i] = t->data[i + 1];
            t->data[i + 1] = x;
        }
    } else if (strcmp(action, "roll") == 0) {
        rotate(t, (size_t)number);
    } else if (strcmp(action, "set") == 0) {
        t->data[strtoul(words[1], NULL, 10)] = number;
    } else if (strcmp(action, "axes") == 0) {
        t->rank = count - 1;
        for (int i = 0; i < t->rank; ++i)
            t->shape[i] = strtol(words[i + 1], NULL, 10);
    } else {
        fprintf(stderr, "npy_edit: what is '%s'?\n", action);
        exit(2);
    }
}

int main(int count, char **words)
{
    if (count < 4)
        return 2;
    tensor t = read_tensor(words[1]);
    if (t.data == NULL)
        return 2;
    edit(&t, count - 3, words + 3);
    const bool written = msda_npy_write(words[2], MSDA_NPY_F8, t.shape, t.rank, t.data);
    free(t.data);
    return written ? 0 : 2;
}
