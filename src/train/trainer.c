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
#include "base/share.h"
#include "comm/control.h"
#include "optim/optimizer.h"
#include "parallel/ddp.h"
#include "parallel/replicas.h"
#include "train/gradient_watch.h"
#include "train/metrics.h"
#include "train/replica_check.h"

#include <inttypes.h>
#include <stdlib.h>

static void destroy(void *self)
{
    tr_trainer *t = self;
    tr_release(t->net);
    tr_release(t->optimizer);
    if (t->task) t->task->destroy(t);
    free(t->said);
    tr_release(t->metrics);
    tr_release(t->plan.model);
    tr_release(t->plan.group);
}

static const tr__type trainer_type = {"trainer", sizeof(tr_trainer), destroy};

/* ---- Making ------------------------------------------------------------------------------------------------------ */

/* Refuses what needs all gradients before the first one is applied. */
static tr_status check_in_backward(const tr_trainer *t)
{
    const tr__plan *p = &t->plan;
    if (!p->step_in_backward) return TR_OK;
    if (p->step_after_backward)
        return tr__fail(TR_INVALID, "trainer: .step_in_backward and .step_after_backward: one of them");
    if (p->stop_on_spike)
        return tr__fail(TR_UNSUPPORTED, "trainer: .step_in_backward: a spike is known when gradients have been used: no "
            ".stop_on_spike");
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
        return tr__fail(TR_INVALID, "trainer: lr must be more than 0, min_lr and clip must not be negative: %g, %g, %g",
            p->lr, p->min_lr, p->clip);
    if (p->check_replicas < 0)
        return tr__fail(TR_INVALID, "trainer: check_replicas is a number of steps, 0 for never, not %" PRId64,
                        p->check_replicas);
    if (p->autocast && p->autocast != TR_BF16 && p->autocast != TR_F16)
        return tr__fail(TR_INVALID, "trainer: autocast is TR_BF16 or TR_F16, or 0 for the caller's, not %s",
            tr_dtype_name(p->autocast));
    return check_in_backward(t);
}

tr_status tr__trainer_tell(const tr_trainer *t, tr_status status)
{
    return t->common_failure ? status : tr__group_tell(t->plan.group, status);
}

/* Only rank 0 reads and writes checkpoints, but every rank has a shard of the state. */
tr_status tr__trainer_check_unsharded(const tr_trainer *t)
{
    if (!t->optimizer->gather) return TR_OK;
    return tr__fail(TR_UNSUPPORTED, "trainer: checkpoints of a sharded optimizer are not written or read by a trainer: leave out "
        "tr_shard_optimizer(), or train without .folder and .resume and save by tr_optimizer_state() on all ranks");
}

/* Does nothing that is known from the start need all gradients, on any rank, and are the parameters on the CPU, where a step of one
 * costs no launch? Clipping and stopping at spikes are known to be alike on all ranks, or else allowed to differ. */
static tr_status may_step_in_backward(const tr_trainer *t, bool *may)
{
    const tr__plan *p = &t->plan;
    bool alike = t->world_size == 1 || (!tr__trainer_may_differ(t, "clip") && !tr__trainer_may_differ(t, "stop_on_spike"));
    *may = p->step_in_backward;
    if (*may || !alike || p->clip > 0 || p->stop_on_spike) return TR_OK;
    int32_t here = !p->step_after_backward && p->micro_batch >= t->share && t->device.kind == TR_CPU;
    if (t->world_size > 1) TR__TRY(tr_all_reduce(p->group, &here, 1, .dtype = TR_I32, .op = TR_MIN));
    *may = here;
    return TR_OK;
}

/* Without being told to: where nobody reads all gradients, nobody else has the optimizer, updates a parameter or exchanges its
 * gradient, and the parameters are on the CPU. The results are the same, bit for bit. */
static bool can_step_in_backward(const tr_trainer *t)
{
    const tr_tensor_list *list = t->optimizer->list;
    const int ddps = t->world_size > 1; /* the trainer's own */
    bool can = !t->optimizer->gather && tr__refs(t->optimizer) == 1;
    for (int i = 0; i < list->count; i++) {
        const tr__leaf *leaf = list->entries[i].tensor->leaf;
        can &= tr__device_of(list->entries[i].tensor).kind == TR_CPU && atomic_load(&leaf->optimizers) == 1 && !leaf->has_grad &&
               atomic_load(&leaf->averagers) == ddps && (leaf->averager != NULL) == ddps;
    }
    return can;
}

/* Asked before each step's last backward, as others may come and go. Ranks step in backward when all of them can, and then only where
 * the loss of each is finite: once the first bucket is averaged it is applied. An optimizer that steps in backward without having been
 * told to does so in the trainer's backwards only: those of the program leave gradients, as always. */
static tr_status choose_when_to_step(tr_trainer *t, double loss, bool *finite)
{
    bool told = t->plan.step_in_backward;
    *finite = true;
    t->in_backward = false;
    if (t->may_step_in_backward) {
        int32_t all[] = {told || can_step_in_backward(t), isfinite(loss)};
        if (t->world_size > 1) TR__TRY(tr_all_reduce(t->plan.group, all, 2, .dtype = TR_I32, .op = TR_MIN));
        t->in_backward = all[0];
        *finite = all[1];
    }
    TR__TRY(tr_step_in_backward(t->optimizer, t->in_backward));
    tr__in_backward_pause(t->optimizer, !told);
    tr__in_backward_measure(t->optimizer, tr__gradients_are_watched(t));
    if (t->world_size > 1) tr__ddp_measure(t->net, t->in_backward && tr__gradients_are_watched(t));
    return TR_OK;
}

static tr_status lay_out(tr_trainer *t)
{
    TR_SCOPE;
    const tr_tensor_list *parameters = tr_parameters(t->plan.model);
    t->said = calloc((size_t)t->world_size, sizeof *t->said);
    if (!t->said) return tr__fail(TR_NO_MEMORY, "trainer: out of memory");
    TR__TRY(tr_status_of(parameters));
    return t->world_size > 1 ? tr__arena_build(parameters) : TR_OK; /* all together, whichever the optimizer takes */
}

static tr_status make_optimizer(tr_trainer *t)
{
    const tr__plan *p = &t->plan;
    TR_SCOPE;
    tr_tensor_list *parameters = tr_parameters(p->model);
    TR__TRY(tr_status_of(parameters));
    t->optimizer = tr_keep(p->optimizer ? p->optimizer(parameters, p->user) : t->task->optimizer(t));
    return t->optimizer ? tr_status_of(t->optimizer) : tr__fail(TR_INVALID, "trainer: .optimizer made none: it returned NULL");
}

static tr_status set_up(tr_trainer *t)
{
    const tr__plan *p = &t->plan;
    TR_SCOPE;
    tr_tensor_list *state = NULL;
    if (p->resume) TR__TRY(tr__trainer_check_unsharded(t));
    if (p->resume) TR__TRY(tr__trainer_resume_model(t, p->resume, &state));
    t->net = tr_keep(t->world_size > 1 ? tr_ddp(p->model, p->group, .check_every = 0, .modules_may_differ = true) : p->model);
    TR__TRY(tr_status_of(t->net));
    TR__TRY(tr_step_in_backward(t->optimizer, p->step_in_backward));
    TR__TRY(may_step_in_backward(t, &t->may_step_in_backward));
    if (p->resume) TR__TRY(tr__trainer_resume_state(t, state));
    t->saved_at = p->resume && stat(p->resume, &t->saved_in) == 0 ? t->step : -1;
    t->agreed_step = t->step;
    return TR_OK;
}

/* Where a model begins; cpu:0 if it has no parameters, or is NULL or in error. */
static tr_device device_of(tr_module *model)
{
    TR_SCOPE;
    return tr_device_of(tr_list_at(tr_parameters(model), 0));
}

tr_trainer *tr__trainer_new(const tr__task *task, const tr__plan *plan, size_t work_bytes, tr__trainer_fill fill,
    const void *options)
{
    TR__CALLED_AT(plan->place.file, plan->place.line);
    tr_trainer *t = tr__object_new_sized(&trainer_type, work_bytes);
    if (tr_status_of(t) != TR_OK) return t;
    t->task = task;
    t->plan = *plan;
    t->plan.model = tr_keep(plan->model);
    t->plan.group = tr_keep(plan->group);
    t->device = device_of(plan->model);
    bool sound = plan->group && tr_status_of(plan->group) == TR_OK;
    t->world_size = sound ? tr_world_size(plan->group) : 1;
    t->rank = sound ? tr_rank(plan->group) : 0;
    t->plan.check_replicas = tr__replicas_every(plan->check_replicas);
    t->first = tr__share_begin(plan->batch, t->rank, t->world_size);
    t->share = tr__share_begin(plan->batch, t->rank + 1, t->world_size) - t->first;
    t->plan.micro_batch = plan->micro_batch ? plan->micro_batch : t->share;
    if (t->rank == 0) t->metrics = tr_keep(tr__metrics_new());
    t->validation_loss = t->best_validation_loss = t->validation_accuracy = t->best_validation_accuracy = NAN;
    tr_status status = fill(t, options);
    if (status == TR_OK) status = lay_out(t);
    status = tr__agree(t->plan.group, "trainer", status, NULL); /* .optimizer may make calls that all ranks make */
    if (status == TR_OK) status = tr__trainer_compare(t, make_optimizer(t)); /* before anything is read, exchanged or written */
    if (status == TR_OK) status = set_up(t);
    if (status != TR_OK) tr__object_break(t);
    return t;
}

int64_t tr_trainer_steps(const tr_trainer *t)
{
    return t ? t->step : 0;
}

int64_t tr_trainer_skipped(const tr_trainer *t)
{
    return !t || tr__error_of(t) || !t->task->skipped ? 0 : t->task->skipped((tr_trainer *)t);
}

/* The file of the place of a step that the program makes by itself: where it made the trainer. */
static const char *file_of(const tr_trainer *t)
{
    return tr__call_file(NULL) ? NULL : t->plan.place.file;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

static tr_dtype autocast_of(const tr_trainer *t)
{
    return t->plan.autocast ? t->plan.autocast : tr_autocast();
}

tr_tensor *tr__trainer_loss(const tr_trainer *t, tr_module *net, tr_tensor *x, tr_tensor *y)
{
    TR_SCOPE; /* the graph alone then holds the activations, and backward releases them on its way */
    TR_AUTOCAST(autocast_of(t));
    x = tr_to(x, t->device);
    y = tr_to(y, t->device);
    if (t->plan.loss) return tr_escape(t->plan.loss(net, x, y, t->plan.user));
    tr_tensor *output = tr_forward(net, x);
    return tr_escape(tr_cross_entropy(output, tr_to(y, tr_device_of(output)))); /* a split model ends elsewhere */
}

tr_status tr__trainer_learn(tr_trainer *t, int64_t at, int64_t n, bool exchange, double *loss)
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
    bool early = exchange && t->may_step_in_backward;
    if (early) *loss += part * tr_item(mean);
    if (t->world_size > 1) TR__TRY(tr_ddp_sync(t->net, exchange));
    bool finite = true;
    if (exchange) TR__TRY(choose_when_to_step(t, *loss, &finite));
    bool steps = t->in_backward && exchange;
    if (steps && !finite) return TR_OK; /* update() says so; the parameters stay as they are */
    tr__in_backward_pause(t->optimizer, !steps);
    tr_status status = tr_backward(root);
    tr__in_backward_pause(t->optimizer, !p->step_in_backward);
    /* Not read earlier: while the host waited for it, backward would not be enqueued, and the device would idle. */
    if (!early && status == TR_OK) *loss += part * tr_item(mean);
    return status;
}

/* Every rank hears what all say: the sums are then the same on all, and a norm that is not tells of a replica that is
 * none. */
static tr_status share(tr_trainer *t, const tr__said *own, tr_metrics_row *row, bool *stop)
{
    enum { NUMBERS = sizeof *own / sizeof(double) };
    if (t->world_size > 1)
        TR__TRY(tr_all_gather(t->plan.group, own, t->said, NUMBERS, .dtype = TR_F64));
    else
        *t->said = *own;
    *stop = false;
    for (int rank = 0; rank < t->world_size; rank++) {
        row->loss += t->said[rank].loss;
        *stop |= t->said[rank].stop > 0;
    }
    return TR_OK;
}

static tr_status update(tr_trainer *t, tr_metrics_row *row)
{
    t->common_failure = true; /* every rank judges the same numbers */
    TR__TRY(tr__gradients_judge(t, row));
    t->common_failure = false;
    if (t->plan.clip > 0) TR__TRY(tr__grad_limit(t->optimizer, row->grad_norm, t->plan.clip));
    return tr_step(t->optimizer);
}

int64_t tr_trainer_passed_over(const tr_trainer *t)
{
    return t && !t->object.error ? t->passed_over : 0;
}

static tr_status step(tr_trainer *t, tr_metrics_row *row, bool *stop)
{
    const tr__plan *p = &t->plan;
    int64_t start = tr__now_ns();
    *row = (tr_metrics_row){.validation_loss = NAN, .grad_norm = NAN, .seconds = NAN, .validation_accuracy = NAN};
    row->lr = tr_cosine_lr(t->step, p->lr, p->steps, .warmup_steps = p->warmup_steps, .min_lr = p->min_lr);
    TR__TRY(tr_set_lr(t->optimizer, row->lr));
    tr_zero_grad(t->optimizer);
    tr__said own = {.stop = *stop};
    for (int64_t at = 0; at < t->share; at += p->micro_batch) {
        int64_t n = t->share - at < p->micro_batch ? t->share - at : p->micro_batch;
        TR__TRY(tr__trainer_learn(t, at, n, at + n == t->share, &own.loss));
    }
    TR__TRY(tr__gradient_norms(t, &own));
    TR__TRY(share(t, &own, row, stop));
    TR__TRY(update(t, row));
    row->step = ++t->step;
    row->items = t->step * p->batch * t->items;
    row->items_per_s = (double)(p->batch * t->items) / (1e-9 * (double)(tr__now_ns() - start));
    return tr__replica_check_is_due(t) ? tr__replica_check(t) : TR_OK;
}

tr_status tr_trainer_step(tr_trainer *t, tr_metrics_row *row, bool *stop)
{
    TR__TRY(tr_status_of(t));
    if (!t) return tr__fail(TR_INVALID, "trainer_step: no trainer");
    t->common_failure = false; /* that of an earlier step */
    if (!row || !stop) return tr__trainer_tell(t, tr__fail(TR_INVALID, "trainer_step: %s is NULL", row ? "stop" : "row"));
    TR__CALLED_AT(file_of(t), t->plan.place.line);
    return tr__trainer_tell(t, step(t, row, stop));
}

tr_status tr_trainer_validate(tr_trainer *t, tr_score *score)
{
    TR__TRY(tr_status_of(t));
    if (!t || !score) return tr__fail(TR_INVALID, "trainer_validate: %s", t ? "score is NULL" : "no trainer");
    TR__CALLED_AT(file_of(t), t->plan.place.line);
    TR_AUTOCAST(autocast_of(t));
    TR__TRY(t->task->validate(t, score));
    t->validated_step = t->step;
    t->validation_loss = score->loss;
    t->validation_accuracy = score->accuracy;
    t->best_validation_loss = fmin(t->best_validation_loss, score->loss); /* of a NaN and a number the number */
    t->best_validation_accuracy = fmax(t->best_validation_accuracy, score->accuracy);
    return TR_OK;
}
