/*
 * Messages as they leave and arrive, for calls and their answers: references among their values are handed over and taken in, and
 * a module's hooks see them.
 */
#ifndef TR_RPC_MESSAGE_H
#define TR_RPC_MESSAGE_H

#include "rpc/agent.h"

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

#endif
