/*
 * Layer normalisation (Ba, Kiros, Hinton 2016) over the last dimension, of d elements:
 *   y = xhat weight + bias, xhat = (x - mean) rstd, rstd = 1/sqrt(var + eps), var = mean((x - mean)^2)
 *   dx = rstd (h - mean(h) - xhat mean(h xhat)), h = g weight;  dweight = sum over rows of g xhat;  dbias = that of g
 *
 * RMS norm (Zhang & Sennrich 2019) is the same about 0 rather than about the mean: mean and mean(h) are left out, and there is
 * no bias. In the jobs below it has no tensor of means.
 */
#include "ops/family.h"
#include "ops/rows.h"

#include "tensor/loop.h"

#include <math.h>

tr_tensor *tr_layer_norm_op(tr_tensor *x, tr_tensor *weight, tr_tensor *bias, double eps)
{
    tr_layer_norm_attrs attrs = {.eps = eps};
    return tr_apply(tr__op(layer_norm), &attrs, (tr_tensor *[]){x, weight, bias}, 3, NULL);
}

tr_tensor *tr_rms_norm_op(tr_tensor *x, tr_tensor *weight, double eps)
{
    tr_layer_norm_attrs attrs = {.eps = eps};
    return tr_apply(tr__op(rms_norm), &attrs, (tr_tensor *[]){x, weight}, 2, NULL);
}

/* A mean and a bias, which RMS norm and its gradient have not. */
static bool has_mean(const tr_op_call *call)
{
    return call->op == tr__op(layer_norm) || call->op == tr__op(layer_norm_grad);
}

static tr_status check_affine(const tr_op_call *call, int i, const char *what)
{
    const tr_tensor *x = call->inputs[0], *t = call->inputs[i];
    if (!t) return TR_OK;
    TR__TRY(tr__same(call, 0, i));
    if (t->shape.ndim == 1 && t->shape.dim[0] == tr_size(x, -1)) return TR_OK;
    return tr__fail(TR_SHAPE, "%s: %s %s does not fit x %s: it must be [%lld]", call->op->name, what, TR__TEXT(t->shape),
        TR__TEXT(x->shape), (long long)tr_size(x, -1));
}

/* y, and the statistics of each row. */
tr_status tr__layer_norm_infer(tr_op_call *call)
{
    TR__TRY(tr__float_input(call, 0));
    const tr_tensor *x = call->inputs[0];
    if (x->shape.ndim == 0)
        return tr__fail(TR_SHAPE, "%s: x is a scalar: it needs a dimension to normalise over", call->op->name);
    TR__TRY(check_affine(call, 1, "weight"));
    if (call->n_inputs > 2) TR__TRY(check_affine(call, 2, "bias"));
    tr_shape rows = x->shape;
    rows.ndim--;
    TR__TRY(tr_op_output(call, 0, x->shape, x->dtype));
    for (int i = 1, n = has_mean(call) ? 2 : 1; i <= n; i++)
        TR__TRY(tr_op_output(call, i, rows, x->dtype == TR_F64 ? TR_F64 : TR_F32));
    return TR_OK;
}

/* ---- Reference kernels ----------------------------------------------------------------------------------------- */

typedef struct job {
    const tr_op_call *call;
    tr__rows x, y, g, dx;
    const tr_tensor *weight, *bias, *mean, *rstd; /* mean: NULL, it is 0 */
    double eps;
} job;

static void row_moments(const tr__rows *x, int64_t r, bool about_mean, double *mean, double *var)
{
    double block[TR__ROW_BLOCK], sum = 0, squares = 0;
    for (int pass = about_mean ? 0 : 1; pass < 2; pass++) {
        for (int64_t first = 0, n; first < x->n; first += n) {
            n = tr__row_block(x, first);
            tr__row_read(x, r, first, n, block);
            for (int64_t i = 0; i < n; i++) {
                if (pass == 0)
                    sum += block[i];
                else
                    squares += (block[i] - *mean) * (block[i] - *mean);
            }
        }
        *mean = sum / (double)x->n;
    }
    *var = squares / (double)x->n;
}

static void forward_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    double block[TR__ROW_BLOCK], weight[TR__ROW_BLOCK], bias[TR__ROW_BLOCK];
    for (int64_t r = begin; r < end; r++) {
        double mean = 0, var = 0;
        row_moments(&j->x, r, j->mean != NULL, &mean, &var);
        double rstd = 1 / sqrt(var + j->eps);
        for (int64_t first = 0, n; first < j->x.n; first += n) {
            n = tr__row_block(&j->x, first);
            tr__row_read(&j->x, r, first, n, block);
            tr__vector_read(j->weight, first, n, 1, weight);
            tr__vector_read(j->bias, first, n, 0, bias);
            for (int64_t i = 0; i < n; i++) block[i] = (block[i] - mean) * rstd * weight[i] + bias[i];
            tr__row_write(&j->y, r, first, n, block);
        }
        if (j->mean) tr__store(j->mean->dtype, tr__ptr(j->mean), r, mean);
        tr__store(j->rstd->dtype, tr__ptr(j->rstd), r, rstd);
    }
}

tr_status tr__layer_norm_forward(tr_op_call *call)
{
    bool mean = has_mean(call);
    job j = {
        .x = tr__rows_of(call->inputs[0], -1),
        .y = tr__rows_of(call->outputs[0], -1),
        .weight = call->inputs[1],
        .bias = mean ? call->inputs[2] : NULL,
        .mean = mean ? call->outputs[1] : NULL,
        .rstd = call->outputs[mean ? 2 : 1],
        .eps = ((const tr_layer_norm_attrs *)call->attrs)->eps,
    };
    tr__pool_for(tr__pool_of(call->inputs[0]), j.x.others.n, tr__row_grain(j.x.n), forward_rows, &j);
    return TR_OK;
}

/* Reads a block of g and of xhat. */
static int64_t read_block(const job *j, int64_t r, int64_t first, double *g, double *xhat)
{
    int64_t n = tr__row_block(&j->x, first);
    double mean = j->mean ? tr__load(j->mean->dtype, tr__ptr(j->mean), r) : 0;
    double rstd = tr__load(j->rstd->dtype, tr__ptr(j->rstd), r);
    tr__row_read(&j->g, r, first, n, g);
    tr__row_read(&j->x, r, first, n, xhat);
    for (int64_t i = 0; i < n; i++) xhat[i] = (xhat[i] - mean) * rstd;
    return n;
}

static void backward_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    double h[TR__ROW_BLOCK], xhat[TR__ROW_BLOCK], weight[TR__ROW_BLOCK];
    for (int64_t r = begin; r < end; r++) {
        double sum_h = 0, sum_hx = 0, d = (double)j->x.n, rstd = tr__load(j->rstd->dtype, tr__ptr(j->rstd), r);
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t first = 0, n; first < j->x.n; first += n) {
                n = read_block(j, r, first, h, xhat);
                tr__vector_read(j->weight, first, n, 1, weight);
                for (int64_t i = 0; i < n; i++) {
                    h[i] *= weight[i];
                    if (pass == 0) {
                        sum_h += j->mean ? h[i] : 0;
                        sum_hx += h[i] * xhat[i];
                    } else {
                        h[i] = rstd * (h[i] - sum_h / d - xhat[i] * sum_hx / d);
                    }
                }
                if (pass == 1) tr__row_write(&j->dx, r, first, n, h);
            }
        }
    }
}

/* dweight and dbias of blocks of columns, each summed over the rows in order. */
static void backward_columns(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const tr_layer_norm_attrs *attrs = j->call->attrs;
    double g[TR__ROW_BLOCK], xhat[TR__ROW_BLOCK];
    for (int64_t first = begin * TR__ROW_BLOCK; first < end * TR__ROW_BLOCK && first < j->x.n; first += TR__ROW_BLOCK) {
        double dweight[TR__ROW_BLOCK] = {0}, dbias[TR__ROW_BLOCK] = {0};
        int64_t n = tr__row_block(&j->x, first);
        for (int64_t r = 0; r < j->x.others.n; r++) {
            read_block(j, r, first, g, xhat);
            for (int64_t i = 0; i < n; i++) {
                dweight[i] += g[i] * xhat[i];
                dbias[i] += g[i];
            }
        }
        tr__vector_put(j->call->outputs[1], first, n, dweight, attrs->accumulate_weight);
        tr__vector_put(j->call->outputs[2], first, n, dbias, attrs->accumulate_bias);
    }
}

/* mean and rstd are as the norm made them: row-major. */
tr_status tr__layer_norm_grad_forward(tr_op_call *call)
{
    bool mean = has_mean(call);
    job j = {
        .call = call,
        .g = tr__rows_of(call->inputs[0], -1),
        .x = tr__rows_of(call->inputs[1], -1),
        .dx = tr__rows_of(call->outputs[0], -1),
        .weight = call->inputs[2],
        .mean = mean ? call->inputs[3] : NULL,
        .rstd = call->inputs[mean ? 4 : 3],
    };
    tr__pool *pool = tr__pool_of(call->inputs[0]);
    if (call->outputs[0]) tr__pool_for(pool, j.x.others.n, tr__row_grain(j.x.n), backward_rows, &j);
    if (call->outputs[1] || call->outputs[2])
        tr__pool_for(pool, (j.x.n + TR__ROW_BLOCK - 1) / TR__ROW_BLOCK, 1, backward_columns, &j);
    return TR_OK;
}

/* ---- Gradients ------------------------------------------------------------------------------------------------- */

/* By the op of the next row, of g, x, weight and the statistics. */
tr_status tr__layer_norm_backward(tr_backward_call *call)
{
    int statistics = call->op == tr__op(layer_norm) ? 2 : 1;
    tr_layer_norm_attrs attrs = *(const tr_layer_norm_attrs *)call->attrs;
    tr_tensor *x = call->inputs[0], *grads[3] = {NULL};
    if (call->needs[0]) grads[0] = tr__tensor_new(x->shape, x->dtype, tr__device_of(x));
    if (call->needs[1]) grads[1] = tr__grad_target(call, 1, &attrs.accumulate_weight);
    if (call->n_inputs > 2 && call->needs[2]) grads[2] = tr__grad_target(call, 2, &attrs.accumulate_bias);
    tr_tensor *inputs[] = {call->grad_outputs[0], x, call->inputs[1], call->outputs[1], statistics > 1 ? call->outputs[2] : NULL};
    TR__TRY(tr__op_run(call->op + 1, &attrs, inputs, 3 + statistics, grads, call->n_inputs));
    for (int i = 0; i < call->n_inputs; i++) call->grad_inputs[i] = grads[i];
    return TR_OK;
}

tr_status tr__rms_norm_backward(tr_backward_call *call)
{
    return tr__layer_norm_backward(call);
}

/* ---- Group norm: layer norm of each group's channels and pixels, then the affine of each channel ------------------- */

static tr_status check_groups(const tr_tensor *x, int64_t groups)
{
    if (x->shape.ndim < 2)
        return tr__fail(TR_SHAPE, "group_norm: x is %s: it must be [batch, channels, …]", TR__TEXT(x->shape));
    if (groups < 1 || x->shape.dim[1] % groups)
        return tr__fail(TR_SHAPE, "group_norm: the %lld channels of x %s do not divide into %lld groups",
            (long long)x->shape.dim[1], TR__TEXT(x->shape), (long long)groups);
    return TR_OK;
}

/* A vector of the channels as [channels, 1, …], which broadcasts to x. */
static tr_tensor *of_channels(tr_tensor *t, const tr_tensor *x, const char *what)
{
    if (tr__bad(t)) return tr__tensor_pass(t);
    if (t->shape.ndim != 1 || t->shape.dim[0] != x->shape.dim[1])
        return tr__tensor_fail(TR_SHAPE, "group_norm: %s %s does not fit x %s: it must be [%lld]", what,
            TR__TEXT(t->shape), TR__TEXT(x->shape), (long long)x->shape.dim[1]);
    if (tr__dtype_of_x("group_norm", what, t, x) != TR_OK) return tr__tensor_failed();
    tr_shape shape = {.ndim = x->shape.ndim - 1};
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = d == 0 ? t->shape.dim[0] : 1;
    return tr_reshape(tr__widened(t), shape);
}

tr_tensor *tr_group_norm_op(tr_tensor *x, int64_t groups, tr_tensor *weight, tr_tensor *bias, double eps)
{
    TR__REQUIRE("group_norm", "x", x);
    if (check_groups(x, groups) != TR_OK) return tr__tensor_failed();
    int64_t batch = x->shape.dim[0], channels = x->shape.dim[1], pixels = 1;
    for (int d = 2; d < x->shape.ndim; d++) pixels *= x->shape.dim[d];
    tr_tensor *wide = weight || bias ? tr__widened(x) : x; /* else layer norm rounds last */
    tr_tensor *rows = tr_reshape(wide, TR_SHAPE(batch, groups, channels / groups * pixels));
    tr_tensor *y = tr_reshape(tr_layer_norm_op(rows, NULL, NULL, eps), x->shape);
    if (weight) y = tr_mul(y, of_channels(weight, x, "weight"));
    if (bias) y = tr_add(y, of_channels(bias, x, "bias"));
    return tr__narrowed(y, x);
}
