#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `check_imports.sh LIBRARY`: the CPU library cannot allocate, print or exit, because it imports nothing that does.
set -eu
forbidden='malloc|calloc|realloc|free|aligned_alloc|posix_memalign|mmap|f?printf|v?f?printf|puts|fputs|fputc|putchar|fwrite|write|exit|_exit|abort'
if nm --dynamic --undefined-only --format=posix "$1" | sed 's/[@ ].*//' | grep -Ex "$forbidden"; then
    echo "$1 imports the functions above"
    exit 1
fi
