/*
 * Private buffers that ranks of a host read and write where they lie, and what happens where the kernel forbids that, where a
 * buffer is not there, and where a call has failed on one side only. Ranks are processes.
 *
 * ctest: serial
 */
#include "base/clock.h"
#include "comm/backend/backend.h"
#include "comm/group/group.h"
#include "comm/transport/shm.h"
#include "processes.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static tr__shm *transport_of(const rank *r)
{
    tr__shm *shm;
    struct tr__tcp *tcp;
    tr__native_transports(r->group->state, &shm, &tcp);
    return shm;
}

/* From now on, for many calls: as measured, they go that way. Also where ranks take turns on a core. */
static void prefer(const rank *r, bool placed)
{
    tr__shm *t = transport_of(r);
    t->crowded = false;
    for (int i = 0; i < 2 * TR__SHM_CROSS_SIZES; i++)
        t->tuning[i / TR__SHM_CROSS_SIZES][i % TR__SHM_CROSS_SIZES] =
            (tr__shm_tuning){2 * TR__SHM_TRIES, {placed ? 2 : 1, placed ? 1 : 2}};
}

/* May a process here read another's memory and write it, as ranks do? Containers and hardened systems often forbid it. */
static bool may_cross(void)
{
    static char byte;
    int how = 1, ends[2];
    char got;
    pid_t peer, prober = -1;
    assert_int_equal(pipe(ends), 0);
    if ((peer = fork()) == 0) {
        close(ends[1]);
        _exit(read(ends[0], &got, 1) != 0);
    }
    if (peer > 0 && (prober = fork()) == 0) {
        const struct iovec here = {&got, 1}, there = {&byte, 1};
        _exit(process_vm_readv(peer, &here, 1, &there, 1, 0) != 1 || process_vm_writev(peer, &here, 1, &there, 1, 0) != 1);
    }
    if (prober > 0) waitpid(prober, &how, 0);
    close(ends[0]);
    close(ends[1]);
    waitpid(peer, NULL, 0);
    return how == 0;
}

static bool crosses; /* whether processes may; else what needs it is skipped */

/* ---- Data -------------------------------------------------------------------------------------------------------- */

typedef enum buffers { PRIVATE, SHARED_IN, SHARED_OUT, SHARED_AT_ODD_RANKS, BUFFERS } buffers;

static bool shares(const rank *r, buffers b, bool out)
{
    return b == SHARED_AT_ODD_RANKS ? r->number % 2 : b == (out ? SHARED_OUT : SHARED_IN);
}

/* What rank `from` gives as element i: sums of them are rounded, so their order shows. */
static float given(int from, int64_t i)
{
    return (float)(i & 0xffff) * (1.0f / 3) + (float)(from * 3 + 1) * (1.0f / 7);
}

static float sum(const rank *r, int64_t i)
{
    float s = given(0, i);
    for (int from = 1; from < r->world; from++) s += given(from, i);
    return s;
}

/* Element i of what this rank gets; blocks are of `count` elements. */
static float wanted(const rank *r, const tr_collective *c, int64_t count, int64_t i)
{
    int64_t block = i / count, within = i % count;
    switch (c->kind) {
    case TR_ALL_REDUCE:
    case TR_REDUCE: return sum(r, i);
    case TR_REDUCE_SCATTER: return sum(r, r->number * count + i);
    case TR_BROADCAST: return given(c->root, i);
    case TR_SCATTER:
    case TR_SCATTER_V: return given(c->root, r->number * count + i);
    case TR_ALL_TO_ALL:
    case TR_ALL_TO_ALL_V: return given((int)block, r->number * count + within);
    default: return given((int)block, within);
    }
}

typedef struct memory {
    buffers buffers;
    float *in, *out;
} memory;

static tr_status call(rank *r, const memory *m, tr_collective_kind kind, int64_t count, bool in_place)
{
    const tr__kind *k = tr__kind_of(kind);
    int64_t counts[RANKS_MOST], ins = k->in_blocks ? r->world * count : count, outs = k->out_blocks ? r->world * count : count;
    for (int i = 0; i < RANKS_MOST; i++) counts[i] = count;
    float *in = in_place ? m->out : m->in, *out = m->out;
    if (in_place && k->out_blocks && !k->in_blocks) in = out + r->number * count;
    if (in_place && k->in_blocks && !k->out_blocks) out = in + r->number * count;
    tr_collective c = {.size = sizeof c, .kind = kind, .in = in, .out = out, .count = count, .root = 1,
        .in_counts = k->variable ? counts : NULL, .out_counts = k->variable ? counts : NULL, .file = __FILE__, .line = __LINE__};
    for (int64_t i = 0; i < r->world * count; i++) m->out[i] = -1;
    for (int64_t i = 0; i < ins; i++) in[i] = given(r->number, i);
    TRY(tr_run_collective(r->group, &c));
    for (int64_t i = 0; i < outs && tr__collective_gets(&c, r->number); i++)
        if (out[i] != wanted(r, &c, count, i))
            return tr_fail(TR_INTERNAL, "kind %d, count %d, buffers %d%s: %g at %d, not %g", (int)kind, (int)count, (int)m->buffers,
                in_place ? ", in place" : "", (double)out[i], (int)i, (double)wanted(r, &c, count, i));
    return TR_OK;
}

static tr_status call_all(rank *r, const memory *m, int64_t count)
{
    for (tr_collective_kind kind = TR_ALL_REDUCE; kind <= TR_ALL_TO_ALL_V; kind++)
        for (int in_place = 0; in_place < 2; in_place++)
            if (!in_place || !tr__kind_of(kind)->variable) TRY(call(r, m, kind, count, in_place));
    return TR_OK;
}

/* Every kind, with blocks that take no whole number of lines, pages or pieces; then the bits are those of a fold by rank. */
static tr_status move_data(rank *r)
{
    static const int64_t counts[] = {TR__SHM_CROSS / 4 + 3, 100003};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (buffers b = 0; b < BUFFERS; b++) {
            size_t bytes = (size_t)(r->world * counts[i]) * sizeof(float);
            memory m = {b, shares(r, b, false) ? tr_shared_alloc(bytes) : malloc(bytes),
                shares(r, b, true) ? tr_shared_alloc(bytes) : malloc(bytes)};
            CHECK(m.in && m.out);
            TRY(call_all(r, &m, counts[i]));
            if (shares(r, b, false)) tr_shared_free(m.in); else free(m.in);
            if (shares(r, b, true)) tr_shared_free(m.out); else free(m.out);
        }
    return TR_OK;
}

/* Each way, and both in turn; an all_to_all in place is staged in any case. */
static tr_status reach_each_other(rank *r)
{
    tr__shm *t = transport_of(r);
    static float x[TR__SHM_CROSS];
    CHECK(t->endpoint->crosses);
    prefer(r, true);
    TRY(tr_all_reduce(r->group, x, TR__SHM_CROSS));
    TRY(tr_broadcast(r->group, x, TR__SHM_CROSS));
    CHECK(t->scratch && !t->staging);
    TRY(move_data(r));
    prefer(r, false);
    TRY(move_data(r));
    memset(t->tuning, 0, sizeof t->tuning);
    TRY(move_data(r));
    for (int i = 0; i < 2; i++) CHECK(t->tuning[i][0].best_ns[0] < INT64_MAX && t->tuning[i][0].best_ns[1] < INT64_MAX);
    return tr_leave(r->group);
}

static tr_status go_round(rank *r)
{
    prefer(r, true);
    TRY(move_data(r));
    CHECK(!transport_of(r)->endpoint->crosses && transport_of(r)->staging && !transport_of(r)->scratch);
    return tr_leave(r->group);
}

static void private_buffers_take_one_copy(void **state)
{
    (void)state;
    if (!crosses) skip();
    for (int world = 2; world <= 4; world++) run_job(world, reach_each_other, NULL);
}

/* All the same on every rank, also where it is one that cannot. */
static void what_the_kernel_forbids_is_staged(void **state)
{
    (void)state;
    run_job_in(&(setting){.refused = 7}, 3, go_round, NULL);
    run_job_in(&(setting){.refused = 2}, 3, go_round, NULL);
}

/* Rank 1 does not want it. */
static tr_status disagree(rank *r)
{
    static float x[TR__SHM_CROSS];
    prefer(r, r->number != 1);
    x[0] = 1;
    TRY(tr_all_reduce(r->group, x, TR__SHM_CROSS));
    CHECK(x[0] == 3 && transport_of(r)->staging && !transport_of(r)->scratch);
    TRY(tr_broadcast(r->group, x, TR__SHM_CROSS)); /* rank 0 alone gives */
    CHECK(x[0] == 3);
    return tr_leave(r->group);
}

static void ranks_that_measure_otherwise_agree(void **state)
{
    (void)state;
    run_job(3, disagree, NULL);
}

/* Calls that take so long each way: how many of a term cross. */
static int count_crossing(tr__shm_tuning *tuning, int64_t staged_ns, int64_t placed_ns)
{
    int crossing = 0;
    for (int i = 0; i < TR__SHM_TERM; i++) {
        bool placed = tr__shm_tuning_prefers(tuning);
        crossing += placed;
        tr__shm_tuning_note(tuning, placed, (placed ? placed_ns : staged_ns) + i % 2);
    }
    return crossing;
}

static void the_faster_way_is_taken(void **state)
{
    (void)state;
    tr__shm_tuning tuning = {0};
    assert_int_equal(count_crossing(&tuning, 100, 200), TR__SHM_TRIES);
    assert_int_equal(count_crossing(&tuning, 200, 100), TR__SHM_TERM - TR__SHM_TRIES); /* it has changed */
    assert_int_equal(count_crossing(&tuning, 100, 200), TR__SHM_TRIES);
    for (int i = 0; i < TR__SHM_TERM; i++) { /* never placed, as another rank does not want it */
        bool placed = tr__shm_tuning_prefers(&tuning);
        tr__shm_tuning_note(&tuning, false, placed ? 1 : 100);
        assert_true(i < 2 * TR__SHM_TRIES || !placed);
    }
}

/* ---- Huge pages -------------------------------------------------------------------------------------------------- */

enum { LONG = 8 << 20 };

/* Memory with a page before and behind it that nobody may touch, so that it is a mapping of its own. The one before is of another
 * kind, as where malloc() puts a large block behind something else. */
static float *map_alone(void)
{
    char *room = mmap(NULL, LONG + 2 * TR__PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool there = room != MAP_FAILED && mprotect(room + TR__PAGE, LONG, PROT_READ | PROT_WRITE) == 0 &&
                 mmap(room, TR__PAGE, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == room;
    return there ? memset(room + TR__PAGE, 0, LONG) : NULL;
}

/* KiB of it that are in huge pages. */
static long huge_kib(const float *alone)
{
    char line[512], begin[32];
    bool found = false;
    long kib = -1;
    snprintf(begin, sizeof begin, "%lx-", (unsigned long)(uintptr_t)alone);
    FILE *f = fopen("/proc/self/smaps", "re");
    while (f && kib < 0 && fgets(line, sizeof line, f)) {
        found |= strncmp(line, begin, strlen(begin)) == 0;
        if (found) (void)!sscanf(line, "AnonHugePages: %ld kB", &kib);
    }
    if (f) fclose(f);
    return kib;
}

static tr_status reduce_often(rank *r)
{
    float *x = map_alone(), *other = map_alone();
    CHECK(x && other);
    enum { COLLAPSE = 25 }; /* MADV_COLLAPSE, of Linux 6.1 */
    bool can = madvise((void *)tr__round_up((uintptr_t)other, TR__HUGE_PAGE), TR__HUGE_PAGE, COLLAPSE) == 0;
    long before = huge_kib(x); /* not 0 where the system has huge pages always */
    for (int i = 0; i < LONG / 4; i++) x[i] = (float)(r->number + i % 100);
    for (int turn = 0; turn < TR__SHM_HUGE_CALLS; turn++) {
        CHECK(huge_kib(x) == before);
        prefer(r, true);
        TRY(tr_all_reduce(r->group, x, LONG / 4, .op = TR_MAX));
    }
    CHECK(!can || huge_kib(x) >= (LONG >> 10) - 2 * (long)(TR__HUGE_PAGE >> 10));
    for (int i = 0; i < LONG / 4; i++) CHECK(x[i] == (float)(r->world - 1 + i % 100));
    return tr_leave(r->group);
}

static void buffers_that_come_again_get_huge_pages(void **state)
{
    (void)state;
    if (!crosses) skip();
    run_job(2, reduce_often, NULL);
}

/* As many as are remembered, at distances that are multiples of 4 MiB and more; then one more, for which the oldest goes. */
static tr_status take_turns(rank *r)
{
    enum { APART = 4 << 20, BYTES = TR__SHM_HUGE };
    tr__shm *t = transport_of(r);
    t->crowded = false;
    size_t room = (size_t)APART * (TR__SHM_BUFFERS + 1);
    char *first = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); /* nothing to collapse */
    CHECK(first != MAP_FAILED);
    for (int turn = 0; turn < TR__SHM_HUGE_CALLS; turn++) {
        for (int i = 0; turn > 0 && i < TR__SHM_BUFFERS; i++) CHECK(t->buffers[i].huge == 0);
        for (size_t i = 0; i < TR__SHM_BUFFERS; i++) tr__shm_note_private(t, first + i * APART, BYTES);
    }
    for (size_t i = 0; i < TR__SHM_BUFFERS; i++) {
        const tr__shm_buffer *b = &t->buffers[TR__SHM_BUFFERS - 1 - i];
        CHECK(b->at == first + i * APART && b->calls == TR__SHM_HUGE_CALLS && b->huge == BYTES);
    }
    tr__shm_note_private(t, first, BYTES);
    tr__shm_note_private(t, first + (size_t)TR__SHM_BUFFERS * APART, BYTES);
    CHECK(t->buffers[0].calls == 1 && t->buffers[1].at == first && t->buffers[1].calls == TR__SHM_HUGE_CALLS);
    CHECK(t->buffers[TR__SHM_BUFFERS - 1].at == first + 2 * APART);
    munmap(first, room);
    return tr_leave(r->group);
}

static void many_buffers_are_remembered_wherever_they_lie(void **state)
{
    (void)state;
    if (!crosses) skip();
    run_job(2, take_turns, NULL);
}

/* What lies beside memory is not touched, and of large memory only so much is done at once. */
static void whole_huge_pages_are_made_in_steps(void **state)
{
    (void)state;
    float *alone = map_alone(), *other = map_alone();
    assert_true(alone && other);
    char *first = (char *)tr__round_up((uintptr_t)alone, TR__HUGE_PAGE);
    bool can = madvise((void *)tr__round_up((uintptr_t)other, TR__HUGE_PAGE), TR__HUGE_PAGE, 25 /* MADV_COLLAPSE */) == 0;
    long before = huge_kib(alone), page = (long)(TR__HUGE_PAGE >> 10);
    size_t bytes = 2 * (size_t)TR__HUGE_PAGE, part = bytes - TR__PAGE;
    assert_true(tr__pages_collapse(first + TR__PAGE, TR__HUGE_PAGE, 0, TR__HUGE_PAGE) == TR__HUGE_PAGE); /* no whole one */
    assert_int_equal(huge_kib(alone), before);
    if (!can || before) return;
    assert_true(tr__pages_collapse(first + TR__PAGE, part, 0, bytes) == part);
    assert_int_equal(huge_kib(alone), page); /* the second alone */
    assert_true(tr__pages_collapse(first, bytes, 0, TR__HUGE_PAGE) == TR__HUGE_PAGE);
    assert_int_equal(huge_kib(alone), 2 * page);
    assert_true(tr__pages_collapse(first, bytes, TR__HUGE_PAGE, TR__HUGE_PAGE) == bytes);
    munmap(alone, LONG);
    munmap(other, LONG);
}

/* Rank 0 alone notes buffers that it broadcasts; which way reductions go is still tried by all ranks at once. */
static tr_status broadcast_often(rank *r)
{
    float *x = map_alone();
    CHECK(x);
    tr__shm *t = transport_of(r);
    t->crowded = false;
    for (int turn = 0; turn < 2 * TR__SHM_TRIES; turn++) TRY(tr_all_reduce(r->group, x, LONG / 4));
    for (int turn = 0; turn < TR__SHM_HUGE_CALLS; turn++) TRY(tr_broadcast(r->group, x, LONG / 4));
    CHECK(r->number || t->buffers[0].calls == TR__SHM_HUGE_CALLS);
    unsigned calls = 0;
    for (int i = 0; i < TR__SHM_CROSS_SIZES; i++) calls += t->tuning[1][i].calls;
    CHECK(calls == 2 * TR__SHM_TRIES);
    return tr_leave(r->group);
}

static void huge_pages_leave_the_ranks_in_phase(void **state)
{
    (void)state;
    if (!crosses) skip();
    run_job(2, broadcast_often, NULL);
}

/* ---- Buffers that are not there ---------------------------------------------------------------------------------- */

enum { HOLED = 1 << 20 }; /* bytes of a buffer whose first half is not there, at rank 1 */

/* Buffers of an all_reduce: in and out have a hole at rank 1. */
typedef struct holes {
    bool in, out;
    const char *says;
} holes;

static float *map_buffer(bool with_hole)
{
    char *x = mmap(NULL, HOLED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (x == MAP_FAILED || (with_hole && mprotect(x, HOLED / 2, PROT_NONE) != 0)) return NULL;
    return (float *)x;
}

/* Rank 0 folds the first half, and cannot. */
static tr_status reduce_with_holes(rank *r)
{
    const holes *h = r->arg;
    float *in = map_buffer(h->in && r->number == 1), *out = map_buffer(h->out && r->number == 1);
    CHECK(in && out);
    prefer(r, true);
    return tr_all_reduce(r->group, out, HOLED / 4, .in = in);
}

/* Rank 1 is the getter. */
static tr_status broadcast_into_a_hole(rank *r)
{
    float *x = map_buffer(r->number == 1);
    CHECK(x);
    prefer(r, true);
    return tr_broadcast(r->group, x, HOLED / 4);
}

static void check_holes(rank_body body, const void *arg, tr_status own, const char *words)
{
    job j;
    start_job(&j, 2, body, arg);
    for (int i = 0; i < 2; i++) reap(&j, i);
    for (int i = 0; i < 2; i++) {
        bool said = strstr(j.posts[i].text, words) && (strstr(j.posts[i].text, "rank 1 (pid ") || strstr(j.posts[i].text, "rank 1: "));
        if (j.posts[i].status != TR_PEER && !(i == 1 && j.posts[i].status == own)) said = false;
        if (!said) fail_msg("rank %d: '%s' (%s), not '%s'", i, j.posts[i].text, tr_status_name(j.posts[i].status), words);
    }
    finish(&j);
}

static void a_buffer_that_is_not_there_is_an_error_of_its_rank(void **state)
{
    (void)state;
    if (!crosses) skip();
    check_holes(reduce_with_holes, &(holes){.in = true}, TR_PEER, "cannot be read");
    check_holes(reduce_with_holes, &(holes){.out = true}, TR_PEER, "cannot be written");
    check_holes(broadcast_into_a_hole, NULL, TR_INVALID, "its own buffer cannot be written to");
}

/* ---- One side has failed ----------------------------------------------------------------------------------------- */

static tr_status expect_lost(rank *r, tr__shm *t, uint64_t address, char *byte)
{
    const tr__shm_call joining = {.timeout_ms = 50};
    *byte = 7;
    CHECK(tr__shm_copy(t, &joining, 1, address, 1, byte, NULL) == TR_PEER && *byte == 7);
    SAYS("gave up in the middle of a call");
    CHECK(tr__shm_copy(t, &joining, 1, address, 1, NULL, byte) == TR_PEER);
    CHECK(tr__shm_cross(t, &joining, 1) == TR_PEER && tr__shm_cross(t, &joining, -1) == TR_PEER);
    CHECK(r->number == 0 && !atomic_load(&t->control->crossing));
    return TR_OK;
}

/* Rank 0 has the address of a byte of rank 1's. A process that has another nonce there is not the peer; a peer that has withdrawn
 * uses its buffer for something else. */
static tr_status read_what_is_gone(rank *r)
{
    static char byte = 3;
    uint64_t addresses[RANKS_MOST], own = (uintptr_t)&byte;
    TRY(tr_all_gather(r->group, &own, addresses, 1, .dtype = TR_I64));
    tr__shm *t = transport_of(r);
    if (r->number == 0) {
        const tr__shm_call joining = {.timeout_ms = 50};
        char got = 0;
        tr__endpoint_page *page = t->peers[1].link->page;
        TRY(tr__shm_copy(t, &joining, 1, addresses[1], 1, &got, NULL));
        CHECK(got == 3);
        page->nonce++;
        CHECK(tr__endpoint_read(t->endpoint, 1, addresses[1], 1, &got) == ESRCH);
        page->nonce--;
        atomic_store(&t->peers[1].control->withdrew, 1);
        TRY(expect_lost(r, t, addresses[1], &got));
        atomic_store(&t->peers[1].control->withdrew, 0);
    }
    TRY(tr_barrier(r->group));
    CHECK(byte == 3);
    return tr_leave(r->group);
}

static void only_the_peer_itself_is_read(void **state)
{
    (void)state;
    if (!crosses) skip();
    run_job(2, read_what_is_gone, NULL);
}

static tr_status cross_until_it_fails(rank *r)
{
    static float in[4 * TR__SHM_CROSS], out[RANKS_MOST * 4 * TR__SHM_CROSS];
    const tr_collective c = {.size = sizeof c, .kind = *(const tr_collective_kind *)r->arg, .in = in, .out = out,
        .count = 4 * TR__SHM_CROSS, .file = __FILE__, .line = __LINE__};
    tr_status status;
    do {
        prefer(r, true);
        status = tr_run_collective(r->group, &c);
        atomic_fetch_add(&r->post->turns, status == TR_OK);
    } while (status == TR_OK);
    atomic_store(&r->post->ended, tr__now_ns());
    return status;
}

static void a_rank_killed_in_the_middle_is_named(void **state)
{
    (void)state;
    static const tr_collective_kind kinds[] = {TR_ALL_REDUCE, TR_ALL_GATHER, TR_BROADCAST};
    static const char *const names[] = {"all_reduce #", "all_gather #", "broadcast #"};
    for (int i = 0; i < 9; i++) {
        job j;
        int victim = i / 3;
        int64_t killed = kill_one_of(&j, &(setting){0}, 3, victim, cross_until_it_fails, &kinds[i % 3], 200 * i);
        for (int other = 0; other < 3; other++)
            if (other != victim) check_survivor(&j, other, victim, killed, (const char *[]){") died", names[i % 3], __FILE__ ":"});
        finish(&j);
    }
}

/* Rank 1 is in the middle of reading while rank 0's call fails: rank 0 does not return before rank 1 is done. */
static tr_status fail_under_a_reader(rank *r)
{
    static float x[TR__SHM_CROSS];
    tr__shm *t = transport_of(r);
    if (r->number) atomic_store(&t->control->crossing, 1);
    TRY(tr_barrier(r->group));
    if (r->number == 0) {
        tr_status status = tr_all_reduce(r->group, x, TR__SHM_CROSS, .timeout_ms = 300);
        CHECK(status == TR_TIMEOUT && atomic_load(&r->post->turns) == 1);
        return TR_OK;
    }
    while (!atomic_load(&t->peers[0].control->withdrew)) usleep(1000);
    usleep(20000);
    atomic_store(&r->post[-1].turns, 1);
    atomic_store(&t->control->crossing, 0);
    return TR_OK;
}

static void a_call_fails_when_nobody_reads_its_buffers_any_more(void **state)
{
    (void)state;
    run_job(2, fail_under_a_reader, NULL);
}

/* Mapped buffers, too: who is to read those of a rank that has given up fails before. */
static tr_status cross_mapped_buffers(rank *r)
{
    enum { COUNT = 1 << 20 };
    const tr_collective_kind *kind = r->arg;
    float *in = tr_shared_alloc(COUNT * sizeof(float)), *out = tr_shared_alloc(2 * COUNT * sizeof(float));
    CHECK(in && out);
    const tr_collective c = {.size = sizeof c, .kind = *kind, .in = in, .out = out, .count = COUNT, .timeout_ms = 200};
    TRY(tr_run_collective(r->group, &c));
    CHECK(!atomic_load(&transport_of(r)->control->crossing));
    TRY(tr_barrier(r->group));
    atomic_store(&transport_of(r)->control->withdrew, 1);
    TRY(tr_barrier(r->group));
    CHECK(tr_run_collective(r->group, &c) == TR_PEER);
    SAYS("gave up in the middle of a call");
    CHECK(!atomic_load(&transport_of(r)->control->crossing));
    tr_shared_free(in);
    tr_shared_free(out);
    return TR_OK;
}

static void mapped_buffers_are_crossed_to(void **state)
{
    (void)state;
    static const tr_collective_kind kinds[] = {TR_ALL_REDUCE, TR_ALL_GATHER};
    for (int i = 0; i < 2; i++) run_job(2, cross_mapped_buffers, &kinds[i]);
}

/* Rank 1 seems to have withdrawn from the call, at first not from this one. */
static tr_status end_what_a_rank_gave_up(rank *r)
{
    tr__shm *t = transport_of(r);
    const tr__shm_call call = {.sequence = 7, .timeout_ms = 50};
    if (r->number == 0) {
        atomic_store(&t->peers[1].control->withdrew, 8);
        TRY(tr__shm_cross_check(t, &call));
        atomic_store(&t->peers[1].control->withdrew, 7);
        CHECK(tr__shm_cross_check(t, &call) == TR_PEER);
        SAYS("rank 1 (pid ");
        SAYS("gave up in the middle of a call");
        atomic_store(&t->peers[1].control->withdrew, 0);
    }
    TRY(tr_barrier(r->group));
    return tr_leave(r->group);
}

static void a_call_that_a_rank_gave_up_ends_well_nowhere(void **state)
{
    (void)state;
    run_job(2, end_what_a_rank_gave_up, NULL);
}

int main(void)
{
    crosses = may_cross();
    if (!crosses) print_message("No process here may read another's memory: what needs that is skipped.\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(private_buffers_take_one_copy),
        cmocka_unit_test(what_the_kernel_forbids_is_staged),
        cmocka_unit_test(ranks_that_measure_otherwise_agree),
        cmocka_unit_test(the_faster_way_is_taken),
        cmocka_unit_test(buffers_that_come_again_get_huge_pages),
        cmocka_unit_test(many_buffers_are_remembered_wherever_they_lie),
        cmocka_unit_test(whole_huge_pages_are_made_in_steps),
        cmocka_unit_test(huge_pages_leave_the_ranks_in_phase),
        cmocka_unit_test(a_buffer_that_is_not_there_is_an_error_of_its_rank),
        cmocka_unit_test(only_the_peer_itself_is_read),
        cmocka_unit_test(a_rank_killed_in_the_middle_is_named),
        cmocka_unit_test(a_call_fails_when_nobody_reads_its_buffers_any_more),
        cmocka_unit_test(mapped_buffers_are_crossed_to),
        cmocka_unit_test(a_call_that_a_rank_gave_up_ends_well_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
