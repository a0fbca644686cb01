/* The safetensors format: what is written is read back, and nothing that is wrong is taken for right. */
#include "tensor/tensor.h"

#include <trireme/train.h>

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];
static char path[128];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/trireme-safetensors-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static int files_in_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "ls -A %s | wc -l", folder);
    FILE *p = popen(command, "r");
    int n = -1;
    assert_int_equal(fscanf(p, "%d", &n), 1);
    pclose(p);
    return n;
}

/* Writes 8 bytes of length, the header and zeros for data. */
static void write_raw(const char *header, size_t data_bytes)
{
    FILE *f = fopen(path, "wb");
    uint64_t length = strlen(header);
    fwrite(&length, 8, 1, f);
    fputs(header, f);
    for (size_t i = 0; i < data_bytes; i++) fputc(0, f);
    assert_int_equal(fclose(f), 0);
}

/* ---- Round trips ------------------------------------------------------------------------------------------------ */

static void every_dtype_comes_back(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = tr_list_new();
    for (int d = 0; d < TR_DTYPE_COUNT; d++) {
        unsigned char bytes[24 * 8];
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(d == TR_BOOL ? i & 1 : 37 * i + (size_t)d);
        tr_tensor *t = tr_from((void *)bytes, TR_SHAPE(2, 3, 4), .dtype = (tr_dtype)d);
        assert_int_equal(tr_list_add(list, tr_dtype_name((tr_dtype)d), t), TR_OK);
    }
    assert_int_equal(tr_list_add(list, "scalar", tr_from(&(float){2.5f}, TR_SCALAR)), TR_OK);
    assert_int_equal(tr_list_add(list, "empty", tr_empty(TR_SHAPE(3, 0, 2))), TR_OK);
    assert_int_equal(tr_list_set_metadata(list, "format", "pt"), TR_OK);
    assert_int_equal(tr_safetensors_save(path, list), TR_OK);

    tr_tensor_list *back = tr_safetensors_load(path);
    assert_int_equal(tr_status_of(back), TR_OK);
    assert_int_equal(tr_list_count(back), tr_list_count(list));
    assert_string_equal(tr_list_metadata(back, "format"), "pt");
    for (int i = 0; i < tr_list_count(list); i++) {
        tr_tensor *a = tr_list_at(list, i), *b = tr_list_find(back, tr_list_name(list, i));
        assert_non_null(b);
        assert_int_equal(tr_dtype_of(a), tr_dtype_of(b));
        assert_true(tr__shape_equal(tr_shape_of(a), tr_shape_of(b)));
        assert_memory_equal(tr_data(a), tr_data(b), (size_t)tr_numel(a) * tr_dtype_size(tr_dtype_of(a)));
    }
}

static void nothing_at_all_comes_back(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_int_equal(tr_safetensors_save(path, tr_list_new()), TR_OK);
    tr_tensor_list *back = tr_safetensors_load(path);
    assert_int_equal(tr_status_of(back), TR_OK);
    assert_int_equal(tr_list_count(back), 0);
}

static void a_view_is_saved_row_major(void **state)
{
    (void)state;
    TR_SCOPE;
    float values[6] = {0, 1, 2, 3, 4, 5};
    tr_tensor *t = tr_from(values, TR_SHAPE(2, 3));
    tr_tensor *turned = tr__tensor_view(t, TR_SHAPE(3, 2), (int64_t[]){1, 3}, 0);
    tr_tensor_list *list = tr_list_new();
    assert_int_equal(tr_list_add(list, "turned", turned), TR_OK);
    assert_int_equal(tr_safetensors_save(path, list), TR_OK);
    tr_tensor *back = tr_list_at(tr_safetensors_load(path), 0);
    float expected[6] = {0, 3, 1, 4, 2, 5};
    assert_memory_equal(tr_data(back), expected, sizeof expected);
}

static void any_text_survives(void **state)
{
    (void)state;
    TR_SCOPE;
    const char *odd = "a \"quoted\" \\ back\b\f\n\r\t\x01\x1f\x7f / caf\xc3\xa9 \xf0\x9f\x9a\xa3 {}[]:,";
    tr_tensor_list *list = tr_list_new();
    assert_int_equal(tr_list_add(list, odd, tr_zeros(TR_SHAPE(1))), TR_OK);
    assert_int_equal(tr_list_add(list, "", tr_zeros(TR_SHAPE(2))), TR_OK);
    assert_int_equal(tr_list_set_metadata(list, odd, odd), TR_OK);
    assert_int_equal(tr_list_set_metadata(list, "empty", ""), TR_OK);
    assert_int_equal(tr_safetensors_save(path, list), TR_OK);
    tr_tensor_list *back = tr_safetensors_load(path);
    assert_int_equal(tr_status_of(back), TR_OK);
    assert_non_null(tr_list_find(back, odd));
    assert_int_equal(tr_numel(tr_list_find(back, "")), 2);
    assert_string_equal(tr_list_metadata(back, odd), odd);
    assert_string_equal(tr_list_metadata(back, "empty"), "");
}

static void data_lies_aligned(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = tr_list_new();
    assert_int_equal(tr_list_add(list, "bytes", tr_zeros(TR_SHAPE(3), .dtype = TR_U8)), TR_OK);
    assert_int_equal(tr_list_add(list, "doubles", tr_zeros(TR_SHAPE(1), .dtype = TR_F64)), TR_OK);
    assert_int_equal(tr_safetensors_save(path, list), TR_OK);
    char text[512] = {0};
    FILE *f = fopen(path, "rb");
    assert_true(fread(text, 1, sizeof text - 1, f) > 8);
    fclose(f);
    uint64_t length;
    memcpy(&length, text, 8);
    assert_int_equal(length % 8, 0);
    assert_non_null(strstr(text + 8, "\"doubles\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}"));
}

/* ---- Saving that fails ------------------------------------------------------------------------------------------- */

static void what_cannot_be_written_is_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *one = tr_zeros(TR_SHAPE(1));
    tr_tensor_list *reserved = tr_list_new(), *latin1 = tr_list_new(), *good = tr_list_new();
    assert_int_equal(tr_list_add(reserved, "__metadata__", one), TR_OK);
    assert_int_equal(tr_list_add(latin1, "caf\xe9", one), TR_OK);
    assert_int_equal(tr_list_add(good, "x", one), TR_OK);
    assert_int_equal(tr_safetensors_save(path, reserved), TR_INVALID);
    assert_int_equal(tr_safetensors_save(path, latin1), TR_INVALID);
    assert_int_equal(tr_safetensors_save(folder, good), TR_INVALID);
    assert_int_equal(tr_safetensors_save("/dev/null", good), TR_INVALID);
    assert_int_equal(tr_safetensors_save("", good), TR_INVALID);
    assert_int_equal(tr_safetensors_save("/nowhere/x.safetensors", good), TR_IO);
    assert_non_null(strstr(tr_error_message(), "/nowhere/x.safetensors: No such file or directory"));
    assert_int_equal(files_in_folder(), 0);
}

static void a_failed_save_leaves_the_old_file(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *small = tr_list_new(), *large = tr_list_new();
    assert_int_equal(tr_list_add(small, "x", tr_ones(TR_SHAPE(4))), TR_OK);
    assert_int_equal(tr_list_add(large, "x", tr_ones(TR_SHAPE(100, 1000))), TR_OK);
    assert_int_equal(tr_safetensors_save(path, small), TR_OK);

    /* The process may write no file over 64 KiB: as a full disk, in the middle of the file. */
    struct rlimit was, limit = {64 << 10, RLIM_INFINITY};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    limit.rlim_max = was.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(tr_safetensors_save(path, large), TR_IO);
    assert_non_null(strstr(tr_error_message(), "File too large"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, handler);

    assert_int_equal(files_in_folder(), 1);
    tr_tensor_list *back = tr_safetensors_load(path);
    assert_int_equal(tr_status_of(back), TR_OK);
    assert_int_equal(tr_numel(tr_list_at(back, 0)), 4);
}

static void leftovers_go_and_work_of_others_stays(void **state)
{
    (void)state;
    TR_SCOPE;
    char stale[128], live[128], foreign[128];
    snprintf(stale, sizeof stale, "%s/.a.safetensors.0123456789abcdef.tmp", folder);
    snprintf(live, sizeof live, "%s/.a.safetensors.fedcba9876543210.tmp", folder);
    snprintf(foreign, sizeof foreign, "%s/.b.safetensors.0123456789abcdef.tmp", folder);
    close(open(stale, O_CREAT | O_WRONLY, 0600));
    close(open(foreign, O_CREAT | O_WRONLY, 0600));
    int fd = open(live, O_CREAT | O_RDWR, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(tr_safetensors_save(path, tr_list_new()), TR_OK);
    assert_int_equal(access(stale, F_OK), -1);
    assert_int_equal(access(live, F_OK), 0);
    assert_int_equal(access(foreign, F_OK), 0);
    close(fd);
}

static void the_mode_of_a_file_stays(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_int_equal(tr_safetensors_save(path, tr_list_new()), TR_OK);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(tr_safetensors_save(path, tr_list_new()), TR_OK);
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
}

/* ---- Damaged files ----------------------------------------------------------------------------------------------- */

#define X "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

static const struct {
    const char *header;
    size_t data;
    tr_status status;
    const char *message; /* a part of it */
} damaged[] = {
    {"", 8, TR_FORMAT, "does not begin with {"},
    {"[]", 0, TR_FORMAT, "does not begin with {"},
    {" {}", 0, TR_FORMAT, "does not begin with {"},
    {"{", 1, TR_FORMAT, "no JSON"},
    {"{\"x\"}", 0, TR_FORMAT, "no JSON"},
    {"{" X ",}", 8, TR_FORMAT, "no JSON"},
    {"{} {}", 0, TR_FORMAT, "goes on after the JSON object"},
    {"{\"caf\xe9\":1}", 0, TR_FORMAT, "not UTF-8"},
    {"{\"\xc0\x80\":1}", 0, TR_FORMAT, "not UTF-8"},
    {"{\"\xed\xa0\x80\":1}", 0, TR_FORMAT, "not UTF-8"},
    {"{\"x\":1}", 0, TR_FORMAT, "no object"},
    {"{\"x\":{}}", 0, TR_FORMAT, "no dtype"},
    {"{\"x\":{\"dtype\":3,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, TR_FORMAT, "no dtype"},
    {"{\"x\":{\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, TR_FORMAT, "no dtype of the format"},
    {"{\"x\":{\"dtype\":\"I16\",\"shape\":[4],\"data_offsets\":[0,8]}}", 8, TR_UNSUPPORTED, "I16"},
    {"{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, TR_FORMAT, "no shape"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, TR_FORMAT, "no shape"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, TR_FORMAT, "no whole number"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, TR_FORMAT, "no whole number"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2.5],\"data_offsets\":[0,10]}}", 10, TR_FORMAT, "no whole number"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1e300],\"data_offsets\":[0,8]}}", 8, TR_FORMAT, "no whole number"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, TR_UNSUPPORTED,
     "9 dimensions"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, TR_FORMAT, "[3] of f32, has 8 bytes"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, TR_FORMAT,
     "has 0 bytes"},
    {"{\"x\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0, TR_FORMAT,
     "no whole number"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, TR_FORMAT, "data_offsets"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, TR_FORMAT, "data_offsets"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, TR_FORMAT, "data_offsets"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, TR_FORMAT, "data_offsets"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, TR_FORMAT, "data_offsets"},
    {"{" X "}", 7, TR_FORMAT, "cut short"},
    {"{" X "}", 0, TR_FORMAT, "cut short"},
    {"{" X "}", 9, TR_FORMAT, "1 bytes at its end belong to no tensor"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, TR_FORMAT, "belong to none"},
    {"{" X ",\"y\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}", 20, TR_FORMAT, "belong to none"},
    {"{" X ",\"y\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, TR_FORMAT, "overlap"},
    {"{" X ",\"y\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, TR_FORMAT, "overlap"},
    {"{" X "," X "}", 8, TR_FORMAT, "two tensors named \"x\""},
    {"{\"\\u001b]0;mine\\u0007\\n\":1}", 0, TR_FORMAT, "tensor \"?]0;mine?\n\" is no object"},
    {"{\"__metadata__\":{\"\\u009b2J\":1}}", 0, TR_FORMAT, "metadata \"??2J\" is no text"},
    {"{\"__metadata__\":[]}", 0, TR_FORMAT, "__metadata__ is no object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, TR_FORMAT, "\"a\" is no text"},
};

static void damage_is_found_and_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        TR_SCOPE;
        write_raw(damaged[i].header, damaged[i].data);
        tr_tensor_list *list = tr_safetensors_load(path);
        if (tr_status_of(list) != damaged[i].status || !strstr(tr_error_message(), damaged[i].message) ||
            !strstr(tr_error_message(), path))
            fail_msg("%s\n  gave %s: %s", damaged[i].header, tr_status_name(tr_status_of(list)), tr_error_message());
        assert_int_equal(tr_list_count(list), 0);
    }
}

static void what_the_format_allows_is_read(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{" X "}   ",
        "{ " X " , \"a\" : {\"shape\":[],\"data_offsets\":[8,9],\"dtype\":\"U8\"}}",
        "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}," X "}",
        "{\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]}," X "}",
        "{\"\\u00e9\\n\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"note\":null}}",
    };
    static const size_t data[] = {8, 9, 9, 8, 8};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) {
        TR_SCOPE;
        write_raw(headers[i], data[i]);
        if (tr_status_of(tr_safetensors_load(path)) != TR_OK) fail_msg("%s: %s", headers[i], tr_error_message());
    }
}

static void write_bytes(const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void foreign_files_are_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_int_equal(tr_status_of(tr_safetensors_load(path)), TR_NOT_FOUND);
    assert_int_equal(tr_status_of(tr_safetensors_load(folder)), TR_FORMAT);
    assert_int_equal(tr_status_of(tr_safetensors_load("/dev/zero")), TR_FORMAT);
    write_bytes("", 0);
    assert_int_equal(tr_status_of(tr_safetensors_load(path)), TR_FORMAT);
    write_bytes("\0\0\0\0\0", 5);
    assert_int_equal(tr_status_of(tr_safetensors_load(path)), TR_FORMAT);
    write_bytes("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
    assert_int_equal(tr_status_of(tr_safetensors_load(path)), TR_FORMAT);
    write_bytes("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    assert_int_equal(tr_status_of(tr_safetensors_load(path)), TR_FORMAT);

    /* A header longer than allowed, in a file that really is so long. */
    uint64_t length = (100u << 20) + 1;
    write_bytes(&length, 8);
    assert_int_equal(truncate(path, 8 + (off_t)length), 0);
    assert_int_equal(tr_status_of(tr_safetensors_load(path)), TR_FORMAT);
    assert_non_null(strstr(tr_error_message(), "longer than"));

    char fifo[128];
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(tr_status_of(tr_safetensors_load(fifo)), TR_FORMAT);
}

static void a_bool_is_zero_or_one(void **state)
{
    (void)state;
    TR_SCOPE;
    write_raw("{\"x\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1);
    FILE *f = fopen(path, "ab");
    fputc(2, f);
    fclose(f);
    assert_int_equal(tr_status_of(tr_safetensors_load(path)), TR_FORMAT);
    assert_non_null(strstr(tr_error_message(), "holds the value 2"));
}

/* Names are compared in pairs nowhere: that would take longer here than a test may. */
static void many_names_are_read(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { MANY = 300000 };
    FILE *f = fopen(path, "wb");
    uint64_t length = 0;
    fwrite(&length, 8, 1, f);
    fputs("{\"__metadata__\":{\"key\":\"v\"", f);
    for (int i = 0; i < MANY; i++) fprintf(f, ",\"key%d\":\"v\"", i);
    fputc('}', f);
    for (int i = 0; i < MANY; i++)
        fprintf(f, ",\"layer.%d.weight\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i);
    fputc('}', f);
    length = (uint64_t)ftell(f) - 8;
    rewind(f);
    fwrite(&length, 8, 1, f);
    assert_int_equal(fclose(f), 0);
    tr_tensor_list *list = tr_safetensors_load(path);
    assert_int_equal(tr_status_of(list), TR_OK);
    assert_int_equal(tr_list_count(list), MANY);
    assert_int_equal(tr_list_metadata_count(list), MANY + 1);
    assert_ptr_equal(tr_list_find(list, "layer.299999.weight"), tr_list_at(list, MANY - 1));
    assert_string_equal(tr_list_metadata(list, "key0"), "v");
}

/* Any change of a good file gives a sound list or a clean failure (the sanitizers see the rest). */
static void mutations_do_no_harm(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = tr_list_new();
    assert_int_equal(tr_list_add(list, "w", tr_zeros(TR_SHAPE(2, 3))), TR_OK);
    assert_int_equal(tr_list_add(list, "mask", tr_zeros(TR_SHAPE(5), .dtype = TR_BOOL)), TR_OK);
    assert_int_equal(tr_list_set_metadata(list, "k", "v"), TR_OK);
    assert_int_equal(tr_safetensors_save(path, list), TR_OK);
    unsigned char good[512], bad[512];
    FILE *f = fopen(path, "rb");
    size_t n = fread(good, 1, sizeof good, f);
    fclose(f);

    unsigned random = 1;
    for (int round = 0; round < 3000; round++) {
        TR_SCOPE;
        memcpy(bad, good, n);
        size_t kept = n;
        for (int k = 0; k <= round % 3; k++) {
            random = random * 1664525u + 1013904223u;
            size_t at = (random >> 8) % n;
            random = random * 1664525u + 1013904223u;
            static const char likely[] = "0123456789-{}[]\",:e.";
            bad[at] =
                round % 2 ? (unsigned char)(random >> 24) : (unsigned char)likely[(random >> 8) % (sizeof likely - 1)];
            if (round % 7 == 0) kept = at;
        }
        write_bytes(bad, kept);
        tr_tensor_list *back = tr_safetensors_load(path);
        tr_status status = tr_status_of(back);
        assert_true(status == TR_OK || status == TR_FORMAT || status == TR_UNSUPPORTED);
        if (status == TR_OK) assert_true(tr_list_numel(back) <= 64);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_dtype_comes_back),
        TEST(nothing_at_all_comes_back),
        TEST(a_view_is_saved_row_major),
        TEST(any_text_survives),
        TEST(data_lies_aligned),
        TEST(what_cannot_be_written_is_refused),
        TEST(a_failed_save_leaves_the_old_file),
        TEST(leftovers_go_and_work_of_others_stays),
        TEST(the_mode_of_a_file_stays),
        TEST(damage_is_found_and_named),
        TEST(what_the_format_allows_is_read),
        TEST(foreign_files_are_refused),
        TEST(a_bool_is_zero_or_one),
        TEST(many_names_are_read),
        TEST(mutations_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
