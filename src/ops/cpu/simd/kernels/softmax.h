/* softmax, log_softmax and cross_entropy, row by row. */
#ifndef TR_OPS_CPU_SIMD_KERNELS_SOFTMAX_H
#define TR_OPS_CPU_SIMD_KERNELS_SOFTMAX_H

#include "ops/cpu/simd/kernels/rows.h"
#include "ops/cross_entropy.h"

#include <math.h>

/* exp of what is not positive, but for rounding. */
static inline vec exp_below_0(vec x)
{
    return vec_exp_within(vec_max(vec_all(-104), x));
}

/* Sums of a row are taken in blocks, and those of blocks in double: it may have too many terms for one float per lane. */
enum { SUMMED = 1024 };

/* The sum of exp(x - top), top being the largest of the row; the terms go to out unless it is NULL. NaN when a number
 * is NaN or infinite, or all are -infinity. */
static inline float row_exp_sum(const float *x, int64_t n, float top, float *out)
{
    double total = 0;
    for (int64_t at = 0; at < n; at += SUMMED) {
        int64_t count = n - at < SUMMED ? n - at : SUMMED;
        vec sum = {0};
        FOR_VECTORS(count,
            vec e = exp_below_0(load_lanes(x + at + i, m) - top);
            sum += keep_lanes(e, m, 0);
            if (out) store_lanes(out + at + i, e, m););
        total += (double)vec_sum(sum);
    }
    return (float)total;
}

typedef struct softmax_job {
    tr__rows x, g, out; /* of gradients: x is y */
    bool log;
} softmax_job;

/* With sum = sum(exp(x - top)): softmax is exp(x - top) / sum, log_softmax x - top - log(sum). */
static void softmax_rows(void *arg, int64_t begin, int64_t end)
{
    const softmax_job *j = arg;
    float x_buffer[ROW_MAX], y_buffer[ROW_MAX];
    int64_t n = j->out.n;
    for (int64_t r = begin; r < end; r++) {
        const float *x = row_in(&j->x, r, x_buffer);
        float *y = row_out(&j->out, r, y_buffer), top = row_top(x, n), sum = row_exp_sum(x, n, top, j->log ? NULL : y);
        float log_sum = logf(sum), scale = 1 / sum;
        if (j->log) FOR_VECTORS(n, store_lanes(y + i, load_lanes(x + i, m) - top - log_sum, m););
        else FOR_VECTORS(n, store_lanes(y + i, load_lanes(y + i, m) * scale, m););
        row_done(&j->out, r, y_buffer);
    }
}

static inline float row_dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t at = 0; at < n; at += SUMMED) {
        int64_t count = n - at < SUMMED ? n - at : SUMMED;
        vec dot = {0};
        FOR_VECTORS(count, dot += load_lanes(a + at + i, m) * load_lanes(b + at + i, m););
        sum += (double)vec_sum(dot);
    }
    return (float)sum;
}

/* dx = y (g - sum(g y)) of softmax, g - exp(y) sum(g) of log_softmax. */
static void softmax_grad_rows(void *arg, int64_t begin, int64_t end)
{
    const softmax_job *j = arg;
    float g_buffer[ROW_MAX], y_buffer[ROW_MAX];
    int64_t n = j->out.n;
    for (int64_t r = begin; r < end; r++) {
        const float *g = row_in(&j->g, r, g_buffer), *y = row_in(&j->x, r, y_buffer);
        float sum = j->log ? row_sum(g, n) : row_dot(g, y, n), *dx = row_out(&j->out, r, g_buffer);
        if (j->log) FOR_VECTORS(n, store_lanes(dx + i, load_lanes(g + i, m) - exp_below_0(load_lanes(y + i, m)) * sum, m););
        else FOR_VECTORS(n, store_lanes(dx + i, load_lanes(y + i, m) * (load_lanes(g + i, m) - sum), m););
        row_done(&j->out, r, g_buffer);
    }
}

static tr_status run_softmax(tr_op_call *call, const tr_tensor *x, const tr_tensor *g, const tr_op *log, tr__pool_body body)
{
    tr_tensor *out = call->outputs[0];
    if (tr__numel(out->shape) == 0) return TR_OK;
    int dim = ((const tr_dim_attrs *)call->attrs)->dim;
    softmax_job j = {tr__rows_of(x, dim), tr__rows_of(g, dim), tr__rows_of(out, dim), call->op == log};
    if (!can_do(&j.x) || !can_do(&j.g) || !can_do(&j.out)) return TR_DECLINED;
    tr__pool_for(tr__pool_of(out), j.out.others.n, tr__row_grain(j.out.n), body, &j);
    return TR_OK;
}

static tr_status softmax_kernel(tr_op_call *call)
{
    return run_softmax(call, call->inputs[0], call->inputs[0], tr__op(log_softmax), softmax_rows);
}

static tr_status softmax_grad_kernel(tr_op_call *call)
{
    return run_softmax(call, call->inputs[1], call->inputs[0], tr__op(log_softmax_grad), softmax_grad_rows);
}

/* ---- cross_entropy: logits, targets -> loss, top, log_sum, count ------------------------------------------------ */

typedef struct loss_job {
    const tr_op_call *call;
    tr__rows logits, grads;
    tr__ids targets;
    float *top, *log_sum, *below; /* below: NULL without label smoothing */
} loss_job;

/* sum(top - x) */
static inline float sum_below(const float *x, int64_t n, float top)
{
    vec a = {0}, b = {0};
    int64_t first = 0;
    for (; first + 2 * WIDTH <= n; first += 2 * WIDTH) {
        a += top - vec_load(x + first);
        b += top - vec_load(x + first + WIDTH);
    }
    FOR_VECTORS(n - first, a += keep_lanes(top - load_lanes(x + first + i, m), m, 0););
    return vec_sum(a + b);
}

static void cross_entropy_rows(void *arg, int64_t begin, int64_t end)
{
    const loss_job *j = arg;
    const tr__rows *logits = &j->logits;
    float buffer[ROW_MAX];
    for (int64_t r = begin; r < end; r++) {
        float top = -INFINITY, sum = 0, below = 0;
        for (int64_t first = 0, n; first < logits->n; first += n) {
            n = row_part(logits, logits, first);
            float top_of_part = row_top(row_part_in(logits, r, first, n, buffer), n);
            if (top_of_part > top) top = top_of_part;
        }
        for (int64_t first = 0, n; first < logits->n; first += n) {
            n = row_part(logits, logits, first);
            const float *x = row_part_in(logits, r, first, n, buffer);
            sum += row_exp_sum(x, n, top, NULL);
            if (j->below) below += sum_below(x, n, top);
        }
        j->top[r] = top;
        j->log_sum[r] = logf(sum);
        if (j->below) j->below[r] = below / (float)logits->n;
    }
}

static tr_status cross_entropy_kernel(tr_op_call *call)
{
    const tr_tensor *logits = call->inputs[0];
    loss_job j = {
        .logits = tr__rows_of(logits, -1),
        .top = tr__ptr(call->outputs[1]),
        .log_sum = tr__ptr(call->outputs[2]),
    };
    if (logits->dtype == TR_F64) return TR_DECLINED;
    if (call->outputs[4]) j.below = tr__ptr(call->outputs[4]);
    TR__TRY(tr__cross_entropy_check(call));
    tr__pool_for(tr__pool_of(logits), j.logits.others.n, tr__row_grain(j.logits.n), cross_entropy_rows, &j);
    return tr__cross_entropy_finish(call);
}

/* dx of logits [first, first + n) of row r, whose gradient arrives as scale. */
static void cross_entropy_grad_part(const loss_job *j, int64_t r, int64_t first, int64_t n, int64_t target, float scale)
{
    float x_buffer[ROW_MAX], dx_buffer[ROW_MAX];
    const float *x = row_part_in(&j->logits, r, first, n, x_buffer);
    float *dx = row_part_out(&j->grads, r, first, dx_buffer), top = j->top[r], log_sum = j->log_sum[r];
    float smoothing = (float)((const tr_cross_entropy_attrs *)j->call->attrs)->smoothing;
    float even = smoothing / (float)j->logits.n;
    if (scale == 0) {
        memset(dx, 0, sizeof *dx * (size_t)n);
    } else {
        FOR_VECTORS(n,
            vec log_p = load_lanes(x + i, m) - top - log_sum;
            store_lanes(dx + i, (exp_below_0(log_p) - even) * scale, m););
        if (target >= first && target < first + n) dx[target - first] -= (1 - smoothing) * scale;
    }
    row_part_done(&j->grads, r, first, n, dx_buffer);
}

static void cross_entropy_grad_rows(void *arg, int64_t begin, int64_t end)
{
    const loss_job *j = arg;
    for (int64_t r = begin; r < end; r++) {
        int64_t target = tr__id(&j->targets, r);
        float scale = (float)tr__cross_entropy_scale(j->call, r, target);
        for (int64_t first = 0, n; first < j->logits.n; first += n) {
            n = row_part(&j->logits, &j->grads, first);
            cross_entropy_grad_part(j, r, first, n, target, scale);
        }
    }
}

static tr_status cross_entropy_grad_kernel(tr_op_call *call)
{
    const tr_tensor *logits = call->inputs[1];
    loss_job j = {
        .logits = tr__rows_of(logits, -1),
        .grads = tr__rows_of(call->outputs[0], -1),
        .call = call,
        .targets = tr__ids_of(call->inputs[2]),
        .top = tr__ptr(call->inputs[3]),
        .log_sum = tr__ptr(call->inputs[4]),
    };
    if (logits->dtype == TR_F64) return TR_DECLINED;
    tr__pool_for(tr__pool_of(logits), j.logits.others.n, tr__row_grain(j.logits.n), cross_entropy_grad_rows, &j);
    return TR_OK;
}

#endif
