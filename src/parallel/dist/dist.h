/*
 * Distributed autograd, without its transport: contexts, what they record, and a worker's part in a backward.
 *
 * In a context, a tensor with a gradient that leaves a worker is noted there as *sent*: where in the local graph its
 * gradient has to go. At the worker where it arrives, a boundary node stands behind it, *received*: when its gradient is
 * final it goes back to the worker that sent the tensor. A backward walks the local graphs of all workers, which these
 * pairs join to one. docs/distributed-autograd.md shows how.
 *
 * All of it is driven by messages: tr__dist_handle() takes one in, the port sends them out. A message is a call: it is
 * answered once, with a status. Nothing here blocks.
 */
#ifndef TR_PARALLEL_DIST_DIST_H
#define TR_PARALLEL_DIST_DIST_H

#include "autograd/engine.h"

#include <trireme/dist.h>

#include <pthread.h>
#include <stdatomic.h>

/* Tensors of one record of what was sent: its gradients fit in one message. */
enum { TR__DIST_TENSORS = TR_VALUES_MAX - 1 };

/* A context, everywhere: the worker that made it, and its number there. */
typedef struct tr__dist_id {
    int64_t worker, number;
} tr__dist_id;

typedef enum tr__dist_kind {
    TR__DIST_GRADIENT, /* of what the receiver sent in the forward */
    TR__DIST_START,    /* FAST: take part, though no gradient may come to you */
    TR__DIST_MARK,     /* SMART: these of what you sent will get gradients */
    TR__DIST_ABORT,    /* the backward has failed */
    TR__DIST_RELEASE,  /* the context is over, maybe as its latest backward has failed */
    TR__DIST_KINDS
} tr__dist_kind;

typedef struct tr__dist_message {
    tr__dist_kind kind;
    tr__dist_id context;
    int64_t pass;         /* which backward of the context: 1, 2, … */
    bool smart, retain;
    const int64_t *numbers; /* MARK, GRADIENT (one): the receiver's, of what it sent; START: the sender's, of what it
                               has sent to the receiver and had no answer to */
    int n_numbers;
    tr_tensor *const *gradients; /* GRADIENT: of each tensor, NULL where there is none; or no gradients at all */
    int n_gradients;
    tr_status status;       /* ABORT, and RELEASE with a text: why the backward failed */
    const char *text;
} tr__dist_message;

/* How messages leave. */
typedef struct tr__dist_port {
    void *user;
    int self, workers;
    /* Sends a message, copying what it needs; tr__dist_answered(token, …) follows once, on any thread, maybe before
     * this returns. token NULL: nobody wants to know. */
    void (*send)(void *user, int to, const tr__dist_message *message, void *token);
    /* Answers a message that tr__dist_handle() got with this call. */
    void (*answer)(void *user, void *call, tr_status status, const char *text);
} tr__dist_port;

/* A worker's contexts. */
typedef struct tr__dist {
    tr__dist_port port;
    pthread_mutex_t lock;       /* of the list, and the numbers */
    tr_dist_context *contexts;
    int64_t next_number;
    atomic_bool told_of_graph_left; /* in the log: once is enough */
} tr__dist;

void tr__dist_init(tr__dist *dist, const tr__dist_port *port);
/* Drops the contexts. No message is under way any more. */
void tr__dist_end(tr__dist *dist);

/* Takes a message in. call: what port.answer gets, once, on any thread. */
void tr__dist_handle(tr__dist *dist, int from, const tr__dist_message *message, void *call);
/* A message that was sent with this token has been answered. Quick. */
void tr__dist_answered(void *token, tr_status status, const char *text);

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/* Where the gradient of a tensor that was sent goes. */
typedef struct tr__dist_place {
    tr__edge edge;  /* kept */
    tr__input like; /* what the gradient looks like */
} tr__dist_place;

typedef struct tr__dist_sent {
    int to, n;
    bool unsent;    /* it never left: no gradient will come */
    bool answered;  /* a reply, or one came back for it with tensors that have gradients */
    _Atomic int64_t pass; /* the latest backward that it takes part in, */
    atomic_bool arrived;  /* and has its gradient arrived in that? Who waits for the backward looks, too */
    tr__dist_place places[TR__DIST_TENSORS];
} tr__dist_sent;

/* The attributes of a boundary node. */
typedef struct tr__dist_received {
    tr__dist_id context;
    int64_t from, number; /* the worker that sent it, and its number there */
    int64_t index;        /* in the context's list here */
} tr__dist_received;

/* What is kept of one; the node itself hangs from the tensors. */
typedef struct tr__dist_recv {
    int from;
    int64_t number;
    int64_t pass; /* the latest backward that met it */
} tr__dist_recv;

/* Something that uses gradients as soon as they are complete. */
typedef struct tr__dist_early {
    struct tr__dist_early *next;
    tr_status (*use)(struct tr__dist_early *self, tr_tensor *leaf, tr_tensor *gradient);
    void (*free)(struct tr__dist_early *self);
} tr__dist_early;

struct tr_dist_context {
    tr__object object;
    tr__dist *dist;
    tr__dist_id id;
    tr_dist_context *next;     /* in the worker's list, which holds a reference */
    atomic_bool released;      /* set under dist->lock */
    pthread_mutex_t lock;      /* of all that follows */
    tr__dist_sent **sent;      /* number i stands at i */
    int64_t n_sent;
    size_t sent_room;
    tr__dist_recv *received;
    int64_t n_received;
    size_t received_room;
    uint8_t *touched;          /* [workers]: who knows of the context from here */
    struct tr__dist_grads *grads;
    tr__dist_early *early;     /* in the order in which they came; only added to */
    struct tr__dist_part *part; /* in the latest backward, or NULL */
    int64_t passes;            /* the latest backward that this worker knows of, */
    int64_t aborted;           /* and the latest that failed, */
    tr__error *abort_reason;   /* before this worker took part in it */
};

extern const tr__type tr__dist_context_type;

/* A new context of this worker's; in error without memory. One reference of the caller's. */
tr_dist_context *tr__dist_context_new(tr__dist *dist);
/* The context, made when this worker has not heard of it and make is set; with a reference of the caller's. NULL: not
 * there, or no memory. */
tr_dist_context *tr__dist_context_find(tr__dist *dist, tr__dist_id id, bool make);
/* Takes it off the list, and tells the workers that know of it from here. */
void tr__dist_context_release(tr_dist_context *context);
/* A worker has died: the contexts that it made are over. */
void tr__dist_gone(tr__dist *dist, int worker, const char *text);
bool tr__dist_context_is(const tr_dist_context *context, tr__dist_id id);

/* Notes that tensors go to a worker; all require gradients. They get numbers from *first on, one for each
 * TR__DIST_TENSORS of them. */
tr_status tr__dist_sends(tr_dist_context *context, int to, bool is_reply, tr_tensor *const *tensors, int n,
    int64_t *first);
/* They were not sent after all. */
void tr__dist_unsends(tr_dist_context *context, int64_t first, int64_t count);
/* Puts boundary nodes behind tensors that came from a worker, which knows them by these numbers. They are views of the
 * caller's, outside every graph. */
tr_status tr__dist_receives(tr_dist_context *context, int from, int64_t first, tr_tensor *const *tensors, int n);
/* A request from here touches the worker; and tensors with gradients came back for what was sent under these numbers. */
void tr__dist_touches(tr_dist_context *context, int worker);
void tr__dist_was_answered(tr_dist_context *context, int64_t first, int64_t count);

/* The context's gradients on this worker. The context's lock is held. */
tr_tensor *tr__dist_grads_find(const struct tr__dist_grads *grads, const tr_tensor *leaf);
tr_status tr__dist_grads_add(struct tr__dist_grads **grads, tr_tensor *leaf, tr_tensor *grad, tr_tensor **sum);
/* Puts another gradient in a leaf's place. */
void tr__dist_grads_replace(struct tr__dist_grads *grads, const tr_tensor *leaf, tr_tensor *grad);

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* Begins one from roots on this worker, which made the context. deadline_ns: of what hooks here wait for; 0: none. */
tr_status tr__dist_begin(tr_dist_context *context, tr_tensor *const *roots, tr_tensor *const *gradients, int n,
    bool smart, bool retain, int64_t deadline_ns);
/* It has ended on all workers, or failed. */
bool tr__dist_over(tr_dist_context *context);
/* The worker of the first gradient that has not come; -1: nothing went out, or all has come. */
int tr__dist_awaited(tr_dist_context *context);
/* SMART: all marks are answered, and the caller is to go on with tr__dist_continue(). */
bool tr__dist_marked(tr_dist_context *context);
void tr__dist_continue(tr_dist_context *context);
/* Waits until the one that was begun has ended on all workers, and continues it; TR_TIMEOUT when it has not by its deadline, or
 * without one after so long. */
tr_status tr__dist_await(tr_dist_context *context, int timeout_ms);
/* Fails this worker's part of the latest backward, if it is under way. */
void tr__dist_part_fail(tr_dist_context *context, tr_status status, const char *text);
/* Something came in after a backward may have begun. */
void tr__dist_part_late(tr_dist_context *context, const tr__dist_received *received);
void tr__dist_part_unref(struct tr__dist_part *part);

#endif
