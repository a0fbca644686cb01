/*
 * Segments: stretches of the graph whose saved tensors are not kept, but computed again when backward asks for the first of
 * them (Chen et al. 2016). A segment's nodes are recorded as all others; what they save are numbers of slots:
 *
 *   forward   f runs: the k-th tensor that is saved becomes slot k, empty
 *   backward  a node asks for slot k: f runs again on the same inputs, recorded into a graph that is thrown away, and fills
 *             the slots in the order in which it saves; each is given up with the node that holds it
 *
 * So hooks, DDP and distributed backwards see a graph like any other. Leaves are saved as ever: they live anyway, and it is
 * noticed when they are written to, also those that no op saves, as a bias. f must do the same both times: random ops get
 * the attributes that they had, and what moves statistics asks tr_recomputing(). Segments nest: an inner one saves its own inputs through the outer one.
 */
#ifndef TR_OPS_SEGMENT_H
#define TR_OPS_SEGMENT_H

#include "ops/node.h"

typedef tr_tensor *(*tr__segment_function)(tr_tensor *const *inputs, int n, void *user);

/* Runs f as a segment. held: an object that f needs, kept as long as f may run again; or NULL. */
tr_tensor *tr__segment_run(tr__segment_function f, tr_tensor *const *inputs, int n, void *user, void *held);
/* Does this thread run f, for the first time or again? */
bool tr__segment_runs(void);
/* Does this thread run f for backward? */
bool tr__segment_replays(void);

/* An op takes this leaf: this thread's segments need it as it is now when they run again. */
tr_status tr__segment_note(tr_tensor *leaf);
/* Puts t into the next slot of this thread's segment; false: there is no segment, t is to be saved itself. */
bool tr__segment_takes(tr__saved *saved, const tr_tensor *t, tr_status *status);
/* The tensor of a slot, computed again if need be, with a reference of the caller's. apart: as tr__saved_get(). */
tr_tensor *tr__segment_get(const tr__saved *saved, bool apart);
/* A node gives a slot up. */
void tr__segment_give_up(tr__saved *saved, tr__node **dying);
/* The attributes that a random op is to run with: those given, or the ones it had when f ran first. */
const void *tr__segment_draw(const tr_op *op, const void *attrs);

#endif
