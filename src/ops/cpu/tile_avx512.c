#include "ops/cpu/tile_avx512.h"

#include <immintrin.h>

static inline __attribute__((always_inline)) void tile(const tr__tile *t, int rows, int vectors)
{
    __m512 sum[TR__TILE_ROWS][TR__TILE_VECTORS];
    const float *a = t->a, *b = t->b;
    const int64_t a_row = t->a_row, a_k = t->a_k, b_k = t->b_k, c_row = t->c_row;
    const bool add = t->add;
    float *c = t->c;
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sum[i][j] = _mm512_setzero_ps();
    }
    for (int64_t k = t->k; k > 0; k--, a += a_k, b += b_k) {
        __m512 right[TR__TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) right[j] = _mm512_loadu_ps(b + j * TR__LANES);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            __m512 left = _mm512_set1_ps(a[i * a_row]);
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sum[i][j] = _mm512_fmadd_ps(left, right[j], sum[i][j]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++, c += c_row) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            float *to = c + j * TR__LANES;
            _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), sum[i][j]) : sum[i][j]);
        }
    }
}

/* One function per size, so that every sum has its register. */
#define TILE(rows, vectors) \
    static void tile_##rows##_##vectors(const tr__tile *t) { tile(t, rows, vectors); }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2) TILE(rows, 3) TILE(rows, 4)
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)

#define ROW(rows) {tile_##rows##_1, tile_##rows##_2, tile_##rows##_3, tile_##rows##_4}
static void (*const tiles[TR__TILE_ROWS][TR__TILE_VECTORS])(const tr__tile *) = {
    ROW(1), ROW(2), ROW(3), ROW(4), ROW(5), ROW(6),
};

void tr__tile_avx512(const tr__tile *t, int rows, int vectors)
{
    tiles[rows - 1][vectors - 1](t);
}

void tr__tiles_avx512(const tr__tile *t, int64_t rows, int64_t vectors)
{
    /* Seven vectors are four and three: never a lone vector, whose few sums would wait for each other. */
    int64_t parts = (vectors + TR__TILE_VECTORS - 1) / TR__TILE_VECTORS;
    for (int64_t part = 0, from = 0; part < parts; part++) {
        int64_t wide = (vectors - from + parts - part - 1) / (parts - part);
        tr__tile one = *t;
        one.b += from * TR__LANES;
        one.c += from * TR__LANES;
        for (int64_t i = 0; i < rows; i += TR__TILE_ROWS) {
            int64_t high = rows - i < TR__TILE_ROWS ? rows - i : TR__TILE_ROWS;
            tr__tile_avx512(&one, (int)high, (int)wide);
            one.a += high * t->a_row;
            one.c += high * t->c_row;
        }
        from += wide;
    }
}
