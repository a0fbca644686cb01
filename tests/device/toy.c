/*
 * A complete device outside the library, on its public headers alone; docs/adding-a-device.md walks through it. toy:0 and toy:1
 * are as unlike a CPU as a CPU can make them:
 *
 *   memory   tensors have addresses at which there is nothing; workers know how far away their numbers really are. Fresh memory
 *            holds NaN, and so does what is given back, in stream order.
 *   streams  a thread and a queue each. Every command runs late: whoever forgets to wait computes with NaN.
 *   kernels  plain loops (toy_kernels.h) over a copy of the call, which a worker runs.
 */
#include "toy_kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" /* the functions of the table have more than a toy needs */

enum { DEVICES = 2, STREAMS = 64, ALIGN = 256, MEMORY = 16 << 20, LATE_US = 20 };

/* What had been enqueued on the stream when it was recorded; no stream: it never was. */
struct tr_device_event {
    tr_device_stream *stream;
    long until;
};

/* What a stream is to do: wait for an event, or run, or end. */
typedef struct command {
    struct command *next;
    tr_device_event after;
    void (*run)(struct command *c);
    bool ends;
    int index, byte;
    void *to;
    const void *from;
    size_t bytes;
    toy_kernel loop;
    tr_kernel_call call;
    tr_device_tensor tensors[16];
    _Alignas(16) char attrs[256];
} command;

/* A stream's place is used again when it ends; its counters go on, so that events of the one before are done. */
struct tr_device_stream {
    pthread_t worker;
    int index;
    bool used;
    command *first, **last;
    _Atomic long enqueued, run; /* commands */
};

/* One lock for everything, and one condition: something has moved on. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static void give_lock(int *held) { pthread_mutex_unlock(&lock); }
#define LOCKED __attribute__((cleanup(give_lock), unused)) int held = pthread_mutex_lock(&lock) /* until the block ends */

static const tr_device_host *host;
static tr_device_stream streams[STREAMS]; /* the first ones are the devices' default streams */
static struct {
    int64_t in_use, peak; /* bytes */
    const char *failure;  /* of a kernel, until somebody waits */
} devices[DEVICES];

/* ---- Streams and events ------------------------------------------------------------------------------------------ */

static void come(tr_device_event e) /* with the lock */
{
    while (e.stream && e.stream->run < e.until) pthread_cond_wait(&moved, &lock);
}

static void *work(void *arg)
{
    tr_device_stream *s = arg;
    LOCKED;
    for (bool ends = false; !ends;) {
        while (!s->first) pthread_cond_wait(&moved, &lock);
        command *c = s->first;
        come(c->after);
        pthread_mutex_unlock(&lock);
        usleep(LATE_US);
        if (c->run) c->run(c);
        pthread_mutex_lock(&lock);
        if (!(s->first = c->next)) s->last = &s->first;
        s->run++;
        ends = c->ends;
        free(c);
        pthread_cond_broadcast(&moved);
    }
    return NULL;
}

static tr_status enqueue(int index, tr_device_stream *stream, command what)
{
    tr_device_stream *s = stream ? stream : &streams[index];
    command *c = aligned_alloc(_Alignof(command), sizeof *c);
    if (!c) return host->fail(TR_NO_MEMORY, "no memory for a command");
    *c = what;
    c->index = index;
    c->call.inputs = c->tensors;
    c->call.outputs = c->tensors + c->call.n_inputs;
    c->call.attrs = c->attrs;
    LOCKED;
    *s->last = c;
    s->last = &c->next;
    s->enqueued++;
    pthread_cond_broadcast(&moved);
    return TR_OK;
}

static tr_status stream_new(int index, tr_device_stream **out)
{
    LOCKED;
    tr_device_stream *s = streams;
    while (s < streams + STREAMS && s->used) s++;
    if (s == streams + STREAMS || pthread_create(&s->worker, NULL, work, s) != 0)
        return host->fail(TR_NO_MEMORY, "no memory for a stream: there are at most %d", STREAMS);
    s->index = index, s->used = true, s->last = &s->first;
    *out = s;
    return TR_OK;
}

static void stream_free(int index, tr_device_stream *s)
{
    if (enqueue(index, s, (command){.ends = true}) != TR_OK) return;
    pthread_join(s->worker, NULL);
    LOCKED;
    s->used = false;
}

/* For an event, or for all of a device. The failure of a kernel is for whoever waits first. */
static tr_status wait_for(int index, tr_device_event e, bool all)
{
    LOCKED;
    come(e);
    for (tr_device_stream *s = streams; s < streams + STREAMS && all; s++)
        if (s->index == index) come((tr_device_event){s, s->enqueued});
    const char *failure = devices[index].failure;
    devices[index].failure = NULL;
    return failure ? host->fail(TR_INVALID, "%s", failure) : TR_OK;
}

static tr_status synchronize(int index) { return wait_for(index, (tr_device_event){0}, true); }
static tr_status event_synchronize(int index, tr_device_event *e) { return wait_for(index, *e, false); }
static tr_status stream_synchronize(int index, tr_device_stream *stream)
{
    tr_device_stream *s = stream ? stream : &streams[index];
    return wait_for(index, (tr_device_event){s, s->enqueued}, false);
}

static tr_status event_new(int index, tr_device_event **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? TR_OK : host->fail(TR_NO_MEMORY, "no memory for an event");
}

static void event_free(int index, tr_device_event *e) { free(e); }

static tr_status event_record(int index, tr_device_stream *stream, tr_device_event *e)
{
    e->stream = stream ? stream : &streams[index];
    e->until = e->stream->enqueued;
    return TR_OK;
}

static tr_status stream_wait(int index, tr_device_stream *stream, tr_device_event *e)
{
    return enqueue(index, stream, (command){.after = *e});
}

static tr_status event_done(int index, tr_device_event *e, bool *done)
{
    *done = !e->stream || e->stream->run >= e->until;
    return TR_OK;
}

/* ---- Memory and copies ------------------------------------------------------------------------------------------- */

/* What the host sees of an address: no program has memory beyond its 2^48 bytes. Workers take that off again; the host's own
 * memory stays where it is. */
static const uintptr_t AWAY = (uintptr_t)1 << 52;
static void *reach(const void *p) { return (void *)((uintptr_t)p & ~AWAY); }

static int64_t rounded(size_t bytes) { return (int64_t)((bytes + ALIGN - 1) / ALIGN * ALIGN); }

static tr_status allocate(int index, tr_device_stream *stream, size_t bytes, void **out)
{
    int64_t size = rounded(bytes);
    LOCKED;
    char *memory = size <= MEMORY - devices[index].in_use ? aligned_alloc(ALIGN, (size_t)size) : NULL;
    if (!memory) return TR_NO_MEMORY;
    *out = (void *)((uintptr_t)memset(memory, 0xff, (size_t)size) | AWAY);
    devices[index].in_use += size;
    if (devices[index].peak < devices[index].in_use) devices[index].peak = devices[index].in_use;
    return TR_OK;
}

static void run_copy(command *c) { memcpy(reach(c->to), reach(c->from), c->bytes); }
static void run_set(command *c) { memset(reach(c->to), c->byte, c->bytes); }
static void run_release(command *c)
{
    free(memset(c->to, 0xff, c->bytes));
    LOCKED;
    devices[c->index].in_use -= rounded(c->bytes);
}

static void release(int index, tr_device_stream *stream, void *memory, size_t bytes)
{
    /* The true address: a program that ends before the worker comes to it has not leaked it. */
    (void)enqueue(index, stream, (command){.run = run_release, .to = reach(memory), .bytes = bytes});
}

static tr_status copy(int index, tr_device_stream *stream, void *to, const void *from, size_t bytes)
{
    return enqueue(index, stream, (command){.run = run_copy, .to = to, .from = from, .bytes = bytes});
}

static tr_status copy_peer(int index, tr_device_stream *stream, void *to, int from_index, const void *from, size_t bytes)
{
    return copy(index, stream, to, from, bytes);
}

static tr_status set_bytes(int index, tr_device_stream *stream, void *to, int byte, size_t bytes)
{
    return enqueue(index, stream, (command){.run = run_set, .to = to, .byte = byte, .bytes = bytes});
}

static tr_status host_allocate(size_t bytes, void **out)
{
    *out = aligned_alloc(ALIGN, (size_t)rounded(bytes));
    return *out ? TR_OK : host->fail(TR_NO_MEMORY, "no host memory for %zu bytes", bytes);
}

static void host_release(void *memory, size_t bytes) { free(memset(memory, 0xff, bytes)); }

static tr_status memory(int index, tr_device_memory *out)
{
    LOCKED;
    out->in_use = out->reserved = devices[index].in_use;
    out->peak = devices[index].peak;
    out->available = MEMORY - out->in_use;
    return TR_OK;
}

static void reset_peak(int index)
{
    LOCKED;
    devices[index].peak = devices[index].in_use;
}

/* ---- Kernels, and the table -------------------------------------------------------------------------------------- */

static void run_loop(command *c)
{
    const char *failure = c->loop(&c->call);
    LOCKED;
    if (failure) devices[c->index].failure = failure;
}

tr_status toy_enqueue(const tr_kernel_call *call, toy_kernel loop)
{
    command c = {.run = run_loop, .loop = loop, .call = *call};
    int n = call->n_inputs;
    if (call->attrs_size > sizeof c.attrs) return TR_DECLINED;
    if (call->attrs_size) memcpy(c.attrs, call->attrs, call->attrs_size);
    for (int i = 0; i < n + call->n_outputs; i++) {
        c.tensors[i] = i < n ? call->inputs[i] : call->outputs[i - n];
        c.tensors[i].data = reach(c.tensors[i].data);
    }
    return enqueue(call->index, call->stream, c);
}

static tr_status start(const tr_device_host *its)
{
    host = its;
    tr_status status = TR_OK;
    tr_device_stream *s; /* &streams[i] */
    for (int i = 0; i < DEVICES && status == TR_OK; i++) status = stream_new(i, &s);
    return status;
}

static int count(void) { return DEVICES; }

static tr_status properties(int index, tr_device_properties *out)
{
    strcpy(out->name, "toy");
    out->memory_bytes = MEMORY;
    out->compute_units = 1;
    return TR_OK;
}

TR_DEVICE_PLUGIN = {
    .size = sizeof(tr_device_table), .version = TR_DEVICE_INTERFACE, .kind = "toy", .open = start, .count = count,
    .properties = properties, .allocate = allocate, .release = release, .memory = memory, .reset_peak = reset_peak,
    .host_allocate = host_allocate, .host_release = host_release, .stream_new = stream_new, .stream_free = stream_free,
    .stream_synchronize = stream_synchronize, .event_new = event_new, .event_free = event_free, .event_record = event_record,
    .stream_wait = stream_wait, .event_done = event_done, .event_synchronize = event_synchronize, .synchronize = synchronize,
    .copy_in = copy, .copy_out = copy, .copy_within = copy, .copy_peer = copy_peer, .set_bytes = set_bytes,
    .kernels = toy_kernels, .n_kernels = sizeof toy_kernels / sizeof *toy_kernels,
};
