/* A trainer's checkpoints. Only rank 0 touches files: the others get what it has read. */
#include "train/trainer.h"

#include "train/c_locale.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

enum { path_bytes = 4096 };

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

static tr_status set_number(tr_tensor_list *list, const char *key, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    return tr_list_set_metadata(list, key, text);
}

static tr_status describe_model(tr_tensor_list *model, const tr_tensor_list *about)
{
    TR__TRY(tr_list_set_metadata(model, "format", "pt")); /* what Hugging Face's loaders ask for: plain tensors */
    TR__TRY(tr_list_set_metadata(model, "trireme.version", tr_version()));
    for (int i = 0; about && i < tr_list_metadata_count(about); i++) {
        const char *key = tr_list_metadata_key(about, i);
        TR__TRY(tr_list_set_metadata(model, key, tr_list_metadata(about, key)));
    }
    return TR_OK;
}

tr_status tr_trainer_save(tr_trainer *t, const char *folder, const tr_tensor_list *about)
{
    TR__TRY(tr_status_of(t));
    TR__TRY(tr_status_of(about));
    if (t->rank != 0) return TR_OK;
    TR_SCOPE;
    TR__C_NUMBERS;
    tr_tensor_list *model = tr_state_dict(t->plan.model), *state = tr_optimizer_state(t->optimizer);
    TR__TRY(describe_model(model, about));
    TR__TRY(set_number(state, "step", (double)t->step));
    TR__TRY(set_number(state, "seconds", t->seconds));
    TR__TRY(set_number(state, "validation_loss", t->validation_loss));
    TR__TRY(set_number(state, "best_validation_loss", t->best_validation_loss));
    TR__TRY(set_number(state, "validation_accuracy", t->validation_accuracy));
    TR__TRY(set_number(state, "best_validation_accuracy", t->best_validation_accuracy));
    return tr_checkpoint_save(folder, t->step, model, state);
}

/* ---- Resuming ---------------------------------------------------------------------------------------------------- */

static tr_status read_checkpoint(tr_trainer *t, tr_tensor_list **state)
{
    char path[path_bytes];
    int64_t step;
    tr_tensor_list *model;
    TR__TRY(tr_checkpoint_find(t->plan.resume, path, &step));
    TR__TRY(tr_checkpoint_load(path, &model, state));
    tr_status status = tr_load_state_dict(t->plan.model, model);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "%s", path);
}

tr_status tr__trainer_resume_model(tr_trainer *t, tr_tensor_list **state)
{
    tr_status status = t->rank == 0 ? read_checkpoint(t, state) : TR_OK;
    return tr__trainer_agree(t, status, "read the checkpoint");
}

static tr_status get_number(const tr_tensor_list *state, const char *key, double *out)
{
    const char *text = tr_list_metadata(state, key);
    char *end;
    if (text) {
        *out = strtod(text, &end);
        if (end != text && !*end) return TR_OK;
    }
    return tr__fail(TR_FORMAT, "the checkpoint's state has no number \"%s\"", key);
}

static tr_status read_state(tr_trainer *t, const tr_tensor_list *state)
{
    TR__C_NUMBERS;
    double step = -1;
    TR__TRY(get_number(state, "step", &step));
    if (!(step >= 0 && step < 0x1p53 && step == floor(step)))
        return tr__fail(TR_FORMAT, "the checkpoint's state is of step %g", step);
    t->step = (int64_t)step;
    TR__TRY(get_number(state, "seconds", &t->seconds));
    TR__TRY(get_number(state, "validation_loss", &t->validation_loss));
    TR__TRY(get_number(state, "best_validation_loss", &t->best_validation_loss));
    TR__TRY(get_number(state, "validation_accuracy", &t->validation_accuracy));
    TR__TRY(get_number(state, "best_validation_accuracy", &t->best_validation_accuracy));
    return tr_optimizer_load(t->optimizer, state);
}

/* Rank 0's moments and step counts become everybody's. DDP has done so for the parameters. */
static tr_status spread_state(tr_trainer *t)
{
    tr_group *group = t->plan.group;
    double numbers[] = {(double)t->step, t->seconds, t->validation_loss, t->best_validation_loss, t->validation_accuracy,
        t->best_validation_accuracy};
    TR__TRY(tr_broadcast(group, numbers, 6, .dtype = TR_F64));
    t->step = (int64_t)numbers[0];
    t->seconds = numbers[1];
    t->validation_loss = numbers[2];
    t->best_validation_loss = numbers[3];
    t->validation_accuracy = numbers[4];
    t->best_validation_accuracy = numbers[5];

    tr_tensor_list *state = tr_optimizer_state(t->optimizer);
    TR__TRY(tr_status_of(state));
    for (int i = 0; i < tr_list_count(state); i++) TR__TRY(tr_broadcast_tensor(group, tr_list_at(state, i), 0));
    return tr_optimizer_load(t->optimizer, state);
}

tr_status tr__trainer_resume_state(tr_trainer *t, const tr_tensor_list *state)
{
    tr_status status = t->rank == 0 ? read_state(t, state) : TR_OK;
    TR__TRY(tr__trainer_agree(t, status, "restore the optimizer"));
    return t->world_size > 1 ? spread_state(t) : TR_OK;
}
