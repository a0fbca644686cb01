/* The logical CPU devices: how many there are, their thread pools, their copies. */
#include "base/check.h"
#include "base/memory.h"
#include "base/object.h"
#include "base/thread.h"
#include "device/cpu/cache.h"
#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 64, MAX_THREADS = 1024 };

/* Process-wide: the devices' pools and memory. Made at first use, kept until the process ends. */
static struct {
    pthread_once_t once;
    int count;
    tr__error *error;     /* what the environment has that makes no sense; NULL: nothing */
    pthread_mutex_t lock; /* for making and replacing pools */
    int threads;          /* what tr_set_threads() said; 0: the default */
    _Atomic(tr__pool *) pools[MAX_DEVICES];
    tr__cache *caches[MAX_DEVICES];
} cpus = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static int env_number(const char *name, int fallback, int most)
{
    const char *text = getenv(name);
    if (!text || !*text) return fallback;
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || n < 1) return fallback;
    return n > most ? most : (int)n;
}

static tr_status check_number(const char *name)
{
    const char *text = getenv(name);
    if (!text || !*text || env_number(name, 0, 1)) return TR_OK;
    return tr__fail(TR_INVALID, "%s=%s is not a whole number of 1 or more", name, text);
}

static tr_status check_environment(void)
{
    TR__TRY(check_number("TRIREME_CPU_DEVICES"));
    TR__TRY(check_number("TRIREME_THREADS"));
    TR__TRY(check_number("LOCAL_WORLD_SIZE"));
    return tr__check_words();
}

static void start(void)
{
    if (check_environment() != TR_OK) cpus.error = tr__error_take();
    cpus.count = env_number("TRIREME_CPU_DEVICES", 1, MAX_DEVICES);
    for (int i = 0; i < cpus.count; i++) cpus.caches[i] = tr__cache_new();
}

static int count(void)
{
    pthread_once(&cpus.once, start);
    return cpus.count;
}

tr_status tr__cpu_environment(void)
{
    pthread_once(&cpus.once, start);
    return tr__fail_stored(cpus.error);
}

static int default_threads(void)
{
    int threads = env_number("TRIREME_THREADS", 0, MAX_THREADS);
    if (threads == 0) threads = tr__cores() / (count() * env_number("LOCAL_WORLD_SIZE", 1, 1 << 20));
    return threads < 1 ? 1 : threads;
}

tr__pool *tr__cpu_pool(tr_device device)
{
    if (device.kind != TR_CPU || device.index < 0 || device.index >= count()) return NULL;
    tr__pool *pool = atomic_load_explicit(&cpus.pools[device.index], memory_order_acquire);
    if (pool) return pool;
    pthread_mutex_lock(&cpus.lock);
    pool = atomic_load(&cpus.pools[device.index]);
    if (!pool) {
        pool = tr__pool_new(cpus.threads ? cpus.threads : default_threads());
        if (!pool) pool = tr__pool_new(1);
        atomic_store_explicit(&cpus.pools[device.index], pool, memory_order_release);
    }
    pthread_mutex_unlock(&cpus.lock);
    return pool;
}

tr_status tr_set_threads(int threads)
{
    if (threads < 0 || threads > MAX_THREADS)
        return tr__fail(TR_INVALID, "%d threads: 1 to %d, or 0 for the default", threads, MAX_THREADS);
    TR__TRY(tr__cpu_environment());
    pthread_mutex_lock(&cpus.lock);
    cpus.threads = threads;
    for (int i = 0; i < count(); i++) {
        tr__pool_free(atomic_load(&cpus.pools[i]));
        atomic_store(&cpus.pools[i], NULL);
    }
    pthread_mutex_unlock(&cpus.lock);
    return TR_OK;
}

int tr_threads(tr_device device)
{
    tr__pool *pool = tr__cpu_pool(device);
    return pool ? tr__pool_threads(pool) : 0;
}

static void *cpu_alloc(int index, size_t bytes)
{
    return count() > index ? tr__cache_alloc(cpus.caches[index], bytes) : NULL;
}

static void cpu_free(int index, void *memory, size_t bytes)
{
    tr__cache_free(cpus.caches[index], memory, bytes);
}

static tr_status cpu_copy(tr_device to_device, void *to, tr_device from_device, const void *from, size_t bytes)
{
    (void)to_device, (void)from_device;
    memmove(to, from, bytes);
    return TR_OK;
}

static tr_status cpu_synchronize(int index)
{
    (void)index;
    return TR_OK;
}

static void cpu_trim(int index)
{
    if (count() > index) tr__cache_trim(cpus.caches[index]);
}

void tr__cpu_memory(int index, size_t *in_use, size_t *peak)
{
    tr__cache_usage(index >= 0 && index < count() ? cpus.caches[index] : NULL, in_use, peak);
}

tr__memory_watch tr__memory_watch_begin(int index)
{
    tr__memory_watch watch = {.index = index};
    tr__cpu_memory(index, &watch.before, &watch.outer_peak);
    if (index < count()) tr__cache_set_peak(cpus.caches[index], 0);
    return watch;
}

void tr__memory_watch_end(const tr__memory_watch *watch, int64_t *peak, int64_t *kept)
{
    size_t in_use, most;
    tr__cpu_memory(watch->index, &in_use, &most);
    if (watch->index < count())
        tr__cache_set_peak(cpus.caches[watch->index], most > watch->outer_peak ? most : watch->outer_peak);
    *peak = (int64_t)most - (int64_t)watch->before;
    *kept = (int64_t)in_use - (int64_t)watch->before;
}

const tr__device_table tr__cpu_table = {
    .name = "cpu",
    .count = count,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .synchronize = cpu_synchronize,
    .trim = cpu_trim,
};
