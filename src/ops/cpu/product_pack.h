/*
 * Of the matrix products of product_simd.h: operands as the f32 that tiles multiply, a step for each row of b. Its counterpart
 * for bf16 is product_pack_pairs.h.
 */
#ifndef TR_OPS_CPU_PRODUCT_PACK_H
#define TR_OPS_CPU_PRODUCT_PACK_H

#include "ops/cpu/product_block.h"

enum { ROWS_IN_STEP = 1 }; /* of b, or columns of a */

/* ---- b ------------------------------------------------------------------------------------------------------------- */

/* n rows of a panel from row i on, at once: their reads overlap where they miss the cache. */
LANES_INLINE void copy_rows(const block *k, const tr__axis *axis, tr_dtype dtype, int64_t i, int n, int64_t column,
    int64_t columns, float *to, vec sum[TILE_VECTORS])
{
    vec x[4][TILE_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < n; r++) {
        int64_t from = k->at->b + tr__axis_at(axis, k->row + i + r) + column;
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; j++)
            x[r][j] = lanes_load(dtype, k->p->b.data, from + j * WIDTH, columns - j * WIDTH);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; j++) {
            vec_store(to + (i + r) * TILE_COLUMNS + j * WIDTH, x[r][j]);
            sum[j] += x[r][j];
        }
}

/* A panel: to is [steps][64]. Of a whole panel of f32 rows, dtype and columns are constants here. */
LANES_INLINE void pack_rows_of(const block *k, tr_dtype dtype, int64_t column, int64_t columns, float *to)
{
    const tr__axis axis = k->p->b.row; /* a copy: no store below can change it */
    float *sums = k->at->b_sums ? k->at->b_sums + column : NULL;
    vec sum[TILE_VECTORS] = {{0}};
    int64_t i = 0;
    for (; i + 4 <= k->depth; i += 4) copy_rows(k, &axis, dtype, i, 4, column, columns, to, sum);
    for (; i < k->depth; i++) copy_rows(k, &axis, dtype, i, 1, column, columns, to, sum);
    if (sums) add_sums(sums, sum, columns);
}

static void pack_rows(const block *k, int64_t column, int64_t columns, float *to)
{
    if (columns == TILE_COLUMNS && k->p->b.dtype == TR_F32) pack_rows_of(k, TR_F32, column, TILE_COLUMNS, to);
    else pack_rows_of(k, k->p->b.dtype, column, columns, to);
}

/* When neither rows nor columns are contiguous. */
static void pack_elements(const block *k, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &k->p->b;
    for (int64_t i = 0; i < k->depth; i++) {
        int64_t row = k->at->b + tr__axis_at(&b->row, k->row + i);
        for (int64_t j = 0; j < columns; j++) {
            float x = (float)tr__load(b->dtype, b->data, row + tr__axis_at(&b->column, column + j));
            to[i * TILE_COLUMNS + j] = x;
            if (k->at->b_sums) k->at->b_sums[column + j] += x;
        }
    }
}

/* When columns are contiguous, as those of a weight [out, in] are. */
static void pack_columns(const block *k, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &k->p->b;
    for (int64_t j = 0; j < columns; j += WIDTH) {
        int64_t wide = columns - j < WIDTH ? columns - j : WIDTH;
        for (int64_t i = 0; i < k->depth; i += WIDTH) {
            vec square[WIDTH];
            for (int64_t c = 0; c < WIDTH; c++) {
                int64_t from = k->at->b + tr__axis_at(&b->column, column + j + (c < wide ? c : 0)) + k->row + i;
                square[c] = lanes_load(b->dtype, b->data, from, k->depth - i);
            }
            lanes_transpose(square);
            for (int64_t r = 0; r < WIDTH && i + r < k->depth; r++)
                vec_store(to + (i + r) * TILE_COLUMNS + j, square[r]);
        }
    }
}

/* Panel `panel` of b. */
static void pack_panel(const block *k, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &k->p->b;
    bool by_columns = plain(&b->row) && !k->at->b_sums;
    (plain(&b->column) ? pack_rows : by_columns ? pack_columns : pack_elements)(k, column, columns, to);
    activate(k->p->b_activation, to, k->steps * TILE_COLUMNS);
}

/* ---- a ------------------------------------------------------------------------------------------------------------- */

/* Panels of a whose columns are contiguous, rows [i, i + n), n <= GROUP: to is [panels][steps][6]. Several at once, since
 * each row of a that is touched brings a whole cache line. */
static void pack_left_of(const block *k, tr_dtype dtype, int64_t i, int64_t n, float *to)
{
    const tr__axis axis = k->p->a.column; /* a copy: no store below can change it */
    for (int64_t r = 0; r < k->depth; r++, to += TILE_ROWS) {
        int64_t from = k->at->a + tr__axis_at(&axis, k->row + r) + i;
#pragma GCC unroll 8
        for (int64_t j = 0; j < GROUP; j += TILE_ROWS)
            lanes_copy_six(dtype, k->p->a.data, from + j, n - j, to + j * k->steps);
    }
}

/* A whole group of f32 rows, depth a multiple of four. */
static void pack_left_f32(const block *k, int64_t i, float *to)
{
    const tr__axis axis = k->p->a.column;
    const float *data = (const float *)k->p->a.data + k->at->a + i;
    for (int64_t r = 0; r < k->depth; r += 4, to += 4 * TILE_ROWS) {
        const float *row[4];
        for (int j = 0; j < 4; j++) row[j] = data + tr__axis_at(&axis, k->row + r + j);
#pragma GCC unroll 8
        for (int64_t j = 0; j < GROUP; j += TILE_ROWS) lanes_join_sixes(row, j, to + j * k->steps);
    }
}

static void pack_left(const block *k, int64_t i, int64_t n, float *to)
{
    float *sums = k->column == 0 && k->at->a_sums ? k->at->a_sums + i : NULL;
    bool whole = n == GROUP && k->p->a.dtype == TR_F32;
    if (whole && k->depth % 4 == 0) pack_left_f32(k, i, to);
    else pack_left_of(k, k->p->a.dtype, i, n, to);
    if (sums && whole) sum_left(k, TR_F32, i, GROUP, sums);
    else if (sums) sum_left(k, k->p->a.dtype, i, n, sums);
    int64_t panels = (n + TILE_ROWS - 1) / TILE_ROWS;
    activate(k->p->a_activation, to, panels * TILE_ROWS * k->steps);
}

static void copy_left_row(const block *k, int64_t row_at, float *to)
{
    const tr__matrix *a = &k->p->a;
    if (f32_rows(a))
        memcpy(to, (const float *)a->data + row_at + k->row, (size_t)k->depth * sizeof *to);
    else
        for (int64_t c = 0; c < k->depth; c += WIDTH)
            vec_store(to + c, read_lanes(a, row_at, k->row + c, k->depth - c));
}

/* Copies rows [i, i + rows) of a: to is [6][BLOCK_DEPTH]. */
static void copy_left(const block *k, int64_t i, int64_t rows, float *to)
{
    for (int64_t r = 0; r < rows; r++)
        copy_left_row(k, k->at->a + tr__axis_at(&k->p->a.row, i + r), to + r * BLOCK_DEPTH);
    activate(k->p->a_activation, to, (rows - 1) * BLOCK_DEPTH + k->depth);
}

/* Whether tiles can read a's rows where they lie, and where those from row i on do. */
static bool left_in_place(const tr__matrix *a)
{
    return f32_rows(a);
}

static void read_left_in_place(const block *k, int64_t i, tile *t)
{
    const tr__matrix *a = &k->p->a;
    t->a_row = a->row.stride[0];
    t->a = (const float *)a->data + k->at->a + i * t->a_row + k->row;
}

/* Whether tiles can round their sums to what c is: not these. */
static bool writes_low_in_place(const tr__product *p)
{
    (void)p;
    return false;
}

#endif
