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

/* Some of a tensor's dimensions, by value. Negative numbers count from the end. An empty list is an error; TR_ALL_DIMS
 * means all dimensions. */
typedef struct tr_dims {
    int count;
    int dim[TR_MAX_DIMS];
    bool all;
} tr_dims;

/* TR_DIMS(0, -1): one to TR_MAX_DIMS dimensions. Macros that take tr_dims, such as tr_sum(x, 1), also take one integer. */
#ifndef __cplusplus
#define TR_DIMS(...) ((tr_dims){.count = (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), .dim = {__VA_ARGS__}})
#define TR_ALL_DIMS ((tr_dims){.all = true})
#define TR__DIMS(given)                                                                                               \
    _Generic((given), tr_dims: tr__dims_given, int: tr__dims_of, long: tr__dims_of, long long: tr__dims_of,           \
        unsigned: tr__dims_of, unsigned long: tr__dims_of, unsigned long long: tr__dims_of)(given)
#else
#define TR_DIMS(...) (tr__dims_list({__VA_ARGS__}))
#define TR_ALL_DIMS (tr_dims{0, {}, true})
#define TR__DIMS(given) tr__dims(given)
#endif
static inline tr_dims tr__dims_given(tr_dims given) { return given; }
static inline tr_dims tr__dims_of(int64_t dim)
{
    tr_dims d = {1, {dim < INT32_MIN || dim > INT32_MAX ? INT32_MAX : (int)dim}, false};
    return d;
}

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
    int element;  /* the C type behind data, and whether data is an array in braces, as far as the macro can tell; 0:
                     not known */
    bool literal;
    const void *data;
    tr_shape shape;
    tr_dtype dtype;
    tr_device device;
    bool requires_grad;
    bool shared;
} tr_from_options;

/* tr_zeros(TR_SHAPE(2, 3), .dtype = TR_BF16). tr_empty's contents are unspecified. */
#define tr_empty(...) tr_empty_with(TR__TENSOR(__VA_ARGS__))
#define tr_zeros(...) tr_full_with(0.0, TR__TENSOR(__VA_ARGS__))
#define tr_ones(...) tr_full_with(1.0, TR__TENSOR(__VA_ARGS__))
#define tr_full(value, ...) tr_full_with((value), TR__TENSOR(__VA_ARGS__))
/* Copies row-major elements of .dtype from data: tr_from((float[]){1, 2}, TR_SHAPE(2)), tr_from(doubles, TR_SHAPE(2,
 * 3), .dtype = TR_F64). When the C type of data belongs to another dtype, that is an error. The bytes behind a void *
 * or char * are taken as they are. */
#define tr_from(...) tr_from_with(TR__FROM(__VA_ARGS__))
/* Random numbers by Philox (Salmon et al., SC'11): tr_randn() draws normal(0, 1), tr_rand() uniform [0, 1). One seed
 * gives the same numbers on every machine. */
#define tr_randn(seed, ...) tr_randn_with((seed), TR__TENSOR(__VA_ARGS__))
#define tr_rand(seed, ...) tr_rand_with((seed), TR__TENSOR(__VA_ARGS__))

/* A compiler error in this function means that the sizes of a tensor are not in TR_SHAPE(…). */
static inline tr_shape tr__write_TR_SHAPE(tr_shape shape) { return shape; }
#ifndef __cplusplus
#define TR__WITH_SHAPE(type, shape) (sizeof(type) * (1 || (tr__write_TR_SHAPE(shape), 1)))
#define TR__TENSOR(...)                                                                          \
    (&(tr_tensor_options){.size = TR__WITH_SHAPE(tr_tensor_options, TR__FIRST(__VA_ARGS__, )), \
        .shape = __VA_ARGS__})
/* After an array in braces the macro cannot find the shape (see TR__ELEMENT). tr_from_with() then checks that it has
 * elements. */
#define TR__FROM(...)                                                                                                  \
    (&(tr_from_options){.size = TR__JOIN(TR__FROM_SIZE_, TR__IN_PARENTHESES(TR__FIRST(__VA_ARGS__, )))(                \
                            TR__SECOND(__VA_ARGS__, , )),                                                              \
        .element = TR__ELEMENT(TR__FIRST(__VA_ARGS__, )),                                                              \
        .literal = TR__JOIN(TR__IS_LITERAL_, TR__IN_PARENTHESES(TR__FIRST(__VA_ARGS__, )))(TR__FIRST(__VA_ARGS__, )), \
        .data = __VA_ARGS__})
#define TR__FROM_SIZE_0(shape) TR__WITH_SHAPE(tr_from_options, shape)
#define TR__FROM_SIZE_1(shape) sizeof(tr_from_options)
#define TR__IS_LITERAL_0(data) false
#define TR__IS_LITERAL_1(data) TR__IS_ARRAY(*(__typeof__ TR__TYPED(data) *)0)
#define TR__IS_ARRAY(x) !__builtin_types_compatible_p(__typeof__(x), __typeof__(((void)0, (x))))
#else
#define TR__TENSOR(...) TR__TENSOR_(__VA_ARGS__)
#define TR__TENSOR_(shape_, ...) \
    TR__LITERAL(tr_tensor_options, .size = sizeof(tr_tensor_options), .shape = tr__write_TR_SHAPE(shape_) __VA_OPT__(, ) __VA_ARGS__)
#define TR__FROM(...) TR__FROM_(__VA_ARGS__)
#define TR__FROM_(data_, shape_, ...) \
    TR__LITERAL(tr_from_options, .size = sizeof(tr_from_options), .element = tr__element(data_), .data = data_, \
        .shape = tr__write_TR_SHAPE(shape_) __VA_OPT__(, ) __VA_ARGS__)
#endif

TR_API tr_tensor *tr_empty_with(const tr_tensor_options *options);
TR_API tr_tensor *tr_full_with(double value, const tr_tensor_options *options);
TR_API tr_tensor *tr_from_with(const tr_from_options *options);
TR_API tr_tensor *tr_randn_with(uint64_t seed, const tr_tensor_options *options);
TR_API tr_tensor *tr_rand_with(uint64_t seed, const tr_tensor_options *options);
/* 0, 1, … n-1. */
TR_API tr_tensor *tr_arange(int64_t n, tr_dtype dtype, tr_device device);
/* A 0-dimensional tensor on cpu:0. */
TR_API tr_tensor *tr_scalar(double value, tr_dtype dtype);
/* tr_wrap(data, shape, dtype, release, user): a row-major tensor in the caller's memory, without a copy. When the last
 * view is released, release(data, user) is called, unless release is NULL. CPU only. As with tr_from(), the C type of
 * data must be that of dtype. */
#define tr_wrap(...) tr_wrap_element(TR__ELEMENT(TR__FIRST(__VA_ARGS__, )), __VA_ARGS__)
TR_API tr_tensor *tr_wrap_element(int element, void *data, tr_shape shape, tr_dtype dtype,
    void (*release)(void *data, void *user), void *user);

/* ---- Looking at tensors ---------------------------------------------------------------------------------------- */

/* For an object in error, and for NULL, these give TR_SCALAR, 0, TR_F32, cpu:0, NULL. */
TR_API tr_shape tr_shape_of(const tr_tensor *t);
TR_API int tr_ndim(const tr_tensor *t);
TR_API int64_t tr_size(const tr_tensor *t, int dim); /* dim may be negative: -1 is the last; 0 for a dim that t does not
                                                        have */
TR_API int64_t tr_stride(const tr_tensor *t, int dim); /* in elements */
TR_API int64_t tr_numel(const tr_tensor *t);
TR_API tr_dtype tr_dtype_of(const tr_tensor *t);
TR_API tr_device tr_device_of(const tr_tensor *t);
TR_API bool tr_is_contiguous(const tr_tensor *t);
/* Pointer to the first element when the CPU can address the device's memory; otherwise NULL. tr_stride() says where the
 * others are. */
TR_API void *tr_data(const tr_tensor *t);
/* The value of a tensor with one element, as double (f64 exactly, i64 exactly up to 2^53). NaN for a tensor in error
 * and for any other number of elements; tr_error_message() says why. Waits for the device. */
TR_API double tr_item(const tr_tensor *t);
/* tr_copy_out(t, to, bytes): copies all elements, row-major and unconverted, to memory of tr_numel × tr_dtype_size
 * bytes. The C type of `to` must be that of t's dtype, as with tr_from(). Waits for the device. */
#define tr_copy_out(t, to, bytes) tr_copy_out_element(TR__ELEMENT(to), (t), (to), (bytes))
TR_API TR_MUST_CHECK tr_status tr_copy_out_element(int element, const tr_tensor *t, void *to, size_t bytes);
/* Overwrites into with from, outside the graph. Shapes broadcast; dtype and device are converted. The two may overlap
 * in memory. It refuses an expanded tensor as into, because its elements overlap each other. */
TR_API TR_MUST_CHECK tr_status tr_copy_into(tr_tensor *into, const tr_tensor *from);
TR_API TR_MUST_CHECK tr_status tr_fill(tr_tensor *t, double value);
/* Writes "[2, 3]" into text (at least 160 bytes) and returns text. */
TR_API char *tr_shape_text(tr_shape shape, char text[160]);
/* Writes shape, dtype and the first values of t into text, for debugging. Returns the length that was needed. */
TR_API size_t tr_format(const tr_tensor *t, char *text, size_t bytes);

/* ---- Memory that is shared with other libraries ------------------------------------------------------------------- */

/* DLPack 1.x, whose dlpack.h defines these structs. Tensors go both ways without a copy, outside the graph. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;
/* *out shares t's memory. The receiver calls its deleter when it is done, from any thread; until then the memory stays.
 * Libraries older than DLPack 1.0 take the unversioned form. */
TR_API TR_MUST_CHECK tr_status tr_to_dlpack(const tr_tensor *t, struct DLManagedTensorVersioned **out);
TR_API TR_MUST_CHECK tr_status tr_to_dlpack_unversioned(const tr_tensor *t, struct DLManagedTensor **out);
/* A tensor in another library's memory. It takes over the memory and calls the deleter when the last view is released.
 * In error when no tensor can hold the memory (other dtypes and devices, read-only memory); the caller then still owns
 * it. */
TR_API tr_tensor *tr_from_dlpack(struct DLManagedTensorVersioned *managed);
TR_API tr_tensor *tr_from_dlpack_unversioned(struct DLManagedTensor *managed);

/* Marks a leaf (a tensor that no op made) as requiring a gradient. Only floating-point tensors can. Returns t. */
TR_API tr_tensor *tr_require_grad(tr_tensor *t);
TR_API bool tr_requires_grad(const tr_tensor *t);

/* ---- Lists of named tensors: parameters, gradients, a state dict ------------------------------------------------ */

/* An object that owns its names and holds a reference to each tensor. */
typedef struct tr_tensor_list tr_tensor_list;
TR_API tr_tensor_list *tr_list_new(void);
/* Appends; fails when the name is there already or the tensor is in error. */
TR_API TR_MUST_CHECK tr_status tr_list_add(tr_tensor_list *list, const char *name, tr_tensor *tensor);
/* Appends all tensors of other, as prefix + name: tr_list_merge(all, "critic.", tr_optimizer_state(critic)) puts a second
 * optimizer into a checkpoint. A name that is there already is TR_INVALID, and nothing is added; other's metadata is left out. */
TR_API TR_MUST_CHECK tr_status tr_list_merge(tr_tensor_list *list, const char *prefix, const tr_tensor_list *other);
/* The reverse: a list of those tensors whose names begin with prefix, without the prefix. In error when there is none. */
TR_API tr_tensor_list *tr_list_part(const tr_tensor_list *list, const char *prefix);
TR_API int tr_list_count(const tr_tensor_list *list);
TR_API tr_tensor *tr_list_at(const tr_tensor_list *list, int i);           /* NULL outside */
TR_API const char *tr_list_name(const tr_tensor_list *list, int i);        /* NULL outside */
/* NULL when absent. The time depends on the length of the name, not on the number of tensors. */
TR_API tr_tensor *tr_list_find(const tr_tensor_list *list, const char *name);
TR_API int64_t tr_list_numel(const tr_tensor_list *list);
/* Checks that all numbers of all tensors are finite. Otherwise TR_INVALID: the message names the first tensor with NaN
 * or infinities, says how many it has, and where the first one is. */
TR_API TR_MUST_CHECK tr_status tr_check_finite(const tr_tensor_list *list);
/* Text that travels with the list ("__metadata__" in a safetensors file). tr_list_set_metadata() adds or overwrites an
 * entry. tr_list_metadata() gives NULL for an absent key. */
TR_API TR_MUST_CHECK tr_status tr_list_set_metadata(tr_tensor_list *list, const char *key, const char *value);
TR_API const char *tr_list_metadata(const tr_tensor_list *list, const char *key);
TR_API int tr_list_metadata_count(const tr_tensor_list *list);
TR_API const char *tr_list_metadata_key(const tr_tensor_list *list, int i); /* NULL outside */

/* What was loaded and what was not, when a list was loaded into another one by name. */
typedef struct tr_load_report {
    int loaded;      /* copied */
    int cast;        /* of the copied ones: converted from another dtype */
    int missing;     /* names that the state lacks */
    int extra;       /* entries of the state that nothing takes */
    int mismatched;  /* entries whose shape differs from that of their destination */
    char text[1024]; /* all this in words, with the first few names */
} tr_load_report;

#ifdef __cplusplus
} /* extern "C" */
#include <initializer_list>
inline tr_shape tr__shape(std::initializer_list<int64_t> sizes)
{
    tr_shape s = {};
    for (int64_t n : sizes) {
        if (s.ndim < TR_MAX_DIMS) s.dim[s.ndim] = n;
        s.ndim++; /* more than TR_MAX_DIMS are refused where the shape is used */
    }
    return s;
}
inline tr_dims tr__dims_list(std::initializer_list<int> dims)
{
    tr_dims d = {};
    for (int dim : dims) {
        if (d.count < TR_MAX_DIMS) d.dim[d.count] = dim;
        d.count++;
    }
    return d;
}
inline tr_dims tr__dims(tr_dims given) { return given; }
inline tr_dims tr__dims(int dim) { return tr__dims_of(dim); }
inline tr_dims tr__dims(long dim) { return tr__dims_of(dim); }
inline tr_dims tr__dims(long long dim) { return tr__dims_of(dim); }
tr_dims tr__dims(bool) = delete;
tr_dims tr__dims(double) = delete;
#endif

#endif
