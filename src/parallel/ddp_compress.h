/* Gradients that travel in 16 bits: the hook behind .compress of tr_ddp(). */
#ifndef TR_PARALLEL_DDP_COMPRESS_H
#define TR_PARALLEL_DDP_COMPRESS_H

#include "parallel/ddp_buckets.h"

/* Each rank rounds its gradients to dtype (bf16, f16), the ranks' numbers are added in f32, and the average is rounded once more;
 * NCCL adds in 16 bits. A hook for that module, whose state (compress) it keeps. */
tr_ddp_hook tr__ddp_compress_hook(tr__ddp *ddp, tr_dtype dtype);

#endif
