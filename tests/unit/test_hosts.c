/* Which ranks share a host. */
#include "comm/algo/hosts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static bool together(const void *arg, int a, int b)
{
    return ((const int *)arg)[a] == ((const int *)arg)[b];
}

static void check(const int *hosts, int world, int count, int least, int most, const int *ranks, const int *first)
{
    tr__hosts h;
    assert_int_equal(tr__hosts_make(&h, world, together, hosts), TR_OK);
    assert_int_equal(h.world_size, world);
    assert_int_equal(h.count, count);
    assert_int_equal(h.least, least);
    assert_int_equal(h.most, most);
    assert_memory_equal(h.ranks, ranks, (size_t)world * sizeof *ranks);
    assert_memory_equal(h.first, first, ((size_t)count + 1) * sizeof *first);
    for (int host = 0; host < count; host++) {
        for (int place = 0; place < tr__hosts_size(&h, host); place++) {
            int rank = tr__hosts_ranks(&h, host)[place];
            assert_int_equal(h.host[rank], host);
            assert_int_equal(h.place[rank], place);
        }
    }
    tr__hosts_free(&h);
}

static void ranks_are_put_in_the_order_of_hosts(void **state)
{
    (void)state;
    check((int[]){0}, 1, 1, 1, 1, (int[]){0}, (int[]){0, 1});
    check((int[]){0, 0, 2, 2}, 4, 2, 2, 2, (int[]){0, 1, 2, 3}, (int[]){0, 2, 4});
    check((int[]){0, 1, 0, 1}, 4, 2, 2, 2, (int[]){0, 2, 1, 3}, (int[]){0, 2, 4});
    check((int[]){0, 0, 0, 3}, 4, 2, 1, 3, (int[]){0, 1, 2, 3}, (int[]){0, 3, 4});
    check((int[]){0, 1, 2, 1, 1, 2, 1}, 7, 3, 1, 4, (int[]){0, 1, 3, 4, 6, 2, 5}, (int[]){0, 1, 5, 7});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_are_put_in_the_order_of_hosts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
