#include "comm/work.h"

#include "comm/futex.h"

#include <limits.h>

static void destroy(void *self)
{
    tr__error_unref(((tr_work *)self)->failure);
}

const tr__type tr__work_type = {.name = "work", .size = sizeof(tr_work), .destroy = destroy};

void tr__work_finish(tr_work *work, tr_status status)
{
    if (status != TR_OK) work->failure = tr__error_take();
    atomic_store(&work->done, 1);
    tr__futex_wake(&work->done, INT_MAX);
}

bool tr_work_done(tr_work *work)
{
    return !work || tr__error_of(work) || atomic_load_explicit(&work->done, memory_order_acquire) != 0;
}

tr_status tr_wait(tr_work *work)
{
    if (tr__error_of(work)) return tr__fail_stored(tr__error_of(work));
    while (!tr_work_done(work)) tr__futex_wait(&work->done, 0, -1);
    return work ? tr__fail_stored(work->failure) : TR_OK;
}
