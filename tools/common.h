/* What the tools share. */
#ifndef TR_TOOLS_COMMON_H
#define TR_TOOLS_COMMON_H

#include <trireme/tools.h>

#include <time.h>

/* `return` on failure. */
#define TRY(expression)                            \
    do {                                           \
        tr_status try_status = (expression);       \
        if (try_status != TR_OK) return try_status; \
    } while (0)

/* The monotonic clock. */
static inline int64_t tr__tools_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
