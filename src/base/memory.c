#define _GNU_SOURCE
#include "base/memory.h"

#include "base/object.h"

#include <trireme/base.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

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

void tr__pages_free(void *memory, size_t bytes)
{
    if (memory) munmap(memory, tr__round_up(bytes, TR__PAGE));
}

/* Process-wide: the shared segments that exist here, so that a collective can tell from a pointer that its memory is
 * shared. A short list under a lock. */
static struct {
    pthread_mutex_t lock;
    tr__segment *segments;
    size_t count, capacity;
    uint64_t next_id;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_id = 1};

static bool remember(tr__segment *segment)
{
    pthread_mutex_lock(&shared.lock);
    bool room = shared.count < shared.capacity;
    if (!room) {
        size_t capacity = shared.capacity ? 2 * shared.capacity : 16;
        tr__segment *grown = realloc(shared.segments, capacity * sizeof *grown);
        if (grown) {
            shared.segments = grown;
            shared.capacity = capacity;
            room = true;
        }
    }
    if (room) {
        segment->id = shared.next_id++;
        shared.segments[shared.count++] = *segment;
    }
    pthread_mutex_unlock(&shared.lock);
    return room;
}

void *tr_shared_alloc(size_t bytes)
{
    size_t size = tr__round_up(bytes ? bytes : 1, TR__PAGE);
    int fd = memfd_create("trireme", MFD_CLOEXEC);
    if (fd < 0) {
        tr__fail_errno(TR_NO_MEMORY, errno, "cannot make a shared segment of %zu bytes", size);
        return NULL;
    }
    /* Reserves the pages now: running out later would be a SIGBUS in the middle of a kernel. */
    int error = posix_fallocate(fd, 0, (off_t)size);
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
    tr__fail_errno(TR_NO_MEMORY, error, "cannot get %zu bytes of shared memory", size);
    return NULL;
}

void tr_shared_free(void *memory)
{
    if (!memory) return;
    tr__segment segment = {.fd = -1};
    pthread_mutex_lock(&shared.lock);
    for (size_t i = 0; i < shared.count; i++) {
        if (shared.segments[i].memory != memory) continue;
        segment = shared.segments[i];
        shared.segments[i] = shared.segments[--shared.count];
        break;
    }
    if (shared.count == 0) {
        free(shared.segments);
        shared.segments = NULL;
        shared.capacity = 0;
    }
    pthread_mutex_unlock(&shared.lock);
    if (segment.fd < 0) return;
    munmap(segment.memory, segment.bytes);
    close(segment.fd);
}

int tr__segment_find(const void *memory, size_t bytes, tr__segment *segment)
{
    int found = 0;
    pthread_mutex_lock(&shared.lock);
    for (size_t i = 0; i < shared.count && !found; i++) {
        const char *begin = shared.segments[i].memory, *at = memory;
        if (at < begin || at + bytes > begin + shared.segments[i].bytes) continue;
        *segment = shared.segments[i];
        found = 1;
    }
    pthread_mutex_unlock(&shared.lock);
    return found;
}
