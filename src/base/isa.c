#include "base/isa.h"

#include "base/object.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__) && defined(TR__KNOWS_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const names[] = {"generic", "avx2", "avx512", "avx512bf16", "amx"};
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
    return tr__fail(TR_INVALID, "TRIREME_ISA=%s is neither generic nor avx2, avx512, avx512bf16 or amx", text);
}

#if defined(__x86_64__) && defined(TR__KNOWS_AMX)
/* CPUID says that the processor has the tiles, XCR0 that the kernel keeps them when it switches threads. It does so only for
 * processes that have asked: a signal's frame then needs 8 KB more. */
static bool ask_for_tiles(void)
{
    enum { TILE = 1 << 24, BF16 = 1 << 22, OSXSAVE = 1 << 27, TILE_STATE = 3 << 17, REQUEST = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d, kept, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (TILE | BF16)) != (TILE | BF16)) return false;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
    return (kept & TILE_STATE) == TILE_STATE && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

bool tr__amx_permitted(void)
{
#if defined(__x86_64__) && defined(TR__KNOWS_AMX)
    static atomic_int permitted = -1; /* process-wide, as the permission is; threads that ask at once get the same answer */
    int known = atomic_load_explicit(&permitted, memory_order_relaxed);
    if (known < 0) {
        known = ask_for_tiles();
        atomic_store_explicit(&permitted, known, memory_order_relaxed);
    }
    return known;
#else
    return false;
#endif
}
