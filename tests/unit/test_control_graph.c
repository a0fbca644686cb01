/*
 * More ranks than have a control connection each with each: what one says goes from neighbour to neighbour. Ranks are processes, on
 * pretended hosts: some are killed, one or a neighbourhood at once, others stopped or silent; some leave while the rest go on.
 *
 * ctest: serial
 */
#include "base/clock.h"
#include "net/network.h"
#include "processes.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 12, STRIDE = 4 };

static const setting each_its_own = {.hosts = (const int[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
static const setting encrypted = {.hosts = (const int[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, .encrypt = true};
static const setting three_in_turns = {.hosts = (const int[]){0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0}};

/* ---- Killed ------------------------------------------------------------------------------------------------------ */

static tr_status reduce_until_it_fails(rank *r)
{
    float x[1000] = {0};
    tr_status status;
    while ((status = tr_all_reduce(r->group, x, 1000)) == TR_OK) {
        atomic_fetch_add(&r->post->turns, 1);
        if (r->arg) usleep(2000); /* dies most likely outside any call */
    }
    atomic_store(&r->post->ended, tr__now_ns());
    return status;
}

static void a_killed_rank_is_named_by_all_others(void **state)
{
    (void)state;
    for (int turn = 0; turn < 12; turn++) {
        job j;
        int world = 9 + turn % 3 * 3 + turn % 2, victim = 5 * turn % world;
        const setting *s = turn % 4 == 3 ? &three_in_turns : turn % 4 == 2 ? &encrypted : &each_its_own;
        int64_t killed = kill_one_of(&j, s, world, victim, reduce_until_it_fails, turn % 2 ? &j : NULL, 300 * turn);
        for (int i = 0; i < world; i++)
            if (i != victim) check_survivor(&j, i, victim, killed, (const char *[]){"died", "", ""});
        finish(&j);
    }
}

/* Rank 0 and the one that is the farthest away from the dead go on, and split, and lose each other in the end. */
static tr_status outlive_a_neighbourhood(rank *r)
{
    static const int survivors[] = {0, 6};
    tr_group *pair = tr_group_new(r->group, survivors, 2);
    TRY(tr_status_of(pair));
    TRY(tr_barrier(r->group));
    atomic_store(&r->post->turns, 1);
    if (!pair) return tr_recv(r->group, &(float){0}, 1, .peer = 0, .timeout_ms = PATIENCE_MS);
    while (tr_barrier(r->group) == TR_OK) usleep(1000);
    SAYS("died");
    for (int turn = 0; turn < 50; turn++) {
        int64_t one = 1;
        tr_group *within = tr_group_split(pair, 0, 0);
        TRY(tr_all_reduce(within, &one, 1, .dtype = TR_I64));
        CHECK(one == 2);
        TRY(tr_leave(within));
        usleep(10000);
    }
    TRY(tr_leave(r->group));
    if (r->number == 6) raise(SIGKILL);
    CHECK(tr_recv(pair, &(float){0}, 1, .peer = 1) == TR_PEER);
    SAYS(" died");
    atomic_store(&r->post->ended, tr__now_ns());
    return TR_OK;
}

/* All neighbours of rank 0, and one that was not: who goes on finds new ones. */
static void a_neighbourhood_dies_and_others_go_on(void **state)
{
    (void)state;
    static const int victims[] = {1, WORLD - 1, STRIDE, WORLD - STRIDE, 5};
    job j;
    start_job_in(&j, &each_its_own, WORLD, outlive_a_neighbourhood, NULL);
    for (int i = 0; i < WORLD; i++) await_turns(&j, i, 1);
    for (int v = 0; v < 5; v++) kill(j.ranks[victims[v]].pid, SIGKILL);
    for (int i = 0; i < WORLD; i++) reap(&j, i);
    if (j.posts[0].status != TR_OK || !j.posts[0].ended) fail_msg("rank 0: %s", j.posts[0].text);
    for (int i = 1; i < WORLD; i++) {
        bool dead = i == 6;
        for (int v = 0; v < 5; v++) dead |= i == victims[v];
        if (!dead && j.posts[i].status != TR_PEER) fail_msg("rank %d: %s", i, j.posts[i].text);
    }
    finish(&j);
}

/* ---- Silent ------------------------------------------------------------------------------------------------------ */

enum { FILLING = 2 };

/* A listener with as many connections as it takes: who asks for another one hears nothing, as from a host that is gone. */
static void listen_without_answers(char address[TR__ADDRESS_TEXT], int sockets[1 + FILLING])
{
    tr__address a = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof a.room;
    for (int i = 0; i <= FILLING; i++) assert_true((sockets[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
    assert_int_equal(bind(sockets[0], &a.any, sizeof a.in), 0);
    assert_int_equal(listen(sockets[0], 0), 0);
    assert_int_equal(getsockname(sockets[0], &a.any, &length), 0);
    for (int i = 1; i <= FILLING; i++) (void)!connect(sockets[i], &a.any, sizeof a.in);
    assert_int_equal(tr__address_write(&a, address), TR_OK);
}

typedef struct loss {
    int last, count; /* ranks that are gone */
    tr__network_group *group;
    const char *reason; /* not NULL: the group tells its members */
} loss;

static void note_gone(void *user, int member, int error)
{
    loss *l = user;
    (void)error;
    l->last = member;
    l->count++;
    tr__network_frame frame = {.head = {.type = 1, .bytes = l->reason ? strlen(l->reason) : 0}};
    if (l->reason) tr__network_tell_all(l->group, &frame, l->reason);
}

static const tr__network_calls calls = {.gone = note_gone};

/* Rank 0 of a world, alone; a loss's group is attached. */
static tr__network_endpoint *endpoint_with(loss *l)
{
    const tr__network_options options = {.name = "g", .world_size = WORLD, .wanted = "127.0.0.1"};
    tr__network_endpoint *n;
    assert_int_equal(tr__network_new(&options, &n), TR_OK);
    assert_int_equal(tr__network_attach(n, TR__FIRST_GROUP, &calls, l, &l->group), TR_OK);
    for (int i = 0; i < WORLD; i++) l->group->members[i] = i;
    tr__network_enter(l->group, WORLD);
    return n;
}

/* For a while there is none to connect with. */
static void lack_descriptors(tr__network_endpoint *n)
{
    struct rlimit usual, low;
    int next = dup(n->listener), ready;
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    low = usual;
    low.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int turn = 0; turn < 3; turn++) (void)!tr__network_step(n, 1, &ready);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
}

/* Rank 0 is to connect with rank 1 in place of one that has died, and rank 1 is gone with its host, on which ranks 2 to 5 were,
 * too. Seconds are pretended. */
static void a_new_neighbour_that_never_answers_is_gone_with_its_host(void **state)
{
    (void)state;
    loss l = {.last = -1};
    tr__network_endpoint *n = endpoint_with(&l);
    int sockets[1 + FILLING], seconds = 0;
    n->peers[1].record.same_host = true;
    listen_without_answers(n->peers[1].record.address, sockets);
    for (int other = 2; other < WORLD; other++)
        snprintf(n->peers[other].record.address, TR__ADDRESS_TEXT, other < 6 ? "127.0.0.1:%d" : "127.0.0.11:%d", other);
    snprintf(n->peers[6].record.address, TR__ADDRESS_TEXT, "127.0.0.1:6"); /* at that address, and another host */
    snprintf(n->peers[6].record.host, sizeof n->peers[6].record.host, "behind");
    assert_int_equal(tr__network_call(n, 1, TR__CONTROL_CHANNEL, TR__FIRST_GROUP), TR_OK);
    lack_descriptors(n);
    assert_int_equal(l.count, 0);
    n->outgoing->retry = 0;
    int64_t began = tr__now_ns();
    for (int ready; seconds < 40 && !l.count; seconds++) {
        assert_int_equal(tr__network_step(n, 10, &ready), TR_OK);
        if (!n->outgoing) continue;
        n->outgoing->since -= 1000000000;
        if (n->outgoing->silent) n->outgoing->silent -= 1000000000;
    }
    assert_int_equal(l.count, 5);
    assert_int_equal(l.last, 5);
    seconds += (int)((tr__now_ns() - began + 999999999) / 1000000000); /* and real ones, where the machine has others to serve */
    assert_in_range(seconds, 15, 30); /* as long as a link may be silent, and no shorter */
    assert_null(n->outgoing);
    tr__network_detach(l.group, true);
    for (int i = 0; i <= FILLING; i++) close(sockets[i]);
}

/* Rank 1 was told that rank 0 is gone, and closes each connection once it has said hello: soon it is asked less often. */
static void a_neighbour_that_refuses_is_asked_less_and_less(void **state)
{
    (void)state;
    loss l = {.last = -1};
    tr__network_endpoint *n = endpoint_with(&l);
    int port, asked = 0, listener = listen_on_loopback(&port);
    n->peers[1].record.same_host = true;
    snprintf(n->peers[1].record.address, TR__ADDRESS_TEXT, "127.0.0.1:%d", port);
    assert_int_equal(fcntl(listener, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(tr__network_call(n, 1, TR__CONTROL_CHANNEL, TR__FIRST_GROUP), TR_OK);
    for (int64_t until = tr__now_ns() + 2 * (int64_t)1000000000; tr__now_ns() < until || asked < 2;) {
        int ready, socket;
        assert_int_equal(tr__network_step(n, 10, &ready), TR_OK);
        if ((socket = accept(listener, NULL, NULL)) < 0) continue;
        char hello[sizeof(tr__hello)];
        for (int turn = 0; turn < 1000 && recv(socket, hello, 1, MSG_DONTWAIT) != 1; turn++) {
            assert_int_equal(tr__network_step(n, 1, &ready), TR_OK);
            usleep(100);
        }
        close(socket);
        asked++;
    }
    assert_in_range(asked, 2, 15);
    assert_int_equal(l.count, 0);
    close(listener);
    tr__network_detach(l.group, true);
}

/* ---- What a neighbour is told -------------------------------------------------------------------------------------- */

/* Rank 1's end of a control connection that rank 0 has with it. */
static tr__wire connect_with_one(tr__network_endpoint *n, bool checked, tr__network_connection **control)
{
    int port, listener = listen_on_loopback(&port), little = 4096;
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &little, sizeof little); /* so that messages go in several packets */
    tr__wire ours = {.socket = call_loopback(port), .checked = checked};
    tr__wire theirs = {.socket = accept(listener, NULL, NULL), .checked = checked};
    assert_true(theirs.socket >= 0 && ours.socket >= 0);
    setsockopt(ours.socket, SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
    close(listener);
    *control = malloc(sizeof **control);
    assert_int_equal(tr__network_adopt(n, 1, TR__CONTROL_CHANNEL, TR__FIRST_GROUP, &ours, *control), TR_OK);
    return theirs;
}

/* The next message; false: none has come. It fails at the end of the connection, and where there is no message. */
static bool read_message(tr__wire *w, tr__network_frame *frame, char text[TR__FRAME_TEXT])
{
    size_t got = 0, want = sizeof *frame;
    while (got < want) {
        char *to = got < sizeof *frame ? frame->bytes + got : text + (got - sizeof *frame);
        size_t most = got < sizeof *frame ? sizeof *frame - got : want - got;
        ssize_t more = tr__wire_receive(w, &(struct iovec){to, most}, 1, false);
        if (more < 0 && tr__wire_would_block()) {
            if (got == 0) return false;
            usleep(100);
            continue;
        }
        assert_true(more > 0);
        if ((got += (size_t)more) == sizeof *frame) want += frame->head.bytes;
        if (got >= sizeof *frame) assert_true(frame->head.magic == TR__NETWORK_MAGIC && frame->head.bytes <= TR__FRAME_TEXT);
    }
    return true;
}

static void push(tr__network_endpoint *n, tr__network_connection *control)
{
    pthread_mutex_lock(&n->lock);
    tr__network_push(n, control);
    pthread_mutex_unlock(&n->lock);
}

/* Rank 1 is stopped while more is said than is kept. It misses the oldest, and hears whole messages up to the last: were it to
 * find the connection at its end, it would tell all that rank 0 has died. */
static void a_stopped_neighbour_misses_whole_messages(void **state)
{
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        loss l = {.last = -1};
        tr__network_endpoint *n = endpoint_with(&l);
        tr__network_connection *control;
        tr__wire theirs = connect_with_one(n, turn == 1, &control);
        tr__network_frame frame = {.head.type = 1};
        char text[TR__FRAME_TEXT] = "";
        uint32_t last = 0, missed = 0;
        int said = 0; /* until the kernel has taken a part of a message */
        for (frame.head.bytes = 1000; !control->waits || (turn == 0 && control->part == 0); frame.head.bytes ^= 37) {
            assert_true(said++ < 10000);
            if (control->waits) read_message(&theirs, &(tr__network_frame){0}, text);
            tr__network_tell_all(l.group, &frame, text);
        }
        for (uint64_t i = 0; i < n->news_most + 10; i++) tr__network_tell_all(l.group, &frame, text);
        for (int idle = 0; last < n->said && idle < 1000;) {
            push(n, control);
            if (!read_message(&theirs, &frame, text)) {
                idle++;
                usleep(1000);
                continue;
            }
            assert_true(frame.head.number > last);
            missed += frame.head.number - last - 1;
            last = frame.head.number;
        }
        assert_int_equal(last, n->said);
        assert_true(missed > 0);
        tr__wire_close(&theirs);
        tr__network_detach(l.group, false);
    }
}

/* For a second at most, as the monitor does. */
static void hear_of_damage(tr__network_endpoint *n, const loss *l)
{
    for (int turn = 0; turn < 1000 && !l->count; turn++) {
        usleep(1000);
        pthread_mutex_lock(&n->hearing);
        tr__network_hear(n, &n->peers[1]);
        pthread_mutex_unlock(&n->hearing);
    }
}

/* What rank 1 sends does not have the right checksum: rank 0 gives it up, and it hears why before the connection ends. */
static void who_sends_damage_hears_of_it(void **state)
{
    (void)state;
    loss l = {.last = -1, .reason = "rank 1 sent a damaged message"};
    tr__network_endpoint *n = endpoint_with(&l);
    tr__network_connection *control;
    tr__wire theirs = connect_with_one(n, true, &control);
    tr__network_frame frame = {.head.type = 0};
    char text[TR__FRAME_TEXT] = "", damaged[] = "this is no header of a record";
    assert_int_equal(send(theirs.socket, damaged, sizeof damaged, 0), sizeof damaged);
    hear_of_damage(n, &l);
    assert_int_equal(l.last, 1);
    for (int turn = 0; turn < 1000 && frame.head.type != 1; turn++)
        if (!read_message(&theirs, &frame, text)) usleep(1000);
    assert_int_equal(frame.head.type, 1);
    assert_memory_equal(text, l.reason, strlen(l.reason));
    tr__wire_close(&theirs);
    tr__network_detach(l.group, false);
}

/* Says more than the socket takes. */
static void fill(const loss *l, const tr__network_connection *control)
{
    const tr__network_frame frame = {.head = {.type = 2, .bytes = 1000}};
    char text[TR__FRAME_TEXT] = "";
    for (int said = 0; !control->waits && said < 10000; said++) tr__network_tell_all(l->group, &frame, text);
    for (int more = 0; more < 20; more++) tr__network_tell_all(l->group, &frame, text);
    assert_true(control->waits);
}

/* The same, while there is no room to tell it: it hears why as soon as there is some. */
static void who_sends_damage_and_does_not_read_hears_of_it_later(void **state)
{
    (void)state;
    for (int turn = 0; turn < 2; turn++) { /* the socket is full before, or by the reason */
        loss l = {.last = -1, .reason = "rank 1 sent a damaged message"};
        tr__network_endpoint *n = endpoint_with(&l);
        tr__network_connection *control;
        tr__wire theirs = connect_with_one(n, true, &control);
        tr__network_frame frame = {.head.type = 2};
        char text[TR__FRAME_TEXT] = "", damaged[] = "this is no header of a record";
        if (turn == 0) fill(&l, control);
        assert_int_equal(send(theirs.socket, damaged, sizeof damaged, 0), sizeof damaged);
        hear_of_damage(n, &l);
        assert_int_equal(l.last, 1);
        if (turn == 1) fill(&l, control);
        for (int wait = 0; wait < 2000 && frame.head.type != 1; wait++) {
            if (tr__network_behind(n)) push(n, control); /* as the monitor does */
            if (!read_message(&theirs, &frame, text)) usleep(1000);
        }
        assert_int_equal(frame.head.type, 1);
        assert_memory_equal(text, l.reason, strlen(l.reason));
        for (int wait = 0; wait < 2000 && control->waits; wait++) {
            if (tr__network_behind(n)) push(n, control);
            if (!read_message(&theirs, &frame, text)) usleep(1000);
        }
        assert_false(control->waits);
        tr__wire_close(&theirs);
        tr__network_detach(l.group, false);
    }
}

/* ---- A path --------------------------------------------------------------------------------------------------------- */

enum { DESCRIPTORS = 256 };

/* Those that are connected by TCP. */
static void find_connected(bool connected[DESCRIPTORS])
{
    struct sockaddr_storage address;
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        socklen_t length = sizeof address;
        connected[fd] = getpeername(fd, (struct sockaddr *)&address, &length) == 0 && address.ss_family == AF_INET;
    }
}

/* Those that were not yet connected lose all that comes. */
static void cut_off(const bool before[DESCRIPTORS])
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    const struct sock_fprog filter = {1, &nothing};
    bool now[DESCRIPTORS];
    find_connected(now);
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        if (now[fd] && !before[fd]) setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

/* Ranks 0 and 6, which are no neighbours, lose the path between them; the call's timeout is much later. */
static tr_status lose_a_path(rank *r)
{
    float x = 0;
    TRY(tr_barrier(r->group));
    bool before[DESCRIPTORS];
    int other = 6 - r->number;
    find_connected(before);
    if (other != 0 && other != 6) {
        CHECK(tr_recv(r->group, &x, 1, .peer = (r->number + 1) % r->world, .tag = 1) == TR_PEER);
        return TR_OK;
    }
    if (other) TRY(tr_send(r->group, &x, 1, .peer = other));
    TRY(tr_recv(r->group, &x, 1, .peer = other));
    if (!other) TRY(tr_send(r->group, &x, 1, .peer = other));
    usleep(200000); /* nothing is under way any more */
    cut_off(before);
    int64_t begin = tr__now_ns();
    CHECK(tr_recv(r->group, &x, 1, .peer = other, .tag = 1, .timeout_ms = PATIENCE_MS) == TR_PEER);
    CHECK(tr__now_ns() - begin < 45 * (int64_t)1000000000);
    SAYS("cannot be reached any more");
    return TR_OK;
}

static void a_path_between_two_is_lost(void **state)
{
    (void)state;
    run_job_in(&each_its_own, WORLD, lose_a_path, NULL);
}

/* ---- Stopped ----------------------------------------------------------------------------------------------------- */

static tr_status act_with_a_timeout(rank *r)
{
    float x[1000] = {0};
    tr_status status;
    while ((status = tr_all_reduce(r->group, x, 1000, .timeout_ms = atomic_load(&r->post->patience_ms))) == TR_OK)
        atomic_fetch_add(&r->post->turns, 1);
    return status;
}

static void a_stopped_rank_is_a_timeout(void **state)
{
    (void)state;
    for (int victim = 1; victim < WORLD; victim += STRIDE + 1) {
        job j;
        char name[64];
        stop_one_of(&j, &each_its_own, WORLD, victim, act_with_a_timeout, NULL);
        snprintf(name, sizeof name, "for rank %d (pid %ld", victim, (long)j.ranks[victim].pid);
        for (int i = 0; i < WORLD; i++)
            if (j.posts[i].status != TR_TIMEOUT || !strstr(j.posts[i].text, name))
                fail_msg("rank %d says '%s'", i, j.posts[i].text);
        finish(&j);
    }
}

/* ---- Left --------------------------------------------------------------------------------------------------------- */

/* Most leave at once. Rank 0, and one that is not its neighbour, neither call nor wait: nobody has died for them, and each
 * hears that the others have left. */
static tr_status stay_when_others_leave(rank *r)
{
    static const int stay[] = {0, 6};
    tr_group *pair = tr_group_new(r->group, stay, 2);
    TRY(tr_status_of(pair));
    TRY(tr_barrier(r->group));
    TRY(tr_barrier(r->group));
    if (!pair) return tr_leave(r->group);
    usleep(300000);
    for (int peer = 0; peer < r->world; peer++) {
        if (peer == 0 || peer == 6) continue;
        float x = 0;
        if (peer != 1 + r->number) continue; /* one of them breaks the group */
        CHECK(tr_recv(r->group, &x, 1, .peer = peer, .timeout_ms = PATIENCE_MS) == TR_PEER);
        SAYS("left group 'world'");
    }
    for (int turn = 0; turn < 20; turn++) TRY(tr_barrier(pair));
    TRY(tr_leave(r->group));
    for (int turn = 0; turn < 20; turn++) TRY(tr_barrier(pair));
    return tr_leave(pair);
}

static void those_who_stay_hear_that_the_others_left(void **state)
{
    (void)state;
    for (int turn = 0; turn < 5; turn++)
        run_job_in(turn % 2 ? &three_in_turns : &each_its_own, WORLD, stay_when_others_leave, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named_by_all_others),
        cmocka_unit_test(a_neighbourhood_dies_and_others_go_on),
        cmocka_unit_test(a_new_neighbour_that_never_answers_is_gone_with_its_host),
        cmocka_unit_test(a_stopped_neighbour_misses_whole_messages),
        cmocka_unit_test(a_neighbour_that_refuses_is_asked_less_and_less),
        cmocka_unit_test(who_sends_damage_hears_of_it),
        cmocka_unit_test(who_sends_damage_and_does_not_read_hears_of_it_later),
        cmocka_unit_test(a_path_between_two_is_lost),
        cmocka_unit_test(a_stopped_rank_is_a_timeout),
        cmocka_unit_test(those_who_stay_hear_that_the_others_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
