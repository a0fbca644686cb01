/*
 * Training steps of a language model, shared out over the ranks:
 *
 *   batch      windows 0 … batch-1, the same ones for any number of ranks
 *   rank r     windows [batch*r/n, batch*(r+1)/n), in micro-batches of m
 *   loss       sum over micro-batches of mean(loss) * m / batch, summed over the ranks
 *   gradient   DDP averages over n ranks, so each micro-batch's loss is scaled by n * m / batch
 */
#include "train/trainer.h"

#include "base/clock.h"

#include <inttypes.h>
#include <math.h>

static void destroy(void *self)
{
    tr_trainer *t = self;
    tr_release(t->net);
    tr_release(t->optimizer);
    tr_release(t->options.model);
    tr_release(t->options.text);
    tr_release(t->options.group);
}

static const tr__type trainer_type = {"trainer", sizeof(tr_trainer), destroy};

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static int64_t or_default(int64_t given, int64_t otherwise)
{
    return given ? given : otherwise;
}

/* 0: otherwise; TR_ZERO: 0. */
static double number_or_default(double given, double otherwise)
{
    return given != 0 ? given : signbit(given) ? 0 : otherwise;
}

static void fill_in(tr_trainer *t, const tr_trainer_options *given)
{
    t->options = *given;
    tr_trainer_options *o = &t->options;
    o->model = tr_keep(given->model);
    o->text = tr_keep(given->text);
    o->group = tr_keep(given->group);
    o->context = or_default(o->context, 256);
    o->batch = or_default(o->batch, 12);
    o->steps = or_default(o->steps, 2000);
    o->validation_windows = or_default(o->validation_windows, 2048);
    o->lr = number_or_default(o->lr, 1e-3);
    o->min_lr = number_or_default(o->min_lr, o->lr / 10);
    o->beta1 = number_or_default(o->beta1, 0.9);
    o->beta2 = number_or_default(o->beta2, 0.99);
    o->weight_decay = number_or_default(o->weight_decay, 0.1);
    o->clip = number_or_default(o->clip, 1);
    t->world_size = o->group ? tr_world_size(o->group) : 1;
    t->rank = o->group ? tr_rank(o->group) : 0;
    t->first = o->batch * t->rank / t->world_size;
    t->share = o->batch * (t->rank + 1) / t->world_size - t->first;
    o->micro_batch = or_default(o->micro_batch, t->share);
    t->validation_loss = t->best_validation_loss = NAN;
}

static tr_status check(const tr_trainer *t)
{
    const tr_trainer_options *o = &t->options;
    TR__TRY(tr_status_of(o->model));
    TR__TRY(tr_status_of(o->text));
    TR__TRY(tr_status_of(o->group));
    if (!o->model || !o->text) return tr__fail(TR_INVALID, "trainer: it takes a model and a text, not NULL");
    if (o->context < 1 || o->steps < 1 || o->warmup_steps < 0 || o->micro_batch < 0 || o->validation_windows < 1)
        return tr__fail(TR_INVALID,
            "trainer: context, steps and windows must be positive, not %" PRId64 ", %" PRId64 ", %" PRId64, o->context,
            o->steps, o->validation_windows);
    if (o->batch < t->world_size)
        return tr__fail(
            TR_INVALID, "trainer: a batch of %" PRId64 " cannot be shared out over %d ranks", o->batch, t->world_size);
    if (!(o->lr > 0 && o->min_lr >= 0 && o->clip >= 0))
        return tr__fail(TR_INVALID, "trainer: lr must be more than 0, min_lr and clip not less: %g, %g, %g", o->lr,
            o->min_lr, o->clip);
    if (tr_text_bytes(o->text, false) <= o->context)
        return tr__fail(TR_INVALID, "the text has %" PRId64 " bytes for training: too short for a context of %" PRId64,
            tr_text_bytes(o->text, false), o->context);
    return TR_OK;
}

tr_status tr__trainer_agree(tr_trainer *t, tr_status status, const char *what)
{
    if (t->world_size == 1) return status;
    int32_t well = t->rank != 0 || status == TR_OK;
    tr__error *own = status == TR_OK ? NULL : tr__error_take();
    tr_status shared = tr_all_reduce(t->options.group, &well, 1, .dtype = TR_I32, .op = TR_MIN);
    if (own) {
        tr__fail_stored(own);
        tr__error_unref(own);
        return status;
    }
    if (shared != TR_OK || well) return shared;
    return tr__fail(TR_PEER, "rank 0 failed to %s", what);
}

static tr_status set_up(tr_trainer *t)
{
    TR__TRY(check(t));
    const tr_trainer_options *o = &t->options;
    TR_SCOPE;
    tr_tensor_list *state = NULL;
    if (o->resume) TR__TRY(tr__trainer_resume_model(t, &state));
    t->net = tr_keep(t->world_size > 1 ? tr_ddp(o->model, o->group) : o->model);
    t->optimizer = tr_keep(tr_adamw(tr_parameters(o->model), .lr = o->lr, .beta1 = o->beta1, .beta2 = o->beta2,
        .weight_decay = o->weight_decay > 0 ? o->weight_decay : TR_ZERO, .decay_matrices_only = true));
    TR__TRY(tr_status_of(t->net));
    TR__TRY(tr_status_of(t->optimizer));
    return o->resume ? tr__trainer_resume_state(t, state) : TR_OK;
}

tr_trainer *tr_trainer_with(const tr_trainer_options *options)
{
    tr_trainer *t = tr__object_new(&trainer_type);
    if (tr_status_of(t) != TR_OK) return t;
    fill_in(t, options);
    if (set_up(t) != TR_OK) tr__object_break(t);
    return t;
}

int64_t tr_trainer_steps(const tr_trainer *t)
{
    return t->step;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* Forward and backward of n windows from this rank's window `at` on. Adds their part of the batch's loss to *loss. */
static tr_status learn(tr_trainer *t, int64_t at, int64_t n, double *loss)
{
    TR_SCOPE;
    const tr_trainer_options *o = &t->options;
    uint64_t step = (uint64_t)t->step, sample = (uint64_t)(t->first + at);
    tr_tensor *x, *y; /* [n, context] */
    TR__TRY(tr_text_batch(&x, &y, o->text, n, o->context, .seed = o->seed, .step = step, .first_sample = sample));
    TR__TRY(tr_seed(t->net, o->seed, .step = step, .first_sample = sample));
    tr_tensor *mean = tr_cross_entropy(tr_forward(t->net, x), y);
    double part = (double)n / (double)o->batch, scale = part * t->world_size;
    tr_tensor *root = scale == 1 ? mean : tr_affine(mean, scale, 0);
    TR__TRY(tr_status_of(root));
    *loss += part * tr_item(mean);
    if (t->world_size > 1) TR__TRY(tr_ddp_sync(t->net, at + n == t->share));
    return tr_backward(root);
}

/* loss and stop, over all ranks. */
static tr_status share(tr_trainer *t, double *loss, bool *stop)
{
    double values[] = {*loss, *stop};
    if (t->world_size > 1) TR__TRY(tr_all_reduce(t->options.group, values, 2, .dtype = TR_F64));
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
    if (t->options.clip > 0) {
        tr_status status = tr_clip_grad_norm(t->optimizer, t->options.clip, &row->grad_norm);
        if (status != TR_OK) return tr__fail_context(status, "step %" PRId64, t->step + 1);
    }
    TR__TRY(tr_set_lr(t->optimizer, row->lr));
    TR__TRY(tr_step(t->optimizer));
    t->common_failure = false;
    return TR_OK;
}

tr_status tr_trainer_step(tr_trainer *t, tr_metrics_row *row, bool *stop)
{
    TR__TRY(tr_status_of(t));
    const tr_trainer_options *o = &t->options;
    int64_t start = tr__now_ns();
    *row = (tr_metrics_row){.validation_loss = NAN, .grad_norm = NAN, .seconds = NAN};
    row->lr = tr_cosine_lr(t->step, o->lr, o->steps, .warmup_steps = o->warmup_steps, .min_lr = o->min_lr);
    tr_zero_grad(t->optimizer);
    for (int64_t at = 0; at < t->share; at += o->micro_batch) {
        int64_t n = t->share - at < o->micro_batch ? t->share - at : o->micro_batch;
        TR__TRY(learn(t, at, n, &row->loss));
    }
    TR__TRY(share(t, &row->loss, stop));
    TR__TRY(update(t, row));
    row->step = ++t->step;
    row->tokens = t->step * o->batch * o->context;
    row->tokens_per_s = (double)(o->batch * o->context) / (1e-9 * (double)(tr__now_ns() - start));
    return TR_OK;
}

/* ---- Validation -------------------------------------------------------------------------------------------------- */

/* Adds the sum of the losses of windows [at, at + n) to *sum. */
static tr_status judge(tr_trainer *t, int64_t at, int64_t n, double *sum)
{
    TR_SCOPE;
    tr_tensor *x, *y; /* [n, context] */
    TR__TRY(tr_text_batch(
        &x, &y, t->options.text, n, t->options.context, .validation = true, .first_sample = (uint64_t)at));
    tr_tensor *mean = tr_cross_entropy(tr_forward(t->options.model, x), y);
    TR__TRY(tr_status_of(mean));
    *sum += (double)n * tr_item(mean);
    return TR_OK;
}

static tr_status judge_all(tr_trainer *t, int64_t from, int64_t to, double *sum)
{
    TR_NO_GRAD;
    TR__TRY(tr_eval(t->options.model));
    tr_status status = TR_OK;
    for (int64_t at = from; at < to && status == TR_OK; at += t->options.micro_batch)
        status = judge(t, at, to - at < t->options.micro_batch ? to - at : t->options.micro_batch, sum);
    if (status != TR_OK) return status;
    return tr_train(t->options.model);
}

tr_status tr_trainer_validate(tr_trainer *t, double *loss)
{
    TR__TRY(tr_status_of(t));
    int64_t bytes = tr_text_bytes(t->options.text, true);
    int64_t windows = bytes > t->options.context ? (bytes - 1) / t->options.context : 0;
    if (windows > t->options.validation_windows) windows = t->options.validation_windows;
    *loss = NAN;
    if (!windows) return TR_OK;
    double sum = 0;
    TR__TRY(judge_all(t, windows * t->rank / t->world_size, windows * (t->rank + 1) / t->world_size, &sum));
    if (t->world_size > 1) TR__TRY(tr_all_reduce(t->options.group, &sum, 1, .dtype = TR_F64));
    *loss = t->validation_loss = sum / (double)windows;
    if (!(t->best_validation_loss <= *loss)) t->best_validation_loss = *loss;
    return TR_OK;
}
