/* Time: the monotonic clock, and the wall clock where other processes or files are told of. */
#ifndef TR_BASE_CLOCK_H
#define TR_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t tr__now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int64_t tr__wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* So many milliseconds from now. */
static inline int64_t tr__in_ms(int64_t ms)
{
    return tr__now_ns() + ms * 1000000;
}

#endif
