/* One (batch, head) of q, k, v, … as the operands of tiles, and what forward and backward do to a row of scores. */
#ifndef TR_OPS_CPU_HEADS_AVX512_H
#define TR_OPS_CPU_HEADS_AVX512_H

#include "ops/attention.h"
#include "ops/cpu/tile_avx512.h"

/* Floats of a row of dim, rounded up to vectors. */
static inline int64_t tr__wide(const tr__attention *a) { return (a->dim + TR__LANES - 1) / TR__LANES * TR__LANES; }

/* Rows of f32, row apart, of whole vectors. */
typedef struct tr__operand {
    const float *data;
    int64_t row;
} tr__operand;

/* x: [rows, dim] as rows of whole vectors: where it lies if it can be read so, else copied to scratch, which has rows *
 * tr__wide(a) floats. */
tr__operand tr__head_rows(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, float *scratch);
/* x * scale as columns: out is [chunks of 64 rows][dim][64], zeros after the last row. */
void tr__head_columns(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, float scale, float *out);
static inline int64_t tr__columns_floats(const tr__attention *a, int64_t rows)
{
    return (rows + TR__TILE_COLUMNS - 1) / TR__TILE_COLUMNS * TR__TILE_COLUMNS * a->dim;
}

/* Asks for rows [i, i + n) of x, of which no more than there are, to be in the second cache soon. */
void tr__fetch_rows(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, int64_t i, int64_t n);

/* Row i of x becomes from * scale. */
void tr__store_row(const tr__attention *a, const tr__heads *x, int64_t at, int64_t i, const float *from, float scale);

/* Where the mask forbids query to look at keys [first, first + n), the score becomes -inf. */
void tr__hide(const tr__attention *a, int64_t number, int64_t query, int64_t first, int64_t n, float *scores);

/* out[r][j] = left_(i+r) · right_(from+j) for r < n and the j < keys that the queries of r's tile may see at most. left:
 * all rows; columns: what tr__head_columns made of all keys. */
void tr__score(const tr__attention *a, const tr__operand *left, const float *columns, int64_t i, int64_t n, int64_t from,
    int64_t keys, float *out, int64_t out_row);

/* sums[r] += over the j < keys that r's tile may see at most, weights[r][j] * right_(from+j), for r < n: queries i … i+n.
 * Where one query of a tile sees fewer keys than the last, its weights must be zero. */
void tr__add_rows(const tr__attention *a, const float *weights, int64_t weights_row, const tr__operand *right, int64_t i,
    int64_t n, int64_t from, int64_t keys, float *sums);
/* x_i · y_i */
float tr__dot_row(const tr__attention *a, const tr__heads *x, int64_t x_at, const tr__heads *y, int64_t y_at, int64_t i);

/* How many of keys [from, from + keys) the query sees for being causal. */
static inline int64_t tr__seen(const tr__attention *a, int64_t query, int64_t from, int64_t keys)
{
    int64_t n = tr__keys_seen(a, query) - from;
    return n < 0 ? 0 : n > keys ? keys : n;
}

#endif
