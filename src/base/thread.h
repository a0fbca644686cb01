/* Threads of the library's own, how they wait, and the cores that there are for them. */
#ifndef TR_BASE_THREAD_H
#define TR_BASE_THREAD_H

#include <trireme/base.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Starts a thread that blocks all signals, which are for the program's threads, except those of faults (SIGSEGV, …): a fault whose
 * signal is blocked ends the process without calling its handler. Returns an errno; 0: it runs. */
int tr__thread_start(pthread_t *thread, void *(*body)(void *arg), void *arg);
/* A condition whose deadlines are of the clock of tr__now_ns(). */
void tr__condition_init(pthread_cond_t *condition);
/* Waits, under the lock, for such a condition; false: the deadline has come. */
bool tr__condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t deadline);
/* Holds a lock from here to the end of the block. */
#define TR__LOCKED(lock) \
    __attribute__((cleanup(tr__unlock), unused)) pthread_mutex_t *TR__JOIN(tr__locked_, __LINE__) = tr__lock(lock)
static inline pthread_mutex_t *tr__lock(pthread_mutex_t *lock)
{
    pthread_mutex_lock(lock);
    return lock;
}
static inline void tr__unlock(pthread_mutex_t **lock)
{
    pthread_mutex_unlock(*lock);
}

/* Cores that this process may run on. */
int tr__cores(void);

/* How often this process was forked, it and its parents: who notes it sees later whether it is in a child, which has none of its
 * parent's threads. It is counted from the first tr__count_forks() on, which returns it, too. */
unsigned tr__count_forks(void);
extern atomic_uint tr__forks_counted;
static inline unsigned tr__forks(void) { return atomic_load_explicit(&tr__forks_counted, memory_order_relaxed); }

#endif
