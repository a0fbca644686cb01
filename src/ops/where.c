/* Comparisons, which make masks, and the choice between two tensors by a mask. Shapes broadcast. */
#include "ops/elementwise.h"
#include "ops/family.h"

#include "tensor/loop.h"
#include "tensor/numbers.h"

enum { BLOCK = 512 };

/* ---- Comparisons: a, b of one dtype -> bool ---------------------------------------------------------------------- */

typedef struct comparison {
    void (*f64)(int64_t *out, const double *a, const double *b, int64_t n);
    void (*i64)(int64_t *out, const int64_t *a, const int64_t *b, int64_t n);
} comparison;

static tr_status compare_infer(tr_op_call *call)
{
    TR__TRY(tr__same(call, 0, 1));
    const tr_tensor *a = call->inputs[0], *b = call->inputs[1];
    tr_shape shape;
    TR__TRY(tr__broadcast(call->op->name, a->shape, b->shape, &shape));
    return tr__output_like(call, 0, tr__shape_equal(a->shape, shape) ? a : b, shape, TR_BOOL);
}

static void compare_run(const tr__loop *loop, char *const *at, int64_t n, const void *arg)
{
    const comparison *c = arg;
    union {
        double floats[2][BLOCK];
        int64_t integers[2][BLOCK];
    } in;
    int64_t out[BLOCK], step = tr__loop_step(loop, 0);
    for (int64_t i = 0, m; i < n; i += m) {
        m = n - i < BLOCK ? n - i : BLOCK;
        for (int k = 0; k < 2; k++) {
            const char *from = at[k + 1] + i * tr__loop_step(loop, k + 1) * loop->bytes[k + 1];
            if (tr_dtype_is_float(loop->dtype[1]))
                tr__read_f64(in.floats[k], loop->dtype[1], from, tr__loop_step(loop, k + 1), m);
            else
                tr__read_i64(in.integers[k], loop->dtype[1], from, tr__loop_step(loop, k + 1), m);
        }
        if (tr_dtype_is_float(loop->dtype[1]))
            c->f64(out, in.floats[0], in.floats[1], m);
        else
            c->i64(out, in.integers[0], in.integers[1], m);
        tr__write_i64(TR_BOOL, at[0] + i * step, step, out, m);
    }
}

static tr_status compare(tr_op_call *call, const comparison *c)
{
    const tr_tensor *tensors[] = {call->outputs[0], call->inputs[0], call->inputs[1]};
    tr__loop loop;
    tr__loop_init(&loop, tensors[0]->shape, tensors, 3);
    tr__loop_run(&loop, tr__pool_of(tensors[0]), compare_run, c);
    return TR_OK;
}

#define COMPARISON(name, operator)                                                               \
    static void name##_f64(int64_t *out, const double *a, const double *b, int64_t n)            \
    {                                                                                            \
        for (int64_t i = 0; i < n; i++) out[i] = a[i] operator b[i];                             \
    }                                                                                            \
    static void name##_i64(int64_t *out, const int64_t *a, const int64_t *b, int64_t n)          \
    {                                                                                            \
        for (int64_t i = 0; i < n; i++) out[i] = a[i] operator b[i];                             \
    }                                                                                            \
    tr_tensor *tr_##name(tr_tensor *a, tr_tensor *b)                                             \
    {                                                                                            \
        return tr_apply(tr__op(name), NULL, (tr_tensor *[]){a, b}, 2, NULL);                     \
    }                                                                                            \
    tr_status tr__##name##_infer(tr_op_call *call)                                               \
    {                                                                                            \
        return compare_infer(call);                                                              \
    }                                                                                            \
    tr_status tr__##name##_forward(tr_op_call *call)                                             \
    {                                                                                            \
        return compare(call, &(comparison){name##_f64, name##_i64});                             \
    }
COMPARISON(equal, ==)
COMPARISON(not_equal, !=)
COMPARISON(less, <)
COMPARISON(less_equal, <=)
COMPARISON(greater, >)
COMPARISON(greater_equal, >=)

/* ---- where: mask, a, b -> a where the mask is true, b elsewhere ---------------------------------------------------- */

tr_tensor *tr_where(tr_tensor *mask, tr_tensor *a, tr_tensor *b)
{
    return tr_apply(tr__op(where), NULL, (tr_tensor *[]){mask, a, b}, 3, NULL);
}

tr_tensor *tr_masked_fill(tr_tensor *x, tr_tensor *mask, double value)
{
    if (!x) return tr__tensor_fail(TR_INVALID, "masked_fill: x is NULL");
    return tr_where(mask, tr_full(value, TR_SCALAR, .dtype = tr_dtype_of(x), .device = tr_device_of(x)), x);
}

tr_status tr__where_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    TR__TRY(tr__same(call, 1, 2));
    const tr_tensor *mask = call->inputs[0], *a = call->inputs[1], *b = call->inputs[2];
    if (mask->dtype != TR_BOOL)
        return tr__fail(TR_DTYPE, "where: the mask is %s %s: it must be bool", tr_dtype_name(mask->dtype),
            TR__TEXT(mask->shape));
    tr_shape shape;
    TR__TRY(tr__broadcast("where", a->shape, b->shape, &shape));
    TR__TRY(tr__broadcast("where", mask->shape, shape, &shape));
    const tr_tensor *like = tr__shape_equal(a->shape, shape) ? a : tr__shape_equal(b->shape, shape) ? b : mask;
    return tr__output_like(call, 0, like, shape, a->dtype);
}

#define WHERE(type, short)                                                                         \
    static void where_##short(type *out, const type *const *in, int64_t n, const void *attrs)      \
    {                                                                                              \
        (void)attrs;                                                                               \
        for (int64_t i = 0; i < n; i++) out[i] = in[0][i] > 0 ? in[1][i] : in[2][i];               \
    }
WHERE(double, f64)
WHERE(int64_t, i64)

tr_status tr__where_forward(tr_op_call *call)
{
    static const tr__bodies bodies = {.f64 = where_f64, .i64 = where_i64};
    return tr__elementwise(call, &bodies);
}

tr_status tr__where_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0], *mask = call->inputs[0];
    tr_tensor *zero = tr_zeros(TR_SCALAR, .dtype = g->dtype, .device = tr__device_of(g));
    if (call->needs[1]) call->grad_inputs[1] = tr__sum_to(tr_where(mask, g, zero), tr__input_shape(call, 1));
    if (call->needs[2]) call->grad_inputs[2] = tr__sum_to(tr_where(mask, zero, g), tr__input_shape(call, 2));
    return TR_OK;
}
