/* Modules that live on other workers. */
#include "parallel/dist_rpc.h"

#include "nn/module.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- At the owner -------------------------------------------------------------------------------------------------------- */

static tr_module *module_in(const tr_value *value)
{
    const tr__object *object = value->object;
    if (object && object->type == &tr__module_type) return value->object;
    tr__fail(TR_INVALID, "remote module: the reference leads to a %s, not a module", object ? object->type->name : "NULL");
    return NULL;
}

static tr_status run_forward(void *state, const tr_value *values, tr_value *result)
{
    (void)state;
    tr_module *module = module_in(&values[0]);
    tr_tensor *inputs[TR_OP_MAX_INPUTS];
    int n = tr_list_count(values[1].tensors);
    if (!module) return TR_INVALID;
    if (n > TR_OP_MAX_INPUTS) return tr__fail(TR_INVALID, "remote module: %d inputs, of at most %d", n, TR_OP_MAX_INPUTS);
    for (int i = 0; i < n; i++) inputs[i] = tr_list_at(values[1].tensors, i);
    *result = tr_value_tensor(tr_forward_n(module, inputs, n));
    return TR_OK;
}

static tr_status count_parameters(void *state, const tr_value *values, tr_value *result)
{
    (void)state;
    tr_module *module = module_in(&values[0]);
    if (!module) return TR_INVALID;
    tr_tensor_list *list = tr_parameters(module);
    *result = tr_value_i64(tr_list_count(list));
    return tr_status_of(list);
}

static tr_status give_parameter(void *state, const tr_value *values, tr_value *result)
{
    (void)state;
    tr_module *module = module_in(&values[0]);
    if (!module) return TR_INVALID;
    tr_tensor *parameter = tr_list_at(tr_parameters(module), (int)values[1].i64);
    *result = tr_value_tensor(parameter);
    return parameter ? TR_OK : tr__fail(TR_NOT_FOUND, "remote module: no parameter %" PRId64, values[1].i64);
}

#define FUNCTION(name_, returns_, body_, ...)                                                                       \
    {.size = sizeof(tr_rpc_function), .name = (name_), .count = sizeof((int[]){__VA_ARGS__}) / sizeof(int),          \
        .kinds = {__VA_ARGS__}, .returns = (returns_), .body = (body_)}
static const tr_rpc_function functions[] = {
    FUNCTION("module.forward", TR_VALUE_TENSOR, run_forward, TR_VALUE_OBJECT, TR_VALUE_TENSORS),
    FUNCTION("module.count", TR_VALUE_I64, count_parameters, TR_VALUE_OBJECT),
    FUNCTION("module.parameter", TR_VALUE_TENSOR, give_parameter, TR_VALUE_OBJECT, TR_VALUE_I64),
};

tr_status tr__dist_module_start(tr_rpc *rpc)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        TR__TRY(tr_rpc_register(rpc, &functions[i]));
    return TR_OK;
}

/* ---- Elsewhere ------------------------------------------------------------------------------------------------------------ */

typedef struct remote {
    tr_rref *module; /* kept */
} remote;

static tr_tensor *call_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    tr_tensor_list *list = tr_list();
    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        if (tr_list_add(list, name, inputs[i]) != TR_OK) return tr__tensor_failed();
    }
    tr_tensor *y = tr_future_tensor(tr_rref_call(((remote *)self->state)->module, "module.forward", list));
    return tr_reshape(y, tr_shape_of(y)); /* y itself goes with its future */
}

static void finish(tr_module *self)
{
    remote *r = self->state;
    if (r) tr__unref(r->module);
}

tr_module *tr_remote_module(tr_rref *module)
{
    if (!module) return tr_module_fail(TR_INVALID, "remote module: the reference is NULL");
    if (tr_status_of(module) != TR_OK) return tr__object_pass(&tr__module_type, module);
    tr_module *self = tr_module_new("remote", sizeof(remote), call_forward);
    if (tr_status_of(self) != TR_OK) return self;
    self->finish = finish;
    ((remote *)self->state)->module = tr_keep(module);
    return self;
}

int tr_remote_parameters(tr_rref *module, tr_rref **out, int most)
{
    int64_t n;
    {
        TR_SCOPE;
        tr_future *count = tr_rref_call(module, "module.count");
        if (tr_future_wait(count) != TR_OK) return -1;
        n = tr_future_i64(count);
    }
    for (int64_t i = 0; n <= most && i < n; i++) {
        out[i] = tr_rref_remote(module, "module.parameter", i);
        if (tr_status_of(out[i]) != TR_OK) return -1;
    }
    return (int)n;
}
