/* The list of kernels, from kernels.def. */
#ifndef TRIREME_CUDA_TABLE_H
#define TRIREME_CUDA_TABLE_H

#include <trireme/device.h>

enum {
#define KERNEL(op, attributes) CUDA_KERNEL_##op,
#include "kernels.def"
    CUDA_KERNELS
};
extern const tr_kernel_entry cuda_kernels[CUDA_KERNELS];

#endif
