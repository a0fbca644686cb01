#include "base/memory.h"

#include "base/object.h"

#include <trireme/base.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *tr__zeroed(size_t count, size_t bytes)
{
    return calloc(count, bytes);
}

bool tr__grow(void *list, size_t count, size_t *room, size_t element_bytes)
{
    void *at;
    if (count < *room) return true;
    size_t more = *room ? 2 * *room : 8;
    memcpy(&at, list, sizeof at); /* of whatever type it is */
    at = realloc(at, more * element_bytes);
    if (!at) return false;
    memcpy(list, &at, sizeof at);
    *room = more;
    return true;
}

void *tr__pages_alloc(size_t bytes)
{
    bool huge = bytes >= TR__HUGE_PAGE;
    size_t extra = huge ? TR__HUGE_PAGE : 0;
    char *raw = mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    if (!huge) return raw;
    /* Align to a huge page and give back what lies outside. */
    char *memory = (char *)tr__round_up((uintptr_t)raw, TR__HUGE_PAGE);
    size_t end = tr__round_up(bytes, TR__PAGE);
    if (memory > raw) munmap(raw, (size_t)(memory - raw));
    if (raw + bytes + extra > memory + end) munmap(memory + end, (size_t)(raw + bytes + extra - (memory + end)));
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

#ifndef MADV_COLLAPSE /* Linux 6.1 */
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

void tr__pages_map(void *memory, size_t bytes)
{
    char *begin = (char *)((uintptr_t)memory / TR__PAGE * TR__PAGE);
    madvise(begin, (size_t)((char *)memory + bytes - begin), MADV_POPULATE_WRITE);
}

size_t tr__pages_collapse(void *memory, size_t bytes, size_t from, size_t most)
{
    char setting[64] = ""; /* "always [madvise] never"; the call itself does not ask */
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    bool allowed = f && fgets(setting, sizeof setting, f) && !strstr(setting, "[never]");
    if (f) fclose(f);
    uintptr_t begin = (uintptr_t)memory, end = (begin + bytes) / TR__HUGE_PAGE * TR__HUGE_PAGE;
    uintptr_t at = tr__round_up(begin + from, TR__HUGE_PAGE), until = at < end && end - at > most ? at + most : end;
    /* One by one: where the kernel refuses one, it may take the next. */
    for (; allowed && at < until; at += TR__HUGE_PAGE) madvise((void *)at, TR__HUGE_PAGE, MADV_COLLAPSE);
    return allowed && at < end ? at - begin : bytes;
}

void tr__pages_free(void *memory, size_t bytes)
{
    if (memory) munmap(memory, tr__round_up(bytes, TR__PAGE));
}

void tr__pages_empty(void *memory, size_t bytes)
{
    if (bytes) madvise(memory, tr__round_up(bytes, TR__PAGE), MADV_DONTNEED);
}

void tr__pages_zero(void *memory, size_t bytes)
{
    char *begin = memory, *end = begin + bytes;
    char *first = (char *)tr__round_up((uintptr_t)begin, TR__PAGE), *last = (char *)((uintptr_t)end / TR__PAGE * TR__PAGE);
    /* Locked pages stay. */
    if (first >= last || madvise(first, (size_t)(last - first), MADV_DONTNEED) != 0) {
        memset(begin, 0, bytes);
        return;
    }
    memset(begin, 0, (size_t)(first - begin));
    memset(last, 0, (size_t)(end - last));
}

/* A segment lives as long as it has holders: its owner, until tr_shared_free(), and the ranks of this process that map
 * it. */
typedef struct held_segment {
    tr__segment segment;
    int holders;
    bool freed;
} held_segment;

/* Process-wide: the shared segments that exist here, so that a collective can tell from a pointer that its memory is
 * shared. A short list under a lock. */
static struct {
    pthread_mutex_t lock;
    held_segment *held;
    size_t count, capacity;
    uint64_t next_id;
    tr__segment_watcher *watchers;
    atomic_uint_fast64_t generation;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_id = 1};

static bool remember(tr__segment *segment)
{
    pthread_mutex_lock(&shared.lock);
    bool room = tr__grow(&shared.held, shared.count, &shared.capacity, sizeof *shared.held);
    if (room) {
        segment->id = shared.next_id++;
        shared.held[shared.count++] = (held_segment){.segment = *segment, .holders = 1};
    }
    pthread_mutex_unlock(&shared.lock);
    return room;
}

/* Under the lock: one holder less. Returns the segment to unmap, or one without memory. */
static tr__segment let_go(held_segment *held)
{
    tr__segment none = {.fd = -1};
    if (--held->holders > 0) return none;
    tr__segment segment = held->segment;
    *held = shared.held[--shared.count];
    if (shared.count == 0) {
        free(shared.held);
        shared.held = NULL;
        shared.capacity = 0;
    }
    return segment;
}

static void unmap(tr__segment segment)
{
    if (!segment.memory) return;
    munmap(segment.memory, segment.bytes);
    if (segment.fd >= 0) close(segment.fd);
}

/* What the machine can still give, in bytes; SIZE_MAX where it does not say. */
static size_t available(void)
{
    size_t kilobytes = SIZE_MAX / 1024;
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file) return SIZE_MAX;
    char line[128];
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %zu kB", &kilobytes) == 1) break;
    fclose(file);
    return kilobytes * 1024;
}

/* Reserves the pages now: running out later would be a SIGBUS in the middle of a kernel. So would a peer that
 * shrinks the file. Asking for more than there is would call the kernel's OOM killer, so that is looked up first.
 * Returns an errno. */
static int reserve(int fd, size_t bytes)
{
    enum { WORTH_A_LOOK = 64 << 20 };
    if (bytes >= WORTH_A_LOOK && bytes > available()) return ENOMEM;
    int error;
    while ((error = posix_fallocate(fd, 0, (off_t)bytes)) == EINTR) continue;
    if (error == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) error = errno;
    return error;
}

void *tr_shared_alloc(size_t bytes)
{
    size_t size = tr__round_up(bytes ? bytes : 1, TR__PAGE);
    int fd = memfd_create("trireme", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        tr__fail_errno(TR_NO_MEMORY, errno, "cannot make a shared segment of %zu bytes", bytes);
        return NULL;
    }
    int error = size < bytes ? ENOMEM : reserve(fd, size); /* rounding up overflowed */
    void *memory = MAP_FAILED;
    if (error == 0) {
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED) error = errno;
    }
    tr__segment segment = {.fd = fd, .memory = memory, .bytes = size};
    if (error == 0 && !remember(&segment)) error = ENOMEM;
    if (error == 0) return memory;
    if (memory != MAP_FAILED) munmap(memory, size);
    close(fd);
    tr__fail_errno(TR_NO_MEMORY, error, "cannot get %zu bytes of shared memory", bytes);
    return NULL;
}

void tr_shared_free(void *memory)
{
    if (!memory) return;
    tr__segment segment = {.fd = -1};
    pthread_mutex_lock(&shared.lock);
    for (size_t i = 0; i < shared.count; i++) {
        held_segment *held = &shared.held[i];
        if (held->segment.memory != memory || held->freed) continue;
        held->freed = true;
        atomic_fetch_add(&shared.generation, 1);
        for (tr__segment_watcher *w = shared.watchers; w; w = w->next) w->freed(w->user, held->segment.id);
        segment = let_go(held);
        break;
    }
    pthread_mutex_unlock(&shared.lock);
    unmap(segment);
}

int tr__segment_find(const void *memory, size_t bytes, tr__segment *segment)
{
    int found = 0;
    pthread_mutex_lock(&shared.lock);
    for (size_t i = 0; i < shared.count && !found; i++) {
        const held_segment *held = &shared.held[i];
        uintptr_t begin = (uintptr_t)held->segment.memory, at = (uintptr_t)memory;
        if (held->freed || at < begin || bytes > held->segment.bytes) continue;
        if (at - begin > held->segment.bytes - bytes) continue;
        *segment = held->segment;
        found = 1;
    }
    pthread_mutex_unlock(&shared.lock);
    return found;
}

void tr__segment_close(const void *memory)
{
    int fd = -1;
    pthread_mutex_lock(&shared.lock);
    for (size_t i = 0; i < shared.count; i++) {
        if (shared.held[i].segment.memory != memory || shared.held[i].freed) continue;
        fd = shared.held[i].segment.fd;
        shared.held[i].segment.fd = -1;
    }
    pthread_mutex_unlock(&shared.lock);
    if (fd >= 0) close(fd);
}

void tr__segments_lock(void) { pthread_mutex_lock(&shared.lock); }

void tr__segments_unlock(void) { pthread_mutex_unlock(&shared.lock); }

void tr__segment_make_private(const void *memory)
{
    for (size_t i = 0; i < shared.count; i++) {
        tr__segment *s = &shared.held[i].segment;
        if (s->memory != memory || s->fd < 0) continue;
        if (mmap(s->memory, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, s->fd, 0) == MAP_FAILED) return;
        close(s->fd);
        shared.held[i] = shared.held[--shared.count];
        atomic_fetch_add(&shared.generation, 1);
        return;
    }
}

uint64_t tr__segment_generation(void)
{
    return atomic_load(&shared.generation);
}

static held_segment *held_by_id(uint64_t id)
{
    for (size_t i = 0; i < shared.count; i++)
        if (shared.held[i].segment.id == id) return &shared.held[i];
    return NULL;
}

int tr__segment_ref(uint64_t id, tr__segment *segment)
{
    pthread_mutex_lock(&shared.lock);
    held_segment *held = held_by_id(id);
    bool there = held && !held->freed;
    if (there) {
        held->holders++;
        *segment = held->segment;
    }
    pthread_mutex_unlock(&shared.lock);
    return there;
}

void tr__segment_unref(uint64_t id)
{
    tr__segment segment = {.fd = -1};
    pthread_mutex_lock(&shared.lock);
    held_segment *held = held_by_id(id);
    if (held) segment = let_go(held);
    pthread_mutex_unlock(&shared.lock);
    unmap(segment);
}

void tr__segment_watch(tr__segment_watcher *watcher)
{
    pthread_mutex_lock(&shared.lock);
    watcher->next = shared.watchers;
    shared.watchers = watcher;
    pthread_mutex_unlock(&shared.lock);
}

void tr__segment_unwatch(tr__segment_watcher *watcher)
{
    pthread_mutex_lock(&shared.lock);
    tr__segment_watcher **at = &shared.watchers;
    while (*at && *at != watcher) at = &(*at)->next;
    if (*at) *at = watcher->next;
    pthread_mutex_unlock(&shared.lock);
}
