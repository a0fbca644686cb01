/*
 * The TCP transport: ranks on different hosts. What its files share; docs/communication.md tells the whole story.
 *
 *   tcp.c           making and ending a group's transport; errors
 *   tcp_join.c      connecting the ranks of a first group
 *   tcp_control.c   what the endpoint's monitor hears for the group: failures, goodbyes, deaths, calls, connections
 *   tcp_wait.c      waiting for peers: timeouts, reports
 *   tcp_flow.c      moving the bytes of a step: hazards, folding while more comes in
 *   tcp_run.c       running a collective: its schedule, and which steps are under way
 *   ../p2p/         sends and receives, beside the collectives
 *
 * A group is attached to its process's endpoint (net/network.h). Between two ranks it has a connection for the transfers of the
 * schedules and nothing else, and one for sends and receives, each made when something is first to go there. What the ranks tell
 * each other beside goes over the endpoints' control connection.
 */
#ifndef TR_COMM_TRANSPORT_TCP_H
#define TR_COMM_TRANSPORT_TCP_H

#include "base/object.h"
#include "comm/algo/choice.h"
#include "comm/algo/reduce.h"
#include "comm/collective.h"
#include "comm/join/rendezvous.h"
#include "comm/memory.h"
#include "comm/transport/failure.h"
#include "comm/transport/raw_events.h"
#include "net/network.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- On the wire -------------------------------------------------------------------------------------------------- */

enum { TR__TCP_PAST = 16 }; /* calls of our own that we remember */

enum tr__tcp_type { TR__TCP_DATA = 1, TR__TCP_CALL, TR__TCP_BROKEN, TR__TCP_GOODBYE };

/* Before every transfer and control message: the sender's call, which must be the receiver's, too. */
typedef struct tr__tcp_frame {
    uint32_t magic;   /* as tr__frame_head, up to the group */
    uint8_t version, type;
    uint16_t reserved;
    uint64_t bytes;   /* that follow */
    uint64_t group;   /* of a control message */
    int32_t origin;   /* the same */
    uint32_t number;
    uint8_t algorithm, kind, dtype, op;
    int32_t status;   /* BROKEN */
    uint64_t sequence, layout;
    int64_t count;
    int32_t root, peer, tag, line;
    int32_t waits_for; /* CALL: the rank that the sender waits for; -1: no longer for anyone */
    int32_t reserved2;
    char file[TR__PLACE_TEXT];
} tr__tcp_frame;

_Static_assert(sizeof(tr__tcp_frame) == sizeof(tr__network_frame) && offsetof(tr__tcp_frame, bytes) == offsetof(tr__frame_head, bytes) &&
    offsetof(tr__tcp_frame, group) == offsetof(tr__frame_head, group), "a frame");

/* ---- What a rank keeps ------------------------------------------------------------------------------------------- */

/* Whom a peer waits for, as it has told: an edge of the wait-for graph. It stays when the peer is stopped, true or not. */
typedef struct tr__tcp_wait_edge {
    int on;            /* a rank; -1: nobody */
    uint64_t sequence; /* of the collective that waits; 0: it has no number */
    int64_t heard;     /* when, by tr__now_ns() */
} tr__tcp_wait_edge;

typedef struct tr__tcp_peer {
    int rank;
    long pid;
    bool visible; /* pid is a number of our process namespace */
    char host[65];
    tr__network_connection *_Atomic connections[TR__CHANNELS]; /* ours while the group lives; NULL: not yet */
    atomic_bool asked[TR__CHANNELS]; /* for them */
    atomic_bool left;           /* has said goodbye */
    /* Under the lock: */
    bool called;                /* `call` is known */
    tr__tcp_wait_edge waits[2]; /* of its collective, and of its sends and receives */
    tr__signature call;         /* the latest that we heard of; */
    tr__signature numbered;     /* and the latest of those with a number; 0 as its number: none */
    /* For the thread that runs a collective: the turn in which an earlier transfer held the connection (tcp_run.c). */
    uint64_t sent_turn, received_turn;
} tr__tcp_peer;

/* How long a call has made no progress. */
typedef struct tr__tcp_patience {
    int64_t since; /* 0: it has made some */
    int announced; /* how often the peers have been told what we wait for */
    bool reported;
    bool expired;  /* its time was up, and it has looked once more: what has come while this thread did not run counts */
} tr__tcp_patience;

/* A peer's call that differs from ours. */
typedef struct tr__tcp_mismatch {
    bool there;
    int rank;
    tr__signature ours, theirs;
} tr__tcp_mismatch;

typedef struct tr__tcp_slot tr__tcp_slot; /* a step that is under way: tcp_flow.h */

typedef struct tr__tcp {
    char group[64];
    int rank, world_size;
    int report_ms; /* of waiting, after which it is reported */
    tr__recorder *recorder;
    tr__tcp_peer *peers; /* [world_size] */
    tr__network_endpoint *network;     /* of this process */
    tr__network_group *place; /* of the group at it */
    tr__choice_table choices;
    bool crowded; /* more ranks on this machine than cores: spinning only keeps the others from working */
    int kick;     /* eventfd: the group is broken, or a connection has come; under the lock. -1: nobody has slept yet */
    int wake;     /* the same for the thread that carries sends and receives, and that there are new ones */
    tr__tcp_mismatch mismatch; /* the monitor's: it breaks the group when nothing else is left to be read */
    const tr__raw_events *_Atomic raw; /* who hears that a peer has gone (comm/group/raw.h) */

    tr__failure *failure;    /* of the group */
    tr__failure_listener on_failure;
    pthread_mutex_t lock;    /* for what follows, and what peers are known to do */
    pthread_cond_t changed;  /* a peer has left, or the group is broken */
    /* Calls of our own; written by the thread that runs them, which may read them without the lock. */
    tr__signature last;      /* the latest */
    bool has_last, running;  /* there is one; it is under way */
    uint64_t ahead;          /* the latest number of those that peers told us they wait in */
    tr__signature past[TR__TCP_PAST]; /* those with a number, by their number: ranks that go on may differ later */

    /* For the thread that runs a collective. */
    tr__tcp_patience local_wait; /* of waits in shared memory */
    tr__tcp_slot *slots;
    struct pollfd *polled;
    char *stage;          /* what is folded on its way in */
    tr__memory scratch;
    const void **folded;  /* [world_size], for kernels */
    uint64_t turn;        /* counts on from call to call */
} tr__tcp;

/* ---- tcp.c ------------------------------------------------------------------------------------------------------- */

/* Makes a rank's side of a first group, with an endpoint of its own, whose address and cookie go into the endpoint record. */
tr_status tr__tcp_new(const tr__member *member, tr__failure *failure, tr__endpoint_record *record, tr__tcp **transport);
/* Connects with all ranks, whose records are given, and waits until all are there. */
tr_status tr__tcp_meet(tr__tcp *t, tr__rendezvous *meeting, tr__endpoint_record *records);
/* All are connected: takes them as members. */
void tr__tcp_know_members(tr__tcp *t);
/* Says goodbye to the ranks that know of us and frees all. */
void tr__tcp_close(tr__tcp *t);

/* A group within another one, before its ranks have agreed on it: makes a rank's side, which hears from now on what is for the
 * group of this number. */
tr_status tr__tcp_prepare(tr__tcp *parent, uint64_t id, tr__failure *failure, tr__tcp **made);
/* They have: its ranks as ranks of the parent. */
tr_status tr__tcp_begin(tr__tcp *t, const tr__tcp *parent, const int *ranks, const tr__member *member);
/* They may have, but this rank cannot come: from now on all ranks of the parent hear from it. */
void tr__tcp_enter_all(tr__tcp *t, const tr__tcp *parent);

/* The connection with a rank; NULL: there is none yet. Then it is made, unless the rank has left: *never. */
tr__wire *tr__tcp_wire(tr__tcp *t, int rank, tr__channel channel);
tr__wire *tr__tcp_need_wire(tr__tcp *t, int rank, tr__channel channel, bool *never);
/* Waits for it. */
tr_status tr__tcp_await_wire(tr__tcp *t, int rank, tr__channel channel, int timeout_ms, tr__wire **wire);
/* Makes t->kick or t->wake, unless it is there: few groups sleep, and most never do. */
tr_status tr__tcp_need_event(tr__tcp *t, int *event);
/* Wakes who waits for a connection, or for the failure. */
void tr__tcp_wake(tr__tcp *t);
/* The thread that carries sends and receives only: there are new ones. */
void tr__tcp_wake_reader(tr__tcp *t);

/* "rank 2 (pid 77 on host b)", in text. */
enum { TR__TCP_NAME = 128 };
char *tr__tcp_name(const tr__tcp_peer *peer, char text[TR__TCP_NAME]);

/* ---- tcp_join.c -------------------------------------------------------------------------------------------------- */

tr_status tr__tcp_connect(tr__tcp *t, tr__rendezvous *meeting, tr__endpoint_record *records);
/* All have joined, and some with another record than the one that this rank has read: reads all again. */
tr_status tr__tcp_renew(tr__tcp *t, tr__rendezvous *meeting, tr__endpoint_record *records);

/* ---- tcp_control.c ----------------------------------------------------------------------------------------------- */

/* A frame; with the call that it belongs to, when it does to one. */
tr__tcp_frame tr__tcp_frame_of(const tr__signature *call, enum tr__tcp_type type, size_t bytes);
/* Is it a frame of ours, within its bounds? Then `call` is what its sender calls. */
bool tr__tcp_read_frame(const tr__tcp_frame *frame, tr__signature *call);
/* Our own call that a peer's call is to be compared with: the one of the same number, or the latest. */
const tr__signature *tr__tcp_own_call(const tr__tcp *t, const tr__signature *theirs);
/* A peer is in this call, as a frame of its data says. */
void tr__tcp_heard(tr__tcp *t, tr__tcp_peer *peer, const tr__signature *call);
/* Sends a control message to all ranks that are known and there; never blocks. */
void tr__tcp_tell_all(tr__tcp *t, const tr__tcp_frame *frame, const char *text);
/* Before a failure of our own: lets the monitor read what the peers have sent by now, for a second at most. If one of them has
 * given up, its reason is the failure: we may have slept through it. */
tr_status tr__tcp_check_peers(tr__tcp *t);
/* A connection that `call` needs has ended or failed: finds out why, and fails. Waits for the monitor, a second at most. */
tr_status tr__tcp_lost(tr__tcp *t, tr__tcp_peer *peer, const tr__signature *call, int error);
/* What has come from a peer is damaged, and nothing behind it can be read. */
tr_status tr__tcp_damaged(tr__tcp *t, const tr__tcp_peer *peer);
extern const tr__network_calls tr__tcp_calls;

/* ---- tcp_wait.c -------------------------------------------------------------------------------------------------- */

/* The call has made progress. */
void tr__tcp_go_on(tr__tcp *t, tr__tcp_patience *patience);
/* Of waiting, after which the peers are told of it. Where ranks pass on what the others say, all would be at it when many wait. */
int tr__tcp_announce_ms(const tr__tcp *t);
/* Tells them; rank -1: it is over. */
void tr__tcp_announce(tr__tcp *t, const tr__signature *call, int rank);
/* The rank that keeps us waiting for this one, which may itself wait for another; its name, and what it was last heard of in. */
enum { TR__TCP_STATE = TR__CALL_TEXT + 64 };
int tr__tcp_describe(tr__tcp *t, int rank, char name[TR__TCP_NAME], char state[TR__TCP_STATE]);
/* Fails: `call` (NULL: joining) has waited for a rank, or for whom that rank waits for. */
tr_status tr__tcp_timed_out(tr__tcp *t, const tr__signature *call, int rank, int timeout_ms);
/* Sleeps until a connection is ready or the group is broken; `count` entries of t->polled are set, with the peers' ranks
 * in `ranks`. Fails after the timeout, when the caller has looked once more. */
tr_status tr__tcp_wait(tr__tcp *t, tr__tcp_patience *patience, int timeout_ms, const int *ranks, int count);
/* For a rank that has waited in shared memory since a time by tr__now_ns() until now for another of its host: tells the peers of
 * other hosts, which may wait for this one. At the timeout it fails if that rank itself waits for another. */
tr_status tr__tcp_local_wait(tr__tcp *t, int rank, int64_t since, int64_t now, int timeout_ms);

/* ---- tcp_run.c --------------------------------------------------------------------------------------------------- */

tr_status tr__tcp_run(tr__tcp *t, const tr_collective *collective, uint64_t sequence);

/* Some of the ranks, for a part of a collective. Its root and blocks go by the places here. */
typedef struct tr__tcp_subset {
    const int *ranks; /* [count] */
    int count, own;   /* own: our place */
    const int *host;  /* [world_size]: members on one host send each other nothing here */
} tr__tcp_subset;

/* A collective in parts: enter, any number of parts, exit. Messages and signatures show the whole; who finds a failure
 * breaks the group. Enter fails when it is broken already. */
tr_status tr__tcp_enter(tr__tcp *t, const tr_collective *collective, uint64_t sequence);
tr_status tr__tcp_run_part(tr__tcp *t, const tr_collective *part, const tr__tcp_subset *subset);
void tr__tcp_exit(tr__tcp *t);

#endif
