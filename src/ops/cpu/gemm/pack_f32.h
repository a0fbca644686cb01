/*
 * Packing (pack.h) for the f32 microkernel: a step is one row of b, or one column of a.
 */
#ifndef TR_OPS_CPU_GEMM_PACK_F32_H
#define TR_OPS_CPU_GEMM_PACK_F32_H

#include "ops/cpu/gemm/block.h"

enum { ROWS_IN_STEP = 1 };
#define PACKED_DTYPE TR_F32
typedef float packed_number;

static void activate_packed(tr_activation_kind f, float *x, int64_t n)
{
    activate(f, x, n);
}

static inline void put_number(float *step, int64_t row, float x)
{
    (void)row;
    *step = x;
}

static inline vec steps_of(vec first, vec second)
{
    (void)second;
    return first;
}

LANES_INLINE vec load_steps(tr_dtype dtype, const void *data, int64_t at, int64_t n)
{
    return lanes_load(dtype, data, at, n);
}

/* n rows of a panel from row i on, at once: their reads overlap where they miss the cache. */
LANES_INLINE void pack_rows(const block *blk, const tr__axis *axis, tr_dtype dtype, int64_t i, int n, int64_t column,
    int64_t columns, float *to, vec sum[TILE_VECTORS])
{
    vec x[4][TILE_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < n; r++) {
        int64_t from = blk->task->b + tr__axis_at(axis, blk->row + i + r) + column;
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; j++)
            x[r][j] = lanes_load(dtype, blk->p->b.data, from + j * WIDTH, columns - j * WIDTH);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; j++) {
            vec_store(to + (i + r) * TILE_COLUMNS + j * WIDTH, x[r][j]);
            sum[j] += x[r][j];
        }
}

LANES_INLINE void pack_b_rows_of(const block *blk, tr_dtype dtype, int64_t column, int64_t columns, float *to)
{
    const tr__axis axis = blk->p->b.row; /* a copy: no store below can change it */
    float *sums = blk->task->b_sums ? blk->task->b_sums + column : NULL;
    vec sum[TILE_VECTORS] = {{0}};
    int64_t i = 0;
    for (; i + 4 <= blk->depth; i += 4) pack_rows(blk, &axis, dtype, i, 4, column, columns, to, sum);
    for (; i < blk->depth; i++) pack_rows(blk, &axis, dtype, i, 1, column, columns, to, sum);
    if (sums) add_sums(sums, sum, columns);
}

LANES_INLINE void pack_six(tr_dtype dtype, const void *data, int64_t first, int64_t second, int64_t n, float *to)
{
    (void)second;
    lanes_copy_six(dtype, data, first, n, to);
}

LANES_INLINE void pack_four_steps(const float *const row[4], int64_t j, float *to)
{
    lanes_join_sixes(row, j, to);
}

static bool reads_a_in_place(const tr__matrix *a)
{
    return f32_rows(a);
}

static bool writes_bf16_in_place(const tr__gemm *p)
{
    (void)p;
    return false;
}

#endif
