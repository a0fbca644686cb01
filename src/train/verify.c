/* Verifies a checkpoint: reads all of it, and reports for each part whether it is what was saved. */
#include "base/crc32c.h"
#include "base/folder.h"
#include "device/device.h"
#include "tensor/finite.h"
#include "train/checkpoint.h"
#include "train/manifest.h"
#include "train/safetensors_header.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Reading a file through, without keeping it ------------------------------------------------------------------------- */

/* A scan computes checksums, and what is not finite, by all threads of the CPU, while one of them hashes what was read
 * before. */
typedef struct file_scan {
    const tr__safetensors_reader *r;
    char *buffers[2];
    int turn;            /* which of them is read into next; the other one is still to be hashed, */
    size_t hashed_bytes; /* so many bytes of it */
    tr__sha256 hash;     /* of all the bytes of the file, in their order; without a context: none is wanted */
} file_scan;

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
    file_scan *scan;
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

static void hash_before(file_scan *s)
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

/* Begins with the header of a file that is open. To be ended, also after a failure. */
static tr_status scan_begin(file_scan *s, const tr__safetensors_reader *r, bool with_hash)
{
    *s = (file_scan){.r = r};
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

/* Each tensor, in the order of r->by_offset. TR_FORMAT when its bytes are not those of the record, or are no values of its dtype;
 * the scan goes on with the next one all the same. */
static tr_status scan_tensor(file_scan *s, const tr__safetensors_entry *e, tr__not_finite *found)
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

/* After the last tensor: is the hash that of the record? Else TR_FORMAT. */
static tr_status scan_check(file_scan *s)
{
    char text[TR__SHA256_TEXT];
    if (!s->hash.context) return TR_OK;
    hash_before(s);
    tr__sha256_end(&s->hash, text);
    if (strcmp(text, s->r->record->sha256) == 0) return TR_OK;
    return tr__file_damaged(s->r, "is damaged somewhere in bytes 0 to %" PRIu64 ", though every CRC-32C holds: SHA-256 %s, its "
        "checkpoint's manifest says %s", s->r->file.bytes, text, s->r->record->sha256);
}

static void scan_end(file_scan *s)
{
    char text[TR__SHA256_TEXT];
    if (s->hash.context) tr__sha256_end(&s->hash, text);
    free(s->buffers[0]);
    free(s->buffers[1]);
}

/* ---- The parts --------------------------------------------------------------------------------------------------------- */

typedef struct verifying {
    const tr_checkpoint_verify_options *options;
    tr_checkpoint_report *report;
    bool alone;         /* it is a single file that no manifest lists */
    bool is_checkpoint; /* by its name: then its files have been there */
    tr__error *first;   /* the first damage; NULL: none so far */
} verifying;

/* Reports damage, and goes on with what follows; any other failure is returned. */
static tr_status tell(verifying *v, tr_checkpoint_part *part, tr_status status)
{
    if (status != TR_OK && status != TR_FORMAT) return status;
    tr__error *why = status == TR_OK ? NULL : tr__error_take();
    part->damage = why ? why->message : NULL;
    v->report->damaged += why != NULL;
    v->report->not_finite += part->nans + part->infinities > 0;
    if (v->options->on_part) v->options->on_part(part, v->options->user);
    if (v->first)
        tr__error_unref(why);
    else
        v->first = why;
    return TR_OK;
}

static tr_status verify_tensors(verifying *v, const tr__safetensors_reader *r, file_scan *scan, const char *name)
{
    bool history = strcmp(name, tr__checkpoint_files[TR__HISTORY_FILE]) == 0;
    for (int i = 0; i < r->count; i++) {
        const tr__safetensors_entry *e = r->by_offset[i];
        tr__not_finite found;
        tr_status status = scan_tensor(scan, e, &found);
        tr_checkpoint_part part = {.file = name,
                                   .tensor = e->name,
                                   .begin = (int64_t)(r->data_begin + e->begin),
                                   .end = (int64_t)(r->data_begin + e->end),
                                   .dtype = e->dtype,
                                   .shape = e->shape,
                                   .first_not_finite = -1};
        if (!history && tr__has_not_finite(&found)) {
            part.nans = found.nans;
            part.infinities = found.infinities;
            part.first_not_finite = found.first;
        }
        v->report->tensors++;
        TR__TRY(tell(v, &part, status));
    }
    return TR_OK;
}

/* The hash covers what the checksums cover: it has something to say of a file only where they find nothing. */
static tr_status verify_contents(verifying *v, const tr__safetensors_reader *r, const char *name)
{
    file_scan scan;
    int damaged = v->report->damaged;
    tr_status status = scan_begin(&scan, r, r->record != NULL);
    if (status == TR_OK) status = verify_tensors(v, r, &scan, name);
    if (status == TR_OK && v->report->damaged == damaged) status = scan_check(&scan);
    scan_end(&scan);
    return status;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* record: the manifest's entry of the file; NULL: it has none. */
static tr_status verify_file(verifying *v, const char *path, const tr__file_record *record, tr_tensor_list *metadata)
{
    const char *name = name_of(path);
    tr__safetensors_reader r;
    tr_status status = tr__safetensors_open(&r, path, record, metadata);
    if (status == TR_NOT_FOUND && (record || v->is_checkpoint)) status = tr__fail(TR_FORMAT, "%s: is missing", path);
    tr_checkpoint_part part = {.file = name, .end = (int64_t)r.file.bytes, .first_not_finite = -1};
    if (status == TR_OK) status = verify_contents(v, &r, name);
    if (status == TR_OK && !v->report->has_manifest && !v->alone && tr_list_metadata(metadata, tr__save_key))
        status = tr__fail(TR_FORMAT, "%s: was saved with a manifest.json beside it, which is missing", path);
    if (status == TR_OK || status == TR_FORMAT) {
        v->report->files++;
        v->report->bytes += part.end;
        status = tell(v, &part, status);
    }
    tr__safetensors_close(&r);
    return status;
}

static tr_status verify_files(verifying *v, const char *folder, const tr__manifest *m)
{
    for (int i = 0; i < TR__CHECKPOINT_FILES; i++) {
        TR_SCOPE;
        const char *name = tr__checkpoint_files[i];
        const tr__file_record *record = m ? tr__manifest_file(m, name) : NULL;
        char path[PATH_MAX];
        TR__TRY(tr__path_join(path, folder, name));
        bool needed = i == TR__MODEL_FILE || (m && i == TR__STATE_FILE);
        if (m && needed && !record) {
            tr_checkpoint_part part = {.file = name, .first_not_finite = -1};
            TR__TRY(tell(v, &part, tr__fail(TR_FORMAT, "%s: its manifest has no %s", folder, name)));
        } else if (record || needed || (!m && access(path, F_OK) == 0)) {
            TR__TRY(verify_file(v, path, record, i == TR__MODEL_FILE ? v->report->about : tr_list_new()));
        }
    }
    return TR_OK;
}

static void describe(tr_checkpoint_report *report, const tr__manifest *m)
{
    report->has_manifest = true;
    report->step = m->step;
    report->loss = m->loss;
    snprintf(report->save, sizeof report->save, "%s", m->save);
    snprintf(report->version, sizeof report->version, "%s", m->version);
    snprintf(report->settings, sizeof report->settings, "%s", m->settings);
}

/* A checkpoint, or one file (NULL: all), by the manifest in its folder. */
static tr_status verify(verifying *v, const char *folder, const char *file)
{
    tr__manifest m;
    bool known;
    tr_status status = tr__checkpoint_manifest(folder, &m, &known);
    const tr__file_record *record = status == TR_OK && known && file ? tr__manifest_file(&m, name_of(file)) : NULL;
    v->alone = file && !record;
    if (status == TR_FORMAT) {
        tr_checkpoint_part part = {.file = "manifest.json", .first_not_finite = -1};
        status = tell(v, &part, status);
    } else if (status == TR_OK) {
        if (known && !v->alone) describe(v->report, &m);
        status = file ? verify_file(v, file, record, v->report->about) : verify_files(v, folder, known ? &m : NULL);
    }
    tr__manifest_free(&m);
    return status;
}

tr_status tr_checkpoint_verify_with(const tr_checkpoint_verify_options *o)
{
    if (!o->path) return tr__fail(TR_INVALID, "checkpoint_verify: the path is NULL");
    tr_checkpoint_report report = {.step = -1, .loss = NAN, .about = tr_list_new()};
    verifying v = {.options = o, .report = &report, .is_checkpoint = tr__checkpoint_named_step(o->path) >= 0};
    char folder[PATH_MAX];
    struct stat s;
    TR__TRY(tr_status_of(report.about));
    if (snprintf(folder, sizeof folder, "%s", o->path) >= PATH_MAX)
        return tr__fail(TR_INVALID, "the path %.60s… is too long", o->path);
    const char *file = stat(o->path, &s) == 0 && !S_ISDIR(s.st_mode) ? o->path : NULL;
    char *slash = strrchr(folder, '/');
    if (file && !slash)
        strcpy(folder, ".");
    else if (file)
        slash[slash == folder] = '\0'; /* "/file" is in "/" */
    tr_status status = verify(&v, folder, file);
    if (status == TR_OK && v.first) {
        status = tr__fail_stored(v.first);
        if (report.damaged > 1)
            status = tr__fail(status, "%s; %d more parts are damaged", v.first->message, report.damaged - 1);
    }
    tr__error_unref(v.first);
    if (o->report) *o->report = report;
    return status;
}
