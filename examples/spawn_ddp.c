/*
 * Data parallelism in one program: four processes of a function of it, each with its share of every batch, and DDP between
 * them. `./spawn_ddp [RANKS]`
 *
 * They learn ten classes: each is a random pattern of 784 numbers, and each sample its class's pattern under noise.
 */
#include <stdio.h>
#include <stdlib.h>
#include <trireme/trireme.h>

enum { classes = 10, pixels = 784, batch = 64, steps = 300, samples_to_test = 1000 };

typedef struct settings {
    double lr;
    uint64_t seed;
} settings;

/* Samples `first` to first + n of this job's endless data. x: [n, pixels], y: [n] */
static tr_tensor *make_samples(const settings *s, int64_t first, int64_t n, tr_tensor **y)
{
    tr_tensor *patterns = tr_randn(s->seed, TR_SHAPE(classes, pixels));
    tr_tensor *noise = tr_randn(s->seed + 1 + (uint64_t)first, TR_SHAPE(n, pixels));
    *y = tr_argmax(tr_rand(s->seed + 2 + (uint64_t)first, TR_SHAPE(n, classes)), 1);
    return tr_add(tr_embedding_op(patterns, *y), tr_affine(noise, 4, 0));
}

/* The share of samples that the network gets right. */
static tr_status measure(tr_module *net, const settings *s, double *accuracy)
{
    TR_SCOPE;
    TR_NO_GRAD;
    tr_tensor *y, *x = make_samples(s, INT64_C(1) << 40, samples_to_test, &y);
    int64_t said[samples_to_test], right[samples_to_test], correct = 0;
    tr_status status = tr_copy_out(tr_argmax(tr_forward(net, x), 1), said, sizeof said);
    if (status == TR_OK) status = tr_copy_out(y, right, sizeof right);
    for (int i = 0; i < samples_to_test && status == TR_OK; i++) correct += said[i] == right[i];
    *accuracy = (double)correct / samples_to_test;
    return status;
}

static tr_status train_step(tr_module *ddp, tr_optimizer *opt, const settings *s, int64_t first, int64_t n, double *value)
{
    TR_SCOPE;
    tr_tensor *y, *x = make_samples(s, first, n, &y);
    tr_tensor *loss = tr_cross_entropy(tr_forward(ddp, x), y);
    tr_zero_grad(opt);
    tr_status status = tr_backward(loss); /* gradients are averaged over the ranks while it runs */
    *value = tr_item(loss);
    return status == TR_OK ? tr_step(opt) : status;
}

/* What each process does. A failure that it returns is what tr_spawn() returns. */
static tr_status train(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    tr_group *world = tr_join();
    tr_module *net = tr_sequential(tr_linear(pixels, 128, .seed = s->seed), tr_activation(tr_relu),
        tr_linear(128, classes, .seed = s->seed + 1));
    tr_module *ddp = tr_ddp(net, world);
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = s->lr);
    int64_t share = batch / tr_world_size(world);
    for (int step = 0; step < steps; step++) {
        double loss;
        tr_status status = train_step(ddp, opt, s, (int64_t)step * batch + rank * share, share, &loss);
        if (status != TR_OK) return status;
        if (rank == 0 && step % 50 == 0) printf("step %3d  loss %.3f\n", step, loss);
    }
    double accuracy;
    tr_status status = measure(net, s, &accuracy);
    if (status != TR_OK) return status;
    if (rank == 0) printf("accuracy on %d other samples: %.1f %%\n", samples_to_test, 100 * accuracy);
    if (accuracy < 0.96) return tr_fail(TR_STATE, "an accuracy of %.3f: it should be 0.96 and more", accuracy);
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the processes leave main() here */
    settings s = {.lr = 0.01, .seed = 1};
    int ranks = argc > 1 ? atoi(argv[1]) : 4;
    TR_CHECK(tr_spawn(train, ranks, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
