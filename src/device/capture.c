#include "device/capture.h"

#include "base/memory.h"
#include "base/object.h"

#include <stdlib.h>
#include <string.h>

/* Pinned memory that the graph copies from whenever it runs. */
typedef struct tr__captured_constant {
    struct tr__captured_constant *next;
    void *memory;
    size_t bytes;
} tr__captured_constant;

static _Thread_local tr__capture *capturing __attribute__((tls_model("initial-exec")));

bool tr__capture_possible(tr_device device)
{
    const tr_device_table *table = tr__plugin(device.kind);
    return table && table->capture_begin;
}

/* ---- Beginning and end ------------------------------------------------------------------------------------------- */

tr_status tr__capture_begin(tr__capture *c, tr_device device)
{
    if (capturing) return tr__fail(TR_STATE, "capture: this thread captures another step already");
    c->device = device;
    c->table = tr__plugin(device.kind);
    tr_status status = c->table->capture_begin(device.index, &c->graph);
    if (status == TR_OK) capturing = c;
    else c->graph = NULL;
    return status;
}

tr_status tr__capture_end(tr__capture *c, tr_status status)
{
    capturing = NULL;
    if (c->failure) status = tr__fail_stored(c->failure);
    if (status == TR_OK) status = c->table->capture_end(c->device.index, c->graph);
    if (status == TR_OK) return TR_OK;
    TR__KEEP_ERROR;
    tr__capture_free(c);
    return status;
}

void tr__capture_free(tr__capture *c)
{
    if (c->graph) c->table->graph_free(c->device.index, c->graph);
    while (c->constants) {
        tr__captured_constant *gone = c->constants;
        c->constants = gone->next;
        c->table->host_release(gone->memory, gone->bytes);
        free(gone);
    }
    for (int i = 0; i < c->n_lives; i++) free(c->lives[i].attrs);
    free(c->lives);
    tr__error_unref(c->failure);
    *c = (tr__capture){0};
}

/* ---- While a thread captures ------------------------------------------------------------------------------------- */

tr__capture *tr__capture_now(void)
{
    return capturing;
}

/* The failure that was made just now also ends the capture, when nobody looks at it. */
static tr_status spoil(tr_status status)
{
    if (!capturing->failure) capturing->failure = tr__error_take();
    return status;
}

tr_status tr__capture_refuse(const char *what, const char *instead)
{
    if (!capturing) return TR_OK;
    return spoil(tr__fail(TR_STATE, "a captured step %s: nothing has been computed while it is captured; %s", what,
        instead));
}

tr_status tr__capture_check_device(tr_device device)
{
    char other[16], own[16];
    if (!capturing || tr_device_equal(device, capturing->device)) return TR_OK;
    return spoil(tr__fail(TR_UNSUPPORTED, "a captured step uses %s beside %s: capture what runs on one device",
        tr_device_name(device, other), tr_device_name(capturing->device, own)));
}

tr_status tr__capture_kernel(tr__capture *c, const char *op, int number, const void *attrs, size_t attrs_size)
{
    char name[16];
    uint64_t source = c->source;
    c->source = 0;
    tr_device_name(c->device, name);
    if (number < 0 && !source) return TR_OK;
    if (number < 0)
        return spoil(tr__fail(TR_UNSUPPORTED, "%s: its kernel for %s takes no other attributes from run to run, so a "
            "captured step would repeat these", op, name));
    if (!source)
        return spoil(tr__fail(TR_STATE, "%s: a captured step would use the same random numbers in each run: use a "
            "module (tr_dropout_layer()), to which tr_seed() gives others before the run", op));
    bool grown = tr__grow(&c->lives, (size_t)c->n_lives, &c->lives_room, sizeof *c->lives);
    void *copy = grown ? malloc(attrs_size) : NULL;
    if (!copy) return spoil(tr__fail(TR_NO_MEMORY, "capture: out of memory"));
    memcpy(copy, attrs, attrs_size);
    c->lives[c->n_lives++] = (tr__live_kernel){number, source, copy};
    return TR_OK;
}

tr_status tr__capture_constant(tr__capture *c, void *to, const void *from, size_t bytes)
{
    if (!c->table->host_allocate) return spoil(tr__fail(TR_UNSUPPORTED, "capture: the device has no pinned memory"));
    tr__captured_constant *made = calloc(1, sizeof *made);
    if (!made) return spoil(tr__fail(TR_NO_MEMORY, "capture: out of memory"));
    tr_status status = c->table->host_allocate(bytes, &made->memory);
    if (status != TR_OK) {
        free(made);
        return spoil(status);
    }
    made->bytes = bytes;
    made->next = c->constants;
    c->constants = made;
    memcpy(made->memory, from, bytes);
    status = c->table->copy_in(c->device.index, NULL, to, made->memory, bytes);
    return status == TR_OK ? TR_OK : spoil(status);
}
