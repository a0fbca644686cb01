/*
 * trireme bench dist-autograd: one training step over two workers. A layer here, a layer there, a backward through both and
 * a step of both; rounds alternate with the peer's. Then, what a backward itself takes: through a chain of all workers, each of
 * which scales a small tensor and calls the next one, and through as many scalings in one process.
 */
#include "bench.h"
#include "bench_result.h"

#include "clock.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEATURES = 256, BATCH = 32, ROUNDS = 5, STEPS = 200, WARMUP = 20, WORKERS_MOST = 8, LINK = 16 };

static void *layer(void *state)
{
    return state;
}
TR_RPC_WITH_STATE(layer, RETURNS(OBJECT));

/* A worker's link of the chain. */
typedef struct link {
    tr_rpc *rpc;
    tr_tensor *weight; /* [LINK] */
    int next;          /* the worker behind it; 0: none */
} link;

static tr_future *call_link(tr_rpc *rpc, int worker, tr_tensor *x)
{
    tr_value argument = tr_value_tensor(x);
    return tr_rpc_sync_with(&(tr_rpc_call){.size = sizeof(tr_rpc_call), .rpc = rpc, .worker = worker, .function = "pull",
        .arguments = &argument, .count = 1});
}

static tr_tensor *pull(void *state, tr_tensor *x)
{
    const link *l = state;
    tr_tensor *y = tr_mul(x, l->weight);
    return l->next ? tr_future_tensor(call_link(l->rpc, l->next, y)) : y;
}
TR_RPC_WITH_STATE(pull, TENSOR, RETURNS(TENSOR));

typedef enum way { FAST, SMART, LOCAL, PEER, WAYS } way;

typedef struct dist_run {
    const char *peer_command, *json;
    int workers;
    link link;
    tr_rpc *rpc;
    tr_module *net; /* the layer here and the one there */
    tr_dist_optimizer *optimizer;
    tr_dist_mode mode;
    tr__peer peer;
    double us[WAYS][ROUNDS];          /* of a step */
    double backward_us[WAYS][ROUNDS]; /* through the chain */
} dist_run;

static tr_status run_step(const dist_run *run, tr_tensor *x)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(run->rpc, context);
    tr_status status = tr_dist_backward(context, tr_sum(tr_forward(run->net, x)), .mode = run->mode);
    return status == TR_OK ? tr_dist_step(run->optimizer, context) : status;
}

/* The median step of a round. */
static tr_status run_round(dist_run *run, tr_dist_mode mode, double *median)
{
    double us[STEPS];
    TR_SCOPE;
    tr_tensor *x = tr_randn(1, TR_SHAPE(BATCH, FEATURES));
    run->mode = mode;
    for (int i = -WARMUP; i < STEPS; i++) {
        double began = tr__now_us();
        TRY(run_step(run, x));
        if (i >= 0) us[i] = tr__now_us() - began;
    }
    *median = tr__median(us, STEPS);
    return TR_OK;
}

/* ---- The chain --------------------------------------------------------------------------------------------------- */

static tr_status pull_far(const dist_run *run, tr_tensor *x, way how, double *us)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(run->rpc, context);
    tr_tensor *y = tr_sum(tr_future_tensor(call_link(run->rpc, 1, tr_mul(x, run->link.weight))));
    double began = tr__now_us();
    tr_status status = tr_dist_backward(context, y, .mode = how == SMART ? TR_DIST_SMART : TR_DIST_FAST);
    *us = tr__now_us() - began;
    return status;
}

static tr_status pull_here(const dist_run *run, tr_tensor *x, double *us)
{
    TR_SCOPE;
    for (int i = 0; i < run->workers; i++) x = tr_mul(x, run->link.weight);
    x = tr_sum(x);
    double began = tr__now_us();
    tr_status status = tr_backward(x);
    *us = tr__now_us() - began;
    return status;
}

/* The median backward of a round. */
static tr_status run_chain(const dist_run *run, way how, double *median)
{
    double us[STEPS], unused;
    TR_SCOPE;
    tr_tensor *x = tr_randn(2, TR_SHAPE(LINK));
    for (int i = -WARMUP; i < STEPS; i++) {
        double *to = i >= 0 ? &us[i] : &unused;
        TRY(how == LOCAL ? pull_here(run, x, to) : pull_far(run, x, how, to));
    }
    *median = tr__median(us, STEPS);
    return TR_OK;
}

static tr_status run_rounds(dist_run *run)
{
    for (int round = 0; round < ROUNDS; round++) {
        char line[32];
        snprintf(line, sizeof line, "%d", STEPS);
        TRY(run_round(run, TR_DIST_FAST, &run->us[FAST][round]));
        TRY(run_round(run, TR_DIST_SMART, &run->us[SMART][round]));
        if (run->peer_command && !tr__peer_ask(&run->peer, line, &run->us[PEER][round])) return TR_CHILD;
    }
    for (int round = 0; round < ROUNDS; round++)
        for (way how = FAST; how <= LOCAL; how++) TRY(run_chain(run, how, &run->backward_us[how][round]));
    return TR_OK;
}

static void add_chain(dist_run *run, cJSON *o)
{
    double us[WAYS];
    for (way how = FAST; how <= LOCAL; how++) us[how] = tr__median(run->backward_us[how], ROUNDS);
    int hops = 2 * (run->workers - 1);
    double per_hop = (us[FAST] - us[LOCAL]) / hops, extra = us[SMART] - us[FAST];
    printf("A backward through %d workers, %d hops:\n  FAST   %9.1f us, %.1f a hop beyond the %.1f in one process\n"
        "  SMART  %9.1f us, %.1f more\n", run->workers, hops, us[FAST], per_hop, us[LOCAL], us[SMART], extra);
    TR__ADD_NUMBERS(o, {"workers", run->workers}, {"hops", hops}, {"local_backward_us", us[LOCAL]}, {"fast_backward_us", us[FAST]},
        {"smart_backward_us", us[SMART]}, {"fast_us_per_hop", per_hop}, {"smart_extra_us", extra});
}

static int report(dist_run *run)
{
    double fast = tr__median(run->us[FAST], ROUNDS), smart = tr__median(run->us[SMART], ROUNDS);
    double peer = run->peer_command ? tr__median(run->us[PEER], ROUNDS) : NAN;
    printf("A training step, Linear %d here and Linear %d there, batch %d, SGD: median of %d rounds of %d\n", FEATURES,
        FEATURES, BATCH, ROUNDS, STEPS);
    printf("  FAST   %9.1f us\n  SMART  %9.1f us\n", fast, smart);
    if (run->peer_command) printf("  peer   %9.1f us, %.1f times FAST's\n", peer, peer / fast);
    cJSON *o = tr__result_new(run->peer.version, "dist-autograd/%d%s", run->workers, run->peer_command ? "" : "/alone");
    TR__ADD_NUMBERS(o, {"step_us_median", fast}, {"smart_step_us_median", smart});
    if (run->peer_command) TR__ADD_NUMBERS(o, {"peer_step_us_median", peer}, {"ratio", peer / fast});
    add_chain(run, o);
    return tr__write_json(TR__BENCH, o, run->json);
}

/* Rank 0's part. TR_CHILD: the peer has been complained about. */
static tr_status drive(dist_run *run, int *code)
{
    TR_SCOPE;
    tr_rref *there = tr_remote(run->rpc, "owner", "layer"), *parameters[4];
    tr_module *here = tr_linear(FEATURES, FEATURES, .seed = 1);
    tr_tensor_list *own = tr_parameters(here);
    for (int i = 0; i < 2; i++) parameters[i] = tr_rref_new(run->rpc, tr_value_tensor(tr_list_at(own, i)));
    if (tr_remote_parameters(there, parameters + 2, 2) != 2) return tr_status_of(there);
    run->net = tr_sequential(here, tr_remote_module(there));
    run->optimizer = tr_dist_optimizer_new(run->rpc, parameters, 4, TR_DIST_SGD(.lr = 1e-6));
    if (run->peer_command && !tr__peer_start(&run->peer, 1, "%s", run->peer_command)) return TR_CHILD;
    tr_status status = run_rounds(run);
    if (run->peer_command) tr__peer_stop(&run->peer);
    if (status == TR_OK) *code = report(run);
    return status;
}

static tr_status register_both(dist_run *run, tr_module *own, int rank)
{
    run->link = (link){run->rpc, tr_require_grad(tr_randn(3, TR_SHAPE(LINK))), rank + 1 < run->workers ? rank + 1 : 0};
    TRY(tr_status_of(run->link.weight));
    TRY(tr_rpc_register(run->rpc, &layer_rpc, .state = own));
    return tr_rpc_register(run->rpc, &pull_rpc, .state = &run->link);
}

static tr_status take_part(dist_run *run, tr_group *group, int *code)
{
    static const char *const names[WORKERS_MOST] = {"trainer", "owner"}; /* and the others by their numbers */
    int rank = tr_rank(group);
    tr__take_core(rank, tr_world_size(group));
    tr_module *own = tr_linear(FEATURES, FEATURES, .seed = 2);
    run->rpc = tr_rpc_start(group, .name = names[rank]);
    TRY(tr_dist_start(run->rpc));
    TRY(register_both(run, own, rank));
    TRY(tr_barrier(group));
    if (rank == 0) TRY(drive(run, code));
    return tr_rpc_stop(run->rpc);
}

static int run_rank(void *self)
{
    dist_run *run = self;
    TR_SCOPE;
    int code = TR__EXIT_OK;
    tr_group *group = tr_join();
    tr_status status = take_part(run, group, &code);
    if (status == TR_OK) status = tr_leave(group);
    return status == TR_OK ? code : tr__bench_failed(status);
}

int tr__bench_dist(int argc, char **argv)
{
    dist_run run = {.workers = 2};
    const tr__option options[] = {
        {"peer", 0, "COMMAND",
            "a program to take turns with: it prints \"ready\"; for each line that it reads it runs\n"
            "                            as many steps as the line says and prints their median in microseconds",
            TR__TEXT(&run.peer_command)},
        {"workers", 0, "N", "in the chain that a backward goes through", TR__INTEGER(&run.workers, 2, WORKERS_MOST)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__OUTPUT(&run.json)},
        {0},
    };
    const tr__syntax syntax = {"bench dist-autograd", NULL,
        "Times a training step over two workers: a layer on each, distributed backward and optimizer; and a backward alone\n"
        "through a chain of workers.", options,
        .operands = {0, 0}};
    return tr__bench_run(&(tr__bench_job){&syntax, &run.workers, NULL, run_rank, &run}, argc, argv);
}
