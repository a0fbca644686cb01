/*
 * Sends and receives: one engine for a group, beside its collectives and not in their order. It matches messages by peer and
 * tag, keeps their order, holds those that are unexpected, and watches over deadlines. Two drivers carry its frames.
 *
 *   p2p.c           messages: frames, matching, credit
 *   p2p_progress.c  who does the work: callers and threads; waiting, reports, failures; making and ending an engine
 *   p2p_drivers.c   a ring in shared memory for each direction to a rank of this host, a connection to each rank elsewhere
 *
 * A message goes in one of two ways:
 *
 *   eager        EAGER, with its bytes. The send is done; a receiver that has no receive for it keeps it.
 *   rendezvous   RTS announces it. When the receiver has a receive for it, CTS answers, and DATA follows with the bytes; or
 *                FIN, when the receiver has copied them out of shared memory.
 *
 * Credit: what goes eagerly is charged to its sender, each message with TR__P2P_ENVELOPE bytes beside its own, until it has
 * been received. Every frame says how much its sender has received from the peer so far; a CREDIT says only that, when it has
 * grown by TR__P2P_CREDIT. A message that does not fit the limit is announced instead ("held"), so its sender waits. As at
 * least an announcement of every message gets through, a receive finds the one of its tag whatever lies before it. When
 * credit is there before the CTS is, a held message goes as PUSH, with its bytes; a CTS that crosses it has no effect.
 *
 * A receive from any rank is one from the rank whose message of its tag has been here longest. Where there is none, it waits
 * in the list of one more peer, `anyone`, which nothing is read from, until a message comes that no earlier receive is for.
 */
#ifndef TR_COMM_P2P_H
#define TR_COMM_P2P_H

#include "comm/transport/shm_channel.h"
#include "comm/transport/tcp.h"
#include "comm/work/work.h"

enum { TR__P2P_ENVELOPE = 256, TR__P2P_CREDIT = 4 << 20 };

typedef struct tr__p2p tr__p2p;

/* Of a group that has joined over one transport or both; limit: bytes of messages to a peer that it has not asked for. */
tr_status tr__p2p_new(const tr__member *member, tr__failure *failure, tr__shm *shm, tr__tcp *tcp, tr__p2p **engine);
/* Starts a send or recv and takes a reference of the work. The caller will drive it, else a thread of the engine does. */
void tr__p2p_start(tr__p2p *p, tr_work *work, bool driven);
/* Works on sends and receives until this one is done, if it may be with a rank of this host; threads carry all others. */
void tr__p2p_drive(tr__p2p *p, const tr_work *work);
/* Is any under way? */
bool tr__p2p_pending(tr__p2p *p);
/* Waits for what is under way, unless the group is broken, and frees all. The transports are still there. */
void tr__p2p_end(tr__p2p *p);

/* ---- On the way: little-endian, as all hosts of a group must be ----------------------------------------------------- */

typedef struct tr__p2p_frame {
    uint16_t magic;
    uint8_t type, dtype;
    int32_t tag, line, held; /* held: RTS of a message for which there was no credit */
    int64_t count;           /* CREDIT: bytes that lie unexpected at its sender; of `tag`, the oldest of them (-1: none) */
    uint64_t id;             /* of the send at its rank */
    uint64_t taken;          /* charges of messages from the peer that have been received */
    tr__shm_place place;     /* RTS: of a shared buffer; segment 0: none */
    char file[TR__PLACE_TEXT];
} tr__p2p_frame;

_Static_assert(sizeof(tr__p2p_frame) == 120, "no padding on the wire");

enum tr__p2p_type { TR__P2P_EAGER = 1, TR__P2P_RTS, TR__P2P_CTS, TR__P2P_DATA, TR__P2P_PUSH, TR__P2P_FIN, TR__P2P_CREDITS };
enum { TR__P2P_MAGIC = 0x5254 };

/* ---- What the engine's files share ---------------------------------------------------------------------------------- */

/* In one list of its peer: a send or receive that is under way; or, without work, a frame of the engine's own, or a message that
 * has come and that nobody has asked for yet, of which `frame` is the peer's. */
typedef struct tr__p2p_op {
    struct tr__p2p_op *next;
    tr_work *work;           /* one reference */
    bool driven;             /* by its caller */
    bool held, reported;
    bool expired;            /* the latest look came after the deadline */
    int64_t began, deadline; /* since when it waits; 0: nobody has looked yet */
    uint64_t number;         /* of a receive, of a message: among the rank's receives, among all messages that have come to it */
    uint64_t signed_as;      /* its number among the rank's sends and receives over rings, for peers that report */
    tr__p2p_frame frame;     /* on its way; of a receive only the tag, and the id when it is known */
    size_t sent, payload;    /* of the frame and the bytes behind it; how many those are */
    char *data;              /* of a message: these bytes; NULL: it has only been announced */
} tr__p2p_op;

typedef struct tr__p2p_ops {
    tr__p2p_op *first, *last;
} tr__p2p_ops;

/* OUT: frames to be written, in this order. OFFERED: sends that were announced. CLEARED: receives whose bytes are to come.
 * POSTED: receives without a message. */
enum { TR__P2P_OUT, TR__P2P_OFFERED, TR__P2P_CLEARED, TR__P2P_POSTED, TR__P2P_LISTS };

/* Between us and one peer. */
typedef struct tr__p2p_peer {
    tr__p2p *engine;
    int rank;             /* of `anyone`: TR_ANY_SOURCE */
    size_t eager;         /* longer messages are announced */
    bool by_ring, by_stream; /* what is with it may go through rings, through connections; both: with anyone */
    bool closed;          /* nothing comes or goes any more */
    bool drained;         /* had said goodbye before its ring was read, and nothing was in that */
    tr__shm_peer *local;  /* on this host, with our channel to it (NULL: not yet), and what it had read when we looked last; */
    tr__shm_channel *outbound;
    uint64_t read_seen;
    tr__tcp_peer *remote; /* on another host */
    tr__p2p_ops lists[TR__P2P_LISTS], arrived; /* arrived: messages that nobody has asked for yet */

    uint64_t charged, credited; /* to us for what the peer was sent, and what of that it has received */
    uint64_t taken, returned;   /* of what the peer was charged for, what we have received, and what it knows of that */
    uint64_t lying;             /* bytes of ours that lie unexpected there, as the peer said last; 0: not known */
    int lying_tag;
    uint64_t kept;              /* the same of the peer's, here */
    bool told, crediting;       /* it knows; a CREDIT is in OUT */
    int held;                   /* messages to it */

    /* What is being read. */
    tr__p2p_frame frame;
    size_t got, bytes, left_over; /* of the frame; behind it; of those still to come */
    char *to;
    tr__p2p_op *reading;          /* the receive that it is for, or the message that is for nobody yet; NULL: a frame */
} tr__p2p_peer;

struct tr__p2p {
    const char *group;
    int rank, world_size, report_ms;
    tr__recorder *recorder;
    tr__failure *failure;
    tr__shm *shm; /* or NULL */
    tr__tcp *tcp; /* or NULL */
    uint64_t limit;
    pthread_mutex_t lock;  /* for all of it */
    pthread_cond_t wanted; /* the ring's thread has work, or is to end */
    _Atomic int callers;   /* that want the lock */
    tr__p2p_peer *peers, *anyone; /* [world_size + 1]: by rank, and last `anyone`, where receives from any rank wait */
    int pending, helped;   /* operations under way; of them, those of the ring's thread */
    uint64_t sends, receives, arrivals;
    int told;              /* the rank that other hosts have been told we wait for; -1: none */
    tr__signature told_in; /* and the call */
    bool holder;           /* the recorder says who holds us up */
    bool has_thread, has_reader, dozing, stopping;
    pthread_t thread, reader;
    struct pollfd *polled; /* [world_size + 1]: the reader's */
};

/* Under the lock, all of them. Whom a new send or receive is with; one from any rank whose message is here becomes one from
 * that rank. */
tr__p2p_peer *tr__p2p_peer_of(tr__p2p *p, tr_collective *c);
/* Takes an operation up: its first frame, or its message if that is there. */
tr_status tr__p2p_begin(tr__p2p_peer *peer, tr__p2p_op *op);
/* Move what can be moved without waiting. */
tr_status tr__p2p_read(tr__p2p_peer *peer, bool *moved);
tr_status tr__p2p_write(tr__p2p_peer *peer, bool *moved);
/* The connection came to its end, or to an error. */
tr_status tr__p2p_lost(tr__p2p_peer *peer, int error);
/* A send or receive with the peer; NULL: none is under way. */
const tr__p2p_op *tr__p2p_any(const tr__p2p_peer *peer);
/* Of a send that waits because the peer does not receive: what lies there unexpected. */
tr__held tr__p2p_unasked(const tr__p2p_peer *peer, const tr__p2p_op *op);
/* Ends all operations with the group's failure, and drops what was under way. with_call: each says what it was. */
void tr__p2p_drop_all(tr__p2p *p, bool with_call);
tr__signature tr__p2p_call(const tr__p2p *p, const tr__p2p_op *op);
/* The peer's call that sent a message to us. */
tr__signature tr__p2p_sent(const tr__p2p *p, const tr__p2p_frame *frame);

/* ---- p2p_drivers.c --------------------------------------------------------------------------------------------------- */

/* As sendmsg() and recvmsg() without waiting: bytes, or -1 and errno; a get of 0 is the end. Memory stays what it was until its
 * bytes have come. */
ssize_t tr__p2p_put(tr__p2p_peer *peer, const struct iovec parts[2]);
ssize_t tr__p2p_get(tr__p2p_peer *peer, void *to, size_t bytes);
/* For peers of this host that report what we are at: an operation that may go over rings begins, and has ended. */
void tr__p2p_sign(const tr__p2p *p, tr__p2p_op *op);
void tr__p2p_sign_off(const tr__p2p *p, const tr__p2p_op *op);
/* Has the peer said goodbye? */
static inline bool tr__p2p_left(const tr__p2p_peer *peer)
{
    return atomic_load(peer->local ? &peer->local->left : &peer->remote->left);
}
/* Before a failure of our own: fails with that of a peer that has given up already. */
tr_status tr__p2p_check_peers(const tr__p2p_peer *peer, int timeout_ms);
/* Who keeps us waiting for the peer, which may be another rank; its name, and what it is at. */
enum { TR__P2P_NAME = TR__TCP_NAME, TR__P2P_STATE = TR__SHM_STATE_TEXT };
int tr__p2p_culprit(const tr__p2p_peer *peer, char name[TR__P2P_NAME], char state[TR__P2P_STATE]);

#endif
