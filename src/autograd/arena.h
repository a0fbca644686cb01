/*
 * Arenas: the parameters of one dtype and device laid out in one flat tensor, their gradients in another, so that an
 * optimizer's pass, a bucket, a shard or a checkpoint range is a range of an arena, with nothing to copy.
 *
 *   parameters  [ p0 ........ | p1 .. | p2 ............ ]   each slot begins at a multiple of TR__ARENA_ALIGN elements;
 *   gradients   [ g0 ........ | g1 .. | g2 ............ ]   the gaps hold zeros
 *
 * Building an arena moves the parameters: their tensors are the same objects, over new storage. A leaf is in at most one
 * arena and holds it; the arena knows its leaves without holding them.
 */
#ifndef TR_AUTOGRAD_ARENA_H
#define TR_AUTOGRAD_ARENA_H

#include "ops/node.h"

#include <trireme/autograd.h>

enum { TR__ARENA_ALIGN = 32 }; /* elements: at least a cache line for every float dtype */

typedef struct tr__arena_slot {
    tr_tensor *leaf;  /* NULL when the leaf has gone */
    int64_t offset, count;
} tr__arena_slot;

typedef struct tr__arena {
    tr__object object;
    tr_tensor *parameters; /* [count] */
    tr_tensor *gradients;  /* [count], the same dtype; NULL: no leaf has a place there */
    bool shared;           /* gradients lie in memory that ranks share */
    int64_t count;         /* elements with gaps */
    int n_slots;
    tr__arena_slot *slots; /* in the order of the list it was built from */
} tr__arena;

/* Puts every leaf of the list that is in no arena yet into new arenas, one per (dtype, device), and gives each a place for its
 * gradient. */
tr_status tr__arena_build(const tr_tensor_list *leaves);
/* Has the leaf a place for its gradient in an arena? */
bool tr__arena_has_place(const tr_tensor *leaf);
/* Takes the leaf's place from it: its gradients are tensors of their own from now on, and when no leaf has a place any more, the
 * arena has no gradients. There must be no gradient. The next build with the leaf gives it a place again. */
void tr__arena_leave(tr_tensor *leaf);
/* Moves the gradients to memory that the ranks of a host can share (does nothing when they are there, or on a device). */
tr_status tr__arena_share(tr__arena *arena);
/* The slot of a leaf in its arena; NULL when it is in none. */
const tr__arena_slot *tr__arena_slot_of(const tr_tensor *leaf);
/* Zeroes the gradient of a leaf that has none, and counts it as one. */
tr_status tr__arena_zero_missing(const tr_tensor *leaf);

#endif
