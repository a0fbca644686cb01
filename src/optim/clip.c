/*
 * Clipping by the joint norm. The squares are summed in f64 over blocks of a fixed size, counted from each parameter's
 * start, and the blocks' sums in the order of the parameters: the norm does not depend on how many threads there are or
 * on how the arena is laid out, so all ranks and all runs scale alike.
 *
 * It is the norm of the whole model, of which a rank may have a part: shards of parameters (tensor parallelism), the parameters
 * of one stage (pipelines), or both. Ranks that have a parameter alike have its gradient alike, and count it once.
 *
 *   square of the norm = sum over stages of (squares of what is whole + sum over ranks of the squares of shards)
 */
#include "optim/optimizer.h"

#include "base/half.h"
#include "ops/op.h"
#include "tensor/kernel.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 8192, LANES = 16 };

/* Sums in lanes, which the compiler may keep in vector registers. */
#define SUM_OF_SQUARES(linkage, name, P, read)                                        \
    linkage double name(const void *from, int64_t n)                                   \
    {                                                                                 \
        const P *x = from;                                                            \
        double lane[LANES] = {0}, sum = 0;                                            \
        int64_t i = 0;                                                                \
        for (; i + LANES <= n; i += LANES)                                            \
            for (int k = 0; k < LANES; k++) {                                         \
                double value = (double)read(x[i + k]);                                \
                lane[k] += value * value;                                             \
            }                                                                         \
        for (; i < n; i++) sum += (double)read(x[i]) * (double)read(x[i]);            \
        for (int k = 0; k < LANES; k++) sum += lane[k];                               \
        return sum;                                                                   \
    }
SUM_OF_SQUARES(, tr__squares_f32, float, (float))
SUM_OF_SQUARES(, tr__squares_f64, double, (double))
SUM_OF_SQUARES(static, squares_bf16, uint16_t, tr__bf16_to_f32)

static double (*const squares_of[TR_DTYPE_COUNT])(const void *, int64_t) = {
    [TR_F32] = tr__squares_f32,
    [TR_F64] = tr__squares_f64,
    [TR_BF16] = squares_bf16,
};

typedef struct pass {
    tr__sum_function add;
    const void *arg;
    int64_t count;
    double (*sums)[2]; /* per block */
} pass;

static void sum_blocks(void *arg, int64_t begin, int64_t end)
{
    const pass *p = arg;
    for (int64_t b = begin; b < end; b++) {
        int64_t first = b * BLOCK, last = first + BLOCK;
        p->add(p->arg, first, last < p->count ? last : p->count, p->sums[b]);
    }
}

tr_status tr__sum_blocks(tr__pool *pool, int64_t count, tr__sum_function add, const void *arg, double sums[2])
{
    int64_t n = (count + BLOCK - 1) / BLOCK;
    pass p = {add, arg, count, calloc((size_t)n + 1, sizeof *p.sums)};
    if (!p.sums) return tr__fail(TR_NO_MEMORY, "out of memory for the sums of %lld blocks", (long long)n);
    tr__pool_for(pool, n, 2, sum_blocks, &p);
    for (int64_t b = 0; b < n; b++)
        for (int k = 0; k < 2; k++) sums[k] += p.sums[b][k];
    free(p.sums);
    return TR_OK;
}

/* Parameters whose squares are summed over the same ranks. */
typedef struct subtotal {
    tr__spread *shards, *stages; /* the parameters'; NULL: over none */
    double sum;
} subtotal;

static bool same_ranks(const tr__spread *a, const tr__spread *b)
{
    return a && b ? a->group == b->group : a == b;
}

/* The subtotal that a parameter belongs to, in the order in which the list meets them: the same on all ranks. */
static subtotal *subtotal_of(subtotal *all, int *n, const tr__leaf *leaf)
{
    for (int i = 0; i < *n; i++)
        if (same_ranks(all[i].shards, leaf->shards) && same_ranks(all[i].stages, leaf->stages)) return &all[i];
    all[*n] = (subtotal){leaf->shards, leaf->stages, 0};
    return &all[(*n)++];
}

/* Shards are added up within their stage, then the stages. All ranks make the same calls, whatever gradients they have, and also
 * after a failure, here or on another rank: so each of them hears of it. */
static tr_status add_up_over_ranks(subtotal *all, int n, tr_status own, double *total)
{
    for (int i = 0; i < n; i++)
        if (all[i].shards) own = all[i].shards->add_up(all[i].shards->group, own, &all[i].sum);
    *total = 0;
    for (int i = 0; i < n; i++) {
        int first = 0;
        while (!same_ranks(all[first].stages, all[i].stages)) first++;
        if (first != i) continue; /* the first one of a pipeline adds up the others of it */
        double sum = 0;
        for (int k = i; k < n; k++) sum += same_ranks(all[k].stages, all[i].stages) ? all[k].sum : 0;
        if (all[i].stages) own = all[i].stages->add_up(all[i].stages->group, own, &sum);
        *total += sum;
    }
    return own;
}

/* Without memory to know the calls that all ranks make. */
static tr_status give_up(const tr_optimizer *o)
{
    tr_status status = tr__fail(TR_NO_MEMORY, "%s: out of memory", o->rule->name);
    for (int i = 0; i < o->count; i++) {
        const tr__leaf *leaf = tr_list_at(o->list, i)->leaf;
        if (leaf->shards) leaf->shards->give_up(leaf->shards->group);
        if (leaf->stages) leaf->stages->give_up(leaf->stages->group);
    }
    return status;
}

static void add_squares(const void *arg, int64_t begin, int64_t end, double sums[2])
{
    const tr_tensor *t = arg;
    sums[0] += squares_of[t->dtype]((char *)tr__ptr(t) + (size_t)begin * tr_dtype_size(t->dtype), end - begin);
}

tr_status tr__squares_add(const tr_tensor *gradient, double *sum)
{
    double sums[2] = {*sum};
    TR__TRY(tr__sum_blocks(tr__pool_of(gradient), tr__numel(gradient->shape), add_squares, gradient, sums));
    *sum = sums[0];
    return TR_OK;
}

static bool counts(const tr_tensor *leaf)
{
    return leaf->leaf->has_grad && leaf->requires_grad;
}

/* The squares of the gradients on a device that is not the CPU: enqueued all, then read at once. Of others' squares stay. */
static tr_status read_squares(const tr_optimizer *o, tr_device device, double *squares)
{
    TR_SCOPE;
    TR_NO_GRAD;
    tr_tensor *all = tr_zeros(TR_SHAPE(o->count), .dtype = TR_F64, .device = device);
    TR__TRY(tr_status_of(all));
    for (int i = 0; i < o->count; i++) {
        const tr_tensor *leaf = tr_list_at(o->list, i), *grad = leaf->leaf->grad;
        if (!counts(leaf) || !tr_device_equal(tr__device_of(leaf), device)) continue;
        const tr_tensor *flat = tr__tensor_view(grad, TR_SHAPE(tr__numel(grad->shape)), NULL, grad->offset);
        const tr_tensor *sums = tr__tensor_view(all, TR_SHAPE(1), NULL, all->offset + i);
        TR__TRY(tr_status_of(flat));
        TR__TRY(tr_status_of(sums));
        TR__TRY(tr__run_kernel("sum_squares", device, NULL, 0, &flat, 1, &sums, 1));
    }
    const tr_tensor *here = tr__row_major_on_cpu(all);
    TR__TRY(tr_status_of(here));
    for (int i = 0; i < o->count; i++)
        if (tr_device_equal(tr__device_of(tr_list_at(o->list, i)), device)) squares[i] = tr__load(TR_F64, tr__ptr(here), i);
    return TR_OK;
}

/* Those of each parameter, in the order of the list; 0 where there is no gradient, nor was one that backward has used up and
 * measured. squares: [count] */
static tr_status all_squares(const tr_optimizer *o, double *squares)
{
    for (int i = 0; i < o->count; i++) squares[i] = -1; /* not known yet */
    for (int i = 0; i < o->count; i++) {
        const tr_tensor *leaf = tr_list_at(o->list, i);
        if (squares[i] >= 0 || isnan(squares[i])) continue;
        squares[i] = 0;
        if (!counts(leaf)) squares[i] = tr__in_backward_squares(o, o->place[i]);
        else if (tr__device_of(leaf).kind == TR_CPU) TR__TRY(tr__squares_add(leaf->leaf->grad, &squares[i]));
        else TR__TRY(read_squares(o, tr__device_of(leaf), squares));
    }
    return TR_OK;
}

tr_status tr__grad_norms(const tr_optimizer *o, double *norms)
{
    TR__TRY(all_squares(o, norms));
    for (int i = 0; i < o->count; i++) norms[i] = sqrt(norms[i]);
    return TR_OK;
}

tr_status tr__grad_squares(const tr_optimizer *o, tr_status own, double *total, const char **worst)
{
    TR__TRY(tr_status_of(o)); /* an optimizer in error does not know its ranks */
    double *squares = calloc((size_t)o->count, sizeof *squares);
    subtotal *subtotals = malloc((size_t)o->count * sizeof *subtotals);
    int n = 0;
    *worst = NULL;
    if (own == TR_OK) own = squares ? all_squares(o, squares) : tr__fail(TR_NO_MEMORY, "%s: out of memory", o->rule->name);
    for (int i = 0; i < o->count && subtotals; i++) {
        const tr_tensor *leaf = tr_list_at(o->list, i);
        if (own == TR_OK && !isfinite(squares[i]) && !*worst) *worst = tr_list_name(o->list, i);
        subtotal_of(subtotals, &n, leaf->leaf)->sum += own == TR_OK ? squares[i] : 0;
    }
    tr_status status = subtotals ? add_up_over_ranks(subtotals, n, own, total) : give_up(o);
    free(squares);
    free(subtotals);
    return status;
}

tr_status tr__grad_multiply(const tr_optimizer *o, double factor)
{
    tr__stretch s;
    for (int at = 0; tr__next_stretch(o, false, &at, &s);) {
        TR_SCOPE;
        const tr_tensor *gradients = s.part->arena->gradients;
        tr_tensor *run = tr__tensor_view(gradients, TR_SHAPE(s.end - s.begin), NULL, gradients->offset + s.begin);
        TR__TRY(tr_status_of(run));
        TR__TRY(tr__op_run(tr__op(affine), &(tr_affine_attrs){.scale = factor}, &run, 1, &run, 1));
        tr__touch(run);
    }
    return TR_OK;
}

tr_status tr__grad_limit(const tr_optimizer *o, double norm, double max_norm)
{
    double factor = max_norm / (norm + 1e-6); /* PyTorch's 1e-6 keeps the scaled norm at or under max_norm */
    return factor < 1 ? tr__grad_multiply(o, factor) : TR_OK;
}

tr_status tr_clip_grad_norm_at(tr_optimizer *optimizer, double max_norm, double *norm, const char *file, int line)
{
    TR__CALLED_AT(file, line);
    if (!optimizer) return tr__fail(TR_INVALID, "tr_clip_grad_norm: the optimizer is NULL");
    TR__TRY(tr_status_of(optimizer));
    tr_status status = !(max_norm > 0)
                           ? tr__fail(TR_INVALID, "tr_clip_grad_norm: max_norm must be more than 0, not %g", max_norm)
                           : tr__in_backward_refuse(optimizer, "tr_clip_grad_norm",
                                 "the norm is known when parameters have been updated already");
    const char *worst;
    double total = 0;
    TR__TRY(tr__grad_squares(optimizer, status, &total, &worst));
    total = sqrt(total);
    if (norm) *norm = total;
    if (worst)
        return tr__fail(TR_INVALID, "tr_clip_grad_norm: the norm is %g, nothing was changed; \"%s\" is the first whose "
            "gradient's norm is not finite", total, worst);
    if (!isfinite(total))
        return tr__fail(TR_INVALID, "tr_clip_grad_norm: the norm is %g, nothing was changed; every gradient of this rank is finite, so "
            "another rank's is not, or the sum overflows", total);
    return tr__grad_limit(optimizer, total, max_norm);
}
