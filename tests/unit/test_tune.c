/* What `trireme bench tune` calculates: constants from times, and a table from both. */
#include "tune.h"

#include "comm/algo/choice.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What a network with these constants would measure, each time off by up to `noise`. */
static tr__times times_on(const tr_network *network, int ranks, double noise)
{
    static const int64_t sizes[] = {64, 4 << 10, 64 << 10, 1 << 20, 8 << 20};
    tr__times times = {.ranks = ranks, .list = calloc(TR__TUNE_KINDS * TR__TUNE_ALGORITHMS * 5, sizeof *times.list)};
    assert_non_null(times.list);
    for (int k = 0; k < TR__TUNE_KINDS; k++)
        for (int i = 0; i < 5; i++)
            for (int a = 0; a < TR__TUNE_ALGORITHMS; a++) {
                tr__time t = {tr__tune_kinds[k], a, sizes[i], 0, 0};
                double seconds;
                if (!tr__tune_exists(t.kind, a)) continue;
                assert_int_equal(tr_predict(t.kind, tr__tune_algorithms[a], ranks, t.bytes, network, &seconds), TR_OK);
                t.measured_us = 1e6 * seconds * (1 + noise * sin(37.0 * times.count));
                times.list[times.count++] = t;
            }
    return times;
}

static void near(const char *what, double got, double wanted, double tolerance)
{
    if (!(fabs(got - wanted) <= tolerance * wanted)) fail_msg("%s: %g instead of %g", what, got, wanted);
}

static void get_back(const tr_network *network, int ranks, double noise, double tolerance, bool links)
{
    tr_network found;
    tr__times times = times_on(network, ranks, noise);
    tr__tune_error error;
    assert_int_equal(tr__tune_fit(&times, &found), TR_OK);
    near("latency and overhead", found.latency_us + 2 * found.overhead_us, network->latency_us + 2 * network->overhead_us,
        tolerance);
    if (links) near("links", found.gbytes_per_s, network->gbytes_per_s, tolerance);
    if (!links) near("sockets", found.copy_gbytes_per_s, network->copy_gbytes_per_s, tolerance);
    assert_int_equal(tr__tune_judge(&times, &error), TR_OK);
    assert_true(error.median < 1 + noise + 0.02 && error.worst < 1 + 2 * noise + 0.1);
    assert_true(error.chosen_mean < 1 + 2 * noise + 0.02);
    free(times.list);
}

static void constants_are_found_again(void **state)
{
    (void)state;
    tr_network slow_links = {50, 3, 0.12, 3, 8}, slow_processors = {4, 6, 8, 1.5, 4}, far = {1000, 5, 1.2, 2.5, 10};
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        get_back(&slow_links, ranks, 0, 0.05, true);
        get_back(&slow_processors, ranks, 0, 0.05, false);
        get_back(&far, ranks, 0, 0.05, true);
    }
    get_back(&slow_links, 4, 0.1, 0.15, true);
    get_back(&slow_processors, 4, 0.1, 0.15, false);
}

/* Where links and processors are both narrow, each for something, all five are found. */
static void every_constant_is_found_again(void **state)
{
    (void)state;
    tr_network network = {30, 4, 1, 1.5, 6}, found;
    tr__times times = times_on(&network, 5, 0);
    assert_int_equal(tr__tune_fit(&times, &found), TR_OK);
    near("latency", found.latency_us, network.latency_us, 0.05);
    near("overhead", found.overhead_us, network.overhead_us, 0.05);
    near("links", found.gbytes_per_s, network.gbytes_per_s, 0.05);
    near("sockets", found.copy_gbytes_per_s, network.copy_gbytes_per_s, 0.05);
    near("folding", found.fold_gbytes_per_s, network.fold_gbytes_per_s, 0.1);
    free(times.list);
}

static char *table_of(const tr__times *times, const tr_network *network)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    assert_non_null(file);
    assert_int_equal(tr__tune_write(times, network, file), TR_OK);
    assert_int_equal(fclose(file), 0);
    return text;
}

/* The measured number of ranks goes by what was fastest there, others by predictions; and a job can read all of it. */
static void tables_follow_the_times(void **state)
{
    (void)state;
    tr_network network = {50, 3, 0.12, 3, 8};
    tr__times times = times_on(&network, 6, 0);
    for (int i = 0; i < times.count; i++) /* as if trees were best for half a megabyte and more */
        if (times.list[i].kind == TR_ALL_REDUCE && times.list[i].bytes >= 1 << 20 && times.list[i].algorithm == 3)
            times.list[i].measured_us /= 100;
    char *text = table_of(&times, &network);
    tr__choice_table table;
    assert_int_equal(tr__choice_read(&table, text, NULL), TR_OK);
    assert_int_equal(tr__choose(&table, TR_ALL_REDUCE, 6, 1 << 20), TR__TREE);
    assert_int_equal(tr__choose(&table, TR_ALL_REDUCE, 6, 1 << 28), TR__TREE);
    assert_int_equal(tr__choose(&table, TR_ALL_REDUCE, 6, (256 << 10) + 1), TR__TREE); /* half-way to 64 KiB */
    assert_true(tr__choose(&table, TR_ALL_REDUCE, 6, (256 << 10)) != TR__TREE);
    assert_true(tr__choose(&table, TR_ALL_REDUCE, 7, 1 << 20) != TR__TREE);
    assert_true(tr__choose(&table, TR_ALL_REDUCE, 128, 64) == TR__DOUBLING);
    assert_int_equal(table.network[TR__latency_ns], 50000);
    assert_int_equal(table.network[TR__mbytes_per_s], 120);
    assert_int_equal(table.network[TR__fold_mbytes_per_s], 8000);
    free(text);
    free(times.list);
}

static void predictions_are_judged(void **state)
{
    (void)state;
    tr__time list[] = {{TR_BROADCAST, 0, 64, 10, 20}, {TR_BROADCAST, 3, 64, 20, 10}, {TR_BROADCAST, 0, 128, 10, 10},
        {TR_BROADCAST, 3, 128, 40, 10.1}};
    tr__times times = {.ranks = 2, .count = 4, .list = list};
    tr__tune_error error;
    assert_int_equal(tr__tune_judge(&times, &error), TR_OK);
    near("worst", error.worst, 40 / 10.1, 1e-9);
    assert_int_equal(error.worst_at, 3);
    near("median", error.median, 2, 1e-9);
    near("chosen", error.chosen_mean, 1.5, 1e-9); /* twice as long once, as long as the best once */
    near("chosen at worst", error.chosen_worst, 2, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants_are_found_again),
        cmocka_unit_test(every_constant_is_found_again),
        cmocka_unit_test(tables_follow_the_times),
        cmocka_unit_test(predictions_are_judged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
