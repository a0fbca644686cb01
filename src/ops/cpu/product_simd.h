/*
 * Matrix products: f32 inside, from and to any float dtype but f64. Included by files that are compiled once per kind of
 * machine, so everything is static.
 *
 * b is packed by blocks of some 384 rows and as many columns as the second cache has room for, as panels of a tile's
 * columns. A panel of a, six rows as deep as the block (9 KB: the first cache), meets all of them in turn while they stream
 * by, tile by tile (tile.h); meanwhile what is copied next of a is fetched. (Fetching the next block of b early did not
 * pay.) How the work is shared out never changes the order in which an element is summed.
 */
#include "base/memory.h"
#include "ops/cpu/activations.h"
#include "ops/cpu/lanes.h"
#include "ops/cpu/product.h"
#include "ops/cpu/tile.h"

enum {
    BLOCK_DEPTH = 384,           /* of a block of b, at most */
    BLOCK_WIDTH = 384,           /* at most, */
    SHALLOW_BLOCK = 64 * 1024,   /* or of as many elements where it is less deep */
    GROUP = 8 * TILE_ROWS,       /* rows of a that are packed together: three cache lines of f32 */
    IN_PLACE_ROWS = GROUP / 2,   /* fewer are not worth packing b for */
    DEPTH_UNIT = 16,             /* panels begin at cache lines */
};

/* How a panel of a is read. */
typedef enum left_form {
    IN_PLACE, /* f32 rows, evenly apart */
    COLUMNS,  /* its columns are contiguous: packed */
    ROWS,     /* copied, [6][BLOCK_DEPTH] */
} left_form;

typedef struct block {
    const tr__product_at *at;
    const tr__product *p;    /* what is computed: what was asked for, or with turned set c^T = b^T a^T */
    const tr__product *asked;
    bool turned;
    tr__matrix bias;         /* data NULL: none */
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

/* Up to a vector of a row from column on. */
static inline vec read_lanes(const tr__matrix *m, int64_t row_at, int64_t column, int64_t n)
{
    if (plain(&m->column)) return lanes_load(m->dtype, m->data, row_at + column, n);
    float lanes[WIDTH] = {0};
    for (int64_t i = 0; i < n && i < WIDTH; i++)
        lanes[i] = (float)tr__load(m->dtype, m->data, row_at + tr__axis_at(&m->column, column + i));
    return vec_load(lanes);
}

static inline void write_lanes(const tr__matrix *m, int64_t row_at, int64_t column, int64_t n, vec x)
{
    if (plain(&m->column)) {
        lanes_store(m->dtype, m->data, row_at + column, n, x);
        return;
    }
    float lanes[WIDTH];
    vec_store(lanes, x);
    for (int64_t i = 0; i < n && i < WIDTH; i++)
        tr__store(m->dtype, m->data, row_at + tr__axis_at(&m->column, column + i), lanes[i]);
}

static inline void fetch_line(const void *at)
{
    __builtin_prefetch(at, 0, 2); /* into the second cache */
}

/* sums[0 … n) += sum */
static inline void add_sums(float *sums, const vec *sum, int64_t n)
{
    for (int64_t j = 0; j < n; j += WIDTH)
        lanes_store(TR_F32, sums, j, n - j, lanes_load(TR_F32, sums, j, n - j) + sum[j / WIDTH]);
}

/* ---- b ------------------------------------------------------------------------------------------------------------- */

/* n rows of a panel from row i on, at once: their reads overlap where they miss the cache. */
LANES_INLINE void copy_rows(const block *k, const tr__axis *axis, tr_dtype dtype, int64_t i, int n, int64_t column,
    int64_t columns, float *to, vec sum[TILE_VECTORS])
{
    vec x[4][TILE_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < n; r++) {
        int64_t from = k->at->b + tr__axis_at(axis, k->row + i + r) + column;
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; j++)
            x[r][j] = lanes_load(dtype, k->p->b.data, from + j * WIDTH, columns - j * WIDTH);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; j++) {
            vec_store(to + (i + r) * TILE_COLUMNS + j * WIDTH, x[r][j]);
            sum[j] += x[r][j];
        }
}

/* A panel: to is [depth][64]. Of a whole panel of f32 rows, dtype and columns are constants here. */
LANES_INLINE void pack_rows_of(const block *k, tr_dtype dtype, int64_t column, int64_t columns, float *to)
{
    const tr__axis axis = k->p->b.row; /* a copy: no store below can change it */
    float *sums = k->at->b_sums ? k->at->b_sums + column : NULL;
    vec sum[TILE_VECTORS] = {{0}};
    int64_t i = 0;
    for (; i + 4 <= k->depth; i += 4) copy_rows(k, &axis, dtype, i, 4, column, columns, to, sum);
    for (; i < k->depth; i++) copy_rows(k, &axis, dtype, i, 1, column, columns, to, sum);
    if (sums) add_sums(sums, sum, columns);
}

static void pack_rows(const block *k, int64_t column, int64_t columns, float *to)
{
    if (columns == TILE_COLUMNS && k->p->b.dtype == TR_F32) pack_rows_of(k, TR_F32, column, TILE_COLUMNS, to);
    else pack_rows_of(k, k->p->b.dtype, column, columns, to);
}

/* When neither rows nor columns are contiguous. */
static void pack_elements(const block *k, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &k->p->b;
    for (int64_t i = 0; i < k->depth; i++) {
        int64_t row = k->at->b + tr__axis_at(&b->row, k->row + i);
        for (int64_t j = 0; j < columns; j++) {
            float x = (float)tr__load(b->dtype, b->data, row + tr__axis_at(&b->column, column + j));
            to[i * TILE_COLUMNS + j] = x;
            if (k->at->b_sums) k->at->b_sums[column + j] += x;
        }
    }
}

/* When columns are contiguous, as those of a weight [out, in] are. */
static void pack_columns(const block *k, int64_t column, int64_t columns, float *to)
{
    const tr__matrix *b = &k->p->b;
    for (int64_t j = 0; j < columns; j += WIDTH) {
        int64_t wide = columns - j < WIDTH ? columns - j : WIDTH;
        for (int64_t i = 0; i < k->depth; i += WIDTH) {
            vec square[WIDTH];
            for (int64_t c = 0; c < WIDTH; c++) {
                int64_t from = k->at->b + tr__axis_at(&b->column, column + j + (c < wide ? c : 0)) + k->row + i;
                square[c] = lanes_load(b->dtype, b->data, from, k->depth - i);
            }
            lanes_transpose(square);
            for (int64_t r = 0; r < WIDTH && i + r < k->depth; r++)
                vec_store(to + (i + r) * TILE_COLUMNS + j, square[r]);
        }
    }
}

static void pack_right(void *arg, int64_t begin, int64_t end)
{
    const block *k = arg;
    const tr__matrix *b = &k->p->b;
    bool by_columns = plain(&b->row) && !k->at->b_sums;
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t j = panel * TILE_COLUMNS, columns = k->columns - j;
        if (columns > TILE_COLUMNS) columns = TILE_COLUMNS;
        float *to = k->right + j * k->depth;
        (plain(&b->column) ? pack_rows : by_columns ? pack_columns : pack_elements)(k, k->column + j, columns, to);
        activate(k->p->b_activation, to, k->depth * TILE_COLUMNS);
    }
}

/* ---- a ------------------------------------------------------------------------------------------------------------- */

/* Panels of a whose columns are contiguous, rows [i, i + n), n <= GROUP: to is [panels][depth][6]. Several at once, since
 * each row of a that is touched brings a whole cache line. */
static void pack_left_of(const block *k, tr_dtype dtype, int64_t i, int64_t n, float *to)
{
    const tr__axis axis = k->p->a.column; /* a copy: no store below can change it */
    for (int64_t r = 0; r < k->depth; r++, to += TILE_ROWS) {
        int64_t from = k->at->a + tr__axis_at(&axis, k->row + r) + i;
#pragma GCC unroll 8
        for (int64_t j = 0; j < GROUP; j += TILE_ROWS)
            lanes_copy_six(dtype, k->p->a.data, from + j, n - j, to + j * k->depth);
    }
}

/* Of a whole group of f32, dtype and n are constants here. */
LANES_INLINE void sum_left(const block *k, tr_dtype dtype, int64_t i, int64_t n, float *sums)
{
    const tr__axis axis = k->p->a.column;
    vec sum[GROUP / WIDTH] = {{0}};
    for (int64_t r = 0; r < k->depth; r++) {
        int64_t from = k->at->a + tr__axis_at(&axis, k->row + r) + i;
#pragma GCC unroll 12
        for (int64_t j = 0; j < GROUP; j += WIDTH) sum[j / WIDTH] += lanes_load(dtype, k->p->a.data, from + j, n - j);
    }
    add_sums(sums, sum, n);
}

/* A whole group of f32 rows, depth a multiple of four. */
static void pack_left_f32(const block *k, int64_t i, float *to)
{
    const tr__axis axis = k->p->a.column;
    const float *data = (const float *)k->p->a.data + k->at->a + i;
    for (int64_t r = 0; r < k->depth; r += 4, to += 4 * TILE_ROWS) {
        const float *row[4];
        for (int j = 0; j < 4; j++) row[j] = data + tr__axis_at(&axis, k->row + r + j);
#pragma GCC unroll 8
        for (int64_t j = 0; j < GROUP; j += TILE_ROWS) lanes_join_sixes(row, j, to + j * k->depth);
    }
}

static void pack_left(const block *k, int64_t i, int64_t n, float *to)
{
    float *sums = k->column == 0 && k->at->a_sums ? k->at->a_sums + i : NULL;
    bool whole = n == GROUP && k->p->a.dtype == TR_F32;
    if (whole && k->depth % 4 == 0) pack_left_f32(k, i, to);
    else pack_left_of(k, k->p->a.dtype, i, n, to);
    if (sums && whole) sum_left(k, TR_F32, i, GROUP, sums);
    else if (sums) sum_left(k, k->p->a.dtype, i, n, sums);
    int64_t panels = (n + TILE_ROWS - 1) / TILE_ROWS;
    activate(k->p->a_activation, to, panels * TILE_ROWS * k->depth);
}

static void copy_left_row(const block *k, int64_t row_at, float *to)
{
    const tr__matrix *a = &k->p->a;
    if (f32_rows(a))
        memcpy(to, (const float *)a->data + row_at + k->row, (size_t)k->depth * sizeof *to);
    else
        for (int64_t c = 0; c < k->depth; c += WIDTH)
            vec_store(to + c, read_lanes(a, row_at, k->row + c, k->depth - c));
}

/* Sets the tile's left side to rows [i, i + rows). packed: what pack_left made of them, or room for a panel. */
static void read_left(const block *k, int64_t i, int64_t rows, float *packed, tile *t)
{
    const tr__matrix *a = &k->p->a;
    t->a = packed;
    t->a_k = 1;
    switch (k->left) {
    case IN_PLACE:
        t->a_row = a->row.stride[0];
        t->a = (const float *)a->data + k->at->a + i * t->a_row + k->row;
        break;
    case COLUMNS:
        t->a_row = 1;
        t->a_k = TILE_ROWS;
        break;
    case ROWS:
        t->a_row = BLOCK_DEPTH;
        for (int64_t r = 0; r < rows; r++)
            copy_left_row(k, k->at->a + tr__axis_at(&a->row, i + r), packed + r * BLOCK_DEPTH);
        activate(k->p->a_activation, packed, (rows - 1) * BLOCK_DEPTH + k->depth);
    }
}

/* Asks for a part, of parts, of what is copied next: a group of columns or a panel of rows. */
static inline void fetch_left(const block *k, int64_t i, int64_t part, int64_t parts)
{
    const tr__matrix *a = &k->p->a;
    int64_t size = a->dtype == TR_F32 ? 4 : 2, high = k->left == COLUMNS ? GROUP : TILE_ROWS, next = i - i % high + high;
    const char *data = (const char *)a->data + k->at->a * size;
    if (k->left == IN_PLACE || next >= a->row.n) return;
    if (k->left == COLUMNS) {
        part += i % GROUP / TILE_ROWS * parts;
        for (int64_t r = part; r < k->depth; r += parts * (GROUP / TILE_ROWS))
            for (int64_t c = 0; c < GROUP * size; c += TR__CACHE_LINE)
                fetch_line(data + (tr__axis_at(&a->column, k->row + r) + next) * size + c);
    } else if (plain(&a->column)) {
        for (int64_t r = next + part; r < next + TILE_ROWS && r < a->row.n; r += parts)
            for (int64_t c = 0; c < k->depth * size; c += TR__CACHE_LINE)
                fetch_line(data + (tr__axis_at(&a->row, r) + k->row) * size + c);
    }
}

/* ---- c ------------------------------------------------------------------------------------------------------------- */

static void write_in_place(const block *k, int64_t i, tile *t)
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

/* Of rows that are complete and written in place. */
static void rows_times_slope(const block *k, int64_t i, int64_t rows)
{
    const tr__product *p = k->p;
    for (int64_t r = i; r < i + rows; r++)
        times_slope(p->slope, (float *)p->c.data + k->at->c + r * p->c.row.stride[0] + k->column,
            (const float *)p->slope_at.data + r * p->slope_at.row.stride[0] + k->column, k->columns);
}

static void advance(tile *t, int64_t columns, int64_t b_panel)
{
    t->b += b_panel;
    t->c += columns;
    if (t->bias) t->bias += columns;
    if (t->residual) t->residual += columns;
}

/* Asks for rows of a tile of c, or of what c will be multiplied by. */
static inline void fetch_tile(const float *first, int64_t row, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < TILE_COLUMNS; j += TR__CACHE_LINE / (int)sizeof(float))
            __builtin_prefetch(first + r * row + j, 0, 3);
}

static inline void fetch_slope(const block *k, int64_t i, int64_t column, int64_t rows)
{
    if (!k->last || !k->c_in_place || !k->p->slope) return;
    int64_t row = k->p->slope_at.row.stride[0];
    fetch_tile((const float *)k->p->slope_at.data + i * row + k->column + column, row, rows);
}

/* Rows [i, i + rows) of c, rows <= 6, in this block. */
static void multiply_panel(const block *k, int64_t i, int64_t rows, float *packed)
{
    int64_t tiles = (k->columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    tile t = {.k = k->depth, .b = k->right, .b_k = TILE_COLUMNS, .add = !k->first};
    if (k->right_in_place) {
        t.b_k = k->p->b.row.stride[0];
        t.b = (const float *)k->p->b.data + k->at->b + k->row * t.b_k + k->column;
    }
    read_left(k, i, rows, packed, &t);
    if (k->c_in_place) {
        write_in_place(k, i, &t);
    } else {
        t.c = k->c + i * k->width;
        t.c_row = k->width;
    }
    for (int64_t j = 0; j < tiles; j++) {
        int64_t vectors = (k->columns - j * TILE_COLUMNS + WIDTH - 1) / WIDTH;
        fetch_left(k, i, j, tiles);
        fetch_tile(t.c, t.c_row, rows);
        fetch_slope(k, i, j * TILE_COLUMNS, rows);
        tile_run(&t, rows, vectors);
        advance(&t, TILE_COLUMNS, k->right_in_place ? TILE_COLUMNS : TILE_COLUMNS * k->depth);
    }
    if (k->last && k->c_in_place && k->p->slope) rows_times_slope(k, i, rows);
}

static void multiply_groups(void *arg, int64_t begin, int64_t end)
{
    const block *k = arg;
    _Alignas(64) float packed[GROUP * BLOCK_DEPTH + WIDTH];
    int64_t m = k->p->a.row.n;
    for (int64_t group = begin; group < end; group++) {
        int64_t i = group * GROUP, n = m - i < GROUP ? m - i : GROUP;
        if (k->left == COLUMNS) pack_left(k, i, n, packed);
        for (int64_t r = 0; r < n; r += TILE_ROWS)
            multiply_panel(k, i + r, n - r < TILE_ROWS ? n - r : TILE_ROWS,
                packed + (k->left == COLUMNS ? r * k->depth : 0));
    }
}

/* Whether tiles can write c, and all that comes to the sums is read as they do: f32 rows. */
static bool writes_in_place(const tr__product *p)
{
    if (!f32_rows(&p->c) || (p->residual.data && !f32_rows(&p->residual))) return false;
    if (p->slope && (p->accumulate || !f32_rows(&p->slope_at))) return false;
    return !p->bias || (p->bias->dtype == TR_F32 && p->bias->stride[0] == 1);
}

/* x * f'(slope_at), a vector of a row. */
static vec vector_times_slope(const tr__product *p, int64_t row_at, int64_t column, int64_t n, vec x)
{
    float g[WIDTH], at[WIDTH];
    vec_store(g, x);
    vec_store(at, read_lanes(&p->slope_at, row_at, column, n));
    times_slope(p->slope, g, at, WIDTH);
    return vec_load(g);
}

/* Up to a vector of a row of c = what was summed, x, (* slope) + bias + residual (+ c). */
static inline void write_sums(const block *k, int64_t row, int64_t column, int64_t n, vec x)
{
    const tr__product *p = k->asked;
    int64_t c_at = k->at->c + tr__axis_at(&p->c.row, row);
    if (p->slope) x = vector_times_slope(p, tr__axis_at(&p->slope_at.row, row), column, n, x);
    if (k->bias.data) x += read_lanes(&k->bias, 0, column, n);
    if (p->residual.data) x += read_lanes(&p->residual, tr__axis_at(&p->residual.row, row), column, n);
    if (p->accumulate) x += read_lanes(&p->c, c_at, column, n);
    write_lanes(&p->c, c_at, column, n, x);
}

/* Where c is not f32 rows of whole vectors. */
static void write_rows(void *arg, int64_t begin, int64_t end)
{
    const block *k = arg;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < k->columns; j += WIDTH)
            write_sums(k, i, k->column + j, k->columns - j, vec_load(k->c + i * k->width + j));
}

/* The same for rows of whole vectors where tiles could have written c, n of them from `row` on. */
static inline void write_plain_sums(const block *k, int64_t row, int64_t column, int64_t n, const vec *x)
{
    const tr__product *p = k->asked;
    int64_t c_row = p->c.row.stride[0], residual_row = p->residual.data ? p->residual.row.stride[0] : 0;
    float *c = (float *)p->c.data + k->at->c + row * c_row + column;
    const float *residual = p->residual.data ? (const float *)p->residual.data + row * residual_row + column : NULL;
    vec bias = p->bias ? vec_load((const float *)tr__ptr(p->bias) + column) : (vec){0};
    for (int64_t r = 0; r < n; r++) {
        vec y = x[r] + bias;
        if (residual) y += vec_load(residual + r * residual_row);
        if (p->accumulate) y += vec_load(c + r * c_row);
        vec_store(c + r * c_row, y);
    }
}

/* Where c^T was computed: its rows, which are c's columns, by squares. */
static void write_turned(void *arg, int64_t begin, int64_t end)
{
    const block *k = arg;
    int64_t rows = k->columns, columns = k->p->a.row.n; /* of c, in this block */
    bool is_plain = !k->asked->slope && writes_in_place(k->asked);
    for (int64_t i = begin * WIDTH; i < end * WIDTH; i += WIDTH) {
        for (int64_t j = 0; j < columns; j += WIDTH) {
            vec square[WIDTH];
            for (int64_t c = 0; c < WIDTH; c++)
                square[c] = vec_load(k->c + (j + c < columns ? j + c : j) * k->width + i);
            lanes_transpose(square);
            int64_t high = rows - i < WIDTH ? rows - i : WIDTH;
            if (is_plain && j + WIDTH <= columns) {
                write_plain_sums(k, k->column + i, j, high, square);
                continue;
            }
            for (int64_t r = 0; r < high; r++)
                write_sums(k, k->column + i + r, j, columns - j, square[r]);
        }
    }
}

/* ---- All of it ------------------------------------------------------------------------------------------------------ */

static void multiply_block(block *k)
{
    int64_t panels = (k->columns + TILE_COLUMNS - 1) / TILE_COLUMNS, m = k->p->a.row.n;
    if (!k->right_in_place) tr__pool_for(k->at->pool, panels, 1, pack_right, k);
    tr__pool_for(k->at->pool, (m + GROUP - 1) / GROUP, 1, multiply_groups, k);
    if (!k->last || k->c_in_place) return;
    if (k->turned) tr__pool_for(k->at->pool, (k->columns + WIDTH - 1) / WIDTH, 8, write_turned, k);
    else tr__pool_for(k->at->pool, m, 64, write_rows, k);
}

static void multiply(block *k)
{
    const tr__product *p = k->p;
    int64_t n = p->b.column.n, deep = p->b.row.n, depth = part_size(deep, BLOCK_DEPTH, DEPTH_UNIT);
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

/* Packing a weight [out, in] turns it around, which takes as long as 10 rows of the product: where rows are few it is
 * cheaper to pack them instead, and to turn c around. The order of the sums stays. */
static bool worth_turning(const tr__product_at *at)
{
    const tr__product *p = at->p;
    int64_t m = p->a.row.n, n = p->b.column.n, depth = p->b.row.n;
    if (at->a_sums || at->b_sums || !plain(&p->b.row) || plain(&p->b.column)) return false;
    return m > IN_PLACE_ROWS && depth * (n - m) > m * n;
}

static tr__matrix turn(tr__matrix m)
{
    tr__axis row = m.row;
    m.row = m.column;
    m.column = row;
    return m;
}

/* Chooses how each matrix is read and written, makes room for what is packed, and computes. */
static bool run_block(block *k)
{
    const tr__product_at *at = k->at;
    const tr__product *p = k->p;
    const tr__device_table *device = tr__device(at->device.kind);
    int64_t m = p->a.row.n, n = p->b.column.n;
    bool whole = n % WIDTH == 0;
    k->left = f32_rows(&p->a) ? IN_PLACE : plain(&p->a.row) && !plain(&p->a.column) ? COLUMNS : ROWS;
    if (at->a_sums) k->left = COLUMNS;
    else if (p->a_activation && k->left == IN_PLACE) k->left = ROWS;
    k->right_in_place = m <= IN_PLACE_ROWS && whole && f32_rows(&p->b) && !at->b_sums && !p->b_activation;
    k->c_in_place = !k->turned && whole && writes_in_place(p);
    int64_t depth = part_size(p->b.row.n, BLOCK_DEPTH, DEPTH_UNIT);
    int64_t most = depth * BLOCK_WIDTH < SHALLOW_BLOCK && depth ? SHALLOW_BLOCK / depth : BLOCK_WIDTH;
    k->width = part_size(n, most, TILE_COLUMNS);
    size_t right = k->right_in_place ? 0 : (size_t)((depth ? depth : 1) * k->width); /* an address, also for no rows */
    size_t bytes = (right + (k->c_in_place ? 0 : (size_t)(m * k->width))) * sizeof(float);
    float *scratch = bytes ? device->alloc(at->device.index, bytes) : NULL;
    if (bytes && !scratch) return false;
    k->right = scratch;
    k->c = scratch ? scratch + right : NULL;
    multiply(k);
    if (scratch) device->free(at->device.index, scratch, bytes);
    return true;
}

/* See tr__product_kernel. */
static bool run_product(const tr__product_at *at)
{
    const tr__product *p = at->p;
    block k = {.at = at, .p = p, .asked = p};
    if (p->bias) k.bias = tr__matrix_of(p->bias);
    if (!worth_turning(at)) return run_block(&k);
    tr__product turned = {.a = turn(p->b), .b = turn(p->a)};
    turned.a_activation = p->b_activation;
    turned.b_activation = p->a_activation;
    tr__product_at there = {.p = &turned, .a = at->b, .b = at->a, .c = at->c, .pool = at->pool, .device = at->device};
    k.at = &there;
    k.p = &turned;
    k.turned = true;
    return run_block(&k);
}
