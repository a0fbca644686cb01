/* The TCP store's client when the server is killed, stands still, breaks off, or answers nonsense: an error that says so,
 * within its time. */
#include "base/clock.h"
#include "base/resolve.h"
#include "net/store/frame.h"
#include "net/store/store.h"
#include "sockets.h"

#include <trireme/comm.h>

#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define FAILS(status_, expression, words)                                                                     \
    do {                                                                                                      \
        assert_int_equal((expression), status_);                                                              \
        if (!strstr(tr_error_message(), words)) fail_msg("'%s' says nothing of '%s'", tr_error_message(), words); \
    } while (0)

enum { PATIENCE_MS = 60000 };

static double seconds_since(int64_t began)
{
    return (double)(tr__now_ns() - began) * 1e-9;
}

/* ---- A server of our own making ---------------------------------------------------------------------------------- */

typedef struct impostor {
    int listener, port;
    const char *answer; /* to the first request after the hello */
    size_t bytes;
    bool hangs_up;
    pthread_t thread;
} impostor;

static const unsigned char hello_reply[] = {1, 0, 0, 0, TR__FRAME_VERSION, TR__FRAME_REPLY, 0, 0, TR__REPLY_OK};

static void *be_impostor(void *arg)
{
    impostor *i = arg;
    char request[256];
    int fd = accept(i->listener, NULL, NULL);
    if (read(fd, request, sizeof request) > 0 && write(fd, hello_reply, sizeof hello_reply) > 0 &&
        read(fd, request, sizeof request) > 0 && i->bytes > 0 && write(fd, i->answer, i->bytes) < 0)
        fprintf(stderr, "the impostor was not heard\n");
    while (!i->hangs_up && read(fd, request, sizeof request) > 0) continue; /* until the client goes */
    close(fd);
    return NULL;
}

static void start(impostor *i)
{
    i->listener = listen_on_loopback(&i->port);
    pthread_create(&i->thread, NULL, be_impostor, i);
}

static void finish(impostor *i)
{
    pthread_join(i->thread, NULL);
    close(i->listener);
}

static void set_fails(const char *answer, size_t bytes, bool hangs_up, tr_status status, const char *words)
{
    impostor i = {.answer = answer, .bytes = bytes, .hangs_up = hangs_up};
    start(&i);
    tr_scope_push();
    tr_store *store = tr_store_tcp("127.0.0.1", i.port, .timeout_ms = PATIENCE_MS);
    assert_int_equal(tr_status_of(store), TR_OK);
    store->timeout_ms = status == TR_TIMEOUT ? 300 : 1000; /* until then it asks again */
    int64_t began = tr__now_ns();
    FAILS(status, tr_store_set(store, "k", "v", 1), words);
    assert_true(seconds_since(began) < PATIENCE_MS / 2e3);
    tr_scope_pop();
    finish(&i);
}

static void answers_that_are_none(void **state)
{
    (void)state;
    set_fails(NULL, 0, false, TR_TIMEOUT, "no answer about key 'k' within 0.3 s");
    set_fails(NULL, 0, true, TR_IO, "lost while asking about key 'k'");
    set_fails("\1\0\0", 3, true, TR_IO, "lost while asking");                 /* half a header */
    set_fails("\x09\0\0\0\1\7\0\0\0", 9, true, TR_IO, "lost while asking");   /* a frame that is cut */
    set_fails("\x09\0\0\0\1\7\0\0\0", 9, false, TR_TIMEOUT, "no answer");     /* and one that never ends */
    set_fails("HTTP/1.1 400 Bad", 16, false, TR_FORMAT, "damaged answer");
    set_fails("\xff\xff\xff\xff\1\7\0\0\0", 9, false, TR_FORMAT, "damaged answer"); /* 4 GiB */
    set_fails("\1\0\0\0\1\7\0\0\x63", 9, false, TR_FORMAT, "damaged answer");       /* no such code */
    set_fails("\4\0\0\0\1\2\1\0k\0\0\0", 12, false, TR_FORMAT, "damaged answer");   /* a question */
}

/* Lists that do not fit what was asked. */
static void gathered_answers_that_are_none(void **state)
{
    (void)state;
    static const struct {
        const char *answer;
        size_t bytes;
    } bad[] = {
        {"\1\0\0\0\1\7\0\0\0", 9},                               /* no list at all */
        {"\6\0\0\0\1\7\0\0\0\2\0\0\0v", 14},                    /* one value for two keys */
        {"\x0b\0\0\0\1\7\0\0\0\2\0\0\0v\3\0\0\0v", 19},          /* a value that is cut */
        {"\x0a\0\0\0\1\7\0\0\0\2\0\0\0v\0\0\0\0", 18},           /* one that is missing, and no timeout */
        {"\x0c\0\0\0\1\7\0\0\0\2\0\0\0v\2\0\0\0vx", 20},         /* something behind the last */
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        impostor imp = {.answer = bad[i].answer, .bytes = bad[i].bytes};
        start(&imp);
        tr_scope_push();
        tr_store *store = tr_store_tcp("127.0.0.1", imp.port, .timeout_ms = PATIENCE_MS);
        tr__store_value values[2];
        FAILS(TR_FORMAT, tr__store_gather(store, (const char *const[]){"k", "l"}, 2, PATIENCE_MS, values), "damaged answer");
        assert_true(!values[0].data && !values[1].data);
        tr_scope_pop();
        finish(&imp);
    }
}

/* Connections are taken by the kernel, and nobody ever says a word. */
static void nobody_listens(void **state)
{
    (void)state;
    TR_SCOPE;
    int port, fd = listen_on_loopback(&port);
    int64_t began = tr__now_ns();
    FAILS(TR_TIMEOUT, tr_status_of(tr_store_tcp("127.0.0.1", port, .timeout_ms = 300)), "something else than a Trireme store");
    FAILS(TR_TIMEOUT, tr_status_of(tr_store_tcp("127.0.0.1", port, .token = "t", .timeout_ms = 300)), "TRIREME_TOKEN");
    assert_true(seconds_since(began) < PATIENCE_MS / 2e3);
    close(fd);
}

/* "two.test" has these addresses. */
static const char *two[2];
int __real_tr__resolve(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found),
    __wrap_tr__resolve(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int __wrap_tr__resolve(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    if (strcmp(host, "two.test") != 0) return __real_tr__resolve(host, service, hints, found);
    int error = __real_tr__resolve(two[0], service, hints, found);
    return error ? error : __real_tr__resolve(two[1], service, hints, &(*found)->ai_next);
}

/* Nobody listens at the first one, and what is said of the second one is not the reason. */
static void names_with_two_addresses(void **state)
{
    (void)state;
    TR_SCOPE;
    int port, fd = listen_on_loopback(&port);
    close(fd);
    two[0] = "127.0.0.1", two[1] = "224.0.0.1"; /* which cannot be reached over TCP */
    FAILS(TR_TIMEOUT, tr_status_of(tr_store_tcp("two.test", port, .insecure = true, .timeout_ms = 50)), "Connection refused");
    two[1] = "192.0.2.1"; /* which is not spoken to without a token */
    FAILS(TR_TIMEOUT, tr_status_of(tr_store_tcp("two.test", port, .timeout_ms = 50)), "Connection refused");
    two[0] = "192.0.2.1", two[1] = "127.0.0.1";
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("two.test", port, .timeout_ms = 50)), "only loopback is spoken to");
}

/* ---- A server that is killed, or stopped ------------------------------------------------------------------------- */

static pid_t serve_in_a_child(const char *token, int *port)
{
    int out[2];
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when a check fails */
        tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = token);
        *port = tr_store_port(store);
        if (write(out[1], port, sizeof *port) != sizeof *port) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(out[0], port, sizeof *port), sizeof *port);
    close(out[0]);
    close(out[1]);
    return child;
}

typedef struct waiter {
    tr_store *store;
    tr_status status;
    char message[512];
    double seconds;
} waiter;

static void *wait_in_vain(void *arg)
{
    waiter *w = arg;
    int64_t began = tr__now_ns();
    w->status = tr_store_wait(w->store, "never", 60000);
    w->seconds = seconds_since(began);
    snprintf(w->message, sizeof w->message, "%s", tr_error_message());
    return NULL;
}

/* Has a client of the server at this port sent what the server has not read? */
static bool has_unread(int port)
{
    char line[256];
    unsigned local, state;
    unsigned long unread = 0;
    FILE *f = fopen("/proc/net/tcp", "re");
    for (bool found = false; f && !found && fgets(line, sizeof line, f); found = unread > 0)
        if (sscanf(line, " %*d: %*x:%x %*x:%*x %x %*x:%lx", &local, &state, &unread) != 3 || local != (unsigned)port || state != 1)
            unread = 0;
    if (f) fclose(f);
    return unread > 0;
}

static void a_killed_server(void **state)
{
    (void)state;
    for (int secret = 0; secret < 2; secret++) {
        TR_SCOPE;
        int port;
        const char *token = secret ? "secret" : NULL;
        pid_t server = serve_in_a_child(token, &port);
        waiter w = {.store = tr_store_tcp("127.0.0.1", port, .token = token, .timeout_ms = PATIENCE_MS)};
        assert_int_equal(tr_store_set(w.store, "k", "v", 1), TR_OK);
        kill(server, SIGSTOP); /* the question comes, and no answer */
        waitpid(server, NULL, WUNTRACED);
        pthread_t thread;
        pthread_create(&thread, NULL, wait_in_vain, &w);
        while (!has_unread(port)) usleep(1000);
        kill(server, SIGKILL);
        pthread_join(thread, NULL);
        waitpid(server, NULL, 0);
        assert_int_equal(w.status, TR_IO);
        assert_non_null(strstr(w.message, "lost while asking about key 'never'"));
        assert_true(w.seconds < PATIENCE_MS / 2e3);
        FAILS(TR_IO, tr_store_set(w.store, "k", "v", 1), "127.0.0.1");
    }
}

static void a_stopped_server(void **state)
{
    (void)state;
    TR_SCOPE;
    int port;
    pid_t server = serve_in_a_child("secret", &port);
    tr_store *store = tr_store_tcp("127.0.0.1", port, .token = "secret", .timeout_ms = PATIENCE_MS);
    assert_int_equal(tr_store_set(store, "k", "v", 1), TR_OK);
    kill(server, SIGSTOP);
    waitpid(server, NULL, WUNTRACED);
    store->timeout_ms = 300;
    char *big = calloc(1, 16 << 20);
    int64_t began = tr__now_ns();
    FAILS(TR_TIMEOUT, tr_store_set(store, "k", "w", 1), "no answer about key 'k' within 0.3 s");
    FAILS(TR_TIMEOUT, tr_store_set(store, "big", big, 16 << 20), "timed out"); /* by a new connection */
    assert_true(seconds_since(began) < PATIENCE_MS / 2e3);
    kill(server, SIGCONT);
    tr_store *patient = tr_store_tcp("127.0.0.1", port, .token = "secret", .timeout_ms = PATIENCE_MS);
    assert_int_equal(tr_store_set(patient, "k", "v", 1), TR_OK); /* it serves as before */
    assert_true(seconds_since(began) < PATIENCE_MS / 2e3);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_that_are_none),
        cmocka_unit_test(gathered_answers_that_are_none),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(names_with_two_addresses),
        cmocka_unit_test(a_killed_server),
        cmocka_unit_test(a_stopped_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
