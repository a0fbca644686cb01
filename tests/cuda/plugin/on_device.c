#include "on_device.h"
#include "base/log.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

extern const tr_device_table tr_device_plugin;

/* TRIREME_LOG shows it. */
static void log_message(tr_log_level level, const char *message)
{
    tr__log(level, "%s", message);
}

const tr_device_table *on_device(void)
{
    static tr_device_host host = {
        .size = sizeof host, .fail = tr_fail, .log = log_message, .dtype_size = tr_dtype_size, .dtype_name = tr_dtype_name};
    static bool opened;
    if (!opened && tr_device_plugin.open(&host) != TR_OK) fail_msg("%s", tr_error_message());
    opened = true;
    return &tr_device_plugin;
}

static bool goes_on;
static int failures; /* of this test so far */

void on_device_go_on(void)
{
    goes_on = true;
}

int on_device_failed(void **state)
{
    (void)state;
    int of_test = failures;
    failures = 0;
    return of_test;
}

/* The device may be lost: then nothing that follows would say more. */
__attribute__((format(printf, 2, 3))) static void failed(bool may_go_on, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!goes_on || !may_go_on) fail_msg("%s", text);
    print_error("%s\n", text);
    failures++;
}

static void check(tr_status status)
{
    if (status != TR_OK) fail_msg("%s", tr_error_message());
}

static int place_of(const device_copies *copies, const tr_tensor *t)
{
    int i = 0;
    while (i < copies->n && copies->storage[i] != t->storage) i++;
    return i;
}

tr_device_tensor on_device_view(device_copies *copies, const tr_tensor *t)
{
    tr_device_tensor view = {0};
    if (!t) return view;
    int i = place_of(copies, t);
    if (i == copies->n) {
        assert_true(i < ON_DEVICE_MOST);
        size_t bytes = t->storage->bytes;
        copies->storage[i] = t->storage;
        check(on_device()->allocate(0, NULL, bytes ? bytes : 1, &copies->copy[i]));
        if (bytes) check(on_device()->copy_in(0, NULL, copies->copy[i], t->storage->data, bytes));
        check(on_device()->synchronize(0)); /* the host may write there from now on */
        copies->n++;
    }
    view.data = (char *)copies->copy[i] + ((char *)tr__ptr(t) - (char *)t->storage->data);
    view.dtype = t->dtype;
    view.shape = t->shape;
    memcpy(view.stride, t->stride, sizeof view.stride);
    return view;
}

char *on_device_back(const device_copies *copies, const tr_tensor *t)
{
    char *back = malloc(t->storage->bytes + 1);
    assert_non_null(back);
    if (t->storage->bytes)
        check(on_device()->copy_out(0, NULL, back, copies->copy[place_of(copies, t)], t->storage->bytes));
    check(on_device()->synchronize(0));
    return back;
}

void on_device_free(device_copies *copies)
{
    for (int i = 0; i < copies->n; i++) on_device()->release(0, NULL, copies->copy[i], copies->storage[i]->bytes);
    copies->n = 0;
}

const tr_kernel_entry *on_device_kernel(const char *op)
{
    const tr_device_table *table = on_device();
    for (size_t i = 0; i < table->n_kernels; i++)
        if (strcmp(table->kernels[i].op, op) == 0) return &table->kernels[i];
    return NULL;
}

void on_device_run(const char *op, const void *attrs, size_t attrs_size, const tr_device_tensor *inputs, int n_inputs,
    const tr_device_tensor *outputs, int n_outputs)
{
    const tr_kernel_entry *entry = on_device_kernel(op);
    if (!entry) fail_msg("cuda has no kernel for %s", op);
    if (entry->attrs_size != attrs_size)
        fail_msg("%s: attributes of %zu bytes, its kernel's are %zu", op, attrs_size, entry->attrs_size);
    tr_kernel_call call = {.size = sizeof call, .op = op, .attrs = attrs_size ? attrs : NULL, .attrs_size = attrs_size,
        .n_inputs = n_inputs, .n_outputs = n_outputs, .inputs = inputs, .outputs = outputs};
    tr_status status = entry->run(&call);
    if (status == TR_DECLINED) failed(true, "%s: the kernel declines", op);
    else if (status != TR_OK) failed(true, "%s: %s", op, tr_error_message());
    if (on_device()->synchronize(0) != TR_OK) failed(false, "%s: %s", op, tr_error_message());
}

static int64_t offset_of(const tr_tensor *t, int64_t position)
{
    int64_t offset = 0;
    for (int d = t->shape.ndim; d-- > 0; position /= t->shape.dim[d])
        offset += position % t->shape.dim[d] * t->stride[d];
    return offset;
}

void on_device_compare(const char *what, const tr_tensor *t, const char *back, double tolerance)
{
    const char *base = back + ((char *)tr__ptr(t) - (char *)t->storage->data);
    int64_t n = tr__numel(t->shape);
    double top = 1;
    for (int64_t i = 0; i < n; i++) {
        double size = fabs(tr__load(t->dtype, tr__ptr(t), offset_of(t, i)));
        if (isfinite(size) && size > top) top = size;
    }
    for (int64_t i = 0; i < n; i++) {
        double expected = tr__load(t->dtype, tr__ptr(t), offset_of(t, i)),
               got = tr__load(t->dtype, base, offset_of(t, i));
        if (got == expected || (got != got && expected != expected)) continue;
        if (fabs(got - expected) <= tolerance * (fabs(expected) + top)) continue;
        failed(true, "%s: element %lld of %s is %.9g instead of %.9g", what, (long long)i, tr_dtype_name(t->dtype), got,
               expected);
        return;
    }
}
