/*
 * Attention with AVX-512, f32 inside whatever the dtype: one (batch, head) per task, its matrices as tiles (tile_avx512.h).
 *
 * Forward takes a block of queries and, for as many keys as fit the cache at once, scores them, turns the scores into
 * weights and adds the weighted values; the running maximum and sum of each query correct what came before (Milakov &
 * Gimelshein 2018). Powers of two stand for exp: log2(e) is in the factor by which keys are scaled as they are packed.
 */
#include "ops/cpu/attention.h"
#include "ops/cpu/heads_avx512.h"
#include "ops/cpu/vectors_avx512.h"

#include <math.h>
#include <string.h>

enum {
    QUERIES = 4 * TR__TILE_ROWS,   /* of a block */
    KEYS = 8 * TR__TILE_COLUMNS,   /* scored at a time: 24 rows of 512 are 48 KB */
    SCORES_ROW = KEYS + TR__LANES, /* so that rows do not all fall on the same cache sets */
};

typedef struct forward {
    const tr__attention *a;
    int64_t number, next; /* of the (batch, head) */
    float *scores;      /* [QUERIES][SCORES_ROW], then weights */
    float *sums;        /* [QUERIES][wide] of weighted values */
    float *columns;     /* of keys */
    tr__operand q, v;
    float max[QUERIES], sum[QUERIES]; /* of each query, over the keys so far */
} forward;

static float row_max(const float *x, int64_t n, float least)
{
    __m512 max = _mm512_set1_ps(least);
    for (int64_t j = 0; j < n; j += TR__LANES) {
        __mmask16 lanes = tr__first_lanes(n - j);
        max = _mm512_mask_max_ps(max, lanes, max, _mm512_loadu_ps(x + j));
    }
    return _mm512_reduce_max_ps(max);
}

/* x = 2^(x - base), zeros from n to the end of its vector; returns their sum. */
static float row_exp2(float *x, int64_t n, float base)
{
    const __m512 from = _mm512_set1_ps(base);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < n; j += TR__LANES) {
        __m512 y = tr__exp2(_mm512_sub_ps(_mm512_loadu_ps(x + j), from));
        y = _mm512_maskz_mov_ps(tr__first_lanes(n - j), y);
        sum = _mm512_add_ps(sum, y);
        _mm512_storeu_ps(x + j, y);
    }
    return _mm512_reduce_add_ps(sum);
}

static void scale_row(float *x, int64_t n, float scale)
{
    for (int64_t j = 0; j < n; j += TR__LANES)
        _mm512_storeu_ps(x + j, _mm512_mul_ps(_mm512_loadu_ps(x + j), _mm512_set1_ps(scale)));
}

/* The scores of one query become weights relative to the running maximum. */
static void weigh(forward *f, int64_t i, int64_t row, int64_t from)
{
    float *s = f->scores + row * SCORES_ROW;
    int64_t n = tr__seen(f->a, i + row, from, KEYS);
    tr__hide(f->a, f->number, i + row, from, n, s);
    float old = f->max[row], max = row_max(s, n, old);
    f->max[row] = max;
    /* A query that has seen nothing yet has scores of -inf only: all weights are then 2^-inf = 0. */
    float sum = row_exp2(s, n, max == -INFINITY ? 0 : max);
    _mm512_storeu_ps(s + (n + TR__LANES - 1) / TR__LANES * TR__LANES, _mm512_setzero_ps()); /* what other rows of a tile see */
    if (from > 0 && max != old) {
        float shrink = exp2f(old - max);
        f->sum[row] *= shrink;
        scale_row(f->sums + row * tr__wide(f->a), tr__wide(f->a), shrink);
    }
    f->sum[row] += sum;
}

static void attend(forward *f, int64_t i, int64_t n)
{
    const tr__attention *a = f->a;
    int64_t wide = tr__wide(a), last = tr__keys_seen(a, i + n - 1), o_at = tr__head_at(a, &a->o, f->number);
    tr__fetch_rows(a, &a->o, o_at, a->queries, i, n);
    tr__fetch_rows(a, &a->q, tr__head_at(a, &a->q, f->next), a->queries, i, n);
    tr__fetch_rows(a, &a->k, tr__head_at(a, &a->k, f->next), a->keys, i, n);
    tr__fetch_rows(a, &a->v, tr__head_at(a, &a->v, f->next), a->keys, i, n);
    memset(f->sums, 0, sizeof *f->sums * (size_t)(n * wide));
    for (int64_t row = 0; row < n; row++) {
        f->max[row] = -INFINITY;
        f->sum[row] = 0;
    }
    for (int64_t from = 0; from < last; from += KEYS) {
        tr__score(a, &f->q, f->columns, i, n, from, KEYS, f->scores, SCORES_ROW);
        for (int64_t row = 0; row < n; row++) weigh(f, i, row, from);
        tr__add_rows(a, f->scores, SCORES_ROW, &f->v, i, n, from, KEYS, f->sums);
    }
    float *lse = (float *)a->lse.data + tr__head_at(a, &a->lse, f->number);
    for (int64_t row = 0; row < n; row++) {
        float sum = f->sum[row];
        lse[(i + row) * a->lse.stride[2]] = sum == 0 ? -INFINITY : (f->max[row] + log2f(sum)) * (float)M_LN2;
        tr__store_row(a, &a->o, o_at, i + row, f->sums + row * wide, sum == 0 ? 0 : 1 / sum);
    }
}

void tr__attention_forward_avx512(const tr__attention *a, int64_t number, int64_t next, float *scratch)
{
    int64_t wide = tr__wide(a);
    forward f = {.a = a, .number = number, .next = next, .scores = scratch};
    f.sums = f.scores + QUERIES * SCORES_ROW;
    f.columns = f.sums + QUERIES * wide;
    float *rows = f.columns + tr__columns_floats(a, a->keys);
    tr__head_columns(a, &a->k, tr__head_at(a, &a->k, number), a->keys, (float)(a->scale * M_LOG2E), f.columns);
    f.v = tr__head_rows(a, &a->v, tr__head_at(a, &a->v, number), a->keys, rows);
    f.q = tr__head_rows(a, &a->q, tr__head_at(a, &a->q, number), a->queries, rows + a->keys * wide);
    for (int64_t i = 0; i < a->queries; i += QUERIES) attend(&f, i, a->queries - i < QUERIES ? a->queries - i : QUERIES);
}

size_t tr__attention_forward_scratch_avx512(const tr__attention *a)
{
    int64_t wide = tr__wide(a);
    return (size_t)(QUERIES * (SCORES_ROW + wide) + tr__columns_floats(a, a->keys) + (a->keys + a->queries) * wide);
}
