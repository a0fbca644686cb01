/* The CPU's own gemm. */
#ifndef TR_OPS_CPU_GEMM_GEMM_H
#define TR_OPS_CPU_GEMM_GEMM_H

#include "ops/gemm.h"

/* One gemm of the batch p, at the given offsets in elements; any float dtypes but f64, each matrix its own, any strides; the
 * threads of pool divide the work. */
typedef struct tr__gemm_task {
    const tr__gemm *p;
    int64_t a, b, c;
    float *a_sums; /* [m] or NULL: the sums of a's rows, whose columns must be contiguous, are added to it */
    float *b_sums; /* [n] or NULL: the sums of b's columns are */
    tr__pool *pool;
    tr_device device;
} tr__gemm_task;

/* Written once (blocked.h), compiled for each kind of machine. false: out of memory. */
typedef bool (*tr__gemm_kernel)(const tr__gemm_task *task);
#if defined(__x86_64__)
bool tr__gemm_avx512(const tr__gemm_task *task);
/* Rounds a and b to bf16 for the bf16 dot product. Needs tr__has_avx512bf16(). */
bool tr__gemm_avx512bf16(const tr__gemm_task *task);
/* The same by the tiles of AMX. Needs tr__has_amx(). */
bool tr__gemm_amx(const tr__gemm_task *task);
bool tr__gemm_avx2(const tr__gemm_task *task);
#endif
bool tr__gemm_generic(const tr__gemm_task *task);

/* The gemm p of a call of matmul, linear or a gradient of it, not in f64. */
tr_status tr__cpu_gemm(tr_op_call *call, const tr__gemm *p, tr__gemm_kernel kernel);

#endif
