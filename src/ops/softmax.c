/* softmax and log_softmax over one dimension, and the kernels of their gradients. */
#include "ops/family.h"
#include "ops/rows.h"

#include <math.h>

tr_tensor *tr_softmax(tr_tensor *x, int dim)
{
    return tr__apply_along(tr__op(softmax), dim, &x, 1);
}

tr_tensor *tr_log_softmax(tr_tensor *x, int dim)
{
    return tr__apply_along(tr__op(log_softmax), dim, &x, 1);
}

tr_status tr__softmax_infer(tr_op_call *call)
{
    TR__TRY(tr__float_input(call, 0));
    return tr_op_output(call, 0, call->inputs[0]->shape, call->inputs[0]->dtype);
}

/* ---- Reference kernels ----------------------------------------------------------------------------------------- */

typedef struct job {
    tr__rows in[2], out;
    bool log;
} job;

/* With lse = log(sum(exp(x))): softmax is exp(x - lse), log_softmax is x - lse. */
static void forward_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    double block[TR__ROW_BLOCK];
    for (int64_t r = begin; r < end; r++) {
        tr__log_sum_exp lse = tr__row_log_sum_exp(&j->in[0], r);
        for (int64_t first = 0, n; first < j->out.n; first += n) {
            n = tr__row_block(&j->out, first);
            tr__row_read(&j->in[0], r, first, n, block);
            for (int64_t i = 0; i < n; i++) {
                double log_y = block[i] - lse.top - lse.rest;
                block[i] = j->log ? log_y : exp(log_y);
            }
            tr__row_write(&j->out, r, first, n, block);
        }
    }
}

/* dx = y (g - sum(g y)) for softmax, g - exp(y) sum(g) for log_softmax. */
static void backward_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    double g[TR__ROW_BLOCK], y[TR__ROW_BLOCK];
    for (int64_t r = begin; r < end; r++) {
        double sum = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t first = 0, n; first < j->out.n; first += n) {
                n = tr__row_block(&j->out, first);
                tr__row_read(&j->in[0], r, first, n, g);
                tr__row_read(&j->in[1], r, first, n, y);
                for (int64_t i = 0; i < n; i++) {
                    if (pass == 0)
                        sum += j->log ? g[i] : g[i] * y[i];
                    else
                        g[i] = j->log ? g[i] - exp(y[i]) * sum : y[i] * (g[i] - sum);
                }
                if (pass == 1) tr__row_write(&j->out, r, first, n, g);
            }
        }
    }
}

static tr_status run(tr_op_call *call, tr__pool_body body, const tr_op *log)
{
    tr_tensor *y = call->outputs[0];
    if (tr__numel(y->shape) == 0) return TR_OK;
    int dim = ((const tr_dim_attrs *)call->attrs)->dim;
    job j = {.out = tr__rows_of(y, dim), .log = call->op == log};
    for (int i = 0; i < call->n_inputs; i++) j.in[i] = tr__rows_of(call->inputs[i], dim);
    tr__pool_for(tr__pool_of(y), j.out.others.n, tr__row_grain(j.out.n), body, &j);
    return TR_OK;
}

tr_status tr__softmax_forward(tr_op_call *call)
{
    return run(call, forward_rows, tr__op(log_softmax));
}

tr_status tr__softmax_grad_forward(tr_op_call *call)
{
    return run(call, backward_rows, tr__op(log_softmax_grad));
}
