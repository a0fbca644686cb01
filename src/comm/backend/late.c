#include "comm/backend/late.h"

#include "base/clock.h"
#include "base/log.h"
#include "net/store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY = 200, NAMED = 6 };

void tr__late_start(tr__late *l, const tr__member *member, long generation, uint64_t sequence, int timeout_ms)
{
    int64_t half = timeout_ms / 2 < member->report_ms ? timeout_ms / 2 : member->report_ms;
    *l = (tr__late){.member = member, .generation = generation, .sequence = sequence, .begin = tr__now_ns()};
    l->deadline = l->begin + (int64_t)timeout_ms * 1000000;
    l->note = l->begin + half * 1000000;
    l->look = l->begin + (int64_t)timeout_ms * 875000; /* before the first to time out can take the store along */
}

static char *key_of(const tr__member *m, long generation, int rank, char key[KEY])
{
    snprintf(key, KEY, "group/%s/waits/%ld/%d", m->group, generation, rank);
    return key;
}

/* What fails with the store here is nobody's concern. */
static void note(const tr__late *l)
{
    char key[KEY], number[24];
    int length = snprintf(number, sizeof number, "%" PRIu64, l->sequence);
    tr_status status = tr_store_set(l->member->store, key_of(l->member, l->generation, l->member->rank, key), number,
        (size_t)length);
    (void)status;
    tr__log(TR_LOG_WARN, "group '%s': rank %d has waited %.3g s in collective #%" PRIu64, l->member->group,
        l->member->rank, (double)(tr__now_ns() - l->begin) / 1e9, l->sequence);
}

static bool is_late(const tr__late *l, int rank)
{
    char key[KEY];
    void *value = NULL;
    size_t bytes;
    tr_status status = tr__store_get(l->member->store, key_of(l->member, l->generation, rank, key), 0, &value, &bytes);
    bool late = status == TR_TIMEOUT || (status == TR_OK && strtoull(value, NULL, 10) < l->sequence);
    free(value);
    return late;
}

static void look(tr__late *l)
{
    char list[NAMED * 12] = "";
    int late = 0, used = 0;
    for (int rank = 0; rank < l->member->world_size; rank++) {
        if (rank == l->member->rank || !is_late(l, rank)) continue;
        if (late++ < NAMED)
            used += snprintf(list + used, sizeof list - (size_t)used, "%s%d", used ? ", " : "", rank);
    }
    if (late > NAMED)
        snprintf(l->names, sizeof l->names, "ranks %s and %d more", list, late - NAMED);
    else if (late)
        snprintf(l->names, sizeof l->names, "%s %s", late == 1 ? "rank" : "ranks", list);
}

tr_status tr__late_check(tr__late *l, int64_t now)
{
    if (now > l->deadline)
        return tr__fail(TR_TIMEOUT, "rank %d waited %.3g s for %s", l->member->rank, (double)(now - l->begin) / 1e9,
            l->names[0] ? l->names : "the transfer, and no rank is known to be late");
    if (!l->member->store) return TR_OK;
    if (!l->noted && now > l->note) {
        l->noted = true;
        note(l);
    }
    if (!l->looked && now > l->look) {
        l->looked = true;
        look(l);
    }
    return TR_OK;
}
