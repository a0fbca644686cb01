#include "parallel/same_model.h"

#include "base/crc32c.h"
#include "base/hash.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "tensor/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line for each tensor: "0.weight" f32 [16, 6]. To be freed. */
static tr_status describe(const tr_tensor_list *list, char **text, size_t *bytes)
{
    *text = NULL;
    FILE *to = open_memstream(text, bytes);
    for (int i = 0; to && i < list->count; i++) {
        const tr_tensor *t = list->entries[i].tensor;
        fprintf(to, "\"%s\" %s %s%s\n", list->entries[i].name, tr_dtype_name(t->dtype), TR__TEXT(t->shape),
            t->requires_grad ? "" : " without gradient");
    }
    if (to && fclose(to) == 0) return TR_OK;
    free(*text);
    return tr__fail(TR_NO_MEMORY, "out of memory");
}

/* ---- The first difference ---------------------------------------------------------------------------------------- */

typedef struct lines {
    const char *at, *end; /* what is left */
} lines;

static int count_of(lines l)
{
    int count = 0;
    for (const char *c = l.at; c < l.end; c++) count += *c == '\n';
    return count;
}

/* The next line and its length; "nothing" after the last. */
static int next(lines *l, const char **line)
{
    static const char none[] = "nothing";
    *line = l->at < l->end ? l->at : none;
    if (*line == none) return sizeof none - 1;
    const char *end = memchr(l->at, '\n', (size_t)(l->end - l->at));
    l->at = end ? end + 1 : l->end;
    return (int)((end ? end : l->end) - *line);
}

static tr_status differ(const char *who, const char *what, lines first, int rank, lines other)
{
    int counts[2] = {count_of(first), count_of(other)}, number = 0, lengths[2] = {0};
    const char *texts[2] = {"", ""};
    bool same = true;
    while (same && (first.at < first.end || other.at < other.end)) {
        lengths[0] = next(&first, &texts[0]);
        lengths[1] = next(&other, &texts[1]);
        same = lengths[0] == lengths[1] && memcmp(texts[0], texts[1], (size_t)lengths[0]) == 0;
        number++;
    }
    return tr__fail(TR_MISMATCH, "%s: the %s of ranks 0 and %d differ: number %d is %.*s on rank 0 and %.*s on "
        "rank %d, of %d and %d; all ranks must have the same", who, what, rank, number, lengths[0], texts[0],
        lengths[1], texts[1], rank, counts[0], counts[1]);
}

/* The texts are not all the same. */
static tr_status find_difference(tr_group *group, const char *who, const char *what, const char *text, size_t bytes)
{
    int world = tr_world_size(group);
    int64_t *sizes = calloc((size_t)world, sizeof *sizes);
    char *all = NULL;
    if (!sizes) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr_status status = tr_all_gather_bytes(group, text, bytes, (void **)&all, sizes);
    const char *at = all;
    for (int rank = 0; rank < world && status == TR_OK; at += sizes[rank++]) {
        bool same = sizes[rank] == sizes[0] && memcmp(at, all, (size_t)sizes[0]) == 0;
        if (!same) status = differ(who, what, (lines){all, all + sizes[0]}, rank, (lines){at, at + sizes[rank]});
    }
    free(all);
    free(sizes);
    return status;
}

/* ---- All ranks --------------------------------------------------------------------------------------------------- */

tr_status tr__ranks_agree(tr_group *group, const tr_tensor_list *list, const char *who, const char *what)
{
    int world = tr_world_size(group);
    size_t bytes;
    char *text;
    TR__TRY(describe(list, &text, &bytes));
    int64_t own = (int64_t)tr__hash(TR__HASH_BEGIN, text, bytes), *digests = calloc((size_t)world, sizeof *digests);
    tr_status status = digests ? tr_all_gather(group, &own, digests, 1, .dtype = TR_I64)
                               : tr__fail(TR_NO_MEMORY, "out of memory");
    bool same = true;
    for (int rank = 0; rank < world && status == TR_OK; rank++) same &= digests[rank] == own;
    /* Each rank sees the same digests, so that all or none go on. */
    if (!same) status = find_difference(group, who, what, text, bytes);
    free(digests);
    free(text);
    return status;
}

/* ---- Modules ----------------------------------------------------------------------------------------------------- */

/* "model.h.0.attn": a module's kind and detail; "model.h.0.attn.weight": a tensor's dtype and shape. */
static tr_status say_part(const tr__walk *walk, const char *kind, const char *detail)
{
    char *name = NULL;
    if (asprintf(&name, "model.%s", walk->path) < 0) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr__facts_say(walk->user, name, "%s%s%s%s", kind, *detail ? " (" : "", detail, *detail ? ")" : "");
    free(name);
    return TR_OK;
}

static tr_status say_module(tr__walk *walk, tr_module *module)
{
    return *walk->path ? say_part(walk, tr_module_name(module), module->detail ? module->detail : "") : TR_OK;
}

static tr_status say_tensor(tr__walk *walk, const tr__member *member)
{
    const tr_tensor *t = member->tensor;
    char kind[192];
    snprintf(kind, sizeof kind, "%s %s", tr_dtype_name(t->dtype), TR__TEXT(t->shape));
    return say_part(walk, kind, member->kind == TR__BUFFER ? "a buffer" : t->requires_grad ? "" : "frozen");
}

tr_status tr__parts_say(tr_module *model, bool tensors, tr__facts *facts)
{
    tr__walk walk = {.module = say_module, .tensor = tensors ? say_tensor : NULL, .user = facts};
    return tr__module_walk(model, &walk);
}

/* ---- Optimizers -------------------------------------------------------------------------------------------------- */

/* Which parameters it has, and of which groups they are. What follows the optimizer's own decay counts as that. */
static void say_parameters(const tr_optimizer *o, tr__facts *facts)
{
    uint32_t crc = 0;
    int apart = 0;
    for (int i = 0; i < o->count; i++) {
        const tr__optimized *p = &o->parameters[o->place[i]];
        bool own = p->lr_scale != 1 || p->weight_decay != o->settings[TR__DECAY];
        const double numbers[] = {own ? p->lr_scale : 1, own ? p->weight_decay : -1};
        const char *name = tr_list_name(o->list, i);
        crc = tr__crc32c(tr__crc32c(crc, name, strlen(name) + 1), numbers, sizeof numbers);
        apart += own;
    }
    tr__facts_say(facts, "optimizer.parameters", "%d (%d with a rate or decay of their own, CRC-32C %08" PRIx32 ")",
        o->count, apart, crc);
}

void tr__optimizer_say(const tr_optimizer *o, tr__facts *facts)
{
    tr__facts_say(facts, "optimizer", "%s%s", o->rule->name, o->gather ? ", sharded" : "");
    for (int i = 0; i < TR__HYPERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "optimizer.%s", o->setting_names[i] ? o->setting_names[i] : "");
        if (i != TR__LR && o->setting_names[i]) tr__facts_number(facts, name, o->settings[i]);
    }
    char states[160] = "";
    for (int k = 0; k < o->n_states; k++) {
        size_t length = strlen(states);
        snprintf(states + length, sizeof states - length, "%s%s", k ? ", " : "", o->rule->state_names[k]);
    }
    tr__facts_say(facts, "optimizer.state", "%s", *states ? states : "none");
    say_parameters(o, facts);
}
