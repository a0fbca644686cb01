/* Stages that are threads of one process: a slot for each tensor that goes over. */
#include "parallel/pipeline_link.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct slot {
    bool full;
    tr_tensor *tensor; /* a reference, or NULL */
} slot;

typedef struct threads_link {
    tr__link link;
    int micro_batches, count;
    slot *slots;     /* [stages - 1][up or down][micro_batches] */
    pthread_mutex_t lock;
    pthread_cond_t filled;
    bool given_up;
} threads_link;

static void destroy(void *self)
{
    threads_link *l = self;
    for (int i = 0; i < l->count; i++) tr__unref(l->slots[i].tensor);
    free(l->slots);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->filled);
}

static const tr__type link_type = {"link of threads", sizeof(threads_link), destroy};

static slot *slot_of(threads_link *l, int from, int to, int micro)
{
    int lower = from < to ? from : to, down = from > to;
    return &l->slots[(2 * lower + down) * l->micro_batches + micro];
}

static tr_status send(tr__link *link, int from, int to, int micro, tr_tensor *t)
{
    threads_link *l = (threads_link *)link;
    pthread_mutex_lock(&l->lock);
    *slot_of(l, from, to, micro) = (slot){true, tr__ref(t)};
    pthread_cond_broadcast(&l->filled);
    pthread_mutex_unlock(&l->lock);
    return TR_OK;
}

static tr_status receive(tr__link *link, int from, int to, int micro, tr_device device, tr_tensor **out)
{
    (void)device;
    threads_link *l = (threads_link *)link;
    pthread_mutex_lock(&l->lock);
    slot *s = slot_of(l, from, to, micro);
    while (!s->full && !l->given_up) pthread_cond_wait(&l->filled, &l->lock);
    bool full = s->full;
    *out = s->tensor;
    *s = (slot){0};
    pthread_mutex_unlock(&l->lock);
    return full ? TR_OK : tr__fail(TR_CANCELLED, "another stage has failed");
}

static tr_status end(tr__link *link, tr_status status)
{
    threads_link *l = (threads_link *)link;
    for (int i = 0; i < l->count; i++) {
        tr__unref(l->slots[i].tensor);
        l->slots[i] = (slot){0};
    }
    l->given_up = false;
    return status;
}

static void give_up(tr__link *link)
{
    threads_link *l = (threads_link *)link;
    pthread_mutex_lock(&l->lock);
    l->given_up = true;
    pthread_cond_broadcast(&l->filled);
    pthread_mutex_unlock(&l->lock);
}

tr__link *tr__link_threads(int stages, int micro_batches)
{
    threads_link *l = tr__object_new(&link_type);
    if (l->link.object.error) return &l->link;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->filled, NULL);
    l->link.send = send;
    l->link.receive = receive;
    l->link.end = end;
    l->link.give_up = give_up;
    l->micro_batches = micro_batches;
    l->count = 2 * (stages - 1) * micro_batches;
    l->slots = calloc((size_t)l->count + 1, sizeof *l->slots);
    if (!l->slots) {
        l->count = 0;
        tr__fail(TR_NO_MEMORY, "pipeline: out of memory");
        tr__object_break(l);
    }
    return &l->link;
}
