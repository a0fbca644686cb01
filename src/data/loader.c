/*
 * The loader. An epoch's batches are numbered; workers take the numbers in order, at most `capacity` ahead of what the
 * program has got, and put what they made into slot number % capacity, from where it is handed out in order. So the
 * order is that of the numbers, whoever made what, and memory is bounded: a batch is a fresh tensor, whose memory comes
 * from the device's cache and goes back there when nobody, a graph included, holds it any more. With processes each
 * worker has one that makes its batches (remote.h); all else is the same.
 */
#include "data/batch.h"
#include "data/loader.h"
#include "data/remote.h"
#include "data/sampler.h"

#include "base/clock.h"
#include "base/given.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/thread.h"
#include "comm/group/agree.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BATCH = 32, PREFETCH = 2, MOST_WORKERS = 1024, MOST_PREFETCH = 1024, LOOK_MS = 50, HANGS_MS = 5000 };

/* One batch, made or not. */
typedef struct slot {
    bool made;
    tr__error *error; /* NULL: batch holds it */
    tr__batch_result batch;
} slot;

typedef struct worker {
    tr_loader *loader;
    pthread_t thread;
    tr__remote remote; /* the thread's own */
    atomic_uint begun; /* as in tr__recipe */
} worker;

struct tr_loader {
    tr__object object;
    tr_dataset *set;     /* references */
    tr_sampler *sampler;
    tr__recipe recipe;   /* what all batches have in common */
    uint64_t seed;
    int64_t batch;       /* samples in one */
    bool drop_last;
    bool processes;
    int wake;            /* with processes: a descriptor that is readable when workers are to end; otherwise -1 */

    int64_t epoch;       /* under way, or the next */
    int64_t first;       /* batch that the next epoch begins with */
    int64_t heard;       /* how often the sampler's epoch had been set when this loader last followed it */
    bool under_way;
    int64_t *indices;    /* of this epoch, length of them */
    int64_t length, duplicates, batches;
    tr__batch_result current;   /* what was handed out last */
    int64_t skipped;     /* bad samples, in what was handed out */
    bool hangs;          /* a worker does, as far as is known */
    unsigned char *told; /* a bit for each sample of the set that the log has named as bad; NULL: none yet */
    tr__stop_wanted stop_wanted; /* or NULL */
    void *stop_user;

    bool has_lock;
    pthread_mutex_t lock;      /* for what follows */
    pthread_cond_t work, made; /* work may be available; work was done */
    worker *workers;
    int count, running;        /* of workers, and how many threads there are */
    bool ending;
    atomic_bool give_up;
    int busy;                  /* workers at a batch */
    int64_t next, delivered;   /* number of the batch to be taken by a worker, to be handed out */
    slot *slots;
    int capacity;
};

/* ---- What a batch is --------------------------------------------------------------------------------------------- */

static int64_t batches_of(const tr_loader *l, int64_t length)
{
    return length / l->batch + (!l->drop_last && length % l->batch);
}

static int64_t samples_in(const tr_loader *l, int64_t number)
{
    int64_t rest = l->length - number * l->batch;
    return rest < l->batch ? rest : l->batch;
}

/* w: NULL when the calling thread is the program's. */
static tr_status make(tr_loader *l, worker *w, int64_t number, tr__batch_result *batch)
{
    tr__recipe recipe = l->recipe;
    recipe.indices = l->indices + number * l->batch;
    recipe.count = samples_in(l, number);
    int64_t once = l->length - l->duplicates - number * l->batch;
    recipe.once = once < 0 ? 0 : once < recipe.count ? once : recipe.count;
    recipe.seed = tr__mix(l->seed, (uint64_t)l->epoch);
    recipe.begun = w ? &w->begun : NULL;
    int64_t most = l->batch < l->length ? l->batch : l->length;
    tr_status status = l->processes ? tr__remote_make(&w->remote, &recipe, most, l->wake, batch)
                                    : tr__batch_make(&recipe, batch);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "loader");
}

static void empty_slot(slot *s)
{
    tr__batch_drop(&s->batch);
    tr__error_unref(s->error);
    *s = (slot){0};
}

/* ---- Workers ----------------------------------------------------------------------------------------------------- */

static void *work(void *arg)
{
    worker *w = arg;
    tr_loader *l = w->loader;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->ending && (l->next >= l->batches || l->next >= l->delivered + l->capacity))
            pthread_cond_wait(&l->work, &l->lock);
        if (l->ending) break;
        int64_t number = l->next++;
        l->busy++;
        pthread_mutex_unlock(&l->lock);
        slot s = {.made = true};
        if (make(l, w, number, &s.batch) != TR_OK) s.error = tr__error_take();
        pthread_mutex_lock(&l->lock);
        l->busy--;
        l->slots[number % l->capacity] = s;
        pthread_cond_broadcast(&l->made);
    }
    pthread_mutex_unlock(&l->lock);
    tr__remote_end(&w->remote);
    return NULL;
}

/* ---- Epochs ------------------------------------------------------------------------------------------------------ */

static tr_status draw_indices(tr_loader *l)
{
    int64_t length = tr_sampler_length(l->sampler);
    int64_t *indices = reallocarray(l->indices, (size_t)(length ? length : 1), sizeof *indices);
    if (!indices) return tr__fail(TR_NO_MEMORY, "loader: no memory for the order of %" PRId64 " samples", length);
    l->indices = indices;
    TR__TRY(tr__sampler_draw(l->sampler, l->epoch, indices));
    for (int64_t i = 0; i < length; i++)
        if (indices[i] < 0 || indices[i] >= l->set->count)
            return tr__fail(TR_INVALID, "loader: the sampler asks for sample %" PRId64 ", and %s has %" PRId64,
                indices[i], l->set->name, l->set->count);
    l->length = length;
    l->duplicates = tr_sampler_duplicates(l->sampler);
    return TR_OK;
}

/* No worker is active meanwhile: there is no batch to take. */
static tr_status begin_epoch(tr_loader *l)
{
    /* Whichever was set last counts: the sampler's epoch, or the loader's. */
    int64_t times_set, epoch = tr__sampler_epoch(l->sampler, &times_set);
    if (times_set != l->heard && epoch != l->epoch) { /* the same one may begin in its middle, by tr_loader_seek() */
        l->epoch = epoch;
        l->first = 0;
    }
    l->heard = times_set;
    TR__TRY(draw_indices(l));
    if (l->set->count > 0 && batches_of(l, l->length) == 0)
        return tr__fail(TR_INVALID, "loader: an epoch has no batch: of the %" PRId64 " samples of %s this rank takes %" PRId64
            ", too few for one batch of %" PRId64 ": make .batch, or the sampler's .global_batch, smaller, or leave out .drop_last", l->set->count, l->set->name,
            l->length, l->batch);
    for (; l->running < l->count; l->running++) {
        worker *w = &l->workers[l->running];
        w->loader = l;
        int error = tr__thread_start(&w->thread, work, w);
        if (error) return tr__fail_errno(TR_NO_MEMORY, error, "loader: cannot start worker %d", l->running);
    }
    pthread_mutex_lock(&l->lock);
    l->next = l->delivered = l->first;
    l->first = 0;
    l->batches = batches_of(l, l->length);
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    l->under_way = true;
    return TR_OK;
}

/* Waits for the batches that are being made, and drops all that are not handed out. Where a worker hangs processes are ended
 * instead; others are started for the next batches. */
static void end_epoch(tr_loader *l)
{
    bool ends_processes = l->hangs && l->wake >= 0;
    atomic_store(&l->give_up, true);
    pthread_mutex_lock(&l->lock);
    l->batches = 0;
    if (ends_processes) (void)eventfd_write(l->wake, 1);
    while (l->busy) pthread_cond_wait(&l->made, &l->lock);
    pthread_mutex_unlock(&l->lock);
    eventfd_t count;
    if (ends_processes) (void)eventfd_read(l->wake, &count);
    l->hangs = false;
    atomic_store(&l->give_up, false);
    for (int i = 0; i < l->capacity; i++) empty_slot(&l->slots[i]);
    l->under_way = false;
}

/* ---- Making one -------------------------------------------------------------------------------------------------- */

static void destroy(void *self)
{
    tr_loader *l = self;
    if (l->has_lock) {
        atomic_store(&l->give_up, true);
        pthread_mutex_lock(&l->lock);
        l->ending = true;
        pthread_cond_broadcast(&l->work);
        pthread_mutex_unlock(&l->lock);
        if (l->wake >= 0) (void)eventfd_write(l->wake, 1); /* it cannot fail: nobody else writes */
        for (int i = 0; i < l->running; i++) pthread_join(l->workers[i].thread, NULL);
        for (int i = 0; i < l->capacity; i++) empty_slot(&l->slots[i]);
        pthread_cond_destroy(&l->made);
        pthread_cond_destroy(&l->work);
        pthread_mutex_destroy(&l->lock);
        if (l->wake >= 0) close(l->wake);
    }
    tr__batch_drop(&l->current);
    free(l->slots);
    free(l->workers);
    free(l->indices);
    free(l->told);
    tr__unref(l->sampler);
    tr__unref(l->set);
}

static const tr__type loader_type = {"loader", sizeof(tr_loader), destroy};

static tr_status check(const tr_loader_options *o)
{
    if (!o->set) return tr__fail(TR_INVALID, "loader: the dataset is NULL");
    TR__TRY(tr_status_of(o->set));
    TR__TRY(tr__device_check(o->device));
    if (TR__OR(o, batch, BATCH) < 1)
        return tr__fail(TR_INVALID, "loader: a batch of %" PRId64 " samples: it takes 1 and more", o->batch);
    if (o->workers < 0 || o->workers > MOST_WORKERS)
        return tr__fail(TR_INVALID, "loader: %d workers: 0 to %d", o->workers, MOST_WORKERS);
    if (o->processes && !o->workers)
        return tr__fail(TR_INVALID, "loader: with .processes there are .workers, 1 and more");
    int prefetch = TR__OR(o, prefetch, PREFETCH);
    if (prefetch < 1 || prefetch > MOST_PREFETCH)
        return tr__fail(TR_INVALID, "loader: a prefetch of %d batches: it takes 1 to %d", prefetch, MOST_PREFETCH);
    if (o->on_bad != TR_FAIL && o->on_bad != TR_SKIP)
        return tr__fail(TR_INVALID, "loader: .on_bad is TR_FAIL or TR_SKIP, not %d", (int)o->on_bad);
    if (o->sampler && (o->group || o->shuffle))
        return tr__fail(TR_INVALID,
            "loader: with a .sampler it takes neither .group nor .shuffle: give the sampler the .group; it shuffles, unless "
            "it is made with .in_order");
    return TR_OK;
}

static tr_status fill(tr_loader *l, const tr_loader_options *o)
{
    TR_SCOPE;
    tr_status own = check(o);
    if (own != TR_OK) return tr__agree(o->group, "loader", own, NULL); /* the others compare their samplers, and hear of it there */
    tr_sampler *sampler = o->sampler;
    if (!sampler)
        sampler = tr_distributed_sampler(o->set->count, .group = o->group, .in_order = !o->shuffle, .seed = o->seed);
    TR__TRY(tr_status_of(sampler));
    l->sampler = tr__ref(sampler);
    l->set = tr__ref(o->set);
    l->recipe = (tr__recipe){.set = l->set, .collate = o->collate, .user = o->user, .device = o->device,
        .on_bad = o->on_bad, .choice = tr__sampler_count(l->sampler), .stop = &l->give_up};
    if (l->recipe.choice > l->set->count) l->recipe.choice = l->set->count;
    l->batch = TR__OR(o, batch, BATCH);
    l->drop_last = o->drop_last;
    l->processes = o->processes;
    l->seed = o->seed;
    int capacity = o->workers * TR__OR(o, prefetch, PREFETCH);
    l->slots = calloc((size_t)capacity + 1, sizeof *l->slots);
    l->workers = calloc((size_t)o->workers + 1, sizeof *l->workers);
    if (!l->slots || !l->workers) return tr__fail(TR_NO_MEMORY, "loader: out of memory");
    l->count = o->workers;
    l->capacity = capacity;
    l->wake = -1;
    if (l->processes) TR__TRY(tr__remote_check(&l->recipe));
    if (l->processes && (l->wake = eventfd(0, EFD_CLOEXEC)) < 0)
        return tr__fail_errno(TR_IO, errno, "loader: cannot make a descriptor (see ulimit -n)");
    pthread_mutex_init(&l->lock, NULL);
    tr__condition_init(&l->work);
    tr__condition_init(&l->made);
    l->has_lock = true;
    return TR_OK;
}

tr_loader *tr_loader_new_with(const tr_loader_options *options)
{
    tr_loader *loader = tr__object_new(&loader_type);
    if (loader->object.error) return loader;
    TR__CALLED_AT(options->file, options->line);
    if (fill(loader, options) != TR_OK) tr__object_break(loader);
    return loader;
}

/* ---- Using one --------------------------------------------------------------------------------------------------- */

static tr_status check_loader(const char *what, const tr_loader *loader)
{
    if (!loader) return tr__fail(TR_INVALID, "%s: the loader is NULL", what);
    return tr_status_of(loader);
}

static unsigned count_begun(tr_loader *l)
{
    unsigned begun = 0;
    for (int i = 0; i < l->count; i++) begun += atomic_load_explicit(&l->workers[i].begun, memory_order_relaxed);
    return begun;
}

/* Waits, under the lock, until the slot's batch is made. */
static tr_status await(tr_loader *l, const slot *s)
{
    unsigned begun = count_begun(l);
    for (int64_t now = tr__now_ns(), since = now; !s->made; now = tr__now_ns()) {
        if (!l->stop_wanted) {
            pthread_cond_wait(&l->made, &l->lock);
            continue;
        }
        unsigned latest = count_begun(l);
        if (!l->stop_wanted(l->stop_user) || latest != begun) since = now;
        begun = latest;
        if (now - since > HANGS_MS * (int64_t)1000000)
            return tr__fail(TR_CANCELLED,
                "loader: the program wants to stop, and its workers have begun no sample of %s for %g s: one of them hangs",
                l->set->name, HANGS_MS / 1000.0);
        int64_t until = now + LOOK_MS * (int64_t)1000000;
        pthread_cond_timedwait(&l->made, &l->lock, &(struct timespec){until / 1000000000, until % 1000000000});
    }
    return TR_OK;
}

/* Waits until the batch that is to be handed out is made, and takes it from its slot. */
static tr_status take(tr_loader *l, tr__batch_result *batch)
{
    slot *s = &l->slots[l->delivered % l->capacity];
    pthread_mutex_lock(&l->lock);
    slot taken = {0};
    tr_status status = await(l, s);
    l->hangs = status != TR_OK;
    if (status == TR_OK) {
        taken = *s;
        *s = (slot){0};
        l->delivered++;
        pthread_cond_signal(&l->work);
    }
    pthread_mutex_unlock(&l->lock);
    *batch = taken.batch;
    return status == TR_OK ? tr__error_restore(taken.error) : status;
}

/* Names what the current batch has skipped in the log, each sample once; counts it whenever it was to be in a batch. */
static void tell_skips(tr_loader *l)
{
    int64_t index;
    const char *text;
    for (size_t at = 0; tr__skips_next(&l->current.skips, &at, &index, &text); l->skipped++) {
        if (!l->told) l->told = calloc((size_t)l->set->count / 8 + 1, 1);
        unsigned char bit = (unsigned char)(1 << index % 8);
        if (l->told && (l->told[index / 8] & bit)) continue;
        if (l->told) l->told[index / 8] |= bit;
        tr__log(TR_LOG_WARN, "loader: skipped %s", text);
    }
}

tr_status tr_loader_next(tr_loader *loader, tr_batch *batch)
{
    if (!batch) return tr__fail(TR_INVALID, "loader_next: batch is NULL");
    *batch = (tr_batch){0};
    TR__TRY(check_loader("loader_next", loader));
    tr_loader *l = loader;
    tr__batch_drop(&l->current);
    if (!l->under_way) TR__TRY(begin_epoch(l));
    if (l->delivered == l->batches) {
        l->under_way = false;
        l->epoch++;
        return TR_END;
    }
    int64_t number = l->delivered;
    if (!l->count) l->delivered++;
    tr_status status = l->count ? take(l, &l->current) : make(l, NULL, number, &l->current);
    tell_skips(l);
    if (status != TR_OK) return status;
    const tr__batch_result *b = &l->current;
    *batch = (tr_batch){.x = b->made.x, .y = b->made.y, .count = samples_in(l, number), .duplicates = b->duplicates,
        .indices = b->indices ? b->indices : l->indices + number * l->batch};
    memcpy(batch->more, b->made.more, sizeof batch->more);
    return TR_OK;
}

int64_t tr_loader_skipped(const tr_loader *loader)
{
    return loader && !loader->object.error ? loader->skipped : 0;
}

static void begin_with(tr_loader *l, int64_t epoch, int64_t batch)
{
    if (l->under_way) end_epoch(l);
    tr__batch_drop(&l->current);
    l->epoch = epoch;
    l->first = batch;
}

void tr__loader_rewind(tr_loader *loader)
{
    begin_with(loader, loader->epoch, 0);
}

tr__sampler_ranks tr__loader_ranks(const tr_loader *loader)
{
    return tr__sampler_ranks_of(loader->sampler);
}

void tr__loader_stop_when(tr_loader *loader, tr__stop_wanted wanted, void *user)
{
    loader->stop_wanted = wanted;
    loader->stop_user = user;
}

tr_status tr_loader_set_epoch(tr_loader *loader, int64_t epoch)
{
    TR__TRY(check_loader("loader_set_epoch", loader));
    if (epoch < 0) return tr__fail(TR_INVALID, "loader_set_epoch: epochs count from 0, not %" PRId64, epoch);
    begin_with(loader, epoch, 0);
    tr__sampler_epoch(loader->sampler, &loader->heard);
    return TR_OK;
}

tr_status tr_loader_seek(tr_loader *loader, int64_t epoch, int64_t batch)
{
    TR__TRY(check_loader("loader_seek", loader));
    int64_t batches = tr_loader_batches(loader);
    if (epoch < 0 || batch < 0 || batch > batches)
        return tr__fail(TR_INVALID, "loader_seek: no batch %" PRId64 " of epoch %" PRId64 ": epochs count from 0 and have %"
            PRId64 " batches", batch, epoch, batches);
    begin_with(loader, epoch, batch);
    tr__sampler_epoch(loader->sampler, &loader->heard);
    return TR_OK;
}

int64_t tr_loader_batches(const tr_loader *loader)
{
    if (!loader || loader->object.error) return 0;
    return batches_of(loader, tr_sampler_length(loader->sampler));
}
