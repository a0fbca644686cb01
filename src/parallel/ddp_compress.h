/* Gradients that travel in 16 bits: the hook behind .compress of tr_ddp(). */
#ifndef TR_PARALLEL_DDP_COMPRESS_H
#define TR_PARALLEL_DDP_COMPRESS_H

#include "parallel/bucket_pool.h"

#include <trireme/parallel.h>

typedef struct tr__ddp_compress {
    tr_dtype dtype;
    int module, variant; /* the module's number in the group, and which of its parameters are frozen in this backward */
    tr__bucket_pool pool;
    tr_tensor **sent;    /* by bucket: the pool's block that is under way; NULL: there was no bucket yet */
} tr__ddp_compress;

/* Each rank rounds its gradients to dtype (bf16, f16), the ranks' numbers are added in f32, and the average is rounded once more; NCCL adds in 16 bits.
 * A hook for a module of that number in its group (tr__group_next_module()); it lasts as long as state. */
tr_ddp_hook tr__ddp_compress_hook(tr__ddp_compress *state, tr_dtype dtype, int module);
void tr__ddp_compress_free(tr__ddp_compress *state);

#endif
