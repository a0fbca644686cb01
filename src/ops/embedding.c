/* Rows of a table by their numbers. */
#include "ops/embedding.h"
#include "ops/family.h"

#include "tensor/loop.h"

#include <stdlib.h>
#include <string.h>

tr_tensor *tr_embedding_op(tr_tensor *ids, tr_tensor *weight)
{
    return tr_apply(tr__op(embedding), NULL, (tr_tensor *[]){weight, ids}, 2, NULL);
}

tr_status tr__embedding_infer(tr_op_call *call)
{
    TR__TRY(tr__float_input(call, 0));
    TR__TRY(tr__ids_input(call, 1));
    const tr_tensor *weight = call->inputs[0], *ids = call->inputs[1];
    if (weight->shape.ndim != 2)
        return tr__fail(TR_SHAPE, "embedding: weight %s must be [rows, dim]", TR__TEXT(weight->shape));
    if (ids->shape.ndim == TR_MAX_DIMS)
        return tr__fail(TR_SHAPE, "embedding: ids %s have no room for another dimension", TR__TEXT(ids->shape));
    tr_shape shape = ids->shape;
    shape.dim[shape.ndim++] = weight->shape.dim[1];
    return tr_op_output(call, 0, shape, weight->dtype);
}

typedef struct job {
    const tr_op_call *call;
    tr__ids ids;
    tr__rows table, rows; /* [rows, d], [..., d] */
    const tr__id_lists *lists;
    bool accumulate;
} job;

/* Rows that lie together are copied as they are. */
static void copy_rows(const job *j, int64_t begin, int64_t end)
{
    int64_t bytes = (int64_t)tr_dtype_size(j->table.dtype);
    for (int64_t i = begin; i < end; i++) {
        const char *from = j->table.data + tr__axis_at(&j->table.others, tr__id(&j->ids, i)) * bytes;
        memcpy(j->rows.data + tr__axis_at(&j->rows.others, i) * bytes, from, (size_t)(j->rows.n * bytes));
    }
}

static void look_up(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    double block[TR__ROW_BLOCK];
    if (j->table.stride == 1 && j->rows.stride == 1) {
        copy_rows(j, begin, end);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        int64_t id = tr__id(&j->ids, i);
        for (int64_t first = 0, n; first < j->rows.n; first += n) {
            n = tr__row_block(&j->rows, first);
            tr__row_read(&j->table, id, first, n, block);
            tr__row_write(&j->rows, i, first, n, block);
        }
    }
}

static job job_of(const tr_op_call *call, const tr_tensor *table, const tr_tensor *rows)
{
    return (job){
        .call = call,
        .ids = tr__ids_of(call->inputs[1]),
        .table = tr__rows_of(table, 1),
        .rows = tr__rows_of(rows, -1),
    };
}

tr_status tr__embedding_check(const tr_op_call *call)
{
    tr__ids ids = tr__ids_of(call->inputs[1]);
    return tr__ids_check(&ids, call->inputs[0]->shape.dim[0], "embedding: id", "rows", NULL);
}

tr_status tr__embedding_forward(tr_op_call *call)
{
    TR__TRY(tr__embedding_check(call));
    job j = job_of(call, call->inputs[0], call->outputs[0]);
    tr__pool_for(tr__pool_of(call->outputs[0]), j.ids.axis.n, tr__row_grain(j.rows.n), look_up, &j);
    return TR_OK;
}

tr_status tr__id_lists_make(tr__id_lists *lists, const tr__ids *ids, int64_t rows)
{
    int64_t n = ids->axis.n;
    lists->first = malloc(sizeof(int64_t) * (size_t)(rows + n + 1));
    if (!lists->first) return tr__fail(TR_NO_MEMORY, "embedding: no memory to sort %lld ids", (long long)n);
    lists->next = lists->first + rows;
    for (int64_t r = 0; r < rows; r++) lists->first[r] = -1;
    for (int64_t i = n; i-- > 0;) {
        int64_t id = tr__id(ids, i);
        lists->next[i] = lists->first[id];
        lists->first[id] = i;
    }
    return TR_OK;
}

void tr__id_lists_free(tr__id_lists *lists)
{
    free(lists->first);
}

/* Row r of the table gets the sum of the gradients at the positions where r was looked up, in their order. */
static void sum_up(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    double block[TR__ROW_BLOCK], sum[TR__ROW_BLOCK];
    for (int64_t r = begin; r < end; r++) {
        if (j->accumulate && j->lists->first[r] < 0) continue;
        for (int64_t first = 0, n; first < j->table.n; first += n) {
            n = tr__row_block(&j->table, first);
            memset(sum, 0, sizeof sum);
            if (j->accumulate) tr__row_read(&j->table, r, first, n, sum);
            for (int64_t i = j->lists->first[r]; i >= 0; i = j->lists->next[i]) {
                tr__row_read(&j->rows, i, first, n, block);
                for (int64_t k = 0; k < n; k++) sum[k] += block[k];
            }
            tr__row_write(&j->table, r, first, n, sum);
        }
    }
}

tr_status tr__embedding_grad_forward(tr_op_call *call)
{
    tr_tensor *dweight = call->outputs[0];
    job j = job_of(call, dweight, call->inputs[0]);
    j.accumulate = ((const tr_accumulate_attrs *)call->attrs)->accumulate;
    tr__id_lists lists;
    TR__TRY(tr__id_lists_make(&lists, &j.ids, dweight->shape.dim[0]));
    j.lists = &lists;
    tr__pool_for(tr__pool_of(dweight), dweight->shape.dim[0], tr__row_grain(j.table.n), sum_up, &j);
    tr__id_lists_free(&lists);
    return TR_OK;
}

tr_status tr__embedding_backward(tr_backward_call *call)
{
    tr_accumulate_attrs attrs;
    tr_tensor *dweight = tr__grad_target(call, 0, &attrs.accumulate);
    tr_tensor *inputs[] = {call->grad_outputs[0], call->inputs[1]};
    TR__TRY(tr__op_run(tr__op(embedding_grad), &attrs, inputs, 2, &dweight, 1));
    call->grad_inputs[0] = dweight;
    return TR_OK;
}
