/* Making tensors and looking at them. */
#include "tensor/tensor.h"

#include "base/given.h"
#include "device/capture.h"
#include "tensor/kernel.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void destroy(void *self)
{
    tr_tensor *t = self;
    tr__storage_unref(t->storage);
    if (t->node) tr__node_unref(t->node);
    if (t->leaf) tr__leaf_free(t->leaf);
}

const tr__type tr__tensor_type = {"tensor", sizeof(tr_tensor), destroy};

/* ---- Shapes ---------------------------------------------------------------------------------------------------- */

static int64_t at_least_one(int64_t size)
{
    return size > 0 ? size : 1;
}

void tr__row_major(tr_shape shape, int64_t stride[TR_MAX_DIMS])
{
    int64_t step = 1;
    for (int i = shape.ndim; i-- > 0;) {
        stride[i] = step;
        step *= at_least_one(shape.dim[i]);
    }
}

void tr__channels_last(tr_shape shape, int64_t stride[TR_MAX_DIMS])
{
    int64_t step = at_least_one(shape.dim[1]);
    stride[1] = 1;
    for (int d = shape.ndim - 1; d > 1; d--) {
        stride[d] = step;
        step *= at_least_one(shape.dim[d]);
    }
    stride[0] = step;
}

void tr__strides_like(const tr_tensor *x, tr_shape shape, int64_t stride[TR_MAX_DIMS])
{
    int order[TR_MAX_DIMS];
    tr__row_major(shape, stride);
    if (x->shape.ndim != shape.ndim || tr_is_contiguous(x)) return;
    for (int d = 0; d < shape.ndim; d++) {
        if (x->stride[d] <= 0 && x->shape.dim[d] != 1) return;
        int at = d;
        for (; at > 0 && x->stride[order[at - 1]] < x->stride[d]; at--) order[at] = order[at - 1];
        order[at] = d;
    }
    int64_t step = 1;
    for (int i = shape.ndim; i-- > 0;) {
        stride[order[i]] = step;
        step *= at_least_one(shape.dim[order[i]]);
    }
}

bool tr__has_strides(const tr_tensor *x, const int64_t *stride)
{
    for (int d = 0; d < x->shape.ndim; d++)
        if (x->shape.dim[d] != 1 && x->stride[d] != stride[d]) return false;
    return true;
}

bool tr__is_dense(const tr_tensor *x)
{
    int64_t span = 1, n = 1;
    for (int d = 0; d < x->shape.ndim; d++) {
        span += (x->shape.dim[d] - 1) * x->stride[d];
        n *= x->shape.dim[d];
    }
    return n == 0 || span == n;
}

bool tr__is_in_rows(const tr_tensor *x)
{
    int64_t step = 1;
    for (int d = x->shape.ndim - 1; d >= 0; d--) {
        if (x->shape.dim[d] == 1) continue;
        if (x->stride[d] < step || (step == 1 && x->stride[d] != 1)) return false;
        step = x->stride[d] * x->shape.dim[d];
    }
    return true;
}

char *tr_shape_text(tr_shape shape, char text[160])
{
    int at = snprintf(text, 160, "[");
    for (int i = 0; i < shape.ndim && i < TR_MAX_DIMS && at < 150; i++)
        at += snprintf(text + at, (size_t)(160 - at), "%s%" PRId64, i ? ", " : "", shape.dim[i]);
    if (at < 159) snprintf(text + at, (size_t)(160 - at), "]");
    return text;
}

tr_status tr__broadcast(const char *what, tr_shape a, tr_shape b, tr_shape *out)
{
    tr_shape s = {.ndim = a.ndim > b.ndim ? a.ndim : b.ndim};
    for (int i = 1; i <= s.ndim; i++) {
        int64_t x = i <= a.ndim ? a.dim[a.ndim - i] : 1, y = i <= b.ndim ? b.dim[b.ndim - i] : 1;
        if (x != y && x != 1 && y != 1)
            return tr__fail(TR_SHAPE, "%s: shapes do not broadcast: %s and %s", what, TR__TEXT(a), TR__TEXT(b));
        s.dim[s.ndim - i] = x == 1 ? y : x;
    }
    *out = s;
    return TR_OK;
}

void tr__broadcast_strides(const tr_tensor *x, tr_shape shape, int64_t stride[TR_MAX_DIMS])
{
    int missing = shape.ndim - x->shape.ndim;
    for (int i = 0; i < shape.ndim; i++) {
        bool stretched = i < missing || (x->shape.dim[i - missing] == 1 && shape.dim[i] != 1);
        stride[i] = stretched ? 0 : x->stride[i - missing];
    }
}

tr_status tr__dim(const char *what, tr_shape shape, int dim, int *out)
{
    int d = dim < 0 ? dim + shape.ndim : dim;
    if (d < 0 || d >= shape.ndim)
        return tr__fail(TR_SHAPE, "%s: no dimension %d in %s", what, dim, TR__TEXT(shape));
    *out = d;
    return TR_OK;
}

/* ---- Making ----------------------------------------------------------------------------------------------------- */

bool tr__shape_bytes(tr_shape shape, tr_dtype dtype, int64_t *bytes)
{
    *bytes = (int64_t)tr_dtype_size(dtype);
    if (shape.ndim < 0 || shape.ndim > TR_MAX_DIMS) return false;
    for (int i = 0; i < shape.ndim; i++)
        if (shape.dim[i] < 0 || __builtin_mul_overflow(*bytes, at_least_one(shape.dim[i]), bytes)) return false;
    if (tr__numel(shape) == 0) *bytes = 0;
    return true;
}

static tr_status check_shape(tr_shape shape, tr_dtype dtype)
{
    if (tr_dtype_size(dtype) == 0) return tr__fail(TR_DTYPE, "%d is no dtype", (int)dtype);
    if (shape.ndim < 0 || shape.ndim > TR_MAX_DIMS)
        return tr__fail(TR_SHAPE, "%d dimensions: a tensor has 0 to %d", shape.ndim, TR_MAX_DIMS);
    int64_t bytes;
    return tr__shape_bytes(shape, dtype, &bytes) ? TR_OK : tr__fail(TR_SHAPE, "no tensor has the shape %s", TR__TEXT(shape));
}

static tr_tensor *new_tensor(tr_shape shape, tr_dtype dtype, tr_device device, bool shared)
{
    tr_tensor *t = tr__object_new(&tr__tensor_type);
    if (tr__bad(t)) return t;
    if (check_shape(shape, dtype) == TR_OK)
        t->storage = tr__storage_new(device, (size_t)tr__numel(shape) * tr_dtype_size(dtype), shared);
    if (!t->storage) {
        tr__object_break(t);
        return t;
    }
    t->shape = shape;
    t->dtype = dtype;
    tr__row_major(shape, t->stride);
    return t;
}

tr_tensor *tr__tensor_new(tr_shape shape, tr_dtype dtype, tr_device device)
{
    return new_tensor(shape, dtype, device, false);
}

tr_tensor *tr__tensor_new_strided(tr_shape shape, const int64_t *stride, tr_dtype dtype, tr_device device)
{
    tr_tensor *t = new_tensor(shape, dtype, device, false);
    if (!tr__bad(t)) memcpy(t->stride, stride, sizeof(int64_t) * (size_t)shape.ndim);
    return t;
}

tr_tensor *tr__tensor_new_like(const tr_tensor *x)
{
    int64_t stride[TR_MAX_DIMS];
    tr__strides_like(x, x->shape, stride);
    return tr__tensor_new_strided(x->shape, stride, x->dtype, tr__device_of(x));
}

static void become_view(tr_tensor *t, const tr_tensor *x)
{
    t->storage = tr__storage_ref(x->storage);
    t->dtype = x->dtype;
    t->offset = x->offset;
    t->shape = x->shape;
    memcpy(t->stride, x->stride, sizeof t->stride);
}

tr_tensor *tr__tensor_view(const tr_tensor *x, tr_shape shape, const int64_t *stride, int64_t offset)
{
    tr_tensor *t = tr__object_new(&tr__tensor_type);
    if (tr__bad(t)) return t;
    become_view(t, x);
    t->shape = shape;
    t->offset = offset;
    if (stride)
        memcpy(t->stride, stride, sizeof(int64_t) * (size_t)shape.ndim);
    else
        tr__row_major(shape, t->stride);
    return t;
}

tr_tensor *tr__tensor_alias(const tr_tensor *x)
{
    tr_tensor *t = tr__object_new_kept(&tr__tensor_type);
    if (!tr__bad(t)) become_view(t, x);
    return t;
}

static void let_go(void *data, void *storage)
{
    (void)data;
    tr__storage_unref(storage);
}

tr_tensor *tr__tensor_on(const tr_tensor *x, tr_device device)
{
    if (tr_device_equal(tr__device_of(x), device)) return tr__tensor_view(x, x->shape, x->stride, x->offset);
    if (!tr__one_memory(tr__device_of(x), device))
        return tr__tensor_fail(TR_UNSUPPORTED, "%s cannot use memory of %s in place", tr_device_name(device, (char[16]){0}),
            tr_device_name(tr__device_of(x), (char[16]){0}));
    tr__storage storage = {.device = device, .data = x->storage->data, .bytes = x->storage->bytes, .kind = TR__WRAPPED,
        .release = let_go, .user = x->storage};
    tr_tensor *t = tr__tensor_borrow(&storage, x->shape, x->stride, x->dtype);
    if (tr__bad(t)) return t;
    tr__storage_ref(x->storage);
    t->offset = x->offset;
    return t;
}

static tr_tensor *from_options(const tr_tensor_options *o)
{
    tr_tensor *t = new_tensor(o->shape, o->dtype, o->device, o->shared);
    return o->requires_grad ? tr_require_grad(t) : t;
}

tr_tensor *tr_empty_with(const tr_tensor_options *options)
{
    return from_options(options);
}

tr_tensor *tr_full_with(double value, const tr_tensor_options *options)
{
    tr_tensor *t = from_options(options);
    if (!tr__bad(t) && tr_fill(t, value) != TR_OK) tr__object_break(t);
    return t;
}

/* Copies row-major CPU elements of t's dtype to t, a tensor of our own making. */
static void copy_in(tr_tensor *t, const void *data)
{
    size_t bytes = (size_t)tr__numel(t->shape) * tr_dtype_size(t->dtype);
    tr_device device = tr__device_of(t);
    if (bytes && tr__device_copy(device, tr__ptr(t), tr_cpu(0), data, bytes) != TR_OK) tr__object_break(t);
}

tr_tensor *tr_from_with(const tr_from_options *o)
{
    if (tr__element_check("from", o->element, o->dtype, o->dtype == TR_F32, "write .dtype =") != TR_OK) return tr__tensor_failed();
    tr_tensor *t = new_tensor(o->shape, o->dtype, o->device, o->shared);
    if (tr__bad(t)) return t;
    if (o->literal && tr__numel(o->shape) == 0)
        return tr__tensor_fail(TR_SHAPE, "from: an array in braces and the shape %s, which has no elements: sizes are written "
            "TR_SHAPE(…)", TR__TEXT(o->shape));
    if (!o->data && tr__numel(o->shape))
        return tr__tensor_fail(TR_INVALID, "from: data is NULL, and the shape %s has elements", TR__TEXT(o->shape));
    copy_in(t, o->data);
    return o->requires_grad ? tr_require_grad(t) : t;
}

tr_tensor *tr_arange(int64_t n, tr_dtype dtype, tr_device device)
{
    tr_tensor *t = tr__tensor_new(TR_SHAPE(n), dtype, device);
    if (tr__bad(t)) return t;
    void *values = malloc((size_t)(n ? n : 1) * tr_dtype_size(dtype));
    if (!values) return tr__tensor_fail(TR_NO_MEMORY, "no memory for %" PRId64 " numbers", n);
    for (int64_t i = 0; i < n; i++) tr__store(dtype, values, i, (double)i);
    tr__capture *capture = device.kind == TR_CPU ? NULL : tr__capture_now();
    if (!capture || n == 0) copy_in(t, values);
    else if (tr__capture_constant(capture, tr__ptr(t), values, (size_t)n * tr_dtype_size(dtype)) != TR_OK) tr__object_break(t);
    free(values);
    return t;
}

tr_tensor *tr_scalar(double value, tr_dtype dtype)
{
    return tr_full(value, TR_SCALAR, .dtype = dtype);
}

tr_tensor *tr__tensor_borrow(const tr__storage *like, tr_shape shape, const int64_t *stride, tr_dtype dtype)
{
    tr__storage *storage = calloc(1, sizeof *storage);
    if (!storage) return tr__tensor_fail(TR_NO_MEMORY, "out of memory");
    tr_tensor *t = tr__object_new(&tr__tensor_type);
    if (tr__bad(t)) {
        free(storage);
        return t;
    }
    *storage = (tr__storage){.device = like->device, .data = like->data, .bytes = like->bytes, .kind = like->kind,
        .release = like->release, .user = like->user};
    atomic_init(&storage->refs, 1);
    t->storage = storage;
    t->shape = shape;
    t->dtype = dtype;
    memcpy(t->stride, stride, sizeof *stride * (size_t)shape.ndim);
    return t;
}

tr_tensor *tr_wrap_element(int element, void *data, tr_shape shape, tr_dtype dtype, void (*release)(void *, void *),
    void *user)
{
    if (tr__element_check("wrap", element, dtype, false, "its dtype is") != TR_OK) return tr__tensor_failed();
    if (check_shape(shape, dtype) != TR_OK) return tr__tensor_failed();
    int64_t stride[TR_MAX_DIMS];
    tr__row_major(shape, stride);
    return tr__tensor_borrow(&(tr__storage){.data = data, .bytes = (size_t)tr__numel(shape) * tr_dtype_size(dtype),
                                 .kind = TR__WRAPPED, .release = release, .user = user}, shape, stride, dtype);
}

/* ---- Looking ---------------------------------------------------------------------------------------------------- */

/* Nothing to look at: in error, or NULL, as tr_grad() and tr_list_find() give it. */
static bool none(const tr_tensor *t)
{
    return !t || tr__bad(t);
}

tr_shape tr_shape_of(const tr_tensor *t)
{
    return none(t) ? TR_SCALAR : t->shape;
}

int tr_ndim(const tr_tensor *t)
{
    return none(t) ? 0 : t->shape.ndim;
}

static int dim_or_none(const tr_tensor *t, int dim)
{
    if (none(t)) return -1;
    int d = dim < 0 ? dim + t->shape.ndim : dim;
    return d >= 0 && d < t->shape.ndim ? d : -1;
}

int64_t tr_size(const tr_tensor *t, int dim)
{
    int d = dim_or_none(t, dim);
    return d < 0 ? 0 : t->shape.dim[d];
}

int64_t tr_stride(const tr_tensor *t, int dim)
{
    int d = dim_or_none(t, dim);
    return d < 0 ? 0 : t->stride[d];
}

int64_t tr_numel(const tr_tensor *t)
{
    return none(t) ? 0 : tr__numel(t->shape);
}

tr_dtype tr_dtype_of(const tr_tensor *t)
{
    return none(t) ? TR_F32 : t->dtype;
}

tr_device tr_device_of(const tr_tensor *t)
{
    return none(t) ? tr_cpu(0) : tr__device_of(t);
}

bool tr_is_contiguous(const tr_tensor *t)
{
    if (none(t)) return true;
    int64_t step = 1;
    for (int i = t->shape.ndim; i-- > 0;) {
        if (t->shape.dim[i] == 0) return true;
        if (t->shape.dim[i] != 1 && t->stride[i] != step) return false;
        step *= t->shape.dim[i];
    }
    return true;
}

void *tr_data(const tr_tensor *t)
{
    return none(t) || tr__device_of(t).kind != TR_CPU || tr__is_vacant(t) ? NULL : tr__ptr(t);
}

tr_status tr__refuse_vacant(const char *what, const tr_tensor *t)
{
    return tr__fail(TR_STATE, "%s: %s shows a parameter whose memory is not here: it is in the tr_fully_shard() of a module whose "
        "forward is not under way", what, TR__TEXT(t->shape));
}

tr_status tr_copy_out_element(int element, const tr_tensor *t, void *to, size_t bytes)
{
    if (!t) return tr__fail(TR_INVALID, "copy_out: it takes a tensor, not NULL");
    TR__TRY(tr_status_of(t));
    TR__TRY(tr__element_check("copy_out", element, t->dtype, false, "tr_cast() the tensor to"));
    size_t needed = (size_t)tr__numel(t->shape) * tr_dtype_size(t->dtype);
    if (bytes != needed)
        return tr__fail(TR_INVALID, "copy_out: %zu bytes given for %s of %s, which takes %zu", bytes, TR__TEXT(t->shape),
            tr_dtype_name(t->dtype), needed);
    if (!needed) return TR_OK;
    if (!to) return tr__fail(TR_INVALID, "copy_out: the memory to copy to is NULL");
    if (tr__is_vacant(t)) return tr__refuse_vacant("copy_out", t);
    TR_SCOPE;
    const tr_tensor *flat = t;
    if (!tr_is_contiguous(t)) {
        tr_tensor *copy = tr__tensor_new(t->shape, t->dtype, tr__device_of(t));
        TR__TRY(tr_status_of(copy));
        TR__TRY(tr_copy_into(copy, t));
        flat = copy;
    }
    return tr__device_copy(tr_cpu(0), to, tr__device_of(flat), tr__ptr(flat), needed);
}

const tr_tensor *tr__row_major_on_cpu(const tr_tensor *t)
{
    if (tr__bad(t) || (tr_data(t) && tr_is_contiguous(t))) return t;
    tr_tensor *copy = tr__tensor_new(t->shape, t->dtype, tr_cpu(0));
    if (tr__bad(copy) || tr_copy_out(t, tr__ptr(copy), (size_t)tr__numel(t->shape) * tr_dtype_size(t->dtype)) == TR_OK)
        return copy;
    return tr__tensor_failed();
}

double tr_item(const tr_tensor *t)
{
    unsigned char value[8];
    if (!none(t) && tr__numel(t->shape) != 1) {
        tr__fail(TR_SHAPE, "item: %s has %" PRId64 " elements, not one", TR__TEXT(t->shape), tr__numel(t->shape));
        return (double)NAN;
    }
    if (tr_copy_out(t, value, tr_dtype_size(tr_dtype_of(t))) != TR_OK) return (double)NAN;
    return tr__load(t->dtype, value, 0);
}

/* Is one place in memory several elements of t? */
static bool repeats(const tr_tensor *t)
{
    for (int d = 0; d < t->shape.ndim; d++)
        if (t->stride[d] == 0 && t->shape.dim[d] > 1) return tr__numel(t->shape) > 0;
    return false;
}

/* Where t, which has elements, begins in memory, and where it ends. */
static void extent(const tr_tensor *t, uintptr_t *begin, uintptr_t *end)
{
    size_t first, last;
    tr__extent(t, &first, &last);
    *begin = (uintptr_t)t->storage->data + first;
    *end = (uintptr_t)t->storage->data + last;
}

/* May writing into change what is still to be read of from? Not where each element goes to its own place. */
static bool overlap(const tr_tensor *into, const tr_tensor *from)
{
    uintptr_t into_begin, into_end, from_begin, from_end;
    if (tr__numel(into->shape) == 0) return false;
    if (!tr__one_memory(tr__device_of(into), tr__device_of(from)) || tr__numel(from->shape) == 0) return false;
    extent(into, &into_begin, &into_end);
    extent(from, &from_begin, &from_end);
    if (into_begin >= from_end || from_begin >= into_end) return false;
    bool same = tr__ptr(into) == tr__ptr(from) && into->dtype == from->dtype && tr__shape_equal(into->shape, from->shape);
    return !same || !tr__has_strides(into, from->stride);
}

static tr_status copy_by_way_of_another(tr_tensor *into, const tr_tensor *from)
{
    TR_SCOPE;
    tr_tensor *copy = tr__tensor_new(from->shape, from->dtype, tr__device_of(from));
    TR__TRY(tr_status_of(copy));
    TR__TRY(tr__copy_elements(copy, from));
    return tr__copy_elements(into, copy);
}

tr_status tr_copy_into(tr_tensor *into, const tr_tensor *from)
{
    if (!into || !from) return tr__fail(TR_INVALID, "copy_into: it takes two tensors, not NULL");
    TR__TRY(tr_status_of(into));
    TR__TRY(tr_status_of(from));
    tr_shape shape;
    TR__TRY(tr__broadcast("copy_into", into->shape, from->shape, &shape));
    if (!tr__shape_equal(shape, into->shape))
        return tr__fail(TR_SHAPE, "copy_into: %s does not broadcast to %s", TR__TEXT(from->shape), TR__TEXT(into->shape));
    if (repeats(into))
        return tr__fail(TR_INVALID, "copy_into: elements of %s share memory, as it is expanded: it takes a tensor whose "
            "elements are apart (see tr_contiguous)", TR__TEXT(into->shape));
    TR__TRY(overlap(into, from) ? copy_by_way_of_another(into, from) : tr__copy_elements(into, from));
    tr__touch(into);
    return TR_OK;
}

/* Zeros without gaps are bytes. */
static tr_status fill_on_device(tr_tensor *t, double value)
{
    tr_device device = tr__device_of(t);
    unsigned char bits[8] = {0}, zeros[8] = {0};
    size_t bytes = (size_t)tr__numel(t->shape) * tr_dtype_size(t->dtype);
    tr__store(t->dtype, bits, 0, value);
    if (bytes && memcmp(bits, zeros, sizeof bits) == 0 && tr_is_contiguous(t))
        TR__TRY(tr__plugin(device.kind)->set_bytes(device.index, NULL, tr__ptr(t), 0, bytes));
    else if (bytes)
        TR__TRY(tr__run_kernel("fill", device, &(tr_fill_attrs){value}, sizeof(tr_fill_attrs), NULL, 0,
            (const tr_tensor *const[]){t}, 1));
    tr__touch(t);
    return TR_OK;
}

tr_status tr_fill(tr_tensor *t, double value)
{
    if (!t) return tr__fail(TR_INVALID, "fill: it takes a tensor, not NULL");
    TR__TRY(tr_status_of(t));
    if (tr__device_of(t).kind != TR_CPU) return fill_on_device(t, value);
    unsigned char bits[8];
    tr__store(t->dtype, bits, 0, value);
    tr_tensor one = {.object = {.type = &tr__tensor_type}, .dtype = t->dtype};
    tr__storage storage = {.data = bits, .bytes = sizeof bits, .kind = TR__WRAPPED};
    one.storage = &storage;
    TR__TRY(tr__copy_elements(t, &one));
    tr__touch(t);
    return TR_OK;
}

size_t tr_format(const tr_tensor *t, char *text, size_t bytes)
{
    if (!t) return (size_t)snprintf(text, bytes, "no tensor: NULL");
    if (tr__bad(t)) return (size_t)snprintf(text, bytes, "tensor in error: %s", t->object.error->message);
    size_t at = (size_t)snprintf(text, bytes, "%s %s {", tr_dtype_name(t->dtype), TR__TEXT(t->shape));
    TR_SCOPE;
    const tr_tensor *flat = tr__row_major_on_cpu(t);
    int64_t n = tr__numel(t->shape), shown = n < 8 ? n : 8;
    for (int64_t i = 0; i < shown; i++) {
        double value = tr__bad(flat) ? (double)NAN : tr__load(t->dtype, tr__ptr(flat), i);
        at += (size_t)snprintf(at < bytes ? text + at : NULL, at < bytes ? bytes - at : 0, "%s%g", i ? ", " : "", value);
    }
    at += (size_t)snprintf(at < bytes ? text + at : NULL, at < bytes ? bytes - at : 0, n > shown ? ", …}" : "}");
    return at;
}
