/*
 * Ranks of a training hold the same model and optimizer: they start alike, and each step does the same to all. What
 * breaks that (a flipped bit, a module with state of its own) spoils every rank's gradients from then on, without a
 * word. So they are compared every so many steps, and before each save.
 *
 * Running statistics are no exception: DDP has given everybody rank 0's by the end of the step's backward.
 */
#include "train/replica_check.h"

#include "optim/optimizer.h"
#include "parallel/replicas.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tr__replica_check_is_due(const tr_trainer *t)
{
    return t->plan.check_replicas && t->step % t->plan.check_replicas == 0;
}

/* "h.0.ln_1.weight.exp_avg" as "exp_avg of h.0.ln_1.weight". */
static tr_status add_state(tr_tensor_list *to, const tr_tensor_list *state)
{
    TR__TRY(tr_status_of(state));
    tr_status status = TR_OK;
    for (int i = 0; i < tr_list_count(state) && status == TR_OK; i++) {
        const char *name = tr_list_name(state, i), *dot = strrchr(name, '.');
        char *words = NULL;
        if (asprintf(&words, "%s of %.*s", dot + 1, (int)(dot - name), name) < 0)
            return tr__fail(TR_NO_MEMORY, "out of memory for names");
        status = tr_list_add(to, words, tr_list_at(state, i));
        free(words);
    }
    return status;
}

tr_status tr__replica_check(tr_trainer *t)
{
    if (t->world_size == 1 || !t->plan.check_replicas || t->agreed_step == t->step) return TR_OK;
    TR_SCOPE;
    tr_tensor_list *all = tr_list_new();
    const tr_tensor_list *model = tr_state_dict(t->plan.model);
    TR__TRY(tr_status_of(model));
    for (int i = 0; i < tr_list_count(model); i++)
        TR__TRY(tr_list_add(all, tr_list_name(model, i), tr_list_at(model, i)));
    if (!t->optimizer->gather) TR__TRY(add_state(all, tr_optimizer_state(t->optimizer)));
    char words[128];
    snprintf(words, sizeof words, "replicas were alike after step %" PRId64 " and differ after step %" PRId64,
             t->agreed_step, t->step);
    tr_status status = tr__replicas_compare(t->plan.group, all, words, &t->replicas_differ);
    if (t->replicas_differ) t->common_failure = true;
    if (status == TR_OK) t->agreed_step = t->step;
    return status;
}
