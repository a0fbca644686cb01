/*
 * Parameter servers: each holds one layer of a network; trainers run forward and backward through the servers, which
 * update the layers where they are, in two ways. `./parameter_server [--device cuda] [TRAINERS [STEPS]]`
 *
 *   together  synchronous: in each step one trainer gathers the losses of all, and makes one backward and one step
 *   Hogwild   every trainer makes steps of its own, whenever it is ready
 *
 * The first learns what one process learns from all trainers' samples, to rounding; in the second nobody waits. Data:
 * ten classes, each a random pattern under noise. Every trainer sees samples of its own. On "cuda" all take the GPUs in turn.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { servers = 2, most_trainers = 16, classes = 10, pixels = 64, hidden = 32 };
enum { batch = 32, all_steps = 200, samples_to_test = 1000 };

static tr_device here; /* where this process computes */

typedef struct settings {
    char device[16];
    int trainers, steps;
    bool together;
} settings;

/* ---- What the servers run ---------------------------------------------------------------------------------------- */

static tr_module *make_layer(int server)
{
    tr_module *made = server == 0 ? tr_linear(pixels, hidden, .seed = 1) : tr_linear(hidden, classes, .seed = 2);
    TR_CHECK(tr_module_to(made, here));
    return made;
}

/* The server's layer, for all trainers. */
static void *layer(void *state)
{
    return state;
}
TR_RPC_WITH_STATE(layer, RETURNS(OBJECT));

/* ---- What the trainers run --------------------------------------------------------------------------------------- */

/* Samples `first` to first + n of the problem's endless data. x: [n, pixels], y: [n] */
static tr_tensor *make_samples(int64_t first, int64_t n, tr_tensor **y)
{
    tr_tensor *patterns = tr_randn(1, TR_SHAPE(classes, pixels), .device = here);
    *y = tr_argmax(tr_rand(3 + (uint64_t)first, TR_SHAPE(n, classes), .device = here), 1);
    return tr_add(tr_embedding_op(*y, patterns), tr_randn(2 + (uint64_t)first, TR_SHAPE(n, pixels), .device = here));
}

static int64_t samples_of(int trainer, int step)
{
    return ((int64_t)trainer * all_steps + step) * batch;
}

static tr_tensor *loss_from(tr_module *net, int64_t first)
{
    tr_tensor *y, *x = make_samples(first, batch, &y);
    return tr_cross_entropy(tr_forward(net, x), y);
}

static tr_module *join_layers(tr_module *first, tr_module *second)
{
    return tr_sequential(first, tr_activation_layer(tr_relu), second);
}

/* The loss of a trainer's batch, in the context of who asks for it. */
static tr_tensor *trainer_loss(tr_rref *first, tr_rref *second, int64_t samples)
{
    return loss_from(join_layers(tr_remote_module(first), tr_remote_module(second)), samples);
}
TR_RPC(trainer_loss, RREF, RREF, I64, RETURNS(TENSOR));

static void name_trainer(int trainer, char name[32])
{
    snprintf(name, 32, "trainer%d", trainer);
}

/* All trainers' losses in one context: the servers' gradients are those of the mean. */
static void step_together(tr_rpc *rpc, tr_rref *const *layers, tr_dist_optimizer *optimizer, int trainers, int step)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(rpc, context);
    tr_future *losses[most_trainers] = {NULL};
    for (int i = 0; i < trainers; i++) {
        char name[32];
        name_trainer(i, name);
        losses[i] = tr_rpc_async(rpc, name, "trainer_loss", layers[0], layers[1], samples_of(i, step));
    }
    tr_tensor *sum = tr_future_tensor(losses[0]);
    for (int i = 1; i < trainers; i++) sum = tr_add(sum, tr_future_tensor(losses[i]));
    TR_CHECK(tr_dist_backward(context, tr_affine(sum, 1.0 / trainers, 0)));
    TR_CHECK(tr_dist_step(optimizer, context));
}

/* A trainer's own step. Others make theirs meanwhile: it may read and write weights that are half updated. */
static void step_alone(tr_rpc *rpc, tr_module *net, tr_dist_optimizer *optimizer, int trainer, int step)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(rpc, context);
    TR_CHECK(tr_dist_backward(context, loss_from(net, samples_of(trainer, step))));
    TR_CHECK(tr_dist_step(optimizer, context));
}

/* ---- What came of it --------------------------------------------------------------------------------------------- */

static double measure(tr_module *net)
{
    TR_SCOPE;
    TR_NO_GRAD;
    tr_tensor *y, *x = make_samples(INT64_C(1) << 40, samples_to_test, &y);
    int64_t said[samples_to_test], right[samples_to_test], correct = 0;
    TR_CHECK(tr_copy_out(tr_argmax(tr_forward(net, x), 1), said, sizeof said));
    TR_CHECK(tr_copy_out(y, right, sizeof right));
    for (int i = 0; i < samples_to_test; i++) correct += said[i] == right[i];
    return (double)correct / samples_to_test;
}

/* Trains in this process as the trainers do together, and says how far the servers' weights are from that. */
static double distance_from_one_process(tr_rref *const *parameters, int trainers, int steps)
{
    tr_module *net = join_layers(make_layer(0), make_layer(1));
    tr_optimizer *optimizer = tr_sgd(tr_parameters(net), .lr = 0.05);
    for (int step = 0; step < steps; step++) {
        TR_SCOPE;
        tr_zero_grad(optimizer);
        for (int i = 0; i < trainers; i++)
            TR_CHECK(tr_backward(tr_affine(loss_from(net, samples_of(i, step)), 1.0 / trainers, 0)));
        TR_CHECK(tr_step(optimizer));
    }
    TR_NO_GRAD;
    double difference = 0;
    for (int i = 0; i < tr_list_count(tr_parameters(net)); i++) {
        tr_tensor *there = tr_future_tensor(tr_rref_to_here(parameters[i]));
        difference += tr_item(tr_max(tr_abs(tr_sub(there, tr_list_at(tr_parameters(net), i)))));
    }
    return difference;
}

static tr_status train(tr_rpc *rpc, const settings *s, int trainer)
{
    TR_SCOPE;
    tr_rref *layers[servers] = {tr_remote(rpc, "server0", "layer"), tr_remote(rpc, "server1", "layer")}, *parameters[8];
    tr_module *net = join_layers(tr_remote_module(layers[0]), tr_remote_module(layers[1]));
    int n = tr_dist_parameters(rpc, net, parameters, 8);
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(rpc, parameters, n, TR_DIST_SGD(.lr = 0.05));
    for (int step = 0; step < s->steps; step++)
        if (s->together)
            step_together(rpc, layers, optimizer, s->trainers, step);
        else
            step_alone(rpc, net, optimizer, trainer, step);
    double accuracy = measure(net);
    printf("%s, trainer %d: accuracy on %d other samples: %.1f %%\n", s->together ? "together" : "Hogwild", trainer,
        samples_to_test, 100 * accuracy);
    if (accuracy < 0.96) return tr_fail(TR_STATE, "an accuracy of %.3f: it should be 0.96 and more", accuracy);
    if (!s->together) return TR_OK;
    double difference = distance_from_one_process(parameters, s->trainers, s->steps);
    printf("weights differ from those of one process by %.1e\n", difference);
    return difference < 1e-4 ? TR_OK : tr_fail(TR_STATE, "weights differ by %g from those of one process", difference);
}

static tr_status work(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    char name[32];
    if (rank < servers) snprintf(name, sizeof name, "server%d", rank);
    else name_trainer(rank - servers, name);
    tr_group *world = tr_join();
    TR_CHECK(tr_group_device_named(world, s->device, &here));
    tr_rpc *rpc = tr_rpc_start(world, .name = name);
    TR_CHECK(tr_dist_start(rpc));
    if (rank < servers) TR_CHECK(tr_rpc_register(rpc, &layer_rpc, .state = make_layer(rank)));
    TR_CHECK(tr_rpc_register(rpc, &trainer_loss_rpc));
    TR_CHECK(tr_barrier(world)); /* all can be called */
    if (rank == servers || (rank > servers && !s->together)) TR_CHECK(train(rpc, s, rank - servers));
    TR_CHECK(tr_rpc_stop(rpc)); /* all serve until all have called it */
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the processes leave main() here */
    settings s = {.device = "cpu", .trainers = 2, .steps = all_steps};
    for (; argc > 2 && strcmp(argv[1], "--device") == 0; argc -= 2, argv += 2)
        snprintf(s.device, sizeof s.device, "%s", argv[2]);
    if (argc > 1) s.trainers = atoi(argv[1]);
    if (argc > 2) s.steps = atoi(argv[2]);
    if (s.trainers < 1 || s.trainers > most_trainers) return fprintf(stderr, "1 to %d trainers\n", most_trainers), 2;
    if (s.steps < 1 || s.steps > all_steps) return fprintf(stderr, "1 to %d steps\n", all_steps), 2;
    for (int together = 1; together >= 0; together--) {
        s.together = together;
        TR_CHECK(tr_spawn(work, servers + s.trainers, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    }
    return 0;
}
