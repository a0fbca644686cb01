/*
 * Hybrid parallelism: data and model split together. Each process holds a model that is split over two devices, and
 * DistributedDataParallel keeps the processes' copies alike; a DistributedSampler gives each its share of the samples.
 *
 *   cc hybrid_parallel.c $(pkg-config --cflags --libs trireme) -o hybrid_parallel
 *   ./hybrid_parallel                                    # starts both ranks itself, on images that it draws
 *   ./hybrid_parallel 0 2 & ./hybrid_parallel 1 2        # rank and world size: the ranks meet at tcp://localhost:23456
 *   ./hybrid_parallel 0 2 tcp://node1:23456 [FOLDER]     # they meet elsewhere; FOLDER has MNIST's t10k files
 *   ./hybrid_parallel --device cuda                      # each model on the GPUs cuda:0 and cuda:1
 *   ./hybrid_parallel --device cuda --backend nccl       # and their gradients over NCCL, not through the host's memory
 *   ./hybrid_parallel --samples 100                      # so few images that the result is not judged
 */
#define _POSIX_C_SOURCE 200809L /* setenv(), also with -std=c11 */

#include <trireme/trireme.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 28, CLASSES = 10, BATCH = 16, EPOCHS = 3, ALL = 5000 };

/* ---- The data, when there is no MNIST: each class has a pattern of its own, and each image is one under noise ------------ */

static tr_dataset *patterns(int64_t count)
{
    TR_SCOPE;
    tr_tensor *y = tr_argmax(tr_rand(1, TR_SHAPE(count, CLASSES)), 1); /* [count] */
    tr_tensor *clean = tr_embedding_op(y, tr_randn(2, TR_SHAPE(CLASSES, SIDE * SIDE)));
    tr_tensor *x = tr_add(clean, tr_affine(tr_randn(3, TR_SHAPE(count, SIDE * SIDE)), 2, 0));
    return tr_escape(tr_dataset_tensors(tr_reshape(x, TR_SHAPE(count, 1, SIDE, SIDE)), y));
}

/* ---- The model: the convolutions on one device, the rest on another --------------------------------------------------------- */

typedef struct split {
    tr_module *features, *classifier;
    tr_device first, second;
} split;

static tr_tensor *split_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    split *m = tr_module_state(self);
    tr_tensor *x = tr_forward(m->features, tr_to(inputs[0], m->first)); /* [batch, 1, 28, 28] -> [batch, 1568] */
    return tr_forward(m->classifier, tr_to(x, m->second));              /* -> [batch, 10]; the gradient takes the way back */
}

static tr_module *split_new(tr_device first, tr_device second)
{
    tr_module *module = tr_module_new("split", sizeof(split), split_forward);
    split *m = tr_module_state(module);
    m->first = first;
    m->second = second;
    m->features = tr_module_add(module, "features",
        tr_sequential(tr_conv2d(1, 16, 5, .padding = 2, .seed = 1), tr_activation_layer(tr_relu), tr_max_pool2d_layer(2),
            tr_conv2d(16, 32, 5, .padding = 2, .seed = 2), tr_activation_layer(tr_relu), tr_max_pool2d_layer(2),
            tr_flatten_layer()));
    m->classifier = tr_module_add(module, "classifier",
        tr_sequential(tr_linear(32 * 7 * 7, 128, .seed = 3), tr_activation_layer(tr_relu), tr_linear(128, CLASSES, .seed = 4)));
    if (tr_module_to(m->features, first) != TR_OK || tr_module_to(m->classifier, second) != TR_OK)
        return tr_module_fail(TR_DEVICE, "%s", tr_error_message());
    return module;
}

/* ---- What each rank does ------------------------------------------------------------------------------------------------------ */

typedef struct settings {
    int rank, world_size;
    char meet[256];   /* where ranks that were started by hand meet; "": those of tr_spawn() know */
    char folder[256]; /* MNIST's files; "": draw images */
    char kind[16];    /* of the two devices */
    char backend[16];
    int samples;      /* that are drawn */
} settings;

static tr_status train(const settings *s, double *accuracy)
{
    tr_group *world = s->meet[0] ? tr_join(.init = s->meet, .rank = s->rank, .world_size = s->world_size, .backend = s->backend)
                                 : tr_join(.backend = s->backend);
    tr_dataset *all = s->folder[0] ? tr_mnist(s->folder) : patterns(s->samples);
    int64_t count = tr_dataset_count(all), held_out = count / 10;

    tr_device first = {.index = 0}, second = {.index = 1};
    tr_status status = tr_device_kind_named(s->kind, &first.kind);
    if (status != TR_OK) return status;
    second.kind = first.kind;
    tr_module *model = split_new(first, second);
    tr_module *ddp = tr_ddp(model, world);
    tr_optimizer *opt = tr_adam(tr_parameters(model), .lr = 1e-3);

    tr_dataset *training = tr_dataset_slice(all, 0, count - held_out);
    tr_sampler *sampler = tr_distributed_sampler(tr_dataset_count(training), .group = world, .drop_last = true);
    tr_loader *loader = tr_loader_new(training, .batch = BATCH, .sampler = sampler, .workers = 2);
    tr_loader *check = tr_loader_new(tr_dataset_slice(all, count - held_out, count), .batch = 100, .group = world);

    tr_score score = {0};
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        tr_batch b;
        status = tr_sampler_set_epoch(sampler, epoch); /* another order in each epoch, the same on all ranks */
        if (status != TR_OK) return status;
        while ((status = tr_loader_next(loader, &b)) == TR_OK) {
            TR_SCOPE;
            tr_tensor *logits = tr_forward(ddp, b.x);
            tr_tensor *loss = tr_cross_entropy(logits, tr_to(b.y, tr_device_of(logits)));
            tr_zero_grad(opt);
            if ((status = tr_backward(loss)) != TR_OK || (status = tr_step(opt)) != TR_OK) return status;
        }
        if (status != TR_END) return status;
        if ((status = tr_evaluate(ddp, check, .group = world, .score = &score)) != TR_OK) return status;
        if (s->rank == 0) printf("epoch %d  loss %.4f  accuracy %.2f %%\n", epoch + 1, score.loss, 100 * score.accuracy);
    }
    *accuracy = score.accuracy;
    return tr_leave(world);
}

static tr_status spawned(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    settings *s = argument;
    s->rank = rank;
    double accuracy = 0;
    tr_status status = train(s, &accuracy);
    if (status == TR_OK && accuracy < 0.96 && s->samples == ALL)
        return tr_fail(TR_STATE, "only %.2f %% are right", 100 * accuracy);
    return status;
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY;
    setenv("TRIREME_CPU_DEVICES", "2", 0); /* two devices per process, unless the environment says otherwise */
    settings s = {.world_size = 2, .kind = "cpu", .backend = "native", .samples = ALL};
    for (; argc > 2 && argv[1][0] == '-'; argc -= 2, argv += 2) {
        if (strcmp(argv[1], "--device") == 0) snprintf(s.kind, sizeof s.kind, "%s", argv[2]);
        else if (strcmp(argv[1], "--backend") == 0) snprintf(s.backend, sizeof s.backend, "%s", argv[2]);
        else if (strcmp(argv[1], "--samples") == 0) s.samples = atoi(argv[2]);
        else return fprintf(stderr, "there is no option %s\n", argv[1]), 2;
    }
    if (argc == 2 || argc > 5) {
        fprintf(stderr, "usage: hybrid_parallel [--device KIND] [--backend NAME] [--samples N] "
            "[RANK WORLD_SIZE [MEET_AT [FOLDER]]]\n");
        return 2;
    }
    if (argc == 1) {
        TR_CHECK(tr_spawn(spawned, s.world_size, .argument = &s, .bytes = sizeof s));
        return 0;
    }
    s.world_size = atoi(argv[2]);
    snprintf(s.meet, sizeof s.meet, "%s", argc > 3 ? argv[3] : "tcp://localhost:23456");
    snprintf(s.folder, sizeof s.folder, "%s", argc > 4 ? argv[4] : "");
    TR_CHECK(spawned(atoi(argv[1]), &s, sizeof s));
    return 0;
}
