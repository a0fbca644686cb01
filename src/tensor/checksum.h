/* Checksums of tensors. */
#ifndef TR_TENSOR_CHECKSUM_H
#define TR_TENSOR_CHECKSUM_H

#include <trireme/tensor.h>

/* The CRC-32C of a tensor's elements, row-major, by all threads of the CPU. */
tr_status tr__checksum(const tr_tensor *t, uint32_t *sum);

#endif
