/* The ways to join: tcp:// by every kind of host, file://, with and without a token, again and again, and what can go
 * wrong on the way. Threads are ranks; each opens a store of its own. */
#include "base/clock.h"
#include "comm_ranks.h"

#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct meeting {
    char init[128];
    const char *token[3]; /* of each rank */
    int timeout_ms, world, threads; /* fewer threads than the world: the last ranks stay away */
    int twice;                      /* > 0: this rank is taken by two threads */
    int lives;
    tr_status status[4];
    char message[4][1024];
    int64_t ns[4];
} meeting;

typedef struct guest {
    meeting *m;
    int index, rank;
    pthread_t thread;
} guest;

static void join_and_sum(guest *g)
{
    meeting *m = g->m;
    TR_SCOPE;
    int64_t began = tr__now_ns(), sum = 1;
    tr_group *group = tr_join(.init = m->init, .rank = g->rank, .world_size = m->world, .timeout_ms = m->timeout_ms,
                              .token = m->token[g->rank] ? m->token[g->rank] : "");
    tr_status status = tr_all_reduce(group, &sum, 1, .dtype = TR_I64);
    if (status == TR_OK && sum != m->world) status = TR_INTERNAL;
    tr_group *part = status == TR_OK ? tr_group_split(group, 0, 0) : NULL;
    if (part) status = tr_barrier(part);
    if (part && status == TR_OK) status = tr_leave(part);
    if (status == TR_OK) status = tr_leave(group);
    m->ns[g->index] = tr__now_ns() - began;
    m->status[g->index] = status;
    if (status != TR_OK) snprintf(m->message[g->index], sizeof m->message[0], "%s", tr_error_message());
}

static void *be_guest(void *arg)
{
    guest *g = arg;
    for (int life = 0; life < g->m->lives && g->m->status[g->index] == TR_OK; life++) join_and_sum(g);
    return NULL;
}

static void hold_with(meeting *m, void *(*body)(void *))
{
    guest guests[4];
    if (!m->timeout_ms) m->timeout_ms = JOIN_MS;
    if (!m->threads) m->threads = m->world;
    if (!m->lives) m->lives = 1;
    for (int i = 0; i < m->threads; i++) {
        guests[i] = (guest){.m = m, .index = i, .rank = m->twice && i == m->threads - 1 ? m->twice : i};
        assert_int_equal(pthread_create(&guests[i].thread, NULL, body, &guests[i]), 0);
    }
    for (int i = 0; i < m->threads; i++) pthread_join(guests[i].thread, NULL);
}

static void hold(meeting *m)
{
    hold_with(m, be_guest);
}

static void goes_well(meeting *m)
{
    hold(m);
    for (int i = 0; i < m->threads; i++)
        if (m->status[i] != TR_OK) fail_msg("%s: rank %d: %s", m->init, i, m->message[i]);
}

static void fails(const meeting *m, int index, tr_status status, const char *words)
{
    if (m->status[index] != status || !strstr(m->message[index], words))
        fail_msg("%s: rank %d: status %d, '%s' says nothing of '%s'", m->init, index, m->status[index],
            m->message[index], words);
}

static bool can_bind(int family, int port)
{
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    if (family == AF_INET6) ((struct sockaddr_in6 *)&address)->sin6_addr = in6addr_loopback;
    if (family == AF_INET) ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ((struct sockaddr_in *)&address)->sin_port = htons((uint16_t)port); /* in the same place for both families */
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool can = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) close(fd);
    return can;
}

/* One that stays free: the kernel's own choices for connections, other tests' among them, lie above 32767. False when the machine
 * has no such address. */
static bool free_port(int family, int *port)
{
    enum { FIRST = 10000, PORTS = 22000 };
    static int tried;
    for (int i = 0; i < 100; i++) {
        *port = FIRST + (getpid() * 7 + tried++) % PORTS;
        if (can_bind(family, *port)) return true;
    }
    return false;
}

static meeting at(const char *host)
{
    meeting m = {.world = 3};
    int port;
    assert_true(free_port(AF_INET, &port));
    snprintf(m.init, sizeof m.init, "tcp://%s:%d", host, port);
    return m;
}

static meeting at_with_token(const char *host)
{
    meeting m = at(host);
    for (int i = 0; i < 3; i++) m.token[i] = "secret";
    return m;
}

static void tcp_in_the_clear(void **state)
{
    (void)state;
    meeting m = at("127.0.0.1");
    goes_well(&m);
    m = at("localhost");
    goes_well(&m);
}

static void tcp_with_a_token(void **state)
{
    (void)state;
    meeting m = at_with_token("127.0.0.1");
    goes_well(&m);
    m = at_with_token("0.0.0.0"); /* which a client reaches over loopback */
    goes_well(&m);
}

static void tcp_over_ipv6(void **state)
{
    (void)state;
    int port;
    if (!free_port(AF_INET6, &port)) {
        print_message("there is no IPv6 loopback here: skipped\n");
        skip();
    }
    meeting m = {.world = 3, .token = {"secret", "secret", "secret"}};
    snprintf(m.init, sizeof m.init, "tcp://[::1]:%d", port);
    goes_well(&m);
}

/* Rank 0 serves a new store each time, at once after the old one, on the same port. */
static void tcp_again_and_again(void **state)
{
    (void)state;
    meeting m = at_with_token("127.0.0.1");
    m.lives = 5;
    goes_well(&m);
}

static void a_wrong_token(void **state)
{
    (void)state;
    meeting m = at_with_token("127.0.0.1");
    m.token[1] = "Secret";
    m.token[2] = NULL;
    m.timeout_ms = 3000;
    hold(&m);
    fails(&m, 0, TR_TIMEOUT, "of 3 ranks, ranks 1 and 2 did not join within 3 s");
    fails(&m, 1, TR_AUTH, "refused this job's token");
    fails(&m, 2, TR_AUTH, "wants a token");
    assert_true(m.ns[1] < m.ns[0] && m.ns[2] < m.ns[0]); /* they do not wait until then */
}

static void a_rank_that_stays_away(void **state)
{
    (void)state;
    meeting m = at("127.0.0.1");
    m.threads = 2;
    m.timeout_ms = 3000; /* rank 1 comes by then */
    hold(&m);
    fails(&m, 0, TR_TIMEOUT, "of 3 ranks, rank 2 did not join within 3 s");
    assert_true(m.status[1] == TR_TIMEOUT || m.status[1] == TR_IO); /* rank 0 may have closed its store first */
}

static bool waits(const char *job)
{
    char *text = NULL;
    bool does = tr_job_explain(job, &text) == TR_OK && strstr(text, "waits for rank 0");
    free(text);
    return does;
}

/* When rank 0 gives up, its store goes with it, and the others still know who was missing. */
static void rank_0_gives_up_first(void **state)
{
    (void)state;
    meeting m = at("127.0.0.1");
    m.threads = 2;
    m.timeout_ms = 5000;
    guest other = {.m = &m, .index = 1, .rank = 1};
    m.lives = 1;
    {
        TR_SCOPE;
        tr_store *store = tr_store_tcp("127.0.0.1", atoi(strrchr(m.init, ':') + 1), .serve = true); /* as rank 0 does */
        assert_int_equal(tr_status_of(store), TR_OK);
        assert_int_equal(pthread_create(&other.thread, NULL, be_guest, &other), 0);
        for (int i = 0; i < 500 && !waits(m.init + strlen("tcp://")); i++) usleep(10000);
    }
    pthread_join(other.thread, NULL);
    fails(&m, 1, TR_TIMEOUT, "rank 0 has ended or given up, and with it the store where all meet: group 'world': of 3 ranks, rank 0 had "
        "not joined yet: store 127.0.0.1");
}

static void a_rank_that_comes_twice(void **state)
{
    (void)state;
    meeting m = at("127.0.0.1");
    m.threads = 3;
    m.twice = 1;
    m.world = 2;
    m.timeout_ms = 20000;
    hold(&m);
    assert_int_equal(m.status[0], TR_OK);
    assert_true((m.status[1] == TR_OK) != (m.status[2] == TR_OK));
}

static void a_port_that_is_taken(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *other = tr_store_tcp("127.0.0.1", 0, .serve = true);
    char init[64];
    snprintf(init, sizeof init, "tcp://127.0.0.1:%d", tr_store_port(other));
    FAILS(TR_IO, tr_status_of(tr_join(.init = init, .world_size = 2, .timeout_ms = JOIN_MS)), "cannot serve");
    assert_non_null(strstr(tr_error_message(), "in use"));
    assert_non_null(strstr(tr_error_message(), "MASTER_PORT"));
}

static void a_rank_0_that_is_not_there(void **state)
{
    (void)state;
    TR_SCOPE;
    int port;
    char init[64];
    assert_true(free_port(AF_INET, &port));
    snprintf(init, sizeof init, "tcp://127.0.0.1:%d", port);
    FAILS(TR_TIMEOUT, tr_status_of(tr_join(.init = init, .rank = 1, .world_size = 2, .timeout_ms = 200)),
        "rank 0, which serves the store where all meet, was not reached: store 127.0.0.1:");
}

static void an_address_elsewhere(void **state)
{
    (void)state;
    TR_SCOPE;
    FAILS(TR_IO, tr_status_of(tr_join(.init = "tcp://192.0.2.1:29500", .world_size = 2, .token = "secret")),
        "192.0.2.1:29500, which is no address of this host");
    /* A name with an empty part is wrong by itself: no name server is asked, which may not be there. */
    FAILS(TR_NOT_FOUND, tr_status_of(tr_join(.init = "tcp://no..such.host:29500", .rank = 1, .world_size = 2)),
        "no..such.host:29500");
}

/* Rank 0, which serves the store, is killed while rank 1 has joined and waits for rank 2. */
static void the_store_dies_meanwhile(void **state)
{
    (void)state;
    meeting m = at_with_token("127.0.0.1");
    const char *colon = strrchr(m.init, ':');
    pid_t host = fork();
    if (host == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when a check fails */
        tr_status status = tr_status_of(
            tr_join(.init = m.init, .rank = 0, .world_size = 3, .token = "secret", .timeout_ms = JOIN_MS));
        _exit(status == TR_OK ? 1 : 2);
    }
    TR_SCOPE;
    m.timeout_ms = 4000;
    guest one = {.m = &m, .index = 1, .rank = 1};
    m.lives = 1;
    assert_int_equal(pthread_create(&one.thread, NULL, be_guest, &one), 0);
    tr_store *store = tr_store_tcp("127.0.0.1", atoi(colon + 1), .token = "secret", .timeout_ms = JOIN_MS);
    if (tr_store_wait(store, "group/world/endpoint/1/1", JOIN_MS) != TR_OK) fail_msg("%s", tr_error_message());
    kill(host, SIGKILL);
    waitpid(host, NULL, 0);
    pthread_join(one.thread, NULL);
    fails(&m, 1, TR_TIMEOUT, "rank 0 has ended or given up"); /* it would have met another rank 0 there */
    fails(&m, 1, TR_TIMEOUT, colon);
    assert_true(m.ns[1] < 30 * INT64_C(1000000000));
}

/* ---- Several groups at one address ------------------------------------------------------------------------------- */

static tr_status sum_ones(tr_group *group, int world)
{
    int64_t sum = 1;
    tr_status status = tr_all_reduce(group, &sum, 1, .dtype = TR_I64);
    return status == TR_OK && sum != world ? TR_INTERNAL : status;
}

/* The world stays while one beside it comes and goes; then it goes and comes back while that one stays. */
static tr_status live_side_by_side(const tr_join_options *options)
{
    TR_SCOPE;
    tr_join_options o = *options;
    tr_group *world = tr_join_with(&o), *beside = NULL;
    tr_status status = sum_ones(world, o.world_size);
    o.name = "beside";
    for (int turn = 0; turn < 2 && status == TR_OK; turn++) {
        beside = tr_join_with(&o);
        status = sum_ones(beside, o.world_size);
        if (status == TR_OK) status = sum_ones(world, o.world_size);
        if (status == TR_OK && turn == 0) status = tr_leave(beside);
    }
    if (status == TR_OK) status = tr_leave(world);
    world = status == TR_OK ? tr_join_with(options) : world;
    if (status == TR_OK) status = sum_ones(world, o.world_size);
    if (status == TR_OK) status = sum_ones(beside, o.world_size);
    if (status == TR_OK) status = tr_leave(beside);
    if (status == TR_OK) status = sum_ones(world, o.world_size);
    return status == TR_OK ? tr_leave(world) : status;
}

static void *be_neighbour(void *arg)
{
    guest *g = arg;
    meeting *m = g->m;
    tr_join_options o = {.size = sizeof o, .init = m->init, .rank = g->rank, .world_size = m->world};
    o.token = m->token[g->rank] ? m->token[g->rank] : "";
    o.timeout_ms = JOIN_MS;
    for (int life = 0; life < m->lives && m->status[g->index] == TR_OK; life++)
        m->status[g->index] = live_side_by_side(&o);
    if (m->status[g->index] != TR_OK) snprintf(m->message[g->index], sizeof m->message[0], "%s", tr_error_message());
    return NULL;
}

static void groups_share_an_address(void **state)
{
    (void)state;
    meeting ways[] = {at("127.0.0.1"), at_with_token("localhost")};
    for (meeting *m = ways; m < ways + 2; m++) {
        m->lives = 3;
        hold_with(m, be_neighbour);
        for (int i = 0; i < 3; i++)
            if (m->status[i] != TR_OK) fail_msg("rank %d: %s", i, m->message[i]);
    }
}

static void *join_twice(void *arg)
{
    guest *g = arg;
    meeting *m = g->m;
    TR_SCOPE;
    tr_group *first = tr_join(.init = m->init, .rank = g->rank, .world_size = m->world, .timeout_ms = JOIN_MS);
    tr_status status = tr_barrier(first);
    tr_group *second = tr_join(.init = m->init, .rank = g->rank, .world_size = m->world, .timeout_ms = JOIN_MS);
    m->status[g->index] = tr_status_of(second);
    snprintf(m->message[g->index], sizeof m->message[0], "%s", tr_error_message());
    if (status == TR_OK) status = sum_ones(first, m->world); /* which bears it */
    if (status == TR_OK) status = tr_leave(first);
    if (status != TR_OK) m->status[g->index] = status;
    return NULL;
}

static void groups_of_one_name_cannot_stand_side_by_side(void **state)
{
    (void)state;
    meeting m = at("127.0.0.1");
    hold_with(&m, join_twice);
    for (int i = 0; i < 3; i++)
        fails(&m, i, TR_STATE, "leave that group first, or give the one beside it another .name");
}

/* The same in processes, by the environment alone. */
static void groups_share_the_environments_address(void **state)
{
    (void)state;
    enum { RANKS = 3 };
    int port;
    char text[16];
    pid_t children[RANKS];
    assert_true(free_port(AF_INET, &port));
    for (int i = 0; i < RANKS; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        snprintf(text, sizeof text, "%d", port);
        setenv("MASTER_PORT", text, 1);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        setenv("WORLD_SIZE", "3", 1);
        snprintf(text, sizeof text, "%d", i);
        setenv("RANK", text, 1);
        tr_join_options o = {.size = sizeof o, .world_size = RANKS, .timeout_ms = JOIN_MS};
        tr_status status = live_side_by_side(&o);
        for (int life = 0; life < 2 && status == TR_OK; life++) status = live_side_by_side(&o);
        if (status != TR_OK) fprintf(stderr, "rank %d: %s\n", i, tr_error_message());
        _exit(status == TR_OK ? 7 : 1);
    }
    for (int i = 0; i < RANKS; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(WEXITSTATUS(status), 7);
    }
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/trireme-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

/* Fails when anything is left there. */
static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void a_file(void **state)
{
    (void)state;
    meeting m = {.world = 3, .lives = 4};
    snprintf(m.init, sizeof m.init, "file://%s/meet", folder);
    goes_well(&m);
}

static void a_file_where_one_stays_away(void **state)
{
    (void)state;
    meeting m = {.world = 3, .threads = 2, .timeout_ms = 3000};
    snprintf(m.init, sizeof m.init, "file://%s/meet", folder);
    hold(&m);
    fails(&m, 0, TR_TIMEOUT, "rank 2 did not join within 3 s");
    fails(&m, 1, TR_TIMEOUT, "rank 2 did not join within 3 s");
}

static void bad_files(void **state)
{
    (void)state;
    TR_SCOPE;
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "file://", .world_size = 2)), "path is needed");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "file:///x")), ".world_size of 0");
    FAILS(TR_IO, tr_status_of(tr_join(.init = "file:///nowhere/x", .world_size = 2)), "/nowhere/x");
    FAILS(TR_INVALID, tr_status_of(tr_join(.init = "smoke://signals", .world_size = 2)), "file://path");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tcp_in_the_clear),
        cmocka_unit_test(tcp_with_a_token),
        cmocka_unit_test(tcp_over_ipv6),
        cmocka_unit_test(tcp_again_and_again),
        cmocka_unit_test(a_wrong_token),
        cmocka_unit_test(a_rank_that_stays_away),
        cmocka_unit_test(rank_0_gives_up_first),
        cmocka_unit_test(a_rank_that_comes_twice),
        cmocka_unit_test(a_port_that_is_taken),
        cmocka_unit_test(a_rank_0_that_is_not_there),
        cmocka_unit_test(an_address_elsewhere),
        cmocka_unit_test(the_store_dies_meanwhile),
        cmocka_unit_test(groups_share_an_address),
        cmocka_unit_test(groups_of_one_name_cannot_stand_side_by_side),
        cmocka_unit_test(groups_share_the_environments_address),
        cmocka_unit_test_setup_teardown(a_file, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_file_where_one_stays_away, make_folder, remove_folder),
        cmocka_unit_test(bad_files),
    };
    unsetenv("TRIREME_TOKEN");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
