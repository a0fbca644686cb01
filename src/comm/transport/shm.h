/*
 * The shared-memory transport: ranks of one host. What its files share; docs/communication.md tells the whole story.
 *
 *   shm.c            making and ending a group's transport; errors
 *   shm_join.c       the sockets between the ranks of a first group, and who may come in
 *   shm_heard.c      what the endpoint's monitor hears for the group: deaths, goodbyes, failures
 *   shm_segments.c   memory that the ranks show each other
 *   shm_wait.c       waiting for peers: spinning, sleeping, timeouts, reports
 *   shm_call.c       running a collective: signatures, small messages
 *   shm_fold.c       all_reduce, reduce, reduce_scatter
 *   shm_pull.c       broadcast, gathers, scatters, all_to_alls
 *   shm_cross.c      private buffers of peers, read and written through the kernel
 *   shm_stage.c      the staging areas that other private buffers pass through
 *   shm_channel.h    rings of bytes, for sends and receives (../p2p/)
 */
#ifndef TR_COMM_TRANSPORT_SHM_H
#define TR_COMM_TRANSPORT_SHM_H

#include "base/memory.h"
#include "base/object.h"
#include "comm/algo/hosts.h"
#include "comm/collective.h"
#include "comm/join/rendezvous.h"
#include "comm/transport/failure.h"
#include "comm/transport/raw_events.h"
#include "net/endpoint.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* ---- What the ranks see of each other ---------------------------------------------------------------------------- */

enum {
    TR__SHM_INLINE = 4096,      /* bytes that travel beside the signature */
    TR__SHM_TINY = 32,          /* bytes that travel in its cache line */
    TR__SHM_CHUNK = 256 << 10,  /* of a buffer that passes through the staging area */
    TR__SHM_RING = 4,           /* chunks that the staging area holds */
    TR__SHM_CROSS = 256 << 10,  /* from so many bytes on a private buffer may be read and written where it lies */
    TR__SHM_CROSS_SIZES = 8,    /* powers of two above that, which are tried apart */
    TR__SHM_TRIES = 3,          /* calls by which each way is tried, */
    TR__SHM_TERM = 256,         /* every so many calls */
    TR__SHM_HUGE = 2 << 20,      /* from so many bytes on, a private buffer that peers may reach where it lies */
    TR__SHM_HUGE_CALLS = 16,     /* is put into huge pages from its so many-th call on, */
    TR__SHM_HUGE_STEP = 64 << 20, /* so many bytes in a call; */
    TR__SHM_BUFFERS = 64,        /* so many are remembered: more than a model has gradients' buckets */
    TR__SHM_SCRATCH = 256 << 10, /* what is folded of such buffers at a time, of all ranks together: fits a second cache */
};

/* Where a buffer is: in a segment that the peers may map; segment 0: at an address in its rank's own memory; both 0: nowhere. */
typedef struct tr__shm_place {
    uint64_t segment, offset;
} tr__shm_place;

typedef _Atomic uint64_t tr__shm_file[TR__PLACE_TEXT / 8];

/* A rank's current call. There are two, for even and odd sequence numbers: a rank writes call n + 2 only when it has
 * seen all ranks enter n + 1, so everyone has done with n. */
typedef struct tr__shm_slot {
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t entered; /* the sequence number, when all below is there */
    tr__call_words call;
    union {
        struct {
            tr__shm_place in; /* with TR__SHM_PLACED */
            union {
                tr__shm_place out; /* of an all_reduce, or at a reduce's root */
                struct {
                    _Atomic uint64_t layout; /* of the _V kinds, whose data is never tiny */
                    int64_t longest;         /* elements of the longest block */
                };
            };
        };
        unsigned char tiny[TR__SHM_TINY];
    };
    _Alignas(TR__CACHE_LINE) tr__shm_file file;
    /* Of a part: the number and layout of the whole call, whose signature is in `call`. 0: this is the whole. */
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t whole, whole_layout;
    _Alignas(TR__CACHE_LINE) unsigned char data[TR__SHM_INLINE];
} tr__shm_slot;

/* The signature's bits; the input can be reached where it lies, with the output where that matters; the input is in the slot. */
enum { TR__SHM_WHAT = 0xffffff, TR__SHM_PLACED = 1 << 24, TR__SHM_INLINED = 1 << 25 };

/* A send or receive, for peers that report: the latest, and the one before. */
typedef struct tr__shm_transfer {
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t entered; /* the latest collective when it began */
    tr__call_words call;
    _Alignas(TR__CACHE_LINE) tr__shm_file file;
} tr__shm_transfer;

/* A block of an input: elements. */
typedef struct tr__shm_block {
    int64_t offset, count;
} tr__shm_block;

/* The ranks (+ 1) for which a rank's collective, and its sends and receives, keep its program waiting, and the one whose buffer
 * it is yet to be shown; 0: none. A rank that is stopped cannot take that back, so there is also what it is to be woken by:
 * when that has happened, it is the rank itself that does not go on. */
typedef struct tr__shm_stuck {
    atomic_int collective, message, buffer;
    _Atomic uint32_t word; /* a tr__shm_word of the other rank, which is to reach */
    atomic_uint mail;      /* its own mail, which is to change */
    _Atomic uint64_t value;
} tr__shm_stuck;

/* A rank's control block: written by its rank, but for the bell; read by all. Steps count up over the life of the
 * group, alike on all ranks; each collective takes as many as it needs. */
typedef struct tr__shm_control {
    uint32_t magic;
    atomic_uchar gave_up;                        /* not 0: the group is broken for its rank, which has said why or will */
    _Atomic uint64_t withdrew;                   /* the call that failed there, whose buffers are the program's again; 0: none */
    _Alignas(TR__CACHE_LINE) atomic_uint bell;   /* futex word: its rank sleeps on it, peers and its monitor ring it */
    atomic_int waits_for;                        /* the rank (+ 1) that should ring; 0: awake */
    tr__shm_stuck stuck;
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t finished; /* the latest collective that is done */
    _Atomic uint64_t failed;                            /* the whole call, of several hosts, that its rank failed in */
    _Alignas(TR__CACHE_LINE) atomic_uint crossing;      /* it is reading or writing a peer's buffer where that lies */
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t filled;   /* steps: own data is in the staging area */
    _Atomic uint64_t staging;                           /* the segment that is the staging area */
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t done;     /* steps: own share of the work is done */
    _Alignas(TR__CACHE_LINE) atomic_uint mail;          /* futex word: peers raise it when they did something for our
                                                           sends and receives, and somebody sleeps */
    atomic_int mail_sleepers;
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t transfers; /* sends and receives begun so far: the number of the latest */
    _Atomic uint64_t transferred;                        /* the latest that was done before another one began */
    tr__shm_transfer transfer[2];                        /* for even and odd numbers */
    tr__shm_slot slots[2];
    tr__shm_block blocks[]; /* [2][world_size]: of a scatter_v or all_to_all_v, what the others find where */
} tr__shm_control;

static inline size_t tr__shm_control_bytes(int world_size)
{
    return sizeof(tr__shm_control) + 2 * (size_t)world_size * sizeof(tr__shm_block);
}

/* world_size is our own: what a peer says in its segment may change. */
static inline tr__shm_block *tr__shm_table(tr__shm_control *control, int world_size, uint64_t sequence)
{
    return control->blocks + (sequence & 1 ? world_size : 0);
}

/* ---- What a rank keeps for itself -------------------------------------------------------------------------------- */

/* A peer's buffer: mapped here, or NULL and at an address in its own memory. */
typedef struct tr__shm_view {
    char *memory;
    uint64_t address;
} tr__shm_view;

/* A rank's buffers in a fold: the beginning of our block, and where its results go; out is nowhere (both 0) if not there. */
typedef struct tr__shm_fold_views {
    tr__shm_view in, out;
} tr__shm_fold_views;

/* Which way private buffers of one size go, as measured: staged, or (1) where they lie. */
typedef struct tr__shm_tuning {
    unsigned calls;
    int64_t best_ns[2]; /* of the latest tries; INT64_MAX: none */
} tr__shm_tuning;

/* A private buffer that peers may reach where it lies, and how many calls have had it. */
typedef struct tr__shm_buffer {
    const void *at;
    size_t bytes;
    size_t huge; /* so much from its beginning is in huge pages, as far as the kernel can */
    int calls;
} tr__shm_buffer;

typedef struct tr__shm_channel tr__shm_channel;

typedef struct tr__shm_peer {
    int rank;   /* in the group, for people: its place in t->peers is another when the group is on several hosts */
    tr__endpoint_peer *link; /* what it is to our endpoint, from which these two are: */
    long pid;
    bool visible;    /* pid is a number of our process namespace */
    tr__shm_control *control; /* NULL: not known yet */
    atomic_bool left; /* has said goodbye */
    atomic_bool gone; /* its socket is at its end */
    tr__shm_mapping channel_mapping; /* the monitor's */
    tr__shm_channel *_Atomic inbound; /* what the peer sends us; NULL: nothing yet */
    /* For the thread that runs a collective: the latest lookup. */
    tr__shm_mapping seen;
    uint64_t seen_version;
} tr__shm_peer;

typedef struct tr__shm_listener { /* where the peers connect while they join */
    int socket;
    char cookie[TR__COOKIE_TEXT];
} tr__shm_listener;

typedef struct tr__shm {
    char group[64];
    int rank, world_size; /* among those of this host, as all ranks here are but peers[].rank */
    int report_ms; /* of waiting, after which it is reported */
    tr__recorder *recorder;
    struct tr__tcp *tcp;  /* joins us with those of other hosts; NULL: there are none */
    int *places;          /* a rank's place among us by its rank in the group; -1: it is on another host */
    tr__endpoint *endpoint;      /* of this process */
    tr__attachment *attachment;  /* of the group to it */
    bool met;                    /* the peers may know of us */
    tr__shm_peer *peers; /* [world_size], ourselves included */
    tr__shm_control *control; /* our own */
    tr__shm_listener listener; /* of a first group */

    tr__failure *failure;        /* of the group */
    tr__failure_listener on_failure; /* from when the peers may know of us until we close */

    const tr__raw_events *_Atomic raw; /* who hears of what the peers show, and of their end (comm/group/raw.h) */

    /* For the thread that runs a collective. */
    uint64_t steps;              /* taken by all collectives so far */
    int cores;
    bool crowded;                /* more ranks than cores: spinning only keeps the others from working */
    int spins;
    size_t cache_bytes;          /* that the ranks share */
    tr__segment own;             /* the latest lookup of our own memory, true while the generation is the same */
    uint64_t own_generation;
    char *staging;
    const void **in;             /* [world_size], for kernels */
    void **out;
    tr__shm_fold_views *views;   /* [world_size] */
    tr__shm_tuning tuning[2][TR__SHM_CROSS_SIZES]; /* pulls and folds */
    tr__shm_buffer *buffers;     /* [TR__SHM_BUFFERS], the latest first; NULL: not needed yet */
    char *scratch;               /* TR__SHM_SCRATCH bytes; NULL: not needed yet */
    char **stagings;             /* [world_size]: the ranks' staging areas */
} tr__shm;

/* A call of all ranks of a group over several hosts, of which each host runs parts. */
typedef struct tr__shm_whole {
    const tr_collective *call;
    uint64_t sequence, layout;
} tr__shm_whole;

/* A collective that is running. */
typedef struct tr__shm_call {
    const tr_collective *c; /* NULL: the ranks are joining, and have met here */
    tr__rendezvous *meeting;
    const tr__endpoint_record *records;
    const tr__shm_whole *whole; /* what it is a part of, or NULL */
    const tr__kind *kind;
    uint64_t sequence;
    int timeout_ms;
    size_t size;     /* of an element */
    size_t bytes;    /* of the input; of a _V kind of ours, else of anyone's */
    uint32_t way;    /* TR__SHM_INLINED, TR__SHM_PLACED or 0, how our input is published */
    tr__shm_tuning *tuning; /* of our private buffer, which goes by it; NULL: it has none */
    bool filled;     /* our first chunk is in the staging area already */
    bool streams;    /* copies of whole blocks go past the caches */
    bool crossed;    /* we have read or written a peer's buffer where it lies */
    int64_t began;   /* when the first wait that took long did; 0: none yet */
    bool reported;
} tr__shm_call;

static inline tr__shm_slot *tr__shm_slot_of(const tr__shm *t, const tr__shm_call *call, int rank)
{
    return &t->peers[rank].control->slots[call->sequence & 1];
}

/* The step in which a chunk of the call passes through a staging area. */
static inline uint64_t tr__shm_step(const tr__shm *t, int64_t index)
{
    return t->steps + 1 + (uint64_t)index;
}

/* ---- shm.c ------------------------------------------------------------------------------------------------------- */

/* Makes a rank's side, with an endpoint of its own, and its listener, whose address goes into the endpoint record. */
tr_status tr__shm_new(const tr__member *member, tr__failure *failure, tr__endpoint_record *record, tr__shm **transport);
/* Before they meet: joins only the ranks of our host. tcp joins all. */
void tr__shm_settle(tr__shm *t, const tr__hosts *hosts, struct tr__tcp *tcp);
/* Connects with all ranks, whose records are given, and waits until all are there. */
tr_status tr__shm_meet(tr__shm *t, tr__rendezvous *meeting, tr__endpoint_record *records);
/* All are connected: the monitor begins to watch. */
tr_status tr__shm_begin(tr__shm *t);
/* Says goodbye to the ranks that are connected and frees all. */
void tr__shm_close(tr__shm *t);

/* A group within another one whose ranks share memory, before they have agreed on it: makes a rank's side, which hears from now
 * on what is for the group of this number, and says where its control block is. */
tr_status tr__shm_prepare(tr__shm *parent, uint64_t id, tr__failure *failure, tr__shm **made, tr__shm_place *block);
/* They have. hosts: of the new group, and tcp joins us with those of other hosts; NULL, both: all are on this one. */
tr_status tr__shm_enter(tr__shm *t, const tr__shm *parent, const tr__seat *seat, const tr__hosts *hosts, struct tr__tcp *tcp,
    const tr__member *member);
/* They may have, but this rank cannot come: from now on all ranks of the parent hear from it. */
void tr__shm_enter_all(tr__shm *t, const tr__shm *parent);

/* Before a failure of our own: if a peer has given the group up, waits for its reason, which is on its way, and fails with that.
 * TR_OK: no peer has, or its reason does not come in time. */
tr_status tr__shm_check_peers(tr__shm *t, int timeout_ms);
/* The same, of a peer that is known to give up soon. */
tr_status tr__shm_await_reason(tr__shm *t, int timeout_ms);

/* Queues a message for a peer; fd is passed along and closed (-1: none). */
tr_status tr__shm_post(tr__shm *t, tr__shm_peer *peer, const tr__shm_message *message, int fd);
void tr__shm_ring(tr__shm_control *control);

/* ---- shm_join.c -------------------------------------------------------------------------------------------------- */

tr_status tr__shm_listen(tr__shm *t, tr__endpoint_record *record);
/* Connects to the ranks below, lets in those above, and maps everyone's control block. */
tr_status tr__shm_connect(tr__shm *t, tr__rendezvous *meeting, tr__endpoint_record *records);

/* ---- shm_heard.c ------------------------------------------------------------------------------------------------- */

extern const tr__attached tr__shm_attached;

/* ---- shm_segments.c ---------------------------------------------------------------------------------------------- */

/* Is [memory, memory + bytes) in a segment of ours? Then says where, and tells the peers of the segment if they do
 * not know it yet. */
tr_status tr__shm_show(tr__shm *t, const void *memory, size_t bytes, tr__shm_place *place, bool *shared);
/* What a place of a peer is here; waits until its segment has come. */
tr_status tr__shm_find(tr__shm *t, tr__shm_call *call, int rank, tr__shm_place place, size_t bytes, tr__shm_view *view);
/* As show and find, of any thread: place->segment is 0 for memory that is not shared; copies out what a peer shows, unless it has
 * given the group up. began: since when the call waits; 0: it did not yet. */
tr_status tr__shm_offer(tr__shm *t, const void *memory, size_t bytes, tr__shm_place *place);
tr_status tr__shm_fetch(tr__shm *t, int rank, tr__shm_place place, size_t bytes, void *to, int64_t began,
    int timeout_ms);
/* Finds a peer's control block, which it has told us of, when its memory has come. */
tr_status tr__shm_find_control(tr__shm *t, tr__shm_call *call, int rank, tr__shm_place place, tr__shm_control **control);
/* Around all that uses the peers' mappings. */
static inline void tr__shm_use(tr__shm *t)
{
    tr__attachment_busy(t->attachment);
}
static inline void tr__shm_idle(tr__shm *t)
{
    tr__attachment_idle(t->attachment);
}

/* ---- shm_wait.c -------------------------------------------------------------------------------------------------- */

/* A counter in every control block. */
typedef enum tr__shm_word {
    TR__SHM_ENTERED_EVEN,
    TR__SHM_ENTERED_ODD,
    TR__SHM_FILLED,
    TR__SHM_DONE,
} tr__shm_word;

/* Sets a counter of ours, after all that was written before, and wakes the peers that wait for it. */
void tr__shm_signal(tr__shm *t, tr__shm_word word, uint64_t value);
/* Waits until the counters of all peers, or of `only` one rank (-1: all), have reached value. */
tr_status tr__shm_await(tr__shm *t, tr__shm_call *call, tr__shm_word word, uint64_t value, int only);
/* What the others see of a call: all but its layout. */
void tr__shm_signature(const tr__shm_slot *slot, uint64_t sequence, tr__signature *signature);
/* The latest collective that a rank has entered; 0: none. */
uint64_t tr__shm_entered(const tr__shm_control *control);
/* The collective that a rank is in, or was last; false when it has made none. */
bool tr__shm_last_call(const tr__shm_control *control, tr__signature *signature, bool *finished);
/* The send or receive that a rank began last, if it has entered no collective since. */
bool tr__shm_last_transfer(const tr__shm_control *control, tr__signature *signature, bool *finished);

/* The rank that all wait for when one waits for `rank`, which may itself wait for another, and so on. */
int tr__shm_culprit(const tr__shm *t, int rank);
/* "rank 2 has done all_reduce #17 (…) and is in recv (…)" */
enum { TR__SHM_STATE_TEXT = 2 * TR__CALL_TEXT + 64 };
char *tr__shm_state_text(const tr__shm_peer *peer, char text[TR__SHM_STATE_TEXT]);

/* ---- shm_channel.c ----------------------------------------------------------------------------------------------- */

/* The monitor's: a peer has made a channel to us. */
tr_status tr__shm_channel_came(tr__shm *t, tr__shm_peer *peer, uint64_t id, size_t bytes, int fd);
/* Lets a rank look at its sends and receives. */
void tr__shm_mail(tr__shm_control *control);

/* ---- shm_call.c -------------------------------------------------------------------------------------------------- */

tr_status tr__shm_run(tr__shm *t, const tr_collective *collective, uint64_t sequence);
/* A part of a call; parts are counted by themselves. A reduce_scatter may have .in_counts and .in_offsets, of which none
 * is longer than the first. Who sees a part fail breaks the group. */
tr_status tr__shm_run_part(tr__shm *t, const tr_collective *part, const tr__shm_whole *whole, uint64_t sequence);
/* All parts of a call are done; none will be done any more. */
static inline void tr__shm_finish(tr__shm *t, uint64_t sequence)
{
    atomic_store_explicit(&t->control->finished, sequence, memory_order_release);
}
static inline void tr__shm_fail(tr__shm *t, const tr__shm_whole *whole) { atomic_store(&t->control->failed, whole->sequence); }

/* Does this rank have data that others read? */
bool tr__shm_publishes(const tr_collective *c, int rank);
/* What a rank has put in its slot. */
char *tr__shm_inline(const tr__shm *t, const tr__shm_call *call, int rank);

/* ---- shm_cross.c ------------------------------------------------------------------------------------------------- */

/* Between these two a rank reads and writes peers' buffers where they lie, mapped or private: a peer whose call fails meanwhile does
 * not return until then. Refused when `rank`'s call has failed (-1: any rank's). Not to be held while waiting for others. */
tr_status tr__shm_cross(tr__shm *t, const tr__shm_call *call, int rank);
static inline void tr__shm_cross_end(tr__shm *t)
{
    atomic_store_explicit(&t->control->crossing, 0, memory_order_release);
}
/* Copies a rank's private memory to memory of ours, or (NULL) writes to it from there, while crossing; ends that when it fails. */
tr_status tr__shm_copy(tr__shm *t, const tr__shm_call *call, int rank, uint64_t address, size_t bytes, char *to, const char *from);
/* A rank has died, or given the group up: fails with the reason, which is known or on its way. */
tr_status tr__shm_lost(tr__shm *t, const tr__shm_peer *peer, int timeout_ms);
/* After a call that crossed: did no peer give it up before we were done with its buffers? */
tr_status tr__shm_cross_check(tr__shm *t, const tr__shm_call *call);
/* Shall the peers reach our private buffer of this call where it lies? Asked once in each call that has one. */
bool tr__shm_tuning_prefers(tr__shm_tuning *tuning);
/* How long the call took from when all had entered it. */
void tr__shm_tuning_note(tr__shm_tuning *tuning, bool placed, int64_t ns);
/* A call has a private buffer of ours. */
void tr__shm_note_private(tr__shm *t, const void *buffer, size_t bytes);
/* The call has failed here. Its buffers are the program's when this returns: nobody reads or writes them any more. */
void tr__shm_withdraw(tr__shm *t, const tr__shm_call *call);

/* ---- shm_stage.c ------------------------------------------------------------------------------------------------- */

/* Makes our staging area at its first use and lets the peers find it. */
tr_status tr__shm_stage_make(tr__shm *t);
/* Finds a rank's: t->stagings[rank]. */
tr_status tr__shm_stage_find(tr__shm *t, tr__shm_call *call, int rank);

/* A piece of a block, in bytes: where it is in the buffer, and in a staging area. */
typedef struct tr__shm_piece {
    size_t begin, bytes, staged;
} tr__shm_piece;

/* How many chunks a block of so many elements makes. */
int64_t tr__shm_chunks(const tr__shm *t, const tr__shm_call *call, int64_t block);
/* Piece `index`, of step t->steps + 1 + index, of the block that is number `number`; of none behind the last. */
tr__shm_piece tr__shm_piece_at(const tr__shm *t, const tr__shm_call *call, tr__range block, int64_t index, int number);

/* ---- shm_fold.c -------------------------------------------------------------------------------------------------- */

void tr__shm_fold_inline(tr__shm *t, tr__shm_call *call);
tr_status tr__shm_fold_placed(tr__shm *t, tr__shm_call *call);
tr_status tr__shm_fold_staged(tr__shm *t, tr__shm_call *call);
/* Puts a chunk into the staging area; that of index 0 may go there before the call is entered. */
void tr__shm_fold_fill(tr__shm *t, tr__shm_call *call, int64_t index);

/* ---- shm_pull.c -------------------------------------------------------------------------------------------------- */

tr_status tr__shm_pull(tr__shm *t, tr__shm_call *call);
tr_status tr__shm_pull_fill(tr__shm *t, tr__shm_call *call, int64_t index);

#endif
