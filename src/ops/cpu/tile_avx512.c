#include "ops/cpu/tile_avx512.h"

#include <immintrin.h>

/* The sums are named variables, not an array: every compiler then keeps each in its register. */
#define ROWS(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define VECTORS(DO, i) DO(i, 0) DO(i, 1) DO(i, 2) DO(i, 3)

#define ZERO(i, j) __m512 sum##i##j = _mm512_setzero_ps();
#define MULTIPLY(i, j) \
    if (vectors > j) sum##i##j = _mm512_fmadd_ps(left, right##j, sum##i##j);
#define ADD(i, j) \
    if (vectors > j) sum##i##j = _mm512_add_ps(sum##i##j, _mm512_loadu_ps(from + i * row + j * TR__LANES));
#define STORE(i, j) \
    if (vectors > j) _mm512_storeu_ps(c + i * c_row + j * TR__LANES, sum##i##j);

#define ZERO_ROW(i) VECTORS(ZERO, i)
#define MULTIPLY_ROW(i)                                  \
    if (rows > i) {                                      \
        const __m512 left = _mm512_set1_ps(a[i * a_row]); \
        VECTORS(MULTIPLY, i)                             \
    }
#define ADD_ROW(i) \
    if (rows > i) { VECTORS(ADD, i) }
#define STORE_ROW(i) \
    if (rows > i) { VECTORS(STORE, i) }

#define ADD_MATRIX(matrix, matrix_row)                    \
    if (matrix) {                                         \
        const float *from = matrix;                       \
        const int64_t row = matrix_row;                   \
        ROWS(ADD_ROW)                                     \
    }

static inline __attribute__((always_inline)) void tile(const tr__tile *t, const int rows, const int vectors)
{
    const float *a = t->a, *b = t->b;
    const int64_t a_row = t->a_row, a_k = t->a_k, b_k = t->b_k;
    ROWS(ZERO_ROW)
    for (int64_t k = t->k; k > 0; k--, a += a_k, b += b_k) {
        const __m512 right0 = _mm512_loadu_ps(b);
        const __m512 right1 = vectors > 1 ? _mm512_loadu_ps(b + TR__LANES) : right0;
        const __m512 right2 = vectors > 2 ? _mm512_loadu_ps(b + 2 * TR__LANES) : right0;
        const __m512 right3 = vectors > 3 ? _mm512_loadu_ps(b + 3 * TR__LANES) : right0;
        ROWS(MULTIPLY_ROW)
    }
    float *c = t->c;
    const int64_t c_row = t->c_row;
    ADD_MATRIX(t->add ? c : NULL, c_row)
    ADD_MATRIX(t->bias, 0)
    ADD_MATRIX(t->residual, t->residual_row)
    ROWS(STORE_ROW)
}

/* One function per size. */
#define TILE(rows, vectors) \
    static void tile_##rows##_##vectors(const tr__tile *t) { tile(t, rows, vectors); }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2) TILE(rows, 3) TILE(rows, 4)
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)

#define SIZES(rows) {tile_##rows##_1, tile_##rows##_2, tile_##rows##_3, tile_##rows##_4}
static void (*const tiles[TR__TILE_ROWS][TR__TILE_VECTORS])(const tr__tile *) = {
    SIZES(1), SIZES(2), SIZES(3), SIZES(4), SIZES(5), SIZES(6),
};

void tr__tile_avx512(const tr__tile *t, int rows, int vectors)
{
    tiles[rows - 1][vectors - 1](t);
}

void tr__tiles_avx512(const tr__tile *t, int64_t rows, int64_t vectors)
{
    /* Five vectors are three and two: a lone vector's few sums would wait for each other. */
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
