/*
 * A process's endpoint on its host, one for each tr_join: the Unix sockets to its peers, the memory that they have shown each
 * other, and one thread that hears of deaths and passes messages on to the groups that they are for. A group that is made within
 * another attaches to the same endpoint, so it costs no socket, no thread and no mapping of its own.
 *
 *   endpoint.c          making and ending one; the groups attached to it; their control blocks
 *   endpoint_monitor.c  the thread, and what comes and goes on the sockets
 *   endpoint_memory.c   our segments that peers know of, and theirs that are mapped here
 *   endpoint_cross.c    reading and writing peers' memory that is not shared, through the kernel
 *
 * How the sockets come about is the rendezvous's business (comm/transport/shm_join.c).
 */
#ifndef TR_NET_ENDPOINT_H
#define TR_NET_ENDPOINT_H

#include "base/memory.h"
#include "base/object.h"
#include "net/cookie.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

struct pollfd;

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

enum { TR__SHM_MAGIC = 0x54524d31, TR__SHM_VERSION = 10 }; /* "TRM1" */

/* HELLO is the first. SEGMENT, BLOCKS (memory for control blocks) and UNMAP concern the endpoint, all others a group. SEGMENT,
 * BLOCKS and STREAMS (a channel) carry a descriptor, unless both live in one process. */
enum tr__shm_message_type { TR__SHM_HELLO = 1, TR__SHM_SEGMENT, TR__SHM_UNMAP, TR__SHM_BROKEN, TR__SHM_GOODBYE,
    TR__SHM_STREAMS, TR__SHM_BLOCKS };

/* A message between endpoints; sockets keep messages apart. */
typedef struct tr__shm_message {
    uint32_t magic, type;
    int32_t rank, status;         /* the sender's place among the peers; BROKEN: the failure */
    uint64_t group;               /* that it is for; SEGMENT: that alone needs it, or 0: all groups of both may */
    uint64_t id, bytes;           /* of a segment */
    char cookie[TR__COOKIE_TEXT]; /* HELLO: the receiver's */
    char text[1216];              /* BROKEN: why; HELLO: where the sender listens */
} tr__shm_message;

typedef struct tr__shm_queued { /* a message on its way, or one that came too early */
    struct tr__shm_queued *next;
    int peer; /* whose it is */
    int fd;   /* that goes along, or -1 */
    tr__shm_message message;
} tr__shm_queued;

typedef struct tr__shm_queue {
    tr__shm_queued *first, *last;
} tr__shm_queue;

/* ---- Peers ------------------------------------------------------------------------------------------------------- */

/* A peer's segment, mapped here. */
typedef struct tr__shm_mapping {
    uint64_t id;
    char *memory;
    size_t bytes;
    atomic_int *holders; /* it stays mapped until the last of them closes it */
    bool in_process; /* of a thread of this process: held, not mapped again */
    bool stays;    /* for as long as the endpoint does: control blocks */
    uint64_t gone; /* the version since when its owner has done with it; 0: it has not */
} tr__shm_mapping;

/* Of the messages between two peers: those that this one has sent to the other, and those of the other's that it has dealt
 * with. What it was sent and has not read, it cannot say that it waits for. */
typedef struct tr__shm_post_count {
    atomic_uint sent, handled;
} tr__shm_post_count;

/* What an endpoint lets its peers see of itself. The control block of the first group follows, at tr__endpoint_first(). */
typedef struct tr__endpoint_page {
    uint32_t magic, version;
    int32_t rank, world_size;
    atomic_uint ended;           /* it reads no more */
    atomic_uint lost;            /* peers whose sockets have come to their end */
    atomic_uint crosses;         /* it can read and write the memory of all its peers; what that is, endpoint_cross.c says */
    uint64_t nonce, nonce_at;    /* a random number, which its process has at that address of its own memory */
    tr__shm_post_count counts[]; /* [world_size] */
} tr__endpoint_page;

typedef struct tr__endpoint_peer {
    int rank;        /* in the first group, for people */
    int socket;      /* -1: ourselves, not yet, or gone */
    long pid;
    bool visible;    /* pid is a number of our process namespace */
    bool in_process; /* a thread of this process: memory is held, not mapped again */
    bool gone;       /* its socket is at its end: under `hearing` */
    tr__endpoint_page *page; /* NULL: not connected yet */
    /* Under the endpoint's lock. */
    tr__shm_mapping *mappings;
    size_t mapping_count, mapping_room;
    tr__shm_queue outgoing;
} tr__endpoint_peer;

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/* What a group is told, by the monitor or by who attaches it, one call at a time. Members go by their places in the group. */
typedef struct tr__attached {
    /* fd is to be closed, unless it is -1. */
    void (*heard)(void *user, int member, const tr__shm_message *message, int fd);
    /* A segment of the member is mapped now; who waits for `changed` is about to be woken. */
    void (*mapped)(void *user, int member);
    /* The member's process has ended, or has left with its last group. */
    void (*gone)(void *user, int member);
    /* What a member has shown or said is lost, with this thread's latest failure. */
    void (*failed)(void *user);
    /* Memory that the member has shown for this group alone could not be mapped, with this thread's latest failure. */
    void (*missed)(void *user, int member);
} tr__attached;

/* A group's place at an endpoint. It stays behind when the group ends here, until all members have taken leave: until then they
 * may touch its control block. */
typedef struct tr__attachment {
    struct tr__attachment *next;
    struct tr__endpoint *endpoint;
    uint64_t id;
    const tr__attached *calls; /* NULL: the group has ended here */
    void *user;
    void *block;               /* the control block */
    int count;                 /* members; 0: not known yet */
    int *places;               /* [world_size]: a peer's place among the members, or -1 */
    bool *left;                /* [world_size]: the member has taken leave, or has died */
    tr__shm_queue early;     /* what came before the members were known */
    _Atomic uint64_t use;      /* how many threads use mappings, and above them the version when the first of them began */
    int members[];             /* [count] of [world_size]: places among the peers; then `places` and `left` */
} tr__attachment;

typedef struct tr__endpoint_blocks tr__endpoint_blocks;
typedef struct tr__endpoint_segment tr__endpoint_segment;

typedef struct tr__endpoint {
    char name[64];           /* of its first group, for messages */
    int rank, world_size;    /* among the processes of this host */
    tr__endpoint_peer *peers; /* [world_size], ourselves included */
    tr__endpoint_page *page; /* our own; the beginning of our first memory for blocks */
    size_t page_bytes, block_bytes;
    uint64_t nonce;          /* our own */
    bool crosses;            /* all peers can read and write each other's memory: alike on all of them */
    int users;               /* groups that have not ended here: under `hearing` */

    pthread_mutex_t hearing; /* the monitor deals with what it has read; groups come and go. Comes before `lock`. */
    tr__attachment *attachments;
    tr__endpoint_blocks *blocks;

    pthread_mutex_t lock;
    pthread_cond_t changed;  /* a mapping came, a member left, or a group broke */
    tr__endpoint_segment *shown; /* our segments that peers have been told of */
    size_t shown_count, shown_room;
    tr__segment_watcher watcher; /* .freed NULL: not yet */
    atomic_bool has_gone;    /* something waits to be unmapped */
    _Atomic uint64_t version; /* of the mappings: raised when one goes */

    int kick;                /* eventfd: the monitor has messages to send, or is to stop */
    int spare;               /* the monitor's: a descriptor that makes room for that of a peer's control blocks; -1: none */
    struct pollfd *polled;   /* [world_size + 1]: the monitor's: the peers in order, then the kick */
    bool has_monitor;
    atomic_bool stopping;
    pthread_t monitor;
} tr__endpoint;

/* ---- endpoint.c -------------------------------------------------------------------------------------------------- */

/* One whose peers are not connected yet, of at most world_size ranks, for groups whose control blocks take so many bytes. */
tr_status tr__endpoint_new(const char *name, int rank, int world_size, size_t block_bytes, tr__endpoint **endpoint);
/* One to which no group has been attached. */
void tr__endpoint_free(tr__endpoint *e);
/* Before it starts: there are only so many on this host, and this is our place among them. */
void tr__endpoint_settle(tr__endpoint *e, int rank, int world_size);
/* The control block of a peer's first group, whose mapping has room for it. */
static inline void *tr__endpoint_first(const tr__endpoint *e, tr__endpoint_page *page)
{
    return (char *)page + e->page_bytes;
}

/* Attaches a group of that number, whose members are not known yet: what comes for it waits. It gets a control block that is
 * all zero, and is one of the endpoint's users. */
tr_status tr__endpoint_attach(tr__endpoint *e, uint64_t id, const tr__attached *calls, void *user, tr__attachment **attachment);
/* Its members stand in a->members: what came until now is passed on. */
void tr__endpoint_enter(tr__attachment *a, int count);
/* The group has ended here, and no call will be made any more; its members have been told. The endpoint ends with its last group. */
void tr__endpoint_detach(tr__attachment *a);

/* The memory for blocks that a group's control block lies in, and where it lies there. */
void tr__endpoint_place(const tr__attachment *a, uint64_t *segment, uint64_t *offset);

/* A message for a peer, to be queued; NULL: no memory. fd goes along and is closed (-1: none), also when this fails. */
tr__shm_queued *tr__endpoint_message(const tr__endpoint *e, int peer, const tr__shm_message *message, int fd);
/* Queues one. */
tr_status tr__endpoint_post(tr__endpoint *e, int peer, const tr__shm_message *message, int fd);
/* Has the monitor send what is queued. */
void tr__endpoint_kick(tr__endpoint *e);
/* Waits until the kernel has what is queued, unless a peer does not read. */
void tr__endpoint_flush(tr__endpoint *e);
/* Wakes those who wait for `changed`. */
void tr__endpoint_tell(tr__endpoint *e);

/* Between these files: */
void tr__shm_queue_add(tr__shm_queue *queue, tr__shm_queued *queued);
void tr__shm_queue_free(tr__shm_queue *queue);
/* Under `hearing`: passes on a message of a peer, or the peer's end; takes an attachment away if nothing needs it any more. */
void tr__attachment_pass(tr__attachment *a, int peer, const tr__shm_message *message, int fd);
void tr__attachment_gone(tr__attachment *a, int peer);
void tr__attachment_retire(tr__attachment *a);

/* ---- endpoint_monitor.c ------------------------------------------------------------------------------------------ */

/* Sends or receives one message; -1 with errno. *fd is the descriptor that goes along or came, -1, or TR__SHM_LOST: one was sent
 * along, and this process has no room for it. */
enum { TR__SHM_LOST = -2 };
ssize_t tr__shm_send(int socket, const tr__shm_message *message, int fd);
ssize_t tr__shm_receive(int socket, tr__shm_message *message, int *fd);
/* All peers are connected. */
tr_status tr__endpoint_start(tr__endpoint *e);
/* Sends what is queued and ends the thread. */
void tr__endpoint_monitor_stop(tr__endpoint *e);

/* ---- endpoint_memory.c ------------------------------------------------------------------------------------------- */

/* Shows a segment of ours to those of some peers that do not know it yet. group: of an attachment that alone is told when a peer
 * cannot map it, and goes on; 0: all groups fail that both are in. */
tr_status tr__endpoint_show(tr__endpoint *e, const tr__segment *segment, const int *peers, int count, uint64_t group);
/* Listens for our own segments being freed. */
void tr__endpoint_watch(tr__endpoint *e);
void tr__endpoint_forget(tr__endpoint *e);
/* A descriptor of a segment for a message to a peer: -1 for one in this process, which needs none. */
tr_status tr__endpoint_descriptor(const tr__endpoint_peer *peer, const tr__segment *segment, int *fd);
/* A message that shows a peer a segment, with such a descriptor, to be queued. */
tr_status tr__endpoint_showing(const tr__endpoint *e, int peer, const tr__segment *segment, const tr__shm_message *message,
    tr__shm_queued **queued);

/* Maps a segment that a peer has shown; fd is closed (-1 from one in this process). Without memory: its owner, in this process,
 * has freed it. */
tr_status tr__shm_mapping_open(const tr__endpoint_peer *peer, uint64_t id, size_t bytes, int fd, tr__shm_mapping *mapping);
void tr__shm_mapping_close(const tr__shm_mapping *mapping);
/* A peer has shown a segment, or taken one back (id 0: all but those that stay). */
tr_status tr__endpoint_mapped(tr__endpoint *e, int peer, const tr__shm_message *message, int fd);
void tr__endpoint_unmapped(tr__endpoint *e, tr__endpoint_peer *peer, uint64_t id);
/* Under the lock: a mapping that a thread which has been busy since a version may use; NULL: none of that number. */
const tr__shm_mapping *tr__endpoint_mapping(const tr__endpoint_peer *peer, uint64_t id, uint64_t since);
/* Makes the caller a holder of a mapping that is to be used for longer than a call, whatever its owner does; it ends that by
 * tr__shm_mapping_close(). Waits for the segment to come until a time of tr__now_ns(), 0: not at all; false: it has not. */
bool tr__endpoint_hold(tr__endpoint *e, int peer, uint64_t id, int64_t until, tr__shm_mapping *mapping);

/* ---- endpoint_cross.c -------------------------------------------------------------------------------------------- */

/* Tries whether the kernel lets us read and write the memory of all peers, and says so in our page. All are connected. */
void tr__endpoint_probe(tr__endpoint *e);
/* All peers have probed: takes note of what they said. */
void tr__endpoint_agree(tr__endpoint *e);
/* Copies memory of a peer's, which lies at that address there. An errno: ESRCH: its process has ended; EFAULT: part of it is not
 * there, at the peer or here. Some of the bytes may have been copied. */
int tr__endpoint_read(const tr__endpoint *e, int peer, uint64_t from, size_t bytes, void *to);
int tr__endpoint_write(const tr__endpoint *e, int peer, uint64_t to, size_t bytes, const void *from);

enum { TR__USE_BITS = 16 };
/* This thread uses mappings of the group's members: what they take back meanwhile stays. In one step, as who begins beside the first
 * goes by its version, too. */
static inline void tr__attachment_busy(tr__attachment *a)
{
    uint64_t before = atomic_load(&a->use), after;
    do {
        bool first = before % (1 << TR__USE_BITS) == 0;
        after = (first ? atomic_load(&a->endpoint->version) << TR__USE_BITS : before) + 1;
    } while (!atomic_compare_exchange_weak(&a->use, &before, after));
}
/* Since which version a thread that is busy may use mappings. */
static inline uint64_t tr__attachment_since(tr__attachment *a)
{
    return atomic_load(&a->use) >> TR__USE_BITS;
}
/* Unmaps what nobody uses any more. */
void tr__endpoint_sweep(tr__endpoint *e);
static inline void tr__attachment_idle(tr__attachment *a)
{
    bool last = atomic_fetch_sub(&a->use, 1) % (1 << TR__USE_BITS) == 1;
    if (last && atomic_load(&a->endpoint->has_gone)) tr__endpoint_sweep(a->endpoint);
}

#endif
