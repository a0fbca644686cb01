/*
 * A trial: ranks that are processes make a random series of calls and check each result, and something happens to one of
 * them. All of it follows from a number, the seed, but for the moment's last microseconds.
 */
#ifndef TRIAL_H
#define TRIAL_H

#include <trireme/comm.h>

#include <stdatomic.h>

enum { TRIAL_RANKS = 12, TRIAL_FEW = 5, TRIAL_ANY = TR_COLLECTIVE_COUNT };

typedef enum trial_fault {
    TRIAL_NOTHING,
    TRIAL_DELAY, /* the victim sleeps before a call */
    TRIAL_PAUSE, /* it is stopped, and goes on */
    TRIAL_STOP,  /* it is stopped until all others have given up on it */
    TRIAL_KILL,
    TRIAL_CUT,   /* the link of its host to the others is cut, and mended */
    TRIAL_SEVER, /* cut until all have given up */
    TRIAL_FAULTS
} trial_fault;

typedef enum trial_memory { TRIAL_PRIVATE, TRIAL_SHARED, TRIAL_MIXED } trial_memory;

typedef struct trial {
    uint64_t seed;
    int world;
    const char *transport;
    const int *hosts;        /* a host for each rank, so that they need both transports; NULL: one of them */
    bool spaces;             /* which are network namespaces, and not pretended; */
    char netem[32];          /* what their links are like, for tc; empty: as they are */
    trial_memory memory;
    int kind;                /* of all calls; TRIAL_ANY */
    int64_t count;           /* of all calls; 0: each its own */
    int turns;               /* in each, all ranks make one call, or post some and wait for them */
    trial_fault fault;
    int victim;
    int moment;              /* in which turn it happens; 0: while joining; turns + 1: while leaving */
    int delay_us;            /* after its beginning; or, in parts of 256, */
    int phase;               /* that much of the time that the turn before took */
    int pause_ms;
    int join_ms, timeout_ms; /* what the ranks are given to join, and for each call */
} trial;

/* What a rank tells the driver, in memory that they share. */
typedef struct trial_post {
    atomic_int moment;
    atomic_bool record;      /* of a rank on a pretended host: its record is there for the others */
    _Atomic int64_t turn_ns; /* how long the calls of the latest whole turn took */
    _Atomic int64_t ended;   /* when all was done, or something failed; 0: not yet */
    tr_status status;
    char text[2048];         /* the failure, */
    char wrong[256];         /* and what is wrong about results or what is left; empty: nothing */
} trial_post;

/* splitmix64 */
static inline uint64_t trial_draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline int trial_below(uint64_t *state, int limit)
{
    return (int)(trial_draw(state) % (uint64_t)limit);
}

/* ---- trial_series.c: what a rank does ------------------------------------------------------------------------------ */

tr_status trial_series(const trial *t, int rank, tr_group *group, trial_post *post);

/* ---- trial.c ------------------------------------------------------------------------------------------------------- */

/* A random trial; for seeds from TRIAL_SWEEP on, one of those that go through every call, way, fault and phase; from
 * TRIAL_HOSTS on a random one on several pretended hosts, from TRIAL_JOINS on one of those that goes wrong while joining;
 * and from TRIAL_SPACES on a random one on hosts that are network namespaces. */
#define TRIAL_SWEEP ((uint64_t)1 << 32)
#define TRIAL_HOSTS ((uint64_t)1 << 33)
#define TRIAL_JOINS ((uint64_t)1 << 34)
#define TRIAL_SPACES ((uint64_t)1 << 35)
trial trial_of(uint64_t seed);
enum { TRIAL_WAYS = 4 }; /* TCP, private and shared memory, two hosts */
uint64_t trial_sweep_seed(tr_collective_kind kind, int way, trial_fault fault, int phase);

/* Whoever dies while joining, after its record is there, is seen to be dead by a rank of its host. */
bool trial_is_seen(const trial *t);
/* Runs it; false with what went wrong in `wrong`. */
enum { TRIAL_TEXT = 4096 };
bool trial_run(const trial *t, char wrong[TRIAL_TEXT]);
/* Longest that a survivor took to know of a kill so far, in ms. */
double trial_slowest_ms(void);
/* Serves the stores of the trials, in a process of its own, until trials_end(); in network namespaces, which it makes, if
 * the trials are to run there. False where those cannot be had. */
bool trials_begin(bool spaces);
void trials_end(void);

#endif
