/* Groups over TCP with threads as ranks: every collective by every algorithm, and errors. */
#include "comm/group/group.h"
#include "comm/transport/tcp.h"
#include "comm_trials.h"
#include "together.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORLD_MOST = 5 };

static tr__tcp *tcp_of(const rank *r)
{
    struct tr__shm *shm;
    tr__tcp *tcp;
    tr__native_transports(r->group->state, &shm, &tcp);
    return tcp;
}

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

/* Empty ones behind one that comes in pieces, so that the last comes at any place in what is read at a time. */
static void send_empty(rank *r)
{
    enum { TURNS = 60, MOST = 9, BYTES = 3 << 20 };
    char *x = calloc(1, BYTES);
    CHECK(x);
    for (int turn = 0; turn < TURNS; turn++) {
        TR_SCOPE;
        tr_work *works[MOST];
        int count = MOST - turn % 2, peer = 1 - r->number;
        if (r->number == 1) usleep(2000);
        for (int i = 0; i < count; i++) {
            int64_t bytes = i ? 0 : BYTES - 50000 * turn / 3;
            works[i] = r->number ? tr_recv_async(r->group, x, bytes, .dtype = TR_U8, .peer = peer, .timeout_ms = JOIN_MS)
                                 : tr_send_async(r->group, x, bytes, .dtype = TR_U8, .peer = peer);
        }
        for (int i = 0; i < count; i++) OK(tr_wait(works[i]));
        OK(tr_barrier(r->group));
    }
    free(x);
    OK(tr_leave(r->group));
}

static void empty_messages_arrive(void **state)
{
    (void)state;
    run_tcp(2, send_empty, NULL, NULL);
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
typedef struct mismatch {
    act most, last;
    const char *words[2];
} mismatch;

static void differ(rank *r)
{
    const mismatch *d = r->arg;
    OK(pass_barrier_together(r->group, r->store));
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
    static const mismatch mismatches[] = {
        {reduce_4, reduce_5, {"all_reduce #2", "f32[5]"}},
        {reduce_4, max_4, {"sum of", "max of"}},
        {reduce_4, wait_at_barrier, {"all_reduce #2", "barrier #2"}},
        {reduce_4, broadcast_by_last, {"all_reduce #2", "broadcast #2"}},
        {broadcast_by_next, broadcast_by_next, {"broadcast #2", "from rank"}},
    };
    for (size_t d = 0; d < sizeof mismatches / sizeof *mismatches; d++)
        for (int world = 2; world <= 4; world++) run_tcp(world, differ, NULL, &mismatches[d]);
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
    while (!tr__failure_there(tcp_of(r)->failure)) usleep(1000); /* a barrier is another call */
    CHECK(tr_barrier(r->group) == TR_PEER);
    SAYS("rank 1 (pid ");
    SAYS(") gave up group 'world': the program dropped the group");
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

/* ---- Connections ------------------------------------------------------------------------------------------------- */

/* Of a rank of the first group, to how many others there is one. */
static int count_connections(const rank *r, tr__channel channel)
{
    tr__tcp *tcp = tcp_of(r);
    int count = 0;
    for (int other = 0; other < r->world; other++) count += tr__tcp_wire(tcp, other, channel) != NULL;
    return count;
}

/* Without a connection. */
static void await_others(rank *r)
{
    int64_t count = 0;
    OK(tr_store_add(r->store, "come", 1, &count));
    if (count == r->world) OK(tr_store_set(r->store, "all have come", "", 0));
    OK(tr_store_wait(r->store, "all have come", JOIN_MS));
}

/* Of 7 other ranks those of the ring: joining opens no connections for data. */
static void go_around(rank *r)
{
    enum { COUNT = 64 << 10 };
    float *data = calloc(COUNT, sizeof *data), one = (float)r->number;
    OK(tr_all_reduce(r->group, data, COUNT));
    free(data);
    CHECK(count_connections(r, TR__DATA_CHANNEL) == 2);
    await_others(r);
    CHECK(count_connections(r, TR__P2P_CHANNEL) == 0);
    OK(tr_barrier(r->group));
    if (r->number == 0) OK(tr_send(r->group, &one, 1, .peer = 5));
    if (r->number == 5) OK(tr_recv(r->group, &one, 1, .peer = 0));
    CHECK(count_connections(r, TR__P2P_CHANNEL) == (r->number == 0 || r->number == 5));
    OK(tr_leave(r->group));
}

static void ranks_connect_with_those_that_they_talk_to(void **state)
{
    (void)state;
    run_tcp(RANKS_MOST, go_around, "all_reduce ranks 2- bytes 0- ring", NULL);
}

/* ---- Many ranks ---------------------------------------------------------------------------------------------------- */

static int count_all(const rank *r)
{
    tr__tcp *tcp = tcp_of(r);
    int count = 0;
    pthread_mutex_lock(&tcp->network->lock);
    for (int other = 0; other < r->world; other++) {
        const tr__network_peer *peer = &tcp->network->peers[other];
        count += peer->control != NULL;
        for (const tr__network_connection *c = peer->connections; c; c = c->next) count++;
    }
    pthread_mutex_unlock(&tcp->network->lock);
    return count;
}

static void go_around_with_few(rank *r)
{
    enum { CONTROL = 4, RING = 2 };
    float data[1000] = {1};
    OK(tr_all_reduce(r->group, data, 1000));
    CHECK(data[0] == (float)r->world && data[999] == 0);
    CHECK(count_all(r) == CONTROL + RING);
    await_others(r);
    OK(tr_leave(r->group));
}

static void connections_grow_with_neighbours(void **state)
{
    (void)state;
    run_tcp(256, go_around_with_few, "all_reduce ranks 2- bytes 0- ring", NULL);
}

/* All with all, and then one after the other leaves, in an order that is not that of the ranks; the last two still talk. */
static void leave_one_by_one(rank *r)
{
    int64_t mine[RANKS_ROOM], theirs[RANKS_ROOM];
    int world = r->world, place = 5 * r->number % world;
    tr_group *pair = tr_group_split(r->group, place < world - 2 ? -1 : 0, place);
    for (int i = 0; i < world; i++) mine[i] = 1000 * r->number + i;
    OK(tr_all_to_all(r->group, mine, theirs, 1, .dtype = TR_I64));
    for (int i = 0; i < world; i++) CHECK(theirs[i] == 1000 * i + r->number);
    int64_t before = 0;
    while (before < place) {
        OK(tr_store_add(r->store, "left", 0, &before));
        if (before < place) usleep(1000);
    }
    if (place < world - 2) OK(tr_leave(r->group));
    OK(tr_store_add(r->store, "left", 1, &before));
    if (place < world - 2) return;
    for (int turn = 0; turn < 100; turn++) {
        mine[0] = 1;
        OK(tr_all_reduce(pair, mine, 1, .dtype = TR_I64));
        CHECK(mine[0] == 2);
    }
    CHECK(tr_all_reduce(r->group, mine, 1, .dtype = TR_I64) == TR_PEER);
    SAYS("left group 'world'");
    OK(tr_leave(pair));
}

static void many_ranks_leave_one_by_one(void **state)
{
    (void)state;
    for (int world = 9; world <= 16; world += world == 9 ? 3 : 4) run_tcp(world, leave_one_by_one, NULL, NULL);
}

/* All have joined before any call breaks the group: a join that has not returned by then would fail of the same. */
static void one_differs(rank *r)
{
    float x[4] = {0};
    int64_t there = 0;
    OK(tr_store_add(r->store, "there", 1, &there));
    while (there < r->world) {
        usleep(1000);
        OK(tr_store_add(r->store, "there", 0, &there));
    }
    tr_status status = r->number == r->world - 1 ? tr_broadcast(r->group, x, 4, .root = 3) : tr_all_reduce(r->group, x, 4);
    CHECK(status == TR_MISMATCH);
    SAYS("the ranks made different calls");
    CHECK(tr_barrier(r->group) != TR_OK);
}

static void many_ranks_find_calls_that_differ(void **state)
{
    (void)state;
    for (int world = 9; world <= 12; world += 3) run_tcp(world, one_differs, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_connect_with_those_that_they_talk_to),
        cmocka_unit_test(many_ranks_leave_one_by_one),
        cmocka_unit_test(many_ranks_find_calls_that_differ),
        cmocka_unit_test(connections_grow_with_neighbours),
        cmocka_unit_test(every_collective_by_every_algorithm),
        cmocka_unit_test(every_type_and_operation),
        cmocka_unit_test(large_buffers_have_the_same_bits_everywhere),
        cmocka_unit_test(collectives_work_in_place),
        cmocka_unit_test(nobody_leaves_a_barrier_early),
        cmocka_unit_test(ranks_send_to_each_other),
        cmocka_unit_test(messages_cross),
        cmocka_unit_test(empty_messages_arrive),
        cmocka_unit_test(receives_without_sends_are_errors),
        cmocka_unit_test(different_calls_are_an_error_everywhere),
        cmocka_unit_test(what_is_sent_must_be_what_is_expected),
        cmocka_unit_test(a_rank_that_stays_away_is_a_timeout),
        cmocka_unit_test(a_rank_that_leaves_early_is_an_error),
        cmocka_unit_test(a_group_that_is_dropped_gives_up_its_work),
        cmocka_unit_test(tables_must_agree),
        cmocka_unit_test(wrong_options_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
