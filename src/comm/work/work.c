#include "comm/work/work.h"

#include "base/clock.h"
#include "base/futex.h"
#include "base/profile.h"
#include "comm/collective.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

static void destroy(void *self)
{
    tr_work *work = self;
    if (work->staging) (void)!tr__staging_end(work->staging, TR_CANCELLED); /* never posted */
    tr__error_unref(work->failure);
    for (int i = 0; i < 2; i++) tr__unref(work->tensors[i]);
    free(work->arrays);
    for (int i = 0; i < work->part_count; i++) tr__unref(work->parts[i]);
    free(work->parts);
}

const tr__type tr__work_type = {.name = "work", .size = sizeof(tr_work), .destroy = destroy};

void tr__work_finish(tr_work *work, tr_status status)
{
    status = tr__staging_end(work->staging, status);
    work->staging = NULL;
    tr__recorder_end(work->recorder, work->record, status);
    if (status != TR_OK) work->failure = tr__error_take();
    atomic_store(&work->done, 1);
    /* Most work is driven by who wants it, or is done before anybody asks: then there is nobody to wake. */
    if (atomic_load(&work->awaited)) tr__futex_wake(&work->done, INT_MAX);
}

bool tr_work_done(tr_work *work)
{
    if (!work || tr__error_of(work)) return true;
    for (int i = 0; work->parts && i < work->part_count; i++)
        if (!tr_work_done(work->parts[i])) return false;
    if (work->parts) return true;
    return atomic_load_explicit(&work->done, memory_order_acquire) != 0;
}

/* All of them, whatever becomes of one; the first failure counts. */
static tr_status wait_for_parts(tr_work *work)
{
    tr__error *first = NULL;
    for (int i = 0; i < work->part_count; i++)
        if (tr_wait(work->parts[i]) != TR_OK && !first) first = tr__error_take();
    return tr__error_restore(first);
}

/* Waits until it is done, or the deadline (INT64_MAX: none). Is it? */
static bool wait_for_end(tr_work *work, int64_t deadline)
{
    for (int64_t left; !tr_work_done(work) && (left = deadline - tr__now_ns()) > 0;) {
        atomic_store(&work->awaited, true);
        tr__futex_wait(&work->done, 0, deadline == INT64_MAX ? -1 : left);
    }
    return tr_work_done(work);
}

static void wait_profiled(tr_work *work)
{
    tr__span span = {.kind = TR__SPAN_WAIT, .begin = tr__now_ns()};
    if (tr_work_done(work)) return;
    wait_for_end(work, INT64_MAX);
    snprintf(span.name, sizeof span.name, "%s", tr__kind_name(work->collective.kind));
    tr__profile_add(span);
}

static bool ends_by(tr_work *work, int64_t deadline)
{
    for (int i = 0; i < work->part_count; i++)
        if (!ends_by(work->parts[i], deadline)) return false;
    return work->parts || wait_for_end(work, deadline);
}

tr_status tr_wait_for(tr_work *work, int timeout_ms)
{
    if (timeout_ms < 0) return tr__fail(TR_INVALID, "tr_wait_for: a timeout of %d ms is negative", timeout_ms);
    bool ended = !work || tr__error_of(work) || ends_by(work, tr__now_ns() + (int64_t)timeout_ms * 1000000);
    if (ended) return tr_wait(work);
    const char *name = work->parts ? "a list of collectives" : tr__kind_name(work->collective.kind);
    return tr__fail(TR_TIMEOUT, "%s is not done after %g s", name, timeout_ms / 1000.0);
}

tr_status tr_wait(tr_work *work)
{
    if (!work) return TR_OK;
    if (tr__error_of(work)) return tr__fail_stored(tr__error_of(work));
    if (work->parts) return wait_for_parts(work);
    if (tr__profiling())
        wait_profiled(work);
    else
        wait_for_end(work, INT64_MAX);
    return tr__fail_stored(work->failure);
}
