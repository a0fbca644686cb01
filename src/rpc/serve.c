/*
 * Threads, and how messages are found. Whoever has nothing better to do looks into the rings and streams: threads that wait
 * for a call, and those of ours that are idle. They spin for a while and sleep then; a peer rings the bell only when nobody
 * is awake. At least one thread is idle at any time, and so finds what comes: when the last one takes a request, another is
 * started. A thread that waits for a call within a function does not count as running, so calls that call each other
 * cannot use up all threads.
 */
#include "rpc/agent.h"

#include "base/clock.h"
#include "base/futex.h"
#include "base/list.h"
#include "base/thread.h"
#include "tensor/tensor.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 100000, WATCH_NS = 150000, EVENTS = 16, LOOK_MS = 100 };

/* Whose thread this is, whether it is about to take a request, whether it runs one that it took when it had nothing else to
 * do, and whether it counts as awake since its last reply. */
static _Thread_local struct {
    tr_rpc *rpc;
    bool idle, outermost, stays_awake;
    bool clock; /* it is an agent's clock */
} own;

/* For which agent this thread counts as awake, and how often: waits nest. */
static _Thread_local struct {
    tr_rpc *rpc;
    int count;
} watching;

/* ---- Bells ------------------------------------------------------------------------------------------------------- */

void tr__rpc_kick(tr_rpc *rpc)
{
    if (rpc->watch >= 0) {
        ssize_t written = write(rpc->kick, &(uint64_t){1}, sizeof(uint64_t));
        (void)written;
        return;
    }
    atomic_fetch_add(&rpc->page->bell.count, 1);
    if (atomic_load(&rpc->page->bell.sleepers) > 0) tr__futex_wake(&rpc->page->bell.count, 1);
}

static void look(tr_rpc *rpc, bool insist);
static void wake_another(tr_rpc *rpc);

/* While somebody is awake, what comes on a stream wakes nobody: it would cost whoever is awake a core. To be told of streams
 * again is to be told of what has come meanwhile, too. */
static void set_hearing(tr_rpc *rpc)
{
    if (rpc->watch < 0) return;
    TR__LOCKED(&rpc->dozing_lock);
    bool hears = atomic_load(&rpc->page->bell.awake) == 0;
    struct epoll_event e = {.events = hears ? EPOLLIN | EPOLLET : 0};
    if (hears != rpc->dozing_hears) epoll_ctl(rpc->dozing, EPOLL_CTL_MOD, rpc->watch, &e);
    rpc->dozing_hears = hears;
}

static void count_in(tr_rpc *rpc, int times)
{
    if (atomic_fetch_add(&rpc->page->bell.awake, times) == 0) set_hearing(rpc);
}

static void count_out(tr_rpc *rpc, int times)
{
    if (atomic_fetch_sub(&rpc->page->bell.awake, times) != times) return;
    set_hearing(rpc);
    look(rpc, true); /* what came while we were awake has rung no bell */
}

/* This thread looks for messages by itself, and does so no longer. In between no peer rings the bell, so it must not sleep. */
static void wake_up(tr_rpc *rpc)
{
    if (!watching.count) watching.rpc = rpc;
    if (watching.rpc == rpc) watching.count++;
    count_in(rpc, 1);
}

static void fall_asleep(tr_rpc *rpc)
{
    if (watching.rpc == rpc && watching.count) watching.count--;
    count_out(rpc, 1);
}

/* Counts as awake no more, and later as often as before. */
static int rest(tr_rpc *rpc)
{
    int times = watching.rpc == rpc ? watching.count : 0;
    if (!times) return 0;
    watching.count = 0;
    count_out(rpc, times);
    return times;
}

static void resume(tr_rpc *rpc, int times)
{
    if (!times) return;
    watching.rpc = rpc;
    watching.count = times;
    count_in(rpc, times);
}

static void stay_awake(tr_rpc *rpc)
{
    if (own.stays_awake) return;
    wake_up(rpc);
    own.stays_awake = true;
}

void tr__rpc_stay_awake(tr_rpc *rpc)
{
    if (own.outermost && own.rpc == rpc) stay_awake(rpc);
}

static void end_stay_awake(tr_rpc *rpc)
{
    if (own.stays_awake) fall_asleep(rpc);
    own.stays_awake = false;
}

/* ---- Finding messages -------------------------------------------------------------------------------------------- */

static void collect_events(tr_rpc *rpc)
{
    struct epoll_event events[EVENTS];
    int ready;
    do {
        ready = epoll_wait(rpc->watch, events, EVENTS, 0);
        bool open = ready > 0 && tr__rpc_enter(&rpc->sending); /* where there is room again, something is sent */
        for (int i = 0; i < ready && open; i++) tr__link_ready(&rpc->links[events[i].data.u32], events[i].events);
        if (ready > 0) tr__rpc_leave(&rpc->sending);
    } while (ready == EVENTS);
}

static bool anything(const tr_rpc *rpc)
{
    for (int i = 0; i < rpc->world; i++)
        if (tr__link_waiting(&rpc->links[i])) return true;
    return false;
}

/* What this thread does when it is through with a batch of messages, as what it waits for may be in the batch: first callbacks
 * of calls that have ended, then requests that it attends to. */
typedef struct batch {
    tr__rpc_then *first, **last;
    tr__rpc_inbound *attended, **attended_last;
} batch;
static _Thread_local batch *current_batch;

bool tr__rpc_may_wait(void)
{
    return !current_batch && !own.clock;
}

static void serve_attended(tr_rpc *rpc, tr__rpc_inbound *attended);

static void handle_batch(tr_rpc *rpc, tr__rpc_inbound *found)
{
    batch own_batch = {.last = &own_batch.first, .attended_last = &own_batch.attended}, *outer = current_batch;
    current_batch = &own_batch;
    TR__FOR_EACH(m, found) {
        m->next = NULL;
        tr__rpc_link *link = &rpc->links[m->from];
        tr__rpc_arrived_message(rpc, m);
        atomic_fetch_sub(&link->found, 1);
    }
    current_batch = outer;
    tr__rpc_call_back(own_batch.first);
    serve_attended(rpc, own_batch.attended);
}

/* Reads what there is. False: another thread does, or nobody wants it any more. */
static bool read_held(tr_rpc *rpc, bool insist)
{
    if (insist)
        pthread_mutex_lock(&rpc->reading);
    else if (pthread_mutex_trylock(&rpc->reading) != 0)
        return false;
    for (int i = 0; i < rpc->world && !rpc->deaf; i++)
        if (tr__link_waiting(&rpc->links[i])) tr__link_read(rpc, &rpc->links[i]);
    tr__rpc_inbound *m = rpc->found;
    rpc->found = NULL;
    rpc->found_last = &rpc->found;
    pthread_mutex_unlock(&rpc->reading);
    handle_batch(rpc, m);
    return true;
}

static bool read_once(tr_rpc *rpc, bool insist)
{
    if (!tr__rpc_hold(rpc)) return false;
    bool read = read_held(rpc, insist);
    tr__rpc_let_go(rpc);
    return read;
}

/* Who finds another thread reading goes away, so whoever has read looks again; but not for ever. */
static void look(tr_rpc *rpc, bool insist)
{
    enum { ROUNDS = 4 };
    bool read = true;
    if (rpc->watch >= 0) collect_events(rpc);
    for (int i = 0; i < ROUNDS && read && anything(rpc); i++) read = read_once(rpc, insist);
    if (read && anything(rpc)) tr__rpc_kick(rpc);
    wake_another(rpc);
}

void tr__rpc_poll(tr_rpc *rpc)
{
    look(rpc, false);
}

void tr__rpc_found(tr_rpc *rpc, tr__rpc_inbound *m)
{
    *rpc->found_last = m;
    rpc->found_last = &m->next;
    atomic_fetch_add(&rpc->links[m->from].found, 1);
}

void tr__rpc_read_rest(tr_rpc *rpc, tr__rpc_link *link)
{
    enum { READS = 1024, PAUSE_NS = 50000 }; /* sockets hold some of it */
    int reads = 0;
    do look(rpc, true);
    while (++reads < READS && tr__link_waiting(link));
    while (atomic_load(&link->found)) nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL); /* by another thread */
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

/* Wakes a sleeping thread when more requests are queued than this thread takes itself. */
static void wake_another(tr_rpc *rpc)
{
    int here = own.rpc == rpc && own.idle;
    if (atomic_load(&rpc->queued) > here && atomic_load(&rpc->running) < rpc->threads_most &&
        atomic_load(&rpc->sleeping) > 0)
        tr__rpc_kick(rpc);
}

void tr__rpc_enqueue(tr_rpc *rpc, tr__rpc_inbound *m)
{
    pthread_mutex_lock(&rpc->queue_lock);
    if (rpc->last)
        rpc->last->next = m;
    else
        rpc->first = m;
    rpc->last = m;
    atomic_fetch_add(&rpc->queued, 1);
    pthread_mutex_unlock(&rpc->queue_lock);
    wake_another(rpc);
}

static void *serve_requests(void *arg);

/* Under the lock: keeps one thread idle. False: there can be no more. */
static bool keep_one_idle(tr_rpc *rpc)
{
    if (rpc->threads > atomic_load(&rpc->running) + rpc->blocked) return true;
    if (rpc->threads == TR__RPC_THREADS_MOST || atomic_load(&rpc->closing)) return false;
    if (tr__thread_start(&rpc->handles[rpc->threads], serve_requests, rpc) != 0) return false;
    rpc->threads++;
    return true;
}

/* The next request, which runs then; NULL: there is none, or enough run already. */
static tr__rpc_inbound *take_request(tr_rpc *rpc, bool whatever)
{
    tr__rpc_inbound *m = NULL;
    TR__LOCKED(&rpc->queue_lock);
    if (rpc->first && (whatever || atomic_load(&rpc->running) < rpc->threads_most)) {
        atomic_fetch_add(&rpc->running, 1);
        if (keep_one_idle(rpc) || whatever) {
            m = rpc->first;
            rpc->first = m->next;
            if (!rpc->first) rpc->last = NULL;
            m->next = NULL;
            atomic_fetch_sub(&rpc->queued, 1);
        } else {
            atomic_fetch_sub(&rpc->running, 1);
        }
    }
    return m;
}

static void run_request(tr_rpc *rpc, tr__rpc_inbound *m)
{
    bool idle = own.idle;
    own.idle = false;
    end_stay_awake(rpc);
    wake_another(rpc);
    own.outermost = idle;
    if (tr__rpc_hold(rpc)) {
        tr__rpc_serve(rpc, m);
        tr__rpc_let_go(rpc);
    } else {
        tr__inbound_free(m);
    }
    own.outermost = false;
    own.idle = idle;
    pthread_mutex_lock(&rpc->queue_lock);
    atomic_fetch_sub(&rpc->running, 1);
    pthread_mutex_unlock(&rpc->queue_lock);
    atomic_store(&rpc->moved, tr__now_ns());
}

void tr__rpc_cancel(tr_rpc *rpc, int from, uint64_t id)
{
    TR__LOCKED(&rpc->queue_lock);
    for (tr__rpc_inbound *m = rpc->first; m; m = m->next)
        if (m->from == from && m->frame.id == id) m->cancelled = true;
}

int tr__rpc_requests(tr_rpc *rpc)
{
    TR__LOCKED(&rpc->queue_lock);
    return atomic_load(&rpc->queued) + atomic_load(&rpc->running) + rpc->blocked;
}

/* ---- Waiting threads --------------------------------------------------------------------------------------------- */

int tr__rpc_block(tr_rpc *rpc)
{
    int awake = rest(rpc);
    if (own.rpc != rpc) return awake;
    pthread_mutex_lock(&rpc->queue_lock);
    atomic_fetch_sub(&rpc->running, 1);
    rpc->blocked++;
    pthread_mutex_unlock(&rpc->queue_lock);
    wake_another(rpc);
    return awake;
}

void tr__rpc_unblock(tr_rpc *rpc, int awake)
{
    resume(rpc, awake);
    if (own.rpc != rpc) return;
    TR__LOCKED(&rpc->queue_lock);
    atomic_fetch_add(&rpc->running, 1);
    rpc->blocked--;
}

bool tr__rpc_help(tr_rpc *rpc)
{
    pthread_mutex_lock(&rpc->queue_lock);
    bool last = rpc->threads == TR__RPC_THREADS_MOST;
    pthread_mutex_unlock(&rpc->queue_lock);
    tr__rpc_inbound *m = last ? take_request(rpc, true) : NULL;
    if (m) run_request(rpc, m);
    return last;
}

/* ---- Callbacks --------------------------------------------------------------------------------------------------- */

static _Thread_local const tr__rpc_attention *attention;

/* Around callbacks and requests that are attended to, which may take long and wait: this thread does not look for messages for
 * a while, attends to nothing else, and if it is ours, another one is idle in its place. */
typedef struct absence {
    int awake;
    bool idle;
    const tr__rpc_attention *attention;
    const tr__storage_source *source;
} absence;

static absence step_out(tr_rpc *rpc)
{
    absence a = {.awake = rest(rpc), .idle = own.rpc == rpc && own.idle, .attention = attention,
        .source = tr__storage_source_set(NULL)};
    attention = NULL;
    if (!a.idle) return a;
    own.idle = false;
    pthread_mutex_lock(&rpc->queue_lock);
    atomic_fetch_add(&rpc->running, 1);
    (void)!keep_one_idle(rpc); /* or the others make do until this one is back */
    pthread_mutex_unlock(&rpc->queue_lock);
    wake_another(rpc);
    return a;
}

static void step_back(tr_rpc *rpc, absence a)
{
    attention = a.attention;
    tr__storage_source_set(a.source);
    resume(rpc, a.awake);
    if (!a.idle) return;
    own.idle = true;
    TR__LOCKED(&rpc->queue_lock);
    atomic_fetch_sub(&rpc->running, 1);
}

void tr__rpc_call_back(tr__rpc_then *thens)
{
    if (!thens) return;
    if (current_batch) {
        *current_batch->last = thens;
        while (*current_batch->last) current_batch->last = &(*current_batch->last)->next;
        return;
    }
    tr_rpc *rpc = thens->future->rpc;
    absence gone = step_out(rpc);
    TR__FOR_EACH(t, thens) {
        t->callback(t->future, t->user);
        tr__unref(t->future);
        free(t);
    }
    step_back(rpc, gone);
}

/* ---- Requests that a thread attends to --------------------------------------------------------------------------- */

const tr__rpc_attention *tr__rpc_attend(const tr__rpc_attention *a)
{
    const tr__rpc_attention *before = attention;
    attention = a;
    return before;
}

const tr__rpc_attention *tr__rpc_attends(const tr_rpc *rpc)
{
    return attention && attention->rpc == rpc && current_batch ? attention : NULL;
}

void tr__rpc_serve_later(tr__rpc_inbound *m)
{
    *current_batch->attended_last = m;
    current_batch->attended_last = &m->next;
}

static void serve_attended(tr_rpc *rpc, tr__rpc_inbound *attended)
{
    if (!attended) return;
    if (current_batch) {
        *current_batch->attended_last = attended;
        while (*current_batch->attended_last) current_batch->attended_last = &(*current_batch->attended_last)->next;
        return;
    }
    absence gone = step_out(rpc);
    TR__FOR_EACH(m, attended) {
        m->next = NULL;
        tr__rpc_serve(rpc, m);
        atomic_store(&rpc->moved, tr__now_ns());
    }
    step_back(rpc, gone);
}

/* ---- Our threads ------------------------------------------------------------------------------------------------- */

static bool has_work(const void *agent)
{
    tr_rpc *rpc = (tr_rpc *)agent;
    return atomic_load(&rpc->closing) ||
           (atomic_load(&rpc->queued) > 0 && atomic_load(&rpc->running) < rpc->threads_most);
}

/* Looks for messages until then, or it is over. */
static void look_until(tr_rpc *rpc, bool (*over)(const void *what), const void *what, int64_t until)
{
    enum { PATIENT = 200 };
    for (int i = 0; !over(what); i++) {
        tr__rpc_poll(rpc);
        if (i < PATIENT && !rpc->crowded) continue;
        if (tr__now_ns() >= until) break;
        sched_yield();
    }
}

void tr__rpc_watch(tr_rpc *rpc, bool (*over)(const void *what), const void *what, int64_t deadline)
{
    int64_t until = tr__now_ns() + WATCH_NS;
    wake_up(rpc);
    look_until(rpc, over, what, deadline < until ? deadline : until);
    fall_asleep(rpc);
}

/* One at a time. */
static void spin(tr_rpc *rpc)
{
    int nobody = 0;
    if (!atomic_compare_exchange_strong(&rpc->spinner, &nobody, 1)) return;
    stay_awake(rpc);
    look_until(rpc, has_work, rpc, tr__now_ns() + SPIN_NS);
    atomic_store(&rpc->spinner, 0);
}

static void nap(tr_rpc *rpc)
{
    unsigned seen = atomic_load(&rpc->page->bell.count);
    atomic_fetch_add(&rpc->sleeping, 1);
    atomic_fetch_add(&rpc->page->bell.sleepers, 1);
    look(rpc, true);
    if (!has_work(rpc)) {
        if (rpc->watch < 0)
            tr__futex_wait(&rpc->page->bell.count, seen, -1);
        else
            epoll_wait(rpc->dozing, &(struct epoll_event){0}, 1, -1);
    }
    atomic_fetch_sub(&rpc->page->bell.sleepers, 1);
    atomic_fetch_sub(&rpc->sleeping, 1);
    look(rpc, true);
}

static void *serve_requests(void *arg)
{
    tr_rpc *rpc = arg;
    own.rpc = rpc;
    own.idle = true;
    while (!atomic_load(&rpc->closing)) {
        tr__rpc_inbound *m = take_request(rpc, false);
        if (m) {
            run_request(rpc, m);
            continue;
        }
        spin(rpc);
        end_stay_awake(rpc);
        if (!has_work(rpc)) nap(rpc);
    }
    end_stay_awake(rpc);
    tr__rpc_kick(rpc); /* the next one: kicks that follow each other closely are one to epoll */
    return NULL;
}

/* ---- The clock --------------------------------------------------------------------------------------------------- */

void tr__rpc_wake_clock(tr_rpc *rpc)
{
    TR__LOCKED(&rpc->clock_lock);
    rpc->clock_rung = true;
    pthread_cond_signal(&rpc->clock_changed);
}

static void sleep_until(tr_rpc *rpc, int64_t until)
{
    TR__LOCKED(&rpc->clock_lock);
    if (!rpc->clock_rung && !atomic_load(&rpc->closing)) tr__condition_wait(&rpc->clock_changed, &rpc->clock_lock, until);
    rpc->clock_rung = false;
}

/* Timeouts, and blocks that are not used. When to come again. */
static int64_t turn_clock(tr_rpc *rpc)
{
    bool pending = tr__rpc_end_links(rpc);
    int64_t now = tr__now_ns(), next = tr__rpc_expire_calls(rpc, now);
    if (pending && next > now + LOOK_MS * (int64_t)1000000) next = now + LOOK_MS * (int64_t)1000000;
    for (int i = 0; i < rpc->world; i++)
        if (rpc->links[i].stream) tr__blocks_trim(&rpc->links[i]);
    return next;
}

static void *run_clock(void *arg)
{
    tr_rpc *rpc = arg;
    own.clock = true;
    while (!atomic_load(&rpc->closing)) {
        int64_t next = tr__now_ns() + LOOK_MS * (int64_t)1000000;
        if (tr__rpc_hold(rpc)) {
            next = turn_clock(rpc);
            tr__rpc_let_go(rpc);
        }
        sleep_until(rpc, next);
    }
    return NULL;
}

/* ---- The relay: rings of the bell become kicks, where some workers are on this host and some elsewhere ---------- */

static void *relay_bell(void *arg)
{
    tr_rpc *rpc = arg;
    for (unsigned seen = atomic_load(&rpc->page->bell.count); !atomic_load(&rpc->closing);) {
        unsigned now = atomic_load(&rpc->page->bell.count);
        if (now == seen)
            tr__futex_wait(&rpc->page->bell.count, seen, -1);
        else
            tr__rpc_kick(rpc);
        seen = now;
    }
    return NULL;
}

static tr_status start_relay(tr_rpc *rpc)
{
    bool local = false;
    for (int i = 0; i < rpc->world; i++) local |= rpc->links[i].local;
    if (rpc->watch < 0 || !local) return TR_OK;
    atomic_fetch_add(&rpc->page->bell.sleepers, 1);
    int error = tr__thread_start(&rpc->relay, relay_bell, rpc);
    if (error) return tr__fail_errno(TR_NO_MEMORY, error, "rpc: cannot start a thread");
    rpc->has_relay = true;
    return TR_OK;
}

tr_status tr__rpc_start_threads(tr_rpc *rpc)
{
    TR__TRY(start_relay(rpc));
    int error = tr__thread_start(&rpc->clock, run_clock, rpc);
    if (error) return tr__fail_errno(TR_NO_MEMORY, error, "rpc: cannot start a thread");
    rpc->has_clock = true;
    pthread_mutex_lock(&rpc->queue_lock);
    bool started = keep_one_idle(rpc);
    pthread_mutex_unlock(&rpc->queue_lock);
    return started ? TR_OK : tr__fail(TR_NO_MEMORY, "rpc: cannot start a thread");
}

void tr__rpc_end_clock(tr_rpc *rpc)
{
    atomic_store(&rpc->closing, true);
    tr__rpc_wake_clock(rpc);
    if (rpc->has_clock) pthread_join(rpc->clock, NULL);
    rpc->has_clock = false;
}

void tr__rpc_end_threads(tr_rpc *rpc)
{
    pthread_mutex_lock(&rpc->queue_lock);
    int threads = rpc->threads;
    pthread_mutex_unlock(&rpc->queue_lock);
    if (threads || rpc->has_relay) {
        tr__rpc_kick(rpc);
        atomic_fetch_add(&rpc->page->bell.count, 1);
        tr__futex_wake(&rpc->page->bell.count, INT32_MAX);
    }
    for (int i = 0; i < threads; i++) pthread_join(rpc->handles[i], NULL);
    if (rpc->has_relay) pthread_join(rpc->relay, NULL);
    rpc->threads = 0;
    rpc->has_relay = false;
}
