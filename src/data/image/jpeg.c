/* JPEG files, by libjpeg-turbo. */
#include "data/image/image.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>
#include <jerror.h>

/* All that changes while libjpeg may jump lies here, not in variables of the function that it jumps to. */
typedef struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    tr__image_scaler *scaler;
    tr_status status;
} decoder;

/* libjpeg's way out of an error; it must not return to it. */
static void fail(j_common_ptr jpeg)
{
    decoder *d = jpeg->client_data;
    char text[JMSG_LENGTH_MAX];
    jpeg->err->format_message(jpeg, text);
    if (jpeg->err->msg_code == JERR_OUT_OF_MEMORY)
        d->status = tr__fail(TR_NO_MEMORY, "no memory to decode a JPEG file");
    else
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

/* Each scan goes over the whole image, though a few bytes can be all of it: a small file could take hours. Encoders use some 10. */
static void count_scans(j_common_ptr jpeg)
{
    enum { MOST_SCANS = 100 };
    decoder *d = jpeg->client_data;
    if (d->jpeg.input_scan_number <= MOST_SCANS) return;
    d->status = tr__fail(TR_FORMAT, "it is a progressive JPEG file of more than %d scans", MOST_SCANS);
    longjmp(d->failed, 1);
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

/* A file of several scans, as progressive ones are, is held whole: its coefficients, before they become pixels. */
static tr_status check_scans(struct jpeg_decompress_struct *jpeg, const tr__image_scaler *scaler)
{
    if (!jpeg_has_multiple_scans(jpeg)) return TR_OK;
    uint64_t bytes = 0;
    for (int i = 0; i < jpeg->num_components; i++) {
        const jpeg_component_info *c = &jpeg->comp_info[i];
        bytes += (uint64_t)c->width_in_blocks * c->height_in_blocks * sizeof(JBLOCK);
    }
    if (bytes <= (uint64_t)scaler->max_pixels * TR__IMAGE_BYTES_A_PIXEL) return TR_OK;
    return tr__fail(TR_FORMAT,
                    "it is a progressive JPEG file, which takes %" PRIu64 " bytes to decode, more than %d for "
                    "each of the %" PRId64 " pixels that .max_pixels allows",
                    bytes, TR__IMAGE_BYTES_A_PIXEL, scaler->max_pixels);
}

static tr_status decode(decoder *d, const unsigned char *bytes, size_t count)
{
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    jpeg_create_decompress(jpeg);
    jpeg->progress = &d->progress;
    jpeg_mem_src(jpeg, bytes, count);
    jpeg_read_header(jpeg, TRUE);
    if (jpeg->num_components == 4)
        return tr__fail(TR_UNSUPPORTED, "it is a JPEG file in the four colours of print: convert it to RGB");
    TR__TRY(tr__image_check(d->scaler, jpeg->image_width, jpeg->image_height));
    TR__TRY(check_scans(jpeg, d->scaler));
    jpeg->out_color_space = JCS_RGB;
    choose_scale(jpeg, d->scaler->width, d->scaler->height);
    jpeg_start_decompress(jpeg);
    TR__TRY(tr__image_scaler_begin(d->scaler, jpeg->output_width, jpeg->output_height));
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW row = tr__image_scaler_row(d->scaler);
        jpeg_read_scanlines(jpeg, &row, 1);
        tr__image_scaler_take(d->scaler);
    }
    jpeg_finish_decompress(jpeg);
    return TR_OK;
}

tr_status tr__jpeg_decode(tr__image_scaler *scaler, const unsigned char *bytes, size_t count)
{
    decoder d = {.scaler = scaler};
    d.jpeg.err = jpeg_std_error(&d.errors);
    d.jpeg.client_data = &d;
    d.errors.error_exit = fail;
    d.errors.emit_message = take_message;
    d.progress.progress_monitor = count_scans;
    if (setjmp(d.failed) == 0) d.status = decode(&d, bytes, count);
    jpeg_destroy_decompress(&d.jpeg);
    return d.status;
}
