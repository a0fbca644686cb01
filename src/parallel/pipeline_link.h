/*
 * How tensors get from one stage of a pipeline to its neighbours: between threads of a process, or between ranks of a group.
 */
#ifndef TR_PARALLEL_PIPELINE_LINK_H
#define TR_PARALLEL_PIPELINE_LINK_H

#include "tensor/tensor.h"

#include <trireme/comm.h>

/* An object that begins with its functions. `from` and `to` are stages that are neighbours; activations go up, gradients down.
 * Each micro-batch goes once in each direction per step. */
typedef struct tr__link {
    tr__object object;
    bool forward; /* this step has forwards alone, of all stages */
    /* Hands t over; NULL where there is none. Does not wait for who gets it. */
    tr_status (*send)(struct tr__link *link, int from, int to, int micro, tr_tensor *t);
    /* Waits for what the other sends: *out, with a reference of the caller's, may be on another device; or NULL. */
    tr_status (*receive)(struct tr__link *link, int from, int to, int micro, tr_device device, tr_tensor **out);
    /* A step ends: with everything handed over, or, after a failure, given up by all stages of this process. */
    tr_status (*end)(struct tr__link *link, tr_status status);
    /* A stage has failed, for the reason that is this thread's latest failure: those that wait for it do so no longer. */
    void (*give_up)(struct tr__link *link);
} tr__link;

tr__link *tr__link_threads(int stages, int micro_batches);
tr__link *tr__link_ranks(tr_group *group);

#endif
