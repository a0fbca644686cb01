#include "comm/work/staging.h"

#include "base/memory.h"
#include "base/object.h"
#include "comm/collective.h"
#include "device/device.h"

#include <stdlib.h>

struct tr__staging {
    const tr_device_table *table;
    tr_device device;
    tr_device_stream *stream; /* beside the default one */
    tr_device_event *event;   /* of the latest copy */
    char *host;               /* both buffers; NULL: there are none */
    size_t bytes;
    void *out;                /* where on the device the result goes, and where in the host's memory it is */
    size_t out_at, out_bytes;
};

static tr_status host_new(tr__staging *s)
{
    void *memory = NULL;
    if (s->bytes == 0) return TR_OK;
    if (s->table->host_allocate) TR__TRY(s->table->host_allocate(s->bytes, &memory));
    else if (!(memory = tr__cpu_alloc(0, s->bytes))) return tr__fail(TR_NO_MEMORY, "no memory for %zu bytes", s->bytes);
    s->host = memory;
    return TR_OK;
}

static tr_status copy_out(const tr__staging *s, size_t at, const void *from, size_t bytes)
{
    return bytes ? s->table->copy_out(s->device.index, s->stream, s->host + at, from, bytes) : TR_OK;
}

/* Where the buffers lie in the host's memory: as on the device where one is in the other, else one behind the other. */
static tr_status stage(tr__staging *s, tr_collective *c, int rank, int world)
{
    size_t size = tr_dtype_size(c->dtype), in_at = 0;
    size_t in_bytes = tr__collective_gives(c, rank) ? (size_t)tr__collective_extent(c, world, false) * size : 0;
    s->out_bytes = tr__collective_gets(c, rank) ? (size_t)tr__collective_extent(c, world, true) * size : 0;
    s->out = c->out;
    const char *in = c->in, *out = c->out;
    if (in_bytes && s->out_bytes && in < out + s->out_bytes && out < in + in_bytes) {
        const char *begin = in < out ? in : out, *in_end = in + in_bytes, *out_end = out + s->out_bytes;
        in_at = (size_t)(in - begin);
        s->out_at = (size_t)(out - begin);
        s->bytes = (size_t)((in_end > out_end ? in_end : out_end) - begin);
    } else {
        s->out_at = tr__round_up(in_bytes, TR__CACHE_LINE);
        s->bytes = s->out_at + s->out_bytes;
    }
    TR__TRY(host_new(s));
    TR__TRY(s->table->event_record(s->device.index, c->stream, s->event));
    TR__TRY(s->table->stream_wait(s->device.index, s->stream, s->event));
    /* What lies between the blocks of a result goes back as it is. */
    if (tr__kind_of(c->kind)->variable) TR__TRY(copy_out(s, s->out_at, out, s->out_bytes));
    TR__TRY(copy_out(s, in_at, in, in_bytes));
    TR__TRY(s->table->event_record(s->device.index, s->stream, s->event));
    if (in) c->in = s->host + in_at;
    if (out) c->out = s->host + s->out_at;
    return TR_OK;
}

tr_status tr__staging_begin(tr_collective *c, int rank, int world_size, tr__staging **out)
{
    *out = NULL;
    if (c->device.kind == TR_CPU || (!c->in && !c->out)) return TR_OK;
    TR__TRY(tr__device_check(c->device));
    tr__staging *s = calloc(1, sizeof *s);
    if (!s) return tr__fail(TR_NO_MEMORY, "out of memory");
    *s = (tr__staging){.table = tr__plugin(c->device.kind), .device = c->device};
    tr_status status = s->table->event_new(s->device.index, &s->event);
    if (status == TR_OK) status = tr__device_side_stream(s->device, &s->stream);
    if (status == TR_OK) status = stage(s, c, rank, world_size);
    if (status != TR_OK) return tr__staging_end(s, status);
    *out = s;
    return TR_OK;
}

tr_status tr__staging_ready(tr__staging *s)
{
    return s ? s->table->event_synchronize(s->device.index, s->event) : TR_OK;
}

static tr_status copy_back(const tr__staging *s)
{
    if (s->out_bytes == 0) return TR_OK;
    TR__TRY(s->table->copy_in(s->device.index, s->stream, s->out, s->host + s->out_at, s->out_bytes));
    return s->table->event_record(s->device.index, s->stream, s->event);
}

tr_status tr__staging_end(tr__staging *s, tr_status status)
{
    if (!s) return status;
    if (status == TR_OK) status = copy_back(s);
    tr__error *first = status == TR_OK ? NULL : tr__error_take();
    tr_status waited = s->event ? tr__staging_ready(s) : TR_OK; /* the memory is in use until then, whatever has failed */
    tr__error_restore(first);
    if (s->host && s->table->host_release) s->table->host_release(s->host, s->bytes);
    else if (s->host) tr__cpu_free(0, s->host, s->bytes);
    if (s->event) s->table->event_free(s->device.index, s->event);
    free(s);
    return status == TR_OK ? waited : status;
}
