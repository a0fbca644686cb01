/*
 * Devices: the CPU's, which cpu/ makes, and those of the kinds that plug-ins bring (trireme/device.h). What is above calls
 * these functions with any device; nothing there may assume that the host can read a device's memory.
 *
 * Threads: every function may be called from several threads at once.
 */
#ifndef TR_DEVICE_DEVICE_H
#define TR_DEVICE_DEVICE_H

#include "base/thread_pool.h"

#include <trireme/device.h>

/* ---- Kinds ------------------------------------------------------------------------------------------------------ */

/* The table of a kind other than the CPU's; NULL when this process has no such devices. */
const tr_device_table *tr__plugin(tr_device_kind kind);
/* The number that a kind of this name has or gets, whether or not a plug-in brings it; TR_INVALID when it is no name of a
 * kind, TR_NO_MEMORY when there are too many. */
tr_status tr__kind_of_name(const char *name, tr_device_kind *out);
/* TR_OK when the device exists, and the environment is sound; else a failure that names the devices that do. */
tr_status tr__device_check(tr_device device);

/* ---- Memory and copies ------------------------------------------------------------------------------------------ */

/* bytes > 0, which are given back alike; aligned to 64 bytes at least. It is for what is enqueued on the default stream. */
tr_status tr__device_allocate(tr_device device, size_t bytes, void **out);
void tr__device_release(tr_device device, void *memory, size_t bytes);
/* Copies bytes > 0 between any two devices: in the order of both default streams. Memory of the host has been read, or written,
 * when it returns; what lies on devices need not have been. */
tr_status tr__device_copy(tr_device to_device, void *to, tr_device from_device, const void *from, size_t bytes);

/* A stream of a device beside its default one, for copies that are not to wait for what is computed later. Never freed. */
tr_status tr__device_side_stream(tr_device device, tr_device_stream **out);

/* ---- Kernels ---------------------------------------------------------------------------------------------------- */

typedef struct tr__kernel_node {
    _Atomic(struct tr__kernel_node *) next; /* of the same bucket */
    tr_device_kind kind;
    tr_kernel_entry entry;
} tr__kernel_node;

/* The first kernel of an op for a kind, and the one that is asked after it; NULL: there is none. */
const tr__kernel_node *tr__kernel_first(tr_device_kind kind, const char *op);
const tr__kernel_node *tr__kernel_next(const tr__kernel_node *node);
/* Adds a kernel before those that are there, or behind. The op's name is copied where `first`; else it must stay. */
tr_status tr__kernel_add(tr_device_kind kind, const tr_kernel_entry *entry, bool first);

/* ---- The CPU ---------------------------------------------------------------------------------------------------- */

/* A failure when the environment says of CPU devices, or asks ops for (TRIREME_CHECK), what makes no sense. */
tr_status tr__cpu_environment(void);
int tr__cpu_count(void);
/* The thread pool of a logical CPU device, made at its first use. Never NULL: without threads it is a pool of one. */
tr__pool *tr__cpu_pool(tr_device device);
/* As tr__device_allocate(); NULL without memory (the caller makes the failure). */
void *tr__cpu_alloc(int index, size_t bytes);
void tr__cpu_free(int index, void *memory, size_t bytes);
/* tr__pool_for() on a CPU device's pool. Each piece gets `bytes` of scratch memory, aligned to 64 bytes; NULL where bytes is 0.
 * false: there was no memory for some pieces, and these were not run. */
typedef void (*tr__scratch_body)(void *arg, int64_t begin, int64_t end, void *scratch);
bool tr__cpu_for(tr_device device, int64_t n, int64_t grain, size_t bytes, tr__scratch_body body, void *arg);
void tr__cpu_trim(int index);
void tr__cpu_describe(int index, tr_device_properties *out);

/* What the caching allocator of a CPU device holds: bytes in use, and the most there were. For reports and tests. */
void tr__cpu_memory(int index, size_t *in_use, size_t *peak);
void tr__cpu_reset_peak(int index);

/* The memory of a stretch of time on a CPU device, for profiles: the bytes beyond those in use at its start, at most and at
 * its end. Stretches nest; of several threads they count each other's. */
typedef struct tr__memory_watch {
    int index;
    size_t before, outer_peak;
} tr__memory_watch;
tr__memory_watch tr__memory_watch_begin(int index);
void tr__memory_watch_end(const tr__memory_watch *watch, int64_t *peak, int64_t *kept);

#endif
