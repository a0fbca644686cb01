#define _GNU_SOURCE
#include "comm/failure.h"

#include "comm/record.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

void tr__failure_init(tr__failure *f)
{
    pthread_mutex_init(&f->lock, NULL);
}

void tr__failure_clear(tr__failure *f)
{
    tr__error_unref(f->error);
    pthread_mutex_destroy(&f->lock);
}

bool tr__failure_keep(tr__failure *f, bool own)
{
    pthread_mutex_lock(&f->lock);
    bool first = !f->error;
    if (first) {
        f->error = tr__error_take();
        f->own = own;
    }
    atomic_store(&f->there, true);
    pthread_mutex_unlock(&f->lock);
    return first;
}

tr_status tr__failure_tell(tr__failure *f)
{
    pthread_mutex_lock(&f->lock);
    tr_status status = tr__fail_stored(f->error);
    pthread_mutex_unlock(&f->lock);
    return status;
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
