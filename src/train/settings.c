/*
 * What a trainer is told, as facts: ranks that were told otherwise would train a model that nobody asked for. Facts under
 * a dot are details: "optimizer.beta1" of "optimizer".
 *
 * Left out is what may differ: micro_batch, as hosts have more and less memory; workers; and values of parameters, for
 * rank 0's become everybody's.
 */
#include "train/trainer.h"

#include "base/isa.h"
#include "nn/module.h"
#include "ops/onednn/kernels.h"
#include "parallel/same_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The facts ----------------------------------------------------------------------------------------------------- */

static tr_status say_model(const tr_trainer *t, tr__facts *facts)
{
    TR_SCOPE;
    tr_module *model = t->plan.model;
    const tr_tensor_list *state = tr_state_dict(model);
    TR__TRY(tr_status_of(state));
    int64_t elements = 0;
    for (int i = 0; i < state->count; i++) elements += tr_numel(state->entries[i].tensor);
    const char *detail = model->detail ? model->detail : "";
    tr__facts_say(facts, "model", "%s of %" PRId64 " elements in %d tensors%s%s%s", tr_module_name(model), elements, state->count,
        *detail ? " (" : "", detail, *detail ? ")" : "");
    return tr__parts_say(model, true, facts);
}

/* The schedule, the loss and the rest of the plan. */
static void say_plan(const tr__plan *p, tr__facts *facts)
{
    tr_dtype autocast = p->autocast ? p->autocast : tr_autocast();
    tr__facts_say(facts, "loss", "%s", p->loss ? "the program's" : "cross-entropy");
    tr__facts_say(facts, "global_batch", "%" PRId64, p->batch);
    tr__facts_say(facts, "steps", "%" PRId64, p->steps);
    tr__facts_say(facts, "warmup_steps", "%" PRId64, p->warmup_steps);
    tr__facts_number(facts, "lr", p->lr);
    tr__facts_number(facts, "min_lr", p->min_lr);
    tr__facts_number(facts, "clip", p->clip);
    tr__facts_say(facts, "seed", "%" PRIu64, p->seed);
    tr__facts_say(facts, "autocast", "%s", tr_dtype_name(autocast));
    tr__facts_say(facts, "check_replicas", "%" PRId64, p->check_replicas);
    tr__facts_say(facts, "stop_on_spike", "%s", p->stop_on_spike ? "yes" : "no");
    tr__facts_say(facts, "step_in_backward", "%s", p->step_in_backward ? "yes" : "no");
}

/* Kernels for other instructions round otherwise. Ranks train one model all the same: all take the step of the same
 * gradients, which they exchange. */
static void say_kernels(tr__facts *facts)
{
    char text[TR__ONEDNN_TEXT + 32], onednn[TR__ONEDNN_TEXT];
    const char *own = tr__has_amx()         ? "avx512 with AMX"
                      : tr__uses_bf16_dot() ? "avx512 with bf16"
                      : tr__has_avx512()    ? "avx512"
                      : tr__has_avx2()      ? "avx2"
                                            : "plain C";
    snprintf(text, sizeof text, "%s and %s", own, tr__onednn_text(onednn));
    tr__facts_add(facts, &(tr__fact){.name = "kernels", .value = text, .bytes = strlen(text), .told = true});
}

/* What tells most comes first, as a message shows three. */
static tr_status say_all(tr_trainer *t, tr__facts *facts)
{
    const tr__plan *p = &t->plan;
    tr__facts_say(facts, "allow_different", "%s", p->allow_different ? p->allow_different : "nothing");
    tr__facts_say(facts, "resume", "%s", p->resume ? "from a checkpoint" : "not from a checkpoint");
    TR__TRY(say_model(t, facts));
    t->task->say(t, facts);
    TR__TRY(tr_status_of(t->optimizer));
    tr__optimizer_say(t->optimizer, facts);
    say_plan(p, facts);
    say_kernels(facts);
    return facts->lost ? tr__fail(TR_NO_MEMORY, "trainer: out of memory for its settings") : TR_OK;
}

/* ---- Which may differ ---------------------------------------------------------------------------------------------- */

/* The next of the names between commas and spaces, its length in *length; NULL: there are no more. */
static const char *next_name(const char **names, size_t *length)
{
    static const char between[] = ", ";
    const char *name = *names + strspn(*names, between);
    *length = strcspn(name, between);
    *names = name + *length;
    return *length ? name : NULL;
}

/* Is it the setting's name, perhaps as an option of the command is written, or that of what it is a detail of? */
static bool covers(const char *name, size_t length, const char *setting)
{
    for (size_t i = 0; i < length; i++)
        if ((name[i] == '-' ? '_' : name[i]) != setting[i]) return false;
    return setting[length] == 0 || setting[length] == '.';
}

bool tr__trainer_may_differ(const tr_trainer *t, const char *setting)
{
    const char *names = t->plan.allow_different ? t->plan.allow_different : "", *name;
    size_t length;
    if (strcmp(setting, "step_in_backward") == 0) return false; /* those that do exchange more */
    while ((name = next_name(&names, &length)))
        if (covers(name, length, setting)) return true;
    return false;
}

/* The settings of all kinds of trainers, without their details. */
static const char *const all_settings[] = {"allow_different", "resume", "model", "tokenizer", "data", "validation", "context",
    "validation_windows", "masking", "on_bad", "optimizer", "loss", "global_batch", "steps", "warmup_steps", "lr", "min_lr", "clip",
    "seed", "autocast", "check_replicas", "stop_on_spike", "step_in_backward", "kernels"};
enum { ALL_SETTINGS = sizeof all_settings / sizeof *all_settings };

/* "optimizer.beta1", too */
static bool is_of_any(const char *name, size_t length)
{
    const char *point = memchr(name, '.', length);
    if (point) length = (size_t)(point - name);
    for (int i = 0; i < ALL_SETTINGS; i++)
        if (strlen(all_settings[i]) == length && covers(name, length, all_settings[i])) return true;
    return false;
}

enum { LISTED = 512 };

static void list_name(char listed[LISTED], const char *name)
{
    size_t used = strlen(listed);
    snprintf(listed + used, LISTED - used, "%s%s", used ? ", " : "", name);
}

tr_status tr_check_allow_different(const char *names)
{
    const char *rest = names ? names : "", *name;
    size_t length;
    while ((name = next_name(&rest, &length)))
        if (!is_of_any(name, length)) break;
    if (!name) return TR_OK;
    char known[LISTED] = "";
    for (int i = 0; i < ALL_SETTINGS; i++) list_name(known, all_settings[i]);
    return tr__fail(TR_INVALID, "there is no setting \"%.*s\" that ranks compare: there are %s", (int)length, name, known);
}

/* TR_INVALID for an unknown name; the message lists the settings, without details. */
static tr_status check_names(const tr_trainer *t, const tr__facts *facts)
{
    const char *names = t->plan.allow_different ? t->plan.allow_different : "", *name;
    size_t length;
    tr__fact fact;
    for (size_t at = 0; tr__facts_next(facts, &at, &fact);)
        if (!is_of_any(fact.name, strlen(fact.name)))
            return tr__fail(TR_INTERNAL, "trainer: the setting \"%s\" is missing from the list of all", fact.name);
    bool known_all = true;
    while (known_all && (name = next_name(&names, &length))) {
        known_all = false;
        for (size_t at = 0; !known_all && tr__facts_next(facts, &at, &fact);) known_all = covers(name, length, fact.name);
    }
    if (known_all) return TR_OK;
    char known[LISTED] = "";
    for (size_t at = 0; tr__facts_next(facts, &at, &fact);)
        if (!strchr(fact.name, '.') && !fact.told) list_name(known, fact.name);
    return tr__fail(TR_INVALID, "trainer: allow_different: there is no setting \"%.*s\" that ranks compare: there are %s",
        (int)length, name, known);
}

/* ---- Comparing ----------------------------------------------------------------------------------------------------- */

/* What another run of the same training may do otherwise, and what is a sample only. */
static bool is_of_run(const tr__fact *fact)
{
    static const char *const names[] = {"resume", "allow_different", "check_replicas", "stop_on_spike", "step_in_backward"};
    const char *detail = strchr(fact->name, '.');
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(fact->name, names[i]) == 0) return true;
    return fact->told || (detail && strcmp(detail, ".samples") == 0);
}

static tr_status hash(const tr__facts *facts, char text[TR__SHA256_TEXT])
{
    tr__sha256 sha;
    tr__fact fact;
    TR__TRY(tr__sha256_begin(&sha));
    for (size_t at = 0; tr__facts_next(facts, &at, &fact);) {
        if (is_of_run(&fact)) continue;
        tr__sha256_add(&sha, fact.name, strlen(fact.name) + 1);
        tr__sha256_add(&sha, fact.value, fact.bytes);
        tr__sha256_add(&sha, "", 1);
    }
    tr__sha256_end(&sha, text);
    return TR_OK;
}

static tr_status compare(const tr_trainer *t, tr_status own, const tr__facts *facts)
{
    if (t->world_size == 1) return own;
    tr__facts must = {0};
    tr__fact fact;
    for (size_t at = 0; tr__facts_next(facts, &at, &fact);)
        if (!tr__trainer_may_differ(t, fact.name)) tr__facts_add(&must, &fact);
    tr_status status = tr__agree_once(t->plan.group, "trainer", own, &must);
    if (own != TR_OK || status != TR_MISMATCH) return status;
    tr__error *differences = tr__error_take();
    tr__fail(status, "%s; tell all ranks the same, or name in allow_different what is meant to differ",
        differences->message);
    tr__error_unref(differences);
    return status;
}

tr_status tr__trainer_compare(tr_trainer *t, tr_status own)
{
    tr__facts facts = {0};
    tr_status status = own == TR_OK ? say_all(t, &facts) : own;
    if (status == TR_OK) status = check_names(t, &facts);
    if (status == TR_OK) status = hash(&facts, t->settings);
    status = compare(t, status, &facts);
    tr__facts_free(&facts);
    return status;
}
