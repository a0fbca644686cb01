/*
 * A complete device outside the library, on its public headers alone; docs/adding-a-device.md walks through it. toy:0 and toy:1
 * are as unlike a CPU as a CPU can make them:
 *
 *   memory   a file in memory, mapped twice. Addresses of tensors are those of the first mapping, which nobody may touch; workers
 *            compute through the second. What is given back is filled with NaN, in stream order.
 *   streams  a thread and a queue each. Every command runs late: whoever forgets to wait computes with NaN.
 */
#include "toy.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DEVICES = 2, BLOCK = 256, BLOCKS = 64 << 10, MEMORY = BLOCK * BLOCKS, LATE_US = 20 };

/* What a stream is to do. Of a kernel's call everything that it points to is copied. */
typedef struct command {
    struct command *next;
    void (*run)(struct command *c);
    int index, byte;
    void *to;
    const void *from;
    size_t bytes;
    tr_device_event *event;
    long ticket; /* of the event */
    toy_kernel kernel;
    tr_kernel_call call;
    tr_device_tensor tensors[16];
    _Alignas(16) char attrs[256];
} command;

struct tr_device_stream {
    command *first, **last;
    long enqueued, run; /* commands */
    pthread_t worker;
    bool ends;
};

struct tr_device_event {
    long recorded, done;
    int uses; /* its owner's, and commands' */
};

/* One lock for everything, and one condition: something has moved on. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static const tr_device_host *host;

static struct device {
    char *shown, *hidden;      /* the two mappings */
    uint32_t length[BLOCKS];   /* of what begins at a block, in blocks; 0: nothing does */
    long in_use, peak;         /* blocks */
    tr_device_stream *stream;  /* the default one */
    long pending;              /* commands on all streams */
    const char *failure;       /* of a kernel, until somebody waits */
} devices[DEVICES];

/* Where workers find what the host calls p: p itself when it is the host's memory. */
static void *reach(const void *p)
{
    for (int i = 0; i < DEVICES; i++)
        if ((const char *)p >= devices[i].shown && (const char *)p < devices[i].shown + MEMORY)
            return devices[i].hidden + ((const char *)p - devices[i].shown);
    return (void *)p;
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static void drop_event(tr_device_event *e) /* under the lock */
{
    if (e && --e->uses == 0) free(e);
}

static void *work(void *arg)
{
    tr_device_stream *s = arg;
    pthread_mutex_lock(&lock);
    for (command *c;;) {
        while (!(c = s->first) && !s->ends) pthread_cond_wait(&moved, &lock);
        if (!c) break;
        pthread_mutex_unlock(&lock);
        usleep(LATE_US);
        c->run(c);
        pthread_mutex_lock(&lock);
        if (!(s->first = c->next)) s->last = &s->first;
        s->run++;
        devices[c->index].pending--;
        drop_event(c->event);
        free(c);
        pthread_cond_broadcast(&moved);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static command *new_command(int index, void (*run)(command *c))
{
    command *c = calloc(1, sizeof *c);
    if (c) *c = (command){.index = index, .run = run};
    return c;
}

static tr_status enqueue(tr_device_stream *s, command *c)
{
    if (!c) return host->fail(TR_NO_MEMORY, "no memory for a command");
    pthread_mutex_lock(&lock);
    if (!s) s = devices[c->index].stream;
    *s->last = c;
    s->last = &c->next;
    s->enqueued++;
    devices[c->index].pending++;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
    return TR_OK;
}

static tr_status stream_new(int index, tr_device_stream **out)
{
    (void)index;
    tr_device_stream *s = calloc(1, sizeof *s);
    if (!s || (s->last = &s->first, pthread_create(&s->worker, NULL, work, s)) != 0)
        return free(s), host->fail(TR_NO_MEMORY, "no memory for a stream");
    *out = s;
    return TR_OK;
}

static void stream_free(int index, tr_device_stream *s)
{
    (void)index;
    pthread_mutex_lock(&lock);
    s->ends = true;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
    pthread_join(s->worker, NULL);
    free(s);
}

/* Under the lock, which it gives back: the failure of a kernel is for whoever waits first. */
static tr_status waited(int index)
{
    const char *failure = devices[index].failure;
    devices[index].failure = NULL;
    pthread_mutex_unlock(&lock);
    return failure ? host->fail(TR_INVALID, "%s", failure) : TR_OK;
}

static tr_status stream_synchronize(int index, tr_device_stream *stream)
{
    tr_device_stream *s = stream ? stream : devices[index].stream;
    pthread_mutex_lock(&lock);
    for (long until = s->enqueued; s->run < until;) pthread_cond_wait(&moved, &lock);
    return waited(index);
}

static tr_status synchronize(int index)
{
    pthread_mutex_lock(&lock);
    while (devices[index].pending > 0) pthread_cond_wait(&moved, &lock);
    return waited(index);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static tr_status event_new(int index, tr_device_event **out)
{
    (void)index;
    if ((*out = calloc(1, sizeof **out))) (*out)->uses = 1;
    return *out ? TR_OK : host->fail(TR_NO_MEMORY, "no memory for an event");
}

static void event_free(int index, tr_device_event *e)
{
    (void)index;
    pthread_mutex_lock(&lock);
    drop_event(e);
    pthread_mutex_unlock(&lock);
}

static void run_record(command *c)
{
    pthread_mutex_lock(&lock);
    if (c->event->done < c->ticket) c->event->done = c->ticket;
    pthread_mutex_unlock(&lock);
}

static void run_wait(command *c)
{
    pthread_mutex_lock(&lock);
    while (c->event->done < c->ticket) pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
}

static tr_status enqueue_event(int index, tr_device_stream *stream, tr_device_event *e, void (*run)(command *c))
{
    command *c = new_command(index, run);
    pthread_mutex_lock(&lock);
    if (run == run_record) e->recorded++;
    if (c) c->event = e, c->ticket = e->recorded, e->uses++;
    pthread_mutex_unlock(&lock);
    return enqueue(stream, c);
}

static tr_status event_record(int index, tr_device_stream *stream, tr_device_event *e)
{
    return enqueue_event(index, stream, e, run_record);
}

static tr_status stream_wait(int index, tr_device_stream *stream, tr_device_event *e)
{
    return enqueue_event(index, stream, e, run_wait);
}

static tr_status event_done(int index, tr_device_event *e, bool *done)
{
    (void)index;
    pthread_mutex_lock(&lock);
    *done = e->done == e->recorded;
    pthread_mutex_unlock(&lock);
    return TR_OK;
}

static tr_status event_synchronize(int index, tr_device_event *e)
{
    pthread_mutex_lock(&lock);
    while (e->done < e->recorded) pthread_cond_wait(&moved, &lock);
    return waited(index);
}

/* ---- Memory and copies ------------------------------------------------------------------------------------------- */

/* First fit. */
static tr_status allocate(int index, tr_device_stream *stream, size_t bytes, void **out)
{
    (void)stream;
    struct device *d = &devices[index];
    size_t blocks = (bytes + BLOCK - 1) / BLOCK, free_from = 0, at = 0;
    pthread_mutex_lock(&lock);
    while (at < BLOCKS && at - free_from < blocks) {
        if (d->length[at]) free_from = at += d->length[at];
        else at++;
    }
    bool fits = blocks <= BLOCKS && at - free_from >= blocks;
    if (fits) {
        d->length[free_from] = (uint32_t)blocks;
        d->in_use += (long)blocks;
        if (d->in_use > d->peak) d->peak = d->in_use;
        *out = d->shown + free_from * BLOCK;
    }
    pthread_mutex_unlock(&lock);
    return fits ? TR_OK : TR_NO_MEMORY;
}

static void run_release(command *c)
{
    struct device *d = &devices[c->index];
    size_t at = (size_t)((char *)c->to - d->shown) / BLOCK;
    memset(reach(c->to), 0xff, c->bytes);
    pthread_mutex_lock(&lock);
    d->in_use -= (long)d->length[at];
    d->length[at] = 0;
    pthread_mutex_unlock(&lock);
}

static void run_copy(command *c) { memcpy(reach(c->to), reach(c->from), c->bytes); }
static void run_set(command *c) { memset(reach(c->to), c->byte, c->bytes); }

static tr_status enqueue_bytes(int index, tr_device_stream *stream, void (*run)(command *c), void *to, const void *from, int byte,
    size_t bytes)
{
    command *c = new_command(index, run);
    if (c) c->to = to, c->from = from, c->byte = byte, c->bytes = bytes;
    return enqueue(stream, c);
}

static void release(int index, tr_device_stream *stream, void *memory, size_t bytes)
{
    (void)enqueue_bytes(index, stream, run_release, memory, NULL, 0, bytes);
}

static tr_status copy(int index, tr_device_stream *stream, void *to, const void *from, size_t bytes)
{
    return enqueue_bytes(index, stream, run_copy, to, from, 0, bytes);
}

static tr_status copy_peer(int index, tr_device_stream *stream, void *to, int from_index, const void *from, size_t bytes)
{
    (void)from_index;
    return enqueue_bytes(index, stream, run_copy, to, from, 0, bytes);
}

static tr_status set_bytes(int index, tr_device_stream *stream, void *to, int byte, size_t bytes)
{
    return enqueue_bytes(index, stream, run_set, to, NULL, byte, bytes);
}

static tr_status host_allocate(size_t bytes, void **out)
{
    *out = aligned_alloc(BLOCK, (bytes + BLOCK - 1) / BLOCK * BLOCK);
    return *out ? TR_OK : host->fail(TR_NO_MEMORY, "no host memory for %zu bytes", bytes);
}

static void host_release(void *memory, size_t bytes)
{
    memset(memory, 0xff, bytes);
    free(memory);
}

static tr_status memory(int index, tr_device_memory *out)
{
    pthread_mutex_lock(&lock);
    out->in_use = out->reserved = devices[index].in_use * BLOCK;
    out->peak = devices[index].peak * BLOCK;
    out->available = MEMORY - out->in_use;
    pthread_mutex_unlock(&lock);
    return TR_OK;
}

static void reset_peak(int index)
{
    pthread_mutex_lock(&lock);
    devices[index].peak = devices[index].in_use;
    pthread_mutex_unlock(&lock);
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

static void run_kernel(command *c)
{
    const char *failure = c->kernel(&c->call);
    pthread_mutex_lock(&lock);
    if (failure) devices[c->index].failure = failure;
    pthread_mutex_unlock(&lock);
}

tr_status toy_enqueue(const tr_kernel_call *call, toy_kernel kernel)
{
    if (call->attrs_size > sizeof ((command *)0)->attrs) return TR_DECLINED;
    command *c = new_command(call->index, run_kernel);
    if (!c) return enqueue(NULL, c);
    int n = call->n_inputs, all = n + call->n_outputs;
    c->kernel = kernel;
    c->call = *call;
    c->call.inputs = c->tensors;
    c->call.outputs = c->tensors + n;
    c->call.attrs = memcpy(c->attrs, call->attrs_size ? call->attrs : "", call->attrs_size);
    for (int i = 0; i < all; i++) {
        c->tensors[i] = i < n ? call->inputs[i] : call->outputs[i - n];
        if (c->tensors[i].data) c->tensors[i].data = reach(c->tensors[i].data);
    }
    return enqueue(call->stream, c);
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static tr_status start(const tr_device_host *its)
{
    host = its;
    for (int i = 0; i < DEVICES; i++) {
        int file = memfd_create("toy", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, MEMORY) != 0) return host->fail(TR_NO_MEMORY, "no memory for a device");
        devices[i].shown = mmap(NULL, MEMORY, PROT_NONE, MAP_SHARED, file, 0);
        devices[i].hidden = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (devices[i].shown == MAP_FAILED || devices[i].hidden == MAP_FAILED)
            return host->fail(TR_NO_MEMORY, "no addresses for a device");
        tr_status status = stream_new(i, &devices[i].stream);
        if (status != TR_OK) return status;
    }
    return TR_OK;
}

static int count(void) { return DEVICES; }

static tr_status properties(int index, tr_device_properties *out)
{
    (void)index;
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
