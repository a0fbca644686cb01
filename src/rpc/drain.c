/*
 * The end: when is nothing under way any more, anywhere? The live worker of the lowest rank asks all others, round after
 * round, whether they have called tr_rpc_stop(), have no call under way and run none, and how many calls they have begun so
 * far. A request that is on its way belongs to a call that is under way at its caller; so when two rounds find everyone idle
 * and the same number of calls, there was none in between, and there will be none.
 */
#include "rpc/agent.h"

#include "base/clock.h"

#include <string.h>

enum { PAUSE_FIRST_US = 200, PAUSE_MOST_US = 10000, LOOK_MS = 100 };

void tr__drain_wake(tr_rpc *rpc)
{
    pthread_mutex_lock(&rpc->drain_lock);
    if (rpc->stopping) pthread_cond_broadcast(&rpc->drain_changed);
    pthread_mutex_unlock(&rpc->drain_lock);
}

static bool is_idle(tr_rpc *rpc, uint64_t *calls)
{
    pthread_mutex_lock(&rpc->calls_lock);
    bool idle = rpc->call_count == 0;
    *calls = rpc->calls_ever;
    pthread_mutex_unlock(&rpc->calls_lock);
    return idle && tr__rpc_requests(rpc) == 0 && tr__refs_unacknowledged(rpc) == 0;
}

static void tell(tr_rpc *rpc, int to, tr__rpc_frame frame, const uint64_t *number)
{
    tr__rpc_writer w;
    tr__rpc_writer_begin(&w);
    if (number) tr__rpc_write_u64(&w, *number);
    tr_status sent = tr__rpc_send(rpc, to, frame, &w);
    (void)sent; /* a worker that is gone is not waited for */
    tr__rpc_writer_end(&w);
}

/* ---- What others say --------------------------------------------------------------------------------------------- */

static void hear_question(tr_rpc *rpc, const tr__rpc_inbound *m)
{
    uint64_t calls;
    bool idle = is_idle(rpc, &calls);
    pthread_mutex_lock(&rpc->drain_lock);
    idle &= rpc->stopping;
    pthread_mutex_unlock(&rpc->drain_lock);
    tell(rpc, m->from, (tr__rpc_frame){.type = TR__RPC_ANSWER, .id = m->frame.id, .status = idle}, &calls);
}

static void hear_answer(tr_rpc *rpc, const tr__rpc_inbound *m)
{
    uint64_t calls = 0;
    if (m->frame.body != sizeof calls) return;
    memcpy(&calls, m->body, sizeof calls);
    pthread_mutex_lock(&rpc->drain_lock);
    rpc->answers[m->from].round = m->frame.id;
    rpc->answers[m->from].calls = calls;
    rpc->answers[m->from].idle = m->frame.status == 1;
    pthread_cond_broadcast(&rpc->drain_changed);
    pthread_mutex_unlock(&rpc->drain_lock);
}

void tr__drain_heard(tr_rpc *rpc, const tr__rpc_inbound *m)
{
    if (m->frame.type == TR__RPC_ASK) hear_question(rpc, m);
    if (m->frame.type == TR__RPC_ANSWER) hear_answer(rpc, m);
    if (m->frame.type != TR__RPC_END) return;
    pthread_mutex_lock(&rpc->drain_lock);
    rpc->ended = true;
    pthread_cond_broadcast(&rpc->drain_changed);
    pthread_mutex_unlock(&rpc->drain_lock);
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

static bool is_live(tr_rpc *rpc, int worker)
{
    return !atomic_load(&rpc->links[worker].gone);
}

/* Under the lock. */
static void sleep_us(tr_rpc *rpc, int64_t us)
{
    int64_t until = tr__now_ns() + us * 1000;
    struct timespec deadline = {until / 1000000000, until % 1000000000};
    pthread_cond_timedwait(&rpc->drain_changed, &rpc->drain_lock, &deadline);
}

/* Under the lock. */
static bool all_answered(tr_rpc *rpc)
{
    for (int i = 0; i < rpc->world; i++)
        if (i != rpc->rank && is_live(rpc, i) && rpc->answers[i].round != rpc->round) return false;
    return true;
}

/* One round: is everyone idle, and how many calls were there? */
static bool ask_all(tr_rpc *rpc, uint64_t *sum)
{
    bool idle = is_idle(rpc, sum);
    pthread_mutex_lock(&rpc->drain_lock);
    uint64_t round = ++rpc->round;
    pthread_mutex_unlock(&rpc->drain_lock);
    for (int i = 0; i < rpc->world; i++)
        if (i != rpc->rank && is_live(rpc, i)) tell(rpc, i, (tr__rpc_frame){.type = TR__RPC_ASK, .id = round}, NULL);
    pthread_mutex_lock(&rpc->drain_lock);
    while (!all_answered(rpc)) sleep_us(rpc, LOOK_MS * 1000);
    for (int i = 0; i < rpc->world; i++) {
        if (i == rpc->rank || !is_live(rpc, i)) continue;
        idle &= rpc->answers[i].idle;
        *sum += rpc->answers[i].calls;
    }
    pthread_mutex_unlock(&rpc->drain_lock);
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
    for (int64_t pause = PAUSE_FIRST_US;; pause = 2 * pause < PAUSE_MOST_US ? 2 * pause : PAUSE_MOST_US) {
        bool idle = ask_all(rpc, &now);
        if (idle && was_idle && now == before) break;
        was_idle = idle;
        before = now;
        pthread_mutex_lock(&rpc->drain_lock);
        if (!idle) sleep_us(rpc, pause);
        pthread_mutex_unlock(&rpc->drain_lock);
    }
    for (int i = 0; i < rpc->world; i++)
        if (i != rpc->rank && is_live(rpc, i)) tell(rpc, i, (tr__rpc_frame){.type = TR__RPC_END}, NULL);
}

void tr__drain(tr_rpc *rpc)
{
    pthread_mutex_lock(&rpc->drain_lock);
    rpc->stopping = true;
    while (!rpc->ended && lowest(rpc) != rpc->rank) sleep_us(rpc, LOOK_MS * 1000);
    bool ended = rpc->ended;
    pthread_mutex_unlock(&rpc->drain_lock);
    if (!ended) lead(rpc);
}
