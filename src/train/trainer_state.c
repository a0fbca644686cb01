/* A trainer's checkpoints. Only rank 0 touches files, and broadcasts what it has read. */
#include "train/trainer.h"

#include "base/c_locale.h"
#include "train/checkpoint.h"
#include "train/history.h"
#include "train/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { path_bytes = 4096 };

/* Numbers of a trainer that its checkpoints hold besides the step, and their valid ranges. */
static const struct number {
    const char *key;
    size_t offset; /* of a double in a tr_trainer */
    double least, most;
    bool measured; /* NaN: not yet */
} numbers[] = {
    {"seconds", offsetof(tr_trainer, seconds), 0, TR__MOST_SECONDS, false},
    {"validation_loss", offsetof(tr_trainer, validation_loss), -INFINITY, INFINITY, true},
    {"best_validation_loss", offsetof(tr_trainer, best_validation_loss), -INFINITY, INFINITY, true},
    {"validation_accuracy", offsetof(tr_trainer, validation_accuracy), 0, 1, true},
    {"best_validation_accuracy", offsetof(tr_trainer, best_validation_accuracy), 0, 1, true},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static double *number_of(tr_trainer *t, const struct number *n)
{
    return (double *)((char *)t + n->offset);
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

static tr_status set_number(tr_tensor_list *list, const char *key, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    return tr_list_set_metadata(list, key, text);
}

static tr_status describe_model(const tr_trainer *t, tr_tensor_list *model, const tr_tensor_list *about)
{
    TR__TRY(tr_list_set_metadata(model, "format", "pt")); /* what Hugging Face's loaders ask for: plain tensors */
    TR__TRY(tr_list_set_metadata(model, "trireme.version", tr_version()));
    TR__TRY(tr_list_set_metadata(model, tr__settings_key, t->settings));
    for (int i = 0; about && i < tr_list_metadata_count(about); i++) {
        const char *key = tr_list_metadata_key(about, i);
        TR__TRY(tr_list_set_metadata(model, key, tr_list_metadata(about, key)));
    }
    return TR_OK;
}

tr_status tr__trainer_save(tr_trainer *t, int folder_fd, const tr_trainer_save_options *options)
{
    const tr_tensor_list *about = options->about;
    TR__TRY(tr_status_of(t));
    if (!t) return tr__fail(TR_INVALID, "trainer_save: no trainer");
    TR__TRY(tr_status_of(about));
    if (t->rank != 0) return TR_OK;
    TR_SCOPE;
    TR__C_NUMBERS;
    tr_tensor_list *model = tr_state_dict(t->plan.model), *state = tr_optimizer_state(t->optimizer);
    TR__TRY(describe_model(t, model, about));
    TR__TRY(set_number(state, "step", (double)t->step));
    TR__TRY(set_number(state, "validated_step", (double)t->validated_step));
    for (int i = 0; i < NUMBERS; i++) TR__TRY(set_number(state, numbers[i].key, *number_of(t, &numbers[i])));
    const tr_checkpoint_save_options o = {.size = sizeof o, .folder = options->folder, .step = t->step, .model = model,
        .state = state, .metrics = t->metrics, .keep = options->keep, .keep_best = options->keep_best,
        .loss = t->validated_step == t->step ? &t->validation_loss : NULL};
    return folder_fd < 0 ? tr_checkpoint_save_with(&o) : tr__checkpoint_save(folder_fd, &o);
}

tr_status tr_trainer_save_with(const tr_trainer_save_options *options)
{
    return tr__trainer_save(options->trainer, -1, options);
}

/* ---- Resuming ---------------------------------------------------------------------------------------------------- */

static tr_status read_checkpoint(tr_trainer *t, const char *folder, tr_tensor_list **state)
{
    char path[path_bytes];
    int64_t step, damaged;
    tr_tensor_list *model, *history;
    TR__TRY(tr__checkpoint_load_newest(folder, path, &step, &damaged, &model, state, &history));
    t->passed_over += damaged;
    tr_status status = tr_load_state_dict(t->plan.model, model);
    if (status != TR_OK) return tr__fail_context(status, "%s", path);
    return tr__metrics_restore(t->metrics, history, path);
}

tr_status tr__trainer_resume_model(tr_trainer *t, const char *folder, tr_tensor_list **state)
{
    tr_status status = t->rank == 0 ? read_checkpoint(t, folder, state) : TR_OK;
    return tr__agree(t->plan.group, "trainer", status, NULL);
}

static tr_status get_number(const tr_tensor_list *state, const struct number *n, double *out)
{
    const char *text = tr_list_metadata(state, n->key);
    char *end = NULL;
    double value = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end) return tr__fail(TR_FORMAT, "the checkpoint's state has no number \"%s\"", n->key);
    if (!(value >= n->least && value <= n->most) && !(isnan(value) && n->measured))
        return tr__fail(TR_FORMAT, "the checkpoint's state has %s = %.20s, which is not from %g to %g", n->key, text,
                        n->least, n->most);
    *out = value;
    return TR_OK;
}

static tr_status get_step(const tr_tensor_list *state, const char *key, int64_t most, int64_t *out)
{
    double value = 0;
    TR__TRY(get_number(state, &(struct number){.key = key, .most = (double)most}, &value));
    if (value != floor(value))
        return tr__fail(TR_FORMAT, "the checkpoint's state has %s = %g, which is no whole number", key, value);
    *out = (int64_t)value;
    return TR_OK;
}

static tr_status read_state(tr_trainer *t, const tr_tensor_list *state)
{
    TR__C_NUMBERS;
    /* The items of all steps must fit an int64_t. */
    double most = fmin(0x1p53, 0x1p62 / ((double)t->plan.batch * (double)t->items));
    TR__TRY(get_step(state, "step", (int64_t)most, &t->step));
    /* Absent in checkpoints from before there was a history. */
    if (tr_list_metadata(state, "validated_step"))
        TR__TRY(get_step(state, "validated_step", t->step, &t->validated_step));
    for (int i = 0; i < NUMBERS; i++) TR__TRY(get_number(state, &numbers[i], number_of(t, &numbers[i])));
    int64_t count;
    const tr_metrics_row *rows = tr_metrics_rows(t->metrics, &count);
    if (count && rows[count - 1].step > t->step)
        return tr__fail(TR_FORMAT,
                        "the checkpoint's history goes to step %" PRId64 ", but its state is of step %" PRId64,
                        rows[count - 1].step, t->step);
    return tr_optimizer_load(t->optimizer, state);
}

/* Broadcasts rank 0's moments and step counts. DDP has done so for the parameters. */
static tr_status spread_state(tr_trainer *t)
{
    tr_group *group = t->plan.group;
    double values[NUMBERS];
    int64_t steps[] = {t->step, t->validated_step};
    for (int i = 0; i < NUMBERS; i++) values[i] = *number_of(t, &numbers[i]);
    TR__TRY(tr_broadcast(group, steps, 2, .dtype = TR_I64));
    TR__TRY(tr_broadcast(group, values, NUMBERS, .dtype = TR_F64));
    for (int i = 0; i < NUMBERS; i++) *number_of(t, &numbers[i]) = values[i];
    t->step = steps[0];
    t->validated_step = steps[1];

    tr_tensor_list *state = tr_optimizer_state(t->optimizer);
    TR__TRY(tr_status_of(state));
    for (int i = 0; i < tr_list_count(state); i++) TR__TRY(tr_broadcast_tensor(group, tr_list_at(state, i), 0));
    return tr_optimizer_load(t->optimizer, state);
}

tr_status tr__trainer_resume_state(tr_trainer *t, const tr_tensor_list *state)
{
    tr_status status = t->rank == 0 ? read_state(t, state) : TR_OK;
    TR__TRY(tr__agree(t->plan.group, "trainer", status, NULL));
    return t->world_size > 1 ? tr__trainer_tell(t, spread_state(t)) : TR_OK;
}

tr_status tr__trainer_go_back(tr_trainer *t, const char *folder)
{
    TR_SCOPE;
    tr_tensor_list *state = NULL;
    TR__TRY(tr__trainer_resume_model(t, folder, &state));
    tr_tensor_list *model = tr_state_dict(t->plan.model);
    TR__TRY(tr_status_of(model));
    for (int i = 0; i < tr_list_count(model); i++) TR__TRY(tr_broadcast_tensor(t->plan.group, tr_list_at(model, i), 0));
    TR__TRY(tr__trainer_resume_state(t, state));
    t->agreed_step = t->step;
    t->replicas_differ = t->common_failure = false;
    t->norms = (tr__norms){0};
    return TR_OK;
}
