/*
 * Batch normalisation (Ioffe & Szegedy 2015) of each channel over the N numbers that all images have of it:
 *   y = xhat weight + bias, xhat = (x - mean) rstd, rstd = 1/sqrt(var + eps), var = mean((x - mean)^2)
 *   dbias = sum of g, dweight = sum of g xhat, dx = weight rstd (g - dbias/N - xhat dweight/N)
 * With mean and variance given they are constants: dx = weight rstd g.
 *
 * batch_norm_relu: y = max(0, xhat weight + bias + residual); g is masked where y <= 0, and is the residual's gradient then.
 */
#include "ops/batch_norm.h"

#include "ops/family.h"
#include "ops/rows.h"
#include "ops/segment.h"

#include "tensor/kernel.h"
#include "tensor/loop.h"

#include <inttypes.h>
#include <math.h>

/* Inputs of batch_norm_relu and of its gradient, behind those that batch_norm and its gradient have, too. */
enum { RESIDUAL = 5, OUTPUT = 5 };

static tr_tensor *input_of(const tr_op_call *call, const tr_op *op, int i)
{
    return call->op == op && i < call->n_inputs ? call->inputs[i] : NULL;
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* [c], and a float; of x's dtype when it is learned, or f32 beside x of 16 bits. */
static tr_status check_vector(const tr_op_call *call, int i, const char *what)
{
    const tr_tensor *x = call->inputs[0], *t = i < call->n_inputs ? call->inputs[i] : NULL;
    if (!t) return TR_OK;
    bool any = i > 2 || (t->dtype == TR_F32 && x->dtype != TR_F64);
    TR__TRY(any ? tr__float_input(call, i) : tr__same(call, 0, i));
    if (t->shape.ndim == 1 && t->shape.dim[0] == x->shape.dim[1]) return TR_OK;
    return tr__fail(TR_SHAPE, "batch_norm: %s %s does not fit x %s: it must be [%" PRId64 "]", what, TR__TEXT(t->shape),
        TR__TEXT(x->shape), x->shape.dim[1]);
}

tr_status tr__batch_norm_infer(tr_op_call *call)
{
    const tr_batch_norm_attrs *a = call->attrs;
    TR__TRY(tr__float_input(call, 0));
    const tr_tensor *x = call->inputs[0];
    if (x->shape.ndim < 2)
        return tr__fail(TR_SHAPE, "batch_norm: x is %s: it must be [batch, channels, …]", TR__TEXT(x->shape));
    static const char *const names[] = {"x", "weight", "bias", "running_mean", "running_var"};
    for (int i = 1; i < 5; i++) TR__TRY(check_vector(call, i, names[i]));
    const tr_tensor *residual = input_of(call, tr__op(batch_norm_relu), RESIDUAL);
    if (residual) TR__TRY(tr__same(call, 0, RESIDUAL));
    int64_t channels = x->shape.dim[1];
    if (!a->frozen && channels && tr__numel(x->shape) / channels == 1)
        return tr__fail(TR_SHAPE, "batch_norm: x %s has %" PRId64 " numbers for each channel: a variance needs two",
            TR__TEXT(x->shape), tr__numel(x->shape) / channels);
    tr_dtype dtype = x->dtype == TR_F64 ? TR_F64 : TR_F32;
    TR__TRY(tr__output_like(call, 0, x, x->shape, x->dtype));
    TR__TRY(tr_op_output(call, 1, TR_SHAPE(channels), dtype));
    return tr_op_output(call, 2, TR_SHAPE(channels), dtype);
}

/* ---- Reference kernels: blocks of channels, whose numbers are rows ---------------------------------------------------- */

typedef struct job {
    void (*block)(const struct job *j, int64_t first, int64_t n); /* of channels */
    const tr_op_call *call;
    const tr_batch_norm_attrs *attrs;
    bool relu;
    tr__rows x, y, g, dx, residual, dresidual;
    const tr_tensor *weight, *bias, *mean, *var;
} job;

/* The batch's own: first the mean, then the variance around it; zeros of an empty one. */
static void find_moments(const job *j, int64_t first, int64_t n, double *mean, double *var)
{
    double x[TR__ROW_BLOCK], count = fmax((double)j->x.others.n, 1);
    for (int64_t i = 0; i < n; i++) mean[i] = var[i] = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t r = 0; r < j->x.others.n; r++) {
            tr__row_read(&j->x, r, first, n, x);
            for (int64_t i = 0; i < n; i++) {
                if (pass == 0) mean[i] += x[i];
                else var[i] += (x[i] - mean[i]) * (x[i] - mean[i]);
            }
        }
        double *sum = pass == 0 ? mean : var;
        for (int64_t i = 0; i < n; i++) sum[i] /= count;
    }
}

static void forward_block(const job *j, int64_t first, int64_t n)
{
    double mean[TR__ROW_BLOCK], var[TR__ROW_BLOCK], weight[TR__ROW_BLOCK], bias[TR__ROW_BLOCK], x[TR__ROW_BLOCK];
    double residual[TR__ROW_BLOCK] = {0};
    if (j->attrs->frozen) {
        tr__vector_read(j->mean, first, n, 0, mean);
        tr__vector_read(j->var, first, n, 1, var);
    } else {
        find_moments(j, first, n, mean, var);
    }
    tr__vector_put(j->call->outputs[1], first, n, mean, false);
    tr__vector_put(j->call->outputs[2], first, n, var, false);
    tr__vector_read(j->weight, first, n, 1, weight);
    tr__vector_read(j->bias, first, n, 0, bias);
    for (int64_t r = 0; r < j->x.others.n; r++) {
        tr__row_read(&j->x, r, first, n, x);
        if (j->residual.data) tr__row_read(&j->residual, r, first, n, residual);
        for (int64_t i = 0; i < n; i++) {
            x[i] = (x[i] - mean[i]) / sqrt(var[i] + j->attrs->eps) * weight[i] + bias[i];
            if (j->relu) x[i] = x[i] + residual[i] <= 0 ? 0 : x[i] + residual[i]; /* NaN stays NaN */
        }
        tr__row_write(&j->y, r, first, n, x);
    }
}

static void run_blocks(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t first = begin * TR__ROW_BLOCK; first < end * TR__ROW_BLOCK; first += TR__ROW_BLOCK)
        j->block(j, first, tr__row_block(&j->x, first));
}

static tr_status run_job(job *j)
{
    tr__pool_for(tr__pool_of(j->call->inputs[0]), (j->x.n + TR__ROW_BLOCK - 1) / TR__ROW_BLOCK, 1, run_blocks, j);
    return TR_OK;
}

tr_status tr__batch_norm_forward(tr_op_call *call)
{
    const tr_batch_norm_attrs *attrs = call->attrs;
    job j = {
        .block = forward_block,
        .call = call,
        .attrs = attrs,
        .x = tr__rows_of(call->inputs[0], 1),
        .y = tr__rows_of(call->outputs[0], 1),
        .residual = tr__rows_of(input_of(call, tr__op(batch_norm_relu), RESIDUAL), 1),
        .weight = call->inputs[1],
        .bias = call->inputs[2],
        .mean = attrs->frozen ? call->inputs[3] : NULL,
        .var = attrs->frozen ? call->inputs[4] : NULL,
        .relu = call->op == tr__op(batch_norm_relu),
    };
    return run_job(&j);
}

/* Row r of the gradient, masked where ReLU's output is 0. */
static void read_gradient(const job *j, int64_t r, int64_t first, int64_t n, double *g)
{
    double y[TR__ROW_BLOCK];
    tr__row_read(&j->g, r, first, n, g);
    if (!j->relu) return;
    tr__row_read(&j->y, r, first, n, y);
    for (int64_t i = 0; i < n; i++)
        if (y[i] <= 0) g[i] = 0;
}

static void grad_block(const job *j, int64_t first, int64_t n)
{
    double mean[TR__ROW_BLOCK], rstd[TR__ROW_BLOCK], weight[TR__ROW_BLOCK], g[TR__ROW_BLOCK], x[TR__ROW_BLOCK];
    double dbias[TR__ROW_BLOCK] = {0}, dweight[TR__ROW_BLOCK] = {0}, count = (double)j->x.others.n;
    tr__vector_read(j->mean, first, n, 0, mean);
    tr__vector_read(j->var, first, n, 0, rstd);
    tr__vector_read(j->weight, first, n, 1, weight);
    for (int64_t i = 0; i < n; i++) rstd[i] = 1 / sqrt(rstd[i] + j->attrs->eps);
    for (int64_t r = 0; r < j->x.others.n; r++) {
        read_gradient(j, r, first, n, g);
        if (j->dresidual.data) tr__row_write(&j->dresidual, r, first, n, g);
        tr__row_read(&j->x, r, first, n, x);
        for (int64_t i = 0; i < n; i++) {
            dbias[i] += g[i];
            dweight[i] += g[i] * (x[i] - mean[i]) * rstd[i];
        }
    }
    for (int64_t r = 0; j->call->outputs[0] && r < j->x.others.n; r++) {
        read_gradient(j, r, first, n, g);
        tr__row_read(&j->x, r, first, n, x);
        for (int64_t i = 0; i < n; i++) {
            double xhat = (x[i] - mean[i]) * rstd[i], through = (dbias[i] + xhat * dweight[i]) / count;
            g[i] = weight[i] * rstd[i] * (g[i] - (j->attrs->frozen ? 0 : through));
        }
        tr__row_write(&j->dx, r, first, n, g);
    }
    tr__vector_put(j->call->outputs[1], first, n, dweight, j->attrs->accumulate_weight);
    tr__vector_put(j->call->outputs[2], first, n, dbias, j->attrs->accumulate_bias);
}

tr_status tr__batch_norm_grad_forward(tr_op_call *call)
{
    bool relu = call->op == tr__op(batch_norm_relu_grad);
    job j = {
        .block = grad_block,
        .call = call,
        .attrs = call->attrs,
        .g = tr__rows_of(call->inputs[0], 1),
        .x = tr__rows_of(call->inputs[1], 1),
        .weight = call->inputs[2],
        .mean = call->inputs[3],
        .var = call->inputs[4],
        .relu = relu,
        .dx = tr__rows_of(call->outputs[0], 1),
        .y = tr__rows_of(relu ? call->inputs[OUTPUT] : NULL, 1),
        .dresidual = tr__rows_of(relu ? call->outputs[3] : NULL, 1),
    };
    return run_job(&j);
}

/* ---- Gradients ----------------------------------------------------------------------------------------------------- */

/* By the op of the next row: batch_norm_relu_grad also reads the output and gives the residual's gradient. */
tr_status tr__batch_norm_backward(tr_backward_call *call)
{
    bool has_relu = call->op == tr__op(batch_norm_relu);
    tr_batch_norm_attrs attrs = *(const tr_batch_norm_attrs *)call->attrs;
    tr_tensor *x = call->inputs[0], *grads[4] = {NULL};
    if (!call->grad_outputs[0]) return TR_OK;
    if (call->needs[0]) grads[0] = tr__tensor_new_like(x);
    if (call->needs[1]) grads[1] = tr__grad_target(call, 1, &attrs.accumulate_weight);
    if (call->needs[2]) grads[2] = tr__grad_target(call, 2, &attrs.accumulate_bias);
    if (has_relu && call->needs[RESIDUAL]) call->grad_inputs[RESIDUAL] = grads[3] = tr__tensor_new_like(x);
    tr_tensor *inputs[] = {call->grad_outputs[0], x, call->inputs[1], call->outputs[1], call->outputs[2],
        has_relu ? call->outputs[0] : NULL};
    TR__TRY(tr__op_run(call->op + 1, &attrs, inputs, has_relu ? 6 : 5, grads, has_relu ? 4 : 3));
    for (int i = 0; i < 3; i++) call->grad_inputs[i] = grads[i];
    return TR_OK;
}

tr_status tr__batch_norm_relu_backward(tr_backward_call *call)
{
    return tr__batch_norm_backward(call);
}

/* ---- With running statistics ----------------------------------------------------------------------------------------- */

/* running += momentum (scale batch - running), outside the graph that batch may be of. */
static tr_status move_towards(tr_tensor *running, tr_tensor *batch, double scale, double momentum)
{
    TR_SCOPE;
    tr_tensor *values = tr__tensor_view(batch, batch->shape, batch->stride, batch->offset);
    tr_tensor *stays = tr_affine(tr_cast(running, batch->dtype), 1 - momentum, 0);
    return tr_copy_into(running, tr_add(stays, tr_affine(values, momentum * scale, 0)));
}

tr_status tr__batch_norm_count(tr_tensor *batches)
{
    TR_SCOPE;
    return tr_copy_into(batches, tr_add(batches, tr_ones(TR_SCALAR, .dtype = TR_I64, .device = tr_device_of(batches))));
}

/* May one kernel write all of them, of which the last may be NULL? */
static bool may_move_at_once(tr_tensor *const moved[3], const tr_tensor *batch)
{
    tr_device device = tr__device_of(batch);
    if (device.kind == TR_CPU) return false;
    for (int i = 0; i < 3; i++)
        if (moved[i] && !(tr_device_equal(tr__device_of(moved[i]), device) && tr_is_contiguous(moved[i]))) return false;
    return true;
}

tr_status tr__batch_norm_move(const tr_batch_norm_op_options *o, tr_tensor *mean, tr_tensor *var, double numbers,
    tr_tensor *batches)
{
    if (tr__segment_replays()) return TR_OK;
    tr_tensor *moved[] = {o->running_mean, o->running_var, batches};
    double momentum = TR__OR(o, momentum, 0.1), unbiased = numbers / (numbers - 1);
    bool moves = o->running_mean && numbers != 0;
    if (moves && may_move_at_once(moved, mean)) {
        const tr_batch_norm_move_attrs attrs = {.momentum = momentum, .unbiased = unbiased};
        tr_status status = tr__try_kernel("batch_norm_move", tr__device_of(mean), &attrs, sizeof attrs,
            (const tr_tensor *const[]){mean, var}, 2, (const tr_tensor *const *)moved, 3);
        for (int i = 0; i < 3 && status == TR_OK; i++)
            if (moved[i]) tr__touch(moved[i]);
        if (status != TR_DECLINED) return status;
    }
    if (moves) {
        TR__TRY(move_towards(o->running_mean, mean, 1, momentum));
        TR__TRY(move_towards(o->running_var, var, unbiased, momentum));
    }
    return batches ? tr__batch_norm_count(batches) : TR_OK;
}

static tr_status check_running(const tr_tensor *running, const char *what, const tr_tensor *x)
{
    TR__TRY(tr_status_of(running));
    if (tr_dtype_is_float(running->dtype) && running->shape.ndim == 1 && running->shape.dim[0] == tr_size(x, 1)) return TR_OK;
    return tr__fail(TR_SHAPE, "batch_norm: %s is %s %s: for x %s it must be floats, [%" PRId64 "]", what,
        tr_dtype_name(running->dtype), TR__TEXT(running->shape), TR__TEXT(x->shape), tr_size(x, 1));
}

tr_status tr__batch_norm_check(const tr_batch_norm_op_options *o)
{
    if (!(o->eps >= 0)) return tr__fail(TR_INVALID, "batch_norm: eps must not be negative, it is %g", o->eps);
    if (!(o->momentum >= 0 && o->momentum <= 1))
        return tr__fail(TR_INVALID, "batch_norm: momentum must be in 0 … 1, it is %g", o->momentum);
    if (!o->running_mean != !o->running_var)
        return tr__fail(TR_INVALID, "batch_norm: running_mean and running_var come together");
    const tr_tensor *residual = o->residual;
    if (residual) TR__TRY(tr_status_of(residual));
    if (residual && o->x && !tr__bad(o->x) && !tr__shape_equal(residual->shape, o->x->shape))
        return tr__fail(TR_SHAPE, "batch_norm: residual is %s, it must be %s, as x", TR__TEXT(residual->shape),
            TR__TEXT(o->x->shape));
    if (!o->running_mean && !o->training)
        return tr__fail(TR_INVALID, "batch_norm: without .training it needs running_mean and running_var");
    if (!o->running_mean || !o->x || tr__bad(o->x)) return TR_OK;
    TR__TRY(check_running(o->running_mean, "running_mean", o->x));
    return check_running(o->running_var, "running_var", o->x);
}

double tr__batch_norm_eps(const tr_batch_norm_op_options *o)
{
    return TR__OR(o, eps, 1e-5);
}

tr_tensor *tr__batch_norm_activate(const tr_batch_norm_op_options *o, tr_tensor *y)
{
    if (o->residual) y = tr_add(y, o->residual);
    return o->relu ? tr_relu(y) : y;
}

/* Is there one kernel for all that the options ask for? */
static bool has_fused_kernel(const tr_batch_norm_op_options *o)
{
    const tr_tensor *x = o->x, *residual = o->residual;
    if (!o->relu || !x || tr__bad(x) || (residual && residual->dtype != x->dtype)) return false;
    tr_device device = tr__device_of(x);
    return device.kind == TR_CPU || (tr__has_kernel(device, "batch_norm_relu") && tr__has_kernel(device, "batch_norm_relu_grad"));
}

tr_tensor *tr__batch_norm(const tr_batch_norm_op_options *o, tr_tensor *batches)
{
    tr_batch_norm_attrs attrs = {.eps = tr__batch_norm_eps(o), .frozen = !o->training};
    if (tr__batch_norm_check(o) != TR_OK) return tr__tensor_failed();
    bool fused = has_fused_kernel(o);
    tr_tensor *mean = o->training ? NULL : o->running_mean, *var = o->training ? NULL : o->running_var;
    tr_tensor *inputs[] = {o->x, o->weight, o->bias, mean, var, o->residual}, *outputs[TR_OP_MAX_OUTPUTS];
    tr_tensor *y = fused ? tr_apply(tr__op(batch_norm_relu), &attrs, inputs, 6, outputs)
        : tr_apply(tr__op(batch_norm), &attrs, inputs, 5, outputs);
    if (o->training && !tr__bad(y)) {
        int64_t channels = y->shape.dim[1], numbers = channels ? tr__numel(y->shape) / channels : 2;
        if (tr__batch_norm_move(o, outputs[1], outputs[2], (double)numbers, batches) != TR_OK) return tr__tensor_failed();
    }
    return fused ? y : tr__batch_norm_activate(o, y);
}

tr_tensor *tr_batch_norm_op_with(const tr_batch_norm_op_options *o)
{
    return tr__batch_norm(o, NULL);
}
