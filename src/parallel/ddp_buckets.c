/* Which parameters share a bucket, and in which order buckets go out: as rank 0's gradients became final in its first backward. */
#include "parallel/ddp_buckets.h"

#include <stdlib.h>

static int by_place(const void *a, const void *b)
{
    const tr__ddp_param *p = *(tr__ddp_param *const *)a, *q = *(tr__ddp_param *const *)b;
    if (p->arena != q->arena) return p->arena - q->arena;
    if (p->begin != q->begin) return p->begin < q->begin ? -1 : 1;
    return p->end < q->end ? -1 : p->end > q->end;
}

static int by_readiness(const void *a, const void *b)
{
    return ((const tr__bucket *)a)->ready - ((const tr__bucket *)b)->ready;
}

/* What took no part in rank 0's first backward comes last, later parameters first. */
static tr_status agree_on_order(tr__ddp *d, int timeout_ms)
{
    int32_t *places = calloc((size_t)d->n_params + 1, sizeof *places);
    if (!places) return tr__fail(TR_NO_MEMORY, "out of memory");
    for (int i = d->n_params; i-- > 0;)
        if (!d->params[i].final) d->order[d->n_final++] = &d->params[i];
    for (int i = 0; i < d->n_params; i++) places[i] = (int32_t)(d->order[i] - d->params);
    tr_status status = tr_broadcast(d->group, places, d->n_params, .dtype = TR_I32, .timeout_ms = timeout_ms,
        .tag = tr__ddp_tag(d, 0));
    for (int i = 0; i < d->n_params && status == TR_OK; i++) {
        d->order[i] = &d->params[places[i]];
        d->order[i]->ready = i;
    }
    free(places);
    return status;
}

/* Do the parameters [first, last) of the order lie on both sides of p? */
static bool encloses(const tr__ddp *d, int first, int last, const tr__ddp_param *p)
{
    bool before = false, behind = false;
    for (int i = first; i < last; i++) {
        const tr__ddp_param *q = d->order[i];
        before |= q->arena == p->arena && q->end == p->begin;
        behind |= q->arena == p->arena && q->begin == p->end;
    }
    return before && behind;
}

/* Where those that begin at `first` of the order end: when they are large enough, but for what lies in their midst, as a bias
 * that is final after its weight does. What is frozen now shares no bucket with what learns. */
static int end_of_run(const tr__ddp *d, int first)
{
    double bytes = 0;
    int last = first;
    for (; last < d->n_params; last++) {
        const tr__ddp_param *p = d->order[last];
        if (p->leaf->requires_grad != d->order[first]->leaf->requires_grad) break;
        if (last > first && bytes >= d->bucket_bytes && !encloses(d, first, last, p)) break;
        bytes += (double)(p->end - p->begin) * (double)tr_dtype_size(p->leaf->dtype);
    }
    return last;
}

/* A bucket for each range of the arenas that the parameters [first, last) of the order fill; it holds nobody else's gradients. */
static void cut_buckets(tr__ddp *d, int first, int last)
{
    tr__bucket *b = NULL;
    int begin = d->n_buckets;
    qsort(d->order + first, (size_t)(last - first), sizeof *d->order, by_place);
    for (int i = first; i < last; i++) {
        const tr__ddp_param *p = d->order[i];
        tr__arena *arena = p->leaf->leaf->arena;
        if (!b || b->arena != arena || b->end != p->begin) {
            b = &d->buckets[d->n_buckets++];
            *b = (tr__bucket){.arena = tr__ref(arena), .begin = p->begin, .first = i};
        }
        b->end = p->end;
        b->last = i + 1;
        if (p->ready > b->ready) b->ready = p->ready;
    }
    qsort(d->buckets + begin, (size_t)(d->n_buckets - begin), sizeof *d->buckets, by_readiness);
}

tr_status tr__ddp_learn_buckets(tr__ddp *d, int timeout_ms)
{
    TR__TRY(agree_on_order(d, timeout_ms));
    for (int first = 0, last; first < d->n_params; first = last) {
        last = end_of_run(d, first);
        cut_buckets(d, first, last);
    }
    for (int i = 0; i < d->n_buckets; i++)
        for (int k = d->buckets[i].first; k < d->buckets[i].last; k++) d->order[k]->bucket = i;
    return TR_OK;
}
