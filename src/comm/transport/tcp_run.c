/*
 * Running a collective: the steps of its schedule, as many under way at once as the window holds. Transfers to one peer
 * go out in the order of the steps, and so do those from one peer come in; beyond that each goes as fast as it can.
 */
#include "comm/transport/tcp_flow.h"

#include "base/thread.h"

#include <sched.h>
#include <string.h>

enum {
    SPINS = 150,             /* turns in vain before sleeping: some 50 us */
    QUICK_SPINS = 10,       /* of those, how many keep the core to themselves; the others let a peer have it */
    CROWDED_SPINS = 20,      /* when there are more ranks than cores */
    SEGMENT_BYTES = 4 << 20, /* that wait in scratch memory to be folded */
};

/* ---- Which algorithm --------------------------------------------------------------------------------------------- */

/* Can partial results be sent on in the type itself? Not where all ranks' data must be seen in a wider one. */
static bool folds_in_parts(const tr_collective *c)
{
    bool narrow_float = c->dtype == TR_F16 || c->dtype == TR_BF16, pick = c->op == TR_MIN || c->op == TR_MAX;
    bool narrow_average = c->op == TR_AVG && (c->dtype == TR_I32 || c->dtype == TR_U8);
    return pick || (!narrow_float && !narrow_average);
}

static tr__algorithm choose(const tr__tcp *t, const tr_collective *c, int members)
{
    if (tr__kind_of(c->kind)->reduces && !folds_in_parts(c)) return TR__DIRECT;
    int64_t count = c->count, all = 0;
    if (c->kind == TR_ALL_GATHER_V) { /* ranks give different amounts, but must choose alike */
        for (int member = 0; member < members; member++) all += c->out_counts[member];
        count = all / members;
    }
    return tr__choose(&t->choices, c->kind, members, count * (int64_t)tr_dtype_size(c->dtype));
}

/* ---- Beginning --------------------------------------------------------------------------------------------------- */

/* All blocks of an all_to_all in place are overwritten in an order of their own, so they are sent from a copy. */
static tr_status find_memory(tr__tcp_call *call)
{
    tr__tcp *t = call->t;
    const tr_collective *c = call->c;
    bool copies = c->kind == TR_ALL_TO_ALL && c->in == c->out;
    size_t scratch = (size_t)tr__schedule_scratch(&call->schedule) * call->element;
    size_t copied = copies ? tr__collective_bytes(c) * (size_t)call->schedule.world_size : 0;
    if (tr__memory_need(&t->scratch, scratch + copied) != TR_OK)
        return tr__fail_context(TR_NO_MEMORY, "group '%s'", t->group);
    call->memory[TR__IN] = (char *)c->in;
    call->memory[TR__OUT] = c->out;
    call->memory[TR__SCRATCH] = t->scratch.at;
    if (!copied) return TR_OK;
    memcpy(t->scratch.at + scratch, c->in, copied);
    call->memory[TR__IN] = t->scratch.at + scratch;
    return TR_OK;
}

static tr_status begin(tr__tcp_call *call)
{
    tr__tcp *t = call->t;
    const tr_collective *c = call->c;
    call->element = tr_dtype_size(c->dtype);
    int members = call->subset ? call->subset->count : t->world_size;
    call->schedule = (tr__schedule){.kind = c->kind, .algorithm = choose(t, c, members),
        .rank = call->subset ? call->subset->own : t->rank, .world_size = members, .root = c->root, .count = c->count,
        .in_counts = c->in_counts, .in_offsets = c->in_offsets, .out_counts = c->out_counts,
        .out_offsets = c->out_offsets, .segment = SEGMENT_BYTES / (int64_t)call->element};
    call->steps = tr__schedule_steps(&call->schedule);
    /* A barrier has no data that would keep its rounds apart. */
    call->window = c->kind == TR_BARRIER ? 1 : TR__TCP_WINDOW;
    if (tr__kind_of(c->kind)->reduces) {
        call->fold = tr__reduce_find(c->dtype, c->op == TR_AVG ? TR_SUM : c->op);
        call->fold_all = tr__reduce_find(c->dtype, c->op);
    }
    return find_memory(call);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static tr__memory memory_of(const tr__tcp_call *call, tr__part part)
{
    size_t bytes = (size_t)tr__length(part.range) * call->element;
    if (!bytes) return (tr__memory){NULL, 0};
    return (tr__memory){call->memory[part.buffer] + (size_t)part.range.begin * call->element, bytes};
}

/* The rank that a schedule's step means; -1: none, or one whom others serve. */
static int partner(const tr__tcp_call *call, int member)
{
    const tr__tcp_subset *subset = call->subset;
    if (member < 0 || !subset) return member;
    int rank = subset->ranks[member];
    return subset->host[rank] == subset->host[call->t->rank] ? -1 : rank;
}

static void load(tr__tcp_call *call)
{
    tr__tcp_slot *s = tr__tcp_slot_at(call, call->loaded);
    tr__step step = tr__schedule_step(&call->schedule, call->loaded);
    step.to = partner(call, step.to);
    step.from = partner(call, step.from);
    *s = (tr__tcp_slot){.step = step};
    s->in.memory = memory_of(call, step.receive);
    s->own = memory_of(call, step.own);
    if (step.action == TR_SCHEDULE_EXCHANGE) {
        s->out = (tr__tcp_transfer){.open = step.to >= 0, .memory = memory_of(call, step.send)};
        s->in.open = step.from >= 0;
    } else {
        s->local = step.action != TR_SCHEDULE_FINISH || call->c->op == TR_AVG; /* the others are finished as they are */
        tr__part others = step.send;
        others.range.end += (call->schedule.world_size - 2) * step.stride;
        if (step.action == TR_SCHEDULE_FOLD) s->others = memory_of(call, others);
    }
    call->loaded++;
}

/* Is this step's transfer to (from) a peer the first that is open? Later ones wait for it. */
static bool first_in_turn(const tr__tcp_call *call, uint64_t *turn)
{
    if (*turn == call->turn) return false;
    *turn = call->turn;
    return true;
}

static tr_status advance(tr__tcp_call *call, int64_t step, bool *moved)
{
    tr__tcp_peer *peers = call->t->peers;
    tr__tcp_slot *s = tr__tcp_slot_at(call, step);
    if (s->local) tr__tcp_act(call, step, moved);
    if (s->out.open && first_in_turn(call, &peers[s->step.to].sent_turn)) TR__TRY(tr__tcp_push(call, step, moved));
    if (s->in.open && first_in_turn(call, &peers[s->step.from].received_turn))
        TR__TRY(tr__tcp_pull(call, step, moved));
    return TR_OK;
}

/* One turn: everything that can move does, once. */
static tr_status take_turn(tr__tcp_call *call, bool *moved)
{
    call->turn++;
    call->blocked = 0;
    while (call->loaded < call->steps && call->loaded < call->first + call->window) load(call);
    for (int64_t step = call->first; step < call->loaded; step++) TR__TRY(advance(call, step, moved));
    while (call->first < call->loaded) {
        const tr__tcp_slot *s = tr__tcp_slot_at(call, call->first);
        if (s->out.open || s->in.open || s->local) break;
        call->first++;
    }
    return TR_OK;
}

/* Others have gone on to a call that failed: what they had sent before still counts. */
static tr_status finish_without_waiting(tr__tcp_call *call)
{
    for (bool moved = true; moved && call->first < call->steps;) {
        moved = false;
        if (take_turn(call, &moved) != TR_OK) break;
    }
    return call->first < call->steps ? tr__failure_tell(call->t->failure) : TR_OK;
}

static tr_status carry_out(tr__tcp_call *call)
{
    tr__tcp *t = call->t;
    for (int idle = 0; call->first < call->steps;) {
        bool moved = false;
        TR__TRY(take_turn(call, &moved));
        if (moved) {
            idle = 0;
            tr__tcp_go_on(t, &call->patience);
        } else if (++idle <= (t->crowded ? CROWDED_SPINS : SPINS)) {
            if (t->crowded || idle > QUICK_SPINS) sched_yield();
        } else {
            tr_status status = tr__tcp_wait(t, &call->patience, call->c->timeout_ms, call->ranks, call->blocked);
            if (status != TR_OK) return tr__failure_there(t->failure) ? finish_without_waiting(call) : status;
        }
    }
    return TR_OK;
}

/* ---- The collective ---------------------------------------------------------------------------------------------- */

/* Under the lock. A rank that waits long announces its call only once, so a rank that comes late with another call of that number
 * must find the mismatch itself. */
static tr__tcp_mismatch find_mismatch(const tr__tcp *t, const tr__signature *call)
{
    bool possible = call->sequence && t->ahead >= call->sequence;
    for (int rank = 0; possible && rank < t->world_size; rank++) {
        const tr__signature *theirs = &t->peers[rank].numbered;
        if (theirs->sequence == call->sequence && !tr__signature_agrees(call, theirs))
            return (tr__tcp_mismatch){true, rank, *call, *theirs};
    }
    return (tr__tcp_mismatch){false};
}

tr_status tr__tcp_enter(tr__tcp *t, const tr_collective *collective, uint64_t sequence)
{
    TR__TRY(tr__failure_check(t->failure, t->group));
    tr__signature call;
    tr__signature_of(collective, t->world_size, sequence, &call);
    pthread_mutex_lock(&t->lock);
    tr__tcp_mismatch mismatch = find_mismatch(t, &call);
    if (!mismatch.there) {
        t->last = t->past[sequence % TR__TCP_PAST] = call;
        t->has_last = t->running = true;
    }
    pthread_mutex_unlock(&t->lock);
    if (!mismatch.there) return TR_OK;
    if (tr__tcp_check_peers(t) == TR_OK) tr__call_mismatch(t->group, t->rank, &mismatch.ours, mismatch.rank, &mismatch.theirs);
    return tr__failure_break(t->failure);
}

void tr__tcp_exit(tr__tcp *t)
{
    TR__LOCKED(&t->lock);
    t->running = false;
}

tr_status tr__tcp_run_part(tr__tcp *t, const tr_collective *part, const tr__tcp_subset *subset)
{
    tr__tcp_call call = {.t = t, .c = part, .subset = subset, .turn = t->turn};
    tr_status status = begin(&call);
    if (status == TR_OK) status = carry_out(&call);
    t->turn = call.turn;
    return status;
}

tr_status tr__tcp_run(tr__tcp *t, const tr_collective *collective, uint64_t sequence)
{
    TR__TRY(tr__tcp_enter(t, collective, sequence));
    tr_status status = tr__tcp_run_part(t, collective, NULL);
    if (status != TR_OK) status = tr__failure_break(t->failure);
    tr__tcp_exit(t);
    return status;
}
