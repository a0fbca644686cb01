/*
 * One (batch, head) of q, k, v, … as the VNNI pairs that the microkernel multiplies: neighbours in a row on the left, in a
 * column on the right. Included by heads.h; its counterpart for f32 is heads_f32.h.
 */
#include "ops/cpu/simd/vnni.h"

/* A vector of pairs of a row from element d on, zeros after dim. */
static inline vec heads_load_vnni(const tr__attention *a, const tr__heads *x, int64_t row, int64_t d)
{
    if (x->stride[3] == 1) return vnni_load(TR_BF16, x->data, row + d, a->dim - d);
    uint16_t numbers[2 * WIDTH] = {0};
    for (int64_t i = 0; i < 2 * WIDTH && d + i < a->dim; i++)
        numbers[i] = ((const uint16_t *)x->data)[row + (d + i) * x->stride[3]];
    return vnni_load(TR_BF16, numbers, 0, 2 * WIDTH);
}

/* x: [rows, dim] as rows on the left of a product: where it lies if it can be read so, else copied to scratch, which has
 * rows * heads_wide(a) floats. For AMX, whose tiles are loaded once for every 32 keys, it is copied to whole cache lines. */
static operand heads_left(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, float *scratch)
{
    int64_t wide = heads_wide(a);
    if (TILE_ROWS < 32 && x->stride[3] == 1 && x->stride[2] % 2 == 0 && a->dim % 2 == 0)
        return (operand){(const float *)(const void *)((const uint16_t *)x->data + at), x->stride[2] / 2};
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < a->dim; d += 2 * WIDTH)
            vec_store(scratch + i * wide + d / 2, heads_load_vnni(a, x, at + i * x->stride[2], d));
    return (operand){scratch, wide};
}

/* The same on the right, copied to scratch: [rows/2][wide], zeros after the last row. */
static operand heads_right(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, const operand *left,
    float *scratch)
{
    (void)left;
    int64_t wide = heads_wide(a);
    for (int64_t i = 0; i < rows; i += 2)
        for (int64_t d = 0; d < wide; d += WIDTH) {
            vec first = heads_load(a, x, at + i * x->stride[2], d);
            vec second = i + 1 < rows ? heads_load(a, x, at + (i + 1) * x->stride[2], d) : (vec){0};
            vec_store(scratch + i / 2 * wide + d, vnni_of_bf16(first, second));
        }
    return (operand){scratch, wide};
}

/* x as columns, times the sign: out is [chunks of TILE_COLUMNS rows][dim/2][TILE_COLUMNS], zeros after the last row. */
static void heads_columns(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, bool negative, float *out)
{
    int64_t padded = (rows + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS, steps = heads_steps(a->dim);
    __m512i sign = _mm512_set1_epi32(negative ? (int)0x80008000 : 0);
    for (int64_t row = 0; row < padded; row += WIDTH) {
        float *to = out + row / TILE_COLUMNS * TILE_COLUMNS * steps + row % TILE_COLUMNS;
        for (int64_t d = 0; d < steps; d += WIDTH) {
            vec square[WIDTH];
            for (int64_t i = 0; i < WIDTH; i++)
                square[i] = row + i < rows ? heads_load_vnni(a, x, at + (row + i) * x->stride[2], 2 * d) : (vec){0};
            lanes_transpose(square);
            for (int64_t i = 0; i < WIDTH && d + i < steps; i++)
                vec_store(to + (d + i) * TILE_COLUMNS, (vec)_mm512_xor_si512((__m512i)square[i], sign));
        }
    }
}

/* Stores a vector of weights, rounded, from column j of a row on. They overwrite the scores, which have been read. */
static inline void heads_put_weights(float *row, int64_t j, vec weights)
{
    _mm256_storeu_si256((__m256i *)((uint16_t *)row + j), (__m256i)_mm512_cvtneps_pbh((__m512)weights));
}

/* Pairs of neighbours in columns j … of n rows of weights: of rows i and i + 1; a missing row counts as zeros. */
static inline vec heads_weight_pairs(const float *weights, int64_t row, int64_t n, int64_t i, int64_t j)
{
    const uint16_t *first = (const uint16_t *)(weights + i * row) + j, *second = (const uint16_t *)(weights + (i + 1) * row) + j;
    __m256i firsts = i < n ? _mm256_loadu_si256((const __m256i *)first) : _mm256_setzero_si256();
    __m256i seconds = i + 1 < n ? _mm256_loadu_si256((const __m256i *)second) : _mm256_setzero_si256();
    return vnni_join(firsts, seconds);
}

/* n rows of weights, row apart, as columns on the left, of the first columns: out is [n/2][row], or for AMX [columns][column]. */
static const float *heads_transposed(const float *weights, int64_t row, int64_t n, int64_t columns, float *out, int64_t column)
{
#ifdef TILE_AMX
    for (int64_t i = 0; i < n; i += 2 * WIDTH)
        for (int64_t j = 0; j < columns; j += WIDTH) {
            vec square[WIDTH];
            for (int64_t s = 0; s < WIDTH; s++) square[s] = heads_weight_pairs(weights, row, n, i + 2 * s, j);
            lanes_transpose(square);
            for (int64_t c = 0; c < WIDTH; c++) vec_store(out + (j + c) * column + i / 2, square[c]);
        }
#else
    (void)column;
    for (int64_t i = 0; i < n; i += 2)
        for (int64_t j = 0; j < columns; j += WIDTH)
            vec_store(out + i / 2 * row + j, heads_weight_pairs(weights, row, n, i, j));
#endif
    return out;
}
