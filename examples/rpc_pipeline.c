/*
 * A pipeline over remote calls: each stage of a network lives on a worker of its own. `./rpc_pipeline [--device cuda]
 * [STAGES]`; on "cuda" all take the GPUs in turn.
 *
 * The master cuts a batch into micro-batches and starts all at once; no call waits. What a stage makes stays there, and
 * the next stage fetches it by its reference, so activations go from stage to stage, not through the master. While
 * one micro-batch is in the second stage, the next is in the first. Distributed autograd takes the gradients back the
 * same way. It learns what one process learns from whole batches, to rounding.
 *
 * tr_pipeline_new() is the pipeline for speed: it has schedules that hold less. This one can take any path through its
 * workers. The data: ten classes, each a random pattern under noise.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { most_stages = 8, classes = 10, features = 64, hidden = 64, batch = 64, micro_batches = 4, steps = 100 };

static tr_device here; /* where this process computes */

typedef struct settings {
    char device[16];
    int stages;
} settings;

/* ---- Stages ----------------------------------------------------------------------------------------------------- */

/* [batch, features] in the first, [batch, hidden] in between, [batch, classes] out of the last */
static void *make_stage(int64_t stage, int64_t stages)
{
    tr_module *in = tr_linear(stage ? hidden : features, hidden, .seed = (uint64_t)(1 + 2 * stage));
    tr_module *out = tr_linear(hidden, stage == stages - 1 ? classes : hidden, .seed = (uint64_t)(2 + 2 * stage));
    tr_module *made = tr_sequential(in, tr_activation_layer(tr_gelu), out);
    TR_CHECK(tr_module_to(made, here));
    return made;
}
TR_RPC(make_stage, I64, I64, RETURNS(OBJECT));

/* Runs where the stage is, on what the worker before it has made, or is about to. */
static tr_tensor *run_stage(void *stage, tr_rref *input)
{
    return tr_forward(stage, tr_future_tensor(tr_rref_to_here(input)));
}
TR_RPC(run_stage, OBJECT, RREF, RETURNS(TENSOR));

/* ---- The master ------------------------------------------------------------------------------------------------- */

typedef struct pipeline {
    tr_rpc *rpc;
    int stages;
    tr_rref *stage[most_stages];
} pipeline;

static void name_stage(int stage, char name[32])
{
    snprintf(name, 32, "stage%d", stage);
}

static void make_pipeline(pipeline *p, tr_rpc *rpc, int stages)
{
    *p = (pipeline){.rpc = rpc, .stages = stages};
    for (int i = 0; i < stages; i++) {
        char name[32];
        name_stage(i, name);
        p->stage[i] = tr_remote(rpc, name, "make_stage", i, stages);
    }
}

/* Sends a micro-batch on its way through all stages. */
static tr_future *start(const pipeline *p, tr_tensor *x)
{
    tr_rref *at = tr_rref_new(p->rpc, tr_value_tensor(x));
    for (int i = 0; i < p->stages - 1; i++) at = tr_rref_remote(p->stage[i], "run_stage", at);
    return tr_rref_call(p->stage[p->stages - 1], "run_stage", at);
}

/* The i-th of the equal parts of a batch. */
static tr_tensor *part(tr_tensor *x, int i)
{
    enum { size = batch / micro_batches };
    return tr_slice(x, 0, (int64_t)i * size, (int64_t)(i + 1) * size);
}

/* The batch's loss: the mean over its micro-batches, each taken when it comes, while later ones are on their way. */
static tr_tensor *pipeline_loss(const pipeline *p, tr_tensor *x, tr_tensor *y)
{
    tr_future *out[micro_batches];
    for (int i = 0; i < micro_batches; i++) out[i] = start(p, part(x, i));
    tr_tensor *sum = tr_cross_entropy(tr_future_tensor(out[0]), part(y, 0));
    for (int i = 1; i < micro_batches; i++)
        sum = tr_add(sum, tr_cross_entropy(tr_future_tensor(out[i]), part(y, i)));
    return tr_affine(sum, 1.0 / micro_batches, 0);
}

/* ---- Training --------------------------------------------------------------------------------------------------- */

/* The batch of a step: x: [batch, features], y: [batch] */
static tr_tensor *make_batch(int step, tr_tensor **y)
{
    tr_tensor *patterns = tr_randn(7, TR_SHAPE(classes, features), .device = here);
    *y = tr_argmax(tr_rand((uint64_t)(9000 + step), TR_SHAPE(batch, classes), .device = here), 1);
    return tr_add(tr_embedding_op(*y, patterns), tr_randn((uint64_t)(100 + step), TR_SHAPE(batch, features), .device = here));
}

static double pipeline_step(const pipeline *p, tr_dist_optimizer *optimizer, int step)
{
    TR_SCOPE;
    tr_tensor *y, *x = make_batch(step, &y);
    TR_DIST_CONTEXT(p->rpc, context);
    tr_tensor *loss = pipeline_loss(p, x, y);
    TR_CHECK(tr_dist_backward(context, loss));
    TR_CHECK(tr_dist_step(optimizer, context));
    return tr_item(loss);
}

static void whole_step(tr_module *net, tr_optimizer *optimizer, int step)
{
    TR_SCOPE;
    tr_tensor *y, *x = make_batch(step, &y);
    tr_zero_grad(optimizer);
    TR_CHECK(tr_backward(tr_cross_entropy(tr_forward(net, x), y)));
    TR_CHECK(tr_step(optimizer));
}

static double distance(tr_rref *const *there, tr_tensor_list *own)
{
    TR_SCOPE;
    TR_NO_GRAD;
    double difference = 0;
    for (int i = 0; i < tr_list_count(own); i++)
        difference += tr_item(tr_max(tr_abs(tr_sub(tr_future_tensor(tr_rref_to_here(there[i])), tr_list_at(own, i)))));
    return difference;
}

static tr_status train(tr_rpc *rpc, int stages)
{
    TR_SCOPE;
    pipeline p;
    make_pipeline(&p, rpc, stages);
    tr_module *modules[most_stages], *twin[most_stages];
    for (int i = 0; i < stages; i++) {
        modules[i] = tr_remote_module(p.stage[i]);
        twin[i] = make_stage(i, stages);
    }
    tr_rref *parameters[4 * most_stages];
    int n = tr_dist_parameters(rpc, tr_sequential_n(modules, stages), parameters, 4 * most_stages);
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(rpc, parameters, n, TR_DIST_ADAMW(.lr = 3e-3));
    tr_module *whole = tr_sequential_n(twin, stages);
    tr_optimizer *whole_optimizer = tr_adamw(tr_parameters(whole), .lr = 3e-3);
    double loss = 0;
    for (int step = 0; step < steps; step++) {
        loss = pipeline_step(&p, optimizer, step);
        whole_step(whole, whole_optimizer, step);
    }
    double difference = distance(parameters, tr_parameters(whole));
    printf("%d stages, %d micro-batches: loss %.4f\nweights differ from those of one process by %.1e\n", stages,
        micro_batches, loss, difference);
    if (loss < 0.1 && difference < 1e-3) return TR_OK;
    return tr_fail(TR_STATE, "a loss of %g, weights differ by %g", loss, difference);
}

static tr_status work(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    char name[32] = "master";
    if (rank > 0) name_stage(rank - 1, name);
    tr_group *world = tr_join();
    TR_CHECK(tr_group_device_named(world, s->device, &here));
    tr_rpc *rpc = tr_rpc_start(world, .name = name);
    TR_CHECK(tr_dist_start(rpc));
    TR_CHECK(tr_rpc_register(rpc, &make_stage_rpc));
    TR_CHECK(tr_rpc_register(rpc, &run_stage_rpc));
    TR_CHECK(tr_barrier(world)); /* all can be called */
    if (rank == 0) {
        tr_status status = train(rpc, s->stages);
        if (status != TR_OK) return status;
    }
    TR_CHECK(tr_rpc_stop(rpc)); /* the stages serve until all have called it */
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the processes leave main() here */
    settings s = {"cpu", 3};
    for (; argc > 2 && strcmp(argv[1], "--device") == 0; argc -= 2, argv += 2)
        snprintf(s.device, sizeof s.device, "%s", argv[2]);
    if (argc > 1) s.stages = atoi(argv[1]);
    if (s.stages < 1 || s.stages > most_stages) return fprintf(stderr, "1 to %d stages\n", most_stages), 2;
    TR_CHECK(tr_spawn(work, 1 + s.stages, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
