#include "table.h"

#include "device.h"
#include "families.h"

struct no_attributes;
template <class A> constexpr size_t size_of_attributes = sizeof(A);
template <> constexpr size_t size_of_attributes<no_attributes> = 0;
#define NONE no_attributes

/* The library's call, on its device. */
template <tr_status (*RUN)(const job &)> static tr_status run(const tr_kernel_call *call)
{
    TRY(device_enter(call->index));
    return RUN(job(call));
}

const tr_kernel_entry cuda_kernels[CUDA_KERNELS] = {
#define KERNEL(op, attributes) {#op, size_of_attributes<attributes>, run<cuda_##op>},
#include "kernels.def"
};
