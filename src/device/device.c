/* The kinds of devices by number and by name, and what can be asked of any device. */
#include "device/device.h"

#include "base/object.h"
#include "device/capture.h"
#include "device/plugin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Process-wide: the kinds. A number that has been given to a name stays its. */
static struct {
    pthread_mutex_t lock;
    struct {
        char name[TR__KIND_NAME];
        _Atomic(const tr_device_table *) table; /* NULL: no plug-in has brought it */
        int count;                              /* of devices; set before the table */
    } kind[TR_DEVICE_KINDS];
    atomic_int n;
    atomic_bool looked_for_cuda;
} kinds = {.lock = PTHREAD_MUTEX_INITIALIZER, .kind = {[TR_CPU] = {.name = "cpu"}, [TR_CUDA] = {.name = "cuda"}}, .n = 2};

static int kind_at(const char *name, size_t length)
{
    int n = atomic_load_explicit(&kinds.n, memory_order_acquire);
    for (int i = 0; i < n; i++)
        if (strlen(kinds.kind[i].name) == length && memcmp(kinds.kind[i].name, name, length) == 0) return i;
    return -1;
}

static tr_status check_name(const char *name, size_t length)
{
    size_t letters = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (length > 0 && length < TR__KIND_NAME && letters >= length && *name >= 'a' && *name <= 'z') return TR_OK;
    return tr__fail(TR_INVALID, "\"%.*s\" is no kind of device: 1 to %d lower-case letters, digits and '_', the first a letter",
        (int)length, name, TR__KIND_NAME - 1);
}

tr_status tr__kind_of_name(const char *name, tr_device_kind *out)
{
    size_t length = strlen(name);
    TR__TRY(check_name(name, length));
    pthread_mutex_lock(&kinds.lock);
    int at = kind_at(name, length), n = atomic_load(&kinds.n);
    if (at < 0 && n < TR_DEVICE_KINDS) {
        memcpy(kinds.kind[at = n].name, name, length);
        atomic_store_explicit(&kinds.n, n + 1, memory_order_release);
    }
    pthread_mutex_unlock(&kinds.lock);
    if (at < 0) return tr__fail(TR_NO_MEMORY, "a process has at most %d kinds of devices", TR_DEVICE_KINDS);
    *out = (tr_device_kind)at;
    return TR_OK;
}

tr_status tr__kind_bring(const tr_device_table *table)
{
    tr_device_kind kind;
    TR__TRY(tr__kind_of_name(table->kind, &kind));
    if (kind == TR_CPU || atomic_load(&kinds.kind[kind].table))
        return tr__fail(TR_DEVICE, "this process has %s devices already", table->kind);
    kinds.kind[kind].count = table->count();
    for (size_t i = 0; i < table->n_kernels; i++) TR__TRY(tr__kernel_add(kind, &table->kernels[i], false));
    atomic_store_explicit(&kinds.kind[kind].table, table, memory_order_release);
    return TR_OK;
}

const tr_device_table *tr__plugin(tr_device_kind kind)
{
    if (kind <= TR_CPU || (int)kind >= atomic_load_explicit(&kinds.n, memory_order_acquire)) return NULL;
    const tr_device_table *table = atomic_load_explicit(&kinds.kind[kind].table, memory_order_acquire);
    if (table || kind != TR_CUDA || atomic_load_explicit(&kinds.looked_for_cuda, memory_order_acquire)) return table;
    tr__plugin_find("cuda");
    atomic_store_explicit(&kinds.looked_for_cuda, true, memory_order_release);
    return atomic_load_explicit(&kinds.kind[kind].table, memory_order_acquire);
}

const char *tr_device_kind_name(tr_device_kind kind)
{
    int n = atomic_load_explicit(&kinds.n, memory_order_acquire);
    return (int)kind >= 0 && (int)kind < n ? kinds.kind[kind].name : "?";
}

int tr_device_count(tr_device_kind kind)
{
    if (kind == TR_CPU) return tr__cpu_count();
    return tr__plugin(kind) ? kinds.kind[kind].count : 0;
}

char *tr_device_name(tr_device device, char text[16])
{
    snprintf(text, 16, "%s:%d", tr_device_kind_name(device.kind), device.index);
    return text;
}

tr_status tr__device_check(tr_device device)
{
    if (device.kind == TR_CPU) TR__TRY(tr__cpu_environment());
    int count = tr_device_count(device.kind);
    if (device.index >= 0 && device.index < count) return TR_OK;
    char name[16];
    tr_device_name(device, name);
    const char *kind = tr_device_kind_name(device.kind);
    if (device.kind != TR_CPU && !tr__plugin(device.kind)) return tr__plugin_missing(kind, name);
    if (count == 0) return tr__fail(TR_DEVICE, "there is no device %s: the %s plug-in finds none", name, kind);
    const char *hint = device.kind == TR_CPU ? " (TRIREME_CPU_DEVICES sets how many)" : "";
    if (count == 1) return tr__fail(TR_DEVICE, "there is no device %s: this process has %s:0 alone%s", name, kind, hint);
    return tr__fail(TR_DEVICE, "there is no device %s: this process has %s:0 to %s:%d%s", name, kind, kind, count - 1, hint);
}

/* The kind that has a name, after its plug-in has been looked for. device: what was asked for, for the message. */
static tr_status find_kind(const char *name, size_t length, const char *device, tr_device_kind *out)
{
    char kind[TR__KIND_NAME];
    TR__TRY(check_name(name, length));
    snprintf(kind, sizeof kind, "%.*s", (int)length, name);
    int at = kind_at(name, length);
    if (at < 0 || (at != TR_CPU && !tr__plugin((tr_device_kind)at))) {
        tr__plugin_find(kind);
        at = kind_at(name, length);
        if (at < 0 || !tr__plugin((tr_device_kind)at)) return tr__plugin_missing(kind, device);
    }
    *out = (tr_device_kind)at;
    return TR_OK;
}

tr_status tr_device_parse(const char *text, tr_device *out)
{
    if (!text || !out) return tr__fail(TR_INVALID, "device_parse: %s is NULL", text ? "out" : "the text");
    size_t length = strcspn(text, ":");
    char *end = (char *)text + length;
    long index = 0;
    bool sound = !*end || (end[1] >= '0' && end[1] <= '9');
    if (*end && sound) index = strtol(end + 1, &end, 10);
    if (!sound || *end || index > 9999 || check_name(text, length) != TR_OK)
        return tr__fail(TR_INVALID, "\"%s\" is no device: write cpu, cpu:1 or cuda:0", text);
    tr_device device = {.index = (int)index};
    TR__TRY(find_kind(text, length, text, &device.kind));
    TR__TRY(tr__device_check(device));
    *out = device;
    return TR_OK;
}

tr_status tr_device_kind_named(const char *name, tr_device_kind *out)
{
    if (!name || !out) return tr__fail(TR_INVALID, "device_kind_named: %s is NULL", name ? "out" : "the name");
    return find_kind(name, strlen(name), name, out);
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

/* Copies as much of a struct that begins with its size as the caller's has. */
static void hand_out(void *to, void *from, size_t size)
{
    size_t theirs = *(size_t *)to;
    *(size_t *)from = theirs;
    memcpy(to, from, theirs < size ? theirs : size);
}

tr_status tr_device_describe(tr_device device, tr_device_properties *out)
{
    if (!out) return tr__fail(TR_INVALID, "device_describe: out is NULL");
    TR__TRY(tr__device_check(device));
    tr_device_properties p = {.size = sizeof p};
    if (device.kind == TR_CPU) tr__cpu_describe(device.index, &p);
    else TR__TRY(tr__plugin(device.kind)->properties(device.index, &p));
    hand_out(out, &p, sizeof p);
    return TR_OK;
}

tr_status tr_device_memory_of(tr_device device, tr_device_memory *out)
{
    if (!out) return tr__fail(TR_INVALID, "device_memory_of: out is NULL");
    TR__TRY(tr__device_check(device));
    tr_device_memory m = {.size = sizeof m};
    if (device.kind == TR_CPU) {
        size_t in_use, peak;
        tr__cpu_memory(device.index, &in_use, &peak);
        m.in_use = m.reserved = (int64_t)in_use;
        m.peak = (int64_t)peak;
        m.available = (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
    } else {
        TR__TRY(tr__plugin(device.kind)->memory(device.index, &m));
    }
    hand_out(out, &m, sizeof m);
    return TR_OK;
}

tr_status tr_device_reset_peak(tr_device device)
{
    TR__TRY(tr__device_check(device));
    if (device.kind == TR_CPU) tr__cpu_reset_peak(device.index);
    else if (tr__plugin(device.kind)->reset_peak) tr__plugin(device.kind)->reset_peak(device.index);
    return TR_OK;
}

tr_status tr_device_trim(tr_device device)
{
    TR__TRY(tr__device_check(device));
    if (tr__capture_now()) return TR_OK; /* nothing has run that would have kept memory */
    if (device.kind == TR_CPU) tr__cpu_trim(device.index);
    else if (tr__plugin(device.kind)->trim) tr__plugin(device.kind)->trim(device.index);
    return TR_OK;
}

tr_status tr_device_synchronize(tr_device device)
{
    TR__TRY(tr__device_check(device));
    if (device.kind == TR_CPU) return TR_OK;
    TR__TRY(tr__capture_refuse("waits for the device", "wait after the run"));
    return tr__plugin(device.kind)->synchronize(device.index);
}
