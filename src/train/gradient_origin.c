/*
 * A batch is known by its step, as are the random numbers of dropout, so a rank can compute its own gradients once
 * more, bit for bit, after they have been averaged away. What a forward in training mode writes, running statistics, is
 * put back.
 */
#include "train/gradient_origin.h"

#include "autograd/arena.h"
#include "optim/optimizer.h"
#include "tensor/finite.h"

#include <math.h>
#include <stdlib.h>

/* ---- What is put back -------------------------------------------------------------------------------------------- */

/* Copies of tensors: copies[i] is of list entry i; NULL: it is not to be put back. */
typedef struct copies {
    tr_tensor_list *list;
    tr_tensor **copies;
} copies;

/* Of the innermost scope. */
static tr_status copy_of(const tr_tensor *t, tr_tensor **copy)
{
    *copy = tr_empty(t->shape, .dtype = t->dtype, .device = tr__device_of(t));
    return tr_copy_into(*copy, t);
}

static tr_status copy_buffers(const tr_trainer *t, copies *c)
{
    tr_tensor_list *parameters = tr_parameters(t->plan.model);
    c->list = tr_state_dict(t->plan.model);
    TR__TRY(tr_status_of(parameters));
    TR__TRY(tr_status_of(c->list));
    c->copies = calloc((size_t)c->list->count + 1, sizeof(tr_tensor *));
    if (!c->copies) return tr__fail(TR_NO_MEMORY, "out of memory");
    for (int i = 0; i < c->list->count; i++)
        if (!tr_list_find(parameters, c->list->entries[i].name))
            TR__TRY(copy_of(c->list->entries[i].tensor, &c->copies[i]));
    return TR_OK;
}

static tr_status restore_buffers(const copies *c)
{
    for (int i = 0; i < c->list->count; i++)
        if (c->copies[i]) TR__TRY(tr_copy_into(c->list->entries[i].tensor, c->copies[i]));
    return TR_OK;
}

static tr_status copy_gradients(const tr_trainer *t, copies *c)
{
    c->list = t->optimizer->list;
    c->copies = calloc((size_t)c->list->count + 1, sizeof(tr_tensor *));
    if (!c->copies) return tr__fail(TR_NO_MEMORY, "out of memory");
    for (int i = 0; i < c->list->count; i++) {
        const tr__leaf *leaf = c->list->entries[i].tensor->leaf;
        if (leaf->has_grad) TR__TRY(copy_of(leaf->grad, &c->copies[i]));
    }
    return TR_OK;
}

static tr_status restore_gradients(const copies *c)
{
    for (int i = 0; c->copies && i < c->list->count; i++) {
        tr_tensor *leaf = c->list->entries[i].tensor;
        tr_clear_grad(leaf);
        if (!c->copies[i]) continue;
        TR__TRY(tr__arena_zero_missing(leaf));
        TR__TRY(tr_copy_into(leaf->leaf->grad, c->copies[i]));
    }
    return TR_OK;
}

/* ---- Once more --------------------------------------------------------------------------------------------------- */

/* The order in which backward makes gradients final. */
typedef struct turn {
    int *next; /* of all */
    int order, hook;
} turn;

static tr_status note_turn(tr_tensor *leaf, tr_tensor *grad, void *user)
{
    (void)leaf, (void)grad;
    turn *own = user;
    own->order = (*own->next)++;
    return TR_OK;
}

/* The first element that is not finite; -1: all are finite. */
static int64_t first_bad(const tr_tensor *x)
{
    TR_SCOPE;
    const tr_tensor *flat = tr__row_major_on_cpu(x);
    if (tr_status_of(flat) != TR_OK) return -1;
    tr__not_finite found = tr__find_not_finite(flat->dtype, tr__ptr(flat), tr_numel(flat), 0);
    return tr__has_not_finite(&found) ? found.first : -1;
}

/* Micro-batches as in the step, but nothing is exchanged. */
static tr_status learn_alone(tr_trainer *t, tr__origin *own)
{
    for (int64_t at = 0; at < t->share; at += t->plan.micro_batch) {
        TR_SCOPE;
        int64_t n = t->share - at < t->plan.micro_batch ? t->share - at : t->plan.micro_batch;
        tr_tensor *x, *y;
        TR__TRY(t->task->batch(t, at, n, &x, &y));
        int64_t bad = own->sample < 0 ? first_bad(x) : -1; /* x: [n, …] */
        int64_t sample = bad < 0 ? -1 : t->first + at + bad / (tr_numel(x) / n);
        if (bad >= 0) own->sample = (double)sample;
        TR__TRY(tr__trainer_learn(t, at, n, false, &own->loss));
    }
    return TR_OK;
}

static tr_status measure(const tr_trainer *t, const turn *turns, double *norms, tr__origin *own)
{
    TR__TRY(tr__grad_norms(t->optimizer, norms));
    double squares = 0;
    for (int i = 0; i < t->optimizer->count; i++) {
        squares += norms[i] * norms[i];
        if (norms[i] > own->largest_norm) {
            own->largest = i;
            own->largest_norm = norms[i];
        }
        if (own->spoilt < 0 && first_bad(tr_list_at(t->optimizer->list, i)) >= 0) own->spoilt = i;
        bool first = own->first < 0 || turns[i].order < turns[(int)own->first].order;
        if (!isfinite(norms[i]) && first) own->first = i;
    }
    own->norm = sqrt(squares);
    return TR_OK;
}

static tr_status compute_again(tr_trainer *t, turn *turns, double *norms, tr__origin *own)
{
    const tr_tensor_list *list = t->optimizer->list;
    int next = 0;
    tr_status status = TR_OK;
    tr_zero_grad(t->optimizer);
    for (int i = 0; i < list->count; i++) {
        turns[i] = (turn){.next = &next, .order = -1};
        turns[i].hook = tr_grad_hook_add(list->entries[i].tensor, note_turn, &turns[i]);
        if (turns[i].hook < 0) status = tr__fail(TR_NO_MEMORY, "out of memory for hooks");
    }
    if (status == TR_OK) status = learn_alone(t, own);
    for (int i = 0; i < list->count; i++)
        if (turns[i].hook >= 0) tr_grad_hook_remove(list->entries[i].tensor, turns[i].hook);
    return status == TR_OK ? measure(t, turns, norms, own) : status;
}

static tr_status find_with_copies(tr_trainer *t, bool keep, copies *buffers, copies *gradients, tr__origin *own)
{
    int32_t ready = copy_buffers(t, buffers) == TR_OK && (!keep || copy_gradients(t, gradients) == TR_OK);
    /* A rank that has no memory for copies would leave the others alone in forwards that talk to it (sync batch norms). */
    if (t->world_size > 1) TR__TRY(tr_all_reduce(t->plan.group, &ready, 1, .dtype = TR_I32, .op = TR_MIN));
    own->failed = true;
    if (!ready) return TR_OK;
    turn *turns = calloc((size_t)t->optimizer->count, sizeof *turns);
    double *norms = calloc((size_t)t->optimizer->count, sizeof *norms);
    /* Parameters that were updated in backward give other gradients by now; what was measured there is known. */
    bool measured = keep && t->in_backward;
    if (turns && norms) own->failed = (measured ? measure(t, turns, norms, own) : compute_again(t, turns, norms, own)) != TR_OK;
    free(norms);
    free(turns);
    TR__TRY(restore_buffers(buffers));
    return keep ? restore_gradients(gradients) : TR_OK;
}

tr_status tr__gradient_origins(tr_trainer *t, bool keep, tr__origin *origins)
{
    TR_SCOPE;
    enum { NUMBERS = sizeof *origins / sizeof(double) };
    copies buffers = {0}, gradients = {0};
    tr__origin own = {.first = -1, .largest = -1, .spoilt = -1, .sample = -1};
    tr_status status = find_with_copies(t, keep, &buffers, &gradients, &own);
    free(buffers.copies);
    free(gradients.copies);
    TR__TRY(status);
    *origins = own;
    return t->world_size > 1 ? tr_all_gather(t->plan.group, &own, origins, NUMBERS, .dtype = TR_F64) : TR_OK;
}
