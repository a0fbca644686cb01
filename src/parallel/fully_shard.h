/*
 * Fully sharded parameters: what the leaf of a shard and a unit hold.
 */
#ifndef TR_PARALLEL_FULLY_SHARD_H
#define TR_PARALLEL_FULLY_SHARD_H

#include "autograd/arena.h"
#include "autograd/engine.h"
#include "nn/module.h"
#include "parallel/spread.h"

/* At the leaf of a rank's shard of a parameter, as its leaf->shards. */
typedef struct tr__shard {
    tr__spread spread; /* first */
    tr_shape whole;    /* of the parameter */
    int64_t begin;     /* of the parameter in its unit's flat tensor, of which rank r has [r * each, (r + 1) * each) */
    int64_t each;
} tr__shard;

/* NULL: the leaf is no such shard. */
const tr__shard *tr__shard_of(const tr_tensor *leaf);
/* The shape of rank r's shard, whose first element is *from of the parameter. It keeps the number of dimensions, by which
 * optimizers tell matrices: [elements, 1, …]. */
tr_shape tr__shard_shape(const tr__shard *shard, int r, int64_t *from);
/* Fails when a leaf of the list is such a shard: `what` takes whole parameters. */
tr_status tr__shards_refuse(const char *what, const tr_tensor_list *list);

typedef struct tr__unit tr__unit;

typedef struct tr__unit_param {
    tr__unit *unit;
    tr_tensor *whole;    /* a reference: what the module computes with, in error where that is neither in forward nor in backward */
    tr_tensor *shard;    /* a reference: what the program has of it, a leaf of its own */
    int hook;            /* at whole; -1: none */
    bool learns;         /* in the backward that runs: it gets a gradient */
} tr__unit_param;

/*
 * Parameters that come and go together, around a module's forward:
 *
 *   whole       [ p0 ........ | p1 .. | p2 ............ ]   an arena, whose memory is there while it is used
 *   own                  [ p0 | p1 .. | p ]                 this rank's shard of it: an arena that stays, of leaves of its own
 *   gradients   [ g0 ........ | g1 .. | g2 ............ | ] of whole, as long as the ranks' shards together; in backward only
 */
struct tr__unit {
    tr__around around; /* first: what the module has */
    tr_group *group;   /* a reference */
    int number;        /* in the group: its calls are not to meet another's */
    tr__call_site site; /* of its tr_fully_shard() */
    bool keep;         /* its memory stays from forward to backward, by option */
    bool enclosed;     /* a unit of a module around it was made later: else it is a root, which stays, too */
    tr__unit_param *params;
    int n_params;
    tr__arena *whole, *own;   /* references */
    int64_t each, *counts;    /* elements of a rank's shard, as far as the gradients are; [ranks], as far as whole is */
    tr__error *away;          /* what whole tensors are in error with */
    bool here;                /* the memory of whole is there, with the ranks' values when it was gathered */

    _Atomic(tr__backward *) running; /* the backward that has gathered it; NULL: none */
    int pending;              /* in it: gradients that are not final. whole->gradients is there until they are in the shards */
};

extern const tr__type tr__unit_type;
/* Sets unit->around.run and what else a forward and a backward need. */
tr_status tr__unit_start(tr__unit *unit);
/* The memory goes, and the whole tensors are in error. */
void tr__unit_vacate(tr__unit *unit);

#endif
