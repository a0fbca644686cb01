/* NumPy's .npz archives: a ZIP archive with a member NAME.npy for each array. libzip reads and writes the archive. */
#include "base/atomic_file.h"
#include "base/regular_file.h"
#include "data/text/unicode.h"
#include "tensor/list.h"
#include "train/npy.h"
#include "train/plain_file.h"

#include <trireme/train.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

static const char suffix[] = ".npy";

/* ---- Reading --------------------------------------------------------------------------------------------------------- */

enum { MOST_OF_A_BYTE = 1032 /* deflate makes of one */ };

typedef struct archive {
    const char *path;
    uint64_t bytes;
    zip_t *zip;
} archive;

/* A member that is being read. */
typedef struct member {
    const char *name; /* behind the archive's, for messages */
    zip_file_t *file;
    uint64_t left;
} member;

static tr_status damaged(const char *name, zip_error_t *error)
{
    int code = zip_error_code_zip(error);
    const char *what = code == ZIP_ER_EXISTS ? "two members have one name" : zip_error_strerror(error);
    tr_status status = code == ZIP_ER_MEMORY ? TR_NO_MEMORY : code == ZIP_ER_READ || code == ZIP_ER_OPEN ? TR_IO : TR_FORMAT;
    return tr__fail(status, "%s: cannot be read as an .npz archive: %s", name, what);
}

/* libzip compares the checksum when it is asked for more than there is, and miscounts what it inflates beyond 4 GiB at once. */
static tr_status read_on(void *user, void *to, uint64_t bytes)
{
    enum { PIECE = 1 << 30 };
    member *m = user;
    char none;
    zip_int64_t got = 1, more = 0;
    m->left -= bytes;
    for (char *at = to; bytes; at += got, bytes -= (uint64_t)got) {
        got = zip_fread(m->file, at, bytes < PIECE ? bytes : PIECE);
        if (got <= 0) break;
    }
    if (!bytes && m->left == 0) more = zip_fread(m->file, &none, 1);
    if (got < 0 || more < 0) return damaged(m->name, zip_file_get_error(m->file));
    if (!bytes && more == 0) return TR_OK;
    return tr__fail(TR_FORMAT, "%s: %s", m->name, more ? "goes on after its bytes" : "ends too early");
}

/* libzip reads the directory, compares each member's own header with it, and has the descriptor from then on. It would take an
 * empty file for an empty archive. */
static tr_status open_archive(archive *a, const char *path)
{
    tr__plain_file file;
    TR__TRY(tr__plain_open(&file, path, "an .npz archive"));
    int code = ZIP_ER_NOZIP;
    *a = (archive){.path = path, .bytes = file.bytes, .zip = file.bytes ? zip_fdopen(file.fd, ZIP_CHECKCONS, &code) : NULL};
    if (a->zip) return TR_OK;
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    tr_status status = damaged(path, &error);
    zip_error_fini(&error);
    tr__plain_close(&file);
    return status;
}

/* Name, sizes and method of a member, which must be ones that NumPy writes. */
static tr_status stat_member(const archive *a, zip_uint64_t index, zip_stat_t *s)
{
    if (zip_stat_index(a->zip, index, ZIP_FL_ENC_RAW, s) < 0) return damaged(a->path, zip_get_error(a->zip));
    if (!tr__is_utf8(s->name, strlen(s->name)))
        return tr__fail(TR_FORMAT, "%s: has a member whose name is not UTF-8", a->path);
    if (s->encryption_method != ZIP_EM_NONE)
        return tr__fail(TR_UNSUPPORTED, "%s: its member %s is encrypted", a->path, s->name);
    if (s->comp_method != ZIP_CM_STORE && s->comp_method != ZIP_CM_DEFLATE)
        return tr__fail(TR_UNSUPPORTED, "%s: its member %s is compressed by method %d; 0 (stored) and 8 (deflated) are known",
            a->path, s->name, s->comp_method);
    if (s->comp_method == ZIP_CM_STORE ? s->size == s->comp_size : s->size / MOST_OF_A_BYTE <= s->comp_size) return TR_OK;
    return tr__fail(TR_FORMAT, "%s: its member %s cannot have %" PRIu64 " bytes in %" PRIu64, a->path, s->name,
        (uint64_t)s->size, (uint64_t)s->comp_size);
}

static tr_status read_member(const archive *a, zip_uint64_t index, tr_tensor_list *list)
{
    TR_SCOPE;
    zip_stat_t s;
    char *text; /* the archive's path and the member's name */
    TR__TRY(stat_member(a, index, &s));
    int from = asprintf(&text, "%s: %s", a->path, s.name) - (int)strlen(s.name);
    if (from < 0) return tr__fail(TR_NO_MEMORY, "out of memory");
    member m = {.name = text, .file = zip_fopen_index(a->zip, index, 0), .left = s.size};
    tr_tensor *t = NULL;
    if (m.file) t = tr__npy_read(&(tr__npy_source){.name = text, .bytes = s.size, .read = read_on, .user = &m});
    tr_status status = m.file ? tr_status_of(t) : damaged(text, zip_get_error(a->zip));
    if (m.file) zip_fclose(m.file);
    char *name = text + from, *end = text + strlen(text) - strlen(suffix);
    if (end >= name && strcmp(end, suffix) == 0) *end = '\0';
    if (status == TR_OK && tr_list_find(list, name)) status = tr__fail(TR_FORMAT, "%s: has two arrays named %s", a->path, name);
    if (status == TR_OK) status = tr_list_add(list, name, t);
    free(text);
    return status;
}

/* Whether the program wants so much is checked before any array is unpacked. */
static tr_status read_members(const archive *a, int64_t max_bytes, tr_tensor_list *list)
{
    uint64_t sum = 0, packed = 0, allowed = (uint64_t)tr__unpacked_most((int64_t)a->bytes, max_bytes);
    zip_uint64_t count = (zip_uint64_t)zip_get_num_entries(a->zip, 0);
    bool absurd = false;
    for (zip_uint64_t i = 0; i < count; i++) {
        zip_stat_t s;
        TR__TRY(stat_member(a, i, &s));
        absurd |= __builtin_add_overflow(sum, s.size, &sum);
        if (s.comp_size > a->bytes - packed)
            return tr__fail(TR_FORMAT, "%s: its member %s lies over others: they have more bytes than the file", a->path, s.name);
        packed += s.comp_size;
    }
    if (absurd || sum > allowed)
        return tr__fail(TR_FORMAT, "%s: its %" PRIu64 " bytes unpack to %" PRIu64 ", more than the %" PRIu64
            " that .max_bytes allows", a->path, a->bytes, absurd ? UINT64_MAX : sum, allowed);
    for (zip_uint64_t i = 0; i < count; i++) TR__TRY(read_member(a, i, list));
    return TR_OK;
}

tr_tensor_list *tr_npz_load_with(const tr_npz_load_options *options)
{
    TR_SCOPE;
    archive a;
    tr_tensor_list *list = tr_list_new();
    tr_status status = tr_status_of(list);
    if (status == TR_OK && options->max_bytes < 0)
        status = tr__fail(TR_INVALID, "npz: .max_bytes must be 0 or more, not %" PRId64, options->max_bytes);
    if (status == TR_OK) status = open_archive(&a, options->path);
    if (status != TR_OK) return tr_escape((tr_tensor_list *)tr__object_failed(&tr__list_type));
    status = read_members(&a, options->max_bytes, list);
    zip_discard(a.zip);
    return tr_escape(status == TR_OK ? list : (tr_tensor_list *)tr__object_failed(&tr__list_type));
}

/* ---- Writing --------------------------------------------------------------------------------------------------------- */

enum {
    FIRST_DAY = 1 << 5 | 1, /* 1980-01-01: the same tensors give the same archive */
    LEVEL = 6,              /* zlib's own default, which is not libzip's */
    BUFFER = 1 << 20,       /* libzip writes 8 KiB at a time */
};

typedef struct writer {
    const char *path;
    FILE *file;
    tr_status status; /* of our call that made libzip fail; TR_OK: none did */
} writer;

static zip_int64_t note(writer *w, tr_status status)
{
    if (w->status == TR_OK) w->status = status;
    return status == TR_OK ? 0 : -1;
}

static zip_int64_t note_errno(writer *w, bool done)
{
    return done ? 0 : note(w, tr__fail_errno(TR_IO, errno, "cannot write %s", w->path));
}

/* What libzip asks for after a call of ours failed; the message is with the status. */
static zip_int64_t report(void *data, zip_uint64_t length)
{
    zip_error_t error;
    zip_error_init_with_code(&error, ZIP_ER_WRITE);
    return zip_error_to_data(&error, data, length);
}

/* A member to write: what stands before the elements, and they. libzip reads one after the other when all are known, so only
 * then is a tensor on a device, or of other strides, laid out on the CPU, and that copy given back before the next. */
typedef struct array {
    writer *w;
    const tr_tensor *t;
    const tr_tensor *flat; /* while it is open */
    char header[TR__NPY_HEADER_MOST];
    size_t header_bytes;
    uint64_t at, bytes; /* of both */
} array;

static tr_status lay_out(array *a)
{
    TR_SCOPE;
    const tr_tensor *flat = tr__row_major_on_cpu(a->t);
    TR__TRY(tr_status_of(flat));
    a->flat = tr_keep(flat);
    a->at = 0;
    return TR_OK;
}

static zip_int64_t read_array(array *a, char *to, uint64_t most)
{
    if (a->at == a->bytes) return 0;
    bool header = a->at < a->header_bytes;
    const char *from = header ? a->header + a->at : (const char *)tr__ptr(a->flat) + (a->at - a->header_bytes);
    uint64_t n = (header ? a->header_bytes : a->bytes) - a->at;
    if (n > most) n = most;
    memcpy(to, from, n);
    a->at += n;
    return (zip_int64_t)n;
}

static zip_int64_t array_source(void *user, void *data, zip_uint64_t length, zip_source_cmd_t command)
{
    array *a = user;
    zip_stat_t *s = data;
    switch (command) {
    case ZIP_SOURCE_SUPPORTS: return ZIP_SOURCE_SUPPORTS_READABLE;
    case ZIP_SOURCE_OPEN: return note(a->w, lay_out(a));
    case ZIP_SOURCE_READ: return read_array(a, data, length);
    case ZIP_SOURCE_STAT:
        zip_stat_init(s);
        s->size = a->bytes;
        s->valid = ZIP_STAT_SIZE;
        return sizeof *s;
    case ZIP_SOURCE_CLOSE: tr_release(a->flat); return 0;
    case ZIP_SOURCE_FREE: free(a); return 0;
    default: return report(data, length);
    }
}

/* The archive itself, which begins without bytes. */
static zip_int64_t archive_target(void *user, void *data, zip_uint64_t length, zip_source_cmd_t command)
{
    writer *w = user;
    zip_int64_t at;
    switch (command) {
    case ZIP_SOURCE_SUPPORTS: return ZIP_SOURCE_SUPPORTS_WRITABLE;
    case ZIP_SOURCE_STAT: zip_stat_init(data); return sizeof(zip_stat_t);
    case ZIP_SOURCE_WRITE: return note_errno(w, fwrite(data, 1, length, w->file) == length) < 0 ? -1 : (zip_int64_t)length;
    case ZIP_SOURCE_TELL_WRITE: return ftello(w->file);
    case ZIP_SOURCE_SEEK_WRITE:
        at = zip_source_seek_compute_offset((zip_uint64_t)ftello(w->file), INT64_MAX, data, length, NULL);
        return note_errno(w, at >= 0 && fseeko(w->file, at, SEEK_SET) == 0);
    case ZIP_SOURCE_COMMIT_WRITE: return note_errno(w, fflush(w->file) == 0);
    case ZIP_SOURCE_ERROR: return report(data, length);
    default: return 0;
    }
}

/* libzip takes no name with control characters for UTF-8. In ASCII it is the same in the other encoding that archives know. */
static zip_flags_t encoding_of(const char *name)
{
    while (*name && !(*name & 0x80)) name++;
    return *name ? ZIP_FL_ENC_UTF_8 : ZIP_FL_ENC_CP437;
}

static tr_status add_array(writer *w, zip_t *zip, const char *name, const tr_tensor *t, bool compress)
{
    char *text;
    array *a = malloc(sizeof *a);
    if (!a) return tr__fail(TR_NO_MEMORY, "out of memory");
    *a = (array){.w = w, .t = t};
    tr_status status = tr__npy_header(name, t, a->header, &a->header_bytes);
    a->bytes = a->header_bytes + (uint64_t)tr__numel(t->shape) * tr_dtype_size(t->dtype);
    if (status == TR_OK && asprintf(&text, "%s%s", name, suffix) < 0) status = tr__fail(TR_NO_MEMORY, "out of memory");
    if (status != TR_OK) {
        free(a);
        return status;
    }
    zip_source_t *source = zip_source_function(zip, array_source, a);
    zip_int64_t index = source ? zip_file_add(zip, text, source, encoding_of(text)) : -1;
    if (index < 0 || zip_set_file_compression(zip, (zip_uint64_t)index, compress ? ZIP_CM_DEFLATE : ZIP_CM_STORE, LEVEL) < 0 ||
        zip_file_set_dostime(zip, (zip_uint64_t)index, 0, FIRST_DAY, 0) < 0)
        status = tr__fail(TR_INVALID, "npz: cannot add %s: %s", text, zip_strerror(zip));
    if (index < 0) zip_source_free(source);
    if (!source) free(a);
    free(text);
    return status;
}

static tr_status write_archive(writer *w, const tr_tensor_list *list, bool compress)
{
    zip_source_t *target = zip_source_function_create(archive_target, w, NULL);
    zip_t *zip = target ? zip_open_from_source(target, ZIP_TRUNCATE, NULL) : NULL;
    tr_status status = zip ? TR_OK : tr__fail(TR_NO_MEMORY, "out of memory");
    if (!zip) zip_source_free(target);
    for (int i = 0; i < tr_list_count(list) && status == TR_OK; i++)
        status = add_array(w, zip, tr_list_name(list, i), tr_list_at(list, i), compress);
    if (status == TR_OK && zip_close(zip) == 0) return TR_OK;
    if (status == TR_OK) status = w->status;
    if (status == TR_OK) status = tr__fail(TR_IO, "cannot write %s: %s", w->path, zip_strerror(zip));
    zip_discard(zip);
    return status;
}

static tr_status write_buffered(tr__atomic_file *file, const tr_tensor_list *list, bool compress)
{
    char *buffer = malloc(BUFFER);
    int fd = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
    writer w = {.path = file->path, .file = fd >= 0 ? fdopen(fd, "wb") : NULL};
    tr_status status = buffer ? TR_OK : tr__fail(TR_NO_MEMORY, "out of memory");
    if (status == TR_OK && !w.file) status = tr__fail_errno(TR_IO, errno, "cannot write %s", w.path);
    if (status == TR_OK) {
        setvbuf(w.file, buffer, _IOFBF, BUFFER);
        status = write_archive(&w, list, compress);
    }
    if (w.file)
        fclose(w.file); /* all has been written */
    else if (fd >= 0)
        close(fd);
    free(buffer);
    return status;
}

tr_status tr_npz_save_with(const tr_npz_save_options *options)
{
    static const char nothing[22] = "PK\5\6"; /* an archive without members, which libzip does not write */
    const tr_tensor_list *list = options->list;
    if (!options->path || !list) return tr__fail(TR_INVALID, "npz: a path and a list are needed");
    TR__TRY(tr_status_of(list));
    for (int i = 0; i < tr_list_count(list); i++) {
        const char *name = tr_list_name(list, i);
        if (!tr__is_utf8(name, strlen(name))) return tr__fail(TR_INVALID, "the name \"%s\" is not UTF-8", name);
        if (strlen(name) > UINT16_MAX - strlen(suffix))
            return tr__fail(TR_INVALID, "a name of %zu bytes is too long for an archive", strlen(name));
    }
    tr__atomic_file file;
    TR__TRY(tr__atomic_open(&file, options->path));
    tr_status status = tr_list_count(list) ? write_buffered(&file, list, options->compress)
                                           : tr__atomic_write(&file, nothing, sizeof nothing);
    if (status == TR_OK) return tr__atomic_commit(&file);
    tr__atomic_abandon(&file);
    return status;
}
