/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The .npy reader against libFuzzer, which needs clang; not part of the test suite. From the repository's root:
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude -Isrc/cli -lm -o fuzz_npy
 *         tests/cli/fuzz_npy.c src/cli/{npy,storage,complain}.c
 *     mkdir corpus && cp tests/golden/one_point/value.npy tests/golden/f64/value.npy corpus && ./fuzz_npy -max_len=512 -max_total_time=300 corpus
 */
#include "npy.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    msda_npy npy;
    if (!msda_npy_parse(&npy, bytes, size, "input"))
        return 0;
    char shape[MSDA_NPY_SHAPE_TEXT_SIZE];
    msda_npy_shape_text(shape, npy.shape, npy.rank);
    volatile double sum = 0.0; /* so that every element is read */
    for (size_t i = 0; i < npy.count; ++i)
        sum = sum + (msda_npy_is_integer(&npy) ? (double)msda_npy_integer(&npy, i) : msda_npy_float(&npy, i));
    return 0;
}
