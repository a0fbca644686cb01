#include "comm/failure.h"

void tr__failure_init(tr__failure *f)
{
    pthread_mutex_init(&f->lock, NULL);
}

void tr__failure_clear(tr__failure *f)
{
    tr__error_unref(f->error);
    pthread_mutex_destroy(&f->lock);
}

bool tr__failure_keep(tr__failure *f)
{
    pthread_mutex_lock(&f->lock);
    bool first = !f->error;
    if (first) f->error = tr__error_take();
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

tr_status tr__failure_check(tr__failure *f, const char *group)
{
    if (!tr__failure_there(f)) return TR_OK;
    return tr__fail_context(tr__failure_tell(f), "group '%s' is broken", group);
}
