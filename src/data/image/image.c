#include "data/image/image.h"

#include <inttypes.h>
#include <string.h>

tr_status tr__image_check(const tr__image_scaler *s, uint32_t width, uint32_t height)
{
    if (width == 0 || height == 0)
        return tr__fail(TR_FORMAT, "it says that it is an image of %u x %u pixels", width, height);
    if ((uint64_t)width * height <= (uint64_t)s->max_pixels) return TR_OK;
    return tr__fail(TR_FORMAT, "it has %u x %u pixels, more than the %" PRId64 " that .max_pixels allows", width,
                    height, s->max_pixels);
}

tr_status tr__image_decode(const unsigned char *bytes, size_t count, int64_t max_pixels, int width, int height,
                           float *planes)
{
    tr__image_scaler scaler = {.max_pixels = max_pixels, .width = width, .height = height, .planes = planes};
    tr_status status;
    if (count >= 3 && !memcmp(bytes, "\xff\xd8\xff", 3))
        status = tr__jpeg_decode(&scaler, bytes, count);
    else if (count >= 8 && !memcmp(bytes, "\x89PNG\r\n\x1a\n", 8))
        status = tr__png_decode(&scaler, bytes, count);
    else
        status = tr__fail(TR_FORMAT, count ? "it is neither a JPEG nor a PNG file" : "it is empty");
    tr__image_scaler_end(&scaler);
    return status;
}
