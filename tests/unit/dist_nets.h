/*
 * What the tests of distributed autograd share: each worker has a layer; patterns of calls between them, and the same
 * computed in one process.
 */
#ifndef TR_TESTS_DIST_NETS_H
#define TR_TESTS_DIST_NETS_H

#include <trireme/dist.h>

enum { DIST_WORKERS = 3, DIST_WIDTH = 4, DIST_BATCH = 2, DIST_PARAMETERS = 2 };

/* A worker's own. */
typedef struct dist_worker {
    tr_rpc *rpc;
    tr_module *net;
} dist_worker;

typedef enum dist_pattern {
    DIST_CHAIN,  /* one worker after the other */
    DIST_NESTED, /* a worker calls another one */
    DIST_CYCLE,  /* a worker calls back */
    DIST_FAN,    /* a tensor goes to several workers, to one of them twice, and their results are added up */
    DIST_UNUSED, /* results that are not used, and a call that gives none back */
    DIST_PATTERN_COUNT
} dist_pattern;

/* The layer of a worker: the same weights wherever it is made. */
tr_module *dist_net(int worker);
/* [batch, seq, DIST_WIDTH] -> the same, by layers whose outputs backward makes again and by views of parameters: norms, and
 * attention to something else than its input. recompute: all of it is made again. */
tr_module *dist_deep_net(bool recompute);
/* Starts a worker, "w0" and so on, that can be called. */
tr_status dist_begin(dist_worker *w, tr_group *group);
/* The loss of a pattern, by calls from this worker, w0; and in one process, where nets has the layer of each. */
tr_tensor *dist_loss(dist_worker *w, dist_pattern pattern, tr_tensor *x);
tr_tensor *dist_loss_here(tr_module *const *nets, dist_pattern pattern, tr_tensor *x);
tr_tensor *dist_input(void);
/* The gradient that a worker has for its parameter in the context that is current here; in error: none. */
tr_tensor *dist_fetch_grad(dist_worker *w, int worker, int parameter);
/* References to the parameters of all workers' layers, in their order: [DIST_WORKERS * DIST_PARAMETERS]. */
tr_status dist_parameters(dist_worker *w, tr_rref **out);

/* The largest difference of two tensors' elements. */
double dist_difference(tr_tensor *a, tr_tensor *b);

#endif
