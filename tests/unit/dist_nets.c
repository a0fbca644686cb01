#include "dist_nets.h"

#include <stdio.h>

static tr_tensor *layer(void *state, tr_tensor *x)
{
    return tr_tanh(tr_forward(((dist_worker *)state)->net, x));
}
TR_RPC_WITH_STATE(layer, TENSOR, RETURNS(TENSOR));

/* Uses its own result here and at another worker. */
static tr_tensor *relay(void *state, tr_tensor *x, const char *to)
{
    tr_tensor *h = layer(state, x);
    tr_tensor *there = tr_future_tensor(tr_rpc_sync(((dist_worker *)state)->rpc, to, "layer", h));
    return tr_add(h, there);
}
TR_RPC_WITH_STATE(relay, TENSOR, STRING, RETURNS(TENSOR));

static int64_t swallow(void *state, tr_tensor *x)
{
    return tr_numel(layer(state, x));
}
TR_RPC_WITH_STATE(swallow, TENSOR, RETURNS(I64));

static tr_tensor *grad(void *state, int64_t i)
{
    dist_worker *w = state;
    tr_tensor *leaf = tr_list_at(tr_parameters(w->net), (int)i);
    tr_tensor *g = tr_dist_grad(tr_dist_context_current(tr_rpc_current()), leaf);
    return g ? g : tr_tensor_fail(TR_NOT_FOUND, "no gradient");
}
TR_RPC_WITH_STATE(grad, I64, RETURNS(TENSOR));

static void *net(void *state)
{
    return ((dist_worker *)state)->net;
}
TR_RPC_WITH_STATE(net, RETURNS(OBJECT));

tr_module *dist_net(int worker)
{
    return tr_linear(DIST_WIDTH, DIST_WIDTH, .seed = (uint64_t)worker + 1, .dtype = TR_F64);
}

typedef struct deep {
    tr_module *norm, *other_norm, *attention, *out;
} deep;

static tr_tensor *deep_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    TR_SCOPE;
    const deep *d = tr_module_state(self);
    tr_tensor *h = tr_forward(d->norm, inputs[0]), *other = tr_gelu(tr_forward(d->other_norm, inputs[0]));
    return tr_escape(tr_forward(d->out, tr_forward(d->attention, h, other, other)));
}

tr_module *dist_deep_net(bool recompute)
{
    tr_module *net = tr_module_new("deep", sizeof(deep), deep_forward);
    deep *d = tr_module_state(net);
    if (!d) return net;
    d->norm = tr_module_add(net, "norm", tr_layer_norm(DIST_WIDTH, .dtype = TR_F64));
    d->other_norm = tr_module_add(net, "other_norm", tr_rms_norm(DIST_WIDTH, .dtype = TR_F64));
    d->attention = tr_module_add(net, "attention", tr_multihead_attention(DIST_WIDTH, 2, .dtype = TR_F64, .seed = 1));
    d->out = tr_module_add(net, "out", tr_linear(DIST_WIDTH, DIST_WIDTH, .dtype = TR_F64, .seed = 2));
    return tr_set_recompute(net, recompute) == TR_OK ? net : tr_module_fail(TR_INTERNAL, "recompute");
}

tr_status dist_begin(dist_worker *w, tr_group *group)
{
    static const tr_rpc_function *const functions[] = {&layer_rpc, &relay_rpc, &swallow_rpc, &grad_rpc, &net_rpc};
    char name[8];
    snprintf(name, sizeof name, "w%d", tr_rank(group));
    w->net = dist_net(tr_rank(group));
    w->rpc = tr_rpc_start(group, .name = name);
    tr_status status = tr_dist_start(w->rpc);
    for (size_t i = 0; status == TR_OK && i < sizeof functions / sizeof *functions; i++)
        status = tr_rpc_register(w->rpc, functions[i], .state = w);
    return status == TR_OK ? tr_barrier(group) : status;
}

tr_tensor *dist_input(void)
{
    return tr_randn(7, TR_SHAPE(DIST_BATCH, DIST_WIDTH), .dtype = TR_F64);
}

static tr_tensor *call(dist_worker *w, const char *to, tr_tensor *x)
{
    return tr_future_tensor(tr_rpc_sync(w->rpc, to, "layer", x));
}

tr_tensor *dist_loss(dist_worker *w, dist_pattern pattern, tr_tensor *x)
{
    tr_tensor *h = layer(w, x), *y = NULL;
    switch (pattern) {
    case DIST_CHAIN: y = call(w, "w2", call(w, "w1", h)); break;
    case DIST_NESTED: y = tr_future_tensor(tr_rpc_sync(w->rpc, "w1", "relay", h, "w2")); break;
    case DIST_CYCLE: y = tr_future_tensor(tr_rpc_sync(w->rpc, "w1", "relay", h, "w0")); break;
    case DIST_FAN: {
        tr_future *a = tr_rpc_async(w->rpc, "w1", "layer", h), *b = tr_rpc_async(w->rpc, "w2", "layer", h);
        tr_tensor *twice = call(w, "w1", tr_mul(h, h));
        y = tr_add(tr_add(tr_future_tensor(a), tr_future_tensor(b)), twice);
        break;
    }
    default:
        if (tr_future_i64(tr_rpc_sync(w->rpc, "w2", "swallow", h)) == 0) return tr_tensor_fail(TR_INTERNAL, "nothing");
        (void)call(w, "w2", h);
        y = call(w, "w1", h);
    }
    return tr_sum(tr_mul(y, y));
}

static tr_tensor *layer_here(tr_module *const *nets, int i, tr_tensor *x)
{
    return tr_tanh(tr_forward(nets[i], x));
}

static tr_tensor *relay_here(tr_module *const *nets, int i, tr_tensor *x, int to)
{
    tr_tensor *h = layer_here(nets, i, x);
    return tr_add(h, layer_here(nets, to, h));
}

tr_tensor *dist_loss_here(tr_module *const *nets, dist_pattern pattern, tr_tensor *x)
{
    tr_tensor *h = layer_here(nets, 0, x), *y = NULL;
    switch (pattern) {
    case DIST_CHAIN: y = layer_here(nets, 2, layer_here(nets, 1, h)); break;
    case DIST_NESTED: y = relay_here(nets, 1, h, 2); break;
    case DIST_CYCLE: y = relay_here(nets, 1, h, 0); break;
    case DIST_FAN:
        y = tr_add(tr_add(layer_here(nets, 1, h), layer_here(nets, 2, h)), layer_here(nets, 1, tr_mul(h, h)));
        break;
    default: y = layer_here(nets, 1, h);
    }
    return tr_sum(tr_mul(y, y));
}

tr_tensor *dist_fetch_grad(dist_worker *w, int worker, int parameter)
{
    return tr_future_tensor(tr_rpc_sync(w->rpc, tr_rpc_name(w->rpc, worker), "grad", (int64_t)parameter));
}

tr_status dist_parameters(dist_worker *w, tr_rref **out)
{
    for (int i = 0; i < DIST_WORKERS; i++) {
        tr_rref *there = tr_remote(w->rpc, tr_rpc_name(w->rpc, i), "net");
        if (tr_remote_parameters(there, out + i * DIST_PARAMETERS, DIST_PARAMETERS) != DIST_PARAMETERS)
            return tr_fail(TR_INTERNAL, "worker %d: %s", i, tr_error_message());
    }
    return TR_OK;
}

double dist_difference(tr_tensor *a, tr_tensor *b)
{
    return tr_item(tr_max(tr_abs(tr_sub(a, b))));
}
