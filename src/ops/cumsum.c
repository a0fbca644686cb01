/* Running sums along one dimension. The gradient's run from the other end. */
#include "ops/family.h"
#include "ops/rows.h"

tr_tensor *tr_cumsum(tr_tensor *x, int dim)
{
    tr__cumsum_attrs attrs = {0};
    if (x && !tr__bad(x) && tr__dim("cumsum", x->shape, dim, &attrs.dim) != TR_OK) return tr__tensor_failed();
    return tr_apply(tr__op(cumsum), &attrs, &x, 1, NULL);
}

tr_status tr__cumsum_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    const tr_tensor *x = call->inputs[0];
    return tr_op_output(call, 0, x->shape, tr_dtype_is_float(x->dtype) ? x->dtype : TR_I64);
}

typedef struct job {
    tr__rows x, y;
    bool reverse;
} job;

static double run_on(double *block, int64_t n, double sum, bool reverse)
{
    for (int64_t i = 0; i < n; i++) {
        double *place = &block[reverse ? n - 1 - i : i];
        sum += *place;
        *place = sum;
    }
    return sum;
}

static void sum_rows(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    double block[TR__ROW_BLOCK];
    int64_t blocks = (j->x.n + TR__ROW_BLOCK - 1) / TR__ROW_BLOCK;
    for (int64_t r = begin; r < end; r++) {
        double sum = 0;
        for (int64_t b = 0; b < blocks; b++) {
            int64_t first = (j->reverse ? blocks - 1 - b : b) * TR__ROW_BLOCK, n = tr__row_block(&j->x, first);
            tr__row_read(&j->x, r, first, n, block);
            sum = run_on(block, n, sum, j->reverse);
            tr__row_write(&j->y, r, first, n, block);
        }
    }
}

tr_status tr__cumsum_forward(tr_op_call *call)
{
    const tr__cumsum_attrs *attrs = call->attrs;
    job j = {tr__rows_of(call->inputs[0], attrs->dim), tr__rows_of(call->outputs[0], attrs->dim), attrs->reverse};
    tr__pool_for(tr__pool_of(call->outputs[0]), j.x.others.n, tr__row_grain(j.x.n), sum_rows, &j);
    return TR_OK;
}

tr_status tr__cumsum_backward(tr_backward_call *call)
{
    tr__cumsum_attrs attrs = *(const tr__cumsum_attrs *)call->attrs;
    attrs.reverse = !attrs.reverse;
    call->grad_inputs[0] = tr_apply(tr__op(cumsum), &attrs, (tr_tensor *[]){call->grad_outputs[0]}, 1, NULL);
    return TR_OK;
}
