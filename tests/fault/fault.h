/*
 * Faults, drawn from a seed, in a training of four ranks: what the simulator and the job that it disturbs share.
 *
 *   simulator.c        draws a trial from each seed, runs it, and says which seed replays a failure
 *   trial.c            a trial: attempts that are disturbed, then one that is not; what holds after each
 *   attempt.c          one attempt: starts the job, kills and stops its processes, waits until nothing of it is left
 *   compare.c          two folders of a training, bit for bit
 *   job.c              the training, on the trainer's public interface
 *   inject_files.c     system calls on files, in the job
 *   inject_sockets.c   system calls on sockets and the clock, in the job
 *   disk.c             which bytes of the training's folder have reached the disk, so that a crash can drop the others
 *   planted.c          defences that are taken out, to see that the simulator notices
 *
 * The faults are injected by the linker, -Wl,--wrap=write and so on, and not by a library that is loaded before: so only
 * the calls that Trireme makes are hit, and the n-th of them is the same one in every run, whatever the dynamic loader,
 * libuv or OpenSSL do beside it; the launcher stays as it is shipped; internal functions can be wrapped, too, which
 * planted.c needs; and sanitizers, whose libraries have to come first, work.
 */
#ifndef FAULT_H
#define FAULT_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { RANKS = 4, STEPS = 8, SAVE_EVERY = 2, VALIDATE_EVERY = 2 };

typedef enum fault_kind {
    FAULT_NONE,
    /* files of the training, in the n-th call of rank 0 */
    FAULT_FLIP_WRITE, /* one bit of what is written differs; later a rank is killed, so that it is read again */
    FAULT_TORN_WRITE, /* a page of 4 KiB of it is what was there before, or zero; the same */
    FAULT_FLIP_READ,
    FAULT_FILE_PARTS, /* reads and writes end early, or are interrupted, all the time */
    FAULT_NO_SPACE,   /* from the n-th call on */
    FAULT_FILE_ERROR, /* EIO, once */
    FAULT_KILL_IN_CALL, /* rank 0 is killed there, and its files are as they are */
    FAULT_CRASH,      /* all is killed there, and only what was synced is left, with a part of the rest */
    FAULT_LOST_SYNC,  /* from one call on, syncs do nothing; and a crash in a later one */
    FAULT_ROT,        /* a rank is killed; then, a bit of a checkpoint or a page of it is damaged */
    /* sockets between ranks, in the n-th call of one of them */
    FAULT_SOCKET_PARTS, /* sends and receives end early, or are interrupted, all the time */
    FAULT_SOCKET_BUSY,  /* a series of EAGAIN */
    FAULT_SOCKET_STALL,
    FAULT_SOCKET_RESET,
    FAULT_SOCKET_CUT,    /* half of what is sent goes out, and then the connection ends */
    FAULT_SOCKET_FLIP,   /* what TCP's own checksum lets through: a bit differs, */
    FAULT_SOCKET_DROP,   /* some bytes are missing, */
    FAULT_SOCKET_REPEAT, /* or come twice, */
    FAULT_SOCKET_SWAP,   /* or in another order */
    /* processes */
    FAULT_CLOCK, /* the real-time clock jumps, by years, in all ranks */
    FAULT_KILL,
    FAULT_KILL_LAUNCHER,
    FAULT_STOP, /* for less than a second */
    FAULT_KINDS
} fault_kind;

/* Bytes that TCP delivers wrongly. */
static inline bool is_on_wire(fault_kind kind)
{
    return kind >= FAULT_SOCKET_FLIP && kind <= FAULT_SOCKET_SWAP;
}

/* Defences that are taken out of the job: planted.c, disk.c. */
typedef enum defect {
    DEFECT_NONE,
    DEFECT_SYNC,        /* syncing a file does nothing */
    DEFECT_FOLDER_SYNC, /* syncing a folder does nothing */
    DEFECT_CHECKSUM,    /* what is loaded is not held against the manifest */
    DEFECT_ROW,         /* a resumed training forgets the score in its latest row */
    DEFECT_STATE,       /* a resumed training begins with fresh optimizer state */
    DEFECT_WIRE,        /* the checksum of what crosses a network is not computed */
    DEFECTS
} defect;

typedef struct fault {
    fault_kind kind;
    int rank;      /* whom it hits */
    int64_t at;    /* in which of its calls */
    int64_t until; /* FAULT_LOST_SYNC: in which call the crash comes */
    uint64_t draw; /* for all that is left to decide: bits, pages, sizes */
    int moment;    /* FAULT_KILL and those that end so: when, */
    int delay_us;  /* this long after it, */
    int victim;    /* which rank; */
    int pause_ms;  /* FAULT_STOP and FAULT_SOCKET_STALL: for how long */
} fault;

/* Moments of a rank: it has started, has joined, and is before its n-th step of this attempt. */
enum { MOMENT_STARTED = 1, MOMENT_JOINED, MOMENT_STEP };

/* How many calls a run makes, so that faults can be drawn from all of them: on files by rank 0, on sockets by each. */
typedef struct call_counts {
    _Atomic int64_t files, writes, reads, sends, receives;
} call_counts;

/* In memory that the simulator shares with the ranks of one attempt. */
typedef struct fault_page {
    fault fault;
    defect defect;
    char folder[PATH_MAX]; /* where all files of the training are */
    char transport[8];     /* "shm", "tcp"; empty: */
    int hosts[RANKS];      /* a pretended host for each rank */
    pid_t launcher;
    _Atomic pid_t pids[RANKS];
    atomic_int moments[RANKS];
    atomic_int resumed; /* the step that the training went on from; -1: not yet known */
    atomic_int saved;   /* the latest step that was reported as saved; -1: none */
    call_counts counts[RANKS];
    atomic_bool fired;
    char what[256]; /* what the fault has done */
    char wrong[256]; /* the simulator's own mistake */
} fault_page;

#define FAULT_PAGE "FAULT_PAGE" /* the variable with the path of the page */

/* splitmix64 */
static inline uint64_t draw_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* From 0 to limit - 1; 0 when the limit is 0. */
static inline int64_t draw_below(uint64_t *state, int64_t limit)
{
    uint64_t drawn = draw_next(state);
    return limit > 0 ? (int64_t)(drawn % (uint64_t)limit) : 0;
}

#endif
