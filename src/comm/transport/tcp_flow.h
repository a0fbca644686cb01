/*
 * A step that is under way: its bytes on their way out and in. One thread moves all of them, a piece at a time, as far
 * as the sockets and the hazards allow:
 *
 *   what an earlier step still has to receive, fold or copy cannot be read yet;
 *   what an earlier step still has to read or write cannot be written yet (nor what this step still has to send).
 *
 * Transfers go through their memory from the beginning to the end, so a part that is there can go on while the rest is
 * still coming in: a ring is a pipeline without further ado.
 */
#ifndef TR_COMM_TRANSPORT_TCP_FLOW_H
#define TR_COMM_TRANSPORT_TCP_FLOW_H

#include "comm/transport/tcp.h"

enum {
    TR__TCP_WINDOW = 64,        /* steps under way at once */
    TR__TCP_STAGE = 512 << 10,  /* folded at once: stays in a core's second cache; half of it cost a tenth of the speed */
    TR__TCP_PIECE = 64 << 10,   /* less is not worth a system call, unless it is the rest */
    TR__TCP_GULP = 1 << 20,       /* moved at once in one direction, before the other gets its turn */
};

typedef struct tr__tcp_transfer {
    bool open;
    size_t framed;         /* bytes of the frame that are through */
    size_t done;           /* bytes of the memory that are: sent, or received and folded */
    tr__memory memory;
} tr__tcp_transfer;

struct tr__tcp_slot {
    tr__step step;
    tr__tcp_transfer out, in;
    bool local;               /* a local action is to be done */
    tr__memory own;       /* folded with what comes in; of local actions, what they read */
    tr__memory others;    /* FOLD_LOCAL: the parts of all other ranks */
    tr__tcp_frame frame;      /* that has come in */
    size_t carried;           /* bytes of an element that has come in part, */
    char carry[8];            /* which are here */
};

/* A collective that is running. */
typedef struct tr__tcp_call {
    tr__tcp *t;
    const tr_collective *c;
    const tr__tcp_subset *subset; /* NULL: the whole group */
    tr__schedule schedule;
    int64_t steps;                /* of the schedule */
    int64_t first, loaded;        /* steps [first, loaded) are under way */
    int window;                   /* at most so many */
    size_t element;
    char *memory[TR__BUFFER_COUNT];
    tr__reduce_kernel fold, fold_all; /* of two, and of all ranks at once */
    uint64_t turn;
    tr__tcp_patience patience;
    /* Transfers that their sockets did not let go on in this turn. */
    int blocked;
    int ranks[2 * TR__TCP_WINDOW];
} tr__tcp_call;

static inline tr__tcp_slot *tr__tcp_slot_at(const tr__tcp_call *call, int64_t step)
{
    return &call->t->slots[step % TR__TCP_WINDOW];
}

/* Each does what can be done of a step now; *moved is set when that is anything. */
tr_status tr__tcp_push(tr__tcp_call *call, int64_t step, bool *moved);
tr_status tr__tcp_pull(tr__tcp_call *call, int64_t step, bool *moved);
void tr__tcp_act(tr__tcp_call *call, int64_t step, bool *moved);

#endif
