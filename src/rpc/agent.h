/*
 * The agent: what its files share; docs/rpc.md tells the whole story.
 *
 *   agent.c       making and ending it; functions; workers that are gone
 *   call.c        calls: requests that go out, and their replies
 *   answer.c      those that come in, and their replies
 *   message.c     what both need: sending, and references among values
 *   future.c      waiting for them
 *   serve.c       the threads that run functions, and how messages are found
 *   link.c        messages on their way to a worker: rings in shared memory, connections to other hosts
 *   blocks.c      shared memory in which tensors go to a worker of this host
 *   frame.h       messages as bytes
 *   rref.c        references; rref_state.h counts them
 *   drain.c       the end: when is nothing under way any more?
 *
 * Locks, in the order in which they may be taken: `reading`, then a stream's or another one; within these only the
 * endpoint's. No function or callback of a program's runs under a lock.
 */
#ifndef TR_RPC_AGENT_H
#define TR_RPC_AGENT_H

#include "comm/group/group.h"
#include "comm/group/raw.h"
#include "rpc/frame.h"
#include "rpc/rref_state.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    TR__RPC_WORKER_NAME = 64,
    TR__RPC_THREADS = 4,
    TR__RPC_THREADS_MOST = 512,
    TR__RPC_TIMEOUT_MS = 60000,
    TR__RPC_QUEUE_MB = 256,
    TR__RPC_CALLS_MOST = 16384, /* under way to one worker: one that puts its answers off has many */
};

/* ---- Futures ----------------------------------------------------------------------------------------------------- */

typedef struct tr__rpc_then {
    struct tr__rpc_then *next;
    tr_future *future; /* a reference, once it has ended */
    void (*callback)(tr_future *future, void *user);
    void *user;
    bool quick;
} tr__rpc_then;

struct tr_future {
    tr__object object;
    atomic_uint done;        /* futex word: 0, then 1 */
    atomic_int sleepers;
    tr_rpc *rpc;             /* a reference, unless it is loose; NULL: of a call that never began */
    bool loose;              /* the agent's own */
    /* Set before others know of it. */
    uint64_t id;             /* of a call; 0: what is waited for is made here */
    int worker;
    int timeout_ms;
    int64_t deadline;
    char function[64];       /* of a value that is made here, under agent->refs_lock: by which one; "": that is not known yet */
    tr_rref *held;           /* a reference that must live as long as the call, */
    tr_rref *kept;           /* and of tr_remote() the one to its result */
    tr__rref_entry *making;  /* of tr_remote(): to be told when the request is there */
    tr_future *next, *next_lost; /* of values that are given up; of those that will never be made, as also this one */
    bool lost;               /* (under agent->refs_lock) */
    pthread_mutex_t lock;    /* for what follows */
    tr__rpc_then *thens;
    /* Set before `done`. */
    struct tr__rpc_inbound *message; /* what strings and bytes of the value lie in */
    tr_value value;          /* with references of its own */
    tr__error *failure;
};

tr_future *tr__future_new(tr_rpc *rpc);
/* One of the agent's own, which does not keep it alive; the reference is the caller's. */
tr_future *tr__future_new_loose(tr_rpc *rpc);
/* Takes over the value's references, or the failure. The first end counts: returns whether this is it. The caller has taken
 * the future out of the table of calls, or it never was there. */
void tr__future_finish(tr_future *f, const tr_value *value, struct tr__rpc_inbound *message);
void tr__future_fail(tr_future *f, tr__error *failure); /* takes the reference */
/* The object that a value is, or NULL; one more reference of it. */
const void *tr__rpc_value_object(const tr_value *value);
void tr__rpc_value_ref(const tr_value *value);
/* The same for good: with copies of strings and bytes, which lie in *texts (or NULL). */
tr_status tr__rpc_value_keep(const tr_value *value, tr_value *kept, struct tr__rpc_inbound **texts);

/* ---- Messages that have come --------------------------------------------------------------------------------------- */

typedef struct tr__rpc_inbound {
    struct tr__rpc_inbound *next;
    int from;
    bool cancelled;
    tr__rpc_frame frame;
    int piece_count;
    tr__rpc_arrived *pieces;
    unsigned char *body; /* frame.body bytes and a NUL */
} tr__rpc_inbound;

/* With room for the body and pieces; NULL without memory. */
tr__rpc_inbound *tr__inbound_new(int from, const tr__rpc_frame *frame);
void tr__inbound_free(tr__rpc_inbound *m);

/* ---- Links ------------------------------------------------------------------------------------------------------- */

typedef struct tr__rpc_stream tr__rpc_stream; /* link.c */
typedef struct tr__rpc_shared_block tr__rpc_shared_block;   /* blocks.c */

typedef struct tr__rpc_blocks { /* that we have made for a worker */
    pthread_mutex_t lock;
    tr__rpc_shared_block *first;
    uint64_t id; /* the number of our ring's segment: no other link of this process ever has it */
    char *chunk; /* under `reading`: a part of a piece, on its way to a block of the worker's; or NULL */
} tr__rpc_blocks;

/* From TR__RPC_DAMAGED on, what has come is not read any more. */
typedef enum tr__rpc_ending { TR__RPC_LASTS, TR__RPC_LEFT, TR__RPC_DIED, TR__RPC_CUT, TR__RPC_DAMAGED,
    TR__RPC_CORRUPT, TR__RPC_NOT_SHOWN, TR__RPC_MISSED } tr__rpc_ending;

typedef struct tr__rpc_link {
    int worker;
    bool local; /* on this host, and not ourselves */
    bool crosses; /* and we may read each other's memory, and have a core each */
    char name[TR__RPC_WORKER_NAME];
    tr__rpc_stream *stream; /* NULL: ourselves, or not yet */
    tr__rpc_blocks blocks;
    atomic_int ending;  /* a tr__rpc_ending that the clock is to deal with */
    tr__error *missed;  /* with TR__RPC_MISSED, set before: why memory that it has shown cannot be mapped here */
    atomic_int found;   /* its messages that have been read and are not dealt with yet */
    atomic_bool gone;   /* no message comes or goes any more */
    bool lost;          /* then: before the end was known (under agent->drain_lock, as it becomes gone); and */
    tr__error *why;     /* both set before */
    /* Under agent->calls_lock: what is under way to it, given up or not. */
    uint64_t charged;
    int calls;
    uint64_t refers_sent; /* messages about references: under agent->refs_lock; and */
    _Atomic uint64_t refers_heard;
} tr__rpc_link;

/* ---- The agent --------------------------------------------------------------------------------------------------- */

typedef struct tr__rpc_entry { /* a function, or a module's handler */
    struct tr__rpc_entry *next;
    tr_rpc_function function;
    void *state;
    tr__rpc_handler handler;
    bool attended;
    atomic_size_t result_bytes; /* bytes of its latest result's memory if nothing else referred to it; else 0 */
    char name[];
} tr__rpc_entry;

/* A function that runs for a worker: on its thread's stack. */
typedef struct tr__rpc_run {
    struct tr__rpc_run *next;
    const char *function;
    int from;
} tr__rpc_run;

enum { TR__RPC_BUSY = 192 }; /* room for: "head" for worker 0 ("front") */

/* A call that its worker is not through with. */
typedef struct tr__rpc_pending {
    struct tr__rpc_pending *next; /* in its bucket */
    uint64_t id, bytes; /* bytes: that count for the queue to the worker */
    int worker;
    tr_future *future;  /* a reference; NULL: the caller has given it up */
} tr__rpc_pending;

enum { TR__RPC_CALL_BUCKETS = 1024, TR__RPC_FUNCTION_BUCKETS = 64 };

/* Where workers of this host ring. */
typedef struct tr__rpc_bell {
    atomic_uint count;   /* futex word */
    atomic_int sleepers;
    atomic_int awake;    /* threads that look for messages by themselves */
} tr__rpc_bell;

/* What they see of us. */
typedef struct tr__rpc_page {
    uint32_t magic, version;
    tr__rpc_bell bell;
    _Atomic uint64_t rings[]; /* [world]: the segment of the ring to each of them */
} tr__rpc_page;

/* What any thread may use until the agent ends, which counts those that do. */
typedef atomic_int tr__rpc_gate;

struct tr_rpc {
    tr__object object;
    tr_group *group; /* a twin of the program's (comm/group/raw.h) */
    tr__raw_events raw_events;
    tr__recorder *recorder; /* the twin's: what threads here wait for; NULL: it has none */
    tr__rpc_gate recording, sending, answering; /* to the recorder; to the group's connections and memory; of deferred replies */
    int rank, world, local_rank;
    int threads_most;
    atomic_int timeout_ms; /* tests change it */
    uint64_t queue_bytes;
    tr__rpc_link *links; /* [world] */
    bool crowded;

    bool has_locks;
    atomic_bool stopped;   /* takes no more calls of the program's */
    atomic_bool closing;   /* threads end */

    pthread_mutex_t functions_lock;
    tr__rpc_entry *functions[TR__RPC_FUNCTION_BUCKETS];
    tr__rpc_hooks hooks;
    atomic_bool has_hooks;

    pthread_mutex_t calls_lock;
    pthread_cond_t calls_changed; /* room in a queue, or a link is gone */
    tr__rpc_pending *calls[TR__RPC_CALL_BUCKETS];
    uint64_t next_id;
    int call_count; /* of those that somebody waits for */
    uint64_t calls_ever;
    int64_t next_deadline; /* when the clock looks next */
    atomic_uint any_ended; /* futex word: how many have ended while threads wait for any of several, */
    atomic_int any_waiters; /* and how many threads those are */

    pthread_mutex_t queue_lock;   /* requests that nobody runs yet */
    tr__rpc_inbound *first, *last;
    atomic_int queued, running;   /* requests; also read without the lock */
    atomic_int sleeping;          /* threads of ours */
    int threads, blocked;         /* blocked: of ours that wait for a call */
    pthread_t *handles;           /* [TR__RPC_THREADS_MOST] */
    tr__rpc_run *runs;            /* the latest first */
    uint64_t runs_ended;
    bool outlived;                 /* a function outlived tr_rpc_stop(): what it needs goes with the agent */

    pthread_mutex_t reading;      /* who looks into rings and streams */
    bool deaf;                    /* under `reading`: nobody does any more, as the group is being left */
    tr__rpc_inbound *found, **found_last; /* under `reading` */
    atomic_int spinner;           /* a thread of ours spins for all */
    tr__rpc_page *page;           /* in shared memory */
    int watch, dozing, kick;      /* if one is elsewhere: epoll of the streams; epoll in which threads of ours sleep, of that
                                     one and of the kick, an eventfd; else -1 */
    pthread_mutex_t dozing_lock;
    bool dozing_hears;            /* of the streams: while nobody is awake */
    bool has_relay;
    pthread_t relay;              /* rings of the bell become kicks */

    pthread_mutex_t clock_lock;
    pthread_cond_t clock_changed;
    bool has_clock, clock_rung;
    pthread_t clock;

    pthread_mutex_t refs_lock;
    tr__rref_table *refs;
    tr_future *freed, *lost;      /* values to be given up, or to be failed, outside the lock */

    pthread_mutex_t drain_lock;   /* for the end */
    pthread_cond_t drain_changed;
    bool stopping;                /* tr_rpc_stop() is called here */
    atomic_bool ended;            /* all are done; set under the lock */
    uint64_t round;               /* of questions that we ask */
    struct tr__rpc_answer {
        uint64_t round;
        uint64_t begun;           /* calls, and messages about references, so far */
        uint64_t unheard;         /* of the latter: tr__refs_sent() */
        uint64_t runs_ended;
        int state;
        int64_t heard;
        bool given_up;            /* and has not answered since */
        char busy[TR__RPC_BUSY];  /* what it runs; "": nothing */
    } *answers;                   /* [world]; our own, too, while we ask */
    _Atomic int64_t moved;        /* when something happened last; no reason to wake: a worker that serves others waits for hours */
    int64_t stuck_since;          /* all have stopped, nobody waits for a call, and yet functions run; 0: it is not so */
    uint64_t stuck_ended;         /* how many had ended then, everywhere */
    uint64_t stop_record;         /* tr_rpc_stop()'s in the flight record */
    bool stop_names;              /* it names whom it waits for */
    tr_status end_status;         /* what tr_rpc_stop() returns: TR_OK, TR_TIMEOUT when somebody was given up, or why a */
    char end_text[512];           /* worker was lost; and its message */
};

/* ---- agent.c ----------------------------------------------------------------------------------------------------- */

tr_status tr__rpc_check(const tr_rpc *rpc);
/* Fails as what comes too late. */
tr_status tr__rpc_has_stopped(const tr_rpc *rpc);
/* Around the use of something: false: it is not to be used any more. */
bool tr__rpc_enter(tr__rpc_gate *gate);
void tr__rpc_leave(tr__rpc_gate *gate);
/* Around what threads of ours do: whoever destroys the agent joins them, so none may drop the last reference, as that of a
 * future which the program has dropped. False: the agent is being destroyed already, and nothing may be begun. */
bool tr__rpc_hold(tr_rpc *rpc);
void tr__rpc_let_go(tr_rpc *rpc);
/* A worker by name or number; fails with what there is. */
tr_status tr__rpc_find_worker(const tr_rpc *rpc, const char *name, int number, int *worker);
const tr__rpc_entry *tr__rpc_find_function(tr_rpc *rpc, const char *name);
/* The link is at its end: what came before is read yet, then all calls to the worker fail. The clock does that. False: it was
 * at its end before. */
bool tr__rpc_lose(tr_rpc *rpc, int worker, tr__rpc_ending ending);
/* Fails with why a worker is lost, and its name. */
tr_status tr__rpc_say_why(const tr_rpc *rpc, const tr__rpc_link *link, tr__rpc_ending ending);
/* The clock's part of it. True: it should look again soon. */
bool tr__rpc_end_links(tr_rpc *rpc);

/* ---- call.c ------------------------------------------------------------------------------------------------------ */

/* A message from a link. Any thread that reads. */
void tr__rpc_arrived_message(tr_rpc *rpc, tr__rpc_inbound *m);
/* "rpc head on \"back\"", "distributed step on \"back\"": notes in the flight record that the thread is about to sleep until it is
 * done. */
uint64_t tr__rpc_record_wait(const tr_future *f);
/* All calls to a worker end with this failure. */
void tr__rpc_fail_calls(tr_rpc *rpc, int worker, const tr__error *why);
/* Those whose time is up; returns when the next one is. */
int64_t tr__rpc_expire_calls(tr_rpc *rpc, int64_t now);
#define TR__RPC_FETCH ".value of a reference" /* gives the value that it is called on */
/* In a request: the result stays where it is made; a value there comes before the arguments. */
enum tr__rpc_call_flags { TR__CALL_KEEP = 1, TR__CALL_DEREFERENCE = 2 };
typedef struct tr__rpc_plan { /* a call of any kind */
    const char *function;
    const tr_value *values;
    int count, worker, timeout_ms;
    tr_rref *ref;   /* to the value that comes first; or NULL */
    tr_rref **kept; /* tr_remote(): becomes the reference to the result; else NULL */
} tr__rpc_plan;
tr_future *tr__rpc_begin(tr_rpc *rpc, const tr__rpc_plan *plan);

/* ---- message.c --------------------------------------------------------------------------------------------------- */

/* Sends a message; `to` may be ourselves. The writer stays the caller's. */
tr_status tr__rpc_send(tr_rpc *rpc, int to, tr__rpc_frame frame, const tr__rpc_writer *w);
/* Sends a message of bytes and a text (NULL: none). A failure is not reported: it fails with its link, of which everybody hears. */
void tr__rpc_tell(tr_rpc *rpc, int to, tr__rpc_frame frame, const void *bytes, size_t count, const char *text);
/* The bytes that a piece refers to, row-major. */
tr_status tr__rpc_piece_copy(const tr__rpc_piece *piece, void *to);
/* Memory for a piece; tensors will lie in it. */
bool tr__rpc_piece_alloc(tr__rpc_arrived *piece, uint64_t bytes);

/* Do a module's hooks see its values? Messages of modules pass unseen, but a value that is fetched does not. */
bool tr__rpc_is_hooked(tr_rpc *rpc, const char *function);
/* Lets them see values that go out; and hear that these have not. */
tr_status tr__rpc_outgoing(tr_rpc *rpc, int to, bool is_reply, tr_value *values, int count, tr__rpc_note *note);
void tr__rpc_unsent(tr_rpc *rpc, const tr__rpc_note *note);

/* A writer that hands references over; when the message has not been sent, they are taken back. */
typedef struct tr__rpc_hand_over {
    tr_rpc *rpc;
    int to;
    tr__rref_token *given; /* so far */
    size_t count, room;
} tr__rpc_hand_over;
void tr__rpc_write_to(tr__rpc_writer *w, tr__rpc_hand_over *h, tr_rpc *rpc, int to);
void tr__rpc_written(tr__rpc_writer *w, tr__rpc_hand_over *h, tr_status sent);

/* A reader that takes references in. */
typedef struct tr__rpc_take_in {
    tr_rpc *rpc;
    int from;
} tr__rpc_take_in;
tr__rpc_reader tr__rpc_read_from(tr__rpc_inbound *m, tr__rpc_take_in *t);

/* ---- answer.c ---------------------------------------------------------------------------------------------------- */

/* Runs a request and answers it; frees it. */
void tr__rpc_serve(tr_rpc *rpc, tr__rpc_inbound *m);
/* The function that has run longest here, and for whom; "": none runs. Returns how many have ended so far. */
uint64_t tr__rpc_busy(tr_rpc *rpc, char text[TR__RPC_BUSY]);

/* ---- serve.c ----------------------------------------------------------------------------------------------------- */

tr_status tr__rpc_start_threads(tr_rpc *rpc);
/* From here on no call begins, and none ends by its timeout. */
void tr__rpc_end_clock(tr_rpc *rpc);
void tr__rpc_end_threads(tr_rpc *rpc);
/* A message has been read; under `reading`. */
void tr__rpc_found(tr_rpc *rpc, tr__rpc_inbound *m);
/* Queues a request. */
void tr__rpc_enqueue(tr_rpc *rpc, tr__rpc_inbound *m);
/* What this thread, which is at a batch of messages, attends to; NULL: nothing. */
const tr__rpc_attention *tr__rpc_attends(const tr_rpc *rpc);
/* Carries such a request out on this thread, after the batch. */
void tr__rpc_serve_later(tr__rpc_inbound *m);
/* A request that has not begun never will. */
void tr__rpc_cancel(tr_rpc *rpc, int from, uint64_t id);
/* Reads what a worker that is gone has left, and returns when all of it is dealt with. */
void tr__rpc_read_rest(tr_rpc *rpc, tr__rpc_link *link);
/* Looks for messages once, unless another thread does; never sleeps. */
void tr__rpc_poll(tr_rpc *rpc);
/* Wakes a thread that sleeps for messages. */
void tr__rpc_kick(tr_rpc *rpc);
void tr__rpc_wake_clock(tr_rpc *rpc);
/* False: this thread is at a batch of messages, or the clock. What it would wait for may need just that. */
bool tr__rpc_may_wait(void);
/* Runs a request on this thread when there can be no more threads; true: do so now and then. */
bool tr__rpc_help(tr_rpc *rpc);
/* Runs what was to be run at the end of calls, and frees the list; later, if this thread is at other messages. */
void tr__rpc_call_back(tr__rpc_then *thens);
/* This thread, about to reply, keeps counting as awake, as it looks for messages right after: who gets a reply most often asks
 * again at once. No effect within a request that it serves while it waits for something else. */
void tr__rpc_stay_awake(tr_rpc *rpc);
int tr__rpc_requests(tr_rpc *rpc); /* that are queued or run */

/* ---- link.c ------------------------------------------------------------------------------------------------------ */

/* Where a piece lies. segment: the block, whose data begin TR__RPC_BLOCK_HEAD bytes in; with TR__RPC_YOURS it is one that the
 * receiver has made. 0: the data follow in the stream. */
#define TR__RPC_YOURS ((uint64_t)1 << 63)
typedef struct tr__rpc_place {
    uint64_t segment, bytes;
} tr__rpc_place;

/* To a worker of this host, one after the other. Before others know of the agent: */
tr_status tr__link_make_ring(tr__rpc_link *link);
/* When the group can show memory: */
tr_status tr__link_show_ring(tr_rpc *rpc, tr__rpc_link *link);
/* When the worker has shown its ring, and said which page leads to it: */
tr_status tr__link_find_ring(tr_rpc *rpc, tr__rpc_link *link, uint64_t page);
/* To one of another host, over a wire that lasts longer than the link. */
tr_status tr__link_connect(tr_rpc *rpc, tr__rpc_link *link, tr__wire *wire);
void tr__link_free(tr__rpc_link *link);

tr_status tr__link_send(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_frame *frame, const tr__rpc_writer *w);
/* Is there something to read, or room for what could not be sent? */
bool tr__link_waiting(const tr__rpc_link *link);
/* Under `reading`: reads what is there, or a part of it, as others may wait. */
void tr__link_read(tr_rpc *rpc, tr__rpc_link *link);
/* What epoll has told of; reading then goes on until nothing is there. */
void tr__link_ready(tr__rpc_link *link, uint32_t events);
/* The worker has shown memory. */
void tr__link_shown(tr_rpc *rpc, tr__rpc_link *link);
/* Has it been at its end for so long, or kept reading waiting, that nothing will come any more? `pending`: it may be so soon. */
tr__rpc_ending tr__link_over(const tr_rpc *rpc, const tr__rpc_link *link, int64_t now, bool *pending);
/* Tells the other end that we read no more. */
void tr__link_refuse(tr__rpc_link *link);
/* Sends what is left, until then at most. */
void tr__link_finish(tr__rpc_link *link, int64_t deadline);

/* ---- blocks.c ---------------------------------------------------------------------------------------------------- */

enum { TR__RPC_BLOCK_HEAD = 64 };
typedef struct tr__rpc_block_head { /* the first TR__RPC_BLOCK_HEAD bytes of a block */
    atomic_uint busy;    /* from when it is taken until the receiver has no use for it any more */
    atomic_uint copying; /* the sender still copies the piece, from there; and how far both are: blocks.c */
    _Atomic uint64_t from, progress;
} tr__rpc_block_head;

/* Memory for a piece of so many bytes, which is the receiver's from when it is sent. NULL: no memory. */
tr__rpc_shared_block *tr__block_take(tr_rpc *rpc, tr__rpc_link *link, size_t bytes, void **memory, uint64_t *segment);
/* The piece is in it. Its receiver's store says the same to the next thread that takes it, but where that is another process,
 * ThreadSanitizer does not see it. */
void tr__block_filled(tr__rpc_shared_block *b);
/* The message is sent before this piece is copied; then the sender copies it, and the receiver helps. */
void tr__block_offer(tr__rpc_shared_block *b, const void *from, uint64_t bytes);
void tr__block_copy(tr__rpc_shared_block *b, const void *from, uint64_t bytes);
/* Is a piece there that has arrived, is there more to help with, or is its sender waited for? */
typedef enum tr__rpc_copying { TR__RPC_COPIED, TR__RPC_COPYING, TR__RPC_AWAITED } tr__rpc_copying;
tr__rpc_copying tr__block_help(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_arrived *piece);
/* It was not sent. */
void tr__block_give_back(tr__rpc_shared_block *b);
/* We do not write to it any more: it is freed when it was not used for a while, or the receiver is gone. */
void tr__block_left(tr__rpc_shared_block *b);
/* Frees those that have not been used for a while. */
void tr__blocks_trim(tr__rpc_link *link);
void tr__blocks_free(tr__rpc_link *link);
/* A piece in a block of a worker's; takes the mapping over. False: it is longer than its block, or there is no memory. */
bool tr__block_arrived(const tr__rpc_link *link, const tr__shm_mapping *mapping, uint64_t bytes, tr__rpc_arrived *piece);
/* A piece in a block of ours, which the worker sends back. False: it does not have it, or it is not as long. */
bool tr__block_came_back(tr__rpc_link *link, uint64_t segment, uint64_t bytes, tr__rpc_arrived *piece);
/* A tr__storage_source of what a function makes for a worker of this host, to be passed on. */
typedef struct tr__block_target {
    tr_rpc *rpc;
    tr__rpc_link *link;
    unsigned forks; /* tr__forks() when it was set */
} tr__block_target;
struct tr__storage;
bool tr__block_make(void *target, struct tr__storage *storage);
/* Does a tensor of the value, or of its list, lie in a block that the worker can be sent as it is? */
bool tr__block_holds(tr__rpc_link *link, const tr_value *value);
/* Passes on the block of a tensor that is sent and then released: its number for the worker, which owns the block once the message
 * is sent. 0: not in such a block, or something else refers to the tensor or its memory. */
uint64_t tr__block_pass_on(tr__rpc_link *link, const tr_tensor *x);
/* Takes that back, as the message was not sent; any other tensor stays as it is. */
void tr__block_keep(tr__rpc_link *link, const tr_tensor *x);

/* ---- rref.c ------------------------------------------------------------------------------------------------------ */

struct tr_rref {
    tr__object object;
    tr_rpc *rpc;           /* a reference */
    tr__rref_entry *entry; /* a handle, until the agent has stopped */
    tr__rref_number id;
    int owner;
};

tr_status tr__refs_start(tr_rpc *rpc);
void tr__refs_free(tr_rpc *rpc);
tr_status tr__refs_check(const tr_rref *ref);
tr_status tr__refs_hand_over(tr_rpc *rpc, tr_rref *ref, int to, tr__rref_token *token);
void tr__refs_undo(tr_rpc *rpc, const tr__rref_token *token);
tr_rref *tr__refs_take_in(tr_rpc *rpc, int from, const tr__rref_token *token);
void tr__refs_heard(tr_rpc *rpc, const tr__rpc_inbound *m);
void tr__refs_gone(tr_rpc *rpc, int worker);
/* Messages about references so far. *unheard: of those to workers that are there, less what was heard from them; over all workers
 * that is how many are under way. */
uint64_t tr__refs_sent(tr_rpc *rpc, uint64_t *unheard);
void tr__refs_report(tr_rpc *rpc); /* values that others still refer to, to the log */
/* tr_remote(): the reference, and the token for the request; then, how that went. */
tr_rref *tr__refs_remote(tr_rpc *rpc, int owner, tr__rref_token *token);
void tr__refs_remote_done(tr_rpc *rpc, tr__rref_entry *entry, bool made);
void tr__refs_remote_late(tr_rpc *rpc, int owner, tr__rref_number value, bool made); /* of one that may be known no more */
/* At the owner: a value is to be made by a function; then, what it is (or the thread's latest failure, of NULL). */
tr_rref *tr__refs_making(tr_rpc *rpc, const tr__rref_token *token, const char *function);
void tr__refs_made(tr_rref *ref, const tr_value *value);
/* The value of an id of ours, waited for; the thread's scope holds what keeps it alive. */
tr_status tr__refs_value(tr_rpc *rpc, tr__rref_number id, tr_value *value);

/* ---- drain.c ----------------------------------------------------------------------------------------------------- */

void tr__drain_heard(tr_rpc *rpc, const tr__rpc_inbound *m);
/* Waits until all are done; or until one has not answered for the agent's timeout: then it fails and says which. It fails as well,
 * in the end, when a worker was lost. */
tr_status tr__drain(tr_rpc *rpc);
/* A link is gone, whose ->why is set; `left`: its worker has stopped. */
void tr__drain_gone(tr_rpc *rpc, tr__rpc_link *link, bool left);
/* Has this worker given another one up, which has not answered since? */
bool tr__drain_gave_up(tr_rpc *rpc, int worker);
void tr__drain_wake(tr_rpc *rpc);

#endif
