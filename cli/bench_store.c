/*
 * trireme bench store: how long many clients take to come to a store and meet there. trireme bench join: how long the
 * ranks of one machine take to become a group.
 */
#include "bench.h"
#include "bench_result.h"

#include "clock.h"
#include "crowd.h"
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5 };

/* ---- Clients of a store ------------------------------------------------------------------------------------------ */

typedef struct store_bench {
    int clients;
    const char *json;
} store_bench;

/* The rounds of both kinds take turns. */
static int measure_clients(void *self)
{
    const store_bench *b = self;
    double seconds[2][ROUNDS];
    tr__crowd c = {.clients = b->clients};
    for (int round = 0; round < ROUNDS; round++) {
        for (int secret = 0; secret < 2; secret++) {
            c.token = secret ? "a token for this run" : NULL;
            if (!tr__crowd_meet(&c, &seconds[secret][round])) return tr__complain(TR__BENCH, "%s", c.failure);
        }
    }
    cJSON *o = tr__result_new(NULL, "store/%d", b->clients), *results = cJSON_AddArrayToObject(o, "results");
    cJSON_AddNumberToObject(o, "clients", b->clients);
    printf("%d clients connect to a store and meet there, median of %d\n", b->clients, ROUNDS);
    for (int secret = 0; secret < 2; secret++) {
        double median = tr__median(seconds[secret], ROUNDS);
        printf("  %-12s %8.3f s\n", secret ? "through TLS" : "in the clear", median);
        cJSON *result = cJSON_CreateObject();
        cJSON_AddBoolToObject(result, "tls", secret);
        cJSON_AddNumberToObject(result, "seconds", median);
        cJSON_AddItemToArray(results, result);
    }
    return tr__write_json(TR__BENCH, o, b->json);
}

int tr__bench_store(int argc, char **argv)
{
    store_bench b = {.clients = 2000};
    const tr__option options[] = {
        {"clients", 0, "N", "threads, each with a connection of its own", TR__INTEGER(&b.clients, 1, 100000)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__OUTPUT(&b.json)},
        {0},
    };
    const tr__syntax syntax = {"bench store", NULL,
        "Times how long clients take to connect to a TCP store and to meet there, in the clear and through TLS.", options,
        .operands = {0, 0}};
    return tr__bench_run(&(tr__bench_job){&syntax, NULL, NULL, measure_clients, &b}, argc, argv);
}

/* ---- Ranks of a group -------------------------------------------------------------------------------------------- */

/* Leaves *group and joins anew. *seconds: from the first rank's call to the last one's return. */
static tr_status join_once(tr_group **group, double *seconds)
{
    if (*group) {
        TRY(tr_barrier(*group));
        TRY(tr_leave(*group));
    }
    double times[2] = {-1e-6 * tr__now_us(), 0};
    *group = tr_join();
    times[1] = 1e-6 * tr__now_us();
    TRY(tr_all_reduce(*group, times, 2, .dtype = TR_F64, .op = TR_MAX));
    *seconds = times[0] + times[1];
    return TR_OK;
}

static int report_join(const tr_group *group, double first, double *again, const char *json)
{
    int ranks = tr_world_size(group);
    double median = tr__median(again, ROUNDS);
    printf("%d ranks join, from the first one's call to the last one's return\n", ranks);
    printf("  %-28s %8.3f s\n  %-28s %8.3f s, median of %d\n", "while their processes start", first, "again", median, ROUNDS);
    cJSON *o = tr__result_new(NULL, "join/%d", ranks);
    TR__ADD_NUMBERS(o, {"ranks", ranks}, {"first_s", first}, {"again_s", median});
    return tr__write_json(TR__BENCH, o, json);
}

/* self: where the path of the JSON file stands. */
static int join_rank(void *self)
{
    TR_SCOPE;
    tr_group *group = NULL;
    double first = 0, again[ROUNDS];
    tr_status status = join_once(&group, &first);
    for (int round = 0; round < ROUNDS && status == TR_OK; round++) status = join_once(&group, &again[round]);
    if (status != TR_OK) return tr__bench_failed(status);
    int code = tr_rank(group) == 0 ? report_join(group, first, again, *(const char **)self) : TR__EXIT_OK;
    return tr_leave(group) == TR_OK ? code : TR_EXIT_PEER;
}

int tr__bench_join(int argc, char **argv)
{
    int ranks = 64;
    const char *json = NULL;
    const tr__option options[] = {
        {"ranks", 'n', "N", "processes", TR__INTEGER(&ranks, 2, TR_LAUNCH_MAX_RANKS)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__OUTPUT(&json)},
        {0},
    };
    const tr__syntax syntax = {"bench join", NULL, "Times how long the ranks of this machine take to become a group.",
        options, .operands = {0, 0}};
    return tr__bench_run(&(tr__bench_job){&syntax, &ranks, NULL, join_rank, &json}, argc, argv);
}
