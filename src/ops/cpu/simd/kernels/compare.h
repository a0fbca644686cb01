/* Comparisons, by loops for the machine's vectors. */
#ifndef TR_OPS_CPU_SIMD_KERNELS_COMPARE_H
#define TR_OPS_CPU_SIMD_KERNELS_COMPARE_H

#include "ops/compare.h"

#define COMPARISON(name, operator)                                \
    TR__COMPARISON(name##_simd, operator)                         \
    static tr_status name##_kernel(tr_op_call *call)              \
    {                                                             \
        return tr__elementwise(call, &name##_simd_bodies);        \
    }
TR__COMPARISON_MAP(COMPARISON)

#endif
