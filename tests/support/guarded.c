/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "guarded.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CANARY 0xC5

guarded guarded_open(size_t size, size_t alignment)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    guarded memory = {0};
    memory.size = size;
    memory.pages_size = (size + alignment + page) / page * page;
    memory.pages = mmap(NULL, memory.pages_size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory.pages == MAP_FAILED || mprotect(memory.pages + memory.pages_size, page, PROT_NONE) != 0) {
        perror("guarded_open");
        abort();
    }
    const uintptr_t end = (uintptr_t)memory.pages + memory.pages_size;
    memory.data = (unsigned char *)((end - size) & ~(uintptr_t)(alignment - 1));
    memset(memory.pages, CANARY, memory.pages_size);
    guarded_poison(&memory);
    return memory;
}

void guarded_close(guarded *memory)
{
    if (memory->pages)
        munmap(memory->pages, memory->pages_size + (size_t)sysconf(_SC_PAGESIZE));
    *memory = (guarded){0};
}

void guarded_poison(guarded *memory)
{
    memset(memory->data, 0xFF, memory->size);
}

static int all_canaries(const unsigned char *first, const unsigned char *last)
{
    while (first < last)
        if (*first++ != CANARY)
            return 0;
    return 1;
}

int guarded_is_intact(const guarded *memory)
{
    return all_canaries(memory->pages, memory->data) &&
           all_canaries(memory->data + memory->size, memory->pages + memory->pages_size);
}
