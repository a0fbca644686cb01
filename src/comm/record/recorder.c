/* Writing the flight recorder. What is read where, and who may write what, is said in recorder.h. */
#define _GNU_SOURCE
#include "comm/record/recorder.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/object.h"
#include "base/profile.h"
#include "base/thread.h"
#include "comm/collective.h"
#include "comm/record/record.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A memfd with the records of a group and of those made within it. A record that is closed leaves its memory to the next. */
typedef struct record_file {
    pthread_mutex_t lock;
    int fd;                  /* kept: /proc/PID/fd lets readers in where /proc/PID/map_files asks for privileges */
    int users;
    size_t stride;           /* from record to record */
    tr__record_header **all; /* [count]; of one that is free the process is 0 */
    int count;
    int first_free;          /* none before it is free */
    uint64_t pid_start;
    unsigned forks;          /* of the process that writes: a child of it leaves its records alone */
} record_file;

struct tr__recorder {
    record_file *file;
    int number; /* of the record, in the file */
    tr__record_header *header;
    tr__record_entry *entries;
    tr__record_peer *peers;
    char *folder;
    atomic_bool failed;
};

/* Nothing to write to: none, or a parent's. */
static bool none(const tr__recorder *r)
{
    return !r || r->file->forks != tr__forks();
}

#define PUT(field, value) atomic_store_explicit(&(field), (value), memory_order_release)
#define GET(field) atomic_load_explicit(&(field), memory_order_relaxed)

/* ---- The file ---------------------------------------------------------------------------------------------------- */

enum {
    MOST_RECORDS = 64, /* made at a time; before that, as many as there are, and one */
    FIRST_BYTES = 2 * TR__PAGE,
    PEERS_AT = sizeof(tr__record_header) + TR__RECORD_ENTRIES * sizeof(tr__record_entry),
};

/* The pages are reserved now, and nobody can take them away: writing never meets a SIGBUS. Returns an errno. */
static int grow(record_file *f, int count)
{
    int error;
    size_t all = (size_t)(f->count + count), begin = (size_t)f->count * f->stride, bytes = (size_t)count * f->stride;
    tr__record_header **records = realloc(f->all, all * sizeof *records);
    if (records) f->all = records;
    if (!records) return ENOMEM;
    while ((error = posix_fallocate(f->fd, (off_t)begin, (off_t)bytes)) == EINTR) continue;
    if (error) return error;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, (off_t)begin);
    if (memory == MAP_FAILED) return errno;
    for (int i = 0; i < count; i++) {
        char *record = memory + (size_t)i * f->stride;
        f->all[f->count + i] = (tr__record_header *)record;
        /* What is written of a group that is made, of its first calls and of its ranks: few groups ever fill their record. */
        tr__pages_map(record, FIRST_BYTES);
        tr__pages_map(record + PEERS_AT, f->stride - PEERS_AT);
    }
    f->count += count;
    return 0;
}

static void let_go(record_file *f)
{
    pthread_mutex_lock(&f->lock);
    bool last = --f->users == 0;
    pthread_mutex_unlock(&f->lock);
    if (!last) return;
    for (int i = 0; i < f->count; i++) munmap(f->all[i], f->stride);
    if (f->fd >= 0) close(f->fd);
    pthread_mutex_destroy(&f->lock);
    free(f->all);
    free(f);
}

/* Returns an errno. */
static int make_file(size_t stride, record_file **made)
{
    record_file *f = calloc(1, sizeof *f);
    if (!f) return ENOMEM;
    *f = (record_file){.users = 1, .stride = stride, .pid_start = tr__process_of(getpid()).start, .forks = tr__count_forks()};
    pthread_mutex_init(&f->lock, NULL);
    f->fd = memfd_create(TR__RECORD_MEMFD, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int error = f->fd < 0 ? errno : 0;
    if (!error && fcntl(f->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) error = errno;
    if (!error) error = grow(f, 1);
    if (error)
        let_go(f);
    else
        *made = f;
    return error;
}

/* A record for r, all zero. Returns an errno. */
static int take_record(record_file *f, tr__recorder *r)
{
    TR__LOCKED(&f->lock);
    int number = f->first_free;
    while (number < f->count && f->all[number]->pid) number++;
    int error = number == f->count ? grow(f, number < MOST_RECORDS ? number + 1 : MOST_RECORDS) : 0;
    if (error) return error;
    f->first_free = number + 1;
    r->number = number;
    r->header = f->all[number];
    r->header->pid = getpid();
    r->entries = (tr__record_entry *)(r->header + 1);
    r->peers = (tr__record_peer *)((char *)r->header + PEERS_AT);
    return 0;
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

/* Whoever reads knows a record by its magic, which comes last, and goes first. */
static void fill_header(tr__recorder *r, const tr__recorder_options *o)
{
    tr__record_header *h = r->header;
    h->version = TR__RECORD_VERSION;
    h->header_bytes = sizeof *h;
    h->entry_bytes = sizeof *r->entries;
    h->entry_count = TR__RECORD_ENTRIES;
    h->peer_bytes = sizeof *r->peers;
    h->parent = getppid();
    h->rank = o->rank;
    h->world_size = o->world_size;
    h->pid_start = r->file->pid_start;
    h->monotonic = tr__now_ns();
    h->realtime = tr__wall_ns();
    snprintf(h->job, sizeof h->job, "%s", o->job ? o->job : "");
    snprintf(h->group, sizeof h->group, "%s", o->group);
    snprintf(h->backend, sizeof h->backend, "%s", o->backend);
    if (gethostname(h->host, sizeof h->host - 1) != 0) strcpy(h->host, "unknown");
    uint64_t magic;
    memcpy(&magic, TR__RECORD_MAGIC, sizeof magic);
    PUT(*(_Atomic uint64_t *)(void *)h->magic, magic);
}

tr__recorder *tr__recorder_open(const tr__recorder_options *o)
{
    tr__recorder *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    size_t bytes = tr__round_up(PEERS_AT + (size_t)o->world_size * sizeof *r->peers, TR__PAGE);
    int error = 0;
    r->folder = o->folder && *o->folder ? strdup(o->folder) : NULL;
    if (o->beside && bytes <= o->beside->file->stride) {
        r->file = o->beside->file;
        pthread_mutex_lock(&r->file->lock);
        r->file->users++;
        pthread_mutex_unlock(&r->file->lock);
    } else {
        error = make_file(bytes, &r->file);
    }
    if (!error) error = take_record(r->file, r);
    if (error) {
        tr__log(TR_LOG_WARN, "group '%s': no flight recorder, so `trireme why` will not see rank %d: %s", o->group,
            o->rank, strerror(error));
        tr__recorder_close(r);
        return NULL;
    }
    fill_header(r, o);
    return r;
}

void tr__recorder_close(tr__recorder *r)
{
    if (!r) return;
    if (r->header && !none(r)) {
        /* What was written becomes zero again, and nothing else is touched. */
        uint64_t next = GET(r->header->next);
        memset(r->header->magic, 0, sizeof r->header->magic);
        memset(r->entries, 0, (next < TR__RECORD_ENTRIES ? next : TR__RECORD_ENTRIES) * sizeof *r->entries);
        memset(r->peers, 0, (size_t)r->header->world_size * sizeof *r->peers);
        pthread_mutex_lock(&r->file->lock);
        memset(r->header, 0, sizeof *r->header); /* and free again */
        if (r->number < r->file->first_free) r->file->first_free = r->number;
        pthread_mutex_unlock(&r->file->lock);
    }
    if (r->file) let_go(r->file);
    free(r->folder);
    free(r);
}

void tr__recorder_joined(tr__recorder *r)
{
    if (none(r)) return;
    tr__recorder_waits_for(r, NULL, 0);
    PUT(r->header->state, TR__RECORD_JOINED);
}

void tr__recorder_peer(tr__recorder *r, int rank, long pid, const char *host)
{
    if (none(r) || rank < 0 || rank >= r->header->world_size) return;
    tr__record_peer *peer = &r->peers[rank];
    snprintf(peer->host, sizeof peer->host, "%.*s", (int)sizeof peer->host - 1, host ? host : r->header->host);
    PUT(peer->pid, (int32_t)pid);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* The entry for a new call: the oldest that is not under way. Returns its id, or UINT64_MAX when all are. */
static uint64_t take_entry(tr__recorder *r, tr__record_entry **entry)
{
    for (int tries = 0; tries < TR__RECORD_ENTRIES; tries++) {
        uint64_t id = atomic_fetch_add_explicit(&r->header->next, 1, memory_order_relaxed);
        *entry = &r->entries[id % TR__RECORD_ENTRIES];
        if (GET((*entry)->mark) == 0 || GET((*entry)->ended) != 0) return id;
    }
    return UINT64_MAX;
}

/* Returns the record. Release stores keep all that follows behind the odd mark. */
static uint64_t write_entry(tr__recorder *r, const tr_collective *c, uint64_t sequence, bool starts)
{
    tr__record_entry *e;
    uint64_t id = take_entry(r, &e);
    if (id == UINT64_MAX) return 0;
    int64_t now = tr__now_ns();
    PUT(e->mark, 2 * id + 1);
    PUT(e->ended, 0);
    PUT(e->sequence, sequence);
    PUT(e->posted, now);
    PUT(e->started, starts ? now : 0);
    tr__call_write(&e->call, e->file, sizeof e->file, c, 0);
    PUT(e->mark, 2 * id + 2);
    return id + 1;
}

/* NULL when the entry has another call by now. */
static tr__record_entry *entry_of(tr__recorder *r, uint64_t record)
{
    tr__record_entry *e = &r->entries[(record - 1) % TR__RECORD_ENTRIES];
    return record != 0 && GET(e->mark) == 2 * record ? e : NULL;
}

uint64_t tr__recorder_post(tr__recorder *r, const tr_collective *c)
{
    return none(r) ? 0 : write_entry(r, c, 0, false);
}

uint64_t tr__recorder_start(tr__recorder *r, uint64_t record, const tr_collective *c, uint64_t sequence)
{
    if (none(r)) return 0;
    tr__record_entry *e = entry_of(r, record);
    if (!e) return write_entry(r, c, sequence, true);
    PUT(e->sequence, sequence);
    PUT(e->started, tr__now_ns());
    return record;
}

void tr__recorder_is_rpc(tr__recorder *r)
{
    if (!none(r)) PUT(r->header->rpc, 1);
}

size_t tr__recorder_fit(const char *text, size_t most)
{
    size_t length = strnlen(text, most + 1);
    if (length <= most) return length;
    for (length = most; length && ((unsigned char)text[length] & 0xc0) == 0x80;) length--;
    return length;
}

uint64_t tr__recorder_wait(tr__recorder *r, int rank, bool through_others, const char *text)
{
    if (none(r)) return 0;
    char end[TR__RECORD_FILE]; /* a place keeps the end of a text, a call its beginning */
    snprintf(end, sizeof end, "%.*s", (int)tr__recorder_fit(text, sizeof end - 1), text);
    tr_collective c = {.kind = (tr_collective_kind)TR__REMOTE_WAIT, .peer = rank, .tag = through_others, .file = end};
    return write_entry(r, &c, 0, true);
}

static void fail(tr__recorder *r, tr_status status)
{
    if (status == TR_UNSUPPORTED || status == TR_INVALID) return; /* of the call alone: the group goes on */
    if (atomic_exchange(&r->failed, true)) return;
    uint64_t words[TR__RECORD_FAILURE / 8] = {0};
    snprintf((char *)words, sizeof words, "%s", tr_error_message());
    for (size_t i = 0; i < TR__RECORD_FAILURE / 8; i++) PUT(r->header->failure[i], words[i]);
    PUT(r->header->failed, tr__now_ns());
    PUT(r->header->state, TR__RECORD_FAILED);
    if (r->folder) tr__record_dump(r->folder, r->header);
}

static void add_to_profile(const tr__record_entry *e)
{
    uint32_t what = GET(e->call.what);
    tr__span span = {.kind = TR__SPAN_COLLECTIVE, .begin = GET(e->started) ? GET(e->started) : GET(e->posted)};
    snprintf(span.name, sizeof span.name, "%s", tr__kind_name((tr_collective_kind)(what & 0xff)));
    snprintf(span.detail, sizeof span.detail, "%s[%lld]", tr_dtype_name((tr_dtype)(what >> 8 & 0xff)),
        (long long)GET(e->call.count));
    tr__profile_add(span);
}

void tr__recorder_end(tr__recorder *r, uint64_t record, tr_status status)
{
    if (none(r)) return;
    /* The files show the call as it failed: under way, and waiting. */
    if (status != TR_OK) fail(r, status);
    tr__record_entry *e = entry_of(r, record);
    if (!e || GET(e->ended)) return;
    /* A send that ends beside a collective does not end the collective's waiting. */
    int kind = GET(e->call.what) & 0xff;
    bool transfer = tr__kind_of((tr_collective_kind)kind)->point_to_point;
    if (!transfer && GET(r->header->waits_total)) tr__recorder_waits_for(r, NULL, 0);
    PUT(e->status, status);
    PUT(e->ended, tr__now_ns());
    if (tr__profiling() && kind != TR__REMOTE_WAIT) add_to_profile(e);
}

void tr__recorder_held(tr__recorder *r, const tr__held *held)
{
    if (none(r)) return;
    PUT(r->header->held_bytes, 0);
    if (!held) return;
    PUT(r->header->held_rank, held->rank);
    PUT(r->header->held_tag, held->tag);
    PUT(r->header->held_bytes, held->bytes);
}

char *tr__held_text(const tr__held *held, char text[TR__HELD_TEXT])
{
    text[0] = 0;
    if (!held->bytes) return text;
    int used = snprintf(text, TR__HELD_TEXT, " to receive: %.3g MiB lie there unasked", (double)held->bytes / (1 << 20));
    if (held->tag >= 0) snprintf(text + used, TR__HELD_TEXT - (size_t)used, ", the first of tag %d", held->tag);
    return text;
}

void tr__recorder_waits_for(tr__recorder *r, const int *ranks, int count)
{
    if (none(r)) return;
    tr__record_header *h = r->header;
    uint32_t odd = GET(h->waits_mark) | 1; /* also after two threads were in here at once */
    PUT(h->waits_mark, odd);
    if (count && !GET(h->waits_total)) PUT(h->waits_since, tr__now_ns());
    for (int i = 0; i < count && i < TR__RECORD_WAITS; i++) PUT(h->waits[i], ranks[i]);
    PUT(h->waits_total, count);
    PUT(h->waits_mark, odd + 1);
}
