/*
 * Training steps, shared out over the ranks:
 *
 *   batch      samples 0 … batch-1, the same ones for any number of ranks
 *   rank r     samples [batch*r/n, batch*(r+1)/n), in micro-batches of m
 *   loss       sum over micro-batches of mean(loss) * m / batch, summed over the ranks
 *   gradient   DDP averages over n ranks, so each micro-batch's loss is scaled by n * m / batch
 */
#include "train/trainer.h"

#include "autograd/arena.h"
#include "base/clock.h"
#include "train/metrics.h"

#include <inttypes.h>

static void destroy(void *self)
{
    tr_trainer *t = self;
    tr_release(t->net);
    tr_release(t->optimizer);
    if (t->task) t->task->destroy(t);
    tr_release(t->metrics);
    tr_release(t->plan.model);
    tr_release(t->plan.group);
}

static const tr__type trainer_type = {"trainer", sizeof(tr_trainer), destroy};

/* ---- Making ------------------------------------------------------------------------------------------------------ */

tr_trainer *tr__trainer_new(const tr__task *task, const tr__plan *plan, size_t work_bytes)
{
    tr_trainer *t = tr__object_new_sized(&trainer_type, work_bytes);
    if (tr_status_of(t) != TR_OK) return t;
    t->task = task;
    t->plan = *plan;
    t->plan.model = tr_keep(plan->model);
    t->plan.group = tr_keep(plan->group);
    bool sound = plan->group && tr_status_of(plan->group) == TR_OK;
    t->world_size = sound ? tr_world_size(plan->group) : 1;
    t->rank = sound ? tr_rank(plan->group) : 0;
    t->first = plan->batch * t->rank / t->world_size;
    t->share = plan->batch * (t->rank + 1) / t->world_size - t->first;
    t->plan.micro_batch = plan->micro_batch ? plan->micro_batch : t->share;
    if (t->rank == 0) t->metrics = tr_keep(tr__metrics_new());
    t->validation_loss = t->best_validation_loss = t->validation_accuracy = t->best_validation_accuracy = NAN;
    return t;
}

/* What needs all gradients before the first one is used. */
static tr_status check_in_backward(const tr_trainer *t)
{
    const tr__plan *p = &t->plan;
    if (!p->step_in_backward) return TR_OK;
    if (t->world_size > 1)
        return tr__fail(TR_UNSUPPORTED, "trainer: .step_in_backward: %d ranks average gradients after backward has made them; it "
            "takes one rank", t->world_size);
    if (p->clip > 0)
        return tr__fail(TR_UNSUPPORTED, "trainer: .step_in_backward: the gradients' norm is known when they have been used: no clip "
            "of %g, but .clip = 0", p->clip);
    if (p->micro_batch < t->share)
        return tr__fail(TR_UNSUPPORTED, "trainer: .step_in_backward: gradients of several micro-batches cannot be added up: a "
            "micro_batch of %" PRId64 ", the whole batch, not %" PRId64, t->share, p->micro_batch);
    return TR_OK;
}

tr_status tr__trainer_check(const tr_trainer *t)
{
    const tr__plan *p = &t->plan;
    TR__TRY(tr_status_of(p->model));
    TR__TRY(tr_status_of(p->group));
    if (p->steps < 0 || p->warmup_steps < 0 || p->micro_batch < 0)
        return tr__fail(TR_INVALID,
            "trainer: steps, warmup_steps and micro_batch must not be negative: %" PRId64 ", %" PRId64 ", %" PRId64,
            p->steps, p->warmup_steps, p->micro_batch);
    if (p->batch < t->world_size)
        return tr__fail(
            TR_INVALID, "trainer: a batch of %" PRId64 " cannot be shared out over %d ranks", p->batch, t->world_size);
    if (!(p->lr > 0 && p->min_lr >= 0 && p->clip >= 0))
        return tr__fail(TR_INVALID, "trainer: lr must be more than 0, min_lr and clip not less: %g, %g, %g", p->lr,
            p->min_lr, p->clip);
    if (p->autocast && p->autocast != TR_BF16 && p->autocast != TR_F16)
        return tr__fail(TR_INVALID, "trainer: autocast is TR_BF16 or TR_F16, or 0 for the caller's, not %s",
            tr_dtype_name(p->autocast));
    return check_in_backward(t);
}

tr_status tr__trainer_agree(tr_trainer *t, tr_status status, const char *what)
{
    if (t->world_size == 1) return status;
    int32_t well = t->rank != 0 || status == TR_OK;
    tr__error *own = status == TR_OK ? NULL : tr__error_take();
    tr_status shared = tr_all_reduce(t->plan.group, &well, 1, .dtype = TR_I32, .op = TR_MIN);
    if (own) {
        tr__fail_stored(own);
        tr__error_unref(own);
        return status;
    }
    if (shared != TR_OK || well) return shared;
    return tr__fail(TR_PEER, "rank 0 failed to %s", what);
}

tr_status tr__trainer_set_up(tr_trainer *t)
{
    const tr__plan *p = &t->plan;
    TR_SCOPE;
    tr_tensor_list *state = NULL, *parameters = tr_parameters(p->model);
    TR__TRY(tr_status_of(parameters));
    if (t->world_size > 1) TR__TRY(tr__arena_build(parameters)); /* all together, whichever the optimizer takes */
    t->optimizer = tr_keep(p->optimizer ? p->optimizer(parameters, p->user) : t->task->optimizer(t));
    if (!t->optimizer) return tr__fail(TR_INVALID, "trainer: .optimizer made none: it returned NULL");
    TR__TRY(tr__trainer_compare(t)); /* before anything is read, exchanged or written */
    if (p->resume) TR__TRY(tr__trainer_resume_model(t, &state));
    t->net = tr_keep(t->world_size > 1 ? tr_ddp(p->model, p->group) : p->model);
    TR__TRY(tr_status_of(t->net));
    TR__TRY(tr_step_in_backward(t->optimizer, p->step_in_backward));
    return p->resume ? tr__trainer_resume_state(t, state) : TR_OK;
}

int64_t tr_trainer_steps(const tr_trainer *t)
{
    return t->step;
}

int64_t tr_trainer_skipped(const tr_trainer *t)
{
    return tr__error_of(t) || !t->task->skipped ? 0 : t->task->skipped((tr_trainer *)t);
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

static tr_dtype autocast_of(const tr_trainer *t)
{
    return t->plan.autocast ? t->plan.autocast : tr_autocast();
}

tr_tensor *tr__trainer_loss(const tr_trainer *t, tr_module *net, tr_tensor *x, tr_tensor *y)
{
    TR_SCOPE; /* what the net made is then held by the graph alone, and goes as backward does */
    TR_AUTOCAST(autocast_of(t));
    return tr_escape(t->plan.loss ? t->plan.loss(net, x, y, t->plan.user) : tr_cross_entropy(tr_forward(net, x), y));
}

/* Forward and backward of n samples from this rank's sample `at` on. Adds their part of the batch's loss to *loss. */
static tr_status learn(tr_trainer *t, int64_t at, int64_t n, double *loss)
{
    TR_SCOPE;
    const tr__plan *p = &t->plan;
    tr_tensor *x, *y; /* [n, …] */
    TR__TRY(t->task->batch(t, at, n, &x, &y));
    TR__TRY(tr_seed(t->net, p->seed, .step = (uint64_t)t->step, .first_sample = (uint64_t)(t->first + at)));
    tr_tensor *mean = tr__trainer_loss(t, t->net, x, y);
    double part = (double)n / (double)p->batch, scale = part * t->world_size;
    tr_tensor *root = scale == 1 ? mean : tr_affine(mean, scale, 0);
    TR__TRY(tr_status_of(root));
    *loss += part * tr_item(mean);
    if (p->step_in_backward && !isfinite(*loss)) return TR_OK; /* update() says so; the parameters stay as they are */
    if (t->world_size > 1) TR__TRY(tr_ddp_sync(t->net, at + n == t->share));
    return tr_backward(root);
}

/* loss and stop, over all ranks. */
static tr_status share(tr_trainer *t, double *loss, bool *stop)
{
    double values[] = {*loss, *stop};
    if (t->world_size > 1) TR__TRY(tr_all_reduce(t->plan.group, values, 2, .dtype = TR_F64));
    *loss = values[0];
    *stop = values[1] > 0;
    return TR_OK;
}

/* From here on every rank has the same numbers, so that a failure is the same on all. */
static tr_status update(tr_trainer *t, tr_metrics_row *row)
{
    t->common_failure = true;
    if (!isfinite(row->loss))
        return tr__fail(TR_INVALID,
            "step %" PRId64 ": the loss is %s: training has diverged, try a lower learning rate", t->step + 1,
            isnan(row->loss) ? "not a number" : "infinite");
    if (t->plan.clip > 0) {
        tr_status status = tr_clip_grad_norm(t->optimizer, t->plan.clip, &row->grad_norm);
        if (status != TR_OK) return tr__fail_context(status, "step %" PRId64, t->step + 1);
    }
    TR__TRY(tr_step(t->optimizer));
    t->common_failure = false;
    return TR_OK;
}

tr_status tr_trainer_step(tr_trainer *t, tr_metrics_row *row, bool *stop)
{
    TR__TRY(tr_status_of(t));
    const tr__plan *p = &t->plan;
    int64_t start = tr__now_ns();
    *row = (tr_metrics_row){.validation_loss = NAN, .grad_norm = NAN, .seconds = NAN, .validation_accuracy = NAN};
    row->lr = tr_cosine_lr(t->step, p->lr, p->steps, .warmup_steps = p->warmup_steps, .min_lr = p->min_lr);
    TR__TRY(tr_set_lr(t->optimizer, row->lr));
    tr_zero_grad(t->optimizer);
    for (int64_t at = 0; at < t->share; at += p->micro_batch) {
        int64_t n = t->share - at < p->micro_batch ? t->share - at : p->micro_batch;
        TR__TRY(learn(t, at, n, &row->loss));
    }
    TR__TRY(share(t, &row->loss, stop));
    TR__TRY(update(t, row));
    row->step = ++t->step;
    row->items = t->step * p->batch * t->items;
    row->items_per_s = (double)(p->batch * t->items) / (1e-9 * (double)(tr__now_ns() - start));
    return TR_OK;
}

tr_status tr_trainer_validate(tr_trainer *t, tr_score *score)
{
    TR__TRY(tr_status_of(t));
    TR_AUTOCAST(autocast_of(t));
    TR__TRY(t->task->validate(t, score));
    t->validated_step = t->step;
    if (isnan(score->loss)) return TR_OK;
    t->validation_loss = score->loss;
    t->validation_accuracy = score->accuracy;
    if (!(t->best_validation_loss <= score->loss)) t->best_validation_loss = score->loss;
    if (!(t->best_validation_accuracy >= score->accuracy)) t->best_validation_accuracy = score->accuracy;
    return TR_OK;
}
