/*
 * The microkernel of gemm, attention and convolutions: a tile of c stays in registers while k runs.
 *
 *   c[i][0 … WIDTH*vectors) (+)= sum over k of a[i*a_row + k*a_k] * b[k*b_k + 0 … WIDTH*vectors)     i < rows
 *
 * repeated `repeats` more times with the b that follows and an a that begins a_repeat farther on each time.
 *
 * With TILE_VNNI defined (which needs AVX-512's instructions for bf16), a VNNI pair of bf16 stands in the place of each float
 * of a and b, the first number in the lower half, and the product is the dot product of two pairs. Numbers below 2^-126 count
 * as zero then.
 *
 * Six rows of four vectors are 24 sums: enough to hide the latency of two FMA units, few enough for 32 registers; with 16
 * registers it is two vectors. With TILE_AMX defined as well, a tile is one of AMX (microkernel_amx.h). Included by files that are
 * compiled once per kind of machine.
 */
#ifndef TR_OPS_CPU_SIMD_MICROKERNEL_H
#define TR_OPS_CPU_SIMD_MICROKERNEL_H

#include "base/memory.h"
#include "ops/cpu/simd/vec.h"

#include <stdbool.h>
#include <stddef.h>

#if defined(TILE_AMX)
enum { TILE_ROWS = 32, TILE_VECTORS = 2 };
#elif defined(__AVX512F__) || defined(__aarch64__)
enum { TILE_ROWS = 6, TILE_VECTORS = 4 };
#else
enum { TILE_ROWS = 6, TILE_VECTORS = 2 };
#endif
enum { TILE_COLUMNS = TILE_VECTORS * WIDTH };

/* The size of a part of n: a multiple of unit, about the same for all parts, of which there are as few as `most` allows. */
static inline int64_t part_size(int64_t n, int64_t most, int64_t unit)
{
    int64_t parts = (n + most - 1) / most, size = parts ? (n + parts - 1) / parts : 0;
    return (int64_t)tr__round_up((size_t)size, (size_t)unit);
}

typedef struct tile {
    int64_t k;
    const float *a, *b;
    int64_t a_row, a_k, b_k;
    int64_t repeats, a_repeat;
    float *c;
    int64_t c_row;
    bool add;              /* to what c holds */
    bool stream;           /* c is written past the caches: vec_stream() */
    uint16_t *c_bf16;      /* with TILE_VNNI: rows of bf16, c_bf16_row apart, that are written instead of c; or NULL */
    int64_t c_bf16_row;
    const float *bias;     /* [WIDTH*vectors], added to each row; or NULL */
    const float *residual; /* rows residual_row apart, added; or NULL */
    int64_t residual_row;
} tile;

#ifdef TILE_AMX
#include "ops/cpu/simd/microkernel_amx.h"
#else

#ifdef TILE_VNNI
/* A pair is moved as bits: float arithmetic could change it. */
static inline vec tile_broadcast(const float *at)
{
    int32_t pair;
    memcpy(&pair, at, sizeof pair);
    return (vec)_mm512_set1_epi32(pair);
}

static inline vec tile_multiply(vec left, vec right, vec sum)
{
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
}
#else
static inline vec tile_broadcast(const float *at)
{
    return vec_all(*at);
}

static inline vec tile_multiply(vec left, vec right, vec sum)
{
    return left * right + sum;
}
#endif

/* The sums are named variables, not an array: every compiler then keeps each in its register. */
#define TILE_EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define TILE_EACH_VECTOR(DO, i) DO(i, 0) DO(i, 1) DO(i, 2) DO(i, 3)

#define TILE_ZERO(i, j) vec sum##i##j = {0};
#define TILE_MULTIPLY(i, j) \
    if (vectors > j) sum##i##j = tile_multiply(left, right##j, sum##i##j);
#define TILE_ADD(i, j) \
    if (vectors > j) sum##i##j += vec_load(from + i * row + j * WIDTH);
#define TILE_STORE(i, j) \
    if (vectors > j) vec_store(c + i * c_row + j * WIDTH, sum##i##j);
#define TILE_STREAM(i, j) \
    if (vectors > j) vec_stream(c + i * c_row + j * WIDTH, sum##i##j);

#ifdef TILE_VNNI
#define TILE_STORE_BF16(i, j)                                                         \
    if (vectors > j)                                                                  \
        _mm256_storeu_si256((__m256i *)(t->c_bf16 + i * t->c_bf16_row + j * WIDTH),   \
            (__m256i)_mm512_cvtneps_pbh((__m512)sum##i##j));
#define TILE_STORE_BF16_ROW(i) \
    if (rows > i) { TILE_EACH_VECTOR(TILE_STORE_BF16, i) }
#define TILE_STORE_BF16_IF_ASKED           \
    if (t->c_bf16) {                       \
        TILE_EACH_ROW(TILE_STORE_BF16_ROW) \
        return;                            \
    }
#else
#define TILE_STORE_BF16_IF_ASKED
#endif

#define TILE_ZERO_ROW(i) TILE_EACH_VECTOR(TILE_ZERO, i)
#define TILE_MULTIPLY_ROW(i)                            \
    if (rows > i) {                                     \
        const vec left = tile_broadcast(a + i * a_row); \
        TILE_EACH_VECTOR(TILE_MULTIPLY, i)              \
    }
#define TILE_ADD_ROW(i) \
    if (rows > i) { TILE_EACH_VECTOR(TILE_ADD, i) }
#define TILE_STORE_ROW(i) \
    if (rows > i) { TILE_EACH_VECTOR(TILE_STORE, i) }
#define TILE_STREAM_ROW(i) \
    if (rows > i) { TILE_EACH_VECTOR(TILE_STREAM, i) }
#define TILE_ADD_MATRIX(matrix, matrix_row)  \
    if (matrix) {                            \
        const float *from = matrix;          \
        const int64_t row = matrix_row;      \
        TILE_EACH_ROW(TILE_ADD_ROW)          \
    }

static inline __attribute__((always_inline)) void tile_run_of(const tile *t, const int rows, const int vectors)
{
    const float *a = t->a, *b = t->b;
    const int64_t a_row = t->a_row, a_k = t->a_k, b_k = t->b_k;
    TILE_EACH_ROW(TILE_ZERO_ROW)
    for (int64_t turn = 0;; turn++) {
        for (int64_t k = t->k; k > 0; k--, a += a_k, b += b_k) {
            const vec right0 = vec_load(b);
            const vec right1 = vectors > 1 ? vec_load(b + WIDTH) : right0;
            const vec right2 = vectors > 2 ? vec_load(b + 2 * WIDTH) : right0;
            const vec right3 = vectors > 3 ? vec_load(b + 3 * WIDTH) : right0;
            TILE_EACH_ROW(TILE_MULTIPLY_ROW)
        }
        if (turn >= t->repeats) break;
        a += t->a_repeat - t->k * a_k;
    }
    float *c = t->c;
    const int64_t c_row = t->c_row;
    TILE_ADD_MATRIX(t->add ? c : NULL, c_row)
    TILE_ADD_MATRIX(t->bias, 0)
    TILE_ADD_MATRIX(t->residual, t->residual_row)
    TILE_STORE_BF16_IF_ASKED
    if (t->stream) {
        TILE_EACH_ROW(TILE_STREAM_ROW)
        return;
    }
    TILE_EACH_ROW(TILE_STORE_ROW)
}

/* One function per size. */
#define TILE_FUNCTION(rows, vectors) \
    static void tile_##rows##_##vectors(const tile *t) { tile_run_of(t, rows, vectors); }
#define TILE_FUNCTIONS(vectors)                                                      \
    TILE_FUNCTION(1, vectors) TILE_FUNCTION(2, vectors) TILE_FUNCTION(3, vectors)    \
    TILE_FUNCTION(4, vectors) TILE_FUNCTION(5, vectors) TILE_FUNCTION(6, vectors)
#define TILE_TABLE(vectors) \
    {tile_1_##vectors, tile_2_##vectors, tile_3_##vectors, tile_4_##vectors, tile_5_##vectors, tile_6_##vectors}

TILE_FUNCTIONS(1)
TILE_FUNCTIONS(2)
#if defined(__AVX512F__) || defined(__aarch64__)
TILE_FUNCTIONS(3)
TILE_FUNCTIONS(4)
static void (*const tile_functions[TILE_VECTORS][TILE_ROWS])(const tile *) = {
    TILE_TABLE(1), TILE_TABLE(2), TILE_TABLE(3), TILE_TABLE(4),
};
#else
static void (*const tile_functions[TILE_VECTORS][TILE_ROWS])(const tile *) = {TILE_TABLE(1), TILE_TABLE(2)};
#endif

/* Up to TILE_ROWS rows and TILE_VECTORS vectors, which are read and written in full; more vectors are taken as that many. */
static inline void tile_run(const tile *t, int64_t rows, int64_t vectors)
{
    tile_functions[(vectors < TILE_VECTORS ? vectors : TILE_VECTORS) - 1][rows - 1](t);
}

static inline void tile_begin(void) {}
static inline void tile_end(void) {}

#endif
#endif
