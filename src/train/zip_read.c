/*
 * Reading ZIP archives. What their end says leads to the directory, that to the members; members' own headers repeat what the
 * directory says and are only asked how long they are.
 */
#include "train/zip.h"

#include "data/unicode.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COMMENT = 0xffff, MOST_OF_A_BYTE = 1032 /* deflate makes of one */ };

static unsigned get16(const unsigned char *p)
{
    return p[0] | (unsigned)p[1] << 8;
}

static uint32_t get32(const unsigned char *p)
{
    return get16(p) | (uint32_t)get16(p + 2) << 16;
}

static uint64_t get64(const unsigned char *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}

static tr_status damaged(const tr__zip *zip, const char *what)
{
    return tr__fail(TR_FORMAT, "%s: %s", zip->file.path, what);
}

/* ---- The directory --------------------------------------------------------------------------------------------------- */

typedef struct directory {
    uint64_t at, bytes, count;
} directory;

/* The locator says where a second record is, whose fields have 64 bits. */
static tr_status find_directory64(const tr__zip *zip, const unsigned char *locator, uint64_t locator_at, directory *d)
{
    unsigned char end[TR__ZIP_END64_BYTES];
    uint64_t at = get64(locator + 8);
    if (get32(locator + 4) != 0 || get32(locator + 16) > 1 || locator_at < sizeof end || at > locator_at - sizeof end)
        return damaged(zip, "has no zip64 record where its end speaks of one");
    TR__TRY(tr__plain_read(&zip->file, at, end, sizeof end));
    if (get32(end) != TR__ZIP_END64 || get64(end + 4) != locator_at - at - 12)
        return damaged(zip, "has a damaged zip64 record");
    if (get32(end + 16) || get32(end + 20) || get64(end + 24) != get64(end + 32))
        return damaged(zip, "is one of several parts");
    *d = (directory){.count = get64(end + 32), .bytes = get64(end + 40), .at = get64(end + 48)};
    return d->at <= at && d->bytes <= at - d->at ? TR_OK : damaged(zip, "has a directory beyond its end");
}

/* end: those bytes of the file at end_at. Python writes the second record from 2 GiB on, and fills the fields here with ones
 * from 4 GiB on only; and a full field may be meant as it is, such as 65,535 members. So the locator tells. */
static tr_status read_end(const tr__zip *zip, const unsigned char *end, uint64_t end_at, directory *d)
{
    unsigned char locator[TR__ZIP_LOCATOR_BYTES] = {0};
    if (end_at >= sizeof locator) TR__TRY(tr__plain_read(&zip->file, end_at - sizeof locator, locator, sizeof locator));
    if (get32(locator) == TR__ZIP_LOCATOR) return find_directory64(zip, locator, end_at - sizeof locator, d);
    if (get16(end + 4) || get16(end + 6) || get16(end + 8) != get16(end + 10))
        return damaged(zip, "is one of several parts");
    *d = (directory){.count = get16(end + 10), .bytes = get32(end + 12), .at = get32(end + 16)};
    if (d->at > end_at || d->bytes != end_at - d->at) return damaged(zip, "has no directory where its end says");
    return TR_OK;
}

/* The end is what stands last, but for a comment, whose length it has. */
static tr_status find_directory(const tr__zip *zip, directory *d)
{
    enum { TAIL = TR__ZIP_END_BYTES + MOST_COMMENT };
    uint64_t size = zip->file.bytes < TAIL ? zip->file.bytes : TAIL, tail_at = zip->file.bytes - size;
    unsigned char *tail = malloc(TAIL);
    if (!tail) return tr__fail(TR_NO_MEMORY, "out of memory");
    const unsigned char *end = NULL;
    tr_status status = tr__plain_read(&zip->file, tail_at, tail, size);
    for (uint64_t to = size; status == TR_OK && !end && to >= TR__ZIP_END_BYTES; to--) {
        const unsigned char *p = tail + to - TR__ZIP_END_BYTES;
        if (get32(p) == TR__ZIP_END && get16(p + 20) == size - to) end = p;
    }
    if (end)
        status = read_end(zip, end, tail_at + (uint64_t)(end - tail), d);
    else if (status == TR_OK)
        status = damaged(zip, "is cut short or no .npz archive: it does not end as one");
    free(tail);
    return status;
}

/* The fields of 64 bits stand for those that are full, in this order. */
static tr_status read_large(const tr__zip *zip, const unsigned char *extra, size_t left, tr__zip_member *m)
{
    uint64_t *fields[] = {&m->bytes, &m->packed, &m->at};
    const unsigned char *values = NULL;
    size_t n = 0;
    for (; left >= 4; left -= n + 4, extra += n + 4) {
        n = get16(extra + 2);
        if (n > left - 4) return damaged(zip, "has an extra field that is cut short");
        if (get16(extra) != TR__ZIP_EXTRA64) continue;
        values = extra + 4;
        break;
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (*fields[i] != UINT32_MAX) continue;
        if (!values || n < 8) return damaged(zip, "lacks a size of 64 bits");
        *fields[i] = get64(values);
        values += 8;
        n -= 8;
    }
    return TR_OK;
}

static tr_status check_member(const tr__zip *zip, const tr__zip_member *m, unsigned flags)
{
    if (flags & TR__ZIP_ENCRYPTED)
        return tr__fail(TR_UNSUPPORTED, "%s: its member %s is encrypted", zip->file.path, m->name);
    if (m->method != TR__ZIP_STORED && m->method != TR__ZIP_DEFLATED)
        return tr__fail(TR_UNSUPPORTED, "%s: its member %s is compressed by method %d; 0 (stored) and 8 (deflated) are known",
            zip->file.path, m->name, m->method);
    if (m->method == TR__ZIP_STORED ? m->bytes == m->packed : m->bytes / MOST_OF_A_BYTE <= m->packed) return TR_OK;
    return tr__fail(TR_FORMAT, "%s: its member %s cannot have %" PRIu64 " bytes in %" PRIu64, zip->file.path, m->name, m->bytes,
        m->packed);
}

/* One entry of the directory; *at goes behind it. */
static tr_status read_entry(tr__zip *zip, const unsigned char **at, const unsigned char *end)
{
    const unsigned char *p = *at;
    if (end - p < TR__ZIP_CENTRAL_BYTES || get32(p) != TR__ZIP_CENTRAL) return damaged(zip, "has a damaged directory");
    size_t name = get16(p + 28), extra = get16(p + 30), comment = get16(p + 32);
    if ((size_t)(end - p) < TR__ZIP_CENTRAL_BYTES + name + extra + comment) return damaged(zip, "has a directory cut short");
    const char *text = (const char *)p + TR__ZIP_CENTRAL_BYTES;
    *at = p + TR__ZIP_CENTRAL_BYTES + name + extra + comment;
    if (memchr(text, '\0', name) || !tr__is_utf8(text, name))
        return damaged(zip, "has a member whose name is not UTF-8");
    tr__zip_member *m = &zip->members[zip->count];
    m->name = strndup(text, name);
    if (!m->name) return tr__fail(TR_NO_MEMORY, "out of memory");
    zip->count++;
    m->method = (int)get16(p + 10);
    m->checksum = get32(p + 16);
    m->packed = get32(p + 20);
    m->bytes = get32(p + 24);
    m->at = get32(p + 42);
    TR__TRY(read_large(zip, p + TR__ZIP_CENTRAL_BYTES + name, extra, m));
    return check_member(zip, m, get16(p + 8));
}

static tr_status read_directory(tr__zip *zip, const directory *d)
{
    if (d->bytes > TR__ZIP_MOST_DIRECTORY || d->count > d->bytes / TR__ZIP_CENTRAL_BYTES)
        return tr__fail(TR_FORMAT, "%s: cannot have %" PRIu64 " members in a directory of %" PRIu64 " bytes (of %d allowed)",
            zip->file.path, d->count, d->bytes, TR__ZIP_MOST_DIRECTORY);
    unsigned char *text = malloc((size_t)d->bytes + 1);
    zip->members = calloc((size_t)d->count + 1, sizeof *zip->members);
    tr_status status = text && zip->members ? TR_OK : tr__fail(TR_NO_MEMORY, "out of memory");
    if (status == TR_OK) status = tr__plain_read(&zip->file, d->at, text, d->bytes);
    const unsigned char *at = text;
    for (uint64_t i = 0; i < d->count && status == TR_OK; i++) status = read_entry(zip, &at, text + d->bytes);
    if (status == TR_OK && at != text + d->bytes) status = damaged(zip, "has more in its directory than members");
    free(text);
    return status;
}

static int by_place(const void *a, const void *b)
{
    const tr__zip_member *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* Finds where each member's data begins. Overlapping members would let a small file grow without bound. */
static tr_status place_members(tr__zip *zip, uint64_t end)
{
    qsort(zip->members, (size_t)zip->count, sizeof *zip->members, by_place);
    uint64_t free_from = 0;
    for (int i = 0; i < zip->count; i++) {
        tr__zip_member *m = &zip->members[i];
        unsigned char local[TR__ZIP_LOCAL_BYTES];
        if (m->at < free_from || m->at > end || end - m->at < sizeof local)
            return tr__fail(TR_FORMAT, "%s: its member %s lies over something else", zip->file.path, m->name);
        TR__TRY(tr__plain_read(&zip->file, m->at, local, sizeof local));
        uint64_t header = sizeof local + get16(local + 26) + get16(local + 28);
        if (get32(local) != TR__ZIP_LOCAL || header > end - m->at || m->packed > end - m->at - header)
            return tr__fail(TR_FORMAT, "%s: its member %s is not where the directory says", zip->file.path, m->name);
        m->at += header;
        free_from = m->at + m->packed;
    }
    return TR_OK;
}

tr_status tr__zip_open(tr__zip *zip, const char *path)
{
    *zip = (tr__zip){.count = 0};
    directory d = {0};
    TR__TRY(tr__plain_open(&zip->file, path, "an .npz archive"));
    tr_status status = find_directory(zip, &d);
    if (status == TR_OK) status = read_directory(zip, &d);
    if (status == TR_OK) status = place_members(zip, d.at);
    if (status != TR_OK) tr__zip_close(zip);
    return status;
}

void tr__zip_close(tr__zip *zip)
{
    for (int i = 0; i < zip->count; i++) free(zip->members[i].name);
    free(zip->members);
    tr__plain_close(&zip->file);
    *zip = (tr__zip){.file.fd = -1};
}

/* ---- Members --------------------------------------------------------------------------------------------------------- */

static tr_status damaged_member(const tr__zip_stream *s, const char *what)
{
    return tr__fail(TR_FORMAT, "%s: its member %s %s", s->zip->file.path, s->name, what);
}

tr_status tr__zip_begin(tr__zip_stream *s, const tr__zip *zip, const tr__zip_member *m)
{
    s->zip = zip;
    s->name = m->name;
    s->at = m->at;
    s->packed = m->packed;
    s->bytes = m->bytes;
    s->checksum = m->checksum;
    s->sum = 0;
    s->deflated = m->method == TR__ZIP_DEFLATED;
    s->inflation = (z_stream){.next_in = s->buffer};
    if (!s->deflated || inflateInit2(&s->inflation, -MAX_WBITS) == Z_OK) return TR_OK;
    return tr__fail(TR_NO_MEMORY, "out of memory");
}

void tr__zip_end(tr__zip_stream *s)
{
    if (s->deflated) inflateEnd(&s->inflation);
}

static tr_status read_stored(tr__zip_stream *s, void *to, uint64_t bytes)
{
    TR__TRY(tr__plain_read(&s->zip->file, s->at, to, bytes));
    s->at += bytes;
    s->packed -= bytes;
    return TR_OK;
}

static tr_status refill(tr__zip_stream *s)
{
    if (s->inflation.avail_in || !s->packed) return TR_OK;
    uint64_t n = s->packed < sizeof s->buffer ? s->packed : sizeof s->buffer;
    TR__TRY(read_stored(s, s->buffer, n));
    s->inflation.next_in = s->buffer;
    s->inflation.avail_in = (uInt)n;
    return TR_OK;
}

/* With bytes 0 only what comes behind the last byte is looked at: the end, and no more than that. */
static tr_status read_deflated(tr__zip_stream *s, void *to, uint64_t bytes)
{
    enum { PIECE = 1 << 30 };
    unsigned char none;
    bool last = bytes == s->bytes;
    int result = Z_OK;
    for (unsigned char *at = to; result == Z_OK && (bytes || last);) {
        TR__TRY(refill(s));
        uInt room = bytes < PIECE ? (uInt)bytes : PIECE;
        s->inflation.next_out = bytes ? at : &none;
        s->inflation.avail_out = bytes ? room : 1;
        result = inflate(&s->inflation, Z_NO_FLUSH);
        uInt made = (bytes ? room : 1) - s->inflation.avail_out;
        if (made > bytes) return damaged_member(s, "goes on after its bytes");
        at += made;
        bytes -= made;
    }
    if (result == Z_MEM_ERROR) return tr__fail(TR_NO_MEMORY, "out of memory");
    if (bytes || (result != Z_OK && result != Z_STREAM_END) || (last && (s->packed || s->inflation.avail_in)))
        return damaged_member(s, bytes && result == Z_STREAM_END ? "ends too early" : "is damaged");
    return TR_OK;
}

tr_status tr__zip_read(tr__zip_stream *s, void *to, uint64_t bytes)
{
    TR__TRY(s->deflated ? read_deflated(s, to, bytes) : read_stored(s, to, bytes));
    s->sum = (uint32_t)crc32_z(s->sum, to, bytes);
    s->bytes -= bytes;
    return s->bytes || s->sum == s->checksum ? TR_OK : damaged_member(s, "has another checksum than the archive says");
}
