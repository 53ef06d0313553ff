/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that notices stray accesses: it ends at a page that nobody may touch, and canaries fill the rest of its pages,
 * before it and (if its size is no multiple of its alignment) between its end and the guard page.
 */
#ifndef MSDA_TEST_GUARDED_H
#define MSDA_TEST_GUARDED_H

#include <stddef.h>

typedef struct guarded {
    unsigned char *pages;
    size_t pages_size; /* without the guard page behind them */
    unsigned char *data;
    size_t size;
} guarded;

/* `alignment` is a power of two. The data is poisoned: every byte is 0xFF, which is a NaN in every floating-point type. */
guarded guarded_open(size_t size, size_t alignment);
void guarded_close(guarded *memory);

void guarded_poison(guarded *memory);

/* 1 if every canary is alive. */
int guarded_is_intact(const guarded *memory);

#endif
