/*
 * Stages that are ranks of a group. A tensor goes as two messages: what it is, then its elements. Sends are not waited for
 * until the step ends, so that two neighbours that send to each other do not wait for each other.
 */
#include "comm/control.h"
#include "parallel/pipeline_link.h"

#include <trireme/autograd.h>

#include <stdlib.h>

enum { FORWARD, DTYPE, NDIM, DIMS, WORDS = DIMS + TR_MAX_DIMS, NOTHING = -1 };

/* A message on its way. */
typedef struct sending {
    struct sending *next;
    int64_t head[WORDS];
    tr_tensor *tensor;           /* kept; NULL: there is none */
    tr_work *head_work, *work;   /* kept; work: NULL where there are no elements */
} sending;

typedef struct ranks_link {
    tr__link link;
    tr_group *group; /* kept */
    sending *first;
} ranks_link;

/* The buffers are a message's until it is done. */
static tr_status finish(sending *s)
{
    tr_status head = tr_wait(s->head_work), body = tr_wait(s->work);
    tr_release(s->head_work);
    tr_release(s->work);
    tr_release(s->tensor);
    free(s);
    return head == TR_OK ? body : head;
}

/* Finishes messages: all, or those that are done. */
static tr_status reap(ranks_link *l, bool all)
{
    tr_status first = TR_OK;
    for (sending **place = &l->first; *place;) {
        sending *s = *place;
        if (!all && !(tr_work_done(s->head_work) && (!s->work || tr_work_done(s->work)))) {
            place = &s->next;
            continue;
        }
        *place = s->next;
        tr_status status = finish(s);
        if (first == TR_OK) first = status;
    }
    return first;
}

static void destroy(void *self)
{
    ranks_link *l = self;
    (void)!reap(l, true);
    tr_release(l->group);
}

static const tr__type link_type = {"link of ranks", sizeof(ranks_link), destroy};

static tr_status post(ranks_link *l, sending *s, int to, int micro)
{
    const tr_tensor *t = s->tensor;
    s->head[FORWARD] = l->link.forward;
    s->head[DTYPE] = t ? (int64_t)t->dtype : NOTHING;
    s->head[NDIM] = t ? t->shape.ndim : 0;
    for (int d = 0; t && d < t->shape.ndim; d++) s->head[DIMS + d] = t->shape.dim[d];
    s->head_work = tr_keep(tr_send_async(l->group, s->head, WORDS, .dtype = TR_I64, .peer = to, .tag = micro));
    TR__TRY(tr_status_of(s->head_work));
    int64_t n = t ? tr__numel(t->shape) : 0;
    if (n == 0) return TR_OK;
    s->work = tr_keep(tr_send_async(l->group, tr__ptr(t), n, .dtype = t->dtype, .peer = to, .tag = micro,
        .device = tr__device_of(t)));
    return tr_status_of(s->work);
}

static tr_status send(tr__link *link, int from, int to, int micro, tr_tensor *t)
{
    (void)from;
    ranks_link *l = (ranks_link *)link;
    TR__TRY(reap(l, false));
    TR_SCOPE;
    TR_NO_GRAD;
    sending *s = calloc(1, sizeof *s);
    if (!s) return tr__fail(TR_NO_MEMORY, "pipeline: out of memory");
    s->next = l->first;
    l->first = s;
    s->tensor = t ? tr_keep(tr_contiguous(t)) : NULL;
    TR__TRY(tr_status_of(s->tensor));
    return post(l, s, to, micro);
}

static tr_status receive(tr__link *link, int from, int to, int micro, tr_device device, tr_tensor **out)
{
    (void)to;
    ranks_link *l = (ranks_link *)link;
    int64_t head[WORDS];
    TR_SCOPE;
    *out = NULL;
    TR__TRY(tr_recv(l->group, head, WORDS, .dtype = TR_I64, .peer = from, .tag = micro));
    if (head[FORWARD] != l->link.forward) /* one of them would wait for gradients, or for who takes them */
        return tr__fail(TR_MISMATCH, "this rank is %sunder TR_NO_GRAD, rank %d is%s: all ranks are, or none",
            l->link.forward ? "" : "not ", from, l->link.forward ? " not" : "");
    if (head[DTYPE] == NOTHING) return TR_OK;
    if (head[DTYPE] < 0 || head[DTYPE] >= TR_DTYPE_COUNT || head[NDIM] < 0 || head[NDIM] > TR_MAX_DIMS)
        return tr__fail(TR_FORMAT, "pipeline: rank %d sent what is no tensor", from);
    tr_shape shape = {.ndim = (int)head[NDIM]};
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = head[DIMS + d];
    tr_tensor *t = tr_empty(shape, .dtype = (tr_dtype)head[DTYPE], .device = device);
    TR__TRY(tr_status_of(t));
    int64_t n = tr__numel(shape);
    if (n) TR__TRY(tr_recv(l->group, tr__ptr(t), n, .dtype = t->dtype, .peer = from, .tag = micro, .device = device));
    *out = tr_keep(t);
    return TR_OK;
}

/* After a failure messages are left as they are: who should take them may have gone. */
static tr_status end(tr__link *link, tr_status status)
{
    return status == TR_OK ? reap((ranks_link *)link, true) : status;
}

/* The others would wait, or take the messages of this step for those of the next one. */
static void give_up(tr__link *link)
{
    tr__group_give_up(((ranks_link *)link)->group);
}

tr__link *tr__link_ranks(tr_group *group)
{
    ranks_link *l = tr__object_new(&link_type);
    if (l->link.object.error) return &l->link;
    l->link.send = send;
    l->link.receive = receive;
    l->link.end = end;
    l->link.give_up = give_up;
    l->group = tr_keep(group);
    return &l->link;
}
