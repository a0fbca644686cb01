/*
 * NumPy's .npy format: 6 bytes "\x93NUMPY", two for the version (1.0, 2.0, 3.0), the header's length (little-endian; 2 bytes
 * in version 1.0, else 4); the header, a literal of Python (in Latin-1, or in version 3.0 in UTF-8)
 *
 *   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
 *
 * padded with spaces and ended by a newline; then the elements, row-major or, in Fortran's order, column-major.
 */
#include "train/npy.h"

#include "base/atomic_file.h"
#include "tensor/numbers.h"
#include "train/plain_file.h"

#include <trireme/train.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "'<' is taken for the machine's byte order");

enum { MOST_HEADER = 1 << 16, MAGIC_BYTES = 6, MOST_STRING = 64 };

static const char magic[] = "\x93NUMPY";

/* As descr has them, after the byte order. */
static const char *const type_names[TR_DTYPE_COUNT] = {
    [TR_F32] = "f4",
    [TR_F64] = "f8",
    [TR_F16] = "f2",
    [TR_I64] = "i8",
    [TR_I32] = "i4",
    [TR_U8] = "u1",
    [TR_BOOL] = "b1",
};

/* ---- The header ------------------------------------------------------------------------------------------------------ */

typedef struct header {
    const char *name;
    const char *at, *end; /* what is left of the text */
    tr_dtype dtype;
    bool other_byte_order, fortran_order;
    tr_shape shape;
} header;

static tr_status unexpected(const header *h, const char *what)
{
    int left = h->end - h->at < 24 ? (int)(h->end - h->at) : 24;
    char text[25];
    for (int i = 0; i < left; i++) text[i] = (char)(h->at[i] < ' ' || h->at[i] > '~' ? '?' : h->at[i]);
    return tr__fail(TR_FORMAT, "%s: its header has %s at \"%.*s\"", h->name, what, left, text);
}

static void skip_spaces(header *h)
{
    while (h->at < h->end && (*h->at == ' ' || *h->at == '\n' || *h->at == '\t')) h->at++;
}

/* Is it the next character? Then it is taken. */
static bool take(header *h, char c)
{
    skip_spaces(h);
    if (h->at == h->end || *h->at != c) return false;
    h->at++;
    return true;
}

static bool take_word(header *h, const char *word)
{
    size_t length = strlen(word);
    skip_spaces(h);
    if ((size_t)(h->end - h->at) < length || memcmp(h->at, word, length) != 0) return false;
    h->at += length;
    return true;
}

/* A string without escapes, in either kind of quotes. */
static tr_status read_string(header *h, char text[MOST_STRING])
{
    size_t n = 0;
    char quote = take(h, '\'') ? '\'' : '"';
    if (quote == '"' && !take(h, '"')) return unexpected(h, "no string");
    while (h->at < h->end && *h->at != quote && *h->at != '\\' && n < MOST_STRING - 1) text[n++] = *h->at++;
    text[n] = '\0';
    if (h->at == h->end || *h->at != quote) return unexpected(h, "a string that does not end");
    h->at++;
    return TR_OK;
}

static tr_status other_type(const header *h, const char *text, char kind)
{
    if (kind == 'O')
        return tr__fail(TR_UNSUPPORTED, "%s: holds pickled Python objects, which may run code and are never loaded", h->name);
    return tr__fail(TR_UNSUPPORTED, "%s: its elements are of NumPy's dtype \"%s\"; Trireme has f2, f4, f8, i4, i8, u1 and b1",
        h->name, text);
}

static tr_status read_descr(header *h)
{
    char text[MOST_STRING];
    skip_spaces(h);
    if (h->at < h->end && *h->at == '[')
        return tr__fail(TR_UNSUPPORTED, "%s: its elements are records of several fields; save each field by itself", h->name);
    TR__TRY(read_string(h, text));
    const char *type = text + strspn(text, "<>=|");
    if (type - text != 1) return other_type(h, text, *type);
    for (int d = 0; d < TR_DTYPE_COUNT; d++) {
        if (!type_names[d] || strcmp(type, type_names[d]) != 0) continue;
        h->dtype = (tr_dtype)d;
        h->other_byte_order = *text == '>';
        if (*text != '|' || tr_dtype_size(h->dtype) == 1) return TR_OK;
        return tr__fail(TR_FORMAT, "%s: its dtype \"%s\" lacks the byte order", h->name, text);
    }
    return other_type(h, text, *type);
}

static tr_status read_order(header *h)
{
    h->fortran_order = take_word(h, "True");
    return h->fortran_order || take_word(h, "False") ? TR_OK : unexpected(h, "neither True nor False");
}

static tr_status read_size(header *h, int64_t *size)
{
    const char *from = h->at;
    for (*size = 0; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++)
        if (__builtin_mul_overflow(*size, 10, size) || __builtin_add_overflow(*size, *h->at - '0', size))
            return tr__fail(TR_FORMAT, "%s: a size in its shape is no number to 2^63", h->name);
    return h->at > from ? TR_OK : unexpected(h, "no size");
}

/* (), (2,), (2, 3) or (2, 3,) */
static tr_status read_shape(header *h)
{
    h->shape = TR_SCALAR;
    if (!take(h, '(')) return unexpected(h, "no shape");
    for (bool comma = true; !take(h, ')'); comma = take(h, ',')) {
        if (!comma) return unexpected(h, "no comma between two sizes");
        if (h->shape.ndim == TR_MAX_DIMS)
            return tr__fail(TR_UNSUPPORTED, "%s: has more than %d dimensions", h->name, TR_MAX_DIMS);
        TR__TRY(read_size(h, &h->shape.dim[h->shape.ndim++]));
    }
    return TR_OK;
}

/* All three keys, each once, and nothing else. */
static tr_status read_header_text(header *h)
{
    static const struct {
        const char *key;
        tr_status (*read)(header *h);
    } entries[] = {{"descr", read_descr}, {"fortran_order", read_order}, {"shape", read_shape}};
    enum { KEYS = sizeof entries / sizeof *entries };
    bool seen[KEYS] = {false};
    int count = 0;
    if (!take(h, '{')) return unexpected(h, "no {");
    for (bool comma = true; !take(h, '}'); comma = take(h, ',')) {
        char key[MOST_STRING];
        if (!comma) return unexpected(h, "no comma between two entries");
        TR__TRY(read_string(h, key));
        int k = 0;
        while (k < KEYS && strcmp(key, entries[k].key) != 0) k++;
        if (k == KEYS || seen[k]) return unexpected(h, k == KEYS ? "an unknown key" : "a key twice");
        if (!take(h, ':')) return unexpected(h, "no colon");
        TR__TRY(entries[k].read(h));
        seen[k] = true;
        count++;
    }
    skip_spaces(h);
    if (h->at != h->end) return unexpected(h, "more than the entries");
    return count == KEYS ? TR_OK : tr__fail(TR_FORMAT, "%s: its header lacks descr, fortran_order or shape", h->name);
}

/* ---- Reading --------------------------------------------------------------------------------------------------------- */

static tr_status read_some(tr__npy_source *source, void *to, uint64_t bytes)
{
    if (bytes > source->bytes) return tr__fail(TR_FORMAT, "%s: ends in its header", source->name);
    source->bytes -= bytes;
    return source->read(source->user, to, bytes);
}

static tr_status read_header(tr__npy_source *source, header *h)
{
    unsigned char start[MAGIC_BYTES + 2], size[4] = {0};
    TR__TRY(read_some(source, start, sizeof start));
    if (memcmp(start, magic, MAGIC_BYTES) != 0)
        return tr__fail(TR_FORMAT, "%s: is no .npy array: it does not begin with \\x93NUMPY%s", source->name,
            memcmp(start, "PK", 2) == 0 ? "; as an .npz archive, tr_npz_load() reads it" : "");
    if (start[6] < 1 || start[6] > 3 || start[7])
        return tr__fail(TR_UNSUPPORTED, "%s: is of version %d.%d of the format; 1.0, 2.0 and 3.0 are known", source->name,
            start[6], start[7]);
    TR__TRY(read_some(source, size, start[6] == 1 ? 2 : 4));
    size_t length = (size_t)size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 | (size_t)size[3] << 24;
    if (length > MOST_HEADER)
        return tr__fail(TR_FORMAT, "%s: its header of %zu bytes is longer than the %d allowed", source->name, length, MOST_HEADER);
    char *text = malloc(length + 1);
    if (!text) return tr__fail(TR_NO_MEMORY, "no memory for a header of %zu bytes", length);
    *h = (header){.name = source->name, .at = text, .end = text + length};
    tr_status status = read_some(source, text, length);
    if (status == TR_OK) status = read_header_text(h);
    free(text);
    return status;
}

static tr_status read_elements(tr__npy_source *source, const header *h, tr_tensor *t)
{
    TR__TRY(tr_status_of(t));
    uint64_t bytes = source->bytes;
    TR__TRY(read_some(source, tr__ptr(t), bytes));
    const unsigned char *values = tr__ptr(t);
    for (uint64_t i = 0; h->dtype == TR_BOOL && i < bytes; i++)
        if (values[i] > 1) return tr__fail(TR_FORMAT, "%s: an element of bool holds the value %d", h->name, values[i]);
    if (h->other_byte_order) tr__swap_bytes(tr__ptr(t), tr_dtype_size(t->dtype), tr__numel(t->shape));
    return TR_OK;
}

/* Column-major elements are those of the transpose, row-major. */
static tr_tensor *turn(tr_tensor *transpose, tr_shape shape)
{
    int64_t stride[TR_MAX_DIMS];
    for (int d = 0; d < shape.ndim; d++) stride[d] = transpose->stride[shape.ndim - 1 - d];
    const tr_tensor *view = tr__tensor_view(transpose, shape, stride, 0);
    tr_tensor *t = tr__tensor_new(shape, transpose->dtype, tr_cpu(0));
    if (tr__bad(view)) return tr__tensor_pass(view);
    return tr__bad(t) || tr__copy_elements(t, view) == TR_OK ? t : tr__tensor_failed();
}

tr_tensor *tr__npy_read(tr__npy_source *source)
{
    TR_SCOPE;
    header h;
    int64_t bytes;
    if (read_header(source, &h) != TR_OK) return tr_escape(tr__tensor_failed());
    if (!tr__shape_bytes(h.shape, h.dtype, &bytes) || (uint64_t)bytes != source->bytes)
        return tr_escape(tr__tensor_fail(TR_FORMAT, "%s: says that it holds %s of %s, and has %" PRIu64 " bytes of elements",
            source->name, TR__TEXT(h.shape), tr_dtype_name(h.dtype), source->bytes));
    bool turned = h.fortran_order && h.shape.ndim > 1;
    tr_shape shape = h.shape;
    for (int d = 0; turned && d < shape.ndim; d++) shape.dim[d] = h.shape.dim[shape.ndim - 1 - d];
    tr_tensor *t = tr__tensor_new(shape, h.dtype, tr_cpu(0));
    h.name = source->name;
    if (read_elements(source, &h, t) != TR_OK) return tr_escape(tr__tensor_failed());
    return tr_escape(turned ? turn(t, h.shape) : t);
}

typedef struct place {
    tr__plain_file file;
    uint64_t at;
} place;

static tr_status read_on(void *user, void *to, uint64_t bytes)
{
    place *p = user;
    p->at += bytes;
    return tr__plain_read(&p->file, p->at - bytes, to, bytes);
}

tr_tensor *tr_npy_load(const char *path)
{
    place p = {.at = 0};
    if (tr__plain_open(&p.file, path, "an .npy file") != TR_OK) return tr__tensor_failed();
    tr_tensor *t = tr__npy_read(&(tr__npy_source){.name = path, .bytes = p.file.bytes, .read = read_on, .user = &p});
    tr__plain_close(&p.file);
    return t;
}

/* ---- Writing --------------------------------------------------------------------------------------------------------- */

tr_status tr__npy_header(const char *name, const tr_tensor *t, char to[TR__NPY_HEADER_MOST], size_t *length)
{
    const char *type = type_names[t->dtype];
    if (!type)
        return tr__fail(TR_UNSUPPORTED, "%s: NumPy has no %s; tr_cast() it to f32", name, tr_dtype_name(t->dtype));
    char *text = to + MAGIC_BYTES + 4;
    size_t room = TR__NPY_HEADER_MOST - MAGIC_BYTES - 4, n;
    n = (size_t)snprintf(text, room, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
        tr_dtype_size(t->dtype) == 1 ? '|' : '<', type);
    for (int d = 0; d < t->shape.ndim; d++)
        n += (size_t)snprintf(text + n, room - n, "%s%" PRId64, d ? ", " : "", t->shape.dim[d]);
    n += (size_t)snprintf(text + n, room - n, "%s), }", t->shape.ndim == 1 ? "," : "");
    while ((MAGIC_BYTES + 4 + n + 1) % 64) text[n++] = ' ';
    text[n++] = '\n';
    memcpy(to, magic, MAGIC_BYTES);
    memcpy(to + MAGIC_BYTES, (const char[]){1, 0, (char)n, (char)(n >> 8)}, 4);
    *length = MAGIC_BYTES + 4 + n;
    return TR_OK;
}

tr_status tr_npy_save(const char *path, const tr_tensor *t)
{
    TR_SCOPE;
    if (!path || !t) return tr__fail(TR_INVALID, "npy: a path and a tensor are needed");
    const tr_tensor *flat = tr__row_major_on_cpu(t);
    TR__TRY(tr_status_of(flat));
    char start[TR__NPY_HEADER_MOST];
    size_t length;
    TR__TRY(tr__npy_header(path, flat, start, &length));
    tr__atomic_file file;
    TR__TRY(tr__atomic_open(&file, path));
    TR__TRY(tr__atomic_write(&file, start, length));
    TR__TRY(tr__atomic_write(&file, tr__ptr(flat), (size_t)tr__numel(flat->shape) * tr_dtype_size(flat->dtype)));
    return tr__atomic_commit(&file);
}
