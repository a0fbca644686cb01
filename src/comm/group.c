/*
 * Running collectives, one at a time and in the order of the calls. A call that finds the group idle runs in the
 * caller's thread, which costs two uncontended locks; tr_post(), and a call that finds it at work, go through the
 * queue, which the group's own thread works off. That thread starts with the first tr_post().
 */
#include "comm/group.h"

#include "comm/collective.h"
#include "comm/work.h"

#include <signal.h>

/* ---- The queue --------------------------------------------------------------------------------------------------- */

/* Runs a collective; the caller has set `running` and clears it. */
static tr_status run(tr_group *group, const tr_collective *collective)
{
    return group->backend->run(group->state, collective, ++group->sequence);
}

static tr_work *take_first(tr_group *group)
{
    tr_work *work = group->first;
    group->first = work->next;
    if (!group->first) group->last = NULL;
    return work;
}

static void *work_off(void *arg)
{
    tr_group *group = arg;
    pthread_mutex_lock(&group->lock);
    for (;;) {
        while (group->running || (!group->first && !group->closed)) pthread_cond_wait(&group->changed, &group->lock);
        if (!group->first) break;
        tr_work *work = take_first(group);
        group->running = true;
        pthread_mutex_unlock(&group->lock);
        tr__work_finish(work, run(group, &work->collective));
        tr__unref(work);
        pthread_mutex_lock(&group->lock);
        group->running = false;
        pthread_cond_broadcast(&group->changed);
    }
    pthread_mutex_unlock(&group->lock);
    return NULL;
}

/* Under the lock. The thread takes no signals: they are the program's. */
static tr_status start_thread(tr_group *group)
{
    if (group->has_thread) return TR_OK;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&group->thread, NULL, work_off, group);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error) return tr__fail_errno(TR_NO_MEMORY, error, "group '%s': cannot start its thread", group->name);
    group->has_thread = true;
    return TR_OK;
}

/* Under the lock: the queue takes a reference of its own. */
static tr_status enqueue(tr_group *group, tr_work *work)
{
    TR__TRY(start_thread(group));
    tr__ref(work);
    if (group->last)
        group->last->next = work;
    else
        group->first = work;
    group->last = work;
    pthread_cond_broadcast(&group->changed);
    return TR_OK;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static tr_status check_group(const tr_group *group)
{
    if (!group) return tr__fail(TR_INVALID, "a group is needed, not NULL");
    return tr__fail_stored(tr__error_of(group));
}

/* Under the lock. */
static tr_status check_open(const tr_group *group)
{
    if (group->closed) return tr__fail(TR_STATE, "rank %d has left group '%s'", group->rank, group->name);
    return TR_OK;
}

static tr_work *new_work(tr_group *group, const tr_collective *collective)
{
    tr_collective full;
    if (check_group(group) != TR_OK ||
        tr__collective_read(collective, group->world_size, group->timeout_ms, &full) != TR_OK)
        return tr__object_failed(&tr__work_type);
    tr_work *work = tr__object_new(&tr__work_type);
    if (!tr__error_of(work)) work->collective = full;
    return work;
}

tr_work *tr_post(tr_group *group, const tr_collective *collective)
{
    tr_work *work = new_work(group, collective);
    if (tr__error_of(work)) return work;
    pthread_mutex_lock(&group->lock);
    tr_status status = check_open(group);
    if (status == TR_OK) status = enqueue(group, work);
    pthread_mutex_unlock(&group->lock);
    if (status != TR_OK) tr__object_break(work);
    return work;
}

/* The group was at work: queues up behind what was posted before. */
static tr_status post_and_wait(tr_group *group, const tr_collective *collective)
{
    TR_SCOPE;
    return tr_wait(tr_post(group, collective));
}

tr_status tr_run_collective(tr_group *group, const tr_collective *collective)
{
    TR__TRY(check_group(group));
    tr_collective full;
    TR__TRY(tr__collective_read(collective, group->world_size, group->timeout_ms, &full));
    pthread_mutex_lock(&group->lock);
    tr_status status = check_open(group);
    bool idle = !group->running && !group->first;
    if (status == TR_OK && idle) group->running = true;
    pthread_mutex_unlock(&group->lock);
    if (status != TR_OK) return status;
    if (!idle) return post_and_wait(group, collective);

    status = run(group, &full);
    pthread_mutex_lock(&group->lock);
    group->running = false;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    return status;
}

/* ---- Leaving ----------------------------------------------------------------------------------------------------- */

/* Waits until nothing runs and the queue is empty, then closes. `cancel` gives up what is queued and under way. */
static void close_group(tr_group *group, const char *cancel)
{
    pthread_mutex_lock(&group->lock);
    group->closed = true;
    if (cancel && (group->running || group->first)) group->backend->cancel(group->state, cancel);
    while (cancel && group->first) {
        tr_work *work = take_first(group);
        tr__work_finish(work, tr__fail(TR_CANCELLED, "group '%s': %s", group->name, cancel));
        tr__unref(work);
    }
    pthread_cond_broadcast(&group->changed);
    while (group->running || group->first) pthread_cond_wait(&group->changed, &group->lock);
    bool has_thread = group->has_thread;
    group->has_thread = false;
    pthread_mutex_unlock(&group->lock);
    if (has_thread) pthread_join(group->thread, NULL);
    group->backend->leave(group->state);
    group->state = NULL;
    tr__unref(group->store);
    group->store = NULL;
}

tr_status tr_leave(tr_group *group)
{
    TR__TRY(check_group(group));
    pthread_mutex_lock(&group->lock);
    tr_status status = check_open(group);
    group->closed = true;
    pthread_mutex_unlock(&group->lock);
    if (status == TR_OK) close_group(group, NULL);
    return status;
}

static void destroy(void *self)
{
    tr_group *group = self;
    tr__error *latest = tr__error_take(); /* a scope that ends must not change the message of what failed in it */
    if (group->state) close_group(group, "the program dropped the group without tr_leave()");
    tr__fail_stored(latest);
    tr__error_unref(latest);
    if (!group->backend) return;
    pthread_mutex_destroy(&group->lock);
    pthread_cond_destroy(&group->changed);
}

const tr__type tr__group_type = {.name = "group", .size = sizeof(tr_group), .destroy = destroy};

void tr__group_init(tr_group *group)
{
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->changed, NULL);
}

/* ---- Questions --------------------------------------------------------------------------------------------------- */

static bool sound(const tr_group *group)
{
    return group && !tr__error_of(group);
}

int tr_rank(const tr_group *group)
{
    return sound(group) ? group->rank : 0;
}

int tr_world_size(const tr_group *group)
{
    return sound(group) ? group->world_size : 1;
}

int tr_local_rank(const tr_group *group)
{
    return sound(group) ? group->local_rank : 0;
}

tr_device tr_group_device(const tr_group *group)
{
    int local_rank = tr_local_rank(group);
    return local_rank < tr_device_count(TR_CUDA) ? tr_cuda(local_rank) : tr_cpu(0);
}
