/*
 * Running collectives, one at a time and in the order of the calls. A call that finds the group idle runs in the
 * caller's thread, which costs two uncontended locks; tr_post(), and a call that finds it at work, go through the
 * queue, which the group's own thread works off. That thread starts with the first tr_post().
 */
#include "comm/group/group.h"

#include "base/thread.h"
#include "comm/collective.h"
#include "comm/control.h"
#include "comm/work/work.h"
#include "device/capture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The queue --------------------------------------------------------------------------------------------------- */

/* Runs a collective; the caller has set `running` and clears it. record is that of its posting, or 0. */
static tr_status run(tr_group *group, const tr_collective *collective, uint64_t record)
{
    uint64_t sequence = ++group->sequence;
    record = tr__recorder_start(group->member.recorder, record, collective, sequence);
    tr_status status = group->checks ? tr__checks_compare(group->checks, collective, sequence) : TR_OK;
    if (status == TR_OK) status = group->member.backend->run(group->state, collective, sequence);
    tr__recorder_end(group->member.recorder, record, status);
    return status;
}

/* Breaks the group with this thread's latest failure, which is this rank's own. */
static void give_up(const tr_group *group)
{
    group->member.backend->give_up(group->state);
    if (group->checks) tr__checks_give_up(group->checks);
}

/* Are buffers there to be staged? A world of one copies in the host's memory, whatever its backend. */
static bool stages(const tr_group *group, tr_device device)
{
    return device.kind != TR_CPU && (device.kind != group->member.backend->memory || group->member.world_size == 1);
}

/* Waits for the staged data of a call. The other ranks, which make the same call, must hear of it when there will be none. */
static tr_status make_ready(tr_group *group, tr__staging *staging)
{
    tr_status status = tr__staging_ready(staging);
    if (status != TR_OK) give_up(group);
    return status;
}

/* As run(), of a call whose buffers are staged. */
static tr_status run_staged(tr_group *group, const tr_collective *collective)
{
    tr_collective staged = *collective;
    tr__staging *staging;
    tr_status status = tr__staging_begin(&staged, group->member.rank, group->member.world_size, &staging);
    if (status == TR_OK) status = make_ready(group, staging);
    else give_up(group);
    if (status == TR_OK) status = run(group, &staged, 0);
    return tr__staging_end(staging, status);
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
        tr_status status = make_ready(group, work->staging);
        tr__work_finish(work, status == TR_OK ? run(group, &work->collective, work->record) : status);
        tr__unref(work);
        pthread_mutex_lock(&group->lock);
        group->running = false;
        pthread_cond_broadcast(&group->changed);
    }
    pthread_mutex_unlock(&group->lock);
    return NULL;
}

/* Under the lock: the queue takes a reference of its own. */
static tr_status enqueue(tr_group *group, tr_work *work)
{
    int error = group->has_thread ? 0 : tr__thread_start(&group->thread, work_off, group);
    if (error) return tr__fail_errno(TR_NO_MEMORY, error, "group '%s': cannot start its thread", group->name);
    group->has_thread = true;
    work->recorder = group->member.recorder;
    work->record = tr__recorder_post(group->member.recorder, &work->collective);
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
    TR__TRY(tr__capture_refuse("calls a group of ranks", "capture the steps of one rank alone"));
    return tr__fail_stored(tr__error_of(group));
}

static tr_status has_left(const tr_group *group)
{
    return tr__fail(TR_STATE, "rank %d has left group '%s'", group->member.rank, group->name);
}

static tr_status check_open(tr_group *group)
{
    TR__LOCKED(&group->lock);
    return group->closed ? has_left(group) : TR_OK;
}

static tr_status read_call(const tr_group *group, const tr_collective *collective, tr_work *work)
{
    TR__TRY(tr__collective_read(collective, group->member.rank, group->member.world_size, group->member.timeout_ms, &work->collective,
        &work->arrays));
    if (work->collective.peer != TR_ANY_SOURCE || group->member.backend->any_source) return TR_OK;
    return tr__fail(TR_UNSUPPORTED, "recv: the backend '%s' does not receive from TR_ANY_SOURCE, only 'native' does; name the "
        "rank, by .peer", group->member.backend->name);
}

static tr_work *new_work(tr_group *group, const tr_collective *collective)
{
    if (check_group(group) != TR_OK) return tr__object_failed(&tr__work_type);
    tr_work *work = tr__object_new(&tr__work_type);
    if (!tr__error_of(work) && read_call(group, collective, work) != TR_OK) tr__object_break(work);
    if (!tr__error_of(work) && stages(group, work->collective.device) &&
        tr__staging_begin(&work->collective, group->member.rank, group->member.world_size, &work->staging) != TR_OK)
        tr__object_break(work);
    return work;
}

static bool is_transfer(const tr_work *work)
{
    return tr__kind_of(work->collective.kind)->point_to_point;
}

/* Sends and receives do not wait for the group's other work. */
static void start_transfer(tr_group *group, tr_work *work, bool driven)
{
    work->recorder = group->member.recorder;
    work->record = tr__recorder_start(group->member.recorder, 0, &work->collective, 0);
    tr_status status = make_ready(group, work->staging);
    if (status == TR_OK) group->member.backend->start(group->state, work, driven);
    else tr__work_finish(work, status);
}

static tr_status post(tr_group *group, tr_work *work)
{
    if (is_transfer(work)) {
        TR__TRY(check_open(group));
        start_transfer(group, work, false);
        return TR_OK;
    }
    TR__LOCKED(&group->lock);
    return group->closed ? has_left(group) : enqueue(group, work);
}

tr_work *tr_post(tr_group *group, const tr_collective *collective)
{
    tr_work *work = new_work(group, collective);
    if (!tr__error_of(work) && post(group, work) != TR_OK) tr__object_break(work);
    return work;
}

/* Nothing starts unless all are in order. */
static tr_status post_all(tr_group *group, tr_work *all, const tr_collective *list, int count)
{
    TR__TRY(check_group(group));
    if (count < 0 || (count > 0 && !list))
        return tr__fail(TR_INVALID, "a list of %d collectives at %p: expected 0 or more, and an array", count, (const void *)list);
    all->parts = calloc((size_t)count + 1, sizeof(tr_work *));
    if (!all->parts) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d works", group->name, count);
    size_t stride = count ? list->size : 0; /* of the caller's version */
    for (int i = 0; i < count; i++) {
        tr_work *part = new_work(group, (const tr_collective *)((const char *)list + (size_t)i * stride));
        if (tr__error_of(part)) return tr__fail_context(tr_status_of(part), "entry %d of %d", i, count);
        all->parts[all->part_count++] = tr__ref(part);
    }
    for (int i = 0; i < count; i++) TR__TRY(post(group, all->parts[i]));
    return TR_OK;
}

tr_work *tr_post_list(tr_group *group, const tr_collective *list, int count)
{
    tr_work *all = tr__object_new(&tr__work_type);
    if (tr__error_of(all)) return all;
    TR_SCOPE;
    if (post_all(group, all, list, count) != TR_OK) tr__object_break(all);
    return all;
}

tr_status tr_run_list(tr_group *group, const tr_collective *list, int count)
{
    TR_SCOPE;
    return tr_wait(tr_post_list(group, list, count));
}

/* A send or recv, driven by this thread. */
static tr_status transfer(tr_group *group, const tr_collective *collective)
{
    TR_SCOPE;
    tr_work *work = new_work(group, collective);
    TR__TRY(tr_status_of(work));
    TR__TRY(check_open(group));
    start_transfer(group, work, true);
    group->member.backend->drive(group->state, work);
    return tr_wait(work);
}

static tr_status run_or_wait(tr_group *group, const tr_collective *given, const tr_collective *full)
{
    pthread_mutex_lock(&group->lock);
    bool closed = group->closed, idle = !group->running && !group->first;
    if (!closed && idle) group->running = true;
    pthread_mutex_unlock(&group->lock);
    if (closed) return has_left(group);
    if (!idle) { /* behind what was posted before */
        TR_SCOPE;
        return tr_wait(tr_post(group, given));
    }

    tr_status status = stages(group, full->device) ? run_staged(group, full) : run(group, full, 0);
    TR__LOCKED(&group->lock);
    group->running = false;
    pthread_cond_broadcast(&group->changed);
    return status;
}

tr_status tr_run_collective(tr_group *group, const tr_collective *collective)
{
    TR__TRY(check_group(group));
    if (collective && (collective->kind == TR_SEND || collective->kind == TR_RECV)) return transfer(group, collective);
    tr_collective full;
    int64_t *arrays;
    TR__TRY(tr__collective_read(collective, group->member.rank, group->member.world_size, group->member.timeout_ms, &full, &arrays));
    tr_status status = run_or_wait(group, collective, &full);
    free(arrays);
    return status;
}

/* ---- Leaving ----------------------------------------------------------------------------------------------------- */

/* Waits until nothing runs and the queue is empty, then closes. `cancel` gives up what is queued and under way. */
static void close_group(tr_group *group, const char *cancel)
{
    pthread_mutex_lock(&group->lock);
    group->closed = true;
    if (cancel && (group->running || group->first || group->member.backend->pending(group->state))) {
        tr__fail(TR_CANCELLED, "%s", cancel);
        give_up(group);
    }
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
    group->member.backend->leave(group->state);
    group->state = NULL;
    tr__checks_free(group->checks);
    group->checks = NULL;
    tr__recorder_close(group->member.recorder);
    group->member.recorder = NULL;
    tr__unref(group->member.store);
    group->member.store = NULL;
}

tr_status tr_leave(tr_group *group)
{
    TR__TRY(check_group(group));
    if (group->forks != tr__forks())
        return tr__fail(TR_STATE, "group '%s': rank %d joined before this process was forked from it, and leaves it itself",
            group->name, group->member.rank);
    pthread_mutex_lock(&group->lock);
    bool closed = group->closed;
    group->closed = true;
    pthread_mutex_unlock(&group->lock);
    if (closed) return has_left(group);
    close_group(group, NULL);
    return TR_OK;
}

enum { TEXTS = 5 };
#define TEXTS_OF(g) {&(g)->member.transport, &(g)->member.address, &(g)->member.algorithms, &(g)->job, &(g)->flight_dir}

static void destroy(void *self)
{
    tr_group *group = self;
    /* What a forked child has of it is its parent's, whose threads and peers go on. */
    if (!group->member.backend || group->forks != tr__forks()) return;
    TR__KEEP_ERROR; /* a scope that ends must not change the message of what failed in it */
    if (group->state) close_group(group, "the program dropped the group without tr_leave()");
    tr__recorder_close(group->member.recorder); /* of a join that failed */
    const char **const texts[TEXTS] = TEXTS_OF(group);
    for (int i = 0; i < TEXTS; i++) free((char *)*texts[i]);
    pthread_mutex_destroy(&group->lock);
    pthread_cond_destroy(&group->changed);
}

const tr__type tr__group_type = {.name = "group", .size = sizeof(tr_group), .destroy = destroy};

tr_status tr__group_init(tr_group *group, const char *name, const tr__member *member, const char *job, const char *flight_dir)
{
    tr__member *m = &group->member;
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->changed, NULL);
    snprintf(group->name, sizeof group->name, "%s", name);
    group->forks = tr__count_forks();
    *m = *member;
    m->group = group->name;
    m->report_ms = m->report_ms ? m->report_ms : TR__GROUP_REPORT_MS;
    group->job = job;
    group->flight_dir = flight_dir;
    const char **const texts[TEXTS] = TEXTS_OF(group);
    bool lost = false;
    for (int i = 0; i < TEXTS; i++) {
        const char *given = *texts[i];
        *texts[i] = given ? strdup(given) : NULL;
        lost |= given && !*texts[i];
    }
    if (lost) return tr__fail(TR_NO_MEMORY, "group '%s': no memory for its settings", name);
    return TR_OK;
}

tr_status tr__group_enter(tr_group *group, tr__member *member, tr__recorder *beside)
{
    const tr__backend *backend = member->backend;
    /* Opened before the others are met, so that a join that hangs can be seen. */
    tr__recorder_options options = {.job = group->job, .group = group->name, .backend = backend->name, .rank = member->rank,
        .world_size = member->world_size, .folder = group->flight_dir, .beside = beside};
    if (member->world_size > 1 && !group->member.recorder) group->member.recorder = tr__recorder_open(&options);
    member->recorder = group->member.recorder;
    TR__TRY(backend->join(member, &group->state));
    bool checks = group->check && member->world_size > 1;
    tr_status status = checks ? tr__checks_new(member, group->state, &group->checks) : TR_OK;
    if (status != TR_OK) {
        TR__KEEP_ERROR;
        backend->leave(group->state);
        group->state = NULL;
        return status;
    }
    tr__recorder_joined(member->recorder);
    group->member.store = tr__ref(member->store);
    return TR_OK;
}

/* ---- What modules above need -------------------------------------------------------------------------------------- */

void tr__group_give_up(tr_group *group)
{
    TR__KEEP_ERROR; /* of a group that is broken the backend gives that failure */
    TR__LOCKED(&group->lock);
    if (group->state) give_up(group);
}

void tr_abort(tr_group *group, const char *reason)
{
    if (!group || tr__error_of(group)) return;
    TR__KEEP_ERROR;
    tr__fail(TR_CANCELLED, "%s", reason ? reason : "the program aborted the group");
    tr__group_give_up(group);
}

int tr__group_next_module(tr_group *group)
{
    TR__LOCKED(&group->lock);
    return ++group->modules;
}

int tr__group_timeout_ms(const tr_group *group)
{
    return group->member.timeout_ms;
}

/* ---- Questions --------------------------------------------------------------------------------------------------- */

static bool sound(const tr_group *group)
{
    return group && !tr__error_of(group);
}

int tr_rank(const tr_group *group)
{
    return sound(group) ? group->member.rank : 0;
}

int tr_world_size(const tr_group *group)
{
    return sound(group) ? group->member.world_size : 1;
}

int tr_local_rank(const tr_group *group)
{
    return sound(group) ? group->member.local_rank : 0;
}

tr_device tr_group_device(const tr_group *group)
{
    int local_rank = tr_local_rank(group);
    return local_rank < tr_device_count(TR_CUDA) ? tr_cuda(local_rank) : tr_cpu(0);
}

tr_status tr_group_device_named(const tr_group *group, const char *text, tr_device *out)
{
    tr_device named;
    if (group) TR__TRY(tr_status_of(group));
    TR__TRY(tr_device_parse(text, &named));
    bool numbered = strchr(text, ':') != NULL;
    if (!numbered && named.kind != TR_CPU) named.index = tr_local_rank(group) % tr_device_count(named.kind);
    *out = named;
    return TR_OK;
}
