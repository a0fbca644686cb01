/* Two thousand clients at once: with a token, so with a TLS handshake each, and without. Prints how long that took. */
/* ctest: serial */
#include "crowd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>

#include <cmocka.h>

enum { CLIENTS = 2000 };

static void meet(const char *token, const char *how)
{
    tr__crowd crowd = {.token = token, .clients = CLIENTS};
    double seconds;
    if (!tr__crowd_meet(&crowd, &seconds)) fail_msg("%s", crowd.failure);
    print_message("%d clients %s: %.2f s\n", CLIENTS, how, seconds);
}

static void in_the_clear(void **state)
{
    (void)state;
    meet(NULL, "in the clear");
}

static void through_tls(void **state)
{
    (void)state;
    meet("secret", "through TLS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_the_clear), cmocka_unit_test(through_tls)};
    /* Both ends of all connections are in this process; the server raises the limit for its own. */
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < 2 * CLIENTS + 100) {
        printf("%d clients need %d descriptors, and the hard limit is %d\n", CLIENTS, 2 * CLIENTS + 100,
            (int)limit.rlim_max);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
