/*
 * The end: when is nothing under way any more, anywhere? The live worker of the lowest rank asks all others, round after
 * round, whether they have called tr_rpc_stop(), have no call under way and run none, and how many calls they have begun so
 * far. A request that is on its way belongs to a call that is under way at its caller. Messages about references are counted where
 * they are sent and where they were heard: alike over all workers, none is on its way (Mattern 1987). So when two rounds find
 * everyone idle and the same numbers, there was nothing in between, and there will be nothing. If the asker has lost a worker that
 * others have not, the two counts never become alike: from then on only calls are waited for.
 *
 * That may take long, as others compute, and a worker that only serves waits for all of it. When nobody has had a call under
 * way for as long as the agent's timeout, the log is told whom all wait for; only on a worker that does not answer for as long
 * the asker gives up, and tells all who it was. The others ask the asker now and then, and treat it in the same way.
 *
 * A function whose caller waits may take as long as the call. When all have stopped and nobody waits for a call any more, what
 * still runs was given up by its caller: if none ends for the agent's timeout, the asker gives up in the same way, and names it.
 *
 * A worker that is gone is not waited for, but unless it had stopped the asker tells all that it was lost: a worker that
 * serves others makes no call that could tell it so, and may hear of the end first.
 */
#include "rpc/agent.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdio.h>
#include <string.h>

enum { TEXT = sizeof((tr_rpc){0}.end_text) };
enum { PAUSE_FIRST_US = 200, PAUSE_MOST_US = 10000, LOOK_MS = 100, ASK_MS = 1000 };
/* What an answer says, in the frame's status. */
enum { DONE = 1, STOPPED = 2, CALLS = 4 }; /* it has stopped and is idle; has stopped; has calls under way */

/* A worker is gone, and nobody need wait for it. */
void tr__drain_wake(tr_rpc *rpc)
{
    TR__LOCKED(&rpc->drain_lock);
    rpc->moved = tr__now_ns();
    if (rpc->stopping) pthread_cond_broadcast(&rpc->drain_changed);
}

void tr__drain_gone(tr_rpc *rpc, tr__rpc_link *link, bool left)
{
    TR__LOCKED(&rpc->drain_lock);
    link->lost = !left && !rpc->ended;
    atomic_store(&link->gone, true);
}

bool tr__drain_gave_up(tr_rpc *rpc, int worker)
{
    TR__LOCKED(&rpc->drain_lock);
    return rpc->answers[worker].given_up;
}

/* Of this worker, what it would answer. */
static struct tr__rpc_answer state_of(tr_rpc *rpc)
{
    struct tr__rpc_answer a = {.round = 0};
    pthread_mutex_lock(&rpc->calls_lock);
    bool has_calls = rpc->call_count > 0;
    a.begun = rpc->calls_ever;
    pthread_mutex_unlock(&rpc->calls_lock);
    bool idle = !has_calls && tr__rpc_requests(rpc) == 0;
    a.begun += tr__refs_sent(rpc, &a.unheard);
    a.runs_ended = tr__rpc_busy(rpc, a.busy);
    pthread_mutex_lock(&rpc->drain_lock);
    bool stopped = rpc->stopping;
    pthread_mutex_unlock(&rpc->drain_lock);
    a.state = (idle && stopped ? DONE : 0) | (stopped ? STOPPED : 0) | (has_calls ? CALLS : 0);
    return a;
}

enum { NUMBERS = 3 }; /* of an answer: what has begun; what is unheard; functions that have ended */

/* ---- What others say --------------------------------------------------------------------------------------------- */

static void hear_question(tr_rpc *rpc, const tr__rpc_inbound *m)
{
    struct tr__rpc_answer a = state_of(rpc);
    const uint64_t numbers[NUMBERS] = {a.begun, a.unheard, a.runs_ended};
    tr__rpc_frame frame = {.type = TR__RPC_ANSWER, .id = m->frame.id, .status = a.state};
    tr__rpc_tell(rpc, m->from, frame, numbers, sizeof numbers, a.busy);
}

static void hear_answer(tr_rpc *rpc, const tr__rpc_inbound *m)
{
    uint64_t numbers[NUMBERS];
    if (m->frame.body < sizeof numbers) return;
    memcpy(numbers, m->body, sizeof numbers);
    tr__rpc_reader r = {.at = m->body + sizeof numbers, .end = m->body + m->frame.body};
    const char *busy = tr__rpc_read_text(&r);
    TR__LOCKED(&rpc->drain_lock);
    struct tr__rpc_answer *a = &rpc->answers[m->from];
    int64_t now = tr__now_ns();
    if (numbers[0] != a->begun || m->frame.status & CALLS) rpc->moved = now;
    *a = (struct tr__rpc_answer){.round = m->frame.id, .begun = numbers[0], .unheard = numbers[1],
        .runs_ended = numbers[2], .state = m->frame.status, .heard = now};
    snprintf(a->busy, sizeof a->busy, "%s", busy ? busy : "");
    pthread_cond_broadcast(&rpc->drain_changed);
}

/* Under the lock: the first failure counts. */
static void set_end(tr_rpc *rpc, tr_status status, const char *text)
{
    if (rpc->end_status != TR_OK) return;
    rpc->end_status = status;
    snprintf(rpc->end_text, sizeof rpc->end_text, "%s", text);
}

/* Under the lock: it is over, and whoever is lost from now on is no loss. */
static void conclude(tr_rpc *rpc)
{
    char text[TEXT];
    rpc->ended = true;
    for (int i = 0; i < rpc->world && rpc->end_status == TR_OK; i++) {
        const tr__rpc_link *link = &rpc->links[i];
        if (!atomic_load(&link->gone) || !link->lost) continue;
        snprintf(text, sizeof text, "tr_rpc_stop: %s", link->why->message);
        set_end(rpc, link->why->status, text);
    }
}

/* Nobody waits here before it has stopped itself; the others may give up on it before. */
static void hear_end(tr_rpc *rpc, const tr__rpc_inbound *m)
{
    tr__rpc_reader r = {.at = m->body, .end = m->body + m->frame.body};
    tr_status status = m->frame.status > TR_END && m->frame.status <= TR_INTERNAL ? m->frame.status : TR_OK;
    const char *text = status == TR_OK ? NULL : tr__rpc_read_text(&r);
    TR__LOCKED(&rpc->drain_lock);
    if (rpc->stopping && !rpc->ended) {
        if (text) set_end(rpc, status, text);
        conclude(rpc);
        pthread_cond_broadcast(&rpc->drain_changed);
    }
}

void tr__drain_heard(tr_rpc *rpc, const tr__rpc_inbound *m)
{
    if (m->frame.type == TR__RPC_ASK) hear_question(rpc, m);
    if (m->frame.type == TR__RPC_ANSWER) hear_answer(rpc, m);
    if (m->frame.type == TR__RPC_END) hear_end(rpc, m);
}

/* ---- Giving up --------------------------------------------------------------------------------------------------- */

/* Under the lock: since then, for too long? */
static bool is_overdue(const tr_rpc *rpc, int64_t since)
{
    return tr__now_ns() - since > (int64_t)rpc->timeout_ms * 1000000;
}

/* Adds a worker to a text, which begins with the format's text of the timeout. */
static void name(const tr_rpc *rpc, char text[TEXT], const char *opening, int worker, const char *of)
{
    size_t used = strlen(text);
    if (used == 0)
        used += (size_t)snprintf(text, TEXT, "tr_rpc_stop: %s %g s in which nothing happened: ", opening, rpc->timeout_ms / 1000.0);
    else
        used += (size_t)snprintf(text + used, TEXT - used, "; ");
    if (used < TEXT) snprintf(text + used, TEXT - used, "worker %d (\"%s\") %s", worker, rpc->links[worker].name, of);
}

/* Under the lock. */
static void give_up(tr_rpc *rpc, int worker)
{
    rpc->end_status = TR_TIMEOUT;
    rpc->answers[worker].given_up = true;
    name(rpc, rpc->end_text, "given up after", worker, "does not answer");
}

/* Under the lock: is it time to say whom we wait for? */
static bool should_remind(tr_rpc *rpc)
{
    if (!is_overdue(rpc, rpc->moved)) return false;
    rpc->moved = tr__now_ns();
    return true;
}

static void remind(const tr_rpc *rpc, char text[TEXT], int worker, int state)
{
    char runs[TR__RPC_BUSY + 16];
    const char *busy = rpc->answers[worker].busy;
    snprintf(runs, sizeof runs, "still runs %s", busy);
    if (state & DONE) return;
    name(rpc, text, "waiting, after", worker,
        !(state & STOPPED) ? "has not called it" : *busy ? runs : "still runs a function");
}

/* Whoever reads the flight record is to see what a worker runs that this one waits for. */
static void record_busy(tr_rpc *rpc, int worker)
{
    char text[2 * TR__RPC_BUSY];
    if (rpc->stop_names) return;
    snprintf(text, sizeof text, "tr_rpc_stop(): \"%s\" runs %s", rpc->links[worker].name, rpc->answers[worker].busy);
    tr__rpc_record_end(rpc, rpc->stop_record);
    rpc->stop_record = tr__rpc_record_sleep(rpc, worker, text);
    rpc->stop_names = true;
}

/* Under the lock, after a round: do functions run that nobody waits for, and none has ended for too long? */
static void look_at_functions(tr_rpc *rpc, bool idle)
{
    int first = -1; /* that runs one */
    uint64_t ended = 0;
    bool stuck = !idle;
    for (int i = 0; i < rpc->world; i++) {
        const struct tr__rpc_answer *a = &rpc->answers[i];
        if (atomic_load(&rpc->links[i].gone)) continue;
        stuck &= (a->state & (STOPPED | CALLS)) == STOPPED;
        ended += a->runs_ended;
        if (first < 0 && a->busy[0]) first = i;
    }
    if (!stuck || first < 0 || !rpc->stuck_since || ended != rpc->stuck_ended) {
        rpc->stuck_since = stuck && first >= 0 ? tr__now_ns() : 0;
        rpc->stuck_ended = ended;
        return;
    }
    if (tr__now_ns() - rpc->stuck_since > ASK_MS * (int64_t)1000000) record_busy(rpc, first);
    if (rpc->end_status != TR_OK || !is_overdue(rpc, rpc->stuck_since)) return;
    rpc->end_status = TR_TIMEOUT;
    for (int i = 0; i < rpc->world; i++) {
        char runs[TR__RPC_BUSY + 64];
        snprintf(runs, sizeof runs, "still runs %s, whose call has ended", rpc->answers[i].busy);
        if (!atomic_load(&rpc->links[i].gone) && rpc->answers[i].busy[0]) name(rpc, rpc->end_text, "given up after", i, runs);
    }
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

static bool is_live(tr_rpc *rpc, int worker)
{
    return !atomic_load(&rpc->links[worker].gone);
}

/* Under the lock. */
static void sleep_us(tr_rpc *rpc, int64_t us)
{
    tr__condition_wait(&rpc->drain_changed, &rpc->drain_lock, tr__now_ns() + us * 1000);
}

/* Under the lock. */
static bool all_answered(tr_rpc *rpc)
{
    for (int i = 0; i < rpc->world; i++)
        if (i != rpc->rank && is_live(rpc, i) && rpc->answers[i].round != rpc->round) return false;
    return true;
}

static void tell_all(tr_rpc *rpc, tr__rpc_frame frame, const char *text)
{
    for (int i = 0; i < rpc->world; i++)
        if (i != rpc->rank && is_live(rpc, i)) tr__rpc_tell(rpc, i, frame, NULL, 0, text);
}

/* One round: is everyone idle, and how much has begun? False also when someone is given up. */
static bool ask_all(tr_rpc *rpc, uint64_t *sum)
{
    struct tr__rpc_answer own = state_of(rpc);
    bool idle = own.state & DONE, lost = false;
    uint64_t unheard = own.unheard; /* of some workers it is below 0: the sum comes round again */
    *sum = own.begun;
    pthread_mutex_lock(&rpc->drain_lock);
    uint64_t round = ++rpc->round;
    int64_t asked = tr__now_ns();
    if (own.state & CALLS) rpc->moved = asked;
    rpc->answers[rpc->rank] = own;
    pthread_mutex_unlock(&rpc->drain_lock);
    tell_all(rpc, (tr__rpc_frame){.type = TR__RPC_ASK, .id = round}, NULL);
    pthread_mutex_lock(&rpc->drain_lock);
    while (!all_answered(rpc) && !is_overdue(rpc, asked)) sleep_us(rpc, LOOK_MS * 1000);
    char text[TEXT] = "";
    bool reminds = should_remind(rpc);
    if (reminds) remind(rpc, text, rpc->rank, own.state);
    for (int i = 0; i < rpc->world; i++) {
        const struct tr__rpc_answer *a = &rpc->answers[i];
        lost |= rpc->links[i].lost;
        if (i == rpc->rank || !is_live(rpc, i)) continue;
        if (a->round != round) give_up(rpc, i);
        if (reminds) remind(rpc, text, i, a->state);
        idle &= a->round == round && a->state & DONE;
        *sum += a->begun;
        unheard += a->unheard;
    }
    idle &= unheard == 0 || lost;
    look_at_functions(rpc, idle);
    pthread_mutex_unlock(&rpc->drain_lock);
    if (text[0]) tr__log(TR_LOG_WARN, "%s", text);
    return idle;
}

static int lowest(tr_rpc *rpc)
{
    int worker = 0;
    while (worker < rpc->rank && !is_live(rpc, worker)) worker++;
    return worker;
}

static void lead(tr_rpc *rpc)
{
    uint64_t before = 0, now = 0;
    bool was_idle = false;
    int64_t pause = PAUSE_FIRST_US;
    for (bool over = false; !over; pause = 2 * pause < PAUSE_MOST_US ? 2 * pause : PAUSE_MOST_US) {
        bool idle = ask_all(rpc, &now);
        pthread_mutex_lock(&rpc->drain_lock);
        over = (idle && was_idle && now == before) || rpc->end_status != TR_OK;
        if (over)
            conclude(rpc);
        else if (!idle)
            sleep_us(rpc, pause);
        pthread_mutex_unlock(&rpc->drain_lock);
        was_idle = idle;
        before = now;
    }
    tr__rpc_frame end = {.type = TR__RPC_END, .status = rpc->end_status};
    tell_all(rpc, end, rpc->end_status == TR_OK ? NULL : rpc->end_text);
}

/* Under the lock, which is let go meanwhile: sees that the asker is there, and says so if all wait for it. */
static void look_at_asker(tr_rpc *rpc, int asker)
{
    const struct tr__rpc_answer *a = &rpc->answers[asker];
    char text[TEXT] = "";
    if ((a->state & (STOPPED | CALLS)) == STOPPED && a->busy[0]) record_busy(rpc, asker);
    if (!(a->state & STOPPED) && should_remind(rpc)) remind(rpc, text, asker, a->state); /* of others it knows more */
    pthread_mutex_unlock(&rpc->drain_lock);
    if (text[0]) tr__log(TR_LOG_WARN, "%s", text);
    tr__rpc_tell(rpc, asker, (tr__rpc_frame){.type = TR__RPC_ASK}, NULL, 0, NULL);
    pthread_mutex_lock(&rpc->drain_lock);
}

/* Waits for the one who asks. True: it is over; false: this worker is to ask now. */
static bool follow(tr_rpc *rpc)
{
    int64_t began = 0, asked = 0; /* the first question, and the latest, to the one who is `whom` */
    int64_t period_us = rpc->timeout_ms / 4 < ASK_MS ? (int64_t)rpc->timeout_ms * 250 : ASK_MS * 1000;
    int64_t pause_us = period_us < LOOK_MS * 1000 ? period_us : LOOK_MS * 1000;
    TR__LOCKED(&rpc->drain_lock);
    for (int asker, whom = -1; !rpc->ended && (asker = lowest(rpc)) != rpc->rank;) {
        int64_t heard = rpc->answers[asker].heard;
        if (asker == whom && is_overdue(rpc, heard > began ? heard : began)) {
            give_up(rpc, asker);
            rpc->ended = true;
        } else if (asker != whom || tr__now_ns() - asked > period_us * 1000) {
            look_at_asker(rpc, asker); /* meanwhile it may have ended: no sleep before that is seen */
            asked = tr__now_ns();
            if (asker != whom) began = asked;
            whom = asker;
        } else {
            sleep_us(rpc, pause_us);
        }
    }
    return rpc->ended;
}

tr_status tr__drain(tr_rpc *rpc)
{
    pthread_mutex_lock(&rpc->drain_lock);
    rpc->stopping = true;
    rpc->moved = tr__now_ns();
    pthread_mutex_unlock(&rpc->drain_lock);
    if (!follow(rpc)) lead(rpc);
    return rpc->end_status == TR_OK ? TR_OK : tr__fail(rpc->end_status, "%s", rpc->end_text);
}
