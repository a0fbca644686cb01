/*
 * Writing ZIP archives, always with sizes of 64 bits, so that one form serves every size. The sizes in front of a member's data are
 * written again when it is known how small the data became; the directory is collected on the way.
 */
#include "train/zip.h"

#include <stdlib.h>
#include <string.h>

enum {
    VERSION = 45,             /* of the format: zip64 */
    MADE_BY = 3 << 8,         /* Unix, whose rights to a file stand in the attributes */
    RIGHTS = 0100644,
    FIRST_DAY = 1 << 5 | 1,   /* 1980-01-01: the same tensors give the same archive */
    LOCAL_EXTRA = 4 + 2 * 8, CENTRAL_EXTRA = 4 + 3 * 8,
};

/* A part of the archive's structure. */
typedef struct record {
    unsigned char bytes[128];
    size_t count;
} record;

static void put(record *r, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) r->bytes[r->count++] = (unsigned char)(value >> 8 * i);
}

/* What a member's header and its entry in the directory share. */
static void put_member(record *r, const tr__zip_member *m)
{
    put(r, VERSION, 2);
    put(r, TR__ZIP_UTF8, 2);
    put(r, (uint64_t)m->method, 2);
    put(r, 0, 2);
    put(r, FIRST_DAY, 2);
    put(r, m->checksum, 4);
    put(r, UINT32_MAX, 4);
    put(r, UINT32_MAX, 4);
    put(r, strlen(m->name), 2);
}

static record large_sizes(const tr__zip_member *m, int extra)
{
    record r = {.count = 0};
    put(&r, TR__ZIP_EXTRA64, 2);
    put(&r, (uint64_t)extra - 4, 2);
    put(&r, m->bytes, 8);
    put(&r, m->packed, 8);
    if (extra == CENTRAL_EXTRA) put(&r, m->at, 8);
    return r;
}

static void add_to_directory(tr__zip_writer *w, const tr__zip_member *m)
{
    record r = {.count = 0}, sizes = large_sizes(m, CENTRAL_EXTRA);
    put(&r, TR__ZIP_CENTRAL, 4);
    put(&r, MADE_BY | VERSION, 2);
    put_member(&r, m);
    put(&r, CENTRAL_EXTRA, 2);
    put(&r, 0, 2 + 2 + 2); /* no comment; in the first part; nothing of note inside */
    put(&r, (uint64_t)RIGHTS << 16, 4);
    put(&r, UINT32_MAX, 4);
    fwrite(r.bytes, 1, r.count, w->directory);
    fwrite(m->name, 1, strlen(m->name), w->directory);
    fwrite(sizes.bytes, 1, sizes.count, w->directory);
}

static tr_status write_some(tr__zip_writer *w, const void *data, uint64_t bytes)
{
    w->at += bytes;
    return tr__atomic_write(&w->file, data, (size_t)bytes);
}

static tr_status deflate_piece(tr__zip_writer *w, z_stream *z, const tr__zip_piece *piece, bool last)
{
    enum { MOST = 1 << 30, BUFFER = 1 << 16 };
    unsigned char buffer[BUFFER];
    uint64_t left = piece->bytes;
    z->next_in = (unsigned char *)piece->data;
    do {
        z->avail_in = left < MOST ? (uInt)left : MOST;
        left -= z->avail_in;
        do {
            z->next_out = buffer;
            z->avail_out = BUFFER;
            deflate(z, last && !left ? Z_FINISH : Z_NO_FLUSH);
            TR__TRY(write_some(w, buffer, BUFFER - z->avail_out));
        } while (z->avail_out == 0);
    } while (left);
    return TR_OK;
}

static tr_status write_deflated(tr__zip_writer *w, const tr__zip_piece *pieces, int n)
{
    z_stream z = {.next_in = NULL};
    if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return tr__fail(TR_NO_MEMORY, "out of memory");
    tr_status status = TR_OK;
    for (int i = 0; i < n && status == TR_OK; i++) status = deflate_piece(w, &z, &pieces[i], i == n - 1);
    deflateEnd(&z);
    return status;
}

tr_status tr__zip_create(tr__zip_writer *w, const char *path, bool compress)
{
    *w = (tr__zip_writer){.compress = compress};
    w->directory = open_memstream(&w->directory_text, &w->directory_bytes);
    if (!w->directory) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr_status status = tr__atomic_open(&w->file, path);
    if (status == TR_OK) return TR_OK;
    fclose(w->directory);
    free(w->directory_text);
    return status;
}

tr_status tr__zip_add(tr__zip_writer *w, const char *name, const tr__zip_piece *pieces, int n)
{
    if (strlen(name) > UINT16_MAX) return tr__fail(TR_INVALID, "a name of %zu bytes is too long for an archive", strlen(name));
    tr__zip_member m = {.name = (char *)name, .at = w->at, .method = w->compress ? TR__ZIP_DEFLATED : TR__ZIP_STORED};
    for (int i = 0; i < n; i++) {
        m.bytes += pieces[i].bytes;
        m.checksum = (uint32_t)crc32_z(m.checksum, pieces[i].data, (size_t)pieces[i].bytes);
    }
    record header = {.count = 0}, sizes = large_sizes(&m, LOCAL_EXTRA);
    put(&header, TR__ZIP_LOCAL, 4);
    put_member(&header, &m);
    put(&header, LOCAL_EXTRA, 2);
    TR__TRY(write_some(w, header.bytes, header.count));
    TR__TRY(write_some(w, name, strlen(name)));
    uint64_t sizes_at = w->at;
    TR__TRY(write_some(w, sizes.bytes, sizes.count));
    uint64_t data_at = w->at;
    if (w->compress) TR__TRY(write_deflated(w, pieces, n));
    for (int i = 0; i < n && !w->compress; i++) TR__TRY(write_some(w, pieces[i].data, pieces[i].bytes));
    m.packed = w->at - data_at;
    sizes = large_sizes(&m, LOCAL_EXTRA);
    TR__TRY(tr__atomic_rewrite(&w->file, sizes_at, sizes.bytes, sizes.count));
    add_to_directory(w, &m);
    w->count++;
    return TR_OK;
}

/* With sizes of 64 bits, and where they are. */
static void put_large_end(record *r, const tr__zip_writer *w)
{
    put(r, TR__ZIP_END64, 4);
    put(r, TR__ZIP_END64_BYTES - 12, 8);
    put(r, MADE_BY | VERSION, 2);
    put(r, VERSION, 2);
    put(r, 0, 4 + 4); /* one part */
    put(r, w->count, 8);
    put(r, w->count, 8);
    put(r, w->directory_bytes, 8);
    put(r, w->at - w->directory_bytes, 8);
    put(r, TR__ZIP_LOCATOR, 4);
    put(r, 0, 4);
    put(r, w->at, 8);
    put(r, 1, 4);
}

/* NumPy knows an archive without members by its beginning, which must be this end, then. */
static tr_status write_end(tr__zip_writer *w)
{
    record r = {.count = 0};
    uint64_t large = w->count ? UINT64_MAX : 0;
    TR__TRY(write_some(w, w->directory_text, w->directory_bytes));
    if (large) put_large_end(&r, w);
    put(&r, TR__ZIP_END, 4);
    put(&r, 0, 2 + 2);
    put(&r, large, 2 + 2 + 4);
    put(&r, large, 4);
    put(&r, 0, 2); /* no comment */
    return write_some(w, r.bytes, r.count);
}

tr_status tr__zip_finish(tr__zip_writer *w, tr_status status)
{
    bool lost = ferror(w->directory);
    if ((fclose(w->directory) != 0 || lost) && status == TR_OK) status = tr__fail(TR_NO_MEMORY, "out of memory");
    if (status == TR_OK && w->directory_bytes > TR__ZIP_MOST_DIRECTORY)
        status = tr__fail(TR_INVALID, "%s: the names of %llu tensors take more than the %d bytes of an archive's directory",
            w->file.path, (unsigned long long)w->count, TR__ZIP_MOST_DIRECTORY);
    if (status == TR_OK) status = write_end(w);
    free(w->directory_text);
    if (status == TR_OK) return tr__atomic_commit(&w->file);
    tr__atomic_abandon(&w->file);
    return status;
}
