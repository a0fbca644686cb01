/*
 * Running a collective. Every rank writes its call into its control block and reads everyone else's before it touches
 * data: that is where a mismatch shows, where buffers are found, and where messages of up to TR__SHM_INLINE bytes
 * travel, so that a small all_reduce is one round of flags.
 */
#include "base/clock.h"
#include "comm/transport/shm.h"
#include "comm/transport/tcp.h"

#include <string.h>

static tr__shm_word entered(uint64_t sequence)
{
    return sequence & 1 ? TR__SHM_ENTERED_ODD : TR__SHM_ENTERED_EVEN;
}

char *tr__shm_inline(const tr__shm *t, const tr__shm_call *call, int rank)
{
    tr__shm_slot *slot = tr__shm_slot_of(t, call, rank);
    return (char *)(call->bytes <= TR__SHM_TINY && !call->kind->variable ? slot->tiny : slot->data);
}

bool tr__shm_publishes(const tr_collective *c, int rank)
{
    return tr__collective_gives(c, rank) && !(tr__kind_of(c->kind)->to_root && !tr__kind_of(c->kind)->reduces &&
                                                 rank == c->root);
}

/* Bytes of the input, of blocks of different lengths to the end of the last: the same on all ranks, but for the _V kinds,
 * where what a rank gives itself does not count. */
static size_t input_bytes(const tr__shm *t, const tr_collective *c)
{
    int64_t elements = c->count;
    const tr__kind *kind = tr__kind_of(c->kind);
    if (kind->reduces && c->in_counts) {
        elements = 0;
        for (int rank = 0; rank < t->world_size; rank++)
            if (tr__collective_in(c, rank).end > elements) elements = tr__collective_in(c, rank).end;
    } else if (kind->variable && kind->in_blocks) {
        elements = 0;
        for (int rank = 0; c->in_counts && rank < t->world_size; rank++)
            if (rank != t->rank) elements += c->in_counts[rank];
    } else if (kind->in_blocks) {
        elements *= t->world_size;
    }
    return (size_t)elements * tr_dtype_size(c->dtype);
}

/* Blocks of different lengths that are to be folded need not follow each other. */
static bool goes_inline(const tr__shm_call *call)
{
    return call->bytes <= TR__SHM_INLINE && !(call->kind->reduces && call->c->in_counts);
}

/* ---- Entering ---------------------------------------------------------------------------------------------------- */

/* Of a _V kind: what the others must know of our blocks. Inline they follow each other in the slot. */
static void write_blocks(tr__shm *t, const tr__shm_call *call, tr__shm_slot *slot)
{
    const tr_collective *c = call->c;
    tr__shm_block *table = tr__shm_table(t->control, t->world_size, call->sequence);
    int64_t at = 0;
    atomic_store_explicit(&slot->layout, 0, memory_order_relaxed);
    slot->longest = c->count;
    if (c->kind == TR_ALL_GATHER_V) {
        tr__signature s;
        tr__signature_of(c, t->world_size, call->sequence, &s);
        atomic_store_explicit(&slot->layout, s.layout, memory_order_relaxed);
    }
    if (!call->kind->in_blocks) return;
    slot->longest = 0;
    for (int rank = 0; c->in_counts && rank < t->world_size; rank++) {
        tr__range in = tr__collective_in(c, rank);
        int64_t count = tr__length(in);
        table[rank] = (tr__shm_block){call->way & TR__SHM_INLINED ? at : in.begin, count};
        if (rank == t->rank) continue;
        at += count;
        if (count > slot->longest) slot->longest = count;
    }
}

static void copy_inline(tr__shm *t, const tr__shm_call *call)
{
    const tr_collective *c = call->c;
    char *to = tr__shm_inline(t, call, t->rank);
    if (!c->in_counts) {
        memcpy(to, c->in, call->bytes);
        return;
    }
    for (int rank = 0; rank < t->world_size; rank++) {
        tr__range in = tr__collective_in(c, rank);
        size_t bytes = (size_t)tr__length(in) * call->size;
        if (!bytes || rank == t->rank) continue;
        memcpy(to, (const char *)c->in + (size_t)in.begin * call->size, bytes);
        to += bytes;
    }
}

/* Shall the others reach our private buffers where they lie? Ranks that take turns on a core share all its caches. */
static bool crosses(tr__shm *t, tr__shm_call *call)
{
    if (!t->endpoint->crosses || t->crowded || call->bytes < TR__SHM_CROSS) return false;
    int size = 0;
    for (size_t bytes = call->bytes / TR__SHM_CROSS; bytes > 1 && size < TR__SHM_CROSS_SIZES - 1; bytes /= 2) size++;
    call->tuning = &t->tuning[call->kind->reduces][size];
    return tr__shm_tuning_prefers(call->tuning);
}

static tr__shm_place own_address(const void *buffer)
{
    return (tr__shm_place){.offset = (uintptr_t)buffer};
}

/* Large data: where the peers can reach it, if they can. */
static tr_status show(tr__shm *t, tr__shm_call *call, tr__shm_slot *slot)
{
    const tr_collective *c = call->c;
    size_t bytes = call->bytes; /* to the end of the last block */
    bool in = false, out = true, in_place = c->in == c->out,
         writes = call->kind->reduces && !call->kind->in_blocks && tr__collective_gets(c, t->rank);
    for (int rank = 0; c->in_counts && rank < t->world_size; rank++) {
        size_t end = (size_t)tr__collective_in(c, rank).end * call->size;
        if (end > bytes) bytes = end;
    }
    if (c->kind == TR_ALL_TO_ALL && in_place) return TR_OK; /* what others shall read is written to */
    TR__TRY(tr__shm_show(t, c->in, bytes, &slot->in, &in));
    if (writes && !in_place) TR__TRY(tr__shm_show(t, c->out, call->bytes, &slot->out, &out));
    if (!in) tr__shm_note_private(t, c->in, bytes);
    if (!out) tr__shm_note_private(t, c->out, call->bytes);
    if (!(in && out) && crosses(t, call)) {
        if (!in) slot->in = own_address(c->in);
        if (!out) slot->out = own_address(c->out);
        in = out = true;
    }
    if (writes && in_place) slot->out = slot->in;
    if (in && out) call->way = TR__SHM_PLACED;
    return TR_OK;
}

/* Makes our input readable for the others; of what must be staged the first chunk goes ahead of the call. */
static tr_status publish(tr__shm *t, tr__shm_call *call, tr__shm_slot *slot)
{
    call->way = TR__SHM_INLINED;
    if (goes_inline(call)) {
        if (call->bytes) copy_inline(t, call);
        return TR_OK;
    }
    call->way = 0;
    TR__TRY(show(t, call, slot));
    if (call->way) return TR_OK;
    call->filled = true;
    TR__TRY(tr__shm_stage_make(t));
    if (!call->kind->reduces) return tr__shm_pull_fill(t, call, 0);
    tr__shm_fold_fill(t, call, 0);
    return TR_OK;
}

static tr_status enter(tr__shm *t, tr__shm_call *call)
{
    tr__shm_slot *slot = tr__shm_slot_of(t, call, t->rank);
    if (tr__shm_publishes(call->c, t->rank)) TR__TRY(publish(t, call, slot));
    if (call->kind->variable) write_blocks(t, call, slot);
    tr__call_write(&slot->call, slot->file, sizeof slot->file, call->whole ? call->whole->call : call->c, call->way);
    if (call->whole) {
        atomic_store_explicit(&slot->whole, call->whole->sequence, memory_order_relaxed);
        atomic_store_explicit(&slot->whole_layout, call->whole->layout, memory_order_relaxed);
    }
    tr__shm_signal(t, entered(call->sequence), call->sequence);
    return tr__shm_await(t, call, entered(call->sequence), call->sequence, -1);
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

static uint64_t read_word(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* What slots say of a call beyond its signature: of a part, in which of the ranks' calls it is. */
static bool same_layout(const tr__shm_slot *a, const tr__shm_slot *b, bool parts, bool variable)
{
    if (parts) return read_word(&a->whole) == read_word(&b->whole) && read_word(&a->whole_layout) == read_word(&b->whole_layout);
    return !variable || read_word(&a->layout) == read_word(&b->layout);
}

static bool same_call(const tr__shm_slot *a, const tr__shm_slot *b, bool parts)
{
    uint32_t what_a = atomic_load_explicit(&a->call.what, memory_order_relaxed);
    uint32_t what_b = atomic_load_explicit(&b->call.what, memory_order_relaxed);
    if (((what_a ^ what_b) & TR__SHM_WHAT) != 0 || atomic_load_explicit(&a->call.rank, memory_order_relaxed) !=
                                                       atomic_load_explicit(&b->call.rank, memory_order_relaxed))
        return false;
    if (atomic_load_explicit(&a->call.tag, memory_order_relaxed) != atomic_load_explicit(&b->call.tag, memory_order_relaxed))
        return false;
    bool exists = (what_a & 0xff) < TR_COLLECTIVE_COUNT; /* both slots may be peers': their kind is not trusted as an index */
    bool variable = exists && tr__kind_of(what_a & 0xff)->variable;
    if (!variable && atomic_load_explicit(&a->call.count, memory_order_relaxed) !=
                         atomic_load_explicit(&b->call.count, memory_order_relaxed))
        return false;
    return same_layout(a, b, parts, variable);
}

static void read_signature(const tr__shm_slot *slot, uint64_t sequence, bool part, tr__signature *s)
{
    tr__shm_signature(slot, sequence, s);
    if (s->kind == TR_ALL_GATHER_V) s->layout = read_word(part ? &slot->whole_layout : &slot->layout);
}

/* A rank has made a call that needed nobody here, and is in a later one than others. It knows what it called instead of
 * what they are in, so it tells them. */
static tr_status mismatch_of_numbers(tr__shm *t, const tr__shm_call *call)
{
    tr__shm_slot *own = tr__shm_slot_of(t, call, t->rank);
    bool behind = false;
    for (int rank = 0; rank < t->world_size; rank++) {
        const tr__shm_slot *slot = tr__shm_slot_of(t, call, rank);
        if (read_word(&slot->whole) < read_word(&own->whole)) {
            tr__signature theirs;
            read_signature(slot, call->sequence, true, &theirs);
            return tr__call_mismatch(t->group, t->peers[rank].rank, &theirs, t->peers[t->rank].rank,
                tr__tcp_own_call(t->tcp, &theirs));
        }
        behind |= read_word(&slot->whole) > read_word(&own->whole);
    }
    return behind ? tr__shm_await_reason(t, call->timeout_ms) : TR_OK;
}

/* The same words on every rank: the first rank that differs from rank 0. But a rank that comes late to a call that the
 * others gave up differs only from what they wanted then: it learns why they did. */
static tr_status mismatch(tr__shm *t, const tr__shm_call *call)
{
    uint64_t sequence = call->sequence;
    bool part = call->whole;
    TR__TRY(tr__shm_check_peers(t, call->timeout_ms));
    if (part) TR__TRY(mismatch_of_numbers(t, call));
    tr__shm_slot *zero = tr__shm_slot_of(t, call, 0);
    int other = 1;
    while (other < t->world_size - 1 && same_call(zero, tr__shm_slot_of(t, call, other), part)) other++;
    tr__signature a, b;
    read_signature(zero, sequence, part, &a);
    read_signature(tr__shm_slot_of(t, call, other), sequence, part, &b);
    return tr__call_mismatch(t->group, t->peers[0].rank, &a, t->peers[other].rank, &b);
}

/* Also finds out whether the buffers of all ranks can be reached where they lie. */
static tr_status compare(tr__shm *t, tr__shm_call *call, bool *placed)
{
    tr__shm_slot *own = tr__shm_slot_of(t, call, t->rank);
    *placed = true;
    for (int rank = 0; rank < t->world_size; rank++) {
        tr__shm_slot *slot = tr__shm_slot_of(t, call, rank);
        if (!same_call(own, slot, call->whole)) return mismatch(t, call);
        if (!(atomic_load_explicit(&slot->call.what, memory_order_relaxed) & TR__SHM_PLACED)) *placed = false;
    }
    return TR_OK;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static tr_status move(tr__shm *t, tr__shm_call *call, bool placed)
{
    if (call->c->kind == TR_BARRIER) return TR_OK;
    if (!call->kind->reduces) return tr__shm_pull(t, call);
    if (!goes_inline(call)) return placed ? tr__shm_fold_placed(t, call) : tr__shm_fold_staged(t, call);
    if (call->bytes) tr__shm_fold_inline(t, call);
    return TR_OK;
}

static tr_status run(tr__shm *t, tr__shm_call *call)
{
    bool placed = false;
    tr_status status = enter(t, call);
    if (status == TR_OK) status = compare(t, call, &placed);
    int64_t began = call->tuning ? tr__now_ns() : 0;
    if (status == TR_OK) status = move(t, call, placed);
    if (status == TR_OK && call->crossed) status = tr__shm_cross_check(t, call);
    if (status != TR_OK)
        tr__shm_withdraw(t, call);
    else if (call->tuning)
        tr__shm_tuning_note(call->tuning, call->kind->reduces ? placed : call->way == TR__SHM_PLACED, tr__now_ns() - began);
    return status;
}

static tr__shm_call call_of(const tr__shm *t, const tr_collective *c, const tr__shm_whole *whole, uint64_t sequence)
{
    return (tr__shm_call){.c = c, .whole = whole, .kind = tr__kind_of(c->kind), .sequence = sequence,
        .timeout_ms = c->timeout_ms, .size = tr_dtype_size(c->dtype), .bytes = input_bytes(t, c)};
}

tr_status tr__shm_run_part(tr__shm *t, const tr_collective *part, const tr__shm_whole *whole, uint64_t sequence)
{
    tr__shm_call call = call_of(t, part, whole, sequence);
    tr__shm_use(t); /* as below; what is under way when the group breaks may still end well */
    tr_status status = run(t, &call);
    tr__shm_idle(t);
    return status;
}

tr_status tr__shm_run(tr__shm *t, const tr_collective *collective, uint64_t sequence)
{
    /* The peers have read the line that we are about to write: it takes a while to come back. */
    __builtin_prefetch(&t->control->slots[sequence & 1], 1);
    tr__shm_call call = call_of(t, collective, NULL, sequence);
    tr_status status;
    tr__shm_use(t); /* before the failure is looked at: what a peer takes back after it stays mapped */
    status = tr__failure_check(t->failure, t->group);
    if (status == TR_OK) {
        status = run(t, &call);
        if (status == TR_OK)
            tr__shm_finish(t, sequence);
        else
            status = tr__failure_break(t->failure);
    }
    tr__shm_idle(t);
    return status;
}
