#include "table.h"

#include "device.h"
#include "families.h"

/* The library's call, on its device. */
template <tr_status (*RUN)(const job &)> static tr_status run(const tr_kernel_call *call)
{
    TRY(device_enter(call->index));
    return RUN(job(call));
}

const tr_kernel_entry cuda_kernels[CUDA_KERNELS] = {
#define KERNEL(op, attributes) {#op, std::is_empty_v<attributes> ? 0 : sizeof(attributes), run<cuda_##op>},
#include "kernels.def"
};
