/* Pictures from JPEG and PNG files, as RGB bytes. */
#ifndef TR_DATA_PICTURE_H
#define TR_DATA_PICTURE_H

#include "base/object.h"

typedef struct tr__picture {
    int width, height;
    unsigned char *rgb; /* [height, width, 3] */
} tr__picture;

/* No picture has more pixels: what says that it does is an error, before memory is taken for it. */
enum { TR__MOST_PIXELS = 178 << 20 };

/* Decodes a file's bytes. A JPEG that is large for what is wanted may come at a half, quarter or eighth of its size,
 * but at least twice as wide and high as that. Messages begin with "it", the file. On failure nothing is to be freed. */
tr_status tr__picture_decode(tr__picture *picture, const unsigned char *bytes, size_t count, int wanted_width,
    int wanted_height);
tr_status tr__jpeg_decode(tr__picture *picture, const unsigned char *bytes, size_t count, int wanted_width,
    int wanted_height);
tr_status tr__png_decode(tr__picture *picture, const unsigned char *bytes, size_t count);
/* Memory for a picture of some size; refuses absurd ones. */
tr_status tr__picture_alloc(tr__picture *picture, uint32_t width, uint32_t height);
void tr__picture_free(tr__picture *picture);

/* Scales it to [3, height, width], values 0 … 255: bilinear, and where it becomes smaller each pixel is an average of
 * all that it covers (the triangle filter that Pillow and torchvision's antialias=True use). */
tr_status tr__picture_scale(const tr__picture *picture, int width, int height, float *planes);

#endif
