/* DDP's state: its parameters, the buckets that they are cut into, and what of a backward is under way. */
#ifndef TR_PARALLEL_DDP_BUCKETS_H
#define TR_PARALLEL_DDP_BUCKETS_H

#include "autograd/arena.h"
#include "autograd/engine.h"
#include "comm/control.h"
#include "parallel/bucket_pool.h"
#include "parallel/buffers.h"

#include <trireme/parallel.h>

typedef struct tr__bucket {
    tr__arena *arena;
    int64_t begin, end; /* elements of the arena's gradients */
    int first, last;    /* its parameters: order[first … last - 1] */
    int ready;          /* the place in the learned order of the one that is final last */
    int pending;        /* of them, those whose gradient is not final in this backward */
    tr_tensor *copy;    /* [end - begin], of gradients in a detached backward's sink; a reference; NULL: none so far */
    tr_tensor *lent;    /* the pool's, for gradients that have no place in the arena; NULL: none at the moment */
    tr_work *work;      /* under way, kept; or NULL */
    tr_ddp_bucket given; /* to the hook that exchanges it at the moment; its gradients are kept, NULL: to none */
} tr__bucket;

typedef struct tr__ddp_param {
    tr__grad_averager averager; /* first: the leaf points to it */
    struct tr__ddp *ddp;
    tr_tensor *leaf;    /* kept */
    int hook;           /* -1: none */
    int arena;          /* the arenas' order, the same on every rank: that of their first parameters */
    int64_t begin, end; /* its range of the arena, with the gap behind it */
    int ready;          /* its place in the learned order */
    int bucket;
    bool final;
} tr__ddp_param;

typedef struct tr__ddp {
    tr_module *self, *inner; /* inner: the tree's reference */
    tr_group *group;    /* kept */
    tr_tensor_list *state; /* kept; all that is the same on all ranks; NULL in a world of one */
    tr__buffers buffers;   /* what of it is no parameter; none with .local_buffers */
    int64_t check_every;   /* exchanges; 0: replicas are not compared */
    int64_t exchanged, agreed; /* how many there were, and after which of them replicas were last found alike; 0: none */
    int number;         /* the module's number in the group: its buckets are not to meet another's of their size */
    tr_ddp_hook hook;   /* what exchanges a bucket; .start is NULL: an all_reduce of what lies there */
    struct {            /* where gradients travel in 16 bits (ddp_compress.c) */
        tr_dtype dtype;
        tr__bucket_pool pool;
        tr_tensor **sent; /* by bucket: the pool's block that is under way; NULL: there was no bucket yet */
    } compress;
    int variant;        /* which parameters are frozen in this backward; 0: none is */
    bool paused;        /* by tr_ddp_sync() */
    tr__ddp_param *params;      /* in the order of the module's list */
    int n_params;
    double bucket_bytes;
    tr__ddp_param **order;      /* [n_params], by bucket; in the first backward those that are final, */
    int n_final;        /* so many */
    tr__bucket *buckets;
    int n_buckets;      /* 0: not learned yet */
    _Atomic(tr__backward *) running; /* the backward that the counts belong to; NULL: none is under way */
    int next_bucket;       /* the first that has not gone out */
    int ended;             /* those before it have been averaged, and used up where they are to be */
    bool measures;         /* this rank's own gradients, */
    double squares;        /* whose sum of squares in the latest backward this is */
    bool hurries;          /* a bucket did not come back soon in this backward: no more of it waits for any */
    tr__bucket_pool pool;
} tr__ddp;

/* Of the calls that exchange a bucket, or the order. */
static inline int tr__ddp_tag(const tr__ddp *d, int bucket)
{
    return tr__variant_tag(tr__bucket_tag(d->number, bucket), d->variant);
}

/* At the end of the first backward: rank 0 tells the others in which order its gradients became final (d->order), and all cut the
 * same buckets. timeout_ms: for that. Collective. */
tr_status tr__ddp_learn_buckets(tr__ddp *d, int timeout_ms);

#endif
