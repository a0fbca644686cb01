/*
 * Dropout (Srivastava et al. 2014): which elements go is a pure function of (seed, step, sample, element), so that
 * nothing has to be saved: the gradient goes through the same mask, drawn again.
 */
#include "ops/dropout.h"
#include "ops/family.h"
#include "ops/rows.h"

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

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Blocks end where a sample does, and where x has a gap. */
static void drop(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const tr_tensor *x = j->x, *y = j->y;
    tr__axis all = tr__axis_in(x, ~0u);
    int64_t run = all.dim[all.ndim - 1], step = all.stride[all.ndim - 1];
    double values[BLOCK], mask[BLOCK];
    for (int64_t i = begin, n; i < end; i += n) {
        n = least(least(end - i, BLOCK), least(run - i % run, j->per_sample - i % j->per_sample));
        const char *from = (char *)tr__ptr(x) + tr__axis_at(&all, i) * (int64_t)tr_dtype_size(x->dtype);
        tr__read_f64(values, x->dtype, from, step, n);
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
