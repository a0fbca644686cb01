/* What of oneDNN's interface differs between 2.x and 3.x, said once. */
#ifndef TR_OPS_ONEDNN_API_H
#define TR_OPS_ONEDNN_API_H

#include <oneapi/dnnl/dnnl.h>

#include <stdint.h>

/* A convolution: sizes and steps of height and width, and what goes in and out (which are gradients in a backward). */
typedef struct tr__dnnl_conv {
    dnnl_prop_kind_t kind; /* forward, backward_data or backward_weights */
    dnnl_dims_t strides, dilates, padding;
} tr__dnnl_conv;

/* Sizes or strides as oneDNN reads them: always as many as it has dimensions at most. */
typedef struct tr__dnnl_sizes {
    dnnl_dims_t of;
} tr__dnnl_sizes;

static inline tr__dnnl_sizes tr__dnnl_sizes_of(int n, const int64_t *from)
{
    tr__dnnl_sizes sizes = {{0}};
    for (int i = 0; from && i < n; i++) sizes.of[i] = from[i];
    return sizes;
}

typedef dnnl_memory_desc_t tr__dnnl_desc; /* 3.x: owned; 2.x: a plain struct, which functions take by its address */

#if DNNL_VERSION_MAJOR >= 3

#define TR__DNNL_GIVEN(desc) (*(desc))
#define TR__DNNL_BY_TAG dnnl_memory_desc_create_with_tag
#define TR__DNNL_BY_STRIDES dnnl_memory_desc_create_with_strides

static inline void tr__dnnl_desc_free(tr__dnnl_desc *desc)
{
    if (*desc) dnnl_memory_desc_destroy(*desc);
}

static inline dnnl_status_t tr__dnnl_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, tr__dnnl_desc *a,
    tr__dnnl_desc *b, tr__dnnl_desc *bias, tr__dnnl_desc *c, dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(made, engine, *a, *b, bias ? *bias : NULL, *c, attr);
}

static inline dnnl_status_t tr__dnnl_convolution(dnnl_primitive_desc_t *made, dnnl_engine_t engine, const tr__dnnl_conv *c,
    tr__dnnl_desc *x, tr__dnnl_desc *weight, tr__dnnl_desc *bias, tr__dnnl_desc *y, const_dnnl_primitive_desc_t forward,
    dnnl_primitive_attr_t attr)
{
    dnnl_memory_desc_t b = bias ? *bias : NULL;
    if (c->kind == dnnl_backward_data)
        return dnnl_convolution_backward_data_primitive_desc_create(made, engine, dnnl_convolution_direct, *x, *weight,
            *y, c->strides, c->dilates, c->padding, c->padding, forward, attr);
    if (c->kind == dnnl_backward_weights)
        return dnnl_convolution_backward_weights_primitive_desc_create(made, engine, dnnl_convolution_direct, *x,
            *weight, b, *y, c->strides, c->dilates, c->padding, c->padding, forward, attr);
    return dnnl_convolution_forward_primitive_desc_create(made, engine, c->kind, dnnl_convolution_direct, *x, *weight, b,
        *y, c->strides, c->dilates, c->padding, c->padding, attr);
}

static inline dnnl_status_t tr__dnnl_add_to(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

static inline dnnl_status_t tr__dnnl_desc_copy(tr__dnnl_desc *to, const_dnnl_memory_desc_t from)
{
    return dnnl_memory_desc_clone(to, from);
}

#else

#define TR__DNNL_GIVEN(desc) (desc)
#define TR__DNNL_BY_TAG dnnl_memory_desc_init_by_tag
#define TR__DNNL_BY_STRIDES dnnl_memory_desc_init_by_strides

static inline void tr__dnnl_desc_free(tr__dnnl_desc *desc) { (void)desc; }

static inline dnnl_status_t tr__dnnl_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, tr__dnnl_desc *a,
    tr__dnnl_desc *b, tr__dnnl_desc *bias, tr__dnnl_desc *c, dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, a, b, bias, c);
    return status == dnnl_success ? dnnl_primitive_desc_create(made, &desc, attr, engine, NULL) : status;
}

static inline dnnl_status_t tr__dnnl_convolution(dnnl_primitive_desc_t *made, dnnl_engine_t engine, const tr__dnnl_conv *c,
    tr__dnnl_desc *x, tr__dnnl_desc *weight, tr__dnnl_desc *bias, tr__dnnl_desc *y, const_dnnl_primitive_desc_t forward,
    dnnl_primitive_attr_t attr)
{
    dnnl_convolution_desc_t desc;
    dnnl_status_t status;
    if (c->kind == dnnl_backward_data)
        status = dnnl_dilated_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, x, weight, y, c->strides,
            c->dilates, c->padding, c->padding);
    else if (c->kind == dnnl_backward_weights)
        status = dnnl_dilated_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, x, weight, bias, y,
            c->strides, c->dilates, c->padding, c->padding);
    else
        status = dnnl_dilated_convolution_forward_desc_init(&desc, c->kind, dnnl_convolution_direct, x, weight, bias, y,
            c->strides, c->dilates, c->padding, c->padding);
    return status == dnnl_success ? dnnl_primitive_desc_create(made, &desc, attr, engine, forward) : status;
}

static inline dnnl_status_t tr__dnnl_add_to(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

static inline dnnl_status_t tr__dnnl_desc_copy(tr__dnnl_desc *to, const dnnl_memory_desc_t *from)
{
    *to = *from;
    return dnnl_success;
}

#endif

/* strides NULL: any layout, for the primitive to choose. */
static inline dnnl_status_t tr__dnnl_desc_new(tr__dnnl_desc *desc, dnnl_data_type_t type, int ndims, const int64_t *dims,
    const int64_t *strides)
{
    tr__dnnl_sizes size = tr__dnnl_sizes_of(ndims, dims), step = tr__dnnl_sizes_of(ndims, strides);
    if (!strides) return TR__DNNL_BY_TAG(desc, ndims, size.of, type, dnnl_format_tag_any);
    return TR__DNNL_BY_STRIDES(desc, ndims, size.of, type, step.of);
}

static inline dnnl_status_t tr__dnnl_reorder(dnnl_primitive_desc_t *made, dnnl_engine_t engine, tr__dnnl_desc *from,
    tr__dnnl_desc *to, dnnl_primitive_attr_t attr)
{
    return dnnl_reorder_primitive_desc_create(made, TR__DNNL_GIVEN(from), engine, TR__DNNL_GIVEN(to), engine, attr);
}

static inline dnnl_status_t tr__dnnl_memory(dnnl_memory_t *memory, const tr__dnnl_desc *desc, dnnl_engine_t engine, void *data)
{
    return dnnl_memory_create(memory, TR__DNNL_GIVEN(desc), engine, data);
}

/* A copy of what a primitive says of an argument; and the bytes of what is described. */
static inline dnnl_status_t tr__dnnl_argument(const_dnnl_primitive_desc_t of, int argument, tr__dnnl_desc *desc)
{
    return tr__dnnl_desc_copy(desc, dnnl_primitive_desc_query_md(of, dnnl_query_exec_arg_md, argument));
}

static inline size_t tr__dnnl_desc_bytes(const tr__dnnl_desc *desc)
{
    return dnnl_memory_desc_get_size(TR__DNNL_GIVEN(desc));
}

#endif
