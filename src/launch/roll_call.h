/*
 * The roll call of a job's launchers, before they join: until all have come nobody would notice one that goes again, or that
 * cannot take part. Below "launch/" in the job's store, which node 0 serves:
 *
 *   node/2     that node 2's launcher has come: its process and host, and a number that it changes four times a second
 *   verdict    how the roll call ended, for all: a tr_status and a text. The first to say so wins.
 *   heard/2    that node 2 has read it
 *
 * Node 0 sees who has come, who has gone again, and who never came. Any launcher may say why it cannot take part.
 */
#ifndef TR_LAUNCH_ROLL_CALL_H
#define TR_LAUNCH_ROLL_CALL_H

#include <trireme/store.h>

#include <stdint.h>

typedef struct tr__roll {
    tr_store *store;
    int node, count;
    int timeout_ms;
    int64_t deadline; /* by tr__now_ns() */
} tr__roll;

/* TR_OK on all nodes when all have come; else the same failure on all that have, which names the node and why. */
tr_status tr__roll_call(const tr__roll *roll);
/* This node cannot take part, for the reason that is this thread's latest failure, and stays it. */
void tr__roll_refuse(const tr__roll *roll, tr_status why);

#endif
