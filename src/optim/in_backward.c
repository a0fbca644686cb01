/*
 * Optimizers that step in backward (Lv et al. 2023, "Full Parameter Fine-tuning for Large Language Models with Limited
 * Resources"). A parameter is updated when
 *
 *   its gradient is final     all uses of it in the graph have added to it, and the hooks have run
 *   nobody has saved it       no node that has yet to run reads it, nor a stretch that is to be recomputed; else it waits, at
 *                             most to the end of the backward
 *
 * and its gradient goes back to the allocator. The large gradient of a linear layer's weight is never there as a whole
 * where no other is to be added to it: backward makes some of its rows, and these are updated. The arena has no gradients
 * then (autograd/arena.h).
 *
 * Of parameters in tr_ddp() the gradient is final when the ranks have averaged it: DDP takes memory for buckets of gradients that are
 * used up from a small pool, hands them over in one order on all ranks, and so all ranks make the same updates.
 *
 * A trainer measures the gradients of some steps on their way. One that is not finite ends the updates of its backward, which
 * goes on without them. Where it comes by rows, those of the blocks before have been updated: to look at all of them first would
 * take the memory that rows save, or their arithmetic twice.
 */
#include "autograd/engine.h"
#include "optim/optimizer.h"

#include <math.h>
#include <stdlib.h>

/* A parameter. */
typedef struct place {
    tr__grad_consumer consumer; /* first: the leaf points to it */
    tr__in_backward *all;
    int at;          /* in the optimizer's parameters */
    bool waits;      /* its gradient is final, but a node has yet to read the parameter */
    double squares;  /* of its gradient's elements, the sum; 0: not measured */
} place;

struct tr__in_backward {
    tr_optimizer *optimizer;
    _Atomic(tr__backward *) running; /* NULL: none is under way */
    bool done;   /* a backward has succeeded since the last tr_step() */
    bool failed; /* the latest backward failed, with parameters updated */
    bool paused; /* gradients stay */
    bool measures;
    int stopped_at; /* the parameter whose gradient was not finite; -1: none in the latest backward */
    int64_t rows; /* of it, if its gradient came by rows: so many had been updated */
    int updated; /* in the latest backward, also those of which only rows are */
    int waiting;
    place places[]; /* [optimizer->count] */
};

static tr_tensor *leaf_of(const place *p)
{
    return p->all->optimizer->parameters[p->at].leaf;
}

/* ---- During backward --------------------------------------------------------------------------------------------- */

/* Measures a gradient, or rows of it. */
static tr_status measure(place *p, const tr_tensor *gradient)
{
    if (!p->all->measures) return TR_OK;
    TR__TRY(tr__squares_add(gradient, &p->squares));
    if (!isfinite(p->squares) && p->all->stopped_at < 0) p->all->stopped_at = p->at;
    return TR_OK;
}

/* A parameter that was frozen since the forward is not updated. */
static tr_status update(place *p)
{
    p->all->waiting -= p->waits;
    p->waits = false;
    if (leaf_of(p)->requires_grad) {
        TR__TRY(measure(p, leaf_of(p)->leaf->grad));
        if (p->all->stopped_at < 0) {
            TR__TRY(tr__step_at(p->all->optimizer, p->at));
            p->all->updated++;
        }
    }
    tr_clear_grad(leaf_of(p));
    return TR_OK;
}

/* Updates the waiting parameters; all: also those that are still saved. */
static tr_status update_waiting(tr__in_backward *s, bool all)
{
    for (int i = 0; i < s->optimizer->count && s->waiting; i++) {
        place *p = &s->places[i];
        if (p->waits && (all || !tr__is_saved(leaf_of(p)))) TR__TRY(update(p));
    }
    return TR_OK;
}

static tr_status consume(tr__grad_consumer *consumer)
{
    place *p = (place *)(void *)consumer;
    p->waits = true;
    p->all->waiting++;
    return update_waiting(p->all, false);
}

static tr_status consume_rows(tr__grad_consumer *consumer, const tr_tensor *rows, int64_t first)
{
    place *p = (place *)(void *)consumer;
    tr__in_backward *s = p->all;
    bool had_stopped = s->stopped_at >= 0;
    TR__TRY(measure(p, rows));
    if (s->stopped_at >= 0) {
        if (!had_stopped) s->rows = first;
        return TR_OK;
    }
    if (first == 0) s->updated++;
    return tr__step_rows(s->optimizer, p->at, rows, first);
}

/* Clears the gradients of a failed backward. */
static tr_status discard(tr__in_backward *s, tr_status status)
{
    const tr_optimizer *o = s->optimizer;
    s->waiting = 0;
    for (int i = 0; i < o->count; i++) {
        s->places[i].waits = false;
        tr_clear_grad(o->parameters[i].leaf);
    }
    s->failed = s->updated > 0;
    if (!s->failed) return status;
    return tr__fail_context(status, "%s steps in backward, and had updated %d of its %d parameters when it failed", o->rule->name,
        s->updated, o->count);
}

static tr_status backward_ends(void *user, tr_status status)
{
    tr__in_backward *s = user;
    if (status == TR_OK) status = update_waiting(s, true);
    if (status != TR_OK) status = discard(s, status);
    s->done = status == TR_OK;
    atomic_store(&s->running, NULL);
    return status;
}

static tr_status begin(tr__in_backward *s, tr__backward *backward)
{
    const char *rule = s->optimizer->rule->name;
    if (tr__backward_sink(backward))
        return tr__fail(TR_UNSUPPORTED, "%s steps in backward, which a distributed backward cannot have: give its parameters to a "
            "tr_dist_optimizer and call tr_dist_step_in_backward()", rule);
    if (s->done)
        return tr__fail(TR_STATE, "%s has stepped in an earlier backward: the gradients of several backwards cannot be added up; "
            "call tr_step() after each", rule);
    tr__backward *none = NULL;
    if (!atomic_compare_exchange_strong(&s->running, &none, backward))
        return tr__fail(TR_STATE, "%s steps in backward, and another backward of its parameters is under way", rule);
    tr_status status = tr__backward_on_end(backward,
        (tr__backward_callback){.finish = backward_ends, .user = s, .held = s->optimizer, .last = true});
    if (status != TR_OK) {
        atomic_store(&s->running, NULL);
        return status;
    }
    s->failed = false;
    s->updated = 0;
    s->stopped_at = -1;
    s->rows = 0;
    return TR_OK;
}

static tr_status expect(tr__grad_consumer *consumer, tr__backward *backward)
{
    tr__in_backward *s = ((place *)(void *)consumer)->all;
    return atomic_load(&s->running) == backward ? TR_OK : begin(s, backward);
}

/* ---- Switching --------------------------------------------------------------------------------------------------- */

static tr_status check_parameter(const char *name, const tr_tensor *t)
{
    const tr__leaf *leaf = t->leaf;
    if (atomic_load(&leaf->optimizers) > 1)
        return tr__fail(TR_STATE, "tr_step_in_backward: another optimizer has \"%s\", too, and would find no gradient", name);
    if (atomic_load(&leaf->averagers) > 1 || (atomic_load(&leaf->averagers) && !leaf->averager))
        return tr__fail(TR_UNSUPPORTED, "tr_step_in_backward: \"%s\" is %s", name, tr__device_of(t).kind == TR_CPU
            ? "in two tr_ddp()s, or was in one before that which it is in"
            : "in tr_ddp() on a device: on the CPU ranks can average and use up gradients bucket by bucket");
    if (leaf->has_grad)
        return tr__fail(TR_STATE, "tr_step_in_backward: \"%s\" has a gradient: call tr_zero_grad() before", name);
    return TR_OK;
}

static tr_status switch_on(tr_optimizer *o)
{
    if (o->gather)
        return tr__fail(TR_UNSUPPORTED, "tr_step_in_backward: the optimizer is sharded: its ranks exchange parameters in tr_step()");
    for (int i = 0; i < o->count; i++) TR__TRY(check_parameter(tr_list_name(o->list, i), tr_list_at(o->list, i)));
    tr__in_backward *s = calloc(1, sizeof *s + (size_t)o->count * sizeof *s->places);
    if (!s) return tr__fail(TR_NO_MEMORY, "%s: out of memory", o->rule->name);
    s->optimizer = o;
    s->stopped_at = -1;
    for (int i = 0; i < o->count; i++) {
        s->places[i] = (place){.consumer = {expect, consume, o->rule->whole ? NULL : consume_rows}, .all = s, .at = i};
        tr_tensor *leaf = o->parameters[i].leaf;
        leaf->leaf->consumer = &s->places[i].consumer;
        tr__arena_leave(leaf);
    }
    o->in_backward = s;
    return TR_OK;
}

void tr__in_backward_pause(tr_optimizer *o, bool paused)
{
    tr__in_backward *s = o->in_backward;
    if (!s || s->paused == paused) return;
    s->paused = paused;
    for (int i = 0; i < o->count; i++) {
        tr_tensor *leaf = leaf_of(&s->places[i]);
        leaf->leaf->consumer = paused ? NULL : &s->places[i].consumer;
        if (!paused && !leaf->leaf->has_grad) tr__arena_leave(leaf); /* another may have built the arena since */
    }
}

void tr__in_backward_measure(tr_optimizer *o, bool measures)
{
    if (!o->in_backward) return;
    o->in_backward->measures = measures;
    o->in_backward->done = false;
    for (int i = 0; i < o->count; i++) o->in_backward->places[i].squares = 0;
}

double tr__in_backward_squares(const tr_optimizer *o, int at)
{
    return o->in_backward ? o->in_backward->places[at].squares : 0;
}

int tr__in_backward_stopped_at(const tr_optimizer *o, int *updated, int64_t *rows)
{
    const tr__in_backward *s = o->in_backward;
    *rows = s ? s->rows : 0;
    *updated = s ? s->updated - (s->rows > 0) : 0;
    for (int i = 0; s && s->stopped_at >= 0 && i < o->count; i++)
        if (o->place[i] == s->stopped_at) return i;
    return -1;
}

void tr__in_backward_end(tr_optimizer *o)
{
    for (int i = 0; o->in_backward && i < o->count; i++) o->parameters[i].leaf->leaf->consumer = NULL;
    free(o->in_backward);
    o->in_backward = NULL;
}

tr_status tr_step_in_backward(tr_optimizer *o, bool on)
{
    if (!o) return tr__fail(TR_INVALID, "tr_step_in_backward: the optimizer is NULL");
    TR__TRY(tr_status_of(o));
    if (on == (o->in_backward != NULL)) return TR_OK;
    if (on) return switch_on(o);
    if (atomic_load(&o->in_backward->running))
        return tr__fail(TR_STATE, "tr_step_in_backward: a backward is under way");
    tr__in_backward_end(o);
    return tr__arena_build(o->list);
}

tr_status tr__in_backward_step(tr_optimizer *o)
{
    tr__in_backward *s = o->in_backward;
    if (atomic_load(&s->running)) return tr__fail(TR_STATE, "tr_step: a backward is under way");
    if (s->failed)
        return tr__fail(TR_STATE, "tr_step: the latest backward failed when %s had updated %d of its %d parameters: load a checkpoint, "
            "or go on with another backward", o->rule->name, s->updated, o->count);
    for (int i = 0; s->paused && i < o->count; i++) { /* gradients that stayed, of backwards that were not to step */
        const tr_tensor *leaf = o->parameters[i].leaf;
        if (leaf->requires_grad && leaf->leaf->has_grad) TR__TRY(tr__step_at(o, i));
    }
    s->done = false;
    return TR_OK;
}

tr_status tr__in_backward_refuse(const tr_optimizer *o, const char *what, const char *why)
{
    if (!o->in_backward) return TR_OK;
    return tr__fail(TR_UNSUPPORTED, "%s: %s steps in backward (tr_step_in_backward()): %s", what, o->rule->name, why);
}
