/* Names of hosts that need neither /etc/hosts nor a name server. */
#include "base/resolve.h"

#include <netdb.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <cmocka.h>

static bool is_loopback(const struct addrinfo *a)
{
    if (a->ai_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)a->ai_addr)->sin6_addr);
    return ((struct sockaddr_in *)a->ai_addr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
}

/* "nobody.localhost" stands in no /etc/hosts. */
static void localhost_is_loopback(void **state)
{
    (void)state;
    const char *const names[] = {"localhost", "LocalHost", "localhost.", "nobody.localhost", "nobody.localhost."};
    const int flags[] = {AI_NUMERICSERV, AI_NUMERICSERV | AI_PASSIVE};
    for (int i = 0; i < 10; i++) {
        const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags[i % 2]};
        struct addrinfo *found = NULL;
        int error = tr__resolve(names[i / 2], "4711", &hints, &found);
        if (error) fail_msg("%s: %s", names[i / 2], gai_strerror(error));
        assert_int_equal(found->ai_family, AF_INET);
        for (const struct addrinfo *a = found; a; a = a->ai_next) {
            assert_true(is_loopback(a));
            assert_int_equal(ntohs(((struct sockaddr_in *)a->ai_addr)->sin_port), 4711); /* same place in both families */
        }
        freeaddrinfo(found);
    }
}

/* AI_NUMERICHOST: nobody is asked for a name. */
static void other_hosts_are_looked_up(void **state)
{
    (void)state;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
    const char *const names[] = {"mylocalhost", "localhost.example", "local", ""};
    struct addrinfo *found = NULL;
    for (int i = 0; i < 4; i++) assert_int_equal(tr__resolve(names[i], "4711", &hints, &found), EAI_NONAME);
    assert_int_equal(tr__resolve("192.0.2.1", "4711", &hints, &found), 0);
    assert_int_equal(ntohl(((struct sockaddr_in *)found->ai_addr)->sin_addr.s_addr), 0xc0000201);
    freeaddrinfo(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(localhost_is_loopback),
        cmocka_unit_test(other_hosts_are_looked_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
