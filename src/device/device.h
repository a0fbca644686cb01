/*
 * Devices: a table of functions per kind. cpu/ fills one; CUDA's comes from a plug-in library opened at run time.
 */
#ifndef TR_DEVICE_DEVICE_H
#define TR_DEVICE_DEVICE_H

#include "base/pool.h"

#include <trireme/base.h>

typedef struct tr__device_table {
    const char *name; /* "cpu" */
    int (*count)(void);
    /* 64-byte aligned; NULL without memory (the caller makes the failure). bytes > 0 comes back alike. Thread-safe. */
    void *(*alloc)(int index, size_t bytes);
    void (*free)(int index, void *memory, size_t bytes);
    /* Copies between this device and itself or the CPU; done when it returns. */
    tr_status (*copy)(tr_device to_device, void *to, tr_device from_device, const void *from, size_t bytes);
    tr_status (*synchronize)(int index);
    /* Gives the memory that is kept for later, and not in use, back to the system. NULL: none is kept. */
    void (*trim)(int index);
} tr__device_table;

/* The table of a kind; NULL when this process has no such devices. */
const tr__device_table *tr__device(tr_device_kind kind);
/* TR_OK when the device exists, and the environment is sound; else a failure that names the devices that do. */
tr_status tr__device_check(tr_device device);

/* A failure when the environment says of CPU devices, or asks ops for (TRIREME_CHECK), what makes no sense. */
tr_status tr__cpu_environment(void);
/* The thread pool of a logical CPU device, made at its first use. Never NULL: without threads it is a pool of one. */
tr__pool *tr__cpu_pool(tr_device device);

/* What the caching allocator of a CPU device holds: bytes in use, and the most there were. For reports and tests. */
void tr__cpu_memory(int index, size_t *in_use, size_t *peak);

/* The memory of a stretch of time on a CPU device, for profiles: the bytes beyond those in use at its start, at most and at
 * its end. Stretches nest; of several threads they count each other's. */
typedef struct tr__memory_watch {
    int index;
    size_t before, outer_peak;
} tr__memory_watch;
tr__memory_watch tr__memory_watch_begin(int index);
void tr__memory_watch_end(const tr__memory_watch *watch, int64_t *peak, int64_t *kept);

extern const tr__device_table tr__cpu_table;

#endif
