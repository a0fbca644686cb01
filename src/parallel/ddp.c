/*
 * DistributedDataParallel (Li et al., PyTorch Distributed, VLDB 2020): replicas of a module, one per rank, whose gradients
 * are averaged while backward is still under way.
 *
 * Gradients lie in arenas in shared memory, so a bucket is a range of an arena and is reduced where it is. Buckets go out in one
 * order on every rank, each as soon as it and those before it are complete; the last one at the end, by the thread that waits
 * for it. Where all of the graph is DDP's that costs nothing, as no backward is left beside it; else what is left does not hide it.
 *
 * The first backward shows in which order gradients become final. At its end rank 0's order becomes everybody's, buckets are cut
 * in that order, and only then go out: so each backward averages in the same buckets, and a training that is resumed gives
 * the same bits as one that never stopped. The arena stays as it is, as optimizers count on it: parameters that are final one
 * after the other and do not lie side by side are several buckets.
 *
 * An optimizer that steps in backward has no arena for gradients. A bucket takes memory from a small pool when the first of its
 * gradients is computed, these are written there, and when the ranks have averaged it the optimizer updates its parameters and the
 * memory goes to the next one. Buckets are updated in the order in which they go out, a parameter that a node has yet to read at the
 * backward's end. A bucket that would make it more than three buckets' bytes in flight waits for those before it, for a while: another
 * rank may have to wait for this one elsewhere before it sends them. In the first backward, whose order is not known, gradients are
 * tensors of their own, which its end copies into the buckets one by one.
 *
 * A distributed backward keeps its gradients in its context. They are copied into memory of the bucket's own, reduced there, and
 * put back into the context; what stands at the leaves is not touched.
 *
 * Every so many exchanges replicas are compared, at the end of a backward: all ranks meet there, however many forwards
 * each of them has made, and rank 0's buffers have just become everybody's. Nobody has stepped yet, or, where an optimizer steps in
 * backward, everybody has.
 *
 * The tags of a backward's collectives carry a digest of which parameters are frozen: a rank that has frozen others than the rest is a
 * mismatch there and then, of 127 in 128 such differences; the comparison of replicas finds the others.
 *
 * A rank whose backward fails breaks the group, or the others would wait for its buckets: they get TR_PEER, which names
 * it and the reason.
 */
#include "base/clock.h"
#include "base/given.h"
#include "base/hash.h"
#include "comm/control.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/ddp.h"
#include "parallel/ddp_buckets.h"
#include "parallel/ddp_compress.h"
#include "parallel/fully_shard.h"
#include "parallel/replicas.h"
#include "parallel/same_model.h"

#include <trireme/parallel.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The group's time limit, or what the backward has left. */
static int time_left_ms(const tr_group *group, const tr__gradient_sink *sink)
{
    int64_t left = sink && sink->deadline_ns ? (sink->deadline_ns - tr__now_ns()) / 1000000 : INT32_MAX;
    int limit = tr__group_timeout_ms(group);
    return left > limit ? limit : left > 1 ? (int)left : 1;
}

/* A digest of which parameters are frozen, as a variant of the calls that exchange them; 0: none is. */
static int frozen_variant(const tr__ddp *d)
{
    uint64_t digest = TR__HASH_BEGIN;
    bool any = false;
    for (int i = 0; i < d->n_params; i++) {
        if (d->params[i].leaf->requires_grad) continue;
        digest = tr__hash(digest, &i, sizeof i);
        any = true;
    }
    return any ? 1 + (int)(digest % (TR__VARIANTS - 1)) : 0;
}

/* ---- During backward ------------------------------------------------------------------------------------------------- */

/* A parameter's place in memory of its bucket's own. */
static tr_tensor *place_of(const tr__bucket *b, const tr_tensor *memory, const tr_tensor *leaf)
{
    return tr__tensor_view(memory, leaf->shape, NULL, memory->offset + tr__arena_slot_of(leaf)->offset - b->begin);
}

static tr_status copy_out(const tr__ddp *d, const tr__bucket *b, const tr__gradient_sink *sink)
{
    for (int i = b->first; i < b->last; i++) {
        TR_SCOPE;
        tr_tensor *leaf = d->order[i]->leaf;
        if (!leaf->requires_grad) continue;
        TR__TRY(sink->put(sink->user, leaf, place_of(b, b->copy, leaf)));
        TR__TRY(sink->complete(sink->user, leaf));
    }
    return TR_OK;
}

static bool any_of(const tr__ddp *d, const tr__bucket *b, bool (*is)(const tr_tensor *leaf))
{
    bool any = false;
    for (int i = b->first; i < b->last; i++) any |= is(d->order[i]->leaf);
    return any;
}

/* What is frozen is not exchanged, but where it shares a bucket with others. */
static bool learns(const tr_tensor *leaf)
{
    return leaf->requires_grad;
}

static bool is_outside_arena(const tr_tensor *leaf)
{
    return !tr__arena_has_place(leaf);
}

/* ---- Gradients that are used up ------------------------------------------------------------------------------------- */

static tr_dtype dtype_of(const tr__bucket *b)
{
    return b->arena->parameters->dtype;
}

static double bytes_of(const tr__bucket *b)
{
    return (double)(b->end - b->begin) * (double)tr_dtype_size(dtype_of(b));
}

static void give_back(tr__ddp *d, tr__bucket *b)
{
    if (b->lent) tr__bucket_pool_give(&d->pool, b->lent);
    b->lent = NULL;
}

/* The averages go to the optimizer that steps in backward, or where its gradients stay at the moment to the leaf's own tensor. */
static tr_status use_up(tr__ddp *d, tr__bucket *b)
{
    for (int i = b->first; i < b->last; i++) {
        TR_SCOPE;
        tr_tensor *leaf = d->order[i]->leaf;
        if (!leaf->requires_grad) continue;
        if (leaf->leaf->consumer) TR__TRY(leaf->leaf->consumer->consume(leaf->leaf->consumer));
        else TR__TRY(tr_copy_into(leaf->leaf->grad, place_of(b, b->lent, leaf)));
    }
    give_back(d, b);
    return TR_OK;
}

static void forget_given(tr__bucket *b)
{
    tr__unref(b->given.gradients);
    b->given = (tr_ddp_bucket){0};
}

/* Ends the oldest bucket that is on its way, when it is averaged. */
static tr_status end_bucket(tr__ddp *d)
{
    tr__bucket *b = &d->buckets[d->ended++];
    tr_status status = b->work ? tr_wait(b->work) : TR_OK;
    tr_release(b->work);
    b->work = NULL;
    if (status == TR_OK && b->given.gradients && d->hook.finish) {
        TR_SCOPE;
        status = d->hook.finish(&b->given, d->hook.user);
    }
    forget_given(b);
    TR__TRY(status);
    return b->lent ? use_up(d, b) : TR_OK;
}

enum { IN_FLIGHT = 3 }; /* buckets of the usual size that have memory at a time, unless their gradients come in another order */

/* Can the oldest bucket on its way be ended, now or soon? Not while a node has yet to read one of its parameters. */
static bool comes_back(tr__ddp *d, bool soon)
{
    enum { SOON_MS = 500 };
    const tr__bucket *b = &d->buckets[d->ended];
    if (d->ended == d->next_bucket || (b->lent && any_of(d, b, tr__is_saved))) return false;
    if (!b->work || tr_work_done(b->work)) return true;
    if (!soon || d->hurries) return false;
    TR__KEEP_ERROR; /* the one who ends it tells of its failure */
    (void)!tr_wait_for(b->work, SOON_MS);
    d->hurries = !tr_work_done(b->work);
    return !d->hurries;
}

static tr_status take_memory(tr__ddp *d, tr__bucket *b)
{
    double in_flight = bytes_of(b);
    for (int i = d->ended; i < d->next_bucket; i++) in_flight += d->buckets[i].lent ? bytes_of(&d->buckets[i]) : 0;
    while (in_flight > IN_FLIGHT * d->bucket_bytes && comes_back(d, true)) {
        in_flight -= d->buckets[d->ended].lent ? bytes_of(&d->buckets[d->ended]) : 0;
        TR__TRY(end_bucket(d));
    }
    tr_tensor *memory = tr__bucket_pool_take(&d->pool, dtype_of(b), tr__device_of(b->arena->parameters), b->end - b->begin);
    TR__TRY(tr_status_of(memory));
    b->lent = memory;
    return TR_OK;
}

/* While the order is being learned gradients are tensors of their own. */
static tr_status lend(tr__grad_averager *averager)
{
    const tr__ddp_param *p = (tr__ddp_param *)(void *)averager;
    if (!p->ddp->n_buckets) return TR_OK;
    TR_SCOPE;
    tr__bucket *b = &p->ddp->buckets[p->bucket];
    if (!b->lent) TR__TRY(take_memory(p->ddp, b));
    tr_tensor *place = place_of(b, b->lent, p->leaf);
    TR__TRY(tr_status_of(place));
    p->leaf->leaf->grad = tr_keep(place);
    return TR_OK;
}

/* Puts a gradient that is elsewhere, or has not been computed, into its bucket. Afterwards leaf->grad of a parameter that is to be
 * stepped in backward is its place there. */
static tr_status bring(const tr__bucket *b, tr_tensor *t)
{
    TR_SCOPE;
    tr__leaf *leaf = t->leaf;
    tr_tensor *place = place_of(b, b->lent, t);
    TR__TRY(tr_status_of(place));
    if (!t->requires_grad) return tr_fill(place, 0);
    bool there = leaf->grad && leaf->grad->storage == place->storage && leaf->grad->offset == place->offset;
    if (!leaf->has_grad) TR__TRY(tr_fill(place, 0));
    else if (!there) TR__TRY(tr_copy_into(place, leaf->grad));
    leaf->has_grad = true;
    if (there || (leaf->grad && !leaf->consumer)) return TR_OK;
    tr__unref(leaf->grad);
    leaf->grad = tr_keep(leaf->consumer ? place : tr_empty(t->shape, .dtype = t->dtype, .device = tr__device_of(t)));
    return tr_status_of(leaf->grad);
}

/* ---- Going out --------------------------------------------------------------------------------------------------------- */

/* What of a bucket is to be averaged, from *offset of *memory: its range of the arena; where its gradients have no place there,
 * memory of the pool; of a detached backward, the bucket's copy of the context's gradients. What took no part counts as a gradient
 * of zero; what is frozen has none, though its place is exchanged. */
static tr_status gather_bucket(tr__ddp *d, tr__bucket *b, const tr__gradient_sink *sink, const tr_tensor **memory, int64_t *offset)
{
    *offset = 0;
    if (!sink && any_of(d, b, is_outside_arena)) {
        if (!b->lent) TR__TRY(take_memory(d, b));
        for (int i = b->first; i < b->last; i++) TR__TRY(bring(b, d->order[i]->leaf));
        *memory = b->lent;
        return TR_OK;
    }
    give_back(d, b); /* lent to a backward that failed before its first gradient was final */
    if (!sink) {
        const tr_tensor *gradients = b->arena->gradients;
        for (int i = b->first; i < b->last; i++) {
            const tr_tensor *leaf = d->order[i]->leaf;
            TR__TRY(leaf->requires_grad ? tr__arena_zero_missing(leaf) : tr_fill(leaf->leaf->grad, 0));
        }
        *memory = gradients;
        *offset = b->begin;
        return TR_OK;
    }
    if (!b->copy) {
        tr_device device = tr__device_of(b->arena->parameters);
        b->copy = tr_keep(tr_zeros(TR_SHAPE(b->end - b->begin), .dtype = dtype_of(b), .device = device,
            .shared = device.kind == TR_CPU));
    }
    TR__TRY(tr_status_of(b->copy));
    for (int i = b->first; i < b->last; i++) {
        tr_tensor *leaf = d->order[i]->leaf, *grad = sink->get(sink->user, leaf), *place = place_of(b, b->copy, leaf);
        TR__TRY(grad ? tr_copy_into(place, grad) : tr_fill(place, 0.0));
    }
    *memory = b->copy;
    return TR_OK;
}

/* A bucket is complete on this rank: the hook sends it, or has exchanged it when it returns. */
static tr_status start_hook(const tr__ddp *d, tr__bucket *b, const tr_tensor *memory, int64_t offset)
{
    tr_tensor *gradients = tr__tensor_view(memory, TR_SHAPE(b->end - b->begin), NULL, memory->offset + offset);
    TR__TRY(tr_status_of(gradients));
    b->given = (tr_ddp_bucket){.group = d->group, .index = (int)(b - d->buckets), .count = d->n_buckets,
        .gradients = tr_keep(gradients), .timeout_ms = time_left_ms(d->group, tr__backward_sink(d->running))};
    tr_work *work = NULL;
    TR__TRY(d->hook.start(&b->given, &work, d->hook.user));
    TR__TRY(tr_status_of(work));
    b->work = tr_keep(work);
    return TR_OK;
}

/* The last bucket is reduced by this thread, which would wait for it: it need not wake another and be woken. */
static tr_status send_bucket(tr__ddp *d)
{
    TR_SCOPE;
    tr__bucket *b = &d->buckets[d->next_bucket];
    if (!any_of(d, b, learns)) {
        d->next_bucket++;
        return TR_OK;
    }
    const tr__gradient_sink *sink = tr__backward_sink(d->running);
    const tr_tensor *memory = NULL;
    int64_t offset = 0;
    TR__TRY(gather_bucket(d, b, sink, &memory, &offset)); /* may end those before it */
    for (int i = b->first; i < b->last && d->measures && !sink; i++) {
        const tr_tensor *leaf = d->order[i]->leaf;
        if (leaf->requires_grad) TR__TRY(tr__squares_add(leaf->leaf->grad, &d->squares));
    }
    d->next_bucket++;
    if (d->hook.start) return start_hook(d, b, memory, offset);
    void *from = (char *)tr__ptr(memory) + (size_t)offset * tr_dtype_size(memory->dtype);
    const tr_collective *average = TR__IN_PLACE(TR_ALL_REDUCE, from, b->end - b->begin,
        .dtype = dtype_of(b), .op = TR_AVG, .timeout_ms = time_left_ms(d->group, sink),
        .tag = tr__ddp_tag(d, (int)(b - d->buckets)), .device = tr__device_of(b->arena->parameters));
    if (b == &d->buckets[d->n_buckets - 1]) return tr_run_collective(d->group, average);
    tr_work *work = tr_post(d->group, average);
    TR__TRY(tr_status_of(work));
    b->work = tr_keep(work);
    return TR_OK;
}

static tr_status wait_all(tr__ddp *d)
{
    tr_status first = TR_OK;
    for (int i = 0; i < d->n_buckets; i++) {
        tr__bucket *b = &d->buckets[i];
        if (!b->work) continue;
        tr_status status = tr_wait(b->work);
        if (first == TR_OK) first = status;
        tr_release(b->work);
        b->work = NULL;
    }
    return first;
}

/* Rank 0's values become everybody's. Arenas may hold parameters of other modules too: one by one. */
static tr_status broadcast_all(const tr_tensor_list *list, tr_group *group)
{
    for (int i = 0; i < list->count; i++) {
        tr_status status = tr_broadcast_tensor(group, list->entries[i].tensor, 0);
        if (status != TR_OK)
            return tr__fail_context(status, "ddp: broadcasting \"%s\" %s from rank 0", list->entries[i].name,
                TR__TEXT(list->entries[i].tensor->shape));
    }
    return TR_OK;
}

/* Buckets with parameters that took no part go out too, so that all ranks send the same ones. Running statistics have seen
 * each rank's own samples: rank 0's are taken here, where all ranks meet, so that no later forward waits for others, and an
 * evaluation may run on one rank or on all. */
static tr_status exchange_rest(tr__ddp *d)
{
    const tr__gradient_sink *sink = tr__backward_sink(d->running);
    bool learns_order = !d->n_buckets;
    if (learns_order) TR__TRY(tr__ddp_learn_buckets(d, time_left_ms(d->group, sink)));
    while (d->next_bucket < d->n_buckets) {
        const tr__bucket *b = &d->buckets[d->next_bucket];
        TR__TRY(send_bucket(d));
        /* The tensors that gradients were in have gone, and the optimizer's state is touched for the first time now. */
        if (learns_order && b->lent) TR__TRY(tr_device_trim(tr__device_of(b->lent)));
    }
    while (d->ended < d->n_buckets) TR__TRY(end_bucket(d));
    for (int i = 0; i < d->n_buckets && sink; i++) TR__TRY(copy_out(d, &d->buckets[i], sink));
    return tr__buffers_broadcast(&d->buffers, d->group);
}

/* Are replicas to be compared after the exchange that comes? After the second one, too: where ranks step otherwise, as with other
 * rates, they differ from the first step on. */
static bool is_check_due(const tr__ddp *d)
{
    int64_t number = d->exchanged + 1;
    return d->check_every && (number == 2 || number % d->check_every == 0);
}

/* Where they differ all ranks fail alike, and the group is sound. */
static tr_status compare_replicas(tr__ddp *d, bool *differ)
{
    char words[128];
    snprintf(words, sizeof words, "ddp: replicas were alike in backward %" PRId64 " and differ in backward %" PRId64,
        d->agreed, d->exchanged);
    TR__TRY(tr__replicas_compare(d->group, d->state, words, differ));
    d->agreed = d->exchanged;
    return TR_OK;
}

/* With the reason that is this thread's latest failure. */
static void break_group(const tr__ddp *d, tr_status status)
{
    tr__fail_context(status, "ddp: backward failed");
    tr__group_give_up(d->group);
}

static void fail_all(tr__ddp *d, tr_status status)
{
    TR__KEEP_ERROR;
    break_group(d, status);
    (void)!wait_all(d);
}

/* Says in a mismatch whose calls tell of frozen parameters which of them are frozen here. */
static void explain_mismatch(const tr__ddp *d, tr_status status)
{
    if (status != TR_MISMATCH || !strstr(tr_error_message(), ", frozen set ")) return;
    int count = 0;
    const char *first = NULL;
    for (int i = 0; i < d->n_params; i++) {
        const tr_tensor *leaf = d->params[i].leaf;
        if (leaf->requires_grad) continue;
        count++;
        for (int k = 0; k < d->state->count && !first; k++)
            if (d->state->entries[k].tensor == leaf) first = d->state->entries[k].name;
    }
    tr__fail_context(status, "ddp: calls of another frozen set, or of none, come from ranks with other frozen parameters "
        "(tr_freeze()), which must be the same; here %d of %d are frozen%s%s%s", count, d->n_params,
        first ? ", the first is \"" : "", first ? first : "", first ? "\"" : "");
}

static tr_status backward_ends(void *user, tr_status status)
{
    tr__ddp *d = user;
    bool compares = is_check_due(d);
    if (status == TR_OK) status = exchange_rest(d);
    if (status == TR_OK) {
        d->exchanged++;
    } else {
        explain_mismatch(d, status);
        fail_all(d, status);
    }
    for (int i = 0; i < d->n_buckets; i++) {
        give_back(d, &d->buckets[i]);
        forget_given(&d->buckets[i]); /* of a backward that failed */
    }
    d->next_bucket = d->ended = 0;
    if (status != TR_OK || !compares) atomic_store(&d->running, NULL);
    return status;
}

/* After what steps in backward: which parameters a node has yet to read, and are updated last, is not the same on all ranks. */
static tr_status compare_ends(void *user, tr_status status)
{
    tr__ddp *d = user;
    bool differ = false;
    if (!atomic_load(&d->running)) return status; /* the exchange has failed */
    if (status == TR_OK) status = compare_replicas(d, &differ);
    if (status != TR_OK && !differ) fail_all(d, status);
    atomic_store(&d->running, NULL);
    return status;
}

/* A module whose exchange is done has nothing to do with what goes wrong elsewhere in the backward, or is in another one. */
static void stop_waiting(void *user, const tr__backward *backward, tr_status status)
{
    const tr__ddp *d = user;
    if (atomic_load(&d->running) == backward) break_group(d, status);
}

static tr_status backward_begins(tr__ddp *d, tr__backward *backward)
{
    tr__backward *none = NULL;
    if (!atomic_compare_exchange_strong(&d->running, &none, backward))
        return tr__fail(TR_STATE, "ddp: another backward through the module is under way: one at a time, in the same order on "
            "all ranks");
    /* Held, as the program may drop the module before a backward of others has ended. */
    tr_status status = tr__backward_on_end(backward, (tr__backward_callback){
            .finish = backward_ends, .cancel = stop_waiting, .user = d, .held = d->self});
    if (status != TR_OK) {
        atomic_store(&d->running, NULL);
        return status;
    }
    if (is_check_due(d))
        TR__TRY(tr__backward_on_end(backward, (tr__backward_callback){
            .finish = compare_ends, .cancel = stop_waiting, .user = d, .held = d->self, .last = true}));
    d->hurries = false;
    d->squares = 0;
    d->variant = frozen_variant(d);
    for (int i = 0; i < d->n_params; i++) d->params[i].final = false;
    d->n_final = 0;
    for (int i = 0; i < d->n_buckets; i++) {
        tr__bucket *b = &d->buckets[i];
        b->pending = 0;
        for (int k = b->first; k < b->last; k++) b->pending += d->order[k]->leaf->requires_grad;
    }
    return TR_OK;
}

static tr_status gradient_is_final(tr_tensor *leaf, tr_tensor *grad, void *user, tr__backward *backward)
{
    tr__ddp_param *p = user;
    tr__ddp *d = p->ddp;
    if (!leaf->requires_grad) return TR_OK;
    if (!grad) { /* nor will it be; what the module has begun ends with its backward */
        TR__KEEP_ERROR;
        if (!d->paused && !d->running) break_group(d, tr__kept_error->status);
        return TR_OK;
    }
    if (d->paused && leaf->leaf->consumer)
        return tr__fail(TR_UNSUPPORTED, "ddp: tr_ddp_sync() is off, and an optimizer steps parameter %s in backward "
            "(tr_step_in_backward()), which cannot wait for the gradients of later backwards", TR__TEXT(leaf->shape));
    if (d->paused) return TR_OK;
    if (tr__backward_sink(backward) || leaf->leaf->consumer) tr__backward_defer(backward);
    if (d->running != backward) TR__TRY(backward_begins(d, backward));
    if (p->final) return TR_OK;
    p->final = true;
    if (!d->n_buckets) {
        d->order[d->n_final++] = p;
        return TR_OK;
    }
    d->buckets[p->bucket].pending--;
    /* Those that are complete go out; the last one is left to the backward's end. */
    while (d->next_bucket < d->n_buckets - 1 && d->buckets[d->next_bucket].pending == 0)
        TR__TRY(send_bucket(d));
    /* What has come back is used up while the next ones are computed. */
    while (comes_back(d, false)) TR__TRY(end_bucket(d));
    return TR_OK;
}

/* ---- Building ---------------------------------------------------------------------------------------------------------- */

static tr_status take_parameters(tr__ddp *d, tr_module *module)
{
    tr_tensor_list *list = tr_parameters(module);
    TR__TRY(tr_status_of(list));
    TR__TRY(tr__gradients_stay("ddp", list, "call tr_step_in_backward() after tr_ddp()"));
    TR__TRY(tr__arena_build(list));
    d->params = calloc((size_t)list->count + 1, sizeof *d->params);
    d->order = calloc((size_t)list->count + 1, sizeof *d->order);
    d->buckets = calloc((size_t)list->count + 1, sizeof *d->buckets);
    if (!d->params || !d->order || !d->buckets) return tr__fail(TR_NO_MEMORY, "out of memory");
    for (int i = 0; i < list->count; i++) {
        tr_tensor *leaf = list->entries[i].tensor;
        int first = 0;
        while (list->entries[first].tensor->leaf->arena != leaf->leaf->arena) first++;
        const tr__arena_slot *slot = tr__arena_slot_of(leaf);
        int64_t end = slot->offset + (slot->count + TR__ARENA_ALIGN - 1) / TR__ARENA_ALIGN * TR__ARENA_ALIGN;
        d->params[d->n_params++] = (tr__ddp_param){.averager = {lend}, .ddp = d, .leaf = tr__ref(leaf), .hook = -1, .arena = first,
            .begin = slot->offset, .end = end};
    }
    for (int i = 0; i < list->count; i++) TR__TRY(tr__arena_share(list->entries[i].tensor->leaf->arena));
    return TR_OK;
}

static void release(void *state)
{
    tr__ddp *d = state;
    (void)!wait_all(d);
    for (int i = 0; i < d->n_params; i++) {
        tr_tensor *leaf = d->params[i].leaf;
        if (d->params[i].hook >= 0) {
            tr_grad_hook_remove(leaf, d->params[i].hook);
            atomic_fetch_sub(&leaf->leaf->averagers, 1);
            if (leaf->leaf->averager == &d->params[i].averager) leaf->leaf->averager = NULL;
        }
        tr__unref(leaf);
    }
    for (int i = 0; i < d->n_buckets; i++) {
        tr__unref(d->buckets[i].arena);
        tr__unref(d->buckets[i].copy);
        forget_given(&d->buckets[i]);
    }
    tr__bucket_pool_free(&d->pool);
    tr__bucket_pool_free(&d->compress.pool);
    free(d->compress.sent);
    free(d->params);
    free(d->order);
    free(d->buckets);
    tr_release(d->state);
    tr__buffers_release(&d->buffers);
    tr_release(d->group);
}

/* What of a state dict is no parameter. */
static tr_tensor_list *buffers_in(const tr_tensor_list *state, const tr_tensor_list *parameters)
{
    tr_tensor_list *buffers = tr_list_new();
    for (int i = 0; i < state->count; i++) {
        const char *name = state->entries[i].name;
        if (tr_list_find(parameters, name)) continue;
        if (tr_list_add(buffers, name, state->entries[i].tensor) != TR_OK) tr__object_break(buffers);
    }
    return buffers;
}

static tr_tensor *forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    return tr_forward_n(((tr__ddp *)self->state)->inner, inputs, n);
}

static tr_status forward_many(tr_module *self, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    return tr_forward_many(((tr__ddp *)self->state)->inner, inputs, n, outputs, self->n_outputs);
}

static const char *dtype_name(tr_dtype dtype)
{
    return tr_dtype_size(dtype) ? tr_dtype_name(dtype) : "no dtype";
}

static bool steps_in_backward(const tr_tensor_list *state)
{
    TR__KEEP_ERROR;
    return tr__gradients_stay("ddp", state, "") != TR_OK;
}

/* Buckets of other sizes would meet each other in backward, and so would one rank's check another's next bucket. The same tensors in
 * other modules (an activation, a dropout, heads) would learn what none of the ranks computes. */
static tr_status compare_ranks(const tr__ddp *d, const tr_ddp_options *o, double bucket_mb, const tr_tensor_list *state)
{
    tr__facts facts = {0};
    tr_status status = o->module ? tr_status_of(state) : tr__fail(TR_INVALID, "ddp: it takes a module and a group, not NULL");
    if (status == TR_OK) status = tr__shards_refuse("ddp", state);
    if (status != TR_OK) return tr__agree(d->group, "ddp", status, NULL);
    tr__facts_say(&facts, "modules_may_differ", "%s", o->modules_may_differ ? "on" : "off");
    tr__facts_number(&facts, "bucket_mb", bucket_mb);
    tr__facts_say(&facts, "check_every", "%" PRId64, d->check_every);
    tr__facts_say(&facts, "local_buffers", "%s", o->local_buffers ? "on" : "off");
    tr__facts_say(&facts, "compress", "%s", o->compress == TR_F32 ? "off" : dtype_name(o->compress));
    tr__facts_say(&facts, "hook", "%s", !o->hook ? "off" : o->hook->start ? "on" : "without .start");
    tr__facts_say(&facts, "steps in backward", "%s", steps_in_backward(state) ? "on" : "off");
    tr__tensors_say(state, &facts);
    if (!o->modules_may_differ) {
        const char *detail = o->module->detail;
        if (detail) tr__facts_say(&facts, "model", "%s (%s)", tr_module_name(o->module), detail);
        status = tr__parts_say(o->module, false, &facts);
    }
    return tr__agree_once(d->group, "ddp", status, &facts);
}

static tr_status check_options(const tr__ddp *d, const tr_ddp_options *o, double bucket_mb)
{
    if (!(bucket_mb > 0)) return tr__fail(TR_INVALID, "ddp: buckets of %g MiB: more than 0", bucket_mb);
    if (d->check_every < 0)
        return tr__fail(TR_INVALID, "ddp: .check_every is a number of backwards, 0 for none, not %" PRId64,
            d->check_every);
    if (o->compress != TR_F32 && o->compress != TR_BF16 && o->compress != TR_F16)
        return tr__fail(TR_INVALID, "ddp: gradients travel as TR_BF16 or TR_F16, or as they are (TR_F32); .compress is %s",
            dtype_name(o->compress));
    if (!o->hook) return TR_OK;
    if (o->compress != TR_F32) return tr__fail(TR_INVALID, "ddp: .compress is a hook of its own: give it or .hook, not both");
    return o->hook->start ? TR_OK : tr__fail(TR_INVALID, "ddp: .hook has no .start");
}

/* What this rank does by itself. */
static tr_status take_module(tr__ddp *d, const tr_ddp_options *o, tr_tensor_list *state)
{
    d->state = tr_keep(o->local_buffers ? tr_parameters(o->module) : state);
    TR__TRY(take_parameters(d, o->module));
    for (int i = 0; i < d->n_params; i++) {
        tr__ddp_param *p = &d->params[i];
        p->hook = tr__leaf_hook_add(p->leaf, gradient_is_final, p);
        if (p->hook < 0) return tr__fail(TR_NO_MEMORY, "out of memory");
        bool sole = atomic_fetch_add(&p->leaf->leaf->averagers, 1) == 0 && tr__device_of(p->leaf).kind == TR_CPU;
        if (sole) p->leaf->leaf->averager = &p->averager;
    }
    return o->local_buffers ? TR_OK : tr__buffers_gather(&d->buffers, buffers_in(state, tr_parameters(o->module)));
}

static tr_status build(tr__ddp *d, const tr_ddp_options *o)
{
    TR__TRY(tr_status_of(o->group));
    if (!o->group) return tr__fail(TR_INVALID, "ddp: it takes a module and a group, not NULL");
    d->group = tr_keep(o->group);
    double bucket_mb = TR__OR(o, bucket_mb, 25);
    d->check_every = tr__replicas_every(TR__OR(o, check_every, TR__CHECK_EVERY));
    tr_tensor_list *state = tr_state_dict(o->module);
    /* What is wrong on all ranks is found after this, so that nobody waits here for one that has failed. */
    TR__TRY(compare_ranks(d, o, bucket_mb, state));
    TR__TRY(check_options(d, o, bucket_mb));
    if (tr_world_size(o->group) == 1) return TR_OK;
    if (o->hook) d->hook = *o->hook;
    if (o->compress != TR_F32) d->hook = tr__ddp_compress_hook(d, o->compress);
    d->bucket_bytes = bucket_mb * (1 << 20);
    TR__TRY(tr__agree(o->group, "ddp", take_module(d, o, state), NULL));
    TR__TRY(broadcast_all(state, o->group));
    d->number = tr__group_next_module(o->group);
    return TR_OK;
}

tr_module *tr_ddp_with(const tr_ddp_options *options)
{
    tr_ddp_options o = {0}; /* of an older program the later fields are 0 (docs/abi.md) */
    memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    TR__CALLED_AT(o.file, o.line);
    tr_module *module = tr_module_new("ddp", sizeof(tr__ddp), forward);
    if (tr_status_of(module) != TR_OK) return module;
    tr_module_on_release(module, release);
    tr__ddp *d = module->state;
    d->self = module;
    TR_SCOPE;
    if (build(d, &o) != TR_OK) {
        tr__object_break(module);
        return module;
    }
    d->inner = tr_module_add(module, "", o.module);
    if (d->inner->many) {
        module->many = forward_many;
        module->n_outputs = d->inner->n_outputs;
    }
    return module;
}

bool tr__ddp_exchange(tr_module *module, bool on)
{
    if (module->forward != forward) return true;
    tr__ddp *d = module->state;
    bool was = !d->paused;
    d->paused = !on;
    return was;
}

const void *tr__ddp_group(const tr_module *module)
{
    const tr__ddp *d = module->forward == forward ? module->state : NULL;
    return d && tr_world_size(d->group) > 1 ? d->group : NULL;
}

void tr__ddp_measure(tr_module *module, bool on)
{
    ((tr__ddp *)module->state)->measures = on;
}

double tr__ddp_own_squares(const tr_module *module)
{
    return ((const tr__ddp *)module->state)->squares;
}

tr_status tr_ddp_sync(tr_module *module, bool on)
{
    TR__TRY(tr_status_of(module));
    if (!module || module->forward != forward)
        return tr__fail(TR_INVALID, "ddp_sync: it takes a module that tr_ddp() returned, not \"%s\"", tr_module_name(module));
    tr__ddp_exchange(module, on);
    return TR_OK;
}
