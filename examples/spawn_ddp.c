/*
 * Data parallelism in one program: processes of a function of it, each with its share of every batch, and DDP between them.
 *
 *   ./spawn_ddp [--device cuda [--backend nccl]] [--samples N] [RANKS [FOLDER]]
 *
 * FOLDER has MNIST's t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (or .gz): a LeNet learns the first 9,000 and is tested
 * on the last 1,000. Without it the images are made: ten patterns under noise. Any number of ranks that divides 64 learns the
 * same, to rounding. On "cuda" the ranks take the GPUs in turn. Of fewer samples than 4,000 the result is not judged.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { classes = 10, batch = 64, ALL = 4000 };

typedef struct settings {
    char folder[1024]; /* "": made images */
    char device[16], backend[16];
    int epochs, samples;
    double lr;
} settings;

/* ---- Images ----------------------------------------------------------------------------------------------------------- */

/* Sample i is of class i % 10: [1, 28, 28], whose pattern is of squares of 4 by 4. */
static tr_status make_image(const tr_sample_call *call, tr_sample *out)
{
    int64_t label = call->index % classes;
    tr_tensor *pattern = tr_randn((uint64_t)label, TR_SHAPE(1, 7, 1, 7, 1));
    tr_tensor *image = tr_reshape(tr_expand(pattern, TR_SHAPE(1, 7, 4, 7, 4)), TR_SHAPE(1, 28, 28));
    tr_tensor *noise = tr_randn((uint64_t)(1000 + call->index), TR_SHAPE(1, 28, 28));
    out->x = tr_add(image, tr_affine(noise, 1.5, 0));
    out->y = tr_scalar((double)label, TR_I64);
    return tr_status_of(out->x);
}

static void open_sets(const settings *s, tr_dataset **learn, tr_dataset **test)
{
    tr_dataset *all = *s->folder ? tr_mnist(s->folder, .train = false) : tr_dataset_new(s->samples, make_image, .name = "patterns");
    int64_t count = tr_dataset_count(all), split = count - count / 10;
    *learn = tr_dataset_slice(all, 0, split);
    *test = tr_dataset_slice(all, split, count);
}

/* ---- What each process does -------------------------------------------------------------------------------------------- */

static tr_status train_epoch(tr_module *ddp, tr_optimizer *opt, tr_loader *loader, double *mean)
{
    tr_batch b;
    tr_status status;
    double sum = 0;
    int64_t steps = 0;
    while ((status = tr_loader_next(loader, &b)) == TR_OK) {
        TR_SCOPE;
        tr_tensor *loss = tr_cross_entropy(tr_forward(ddp, b.x), b.y);
        tr_zero_grad(opt);
        if ((status = tr_backward(loss)) != TR_OK) return status; /* gradients are averaged over the ranks while it runs */
        if ((status = tr_step(opt)) != TR_OK) return status;
        sum += tr_item(loss);
        steps++;
    }
    *mean = sum / (double)steps;
    return status == TR_END ? TR_OK : status;
}

static double sum_of_weights(tr_module *net)
{
    TR_SCOPE;
    double sum = 0;
    tr_tensor_list *weights = tr_parameters(net);
    for (int i = 0; i < tr_list_count(weights); i++) sum += tr_item(tr_sum(tr_abs(tr_detach(tr_list_at(weights, i)))));
    return sum;
}

/* A failure that it returns is what tr_spawn() returns. */
static tr_status train(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    tr_group *world = tr_join(.backend = s->backend);
    tr_dataset *learn, *test;
    open_sets(s, &learn, &test);
    tr_device here;
    tr_status status = tr_group_device_named(world, s->device, &here); /* this rank's */
    if (status != TR_OK) return status;
    int share = batch / tr_world_size(world);
    tr_loader *loader = tr_loader_new(learn, .batch = share, .workers = 1, .shuffle = true, .group = world, .device = here);
    tr_loader *tester = tr_loader_new(test, .batch = 100, .group = world, .device = here);
    tr_module *net = tr_lenet(.seed = 1);
    if ((status = tr_module_to(net, here)) != TR_OK) return status;
    tr_module *ddp = tr_ddp(net, world);
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = s->lr, .momentum = 0.9);
    for (int epoch = 0; epoch < s->epochs; epoch++) {
        double loss;
        if ((status = train_epoch(ddp, opt, loader, &loss)) != TR_OK) return status;
        if (rank == 0) printf("epoch %d  loss %.3f\n", epoch, loss);
    }
    tr_score score;
    if ((status = tr_evaluate(net, tester, .group = world, .score = &score)) != TR_OK) return status;
    if (rank == 0)
        printf("accuracy on %d other images: %.1f %%\nsum of the weights' sizes: %.4f\n", (int)score.count,
            100 * score.accuracy, sum_of_weights(net));
    if (score.accuracy < 0.96 && s->samples == ALL)
        return tr_fail(TR_STATE, "an accuracy of %.3f: it should be 0.96 and more", score.accuracy);
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the processes leave main() here */
    settings s = {.device = "cpu", .backend = "native", .samples = ALL, .lr = 0.01};
    for (; argc > 2 && argv[1][0] == '-'; argc -= 2, argv += 2) {
        if (strcmp(argv[1], "--device") == 0) snprintf(s.device, sizeof s.device, "%s", argv[2]);
        else if (strcmp(argv[1], "--backend") == 0) snprintf(s.backend, sizeof s.backend, "%s", argv[2]);
        else if (strcmp(argv[1], "--samples") == 0) s.samples = atoi(argv[2]);
        else return fprintf(stderr, "there is no option %s\n", argv[1]), 2;
    }
    s.epochs = argc > 2 ? 8 : 2;
    int ranks = argc > 1 ? atoi(argv[1]) : 4;
    if (argc > 2) snprintf(s.folder, sizeof s.folder, "%s", argv[2]);
    TR_CHECK(tr_spawn(train, ranks, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
