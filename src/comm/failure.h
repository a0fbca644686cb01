/* The failure that broke a group: the first one, which every later call is told. Any thread. */
#ifndef TR_COMM_FAILURE_H
#define TR_COMM_FAILURE_H

#include "base/object.h"

#include <pthread.h>

typedef struct tr__failure {
    pthread_mutex_t lock;
    tr__error *error; /* NULL: none yet */
    bool own;         /* this rank has failed by itself: the others lose a peer */
    atomic_bool there;
} tr__failure;

void tr__failure_init(tr__failure *f);
void tr__failure_clear(tr__failure *f);
/* Keeps this thread's latest failure if it is the first; returns whether it is. */
bool tr__failure_keep(tr__failure *f, bool own);
/* What was kept, as this thread's latest. */
tr_status tr__failure_tell(tr__failure *f);
/* What was kept, as the other ranks are to learn it, as this thread's latest: what is common to all as it is, but this
 * rank's own failure as TR_PEER: "rank 1 (pid 77) gave up group 'world': …". name is how they know this rank. */
tr_status tr__failure_for_peers(tr__failure *f, const char *name, const char *group);
/* How the process of a rank ended whose connections have closed without a goodbye, as far as can be seen (pid 0: it is
 * not visible from here): "exited with 0 without leaving group 'world',", "died of signal 9 (Killed)". The caller adds
 * when. */
enum { TR__END_TEXT = 160 };
char *tr__end_text(long pid, const char *group, char text[TR__END_TEXT]);
/* Can it be the same failure on all ranks, found by them all or by one in another? */
bool tr__failure_is_common(tr_status status);
/* TR_OK as long as there is none; else what a call that comes later fails with. */
tr_status tr__failure_check(tr__failure *f, const char *group);

static inline bool tr__failure_there(const tr__failure *f)
{
    return atomic_load(&f->there);
}

#endif
