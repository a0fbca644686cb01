/*
 * What a process does when, while a profile is taken (`trireme train --profile`): steps, modules, ops, collectives, waits. While
 * none is, a place that is watched costs a load and a branch that is never taken.
 */
#ifndef TR_BASE_PROFILE_H
#define TR_BASE_PROFILE_H

#include "base/object.h"

typedef enum tr__span_kind {
    TR__SPAN_STEP,
    TR__SPAN_MODULE,     /* a forward */
    TR__SPAN_OP,
    TR__SPAN_BACKWARD,   /* of an op */
    TR__SPAN_COLLECTIVE,
    TR__SPAN_WAIT,       /* for one */
    TR__SPAN_KINDS,
} tr__span_kind;

typedef struct tr__span {
    tr__span_kind kind;
    int thread;          /* the system's number */
    int64_t begin, end;  /* on the monotonic clock, ns */
    const void *who;     /* which module */
    const char *algorithm; /* of an op that has several, else NULL: text that stays */
    int64_t peak, kept;  /* of modules and steps: bytes beyond those in use at the start, at most and in the end */
    char name[40], detail[40];
} tr__span;

extern atomic_bool tr__profile_on;

static inline bool tr__profiling(void)
{
    return __builtin_expect(atomic_load_explicit(&tr__profile_on, memory_order_relaxed), false);
}

/* One at a time in a process; fails while another is taken. */
tr_status tr__profile_start(void);
/* While it is paused nothing is added, and what there is stays. */
void tr__profile_pause(bool paused);
void tr__profile_stop(void);
/* Copies a span that has ended now, on this thread. When there are too many, it is only counted. */
void tr__profile_add(tr__span span);
/* Of the profile that was stopped, until the next one starts or it is dropped. */
const tr__span *tr__profile_spans(size_t *count, size_t *lost);
void tr__profile_drop(void);

#endif
