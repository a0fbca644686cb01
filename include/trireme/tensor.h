/*
 * Trireme, tensors: n-dimensional strided views of reference-counted storage.
 *
 * A tensor is (storage, offset, shape, strides, dtype). Views share storage. Shapes are written [batch, seq, dim],
 * row-major. Functions that can carry a gradient are in ops.h.
 */
#ifndef TRIREME_TENSOR_H
#define TRIREME_TENSOR_H

#include <trireme/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TR_MAX_DIMS 8

typedef struct tr_tensor tr_tensor;

/* A shape by value. A dimension may be 0; ndim 0 is a scalar (one element). */
typedef struct tr_shape {
    int ndim;
    int64_t dim[TR_MAX_DIMS];
} tr_shape;

/* TR_SHAPE(32, 784): one to TR_MAX_DIMS sizes. A scalar is TR_SCALAR. */
#ifndef __cplusplus
#define TR_SHAPE(...) \
    ((tr_shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#define TR_SCALAR ((tr_shape){0, {0}})
#else
#define TR_SHAPE(...) (tr__shape({__VA_ARGS__}))
#define TR_SCALAR (tr_shape{})
#endif

/* ---- Making tensors -------------------------------------------------------------------------------------------- */

typedef struct tr_tensor_options {
    size_t size;
    tr_shape shape;
    tr_dtype dtype;
    tr_device device;
    bool requires_grad;
    bool shared; /* storage in memory that the ranks of one host can map (CPU only) */
} tr_tensor_options;

typedef struct tr_from_options {
    size_t size;
    const void *data;
    tr_shape shape;
    tr_dtype dtype;
    tr_device device;
    bool requires_grad;
    bool shared;
} tr_from_options;

/* tr_zeros(TR_SHAPE(2, 3), .dtype = TR_BF16). tr_empty's contents are unspecified. */
#define tr_empty(...) tr_empty_with(TR__OPTIONS1(tr_tensor_options, shape, __VA_ARGS__))
#define tr_zeros(...) tr_full_with(0.0, TR__OPTIONS1(tr_tensor_options, shape, __VA_ARGS__))
#define tr_ones(...) tr_full_with(1.0, TR__OPTIONS1(tr_tensor_options, shape, __VA_ARGS__))
#define tr_full(value, ...) tr_full_with((value), TR__OPTIONS1(tr_tensor_options, shape, __VA_ARGS__))
/* Copies row-major elements of .dtype from data: tr_from(data, TR_SHAPE(2, 3)), tr_from((float[]){1, 2}, TR_SHAPE(2)). */
#define tr_from(...) TR__NEW2(tr_from, data, shape, __VA_ARGS__)
/* Philox (Salmon et al., SC'11), the same numbers on every machine for one seed: normal(0, 1) and uniform [0, 1). */
#define tr_randn(seed, ...) tr_randn_with((seed), TR__OPTIONS1(tr_tensor_options, shape, __VA_ARGS__))
#define tr_rand(seed, ...) tr_rand_with((seed), TR__OPTIONS1(tr_tensor_options, shape, __VA_ARGS__))

TR_API tr_tensor *tr_empty_with(const tr_tensor_options *options);
TR_API tr_tensor *tr_full_with(double value, const tr_tensor_options *options);
TR_API tr_tensor *tr_from_with(const tr_from_options *options);
TR_API tr_tensor *tr_randn_with(uint64_t seed, const tr_tensor_options *options);
TR_API tr_tensor *tr_rand_with(uint64_t seed, const tr_tensor_options *options);
/* 0, 1, … n-1. */
TR_API tr_tensor *tr_arange(int64_t n, tr_dtype dtype, tr_device device);
/* A 0-dimensional tensor on cpu:0. */
TR_API tr_tensor *tr_scalar(double value, tr_dtype dtype);
/* Memory of the caller's, row-major, used in place: release(data, user) is called when the last view has gone (or never
 * when release is NULL). CPU only. */
TR_API tr_tensor *tr_wrap(void *data, tr_shape shape, tr_dtype dtype, void (*release)(void *data, void *user), void *user);

/* ---- Looking at tensors ---------------------------------------------------------------------------------------- */

/* On an object in error, and on NULL: TR_SCALAR, 0, TR_F32, cpu:0, NULL. */
TR_API tr_shape tr_shape_of(const tr_tensor *t);
TR_API int tr_ndim(const tr_tensor *t);
TR_API int64_t tr_size(const tr_tensor *t, int dim); /* dim may be negative: -1 is the last; 0 when there is no such dim */
TR_API int64_t tr_stride(const tr_tensor *t, int dim); /* in elements */
TR_API int64_t tr_numel(const tr_tensor *t);
TR_API tr_dtype tr_dtype_of(const tr_tensor *t);
TR_API tr_device tr_device_of(const tr_tensor *t);
TR_API bool tr_is_contiguous(const tr_tensor *t);
/* The first element, where the device can be addressed by the CPU; NULL otherwise. Rows lie by tr_stride(). */
TR_API void *tr_data(const tr_tensor *t);
/* One value of a tensor with one element, as double (f64, i64 to 2^53). NaN in error, and of any other number of elements:
 * tr_error_message() says why. Waits for the device. */
TR_API double tr_item(const tr_tensor *t);
/* Copies all elements, row-major, as they are, to memory of tr_numel × tr_dtype_size bytes. Waits for the device. */
TR_API TR_MUST_CHECK tr_status tr_copy_out(const tr_tensor *t, void *to, size_t bytes);
/* Overwrites into with from (shapes broadcast, dtype and device converted), outside the graph. They may overlap in memory; the
 * elements of into may not (an expanded tensor is refused). */
TR_API TR_MUST_CHECK tr_status tr_copy_into(tr_tensor *into, const tr_tensor *from);
TR_API TR_MUST_CHECK tr_status tr_fill(tr_tensor *t, double value);
/* "[2, 3]" into text (at least 160 bytes), returned. */
TR_API char *tr_shape_text(tr_shape shape, char text[160]);
/* Prints shape, dtype and the first values of t, for debugging, into text; returns the length that was needed. */
TR_API size_t tr_format(const tr_tensor *t, char *text, size_t bytes);

/* ---- Memory that is shared with other libraries ------------------------------------------------------------------- */

/* By DLPack 1.x, whose dlpack.h has these structs: without a copy, both ways, and outside the graph. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;
/* t's memory, for who calls its deleter when done with it, from any thread; until then it stays. Libraries that are older than
 * DLPack 1.0 take it unversioned. */
TR_API TR_MUST_CHECK tr_status tr_to_dlpack(const tr_tensor *t, struct DLManagedTensorVersioned **out);
TR_API TR_MUST_CHECK tr_status tr_to_dlpack_unversioned(const tr_tensor *t, struct DLManagedTensor **out);
/* A tensor in memory of another library's, which takes it over: the deleter is called when the last view has gone. In error
 * for what no tensor can be (other dtypes and devices, memory that must not be written to), which stays the caller's. */
TR_API tr_tensor *tr_from_dlpack(struct DLManagedTensorVersioned *managed);
TR_API tr_tensor *tr_from_dlpack_unversioned(struct DLManagedTensor *managed);

/* Marks a leaf (a tensor no op made) as wanting a gradient; only floats can. Returns t. */
TR_API tr_tensor *tr_require_grad(tr_tensor *t);
TR_API bool tr_requires_grad(const tr_tensor *t);

/* ---- Lists of named tensors: parameters, gradients, a state dict ------------------------------------------------ */

/* An object that owns its names and holds a reference to each tensor. */
typedef struct tr_tensor_list tr_tensor_list;
TR_API tr_tensor_list *tr_list(void);
/* Appends; fails when the name is there already or the tensor is in error. */
TR_API TR_MUST_CHECK tr_status tr_list_add(tr_tensor_list *list, const char *name, tr_tensor *tensor);
TR_API int tr_list_count(const tr_tensor_list *list);
TR_API tr_tensor *tr_list_at(const tr_tensor_list *list, int i);           /* NULL outside */
TR_API const char *tr_list_name(const tr_tensor_list *list, int i);        /* NULL outside */
TR_API tr_tensor *tr_list_find(const tr_tensor_list *list, const char *name); /* NULL when absent */
TR_API int64_t tr_list_numel(const tr_tensor_list *list);
/* Text that travels with the list ("__metadata__" in a safetensors file): set anew or overwritten; NULL when absent. */
TR_API TR_MUST_CHECK tr_status tr_list_set_metadata(tr_tensor_list *list, const char *key, const char *value);
TR_API const char *tr_list_metadata(const tr_tensor_list *list, const char *key);
TR_API int tr_list_metadata_count(const tr_tensor_list *list);
TR_API const char *tr_list_metadata_key(const tr_tensor_list *list, int i); /* NULL outside */

/* What fitted and what did not when a list was loaded into another, by name. */
typedef struct tr_load_report {
    int loaded;      /* copied */
    int cast;        /* of these, from another dtype */
    int missing;     /* that the state lacks */
    int extra;       /* of the state, that nothing takes */
    int misshapen;   /* of another shape than what they are for */
    char text[1024]; /* all this in words, with the first few names */
} tr_load_report;

#ifdef __cplusplus
} /* extern "C" */
#include <initializer_list>
inline tr_shape tr__shape(std::initializer_list<int64_t> sizes)
{
    tr_shape s = {};
    for (int64_t n : sizes)
        if (s.ndim < TR_MAX_DIMS) s.dim[s.ndim++] = n;
    return s;
}
#endif

#endif
