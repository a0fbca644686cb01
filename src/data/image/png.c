/* PNG files, by libpng. Their colours are taken as they stand, as Pillow does: no gamma, no profile; an alpha channel
 * is left out, not blended with a background. */
#include "data/image/image.h"

#include <png.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

/* All that changes while libpng may jump lies here, not in variables of the function that it jumps to. */
typedef struct decoder {
    png_structp png;
    png_infop info;
    jmp_buf failed;
    const unsigned char *bytes;
    size_t left;
    tr__image_scaler *scaler;
    unsigned char *whole; /* an interlaced image; otherwise NULL */
    tr_status status;
} decoder;

/* libpng's way out of an error; it must not return to it. */
static _Noreturn void fail(png_structp png, png_const_charp text)
{
    decoder *d = png_get_error_ptr(png);
    if (strcasestr(text, "out of memory"))
        d->status = tr__fail(TR_NO_MEMORY, "no memory to decode a PNG file");
    else
        d->status = tr__fail(TR_FORMAT, "it is a damaged PNG file: %s", text);
    longjmp(d->failed, 1);
}

static void pass_over(png_structp png, png_const_charp text)
{
    (void)png, (void)text;
}

static void read_bytes(png_structp png, png_bytep to, size_t count)
{
    decoder *d = png_get_io_ptr(png);
    if (count > d->left) fail(png, "it is cut short");
    memcpy(to, d->bytes, count);
    d->bytes += count;
    d->left -= count;
}

/* Rows come as 8 bits of red, green and blue, whatever the file has. */
static void ask_for_rgb(png_structp png)
{
    png_set_expand(png); /* palettes, and grey of fewer bits */
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
}

_Static_assert(TR__IMAGE_BYTES_A_PIXEL >= 3, "interlaced images are held whole, as red, green and blue");

/* Each of several passes fills in some pixels of all rows. */
static tr_status decode_interlaced(decoder *d, int passes, uint32_t height, size_t row_bytes)
{
    d->whole = malloc(height * row_bytes);
    if (!d->whole) return tr__fail(TR_NO_MEMORY, "no memory for its %u rows of %zu bytes", height, row_bytes);
    for (int pass = 0; pass < passes; pass++)
        for (uint32_t y = 0; y < height; y++) png_read_row(d->png, d->whole + y * row_bytes, NULL);
    for (uint32_t y = 0; y < height; y++) {
        memcpy(tr__image_scaler_row(d->scaler), d->whole + y * row_bytes, row_bytes);
        tr__image_scaler_take(d->scaler);
    }
    return TR_OK;
}

static tr_status decode(decoder *d)
{
    png_set_read_fn(d->png, d, read_bytes);
    png_set_benign_errors(d->png, 1);
    png_set_keep_unknown_chunks(d->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1); /* texts and such may be large, unpacked */
    png_read_info(d->png, d->info);
    uint32_t width = png_get_image_width(d->png, d->info), height = png_get_image_height(d->png, d->info);
    TR__TRY(tr__image_check(d->scaler, width, height));
    ask_for_rgb(d->png);
    int passes = png_set_interlace_handling(d->png);
    png_read_update_info(d->png, d->info);
    size_t row_bytes = png_get_rowbytes(d->png, d->info);
    if (row_bytes != (size_t)width * 3)
        return tr__fail(TR_INTERNAL, "libpng gives rows of %zu bytes for %u pixels", row_bytes, width);
    TR__TRY(tr__image_scaler_begin(d->scaler, width, height));
    if (passes > 1) return decode_interlaced(d, passes, height, row_bytes);
    for (uint32_t y = 0; y < height; y++) {
        png_read_row(d->png, tr__image_scaler_row(d->scaler), NULL);
        tr__image_scaler_take(d->scaler);
    }
    return TR_OK;
}

tr_status tr__png_decode(tr__image_scaler *scaler, const unsigned char *bytes, size_t count)
{
    decoder d = {.bytes = bytes, .left = count, .scaler = scaler};
    d.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &d, fail, pass_over);
    if (d.png) d.info = png_create_info_struct(d.png);
    if (!d.info)
        d.status = tr__fail(TR_NO_MEMORY, "no memory to read a PNG file");
    else if (setjmp(d.failed) == 0)
        d.status = decode(&d);
    png_destroy_read_struct(&d.png, &d.info, NULL);
    free(d.whole);
    return d.status;
}
