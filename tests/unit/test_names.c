/* Names that are numbered and found again: the same as by comparing with each, and never in more steps than a name has
 * bits. */
#include "tensor/names.h"

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

/* The steps of looking up name number i, which must end there. */
static size_t steps_to(const tr__names *n, int i)
{
    const char *name = n->text[i];
    size_t steps = 0, length = strlen(name);
    int32_t at = n->root;
    for (; at >= 0; steps++) {
        const tr__name_node *node = &n->nodes[at];
        at = node->child[node->byte < length && ((unsigned char)name[node->byte] & node->bit)];
    }
    assert_int_equal(~at, i);
    return steps;
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
        for (int i = 0; i < n.count; i++) assert_true(steps_to(&n, i) <= 8 * (strlen(n.text[i]) + 1));
        tr__names_free(&n);
    }
}

/* Whatever names somebody thinks of, one is found in as many steps as it has bits. */
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
        for (int i = 0; i < n.count; i++) {
            assert_int_equal(tr__names_find(&n, n.text[i]), i);
            assert_true(steps_to(&n, i) <= 8 * (strlen(n.text[i]) + 1));
        }
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
