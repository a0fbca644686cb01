/* Elements of any type as doubles, and the bits of many, for tests. */
#ifndef TR_TESTS_NUMBERS_H
#define TR_TESTS_NUMBERS_H

#include <trireme/tensor.h>

#include <stdint.h>

double get(tr_dtype dtype, const void *memory, int64_t i);
void put(tr_dtype dtype, void *memory, int64_t i, double value);

/* Of the bytes of all tensors, which are contiguous on the CPU, behind those that an earlier hash is of; 0: none. */
uint64_t hash_of_list(const tr_tensor_list *list, uint64_t earlier);

#endif
