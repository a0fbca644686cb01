/*
 * Fully sharded data parallelism (ZeRO, stage 3): four ranks keep a model's parameters, gradients and moments once, not once each.
 * `./fully_shard [--device cuda [--backend nccl]] [--steps N] [RANKS]` starts the ranks itself, which take the GPUs in turn; after
 * fewer steps than 100 the loss is not judged.
 *
 * Two networks are trained side by side, one sharded and one with DDP; they must end with the same bits. The sharded one's whole
 * parameters and moments are then loaded into a plain network and its optimizer, as any program would load a checkpoint of them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { classes = 10, features = 64, width = 128, batch = 64, blocks = 3, all_steps = 100 };

typedef struct settings {
    char device[16], backend[16];
    int steps;
} settings;

typedef struct learner {
    tr_module *net, *run; /* run: net, or what stands around it */
    tr_optimizer *opt;
} learner;

/* A row of blocks, and a head. */
static tr_module *make_net(tr_device here)
{
    tr_module *parts[blocks + 1];
    for (int i = 0; i < blocks; i++)
        parts[i] = tr_sequential(tr_linear(i ? width : features, width, .seed = (uint64_t)i + 1), tr_activation_layer(tr_relu));
    parts[blocks] = tr_linear(width, classes, .seed = 9);
    tr_module *net = tr_sequential_n(parts, blocks + 1);
    TR_CHECK(tr_module_to(net, here));
    return net;
}

/* Each block is a unit, which is gathered while it computes; the rest, here the head, is one more. */
static learner make_sharded(tr_group *world, tr_device here)
{
    tr_module *net = make_net(here);
    for (int i = 0; i < blocks; i++) {
        char path[8];
        snprintf(path, sizeof path, "%d", i);
        TR_CHECK(tr_fully_shard(tr_module_find(net, path), world));
    }
    TR_CHECK(tr_fully_shard(net, world));
    return (learner){net, net, tr_adamw(tr_parameters(net), .lr = 1e-3)};
}

static learner make_replica(tr_group *world, tr_device here)
{
    tr_module *net = make_net(here);
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
    tr_tensor *loss = tr_cross_entropy(tr_forward(l->run, tr_to(x, here)), tr_to(y, here));
    tr_zero_grad(l->opt);
    tr_status status = tr_backward(loss);
    *value = tr_item(loss);
    return status == TR_OK ? tr_step(l->opt) : status;
}

/* Have two lists the same values, to the bit? */
static bool same_values(tr_tensor_list *a, tr_tensor_list *b)
{
    for (int i = 0; i < tr_list_count(a); i++) {
        tr_tensor *p = tr_to(tr_list_at(a, i), tr_cpu(0)), *q = tr_to(tr_list_at(b, i), tr_cpu(0));
        if (memcmp(tr_data(p), tr_data(q), (size_t)tr_numel(p) * tr_dtype_size(tr_dtype_of(p))) != 0) return false;
    }
    return tr_list_count(a) == tr_list_count(b);
}

static tr_status train_both(tr_group *world, const learner *sharded, const learner *replica, int steps)
{
    for (int step = 0; step < steps; step++) {
        TR_SCOPE;
        double loss, expected;
        tr_tensor *y, *x = make_share(world, step, &y);
        tr_status status = train_step(sharded, x, y, &loss);
        if (status == TR_OK) status = train_step(replica, x, y, &expected);
        if (status != TR_OK) return status;
        bool last = step == steps - 1;
        if (tr_rank(world) == 0 && (step % 25 == 0 || last)) printf("step %3d  loss %.4f\n", step, loss);
        if (last && loss > 0.2 && steps == all_steps) return tr_fail(TR_STATE, "a loss of %g: it should be less than 0.2", loss);
    }
    return TR_OK;
}

/* What one process can do with the whole lists. */
static tr_status load_alone(tr_tensor_list *model, tr_tensor_list *moments)
{
    tr_module *net = make_net(tr_cpu(0));
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-3);
    tr_status status = tr_load_state_dict(net, model);
    return status == TR_OK ? tr_optimizer_load(opt, moments) : status;
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
    learner sharded = make_sharded(world, here), replica = make_replica(world, here);
    status = train_both(world, &sharded, &replica, s->steps);
    if (status != TR_OK) return status;

    tr_tensor_list *model = tr_unshard_state(sharded.net, tr_state_dict(sharded.net)); /* collective */
    tr_tensor_list *moments = tr_unshard_state(sharded.net, tr_optimizer_state(sharded.opt));
    status = load_alone(model, moments);
    if (status != TR_OK) return status;
    if (!same_values(model, tr_state_dict(replica.net)) || !same_values(moments, tr_optimizer_state(replica.opt)))
        return tr_fail(TR_STATE, "the sharded network has other weights or moments");
    if (rank == 0)
        printf("the same weights and moments as with DDP; of %lld parameters rank 0 of %d keeps %lld\n",
            (long long)tr_list_numel(model), tr_world_size(world), (long long)tr_list_numel(tr_parameters(sharded.net)));
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
