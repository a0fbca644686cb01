/* Texts: files, folders, what is wrong with them, and batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <trireme/trireme.h>

static char root[] = "/tmp/trireme-data-XXXXXX";

static const char *in_root(const char *name)
{
    static char path[4][512];
    static int next;
    char *to = path[next++ % 4];
    snprintf(to, sizeof path[0], "%s/%s", root, name);
    return to;
}

static const char *write_file(const char *name, const void *bytes, size_t n)
{
    const char *path = in_root(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    return path;
}

static const char *write_text(const char *name, const char *text)
{
    return write_file(name, text, strlen(text));
}

static void assert_failed(tr_status got, tr_status status, const char *part)
{
    assert_int_equal(got, status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

/* The bytes of a text without a validation part: a window of all but the last has one place only. */
static void assert_holds(tr_text *text, const char *expected)
{
    TR_CHECK(tr_status_of(text));
    int n = (int)strlen(expected);
    assert_int_equal(tr_text_bytes(text, false), n);
    assert_int_equal(tr_text_bytes(text, true), 0);
    tr_tensor *x, *y;
    TR_CHECK(tr_text_batch(text, 1, n - 1, &x, &y));
    for (int i = 0; i < n - 1; i++) assert_int_equal(((int32_t *)tr_data(x))[i], expected[i]);
    assert_int_equal(((int32_t *)tr_data(y))[n - 2], expected[n - 1]);
}

static void test_a_file_is_split(void **state)
{
    (void)state;
    TR_SCOPE;
    char bytes[1000];
    for (int i = 0; i < 1000; i++) bytes[i] = (char)(i % 251);
    const char *path = write_file("file", bytes, sizeof bytes);
    tr_text *text = tr_text_load(path);
    TR_CHECK(tr_status_of(text));
    assert_int_equal(tr_text_bytes(text, false), 900);
    assert_int_equal(tr_text_bytes(text, true), 100);
    assert_int_equal(tr_text_files(text), 1);
    assert_int_equal(tr_text_bytes(tr_text_load(path, .validation = 0.25), true), 250);
    assert_int_equal(tr_text_bytes(tr_text_load(path, .validation = 0), true), 0);
    assert_failed(tr_status_of(tr_text_load(path, .validation = 1)), TR_INVALID, "validation");
}

static void make_folder(void)
{
    mkdir(in_root("folder"), 0777);
    mkdir(in_root("folder/b"), 0777);
    mkdir(in_root("folder/.git"), 0777);
    write_text("folder/c.txt", "ccc");
    write_text("folder/a.c", "a");
    write_text("folder/b/2.c", "two");
    write_text("folder/b/10.h", "ten");
    write_text("folder/.hidden.c", "hidden");
    write_text("folder/.git/x.c", "git");
    write_text("folder/empty.c", "");
    write_file("folder/binary.c", "x\0y", 3);
    assert_int_equal(symlink("..", in_root("folder/b/up")), 0);
}

static void test_a_folder_in_the_order_of_names(void **state)
{
    (void)state;
    TR_SCOPE;
    make_folder();
    tr_text *all = tr_text_load(in_root("folder"), .validation = 0);
    assert_holds(all, "atentwoccc");
    assert_int_equal(tr_text_files(all), 4);
    tr_text *code = tr_text_load(in_root("folder"), .suffixes = " .c  .h", .validation = 0);
    assert_holds(code, "atentwo");
    assert_failed(tr_status_of(tr_text_load(in_root("folder"), .suffixes = ".py")), TR_INVALID, ".py");
}

static void test_what_is_no_text(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_failed(tr_status_of(tr_text_load(in_root("absent"))), TR_NOT_FOUND, "absent: No such file");
    assert_failed(tr_status_of(tr_text_load(write_text("nothing", ""))), TR_INVALID, "nothing is empty");
    mkdir(in_root("bare"), 0777);
    assert_failed(tr_status_of(tr_text_load(in_root("bare"))), TR_INVALID, "no text in the folder");
    assert_failed(tr_status_of(tr_text_load("/dev/null")), TR_INVALID, "neither a file nor a folder");
    assert_failed(tr_status_of(tr_text_load(NULL)), TR_INVALID, "path");
    if (geteuid() != 0) {
        chmod(write_text("secret", "s"), 0);
        assert_failed(tr_status_of(tr_text_load(in_root("secret"))), TR_IO, "secret");
    }
}

static void test_a_text_shorter_than_the_context(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_text *text = tr_text_load(write_text("short", "0123456789"), .validation = 0.2);
    tr_tensor *x, *y;
    assert_failed(tr_text_batch(text, 1, 8, &x, &y), TR_INVALID, "short has 8 bytes; a context of 8 takes at least 9");
    assert_failed(tr_status_of(x), TR_INVALID, "context of 8");
    assert_failed(tr_text_batch(text, 1, 2, &x, &y, .validation = true), TR_INVALID, "validation part");
    assert_failed(tr_text_batch(text, 0, 2, &x, &y), TR_INVALID, "0 and 2");
    TR_CHECK(tr_text_batch(text, 1, 7, &x, &y));
    assert_int_equal(((int32_t *)tr_data(y))[6], '7');
    tr_text *bad = tr_text_load(in_root("absent"));
    assert_failed(tr_text_batch(bad, 1, 2, &x, &y), TR_NOT_FOUND, "absent");
}

/* Window i of the training part by (seed, step, number) alone: two ranks draw together what one draws. */
static void test_ranks_draw_the_same_global_batch(void **state)
{
    (void)state;
    TR_SCOPE;
    char bytes[5000];
    for (int i = 0; i < 5000; i++) bytes[i] = (char)(i % 253);
    tr_text *text = tr_text_load(write_file("long", bytes, sizeof bytes));
    tr_tensor *x, *y, *half, *rest;
    TR_CHECK(tr_text_batch(text, 8, 16, &x, &y, .seed = 3, .step = 5));
    TR_CHECK(tr_text_batch(text, 4, 16, &half, &rest, .seed = 3, .step = 5, .first_sample = 4));
    const int32_t *in = tr_data(x), *out = tr_data(y);
    assert_memory_equal(in + 64, tr_data(half), 64 * sizeof(int32_t));
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 15; k++) assert_int_equal(out[16 * i + k], in[16 * i + k + 1]);
    TR_CHECK(tr_text_batch(text, 4, 16, &half, &rest, .seed = 3, .step = 6, .first_sample = 4));
    assert_memory_not_equal(in + 64, tr_data(half), 64 * sizeof(int32_t));

    /* Seven and one to come fit in ten at three places, and all are drawn. */
    text = tr_text_load(write_file("few", "0123456789", 10), .validation = 0);
    bool seen[3] = {false};
    TR_CHECK(tr_text_batch(text, 200, 7, &x, &y));
    for (int i = 0; i < 200; i++) {
        int32_t first = ((const int32_t *)tr_data(x))[7 * i] - '0';
        assert_in_range(first, 0, 2);
        seen[first] = true;
    }
    assert_true(seen[0] && seen[1] && seen[2]);
}

static void test_validation_goes_through_once(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_text *text = tr_text_load(write_text("valid", "..........abcdefghijk"), .validation = 11.5 / 21);
    assert_int_equal(tr_text_bytes(text, true), 11);
    tr_tensor *x, *y;
    /* 11 bytes are 3 windows of 3 with a byte to come: abc, def, ghi; a batch of 2, then one of 1 */
    TR_CHECK(tr_text_batch(text, 2, 3, &x, &y, .validation = true));
    assert_int_equal(tr_size(x, 0), 2);
    assert_int_equal(((int32_t *)tr_data(x))[3], 'd');
    TR_CHECK(tr_text_batch(text, 2, 3, &x, &y, .validation = true, .first_sample = 2));
    assert_int_equal(tr_size(x, 0), 1);
    assert_int_equal(((int32_t *)tr_data(y))[2], 'j');
    assert_int_equal(tr_text_batch(text, 2, 3, &x, &y, .validation = true, .first_sample = 4), TR_END);
    assert_failed(tr_text_batch(text, 2, 3, &x, &y, .validation = true, .step = 1), TR_INVALID, "it is .first_sample = k * batch");
    assert_failed(tr_text_batch(text, 2, 3, &x, &y, .validation = true, .step = 0), TR_INVALID, ".step selects training windows");
}

/* ---- Tokens ------------------------------------------------------------------------------------------------------ */

static void test_tokens_of_a_tokenizer(void **state)
{
    (void)state;
    TR_SCOPE;
    write_text("vocab.json", "{\"a\":0,\"b\":1,\"ab\":2,\"\u0120\":3}"); /* U+0120 stands for a space */
    write_text("merges.txt", "a b\n");
    tr_tokenizer *t = tr_tokenizer_load(in_root("vocab.json"));
    TR_CHECK(tr_status_of(t));
    tr_text *text = tr_text_load(write_text("ab", "ab ab abab ab ab ab ab"), .tokenizer = t, .validation = 0.5);
    assert_int_equal(tr_text_bytes(text, false), 11);
    assert_int_equal(tr_text_tokens(text, false), 7); /* ab, space, ab, space, ab, ab, space */
    assert_int_equal(tr_text_tokens(text, true), 7);  /* ab, space, ab, … */
    static const int32_t rest[] = {2, 3, 2, 3, 2, 3, 2};
    tr_tensor *ids = tr_text_ids(text, true);
    assert_int_equal(tr_numel(ids), 7);
    assert_memory_equal(tr_data(ids), rest, sizeof rest);
    assert_int_equal(((const int32_t *)tr_data(tr_text_ids(text, false)))[4], 2);
    assert_failed(tr_status_of(tr_text_ids(NULL, true)), TR_INVALID, "text_ids: the text is NULL");
    tr_tensor *x, *y;
    TR_CHECK(tr_text_batch(text, 1, 6, &x, &y));
    static const int32_t first[] = {2, 3, 2, 3, 2, 2}, next[] = {3, 2, 3, 2, 2, 3};
    assert_memory_equal(tr_data(x), first, sizeof first);
    assert_memory_equal(tr_data(y), next, sizeof next);
    TR_CHECK(tr_text_batch(text, 1, 6, &x, &y, .validation = true));
    assert_int_equal(((int32_t *)tr_data(x))[4], 2);
    assert_failed(tr_text_batch(text, 1, 7, &x, &y), TR_INVALID, "has 7 tokens; a context of 7 takes at least 8");
    assert_true(tr_text_hash(text) != tr_text_hash(tr_text_load(in_root("ab"))));
    assert_failed(tr_status_of(tr_text_load(write_text("c", "abc"), .tokenizer = t)), TR_INVALID, "no token for the byte 0x63");
    assert_int_equal(tr_text_tokens(tr_text_load(in_root("ab")), false), 20); /* of bytes */
}

/* In each window of 34 = 1 + 32 + 1 exactly a fifth is to be found out: mostly hidden, the rest as it was. */
static void check_masked(const int32_t *x, const int32_t *y, int counts[3])
{
    int wanted = 0;
    assert_int_equal(x[0], 256);
    assert_int_equal(x[33], 257);
    for (int k = 0; k < 34; k++) {
        if (y[k] == -100) continue;
        wanted++;
        assert_in_range(k, 1, 32);
        counts[x[k] == 258 ? 0 : x[k] == y[k] ? 1 : 2]++;
    }
    assert_int_equal(wanted, 6);
    for (int k = 2; k < 33; k++) { /* the text counts up */
        int32_t here = y[k] == -100 ? x[k] : y[k], before = y[k - 1] == -100 ? x[k - 1] : y[k - 1];
        assert_int_equal(here, (before + 1) % 200);
    }
}

static void test_masked_windows(void **state)
{
    (void)state;
    TR_SCOPE;
    char bytes[5000];
    for (int i = 0; i < 5000; i++) bytes[i] = (char)(i % 200);
    tr_text *text = tr_text_load(write_file("counting", bytes, sizeof bytes));
    tr_masking masking = {.begin = 256, .end = 257, .mask = 258, .vocab = 256, .share = 0.2};
    tr_tensor *x, *y, *half, *rest;
    TR_CHECK(tr_text_batch(text, 200, 34, &x, &y, .seed = 3, .step = 5, .masking = &masking));
    int counts[3] = {0};
    for (int i = 0; i < 200; i++) check_masked((int32_t *)tr_data(x) + 34 * i, (int32_t *)tr_data(y) + 34 * i, counts);
    assert_in_range(counts[0], 880, 1040); /* 80 % of 1,200 */
    assert_in_range(counts[1], 70, 170);
    assert_in_range(counts[2], 70, 170);

    TR_CHECK(tr_text_batch(text, 100, 34, &half, &rest, .seed = 3, .step = 5, .first_sample = 100, .masking = &masking));
    assert_memory_equal((int32_t *)tr_data(x) + 3400, tr_data(half), 3400 * sizeof(int32_t));
    assert_memory_equal((int32_t *)tr_data(y) + 3400, tr_data(rest), 3400 * sizeof(int32_t));
    TR_CHECK(tr_text_batch(text, 100, 34, &half, &rest, .seed = 3, .step = 6, .first_sample = 100, .masking = &masking));
    assert_memory_not_equal((int32_t *)tr_data(y) + 3400, tr_data(rest), 3400 * sizeof(int32_t));

    /* 500 bytes are 15 windows of 32, masked alike whenever they are asked for. */
    TR_CHECK(tr_text_batch(text, 20, 34, &x, &y, .validation = true, .masking = &masking));
    assert_int_equal(tr_size(x, 0), 15);
    TR_CHECK(tr_text_batch(text, 20, 34, &half, &rest, .validation = true, .masking = &masking));
    assert_memory_equal(tr_data(y), tr_data(rest), 15 * 34 * sizeof(int32_t));
    assert_failed(tr_text_batch(text, 1, 2, &x, &y, .masking = &masking), TR_INVALID, "leaves no token");
    masking.share = 1.5;
    assert_failed(tr_text_batch(text, 1, 34, &x, &y, .masking = &masking), TR_INVALID, "258, 256 and 1.5");
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *where)
{
    (void)info;
    (void)flag;
    (void)where;
    return remove(path);
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_is_split),
        cmocka_unit_test(test_a_folder_in_the_order_of_names),
        cmocka_unit_test(test_what_is_no_text),
        cmocka_unit_test(test_a_text_shorter_than_the_context),
        cmocka_unit_test(test_ranks_draw_the_same_global_batch),
        cmocka_unit_test(test_validation_goes_through_once),
        cmocka_unit_test(test_tokens_of_a_tokenizer),
        cmocka_unit_test(test_masked_windows),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
