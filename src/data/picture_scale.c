/*
 * Scaling pictures, row by row: down first, then across. A pixel of the result lies in the middle of a stretch of the
 * source, and is a weighted mean of the source's pixels around that: their weights fall off linearly and reach zero one
 * pixel away, or one pixel of the result when that is the larger.
 */
#include "data/picture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* For each pixel of the result: the first of the source's, how many, and their weights. */
typedef struct filter {
    int most; /* of the counts */
    int *first, *count;
    float *weights; /* [results, most] */
} filter;

static void filter_free(filter *f)
{
    free(f->first);
    free(f->count);
    free(f->weights);
}

static void weigh(filter *f, int result, double scale, int source)
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

static tr_status filter_make(filter *f, int source, int results)
{
    double scale = (double)source / results;
    f->most = (int)ceil(scale > 1 ? scale : 1) * 2 + 1;
    f->first = malloc((size_t)results * sizeof *f->first);
    f->count = malloc((size_t)results * sizeof *f->count);
    f->weights = malloc((size_t)results * (size_t)f->most * sizeof *f->weights);
    if (!f->first || !f->count || !f->weights) return tr__fail(TR_NO_MEMORY, "no memory to scale a picture");
    for (int i = 0; i < results; i++) weigh(f, i, scale, source);
    return TR_OK;
}

/* One row of the result, [the picture's width, 3]: the weighted sum of some of the picture's. */
static void scale_down(const tr__picture *p, const filter *down, int y, float *row)
{
    size_t n = (size_t)p->width * 3;
    const float *weights = down->weights + (size_t)y * (size_t)down->most;
    const unsigned char *from = p->rgb + (size_t)down->first[y] * n;
    for (size_t x = 0; x < n; x++) row[x] = weights[0] * from[x];
    for (int i = 1; i < down->count[y]; i++) {
        const unsigned char *next = from + (size_t)i * n;
        float weight = weights[i];
        for (size_t x = 0; x < n; x++) row[x] += weight * next[x];
    }
}

/* Red, green, blue and what follows, at once. */
typedef float quad __attribute__((vector_size(16)));

/* Sets that row, of three planes; there is a float more behind row. */
static void scale_across(const float *row, const filter *across, int width, size_t plane, float *to)
{
    for (int x = 0; x < width; x++) {
        const float *weights = across->weights + (size_t)x * (size_t)across->most;
        const float *from = row + (size_t)across->first[x] * 3;
        quad sum = {0}, pixel;
        for (int i = 0; i < across->count[x]; i++) {
            memcpy(&pixel, from + 3 * (size_t)i, sizeof pixel);
            sum += weights[i] * pixel;
        }
        for (size_t c = 0; c < 3; c++) to[c * plane + (size_t)x] = sum[c];
    }
}

tr_status tr__picture_scale(const tr__picture *picture, int width, int height, float *planes)
{
    filter across = {0}, down = {0};
    float *row = calloc((size_t)picture->width * 3 + 1, sizeof *row);
    tr_status status = row ? TR_OK : tr__fail(TR_NO_MEMORY, "no memory to scale a picture");
    if (status == TR_OK) status = filter_make(&across, picture->width, width);
    if (status == TR_OK) status = filter_make(&down, picture->height, height);
    for (int y = 0; status == TR_OK && y < height; y++) {
        scale_down(picture, &down, y, row);
        scale_across(row, &across, width, (size_t)width * (size_t)height, planes + (size_t)y * (size_t)width);
    }
    filter_free(&across);
    filter_free(&down);
    free(row);
    return status;
}
