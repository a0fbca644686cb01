#define _GNU_SOURCE
#include "base/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

int tr__thread_start(pthread_t *thread, void *(*body)(void *arg), void *arg)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t others, old;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&others, own[i]);
    pthread_sigmask(SIG_SETMASK, &others, &old);
    int error = pthread_create(thread, NULL, body, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
}

void tr__condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool tr__condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t deadline)
{
    struct timespec at = {deadline / 1000000000, deadline % 1000000000};
    return pthread_cond_timedwait(condition, lock, &at) != ETIMEDOUT;
}

int tr__cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* of a machine with more cores than the set has room for */
    return online > 0 ? (int)online : 1;
}

/* Process-wide. */
atomic_uint tr__forks_counted;
static pthread_once_t forks_once = PTHREAD_ONCE_INIT;

static void count_fork(void)
{
    atomic_fetch_add_explicit(&tr__forks_counted, 1, memory_order_relaxed);
}

static void count_forks(void)
{
    pthread_atfork(NULL, NULL, count_fork); /* without memory for it, a child takes its parent's threads for its own */
}

unsigned tr__count_forks(void)
{
    pthread_once(&forks_once, count_forks);
    return tr__forks();
}
