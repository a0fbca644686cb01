#define _GNU_SOURCE
#include "comm/transport/failure.h"

#include "base/list.h"
#include "base/thread.h"
#include "comm/record/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

tr__failure *tr__failure_new(void)
{
    tr__failure *f = calloc(1, sizeof *f);
    if (!f) {
        tr__fail(TR_NO_MEMORY, "no memory for a group");
        return NULL;
    }
    atomic_init(&f->dead, -1);
    pthread_mutex_init(&f->telling, NULL);
    pthread_mutex_init(&f->lock, NULL);
    return f;
}

void tr__failure_free(tr__failure *f)
{
    if (!f) return;
    tr__error_unref(f->error);
    pthread_mutex_destroy(&f->telling);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

void tr__failure_listen(tr__failure *f, tr__failure_listener *listener)
{
    TR__LOCKED(&f->telling);
    tr__failure_listener **end = &f->listeners;
    while (*end) end = &(*end)->next;
    *end = listener;
    if (tr__failure_there(f)) listener->broken(listener->user, true);
}

void tr__failure_ignore(tr__failure *f, tr__failure_listener *listener)
{
    TR__LOCKED(&f->telling);
    TR__UNLINK(f->listeners, listener);
}

tr_status tr__failure_break_by(tr__failure *f, bool own, const tr__failure_listener *known)
{
    pthread_mutex_lock(&f->telling);
    if (!tr__failure_there(f)) {
        pthread_mutex_lock(&f->lock);
        f->error = tr__error_take();
        f->own = own;
        atomic_store(&f->there, true);
        pthread_mutex_unlock(&f->lock);
        for (const tr__failure_listener *l = f->listeners; l; l = l->next) l->broken(l->user, l != known);
    }
    pthread_mutex_unlock(&f->telling);
    return tr__failure_tell(f);
}

tr_status tr__failure_tell(tr__failure *f)
{
    TR__LOCKED(&f->lock);
    return tr__fail_stored(f->error);
}

void tr__failure_note_death(tr__failure *f, int rank)
{
    int none = -1;
    if (!tr__failure_there(f)) atomic_compare_exchange_strong(&f->dead, &none, rank);
}

bool tr__failure_is_common(tr_status status)
{
    return status == TR_MISMATCH || status == TR_PEER || status == TR_TIMEOUT || status == TR_FORMAT;
}

tr_status tr__failure_for_peers(tr__failure *f, const char *name, const char *group)
{
    tr_status status = tr__failure_tell(f);
    if (!f->own && tr__failure_is_common(status)) return status;
    return tr__fail_context(TR_PEER, "%s gave up group '%s'", name, group);
}

char *tr__end_text(long pid, const char *group, char text[TR__END_TEXT])
{
    tr__process process = pid ? tr__process_of(pid) : (tr__process){0};
    if (process.exiting && WIFEXITED(process.status))
        snprintf(text, TR__END_TEXT, "exited with %d without leaving group '%s',", WEXITSTATUS(process.status), group);
    else if (process.exiting)
        snprintf(text, TR__END_TEXT, "died of signal %d (%s)", WTERMSIG(process.status),
            strsignal(WTERMSIG(process.status)));
    else
        snprintf(text, TR__END_TEXT, "died, exited without leaving group '%s', or lost its connection,", group);
    return text;
}

tr_status tr__failure_check(tr__failure *f, const char *group)
{
    if (!tr__failure_there(f)) return TR_OK;
    return tr__fail_context(tr__failure_tell(f), "group '%s' is broken", group);
}
