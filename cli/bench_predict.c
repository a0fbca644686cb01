/* trireme bench predict: what a collective would cost on many ranks, by the cost model. */
#include "bench.h"
#include "bench_result.h"

#include "options.h"
#include "tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MOST = 4096 };

typedef struct predicting {
    const char *kind, *algorithm, *table, *json;
    tr__sizes ranks, bytes;
} predicting;

static tr_collective_kind find_kind(const char *name)
{
    int kind = 0;
    while (strcmp(tr__tune_kind_name(kind), name) != 0) kind++; /* the options have only names that exist */
    return (tr_collective_kind)kind;
}

static void print_time(double seconds)
{
    if (seconds < 1e-3) printf(" %9.1f us", seconds * 1e6);
    else if (seconds < 1) printf(" %9.2f ms", seconds * 1e3);
    else printf(" %10.2f s", seconds);
}

static tr_status print_predictions(const predicting *p, cJSON *results)
{
    printf("%s by %s\n%8s", p->kind, p->algorithm ? p->algorithm : "the table's algorithms", "ranks");
    for (int i = 0; i < p->bytes.count; i++) printf(" %10lld B", (long long)p->bytes.bytes[i]);
    for (int r = 0; r < p->ranks.count; r++) {
        printf("\n%8lld", (long long)p->ranks.bytes[r]);
        for (int i = 0; i < p->bytes.count; i++) {
            double seconds;
            TRY(tr_predict(find_kind(p->kind), p->algorithm, (int)p->ranks.bytes[r], p->bytes.bytes[i], NULL, &seconds));
            print_time(seconds);
            cJSON *result = cJSON_CreateObject();
            TR__ADD_NUMBERS(result, {"ranks", (double)p->ranks.bytes[r]}, {"bytes", (double)p->bytes.bytes[i]},
                {"predicted_us", seconds * 1e6});
            cJSON_AddItemToArray(results, result);
            fflush(stdout);
        }
    }
    printf("\n");
    return TR_OK;
}

static int check(void *self)
{
    const predicting *p = self;
    for (int i = 0; i < p->ranks.count; i++)
        if (p->ranks.bytes[i] > RANKS_MOST)
            return TR__MISUSE("bench predict", "--ranks go to %d, not to %lld", RANKS_MOST, (long long)p->ranks.bytes[i]);
    return -1;
}

static int predict(void *self)
{
    const predicting *p = self;
    if (p->table) setenv("TRIREME_ALGORITHMS", p->table, 1);
    cJSON *o = tr__result_new(NULL, "predict/%s/%s", p->kind, p->algorithm ? p->algorithm : "table");
    if (print_predictions(p, cJSON_AddArrayToObject(o, "results")) == TR_OK) return tr__write_json("bench predict", o, p->json);
    cJSON_Delete(o);
    printf("\n");
    return tr__failed("bench predict");
}

int tr__bench_predict(int argc, char **argv)
{
    predicting p = {.kind = "all_reduce", .ranks = {6, {2, 8, 32, 128, 512, 4096}},
        .bytes = {5, {64, 4 << 10, 64 << 10, 1 << 20, 16 << 20}}};
    const tr__option options[] = {
        {"kind", 0, "NAME", "the collective",
            TR__CHOICE(&p.kind, "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter",
                "all_to_all", "barrier")},
        {"algorithm", 0, "NAME", "what it goes by, instead of what the table chooses",
            TR__CHOICE(&p.algorithm, "ring", "halving", "doubling", "tree", "direct")},
        {"ranks", 'n', "LIST", "numbers of ranks, such as 2,64,4096", TR__SIZES(&p.ranks)},
        {"bytes", 0, "LIST", "sizes, such as 64,4K,1M: what a rank gives (scatter, reduce_scatter, all_to_all: to each rank)",
            TR__SIZES(&p.bytes)},
        {"table", 0, "TABLE", "rows, or @FILE with rows, as for `trireme algorithms`; one of them says what the network is\n"
            "                            like", TR__TEXT(&p.table)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__OUTPUT(&p.json)},
        {0},
    };
    const tr__syntax syntax = {"bench predict", NULL,
        "Predicts what a collective costs on many ranks: it simulates the schedule of all ranks on the network of the table.\n"
        "`trireme bench tune` measures one and says how far predictions are off.",
        options, .operands = {0, 0}};
    return tr__bench_run(&(tr__bench_job){&syntax, NULL, check, predict, &p}, argc, argv);
}
