/*
 * Trireme, data parallel training over a group: DistributedDataParallel.
 */
#ifndef TRIREME_PARALLEL_H
#define TRIREME_PARALLEL_H

#include <trireme/comm.h>
#include <trireme/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tr_ddp_options {
    size_t size;
    tr_module *module;
    tr_group *group;
    double bucket_mb;     /* 0: 25, in MiB: gradients are reduced in ranges of about this size */
} tr_ddp_options;
/* Wraps a module: broadcasts rank 0's parameters and buffers, lays the gradients out in shared memory, and averages each
 * bucket over the group as soon as backward has filled it, while backward goes on (Li et al., VLDB 2020). tr_backward()
 * returns when all gradients are averaged. A parameter that took no part counts as a zero gradient. */
#define tr_ddp(...) TR__NEW2(tr_ddp, module, group, __VA_ARGS__)
TR_API tr_module *tr_ddp_with(const tr_ddp_options *options);

/* Off: backward accumulates locally and no gradients are exchanged (for all but the last micro-batch of gradient
 * accumulation). On again: the next backward averages what has been accumulated. All ranks switch alike. */
TR_API TR_MUST_CHECK tr_status tr_ddp_sync(tr_module *ddp, bool on);

/* A collective over the elements of a contiguous tensor in place, outside the graph. */
TR_API TR_MUST_CHECK tr_status tr_all_reduce_tensor(tr_group *group, tr_tensor *t, tr_reduce_op op);
TR_API TR_MUST_CHECK tr_status tr_broadcast_tensor(tr_group *group, tr_tensor *t, int root);

#ifdef __cplusplus
}
#endif

#endif
