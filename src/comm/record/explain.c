/*
 * tr_job_explain: who is in which call, who waits for whom, who is the likely culprit. All is read from the flight records of
 * the processes, and their state from /proc, at one moment.
 *
 * Within a group a rank waits for others by its record (or, over a backend that does not tell, for those that are behind).
 * A rank that others wait for, and that itself waits for nobody or cannot go on (stopped, dead, not here), is the
 * culprit for all that reach it along these edges; unless its process waits in another group of the job, and the edges of all
 * groups together lead in a circle.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/object.h"
#include "comm/record/record.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN = 8, SOON_NS = 1000000000 };

typedef enum health { FINE, STOPPED, DEAD, ELSEWHERE, GONE, UNKNOWN } health;

/* What is to be told, of which records, and where. Of stalls: only the culprits of waits that began in that time. */
typedef struct question {
    bool stalls;
    int64_t after, until, now;
    const tr__records *all;
    FILE *out;
} question;

typedef struct member {
    const tr__record *record; /* NULL: it has none on this host */
    health health;
    int waits[TR__RECORD_WAITS], wait_count;     /* whom it waits for */
    int waiters[TR__RECORD_WAITS], waiter_count; /* who waits for it, directly or not: the first of them, and how many */
    bool visited;
    bool in_circle;           /* it waits in another group, which leads back to who waits for it here */
} member;

typedef struct members {
    const question *q;
    const tr__record *any;
    member *ranks;            /* [world] */
    int *stack;               /* [world] */
    int world, here;          /* here: on this host */
    bool all_idle;            /* nobody waits in any group of the job */
} members;

/* A rank that waits in a group. In a circle: for which rank of the group, and who is next, the same process or that rank. */
typedef struct waiting_rank {
    members *m;
    int rank;
    int next, awaited; /* next: in the job's list; -1: in no circle that is known */
    bool begins;       /* a circle is told from here */
    int from;          /* who led here, in a search; -1: nobody has */
} waiting_rank;

/* The groups of a job, and who waits in them. */
typedef struct job_state {
    members *groups;   /* [group_count] */
    int group_count;
    waiting_rank *waiters; /* [waiter_count] */
    int waiter_count;
    int *queue;        /* [waiter_count]: of a search */
} job_state;

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

static health find_health(const members *m, int rank)
{
    const tr__record *r = m->ranks[rank].record;
    if (r) return r->process.state == 'X' ? DEAD : strchr("Tt", r->process.state) ? STOPPED : FINE;
    int pid = m->any->peers[rank].pid;
    if (pid == 0) return UNKNOWN;
    if (strncmp(m->any->peers[rank].host, m->any->host, sizeof m->any->peers->host - 1) != 0) return ELSEWHERE;
    return tr__process_of(pid).state == 'X' ? DEAD : GONE;
}

enum { NAME_TEXT = 128 };

static char *name_of(const members *m, int rank, char text[NAME_TEXT])
{
    static const char *const words[] = {[STOPPED] = ", stopped", [DEAD] = ", dead", [FINE] = "", [GONE] = ""};
    const tr__record *r = m->ranks[rank].record;
    int pid = r ? r->pid : m->any->peers[rank].pid;
    health h = m->ranks[rank].health;
    if (h == UNKNOWN)
        snprintf(text, NAME_TEXT, "rank %d", rank);
    else if (h == ELSEWHERE)
        snprintf(text, NAME_TEXT, "rank %d (pid %d on host %s)", rank, pid, m->any->peers[rank].host);
    else
        snprintf(text, NAME_TEXT, "rank %d (pid %d%s)", rank, pid, words[h]);
    return text;
}

/* The number of the latest collective that a rank has started. */
static uint64_t progress(const tr__record *r)
{
    uint64_t latest = 0;
    for (int i = 0; r && i < r->call_count; i++)
        if (r->calls[i].started && r->calls[i].signature.sequence > latest) latest = r->calls[i].signature.sequence;
    return latest;
}

static const tr__record_call *call_number(const tr__record *r, uint64_t sequence)
{
    for (int i = r ? r->call_count - 1 : -1; i >= 0; i--)
        if (r->calls[i].signature.sequence == sequence) return &r->calls[i];
    return NULL;
}

static bool is_transfer(const tr__record_call *c)
{
    return tr__kind_of(c->signature.kind)->point_to_point;
}

static bool is_remote_wait(const tr__record_call *c)
{
    return (int)c->signature.kind == TR__REMOTE_WAIT;
}

/* Does a call that is under way wait for rank k? */
static bool awaits(const members *m, const tr__record_call *c, int k)
{
    int peer = c->signature.peer;
    if (!is_remote_wait(c)) return peer == k || (peer == TR_ANY_SOURCE && m->ranks[k].record);
    bool stopped = false; /* if it goes through others, one that is stopped holds it up */
    for (int i = 0; i < m->world && c->signature.tag; i++) stopped |= m->ranks[i].health == STOPPED;
    return stopped ? m->ranks[k].health == STOPPED : peer == k;
}

static void add_wait(member *self, int rank)
{
    for (int known = 0; known < self->wait_count; known++)
        if (self->waits[known] == rank) return;
    if (self->wait_count < TR__RECORD_WAITS) self->waits[self->wait_count++] = rank;
}

/* Whom a rank waits for; the others' health is known. */
static void find_waits(const members *m, int rank)
{
    member *self = &m->ranks[rank];
    const tr__record *r = self->record;
    if (!r || r->state == TR__RECORD_FAILED) return;
    for (int i = 0; i < r->waits_count; i++) add_wait(self, r->waits[i]);
    for (int i = 0; i < r->call_count; i++) {
        if (!is_transfer(&r->calls[i]) || r->calls[i].ended) continue;
        for (int k = 0; k < m->world; k++)
            if (k != rank && awaits(m, &r->calls[i], k)) add_wait(self, k);
    }
    const tr__record_call *running = tr__record_running(r);
    if (self->wait_count || !running || is_transfer(running) || strcmp(r->backend, "native") == 0) return;
    for (int k = 0; k < m->world; k++)
        if (m->ranks[k].record && progress(m->ranks[k].record) < running->signature.sequence) add_wait(self, k);
}

/* Does the rank wait, and could it go on? */
static bool is_waiting(const members *m, int rank)
{
    return m->ranks[rank].health == FINE && m->ranks[rank].wait_count > 0;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static void print_row(const members *m, int rank)
{
    const tr__record *r = m->ranks[rank].record;
    char name[NAME_TEXT], since[TR__TIME_TEXT], text[TR__RANKS_TEXT], held[TR__HELD_TEXT];
    const int *waits = m->ranks[rank].waits;
    int queued = 0, count = m->ranks[rank].wait_count;
    fprintf(m->q->out, "    %-28s  ", name_of(m, rank, name));
    if (r->state == TR__RECORD_FAILED)
        fprintf(m->q->out, "failed %s ago: %s", tr__time_text(m->q->now - r->failed, since), r->failure);
    else
        tr__record_write_state(m->q->out, r, m->q->now);
    if (count)
        fprintf(m->q->out, ", waits for %s", tr__ranks_text(waits, count, r->waits_total > count ? r->waits_total : count, text));
    if (count == 1 && r->held.rank == waits[0]) fprintf(m->q->out, "%s", tr__held_text(&r->held, held));
    for (int i = 0; i < r->call_count; i++) queued += !r->calls[i].started && !r->calls[i].ended;
    if (queued) fprintf(m->q->out, "; %d more call%s posted", queued, queued == 1 ? "" : "s");
    fputc('\n', m->q->out);
}

static void print_absent(const members *m)
{
    static const char *const words[] = {[DEAD] = "its process has ended", [GONE] = "has left the group",
        [ELSEWHERE] = "look there", [UNKNOWN] = "has not joined yet, as far as is known here"};
    int shown = 0;
    char name[NAME_TEXT];
    for (int rank = 0; rank < m->world; rank++)
        if (!m->ranks[rank].record && shown++ < SHOWN)
            fprintf(m->q->out, "    %-28s  %s\n", name_of(m, rank, name), words[m->ranks[rank].health]);
    if (shown > SHOWN) fprintf(m->q->out, "    and %d more that have no record on this host\n", shown - SHOWN);
}

/* ---- Culprits ---------------------------------------------------------------------------------------------------- */

/* Follows the edges from one rank; notes it with all that it reaches. */
static void follow(const members *m, int from)
{
    int depth = 0;
    for (int rank = 0; rank < m->world; rank++) m->ranks[rank].visited = rank == from;
    m->stack[depth++] = from;
    while (depth > 0) {
        int at = m->stack[--depth];
        if (at != from && m->ranks[at].health != FINE) continue; /* it cannot go on, whomever it waits for */
        for (int i = 0; i < m->ranks[at].wait_count; i++) {
            int rank = m->ranks[at].waits[i];
            member *to = &m->ranks[rank];
            if (to->visited) continue;
            to->visited = true;
            if (to->waiter_count < TR__RECORD_WAITS) to->waiters[to->waiter_count] = from;
            to->waiter_count++;
            m->stack[depth++] = rank;
        }
    }
}

/* What else the process of an idle rank does, in another group. */
static void print_other_group(const members *m, const tr__record *r)
{
    char call[TR__CALL_TEXT], ranks[TR__RANKS_TEXT], group[TR__GROUP_TEXT];
    for (int i = 0; i < m->q->all->count; i++) {
        const tr__record *other = &m->q->all->list[i];
        bool same_group = strcmp(other->group, r->group) == 0;
        if (other->pid == r->pid && other != r && same_group) return; /* ranks are threads: whose it is, is not known */
        const tr__record_call *running = tr__record_running(other);
        if (other->pid != r->pid || same_group || !running || other->state == TR__RECORD_FAILED) continue;
        fprintf(m->q->out, "; in %s it is in %s", tr__record_group(other, group), tr__signature_text(&running->signature, call));
        if (other->waits_total > 0)
            fprintf(m->q->out, " and waits for %s", tr__ranks_text(other->waits, other->waits_count, other->waits_total, ranks));
    }
}

/* The call in which a rank waits for another one: of several the oldest. Through others: the one that has run longest. */
static const tr__record_call *call_for(const members *m, const tr__record *waiter, int rank)
{
    for (int i = 0; i < waiter->waits_count; i++)
        if (waiter->waits[i] == rank) return tr__record_running(waiter);
    for (int i = 0; i < waiter->call_count; i++) {
        const tr__record_call *c = &waiter->calls[i];
        if (is_transfer(c) && c->started && !c->ended && awaits(m, c, rank)) return c;
    }
    return tr__record_running(waiter);
}

/* What a culprit does instead of what its first waiter waits for. */
static void print_reason(const members *m, int rank)
{
    const tr__record *r = m->ranks[rank].record, *waiter = m->ranks[m->ranks[rank].waiters[0]].record;
    const tr__record_call *wanted = call_for(m, waiter, rank), *running = r ? tr__record_running(r) : NULL;
    char call[TR__CALL_TEXT], other[TR__CALL_TEXT], held[TR__HELD_TEXT];
    if (!wanted || waiter->state == TR__RECORD_JOINING) {
        fprintf(m->q->out, "it has not joined");
        return;
    }
    tr__signature_text(&wanted->signature, call);
    uint64_t sequence = wanted->signature.sequence;
    bool entered = r && sequence && progress(r) >= sequence;
    if (!r || (is_remote_wait(wanted) && wanted->signature.tag))
        fprintf(m->q->out, "%s needs it", call);
    else if (is_remote_wait(wanted))
        fprintf(m->q->out, "it has not answered %s", call);
    else if (entered && running && running->signature.sequence == sequence)
        fprintf(m->q->out, "it is at work in %s", tr__signature_text(&running->signature, other));
    else if (entered)
        fprintf(m->q->out, "it has gone on from %s", call);
    else if (sequence)
        fprintf(m->q->out, "it has not entered %s", call);
    else if (waiter->held.bytes && waiter->held.rank == rank)
        fprintf(m->q->out, "%s waits for it%s", call, tr__held_text(&waiter->held, held));
    else
        fprintf(m->q->out, "its part of %s is not there", call);
    if (running && running->signature.sequence != sequence)
        fprintf(m->q->out, ", but is in %s", tr__signature_text(&running->signature, other));
    if (r && !running) print_other_group(m, r);
}

/* How long a rank has waited in a call; NULL: in none, as it joins. */
static int64_t wait_of(const members *m, const tr__record *r, const tr__record_call *call)
{
    bool told = r->waits_total && call == tr__record_running(r);
    return m->q->now - (told ? r->waits_since : call ? call->started : m->q->now);
}

/* Longest wait among those that wait for a rank. */
static int64_t longest_wait(const members *m, int rank)
{
    int64_t longest = 0;
    for (int i = 0; i < m->ranks[rank].waiter_count && i < TR__RECORD_WAITS; i++) {
        const tr__record *waiter = m->ranks[m->ranks[rank].waiters[i]].record;
        int64_t wait = wait_of(m, waiter, call_for(m, waiter, rank));
        if (wait > longest) longest = wait;
    }
    return longest;
}

static bool is_wanted(const members *m, int64_t wait)
{
    int64_t since = m->q->now - wait;
    return !m->q->stalls || (since > m->q->after && since <= m->q->until);
}

static void begin_line(const members *m)
{
    char group[TR__GROUP_TEXT];
    if (m->q->stalls) fprintf(m->q->out, "%s: ", tr__record_group(m->any, group));
    else fprintf(m->q->out, "  => ");
}

static void print_culprit(const members *m, int rank)
{
    char name[NAME_TEXT], text[TR__RANKS_TEXT], since[TR__TIME_TEXT];
    int total = m->ranks[rank].waiter_count, named = total < TR__RECORD_WAITS ? total : TR__RECORD_WAITS;
    int64_t longest = longest_wait(m, rank);
    begin_line(m);
    fprintf(m->q->out, "%s is what %s %s for: ", name_of(m, rank, name),
        tr__ranks_text(m->ranks[rank].waiters, named, total, text), total == 1 ? "waits" : "wait");
    print_reason(m, rank);
    fprintf(m->q->out, " (for %s%s)\n", tr__time_text(longest, since),
        longest < SOON_NS && m->ranks[rank].health == FINE ? ", which may be nothing" : "");
}

/* Ranks that wait for each other, and for nobody else. */
static void print_circle(const members *m)
{
    int ranks[TR__RECORD_WAITS], count = 0, total = 0;
    int64_t longest = 0;
    char text[TR__RANKS_TEXT];
    for (int rank = 0; rank < m->world; rank++) {
        const tr__record *r = m->ranks[rank].record;
        if (!is_waiting(m, rank)) continue;
        if (count < TR__RECORD_WAITS) ranks[count++] = rank;
        int64_t wait = wait_of(m, r, tr__record_running(r));
        if (wait > longest) longest = wait;
        total++;
    }
    if (!is_wanted(m, longest) || (!total && !m->all_idle)) return;
    begin_line(m);
    if (total)
        fprintf(m->q->out, "%s wait for each other: look where their calls%s differ\n",
            tr__ranks_text(ranks, count, total, text), m->q->stalls ? "" : " above");
    else
        fprintf(m->q->out, "nobody waits\n");
}

static void find_culprits(const members *m)
{
    int culprits = 0, wanted = 0;
    for (int rank = 0; rank < m->world; rank++)
        if (is_waiting(m, rank)) follow(m, rank);
    /* First who cannot go on, then who may. */
    for (int turn = 0; turn < 2; turn++)
        for (int rank = 0; rank < m->world; rank++) {
            const member *one = &m->ranks[rank];
            bool hard = one->health == STOPPED || one->health == DEAD;
            if (hard != (turn == 0) || !one->waiter_count || is_waiting(m, rank)) continue;
            culprits++;
            if (!one->in_circle && is_wanted(m, longest_wait(m, rank)) && wanted++ < SHOWN) print_culprit(m, rank);
        }
    if (wanted > SHOWN) {
        begin_line(m);
        fprintf(m->q->out, "and %d more\n", wanted - SHOWN);
    }
    if (!culprits) print_circle(m);
}

/* ---- Differences ------------------------------------------------------------------------------------------------- */

/* A running call against what another rank calls, or has called, under its number. */
static bool print_mismatch(const members *m, int rank, const tr__record_call *running)
{
    char mine[TR__CALL_TEXT], theirs[TR__CALL_TEXT];
    for (int k = 0; k < m->world; k++) {
        const tr__record_call *c = call_number(m->ranks[k].record, running->signature.sequence);
        if (!c || tr__signature_agrees(&running->signature, &c->signature)) continue;
        fprintf(m->q->out, "  => ranks %d and %d make different calls: %s, %s\n", rank, k,
            tr__signature_text(&running->signature, mine), tr__signature_text(&c->signature, theirs));
        return true;
    }
    return false;
}

/* Of collectives no rank can be two ahead of one that is still in it. */
static bool print_ahead(const members *m, int rank, const tr__record_call *running)
{
    char call[TR__CALL_TEXT];
    for (int k = 0; k < m->world; k++) {
        uint64_t at = progress(m->ranks[k].record);
        if (at < running->signature.sequence + 2) continue;
        fprintf(m->q->out, "  => the ranks are out of step: rank %d is in %s, rank %d has come to #%llu\n", rank,
            tr__signature_text(&running->signature, call), k, (unsigned long long)at);
        return true;
    }
    return false;
}

static void find_differences(const members *m)
{
    bool mismatch = false, ahead = false;
    for (int rank = 0; rank < m->world; rank++) {
        const tr__record *r = m->ranks[rank].record;
        const tr__record_call *running = r ? tr__record_running(r) : NULL;
        if (!running || !running->signature.sequence) continue;
        if (!mismatch) mismatch = print_mismatch(m, rank, running);
        if (!ahead && !r->waits_total) continue; /* it may have come far since we looked at it */
        if (!ahead) ahead = print_ahead(m, rank, running);
    }
}

/* ---- Circles across groups ----------------------------------------------------------------------------------------- */

/* Is it the only rank of its process there? Of ranks that are threads it is not known whose wait it is. */
static bool is_alone(const members *m, const tr__record *r)
{
    int same = 0;
    for (int k = 0; k < m->world; k++) same += m->ranks[k].record && m->ranks[k].record->pid == r->pid;
    return same == 1;
}

/* Is another waiter the rank that this one waits for, or that rank's process in another group? Remote calls are answered by
 * threads of the agent's, whatever else the process waits for. */
static bool stands_for(const waiting_rank *a, int awaited, const waiting_rank *b)
{
    const tr__record *r = a->m->ranks[awaited].record, *other = b->m->ranks[b->rank].record;
    if (a->m == b->m) return b->rank == awaited;
    if (!r || r->pid != other->pid || a->m->ranks[awaited].health != FINE || a->m->ranks[awaited].wait_count) return false;
    const tr__record_call *call = call_for(a->m, a->m->ranks[a->rank].record, awaited);
    return !(call && is_remote_wait(call)) && is_alone(a->m, r) && is_alone(b->m, r);
}

/* The rank of its group for which a waiter is held up by another one; -1: it is not. */
static int leads_to(const waiting_rank *a, const waiting_rank *b)
{
    const member *waiter = &a->m->ranks[a->rank];
    for (int i = 0; i < waiter->wait_count; i++)
        if (stands_for(a, waiter->waits[i], b)) return waiter->waits[i];
    return -1;
}

/* Does a waiter of another group lead to this one? Few do, and every circle across groups has one that is led to so. */
static bool is_led_to(const job_state *j, const waiting_rank *b)
{
    bool led = false;
    for (int at = 0; at < j->waiter_count && !led; at++)
        led = j->waiters[at].m != b->m && leads_to(&j->waiters[at], b) >= 0;
    return led;
}

/* The shortest way from a waiter back to it; returns the last of it, or -1. */
static int search_back(job_state *j, int start)
{
    int head = 0, tail = 0;
    for (int i = 0; i < j->waiter_count; i++) j->waiters[i].from = -1;
    j->queue[tail++] = start;
    while (head < tail) {
        int at = j->queue[head++];
        for (int to = 0; to < j->waiter_count; to++) {
            waiting_rank *b = &j->waiters[to];
            if (b->next >= 0 || b->from >= 0 || to == at || leads_to(&j->waiters[at], b) < 0) continue;
            b->from = at;
            if (to == start) return at;
            j->queue[tail++] = to;
        }
    }
    return -1;
}

/* A circle within one group is that group's to tell. */
static void find_circles(job_state *j)
{
    for (int start = 0; start < j->waiter_count; start++) {
        bool known = j->waiters[start].next >= 0;
        int last = !known && is_led_to(j, &j->waiters[start]) ? search_back(j, start) : -1;
        bool crosses = false;
        for (int at = last; at >= 0 && at != start; at = j->waiters[at].from)
            crosses |= j->waiters[at].m != j->waiters[start].m;
        if (!crosses) continue;
        j->waiters[start].begins = true;
        for (int at = last, next = start;; next = at, at = j->waiters[at].from) {
            waiting_rank *a = &j->waiters[at];
            a->next = next;
            a->awaited = leads_to(a, &j->waiters[next]);
            if (a->m != j->waiters[next].m) a->m->ranks[a->awaited].in_circle = true;
            if (at == start) break;
        }
    }
}

/* "rank 0 (pid 11) waits in all_reduce #7 (…) of group 'a' for rank 1 (pid 12), which waits in all_reduce #9 (…) of group
 * 'b' for rank 0 (pid 11): …" It has lasted since the last of them began to wait. */
static void print_crossing(const job_state *j, int start)
{
    char name[NAME_TEXT], group[TR__GROUP_TEXT], call[TR__CALL_TEXT], since[TR__TIME_TEXT];
    int64_t shortest = INT64_MAX;
    const members *m = j->waiters[start].m;
    FILE *out = m->q->out;
    for (int at = start, first = 1; first || at != start; at = j->waiters[at].next, first = 0) {
        const waiting_rank *w = &j->waiters[at];
        const tr__record *r = w->m->ranks[w->rank].record;
        int64_t wait = wait_of(w->m, r, call_for(w->m, r, w->awaited));
        if (wait < shortest) shortest = wait;
    }
    if (!is_wanted(m, shortest)) return;
    fprintf(out, "%s%s", m->q->stalls ? "" : "  => ", name_of(m, j->waiters[start].rank, name));
    int said = j->waiters[start].rank;
    for (int at = start, first = 1; first || at != start; at = j->waiters[at].next, first = 0) {
        const waiting_rank *w = &j->waiters[at];
        const tr__record *r = w->m->ranks[w->rank].record;
        const tr__record_call *waits_in = call_for(w->m, r, w->awaited);
        fprintf(out, "%s waits", first ? "" : ", which");
        if (w->rank != said) fprintf(out, " as rank %d", w->rank);
        fprintf(out, " in %s of %s for %s", waits_in ? tr__signature_text(&waits_in->signature, call) : "joining",
            tr__record_group(r, group), name_of(w->m, w->awaited, name));
        said = w->awaited;
    }
    fprintf(out, ": ranks must make their calls in groups that they share in one order (for %s%s)\n",
        tr__time_text(shortest, since), shortest < SOON_NS ? ", which may be nothing" : "");
}

/* ---- Groups and jobs --------------------------------------------------------------------------------------------- */

static bool same_job(const tr__record *a, const tr__record *b)
{
    return strcmp(a->job, b->job) == 0 && (a->job[0] || a->parent == b->parent);
}

static bool same_group(const tr__record *a, const tr__record *b)
{
    return same_job(a, b) && strcmp(a->group, b->group) == 0 && a->world_size == b->world_size;
}

static void print_group(const members *m)
{
    if (m->q->stalls) {
        find_culprits(m);
        return;
    }
    char group[TR__GROUP_TEXT];
    fprintf(m->q->out, "  %s (%s): %d of %d ranks are on this host\n", tr__record_group(m->any, group), m->any->backend, m->here,
        m->world);
    for (int rank = 0; rank < m->world; rank++)
        if (m->ranks[rank].record) print_row(m, rank);
    print_absent(m);
    find_culprits(m);
    find_differences(m);
}

/* The records from `first` to before `end` are one group. */
static tr_status make_members(members *m, int first, int end, const question *q)
{
    *m = (members){.q = q, .any = &q->all->list[first], .world = q->all->list[first].world_size};
    m->ranks = calloc((size_t)m->world, sizeof *m->ranks);
    m->stack = calloc((size_t)m->world, sizeof *m->stack);
    if (!m->ranks || !m->stack) return tr__fail(TR_NO_MEMORY, "no memory for %d ranks", m->world);
    for (int i = first; i < end; i++) {
        const tr__record *r = &q->all->list[i];
        m->here += !m->ranks[r->rank].record;
        m->ranks[r->rank].record = r;
        if (r->state != TR__RECORD_JOINING) m->any = r; /* knows its peers */
    }
    for (int rank = 0; rank < m->world; rank++) m->ranks[rank].health = find_health(m, rank);
    for (int rank = 0; rank < m->world; rank++) find_waits(m, rank);
    return TR_OK;
}

/* The records from `first` to before `end` are one job. */
static tr_status explain_job(int first, int end, const question *q)
{
    const tr__record *list = q->all->list, *r = &list[first];
    size_t records = (size_t)(end - first);
    job_state j = {.groups = calloc(records, sizeof *j.groups), .waiters = calloc(records, sizeof *j.waiters),
        .queue = calloc(records, sizeof *j.queue)};
    tr_status status = j.groups && j.waiters && j.queue ? TR_OK : tr__fail(TR_NO_MEMORY, "no memory for %zu records", records);
    for (int next; first < end && status == TR_OK; first = next) {
        for (next = first + 1; next < end && same_group(&list[first], &list[next]);) next++;
        members *m = &j.groups[j.group_count++];
        status = make_members(m, first, next, q);
        for (int rank = 0; rank < m->world && status == TR_OK; rank++)
            if (is_waiting(m, rank)) j.waiters[j.waiter_count++] = (waiting_rank){.m = m, .rank = rank, .next = -1};
    }
    if (status == TR_OK) {
        find_circles(&j);
        for (int g = 0; g < j.group_count; g++) j.groups[g].all_idle = j.waiter_count == 0;
        if (!q->stalls && r->job[0]) fprintf(q->out, "job %s on host %s\n", r->job, r->host);
        if (!q->stalls && !r->job[0])
            fprintf(q->out, "job without a name, started by process %d on host %s\n", r->parent, r->host);
        for (int g = 0; g < j.group_count; g++) print_group(&j.groups[g]);
        for (int i = 0; i < j.waiter_count; i++)
            if (j.waiters[i].begins) print_crossing(&j, i);
    }
    for (int g = 0; g < j.group_count; g++) {
        free(j.groups[g].ranks);
        free(j.groups[g].stack);
    }
    free(j.groups);
    free(j.waiters);
    free(j.queue);
    return status;
}

/* Is it the job's name, or a process of it or above it? */
static bool is_asked_for(const tr__record *r, const char *job)
{
    enum { GENERATIONS = 16 };
    if (!job || strcmp(r->job, job) == 0) return true;
    char *end;
    long asked = strtol(job, &end, 10), pid = r->pid;
    if (*end || asked <= 1) return false;
    if (asked == r->parent) return true;
    for (int i = 0; i < GENERATIONS && pid > 1; i++) {
        if (pid == asked) return true;
        pid = tr__process_of(pid).parent;
    }
    return false;
}

static tr_status none_found(const tr__records *all, const char *job)
{
    if (!all->count)
        return tr__fail(TR_NOT_FOUND, "no process of this user is in a group of several ranks on this host");
    char names[256] = "";
    for (int i = 0; i < all->count; i++) {
        if (i > 0 && same_job(&all->list[i - 1], &all->list[i])) continue;
        size_t used = strlen(names);
        const tr__record *r = &all->list[i];
        if (r->job[0])
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", r->job);
        else
            snprintf(names + used, sizeof names - used, "%s%d", used ? ", " : "", r->parent);
    }
    return tr__fail(TR_NOT_FOUND, "there is no job '%s' of this user on this host; there is: %s", job, names);
}

static tr_status explain_all(const char *job, const question *q)
{
    const tr__record *list = q->all->list;
    int found = 0;
    for (int first = 0, next; first < q->all->count; first = next) {
        bool asked = false;
        for (next = first; next < q->all->count && same_job(&list[first], &list[next]); next++)
            asked = asked || (q->stalls ? strcmp(list[next].job, job) == 0 : is_asked_for(&list[next], job));
        if (!asked) continue;
        if (found++ && !q->stalls) fputc('\n', q->out);
        TR__TRY(explain_job(first, next, q));
    }
    return found || q->stalls ? TR_OK : none_found(q->all, job);
}

/* Answers; *text stays NULL on failure. */
static tr_status answer(question q, const char *job, char **text)
{
    size_t bytes;
    *text = NULL;
    q.now = tr__now_ns();
    q.out = open_memstream(text, &bytes);
    if (!q.out) return tr__fail(TR_NO_MEMORY, "no memory to explain a job");
    tr_status status = explain_all(job, &q);
    if (fclose(q.out) != 0 && status == TR_OK) status = tr__fail(TR_NO_MEMORY, "no memory to explain a job");
    if (status == TR_OK) return TR_OK;
    free(*text);
    *text = NULL;
    return status;
}

tr_status tr__records_explain(const tr__records *records, const char *job, char **text)
{
    return answer((question){.all = records}, job, text);
}

tr_status tr__records_stalls(const tr__records *records, const char *job, int64_t after, int64_t until, char **text)
{
    return answer((question){.all = records, .stalls = true, .after = after, .until = until}, job, text);
}

tr_status tr_job_explain(const char *job, char **text)
{
    if (!text) return tr__fail(TR_INVALID, "tr_job_explain: text is NULL");
    *text = NULL;
    tr__records all;
    TR__TRY(tr__records_read(0, &all));
    tr_status status = tr__records_explain(&all, job, text);
    tr__records_free(&all);
    return status;
}
