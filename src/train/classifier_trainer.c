/*
 * A trainer's task: a classifier learns the samples of a dataset, in another order in every epoch. Step s is batch
 * s % (batches of an epoch) of epoch s / (batches of an epoch), so that a resumed training goes on where it was.
 */
#include "base/given.h"
#include "data/content.h"
#include "parallel/replicas.h"
#include "train/trainer.h"

#include <inttypes.h>

typedef struct classifier_work {
    tr_loader *loader, *judged; /* kept; judged: the validation set's, or NULL */
    tr_dataset *set, *validation; /* theirs, while the trainer is made */
    tr_on_bad on_bad;
    double momentum, weight_decay;
    int64_t next;     /* the step whose batch the loader gives next */
    tr_tensor *x, *y; /* this step's, the loader's own */
} classifier_work;

static void destroy(tr_trainer *t)
{
    classifier_work *w = tr__trainer_work(t);
    tr_release(w->loader);
    tr_release(w->judged);
}

static tr_optimizer *optimizer(tr_trainer *t)
{
    const classifier_work *w = tr__trainer_work(t);
    return tr_sgd(tr_parameters(t->plan.model), .lr = t->plan.lr, .momentum = w->momentum,
                  .weight_decay = w->weight_decay);
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

static tr_status load(tr_trainer *t, classifier_work *w)
{
    if (w->y && w->next == t->step + 1) return TR_OK; /* asked for again: it is still there */
    int64_t batches = tr_loader_batches(w->loader);
    if (w->next != t->step) TR__TRY(tr_loader_seek(w->loader, t->step / batches, t->step % batches));
    tr_batch b;
    tr_status status = tr_loader_next(w->loader, &b);
    if (status == TR_END) status = tr_loader_next(w->loader, &b); /* the next epoch's first */
    if (status != TR_OK && status != TR_CANCELLED) w->next = -1; /* the loader is behind the batch that failed */
    if (status != TR_OK) return status;
    w->next = t->step + 1;
    w->x = b.x;
    w->y = b.y;
    if (!w->y) return tr__fail(TR_INVALID, "classifier_trainer: the samples of the dataset have no y");
    if (!tr_dtype_is_float(tr_dtype_of(w->y))) return TR_OK;
    return tr__fail(TR_DTYPE, "classifier_trainer: y of the dataset's samples is %s: it must be the class index, i64 or i32",
        tr_dtype_name(tr_dtype_of(w->y)));
}

/* x: [n, …], y: [n] */
static tr_status batch(tr_trainer *t, int64_t at, int64_t n, tr_tensor **x, tr_tensor **y)
{
    classifier_work *w = tr__trainer_work(t);
    if (at == 0) TR__TRY(load(t, w));
    bool whole = n == t->share;
    *x = whole ? w->x : tr_slice(w->x, 0, at, at + n);
    *y = whole ? w->y : tr_slice(w->y, 0, at, at + n);
    return tr_status_of(*y);
}

/* Always by the first epoch's random numbers: the same samples, so that scores compare. */
static tr_status validate(tr_trainer *t, tr_score *score)
{
    const classifier_work *w = tr__trainer_work(t);
    *score = (tr_score){.loss = NAN, .accuracy = NAN};
    if (w->judged) TR__TRY(tr_loader_set_epoch(w->judged, 0));
    return w->judged ? tr_evaluate(t->plan.model, w->judged, .group = t->plan.group, .score = score) : TR_OK;
}

static void stop_when(tr_trainer *t, tr__stop_wanted wanted, void *user)
{
    const classifier_work *w = tr__trainer_work(t);
    tr__loader_stop_when(w->loader, wanted, user);
    if (w->judged) tr__loader_stop_when(w->judged, wanted, user);
}

static int64_t skipped(tr_trainer *t)
{
    const classifier_work *w = tr__trainer_work(t);
    return tr_loader_skipped(w->loader) + tr_loader_skipped(w->judged);
}

static void say(tr_trainer *t, tr__facts *facts)
{
    const classifier_work *w = tr__trainer_work(t);
    bool alone = t->world_size == 1; /* then nobody compares values */
    tr__dataset_say(w->set, "data", !alone && !tr__trainer_may_differ(t, "data.samples"), facts);
    tr__dataset_say(w->validation, "validation", !alone && !tr__trainer_may_differ(t, "validation.samples"), facts);
    tr__facts_say(facts, "on_bad", "%s", w->on_bad == TR_SKIP ? "skip" : "fail");
}

static const tr__task classifier_task = {"sample", true, optimizer, batch, validate, stop_when, skipped, destroy, say};

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static tr_status make_loaders(tr_trainer *t, const tr_classifier_trainer_options *o)
{
    TR_SCOPE;
    classifier_work *w = tr__trainer_work(t);
    int workers = TR__OR(o, workers, 1);
    int64_t count = tr_dataset_count(o->set);
    if (count < t->plan.batch)
        return tr__fail(TR_INVALID, "classifier_trainer: a batch of %" PRId64 " samples from a dataset of %" PRId64,
                        t->plan.batch, count);
    tr_sampler *sampler = tr_distributed_sampler(count, .global_batch = t->plan.batch, .rank = t->rank,
                                                 .world_size = t->world_size, .seed = t->plan.seed);
    w->loader =
        tr_keep(tr_loader_new(o->set, .batch = t->share, .workers = workers, .sampler = sampler, .seed = t->plan.seed,
                              .device = t->device, .on_bad = o->on_bad));
    TR__TRY(tr_status_of(w->loader));
    if (!o->validation || !tr_dataset_count(o->validation)) return TR_OK;
    /* Without .group, as above: what the ranks must have alike is compared with all other settings. */
    sampler = tr_distributed_sampler(tr_dataset_count(o->validation), .rank = t->rank, .world_size = t->world_size,
                                     .in_order = true);
    w->judged =
        tr_keep(tr_loader_new(o->validation, .batch = t->plan.micro_batch, .workers = workers, .sampler = sampler,
                              .device = t->device, .on_bad = o->on_bad));
    return tr_status_of(w->judged);
}

static tr_status fill_in(tr_trainer *t, const void *options)
{
    const tr_classifier_trainer_options *o = options;
    classifier_work *w = tr__trainer_work(t);
    w->momentum = TR__OR(o, momentum, 0.9);
    w->weight_decay = TR__OR(o, weight_decay, 5e-4);
    w->set = o->set;
    w->validation = o->validation;
    w->on_bad = o->on_bad;
    t->items = 1;
    TR__TRY(tr_status_of(o->set));
    TR__TRY(tr_status_of(o->validation));
    if (!o->model || !o->set)
        return tr__fail(TR_INVALID, "classifier_trainer: it takes a model and a dataset, not NULL");
    TR__TRY(tr__trainer_check(t));
    TR__TRY(make_loaders(t, o));
    if (!TR__GIVEN(o, steps)) t->plan.steps = 10 * tr_loader_batches(w->loader);
    return TR_OK;
}

tr_trainer *tr_classifier_trainer_with(const tr_classifier_trainer_options *o)
{
    const tr__plan *plan = TR__PLAN(o, .batch = TR__OR(o, global_batch, 64), .steps = o->steps, .lr = TR__OR(o, lr, 0.05),
        .min_lr = o->min_lr, .clip = o->clip);
    return tr__trainer_new(&classifier_task, plan, sizeof(classifier_work), fill_in, o);
}
