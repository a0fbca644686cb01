/*
 * Send and recv in shared memory, beside the collectives and not in their order. What shm_channel.c (streams of bytes
 * between two ranks), shm_p2p.c (messages and who they are for) and shm_p2p_run.c (who does the work) share.
 *
 * A rank that sends to another one for the first time makes a channel, and passes its descriptor over their socket.
 * Frames follow each other in it:
 *
 *     EAGER      a message of up to TR__SHM_EAGER bytes, whose bytes follow
 *     OFFER      a longer one, which waits at its sender; with the place of a shared buffer
 *     CLEAR      to the sender of an OFFER: the receiver has a buffer for it
 *     DATA       the bytes of an OFFER follow
 *     FIN        to the sender of an OFFER: the receiver has copied it out of the shared buffer
 *
 * A receiver always takes what comes, as what it has no receive for is either short (and is kept) or only an OFFER; so
 * ranks that send to each other get along, whatever the sizes and the order of the calls.
 */
#ifndef TR_COMM_TRANSPORT_SHM_P2P_H
#define TR_COMM_TRANSPORT_SHM_P2P_H

#include "comm/transport/shm.h"
#include "comm/work.h"

#include <sys/uio.h>

enum { TR__SHM_EAGER = 16 << 10, TR__SHM_STREAM = 256 << 10 };

/* ---- Channels ---------------------------------------------------------------------------------------------------- */

/* In shared memory: a ring of bytes from its owner to one peer. */
struct tr__shm_channel {
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t written; /* bytes since the beginning */
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t read;
    _Atomic uint32_t opened;                           /* by the peer */
    _Alignas(TR__CACHE_LINE) char data[TR__SHM_STREAM];
};

typedef struct tr__shm_frame {
    uint32_t type;
    int32_t dtype, tag, line;
    int64_t count;
    uint64_t id;         /* of the send at its rank */
    tr__shm_place place; /* OFFER: of a shared buffer; segment 0: none */
    char file[TR__PLACE_TEXT];
} tr__shm_frame;

/* Makes our channel to a peer and shows it. */
tr_status tr__shm_channel_open(tr__shm *t, tr__shm_peer *peer, tr__shm_channel **channel);
/* Moves as many bytes as there are, or as there is room for; returns how many. The parts follow each other; *seen is how
 * far the reader was known to be. */
size_t tr__shm_channel_put(tr__shm_channel *channel, uint64_t *seen, const struct iovec parts[2]);
size_t tr__shm_channel_get(tr__shm_channel *channel, void *to, size_t bytes);

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* A send or a receive that is under way: in one list of its peer's lane. */
typedef struct tr__shm_op {
    struct tr__shm_op *next;
    tr_work *work;          /* one reference */
    bool helped;            /* by the group's thread */
    bool reported;
    int64_t began, deadline; /* since when somebody sleeps for it; 0: nobody did yet */
    uint64_t number;        /* of the rank's sends and receives */
    uint64_t id;            /* of the send at its rank */
    tr__shm_frame frame;    /* on its way */
    size_t sent, payload;   /* of the frame and the bytes behind it; how many those are */
} tr__shm_op;

typedef struct tr__shm_ops {
    tr__shm_op *first, *last;
} tr__shm_ops;

typedef struct tr__shm_arrival { /* a message that nobody has asked for yet */
    struct tr__shm_arrival *next;
    bool complete;
    tr__shm_frame frame;
    char data[];
} tr__shm_arrival;

/* Between us and one peer. */
typedef struct tr__shm_lane {
    tr__shm_channel *outbound;           /* ours; NULL: not yet */
    uint64_t read_seen;                  /* what the peer had read of it when we looked last */
    tr__shm_ops out;                     /* have a frame to be written, in this order */
    tr__shm_ops offered;                 /* sends that wait for a CLEAR or FIN */
    tr__shm_ops cleared;                 /* receives that wait for DATA */
    tr__shm_ops posted;                  /* receives without a message */
    tr__shm_arrival *first, *last;       /* messages without a receive */
    /* What is being read. */
    tr__shm_frame frame;
    size_t got, left;                    /* of the frame; of the bytes behind it */
    char *to;
    tr__shm_op *receiver;                /* it is for this one, or */
    tr__shm_arrival *arrival;            /* for nobody yet */
} tr__shm_lane;

struct tr__shm_p2p {
    pthread_mutex_t lock;  /* for all of it */
    pthread_cond_t wanted; /* the thread has work, or is to end */
    tr__shm_lane *lanes;   /* [world_size] */
    bool *left;            /* [world_size]: room to note who has left the group */
    int pending, helped;   /* operations under way; of them, those that the thread cares for */
    uint64_t sends;
    int told;              /* the rank that other hosts have been told we wait for; -1: none */
    tr__signature told_in; /* and the call */
    bool has_thread, stopping;
    pthread_t thread;
};

/* Under the lock, all of them. Takes an operation up: its first frame, or its message if that is there. */
tr_status tr__shm_p2p_begin(tr__shm *t, tr__shm_op *op);
/* Moves what can be moved without waiting. */
tr_status tr__shm_p2p_advance(tr__shm *t, bool *moved);
/* Ends all operations with the group's failure; `elsewhere`: it came from no send or recv of ours, so each says what it
 * was that failed. */
void tr__shm_p2p_fail_all(tr__shm *t, bool elsewhere);
/* "recv (f32[4] from rank 1, tag 0 at a.c:7)" */
char *tr__shm_p2p_text(const tr__shm *t, const tr__shm_op *op, char text[TR__CALL_TEXT]);
/* Calls look on every operation under way until one gives a failure. */
tr_status tr__shm_p2p_each(tr__shm *t, tr_status (*look)(tr__shm *t, tr__shm_op *op, void *arg), void *arg);

#endif
