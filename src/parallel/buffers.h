/*
 * The buffers of a module in one piece of memory for each device, so that they travel in one broadcast.
 */
#ifndef TR_PARALLEL_BUFFERS_H
#define TR_PARALLEL_BUFFERS_H

#include "tensor/list.h"

#include <trireme/comm.h>

typedef struct tr__buffers {
    tr_tensor_list *list; /* kept */
    tr_tensor **flat;     /* u8, one for each device that has some of them; kept */
    int n_flat;
} tr__buffers;

/* Moves what a list names there: the tensors are the same objects, over new storage. The list is kept. */
tr_status tr__buffers_gather(tr__buffers *buffers, tr_tensor_list *list);
/* Rank 0's values become everybody's. What has been moved elsewhere since, as by tr_module_to(), travels by itself: on all ranks
 * alike, as modules are moved on all of them. */
tr_status tr__buffers_broadcast(const tr__buffers *buffers, tr_group *group);
void tr__buffers_release(tr__buffers *buffers);

#endif
