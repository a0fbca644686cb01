/*
 * Messages that nobody asks for: they stop their sender and leave the receiver's memory alone, a receive gets the one of its tag
 * nevertheless, and reports say who holds whom up. Ranks are processes, over shared memory, TCP, TLS, and records with checksums.
 *
 * ctest: serial timeout=240
 */
#include "base/clock.h"
#include "processes.h"
#include "sanitized.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { MIB = 1 << 20, LIMIT = 4 * MIB, LATE = 4 * MIB, KERNEL = 12 * MIB /* in sockets */, FLOOD = 64 * MIB };

static const int apart[] = {0, 1}, two_and_one[] = {0, 0, 1};
static const setting settings[] = {
    {.unexpected_bytes = LIMIT, .report_ms = 300},
    {.unexpected_bytes = LIMIT, .report_ms = 300, .transport = "tcp"},
    {.unexpected_bytes = LIMIT, .report_ms = 300, .transport = "tcp", .encrypt = true},
    {.unexpected_bytes = LIMIT, .report_ms = 300, .hosts = apart},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

/* What still goes without a receive: little in shared memory. */
static int64_t longest(const rank *r)
{
    const setting *s = r->arg;
    return s->transport || s->hosts ? MIB : 8 << 10;
}

/* ---- The one that is wanted ---------------------------------------------------------------------------------------- */

static tr_status send_many(rank *r)
{
    TR_SCOPE;
    int64_t bytes = longest(r), count = FLOOD / bytes;
    char *x = calloc((size_t)count, (size_t)bytes), wanted[100] = "wanted";
    tr_work **works = calloc((size_t)count, sizeof *works);
    CHECK(x && works);
    for (int64_t i = 0; i < count; i++) {
        memcpy(x + i * bytes, &i, sizeof i);
        works[i] = tr_send_async(r->group, x + i * bytes, bytes, .dtype = TR_U8, .peer = 1, .tag = 7);
    }
    TRY(tr_send(r->group, wanted, 100, .dtype = TR_U8, .peer = 1, .tag = 1));
    TRY(tr_recv(r->group, wanted, 100, .dtype = TR_U8, .peer = 1));
    CHECK(!tr_work_done(works[count - 1])); /* nobody has asked for it yet */
    TRY(tr_send(r->group, x, 1, .dtype = TR_U8, .peer = 1, .tag = 2));
    for (int64_t i = 0; i < count; i++) TRY(tr_wait(works[i]));
    free(x);
    free(works);
    return tr_leave(r->group);
}

static tr_status receive_another(rank *r)
{
    struct rusage before, after;
    int64_t bytes = longest(r), number;
    char *x = calloc(1, (size_t)bytes), wanted[100] = "";
    CHECK(x);
    getrusage(RUSAGE_SELF, &before);
    TRY(tr_recv(r->group, wanted, 100, .dtype = TR_U8, .peer = 0, .tag = 1));
    CHECK(strcmp(wanted, "wanted") == 0);
    usleep(100000); /* what still may come does */
    TRY(tr_send(r->group, wanted, 100, .dtype = TR_U8, .peer = 0));
    TRY(tr_recv(r->group, wanted, 1, .dtype = TR_U8, .peer = 0, .tag = 2));
    getrusage(RUSAGE_SELF, &after);
    long grown = (after.ru_maxrss - before.ru_maxrss) * 1024;
    if (!SANITIZED && grown > LIMIT + LATE + 4 * MIB) return tr_fail(TR_INTERNAL, "the memory has grown by %ld bytes", grown);
    for (int64_t i = 0; i < FLOOD / bytes; i++) {
        TRY(tr_recv(r->group, x, bytes, .dtype = TR_U8, .peer = 0, .tag = 7));
        memcpy(&number, x, sizeof number);
        CHECK(number == i);
    }
    free(x);
    return tr_leave(r->group);
}

static tr_status flood_and_ask(rank *r)
{
    return r->number == 0 ? send_many(r) : receive_another(r);
}

static void a_receive_gets_the_message_of_its_tag_beyond_the_limit(void **state)
{
    (void)state;
    for (int i = 0; i < SETTINGS; i++) run_job_in(&settings[i], 2, flood_and_ask, &settings[i]);
}

/* ---- Both first ---------------------------------------------------------------------------------------------------- */

/* Also again and again, when the peer has not said yet that it has received the last ones. */
static tr_status send_first(rank *r)
{
    enum { TURNS = 30 };
    int64_t bytes = longest(r), count = 3 * MIB / bytes;
    char *x = calloc(1, (size_t)bytes);
    CHECK(x);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int64_t i = 0; i < count; i++)
            TRY(tr_send(r->group, x, bytes, .dtype = TR_U8, .peer = 1 - r->number, .timeout_ms = 20000));
        for (int64_t i = 0; i < count; i++) TRY(tr_recv(r->group, x, bytes, .dtype = TR_U8, .peer = 1 - r->number));
    }
    free(x);
    return tr_leave(r->group);
}

static void ranks_that_both_send_first_get_along_within_the_limit(void **state)
{
    (void)state;
    for (int i = 0; i < SETTINGS; i++) run_job_in(&settings[i], 2, send_first, &settings[i]);
}

/* ---- Never --------------------------------------------------------------------------------------------------------- */

static void note_report(tr_log_level level, const char *message, void *user)
{
    rank *r = user;
    (void)level;
    if (!strstr(message, "has waited") || atomic_load(&r->post->reports)) return;
    snprintf(r->post->text, sizeof r->post->text, "%s", message);
    atomic_store(&r->post->reports, 1);
}

static tr_status send_in_vain(rank *r)
{
    char *x = calloc(1, (size_t)longest(r));
    CHECK(x);
    tr_status status = TR_OK;
    tr_set_log(note_report, r, TR_LOG_WARN);
    while (status == TR_OK) {
        status = tr_send(r->group, x, longest(r), .dtype = TR_U8, .peer = 1, .tag = 7);
        atomic_fetch_add(&r->post->turns, status == TR_OK);
    }
    free(x);
    return status;
}

/* Rank 1 receives another tag, so it takes in what comes; or it does nothing. */
static tr_status hold_up_by_receiving(rank *r)
{
    float y;
    return r->number == 0 ? send_in_vain(r) : tr_recv(r->group, &y, 1, .peer = 0, .tag = 9);
}

static tr_status hold_up_by_sleeping(rank *r)
{
    if (r->number == 0) return send_in_vain(r);
    for (;;) pause();
}

static void expect(const char *text, const char *words)
{
    if (!strstr(text, words)) fail_msg("'%s' does not say '%s'", text, words);
}

/* Until it does: who is to be explained may not have come to where it waits. */
static void explain(const job *j, const char *words)
{
    char pid[16], *text;
    bool said = false;
    snprintf(pid, sizeof pid, "%ld", (long)j->ranks[0].pid);
    for (int ms = 0; !said; ms += 10) {
        assert_int_equal(tr_job_explain(pid, &text), TR_OK);
        said = strstr(text, words);
        if (ms >= PATIENCE_MS) expect(text, words);
        free(text);
        if (!said) usleep(10000);
    }
}

/* Until rank 0 reports that it waits, with these words: a rank 1 that is kept from saying so much for as long as that is reported
 * without them, and then another job is begun. */
static void start_held_up(job *j, const setting *s, rank_body body, const char *words)
{
    for (int turn = 0;; turn++) {
        start_job_in(j, s, 2, body, s);
        for (int ms = 0; ms < PATIENCE_MS && !atomic_load(&j->posts[0].reports); ms++) usleep(1000);
        if (strstr(j->posts[0].text, words)) return;
        if (turn == 9) expect(j->posts[0].text, words);
        for (int i = 0; i < 2; i++) kill(j->ranks[i].pid, SIGKILL);
        for (int i = 0; i < 2; i++) reap(j, i);
        finish(j);
    }
}

static void hold_up(const setting *s, rank_body body, bool receiving)
{
    job j;
    const char *tag = receiving ? ", the first of tag 7" : "";
    char name[64], words[128];
    snprintf(words, sizeof words, " MiB lie there unasked%s; rank 1 ", tag);
    start_held_up(&j, s, body, words);
    rank r = {.arg = s};
    int turns = atomic_load(&j.posts[0].turns);
    snprintf(name, sizeof name, "rank 1 (pid %ld", (long)j.ranks[1].pid);
    expect(j.posts[0].text, "rank 0 has waited 0.3 s in send (u8[");
    expect(j.posts[0].text, name);
    expect(j.posts[0].text, ") to receive: ");
    explain(&j, "waits for rank 1 to receive: ");
    explain(&j, receiving ? " MiB lie there unasked, the first of tag 7" : " MiB lie there unasked\n");
    explain(&j, receiving ? "ranks 0 and 1 wait for each other" : "waits for it to receive: ");
    if (receiving && turns * longest(&r) < LIMIT - MIB) fail_msg("only %d messages went without a receive", turns);
    if (turns * longest(&r) > LIMIT + LATE + KERNEL) fail_msg("%d messages went without a receive", turns);
    usleep(100000);
    assert_int_equal(atomic_load(&j.posts[0].turns), turns);

    int64_t killed = tr__now_ns();
    kill(j.ranks[1].pid, SIGKILL);
    for (int i = 0; i < 2; i++) reap(&j, i);
    const char *unseen = "died, exited without leaving group 'world', or lost its connection, "; /* on another host */
    check_survivor(&j, 0, 1, killed, (const char *[]){s->hosts ? unseen : "died of signal 9", "", ""});
    finish(&j);
}

static void who_never_receives_holds_up_the_sender_and_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < SETTINGS; i++) {
        hold_up(&settings[i], hold_up_by_receiving, true);
        hold_up(&settings[i], hold_up_by_sleeping, false);
    }
}

/* ---- Beside other groups ------------------------------------------------------------------------------------------- */

/* Rank 0 floods rank 1 in a group of the two, whose limit is that of the world, and works with rank 2 in another. */
static tr_status flood_beside(rank *r)
{
    enum { COUNT = 64, AFTER = 50 };
    TR_SCOPE;
    tr_group *both = tr_group_new(r->group, (int[]){0, 1}, 2), *other = tr_group_new(r->group, (int[]){0, 2}, 2);
    TRY(tr_status_of(both));
    TRY(tr_status_of(other));
    float *x = calloc(COUNT, MIB), sum = 1;
    CHECK(x);
    if (r->number == 1) return tr_recv(both, x, 1, .peer = 0, .tag = 9);
    tr_work *works[COUNT];
    for (int i = 0; i < COUNT && r->number == 0; i++)
        works[i] = tr_send_async(both, x, MIB / 4, .peer = 1, .tag = 7);
    for (int turn = 0; turn < AFTER || atomic_load(&r->post->reports) == 0; turn++) {
        TRY(tr_all_reduce(other, &sum, 1, .op = TR_MAX));
        if (turn == 3) atomic_store(&r->post->turns, 3);
        if (sum == 2) atomic_store(&r->post->reports, 1); /* both know, so both end with this turn */
        if (r->number == 0 && tr_work_done(works[COUNT - 1])) sum = 2; /* rank 1 is dead */
        usleep(1000);
    }
    tr_status status = r->number == 0 ? tr_wait(works[COUNT - 1]) : TR_PEER;
    CHECK(status == TR_PEER);
    for (int turn = 0; turn < AFTER; turn++) TRY(tr_all_reduce(other, &sum, 1));
    free(x);
    return tr_leave(other);
}

static void a_held_up_group_that_breaks_leaves_others_alone(void **state)
{
    (void)state;
    static const setting three[] = {{.unexpected_bytes = LIMIT}, {.unexpected_bytes = LIMIT, .transport = "tcp"},
        {.unexpected_bytes = LIMIT, .hosts = two_and_one}};
    for (int i = 0; i < 3; i++) {
        job j;
        start_job_in(&j, &three[i], 3, flood_beside, &three[i]);
        for (int number = 0; number < 3; number += 2) await_turns(&j, number, 3);
        kill(j.ranks[1].pid, SIGKILL);
        for (int number = 0; number < 3; number++) reap(&j, number);
        for (int number = 0; number < 3; number += 2)
            if (j.posts[number].status != TR_OK) fail_msg("rank %d says '%s'", number, j.posts[number].text);
        finish(&j);
    }
}

static void a_limit_must_be_positive(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_int_equal(tr_status_of(tr_join(.unexpected_bytes = -1)), TR_INVALID);
    expect(tr_error_message(), ".unexpected_bytes of -1 must be positive");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_receive_gets_the_message_of_its_tag_beyond_the_limit),
        cmocka_unit_test(ranks_that_both_send_first_get_along_within_the_limit),
        cmocka_unit_test(who_never_receives_holds_up_the_sender_and_is_named),
        cmocka_unit_test(a_held_up_group_that_breaks_leaves_others_alone),
        cmocka_unit_test(a_limit_must_be_positive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
