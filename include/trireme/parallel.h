/*
 * Trireme, training on several devices of a process, and on the ranks of a group: data parallel.
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

typedef struct tr_data_parallel_options {
    size_t size;
    tr_module *module;
    const tr_device *devices; /* NULL: all of the module's kind, its own first */
    int count;                /* of devices; without .devices: so many of the default ones; 0: all */
} tr_data_parallel_options;
/*
 * Wraps a module: tr_forward() splits its inputs along dimension 0 over devices of this process, runs a replica of the
 * module on each in a thread of its own, and joins the outputs on the first device. Replicas share the parameters' memory.
 * The backward of that one node runs the replicas' backwards in their threads, then leaves the sum of their gradients at the
 * module's own parameters, whose hooks are called once. So n devices compute what one would; the loss is taken outside, of
 * the joined output. (Krizhevsky 2014, as torch.nn.DataParallel.)
 *
 * All of the module is on the first device. A batch with fewer rows than there are devices runs on as many as it has rows.
 * Outputs are joined along dimension 0; scalars become a vector with one element per replica. Dropouts draw what they would
 * draw on one device (tr_seed() the wrapper or the module). What a forward writes to buffers counts on the first device and
 * is dropped elsewhere. docs/parallel.md says what happens where.
 */
#define tr_data_parallel(...) TR__NEW1(tr_data_parallel, module, __VA_ARGS__)
TR_API tr_module *tr_data_parallel_with(const tr_data_parallel_options *options);

/* Collectives over the elements of contiguous tensors, outside the graph. With one tensor they are in place. `out` has
 * world_size times the elements of `in` (gather, all_gather), or the other way round (scatter, reduce_scatter), or as
 * many (all_to_all). The out of a gather is needed at the root only, as is the in of a scatter; else they may be
 * NULL. */
#define tr_all_reduce_tensor(group, t, op) TR__ON_TENSORS(group, TR_ALL_REDUCE, t, NULL, op, 0, 0)
#define tr_reduce_tensor(group, t, op, root) TR__ON_TENSORS(group, TR_REDUCE, t, NULL, op, root, 0)
#define tr_broadcast_tensor(group, t, root) TR__ON_TENSORS(group, TR_BROADCAST, t, NULL, TR_SUM, root, 0)
#define tr_all_gather_tensor(group, in, out) TR__ON_TENSORS(group, TR_ALL_GATHER, out, in, TR_SUM, 0, 0)
#define tr_gather_tensor(group, in, out, root) TR__ON_TENSORS(group, TR_GATHER, out, in, TR_SUM, root, 0)
#define tr_scatter_tensor(group, in, out, root) TR__ON_TENSORS(group, TR_SCATTER, out, in, TR_SUM, root, 0)
#define tr_reduce_scatter_tensor(group, in, out, op) TR__ON_TENSORS(group, TR_REDUCE_SCATTER, out, in, op, 0, 0)
#define tr_all_to_all_tensor(group, in, out) TR__ON_TENSORS(group, TR_ALL_TO_ALL, out, in, TR_SUM, 0, 0)
#define tr_send_tensor(group, t, peer, tag) TR__ON_TENSORS(group, TR_SEND, NULL, t, TR_SUM, peer, tag)
#define tr_recv_tensor(group, t, peer, tag) TR__ON_TENSORS(group, TR_RECV, t, NULL, TR_SUM, peer, tag)
#define TR__ON_TENSORS(group, kind, out, in, op, rank, tag) \
    tr_collective_tensor((group), (kind), (out), (in), (op), (rank), (tag), __FILE__, __LINE__)
/* rank: the root or the peer. file and line: where the caller is, for messages. */
TR_API TR_MUST_CHECK tr_status tr_collective_tensor(tr_group *group, tr_collective_kind kind, tr_tensor *out,
    const tr_tensor *in, tr_reduce_op op, int rank, int tag, const char *file, int line);

#ifdef __cplusplus
}
#endif

#endif
