/*
 * Matrix products: sums in f32, from and to any float dtype but f64. Included by files that are compiled once per kind of
 * machine, so everything is static.
 *
 * b is packed by blocks of some 384 steps (rows, or pairs of rows of bf16: tile.h) and as many columns as the second cache
 * has room for, as panels of a tile's columns. A panel of a, six rows as deep as the block (9 KB: the first cache), meets all
 * of them in turn while they stream by, tile by tile; meanwhile what is copied next of a is fetched. (Fetching the next block
 * of b early did not pay.) How the work is shared out never changes the order in which an element is summed.
 */
#include "ops/cpu/product_block.h"

#ifdef TILE_PAIRS
#include "ops/cpu/product_pack_pairs.h"
#else
#include "ops/cpu/product_pack.h"
#endif

/* ---- a and b ------------------------------------------------------------------------------------------------------- */

static void pack_right(void *arg, int64_t begin, int64_t end)
{
    const block *k = arg;
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t j = panel * TILE_COLUMNS, columns = k->columns - j;
        pack_panel(k, k->column + j, columns < TILE_COLUMNS ? columns : TILE_COLUMNS, k->right + j * k->steps);
    }
}

/* Sets the tile's left side to rows [i, i + rows). packed: what pack_left made of them, or room for a panel. */
static void read_left(const block *k, int64_t i, int64_t rows, float *packed, tile *t)
{
    t->a = packed;
    t->a_k = 1;
    switch (k->left) {
    case IN_PLACE: read_left_in_place(k, i, t); break;
    case COLUMNS:
        t->a_row = 1;
        t->a_k = TILE_ROWS;
        break;
    case ROWS:
        t->a_row = BLOCK_DEPTH;
        copy_left(k, i, rows, packed);
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
    t->stream = k->stream;
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

static void write_low_in_place(const block *k, int64_t i, tile *t)
{
    const tr__product *p = k->p;
    t->low_row = p->c.row.stride[0];
    t->low = (uint16_t *)p->c.data + k->at->c + i * t->low_row + k->column;
    if (p->bias) t->bias = (const float *)tr__ptr(p->bias) + k->column;
}

static void advance(tile *t, int64_t columns, int64_t b_panel)
{
    t->b += b_panel;
    t->c += columns;
    if (t->low) t->low += columns;
    if (t->bias) t->bias += columns;
    if (t->residual) t->residual += columns;
}

/* Asks for a tile's columns of rows [i, i + rows) of m. */
static inline void fetch_tile(const tr__matrix *m, int64_t at, int64_t i, int64_t rows, int64_t column)
{
    int64_t size = m->dtype == TR_F32 ? 4 : 2;
    if (!m->data || !plain(&m->column)) return;
    for (int64_t r = i; r < i + rows; r++) {
        const char *row = (const char *)m->data + (at + tr__axis_at(&m->row, r) + column) * size;
        for (int64_t j = 0; j < TILE_COLUMNS * size; j += TR__CACHE_LINE) __builtin_prefetch(row + j, 0, 3);
    }
}

/* Asks for what the tile at column of c, rows [i, i + rows), is added to, multiplied by or written to. */
static inline void fetch_destination(const block *k, int64_t i, int64_t rows, int64_t column)
{
    if (k->turned || k->stream) return;
    if (k->c_in_place || k->last) fetch_tile(&k->p->c, k->at->c, i, rows, column);
    if (k->last && k->p->slope) fetch_tile(&k->p->slope_at, 0, i, rows, column);
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
static inline void write_sums(const block *k, bool slope, int64_t row, int64_t column, int64_t n, vec x)
{
    const tr__product *p = k->asked;
    int64_t c_at = k->at->c + tr__axis_at(&p->c.row, row);
    if (slope) x = vector_times_slope(p, tr__axis_at(&p->slope_at.row, row), column, n, x);
    if (k->bias.data) x += read_lanes(&k->bias, 0, column, n);
    if (p->residual.data) x += read_lanes(&p->residual, tr__axis_at(&p->residual.row, row), column, n);
    if (p->accumulate) x += read_lanes(&p->c, c_at, column, n);
    write_lanes(&p->c, c_at, column, n, x);
}

/* sums[0 … n) *= f'(slope_at), of a row of c from column on; whole vectors. */
static void row_times_slope(const tr__product *p, int64_t row, int64_t column, int64_t n, float *sums)
{
    float at[16 * WIDTH];
    int64_t row_at = tr__axis_at(&p->slope_at.row, row);
    for (int64_t j = 0; j < n; j += 16 * WIDTH) {
        int64_t some = n - j < 16 * WIDTH ? n - j : 16 * WIDTH;
        for (int64_t i = 0; i < some; i += WIDTH) vec_store(at + i, read_lanes(&p->slope_at, row_at, column + j + i, some - i));
        times_slope(p->slope, sums + j, at, some);
    }
}

/* A row of c = sums + bias (NULL: none), n of them. */
LANES_INLINE void write_plain_row(tr_dtype dtype, void *c, int64_t c_at, const float *sums, const float *bias, int64_t n)
{
    for (int64_t j = 0; j < n; j += WIDTH) {
        vec x = vec_load(sums + j);
        if (bias) x += lanes_load(TR_F32, bias, j, n - j);
        lanes_store(dtype, c, c_at + j, n - j, x);
    }
}

/* A row of c in this block, where tiles do not write it: of what was summed. */
static void write_row(const block *k, int64_t row, float *sums)
{
    const tr__product *p = k->asked;
    bool plain_bias = !p->bias || (p->bias->dtype == TR_F32 && plain(&k->bias.column));
    if (p->slope) row_times_slope(p, row, k->column, k->columns, sums);
    if (p->c.dtype == TR_BF16 && plain(&p->c.column) && !p->accumulate && !p->residual.data && plain_bias) {
        int64_t c_at = k->at->c + tr__axis_at(&p->c.row, row) + k->column;
        const float *bias = p->bias ? (const float *)k->bias.data + k->column : NULL;
        if (bias) write_plain_row(TR_BF16, p->c.data, c_at, sums, bias, k->columns);
        else write_plain_row(TR_BF16, p->c.data, c_at, sums, NULL, k->columns);
        return;
    }
    for (int64_t j = 0; j < k->columns; j += WIDTH)
        write_sums(k, false, row, k->column + j, k->columns - j, vec_load(sums + j));
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
                write_plain_sums(k, k->column + i, k->from + j, high, square);
                continue;
            }
            for (int64_t r = 0; r < high; r++)
                write_sums(k, k->asked->slope, k->column + i + r, k->from + j, columns - j, square[r]);
        }
    }
}

/* Rows [i, i + rows) of c, rows <= 6, in this block. */
static void multiply_panel(const block *k, int64_t i, int64_t rows, float *packed)
{
    int64_t tiles = (k->columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    float sums[TILE_ROWS * NARROW];
    tile t = {.k = k->steps, .b = k->right, .b_k = TILE_COLUMNS, .add = !k->first};
    if (k->right_in_place) {
        t.b_k = k->p->b.row.stride[0];
        t.b = (const float *)k->p->b.data + k->at->b + k->row * t.b_k + k->column;
    }
    read_left(k, i, rows, packed, &t);
    if (k->c_in_place) {
        write_in_place(k, i, &t);
    } else {
        t.c = k->c ? k->c + i * k->width : sums;
        t.c_row = k->width;
    }
    float *c = t.c;
    bool low = k->last && k->low_in_place;
    if (low) write_low_in_place(k, i, &t);
    for (int64_t j = 0; j < tiles; j++) {
        int64_t vectors = (k->columns - j * TILE_COLUMNS + WIDTH - 1) / WIDTH;
        fetch_left(k, i, j, tiles);
        fetch_destination(k, i, rows, k->column + j * TILE_COLUMNS);
        tile_run(&t, rows, vectors);
        advance(&t, TILE_COLUMNS, k->right_in_place ? TILE_COLUMNS : TILE_COLUMNS * k->steps);
    }
    if (!k->last) return;
    if (k->c_in_place && k->p->slope) rows_times_slope(k, i, rows);
    for (int64_t r = 0; r < rows && !k->c_in_place && !low && !k->turned; r++) write_row(k, i + r, c + r * k->width);
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
                packed + (k->left == COLUMNS ? r * k->steps : 0));
    }
    if (k->stream) vec_stream_end();
}

/* ---- All of it ------------------------------------------------------------------------------------------------------ */

static void multiply_block(block *k)
{
    int64_t panels = (k->columns + TILE_COLUMNS - 1) / TILE_COLUMNS, m = k->p->a.row.n;
    if (!k->right_in_place) tr__pool_for(k->at->pool, panels, 1, pack_right, k);
    tr__pool_for(k->at->pool, (m + GROUP - 1) / GROUP, 1, multiply_groups, k);
    if (k->last && k->turned) tr__pool_for(k->at->pool, (k->columns + WIDTH - 1) / WIDTH, 8, write_turned, k);
}

static void multiply(block *k)
{
    const tr__product *p = k->p;
    int64_t n = p->b.column.n, deep = p->b.row.n;
    int64_t depth = part_size(deep, BLOCK_DEPTH * ROWS_IN_STEP, DEPTH_UNIT * ROWS_IN_STEP);
    for (k->column = 0; k->column < n; k->column += k->width) {
        k->columns = n - k->column < k->width ? n - k->column : k->width;
        k->row = 0;
        do { /* once also when there is nothing to sum */
            k->depth = deep - k->row < depth ? deep - k->row : depth;
            k->steps = (k->depth + ROWS_IN_STEP - 1) / ROWS_IN_STEP;
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

/* Whether c, which tiles write at once, is better left out of the caches: of vectors that are aligned. */
static bool worth_streaming(const tr__product_at *at)
{
    const tr__product *p = at->p;
    if (p->accumulate || p->residual.data || p->slope || p->c.row.stride[0] % WIDTH) return false;
    if ((uintptr_t)((const float *)p->c.data + at->c) % sizeof(vec)) return false;
    return p->a.row.n * p->b.column.n * (int64_t)sizeof(float) >= STREAMED;
}

/* Chooses how each matrix is read and written, makes room for what is packed, and computes. */
static bool run_block(block *k)
{
    const tr__product_at *at = k->at;
    const tr__product *p = k->p;
    int64_t m = p->a.row.n, n = p->b.column.n;
    bool whole = n % WIDTH == 0;
    k->left = left_in_place(&p->a) ? IN_PLACE : plain(&p->a.row) && !plain(&p->a.column) ? COLUMNS : ROWS;
    if (at->a_sums) k->left = COLUMNS;
    else if (p->a_activation && k->left == IN_PLACE) k->left = ROWS;
    k->right_in_place = ROWS_IN_STEP == 1 && m <= IN_PLACE_ROWS && whole && f32_rows(&p->b) && !at->b_sums && !p->b_activation;
    k->c_in_place = !k->turned && whole && writes_in_place(p);
    k->low_in_place = !k->turned && whole && writes_low_in_place(p);
    int64_t deep = (p->b.row.n + ROWS_IN_STEP - 1) / ROWS_IN_STEP, steps = part_size(deep, BLOCK_DEPTH, DEPTH_UNIT);
    bool at_once = deep <= steps;
    k->stream = at_once && k->c_in_place && worth_streaming(at);
    int64_t most = steps * BLOCK_WIDTH < SHALLOW_BLOCK && steps ? SHALLOW_BLOCK / steps : BLOCK_WIDTH;
    k->width = part_size(n, most, TILE_COLUMNS);
    size_t right = k->right_in_place ? 0 : (size_t)((steps ? steps : 1) * k->width); /* an address, also for no rows */
    bool no_room = k->c_in_place || (at_once && k->width <= NARROW && !k->turned);
    size_t bytes = (right + (no_room ? 0 : (size_t)(m * k->width))) * sizeof(float);
    float *scratch = bytes ? tr__cpu_alloc(at->device.index, bytes) : NULL;
    if (bytes && !scratch) return false;
    k->right = scratch;
    k->c = no_room ? NULL : scratch + right;
    multiply(k);
    if (scratch) tr__cpu_free(at->device.index, scratch, bytes);
    return true;
}

/* c^T = b^T a^T of columns [from, from + columns) of b. */
static bool run_turned(const tr__product_at *at, const tr__matrix *bias, int64_t from, int64_t columns)
{
    const tr__product *p = at->p;
    tr__product turned = {.a = turn(p->b), .b = turn(p->a)};
    turned.a_activation = p->b_activation;
    turned.b_activation = p->a_activation;
    int64_t b_at = at->b + tr__axis_at(&p->b.column, from);
    if (turned.a.row.ndim == 1) turned.a.row.n = turned.a.row.dim[0] = columns;
    tr__product_at there = {.p = &turned, .a = b_at, .b = at->a, .c = at->c, .pool = at->pool, .device = at->device};
    block k = {.at = &there, .p = &turned, .asked = p, .turned = true, .from = from, .bias = *bias};
    return run_block(&k);
}

/* See tr__product_kernel. */
static bool run_product(const tr__product_at *at)
{
    const tr__product *p = at->p;
    tr__matrix bias = {0};
    if (p->bias) bias = tr__matrix_of(p->bias);
    if (!worth_turning(at)) {
        block k = {.at = at, .p = p, .asked = p, .bias = bias};
        return run_block(&k);
    }
    int64_t n = p->b.column.n, most = p->b.column.ndim == 1 ? TURNED_COLUMNS : n;
    for (int64_t from = 0; from < n; from += most)
        if (!run_turned(at, &bias, from, n - from < most ? n - from : most)) return false;
    return true;
}
