#include "data/picture.h"

#include <stdlib.h>
#include <string.h>

tr_status tr__picture_alloc(tr__picture *picture, uint32_t width, uint32_t height)
{
    if (width == 0 || height == 0 || (uint64_t)width * height > TR__MOST_PIXELS)
        return tr__fail(TR_FORMAT, "it says that it is a picture of %u x %u pixels, where 1 to %d are taken", width,
            height, (int)TR__MOST_PIXELS);
    picture->width = (int)width;
    picture->height = (int)height;
    picture->rgb = malloc((size_t)width * height * 3);
    if (picture->rgb) return TR_OK;
    return tr__fail(TR_NO_MEMORY, "no memory for %u x %u pixels", width, height);
}

void tr__picture_free(tr__picture *picture)
{
    free(picture->rgb);
    picture->rgb = NULL;
}

tr_status tr__picture_decode(tr__picture *picture, const unsigned char *bytes, size_t count, int wanted_width,
    int wanted_height)
{
    *picture = (tr__picture){0};
    tr_status status;
    if (count >= 3 && !memcmp(bytes, "\xff\xd8\xff", 3))
        status = tr__jpeg_decode(picture, bytes, count, wanted_width, wanted_height);
    else if (count >= 8 && !memcmp(bytes, "\x89PNG\r\n\x1a\n", 8))
        status = tr__png_decode(picture, bytes, count);
    else
        status = tr__fail(TR_FORMAT, count ? "it is neither a JPEG nor a PNG file" : "it is empty");
    if (status != TR_OK) tr__picture_free(picture);
    return status;
}
