/*
 * The store in a file, for processes that share a file system: a log of settings, to which everyone adds and which
 * everyone reads along.
 *
 *     0   "TRIRSTO1"
 *     8   records, one after the other:   u32 bytes of the body, u32 CRC-32 of the body,
 *                                         the body: u16 bytes of the key, the key, the value
 *
 * Two byte ranges are locked, far behind the end of any log, by the kernel, which lets go when a process ends, however:
 *
 *   PRESENCE   held shared as long as the store is open. Who gets it exclusively is alone: at first, so what the file
 *              holds is left over from a former job and is cleared; at last, so the file is removed.
 *   LOG        held exclusively to change and to go, shared to read.
 *
 * A writer that dies half-way leaves a record that is cut, or whose checksum is wrong: readers stop before it, and the
 * next writer cuts it off. The locks belong to the open file, not to the process, so threads can be ranks.
 */
#include "base/clock.h"
#include "base/given.h"
#include "base/memory.h"
#include "net/store/file.h"
#include "net/store/frame.h"
#include "net/store/store.h"
#include "net/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

enum {
    HEAD = 8,         /* of a record */
    DELETES = 0x8000, /* beside the length of a record's key: it has no value, and the key goes */
    PAUSE_FIRST_US = 200,
    PAUSE_MOST_US = 20000, /* between two looks at the file or a lock */
    GO_MOST_MS = 1000,     /* what closing waits for another's lock */
};
static const char magic[8] = {'T', 'R', 'I', 'R', 'S', 'T', 'O', '1'};
static const off_t presence_byte = (off_t)1 << 60, log_byte = presence_byte + 1;

typedef struct file_store {
    tr_store store;
    char *path;
    int fd;
    pthread_mutex_t lock; /* for what follows, and before the log's lock */
    tr__map map;
    off_t end; /* of the records that are in the map */
} file_store;

/* ---- Locks ------------------------------------------------------------------------------------------------------- */

static void pause_us(int *us)
{
    nanosleep(&(struct timespec){.tv_nsec = *us * 1000L}, NULL);
    *us = 2 * *us < PAUSE_MOST_US ? 2 * *us : PAUSE_MOST_US;
}

/* type: F_RDLCK, F_WRLCK or F_UNLCK. An errno; EAGAIN: others hold it. */
static int try_lock(int fd, off_t byte, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0) return 0;
    return errno == EACCES ? EAGAIN : errno;
}

static tr_status lock_failed(const char *name, int error)
{
    if (error == EAGAIN)
        return tr__fail(TR_TIMEOUT, "%s: another process holds its lock, and does not let go of it", name);
    return tr__fail_errno(TR_IO, error, "%s: cannot lock it; does its file system have locks?", name);
}

static tr_status lock_until(const file_store *f, off_t byte, short type, int64_t deadline)
{
    int error, pause = PAUSE_FIRST_US;
    while ((error = try_lock(f->fd, byte, type)) == EAGAIN && tr__now_ns() < deadline) pause_us(&pause);
    return error ? lock_failed(f->store.name, error) : TR_OK;
}

/* ---- Records ----------------------------------------------------------------------------------------------------- */

ssize_t tr__store_record(const unsigned char *bytes, size_t count, tr__store_setting *setting)
{
    if (count < HEAD) return 0;
    size_t body = (size_t)tr__read_number(bytes, 4);
    if (body < 2 + 1 || body > 2 + TR__KEY_MAX + TR__VALUE_MAX || count - HEAD < body) return 0;
    const unsigned char *data = bytes + HEAD;
    if (crc32(0, data, (unsigned)body) != tr__read_number(bytes + 4, 4)) return 0;
    size_t key_bytes = (size_t)tr__read_number(data, 2) & ~(size_t)DELETES;
    bool deletes = tr__read_number(data, 2) & DELETES;
    if (key_bytes < 1 || key_bytes > TR__KEY_MAX || key_bytes > body - 2 || (deletes && key_bytes != body - 2)) return 0;
    *setting = (tr__store_setting){(const char *)data + 2, key_bytes, data + 2 + key_bytes, body - 2 - key_bytes, deletes};
    return setting->bytes <= TR__VALUE_MAX ? (ssize_t)(HEAD + body) : 0;
}

/* Takes over what others have added. Under the log's lock. */
static tr_status read_along(file_store *f)
{
    struct stat now;
    if (fstat(f->fd, &now) != 0) return tr__fail_errno(TR_IO, errno, "%s: cannot read it", f->store.name);
    if (now.st_size < f->end) return tr__fail(TR_FORMAT, "%s: another program has cut it short", f->store.name);
    size_t count = (size_t)(now.st_size - f->end);
    if (count == 0) return TR_OK;
    TR__FREED unsigned char *bytes = tr__zeroed(count, 1);
    if (!bytes) return tr__fail(TR_NO_MEMORY, "%s: no memory for %zu bytes", f->store.name, count);
    ssize_t got = pread(f->fd, bytes, count, f->end), record;
    if (got < 0) return tr__fail_errno(TR_IO, errno, "%s: cannot read it", f->store.name);
    tr__store_setting s;
    for (ssize_t at = 0; (record = tr__store_record(bytes + at, (size_t)(got - at), &s)) > 0; at += record, f->end += record) {
        tr__entry *entry = tr__map_find(&f->map, s.key, s.key_bytes, !s.deletes);
        if (s.deletes && entry) {
            tr__map_put(&f->map, entry, NULL);
            tr__map_prune(&f->map, entry);
        } else if (!s.deletes && (!entry || tr__map_set(&f->map, entry, s.value, s.bytes) != TR_OK)) {
            return tr__fail(TR_NO_MEMORY, "%s: no memory for what it holds", f->store.name);
        }
    }
    return TR_OK;
}

static int write_all(int fd, const unsigned char *bytes, size_t count, off_t at)
{
    while (count > 0) {
        ssize_t written = pwrite(fd, bytes, count, at);
        if (written < 0 && errno != EINTR) return errno;
        if (written < 0) continue;
        bytes += written;
        at += written;
        count -= (size_t)written;
    }
    return 0;
}

/* Adds a record behind the last whole one; what was left half-written there goes first. Under the log's lock, after
 * read_along(). */
static tr_status append(file_store *f, const tr__entry *entry)
{
    const tr__map_value *value = entry->value;
    size_t key_bytes = entry->length, value_bytes = value ? value->bytes : 0, body = 2 + key_bytes + value_bytes;
    TR__FREED unsigned char *record = tr__zeroed(HEAD + body, 1);
    if (!record) return tr__fail(TR_NO_MEMORY, "%s: no memory for %zu bytes", f->store.name, body);
    tr__write_number(record, 4, body);
    tr__write_number(record + HEAD, 2, key_bytes | (value ? 0 : DELETES));
    memcpy(record + HEAD + 2, entry->key, key_bytes);
    if (value) memcpy(record + HEAD + 2 + key_bytes, value->data, value_bytes);
    tr__write_number(record + 4, 4, crc32(0, record + HEAD, (unsigned)body));
    int error = ftruncate(f->fd, f->end) == 0 ? write_all(f->fd, record, HEAD + body, f->end) : errno;
    if (error) return tr__fail_errno(TR_IO, error, "%s: cannot write a key of %zu bytes", f->store.name, body);
    f->end += (off_t)(HEAD + body);
    return TR_OK;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* Both locks, and the map up to date; finish() gives them back, also after a failure. */
static tr_status begin(file_store *f, short type, int64_t deadline)
{
    pthread_mutex_lock(&f->lock);
    TR__TRY(lock_until(f, log_byte, type, deadline));
    return read_along(f);
}

static tr_status finish(file_store *f, tr_status status)
{
    try_lock(f->fd, log_byte, F_UNLCK);
    pthread_mutex_unlock(&f->lock);
    return status;
}

/* The map says what the key's value becomes, the log takes it; if the log cannot, the map takes it back. */
static tr_status change_key(file_store *f, const char *key, tr__change *c, tr__entry *entry)
{
    tr__map_value *before = entry->value;
    if (before) before->refs++;
    tr_status status = tr__store_changed(&f->store, key, tr__map_change(&f->map, entry, c));
    if (status == TR_OK && c->changed && (status = append(f, entry)) != TR_OK)
        tr__map_put(&f->map, entry, before);
    else
        tr__map_value_unref(before);
    return status;
}

static tr_status file_change(tr_store *store, const char *key, tr__change *c, int timeout_ms, void **value, size_t *bytes)
{
    file_store *f = (file_store *)store;
    tr_status status = begin(f, F_WRLCK, tr__in_ms(timeout_ms));
    if (status != TR_OK) return finish(f, status);
    tr__entry *entry = tr__map_find(&f->map, key, strlen(key), true);
    status = entry ? change_key(f, key, c, entry) : tr__store_changed(store, key, TR_NO_MEMORY);
    if (entry && status == TR_OK && value) status = tr__store_copy(store, entry->value, value, bytes);
    if (entry) tr__map_prune(&f->map, entry);
    return finish(f, status);
}

static tr_status file_get(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    file_store *f = (file_store *)store;
    int64_t deadline = tr__in_ms(timeout_ms);
    for (int pause = PAUSE_FIRST_US;; pause_us(&pause)) {
        /* A lock that is held for a moment is no reason to give up a look that does not wait. */
        tr_status status = begin(f, F_RDLCK, timeout_ms ? deadline : tr__in_ms(store->timeout_ms));
        tr__entry *entry = status == TR_OK ? tr__map_find(&f->map, key, strlen(key), false) : NULL;
        if (entry && !entry->value) entry = NULL;
        if (entry && value) status = tr__store_copy(store, entry->value, value, bytes);
        finish(f, status);
        if (status != TR_OK || entry) return status;
        if (tr__now_ns() >= deadline) return tr__store_timed_out(store, key, timeout_ms);
    }
}

static const tr__store_ops file_ops = {file_get, file_change, NULL};

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

/* The file may have been removed, by the last of a former job, between our opening and locking it. */
static bool is_current(const file_store *f)
{
    struct stat ours, there;
    return fstat(f->fd, &ours) == 0 && stat(f->path, &there) == 0 && ours.st_ino == there.st_ino &&
           ours.st_dev == there.st_dev;
}

/* Nobody but our user may have had a hand in it. */
static tr_status check_file(const file_store *f)
{
    struct stat s;
    if (fstat(f->fd, &s) != 0) return tr__fail_errno(TR_IO, errno, "%s: cannot open it", f->store.name);
    if (!S_ISREG(s.st_mode)) return tr__fail(TR_INVALID, "%s: it is no regular file", f->store.name);
    if (s.st_uid != geteuid() || s.st_mode & (S_IWGRP | S_IWOTH))
        return tr__fail(TR_AUTH, "%s: other users own it or may write to it", f->store.name);
    return TR_OK;
}

/* A file with anything else in it is somebody's, and stays. */
static tr_status check_magic(const file_store *f, bool *empty)
{
    char found[sizeof magic];
    ssize_t got = pread(f->fd, found, sizeof found, 0);
    if (got < 0) return tr__fail_errno(TR_IO, errno, "%s: cannot read it", f->store.name);
    *empty = got == 0;
    if (got == 0 || (got == (ssize_t)sizeof magic && memcmp(found, magic, sizeof magic) == 0)) return TR_OK;
    return tr__fail(TR_FORMAT, "%s: it holds something else than a store; give another path", f->store.name);
}

/* We are alone: what is there was left by a former job. */
static tr_status clear(const file_store *f)
{
    bool empty;
    TR__TRY(check_magic(f, &empty));
    int error = ftruncate(f->fd, 0) == 0 ? write_all(f->fd, (const unsigned char *)magic, sizeof magic, 0) : errno;
    if (!error) error = try_lock(f->fd, presence_byte, F_RDLCK);
    return error ? tr__fail_errno(TR_IO, error, "%s: cannot write to it", f->store.name) : TR_OK;
}

/* One try. *again: the file was being cleared or removed meanwhile. */
static tr_status enter(file_store *f, bool *again)
{
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (f->fd < 0) return tr__fail_errno(TR_IO, errno, "%s: cannot open it", f->store.name);
    TR__TRY(check_file(f));
    int error = try_lock(f->fd, presence_byte, F_WRLCK);
    bool alone = error == 0;
    if (error == EAGAIN) error = try_lock(f->fd, presence_byte, F_RDLCK);
    *again = error == EAGAIN || (!error && !is_current(f));
    if (*again) return TR_OK;
    if (error) return lock_failed(f->store.name, error);
    bool empty = false;
    return alone ? clear(f) : check_magic(f, &empty);
}

static tr_status open_file(file_store *f, int timeout_ms)
{
    int64_t deadline = tr__in_ms(timeout_ms);
    for (int pause = PAUSE_FIRST_US;; pause_us(&pause)) {
        bool again = false;
        TR__TRY(enter(f, &again));
        if (!again) break;
        close(f->fd);
        f->fd = -1;
        if (tr__now_ns() >= deadline) return lock_failed(f->store.name, EAGAIN);
    }
    f->end = sizeof magic;
    return TR_OK;
}

/* Who goes last removes the file. One goes at a time, under the log's lock: else each of the last two would see that the other
 * is still there. One that is stopped with that lock holds nobody up for long. */
static void go(const file_store *f)
{
    int64_t deadline = tr__in_ms(GO_MOST_MS);
    for (int pause = PAUSE_FIRST_US; try_lock(f->fd, log_byte, F_WRLCK) == EAGAIN && tr__now_ns() < deadline;) pause_us(&pause);
    bool last = try_lock(f->fd, presence_byte, F_WRLCK) == 0;
    if (last && is_current(f)) unlink(f->path);
    try_lock(f->fd, presence_byte, F_UNLCK);
    try_lock(f->fd, log_byte, F_UNLCK);
}

static void file_destroy(void *self)
{
    file_store *f = self;
    if (!f->path) return;
    if (f->fd >= 0 && f->store.ops) go(f);
    if (f->fd >= 0) close(f->fd);
    tr__map_clear(&f->map);
    tr__tls_key_unref(f->store.key);
    pthread_mutex_destroy(&f->lock);
    free(f->path);
}

static const tr__type file_type = {.name = "store", .size = sizeof(file_store), .destroy = file_destroy};

static tr_status open_store(file_store *f, const tr_store_file_options *o)
{
    if (!o->path || !o->path[0]) return tr__fail(TR_INVALID, "tr_store_file: a path is needed");
    int timeout_ms = TR__OR(o, timeout_ms, TR__STORE_TIMEOUT_MS);
    if (timeout_ms < 1) return tr__fail(TR_INVALID, "tr_store_file: a timeout of %d ms must be positive", timeout_ms);
    f->path = strdup(o->path);
    if (!f->path) return tr__fail(TR_NO_MEMORY, "tr_store_file: no memory");
    f->fd = -1;
    pthread_mutex_init(&f->lock, NULL);
    f->store.timeout_ms = timeout_ms;
    f->store.anywhere = true; /* the file system lets in none but our user */
    snprintf(f->store.name, sizeof f->store.name, "store %s", o->path);
    TR__TRY(open_file(f, f->store.timeout_ms));
    f->store.ops = &file_ops;
    return TR_OK;
}

tr_store *tr_store_file_with(const tr_store_file_options *options)
{
    tr_store_file_options o = {0};
    if (options) memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    file_store *f = tr__object_new(&file_type);
    if (!tr__error_of(f) && open_store(f, &o) != TR_OK) tr__object_break(f);
    return &f->store;
}
