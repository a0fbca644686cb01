#include "comm/backend/checks.h"

#include "base/object.h"
#include "comm/collective.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 96 };

struct tr__checks {
    tr__member member;
    void *state;          /* of the backend */
    void *beside;         /* state of the native group that carries the signatures; NULL: the backend does */
    char name[NAME];      /* of that group */
    uint64_t exchanges;   /* so far */
    tr__signature *calls; /* [world_size] */
    int64_t *counts;      /* [world_size, 2, world_size]: what each rank gives to each, and expects of each */
};

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

static tr_status exchange(tr__checks *k, const tr_collective *c, const void *in, void *out, size_t bytes, uint64_t sequence)
{
    tr_collective gather = {.size = sizeof gather, .kind = TR_ALL_GATHER, .in = in, .out = out, .count = (int64_t)bytes,
        .dtype = TR_U8, .timeout_ms = c->timeout_ms, .file = c->file, .line = c->line};
    tr_status status = k->beside ? tr__native_backend.run(k->beside, &gather, ++k->exchanges)
                                 : k->member.backend->run(k->state, &gather, sequence);
    if (status == TR_OK) return TR_OK;
    char text[TR__CALL_TEXT];
    return tr__fail_context(status, "%s, comparing the ranks' calls", tr__collective_text(c, k->member.world_size, sequence, text));
}

static tr_status compare_calls(tr__checks *k, const tr_collective *c, uint64_t sequence)
{
    tr__signature *mine = &k->calls[k->member.rank];
    tr__signature_of(c, k->member.world_size, sequence, mine);
    TR__TRY(exchange(k, c, mine, k->calls, sizeof *mine, sequence));
    for (int rank = 1; rank < k->member.world_size; rank++)
        if (!tr__signature_agrees(&k->calls[0], &k->calls[rank]))
            return tr__call_mismatch(k->member.group, 0, &k->calls[0], rank, &k->calls[rank]);
    return TR_OK;
}

static tr_status compare_block(const tr__checks *k, const tr_collective *c, int giver, int getter)
{
    size_t world = (size_t)k->member.world_size;
    const int64_t *give = k->counts + 2 * world * (size_t)giver, *get = k->counts + 2 * world * (size_t)getter + world;
    int64_t given = c->kind == TR_GATHER_V ? k->calls[giver].count : give[getter];
    int64_t expected = c->kind == TR_SCATTER_V ? k->calls[getter].count : get[giver];
    if (given == expected) return TR_OK;
    return tr__block_mismatch(k->member.group, giver, &k->calls[giver], given, getter, &k->calls[getter], expected);
}

/* Of the kinds where one rank says how much it gives, and another how much it expects. */
static tr_status compare_blocks(tr__checks *k, const tr_collective *c, uint64_t sequence)
{
    size_t world = (size_t)k->member.world_size, row = world * sizeof *k->counts;
    int64_t *mine = k->counts + 2 * world * (size_t)k->member.rank;
    memset(mine, 0, 2 * row);
    if (c->in_counts) memcpy(mine, c->in_counts, row);
    if (c->out_counts) memcpy(mine + world, c->out_counts, row);
    TR__TRY(exchange(k, c, mine, k->counts, 2 * row, sequence));
    for (int giver = 0; giver < k->member.world_size; giver++)
        for (int getter = 0; getter < k->member.world_size; getter++)
            if (tr__collective_gives(c, giver) && tr__collective_gets(c, getter))
                TR__TRY(compare_block(k, c, giver, getter));
    return TR_OK;
}

/* ---- Making and ending ------------------------------------------------------------------------------------------- */

tr_status tr__checks_compare(tr__checks *k, const tr_collective *c, uint64_t sequence)
{
    tr_status status = compare_calls(k, c, sequence);
    if (status == TR_OK && tr__kind_of(c->kind)->variable && c->kind != TR_ALL_GATHER_V) status = compare_blocks(k, c, sequence);
    if (status == TR_MISMATCH || (status != TR_OK && k->beside)) k->member.backend->give_up(k->state);
    return status;
}

/* Where the backend's data are not the host's. */
static tr_status join_beside(tr__checks *k)
{
    tr__member beside = k->member;
    if (k->member.backend->memory == TR_CPU) return TR_OK;
    snprintf(k->name, sizeof k->name, "%s+calls", k->member.group);
    beside.backend = &tr__native_backend;
    beside.group = k->name;
    beside.transport = beside.algorithms = NULL;
    return tr__native_backend.join(&beside, &k->beside);
}

tr_status tr__checks_new(const tr__member *member, void *state, tr__checks **made)
{
    size_t world = (size_t)member->world_size;
    tr__checks *k = calloc(1, sizeof *k);
    if (k) *k = (tr__checks){.member = *member, .state = state};
    if (k) k->calls = calloc(world, sizeof *k->calls);
    if (k) k->counts = calloc(world * 2 * world, sizeof *k->counts);
    tr_status status = k && k->calls && k->counts
        ? join_beside(k)
        : tr__fail(TR_NO_MEMORY, "group '%s': no memory for the calls of %d ranks", member->group, member->world_size);
    if (status == TR_OK)
        *made = k;
    else
        tr__checks_free(k);
    return status;
}

void tr__checks_give_up(tr__checks *k)
{
    if (k->beside) tr__native_backend.give_up(k->beside);
}

void tr__checks_free(tr__checks *k)
{
    if (!k) return;
    if (k->beside) tr__native_backend.leave(k->beside);
    free(k->calls);
    free(k->counts);
    free(k);
}
