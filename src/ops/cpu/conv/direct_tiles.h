/*
 * Direct convolutions (direct.h) by the microkernel. Included by files that are compiled once per kind of machine.
 *
 * Forward, the rows of a tile are neighbouring outputs, its columns the channels of the output; the sum runs over kh rows of
 * taps, each kw*c floats. For the gradient of weights the rows of a tile are taps, and the sum runs over the outputs of some
 * rows of an image.
 *
 * With channels that do not fill a vector, whole vectors are written, and the channels of the next output overwrite the rest;
 * so rows of outputs are computed in a buffer. A vector of dy then contains channels of the next output, which are ignored.
 */
#include "base/memory.h"
#include "ops/cpu/conv/direct.h"
#include "ops/cpu/simd/microkernel.h"

enum { BAND_BYTES = 24 * 1024 }; /* of dy that all taps read: the first-level cache */

typedef struct direct {
    const tr__direct *d;
    int64_t row;     /* floats of a row of x */
    int64_t run;     /* of a row of taps */
    int64_t columns; /* output channels, rounded up to vectors */
    int64_t width;   /* of a panel of them */
    float *weight;   /* [panels][kh run][width], zeros behind the last channel */
    float *bias;     /* [columns] */
    float *sums;     /* of dweight: [kh][run][columns] */
    float *last;     /* a padded copy of the last band of dy, as its last vectors reach beyond the end; NULL: they do not */
    int64_t tap_tiles;
} direct;

static inline int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

static direct direct_of(const tr__direct *d)
{
    direct w = {.d = d, .row = (d->s.w + 2 * d->s.padding) * d->s.c, .run = d->s.kw * d->s.c};
    w.columns = (int64_t)tr__round_up((size_t)d->s.k, WIDTH);
    w.width = at_most(w.columns, TILE_COLUMNS);
    w.tap_tiles = (w.run + TILE_ROWS - 1) / TILE_ROWS;
    return w;
}

/* Part i of n things in parts of about one size: where it begins. */
static inline int64_t part_begins(int64_t n, int64_t parts, int64_t i)
{
    return n / parts * i + at_most(i, n % parts);
}

/* The row of pixels of image n that the first taps of output row oy read. */
static const float *pixels_of(const direct *w, int64_t n, int64_t oy)
{
    const tr__conv2d *s = &w->d->s;
    return (const float *)w->d->x + (n * (s->h + 2 * s->padding) + oy * s->stride) * w->row;
}

/* ---- Forward ------------------------------------------------------------------------------------------------------- */

static void pack_weight(const direct *w)
{
    const tr__conv2d *s = &w->d->s;
    int64_t all = s->kh * w->run;
    for (int64_t k = 0; k < w->columns; k++) {
        float *to = w->weight + k / w->width * w->width * all + k % w->width;
        for (int64_t t = 0; t < all; t++) to[t * w->width] = k < s->k ? w->d->weight[k * all + t] : 0;
        w->bias[k] = k < s->k && w->d->bias ? w->d->bias[k] : 0;
    }
}

/* A panel of channels of a row of outputs, places c_row apart. */
static void convolve_row(const direct *w, const float *x, int64_t panel, float *c, int64_t c_row)
{
    const tr__conv2d *s = &w->d->s;
    int64_t column = panel * w->width, step = s->stride * s->c, vectors = at_most(w->columns - column, w->width) / WIDTH;
    int64_t parts = (s->ow + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t i = 0; i < parts; i++) {
        int64_t from = part_begins(s->ow, parts, i);
        tile t = {.k = w->run, .a = x + from * step, .a_row = step, .a_k = 1, .repeats = s->kh - 1, .a_repeat = w->row,
            .b = w->weight + column * s->kh * w->run, .b_k = w->width, .c = c + from * c_row + column, .c_row = c_row,
            .bias = w->bias + column};
        tile_run(&t, part_begins(s->ow, parts, i + 1) - from, vectors);
    }
}

/* buffer: NULL, rows are computed in place */
static void convolve_rows(void *arg, int64_t begin, int64_t end, void *buffer)
{
    const direct *w = arg;
    const tr__conv2d *s = &w->d->s;
    int64_t floats = s->ow * s->k, panels = (w->columns + w->width - 1) / w->width;
    for (int64_t at = begin; at < end; at++) {
        float *y = (float *)w->d->y + at * floats;
        for (int64_t panel = 0; panel < panels; panel++)
            convolve_row(w, pixels_of(w, at / s->oh, at % s->oh), panel, buffer ? buffer : y, s->k);
        if (buffer) memcpy(y, buffer, (size_t)floats * sizeof *y);
    }
}

static bool convolve(const tr__direct *d)
{
    direct w = direct_of(d);
    int64_t floats = (int64_t)tr__round_up((size_t)w.columns, (size_t)w.width) * d->s.kh * w.run + w.columns;
    size_t bytes = sizeof(float) * (size_t)floats;
    size_t row = w.columns == d->s.k ? 0 : sizeof(float) * (size_t)(d->s.ow * d->s.k + WIDTH);
    w.bias = tr__cpu_alloc(d->device.index, bytes);
    if (!w.bias) return false;
    w.weight = w.bias + w.columns;
    pack_weight(&w);
    bool done = tr__cpu_for(d->device, d->s.n * d->s.oh, 8, row, convolve_rows, &w);
    tr__cpu_free(d->device.index, w.bias, bytes);
    return done;
}

/* ---- The gradient of weights --------------------------------------------------------------------------------------- */

/* Some taps of a row of them. */
typedef struct taps {
    int64_t ky, from, n;
} taps;

/* sums of the taps += what `rows` rows of an image give, x and dy being theirs. */
static void add_places(const direct *w, const taps *one, const float *x, const float *dy, int64_t rows)
{
    const tr__conv2d *s = &w->d->s;
    tile t = {.k = s->ow, .a = x + one->ky * w->row + one->from, .a_row = 1, .a_k = s->stride * s->c, .repeats = rows - 1,
        .a_repeat = s->stride * w->row, .b = dy, .b_k = s->k, .c = w->sums + (one->ky * w->run + one->from) * w->columns,
        .c_row = w->columns, .add = true};
    for (int64_t column = 0; column < w->columns; column += TILE_COLUMNS) {
        tile_run(&t, one->n, at_most(w->columns - column, TILE_COLUMNS) / WIDTH);
        t.b += TILE_COLUMNS;
        t.c += TILE_COLUMNS;
    }
}

/* Prefetches a part, of parts, of the next band of dy. */
static void prefetch(const float *next, int64_t floats, int64_t part, int64_t parts)
{
    const int64_t line = TR__CACHE_LINE / (int64_t)sizeof(float);
    int64_t begin = part_begins(floats / line, parts, part), end = part_begins(floats / line, parts, part + 1);
    for (int64_t i = begin; i < end; i++) __builtin_prefetch(next + i * line, 0, 2);
}

/* Adds what a band of rows of image n, from oy on, gives to the tiles of taps [begin, end). */
static void add_band(const direct *w, int64_t begin, int64_t end, int64_t n, int64_t oy, int64_t rows, const float *dy)
{
    const tr__conv2d *s = &w->d->s;
    const float *x = pixels_of(w, n, oy);
    for (int64_t i = begin; i < end; i++) {
        taps one = {.ky = i / w->tap_tiles, .from = part_begins(w->run, w->tap_tiles, i % w->tap_tiles)};
        one.n = part_begins(w->run, w->tap_tiles, i % w->tap_tiles + 1) - one.from;
        prefetch(dy + rows * s->ow * s->k, rows * s->ow * s->k, i - begin, end - begin);
        add_places(w, &one, x, dy, rows);
    }
}

/* Rows of dy in a band. */
static int64_t band_of(const tr__conv2d *s)
{
    int64_t band = BAND_BYTES / (s->ow * s->k * (int64_t)sizeof(float));
    return band < 1 ? 1 : band;
}

/* The gradients of some tiles of taps, over all images. */
static void add_taps(void *arg, int64_t begin, int64_t end)
{
    const direct *w = arg;
    const tr__conv2d *s = &w->d->s;
    int64_t row = s->ow * s->k, band = band_of(s);
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t oy = 0; oy < s->oh; oy += band) {
            const float *dy = (const float *)w->d->y + (n * s->oh + oy) * row;
            bool last = n == s->n - 1 && oy + band >= s->oh;
            add_band(w, begin, end, n, oy, at_most(s->oh - oy, band), w->last && last ? w->last : dy);
        }
}

static bool grad_weight(const tr__direct *d)
{
    direct w = direct_of(d);
    int64_t all = d->s.kh * w.run, floats = all * w.columns, tiles = d->s.kh * w.tap_tiles, row = d->s.ow * d->s.k;
    int64_t rest = w.columns == d->s.k ? 0 : ((d->s.oh - 1) % band_of(&d->s) + 1) * row;
    tr__pool *pool = tr__cpu_pool(d->device);
    int threads = tr__pool_threads(pool);
    size_t bytes = sizeof(float) * (size_t)(floats + rest + w.columns);
    w.sums = tr__cpu_alloc(d->device.index, bytes);
    if (!w.sums) return false;
    memset(w.sums, 0, bytes);
    if (rest) {
        w.last = w.sums + floats;
        memcpy(w.last, (const float *)d->y + d->s.n * d->s.oh * row - rest, sizeof(float) * (size_t)rest);
    }
    tr__pool_for(pool, tiles, (tiles + threads - 1) / threads, add_taps, &w); /* each goes over all images once */
    for (int64_t k = 0; k < d->s.k; k++)
        for (int64_t t = 0; t < all; t++) {
            float *to = d->dweight + k * all + t, sum = w.sums[t * w.columns + k];
            *to = d->accumulate ? *to + sum : sum;
        }
    tr__cpu_free(d->device.index, w.sums, bytes);
    return true;
}
