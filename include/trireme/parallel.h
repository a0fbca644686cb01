/*
 * Trireme, training on several devices of a process and on the ranks of a group: data, tensor and pipeline parallelism,
 * sharded optimizers. docs/parallel.md says what happens on which device or rank.
 */
#ifndef TRIREME_PARALLEL_H
#define TRIREME_PARALLEL_H

#include <trireme/comm.h>
#include <trireme/nn.h>
#include <trireme/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A bucket of gradients that backward has completed on this rank. */
typedef struct tr_ddp_bucket {
    tr_group *group;
    int index, count;     /* which, of how many: the same elements on all ranks and in every backward */
    tr_tensor *gradients; /* [elements], in the parameters' dtype and on their device: this rank's, summed over micro-batches */
    int timeout_ms;       /* what is left for its exchange: the group's limit, or the rest of a distributed backward's */
} tr_ddp_bucket;

/*
 * A communication hook (torch.distributed's register_comm_hook): exchanges a bucket in DDP's place, to compress it, to measure it, to
 * average over fewer ranks. start() is called in backward, bucket by bucket and in one order on all ranks; it may post the exchange and
 * leave its work in *work, which DDP waits for, while backward goes on. *work is NULL before: the exchange is over when start()
 * returns. finish(), unless NULL, is called when the work is done, in the order of the buckets, by the same thread. After it
 * .gradients hold what each rank's optimizer is to see, the same bits on all ranks (.check_every compares). State that lasts, such as
 * the error of a lossy compression, is the hook's own, by .index. What either makes goes with a scope of DDP's. A failure is
 * backward's, and breaks the group.
 */
typedef struct tr_ddp_hook {
    tr_status (*start)(const tr_ddp_bucket *bucket, tr_work **work, void *user);
    tr_status (*finish)(const tr_ddp_bucket *bucket, void *user);
    void *user;
} tr_ddp_hook;

typedef struct tr_ddp_options {
    size_t size;
    const char *given;
    tr_module *module;
    tr_group *group;
    double bucket_mb;     /* default 25, in MiB: gradients are reduced in ranges of about this size */
    int64_t check_every;  /* backwards; default 100; 0: never (a binding that fills in the struct says -1). Replicas are
                             compared as tr_check_replicas() does, in the second backward, too; with TRIREME_CHECK=replicas
                             in every backward, unless this is 0 */
    bool local_buffers;   /* each rank keeps its own buffers, such as running statistics: PyTorch's broadcast_buffers=False */
    tr_dtype compress;    /* TR_BF16 or TR_F16: gradients travel in 16 bits, half of the bytes; pays over networks, not in
                             shared memory */
    const tr_ddp_hook *hook; /* copied; NULL: an all_reduce with TR_AVG */
    bool modules_may_differ; /* the ranks' modules are not compared, but for their parameters and buffers */
    const char *file;     /* where the call is, for messages: the macro sets both */
    int line;
} tr_ddp_options;
/* Wraps a module: compares the ranks' options, parameters and buffers (names, shapes, dtypes, which require gradients) and modules
 * (kinds and details: an activation's name, a dropout's probability, heads; see tr_module_detail()):
 * TR_MISMATCH on all ranks names the first difference. Then it broadcasts rank 0's, lays the gradients out in shared memory,
 * and averages each bucket over the group as soon as backward has filled it, while backward goes on; the last one at
 * backward's end (Li et al., VLDB 2020). The first backward that exchanges does so at its end: rank 0's order, in which
 * gradients became final there, is the buckets' order on all ranks from then on. tr_backward() returns when all
 * gradients are averaged, and all ranks have rank 0's buffers, such as running statistics, which lie side by side and
 * travel in one broadcast. A parameter that took no part counts as a zero gradient, also when it did so on no rank: an
 * optimizer steps it, and weight decay moves it. tr_dist_backward() does the same for the gradients of its context.
 * In the second and every .check_every-th backward that exchanges, parameters and buffers are compared when the gradients have been
 * averaged: TR_MISMATCH from tr_backward() on every rank names the odd ranks and the first tensor, nothing has been
 * stepped but what steps in backward, and the group can be used on. One backward at a time, in the same order on all ranks; a rank whose backward
 * fails breaks the group: the others get TR_PEER, which names it and quotes its message. Give each of several modules
 * that one backward goes through, and sync batch norms inside them, a group of its own (tr_group_split()) where
 * parameters may take part on some ranks only: over one group the ranks' buckets come in different orders, which is
 * TR_MISMATCH. */
#define tr_ddp(...) TR__NEW2(tr_ddp, module, group, __VA_ARGS__, TR__HERE)
TR_API tr_module *tr_ddp_with(const tr_ddp_options *options);

/* Compares what all ranks should hold alike, bit for bit: parameters, or an optimizer's state (tr_optimizer_state()).
 * Each tensor is read once, by all threads, and summed up with CRC-32C; one all_gather of four bytes compares a sum of these
 * sums. TR_MISMATCH on every rank where they differ: the message names the ranks that hold other values than the majority,
 * and the first tensor. The group can be used on. Collective; the lists have the same tensors in the same order. */
TR_API TR_MUST_CHECK tr_status tr_check_replicas(tr_group *group, const tr_tensor_list *list);

/* Off: backward accumulates locally and no gradients are exchanged (for all but the last micro-batch of gradient
 * accumulation). On again: the next backward averages what has been accumulated. All ranks switch alike. */
TR_API TR_MUST_CHECK tr_status tr_ddp_sync(tr_module *ddp, bool on);

/* As tr_batch_norm_op(), in training over the batches of all ranks of a group, which have as many channels: what one process
 * with all of them would compute, gradients of x included. Those of weight and bias are this rank's part, as for any other
 * parameter: DDP averages them. A rank may have an empty batch. */
#define tr_sync_batch_norm_op(group, ...) \
    tr_sync_batch_norm_op_with((group), TR__NAMED_OPTIONS1(tr_batch_norm_op_options, x, __VA_ARGS__))
TR_API tr_tensor *tr_sync_batch_norm_op_with(tr_group *group, const tr_batch_norm_op_options *options);
/* Makes the batch norms in a module, which it holds or is, such: names and parameters stay. As
 * torch.nn.SyncBatchNorm.convert_sync_batchnorm. */
TR_API TR_MUST_CHECK tr_status tr_convert_sync_batch_norm(tr_module *module, tr_group *group);

typedef struct tr_data_parallel_options {
    size_t size;
    const char *given;
    tr_module *module;
    const tr_device *devices; /* NULL: all of the module's kind, its own first */
    int count;                /* of devices; without .devices: so many of the default ones; 0: all */
} tr_data_parallel_options;
/*
 * Wraps a module: tr_forward() splits its inputs along dimension 0 over devices of this process, runs a replica of the
 * module on each in a thread of its own, and joins the outputs on the first device. Replicas on CPU devices share the parameters'
 * memory; on other devices they have copies, which a forward refreshes after parameters were written to. Kinds may differ.
 * The backward of that one node runs the replicas' backwards in their threads, then leaves the sum of their gradients at the
 * module's own parameters, whose hooks are called once. So n devices compute what one would; the loss is taken outside, of
 * the joined output. (Krizhevsky 2014, as torch.nn.DataParallel.)
 *
 * All of the module is on the first device. A batch with fewer rows than there are devices runs on as many as it has rows.
 * Outputs are joined along dimension 0; scalars become a vector with one element per replica. Dropouts draw what they would
 * draw on one device (tr_seed() the wrapper or the module). What a forward writes to buffers counts on the first device and
 * is dropped elsewhere. Modules that talk to other ranks in their forward (tr_convert_sync_batch_norm(), tr_column_linear(), …) are
 * refused: replicas would do so at once, and a group's calls go in one order; so are remote modules inside it. In distributed
 * contexts the sum goes to the context. Threads that call it at once, as functions that other workers call, take turns. Recompute is
 * set on modules inside it, not on the wrapper. docs/parallel.md says what happens where.
 */
#define tr_data_parallel(...) tr_data_parallel_with(TR__BRACES1(tr_data_parallel_options, module, __VA_ARGS__))
TR_API tr_module *tr_data_parallel_with(const tr_data_parallel_options *options);

/* ---- Pipelines ------------------------------------------------------------------------------------------------------- */

typedef enum tr_pipeline_schedule {
    TR_1F1B, /* a forward and a backward in turn (Narayanan et al. 2019): keeps the activations of few micro-batches */
    TR_GPIPE /* all forwards, then all backwards (Huang et al. 2019) */
} tr_pipeline_schedule;

typedef struct tr_pipeline tr_pipeline;

typedef struct tr_pipeline_options {
    size_t size;
    const char *given;
    tr_module *const *stages;
    int count;
    tr_loss_function loss; /* of the last stage's output */
    void *user;            /* the loss function's */
    int micro_batches;     /* default 4 */
    tr_pipeline_schedule schedule;
    tr_group *group;       /* stage r is rank r's, the only one that it gives; NULL: all stages are in this process */
} tr_pipeline_options;
/*
 * A module in stages, each on a device of its own, that work on different micro-batches at the same time: in one process with
 * a thread per stage, or with a rank per stage. Activations are handed on, gradients handed back. A stage lies on one device,
 * takes one tensor and gives one; stages share no parameters, and in one process no group that their modules talk to. A stage
 * that is a tr_ddp() exchanges its gradients once per step. With a rank per stage tr_clip_grad_norm() takes the norm of all stages
 * and is collective over the group: each rank calls it, with an optimizer of its stage's parameters.
 */
#define tr_pipeline_new(...) tr_pipeline_new_with(TR__BRACES2(tr_pipeline_options, stages, count, __VA_ARGS__))
TR_API tr_pipeline *tr_pipeline_new_with(const tr_pipeline_options *options);
/* tr_pipeline_step(pipeline, x, y, &loss): forward and backward of a batch. Adds the gradients of its mean loss to those of the
 * stages' parameters, as one device would without micro-batches (they must divide the rows), also for dropouts (tr_seed() the stages
 * for the batch). x is needed by the first stage, y (NULL: none) by the last. The first step over a group compares the ranks'
 * .micro_batches and .schedule, of which others are TR_MISMATCH. loss, unless NULL, gets the mean loss, on all ranks. After a failure
 * the gradients are worth nothing, and a group is broken: the other ranks get TR_PEER with the message of the one that failed. The mean
 * of micro-batches' losses is the batch's where each loss is a mean over as many rows: with ignored targets or class weights let the
 * loss function sum and divide by .micro_batches times the batch's count itself. */
#define tr_pipeline_step(pipeline, x, y, loss) tr_pipeline_step_at((pipeline), (x), (y), (loss), TR__FILE, TR__LINE)
TR_API TR_MUST_CHECK tr_status tr_pipeline_step_at(tr_pipeline *pipeline, tr_tensor *x, tr_tensor *y, double *loss,
    const char *file, int line);

/* ---- Meshes: several kinds of parallelism at once ------------------------------------------------------------------- */

typedef enum tr_mesh_axis { TR_MESH_DP, TR_MESH_TP, TR_MESH_PP, TR_MESH_AXES } tr_mesh_axis;
typedef struct tr_mesh tr_mesh;

typedef struct tr_mesh_options {
    size_t size;
    const char *given;
    tr_group *world;
    int dp;           /* ranks that are data parallel; 0: as many as the others leave */
    int tp, pp;       /* tensor parallel and pipeline stages; default 1 */
    const char *file; /* where the call is, for messages: the macro sets both */
    int line;
} tr_mesh_options;
/* tr_mesh_new(world, .tp = 2, .pp = 2): ranks as a box, with rank = (pp * DP + dp) * TP + tp, so that tensor parallel ranks,
 * which talk most, are neighbours. Collective over the world, which must have dp * tp * pp ranks. */
#define tr_mesh_new(...) tr_mesh_new_with(TR__NAMED_OPTIONS1(tr_mesh_options, world, __VA_ARGS__, TR__HERE))
TR_API tr_mesh *tr_mesh_new_with(const tr_mesh_options *options);
/* The ranks that differ from this one along an axis only, itself among them, in the axis' order: the mesh's own group. */
TR_API tr_group *tr_mesh_group(const tr_mesh *mesh, tr_mesh_axis axis);
/* Leaves the mesh's groups, as tr_leave(). */
TR_API TR_MUST_CHECK tr_status tr_mesh_leave(tr_mesh *mesh);

/* ---- Collectives as ops with a backward ------------------------------------------------------------------------------ */

/*
 *                              y                                     dx
 *   tr_copy_to_op(g, x)        x                                     the sum of the ranks' dy
 *   tr_all_reduce_op(g, x)     the sum of the ranks' x               dy
 *   tr_scatter_to_op           this rank's block of x along dim      the ranks' dy, one after the other
 *   tr_gather_from_op          the ranks' x, one after the other     this rank's block of dy
 *   tr_all_gather_op           the ranks' x, one after the other     this rank's block of the sum of the ranks' dy
 *   tr_reduce_scatter_op       this rank's block of the sum of x     the ranks' dy, one after the other
 *
 * In pairs, each is the other's backward. The first two pairs stand where a computation that all ranks make alike (the loss
 * among it, which counts once) turns into one that is shared out, and back: Megatron-LM's f and g (Shoeybi et al. 2019). The
 * last pair is for what is shared out on both sides: sequence parallelism, sharded parameters. Blocks are equal; dim may be
 * negative. All ranks of the group make the calls, and their backwards, in the same order. In a group of one they give x.
 */
#define tr_copy_to_op(group, x) tr_collective_op(TR_COPY_TO_OP, (group), (x), 0, TR__FILE, TR__LINE)
#define tr_all_reduce_op(group, x) tr_collective_op(TR_ALL_REDUCE_OP, (group), (x), 0, TR__FILE, TR__LINE)
#define tr_scatter_to_op(group, x, dim) tr_collective_op(TR_SCATTER_TO_OP, (group), (x), (dim), TR__FILE, TR__LINE)
#define tr_gather_from_op(group, x, dim) tr_collective_op(TR_GATHER_FROM_OP, (group), (x), (dim), TR__FILE, TR__LINE)
#define tr_all_gather_op(group, x, dim) tr_collective_op(TR_ALL_GATHER_OP, (group), (x), (dim), TR__FILE, TR__LINE)
#define tr_reduce_scatter_op(group, x, dim) tr_collective_op(TR_REDUCE_SCATTER_OP, (group), (x), (dim), TR__FILE, TR__LINE)
typedef enum tr_collective_op_kind {
    TR_COPY_TO_OP, TR_ALL_REDUCE_OP, TR_SCATTER_TO_OP, TR_GATHER_FROM_OP, TR_ALL_GATHER_OP, TR_REDUCE_SCATTER_OP
} tr_collective_op_kind;
TR_API tr_tensor *tr_collective_op(tr_collective_op_kind kind, tr_group *group, tr_tensor *x, int dim, const char *file,
    int line);

/* ---- Tensor parallel layers (Shoeybi et al., Megatron-LM, 2019) ---------------------------------------------------- */

typedef struct tr_column_linear_options {
    size_t size;
    const char *given;
    int64_t in_features, out_features; /* of the whole layer */
    tr_group *group;
    bool gather_output; /* give the whole output on every rank, not this rank's block of it */
    bool no_bias;
    double init_std;
    uint64_t seed; /* default: tr_next_seed() */
    tr_dtype dtype;
} tr_column_linear_options;
/* A tr_linear() whose outputs are shared out: x: [..., in], the same on all ranks -> [..., out / ranks]. A dropout behind it
 * draws the same mask on every rank unless it is seeded by rank. */
#define tr_column_linear(...) TR__NEW2(tr_column_linear, in_features, out_features, __VA_ARGS__)
TR_API tr_module *tr_column_linear_with(const tr_column_linear_options *options);

typedef struct tr_row_linear_options {
    size_t size;
    const char *given;
    int64_t in_features, out_features; /* of the whole layer */
    tr_group *group;
    bool input_whole;   /* the input is the same on all ranks, [..., in]: each takes its block of it */
    bool no_bias;
    double init_std;
    uint64_t seed; /* default: tr_next_seed() */
    tr_dtype dtype;
} tr_row_linear_options;
/* A tr_linear() whose inputs are shared out: x: [..., in / ranks] -> [..., out], the same on all ranks: one all_reduce. */
#define tr_row_linear(...) TR__NEW2(tr_row_linear, in_features, out_features, __VA_ARGS__)
TR_API tr_module *tr_row_linear_with(const tr_row_linear_options *options);

typedef struct tr_vocab_parallel_embedding_options {
    size_t size;
    const char *given;
    int64_t rows, dim;  /* of the whole layer */
    tr_group *group;
    double init_std;
    uint64_t seed; /* default: tr_next_seed() */
    tr_dtype dtype;
} tr_vocab_parallel_embedding_options;
/* A tr_embedding() whose rows are shared out: ids, the same on all ranks -> [..., dim], the same on all ranks. */
#define tr_vocab_parallel_embedding(...) TR__NEW2(tr_vocab_parallel_embedding, rows, dim, __VA_ARGS__)
TR_API tr_module *tr_vocab_parallel_embedding_with(const tr_vocab_parallel_embedding_options *options);
/* All three begin as the slices of what the whole layer of the same seed and init_std begins as. Without a seed the slices fit
 * together where the ranks' threads have made as many modules without one; where some have made more, give one. Outputs
 * (inputs, rows) must divide by the ranks. A rank's state dict has its slices, which are marked as shards: */

/* Says that a parameter is this rank's shard of one that the group's ranks have together, as a module's of your own may be.
 * tr_clip_grad_norm() and tr_unscale_grad() then count the squares of all shards, and are collective over the group. A parameter
 * that is not marked is whole: the same on all ranks, with the same gradient, and counted once. */
TR_API TR_MUST_CHECK tr_status tr_mark_shard(tr_tensor *parameter, tr_group *group);

/* ---- Sharded optimizers ---------------------------------------------------------------------------------------------- */

/* tr_shard_optimizer(optimizer, group): each rank of the group keeps its shard of the optimizer's state only, updates that shard
 * of the parameters, and all gather the others' after each step: stage 1 of ZeRO (Rajbhandari et al. 2020). Not for LAMB, LARS and
 * Muon. Collective: all ranks call it, with optimizers alike and in the same state, best right after making them; rules, settings,
 * learning rates and parameters that differ are TR_MISMATCH, as with tr_ddp(). Gradients must be the same on all ranks, as
 * tr_ddp() leaves them. tr_step(), tr_optimizer_state() and tr_optimizer_load() are then collective; the state dict is whole, so
 * that a checkpoint fits any number of ranks. */
#define tr_shard_optimizer(optimizer, group) tr_shard_optimizer_at((optimizer), (group), TR__FILE, TR__LINE)
TR_API TR_MUST_CHECK tr_status tr_shard_optimizer_at(tr_optimizer *optimizer, tr_group *group, const char *file, int line);

/* ---- Collectives on tensors, outside the graph ----------------------------------------------------------------------- */

/* Collectives over the elements of contiguous tensors, outside the graph. With one tensor they are in place. `out` has
 * world_size times the elements of `in` (gather, all_gather), or the other way round (scatter, reduce_scatter), or as
 * many (all_to_all). The out of a gather is needed at the root only, as is the in of a scatter; else they may be
 * NULL. */
#define tr_all_reduce_tensor(group, t, op) TR__ON_TENSORS(group, TR_ALL_REDUCE, NULL, t, op, 0, 0)
#define tr_reduce_tensor(group, t, op, root) TR__ON_TENSORS(group, TR_REDUCE, NULL, t, op, root, 0)
#define tr_broadcast_tensor(group, t, root) TR__ON_TENSORS(group, TR_BROADCAST, NULL, t, TR_SUM, root, 0)
#define tr_all_gather_tensor(group, in, out) TR__ON_TENSORS(group, TR_ALL_GATHER, in, out, TR_SUM, 0, 0)
#define tr_gather_tensor(group, in, out, root) TR__ON_TENSORS(group, TR_GATHER, in, out, TR_SUM, root, 0)
#define tr_scatter_tensor(group, in, out, root) TR__ON_TENSORS(group, TR_SCATTER, in, out, TR_SUM, root, 0)
#define tr_reduce_scatter_tensor(group, in, out, op) TR__ON_TENSORS(group, TR_REDUCE_SCATTER, in, out, op, 0, 0)
#define tr_all_to_all_tensor(group, in, out) TR__ON_TENSORS(group, TR_ALL_TO_ALL, in, out, TR_SUM, 0, 0)
#define tr_send_tensor(group, t, peer, tag) TR__ON_TENSORS(group, TR_SEND, t, NULL, TR_SUM, peer, tag)
#define tr_recv_tensor(group, t, peer, tag) TR__ON_TENSORS(group, TR_RECV, NULL, t, TR_SUM, peer, tag)
/* The same, started: tr_wait() gives the status, and until then the tensors belong to the work, which keeps them. */
#define tr_all_reduce_tensor_async(group, t, op) TR__POST_TENSORS(group, TR_ALL_REDUCE, NULL, t, op, 0, 0)
#define tr_reduce_tensor_async(group, t, op, root) TR__POST_TENSORS(group, TR_REDUCE, NULL, t, op, root, 0)
#define tr_broadcast_tensor_async(group, t, root) TR__POST_TENSORS(group, TR_BROADCAST, NULL, t, TR_SUM, root, 0)
#define tr_all_gather_tensor_async(group, in, out) TR__POST_TENSORS(group, TR_ALL_GATHER, in, out, TR_SUM, 0, 0)
#define tr_gather_tensor_async(group, in, out, root) TR__POST_TENSORS(group, TR_GATHER, in, out, TR_SUM, root, 0)
#define tr_scatter_tensor_async(group, in, out, root) TR__POST_TENSORS(group, TR_SCATTER, in, out, TR_SUM, root, 0)
#define tr_reduce_scatter_tensor_async(group, in, out, op) TR__POST_TENSORS(group, TR_REDUCE_SCATTER, in, out, op, 0, 0)
#define tr_all_to_all_tensor_async(group, in, out) TR__POST_TENSORS(group, TR_ALL_TO_ALL, in, out, TR_SUM, 0, 0)
#define tr_send_tensor_async(group, t, peer, tag) TR__POST_TENSORS(group, TR_SEND, t, NULL, TR_SUM, peer, tag)
#define tr_recv_tensor_async(group, t, peer, tag) TR__POST_TENSORS(group, TR_RECV, NULL, t, TR_SUM, peer, tag)
#define TR__ON_TENSORS(group, kind, in, out, op, rank, tag) \
    tr_collective_tensor((group), (kind), (in), (out), (op), (rank), (tag), TR__FILE, TR__LINE)
#define TR__POST_TENSORS(group, kind, in, out, op, rank, tag) \
    tr_collective_tensor_async((group), (kind), (in), (out), (op), (rank), (tag), TR__FILE, TR__LINE)
/* rank: the root or the peer. file and line: where the caller is, for messages. */
TR_API TR_MUST_CHECK tr_status tr_collective_tensor(tr_group *group, tr_collective_kind kind, const tr_tensor *in, tr_tensor *out,
    tr_reduce_op op, int rank, int tag, const char *file, int line);
TR_API tr_work *tr_collective_tensor_async(tr_group *group, tr_collective_kind kind, const tr_tensor *in, tr_tensor *out,
    tr_reduce_op op, int rank, int tag, const char *file, int line);

#ifdef __cplusplus
}
#endif

#endif
