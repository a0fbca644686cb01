/* Groups over TCP with threads as ranks: every collective by every algorithm, errors, and uninvited guests. */
#include "comm/algo/choice.h"
#include "comm/transport/tcp.h"
#include "comm_trials.h"

#include <inttypes.h>
#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORLD_MOST = 5 };

/* ---- Every collective by every algorithm ------------------------------------------------------------------------- */

static void every_collective_by_every_algorithm(void **state)
{
    (void)state;
    for (int k = 0; k < TR_COLLECTIVE_COUNT; k++) {
        tr_collective_kind kind = k;
        for (int a = 0; a < TR__ALGORITHM_COUNT; a++) {
            char algorithms[64];
            if (!tr__schedule_exists(kind, a)) continue;
            snprintf(algorithms, sizeof algorithms, "%s ranks 1- bytes 0- %s", tr__kind_name(kind),
                tr__algorithm_name(a));
            for (int world = 1; world <= WORLD_MOST; world++) run_tcp(world, try_kind, algorithms, &kind);
        }
    }
}

/* ---- Types and operations ---------------------------------------------------------------------------------------- */

static void every_type_and_operation(void **state)
{
    (void)state;
    static const char *const algorithms[] = {NULL, "all_reduce ranks 2- bytes 0- ring",
        "all_reduce ranks 2- bytes 0- halving", "all_reduce ranks 2- bytes 0- tree"};
    for (int world = 1; world <= WORLD_MOST; world += 2)
        for (int a = 0; a < 4; a++) run_tcp(world, reduce_all_types, algorithms[a], NULL);
}

/* ---- Large data, the same bits ------------------------------------------------------------------------------------ */

static void large_buffers_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    static const char *const names[] = {"ring", "halving", "doubling", "tree", "direct"};
    for (int a = 0; a < 5; a++) {
        char algorithms[64];
        snprintf(algorithms, sizeof algorithms, "all_reduce ranks 1- bytes 0- %s", names[a]);
        run_tcp(2 + a % 2, reduce_large, algorithms, NULL);
        run_tcp(5 - a % 2, reduce_large, algorithms, NULL);
    }
}

static void collectives_work_in_place(void **state)
{
    (void)state;
    for (int world = 1; world <= WORLD_MOST; world++) {
        run_tcp(world, meet_in_place, NULL, NULL);
        run_tcp(world, meet_in_place, "reduce_scatter ranks 2- bytes 0- ring; all_gather ranks 2- bytes 0- ring", NULL);
    }
}

static void nobody_leaves_a_barrier_early(void **state)
{
    (void)state;
    for (int world = 1; world <= WORLD_MOST; world++) {
        atomic_int board[WORLD_MOST] = {0};
        run_tcp(world, meet, NULL, board);
    }
}

static void ranks_send_to_each_other(void **state)
{
    (void)state;
    for (int world = 3; world <= WORLD_MOST; world++) run_tcp(world, pass_on, NULL, NULL);
}

static void messages_cross(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) run_tcp(world, cross, NULL, NULL);
}

static void wait_for_nothing(rank *r)
{
    float x[4];
    if (r->number == 0) {
        CHECK(tr_recv(r->group, x, 4, .peer = 1, .timeout_ms = 200) == TR_TIMEOUT);
        SAYS("recv (f32[4] from rank 1");
        SAYS("waited 0.2 s for rank 1");
    } else {
        CHECK(tr_recv(r->group, x, 4, .peer = 0) != TR_OK);
    }
    CHECK(tr_barrier(r->group) != TR_OK);
    SAYS("is broken");
}

static void leave_a_receiver(rank *r)
{
    float x[4];
    if (r->number == 1) {
        OK(tr_leave(r->group));
        return;
    }
    CHECK(tr_recv(r->group, x, 4, .peer = 1) == TR_PEER);
    SAYS("rank 1");
    SAYS("recv (f32[4] from rank 1");
}

static void receives_without_sends_are_errors(void **state)
{
    (void)state;
    run_tcp(2, wait_for_nothing, NULL, NULL);
    run_tcp(2, leave_a_receiver, NULL, NULL);
}

/* ---- What goes wrong --------------------------------------------------------------------------------------------- */

typedef tr_status (*act)(rank *r);

static tr_status reduce_4(rank *r)
{
    static _Thread_local float x[8];
    return tr_all_reduce(r->group, x, 4);
}

static tr_status reduce_5(rank *r)
{
    static _Thread_local float x[8];
    return tr_all_reduce(r->group, x, 5);
}

static tr_status max_4(rank *r)
{
    static _Thread_local float x[8];
    return tr_all_reduce(r->group, x, 4, .op = TR_MAX);
}

static tr_status wait_at_barrier(rank *r)
{
    return tr_barrier(r->group);
}

/* Everyone waits for the next rank to broadcast: no byte is on its way. */
static tr_status broadcast_by_next(rank *r)
{
    static _Thread_local float x[8];
    return tr_broadcast(r->group, x, 4, .root = (r->number + 1) % r->world);
}

static tr_status broadcast_by_last(rank *r)
{
    static _Thread_local float x[8];
    return tr_broadcast(r->group, x, 4, .root = r->world - 1);
}

/* The last rank does the second, the others the first. */
typedef struct dispute {
    act most, last;
    const char *words[2];
} dispute;

static void differ(rank *r)
{
    const dispute *d = r->arg;
    OK(tr_barrier(r->group));
    tr_status status = (r->number == r->world - 1 ? d->last : d->most)(r);
    for (int turn = 0; turn < 3 && status == TR_OK; turn++) status = tr_barrier(r->group); /* who only sends */
    CHECK(status == TR_MISMATCH);
    SAYS("different calls");
    SAYS(d->words[0]);
    SAYS(d->words[1]);
    CHECK(tr_barrier(r->group) == TR_MISMATCH);
    SAYS("is broken");
}

static void different_calls_are_an_error_everywhere(void **state)
{
    (void)state;
    static const dispute disputes[] = {
        {reduce_4, reduce_5, {"all_reduce #2", "f32[5]"}},
        {reduce_4, max_4, {"sum of", "max of"}},
        {reduce_4, wait_at_barrier, {"all_reduce #2", "barrier #2"}},
        {reduce_4, broadcast_by_last, {"all_reduce #2", "broadcast #2"}},
        {broadcast_by_next, broadcast_by_next, {"broadcast #2", "from rank"}},
    };
    for (size_t d = 0; d < sizeof disputes / sizeof *disputes; d++)
        for (int world = 2; world <= 4; world++) run_tcp(world, differ, NULL, &disputes[d]);
}

static void send_wrong(rank *r)
{
    float x[8] = {0};
    tr_status status = r->number == 0 ? tr_send(r->group, x, 4, .peer = 1, .tag = 3)
                                      : tr_recv(r->group, x, 5, .peer = 0, .tag = 3);
    if (r->number == 0 && status == TR_OK) status = tr_barrier(r->group); /* a short message is sent at once */
    CHECK(status == TR_MISMATCH);
    SAYS("f32[4]");
    SAYS("f32[5]");
}

static void what_is_sent_must_be_what_is_expected(void **state)
{
    (void)state;
    run_tcp(2, send_wrong, NULL, NULL);
}

static void a_rank_that_stays_away_is_a_timeout(void **state)
{
    (void)state;
    for (int world = 2; world <= WORLD_MOST; world++) run_tcp(world, stay_away, "all_reduce ranks 2- bytes 0- ring", NULL);
}

static void a_rank_that_leaves_early_is_an_error(void **state)
{
    (void)state;
    run_tcp(2, leave_early, NULL, NULL);
    run_tcp(3, leave_early, NULL, NULL);
}

static void drop_the_group(rank *r)
{
    float x[4] = {0};
    if (r->number == 1) { /* posts work that cannot end, and its scope drops the group */
        tr_all_reduce_async(r->group, x, 4);
        usleep(50000);
        return;
    }
    usleep(100000);
    CHECK(tr_barrier(r->group) == TR_PEER);
    SAYS("rank 1 gave up group 'world'");
}

static void a_group_that_is_dropped_gives_up_its_work(void **state)
{
    (void)state;
    run_tcp(2, drop_the_group, NULL, NULL);
}

/* The ranks' tables differ: found as they join. How a table is written makes no difference. */
static void choose_apart(rank *r)
{
    TR_SCOPE;
    tr_group *g = tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .name = "together",
        .transport = "tcp", .algorithms = r->number ? "barrier ranks 2- bytes 0- doubling" :
            "# as built in\n barrier  ranks 2-2147483647 bytes 0-\tdoubling ;");
    OK(tr_status_of(g));
    OK(tr_leave(g));
    g = tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .name = "apart",
        .transport = "tcp", .algorithms = r->number ? "all_reduce ranks 2- bytes 0- ring" : NULL);
    CHECK(tr_status_of(g) == TR_MISMATCH);
    SAYS("rank 0 (on host ");
    SAYS("rank 1 (on host ");
    SAYS("have different tables of algorithms");
}

static void tables_must_agree(void **state)
{
    (void)state;
    run_tcp(2, choose_apart, NULL, NULL);
}

static void refuse(const char *transport, const char *address, const char *algorithms, tr_status wanted,
    const char *words)
{
    TR_SCOPE;
    tr_group *g = tr_join(.store = tr_store_memory(), .rank = 0, .world_size = 2, .timeout_ms = 100,
        .transport = transport, .address = address, .algorithms = algorithms);
    assert_int_equal(tr_status_of(g), wanted);
    if (!strstr(tr_error_message(), words)) fail_msg("'%s' does not say '%s'", tr_error_message(), words);
}

static void wrong_options_are_errors(void **state)
{
    (void)state;
    refuse("pigeon", NULL, NULL, TR_INVALID, "'shm' and 'tcp'");
    refuse("tcp", "no such interface", NULL, TR_INVALID, "neither an IP address nor a network interface");
    refuse("tcp", "10.1.2.3", NULL, TR_AUTH, "TRIREME_TOKEN");
    refuse("tcp", NULL, "all_reduce by magic", TR_INVALID, "'all_reduce by magic' is no row");
    refuse("tcp", NULL, "all_to_all ranks 2- bytes 0- ring", TR_INVALID, "no all_to_all by 'ring'");
    refuse("tcp", NULL, "all_reduce ranks 4-2 bytes 0- ring", TR_INVALID, "is no row: '4-2' are no ranks");
    refuse("tcp", NULL, "all_reduce ranks 2- bytes 0-1T ring", TR_INVALID, "is no row: '0-1T' are no bytes");
    refuse("tcp", NULL, "all_add ranks 2- bytes 0- ring", TR_INVALID, "is no row: there is no collective 'all_add'");
    refuse("tcp", NULL, "network latency_ns 5 overhead_ns 1", TR_INVALID, "a network is written 'network latency_ns");
    refuse("tcp", NULL, "@no/such/table", TR_IO, "the table of algorithms no/such/table: No such file");
    refuse("tcp", NULL, NULL, TR_TIMEOUT, "rank 1 did not join");
}

/* ---- The table ----------------------------------------------------------------------------------------------------- */

static void tables_are_printed_as_they_are_read(void **state)
{
    (void)state;
    tr__choice_table a, b;
    char text[TR__CHOICES_TEXT], again[TR__CHOICES_TEXT];
    assert_int_equal(tr__choice_read(&a, "all_reduce ranks 2-16 bytes 1000-64K tree\n;broadcast ranks 3 bytes 0-1G ring"
        "# for three\n network latency_ns 1 overhead_ns 2 mbytes_per_s 3 copy_mbytes_per_s 0 fold_mbytes_per_s 5", NULL),
        TR_OK);
    assert_int_equal(tr__choose(&a, TR_ALL_REDUCE, 4, 65536), TR__TREE);
    assert_int_equal(tr__choose(&a, TR_ALL_REDUCE, 4, 65537), TR__DOUBLING);
    assert_int_equal(tr__choose(&a, TR_ALL_REDUCE, 4, 999), TR__DOUBLING);
    assert_int_equal(tr__choose(&a, TR_BROADCAST, 3, 1 << 30), TR__RING);
    tr__choice_text(&a, text);
    assert_non_null(strstr(text, "all_reduce ranks 2-16 bytes 1000-64K tree\nbroadcast ranks 3 bytes 0-1G ring\n"));
    assert_non_null(strstr(text, "\nnetwork latency_ns 1 overhead_ns 2 mbytes_per_s 3 copy_mbytes_per_s 0 "
        "fold_mbytes_per_s 5\n"));
    assert_int_equal(tr__choice_read(&b, text, NULL), TR_OK);
    assert_string_equal(tr__choice_text(&b, again), text);
    assert_true(tr__choice_digest(&a) == tr__choice_digest(&b));
    assert_int_equal(tr__choice_read(&b, "all_reduce ranks 2-16 bytes 1000-64K ring", NULL), TR_OK);
    assert_true(tr__choice_digest(&a) != tr__choice_digest(&b));
    for (int kind = 0; kind < TR_COLLECTIVE_COUNT; kind++) /* every collective has a schedule */
        for (int world = 2; world < 5000 && !tr__kind_of(kind)->point_to_point; world += world)
            for (int64_t bytes = 0; bytes < (int64_t)1 << 40; bytes = bytes * 4 + 1)
                assert_true(tr__schedule_exists(kind, tr__choose(&a, kind, world, bytes)));
}

static void a_table_for_one_world_size_chooses_alike(void **state)
{
    (void)state;
    tr__choice_table all, some;
    for (int world = 2; world <= 40; world++) {
        assert_int_equal(tr__choice_read(&all, "all_reduce ranks 4-9 bytes 1K-64K tree", NULL), TR_OK);
        some = all;
        tr__choice_keep(&some, world);
        assert_true(some.count < all.count);
        for (int kind = 0; kind < TR_COLLECTIVE_COUNT; kind++)
            for (int64_t bytes = 0; bytes < (int64_t)1 << 40; bytes = bytes * 2 + 1)
                assert_int_equal(tr__choose(&some, kind, world, bytes), tr__choose(&all, kind, world, bytes));
    }
}

/* Joins alone with a table in a file, of so many bytes. */
#define ROWS(text) (text), sizeof(text) - 1
static tr_status join_with_file(const char *rows, size_t bytes)
{
    char path[] = "/tmp/trireme-table-XXXXXX", given[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, rows, bytes) == (ssize_t)bytes);
    close(fd);
    snprintf(given, sizeof given, "@%s", path);
    TR_SCOPE;
    tr_group *g = tr_join(.store = tr_store_memory(), .rank = 0, .world_size = 1, .algorithms = given);
    tr_status status = tr_status_of(g);
    unlink(path);
    return status;
}

static void expect_file(const char *rows, size_t bytes, tr_status wanted, const char *words)
{
    assert_int_equal(join_with_file(rows, bytes), wanted);
    if (!strstr(tr_error_message(), words)) fail_msg("'%s' does not say '%s'", tr_error_message(), words);
}

static void a_table_may_be_a_file(void **state)
{
    (void)state;
    static char large[(1 << 20) + 1];
    memset(large, '\n', sizeof large);
    assert_int_equal(join_with_file(ROWS("")), TR_OK);
    assert_int_equal(join_with_file(ROWS("# all\r\nall_reduce ranks 2- bytes 0- ring # as rings\r\n")), TR_OK);
    assert_int_equal(join_with_file(large, sizeof large - 1), TR_OK);
    expect_file(large, sizeof large, TR_FORMAT, "it has more than a megabyte");
    expect_file(ROWS("barrier\0"), TR_FORMAT, "there is a byte of 0 in it");
    expect_file(ROWS("\n# x;y\n barrier ranks 2- bytes 0- rings\n"), TR_INVALID,
        ", line 3: 'barrier ranks 2- bytes 0- rings': there is no barrier by 'rings'");
    memset(large, 'x', 1000);
    expect_file(large, 1000, TR_INVALID, ", line 1: 'xxx");
    expect_file(ROWS("network latency_ns 1 overhead_ns 2 mbytes_per_s 0 copy_mbytes_per_s 0 fold_mbytes_per_s 0"), TR_INVALID,
        "mbytes_per_s '0' is no whole number from 1 to 1000000000000");
    char *many = malloc(400 * 64), *at = many;
    for (int i = 0; i < 400; i++) at += sprintf(at, "all_reduce ranks %d bytes 0- ring\n", i + 2);
    expect_file(many, (size_t)(at - many), TR_INVALID, ", line 321: the table of algorithms has more than 320 rows");
    free(many);
}

/* ---- Uninvited ----------------------------------------------------------------------------------------------------- */

static int knock(const char *address)
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

/* What rank 0's card says. */
static bool read_card_0(tr_store *store, char address[80], char cookie[33])
{
    void *card;
    size_t bytes;
    if (tr_store_get(store, "group/world/card/1/0", &card, &bytes) != TR_OK) return false;
    const char *tcp = strstr(card, " tcp ");
    bool found = tcp && sscanf(tcp, " tcp %79s cookie %32s", address, cookie) == 2;
    free(card);
    return found;
}

static bool hangs_up(int fd)
{
    char bytes[256];
    return recv(fd, bytes, sizeof bytes, 0) <= 0;
}

static tr__tcp_hello false_hello(int number, int lane, const char *cookie)
{
    tr__tcp_hello hello = {.magic = TR__TCP_MAGIC, .version = TR__TCP_VERSION, .rank = number, .lane = lane};
    memcpy(hello.cookie, cookie, strlen(cookie) + 1);
    return hello;
}

/* Rank 1 knocks as a stranger before it joins: with garbage, a wrong cookie, half a hello, a wrong rank with the right
 * cookie, another version, and without a word. None gets an answer, and the ranks join all the same. */
static void intrude(rank *r)
{
    enum { STRANGERS = 6 };
    char address[80], cookie[33], garbage[1000];
    int fds[STRANGERS];
    CHECK(read_card_0(r->store, address, cookie));
    for (int i = 0; i < STRANGERS; i++) CHECK((fds[i] = knock(address)) >= 0);
    memset(garbage, 'x', sizeof garbage);
    tr__tcp_hello liar = false_hello(1, 0, "0123456789abcdef0123456789abcdef"), stranger = false_hello(7, 0, cookie),
                  newer = false_hello(1, 0, cookie), half = false_hello(1, 1, cookie);
    newer.version++;
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

/* ---- A rank that does not keep to the rules ------------------------------------------------------------------------ */

/* A rank 1 by hand: it has the cookie, so it comes in; then it sends `bytes` on a lane and closes. */
typedef struct rogue {
    tr_store *store;
    int lane;
    const void *bytes;
    size_t size;
    bool failed;
} rogue;

static void *be_rogue(void *arg)
{
    rogue *g = arg;
    char address[80], cookie[33], card[600];
    int fds[TR__TCP_LANES];
    tr__choice_table table;
    g->failed = tr__choice_read(&table, NULL, NULL) != TR_OK;
    snprintf(card, sizeof card, "trireme-card 3 rank 1 of 2 pid 1 in 0 host h machine m address - cookie %032d tcp "
        "127.0.0.1:1 cookie %032d table %" PRIx64, 0, 0, tr__choice_digest(&table));
    g->failed |= tr_store_set(g->store, "group/world/card/1/1", card, strlen(card)) != TR_OK ||
                !read_card_0(g->store, address, cookie);
    if (g->failed) return NULL;
    for (int lane = 0; lane < TR__TCP_LANES; lane++) {
        tr__tcp_hello hello = false_hello(1, lane, cookie), answer;
        memcpy(hello.address, "127.0.0.1:1", 12);
        fds[lane] = knock(address);
        g->failed |= fds[lane] < 0 || send(fds[lane], &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello ||
                     recv(fds[lane], &answer, sizeof answer, MSG_WAITALL) != (ssize_t)sizeof answer;
    }
    if (!g->failed && g->size) g->failed = send(fds[g->lane], g->bytes, g->size, MSG_NOSIGNAL) < 0;
    if (!g->failed) shutdown(fds[g->lane], SHUT_WR); /* a frame that is cut off is at its end */
    while (!g->failed && !hangs_up(fds[TR__TCP_DATA_LANE])) continue;
    for (int lane = 0; lane < TR__TCP_LANES; lane++) close(fds[lane]);
    return NULL;
}

static void meet_rogue(int lane, const void *bytes, size_t size, tr_status wanted, const char *words)
{
    TR_SCOPE;
    rogue g = {.store = tr_store_memory(), .lane = lane, .bytes = bytes, .size = size};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, be_rogue, &g), 0);
    tr_group *group = tr_join(.store = g.store, .rank = 0, .world_size = 2, .timeout_ms = 20000, .transport = "tcp");
    tr_status status = tr_status_of(group);
    char text[1024];
    snprintf(text, sizeof text, "%s", tr_error_message());
    pthread_join(thread, NULL);
    if (g.failed) fail_msg("%s", text);
    if (status != wanted || !strstr(text, words)) fail_msg("'%s' (%s) is not '%s'", text, tr_status_name(status), words);
}

static void frames_are_checked(void **state)
{
    (void)state;
    char garbage[300];
    memset(garbage, 0x5a, sizeof garbage);
    tr__tcp_frame good = {.magic = TR__TCP_MAGIC, .version = TR__TCP_VERSION, .type = TR__TCP_DATA, .kind = TR_BARRIER,
        .algorithm = TR__DOUBLING};
    for (int lane = 0; lane < 2; lane++) {
        meet_rogue(lane, garbage, sizeof garbage, TR_FORMAT, "damaged");
        meet_rogue(lane, &good, sizeof good / 2, TR_PEER, "died");
        meet_rogue(lane, NULL, 0, TR_PEER, "died");
        tr__tcp_frame bad = good;
        bad.kind = TR_COLLECTIVE_COUNT;
        meet_rogue(lane, &bad, sizeof bad, TR_FORMAT, "damaged");
        bad = good;
        bad.version++;
        meet_rogue(lane, &bad, sizeof bad, TR_FORMAT, "damaged");
    }
    tr__tcp_frame bad = good;
    bad.bytes = (uint64_t)1 << 60; /* more than the barrier's nothing */
    meet_rogue(TR__TCP_DATA_LANE, &bad, sizeof bad, TR_MISMATCH, "barrier");
    bad = good;
    bad.type = TR__TCP_BROKEN;
    bad.bytes = TR__TCP_TEXT + 1;
    meet_rogue(TR__TCP_CONTROL_LANE, &bad, sizeof bad, TR_FORMAT, "damaged");
    bad = good;
    bad.type = 99;
    meet_rogue(TR__TCP_CONTROL_LANE, &bad, sizeof bad, TR_FORMAT, "unknown type");
    bad = good;
    bad.sequence = 5;
    meet_rogue(TR__TCP_DATA_LANE, &bad, sizeof bad, TR_MISMATCH, "different calls");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_by_every_algorithm),
        cmocka_unit_test(every_type_and_operation),
        cmocka_unit_test(large_buffers_have_the_same_bits_everywhere),
        cmocka_unit_test(collectives_work_in_place),
        cmocka_unit_test(nobody_leaves_a_barrier_early),
        cmocka_unit_test(ranks_send_to_each_other),
        cmocka_unit_test(messages_cross),
        cmocka_unit_test(receives_without_sends_are_errors),
        cmocka_unit_test(different_calls_are_an_error_everywhere),
        cmocka_unit_test(what_is_sent_must_be_what_is_expected),
        cmocka_unit_test(a_rank_that_stays_away_is_a_timeout),
        cmocka_unit_test(a_rank_that_leaves_early_is_an_error),
        cmocka_unit_test(a_group_that_is_dropped_gives_up_its_work),
        cmocka_unit_test(tables_must_agree),
        cmocka_unit_test(wrong_options_are_errors),
        cmocka_unit_test(tables_are_printed_as_they_are_read),
        cmocka_unit_test(a_table_for_one_world_size_chooses_alike),
        cmocka_unit_test(a_table_may_be_a_file),
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(frames_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
