/*
 * Elements by their numbers along one dimension:
 *   take_along   y[i, j] = x[index[i, j], j] (along dimension 0)
 *   scatter_add  y = x, then y[index[i, j], j] += src[i, j]
 *   put_along    y = x, then y[index[i, j], j] = src[i, j]
 * The first two are each other's gradients.
 */
#include "ops/family.h"
#include "ops/ids.h"

#include "tensor/loop.h"

#include <stdio.h>
#include <string.h>

/* ---- Public functions and shapes ------------------------------------------------------------------------------- */

tr_tensor *tr_take_along(tr_tensor *x, int dim, tr_tensor *index)
{
    return tr__apply_along(tr__op(take_along), dim, (tr_tensor *[]){x, index}, 2);
}

tr_tensor *tr_scatter_add(tr_tensor *x, int dim, tr_tensor *index, tr_tensor *src)
{
    return tr__apply_along(tr__op(scatter_add), dim, (tr_tensor *[]){x, index, src}, 3);
}

tr_tensor *tr_put_along(tr_tensor *x, int dim, tr_tensor *index, tr_tensor *src)
{
    return tr__apply_along(tr__op(put_along), dim, (tr_tensor *[]){x, index, src}, 3);
}

/* The index has x's dimensions, none but `dim` longer than there. */
static tr_status check_index(const tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    TR__TRY(tr__ids_input(call, 1));
    int dim = ((const tr_dim_attrs *)call->attrs)->dim;
    const tr_tensor *x = call->inputs[0], *index = call->inputs[1];
    bool fits = x->shape.ndim == index->shape.ndim;
    for (int d = 0; fits && d < x->shape.ndim; d++) fits = d == dim || index->shape.dim[d] <= x->shape.dim[d];
    if (fits) return TR_OK;
    return tr__fail(TR_SHAPE, "%s: index %s does not fit x %s: but for dimension %d it must lie in it", call->op->name,
        TR__TEXT(index->shape), TR__TEXT(x->shape), dim);
}

tr_status tr__take_along_infer(tr_op_call *call)
{
    TR__TRY(check_index(call));
    return tr_op_output(call, 0, call->inputs[1]->shape, call->inputs[0]->dtype);
}

tr_status tr__scatter_add_infer(tr_op_call *call)
{
    TR__TRY(check_index(call));
    TR__TRY(tr__same(call, 0, 2));
    const tr_tensor *x = call->inputs[0], *index = call->inputs[1], *src = call->inputs[2];
    if (!tr__shape_equal(index->shape, src->shape))
        return tr__fail(TR_SHAPE, "%s: index %s and src %s must have one shape", call->op->name,
            TR__TEXT(index->shape), TR__TEXT(src->shape));
    return tr_op_output(call, 0, x->shape, x->dtype);
}

/* Every number is one of x's along the dimension. Where the index is broadcast each is looked at once. */
static tr_status check_ids(const tr_op_call *call)
{
    const tr_tensor *index = call->inputs[1];
    uint32_t dims = 0;
    if (tr__numel(index->shape) == 0) return TR_OK;
    for (int d = 0; d < index->shape.ndim; d++) dims |= (uint32_t)(index->stride[d] != 0) << d;
    tr__ids ids = tr__ids_of(index);
    ids.axis = tr__axis_in(index, dims);
    char what[64];
    snprintf(what, sizeof what, "%s: index", call->op->name);
    int64_t size = call->inputs[0]->shape.dim[((const tr_dim_attrs *)call->attrs)->dim];
    return tr__ids_check(&ids, size, what, "elements", NULL);
}

static int64_t id_in(tr_dtype dtype, const char *at, int64_t place)
{
    return dtype == TR_I64 ? ((const int64_t *)at)[place] : ((const int32_t *)at)[place];
}

/* ---- take_along ---------------------------------------------------------------------------------------------------- */

/* The loop walks y, index and x at position 0 of the dimension, along which x's elements lie *arg apart. */
#define TAKE(type)                                                                          \
    for (int64_t i = 0; i < n; i++)                                                           \
        ((type *)at[0])[i * to] = ((const type *)at[2])[i * from + id_in(loop->dtype[1], at[1], i * step) * apart];

static void take_run(const tr__loop *loop, char *const *at, int64_t n, const void *arg)
{
    int64_t apart = *(const int64_t *)arg, to = tr__loop_step(loop, 0), from = tr__loop_step(loop, 2);
    int64_t step = tr__loop_step(loop, 1);
    if (step == 0 && to == 1 && from == 1) {
        const char *row = at[2] + id_in(loop->dtype[1], at[1], 0) * apart * loop->bytes[0];
        memcpy(at[0], row, (size_t)(n * loop->bytes[0]));
        return;
    }
    TR__OF_BYTES(loop->bytes[0], TAKE)
}

tr_status tr__take_along_forward(tr_op_call *call)
{
    TR__TRY(check_ids(call));
    int dim = ((const tr_dim_attrs *)call->attrs)->dim;
    tr_tensor first = *call->inputs[0]; /* on the stack, so it is nobody's object */
    int64_t apart = first.stride[dim];
    first.shape = call->inputs[1]->shape;
    first.stride[dim] = 0;
    const tr_tensor *tensors[] = {call->outputs[0], call->inputs[1], &first};
    tr__loop loop;
    tr__loop_init(&loop, first.shape, tensors, 3);
    tr__loop_run(&loop, tr__pool_of(call->outputs[0]), take_run, &apart);
    return TR_OK;
}

TR__BACKWARD(take_along, tr_dim_attrs,
    tr_scatter_add(tr__zeros_like(g, tr__input_shape(call, 0)), a->dim, call->inputs[1], g))

/* ---- scatter_add and put_along --------------------------------------------------------------------------------------- */

/* How far elements that differ by 1 along the dimension lie apart. */
typedef struct job {
    int64_t n, y, index, src;
    bool replace; /* what is there, rather than add to it */
} job;

/* A loop of two: its length, and how far elements of y, index and src lie apart. */
typedef struct level {
    int64_t n, y, index, src;
} level;

#define SCATTER_ADD(type, sum)                                                                                \
    for (int64_t o = 0; o < outer.n; o++)                                                                     \
        for (int64_t i = 0; i < inner.n; i++) {                                                               \
            int64_t id = id_in(loop->dtype[1], at[1], o * outer.index + i * inner.index);                     \
            type *place = (type *)at[0] + o * outer.y + i * inner.y + id * j->y;                              \
            type value = ((const type *)at[2])[o * outer.src + i * inner.src];                                \
            *place = j->replace ? value : sum;                                                                                 \
        }

/* The loop walks y, index and src at position 0 of the dimension; each thread adds to elements of its own, in order. The inner
 * of the run and the dimension is the one that lies closer together in y. */
static void scatter_add_run(const tr__loop *loop, char *const *at, int64_t n, const void *arg)
{
    const job *j = arg;
    level run = {n, tr__loop_step(loop, 0), tr__loop_step(loop, 1), tr__loop_step(loop, 2)};
    level dim = {j->n, 0, j->index, j->src}; /* where in y, the ids say */
    level outer = j->y < run.y ? run : dim, inner = j->y < run.y ? dim : run;
    switch (loop->dtype[0]) {
    case TR_F32: SCATTER_ADD(float, *place + value) break;
    case TR_F64: SCATTER_ADD(double, *place + value) break;
    default: SCATTER_ADD(int64_t, (int64_t)((uint64_t)*place + (uint64_t)value)) break;
    }
}

/* On tensors of f32, f64 or i64. */
static void scatter_along(tr_tensor *y, const tr_tensor *index, const tr_tensor *src, int dim, bool replace)
{
    job j = {index->shape.dim[dim], y->stride[dim], index->stride[dim], src->stride[dim], replace};
    tr_tensor first[] = {*y, *index, *src}; /* at position 0 of the dimension */
    for (int k = 0; k < 3; k++) {
        first[k].shape = index->shape;
        first[k].shape.dim[dim] = 1;
    }
    tr__loop loop;
    tr__loop_init(&loop, first[0].shape, (const tr_tensor *[]){&first[0], &first[1], &first[2]}, 3);
    tr__loop_run(&loop, tr__pool_of(y), scatter_add_run, &j);
}

/* 16-bit floats are summed in f32, small integers in i64. */
tr_status tr__scatter_add_forward(tr_op_call *call)
{
    TR__TRY(check_ids(call));
    tr_tensor *out = call->outputs[0], *y = out;
    tr_dtype dtype = !tr_dtype_is_float(out->dtype) ? TR_I64 : out->dtype == TR_F64 ? TR_F64 : TR_F32;
    if (out->dtype != dtype) y = tr__tensor_new(out->shape, dtype, tr__device_of(out));
    tr_tensor *src = out->dtype == dtype ? call->inputs[2] : tr__staged(call->inputs[2], dtype, NULL, true);
    TR__TRY_ALL(y, src);
    TR__TRY(tr__copy_elements(y, call->inputs[0]));
    int dim = ((const tr_dim_attrs *)call->attrs)->dim;
    scatter_along(y, call->inputs[1], src, dim, call->op == tr__op(put_along));
    return tr__unstage(out, y);
}

tr_status tr__scatter_add_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0];
    int dim = ((const tr_dim_attrs *)call->attrs)->dim;
    if (call->needs[0]) call->grad_inputs[0] = g;
    if (call->needs[2]) call->grad_inputs[2] = tr_take_along(g, dim, call->inputs[1]);
    return TR_OK;
}

/* What was replaced has no part in the result. */
tr_status tr__put_along_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0], *index = call->inputs[1];
    int dim = ((const tr_dim_attrs *)call->attrs)->dim;
    if (call->needs[0]) call->grad_inputs[0] = tr_put_along(g, dim, index, tr__zeros_like(g, index->shape));
    if (call->needs[2]) call->grad_inputs[2] = tr_take_along(g, dim, index);
    return TR_OK;
}

/* ---- What is made of them ------------------------------------------------------------------------------------------ */

/* The ids of an op that is made of others, whose messages would name those. */
static tr_status check_given_ids(const char *op, const tr_tensor *ids, int64_t limit, const char *of)
{
    if (ids->dtype != TR_I64 && ids->dtype != TR_I32)
        return tr__fail(TR_DTYPE, "%s: ids are %s %s: they must be i64 or i32", op, tr_dtype_name(ids->dtype),
            TR__TEXT(ids->shape));
    if (tr__device_of(ids).kind != TR_CPU) return TR_OK; /* its kernels look at them */
    tr__ids all = tr__ids_of(ids);
    char what[64];
    snprintf(what, sizeof what, "%s: id", op);
    return tr__ids_check(&all, limit, what, of, NULL);
}

tr_tensor *tr_index_select(tr_tensor *x, int dim, tr_tensor *ids)
{
    int d;
    TR__REQUIRE("index_select", "x", x);
    TR__REQUIRE("index_select", "input 'ids'", ids);
    if (tr__dim("index_select", x->shape, dim, &d) != TR_OK) return tr__tensor_failed();
    if (ids->shape.ndim != 1)
        return tr__tensor_fail(TR_SHAPE, "index_select: ids are %s: they must be [n]", TR__TEXT(ids->shape));
    if (check_given_ids("index_select", ids, x->shape.dim[d], "elements") != TR_OK) return tr__tensor_failed();
    tr_shape line = {.ndim = x->shape.ndim}, shape = x->shape;
    for (int k = 0; k < line.ndim; k++) line.dim[k] = 1;
    line.dim[d] = shape.dim[d] = ids->shape.dim[0];
    return tr_take_along(x, d, tr_expand(tr_reshape(ids, line), shape));
}

tr_tensor *tr_flip(tr_tensor *x, int dim)
{
    TR__REQUIRE("flip", "x", x);
    int d;
    if (tr__dim("flip", x->shape, dim, &d) != TR_OK) return tr__tensor_failed();
    tr_tensor *last = tr_full((double)(x->shape.dim[d] - 1), TR_SCALAR, .dtype = TR_I64, .device = tr__device_of(x));
    return tr_index_select(x, d, tr_sub(last, tr_arange(x->shape.dim[d], TR_I64, tr__device_of(x))));
}

tr_tensor *tr_one_hot(tr_tensor *ids, int64_t classes, tr_dtype dtype)
{
    TR__REQUIRE("one_hot", "input 'ids'", ids);
    tr_shape column = ids->shape;
    if (classes < 0 || column.ndim == TR_MAX_DIMS)
        return tr__tensor_fail(TR_SHAPE, "one_hot: there is no tensor of ids %s with %lld classes", TR__TEXT(column),
            (long long)classes);
    if (check_given_ids("one_hot", ids, classes, "classes") != TR_OK) return tr__tensor_failed();
    column.dim[column.ndim++] = 1;
    tr_shape shape = column;
    shape.dim[shape.ndim - 1] = classes;
    tr_tensor *zero = tr_zeros(TR_SCALAR, .dtype = dtype, .device = tr__device_of(ids));
    tr_tensor *one = tr_ones(TR_SCALAR, .dtype = dtype, .device = tr__device_of(ids));
    return tr_scatter_add(tr_expand(zero, shape), -1, tr_reshape(ids, column), tr_expand(one, column));
}
