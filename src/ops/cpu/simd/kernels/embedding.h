/* embedding_grad: g: [..., d], ids: [...] -> dweight: [rows, d]. */
#ifndef TR_OPS_CPU_SIMD_KERNELS_EMBEDDING_H
#define TR_OPS_CPU_SIMD_KERNELS_EMBEDDING_H

#include "ops/cpu/simd/kernels/rows.h"
#include "ops/embedding.h"

typedef struct embedding_job {
    tr__rows g, table;
    const tr__id_lists *lists;
    bool accumulate;
} embedding_job;

/* As the reference: a row is summed over the positions that name it, in their order, and written once. */
static void embedding_grad_rows(void *arg, int64_t begin, int64_t end)
{
    const embedding_job *j = arg;
    float g_buffer[ROW_MAX], sum_buffer[ROW_MAX];
    int64_t n = j->table.n;
    for (int64_t r = begin; r < end; r++) {
        int64_t first = j->lists->first[r];
        if (j->accumulate && first < 0) continue;
        float *sum = row_out(&j->table, r, sum_buffer);
        if (j->accumulate)
            row_in(&j->table, r, sum);
        else
            memset(sum, 0, sizeof *sum * (size_t)n);
        for (int64_t position = first; position >= 0; position = j->lists->next[position]) {
            const float *g = row_in(&j->g, position, g_buffer);
            FOR_VECTORS(n, store_lanes(sum + i, load_lanes(sum + i, m) + load_lanes(g + i, m), m););
        }
        row_done(&j->table, r, sum_buffer);
    }
}

static tr_status embedding_grad_kernel(tr_op_call *call)
{
    tr_tensor *table = call->outputs[0];
    tr__ids ids = tr__ids_of(call->inputs[1]);
    tr__id_lists lists;
    embedding_job j = {
        .g = tr__rows_of(call->inputs[0], -1),
        .table = tr__rows_of(table, 1),
        .lists = &lists,
        .accumulate = ((const tr_accumulate_attrs *)call->attrs)->accumulate,
    };
    if (!can_do(&j.g) || !can_do(&j.table)) return TR_DECLINED;
    TR__TRY(tr__id_lists_make(&lists, &ids, table->shape.dim[0]));
    tr__pool_for(tr__pool_of(table), table->shape.dim[0], tr__row_grain(j.table.n), embedding_grad_rows, &j);
    tr__id_lists_free(&lists);
    return TR_OK;
}

#endif
