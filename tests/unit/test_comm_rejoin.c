/*
 * A join that came about on some ranks only, or on none, leaves nothing behind: the next one of that name works. First ranks
 * join, and one of them fails at a moment that is drawn: a request to the store, its deadline, the end of its join, its death.
 * When all are through with that, all join again, once, and compute.
 *
 * -seed=S repeats a try that was printed. ctest: serial timeout=180
 */
#include "base/clock.h"
#include "comm/join/rendezvous.h"
#include "comm_ranks.h"
#include "hosts.h"
#include "net/store/store.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FIRST_MS = 1000, MOST = 4 };

static unsigned long long only_seed;

/* ---- Chance ------------------------------------------------------------------------------------------------------ */

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static int below(uint64_t *state, int limit)
{
    return (int)(draw(state) % (uint64_t)limit);
}

/* ---- A store that fails one request ------------------------------------------------------------------------------ */

typedef struct failing_store {
    tr_store store;
    tr_store *real;
    int rest;   /* requests until the one that fails; below 0: it has */
    bool after; /* it fails when it has been done */
} failing_store;

static failing_store *of(tr_store *store)
{
    return (failing_store *)store;
}

static tr_status failing_get(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    tr_status status = tr__store_get(of(store)->real, key, timeout_ms, value, bytes);
    if (of(store)->rest-- != 0) return status;
    if (status == TR_OK && value) free(*value), *value = NULL;
    return tr__fail(TR_IO, "the test's store fails");
}

/* Without a registration that stands, and with one that cannot be withdrawn, there is nobody who could join again. */
static tr_status failing_change(tr_store *store, const char *key, tr__change *c, int timeout_ms, void **value, size_t *bytes)
{
    bool compares = c->kind == TR__CHANGE_COMPARE_SET, spared = compares && (strstr(key, "/rank/") || c->bytes == 0);
    bool fails = !spared && of(store)->rest-- == 0;
    tr_status status = TR_OK;
    if (!fails || (of(store)->after && !compares)) status = tr__store_change(of(store)->real, key, c, timeout_ms, value, bytes);
    return fails ? tr__fail(TR_IO, "the test's store fails") : status;
}

static const tr__store_ops failing_ops = {.get = failing_get, .change = failing_change};

static void failing_destroy(void *self)
{
    tr__unref(of(self)->real);
}

static const tr__type failing_type = {.name = "store", .size = sizeof(failing_store), .destroy = failing_destroy};

static tr_store *store_that_fails(tr_store *store, int requests, bool after)
{
    failing_store *f = tr__object_new(&failing_type);
    if (tr__error_of(f)) return &f->store;
    f->store.ops = &failing_ops;
    f->store.timeout_ms = store->timeout_ms;
    memcpy(f->store.name, store->name, sizeof store->name);
    memcpy(f->store.host, store->host, sizeof store->host);
    f->store.port = store->port;
    f->store.anywhere = store->anywhere;
    f->real = tr__ref(store);
    f->rest = requests;
    f->after = after;
    return &f->store;
}

/* ---- Tries ------------------------------------------------------------------------------------------------------- */

typedef enum moment { REQUEST_FAILS, REQUEST_FAILS_AFTERWARDS, DEADLINE, GOES_AT_ONCE, MOMENTS } moment;

/* What is drawn for all ranks. */
typedef struct try_ {
    int world, victim, way; /* way: shared memory, TCP, two hosts */
    moment moment;
    int requests, timeout_ms;
    const char *where;
} try_;

static const int hosts[MOST] = {0, 1, 0, 1};

static try_ draw_try(uint64_t seed)
{
    try_ t = {.world = 2 + below(&seed, MOST - 1), .way = below(&seed, 3), .moment = (moment)below(&seed, MOMENTS)};
    t.victim = below(&seed, t.world);
    t.requests = below(&seed, 8);
    t.timeout_ms = 1 + below(&seed, 20);
    return t;
}

static tr_group *join_in(const try_ *t, tr_store *store, int number, int timeout_ms)
{
    if (t->way == 2) store = store_on_host(store, hosts[number]);
    return tr_join(.store = store, .rank = number, .world_size = t->world, .timeout_ms = timeout_ms,
        .transport = t->way == 0 ? "shm" : t->way == 1 ? "tcp" : NULL);
}

static tr_status join_first(const try_ *t, tr_store *store, int number)
{
    TR_SCOPE;
    int timeout_ms = FIRST_MS;
    if (number == t->victim && t->moment <= REQUEST_FAILS_AFTERWARDS)
        store = store_that_fails(store, t->requests, t->moment == REQUEST_FAILS_AFTERWARDS);
    if (number == t->victim && t->moment == DEADLINE) timeout_ms = t->timeout_ms;
    tr_group *group = join_in(t, store, number, timeout_ms);
    TR__TRY(tr_status_of(group));
    if (number == t->victim && t->moment == GOES_AT_ONCE) return TR_OK;
    float x = 1;
    return tr_all_reduce(group, &x, 1, .timeout_ms = FIRST_MS);
}

/* To be told: why not. */
static tr_status join_again(const try_ *t, tr_store *store, int number)
{
    TR_SCOPE;
    tr_group *group = join_in(t, store, number, JOIN_MS);
    TR__TRY(tr_status_of(group));
    float x = (float)number;
    TR__TRY(tr_all_reduce(group, &x, 1));
    if (x != (float)(t->world * (t->world - 1) / 2)) return tr_fail(TR_INTERNAL, "the sum is %g", (double)x);
    return tr_leave(group);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct joiner {
    const try_ *t;
    tr_store *store;
    pthread_barrier_t *all;
    int number;
    pthread_t thread;
    tr_status status;
    char text[2][512];
} joiner;

static void *join_twice(void *argument)
{
    joiner *j = argument;
    if (join_first(j->t, j->store, j->number)) snprintf(j->text[0], sizeof j->text[0], "%s", tr_error_message());
    pthread_barrier_wait(j->all);
    j->status = join_again(j->t, j->store, j->number);
    if (j->status) snprintf(j->text[1], sizeof j->text[1], "%s", tr_error_message());
    return NULL;
}

static void tell(const try_ *t, uint64_t seed)
{
    static const char *const moments[] = {"request %d fails", "request %d fails when it is done", "gives up after %d ms",
        "leaves at once"};
    static const char *const ways[] = {"shm", "tcp", "two hosts"};
    char what[80];
    snprintf(what, sizeof what, moments[t->moment], t->moment == DEADLINE ? t->timeout_ms : t->requests);
    print_error("-seed=%llu: %d ranks, %s, store %s, rank %d: %s\n", (unsigned long long)seed, t->world, ways[t->way], t->where,
        t->victim, what);
}

static bool try_threads(uint64_t seed, tr_store *store, const char *where)
{
    try_ t = draw_try(seed);
    t.where = where;
    joiner all[MOST] = {0};
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)t.world);
    for (int i = 0; i < t.world; i++) {
        all[i] = (joiner){.t = &t, .store = store, .all = &barrier, .number = i};
        assert_int_equal(pthread_create(&all[i].thread, NULL, join_twice, &all[i]), 0);
    }
    bool well = true;
    for (int i = 0; i < t.world; i++) {
        pthread_join(all[i].thread, NULL);
        well = well && all[i].status == TR_OK;
    }
    pthread_barrier_destroy(&barrier);
    if (well) return true;
    tell(&t, seed);
    for (int i = 0; i < t.world; i++) print_error("rank %d: '%s', then '%s'\n", i, all[i].text[0], all[i].text[1]);
    return false;
}

static void threads_join_again(void **state)
{
    (void)state;
    char path[] = "/tmp/trireme-rejoin-XXXXXX";
    int fd = mkstemp(path), failed = 0;
    assert_true(fd >= 0);
    close(fd);
    for (uint64_t seed = 1; seed <= 45; seed++) {
        TR_SCOPE;
        unlink(path);
        uint64_t s = only_seed ? only_seed : seed;
        tr_store *store = s % 3 == 0   ? tr_store_memory()
                          : s % 3 == 1 ? tr_store_tcp("127.0.0.1", 0, .serve = true)
                                       : tr_store_file(path);
        assert_int_equal(tr_status_of(store), TR_OK);
        failed += !try_threads(s, store, s % 3 == 0 ? "in memory" : s % 3 == 1 ? "over TCP" : "in a file");
        if (only_seed) break;
    }
    unlink(path);
    assert_int_equal(failed, 0);
}

/* ---- Which generation -------------------------------------------------------------------------------------------- */

typedef struct one {
    tr__member member;
    tr__endpoint_record record, records[2];
    tr__rendezvous r;
} one;

static void begin_of(one *o, int world, tr_store *store, int number)
{
    *o = (one){.member = {.group = "g", .rank = number, .world_size = world, .store = store, .timeout_ms = JOIN_MS}};
    tr__endpoint_record_here(&o->member, &o->record);
    strcpy(o->record.address, "-");
    strcpy(o->record.tcp_address, "-");
    assert_int_equal(tr__random_text(o->record.cookie, sizeof o->record.cookie), TR_OK);
    strcpy(o->record.tcp_cookie, o->record.cookie);
    assert_int_equal(tr__rendezvous_register(&o->r, &o->member, &o->record), TR_OK);
    assert_int_equal(tr__rendezvous_publish(&o->r, &o->record), TR_OK);
}

static void begin(one *o, tr_store *store, int number)
{
    begin_of(o, 2, store, number);
}

static void give_up(one *o)
{
    tr__rendezvous_give_up(&o->r, TR_PEER);
    tr__rendezvous_withdraw(&o->r);
}

/* Rank 0 has joined, rank 1 has not heard of that any more. */
static void who_failed_counts_with_who_joined(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    one a, b;
    begin(&a, store, 0);
    begin(&b, store, 1);
    assert_int_equal(a.r.generation, 1);
    assert_int_equal(b.r.generation, 1);
    assert_int_equal(tr__rendezvous_read_all(&a.r, a.records), TR_OK);
    assert_int_equal(tr__rendezvous_read_all(&b.r, b.records), TR_OK);
    assert_int_equal(tr__rendezvous_use(&a.r), TR_OK);
    assert_int_equal(tr__rendezvous_use(&b.r), TR_OK);
    tr__rendezvous_withdraw(&a.r);
    give_up(&b);
    begin(&b, store, 1);
    begin(&a, store, 0);
    assert_int_equal(a.r.generation, 2);
    assert_int_equal(b.r.generation, 2);
    give_up(&a);
    give_up(&b);
    begin(&a, store, 0);
    assert_int_equal(a.r.generation, 2); /* which nobody has used */
    give_up(&a);
}

/* Rank 1 gives up and comes again before rank 0, which was connected with it, says that all are. */
static void who_came_too_early_goes_on(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    one a, b;
    begin(&a, store, 0);
    begin(&b, store, 1);
    assert_int_equal(tr__rendezvous_read_all(&a.r, a.records), TR_OK);
    give_up(&b);
    begin(&b, store, 1);
    assert_int_equal(b.r.generation, 1);
    assert_int_equal(tr__rendezvous_use(&a.r), TR_OK);
    give_up(&a);
    FAILS(TR_PEER, tr__rendezvous_read_all(&b.r, b.records), "group 'g': rank 0 gave up joining when others had met");
    assert_true(b.r.used);
    assert_int_equal(tr__rendezvous_go_on(&b.r, &b.record), TR_OK);
    assert_int_equal(tr__rendezvous_publish(&b.r, &b.record), TR_OK);
    assert_int_equal(b.r.generation, 2);
    begin(&a, store, 0);
    assert_int_equal(a.r.generation, 2);
    assert_int_equal(tr__rendezvous_read_all(&a.r, a.records), TR_OK);
    assert_int_equal(tr__rendezvous_read_all(&b.r, b.records), TR_OK);
    tr__rendezvous_withdraw(&a.r);
    tr__rendezvous_withdraw(&b.r);
}

/* Rank 1 dies while joining, rank 0 tells so and comes again: in the next generation it waits for rank 1 in vain. One that comes
 * late does the same. */
static void who_waits_in_the_next_generation_names_the_dead(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    char text[80], dead[64];
    one a, b;
    begin(&a, store, 0);
    begin(&b, store, 1);
    int length = snprintf(text, sizeof text, "1 %s", b.record.cookie);
    assert_int_equal(tr_store_set(store, "group/g/died/1", text, (size_t)length), TR_OK);
    assert_int_equal(tr__rendezvous_use(&a.r), TR_OK);
    give_up(&a);
    begin(&a, store, 0);
    assert_int_equal(a.r.generation, 2);
    a.r.deadline = tr__now_ns();
    snprintf(dead, sizeof dead, "rank 1 (pid %ld) died, or exited, while joining before", b.record.pid);
    FAILS(TR_TIMEOUT, tr__rendezvous_read_all(&a.r, a.records), "of 2 ranks, rank 1 did not join within");
    FAILS(TR_TIMEOUT, tr__rendezvous_read_all(&a.r, a.records), dead);
    assert_false(a.r.used); /* this generation: it would go on to another */
    give_up(&b); /* it lives, after all */
    FAILS(TR_TIMEOUT, tr__rendezvous_read_all(&a.r, a.records), "did not join within");
    assert_null(strstr(tr_error_message(), "died"));
    give_up(&a);
}

/* A store that is asked for one key after the other, and where a death is told of in between; or rank 1 comes, after somebody
 * has waited for it in vain, and has met the others at once; or which is gone when a key is asked for again. */
typedef struct slow_store {
    tr_store *inner;
    const one *dies;
    bool told;
    one *comes;
    const char *breaks;
    int asked; /* for that key */
} slow_store;

static tr_status slow_set(void *user, const char *key, const void *value, size_t bytes)
{
    return tr_store_set(((slow_store *)user)->inner, key, value, bytes);
}

static tr_status slow_get(void *user, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    slow_store *s = user;
    char text[80];
    if (s->breaks && strcmp(key, s->breaks) == 0 && s->asked++) return tr__fail(TR_IO, "the test's store fails");
    tr_status status = tr__store_get(s->inner, key, timeout_ms, value, bytes);
    if (s->comes && status == TR_TIMEOUT && strcmp(key, "group/g/endpoint/1/1") == 0) {
        begin(s->comes, s->inner, 1);
        assert_int_equal(tr__rendezvous_read_all(&s->comes->r, s->comes->records), TR_OK);
        assert_int_equal(tr__rendezvous_use(&s->comes->r), TR_OK);
        s->comes = NULL;
        return tr__fail(TR_TIMEOUT, "it came too late for this request");
    }
    if (!s->dies || s->told) return status;
    s->told = true;
    int length = snprintf(text, sizeof text, "0 %s", s->dies->record.cookie);
    if (tr_store_set(s->inner, "group/g/died/1", text, (size_t)length) != TR_OK) return TR_INTERNAL;
    return tr_store_set(s->inner, "group/g/used/1", "", 0) == TR_OK ? status : TR_INTERNAL;
}

static tr_status slow_add(void *user, const char *key, int64_t amount, int64_t *sum)
{
    return tr_store_add(((slow_store *)user)->inner, key, amount, sum);
}

static tr_status slow_compare_set(void *user, const char *key, const void *expected, size_t expected_bytes, const void *desired,
    size_t desired_bytes, int timeout_ms, void **value, size_t *bytes)
{
    return tr__store_compare_set(((slow_store *)user)->inner, key, expected, expected_bytes, desired, desired_bytes, timeout_ms,
        value, bytes);
}

static void a_death_that_is_told_between_two_looks_is_heard_of(void **state)
{
    (void)state;
    TR_SCOPE;
    slow_store s = {.inner = tr_store_memory()};
    tr_store *store = tr_store_custom(slow_set, slow_get, slow_add, slow_compare_set, .user = &s);
    one a, b;
    begin(&a, store, 0);
    begin(&b, store, 1);
    s.dies = &a;
    FAILS(TR_PEER, tr__rendezvous_check_peers(&b.r), "died, or exited, while joining");
    assert_true(s.told);
    tr__rendezvous_withdraw(&a.r);
    tr__rendezvous_withdraw(&b.r);
}

/* Where a library connects the ranks, each marks the generation when it has read all records: who finds the mark may not have. */
static void who_is_marked_as_met_is_met(void **state)
{
    (void)state;
    TR_SCOPE;
    one a, b;
    slow_store s = {.inner = tr_store_memory(), .comes = &b};
    tr_store *store = tr_store_custom(slow_set, slow_get, slow_add, slow_compare_set, .user = &s);
    begin(&a, store, 0);
    assert_int_equal(tr__rendezvous_read_all(&a.r, a.records), TR_OK);
    assert_null(s.comes);
    assert_int_equal(a.records[1].pid, b.record.pid);
    assert_int_equal(b.r.generation, 1);
    tr__rendezvous_withdraw(&a.r);
    tr__rendezvous_withdraw(&b.r);
}

/* Of so many ranks that their records are asked for in two requests, of which the second one fails. */
static void all_that_are_missing_are_named(void **state)
{
    (void)state;
    TR_SCOPE;
    one a;
    slow_store s = {.inner = tr_store_memory(), .breaks = "group/g/endpoint/1/4097"};
    tr_store *store = tr_store_custom(slow_set, slow_get, slow_add, slow_compare_set, .user = &s);
    tr__endpoint_record *records = calloc(5000, sizeof *records);
    begin_of(&a, 5000, store, 0);
    FAILS(TR_IO, tr__rendezvous_read_all(&a.r, records), "of 5000 ranks, ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 4989 more had not "
        "joined yet: the test's store fails");
    tr__rendezvous_withdraw(&a.r);
    free(records);
}

/* ---- Processes --------------------------------------------------------------------------------------------------- */

/* What processes share. */
typedef struct board {
    atomic_bool started[MOST], again;
    struct {
        tr_status status;
        char text[2][512];
    } ranks[MOST];
} board;

static tr_status join_from_process(const try_ *t, board *b, int number, int port, bool first)
{
    TR_SCOPE;
    tr_store *store = tr_store_tcp("127.0.0.1", port);
    TR__TRY(tr_status_of(store));
    atomic_store(&b->started[number], true);
    if (first && join_first(t, store, number))
        snprintf(b->ranks[number].text[0], sizeof b->ranks[number].text[0], "%s", tr_error_message());
    char key[32];
    snprintf(key, sizeof key, "through/%d", number);
    TR__TRY(tr_store_set(store, key, "", 0));
    while (!atomic_load(&b->again)) usleep(1000);
    return join_again(t, store, number);
}

static pid_t start(const try_ *t, board *b, int number, int port, bool first)
{
    pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when a check fails */
    b->ranks[number].status = join_from_process(t, b, number, port, first);
    if (b->ranks[number].status)
        snprintf(b->ranks[number].text[1], sizeof b->ranks[number].text[1], "%s", tr_error_message());
    _exit(0);
}

static pid_t serve(int *port)
{
    int out[2];
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true);
        *port = tr_store_port(store);
        if (write(out[1], port, sizeof *port) != sizeof *port) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(out[0], port, sizeof *port), sizeof *port);
    close(out[0]);
    close(out[1]);
    return child;
}

/* A rank is killed while all join, comes again as another process, and all join again. */
static bool try_processes(uint64_t seed)
{
    try_ t = draw_try(seed);
    t.moment = MOMENTS; /* none of a thread's */
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(b != MAP_FAILED);
    int port, after_us = below(&seed, 12000);
    pid_t server = serve(&port), ranks[MOST];
    for (int i = 0; i < t.world; i++) ranks[i] = start(&t, b, i, port, true);
    while (!atomic_load(&b->started[t.victim])) usleep(100);
    usleep((unsigned)after_us);
    kill(ranks[t.victim], SIGKILL);
    waitpid(ranks[t.victim], NULL, 0);
    ranks[t.victim] = start(&t, b, t.victim, port, false);
    tr_scope_push();
    tr_store *store = tr_store_tcp("127.0.0.1", port);
    for (int i = 0; i < t.world; i++) {
        char key[32];
        snprintf(key, sizeof key, "through/%d", i);
        assert_int_equal(tr_store_wait(store, key, JOIN_MS), TR_OK);
    }
    tr_scope_pop();
    atomic_store(&b->again, true);
    bool well = true;
    for (int i = 0; i < t.world; i++) {
        waitpid(ranks[i], NULL, 0);
        well = well && b->ranks[i].status == TR_OK;
    }
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    if (!well) {
        print_error("-seed=%llu: %d ranks, way %d, rank %d is killed after %d us\n", (unsigned long long)seed, t.world, t.way,
            t.victim, after_us);
        for (int i = 0; i < t.world; i++)
            print_error("rank %d: '%s', then '%s'\n", i, b->ranks[i].text[0], b->ranks[i].text[1]);
    }
    munmap(b, sizeof *b);
    return well;
}

static void processes_join_again(void **state)
{
    (void)state;
    int failed = 0;
    for (uint64_t seed = 1; seed <= 30 && !only_seed; seed++) failed += !try_processes(seed);
    if (only_seed) failed = !try_processes(only_seed);
    assert_int_equal(failed, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && sscanf(argv[1], "-seed=%llu", &only_seed) != 1) return fprintf(stderr, "%s [-seed=S]\n", argv[0]), 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_join_again), /* before this process has threads */
        cmocka_unit_test(who_failed_counts_with_who_joined),
        cmocka_unit_test(who_came_too_early_goes_on),
        cmocka_unit_test(who_waits_in_the_next_generation_names_the_dead),
        cmocka_unit_test(a_death_that_is_told_between_two_looks_is_heard_of),
        cmocka_unit_test(who_is_marked_as_met_is_met),
        cmocka_unit_test(all_that_are_missing_are_named),
        cmocka_unit_test(threads_join_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
