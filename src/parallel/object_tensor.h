/*
 * A tensor that holds an object. Given to an op as input 0 and saved by it, the object lives as long as a
 * backward may need it.
 */
#ifndef TR_PARALLEL_OBJECT_TENSOR_H
#define TR_PARALLEL_OBJECT_TENSOR_H

#include "tensor/tensor.h"

/* Takes a reference of its own to object; the op's other inputs are on device. */
tr_tensor *tr__object_tensor(const void *object, tr_device device);
/* The object: a borrowed pointer. */
static inline void *tr__object_of_tensor(const tr_tensor *holder) { return holder->storage->data; }

#endif
