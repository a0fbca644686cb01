/*
 * Trireme, devices: asking about them, and the interface through which somebody else's device joins.
 *
 * A plug-in is one shared object that brings one kind of device ("cuda", "toy"): a table of functions and a list of
 * kernels. docs/adding-a-device.md builds one.
 *
 * How it is found. The first question about a device of a kind other than "cpu" (tr_device_parse(), tr_device_count(),
 * …) opens, once in the life of the process, every shared object that the environment variable TRIREME_PLUGINS lists:
 * paths with ':' between them. A kind that none of them brings is looked for beside the library: libtrireme-<kind>.so
 * in the folder of libtrireme.so, or of the program when that is linked statically. Nothing is ever closed.
 *
 * What can be wrong. A path that cannot be opened, an object without `tr_device_plugin`, another version, a kind that
 * is taken, an open() that fails: such a plug-in is left out, and whoever asks for a device that is therefore missing
 * gets TR_DEVICE with the reason:
 *   "there is no device toy:0: the plug-in ./libtoy.so has version 2 of the device interface, and this library takes
 *    version 1: build the plug-in against this Trireme"
 *
 * Versions. TR_DEVICE_INTERFACE changes when a plug-in of before would no longer be right; then it must be built again.
 * Otherwise the table grows at its end: `size` says where the plug-in's ends, and what lies behind is NULL. NULL is
 * allowed where a member says so.
 */
#ifndef TRIREME_DEVICE_H
#define TRIREME_DEVICE_H

#include <trireme/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- For programs ---------------------------------------------------------------------------------------------- */

/* Threads: all of these may be called from any thread at any time. */

typedef struct tr_device_properties {
    size_t size;            /* set by the caller: sizeof(tr_device_properties) */
    char name[128];         /* "NVIDIA H100 80GB HBM3"; the processor's model */
    char architecture[32];  /* "sm_90"; "x86-64 avx512" */
    int64_t memory_bytes;   /* of the device, all of it */
    int compute_units;      /* multiprocessors; threads of a CPU device */
    char driver[64];        /* "CUDA 12.4, driver 550.54"; empty when there is nothing to say */
} tr_device_properties;

/* Bytes. What tensors hold, the most that they held since the start or tr_device_reset_peak(), what the allocator has
 * from the system (tensors' memory and what it keeps for later), and what the device has left for anybody. */
typedef struct tr_device_memory {
    size_t size;            /* set by the caller: sizeof(tr_device_memory) */
    int64_t in_use, peak, reserved, available;
} tr_device_memory;

TR_API TR_MUST_CHECK tr_status tr_device_describe(tr_device device, tr_device_properties *out);
TR_API TR_MUST_CHECK tr_status tr_device_memory_of(tr_device device, tr_device_memory *out);
TR_API TR_MUST_CHECK tr_status tr_device_reset_peak(tr_device device);
/* Gives the memory that the allocator keeps for later back to the system. */
TR_API TR_MUST_CHECK tr_status tr_device_trim(tr_device device);
/* Waits for everything that was enqueued on the device. Its status is that of the work: a kernel that failed there is
 * reported by the first wait after it. Ops enqueue and return; tr_item() and tr_copy_out() wait by themselves. */
TR_API TR_MUST_CHECK tr_status tr_device_synchronize(tr_device device);
/* The kind that has this name, whose plug-in is opened when it has to be; tr_device_kind_name() is the way back ("?"
 * for what is no kind). TR_DEVICE when there is none. Kinds that plug-ins bring have the numbers from TR_CUDA + 1 on,
 * in this process. */
TR_API TR_MUST_CHECK tr_status tr_device_kind_named(const char *name, tr_device_kind *out);
TR_API const char *tr_device_kind_name(tr_device_kind kind);

/* ---- What a kernel gets ---------------------------------------------------------------------------------------- */

/* A stream orders work: what is enqueued on one runs in the order of the calls, and beside that on others. The plug-in
 * defines both structs. NULL is the default stream of a device, which every device has and all threads share: so work
 * of several threads runs in the order in which they enqueued it, and who hands a tensor to another thread need not
 * wait. */
typedef struct tr_device_stream tr_device_stream;
typedef struct tr_device_event tr_device_event;
typedef struct tr_device_graph tr_device_graph; /* what capture_begin() makes; the plug-in's, too */

/* A tensor as kernels see it. Element (i, j, …) lies at data + (i stride[0] + j stride[1] + …) * size of the dtype.
 * Strides are in elements; 0 where a dimension is broadcast, never negative. bool is one byte, 0 or 1. data is an
 * address of the device's, aligned to its dtype. */
typedef struct tr_device_tensor {
    void *data;             /* NULL: the op was not given this input, or nobody wants this output */
    tr_dtype dtype;
    tr_shape shape;
    int64_t stride[TR_MAX_DIMS];
} tr_device_tensor;

/* One run of an op. Lives until the kernel returns: what runs later takes copies of what it needs. A tensor without
 * elements may have any data but NULL. */
typedef struct tr_kernel_call {
    size_t size;
    const char *op;               /* its name */
    int index;                    /* of the device */
    tr_device_stream *stream;     /* where to enqueue */
    const void *attrs;            /* the op's attributes (trireme/kernels.h); aligned to 16 */
    size_t attrs_size;            /* 0: it has none, and attrs is NULL */
    int n_inputs, n_outputs;
    const tr_device_tensor *inputs;  /* [n_inputs] */
    const tr_device_tensor *outputs; /* [n_outputs]: made, and to be written whole, unless attributes say "add" */
    /* While a graph is captured: a kernel whose attributes change from run to run, as dropout's and RULE_step's, sets it to the
     * number under which graph_set() gives it those of the next run. Others leave it alone. NULL: nothing is captured. */
    int *live;
} tr_kernel_call;

/* Enqueues the op and returns: TR_OK; TR_DECLINED when it does not take these dtypes, shapes or strides, and has
 * enqueued nothing: then the next kernel of this op is asked, and when none is left the op fails with TR_UNSUPPORTED,
 * naming op, device and dtypes (nothing ever goes to the CPU instead); or a failure, made with host->fail(), to which
 * the library adds the op's name and the device's. Called from several threads at once.
 *
 * Inputs and outputs do not overlap, but that an elementwise op may get an output which is exactly one of its inputs.
 * Memory that a kernel needs only while it runs it gets and gives back on its stream. */
typedef tr_status (*tr_kernel)(const tr_kernel_call *call);
#define TR_DECLINED (-1)

/* A kernel and the op that it is for. Several may be for one op: they are asked in the order of the list. attrs_size:
 * sizeof the attributes that it was compiled with; when the op has others, the op fails and says so. */
typedef struct tr_kernel_entry {
    const char *op;
    size_t attrs_size;
    tr_kernel run;
} tr_kernel_entry;

/*
 * Every device needs these three kernels; trireme/kernels.h says what others get.
 *
 *   fill           () -> y                   every element becomes attrs.value, of y's dtype: tr_fill_attrs. Any strides
 *   copy           x -> y: x's shape         y <- x, converted as tr_cast() does where dtypes differ. Any strides, x's may be 0
 *   random         () -> y: row-major, a     y[i] <- scale * number(seed, i) + shift, computed in f32: tr_random_attrs
 *                  float
 */
typedef struct tr_fill_attrs {
    double value;
} tr_fill_attrs;

/* Numbers 4 i … 4 i + 3 are made of the four words of Philox4x32-10 with key seed and counter (0, i): uniform in [0,
 * 1), (word >> 8) * 2^-24, of which f16 and bf16 keep the leading bits when scale is 1 and shift 0; or normal, by
 * Box-Muller of words (0, 1) and (2, 3). src/tensor/random.c is the reference. */
typedef struct tr_random_attrs {
    uint64_t seed;
    float scale, shift;
    bool normal; /* else uniform */
} tr_random_attrs;

/* Gives devices of a kind a kernel for an op of the program's own, or a better one for one of the library's: it is
 * asked before those that are there. The kind need not be open. The strings are copied. Fails when memory is short, or
 * `kind` is "cpu", for which an op's own `forward` is. */
TR_API TR_MUST_CHECK tr_status tr_kernel_register(const char *kind, const tr_kernel_entry *entry);

/* ---- What a plug-in is ------------------------------------------------------------------------------------------ */

/* What the library offers the plug-in, so that this needs no symbol of it and runs in programs that are linked
 * statically, too. The table lives as long as the process. */
typedef struct tr_device_host {
    size_t size;
    /* tr_fail(): sets the calling thread's message, returns status. `return host->fail(TR_NO_MEMORY, "…", …);` */
    tr_status (*fail)(tr_status status, const char *format, ...) TR_PRINTF(2, 3);
    void (*log)(tr_log_level level, const char *message); /* to where the library's own messages go */
    size_t (*dtype_size)(tr_dtype dtype);
    const char *(*dtype_name)(tr_dtype dtype);
} tr_device_host;

#define TR_DEVICE_INTERFACE 1

/*
 * The table. All functions may be called from several threads at once, but for open(). `index` is 0 … count() - 1. What
 * returns a tr_status makes its message with host->fail(). What enqueues returns at once; a failure of what it enqueued
 * is returned by the next function that waits for the stream, the event or the device, once.
 */
typedef struct tr_device_table {
    size_t size;          /* sizeof(tr_device_table) */
    uint32_t version;     /* TR_DEVICE_INTERFACE */
    const char *kind;     /* "toy": what devices are called, toy:0; lower-case letters, digits and '_', from a letter on, at most 10 */

    /* Called once, first of all. When it fails (no driver, say) the plug-in is left out, with this message. */
    tr_status (*open)(const tr_device_host *host);
    int (*count)(void);
    /* Fills in what it knows up to out->size; what it leaves is zero. */
    tr_status (*properties)(int index, tr_device_properties *out);

    /* ---- Memory. bytes > 0; aligned to 256 bytes. It may be used by what is enqueued on `stream` from now on, and
     * elsewhere when an event has ordered that. TR_NO_MEMORY: the library then waits for the device, calls trim() and
     * asks once more. */
    tr_status (*allocate)(int index, tr_device_stream *stream, size_t bytes, void **out);
    /* Nothing enqueued later uses it; what was enqueued on `stream` before still may. bytes as they were. */
    void (*release)(int index, tr_device_stream *stream, void *memory, size_t bytes);
    /* Gives back what is kept for later. NULL: nothing is. */
    void (*trim)(int index);
    tr_status (*memory)(int index, tr_device_memory *out);
    void (*reset_peak)(int index);

    /* Host memory that the device reaches by itself ("pinned"), so that copies from and to it run beside the host;
     * aligned to 256 bytes. NULL, both: there is none, and ordinary memory serves as well. */
    tr_status (*host_allocate)(size_t bytes, void **out);
    void (*host_release)(void *memory, size_t bytes);

    /* ---- Streams and events. Of the default stream there is no stream_new(). */
    tr_status (*stream_new)(int index, tr_device_stream **out);
    void (*stream_free)(int index, tr_device_stream *stream);                      /* after what is enqueued there */
    tr_status (*stream_synchronize)(int index, tr_device_stream *stream);          /* waits for what is enqueued there */
    tr_status (*event_new)(int index, tr_device_event **out);
    void (*event_free)(int index, tr_device_event *event);                         /* may still be recorded or waited for */
    /* The event is done when what is on the stream now has run. Recording again moves it. One that was never recorded
     * is done. */
    tr_status (*event_record)(int index, tr_device_stream *stream, tr_device_event *event);
    /* What is enqueued on the stream later runs after the event as it is recorded now; both may be of different devices
     * of this kind, and `index` is the stream's. */
    tr_status (*stream_wait)(int index, tr_device_stream *stream, tr_device_event *event);
    tr_status (*event_done)(int index, tr_device_event *event, bool *done);        /* never waits */
    tr_status (*event_synchronize)(int index, tr_device_event *event);
    /* Milliseconds between two that are done. NULL: the device has no clock. */
    tr_status (*event_elapsed)(int index, tr_device_event *from, tr_device_event *to, double *milliseconds);
    /* Waits for everything on all streams of the device. */
    tr_status (*synchronize)(int index);

    /* ---- Copies, enqueued. bytes > 0; host memory is any, pinned or not, and stays as it is until the stream has come
     * by: the library sees to that. */
    tr_status (*copy_in)(int index, tr_device_stream *stream, void *to, const void *from_host, size_t bytes);
    tr_status (*copy_out)(int index, tr_device_stream *stream, void *to_host, const void *from, size_t bytes);
    tr_status (*copy_within)(int index, tr_device_stream *stream, void *to, const void *from, size_t bytes); /* apart */
    /* Between two devices of the kind; the stream is of device to_index. It works whatever peer_access() says. */
    tr_status (*copy_peer)(int to_index, tr_device_stream *stream, void *to, int from_index, const void *from, size_t bytes);
    /* Sets every byte. */
    tr_status (*set_bytes)(int index, tr_device_stream *stream, void *to, int byte, size_t bytes);
    /* May kernels of device index read memory of device peer? NULL: never. The first call may switch it on. */
    bool (*peer_access)(int index, int peer);

    /* ---- Kernels: by op (trireme/kernels.h says what each gets). */
    const tr_kernel_entry *kernels;
    size_t n_kernels;

    /* ---- For libraries of the device's maker that enqueue work themselves, as NCCL does: their name of a stream, a
     * cudaStream_t of "cuda". NULL: there is no such library. */
    tr_status (*stream_handle)(int index, tr_device_stream *stream, void **out);

    /* ---- Graphs, for tr_capture(). NULL, all five: the device has none, and steps run op by op. From capture_begin() to
     * capture_end() what the calling thread enqueues on the device's default stream becomes a part of the graph instead of
     * running, and what it allocates there stays the graph's until graph_free(): tensors that are released meanwhile may share
     * memory, and nobody else gets it. Other threads are not concerned. capture_begin(): TR_DECLINED when the device cannot
     * capture now. graph_free() also ends a capture that was begun and not ended. */
    tr_status (*capture_begin)(int index, tr_device_graph **out);
    tr_status (*capture_end)(int index, tr_device_graph *graph);
    /* From its next launch on, the kernel that said this number (tr_kernel_call.live) has these attributes. */
    tr_status (*graph_set)(int index, tr_device_graph *graph, int live, const void *attrs);
    tr_status (*graph_launch)(int index, tr_device_graph *graph); /* enqueued on the default stream */
    void (*graph_free)(int index, tr_device_graph *graph);        /* its launches may still run */
} tr_device_table;

/* A plug-in's one exported symbol:
 *     TR_DEVICE_PLUGIN = {.size = sizeof(tr_device_table), .version = TR_DEVICE_INTERFACE, .kind = "toy", …};
 * In C++ as in C. */
#ifdef __cplusplus
#define TR_DEVICE_PLUGIN                                                                \
    extern "C" __attribute__((visibility("default"))) const tr_device_table tr_device_plugin; \
    const tr_device_table tr_device_plugin
#else
#define TR_DEVICE_PLUGIN                                                                \
    extern __attribute__((visibility("default"))) const tr_device_table tr_device_plugin; \
    const tr_device_table tr_device_plugin
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
