/* Stores: one list of checks on every kind; then the TCP store's frames, its server under bad clients, and its
 * trust. */
#include "base/clock.h"
#include "comm/store.h"
#include "comm/store_frame.h"
#include "comm/tls.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(expression)                                                                    \
    do {                                                                                  \
        tr_status ok_ = (expression);                                                     \
        if (ok_ != TR_OK) fail_msg("%s: %s", #expression, tr_error_message());            \
    } while (0)
#define FAILS(status_, expression, words)                                                 \
    do {                                                                                  \
        assert_int_equal((expression), status_);                                          \
        if (!strstr(tr_error_message(), words)) fail_msg("'%s' says nothing of '%s'", tr_error_message(), words); \
    } while (0)

/* ---- Every store ------------------------------------------------------------------------------------------------- */

static void check_value(tr_store *store, const char *key, const void *wanted, size_t bytes)
{
    void *value;
    size_t got;
    OK(tr_store_get(store, key, &value, &got));
    assert_int_equal(got, bytes);
    assert_memory_equal(value, wanted, bytes);
    assert_int_equal(((char *)value)[got], 0);
    free(value);
}

static void check_basics(tr_store *store)
{
    OK(tr_store_set(store, "a", "one", 3));
    check_value(store, "a", "one", 3);
    OK(tr_store_set(store, "a", "\0\xff two", 6));
    check_value(store, "a", "\0\xff two", 6);
    OK(tr_store_set(store, "empty", NULL, 0));
    check_value(store, "empty", "", 0);

    int64_t sum;
    OK(tr_store_add(store, "counter", 5, &sum));
    assert_int_equal(sum, 5);
    OK(tr_store_add(store, "counter", -7, &sum));
    assert_int_equal(sum, -2);
    OK(tr_store_add(store, "counter", 0, NULL));
    check_value(store, "counter", "-2", 2);
    FAILS(TR_FORMAT, tr_store_add(store, "a", 1, &sum), "a' holds no number");
    OK(tr_store_set(store, "edge", "9223372036854775807", 19));
    FAILS(TR_FORMAT, tr_store_add(store, "edge", 1, &sum), "64 bits");
    check_value(store, "edge", "9223372036854775807", 19);
}

static void check_compare_set(tr_store *store)
{
    void *now;
    size_t bytes;
    OK(tr_store_compare_set(store, "cs", "x", 1, "y", 1, &now, &bytes)); /* absent, and x was expected */
    assert_null(now);
    OK(tr_store_compare_set(store, "cs", NULL, 0, "y", 1, &now, &bytes));
    assert_string_equal(now, "y");
    free(now);
    OK(tr_store_compare_set(store, "cs", NULL, 0, "z", 1, &now, &bytes)); /* there, and nothing was expected */
    assert_string_equal(now, "y");
    free(now);
    OK(tr_store_compare_set(store, "cs", "y", 1, "long one", 8, &now, &bytes));
    assert_string_equal(now, "long one");
    assert_int_equal(bytes, 8);
    free(now);
}

static void check_limits(tr_store *store)
{
    char *key = malloc(TR__KEY_MAX + 2), *big = malloc(TR__VALUE_MAX + 1);
    memset(key, 'k', TR__KEY_MAX + 1);
    key[TR__KEY_MAX + 1] = 0;
    FAILS(TR_INVALID, tr_store_set(store, key, "v", 1), "1025 bytes");
    key[TR__KEY_MAX / 2] = 0;
    OK(tr_store_set(store, key, "v", 1));
    check_value(store, key, "v", 1);
    memset(big, 7, TR__VALUE_MAX + 1);
    FAILS(TR_INVALID, tr_store_set(store, "big", big, TR__VALUE_MAX + 1), "16777217 bytes");
    OK(tr_store_set(store, "big", big, TR__VALUE_MAX));
    check_value(store, "big", big, TR__VALUE_MAX);
    FAILS(TR_INVALID, tr_store_set(store, "", "v", 1), "character");
    FAILS(TR_INVALID, tr_store_set(store, NULL, "v", 1), "character");
    FAILS(TR_INVALID, tr_store_set(store, "k", NULL, 1), "NULL");
    free(key);
    free(big);
}

typedef struct setter {
    tr_store *store;
    const char *key;
    int after_ms;
} setter;

static void *set_later(void *arg)
{
    setter *s = arg;
    usleep((unsigned)s->after_ms * 1000);
    TR_CHECK(tr_store_set(s->store, s->key, "came", 4)); /* cmocka's own checks are for the main thread */
    return NULL;
}

static void check_waits(tr_store *store)
{
    int64_t began = tr__now_ns();
    FAILS(TR_TIMEOUT, tr_store_wait(store, "never", 30), "never' within 0.03 s");
    assert_true(tr__now_ns() - began >= 29000000);
    FAILS(TR_TIMEOUT, tr__store_get(store, "never", 0, NULL, NULL), "never");
    FAILS(TR_INVALID, tr_store_wait(store, "never", -1), "negative");
    pthread_t thread;
    setter s = {store, "late", 50};
    pthread_create(&thread, NULL, set_later, &s);
    OK(tr_store_wait(store, "late", 20000)); /* the same store object, while this thread waits on it */
    check_value(store, "late", "came", 4);
    pthread_join(thread, NULL);
}

static void check_prefix(tr_store *store)
{
    tr_store *inner = tr_store_prefix(tr_store_prefix(store, "p"), "q");
    OK(tr_status_of(inner));
    OK(tr_store_set(inner, "k", "v", 1));
    check_value(store, "p/q/k", "v", 1);
    check_basics(inner);
    check_compare_set(inner);
    FAILS(TR_TIMEOUT, tr_store_wait(inner, "missing", 1), "p/q/missing'");
}

static void check_store(tr_store *store)
{
    OK(tr_status_of(store));
    check_basics(store);
    check_compare_set(store);
    check_limits(store);
    check_waits(store);
    check_prefix(store);
}

static void memory_store(void **state)
{
    (void)state;
    TR_SCOPE;
    check_store(tr_store_memory());
}

static tr_store *serve(const char *token)
{
    tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = token, .timeout_ms = 20000);
    OK(tr_status_of(store));
    return store;
}

static void tcp_store(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *server = serve("secret");
    check_store(server);
    tr_store *client = tr_store_tcp("localhost", tr_store_port(server), .token = "secret", .timeout_ms = 20000);
    check_store(tr_store_prefix(client, "again"));
    check_value(client, "a", "\0\xff two", 6);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static char folder[64], path[80];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/trireme-test-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/store", folder);
    return 0;
}

/* Fails when anything is left there. */
static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void file_store(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *one = tr_store_file(path, .timeout_ms = 20000), *other = tr_store_file(path);
    check_store(one);
    check_value(other, "a", "\0\xff two", 6);
    check_store(tr_store_prefix(other, "again"));
    check_value(one, "again/counter", "-2", 2);
    pthread_t thread;
    setter s = {other, "from the other", 50};
    pthread_create(&thread, NULL, set_later, &s);
    OK(tr_store_wait(one, "from the other", 20000));
    pthread_join(thread, NULL);
    OK(tr_store_set(other, "before tear", "1", 1));
    check_value(one, "before tear", "1", 1);

    /* Somebody died while writing, and left half a record; nobody reads it, and the next writer cuts it off. */
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_int_equal(write(fd, "\x09\0\0\0\1\2\3\4\1\0k", 11), 11);
    close(fd);
    check_value(one, "before tear", "1", 1);
    OK(tr_store_set(other, "after tear", "2", 1));
    check_value(one, "after tear", "2", 1);
    TR_SCOPE;
    check_value(tr_store_file(path), "after tear", "2", 1);
}

/* Processes count, and are killed at it: no count that was answered is lost, and none is counted twice. */
static void a_killed_writer_does_no_harm(void **state)
{
    (void)state;
    enum { CHILDREN = 4, KILLS = 12 };
    TR_SCOPE;
    tr_store *store = tr_store_file(path, .timeout_ms = 20000);
    OK(tr_status_of(store));
    int64_t sum, answered[CHILDREN] = {0};
    int pipes[CHILDREN][2];
    pid_t children[CHILDREN];
    for (int trial = 0; trial < KILLS; trial++) {
        int c = trial % CHILDREN;
        if (trial < CHILDREN) assert_int_equal(pipe(pipes[c]), 0);
        children[c] = fork();
        if (children[c] == 0) {
            tr_store *mine = tr_store_file(path, .timeout_ms = 20000);
            for (;;)
                if (tr_store_add(mine, "count", 1, NULL) != TR_OK || write(pipes[c][1], "+", 1) != 1) _exit(1);
        }
        usleep(5000 + 3000 * (unsigned)trial);
        kill(children[c], SIGKILL);
        waitpid(children[c], NULL, 0);
        OK(tr_store_add(store, "ours", 1, &sum));
        assert_int_equal(sum, trial + 1);
    }
    int64_t all = 0;
    for (int c = 0; c < CHILDREN; c++) {
        char byte;
        close(pipes[c][1]);
        while (read(pipes[c][0], &byte, 1) == 1) answered[c]++;
        close(pipes[c][0]);
        all += answered[c];
    }
    OK(tr_store_add(store, "count", 0, &sum));
    assert_true(all > 0 && sum >= all && sum <= all + KILLS); /* each may have died before it could tell */
}

static void former_jobs_are_forgotten(void **state)
{
    (void)state;
    int status;
    pid_t child = fork(); /* dies with the store open */
    if (child == 0) {
        tr_store *store = tr_store_file(path);
        _exit(tr_store_set(store, "old", "1", 1) == TR_OK ? 7 : 1);
    }
    waitpid(child, &status, 0);
    assert_int_equal(WEXITSTATUS(status), 7);
    assert_int_equal(access(path, F_OK), 0);
    tr_scope_push();
    tr_store *store = tr_store_file(path);
    FAILS(TR_TIMEOUT, tr_store_wait(store, "old", 1), "old");
    OK(tr_store_set(store, "new", "1", 1));
    tr_scope_push();
    check_value(tr_store_file(path), "new", "1", 1);
    tr_scope_pop();
    assert_int_equal(access(path, F_OK), 0);
    tr_scope_pop();
    assert_int_equal(access(path, F_OK), -1);
}

static void other_peoples_files_stay(void **state)
{
    (void)state;
    TR_SCOPE;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "my thesis", 9), 9);
    FAILS(TR_FORMAT, tr_status_of(tr_store_file(path)), "something else");
    assert_int_equal(lseek(fd, 0, SEEK_END), 9);
    assert_int_equal(ftruncate(fd, 0), 0);
    fchmod(fd, 0666);
    FAILS(TR_AUTH, tr_status_of(tr_store_file(path)), "other users");
    close(fd);
    unlink(path);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    FAILS(TR_IO, tr_status_of(tr_store_file(path)), "cannot open");
    unlink(path);
    FAILS(TR_INVALID, tr_status_of(tr_store_file("")), "path is needed");
    FAILS(TR_IO, tr_status_of(tr_store_file("/nowhere/at/all")), "/nowhere/at/all");
    FAILS(TR_INVALID, tr_status_of(tr_store_file(folder, .timeout_ms = -1)), "negative");
}

static void errors_pass_on(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *bad = tr_store_tcp(NULL, 1);
    FAILS(TR_INVALID, tr_status_of(bad), "host");
    FAILS(TR_INVALID, tr_store_set(bad, "k", "v", 1), "host");
    FAILS(TR_INVALID, tr_status_of(tr_store_prefix(bad, "p")), "host");
    FAILS(TR_INVALID, tr_status_of(tr_store_tcp("127.0.0.1", 70000)), "70000");
    FAILS(TR_INVALID, tr_status_of(tr_store_tcp("127.0.0.1", 0)), "port 0");
    FAILS(TR_INVALID, tr_store_set(NULL, "k", "v", 1), "NULL");
    assert_int_equal(tr_store_port(NULL), 0);
}

/* ---- Who may come, and where it serves --------------------------------------------------------------------------- */

static void tokens_are_checked(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = serve("secret");
    int port = tr_store_port(store);
    char words[64];
    snprintf(words, sizeof words, "the store 127.0.0.1:%d refused this job's token", port);
    int64_t began = tr__now_ns();
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("127.0.0.1", port, .token = "Secret", .timeout_ms = 20000)), words);
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("127.0.0.1", port, .token = "secret2", .timeout_ms = 20000)), words);
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("127.0.0.1", port, .timeout_ms = 20000)), "wants a token");
    assert_true(tr__now_ns() - began < 1000000000);
    OK(tr_store_set(store, "k", "v", 1)); /* the server lives on */
    FAILS(TR_FORMAT, tr_status_of(tr_store_tcp("127.0.0.1", tr_store_port(serve(NULL)), .token = "secret",
        .timeout_ms = 20000)), "or one without a token");
    char long_token[TR__TOKEN_MAX + 2];
    memset(long_token, 'x', sizeof long_token);
    long_token[TR__TOKEN_MAX + 1] = 0;
    FAILS(TR_INVALID, tr_status_of(tr_store_tcp("127.0.0.1", port, .token = long_token)), "256 bytes");
}

static void without_a_token_only_over_loopback(void **state)
{
    (void)state;
    TR_SCOPE;
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("0.0.0.0", 0, .serve = true)), "loopback");
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("0.0.0.0", 0, .serve = true, .token = "")), "loopback");
    OK(tr_status_of(tr_store_tcp("0.0.0.0", 0, .serve = true, .token = "t")));
    OK(tr_status_of(tr_store_tcp("0.0.0.0", 0, .serve = true, .insecure = true)));
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("192.0.2.1", 29500)), "only loopback");
}

static void a_taken_port_is_an_error(void **state)
{
    (void)state;
    TR_SCOPE;
    char port[16];
    tr_store *store = serve(NULL);
    snprintf(port, sizeof port, ":%d", tr_store_port(store));
    FAILS(TR_IO, tr_status_of(tr_store_tcp("127.0.0.1", tr_store_port(store), .serve = true)), port);
}

static int listen_on_loopback(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void it_takes_over_a_listening_socket(void **state)
{
    (void)state;
    TR_SCOPE;
    int port, fd = listen_on_loopback(&port);
    tr_store *store = tr_store_tcp("127.0.0.1", port, .serve = true, .listen_fd = fd, .timeout_ms = 20000);
    OK(tr_status_of(store));
    assert_int_equal(tr_store_port(store), port);
    check_basics(tr_store_tcp("127.0.0.1", port));
}

static void nobody_there_is_a_timeout(void **state)
{
    (void)state;
    TR_SCOPE;
    int port, fd = listen_on_loopback(&port);
    close(fd);
    char name[32];
    snprintf(name, sizeof name, "127.0.0.1:%d", port);
    FAILS(TR_TIMEOUT, tr_status_of(tr_store_tcp("127.0.0.1", port, .timeout_ms = 100)), name);
    FAILS(TR_NOT_FOUND, tr_status_of(tr_store_tcp("no.such.host.invalid.", 1, .timeout_ms = 100)), "no.such.host");
}

static void *answer_with_words(void *arg)
{
    int fd = accept(*(int *)arg, NULL, NULL);
    char bytes[256];
    ssize_t written = write(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
    (void)written;
    while (read(fd, bytes, sizeof bytes) > 0) continue;
    close(fd);
    return NULL;
}

static void another_service_is_told_apart(void **state)
{
    (void)state;
    TR_SCOPE;
    int port, fd = listen_on_loopback(&port);
    pthread_t thread;
    pthread_create(&thread, NULL, answer_with_words, &fd);
    FAILS(TR_FORMAT, tr_status_of(tr_store_tcp("127.0.0.1", port, .timeout_ms = 20000)), "no Trireme store");
    pthread_join(thread, NULL);
    close(fd);
}

static void a_server_that_goes_is_an_error(void **state)
{
    (void)state;
    tr_scope_push();
    tr_store *server = serve(NULL), *client;
    int port = tr_store_port(server);
    client = tr_keep(tr_store_tcp("127.0.0.1", port, .timeout_ms = 20000));
    OK(tr_status_of(client));
    tr_scope_pop();
    FAILS(TR_IO, tr_store_set(client, "k", "v", 1), "127.0.0.1");
    FAILS(TR_IO, tr_store_wait(client, "k", 20000), "127.0.0.1");
    tr_release(client);
}

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

static size_t flatten(const tr__frame *frame, unsigned char *bytes)
{
    unsigned char head[TR__FRAME_HEAD];
    struct iovec pieces[TR__FRAME_PIECES];
    size_t used = 0;
    int count = tr__frame_pieces(frame, head, pieces);
    for (int i = 0; i < count; i++) {
        memcpy(bytes + used, pieces[i].iov_base, pieces[i].iov_len);
        used += pieces[i].iov_len;
    }
    return used;
}

static const tr__frame frames[] = {
    {.type = TR__FRAME_HELLO},
    {.type = TR__FRAME_GET, .key = "k", .key_bytes = 1, .timeout_ms = 12345},
    {.type = TR__FRAME_WAIT, .key = "key", .key_bytes = 3},
    {.type = TR__FRAME_SET, .key = "key", .key_bytes = 3, .value = "value", .value_bytes = 5},
    {.type = TR__FRAME_SET, .key = "key", .key_bytes = 3},
    {.type = TR__FRAME_ADD, .key = "n", .key_bytes = 1, .amount = INT64_MIN},
    {.type = TR__FRAME_COMPARE_SET, .key = "c", .key_bytes = 1, .value = "new", .value_bytes = 3},
    {.type = TR__FRAME_COMPARE_SET, .key = "c", .key_bytes = 1, .expected = "old", .expected_bytes = 3, .value = "new",
        .value_bytes = 3},
    {.type = TR__FRAME_COMPARE_SET, .key = "c", .key_bytes = 1, .expected = "", .expected_bytes = 0},
    {.type = TR__FRAME_REPLY, .code = TR__REPLY_TIMEOUT},
    {.type = TR__FRAME_REPLY, .code = TR__REPLY_OK, .value = "v", .value_bytes = 1},
};
enum { FRAMES = sizeof frames / sizeof *frames };

static void frames_come_back_as_they_went(void **state)
{
    (void)state;
    for (int i = 0; i < FRAMES; i++) {
        const tr__frame *f = &frames[i];
        unsigned char bytes[128];
        size_t count = flatten(f, bytes);
        tr__frame g;
        for (size_t part = 0; part < count; part++) {
            unsigned char *copy = malloc(part + 1); /* so that a sanitizer sees a read beyond the end */
            memcpy(copy, bytes, part);
            assert_true(tr__frame_parse(copy, part, TR__FRAME_MAX, &g) == 0);
            free(copy);
        }
        assert_true(tr__frame_parse(bytes, count, TR__FRAME_MAX, &g) == (ssize_t)count);
        assert_true(tr__frame_parse(bytes, count, count - 1, &g) == -1);
        assert_true(g.type == f->type && g.code == f->code && g.amount == f->amount && g.timeout_ms == f->timeout_ms);
        assert_true(g.key_bytes == f->key_bytes && g.value_bytes == f->value_bytes);
        assert_true(g.expected_bytes == f->expected_bytes && (g.expected != NULL) == (f->expected != NULL));
        assert_memory_equal(g.key, f->key ? f->key : "", g.key_bytes);
        assert_memory_equal(g.value, f->value ? f->value : "", g.value_bytes);
        if (f->expected) assert_memory_equal(g.expected, f->expected, g.expected_bytes);
    }
}

/* xorshift: the same bytes in every run. */
static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* What the parser accepts must lie within the bytes and the limits. */
static void check_parse(const unsigned char *bytes, size_t count)
{
    unsigned char *copy = malloc(count + 1);
    memcpy(copy, bytes, count);
    tr__frame f;
    ssize_t used = tr__frame_parse(copy, count, TR__FRAME_MAX, &f);
    assert_true(used >= -1 && used <= (ssize_t)count);
    if (used > 0) {
        assert_true(f.key_bytes <= TR__KEY_MAX && f.value_bytes <= TR__VALUE_MAX && f.expected_bytes <= TR__VALUE_MAX);
        assert_true(f.key_bytes + f.value_bytes + f.expected_bytes <= (size_t)used);
        unsigned sum = 0;
        for (size_t i = 0; i < f.key_bytes; i++) sum += (unsigned char)f.key[i];
        for (size_t i = 0; i < f.value_bytes; i++) sum += ((const unsigned char *)f.value)[i];
        for (size_t i = 0; f.expected && i < f.expected_bytes; i++) sum += ((const unsigned char *)f.expected)[i];
        volatile unsigned read_all = sum;
        (void)read_all;
    }
    free(copy);
}

static void random_bytes_are_no_danger(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (int trial = 0; trial < 100000; trial++) {
        unsigned char bytes[128];
        size_t count = next_random(&seed) % sizeof bytes;
        for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)next_random(&seed);
        if (trial % 4) { /* a true frame with a few bytes changed, and perhaps cut */
            count = flatten(&frames[next_random(&seed) % FRAMES], bytes);
            for (uint32_t n = next_random(&seed) % 4; n > 0; n--)
                bytes[next_random(&seed) % count] =
                    (unsigned char)(next_random(&seed) % 5 ? next_random(&seed) % 8 : 255);
            if (next_random(&seed) % 4 == 0) count = next_random(&seed) % (count + 1);
        }
        check_parse(bytes, count);
    }
}

/* ---- The server under bad clients -------------------------------------------------------------------------------- */

static int raw_client(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void send_raw(int fd, const tr__frame *frame)
{
    unsigned char bytes[128];
    size_t count = flatten(frame, bytes);
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
}

/* A reply's code; -1: the server hung up. */
static int read_code(int fd)
{
    unsigned char bytes[64];
    size_t used = 0;
    tr__frame frame;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 20000), 1);
        ssize_t got = recv(fd, bytes + used, sizeof bytes - used, 0);
        if (got <= 0) return -1;
        used += (size_t)got;
        if (tr__frame_parse(bytes, used, TR__FRAME_MAX, &frame) > 0) return (int)frame.code;
    }
}

static int raw_guest(int port)
{
    int fd = raw_client(port);
    send_raw(fd, &frames[0]);
    assert_int_equal(read_code(fd), TR__REPLY_OK);
    return fd;
}

static void bad_clients_are_hung_up_on(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = serve(NULL);
    int port = tr_store_port(store);

    int fd = raw_client(port); /* asks before it has said hello */
    send_raw(fd, &frames[3]);
    assert_int_equal(read_code(fd), -1);
    close(fd);

    fd = raw_client(port); /* promises a frame that is larger than a hello may be */
    unsigned char header[TR__FRAME_HEADER] = {0xff, 0xff, 0, 0, TR__FRAME_VERSION, TR__FRAME_HELLO, 0, 0};
    assert_int_equal(send(fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
    assert_int_equal(read_code(fd), -1);
    close(fd);

    fd = raw_guest(port); /* another version */
    header[4] = TR__FRAME_VERSION + 1;
    header[5] = TR__FRAME_GET;
    assert_int_equal(send(fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
    assert_int_equal(read_code(fd), -1);
    close(fd);

    fd = raw_guest(port); /* replies where it should ask */
    send_raw(fd, &frames[9]);
    assert_int_equal(read_code(fd), -1);
    close(fd);

    fd = raw_guest(port); /* says hello twice */
    send_raw(fd, &frames[0]);
    assert_int_equal(read_code(fd), -1);
    close(fd);
    check_basics(store);
}

static void garbage_and_cut_frames_do_no_harm(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = serve(NULL);
    int port = tr_store_port(store), silent = raw_client(port); /* stands there for the whole test */
    uint32_t seed = 7;
    for (int trial = 0; trial < 200; trial++) {
        int fd = trial % 2 ? raw_client(port) : raw_guest(port);
        unsigned char bytes[512];
        size_t count = flatten(&frames[next_random(&seed) % FRAMES], bytes);
        if (trial % 3 == 0) {
            count = next_random(&seed) % sizeof bytes;
            for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)next_random(&seed);
        } else {
            count = next_random(&seed) % count;
        }
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        (void)sent;
        close(fd);
    }
    check_basics(store);
    check_waits(store);
    close(silent);
}

/* Handshakes that stop, break off or never were one; the server serves on meanwhile. */
static void broken_handshakes_do_no_harm(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { SILENT = 50 };
    tr_store *store = serve("secret");
    int port = tr_store_port(store), silent[SILENT];
    unsigned char record[] = {TR__TLS_RECORD, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3};
    for (int i = 0; i < SILENT; i++) {
        silent[i] = raw_client(port);
        if (i % 2) assert_int_equal(send(silent[i], record, sizeof record, MSG_NOSIGNAL), sizeof record);
    }
    uint32_t seed = 11;
    for (int trial = 0; trial < 100; trial++) {
        int fd = raw_client(port);
        unsigned char bytes[512];
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)next_random(&seed);
        if (trial % 3) memcpy(bytes, record, sizeof record);
        ssize_t sent = send(fd, bytes, 1 + next_random(&seed) % sizeof bytes, MSG_NOSIGNAL);
        (void)sent;
        close(fd);
    }
    int fd = raw_client(port); /* a handshake that never ends */
    char much[TR__TLS_HANDSHAKE_MAX + 1] = {TR__TLS_RECORD};
    assert_int_equal(send(fd, much, sizeof much, MSG_NOSIGNAL), sizeof much);
    assert_int_equal(read_code(fd), -1);
    close(fd);
    check_basics(store);
    check_waits(store);
    for (int i = 0; i < SILENT; i++) close(silent[i]);
}

/* Many clients wait for one key; some die meanwhile; the rest hear of it. */
static void many_clients_wait(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { CLIENTS = 300 };
    int fds[CLIENTS];
    tr_store *store = serve(NULL);
    tr__frame wait = {.type = TR__FRAME_WAIT, .key = "go", .key_bytes = 2, .timeout_ms = 60000};
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = raw_guest(tr_store_port(store));
        send_raw(fds[i], &wait);
    }
    for (int i = 0; i < CLIENTS; i += 3) close(fds[i]);
    OK(tr_store_set(store, "go", "now", 3));
    for (int i = 0; i < CLIENTS; i++) {
        if (i % 3 == 0) continue;
        assert_int_equal(read_code(fds[i]), TR__REPLY_OK);
        close(fds[i]);
    }
}

/* A client that asks for much and reads nothing holds nobody up. */
static void slow_clients_hold_nobody_up(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { CLIENTS = 4 };
    int fds[CLIENTS];
    char *big = calloc(1, TR__VALUE_MAX);
    tr_store *store = serve(NULL);
    OK(tr_store_set(store, "big", big, TR__VALUE_MAX));
    tr__frame get = {.type = TR__FRAME_GET, .key = "big", .key_bytes = 3, .timeout_ms = 1000};
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = raw_guest(tr_store_port(store));
        send_raw(fds[i], &get);
    }
    check_basics(store);
    check_value(store, "big", big, TR__VALUE_MAX);
    for (int i = 0; i < CLIENTS; i++) close(fds[i]);
    free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_store),
        cmocka_unit_test(tcp_store),
        cmocka_unit_test_setup_teardown(file_store, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_killed_writer_does_no_harm, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(former_jobs_are_forgotten, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(other_peoples_files_stay, make_folder, remove_folder),
        cmocka_unit_test(errors_pass_on),
        cmocka_unit_test(tokens_are_checked),
        cmocka_unit_test(without_a_token_only_over_loopback),
        cmocka_unit_test(a_taken_port_is_an_error),
        cmocka_unit_test(it_takes_over_a_listening_socket),
        cmocka_unit_test(nobody_there_is_a_timeout),
        cmocka_unit_test(another_service_is_told_apart),
        cmocka_unit_test(a_server_that_goes_is_an_error),
        cmocka_unit_test(frames_come_back_as_they_went),
        cmocka_unit_test(random_bytes_are_no_danger),
        cmocka_unit_test(bad_clients_are_hung_up_on),
        cmocka_unit_test(garbage_and_cut_frames_do_no_harm),
        cmocka_unit_test(broken_handshakes_do_no_harm),
        cmocka_unit_test(many_clients_wait),
        cmocka_unit_test(slow_clients_hold_nobody_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
