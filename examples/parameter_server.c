/*
 * Parameter servers: each holds one layer of a network; trainers run forward and backward through the servers, at the same
 * time, and every step updates all layers where they are. `./parameter_server [TRAINERS]`
 *
 * Two servers, and trainers that each see their own samples of one problem: ten classes, each a random pattern under noise.
 */
#include <stdio.h>
#include <stdlib.h>
#include <trireme/trireme.h>

enum { servers = 2, classes = 10, pixels = 64, hidden = 32, batch = 32, steps = 200, samples_to_test = 1000 };

/* ---- What the servers run ---------------------------------------------------------------------------------------------- */

/* Server 0 has the first layer, server 1 the second. */
static void *layer(void *state)
{
    return state;
}
TR_RPC_WITH_STATE(layer, RETURNS(OBJECT));

/* ---- What the trainers run ---------------------------------------------------------------------------------------------- */

/* Samples `first` to first + n of the problem's endless data. x: [n, pixels], y: [n] */
static tr_tensor *make_samples(int64_t first, int64_t n, tr_tensor **y)
{
    tr_tensor *patterns = tr_randn(1, TR_SHAPE(classes, pixels));
    *y = tr_argmax(tr_rand(3 + (uint64_t)first, TR_SHAPE(n, classes)), 1);
    return tr_add(tr_embedding_op(patterns, *y), tr_randn(2 + (uint64_t)first, TR_SHAPE(n, pixels)));
}

static tr_status measure(tr_module *net, double *accuracy)
{
    TR_SCOPE;
    TR_NO_GRAD;
    tr_tensor *y, *x = make_samples(INT64_C(1) << 40, samples_to_test, &y);
    int64_t said[samples_to_test], right[samples_to_test], correct = 0;
    tr_status status = tr_copy_out(tr_argmax(tr_forward(net, x), 1), said, sizeof said);
    if (status == TR_OK) status = tr_copy_out(y, right, sizeof right);
    for (int i = 0; i < samples_to_test && status == TR_OK; i++) correct += said[i] == right[i];
    *accuracy = (double)correct / samples_to_test;
    return status;
}

static tr_status train_step(tr_rpc *rpc, tr_module *net, tr_dist_optimizer *optimizer, int64_t first)
{
    TR_SCOPE;
    tr_tensor *y, *x = make_samples(first, batch, &y);
    TR_DIST_CONTEXT(rpc, context);
    tr_tensor *loss = tr_cross_entropy(tr_forward(net, x), y);
    tr_status status = tr_dist_backward(context, loss);
    return status == TR_OK ? tr_dist_step(optimizer, context) : status;
}

static tr_status train(tr_rpc *rpc, int trainer)
{
    tr_rref *first = tr_remote(rpc, "server0", "layer"), *second = tr_remote(rpc, "server1", "layer");
    tr_module *net = tr_sequential(tr_remote_module(first), tr_activation(tr_relu), tr_remote_module(second));
    tr_rref *parameters[8];
    int n = tr_remote_parameters(first, parameters, 4);
    if (n >= 0) n += tr_remote_parameters(second, parameters + n, 4);
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(rpc, parameters, n, TR_DIST_SGD(.lr = 0.05));
    for (int step = 0; step < steps; step++) {
        tr_status status = train_step(rpc, net, optimizer, ((int64_t)trainer * steps + step) * batch);
        if (status != TR_OK) return status;
    }
    double accuracy;
    tr_status status = measure(net, &accuracy);
    if (status != TR_OK) return status;
    printf("trainer %d: accuracy on %d other samples: %.1f %%\n", trainer, samples_to_test, 100 * accuracy);
    return accuracy >= 0.96 ? TR_OK : tr_fail(TR_STATE, "an accuracy of %.3f: it should be 0.96 and more", accuracy);
}

/* ---- Processes ------------------------------------------------------------------------------------------------------------ */

static tr_status work(int rank, void *argument, size_t bytes)
{
    (void)argument, (void)bytes;
    TR_SCOPE;
    char name[32];
    snprintf(name, sizeof name, rank < servers ? "server%d" : "trainer%d", rank < servers ? rank : rank - servers);
    tr_group *world = tr_join();
    tr_module *own = rank == 0 ? tr_linear(pixels, hidden, .seed = 1) : tr_linear(hidden, classes, .seed = 2);
    tr_rpc *rpc = tr_rpc_start(world, .name = name);
    tr_status status = tr_dist_start(rpc);
    if (status == TR_OK && rank < servers) status = tr_rpc_register(rpc, &layer_rpc, .state = own);
    if (status == TR_OK) status = tr_barrier(world); /* all can be called */
    if (status == TR_OK && rank >= servers) {
        TR_SCOPE;
        status = train(rpc, rank - servers);
    }
    if (status != TR_OK) return status;
    status = tr_rpc_stop(rpc); /* the servers serve until all have called it */
    return status == TR_OK ? tr_leave(world) : status;
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the processes leave main() here */
    int trainers = argc > 1 ? atoi(argv[1]) : 2;
    TR_CHECK(tr_spawn(work, servers + trainers, .pass_signals = true));
    return 0;
}
