#include "launch/nodes.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/object.h"
#include "base/thread.h"
#include "comm/record/ranks_text.h"
#include "launch/roll_call.h"
#include "net/store/store.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    JOIN_MS = 30000,         /* for launchers that have all come */
    LAST_CALL_MS = 30000,    /* once as many nodes as are needed have come, for the others */
    RETURN_MS = 60000,       /* for nodes that have lost one, to notice that and end their ranks */
    ANSWER_MS = 20000,       /* for node 0's store, once the nodes have met: the launcher may be cut off; and for the others to ask
                              * it how the job has ended */
    REFUSE_MS = 5000,        /* to find those that are to be told that this one cannot take part */
    SILENT_MS = 600000,      /* a launcher that says nothing for so long is taken for dead */
    SILENT_SPARE_MS = 30000, /* the same where .min_nodes lets the job go on without it */
    TOKEN_MOST = 256,        /* bytes; it travels in an environment */
    SIGNAL_FIRST_MS = 500,   /* a death by signal comes before an exit at most so much earlier */
    VICTIM_LAST_MS = 86400000, /* longer than any job takes to end */
};

/* ---- Meeting ------------------------------------------------------------------------------------------------------ */

/* Where the shell would find it; 0 when that is not known. */
static int64_t size_of_program(const char *program)
{
    struct stat s;
    if (strchr(program, '/')) return stat(program, &s) == 0 ? (int64_t)s.st_size : 0;
    for (const char *at = getenv("PATH"); at && *at; at += *at == ':') {
        size_t length = strcspn(at, ":");
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%.*s/%s", (int)length, at, program);
        if (access(path, X_OK) == 0 && stat(path, &s) == 0) return (int64_t)s.st_size;
        at += length;
    }
    return 0;
}

/* "host:port", "[::1]:port" */
static tr_status read_address(tr__nodes *n, const char *text)
{
    const char *colon = text ? strrchr(text, ':') : NULL;
    size_t length = colon ? (size_t)(colon - text) : 0;
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (colon && length >= 2 && text[0] == '[' && text[length - 1] == ']') text++, length -= 2;
    if (!colon || !length || length >= sizeof n->host || *end || port < 1 || port > 65535)
        return tr__fail(TR_INVALID, "launch: %d nodes meet at a .rendezvous of host:port, not at '%s'", n->most,
            text ? text : "");
    memcpy(n->host, text, length);
    n->port = (int)port;
    return TR_OK;
}

/* Node 0 says what holds for all; "" is not known. */
static tr_status agree_on(const tr__nodes *n, const char *key, const char *mine)
{
    char host[TR__NODE_NAME] = "", text[512];
    void *said;
    size_t bytes;
    gethostname(host, sizeof host - 1);
    int length = snprintf(text, sizeof text, "node %d (%s): %s", n->number, host, mine);
    if (n->number == 0) return tr_store_set(n->store, key, text, (size_t)length);
    TR__TRY(tr_store_get(n->store, key, &said, &bytes));
    const char *other = strstr(said, "): ");
    bool same = !other || !other[3] || !*mine || strcmp(other + 3, mine) == 0;
    if (!same) tr__fail(TR_MISMATCH, "launch: the nodes disagree: %s; %s", text, (char *)said);
    free(said);
    return same ? TR_OK : TR_MISMATCH;
}

/* A node may have an old copy of the program. */
static tr_status agree(const tr__nodes *n, const tr_launch_options *o)
{
    char text[256];
    int64_t program_bytes = size_of_program(o->argv[0]);
    int used = n->least < n->most ? snprintf(text, sizeof text, "%d to ", n->least) : 0;
    snprintf(text + used, sizeof text - (size_t)used, "%d nodes, .max_restarts %d, .min_ranks %d, Trireme %s", n->most,
        o->max_restarts, o->min_ranks, tr_version());
    TR__TRY(agree_on(n, "launch/job", text));
    snprintf(text, sizeof text, "a program of %lld bytes", (long long)program_bytes);
    return agree_on(n, "launch/program", program_bytes ? text : "");
}

/* What the nodes tell each other when they meet, this time or the next ones. */
static tr_store *store_of(const tr__nodes *n, int meeting)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "launch/%d", meeting);
    tr_store *store = tr_store_prefix(n->store, prefix);
    if (n->group && !tr__error_of(store)) store->timeout_ms = ANSWER_MS;
    return store;
}

static void refuse(const tr__nodes *n, int meeting, tr_status why)
{
    TR_SCOPE;
    TR__KEEP_ERROR;
    tr__roll_refuse(&(tr__roll){.store = store_of(n, meeting), .node = n->number}, why);
}

/* Who takes part from now on. A launcher that comes later may do so when the ranks are started again. */
static tr_status call_roll(tr__nodes *n, const tr_launch_options *o, int64_t deadline)
{
    tr__roll roll = {.node = n->number, .count = n->most, .least = n->least, .timeout_ms = n->timeout_ms, .deadline = deadline,
        .last_call_ms = n->timeout_ms < LAST_CALL_MS ? n->timeout_ms : LAST_CALL_MS, .returns = n->group != NULL,
        .members = n->members};
    if (roll.returns) {
        int grace_ms = o->grace_ms < INT_MAX - RETURN_MS ? o->grace_ms : INT_MAX - RETURN_MS;
        roll.timeout_ms = RETURN_MS + grace_ms;
        roll.deadline = tr__in_ms(roll.timeout_ms);
        roll.last_call_ms = LAST_CALL_MS + grace_ms;
    }
    for (int i = 0; i < n->count; i++)
        if (!n->lost || i != n->lost_node) n->members[roll.member_count++] = n->members[i];
    n->lost = false;
    for (;; n->meeting++) {
        tr_release(n->here);
        roll.store = n->here = tr_keep(store_of(n, n->meeting));
        tr_status status = tr__roll_call(&roll);
        if (status && !roll.late) tr__roll_refuse(&roll, status); /* unless it is known by now */
        TR__TRY(status);
        n->count = roll.member_count;
        for (n->rank = 0; n->rank < n->count && n->members[n->rank] != n->number;) n->rank++;
        if (!roll.missed) return TR_OK;
        if (n->least == n->most || n->meeting >= o->max_restarts)
            return tr__fail(TR_STATE, "node %d comes too late: the job has begun, and takes no more nodes", n->number);
        if (!roll.late) {
            tr__log(TR_LOG_WARN, "launch: the job has begun without node %d, which waits until the ranks are started again",
                n->number);
            roll.timeout_ms = n->timeout_ms;
            roll.deadline = tr__in_ms(n->timeout_ms);
        }
        roll.late = true;
        roll.returns = false;
    }
}

/* The group's message names the launcher that it has lost, as a rank of its own: "rank 2 (pid 4242) died", or "rank 0 waited 30 s
 * for rank 2", which may be this one. -1: it does not. */
static int find_lost(const tr__nodes *n, const char *message)
{
    for (const char *at = message; (at = strstr(at, "rank ")) != NULL; at++) {
        int rank, used;
        if (sscanf(at, "rank %d%n", &rank, &used) != 1 || strncmp(at + used, " waited ", strlen(" waited ")) == 0) continue;
        bool awaited = at - message >= 4 && strncmp(at - 4, "for ", 4) == 0;
        if (rank >= 0 && rank < n->count && (rank != n->rank || awaited)) return rank;
    }
    return -1;
}

static void lose(tr__nodes *n)
{
    const char *message = tr_error_message();
    char left[TR__RANKS_TEXT], what[TR__RANKS_TEXT + 80] = "";
    int node = find_lost(n, message);
    n->lost = true;
    n->lost_node = node;
    if (node < 0) {
        snprintf(n->lost_text, sizeof n->lost_text, "a node is gone: %s", message);
        return;
    }
    enum { NAMED = 10 };
    int number = n->members[node], others[NAMED], count = 0;
    for (int i = 0; i < n->count; i++)
        if (i != node && count++ < NAMED) others[count - 1] = n->members[i];
    tr__ranks_text(others, count < NAMED ? count : NAMED, count, left);
    if (number == 0)
        snprintf(what, sizeof what, " and the job's store, without which no node goes on");
    else if (n->least < n->most && count < n->least)
        snprintf(what, sizeof what, "; node%s %s left, and %d are needed", left + strlen("rank"), count > 1 ? "are" : "is",
            n->least);
    const char *host = *n->nodes[node].host ? n->nodes[node].host : "?"; /* lost before it said so */
    const char *how = node == n->rank ? "said nothing for so long that the others have given it up" : "is gone, and all its ranks";
    snprintf(n->lost_text, sizeof n->lost_text, "node %d (%s) %s%s: %s", number, host, how, what, message);
}

/* How long a launcher may say nothing: it is stopped, say, or its host is. */
static int silent_ms(const tr__nodes *n)
{
    return n->least < n->most ? SILENT_SPARE_MS : SILENT_MS;
}

static void number_ranks(tr__nodes *n)
{
    n->world = 0;
    for (int i = 0; i < n->count; i++) {
        if (i == n->rank) n->first_rank = n->world;
        n->world += n->nodes[i].ranks;
    }
}

static tr_status join(tr__nodes *n, const tr_launch_options *o, const char *token)
{
    n->group = tr_keep(tr_join(.store = n->here, .rank = n->rank, .world_size = n->count, .token = token, .name = "nodes",
        .timeout_ms = n->timeout_ms < JOIN_MS ? n->timeout_ms : JOIN_MS, .report_ms = SILENT_MS));
    TR__TRY(tr_status_of(n->group));
    tr__node_facts mine = {.ranks = o->ranks, .began_ns = n->began_ns ? n->began_ns : tr__wall_ns()};
    gethostname(mine.host, sizeof mine.host - 1);
    TR__TRY(tr_all_gather(n->group, &mine, n->nodes, (int64_t)sizeof mine, .dtype = TR_U8));
    n->began_ns = n->nodes[0].began_ns;
    number_ranks(n);
    TR__TRY(tr_barrier(n->group));
    n->start_ns = tr__now_ns();
    return TR_OK;
}

static void leave_group(tr__nodes *n)
{
    bool idle = n->group && !n->work && !tr__error_of(n->group);
    tr_status left = idle ? tr_leave(n->group) : TR_OK;
    (void)left;
    tr_release(n->work); /* of a round that was given up: who waits for this node sees that it is gone */
    tr_release(n->group);
    n->work = NULL;
    n->group = NULL;
}

static tr_status meet(tr__nodes *n, const tr_launch_options *o, const char *token)
{
    TR_SCOPE;
    int64_t deadline = tr__in_ms(n->timeout_ms);
    if (!n->store) {
        n->store = tr_keep(tr_store_tcp(n->host, n->port, .serve = n->number == 0, .token = token, .timeout_ms = n->timeout_ms));
        tr_status status = tr_status_of(n->store);
        if (status == TR_TIMEOUT)
            return tr__fail_context(status, "node 0, whose launcher serves there, did not come within %g s",
                n->timeout_ms / 1000.0);
        TR__TRY(status);
        status = agree(n, o);
        if (status) refuse(n, n->meeting, status);
        TR__TRY(status);
    }
    TR__TRY(call_roll(n, o, deadline));
    leave_group(n); /* not earlier: the others would take that for the loss of this node */
    memset(n->all, 0, (size_t)n->most * sizeof *n->all);
    memset(n->nodes, 0, (size_t)n->most * sizeof *n->nodes);
    n->mine = (tr__word){0};
    n->over = false;
    n->next_ns = 0;
    tr_status status = join(n, o, token);
    if (status == TR_PEER || status == TR_TIMEOUT) lose(n);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "the nodes are ranks here");
}

void tr__nodes_refuse(const tr_launch_options *o, const char *token, tr_status why)
{
    TR_SCOPE;
    TR__KEEP_ERROR;
    tr__nodes n = {.most = o->nodes, .number = o->node_rank};
    if (o->nodes <= 1 || o->node_rank == 0 || !token || !*token || read_address(&n, o->rendezvous) != TR_OK) return;
    n.store = tr_store_tcp(n.host, n.port, .token = token, .timeout_ms = REFUSE_MS);
    if (tr_status_of(n.store) != TR_OK) return;
    tr__fail_stored(tr__kept_error);
    refuse(&n, 0, why);
}

typedef struct meeting {
    tr__nodes *nodes;
    const tr_launch_options *options;
    const char *token;
    tr__error *error; /* NULL: it has come about */
} meeting;

static void *meeting_thread(void *argument)
{
    meeting *m = argument;
    if (meet(m->nodes, m->options, m->token)) m->error = tr__error_take();
    return NULL;
}

static tr_status prepare(tr__nodes *n, const tr_launch_options *o, const char *token)
{
    n->most = n->count = o->nodes;
    n->least = o->min_nodes ? o->min_nodes : o->nodes;
    n->number = o->node_rank;
    n->timeout_ms = o->rendezvous_ms ? o->rendezvous_ms : 300000;
    if (n->number < 0 || n->number >= n->most) {
        tr_status wrong = tr__fail(TR_INVALID, "launch: a .node_rank of %d is not in 0 … %d", n->number, n->most - 1);
        tr__nodes_refuse(o, token, wrong);
        return wrong;
    }
    if (!token || !*token)
        return tr__fail(TR_AUTH, "launch: a job of %d nodes needs a secret, the same for all of them: TRIREME_TOKEN, as from "
                                 "`openssl rand -hex 32`", n->most);
    if (strlen(token) > TOKEN_MOST)
        return tr__fail(TR_INVALID, "launch: a secret of %zu bytes; at most %d are allowed", strlen(token), TOKEN_MOST);
    TR__TRY(read_address(n, o->rendezvous));
    n->members = calloc((size_t)n->most, sizeof *n->members);
    n->nodes = calloc((size_t)n->most, sizeof *n->nodes);
    n->all = calloc((size_t)n->most, sizeof *n->all);
    n->coming = calloc((size_t)n->most, sizeof *n->coming);
    if (!n->members || !n->nodes || !n->all || !n->coming) return tr__fail(TR_NO_MEMORY, "launch: no memory for %d nodes", n->most);
    for (int i = 0; i < n->most; i++) n->members[i] = i;
    return TR_OK;
}

/* In a thread of its own, from which the threads that it starts inherit that signals are not for them: meanwhile this
 * program's signals do what they always do, so that a meeting which does not come about can be interrupted. */
tr_status tr__nodes_meet(tr__nodes *n, const tr_launch_options *o, const char *token)
{
    if (!n->members) TR__TRY(prepare(n, o, token));
    meeting m = {n, o, token, NULL};
    pthread_t thread;
    int error = tr__thread_start(&thread, meeting_thread, &m);
    if (error) return tr__fail_errno(TR_IO, error, "launch: cannot start a thread");
    pthread_join(thread, NULL);
    tr_status status = tr__error_restore(m.error);
    return status ? tr__fail_context(status, "launch: node %d of %d at %s:%d", n->number, n->most, n->host, n->port) : TR_OK;
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------- */

void tr__nodes_say(tr__nodes *n, const tr__word *word)
{
    bool news = n->mine.outcome != word->outcome || n->mine.interrupt != word->interrupt || n->mine.ended != word->ended;
    if (news) n->next_ns = 0;
    n->mine = *word;
}

static void end_round(tr__nodes *n)
{
    tr_status status = tr_wait(n->work);
    tr_release(n->work);
    n->work = NULL;
    if (status) {
        lose(n);
        return;
    }
    memcpy(n->all, n->coming, (size_t)n->count * sizeof *n->all);
    int ended = 0;
    for (int i = 0; i < n->count; i++) ended += n->all[i].ended;
    n->over = ended == n->count;
}

bool tr__nodes_step(tr__nodes *n)
{
    if (n->over || n->lost) return false;
    TR_SCOPE;
    bool news = n->work && tr_work_done(n->work);
    if (news) end_round(n);
    if (!n->work && !n->over && !n->lost && tr__now_ns() >= n->next_ns) {
        n->sent = n->mine;
        n->work = tr_keep(tr_all_gather_async(n->group, &n->sent, n->coming, (int64_t)sizeof n->sent, .dtype = TR_U8,
            .timeout_ms = silent_ms(n)));
        n->next_ns = tr__now_ns() + (int64_t)TR__NODE_ROUND_MS * 1000000;
    }
    return news;
}

int tr__handicap_ms(int signal, int exit_code)
{
    if (signal) return 0;
    return exit_code == TR_EXIT_PEER ? VICTIM_LAST_MS : SIGNAL_FIRST_MS;
}

bool tr__suspects_judge(const tr__suspects *s, int *rank, int *exit_code)
{
    if (s->count != 1 && s->left != 1) return false;
    *rank = s->count == 1 ? s->rank : s->left_rank;
    *exit_code = s->count == 1 ? s->exit_code : 0;
    return true;
}

static int64_t counts_at_ms(const tr__word *w)
{
    return w->at_ms + tr__handicap_ms(w->signal, w->exit_code);
}

const tr__word *tr__nodes_first_failure(const tr__nodes *n)
{
    const tr__word *first = NULL;
    for (const tr__word *w = n->all; w < n->all + n->count; w++)
        if (w->outcome == TR__FAILED && (!first || counts_at_ms(w) < counts_at_ms(first))) first = w;
    return first;
}

/* ---- The end ------------------------------------------------------------------------------------------------------ */

bool tr__nodes_publish(tr__nodes *n, const char *text)
{
    char key[TR__ROLL_KEY];
    return !n->lost && tr_store_set(n->here, tr__roll_key("report", n->rank, key), text, strlen(text)) == TR_OK;
}

/* The node that a rank is on. */
static int node_of(const tr__nodes *n, int rank)
{
    int node = 0, end = n->nodes[0].ranks;
    while (rank >= end && node + 1 < n->count) end += n->nodes[++node].ranks;
    return node;
}

/* The first that failed is a victim, and its culprit may be on another node. */
static bool find_culprit(const tr__nodes *n, int *node, int *rank, int *exit_code)
{
    tr__suspects all = {0};
    for (int i = 0; i < n->count; i++) {
        const tr__suspects *s = &n->all[i].suspects;
        all.count += s->count;
        all.left += s->left;
        if (s->count) all.rank = s->rank, all.exit_code = s->exit_code;
        if (s->left) all.left_rank = s->left_rank;
    }
    if (!n->over || !tr__suspects_judge(&all, rank, exit_code)) return false;
    *node = node_of(n, *rank);
    return true;
}

/* Reports the culprit and begins the text, to which the caller adds what the first victim's node reports. */
static size_t tell_culprit(const tr__nodes *n, tr_launch_report *report)
{
    int node, rank, exit_code;
    if (report->signal || report->exit_code != TR_EXIT_PEER || !find_culprit(n, &node, &rank, &exit_code)) return 0;
    report->first_rank = rank;
    report->exit_code = exit_code;
    report->signal = exit_code > 128 ? exit_code - 128 : 0;
    const char *what = exit_code ? "went on until it was ended, though others had lost it"
                                 : "exited with 0, though others still needed it";
    return (size_t)snprintf(report->text, sizeof report->text, "node %d (%s): rank %d %s: ", n->members[node],
        n->nodes[node].host, rank, what);
}

static void tell_failure(const tr__nodes *n, int node, const char *own, tr_launch_report *report)
{
    const tr__word *w = node == n->rank ? &n->mine : &n->all[node];
    report->first_rank = w->rank;
    report->exit_code = w->exit_code;
    report->signal = w->signal;
    size_t bytes = sizeof report->text, used = tell_culprit(n, report);
    used += (size_t)snprintf(report->text + used, bytes - used, "node %d (%s): ", n->members[node], n->nodes[node].host);
    char key[TR__ROLL_KEY];
    void *theirs = NULL;
    size_t length;
    bool asks = node != n->rank && w->told && (n->over || !n->lost);
    if (asks && tr_store_get(n->here, tr__roll_key("report", node, key), &theirs, &length) == TR_OK) own = theirs;
    if (node == n->rank || theirs)
        snprintf(report->text + used, bytes - used, "%s", own);
    else
        snprintf(report->text + used, bytes - used, "rank %d failed with exit code %d", w->rank, w->exit_code);
    free(theirs);
}

static void tell_stop(const tr__nodes *n, tr_launch_report *report)
{
    for (int i = 0; i < n->count && !report->signal; i++) report->signal = n->all[i].interrupt;
    report->exit_code = 128 + report->signal;
    snprintf(report->text, sizeof report->text, "stopped by signal %d (%s) after %.1f s", report->signal,
        strsignal(report->signal), report->seconds);
}

/* A node may die when some have its last word, and others not. What holds for all is what the first of them says in the store: the
 * last words of all nodes, or which node it has lost. Without node 0 there is no store, and nobody goes on. */
static void agree_on_end(tr__nodes *n)
{
    size_t bytes = n->over ? (size_t)n->count * sizeof *n->all : strlen(n->lost_text);
    const void *mine = n->over ? (void *)n->all : n->lost_text;
    void *first = NULL;
    char key[TR__ROLL_KEY];
    int number = -1;
    if (n->lost && n->lost_node == 0) return;
    if (tr__store_compare_set(n->here, "end", NULL, 0, mine, bytes, ANSWER_MS, &first, &bytes) != TR_OK) return;
    /* Else it is "node 1 …", or "a node …". */
    bool over = bytes == (size_t)n->count * sizeof *n->all && *(const char *)first < 'a';
    if (over) {
        memcpy(n->all, first, bytes);
    } else if (n->over || n->lost_node != n->rank) {
        n->lost = true;
        n->lost_node = n->count - 1;
        snprintf(n->lost_text, sizeof n->lost_text, "%.*s", (int)bytes, (const char *)first);
        sscanf(n->lost_text, "node %d", &number);
        while (n->lost_node >= 0 && n->members[n->lost_node] != number) n->lost_node--;
    }
    n->over = over;
    free(first);
    (void)!tr_store_set(n->here, tr__roll_key("asked", n->rank, key), "", 0);
}

/* Node 0 serves those that have yet to ask. */
static void await_asked(const tr__nodes *n)
{
    int64_t until = tr__in_ms(ANSWER_MS), left;
    char key[TR__ROLL_KEY];
    for (int i = 1; i < n->count; i++)
        if (i != n->lost_node && (left = (until - tr__now_ns()) / 1000000) > 0)
            (void)!tr_store_wait(n->here, tr__roll_key("asked", i, key), (int)left);
}

/* A node that was lost comes before what failed here afterwards, for that is likely the consequence; but not before what
 * was known when all nodes were there. */
tr_status tr__nodes_conclude(tr__nodes *n, const char *own, tr_launch_report *report)
{
    agree_on_end(n);
    tr_status status = TR_CHILD;
    const tr__word *failed = tr__nodes_first_failure(n);
    bool stopped = false;
    for (int i = 0; i < n->count; i++) stopped |= n->all[i].outcome == TR__STOPPED;
    if (failed) {
        tell_failure(n, (int)(failed - n->all), own, report);
    } else if (n->lost && !n->over) {
        report->exit_code = 1;
        snprintf(report->text, sizeof report->text, "%s", n->lost_text);
    } else if (stopped) {
        tell_stop(n, report);
        status = TR_INTERRUPTED;
    } else {
        status = TR_OK;
    }
    /* Node 0, which serves the store, is the last to go. */
    int timeout_ms = n->timeout_ms < silent_ms(n) ? n->timeout_ms : silent_ms(n);
    if (!n->lost && tr_run_collective(n->group, &TR_COLLECTIVE(TR_BARRIER, .timeout_ms = timeout_ms)) != TR_OK) lose(n);
    if (n->rank == 0 && n->lost && n->lost_node != 0) await_asked(n);
    return status ? tr__fail(status, "%s", report->text) : TR_OK;
}

bool tr__nodes_begin_again(tr__nodes *n, int interrupt)
{
    TR__KEEP_ERROR;
    bool able = n->lost ? n->lost_node != 0 && (n->over || n->count - 1 >= n->least) : n->over;
    for (int i = 0; able && i < n->count; i++) able = !n->all[i].interrupt && !n->all[i].unable;
    if (able && interrupt) refuse(n, n->meeting + 1, tr__fail(TR_STATE, "it was stopped by signal %d", interrupt));
    able &= !interrupt;
    n->meeting += able;
    return able;
}

void tr__nodes_leave(tr__nodes *n)
{
    TR__KEEP_ERROR;
    leave_group(n);
    tr_release(n->here);
    tr_release(n->store);
    free(n->members);
    free(n->nodes);
    free(n->all);
    free(n->coming);
    *n = (tr__nodes){0};
}
