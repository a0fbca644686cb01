/* Two thousand clients, each a thread with a connection of its own, that come at once, count themselves in and wait for
 * the last: with a token, so with a TLS handshake each, and without. Prints how long that took. */
/* ctest: serial */
#include "base/clock.h"

#include <trireme/comm.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

enum { CLIENTS = 2000, STACK = 256 << 10, TIMEOUT_MS = 100000 };

typedef struct crowd {
    int port;
    const char *token;
    pthread_mutex_t lock;
    int failures;
    char failure[512]; /* the first one */
} crowd;

static tr_status come_and_meet(const crowd *c)
{
    TR_SCOPE;
    tr_store *store = tr_store_tcp("127.0.0.1", c->port, .token = c->token, .timeout_ms = TIMEOUT_MS);
    int64_t here;
    tr_status status = tr_store_add(store, "here", 1, &here);
    if (status != TR_OK) return status;
    return here == CLIENTS ? tr_store_set(store, "go", "", 0) : tr_store_wait(store, "go", TIMEOUT_MS);
}

static void *be_client(void *arg)
{
    crowd *c = arg;
    if (come_and_meet(c) == TR_OK) return NULL;
    pthread_mutex_lock(&c->lock);
    if (c->failures++ == 0) snprintf(c->failure, sizeof c->failure, "%s", tr_error_message());
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void meet(const char *token, const char *how)
{
    TR_SCOPE;
    static pthread_t threads[CLIENTS];
    tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = token);
    assert_int_equal(tr_status_of(store), TR_OK);
    crowd c = {.port = tr_store_port(store), .token = token};
    pthread_mutex_init(&c.lock, NULL);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK);
    int64_t began = tr__now_ns();
    for (int i = 0; i < CLIENTS; i++) assert_int_equal(pthread_create(&threads[i], &small, be_client, &c), 0);
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
    print_message("%d clients %s: %.2f s\n", CLIENTS, how, (double)(tr__now_ns() - began) * 1e-9);
    pthread_attr_destroy(&small);
    if (c.failures) fail_msg("%d clients failed: %s", c.failures, c.failure);
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
