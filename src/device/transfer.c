/*
 * Memory of any device: asked for, given back, and copied.
 *
 * Work of a device is ordered by its default stream. A copy from the host takes its bytes to pinned memory first and is enqueued
 * from there, so that it neither waits for what the device computes nor needs the caller's memory afterwards; a copy to the
 * host waits; one between two devices is enqueued on the reader's stream, between two events:
 *
 *   stream of `from`   … e1 . . . . . e2 waited for …    memory given back later is not overwritten too early
 *   stream of `to`     … e1 waited for, the copy, e2 …
 */
#include "base/object.h"
#include "device/capture.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static tr_status fail_memory(const tr_device_table *table, tr_device device, size_t bytes)
{
    char name[16];
    tr_device_memory m = {.size = sizeof m};
    if (table->memory(device.index, &m) != TR_OK) m = (tr_device_memory){0};
    return tr__fail(TR_NO_MEMORY, "no memory for %zu bytes on %s: tensors hold %" PRId64 ", the allocator keeps %" PRId64
        " in all, %" PRId64 " are left; a smaller batch takes less", bytes,
        tr_device_name(device, name), m.in_use, m.reserved, m.available);
}

tr_status tr__device_allocate(tr_device device, size_t bytes, void **out)
{
    TR__TRY(tr__device_check(device));
    if (device.kind == TR_CPU) {
        *out = tr__cpu_alloc(device.index, bytes);
        return *out ? TR_OK : tr__fail(TR_NO_MEMORY, "no memory for %zu bytes on cpu:%d", bytes, device.index);
    }
    TR__TRY(tr__capture_check_device(device));
    const tr_device_table *table = tr__plugin(device.kind);
    tr_status status = table->allocate(device.index, NULL, bytes, out);
    if (status == TR_NO_MEMORY && !tr__capture_now()) {
        TR__TRY(table->synchronize(device.index));
        if (table->trim) table->trim(device.index);
        status = table->allocate(device.index, NULL, bytes, out);
    }
    return status == TR_NO_MEMORY ? fail_memory(table, device, bytes) : status;
}

void tr__device_release(tr_device device, void *memory, size_t bytes)
{
    if (device.kind == TR_CPU) tr__cpu_free(device.index, memory, bytes);
    else tr__plugin(device.kind)->release(device.index, NULL, memory, bytes);
}

/* ---- Pinned blocks and events ------------------------------------------------------------------------------------ */

enum { SMALLEST = 16 << 10, MOST_KEPT = 32 };

/* Pinned memory for copies from the host, with the event that says when the device has read it. */
typedef struct staging {
    struct staging *next;
    tr_device device;
    void *memory;
    size_t bytes;
    tr_device_event *event;
} staging;

/* Process-wide: staging blocks, most recently used first, which are kept for the next copy. */
static struct {
    pthread_mutex_t lock;
    staging *first;
    int count;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void staging_free(const tr_device_table *table, staging *s)
{
    if (!s) return;
    if (s->memory) table->host_release(s->memory, s->bytes);
    if (s->event) table->event_free(s->device.index, s->event);
    free(s);
}

static tr_status staging_new(const tr_device_table *table, tr_device device, size_t bytes, staging **out)
{
    size_t size = SMALLEST;
    while (size < bytes) size *= 2;
    staging *s = calloc(1, sizeof *s);
    if (!s) return tr__fail(TR_NO_MEMORY, "out of memory");
    *s = (staging){.device = device, .bytes = size};
    tr_status status = table->event_new(device.index, &s->event);
    if (status == TR_OK) status = table->host_allocate(size, &s->memory);
    if (status != TR_OK) {
        s->memory = NULL;
        staging_free(table, s);
        return status;
    }
    *out = s;
    return TR_OK;
}

/* One of those kept whose memory the device has read; NULL: there is none that fits. */
static staging *staging_take(const tr_device_table *table, tr_device device, size_t bytes)
{
    staging *found = NULL;
    pthread_mutex_lock(&kept.lock);
    for (staging **at = &kept.first; *at && !found; at = &(*at)->next) {
        staging *s = *at;
        bool done = false;
        if (!tr_device_equal(s->device, device) || s->bytes < bytes || s->bytes / 4 > bytes + SMALLEST) continue;
        if (table->event_done(device.index, s->event, &done) != TR_OK || !done) continue;
        *at = s->next;
        kept.count--;
        found = s;
        break;
    }
    pthread_mutex_unlock(&kept.lock);
    return found;
}

/* Keeps it for the next copy. Of too many the one longest unused goes, as soon as the device has read it. */
static void staging_keep(const tr_device_table *table, staging *s)
{
    staging *old = NULL;
    pthread_mutex_lock(&kept.lock);
    s->next = kept.first;
    kept.first = s;
    if (++kept.count > MOST_KEPT) {
        staging **at = &kept.first;
        while ((*at)->next) at = &(*at)->next;
        old = *at;
        *at = NULL;
        kept.count--;
    }
    pthread_mutex_unlock(&kept.lock);
    if (!old) return;
    const tr_device_table *its = old->device.kind == s->device.kind ? table : tr__plugin(old->device.kind);
    (void)its->event_synchronize(old->device.index, old->event);
    staging_free(its, old);
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static tr_status copy_in(const tr_device_table *table, tr_device device, void *to, const void *from, size_t bytes)
{
    TR__TRY(tr__capture_refuse("copies from the host, which each run would repeat with the numbers of now",
        "make what it copies one of its inputs"));
    if (!table->host_allocate) {
        TR__TRY(table->copy_in(device.index, NULL, to, from, bytes));
        return table->stream_synchronize(device.index, NULL);
    }
    staging *s = staging_take(table, device, bytes);
    if (!s) TR__TRY(staging_new(table, device, bytes, &s));
    memcpy(s->memory, from, bytes);
    tr_status status = table->copy_in(device.index, NULL, to, s->memory, bytes);
    tr_status recorded = table->event_record(device.index, NULL, s->event);
    staging_keep(table, s);
    return status == TR_OK ? recorded : status;
}

static tr_status copy_out(const tr_device_table *table, tr_device device, void *to, const void *from, size_t bytes)
{
    TR__TRY(tr__capture_refuse("reads a tensor on the host (tr_item(), tr_copy_out(), tr_clip_grad_norm(), a copy to the CPU)",
        "give the tensor out, and read it after the run"));
    TR__TRY(table->copy_out(device.index, NULL, to, from, bytes));
    return table->stream_synchronize(device.index, NULL);
}

static tr_status copy_peer(const tr_device_table *table, int to_index, void *to, int from_index, const void *from, size_t bytes)
{
    tr_device_event *ready = NULL, *read = NULL;
    TR__TRY(tr__capture_refuse("copies between devices", "capture what runs on one device"));
    tr_status status = table->event_new(from_index, &ready);
    if (status == TR_OK) status = table->event_new(to_index, &read);
    if (status == TR_OK) status = table->event_record(from_index, NULL, ready);
    if (status == TR_OK) status = table->stream_wait(to_index, NULL, ready);
    if (status == TR_OK) status = table->copy_peer(to_index, NULL, to, from_index, from, bytes);
    if (status == TR_OK) status = table->event_record(to_index, NULL, read);
    if (status == TR_OK) status = table->stream_wait(from_index, NULL, read);
    if (ready) table->event_free(from_index, ready);
    if (read) table->event_free(to_index, read);
    return status;
}

/* Between devices of two kinds, which know nothing of each other. */
static tr_status copy_by_host(tr_device to_device, void *to, tr_device from_device, const void *from, size_t bytes)
{
    void *here = tr__cpu_alloc(0, bytes);
    if (!here) return tr__fail(TR_NO_MEMORY, "no memory for %zu bytes on cpu:0", bytes);
    tr_status status = copy_out(tr__plugin(from_device.kind), from_device, here, from, bytes);
    if (status == TR_OK) status = copy_in(tr__plugin(to_device.kind), to_device, to, here, bytes);
    tr__cpu_free(0, here, bytes);
    return status;
}

tr_status tr__device_copy(tr_device to_device, void *to, tr_device from_device, const void *from, size_t bytes)
{
    const tr_device_table *into = tr__plugin(to_device.kind), *out_of = tr__plugin(from_device.kind);
    if (!into && !out_of) {
        memmove(to, from, bytes);
        return TR_OK;
    }
    if (!out_of) return copy_in(into, to_device, to, from, bytes);
    if (!into) return copy_out(out_of, from_device, to, from, bytes);
    if (into != out_of) return copy_by_host(to_device, to, from_device, from, bytes);
    if (to_device.index == from_device.index) return into->copy_within(to_device.index, NULL, to, from, bytes);
    return copy_peer(into, to_device.index, to, from_device.index, from, bytes);
}

/* ---- Side streams ------------------------------------------------------------------------------------------------ */

typedef struct side {
    struct side *next;
    tr_device device;
    tr_device_stream *stream;
} side;

/* Process-wide: a side stream for each device that has been asked for one. */
static struct {
    pthread_mutex_t lock;
    side *first;
} sides = {.lock = PTHREAD_MUTEX_INITIALIZER};

tr_status tr__device_side_stream(tr_device device, tr_device_stream **out)
{
    tr_status status = TR_OK;
    pthread_mutex_lock(&sides.lock);
    side *s = sides.first;
    while (s && !tr_device_equal(s->device, device)) s = s->next;
    if (!s) {
        s = calloc(1, sizeof *s);
        status = s ? tr__plugin(device.kind)->stream_new(device.index, &s->stream) : tr__fail(TR_NO_MEMORY, "out of memory");
        if (status == TR_OK) {
            *s = (side){sides.first, device, s->stream};
            sides.first = s;
        } else {
            free(s);
        }
    }
    if (status == TR_OK) *out = s->stream;
    pthread_mutex_unlock(&sides.lock);
    return status;
}
