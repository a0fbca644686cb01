/*
 * Scaling pictures, one direction after the other. A pixel of the result lies in the middle of a stretch of the source,
 * and is a weighted mean of the source's pixels around that: their weights fall off linearly and reach zero one pixel
 * away, or one pixel of the result when that is the larger.
 */
#include "data/picture.h"

#include <math.h>
#include <stdlib.h>

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

/* rows: [height of the picture, width, 3] */
static void scale_rows(const tr__picture *p, const filter *across, int width, float *rows)
{
    for (int y = 0; y < p->height; y++) {
        const unsigned char *source = p->rgb + (size_t)y * (size_t)p->width * 3;
        float *to = rows + (size_t)y * (size_t)width * 3;
        for (int x = 0; x < width; x++) {
            const float *weights = across->weights + (size_t)x * (size_t)across->most;
            const unsigned char *from = source + (size_t)across->first[x] * 3;
            float r = 0, g = 0, b = 0;
            for (int i = 0; i < across->count[x]; i++) {
                r += weights[i] * from[3 * i];
                g += weights[i] * from[3 * i + 1];
                b += weights[i] * from[3 * i + 2];
            }
            to[3 * x] = r;
            to[3 * x + 1] = g;
            to[3 * x + 2] = b;
        }
    }
}

/* sums: [width, 3], room for one row */
static void scale_columns(const float *rows, const filter *down, int width, int height, float *sums, float *planes)
{
    size_t row = (size_t)width * 3, plane = (size_t)width * (size_t)height;
    for (int y = 0; y < height; y++) {
        const float *weights = down->weights + (size_t)y * (size_t)down->most;
        const float *from = rows + (size_t)down->first[y] * row;
        for (size_t x = 0; x < row; x++) sums[x] = weights[0] * from[x];
        for (int i = 1; i < down->count[y]; i++)
            for (size_t x = 0; x < row; x++) sums[x] += weights[i] * from[(size_t)i * row + x];
        float *to = planes + (size_t)y * (size_t)width;
        for (int c = 0; c < 3; c++)
            for (int x = 0; x < width; x++) to[(size_t)c * plane + (size_t)x] = sums[3 * x + c];
    }
}

tr_status tr__picture_scale(const tr__picture *picture, int width, int height, float *planes)
{
    filter across = {0}, down = {0};
    float *rows = malloc((size_t)(picture->height + 1) * (size_t)width * 3 * sizeof *rows);
    tr_status status = rows ? TR_OK : tr__fail(TR_NO_MEMORY, "no memory to scale a picture");
    if (status == TR_OK) status = filter_make(&across, picture->width, width);
    if (status == TR_OK) status = filter_make(&down, picture->height, height);
    if (status == TR_OK) {
        scale_rows(picture, &across, width, rows);
        scale_columns(rows, &down, width, height, rows + (size_t)picture->height * (size_t)width * 3, planes);
    }
    filter_free(&across);
    filter_free(&down);
    free(rows);
    return status;
}
