#include "comm/algo/reduce.h"

#include "base/isa.h"

tr__reduce_kernel tr__reduce_find(tr_dtype dtype, tr_reduce_op op)
{
#if defined(__x86_64__)
    if (tr__has_avx512()) return tr__reduce_avx512[dtype][op];
    if (tr__has_avx2()) return tr__reduce_avx2[dtype][op];
#endif
    return tr__reduce_plain[dtype][op];
}
