/* What of oneDNN's interface differs between 2.x and 3.x, said once. */
#ifndef TR_OPS_ONEDNN_API_H
#define TR_OPS_ONEDNN_API_H

#include <oneapi/dnnl/dnnl.h>

#include <stdint.h>

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t tr__dnnl_desc; /* owned */

static inline dnnl_status_t tr__dnnl_desc_new(tr__dnnl_desc *desc, dnnl_data_type_t type, int64_t rows, int64_t columns,
    int64_t row_stride, int64_t column_stride)
{
    const dnnl_dims_t size = {rows, columns}, stride = {row_stride, column_stride};
    return dnnl_memory_desc_create_with_strides(desc, 2, size, type, stride);
}

static inline void tr__dnnl_desc_free(tr__dnnl_desc *desc)
{
    if (*desc) dnnl_memory_desc_destroy(*desc);
}

static inline dnnl_status_t tr__dnnl_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, tr__dnnl_desc *a,
    tr__dnnl_desc *b, tr__dnnl_desc *bias, tr__dnnl_desc *c, dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(made, engine, *a, *b, bias ? *bias : NULL, *c, attr);
}

static inline dnnl_status_t tr__dnnl_memory(dnnl_memory_t *memory, const tr__dnnl_desc *desc, dnnl_engine_t engine, void *data)
{
    return dnnl_memory_create(memory, *desc, engine, data);
}

static inline dnnl_status_t tr__dnnl_add_to(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

/* A copy of what the primitive says of its scratchpad; and that one's bytes. */
static inline dnnl_status_t tr__dnnl_scratchpad(const_dnnl_primitive_desc_t of, tr__dnnl_desc *desc)
{
    return dnnl_memory_desc_clone(desc, dnnl_primitive_desc_query_md(of, dnnl_query_exec_arg_md, DNNL_ARG_SCRATCHPAD));
}

static inline size_t tr__dnnl_desc_bytes(const tr__dnnl_desc *desc) { return dnnl_memory_desc_get_size(*desc); }

#else

typedef dnnl_memory_desc_t tr__dnnl_desc;

static inline dnnl_status_t tr__dnnl_desc_new(tr__dnnl_desc *desc, dnnl_data_type_t type, int64_t rows, int64_t columns,
    int64_t row_stride, int64_t column_stride)
{
    const dnnl_dims_t size = {rows, columns}, stride = {row_stride, column_stride};
    return dnnl_memory_desc_init_by_strides(desc, 2, size, type, stride);
}

static inline void tr__dnnl_desc_free(tr__dnnl_desc *desc) { (void)desc; }

static inline dnnl_status_t tr__dnnl_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, tr__dnnl_desc *a,
    tr__dnnl_desc *b, tr__dnnl_desc *bias, tr__dnnl_desc *c, dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, a, b, bias, c);
    return status == dnnl_success ? dnnl_primitive_desc_create(made, &desc, attr, engine, NULL) : status;
}

static inline dnnl_status_t tr__dnnl_memory(dnnl_memory_t *memory, const tr__dnnl_desc *desc, dnnl_engine_t engine, void *data)
{
    return dnnl_memory_create(memory, desc, engine, data);
}

static inline dnnl_status_t tr__dnnl_add_to(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

static inline dnnl_status_t tr__dnnl_scratchpad(const_dnnl_primitive_desc_t of, tr__dnnl_desc *desc)
{
    *desc = *dnnl_primitive_desc_query_md(of, dnnl_query_exec_arg_md, DNNL_ARG_SCRATCHPAD);
    return dnnl_success;
}

static inline size_t tr__dnnl_desc_bytes(const tr__dnnl_desc *desc) { return dnnl_memory_desc_get_size(desc); }

#endif

#endif
