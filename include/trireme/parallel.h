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
    tr_tensor *gradients; /* [elements], in the parameters' dtype and on their device: this rank's gradients, summed
                             over micro-batches */
    int timeout_ms;       /* the time left for its exchange: the group's limit, or the rest of a distributed backward's */
} tr_ddp_bucket;

/*
 * A communication hook (torch.distributed's register_comm_hook): exchanges a bucket in DDP's place, for example to
 * compress it, to measure it, or to average over fewer ranks.
 *
 * start() is called in backward, bucket by bucket, in one order on all ranks. *work is NULL before the call. start()
 * may post the exchange and leave its work in *work; DDP waits for that work while backward goes on. When *work stays
 * NULL, the exchange is over when start() returns. finish(), unless NULL, is called when the work is done, in the order
 * of the buckets, by the same thread. After it .gradients must hold what each rank's optimizer is to see, with the same
 * bits on all ranks (.check_every compares).
 *
 * A hook keeps lasting state, such as the error of a lossy compression, by itself, per .index. Objects that either
 * function makes belong to a scope of DDP's. A failure is backward's failure and breaks the group.
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
    int64_t check_every;  /* compare replicas, as tr_check_replicas() does, every so many backwards, and in the second
                             one; default 100; 0: never (a binding that fills in the struct sets -1).
                             TRIREME_CHECK=replicas: in every backward, unless this is 0 */
    bool local_buffers;   /* each rank keeps its own buffers, such as running statistics: PyTorch's broadcast_buffers=False */
    tr_dtype compress;    /* TR_BF16 or TR_F16: gradients are sent in 16 bits, half of the bytes; faster over networks,
                             not in shared memory */
    const tr_ddp_hook *hook; /* copied; NULL: an all_reduce with TR_AVG */
    bool modules_may_differ; /* compare only the parameters and buffers of the ranks' modules */
    const char *file;     /* where the call is, for messages: the macro sets both */
    int line;
} tr_ddp_options;
/* Wraps a module for data-parallel training (Li et al., VLDB 2020).
 *
 * First it compares the ranks' options, parameters and buffers (names, shapes, dtypes, which require gradients) and
 * modules (kinds and details: an activation's name, a dropout's probability, heads; see tr_module_detail()). When they
 * differ, every rank gets TR_MISMATCH, which names the first difference. Then it broadcasts rank 0's parameters and
 * buffers, and places the gradients in shared memory.
 *
 * Each bucket is averaged over the group as soon as backward has filled it, while backward goes on; the last one at
 * backward's end. The first backward that exchanges does so at its end: the order in which gradients became final on
 * rank 0 is from then on the order of the buckets on all ranks. tr_backward() returns when all gradients are averaged,
 * and all ranks have rank 0's buffers, such as running statistics, which are sent in one broadcast. A parameter that
 * took no part counts as a zero gradient, also when it took part on no rank: an optimizer steps it, and weight decay
 * changes it. tr_dist_backward() does the same for the gradients of its context.
 *
 * In the second and every .check_every-th backward that exchanges, parameters and buffers are compared after the
 * gradients have been averaged. When they differ, tr_backward() returns TR_MISMATCH on every rank and names the ranks
 * that differ and the first tensor. Then nothing has been stepped, except by steps in backward, and the group can still
 * be used.
 *
 * One backward at a time, in the same order on all ranks. A rank whose backward fails breaks the group: the others get
 * TR_PEER, which names that rank and quotes its message. When one backward goes through several such modules, or sync
 * batch norms inside them, and parameters may take part on some ranks only, give each of them a group of its own
 * (tr_group_split()). Over one group the ranks' buckets would come in different orders, which is TR_MISMATCH. */
#define tr_ddp(...) TR__NEW2(tr_ddp, module, group, __VA_ARGS__, TR__HERE)
TR_API tr_module *tr_ddp_with(const tr_ddp_options *options);

/* Compares bit for bit what should be the same on all ranks: parameters, or an optimizer's state
 * (tr_optimizer_state()). All threads read each tensor once and compute its CRC-32C; one all_gather of four bytes
 * compares a sum over these. When they differ, every rank gets TR_MISMATCH: the message names the ranks whose values
 * differ from the majority's, and the first tensor. The group can still be used. Collective; the lists have the same
 * tensors in the same order. */
TR_API TR_MUST_CHECK tr_status tr_check_replicas(tr_group *group, const tr_tensor_list *list);

/* Off: backward accumulates locally and exchanges no gradients, as for all but the last micro-batch of gradient
 * accumulation. On again: the next backward averages what has been accumulated. All ranks switch alike. */
TR_API TR_MUST_CHECK tr_status tr_ddp_sync(tr_module *ddp, bool on);

/* As tr_batch_norm_op(), but in training over the batches of all ranks of a group, which have the same number of
 * channels. It computes what one process with all batches would compute, gradients of x included. The gradients of
 * weight and bias are this rank's part, as for any other parameter: DDP averages them. A rank may have an empty batch. */
#define tr_sync_batch_norm_op(group, ...) \
    tr_sync_batch_norm_op_with((group), TR__NAMED_OPTIONS1(tr_batch_norm_op_options, x, __VA_ARGS__))
TR_API tr_tensor *tr_sync_batch_norm_op_with(tr_group *group, const tr_batch_norm_op_options *options);
/* Turns the batch norms in a module, or the module itself if it is one, into such batch norms; names and parameters
 * stay. As torch.nn.SyncBatchNorm.convert_sync_batchnorm. */
TR_API TR_MUST_CHECK tr_status tr_convert_sync_batch_norm(tr_module *module, tr_group *group);

typedef struct tr_data_parallel_options {
    size_t size;
    const char *given;
    tr_module *module;
    const tr_device *devices; /* NULL: all devices of the module's kind, the module's own first */
    int count;                /* of devices; without .devices: so many of the default ones; 0: all */
} tr_data_parallel_options;
/*
 * Wraps a module: tr_forward() splits its inputs along dimension 0 over devices of this process, runs a replica of the
 * module on each device in a thread of its own, and joins the outputs on the first device. Replicas on CPU devices
 * share the parameters' memory; on other devices they have copies, which a forward refreshes after parameters were
 * written to. The kinds of the devices may differ. Backward runs the replicas' backwards in their threads, then leaves
 * the sum of their gradients at the module's own parameters, whose hooks are called once. So n devices compute what one
 * would. Compute the loss outside, from the joined output. (Krizhevsky 2014, as torch.nn.DataParallel.)
 *
 * The whole module is on the first device. A batch with fewer rows than devices runs on as many devices as it has rows.
 * Outputs are joined along dimension 0; scalars become a vector with one element per replica. Dropouts draw what they
 * would draw on one device (tr_seed() the wrapper or the module). Writes to buffers in a forward count on the first
 * device and are dropped elsewhere. Recompute is set on modules inside it, not on the wrapper.
 *
 * It refuses modules that talk to other ranks in their forward (tr_convert_sync_batch_norm(), tr_column_linear(), …),
 * because replicas would do so at the same time, and a group's calls need one order. It refuses remote modules, too. In
 * distributed contexts the sum goes to the context. Threads that call it at the same time, as functions that other
 * workers call, take turns. docs/parallel.md says what happens where.
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
    tr_group *group;       /* stage r is on rank r, which gives only that one; NULL: all stages are in this process */
} tr_pipeline_options;
/*
 * A module in stages, each on its own device, that work on different micro-batches at the same time: in one process
 * with a thread per stage, or with a rank per stage. Activations go from each stage to the next, gradients go back. A
 * stage is on one device, and takes and gives one tensor. Stages share no parameters; in one process their modules also
 * use no common group. A stage that is a tr_ddp() exchanges its gradients once per step. With a rank per stage,
 * tr_clip_grad_norm() takes the norm of all stages and is collective over the group: each rank calls it, with an
 * optimizer of its stage's parameters.
 */
#define tr_pipeline_new(...) tr_pipeline_new_with(TR__BRACES2(tr_pipeline_options, stages, count, __VA_ARGS__))
TR_API tr_pipeline *tr_pipeline_new_with(const tr_pipeline_options *options);
/* tr_pipeline_step(pipeline, x, y, &loss): forward and backward of a batch. It adds the gradients of the batch's mean
 * loss to those of the stages' parameters, as one device would without micro-batches, also for dropouts (tr_seed() the
 * stages for the batch). .micro_batches must divide the rows. The first stage needs x, the last stage y (NULL: none).
 * The first step over a group compares the ranks' .micro_batches and .schedule; a difference is TR_MISMATCH. loss,
 * unless NULL, gets the mean loss, on all ranks. After a failure the gradients cannot be used, and a group is broken:
 * the other ranks get TR_PEER with the message of the rank that failed.
 *
 * The result is the mean of the micro-batches' losses. It is the batch's loss when each of them is a mean over the same
 * number of rows. With ignored targets or class weights that is not so: then let the loss function return its sum times
 * .micro_batches, divided by the count of the whole batch.
 *
 * Under TR_NO_GRAD, on all ranks alike, the stages only run their forwards, and gradients stay as they are: after
 * tr_eval() of the stages it measures a validation batch. */
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
    int dp;           /* data parallel ranks; 0: as many as tp and pp leave */
    int tp, pp;       /* tensor parallel and pipeline stages; default 1 */
    const char *file; /* where the call is, for messages: the macro sets both */
    int line;
} tr_mesh_options;
/* tr_mesh_new(world, .tp = 2, .pp = 2) arranges the ranks as a box: rank = (pp * DP + dp) * TP + tp. So tensor parallel
 * ranks, which communicate most, are neighbours. Collective over the world, which must have dp * tp * pp ranks. */
#define tr_mesh_new(...) tr_mesh_new_with(TR__NAMED_OPTIONS1(tr_mesh_options, world, __VA_ARGS__, TR__HERE))
TR_API tr_mesh *tr_mesh_new_with(const tr_mesh_options *options);
/* The group of the ranks that differ from this one along one axis only, in the order of that axis; this rank is one of
 * them. The group belongs to the mesh. */
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
 * The two ops of a pair are each other's backward. The first two pairs stand between a computation that all ranks make
 * alike (with the loss, which counts once) and one that is divided among them, and back: Megatron-LM's f and g (Shoeybi
 * et al. 2019). The last pair is for values that are divided on both sides: sequence parallelism, sharded parameters.
 * Blocks are equal; dim may be negative. All ranks of the group make the calls, and their backwards, in the same order.
 * In a group of one rank they return x.
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
    bool gather_output; /* return the whole output on every rank, not this rank's block of it */
    bool no_bias;
    double init_std;
    uint64_t seed; /* default: tr_next_seed() */
    tr_dtype dtype;
} tr_column_linear_options;
/* A tr_linear() whose outputs are divided among the ranks: x: [..., in], the same on all ranks -> [..., out / ranks]. A
 * dropout after it draws the same mask on every rank, unless its seed depends on the rank. */
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
/* A tr_linear() whose inputs are divided among the ranks: x: [..., in / ranks] -> [..., out], the same on all ranks:
 * one all_reduce. */
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
/* A tr_embedding() whose rows are divided among the ranks: ids, the same on all ranks -> [..., dim], the same on all
 * ranks. */
#define tr_vocab_parallel_embedding(...) TR__NEW2(tr_vocab_parallel_embedding, rows, dim, __VA_ARGS__)
TR_API tr_module *tr_vocab_parallel_embedding_with(const tr_vocab_parallel_embedding_options *options);
/* The three layers start with slices of the values that the whole layer of the same seed and init_std would have.
 * Without a .seed the slices fit together when the ranks' threads have made equally many modules without one; otherwise
 * give a .seed. The number of ranks must divide the outputs, inputs or rows. A rank's state dict has its slices, which
 * are marked as shards: */

/* Marks a parameter as this rank's shard of one that the group's ranks hold together, for modules of your own.
 * tr_clip_grad_norm() and tr_unscale_grad() then count the squares of all shards, and are collective over the group. A
 * parameter without the mark is whole: the same on all ranks, with the same gradient, and counted once. */
TR_API TR_MUST_CHECK tr_status tr_mark_shard(tr_tensor *parameter, tr_group *group);

/* ---- Sharded optimizers ---------------------------------------------------------------------------------------------- */

/* tr_shard_optimizer(optimizer, group): each rank of the group keeps only its shard of the optimizer's state and
 * updates only that shard of the parameters; after each step all ranks gather the others' shards. This is stage 1 of
 * ZeRO (Rajbhandari et al. 2020). Not for LAMB, LARS and Muon. Collective: all ranks call it, best right after making
 * the optimizers, which must be in the same state. Rules, settings, learning rates or parameters that differ are
 * TR_MISMATCH, as with tr_ddp(). Gradients must be the same on all ranks, as tr_ddp() leaves them. From then on
 * tr_step(), tr_optimizer_state() and tr_optimizer_load() are collective. The state dict is whole, so a checkpoint fits
 * any number of ranks. */
#define tr_shard_optimizer(optimizer, group) tr_shard_optimizer_at((optimizer), (group), TR__FILE, TR__LINE)
TR_API TR_MUST_CHECK tr_status tr_shard_optimizer_at(tr_optimizer *optimizer, tr_group *group, const char *file, int line);

/* ---- Fully sharded parameters ---------------------------------------------------------------------------------------- */

typedef struct tr_fully_shard_options {
    size_t size;
    const char *given;
    tr_module *module;
    tr_group *group;
    bool keep_after_forward; /* the parameters stay from forward to backward, which saves an all_gather but no memory in
                                between: PyTorch's reshard_after_forward=False */
    const char *file;        /* where the call is, for messages: the macro sets both */
    int line;
} tr_fully_shard_options;
/*
 * tr_fully_shard(module, group): each rank keeps a shard of the module's parameters, of their gradients and of the
 * optimizer's state. This is stage 3 of ZeRO (Rajbhandari et al. 2020) in the shape of PyTorch's FSDP (Zhao et al.,
 * VLDB 2023). Call it on each block of a model, then on the model: what is below the module and was in no earlier call
 * becomes one unit.
 *
 *   for (int i = 0; i < layers; i++) TR_CHECK(tr_fully_shard(tr_module_find(net, names[i]), world));
 *   TR_CHECK(tr_fully_shard(net, world));
 *   tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-3);
 *
 * The module stays the same object: tr_forward(net, x), tr_backward(loss), tr_step(opt). Before a forward of the unit's
 * module its parameters are gathered from all ranks, and after it their memory goes; that of the outermost unit stays
 * until backward. When backward comes to the module they are gathered again. When the gradients of the unit are final,
 * each rank adds the average of its range, as tr_ddp() would average it, to its shards' gradients, and the rest goes. A
 * parameter that took no part has a gradient of zero.
 *
 * tr_parameters() and tr_state_dict() have this rank's shards: of a parameter [rows, columns] a leaf [n, 1] of n
 * elements in row-major order; n may be 0. Elementwise optimizers take them, and tr_clip_grad_norm() and
 * tr_unscale_grad() count over the group. tr_freeze() works as before. Shards belong to the module, as its parameters
 * did.
 *
 * Collective. First it compares the ranks' parameters, modules and options: what differs is TR_MISMATCH on every rank,
 * and the module is as it was. Then all ranks get rank 0's parameters and buffers; later each rank has its own buffers.
 * Forwards and backwards are collective, too, one at a time and in one order on all ranks. A rank that fails in one
 * breaks the group: the others get TR_PEER, which names it and quotes its message. The parameters of a unit have one
 * dtype and device. With one rank nothing is changed.
 *
 * Not with tr_ddp(), tr_data_parallel(), tr_shard_optimizer(), tensor parallel layers, tr_step_in_backward(),
 * tr_dist_backward(), or optimizers that look at whole parameters (LAMB, LARS, Muon): these are TR_UNSUPPORTED or
 * TR_STATE. So is a parameter that is used outside the forward of its unit's module, or that this forward writes to.
 * Gradient hooks of shards are not called.
 */
#define tr_fully_shard(...) TR__NEW2(tr_fully_shard, module, group, __VA_ARGS__, TR__HERE)
TR_API TR_MUST_CHECK tr_status tr_fully_shard_with(const tr_fully_shard_options *options);

/* The whole tensors of a list of shards of the module's parameters: of tr_state_dict(module), or of
 * tr_optimizer_state() of an optimizer with its parameters. They are copies in the CPU's memory on every rank; what is
 * no shard, such as a buffer, is rank 0's; what has no name of the module's is TR_INVALID. Collective: all ranks give
 * the same list, and a failure breaks the group, so that none waits. A checkpoint of such lists fits any program and
 * any number of ranks. */
#define tr_unshard_state(module, state) tr_unshard_state_at((module), (state), TR__FILE, TR__LINE)
TR_API tr_tensor_list *tr_unshard_state_at(tr_module *module, const tr_tensor_list *state, const char *file, int line);
/* The reverse, which sends nothing: this rank's shards of whole tensors, for tr_load_state_dict() and
 * tr_optimizer_load(). They show the memory of the list's tensors where these are contiguous. What is of no sharded
 * parameter, or has another shape, is passed on as it is. */
TR_API tr_tensor_list *tr_shard_state(tr_module *module, const tr_tensor_list *whole);

/* ---- Collectives on tensors, outside the graph ----------------------------------------------------------------------- */

/* Collectives over the elements of contiguous tensors, outside the graph. Those with one tensor are in place. `out` has
 * world_size times the elements of `in` (gather, all_gather); `in` has world_size times the elements of `out` (scatter,
 * reduce_scatter); or they have equally many (all_to_all). The `out` of a gather and the `in` of a scatter are needed
 * at the root only, and may be NULL elsewhere. */
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
/* The same, but only started: tr_wait() gives the status. Until then the tensors belong to the work, which holds
 * references to them. */
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
