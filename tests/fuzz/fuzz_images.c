/* Data: JPEG and PNG files, of which the first byte says how they are scaled. */
/* fuzz: 20000, soak: 2000000 */
#include "fuzz.h"

#include "data/image/image.h"

#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

enum { MOST_SIDE = 16, MOST_PIXELS = 1 << 16 };

typedef struct output {
    uint8_t *bytes;
    size_t count;
} output;

static void put(png_structp png, png_bytep bytes, size_t count)
{
    output *o = png_get_io_ptr(png);
    FUZZ_CHECK(o->count + count <= FUZZ_SEED);
    memcpy(o->bytes + o->count, bytes, count);
    o->count += count;
}

static size_t make_png(uint32_t number, uint8_t *bytes)
{
    static const int kinds[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGBA,
                                PNG_COLOR_TYPE_PALETTE};
    int kind = kinds[number % 5], bits = kind != PNG_COLOR_TYPE_PALETTE && number / 5 % 2 ? 16 : 8;
    unsigned width = 1 + number / 10 % 9, height = 1 + number / 90 % 9;
    output o = {.bytes = bytes};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_set_write_fn(png, &o, put, NULL);
    png_set_IHDR(png, info, width, height, bits, kind, number / 810 % 2 ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    const png_color palette[2] = {{1, 2, 3}, {200, 100, 0}};
    if (kind == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(png, info, palette, 2);
    if (kind == PNG_COLOR_TYPE_PALETTE) png_set_tRNS(png, info, (png_byte[]){9}, 1, NULL);
    png_write_info(png, info);
    uint8_t row[8 * 9];
    for (int pass = png_set_interlace_handling(png); pass > 0; pass--)
        for (unsigned y = 0; y < height; y++) {
            for (size_t i = 0; i < sizeof row; i++)
                row[i] = (uint8_t)(kind == PNG_COLOR_TYPE_PALETTE ? i & 1 : i * number);
            png_write_row(png, row);
        }
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    return o.count;
}

static size_t make_jpeg(uint32_t number, uint8_t *bytes)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned long count = FUZZ_SEED;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &bytes, &count);
    jpeg.image_width = 1 + number % 20;
    jpeg.image_height = 1 + number / 20 % 20;
    jpeg.input_components = number / 400 % 2 ? 1 : 3;
    jpeg.in_color_space = jpeg.input_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 20, TRUE);
    if (number / 800 % 2) jpeg_simple_progression(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    uint8_t row[3 * 20];
    for (unsigned y = 0; y < jpeg.image_height; y++) {
        for (size_t i = 0; i < sizeof row; i++) row[i] = (uint8_t)(i * y + number);
        jpeg_write_scanlines(&jpeg, &(JSAMPROW){row}, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    return count;
}

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    bytes[0] = (uint8_t)number;
    if (number % 2) return 1 + make_png(number / 2, bytes + 1);
    uint8_t jpeg[FUZZ_SEED];
    size_t count = make_jpeg(number / 2, jpeg);
    FUZZ_CHECK(count < FUZZ_SEED);
    memcpy(bytes + 1, jpeg, count);
    return 1 + count;
}

/* A changed chunk would end at its checksum: it gets the right one. */
static void mend_checksums(uint8_t *bytes, size_t count)
{
    for (size_t at = 8; at + 12 <= count;) {
        size_t length =
            (size_t)bytes[at] << 24 | (size_t)bytes[at + 1] << 16 | (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (length > count - at - 12) return;
        uint32_t sum = (uint32_t)crc32(0, bytes + at + 4, (uInt)(length + 4));
        for (size_t i = 0; i < 4; i++) bytes[at + 8 + length + i] = (uint8_t)(sum >> (24 - 8 * i));
        at += length + 12;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (!count) return 0;
    float planes[3 * MOST_SIDE * MOST_SIDE];
    int width = 1 + bytes[0] % MOST_SIDE, height = 1 + bytes[0] / MOST_SIDE;
    uint8_t *file = fuzz_copy(bytes + 1, count - 1);
    if (count > 9 && file[0] == 0x89) mend_checksums(file, count - 1);
    for (int i = 0; i < 3 * width * height; i++) planes[i] = -1;
    tr_status status = tr__image_decode(file, count - 1, MOST_PIXELS, width, height, planes);
    FUZZ_CHECK(status == TR_OK || status == TR_FORMAT || status == TR_UNSUPPORTED);
    for (int i = 0; i < 3 * width * height && status == TR_OK; i++) FUZZ_CHECK(planes[i] >= 0 && planes[i] < 255.01f);
    free(file);
    return 0;
}
