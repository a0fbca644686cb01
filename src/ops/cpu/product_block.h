/*
 * Of the matrix products of product_simd.h: the block of them that is computed at a time, and how its numbers are read and
 * written one vector after the other.
 */
#ifndef TR_OPS_CPU_PRODUCT_BLOCK_H
#define TR_OPS_CPU_PRODUCT_BLOCK_H

#include "base/memory.h"
#include "ops/cpu/activations.h"
#include "ops/cpu/lanes.h"
#include "ops/cpu/product.h"
#include "ops/cpu/tile.h"

enum {
    BLOCK_DEPTH = 384,           /* steps of a block of b, at most */
    BLOCK_WIDTH = 384,           /* at most, */
    SHALLOW_BLOCK = 64 * 1024,   /* or of as many elements where it is less deep */
    GROUP = 8 * TILE_ROWS,       /* rows of a that are packed together: three cache lines of f32 */
    IN_PLACE_ROWS = GROUP / 2,   /* fewer are not worth packing b for */
    DEPTH_UNIT = 16,             /* steps: panels begin at cache lines */
    TURNED_COLUMNS = 3072,       /* of c, computed as rows at a time: their sums stay in the caches until they are turned */
    STREAMED = 4 << 20,          /* bytes of c that are not worth a place in the caches */
    NARROW = 512,                /* columns of a block of c that need not wait for other blocks to become a row of c */
};

/* How a panel of a is read. */
typedef enum left_form {
    IN_PLACE, /* rows of what tiles multiply, evenly apart */
    COLUMNS,  /* its columns are contiguous: packed, [8 panels][steps][6] */
    ROWS,     /* copied, [6][BLOCK_DEPTH] */
} left_form;

typedef struct block {
    const tr__product_at *at;
    const tr__product *p;    /* what is computed: what was asked for, or with turned set c^T = b^T a^T */
    const tr__product *asked;
    bool turned;
    int64_t from;            /* turned: which columns of the asked c are computed, from this one on */
    tr__matrix bias;         /* data NULL: none */
    left_form left;
    bool right_in_place, c_in_place;
    bool stream;             /* c, written once, would drive all else out of the caches: past them */
    bool low_in_place;       /* c is bf16, which tiles round to */
    float *right;            /* packed: [panels][steps][64] */
    float *c;                /* sums that are not written in place: [m][width]; NULL: of a panel of a at a time, as there
                              * are no other blocks to wait for */
    int64_t column, columns; /* of b and c, in this block */
    int64_t row, depth;      /* of b */
    int64_t steps;           /* of tiles (tile.h) through the depth */
    int64_t width;           /* columns of a block at most, in whole panels */
    bool first, last;        /* of c's sums */
} block;

static bool plain(const tr__axis *axis)
{
    return axis->ndim == 1 && (axis->stride[0] == 1 || axis->n == 1);
}

static bool f32_rows(const tr__matrix *m)
{
    return m->dtype == TR_F32 && m->row.ndim == 1 && plain(&m->column);
}

/* Up to a vector of a row from column on. */
static inline vec read_lanes(const tr__matrix *m, int64_t row_at, int64_t column, int64_t n)
{
    if (plain(&m->column)) return lanes_load(m->dtype, m->data, row_at + column, n);
    float lanes[WIDTH] = {0};
    for (int64_t i = 0; i < n && i < WIDTH; i++)
        lanes[i] = (float)tr__load(m->dtype, m->data, row_at + tr__axis_at(&m->column, column + i));
    return vec_load(lanes);
}

static inline void write_lanes(const tr__matrix *m, int64_t row_at, int64_t column, int64_t n, vec x)
{
    if (plain(&m->column)) {
        lanes_store(m->dtype, m->data, row_at + column, n, x);
        return;
    }
    float lanes[WIDTH];
    vec_store(lanes, x);
    for (int64_t i = 0; i < n && i < WIDTH; i++)
        tr__store(m->dtype, m->data, row_at + tr__axis_at(&m->column, column + i), lanes[i]);
}

static inline void fetch_line(const void *at)
{
    __builtin_prefetch(at, 0, 2); /* into the second cache */
}

/* sums[0 … n) += sum */
static inline void add_sums(float *sums, const vec *sum, int64_t n)
{
    for (int64_t j = 0; j < n; j += WIDTH)
        lanes_store(TR_F32, sums, j, n - j, lanes_load(TR_F32, sums, j, n - j) + sum[j / WIDTH]);
}

/* sums[0 … n) += the sums of rows [i, i + n) of a in this block, whose columns are contiguous: n <= GROUP. dtype, and n of a
 * whole group, are constants here. */
LANES_INLINE void sum_left(const block *k, tr_dtype dtype, int64_t i, int64_t n, float *sums)
{
    const tr__axis axis = k->p->a.column;
    vec sum[GROUP / WIDTH] = {{0}};
    for (int64_t r = 0; r < k->depth; r++) {
        int64_t from = k->at->a + tr__axis_at(&axis, k->row + r) + i;
#pragma GCC unroll 12
        for (int64_t j = 0; j < GROUP; j += WIDTH) sum[j / WIDTH] += lanes_load(dtype, k->p->a.data, from + j, n - j);
    }
    add_sums(sums, sum, n);
}

#endif
