/*
 * A carrier is a tensor that holds an object: given to an op as input 0 and saved by it, the object lives as long as a
 * backward may need it.
 */
#ifndef TR_PARALLEL_CARRIER_H
#define TR_PARALLEL_CARRIER_H

#include "tensor/tensor.h"

/* Takes a reference of its own to object; the op's other inputs are on device. */
tr_tensor *tr__carrier(const void *object, tr_device device);
/* The object: a borrowed pointer. */
static inline void *tr__carrier_object(const tr_tensor *carrier) { return carrier->storage->data; }

#endif
