/* The table of algorithms: what chooses them, printed and read, also from files. */
#include "comm/algo/choice.h"
#include "comm/collective.h"

#include <trireme/comm.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void tables_are_printed_as_they_are_read(void **state)
{
    (void)state;
    tr__choice_table a, b;
    char text[TR__CHOICES_TEXT], again[TR__CHOICES_TEXT];
    assert_int_equal(tr__choice_read(&a, "all_reduce ranks 2-16 bytes 1000-64K tree\n;broadcast ranks 3 bytes 0-1G ring"
        "# for three\n network latency_ns 1 overhead_ns 2 mbytes_per_s 3 copy_mbytes_per_s 0 fold_mbytes_per_s 5", NULL),
        TR_OK);
    assert_int_equal(tr__choose(&a, TR_ALL_REDUCE, 4, 65536), TR__TREE);
    assert_int_equal(tr__choose(&a, TR_ALL_REDUCE, 4, 65537), TR__DOUBLING);
    assert_int_equal(tr__choose(&a, TR_ALL_REDUCE, 4, 999), TR__DOUBLING);
    assert_int_equal(tr__choose(&a, TR_BROADCAST, 3, 1 << 30), TR__RING);
    tr__choice_text(&a, text);
    assert_non_null(strstr(text, "all_reduce ranks 2-16 bytes 1000-64K tree\nbroadcast ranks 3 bytes 0-1G ring\n"));
    assert_non_null(strstr(text, "\nnetwork latency_ns 1 overhead_ns 2 mbytes_per_s 3 copy_mbytes_per_s 0 "
        "fold_mbytes_per_s 5\n"));
    assert_int_equal(tr__choice_read(&b, text, NULL), TR_OK);
    assert_string_equal(tr__choice_text(&b, again), text);
    assert_true(tr__choice_digest(&a) == tr__choice_digest(&b));
    assert_int_equal(tr__choice_read(&b, "all_reduce ranks 2-16 bytes 1000-64K ring", NULL), TR_OK);
    assert_true(tr__choice_digest(&a) != tr__choice_digest(&b));
    for (int kind = 0; kind < TR_COLLECTIVE_COUNT; kind++) /* every collective has a schedule */
        for (int world = 2; world < 5000 && !tr__kind_of(kind)->point_to_point; world += world)
            for (int64_t bytes = 0; bytes < (int64_t)1 << 40; bytes = bytes * 4 + 1)
                assert_true(tr__schedule_exists(kind, tr__choose(&a, kind, world, bytes)));
}

static void a_table_for_one_world_size_chooses_alike(void **state)
{
    (void)state;
    tr__choice_table all, some;
    for (int world = 2; world <= 40; world++) {
        assert_int_equal(tr__choice_read(&all, "all_reduce ranks 4-9 bytes 1K-64K tree", NULL), TR_OK);
        some = all;
        tr__choice_keep(&some, world);
        assert_true(some.count < all.count);
        for (int kind = 0; kind < TR_COLLECTIVE_COUNT; kind++)
            for (int64_t bytes = 0; bytes < (int64_t)1 << 40; bytes = bytes * 2 + 1)
                assert_int_equal(tr__choose(&some, kind, world, bytes), tr__choose(&all, kind, world, bytes));
    }
}

/* Joins alone with a table in a file, of so many bytes. */
#define ROWS(text) (text), sizeof(text) - 1
static tr_status join_with_file(const char *rows, size_t bytes)
{
    char path[] = "/tmp/trireme-table-XXXXXX", given[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, rows, bytes) == (ssize_t)bytes);
    close(fd);
    snprintf(given, sizeof given, "@%s", path);
    TR_SCOPE;
    tr_group *g = tr_join(.store = tr_store_memory(), .rank = 0, .world_size = 1, .algorithms = given);
    tr_status status = tr_status_of(g);
    unlink(path);
    return status;
}

static void expect_file(const char *rows, size_t bytes, tr_status wanted, const char *words)
{
    assert_int_equal(join_with_file(rows, bytes), wanted);
    if (!strstr(tr_error_message(), words)) fail_msg("'%s' does not say '%s'", tr_error_message(), words);
}

static void a_table_may_be_a_file(void **state)
{
    (void)state;
    static char large[(1 << 20) + 1];
    memset(large, '\n', sizeof large);
    assert_int_equal(join_with_file(ROWS("")), TR_OK);
    assert_int_equal(join_with_file(ROWS("# all\r\nall_reduce ranks 2- bytes 0- ring # as rings\r\n")), TR_OK);
    assert_int_equal(join_with_file(large, sizeof large - 1), TR_OK);
    expect_file(large, sizeof large, TR_FORMAT, "it has more than a megabyte");
    expect_file(ROWS("barrier\0"), TR_FORMAT, "there is a byte of 0 in it");
    expect_file(ROWS("\n# x;y\n barrier ranks 2- bytes 0- rings\n"), TR_INVALID,
        ", line 3: 'barrier ranks 2- bytes 0- rings': there is no barrier by 'rings'");
    memset(large, 'x', 1000);
    expect_file(large, 1000, TR_INVALID, ", line 1: 'xxx");
    expect_file(ROWS("network latency_ns 1 overhead_ns 2 mbytes_per_s 0 copy_mbytes_per_s 0 fold_mbytes_per_s 0"), TR_INVALID,
        "mbytes_per_s '0' is no whole number from 1 to 1000000000000");
    char *many = malloc(400 * 64), *at = many;
    for (int i = 0; i < 400; i++) at += sprintf(at, "all_reduce ranks %d bytes 0- ring\n", i + 2);
    expect_file(many, (size_t)(at - many), TR_INVALID, ", line 321: the table of algorithms has more than 320 rows");
    free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_printed_as_they_are_read),
        cmocka_unit_test(a_table_for_one_world_size_chooses_alike),
        cmocka_unit_test(a_table_may_be_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
