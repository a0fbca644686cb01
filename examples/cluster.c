/*
 * Data parallel training on a cluster: the machines of a hosts file, which are reached by ssh, run this program as the
 * ranks of one job. Each rank sets the process group up, trains its share of the samples under DDP with SGD, and cleans
 * up.
 *
 *   ./cluster [HOSTS]              # a line per machine, "node1 slots=8 address=10.0.0.1"; without it two ranks on this machine
 *   ./cluster --device cuda        # on their GPUs, which the ranks of a machine take in turn
 *   ./cluster --samples 200        # so few that the result is not judged
 *
 * The program lies at the same path on all of them.
 */
#define _POSIX_C_SOURCE 200809L /* setenv(), also with -std=c11 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/tools.h>

enum { CLASSES = 10, SIDE = 16, ALL = 2400, BATCH = 20, EPOCHS = 3 };

/* ---- The group ------------------------------------------------------------------------------------------------- */

/* The cluster's launchers have said where the ranks meet; ranks that were started by hand meet on this machine. */
static tr_group *setup(int rank, int world_size)
{
    setenv("MASTER_ADDR", "localhost", 0);
    setenv("MASTER_PORT", "12355", 0);
    return tr_join(.rank = rank, .world_size = world_size); /* dist.init_process_group() */
}

static tr_status cleanup(tr_group *world)
{
    return tr_leave(world); /* dist.destroy_process_group() */
}

/* ---- The samples: each class has a pattern, each image is one under noise ---------------------------------------- */

static tr_status get_image(const tr_sample_call *call, tr_sample *out)
{
    int64_t class = call->index % CLASSES;
    tr_tensor *pattern = tr_randn(1 + (uint64_t)class, TR_SHAPE(1, SIDE, SIDE));
    tr_tensor *noise = tr_randn(1000 + (uint64_t)call->index, TR_SHAPE(1, SIDE, SIDE));
    out->x = tr_add(pattern, tr_affine(noise, 2, 0));
    out->y = tr_scalar((double)class, TR_I64);
    return tr_status_of(out->x);
}

/* ---- Training -------------------------------------------------------------------------------------------------- */

static tr_module *make_model(void)
{
    return tr_sequential(tr_conv2d(1, 8, 3, .padding = 1, .seed = 1), tr_activation_layer(tr_relu), tr_max_pool2d_layer(2),
        tr_flatten_layer(), tr_linear(8 * SIDE / 2 * SIDE / 2, CLASSES, .seed = 2));
}

/* The mean loss of this rank's batches. */
static tr_status train_epoch(tr_module *ddp, tr_optimizer *optimizer, tr_loader *loader, double *loss)
{
    tr_batch b;
    tr_status status;
    double sum = 0;
    int batches = 0;
    while ((status = tr_loader_next(loader, &b)) == TR_OK) {
        TR_SCOPE;
        tr_zero_grad(optimizer);
        tr_tensor *error = tr_cross_entropy(tr_forward(ddp, b.x), b.y);
        if ((status = tr_backward(error)) != TR_OK) return status; /* gradients are averaged over the ranks meanwhile */
        if ((status = tr_step(optimizer)) != TR_OK) return status;
        sum += tr_item(error);
        batches++;
    }
    *loss = sum / batches;
    return status == TR_END ? TR_OK : status;
}

/* Do all ranks have the same weights, to the bit? */
static tr_status same_weights(tr_module *model, tr_group *world, bool *same)
{
    int32_t differ = 0;
    tr_tensor_list *weights = tr_parameters(model);
    for (int i = 0; i < tr_list_count(weights); i++) {
        TR_SCOPE;
        TR_NO_GRAD;
        tr_tensor *own = tr_list_at(weights, i), *first = tr_affine(own, 1, 0); /* a copy, which becomes rank 0's */
        tr_status status = tr_broadcast_tensor(world, first, 0);
        if (status != TR_OK) return status;
        differ |= tr_item(tr_max(tr_abs(tr_sub(own, first)))) != 0;
    }
    tr_status status = tr_all_reduce(world, &differ, 1, .dtype = TR_I32, .op = TR_MAX);
    *same = !differ;
    return status;
}

static tr_status train(int rank, int world_size, const char *device, int samples)
{
    TR_SCOPE;
    tr_group *world = setup(rank, world_size);
    tr_device here;
    tr_status status = tr_group_device_named(world, device, &here); /* this rank's */
    if (status != TR_OK) return status;
    int held_out = samples / 6;
    tr_dataset *all = tr_dataset_new(samples, get_image, .name = "patterns");
    tr_dataset *learn = tr_dataset_slice(all, 0, samples - held_out), *test = tr_dataset_slice(all, samples - held_out, samples);
    tr_loader *loader = tr_loader_new(learn, .batch = BATCH, .shuffle = true, .workers = 1, .group = world, .device = here);
    tr_loader *tester = tr_loader_new(test, .batch = 100, .group = world, .device = here);
    tr_module *model = make_model();
    if ((status = tr_module_to(model, here)) != TR_OK) return status;
    tr_module *ddp = tr_ddp(model, world);
    tr_optimizer *optimizer = tr_sgd(tr_parameters(model), .lr = 0.02, .momentum = 0.9);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        double loss;
        status = tr_loader_set_epoch(loader, epoch); /* another order in each epoch */
        if (status == TR_OK) status = train_epoch(ddp, optimizer, loader, &loss);
        if (status != TR_OK) return status;
        if (rank == 0) printf("epoch %d  loss %.3f\n", epoch + 1, loss);
    }
    tr_score score;
    bool same = false;
    status = tr_evaluate(model, tester, .group = world, .score = &score);
    if (status == TR_OK) status = same_weights(model, world, &same);
    if (status != TR_OK) return status;
    printf("rank %d of %d: %.1f %% of %d other images are right, %s weights\n", rank, world_size, 100 * score.accuracy,
        (int)score.count, same ? "the same" : "other");
    if ((score.accuracy < 0.96 && samples == ALL) || !same)
        return tr_fail(TR_STATE, "the ranks have not learnt the same, or not enough");
    return cleanup(world);
}

/* ---- The cluster ----------------------------------------------------------------------------------------------- */

static void say(const tr_cluster_host *host, tr_status status, int cores, const char *text, void *user)
{
    (void)user;
    if (status == TR_OK) printf("%s: %d ranks on %d cores\n", host->name, host->slots, cores);
    else fprintf(stderr, "%s\n", text);
}

static void show(int host, bool is_stderr, const char *line, size_t length, void *user)
{
    (void)host, (void)user; /* each line begins with its rank */
    fprintf(is_stderr ? stderr : stdout, "%.*s\n", (int)length, line);
}

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK"), *world_size = getenv("WORLD_SIZE"), *program = argv[0], *device = "cpu", *samples = NULL;
    for (; argc > 2; argc -= 2, argv += 2) {
        if (strcmp(argv[1], "--device") == 0) device = argv[2];
        else if (strcmp(argv[1], "--samples") == 0) samples = argv[2];
        else return fprintf(stderr, "there is no option %s\n", argv[1]), 2;
    }
    if (rank && world_size) { /* started as one of the ranks */
        TR_CHECK(train(atoi(rank), atoi(world_size), device, samples ? atoi(samples) : ALL));
        return 0;
    }
    tr_cluster *cluster = tr_cluster_open(argc > 1 ? argv[1] : NULL, .slots = argc > 1 ? 0 : 2);
    TR_CHECK(tr_status_of(cluster));
    TR_CHECK(tr_cluster_check(cluster, program, say, NULL));

    const char *const command[] = {program, "--device", device, samples ? "--samples" : NULL, samples, NULL};
    tr_launch_report report;
    tr_status status = tr_cluster_run(cluster, command, .output = show, .pass_signals = true, .report = &report);
    if (status == TR_OK) return 0;
    fprintf(stderr, "%s\n", tr_error_message());
    return status == TR_INTERRUPTED ? report.exit_code : 1;
}
