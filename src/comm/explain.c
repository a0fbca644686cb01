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
#include "comm/record.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN = 8, SOON_NS = 1000000000 };

typedef enum health { FINE, STOPPED, DEAD, ELSEWHERE, GONE, UNKNOWN } health;

/* What is to be told, and where. Of stalls: only the culprits of waits that began in that time. */
typedef struct question {
    bool stalls;
    int64_t after, until;
    FILE *out;
} question;

/* The ranks of a group, as far as they are on this host. */
typedef struct members {
    const question *q;
    const tr__records *all;
    const tr__record *any;
    const tr__record **ranks; /* [world]; NULL: no record */
    int world, here;
    int (*waiters)[TR__RECORD_WAITS], *waiter_count; /* [world]: who waits for a rank, directly or not */
    int *visited, *stack;     /* [world] */
    bool *in_circle;          /* [world]: it waits in another group, which leads back to who waits for it here */
    bool all_idle;            /* nobody waits in any group of the job */
    FILE *out;
    int64_t now;
} members;

/* A rank that waits in a group. In a circle: for which rank of the group, and who is next, the same process or that rank. */
typedef struct waiting_rank {
    const members *m;
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

static health health_of(const members *m, int rank)
{
    const tr__record *r = m->ranks[rank];
    if (r) return r->process.state == 'X' ? DEAD : strchr("Tt", r->process.state) ? STOPPED : FINE;
    int pid = m->any->peers[rank].pid;
    if (pid == 0) return UNKNOWN;
    if (strcmp(m->any->peers[rank].host, m->any->host) != 0) return ELSEWHERE;
    return tr__process_of(pid).state == 'X' ? DEAD : GONE;
}

enum { NAME_TEXT = 128 };

static char *name_of(const members *m, int rank, char text[NAME_TEXT])
{
    static const char *const words[] = {[STOPPED] = ", stopped", [DEAD] = ", dead", [FINE] = "", [GONE] = ""};
    const tr__record *r = m->ranks[rank];
    int pid = r ? r->pid : m->any->peers[rank].pid;
    health h = health_of(m, rank);
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
    for (int i = r->call_count - 1; i >= 0; i--)
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
    if (!is_remote_wait(c)) return peer == k || (peer == TR_ANY_SOURCE && m->ranks[k]);
    bool stopped = false; /* if it goes through others, one that is stopped holds it up */
    for (int i = 0; i < m->world && c->signature.tag; i++) stopped |= health_of(m, i) == STOPPED;
    return stopped ? health_of(m, k) == STOPPED : peer == k;
}

/* Whom a rank waits for, at most `most`. */
static int waits_of(const members *m, int rank, int *ranks, int most)
{
    const tr__record *r = m->ranks[rank];
    int count = 0;
    if (!r || r->state == TR__RECORD_FAILED) return 0;
    for (int i = 0; i < r->waits_count && count < most; i++) ranks[count++] = r->waits[i];
    for (int i = 0; i < r->call_count && count < most; i++) {
        if (!is_transfer(&r->calls[i]) || r->calls[i].ended) continue;
        for (int k = 0; k < m->world && count < most; k++) {
            bool named = k == rank || !awaits(m, &r->calls[i], k);
            for (int known = 0; known < count; known++) named |= ranks[known] == k;
            if (!named) ranks[count++] = k;
        }
    }
    const tr__record_call *running = tr__record_running(r);
    if (count || !running || is_transfer(running) || strcmp(r->backend, "native") == 0) return count;
    for (int k = 0; k < m->world && count < most; k++)
        if (m->ranks[k] && progress(m->ranks[k]) < running->signature.sequence) ranks[count++] = k;
    return count;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static void print_state(const members *m, const tr__record *r)
{
    char since[TR__TIME_TEXT];
    if (r->state == TR__RECORD_FAILED)
        fprintf(m->out, "failed %s ago: %s", tr__time_text(m->now - r->failed, since), r->failure);
    else
        tr__record_write_state(m->out, r, m->now);
}

static void print_row(const members *m, int rank)
{
    const tr__record *r = m->ranks[rank];
    char name[NAME_TEXT], text[TR__RANKS_TEXT], held[TR__HELD_TEXT];
    int waits[TR__RECORD_WAITS], queued = 0, count = waits_of(m, rank, waits, TR__RECORD_WAITS);
    fprintf(m->out, "    %-28s  ", name_of(m, rank, name));
    print_state(m, r);
    if (count)
        fprintf(m->out, ", waits for %s", tr__ranks_text(waits, count, r->waits_total > count ? r->waits_total : count, text));
    if (count == 1 && r->held.rank == waits[0]) fprintf(m->out, "%s", tr__held_text(&r->held, held));
    for (int i = 0; i < r->call_count; i++) queued += !r->calls[i].started && !r->calls[i].ended;
    if (queued) fprintf(m->out, "; %d more call%s posted", queued, queued == 1 ? "" : "s");
    fputc('\n', m->out);
}

static void print_absent(const members *m)
{
    static const char *const words[] = {[DEAD] = "its process has ended", [GONE] = "has left the group",
        [ELSEWHERE] = "look there", [UNKNOWN] = "has not joined yet, as far as is known here"};
    int shown = 0;
    char name[NAME_TEXT];
    for (int rank = 0; rank < m->world; rank++)
        if (!m->ranks[rank] && shown++ < SHOWN)
            fprintf(m->out, "    %-28s  %s\n", name_of(m, rank, name), words[health_of(m, rank)]);
    if (shown > SHOWN) fprintf(m->out, "    and %d more that have no record on this host\n", shown - SHOWN);
}

/* ---- Culprits ---------------------------------------------------------------------------------------------------- */

/* Follows the edges from one rank; notes it with all that it reaches. */
static void follow(members *m, int from)
{
    int depth = 0, waits[TR__RECORD_WAITS];
    memset(m->visited, 0, (size_t)m->world * sizeof *m->visited);
    m->visited[from] = 1;
    m->stack[depth++] = from;
    while (depth > 0) {
        int at = m->stack[--depth];
        if (at != from && health_of(m, at) != FINE) continue; /* it cannot go on, whomever it waits for */
        int count = waits_of(m, at, waits, TR__RECORD_WAITS);
        for (int i = 0; i < count; i++) {
            int to = waits[i], *known = &m->waiter_count[to];
            if (m->visited[to]) continue;
            m->visited[to] = 1;
            if (*known < TR__RECORD_WAITS) m->waiters[to][*known] = from;
            ++*known;
            m->stack[depth++] = to;
        }
    }
}

/* What else the process of an idle rank does, in another group. */
static void print_other_group(const members *m, const tr__record *r)
{
    char call[TR__CALL_TEXT], ranks[TR__RANKS_TEXT], group[TR__GROUP_TEXT];
    for (int i = 0; i < m->all->count; i++) {
        const tr__record *other = &m->all->list[i];
        bool same_group = strcmp(other->group, r->group) == 0;
        if (other->pid == r->pid && other != r && same_group) return; /* ranks are threads: whose it is, is not known */
        const tr__record_call *running = tr__record_running(other);
        if (other->pid != r->pid || same_group || !running || other->state == TR__RECORD_FAILED) continue;
        fprintf(m->out, "; in %s it is in %s", tr__record_group(other, group), tr__signature_text(&running->signature, call));
        if (other->waits_total > 0)
            fprintf(m->out, " and waits for %s", tr__ranks_text(other->waits, other->waits_count, other->waits_total, ranks));
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
    const tr__record *r = m->ranks[rank], *waiter = m->ranks[m->waiters[rank][0]];
    const tr__record_call *wanted = call_for(m, waiter, rank), *running = r ? tr__record_running(r) : NULL;
    char call[TR__CALL_TEXT], other[TR__CALL_TEXT], held[TR__HELD_TEXT];
    if (!wanted || waiter->state == TR__RECORD_JOINING) {
        fprintf(m->out, "it has not joined");
        return;
    }
    tr__signature_text(&wanted->signature, call);
    uint64_t sequence = wanted->signature.sequence;
    bool entered = r && sequence && progress(r) >= sequence;
    if (!r || (is_remote_wait(wanted) && wanted->signature.tag))
        fprintf(m->out, "%s needs it", call);
    else if (is_remote_wait(wanted))
        fprintf(m->out, "it has not answered %s", call);
    else if (entered && running && running->signature.sequence == sequence)
        fprintf(m->out, "it is at work in %s", tr__signature_text(&running->signature, other));
    else if (entered)
        fprintf(m->out, "it has gone on from %s", call);
    else if (sequence)
        fprintf(m->out, "it has not entered %s", call);
    else if (waiter->held.bytes && waiter->held.rank == rank)
        fprintf(m->out, "%s waits for it%s", call, tr__held_text(&waiter->held, held));
    else
        fprintf(m->out, "its part of %s is not there", call);
    if (running && running->signature.sequence != sequence)
        fprintf(m->out, ", but is in %s", tr__signature_text(&running->signature, other));
    if (r && !running) print_other_group(m, r);
}

/* How long a rank has waited in a call; NULL: in none, as it joins. */
static int64_t wait_of(const members *m, const tr__record *r, const tr__record_call *call)
{
    bool told = r->waits_total && call == tr__record_running(r);
    return m->now - (told ? r->waits_since : call ? call->started : m->now);
}

/* Longest wait among those that wait for a rank. */
static int64_t longest_wait(const members *m, int rank)
{
    int64_t longest = 0;
    for (int i = 0; i < m->waiter_count[rank] && i < TR__RECORD_WAITS; i++) {
        const tr__record *waiter = m->ranks[m->waiters[rank][i]];
        int64_t wait = wait_of(m, waiter, call_for(m, waiter, rank));
        if (wait > longest) longest = wait;
    }
    return longest;
}

static bool is_wanted(const members *m, int64_t wait)
{
    int64_t since = m->now - wait;
    return !m->q->stalls || (since > m->q->after && since <= m->q->until);
}

static void begin_line(const members *m)
{
    char group[TR__GROUP_TEXT];
    if (m->q->stalls) fprintf(m->out, "%s: ", tr__record_group(m->any, group));
    else fprintf(m->out, "  => ");
}

static void print_culprit(const members *m, int rank)
{
    char name[NAME_TEXT], text[TR__RANKS_TEXT], since[TR__TIME_TEXT];
    int total = m->waiter_count[rank], named = total < TR__RECORD_WAITS ? total : TR__RECORD_WAITS;
    int64_t longest = longest_wait(m, rank);
    begin_line(m);
    fprintf(m->out, "%s is what %s %s for: ", name_of(m, rank, name),
        tr__ranks_text(m->waiters[rank], named, total, text), total == 1 ? "waits" : "wait");
    print_reason(m, rank);
    fprintf(m->out, " (for %s%s)\n", tr__time_text(longest, since),
        longest < SOON_NS && health_of(m, rank) == FINE ? ", which may be nothing" : "");
}

/* Ranks that wait for each other, and for nobody else. */
static void print_circle(const members *m)
{
    int ranks[TR__RECORD_WAITS], count = 0, total = 0, one;
    int64_t longest = 0;
    char text[TR__RANKS_TEXT];
    for (int rank = 0; rank < m->world; rank++) {
        const tr__record *r = m->ranks[rank];
        if (!r || waits_of(m, rank, &one, 1) == 0) continue;
        if (count < TR__RECORD_WAITS) ranks[count++] = rank;
        int64_t wait = wait_of(m, r, tr__record_running(r));
        if (wait > longest) longest = wait;
        total++;
    }
    if (!is_wanted(m, longest) || (!total && !m->all_idle)) return;
    begin_line(m);
    if (total)
        fprintf(m->out, "%s wait for each other: look where their calls%s differ\n",
            tr__ranks_text(ranks, count, total, text), m->q->stalls ? "" : " above");
    else
        fprintf(m->out, "nobody waits\n");
}

static void find_culprits(members *m)
{
    int one, culprits = 0, wanted = 0;
    for (int rank = 0; rank < m->world; rank++)
        if (health_of(m, rank) == FINE && waits_of(m, rank, &one, 1) > 0) follow(m, rank);
    /* First who cannot go on, then who may. */
    for (int turn = 0; turn < 2; turn++)
        for (int rank = 0; rank < m->world; rank++) {
            health h = health_of(m, rank);
            bool hard = h == STOPPED || h == DEAD;
            bool waits = m->waiter_count[rank] && h == FINE && waits_of(m, rank, &one, 1) > 0;
            if (hard != (turn == 0) || !m->waiter_count[rank] || waits) continue;
            culprits++;
            if (!m->in_circle[rank] && is_wanted(m, longest_wait(m, rank)) && wanted++ < SHOWN) print_culprit(m, rank);
        }
    if (wanted > SHOWN) {
        begin_line(m);
        fprintf(m->out, "and %d more\n", wanted - SHOWN);
    }
    if (!culprits) print_circle(m);
}

/* ---- Differences ------------------------------------------------------------------------------------------------- */

/* A running call against what another rank calls, or has called, under its number. */
static bool print_mismatch(const members *m, int rank, const tr__record_call *running)
{
    char mine[TR__CALL_TEXT], theirs[TR__CALL_TEXT];
    for (int k = 0; k < m->world; k++) {
        const tr__record_call *c = m->ranks[k] ? call_number(m->ranks[k], running->signature.sequence) : NULL;
        if (!c || tr__signature_agrees(&running->signature, &c->signature)) continue;
        fprintf(m->out, "  => ranks %d and %d make different calls: %s, %s\n", rank, k,
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
        uint64_t at = progress(m->ranks[k]);
        if (at < running->signature.sequence + 2) continue;
        fprintf(m->out, "  => the ranks are out of step: rank %d is in %s, rank %d has come to #%llu\n", rank,
            tr__signature_text(&running->signature, call), k, (unsigned long long)at);
        return true;
    }
    return false;
}

static void find_differences(const members *m)
{
    bool mismatch = false, ahead = false;
    for (int rank = 0; rank < m->world; rank++) {
        const tr__record *r = m->ranks[rank];
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
    for (int k = 0; k < m->world; k++) same += m->ranks[k] && m->ranks[k]->pid == r->pid;
    return same == 1;
}

/* Is a waiter held up because another one is: the rank that it waits for, or that rank's process in another group? Remote calls are
 * answered by threads of the agent's, whatever else the process waits for. */
static bool leads_to(const waiting_rank *a, int awaited, const waiting_rank *b)
{
    const tr__record *r = a->m->ranks[awaited], *other = b->m->ranks[b->rank];
    if (a->m == b->m) return b->rank == awaited;
    int one;
    if (!r || r->pid != other->pid || health_of(a->m, awaited) != FINE || waits_of(a->m, awaited, &one, 1)) return false;
    const tr__record_call *call = call_for(a->m, a->m->ranks[a->rank], awaited);
    return !(call && is_remote_wait(call)) && is_alone(a->m, r) && is_alone(b->m, r);
}

/* Does a waiter of another group lead to this one? Few do, and every circle across groups has one that is led to so. */
static bool is_led_to(const job_state *j, const waiting_rank *b)
{
    int waits[TR__RECORD_WAITS];
    for (int at = 0; at < j->waiter_count; at++) {
        const waiting_rank *a = &j->waiters[at];
        int count = a->m == b->m ? 0 : waits_of(a->m, a->rank, waits, TR__RECORD_WAITS);
        for (int i = 0; i < count; i++)
            if (leads_to(a, waits[i], b)) return true;
    }
    return false;
}

/* The shortest way from a waiter back to it; returns the last of it, or -1. */
static int search_back(job_state *j, int start)
{
    int head = 0, tail = 0, waits[TR__RECORD_WAITS];
    for (int i = 0; i < j->waiter_count; i++) j->waiters[i].from = -1;
    j->queue[tail++] = start;
    while (head < tail) {
        int at = j->queue[head++];
        waiting_rank *a = &j->waiters[at];
        int count = waits_of(a->m, a->rank, waits, TR__RECORD_WAITS);
        for (int i = 0; i < count * j->waiter_count; i++) {
            int to = i % j->waiter_count;
            waiting_rank *b = &j->waiters[to];
            if (b->next >= 0 || b->from >= 0 || to == at || !leads_to(a, waits[i / j->waiter_count], b)) continue;
            b->from = at;
            if (to == start) return at;
            j->queue[tail++] = to;
        }
    }
    return -1;
}

/* The rank of its group for which a waiter is held up by the next one. */
static int awaited_on_the_way(const waiting_rank *a, const waiting_rank *next)
{
    int waits[TR__RECORD_WAITS], count = waits_of(a->m, a->rank, waits, TR__RECORD_WAITS);
    for (int i = 0; i < count; i++)
        if (leads_to(a, waits[i], next)) return waits[i];
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
            a->awaited = awaited_on_the_way(a, &j->waiters[next]);
            if (a->m != j->waiters[next].m) a->m->in_circle[a->awaited] = true;
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
    FILE *out = m->out;
    for (int at = start, first = 1; first || at != start; at = j->waiters[at].next, first = 0) {
        const waiting_rank *w = &j->waiters[at];
        const tr__record *r = w->m->ranks[w->rank];
        int64_t wait = wait_of(w->m, r, call_for(w->m, r, w->awaited));
        if (wait < shortest) shortest = wait;
    }
    if (!is_wanted(m, shortest)) return;
    fprintf(out, "%s%s", m->q->stalls ? "" : "  => ", name_of(m, j->waiters[start].rank, name));
    int said = j->waiters[start].rank;
    for (int at = start, first = 1; first || at != start; at = j->waiters[at].next, first = 0) {
        const waiting_rank *w = &j->waiters[at];
        const tr__record *r = w->m->ranks[w->rank];
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

static void print_group(members *m)
{
    if (m->q->stalls) {
        find_culprits(m);
        return;
    }
    char group[TR__GROUP_TEXT];
    fprintf(m->out, "  %s (%s): %d of %d ranks are on this host\n", tr__record_group(m->any, group), m->any->backend, m->here,
        m->world);
    for (int rank = 0; rank < m->world; rank++)
        if (m->ranks[rank]) print_row(m, rank);
    print_absent(m);
    find_culprits(m);
    find_differences(m);
}

/* The records from `first` to before `end` are one group. */
static tr_status make_members(members *m, const tr__records *all, int first, int end, const question *q)
{
    *m = (members){.q = q, .all = all, .any = &all->list[first], .world = all->list[first].world_size, .out = q->out,
        .now = tr__now_ns()};
    size_t world = (size_t)m->world;
    m->ranks = calloc(world, sizeof *m->ranks);
    m->waiters = calloc(world, sizeof *m->waiters);
    m->waiter_count = calloc(world, sizeof *m->waiter_count);
    m->visited = calloc(world, sizeof *m->visited);
    m->stack = calloc(world, sizeof *m->stack);
    m->in_circle = calloc(world, sizeof *m->in_circle);
    if (!m->ranks || !m->waiters || !m->waiter_count || !m->visited || !m->stack || !m->in_circle)
        return tr__fail(TR_NO_MEMORY, "no memory for %d ranks", m->world);
    for (int i = first; i < end; i++) {
        const tr__record *r = &all->list[i];
        m->here += !m->ranks[r->rank];
        m->ranks[r->rank] = r;
        if (r->state != TR__RECORD_JOINING) m->any = r; /* knows its peers */
    }
    return TR_OK;
}

static void free_members(members *m)
{
    free(m->ranks);
    free(m->waiters);
    free(m->waiter_count);
    free(m->visited);
    free(m->stack);
    free(m->in_circle);
}

static void find_waiters(job_state *j)
{
    int one;
    for (int g = 0; g < j->group_count; g++)
        for (int rank = 0; rank < j->groups[g].world; rank++)
            if (health_of(&j->groups[g], rank) == FINE && waits_of(&j->groups[g], rank, &one, 1))
                j->waiters[j->waiter_count++] = (waiting_rank){.m = &j->groups[g], .rank = rank, .next = -1};
}

/* The records from `first` to before `end` are one job. */
static tr_status explain_job(const tr__records *all, int first, int end, const question *q)
{
    const tr__record *r = &all->list[first];
    size_t records = (size_t)(end - first);
    job_state j = {.groups = calloc(records, sizeof *j.groups), .waiters = calloc(records, sizeof *j.waiters),
        .queue = calloc(records, sizeof *j.queue)};
    tr_status status = j.groups && j.waiters && j.queue ? TR_OK : tr__fail(TR_NO_MEMORY, "no memory for %zu records", records);
    for (int next; first < end && status == TR_OK; first = next) {
        for (next = first + 1; next < end && same_group(&all->list[first], &all->list[next]);) next++;
        status = make_members(&j.groups[j.group_count++], all, first, next, q);
    }
    if (status == TR_OK) {
        find_waiters(&j);
        find_circles(&j);
        for (int g = 0; g < j.group_count; g++) j.groups[g].all_idle = j.waiter_count == 0;
        if (!q->stalls && r->job[0]) fprintf(q->out, "job %s on host %s\n", r->job, r->host);
        if (!q->stalls && !r->job[0])
            fprintf(q->out, "job without a name, started by process %d on host %s\n", r->parent, r->host);
        for (int g = 0; g < j.group_count; g++) print_group(&j.groups[g]);
        for (int i = 0; i < j.waiter_count; i++)
            if (j.waiters[i].begins) print_crossing(&j, i);
    }
    for (int g = 0; g < j.group_count; g++) free_members(&j.groups[g]);
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

static tr_status explain_all(const tr__records *all, const char *job, const question *q)
{
    int found = 0;
    for (int first = 0, next; first < all->count; first = next) {
        bool asked = false;
        for (next = first; next < all->count && same_job(&all->list[first], &all->list[next]); next++)
            asked = asked || is_asked_for(&all->list[next], job);
        if (!asked) continue;
        if (found++) fputc('\n', q->out);
        TR__TRY(explain_job(all, first, next, q));
    }
    return found ? TR_OK : none_found(all, job);
}

static tr_status explain_stalls(const tr__records *all, const char *job, const question *q)
{
    for (int first = 0, next; first < all->count; first = next) {
        for (next = first + 1; next < all->count && same_job(&all->list[first], &all->list[next]);) next++;
        if (strcmp(all->list[first].job, job) == 0) TR__TRY(explain_job(all, first, next, q));
    }
    return TR_OK;
}

/* Answers; *text stays NULL on failure. */
static tr_status answer(const tr__records *records, const char *job, question q, char **text)
{
    size_t bytes;
    *text = NULL;
    q.out = open_memstream(text, &bytes);
    if (!q.out) return tr__fail(TR_NO_MEMORY, "no memory to explain a job");
    tr_status status = q.stalls ? explain_stalls(records, job, &q) : explain_all(records, job, &q);
    if (fclose(q.out) != 0 && status == TR_OK) status = tr__fail(TR_NO_MEMORY, "no memory to explain a job");
    if (status == TR_OK) return TR_OK;
    free(*text);
    *text = NULL;
    return status;
}

tr_status tr__records_explain(const tr__records *records, const char *job, char **text)
{
    return answer(records, job, (question){0}, text);
}

tr_status tr__records_stalls(const tr__records *records, const char *job, int64_t after, int64_t until, char **text)
{
    return answer(records, job, (question){.stalls = true, .after = after, .until = until}, text);
}

tr_status tr_job_explain(const char *job, char **text)
{
    if (!text) return tr__fail(TR_INVALID, "tr_job_explain: where is the text to go?");
    *text = NULL;
    tr__records all;
    TR__TRY(tr__records_read(0, &all));
    tr_status status = tr__records_explain(&all, job, text);
    tr__records_free(&all);
    return status;
}
