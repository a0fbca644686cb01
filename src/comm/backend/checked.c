/*
 * The checking backend stands before one whose messages are not ours, and so carry no signature (MPI, NCCL). Before each
 * collective the ranks exchange signatures by an all_gather, which match each other even when the calls do not. Calls that
 * differ become an error on every rank, in the same words, before any data has moved. A send and a recv concern two ranks
 * only, and pass unchecked.
 *
 * Over MPI that is an all_gather of MPI's. Data of NCCL are on GPUs, and signatures are the host's: they go over a native group
 * of the same ranks, which also hears at once of a rank that dies or fails, and breaks NCCL's group with the reason.
 */
#include "base/object.h"
#include "comm/backend/backend.h"
#include "comm/collective.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 96 };

typedef struct checked {
    tr__member member;
    void *state;          /* of the backend behind */
    void *beside;         /* state of the native group that carries the signatures; NULL: the backend behind does */
    char name[NAME];      /* of that group */
    uint64_t exchanges;   /* so far */
    tr__signature *calls; /* [world_size] */
    int64_t *counts;      /* [world_size, 2, world_size]: what each rank gives to each, and expects of each */
} checked;

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

static tr_status exchange(checked *k, const tr_collective *c, const void *in, void *out, size_t bytes, uint64_t sequence)
{
    tr_collective gather = {.size = sizeof gather, .kind = TR_ALL_GATHER, .in = in, .out = out, .count = (int64_t)bytes,
        .dtype = TR_U8, .timeout_ms = c->timeout_ms, .file = c->file, .line = c->line};
    tr_status status = k->beside ? tr__native_backend.run(k->beside, &gather, ++k->exchanges)
                                 : k->member.behind->run(k->state, &gather, sequence);
    if (status == TR_OK) return TR_OK;
    tr__signature call;
    char text[TR__CALL_TEXT];
    tr__signature_of(c, k->member.world_size, sequence, &call);
    return tr__fail_context(status, "%s, comparing the ranks' calls", tr__signature_text(&call, text));
}

static tr_status compare_calls(checked *k, const tr_collective *c, uint64_t sequence)
{
    tr__signature *mine = &k->calls[k->member.rank];
    tr__signature_of(c, k->member.world_size, sequence, mine);
    TR__TRY(exchange(k, c, mine, k->calls, sizeof *mine, sequence));
    for (int rank = 1; rank < k->member.world_size; rank++)
        if (!tr__signature_agrees(&k->calls[0], &k->calls[rank]))
            return tr__call_mismatch(k->member.group, 0, &k->calls[0], rank, &k->calls[rank]);
    return TR_OK;
}

static tr_status compare_block(const checked *k, const tr_collective *c, int giver, int getter)
{
    size_t world = (size_t)k->member.world_size;
    const int64_t *give = k->counts + 2 * world * (size_t)giver, *get = k->counts + 2 * world * (size_t)getter + world;
    int64_t given = c->kind == TR_GATHER_V ? k->calls[giver].count : give[getter];
    int64_t expected = c->kind == TR_SCATTER_V ? k->calls[getter].count : get[giver];
    if (given == expected) return TR_OK;
    return tr__block_mismatch(k->member.group, giver, &k->calls[giver], given, getter, &k->calls[getter], expected);
}

/* Of the kinds where one rank says how much it gives, and another how much it expects. */
static tr_status compare_blocks(checked *k, const tr_collective *c, uint64_t sequence)
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

static tr_status compare(checked *k, const tr_collective *c, uint64_t sequence)
{
    TR__TRY(compare_calls(k, c, sequence));
    return tr__kind_of(c->kind)->variable && c->kind != TR_ALL_GATHER_V ? compare_blocks(k, c, sequence) : TR_OK;
}

/* ---- The backend ------------------------------------------------------------------------------------------------- */

static void drop(checked *k)
{
    free(k->calls);
    free(k->counts);
    free(k);
}

/* The backend behind, and the native group beside it where its data are not the host's. */
static tr_status join_both(checked *k, const tr__member *member)
{
    TR__TRY(member->behind->join(member, &k->state));
    if (member->behind->memory == TR_CPU || member->world_size == 1) return TR_OK;
    tr__member beside = *member;
    snprintf(k->name, sizeof k->name, "%s+calls", member->group);
    beside.group = k->name;
    beside.transport = beside.algorithms = NULL;
    beside.behind = NULL;
    tr_status status = tr__native_backend.join(&beside, &k->beside);
    if (status == TR_OK) return TR_OK;
    tr__error *why = tr__error_take();
    member->behind->leave(k->state);
    tr__fail_stored(why);
    tr__error_unref(why);
    return status;
}

static tr_status checked_join(const tr__member *member, void **state)
{
    checked *k = calloc(1, sizeof *k);
    size_t world = (size_t)member->world_size;
    if (k) k->calls = calloc(world, sizeof *k->calls);
    if (k) k->counts = calloc(world * 2 * world, sizeof *k->counts);
    tr_status status = k && k->calls && k->counts
        ? join_both(k, member)
        : tr__fail(TR_NO_MEMORY, "group '%s': no memory for the calls of %d ranks", member->group, member->world_size);
    if (status == TR_OK) {
        k->member = *member;
        *state = k;
    } else if (k) {
        drop(k);
    }
    return status;
}

static tr_status checked_run(void *state, const tr_collective *c, uint64_t sequence)
{
    checked *k = state;
    tr_status status = k->member.world_size > 1 ? compare(k, c, sequence) : TR_OK;
    if (status == TR_OK) return k->member.behind->run(k->state, c, sequence);
    if (status == TR_MISMATCH || k->beside) k->member.behind->give_up(k->state);
    return status;
}

static void checked_start(void *state, tr_work *work, bool driven)
{
    checked *k = state;
    k->member.behind->start(k->state, work, driven);
}

static void checked_drive(void *state, const tr_work *work)
{
    checked *k = state;
    k->member.behind->drive(k->state, work);
}

static bool checked_pending(void *state)
{
    checked *k = state;
    return k->member.behind->pending(k->state);
}

static void checked_give_up(void *state)
{
    checked *k = state;
    k->member.behind->give_up(k->state);
    if (k->beside) tr__native_backend.give_up(k->beside);
}

static tr_status checked_split(void *state, int color, int key, int timeout_ms, void **part)
{
    checked *k = state;
    *part = NULL;
    return k->member.behind->split ? k->member.behind->split(k->state, color, key, timeout_ms, part) : TR_OK;
}

static void checked_drop_part(void *state, void *part)
{
    checked *k = state;
    k->member.behind->drop_part(k->state, part);
}

static void checked_leave(void *state)
{
    checked *k = state;
    k->member.behind->leave(k->state);
    if (k->beside) tr__native_backend.leave(k->beside);
    drop(k);
}

const tr__backend tr__checked_backend = {
    .name = "checked",
    .join = checked_join,
    .run = checked_run,
    .start = checked_start,
    .drive = checked_drive,
    .pending = checked_pending,
    .give_up = checked_give_up,
    .split = checked_split,
    .drop_part = checked_drop_part,
    .leave = checked_leave,
};
