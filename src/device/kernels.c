/* Kernels by op and kind of device. */
#include "base/hash.h"
#include "base/object.h"
#include "device/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 512 };

/* Process-wide: readers walk the lists without a lock, as nodes are added and never taken out. */
static struct {
    pthread_mutex_t lock; /* for adding */
    _Atomic(tr__kernel_node *) first[BUCKETS];
} kernels = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Atomic(tr__kernel_node *) *bucket_of(tr_device_kind kind, const char *op)
{
    return &kernels.first[tr__hash(TR__HASH_BEGIN ^ (uint64_t)kind, op, strlen(op)) % BUCKETS];
}

static const tr__kernel_node *find(const tr__kernel_node *node, tr_device_kind kind, const char *op)
{
    while (node && (node->kind != kind || strcmp(node->entry.op, op) != 0))
        node = atomic_load_explicit(&node->next, memory_order_acquire);
    return node;
}

const tr__kernel_node *tr__kernel_first(tr_device_kind kind, const char *op)
{
    return find(atomic_load_explicit(bucket_of(kind, op), memory_order_acquire), kind, op);
}

const tr__kernel_node *tr__kernel_next(const tr__kernel_node *node)
{
    return find(atomic_load_explicit(&node->next, memory_order_acquire), node->kind, node->entry.op);
}

tr_status tr__kernel_add(tr_device_kind kind, const tr_kernel_entry *entry, bool first)
{
    tr__kernel_node *node = calloc(1, sizeof *node);
    const char *op = node && first ? strdup(entry->op) : entry->op;
    if (!node || !op) {
        free(node);
        return tr__fail(TR_NO_MEMORY, "no memory for the kernel %s", entry->op);
    }
    node->kind = kind;
    node->entry = *entry;
    node->entry.op = op;
    _Atomic(tr__kernel_node *) *at = bucket_of(kind, op);
    pthread_mutex_lock(&kernels.lock);
    if (first) atomic_store_explicit(&node->next, atomic_load(at), memory_order_relaxed);
    while (!first && atomic_load(at)) at = &atomic_load(at)->next;
    atomic_store_explicit(at, node, memory_order_release);
    pthread_mutex_unlock(&kernels.lock);
    return TR_OK;
}

tr_status tr_kernel_register(const char *kind, const tr_kernel_entry *entry)
{
    tr_device_kind number;
    if (!kind || !entry || !entry->op || !entry->run)
        return tr__fail(TR_INVALID, "kernel_register: it takes a kind, the name of an op and a function, not NULL");
    TR__TRY(tr__kind_of_name(kind, &number));
    if (number == TR_CPU)
        return tr__fail(TR_INVALID, "kernel_register: %s: an op's kernel for the CPU is its `forward`", entry->op);
    return tr__kernel_add(number, entry, true);
}
