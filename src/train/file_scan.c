#include "train/file_scan.h"

#include "base/crc32c.h"
#include "device/device.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What one thread reads and sums at once, how much of that makes a buffer, and the least that threads share. */
enum { PIECE = 1 << 20, PIECES = 16, LEAST = 1 << 18 };

typedef struct piece {
    uint32_t sum;
    tr__not_finite found;
    int strange; /* a byte that is not a bool; 0: all bytes are */
    tr__error *failure;
} piece;

/* A part of a tensor that fits into a buffer. */
typedef struct window {
    tr__file_scan *scan;
    const tr__safetensors_entry *e;
    uint64_t at, bytes; /* in the tensor */
    piece pieces[PIECES];
} window;

static uint64_t piece_bytes(const window *w, int64_t i)
{
    uint64_t left = w->bytes - (uint64_t)i * PIECE;
    return left < PIECE ? left : PIECE;
}

static void scan_piece(window *w, int64_t i)
{
    const tr__safetensors_reader *r = w->scan->r;
    uint64_t at = w->at + (uint64_t)i * PIECE, bytes = piece_bytes(w, i);
    unsigned char *to = (unsigned char *)w->scan->buffers[w->scan->turn] + (size_t)i * PIECE;
    size_t size = tr_dtype_size(w->e->dtype);
    piece *p = &w->pieces[i];
    if (tr__plain_read(&r->file, r->data_begin + w->e->begin + at, to, bytes) != TR_OK) {
        p->failure = tr__error_take();
        return;
    }
    p->sum = tr__crc32c(0, to, bytes);
    p->found = tr__find_not_finite(w->e->dtype, to, (int64_t)(bytes / size), (int64_t)(at / size));
    for (uint64_t k = 0; w->e->dtype == TR_BOOL && k < bytes; k++)
        if (to[k] > 1) p->strange = to[k];
}

static void hash_before(tr__file_scan *s)
{
    if (s->hash.context && s->hashed_bytes) tr__sha256_add(&s->hash, s->buffers[1 - s->turn], s->hashed_bytes);
    s->hashed_bytes = 0;
}

/* Hashing goes byte after byte and takes longest: it is the first piece of work, and one thread's. */
static void scan_pieces(void *arg, int64_t begin, int64_t end)
{
    window *w = arg;
    for (int64_t i = begin; i < end; i++) {
        if (i == 0)
            hash_before(w->scan);
        else
            scan_piece(w, i - 1);
    }
}

tr_status tr__file_scan_begin(tr__file_scan *s, const tr__safetensors_reader *r, bool with_hash)
{
    *s = (tr__file_scan){.r = r};
    const size_t bytes = (size_t)PIECES * PIECE;
    for (int i = 0; i < 2; i++) s->buffers[i] = malloc(bytes);
    if (!s->buffers[0] || !s->buffers[1]) return tr__fail(TR_NO_MEMORY, "no memory to read %s", r->file.path);
    if (!with_hash) return TR_OK;
    TR__TRY(tr__sha256_begin(&s->hash));
    for (uint64_t at = 0; at < r->data_begin; at += bytes) {
        uint64_t left = r->data_begin - at < bytes ? r->data_begin - at : bytes;
        TR__TRY(tr__plain_read(&r->file, at, s->buffers[0], left));
        tr__sha256_add(&s->hash, s->buffers[0], left);
    }
    return TR_OK;
}

tr_status tr__file_scan_tensor(tr__file_scan *s, const tr__safetensors_entry *e, tr__not_finite *found)
{
    uint32_t sum = 0;
    int strange = 0;
    tr_status status = TR_OK;
    *found = (tr__not_finite){0};
    for (uint64_t at = 0; at < e->end - e->begin && status == TR_OK;) {
        window w = {.scan = s, .e = e, .at = at, .bytes = e->end - e->begin - at};
        if (w.bytes > (uint64_t)PIECES * PIECE) w.bytes = (uint64_t)PIECES * PIECE;
        int64_t count = (int64_t)((w.bytes + PIECE - 1) / PIECE);
        bool alone = w.bytes + s->hashed_bytes < LEAST; /* this thread has done it before others have woken */
        tr__pool_for(alone ? NULL : tr__cpu_pool((tr_device){0}), 1 + count, 1, scan_pieces, &w);
        for (int64_t i = 0; i < count; i++) {
            const piece *p = &w.pieces[i];
            if (status == TR_OK) status = tr__fail_stored(p->failure);
            tr__error_unref(p->failure);
            sum = tr__crc32c_combine(sum, p->sum, piece_bytes(&w, i));
            tr__add_not_finite(found, &p->found);
            if (p->strange) strange = p->strange;
        }
        s->turn = 1 - s->turn;
        s->hashed_bytes = w.bytes;
        at += w.bytes;
    }
    TR__TRY(status);
    if (s->r->record) TR__TRY(tr__safetensors_check(s->r, e, sum));
    if (!strange) return TR_OK;
    return tr__file_damaged(s->r, "tensor \"%s\" of bool holds the value %d", e->name, strange);
}

tr_status tr__file_scan_check(tr__file_scan *s)
{
    char text[TR__SHA256_TEXT];
    if (!s->hash.context) return TR_OK;
    hash_before(s);
    tr__sha256_end(&s->hash, text);
    if (strcmp(text, s->r->record->sha256) == 0) return TR_OK;
    return tr__file_damaged(s->r,
                            "is damaged somewhere in bytes 0 to %" PRIu64
                            ", though every CRC-32C holds: SHA-256 %s, its "
                            "checkpoint's manifest says %s",
                            s->r->file.bytes, text, s->r->record->sha256);
}

void tr__file_scan_end(tr__file_scan *s)
{
    char text[TR__SHA256_TEXT];
    if (s->hash.context) tr__sha256_end(&s->hash, text);
    free(s->buffers[0]);
    free(s->buffers[1]);
}
