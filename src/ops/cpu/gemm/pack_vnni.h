/*
 * Packing (pack.h) for the bf16 dot product: a step is two rows of b, or two columns of a, as VNNI pairs (microkernel.h). f32
 * and f16 are rounded to bf16 on the way. Where b has an odd number of rows the last pair's second number is zero, on both
 * sides.
 */
#ifndef TR_OPS_CPU_GEMM_PACK_VNNI_H
#define TR_OPS_CPU_GEMM_PACK_VNNI_H

#include "ops/cpu/gemm/block.h"
#include "ops/cpu/simd/vnni.h"

enum { ROWS_IN_STEP = 2 };
#define PACKED_DTYPE TR_BF16
typedef uint16_t packed_number;

static void activate_packed(tr_activation_kind f, float *x, int64_t pairs)
{
    float numbers[8][2 * WIDTH];
    if (f == TR_NO_ACTIVATION) return;
    for (int64_t i = 0; i < pairs; i += 8 * WIDTH) {
        int64_t n = pairs - i < 8 * WIDTH ? (pairs - i + WIDTH - 1) / WIDTH : 8;
        for (int64_t j = 0; j < n; j++) {
            vec both = vec_load(x + i + j * WIDTH);
            vec_store(numbers[j], vnni_firsts(both));
            vec_store(numbers[j] + WIDTH, vnni_seconds(both));
        }
        activate(f, numbers[0], n * 2 * WIDTH);
        for (int64_t j = 0; j < n; j++)
            vec_store(x + i + j * WIDTH, vnni_join(bf16_load(TR_F32, numbers[j], 0, WIDTH),
                bf16_load(TR_F32, numbers[j], WIDTH, WIDTH)));
    }
}

static inline void put_number(float *step, int64_t row, float x)
{
    uint16_t pair[2] = {0, 0};
    if (row) memcpy(pair, step, sizeof pair);
    pair[row] = tr__f32_to_bf16(x);
    memcpy(step, pair, sizeof pair);
}

static inline vec steps_of(vec first, vec second)
{
    return (vec)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

LANES_INLINE vec load_steps(tr_dtype dtype, const void *data, int64_t at, int64_t n)
{
    return vnni_load(dtype, data, at, n);
}

/* The two rows of a step. */
LANES_INLINE void pack_row_pair(tr_dtype dtype, const void *data, int64_t first, int64_t second, bool both, int64_t columns,
    float *to, vec sum[TILE_VECTORS])
{
#pragma GCC unroll 4
    for (int j = 0; j < TILE_VECTORS; j++) {
        int64_t n = columns - j * WIDTH;
        __m256i low = bf16_load(dtype, data, first + j * WIDTH, n);
        vec pairs = vnni_join(low, bf16_load(dtype, data, second + j * WIDTH, both ? n : 0));
        vec_store(to + j * WIDTH, pairs);
        if (sum) sum[j] += vnni_firsts(pairs) + vnni_seconds(pairs);
    }
}

LANES_INLINE void pack_b_rows_of(const block *blk, tr_dtype dtype, int64_t column, int64_t columns, float *to)
{
    const tr__axis axis = blk->p->b.row; /* a copy: no store below can change it */
    const void *data = blk->p->b.data;
    vec sum[TILE_VECTORS] = {{0}};
    vec *sums = blk->task->b_sums ? sum : NULL;
    for (int64_t i = 0; i < blk->depth; i += 2, to += TILE_COLUMNS) {
        bool both = i + 1 < blk->depth;
        int64_t first = blk->task->b + tr__axis_at(&axis, blk->row + i) + column;
        int64_t second = both ? blk->task->b + tr__axis_at(&axis, blk->row + i + 1) + column : first;
        if (both) pack_row_pair(dtype, data, first, second, true, columns, to, sums);
        else pack_row_pair(dtype, data, first, second, false, columns, to, sums);
    }
    if (sums) add_sums(blk->task->b_sums + column, sum, columns);
}

/* The first 8 lanes of each as pairs, of which 6 are used. */
LANES_INLINE __m256i join_six(__m128i firsts, __m128i seconds)
{
    __m256i low = _mm256_castsi128_si256(_mm_unpacklo_epi16(firsts, seconds));
    return _mm256_inserti128_si256(low, _mm_unpackhi_epi16(firsts, seconds), 1);
}

LANES_INLINE void pack_six(tr_dtype dtype, const void *data, int64_t first, int64_t second, int64_t n, float *to)
{
    n = n < TILE_ROWS ? n : TILE_ROWS;
    __m128i x = _mm256_castsi256_si128(bf16_load(dtype, data, first, n));
    __m128i y = _mm256_castsi256_si128(bf16_load(dtype, data, second < 0 ? first : second, second < 0 ? 0 : n));
    _mm256_mask_storeu_epi32(to, 0x3f, join_six(x, y));
}

/* Six bf16 by two loads: a masked load that reaches into the next cache line waits for that, too. */
LANES_INLINE __m128i bf16_load_six(const uint16_t *from)
{
    int32_t last;
    memcpy(&last, from + 4, sizeof last);
    return _mm_insert_epi32(_mm_loadl_epi64((const __m128i *)from), last, 2);
}

LANES_INLINE void pack_four_steps(const uint16_t *const row[8], int64_t j, float *to)
{
    __m512 x[4];
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++) {
        __m256i six = join_six(bf16_load_six(row[2 * s] + j), bf16_load_six(row[2 * s + 1] + j));
        x[s] = (__m512)_mm512_castsi256_si512(six);
    }
    lanes_join(x, to);
}

static bool reads_a_in_place(const tr__matrix *a)
{
    bool in_rows = a->row.ndim == 1 && tr__axis_contiguous(&a->column);
    if (TILE_ROWS > 12 && in_rows && a->row.stride[0] % 1024 == 0) return false; /* two sets of 12 cache lines would hold all rows */
    return a->dtype == TR_BF16 && in_rows && a->row.stride[0] % 2 == 0 && a->column.n % 2 == 0;
}

/* bf16 rows, to which nothing but an f32 bias is added. */
static bool writes_bf16_in_place(const tr__gemm *p)
{
    if (p->c.dtype != TR_BF16 || p->c.row.ndim != 1 || !tr__axis_contiguous(&p->c.column)) return false;
    if (p->accumulate || p->slope || p->residual.data) return false;
    return !p->bias || (p->bias->dtype == TR_F32 && p->bias->stride[0] == 1);
}

#endif
