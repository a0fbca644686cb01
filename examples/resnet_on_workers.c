/*
 * A ResNet whose stages of convolutions live on different workers. A master runs forward and backward through them, and the
 * parameters are updated in two ways:
 *   where they are   each worker's optimizer steps its own stage (tr_dist_step())
 *   by the master    it fetches the gradients, updates its own copy of all parameters, and hands them back
 * Both learn what one process learns, to rounding. `./resnet_on_workers [--device cuda] [--steps N]`
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

#define TRY(call) do { tr_status failed = (call); if (failed != TR_OK) return failed; } while (0)

enum { stages = 3, classes = 4, side = 16, batch = 16, all_steps = 40, parameters_most = 64 };
static tr_device here; /* where this process computes */
typedef struct settings { char device[16]; int steps; } settings;
static const double lr = 0.02, momentum = 0.9;

/* ---- The network ---------------------------------------------------------------------------------------------------------- */

typedef struct block {
    tr_module *residual, *skip;
} block;

static tr_tensor *block_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const block *b = tr_module_state(self);
    return tr_relu(tr_add(tr_forward(b->residual, inputs[0]), tr_forward(b->skip, inputs[0])));
}

static tr_module *make_block(int in, int out, int stride, uint64_t seed)
{
    tr_module *module = tr_module_new("block", sizeof(block), block_forward);
    block *b = tr_module_state(module);
    b->residual = tr_module_add(module, "residual",
        tr_sequential(tr_conv2d(in, out, 3, .stride = stride, .padding = 1, .no_bias = true, .seed = seed), tr_batch_norm2d(out),
            tr_relu_layer(), tr_conv2d(out, out, 3, .padding = 1, .no_bias = true, .seed = seed + 1), tr_batch_norm2d(out)));
    b->skip = tr_module_add(module, "skip",
        tr_sequential(tr_conv2d(in, out, 1, .stride = stride, .no_bias = true, .seed = seed + 2), tr_batch_norm2d(out)));
    return module;
}

/* [batch, 3, 16, 16] -> [batch, 8, 16, 16] -> [batch, 16, 8, 8] -> [batch, classes] */
static void *stage(int64_t i)
{
    tr_module *made = i == 0 ? tr_sequential(tr_conv2d(3, 8, 3, .padding = 1, .seed = 10), tr_relu_layer(), make_block(8, 8, 1, 20))
        : i == 1 ? make_block(8, 16, 2, 30)
                 : tr_sequential(make_block(16, 32, 2, 40), tr_adaptive_avg_pool2d_layer(1, 1), tr_flatten_layer(),
                       tr_linear(32, classes, .seed = 50));
    TR_CHECK(tr_module_to(made, here));
    return made;
}
TR_RPC(stage, I64, RETURNS(OBJECT)); /* workers make theirs */

/* A step's loss. Each class is a pattern under noise. */
static tr_tensor *batch_loss(tr_module *net, int step)
{
    tr_tensor *y = tr_argmax(tr_rand(100 + (uint64_t)step, TR_SHAPE(batch, classes), .device = here), 1);
    tr_tensor *x = tr_embedding_op(y, tr_randn(7, TR_SHAPE(classes, 3 * side * side), .device = here));
    x = tr_add(x, tr_affine(tr_randn(9000 + (uint64_t)step, tr_shape_of(x), .device = here), 2, 0));
    return tr_cross_entropy(tr_forward(net, tr_reshape(x, TR_SHAPE(batch, 3, side, side))), y);
}

/* ---- What a worker runs, beside the forward of its stage ------------------------------------------------------------ */

/* Of the context in which it is called. */
static tr_status gradients(void *module, tr_tensor_list **out)
{
    tr_dist_context *context = tr_dist_context_current(tr_rpc_current());
    tr_tensor_list *parameters = tr_parameters(module);
    *out = tr_list_new();
    for (int i = 0; i < tr_list_count(parameters); i++)
        TRY(tr_list_add(*out, tr_list_name(parameters, i), tr_dist_grad(context, tr_list_at(parameters, i))));
    return TR_OK;
}
TR_RPC(gradients, OBJECT, TRIES(TENSORS));

static tr_status set_parameters(void *module, tr_tensor_list *values)
{
    TR_NO_GRAD;
    tr_tensor_list *parameters = tr_parameters(module);
    for (int i = 0; i < tr_list_count(parameters); i++) TRY(tr_copy_into(tr_list_at(parameters, i), tr_list_at(values, i)));
    return TR_OK;
}
TR_RPC(set_parameters, OBJECT, TENSORS, RETURNS(NONE));

/* ---- What the master runs -------------------------------------------------------------------------------------------------- */

/* A network whose stages are elsewhere, and who updates them: the owners, or the master with copies of its own. */
typedef struct split_net {
    tr_rref *stage[stages]; /* each on its worker */
    tr_module *net, *copy[stages];
    tr_dist_optimizer *there;
    tr_optimizer *here; /* NULL: not used */
} split_net;

static tr_status make_split(split_net *s, tr_rpc *rpc)
{
    tr_module *there[stages];
    tr_rref *parameters[parameters_most];
    for (int i = 0; i < stages; i++) {
        char name[24];
        snprintf(name, sizeof name, "worker%d", i);
        s->stage[i] = tr_remote(rpc, name, "stage", i);
        there[i] = tr_remote_module(s->stage[i]);
        s->copy[i] = stage(i); /* begins as the one there does */
    }
    s->net = tr_sequential_n(there, stages);
    int n = tr_dist_parameters(rpc, s->net, parameters, parameters_most);
    s->there = tr_dist_optimizer_new(rpc, parameters, n, TR_DIST_SGD(.lr = lr, .momentum = momentum));
    return tr_status_of(s->there);
}

/* Fetches the gradients to the copies, updates those, and hands them back; all workers at the same time. */
static tr_status update_by_the_master(const split_net *s)
{
    tr_future *there[stages];
    for (int i = 0; i < stages; i++) there[i] = tr_rref_call(s->stage[i], "gradients");
    tr_zero_grad(s->here);
    for (int i = 0; i < stages; i++) {
        tr_tensor_list *parameters = tr_parameters(s->copy[i]), *gradient = tr_future_tensors(there[i]);
        TRY(tr_status_of(gradient));
        for (int k = 0; k < tr_list_count(gradient); k++)
            TRY(tr_backward(tr_list_at(parameters, k), .gradient = tr_list_at(gradient, k)));
    }
    TRY(tr_step(s->here));
    TR_NO_GRAD; /* what is sent now is no part of the graph */
    for (int i = 0; i < stages; i++) there[i] = tr_rref_call(s->stage[i], "set_parameters", tr_parameters(s->copy[i]));
    return tr_future_wait_all(there, stages);
}

static tr_status train_step(const split_net *s, tr_rpc *rpc, int step)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(rpc, context);
    TRY(tr_dist_backward(context, batch_loss(s->net, step)));
    return s->here ? update_by_the_master(s) : tr_dist_step(s->there, context);
}

static tr_status run_master(tr_rpc *rpc, int steps)
{
    TR_SCOPE;
    split_net first = {.here = NULL}, second;
    TRY(make_split(&first, rpc));
    TRY(make_split(&second, rpc));
    second.here = tr_sgd(tr_parameters(tr_sequential_n(second.copy, stages)), .lr = lr, .momentum = momentum);
    tr_module *twin = tr_sequential_n(first.copy, stages); /* the copies that the first has no use for */
    tr_optimizer *optimizer = tr_sgd(tr_parameters(twin), .lr = lr, .momentum = momentum);
    for (int step = 0; step < steps; step++) {
        TR_SCOPE;
        tr_tensor *loss = batch_loss(twin, step);
        tr_zero_grad(optimizer);
        TRY(tr_backward(loss));
        TRY(tr_step(optimizer));
        TRY(train_step(&first, rpc, step));
        TRY(train_step(&second, rpc, step));
        if (step % 20 == 19) printf("step %d: loss %.3f\n", step + 1, tr_item(loss));
    }
    TR_NO_GRAD; /* a batch that was not trained on */
    double alone = tr_item(batch_loss(twin, steps)), there = fabs(tr_item(batch_loss(first.net, steps)) - alone);
    double master = fabs(tr_item(batch_loss(second.net, steps)) - alone);
    printf("loss in one process %.3f; differences: updated where they are %.1e, by the master %.1e\n", alone, there, master);
    return there < 1e-3 && master < 1e-3 ? TR_OK : tr_fail(TR_STATE, "they should be the same to rounding");
}

/* ---- Processes ------------------------------------------------------------------------------------------------------------ */

static tr_status work(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    static const tr_rpc_function *const functions[] = {&stage_rpc, &gradients_rpc, &set_parameters_rpc};
    char name[24];
    snprintf(name, sizeof name, rank < stages ? "worker%d" : "master", rank);
    tr_group *world = tr_join();
    TRY(tr_group_device_named(world, s->device, &here));
    tr_rpc *rpc = tr_rpc_start(world, .name = name);
    TRY(tr_dist_start(rpc));
    for (int i = 0; i < 3; i++) TRY(tr_rpc_register(rpc, functions[i]));
    TRY(tr_barrier(world)); /* all can be called */
    if (rank == stages) TRY(run_master(rpc, s->steps));
    TRY(tr_rpc_stop(rpc)); /* the workers serve until the master has called it */
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the processes leave main() here */
    settings s = {"cpu", all_steps};
    for (; argc > 1; argc -= 2, argv += 2)
        if (argc > 2 && strcmp(argv[1], "--device") == 0) snprintf(s.device, sizeof s.device, "%s", argv[2]);
        else if (argc > 2 && strcmp(argv[1], "--steps") == 0) s.steps = atoi(argv[2]);
        else return fprintf(stderr, "usage: resnet_on_workers [--device NAME] [--steps N]\n"), 2;
    TR_CHECK(tr_spawn(work, stages + 1, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
