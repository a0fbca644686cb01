/*
 * Waiting over a backend that does not know for whom (MPI, NCCL): a rank that waits for long says so in the store, and
 * shortly before its timeout looks who has not.
 */
#ifndef TR_COMM_BACKEND_LATE_H
#define TR_COMM_BACKEND_LATE_H

#include "comm/backend/backend.h"

typedef struct tr__late {
    const tr__member *member;
    long generation;
    uint64_t sequence;
    int64_t begin, note, look, deadline; /* by tr__now_ns() */
    bool noted, looked;
    char names[128]; /* "rank 2", "ranks 2, 3 and 7 more"; empty: nobody known */
} tr__late;

/* A wait begins, in the group's collective number `sequence`. */
void tr__late_start(tr__late *late, const tr__member *member, long generation, uint64_t sequence, int timeout_ms);
/* To be called now and then while it lasts. TR_TIMEOUT after the deadline: "rank 0 waited 600 s for rank 2". */
tr_status tr__late_check(tr__late *late, int64_t now);

#endif
