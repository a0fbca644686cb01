/* The logical CPU devices: how many there are, their thread pools, their memory. */
#include "base/check.h"
#include "base/isa.h"
#include "base/memory.h"
#include "base/object.h"
#include "base/thread.h"
#include "device/cpu/cache.h"
#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

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
    atomic_int forkable;  /* count, for handlers of fork(), which run on any thread; 0: there are no caches yet */
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
    TR__TRY(tr__isa_check());
    return tr__check_words();
}

/* Around a fork(), so that the child does not wait for a lock that another thread of its parent had. */
static void lock_caches(void)
{
    for (int i = 0; i < atomic_load(&cpus.forkable); i++) tr__cache_lock(cpus.caches[i]);
}

static void unlock_caches(void)
{
    for (int i = 0; i < atomic_load(&cpus.forkable); i++) tr__cache_unlock(cpus.caches[i]);
}

static void start(void)
{
    if (check_environment() != TR_OK) cpus.error = tr__error_take();
    cpus.count = env_number("TRIREME_CPU_DEVICES", 1, MAX_DEVICES);
    for (int i = 0; i < cpus.count; i++) cpus.caches[i] = tr__cache_new();
    atomic_store(&cpus.forkable, cpus.count);
    pthread_atfork(lock_caches, unlock_caches, unlock_caches); /* without memory for it, a child may wait for ever */
}

int tr__cpu_count(void)
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
    if (threads == 0) threads = tr__cores() / (tr__cpu_count() * env_number("LOCAL_WORLD_SIZE", 1, 1 << 20));
    return threads < 1 ? 1 : threads;
}

tr__pool *tr__cpu_pool(tr_device device)
{
    if (device.kind != TR_CPU || device.index < 0 || device.index >= tr__cpu_count()) return NULL;
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
    for (int i = 0; i < tr__cpu_count(); i++) {
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

void *tr__cpu_alloc(int index, size_t bytes)
{
    return tr__cpu_count() > index ? tr__cache_alloc(cpus.caches[index], bytes) : NULL;
}

void tr__cpu_free(int index, void *memory, size_t bytes)
{
    tr__cache_free(cpus.caches[index], memory, bytes);
}

typedef struct pieces {
    int index;
    size_t bytes;
    tr__scratch_body body;
    void *arg;
    atomic_bool no_memory;
} pieces;

static void run_piece(void *arg, int64_t begin, int64_t end)
{
    pieces *p = arg;
    void *scratch = p->bytes ? tr__cpu_alloc(p->index, p->bytes) : NULL;
    if (p->bytes && !scratch) {
        atomic_store(&p->no_memory, true);
        return;
    }
    p->body(p->arg, begin, end, scratch);
    if (scratch) tr__cpu_free(p->index, scratch, p->bytes);
}

bool tr__cpu_for(tr_device device, int64_t n, int64_t grain, size_t bytes, tr__scratch_body body, void *arg)
{
    pieces p = {.index = device.index, .bytes = bytes, .body = body, .arg = arg};
    tr__pool_for(tr__cpu_pool(device), n, grain, run_piece, &p);
    return !atomic_load(&p.no_memory);
}

void tr__cpu_trim(int index)
{
    if (tr__cpu_count() > index) tr__cache_trim(cpus.caches[index]);
}

/* The text behind "KEY : " in /proc/cpuinfo; "" where there is none. */
static void processor(const char *key, char *out, size_t bytes)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
        snprintf(out, bytes, "%.*s", (int)strcspn(colon + 1 + strspn(colon + 1, " "), "\n"), colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (file) fclose(file);
}

void tr__cpu_describe(int index, tr_device_properties *out)
{
    struct utsname system;
    processor("model name", out->name, sizeof out->name);
    if (uname(&system) == 0) snprintf(out->architecture, sizeof out->architecture, "%.31s", system.machine);
    out->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    out->compute_units = tr_threads(tr_cpu(index));
}

void tr__cpu_memory(int index, size_t *in_use, size_t *peak)
{
    tr__cache_usage(index >= 0 && index < tr__cpu_count() ? cpus.caches[index] : NULL, in_use, peak);
}

void tr__cpu_reset_peak(int index)
{
    if (index < tr__cpu_count()) tr__cache_set_peak(cpus.caches[index], 0);
}

tr__memory_watch tr__memory_watch_begin(int index)
{
    tr__memory_watch watch = {.index = index};
    tr__cpu_memory(index, &watch.before, &watch.outer_peak);
    tr__cpu_reset_peak(index);
    return watch;
}

void tr__memory_watch_end(const tr__memory_watch *watch, int64_t *peak, int64_t *kept)
{
    size_t in_use, most;
    tr__cpu_memory(watch->index, &in_use, &most);
    if (watch->index < tr__cpu_count())
        tr__cache_set_peak(cpus.caches[watch->index], most > watch->outer_peak ? most : watch->outer_peak);
    *peak = (int64_t)most - (int64_t)watch->before;
    *kept = (int64_t)in_use - (int64_t)watch->before;
}
