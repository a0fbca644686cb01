/* JPEG files, by libjpeg-turbo. */
#include "data/picture.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>
#include <jerror.h>

/* All that changes while libjpeg may jump lies here, not in variables of the function that it jumps to. */
typedef struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf failed;
    tr__picture *picture;
    tr_status status;
} decoder;

/* libjpeg's way out of an error; it must not return to it. */
static void fail(j_common_ptr jpeg)
{
    decoder *d = jpeg->client_data;
    char text[JMSG_LENGTH_MAX];
    jpeg->err->format_message(jpeg, text);
    d->status = tr__fail(TR_FORMAT, "it is a damaged JPEG file: %s", text);
    longjmp(d->failed, 1);
}

/* libjpeg fills in for what is missing and warns: to us that is damage, but for what many sound files have. */
static void take_message(j_common_ptr jpeg, int level)
{
    int code = jpeg->err->msg_code;
    bool harmless = code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR;
    if (level < 0 && !harmless) fail(jpeg);
}

/* The smallest eighths of the size that are still twice what is wanted. */
static void choose_scale(struct jpeg_decompress_struct *jpeg, int wanted_width, int wanted_height)
{
    jpeg->scale_denom = 8;
    jpeg->scale_num = 8;
    for (unsigned eighths = 4; eighths >= 1; eighths /= 2) {
        uint64_t width = (uint64_t)jpeg->image_width * eighths / 8, height = (uint64_t)jpeg->image_height * eighths / 8;
        if (width < 2 * (uint64_t)wanted_width || height < 2 * (uint64_t)wanted_height) break;
        jpeg->scale_num = eighths;
    }
}

static void decode(decoder *d, const unsigned char *bytes, size_t count, int wanted_width, int wanted_height)
{
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    jpeg_create_decompress(jpeg);
    jpeg_mem_src(jpeg, bytes, count);
    jpeg_read_header(jpeg, TRUE);
    if (jpeg->num_components == 4) {
        d->status = tr__fail(TR_UNSUPPORTED, "it is a JPEG file in the four colours of print: convert it to RGB");
        return;
    }
    /* Progressive files are held whole at their full size, however small they are to be. */
    if ((uint64_t)jpeg->image_width * jpeg->image_height > TR__MOST_PIXELS) {
        d->status = tr__picture_alloc(d->picture, jpeg->image_width, jpeg->image_height);
        return;
    }
    jpeg->out_color_space = JCS_RGB;
    choose_scale(jpeg, wanted_width, wanted_height);
    jpeg_start_decompress(jpeg);
    d->status = tr__picture_alloc(d->picture, jpeg->output_width, jpeg->output_height);
    if (d->status != TR_OK) return;
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW row = d->picture->rgb + (size_t)jpeg->output_scanline * jpeg->output_width * 3;
        jpeg_read_scanlines(jpeg, &row, 1);
    }
    jpeg_finish_decompress(jpeg);
}

tr_status tr__jpeg_decode(tr__picture *picture, const unsigned char *bytes, size_t count, int wanted_width,
    int wanted_height)
{
    decoder d = {.picture = picture};
    d.jpeg.err = jpeg_std_error(&d.errors);
    d.jpeg.client_data = &d;
    d.errors.error_exit = fail;
    d.errors.emit_message = take_message;
    if (setjmp(d.failed) == 0) decode(&d, bytes, count, wanted_width, wanted_height);
    jpeg_destroy_decompress(&d.jpeg);
    return d.status;
}
