/*
 * TRIREME_CHECK=nan (or inf, for infinities, too): checks the outputs of every kernel, so that the first op that computes a
 * NaN is the one that fails.
 */
#include "ops/op.h"

#include "base/check.h"
#include "tensor/numbers.h"

#include <math.h>
#include <pthread.h>

/* Process-wide, and set once: what the environment asked for when the first op ran. */
static enum { NOTHING, NANS, INFINITIES } level;
static pthread_once_t asked = PTHREAD_ONCE_INIT;

static void ask(void)
{
    level = tr__check_asks("inf") ? INFINITIES : tr__check_asks("nan") ? NANS : NOTHING;
}

bool tr__checks_numbers(void)
{
    pthread_once(&asked, ask);
    return level != NOTHING;
}

/* The first NaN (or infinity), in row-major order: its place and value. false: there is none. */
static bool find(const tr_tensor *t, tr_shape *place, double *value)
{
    enum { BLOCK = 512 };
    TR_SCOPE;
    double x[BLOCK];
    const tr_tensor *flat = tr__row_major_on_cpu(t);
    if (tr__bad(flat)) return false;
    int64_t count = tr__numel(t->shape);
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t n = count - at < BLOCK ? count - at : BLOCK;
        tr__read_f64(x, t->dtype, (char *)tr__ptr(flat) + (size_t)at * tr_dtype_size(t->dtype), 1, n);
        for (int64_t i = 0; i < n; i++) {
            if (level == INFINITIES ? isfinite(x[i]) : !isnan(x[i])) continue;
            int64_t index = at + i;
            *place = t->shape;
            for (int d = t->shape.ndim; d-- > 0; index /= t->shape.dim[d]) place->dim[d] = index % t->shape.dim[d];
            *value = x[i];
            return true;
        }
    }
    return false;
}

static bool can_have(const tr_tensor *t)
{
    return t && tr_dtype_is_float(t->dtype);
}

tr_status tr__check_numbers(const tr_op_call *call)
{
    tr_shape place, other;
    double value, ignored;
    char name[TR__INPUT_NAME];
    for (int i = 0; i < call->n_outputs; i++) {
        const tr_tensor *y = call->outputs[i];
        if (!can_have(y) || !find(y, &place, &value)) continue;
        const char *what = isnan(value) ? "a NaN" : "an infinity", *op = call->op->name;
        for (int k = 0; k < call->n_inputs; k++)
            if (can_have(call->inputs[k]) && find(call->inputs[k], &other, &ignored))
                return tr__fail(TR_INVALID, "%s: its output %d, %s %s, has %s at %s; its %s had one already, at %s: it came "
                    "in with data or parameters", op, i, tr_dtype_name(y->dtype), TR__TEXT(y->shape), what, TR__TEXT(place),
                    tr__input_name(call->op, k, name), TR__TEXT(other));
        return tr__fail(TR_INVALID, "%s: its output %d, %s %s, has %s at %s; its inputs have none", op, i,
            tr_dtype_name(y->dtype), TR__TEXT(y->shape), what, TR__TEXT(place));
    }
    return TR_OK;
}
