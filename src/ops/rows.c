#include "ops/rows.h"

#include "tensor/loop.h"
#include "tensor/numbers.h"

#include <math.h>

tr__axis tr__axis_in(const tr_tensor *x, uint32_t dims)
{
    int64_t dim[TR_MAX_DIMS], stride[TR_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < x->shape.ndim; d++) {
        if (!(dims >> d & 1)) continue;
        dim[n] = x->shape.dim[d];
        stride[n++] = x->stride[d];
    }
    return tr__axis_of(n, dim, stride);
}

tr__rows tr__rows_of(const tr_tensor *x, int dim)
{
    if (!x) return (tr__rows){.data = NULL};
    if (dim < 0) dim += x->shape.ndim;
    return (tr__rows){
        .dtype = x->dtype,
        .data = tr__ptr(x),
        .n = x->shape.dim[dim],
        .stride = x->stride[dim],
        .others = tr__axis_in(x, ~(1u << dim)),
    };
}

static char *row_at(const tr__rows *x, int64_t r, int64_t first)
{
    return x->data + (tr__axis_at(&x->others, r) + first * x->stride) * (int64_t)tr_dtype_size(x->dtype);
}

void tr__row_read(const tr__rows *x, int64_t r, int64_t first, int64_t n, double *to)
{
    tr__read_f64(to, x->dtype, row_at(x, r, first), x->stride, n);
}

void tr__row_write(const tr__rows *x, int64_t r, int64_t first, int64_t n, const double *from)
{
    tr__write_f64(x->dtype, row_at(x, r, first), x->stride, from, n);
}

void tr__row_read_i64(const tr__rows *x, int64_t r, int64_t first, int64_t n, int64_t *to)
{
    tr__read_i64(to, x->dtype, row_at(x, r, first), x->stride, n);
}

void tr__row_write_i64(const tr__rows *x, int64_t r, int64_t first, int64_t n, const int64_t *from)
{
    tr__write_i64(x->dtype, row_at(x, r, first), x->stride, from, n);
}

tr__log_sum_exp tr__row_log_sum_exp(const tr__rows *x, int64_t r)
{
    double block[TR__ROW_BLOCK], top = -INFINITY, sum = 0;
    for (int64_t first = 0, n; first < x->n; first += n) {
        n = tr__row_block(x, first);
        tr__row_read(x, r, first, n, block);
        double old = top;
        for (int64_t i = 0; i < n; i++) top = block[i] > top || block[i] != block[i] ? block[i] : top;
        if (top == -INFINITY) continue;
        sum *= exp(old - top);
        for (int64_t i = 0; i < n; i++) sum += exp(block[i] - top);
    }
    return (tr__log_sum_exp){top, log(sum)};
}

void tr__vector_read(const tr_tensor *t, int64_t first, int64_t n, double otherwise, double *to)
{
    for (int64_t i = 0; i < n; i++) to[i] = t ? tr__load(t->dtype, tr__ptr(t), (first + i) * t->stride[0]) : otherwise;
}

void tr__vector_put(tr_tensor *t, int64_t first, int64_t n, const double *values, bool accumulate)
{
    for (int64_t i = 0; t && i < n; i++) {
        int64_t at = (first + i) * t->stride[0];
        double old = accumulate ? tr__load(t->dtype, tr__ptr(t), at) : 0;
        tr__store(t->dtype, tr__ptr(t), at, old + values[i]);
    }
}

int64_t tr__row_grain(int64_t elements_per_row)
{
    return TR__GRAIN / (elements_per_row > 0 ? elements_per_row : 1) + 1;
}
