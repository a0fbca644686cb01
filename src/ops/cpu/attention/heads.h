/*
 * One (batch, head) of q, k, v, … as operands of the microkernel, and what forward and backward share. Included by
 * files that are compiled once per kind of machine.
 */
#ifndef TR_OPS_CPU_ATTENTION_HEADS_H
#define TR_OPS_CPU_ATTENTION_HEADS_H

#include "base/memory.h"
#include "ops/attention.h"
#include "ops/cpu/simd/lanes.h"
#include "ops/cpu/simd/microkernel.h"

#include <float.h>
#include <math.h>

#ifdef TILE_VNNI
enum { HEADS_STEP = 2 }; /* numbers of a row on the left, or a column on the right, that the microkernel multiplies at once */
#else
enum { HEADS_STEP = 1 };
#endif

/* Floats of a row of dim, rounded up to vectors. */
static inline int64_t heads_wide(const tr__attention *a)
{
    return (a->dim + WIDTH - 1) / WIDTH * WIDTH;
}

/* Rows that the microkernel multiplies, row apart. */
typedef struct operand {
    const float *data;
    int64_t row;
} operand;

/* The dtype of q, k, v and the others: a constant for the bf16 dot product. */
static inline tr_dtype heads_dtype(const tr__attention *a)
{
    return HEADS_STEP == 2 ? TR_BF16 : a->dtype;
}

/* Steps of the microkernel through n numbers. */
static inline int64_t heads_steps(int64_t n)
{
    return (n + HEADS_STEP - 1) / HEADS_STEP;
}

/* Floats of what heads_columns makes of rows. */
static inline int64_t heads_columns_size(const tr__attention *a, int64_t rows)
{
    return (rows + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS * heads_steps(a->dim);
}

/* Score = product times this; 2^score, divided by the row's sum, is the weight. The sign of the scale is in the columns of
 * the keys, so that the largest product is the largest score. It is never 0: the -inf of a masked key must stay -inf. */
static inline float heads_scale(const tr__attention *a)
{
    return fmaxf((float)(fabs(a->scale) * M_LOG2E), FLT_MIN);
}

/* Rows whose elements lie apart. Out of line: lanes that are taken one by one would put the usual loops' vectors on the stack. */
static __attribute__((noinline)) vec heads_load_apart(const tr__attention *a, const tr__heads *x, int64_t row, int64_t d)
{
    vec lanes = {0};
    for (int64_t i = 0; i < WIDTH && d + i < a->dim; i++)
        lanes[i] = (float)tr__load(a->dtype, x->data, row + (d + i) * x->stride[3]);
    return lanes;
}

static __attribute__((noinline)) void heads_store_apart(const tr__attention *a, const tr__heads *x, int64_t row, const float *from,
    float scale)
{
    for (int64_t d = 0; d < a->dim; d++) tr__store(a->dtype, x->data, row + d * x->stride[3], from[d] * scale);
}

/* A vector of a row from element d on, zeros after dim. */
static inline vec heads_load(const tr__attention *a, const tr__heads *x, int64_t row, int64_t d)
{
    if (x->stride[3] != 1) return heads_load_apart(a, x, row, d);
    return lanes_load(heads_dtype(a), x->data, row + d, a->dim - d);
}

#ifdef TILE_VNNI
#include "ops/cpu/attention/heads_vnni.h"
#else
#include "ops/cpu/attention/heads_f32.h"
#endif

/* Prefetches rows [i, i + n) of x, as far as there are any, to the second-level cache. */
static void heads_prefetch(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, int64_t i, int64_t n)
{
    if (!x->data || x->stride[3] != 1) return;
    int64_t size = a->dtype == TR_F32 ? 4 : 2, bytes = a->dim * size;
    for (; n > 0 && i < rows; i++, n--) {
        const char *row = (const char *)x->data + (at + i * x->stride[2]) * size;
        for (int64_t j = 0; j < bytes; j += TR__CACHE_LINE) __builtin_prefetch(row + j, 0, 2);
    }
}

LANES_INLINE void store_scaled(tr_dtype dtype, void *to, int64_t at, int64_t n, const float *from, float scale)
{
    for (int64_t d = 0; d < n; d += WIDTH) lanes_store(dtype, to, at + d, n - d, vec_load(from + d) * scale);
}

/* Row i of x becomes from * scale. */
static inline void heads_store(const tr__attention *a, const tr__heads *x, int64_t at, int64_t i, const float *from, float scale)
{
    int64_t row = at + i * x->stride[2];
    if (x->stride[3] != 1) heads_store_apart(a, x, row, from, scale);
    else OF_DTYPE(heads_dtype(a), store_scaled, x->data, row, a->dim, from, scale);
}

/* x_i · y_i */
static float heads_dot(const tr__attention *a, const tr__heads *x, int64_t x_at, const tr__heads *y, int64_t y_at, int64_t i)
{
    vec sum = {0};
    for (int64_t d = 0; d < a->dim; d += WIDTH)
        sum = heads_load(a, x, x_at + i * x->stride[2], d) * heads_load(a, y, y_at + i * y->stride[2], d) + sum;
    return vec_sum(sum);
}

/* The scores of masked keys among [first, first + n) become -inf. */
static void heads_mask(const tr__attention *a, int64_t number, int64_t query, int64_t first, int64_t n, float *scores)
{
    if (!a->mask.data) return;
    const uint8_t *visible = a->mask.data;
    int64_t step = a->mask.stride[3];
    visible += tr__head_at(a, &a->mask, number) + query * a->mask.stride[2] + first * step;
    for (int64_t j = 0; j < n; j++)
        if (!visible[j * step]) scores[j] = -INFINITY;
}

/* How many of keys [from, from + keys) the causal mask leaves to the query. */
static inline int64_t heads_visible(const tr__attention *a, int64_t query, int64_t from, int64_t keys)
{
    int64_t n = tr__keys_seen(a, query) - from;
    return n < 0 ? 0 : n > keys ? keys : n;
}

static inline int64_t tile_rows_left(int64_t rows)
{
    return rows < TILE_ROWS ? rows : TILE_ROWS;
}

/* out[r][j] = left_(i+r) · right_(from+j) for r < n and the j < keys that are visible to any query of r's tile. left:
 * all rows; columns: what heads_columns made of all keys. */
static void heads_score(const tr__attention *a, const operand *left, const float *columns, int64_t i, int64_t n, int64_t from,
    int64_t keys, float *out, int64_t out_row)
{
    int64_t last = heads_visible(a, i + n - 1, from, keys);
    tile t = {.k = heads_steps(a->dim), .a_row = left->row, .a_k = 1, .b_k = TILE_COLUMNS, .c_row = out_row};
    for (int64_t chunk = 0; chunk < last; chunk += TILE_COLUMNS) {
        t.b = columns + (from + chunk) * t.k;
        for (int64_t at = 0; at < n; at += TILE_ROWS) {
            int64_t rows = tile_rows_left(n - at);
            int64_t vectors = (heads_visible(a, i + at + rows - 1, from, keys) - chunk + WIDTH - 1) / WIDTH;
            if (vectors <= 0) continue;
            t.a = left->data + (i + at) * left->row;
            t.c = out + at * out_row + chunk;
            tile_run(&t, rows, vectors);
        }
    }
}

/* The tiles along a row of c. Five vectors are split into three and two: the few sums of a lone vector would wait for each
 * other. */
static void heads_tiles(const tile *t, int64_t rows, int64_t vectors)
{
    int64_t parts = (vectors + TILE_VECTORS - 1) / TILE_VECTORS;
    for (int64_t part = 0, from = 0; part < parts; part++) {
        int64_t wide = (vectors - from + parts - part - 1) / (parts - part);
        tile one = *t;
        one.b += from * WIDTH;
        one.c += from * WIDTH;
        tile_run(&one, rows, wide);
        from += wide;
    }
}

/* Keys whose rows stay in the first-level cache while all tiles of a block of queries read them. */
enum { PIECE = 128 };

/* sums[r] += over the j < keys that are visible to any query of r's tile, weights[r][j] * right_(from+j), for r < n: queries i … i+n.
 * Where a query of a tile sees fewer keys than the tile's last, its weights must be zero. */
static void heads_add_rows(const tr__attention *a, const float *weights, int64_t weights_row, const operand *right, int64_t i,
    int64_t n, int64_t from, int64_t keys, float *sums)
{
    int64_t last = heads_visible(a, i + n - 1, from, keys), wide = heads_wide(a);
    tile t = {.a_row = weights_row, .a_k = 1, .b_k = right->row, .c_row = wide, .add = true};
    for (int64_t piece = 0; piece < last; piece += PIECE) {
        t.b = right->data + (from + piece) / HEADS_STEP * right->row;
        for (int64_t at = 0; at < n; at += TILE_ROWS) {
            int64_t rows = tile_rows_left(n - at);
            int64_t depth = heads_visible(a, i + at + rows - 1, from, keys) - piece;
            if (depth <= 0) continue;
            t.k = heads_steps(depth < PIECE ? depth : PIECE);
            t.a = weights + at * weights_row + piece / HEADS_STEP;
            t.c = sums + at * wide;
            heads_tiles(&t, rows, wide / WIDTH);
        }
    }
}

/* Takes n floats, rounded up to a cache line, from scratch. */
static inline float *take(float **scratch, int64_t n)
{
    float *taken = *scratch;
    *scratch += tr__round_up((size_t)n, TR__CACHE_LINE / sizeof(float));
    return taken;
}

#endif
