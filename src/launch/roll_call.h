/*
 * The roll call of a job's launchers, before they join: until then nobody would notice one that leaves again, or that cannot take
 * part. There is one each time that the ranks are started, in a store of its own, within the job's, which node 0 serves:
 *
 *   node/2     that node 2's launcher has come: its process and host, and a number that it changes four times a second
 *   members    who takes part, before
 *   verdict    how the roll call ended, for all: a tr_status and a text. The first to say so wins.
 *   heard/2    that node 2 has read it
 *
 * Node 0 sees who has come, who has left again, and who never came. Any launcher may say why it cannot take part.
 */
#ifndef TR_LAUNCH_ROLL_CALL_H
#define TR_LAUNCH_ROLL_CALL_H

#include <trireme/store.h>

#include <stdbool.h>
#include <stdint.h>

/* "node/2" */
enum { TR__ROLL_KEY = 32 };
const char *tr__roll_key(const char *what, int node, char key[TR__ROLL_KEY]);

typedef struct tr__roll {
    tr_store *store;
    int node, count;
    int least;        /* at least so many take part. If fewer than count, nodes may leave again, and when so many are there, */
    int last_call_ms; /* those that are expected have this long to come */
    int timeout_ms;
    int64_t deadline; /* by tr__now_ns() */
    bool returns;     /* it took part the last time: its number is its own */
    bool late;        /* it did not, for it came after that: it takes nobody's number, and its failure is no other node's */
    bool missed;      /* in the end: it came too late to take part this time */
    int *members;     /* [count], numbers of nodes, rising: on node 0 those that are expected; in the end all that take part */
    int member_count;
} tr__roll;

/* TR_OK when it is known who takes part; else the same failure on all nodes that have come, which names the node and why. */
tr_status tr__roll_call(tr__roll *roll);
/* This node cannot take part, for the reason that is this thread's latest failure, and stays it. */
void tr__roll_refuse(const tr__roll *roll, tr_status why);

#endif
