/*
 * Batch norm over the batches of all ranks (torch.nn.SyncBatchNorm). Forward: each rank's moments are gathered and
 * joined (Chan et al. 1979), then used as given ones. Backward, of N numbers in a channel on all ranks (see
 * batch_norm.c): dx = weight rstd g - weight rstd (sum of g / N + xhat (sum of g xhat) / N), the sums over all ranks
 *
 * A rank that fails before it has given its part, also earlier in a backward, breaks the group: the others would wait for it.
 */
#include "comm/control.h"
#include "nn/module.h"
#include "ops/batch_norm.h"
#include "parallel/object_tensor.h"

#include <trireme/kernels.h>
#include <trireme/parallel.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

typedef struct sync_attrs {
    double eps;
    tr_group *group; /* the holder's */
} sync_attrs;

enum { HOLDER, X, WEIGHT, BIAS }; /* inputs; the first one keeps the group */
enum { Y, MEAN, VAR, NUMBERS };    /* outputs; the last one, f64: how many numbers a channel has on all ranks */

static double value_of(const tr_tensor *t, int64_t i)
{
    return tr__load(t->dtype, tr__ptr(t), i);
}

/* What is read in the host's memory: t itself, or a copy of one on a device. */
static const tr_tensor *here(const tr_tensor *t)
{
    return tr__row_major_on_cpu(t);
}

/* What is written in the host's memory, for t: t itself, or memory for tr_copy_into(t, …). */
static tr_tensor *for_writing(tr_tensor *t)
{
    return tr_data(t) ? t : tr__tensor_new(t->shape, t->dtype, tr_cpu(0));
}

static tr_status put_there(tr_tensor *t, const tr_tensor *written)
{
    return written == t ? TR_OK : tr_copy_into(t, written);
}

/* ---- Forward ------------------------------------------------------------------------------------------------------ */

static tr_status infer(tr_op_call *call)
{
    const tr_tensor *x = call->inputs[X];
    if (!tr_dtype_is_float(x->dtype) || x->shape.ndim < 2)
        return tr__fail(TR_SHAPE, "sync_batch_norm: x is %s %s: it must be floats, [batch, channels, …]",
                        tr_dtype_name(x->dtype), TR__TEXT(x->shape));
    int64_t channels = x->shape.dim[1];
    for (int i = WEIGHT; i <= BIAS; i++) {
        const tr_tensor *t = call->inputs[i];
        bool fits = !t || t->dtype == x->dtype || (t->dtype == TR_F32 && x->dtype != TR_F64);
        if (t && (!fits || t->shape.ndim != 1 || t->shape.dim[0] != channels))
            return tr__fail(TR_SHAPE,
                            "sync_batch_norm: %s is %s %s: for x %s %s it must be of its dtype or f32, and [%" PRId64 "]",
                            i == WEIGHT ? "weight" : "bias", tr_dtype_name(t->dtype), TR__TEXT(t->shape),
                            tr_dtype_name(x->dtype), TR__TEXT(x->shape), channels);
    }
    tr_dtype dtype = x->dtype == TR_F64 ? TR_F64 : TR_F32;
    TR__TRY(tr__output_like(call, Y, x, x->shape, x->dtype));
    TR__TRY(tr_op_output(call, MEAN, TR_SHAPE(channels), dtype));
    TR__TRY(tr_op_output(call, VAR, TR_SHAPE(channels), dtype));
    return tr_op_output(call, NUMBERS, TR_SCALAR, TR_F64);
}

/* Joins the ranks' moments, [ranks][1 + 2 channels]: numbers, means, variances. */
static double join(const double *all, int ranks, int64_t channels, tr_tensor *mean, tr_tensor *var)
{
    int64_t row = 1 + 2 * channels;
    double numbers = 0;
    for (int r = 0; r < ranks; r++) numbers += all[r * row];
    for (int64_t c = 0; c < channels; c++) {
        double middle = 0, squares = 0;
        for (int r = 0; r < ranks; r++)
            if (all[r * row] > 0) middle += all[r * row] / numbers * all[r * row + 1 + c];
        for (int r = 0; r < ranks; r++) {
            double apart = all[r * row + 1 + c] - middle;
            if (all[r * row] > 0) squares += all[r * row] * (all[r * row + 1 + channels + c] + apart * apart);
        }
        tr__store(mean->dtype, tr__ptr(mean), c, middle);
        tr__store(var->dtype, tr__ptr(var), c, squares / numbers);
    }
    return numbers;
}

/* This rank's moments, which stand in mean and var, become all ranks'. */
static tr_status share_moments(tr_group *group, double numbers, tr_tensor *mean, tr_tensor *var, double *all_numbers)
{
    int64_t channels = mean->shape.dim[0], row = 1 + 2 * channels;
    int ranks = tr_world_size(group);
    const tr_tensor *own_mean = here(mean), *own_var = here(var);
    tr_tensor *new_mean = for_writing(mean), *new_var = for_writing(var);
    TR__TRY(tr__group_tell(group, tr__sound(4, (const tr_tensor *const[]){own_mean, own_var, new_mean, new_var})));
    double *own = malloc(sizeof *own * (size_t)row * (size_t)(ranks + 1)), *all = own + row;
    if (!own) return tr__group_tell(group, tr__fail(TR_NO_MEMORY, "sync_batch_norm: out of memory"));
    own[0] = numbers;
    for (int64_t c = 0; c < channels; c++) {
        own[1 + c] = numbers > 0 ? value_of(own_mean, c) : 0;
        own[1 + channels + c] = numbers > 0 ? value_of(own_var, c) : 0;
    }
    tr_status status = tr_all_gather(group, own, all, row, .dtype = TR_F64);
    if (status == TR_OK) *all_numbers = join(all, ranks, channels, new_mean, new_var);
    free(own);
    if (status == TR_OK) status = put_there(mean, new_mean);
    if (status == TR_OK) status = put_there(var, new_var);
    if (status == TR_OK && *all_numbers < 2)
        status = tr__fail(TR_SHAPE,
                          "sync_batch_norm: all ranks together have %g numbers for each channel: a variance needs two",
                          *all_numbers);
    return status;
}

static tr_status forward(tr_op_call *call)
{
    TR_SCOPE;
    const sync_attrs *a = call->attrs;
    tr_tensor *x = call->inputs[X], *weight = call->inputs[WEIGHT], *bias = call->inputs[BIAS];
    tr_tensor *mean = call->outputs[MEAN], *var = call->outputs[VAR];
    tr_group *group = a->group;
    const tr_batch_norm_attrs own = {.eps = a->eps}, given = {.eps = a->eps, .frozen = true};
    int64_t channels = x->shape.dim[1], numbers = channels ? tr__numel(x->shape) / channels : 0;
    /* y is written for nothing here: the kernel that finds moments goes on to it. */
    if (numbers)
        TR__TRY(tr__group_tell(group, tr__op_run(tr__op(batch_norm), &own, (tr_tensor *[]){x, weight, bias}, 3,
                        (tr_tensor *[]){call->outputs[Y], mean, var}, 3)));
    double all_numbers = 0;
    TR__TRY(share_moments(group, (double)numbers, mean, var, &all_numbers));
    TR__TRY(tr_fill(call->outputs[NUMBERS], all_numbers));
    if (!numbers) return TR_OK;
    tr_tensor *used[] = {tr__tensor_new_like(mean), tr__tensor_new_like(var)};
    TR__TRY_ALL(used[0], used[1]);
    return tr__op_run(tr__op(batch_norm), &given, (tr_tensor *[]){x, weight, bias, mean, var}, 5,
                   (tr_tensor *[]){call->outputs[Y], used[0], used[1]}, 3);
}

/* ---- Backward ----------------------------------------------------------------------------------------------------- */

/* The sums over this rank's numbers, [channels] each, become those over all ranks' in *all: dweight, then dbias. */
static tr_status share_sums(tr_group *group, const tr_tensor *dweight, const tr_tensor *dbias, double *all)
{
    int64_t channels = dweight->shape.dim[0];
    dweight = here(dweight);
    dbias = here(dbias);
    TR__TRY_ALL(dweight, dbias);
    for (int64_t c = 0; c < channels; c++) {
        all[c] = value_of(dweight, c);
        all[channels + c] = value_of(dbias, c);
    }
    return tr_all_reduce(group, all, 2 * channels, .dtype = TR_F64);
}

/* What dx has besides weight rstd g is of_x x + rest, by channel. */
static tr_status through_moments(const tr_backward_call *call, const double *sums, tr_tensor *of_x_there, tr_tensor *rest_there)
{
    const tr_tensor *weight = call->inputs[WEIGHT], *mean = here(call->outputs[MEAN]), *var = here(call->outputs[VAR]);
    double eps = ((const sync_attrs *)call->attrs)->eps, numbers = tr_item(call->outputs[NUMBERS]);
    tr_tensor *of_x = for_writing(of_x_there), *rest = for_writing(rest_there);
    if (weight && !tr_data(weight)) weight = here(weight);
    TR__TRY_ALL(weight, mean, var, of_x, rest);
    int64_t channels = mean->shape.dim[0];
    for (int64_t c = 0; c < channels; c++) {
        double rstd = 1 / sqrt(value_of(var, c) + eps);
        double scale = (weight ? value_of(weight, c * weight->stride[0]) : 1) * rstd / numbers;
        double slope = -scale * rstd * sums[c];
        tr__store(of_x->dtype, tr__ptr(of_x), c, slope);
        tr__store(rest->dtype, tr__ptr(rest), c, -scale * sums[channels + c] - slope * value_of(mean, c));
    }
    TR__TRY(put_there(of_x_there, of_x));
    return put_there(rest_there, rest);
}

/* dx, where weight rstd g stands already. x: of dx's dtype. */
static tr_tensor *complete(const tr_backward_call *call, tr_tensor *x, tr_tensor *dx, const double *sums)
{
    tr_tensor *mean = call->outputs[MEAN];
    const tr_tensor_options like = {
        .size = sizeof like, .shape = mean->shape, .dtype = mean->dtype, .device = tr__device_of(x)};
    tr_tensor *of_x = tr__tensor_new_like(mean), *rest = tr__tensor_new_like(mean), *zeros = tr_full_with(0, &like),
              *ones = tr_full_with(1, &like),
              *through = tr__tensor_new_strided(x->shape, dx->stride, x->dtype, tr__device_of(x)),
              *used[] = {tr__tensor_new_like(mean), tr__tensor_new_like(mean)};
    const tr_tensor *const made[] = {of_x, rest, zeros, ones, through, used[0], used[1]};
    if (tr__sound(7, made) != TR_OK || through_moments(call, sums, of_x, rest) != TR_OK) return tr__tensor_failed();
    const tr_batch_norm_attrs attrs = {.frozen = true};
    tr_status status = tr__op_run(tr__op(batch_norm), &attrs, (tr_tensor *[]){x, of_x, rest, zeros, ones}, 5,
                               (tr_tensor *[]){through, used[0], used[1]}, 3);
    return status == TR_OK ? tr_cast(tr_add(dx, through), call->inputs[X]->dtype) : tr__tensor_failed();
}

/* Casts a gradient, which is summed in the statistics' dtype, onto where that of an input belongs. */
static tr_status put(tr_backward_call *call, int input, tr_tensor *sums)
{
    bool accumulate;
    if (!call->needs[input]) return TR_OK;
    tr_tensor *to = tr__grad_target(call, input, &accumulate);
    TR__TRY(tr_status_of(to));
    call->grad_inputs[input] = to;
    return tr_copy_into(to, accumulate ? tr_add(tr_cast(to, sums->dtype), sums) : sums);
}

static tr_status find_gradients(tr_backward_call *call)
{
    const sync_attrs *a = call->attrs;
    tr_tensor *g = call->grad_outputs[Y], *x = call->inputs[X], *mean = call->outputs[MEAN], *var = call->outputs[VAR];
    if (!g) return TR_OK;
    tr_tensor *dweight = tr__tensor_new_like(mean), *dbias = tr__tensor_new_like(mean), *dx = NULL;
    g = tr_cast(g, mean->dtype); /* dx is a sum, which is rounded once */
    x = tr_cast(x, mean->dtype);
    TR__TRY_ALL(dweight, dbias, g, x);
    if (call->needs[X]) {
        dx = tr__tensor_new_like(x);
        TR__TRY(tr_status_of(dx));
    }
    const tr_batch_norm_attrs attrs = {.eps = a->eps, .frozen = true};
    tr_tensor *inputs[] = {g, x, call->inputs[WEIGHT], mean, var};
    TR__TRY(tr__op_run(tr__op(batch_norm_grad), &attrs, inputs, 5, (tr_tensor *[]){dx, dweight, dbias}, 3));
    if (dx) {
        double *sums = malloc(sizeof *sums * (size_t)(2 * mean->shape.dim[0] + 1));
        if (!sums) return tr__fail(TR_NO_MEMORY, "sync_batch_norm: out of memory");
        tr_status status = share_sums(a->group, dweight, dbias, sums);
        if (status == TR_OK) call->grad_inputs[X] = complete(call, x, dx, sums);
        free(sums);
        if (status != TR_OK) return status;
    }
    TR__TRY(put(call, WEIGHT, dweight));
    return put(call, BIAS, dbias);
}

static tr_status backward(tr_backward_call *call)
{
    tr_group *group = ((const sync_attrs *)call->attrs)->group;
    if (call->grad_outputs) return tr__group_tell(group, find_gradients(call));
    tr__group_give_up(group); /* TR__OP_JOINT */
    return TR_OK;
}

static const tr_op sync_batch_norm = {
    .size = sizeof(tr_op),
    .name = "sync_batch_norm",
    .attrs_size = sizeof(sync_attrs),
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .saves_inputs = 1u << HOLDER | 1u << X | 1u << WEIGHT,
    .saves_outputs = 1u << MEAN | 1u << VAR | 1u << NUMBERS,
    .flags = TR__OP_ANYWHERE | TR__OP_JOINT,
};

tr_tensor *tr_sync_batch_norm_op_with(tr_group *group, const tr_batch_norm_op_options *o)
{
    if (!group || !o->x) return tr__tensor_fail(TR_INVALID, "sync_batch_norm: it takes a group and a tensor, not NULL");
    if (tr__error_of(group)) return tr__tensor_pass(group);
    if (!o->training || tr_world_size(group) == 1) return tr_batch_norm_op_with(o);
    if (tr__group_tell(group, tr_status_of(o->x)) != TR_OK) return tr__tensor_pass(o->x);
    if (tr__batch_norm_check(o) != TR_OK) return tr__tensor_failed();
    TR_SCOPE;
    const sync_attrs attrs = {tr__batch_norm_eps(o), group};
    tr_tensor *inputs[] = {
        [HOLDER] = tr__object_tensor(group, tr__device_of(o->x)), [X] = o->x, [WEIGHT] = o->weight, [BIAS] = o->bias};
    tr_tensor *outputs[TR_OP_MAX_OUTPUTS], *y = tr_apply(&sync_batch_norm, &attrs, inputs, 4, outputs);
    if (tr__bad(y)) return tr_escape(y);
    tr_status status = tr__batch_norm_move(o, outputs[MEAN], outputs[VAR], tr_item(outputs[NUMBERS]), NULL);
    return tr_escape(status == TR_OK ? tr__batch_norm_activate(o, y) : tr__tensor_failed());
}

/* ---- Modules ------------------------------------------------------------------------------------------------------ */

static tr_tensor *normalize(const tr_batch_norm_op_options *options, void *user)
{
    return tr_sync_batch_norm_op_with(user, options);
}

static tr_status replace(tr__walk *walk, tr_module *module)
{
    if (tr__batch_norm_replace(module, normalize, walk->user))
        module->meets = tr_world_size(walk->user) > 1 ? walk->user : NULL;
    return TR_OK;
}

tr_status tr_convert_sync_batch_norm(tr_module *module, tr_group *group)
{
    if (!module || !group) return tr__fail(TR_INVALID, "sync_batch_norm: it takes a module and a group, not NULL");
    TR__TRY(tr_status_of(module));
    TR__TRY(tr_status_of(group));
    tr__walk walk = {.module = replace, .user = group};
    return tr__module_walk(module, &walk);
}
