/*
 * What the backends have in common whose library does not call back, but is asked again and again whether something is
 * done (MPI, NCCL): joining and leaving, how a group breaks, how long to rest between two looks, and sends and receives,
 * which move beside the collectives.
 *
 * Such a backend's state begins with a tr__polled, and its tr__backend consists of the functions below and its tr__polled_type.
 */
#ifndef TR_COMM_BACKEND_POLLING_BACKEND_H
#define TR_COMM_BACKEND_POLLING_BACKEND_H

#include "comm/backend/backend.h"
#include "comm/join/rendezvous.h"
#include "comm/record/ranks_text.h"
#include "comm/work/work.h"

#include <pthread.h>

typedef struct tr__polled tr__polled;

/* A wait for ranks of which the library does not say which are late: a rank that waits for long says so in the store, and
 * shortly before its timeout looks who has not. */
typedef struct tr__late {
    uint64_t sequence;
    int64_t begin, note, look, deadline; /* by tr__now_ns() */
    bool noted, looked, expired; /* expired: its time was up at the latest rest */
    bool silent; /* the store did not answer, as the rank that serves it may stand still */
    char names[TR__RANKS_TEXT]; /* empty: nobody known */
} tr__late;

/* A send or receive that is under way. Backends put their own fields behind it. */
typedef struct tr__transfer {
    struct tr__transfer *next, **at; /* in the group's list; at: what points here */
    tr_work *work;                   /* one reference */
    bool helped, reported, expired;  /* by the group's thread; to the log function; at the latest look at the deadline */
    int64_t began, deadline;         /* by tr__now_ns() */
} tr__transfer;

/* What a backend brings. */
typedef struct tr__polled_type {
    size_t state_bytes, transfer_bytes;
    /* Meets the other ranks, if there are any. */
    tr_status (*join)(tr__polled *p);
    /* Runs a collective of a group of several ranks to its end, looking with tr__polled_rest(). */
    tr_status (*run)(tr__polled *p, const tr_collective *c);
    /* The next three are called by one thread at a time. Starts a send or receive. */
    tr_status (*begin)(tr__polled *p, tr__transfer *t);
    /* Lets all that are under way go on, and ends those that are done. A failure is that of the group. */
    tr_status (*advance)(tr__polled *p);
    /* Gives back what begin() took for a transfer. One that is still under way is taken back as far as that goes. */
    void (*drop)(tr__polled *p, tr__transfer *t);
    /* Gives back what join() took, whatever became of it. Nothing is under way, unless the group broke. */
    void (*close)(tr__polled *p);
} tr__polled_type;

struct tr__polled {
    const tr__polled_type *type;
    tr__member member;
    tr__rendezvous meeting;
    tr__late late;               /* of what is waited for */
    _Atomic(tr__error *) broken; /* the first failure; NULL: none. Written once, by any thread */

    pthread_mutex_t lock;        /* for what follows */
    pthread_cond_t wanted;       /* the thread has work, or is to end */
    tr__transfer *first, **last; /* last: where the next one goes */
    int helped;                  /* of them: for whom nobody but the thread cares */
    int64_t moved, look;         /* when one last came or went; when to look at the deadlines */
    bool has_thread, stopping;
    pthread_t thread;
};

/* ---- For a backend ----------------------------------------------------------------------------------------------- */

/* Registers the rank, publishes its endpoint record, whose address names this backend, and waits for the others'.
 * *records: of all ranks, to be freed. */
tr_status tr__polled_meet(tr__polled *p, const char *address, tr__endpoint_record **records);
/* A wait begins, in the group's collective of this number; 0: in none. */
void tr__polled_begin_to_wait(tr__polled *p, uint64_t sequence, int timeout_ms);
/* Between two looks, in a wait that goes on since `began`: gives up the processor for longer and longer. Fails
 * when the group broke or the time is over. */
tr_status tr__polled_rest(tr__polled *p, int64_t began);
/* A transfer is over; with the thread's latest failure when status is not TR_OK, which then breaks the group, unless it is
 * TR_UNSUPPORTED. t is gone. */
void tr__polled_end(tr__polled *p, tr__transfer *t, tr_status status);

/* ---- The functions of tr__backend -------------------------------------------------------------------------------- */

tr_status tr__polled_join(const tr__member *member, void **state);
tr_status tr__polled_run(void *state, const tr_collective *c, uint64_t sequence);
void tr__polled_start(void *state, tr_work *work, bool driven);
void tr__polled_drive(void *state, const tr_work *work); /* NULL: until all are done */
bool tr__polled_pending(void *state);
void tr__polled_give_up(void *state);
void tr__polled_leave(void *state);
#define TR__POLLED_FUNCTIONS                                                                                     \
    .join = tr__polled_join, .run = tr__polled_run, .start = tr__polled_start, .drive = tr__polled_drive,        \
    .pending = tr__polled_pending, .give_up = tr__polled_give_up, .leave = tr__polled_leave

#endif
