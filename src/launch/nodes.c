#include "launch/nodes.h"

#include "base/clock.h"
#include "base/object.h"
#include "base/thread.h"
#include "launch/roll_call.h"

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
    REFUSE_MS = 5000,        /* to find those that are to be told that this one cannot take part */
    SILENT_MS = 600000,      /* a launcher that says nothing for so long is taken for dead */
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
        return tr__fail(TR_INVALID, "launch: %d nodes meet at a .rendezvous of host:port, not at '%s'", n->count,
            text ? text : "");
    memcpy(n->host, text, length);
    n->port = (int)port;
    return TR_OK;
}

/* Whoever comes first says how many nodes there are. */
static tr_status agree_on_count(tr__nodes *n)
{
    char mine[16];
    void *said = NULL;
    size_t bytes;
    int length = snprintf(mine, sizeof mine, "%d", n->count);
    TR__TRY(tr_store_compare_set(n->store, "launch/nodes", NULL, 0, mine, (size_t)length, &said, &bytes));
    tr_status status = said && strcmp(said, mine) != 0
        ? tr__fail(TR_MISMATCH, "launch: node %d is of a job with %d nodes, but another one that came before is of a job with %s",
            n->rank, n->count, (char *)said) : TR_OK;
    free(said);
    return status;
}

static tr_status compare(const tr__nodes *n)
{
    const tr__node_facts *first = &n->nodes[0];
    for (int i = 1; i < n->count; i++) {
        const tr__node_facts *node = &n->nodes[i];
        if (strcmp(node->version, first->version) != 0)
            return tr__fail(TR_MISMATCH, "launch: node %d (%s) has Trireme %s, node 0 (%s) has %s", i, node->host,
                node->version, first->host, first->version);
        if (node->program_bytes && first->program_bytes && node->program_bytes != first->program_bytes)
            return tr__fail(TR_MISMATCH, "launch: node %d (%s) has another program than node 0 (%s): %lld bytes, not %lld", i,
                node->host, first->host, (long long)node->program_bytes, (long long)first->program_bytes);
        if (node->max_restarts != first->max_restarts)
            return tr__fail(TR_MISMATCH, "launch: node %d (%s) is to start failed ranks again up to %d times, node 0 (%s) up to %d times",
                i, node->host, node->max_restarts, first->host, first->max_restarts);
        if (node->min_ranks != first->min_ranks)
            return tr__fail(TR_MISMATCH, "launch: node %d (%s) was given .min_ranks %d, node 0 (%s) %d", i, node->host,
                node->min_ranks, first->host, first->min_ranks);
    }
    return TR_OK;
}

static void number_ranks(tr__nodes *n)
{
    n->world = 0;
    for (int i = 0; i < n->count; i++) {
        if (i == n->rank) n->first_rank = n->world;
        n->world += n->nodes[i].ranks;
    }
}

static tr_status exchange_nodes(tr__nodes *n, const tr_launch_options *o)
{
    tr__node_facts mine = {.ranks = o->ranks, .max_restarts = o->max_restarts, .min_ranks = o->min_ranks,
        .program_bytes = size_of_program(o->argv[0]), .now_ns = tr__wall_ns()};
    snprintf(mine.version, sizeof mine.version, "%s", tr_version());
    gethostname(mine.host, sizeof mine.host - 1);
    TR__TRY(tr_all_gather(n->group, &mine, n->nodes, (int64_t)sizeof mine, .dtype = TR_U8));
    TR__TRY(compare(n));
    number_ranks(n);
    TR__TRY(tr_barrier(n->group));
    n->start_ns = tr__now_ns();
    return TR_OK;
}

static tr_status join(tr__nodes *n, const tr_launch_options *o, const char *token)
{
    TR_SCOPE;
    n->group = tr_keep(tr_join(.store = n->store, .rank = n->rank, .world_size = n->count, .token = token, .name = "nodes",
        .timeout_ms = n->timeout_ms < JOIN_MS ? n->timeout_ms : JOIN_MS, .report_ms = SILENT_MS));
    tr_status status = tr_status_of(n->group);
    if (status == TR_OK) status = exchange_nodes(n, o);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "the nodes are ranks here");
}

static tr_status meet(tr__nodes *n, const tr_launch_options *o, const char *token)
{
    TR_SCOPE;
    int64_t deadline = tr__now_ns() + (int64_t)n->timeout_ms * 1000000;
    n->store = tr_keep(tr_store_tcp(n->host, n->port, .serve = n->rank == 0, .token = token, .timeout_ms = n->timeout_ms));
    tr_status status = tr_status_of(n->store);
    if (status == TR_TIMEOUT)
        return tr__fail_context(status, "node 0, whose launcher serves there, did not come within %g s", n->timeout_ms / 1000.0);
    TR__TRY(status);
    const tr__roll roll = {n->store, n->rank, n->count, n->timeout_ms, deadline};
    status = agree_on_count(n);
    if (status == TR_OK) status = tr__roll_call(&roll);
    if (status != TR_OK) tr__roll_refuse(&roll, status); /* unless it is known by now */
    return status == TR_OK ? join(n, o, token) : status;
}

void tr__nodes_refuse(const tr_launch_options *o, const char *token, tr_status why)
{
    TR_SCOPE;
    TR__KEEP_ERROR;
    tr__nodes n = {.count = o->nodes};
    if (o->nodes <= 1 || o->node_rank == 0 || !token || !*token || read_address(&n, o->rendezvous) != TR_OK) return;
    tr_store *store = tr_store_tcp(n.host, n.port, .token = token, .timeout_ms = REFUSE_MS);
    if (tr_status_of(store) != TR_OK) return;
    tr__fail_stored(tr__kept_error);
    tr__roll_refuse(&(tr__roll){.store = store, .node = o->node_rank}, why);
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

static tr_status check(const tr__nodes *n, const tr_launch_options *o, const char *token)
{
    if (n->rank < 0 || n->rank >= n->count) {
        tr_status wrong = tr__fail(TR_INVALID, "launch: a .node_rank of %d is not in 0 … %d", n->rank, n->count - 1);
        tr__nodes_refuse(o, token, wrong);
        return wrong;
    }
    if (!token || !*token)
        return tr__fail(TR_AUTH, "launch: a job of %d nodes needs a secret, the same for all of them: TRIREME_TOKEN, as from "
                                 "`openssl rand -hex 32`", n->count);
    if (strlen(token) > TOKEN_MOST)
        return tr__fail(TR_INVALID, "launch: a secret of %zu bytes; at most %d are allowed", strlen(token), TOKEN_MOST);
    return TR_OK;
}

/* In a thread of its own, from which the threads that it starts inherit that signals are not for them: meanwhile this
 * program's signals do what they always do, so that a meeting which does not come about can be interrupted. */
tr_status tr__nodes_meet(tr__nodes *n, const tr_launch_options *o, const char *token)
{
    n->count = o->nodes;
    n->rank = o->node_rank;
    n->timeout_ms = o->rendezvous_ms ? o->rendezvous_ms : 300000;
    TR__TRY(check(n, o, token));
    TR__TRY(read_address(n, o->rendezvous));
    n->nodes = calloc((size_t)n->count, sizeof *n->nodes);
    n->all = calloc((size_t)n->count, sizeof *n->all);
    n->coming = calloc((size_t)n->count, sizeof *n->coming);
    if (!n->nodes || !n->all || !n->coming) return tr__fail(TR_NO_MEMORY, "launch: no memory for %d nodes", n->count);

    meeting m = {n, o, token, NULL};
    pthread_t thread;
    int error = tr__thread_start(&thread, meeting_thread, &m);
    if (error) return tr__fail_errno(TR_IO, error, "launch: cannot start a thread");
    pthread_join(thread, NULL);
    tr_status status = tr__error_restore(m.error);
    return status ? tr__fail_context(status, "launch: node %d of %d at %s:%d", n->rank, n->count, n->host, n->port) : TR_OK;
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------- */

void tr__nodes_say(tr__nodes *n, const tr__word *word)
{
    bool news = n->mine.outcome != word->outcome || n->mine.interrupt != word->interrupt || n->mine.ended != word->ended;
    if (news) n->next_ns = 0;
    n->mine = *word;
}

/* The group names the launcher that it has lost as a rank of its own. */
static void describe_loss(tr__nodes *n, const char *message)
{
    const char *at = strstr(message, "rank ");
    int node;
    if (at && sscanf(at, "rank %d", &node) == 1 && node >= 0 && node < n->count && node != n->rank)
        snprintf(n->lost_text, sizeof n->lost_text, "node %d (%s) is gone, and all its ranks: %s", node, n->nodes[node].host,
            message);
    else
        snprintf(n->lost_text, sizeof n->lost_text, "a node is gone: %s", message);
}

static void end_round(tr__nodes *n)
{
    tr_status status = tr_wait(n->work);
    tr_release(n->work);
    n->work = NULL;
    if (status) {
        n->lost = true;
        describe_loss(n, tr_error_message());
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
            .timeout_ms = SILENT_MS));
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

static void name_report(int node, char key[32])
{
    snprintf(key, 32, "launch/report/%d", node);
}

bool tr__nodes_publish(tr__nodes *n, const char *text)
{
    char key[32];
    name_report(n->rank, key);
    return !n->lost && tr_store_set(n->store, key, text, strlen(text)) == TR_OK;
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
    return (size_t)snprintf(report->text, sizeof report->text, "node %d (%s): rank %d %s: ", node, n->nodes[node].host,
        rank, what);
}

static void tell_failure(const tr__nodes *n, int node, const char *own, tr_launch_report *report)
{
    const tr__word *w = node == n->rank ? &n->mine : &n->all[node];
    report->first_rank = w->rank;
    report->exit_code = w->exit_code;
    report->signal = w->signal;
    size_t bytes = sizeof report->text, used = tell_culprit(n, report);
    used += (size_t)snprintf(report->text + used, bytes - used, "node %d (%s): ", node, n->nodes[node].host);
    char key[32];
    void *theirs = NULL;
    size_t length;
    name_report(node, key);
    if (node != n->rank && !n->lost && w->told && tr_store_get(n->store, key, &theirs, &length) == TR_OK) own = theirs;
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

/* A node that was lost comes before what failed here afterwards, for that is likely the consequence; but not before what
 * was known when all nodes were there. */
tr_status tr__nodes_conclude(tr__nodes *n, const char *own, tr_launch_report *report)
{
    tr_status status = TR_CHILD;
    const tr__word *failed = tr__nodes_first_failure(n);
    bool stopped = false;
    for (int i = 0; i < n->count; i++) stopped |= n->all[i].outcome == TR__STOPPED;
    if (failed) {
        tell_failure(n, (int)(failed - n->all), own, report);
    } else if (n->lost) {
        report->exit_code = 1;
        snprintf(report->text, sizeof report->text, "%s", n->lost_text);
    } else if (stopped) {
        tell_stop(n, report);
        status = TR_INTERRUPTED;
    } else {
        status = TR_OK;
    }
    /* Node 0, which serves the store, is the last to go. */
    if (!n->lost) n->lost = tr_run_collective(n->group, &TR_COLLECTIVE(TR_BARRIER, .timeout_ms = n->timeout_ms)) != TR_OK;
    return status ? tr__fail(status, "%s", report->text) : TR_OK;
}

bool tr__nodes_begin_again(tr__nodes *n)
{
    bool sound = n->over && !n->lost;
    for (int i = 0; i < n->count; i++) sound &= !n->all[i].interrupt && !n->all[i].unable;
    if (!sound) return false;
    memset(n->all, 0, (size_t)n->count * sizeof *n->all);
    n->mine = (tr__word){0};
    n->over = false;
    n->next_ns = 0;
    return true;
}

void tr__nodes_shrink(tr__nodes *n, int rank)
{
    tr__node_facts *node = &n->nodes[node_of(n, rank)];
    if (node->ranks > 1) node->ranks--;
    number_ranks(n);
}

void tr__nodes_leave(tr__nodes *n)
{
    bool idle = n->group && !n->work && !tr__error_of(n->group);
    if (idle) n->lost |= tr_leave(n->group) != TR_OK;
    tr_release(n->work); /* of a round that was given up: who waits for this node sees that it is gone */
    tr_release(n->group);
    tr_release(n->store);
    free(n->nodes);
    free(n->all);
    free(n->coming);
    *n = (tr__nodes){0};
}
