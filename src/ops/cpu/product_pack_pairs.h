/*
 * Of the matrix products of product_simd.h: operands as pairs of bf16 (tile.h), one step for two rows of b; f32 are rounded to
 * bf16 on the way. Where b has an odd number of rows the last pair's second number is zero, on both sides.
 */
#ifndef TR_OPS_CPU_PRODUCT_PACK_PAIRS_H
#define TR_OPS_CPU_PRODUCT_PACK_PAIRS_H

#include "ops/cpu/pairs.h"
#include "ops/cpu/product_block.h"

enum { ROWS_IN_STEP = 2 };

/* x = f(x), rounded, of so many pairs, rounded up to vectors. */
static void activate_pairs(tr_activation_kind f, float *x, int64_t pairs)
{
    float numbers[8][2 * WIDTH];
    if (f == TR_NO_ACTIVATION) return;
    for (int64_t i = 0; i < pairs; i += 8 * WIDTH) {
        int64_t n = pairs - i < 8 * WIDTH ? (pairs - i + WIDTH - 1) / WIDTH : 8;
        for (int64_t j = 0; j < n; j++) {
            vec both = vec_load(x + i + j * WIDTH);
            vec_store(numbers[j], pairs_firsts(both));
            vec_store(numbers[j] + WIDTH, pairs_seconds(both));
        }
        activate(f, numbers[0], n * 2 * WIDTH);
        for (int64_t j = 0; j < n; j++)
            vec_store(x + i + j * WIDTH, pairs_join(bf16_load(TR_F32, numbers[j], 0, WIDTH),
                bf16_load(TR_F32, numbers[j], WIDTH, WIDTH)));
    }
}

/* ---- b ------------------------------------------------------------------------------------------------------------- */

/* The two rows of a step, of columns that are contiguous. Of a whole panel of bf16, dtype and columns are constants here. */
LANES_INLINE void pack_step(tr_dtype dtype, const void *data, int64_t first, int64_t second, bool both, int64_t columns,
    float *to, vec sum[TILE_VECTORS])
{
#pragma GCC unroll 4
    for (int j = 0; j < TILE_VECTORS; j++) {
        int64_t n = columns - j * WIDTH;
        __m256i low = bf16_load(dtype, data, first + j * WIDTH, n);
        vec pairs = pairs_join(low, bf16_load(dtype, data, second + j * WIDTH, both ? n : 0));
        vec_store(to + j * WIDTH, pairs);
        if (sum) sum[j] += pairs_firsts(pairs) + pairs_seconds(pairs);
    }
}

/* A panel: to is [steps][64]. */
LANES_INLINE void pack_rows_of(const block *k, tr_dtype dtype, int64_t column, int64_t columns, float *to)
{
    const tr__axis axis = k->p->b.row; /* a copy: no store below can change it */
    const void *data = k->p->b.data;
    vec sum[TILE_VECTORS] = {{0}};
    vec *sums = k->at->b_sums ? sum : NULL;
    for (int64_t i = 0; i < k->depth; i += 2, to += TILE_COLUMNS) {
        bool both = i + 1 < k->depth;
        int64_t first = k->at->b + tr__axis_at(&axis, k->row + i) + column;
        int64_t second = both ? k->at->b + tr__axis_at(&axis, k->row + i + 1) + column : first;
        if (both) pack_step(dtype, data, first, second, true, columns, to, sums);
        else pack_step(dtype, data, first, second, false, columns, to, sums);
    }
    if (sums) add_sums(k->at->b_sums + column, sum, columns);
}

static void pack_rows(const block *k, int64_t column, int64_t columns, float *to)
{
    if (columns == TILE_COLUMNS && k->p->b.dtype == TR_BF16) pack_rows_of(k, TR_BF16, column, TILE_COLUMNS, to);
    else if (columns == TILE_COLUMNS && k->p->b.dtype == TR_F32) pack_rows_of(k, TR_F32, column, TILE_COLUMNS, to);
    else pack_rows_of(k, k->p->b.dtype, column, columns, to);
}

/* When neither rows nor columns are contiguous. */
static void pack_elements(const block *k, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &k->p->b;
    for (int64_t i = 0; i < k->depth; i++) {
        int64_t row = k->at->b + tr__axis_at(&b->row, k->row + i);
        for (int64_t j = 0; j < columns; j++) {
            double x = tr__load(b->dtype, b->data, row + tr__axis_at(&b->column, column + j));
            uint16_t *pair = (uint16_t *)(to + i / 2 * TILE_COLUMNS + j);
            pair[i % 2] = tr__f32_to_bf16((float)x);
            if (i + 1 == k->depth && i % 2 == 0) pair[1] = 0;
            if (k->at->b_sums) k->at->b_sums[column + j] += (float)x;
        }
    }
}

/* When columns are contiguous, as those of a weight [out, in] are. */
static void pack_columns(const block *k, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &k->p->b;
    for (int64_t j = 0; j < columns; j += WIDTH) {
        int64_t wide = columns - j < WIDTH ? columns - j : WIDTH;
        for (int64_t i = 0; i < k->steps; i += WIDTH) {
            vec square[WIDTH];
            for (int64_t c = 0; c < WIDTH; c++) {
                int64_t from = k->at->b + tr__axis_at(&b->column, column + j + (c < wide ? c : 0)) + k->row + 2 * i;
                square[c] = pairs_load(b->dtype, b->data, from, k->depth - 2 * i);
            }
            lanes_transpose(square);
            for (int64_t r = 0; r < WIDTH && i + r < k->steps; r++)
                vec_store(to + (i + r) * TILE_COLUMNS + j, square[r]);
        }
    }
}

static void pack_panel(const block *k, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &k->p->b;
    bool by_columns = plain(&b->row) && !k->at->b_sums;
    (plain(&b->column) ? pack_rows : by_columns ? pack_columns : pack_elements)(k, column, columns, to);
    activate_pairs(k->p->b_activation, to, k->steps * TILE_COLUMNS);
}

/* ---- a ------------------------------------------------------------------------------------------------------------- */

/* The first 8 lanes of each, as pairs: of which 6 are wanted. */
LANES_INLINE __m256i join_six(__m128i firsts, __m128i seconds)
{
    __m256i low = _mm256_castsi128_si256(_mm_unpacklo_epi16(firsts, seconds));
    return _mm256_inserti128_si256(low, _mm_unpackhi_epi16(firsts, seconds), 1);
}

/* Panels of a whose columns are contiguous, rows [i, i + n), n <= GROUP: to is [panels][steps][6]. */
static void pack_left_of(const block *k, tr_dtype dtype, int64_t i, int64_t n, float *to)
{
    const tr__axis axis = k->p->a.column; /* a copy: no store below can change it */
    const void *data = k->p->a.data;
    for (int64_t r = 0; r < k->depth; r += 2, to += TILE_ROWS) {
        bool both = r + 1 < k->depth;
        int64_t first = k->at->a + tr__axis_at(&axis, k->row + r) + i;
        int64_t second = both ? k->at->a + tr__axis_at(&axis, k->row + r + 1) + i : first;
        for (int64_t j = 0; j < GROUP; j += TILE_ROWS) {
            int64_t some = n - j < TILE_ROWS ? n - j : TILE_ROWS;
            __m128i x = _mm256_castsi256_si128(bf16_load(dtype, data, first + j, some));
            __m128i y = _mm256_castsi256_si128(bf16_load(dtype, data, second + j, both ? some : 0));
            _mm256_mask_storeu_epi32(to + j * k->steps, 0x3f, join_six(x, y));
        }
    }
}

/* Six bf16 by two loads: a masked one waits for the next cache line, too, where it would reach into that without a mask. */
LANES_INLINE __m128i bf16_load_six(const uint16_t *from)
{
    int32_t last;
    memcpy(&last, from + 4, sizeof last);
    return _mm_insert_epi32(_mm_loadl_epi64((const __m128i *)from), last, 2);
}

/* A whole group of bf16, depth a multiple of eight. */
static void pack_left_bf16(const block *k, int64_t i, float *to)
{
    const tr__axis axis = k->p->a.column;
    const uint16_t *data = (const uint16_t *)k->p->a.data + k->at->a + i;
    for (int64_t r = 0; r < k->depth; r += 8, to += 4 * TILE_ROWS) {
        const uint16_t *row[8];
        for (int j = 0; j < 8; j++) row[j] = data + tr__axis_at(&axis, k->row + r + j);
#pragma GCC unroll 8
        for (int64_t j = 0; j < GROUP; j += TILE_ROWS) {
            __m512 x[4];
#pragma GCC unroll 4
            for (int s = 0; s < 4; s++) {
                __m256i six = join_six(bf16_load_six(row[2 * s] + j), bf16_load_six(row[2 * s + 1] + j));
                x[s] = (__m512)_mm512_castsi256_si512(six);
            }
            lanes_join(x, to + j * k->steps);
        }
    }
}

static void pack_left(const block *k, int64_t i, int64_t n, float *to)
{
    float *sums = k->column == 0 && k->at->a_sums ? k->at->a_sums + i : NULL;
    bool whole = n == GROUP && k->p->a.dtype == TR_BF16;
    if (whole && k->depth % 8 == 0) pack_left_bf16(k, i, to);
    else pack_left_of(k, k->p->a.dtype, i, n, to);
    if (sums && whole) sum_left(k, TR_BF16, i, GROUP, sums);
    else if (sums) sum_left(k, k->p->a.dtype, i, n, sums);
    int64_t panels = (n + TILE_ROWS - 1) / TILE_ROWS;
    activate_pairs(k->p->a_activation, to, panels * TILE_ROWS * k->steps);
}

static void copy_left_row(const block *k, int64_t row_at, float *to)
{
    const tr__matrix *a = &k->p->a;
    for (int64_t c = 0; c < k->depth; c += 2 * WIDTH, to += WIDTH) {
        int64_t n = k->depth - c;
        if (plain(&a->column)) {
            vec_store(to, pairs_load(a->dtype, a->data, row_at + k->row + c, n));
            continue;
        }
        vec first = read_lanes(a, row_at, k->row + c, n), second = read_lanes(a, row_at, k->row + c + WIDTH, n - WIDTH);
        vec_store(to, (vec)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
    }
}

/* Copies rows [i, i + rows) of a: to is [6][BLOCK_DEPTH]. */
static void copy_left(const block *k, int64_t i, int64_t rows, float *to)
{
    for (int64_t r = 0; r < rows; r++) {
        copy_left_row(k, k->at->a + tr__axis_at(&k->p->a.row, i + r), to + r * BLOCK_DEPTH);
        activate_pairs(k->p->a_activation, to + r * BLOCK_DEPTH, k->steps);
    }
}

/* Whether tiles can read a's rows where they lie, and where those from row i on do. */
static bool left_in_place(const tr__matrix *a)
{
    return a->dtype == TR_BF16 && a->row.ndim == 1 && plain(&a->column) && a->row.stride[0] % 2 == 0 && a->column.n % 2 == 0;
}

static void read_left_in_place(const block *k, int64_t i, tile *t)
{
    const tr__matrix *a = &k->p->a;
    t->a_row = a->row.stride[0] / 2;
    t->a = (const float *)(const void *)((const uint16_t *)a->data + k->at->a + i * a->row.stride[0] + k->row);
}

/* Whether tiles can round their sums to what c is: bf16 rows, to which nothing but an f32 bias is added. */
static bool writes_low_in_place(const tr__product *p)
{
    if (p->c.dtype != TR_BF16 || p->c.row.ndim != 1 || !plain(&p->c.column)) return false;
    if (p->accumulate || p->slope || p->residual.data) return false;
    return !p->bias || (p->bias->dtype == TR_F32 && p->bias->stride[0] == 1);
}

#endif
