/*
 * The blocked gemm: sums in f32, from and to any float dtype but f64. Included by files that are compiled once per kind of
 * machine, so everything is static.
 *
 * b is packed by blocks of some 384 steps (pack.h; for AMX see block.h) and as many columns as the second-level cache holds, as
 * panels of the microkernel's columns. A panel of a, six rows as deep as the block (9 KB: the first-level cache), meets all panels
 * of b in turn, tile by tile, while the panel of a that is copied next is prefetched. (Prefetching the next block of b did not
 * pay.)
 * How the work is divided among threads never changes the order in which an element is summed.
 */
#include "ops/cpu/gemm/pack.h"

/* ---- a ------------------------------------------------------------------------------------------------------------- */

/* Points the tile's a at rows [i, i + rows). packed: what pack_a made of them, or room for a panel. */
static void set_a(const block *blk, int64_t i, int64_t rows, float *packed, tile *t)
{
    const tr__matrix *a = &blk->p->a;
    t->a = packed;
    t->a_k = 1;
    switch (blk->a_form) {
    case A_IN_PLACE:
        t->a_row = a->row.stride[0] / ROWS_IN_STEP;
        t->a = (const float *)(const void *)((const packed_number *)a->data + blk->task->a + i * a->row.stride[0] + blk->row);
        break;
    case A_PACKED:
        t->a_row = PACKED_ROW;
        t->a_k = PACKED_STEP;
        break;
    case A_COPIED:
        t->a_row = BLOCK_DEPTH;
        copy_a(blk, i, rows, packed);
    }
}

/* Prefetches a part, of parts, of the group of columns or the panel of rows that is copied next, to the second-level cache. */
static inline void prefetch_a(const block *blk, int64_t i, int64_t part, int64_t parts)
{
    const tr__matrix *a = &blk->p->a;
    int64_t size = a->dtype == TR_F32 ? 4 : 2, high = blk->a_form == A_PACKED ? GROUP : TILE_ROWS, next = i - i % high + high;
    const char *data = (const char *)a->data + blk->task->a * size;
    if (blk->a_form == A_IN_PLACE || next >= a->row.n) return;
    if (blk->a_form == A_PACKED) {
        part += i % GROUP / TILE_ROWS * parts;
        for (int64_t r = part; r < blk->depth; r += parts * (GROUP / TILE_ROWS))
            for (int64_t c = 0; c < GROUP * size; c += TR__CACHE_LINE)
                __builtin_prefetch(data + (tr__axis_at(&a->column, blk->row + r) + next) * size + c, 0, 2);
    } else if (tr__axis_contiguous(&a->column)) {
        for (int64_t r = next + part; r < next + TILE_ROWS && r < a->row.n; r += parts)
            for (int64_t c = 0; c < blk->depth * size; c += TR__CACHE_LINE)
                __builtin_prefetch(data + (tr__axis_at(&a->row, r) + blk->row) * size + c, 0, 2);
    }
}

/* ---- c ------------------------------------------------------------------------------------------------------------- */

/* Points the tile's c at the rows from i on. sums: room for a panel's. */
static void set_c(const block *blk, int64_t i, float *sums, tile *t)
{
    const tr__gemm *p = blk->p;
    if (!blk->c_in_place) {
        t->c = blk->sums ? blk->sums + i * blk->width : sums;
        t->c_row = blk->sums || !BY_TILES ? blk->width : TILE_COLUMNS;
        if (!blk->last || !blk->bf16_in_place) return;
        t->c_bf16_row = p->c.row.stride[0];
        t->c_bf16 = (uint16_t *)p->c.data + blk->task->c + i * t->c_bf16_row + blk->column;
        if (p->bias) t->bias = (const float *)tr__ptr(p->bias) + blk->column;
        return;
    }
    t->c = (float *)p->c.data + blk->task->c + i * p->c.row.stride[0] + blk->column;
    t->c_row = p->c.row.stride[0];
    t->add = !blk->first || p->accumulate;
    t->stream = blk->stream;
    if (!blk->last) return;
    if (p->bias) t->bias = (const float *)tr__ptr(p->bias) + blk->column;
    if (!p->residual.data) return;
    t->residual_row = p->residual.row.stride[0];
    t->residual = (const float *)p->residual.data + i * t->residual_row + blk->column;
}

/* A tile's columns of rows [i, i + rows) of m, to the first-level cache. */
static inline void prefetch_tile(const tr__matrix *m, int64_t at, int64_t i, int64_t rows, int64_t column)
{
    int64_t size = m->dtype == TR_F32 ? 4 : 2;
    if (!m->data || !tr__axis_contiguous(&m->column)) return;
    for (int64_t r = i; r < i + rows; r++) {
        const char *row = (const char *)m->data + (at + tr__axis_at(&m->row, r) + column) * size;
        for (int64_t j = 0; j < TILE_COLUMNS * size; j += TR__CACHE_LINE) __builtin_prefetch(row + j, 0, 3);
    }
}

/* What the tile at rows [i, i + rows) and the column of c is added to, multiplied by or written to. */
static inline void prefetch_c(const block *blk, int64_t i, int64_t rows, int64_t column)
{
    if (blk->transposed || blk->stream) return;
    if (blk->c_in_place || blk->last) prefetch_tile(&blk->p->c, blk->task->c, i, rows, column);
    if (blk->last && blk->p->slope) prefetch_tile(&blk->p->slope_at, 0, i, rows, column);
}

/* Whether the microkernel can write c: it and all that is added to the sums are f32 rows. */
static bool writes_in_place(const tr__gemm *p)
{
    if (!f32_rows(&p->c) || (p->residual.data && !f32_rows(&p->residual))) return false;
    if (p->slope && (p->accumulate || !f32_rows(&p->slope_at))) return false;
    return !p->bias || (p->bias->dtype == TR_F32 && p->bias->stride[0] == 1);
}

/* square[r] *= f'(slope_at) for r < high: up to a vector, n numbers, of each row of c from (row, column) on. All at once, so
 * that the evaluations overlap. */
static void square_times_slope(const tr__gemm *p, int64_t row, int64_t column, int64_t high, int64_t n, vec square[WIDTH])
{
    float g[WIDTH * WIDTH], at[WIDTH * WIDTH];
    for (int64_t r = 0; r < high; r++) {
        vec_store(g + r * WIDTH, square[r]);
        vec_store(at + r * WIDTH, read_lanes(&p->slope_at, tr__axis_at(&p->slope_at.row, row + r), column, n));
    }
    times_slope(p->slope, g, at, high * WIDTH);
    for (int64_t r = 0; r < high; r++) square[r] = vec_load(g + r * WIDTH);
}

/* Up to a vector of a row of c = the sums x + bias + residual (+ c). */
static inline void write_sums(const block *blk, int64_t row, int64_t column, int64_t n, vec x)
{
    const tr__gemm *p = blk->requested;
    int64_t c_at = blk->task->c + tr__axis_at(&p->c.row, row);
    if (blk->bias.data) x += read_lanes(&blk->bias, 0, column, n);
    if (p->residual.data) x += read_lanes(&p->residual, tr__axis_at(&p->residual.row, row), column, n);
    if (p->accumulate) x += read_lanes(&p->c, c_at, column, n);
    write_lanes(&p->c, c_at, column, n, x);
}

/* sums[0 … n) *= f'(slope_at), of a row of c from column on; whole vectors. */
static void row_times_slope(const tr__gemm *p, int64_t row, int64_t column, int64_t n, float *sums)
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

/* n numbers of a row of c, from a column on, from their sums, where the microkernel does not write it. */
static void write_row(const block *blk, int64_t row, int64_t column, int64_t n, const float *sums)
{
    const tr__gemm *p = blk->requested;
    bool plain_bias = !p->bias || (p->bias->dtype == TR_F32 && tr__axis_contiguous(&blk->bias.column));
    if (p->c.dtype == TR_BF16 && tr__axis_contiguous(&p->c.column) && !p->accumulate && !p->residual.data && plain_bias) {
        int64_t c_at = blk->task->c + tr__axis_at(&p->c.row, row) + column;
        const float *bias = p->bias ? (const float *)blk->bias.data + column : NULL;
        if (bias) write_plain_row(TR_BF16, p->c.data, c_at, sums, bias, n);
        else write_plain_row(TR_BF16, p->c.data, c_at, sums, NULL, n);
        return;
    }
    for (int64_t j = 0; j < n; j += WIDTH) write_sums(blk, row, column + j, n - j, vec_load(sums + j));
}

/* What follows the sums of rows [i, i + rows) and n columns of c, from a column on. */
static void finish_rows(const block *blk, int64_t i, int64_t rows, int64_t column, int64_t n, float *sums, int64_t sums_row)
{
    if (!blk->last || blk->transposed) return;
    for (int64_t r = 0; r < rows && blk->p->slope; r++)
        row_times_slope(blk->requested, i + r, column, n, sums + r * sums_row);
    if (blk->c_in_place || blk->bf16_in_place) return;
    for (int64_t r = 0; r < rows; r++) write_row(blk, i + r, column, n, sums + r * sums_row);
}

/* As write_sums for n rows of whole vectors, where the microkernel could have written c. */
static inline void write_plain_sums(const block *blk, int64_t row, int64_t column, int64_t n, const vec *x)
{
    const tr__gemm *p = blk->requested;
    int64_t c_row = p->c.row.stride[0], residual_row = p->residual.data ? p->residual.row.stride[0] : 0;
    float *c = (float *)p->c.data + blk->task->c + row * c_row + column;
    const float *residual = p->residual.data ? (const float *)p->residual.data + row * residual_row + column : NULL;
    vec bias = p->bias ? vec_load((const float *)tr__ptr(p->bias) + column) : (vec){0};
    for (int64_t r = 0; r < n; r++) {
        vec y = x[r] + bias;
        if (residual) y += vec_load(residual + r * residual_row);
        if (p->accumulate) y += vec_load(c + r * c_row);
        vec_store(c + r * c_row, y);
    }
}

/* Where c^T was computed: its rows become c's columns, one square of vectors at a time. */
static void write_transposed(void *arg, int64_t begin, int64_t end)
{
    const block *blk = arg;
    int64_t rows = blk->columns, columns = blk->p->a.row.n; /* of c, in this block */
    bool is_plain = writes_in_place(blk->requested);
    for (int64_t i = begin * WIDTH; i < end * WIDTH; i += WIDTH) {
        for (int64_t j = 0; j < columns; j += WIDTH) {
            vec square[WIDTH];
            for (int64_t c = 0; c < WIDTH; c++)
                square[c] = vec_load(blk->sums + (j + c < columns ? j + c : j) * blk->width + i);
            lanes_transpose(square);
            int64_t high = rows - i < WIDTH ? rows - i : WIDTH;
            if (blk->requested->slope)
                square_times_slope(blk->requested, blk->column + i, blk->from + j, high, columns - j, square);
            if (is_plain && j + WIDTH <= columns) {
                write_plain_sums(blk, blk->column + i, blk->from + j, high, square);
                continue;
            }
            for (int64_t r = 0; r < high; r++)
                write_sums(blk, blk->column + i + r, blk->from + j, columns - j, square[r]);
        }
    }
}

/* Rows [i, i + rows) of c, rows <= TILE_ROWS, in this block. */
static void multiply_panel(const block *blk, int64_t i, int64_t rows, float *packed)
{
    int64_t tiles = (blk->columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    _Alignas(TR__CACHE_LINE) float sums[TILE_ROWS * NARROW];
    tile t = {.k = blk->steps, .b = blk->b, .b_k = TILE_COLUMNS, .add = !blk->first};
    if (blk->b_in_place) {
        t.b_k = blk->p->b.row.stride[0];
        t.b = (const float *)blk->p->b.data + blk->task->b + blk->row * t.b_k + blk->column;
    }
    set_a(blk, i, rows, packed, &t);
    set_c(blk, i, sums, &t);
    for (int64_t j = 0; j < tiles; j++) {
        int64_t columns = blk->columns - j * TILE_COLUMNS, column = blk->column + j * TILE_COLUMNS;
        prefetch_a(blk, i, j, tiles);
        prefetch_c(blk, i, rows, column);
        tile_run(&t, rows, (columns + WIDTH - 1) / WIDTH);
        if (BY_TILES) finish_rows(blk, i, rows, column, columns < TILE_COLUMNS ? columns : TILE_COLUMNS, t.c, t.c_row);
        t.b += blk->b_in_place ? TILE_COLUMNS : TILE_COLUMNS * blk->steps;
        if (t.c != sums || !BY_TILES) t.c += TILE_COLUMNS;
        if (t.c_bf16) t.c_bf16 += TILE_COLUMNS;
        if (t.bias) t.bias += TILE_COLUMNS;
        if (t.residual) t.residual += TILE_COLUMNS;
    }
    if (!BY_TILES) finish_rows(blk, i, rows, blk->column, blk->columns, t.c - tiles * TILE_COLUMNS, t.c_row);
}

/* Rows that are shared out together. */
static int64_t rows_of_unit(const block *blk)
{
    return blk->a_form == A_PACKED ? GROUP : TILE_ROWS;
}

static void multiply_units(void *arg, int64_t begin, int64_t end)
{
    const block *blk = arg;
    _Alignas(64) float packed[GROUP * BLOCK_DEPTH + WIDTH];
    int64_t m = blk->p->a.row.n, high = rows_of_unit(blk);
    tile_begin();
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t i = unit * high, n = m - i < high ? m - i : high;
        if (blk->a_form == A_PACKED) pack_a(blk, i, n, packed);
        for (int64_t r = 0; r < n; r += TILE_ROWS)
            multiply_panel(blk, i + r, n - r < TILE_ROWS ? n - r : TILE_ROWS,
                packed + (blk->a_form == A_PACKED ? r * blk->steps : 0));
    }
    tile_end();
    if (blk->stream) vec_stream_end();
}

/* ---- All of it ------------------------------------------------------------------------------------------------------ */

static void multiply_block(block *blk)
{
    int64_t panels = (blk->columns + TILE_COLUMNS - 1) / TILE_COLUMNS, m = blk->p->a.row.n;
    if (!blk->b_in_place) tr__pool_for(blk->task->pool, panels, 1, pack_b, blk);
    int64_t high = rows_of_unit(blk);
    tr__pool_for(blk->task->pool, (m + high - 1) / high, 1, multiply_units, blk);
    if (blk->last && blk->transposed) tr__pool_for(blk->task->pool, (blk->columns + WIDTH - 1) / WIDTH, 8, write_transposed, blk);
}

static void multiply(block *blk)
{
    const tr__gemm *p = blk->p;
    int64_t n = p->b.column.n, deep = p->b.row.n;
    int64_t depth = part_size(deep, BLOCK_DEPTH * ROWS_IN_STEP, DEPTH_UNIT * ROWS_IN_STEP);
    for (blk->column = 0; blk->column < n; blk->column += blk->width) {
        blk->columns = n - blk->column < blk->width ? n - blk->column : blk->width;
        blk->row = 0;
        do { /* once also when there is nothing to sum */
            blk->depth = deep - blk->row < depth ? deep - blk->row : depth;
            blk->steps = (blk->depth + ROWS_IN_STEP - 1) / ROWS_IN_STEP;
            blk->first = blk->row == 0;
            blk->last = blk->row + blk->depth == deep;
            multiply_block(blk);
            blk->row += blk->depth;
        } while (blk->row < deep);
    }
}

/* Packing a weight [out, in] transposes it, which takes as long as 10 rows of the gemm: with few rows it is cheaper to pack
 * those instead, and to transpose c. The order of the sums stays. */
static bool transposing_pays(const tr__gemm_task *task)
{
    const tr__gemm *p = task->p;
    int64_t m = p->a.row.n, n = p->b.column.n, depth = p->b.row.n;
    if (task->a_sums || task->b_sums || !tr__axis_contiguous(&p->b.row) || tr__axis_contiguous(&p->b.column)) return false;
    return m > IN_PLACE_ROWS && depth * (n - m) > m * n;
}

/* Whether c, which the microkernel writes once, is so large that it should not enter the caches. Its vectors are aligned. */
static bool streaming_pays(const tr__gemm_task *task)
{
    const tr__gemm *p = task->p;
    if (p->accumulate || p->residual.data || p->slope || p->c.row.stride[0] % WIDTH) return false;
    if ((uintptr_t)((const float *)p->c.data + task->c) % sizeof(vec)) return false;
    return p->a.row.n * p->b.column.n * (int64_t)sizeof(float) >= STREAMED;
}

/* Chooses how each matrix is read and written, makes room for what is packed, and computes. */
static bool run_block(block *blk)
{
    const tr__gemm_task *task = blk->task;
    const tr__gemm *p = blk->p;
    int64_t m = p->a.row.n, n = p->b.column.n;
    bool whole = n % WIDTH == 0;
    bool a_columns = tr__axis_contiguous(&p->a.row) && !tr__axis_contiguous(&p->a.column);
    if (task->a_sums) blk->a_form = A_PACKED;
    else if (reads_a_in_place(&p->a)) blk->a_form = p->a_activation ? A_COPIED : A_IN_PLACE;
    else blk->a_form = a_columns ? A_PACKED : A_COPIED;
    blk->b_in_place = ROWS_IN_STEP == 1 && m <= IN_PLACE_ROWS && whole && f32_rows(&p->b) && !task->b_sums && !p->b_activation;
    blk->c_in_place = !blk->transposed && whole && writes_in_place(p);
    blk->bf16_in_place = !blk->transposed && whole && writes_bf16_in_place(p);
    int64_t deep = (p->b.row.n + ROWS_IN_STEP - 1) / ROWS_IN_STEP, steps = part_size(deep, BLOCK_DEPTH, DEPTH_UNIT);
    bool at_once = deep <= steps;
    blk->stream = at_once && blk->c_in_place && streaming_pays(task);
    int64_t most = steps * BLOCK_WIDTH < SHALLOW_BLOCK && steps ? SHALLOW_BLOCK / steps : BLOCK_WIDTH;
    blk->width = part_size(n, most, TILE_COLUMNS);
    size_t packed = blk->b_in_place ? 0 : (size_t)((steps ? steps : 1) * blk->width); /* an address, also for no rows */
    bool no_sums = blk->c_in_place || (at_once && (BY_TILES || blk->width <= NARROW) && !blk->transposed);
    size_t bytes = (packed + (no_sums ? 0 : (size_t)(m * blk->width))) * sizeof(float);
    float *scratch = bytes ? tr__cpu_alloc(task->device.index, bytes) : NULL;
    if (bytes && !scratch) return false;
    blk->b = scratch;
    blk->sums = no_sums ? NULL : scratch + packed;
    multiply(blk);
    if (scratch) tr__cpu_free(task->device.index, scratch, bytes);
    return true;
}

/* c^T = b^T a^T of columns [from, from + columns) of b. */
static bool run_transposed(const tr__gemm_task *task, const tr__matrix *bias, int64_t from, int64_t columns)
{
    const tr__gemm *p = task->p;
    tr__gemm transposed = {.a = tr__matrix_transposed(p->b), .b = tr__matrix_transposed(p->a)};
    transposed.a_activation = p->b_activation;
    transposed.b_activation = p->a_activation;
    int64_t b_at = task->b + tr__axis_at(&p->b.column, from);
    if (transposed.a.row.ndim == 1) transposed.a.row.n = transposed.a.row.dim[0] = columns;
    tr__gemm_task there = {.p = &transposed, .a = b_at, .b = task->a, .c = task->c, .pool = task->pool, .device = task->device};
    block blk = {.task = &there, .p = &transposed, .requested = p, .transposed = true, .from = from, .bias = *bias};
    return run_block(&blk);
}

/* See tr__gemm_kernel. */
static bool run_gemm(const tr__gemm_task *task)
{
    const tr__gemm *p = task->p;
    tr__matrix bias = {0};
    if (p->bias) bias = tr__matrix_of(p->bias);
    if (!transposing_pays(task)) {
        block blk = {.task = task, .p = p, .requested = p, .bias = bias};
        return run_block(&blk);
    }
    int64_t n = p->b.column.n, most = p->b.column.ndim == 1 ? TRANSPOSED_COLUMNS : n;
    for (int64_t from = 0; from < n; from += most)
        if (!run_transposed(task, &bias, from, n - from < most ? n - from : most)) return false;
    return true;
}
