/*
 * Packing for the blocked gemm (blocked.h): b as panels [steps][TILE_COLUMNS], a as panels [steps][TILE_ROWS] or as rows
 * [TILE_ROWS][BLOCK_DEPTH], for AMX always as rows. A step is what the microkernel multiplies at once, ROWS_IN_STEP rows of b: one
 * row in f32, two as VNNI pairs of bf16. The two kinds differ in what this file includes:
 *
 *   activate_packed(f, x, steps)     x = f(x), whole vectors of steps
 *   put_number(step, row, x)         x as row `row` of a step; rows behind it become zero
 *   steps_of(first, second)          a vector of steps of two vectors of numbers; with one row in a step, of the first
 *   load_steps(dtype, data, at, n)   a vector of steps of neighbours in memory, of which there are n; zeros behind them
 *   pack_b_rows_of(…)                a panel of b from contiguous rows
 *   pack_six(…), pack_four_steps(…)  one step, or four, of a panel of a from contiguous columns
 *   reads_a_in_place(a)              whether the microkernel can read a's rows where they lie
 *   writes_bf16_in_place(p)          whether it can round its sums to a bf16 c
 */
#ifndef TR_OPS_CPU_GEMM_PACK_H
#define TR_OPS_CPU_GEMM_PACK_H

#ifdef TILE_VNNI
#include "ops/cpu/gemm/pack_vnni.h"
#else
#include "ops/cpu/gemm/pack_f32.h"
#endif

/* ---- b ------------------------------------------------------------------------------------------------------------- */

/* Contiguous rows. Of a whole panel, dtype and columns are constants in the function called. */
static void pack_b_rows(const block *blk, int64_t column, int64_t columns, float *to)
{
    tr_dtype dtype = blk->p->b.dtype;
    bool whole = columns == TILE_COLUMNS;
    if (whole && dtype == PACKED_DTYPE) pack_b_rows_of(blk, PACKED_DTYPE, column, TILE_COLUMNS, to);
    else if (whole && dtype == TR_F32) pack_b_rows_of(blk, TR_F32, column, TILE_COLUMNS, to);
    else pack_b_rows_of(blk, dtype, column, columns, to);
}

/* Contiguous columns, as those of a weight [out, in] are. */
static void pack_b_columns(const block *blk, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &blk->p->b;
    for (int64_t j = 0; j < columns; j += WIDTH) {
        int64_t wide = columns - j < WIDTH ? columns - j : WIDTH;
        for (int64_t i = 0; i < blk->steps; i += WIDTH) {
            int64_t row = i * ROWS_IN_STEP;
            vec square[WIDTH];
            for (int64_t c = 0; c < WIDTH; c++) {
                int64_t from = blk->task->b + tr__axis_at(&b->column, column + j + (c < wide ? c : 0)) + blk->row + row;
                square[c] = load_steps(b->dtype, b->data, from, blk->depth - row);
            }
            lanes_transpose(square);
            for (int64_t r = 0; r < WIDTH && i + r < blk->steps; r++)
                vec_store(to + (i + r) * TILE_COLUMNS + j, square[r]);
        }
    }
}

/* Neither rows nor columns are contiguous. */
static void pack_b_elements(const block *blk, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &blk->p->b;
    for (int64_t i = 0; i < blk->depth; i++) {
        int64_t row = blk->task->b + tr__axis_at(&b->row, blk->row + i);
        for (int64_t j = 0; j < columns; j++) {
            float x = (float)tr__load(b->dtype, b->data, row + tr__axis_at(&b->column, column + j));
            put_number(to + i / ROWS_IN_STEP * TILE_COLUMNS + j, i % ROWS_IN_STEP, x);
            if (blk->task->b_sums) blk->task->b_sums[column + j] += x;
        }
    }
}

/* Panels [begin, end) of b. */
static void pack_b(void *arg, int64_t begin, int64_t end)
{
    const block *blk = arg;
    const tr__matrix *b = &blk->p->b;
    bool by_rows = tr__axis_contiguous(&b->column), by_columns = tr__axis_contiguous(&b->row) && !blk->task->b_sums;
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t j = panel * TILE_COLUMNS, columns = blk->columns - j < TILE_COLUMNS ? blk->columns - j : TILE_COLUMNS;
        float *to = blk->b + j * blk->steps;
        (by_rows ? pack_b_rows : by_columns ? pack_b_columns : pack_b_elements)(blk, blk->column + j, columns, to);
        activate_packed(blk->p->b_activation, to, blk->steps * TILE_COLUMNS);
    }
}

/* ---- a ------------------------------------------------------------------------------------------------------------- */

#ifdef TILE_AMX

/* Rows [i, i + n) of a, n <= GROUP, whose columns are contiguous: pairs of columns become vectors, squares of which are transposed.
 * to is [GROUP][BLOCK_DEPTH]. */
static void pack_panels(const block *blk, int64_t i, int64_t n, float *to)
{
    const tr__matrix *a = &blk->p->a;
    for (int64_t step = 0; step < blk->steps; step += WIDTH) {
        for (int64_t j = 0; j < n; j += WIDTH) {
            vec square[WIDTH];
            for (int64_t s = 0; s < WIDTH; s++) {
                __m256i pair[2];
                for (int64_t r = 0; r < 2; r++) {
                    int64_t row = 2 * (step + s) + r, some = row < blk->depth ? n - j : 0;
                    int64_t from = blk->task->a + tr__axis_at(&a->column, blk->row + (some ? row : 0)) + i + j;
                    pair[r] = bf16_load(a->dtype, a->data, from, some);
                }
                square[s] = vnni_join(pair[0], pair[1]);
            }
            lanes_transpose(square);
            for (int64_t r = 0; r < WIDTH && j + r < n; r++) vec_store(to + (j + r) * BLOCK_DEPTH + step, square[r]);
        }
    }
    for (int64_t r = 0; r < n; r++) activate_packed(blk->p->a_activation, to + r * BLOCK_DEPTH, blk->steps);
}

#else

enum { WHOLE_DEPTH = 4 * ROWS_IN_STEP }; /* rows of four steps */

/* Panels of a whose columns are contiguous, rows [i, i + n), n <= GROUP: to is [panels][steps][6]. Several panels at once,
 * since each row that is read brings a whole cache line. */
static void pack_a_part(const block *blk, int64_t i, int64_t n, float *to)
{
    const tr__axis axis = blk->p->a.column; /* a copy: no store below can change it */
    const tr__matrix *a = &blk->p->a;
    for (int64_t r = 0; r < blk->depth; r += ROWS_IN_STEP, to += TILE_ROWS) {
        int64_t first = blk->task->a + tr__axis_at(&axis, blk->row + r) + i, second = -1;
        bool both = ROWS_IN_STEP == 2 && r + 1 < blk->depth;
        if (both) second = blk->task->a + tr__axis_at(&axis, blk->row + r + 1) + i;
#pragma GCC unroll 8
        for (int64_t j = 0; j < GROUP; j += TILE_ROWS)
            pack_six(a->dtype, a->data, first + j, both ? second + j : -1, n - j, to + j * blk->steps);
    }
}

/* A whole group in PACKED_DTYPE, depth a multiple of WHOLE_DEPTH. */
static void pack_a_whole(const block *blk, int64_t i, float *to)
{
    const tr__axis axis = blk->p->a.column;
    const packed_number *data = (const packed_number *)blk->p->a.data + blk->task->a + i;
    for (int64_t r = 0; r < blk->depth; r += WHOLE_DEPTH, to += 4 * TILE_ROWS) {
        const packed_number *row[WHOLE_DEPTH];
        for (int j = 0; j < WHOLE_DEPTH; j++) row[j] = data + tr__axis_at(&axis, blk->row + r + j);
#pragma GCC unroll 8
        for (int64_t j = 0; j < GROUP; j += TILE_ROWS) pack_four_steps(row, j, to + j * blk->steps);
    }
}

/* Rows [i, i + n) of a as panels, likewise. */
static void pack_panels(const block *blk, int64_t i, int64_t n, float *to)
{
    bool whole = n == GROUP && blk->p->a.dtype == PACKED_DTYPE;
    if (whole && blk->depth % WHOLE_DEPTH == 0) pack_a_whole(blk, i, to);
    else pack_a_part(blk, i, n, to);
    int64_t panels = (n + TILE_ROWS - 1) / TILE_ROWS;
    activate_packed(blk->p->a_activation, to, panels * TILE_ROWS * blk->steps);
}

#endif

/* sums[0 … n) += the sums of rows [i, i + n) of a in this block, whose columns are contiguous: n <= GROUP. dtype, and n of a
 * whole group, are constants here. */
LANES_INLINE void sum_a(const block *blk, tr_dtype dtype, int64_t i, int64_t n, float *sums)
{
    const tr__axis axis = blk->p->a.column;
    vec sum[GROUP / WIDTH] = {{0}};
    for (int64_t r = 0; r < blk->depth; r++) {
        int64_t from = blk->task->a + tr__axis_at(&axis, blk->row + r) + i;
#pragma GCC unroll 12
        for (int64_t j = 0; j < GROUP; j += WIDTH) sum[j / WIDTH] += lanes_load(dtype, blk->p->a.data, from + j, n - j);
    }
    add_sums(sums, sum, n);
}

static void pack_a(const block *blk, int64_t i, int64_t n, float *to)
{
    float *sums = blk->column == 0 && blk->task->a_sums ? blk->task->a_sums + i : NULL;
    bool whole = n == GROUP && blk->p->a.dtype == PACKED_DTYPE;
    pack_panels(blk, i, n, to);
    if (sums && whole) sum_a(blk, PACKED_DTYPE, i, GROUP, sums);
    else if (sums) sum_a(blk, blk->p->a.dtype, i, n, sums);
}

/* Copies rows [i, i + rows) of a: to is [TILE_ROWS][BLOCK_DEPTH]. */
static void copy_a(const block *blk, int64_t i, int64_t rows, float *to)
{
    const tr__matrix *a = &blk->p->a;
    for (int64_t r = 0; r < rows; r++, to += BLOCK_DEPTH) {
        int64_t from = blk->task->a + tr__axis_at(&a->row, i + r);
        if (a->dtype == PACKED_DTYPE && tr__axis_contiguous(&a->column)) {
            packed_number *number = (packed_number *)to;
            memcpy(number, (const packed_number *)a->data + from + blk->row, (size_t)blk->depth * sizeof *number);
            if (blk->depth % ROWS_IN_STEP) number[blk->depth] = 0;
        } else {
            for (int64_t step = 0; step < blk->steps; step += WIDTH) {
                int64_t c = step * ROWS_IN_STEP, n = blk->depth - c;
                vec first = read_lanes(a, from, blk->row + c, n);
                vec second = ROWS_IN_STEP == 2 ? read_lanes(a, from, blk->row + c + WIDTH, n - WIDTH) : first;
                vec_store(to + step, steps_of(first, second));
            }
        }
        activate_packed(blk->p->a_activation, to, blk->steps);
    }
}

#endif
