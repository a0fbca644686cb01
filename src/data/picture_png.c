/* PNG files, by libpng's simplified interface, which catches its own long jumps. */
#include "data/picture.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

/* RGBA, so that an alpha channel is left out and not blended with a background of ours. */
static tr_status decode(png_image *image, tr__picture *picture)
{
    TR__TRY(tr__picture_alloc(picture, image->width, image->height));
    image->format = PNG_FORMAT_RGBA;
    size_t pixels = (size_t)image->width * image->height;
    unsigned char *rgba = malloc(pixels * 4);
    if (!rgba) return tr__fail(TR_NO_MEMORY, "no memory for %u x %u pixels", image->width, image->height);
    tr_status status = TR_OK;
    if (!png_image_finish_read(image, NULL, rgba, 0, NULL) || PNG_IMAGE_FAILED(*image))
        status = tr__fail(TR_FORMAT, "it is a damaged PNG file: %s", image->message);
    for (size_t i = 0; status == TR_OK && i < pixels; i++) memcpy(picture->rgb + 3 * i, rgba + 4 * i, 3);
    free(rgba);
    return status;
}

tr_status tr__png_decode(tr__picture *picture, const unsigned char *bytes, size_t count)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    if (!png_image_begin_read_from_memory(&image, bytes, count))
        return tr__fail(TR_FORMAT, "it is a damaged PNG file: %s", image.message);
    tr_status status = decode(&image, picture);
    png_image_free(&image);
    return status;
}
