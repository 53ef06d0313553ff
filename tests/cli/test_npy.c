/* SPDX-License-Identifier: Apache-2.0 */
/* The .npy reader: what it reads, and that everything else is refused with a word of what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "complain.h"
#include "npy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct file {
    unsigned char bytes[4096];
    size_t size;
} file;

static void append(file *f, const void *bytes, size_t size)
{
    assert_true(f->size + size <= sizeof f->bytes);
    memcpy(f->bytes + f->size, bytes, size);
    f->size += size;
}

/* A file of the version with this header and data_size bytes 0, 1, 2... behind it. */
static file make_file(int version, const char *header, size_t data_size)
{
    file f = {.size = 0};
    const size_t length = strlen(header);
    const unsigned char preamble[] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)version, 0, (unsigned char)length, (unsigned char)(length >> 8),
        0,    0};
    append(&f, preamble, version == 1 ? 10 : 12);
    append(&f, header, length);
    for (size_t i = 0; i < data_size; ++i)
        append(&f, &(unsigned char){(unsigned char)i}, 1);
    return f;
}

static bool parse(msda_npy *npy, const file *f)
{
    /* A copy of the very size, so that the address sanitizer sees a read past the end. */
    unsigned char *const bytes = malloc(f->size + (f->size == 0));
    assert_non_null(bytes);
    memcpy(bytes, f->bytes, f->size);
    const bool parsed = msda_npy_parse(npy, bytes, f->size, "NAME");
    if (parsed && npy->count > 0)
        (void)(msda_npy_is_integer(npy) ? (double)msda_npy_integer(npy, npy->count - 1)
                                        : msda_npy_float(npy, npy->count - 1));
    free(bytes);
    return parsed;
}

static void expect_refusal(const file *f, const char *what, const char *reason)
{
    msda_npy npy;
    if (parse(&npy, f))
        fail_msg("%s: not refused", what);
    if (strncmp(msda_complaint(), "NAME: ", 6) != 0 || strstr(msda_complaint(), reason) == NULL)
        fail_msg("%s: complaint '%s' does not say '%s'", what, msda_complaint(), reason);
}

/* ---- refused --------------------------------------------------------------------------------------------------- */

static void refuses_hostile_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header, *reason;
    } cases[] = {
        {"", "'{' expected"},
        {"{", "quoted string"},
        {"{}", "once"},
        {"[]", "'{' expected"},
        {"{'descr': '<f4', 'fortran_order': False}", "once"},
        {"{'descr': '<f4', 'shape': (1,)}", "once"},
        {"{'fortran_order': False, 'shape': (1,)}", "once"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "once"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", "once"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", "nothing but blanks"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)", "comma or '}'"},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}", "comma or '}'"},
        {"{'descr' '<f4', 'fortran_order': False, 'shape': (1,)}", "':' expected"},
        {"{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}", "type '<f4, '"},
        {"{'descr': '<f4", "end of a string"},
        {"{'descr': >f4, 'fortran_order': False, 'shape': (1,)}", "quoted string"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", "big-endian"},
        {"{'descr': '>i8', 'fortran_order': False, 'shape': (1,)}", "big-endian"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (1,)}", "type '|b1'"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "type '|O'"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", "type '<c8'"},
        {"{'descr': '<u4', 'fortran_order': False, 'shape': (1,)}", "type '<u4'"},
        {"{'descr': '<f16', 'fortran_order': False, 'shape': (1,)}", "type '<f16'"},
        {"{'descr': '', 'fortran_order': False, 'shape': (1,)}", "type ''"},
        {"{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,)}", "structured"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", "Fortran order"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "True or False"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 1}", "parentheses"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1)}", "comma"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (,)}", "a size"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}", "comma"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, x)}", "a size"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1.5,)}", "comma"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "negative"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1)}", "more than 8 axes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,)}", "past 2^63"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999999,)}", "past 2^63"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807,)}", "too large"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", "too large"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (65536, 65536, 65536, 65536)}", "too large"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", "truncated"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", "truncated"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (1,)}", "trailing bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}", "trailing bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9223372036854775807)}", "trailing bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const file f = make_file(1, cases[i].header, 4);
        expect_refusal(&f, cases[i].header, cases[i].reason);
    }
}

static void refuses_hostile_preambles(void **state)
{
    (void)state;
    static const char header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}";
    const file good = make_file(1, header, 4);
    file f = good;
    f.bytes[1] = 'n';
    expect_refusal(&f, "wrong magic", "not a .npy file");
    for (size_t size = 0; size < 10; ++size) {
        f = good;
        f.size = size;
        expect_refusal(&f, "cut in the preamble", "not a .npy file");
    }
    for (size_t size = 10; size < 10 + strlen(header); ++size) {
        f = good;
        f.size = size;
        expect_refusal(&f, "cut in the header", "truncated header");
    }
    for (size_t size = 10 + strlen(header); size < good.size; ++size) {
        f = good;
        f.size = size;
        expect_refusal(&f, "cut in the data", "truncated: the header promises 4 bytes");
    }
    f = good;
    f.bytes[9] = 0xFF;
    expect_refusal(&f, "header longer than the file", "truncated header");
    f = make_file(2, header, 4);
    memset(f.bytes + 8, 0xFF, 4);
    expect_refusal(&f, "header of 4 GiB", "truncated header");
    f.size = 11;
    expect_refusal(&f, "cut in the length", "truncated header");
    for (int version = 0; version < 256; version += version == 0 ? 4 : 63) {
        f = good;
        f.bytes[6] = (unsigned char)version;
        expect_refusal(&f, "unknown version", "version");
    }
    f = good;
    f.bytes[7] = 1;
    expect_refusal(&f, "unknown minor version", "version 1.1");
}

static void refuses_what_is_no_file(void **state)
{
    (void)state;
    msda_npy npy;
    assert_false(msda_npy_read(&npy, "no/such/file.npy"));
    assert_non_null(strstr(msda_complaint(), "no/such/file.npy: No such file"));
    msda_npy_free(&npy);
    assert_false(msda_npy_read(&npy, "/"));
    assert_non_null(strstr(msda_complaint(), "not a regular file"));
    assert_false(msda_npy_read(&npy, "/dev/zero"));
    assert_non_null(strstr(msda_complaint(), "not a regular file"));
    const double one = 1.0;
    assert_false(msda_npy_write("no/such/folder.npy", MSDA_NPY_F4, NULL, 0, &one));
    assert_non_null(strstr(msda_complaint(), "no/such/folder.npy"));
}

/* ---- read ------------------------------------------------------------------------------------------------------ */

static void reads_every_type(void **state)
{
    (void)state;
    static const struct {
        const char *descr;
        unsigned char bytes[8];
        size_t size;
        double value;
    } cases[] = {
        {"<f2", {0x00, 0x3C}, 2, 1.0},
        {"<f2", {0xFF, 0xFB}, 2, -65504.0},
        {"<f2", {0x01, 0x00}, 2, 0x1p-24},
        {"<f4", {0x00, 0x00, 0x80, 0xBF}, 4, -1.0},
        {"<f4", {0x01, 0x00, 0x00, 0x00}, 4, 0x1p-149},
        {"<f8", {0, 0, 0, 0, 0, 0, 0xF8, 0x3F}, 8, 1.5},
        {"<i4", {0xFE, 0xFF, 0xFF, 0xFF}, 4, -2.0},
        {"<i8", {0, 0, 0, 0, 1, 0, 0, 0}, 8, 4294967296.0},
        {"<i8", {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, 8, -1.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char header[128];
        msda_npy npy;
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (1, 1), }", cases[i].descr);
        file f = make_file(1, header, 0);
        append(&f, cases[i].bytes, cases[i].size);
        assert_true(msda_npy_parse(&npy, f.bytes, f.size, "NAME"));
        assert_int_equal(msda_npy_is_integer(&npy), cases[i].descr[1] == 'i');
        const double value = msda_npy_is_integer(&npy) ? (double)msda_npy_integer(&npy, 0) : msda_npy_float(&npy, 0);
        assert_true(value == cases[i].value);
    }
}

static void reads_every_version_and_spelling(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }     \n",
        "{\"shape\":(2,3),\"descr\":\"<i4\",\"fortran_order\":False}",
        " { 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , 'descr' : '<i4' }\n",
    };
    for (int version = 1; version <= 3; ++version)
        for (size_t i = 0; i < sizeof headers / sizeof headers[0]; ++i) {
            msda_npy npy;
            const file f = make_file(version, headers[i], 24);
            assert_true(msda_npy_parse(&npy, f.bytes, f.size, "NAME"));
            assert_int_equal(npy.rank, 2);
            assert_int_equal(npy.shape[0], 2);
            assert_int_equal(npy.shape[1], 3);
            assert_int_equal(npy.count, 6);
            assert_int_equal(msda_npy_integer(&npy, 5), 0x17161514);
        }
}

static void reads_scalars_and_empty_arrays(void **state)
{
    (void)state;
    msda_npy npy;
    file f = make_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': ()}", 4);
    assert_true(parse(&npy, &f));
    assert_int_equal(npy.rank, 0);
    assert_int_equal(npy.count, 1);
    f = make_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 0, 9223372036854775807)}", 0);
    assert_true(parse(&npy, &f));
    assert_int_equal(npy.count, 0);
}

static void reads_what_it_wrote(void **state)
{
    (void)state;
    static const double data[6] = {0.0, -1.25, 1e-3, INFINITY, -INFINITY, 3.0000000001};
    static const int64_t shape[2] = {3, 2};
    static const char path[] = "test_npy.npy";
    for (int type = MSDA_NPY_F4; type <= MSDA_NPY_F8; ++type) {
        msda_npy npy;
        assert_true(msda_npy_write(path, (msda_npy_type)type, shape, 2, data));
        assert_true(msda_npy_read(&npy, path));
        assert_int_equal(npy.type, type);
        assert_int_equal(npy.rank, 2);
        assert_memory_equal(npy.shape, shape, sizeof shape);
        assert_int_equal((npy.data - npy.bytes) % 64, 0);
        for (size_t i = 0; i < 6; ++i)
            assert_true(msda_npy_float(&npy, i) == (type == MSDA_NPY_F4 ? (float)data[i] : data[i]));
        msda_npy_free(&npy);
    }
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_hostile_headers),
        cmocka_unit_test(refuses_hostile_preambles),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(reads_every_type),
        cmocka_unit_test(reads_every_version_and_spelling),
        cmocka_unit_test(reads_scalars_and_empty_arrays),
        cmocka_unit_test(reads_what_it_wrote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
