/*
 * Scaling an image, row by row: down first, then across. A pixel of the result lies in the middle of a stretch of the
 * source, and is a weighted mean of the source's pixels around that: their weights fall off linearly and reach zero one
 * pixel away, or one pixel of the result when that is the larger.
 */
#include "data/image/image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* libjpeg-turbo writes a row that begins at a multiple of 32 bytes past the caches, from where it is read back slowly:
 * a JPEG of 500 x 375 took 5 % longer. So no row begins there. */
enum { LINE = 64, BEHIND_A_LINE = 16 };

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

static void weigh(tr__image_filter *f, int result, double scale, int source)
{
    double reach = scale > 1 ? scale : 1, middle = (result + 0.5) * scale, sum = 0;
    int first = (int)(middle - reach + 0.5), end = (int)(middle + reach + 0.5);
    if (first < 0) first = 0;
    if (end > source) end = source;
    float *weights = f->weights + (size_t)result * (size_t)f->most;
    for (int i = first; i < end; i++) sum += fmax(0, 1 - fabs((i + 0.5 - middle) / reach));
    for (int i = first; i < end; i++) weights[i - first] = (float)(fmax(0, 1 - fabs((i + 0.5 - middle) / reach)) / sum);
    f->first[result] = first;
    f->count[result] = end - first;
}

static tr_status make_filter(tr__image_filter *f, int source, int results)
{
    double scale = (double)source / results;
    f->most = (int)ceil(scale > 1 ? scale : 1) * 2 + 1;
    f->first = malloc((size_t)results * sizeof *f->first);
    f->count = malloc((size_t)results * sizeof *f->count);
    f->weights = malloc((size_t)results * (size_t)f->most * sizeof *f->weights);
    if (!f->first || !f->count || !f->weights) return tr__fail(TR_NO_MEMORY, "no memory to scale an image");
    for (int i = 0; i < results; i++) weigh(f, i, scale, source);
    return TR_OK;
}

static void free_filter(tr__image_filter *f)
{
    free(f->first);
    free(f->count);
    free(f->weights);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* One row, [source_width, 3]: the weighted sum of those of the source that result row y lies over. */
static void scale_down(const tr__image_scaler *s, int y)
{
    size_t n = (size_t)s->source_width * 3;
    const float *weights = s->down.weights + (size_t)y * (size_t)s->down.most;
    float *restrict mean = s->mean;
    for (int i = 0; i < s->down.count[y]; i++) {
        const unsigned char *restrict from = s->rows + (size_t)((s->down.first[y] + i) % s->held) * s->stride;
        float weight = weights[i];
        if (i == 0)
            for (size_t x = 0; x < n; x++) mean[x] = weight * from[x];
        else
            for (size_t x = 0; x < n; x++) mean[x] += weight * from[x];
    }
}

/* Red, green, blue and what follows, at once. */
typedef float quad __attribute__((vector_size(16)));

/* Sets row y of the three planes; there is a float more behind the row that it is made of. */
static void scale_across(const tr__image_scaler *s, int y)
{
    size_t plane = (size_t)s->width * (size_t)s->height;
    float *to = s->planes + (size_t)y * (size_t)s->width;
    for (int x = 0; x < s->width; x++) {
        const float *weights = s->across.weights + (size_t)x * (size_t)s->across.most;
        const float *from = s->mean + (size_t)s->across.first[x] * 3;
        quad sum = {0}, pixel;
        for (int i = 0; i < s->across.count[x]; i++) {
            memcpy(&pixel, from + 3 * (size_t)i, sizeof pixel);
            sum += weights[i] * pixel;
        }
        for (size_t c = 0; c < 3; c++) to[c * plane + (size_t)x] = sum[c];
    }
}

/* ---- An image ---------------------------------------------------------------------------------------------------- */

tr_status tr__image_scaler_begin(tr__image_scaler *s, uint32_t source_width, uint32_t source_height)
{
    s->source_width = (int)source_width;
    s->source_height = (int)source_height;
    TR__TRY(make_filter(&s->across, s->source_width, s->width));
    TR__TRY(make_filter(&s->down, s->source_height, s->height));
    s->held = s->down.most < s->source_height ? s->down.most : s->source_height;
    s->stride = ((size_t)source_width * 3 + LINE - 1) / LINE * LINE;
    s->memory = aligned_alloc(LINE, ((size_t)s->held + 1) * s->stride);
    s->mean = calloc((size_t)source_width * 3 + 1, sizeof *s->mean);
    if (!s->memory || !s->mean) return tr__fail(TR_NO_MEMORY, "no memory to scale an image");
    s->rows = s->memory + BEHIND_A_LINE;
    return TR_OK;
}

unsigned char *tr__image_scaler_row(const tr__image_scaler *s)
{
    return s->rows + (size_t)(s->taken % s->held) * s->stride;
}

/* A row of the result waits for at most `held` of the source, so that none of them is overwritten before. */
void tr__image_scaler_take(tr__image_scaler *s)
{
    s->taken++;
    for (; s->made < s->height && s->down.first[s->made] + s->down.count[s->made] <= s->taken; s->made++) {
        scale_down(s, s->made);
        scale_across(s, s->made);
    }
}

void tr__image_scaler_end(tr__image_scaler *s)
{
    free_filter(&s->across);
    free_filter(&s->down);
    free(s->memory);
    free(s->mean);
}
