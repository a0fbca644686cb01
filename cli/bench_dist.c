/*
 * trireme bench dist-autograd: one training step over two workers. A layer here, a layer there, a backward through both and
 * a step of both; rounds alternate with the peer's.
 */
#include "bench.h"

#include "options.h"
#include "relaunch.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FEATURES = 256, BATCH = 32, ROUNDS = 5, STEPS = 200, WARMUP = 20 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void *layer(void *state)
{
    return state;
}
TR_RPC_WITH_STATE(layer, RETURNS(OBJECT));

typedef struct dist_run {
    const char *peer_command, *json;
    tr_rpc *rpc;
    tr_module *net; /* the layer here and the one there */
    tr_dist_optimizer *optimizer;
    tr_dist_mode mode;
    tr__peer peer;
    double us[3][ROUNDS]; /* FAST, SMART, the peer */
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
    tr_status status = TR_OK;
    run->mode = mode;
    for (int i = -WARMUP; i < STEPS && status == TR_OK; i++) {
        double began = now_us();
        status = run_step(run, x);
        if (i >= 0) us[i] = now_us() - began;
    }
    *median = tr__median(us, STEPS);
    return status;
}

static tr_status run_rounds(dist_run *run)
{
    for (int round = 0; round < ROUNDS; round++) {
        char line[32];
        snprintf(line, sizeof line, "%d", STEPS);
        tr_status status = run_round(run, TR_DIST_FAST, &run->us[0][round]);
        if (status == TR_OK) status = run_round(run, TR_DIST_SMART, &run->us[1][round]);
        if (status != TR_OK) return status;
        if (run->peer_command && !tr__peer_ask(&run->peer, line, &run->us[2][round])) return TR_CHILD;
    }
    return TR_OK;
}

static int report(dist_run *run)
{
    double fast = tr__median(run->us[0], ROUNDS), smart = tr__median(run->us[1], ROUNDS);
    double peer = run->peer_command ? tr__median(run->us[2], ROUNDS) : NAN;
    printf("A training step, Linear %d here and Linear %d there, batch %d, SGD: median of %d rounds of %d\n", FEATURES,
        FEATURES, BATCH, ROUNDS, STEPS);
    printf("  FAST   %9.1f us\n  SMART  %9.1f us\n", fast, smart);
    if (run->peer_command) printf("  peer   %9.1f us, %.1f times FAST's\n", peer, peer / fast);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "step_us_median", fast);
    cJSON_AddNumberToObject(o, "smart_step_us_median", smart);
    if (run->peer_command) {
        cJSON_AddNumberToObject(o, "peer_step_us_median", peer);
        cJSON_AddNumberToObject(o, "ratio", peer / fast);
    }
    if (!run->json) {
        cJSON_Delete(o);
        return TR__EXIT_OK;
    }
    return tr__write_json(TR__BENCH, o, run->json) ? TR__EXIT_OK : TR__EXIT_FAILED;
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
    if (run->peer_command && !tr__peer_start(&run->peer, run->peer_command, 1)) return TR_CHILD;
    tr_status status = run_rounds(run);
    if (run->peer_command) tr__peer_stop(&run->peer);
    if (status == TR_OK) *code = report(run);
    return status;
}

static tr_status take_part(dist_run *run, tr_group *group, int *code)
{
    int rank = tr_rank(group);
    tr__take_core(rank, tr_world_size(group));
    tr_module *own = tr_linear(FEATURES, FEATURES, .seed = 2);
    run->rpc = tr_rpc_start(group, .name = rank ? "owner" : "trainer");
    tr_status status = tr_dist_start(run->rpc);
    if (status == TR_OK) status = tr_rpc_register(run->rpc, &layer_rpc, .state = own);
    if (status == TR_OK) status = tr_barrier(group);
    if (status == TR_OK && rank == 0) status = drive(run, code);
    return status == TR_OK ? tr_rpc_stop(run->rpc) : status;
}

static int run_rank(dist_run *run)
{
    TR_SCOPE;
    int code = TR__EXIT_OK;
    tr_group *group = tr_join();
    tr_status status = take_part(run, group, &code);
    if (status == TR_OK) status = tr_leave(group);
    if (status == TR_PEER) return tr__exit_quietly();
    if (status != TR_OK && status != TR_CHILD) tr__complain(TR__BENCH, "%s", tr_error_message());
    return status == TR_OK ? code : TR__EXIT_FAILED;
}

int tr__bench_dist(int argc, char **argv)
{
    dist_run run = {0};
    const tr__option options[] = {
        {"peer", 0, "COMMAND",
            "a program to take turns with: it prints \"ready\"; for each line that it reads it runs\n"
            "                            as many steps as the line says and prints their median in microseconds",
            TR__TEXT(&run.peer_command)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__TEXT(&run.json)},
        {0},
    };
    const tr__syntax syntax = {"bench dist-autograd", NULL,
        "Times a training step over two workers: a layer on each, distributed backward and optimizer.", options,
        .operands = {0, 0}};
    const char **given = tr__bench_given(argc, argv);
    if (!given) return TR__EXIT_FAILED;
    int code = tr__parse(&syntax, &argc, argv);
    if (code < 0) code = getenv("RANK") ? run_rank(&run) : tr__relaunch(TR__BENCH, given, 2, NULL);
    free(given);
    return code;
}
