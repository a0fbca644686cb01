/* The thread pool, and what a forked child has of it. */
#include "base/thread_pool.h"
#include "device/device.h"
#include "sanitized.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct marks {
    tr__pool *pool;
    unsigned char seen[10007];
} marks;

static void mark(void *arg, int64_t begin, int64_t end)
{
    marks *m = arg;
    for (int64_t i = begin; i < end; i++) m->seen[i]++;
}

static void mark_nested(void *arg, int64_t begin, int64_t end)
{
    marks *m = arg;
    for (int64_t i = begin; i < end; i++) {
        marks inner = {.pool = m->pool};
        tr__pool_for(m->pool, 100, 1, mark, &inner);
        m->seen[i] += inner.seen[0] == 1 && inner.seen[99] == 1;
    }
}

static void every_iteration_runs_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        tr__pool *pool = tr__pool_new(threads);
        assert_non_null(pool);
        assert_int_equal(tr__pool_threads(pool), threads);
        for (int round = 0; round < 50; round++) {
            int64_t n = round * 211 % 10007, grain = 1 + round * 37 % 500;
            marks m = {.pool = pool};
            tr__pool_for(pool, n, grain, mark, &m);
            for (int64_t i = 0; i < 10007; i++) assert_int_equal(m.seen[i], i < n);
        }
        marks nested = {.pool = pool};
        tr__pool_for(pool, 20, 1, mark_nested, &nested);
        for (int i = 0; i < 20; i++) assert_int_equal(nested.seen[i], 1);
        tr__pool_free(pool);
    }
}

typedef struct sizes {
    pthread_mutex_t lock;
    int64_t count, least, most;
} sizes;

static void note_size(void *arg, int64_t begin, int64_t end)
{
    sizes *s = arg;
    pthread_mutex_lock(&s->lock);
    if (!s->count++ || end - begin < s->least) s->least = end - begin;
    if (end - begin > s->most) s->most = end - begin;
    pthread_mutex_unlock(&s->lock);
}

/* A last piece of what is left would have the other threads wait for one, or be done before them. */
static void pieces_are_equal(void **state)
{
    (void)state;
    for (int threads = 2; threads <= 4; threads++) {
        tr__pool *pool = tr__pool_new(threads);
        for (int round = 0; round < 200; round++) {
            int64_t n = 1 + round * 211 % 5003, grain = 1 + round * 37 % 500;
            sizes s = {.lock = PTHREAD_MUTEX_INITIALIZER};
            tr__pool_for(pool, n, grain, note_size, &s);
            assert_true(s.most - s.least <= 1 && (s.count == 1) == (n <= grain));
            assert_true(2 * s.least >= grain || s.count == 1);
            if (n >= grain * threads) assert_int_equal(s.count % threads, 0);
        }
        tr__pool_free(pool);
    }
}

/* A forked child has none of the pool's threads: it computes alone, and does not wait for them, nor when it frees the pool. */
static void a_forked_child_needs_no_workers(void **state)
{
    (void)state;
    tr__pool *pool = tr__pool_new(3);
    static marks m;
    m.pool = pool;
    tr__pool_for(pool, 5000, 10, mark, &m);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        tr__pool_for(pool, 5000, 10, mark, &m);
        bool all = true;
        for (int i = 0; i < 5000; i++) all &= m.seen[i] == 2;
        tr__pool_free(pool);
        _exit(all ? 0 : 1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    tr__pool_for(pool, 5000, 10, mark, &m);
    for (int i = 0; i < 5000; i++) assert_int_equal(m.seen[i], 2);
    tr__pool_free(pool);
}

typedef struct masks {
    pthread_t owner;
    atomic_int come, blocking, deaf; /* threads, and workers that block what they should, and what they should not */
} masks;

/* Each thread of the pool takes one of four pieces. */
static void note_mask(void *arg, int64_t begin, int64_t end)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    (void)begin, (void)end;
    masks *m = arg;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    bool works = !pthread_equal(pthread_self(), m->owner), blocks = false;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) blocks |= sigismember(&blocked, faults[i]);
    if (works && sigismember(&blocked, SIGINT) && sigismember(&blocked, SIGUSR1)) atomic_fetch_add(&m->blocking, 1);
    if (works && blocks) atomic_fetch_add(&m->deaf, 1);
    atomic_fetch_add(&m->come, 1);
    while (atomic_load(&m->come) < 4) sched_yield();
}

/* A launcher in this process waits for signals that its own thread blocks: no other thread may take them. A fault in a thread is
 * that thread's own, and a program may have a handler for it. */
static void workers_take_no_signals_but_those_of_faults(void **state)
{
    (void)state;
    sigset_t none, old;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, &old);
    tr__pool *pool = tr__pool_new(4);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    assert_non_null(pool);
    masks m = {.owner = pthread_self()};
    tr__pool_for(pool, 4, 1, note_mask, &m);
    tr__pool_free(pool);
    assert_int_equal(atomic_load(&m.blocking), 3);
    assert_int_equal(atomic_load(&m.deaf), 0);
}

static atomic_bool enough;

static void *take_memory(void *unused)
{
    while (!atomic_load(&enough)) {
        void *block = tr__cpu_alloc(0, 64 << 10);
        if (block) tr__cpu_free(0, block, 64 << 10);
    }
    return unused;
}

/* Other threads allocate when the process is forked: the child can, too. */
static void a_forked_child_gets_memory(void **state)
{
    (void)state;
    if (SANITIZED) {
        print_message("a sanitizer's own malloc() does not expect this: skipped\n");
        skip();
    }
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, take_memory, NULL), 0);
    int failed = 0;
    for (int i = 0; i < 300 && !failed; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            _exit(tr__cpu_alloc(0, 64 << 10) ? 0 : 1);
        }
        if (child < 0 || waitpid(child, &failed, 0) != child) failed = -1;
    }
    atomic_store(&enough, true);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    assert_int_equal(failed, 0);
}

static void *use_pool(void *arg)
{
    marks *m = arg;
    for (int round = 0; round < 200; round++) {
        memset(m->seen, 0, sizeof m->seen);
        tr__pool_for(m->pool, 5000, 10, mark, m);
        for (int i = 0; i < 5000; i++)
            if (m->seen[i] != 1) return m;
    }
    return NULL;
}

static void a_pool_serves_several_threads(void **state)
{
    (void)state;
    tr__pool *pool = tr__pool_new(3);
    static marks m[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        m[i].pool = pool;
        assert_int_equal(pthread_create(&threads[i], NULL, use_pool, &m[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    tr__pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_iteration_runs_once),
        cmocka_unit_test(pieces_are_equal),
        cmocka_unit_test(a_forked_child_needs_no_workers),
        cmocka_unit_test(workers_take_no_signals_but_those_of_faults),
        cmocka_unit_test(a_forked_child_gets_memory),
        cmocka_unit_test(a_pool_serves_several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
