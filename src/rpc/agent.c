/* Making and ending an agent; the functions that it knows; workers that are gone. */
#include "rpc/agent.h"

#include "base/clock.h"
#include "base/given.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/log.h"
#include "base/thread.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { FINISH_MS = 5000 };   /* how long an agent that ends waits until all workers have taken what is for them */
enum { FUNCTION_MS = 1000 }; /* the same, when it was given up, for functions that still run */

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

tr_status tr__rpc_check(const tr_rpc *rpc)
{
    if (!rpc) return tr__fail(TR_INVALID, "rpc: an agent is needed (tr_rpc_start), not NULL");
    return tr__fail_stored(tr__error_of(rpc));
}

tr_status tr__rpc_has_stopped(const tr_rpc *rpc)
{
    return tr__fail(TR_STATE, "\"%s\" has stopped (tr_rpc_stop)", rpc->links[rpc->rank].name);
}

static bool sound(const tr_rpc *rpc)
{
    return rpc && !tr__error_of(rpc);
}

int tr_rpc_rank(const tr_rpc *rpc)
{
    return sound(rpc) ? rpc->rank : 0;
}

int tr_rpc_workers(const tr_rpc *rpc)
{
    return sound(rpc) ? rpc->world : 1;
}

const char *tr_rpc_name(const tr_rpc *rpc, int worker)
{
    return sound(rpc) && worker >= 0 && worker < rpc->world ? rpc->links[worker].name : NULL;
}

int tr_rpc_worker(const tr_rpc *rpc, const char *name)
{
    for (int i = 0; sound(rpc) && name && i < rpc->world; i++)
        if (strcmp(rpc->links[i].name, name) == 0) return i;
    return -1;
}

static tr_status no_worker(const tr_rpc *rpc, const char *name)
{
    enum { NAMED = 8 };
    char list[NAMED * (TR__RPC_WORKER_NAME + 4)] = "";
    size_t used = 0;
    for (int i = 0; i < rpc->world && i < NAMED; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s\"%s\"", i ? ", " : "", rpc->links[i].name);
    return tr__fail(TR_NOT_FOUND, "rpc: there is no worker \"%s\"; there are %s%s", name, list,
        rpc->world > NAMED ? ", …" : "");
}

tr_status tr__rpc_find_worker(const tr_rpc *rpc, const char *name, int number, int *worker)
{
    *worker = name ? tr_rpc_worker(rpc, name) : number;
    if (name) return *worker < 0 ? no_worker(rpc, name) : TR_OK;
    if (number >= 0 && number < rpc->world) return TR_OK;
    return tr__fail(TR_NOT_FOUND, "rpc: there is no worker %d; there are 0 … %d", number, rpc->world - 1);
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

static tr__rpc_entry **functions_of(tr_rpc *rpc, const char *name)
{
    return &rpc->functions[tr__hash(TR__HASH_BEGIN, name, strlen(name)) % TR__RPC_FUNCTION_BUCKETS];
}

/* Entries stay as long as the agent. */
const tr__rpc_entry *tr__rpc_find_function(tr_rpc *rpc, const char *name)
{
    TR__LOCKED(&rpc->functions_lock);
    tr__rpc_entry *e = *functions_of(rpc, name);
    while (e && strcmp(e->name, name) != 0) e = e->next;
    return e;
}

static tr_status add_function(tr_rpc *rpc, const char *name, const tr__rpc_entry *like)
{
    const tr__rpc_entry *old = tr__rpc_find_function(rpc, name);
    char before[256];
    if (old)
        return tr__fail(TR_STATE, "tr_rpc_register: there is a function '%s' already: %s", name,
            tr__rpc_signature_text(&old->function, before));
    size_t length = strlen(name) + 1;
    tr__rpc_entry *e = malloc(sizeof *e + length);
    if (!e) return tr__fail(TR_NO_MEMORY, "tr_rpc_register: no memory for '%s'", name);
    *e = *like;
    memcpy(e->name, name, length);
    TR__LOCKED(&rpc->functions_lock);
    e->next = *functions_of(rpc, name);
    *functions_of(rpc, name) = e;
    return TR_OK;
}

static bool kind_exists(tr_value_kind kind)
{
    return (unsigned)kind < TR_VALUE_COUNT;
}

static tr_status check_function(const tr_rpc_function *f)
{
    if (!f || !f->name || !f->name[0] || strlen(f->name) > TR__RPC_NAME_MAX || f->name[0] == '.')
        return tr__fail(TR_INVALID, "tr_rpc_register: a function has a name of 1 … %d bytes that begins with no dot",
            TR__RPC_NAME_MAX);
    bool fits = f->body && f->count >= 0 && f->count <= TR_VALUES_MAX && kind_exists(f->returns);
    for (int i = 0; fits && i < f->count; i++) fits = kind_exists(f->kinds[i]);
    if (fits) return TR_OK;
    return tr__fail(TR_INVALID, "tr_rpc_register: '%s' is not what TR_RPC() makes", f->name);
}

tr_status tr_rpc_register_with(const tr_rpc_register_options *options)
{
    tr_rpc_register_options o = {0};
    if (options) memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    TR__TRY(tr__rpc_check(o.rpc));
    TR__TRY(check_function(o.function));
    return add_function(o.rpc, o.function->name, &(tr__rpc_entry){.function = *o.function, .state = o.state});
}

tr_status tr__rpc_handle(tr_rpc *rpc, const char *name, tr__rpc_handler handler, void *user, bool attended)
{
    return add_function(rpc, name, &(tr__rpc_entry){.handler = handler, .state = user, .attended = attended});
}

tr_status tr__rpc_set_hooks(tr_rpc *rpc, const tr__rpc_hooks *hooks)
{
    TR__TRY(tr__rpc_check(rpc));
    TR__LOCKED(&rpc->functions_lock);
    bool taken = atomic_load(&rpc->has_hooks) && rpc->hooks.user != hooks->user;
    if (!taken) rpc->hooks = *hooks;
    atomic_store(&rpc->has_hooks, true);
    return taken ? tr__fail(TR_STATE, "rpc: another module sees the values of this agent's calls already") : TR_OK;
}

void *tr__rpc_user(const tr_rpc *rpc)
{
    return atomic_load(&((tr_rpc *)rpc)->has_hooks) ? rpc->hooks.user : NULL;
}

/* ---- Workers that are gone ---------------------------------------------------------------------------------------- */

bool tr__rpc_lose(tr_rpc *rpc, int worker, tr__rpc_ending ending)
{
    int lasts = TR__RPC_LASTS;
    bool first = atomic_compare_exchange_strong(&rpc->links[worker].ending, &lasts, (int)ending);
    tr__rpc_wake_clock(rpc);
    return first;
}

/* The blocks of one that has died, or dropped its agent, are to stay until its last words were read: end_link(). If this agent
 * has ended by then, so has the group's use of them: tr__endpoint_detach() sets its count to 0. */
static void rank_gone(void *user, int rank, bool left, bool by_memory)
{
    tr_rpc *rpc = user;
    if (rpc->links[rank].local && !by_memory) return; /* the monitor of its memory says so, too */
    if (by_memory) tr__raw_use(rpc->group);
    bool first = tr__rpc_lose(rpc, rank, left ? TR__RPC_LEFT : TR__RPC_DIED);
    if (by_memory && !first) tr__raw_idle(rpc->group);
}

static void rank_has_shown(void *user, int rank)
{
    tr_rpc *rpc = user;
    tr__link_shown(rpc, &rpc->links[rank]);
}

/* Of the first such memory. What names it can never be read. */
static void rank_has_missed(void *user, int rank)
{
    tr_rpc *rpc = user;
    if (!rpc->links[rank].missed) rpc->links[rank].missed = tr__error_take();
    tr__rpc_lose(rpc, rank, TR__RPC_MISSED);
}

tr_status tr__rpc_say_why(const tr_rpc *rpc, const tr__rpc_link *link, tr__rpc_ending ending)
{
    static const struct {
        tr_status status;
        const char *what;
    } endings[] = {
        [TR__RPC_LEFT] = {TR_PEER, "has stopped"},
        [TR__RPC_DIED] = {TR_PEER, "died, or exited without tr_rpc_stop()"},
        [TR__RPC_CUT] = {TR_PEER, "has closed its connection"},
        [TR__RPC_DAMAGED] = {TR_FORMAT, "sends what is no message of ours"},
        [TR__RPC_CORRUPT] = {TR_FORMAT, "sent a damaged message: bits of it changed on the way"},
        [TR__RPC_NOT_SHOWN] = {TR_TIMEOUT, "has not shown in time the shared memory that a message of its names: it may be stopped"},
    };
    char process[128];
    tr__raw_name(rpc->group, link->worker, process);
    if (ending == TR__RPC_MISSED)
        return tr__fail_context(tr__fail_stored(link->missed), "worker %d (\"%s\") cannot be heard any more", link->worker,
            link->name);
    return tr__fail(endings[ending].status, "worker %d (\"%s\"%s%s) %s", link->worker, link->name, process[0] ? ", " : "",
        process, endings[ending].what);
}

static void end_link(tr_rpc *rpc, tr__rpc_link *link)
{
    tr__rpc_ending ending = (tr__rpc_ending)atomic_load(&link->ending);
    if (ending < TR__RPC_DAMAGED) tr__rpc_read_rest(rpc, link); /* its last words */
    if ((ending == TR__RPC_DIED || ending == TR__RPC_LEFT) && link->local) tr__raw_idle(rpc->group);
    tr__rpc_say_why(rpc, link, ending);
    link->why = tr__error_take();
    tr__drain_gone(rpc, link, ending == TR__RPC_LEFT);
    if (ending >= TR__RPC_DAMAGED && link->stream) tr__link_refuse(link);
    if (ending != TR__RPC_LEFT) tr__log(TR_LOG_WARN, "rpc: \"%s\" finds: %s", rpc->links[rpc->rank].name, tr_error_message());
    tr__rpc_fail_calls(rpc, link->worker, link->why);
    if (!atomic_load(&rpc->ended)) tr__refs_gone(rpc, link->worker); /* else what it still holds is to be reported */
    if (atomic_load(&rpc->has_hooks) && rpc->hooks.gone) rpc->hooks.gone(rpc->hooks.user, link->worker, link->why->message);
    tr__drain_wake(rpc);
}

bool tr__rpc_end_links(tr_rpc *rpc)
{
    bool pending = false;
    for (int i = 0; i < rpc->world; i++) {
        tr__rpc_link *link = &rpc->links[i];
        if (atomic_load(&link->gone)) continue;
        tr__rpc_ending over = tr__link_over(rpc, link, tr__now_ns(), &pending);
        if (over != TR__RPC_LASTS) tr__rpc_lose(rpc, i, over);
        if (atomic_load(&link->ending) != TR__RPC_LASTS) end_link(rpc, link);
    }
    return pending;
}

/* ---- Gates ------------------------------------------------------------------------------------------------------- */

bool tr__rpc_enter(tr__rpc_gate *gate)
{
    return atomic_fetch_add(gate, 1) >= 0;
}

void tr__rpc_leave(tr__rpc_gate *gate)
{
    atomic_fetch_sub(gate, 1);
}

/* Lets nobody enter any more, and waits for those within, none of whom waits. */
static void shut(tr__rpc_gate *gate)
{
    for (int none = 0; !atomic_compare_exchange_weak(gate, &none, INT_MIN / 2); none = 0) sched_yield();
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* Does a function run that does not end soon, though its calls have failed? */
static bool function_stays(tr_rpc *rpc)
{
    char busy[TR__RPC_BUSY];
    for (int ms = 0; tr__rpc_busy(rpc, busy), busy[0]; ms++) {
        if (ms == FUNCTION_MS) return true;
        usleep(1000);
    }
    return false;
}

/* Nobody runs them. A thread of the program's that has read some may be about to queue them: then they go with the agent. */
static void drop_requests(tr_rpc *rpc)
{
    pthread_mutex_lock(&rpc->queue_lock);
    tr__rpc_inbound *first = rpc->first;
    rpc->first = rpc->last = NULL;
    atomic_store(&rpc->queued, 0);
    pthread_mutex_unlock(&rpc->queue_lock);
    TR__FOR_EACH(m, first) tr__inbound_free(m);
}

/* Functions that still run may wait for calls, which no clock ends any more; the threads end when the functions do. */
static void end_threads(tr_rpc *rpc)
{
    tr__rpc_end_threads(rpc);
    pthread_mutex_lock(&rpc->reading);
    rpc->deaf = true;
    pthread_mutex_unlock(&rpc->reading);
    shut(&rpc->recording);
    tr__refs_free(rpc); /* a thread that drops a reference tells its owner, over what the group lends */
    shut(&rpc->sending);
    if (rpc->group) {
        tr_status left = tr_leave(rpc->group);
        (void)left; /* its monitors are gone in any case */
    }
    drop_requests(rpc);
}

/* No call is left after it, and no thread of ours, unless a function is `stuck`: then they go with the agent. */
static void close_agent(tr_rpc *rpc, bool politely, bool stuck)
{
    shut(&rpc->answering);
    int64_t until = tr__now_ns() + FINISH_MS * (int64_t)1000000;
    for (int i = 0; i < rpc->world && politely; i++) /* who was waited for in vain is sent what goes out at once */
        if (rpc->links[i].stream) tr__link_finish(&rpc->links[i], tr__drain_gave_up(rpc, i) ? 0 : until);
    tr__rpc_end_clock(rpc);
    tr__rpc_has_stopped(rpc);
    tr__error *why = tr__error_take();
    for (int i = 0; i < rpc->world; i++) tr__rpc_fail_calls(rpc, i, why);
    rpc->outlived = stuck && function_stays(rpc);
    if (!rpc->outlived) end_threads(rpc);
    for (int i = 0; i < rpc->world; i++) {
        tr__rpc_link *link = &rpc->links[i];
        if (atomic_load(&link->gone)) continue;
        tr__fail_stored(why);
        link->why = tr__error_take();
        atomic_store(&link->gone, true);
        /* Unless nobody has a reference any more: it lets go of replies, which have one. */
        if (politely && atomic_load(&rpc->has_hooks) && rpc->hooks.gone && i != rpc->rank)
            rpc->hooks.gone(rpc->hooks.user, i, why->message);
    }
    tr__error_unref(why);
}

static void free_links(tr_rpc *rpc)
{
    for (int i = 0; rpc->links && i < rpc->world; i++) {
        if (rpc->links[i].stream) tr__link_free(&rpc->links[i]);
        tr__error_unref(rpc->links[i].why);
        tr__error_unref(rpc->links[i].missed);
    }
    free(rpc->links);
    for (int i = 0; i < TR__RPC_FUNCTION_BUCKETS; i++)
        TR__FOR_EACH(e, rpc->functions[i]) free(e);
}

static void destroy(void *self)
{
    tr_rpc *rpc = self;
    if (!rpc->has_locks) return;
    TR__KEEP_ERROR;
    if (rpc->links && !atomic_load(&rpc->closing)) close_agent(rpc, false, false);
    if (rpc->outlived) end_threads(rpc);
    drop_requests(rpc);
    if (atomic_load(&rpc->has_hooks) && rpc->hooks.destroy) rpc->hooks.destroy(rpc->hooks.user);
    free_links(rpc);
    tr__unref(rpc->group);
    int files[] = {rpc->watch, rpc->dozing, rpc->kick};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i] >= 0) close(files[i]);
    free(rpc->handles);
    free(rpc->answers);
    tr_shared_free(rpc->page);
    pthread_mutex_t *locks[] = {&rpc->functions_lock, &rpc->calls_lock, &rpc->queue_lock, &rpc->reading, &rpc->clock_lock,
        &rpc->refs_lock, &rpc->drain_lock, &rpc->dozing_lock};
    for (size_t i = 0; i < sizeof locks / sizeof *locks; i++) pthread_mutex_destroy(locks[i]);
    pthread_cond_t *conditions[] = {&rpc->calls_changed, &rpc->clock_changed, &rpc->drain_changed};
    for (size_t i = 0; i < sizeof conditions / sizeof *conditions; i++) pthread_cond_destroy(conditions[i]);
}

const tr__type tr__rpc_type = {.name = "rpc", .size = sizeof(tr_rpc), .destroy = destroy};

bool tr__rpc_hold(tr_rpc *rpc)
{
    int64_t refs = atomic_load(&rpc->object.refs);
    while (refs > 0 && !atomic_compare_exchange_weak(&rpc->object.refs, &refs, refs + 1)) continue;
    return refs > 0;
}

static void *drop(void *rpc)
{
    tr__unref(rpc);
    return NULL;
}

void tr__rpc_let_go(tr_rpc *rpc)
{
    int64_t refs = atomic_load(&rpc->object.refs);
    while (refs > 1 && !atomic_compare_exchange_weak(&rpc->object.refs, &refs, refs - 1)) continue;
    if (refs > 1) return;
    pthread_t thread; /* without one the agent stays for ever, which is better than being gone beneath its threads */
    if (tr__thread_start(&thread, drop, rpc) == 0) pthread_detach(thread);
}

tr_status tr_rpc_stop(tr_rpc *rpc)
{
    TR__TRY(tr__rpc_check(rpc));
    if (tr_rpc_current() == rpc)
        return tr__fail(TR_STATE, "tr_rpc_stop: called by a function that runs for another worker, which it would wait for");
    if (atomic_exchange(&rpc->stopped, true)) return tr__fail(TR_STATE, "tr_rpc_stop: it has stopped already");
    rpc->stop_record = tr__rpc_record_sleep(rpc, -1, "tr_rpc_stop()");
    tr_status status = tr__drain(rpc);
    tr__rpc_record_end(rpc, rpc->stop_record);
    tr__error *why = status == TR_OK ? NULL : tr__error_take();
    tr__refs_report(rpc);
    close_agent(rpc, true, status == TR_TIMEOUT);
    tr__error_restore(why);
    return status;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static void make_locks(tr_rpc *rpc)
{
    pthread_mutex_t *locks[] = {&rpc->functions_lock, &rpc->calls_lock, &rpc->queue_lock, &rpc->reading, &rpc->clock_lock,
        &rpc->refs_lock, &rpc->drain_lock, &rpc->dozing_lock};
    for (size_t i = 0; i < sizeof locks / sizeof *locks; i++) pthread_mutex_init(locks[i], NULL);
    pthread_cond_t *conditions[] = {&rpc->calls_changed, &rpc->clock_changed, &rpc->drain_changed};
    for (size_t i = 0; i < sizeof conditions / sizeof *conditions; i++) tr__condition_init(conditions[i]);
    rpc->has_locks = true;
    rpc->found_last = &rpc->found;
    rpc->watch = rpc->dozing = rpc->kick = -1;
    rpc->next_deadline = INT64_MAX;
}

static tr_status make_parts(tr_rpc *rpc)
{
    rpc->links = calloc((size_t)rpc->world, sizeof *rpc->links);
    rpc->handles = calloc(TR__RPC_THREADS_MOST, sizeof *rpc->handles);
    rpc->answers = calloc((size_t)rpc->world, sizeof *rpc->answers);
    if (!rpc->links || !rpc->handles || !rpc->answers) return tr__fail(TR_NO_MEMORY, "rpc: no memory for %d workers", rpc->world);
    for (int i = 0; i < rpc->world; i++) rpc->links[i].worker = i;
    rpc->page = tr_shared_alloc(sizeof *rpc->page + (size_t)rpc->world * sizeof *rpc->page->rings);
    if (!rpc->page) return TR_NO_MEMORY;
    rpc->page->magic = TR__RPC_MAGIC;
    rpc->page->version = TR__RPC_VERSION;
    return TR_OK;
}

static tr_status check_names(const tr_rpc *rpc)
{
    for (int i = 0; i < rpc->world; i++)
        if (!rpc->links[i].name[0])
            return tr__fail(TR_PEER, "tr_rpc_start: rank %d was given options that make no agent, and says which", i);
    for (int a = 0; a < rpc->world; a++)
        for (int b = 0; b < a; b++)
            if (strcmp(rpc->links[a].name, rpc->links[b].name) == 0)
                return tr__fail(TR_INVALID, "tr_rpc_start: ranks %d and %d are both named \"%s\"; each worker has a name of "
                    "its own", b, a, rpc->links[a].name);
    return TR_OK;
}

/* What all are told of a worker: its name, and the segment of its page. */
typedef struct worker_record {
    char name[TR__RPC_WORKER_NAME];
    uint64_t page;
} worker_record;

static void fill_record(const tr_rpc *rpc, const char *name, worker_record *mine)
{
    tr__segment page;
    *mine = (worker_record){.name = ""};
    snprintf(mine->name, sizeof mine->name, "%s", name);
    if (tr__segment_find(rpc->page, 1, &page)) mine->page = page.id;
}

static tr_status exchange_records(tr_rpc *rpc, const char *name, worker_record *all)
{
    worker_record mine;
    fill_record(rpc, name, &mine);
    TR__TRY(tr_all_gather(rpc->group, &mine, all, (int64_t)sizeof mine, .dtype = TR_U8));
    for (int i = 0; i < rpc->world; i++)
        snprintf(rpc->links[i].name, sizeof rpc->links[i].name, "%.*s", TR__RPC_WORKER_NAME - 1, all[i].name);
    return check_names(rpc);
}

static tr_status make_watch(tr_rpc *rpc)
{
    rpc->watch = epoll_create1(EPOLL_CLOEXEC);
    rpc->dozing = epoll_create1(EPOLL_CLOEXEC);
    rpc->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN | EPOLLET};
    if (rpc->watch < 0 || rpc->dozing < 0 || rpc->kick < 0 || epoll_ctl(rpc->dozing, EPOLL_CTL_ADD, rpc->kick, &e) != 0 ||
        epoll_ctl(rpc->dozing, EPOLL_CTL_ADD, rpc->watch, &e) != 0)
        return tr__fail_errno(TR_IO, errno, "rpc: no epoll");
    rpc->dozing_hears = true;
    return TR_OK;
}

static tr_status show_rings(tr_rpc *rpc)
{
    for (int i = 0; i < rpc->world; i++) {
        rpc->links[i].local = i != rpc->rank && tr__raw_is_local(rpc->group, i);
        if (rpc->links[i].local) TR__TRY(tr__link_make_ring(&rpc->links[i]));
    }
    tr__raw_watch(rpc->group, &rpc->raw_events);
    for (int i = 0; i < rpc->world; i++)
        if (rpc->links[i].local) TR__TRY(tr__link_show_ring(rpc, &rpc->links[i]));
    return TR_OK;
}

static tr_status open_links(tr_rpc *rpc, const worker_record *all)
{
    for (int i = 0; i < rpc->world; i++)
        if (rpc->links[i].local) TR__TRY(tr__link_find_ring(rpc, &rpc->links[i], all[i].page));
    for (int i = 0; i < rpc->world; i++) {
        if (i == rpc->rank || rpc->links[i].local) continue;
        if (rpc->watch < 0) TR__TRY(make_watch(rpc));
        tr__wire *wire;
        TR__TRY(tr__raw_wire(rpc->group, i, &wire));
        TR__TRY(tr__link_connect(rpc, &rpc->links[i], wire));
    }
    return TR_OK;
}

/* A name of NULL: the others are to know that there is nobody here. */
static tr_status connect_all(tr_rpc *rpc, const char *name)
{
    worker_record *all = calloc((size_t)rpc->world, sizeof *all);
    if (!all) return tr__fail(TR_NO_MEMORY, "rpc: no memory for %d workers", rpc->world);
    rpc->raw_events = (tr__raw_events){.user = rpc, .shown = rank_has_shown, .missed = rank_has_missed, .gone = rank_gone};
    rpc->crowded = tr__raw_crowded(rpc->group);
    tr_status status = show_rings(rpc);
    if (status == TR_OK) status = exchange_records(rpc, name ? name : "", all);
    if (status == TR_OK) status = open_links(rpc, all);
    free(all);
    TR__TRY(status);
    TR__TRY(tr__refs_start(rpc));
    return tr__rpc_start_threads(rpc);
}

static tr_status check_options(const tr_rpc_options *o)
{
    size_t length = o->name ? strlen(o->name) : 1;
    if (length < 1 || length >= TR__RPC_WORKER_NAME)
        return tr__fail(TR_INVALID, "tr_rpc_start: a .name has 1 … %d bytes", TR__RPC_WORKER_NAME - 1);
    int threads = TR__OR(o, threads, 1), timeout_ms = TR__OR(o, timeout_ms, 1), queue_mb = TR__OR(o, queue_mb, 1);
    if (threads < 1 || threads >= TR__RPC_THREADS_MOST || timeout_ms < 1 || queue_mb < 1)
        return tr__fail(TR_INVALID, "tr_rpc_start: .threads = %d (1 … %d), .timeout_ms = %d, .queue_mb = %d: all from 1",
            o->threads, TR__RPC_THREADS_MOST - 1, o->timeout_ms, o->queue_mb);
    return TR_OK;
}

/* Whoever is given wrong options comes to the meeting all the same, or the others would wait for it. */
static tr_status connect_or_refuse(tr_rpc *rpc, const tr_rpc_options *o)
{
    char name[TR__RPC_WORKER_NAME];
    snprintf(name, sizeof name, "worker%d", rpc->rank);
    if (check_options(o) == TR_OK) return connect_all(rpc, o->name ? o->name : name);
    tr__error *why = tr__error_take();
    (void)!connect_all(rpc, NULL); /* the others' errors are not this one's */
    return tr__error_restore(why);
}

static tr_status set_up(tr_rpc *rpc, const tr_rpc_options *o)
{
    if (!o->group) return tr__fail(TR_INVALID, "tr_rpc_start: a group is needed, not NULL");
    TR__TRY(tr_status_of(o->group));
    rpc->rank = tr_rank(o->group);
    rpc->world = tr_world_size(o->group);
    rpc->local_rank = tr_local_rank(o->group);
    rpc->threads_most = TR__OR(o, threads, TR__RPC_THREADS);
    atomic_store(&rpc->timeout_ms, TR__OR(o, timeout_ms, TR__RPC_TIMEOUT_MS));
    rpc->queue_bytes = (uint64_t)TR__OR(o, queue_mb, TR__RPC_QUEUE_MB) << 20;
    TR__TRY(make_parts(rpc));
    TR_SCOPE;
    tr_group *group = tr__group_twin(o->group);
    TR__TRY(tr_status_of(group));
    rpc->group = tr__ref(group);
    rpc->recorder = tr__raw_recorder(group);
    return connect_or_refuse(rpc, o);
}

tr_rpc *tr_rpc_start_with(const tr_rpc_options *options)
{
    tr_rpc_options o = {0};
    if (options) memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    TR__CALLED_AT(o.file, o.line);
    tr_rpc *rpc = tr__object_new(&tr__rpc_type);
    if (rpc->object.error) return rpc;
    make_locks(rpc);
    if (set_up(rpc, &o) != TR_OK) tr__object_break(rpc);
    return rpc;
}
