/* A trainer's task: a language model learns the tokens of a text, window by window. */
#include "base/given.h"
#include "base/share.h"
#include "data/text/text.h"
#include "parallel/replicas.h"
#include "train/eval_mode.h"
#include "train/trainer.h"

#include <inttypes.h>

typedef struct text_work {
    tr_text *text; /* kept */
    int64_t context, validation_windows;
    double beta1, beta2, weight_decay;
    tr_masking masking;
    bool masked; /* masked language modelling; otherwise the model predicts the next token */
} text_work;

static const tr_masking *masking_of(const text_work *w)
{
    return w->masked ? &w->masking : NULL;
}

static void destroy(tr_trainer *t)
{
    tr_release(((text_work *)tr__trainer_work(t))->text);
}

static tr_optimizer *optimizer(tr_trainer *t)
{
    const text_work *w = tr__trainer_work(t);
    return tr_adamw(tr_parameters(t->plan.model), .lr = t->plan.lr, .beta1 = w->beta1, .beta2 = w->beta2,
                    .weight_decay = w->weight_decay, .decay_matrices_only = true);
}

/* x, y: [n, context] */
static tr_status batch(tr_trainer *t, int64_t at, int64_t n, tr_tensor **x, tr_tensor **y)
{
    const text_work *w = tr__trainer_work(t);
    return tr_text_batch(w->text, n, w->context, x, y, .seed = t->plan.seed, .step = (uint64_t)t->step,
                         .first_sample = (uint64_t)(t->first + at), .masking = masking_of(w));
}

/* ---- Validation -------------------------------------------------------------------------------------------------- */

/* Adds the sum of the losses of windows [at, at + n) to *sum. */
static tr_status judge(tr_trainer *t, int64_t at, int64_t n, double *sum)
{
    TR_SCOPE;
    const text_work *w = tr__trainer_work(t);
    tr_tensor *x, *y; /* [n, context] */
    TR__TRY(tr_text_batch(w->text, n, w->context, &x, &y, .validation = true, .first_sample = (uint64_t)at,
                          .masking = masking_of(w)));
    tr_tensor *mean = tr__trainer_loss(t, t->plan.model, x, y);
    TR__TRY(tr_status_of(mean));
    *sum += (double)n * tr_item(mean);
    return TR_OK;
}

static tr_status judge_all(tr_trainer *t, int64_t from, int64_t to, double *sum)
{
    TR_NO_GRAD;
    int64_t most = t->plan.micro_batch;
    tr__modes modes;
    TR__TRY(tr__eval_begin(&modes, t->plan.model));
    tr_status status = TR_OK;
    for (int64_t at = from; at < to && status == TR_OK; at += most)
        status = judge(t, at, to - at < most ? to - at : most, sum);
    tr__eval_end(&modes, t->plan.model);
    return status;
}

static tr_status validate(tr_trainer *t, tr_score *score)
{
    const text_work *w = tr__trainer_work(t);
    int64_t windows = tr__text_windows(w->text, w->context, masking_of(w));
    if (windows > w->validation_windows) windows = w->validation_windows;
    *score = (tr_score){.loss = NAN, .accuracy = NAN, .count = windows * w->context};
    if (!windows) return TR_OK;
    double sum = 0;
    int64_t from = tr__share_begin(windows, t->rank, t->world_size), to = tr__share_begin(windows, t->rank + 1, t->world_size);
    TR__TRY(tr__agree_sums(t->plan.group, "validation", judge_all(t, from, to, &sum), &sum, 1));
    score->loss = sum / (double)windows;
    return TR_OK;
}

static void say(tr_trainer *t, tr__facts *facts)
{
    const text_work *w = tr__trainer_work(t);
    const tr_masking *m = masking_of(w);
    tr__text_say(w->text, facts);
    tr__facts_say(facts, "context", "%" PRId64, w->context);
    tr__facts_say(facts, "validation_windows", "%" PRId64, w->validation_windows);
    char share[TR__NUMBER_TEXT];
    if (m)
        tr__facts_say(facts, "masking", "begin %" PRId32 ", end %" PRId32 ", mask %" PRId32 ", vocab %" PRId32 ", share %s",
                      m->begin, m->end, m->mask, m->vocab, tr__number_text(m->share, share));
    else
        tr__facts_say(facts, "masking", "none");
}

static const tr__task text_task = {"token", false, optimizer, batch, validate, NULL, NULL, destroy, say};

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static tr_status fill_in(tr_trainer *t, const void *options)
{
    const tr_trainer_options *o = options;
    text_work *w = tr__trainer_work(t);
    w->text = tr_keep(o->text);
    w->context = t->items = TR__OR(o, context, 256);
    w->validation_windows = TR__OR(o, validation_windows, 2048);
    w->beta1 = TR__OR(o, beta1, 0.9);
    w->beta2 = TR__OR(o, beta2, 0.99);
    w->weight_decay = TR__OR(o, weight_decay, 0.1);
    w->masked = o->masking != NULL;
    if (w->masked) w->masking = *o->masking;
    TR__TRY(tr_status_of(o->text));
    if (!o->model || !o->text) return tr__fail(TR_INVALID, "trainer: it takes a model and a text, not NULL");
    TR__TRY(tr__trainer_check(t));
    if (w->context < 1 || w->validation_windows < 0)
        return tr__fail(TR_INVALID, "trainer: context must be positive and validation_windows not negative: %" PRId64 ", %" PRId64,
                        w->context, w->validation_windows);
    int64_t tokens = tr_text_tokens(w->text, false), least = tr__tokens_of_window(w->context, masking_of(w));
    if (least < 1)
        return tr__fail(TR_INVALID, "trainer: a context of %" PRId64 " leaves no token of the text between first and last",
                        w->context);
    if (tokens < least)
        return tr__fail(TR_INVALID, "the text has %" PRId64 " %s for training: too short for a context of %" PRId64
                        ", which takes at least %" PRId64, tokens, w->text->tokens ? "tokens" : "bytes", w->context, least);
    return TR_OK;
}

tr_trainer *tr_trainer_new_with(const tr_trainer_options *o)
{
    double lr = TR__OR(o, lr, 1e-3);
    const tr__plan *plan = TR__PLAN(o, .batch = TR__OR(o, global_batch, 12), .steps = TR__OR(o, steps, 2000), .lr = lr,
        .min_lr = TR__OR(o, min_lr, lr / 10), .clip = TR__OR(o, clip, 1), .loss = o->loss);
    return tr__trainer_new(&text_task, plan, sizeof(text_work), fill_in, o);
}
