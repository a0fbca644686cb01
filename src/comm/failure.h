/* The failure that broke a group: the first one, which every later call is told. Any thread. */
#ifndef TR_COMM_FAILURE_H
#define TR_COMM_FAILURE_H

#include "base/object.h"

#include <pthread.h>

typedef struct tr__failure {
    pthread_mutex_t lock;
    tr__error *error; /* NULL: none yet */
    atomic_bool there;
} tr__failure;

void tr__failure_init(tr__failure *f);
void tr__failure_clear(tr__failure *f);
/* Keeps this thread's latest failure if it is the first; returns whether it is. */
bool tr__failure_keep(tr__failure *f);
/* What was kept, as this thread's latest. */
tr_status tr__failure_tell(tr__failure *f);
/* TR_OK as long as there is none; else what a call that comes later fails with. */
tr_status tr__failure_check(tr__failure *f, const char *group);

static inline bool tr__failure_there(const tr__failure *f)
{
    return atomic_load(&f->there);
}

#endif
