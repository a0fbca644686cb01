/*
 * Cross-entropy of logits against class numbers: the mean over counted rows of (top - logits[target]) + log_sum, with
 * top = max(logits) and log_sum = log(sum(exp(logits - top))) kept for the gradient,
 * (exp(logits - top - log_sum) - onehot(target)) / count. Their sum is not kept: a large top would round log_sum away.
 *
 * With label smoothing s, a target is 1 - s on its class and s/classes on each (Szegedy et al. 2016): a row's loss is
 * (1 - s) (top - logits[target]) + s mean(top - logits) + log_sum.
 *
 * The loss of 16-bit logits is f32: it is a mean over many rows, whose digits people watch. With no counted target it
 * is 0/0, NaN, and the gradient is zero, as in PyTorch.
 */
#include "ops/cross_entropy.h"
#include "ops/family.h"

#include "tensor/loop.h"

#include <math.h>

tr_tensor *tr_cross_entropy_with(const tr_cross_entropy_options *o)
{
    if (o->weight || (o->targets && tr_dtype_is_float(o->targets->dtype))) return tr__composed_cross_entropy(o);
    tr_cross_entropy_attrs attrs = {
        .ignore_index = TR__IGNORED(o),
        .smoothing = o->label_smoothing,
        .reduction = o->reduction,
    };
    return tr_apply(tr__op(cross_entropy), &attrs, (tr_tensor *[]){o->logits, o->targets}, 2, NULL);
}

tr_status tr__cross_entropy_infer(tr_op_call *call)
{
    TR__TRY(tr__float_input(call, 0));
    TR__TRY(tr__ids_input(call, 1));
    const tr_tensor *logits = call->inputs[0], *targets = call->inputs[1];
    if (logits->shape.ndim == 0)
        return tr__fail(TR_SHAPE, "cross_entropy: logits are a scalar: they must be [..., classes]");
    tr_shape rows = logits->shape;
    rows.ndim--;
    if (!tr__shape_equal(targets->shape, rows)) {
        tr_shape others = rows; /* of logits [batch, classes, …], as PyTorch has them */
        for (int i = 1; i < rows.ndim; i++) others.dim[i] = logits->shape.dim[i + 1];
        bool classes_first = rows.ndim > 1 && tr__shape_equal(targets->shape, others);
        return tr__fail(TR_SHAPE, "cross_entropy: targets %s do not fit logits %s: they must be %s%s", TR__TEXT(targets->shape),
            TR__TEXT(logits->shape), TR__TEXT(rows), classes_first ? " (classes are the last dimension: tr_permute the logits)" : "");
    }
    const tr_cross_entropy_attrs *attrs = call->attrs;
    if (!(attrs->smoothing >= 0 && attrs->smoothing <= 1))
        return tr__fail(TR_INVALID, "cross_entropy: label_smoothing is %g: it must be in 0 … 1", attrs->smoothing);
    if ((unsigned)attrs->reduction > TR_REDUCE_NONE)
        return tr__fail(TR_INVALID, "cross_entropy: %d is no tr_reduction", (int)attrs->reduction);
    tr_dtype dtype = logits->dtype == TR_F64 ? TR_F64 : TR_F32;
    TR__TRY(tr_op_output(call, 0, attrs->reduction == TR_REDUCE_NONE ? rows : TR_SCALAR, dtype));
    TR__TRY(tr_op_output(call, 1, rows, dtype));
    TR__TRY(tr_op_output(call, 2, rows, dtype));
    TR__TRY(tr_op_output(call, 3, TR_SCALAR, dtype));
    return attrs->smoothing > 0 ? tr_op_output(call, 4, rows, dtype) : TR_OK;
}

tr_status tr__cross_entropy_check(const tr_op_call *call)
{
    const tr_cross_entropy_attrs *attrs = call->attrs;
    tr__ids targets = tr__ids_of(call->inputs[1]);
    return tr__ids_check(&targets, tr_size(call->inputs[0], -1), "cross_entropy: target", "classes",
                         &attrs->ignore_index);
}

static double number_of(const tr_tensor *t, int64_t r)
{
    return tr__load(t->dtype, tr__ptr(t), r);
}

/* One after the other, so that the sum does not depend on the number of threads. */
tr_status tr__cross_entropy_finish(const tr_op_call *call)
{
    const tr_cross_entropy_attrs *attrs = call->attrs;
    tr__rows logits = tr__rows_of(call->inputs[0], -1);
    tr__ids targets = tr__ids_of(call->inputs[1]);
    const tr_tensor *top = call->outputs[1], *log_sum = call->outputs[2], *below = call->outputs[4];
    tr_tensor *loss = call->outputs[0], *count = call->outputs[3];
    double sum = 0, counted = 0, logit;
    for (int64_t r = 0; r < targets.axis.n; r++) {
        int64_t target = tr__id(&targets, r);
        double of_row = 0;
        if (target != attrs->ignore_index) {
            tr__row_read(&logits, r, target, 1, &logit);
            of_row = (1 - attrs->smoothing) * (number_of(top, r) - logit) + number_of(log_sum, r);
            if (attrs->smoothing > 0) of_row += attrs->smoothing * number_of(below, r);
            counted++;
        }
        sum += of_row;
        if (attrs->reduction == TR_REDUCE_NONE) tr__store(loss->dtype, tr__ptr(loss), r, of_row);
    }
    if (attrs->reduction == TR_REDUCE_SUM) tr__store(loss->dtype, tr__ptr(loss), 0, sum);
    if (attrs->reduction == TR_REDUCE_MEAN) tr__store(loss->dtype, tr__ptr(loss), 0, sum / counted);
    tr__store(count->dtype, tr__ptr(count), 0, counted);
    return TR_OK;
}

double tr__cross_entropy_scale(const tr_op_call *call, int64_t r, int64_t target)
{
    const tr_cross_entropy_attrs *attrs = call->attrs;
    const tr_tensor *g = call->inputs[0], *count = call->inputs[5];
    if (target == attrs->ignore_index) return 0;
    if (attrs->reduction != TR_REDUCE_NONE) r = 0;
    tr__axis rows = tr__axis_in(g, ~0u);
    double scale = number_of(g, tr__axis_at(&rows, r));
    return attrs->reduction == TR_REDUCE_MEAN ? scale / number_of(count, 0) : scale;
}

typedef struct job {
    const tr_op_call *call;
    tr__rows logits, grads;
    tr__ids targets;
} job;

/* mean(top - x) */
static double mean_below(const tr__rows *x, int64_t r, double top)
{
    double block[TR__ROW_BLOCK], sum = 0;
    for (int64_t first = 0, n; first < x->n; first += n) {
        n = tr__row_block(x, first);
        tr__row_read(x, r, first, n, block);
        for (int64_t i = 0; i < n; i++) sum += top - block[i];
    }
    return sum / (double)x->n;
}

static void forward_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    tr_tensor *top = j->call->outputs[1], *log_sum = j->call->outputs[2], *below = j->call->outputs[4];
    for (int64_t r = begin; r < end; r++) {
        tr__log_sum_exp lse = tr__row_log_sum_exp(&j->logits, r);
        tr__store(top->dtype, tr__ptr(top), r, lse.top);
        tr__store(log_sum->dtype, tr__ptr(log_sum), r, lse.rest);
        if (below) tr__store(below->dtype, tr__ptr(below), r, mean_below(&j->logits, r, lse.top));
    }
}

tr_status tr__cross_entropy_forward(tr_op_call *call)
{
    const tr_tensor *logits = call->inputs[0];
    TR__TRY(tr__cross_entropy_check(call));
    job j = {.call = call, .logits = tr__rows_of(logits, -1)};
    tr__pool_for(tr__pool_of(logits), j.logits.others.n, tr__row_grain(j.logits.n), forward_rows, &j);
    return tr__cross_entropy_finish(call);
}

static void backward_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const tr_tensor *top = j->call->inputs[3], *log_sum = j->call->inputs[4];
    double smoothing = ((const tr_cross_entropy_attrs *)j->call->attrs)->smoothing;
    double block[TR__ROW_BLOCK], even = smoothing / (double)j->logits.n;
    for (int64_t r = begin; r < end; r++) {
        int64_t target = tr__id(&j->targets, r);
        double row_top = number_of(top, r), rest = number_of(log_sum, r);
        double scale = tr__cross_entropy_scale(j->call, r, target);
        for (int64_t first = 0, n; first < j->logits.n; first += n) {
            n = tr__row_block(&j->logits, first);
            tr__row_read(&j->logits, r, first, n, block);
            for (int64_t i = 0; i < n; i++) {
                double wanted = even + (first + i == target ? 1 - smoothing : 0);
                block[i] = scale == 0 ? 0 : (exp(block[i] - row_top - rest) - wanted) * scale;
            }
            tr__row_write(&j->grads, r, first, n, block);
        }
    }
}

/* top and log_sum are as cross_entropy made them: row-major. */
tr_status tr__cross_entropy_grad_forward(tr_op_call *call)
{
    const tr_tensor *logits = call->inputs[1];
    job j = {
        .call = call,
        .logits = tr__rows_of(logits, -1),
        .grads = tr__rows_of(call->outputs[0], -1),
        .targets = tr__ids_of(call->inputs[2]),
    };
    tr__pool_for(tr__pool_of(logits), j.logits.others.n, tr__row_grain(j.logits.n), backward_rows, &j);
    return TR_OK;
}

tr_status tr__cross_entropy_backward(tr_backward_call *call)
{
    tr_tensor *inputs[] = {call->grad_outputs[0], call->inputs[0], call->inputs[1], call->outputs[1], call->outputs[2],
        call->outputs[3]};
    tr_tensor *logits = call->inputs[0];
    if (!tr__is_spare(call, 0)) {
        call->grad_inputs[0] = tr_apply(tr__op(cross_entropy_grad), call->attrs, inputs, 6, NULL);
        return TR_OK;
    }
    call->grad_inputs[0] = logits; /* of a language model the largest tensor there is: once is enough */
    tr__touch(logits);
    return tr__op_run(tr__op(cross_entropy_grad), call->attrs, inputs, 6, &logits, 1);
}
