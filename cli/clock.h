/* What time it is, for what is measured. */
#ifndef TRIREME_CLI_CLOCK_H
#define TRIREME_CLI_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t tr__clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Microseconds on the monotonic clock. */
static inline double tr__now_us(void)
{
    return 1e-3 * (double)tr__clock_ns(CLOCK_MONOTONIC);
}

#endif
