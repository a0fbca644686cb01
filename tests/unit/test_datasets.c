/* Datasets: tensors, slices, maps, a program's own; files in the formats of MNIST, and what is wrong with them. */
#include "files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <trireme/trireme.h>

static void assert_failed(tr_status got, tr_status status, const char *part)
{
    assert_int_equal(got, status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

/* ---- In memory --------------------------------------------------------------------------------------------------- */

static void test_rows_of_tensors(void **state)
{
    (void)state;
    TR_SCOPE;
    float x[6] = {0, 1, 2, 3, 4, 5};
    int64_t y[3] = {7, 8, 9};
    tr_dataset *set = tr_dataset_tensors(tr_from(x, TR_SHAPE(3, 2)), tr_from(y, TR_SHAPE(3), .dtype = TR_I64));
    TR_CHECK(tr_status_of(set));
    assert_int_equal(tr_dataset_count(set), 3);
    tr_sample s;
    TR_CHECK(tr_dataset_at(set, 1, &s));
    assert_int_equal(tr_ndim(s.x), 1);
    assert_memory_equal(tr_data(s.x), x + 2, 2 * sizeof(float));
    assert_int_equal(tr_ndim(s.y), 0);
    assert_int_equal(tr_item(s.y), 8);
    assert_failed(tr_dataset_at(set, 3, &s), TR_INVALID, "no sample 3: tensors has 3");
    assert_failed(tr_dataset_at(set, -1, &s), TR_INVALID, "no sample -1");
    assert_failed(tr_dataset_at(set, 1, NULL), TR_INVALID, "dataset_at: out is NULL");
    TR_CHECK(tr_dataset_at(tr_dataset_tensors(tr_from(x, TR_SHAPE(3, 2)), NULL), 2, &s));
    assert_null(s.y);
    assert_memory_equal(tr_data(s.x), x + 4, 2 * sizeof(float));
}

static tr_status swap_fields(const tr_sample_call *call, tr_sample *sample)
{
    sample->more[5] = sample->more[0];
    sample->more[0] = call->index == 3 ? tr_add(sample->more[1], tr_zeros(TR_SHAPE(9), .dtype = TR_F64)) : NULL;
    return TR_OK;
}

/* more[0]: i32 [2], i and -i; more[1]: f64 [1, 3], i / 2 each */
static void expect_more(const tr_sample *s, int64_t i)
{
    assert_int_equal(tr_item(s->x), i);
    assert_null(s->y);
    for (int f = 2; f < TR_SAMPLE_MORE; f++) assert_null(s->more[f]);
    assert_true(tr_ndim(s->more[0]) == 1 && tr_dtype_of(s->more[0]) == TR_I32);
    assert_memory_equal(tr_data(s->more[0]), ((int32_t[]){(int32_t)i, -(int32_t)i}), 8);
    assert_true(tr_ndim(s->more[1]) == 2 && tr_dtype_of(s->more[1]) == TR_F64);
    assert_memory_equal(tr_data(s->more[1]), ((double[]){(double)i / 2, (double)i / 2, (double)i / 2}), 24);
}

static void test_samples_of_more_than_two_tensors(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_arange(10, TR_I64, tr_cpu(0)), *column = tr_reshape(tr_arange(10, TR_I32, tr_cpu(0)), TR_SHAPE(10, 1));
    tr_tensor *pairs = tr_cat((tr_tensor *[]){column, tr_neg(column)}, 2, 1);
    tr_tensor *half = tr_reshape(tr_affine(tr_cast(x, TR_F64), 0.5, 0), TR_SHAPE(10, 1, 1));
    tr_tensor *halves = tr_contiguous(tr_expand(half, TR_SHAPE(10, 1, 3)));
    tr_dataset *set = tr_dataset_tensors(x, NULL, .more = {pairs, halves}), *parts[2];
    tr_sample s;
    TR_CHECK(tr_dataset_at(set, 7, &s));
    expect_more(&s, 7);
    TR_CHECK(tr_dataset_at(tr_dataset_slice(set, 2, 9), 3, &s));
    expect_more(&s, 5);
    TR_CHECK(tr_dataset_at(tr_dataset_subset(set, (const int64_t[]){8, 1}, 2), 1, &s));
    expect_more(&s, 1);
    TR_CHECK(tr_dataset_split(set, ((double[]){4, 6}), 2, parts));
    TR_CHECK(tr_dataset_at(parts[1], 5, &s));
    expect_more(&s, (int64_t)tr_item(s.x));
    tr_dataset *map = tr_dataset_map(set, swap_fields, NULL);
    TR_CHECK(tr_dataset_at(map, 6, &s));
    assert_null(s.more[0]);
    assert_int_equal(((int32_t *)tr_data(s.more[5]))[1], -6);
    assert_failed(tr_dataset_at(map, 3, &s), TR_SHAPE, "sample 3 of tensors: add");
    assert_true(tr_dataset_hash(set) != tr_dataset_hash(tr_dataset_tensors(x, NULL, .more = {pairs})));
    assert_failed(tr_status_of(tr_dataset_tensors(x, x, .more = {NULL, tr_zeros(TR_SHAPE(4))})), TR_SHAPE,
        "x [10] and more[1] [4]");
    assert_failed(tr_status_of(tr_dataset_tensors(x, NULL, .more = {pairs, tr_transpose(pairs, 0, 1)})), TR_INVALID,
        "dataset_tensors: more[1] [2, 10] must be a contiguous CPU tensor");
}

static void test_what_are_no_rows(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_zeros(TR_SHAPE(3, 2));
    assert_failed(tr_status_of(tr_dataset_tensors(x, tr_zeros(TR_SHAPE(4)))), TR_SHAPE, "x [3, 2] and y [4]");
    assert_failed(tr_status_of(tr_dataset_tensors(tr_transpose(x, 0, 1), NULL)), TR_INVALID, "contiguous");
    assert_failed(tr_status_of(tr_dataset_tensors(tr_scalar(1, TR_F32), NULL)), TR_INVALID, "row per sample");
    assert_failed(tr_status_of(tr_dataset_tensors(NULL, x)), TR_INVALID, "x is NULL");
    tr_tensor *bad = tr_add(x, tr_zeros(TR_SHAPE(5)));
    tr_dataset *set = tr_dataset_tensors(x, bad);
    assert_failed(tr_status_of(set), TR_SHAPE, "broadcast");
    tr_sample s;
    assert_failed(tr_dataset_at(set, 0, &s), TR_SHAPE, "broadcast");
    assert_int_equal(tr_dataset_count(set), 0);
}

static void test_a_slice(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_dataset *set = tr_dataset_tensors(tr_arange(10, TR_F32, tr_cpu(0)), NULL);
    tr_dataset *part = tr_dataset_slice(tr_dataset_slice(set, 2, 9), 1, 3); /* 3, 4 */
    assert_int_equal(tr_dataset_count(part), 2);
    tr_sample s;
    TR_CHECK(tr_dataset_at(part, 1, &s));
    assert_int_equal(tr_item(s.x), 4);
    assert_failed(tr_dataset_at(part, 2, &s), TR_INVALID, "no sample 2");
    assert_int_equal(tr_dataset_count(tr_dataset_slice(set, 10, 10)), 0);
    assert_failed(tr_status_of(tr_dataset_slice(set, 5, 11)), TR_INVALID, "no samples [5, 11): tensors has 10");
    assert_failed(tr_status_of(tr_dataset_slice(set, 5, 4)), TR_INVALID, "[5, 4)");
    assert_failed(tr_status_of(tr_dataset_slice(NULL, 0, 0)), TR_INVALID, "NULL");
}

/* A resumed training compares them. */
static void test_slices_of_other_lengths_are_told_apart(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_dataset *set = tr_dataset_tensors(tr_rand(1, TR_SHAPE(20, 3)), NULL);
    uint64_t hash = tr_dataset_hash(tr_dataset_slice(set, 2, 10));
    assert_true(hash == tr_dataset_hash(tr_dataset_slice(set, 2, 10)));
    assert_true(hash != tr_dataset_hash(tr_dataset_slice(set, 2, 11)));
    assert_true(hash != tr_dataset_hash(tr_dataset_slice(set, 3, 11)));
}

static void test_a_subset(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_dataset *set = tr_dataset_tensors(tr_arange(10, TR_F32, tr_cpu(0)), NULL);
    tr_dataset *part = tr_dataset_subset(tr_dataset_slice(set, 2, 9), (const int64_t[]){6, 0, 6}, 3); /* 8, 2, 8 */
    assert_int_equal(tr_dataset_count(part), 3);
    tr_batch b;
    TR_CHECK(tr_loader_next(tr_loader_new(part, .batch = 3), &b));
    const float *x = tr_data(b.x);
    assert_true(x[0] == 8 && x[1] == 2 && x[2] == 8);
    assert_int_equal(tr_dataset_count(tr_dataset_subset(set, NULL, 0)), 0);
    assert_failed(tr_status_of(tr_dataset_subset(set, (const int64_t[]){10}, 1)), TR_INVALID, "no sample 10: tensors has 10");
    assert_failed(tr_status_of(tr_dataset_subset(NULL, NULL, 0)), TR_INVALID, "NULL");
    assert_failed(tr_status_of(tr_dataset_subset(set, NULL, 1)), TR_INVALID, "dataset_subset: indices is NULL");
}

/* ---- A program's own --------------------------------------------------------------------------------------------- */

static tr_status squares(const tr_sample_call *call, tr_sample *out)
{
    int *calls = call->user;
    if (calls) ++*calls;
    if (call->index == 5) return tr_fail(TR_IO, "five is broken");
    out->x = call->index == 6 ? NULL : tr_scalar((double)(call->index * call->index), TR_F64);
    out->y = call->index == 7 ? tr_add(out->x, tr_scalar(0, TR_F32)) : NULL;
    return TR_OK;
}

static void count_release(void *user)
{
    *(int *)user += 1000;
}

/* Samples that are their index, in random parts. */
static void test_random_parts(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_dataset *set = tr_dataset_tensors(tr_arange(100, TR_I64, tr_cpu(0)), NULL), *parts[3], *again[3], *other[3];
    TR_CHECK(tr_dataset_split(set, ((double[]){0.29, 0.6, 0.11}), 3, parts, .seed = 4));
    TR_CHECK(tr_dataset_split(set, (double[]){29, 60, 11}, 3, again, .seed = 4));
    TR_CHECK(tr_dataset_split(set, ((double[]){29, 60, 11}), 3, other, .seed = 5));
    const int64_t counts[] = {29, 60, 11};
    bool seen[100] = {false}, in_order = true, alike = true;
    int64_t last = -1;
    for (int p = 0; p < 3; p++) {
        assert_int_equal(tr_dataset_count(parts[p]), counts[p]);
        for (int64_t i = 0; i < counts[p]; i++) {
            tr_sample s, same, different;
            TR_CHECK(tr_dataset_at(parts[p], i, &s));
            TR_CHECK(tr_dataset_at(again[p], i, &same));
            TR_CHECK(tr_dataset_at(other[p], i, &different));
            int64_t value = (int64_t)tr_item(s.x);
            assert_false(seen[value]);
            seen[value] = true;
            assert_int_equal(value, tr_item(same.x));
            in_order &= value > last;
            alike &= value == (int64_t)tr_item(different.x);
            last = value;
        }
    }
    assert_false(in_order || alike);

    /* What rounding leaves goes to the first parts. */
    TR_CHECK(tr_dataset_split(tr_dataset_slice(set, 0, 11), ((double[]){0.25, 0.25, 0.5}), 3, parts));
    assert_int_equal(tr_dataset_count(parts[0]), 3);
    assert_int_equal(tr_dataset_count(parts[1]), 3);
    assert_int_equal(tr_dataset_count(parts[2]), 5);
    TR_CHECK(tr_dataset_split(tr_dataset_slice(set, 0, 0), ((double[]){0.5, 0.5}), 2, parts));
    assert_int_equal(tr_dataset_count(parts[0]), 0);

    assert_failed(tr_dataset_split(set, ((double[]){0.5, 0.4}), 2, parts), TR_INVALID,
        "the sum of the shares is 0.9: it must be 1, of fractions, or the 100 samples of tensors");
    assert_int_equal(tr_status_of(parts[0]), TR_INVALID);
    assert_int_equal(tr_status_of(parts[1]), TR_INVALID);
    assert_failed(tr_dataset_split(set, ((double[]){1.5, -0.5}), 2, parts), TR_INVALID, "part 1 has a share of -0.5");
    assert_failed(tr_dataset_split(set, ((double[]){99.5, 0.5}), 2, parts), TR_INVALID, "part 0 cannot have 99.5 samples");
    assert_failed(tr_dataset_split(NULL, ((double[]){1}), 1, parts), TR_INVALID, "the dataset is NULL");
    assert_failed(tr_dataset_split(set, NULL, 1, parts), TR_INVALID, "shares are NULL");
    assert_failed(tr_dataset_split(set, ((double[]){1}), 0, parts), TR_INVALID, "0 parts");
    assert_failed(tr_dataset_split(tr_dataset_slice(set, 5, 4), ((double[]){1}), 1, parts), TR_INVALID, "no samples [5, 4)");
}

static void test_a_programs_own(void **state)
{
    (void)state;
    int calls = 0;
    {
        TR_SCOPE;
        tr_dataset *set = tr_dataset_new(8, squares, .user = &calls, .release = count_release, .name = "squares");
        tr_sample s;
        TR_CHECK(tr_dataset_at(set, 3, &s));
        assert_int_equal(tr_item(s.x), 9);
        assert_failed(tr_dataset_at(set, 5, &s), TR_IO, "sample 5 of squares: five is broken");
        assert_failed(tr_dataset_at(set, 6, &s), TR_INVALID, "sample 6 of squares: it has no x");
        assert_failed(tr_dataset_at(set, 7, &s), TR_DTYPE, "sample 7 of squares: ");
        assert_failed(tr_dataset_at(tr_dataset_slice(set, 4, 6), 1, &s), TR_IO, "five is broken");
        assert_int_equal(calls, 5);
    }
    assert_int_equal(calls, 1005);
    TR_SCOPE;
    assert_failed(tr_status_of(tr_dataset_new(-1, squares, .user = &calls, .release = count_release)), TR_INVALID,
        "-1");
    assert_failed(tr_status_of(tr_dataset_new(1, NULL)), TR_INVALID, "function");
    tr_dataset *none = tr_dataset_fail(TR_FORMAT, "points.csv: line %d has no number", 3);
    assert_failed(tr_status_of(none), TR_FORMAT, "points.csv: line 3 has no number");
    assert_failed(tr_status_of(tr_dataset_slice(none, 0, 1)), TR_FORMAT, "points.csv: line 3");
    assert_int_equal(calls, 1005);
}

static tr_status negate(const tr_sample_call *call, tr_sample *sample)
{
    if (call->index == 2) return tr_fail(TR_STATE, "not two");
    sample->y = sample->x;
    sample->x = tr_affine(sample->x, -1, *(double *)call->user);
    return TR_OK;
}

static void test_a_map(void **state)
{
    (void)state;
    TR_SCOPE;
    double shift = 100;
    tr_dataset *set = tr_dataset_map(tr_dataset_tensors(tr_arange(4, TR_F32, tr_cpu(0)), NULL), negate, &shift);
    tr_sample s;
    TR_CHECK(tr_dataset_at(set, 3, &s));
    assert_int_equal(tr_item(s.x), 97);
    assert_int_equal(tr_item(s.y), 3);
    assert_failed(tr_dataset_at(set, 2, &s), TR_STATE, "sample 2 of tensors: not two");
    TR_CHECK(tr_dataset_at(tr_dataset_map(tr_dataset_new(8, squares), negate, &shift), 3, &s));
    assert_int_equal(tr_item(s.x), 91);
    assert_failed(tr_dataset_at(tr_dataset_map(tr_dataset_new(8, squares), negate, &shift), 5, &s), TR_IO, "five");
    assert_failed(tr_status_of(tr_dataset_map(set, NULL, NULL)), TR_INVALID, "NULL");
    assert_failed(tr_status_of(tr_dataset_map(tr_dataset_slice(set, 4, 3), negate, NULL)), TR_INVALID, "[4, 3)");
}

/* ---- IDX --------------------------------------------------------------------------------------------------------- */

/* 2 x 3 numbers of the type */
static size_t idx_file(unsigned char bytes[64], int type, int element, const void *elements)
{
    const unsigned char header[] = {0, 0, (unsigned char)type, 2, 0, 0, 0, 2, 0, 0, 0, 3};
    memcpy(bytes, header, sizeof header);
    memcpy(bytes + sizeof header, elements, (size_t)(6 * element));
    return sizeof header + (size_t)(6 * element);
}

static void test_idx_types(void **state)
{
    (void)state;
    TR_SCOPE;
    unsigned char bytes[64];
    tr_tensor *t = tr_idx_load(files_write("u8", bytes, idx_file(bytes, 0x08, 1, "abcdef")));
    TR_CHECK(tr_status_of(t));
    assert_int_equal(tr_dtype_of(t), TR_U8);
    assert_int_equal(tr_size(t, 0), 2);
    assert_int_equal(tr_size(t, 1), 3);
    assert_memory_equal(tr_data(t), "abcdef", 6);

    t = tr_idx_load(files_write_gz("i32.gz", bytes, idx_file(bytes, 0x0c, 4,
        "\0\0\0\1\0\0\1\0\xff\xff\xff\xff\0\0\0\4\0\0\0\5\0\0\0\6")));
    TR_CHECK(tr_status_of(t));
    assert_memory_equal(tr_data(t), ((int32_t[]){1, 256, -1, 4, 5, 6}), 24);

    t = tr_idx_load(files_write("f32", bytes, idx_file(bytes, 0x0d, 4,
        "\x3f\x80\0\0\xc0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0")));
    TR_CHECK(tr_status_of(t));
    assert_int_equal(tr_dtype_of(t), TR_F32);
    assert_memory_equal(tr_data(t), ((float[]){1, -2, 0, 0, 0, 0}), 24);

    t = tr_idx_load(
        files_write("f64", bytes, idx_file(bytes, 0x0e, 8, (char[48]){0x3f, (char)0xf0, 0, 0, 0, 0, 0, 0, 0x40})));
    TR_CHECK(tr_status_of(t));
    assert_memory_equal(tr_data(t), ((double[]){1, 2, 0, 0, 0, 0}), 48);
    assert_failed(tr_status_of(tr_idx_load(files_write("i16", bytes, idx_file(bytes, 0x0b, 2, "abcdefghijkl")))),
        TR_UNSUPPORTED, "16 bits");
}

static void test_damaged_idx(void **state)
{
    (void)state;
    TR_SCOPE;
    unsigned char bytes[64];
    size_t n = idx_file(bytes, 0x08, 1, "abcdef");
    for (size_t i = 0; i < n; i++) {
        TR_SCOPE;
        assert_failed(tr_status_of(tr_idx_load(files_write("cut", bytes, i))), TR_FORMAT,
            i < 12 ? "header" : "ends after");
        assert_failed(tr_status_of(tr_idx_load(files_write_gz("cut.gz", bytes, i))), TR_FORMAT,
            i < 12 ? "header" : "ends after");
    }
    bytes[n] = 'x';
    assert_failed(tr_status_of(tr_idx_load(files_write("long", bytes, n + 1))), TR_FORMAT, "goes on after its [2, 3]");
    assert_failed(tr_status_of(tr_idx_load(files_write_gz("long.gz", bytes, n + 1))), TR_FORMAT, "goes on");
    assert_failed(tr_status_of(tr_idx_load(files_write("magic", "PNG", 4))), TR_FORMAT, "0x504e, not with 0x0000");
    bytes[2] = 7;
    assert_failed(tr_status_of(tr_idx_load(files_write("type", bytes, n))), TR_FORMAT, "type 0x07");
    bytes[2] = 8, bytes[3] = 9;
    assert_failed(tr_status_of(tr_idx_load(files_write("dims", bytes, n))), TR_FORMAT, "9 dimensions");
    bytes[3] = 0;
    assert_failed(tr_status_of(tr_idx_load(files_write("none", bytes, n))), TR_FORMAT, "0 dimensions");
    assert_failed(tr_status_of(tr_idx_load(files_path("absent"))), TR_NOT_FOUND, "absent: No such file");
    assert_failed(tr_status_of(tr_idx_load("/dev/zero")), TR_INVALID, "no file");
    files_write("pipes/x", "", 0);
    assert_failed(tr_status_of(tr_idx_load(files_path("pipes"))), TR_INVALID, "no file");
    assert_int_equal(mkfifo(files_path("pipes/images"), 0600), 0); /* nobody writes, and nobody waits */
    assert_failed(tr_status_of(tr_idx_load(files_path("pipes/images"))), TR_INVALID, "no file");
    assert_int_equal(mkfifo(files_path("pipes/test_batch.bin"), 0600), 0);
    assert_failed(tr_status_of(tr_cifar10(files_path("pipes"))), TR_INVALID, "no file");
    assert_int_equal(mkfifo(files_path("pipes/tokenizer.json"), 0600), 0);
    assert_failed(tr_status_of(tr_tokenizer_load(files_path("pipes/tokenizer.json"))), TR_INVALID, "no file");
    assert_failed(tr_status_of(tr_idx_load(NULL)), TR_INVALID, "path");
}

/* A header of a few bytes asks for more memory than there is: refused before any is taken. */
static void test_absurd_idx(void **state)
{
    (void)state;
    TR_SCOPE;
    unsigned char bytes[40] = {0, 0, 0x0e, 8};
    memset(bytes + 4, 0xff, 32);
    assert_failed(tr_status_of(tr_idx_load(files_write("huge", bytes, 36))), TR_FORMAT, "cannot be in its 36 bytes");
    assert_failed(tr_status_of(tr_idx_load(files_write_gz("huge.gz", bytes, 36))), TR_FORMAT, "cannot be in its");
    unsigned char large[] = {0, 0, 8, 1, 0x10, 0, 0, 0, 1};
    assert_failed(tr_status_of(tr_idx_load(files_write("large", large, sizeof large))), TR_FORMAT, "[268435456] of u8");
}

/* A small file that unpacks to much is refused, unless the program wants so much. */
static void test_how_much_comes_of_a_file(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { MANY = (64 << 20) + 1 };
    unsigned char *bytes = calloc(1, MANY + 8);
    assert_non_null(bytes);
    memcpy(bytes, (unsigned char[]){0, 0, 8, 1, 0x04, 0, 0, 1}, 8);
    const char *path = files_write_gz("zeros.gz", bytes, MANY + 8);
    assert_failed(tr_status_of(tr_idx_load(path)), TR_FORMAT,
        "unpacks to [67108865] of u8, 67108865 bytes, more than the 67108864 that .max_bytes allows");
    assert_int_equal(tr_numel(tr_idx_load(path, .max_bytes = MANY)), MANY);
    bytes[7] = 0;
    TR_CHECK(tr_status_of(tr_idx_load(files_write_gz("zeros.gz", bytes, MANY + 7))));
    bytes[4] = bytes[7] = 1; /* 2^24 + 1 of them, plain: any number, unless the program says */
    path = files_write("zeros", bytes, (1 << 24) + 1 + 8);
    TR_CHECK(tr_status_of(tr_idx_load(path)));
    assert_failed(tr_status_of(tr_idx_load(path, .max_bytes = 1 << 24)), TR_FORMAT, "that .max_bytes allows");
    assert_failed(tr_status_of(tr_idx_load(path, .max_bytes = -1)), TR_INVALID, "not -1");
    free(bytes);
}

static void test_damaged_gzip(void **state)
{
    (void)state;
    TR_SCOPE;
    unsigned char bytes[5000] = {0, 0, 8, 1, 0, 0, 0x13, 0x80}, packed[6000];
    for (int i = 8; i < 5000; i++) bytes[i] = (unsigned char)(i * i >> 3);
    const char *path = files_write_gz("whole.gz", bytes, 4992 + 8);
    TR_CHECK(tr_status_of(tr_idx_load(path)));
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(packed, 1, sizeof packed, file);
    fclose(file);
    assert_failed(tr_status_of(tr_idx_load(files_write("half.gz", packed, n / 2))), TR_FORMAT, "cut short");
    assert_failed(tr_status_of(tr_idx_load(files_write("short.gz", packed, n - 4))), TR_FORMAT, "cut short");
    packed[n - 6] ^= 1;
    assert_failed(tr_status_of(tr_idx_load(files_write("sum.gz", packed, n))), TR_FORMAT, "damaged");
    packed[n - 6] ^= 1, packed[n / 2] ^= 0x55;
    assert_failed(tr_status_of(tr_idx_load(files_write("bits.gz", packed, n))), TR_FORMAT, "idx: ");
}

/* ---- MNIST ------------------------------------------------------------------------------------------------------- */

static const unsigned char images[] = {0, 0, 8, 3,  0,   0,   0, 3, 0, 0, 0,   2,   0, 0,
    0, 2, 0, 51, 102, 153, 1, 2, 3, 4, 255, 204, 0, 0};
static const unsigned char labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 4, 0, 9};

static void test_mnist(void **state)
{
    (void)state;
    TR_SCOPE;
    files_write_gz("mnist/t10k-images-idx3-ubyte.gz", images, sizeof images);
    files_write("mnist/t10k-labels-idx1-ubyte", labels, sizeof labels);
    tr_dataset *set = tr_mnist(files_path("mnist"));
    TR_CHECK(tr_status_of(set));
    assert_int_equal(tr_dataset_count(set), 3);
    tr_sample s;
    TR_CHECK(tr_dataset_at(set, 0, &s));
    assert_int_equal(tr_ndim(s.x), 3);
    assert_int_equal(tr_size(s.x, 0), 1);
    assert_int_equal(tr_size(s.x, 2), 2);
    assert_memory_equal(tr_data(s.x), ((float[]){0, 51 / 255.0f, 102 / 255.0f, 153 / 255.0f}), 4 * sizeof(float));
    assert_int_equal(tr_dtype_of(s.y), TR_I64);
    assert_int_equal(tr_item(s.y), 4);
    TR_CHECK(tr_dataset_at(tr_mnist(files_path("mnist"), .raw = true), 2, &s));
    assert_int_equal(tr_dtype_of(s.x), TR_U8);
    assert_memory_equal(tr_data(s.x), "\xff\xcc\0\0", 4);
    assert_int_equal(tr_item(s.y), 9);

    assert_failed(tr_status_of(tr_mnist(files_path("mnist"), .train = true)), TR_NOT_FOUND,
        "no train-images-idx3-ubyte in ");
    files_write("mnist/train-images.idx3-ubyte", images, sizeof images);
    unsigned char two[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 0};
    files_write("mnist/train-labels.idx1-ubyte", two, sizeof two);
    assert_failed(tr_status_of(tr_mnist(files_path("mnist"), .train = true)), TR_FORMAT,
        "images [3, 2, 2] and labels [2]");
    files_write("mnist/train-labels.idx1-ubyte", images, sizeof images);
    assert_failed(tr_status_of(tr_mnist(files_path("mnist"), .train = true)), TR_FORMAT, "not bytes in 1 dimensions");
    assert_failed(tr_status_of(tr_mnist(NULL)), TR_INVALID, "folder");
}

/* A header may say so; to learn from them would be to learn nothing. */
static void test_images_without_pixels(void **state)
{
    (void)state;
    TR_SCOPE;
    unsigned char empty[16] = {0, 0, 8, 3, 0, 0, 0, 3};
    static const struct {
        unsigned char height, width;
    } sizes[] = {{0, 0}, {0, 2}, {2, 0}};
    files_write("empty/t10k-labels-idx1-ubyte", labels, sizeof labels);
    for (size_t i = 0; i < 3; i++) {
        char text[32];
        empty[11] = sizes[i].height;
        empty[15] = sizes[i].width;
        files_write("empty/t10k-images-idx3-ubyte", empty, sizeof empty);
        snprintf(text, sizeof text, "images of %d x %d pixels", sizes[i].height, sizes[i].width);
        assert_failed(tr_status_of(tr_mnist(files_path("empty"))), TR_FORMAT, text);
    }
}

/* The real files, where TRIREME_TEST_DATA says that they are. */
static void test_the_real_mnist(void **state)
{
    (void)state;
    TR_SCOPE;
    const char *data = getenv("TRIREME_TEST_DATA");
    if (!data) {
        print_message("TRIREME_TEST_DATA names no folder with mnist/ in it: skipped\n");
        skip();
    }
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/mnist", data);
    tr_dataset *set = tr_mnist(folder);
    TR_CHECK(tr_status_of(set));
    assert_int_equal(tr_dataset_count(set), 10000);
    static const int first[10] = {7, 2, 1, 0, 4, 1, 4, 9, 5, 9};
    for (int i = 0; i < 10; i++) {
        tr_sample s;
        TR_CHECK(tr_dataset_at(set, i, &s));
        assert_int_equal(tr_item(s.y), first[i]);
        assert_int_equal(tr_numel(s.x), 784);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_tensors),
        cmocka_unit_test(test_samples_of_more_than_two_tensors),
        cmocka_unit_test(test_what_are_no_rows),
        cmocka_unit_test(test_a_slice),
        cmocka_unit_test(test_slices_of_other_lengths_are_told_apart),
        cmocka_unit_test(test_a_subset),
        cmocka_unit_test(test_random_parts),
        cmocka_unit_test(test_a_programs_own),
        cmocka_unit_test(test_a_map),
        cmocka_unit_test(test_idx_types),
        cmocka_unit_test(test_damaged_idx),
        cmocka_unit_test(test_absurd_idx),
        cmocka_unit_test(test_how_much_comes_of_a_file),
        cmocka_unit_test(test_damaged_gzip),
        cmocka_unit_test(test_mnist),
        cmocka_unit_test(test_images_without_pixels),
        cmocka_unit_test(test_the_real_mnist),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
