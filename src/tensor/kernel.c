#include "tensor/kernel.h"

#include "base/check.h"
#include "device/capture.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 8 }; /* inputs, outputs */

/* Process-wide, and set once: does the environment ask for each kernel's end to be waited for? */
static bool synchronous;
static pthread_once_t asked = PTHREAD_ONCE_INIT;

static void ask(void)
{
    synchronous = tr__check_asks("sync");
}

bool tr__waits_for_kernels(void)
{
    pthread_once(&asked, ask);
    return synchronous;
}

bool tr__has_kernel(tr_device device, const char *op)
{
    return tr__kernel_first(device.kind, op) != NULL;
}

static tr_device_tensor seen(const tr_tensor *t)
{
    tr_device_tensor view = {.data = NULL};
    if (!t) return view;
    view = (tr_device_tensor){.data = tr__ptr(t), .dtype = t->dtype, .shape = t->shape};
    memcpy(view.stride, t->stride, sizeof view.stride);
    return view;
}

/* "f32 [2, 3] and i64 [2]" */
static void describe(const tr_tensor *const *tensors, int n, char *text, size_t bytes)
{
    size_t at = 0;
    *text = '\0';
    for (int i = 0; i < n && at < bytes; i++)
        if (tensors[i])
            at += (size_t)snprintf(text + at, bytes - at, "%s%s %s", at ? ", " : "", tr_dtype_name(tensors[i]->dtype),
                TR__TEXT(tensors[i]->shape));
}

static tr_status fail_unsupported(const char *op, tr_device device, const tr_tensor *const *inputs, int n_inputs,
    const tr_tensor *const *outputs, int n_outputs)
{
    char name[16], given[512];
    tr_device_name(device, name);
    if (!tr__has_kernel(device, op)) return tr__fail(TR_UNSUPPORTED, "%s: no kernel for %s", op, name);
    describe(n_inputs ? inputs : outputs, n_inputs ? n_inputs : n_outputs, given, sizeof given);
    return tr__fail(TR_UNSUPPORTED, "%s: no kernel for %s takes %s", op, name, given);
}

tr_status tr__try_kernel(const char *op, tr_device device, const void *attrs, size_t attrs_size,
    const tr_tensor *const *inputs, int n_inputs, const tr_tensor *const *outputs, int n_outputs)
{
    tr_device_tensor in[MOST], out[MOST];
    for (int i = 0; i < n_inputs; i++) in[i] = seen(inputs[i]);
    for (int i = 0; i < n_outputs; i++) out[i] = seen(outputs[i]);
    int number = -1;
    tr__capture *capture = tr__capture_now();
    TR__TRY(tr__capture_check_device(device));
    if (strcmp(op, "random") == 0)
        TR__TRY(tr__capture_refuse("draws random numbers, which would be the same in each run", "make them one of its inputs"));
    tr_kernel_call call = {.size = sizeof call, .op = op, .index = device.index, .attrs = attrs_size ? attrs : NULL,
        .attrs_size = attrs_size, .n_inputs = n_inputs, .n_outputs = n_outputs, .inputs = in, .outputs = out,
        .live = capture ? &number : NULL};
    char name[16];
    tr_status status = TR_DECLINED;
    uint64_t failures = tr__failures();
    const tr__kernel_node *kernel = tr__kernel_first(device.kind, op);
    for (; kernel && status == TR_DECLINED; kernel = tr__kernel_next(kernel)) {
        if (kernel->entry.attrs_size != attrs_size)
            return tr__fail(TR_DEVICE, "%s: the kernel for %s takes attributes of %zu bytes, and the op's have %zu: it was built "
                "for another version of the op", op, tr_device_name(device, name), kernel->entry.attrs_size, attrs_size);
        status = kernel->entry.run(&call);
    }
    if (status == TR_DECLINED) return status;
    if (status == TR_OK && capture) return tr__capture_kernel(capture, op, number, attrs, attrs_size);
    if (status == TR_OK && tr__waits_for_kernels()) status = tr__plugin(device.kind)->stream_synchronize(device.index, NULL);
    if (status == TR_OK) return TR_OK;
    return tr__fail_context(tr__fail_unsaid(status, failures), "%s on %s", op, tr_device_name(device, name));
}

tr_status tr__run_kernel(const char *op, tr_device device, const void *attrs, size_t attrs_size,
    const tr_tensor *const *inputs, int n_inputs, const tr_tensor *const *outputs, int n_outputs)
{
    tr_status status = tr__try_kernel(op, device, attrs, attrs_size, inputs, n_inputs, outputs, n_outputs);
    return status == TR_DECLINED ? fail_unsupported(op, device, inputs, n_inputs, outputs, n_outputs) : status;
}
