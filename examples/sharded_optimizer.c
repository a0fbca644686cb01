/*
 * A sharded optimizer (ZeRO, stage 1): four data parallel ranks keep the moments of AdamW once, not once each.
 * `./sharded_optimizer [--device cuda [--backend nccl]] [--steps N] [RANKS]` starts the ranks itself, which take the GPUs in turn; after fewer
 * steps than 100 the loss is not judged.
 *
 * Two networks are trained side by side, one with the optimizer sharded and one without; they must end with the same bits. The
 * sharded optimizer's state is then loaded into one that is whole, as a checkpoint for any number of ranks would be.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { classes = 10, features = 64, batch = 64, all_steps = 100 };

typedef struct settings {
    char device[16], backend[16];
    int steps;
} settings;

typedef struct learner {
    tr_module *net, *ddp;
    tr_optimizer *opt;
} learner;

static learner make_learner(tr_group *world, tr_device here)
{
    tr_module *net = tr_sequential(tr_linear(features, 256, .seed = 1), tr_activation_layer(tr_relu),
        tr_linear(256, classes, .seed = 2));
    TR_CHECK(tr_module_to(net, here));
    return (learner){net, tr_ddp(net, world), tr_adamw(tr_parameters(net), .lr = 1e-3)};
}

/* This rank's rows of a step's batch. x: [n, features], y: [n] */
static tr_tensor *make_share(tr_group *world, int step, tr_tensor **y)
{
    int64_t n = batch / tr_world_size(world), first = n * tr_rank(world);
    tr_tensor *all = tr_argmax(tr_rand((uint64_t)(9000 + step), TR_SHAPE(batch, classes)), 1);
    tr_tensor *x = tr_add(tr_embedding_op(all, tr_randn(7, TR_SHAPE(classes, features))),
        tr_randn((uint64_t)(100 + step), TR_SHAPE(batch, features)));
    *y = tr_slice(all, 0, first, first + n);
    return tr_slice(x, 0, first, first + n);
}

static tr_status train_step(const learner *l, tr_tensor *x, tr_tensor *y, double *value)
{
    TR_SCOPE;
    tr_device here = tr_device_of(tr_list_at(tr_parameters(l->net), 0));
    tr_tensor *loss = tr_cross_entropy(tr_forward(l->ddp, tr_to(x, here)), tr_to(y, here));
    tr_zero_grad(l->opt);
    tr_status status = tr_backward(loss);
    *value = tr_item(loss);
    return status == TR_OK ? tr_step(l->opt) : status;
}

/* Do two networks have the same weights, to the bit? */
static bool same_weights(tr_module *a, tr_module *b)
{
    tr_tensor_list *x = tr_parameters(a), *y = tr_parameters(b);
    for (int i = 0; i < tr_list_count(x); i++) {
        tr_tensor *p = tr_to(tr_list_at(x, i), tr_cpu(0)), *q = tr_to(tr_list_at(y, i), tr_cpu(0));
        if (memcmp(tr_data(p), tr_data(q), (size_t)tr_numel(p) * sizeof(float)) != 0) return false;
    }
    return true;
}

static tr_status train_both(tr_group *world, const learner *sharded, const learner *whole, int steps)
{
    for (int step = 0; step < steps; step++) {
        TR_SCOPE;
        double loss, expected;
        tr_tensor *y, *x = make_share(world, step, &y);
        tr_status status = train_step(sharded, x, y, &loss);
        if (status == TR_OK) status = train_step(whole, x, y, &expected);
        if (status != TR_OK) return status;
        bool last = step == steps - 1;
        if (tr_rank(world) == 0 && (step % 25 == 0 || last)) printf("step %3d  loss %.4f\n", step, loss);
        if (last && loss > 0.2 && steps == all_steps) return tr_fail(TR_STATE, "a loss of %g: it should be less than 0.2", loss);
    }
    return TR_OK;
}

static tr_status train(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    tr_group *world = tr_join(.backend = s->backend);
    tr_device here;
    tr_status status = tr_group_device_named(world, s->device, &here);
    if (status != TR_OK) return status;
    learner sharded = make_learner(world, here), whole = make_learner(world, here);
    status = tr_shard_optimizer(sharded.opt, world);
    if (status == TR_OK) status = train_both(world, &sharded, &whole, s->steps);
    if (status != TR_OK) return status;
    if (!same_weights(sharded.net, whole.net)) return tr_fail(TR_STATE, "the sharded optimizer gave other weights");

    tr_tensor_list *state = tr_optimizer_state(sharded.opt); /* gathered from all ranks */
    status = tr_optimizer_load(whole.opt, state);
    if (status != TR_OK) return status;
    long long moments = 2 * (long long)tr_list_numel(tr_parameters(sharded.net));
    if (rank == 0)
        printf("the same weights as without sharding; of %lld moments each of %d ranks keeps about %lld\n", moments,
            tr_world_size(world), moments / tr_world_size(world));
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the ranks leave main() here */
    settings s = {"cpu", "native", all_steps};
    for (; argc > 2; argc -= 2, argv += 2) {
        if (strcmp(argv[1], "--device") == 0) snprintf(s.device, sizeof s.device, "%s", argv[2]);
        else if (strcmp(argv[1], "--backend") == 0) snprintf(s.backend, sizeof s.backend, "%s", argv[2]);
        else if (strcmp(argv[1], "--steps") == 0) s.steps = atoi(argv[2]);
        else return fprintf(stderr, "there is no option %s\n", argv[1]), 2;
    }
    TR_CHECK(tr_spawn(train, argc > 1 ? atoi(argv[1]) : 4, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
