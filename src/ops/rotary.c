/*
 * Rotary position embedding (Su et al. 2021): at position p, pair i of d/2 is turned by p base^(-2i/d):
 *   (a, b) -> (a cos - b sin, b cos + a sin)
 * The gradient is turned back.
 */
#include "ops/family.h"
#include "ops/rows.h"

#include <math.h>
#include <stdlib.h>

tr_tensor *tr_rotary_with(const tr_rotary_options *o)
{
    tr_rotary_attrs attrs = {.base = TR__OR(o, base, 10000), .first = o->first, .interleaved = o->interleaved};
    tr_tensor *x = o->x;
    return tr_apply(tr__op(rotary), &attrs, &x, 1, NULL);
}

tr_status tr__rotary_infer(tr_op_call *call)
{
    const tr_rotary_attrs *attrs = call->attrs;
    TR__TRY(tr__float_input(call, 0));
    const tr_tensor *x = call->inputs[0];
    if (x->shape.ndim < 2 || tr_size(x, -1) % 2)
        return tr__fail(TR_SHAPE, "rotary: x is %s: it must be [..., seq, dim], dim even", TR__TEXT(x->shape));
    if (!(attrs->base > 0)) return tr__fail(TR_INVALID, "rotary: base is %g: it must be positive", attrs->base);
    return tr_op_output(call, 0, x->shape, x->dtype);
}

typedef struct job {
    const tr_rotary_attrs *attrs;
    tr__rows x, y;
    int64_t seq, pairs;
    double *turns; /* [seq, 2, pairs]: cosines, sines */
} job;

/* From every 64th position on by the angle's addition theorem, which costs a twentieth of a sine and a cosine. */
static void fill_turns(void *arg, int64_t begin, int64_t end)
{
    enum { ANEW = 64 };
    const job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        double step = pow(j->attrs->base, -(double)i / (double)j->pairs) * (j->attrs->back ? -1 : 1);
        double step_cos = cos(step), step_sin = sin(step), c = 1, s = 0;
        for (int64_t t = 0; t < j->seq; t++) {
            double angle = (double)(j->attrs->first + t) * step, before = c;
            bool anew = t % ANEW == 0;
            c = anew ? cos(angle) : c * step_cos - s * step_sin;
            s = anew ? sin(angle) : s * step_cos + before * step_sin;
            j->turns[2 * t * j->pairs + i] = c;
            j->turns[(2 * t + 1) * j->pairs + i] = s;
        }
    }
}

static void turn(const job *j, double *row, const double *cosines, const double *sines)
{
    int64_t apart = j->attrs->interleaved ? 1 : j->pairs, next = j->attrs->interleaved ? 2 : 1;
    for (int64_t i = 0; i < j->pairs; i++) {
        double a = row[i * next], b = row[i * next + apart];
        row[i * next] = a * cosines[i] - b * sines[i];
        row[i * next + apart] = b * cosines[i] + a * sines[i];
    }
}

/* row: room for one */
static void turn_rows(void *arg, int64_t begin, int64_t end, void *row)
{
    const job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        const double *cosines = j->turns + 2 * (r % j->seq) * j->pairs;
        for (int64_t at = 0; at < j->x.n; at += TR__ROW_BLOCK)
            tr__row_read(&j->x, r, at, tr__row_block(&j->x, at), (double *)row + at);
        turn(j, row, cosines, cosines + j->pairs);
        for (int64_t at = 0; at < j->x.n; at += TR__ROW_BLOCK)
            tr__row_write(&j->y, r, at, tr__row_block(&j->y, at), (double *)row + at);
    }
}

tr_status tr__rotary_forward(tr_op_call *call)
{
    const tr_tensor *x = call->inputs[0];
    int last = x->shape.ndim - 1;
    job j = {.attrs = call->attrs, .x = tr__rows_of(x, last), .y = tr__rows_of(call->outputs[0], last),
        .seq = x->shape.dim[last - 1], .pairs = x->shape.dim[last] / 2};
    if (tr__numel(x->shape) == 0) return TR_OK;
    j.turns = malloc(sizeof *j.turns * 2 * (size_t)(j.seq * j.pairs));
    if (!j.turns) return tr__fail(TR_NO_MEMORY, "rotary: no memory for the turns of %s", TR__TEXT(x->shape));
    tr__pool_for(tr__pool_of(x), j.pairs, tr__row_grain(4 * j.seq), fill_turns, &j);
    size_t row = sizeof(double) * (size_t)j.x.n;
    bool turned = tr__cpu_for(tr__device_of(x), j.x.others.n, tr__row_grain(j.x.n), row, turn_rows, &j);
    free(j.turns);
    return turned ? TR_OK : tr__fail(TR_NO_MEMORY, "rotary: no memory for a row of %s", TR__TEXT(x->shape));
}

TR__BACKWARD(rotary, tr_rotary_attrs,
    tr_apply(tr__op(rotary), &(tr_rotary_attrs){a->base, a->first, a->interleaved, !a->back}, &g, 1, NULL))
