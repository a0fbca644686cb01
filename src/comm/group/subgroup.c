/*
 * Groups within a group. One all_gather on the parent tells every rank what all the others want, so a rank that calls
 * something else is found as with any collective. With the native backend it also tells where each has put its control block for
 * the new group, which uses the parent's endpoints, and that is all. With others the members meet in the parent's store, below a
 * random word that rank 0 has drawn, so that no two sub-groups can be mistaken for each other.
 */
#include "base/hash.h"
#include "comm/group/group.h"
#include "comm/join/rendezvous.h"
#include "comm/transport/shm.h"
#include "net/store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank calls. A rank whose arguments are bad, or who has no memory, says so, instead of staying away. */
typedef enum call_kind { BAD_CALL, SPLIT_CALL, LIST_CALL, FAILED_CALL } call_kind;
typedef struct choice {
    int32_t kind, color;
    int64_t key;         /* of a list, color and key are its length and a hash */
    tr__shm_place block; /* the rank's control block; where the members meet in a store, rank 0's random word is its .segment */
} choice;

_Static_assert(sizeof(choice) == TR__SHM_TINY, "it travels in the cache line of the call");

typedef struct making {
    tr_group *parent;
    tr_group *made;
    char name[TR__GROUP_NAME];
    choice mine, *all;     /* all: [world]; then */
    tr__shm_place *blocks; /* [world]: the ranks' control blocks */
    tr__seat seat;
    void *part;         /* of the backend's, for the sub-group; NULL: none */
    const int *list;    /* of LIST_CALL: [list_count], ranks of the parent */
    int list_count;
    const tr__backend *backend; /* of the sub-group; NULL: the parent's */
    int *members;       /* [world]: the sub-group's ranks, as ranks of the parent */
    int member_count;
} making;

static const char *call_text(int kind)
{
    return kind == SPLIT_CALL ? "tr_group_split()" : kind == LIST_CALL ? "tr_group_new()" : "a call with bad arguments";
}

/* ---- What everyone wants ----------------------------------------------------------------------------------------- */

static tr_status draw_word(uint64_t *word)
{
    char text[17];
    TR__TRY(tr__random_text(text, sizeof text));
    *word = strtoull(text, NULL, 16);
    return TR_OK;
}

/* Alike on all ranks, as all see the same. */
static tr_status check_all(const making *m)
{
    const char *group = m->parent->name;
    for (int rank = 0; rank < m->parent->member.world_size; rank++) {
        const choice *c = &m->all[rank], *first = &m->all[0];
        if (c->kind == FAILED_CALL)
            return tr__fail(TR_PEER, "group '%s': rank %d could not make its part of a group; its own error says why", group, rank);
        if (c->kind != first->kind)
            return tr__fail(TR_MISMATCH, "group '%s': the ranks made different calls: rank 0 %s, rank %d %s", group,
                call_text(first->kind), rank, call_text(c->kind));
        if (c->kind == LIST_CALL && (c->color != first->color || c->key != first->key))
            return tr__fail(TR_MISMATCH, "group '%s': tr_group_new() was given different ranks at rank 0 and at rank %d",
                group, rank);
    }
    return TR_OK;
}

/* ---- Who is in it ------------------------------------------------------------------------------------------------ */

/* The ranks of our color, by key and then by their rank. */
static void find_members(making *m)
{
    for (int rank = 0; rank < m->parent->member.world_size; rank++) {
        if (m->all[rank].color != m->mine.color) continue;
        int at = m->member_count++;
        for (; at > 0 && m->all[m->members[at - 1]].key > m->all[rank].key; at--) m->members[at] = m->members[at - 1];
        m->members[at] = rank;
    }
}

static int index_of(const int *ranks, int count, int rank)
{
    for (int i = 0; i < count; i++)
        if (ranks[i] == rank) return i;
    return -1;
}

static tr_status check_list(const making *m)
{
    const char *group = m->parent->name;
    int world = m->parent->member.world_size;
    if (!m->list || m->list_count < 1 || m->list_count > world)
        return tr__fail(TR_INVALID, "group '%s': tr_group_new() takes 1 … %d ranks, not %d", group, world,
            m->list ? m->list_count : 0);
    for (int i = 0; i < m->list_count; i++) {
        if (m->list[i] < 0 || m->list[i] >= world)
            return tr__fail(TR_INVALID, "group '%s': tr_group_new() was given rank %d, which is not in 0 … %d", group,
                m->list[i], world - 1);
        if (index_of(m->list, i, m->list[i]) >= 0)
            return tr__fail(TR_INVALID, "group '%s': tr_group_new() was given rank %d twice", group, m->list[i]);
    }
    return TR_OK;
}

/* ---- At the parent's endpoints ----------------------------------------------------------------------------------- */

/* The number by which the endpoints of all members know the group: mixes the parent's, which of its sub-groups it is, and the
 * color. */
static uint64_t number_of(const making *m)
{
    uint64_t number = tr__native_number(m->seat.parent);
    const uint64_t parts[] = {(uint64_t)m->parent->subgroups + 1, m->mine.kind == SPLIT_CALL ? (uint64_t)m->mine.color : 0};
    for (int i = 0; i < 2; i++) { /* splitmix64 */
        number = (number ^ parts[i]) + 0x9e3779b97f4a7c15u;
        number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
        number = (number ^ number >> 27) * 0x94d049bb133111ebu;
        number ^= number >> 31;
    }
    return number;
}

/* Before the others can know of the group, so that nothing they say to it comes too early. */
static tr_status prepare(making *m)
{
    int rank = m->parent->member.rank;
    bool member = m->list ? index_of(m->list, m->list_count, rank) >= 0 : m->mine.color >= 0;
    if (!m->seat.parent) return rank == 0 ? draw_word(&m->mine.block.segment) : TR_OK;
    return member ? tr__native_prepare(&m->seat, number_of(m), &m->mine.block) : TR_OK;
}

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

/* "world.2" or "world.2-5": the parent, which of its sub-groups, and the color. */
static void name_it(making *m)
{
    char color[24] = "";
    pthread_mutex_lock(&m->parent->lock);
    int number = ++m->parent->subgroups;
    pthread_mutex_unlock(&m->parent->lock);
    if (m->mine.kind == SPLIT_CALL) snprintf(color, sizeof color, "-%d", m->mine.color);
    snprintf(m->name, sizeof m->name, "%.28s.%d%s", m->parent->name, number, color);
}

static tr_status meet(making *m)
{
    TR_SCOPE;
    tr_group *made = m->made, *parent = m->parent;
    tr__member member = parent->member;
    member.rank = index_of(m->members, m->member_count, member.rank);
    member.world_size = m->member_count;
    member.recorder = NULL;
    member.store = NULL;
    if (m->backend) {
        member.backend = m->backend;
        member.encrypt = false; /* a twin's bare connections are encrypted by who uses them */
    }
    made->check = parent->check && !m->backend;
    TR__TRY(tr__group_init(made, m->name, &member, parent->job, parent->flight_dir));
    member = made->member;
    if (m->seat.shm || m->seat.tcp) {
        member.seat = &m->seat;
    } else if (member.world_size > 1) {
        char prefix[64];
        int color = m->mine.kind == SPLIT_CALL ? m->mine.color : 0;
        snprintf(prefix, sizeof prefix, "sub/%016" PRIx64 "/%d", m->all[0].block.segment, color);
        member.store = tr_store_prefix(parent->member.store, prefix);
        TR__TRY(tr_status_of(member.store));
    }
    member.part = &m->part;
    return tr__group_enter(made, &member, parent->member.recorder);
}

/* Has the parent's backend divide what it has among the sub-groups of several ranks. All ranks of the parent come here. */
static tr_status divide(making *m, bool member)
{
    const tr_group *parent = m->parent;
    int color = !member || m->member_count == 1 ? -1 : m->list ? 0 : m->mine.color;
    if (m->backend || !parent->member.backend->split) return TR_OK;
    int key = index_of(m->members, m->member_count, parent->member.rank);
    return parent->member.backend->split(parent->state, color, key > 0 ? key : 0, parent->member.timeout_ms, &m->part);
}

/* The ranks' part in the call: alike on all of them, as all see the same. *member: this rank is one. */
static tr_status agree(making *m, bool *member)
{
    tr_status status = m->mine.kind == LIST_CALL ? check_list(m) : TR_OK;
    call_kind instead = BAD_CALL;
    if (status == TR_OK) {
        status = prepare(m);
        instead = FAILED_CALL;
    }
    tr__error *bad = status == TR_OK ? NULL : tr__error_take();
    if (bad) m->mine = (choice){.kind = instead};
    status = tr_all_gather(m->parent, &m->mine, m->all, sizeof m->mine / sizeof m->mine.key, .dtype = TR_I64);
    for (int rank = 0; rank < m->parent->member.world_size; rank++) m->blocks[rank] = m->all[rank].block;
    if (status != TR_OK) tr__native_abandon(&m->seat); /* others may have heard of all */
    if (status == TR_OK) status = bad ? tr__fail_stored(bad) : check_all(m);
    tr__error_unref(bad);
    TR__TRY(status);

    name_it(m);
    if (m->list) {
        memcpy(m->members, m->list, (size_t)m->list_count * sizeof *m->list);
        m->member_count = m->list_count;
    } else if (m->mine.color >= 0) {
        find_members(m);
    }
    *member = index_of(m->members, m->member_count, m->parent->member.rank) >= 0;
    return TR_OK;
}

/* Every rank of the parent comes here; none of them may stay away once the others can be waiting. */
static tr_status make(making *m, bool *member)
{
    size_t world = (size_t)m->parent->member.world_size;
    bool native = m->parent->member.backend == &tr__native_backend && (!m->backend || m->backend == &tr__native_backend);
    m->seat.parent = native && world > 1 ? m->parent->state : NULL; /* else its endpoints cannot be used */
    m->all = calloc(1, world * (sizeof *m->all + sizeof *m->blocks));
    m->members = calloc(world, sizeof *m->members);
    if (!m->all || !m->members)
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for a sub-group", m->parent->name);
    m->seat.blocks = m->blocks = (tr__shm_place *)(m->all + world);
    m->seat.ranks = m->members;
    tr_status status = agree(m, member);
    bool alone = status != TR_OK || !*member || m->member_count == 1; /* nobody else knows of it */
    if (alone) tr__native_drop(&m->seat);
    if (status == TR_OK) status = divide(m, *member);
    if (status == TR_OK && *member) status = meet(m);
    if (m->part) m->parent->member.backend->drop_part(m->parent->state, m->part); /* nobody took it */
    tr__native_abandon(&m->seat); /* what was not taken over */
    return status;
}

/* NULL: no member. The object exists before anything is asked of the others. */
static tr_group *make_group(making *m)
{
    if (m->parent && tr__error_of(m->parent)) return tr__object_pass(&tr__group_type, m->parent);
    if (!m->parent) return tr__object_fail(&tr__group_type, TR_INVALID, "a group is needed, not NULL");
    m->made = tr__object_new(&tr__group_type);
    bool member = true;
    if (!tr__error_of(m->made) && make(m, &member) != TR_OK) tr__object_break(m->made);
    free(m->all);
    free(m->members);
    return member ? m->made : NULL;
}

/* ---- Public functions -------------------------------------------------------------------------------------------- */

tr_group *tr_group_split_at(tr_group *group, int color, int key, const char *file, int line)
{
    TR__CALLED_AT(file, line);
    making m = {.parent = group, .mine = {.kind = SPLIT_CALL, .color = color, .key = key}};
    return make_group(&m);
}

tr_group *tr_group_new_at(tr_group *group, const int *ranks, int count, const char *file, int line)
{
    TR__CALLED_AT(file, line);
    making m = {.parent = group, .list = ranks, .list_count = count};
    m.mine = (choice){.kind = LIST_CALL, .color = count};
    if (ranks && count > 0) m.mine.key = (int64_t)(tr__hash(TR__HASH_BEGIN, ranks, (size_t)count * sizeof *ranks) >> 1);
    return make_group(&m);
}

tr_group *tr__group_twin(tr_group *group)
{
    making m = {.parent = group, .mine = {.kind = SPLIT_CALL}, .backend = &tr__native_backend};
    return make_group(&m);
}
