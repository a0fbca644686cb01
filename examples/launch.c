/*
 * Data parallel training on one machine, in the steps of PyTorch's tutorial: setup(), a model under DDP, a loss,
 * backward, a step of SGD, cleanup(). The program starts its ranks itself, and shows why they failed if they do.
 *
 *   ./launch [--device cuda] [RANKS]                  # the ranks take the GPUs in turn
 *   trireme run -n 4 ./launch                                              # any launcher starts them as well
 *   RANK=0 WORLD_SIZE=2 ./launch & RANK=1 WORLD_SIZE=2 ./launch            # or a shell
 */
#define _POSIX_C_SOURCE 200809L /* setenv(), also with -std=c11 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { BATCH = 20, FEATURES = 10, HIDDEN = 32, OUTPUTS = 5, STEPS = 200 };

/* ---- The group ------------------------------------------------------------------------------------------------- */

/* A launcher has said where the ranks meet; else they meet here. */
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

/* ---- Training -------------------------------------------------------------------------------------------------- */

static tr_module *toy_model(uint64_t seed, tr_device here)
{
    tr_module *model = tr_sequential(tr_linear(FEATURES, HIDDEN, .seed = seed), tr_activation_layer(tr_relu),
        tr_linear(HIDDEN, OUTPUTS, .seed = seed + 1));
    tr_status status = tr_module_to(model, here);
    return status == TR_OK ? model : tr_module_fail(status, "%s", tr_error_message());
}

/* A rank's batch of a step. x: [BATCH, FEATURES]; labels: what another model makes of it, [BATCH, OUTPUTS]. */
static tr_tensor *make_batch(tr_module *teacher, tr_group *world, int step, tr_tensor **labels)
{
    TR_NO_GRAD;
    uint64_t number = (uint64_t)(step * tr_world_size(world) + tr_rank(world));
    tr_tensor *x = tr_randn(number, TR_SHAPE(BATCH, FEATURES), .device = tr_device_of(tr_list_at(tr_parameters(teacher), 0)));
    *labels = tr_forward(teacher, x);
    return x;
}

/* The mean loss of the ranks' batches of this step, before it. */
static tr_status train_step(tr_module *ddp, tr_optimizer *optimizer, tr_module *teacher, tr_group *world, int step,
    double *loss)
{
    TR_SCOPE;
    tr_tensor *labels, *x = make_batch(teacher, world, step, &labels);
    tr_zero_grad(optimizer);
    tr_tensor *error = tr_mse_loss(tr_forward(ddp, x), labels);
    tr_status status = tr_backward(error); /* gradients are averaged over the ranks while it runs */
    if (status == TR_OK) status = tr_step(optimizer);
    *loss = tr_item(error);
    return status == TR_OK ? tr_all_reduce(world, loss, 1, .dtype = TR_F64, .op = TR_AVG) : status;
}

/* The largest difference between this rank's weights and those of rank 0. */
static tr_status compare_weights(tr_module *model, tr_group *world, double *difference)
{
    TR_SCOPE;
    TR_NO_GRAD;
    *difference = 0;
    tr_tensor_list *weights = tr_parameters(model);
    for (int i = 0; i < tr_list_count(weights); i++) {
        tr_tensor *own = tr_list_at(weights, i), *first = tr_affine(own, 1, 0); /* a copy */
        tr_status status = tr_broadcast_tensor(world, first, 0);
        if (status != TR_OK) return status;
        double largest = tr_item(tr_max(tr_abs(tr_sub(own, first))));
        if (largest > *difference) *difference = largest;
    }
    return tr_all_reduce(world, difference, 1, .dtype = TR_F64, .op = TR_MAX);
}

static tr_status train(int rank, int world_size, const char *device)
{
    TR_SCOPE;
    tr_group *world = setup(rank, world_size);
    tr_device here;
    tr_status status = tr_group_device_named(world, device, &here); /* this rank's */
    if (status != TR_OK) return status;
    tr_module *model = toy_model(1 + 2 * (uint64_t)rank, here), *teacher = toy_model(1000, here);
    tr_module *ddp = tr_ddp(model, world); /* all ranks begin with rank 0's weights */
    tr_optimizer *optimizer = tr_sgd(tr_parameters(model), .lr = 0.1);
    status = tr_status_of(optimizer);
    double first = 0, loss = 0, difference = 0;
    for (int step = 0; step < STEPS && status == TR_OK; step++) {
        status = train_step(ddp, optimizer, teacher, world, step, &loss);
        if (step == 0) first = loss;
        if (rank == 0 && step % 50 == 0) printf("step %3d  loss %.5f\n", step, loss);
    }
    if (status == TR_OK) status = compare_weights(model, world, &difference);
    if (status != TR_OK) return status;
    if (rank == 0)
        printf("ranks: %d, loss at first: %.5f, at the end: %.5f, weights differ by %g\n", world_size, first, loss,
            difference);
    if (!(loss < 0.2 * first) || difference != 0)
        return tr_fail(TR_STATE, "a loss of %g after %g, and weights that differ by %g", loss, first, difference);
    return cleanup(world);
}

/* ---- Processes ------------------------------------------------------------------------------------------------- */

static void show(int rank, bool is_stderr, const char *line, size_t length, void *user)
{
    (void)user;
    fprintf(is_stderr ? stderr : stdout, "[%d] %.*s\n", rank, (int)length, line);
}

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK"), *world_size = getenv("WORLD_SIZE"), *device = "cpu";
    for (; argc > 2 && strcmp(argv[1], "--device") == 0; argc -= 2, argv += 2) device = argv[2];
    if (rank && world_size) { /* started as one of the ranks */
        TR_CHECK(train(atoi(rank), atoi(world_size), device));
        return 0;
    }
    const char *const command[] = {"/proc/self/exe", "--device", device, NULL};
    int ranks = argc > 1 ? atoi(argv[1]) : 4;
    tr_launch_report report;
    tr_status status = tr_launch(command, ranks, .output = show, .pass_signals = true, .report = &report);
    if (status == TR_OK) return 0;
    fprintf(stderr, "%s\n", tr_error_message());
    return status == TR_INTERRUPTED ? report.exit_code : 1;
}
