/*
 * The gradients of attention with AVX-512 (formulas in ops/attention.c): one (batch, head) per task. For a block of queries
 * and a block of keys, p and ds are made from two products, and three more add them to dq, dk and dv.
 */
#include "base/memory.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/heads_avx512.h"
#include "ops/cpu/vectors_avx512.h"

#include <math.h>
#include <string.h>

enum {
    QUERIES = 11 * TR__TILE_ROWS, /* of a block */
    KEYS = 4 * TR__TILE_COLUMNS,  /* of a block: p and ds are 66 rows of 256 */
    ROW = KEYS + TR__LANES,       /* so that rows do not all fall on the same cache sets */
};

typedef struct backward {
    const tr__attention *a;
    int64_t number, next;   /* of the (batch, head) */
    float *p, *ds;          /* [QUERIES][ROW] */
    float *lse, *delta;     /* [queries]; lse times log2(e) */
    float *keys, *values;   /* as columns; keys scaled for powers of two */
    tr__operand q, g, k;
    float *dq, *dk, *dv;    /* [queries or keys][wide] */
} backward;

/* p and ds of one query from its scores and g v^T. */
static void differentiate(backward *b, int64_t i, int64_t row, int64_t from)
{
    float *p = b->p + row * ROW, *ds = b->ds + row * ROW;
    int64_t n = tr__seen(b->a, i + row, from, KEYS), j = 0;
    tr__hide(b->a, b->number, i + row, from, n, p);
    const __m512 lse = _mm512_set1_ps(b->lse[i + row]), delta = _mm512_set1_ps(b->delta[i + row]);
    for (; j < n; j += TR__LANES) {
        __mmask16 lanes = tr__first_lanes(n - j);
        __m512 y = _mm512_maskz_mov_ps(lanes, tr__exp2(_mm512_sub_ps(_mm512_loadu_ps(p + j), lse)));
        _mm512_storeu_ps(p + j, y);
        _mm512_storeu_ps(ds + j, _mm512_maskz_mul_ps(lanes, y, _mm512_sub_ps(_mm512_loadu_ps(ds + j), delta)));
    }
    _mm512_storeu_ps(p + j, _mm512_setzero_ps()); /* what other queries of a tile see */
    _mm512_storeu_ps(ds + j, _mm512_setzero_ps());
}

/* sums[from+j] += over r of weights[r][j] * right_(i+r): the queries r of the block that see the keys of j's tile. */
static void add_columns(const backward *b, const float *weights, const tr__operand *right, int64_t i, int64_t n, int64_t from,
    float *sums)
{
    const tr__attention *a = b->a;
    int64_t last = tr__seen(a, i + n - 1, from, KEYS), wide = tr__wide(a);
    tr__tile t = {.a_row = 1, .a_k = ROW, .b_k = right->row, .c_row = wide, .add = true};
    for (int64_t j = 0; j < last; j += TR__TILE_ROWS) {
        int64_t first = a->causal ? from + j - (a->keys - a->queries) - i : 0;
        if (first < 0) first = 0;
        t.k = n - first;
        t.a = weights + first * ROW + j;
        t.b = right->data + (i + first) * right->row;
        t.c = sums + (from + j) * wide;
        tr__tiles_avx512(&t, last - j < TR__TILE_ROWS ? last - j : TR__TILE_ROWS, wide / TR__LANES);
    }
}

static void add_gradients(backward *b, int64_t i, int64_t n, int64_t from)
{
    const tr__attention *a = b->a;
    tr__score(a, &b->q, b->keys, i, n, from, KEYS, b->p, ROW);
    tr__score(a, &b->g, b->values, i, n, from, KEYS, b->ds, ROW);
    for (int64_t row = 0; row < n; row++) differentiate(b, i, row, from);
    tr__add_rows(a, b->ds, ROW, &b->k, i, n, from, KEYS, b->dq + i * tr__wide(a));
    add_columns(b, b->p, &b->g, i, n, from, b->dv);
    add_columns(b, b->ds, &b->q, i, n, from, b->dk);
}

/* Asks for what this block's share of the next head is, and for where this head's gradients will go. */
static void fetch(const backward *b, int64_t i, int64_t n)
{
    const tr__attention *a = b->a;
    const struct { const tr__heads *x; int64_t rows, number; } what[] = {
        {&a->q, a->queries, b->next}, {&a->k, a->keys, b->next}, {&a->v, a->keys, b->next},
        {&a->o, a->queries, b->next}, {&a->g, a->queries, b->next},
        {&a->dq, a->queries, b->number}, {&a->dk, a->keys, b->number}, {&a->dv, a->keys, b->number},
    };
    for (size_t w = 0; w < sizeof what / sizeof *what; w++)
        tr__fetch_rows(a, what[w].x, tr__head_at(a, what[w].x, what[w].number), what[w].rows, i, n);
}

/* Takes n floats, rounded up to vectors, from scratch. */
static float *take(float **scratch, int64_t n)
{
    float *taken = *scratch;
    *scratch += tr__round_up((size_t)n, TR__LANES);
    return taken;
}

static void read_inputs(backward *b, float **scratch)
{
    const tr__attention *a = b->a;
    int64_t wide = tr__wide(a);
    int64_t k_at = tr__head_at(a, &a->k, b->number), v_at = tr__head_at(a, &a->v, b->number);
    int64_t g_at = tr__head_at(a, &a->g, b->number), o_at = tr__head_at(a, &a->o, b->number);
    b->keys = take(scratch, tr__columns_floats(a, a->keys));
    b->values = take(scratch, tr__columns_floats(a, a->keys));
    tr__head_columns(a, &a->k, k_at, a->keys, (float)(a->scale * M_LOG2E), b->keys);
    tr__head_columns(a, &a->v, v_at, a->keys, 1, b->values);
    b->k = tr__head_rows(a, &a->k, k_at, a->keys, take(scratch, a->keys * wide));
    b->q = tr__head_rows(a, &a->q, tr__head_at(a, &a->q, b->number), a->queries, take(scratch, a->queries * wide));
    b->g = tr__head_rows(a, &a->g, g_at, a->queries, take(scratch, a->queries * wide));
    b->lse = take(scratch, a->queries);
    b->delta = take(scratch, a->queries);
    const float *lse = (const float *)a->lse.data + tr__head_at(a, &a->lse, b->number);
    for (int64_t i = 0; i < a->queries; i++) {
        float kept = lse[i * a->lse.stride[2]];
        b->lse[i] = kept == -INFINITY ? INFINITY : kept * (float)M_LOG2E; /* who saw nothing: 2^(s - inf) = 0 */
        b->delta[i] = tr__dot_row(a, &a->g, g_at, &a->o, o_at, i);
    }
}

void tr__attention_backward_avx512(const tr__attention *a, int64_t number, int64_t next, float *scratch)
{
    int64_t wide = tr__wide(a);
    backward b = {.a = a, .number = number, .next = next, .dq = scratch};
    take(&scratch, a->queries * wide);
    b.dk = take(&scratch, a->keys * wide);
    b.dv = take(&scratch, a->keys * wide);
    memset(b.dq, 0, sizeof *b.dq * (size_t)(scratch - b.dq));
    b.p = take(&scratch, QUERIES * ROW);
    b.ds = take(&scratch, QUERIES * ROW);
    read_inputs(&b, &scratch);
    for (int64_t from = 0; from < a->keys; from += KEYS) {
        for (int64_t i = 0; i < a->queries; i += QUERIES) {
            int64_t n = a->queries - i < QUERIES ? a->queries - i : QUERIES;
            if (from == 0) fetch(&b, i, n);
            if (tr__seen(a, i + n - 1, from, KEYS) > 0) add_gradients(&b, i, n, from);
        }
    }
    int64_t dq_at = tr__head_at(a, &a->dq, number), dk_at = tr__head_at(a, &a->dk, number);
    int64_t dv_at = tr__head_at(a, &a->dv, number);
    for (int64_t i = 0; i < a->queries; i++) tr__store_row(a, &a->dq, dq_at, i, b.dq + i * wide, (float)a->scale);
    for (int64_t j = 0; j < a->keys; j++) {
        tr__store_row(a, &a->dk, dk_at, j, b.dk + j * wide, (float)a->scale);
        tr__store_row(a, &a->dv, dv_at, j, b.dv + j * wide, 1);
    }
}

size_t tr__attention_backward_scratch_avx512(const tr__attention *a)
{
    int64_t wide = tr__wide(a);
    return (size_t)(3 * (a->queries + a->keys) * wide + 2 * QUERIES * ROW + 2 * tr__columns_floats(a, a->keys) +
        2 * (a->queries + TR__LANES));
}
