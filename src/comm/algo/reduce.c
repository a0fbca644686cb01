#include "comm/algo/reduce.h"

static const tr__reduce_table *best_table(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &tr__reduce_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &tr__reduce_avx2;
#endif
    return &tr__reduce_plain;
}

tr__reduce_kernel tr__reduce_find(tr_dtype dtype, tr_reduce_op op)
{
    return (*best_table())[dtype][op];
}
