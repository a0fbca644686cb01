/* The TCP store's server among strangers that come faster than it may have descriptors: its clients get in all the same. */
#include "net/store/frame.h"
#include "net/tls.h"
#include "store_checks.h"
#include "strangers.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* In a process of its own, for its limit. */
static pid_t serve_with_few_descriptors(const char *token, int *port)
{
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){600, 600});
        tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = token);
        *port = tr_status_of(store) == TR_OK ? tr_store_port(store) : 0;
        if (write(ready[1], port, sizeof *port) == sizeof *port) pause();
        _exit(1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], port, sizeof *port), sizeof *port);
    close(ready[0]);
    return pid;
}

/* The strangers that came first have 10 s to say hello, and stay for as long as they may: a client has less. */
static void come_among_strangers(const char *token, int addresses)
{
    enum { CLIENTS = 5 };
    int port;
    pid_t server = serve_with_few_descriptors(token, &port);
    strangers crowd = {.port = port, .addresses = addresses, .pause_us = 500, .most = 5000,
        .first = token ? TR__TLS_RECORD : 0};
    assert_true(strangers_start(&crowd));
    strangers_await(&crowd, 1000);
    sends_slow_us = 50000;
    for (int i = 0; i < CLIENTS; i++) {
        TR_SCOPE;
        char key[16];
        tr_store *store = tr_store_tcp("127.0.0.1", port, .token = token, .timeout_ms = 8000);
        OK(tr_status_of(store));
        snprintf(key, sizeof key, "key-%d", i);
        OK(tr_store_set(store, key, "value", 5));
        check_value(store, "key-0", "value", 5);
    }
    sends_slow_us = 0;
    strangers_stop(&crowd);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
}

static void a_crowd_of_strangers_keeps_no_client_out(void **state)
{
    (void)state;
    come_among_strangers(NULL, 1);
    come_among_strangers("secret", 1);
    come_among_strangers("secret", 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crowd_of_strangers_keeps_no_client_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
