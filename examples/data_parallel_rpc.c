/*
 * DataParallel, distributed autograd and a distributed optimizer in one program. A model is in two parts on two
 * workers, and each part is under DataParallel: a batch goes to the worker with the body, over its devices, back to the
 * master with the head, over its own. One backward goes through it all, one optimizer steps all parameters where they
 * are.
 *
 *   ./data_parallel_rpc [DEVICES]                      # of each process; 2 unless said otherwise
 *   ./data_parallel_rpc --device cuda [--steps N]      # all GPUs; after a few steps it is not judged how many are right
 *
 * One process that has it all on one device learns the same, to rounding, which the program checks at its end.
 */
#define _POSIX_C_SOURCE 200809L /* setenv(), also with -std=c11 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { CLASSES = 10, SIDE = 12, BATCH = 32, ALL_STEPS = 60 };
static const double lr = 0.05, momentum = 0.9;

typedef struct settings {
    char device[16];
    int steps;
} settings;

/* ---- The model --------------------------------------------------------------------------------------------------- */

/* [batch, 1, 12, 12] -> [batch, 288] */
static tr_module *make_body(void)
{
    return tr_sequential(tr_conv2d(1, 8, 3, .padding = 1, .seed = 1), tr_activation_layer(tr_relu), tr_max_pool2d_layer(2),
        tr_flatten_layer());
}

/* [batch, 288] -> [batch, 10] */
static tr_module *make_head(void)
{
    return tr_sequential(tr_linear(8 * (SIDE / 2) * (SIDE / 2), 32, .seed = 2), tr_activation_layer(tr_tanh),
        tr_linear(32, CLASSES, .seed = 3));
}

static tr_module *placed(tr_module *module, tr_device here)
{
    tr_status status = tr_module_to(module, here);
    return status == TR_OK ? module : tr_module_fail(status, "%s", tr_error_message());
}

/* here: a tr_device. What the worker makes stays there: the master gets a reference. */
static void *body(void *here)
{
    return tr_data_parallel(placed(make_body(), *(tr_device *)here)); /* over all devices of the worker, this one first */
}
TR_RPC_WITH_STATE(body, RETURNS(OBJECT));

/* The images of a step, each the pattern of its class under noise, and the loss of what the model says of them. */
static tr_tensor *loss_of(tr_module *net, tr_device here, int step, double *right)
{
    tr_tensor *y = tr_argmax(tr_rand(9000 + (uint64_t)step, TR_SHAPE(BATCH, CLASSES)), 1); /* [batch] */
    tr_tensor *patterns = tr_embedding_op(y, tr_randn(7, TR_SHAPE(CLASSES, SIDE * SIDE)));
    tr_tensor *noise = tr_randn(100 + (uint64_t)step, TR_SHAPE(BATCH, SIDE * SIDE));
    tr_tensor *images = tr_reshape(tr_add(patterns, noise), TR_SHAPE(BATCH, 1, SIDE, SIDE));
    tr_tensor *logits = tr_forward(net, tr_to(images, here));
    y = tr_to(y, here);
    *right = tr_item(tr_mean(tr_cast(tr_equal(tr_argmax(logits, 1), y), TR_F32)));
    return tr_cross_entropy(logits, y);
}

/* ---- Training ---------------------------------------------------------------------------------------------------- */

static tr_status train_step(tr_rpc *rpc, tr_module *net, tr_dist_optimizer *optimizer, tr_device here, int step, double *right)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(rpc, context); /* before the forward: all that travels in it carries its graph on */
    tr_tensor *loss = loss_of(net, here, step, right);
    tr_status status = tr_dist_backward(context, loss); /* the sum over the devices is in the context, at each owner */
    if (status == TR_OK) status = tr_dist_step(optimizer, context);
    if (step % 20 == 0) printf("step %2d  loss %.4f\n", step, tr_item(loss));
    return status;
}

/* The same in this process, on one device. */
static tr_status train_alone(tr_module *net, tr_device here, int steps)
{
    double right;
    tr_optimizer *optimizer = tr_sgd(tr_parameters(net), .lr = lr, .momentum = momentum);
    for (int step = 0; step < steps; step++) {
        TR_SCOPE;
        tr_zero_grad(optimizer);
        tr_status status = tr_backward(loss_of(net, here, step, &right));
        if (status == TR_OK) status = tr_step(optimizer);
        if (status != TR_OK) return status;
    }
    return TR_OK;
}

/* How far the weights that the references lead to are from those of a module in this process. */
static double distance(tr_rref *const *there, tr_tensor_list *here)
{
    TR_SCOPE;
    TR_NO_GRAD;
    double difference = 0;
    for (int i = 0; i < tr_list_count(here); i++)
        difference += tr_item(tr_max(tr_abs(tr_sub(tr_future_tensor(tr_rref_to_here(there[i])), tr_list_at(here, i)))));
    return difference;
}

static tr_status train(tr_rpc *rpc, tr_device here, int steps)
{
    TR_SCOPE;
    tr_module *remote = tr_remote_module(tr_remote(rpc, "worker", "body"));
    tr_module *net = tr_sequential(remote, tr_data_parallel(placed(make_head(), here)));
    tr_rref *parameters[8]; /* of both parts, where they are */
    int n = tr_dist_parameters(rpc, net, parameters, 8);
    tr_dist_rule sgd = TR_DIST_SGD(.lr = lr, .momentum = momentum);
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(rpc, parameters, n, sgd);
    tr_status status = tr_status_of(optimizer);
    double right = 0;
    for (int step = 0; step < steps && status == TR_OK; step++)
        status = train_step(rpc, net, optimizer, here, step, &right);
    tr_module *alone = placed(tr_sequential(make_body(), make_head()), here);
    if (status == TR_OK) status = train_alone(alone, here, steps);
    if (status != TR_OK) return status;
    double difference = distance(parameters, tr_parameters(alone));
    printf("devices of each worker: %d, %.0f %% of the last batch are right\n", tr_device_count(here.kind), 100 * right);
    printf("weights differ from those of one device by %.1e\n", difference);
    if ((right > 0.9 || steps < ALL_STEPS) && difference < 1e-4) return TR_OK;
    return tr_fail(TR_STATE, "%g are right, weights differ by %g", right, difference);
}

/* ---- Processes --------------------------------------------------------------------------------------------------- */

static tr_status work(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    tr_group *world = tr_join();
    tr_device here;
    TR_CHECK(tr_group_device_named(world, s->device, &here));
    tr_rpc *rpc = tr_rpc_start(world, .name = rank ? "worker" : "master");
    tr_status status = tr_dist_start(rpc);
    if (status == TR_OK) status = tr_rpc_register(rpc, &body_rpc, .state = &here);
    if (status == TR_OK) status = tr_barrier(world); /* all can be called */
    if (status == TR_OK && rank == 0) status = train(rpc, here, s->steps);
    if (status == TR_OK) status = tr_rpc_stop(rpc); /* the worker serves until both have called it */
    return status == TR_OK ? tr_leave(world) : status;
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the processes leave main() here */
    settings s = {"cpu", ALL_STEPS};
    for (; argc > 2; argc -= 2, argv += 2) {
        if (strcmp(argv[1], "--device") == 0) snprintf(s.device, sizeof s.device, "%s", argv[2]);
        else if (strcmp(argv[1], "--steps") == 0) s.steps = atoi(argv[2]);
        else return fprintf(stderr, "there is no option %s\n", argv[1]), 2;
    }
    setenv("TRIREME_CPU_DEVICES", argc > 1 ? argv[1] : "2", argc > 1); /* for them */
    TR_CHECK(tr_spawn(work, 2, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
