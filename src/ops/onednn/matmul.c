#include "ops/onednn/matmul.h"

#include <stdio.h>
#include <string.h>

static dnnl_status_t describe(tr__primitive *p, const tr__matmul *k)
{
    static const int names[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
    const int64_t size[][2] = {{k->m, k->k}, {k->k, k->n}, {k->m, k->n}, {1, k->n}};
    const int64_t stride[][2] = {{k->a_row, k->a_column}, {k->b_row, k->b_column}, {k->c_row, 1}, {k->n, 1}};
    dnnl_data_type_t type = k->dtype == TR_BF16 ? dnnl_bf16 : dnnl_f16;
    dnnl_status_t status = dnnl_success;
    p->parts = 4;
    for (int i = 0; i < p->parts && status == dnnl_success; i++) {
        p->argument[i] = names[i];
        status = tr__dnnl_desc_new(&p->desc[i], type, 2, size[i], stride[i]);
    }
    return status;
}

static dnnl_status_t make(tr__primitive *p, dnnl_engine_t engine, const void *user)
{
    const tr__matmul *k = user;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = describe(p, k);
    if (status == dnnl_success) status = tr__primitive_attributes(k->accumulate, &attr);
    if (status == dnnl_success)
        status = tr__dnnl_matmul(&desc, engine, &p->desc[0], &p->desc[1], k->with_bias ? &p->desc[3] : NULL, &p->desc[2],
            attr);
    char text[120];
    snprintf(text, sizeof text, "matmul %s [%lld, %lld] x [%lld, %lld]", tr_dtype_name((tr_dtype)k->dtype),
        (long long)k->m, (long long)k->k, (long long)k->k, (long long)k->n);
    if (status == dnnl_success) status = tr__primitive_finish(p, desc, text);
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

tr_status tr__matmul_get(const tr__matmul *matmul, tr__primitive **out)
{
    tr__primitive_key key = {.kind = TR__DNNL_MATMUL};
    _Static_assert(sizeof *matmul <= sizeof key.number, "a matmul's numbers fit a key");
    memcpy(key.number, matmul, sizeof *matmul);
    return tr__primitive_get("matmul", &key, make, matmul, out);
}
