/*
 * Matrix products with AVX-512: f32 inside, from and to any float dtype but f64.
 *
 * b is packed by blocks of some 384 rows and columns (half a megabyte: it stays in the second cache) as panels of 64
 * columns. A panel of a, six rows as deep as the block (9 KB: the first cache), meets all of them in turn while they stream
 * by, tile by tile (tile_avx512.h); meanwhile the next panel of a and the next block of b are fetched. How the work is
 * shared out never changes the order in which an element is summed.
 */
#include "base/memory.h"
#include "ops/cpu/product.h"
#include "ops/cpu/tile_avx512.h"
#include "ops/cpu/vectors_avx512.h"

#include <string.h>

enum { DEPTH = 384, WIDTH = 6 * TR__TILE_COLUMNS, IN_PLACE_ROWS = 4 * TR__TILE_ROWS, LINE = 16 /* floats of a cache line */ };

/* How a panel of a is read. */
typedef enum left_form {
    IN_PLACE, /* f32 rows, evenly apart */
    COLUMNS,  /* its columns are contiguous: packed [depth][6] */
    ROWS,     /* copied, [6][DEPTH] */
} left_form;

typedef struct block {
    const tr__product_at *at;
    const tr__product *p;
    left_form left;
    bool right_in_place, c_in_place;
    float *right, *c;        /* packed: [panels][depth][64]; what is not written in place: [m][width] */
    int64_t column, columns; /* of b and c, in this block */
    int64_t row, depth;      /* of b */
    int64_t width;           /* columns of a block at most, in whole panels */
    bool first, last;        /* of c's sums */
} block;

static bool plain(const tr__axis *axis)
{
    return axis->ndim == 1 && (axis->stride[0] == 1 || axis->n == 1);
}

static bool f32_rows(const tr__matrix *m)
{
    return m->dtype == TR_F32 && m->row.ndim == 1 && plain(&m->column);
}

/* Up to 16 elements of a row from column on. */
static inline __m512 read_lanes(const tr__matrix *m, int64_t row_at, int64_t column, int64_t n)
{
    if (plain(&m->column)) return tr__load_lanes(m->dtype, m->data, row_at + column, tr__first_lanes(n));
    float lanes[TR__LANES] = {0};
    for (int64_t i = 0; i < n && i < TR__LANES; i++)
        lanes[i] = (float)tr__load(m->dtype, m->data, row_at + tr__axis_at(&m->column, column + i));
    return _mm512_loadu_ps(lanes);
}

static inline void write_lanes(const tr__matrix *m, int64_t row_at, int64_t column, int64_t n, __m512 x)
{
    if (plain(&m->column)) {
        tr__store_lanes(m->dtype, m->data, row_at + column, tr__first_lanes(n), x);
        return;
    }
    float lanes[TR__LANES];
    _mm512_storeu_ps(lanes, x);
    for (int64_t i = 0; i < n && i < TR__LANES; i++)
        tr__store(m->dtype, m->data, row_at + tr__axis_at(&m->column, column + i), lanes[i]);
}

/* ---- b ------------------------------------------------------------------------------------------------------------- */

/* One panel whose rows lie in rows: to is [depth][64]. */
static void pack_rows(const block *k, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &k->p->b;
    float *sums = k->at->b_sums ? k->at->b_sums + column : NULL;
    for (int64_t j = 0; j < columns; j += TR__LANES) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < k->depth; i++) {
            __m512 x = read_lanes(b, k->at->b + tr__axis_at(&b->row, k->row + i), column + j, columns - j);
            _mm512_store_ps(to + i * TR__TILE_COLUMNS + j, x);
            sum = _mm512_add_ps(sum, x);
        }
        if (!sums) continue;
        __mmask16 lanes = tr__first_lanes(columns - j);
        _mm512_mask_storeu_ps(sums + j, lanes, _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes, sums + j)));
    }
}

/* The same when its columns are contiguous, as those of a weight [out, in] are. */
static void pack_columns(const block *k, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &k->p->b;
    for (int64_t j = 0; j < columns; j += TR__LANES) {
        int64_t wide = columns - j < TR__LANES ? columns - j : TR__LANES;
        for (int64_t i = 0; i < k->depth; i += TR__LANES) {
            __m512 square[TR__LANES];
            for (int64_t c = 0; c < TR__LANES; c++) {
                int64_t from = k->at->b + tr__axis_at(&b->column, column + j + (c < wide ? c : 0)) + k->row + i;
                square[c] = tr__load_lanes(b->dtype, b->data, from, tr__first_lanes(k->depth - i));
            }
            tr__transpose(square);
            for (int64_t r = 0; r < TR__LANES && i + r < k->depth; r++)
                _mm512_store_ps(to + (i + r) * TR__TILE_COLUMNS + j, square[r]);
        }
    }
}

static void pack_right(void *arg, int64_t begin, int64_t end)
{
    const block *k = arg;
    bool by_columns = !plain(&k->p->b.column) && plain(&k->p->b.row) && !k->at->b_sums;
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t j = panel * TR__TILE_COLUMNS, columns = k->columns - j;
        if (columns > TR__TILE_COLUMNS) columns = TR__TILE_COLUMNS;
        (by_columns ? pack_columns : pack_rows)(k, k->column + j, columns, k->right + j * k->depth);
    }
}

/* ---- a ------------------------------------------------------------------------------------------------------------- */

/* Sets the tile's left side to rows [i, i + rows); panel has room for them. */
static void read_left(const block *k, int64_t i, int64_t rows, float *panel, tr__tile *t)
{
    const tr__matrix *a = &k->p->a;
    if (k->left == IN_PLACE) {
        t->a = (const float *)a->data + k->at->a + i * a->row.stride[0] + k->row;
        t->a_row = a->row.stride[0];
        t->a_k = 1;
        return;
    }
    t->a = panel;
    if (k->left == COLUMNS) {
        __mmask16 lanes = tr__first_lanes(rows);
        __m512 sum = _mm512_setzero_ps();
        for (int64_t r = 0; r < k->depth; r++) {
            __m512 x = tr__load_lanes(a->dtype, a->data, k->at->a + tr__axis_at(&a->column, k->row + r) + i, lanes);
            _mm512_mask_storeu_ps(panel + r * TR__TILE_ROWS, lanes, x);
            sum = _mm512_add_ps(sum, x);
        }
        t->a_row = 1;
        t->a_k = TR__TILE_ROWS;
        float *sums = k->at->a_sums;
        if (!sums || k->column > 0) return;
        _mm512_mask_storeu_ps(sums + i, lanes, _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes, sums + i)));
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < k->depth; c += TR__LANES)
            _mm512_store_ps(panel + r * DEPTH + c,
                read_lanes(a, k->at->a + tr__axis_at(&a->row, i + r), k->row + c, k->depth - c));
    t->a_row = DEPTH;
    t->a_k = 1;
}

/* Asks for the part of the next panel of a that comes with tile j of this one. */
static inline void fetch_left(const block *k, int64_t next, int64_t j, int64_t tiles)
{
    const tr__matrix *a = &k->p->a;
    if (next >= a->row.n || k->left == ROWS) return;
    size_t size = a->dtype == TR_F32 ? 4 : 2;
    const char *data = (const char *)a->data + (size_t)k->at->a * size;
    if (k->left == IN_PLACE) {
        int64_t each = (TR__TILE_ROWS + tiles - 1) / tiles;
        for (int64_t r = j * each; r < (j + 1) * each && r < TR__TILE_ROWS && next + r < a->row.n; r++)
            for (int64_t c = 0; c < k->depth; c += LINE)
                _mm_prefetch(data + (size_t)((next + r) * a->row.stride[0] + k->row + c) * size, _MM_HINT_T1);
        return;
    }
    int64_t each = (k->depth + tiles - 1) / tiles;
    for (int64_t r = j * each; r < (j + 1) * each && r < k->depth; r++)
        _mm_prefetch(data + (size_t)(tr__axis_at(&a->column, k->row + r) + next + TR__TILE_ROWS - 1) * size, _MM_HINT_T1);
}

/* ---- c ------------------------------------------------------------------------------------------------------------- */

static void write_in_place(const block *k, int64_t i, tr__tile *t)
{
    const tr__product *p = k->p;
    t->c = (float *)p->c.data + k->at->c + i * p->c.row.stride[0] + k->column;
    t->c_row = p->c.row.stride[0];
    t->add = !k->first || p->accumulate;
    if (!k->last) return;
    if (p->bias) t->bias = (const float *)tr__ptr(p->bias) + k->column;
    if (!p->residual.data) return;
    t->residual_row = p->residual.row.stride[0];
    t->residual = (const float *)p->residual.data + i * t->residual_row + k->column;
}

static void advance(tr__tile *t, int64_t columns, int64_t b_panel)
{
    t->b += b_panel;
    t->c += columns;
    if (t->bias) t->bias += columns;
    if (t->residual) t->residual += columns;
}

static void multiply_panels(void *arg, int64_t begin, int64_t end)
{
    const block *k = arg;
    _Alignas(64) float panel[TR__TILE_ROWS * DEPTH + TR__LANES];
    int64_t m = k->p->a.row.n, tiles = (k->columns + TR__TILE_COLUMNS - 1) / TR__TILE_COLUMNS;
    for (int64_t at = begin; at < end; at++) {
        int64_t i = at * TR__TILE_ROWS, rows = m - i < TR__TILE_ROWS ? m - i : TR__TILE_ROWS;
        tr__tile t = {.k = k->depth, .b = k->right, .b_k = TR__TILE_COLUMNS, .add = !k->first};
        if (k->right_in_place) {
            t.b_k = k->p->b.row.stride[0];
            t.b = (const float *)k->p->b.data + k->at->b + k->row * t.b_k + k->column;
        }
        read_left(k, i, rows, panel, &t);
        t.c = k->c + i * k->width;
        t.c_row = k->width;
        if (k->c_in_place) write_in_place(k, i, &t);
        for (int64_t j = 0; j < tiles; j++) {
            int64_t vectors = (k->columns - j * TR__TILE_COLUMNS + TR__LANES - 1) / TR__LANES;
            fetch_left(k, i + TR__TILE_ROWS, j, tiles);
            tr__tile_avx512(&t, (int)rows, (int)(vectors < TR__TILE_VECTORS ? vectors : TR__TILE_VECTORS));
            advance(&t, TR__TILE_COLUMNS, k->right_in_place ? TR__TILE_COLUMNS : TR__TILE_COLUMNS * k->depth);
        }
    }
}

/* c = what was summed + bias + residual (+ c), where c is not f32 rows of whole vectors. */
static void write_rows(void *arg, int64_t begin, int64_t end)
{
    const block *k = arg;
    const tr__product *p = k->p;
    for (int64_t i = begin; i < end; i++) {
        int64_t c_at = k->at->c + tr__axis_at(&p->c.row, i);
        int64_t residual_at = p->residual.data ? tr__axis_at(&p->residual.row, i) : 0;
        for (int64_t j = 0; j < k->columns; j += TR__LANES) {
            int64_t n = k->columns - j, column = k->column + j;
            __m512 x = _mm512_load_ps(k->c + i * k->width + j);
            if (p->bias) {
                tr__matrix bias = tr__matrix_of(p->bias);
                x = _mm512_add_ps(x, read_lanes(&bias, 0, column, n));
            }
            if (p->residual.data) x = _mm512_add_ps(x, read_lanes(&p->residual, residual_at, column, n));
            if (p->accumulate) x = _mm512_add_ps(x, read_lanes(&p->c, c_at, column, n));
            write_lanes(&p->c, c_at, column, n, x);
        }
    }
}

/* ---- All of it ------------------------------------------------------------------------------------------------------ */

/* n in as few parts of at most most as will do, of about one size, a multiple of unit. */
static int64_t part_size(int64_t n, int64_t most, int64_t unit)
{
    int64_t parts = (n + most - 1) / most, size = parts ? (n + parts - 1) / parts : 0;
    return (int64_t)tr__round_up((size_t)size, (size_t)unit);
}

static void multiply_block(block *k)
{
    int64_t panels = (k->columns + TR__TILE_COLUMNS - 1) / TR__TILE_COLUMNS, m = k->p->a.row.n;
    if (!k->right_in_place) tr__pool_for(k->at->pool, panels, 1, pack_right, k);
    tr__pool_for(k->at->pool, (m + TR__TILE_ROWS - 1) / TR__TILE_ROWS, 4, multiply_panels, k);
    if (k->last && !k->c_in_place) tr__pool_for(k->at->pool, m, 64, write_rows, k);
}

static void multiply(block *k)
{
    const tr__product *p = k->p;
    int64_t n = p->b.column.n, deep = p->b.row.n, depth = part_size(deep, DEPTH, TR__LANES);
    for (k->column = 0; k->column < n; k->column += k->width) {
        k->columns = n - k->column < k->width ? n - k->column : k->width;
        k->row = 0;
        do { /* once also when there is nothing to sum */
            k->depth = deep - k->row < depth ? deep - k->row : depth;
            k->first = k->row == 0;
            k->last = k->row + k->depth == deep;
            multiply_block(k);
            k->row += k->depth;
        } while (k->row < deep);
    }
}

bool tr__product_avx512(const tr__product_at *at)
{
    const tr__product *p = at->p;
    const tr__device_table *device = tr__device(at->device.kind);
    int64_t m = p->a.row.n, n = p->b.column.n;
    bool whole = n % TR__LANES == 0;
    block k = {.at = at, .p = p};
    k.left = f32_rows(&p->a) ? IN_PLACE : plain(&p->a.row) && !plain(&p->a.column) ? COLUMNS : ROWS;
    if (at->a_sums) k.left = COLUMNS;
    k.right_in_place = m <= IN_PLACE_ROWS && whole && f32_rows(&p->b) && !at->b_sums;
    k.c_in_place = whole && f32_rows(&p->c) && (!p->bias || (p->bias->dtype == TR_F32 && p->bias->stride[0] == 1)) &&
                   (!p->residual.data || f32_rows(&p->residual));
    k.width = part_size(n, WIDTH, TR__TILE_COLUMNS);
    size_t right = k.right_in_place ? 0 : (size_t)(part_size(p->b.row.n, DEPTH, TR__LANES) * k.width);
    size_t bytes = (right + (k.c_in_place ? 0 : (size_t)(m * k.width))) * sizeof(float);
    float *scratch = bytes ? device->alloc(at->device.index, bytes) : NULL;
    if (bytes && !scratch) return false;
    k.right = scratch;
    k.c = scratch + right;
    multiply(&k);
    if (scratch) device->free(at->device.index, scratch, bytes);
    return true;
}
