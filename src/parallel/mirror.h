/*
 * A mirror: copies of parameters on a device that does not reach their memory, refreshed when they have been written to.
 */
#ifndef TR_PARALLEL_MIRROR_H
#define TR_PARALLEL_MIRROR_H

#include "tensor/list.h"

typedef struct tr__mirror tr__mirror;

/* An object; it keeps the list. */
tr__mirror *tr__mirror_new(tr_tensor_list *parameters, tr_device device);
/* Copies what was written to since the latest call, then sets leaves[i], for entry i of the list, to a new leaf over its copy,
 * with a reference of the caller's; it requires a gradient if the parameter does. Parameters in one storage, as an
 * optimizer's are, are copied in one copy. Any thread may call it at any time. After a failure some leaves may be set. */
tr_status tr__mirror_leaves(tr__mirror *mirror, tr_tensor **leaves);

#endif
