/* Names that are numbered and found again: the same as by comparing with each, and never in many steps. */
#include "tensor/names.h"

#include <search.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int find_by_comparing(const tr__names *n, const char *name)
{
    for (int i = 0; i < n->count; i++)
        if (strcmp(n->text[i], name) == 0) return i;
    return -1;
}

static int deepest;

static void note_depth(const void *node, VISIT order, int depth)
{
    (void)node;
    if (order == preorder || order == leaf) deepest = depth > deepest ? depth : deepest;
}

/* The most comparisons that looking up a name takes, which a balanced tree keeps to twice the logarithm of their number. */
static void check_steps(const tr__names *n)
{
    int bits = 0;
    while (n->count >> bits) bits++;
    deepest = 0;
    twalk(n->tree, note_depth);
    assert_true(deepest <= 2 * bits);
}

static void add(tr__names *n, const char *name)
{
    if (tr__names_find(n, name) < 0) assert_int_equal(tr__names_add(n, name), TR_OK);
}

static void random_names_are_found(void **state)
{
    (void)state;
    unsigned random = 1;
    for (int letters = 1; letters <= 255; letters += letters < 4 ? 1 : 63) {
        tr__names n = {0};
        for (int i = 0; i < 2000; i++) {
            char name[8] = "";
            random = random * 1664525u + 1013904223u;
            size_t length = (random >> 8) % sizeof name;
            for (size_t k = 0; k < length; k++) {
                random = random * 1664525u + 1013904223u;
                name[k] = (char)(1 + (random >> 8) % (unsigned)letters);
            }
            name[length] = '\0';
            assert_int_equal(tr__names_find(&n, name), find_by_comparing(&n, name));
            add(&n, name);
            assert_int_equal(tr__names_find(&n, name), find_by_comparing(&n, name));
        }
        check_steps(&n);
        tr__names_free(&n);
    }
}

/* Whatever names somebody thinks of, one is found in few steps. */
static void no_names_are_slow(void **state)
{
    (void)state;
    enum { NUMBERS, PADDED, PREFIXES, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        tr__names n = {0};
        for (int i = 0; i < (kind == PREFIXES ? 1000 : 100000); i++) {
            char name[1024];
            if (kind == PREFIXES)
                snprintf(name, sizeof name, "%0*d", i + 1, 0); /* each begins as the next does */
            else
                snprintf(name, sizeof name, kind == NUMBERS ? "%d" : "layer.%06d.weight", i);
            assert_int_equal(tr__names_add(&n, name), TR_OK);
        }
        for (int i = 0; i < n.count; i++) assert_int_equal(tr__names_find(&n, n.text[i]), i);
        check_steps(&n);
        assert_int_equal(tr__names_find(&n, "layer.100000.weight"), -1);
        assert_int_equal(tr__names_find(&n, ""), -1);
        tr__names_free(&n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_names_are_found),
        cmocka_unit_test(no_names_are_slow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
