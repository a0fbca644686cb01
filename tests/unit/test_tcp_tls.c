/*
 * Groups over TCP whose connections are encrypted: the same results, nothing readable on the wire, and who lacks the
 * token stays outside. Between two ranks stands a third party, who hears everything and may change it.
 */
#include "comm/group/group.h"
#include "comm/transport/tcp.h"
#include "comm_trials.h"
#include "sockets.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static const char token[] = "a secret of the test's";

/* ---- The same results --------------------------------------------------------------------------------------------- */

static void every_collective_over_tls(void **state)
{
    (void)state;
    for (int k = 0; k < TR_COLLECTIVE_COUNT; k++) {
        tr_collective_kind kind = k;
        if (kind == TR_SEND || kind == TR_RECV) continue;
        for (int world = 2; world <= 3; world++) run_tls(NULL, world, try_kind, &kind);
    }
}

static void large_ones_over_tls(void **state)
{
    (void)state;
    run_tls(NULL, 2, reduce_large, NULL);
    run_tls(NULL, 4, reduce_large, NULL);
    run_tls(NULL, 3, reduce_all_types, NULL);
}

/* One group in the clear and one through TLS, side by side: the same bits. */
static void compare_with_clear(rank *r)
{
    enum { COUNT = 300007 };
    tr_group *clear = tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .name = "clear",
        .timeout_ms = JOIN_MS, .transport = r->transport);
    OK(tr_status_of(clear));
    float *x = malloc(COUNT * sizeof *x), *y = malloc(COUNT * sizeof *y);
    CHECK(x && y);
    for (int n = 1; n <= COUNT; n *= 67) {
        for (int i = 0; i < n; i++) x[i] = y[i] = 1 / (float)(i + 3 * r->number + 1);
        tr_work *posted = tr_all_reduce_async(r->group, x, n);
        OK(tr_all_reduce(clear, y, n));
        OK(tr_wait(posted));
        CHECK(memcmp(x, y, (size_t)n * sizeof *x) == 0);
    }
    free(x);
    free(y);
    OK(tr_leave(clear));
    OK(tr_leave(r->group));
}

static void the_same_bits_as_in_the_clear(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) run_tls(NULL, world, compare_with_clear, NULL);
}

static void messages_over_tls(void **state)
{
    (void)state;
    run_tls(NULL, 2, cross, NULL);
    run_tls(NULL, 3, cross, NULL);
    run_tls(NULL, 4, pass_on, NULL);
}

static void several_hosts_over_tls(void **state)
{
    (void)state;
    static const int hosts[] = {0, 1, 1, 0, 0};
    for (int k = 0; k < TR_COLLECTIVE_COUNT; k++) {
        tr_collective_kind kind = k;
        if (kind != TR_SEND && kind != TR_RECV) run_tls(hosts, 5, try_kind, &kind);
    }
    run_tls(hosts, 5, pass_on, NULL);
}

static void what_goes_wrong_over_tls(void **state)
{
    (void)state;
    static const int hosts[] = {0, 0, 1};
    run_tls(NULL, 3, stay_away, NULL);
    run_tls(NULL, 3, leave_early, NULL);
    run_tls(hosts, 3, stay_away, NULL);
}

/* ---- Who may come in ---------------------------------------------------------------------------------------------- */

static void wish_apart(rank *r)
{
    TR_SCOPE;
    tr_group *g = tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .name = "apart",
        .transport = "tcp", .encrypt = r->number == 1);
    CHECK(tr_status_of(g) == TR_MISMATCH);
    SAYS("rank 1 (on host ");
    SAYS("is to encrypt its connections and rank ");
    SAYS(".encrypt or TRIREME_ENCRYPT");
    OK(tr_leave(r->group));
}

static void all_ranks_must_wish_for_it(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) run_tls(NULL, world, wish_apart, NULL);
}

static void refuse(tr_group *group, tr_status wanted, const char *words)
{
    assert_int_equal(tr_status_of(group), wanted);
    if (!strstr(tr_error_message(), words)) fail_msg("'%s' does not say '%s'", tr_error_message(), words);
}

static void it_needs_a_token_and_a_wire_of_ours(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    refuse(tr_join(.store = store, .world_size = 2, .encrypt = true), TR_AUTH, "set TRIREME_TOKEN");
    refuse(tr_join(.store = store, .world_size = 2, .encrypt = true, .backend = "mpi"), TR_UNSUPPORTED,
        "the backend 'mpi' does not encrypt");
    setenv("TRIREME_ENCRYPT", "yes", 1);
    refuse(tr_join(.store = store, .world_size = 2), TR_INVALID, "TRIREME_ENCRYPT=yes is neither 0 nor 1");
    setenv("TRIREME_ENCRYPT", "1", 1);
    refuse(tr_join(.store = store, .world_size = 2), TR_AUTH, "set TRIREME_TOKEN");
    unsetenv("TRIREME_ENCRYPT");
}

/* A key of the ranks' own where they meet in a file. */
static void *join_by_file(void *arg)
{
    TR_SCOPE;
    rank *r = arg;
    float x = 1;
    tr_group *g = tr_join(.init = r->arg, .rank = r->number, .world_size = 2, .token = token, .encrypt = true,
        .transport = "tcp", .timeout_ms = JOIN_MS);
    snprintf(r->failure, sizeof r->failure, "%s", tr_status_of(g) == TR_OK && tr_all_reduce(g, &x, 1) == TR_OK &&
        tr_leave(g) == TR_OK && x == 2 ? "" : tr_error_message());
    return NULL;
}

static void ranks_that_meet_in_a_file_have_a_key(void **state)
{
    (void)state;
    char name[] = "file:///tmp/trireme-test-XXXXXX";
    rank ranks[2];
    pthread_t threads[2];
    int fd = mkstemp(name + strlen("file://"));
    assert_true(fd >= 0);
    close(fd);
    for (int i = 0; i < 2; i++) {
        ranks[i] = (rank){.number = i, .arg = name};
        assert_int_equal(pthread_create(&threads[i], NULL, join_by_file, &ranks[i]), 0);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    unlink(name + strlen("file://"));
    for (int i = 0; i < 2; i++)
        if (ranks[i].failure[0]) fail_msg("%s", ranks[i].failure);
}

/* ---- Between two ranks -------------------------------------------------------------------------------------------- */

enum { PATIENCE_S = 20, ENDS = 1 + 2 * TR__CHANNELS };

/* Rank 0's record leads rank 1 here, and each of its connections on to rank 0. */
typedef struct eavesdropper {
    int listener, port; /* where rank 0 listens */
    atomic_bool damages; /* changes the next byte that comes by */
    bool heard;          /* the secret */
    pthread_t thread;
} eavesdropper;

static const char secret[] = "what nobody but the ranks may read";

static bool pass(eavesdropper *e, int from, int to)
{
    char bytes[8192];
    ssize_t got = recv(from, bytes, sizeof bytes, 0);
    if (got <= 0) {
        shutdown(to, SHUT_WR);
        return false;
    }
    e->heard |= memmem(bytes, (size_t)got, secret, sizeof secret / 2) != NULL;
    if (atomic_exchange(&e->damages, false)) bytes[got - 1] ^= 1;
    return send(to, bytes, (size_t)got, MSG_NOSIGNAL) == got;
}

static void *eavesdrop(void *arg)
{
    eavesdropper *e = arg;
    struct pollfd ends[ENDS] = {{.fd = e->listener, .events = POLLIN}}; /* then pairs: rank 1's end, rank 0's */
    int fds[ENDS], count = 1;
    for (int open = 1; open > 0 && poll(ends, (nfds_t)count, PATIENCE_S * 1000) > 0;) {
        for (int i = 1; i < count; i++) {
            if (ends[i].fd < 0 || !ends[i].revents || pass(e, fds[i], fds[((i - 1) ^ 1) + 1])) continue;
            ends[i].fd = -1;
            open--;
        }
        if (!ends[0].revents) continue;
        int caller = accept(e->listener, NULL, NULL);
        if (caller < 0 || count == ENDS) { /* no more will come */
            ends[0] = (struct pollfd){.fd = -1};
            open--;
            continue;
        }
        fds[count] = caller;
        fds[count + 1] = call_loopback(e->port);
        for (int end = 0; end < 2; end++, count++) ends[count] = (struct pollfd){.fd = fds[count], .events = POLLIN};
        open += 2;
    }
    for (int i = 1; i < count; i++) close(fds[i]);
    return NULL;
}

typedef struct talk {
    tr_store *store;
    bool encrypt, damages;
    eavesdropper between;
    rank ranks[2];
    pthread_t threads[2];
    tr_status status[2];
} talk;

/* Rank 0 uses a connection when rank 1 has made it, as that one's leads past the eavesdropper. */
static void await_wire(const rank *r, tr__channel channel)
{
    struct tr__shm *shm;
    tr__tcp *tcp;
    tr__native_transports(r->group->state, &shm, &tcp);
    for (int ms = 0; r->number == 0 && ms < 1000 * PATIENCE_S && !tr__tcp_wire(tcp, 1, channel); ms++) usleep(1000);
}

/* What rank 0 says over both connections that carry data. */
static tr_status say_secret(talk *t, rank *r)
{
    char words[sizeof secret] = "";
    if (r->number == 0) strcpy(words, secret);
    await_wire(r, TR__DATA_CHANNEL);
    tr_status status = tr_barrier(r->group);
    if (t->damages && r->number == 0) atomic_store(&t->between.damages, true);
    if (status == TR_OK) status = tr_broadcast(r->group, words, sizeof words, .dtype = TR_U8);
    for (int turn = 0; t->damages && status == TR_OK && turn < 100000; turn++) status = tr_barrier(r->group);
    if (status == TR_OK) await_wire(r, TR__P2P_CHANNEL);
    if (status == TR_OK && r->number == 0) status = tr_send(r->group, secret, sizeof secret, .dtype = TR_U8, .peer = 1);
    if (status == TR_OK && r->number == 1) status = tr_recv(r->group, words, sizeof words, .dtype = TR_U8, .peer = 0);
    if (status == TR_OK) status = tr_barrier(r->group);
    if (status == TR_OK) status = tr_leave(r->group);
    return status;
}

static void *talk_thread(void *arg)
{
    TR_SCOPE;
    rank *r = arg;
    talk *t = (talk *)r->arg;
    r->group = tr_join(.store = t->store, .rank = r->number, .world_size = 2, .timeout_ms = PATIENCE_S * 1000,
        .transport = "tcp", .encrypt = t->encrypt);
    t->status[r->number] = tr_status_of(r->group);
    if (t->status[r->number] == TR_OK) t->status[r->number] = say_secret(t, r);
    snprintf(r->failure, sizeof r->failure, "%s", tr_error_message());
    return NULL;
}

static void start_rank(talk *t, int number)
{
    t->ranks[number] = (rank){.number = number, .arg = t};
    assert_int_equal(pthread_create(&t->threads[number], NULL, talk_thread, &t->ranks[number]), 0);
}

/* Starts rank 0, and the eavesdropper as soon as its record is published; that then leads to the eavesdropper. Returns where rank 0 is. */
static int begin_talk(talk *t, char cookie[33])
{
    int port = 0, own_port;
    char changed[1024], *record, *tcp;
    size_t bytes;
    t->between.listener = listen_on_loopback(&own_port);
    start_rank(t, 0);
    assert_int_equal(tr_store_get(t->store, "group/world/endpoint/1/0", (void **)&record, &bytes), TR_OK);
    tcp = strstr(record, " tcp 127.0.0.1:");
    assert_true(tcp && sscanf(tcp, " tcp 127.0.0.1:%d cookie %32s", &port, cookie) == 2);
    snprintf(changed, sizeof changed, "%.*s tcp 127.0.0.1:%d%s", (int)(tcp - record), record, own_port,
        strstr(tcp, " cookie "));
    assert_int_equal(tr_store_set(t->store, "group/world/endpoint/1/0", changed, strlen(changed)), TR_OK);
    free(record);
    t->between.port = port;
    assert_int_equal(pthread_create(&t->between.thread, NULL, eavesdrop, &t->between), 0);
    return port;
}

static void end_talk(talk *t)
{
    start_rank(t, 1);
    for (int i = 0; i < 2; i++) pthread_join(t->threads[i], NULL);
    shutdown(t->between.listener, SHUT_RDWR);
    pthread_join(t->between.thread, NULL);
    close(t->between.listener);
}

static void check_talk(const talk *t)
{
    for (int i = 0; i < 2; i++)
        if (t->status[i] != TR_OK) fail_msg("rank %d: %s", i, t->ranks[i].failure);
}

static void nothing_can_be_read_on_the_wire(void **state)
{
    (void)state;
    TR_SCOPE;
    char cookie[33];
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        talk t = {.store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = token), .encrypt = encrypt};
        begin_talk(&t, cookie);
        end_talk(&t);
        check_talk(&t);
        assert_int_equal(t.between.heard, !encrypt); /* that it can be heard at all, shows the first */
    }
}

static void what_was_changed_on_the_way_is_an_error(void **state)
{
    (void)state;
    TR_SCOPE;
    char cookie[33];
    talk t = {.store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = token), .encrypt = true, .damages = true};
    begin_talk(&t, cookie);
    end_talk(&t);
    bool found = false;
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(t.status[i], TR_OK);
        found |= t.status[i] == TR_FORMAT && strstr(t.ranks[i].failure, "does not decrypt");
    }
    if (!found) fail_msg("'%s' and '%s'", t.ranks[0].failure, t.ranks[1].failure);
}

/* ---- Strangers ---------------------------------------------------------------------------------------------------- */

enum { CLEAR, OTHER_KEY, HALF, GARBAGE, SILENT, STRANGERS };

static size_t client_hello(const char *key_of, char *bytes, size_t most)
{
    tr__tls_key *key;
    char *said;
    assert_int_equal(tr__tls_key_new(key_of, &key), TR_OK);
    tr__tls *client = tr__tls_new(key, TR__TLS_CLIENT);
    assert_true(client && tr__tls_handshake(client) == 0);
    size_t count = tr__tls_outgoing(client, &said);
    assert_true(count <= most);
    memcpy(bytes, said, count);
    tr__tls_free(client);
    tr__tls_key_unref(key);
    return count;
}

/* With the right cookie, but not through TLS; with another token; with half a handshake, garbage, and without a word. */
static void strangers_get_no_answer_and_ranks_meet(void **state)
{
    (void)state;
    TR_SCOPE;
    int fds[STRANGERS];
    char bytes[20000], cookie[33];
    talk t = {.store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = token), .encrypt = true};
    int port = begin_talk(&t, cookie);
    for (int i = 0; i < STRANGERS; i++) fds[i] = call_loopback(port);
    tr__hello hello = {.magic = TR__NETWORK_MAGIC, .version = TR__NETWORK_VERSION, .rank = 1};
    memcpy(hello.cookie, cookie, sizeof hello.cookie);
    assert_true(send(fds[CLEAR], &hello, sizeof hello, MSG_NOSIGNAL) > 0);
    size_t count = client_hello("another token", bytes, sizeof bytes);
    assert_true(send(fds[OTHER_KEY], bytes, count, MSG_NOSIGNAL) > 0);
    count = client_hello(token, bytes, sizeof bytes);
    assert_true(send(fds[HALF], bytes, count / 2, MSG_NOSIGNAL) > 0);
    memset(bytes, 0x16, sizeof bytes);
    assert_true(send(fds[GARBAGE], bytes, sizeof bytes, MSG_NOSIGNAL) > 0);
    end_talk(&t);
    check_talk(&t);
    for (int i = 0; i < STRANGERS; i++) { /* an alert at most, then the end */
        size_t said = 0;
        for (ssize_t got; (got = recv(fds[i], bytes, sizeof bytes, 0)) > 0;) said += (size_t)got;
        if (said >= sizeof hello) fail_msg("stranger %d was told %zu bytes", i, said);
        close(fds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_over_tls),
        cmocka_unit_test(large_ones_over_tls),
        cmocka_unit_test(the_same_bits_as_in_the_clear),
        cmocka_unit_test(messages_over_tls),
        cmocka_unit_test(several_hosts_over_tls),
        cmocka_unit_test(what_goes_wrong_over_tls),
        cmocka_unit_test(all_ranks_must_wish_for_it),
        cmocka_unit_test(it_needs_a_token_and_a_wire_of_ours),
        cmocka_unit_test(ranks_that_meet_in_a_file_have_a_key),
        cmocka_unit_test(nothing_can_be_read_on_the_wire),
        cmocka_unit_test(what_was_changed_on_the_way_is_an_error),
        cmocka_unit_test(strangers_get_no_answer_and_ranks_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
