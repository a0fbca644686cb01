/*
 * A process's endpoint between hosts, one for each tr_join: a TCP listener, the connections to its peers, and one thread that hears
 * of deaths, passes control messages on to the groups that they are for, and makes connections. A group that is made within another
 * attaches to the same endpoint by its number, and costs no socket and no thread.
 *
 *   network.c           making and ending one; the groups attached to it; connections that are lent to them; control messages
 *   network_links.c     the control connections as a whole: whose they are, what is passed on, joining and leaving
 *   network_connect.c   connections on their way: ours to peers, and those that come in
 *   network_monitor.c   the thread, and what comes in
 *
 * Control connections are made when the first group is joined, between all pairs of few peers, and among many between neighbours,
 * which pass on what is for all. They are idle but for failures and the like, so a message there never waits behind data, and the
 * end of one is the end of a peer. All other connections belong to a group while it lives, and are made when something is first to go
 * over them, by either side; when both do so at once, by the higher rank. What their bytes look like on the way, net/wire.h tells.
 */
#ifndef TR_NET_NETWORK_H
#define TR_NET_NETWORK_H

#include "base/object.h"
#include "net/address.h"
#include "net/cookie.h"
#include "net/origin.h"
#include "net/wire.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- On the wire: little-endian, as all hosts of a job must be --------------------------------------------------- */

enum {
    TR__NETWORK_MAGIC = 0x54524e31, /* "TRN1"; hosts of the other byte order see another number */
    TR__NETWORK_VERSION = 4,
    TR__FIRST_GROUP = 1,            /* the number of an endpoint's first group */
    TR__FRAME_BYTES = 152,
    TR__FRAME_TEXT = 1024,          /* most bytes that follow the frame of a control message */
    TR__MESH_MOST = 8,              /* ranks that have a control connection each with each */
    /* The types of frames of the endpoints' own; all others are the groups'. For a neighbour only: */
    TR__FRAME_HERE = 250, /* the sender and all below it in the tree of ranks are there */
    TR__FRAME_ALL_HERE,   /* all ranks are */
    TR__FRAME_MARK,       /* tell me when you have come so far; */
    TR__FRAME_MARKED,     /* I have. The frame's number is a place in the asker's news */
    /* For all: */
    TR__FRAME_GONE,       /* a tr__gone_frame: the sender's connection with that rank has ended without a goodbye */
    TR__FRAME_LEAVING,    /* the sender's endpoint ends */
};

typedef enum tr__channel { TR__CONTROL_CHANNEL, TR__DATA_CHANNEL, TR__P2P_CHANNEL, TR__CHANNELS } tr__channel;

/* What both sides say first on a connection; encrypted where all is, else as it stands here. */
typedef struct tr__hello {
    uint32_t magic, version;
    int32_t rank;
    int16_t channel;
    uint16_t checked;             /* 1: the sender wants checksums within a host, too */
    uint64_t group;               /* that the connection is for; of control: the first */
    char cookie[TR__COOKIE_TEXT]; /* the receiver's */
    char address[TR__ADDRESS_TEXT]; /* where the sender listens */
    uint32_t reserved;
    uint32_t sum;                 /* CRC-32C of the above */
} tr__hello;

/* How every frame begins. */
typedef struct tr__frame_head {
    uint32_t magic;
    uint8_t version, type;
    uint16_t reserved;
    uint64_t bytes;   /* that follow the frame */
    uint64_t group;
    int32_t origin;   /* of a control message: the rank that it is from, which may not be the one that passes it on, */
    uint32_t number;  /* and its number among those of that rank */
} tr__frame_head;

typedef struct tr__gone_frame {
    tr__frame_head head;
    int32_t rank, error;
} tr__gone_frame;

typedef union tr__network_frame {
    tr__frame_head head;
    char bytes[TR__FRAME_BYTES];
} tr__network_frame;

_Static_assert(sizeof(tr__hello) == 144, "no padding on the wire");

/* ---- Peers ------------------------------------------------------------------------------------------------------- */

typedef struct tr__network_peer tr__network_peer;

typedef struct tr__network_connection {
    tr__wire wire;
    struct tr__network_connection *next; /* of its peer, or of control; under the lock */
    tr__network_peer *peer;
    tr__channel channel;
    uint64_t group;
    bool ending; /* its group has ended here: what still comes is dropped, up to its end */
    /* Of control, under the lock: */
    uint64_t at;      /* place of the next message of n->news to be sent */
    struct tr__news *begun; /* one that has been sent in part, NULL: none; it stays until it has gone, */
    size_t part;      /* and how many of its bytes have */
    bool reads;       /* epoll tells of what comes, */
    bool waits;       /* and of room in the socket */
    bool cut;         /* it is at its end */
    bool fresh;       /* what came with its hello may lie here, where epoll does not see it */
    uint32_t marked, passed; /* how many for all it has been asked about (MARK), and has confirmed to have heard */
} tr__network_connection;

/* What is known of a peer from its endpoint record. */
typedef struct tr__network_record {
    long pid;
    bool visible;     /* pid is a number of our process namespace */
    bool same_host;   /* no network is crossed on the way there */
    bool same_kernel; /* it uses the same cores */
    char host[65];    /* for people */
    char address[TR__ADDRESS_TEXT], cookie[TR__COOKIE_TEXT];
} tr__network_record;

struct tr__network_peer {
    int rank; /* in the first group */
    /* Under `hearing`: */
    tr__network_record record;
    bool gone;      /* its endpoint has ended, with this error */
    int error;
    bool told;      /* all ranks have been told so, by this one or another */
    bool leaving;   /* as it has said before */
    bool here;      /* it and all below it have joined */
    bool damaged;   /* nothing more is read from it */
    uint32_t heard; /* the number of the latest message from it */
    /* Under the lock: */
    tr__network_connection *control;     /* NULL: ourselves, not yet, or gone */
    tr__network_connection *connections; /* all others */
    /* For the monitor: a control message that has come in part. */
    size_t got;
    tr__network_frame frame;
    char text[TR__FRAME_TEXT];
};

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/* What a group is told, mostly by the monitor, one call at a time. Members go by their places in the group. */
typedef struct tr__network_calls {
    /* A control message of a member; text has frame->head.bytes bytes. */
    void (*heard)(void *user, int member, const tr__network_frame *frame, const char *text);
    /* All that has come until now was heard. */
    void (*heard_all)(void *user);
    /* The member's process has ended, its host cannot be reached any more, or (EBADMSG) it sends what is damaged. */
    void (*gone)(void *user, int member, int error);
    /* Is a connection with the member wanted? Not when there is one; nor, before it is begun, when the member has left. */
    bool (*wants)(void *user, int member, tr__channel channel, bool before);
    /* It is there, and the group's while that lives; NULL: none is under way any more. */
    void (*connected)(void *user, int member, tr__channel channel, tr__network_connection *connection);
    /* A connection with a member, or what it has said, is lost, with this thread's latest failure. */
    void (*failed)(void *user);
    /* No rank is missing any more, as tr__network_missing() says. */
    void (*all_here)(void *user);
} tr__network_calls;

/* A control message of ours, or of another rank that is to be passed on. */
typedef struct tr__news {
    int users; /* the list of news, and connections that have begun to send it; under the lock */
    int to;   /* the neighbour it is for; -1: all */
    int from; /* the neighbour it came from, or this rank */
    tr__network_frame frame;
    char text[];
} tr__news;

typedef struct tr__early_frame { /* came before the members were known */
    struct tr__early_frame *next;
    int peer;
    tr__network_frame frame;
    char text[TR__FRAME_TEXT];
} tr__early_frame;

/* A group's place at an endpoint. */
typedef struct tr__network_group {
    struct tr__network_group *next;
    struct tr__network_endpoint *network;
    uint64_t id;
    const tr__network_calls *calls;
    void *user;
    int count;    /* members; 0: not known yet */
    int *places;  /* [world_size]: a peer's place among the members, or -1 */
    tr__early_frame *early, **last_early;
    int members[]; /* [count] of [world_size]: places among the peers; then `places` */
} tr__network_group;

/* ---- Connections on their way ------------------------------------------------------------------------------------ */

typedef enum tr__attempt_stage { TR__IDLE, TR__CONNECTING, TR__SHAKING, TR__ANSWERING } tr__attempt_stage;

typedef struct tr__attempt {
    struct tr__attempt *next; /* of ours: under the lock */
    tr__wire wire;
    int rank;
    tr__channel channel;
    uint64_t group;
    tr__attempt_stage stage;
    int64_t retry;       /* IDLE: when to try (again), */
    int refusals;        /* after so many in a row (PAUSES_MOST at most) */
    int64_t since;       /* when it began to connect, or came in */
    int64_t unreachable; /* since when there has been no way to the rank's host; 0: there is one */
    int64_t silent;      /* since when nothing there has answered; 0: it has */
    int error;           /* why the rank is out of reach; 0: it is not, or it is for another reason */
    tr__network_connection *made; /* what it becomes; room for it is there before the other end takes the connection for made */
    /* One that came in: */
    bool proved;         /* what it said first is right */
    int origin;          /* until then it is counted there */
    uint64_t number;     /* in the order in which they came */
    size_t got;
    tr__hello hello;
} tr__attempt;

/* While the first group is joined, those that make its connections hear of what may have changed in the store. */
typedef struct tr__network_joining {
    void *user;
    /* Nobody, or somebody else, is where a peer's record says: there may be a new one. */
    tr_status (*refused)(void *user, int rank);
    /* A peer has come from another address than its record says. */
    tr_status (*moved)(void *user, int rank);
} tr__network_joining;

/* ---- The endpoint ------------------------------------------------------------------------------------------------ */

typedef struct tr__network_endpoint {
    char name[64]; /* of its first group, for messages */
    int rank, world_size;
    tr__network_peer *peers; /* [world_size], ourselves included */
    int listener;
    char address[TR__ADDRESS_TEXT], cookie[TR__COOKIE_TEXT];
    tr__tls_key *key;        /* of all connections; NULL: they are in the clear, */
    bool checked;            /* those to ranks of this host with checksums, too, as those to other hosts: TRIREME_CHECK=wire */
    tr__tls_key *job_key;    /* also where they are in the clear; NULL: the job has none */
    int users;               /* groups that have not ended here: under `hearing` */
    bool hasty;              /* the latest of them that ended was broken: what it sent last need not arrive */

    pthread_mutex_t hearing; /* the monitor deals with what it has read; groups come and go. Comes before `lock`. */
    tr__network_group *groups;
    atomic_bool unsettled;   /* heard_all() is wanted */
    bool all_here;           /* all ranks have joined */
    bool relink;             /* a rank has gone: its neighbours may need others */
    bool fresh;              /* there are fresh control connections: for the thread that makes them */

    uint32_t records;        /* sum of the cookies' checksums of the ranks below this one, and then of all */

    pthread_mutex_t lock;    /* for connections, what goes out over those of control, and the list of: */
    tr__network_connection *controls; /* all control connections, and what goes over them: */
    tr__news **news;         /* [news_most], by place; those before news_first are forgotten */
    uint64_t news_most, news_first, news_end;
    uint32_t spread, said;   /* how many of them were for all, and how many of those from this rank */
    tr__attempt *outgoing;
    /* For the thread that makes connections: the one that joins the first group, then the monitor. */
    const tr__network_joining *joining;
    int met;                 /* peers with a control connection, so far */
    tr__attempt *incoming;   /* [incoming_most] */
    int incoming_most;
    uint64_t came;
    int64_t full_until;      /* no descriptor is left: until then nobody is let in */
    tr__origins origins;
    int turned_away;
    int unpaced; /* connections for which the congestion control was changed */
    struct pollfd *polled;   /* [poll_most] */
    int poll_most;

    int watch; /* epoll: all control connections, and those that are ending */
    int kick;  /* eventfd: the monitor has something to do */
    bool has_monitor;
    atomic_bool stopping;
    pthread_t monitor;
} tr__network_endpoint;

/* ---- network.c --------------------------------------------------------------------------------------------------- */

typedef struct tr__network_options {
    const char *name;   /* of the first group */
    int rank, world_size;
    const char *wanted; /* address; see tr__address_choose(), also for these two: */
    const char *towards;
    bool anywhere;
    tr__tls_key *job_key; /* NULL: none */
    bool encrypt;
} tr__network_options;

/* One that listens, and has no peers yet. */
tr_status tr__network_new(const tr__network_options *options, tr__network_endpoint **network);
/* One to which no group has been attached. */
void tr__network_free(tr__network_endpoint *n);

/* Attaches a group of that number, whose members are not known yet: what comes for it waits. It is one of the endpoint's users. */
tr_status tr__network_attach(tr__network_endpoint *n, uint64_t id, const tr__network_calls *calls, void *user, tr__network_group **group);
/* Its members stand in g->members. */
void tr__network_enter(tr__network_group *g, int count);
/* The group has ended here, without a failure or not; its members have been told. The endpoint ends with its last group. */
void tr__network_detach(tr__network_group *g, bool sound);

/* Takes a wire over, and a connection from malloc(), which it becomes. */
tr_status tr__network_adopt(tr__network_endpoint *n, int rank, tr__channel channel, uint64_t group, tr__wire *wire,
    tr__network_connection *connection);
/* Under the lock: nobody needs it any more. */
void tr__network_give_back(tr__network_endpoint *n, tr__network_connection *connection);

/* Under the lock, or when no other thread knows it any more: it is closed. */
void tr__network_close(tr__network_connection *connection);

/* Sends a control message of the group to all other members; never blocks. */
void tr__network_tell_all(tr__network_group *g, const tr__network_frame *frame, const char *text);
void tr__network_kick(tr__network_endpoint *n);
/* Under the lock: sends what there is for a neighbour, as far as its connection has room; never blocks. */
void tr__network_push(tr__network_endpoint *n, tr__network_connection *control);
/* Under the lock: what epoll is to tell of one from now on. False: it cannot. */
bool tr__network_watch(tr__network_endpoint *n, tr__network_connection *control, bool reads, bool waits);
/* Appends a message to the news; to: the neighbour it is for, -1: all, who get it numbered if it is from this rank. */
void tr__network_post(tr__network_endpoint *n, int to, int from, const tr__network_frame *frame, const char *text);

/* ---- network_links.c --------------------------------------------------------------------------------------------- */

/* Do these two have a control connection from the start? */
bool tr__network_linked(const tr__network_endpoint *n, int a, int b);
/* Is it a graph with few neighbours for each, who pass messages on? */
static inline bool tr__network_relays(const tr__network_endpoint *n) { return n->world_size > TR__MESH_MOST; }
/* Under `hearing`: what a rank has said that has come from a neighbour is new, and is passed on. False: it is known. */
bool tr__network_relay(tr__network_endpoint *n, tr__network_peer *neighbour);
/* Under `hearing`: a rank has gone; if no other has told so, they are told. */
void tr__network_lose(tr__network_endpoint *n, tr__network_peer *peer, int error);
/* Has a connection with it, of control or not, shown a sign of life while a link may be silent? Takes the lock. */
bool tr__network_is_heard(tr__network_endpoint *n, const tr__network_peer *peer);
/* For the monitor: control connections in place of those with ranks that have gone. */
void tr__network_relink(tr__network_endpoint *n);
/* This rank's endpoint is to end: tells the others, and waits, for a second at most, until those that stay have heard all that
 * it has, so that nothing is lost on its way through this rank. */
void tr__network_take_leave(tr__network_endpoint *n);
/* This rank is connected, and its monitor runs: tells the others. */
void tr__network_begin_to_meet(tr__network_endpoint *n);
/* A rank that keeps the endpoint waiting for all to be there; -1: they are. The others know when rank 0 has said so: */
int tr__network_missing(tr__network_endpoint *n);
void tr__network_begin(tr__network_endpoint *n);
/* Then: are the records that this rank has of the others those with which they have joined? Of its neighbours they are. */
bool tr__network_has_all_records(const tr__network_endpoint *n);
/* Under `hearing`: a frame of the endpoints' own has come from a peer. */
void tr__network_hear_link(tr__network_endpoint *n, tr__network_peer *peer);

/* ---- network_connect.c ------------------------------------------------------------------------------------------- */

tr_status tr__network_listen(tr__network_endpoint *n, const tr__network_options *options);
/* Has a connection to a peer made, unless that is under way. Its group is told when it is there. */
tr_status tr__network_call(tr__network_endpoint *n, int rank, tr__channel channel, uint64_t group);
/* Is one under way that this rank makes? */
bool tr__network_under_way(tr__network_endpoint *n, int rank, tr__channel channel, uint64_t group);
/* Waits until something happens, on connections on their way or on the endpoint's others, and carries the former on. *ready: how
 * many events there were. Fails while the first group is joined; later, the groups that an attempt is for are told. */
tr_status tr__network_step(tr__network_endpoint *n, int timeout_ms, int *ready);
/* Ends all that are on their way. */
void tr__network_drop_attempts(tr__network_endpoint *n);

/* ---- network_monitor.c ------------------------------------------------------------------------------------------- */

/* All neighbours are connected. */
tr_status tr__network_monitor_start(tr__network_endpoint *n);
void tr__network_monitor_stop(tr__network_endpoint *n);
/* Under `hearing`: reads what has come from a neighbour. */
void tr__network_hear(tr__network_endpoint *n, tr__network_peer *peer);
/* Under `hearing`: tells the groups. */
void tr__network_say_gone(tr__network_endpoint *n, tr__network_peer *peer, int error);
/* Control messages have come that the monitor has not dealt with. */
bool tr__network_behind(tr__network_endpoint *n);
/* Under `hearing`: a group's members are known, so what came early is passed on. */
void tr__network_pass_early(tr__network_group *g);
/* Under `hearing`: the group of that number; NULL: none, or it has ended here. */
tr__network_group *tr__network_find(const tr__network_endpoint *n, uint64_t id);

#endif
