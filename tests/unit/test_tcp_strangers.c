/* Groups over TCP and who connects to their ranks: strangers, and a peer that does not keep to the rules. */
#include "base/crc32c.h"
#include "comm/algo/choice.h"
#include "comm/transport/tcp.h"
#include "comm_ranks.h"
#include "strangers.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Uninvited ----------------------------------------------------------------------------------------------------- */

static int connect_to(const char *address)
{
    char host[64];
    int port;
    struct sockaddr_in a = {.sin_family = AF_INET};
    if (sscanf(address, "%63[0-9.]:%d", host, &port) != 2) return -1;
    a.sin_port = htons((uint16_t)port);
    inet_pton(AF_INET, host, &a.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval patience = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    return -1;
}

/* What rank 0's record says. */
static bool read_record_0(tr_store *store, char address[80], char cookie[33])
{
    void *record;
    size_t bytes;
    if (tr_store_get(store, "group/world/endpoint/1/0", &record, &bytes) != TR_OK) return false;
    const char *tcp = strstr(record, " tcp ");
    bool found = tcp && sscanf(tcp, " tcp %79s cookie %32s", address, cookie) == 2;
    free(record);
    return found;
}

static bool hangs_up(int fd)
{
    char bytes[256];
    return recv(fd, bytes, sizeof bytes, 0) <= 0;
}

static tr__hello false_hello(int number, int channel, const char *cookie)
{
    tr__hello hello = {.magic = TR__NETWORK_MAGIC, .version = TR__NETWORK_VERSION, .rank = number, .channel = (int16_t)channel,
        .group = TR__FIRST_GROUP};
    memcpy(hello.cookie, cookie, strlen(cookie) + 1);
    return hello;
}

static void sum_up(tr__hello *hello)
{
    hello->sum = tr__crc32c(0, hello, offsetof(tr__hello, sum));
}

/* Rank 1 connects as a stranger before it joins: with garbage, a wrong cookie, half a hello, a wrong rank with the right
 * cookie, another version, and without a word. None gets an answer, and the ranks join all the same. */
static void intrude(rank *r)
{
    enum { STRANGERS = 6 };
    char address[80], cookie[33], garbage[1000];
    int fds[STRANGERS];
    CHECK(read_record_0(r->store, address, cookie));
    for (int i = 0; i < STRANGERS; i++) CHECK((fds[i] = connect_to(address)) >= 0);
    memset(garbage, 'x', sizeof garbage);
    tr__hello liar = false_hello(1, 0, "0123456789abcdef0123456789abcdef"), stranger = false_hello(7, 0, cookie),
                  newer = false_hello(1, 0, cookie), half = false_hello(1, 1, cookie);
    newer.version++;
    sum_up(&liar), sum_up(&stranger), sum_up(&newer), sum_up(&half);
    CHECK(send(fds[0], garbage, sizeof garbage, MSG_NOSIGNAL) > 0);
    CHECK(send(fds[1], &liar, sizeof liar, MSG_NOSIGNAL) > 0);
    CHECK(send(fds[2], &stranger, sizeof stranger, MSG_NOSIGNAL) > 0);
    CHECK(send(fds[3], &newer, sizeof newer, MSG_NOSIGNAL) > 0);
    CHECK(send(fds[4], &half, sizeof half / 2, MSG_NOSIGNAL) > 0);
    TR_SCOPE;
    tr_group *g = tr_join(.store = r->store, .rank = 1, .world_size = 2, .timeout_ms = JOIN_MS, .transport = "tcp");
    OK(tr_status_of(g));
    OK(tr_barrier(g));
    for (int i = 0; i < STRANGERS; i++) CHECK(hangs_up(fds[i]));
    OK(tr_leave(g));
    for (int i = 0; i < STRANGERS; i++) close(fds[i]);
}

static void be_intruded(rank *r)
{
    TR_SCOPE;
    tr_group *g = tr_join(.store = r->store, .rank = 0, .world_size = 2, .timeout_ms = JOIN_MS, .transport = "tcp");
    OK(tr_status_of(g));
    OK(tr_barrier(g));
    OK(tr_leave(g));
}

static void *intruded_thread(void *arg)
{
    rank *r = arg;
    (r->number == 0 ? be_intruded : intrude)(r);
    return NULL;
}

static void strangers_are_turned_away(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    rank ranks[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        ranks[i] = (rank){.number = i, .world = 2, .store = store};
        assert_int_equal(pthread_create(&threads[i], NULL, intruded_thread, &ranks[i]), 0);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        if (ranks[i].failure[0]) fail_msg("%s", ranks[i].failure);
}

/* ---- Many strangers ------------------------------------------------------------------------------------------------ */

typedef struct crowded {
    tr_store *store;
    bool encrypt;
    int addresses;
    strangers crowd;
} crowded;

/* The others come when strangers have all places of rank 0, and are slow to say who they are. */
static void join_in_a_crowd(rank *r)
{
    crowded *c = (crowded *)r->arg;
    if (r->number > 0) strangers_await(&c->crowd, 600);
    TR_SCOPE;
    sends_slow_us = r->number > 0 ? 50000 : 0;
    tr_group *g = tr_join(.store = c->store, .rank = r->number, .world_size = r->world, .timeout_ms = JOIN_MS, .transport = "tcp",
        .encrypt = c->encrypt);
    sends_slow_us = 0;
    OK(tr_status_of(g));
    float x = 1;
    OK(tr_all_reduce(g, &x, 1));
    CHECK(x == (float)r->world);
    OK(tr_leave(g));
}

static void *crowded_thread(void *arg)
{
    join_in_a_crowd(arg);
    return NULL;
}

static void join_among_strangers(bool encrypt, int addresses)
{
    enum { WORLD = 3 };
    TR_SCOPE;
    char address[80], cookie[33];
    crowded c = {.encrypt = encrypt, .store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = "a secret of the test's")};
    rank ranks[WORLD];
    pthread_t threads[WORLD];
    assert_int_equal(tr_status_of(c.store), TR_OK);
    c.crowd = (strangers){.addresses = addresses, .pause_us = 1000, .most = 400,
        .first = encrypt ? TR__TLS_RECORD : (unsigned char)TR__NETWORK_MAGIC};
    for (int i = 0; i < WORLD; i++) {
        ranks[i] = (rank){.number = i, .world = WORLD, .arg = &c};
        if (i == 1) {
            bool found = read_record_0(c.store, address, cookie);
            assert_true(found && sscanf(strrchr(address, ':'), ":%d", &c.crowd.port) == 1 && strangers_start(&c.crowd));
        }
        assert_int_equal(pthread_create(&threads[i], NULL, crowded_thread, &ranks[i]), 0);
    }
    for (int i = 0; i < WORLD; i++) pthread_join(threads[i], NULL);
    strangers_stop(&c.crowd);
    for (int i = 0; i < WORLD; i++)
        if (ranks[i].failure[0]) fail_msg("%s", ranks[i].failure);
}

static void a_crowd_of_strangers_keeps_nobody_out(void **state)
{
    (void)state;
    for (int encrypt = 0; encrypt < 2; encrypt++)
        for (int addresses = 1; addresses <= 20; addresses += 19) join_among_strangers(encrypt, addresses);
}

/* ---- A rank that does not keep to the rules ------------------------------------------------------------------------ */

/* A rank 1 by hand: it has the cookie, so it comes in; before it sends data it says that it has joined. Then it sends `bytes` on a
 * channel, with their checksum, and closes. */
typedef struct rogue {
    tr_store *store;
    int channel;
    const void *bytes;
    size_t size;
    bool failed;
} rogue;

static void *be_rogue(void *arg)
{
    rogue *g = arg;
    char address[80], cookie[33], record[600];
    int fds[TR__CHANNELS];
    tr__choice_table table;
    g->failed = tr__choice_read(&table, NULL, NULL) != TR_OK;
    snprintf(record, sizeof record, "trireme-endpoint 5 version %s rank 1 of 2 pid 1 in 0 host h machine m address - cookie %032d tcp "
        "127.0.0.1:1 cookie %032d table %" PRIx64 " tls 0", tr_version(), 0, 0, tr__choice_digest(&table));
    g->failed |= tr_store_set(g->store, "group/world/endpoint/1/1", record, strlen(record)) != TR_OK ||
                !read_record_0(g->store, address, cookie);
    if (g->failed) return NULL;
    for (int channel = 0; channel < TR__CHANNELS; channel++) {
        tr__hello hello = false_hello(1, channel, cookie), answer;
        memcpy(hello.address, "127.0.0.1:1", 12);
        sum_up(&hello);
        fds[channel] = connect_to(address);
        g->failed |= fds[channel] < 0 || send(fds[channel], &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello ||
                     recv(fds[channel], &answer, sizeof answer, MSG_WAITALL) != (ssize_t)sizeof answer;
    }
    tr__checked_sender sender = {0}, control = {0};
    const tr__network_frame here = {.head = {.magic = TR__NETWORK_MAGIC, .version = TR__NETWORK_VERSION, .type = TR__FRAME_HERE,
        .origin = 1}};
    if (!g->failed && g->channel == TR__DATA_CHANNEL)
        g->failed = tr__checked_send(&control, fds[TR__CONTROL_CHANNEL], &(struct iovec){(void *)&here, sizeof here}, 1) < 0;
    if (!g->failed && g->size)
        g->failed = tr__checked_send(&sender, fds[g->channel], &(struct iovec){(void *)g->bytes, g->size}, 1) < 0;
    if (!g->failed) shutdown(fds[g->channel], SHUT_WR); /* a frame that is cut off is at its end */
    while (!g->failed && !hangs_up(fds[TR__DATA_CHANNEL])) continue;
    for (int channel = 0; channel < TR__CHANNELS; channel++) close(fds[channel]);
    return NULL;
}

static void meet_rogue(int channel, const void *bytes, size_t size, tr_status wanted, const char *words)
{
    TR_SCOPE;
    rogue g = {.store = tr_store_memory(), .channel = channel, .bytes = bytes, .size = size};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, be_rogue, &g), 0);
    tr_group *group = tr_join(.store = g.store, .rank = 0, .world_size = 2, .timeout_ms = 20000, .transport = "tcp");
    tr_status status = tr_status_of(group);
    if (status == TR_OK) status = tr_barrier(group);
    char text[1024];
    snprintf(text, sizeof text, "%s", tr_error_message());
    (void)!tr_leave(group); /* hangs up on the rogue */
    pthread_join(thread, NULL);
    if (g.failed) fail_msg("%s", text);
    if (status != wanted || !strstr(text, words)) fail_msg("'%s' (%s) is not '%s'", text, tr_status_name(status), words);
}

static void frames_are_checked(void **state)
{
    (void)state;
    char garbage[300];
    memset(garbage, 0x5a, sizeof garbage);
    tr__tcp_frame good = {.magic = TR__NETWORK_MAGIC, .version = TR__NETWORK_VERSION, .type = TR__TCP_DATA, .kind = TR_BARRIER,
        .group = TR__FIRST_GROUP, .origin = 1, .number = 1, .algorithm = TR__DOUBLING};
    for (int channel = 0; channel < 2; channel++) {
        good.sequence = (uint64_t)channel; /* data is of the first barrier */
        meet_rogue(channel, garbage, sizeof garbage, TR_FORMAT, "damaged");
        meet_rogue(channel, &good, sizeof good / 2, TR_PEER, "died");
        meet_rogue(channel, NULL, 0, TR_PEER, "died");
        tr__tcp_frame bad = good;
        bad.kind = TR_COLLECTIVE_COUNT;
        meet_rogue(channel, &bad, sizeof bad, TR_FORMAT, "damaged");
        bad = good;
        bad.version++;
        meet_rogue(channel, &bad, sizeof bad, TR_FORMAT, "damaged");
    }
    tr__tcp_frame bad = good;
    bad.bytes = (uint64_t)1 << 60; /* more than the barrier's nothing */
    meet_rogue(TR__DATA_CHANNEL, &bad, sizeof bad, TR_MISMATCH, "barrier");
    bad = good;
    bad.type = TR__TCP_BROKEN;
    bad.bytes = TR__FRAME_TEXT + 1;
    meet_rogue(TR__CONTROL_CHANNEL, &bad, sizeof bad, TR_FORMAT, "damaged");
    for (int origin = -1; origin <= 2; origin += 3) { /* of no rank */
        bad = good;
        bad.type = TR__TCP_GOODBYE;
        bad.origin = origin;
        meet_rogue(TR__CONTROL_CHANNEL, &bad, sizeof bad, TR_FORMAT, "damaged");
    }
    bad = good;
    bad.type = 99;
    meet_rogue(TR__CONTROL_CHANNEL, &bad, sizeof bad, TR_FORMAT, "unknown type");
    bad = good;
    bad.sequence = 5;
    meet_rogue(TR__DATA_CHANNEL, &bad, sizeof bad, TR_MISMATCH, "different calls");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(a_crowd_of_strangers_keeps_nobody_out),
        cmocka_unit_test(frames_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
