#include "rpc/rref_state.h"

#include "base/list.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* A fork: at the owner one that it counts, at a user one of its own, or one that it has handed on and is pinned by. */
typedef struct fork_record {
    tr__rref_number number;
    int worker;   /* who holds it; of one of our own, who it came from */
    bool counted; /* of our own: the owner has said so, or made it */
} fork_record;

typedef struct fork_set {
    fork_record *at;
    int count;
    size_t room;
} fork_set;

struct tr__rref_entry {
    struct tr__rref_entry *next; /* in its bucket */
    tr__rref_number id;
    int owner;
    int handles;
    bool made;    /* the value's request is here, or there; always true of what was handed over */
    bool asked;   /* at the owner: the request to make it has come; always true of values that it made by itself */
    bool lost;    /* the value is gone, or will never be made */
    void *value;  /* at the owner */
    fork_set forks; /* at the owner: all that it counts; at a user: its own */
    fork_set pins;  /* at a user: handed on, and not yet counted */
};

/* Which numbers have been seen: all below `next`, and some above. */
typedef struct seen_set {
    uint64_t next;
    uint64_t *above;
    int count;
    size_t room;
} seen_set;

typedef struct neighbour {
    bool gone;
    uint64_t asked;  /* values that it was asked to make for us */
    seen_set values; /* that it has asked us to make: the lower parts of their numbers */
} neighbour;

enum { BUCKETS = 1024, OWNER_SHIFT = 40 };

struct tr__rref_table {
    int rank, world;
    tr__rref_events events;
    uint64_t numbers; /* given so far, to values and forks */
    neighbour *neighbours;
    tr__rref_entry *buckets[BUCKETS];
};

/* ---- Sets -------------------------------------------------------------------------------------------------------- */

static bool same(tr__rref_number a, tr__rref_number b)
{
    return a.maker == b.maker && a.number == b.number;
}

static int find_fork(const fork_set *s, tr__rref_number number)
{
    for (int i = 0; i < s->count; i++)
        if (same(s->at[i].number, number)) return i;
    return -1;
}

static bool add_fork(fork_set *s, fork_record record)
{
    if (find_fork(s, record.number) >= 0) return true;
    if (!tr__grow(&s->at, (size_t)s->count, &s->room, sizeof *s->at)) return false;
    s->at[s->count++] = record;
    return true;
}

static bool remove_fork(fork_set *s, tr__rref_number number)
{
    int at = find_fork(s, number);
    if (at < 0) return false;
    s->at[at] = s->at[--s->count]; /* NOLINT(clang-analyzer-core.NullDereference): it was found there */
    return true;
}

static void remove_forks_of(fork_set *s, int worker)
{
    for (int i = s->count; i-- > 0;)
        if (s->at[i].worker == worker) s->at[i] = s->at[--s->count];
}

static bool has_seen(const seen_set *s, uint64_t number)
{
    if (number < s->next) return true;
    for (int i = 0; i < s->count; i++)
        if (s->above[i] == number) return true;
    return false;
}

static bool see(seen_set *s, uint64_t number)
{
    if (number > s->next) {
        if (!tr__grow(&s->above, (size_t)s->count, &s->room, sizeof *s->above)) return false;
        s->above[s->count++] = number;
        return true;
    }
    s->next++;
    for (int i = 0; i < s->count;) {
        if (s->above[i] != s->next) {
            i++;
            continue;
        }
        s->next++;
        s->above[i] = s->above[--s->count];
        i = 0;
    }
    return true;
}

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

static tr__rref_entry **bucket_of(tr__rref_table *t, tr__rref_number id)
{
    uint64_t hash = (id.number * 0x9e3779b97f4a7c15u) ^ ((uint64_t)(uint32_t)id.maker * 0xc2b2ae3d27d4eb4fu);
    return &t->buckets[(hash >> 32) % BUCKETS];
}

tr__rref_entry *tr__rref_find(tr__rref_table *t, tr__rref_number id)
{
    tr__rref_entry *e = *bucket_of(t, id);
    while (e && !same(e->id, id)) e = e->next;
    return e;
}

static tr__rref_entry *add_entry(tr__rref_table *t, tr__rref_number id, int owner)
{
    tr__rref_entry *e = calloc(1, sizeof *e), **bucket = bucket_of(t, id);
    if (!e) return NULL;
    e->id = id;
    e->owner = owner;
    e->next = *bucket;
    *bucket = e;
    return e;
}

/* Of one that is in the table no more. */
static void free_entry(tr__rref_table *t, tr__rref_entry *e)
{
    free(e->forks.at);
    free(e->pins.at);
    void *value = e->value;
    free(e);
    if (value) t->events.freed(t->events.user, value);
}

static void remove_entry(tr__rref_table *t, tr__rref_entry *e)
{
    TR__UNLINK(*bucket_of(t, e->id), e);
    free_entry(t, e);
}

/* Of a fork, or a value of our own. */
static tr__rref_number new_number(tr__rref_table *t)
{
    return (tr__rref_number){.maker = t->rank, .number = t->numbers++};
}

/* Of a value that another worker makes: it counts those, so that it knows which have been. */
static tr__rref_number new_number_at(tr__rref_table *t, int owner)
{
    uint64_t part = (uint64_t)(owner + 1) << OWNER_SHIFT;
    return (tr__rref_number){.maker = t->rank, .number = part | t->neighbours[owner].asked++};
}

static uint64_t lower_part(tr__rref_number id)
{
    return id.number & (((uint64_t)1 << OWNER_SHIFT) - 1);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static void post(tr__rref_table *t, int to, tr__refer_kind kind, const tr__rref_entry *e, tr__rref_number fork)
{
    const tr__refer message = {.kind = kind, .id = e->id, .fork = fork};
    if (!t->neighbours[to].gone) t->events.send(t->events.user, to, &message);
}

/* ---- When things go ---------------------------------------------------------------------------------------------- */

static void consider_reference(tr__rref_table *t, tr__rref_entry *e)
{
    if (e->handles || (!e->lost && (!e->made || e->pins.count))) return;
    for (int i = 0; i < e->forks.count; i++)
        if (!e->lost && !e->forks.at[i].counted) return;
    if (!e->lost)
        for (int i = 0; i < e->forks.count; i++) post(t, e->owner, TR__REFER_DROP, e, e->forks.at[i].number);
    remove_entry(t, e);
}

static void consider(tr__rref_table *t, tr__rref_entry *e)
{
    if (e->owner != t->rank)
        consider_reference(t, e);
    else if (e->made && !e->handles && !e->forks.count)
        remove_entry(t, e);
}

/* ---- What the worker does ---------------------------------------------------------------------------------------- */

tr__rref_entry *tr__rref_own(tr__rref_table *t)
{
    tr__rref_entry *e = add_entry(t, new_number(t), t->rank);
    if (!e) return NULL;
    e->asked = e->made = true;
    e->handles = 1;
    return e;
}

tr__rref_entry *tr__rref_remote(tr__rref_table *t, int owner, tr__rref_token *token)
{
    tr__rref_entry *e = add_entry(t, new_number_at(t, owner), owner);
    *token = (tr__rref_token){.owner = owner};
    if (!e) return NULL;
    e->handles = 1;
    *token = (tr__rref_token){.owner = owner, .id = e->id, .fork = new_number(t)};
    if (owner == t->rank || add_fork(&e->forks, (fork_record){token->fork, owner, true})) return e;
    remove_entry(t, e);
    return NULL;
}

void tr__rref_remote_done(tr__rref_table *t, tr__rref_entry *e, bool made)
{
    e->made = true;
    e->lost |= !made;
    /* The owner counts the requests, and is not to wait for this one. */
    if (!made && e->owner != t->rank) post(t, e->owner, TR__REFER_DROP, e, e->forks.at[0].number);
    consider(t, e);
}

/* The first that is heard of a value of ours: nothing, if it has gone already. */
static tr__rref_entry *expect(tr__rref_table *t, tr__rref_number id)
{
    if (id.maker < 0 || id.maker >= t->world || id.maker == t->rank) return NULL;
    neighbour *n = &t->neighbours[id.maker];
    if (n->gone || has_seen(&n->values, lower_part(id))) return NULL;
    return add_entry(t, id, t->rank);
}

tr__rref_entry *tr__rref_made(tr__rref_table *t, const tr__rref_token *token)
{
    tr__rref_entry *e = tr__rref_find(t, token->id);
    if (!e) e = expect(t, token->id);
    if (!e || e->owner != t->rank || e->asked) return NULL;
    e->asked = true;
    if (token->id.maker != t->rank) {
        if (!add_fork(&e->forks, (fork_record){token->fork, token->id.maker, true}) ||
            !see(&t->neighbours[token->id.maker].values, lower_part(token->id))) {
            consider(t, e);
            return NULL;
        }
    }
    e->made = true;
    e->handles++;
    return e;
}

tr__rref_entry *tr__rref_await(tr__rref_table *t, tr__rref_number id)
{
    tr__rref_entry *e = tr__rref_find(t, id);
    if (!e) e = expect(t, id);
    if (!e || e->owner != t->rank) return NULL;
    e->handles++;
    return e;
}

static tr__rref_entry *take_in_own(tr__rref_table *t, int from, const tr__rref_token *token)
{
    tr__rref_entry *e = tr__rref_await(t, token->id), nothing = {.id = token->id}; /* it may overtake the request */
    if (!e && from != t->rank) post(t, from, TR__REFER_RECEIVED, &nothing, token->fork); /* who is pinned by it */
    if (!e) return NULL;
    if (from == t->rank)
        remove_fork(&e->forks, token->fork);
    else
        post(t, from, TR__REFER_RECEIVED, e, token->fork);
    return e;
}

tr__rref_entry *tr__rref_take_in(tr__rref_table *t, int from, const tr__rref_token *token)
{
    if (token->owner < 0 || token->owner >= t->world || from < 0 || from >= t->world) return NULL;
    if (token->owner == t->rank) return take_in_own(t, from, token);
    tr__rref_entry *e = tr__rref_find(t, token->id);
    if (!e) {
        e = add_entry(t, token->id, token->owner);
        if (!e) return NULL;
        e->made = true;
        /* What we handed over to ourselves has been covered by a fork of ours, which went because the value is lost. */
        e->lost = t->neighbours[token->owner].gone || from == t->rank;
    }
    if (e->owner != token->owner) return NULL;
    e->handles++;
    if (from == t->rank) { /* handed over to ourselves: covered by our own fork, which the pin has kept */
        remove_fork(&e->pins, token->fork);
        return e;
    }
    bool counted = from == token->owner;
    if (!add_fork(&e->forks, (fork_record){token->fork, from, counted})) {
        tr__rref_release(t, e);
        return NULL;
    }
    if (!counted) post(t, e->owner, TR__REFER_ADD, e, token->fork);
    return e;
}

void tr__rref_release(tr__rref_table *t, tr__rref_entry *e)
{
    e->handles--;
    consider(t, e);
}

bool tr__rref_hand_over(tr__rref_table *t, tr__rref_entry *e, int to, tr__rref_token *token)
{
    *token = (tr__rref_token){.owner = e->owner, .id = e->id, .fork = new_number(t)};
    if (t->neighbours[to].gone) return true; /* nobody will take it in */
    return add_fork(e->owner == t->rank ? &e->forks : &e->pins, (fork_record){token->fork, to, true});
}

/* What covered a hand-over is over: at the owner one that it counted, at a user a pin. */
static void uncover(tr__rref_table *t, tr__rref_number id, tr__rref_number fork)
{
    tr__rref_entry *e = tr__rref_find(t, id);
    if (e && remove_fork(e->owner == t->rank ? &e->forks : &e->pins, fork)) consider(t, e);
}

void tr__rref_undo(tr__rref_table *t, const tr__rref_token *token)
{
    uncover(t, token->id, token->fork);
}

void tr__rref_set_value(tr__rref_entry *e, void *value)
{
    e->value = value;
}

void *tr__rref_value(const tr__rref_entry *e)
{
    return e->value;
}

bool tr__rref_lost(const tr__rref_entry *e)
{
    return e->lost;
}

int tr__rref_entry_owner(const tr__rref_entry *e)
{
    return e->owner;
}

tr__rref_number tr__rref_entry_id(const tr__rref_entry *e)
{
    return e->id;
}

/* ---- What others say --------------------------------------------------------------------------------------------- */

/* At the owner: the request to make it will not come any more. Who waits for the value has a handle, or will get one. */
static void never_made(tr__rref_table *t, tr__rref_entry *e)
{
    e->asked = e->made = e->lost = true;
    if (e->value && (e->handles || e->forks.count)) t->events.lost(t->events.user, e->value);
    consider(t, e);
}

/* At the owner. */
static void hear_add(tr__rref_table *t, int from, const tr__refer *m)
{
    tr__rref_entry *e = tr__rref_find(t, m->id), nothing = {.id = m->id};
    if (!e) e = expect(t, m->id);
    bool counted = e && e->owner == t->rank && add_fork(&e->forks, (fork_record){m->fork, from, true});
    post(t, from, counted ? TR__REFER_ADDED : TR__REFER_LOST, e ? e : &nothing, m->fork);
}

/* A worker that asked for a value here, or was about to, has no use for it. */
static void hear_drop(tr__rref_table *t, int from, const tr__refer *m)
{
    seen_set *values = &t->neighbours[from].values;
    tr__rref_entry *e = tr__rref_find(t, m->id);
    bool comes = m->id.maker == from && !has_seen(values, lower_part(m->id));
    if (comes) (void)see(values, lower_part(m->id)); /* without memory it stays awaited */
    if (comes && e && e->owner == t->rank)
        never_made(t, e);
    else
        uncover(t, m->id, m->fork);
}

/* At a user. */
static void hear_answer(tr__rref_table *t, const tr__refer *m)
{
    tr__rref_entry *e = tr__rref_find(t, m->id);
    int at = e ? find_fork(&e->forks, m->fork) : -1;
    if (at < 0 || e->owner == t->rank) return;
    fork_record *f = &e->forks.at[at];
    if (m->kind == TR__REFER_LOST) e->lost = true;
    if (!f->counted) post(t, f->worker, TR__REFER_RECEIVED, e, m->fork);
    f->counted = true;
    consider(t, e);
}

void tr__rref_message(tr__rref_table *t, int from, const tr__refer *m)
{
    if (from < 0 || from >= t->world || t->neighbours[from].gone) return;
    switch (m->kind) {
    case TR__REFER_ADD: hear_add(t, from, m); break;
    case TR__REFER_DROP: hear_drop(t, from, m); break;
    case TR__REFER_RECEIVED: uncover(t, m->id, m->fork); break;
    case TR__REFER_ADDED:
    case TR__REFER_LOST: hear_answer(t, m); break;
    default: break; /* of a later version: nothing that we would know */
    }
}

static void forget(tr__rref_table *t, tr__rref_entry *e, int worker)
{
    bool ours = e->owner == t->rank;
    remove_forks_of(ours ? &e->forks : &e->pins, worker);
    if (!ours) e->lost |= e->owner == worker;
    if (ours && e->id.maker == worker && !e->asked)
        never_made(t, e);
    else
        consider(t, e);
}

void tr__rref_gone(tr__rref_table *t, int worker)
{
    if (t->neighbours[worker].gone) return;
    t->neighbours[worker].gone = true;
    for (int i = 0; i < BUCKETS; i++)
        TR__FOR_EACH(e, t->buckets[i]) forget(t, e, worker);
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

tr__rref_table *tr__rref_table_new(int rank, int world, const tr__rref_events *events)
{
    tr__rref_table *t = calloc(1, sizeof *t);
    if (t) t->neighbours = calloc((size_t)world, sizeof *t->neighbours);
    if (!t || !t->neighbours) {
        free(t);
        return NULL;
    }
    t->rank = rank;
    t->world = world;
    t->events = *events;
    t->numbers = 1;
    return t;
}

void tr__rref_table_free(tr__rref_table *t)
{
    if (!t) return;
    for (int i = 0; i < BUCKETS; i++)
        TR__FOR_EACH(e, t->buckets[i]) free_entry(t, e);
    for (int i = 0; i < t->world; i++) free(t->neighbours[i].values.above);
    free(t->neighbours);
    free(t);
}

int tr__rref_held(const tr__rref_table *t, tr__rref_number *ids, int most)
{
    int count = 0;
    for (int i = 0; i < BUCKETS; i++)
        for (const tr__rref_entry *e = t->buckets[i]; e; e = e->next) {
            if (e->owner != t->rank || !e->forks.count) continue;
            if (count < most) ids[count] = e->id;
            count++;
        }
    return count;
}

int tr__rref_count(const tr__rref_table *t)
{
    int count = 0;
    for (int i = 0; i < BUCKETS; i++)
        for (const tr__rref_entry *e = t->buckets[i]; e; e = e->next) count++;
    return count;
}
