/* Running an op: errors passed on, shapes inferred, a kernel found, the run recorded. */
#include "ops/family.h"
#include "ops/segment.h"

#include "base/clock.h"
#include "base/profile.h"
#include "device/capture.h"
#include "tensor/kernel.h"

#include <stdio.h>
#include <string.h>

static tr_device device_of_first(tr_tensor *const *tensors, int n)
{
    for (int i = 0; i < n; i++)
        if (tensors[i]) return tr__device_of(tensors[i]);
    return tr_cpu(0);
}

tr_status tr__output_made(tr_op_call *call, int i, tr_tensor *made)
{
    call->outputs[i] = made;
    if (call->n_outputs <= i) call->n_outputs = i + 1;
    return tr_status_of(made);
}

tr_status tr_op_output(tr_op_call *call, int i, tr_shape shape, tr_dtype dtype)
{
    if (i < 0 || i >= TR_OP_MAX_OUTPUTS)
        return tr__fail(TR_INVALID, "%s: output %d: an op has at most %d", call->op->name, i, TR_OP_MAX_OUTPUTS);
    return tr__output_made(call, i, tr__tensor_new(shape, dtype, device_of_first(call->inputs, call->n_inputs)));
}

tr_status tr__output_strided(tr_op_call *call, int i, tr_shape shape, const int64_t *stride, tr_dtype dtype)
{
    return tr__output_made(call, i, tr__tensor_new_strided(shape, stride, dtype, device_of_first(call->inputs, call->n_inputs)));
}

tr_status tr__output_like(tr_op_call *call, int i, const tr_tensor *like, tr_shape shape, tr_dtype dtype)
{
    int64_t stride[TR_MAX_DIMS];
    tr__strides_like(like, shape, stride);
    return tr__output_strided(call, i, shape, stride, dtype);
}

tr_tensor *tr__staged(tr_tensor *x, tr_dtype dtype, const int64_t *stride, bool values)
{
    if (tr__bad(x)) return x;
    int64_t row_major[TR_MAX_DIMS];
    tr__row_major(x->shape, row_major);
    if (!stride) stride = row_major;
    if (x->dtype == dtype && tr__has_strides(x, stride)) return x;
    tr_tensor *staged = tr__tensor_new_strided(x->shape, stride, dtype, tr__device_of(x));
    if (tr__bad(staged) || !values || tr__copy_elements(staged, x) == TR_OK) return staged;
    return tr__tensor_failed();
}

tr_tensor *tr__staged_images(tr_tensor *x, tr_dtype dtype, bool values)
{
    int64_t stride[TR_MAX_DIMS];
    tr__channels_last(x->shape, stride);
    return tr__staged(x, dtype, stride, values);
}

tr_status tr__unstage(tr_tensor *to, const tr_tensor *staged)
{
    return to == staged ? TR_OK : tr__copy_elements(to, staged);
}

tr_status tr__sound(int n, const tr_tensor *const *tensors)
{
    for (int i = 0; i < n; i++)
        if (tensors[i]) TR__TRY(tr_status_of(tensors[i]));
    return TR_OK;
}

/* What the CPU runs, and another device where it may: a program's op need not have one where it has that device's kernel. */
static tr_status run_forward(tr_op_call *call)
{
    if (!call->op->forward) return tr__fail(TR_INVALID, "%s: the op has no .forward", call->op->name);
    return call->op->forward(call);
}

static tr_status run_on(const tr_op_call *call, tr_device device, tr_tensor *const *inputs)
{
    return tr__run_kernel(call->op->name, device, call->attrs, call->op->attrs_size, (const tr_tensor *const *)inputs,
        call->n_inputs, (const tr_tensor *const *)call->outputs, call->n_outputs);
}

/* Kernels that take several dtypes at once save a conversion; a device need not have any. */
static tr_status run_mixed(const tr_op_call *call, tr_device device)
{
    tr_tensor *inputs[TR_OP_MAX_INPUTS], *const y = call->outputs[0];
    tr_status status = tr__try_kernel(call->op->name, device, call->attrs, call->op->attrs_size,
        (const tr_tensor *const *)call->inputs, call->n_inputs, (const tr_tensor *const *)call->outputs, call->n_outputs);
    if (status != TR_DECLINED) return status;
    TR_SCOPE;
    for (int i = 0; i < call->n_inputs; i++) {
        tr_tensor *x = call->inputs[i];
        inputs[i] = x->dtype == y->dtype ? x : tr__staged(x, y->dtype, NULL, true);
        TR__TRY(tr_status_of(inputs[i]));
    }
    return run_on(call, device, inputs);
}

static tr_status run_first_kernel(tr_op_call *call)
{
    const tr_op *op = call->op;
    tr_device device = device_of_first(call->outputs, call->n_outputs);
    if (device.kind == TR_CPU) {
        tr__kernel faster = tr__op_builtin(op) ? tr__cpu_kernels[op - tr__ops] : NULL;
        tr_status status = faster ? faster(call) : TR_DECLINED;
        return status == TR_DECLINED ? run_forward(call) : status;
    }
    if (op->flags & TR__OP_ANYWHERE && !tr__has_kernel(device, op->name)) return run_forward(call);
    tr__capture *capture = tr__capture_now();
    if (capture && call->attrs && op->flags & TR__OP_RANDOM) capture->source = ((const tr_dropout_attrs *)call->attrs)->source;
    return op->flags & TR__OP_MIXED ? run_mixed(call, device) : run_on(call, device, call->inputs);
}

static tr_status run_profiled(tr_op_call *call)
{
    tr__span span = {.kind = TR__SPAN_OP, .begin = tr__now_ns()};
    tr_status status = run_first_kernel(call);
    const tr_tensor *y = call->n_outputs > 0 ? call->outputs[0] : NULL;
    snprintf(span.name, sizeof span.name, "%s", call->op->name);
    if (tr__op_builtin(call->op) && device_of_first(call->outputs, call->n_outputs).kind == TR_CPU)
        span.algorithm = tr__plan_name(call);
    if (y) snprintf(span.detail, sizeof span.detail, "%s %s", tr_dtype_name(y->dtype), TR__TEXT(y->shape));
    tr__profile_add(span);
    return status;
}

static tr_status run_kernel(tr_op_call *call)
{
    tr_status status = tr__profiling() ? run_profiled(call) : run_first_kernel(call);
    return status == TR_OK && tr__checks_numbers() ? tr__check_numbers(call) : status;
}

/* All inputs are there, and on one device. */
static tr_status check_inputs(const tr_op_call *call)
{
    const tr_tensor *first = NULL;
    for (int i = 0; i < call->n_inputs; i++) {
        const tr_tensor *x = call->inputs[i];
        if (!x) continue;
        if (tr__is_vacant(x)) return tr__refuse_vacant(call->op->name, x);
        if (!first) first = x;
        if (tr_device_equal(tr__device_of(x), tr__device_of(first))) continue;
        char a[16], b[16];
        return tr__fail(TR_DEVICE, "%s: inputs on %s and %s: move one with tr_to()", call->op->name,
            tr_device_name(tr__device_of(first), a), tr_device_name(tr__device_of(x), b));
    }
    return TR_OK;
}

tr_status tr__compute(tr_op_call *call)
{
    tr_status inferred = call->op->infer(call);
    if (inferred == TR_NO_MEMORY) tr__fail_context(inferred, "%s", call->op->name); /* infer made the outputs */
    TR__TRY(inferred);
    for (int i = 0; i < call->n_outputs || i == 0; i++) {
        if (!call->outputs[i])
            return tr__fail(TR_INVALID, "%s: its infer did not make output %d: tr_op_output(call, %d, shape, dtype)",
                call->op->name, i, i);
        TR__TRY(tr_status_of(call->outputs[i]));
    }
    return call->op->flags & TR__OP_VIEW ? TR_OK : run_kernel(call);
}

/* Of an op that is not the library's own. */
static tr_status check_own_op(const tr_op *op)
{
    if (!op) return tr__fail(TR_INVALID, "tr_apply: the op is NULL");
    if (!op->name) return tr__fail(TR_INVALID, "tr_apply: the op has no .name");
    if (op->size < sizeof(tr_op))
        return tr__fail(TR_INVALID, "%s: the op's .size is %zu: it is sizeof(tr_op), %zu", op->name, op->size, sizeof(tr_op));
    return op->infer ? TR_OK : tr__fail(TR_INVALID, "%s: the op has no .infer", op->name);
}

tr_tensor *tr_apply(const tr_op *op, const void *attrs, tr_tensor *const *inputs, int n_inputs, tr_tensor **outputs)
{
    if (!tr__op_builtin(op) && check_own_op(op) != TR_OK) return tr__tensor_failed();
    if (n_inputs > 0 && !inputs) return tr__tensor_fail(TR_INVALID, "%s: inputs is NULL", op->name);
    if (n_inputs < 0 || n_inputs > TR_OP_MAX_INPUTS)
        return tr__tensor_fail(TR_INVALID, "%s: %d inputs: an op has at most %d", op->name, n_inputs, TR_OP_MAX_INPUTS);
    for (int i = 0; i < n_inputs; i++)
        if (inputs[i] && tr__bad(inputs[i])) return tr__tensor_pass(inputs[i]);

    tr_tensor *casted[TR_OP_MAX_INPUTS];
    if (op->flags & (TR__OP_LOW | TR__OP_LOW_FIRST | TR__OP_HIGH | TR__OP_WIDEN) && tr__autocast() != TR_F32) {
        inputs = tr__autocast_inputs(op, inputs, n_inputs, casted);
        for (int i = 0; i < n_inputs; i++)
            if (inputs[i] && tr__bad(inputs[i])) return tr__tensor_pass(inputs[i]);
    }
    if (op->flags & TR__OP_RANDOM && !(attrs = tr__segment_draw(attrs, op->attrs_size))) return tr__tensor_failed();
    tr_tensor *made[TR_OP_MAX_OUTPUTS] = {NULL};
    tr_op_call call = {.op = op, .attrs = attrs, .n_inputs = n_inputs, .inputs = inputs, .outputs = made};
    tr_status status = check_inputs(&call);
    if (status == TR_OK) status = tr__compute(&call);
    if (status == TR_OK) status = tr__record_op(&call);
    if (status == TR_OK && op->flags & TR__OP_JOINT) status = tr__segment_note_joint(&call);
    if (status != TR_OK) return tr__tensor_failed();
    if (outputs) memcpy(outputs, made, sizeof *made * (size_t)call.n_outputs);
    return made[0];
}

tr_tensor *tr__apply_along(const tr_op *op, int dim, tr_tensor *const *inputs, int n)
{
    tr_dim_attrs attrs = {0};
    const tr_tensor *x = inputs[0];
    if (x && !tr__bad(x) && tr__dim(op->name, x->shape, dim, &attrs.dim) != TR_OK) return tr__tensor_failed();
    return tr_apply(op, &attrs, inputs, n, NULL);
}

tr_status tr__op_run(const tr_op *op, const void *attrs, tr_tensor *const *inputs, int n_inputs, tr_tensor *const *outputs,
    int n_outputs)
{
    tr_tensor *to[TR_OP_MAX_OUTPUTS] = {NULL};
    memcpy(to, outputs, sizeof *to * (size_t)n_outputs);
    TR__TRY(tr__sound(n_outputs, (const tr_tensor *const *)to));
    TR__TRY(tr__sound(n_inputs, (const tr_tensor *const *)inputs));
    tr_op_call call = {op, attrs, n_inputs, n_outputs, inputs, to};
    return run_kernel(&call);
}

tr_status tr__add_onto(tr_tensor *y, tr_tensor *x)
{
    return tr__op_run(tr__op(add), NULL, (tr_tensor *[]){y, x}, 2, &y, 1);
}

tr_status tr__sum_onto(tr_tensor *g, uint32_t dims, tr_tensor *sums, bool accumulate)
{
    tr_tensor *sum = accumulate ? tr__tensor_new(sums->shape, sums->dtype, tr__device_of(sums)) : sums;
    TR__TRY(tr__op_run(tr__op(sum), &(tr_reduce_attrs){.dims = dims}, &g, 1, &sum, 1));
    return sum == sums ? TR_OK : tr__add_onto(sums, sum);
}

/* ---- Checks that infer functions share ---------------------------------------------------------------------------- */

tr_status tr__given(const tr_op_call *call, int i)
{
    if (i < call->n_inputs && call->inputs[i]) return TR_OK;
    char name[TR__INPUT_NAME];
    return tr__fail(TR_INVALID, "%s: %s is NULL", call->op->name, tr__input_name(call->op, i, name));
}

tr_status tr__same(const tr_op_call *call, int a, int b)
{
    TR__TRY(tr__given(call, a));
    TR__TRY(tr__given(call, b));
    const tr_tensor *x = call->inputs[a], *y = call->inputs[b];
    if (x->dtype == y->dtype) return TR_OK;
    return tr__fail(TR_DTYPE, "%s: dtypes differ: %s %s and %s %s", call->op->name, tr_dtype_name(x->dtype),
        TR__TEXT(x->shape), tr_dtype_name(y->dtype), TR__TEXT(y->shape));
}

tr_status tr__parameter_input(const tr_op_call *call, int i)
{
    TR__TRY(tr__given(call, 0));
    TR__TRY(tr__given(call, i));
    bool master = call->inputs[i]->dtype == TR_F32 && call->inputs[0]->dtype == tr__autocast();
    return master ? TR_OK : tr__same(call, 0, i);
}

tr_status tr__float_input(const tr_op_call *call, int i)
{
    TR__TRY(tr__given(call, i));
    const tr_tensor *x = call->inputs[i];
    if (tr_dtype_is_float(x->dtype)) return TR_OK;
    char name[TR__INPUT_NAME];
    return tr__fail(TR_DTYPE, "%s: %s is %s %s: it takes floats (see tr_cast)", call->op->name,
        tr__input_name(call->op, i, name), tr_dtype_name(x->dtype), TR__TEXT(x->shape));
}

/* ---- Shape rules of several families ------------------------------------------------------------------------------- */

/* Of gradients, which read g, x and more: as x. */
tr_status tr__like_x_infer(tr_op_call *call)
{
    return tr_op_output(call, 0, call->inputs[1]->shape, call->inputs[1]->dtype);
}

/* The call does not say the outputs' shapes: backward functions run the op onto tensors that are there. */
tr_status tr__given_infer(tr_op_call *call)
{
    return tr__fail(TR_INVALID, "%s: it runs on outputs that are given", call->op->name);
}
