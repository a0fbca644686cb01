/* Images from JPEG and PNG files, scaled as they are decoded: memory is taken for a few of their rows, not for all. */
#ifndef TR_DATA_IMAGE_IMAGE_H
#define TR_DATA_IMAGE_IMAGE_H

#include "base/object.h"

/* An image has no more pixels than this, unless the program allows it. */
enum { TR__IMAGE_PIXELS = 1 << 26 };
/* Of an image whose rows cannot come one by one at most so many bytes are held for each pixel allowed. */
enum { TR__IMAGE_BYTES_A_PIXEL = 3 };

/* For each pixel of the result along one side: the first of the source's, how many, and their weights. */
typedef struct tr__image_filter {
    int most; /* of the counts */
    int *first, *count;
    float *weights; /* [results, most] */
} tr__image_filter;

/*
 * Takes an image's rows from the top and writes the scaled image: bilinear, and where it becomes smaller each pixel is
 * an average of all that it covers (the triangle filter that Pillow and torchvision's antialias=True use). A row of the
 * result is made when the last of its source rows has come; until then these are held.
 */
typedef struct tr__image_scaler {
    int64_t max_pixels; /* that the source may have */
    int width, height;  /* of the result */
    float *planes;      /* the result, the caller's: [3, height, width], values 0 … 255 */

    int source_width, source_height;
    int taken, made;              /* rows of the source, of the result */
    int held;                     /* rows of the source that there is room for */
    unsigned char *memory, *rows; /* RGB: row y is at rows + (y % held) * stride */
    size_t stride;
    float *mean; /* one row of the result, before it is scaled across */
    tr__image_filter across, down;
} tr__image_scaler;

/* Decodes a file's bytes into planes: [3, height, width], values 0 … 255. A JPEG that is large for what is wanted may
 * be decoded at a half, quarter or eighth of its size, but at least twice as wide and high as that. Messages begin with
 * "it", the file. */
tr_status tr__image_decode(const unsigned char *bytes, size_t count, int64_t max_pixels, int width, int height,
                           float *planes);

/* Feed a scaler. */
tr_status tr__jpeg_decode(tr__image_scaler *scaler, const unsigned char *bytes, size_t count);
tr_status tr__png_decode(tr__image_scaler *scaler, const unsigned char *bytes, size_t count);

/* The failure for an image with too many pixels. */
tr_status tr__image_check(const tr__image_scaler *scaler, uint32_t width, uint32_t height);
/* The source has this size; it fits into 31 bits. */
tr_status tr__image_scaler_begin(tr__image_scaler *scaler, uint32_t source_width, uint32_t source_height);
/* Where the next row of the source, RGB, is to be written; then it is taken. */
unsigned char *tr__image_scaler_row(const tr__image_scaler *scaler);
void tr__image_scaler_take(tr__image_scaler *scaler);
void tr__image_scaler_end(tr__image_scaler *scaler);

#endif
