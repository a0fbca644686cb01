/* Modules that live on other workers. */
#include "parallel/dist/rpc.h"

#include "base/memory.h"
#include "nn/module.h"
#include "ops/segment.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- At the owner -------------------------------------------------------------------------------------------------------- */

static tr_module *module_in(const tr_value *value)
{
    const tr__object *object = value->object;
    if (object && object->type == &tr__module_type) return value->object;
    tr__fail(TR_INVALID, "remote module: the reference leads to an object of type %s, not to a module",
        object ? object->type->name : "NULL");
    return NULL;
}

/* The first number with the inputs, which also has their number: the list lacks those that are NULL. The other numbers are what
 * the caller's module draws from. REPLAYS: the call was made before, and is made again for backward. */
enum { EVALUATING = 1, SEEDED = 2, REPLAYS = 4, INPUTS_AT = 8 };

static const char *input_name(int i)
{
    static const char *const names[TR_OP_MAX_INPUTS] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    return names[i];
}

static tr_status run_forward(void *state, const tr_value *values, tr_value *result)
{
    (void)state;
    tr_module *module = module_in(&values[0]);
    tr_tensor *inputs[TR_OP_MAX_INPUTS];
    int64_t n = values[2].i64 >> INPUTS_AT;
    if (!module) return TR_INVALID;
    if (n < 0 || n > TR_OP_MAX_INPUTS) return tr__fail(TR_INVALID, "remote module: %" PRId64 " inputs, of at most %d", n, TR_OP_MAX_INPUTS);
    for (int i = 0; i < n; i++) inputs[i] = tr_list_find(values[1].tensors, input_name(i));
    tr__lent_mode caller = {.root = module, .mode = {.evaluating = values[2].i64 & EVALUATING, .seeded = values[2].i64 & SEEDED,
        .seed = (uint64_t)values[3].i64, .path = (uint64_t)values[4].i64, .step = (uint64_t)values[5].i64,
        .first_sample = (uint64_t)values[6].i64}};
    const tr__lent_mode *before = tr__mode_lend(&caller);
    tr__segment_state segments = tr__segment_switch((tr__segment_state){.replays = values[2].i64 & REPLAYS});
    *result = tr_value_tensor(tr_forward_n(module, inputs, (int)n));
    (void)tr__segment_switch(segments);
    (void)tr__mode_lend(before);
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
    FUNCTION("module.forward", TR_VALUE_TENSOR, run_forward, TR_VALUE_OBJECT, TR_VALUE_TENSORS, TR_VALUE_I64,
        TR_VALUE_I64, TR_VALUE_I64, TR_VALUE_I64, TR_VALUE_I64),
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
    if (n > TR_OP_MAX_INPUTS) return tr_tensor_fail(TR_INVALID, "remote module: %d inputs, of at most %d", n, TR_OP_MAX_INPUTS);
    tr_tensor_list *list = tr_list_new();
    for (int i = 0; i < n; i++)
        if (inputs[i] && tr_list_add(list, input_name(i), inputs[i]) != TR_OK) return tr__tensor_failed();
    tr__mode now = tr__mode_of(self);
    const tr__mode *mode = tr__segment_draw(&now, sizeof now);
    if (!mode) return tr__tensor_failed();
    int64_t flags = (mode->evaluating ? EVALUATING : 0) | (mode->seeded ? SEEDED : 0) | (tr__segment_replays() ? REPLAYS : 0) |
        (int64_t)n << INPUTS_AT;
    tr_tensor *y = tr_future_tensor(tr_rref_call(((remote *)self->state)->module, "module.forward", list, flags, mode->seed,
        mode->path, mode->step, mode->first_sample));
    return tr_reshape(y, tr_shape_of(y)); /* y itself goes with its future */
}

static void release(void *state)
{
    tr__unref(((remote *)state)->module);
}

tr_module *tr_remote_module(tr_rref *module)
{
    if (!module) return tr_module_fail(TR_INVALID, "remote module: the reference is NULL");
    if (tr_status_of(module) != TR_OK) return tr__object_pass(&tr__module_type, module);
    tr_module *self = tr_module_new("remote", sizeof(remote), call_forward);
    if (tr_status_of(self) != TR_OK) return self;
    tr_module_on_release(self, release);
    ((remote *)self->state)->module = tr_keep(module);
    return self;
}

bool tr__is_remote_module(const tr_module *module)
{
    return module->forward == call_forward;
}

/* How many parameters the module has; into out, if there are at most `most`. -1: the thread's latest failure says why. */
static int find_remote(tr_rref *module, tr_rref **out, int most)
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

/* The number goes to an optimizer with the array: one beyond the array must not. */
static int checked_count(const char *who, int count, int most)
{
    if (count <= most || most == 0) return count;
    tr__fail(TR_INVALID, "%s: there are %d parameters, and out has room for %d", who, count, most);
    return -1;
}

int tr_remote_parameters(tr_rref *module, tr_rref **out, int most)
{
    return checked_count("remote parameters", find_remote(module, out, most), most);
}

/* ---- Everywhere: the parameters of a module of which parts are elsewhere -------------------------------------------------- */

typedef struct gathering {
    tr_rpc *rpc;
    tr_rref **out;
    int most, count;
    const void **seen; /* parameters, and references to modules: what stands in several places counts once */
    size_t n_seen, seen_room;
} gathering;

static bool seen_before(const gathering *g, const void *object)
{
    for (size_t i = 0; i < g->n_seen; i++)
        if (g->seen[i] == object) return true;
    return false;
}

static tr_status note_seen(gathering *g, const void *object)
{
    if (!tr__grow(&g->seen, g->n_seen, &g->seen_room, sizeof(void *)))
        return tr__fail(TR_NO_MEMORY, "dist parameters: out of memory");
    g->seen[g->n_seen++] = object;
    return TR_OK;
}

static tr_status gather_remote(tr__walk *walk, tr_module *module)
{
    gathering *g = walk->user;
    if (module->forward != call_forward) return TR_OK;
    tr_rref *there = ((remote *)module->state)->module;
    if (seen_before(g, there)) return TR_OK;
    int room = g->count < g->most ? g->most - g->count : 0;
    int n = find_remote(there, room ? g->out + g->count : NULL, room);
    if (n < 0) return TR_STATE; /* why, is the thread's latest failure */
    g->count += n;
    return note_seen(g, there);
}

static tr_status gather_here(tr__walk *walk, const tr__module_entry *member)
{
    gathering *g = walk->user;
    if (member->kind != TR__PARAMETER || seen_before(g, member->tensor)) return TR_OK;
    if (g->count < g->most) {
        g->out[g->count] = tr_rref_new(g->rpc, tr_value_tensor(member->tensor));
        TR__TRY(tr_status_of(g->out[g->count]));
    }
    g->count++;
    return note_seen(g, member->tensor);
}

int tr_dist_parameters(tr_rpc *rpc, tr_module *module, tr_rref **out, int most)
{
    gathering g = {.rpc = rpc, .out = out, .most = most};
    tr_status status = tr__module_walk(module, &(tr__walk){.module = gather_remote, .tensor = gather_here, .user = &g});
    free((void *)g.seen);
    return status == TR_OK ? checked_count("dist parameters", g.count, most) : -1;
}
