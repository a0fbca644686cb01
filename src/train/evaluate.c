/* Evaluation: a model's mean loss and accuracy over a loader's epoch, divided over the ranks. */
#include "comm/group/agree.h"
#include "data/loader.h"
#include "nn/module.h"
#include "train/eval_mode.h"

#include <trireme/train.h>

#include <math.h>

enum { IGNORED = -100 }; /* targets that tr_cross_entropy() leaves out */

/* Sums over samples; as they travel between ranks. */
enum { LOSS, COUNT, CORRECT, UNJUDGED, SUMS };

/* ---- A batch ----------------------------------------------------------------------------------------------------- */

/* How many of logits' [n, classes] rows are largest at their target, among targets that count; *counted: how many
 * do. */
static int64_t count_correct(const float *logits, const int64_t *targets, int64_t n, int64_t classes, int64_t *counted)
{
    int64_t correct = 0;
    *counted = 0;
    for (int64_t i = 0; i < n; i++) {
        if (targets[i] == IGNORED) continue;
        const float *row = logits + i * classes;
        int64_t best = 0;
        for (int64_t c = 1; c < classes; c++)
            if (row[c] > row[best]) best = c;
        correct += best == targets[i];
        ++*counted;
    }
    return correct;
}

/* Class ids [...] for scores [..., classes]? */
static bool are_classes(const tr_tensor *output, const tr_tensor *target)
{
    tr_shape s = output->shape;
    if (!target || (target->dtype != TR_I64 && target->dtype != TR_I32) || s.ndim == 0 || s.dim[s.ndim - 1] == 0)
        return false;
    s.ndim--;
    return tr__shape_equal(s, target->shape);
}

static tr_status judge_classes(tr_tensor *output, tr_tensor *target, double sums[SUMS])
{
    int64_t n = tr__numel(target->shape), classes = output->shape.dim[output->shape.ndim - 1], counted;
    tr_tensor *scores = tr_contiguous(tr_cast(tr_to(output, tr_cpu(0)), TR_F32));
    tr_tensor *ids = tr_contiguous(tr_cast(tr_to(target, tr_cpu(0)), TR_I64));
    TR__TRY(tr_status_of(scores));
    TR__TRY(tr_status_of(ids));
    sums[CORRECT] += (double)count_correct(tr__ptr(scores), tr__ptr(ids), n, classes, &counted);
    sums[COUNT] += (double)counted;
    return TR_OK;
}

/* x: [n, …], y: [n, …] or NULL, without duplicates */
static tr_status judge(const tr_evaluate_options *o, tr_tensor *x, tr_tensor *y, double sums[SUMS])
{
    tr_tensor *output = tr_forward(o->net, x);
    TR__TRY(tr_status_of(output));
    if (!y && !o->loss) return tr__fail(TR_INVALID, "evaluate: the samples have no y: give a .loss that needs none");
    if (y) y = tr_to(y, tr_device_of(output)); /* where a model that is split over devices ends */
    TR__TRY(tr_status_of(y));
    if (!o->loss && y->dtype != TR_I64 && y->dtype != TR_I32)
        return tr__fail(TR_INVALID, "evaluate: y is %s %s: pass .loss, as without it cross-entropy of class indices (i64 or i32) is "
            "taken", tr_dtype_name(y->dtype), TR__TEXT(y->shape));
    double before = sums[COUNT];
    if (are_classes(output, y)) {
        TR__TRY(judge_classes(output, y, sums));
    } else {
        sums[COUNT] += (double)x->shape.dim[0];
        sums[UNJUDGED]++;
    }
    double counted = sums[COUNT] - before;
    if (counted == 0) return TR_OK; /* no mean */
    tr_tensor *mean = o->loss ? o->loss(output, y, o->user) : tr_cross_entropy(output, y);
    TR__TRY(tr_status_of(mean));
    if (tr_numel(mean) != 1)
        return tr__fail(TR_SHAPE, "evaluate: the loss is %s, not the batch's mean", TR__TEXT(mean->shape));
    sums[LOSS] += counted * tr_item(mean);
    return TR_OK;
}

static tr_status judge_batch(const tr_evaluate_options *o, const tr_batch *b, double sums[SUMS])
{
    TR_SCOPE;
    int64_t n = b->count - b->duplicates;
    if (n == 0) return tr_status_of(tr_forward(o->net, b->x)); /* other ranks may wait in theirs */
    tr_tensor *x = b->duplicates ? tr_slice(b->x, 0, 0, n) : b->x;
    tr_tensor *y = b->duplicates && b->y ? tr_slice(b->y, 0, 0, n) : b->y;
    return judge(o, x, y, sums);
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static tr_status judge_all(const tr_evaluate_options *o, double sums[SUMS])
{
    TR_NO_GRAD;
    tr_batch b;
    tr_status status;
    tr__loader_rewind(o->loader);
    while ((status = tr_loader_next(o->loader, &b)) == TR_OK) TR__TRY(judge_batch(o, &b, sums));
    return status == TR_END ? TR_OK : status;
}

/* Each sample is to be counted once: the ranks that add up are those that divide the loader's epoch. */
static tr_status check_group(const tr_evaluate_options *o, tr_group *group)
{
    tr__sampler_ranks divided = tr__loader_ranks(o->loader);
    int world_size = group ? tr_world_size(group) : 1, rank = group ? tr_rank(group) : 0;
    if (divided.world_size == world_size && divided.rank == rank) return TR_OK;
    if (divided.world_size == 1)
        return tr__fail(TR_INVALID, "evaluate: each of the %d ranks of .group would judge all samples: make the loader with the same "
            ".group, or evaluate without one", world_size);
    if (!group)
        return tr__fail(TR_INVALID, "evaluate: this loader's sampler gives it rank %d's part of %d: evaluate with .group, these %d "
            "ranks, or with a loader of all samples", divided.rank, divided.world_size, divided.world_size);
    return tr__fail(TR_INVALID, "evaluate: the loader's samples are rank %d's of %d, and in .group this is rank %d of %d: evaluate "
        "with the loader's group", divided.rank, divided.world_size, rank, world_size);
}

static tr_status evaluate(const tr_evaluate_options *o, tr_group *group, double sums[SUMS])
{
    if (!o->net || !o->loader) return tr__fail(TR_INVALID, "evaluate: the %s is NULL", o->net ? "loader" : "model");
    TR__TRY(tr_status_of(o->net));
    TR__TRY(tr_status_of(o->loader));
    TR__TRY(check_group(o, group));
    tr__modes modes;
    TR__TRY(tr__eval_begin(&modes, o->net));
    tr_status status = judge_all(o, sums);
    tr__eval_end(&modes, o->net);
    return status;
}

tr_status tr_evaluate_with(const tr_evaluate_options *o)
{
    TR__CALLED_AT(o->file, o->line);
    double sums[SUMS] = {0};
    TR__TRY(tr_status_of(o->group));
    tr_group *group = o->group;
    if (!group && o->loader && tr_status_of(o->loader) == TR_OK) group = tr__loader_ranks(o->loader).group;
    TR__TRY(tr__agree_sums(group, "evaluate", evaluate(o, group, sums), sums, SUMS));
    if (!o->score) return TR_OK;
    bool judged = sums[COUNT] > 0 && sums[UNJUDGED] == 0;
    *o->score = (tr_score){.loss = sums[LOSS] / sums[COUNT], .count = (int64_t)sums[COUNT],
        .correct = (int64_t)sums[CORRECT], .accuracy = judged ? sums[CORRECT] / sums[COUNT] : (double)NAN};
    return TR_OK;
}
