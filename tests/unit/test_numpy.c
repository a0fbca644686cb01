/* NumPy's .npy and .npz: what NumPy wrote is read, what is written is read back, and what is damaged is refused. */
#include "files.h"

#include "tensor/tensor.h"

#include <trireme/train.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static void assert_failed(tr_status got, tr_status status, const char *part)
{
    if (got != status) fail_msg("%s instead of %s: \"%s\"", tr_status_name(got), tr_status_name(status), tr_error_message());
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

static const char *recorded_path(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/recorded/numpy/%s", getenv("SOURCE") ? getenv("SOURCE") : ".", name);
    return path;
}

static void assert_same(const tr_tensor *a, const tr_tensor *b)
{
    assert_non_null(b);
    assert_int_equal(tr_status_of(b), TR_OK);
    assert_int_equal(tr_dtype_of(a), tr_dtype_of(b));
    if (!tr__shape_equal(a->shape, b->shape)) fail_msg("%s instead of %s", TR__TEXT(b->shape), TR__TEXT(a->shape));
    assert_true(tr_is_contiguous(b));
    const tr_tensor *flat = tr__row_major_on_cpu(a);
    assert_memory_equal(tr_data(flat), tr_data(b), (size_t)tr_numel(a) * tr_dtype_size(tr_dtype_of(a)));
}

/* ---- What NumPy wrote ------------------------------------------------------------------------------------------------ */

static void check_recorded(const tr_tensor_list *list)
{
    static const struct {
        const char *name;
        tr_dtype dtype;
    } kinds[] = {{"f2", TR_F16}, {"f4", TR_F32}, {"f8", TR_F64}, {"i4", TR_I32}, {"i8", TR_I64}, {"u1", TR_U8}, {"b1", TR_BOOL}};
    TR_CHECK(tr_status_of(list));
    assert_int_equal(tr_list_count(list), 7 * 4 + 3);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        TR_SCOPE;
        tr_tensor *expected = tr_empty(TR_SHAPE(2, 3, 4), .dtype = kinds[k].dtype);
        for (int64_t i = 0; i < 24; i++)
            tr__store(kinds[k].dtype, tr_data(expected), i,
                (double)(kinds[k].dtype == TR_BOOL ? i % 3 == 0 : kinds[k].dtype == TR_U8 ? i + 200 : i - 7));
        for (int variant = 0; variant < 4; variant++) {
            char name[32];
            snprintf(name, sizeof name, "%s.%c.%s", kinds[k].name, "CF"[variant / 2], variant % 2 ? "big" : "little");
            assert_same(expected, tr_list_find(list, name));
        }
    }
    assert_same(tr_scalar(2.5, TR_F64), tr_list_find(list, "scalar"));
    assert_same(tr_empty(TR_SHAPE(3, 0, 2)), tr_list_find(list, "empty"));
    assert_same(tr_arange(5, TR_I32, tr_cpu(0)), tr_list_find(list, "row"));
}

static void test_archives_of_numpy(void **state)
{
    (void)state;
    TR_SCOPE;
    check_recorded(tr_npz_load(recorded_path("arrays.npz")));
    check_recorded(tr_npz_load(recorded_path("compressed.npz")));
}

static void test_versions_of_the_format(void **state)
{
    (void)state;
    TR_SCOPE;
    float values[6] = {0, 1, 2, 3, 4, 5};
    tr_tensor *expected = tr_from(values, TR_SHAPE(2, 3));
    assert_same(expected, tr_npy_load(recorded_path("version-1.npy")));
    assert_same(expected, tr_npy_load(recorded_path("version-2.npy")));
    assert_same(expected, tr_npy_load(recorded_path("version-3.npy")));
}

/* ---- What we write --------------------------------------------------------------------------------------------------- */

static size_t read_file(const char *path, unsigned char *to, size_t most)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(to, 1, most, file);
    assert_true(n < most);
    fclose(file);
    return n;
}

/* What NumPy writes for the same array is the same, byte for byte. */
static void test_an_array_is_written_as_numpy_does(void **state)
{
    (void)state;
    TR_SCOPE;
    unsigned char ours[512], theirs[512];
    float values[6] = {0, 1, 2, 3, 4, 5};
    TR_CHECK(tr_npy_save(files_path("a.npy"), tr_from(values, TR_SHAPE(2, 3))));
    size_t n = read_file(files_path("a.npy"), ours, sizeof ours);
    assert_int_equal(read_file(recorded_path("version-1.npy"), theirs, sizeof theirs), n);
    assert_memory_equal(ours, theirs, n);
}

static tr_tensor_list *some_of_everything(void)
{
    tr_tensor_list *list = tr_list_new();
    for (int d = 0; d < TR_DTYPE_COUNT; d++)
        if (d != TR_BF16)
            TR_CHECK(tr_list_add(list, tr_dtype_name((tr_dtype)d), tr_ones(TR_SHAPE(2, 3, 4), .dtype = (tr_dtype)d)));
    TR_CHECK(tr_list_add(list, "h.0.weight", tr_transpose(tr_randn(1, TR_SHAPE(50, 70)), 0, 1)));
    TR_CHECK(tr_list_add(list, "", tr_scalar(3, TR_I64)));
    TR_CHECK(tr_list_add(list, "caf\xc3\xa9/none", tr_empty(TR_SHAPE(2, 0))));
    TR_CHECK(tr_list_add(list, "long", tr_randn(2, TR_SHAPE(1, 2, 1, 3, 1, 4, 1, 999))));
    TR_CHECK(tr_list_add(list, "zeros", tr_zeros(TR_SHAPE(1 << 18))));
    return list;
}

static void test_lists_come_back(void **state)
{
    (void)state;
    for (int compress = 0; compress < 2; compress++) {
        TR_SCOPE;
        tr_tensor_list *list = some_of_everything();
        TR_CHECK(tr_npz_save(files_path("a.npz"), list, .compress = compress));
        tr_tensor_list *back = tr_npz_load(files_path("a.npz"));
        TR_CHECK(tr_status_of(back));
        assert_int_equal(tr_list_count(back), tr_list_count(list));
        for (int i = 0; i < tr_list_count(list); i++) {
            assert_string_equal(tr_list_name(back, i), tr_list_name(list, i));
            assert_same(tr_list_at(list, i), tr_list_at(back, i));
        }
        unsigned char empty[64];
        TR_CHECK(tr_npz_save(files_path("a.npz"), tr_list_new(), .compress = compress));
        assert_int_equal(read_file(files_path("a.npz"), empty, sizeof empty), 22);
        assert_memory_equal(empty, "PK\5\6", 4); /* by which NumPy knows it */
        assert_int_equal(tr_list_count(tr_npz_load(files_path("a.npz"))), 0);
    }
}

static void test_names_of_any_kind_come_back(void **state)
{
    (void)state;
    TR_SCOPE;
    static const char *const names[] = {"", "a b", "caf\xc3\xa9", "/x/../y", "line\nof\ttwo", "\1\x1f", "\x7f"};
    tr_tensor_list *list = tr_list_new();
    for (int i = 0; i < 7; i++) TR_CHECK(tr_list_add(list, names[i], tr_full(i, TR_SHAPE(1))));
    TR_CHECK(tr_npz_save(files_path("names.npz"), list));
    tr_tensor_list *back = tr_npz_load(files_path("names.npz"));
    for (int i = 0; i < 7; i++) assert_same(tr_list_at(list, i), tr_list_find(back, names[i]));
    TR_CHECK(tr_list_add(list, "caf\xc3\xa9\1", tr_ones(TR_SHAPE(1)))); /* libzip knows no encoding of this one */
    assert_failed(tr_npz_save(files_path("names.npz"), list), TR_INVALID, "cannot add caf");
}

/* What stood there before stays. */
static void test_a_disk_that_is_full(void **state)
{
    (void)state;
    TR_SCOPE;
    struct rlimit before;
    tr_tensor_list *list = tr_list_new();
    tr_tensor *t = tr_randn(4, TR_SHAPE(20, 30));
    TR_CHECK(tr_list_add(list, "a", t));
    TR_CHECK(tr_npz_save(files_path("full.npz"), list));
    TR_CHECK(tr_list_add(list, "b", tr_transpose(tr_randn(5, TR_SHAPE(200, 300)), 0, 1)));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, before.rlim_max}), 0);
    tr_status status = tr_npz_save(files_path("full.npz"), list);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_failed(status, TR_IO, "full.npz: File too large");
    tr_tensor_list *back = tr_npz_load(files_path("full.npz"));
    assert_int_equal(tr_list_count(back), 1);
    assert_same(t, tr_list_find(back, "a"));
}

static void test_what_numpy_has_not(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *low = tr_zeros(TR_SHAPE(2), .dtype = TR_BF16);
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "w", low));
    TR_CHECK(tr_npy_save(files_path("kept.npy"), tr_zeros(TR_SHAPE(2))));
    assert_failed(tr_npy_save(files_path("kept.npy"), low), TR_UNSUPPORTED, "NumPy has no bf16; tr_cast() it to f32");
    assert_failed(tr_npz_save(files_path("kept.npy"), list), TR_UNSUPPORTED, "w: NumPy has no bf16");
    assert_int_equal(tr_status_of(tr_npy_load(files_path("kept.npy"))), TR_OK);
    assert_failed(tr_npy_save(files_path("x.npy"), tr_add(low, tr_zeros(TR_SHAPE(3)))), TR_DTYPE, "add");
    char *name = malloc(65533);
    memset(name, 'n', 65532);
    name[65532] = '\0';
    list = tr_list_new();
    TR_CHECK(tr_list_add(list, name, tr_zeros(TR_SHAPE(2))));
    assert_failed(tr_npz_save(files_path("kept.npz"), list), TR_INVALID, "a name of 65532 bytes is too long for an archive");
    free(name);
    assert_failed(tr_npz_save("/no/such/folder/x.npz", tr_list_new()), TR_IO, "/no/such/folder");
}

/* ---- What is damaged, or foreign ------------------------------------------------------------------------------------- */

static size_t make_npy(unsigned char *to, const char *header, size_t data)
{
    size_t n = strlen(header);
    memcpy(to, "\x93NUMPY\1", 8);
    to[8] = (unsigned char)n;
    to[9] = (unsigned char)(n >> 8);
    memcpy(to + 10, header, n);
    memset(to + 10 + n, 2, data);
    return 10 + n + data;
}

static tr_status load_npy(const char *header, size_t data)
{
    TR_SCOPE;
    unsigned char bytes[512];
    return tr_status_of(tr_npy_load(files_write("b.npy", bytes, make_npy(bytes, header, data))));
}

static void test_headers(void **state)
{
    (void)state;
    assert_int_equal(load_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 24), TR_OK);
    assert_int_equal(load_npy("{\"shape\":(2,3,),\"descr\":\"=f4\",\"fortran_order\":True}\n", 24), TR_OK);
    assert_int_equal(load_npy("{'descr': '|u1', 'fortran_order': False, 'shape': ()}", 1), TR_OK);
    static const struct {
        const char *header;
        size_t data;
        tr_status status;
        const char *part;
    } rows[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 23, TR_FORMAT, "holds [2, 3] of f32, and has 23 bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 25, TR_FORMAT, "has 25 bytes"},
        {"{'descr': '|f4', 'fortran_order': False, 'shape': (2,), }", 8, TR_FORMAT, "\"|f4\" lacks the byte order"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", 8, TR_UNSUPPORTED, "dtype \"<c8\"; Trireme has f2, f4"},
        {"{'descr': '<i2', 'fortran_order': False, 'shape': (4,), }", 8, TR_UNSUPPORTED, "\"<i2\""},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", 8, TR_UNSUPPORTED, "pickled Python objects"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", 4, TR_UNSUPPORTED, "records"},
        {"{'descr': 'f4', 'fortran_order': False, 'shape': (1,), }", 4, TR_UNSUPPORTED, "\"f4\""},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (1,), }", 1, TR_FORMAT, "bool holds the value 2"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 4, TR_UNSUPPORTED, "more than 8"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,), }", 4, TR_FORMAT, "no number to 2^63"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", 0, TR_FORMAT, "has 0 bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4, 0), }", 0, TR_FORMAT, "has 0 bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", 4, TR_FORMAT, "no size at \"-1,)"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 2), }", 8, TR_FORMAT, "no comma"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,,), }", 8, TR_FORMAT, "no size"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 1, }", 4, TR_FORMAT, "no shape"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }", 4, TR_FORMAT, "neither True nor False"},
        {"{'descr': '<f4', 'shape': (1,), }", 4, TR_FORMAT, "lacks descr, fortran_order or shape"},
        {"{'descr': '<f4', 'descr': '<f4', 'shape': (1,), }", 4, TR_FORMAT, "a key twice"},
        {"{'descr': '<f4', 'other': '<f4', 'shape': (1,), }", 4, TR_FORMAT, "an unknown key"},
        {"{'descr': '<f4, 'fortran_order': False, 'shape': (1,), }", 4, TR_UNSUPPORTED, "dtype \"<f4, \""},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } + 1", 4, TR_FORMAT, "more than the entries"},
        {"{'descr': '<f4", 0, TR_FORMAT, "a string that does not end"},
        {"", 0, TR_FORMAT, "no {"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_failed(load_npy(rows[i].header, rows[i].data), rows[i].status, rows[i].part);
}

static void test_what_is_no_array(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_failed(tr_status_of(tr_npy_load(files_path("absent.npy"))), TR_NOT_FOUND, "cannot open");
    assert_failed(tr_status_of(tr_npy_load("/tmp")), TR_FORMAT, "is a folder, not an .npy file");
    assert_failed(tr_status_of(tr_npy_load(NULL)), TR_INVALID, "no path of an .npy file");
    assert_failed(tr_status_of(tr_npy_load(files_write("b.npy", "", 0))), TR_FORMAT, "ends in its header");
    assert_failed(tr_status_of(tr_npy_load(files_write("b.npy", "GIF89a..", 8))), TR_FORMAT, "is no .npy array");
    assert_failed(tr_status_of(tr_npy_load(recorded_path("arrays.npz"))), TR_FORMAT, "tr_npz_load() reads it");
    assert_failed(tr_status_of(tr_npy_load(files_write("b.npy", "\x93NUMPY\4\0\0\0", 10))), TR_UNSUPPORTED, "version 4.0");
    assert_failed(tr_status_of(tr_npy_load(files_write("b.npy", "\x93NUMPY\2\0\0\0\0\1", 12))), TR_FORMAT, "longer than");
    assert_failed(tr_status_of(tr_npz_load(recorded_path("version-1.npy"))), TR_FORMAT, "as an .npz archive: Not a zip");
    assert_failed(tr_status_of(tr_npz_load(files_write("b.npz", "", 0))), TR_FORMAT, "as an .npz archive: Not a zip");
    assert_failed(tr_status_of(tr_npz_load(NULL)), TR_INVALID, "no path of an .npz archive");
}

/* From memory: thousands of files would wait for the disk. */
static tr_tensor_list *load_archive(const unsigned char *bytes, size_t n)
{
    char path[40];
    int fd = memfd_create("archive", MFD_CLOEXEC);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    tr_tensor_list *list = tr_npz_load(path);
    close(fd);
    return list;
}

/* An archive with one byte changed gives an error or the same array: dates, and bits that say nothing, may change. */
static void check_damage(const unsigned char *archive, size_t n, const tr_tensor *expected)
{
    unsigned char bytes[1024];
    for (size_t i = 0; i < n; i++) {
        TR_SCOPE;
        assert_true(tr_status_of(load_archive(archive, i)) != TR_OK);
        for (int bit = 0; bit < 8; bit += 3) {
            memcpy(bytes, archive, n);
            bytes[i] ^= (unsigned char)(1 << bit);
            tr_tensor_list *list = load_archive(bytes, n);
            if (tr_status_of(list) == TR_OK && tr_list_count(list)) assert_same(expected, tr_list_at(list, 0));
        }
    }
}

static void test_a_damaged_archive(void **state)
{
    (void)state;
    for (int compress = 0; compress < 2; compress++) {
        TR_SCOPE;
        unsigned char bytes[1024];
        tr_tensor *t = tr_randn(3, TR_SHAPE(3, 5));
        tr_tensor_list *list = tr_list_new();
        TR_CHECK(tr_list_add(list, "weight", t));
        TR_CHECK(tr_npz_save(files_path("a.npz"), list, .compress = compress));
        size_t n = read_file(files_path("a.npz"), bytes, sizeof bytes);
        check_damage(bytes, n, t);
        bytes[8] ^= 1; /* the member's own header and the directory must agree */
        assert_failed(tr_status_of(load_archive(bytes, n)), TR_FORMAT, "inconsistent");
    }
}

static void set32(unsigned char *to, uint32_t value)
{
    memcpy(to, &value, sizeof value);
}

/* Two members, and what the checks that follow change: in the second's own header, in its entry of the directory, in its data. */
static void test_what_an_archive_hides(void **state)
{
    (void)state;
    TR_SCOPE;
    unsigned char bytes[1024];
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "a", tr_zeros(TR_SHAPE(100), .dtype = TR_U8)));
    TR_CHECK(tr_list_add(list, "b", tr_zeros(TR_SHAPE(100), .dtype = TR_U8)));
    TR_CHECK(tr_npz_save(files_path("a.npz"), list));
    enum { ARRAY = 128 + 100, MEMBER = 30 + 5 + ARRAY };
    size_t n = read_file(files_path("a.npz"), bytes, sizeof bytes);
    unsigned char *header = bytes + MEMBER, *entry = bytes + 2 * MEMBER + 46 + 5;
    assert_memory_equal(header, "PK\3\4", 4);
    assert_memory_equal(entry, "PK\1\2", 4);

    header[MEMBER - 1] = 1;
    assert_failed(tr_status_of(load_archive(bytes, n)), TR_FORMAT, "b.npy: cannot be read as an .npz archive: CRC");
    header[MEMBER - 1] = 0;
    header[30] = entry[46] = 'a';
    assert_failed(tr_status_of(load_archive(bytes, n)), TR_FORMAT, "two members have one name");
    header[30] = entry[46] = 0xff;
    assert_failed(tr_status_of(load_archive(bytes, n)), TR_FORMAT, "name is not UTF-8");
    header[30] = entry[46] = 'b';
    header[8] = entry[10] = 12;
    assert_failed(tr_status_of(load_archive(bytes, n)), TR_UNSUPPORTED, "b.npy is compressed by method 12");
    header[8] = entry[10] = 0;
    entry[8] = 1;
    assert_failed(tr_status_of(load_archive(bytes, n)), TR_UNSUPPORTED, "encrypted");
    entry[8] = 0;
    set32(entry + 42, 0); /* where its header is */
    assert_failed(tr_status_of(load_archive(bytes, n)), TR_FORMAT, "inconsistent");
    set32(entry + 42, MEMBER);
    header[8] = entry[10] = 8; /* so much cannot come from so little */
    set32(header + 22, 1 << 20);
    set32(entry + 24, 1 << 20);
    assert_failed(tr_status_of(load_archive(bytes, n)), TR_FORMAT, "b.npy cannot have 1048576 bytes in 228");
    header[8] = entry[10] = 0;
    for (int size = 0; size < 2; size++) { /* the first member has all of the second in it */
        set32(header + 18 + 4 * size, ARRAY);
        set32(entry + 20 + 4 * size, ARRAY);
        set32(bytes + 18 + 4 * size, ARRAY + MEMBER);
        set32(bytes + 2 * MEMBER + 20 + 4 * size, ARRAY + MEMBER);
    }
    assert_failed(tr_status_of(load_archive(bytes, n)), TR_FORMAT, "b.npy lies over others");
}

/* Members' names lose .npy, which not every archive has. */
static void test_two_members_for_one_array(void **state)
{
    (void)state;
    TR_SCOPE;
    unsigned char bytes[1024];
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "b", tr_zeros(TR_SHAPE(2))));
    TR_CHECK(tr_list_add(list, "aaaaa", tr_zeros(TR_SHAPE(2))));
    TR_CHECK(tr_npz_save(files_path("a.npz"), list));
    size_t n = read_file(files_path("a.npz"), bytes, sizeof bytes), entry = (30 + 5 + 128 + 8) + (30 + 9 + 128 + 8);
    memcpy(bytes + 30, "abcde", 5);
    memcpy(bytes + entry + 46, "abcde", 5);
    assert_non_null(tr_list_find(load_archive(bytes, n), "abcde"));
    memcpy(bytes + 30, "aaaaa", 5);
    memcpy(bytes + entry + 46, "aaaaa", 5);
    assert_failed(tr_status_of(load_archive(bytes, n)), TR_FORMAT, "two arrays named aaaaa");
}

static void test_how_much_an_archive_unpacks_to(void **state)
{
    (void)state;
    TR_SCOPE;
    const char *path = files_path("a.npz");
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "a", tr_zeros(TR_SHAPE(32 << 20), .dtype = TR_U8)));
    TR_CHECK(tr_list_add(list, "b", tr_zeros(TR_SHAPE(32 << 20), .dtype = TR_U8)));
    TR_CHECK(tr_npz_save(path, list, .compress = true));
    assert_failed(tr_status_of(tr_npz_load(path)), TR_FORMAT,
        "unpack to 67109120, more than the 67108864 that .max_bytes allows"); /* with two headers */
    assert_int_equal(tr_list_count(tr_npz_load(path, .max_bytes = 67109120)), 2);
    assert_failed(tr_status_of(tr_npz_load(path, .max_bytes = 1)), TR_FORMAT, "more than the 1 that");
    assert_failed(tr_status_of(tr_npz_load(path, .max_bytes = -1)), TR_INVALID, "not -1");
    TR_CHECK(tr_npz_save(path, list)); /* stored as they are: no more than the file */
    TR_CHECK(tr_status_of(tr_npz_load(path)));
}

/* Before the end stands a record of 64 bits, as in Python's large archives, and the end's own fields are given, or full. */
static void test_ends_of_an_archive(void **state)
{
    (void)state;
    TR_SCOPE;
    unsigned char bytes[1024], large[56] = "PK\6\6\x2c", locator[20] = "PK\6\7", end[22];
    tr_tensor *t = tr_randn(3, TR_SHAPE(3, 5));
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "weight", t));
    TR_CHECK(tr_npz_save(files_path("a.npz"), list));
    size_t n = read_file(files_path("a.npz"), bytes, sizeof bytes), at = n - sizeof end;
    memcpy(end, bytes + at, sizeof end);
    memcpy(large + 24, end + 8, 2);
    memcpy(large + 32, end + 10, 2);
    memcpy(large + 40, end + 12, 4);
    memcpy(large + 48, end + 16, 4);
    set32(locator + 8, (uint32_t)at);
    locator[16] = 1;
    memcpy(bytes + at, large, sizeof large);
    memcpy(bytes + at + sizeof large, locator, sizeof locator);
    for (int full = 0; full < 2; full++) {
        if (full) memset(end + 8, 0xff, 12);
        memcpy(bytes + at + sizeof large + sizeof locator, end, sizeof end);
        const tr_tensor_list *back = load_archive(bytes, n + sizeof large + sizeof locator);
        TR_CHECK(tr_status_of(back));
        assert_same(t, tr_list_find(back, "weight"));
    }
    memcpy(bytes + at, end, sizeof end); /* full, without the record that they speak of */
    assert_failed(tr_status_of(load_archive(bytes, n)), TR_FORMAT, "cannot be read as an .npz archive");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_archives_of_numpy),
        cmocka_unit_test(test_versions_of_the_format),
        cmocka_unit_test(test_an_array_is_written_as_numpy_does),
        cmocka_unit_test(test_lists_come_back),
        cmocka_unit_test(test_names_of_any_kind_come_back),
        cmocka_unit_test(test_a_disk_that_is_full),
        cmocka_unit_test(test_what_numpy_has_not),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_what_is_no_array),
        cmocka_unit_test(test_a_damaged_archive),
        cmocka_unit_test(test_what_an_archive_hides),
        cmocka_unit_test(test_two_members_for_one_array),
        cmocka_unit_test(test_how_much_an_archive_unpacks_to),
        cmocka_unit_test(test_ends_of_an_archive),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
