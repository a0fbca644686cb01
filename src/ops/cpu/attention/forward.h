/*
 * Attention: one (batch, head) at a time, sums in f32 whatever the dtype, its matrix products by the microkernel.
 *
 * A block of queries computes its scores with as many keys as fit the cache, turns them into weights and adds the weighted
 * values. The running maximum and sum of each query rescale what was added before (online softmax, Milakov & Gimelshein
 * 2018). Powers of two replace exp: the factor from products to scores contains log2(e).
 */
#include "ops/cpu/attention/heads.h"

enum {
#ifdef TILE_AMX
    QUERIES = TILE_ROWS, KEYS = 256, /* 32 rows of 256 are 32 of the 48 KB of the first-level cache */
#else
    QUERIES = 4 * TILE_ROWS, /* of a block */
    KEYS = 512,              /* scored at a time: 24 rows of 512 are 48 KB */
#endif
    SCORES_ROW = KEYS + 16,  /* so that rows do not all fall on the same cache sets */
    LARGE = 1 << 20,         /* exponents beyond it are off by eighths and more: differences are taken before they are scaled */
};

typedef struct forward {
    const tr__attention *a;
    int64_t number, next; /* of the (batch, head) */
    float *scores;        /* [QUERIES][SCORES_ROW] of products, then weights */
    float *sums;          /* [QUERIES][wide] of weighted values */
    float *columns;       /* of keys */
    operand q, v;
    float scale;          /* of products */
    float max[QUERIES], sum[QUERIES]; /* of each query, over the keys so far: the largest product, the weights */
} forward;

static float row_max(const float *x, int64_t n, float least)
{
    vec max = vec_all(least);
    int64_t j = 0;
    for (; j + WIDTH <= n; j += WIDTH) max = vec_max(max, vec_load(x + j));
    if (j < n) max = vec_max(max, vec_keep_part(vec_load(x + j), n - j, least));
    return vec_top(max);
}

/* Weights 2^(x scale - base) in the place of x, zeros from n to the end of its vector; returns their sum. */
static float row_exp2(float *x, int64_t n, float scale, float base)
{
    vec sum = {0};
    for (int64_t j = 0; j < n; j += WIDTH) {
        vec y = lanes_keep(vec_exp2(vec_load(x + j) * scale - base), n - j);
        sum += y;
        heads_put_weights(x, j, y);
    }
    return vec_sum(sum);
}

static void subtract(float *x, int64_t n, float base)
{
    for (int64_t j = 0; j < n; j += WIDTH) vec_store(x + j, vec_load(x + j) - base);
}

/* Zeros a row of weights from column n on, as far as other queries of its tile may see. */
static void clear_after(float *row, int64_t n)
{
    for (int64_t j = (n + WIDTH - 1) / WIDTH * WIDTH; j < n + TILE_ROWS; j += WIDTH) heads_put_weights(row, j, (vec){0});
}

/* The scores of one query become weights relative to the running maximum. */
static void weigh(forward *f, int64_t i, int64_t row, int64_t from)
{
    const tr__attention *a = f->a;
    float *s = f->scores + row * SCORES_ROW, *sums = f->sums + row * heads_wide(a);
    int64_t n = heads_visible(a, i + row, from, KEYS);
    heads_mask(a, f->number, i + row, from, n, s);
    float old = f->max[row], max = row_max(s, n, old);
    f->max[row] = max;
    /* A query that has seen nothing yet has scores of -inf only: all weights are then 2^-inf = 0. */
    float base = max == -INFINITY ? 0 : max * f->scale;
    if (fabsf(base) > LARGE) {
        subtract(s, n, max);
        base = 0;
    }
    float sum = row_exp2(s, n, f->scale, base);
    clear_after(s, n);
    if (from > 0 && max != old) {
        float shrink = exp2f((old - max) * f->scale);
        f->sum[row] *= shrink;
        for (int64_t d = 0; d < heads_wide(a); d += WIDTH) vec_store(sums + d, vec_load(sums + d) * shrink);
    }
    f->sum[row] += sum;
}

static void attend(forward *f, int64_t i, int64_t n)
{
    const tr__attention *a = f->a;
    int64_t wide = heads_wide(a), last = tr__keys_seen(a, i + n - 1), o_at = tr__head_at(a, &a->o, f->number);
    heads_prefetch(a, &a->o, o_at, a->queries, i, n);
    heads_prefetch(a, &a->q, tr__head_at(a, &a->q, f->next), a->queries, i, n);
    heads_prefetch(a, &a->k, tr__head_at(a, &a->k, f->next), a->keys, i, n);
    heads_prefetch(a, &a->v, tr__head_at(a, &a->v, f->next), a->keys, i, n);
    memset(f->sums, 0, sizeof *f->sums * (size_t)(n * wide));
    for (int64_t row = 0; row < n; row++) {
        f->max[row] = -INFINITY;
        f->sum[row] = 0;
    }
    for (int64_t from = 0; from < last; from += KEYS) {
        heads_score(a, &f->q, f->columns, i, n, from, KEYS, f->scores, SCORES_ROW);
        for (int64_t row = 0; row < n; row++) weigh(f, i, row, from);
        heads_add_rows(a, f->scores, SCORES_ROW, &f->v, i, n, from, KEYS, f->sums);
    }
    float *lse = (float *)a->lse.data + tr__head_at(a, &a->lse, f->number);
    for (int64_t row = 0; row < n; row++) {
        float sum = f->sum[row];
        lse[(i + row) * a->lse.stride[2]] = sum == 0 ? -INFINITY : (f->max[row] * f->scale + log2f(sum)) * (float)M_LN2;
        heads_store(a, &a->o, o_at, i + row, f->sums + row * wide, sum == 0 ? 0 : 1 / sum);
    }
}

static size_t forward_scratch(const tr__attention *a)
{
    int64_t wide = heads_wide(a), rows = QUERIES + a->keys + a->queries;
    return (size_t)(QUERIES * SCORES_ROW + rows * wide + heads_columns_size(a, a->keys)) + 5 * TR__CACHE_LINE;
}

static void forward_head(const tr__attention *a, int64_t number, int64_t next, float *scratch)
{
    int64_t wide = heads_wide(a);
    forward f = {.a = a, .number = number, .next = next, .scale = heads_scale(a)};
    f.scores = take(&scratch, QUERIES * SCORES_ROW);
    f.sums = take(&scratch, QUERIES * wide);
    f.columns = take(&scratch, heads_columns_size(a, a->keys));
    heads_columns(a, &a->k, tr__head_at(a, &a->k, number), a->keys, a->scale < 0, f.columns);
    f.v = heads_right(a, &a->v, tr__head_at(a, &a->v, number), a->keys, NULL, take(&scratch, a->keys * wide));
    f.q = heads_left(a, &a->q, tr__head_at(a, &a->q, number), a->queries, take(&scratch, a->queries * wide));
    tile_begin();
    for (int64_t i = 0; i < a->queries; i += QUERIES) attend(&f, i, a->queries - i < QUERIES ? a->queries - i : QUERIES);
    tile_end();
}
