/*
 * Receives from any rank: whose message they get, in which order, and what ends them where none comes. Ranks are
 * processes, over shared memory, TCP, TLS, and on pretended hosts.
 *
 * ctest: serial timeout=240
 */
#include "processes.h"
#include "together.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LONG = 200003, MIB = 1 << 20 };

static const int two_and_two[] = {0, 1, 0, 1};
static const setting settings[] = {
    {0},
    {.transport = "tcp"},
    {.transport = "tcp", .encrypt = true},
    {.hosts = two_and_two},
};
enum { SETTINGS = sizeof settings / sizeof *settings, PLAIN = 0 };

static void run_everywhere(rank_body body)
{
    for (int i = 0; i < SETTINGS; i++) run_job_in(&settings[i], 4, body, NULL);
}

/* Rank 0 lets the others send one after the other: each waits for its word. */
static tr_status await_word(rank *r)
{
    char word;
    return tr_recv(r->group, &word, 1, .dtype = TR_U8, .peer = 0, .tag = 99);
}

static tr_status give_word(rank *r, int to)
{
    return tr_send(r->group, "", 1, .dtype = TR_U8, .peer = to, .tag = 99);
}

/* ---- Whose message ------------------------------------------------------------------------------------------------- */

static const int64_t sizes[] = {0, 1, 3000, LONG};
enum { SIZES = 4 };

/* Every rank sends some of every size, before they are asked for or after. Those of one rank come in its order. */
static tr_status gather_all(rank *r, bool late)
{
    enum { EACH = 4 };
    int64_t *x = calloc(LONG, 8);
    int next[RANKS_MOST] = {0}, source;
    CHECK(x);
    for (int s = 0; s < SIZES; s++) {
        if ((r->number == 0) == late) usleep(30000);
        memset(next, 0, sizeof next);
        for (int i = 0; i < EACH * (r->world - 1) && r->number == 0; i++) {
            source = -1;
            TRY(tr_recv(r->group, x, sizes[s], .dtype = TR_I64, .peer = TR_ANY_SOURCE, .source = &source, .tag = s));
            CHECK(source > 0 && source < r->world);
            for (int64_t k = 0; k < sizes[s]; k++) CHECK(x[k] == source * 1000000 + next[source] * 10 + k % 10);
            next[source]++;
        }
        for (int i = 0; i < EACH && r->number != 0; i++) {
            for (int64_t k = 0; k < sizes[s]; k++) x[k] = r->number * 1000000 + i * 10 + k % 10;
            TRY(tr_send(r->group, x, sizes[s], .dtype = TR_I64, .peer = 0, .tag = s));
        }
        for (int from = 1; from < r->world && r->number == 0; from++) CHECK(next[from] == EACH);
        TRY(tr_barrier(r->group));
    }
    free(x);
    return tr_leave(r->group);
}

static tr_status gather_late(rank *r)
{
    return gather_all(r, true);
}

static tr_status gather_early(rank *r)
{
    return gather_all(r, false);
}

static void all_messages_come_with_their_source(void **state)
{
    (void)state;
    run_everywhere(gather_late);
    run_everywhere(gather_early);
    run_job(2, gather_early, NULL);
}

/* The message that is here longest is next, so nobody is left behind while others go on sending. */
static tr_status take_turns(rank *r)
{
    enum { EACH = 20 };
    static const int order[] = {2, 3, 1};
    int got[4] = {0}, source;
    float x = (float)r->number, y = 0;
    for (int i = 0; i < 3 && r->number == 0; i++) {
        TRY(give_word(r, order[i]));
        TRY(tr_recv(r->group, &y, 1, .peer = order[i], .tag = 98)); /* it has sent all, which came before this */
    }
    if (r->number != 0) TRY(await_word(r));
    for (int i = 0; i < EACH && r->number != 0; i++) {
        TRY(tr_send(r->group, &y, 1, .peer = 0, .tag = 7));
        TRY(tr_send(r->group, &x, 1, .peer = 0, .tag = 5));
    }
    if (r->number != 0) TRY(tr_send(r->group, &x, 1, .peer = 0, .tag = 98));
    for (int i = 0; i < 3 * EACH && r->number == 0; i++) {
        TRY(tr_recv(r->group, &y, 1, .peer = TR_ANY_SOURCE, .tag = 5, .source = &source));
        CHECK(source == order[i / EACH] && y == (float)source);
        got[source]++;
    }
    TRY(tr_barrier(r->group));
    for (int i = 0; i < 3 * EACH && r->number == 0; i++) TRY(tr_recv(r->group, &y, 1, .peer = TR_ANY_SOURCE, .tag = 7));
    return tr_leave(r->group);
}

static void the_oldest_message_is_the_first(void **state)
{
    (void)state;
    run_everywhere(take_turns);
}

/* A message goes to the receive that was posted first, from its rank or from any. */
static tr_status post_in_turns(rank *r)
{
    TR_SCOPE;
    int from[4] = {-1, -1, -1, -1};
    float x[4] = {0}, y;
    if (r->number == 0) {
        tr_work *works[4];
        for (int i = 0; i < 4; i++)
            works[i] = tr_recv_async(r->group, &x[i], 1, .peer = i % 2 ? TR_ANY_SOURCE : 1, .source = &from[i], .tag = 3);
        TRY(give_word(r, 1));
        TRY(tr_wait(works[0]));
        TRY(tr_wait(works[1]));
        CHECK(x[0] == 10 && from[0] == 1 && x[1] == 11 && from[1] == 1);
        CHECK(!tr_work_done(works[2]) && !tr_work_done(works[3]));
        TRY(give_word(r, 2));
        TRY(tr_wait(works[3]));
        CHECK(x[3] == 20 && from[3] == 2 && !tr_work_done(works[2]));
        TRY(give_word(r, 1));
        TRY(tr_wait(works[2]));
        CHECK(x[2] == 12 && from[2] == 1);
        tr_collective list[2];
        for (int i = 0; i < 2; i++)
            list[i] = TR_COLLECTIVE(TR_RECV, .out = &x[i], .count = 1, .peer = TR_ANY_SOURCE, .source = &from[i], .tag = 4);
        tr_work *both = tr_post_list(r->group, list, 2);
        TRY(give_word(r, 1));
        TRY(give_word(r, 2));
        TRY(tr_wait(both));
        CHECK(from[0] + from[1] == 3 && x[0] == (float)from[0] && x[1] == (float)from[1]);
    } else if (r->number < 3) {
        for (int i = 0; i < 3; i++) {
            y = (float)(10 * r->number + i);
            if (r->number == 1 ? i != 1 : i == 0) TRY(await_word(r));
            if (r->number == 1 || i == 0) TRY(tr_send(r->group, &y, 1, .peer = 0, .tag = 3));
        }
        y = (float)r->number;
        TRY(await_word(r));
        TRY(tr_send(r->group, &y, 1, .peer = 0, .tag = 4));
    }
    TRY(tr_barrier(r->group));
    return tr_leave(r->group);
}

static void the_receive_that_was_posted_first_gets_it(void **state)
{
    (void)state;
    run_everywhere(post_in_turns);
}

/* More than the limit lies here, of a tag that nobody asks for: what any rank sends with another gets through. */
static tr_status pass_a_flood(rank *r)
{
    enum { COUNT = 12, PIECE = MIB / 2 };
    TR_SCOPE;
    char *x = calloc(COUNT, PIECE);
    int source;
    CHECK(x);
    tr_work *works[COUNT] = {NULL};
    for (int i = 0; i < COUNT && r->number == 1; i++)
        works[i] = tr_send_async(r->group, x + i * PIECE, PIECE, .dtype = TR_U8, .peer = 0, .tag = 7);
    if (r->number == 1) {
        x[0] = 1;
        TRY(tr_send(r->group, x, 8192, .dtype = TR_U8, .peer = 0, .tag = 1));
    }
    if (r->number == 0) {
        TRY(tr_recv(r->group, x, 8192, .dtype = TR_U8, .peer = TR_ANY_SOURCE, .tag = 1, .source = &source));
        CHECK(source == 1 && x[0] == 1);
        for (int i = 0; i < COUNT; i++)
            TRY(tr_recv(r->group, x, PIECE, .dtype = TR_U8, .peer = TR_ANY_SOURCE, .tag = 7));
    }
    for (int i = 0; i < COUNT; i++) TRY(tr_wait(works[i]));
    free(x);
    TRY(tr_barrier(r->group));
    return tr_leave(r->group);
}

static void held_messages_get_through(void **state)
{
    (void)state;
    for (int i = 0; i < SETTINGS; i++) {
        setting s = settings[i];
        s.unexpected_bytes = MIB;
        run_job_in(&s, 4, pass_a_flood, NULL);
    }
}

/* ---- Where no message comes ------------------------------------------------------------------------------------------ */

static tr_status wait_in_vain(rank *r)
{
    float x = 0;
    for (int tag = 8; r->number == 1 && tag >= 7; tag--) TRY(tr_send(r->group, &x, 1, .peer = 0, .tag = tag));
    TRY(pass_barrier_together(r->group, r->store));
    if (r->number != 0) {
        CHECK(tr_barrier(r->group) == TR_TIMEOUT);
        SAYS("tag 9");
        return TR_OK;
    }
    TRY(tr_recv(r->group, &x, 1, .peer = 1, .tag = 7)); /* what was sent before it is here */
    CHECK(tr_recv(r->group, &x, 1, .peer = TR_ANY_SOURCE, .tag = 9, .timeout_ms = 300) == TR_TIMEOUT);
    SAYS("recv (f32[1] from any rank, tag 9 at ");
    SAYS("rank 0 waited 0.3 s for any rank; what is here has other tags, the oldest from rank 1 with tag 8");
    return TR_OK;
}

static void a_timeout_says_what_is_here_instead(void **state)
{
    (void)state;
    run_everywhere(wait_in_vain);
}

/* The last message of who has left is received; then nobody is left that could send one. */
static tr_status all_leave(rank *r)
{
    float x = 0;
    int source;
    if (r->number != 0) {
        x = 5;
        if (r->number == r->world - 1) TRY(tr_send(r->group, &x, 1, .peer = 0, .tag = 2));
        return tr_leave(r->group);
    }
    usleep(50000);
    TRY(tr_recv(r->group, &x, 1, .peer = TR_ANY_SOURCE, .tag = 2, .source = &source));
    CHECK(x == 5 && source == r->world - 1);
    CHECK(tr_recv(r->group, &x, 1, .peer = TR_ANY_SOURCE, .tag = 2, .timeout_ms = PATIENCE_MS) == TR_PEER);
    SAYS("all other ranks have left group 'world', but recv (f32[1] from any rank, tag 2 at ");
    return TR_OK;
}

static void when_all_have_left_it_fails(void **state)
{
    (void)state;
    run_everywhere(all_leave);
}

/* Turns as kill_one_of() counts them, then rank 0 waits for anyone, and the others for a message of its. */
static tr_status wait_for_the_dead(rank *r)
{
    float x = 1;
    for (int turn = 0; turn < 3; turn++) {
        TRY(tr_all_reduce(r->group, &x, 1, .op = TR_MAX));
        atomic_fetch_add(&r->post->turns, 1);
    }
    return tr_recv(r->group, &x, 1, .peer = r->number == 0 ? TR_ANY_SOURCE : 0, .tag = 4);
}

static void a_rank_that_dies_ends_it(void **state)
{
    (void)state;
    for (int i = 0; i < SETTINGS; i++) {
        job j;
        int64_t killed = kill_one_of(&j, &settings[i], 4, 2, wait_for_the_dead, NULL, 20000);
        check_survivor(&j, 0, 2, killed, (const char *[]){"rank 2 (pid ", "", ""});
        check_survivor(&j, 1, 2, killed, (const char *[]){"rank 2 (pid ", "", ""});
        finish(&j);
    }
}

/* `why` shows that rank 0 waits for all of them, and names the one that waits for nobody. */
static tr_status hang(rank *r)
{
    float x;
    TRY(tr_barrier(r->group));
    atomic_store(&r->post->turns, 1);
    if (r->number == 2) pause();
    return tr_recv(r->group, &x, 1, .peer = r->number == 0 ? TR_ANY_SOURCE : 0, .tag = 4);
}

static void why_shows_whom_it_waits_for(void **state)
{
    (void)state;
    static const char *const words[] = {"recv (f32[1] from any rank, tag 4 at ", "waits for ranks 1, 2 and 3",
        "is what ranks 0, 1 and 3 wait for"};
    job j;
    bool said = false;
    char pid[16], *text;
    start_job_in(&j, &settings[PLAIN], 4, hang, NULL);
    for (int number = 0; number < 4; number++) await_turns(&j, number, 1);
    snprintf(pid, sizeof pid, "%ld", (long)j.ranks[0].pid);
    for (int ms = 0; !said; ms += 10) { /* until all of them wait */
        usleep(10000);
        assert_int_equal(tr_job_explain(pid, &text), TR_OK);
        said = strstr(text, words[0]) && strstr(text, words[1]) && strstr(text, words[2]);
        if (!said && ms > PATIENCE_MS) fail_msg("'%s' does not say '%s', '%s' and '%s'", text, words[0], words[1], words[2]);
        free(text);
    }
    kill(j.ranks[2].pid, SIGKILL);
    for (int number = 0; number < 4; number++) reap(&j, number);
    finish(&j);
}

/* ---- What does not fit ---------------------------------------------------------------------------------------------- */

static tr_status differ(rank *r)
{
    float x[5] = {0};
    tr_status status = TR_OK;
    TRY(pass_barrier_together(r->group, r->store));
    if (r->number == 3) status = tr_send(r->group, x, 4, .peer = 0, .tag = 5);
    if (r->number == 0) status = tr_recv(r->group, x, 5, .peer = TR_ANY_SOURCE, .tag = 5);
    if (status == TR_OK) status = tr_barrier(r->group);
    CHECK(status == TR_MISMATCH);
    SAYS("rank 3 send (f32[4] to rank 0, tag 5 at ");
    SAYS("rank 0 recv (f32[5] from rank 3, tag 5 at ");
    return TR_OK;
}

static void a_message_of_another_size_is_an_error_on_all(void **state)
{
    (void)state;
    run_everywhere(differ);
}

/* A group of one has nobody to receive from, a send needs a rank, and bad arguments break nothing. */
static tr_status refuse(rank *r)
{
    float x = 0;
    CHECK(tr_send(r->group, &x, 1, .peer = TR_ANY_SOURCE) == TR_INVALID);
    SAYS("peer -1 is not a rank of this group");
    CHECK(tr_recv(r->group, &x, 1, .peer = -2) == TR_INVALID);
    SAYS("peer -2 is not a rank of this group");
    if (r->world == 1) {
        CHECK(tr_recv(r->group, &x, 1, .peer = TR_ANY_SOURCE) == TR_INVALID);
        SAYS("in a group of one rank");
    }
    TRY(tr_barrier(r->group));
    return tr_leave(r->group);
}

static void bad_arguments_break_nothing(void **state)
{
    (void)state;
    run_job(1, refuse, NULL);
    run_job(2, refuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_messages_come_with_their_source),
        cmocka_unit_test(the_oldest_message_is_the_first),
        cmocka_unit_test(the_receive_that_was_posted_first_gets_it),
        cmocka_unit_test(held_messages_get_through),
        cmocka_unit_test(a_timeout_says_what_is_here_instead),
        cmocka_unit_test(when_all_have_left_it_fails),
        cmocka_unit_test(a_rank_that_dies_ends_it),
        cmocka_unit_test(why_shows_whom_it_waits_for),
        cmocka_unit_test(a_message_of_another_size_is_an_error_on_all),
        cmocka_unit_test(bad_arguments_break_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
