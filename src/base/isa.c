#include "base/isa.h"

#include "base/object.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"generic", "avx2", "avx512", "avx512bf16"};
enum { LEVELS = sizeof names / sizeof *names };

/* LEVELS: unknown. */
static int level_of(const char *text)
{
    int level = 0;
    while (level < LEVELS && strcmp(names[level], text) != 0) level++;
    return level;
}

tr__isa tr__isa_allowed(void)
{
    /* Process-wide, and read once: kernels that changed between two calls would change results. */
    static atomic_int allowed = -1;
    int level = atomic_load_explicit(&allowed, memory_order_relaxed);
    if (level < 0) {
        const char *text = getenv("TRIREME_ISA");
        level = text && *text ? level_of(text) : LEVELS;
        if (level == LEVELS) level = TR__ISA_FASTEST;
        atomic_store_explicit(&allowed, level, memory_order_relaxed);
    }
    return (tr__isa)level;
}

tr_status tr__isa_check(void)
{
    const char *text = getenv("TRIREME_ISA");
    if (!text || !*text || level_of(text) < LEVELS) return TR_OK;
    return tr__fail(TR_INVALID, "TRIREME_ISA=%s is neither generic nor avx2, avx512 or avx512bf16", text);
}
