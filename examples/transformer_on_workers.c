/*
 * A Transformer whose attention layers live on different workers; the rest is the master's, which runs forward and backward
 * through all. The parameters are updated in two ways:
 *   where they are   the workers' optimizers and the master's step their own (tr_dist_step())
 *   by the master    it fetches the gradients, updates its own copy of all parameters, and hands them back
 * Both learn what one process learns, to rounding. `./transformer_on_workers [--device cuda] [--steps N]`
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

#define TRY(call) do { tr_status failed = (call); if (failed != TR_OK) return failed; } while (0)
enum { layers = 2, tokens = 12, seq = 16, period = 4, dim = 32, heads = 4, batch = 16, all_steps = 60, parameters_most = 64 };
static tr_device here; /* where this process computes */
typedef struct settings { char device[16]; int steps; } settings;
static const double lr = 3e-3;

typedef struct transformer {
    tr_module *embedding, *attention[layers], *feed_forward[layers], *head;
    tr_tensor *positions; /* [seq, dim] */
} transformer;

/* ids: [batch, seq] -> [batch * seq, tokens] */
static tr_tensor *transformer_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const transformer *t = tr_module_state(self);
    tr_tensor *x = tr_add(tr_forward(t->embedding, inputs[0]), t->positions);
    for (int i = 0; i < layers; i++) {
        x = tr_add(x, tr_forward(t->attention[i], x)); /* on its worker */
        x = tr_add(x, tr_forward(t->feed_forward[i], x));
    }
    return tr_reshape(tr_forward(t->head, x), TR_SHAPE(-1, tokens));
}

static void *attention(int64_t i)
{
    tr_module *attend = tr_multihead_attention(dim, heads, .causal = true, .seed = 10 + (uint64_t)i);
    tr_module *made = tr_sequential(tr_layer_norm(dim), attend);
    TR_CHECK(tr_module_to(made, here));
    return made;
}
TR_RPC(attention, I64, RETURNS(OBJECT)); /* workers make theirs */

/* given: the attention layers, here or elsewhere. */
static tr_module *make_transformer(tr_module *const *given)
{
    tr_module *net = tr_module_new("transformer", sizeof(transformer), transformer_forward);
    transformer *t = tr_module_state(net);
    t->embedding = tr_module_add(net, "embedding", tr_embedding(tokens, dim, .init_std = 0.1, .seed = 1));
    t->positions = tr_module_parameter(net, "positions", tr_affine(tr_randn(2, TR_SHAPE(seq, dim)), 0.1, 0));
    for (int i = 0; i < layers; i++) {
        t->attention[i] = given[i];
        t->feed_forward[i] = tr_sequential(tr_layer_norm(dim), tr_linear(dim, 4 * dim, .seed = 20 + (uint64_t)i),
            tr_activation_layer(tr_gelu), tr_linear(4 * dim, dim, .seed = 30 + (uint64_t)i));
    }
    tr_module_add(net, "attention", tr_sequential_n(t->attention, layers));
    tr_module_add(net, "feed_forward", tr_sequential_n(t->feed_forward, layers));
    t->head = tr_module_add(net, "head", tr_sequential(tr_layer_norm(dim), tr_linear(dim, tokens, .seed = 40)));
    TR_CHECK(tr_module_to(net, here));
    return net;
}

/* A step's loss: to tell the next token of texts that repeat themselves. */
static tr_tensor *batch_loss(tr_module *net, int step)
{
    tr_tensor *one = tr_argmax(tr_rand(100 + (uint64_t)step, TR_SHAPE(batch, period, tokens), .device = here), 2);
    tr_tensor *text = tr_cat((tr_tensor *[]){one, one, one, one, one}, 5, 1); /* [batch, 5 * period] */
    tr_tensor *ids = tr_contiguous(tr_slice(text, 1, 0, seq)), *next = tr_slice(text, 1, 1, seq + 1);
    return tr_cross_entropy(tr_forward(net, ids), tr_reshape(next, TR_SHAPE(-1)));
}

/* What a worker runs in the master's context, beside the forward of its layer. */
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
    return tr_load_state_dict(module, values);
}
TR_RPC(set_parameters, OBJECT, TENSORS, RETURNS(NONE));

/* A network whose attention layers are elsewhere, and who updates them: the owners, or the master with copies of its own. */
typedef struct split_net {
    tr_rref *attention[layers]; /* each on its worker */
    tr_module *net, *copy[layers];
    tr_dist_optimizer *there;
    tr_optimizer *here; /* NULL: not used */
} split_net;

static tr_status make_split(split_net *s, tr_rpc *rpc)
{
    tr_module *there[layers];
    tr_rref *parameters[parameters_most];
    for (int i = 0; i < layers; i++) {
        char name[24];
        snprintf(name, sizeof name, "worker%d", i);
        s->attention[i] = tr_remote(rpc, name, "attention", i);
        there[i] = tr_remote_module(s->attention[i]);
        s->copy[i] = attention(i); /* begins as the one there does */
    }
    s->net = make_transformer(there);
    int n = tr_dist_parameters(rpc, s->net, parameters, parameters_most); /* the workers' and the master's */
    s->there = tr_dist_optimizer_new(rpc, parameters, n, TR_DIST_ADAMW(.lr = lr));
    return tr_status_of(s->there);
}

/* Fetches the gradients to the copies, updates those, and hands them back; all workers at the same time. */
static tr_status update_by_the_master(const split_net *s, tr_dist_context *context)
{
    tr_future *there[layers];
    for (int i = 0; i < layers; i++) there[i] = tr_rref_call(s->attention[i], "gradients");
    tr_zero_grad(s->here);
    tr_tensor_list *own = tr_parameters(s->net);
    for (int i = 0; i < tr_list_count(own); i++)
        TRY(tr_backward(tr_list_at(own, i), .gradient = tr_dist_grad(context, tr_list_at(own, i))));
    for (int i = 0; i < layers; i++) {
        tr_tensor_list *parameters = tr_parameters(s->copy[i]), *gradient = tr_future_tensors(there[i]);
        TRY(tr_status_of(gradient));
        for (int k = 0; k < tr_list_count(gradient); k++)
            TRY(tr_backward(tr_list_at(parameters, k), .gradient = tr_list_at(gradient, k)));
    }
    TRY(tr_step(s->here));
    TR_NO_GRAD; /* what is sent now is no part of the graph */
    for (int i = 0; i < layers; i++) there[i] = tr_rref_call(s->attention[i], "set_parameters", tr_parameters(s->copy[i]));
    return tr_future_wait_all(there, layers);
}

static tr_status train_step(const split_net *s, tr_rpc *rpc, int step)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(rpc, context);
    TRY(tr_dist_backward(context, batch_loss(s->net, step)));
    return s->here ? update_by_the_master(s, context) : tr_dist_step(s->there, context);
}

static tr_status run_master(tr_rpc *rpc, int steps)
{
    TR_SCOPE;
    split_net first = {.here = NULL}, second;
    TRY(make_split(&first, rpc));
    TRY(make_split(&second, rpc));
    second.here = tr_adamw(tr_parameters(tr_sequential(second.net, tr_sequential_n(second.copy, layers))), .lr = lr);
    tr_module *twin = make_transformer(first.copy); /* the copies that the first has no use for */
    tr_optimizer *optimizer = tr_adamw(tr_parameters(twin), .lr = lr);
    for (int step = 0; step < steps; step++) {
        TR_SCOPE;
        tr_zero_grad(optimizer);
        TRY(tr_backward(batch_loss(twin, step)));
        TRY(tr_step(optimizer));
        TRY(train_step(&first, rpc, step));
        TRY(train_step(&second, rpc, step));
    }
    TR_NO_GRAD; /* a batch that was not trained on */
    double alone = tr_item(batch_loss(twin, steps)), there = fabs(tr_item(batch_loss(first.net, steps)) - alone);
    double master = fabs(tr_item(batch_loss(second.net, steps)) - alone);
    printf("loss in one process %.3f; differences: updated where they are %.1e, by the master %.1e\n", alone, there, master);
    return there < 1e-3 && master < 1e-3 ? TR_OK : tr_fail(TR_STATE, "they should be the same to rounding");
}

static tr_status work(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    static const tr_rpc_function *const functions[] = {&attention_rpc, &gradients_rpc, &set_parameters_rpc};
    char name[24];
    snprintf(name, sizeof name, rank < layers ? "worker%d" : "master", rank);
    tr_group *world = tr_join();
    TRY(tr_group_device_named(world, s->device, &here));
    tr_rpc *rpc = tr_rpc_start(world, .name = name);
    TRY(tr_dist_start(rpc));
    for (int i = 0; i < 3; i++) TRY(tr_rpc_register(rpc, functions[i]));
    TRY(tr_barrier(world)); /* all can be called */
    if (rank == layers) TRY(run_master(rpc, s->steps));
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
        else return fprintf(stderr, "usage: transformer_on_workers [--device NAME] [--steps N]\n"), 2;
    TR_CHECK(tr_spawn(work, layers + 1, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
