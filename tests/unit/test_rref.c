/*
 * References, by a model: several workers on a network that reorders messages hand references around and
 * drop them, at random. A value must never go while somebody refers to it, or a reference is on its way; when all have been
 * dropped and all has been delivered, nothing may be left. Some schedules let workers die as well.
 *
 * TRIREME_RREF_SCHEDULES says how many schedules (default: a short share), TRIREME_RREF_SEED where they begin.
 */
#include "rpc/rref_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORKERS = 5, HANDLES = 24, VALUES = 64, PACKETS = 4096, STEPS = 120, SETTLE = 4000 };

typedef struct handle { /* a reference that a worker's program has */
    tr__rref_entry *entry;
    int value;
} handle;

typedef struct packet { /* on the network */
    enum { CONTROL, TOKEN, REQUEST, CREATED } kind;
    int from, to, value;
    tr__refer message;
    tr__rref_token token;
    tr__rref_entry *entry; /* CREATED: at the receiver */
} packet;

typedef struct model model;
typedef struct worker {
    model *m;
    int rank;
    bool dead;
    tr__rref_table *table;
    handle handles[HANDLES];
    int handle_count;
} worker;

typedef struct tracked {
    int owner;
    bool exists, freed, forgiven; /* forgiven: somebody who had it died, so others may find it gone */
    int on_the_way;               /* tokens and requests */
} tracked;

struct model {
    uint64_t random;
    bool deaths;
    worker workers[WORKERS];
    tracked values[VALUES];
    int value_count;
    packet packets[PACKETS];
    int packet_count;
    char failure[256];
};

static uint32_t draw(model *m, uint32_t below)
{
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((m->random >> 33) % below);
}

static bool fails(model *m, const char *what, int at)
{
    if (!m->failure[0]) snprintf(m->failure, sizeof m->failure, "%s (%d)", what, at);
    return false;
}

/* ---- The network ------------------------------------------------------------------------------------------------- */

static bool post(model *m, packet l)
{
    if (m->packet_count == PACKETS) return fails(m, "the network is full", PACKETS);
    m->packets[m->packet_count++] = l;
    return true;
}

static void send_control(void *user, int to, const tr__refer *message)
{
    worker *w = user;
    post(w->m, (packet){.kind = CONTROL, .from = w->rank, .to = to, .message = *message});
}

static bool is_referred_to(const model *m, int value)
{
    if (m->values[value].on_the_way) return true;
    for (int w = 0; w < WORKERS; w++)
        for (int i = 0; i < m->workers[w].handle_count && !m->workers[w].dead; i++)
            if (m->workers[w].handles[i].value == value) return true;
    return false;
}

static void value_freed(void *user, void *what)
{
    worker *w = user;
    int value = (int)(intptr_t)what - 1;
    if (w->m->values[value].freed) fails(w->m, "a value was freed twice", value);
    w->m->values[value].freed = true;
    if (!w->m->values[value].forgiven && is_referred_to(w->m, value)) fails(w->m, "a value was freed too early", value);
}

static void add_handle(worker *w, tr__rref_entry *entry, int value)
{
    w->handles[w->handle_count++] = (handle){entry, value};
}

static void *mark(int value)
{
    return (void *)(intptr_t)(value + 1);
}

/* ---- What arrives ------------------------------------------------------------------------------------------------ */

static void arrive_request(model *m, worker *w, const packet *l)
{
    tr__rref_entry *entry = tr__rref_made(w->table, &l->token);
    m->values[l->value].on_the_way--;
    if (!entry) {
        fails(m, "a value could not be made", l->value);
        return;
    }
    tr__rref_set_value(entry, mark(l->value));
    m->values[l->value].exists = true;
    post(m, (packet){.kind = CREATED, .from = w->rank, .to = l->from, .value = l->value, .entry = l->entry});
    tr__rref_release(w->table, entry);
}

static void arrive_token(model *m, worker *w, const packet *l)
{
    tr__rref_entry *entry = tr__rref_take_in(w->table, l->from, &l->token);
    m->values[l->value].on_the_way--;
    if (!entry) {
        if (!m->values[l->value].forgiven) fails(m, "a reference could not be taken in", l->value);
        return;
    }
    if (w->handle_count < HANDLES)
        add_handle(w, entry, l->value);
    else
        tr__rref_release(w->table, entry);
}

static void deliver(model *m)
{
    if (!m->packet_count) return;
    int at = (int)draw(m, (uint32_t)m->packet_count);
    packet l = m->packets[at];
    m->packets[at] = m->packets[--m->packet_count];
    worker *w = &m->workers[l.to];
    if (w->dead || m->workers[l.from].dead) { /* its links are gone */
        if (l.kind == TOKEN || l.kind == REQUEST) m->values[l.value].on_the_way--;
        if (l.kind == CREATED && !w->dead) tr__rref_remote_done(w->table, l.entry, false);
        return;
    }
    if (l.kind == CONTROL) tr__rref_message(w->table, l.from, &l.message);
    if (l.kind == TOKEN) arrive_token(m, w, &l);
    if (l.kind == REQUEST) arrive_request(m, w, &l);
    if (l.kind == CREATED) tr__rref_remote_done(w->table, l.entry, true);
}

/* ---- What programs do -------------------------------------------------------------------------------------------- */

static worker *any_worker(model *m)
{
    worker *w = &m->workers[draw(m, WORKERS)];
    return w->dead ? NULL : w;
}

static void make_own(model *m, worker *w)
{
    if (m->value_count == VALUES || w->handle_count == HANDLES) return;
    tr__rref_entry *entry = tr__rref_own(w->table);
    int value = m->value_count++;
    m->values[value] = (tracked){.owner = w->rank, .exists = true};
    tr__rref_set_value(entry, mark(value));
    add_handle(w, entry, value);
}

static void make_remote(model *m, worker *w)
{
    worker *owner = any_worker(m);
    if (!owner || owner == w || m->value_count == VALUES || w->handle_count == HANDLES) return;
    int value = m->value_count++;
    m->values[value] = (tracked){.owner = owner->rank, .on_the_way = 1};
    packet l = {.kind = REQUEST, .from = w->rank, .to = owner->rank, .value = value};
    l.entry = tr__rref_remote(w->table, owner->rank, &l.token);
    if (draw(m, 20) == 0) { /* the call could not be sent */
        m->values[value].on_the_way--;
        tr__rref_remote_done(w->table, l.entry, false);
        tr__rref_release(w->table, l.entry);
        return;
    }
    add_handle(w, l.entry, value);
    post(m, l);
}

static void hand_over(model *m, worker *w)
{
    worker *to = any_worker(m);
    if (!w->handle_count || !to) return;
    const handle *h = &w->handles[draw(m, (uint32_t)w->handle_count)];
    packet l = {.kind = TOKEN, .from = w->rank, .to = to->rank, .value = h->value};
    if (!tr__rref_hand_over(w->table, h->entry, to->rank, &l.token)) return;
    if (draw(m, 20) == 0) { /* the call could not be sent after all */
        tr__rref_undo(w->table, &l.token);
        return;
    }
    m->values[h->value].on_the_way++;
    post(m, l);
}

static void drop(model *m, worker *w)
{
    if (!w->handle_count) return;
    int at = (int)draw(m, (uint32_t)w->handle_count);
    handle h = w->handles[at];
    w->handles[at] = w->handles[--w->handle_count];
    tr__rref_release(w->table, h.entry);
}

/* What it had, and what was on its way to or from it, is gone; whoever got a reference from it may find it lost. */
static void die(model *m)
{
    worker *w = any_worker(m);
    int living = 0;
    for (int i = 0; i < WORKERS; i++) living += !m->workers[i].dead;
    if (!w || living <= 2) return;
    w->dead = true;
    for (int i = 0; i < m->value_count; i++) m->values[i].forgiven = true;
    for (int i = 0; i < m->packet_count;) {
        packet *l = &m->packets[i];
        if (l->from != w->rank && l->to != w->rank) {
            i++;
            continue;
        }
        if (l->kind == TOKEN || l->kind == REQUEST) m->values[l->value].on_the_way--;
        if (l->kind == CREATED && l->from == w->rank) tr__rref_remote_done(m->workers[l->to].table, l->entry, false);
        if (l->kind == REQUEST && l->to == w->rank) tr__rref_remote_done(m->workers[l->from].table, l->entry, false);
        *l = m->packets[--m->packet_count];
    }
    for (int i = 0; i < WORKERS; i++)
        if (!m->workers[i].dead) tr__rref_gone(m->workers[i].table, w->rank);
}

static void step(model *m)
{
    worker *w = any_worker(m);
    if (!w) return;
    switch (draw(m, 11)) {
    case 0: make_own(m, w); break;
    case 1: make_remote(m, w); break;
    case 2:
    case 3:
    case 4: hand_over(m, w); break;
    case 5:
    case 6: drop(m, w); break;
    case 7:
        if (m->deaths && draw(m, 15) == 0) die(m);
        break;
    default: deliver(m); break;
    }
}

/* ---- A schedule -------------------------------------------------------------------------------------------------- */

static int left_over(const model *m)
{
    int count = m->packet_count;
    for (int i = 0; i < WORKERS; i++)
        if (m->workers[i].table && !m->workers[i].dead) count += tr__rref_count(m->workers[i].table);
    return count;
}

/* Everyone drops all; the network delivers, until nothing is left. */
static void settle(model *m)
{
    for (int i = 0; i < SETTLE && !m->failure[0] && left_over(m); i++) {
        for (int k = 0; k < WORKERS; k++)
            while (!m->workers[k].dead && m->workers[k].handle_count) drop(m, &m->workers[k]);
        deliver(m);
    }
    if (left_over(m)) fails(m, "something is left", left_over(m));
    for (int i = 0; i < m->value_count; i++)
        if (m->values[i].exists && !m->values[i].freed && !m->workers[m->values[i].owner].dead)
            fails(m, "a value has leaked", i);
}

static void run_schedule(model *m, uint64_t seed, bool deaths)
{
    memset(m, 0, sizeof *m);
    m->random = seed * 0x9e3779b97f4a7c15u + 1;
    m->deaths = deaths;
    for (int i = 0; i < WORKERS; i++) {
        worker *w = &m->workers[i];
        *w = (worker){.m = m, .rank = i};
        tr__rref_events events = {.user = w, .send = send_control, .freed = value_freed};
        w->table = tr__rref_table_new(i, WORKERS, &events);
    }
    for (int i = 0; i < STEPS && !m->failure[0]; i++) step(m);
    if (!m->failure[0]) settle(m);
    m->failure[sizeof m->failure - 1] = 0;
    char failure[sizeof m->failure];
    memcpy(failure, m->failure, sizeof failure);
    for (int i = 0; i < WORKERS; i++) {
        for (int k = 0; k < m->value_count; k++) m->values[k].forgiven = true; /* what dead workers have goes with them */
        for (int k = 0; k < m->value_count; k++) m->values[k].freed = false;
        tr__rref_table_free(m->workers[i].table);
    }
    memcpy(m->failure, failure, sizeof failure);
}

/* ---- Requests that are never sent -------------------------------------------------------------------------------- */

/* A call fails while its request is made. Its owner hears so, and does not keep a place for it among all that follow. */
static void a_request_that_is_not_sent_leaves_no_gap(void **state)
{
    (void)state;
    enum { USER, OWNER };
    model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    for (int i = 0; i < 2; i++) {
        worker *w = &m->workers[i];
        *w = (worker){.m = m, .rank = i};
        w->table = tr__rref_table_new(i, 2, &(tr__rref_events){.user = w, .send = send_control, .freed = value_freed});
    }
    tr__rref_token token;
    tr__rref_entry *entry = tr__rref_remote(m->workers[USER].table, OWNER, &token);
    tr__rref_remote_done(m->workers[USER].table, entry, false);
    tr__rref_release(m->workers[USER].table, entry);
    while (m->packet_count) deliver(m);
    assert_null(tr__rref_await(m->workers[OWNER].table, token.id));
    assert_null(tr__rref_made(m->workers[OWNER].table, &token));
    assert_int_equal(left_over(m), 0);
    for (int i = 0; i < 2; i++) tr__rref_table_free(m->workers[i].table);
    free(m);
}

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void run_schedules(bool deaths)
{
    enum { SHORT_SHARE = 5000 };
    uint64_t schedules = number_from("TRIREME_RREF_SCHEDULES", SHORT_SHARE), first = number_from("TRIREME_RREF_SEED", 1);
    model *m = malloc(sizeof *m);
    assert_non_null(m);
    for (uint64_t seed = first; seed < first + schedules; seed++) {
        run_schedule(m, seed, deaths);
        if (m->failure[0]) fail_msg("seed %llu: %s", (unsigned long long)seed, m->failure);
    }
    free(m);
}

static void no_value_leaks_or_goes_early(void **state)
{
    (void)state;
    run_schedules(false);
}

static void dead_workers_leave_nothing_behind(void **state)
{
    (void)state;
    run_schedules(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_value_leaks_or_goes_early),
        cmocka_unit_test(dead_workers_leave_nothing_behind),
        cmocka_unit_test(a_request_that_is_not_sent_leaves_no_gap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
