/*
 * Dropout (Srivastava et al. 2014): which elements go is a pure function of (seed, step, sample, element), so that
 * nothing has to be saved: the gradient goes through the same mask, drawn again.
 */
#include "ops/dropout.h"
#include "ops/family.h"

#include "tensor/loop.h"
#include "tensor/numbers.h"

enum { BLOCK = 512 };

tr_tensor *tr_dropout_with(const tr_dropout_options *o)
{
    tr_dropout_attrs attrs = {.p = o->p, .seed = o->seed, .step = o->step, .first_sample = o->first_sample};
    tr_tensor *x = o->x;
    return tr_apply(tr__op(dropout), &attrs, &x, 1, NULL);
}

tr_status tr__dropout_infer(tr_op_call *call)
{
    const tr_dropout_attrs *attrs = call->attrs;
    TR__TRY(tr__float_input(call, 0));
    if (!(attrs->p >= 0 && attrs->p < 1))
        return tr__fail(TR_INVALID, "dropout: p is %g: it must be at least 0 and less than 1", attrs->p);
    return tr_op_output(call, 0, call->inputs[0]->shape, call->inputs[0]->dtype);
}

/* mask[i] = scale or 0 for elements first … first + n - 1 of a sample. */
static void draw_mask(double *mask, const tr_dropout_attrs *attrs, uint64_t sample, int64_t first, int64_t n)
{
    uint64_t key = tr__dropout_key(attrs);
    double scale = 1 / (1 - attrs->p);
    for (int64_t i = 0; i < n; i++) {
        int64_t group = (first + i) / TR__DROPOUT_GROUP, e = (first + i) % TR__DROPOUT_GROUP;
        uint64_t draw = (uint64_t)(group * TR__DROPOUT_DRAWS + e % TR__DROPOUT_DRAWS);
        uint32_t word = tr__philox_at(key, sample, draw).word[e / TR__DROPOUT_DRAWS];
        mask[i] = tr__uniform(word) < (float)attrs->p ? 0 : scale;
    }
}

typedef struct job {
    const tr_dropout_attrs *attrs;
    const tr_tensor *x, *y;
    int64_t per_sample;
} job;

/* Runs end where a sample does, and where x has gaps, the last dimension; of one dimension each element is a sample. */
static void drop(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const tr_tensor *x = j->x, *y = j->y;
    int last = x->shape.ndim - 1;
    bool flat = tr_is_contiguous(x);
    int64_t run = flat || last == 0 ? j->per_sample : x->shape.dim[last], step = flat ? 1 : x->stride[last];
    double values[BLOCK], mask[BLOCK];
    for (int64_t i = begin, n; i < end; i += n) {
        n = run - i % run < end - i ? run - i % run : end - i;
        if (n > BLOCK) n = BLOCK;
        int64_t at = flat ? i : 0, rest = i;
        for (int d = x->shape.ndim; d-- > 0 && !flat; rest /= x->shape.dim[d]) at += rest % x->shape.dim[d] * x->stride[d];
        tr__read_f64(values, x->dtype, (char *)tr__ptr(x) + at * (int64_t)tr_dtype_size(x->dtype), step, n);
        draw_mask(mask, j->attrs, j->attrs->first_sample + (uint64_t)(i / j->per_sample), i % j->per_sample, n);
        for (int64_t k = 0; k < n; k++) values[k] *= mask[k];
        tr__write_f64(y->dtype, (char *)tr__ptr(y) + i * (int64_t)tr_dtype_size(y->dtype), 1, values, n);
    }
}

tr_status tr__dropout_forward(tr_op_call *call)
{
    job j = {call->attrs, call->inputs[0], call->outputs[0], tr__dropout_per_sample(call->inputs[0]->shape)};
    tr__pool_for(tr__pool_of(j.y), tr__numel(j.y->shape), TR__GRAIN / 8, drop, &j);
    return TR_OK;
}

TR__BACKWARD(dropout, void, tr_apply(tr__op(dropout), a, &g, 1, NULL))
