/*
 * DistributedDataParallel inside RPC: the tables of a model, which are large and of which a batch needs few rows, are on
 * parameter servers; the dense rest is on each trainer, under DDP. `./hybrid_rpc [--device cuda [--backend nccl]] [--steps N] [TRAINERS]`; on
 * "cuda" all take the GPUs in turn.
 *
 * A user and an item each have a row in a table; a network says from the two which of four stars the user gives. One process
 * that has it all learns the same, to rounding.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { tables = 2, rows = 60, dim = 8, hidden = 32, stars = 4, batch = 32, all_steps = 400 };
static const double lr = 1;

typedef struct settings {
    char device[16], backend[16];
    int trainers, steps;
} settings;

/* ---- The model ------------------------------------------------------------------------------------------------------------ */

static tr_module *placed(tr_module *module, tr_device here)
{
    tr_status status = tr_module_to(module, here);
    return status == TR_OK ? module : tr_module_fail(status, "%s", tr_error_message());
}

static tr_module *make_table(int i, tr_device here)
{
    return placed(tr_embedding(rows, dim, .init_std = 1, .seed = (uint64_t)i + 1), here);
}

static tr_module *make_dense(tr_device here)
{
    tr_module *first = tr_linear(tables * dim, hidden, .seed = 11), *second = tr_linear(hidden, stars, .seed = 12);
    return placed(tr_sequential(first, tr_activation_layer(tr_tanh), second), here);
}

/* The loss of a trainer's batch of a step. ids, of users and of items: [batch]; the stars: what two hidden tables say. */
static tr_tensor *batch_loss(tr_module *const *table, tr_module *dense, tr_device here, int trainer, int step)
{
    tr_tensor *row[tables], *likes = NULL;
    for (int i = 0; i < tables; i++) {
        uint64_t number = (uint64_t)((trainer * all_steps + step) * tables + i);
        tr_tensor *ids = tr_argmax(tr_rand(1000 + number, TR_SHAPE(batch, rows)), 1);
        tr_tensor *one = tr_embedding_op(ids, tr_randn(100 + (uint64_t)i, TR_SHAPE(rows, stars)));
        likes = likes ? tr_add(likes, one) : one;
        row[i] = tr_forward(table[i], tr_to(ids, here)); /* [batch, dim]: of a remote module, from its server */
    }
    return tr_cross_entropy(tr_forward(dense, tr_cat(row, tables, 1)), tr_to(tr_argmax(likes, 1), here));
}

/* ---- Training ------------------------------------------------------------------------------------------------------------- */

static void *table(void *state)
{
    return state;
}
TR_RPC_WITH_STATE(table, RETURNS(OBJECT));

static tr_status train(tr_rpc *rpc, tr_group *trainers, tr_module *dense, tr_device here, int steps, tr_rref **at)
{
    tr_module *there[tables];
    for (int i = 0; i < tables; i++) {
        char name[24];
        snprintf(name, sizeof name, "server%d", i);
        at[i] = tr_remote(rpc, name, "table");
        there[i] = tr_remote_module(at[i]);
    }
    tr_module *ddp = tr_ddp(dense, trainers);
    tr_rref *parameters[16]; /* the rows at their servers, and this trainer's replica of the rest */
    int n = tr_dist_parameters(rpc, tr_sequential(there[0], there[1], dense), parameters, 16);
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(rpc, parameters, n, TR_DIST_SGD(.lr = lr));
    tr_status status = tr_status_of(optimizer);
    for (int step = 0; step < steps && status == TR_OK; step++) {
        TR_SCOPE;
        TR_DIST_CONTEXT(rpc, context);
        tr_tensor *loss = batch_loss(there, ddp, here, tr_rank(trainers), step);
        status = tr_dist_backward(context, loss); /* all trainers have the mean of the dense gradients then */
        if (status == TR_OK) status = tr_dist_step(optimizer, context);
        if (status == TR_OK) status = tr_barrier(trainers); /* the rows that the others change now are read next */
        if (step % 100 == 99 && tr_rank(trainers) == 0) printf("step %d: loss %.3f\n", step + 1, tr_item(loss));
    }
    return status;
}

/* The same in one process: the loss is the mean over the trainers, and each trainer's step on a table adds up. */
static tr_status train_alone(int trainers, tr_module *const *own, tr_module *dense, tr_device here, int steps)
{
    tr_optimizer *opt = tr_sgd(tr_parameters(dense), .lr = lr), *of_table[tables];
    for (int i = 0; i < tables; i++) of_table[i] = tr_sgd(tr_parameters(own[i]), .lr = lr * trainers);
    for (int step = 0; step < steps; step++) {
        TR_SCOPE;
        tr_zero_grad(opt);
        for (int i = 0; i < tables; i++) tr_zero_grad(of_table[i]);
        for (int k = 0; k < trainers; k++) {
            tr_status status = tr_backward(tr_affine(batch_loss(own, dense, here, k, step), 1.0 / trainers, 0));
            if (status != TR_OK) return status;
        }
        tr_status status = tr_step(opt);
        for (int i = 0; i < tables && status == TR_OK; i++) status = tr_step(of_table[i]);
        if (status != TR_OK) return status;
    }
    return TR_OK;
}

static double distance(tr_tensor *a, tr_tensor *b)
{
    TR_NO_GRAD;
    return tr_item(tr_max(tr_abs(tr_sub(a, b))));
}

static tr_status compare(int trainers, tr_module *dense, tr_device here, int steps, tr_rref *const *at)
{
    tr_module *own[tables], *twin = make_dense(here);
    for (int i = 0; i < tables; i++) own[i] = make_table(i, here);
    tr_status status = train_alone(trainers, own, twin, here, steps);
    if (status != TR_OK) return status;
    double difference = 0;
    for (int i = 0; i < tr_list_count(tr_parameters(dense)); i++)
        difference += distance(tr_list_at(tr_parameters(dense), i), tr_list_at(tr_parameters(twin), i));
    for (int i = 0; i < tables; i++) {
        tr_rref *weight[1];
        if (tr_remote_parameters(at[i], weight, 1) != 1) return tr_fail(TR_INTERNAL, "%s", tr_error_message());
        difference += distance(tr_future_tensor(tr_rref_to_here(weight[0])), tr_list_at(tr_parameters(own[i]), 0));
    }
    printf("%d trainers, %d servers: weights differ from those of one process by %.1e in all\n", trainers, tables,
        difference);
    return difference < 1e-3 ? TR_OK : tr_fail(TR_STATE, "weights differ by %g from those of one process", difference);
}

/* ---- Processes ------------------------------------------------------------------------------------------------------------ */

static tr_status work(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    char name[24];
    snprintf(name, sizeof name, rank < tables ? "server%d" : "trainer%d", rank < tables ? rank : rank - tables);
    tr_group *world = tr_join(.backend = s->backend);
    tr_device here;
    TR_CHECK(tr_group_device_named(world, s->device, &here));
    tr_group *trainers = tr_group_split(world, rank < tables ? -1 : 0, rank); /* DDP's; NULL on servers */
    tr_rpc *rpc = tr_rpc_start(world, .name = name);
    tr_status status = tr_dist_start(rpc);
    if (status == TR_OK && !trainers) status = tr_rpc_register(rpc, &table_rpc, .state = make_table(rank, here));
    if (status == TR_OK) status = tr_barrier(world); /* all can be called */
    if (status == TR_OK && trainers) {
        TR_SCOPE;
        tr_module *dense = make_dense(here);
        tr_rref *at[tables];
        status = train(rpc, trainers, dense, here, s->steps, at);
        if (status == TR_OK && tr_rank(trainers) == 0) status = compare(tr_world_size(trainers), dense, here, s->steps, at);
    }
    if (status == TR_OK) status = tr_rpc_stop(rpc); /* the servers serve until all have called it */
    if (status == TR_OK && trainers) status = tr_leave(trainers);
    return status == TR_OK ? tr_leave(world) : status;
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the processes leave main() here */
    settings s = {"cpu", "native", 2, all_steps};
    for (; argc > 2; argc -= 2, argv += 2) {
        if (strcmp(argv[1], "--device") == 0) snprintf(s.device, sizeof s.device, "%s", argv[2]);
        else if (strcmp(argv[1], "--backend") == 0) snprintf(s.backend, sizeof s.backend, "%s", argv[2]);
        else if (strcmp(argv[1], "--steps") == 0) s.steps = atoi(argv[2]);
        else return fprintf(stderr, "there is no option %s\n", argv[1]), 2;
    }
    if (argc > 1) s.trainers = atoi(argv[1]);
    if (s.trainers < 1) return fprintf(stderr, "1 trainer or more, not %s\n", argv[1]), 2;
    TR_CHECK(tr_spawn(work, tables + s.trainers, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
