/*
 * Ranks that are threads as workers of distributed autograd, for tests: one drives the others, and its gradients are compared with
 * those of twins in one process.
 */
#ifndef TR_TESTS_DIST_RANKS_H
#define TR_TESTS_DIST_RANKS_H

#include "comm_ranks.h"
#include "dist_nets.h"

/* Runs body on w0 while the others serve. */
void serve_or(rank *r, void (*body)(rank *r, dist_worker *w));
/* The layers of all workers, here. */
void make_twins(tr_module **nets);
/* The gradients in the current context are those of the twins. */
void check_grads(rank *r, dist_worker *w, tr_module *const *nets);

#endif
