/*
 * The seam between remote procedure calls and the modules above (distributed autograd): they see the values of each
 * message as it leaves and arrives, and have messages of their own. How the agent works inside is in rpc/agent.h.
 */
#ifndef TR_RPC_RPC_H
#define TR_RPC_RPC_H

#include "base/object.h"

#include <trireme/rpc.h>

#include <limits.h>

extern const tr__type tr__rpc_type, tr__future_type, tr__rref_type;

enum { TR__RPC_NOTE = 64 };

/* What a module gives a message on its way. */
typedef struct tr__rpc_note {
    uint32_t bytes; /* 0: nothing */
    unsigned char data[TR__RPC_NOTE];
} tr__rpc_note;

/* Any may be NULL. A replaced tensor belongs to the calling thread's innermost scope, in which all are called; tensors
 * may also stand in TENSORS lists. A failure fails the call. */
typedef struct tr__rpc_hooks {
    void *user;
    /* Before a request or reply goes out, on the thread that makes it: the caller's, or the one that ran the function.
     * Of a reply, `note` is the request's at first. */
    tr_status (*outgoing)(void *user, int to, bool is_reply, tr_value *values, int n, tr__rpc_note *note);
    /* One that `outgoing` gave this note was not sent after all; it has failed. */
    void (*unsent)(void *user, const tr__rpc_note *note);
    /* After one has arrived: on the thread that runs the function; of a reply, on any. A reply that says that the call has
     * failed comes without values, one whose result stays there with a TR_VALUE_NONE. A worker without hooks replies with the
     * request's note and a zero byte behind it. */
    tr_status (*incoming)(void *user, int from, bool is_reply, tr_value *values, int n, const tr__rpc_note *note);
    /* Around the function's run, incoming and outgoing included. */
    void (*enter)(void *user, const tr__rpc_note *note);
    void (*leave)(void *user);
    /* A worker has died, or stopped: on a thread that must not wait. All calls to it have failed. */
    void (*gone)(void *user, int worker, const char *why);
    /* The agent goes; no call is under way. */
    void (*destroy)(void *user);
} tr__rpc_hooks;

/* One module at a time; before it makes calls. The hooks are copied. TR_STATE when another one has set its own. */
tr_status tr__rpc_set_hooks(tr_rpc *rpc, const tr__rpc_hooks *hooks);
/* What was given as user; NULL: no hooks are set. */
void *tr__rpc_user(const tr_rpc *rpc);

/* Messages of a module: its names begin with a dot, and failures and the flight record show what is behind it. Arguments are of any
 * number and kind, and no hook sees them. A handler's result is copied before its scope ends, but for what holds its own memory; it
 * may tr_rpc_defer(). `attended`: carried out by a thread of the agent, or by one that attends to it, below. */
typedef tr_status (*tr__rpc_handler)(void *user, int from, const tr_value *arguments, int count, tr_value *result);
tr_status tr__rpc_handle(tr_rpc *rpc, const char *name, tr__rpc_handler handler, void *user, bool attended);
/* timeout_ms: 0: the agent's; TR__RPC_NO_TIMEOUT: the answer comes, or the worker is lost. */
enum { TR__RPC_NO_TIMEOUT = INT_MAX };
tr_future *tr__rpc_internal(tr_rpc *rpc, int to, const char *name, const tr_value *arguments, int count, int timeout_ms);

/* tr_future_then(), of a callback that the thread which finds the reply runs at once: it must be short and not wait for a call. */
tr_status tr__future_then_quick(tr_future *future, void (*callback)(tr_future *future, void *user), void *user);

/* A thread that waits for what requests bring attends to them: those that it finds and wants it carries out itself, wherever
 * it looks for messages, so that no other one has to be woken for them, and then it. By the first argument, of bytes. Of one
 * thread; `attention` lasts until the next call, which is given what this one returns: what was attended to before. */
typedef struct tr__rpc_attention {
    tr_rpc *rpc;
    bool (*wants)(const void *user, tr_bytes first);
    const void *user;
} tr__rpc_attention;
const tr__rpc_attention *tr__rpc_attend(const tr__rpc_attention *attention);
/* Around a wait: a thread of the agent's that waits is made up for by another one, and no thread sleeps that counts as awake. What
 * the first returns is the second's. */
int tr__rpc_block(tr_rpc *rpc);
void tr__rpc_unblock(tr_rpc *rpc, int awake);
/* Around a sleep: the flight record shows that the thread waits for a worker, in what; it needs other workers, too. -1: for no one
 * in particular. What the first returns is the second's. */
uint64_t tr__rpc_record_sleep(tr_rpc *rpc, int worker, const char *what);
void tr__rpc_record_end(tr_rpc *rpc, uint64_t record);
/* Looks for messages for a while, until it is over, or the deadline by tr__now_ns(). For a thread that is about to sleep. */
void tr__rpc_watch(tr_rpc *rpc, bool (*over)(const void *what), const void *what, int64_t deadline);
/* Waits for a call until the deadline. Is it done? */
bool tr__future_await(tr_future *future, int64_t deadline);

#endif
