/*
 * A network in halves on two workers: one trains, with the first half; the second half's parameters live, and are
 * updated, on the other. Distributed autograd takes the gradient through both, one distributed optimizer updates both.
 *
 * It learns what one process learns, to rounding. The data: ten classes, each a random pattern under noise.
 *
 *   ./rpc_model_split [--device cuda [--backend nccl]] [--steps N]      # a GPU for each worker; after a few steps the loss is not judged
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { classes = 10, features = 64, hidden = 128, batch = 64, all_steps = 150 };

typedef struct settings {
    char device[16], backend[16];
    int steps;
} settings;

/* ---- The network in halves --------------------------------------------------------------------------------------- */

/* [batch, features] -> [batch, hidden] */
static tr_module *first_half(void)
{
    tr_module *in = tr_linear(features, hidden, .seed = 1), *out = tr_linear(hidden, hidden, .seed = 2);
    return tr_sequential(in, tr_activation_layer(tr_gelu), out);
}

/* [batch, hidden] -> [batch, classes]; here: a tr_device. What the other worker makes stays there: the caller gets a reference. */
static void *second_half(void *here)
{
    tr_module *half = tr_sequential(tr_activation_layer(tr_gelu), tr_linear(hidden, classes, .seed = 3));
    tr_status status = tr_module_to(half, *(tr_device *)here);
    return status == TR_OK ? half : tr_module_fail(status, "%s", tr_error_message());
}
TR_RPC_WITH_STATE(second_half, RETURNS(OBJECT));

/* ---- Training ---------------------------------------------------------------------------------------------------- */

static tr_tensor *loss_of(tr_module *net, int step)
{
    tr_tensor *patterns = tr_randn(7, TR_SHAPE(classes, features));
    tr_tensor *y = tr_argmax(tr_rand((uint64_t)(9000 + step), TR_SHAPE(batch, classes)), 1);
    tr_tensor *x = tr_add(tr_embedding_op(y, patterns), tr_randn((uint64_t)(100 + step), TR_SHAPE(batch, features)));
    tr_tensor *output = tr_forward(net, tr_to(x, tr_device_of(tr_list_at(tr_parameters(net), 0))));
    return tr_cross_entropy(output, tr_to(y, tr_device_of(output)));
}

static double split_step(tr_rpc *rpc, tr_module *net, tr_dist_optimizer *optimizer, int step)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(rpc, context);
    tr_tensor *loss = loss_of(net, step);
    TR_CHECK(tr_dist_backward(context, loss));
    TR_CHECK(tr_dist_step(optimizer, context));
    return tr_item(loss);
}

static double whole_step(tr_module *net, tr_optimizer *optimizer, int step)
{
    TR_SCOPE;
    tr_tensor *loss = loss_of(net, step);
    tr_zero_grad(optimizer);
    TR_CHECK(tr_backward(loss));
    TR_CHECK(tr_step(optimizer));
    return tr_item(loss);
}

/* How far the weights that the references lead to are from those of a network in this process. */
static double distance(tr_rref *const *there, tr_tensor_list *here)
{
    TR_SCOPE;
    TR_NO_GRAD;
    double difference = 0;
    for (int i = 0; i < tr_list_count(here); i++)
        difference += tr_item(tr_max(tr_abs(tr_sub(tr_future_tensor(tr_rref_to_here(there[i])), tr_list_at(here, i)))));
    return difference;
}

static tr_status train(tr_rpc *rpc, int steps, tr_device here)
{
    TR_SCOPE;
    tr_module *first = first_half(), *whole = tr_sequential(first_half(), second_half(&here));
    TR_CHECK(tr_module_to(first, here));
    TR_CHECK(tr_module_to(whole, here));
    tr_module *split = tr_sequential(first, tr_remote_module(tr_remote(rpc, "second", "second_half")));
    tr_rref *parameters[8]; /* of both halves, where they are */
    int n = tr_dist_parameters(rpc, split, parameters, 8);
    tr_dist_optimizer *split_optimizer = tr_dist_optimizer_new(rpc, parameters, n, TR_DIST_ADAMW(.lr = 1e-3));
    tr_optimizer *whole_optimizer = tr_adamw(tr_parameters(whole), .lr = 1e-3);
    double split_loss = 0, whole_loss = 0;
    for (int step = 0; step < steps; step++) {
        split_loss = split_step(rpc, split, split_optimizer, step);
        whole_loss = whole_step(whole, whole_optimizer, step);
    }
    double difference = distance(parameters, tr_parameters(whole));
    printf("loss over two workers %.4f, in one process %.4f\nweights differ by %.1e\n", split_loss, whole_loss,
        difference);
    if ((split_loss < 0.1 || steps < all_steps) && difference < 1e-3) return TR_OK;
    return tr_fail(TR_STATE, "a loss of %g, weights differ by %g", split_loss, difference);
}

static tr_status work(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    tr_group *world = tr_join(.backend = s->backend);
    tr_device here;
    TR_CHECK(tr_group_device_named(world, s->device, &here));
    tr_rpc *rpc = tr_rpc_start(world, .name = rank ? "second" : "first");
    TR_CHECK(tr_dist_start(rpc));
    TR_CHECK(tr_rpc_register(rpc, &second_half_rpc, .state = &here));
    TR_CHECK(tr_barrier(world)); /* all can be called */
    if (rank == 0) {
        tr_status status = train(rpc, s->steps, here);
        if (status != TR_OK) return status;
    }
    TR_CHECK(tr_rpc_stop(rpc)); /* serves until both have called it */
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the processes leave main() here */
    settings s = {"cpu", "native", all_steps};
    for (; argc > 1; argc -= 2, argv += 2) {
        if (argc > 2 && strcmp(argv[1], "--device") == 0) snprintf(s.device, sizeof s.device, "%s", argv[2]);
        else if (argc > 2 && strcmp(argv[1], "--backend") == 0) snprintf(s.backend, sizeof s.backend, "%s", argv[2]);
        else if (argc > 2 && strcmp(argv[1], "--steps") == 0) s.steps = atoi(argv[2]);
        else return fprintf(stderr, "usage: rpc_model_split [--device NAME] [--backend NAME] [--steps N]\n"), 2;
    }
    TR_CHECK(tr_spawn(work, 2, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
