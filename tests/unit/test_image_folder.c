/* Folders of images: what becomes of JPEG and PNG files, how they are scaled, and what is wrong with them; and
 * CIFAR-10. */
#include "files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <jpeglib.h>
#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <trireme/trireme.h>

static void assert_failed(tr_status got, tr_status status, const char *part)
{
    assert_int_equal(got, status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static unsigned char file[1 << 20];

static size_t make_png(unsigned format, int width, int height, const void *pixels)
{
    png_image image = {
        .version = PNG_IMAGE_VERSION, .width = (unsigned)width, .height = (unsigned)height, .format = format};
    png_alloc_size_t bytes = sizeof file;
    assert_true(png_image_write_to_memory(&image, file, &bytes, 0, pixels, 0, NULL));
    return bytes;
}

static void write_to_file(png_structp png, png_bytep bytes, size_t count)
{
    size_t *at = png_get_io_ptr(png);
    assert_true(count <= sizeof file - *at);
    memcpy(file + *at, bytes, count);
    *at += count;
}

/* A PNG of black pixels but for one, at the right below: in any kind of colour, bits, and order of rows. */
static size_t make_black_png(int kind, int bits, int interlace, int width, int height)
{
    size_t bytes = 0;
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    assert_non_null(info);
    png_set_write_fn(png, &bytes, write_to_file, NULL);
    png_set_IHDR(png, info, (unsigned)width, (unsigned)height, bits, kind, interlace, PNG_COMPRESSION_TYPE_DEFAULT,
        PNG_FILTER_TYPE_DEFAULT);
    png_set_filter(png, 0, PNG_FILTER_NONE);
    png_set_compression_level(png, 1);
    if (bits == 16) png_set_gAMA(png, info, 1); /* which readers ignore */
    png_write_info(png, info);
    unsigned char *row = calloc(1, png_get_rowbytes(png, info));
    assert_non_null(row);
    for (int pass = png_set_interlace_handling(png); pass > 0; pass--)
        for (int y = 0; y < height; y++) {
            memset(row, 0, png_get_rowbytes(png, info));
            if (y == height - 1) row[(size_t)bits * (size_t)(width - 1) / 8] = 0x81;
            png_write_row(png, row);
        }
    png_write_end(png, NULL);
    free(row);
    png_destroy_write_struct(&png, &info);
    return bytes;
}

static bool progressive; /* what make_jpeg() makes */
static int scans;        /* in which a grey one's coefficients come, one in each; 0: as usual */

/* components: 1 grey, 3 RGB, 4 CMYK */
static size_t make_jpeg(int components, int width, int height, const unsigned char *pixels)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *to = file;
    unsigned long bytes = sizeof file;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &to, &bytes);
    jpeg.image_width = (unsigned)width;
    jpeg.image_height = (unsigned)height;
    jpeg.input_components = components;
    jpeg.in_color_space = components == 1 ? JCS_GRAYSCALE : components == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 95, TRUE);
    if (progressive) jpeg_simple_progression(&jpeg);
    jpeg_scan_info each[192];
    for (int i = 0; i < scans; i++) /* the upper bits of all, then the two lower ones of all */
        each[i] = (jpeg_scan_info){1, {0}, i % 64, i % 64, i < 64 ? 0 : 3 - i / 64, 2 - i / 64};
    if (scans) {
        jpeg.scan_info = each;
        jpeg.num_scans = scans;
    }
    jpeg_start_compress(&jpeg, TRUE);
    for (int y = 0; y < height; y++) {
        JSAMPROW row = (JSAMPROW)pixels + (size_t)y * (size_t)(width * components);
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    assert_ptr_equal(to, file);
    return bytes;
}

/* A folder of one class with one file. */
static tr_dataset *folder_of(const char *folder, const char *name, size_t bytes, int height, int width)
{
    char path[64];
    snprintf(path, sizeof path, "%s/class/%s", folder, name);
    files_write(path, file, bytes);
    tr_dataset *set = tr_image_folder(files_path(folder), .height = height, .width = width);
    TR_CHECK(tr_status_of(set));
    assert_int_equal(tr_dataset_count(set), 1);
    return set;
}

/* ---- Scaling ----------------------------------------------------------------------------------------------------- */

static size_t png_of(const tr_tensor *planes) /* f32 [3, height, width], 0 … 255 */
{
    int height = (int)tr_size(planes, 1), width = (int)tr_size(planes, 2), n = height * width;
    unsigned char *rgb = malloc((size_t)n * 3);
    assert_non_null(rgb);
    for (int i = 0; i < n; i++)
        for (int c = 0; c < 3; c++) rgb[3 * i + c] = (unsigned char)((const float *)tr_data(planes))[c * n + i];
    size_t bytes = make_png(PNG_FORMAT_RGB, width, height, rgb);
    free(rgb);
    return bytes;
}

static void test_scales_as_pytorch(void **state)
{
    (void)state;
    TR_SCOPE;
    char path[4096];
    const char *source = getenv("SOURCE");
    snprintf(path, sizeof path, "%s/tests/recorded/scaling.safetensors", source ? source : ".");
    tr_tensor_list *list = tr_safetensors_load(path);
    TR_CHECK(tr_status_of(list));
    int cases = tr_list_count(list) / 2;
    assert_true(cases >= 8);
    for (int k = 0; k < cases; k++) {
        char name[16];
        snprintf(name, sizeof name, "%d.in", k);
        size_t bytes = png_of(tr_list_find(list, name));
        snprintf(name, sizeof name, "%d.out", k);
        const tr_tensor *want = tr_list_find(list, name);
        int height = (int)tr_size(want, 1), width = (int)tr_size(want, 2);
        tr_sample s;
        TR_CHECK(tr_dataset_at(folder_of("scaled", "a.png", bytes, height, width), 0, &s));
        assert_int_equal(tr_numel(s.x), tr_numel(want));
        tr_dataset *raw = tr_image_folder(files_path("scaled"), .height = height, .width = width, .raw = true);
        tr_sample r;
        TR_CHECK(tr_dataset_at(raw, 0, &r));
        for (int64_t i = 0; i < tr_numel(want); i++) {
            double value = ((const float *)tr_data(want))[i];
            if (fabs(255.0 * ((const float *)tr_data(s.x))[i] - value) > 1e-3)
                fail_msg("case %d at %d: %g, not %g", k, (int)i, 255.0 * ((const float *)tr_data(s.x))[i], value);
            assert_true(fabs(((const uint8_t *)tr_data(r.x))[i] - value) < 0.501);
        }
    }
}

/* ---- Kinds of files ---------------------------------------------------------------------------------------------- */

/* The value of a pixel in a plane, 0 … 255. */
static double pixel(const tr_sample *s, int plane, int y, int x)
{
    int64_t height = tr_size(s->x, 1), width = tr_size(s->x, 2);
    return 255.0 * ((const float *)tr_data(s->x))[(plane * height + y) * width + x];
}

static void test_kinds_of_png(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_sample s;
    const unsigned char rgba[] = {255, 0, 10, 0, 1, 2, 3, 128}; /* alpha is left out, not blended */
    TR_CHECK(tr_dataset_at(folder_of("rgba", "a.png", make_png(PNG_FORMAT_RGBA, 2, 1, rgba), 1, 2), 0, &s));
    assert_true(fabs(pixel(&s, 0, 0, 0) - 255) < 0.01 && fabs(pixel(&s, 2, 0, 0) - 10) < 0.01);
    assert_true(fabs(pixel(&s, 0, 0, 1) - 1) < 0.01 && fabs(pixel(&s, 2, 0, 1) - 3) < 0.01);
    const unsigned char grey[] = {7, 200};
    TR_CHECK(tr_dataset_at(folder_of("grey", "a.PNG", make_png(PNG_FORMAT_GRAY, 2, 1, grey), 1, 2), 0, &s));
    for (int c = 0; c < 3; c++) assert_true(fabs(pixel(&s, c, 0, 1) - 200) < 0.01);
    assert_int_equal(tr_item(s.y), 0);
    /* Of 16 bits the upper eight, whatever gamma the file speaks of; and rows in seven passes. */
    for (int bits = 8; bits <= 16; bits += 8)
        for (int interlace = PNG_INTERLACE_NONE; interlace <= PNG_INTERLACE_ADAM7; interlace++) {
            size_t bytes = make_black_png(PNG_COLOR_TYPE_GRAY, bits, interlace, 19, 13);
            TR_CHECK(tr_dataset_at(folder_of("grey", "a.PNG", bytes, 13, 19), 0, &s));
            for (int i = 0; i < 3 * 13 * 19; i++) {
                int place = i % (13 * 19), want = place == 13 * 19 - 1 ? 0x81 : 0;
                assert_true(fabs(pixel(&s, i / (13 * 19), place / 19, place % 19) - want) < 0.01);
            }
        }
}

static void test_kinds_of_jpeg(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { W = 64, H = 48 };
    static unsigned char rgb[W * H * 4];
    for (int i = 0; i < W * H; i++) {
        rgb[3 * i] = (unsigned char)(4 * (i % W));
        rgb[3 * i + 1] = (unsigned char)(5 * (i / W));
        rgb[3 * i + 2] = 100;
    }
    /* As it is; and so small that it is decoded at a quarter of its size (64 to 16, for 8). */
    tr_sample s;
    TR_CHECK(tr_dataset_at(folder_of("rgb", "a.jpg", make_jpeg(3, W, H, rgb), H, W), 0, &s));
    for (int x = 8; x < W; x += 8) assert_true(fabs(pixel(&s, 0, 20, x) - 4 * x) < 8);
    for (int y = 8; y < H; y += 8) assert_true(fabs(pixel(&s, 1, y, 30) - 5 * y) < 8);
    assert_true(fabs(pixel(&s, 2, 30, 30) - 100) < 8);
    TR_CHECK(tr_dataset_at(folder_of("rgb", "a.jpg", make_jpeg(3, W, H, rgb), 6, 8), 0, &s));
    for (int x = 1; x < 7; x++) assert_true(fabs(pixel(&s, 0, 3, x) - 4 * (8 * x + 3.5)) < 8);
    for (int y = 1; y < 5; y++) assert_true(fabs(pixel(&s, 1, y, 3) - 5 * (8 * y + 3.5)) < 8);

    /* Progressive files hold the same, in another order. */
    tr_sample p;
    progressive = true;
    TR_CHECK(tr_dataset_at(folder_of("rgb", "a.jpg", make_jpeg(3, W, H, rgb), 6, 8), 0, &p));
    progressive = false;
    for (int i = 0; i < 3 * 6 * 8; i++) assert_true(((float *)tr_data(p.x))[i] == ((float *)tr_data(s.x))[i]);

    memset(rgb, 77, sizeof rgb);
    TR_CHECK(tr_dataset_at(folder_of("one", "a.jpeg", make_jpeg(1, W, H, rgb), 4, 4), 0, &s));
    for (int c = 0; c < 3; c++) assert_true(fabs(pixel(&s, c, 2, 2) - 77) < 2);
    assert_failed(tr_dataset_at(folder_of("cmyk", "a.jpg", make_jpeg(4, W, H, rgb), 4, 4), 0, &s), TR_UNSUPPORTED,
        "four colours of print");
}

/* ---- What is wrong ----------------------------------------------------------------------------------------------- */

static void cut_at_many_places(const char *name, size_t bytes)
{
    tr_sample s;
    for (size_t n = 0; n < bytes; n += n < 40 ? 1 : bytes / 61 + 1) {
        TR_SCOPE;
        assert_int_equal(tr_dataset_at(folder_of("cut", name, n, 8, 8), 0, &s), TR_FORMAT);
        if (!strstr(tr_error_message(), name)) fail_msg("%s", tr_error_message());
    }
    TR_SCOPE;
    TR_CHECK(tr_dataset_at(folder_of("cut", name, bytes, 8, 8), 0, &s));
    unlink(files_path(strcmp(name, "a.jpg") ? "cut/class/b.png" : "cut/class/a.jpg"));
}

static void test_images_cut_short(void **state)
{
    (void)state;
    TR_SCOPE;
    static unsigned char rgb[40 * 40 * 3];
    for (size_t i = 0; i < sizeof rgb; i++) rgb[i] = (unsigned char)(i * i >> 4);
    cut_at_many_places("a.jpg", make_jpeg(3, 40, 40, rgb));
    cut_at_many_places("b.png", make_png(PNG_FORMAT_RGB, 40, 40, rgb));
}

static void test_damaged_images(void **state)
{
    (void)state;
    TR_SCOPE;
    static unsigned char rgb[40 * 40 * 3];
    tr_sample s;
    size_t bytes = make_png(PNG_FORMAT_RGB, 40, 40, rgb);
    file[bytes / 2] ^= 1;
    assert_failed(tr_dataset_at(folder_of("bad", "a.png", bytes, 8, 8), 0, &s), TR_FORMAT,
        "a.png: it is a damaged PNG");
    memcpy(file, "GIF89a", 6);
    assert_failed(tr_dataset_at(folder_of("bad", "a.png", 6, 8, 8), 0, &s), TR_FORMAT, "neither a JPEG nor a PNG");
    assert_failed(tr_dataset_at(folder_of("bad", "a.png", 0, 8, 8), 0, &s), TR_FORMAT, "it is empty");
    /* A few bytes that ask for 65,500 x 65,500 pixels. */
    bytes = make_jpeg(3, 40, 40, rgb);
    for (size_t i = 0; i + 8 < bytes; i++)
        if (file[i] == 0xff && file[i + 1] == 0xc0) memcpy(file + i + 5, "\xff\xdc\xff\xdc", 4);
    assert_failed(tr_dataset_at(folder_of("bad", "a.png", bytes, 8, 8), 0, &s), TR_FORMAT,
        "it has 65500 x 65500 pixels");
    tr_dataset *set = folder_of("bad", "a.png", bytes, 8, 8);
    unlink(files_path("bad/class/a.png"));
    assert_failed(tr_dataset_at(set, 0, &s), TR_NOT_FOUND, "a.png: it cannot be opened: No such file");
}

/* ---- What is large ----------------------------------------------------------------------------------------------- */

static long peak_kb(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

/* A file of a few KB with as many pixels as may be, 201 MB of them, is read without taking memory for all. */
static void test_large_images_take_a_few_rows(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_sample s;
    size_t bytes = make_black_png(PNG_COLOR_TYPE_GRAY, 1, PNG_INTERLACE_NONE, 1 << 13, 1 << 13);
    tr_dataset *set = folder_of("large", "a.png", bytes, 32, 32);
    long before = peak_kb();
    TR_CHECK(tr_dataset_at(set, 0, &s));
    assert_in_range(peak_kb() - before, 0, 60000);
    assert_true(pixel(&s, 0, 31, 31) > 0 && pixel(&s, 0, 31, 30) == 0 && pixel(&s, 2, 0, 0) == 0);
    bytes = make_black_png(PNG_COLOR_TYPE_GRAY, 1, PNG_INTERLACE_NONE, 1 << 13, (1 << 13) + 1);
    assert_failed(tr_dataset_at(folder_of("large", "a.png", bytes, 32, 32), 0, &s), TR_FORMAT,
        "a.png: it has 8192 x 8193 pixels, more than the 67108864 that .max_pixels allows");
}

static void test_the_program_says_how_large(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_sample s;
    unsigned char rgb[40 * 40 * 3] = {0};
    const char *folder = files_path("limit");
    folder_of("limit", "a.png", make_png(PNG_FORMAT_RGB, 40, 40, rgb), 8, 8);
    for (int64_t most = 1599; most < 1601; most++) {
        tr_status status = tr_dataset_at(tr_image_folder(folder, .height = 8, .width = 8, .max_pixels = most), 0, &s);
        assert_int_equal(status, most < 1600 ? TR_FORMAT : TR_OK);
    }
    /* Of a progressive JPEG all coefficients are held, here of 40 x 40 in each of three colours, of two bytes. */
    progressive = true;
    unlink(files_path("limit/class/a.png"));
    folder_of("limit", "a.jpg", make_jpeg(1, 40, 40, rgb), 8, 8);
    TR_CHECK(tr_dataset_at(tr_image_folder(folder, .height = 8, .width = 8, .max_pixels = 1600), 0, &s));
    size_t bytes = make_jpeg(3, 40, 40, rgb);
    for (size_t i = 0; i + 17 < bytes; i++) /* not before all colours are as large */
        if (file[i] == 0xff && file[i + 1] == 0xc2) file[i + 11] = 0x11;
    folder_of("limit", "a.jpg", bytes, 8, 8);
    assert_failed(tr_dataset_at(tr_image_folder(folder, .height = 8, .width = 8, .max_pixels = 1600), 0, &s), TR_FORMAT,
        "it is a progressive JPEG file, which takes 9600 bytes to decode, more than 3 for each of the 1600 pixels");
    progressive = false;
    scans = 100;
    TR_CHECK(tr_dataset_at(folder_of("limit", "a.jpg", make_jpeg(1, 40, 40, rgb), 8, 8), 0, &s));
    scans = 101;
    assert_failed(tr_dataset_at(folder_of("limit", "a.jpg", make_jpeg(1, 40, 40, rgb), 8, 8), 0, &s), TR_FORMAT,
        "it is a progressive JPEG file of more than 100 scans");
    scans = 0;
    tr_dataset *negative = tr_image_folder(folder, .height = 8, .width = 8, .max_pixels = -1);
    assert_failed(tr_status_of(negative), TR_INVALID, "not -1");
    tr_dataset *beyond = tr_image_folder(folder, .height = 8, .width = 8, .max_pixels = (int64_t)1 << 31);
    assert_failed(tr_status_of(beyond), TR_INVALID, ".max_pixels must be 1 to 2147483647");
}

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

static void test_folders(void **state)
{
    (void)state;
    TR_SCOPE;
    static const char *const names[] = {"pets/dog/2.png", "pets/dog/10.jpg", "pets/dog/old/x.JPEG", "pets/cat/1.png",
        "pets/.hidden/1.png", "pets/dog/notes.txt", "pets/readme.png"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) files_write(names[i], "x", 1);
    tr_dataset *set = tr_image_folder(files_path("pets"), .height = 4, .width = 4);
    TR_CHECK(tr_status_of(set));
    assert_int_equal(tr_dataset_count(set), 4);
    assert_string_equal(tr_image_folder_class(set, 0), "cat");
    assert_string_equal(tr_image_folder_class(set, 1), "dog");
    assert_null(tr_image_folder_class(set, 2));
    assert_null(tr_image_folder_class(set, -1));
    assert_null(tr_image_folder_class(tr_dataset_slice(set, 0, 1), 0));
    static const char *const order[] = {"cat/1.png", "dog/10.jpg", "dog/2.png", "dog/old/x.JPEG"};
    tr_sample s;
    for (int i = 0; i < 4; i++) assert_failed(tr_dataset_at(set, i, &s), TR_FORMAT, order[i]);
    assert_failed(tr_status_of(tr_image_folder(files_path("pets"))), TR_INVALID, "not 0 and 0");
    assert_failed(tr_status_of(tr_image_folder(files_path("none"), .height = 4, .width = 4)), TR_NOT_FOUND, "none: No such");
    assert_failed(tr_status_of(tr_image_folder(files_path("pets/cat"), .height = 4, .width = 4)), TR_INVALID,
        "sub-folders");
    files_write("pets/empty/readme.txt", "x", 1);
    assert_failed(tr_status_of(tr_image_folder(files_path("pets"), .height = 4, .width = 4)), TR_INVALID, "pets/empty");
    assert_failed(tr_status_of(tr_image_folder(NULL, .height = 4, .width = 4)), TR_INVALID, "no folder");
}

/* Links to nowhere and FIFOs lie about; but a image that is missing is missed. */
static void test_what_is_neither_file_nor_folder(void **state)
{
    (void)state;
    TR_SCOPE;
    files_write("odd/cat/1.png", "x", 1);
    static const char *const links[] = {"odd/latest", "odd/cat/notes", "odd/cat/1.png.lock", "odd/cover.png"};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) assert_int_equal(symlink("nowhere", files_path(links[i])), 0);
    assert_int_equal(mkfifo(files_path("odd/cat/2.png"), 0600), 0);
    assert_int_equal(mkfifo(files_path("odd/pipe"), 0600), 0);
    tr_dataset *set = tr_image_folder(files_path("odd"), .height = 4, .width = 4);
    TR_CHECK(tr_status_of(set));
    assert_int_equal(tr_dataset_count(set), 1);
    /* And one that has become a FIFO since. */
    tr_sample s;
    unlink(files_path("odd/cat/1.png"));
    assert_int_equal(mkfifo(files_path("odd/cat/1.png"), 0600), 0);
    assert_failed(tr_dataset_at(set, 0, &s), TR_INVALID, "1.png: it is no file");
    assert_int_equal(symlink("nowhere", files_path("odd/cat/3.png")), 0);
    assert_failed(tr_status_of(tr_image_folder(files_path("odd"), .height = 4, .width = 4)), TR_IO, "odd/cat/3.png: No such");
}

/* Links to folders are followed; two that lead back up would multiply the images, and the folders to look at without end. */
static void test_links_that_lead_back_up(void **state)
{
    (void)state;
    TR_SCOPE;
    files_write("round/cat/1.png", "x", 1);
    files_write("elsewhere/2.png", "x", 1);
    assert_int_equal(symlink("../../elsewhere", files_path("round/cat/more")), 0);
    tr_dataset *set = tr_image_folder(files_path("round"), .height = 4, .width = 4);
    assert_int_equal(tr_dataset_count(set), 2);
    assert_int_equal(symlink(".", files_path("round/cat/again")), 0);
    assert_int_equal(symlink("..", files_path("round/cat/up")), 0);
    assert_failed(tr_status_of(tr_image_folder(files_path("round"), .height = 4, .width = 4)), TR_IO, "Too many levels of symbolic links");
}

/* ---- CIFAR-10 ---------------------------------------------------------------------------------------------------- */

enum { RECORD = 3073 };

static void test_cifar(void **state)
{
    (void)state;
    TR_SCOPE;
    for (int i = 0; i < 2 * RECORD; i++)
        file[i] = i % RECORD ? (unsigned char)(i % 256) : (unsigned char)(3 + i / RECORD);
    files_write("cifar/test_batch.bin", file, 2 * RECORD);
    tr_dataset *set = tr_cifar10(files_path("cifar"));
    TR_CHECK(tr_status_of(set));
    assert_int_equal(tr_dataset_count(set), 2);
    tr_sample s;
    TR_CHECK(tr_dataset_at(set, 1, &s));
    assert_int_equal(tr_item(s.y), 4);
    assert_int_equal(tr_size(s.x, 0), 3);
    assert_int_equal(tr_size(s.x, 2), 32);
    assert_true(((const float *)tr_data(s.x))[9] == (float)file[RECORD + 10] / 255.0f);

    for (int i = 1; i <= 5; i++) {
        char name[48];
        assert_failed(tr_status_of(tr_cifar10(files_path("cifar"), .train = true)), TR_NOT_FOUND, "data_batch_");
        snprintf(name, sizeof name, "cifar/data_batch_%d.bin", i);
        file[0] = (unsigned char)i;
        files_write(name, file, RECORD);
    }
    set = tr_cifar10(files_path("cifar"), .train = true, .raw = true);
    assert_int_equal(tr_dataset_count(set), 5);
    TR_CHECK(tr_dataset_at(set, 2, &s));
    assert_int_equal(tr_item(s.y), 3);
    assert_memory_equal(tr_data(s.x), file + 1, RECORD - 1);

    files_write("cifar/test_batch.bin", file, RECORD - 1);
    assert_failed(tr_status_of(tr_cifar10(files_path("cifar"))), TR_FORMAT,
        "has 3072 bytes, which are no records of 3073");
    files_write("cifar/test_batch.bin", file, 0);
    assert_failed(tr_status_of(tr_cifar10(files_path("cifar"))), TR_FORMAT, "has 0 bytes");
    file[RECORD] = 10;
    files_write("cifar/test_batch.bin", file, 2 * RECORD);
    assert_failed(tr_status_of(tr_cifar10(files_path("cifar"))), TR_FORMAT, "record 1 of ");
    assert_failed(tr_status_of(tr_cifar10(NULL)), TR_INVALID, "folder");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scales_as_pytorch),
        cmocka_unit_test(test_kinds_of_png),
        cmocka_unit_test(test_kinds_of_jpeg),
        cmocka_unit_test(test_images_cut_short),
        cmocka_unit_test(test_damaged_images),
        cmocka_unit_test(test_large_images_take_a_few_rows),
        cmocka_unit_test(test_the_program_says_how_large),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_what_is_neither_file_nor_folder),
        cmocka_unit_test(test_links_that_lead_back_up),
        cmocka_unit_test(test_cifar),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
