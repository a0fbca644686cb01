/*
 * IDX files, as LeCun's MNIST page describes them: two zero bytes, the type of the elements, the number of dimensions,
 * their sizes as big-endian 32-bit numbers, and the elements, row-major and big-endian.
 */
#include "base/regular_file.h"
#include "tensor/numbers.h"

#include <trireme/data.h>

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>
#include <zlib.h>

/* deflate makes at most so many bytes of one */
enum { MOST_OF_A_BYTE = 1032 };

typedef struct idx_file {
    const char *path;
    gzFile file;       /* reads plain files, too */
    int64_t size;      /* of the file, as it lies on the disk */
    int64_t max_bytes; /* of its elements, that the program allows; or 0 */
} idx_file;

static tr_status open_file(idx_file *f)
{
    int fd = tr__regular_open(f->path, &f->size);
    if (fd < 0 && (errno == EISDIR || errno == ENODEV)) return tr__fail(TR_INVALID, "idx: %s is no file", f->path);
    if (fd < 0) return tr__fail_errno(errno == ENOENT ? TR_NOT_FOUND : TR_IO, errno, "idx: cannot open %s", f->path);
    f->file = gzdopen(fd, "rb");
    if (f->file) return TR_OK;
    close(fd);
    return tr__fail(TR_NO_MEMORY, "idx: out of memory");
}

/* Reads as many bytes as there are, up to bytes, and says how many. */
static tr_status read_some(const idx_file *f, void *to, int64_t bytes, int64_t *read)
{
    enum { PIECE = 1 << 30 };
    for (*read = 0; *read < bytes;) {
        int64_t rest = bytes - *read;
        int n = gzread(f->file, (char *)to + *read, (unsigned)(rest < PIECE ? rest : PIECE));
        int error;
        const char *text = gzerror(f->file, &error);
        if (error == Z_ERRNO) return tr__fail_errno(TR_IO, errno, "idx: cannot read %s", f->path);
        if (error != Z_OK && error != Z_BUF_ERROR) return tr__fail(TR_FORMAT, "idx: %s is damaged: %s", f->path, text);
        if (error == Z_BUF_ERROR) return tr__fail(TR_FORMAT, "idx: the compressed file %s is cut short", f->path);
        if (n <= 0) break;
        *read += n;
    }
    return TR_OK;
}

static tr_status element_type(const idx_file *f, int code, tr_dtype *dtype)
{
    switch (code) {
    case 0x08: *dtype = TR_U8; return TR_OK;
    case 0x0c: *dtype = TR_I32; return TR_OK;
    case 0x0d: *dtype = TR_F32; return TR_OK;
    case 0x0e: *dtype = TR_F64; return TR_OK;
    case 0x09:
    case 0x0b:
        return tr__fail(TR_UNSUPPORTED, "idx: %s has elements of 8 or 16 bits with a sign, for which there is no dtype",
            f->path);
    default: return tr__fail(TR_FORMAT, "idx: %s has elements of the unknown type 0x%02x", f->path, (unsigned)code);
    }
}

static tr_status read_header(const idx_file *f, tr_shape *shape, tr_dtype *dtype)
{
    unsigned char magic[4], size[4];
    int64_t n;
    TR__TRY(read_some(f, magic, 4, &n));
    if (n < 4) return tr__fail(TR_FORMAT, "idx: %s has %" PRId64 " bytes and ends in its header", f->path, n);
    if (magic[0] || magic[1])
        return tr__fail(TR_FORMAT, "idx: %s begins with 0x%02x%02x, not with 0x0000: it is no IDX file", f->path,
            magic[0], magic[1]);
    TR__TRY(element_type(f, magic[2], dtype));
    if (magic[3] < 1 || magic[3] > TR_MAX_DIMS)
        return tr__fail(TR_FORMAT, "idx: %s has %d dimensions, not 1 to %d", f->path, magic[3], TR_MAX_DIMS);
    shape->ndim = magic[3];
    for (int i = 0; i < shape->ndim; i++) {
        TR__TRY(read_some(f, size, 4, &n));
        if (n < 4) return tr__fail(TR_FORMAT, "idx: %s ends in its header", f->path);
        shape->dim[i] = (int64_t)size[0] << 24 | size[1] << 16 | size[2] << 8 | size[3];
    }
    return TR_OK;
}

/* Whether the file may hold what its header says, and the program wants so much; *bytes: how many that are. Nothing is
 * allocated before. */
static tr_status check_size(const idx_file *f, tr_shape shape, tr_dtype dtype, int64_t *bytes)
{
    *bytes = (int64_t)tr_dtype_size(dtype);
    bool absurd = false;
    for (int i = 0; i < shape.ndim; i++) absurd |= __builtin_mul_overflow(*bytes, shape.dim[i], bytes);
    int64_t most = gzdirect(f->file) ? f->size : f->size * MOST_OF_A_BYTE;
    if (absurd || *bytes > most)
        return tr__fail(TR_FORMAT, "idx: %s says that it holds %s of %s, which cannot be in its %" PRId64 " bytes",
            f->path, TR__TEXT(shape), tr_dtype_name(dtype), f->size);
    int64_t allowed = gzdirect(f->file) && !f->max_bytes ? INT64_MAX : tr__unpacked_most(f->size, f->max_bytes);
    if (*bytes <= allowed) return TR_OK;
    return tr__fail(TR_FORMAT, "idx: %s, of %" PRId64 " bytes, unpacks to %s of %s, %" PRId64 " bytes, more than the %"
        PRId64 " that .max_bytes allows", f->path, f->size, TR__TEXT(shape), tr_dtype_name(dtype), *bytes, allowed);
}

static tr_status read_elements(const idx_file *f, tr_tensor *t, int64_t bytes)
{
    int64_t n;
    char more;
    TR__TRY(tr_status_of(t));
    TR__TRY(read_some(f, tr__ptr(t), bytes, &n));
    if (n < bytes)
        return tr__fail(TR_FORMAT, "idx: %s ends after %" PRId64 " of the %" PRId64 " bytes of its elements %s",
            f->path, n, bytes, TR__TEXT(t->shape));
    TR__TRY(read_some(f, &more, 1, &n)); /* and so to the checksum */
    if (n) return tr__fail(TR_FORMAT, "idx: %s goes on after its %s elements", f->path, TR__TEXT(t->shape));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    tr__swap_bytes(tr__ptr(t), tr_dtype_size(t->dtype), tr__numel(t->shape));
#endif
    return TR_OK;
}

static tr_status load(idx_file *f, tr_tensor **out)
{
    TR__TRY(open_file(f));
    tr_shape shape = TR_SCALAR;
    tr_dtype dtype = TR_U8;
    int64_t bytes;
    TR__TRY(read_header(f, &shape, &dtype));
    TR__TRY(check_size(f, shape, dtype, &bytes));
    *out = tr__tensor_new(shape, dtype, tr_cpu(0));
    return read_elements(f, *out, bytes);
}

tr_tensor *tr_idx_load_with(const tr_idx_load_options *options)
{
    if (!options->path) return tr__tensor_fail(TR_INVALID, "idx: no path was given");
    if (options->max_bytes < 0)
        return tr__tensor_fail(TR_INVALID, "idx: .max_bytes must be 0 or more, not %" PRId64, options->max_bytes);
    idx_file f = {.path = options->path, .max_bytes = options->max_bytes};
    tr_tensor *t = NULL;
    tr_status status = load(&f, &t);
    if (f.file) gzclose(f.file);
    return status == TR_OK ? t : tr__tensor_failed();
}
