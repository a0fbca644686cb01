/*
 * Recompute segments (gradient checkpointing, Chen et al. 2016): parts of the graph whose saved tensors are not stored, but
 * recomputed when backward needs the first of them. Their nodes are recorded as usual, but save slot numbers:
 *
 *   forward   f runs: the k-th tensor that is saved becomes slot k, empty
 *   backward  a node needs slot k: f runs again on the same inputs, recorded into a graph that is discarded, and fills the
 *             slots in the order in which it saves; each is released with the node that holds it
 *
 * So hooks, DDP and distributed backwards see an ordinary graph. Leaves are saved as usual: they live anyway, and writes to
 * them are detected, also to those that no op saves, as a bias, or that are frozen. f must do the same both times: random ops get
 * the attributes of the first run, and code that updates statistics asks tr_recomputing(). Segments nest: an inner one saves its
 * inputs through the outer one.
 */
#ifndef TR_OPS_SEGMENT_H
#define TR_OPS_SEGMENT_H

#include "ops/node.h"

/* What f is: a function of one output, or of several, which sets them all. */
enum { TR__SEGMENT_OUTPUTS = 8 };
typedef struct tr__segment_code {
    tr_tensor *(*one)(tr_tensor *const *inputs, int n, void *user);
    tr_status (*many)(tr_tensor *const *inputs, int n, void *user, tr_tensor **outputs); /* NULL: one */
    void *user;
    void *held; /* an object that it needs, referenced as long as f may run again; or NULL */
} tr__segment_code;

/* Runs f as a segment. outputs, of which there are n_outputs, are what f sets; after a failure of the segment's own in error. */
tr_status tr__segment_run(tr__segment_code f, tr_tensor *const *inputs, int n, tr_tensor **outputs, int n_outputs);
/* Does this thread run a segment, for the first time or again? */
bool tr__segment_runs(void);
/* Does this thread run a segment again, for backward, or a part of one that another worker runs again? */
bool tr__segment_replays(void);
/* What a thread runs of segments. Zeroed: nothing. */
typedef struct tr__segment_state {
    struct tr__segment_running *running;
    bool replays; /* a part of one that another worker runs again */
} tr__segment_state;
/* This thread runs that from here on. Returns what it ran before. */
tr__segment_state tr__segment_switch(tr__segment_state to);

/* An op reads this leaf: when this thread's segments run again, it must be unchanged. */
tr_status tr__segment_note(tr_tensor *leaf);
/* This thread has called a TR__OP_JOINT op: other ranks call it, too, when its segments run again. */
tr_status tr__segment_note_joint(const tr_op_call *call);
/* A backward failed before it came to a node that has a slot of this segment. Unless that has run again, its TR__OP_JOINT ops tell
 * the other ranks, and so do those of the segments that its inputs are slots of. */
void tr__segment_tell(tr__recompute_segment *segment);
/* Saves t in the next slot of this thread's segment. false: there is no segment. */
bool tr__segment_saves(tr__saved *saved, const tr_tensor *t, tr_status *status);
/* The number of the segment that this thread runs, the same for the first time and again; unique in the process. 0: none. */
uint64_t tr__segment_number(void);
/* The tensor of a slot, recomputed if need be: a new reference. as_now: as in tr__saved_get(). */
tr_tensor *tr__segment_get(const tr__saved *saved, bool as_now);
/* Releases a node's slot. */
void tr__segment_release(tr__saved *saved, tr__node **unreferenced);
/* What random numbers are drawn by, a random op's attributes: those given, or when f runs again those of its first run.
 * NULL when it failed. */
const void *tr__segment_draw(const void *attrs, size_t size);

#endif
