#include "ops/cpu/heads_avx512.h"

#include "ops/cpu/vectors_avx512.h"

#include <math.h>

/* Sixteen elements of a row from element d on, zeros after dim. */
static inline __m512 load(const tr__attention *a, const tr__heads *x, int64_t row, int64_t d)
{
    int64_t n = a->dim - d, step = x->stride[3];
    if (step == 1) return tr__load_lanes(a->dtype, x->data, row + d, tr__first_lanes(n));
    float lanes[TR__LANES] = {0};
    for (int64_t i = 0; i < n && i < TR__LANES; i++) lanes[i] = (float)tr__load(a->dtype, x->data, row + (d + i) * step);
    return _mm512_loadu_ps(lanes);
}

tr__operand tr__head_rows(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, float *scratch)
{
    int64_t wide = tr__wide(a);
    if (a->dtype == TR_F32 && x->stride[3] == 1 && a->dim == wide)
        return (tr__operand){(const float *)x->data + at, x->stride[2]};
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < wide; d += TR__LANES)
            _mm512_store_ps(scratch + i * wide + d, load(a, x, at + i * x->stride[2], d));
    return (tr__operand){scratch, wide};
}

void tr__head_columns(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, float scale, float *out)
{
    const __m512 factor = _mm512_set1_ps(scale);
    int64_t chunks = tr__columns_floats(a, rows) / (a->dim ? a->dim : 1);
    for (int64_t row = 0; row < chunks; row += TR__LANES) {
        float *to = out + row / TR__TILE_COLUMNS * TR__TILE_COLUMNS * a->dim + row % TR__TILE_COLUMNS;
        for (int64_t d = 0; d < a->dim; d += TR__LANES) {
            __m512 block[TR__LANES];
            for (int i = 0; i < TR__LANES; i++)
                block[i] = row + i < rows ? load(a, x, at + (row + i) * x->stride[2], d) : _mm512_setzero_ps();
            tr__transpose(block);
            for (int i = 0; i < TR__LANES && d + i < a->dim; i++)
                _mm512_store_ps(to + (d + i) * TR__TILE_COLUMNS, _mm512_mul_ps(block[i], factor));
        }
    }
}

void tr__fetch_rows(const tr__attention *a, const tr__heads *x, int64_t at, int64_t rows, int64_t i, int64_t n)
{
    if (!x->data || x->stride[3] != 1) return;
    int64_t size = a->dtype == TR_F32 ? 4 : 2, bytes = a->dim * size;
    for (; n > 0 && i < rows; i++, n--) {
        const char *row = (const char *)x->data + (at + i * x->stride[2]) * size;
        for (int64_t j = 0; j < bytes; j += 64) _mm_prefetch(row + j, _MM_HINT_T1);
    }
}

void tr__store_row(const tr__attention *a, const tr__heads *x, int64_t at, int64_t i, const float *from, float scale)
{
    const __m512 factor = _mm512_set1_ps(scale);
    int64_t row = at + i * x->stride[2], step = x->stride[3];
    for (int64_t d = 0; d < a->dim; d += TR__LANES) {
        __m512 value = _mm512_mul_ps(_mm512_load_ps(from + d), factor);
        if (step == 1) {
            tr__store_lanes(a->dtype, x->data, row + d, tr__first_lanes(a->dim - d), value);
            continue;
        }
        float lanes[TR__LANES];
        _mm512_storeu_ps(lanes, value);
        for (int64_t j = 0; j < TR__LANES && d + j < a->dim; j++)
            tr__store(a->dtype, x->data, row + (d + j) * step, lanes[j]);
    }
}

float tr__dot_row(const tr__attention *a, const tr__heads *x, int64_t x_at, const tr__heads *y, int64_t y_at, int64_t i)
{
    __m512 sum = _mm512_setzero_ps();
    for (int64_t d = 0; d < a->dim; d += TR__LANES)
        sum = _mm512_fmadd_ps(load(a, x, x_at + i * x->stride[2], d), load(a, y, y_at + i * y->stride[2], d), sum);
    return _mm512_reduce_add_ps(sum);
}

void tr__hide(const tr__attention *a, int64_t number, int64_t query, int64_t first, int64_t n, float *scores)
{
    if (!a->mask.data) return;
    const uint8_t *may_look = a->mask.data;
    int64_t step = a->mask.stride[3];
    may_look += tr__head_at(a, &a->mask, number) + query * a->mask.stride[2] + first * step;
    for (int64_t j = 0; j < n; j++)
        if (!may_look[j * step]) scores[j] = -INFINITY;
}

void tr__score(const tr__attention *a, const tr__operand *left, const float *columns, int64_t i, int64_t n, int64_t from,
    int64_t keys, float *out, int64_t out_row)
{
    int64_t last = tr__seen(a, i + n - 1, from, keys);
    tr__tile t = {.k = a->dim, .a_row = left->row, .a_k = 1, .b_k = TR__TILE_COLUMNS, .c_row = out_row};
    for (int64_t chunk = 0; chunk < last; chunk += TR__TILE_COLUMNS) {
        t.b = columns + (from + chunk) * a->dim;
        for (int64_t at = 0; at < n; at += TR__TILE_ROWS) {
            int64_t rows = n - at < TR__TILE_ROWS ? n - at : TR__TILE_ROWS;
            int64_t vectors = (tr__seen(a, i + at + rows - 1, from, keys) - chunk + TR__LANES - 1) / TR__LANES;
            if (vectors <= 0) continue;
            t.a = left->data + (i + at) * left->row;
            t.c = out + at * out_row + chunk;
            tr__tile_avx512(&t, (int)rows, (int)(vectors < TR__TILE_VECTORS ? vectors : TR__TILE_VECTORS));
        }
    }
}

/* Keys whose rows stay in the first cache while the tiles of a block of queries take their turn. */
enum { PIECE = 128 };

void tr__add_rows(const tr__attention *a, const float *weights, int64_t weights_row, const tr__operand *right, int64_t i,
    int64_t n, int64_t from, int64_t keys, float *sums)
{
    int64_t last = tr__seen(a, i + n - 1, from, keys), wide = tr__wide(a);
    tr__tile t = {.a_row = weights_row, .a_k = 1, .b_k = right->row, .c_row = wide, .add = true};
    for (int64_t piece = 0; piece < last; piece += PIECE) {
        t.b = right->data + (from + piece) * right->row;
        for (int64_t at = 0; at < n; at += TR__TILE_ROWS) {
            int64_t rows = n - at < TR__TILE_ROWS ? n - at : TR__TILE_ROWS;
            int64_t depth = tr__seen(a, i + at + rows - 1, from, keys) - piece;
            if (depth <= 0) continue;
            t.k = depth < PIECE ? depth : PIECE;
            t.a = weights + at * weights_row + piece;
            t.c = sums + at * wide;
            tr__tiles_avx512(&t, rows, wide / TR__LANES);
        }
    }
}
