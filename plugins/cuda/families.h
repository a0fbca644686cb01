/* The kernels that the families define, and what they use of each other. */
#ifndef TRIREME_CUDA_FAMILIES_H
#define TRIREME_CUDA_FAMILIES_H

#include "kernel.h"

#define KERNEL(op, attributes) tr_status cuda_##op(const job &j);
#include "kernels.def"

/* y: row-major <- the sums of x over the dimensions in the mask, divided by divisor. */
tr_status sum_into(const job &j, const tr_device_tensor &x, uint32_t dims, const tr_device_tensor &y, double divisor);
/* y (+)= those sums. */
tr_status sum_onto(const job &j, const tr_device_tensor &x, uint32_t dims, const tr_device_tensor &y, bool accumulate);

#endif
