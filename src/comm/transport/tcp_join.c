/*
 * Connecting the ranks of a first group. The endpoint records say where the others listen and which cookie they expect.
 * Of its neighbours (net/network_links.c) a rank connects to those below it and accepts those above, all at once
 * (net/network_connect.c). Meanwhile it checks that those it waits for are alive and still where their records say.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "comm/record/ranks_text.h"
#include "comm/transport/tcp.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_MS = 100, /* between two looks at whether those we wait for are alive */
    ASK_MS = 250,  /* between two looks at why connections ended */
};

typedef struct joining {
    tr__tcp *t;
    tr__rendezvous *meeting;
    tr__endpoint_record *records;
    int64_t *hung_up; /* since when ranks that we were connected to have gone; 0: they have not */
    int64_t asked;    /* when we last looked for their reasons, */
    int64_t looked;   /* and whether those that are missing are alive */
} joining;

/* ---- Endpoint records -------------------------------------------------------------------------------------------- */

static void take_record(joining *j, int rank)
{
    const tr__endpoint_record *its = &j->records[rank], *mine = &j->records[j->t->rank];
    tr__network_record *record = &j->t->network->peers[rank].record;
    size_t kernel = strcspn(mine->machine, "/") + 1;
    *record = (tr__network_record){.pid = its->pid, .visible = tr__endpoint_record_visible(its, mine),
        .same_host = strcmp(its->machine, mine->machine) == 0,
        .same_kernel = strncmp(its->machine, mine->machine, kernel) == 0};
    memcpy(record->host, its->host, sizeof record->host);
    memcpy(record->address, its->tcp_address, sizeof record->address);
    memcpy(record->cookie, its->tcp_cookie, sizeof record->cookie);
    if (rank == j->t->rank) memcpy(j->t->network->address, its->tcp_address, sizeof its->tcp_address); /* as others see it */
}

/* It has published another one: its first try to join came to nothing, or it has moved to another address. */
static tr_status renew(void *user, int rank)
{
    joining *j = user;
    tr_status status = tr__rendezvous_read(j->meeting, rank, 1, j->records);
    if (status == TR_OK) take_record(j, rank);
    return status;
}

/* ---- Who is missing ---------------------------------------------------------------------------------------------- */

static const tr__network_connection *control_of(const joining *j, int rank)
{
    return j->t->network->peers[rank].control; /* nobody else makes or ends any yet */
}

static bool is_missing(const joining *j, int rank)
{
    return rank != j->t->rank && tr__network_linked(j->t->network, j->t->rank, rank) && !control_of(j, rank);
}

/* All that we wait for: on a host that stands still those wait, too, who would have come. */
static tr_status too_late(const joining *j)
{
    int count = 0;
    TR__FREED int *missing = tr__zeroed((size_t)j->t->world_size, sizeof *missing);
    char list[TR__RANKS_TEXT];
    if (!missing) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", j->t->group, j->t->world_size);
    for (int rank = 0; rank < j->t->world_size; rank++)
        if (is_missing(j, rank)) missing[count++] = rank;
    if (count) j->meeting->late = missing[0];
    const tr__endpoint_record *first = &j->records[count ? missing[0] : j->t->rank];
    return tr__fail(TR_TIMEOUT, "group '%s': %s (%spid %ld on host %s, at %s) did not come to the meeting within %g s",
        j->t->group, tr__ranks_text(missing, count, count, list), count > 1 ? "the first: " : "", first->pid, first->host,
        first->tcp_address, j->meeting->member->timeout_ms / 1000.0);
}

static tr_status check_alive(const joining *j, int rank)
{
    TR__TRY(tr__rendezvous_check(j->meeting, j->records, rank));
    return tr__now_ns() < j->meeting->deadline ? TR_OK : too_late(j);
}

/* The ranks that we are connected to already; now and then, as it asks the store. */
static tr_status check_connected(joining *j)
{
    int64_t now = tr__now_ns();
    bool due = now - j->asked >= ASK_MS * (int64_t)1000000;
    if (due) j->asked = now;
    for (int rank = 0; rank < j->t->world_size; rank++) {
        const tr__network_connection *control = control_of(j, rank);
        struct pollfd end = {.fd = control ? control->wire.socket : -1, .events = POLLRDHUP};
        if (end.fd < 0 || poll(&end, 1, 0) <= 0) continue;
        if (!j->hung_up[rank]) j->hung_up[rank] = now;
        if (due) TR__TRY(tr__rendezvous_hung_up(j->meeting, j->records, rank, j->hung_up[rank]));
    }
    return TR_OK;
}

static tr_status check_missing(joining *j)
{
    TR__TRY(tr__failure_tell(j->t->failure)); /* of shared memory */
    TR__TRY(tr__rendezvous_check_peers(j->meeting));
    TR__TRY(check_connected(j));
    int first = -1;
    for (int rank = 0; rank < j->t->world_size; rank++) {
        if (!is_missing(j, rank)) continue;
        if (first < 0) tr__rendezvous_waits_for(j->meeting, j->records, first = rank);
        TR__TRY(check_alive(j, rank));
    }
    return TR_OK;
}

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

/* Whoever refuses us is no longer, or not yet, that rank: a new record will follow. */
static tr_status refused(void *user, int rank)
{
    joining *j = user;
    TR__TRY(check_alive(j, rank));
    tr_status status = renew(j, rank);
    return status == TR_TIMEOUT ? too_late(j) : status;
}

static tr_status meet_all(joining *j)
{
    tr__network_endpoint *n = j->t->network;
    for (int rank = 0; rank < j->t->world_size; rank++) take_record(j, rank);
    int neighbours = 0;
    for (int rank = n->world_size - 1; rank >= 0; rank--) {
        if (!is_missing(j, rank)) continue;
        neighbours++;
        if (rank < n->rank) TR__TRY(tr__network_call(n, rank, TR__CONTROL_CHANNEL, TR__FIRST_GROUP));
    }
    while (n->met < neighbours) {
        int ready;
        TR__TRY(tr__network_step(n, LOOK_MS, &ready));
        int64_t now = tr__now_ns(); /* where strangers never pause, those that are missing are looked for, too */
        if (ready > 0 && now < j->meeting->deadline && now - j->looked < LOOK_MS * (int64_t)1000000) continue;
        j->looked = now;
        TR__TRY(check_missing(j));
    }
    if (j->meeting->said >= 0) tr__rendezvous_waits_for(j->meeting, j->records, -1);
    return TR_OK;
}

tr_status tr__tcp_renew(tr__tcp *t, tr__rendezvous *meeting, tr__endpoint_record *records)
{
    joining j = {.t = t, .meeting = meeting, .records = records};
    TR__TRY(tr__rendezvous_read_all(meeting, records));
    TR__LOCKED(&t->network->hearing);
    for (int rank = 0; rank < t->world_size; rank++)
        if (rank != t->rank) take_record(&j, rank);
    tr__tcp_know_members(t);
    return TR_OK;
}

tr_status tr__tcp_connect(tr__tcp *t, tr__rendezvous *meeting, tr__endpoint_record *records)
{
    TR__FREED int64_t *hung_up = tr__zeroed((size_t)t->world_size, sizeof *hung_up);
    if (!hung_up) return tr__fail(TR_NO_MEMORY, "group '%s': no memory to join %d ranks", t->group, t->world_size);
    joining j = {.t = t, .meeting = meeting, .records = records, .hung_up = hung_up};
    const tr__network_joining calls = {&j, refused, renew};
    t->network->joining = &calls;
    tr_status status = meet_all(&j);
    t->network->joining = NULL;
    if (status == TR_OK) tr__tcp_know_members(t);
    return status;
}
