/*
 * A job on several nodes: one launcher on each, which are the ranks of a group of their own. They meet in the job's store,
 * which node 0 serves, and from then on tell each other in rounds of all_gather how they stand; a launcher that dies is
 * noticed as a rank that dies is. Nothing here blocks once the nodes have met, but for a moment at the very end. Each time that
 * their ranks are to be started again they meet anew: without those that are gone, and with those that have come since.
 */
#ifndef TR_LAUNCH_NODES_H
#define TR_LAUNCH_NODES_H

#include <trireme/comm.h>
#include <trireme/launch.h>

enum {
    TR__NODE_NAME = 64,
    TR__NODE_ROUND_MS = 100,
    TR__CULPRIT_MS = 3000, /* how long the culprit has to fail once its victims have; it may have much to clear away */
};

typedef enum tr__outcome { TR__WELL, TR__STOPPED, TR__FAILED } tr__outcome;

/* A rank that exits with TR_EXIT_PEER is the victim of another one. When no rank has failed otherwise, the suspects are
 * those that did not exit so: they exited with 0, or had to be ended. */
typedef struct tr__suspects {
    int32_t count, rank, exit_code; /* so many; one of them, and how it ended, as in tr_launch_report */
    int32_t left, left_rank;        /* of them, those that exited with 0; one of these */
} tr__suspects;

/* The culprit: the only suspect, or the only one that exited with 0. False: it may be several. */
bool tr__suspects_judge(const tr__suspects *suspects, int *rank, int *exit_code);

/* What a node says in each round. */
typedef struct tr__word {
    int32_t ended;     /* nothing of its ranks is left, and outcome is final */
    int32_t outcome;   /* tr__outcome */
    int32_t rank;      /* TR__FAILED: the first that failed on it, */
    int32_t exit_code; /* as in tr_launch_report */
    int32_t signal;
    int32_t interrupt; /* the first signal that its user sent; 0: none */
    int32_t told;      /* its report is in the store */
    int32_t unable;    /* TR__FAILED: it could not start its ranks */
    tr__suspects suspects;
    int64_t at_ms;     /* TR__FAILED: when, since the nodes have met */
} tr__word;

/* What a node tells of itself when they meet. */
typedef struct tr__node_facts {
    int32_t ranks;
    int64_t began_ns; /* when the ranks of all were first started, by its wall clock: that of node 0 counts */
    char host[TR__NODE_NAME];
} tr__node_facts;

typedef struct tr__nodes {
    int most, least;        /* nodes that may and must take part */
    int number, meeting;    /* this one's .node_rank; how often the nodes had met before the latest time */
    int count, rank;        /* nodes that take part, and which of them this is */
    int *members;           /* [count], their numbers, rising */
    int first_rank, world;  /* of this node's ranks, and of all */
    char host[256];         /* where node 0 serves the store */
    int port;
    int timeout_ms;         /* for the nodes to meet, and to part */
    tr__node_facts *nodes;  /* [count] */
    int64_t began_ns;       /* as in tr__node_facts */
    tr_store *store, *here; /* the job's, and what in it is of the latest meeting */
    tr_group *group;
    tr__word mine;
    tr__word *all;          /* [count], of the latest round that has ended */
    tr_work *work;          /* the round that is under way, or NULL, */
    tr__word sent, *coming; /* with what goes in and out */
    int64_t start_ns, next_ns;
    bool over;              /* all have ended, */
    bool lost;              /* or one is gone: lost_node of those that take part (-1: it is not known which; this one: the others
                             * have given it up) */
    int lost_node;
    char lost_text[512];
} tr__nodes;

/* In the search for the first cause a failure counts so much later than it was seen: a death by signal is seldom the
 * effect of another rank's, and an exit with TR_EXIT_PEER always is, so that comes after all others. signal is 0 for an
 * exit. */
int tr__handicap_ms(int signal, int exit_code);

/* This node cannot take part, for the reason that is this thread's latest failure, and stays it: tells the others, if they can be
 * found where the options say. */
void tr__nodes_refuse(const tr_launch_options *options, const char *token, tr_status why);
/* Meets the other nodes, as the options say; again after tr__nodes_begin_again(). token is the job's. Fails with .lost when one was
 * lost once all were there. */
tr_status tr__nodes_meet(tr__nodes *nodes, const tr_launch_options *options, const char *token);
/* Starts and ends rounds; to be called often. True when there is news in .all, .over or .lost. */
bool tr__nodes_step(tr__nodes *nodes);
/* What this node says from the next round on, which comes at once when that is something new. */
void tr__nodes_say(tr__nodes *nodes, const tr__word *word);
/* What the node says on which the first rank failed; NULL: none has. */
const tr__word *tr__nodes_first_failure(const tr__nodes *nodes);
/* Puts this node's report where the others can read it; false when that cannot be done. */
bool tr__nodes_publish(tr__nodes *nodes, const char *text);
/* When .over or .lost, which all nodes find alike from then on: fills in the job's report, the same on all but for those that were
 * lost. own is this node's text. */
tr_status tr__nodes_conclude(tr__nodes *nodes, const char *own, tr_launch_report *report);
/* After that, or when a meeting has failed: are the nodes to meet again, to start their ranks again? All find the same, but for
 * those that are lost: not where one was interrupted, or could not start its ranks, and not when too few are left, or node 0 is
 * lost. interrupt: the first signal that this node's user sent, of which the others may not know; 0: none. */
bool tr__nodes_begin_again(tr__nodes *nodes, int interrupt);
void tr__nodes_leave(tr__nodes *nodes);

#endif
