#include "base/thread_pool.h"

#include "base/futex.h"
#include "base/memory.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* Turns of spinning before a thread sleeps: a step is a quick succession of loops, and a wake-up costs some 5 us. */
enum { SPINS = 4000 };

struct tr__pool {
    int threads;
    pthread_t *workers; /* threads - 1 */
    int started;
    unsigned forks; /* of this process when the workers were started; a forked child has none of them */

    /* The loop at work. Written by the owner before `generation` is raised, read by workers after. */
    tr__pool_body body;
    void *arg;
    int64_t n, pieces;

    _Alignas(TR__CACHE_LINE) atomic_uint generation; /* raised for each loop, and to stop */
    atomic_int sleepers;
    atomic_bool stopping;
    _Alignas(TR__CACHE_LINE) atomic_flag busy;
    _Alignas(TR__CACHE_LINE) atomic_int_fast64_t next; /* the next piece nobody has taken */
    _Alignas(TR__CACHE_LINE) atomic_int working;       /* workers that have not finished this loop */

    pthread_mutex_t lock; /* for sleeping */
    pthread_cond_t wake;
};

static inline bool has_workers(const tr__pool *pool)
{
    return pool->threads > 1 && pool->forks == tr__forks();
}

/* The first iteration of a piece: no two pieces differ by more than one iteration. */
static int64_t first_of(const tr__pool *pool, int64_t piece)
{
    int64_t size = pool->n / pool->pieces, larger = pool->n % pool->pieces;
    return piece * size + (piece < larger ? piece : larger);
}

static void run_pieces(tr__pool *pool)
{
    for (;;) {
        int64_t piece = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (piece >= pool->pieces) return;
        pool->body(pool->arg, first_of(pool, piece), first_of(pool, piece + 1));
    }
}

static unsigned await_generation(tr__pool *pool, unsigned seen)
{
    unsigned now;
    for (int i = 0; i < SPINS; i++) {
        now = atomic_load_explicit(&pool->generation, memory_order_acquire);
        if (now != seen) return now;
        tr__relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while ((now = atomic_load(&pool->generation)) == seen) pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    return now;
}

static void *worker(void *arg)
{
    tr__pool *pool = arg;
    unsigned seen = 0;
    for (;;) {
        seen = await_generation(pool, seen);
        if (atomic_load(&pool->stopping)) return NULL;
        run_pieces(pool);
        atomic_fetch_sub_explicit(&pool->working, 1, memory_order_release);
    }
}

static void raise_generation(tr__pool *pool)
{
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

tr__pool *tr__pool_new(int threads)
{
    tr__pool *pool = aligned_alloc(TR__CACHE_LINE, tr__round_up(sizeof *pool, TR__CACHE_LINE));
    if (!pool) return NULL;
    *pool = (tr__pool){.threads = threads < 1 ? 1 : threads, .busy = ATOMIC_FLAG_INIT, .forks = tr__count_forks()};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->workers = calloc((size_t)pool->threads, sizeof *pool->workers);
    bool ok = pool->workers != NULL;
    for (int i = 0; ok && i < pool->threads - 1; i++) {
        ok = tr__thread_start(&pool->workers[i], worker, pool) == 0;
        if (ok) pool->started++;
    }
    if (ok) return pool;
    tr__pool_free(pool);
    return NULL;
}

void tr__pool_free(tr__pool *pool)
{
    if (!pool) return;
    if (has_workers(pool)) {
        atomic_store(&pool->stopping, true);
        raise_generation(pool);
        for (int i = 0; i < pool->started; i++) pthread_join(pool->workers[i], NULL);
        pthread_mutex_destroy(&pool->lock);
        pthread_cond_destroy(&pool->wake);
    }
    free(pool->workers);
    free(pool);
}

int tr__pool_threads(const tr__pool *pool)
{
    return pool->threads;
}

void tr__pool_for(tr__pool *pool, int64_t n, int64_t grain, tr__pool_body body, void *arg)
{
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (!pool || !has_workers(pool) || n <= grain || atomic_flag_test_and_set_explicit(&pool->busy, memory_order_acquire)) {
        body(arg, 0, n);
        return;
    }
    /* The same number of pieces for each thread; several per thread even out a slower core. */
    int64_t most = (n - 1) / grain + 1, each = most / pool->threads;
    pool->pieces = each == 0 ? most : pool->threads * (each < 16 ? each : 16);
    pool->n = n;
    pool->body = body;
    pool->arg = arg;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->working, pool->started, memory_order_relaxed);
    raise_generation(pool);
    run_pieces(pool);
    while (atomic_load_explicit(&pool->working, memory_order_acquire) > 0) tr__relax();
    atomic_flag_clear_explicit(&pool->busy, memory_order_release);
}
