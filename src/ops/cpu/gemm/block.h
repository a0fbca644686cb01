/*
 * The block that the blocked gemm (blocked.h) works on, and its matrices read and written one vector at a time.
 */
#ifndef TR_OPS_CPU_GEMM_BLOCK_H
#define TR_OPS_CPU_GEMM_BLOCK_H

#include "base/memory.h"
#include "ops/cpu/gemm/gemm.h"
#include "ops/cpu/simd/activations.h"
#include "ops/cpu/simd/lanes.h"
#include "ops/cpu/simd/microkernel.h"

#ifdef TILE_AMX
/* A panel of a, 32 rows of 512 numbers, takes 32 of the 48 KB of the first-level cache. Four products take 64 cycles, in which four
 * tiles of 1 KB are loaded: those of a from there, in 16 cycles, and those of b from the second-level cache, which gives 48 bytes a
 * cycle. A block of b takes half of its 2 MB. The sums, in f32, are loaded and stored once in 1,024 cycles of products. */
enum {
    BLOCK_DEPTH = 256,
    BLOCK_WIDTH = 1024,
    SHALLOW_BLOCK = BLOCK_DEPTH * BLOCK_WIDTH,
    GROUP = TILE_ROWS, /* a cache line of bf16 */
    NARROW = TILE_COLUMNS,
    BY_TILES = 1, /* what follows the sums is done tile by tile, while they are in the first-level cache */
    PACKED_ROW = BLOCK_DEPTH, PACKED_STEP = 1, /* from a row, or step, of a packed panel of a to the next */
};
#else
enum {
    BLOCK_DEPTH = 384,         /* steps of a block of b, at most */
    BLOCK_WIDTH = 384,         /* columns of a block, at most; */
    SHALLOW_BLOCK = 64 * 1024, /* a shallower one is wider, up to so many elements */
    GROUP = 8 * TILE_ROWS,     /* rows of a that are packed together: three cache lines of f32 */
    NARROW = 512,              /* a block of c with at most so many columns is a whole row of c: sums fit the stack */
    BY_TILES = 0,
    PACKED_ROW = 1, PACKED_STEP = TILE_ROWS,
};
#endif
enum {
    IN_PLACE_ROWS = GROUP / 2,   /* with fewer rows, packing b does not pay */
    DEPTH_UNIT = 16,             /* steps: panels begin at cache lines */
    TRANSPOSED_COLUMNS = 3072,   /* of c, computed as rows at a time: their sums stay in the caches until they are transposed */
    STREAMED = 4 << 20,          /* bytes of c from which c is written past the caches */
};

/* How the microkernel gets a panel of a. */
typedef enum a_form {
    A_IN_PLACE, /* read where it lies */
    A_PACKED,   /* a's columns are contiguous: [8 panels][steps][6]; for AMX, [32][BLOCK_DEPTH] */
    A_COPIED,   /* row by row: [TILE_ROWS][BLOCK_DEPTH] */
} a_form;

typedef struct block {
    const tr__gemm_task *task;
    const tr__gemm *p;         /* what is computed: what was requested, or with transposed set c^T = b^T a^T */
    const tr__gemm *requested;
    bool transposed;
    int64_t from;              /* transposed: the first column of the requested c that is computed */
    tr__matrix bias;           /* data NULL: no bias */
    a_form a_form;
    bool b_in_place, c_in_place;
    bool stream;               /* c is written past the caches: it is large and written once */
    bool bf16_in_place;        /* c is bf16, and the microkernel rounds to it */
    float *b;                  /* packed: [panels][steps][TILE_COLUMNS] */
    float *sums;               /* where c is not written in place: [m][width]; NULL: one panel of a at a time, on the stack */
    int64_t column, columns;   /* of b and c, in this block */
    int64_t row, depth;        /* of b */
    int64_t steps;             /* of the microkernel through the depth */
    int64_t width;             /* columns of a block at most, in whole panels */
    bool first, last;          /* of the blocks along the depth */
} block;

static bool f32_rows(const tr__matrix *m)
{
    return m->dtype == TR_F32 && m->row.ndim == 1 && tr__axis_contiguous(&m->column);
}

/* Up to a vector of a row from column on. */
static inline vec read_lanes(const tr__matrix *m, int64_t row_at, int64_t column, int64_t n)
{
    if (tr__axis_contiguous(&m->column)) return lanes_load(m->dtype, m->data, row_at + column, n);
    float lanes[WIDTH] = {0};
    for (int64_t i = 0; i < n && i < WIDTH; i++)
        lanes[i] = (float)tr__load(m->dtype, m->data, row_at + tr__axis_at(&m->column, column + i));
    return vec_load(lanes);
}

static inline void write_lanes(const tr__matrix *m, int64_t row_at, int64_t column, int64_t n, vec x)
{
    if (tr__axis_contiguous(&m->column)) {
        lanes_store(m->dtype, m->data, row_at + column, n, x);
        return;
    }
    float lanes[WIDTH];
    vec_store(lanes, x);
    for (int64_t i = 0; i < n && i < WIDTH; i++)
        tr__store(m->dtype, m->data, row_at + tr__axis_at(&m->column, column + i), lanes[i]);
}

/* sums[0 … n) += sum */
static inline void add_sums(float *sums, const vec *sum, int64_t n)
{
    for (int64_t j = 0; j < n; j += WIDTH)
        lanes_store(TR_F32, sums, j, n - j, lanes_load(TR_F32, sums, j, n - j) + sum[j / WIDTH]);
}

#endif
