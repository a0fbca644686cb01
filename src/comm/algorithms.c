/* The public face of algorithms: the table, and predictions. */
#include "base/object.h"
#include "comm/algo/choice.h"
#include "comm/algo/cost.h"
#include "comm/collective.h"

#include <stdlib.h>
#include <string.h>

char *tr_algorithms(const char *first)
{
    tr__choice_table table;
    if (tr__choice_defaults(&table, first ? first : getenv("TRIREME_ALGORITHMS")) != TR_OK) return NULL;
    char *text = malloc(TR__CHOICES_TEXT);
    if (!text) tr__fail(TR_NO_MEMORY, "no memory for the table of algorithms");
    return text ? tr__choice_text(&table, text) : NULL;
}

static tr_status check_prediction(tr_collective_kind kind, int world_size, int64_t bytes, const tr_network *network)
{
    if ((unsigned)kind >= TR_COLLECTIVE_COUNT || tr__kind_of(kind)->variable || tr__kind_of(kind)->point_to_point)
        return tr__fail(TR_UNSUPPORTED, "tr_predict: there is no prediction for kind %d", (int)kind);
    if (world_size < 1 || world_size > 1 << 20 || bytes < 0 || bytes > INT64_MAX / world_size)
        return tr__fail(TR_INVALID, "tr_predict: %d ranks or %lld bytes are out of bounds", world_size, (long long)bytes);
    if (!network || !(network->gbytes_per_s > 0) || !(network->latency_us >= 0) || !(network->overhead_us >= 0))
        return tr__fail(TR_INVALID, "tr_predict: a network has a bandwidth above 0, and no negative times");
    return TR_OK;
}

static tr_status find_algorithm(tr_collective_kind kind, const char *name, int world_size, int64_t bytes,
    tr__algorithm *algorithm)
{
    tr__choice_table table;
    if (!name) {
        TR__TRY(tr__choice_defaults(&table, NULL));
        *algorithm = tr__choose(&table, kind, world_size, bytes);
        return TR_OK;
    }
    for (int a = 0; a < TR__ALGORITHM_COUNT; a++) {
        *algorithm = a;
        if (strcmp(tr__algorithm_name(a), name) == 0 && tr__schedule_exists(kind, a)) return TR_OK;
    }
    return tr__fail(TR_NOT_FOUND, "tr_predict: there is no %s by '%s'", tr__kind_name(kind), name);
}

tr_status tr_predict(tr_collective_kind kind, const char *algorithm, int world_size, int64_t bytes,
    const tr_network *network, double *seconds)
{
    enum { PIECE = 64 << 10, SEGMENT = 4 << 20 }; /* as in transport/tcp_flow.h and tcp_run.c */
    tr__schedule s = {.kind = kind, .world_size = world_size, .count = bytes, .segment = SEGMENT};
    TR__TRY(check_prediction(kind, world_size, bytes, network));
    TR__TRY(find_algorithm(kind, algorithm, world_size, bytes, &s.algorithm));
    tr__network n = {.latency = network->latency_us * 1e-6, .overhead = network->overhead_us * 1e-6,
        .bandwidth = network->gbytes_per_s * 1e9, .piece = PIECE};
    return tr__cost(&s, 1, &n, seconds);
}
