/*
 * Ranks that are processes, for tests: the parent forks them before it has any thread, watches them, and is the only one
 * to use cmocka's checks.
 */
#ifndef TR_TESTS_PROCESSES_H
#define TR_TESTS_PROCESSES_H

#include "sockets.h"

#include <trireme/comm.h>

#include <stdatomic.h>
#include <sys/types.h>

enum { RANKS_MOST = 5, RANKS_ROOM = 16, JOIN_MS = 60000, PATIENCE_MS = 60000 }; /* most in tests of every size, and in any */

/* What a rank tells the parent, in memory that they share. */
typedef struct post {
    atomic_int turns;       /* calls that went well */
    atomic_int reports;     /* of ranks that are late, in the log of one that counts them */
    atomic_int patience_ms; /* for a call that is to end when another rank is stopped: stop_one_of() shortens it just before */
    _Atomic int64_t ended; /* when the body returned, by tr__now_ns(); 0: not yet */
    tr_status status;
    char text[2048];
} post;

typedef struct rank rank;
typedef tr_status (*rank_body)(rank *r);
struct rank {
    int number, world;
    tr_store *store;
    tr_group *group;
    post *post;
    const void *arg;
    pid_t pid;
};

/* Where ranks run and meet; zero: on loopback, in this process's namespaces. */
typedef struct setting {
    const char *transport;
    int report_ms;             /* as in tr_join_options */
    int64_t unexpected_bytes;  /* the same */
    bool encrypt;              /* the same; with a token */
    bool token;                /* without that */
    const char *host;          /* with .spaces: where rank 0 serves the store */
    const char *const *spaces; /* the network namespace of each rank */
    unsigned refused;          /* ranks, a bit each, that cannot read other processes' memory */
    const int *hosts;          /* or a pretended host for each; NULL: all are on this one */
} setting;

typedef struct job {
    int world, listener, port;
    setting setting;
    post *posts;
    rank ranks[RANKS_ROOM];
} job;

/* Starts ranks that join and run a body. */
void start_job(job *j, int world, rank_body body, const void *arg);
void start_job_in(job *j, const setting *s, int world, rank_body body, const void *arg);
/* What such a rank does, for ranks that a test forks by itself. */
tr_status join_and_run(rank *r, const job *j, rank_body body);
void await_turns(const job *j, int number, int turns);
/* Waits until a rank has stopped itself. */
void await_stop(const job *j, int number);
/* Stops a rank; it stands still when this returns. */
void stop_rank(const job *j, int number);
/* Reaps a rank, which must end by itself; kills it when it does not. */
void reap(job *j, int number);
void finish(job *j);
/* Runs ranks that all should end well. */
void run_job(int world, rank_body body, const void *arg);
void run_job_in(const setting *s, int world, rank_body body, const void *arg);

/* Starts ranks, kills one a while after all have made three calls, and reaps all. When it was killed; finish() comes later. */
int64_t kill_one_of(job *j, const setting *s, int world, int victim, rank_body body, const void *arg, int delay_us);
/* A survivor must have failed with TR_PEER within ten seconds, and must name the victim and say all of these words. */
void check_survivor(const job *j, int number, int victim, int64_t killed, const char *const words[3]);
/* Starts ranks, stops one until all others have given up on it, lets it go on, and reaps it, too. finish() comes later. */
void stop_one_of(job *j, const setting *s, int world, int victim, rank_body body, const void *arg);

#define TRY(expression)                     \
    do {                                    \
        tr_status try_ = (expression);      \
        if (try_ != TR_OK) return try_;     \
    } while (0)
#define CHECK(condition)                                                                             \
    do {                                                                                             \
        if (!(condition)) return tr_fail(TR_INTERNAL, "line %d: %s", __LINE__, #condition);          \
    } while (0)
#define SAYS(words) CHECK(strstr(tr_error_message(), words))

#endif
