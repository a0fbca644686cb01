#include "comm/algo/reduce.h"

#include "base/isa.h"

static const tr__reduce_table *best_table(void)
{
#if defined(__x86_64__)
    if (tr__has_avx512()) return &tr__reduce_avx512;
    if (tr__has_avx2()) return &tr__reduce_avx2;
#endif
    return &tr__reduce_plain;
}

tr__reduce_kernel tr__reduce_find(tr_dtype dtype, tr_reduce_op op)
{
    return (*best_table())[dtype][op];
}
