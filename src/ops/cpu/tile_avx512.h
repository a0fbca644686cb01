/*
 * The innermost product: a tile of c that stays in registers while k runs.
 *
 *   c[i][0 … 16*vectors) (+)= sum over k of a[i*a_row + k*a_k] * b[k*b_k + 0 … 16*vectors)     i < rows
 *
 * Six rows of four vectors are 24 sums: enough to hide the latency of the two FMA units, few enough for 32 registers.
 */
#ifndef TR_OPS_CPU_TILE_AVX512_H
#define TR_OPS_CPU_TILE_AVX512_H

#include <stdbool.h>
#include <stdint.h>

enum { TR__TILE_ROWS = 6, TR__TILE_VECTORS = 4, TR__LANES = 16, TR__TILE_COLUMNS = TR__TILE_VECTORS * TR__LANES };

typedef struct tr__tile {
    int64_t k;
    const float *a, *b;
    int64_t a_row, a_k, b_k;
    float *c;
    int64_t c_row;
    bool add;                 /* to what c holds */
    const float *bias;        /* [16*vectors], added to each row; or NULL */
    const float *residual;    /* rows residual_row apart, added; or NULL */
    int64_t residual_row;
} tr__tile;

/* 1 to TR__TILE_ROWS rows, 1 to TR__TILE_VECTORS vectors, which are read and written in full. */
void tr__tile_avx512(const tr__tile *t, int rows, int vectors);

/* The same for any numbers of rows and vectors, tile by tile: columns outside, so that b is read once from the outer cache. */
void tr__tiles_avx512(const tr__tile *t, int64_t rows, int64_t vectors);

#endif
