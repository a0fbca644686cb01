/*
 * References, as bookkeeping alone: who refers to what, and when a value may go. No input or output, no clock, no lock:
 * the model test (tests/unit/test_rref.c) runs it on a network that reorders messages.
 *
 * A value lives on its owner. Every hand-over of a reference is a fork with a number of its own. The owner counts the forks
 * it knows of; a user that hands on to another user keeps its own fork until the owner has counted the new one:
 *
 *     owner -> user     the owner counts the fork before it sends it
 *     user A -> user B  A pins itself; B tells the owner ADD and hears ADDED; B tells A RECEIVED; A unpins
 *     user A -> owner   A pins itself; the owner tells A RECEIVED
 *     user drops        when no handle is left, it is not pinned and its forks are counted: DROP for each
 *     user asks a worker for a value, but the request is not sent: DROP, as the owner counts what it is asked for
 *
 * So a fork that is counted, or a pin on one that is, covers every reference on its way, and the value stays. A link neither loses
 * nor repeats messages; they may be dealt with in another order, as several threads do so.
 *
 * A worker that is gone takes its forks along. A fork that it had handed on and that the owner has not counted finds no value
 * any more, if nobody else held it: the owner answers LOST.
 */
#ifndef TR_RPC_RREF_STATE_H
#define TR_RPC_RREF_STATE_H

#include <trireme/base.h>

typedef struct tr__rref_number {
    int32_t maker; /* a worker */
    uint32_t reserved;
    uint64_t number;
} tr__rref_number;

/* A reference on its way. */
typedef struct tr__rref_token {
    int32_t owner, reserved;
    tr__rref_number id, fork; /* of the value, and of this hand-over */
} tr__rref_token;
_Static_assert(sizeof(tr__rref_token) == 40, "no padding on the wire");

typedef enum tr__refer_kind {
    TR__REFER_ADD = 1,  /* user to owner: count my fork */
    TR__REFER_ADDED,    /* the answer */
    TR__REFER_LOST,     /* or this one */
    TR__REFER_RECEIVED, /* to whom a fork is from: it is counted */
    TR__REFER_DROP,     /* user to owner: my fork is no more */
} tr__refer_kind;

typedef struct tr__refer {
    uint32_t kind, reserved;
    tr__rref_number id, fork;
} tr__refer;
_Static_assert(sizeof(tr__refer) == 40, "no padding on the wire");

typedef struct tr__rref_events {
    void *user;
    void (*send)(void *user, int to, const tr__refer *message);
    void (*freed)(void *user, void *value); /* a value of ours that nobody refers to; as given to tr__rref_set_value() */
    void (*lost)(void *user, void *value);  /* one that will never be made, as its request is lost; it stays */
} tr__rref_events;

typedef struct tr__rref_table tr__rref_table;
typedef struct tr__rref_entry tr__rref_entry; /* what this worker knows of a value; there as long as there are handles */

tr__rref_table *tr__rref_table_new(int rank, int world, const tr__rref_events *events); /* NULL without memory */
void tr__rref_table_free(tr__rref_table *t); /* frees the values, too */

/* These give a handle, to be given back with tr__rref_release(); NULL without memory. */
tr__rref_entry *tr__rref_own(tr__rref_table *t); /* a new value of ours */
/* A value that another worker is about to make for us: the token goes with the request. */
tr__rref_entry *tr__rref_remote(tr__rref_table *t, int owner, tr__rref_token *token);
/* The owner has (or has not, and will not) taken that request in. */
void tr__rref_remote_done(tr__rref_table *t, tr__rref_entry *entry, bool made);
/* At the owner: the request is here. NULL also when it has come before, or the value is not one to be made. */
tr__rref_entry *tr__rref_made(tr__rref_table *t, const tr__rref_token *token);
/* A reference that came from a worker. */
tr__rref_entry *tr__rref_take_in(tr__rref_table *t, int from, const tr__rref_token *token);
void tr__rref_release(tr__rref_table *t, tr__rref_entry *entry);

/* Hands a reference over, and takes that back, when the message has not been sent. */
bool tr__rref_hand_over(tr__rref_table *t, tr__rref_entry *entry, int to, tr__rref_token *token);
void tr__rref_undo(tr__rref_table *t, const tr__rref_token *token);

/* At the owner: a value that somebody asks for, whether or not the request that makes it has come. NULL: it is gone. */
tr__rref_entry *tr__rref_await(tr__rref_table *t, tr__rref_number id);
/* What is known of a value, or NULL. Finding gives no handle. */
tr__rref_entry *tr__rref_find(tr__rref_table *t, tr__rref_number id);
void tr__rref_set_value(tr__rref_entry *entry, void *value);
void *tr__rref_value(const tr__rref_entry *entry);
bool tr__rref_lost(const tr__rref_entry *entry);
int tr__rref_entry_owner(const tr__rref_entry *entry);
tr__rref_number tr__rref_entry_id(const tr__rref_entry *entry);

void tr__rref_message(tr__rref_table *t, int from, const tr__refer *message);
void tr__rref_gone(tr__rref_table *t, int worker);

/* How many values of ours others refer to, with up to `most` of their ids; and of how many values anything is known. */
int tr__rref_held(const tr__rref_table *t, tr__rref_number *ids, int most);
int tr__rref_count(const tr__rref_table *t);

#endif
