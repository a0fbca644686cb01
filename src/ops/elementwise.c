#include "ops/elementwise.h"

#include "tensor/loop.h"
#include "tensor/numbers.h"

enum { BLOCK = 512, TENSORS = TR__ELEMENTWISE_INPUTS + 1 };

static bool is_narrow(const tr_tensor *x)
{
    return x->dtype == TR_F32 || x->dtype == TR_BF16 || x->dtype == TR_F16;
}

/* The output lies as the first input that has its shape. */
tr_status tr__elementwise_infer(tr_op_call *call, bool floats)
{
    bool mixes = call->op->flags & TR__OP_MIXED && tr_autocast() != TR_F32;
    for (int i = 0; i < call->n_inputs; i++) {
        TR__TRY(tr__given(call, i));
        mixes = mixes && is_narrow(call->inputs[i]);
    }
    tr_dtype dtype = call->inputs[0]->dtype;
    for (int i = 1; i < call->n_inputs; i++) {
        if (!mixes) TR__TRY(tr__same(call, 0, i));
        if (call->inputs[i]->dtype != dtype) dtype = TR_F32;
    }
    if (floats) TR__TRY(tr__float_input(call, 0));
    tr_shape shape = call->inputs[0]->shape;
    for (int i = 1; i < call->n_inputs; i++)
        TR__TRY(tr__broadcast(call->op->name, shape, call->inputs[i]->shape, &shape));
    const tr_tensor *like = call->inputs[0];
    for (int i = 1; i < call->n_inputs && !tr__shape_equal(like->shape, shape); i++) like = call->inputs[i];
    return tr__output_like(call, 0, like, shape, dtype);
}

typedef struct job {
    const tr__bodies *bodies;
    const void *attrs;
    int n_inputs;
    tr_dtype dtype;
    bool as_half, as_f32, as_i64;
    char *at[TENSORS]; /* for run_plain: the output, then the inputs */
} job;

/* A run of the loop, by the body for a type: tensors of that type without gaps are used where they lie, others pass
 * through blocks in the first-level cache. A broadcast number fills its block once. */
#define RUN(name, type, DTYPE)                                                                                      \
    static void run_##name(const tr__loop *loop, char *const *at, int64_t n, const void *arg)                       \
    {                                                                                                               \
        const job *j = arg;                                                                                         \
        type block[TENSORS][BLOCK];                                                                                 \
        const type *in[TR__ELEMENTWISE_INPUTS] = {0};                                                               \
        bool direct[TENSORS], all = true;                                                                           \
        for (int k = 0; k < loop->n; k++) {                                                                         \
            bool own = loop->dtype[k] == DTYPE || (k == 0 && j->bodies->to_bool);                                   \
            direct[k] = own && tr__loop_step(loop, k) == 1;                                                         \
            all = all && direct[k];                                                                                 \
            if (k && tr__loop_step(loop, k) == 0)                                                                   \
                tr__read_##name(block[k], loop->dtype[k], at[k], 0, n < BLOCK ? n : BLOCK);                         \
        }                                                                                                           \
        for (int64_t i = 0, m; i < n; i += m) {                                                                     \
            m = all || n - i < BLOCK ? n - i : BLOCK;                                                               \
            for (int k = 1; k < loop->n; k++) {                                                                     \
                int64_t step = tr__loop_step(loop, k);                                                              \
                char *from = at[k] + i * step * loop->bytes[k];                                                     \
                if (!direct[k] && step) tr__read_##name(block[k], loop->dtype[k], from, step, m);                   \
                in[k - 1] = direct[k] ? (const type *)from : block[k];                                              \
            }                                                                                                       \
            int64_t step = tr__loop_step(loop, 0);                                                                  \
            char *to = at[0] + i * step * loop->bytes[0];                                                           \
            j->bodies->name(direct[0] ? (type *)to : block[0], in, m, j->attrs);                                    \
            if (!direct[0]) tr__write_##name(loop->dtype[0], to, step, block[0], m);                                \
        }                                                                                                           \
    }
RUN(f32, float, TR_F32)
RUN(f64, double, TR_F64)
RUN(i64, int64_t, TR_I64)

/* The same for tensors of a body's own type that lie alike, without gaps: no loop is set up, so that small ops cost little more than
 * their numbers. */
static void run_plain(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    int64_t offset = begin * (int64_t)tr_dtype_size(j->dtype);
    union {
        const void *any[TR__ELEMENTWISE_INPUTS];
        const float *f32[TR__ELEMENTWISE_INPUTS];
        const double *f64[TR__ELEMENTWISE_INPUTS];
        const int64_t *i64[TR__ELEMENTWISE_INPUTS];
    } in = {{0}};
    for (int k = 0; k < j->n_inputs; k++) in.any[k] = j->at[k + 1] + offset;
    void *out = j->at[0] + offset;
    if (j->as_half)
        j->bodies->half(j->dtype, out, in.any, end - begin, j->attrs);
    else if (j->as_f32)
        j->bodies->f32(out, in.f32, end - begin, j->attrs);
    else if (j->as_i64)
        j->bodies->i64(out, in.i64, end - begin, j->attrs);
    else
        j->bodies->f64(out, in.f64, end - begin, j->attrs);
}

static bool is_plain(const tr_op_call *call)
{
    const tr_tensor *out = call->outputs[0];
    if (!tr__is_dense(out)) return false;
    for (int i = 0; i < call->n_inputs; i++) {
        const tr_tensor *x = call->inputs[i];
        if (x->dtype != out->dtype || !tr__shape_equal(x->shape, out->shape) || !tr__has_strides(x, out->stride))
            return false;
    }
    return true;
}

tr_status tr__elementwise(tr_op_call *call, const tr__bodies *bodies)
{
    tr_tensor *out = call->outputs[0];
    tr_dtype dtype = bodies->to_bool ? call->inputs[0]->dtype : out->dtype;
    job j = {.bodies = bodies, .attrs = call->attrs, .n_inputs = call->n_inputs, .dtype = dtype};
    j.as_i64 = !tr_dtype_is_float(dtype);
    j.as_f32 = !j.as_i64 && dtype != TR_F64 && bodies->f32;
    if (j.as_i64 ? !bodies->i64 : !j.as_f32 && !bodies->f64) return TR_DECLINED;

    int64_t n = tr__numel(out->shape);
    j.as_half = (dtype == TR_BF16 || dtype == TR_F16) && bodies->half;
    tr_dtype own = j.as_i64 ? TR_I64 : j.as_f32 ? TR_F32 : TR_F64;
    if ((dtype == own || j.as_half) && is_plain(call)) {
        j.at[0] = tr__ptr(out);
        for (int i = 0; i < call->n_inputs; i++) j.at[i + 1] = tr__ptr(call->inputs[i]);
        if (n > TR__GRAIN)
            tr__pool_for(tr__pool_of(out), n, TR__GRAIN, run_plain, &j);
        else if (n)
            run_plain(&j, 0, n);
        return TR_OK;
    }
    const tr_tensor *tensors[TENSORS] = {out};
    for (int i = 0; i < call->n_inputs; i++) tensors[i + 1] = call->inputs[i];
    tr__loop loop;
    tr__loop_init(&loop, out->shape, tensors, call->n_inputs + 1);
    tr__loop_run(&loop, tr__pool_of(out), j.as_i64 ? run_i64 : j.as_f32 ? run_f32 : run_f64, &j);
    return TR_OK;
}
