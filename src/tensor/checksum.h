/* Checksums of tensors. */
#ifndef TR_TENSOR_CHECKSUM_H
#define TR_TENSOR_CHECKSUM_H

#include <trireme/tensor.h>

/* The CRC-32C of a tensor's elements, row-major, by all threads of the CPU. */
tr_status tr__checksum(const tr_tensor *t, uint32_t *sum);
/* Those of a list's tensors, in one pass over all of them; what does not lie row-major in the CPU's memory is copied,
 * one tensor at a time. sums: [count] */
tr_status tr__checksums(const tr_tensor_list *list, uint32_t *sums);

#endif
