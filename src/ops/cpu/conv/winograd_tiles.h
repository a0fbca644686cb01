/*
 * Winograd's convolutions (winograd.h), for each kind of machine. Blocks of tiles, and slabs of a weight's channels, are so
 * small that their values at all points stay in the caches from pixels to outputs. How the work is divided among threads
 * never changes the order in which an element is summed.
 */
#include "base/memory.h"
#include "device/device.h"
#include "ops/cpu/simd/microkernel.h"
#include "ops/cpu/conv/winograd.h"
#include "ops/cpu/conv/winograd_points.h"

enum {
    ALL_POINTS = POINTS * POINTS,
    LINE = TR__CACHE_LINE / (int)sizeof(float),
    SLAB = 64 * 1024,          /* elements of a weight that are processed at once, */
    BLOCK_TILES = 48,          /* tiles of a convolution, */
    BLOCK_DEPTH = 256,         /* channels that are summed, */
    SUM_TILES = 192,           /* and tiles of a gradient of weights, at most */
    SUM_PANEL = 3 * WIDTH,     /* channels of a panel of those: several tile rows */
    FEW_TILES = 128,           /* up to so many tiles another order of the loops is faster, */
    FEW_SUM_TILES = 256,       /* or so many, for gradients of weights of several slabs: */
    PART_DEPTH = 64,           /* weights are processed in parts of so many channels of `from` */
    PART_COLUMNS = 64,         /* and of `to`, */
    PART_SUMS = 48,            /* or of `to` where their gradients are summed: whole panels */
    AHEAD = 8,                 /* weights are prefetched so many channels early */
};

/* Values at the points: [ALL_POINTS][panels][tiles][panel of channels]. Points are padded by a cache line, and rows may be:
 * otherwise all would fall on a few sets of the cache. */
typedef struct field {
    float *at;
    int64_t tiles, panel, row; /* row: from one tile to the next */
    int64_t point;             /* from one point to the next */
} field;

static field field_of(int64_t tiles, int64_t channels, int64_t panel, int64_t row)
{
    int64_t panels = (channels + panel - 1) / panel;
    return (field){.tiles = tiles, .panel = panel, .row = row, .point = panels * tiles * row + LINE};
}

static size_t field_numbers(const field *f)
{
    return (size_t)(ALL_POINTS * f->point);
}

static float *field_at(const field *f, int64_t point, int64_t i, int64_t channel)
{
    return f->at + point * f->point + (channel / f->panel * f->tiles + i) * f->row + channel % f->panel;
}

static void field_places(const field *f, int64_t number, void *to[ALL_POINTS])
{
    for (int64_t i = 0; i < ALL_POINTS; i++) to[i] = field_at(f, i, number, 0);
}

typedef struct job {
    const tr__winograd *w;
    int64_t down, along, tiles;     /* tiles of an image, and of all */
    int64_t first, columns;         /* the slab: channels of `to`, */
    int64_t first_deep, depth;      /* and of `from` */
    float *slab;                    /* convolve: [points][panels][depth][TILE_COLUMNS]; grad_weight: [points][columns][row] */
    int64_t slab_point, slab_row;
    float *zeros;                   /* [most channels], for pixels outside of an image */
    int64_t block;                  /* tiles in one */
    int64_t block_first, block_tiles;
    field x, y;                     /* of a block: of y, or its gradient */
} job;

static job job_of(const tr__winograd *w)
{
    int64_t down = (w->to.h + PLACES - 1) / PLACES, along = (w->to.w + PLACES - 1) / PLACES;
    return (job){.w = w, .down = down, .along = along, .tiles = w->n * down * along, .depth = w->from.c,
        .columns = part_size(w->to.c, SLAB / w->from.c + 1, TR__WINOGRAD_CHANNELS)};
}

/* ---- Memory --------------------------------------------------------------------------------------------------------- */

static size_t bytes_of(size_t numbers)
{
    return numbers * sizeof(float);
}

static float *take(const tr__winograd *w, size_t numbers)
{
    return tr__cpu_alloc(w->device.index, bytes_of(numbers));
}

static void give_back(const tr__winograd *w, float *memory, size_t numbers)
{
    tr__cpu_free(w->device.index, memory, bytes_of(numbers));
}

/* ---- Tiles ---------------------------------------------------------------------------------------------------------- */

/* The size x size pixels that begin at `offset` from where a tile's outputs lie; outside of the image: `outside`. */
static void pixels_of_tile(const job *j, const tr__winograd_images *images, int64_t number, int size, int64_t offset,
    void *outside, void **pixel)
{
    int64_t image = number / (j->down * j->along), top = number / j->along % j->down * PLACES + offset,
            left = number % j->along * PLACES + offset, bytes = (int64_t)tr_dtype_size(images->dtype) * images->c;
    for (int a = 0; a < size; a++) {
        int64_t row = top + a;
        bool inside = row >= 0 && row < images->h;
        char *at = (char *)images->data + ((image * images->h + row) * images->w + left) * bytes;
        for (int b = 0; b < size; b++)
            pixel[a * size + b] = inside && left + b >= 0 && left + b < images->w ? at + b * bytes : outside;
    }
}

/* Channels [first, first + channels) of a tile of images, at the points. */
LANES_INLINE void read_tile_of(tr_dtype dtype, along_one at_points, int size, const job *j, const tr__winograd_images *images,
    int64_t number, int64_t offset, int64_t first, int64_t channels, const field *f, int64_t at)
{
    void *pixel[ALL_POINTS], *point[ALL_POINTS];
    pixels_of_tile(j, images, number, size, offset, j->zeros, pixel);
    field_places(f, at, point);
    for (int64_t begin = 0, to = 0; begin < channels; begin += f->panel, to += f->tiles * f->row) {
        int64_t n = channels - begin < f->panel ? channels - begin : f->panel;
        for (int64_t c = 0; c < n; c += WIDTH)
            along_both(at_points, size, POINTS, dtype, pixel, first + begin + c, TR_F32, point, to + c, (vec){0});
    }
}

/* All channels of a tile of x, and the slab's of a tile of dy. */
static void read_x(const job *j, int64_t number, const field *f, int64_t at)
{
    const tr__winograd_images *x = &j->w->from;
    OF_DTYPE(x->dtype, read_tile_of, pixels_at_points, POINTS, j, x, number, j->w->offset, 0, x->c, f, at);
}

static void read_dy(const job *j, int64_t number, const field *f, int64_t at)
{
    const tr__winograd_images *dy = &j->w->to;
    OF_DTYPE(dy->dtype, read_tile_of, outputs_at_points, PLACES, j, dy, number, 0, j->first, j->columns, f, at);
}

/* The slab's channels of a tile of y. dump: what lies outside of the image, [to.c]. */
LANES_INLINE void write_y_of(tr_dtype dtype, const job *j, int64_t number, const field *f, int64_t at, float *dump)
{
    void *pixel[PLACES * PLACES], *point[ALL_POINTS];
    pixels_of_tile(j, &j->w->to, number, PLACES, 0, dump, pixel);
    field_places(f, at, point);
    for (int64_t c = 0; c < j->columns; c += WIDTH) {
        vec bias = j->w->bias ? vec_load(j->w->bias + j->first + c) : (vec){0};
        along_both(points_to_outputs, POINTS, PLACES, TR_F32, point, c, dtype, pixel, j->first + c, bias);
    }
}

static void write_y(const job *j, int64_t number, const field *f, int64_t at, float *dump)
{
    OF_DTYPE(j->w->to.dtype, write_y_of, j, number, f, at, dump);
}

/* ---- Convolutions, and gradients of their inputs ------------------------------------------------------------------------ */

/* The taps of a vector of channels, `apart` from each other. */
LANES_INLINE void read_taps(const float *from, int64_t apart, float to[TAPS * TAPS][WIDTH])
{
#pragma GCC unroll 3
    for (int first = 0; first < TAPS * TAPS; first += WIDTH) {
        vec square[WIDTH];
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; i++) square[i] = lanes_load(TR_F32, from + i * apart, first, TAPS * TAPS - first);
        lanes_transpose(square);
#pragma GCC unroll 16
        for (int t = 0; t < WIDTH; t++)
            if (first + t < TAPS * TAPS) vec_store(to[first + t], square[t]);
    }
}

static void transform_weights(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const tr__winograd *w = j->w;
    int64_t all = TAPS * TAPS, depth = j->depth;
    int64_t apart = w->gradient ? all : all * w->from.c, next = w->gradient ? all * w->to.c : all;
    float taps[TAPS * TAPS][WIDTH];
    void *tap[TAPS * TAPS], *point[ALL_POINTS];
    for (int i = 0; i < TAPS * TAPS; i++) tap[i] = taps[w->gradient ? TAPS * TAPS - 1 - i : i];
    for (int64_t c = begin * WIDTH; c < end * WIDTH; c += WIDTH) {
        const float *from = w->weight + (j->first + c) * apart + j->first_deep * next;
        for (int i = 0; i < ALL_POINTS; i++)
            point[i] = j->slab + i * j->slab_point + c / TILE_COLUMNS * TILE_COLUMNS * depth + c % TILE_COLUMNS;
        for (int64_t d = 0; d < depth; d++, from += next) {
            for (int i = 0; i < WIDTH && d + AHEAD < depth; i++) __builtin_prefetch(from + AHEAD * next + i * apart);
            read_taps(from, apart, taps);
            along_both(taps_at_points, TAPS, POINTS, TR_F32, tap, 0, TR_F32, point, d * TILE_COLUMNS, (vec){0});
        }
    }
}

/* y (+)= x weight at a point, for the first so many tiles. */
static void multiply_at_point(const job *j, int64_t point, const field *x, const field *y, int64_t tiles)
{
    int64_t depth = j->depth;
    for (int64_t d = 0; d < depth; d += x->panel)
        for (int64_t c = 0; c < j->columns; c += TILE_COLUMNS) {
            tile t = {.k = depth - d < x->panel ? depth - d : x->panel, .a_row = x->row, .a_k = 1, .b_k = TILE_COLUMNS,
                .c_row = y->row, .add = j->first_deep + d > 0};
            t.b = j->slab + point * j->slab_point + c * depth + d * TILE_COLUMNS;
            for (int64_t i = 0; i < tiles; i += TILE_ROWS) {
                t.a = field_at(x, point, i, j->first_deep + d);
                t.c = field_at(y, point, i, c);
                tile_run(&t, tiles - i < TILE_ROWS ? tiles - i : TILE_ROWS, (j->columns - c) / WIDTH);
            }
        }
}

static void convolve_block(const job *j, int64_t first, field *x, field *y, float *dump)
{
    int64_t tiles = j->tiles - first < j->block ? j->tiles - first : j->block;
    for (int64_t i = 0; i < tiles; i++) read_x(j, first + i, x, i);
    for (int64_t point = 0; point < ALL_POINTS; point++) multiply_at_point(j, point, x, y, tiles);
    for (int64_t i = 0; i < tiles; i++) write_y(j, first + i, y, i, dump);
}

/* scratch: x, y, and what lies outside of y's images */
static void convolve_blocks(void *arg, int64_t begin, int64_t end, void *scratch)
{
    const job *j = arg;
    field x = j->x, y = j->y;
    x.at = scratch;
    y.at = x.at + field_numbers(&x);
    for (int64_t block = begin; block < end; block++)
        convolve_block(j, block * j->block, &x, &y, y.at + field_numbers(&y));
}

static void read_x_tiles(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t i = begin; i < end; i++) read_x(j, j->block_first + i, &j->x, i);
}

/* Channels of `to` that begin at j->first, of all tiles: x's numbers are there. */
static void convolve_part(job *j, const field *y, float *dump)
{
    j->columns = j->w->to.c - j->first < PART_COLUMNS ? j->w->to.c - j->first : PART_COLUMNS;
    for (j->first_deep = 0; j->first_deep < j->w->from.c; j->first_deep += PART_DEPTH) {
        int64_t deep = j->w->from.c - j->first_deep;
        j->depth = deep < PART_DEPTH ? deep : PART_DEPTH;
        transform_weights(j, 0, j->columns / WIDTH);
        for (int64_t point = 0; point < ALL_POINTS; point++) multiply_at_point(j, point, &j->x, y, j->tiles);
    }
    for (int64_t i = 0; i < j->tiles; i++) write_y(j, i, y, i, dump);
}

/* scratch: a part's slab, its y, and what lies outside of y's images */
static void convolve_parts(void *arg, int64_t begin, int64_t end, void *scratch)
{
    job j = *(const job *)arg;
    j.slab = scratch;
    j.y.at = j.slab + ALL_POINTS * j.slab_point;
    for (int64_t part = begin; part < end; part++) {
        j.first = part * PART_COLUMNS;
        convolve_part(&j, &j.y, j.y.at + field_numbers(&j.y));
    }
}

/* Few tiles meet a weight's numbers at the points but once: these are made for parts of its channels at a time, which stay in
 * the second cache until all tiles have met them. */
static bool convolve_few(job *j)
{
    const tr__winograd *w = j->w;
    j->x = field_of(j->tiles, w->from.c, PART_DEPTH, PART_DEPTH + LINE);
    size_t x = field_numbers(&j->x), numbers = x + (size_t)w->from.c;
    j->x.at = take(w, numbers);
    if (!j->x.at) return false;
    j->zeros = j->x.at + x;
    memset(j->zeros, 0, sizeof(float) * (size_t)w->from.c);
    tr__pool_for(tr__cpu_pool(w->device), j->tiles, 1, read_x_tiles, j);
    j->y = field_of(j->tiles, PART_COLUMNS, PART_COLUMNS, PART_COLUMNS + LINE);
    j->slab_point = PART_DEPTH * PART_COLUMNS + LINE;
    size_t part = bytes_of((size_t)(ALL_POINTS * j->slab_point) + field_numbers(&j->y) + (size_t)w->to.c);
    bool done = tr__cpu_for(w->device, (w->to.c + PART_COLUMNS - 1) / PART_COLUMNS, 1, part, convolve_parts, j);
    give_back(w, j->x.at, numbers);
    return done;
}

static bool convolve(const tr__winograd *w)
{
    job j = job_of(w);
    if (j.tiles <= FEW_TILES) return convolve_few(&j);
    tr__pool *pool = tr__cpu_pool(w->device);
    int64_t most = j.columns, share = (j.tiles + tr__pool_threads(pool) - 1) / tr__pool_threads(pool);
    int64_t depth = part_size(w->from.c, BLOCK_DEPTH, WIDTH);
    j.block = part_size(j.tiles, share < BLOCK_TILES ? share : BLOCK_TILES, TILE_ROWS);
    j.slab_point = (int64_t)tr__round_up((size_t)most, TILE_COLUMNS) * w->from.c + LINE;
    size_t slab = (size_t)(ALL_POINTS * j.slab_point), numbers = slab + (size_t)w->from.c;
    j.slab = take(w, numbers);
    if (!j.slab) return false;
    j.zeros = j.slab + slab;
    memset(j.zeros, 0, sizeof(float) * (size_t)w->from.c);
    j.x = field_of(j.block, w->from.c, depth, depth + LINE);
    bool done = true;
    for (j.first = 0; j.first < w->to.c && done; j.first += most) {
        j.columns = w->to.c - j.first < most ? w->to.c - j.first : most;
        j.y = field_of(j.block, j.columns, j.columns, j.columns + LINE);
        size_t block = bytes_of(field_numbers(&j.x) + field_numbers(&j.y) + (size_t)w->to.c);
        tr__pool_for(pool, j.columns / WIDTH, 1, transform_weights, &j);
        done = tr__cpu_for(w->device, (j.tiles + j.block - 1) / j.block, 1, block, convolve_blocks, &j);
    }
    give_back(w, j.slab, numbers);
    return done;
}

/* ---- Gradients of weights ------------------------------------------------------------------------------------------------ */

static void read_dy_tiles(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t i = begin; i < end; i++) read_dy(j, j->block_first + i, &j->y, i);
}

/* The slab (+)= dy^T x at a point, over the tiles of the block, from channel k of dy and first_deep of x on. */
static void sum_at_point(const job *j, int64_t point, int64_t k)
{
    for (int64_t c = 0; c < j->depth; c += TILE_COLUMNS) {
        tile t = {.k = j->block_tiles, .a_row = 1, .a_k = j->y.row, .b_k = j->x.row, .c_row = j->slab_row,
            .add = j->block_first > 0};
        t.b = field_at(&j->x, point, 0, j->first_deep + c);
        t.c = j->slab + point * j->slab_point + c;
        for (int64_t i = 0; i < j->columns; i += TILE_ROWS, t.c += TILE_ROWS * t.c_row) {
            t.a = field_at(&j->y, point, 0, k + i);
            tile_run(&t, j->columns - i < TILE_ROWS ? j->columns - i : TILE_ROWS, (j->depth - c) / WIDTH);
        }
    }
}

static void sum_at_points(void *arg, int64_t begin, int64_t end)
{
    for (int64_t point = begin; point < end; point++) sum_at_point(arg, point, 0);
}

/* The taps of a vector of channels, one channel after the other. */
LANES_INLINE void write_taps(float taps[TAPS * TAPS][WIDTH], float *to, bool accumulate)
{
#pragma GCC unroll 3
    for (int first = 0; first < TAPS * TAPS; first += WIDTH, to += WIDTH) {
        vec square[WIDTH] = {{0}};
#pragma GCC unroll 16
        for (int t = 0; t < WIDTH; t++)
            if (first + t < TAPS * TAPS) square[t] = vec_load(taps[first + t]);
        lanes_transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; i++) {
            float *at = to + i * TAPS * TAPS;
            if (accumulate) square[i] += lanes_load(TR_F32, at, 0, TAPS * TAPS - first);
            lanes_store(TR_F32, at, 0, TAPS * TAPS - first, square[i]);
        }
    }
}

/* Of rows of the slab: their sums at the points become taps. */
static void write_weights(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    float taps[TAPS * TAPS][WIDTH];
    void *tap[TAPS * TAPS], *point[ALL_POINTS];
    for (int i = 0; i < TAPS * TAPS; i++) tap[i] = taps[i];
    for (int64_t k = begin; k < end; k++) {
        for (int i = 0; i < ALL_POINTS; i++) point[i] = j->slab + i * j->slab_point + k * j->slab_row;
        float *to = j->w->dweight + ((j->first + k) * j->w->from.c + j->first_deep) * TAPS * TAPS;
        for (int64_t c = 0; c < j->depth; c += WIDTH) {
            along_both(points_to_taps, POINTS, TAPS, TR_F32, point, c, TR_F32, tap, 0, (vec){0});
            write_taps(taps, to + c * TAPS * TAPS, j->w->accumulate);
        }
    }
}

/* All blocks for a slab. x's numbers stay when there is one block only. */
static void sum_slab(job *j)
{
    tr__pool *pool = tr__cpu_pool(j->w->device);
    for (j->block_first = 0; j->block_first < j->tiles; j->block_first += j->block) {
        int64_t left = j->tiles - j->block_first;
        j->block_tiles = left < j->block ? left : j->block;
        if (j->first == 0 || j->tiles > j->block) tr__pool_for(pool, j->block_tiles, 1, read_x_tiles, j);
        tr__pool_for(pool, j->block_tiles, 1, read_dy_tiles, j);
        tr__pool_for(pool, ALL_POINTS, 1, sum_at_points, j);
    }
    tr__pool_for(pool, j->columns, 1, write_weights, j);
}

static void sum_parts(void *arg, int64_t begin, int64_t end, void *slab)
{
    job j = *(const job *)arg;
    j.slab = slab;
    for (int64_t part = begin; part < end; part++) {
        j.first = part * PART_SUMS;
        j.columns = j.w->to.c - j.first < PART_SUMS ? j.w->to.c - j.first : PART_SUMS;
        for (j.first_deep = 0; j.first_deep < j.w->from.c; j.first_deep += PART_DEPTH) {
            int64_t deep = j.w->from.c - j.first_deep;
            j.depth = deep < PART_DEPTH ? deep : PART_DEPTH;
            for (int64_t point = 0; point < ALL_POINTS; point++) sum_at_point(&j, point, j.first);
            write_weights(&j, 0, j.columns);
        }
    }
}

/* Of few tiles: sums at the points stay in the second cache until they become taps. */
static bool grad_weight_few(job *j)
{
    const tr__winograd *w = j->w;
    int64_t channels = w->from.c > w->to.c ? w->from.c : w->to.c;
    j->columns = w->to.c;
    j->block_tiles = j->tiles;
    j->x = field_of(j->tiles, w->from.c, TILE_COLUMNS, TILE_COLUMNS);
    j->y = field_of(j->tiles, w->to.c, SUM_PANEL, SUM_PANEL);
    size_t x = field_numbers(&j->x), dy = field_numbers(&j->y), numbers = x + dy + (size_t)channels;
    j->x.at = take(w, numbers);
    if (!j->x.at) return false;
    j->y.at = j->x.at + x;
    j->zeros = j->y.at + dy;
    memset(j->zeros, 0, sizeof(float) * (size_t)channels);
    tr__pool_for(tr__cpu_pool(w->device), j->tiles, 1, read_x_tiles, j);
    tr__pool_for(tr__cpu_pool(w->device), j->tiles, 1, read_dy_tiles, j);
    j->slab_row = PART_DEPTH + LINE;
    j->slab_point = PART_SUMS * j->slab_row + LINE;
    size_t slab = bytes_of((size_t)(ALL_POINTS * j->slab_point));
    bool done = tr__cpu_for(w->device, (w->to.c + PART_SUMS - 1) / PART_SUMS, 1, slab, sum_parts, j);
    give_back(w, j->x.at, numbers);
    return done;
}

static bool grad_weight(const tr__winograd *w)
{
    job j = job_of(w);
    if (j.tiles <= (j.columns < w->to.c ? FEW_SUM_TILES : FEW_TILES)) return grad_weight_few(&j);
    int64_t most = j.columns, channels = w->from.c > w->to.c ? w->from.c : w->to.c;
    j.block = part_size(j.tiles, SUM_TILES, 1);
    j.x = field_of(j.block, w->from.c, TILE_COLUMNS, TILE_COLUMNS);
    j.y = field_of(j.block, most, SUM_PANEL, SUM_PANEL);
    j.slab_row = w->from.c + LINE;
    j.slab_point = most * j.slab_row + LINE;
    size_t x = field_numbers(&j.x), dy = field_numbers(&j.y), slab = (size_t)(ALL_POINTS * j.slab_point);
    size_t numbers = x + dy + slab + (size_t)channels;
    float *memory = take(w, numbers);
    if (!memory) return false;
    j.x.at = memory;
    j.y.at = j.x.at + x;
    j.slab = j.y.at + dy;
    j.zeros = j.slab + slab;
    memset(j.zeros, 0, sizeof(float) * (size_t)channels);
    for (j.first = 0; j.first < w->to.c; j.first += most) {
        j.columns = w->to.c - j.first < most ? w->to.c - j.first : most;
        sum_slab(&j);
    }
    give_back(w, memory, numbers);
    return true;
}
