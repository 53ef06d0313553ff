/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* fileno */
#include "npy.h"

#include "complain.h"
#include "storage.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAGIC         "\x93NUMPY"
#define MAGIC_SIZE    6
#define PREAMBLE_SIZE 10 /* of version 1: magic, version, header length */

static const struct type_name {
    const char *descr;
    size_t size;
} types[] = {
    [MSDA_NPY_F2] = {"<f2", 2}, [MSDA_NPY_F4] = {"<f4", 4}, [MSDA_NPY_F8] = {"<f8", 8},
    [MSDA_NPY_I4] = {"<i4", 4}, [MSDA_NPY_I8] = {"<i8", 8},
};

static const size_t num_types = sizeof types / sizeof types[0];

/* ---- the header: a Python dict literal of three keys ---------------------------------------------------------- */

typedef struct reader {
    const char *at;
    const char *end;
    const char *name; /* of the file */
} reader;

typedef struct quoted {
    const char *at;
    int length;
} quoted;

static void skip_blanks(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r'))
        ++r->at;
}

static bool take(reader *r, char wanted)
{
    skip_blanks(r);
    if (r->at == r->end || *r->at != wanted)
        return false;
    ++r->at;
    return true;
}

static bool take_word(reader *r, const char *word)
{
    const size_t length = strlen(word);
    skip_blanks(r);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length) != 0)
        return false;
    r->at += length;
    return true;
}

static bool malformed(const reader *r, const char *wanted)
{
    msda_complain("%s: malformed .npy header: %s expected", r->name, wanted);
    return false;
}

static bool read_string(reader *r, quoted *string)
{
    const char quote = take(r, '\'') ? '\'' : take(r, '"') ? '"' : '\0';
    if (quote == '\0')
        return malformed(r, "a quoted string");
    const char *const close = memchr(r->at, quote, (size_t)(r->end - r->at));
    if (close == NULL || close - r->at > 64)
        return malformed(r, "the end of a string");
    *string = (quoted){r->at, (int)(close - r->at)};
    r->at = close + 1;
    return true;
}

static bool equals(quoted string, const char *wanted)
{
    return (size_t)string.length == strlen(wanted) && memcmp(string.at, wanted, (size_t)string.length) == 0;
}

static bool read_type(reader *r, msda_npy *npy)
{
    skip_blanks(r);
    if (r->at < r->end && (*r->at == '[' || *r->at == '('))
        return msda_complain("%s: structured type; only plain f2, f4, f8, i4 and i8 are read", r->name);
    quoted descr;
    if (!read_string(r, &descr))
        return false;
    for (size_t i = 0; i < num_types; ++i)
        if (equals(descr, types[i].descr)) {
            npy->type = (msda_npy_type)i;
            return true;
        }
    if (descr.length > 0 && descr.at[0] == '>')
        return msda_complain("%s: big-endian type '%.*s'; only little-endian is read", r->name, descr.length, descr.at);
    return msda_complain("%s: type '%.*s'; only <f2, <f4, <f8, <i4 and <i8 are read", r->name, descr.length, descr.at);
}

static bool read_order(reader *r)
{
    if (take_word(r, "True"))
        return msda_complain("%s: Fortran order; only C order is read (numpy.ascontiguousarray makes it)", r->name);
    if (!take_word(r, "False"))
        return malformed(r, "True or False");
    return true;
}

static bool read_size(reader *r, int64_t *size)
{
    skip_blanks(r);
    if (r->at < r->end && *r->at == '-')
        return msda_complain("%s: negative size in shape", r->name);
    if (r->at == r->end || *r->at < '0' || *r->at > '9')
        return malformed(r, "a size");
    *size = 0;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; ++r->at) {
        const int digit = *r->at - '0';
        if (*size > (INT64_MAX - digit) / 10)
            return msda_complain("%s: size in shape is past 2^63", r->name);
        *size = *size * 10 + digit;
    }
    return true;
}

static bool read_shape(reader *r, msda_npy *npy)
{
    if (!take(r, '('))
        return malformed(r, "a shape in parentheses");
    npy->rank = 0;
    while (!take(r, ')')) {
        if (npy->rank == MSDA_NPY_MAX_RANK)
            return msda_complain("%s: more than %d axes", r->name, MSDA_NPY_MAX_RANK);
        if (!read_size(r, &npy->shape[npy->rank++]))
            return false;
        const bool more = take(r, ',');
        if (!more && (npy->rank == 1 || r->at == r->end || *r->at != ')'))
            return malformed(r, "a comma or the end of the shape");
    }
    return true;
}

static bool read_header(reader *r, msda_npy *npy)
{
    enum { DESCR = 1, ORDER = 2, SHAPE = 4, ALL = 7 };
    int seen = 0;
    if (!take(r, '{'))
        return malformed(r, "'{'");
    while (!take(r, '}')) {
        quoted key;
        if (!read_string(r, &key))
            return false;
        const int which = equals(key, "descr")           ? DESCR
                          : equals(key, "fortran_order") ? ORDER
                          : equals(key, "shape")         ? SHAPE
                                                         : 0;
        if (which == 0 || (seen & which) != 0)
            return malformed(r, "each of descr, fortran_order and shape once");
        seen |= which;
        if (!take(r, ':'))
            return malformed(r, "':'");
        const bool read = which == DESCR ? read_type(r, npy) : which == ORDER ? read_order(r) : read_shape(r, npy);
        if (!read)
            return false;
        skip_blanks(r);
        if (!take(r, ',') && (r->at == r->end || *r->at != '}'))
            return malformed(r, "a comma or '}'");
    }
    skip_blanks(r);
    if (r->at != r->end)
        return malformed(r, "nothing but blanks after '}'");
    return seen == ALL || malformed(r, "each of descr, fortran_order and shape once");
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

static uint64_t load_little_endian(const unsigned char *bytes, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

/* *count = product of shape, if the bytes of that many elements can be counted at all; a 0 anywhere makes it 0. */
static bool count_elements(msda_npy *npy, const char *name)
{
    size_t count = 1, bytes = types[npy->type].size;
    bool overflow = false;
    for (int i = 0; i < npy->rank; ++i) {
        if (npy->shape[i] == 0) {
            npy->count = 0;
            return true;
        }
        overflow = overflow || (uint64_t)npy->shape[i] > PTRDIFF_MAX / bytes;
        if (!overflow) {
            count *= (size_t)npy->shape[i];
            bytes *= (size_t)npy->shape[i];
        }
    }
    npy->count = count;
    char shape[MSDA_NPY_SHAPE_TEXT_SIZE];
    return !overflow ||
           msda_complain("%s: shape %s is too large", name, msda_npy_shape_text(shape, npy->shape, npy->rank));
}

bool msda_npy_parse(msda_npy *npy, const unsigned char *bytes, size_t size, const char *name)
{
    memset(npy, 0, sizeof *npy);
    if (size < PREAMBLE_SIZE || memcmp(bytes, MAGIC, MAGIC_SIZE) != 0)
        return msda_complain("%s: not a .npy file", name);
    const int major = bytes[6], minor = bytes[7];
    if (major < 1 || major > 3 || minor != 0)
        return msda_complain("%s: .npy version %d.%d; 1.0, 2.0 and 3.0 are read", name, major, minor);
    const size_t length_size = major == 1 ? 2 : 4, preamble = 8 + length_size;
    if (size < preamble || load_little_endian(bytes + 8, length_size) > size - preamble)
        return msda_complain("%s: truncated header", name);
    const size_t header_length = (size_t)load_little_endian(bytes + 8, length_size);
    const char *const header = (const char *)bytes + preamble;
    reader r = {header, header + header_length, name};
    if (!read_header(&r, npy) || !count_elements(npy, name))
        return false;

    const size_t needed = npy->count * types[npy->type].size, held = size - preamble - header_length;
    if (held != needed)
        return msda_complain("%s: %s: the header promises %zu bytes of data, the file holds %zu", name,
                             held < needed ? "truncated" : "trailing bytes", needed, held);
    npy->data = bytes + preamble + header_length;
    return true;
}

/* Only regular files: a directory, a pipe or a device has no size to hold the header's promise against. */
static bool open_regular(const char *path, FILE **file, size_t *size)
{
    *file = fopen(path, "rb");
    if (*file == NULL)
        return msda_complain("%s: %s", path, strerror(errno));
    struct stat status;
    if (fstat(fileno(*file), &status) == 0 && S_ISREG(status.st_mode)) {
        *size = (size_t)status.st_size;
        return true;
    }
    fclose(*file);
    return msda_complain("%s: not a regular file", path);
}

bool msda_npy_read(msda_npy *npy, const char *path)
{
    memset(npy, 0, sizeof *npy);
    FILE *file;
    size_t size = 0;
    if (!open_regular(path, &file, &size))
        return false;
    unsigned char *const bytes = malloc(size + 1);
    const bool complete = bytes != NULL && fread(bytes, 1, size, file) == size;
    fclose(file);
    if (!complete || !msda_npy_parse(npy, bytes, size, path)) {
        free(bytes);
        return complete ? false : msda_complain("%s: cannot read its %zu bytes: %s", path, size, strerror(errno));
    }
    npy->bytes = bytes;
    return true;
}

void msda_npy_free(msda_npy *npy)
{
    free(npy->bytes);
    memset(npy, 0, sizeof *npy);
}

/* ---- elements -------------------------------------------------------------------------------------------------- */

bool msda_npy_is_integer(const msda_npy *npy)
{
    return npy->type == MSDA_NPY_I4 || npy->type == MSDA_NPY_I8;
}

double msda_npy_float(const msda_npy *npy, size_t i)
{
    const size_t size = types[npy->type].size;
    const uint64_t bits = load_little_endian(npy->data + i * size, size);
    if (npy->type == MSDA_NPY_F2)
        return msda_storage_from_f16((uint16_t)bits);
    if (npy->type == MSDA_NPY_F4) {
        const uint32_t narrow = (uint32_t)bits;
        float value;
        memcpy(&value, &narrow, sizeof value);
        return value;
    }
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

int64_t msda_npy_integer(const msda_npy *npy, size_t i)
{
    const size_t size = types[npy->type].size;
    const uint64_t bits = load_little_endian(npy->data + i * size, size);
    return npy->type == MSDA_NPY_I4 ? (int32_t)(uint32_t)bits : (int64_t)bits;
}

const char *msda_npy_shape_text(char text[MSDA_NPY_SHAPE_TEXT_SIZE], const int64_t *shape, int rank)
{
    size_t length = (size_t)sprintf(text, "[");
    for (int i = 0; i < rank; ++i) {
        const char *const comma = i == 0 ? "" : ", ";
        length += (size_t)(shape[i] < 0 ? sprintf(text + length, "%sany", comma)
                                        : sprintf(text + length, "%s%" PRId64, comma, shape[i]));
    }
    sprintf(text + length, "]");
    return text;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static void store_little_endian(unsigned char *bytes, size_t size, uint64_t value)
{
    for (size_t i = 0; i < size; ++i)
        bytes[i] = (unsigned char)(value >> (8 * i));
}

static void write_header(FILE *file, msda_npy_type type, const int64_t *shape, int rank)
{
    enum {
        HEADER_SIZE = 256 - PREAMBLE_SIZE
    }; /* room for 8 axes; the data starts at a multiple of 64, as NumPy has it */
    char header[HEADER_SIZE + 1];
    int length = sprintf(header, "{'descr': '%s', 'fortran_order': False, 'shape': (", types[type].descr);
    for (int i = 0; i < rank; ++i)
        length += sprintf(header + length, "%" PRId64 ", ", shape[i]);
    length += sprintf(header + length, "), }");
    memset(header + length, ' ', (size_t)(HEADER_SIZE - 1 - length));
    header[HEADER_SIZE - 1] = '\n';
    fwrite(MAGIC "\x01\x00", 1, 8, file);
    fputc(HEADER_SIZE & 255, file);
    fputc(HEADER_SIZE >> 8, file);
    fwrite(header, 1, HEADER_SIZE, file);
}

static void write_element(FILE *file, msda_npy_type type, double value)
{
    unsigned char bytes[8];
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type == MSDA_NPY_F4) {
        const float narrow = (float)value;
        uint32_t narrow_bits;
        memcpy(&narrow_bits, &narrow, sizeof narrow_bits);
        bits = narrow_bits;
    }
    store_little_endian(bytes, types[type].size, bits);
    fwrite(bytes, 1, types[type].size, file);
}

bool msda_npy_write(const char *path, msda_npy_type type, const int64_t *shape, int rank, const double *data)
{
    FILE *const file = fopen(path, "wb");
    if (file == NULL)
        return msda_complain("%s: %s", path, strerror(errno));
    size_t count = 1;
    for (int i = 0; i < rank; ++i)
        count *= (size_t)shape[i];
    write_header(file, type, shape, rank);
    for (size_t i = 0; i < count; ++i)
        write_element(file, type, data[i]);
    const bool written = ferror(file) == 0;
    if (fclose(file) == 0 && written)
        return true;
    return msda_complain("%s: %s", path, strerror(errno));
}
