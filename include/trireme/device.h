/*
 * Trireme, devices: asking about them, and the interface through which somebody else's device joins.
 *
 * A plug-in is one shared object that brings one kind of device ("cuda", "toy"): a table of functions and a list of
 * kernels. docs/adding-a-device.md builds one.
 *
 * How it is found. The first question about a device of a kind other than "cpu" (tr_device_parse(), tr_device_count(),
 * …) opens every shared object that the environment variable TRIREME_PLUGINS lists: paths with ':' between them. This
 * happens once in the life of the process. A kind that none of them brings is looked for beside the library:
 * libtrireme-<kind>.so in the folder of libtrireme.so, or of the program when that is linked statically. Plug-ins are
 * never closed.
 *
 * What can go wrong. A path that cannot be opened, an object without `tr_device_plugin`, another version, a kind that
 * is taken, an open() that fails: such a plug-in is left out. A call that needs a device of it returns TR_DEVICE with the
 * reason:
 *   "there is no device toy:0: the plug-in ./libtoy.so has version 2 of the device interface, and this library takes
 *    version 1: build the plug-in against this Trireme"
 *
 * Versions. TR_DEVICE_INTERFACE changes when plug-ins for the former version would no longer work; then they must be
 * built again. Otherwise the table only grows at its end: `size` says where the plug-in's table ends, and members
 * behind that are NULL. A member may be NULL where its comment says so.
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
    int64_t memory_bytes;   /* the device's whole memory */
    int compute_units;      /* multiprocessors; threads of a CPU device */
    char driver[64];        /* "CUDA 12.4, driver 550.54"; empty when there is nothing to say */
} tr_device_properties;

/* In bytes: what tensors hold; the most that they held since the start or tr_device_reset_peak(); what the allocator
 * has from the system (tensors' memory and what it keeps for later); and what the device has left. */
typedef struct tr_device_memory {
    size_t size;            /* set by the caller: sizeof(tr_device_memory) */
    int64_t in_use, peak, reserved, available;
} tr_device_memory;

TR_API TR_MUST_CHECK tr_status tr_device_describe(tr_device device, tr_device_properties *out);
TR_API TR_MUST_CHECK tr_status tr_device_memory_of(tr_device device, tr_device_memory *out);
TR_API TR_MUST_CHECK tr_status tr_device_reset_peak(tr_device device);
/* Returns the memory that the allocator keeps for later to the system. */
TR_API TR_MUST_CHECK tr_status tr_device_trim(tr_device device);
/* Waits for everything that was enqueued on the device. It returns the status of that work: when a kernel failed there,
 * the first wait after it reports the failure. Ops enqueue and return; tr_item() and tr_copy_out() wait by themselves. */
TR_API TR_MUST_CHECK tr_status tr_device_synchronize(tr_device device);
/* Finds the kind with this name, and opens its plug-in when necessary; TR_DEVICE when there is none.
 * tr_device_kind_name() is the reverse ("?" for what is no kind). Kinds of plug-ins have the numbers from TR_CUDA + 1
 * on, in this process. */
TR_API TR_MUST_CHECK tr_status tr_device_kind_named(const char *name, tr_device_kind *out);
TR_API const char *tr_device_kind_name(tr_device_kind kind);

/* ---- What a kernel gets ---------------------------------------------------------------------------------------- */

/* A stream orders work: what is enqueued on one stream runs in the order of the calls, and beside the work of other
 * streams. The plug-in defines these structs. NULL is the default stream of a device, which every device has and all
 * threads share. Work of several threads runs there in the order in which they enqueued it, so a thread that hands a
 * tensor to another thread need not wait. */
typedef struct tr_device_stream tr_device_stream;
typedef struct tr_device_event tr_device_event;
typedef struct tr_device_graph tr_device_graph; /* what capture_begin() makes; also defined by the plug-in */

/* A tensor as kernels see it. Element (i, j, …) lies at data + (i stride[0] + j stride[1] + …) * size of the dtype.
 * Strides are in elements; 0 where a dimension is broadcast, never negative. bool is one byte, 0 or 1. data is an
 * address on the device, aligned to the dtype. */
typedef struct tr_device_tensor {
    void *data;             /* NULL: the op was not given this input, or nobody wants this output */
    tr_dtype dtype;
    tr_shape shape;
    int64_t stride[TR_MAX_DIMS];
} tr_device_tensor;

/* One run of an op. It lives until the kernel returns: work that runs later needs copies. A tensor without elements may
 * have any data but NULL. */
typedef struct tr_kernel_call {
    size_t size;
    const char *op;               /* its name */
    int index;                    /* of the device */
    tr_device_stream *stream;     /* where to enqueue */
    const void *attrs;            /* the op's attributes (trireme/kernels.h); aligned to 16 */
    size_t attrs_size;            /* 0: it has none, and attrs is NULL */
    int n_inputs, n_outputs;
    const tr_device_tensor *inputs;  /* [n_inputs] */
    const tr_device_tensor *outputs; /* [n_outputs]: allocated; the kernel writes them whole, unless attributes say
                                        "accumulate" */
    /* While a graph is captured: a kernel whose attributes change from run to run, as those of dropout and RULE_step,
     * sets *live to the number under which graph_set() gives it the attributes of the next run. Other kernels leave it
     * alone. NULL: nothing is captured. */
    int *live;
} tr_kernel_call;

/* Enqueues the op and returns TR_OK. It returns TR_DECLINED, and has enqueued nothing, when it does not take these
 * dtypes, shapes or strides: then the next kernel of this op is asked. When none is left, the op fails with
 * TR_UNSUPPORTED and names op, device and dtypes (nothing ever goes to the CPU instead). Or it returns a failure, made
 * with host->fail(), to which the library adds the names of op and device. Called from several threads at once.
 *
 * Inputs and outputs do not overlap, except that an elementwise op may get an output that is exactly one of its inputs.
 * A kernel allocates and releases on its stream the memory that it needs only while it runs. */
typedef tr_status (*tr_kernel)(const tr_kernel_call *call);
#define TR_DECLINED (-1)

/* A kernel and its op. Several kernels may be for one op: they are asked in the order of the list. attrs_size: sizeof
 * the attributes with which the kernel was compiled; when the op's attributes have another size, the op fails and says
 * so. */
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
 * asked before the existing ones. The kind need not be open. The strings are copied. Fails when memory is short, and
 * for the kind "cpu", which uses an op's own `forward`. */
TR_API TR_MUST_CHECK tr_status tr_kernel_register(const char *kind, const tr_kernel_entry *entry);

/* ---- What a plug-in is ------------------------------------------------------------------------------------------ */

/* What the library offers the plug-in. So a plug-in needs no symbol of the library, and also runs in programs that are
 * linked statically. The table lives as long as the process. */
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
 * The table. All functions except open() may be called from several threads at once. `index` is 0 … count() - 1. A
 * function that returns a tr_status makes its message with host->fail(). A function that enqueues returns at once. When
 * the enqueued work fails, the next function that waits for the stream, the event or the device returns the failure,
 * once.
 */
typedef struct tr_device_table {
    size_t size;          /* sizeof(tr_device_table) */
    uint32_t version;     /* TR_DEVICE_INTERFACE */
    const char *kind;     /* "toy" for devices toy:0, …; lower-case letters, digits and '_', a letter first, at most 10
                             bytes */

    /* Called once, before all others. When it fails (no driver, say) the plug-in is left out, with this message. */
    tr_status (*open)(const tr_device_host *host);
    int (*count)(void);
    /* Fills in what it knows up to out->size; what it leaves is zero. */
    tr_status (*properties)(int index, tr_device_properties *out);

    /* ---- Memory. bytes > 0; aligned to 256 bytes. Work that is enqueued on `stream` from now on may use it, and work
     * elsewhere when an event has ordered that. After TR_NO_MEMORY the library waits for the device, calls trim() and
     * asks once more. */
    tr_status (*allocate)(int index, tr_device_stream *stream, size_t bytes, void **out);
    /* Nothing that is enqueued later uses the memory; what was enqueued on `stream` before still may. bytes: as in
     * allocate(). */
    void (*release)(int index, tr_device_stream *stream, void *memory, size_t bytes);
    /* Returns memory that is kept for later. NULL: none is kept. */
    void (*trim)(int index);
    tr_status (*memory)(int index, tr_device_memory *out);
    void (*reset_peak)(int index);

    /* Host memory that the device reaches by itself ("pinned"), so that copies from and to it run beside the host;
     * aligned to 256 bytes. Both NULL: there is none, and ordinary memory serves as well. */
    tr_status (*host_allocate)(size_t bytes, void **out);
    void (*host_release)(void *memory, size_t bytes);

    /* ---- Streams and events. stream_new() is not called for the default stream. */
    tr_status (*stream_new)(int index, tr_device_stream **out);
    void (*stream_free)(int index, tr_device_stream *stream);                      /* after what is enqueued there */
    tr_status (*stream_synchronize)(int index, tr_device_stream *stream);          /* waits for what is enqueued there */
    tr_status (*event_new)(int index, tr_device_event **out);
    void (*event_free)(int index, tr_device_event *event);                         /* may still be recorded or waited for */
    /* The event is done when the work that is on the stream now has run. Recording again moves it. An event that was
     * never recorded is done. */
    tr_status (*event_record)(int index, tr_device_stream *stream, tr_device_event *event);
    /* What is enqueued on the stream later runs after the event as it is recorded now. Stream and event may belong to
     * different devices of this kind; `index` is the stream's. */
    tr_status (*stream_wait)(int index, tr_device_stream *stream, tr_device_event *event);
    tr_status (*event_done)(int index, tr_device_event *event, bool *done);        /* never waits */
    tr_status (*event_synchronize)(int index, tr_device_event *event);
    /* Milliseconds between two events that are done. NULL: the device has no clock. */
    tr_status (*event_elapsed)(int index, tr_device_event *from, tr_device_event *to, double *milliseconds);
    /* Waits for everything on all streams of the device. */
    tr_status (*synchronize)(int index);

    /* ---- Copies, enqueued. bytes > 0. Host memory may be pinned or not; the library keeps it unchanged until the
     * stream has reached the copy. */
    tr_status (*copy_in)(int index, tr_device_stream *stream, void *to, const void *from_host, size_t bytes);
    tr_status (*copy_out)(int index, tr_device_stream *stream, void *to_host, const void *from, size_t bytes);
    /* Within one device; the two ranges do not overlap. */
    tr_status (*copy_within)(int index, tr_device_stream *stream, void *to, const void *from, size_t bytes);
    /* Between two devices of the kind; the stream is of device to_index. It works whatever peer_access() says. */
    tr_status (*copy_peer)(int to_index, tr_device_stream *stream, void *to, int from_index, const void *from, size_t bytes);
    /* Sets every byte. */
    tr_status (*set_bytes)(int index, tr_device_stream *stream, void *to, int byte, size_t bytes);
    /* Whether kernels of device index may read memory of device peer. NULL: never. The first call may switch it on. */
    bool (*peer_access)(int index, int peer);

    /* ---- Kernels: by op (trireme/kernels.h says what each gets). */
    const tr_kernel_entry *kernels;
    size_t n_kernels;

    /* ---- For libraries of the device's maker that enqueue work themselves, as NCCL does: the stream as they know it,
     * for "cuda" a cudaStream_t. NULL: there is no such library. */
    tr_status (*stream_handle)(int index, tr_device_stream *stream, void **out);

    /* ---- Graphs, for tr_capture(). All five NULL: the device has none, and steps run op by op. From capture_begin()
     * to capture_end(), what the calling thread enqueues on the device's default stream becomes a part of the graph
     * instead of running. What it allocates there belongs to the graph until graph_free(): tensors that are released
     * meanwhile may share memory, and nobody else gets it. Other threads are not concerned. capture_begin() returns
     * TR_DECLINED when the device cannot capture now. graph_free() also ends a capture that was begun and not ended. */
    tr_status (*capture_begin)(int index, tr_device_graph **out);
    tr_status (*capture_end)(int index, tr_device_graph *graph);
    /* From its next launch on, the kernel that set this number (tr_kernel_call.live) has these attributes. */
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
