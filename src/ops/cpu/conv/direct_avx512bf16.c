/*
 * Two neighbouring outputs of a row form a VNNI pair: in dy channel by channel, in x each number beside the one that the next
 * output reads under the same tap. Rows of outputs are processed in order; the rows of x that their taps read are kept as pairs
 * in a ring. The rows of a tile (microkernel.h) are taps, its columns the channels of dy.
 */
#define TILE_VNNI
#include "ops/cpu/conv/direct.h"
#include "ops/cpu/simd/lanes.h"
#include "ops/cpu/simd/microkernel.h"

#include "device/device.h"

enum { PARTS = 16 }; /* of the rows of outputs, which threads share: sums over them go in order */

typedef struct direct {
    const tr__direct *d;
    int64_t rows;  /* of outputs, in all images */
    int64_t parts;
    int64_t row;   /* numbers in a row of x */
    int64_t run;   /* in a row of taps */
    int64_t step;  /* from what a place sees to what the next one does */
    int64_t all;   /* sums: [kh run][k] */
    float *sums;   /* [parts][all] */
} direct;

/* n pairs of numbers that lie `apart` from each other; reads n + apart numbers. */
static void pair_up(const uint16_t *from, int64_t apart, int64_t n, float *to)
{
    for (int64_t i = 0; i < n; i += WIDTH) {
        __mmask16 lanes = lanes_first(n - i);
        __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from + i));
        __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from + apart + i));
        _mm512_mask_storeu_epi32(to + i, lanes, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

/* Adds what a row of x and a row of outputs give to a row of taps. */
static void add_taps(const direct *w, const float *x, const float *dy, float *sums)
{
    const tr__conv2d *s = &w->d->s;
    for (int64_t from = 0; from < w->run; from += TILE_ROWS) {
        tile t = {.k = s->ow / 2, .a = x + from, .a_row = 1, .a_k = 2 * w->step, .b = dy, .b_k = s->k,
            .c = sums + from * s->k, .c_row = s->k, .add = true};
        for (int64_t k = 0; k < s->k; k += TILE_COLUMNS, t.b += TILE_COLUMNS, t.c += TILE_COLUMNS)
            tile_run(&t, w->run - from < TILE_ROWS ? w->run - from : TILE_ROWS, (s->k - k) / WIDTH);
    }
}

/* Rows [begin, end) of outputs onto sums; x: room for kh rows of pairs, dy for one. */
static void add_rows(const direct *w, int64_t begin, int64_t end, float *sums, float *x, float *dy)
{
    const tr__conv2d *s = &w->d->s;
    int64_t high = s->h + 2 * s->padding, have = 0;
    for (int64_t at = begin; at < end; at++) {
        int64_t first = at / s->oh * high + at % s->oh * s->stride; /* row of x, of all images */
        if (at == begin || at % s->oh == 0 || have < first) have = first;
        for (; have < first + s->kh; have++)
            pair_up((const uint16_t *)w->d->x + have * w->row, w->step, w->row - w->step, x + have % s->kh * w->row);
        for (int64_t p = 0; p < s->ow / 2; p++) pair_up((const uint16_t *)w->d->y + (at * s->ow + 2 * p) * s->k, s->k, s->k, dy + p * s->k);
        for (int64_t ky = 0; ky < s->kh; ky++)
            add_taps(w, x + (first + ky) % s->kh * w->row, dy, sums + ky * w->run * s->k);
    }
}

/* x, dy: as add_rows() wants them, one behind the other */
static void add_parts(void *arg, int64_t begin, int64_t end, void *x)
{
    const direct *w = arg;
    float *dy = (float *)x + w->d->s.kh * w->row;
    for (int64_t part = begin; part < end; part++) {
        float *sums = w->sums + part * w->all;
        memset(sums, 0, sizeof *sums * (size_t)w->all);
        add_rows(w, part * w->rows / w->parts, (part + 1) * w->rows / w->parts, sums, x, dy);
    }
}

static void put_sums(const direct *w)
{
    const tr__conv2d *s = &w->d->s;
    int64_t taps = s->kh * w->run;
    for (int64_t k = 0; k < s->k; k++)
        for (int64_t t = 0; t < taps; t++) {
            float *to = w->d->dweight + k * taps + t, sum = w->d->accumulate ? *to : 0;
            for (int64_t part = 0; part < w->parts; part++) sum += w->sums[part * w->all + t * s->k + k];
            *to = sum;
        }
}

bool tr__direct_avx512bf16(const tr__direct *d)
{
    const tr__conv2d *s = &d->s;
    direct w = {.d = d, .rows = s->n * s->oh, .row = (s->w + 2 * s->padding) * s->c, .run = s->kw * s->c,
        .step = s->stride * s->c, .all = s->kh * s->kw * s->c * s->k};
    w.parts = w.rows < PARTS ? w.rows : PARTS;
    size_t bytes = sizeof(float) * (size_t)(w.parts * w.all);
    w.sums = tr__cpu_alloc(d->device.index, bytes);
    if (!w.sums) return false;
    size_t rows = sizeof(float) * (size_t)(s->kh * w.row + s->ow / 2 * s->k);
    bool done = tr__cpu_for(d->device, w.parts, 1, rows, add_parts, &w);
    if (done) put_sums(&w);
    tr__cpu_free(d->device.index, w.sums, bytes);
    return done;
}
