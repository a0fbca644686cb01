/*
 * Running a collective. Every rank writes its call into its control segment and reads everyone else's before it touches
 * data: that is where a mismatch shows, where buffers are found, and where messages of up to TR__SHM_INLINE bytes
 * travel, so that a small all_reduce is one round of flags.
 */
#include "comm/algo/reduce.h"
#include "comm/transport/shm.h"

#include <string.h>

static tr__shm_slot *slot_of(tr__shm_control *control, uint64_t sequence)
{
    return &control->slots[sequence & 1];
}

static tr__shm_word entered(uint64_t sequence)
{
    return sequence & 1 ? TR__SHM_ENTERED_ODD : TR__SHM_ENTERED_EVEN;
}

static bool is_inline(const tr__shm_call *call)
{
    return call->bytes <= TR__SHM_INLINE;
}

static unsigned char *inline_data(tr__shm_slot *slot, const tr__shm_call *call)
{
    return call->bytes <= TR__SHM_TINY ? slot->tiny : slot->data;
}

/* Does this rank have data to give in this call? */
static bool gives(const tr__shm *t, const tr_collective *c)
{
    return c->kind == TR_ALL_REDUCE || (c->kind == TR_BROADCAST && c->root == t->rank);
}

/* ---- Entering ---------------------------------------------------------------------------------------------------- */

static void write_signature(tr__shm_slot *slot, const tr_collective *c, bool shared)
{
    uint32_t what = (uint32_t)c->kind | (uint32_t)c->dtype << 8 | (uint32_t)c->op << 16 | (shared ? TR__SHM_SHARED : 0);
    atomic_store_explicit(&slot->what, what, memory_order_relaxed);
    atomic_store_explicit(&slot->root, c->root, memory_order_relaxed);
    atomic_store_explicit(&slot->count, c->count, memory_order_relaxed);
    atomic_store_explicit(&slot->line, c->line, memory_order_relaxed);
    uint64_t words[TR__PLACE_TEXT / 8] = {0};
    const char *file = tr__place_text(c->file);
    size_t used = strlen(file);
    memcpy(words, file, used);
    for (size_t i = 0; i <= used / 8; i++) atomic_store_explicit(&slot->file[i], words[i], memory_order_relaxed);
}

/* Large data: where the peers can map it, or its first chunk into the staging area. */
static tr_status offer(tr__shm *t, tr__shm_call *call, tr__shm_slot *slot)
{
    const tr_collective *c = call->c;
    bool in = false, out = true;
    TR__TRY(tr__shm_show(t, c->in, call->bytes, &slot->in, &in));
    if (c->kind == TR_ALL_REDUCE && in) {
        slot->out = slot->in;
        if (c->out != c->in) TR__TRY(tr__shm_show(t, c->out, call->bytes, &slot->out, &out));
    }
    call->shared = in && out;
    return call->shared ? TR_OK : tr__shm_fill_first(t, call);
}

static tr_status enter(tr__shm *t, tr__shm_call *call)
{
    tr__shm_slot *slot = slot_of(t->control, call->sequence);
    const tr_collective *c = call->c;
    if (gives(t, c) && call->bytes > 0) {
        if (is_inline(call))
            memcpy(inline_data(slot, call), c->in, call->bytes);
        else
            TR__TRY(offer(t, call, slot));
    }
    write_signature(slot, c, call->shared);
    tr__shm_signal(t, entered(call->sequence), call->sequence);
    return tr__shm_await(t, call, entered(call->sequence), call->sequence, -1);
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

static bool same_call(const tr__shm_slot *a, const tr__shm_slot *b)
{
    uint32_t what_a = atomic_load_explicit(&a->what, memory_order_relaxed);
    uint32_t what_b = atomic_load_explicit(&b->what, memory_order_relaxed);
    return ((what_a ^ what_b) & TR__SHM_WHAT) == 0 &&
           atomic_load_explicit(&a->root, memory_order_relaxed) ==
               atomic_load_explicit(&b->root, memory_order_relaxed) &&
           atomic_load_explicit(&a->count, memory_order_relaxed) ==
               atomic_load_explicit(&b->count, memory_order_relaxed);
}

/* The same words on every rank: the first rank that differs from rank 0. */
static tr_status mismatch(const tr__shm *t, uint64_t sequence)
{
    tr__shm_slot *zero = slot_of(t->peers[0].control, sequence);
    int other = 1;
    while (other < t->world_size - 1 && same_call(zero, slot_of(t->peers[other].control, sequence))) other++;
    tr__signature a, b;
    char call_a[TR__CALL_TEXT], call_b[TR__CALL_TEXT];
    tr__shm_signature(zero, sequence, &a);
    tr__shm_signature(slot_of(t->peers[other].control, sequence), sequence, &b);
    return tr__fail(TR_MISMATCH, "group '%s': the ranks made different calls: rank 0 %s, rank %d %s", t->group,
        tr__signature_text(&a, call_a), other, tr__signature_text(&b, call_b));
}

/* Also finds out whether the data can be mapped: that of all ranks, or of the broadcast's root. */
static tr_status compare(tr__shm *t, tr__shm_call *call, bool *shared)
{
    tr__shm_slot *own = slot_of(t->control, call->sequence);
    *shared = true;
    for (int rank = 0; rank < t->world_size; rank++) {
        tr__shm_slot *slot = slot_of(t->peers[rank].control, call->sequence);
        if (!same_call(own, slot)) return mismatch(t, call->sequence);
        bool counts = call->c->kind == TR_ALL_REDUCE || rank == call->c->root;
        if (counts && !(atomic_load_explicit(&slot->what, memory_order_relaxed) & TR__SHM_SHARED)) *shared = false;
    }
    return TR_OK;
}

/* ---- Moving data ------------------------------------------------------------------------------------------------- */

static void reduce_inline(tr__shm *t, tr__shm_call *call)
{
    for (int rank = 0; rank < t->world_size; rank++)
        t->in[rank] = inline_data(slot_of(t->peers[rank].control, call->sequence), call);
    void *out = call->c->out;
    tr__reduce_find(call->c->dtype, call->c->op)(t->in, t->world_size, &out, 1, call->c->count);
}

static void broadcast_inline(tr__shm *t, tr__shm_call *call)
{
    memmove(call->c->out, inline_data(slot_of(t->peers[call->c->root].control, call->sequence), call), call->bytes);
}

static tr_status move(tr__shm *t, tr__shm_call *call, bool shared)
{
    if (call->bytes == 0) return TR_OK;
    if (call->c->kind == TR_ALL_REDUCE) {
        if (!is_inline(call)) return shared ? tr__shm_reduce_shared(t, call) : tr__shm_reduce_staged(t, call);
        reduce_inline(t, call);
    } else {
        if (!is_inline(call)) return shared ? tr__shm_broadcast_shared(t, call) : tr__shm_broadcast_staged(t, call);
        broadcast_inline(t, call);
    }
    return TR_OK;
}

static tr_status run(tr__shm *t, tr__shm_call *call)
{
    bool shared;
    TR__TRY(enter(t, call));
    TR__TRY(compare(t, call, &shared));
    TR__TRY(move(t, call, shared));
    atomic_store_explicit(&t->control->finished, call->sequence, memory_order_release);
    return TR_OK;
}

tr_status tr__shm_run(tr__shm *t, const tr_collective *collective, uint64_t sequence)
{
    /* The peers have read the line that we are about to write: it takes a while to come back. */
    __builtin_prefetch(slot_of(t->control, sequence), 1);
    tr__shm_call call = {.c = collective, .sequence = sequence, .timeout_ms = collective->timeout_ms};
    call.bytes = tr__collective_bytes(collective);
    tr_status status;
    atomic_store(&t->busy, true); /* before `broken` is read: see tr__shm_segment_went() */
    if (atomic_load(&t->broken)) {
        status = tr__fail_context(tr__shm_failure(t), "group '%s' is broken", t->group);
    } else {
        status = run(t, &call);
        if (status != TR_OK) status = tr__shm_break(t);
    }
    atomic_store(&t->busy, false);
    if (atomic_load(&t->has_gone)) tr__shm_sweep(t);
    return status;
}
