/*
 * The tensor struct and what every op needs of it.
 */
#ifndef TR_TENSOR_TENSOR_H
#define TR_TENSOR_TENSOR_H

#include "base/half.h"
#include "base/object.h"
#include "device/device.h"

#include <trireme/tensor.h>

/* A part of a storage whose writes are counted apart, as a parameter's in an arena, or its gradient's. */
typedef struct tr__section {
    size_t begin; /* bytes; it ends where the next one begins */
    atomic_uint version;
    atomic_int saved; /* by how many nodes whose backward has yet to read it */
} tr__section;

/* Reference-counted memory on one device. */
typedef struct tr__storage {
    atomic_int refs;
    atomic_uint version; /* raised by every write in place: backward refuses saved tensors that changed */
    tr__section *sections; /* these have versions of their own, instead; NULL: it is one whole */
    int n_sections;
    bool of_leaves; /* what every tensor on it shows are the elements of leaves: an arena's parameters */
    tr_device device;
    void *data;
    size_t bytes;
    enum { TR__OWNED, TR__SHARED, TR__WRAPPED } kind;
    void (*release)(void *data, void *user); /* of TR__WRAPPED, or NULL */
    void *user;
} tr__storage;

tr__storage *tr__storage_new(tr_device device, size_t bytes, bool shared); /* NULL: failed, message set */
/* Where this thread's new CPU storages of so many bytes come from, while it is set: make() fills in the data, their release and its
 * user. False: from where others come. */
typedef struct tr__storage_source {
    size_t bytes;
    bool (*make)(void *user, tr__storage *storage);
    void *user;
} tr__storage_source;
/* NULL: none. Returns the previous one. */
const tr__storage_source *tr__storage_source_set(const tr__storage_source *source);
static inline tr__storage *tr__storage_ref(tr__storage *s) { atomic_fetch_add(&s->refs, 1); return s; }
void tr__storage_unref(tr__storage *storage); /* NULL does nothing */
/* Gives the memory of a TR__OWNED storage back to the device, and takes memory for it again, unwritten; when it is there already,
 * or gone, nothing happens. Tensors keep the storage, and its versions stay; meanwhile nobody may read or write what they show. */
void tr__storage_vacate(tr__storage *storage);
tr_status tr__storage_occupy(tr__storage *storage);
/* Gives a fresh storage a version for each of n sections, which begin at these bytes, the first at 0. */
tr_status tr__storage_divide(tr__storage *storage, const size_t *begins, int n);
/* Marks a write to the bytes from begin up to end. */
void tr__storage_touch(tr__storage *storage, size_t begin, size_t end);

struct tr_tensor {
    tr__object object;
    tr__storage *storage; /* NULL in error only */
    int64_t offset;       /* elements from the storage's start */
    tr_shape shape;
    int64_t stride[TR_MAX_DIMS]; /* elements */
    tr_dtype dtype;
    bool requires_grad;
    bool graph_left; /* it came from another worker, or was computed from what did, and its graph stayed there */

    /* The graph (src/ops/node.h): which node made this tensor, as which output; or what a leaf keeps for backward. */
    struct tr__node *node;
    int output;
    struct tr__leaf *leaf;
};

extern const tr__type tr__tensor_type;

/* Uninitialised, row-major. */
tr_tensor *tr__tensor_new(tr_shape shape, tr_dtype dtype, tr_device device);
/* The same with other strides, which must be those of a dense tensor: its dimensions in any order, without gaps. */
tr_tensor *tr__tensor_new_strided(tr_shape shape, const int64_t *stride, tr_dtype dtype, tr_device device);
/* Of x's shape and dtype, beside x, and dense in the order in which x lies. */
tr_tensor *tr__tensor_new_like(const tr_tensor *x);
/* On memory of someone else's: storage is copied, but for its count. When this fails, the memory stays theirs. */
tr_tensor *tr__tensor_borrow(const tr__storage *storage, tr_shape shape, const int64_t *stride, tr_dtype dtype);
/* Another view of x's storage, outside the graph. stride NULL: row-major. */
tr_tensor *tr__tensor_view(const tr_tensor *x, tr_shape shape, const int64_t *stride, int64_t offset);
/* The same view, with a reference of the caller's instead of a scope's, outside the graph: how tensors are saved. */
tr_tensor *tr__tensor_alias(const tr_tensor *x);
/* The same memory as a tensor of another device of x's kind, outside the graph; it holds x's storage. Only CPU devices
 * can address each other's memory. */
tr_tensor *tr__tensor_on(const tr_tensor *x, tr_device device);
/* Can both devices use the same memory in place? */
static inline bool tr__one_memory(tr_device a, tr_device b)
{
    return tr_device_equal(a, b) || (a.kind == TR_CPU && b.kind == TR_CPU);
}
/* `return tr__tensor_fail(TR_SHAPE, "…", …)` */
#define tr__tensor_fail(...) ((tr_tensor *)tr__object_fail(&tr__tensor_type, __VA_ARGS__))
#define tr__tensor_failed() ((tr_tensor *)tr__object_failed(&tr__tensor_type))
#define tr__tensor_pass(x) ((tr_tensor *)tr__object_pass(&tr__tensor_type, (x)))

static inline bool tr__bad(const tr_tensor *x) { return x->object.error != NULL; }

static inline tr_device tr__device_of(const tr_tensor *x) { return x->storage->device; }
static inline tr__pool *tr__pool_of(const tr_tensor *x) { return tr__cpu_pool(x->storage->device); }
/* Has its storage given its memory back (tr__storage_vacate())? */
static inline bool tr__is_vacant(const tr_tensor *t) { return !t->storage->data && t->storage->bytes; }
/* Says so, and fails. */
tr_status tr__refuse_vacant(const char *what, const tr_tensor *t);

/* The address of the first element; cast at the use: const float *x = tr__ptr(t). */
static inline void *tr__ptr(const tr_tensor *x)
{
    return (char *)x->storage->data + (size_t)x->offset * tr_dtype_size(x->dtype);
}

static inline int64_t tr__numel(tr_shape s)
{
    int64_t n = 1;
    for (int i = 0; i < s.ndim; i++) n *= s.dim[i];
    return n;
}
/* The bytes of its elements, dense; false: no tensor can have it: it has too many dimensions, or a
 * size is negative, or their product no number. */
bool tr__shape_bytes(tr_shape shape, tr_dtype dtype, int64_t *bytes);
static inline bool tr__shape_equal(tr_shape a, tr_shape b)
{
    if (a.ndim != b.ndim) return false;
    for (int i = 0; i < a.ndim; i++)
        if (a.dim[i] != b.dim[i]) return false;
    return true;
}
/* Row-major strides. */
void tr__row_major(tr_shape shape, int64_t stride[TR_MAX_DIMS]);
/* Images as convolutions like them: the strides of [n, c, h, w] whose memory is row-major [n, h, w, c]; of two and more
 * dimensions. */
void tr__channels_last(tr_shape shape, int64_t stride[TR_MAX_DIMS]);
/* Dense strides for a shape with as many dimensions as x, lying in memory in the order in which x's do; row-major where x
 * repeats elements or has other dimensions. */
void tr__strides_like(const tr_tensor *x, tr_shape shape, int64_t stride[TR_MAX_DIMS]);
/* Does x lie with these strides? Those of dimensions of one element do not count. */
bool tr__has_strides(const tr_tensor *x, const int64_t *stride);
/* Has x, none of whose elements coincide, no gaps between them? */
bool tr__is_dense(const tr_tensor *x);
/* Row-major, but for gaps that may be between rows? */
bool tr__is_in_rows(const tr_tensor *x);
/* The shape that a and b broadcast to (NumPy's rule); fails with both in the message. what: the op's name. */
tr_status tr__broadcast(const char *what, tr_shape a, tr_shape b, tr_shape *out);
/* Strides with which x is read as if it had shape (0 where it is broadcast). x must be broadcastable to it. */
void tr__broadcast_strides(const tr_tensor *x, tr_shape shape, int64_t stride[TR_MAX_DIMS]);
/* -1 … -ndim become ndim-1 … 0; fails outside. */
tr_status tr__dim(const char *what, tr_shape shape, int dim, int *out);
/* Shapes for messages: TR__TEXT(shape) is a char * that lives to the end of the block. */
#define TR__TEXT(shape) tr_shape_text((shape), (char[160]){0})

/* One element at an index from the start of the view, converted; for reference kernels and tests, not for speed. */
double tr__load(tr_dtype dtype, const void *base, int64_t index);
void tr__store(tr_dtype dtype, void *base, int64_t index, double value);

/* Writes from's values to into: from broadcasts to into's shape, dtypes and devices are converted, strides are any. Both
 * are sound, and fit. */
tr_status tr__copy_elements(tr_tensor *into, const tr_tensor *from);

/* t itself when it lies row-major in the CPU's memory, else a copy that does, in the innermost scope. May be in error. */
const tr_tensor *tr__row_major_on_cpu(const tr_tensor *t);

/* What the layer of the graph does for tensors, which do not know it: giving up a node and a leaf's data. As
 * tr_require_grad(), it stands in src/ops/node.c. */
void tr__node_unref(struct tr__node *node);
void tr__leaf_free(struct tr__leaf *leaf);

/* The bytes of its storage between which t's elements lie; none when it has none. */
void tr__extent(const tr_tensor *t, size_t *begin, size_t *end);
/* How often what t shows of its storage has been written to. */
unsigned tr__version(const tr_tensor *t);
/* Sets the version of a tensor that has a storage, or a section of one, to itself. */
void tr__version_set(tr_tensor *t, unsigned version);
/* Marks a write in place. */
void tr__touch(tr_tensor *t);
/* Backward will read t, or does so no more; and will it, any of what t shows? Known of sections only, else never. */
void tr__count_saved(const tr_tensor *t, int change);
bool tr__is_saved(const tr_tensor *t);
/* How often; 0 where the storage is not divided. */
int tr__saved_count(const tr_tensor *t);

#endif
