/* Running the kernels of devices other than the CPU: ops of the table, and those that trireme/kernels.h adds. */
#ifndef TR_TENSOR_KERNEL_H
#define TR_TENSOR_KERNEL_H

#include "tensor/tensor.h"

#include <trireme/device.h>

/* Does TRIREME_CHECK ask for each kernel's end to be waited for? */
bool tr__waits_for_kernels(void);
/* Has the device any kernel for the op? */
bool tr__has_kernel(tr_device device, const char *op);
/* Enqueues a kernel of the op. Inputs and outputs may be NULL where the op allows it; all are on the device. TR_UNSUPPORTED, naming
 * the op, the device and what it was given, when there is no kernel that takes them. attrs: attrs_size bytes. */
tr_status tr__run_kernel(const char *op, tr_device device, const void *attrs, size_t attrs_size,
    const tr_tensor *const *inputs, int n_inputs, const tr_tensor *const *outputs, int n_outputs);
/* The same; TR_DECLINED, which is no failure, when there is no kernel that takes them. */
tr_status tr__try_kernel(const char *op, tr_device device, const void *attrs, size_t attrs_size,
    const tr_tensor *const *inputs, int n_inputs, const tr_tensor *const *outputs, int n_outputs);

#endif
