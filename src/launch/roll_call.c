#include "launch/roll_call.h"

#include "base/clock.h"
#include "base/object.h"
#include "comm/record/ranks_text.h"
#include "net/store/store.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    KEY = 32,
    NODE = 128, /* bytes of what a node says of itself */
    BEAT_MS = 250,
    GONE_MS = 5000,       /* a launcher that is silent for so long is gone */
    LAST_WORD_MS = 2000,  /* node 0, which knows who is missing, says so first */
    HEARD_MS = 2000,      /* that node 0 goes on serving for those who have yet to read the verdict */
};

static const char verdict_key[] = "launch/verdict";

static const char *key_of(const char *what, int node, char key[KEY])
{
    snprintf(key, KEY, "launch/%s/%d", what, node);
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
    bool come, again; /* again: since all have come */
    char text[NODE];
    int64_t changed;
} presence;

/* What the others say now; all of them are there: *all. */
static tr_status look(const tr__roll *r, presence *nodes, bool *all)
{
    char(*texts)[KEY] = malloc((size_t)r->count * sizeof *texts);
    const char **keys = calloc((size_t)r->count, sizeof *keys);
    tr__store_value *values = calloc((size_t)r->count, sizeof *values);
    tr_status status = texts && keys && values ? TR_OK : tr__fail(TR_NO_MEMORY, "launch: no memory for %d nodes", r->count);
    for (int i = 1; i < r->count && status == TR_OK; i++) keys[i - 1] = key_of("node", i, texts[i]);
    if (status == TR_OK) status = tr__store_gather(r->store, keys, r->count - 1, 0, values);
    bool had_all = *all;
    *all = status == TR_OK;
    for (int i = 1; i < r->count && (status == TR_OK || status == TR_TIMEOUT); i++) {
        const char *text = values[i - 1].data;
        if (!text || strncmp(nodes[i].text, text, NODE - 1) == 0) continue;
        snprintf(nodes[i].text, NODE, "%s", text);
        nodes[i].changed = tr__now_ns();
        nodes[i].again = had_all;
        nodes[i].come = true;
    }
    if (values) tr__store_values_free(values, r->count);
    free(values);
    free(keys);
    free(texts);
    return status == TR_TIMEOUT ? TR_OK : status;
}

static int find_gone(const tr__roll *r, const presence *nodes)
{
    int64_t now = tr__now_ns();
    for (int i = 1; i < r->count; i++)
        if (nodes[i].come && now - nodes[i].changed > GONE_MS * (int64_t)1000000) return i;
    return 0;
}

static tr_status say_gone(const tr__roll *r, presence *node, int number)
{
    char text[256], host[65] = "?";
    long pid = 0;
    node->come = false;
    sscanf(node->text, "%ld %64s", &pid, host);
    snprintf(text, sizeof text, "node %d (pid %ld on host %s) had come, and its launcher is gone: it was ended, or cannot be reached",
        number, pid, host);
    return decide(r, TR_PEER, text);
}

static tr_status say_missing(const tr__roll *r, const presence *nodes)
{
    int *missing = malloc((size_t)r->count * sizeof *missing), count = 0;
    char list[TR__RANKS_TEXT], text[TR__RANKS_TEXT + 128];
    if (!missing) return tr__fail(TR_NO_MEMORY, "launch: no memory for %d nodes", r->count);
    for (int i = 1; i < r->count; i++)
        if (!nodes[i].come) missing[count++] = i;
    tr__ranks_text(missing, count, count, list); /* "ranks 1 and 2" */
    free(missing);
    snprintf(text, sizeof text, "of %d nodes, node%s did not come within %g s", r->count, list + strlen("rank"),
        r->timeout_ms / 1000.0);
    return decide(r, TR_TIMEOUT, text);
}

/* ---- Node 0 ------------------------------------------------------------------------------------------------------ */

/* Those that have come are to read why before the store goes. */
static void await_heard(const tr__roll *r, const presence *nodes)
{
    TR__KEEP_ERROR;
    int64_t until = tr__now_ns() + HEARD_MS * (int64_t)1000000;
    char key[KEY];
    for (int i = 1; i < r->count; i++) {
        int64_t left = (until - tr__now_ns()) / 1000000;
        if (!nodes[i].come || left <= 0) continue;
        tr_status heard = tr_store_wait(r->store, key_of("heard", i, key), (int)left + 1);
        (void)heard;
    }
}

static tr_status call(const tr__roll *r, presence *nodes)
{
    for (bool all = false;;) {
        void *verdict = NULL;
        size_t bytes;
        TR__TRY(look(r, nodes, &all));
        bool whole = all;
        for (int i = 1; i < r->count; i++) whole = whole && nodes[i].again;
        if (whole) return decide(r, TR_OK, "");
        int gone = find_gone(r, nodes);
        if (gone) return say_gone(r, &nodes[gone], gone);
        if (tr__now_ns() >= r->deadline && !all) return say_missing(r, nodes);
        tr_status status = tr__store_get(r->store, verdict_key, all ? 20 : BEAT_MS, &verdict, &bytes);
        if (status == TR_TIMEOUT) continue;
        TR__TRY(status);
        status = apply(verdict);
        free(verdict);
        return status;
    }
}

static tr_status call_all(const tr__roll *r)
{
    presence *nodes = calloc((size_t)r->count, sizeof *nodes);
    if (!nodes) return tr__fail(TR_NO_MEMORY, "launch: no memory for %d nodes", r->count);
    tr_status status = call(r, nodes);
    if (status) await_heard(r, nodes);
    free(nodes);
    return status;
}

/* ---- The others -------------------------------------------------------------------------------------------------- */

static tr_status enter(const tr__roll *r, const char *mine)
{
    char key[KEY], host[65] = "?";
    void *held = NULL;
    size_t bytes;
    long pid = 0;
    TR__TRY(tr_store_compare_set(r->store, key_of("node", r->node, key), NULL, 0, mine, strlen(mine), &held, &bytes));
    bool ours = held && strcmp(held, mine) == 0;
    if (!ours && held) sscanf(held, "%ld %64s", &pid, host);
    free(held);
    return ours ? TR_OK : tr__fail(TR_STATE, "node %d is taken: process %ld on host %s has come as node %d; each launcher has a "
                                   ".node_rank of its own", r->node, pid, host, r->node);
}

static void say_heard(const tr__roll *r)
{
    TR__KEEP_ERROR;
    char key[KEY];
    tr_status heard = tr_store_set(r->store, key_of("heard", r->node, key), "", 0);
    (void)heard;
}

/* Its time may be up before node 0's. */
static tr_status give_up(const tr__roll *r)
{
    bool all = false;
    presence *nodes = calloc((size_t)r->count, sizeof *nodes);
    if (!nodes) return tr__fail(TR_NO_MEMORY, "launch: no memory for %d nodes", r->count);
    tr_status status = look(r, nodes, &all);
    if (status == TR_OK && all) status = decide(r, TR_TIMEOUT, "all nodes have come, and node 0 does not answer");
    else if (status == TR_OK) status = say_missing(r, nodes);
    free(nodes);
    return status;
}

static tr_status answer(const tr__roll *r)
{
    char key[KEY], mine[NODE], host[65] = "?";
    gethostname(host, sizeof host - 1);
    for (long beat = 0;; beat++) {
        void *verdict = NULL;
        size_t bytes;
        snprintf(mine, sizeof mine, "%ld %s %ld", (long)getpid(), host, beat);
        if (beat) TR__TRY(tr_store_set(r->store, key_of("node", r->node, key), mine, strlen(mine)));
        else TR__TRY(enter(r, mine));
        tr_status status = tr__store_get(r->store, verdict_key, BEAT_MS, &verdict, &bytes);
        if (status == TR_OK) status = apply(verdict);
        else if (status != TR_TIMEOUT) return status;
        else if (tr__now_ns() < r->deadline + LAST_WORD_MS * (int64_t)1000000) continue;
        else status = give_up(r);
        free(verdict);
        if (status) say_heard(r);
        return status;
    }
}

tr_status tr__roll_call(const tr__roll *roll)
{
    if (roll->node == 0) return call_all(roll);
    tr_status status = answer(roll);
    return status == TR_IO ? tr__fail_context(status, "node 0, which serves the job's store, is gone") : status;
}
