#include "launch/roll_call.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/object.h"
#include "comm/record/ranks_text.h"
#include "net/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    NODE = 128, /* bytes of what a node says of itself */
    BEAT_MS = 250,
    GONE_MS = 5000,       /* a launcher that is silent for so long is gone */
    LAST_WORD_MS = 2000,  /* node 0, which knows who is missing, says so first */
    HEARD_MS = 2000,      /* that node 0 goes on serving for those who have yet to read the verdict */
};

static const char verdict_key[] = "verdict", members_key[] = "members";

const char *tr__roll_key(const char *what, int node, char key[TR__ROLL_KEY])
{
    snprintf(key, TR__ROLL_KEY, "%s/%d", what, node);
    return key;
}

/* ---- The verdict ------------------------------------------------------------------------------------------------- */

static tr_status apply(const char *verdict)
{
    int status = 0, used = 0;
    if (sscanf(verdict, "%d %n", &status, &used) != 1)
        return tr__fail(TR_FORMAT, "launch: damaged word of another launcher in the store");
    return status ? tr__fail((tr_status)status, "%s", verdict + used) : TR_OK;
}

/* What holds is the verdict that came first. */
static tr_status decide(const tr__roll *r, tr_status status, const char *text)
{
    char mine[1024];
    void *held = NULL;
    size_t bytes;
    int length = snprintf(mine, sizeof mine, "%d %s", (int)status, text);
    if (length >= (int)sizeof mine) length = sizeof mine - 1;
    TR__TRY(tr_store_compare_set(r->store, verdict_key, NULL, 0, mine, (size_t)length, &held, &bytes));
    status = apply(held ? held : mine);
    free(held);
    return status;
}

void tr__roll_refuse(const tr__roll *r, tr_status why)
{
    TR__KEEP_ERROR;
    char host[64] = "", text[900];
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "node %d (%s) cannot take part: %s", r->node, host, tr_error_message());
    tr_status told = decide(r, why, text);
    (void)told; /* without the store there is nobody to tell */
}

/* ---- Who is there ------------------------------------------------------------------------------------------------ */

typedef struct presence {
    bool expected, come, again; /* again: since enough have come */
    char text[NODE];
    int64_t changed;
} presence;

/* Who is there, to be freed; NULL, with a failure, without memory. */
static presence *presence_new(const tr__roll *r)
{
    presence *nodes = calloc((size_t)r->count, sizeof *nodes);
    if (!nodes) tr__fail(TR_NO_MEMORY, "launch: no memory for %d nodes", r->count);
    for (int i = 0; nodes && i < r->member_count; i++) nodes[r->members[i]].expected = true;
    return nodes;
}

/* What the others say now. enough: so many had come before. */
static tr_status look(const tr__roll *r, presence *nodes, bool enough)
{
    char(*texts)[TR__ROLL_KEY] = malloc((size_t)r->count * sizeof *texts);
    const char **keys = calloc((size_t)r->count, sizeof *keys);
    tr__store_value *values = calloc((size_t)r->count, sizeof *values);
    tr_status status = texts && keys && values ? TR_OK : tr__fail(TR_NO_MEMORY, "launch: no memory for %d nodes", r->count);
    for (int i = 1; i < r->count && status == TR_OK; i++) keys[i - 1] = tr__roll_key("node", i, texts[i]);
    if (status == TR_OK) status = tr__store_gather(r->store, keys, r->count - 1, 0, values);
    for (int i = 1; i < r->count && (status == TR_OK || status == TR_TIMEOUT); i++) {
        const char *text = values[i - 1].data;
        nodes[i].again &= enough;
        if (!text || strncmp(nodes[i].text, text, NODE - 1) == 0) continue;
        snprintf(nodes[i].text, NODE, "%s", text);
        nodes[i].changed = tr__now_ns();
        nodes[i].again = enough;
        nodes[i].come = true;
    }
    if (values) tr__store_values_free(values, r->count);
    free(values);
    free(keys);
    free(texts);
    return status == TR_TIMEOUT ? TR_OK : status;
}

/* A launcher has come, and is silent. In a job that may lose nodes its number is free again. */
static tr_status tell_gone(const tr__roll *r, presence *node, int number)
{
    char text[256], host[65] = "?", key[TR__ROLL_KEY];
    long pid = 0;
    node->come = false;
    sscanf(node->text, "%ld %64s", &pid, host);
    snprintf(text, sizeof text,
        "node %d (pid %ld on host %s) had come, and its launcher is gone: it was ended, or cannot be reached", number, pid, host);
    if (r->least == r->count) return decide(r, TR_PEER, text);
    tr__log(TR_LOG_WARN, "launch: %s", text);
    return tr_store_delete(r->store, tr__roll_key("node", number, key), NULL);
}

static tr_status say_missing(const tr__roll *r, const presence *nodes)
{
    int *missing = malloc((size_t)r->count * sizeof *missing), count = 0;
    char list[TR__RANKS_TEXT], text[TR__RANKS_TEXT + 128], needed[64] = "";
    if (!missing) return tr__fail(TR_NO_MEMORY, "launch: no memory for %d nodes", r->count);
    for (int i = 1; i < r->count; i++)
        if (!nodes[i].come) missing[count++] = i;
    tr__ranks_text(missing, count, count, list); /* "ranks 1 and 2" */
    free(missing);
    if (r->least < r->count) snprintf(needed, sizeof needed, ", of which %d are needed", r->least);
    snprintf(text, sizeof text, "of %d nodes%s, node%s did not come within %g s", r->count, needed, list + strlen("rank"),
        r->timeout_ms / 1000.0);
    return decide(r, TR_TIMEOUT, text);
}

/* ---- Node 0 ------------------------------------------------------------------------------------------------------ */

/* Those that have come are to read why before the store goes. */
static void await_heard(const tr__roll *r, const presence *nodes)
{
    TR__KEEP_ERROR;
    int64_t until = tr__in_ms(HEARD_MS);
    char key[TR__ROLL_KEY];
    for (int i = 1; i < r->count; i++) {
        int64_t left = (until - tr__now_ns()) / 1000000;
        if (!nodes[i].come || left <= 0) continue;
        tr_status heard = tr_store_wait(r->store, tr__roll_key("heard", i, key), (int)left + 1);
        (void)heard;
    }
}

static tr_status begin(tr__roll *r, const presence *nodes)
{
    r->member_count = 0;
    for (int i = 0; i < r->count; i++)
        if (i == 0 || nodes[i].come) r->members[r->member_count++] = i;
    TR__TRY(tr_store_set(r->store, members_key, r->members, (size_t)r->member_count * sizeof *r->members));
    return decide(r, TR_OK, "");
}

static tr_status call(tr__roll *r, presence *nodes)
{
    bool enough = false;
    for (int64_t last_call = INT64_MAX;;) {
        void *verdict = NULL;
        size_t bytes;
        TR__TRY(look(r, nodes, enough));
        int64_t now = tr__now_ns();
        int come = 1;
        bool missing = false, again = enough;
        for (int i = 1; i < r->count; i++) {
            bool gone = nodes[i].come && now - nodes[i].changed > GONE_MS * (int64_t)1000000;
            if (gone) TR__TRY(tell_gone(r, &nodes[i], i));
            come += nodes[i].come;
            missing |= nodes[i].expected && !nodes[i].come;
            again &= nodes[i].again || !nodes[i].come;
        }
        if (come < r->least) last_call = INT64_MAX;
        else if (last_call == INT64_MAX) last_call = now + r->last_call_ms * (int64_t)1000000;
        enough = come >= r->least && (!missing || now >= last_call || now >= r->deadline);
        if (enough && again) return begin(r, nodes);
        if (now >= r->deadline && !enough) return say_missing(r, nodes);
        tr_status status = tr__store_get(r->store, verdict_key, enough ? 20 : BEAT_MS, &verdict, &bytes);
        if (status == TR_TIMEOUT) continue;
        TR__TRY(status);
        status = apply(verdict);
        free(verdict);
        return status;
    }
}

static tr_status call_all(tr__roll *r)
{
    presence *nodes = presence_new(r);
    if (!nodes) return TR_NO_MEMORY;
    tr_status status = call(r, nodes);
    if (status) await_heard(r, nodes);
    free(nodes);
    return status;
}

/* ---- The others -------------------------------------------------------------------------------------------------- */

/* What a launcher says of its node. */
typedef struct entry {
    char mine[NODE], other[NODE]; /* latest of itself, and of another launcher that has the number; "": nothing */
    int64_t since;                /* when the other one said that */
} entry;

/* Says that this node's launcher is there, or still there. Another one that has its number may be gone: node 0 will see that, if it
 * calls the roll already; before, this one takes the number over. */
static tr_status show(const tr__roll *r, entry *e, long beat)
{
    char key[TR__ROLL_KEY], text[NODE], host[65] = "?";
    void *held = NULL;
    size_t bytes;
    long pid = 0;
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "%ld %s %ld", (long)getpid(), host, beat);
    tr__roll_key("node", r->node, key);
    if (r->returns || (*e->mine && !r->late)) {
        strcpy(e->mine, text);
        return tr_store_set(r->store, key, text, strlen(text));
    }
    bool silent = *e->other && tr__now_ns() - e->since > GONE_MS * (int64_t)1000000;
    const char *expected = silent ? e->other : e->mine;
    TR__TRY(tr_store_compare_set(r->store, key, *expected ? expected : NULL, strlen(expected), text, strlen(text), &held, &bytes));
    bool ours = held && strcmp(held, text) == 0;
    bool taken = held && !ours && (r->least == r->count || *e->mine || (*e->other && strcmp(e->other, held) != 0));
    snprintf(e->mine, NODE, "%s", ours ? text : "");
    const char *other = held && !ours ? held : "";
    if (strcmp(e->other, other) != 0) e->since = tr__now_ns();
    snprintf(e->other, NODE, "%s", other);
    free(held);
    if (!taken) return TR_OK;
    sscanf(e->other, "%ld %64s", &pid, host);
    return tr__fail(TR_STATE, "node %d is taken: process %ld on host %s has come as node %d; each launcher has a .node_rank of its "
                              "own", r->node, pid, host, r->node);
}

static void say_heard(const tr__roll *r)
{
    TR__KEEP_ERROR;
    char key[TR__ROLL_KEY];
    tr_status heard = tr_store_set(r->store, tr__roll_key("heard", r->node, key), "", 0);
    (void)heard;
}

/* Its time may be up before node 0's. */
static tr_status give_up(const tr__roll *r)
{
    if (r->late)
        return tr__fail(TR_TIMEOUT, "node %d came when the job had begun, and its ranks were not started again within %g s",
            r->node, r->timeout_ms / 1000.0);
    presence *nodes = presence_new(r);
    if (!nodes) return TR_NO_MEMORY;
    tr_status status = look(r, nodes, false);
    int come = 1;
    for (int i = 1; i < r->count; i++) come += nodes[i].come;
    if (status == TR_OK && come >= r->least)
        status = decide(r, TR_TIMEOUT, "those that are needed have come, and node 0 does not begin");
    else if (status == TR_OK) status = say_missing(r, nodes);
    free(nodes);
    return status;
}

/* came: before that was decided. */
static tr_status read_members(tr__roll *r, bool came)
{
    void *members = NULL;
    size_t bytes;
    TR__TRY(tr_store_get(r->store, members_key, &members, &bytes));
    r->member_count = (int)(bytes / sizeof *r->members);
    if (r->member_count > r->count) r->member_count = r->count;
    memcpy(r->members, members, (size_t)r->member_count * sizeof *r->members);
    free(members);
    r->missed = true;
    for (int i = 0; i < r->member_count; i++) r->missed &= !came || r->members[i] != r->node;
    return TR_OK;
}

static tr_status answer(tr__roll *r)
{
    entry mine = {0};
    int64_t end = r->deadline + LAST_WORD_MS * (int64_t)1000000;
    if (r->least < r->count && !r->late) end += r->last_call_ms * (int64_t)1000000;
    for (long beat = 0;; beat++) {
        void *verdict = NULL;
        size_t bytes;
        tr_status status = tr__store_get(r->store, verdict_key, beat ? BEAT_MS : 0, &verdict, &bytes);
        if (status == TR_TIMEOUT && tr__now_ns() < end) {
            TR__TRY(show(r, &mine, beat));
            continue;
        }
        if (status == TR_OK) status = apply(verdict);
        else if (status == TR_TIMEOUT) status = give_up(r);
        else return status;
        if (status) say_heard(r);
        else status = read_members(r, *mine.mine);
        free(verdict);
        return status;
    }
}

tr_status tr__roll_call(tr__roll *roll)
{
    if (roll->node == 0) return call_all(roll);
    tr_status status = answer(roll);
    if (status != TR_IO) return status;
    return tr__fail_context(status, "node 0, which serves the job's store, is gone%s", roll->late ? ", or the job has ended" : "");
}
