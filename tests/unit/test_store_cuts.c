/* The TCP store's client when its connections break, or bring damage: it asks again over another one what it may. */
#include "net/store/frame.h"
#include "net/store/store.h"
#include "sockets.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAIRS = 64, PATIENCE_MS = 60000 };

#define FAILS(status_, expression, words)                                                                     \
    do {                                                                                                      \
        assert_int_equal((expression), status_);                                                              \
        if (!strstr(tr_error_message(), words)) fail_msg("'%s' says nothing of '%s'", tr_error_message(), words); \
    } while (0)

/* ---- What stands between a client and its server ----------------------------------------------------------------- */

typedef struct proxy {
    int listener, port;
    atomic_int to;       /* the server's port; 0: nobody is let through */
    atomic_int faults;   /* that are left to be dealt out: a connection each */
    atomic_bool flips;   /* some of them are bits that flip, others cuts */
    atomic_int cuts;     /* how often all connections have been asked to be cut, */
    atomic_bool over;
    atomic_int cut;      /* and how often they have been */
    uint64_t draw;
    pthread_t thread;
    struct pair {
        int ends[2]; /* client's and server's; below 0: none */
        int64_t until; /* bytes to the fault; below 0: none */
        bool flips;
    } pairs[PAIRS];
} proxy;

/* Knuth's; the upper bits. */
static int below(proxy *p, int limit)
{
    p->draw = p->draw * 6364136223846793005u + 1442695040888963407u;
    return (int)((p->draw >> 33) % (uint64_t)limit);
}

static void end_pair(struct pair *pair)
{
    for (int i = 0; i < 2; i++) close(pair->ends[i]);
    pair->ends[0] = pair->ends[1] = -1;
}

static void begin_pair(proxy *p)
{
    int client = accept(p->listener, NULL, NULL), to = atomic_load(&p->to);
    struct pair *free_one = NULL;
    for (int i = 0; i < PAIRS && !free_one; i++)
        if (p->pairs[i].ends[0] < 0) free_one = &p->pairs[i];
    if (client < 0) return;
    if (!to || !free_one) {
        close(client);
        return;
    }
    *free_one = (struct pair){.ends = {client, call_loopback(to)}, .until = -1};
    if (atomic_load(&p->faults) <= 0) return;
    atomic_fetch_sub(&p->faults, 1);
    free_one->until = below(p, 3000);
    free_one->flips = atomic_load(&p->flips) && below(p, 2);
}

static void pass_on(proxy *p, struct pair *pair, int from)
{
    unsigned char bytes[4096];
    ssize_t got = recv(pair->ends[from], bytes, sizeof bytes, 0);
    bool now = got > 0 && pair->until >= 0 && pair->until < got;
    if (now && pair->flips) bytes[pair->until] ^= (unsigned char)(1 << below(p, 8));
    ssize_t passed = now && !pair->flips ? (ssize_t)pair->until : got;
    bool sent = passed > 0 && send(pair->ends[1 - from], bytes, (size_t)passed, MSG_NOSIGNAL) == passed;
    if (now) pair->until = -1;
    else if (pair->until >= 0) pair->until -= got;
    if (!sent || passed < got) end_pair(pair);
}

static void *stand_between(void *argument)
{
    proxy *p = argument;
    while (!atomic_load(&p->over)) {
        struct pollfd fds[1 + 2 * PAIRS] = {{.fd = p->listener, .events = POLLIN}};
        for (int i = 0; i < 2 * PAIRS; i++) fds[1 + i] = (struct pollfd){.fd = p->pairs[i / 2].ends[i % 2], .events = POLLIN};
        poll(fds, 1 + 2 * PAIRS, 1);
        for (int i = 0; i < 2 * PAIRS; i++)
            if (fds[1 + i].revents && p->pairs[i / 2].ends[i % 2] == fds[1 + i].fd) pass_on(p, &p->pairs[i / 2], i % 2);
        int cuts = atomic_load(&p->cuts);
        for (int i = 0; i < PAIRS && atomic_load(&p->cut) != cuts; i++)
            if (p->pairs[i].ends[0] >= 0) end_pair(&p->pairs[i]);
        atomic_store(&p->cut, cuts);
        if (fds[0].revents) begin_pair(p);
    }
    for (int i = 0; i < PAIRS; i++)
        if (p->pairs[i].ends[0] >= 0) end_pair(&p->pairs[i]);
    return NULL;
}

static void start(proxy *p, int to, uint64_t seed)
{
    *p = (proxy){.draw = seed};
    for (int i = 0; i < PAIRS; i++) p->pairs[i].ends[0] = p->pairs[i].ends[1] = -1;
    atomic_store(&p->to, to);
    p->listener = listen_on_loopback(&p->port);
    assert_int_equal(pthread_create(&p->thread, NULL, stand_between, p), 0);
}

static void finish(proxy *p)
{
    atomic_store(&p->over, true);
    pthread_join(p->thread, NULL);
    close(p->listener);
}

static void cut_all(proxy *p)
{
    int cuts = atomic_fetch_add(&p->cuts, 1) + 1;
    while (atomic_load(&p->cut) != cuts) usleep(100);
}

static tr_store *connect_through(const proxy *p, const char *token)
{
    tr_store *store = tr_store_tcp("127.0.0.1", p->port, .token = token, .timeout_ms = PATIENCE_MS);
    assert_int_equal(tr_status_of(store), TR_OK);
    return store;
}

/* ---- Requests that may be asked again ---------------------------------------------------------------------------- */

typedef struct user {
    tr_store *store;
    int number;
    pthread_t thread;
    char failure[512];
} user;

enum { USERS = 3, TURNS = 30 };

static bool is_value(const void *value, size_t bytes, int number, int turn)
{
    char wanted[2000];
    memset(wanted, 'a' + (number + turn) % 26, sizeof wanted);
    return value && bytes == sizeof wanted && memcmp(value, wanted, bytes) == 0;
}

static tr_status take_turn(const user *u, int turn)
{
    char mine[2000], key[32], keys[USERS][32];
    memset(mine, 'a' + (u->number + turn) % 26, sizeof mine);
    snprintf(key, sizeof key, "%d/%d", turn, u->number);
    TR__TRY(tr_store_set(u->store, key, mine, sizeof mine));
    const char *all[USERS];
    for (int i = 0; i < USERS; i++) {
        snprintf(keys[i], sizeof keys[i], "%d/%d", turn, i);
        all[i] = keys[i];
    }
    TR__TRY(tr_store_wait(u->store, keys[(u->number + 1) % USERS], PATIENCE_MS));
    tr__store_value values[USERS];
    TR__TRY(tr__store_gather(u->store, all, USERS, PATIENCE_MS, values));
    bool right = true;
    for (int i = 0; i < USERS; i++) right = right && is_value(values[i].data, values[i].bytes, i, turn);
    tr__store_values_free(values, USERS);
    void *value;
    size_t bytes;
    TR__TRY(tr_store_get(u->store, key, &value, &bytes));
    right = right && is_value(value, bytes, u->number, turn);
    free(value);
    return right ? TR_OK : tr_fail(TR_INTERNAL, "turn %d: wrong values", turn);
}

static void *take_turns(void *argument)
{
    user *u = argument;
    for (int turn = 0; turn < TURNS && !u->failure[0]; turn++)
        if (take_turn(u, turn)) snprintf(u->failure, sizeof u->failure, "%s", tr_error_message());
    return NULL;
}

static void requests_outlast_their_connections(void **state)
{
    (void)state;
    for (int secret = 0; secret < 2; secret++) {
        TR_SCOPE;
        const char *token = secret ? "secret" : NULL;
        tr_store *server = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = token);
        proxy p;
        start(&p, tr_store_port(server), (uint64_t)secret + 1);
        tr_store *store = connect_through(&p, token);
        atomic_store(&p.flips, secret); /* in clear text nobody can tell */
        atomic_store(&p.faults, 12);
        cut_all(&p);
        user users[USERS];
        for (int i = 0; i < USERS; i++) {
            users[i] = (user){.store = store, .number = i};
            assert_int_equal(pthread_create(&users[i].thread, NULL, take_turns, &users[i]), 0);
        }
        for (int i = 0; i < USERS; i++) pthread_join(users[i].thread, NULL);
        for (int i = 0; i < USERS; i++)
            if (users[i].failure[0]) fail_msg("%s: %s", secret ? "with a token" : "in clear text", users[i].failure);
        assert_true(atomic_load(&p.faults) <= 0);
        finish(&p);
    }
}

static void *wait_for_it(void *argument)
{
    user *u = argument;
    if (tr_store_wait(u->store, "late", PATIENCE_MS)) snprintf(u->failure, sizeof u->failure, "%s", tr_error_message());
    return NULL;
}

static void a_wait_goes_on(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *server = tr_store_tcp("127.0.0.1", 0, .serve = true);
    proxy p;
    start(&p, tr_store_port(server), 1);
    user u = {.store = connect_through(&p, NULL)};
    assert_int_equal(pthread_create(&u.thread, NULL, wait_for_it, &u), 0);
    for (int i = 0; i < 3; i++) {
        usleep(30000);
        cut_all(&p);
    }
    usleep(30000);
    assert_int_equal(tr_store_set(server, "late", "", 0), TR_OK);
    pthread_join(u.thread, NULL);
    if (u.failure[0]) fail_msg("%s", u.failure);
    FAILS(TR_TIMEOUT, tr_store_wait(u.store, "never", 50), "nobody set key 'never' within 0.05 s");
    finish(&p);
}

/* ---- Requests that may not --------------------------------------------------------------------------------------- */

/* A server that takes requests, and hangs up instead of answering. */
typedef struct mute {
    int listener, port;
    atomic_int requests;
    atomic_bool over;
    pthread_t thread;
} mute;

static void *hang_up(void *argument)
{
    static const unsigned char reply[] = {1, 0, 0, 0, TR__FRAME_VERSION, TR__FRAME_REPLY, 0, 0, TR__REPLY_OK};
    mute *m = argument;
    char bytes[256];
    while (!atomic_load(&m->over)) {
        int fd = poll(&(struct pollfd){.fd = m->listener, .events = POLLIN}, 1, 1) > 0 ? accept(m->listener, NULL, NULL) : -1;
        if (fd < 0) continue;
        bool greeted = recv(fd, bytes, sizeof bytes, 0) > 0 && send(fd, reply, sizeof reply, MSG_NOSIGNAL) > 0;
        if (greeted && recv(fd, bytes, sizeof bytes, 0) > 0) atomic_fetch_add(&m->requests, 1);
        close(fd);
    }
    return NULL;
}

static void what_counts_twice_is_asked_once(void **state)
{
    (void)state;
    TR_SCOPE;
    mute m = {0};
    m.listener = listen_on_loopback(&m.port);
    assert_int_equal(pthread_create(&m.thread, NULL, hang_up, &m), 0);
    int64_t sum;
    void *held;
    size_t bytes;
    tr_store *store = tr_store_tcp("127.0.0.1", m.port, .timeout_ms = 3000);
    FAILS(TR_IO, tr_store_add(store, "k", 1, &sum), "lost while asking about key 'k'");
    assert_int_equal(atomic_load(&m.requests), 1);
    FAILS(TR_IO, tr_store_compare_set(store, "k", NULL, 0, "v", 1, &held, &bytes), "lost while asking about key 'k'");
    assert_int_equal(atomic_load(&m.requests), 2);
    FAILS(TR_IO, tr_store_set(store, "k", "v", 1), "lost while asking about key 'k'");
    assert_true(atomic_load(&m.requests) >= 4);
    atomic_store(&m.over, true);
    pthread_join(m.thread, NULL);
    close(m.listener);
}

/* Nothing of a request was sent where its connection had ended before. */
static void idle_connections_may_end(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *server = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = "secret");
    proxy p;
    start(&p, tr_store_port(server), 1);
    tr_store *store = connect_through(&p, "secret");
    for (int64_t turn = 1, sum; turn <= 5; turn++) {
        assert_int_equal(tr_store_add(store, "k", 1, &sum), TR_OK);
        assert_int_equal(sum, turn);
        cut_all(&p);
    }
    finish(&p);
}

/* ---- Servers that are gone --------------------------------------------------------------------------------------- */

static void another_server_is_not_asked(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *first = tr_store_tcp("127.0.0.1", 0, .serve = true), *second = tr_store_tcp("127.0.0.1", 0, .serve = true);
    proxy p;
    start(&p, tr_store_port(first), 1);
    user u = {.store = connect_through(&p, NULL)};
    assert_int_equal(tr_store_set(u.store, "k", "v", 1), TR_OK);
    assert_int_equal(tr_store_set(second, "late", "", 0), TR_OK);
    assert_int_equal(pthread_create(&u.thread, NULL, wait_for_it, &u), 0);
    usleep(30000);
    atomic_store(&p.to, tr_store_port(second));
    cut_all(&p);
    pthread_join(u.thread, NULL);
    bool told = strstr(u.failure, "lost while asking about key 'late'") || strstr(u.failure, "another one serves there");
    if (!told) fail_msg("the wait says '%s'", u.failure);
    void *value;
    size_t bytes;
    FAILS(TR_IO, tr_store_get(u.store, "k", &value, &bytes), "its server is gone, and another one serves there");
    finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_outlast_their_connections),
        cmocka_unit_test(a_wait_goes_on),
        cmocka_unit_test(what_counts_twice_is_asked_once),
        cmocka_unit_test(idle_connections_may_end),
        cmocka_unit_test(another_server_is_not_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
