/* The failure that broke a group: the first one, which every later call is told. One for all transports of the group. Any thread. */
#ifndef TR_COMM_TRANSPORT_FAILURE_H
#define TR_COMM_TRANSPORT_FAILURE_H

#include "base/object.h"

#include <pthread.h>

/* A transport of the group. */
typedef struct tr__failure_listener {
    struct tr__failure_listener *next;
    /* The group is broken: wakes all that wait. tell: tells the peers why, too. */
    void (*broken)(void *user, bool tell);
    void *user;
} tr__failure_listener;

typedef struct tr__failure {
    pthread_mutex_t telling; /* the listeners hear of it, or come and go. Comes before: */
    pthread_mutex_t lock;
    tr__error *error; /* NULL: none yet */
    bool own;         /* this rank has failed by itself: the others lose a peer */
    atomic_bool there;
    atomic_int dead;  /* the rank whose death was seen first, before the failure; -1: none */
    tr__failure_listener *listeners;
} tr__failure;

/* NULL, with a failure, without memory. */
tr__failure *tr__failure_new(void);
void tr__failure_free(tr__failure *f); /* NULL: nothing */
/* From now on the listener hears of the failure, at once if it is there already. */
void tr__failure_listen(tr__failure *f, tr__failure_listener *listener);
/* The listener hears no more once this returns; its peers and the other listeners' have been told of a failure that was there
 * before. No effect if it never listened. */
void tr__failure_ignore(tr__failure *f, tr__failure_listener *listener);

/* Breaks the group with this thread's latest failure, if it is the first. Returns the group's failure, as this thread's, when all
 * listeners have heard of it, in the order of their coming, whichever thread was first: whoever is told of a failure may leave, and
 * its peers must not take that for the reason. own: this rank has failed by itself, so the peers learn that they lose it, and why.
 * known: a listener whose peers have announced the failure, or see it by themselves, so that it need not tell them. */
tr_status tr__failure_break_by(tr__failure *f, bool own, const tr__failure_listener *known);
static inline tr_status tr__failure_break(tr__failure *f) { return tr__failure_break_by(f, false, NULL); }
static inline tr_status tr__failure_give_up(tr__failure *f) { return tr__failure_break_by(f, true, NULL); }
/* What was kept, as this thread's latest; TR_OK: nothing. */
tr_status tr__failure_tell(tr__failure *f);
/* What was kept, as the other ranks are to learn it, as this thread's latest: what is common to all as it is, but this
 * rank's own failure as TR_PEER: "rank 1 (pid 77) gave up group 'world': …". name is how they know this rank. */
tr_status tr__failure_for_peers(tr__failure *f, const char *name, const char *group);
/* How the process of a rank ended whose connections have closed without a goodbye, as far as can be seen (pid 0: it is
 * not visible from here): "exited with 0 without leaving group 'world',", "died of signal 9 (Killed)". The caller adds
 * when. */
enum { TR__END_TEXT = 160 };
char *tr__end_text(long pid, const char *group, char text[TR__END_TEXT]);
/* A rank has died, as the caller has just seen. */
void tr__failure_note_death(tr__failure *f, int rank);
/* Can it be the same failure on all ranks, found by them all or by one in another? */
bool tr__failure_is_common(tr_status status);
/* TR_OK as long as there is none; else what a call that comes later fails with. */
tr_status tr__failure_check(tr__failure *f, const char *group);

static inline bool tr__failure_there(const tr__failure *f)
{
    return atomic_load(&f->there);
}

#endif
