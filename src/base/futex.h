/*
 * Futex: sleep until a word in memory changes. Words may lie in memory that processes share.
 */
#ifndef TR_BASE_FUTEX_H
#define TR_BASE_FUTEX_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleeps while *word equals expected, at most timeout_ns (below 0: for ever). May return early. */
static inline void tr__futex_wait(atomic_uint *word, unsigned expected, int64_t timeout_ns)
{
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, expected, timeout_ns < 0 ? NULL : &t, NULL, 0);
}

static inline void tr__futex_wake(atomic_uint *word, int sleepers)
{
    syscall(SYS_futex, word, FUTEX_WAKE, sleepers, NULL, NULL, 0);
}

/* In a loop that spins for a moment. */
static inline void tr__relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

#endif
