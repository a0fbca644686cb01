#include "train/gradient_watch.h"

#include "base/log.h"
#include "comm/record/ranks_text.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/ddp.h"
#include "parallel/replicas.h"
#include "train/gradient_origin.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_EVERY = 10,   /* steps, where clipping does not need the norm: it takes 2 to 6 % of a ResNet-18's step
                          (bench/RESULTS.md) */
    FEWEST_NORMS = 20, /* before one can be called unusual */
    TEXT = 1024
};
static const double spike_factor = 1000;

bool tr__gradients_are_watched(const tr_trainer *t)
{
    bool measurable = true;
    for (int i = 0; t->in_backward && i < t->optimizer->count; i++)
        measurable &= tr__device_of(t->optimizer->parameters[i].leaf).kind == TR_CPU;
    return measurable && (t->plan.clip > 0 || t->step % LOOK_EVERY == 0);
}

tr_status tr__gradient_norms(const tr_trainer *t, tr__said *said)
{
    const char *worst;
    double squares;
    said->norm = said->own = NAN;
    if (!tr__gradients_are_watched(t)) return TR_OK;
    TR__TRY(tr__grad_squares(t->optimizer, TR_OK, &squares, &worst));
    said->norm = sqrt(squares);
    if (t->in_backward && t->world_size > 1) said->own = sqrt(tr__ddp_own_squares(t->net));
    return TR_OK;
}

/* ---- Ranks that differ ------------------------------------------------------------------------------------------- */

/* NaN as its bits: so NaN equals itself. */
static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Every rank has averaged the same gradients: where their norms differ, memory or a buffer did. Of gradients that have been used up in
 * backward what they made of the parameters is compared. */
static tr_status compare_gradients(tr_trainer *t)
{
    TR_SCOPE;
    char words[128];
    const tr_tensor_list *leaves = t->optimizer->list;
    if (t->in_backward) {
        snprintf(words, sizeof words, "step %" PRId64 ": averaged gradients differed when they were applied", t->step + 1);
        return tr__replicas_compare(t->plan.group, leaves, words, &t->replicas_differ);
    }
    tr_tensor_list *gradients = tr_list_new();
    for (int i = 0; i < tr_list_count(leaves); i++) {
        tr_tensor *grad = tr_grad(tr_list_at(leaves, i));
        char *name = NULL;
        if (!grad) continue;
        if (asprintf(&name, "gradient of %s", tr_list_name(leaves, i)) < 0)
            return tr__fail(TR_NO_MEMORY, "out of memory for names");
        tr_status status = tr_list_add(gradients, name, grad);
        free(name);
        TR__TRY(status);
    }
    snprintf(words, sizeof words, "step %" PRId64 ": averaged gradients differ, nothing was applied", t->step + 1);
    return tr__replicas_compare(t->plan.group, gradients, words, &t->replicas_differ);
}

/* ---- What is not finite ------------------------------------------------------------------------------------------ */

/* Prints NaN without its sign, which has no meaning. */
static double printed(double x)
{
    return isnan(x) ? (double)NAN : x;
}

enum { NAME = 320 };
/* "layer1.0.conv1.weight", in quotes. To one that begins with a number its module's name is added, and its shape:
 * "0.weight" (linear, [256, 784]). */
static const char *name_of(const tr_trainer *t, double parameter, char text[NAME])
{
    const char *name = tr_list_name(t->optimizer->list, (int)parameter), *last = strrchr(name, '.');
    int n = snprintf(text, NAME, "\"%.200s\"", name);
    if (!last || !*tr__path_root(t->plan.model, name)) return text;
    char path[512];
    snprintf(path, sizeof path, "%.*s", (int)(last - name), name);
    const tr_module *module = tr_module_find(t->plan.model, path);
    const tr_tensor *tensor = tr_list_at(t->optimizer->list, (int)parameter);
    if (module) snprintf(text + n, NAME - (size_t)n, " (%.40s, %s)", tr_module_name(module), TR__TEXT(tensor->shape));
    return text;
}

/* "; on rank 1 the gradient of "0.weight" is the first that is not finite, …" */
static void put_origin(const tr_trainer *t, const tr__origin *origins, const int *bad, int count, char text[TEXT])
{
    const tr__origin *first = &origins[bad[0]];
    char ranks[TR__RANKS_TEXT], sample[96] = "", name[NAME], *at = text;
    tr__ranks_text(bad, count, count, ranks);
    if (first->sample >= 0)
        snprintf(sample, sizeof sample, ", and the input of its sample %.0f of the batch is not finite", first->sample);
    if (t->world_size > 1)
        at += snprintf(at, TEXT / 2, "; it comes from %s, where%s the loss is %g", ranks,
                       count > 1 ? " on the first" : "", printed(first->loss));
    if (first->first >= 0)
        at += snprintf(at, TEXT / 2, "%s the gradient of %s is the first that backward made not finite",
                       t->world_size > 1 ? "," : ";", name_of(t, first->first, name));
    snprintf(at, TEXT / 8, "%s", sample);
}

/* Every rank has the same origins, and so the same message. */
static tr_status say_not_finite(const tr_trainer *t, const tr__origin *origins, const tr_metrics_row *row)
{
    int *bad = calloc((size_t)t->world_size, sizeof *bad), count = 0, unknown = 0;
    if (!bad) return tr__fail(TR_NO_MEMORY, "out of memory");
    for (int rank = 0; rank < t->world_size; rank++) {
        if (origins[rank].failed)
            unknown++;
        else if (!isfinite(origins[rank].loss) || !isfinite(origins[rank].norm))
            bad[count++] = rank;
    }
    char what[64], name[NAME], origin[TEXT] = "";
    if (isfinite(row->loss))
        snprintf(what, sizeof what, "the gradients' norm is %g", printed(row->grad_norm));
    else
        snprintf(what, sizeof what, "the loss is %s", isnan(row->loss) ? "not a number" : "infinite");
    if (origins[0].spoilt >= 0)
        snprintf(origin, sizeof origin,
                 "; %s is not finite since an earlier step, whose gradients were not looked at: with clipping, "
                 "each step's are",
                 name_of(t, origins[0].spoilt, name));
    else if (count)
        put_origin(t, origins, bad, count, origin);
    else if (!unknown)
        snprintf(origin, sizeof origin,
                 "; computed again, each rank's own gradients are finite: they were damaged in memory or on the "
                 "way, or their sum overflows");
    bool diverged = count == t->world_size && origins[0].sample < 0;
    free(bad);
    return tr__fail(TR_INVALID, "step %" PRId64 ": %s%s; nothing was applied%s", t->step + 1, what, origin,
                    diverged ? ": training has diverged, try a lower learning rate" : "");
}

/* "; it comes from rank 1, whose own gradients are not finite", of gradients that were measured before ranks averaged
 * them. Returns whether that is so of all ranks. */
static bool put_ranks(const tr_trainer *t, char text[TEXT])
{
    char ranks[TR__RANKS_TEXT];
    int count = 0;
    *text = 0;
    if (t->world_size == 1) return true;
    int *bad = calloc((size_t)t->world_size, sizeof *bad);
    if (!bad) return true;
    for (int rank = 0; rank < t->world_size; rank++)
        if (!isfinite(t->said[rank].own)) bad[count++] = rank;
    if (count)
        snprintf(text, TEXT, "; it comes from %s, whose own gradients are not finite",
                 tr__ranks_text(bad, count, count, ranks));
    else
        snprintf(text, TEXT, "; each rank's own gradients are finite: they were damaged in memory or on the way, or their "
            "sum overflows");
    free(bad);
    return count == t->world_size;
}

/* A norm that is known when backward has applied the gradients: all, or those before the first that was not finite, and of a large
 * one that came by rows those before the rows that were not. */
static tr_status say_applied(const tr_trainer *t, const tr_metrics_row *row)
{
    char ranks[TEXT], name[NAME];
    const char *advice = put_ranks(t, ranks) ? ": training has diverged, try a lower learning rate" : "";
    int64_t rows;
    int updated, count = t->optimizer->count, bad = tr__in_backward_stopped_at(t->optimizer, &updated, &rows);
    char partly[96] = "";
    double norm = printed(row->grad_norm);
    if (bad < 0)
        return tr__fail(TR_INVALID, "step %" PRId64 ": the gradients' norm is %g: every gradient is finite, and the sum of "
            "their squares overflows; all %d parameters had been updated: training has diverged, try a lower learning rate",
            t->step + 1, norm, count);
    if (rows) snprintf(partly, sizeof partly, ", and the first %" PRId64 " rows of this one", rows);
    return tr__fail(TR_INVALID, "step %" PRId64 ": the gradients' norm is %g; the gradient of %s is the first in backward "
        "whose norm is not finite, when %d of the %d parameters had been updated%s%s%s", t->step + 1, norm,
        name_of(t, bad, name), updated, count, partly, ranks, advice);
}

/* ---- Spikes ------------------------------------------------------------------------------------------------------ */

static void put_spike(const tr_trainer *t, const tr__origin *origins, double norm, double usual, char text[TEXT])
{
    int worst = 0;
    double others = 0;
    for (int rank = 1; rank < t->world_size; rank++)
        if (origins[rank].norm > origins[worst].norm) worst = rank;
    for (int rank = 0; rank < t->world_size; rank++)
        if (rank != worst && origins[rank].norm > others) others = origins[rank].norm;
    int n = snprintf(text, TEXT,
                     "step %" PRId64 ": the gradients' norm is %.3g, %.0f times the median of the steps before (%.3g)",
                     t->step + 1, norm, norm / usual, usual);
    const tr__origin *w = &origins[worst];
    if (w->failed || w->largest < 0) return;
    char *at = text + n, name[NAME];
    size_t room = TEXT - (size_t)n;
    if (norm > 1.01 * w->norm) /* the norm of a mean is not above the largest of the norms */
        snprintf(at, room, "; %sno rank's own is above %.3g: the gradients were damaged in memory or on the way",
                 t->in_backward ? "" : "computed again, ", w->norm);
    else if (t->world_size > 1)
        snprintf(at, room, "; it comes from rank %d, whose own is %.3g (the others': %.3g at most), and %s from %s (%.3g)",
                 worst, w->norm, others, t->in_backward ? "in the average" : "there", name_of(t, w->largest, name),
                 w->largest_norm);
    else
        snprintf(at, room, "; it comes from %s (%.3g)", name_of(t, w->largest, name), w->largest_norm);
}

/* One message for a series of them. */
static tr_status judge_size(tr_trainer *t, double norm, tr__origin *origins)
{
    tr__norms *norms = &t->norms;
    size_t n = norms->count < TR__NORMS ? (size_t)norms->count : TR__NORMS;
    double sorted[TR__NORMS];
    memcpy(sorted, norms->last, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, tr__by_value);
    double usual = norms->count < FEWEST_NORMS ? NAN : sorted[n / 2]; /* of the latest norms; unknown of few */
    bool was = norms->spiking;
    norms->spiking = usual > 0 && norm > spike_factor * usual;
    if (norms->spiking && (!was || t->plan.stop_on_spike)) {
        char text[TEXT];
        TR__TRY(tr__gradient_origins(t, true, origins));
        /* Of gradients that were used up in backward only the average can be measured again. */
        if (t->in_backward && t->world_size > 1)
            for (int rank = 0; rank < t->world_size; rank++) origins[rank].norm = t->said[rank].own;
        put_spike(t, origins, norm, usual, text);
        if (t->plan.stop_on_spike) return tr__fail(TR_INVALID, "%s; nothing was applied", text);
        if (t->rank == 0) tr__log(TR_LOG_WARN, "%s", text);
    }
    norms->last[norms->count++ % TR__NORMS] = norm;
    return TR_OK;
}

static tr_status judge(tr_trainer *t, const tr_metrics_row *row, tr__origin *origins)
{
    bool looked = tr__gradients_are_watched(t);
    if (isfinite(row->loss) && !looked) return TR_OK;
    if (isfinite(row->loss) && isfinite(row->grad_norm)) return judge_size(t, row->grad_norm, origins);
    if (isfinite(row->loss) && t->in_backward) return say_applied(t, row);
    TR__TRY(tr__gradient_origins(t, false, origins));
    return say_not_finite(t, origins, row);
}

tr_status tr__gradients_judge(tr_trainer *t, tr_metrics_row *row)
{
    row->grad_norm = t->said[0].norm;
    bool differ = false;
    for (int rank = 1; rank < t->world_size; rank++)
        differ |= bits_of(t->said[rank].norm) != bits_of(t->said[0].norm);
    if (t->plan.check_replicas && differ) TR__TRY(compare_gradients(t));
    for (int rank = 0; rank < t->world_size; rank++) /* where ranks are not compared they may differ */
        if (!isfinite(t->said[rank].norm)) row->grad_norm = t->said[rank].norm;
    tr__origin *origins = calloc((size_t)t->world_size, sizeof *origins);
    if (!origins) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr_status status = judge(t, row, origins);
    free(origins);
    return status;
}
