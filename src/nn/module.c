/* Modules: making them, adding to them, running them. */
#include "nn/module.h"

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/profile.h"
#include "ops/segment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void module_destroy(void *self)
{
    tr_module *module = self;
    tr__unref(module->around);
    if (module->release) module->release(module->state);
    for (int i = 0; i < module->count; i++) {
        tr__module_entry *member = &module->members[i];
        tr__unref(member->kind == TR__CHILD ? (void *)member->child : (void *)member->tensor);
        tr__unref(member->whole);
        free(member->name);
    }
    free(module->members);
    free(module->state);
    free(module->name);
    free(module->detail);
}

const tr__type tr__module_type = {.name = "module", .size = sizeof(tr_module), .destroy = module_destroy};

tr_module *tr_module_new(const char *name, size_t state_bytes, tr_forward_function forward)
{
    tr_module *module = tr__object_new(&tr__module_type);
    if (module->object.error) return module;
    module->forward = forward;
    module->n_outputs = 1;
    module->name = strdup(name ? name : "module");
    if (state_bytes) module->state = calloc(1, state_bytes);
    module->state_bytes = state_bytes;
    if (!module->name || (state_bytes && !module->state)) {
        tr__fail(TR_NO_MEMORY, "out of memory for a module with a state of %zu bytes", state_bytes);
        tr__object_break(module);
    }
    return module;
}

tr_module *tr_module_new_many(const char *name, size_t state_bytes, int outputs, tr_forward_many_function forward)
{
    if (outputs < 1 || outputs > TR_MODULE_OUTPUTS || !forward)
        return tr_module_fail(TR_INVALID, "%s: a module has a forward and 1 to %d outputs, not %d", name ? name : "module",
            TR_MODULE_OUTPUTS, outputs);
    tr_module *module = tr_module_new(name, state_bytes, NULL);
    if (module->object.error) return module;
    module->many = forward;
    module->n_outputs = outputs;
    return module;
}

void *tr_module_state(const tr_module *module)
{
    return module ? module->state : NULL;
}

void tr_module_on_release(tr_module *module, void (*release)(void *state))
{
    if (module && !tr__error_of(module)) module->release = release;
}

const char *tr_module_name(const tr_module *module)
{
    return module && module->name ? module->name : "";
}

void tr_module_detail(tr_module *module, const char *format, ...)
{
    if (!module || tr__error_of(module)) return;
    TR__C_NUMBERS;
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    bool made = vasprintf(&text, format, arguments) >= 0;
    va_end(arguments);
    if (!made) {
        tr__fail(TR_NO_MEMORY, "out of memory for the detail of a module");
        tr__object_break(module);
        return;
    }
    free(module->detail);
    module->detail = text;
}

bool tr_module_training(const tr_module *module)
{
    return module && !tr__error_of(module) && !tr__evaluates(module);
}

/* ---- Failing ----------------------------------------------------------------------------------------------------- */

tr_tensor *tr_tensor_fail(tr_status status, const char *format, ...)
{
    TR__FAIL_AS_TOLD(status, format);
    return tr__tensor_failed();
}

tr_module *tr_module_fail(tr_status status, const char *format, ...)
{
    TR__FAIL_AS_TOLD(status, format);
    return tr__object_failed(&tr__module_type);
}

/* ---- Adding ------------------------------------------------------------------------------------------------------ */

static bool contains(const tr_module *module, const tr_module *wanted)
{
    if (module == wanted) return true;
    for (int i = 0; i < module->count; i++)
        if (module->members[i].kind == TR__CHILD && contains(module->members[i].child, wanted)) return true;
    return false;
}

static tr_status check_name(const tr_module *module, const char *name, bool may_be_empty)
{
    if (!name || (!*name && !may_be_empty) || strchr(name, '.'))
        return tr__fail(TR_INVALID, "%s: \"%s\" is no name for a part of a module: it is empty or has dots",
            module->name, name ? name : "(NULL)");
    for (int i = 0; i < module->count; i++)
        if (strcmp(module->members[i].name, name) == 0)
            return tr__fail(TR_INVALID, "%s: it has a part named \"%s\" already", module->name, name);
    return TR_OK;
}

static tr_status append(tr_module *module, tr__module_entry member, const char *name)
{
    bool grown = tr__grow(&module->members, (size_t)module->count, &module->room, sizeof *module->members);
    member.name = grown ? strdup(name) : NULL;
    if (!member.name) return tr__fail(TR_NO_MEMORY, "%s: out of memory for \"%s\"", module->name, name);
    module->members[module->count++] = member;
    return TR_OK;
}

static tr_status add_child(tr_module *parent, const char *name, tr_module *child)
{
    if (!tr__object_is(child, &tr__module_type)) /* C converts a function's address with a warning */
        return tr__fail(TR_INVALID, "%s: \"%s\" is no module: where it is an op, such as tr_relu, give tr_relu_layer()", parent->name,
            name ? name : "(NULL)");
    TR__TRY(tr_status_of(child));
    TR__TRY(check_name(parent, name, true));
    if (contains(child, parent))
        return tr__fail(TR_INVALID, "%s: \"%s\" cannot be a part of it: it is a part of \"%s\", or the same module",
            parent->name, name, name);
    TR__TRY(append(parent, (tr__module_entry){.kind = TR__CHILD, .child = child}, name));
    tr__ref(child);
    return TR_OK;
}

tr_module *tr_module_add(tr_module *parent, const char *name, tr_module *child)
{
    if (!parent) return tr_module_fail(TR_INVALID, "tr_module_add: the parent is NULL");
    if (parent->object.error) return tr__object_pass(&tr__module_type, parent);
    if (!child || add_child(parent, name, child) == TR_OK) return child;
    tr__object_break(parent);
    return tr__object_failed(&tr__module_type);
}

/* A wrapped module counts as its wrapper. */
static tr_module *child_of(const tr_module *module, const char *name, size_t length)
{
    tr_module *found = NULL;
    for (int i = 0; i < module->count && !found; i++) {
        const tr__module_entry *m = &module->members[i];
        if (m->kind != TR__CHILD) continue;
        if (!*m->name) found = child_of(m->child, name, length);
        else if (strlen(m->name) == length && memcmp(m->name, name, length) == 0) found = m->child;
    }
    return found;
}

tr_module *tr_module_find(tr_module *module, const char *path)
{
    if (!path) return NULL;
    while (module && !module->object.error && *path) {
        size_t length = strcspn(path, ".");
        module = child_of(module, path, length);
        path += length + (path[length] == '.');
    }
    return module;
}

static tr_status add_tensor(tr_module *module, const char *name, tr_tensor *tensor, bool parameter)
{
    TR__TRY(tr_status_of(tensor));
    TR__TRY(check_name(module, name, false));
    if (parameter) {
        tr_status status = tr_status_of(tr_require_grad(tensor));
        if (status != TR_OK) return tr__fail_context(status, "%s: \"%s\"", module->name, name);
    }
    TR__TRY(append(module, (tr__module_entry){.kind = parameter ? TR__PARAMETER : TR__BUFFER, .tensor = tensor}, name));
    tr__ref(tensor);
    return TR_OK;
}

static tr_tensor *add_tensor_or_break(tr_module *module, const char *name, tr_tensor *tensor, bool parameter)
{
    if (!module) return tr_tensor_fail(TR_INVALID, "the module that \"%s\" is for is NULL", name ? name : "");
    if (module->object.error) return tr__tensor_pass(module);
    if (!tensor || add_tensor(module, name, tensor, parameter) == TR_OK) return tensor;
    tr__object_break(module);
    return tr__tensor_failed();
}

tr_tensor *tr_module_parameter(tr_module *module, const char *name, tr_tensor *parameter)
{
    return add_tensor_or_break(module, name, parameter, true);
}

tr_tensor *tr_module_buffer(tr_module *module, const char *name, tr_tensor *buffer)
{
    return add_tensor_or_break(module, name, buffer, false);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

typedef struct search {
    const void *wanted;
    char path[512];
} search;

/* Ends the walk at the module that is wanted, and notes its path, "layer1.0.conv2". A wrapped module counts as its wrapper. */
static tr_status stop_at(tr__walk *walk, tr_module *module)
{
    search *s = walk->user;
    if (module != s->wanted) return TR_OK;
    snprintf(s->path, sizeof s->path, "%s", walk->path);
    return TR_END;
}

const char *tr__path_root(const tr_module *root, const char *path)
{
    if (*path < '0' || *path > '9') return "";
    const tr__module_entry *first = root->members;
    for (; root->count == 1 && first->kind == TR__CHILD && !*first->name; first = root->members) root = first->child;
    return root->name;
}

/*
 * An error that leaves a module says where it was made: the first module puts its name in front, "linear: input [2, 3] does
 * not fit", those around it the path to that one, "sequential.2.1: linear: input [2, 3] does not fit". The error knows which
 * module it has left last, so each module adds its own piece of the path, and takes its own name for that of the root.
 */
static tr_tensor *with_path(tr_module *module, const tr_tensor *in_error)
{
    const tr__error *error = tr__error_of(in_error);
    search s = {.wanted = error->source};
    bool found = error->source && tr__module_walk(module, &(tr__walk){.module = stop_at, .user = &s}) == TR_END;
    tr_status status = tr_status_of(in_error); /* the thread's latest failure again: the walk may have had one */
    const char *message = tr_error_message();
    char root[64] = "";
    size_t path_length = 0, name_length = strlen(module->name);
    if (found) {
        message += error->root_length;
        path_length = strlen(s.path);
        const char *then = !path_length ? "" : error->path_length ? "." : ": ";
        path_length += error->path_length + (*then == '.');
        const char *name = path_length ? tr__path_root(module, *s.path ? s.path : message) : "";
        if (*name) snprintf(root, sizeof root, "%.60s.", name);
        tr__fail(status, "%s%s%s%s", root, s.path, then, message);
    } else if (error->source || strncmp(message, module->name, name_length) != 0 || message[name_length] != ':') {
        tr__fail_context(status, "%s", module->name);
    }
    tr_tensor *output = tr__tensor_failed();
    tr__error_set_source(output, module, strlen(root), path_length);
    return output;
}

tr_status tr__module_compute(tr_module *module, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    if (module->many) return module->many(module, inputs, n, outputs);
    outputs[0] = module->forward(module, inputs, n);
    return tr_status_of(outputs[0]);
}

static tr_status run_forward(tr_tensor *const *inputs, int n, void *user, tr_tensor **outputs)
{
    tr_module *module = user;
    tr__around *around = module->around;
    return around ? around->run(around, module, inputs, n, outputs) : tr__module_compute(module, inputs, n, outputs);
}

tr_status tr_set_recompute(tr_module *module, bool on)
{
    if (!module) return tr__fail(TR_INVALID, "tr_set_recompute: the module is NULL");
    TR__TRY(tr_status_of(module));
    module->recompute = on;
    return TR_OK;
}

/* Sets all outputs of the module; after a failure to one error. */
static void forward(tr_module *module, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    TR_SCOPE;
    _Static_assert((int)TR_MODULE_OUTPUTS == (int)TR__SEGMENT_OUTPUTS, "a segment has room for a module's outputs");
    tr__segment_code code = {.many = run_forward, .user = module, .held = module};
    bool again = module->recompute && !tr__caller_evaluates(); /* backward runs it, and all below it, in their own modes */
    tr_status status = again ? tr__segment_run(code, inputs, n, outputs, module->n_outputs)
                             : run_forward(inputs, n, module, outputs);
    tr_tensor *failed = NULL;
    for (int i = 0; i < module->n_outputs && !failed; i++)
        if (outputs[i] && tr__bad(outputs[i])) failed = outputs[i];
    if (!failed && status != TR_OK) failed = tr__tensor_failed();
    for (int i = 0; i < module->n_outputs && !failed; i++)
        if (!outputs[i])
            failed = tr_tensor_fail(TR_INVALID, "%s: its forward %s NULL", module->name,
                module->many ? "left an output" : "returned");
    if (failed) failed = tr_escape(with_path(module, failed));
    for (int i = 0; i < module->n_outputs; i++) outputs[i] = failed ? failed : tr_escape(outputs[i]);
}

static void forward_profiled(tr_module *module, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    tr__span span = {.kind = TR__SPAN_MODULE, .begin = tr__now_ns(), .who = module};
    tr__memory_watch watch = tr__memory_watch_begin(n > 0 && inputs[0] ? tr_device_of(inputs[0]).index : 0);
    forward(module, inputs, n, outputs);
    tr__memory_watch_end(&watch, &span.peak, &span.kept);
    snprintf(span.name, sizeof span.name, "%s", module->name);
    tr__profile_add(span);
}

/* The error that the call itself is; NULL: none. */
static tr_tensor *check_call(const tr_module *module, tr_tensor *const *inputs, int n, int n_outputs)
{
    if (!module) return tr_tensor_fail(TR_INVALID, "tr_forward: the module is NULL");
    if (!tr__object_is(module, &tr__module_type))
        return tr_tensor_fail(TR_INVALID, "tr_forward: not a module, but a %s", module->object.type->name);
    if (module->object.error) return tr__tensor_pass(module);
    for (int i = 0; i < n; i++)
        if (tr__error_of(inputs[i])) return tr__tensor_pass(inputs[i]);
    if (!module->forward && !module->many)
        return tr_tensor_fail(TR_INVALID, "%s: this module has no forward: it only holds its parts", module->name);
    if (n_outputs >= 1 && n_outputs <= module->n_outputs) return NULL;
    return tr_tensor_fail(TR_INVALID, "%s: it has %d outputs, not %d", module->name, module->n_outputs, n_outputs);
}

tr_status tr_forward_many(tr_module *module, tr_tensor *const *inputs, int n, tr_tensor **outputs, int n_outputs)
{
    if (!outputs || (n > 0 && !inputs))
        return tr__fail(TR_INVALID, "tr_forward_many: %s is NULL", outputs ? "inputs" : "outputs");
    tr_tensor *made[TR_MODULE_OUTPUTS] = {NULL}, *failed = check_call(module, inputs, n, n_outputs);
    if (!failed) (tr__profiling() ? forward_profiled : forward)(module, inputs, n, made);
    for (int i = 0; i < n_outputs; i++) outputs[i] = failed ? failed : made[i];
    return tr_status_of(failed ? failed : made[0]);
}

tr_tensor *tr_forward_n(tr_module *module, tr_tensor *const *inputs, int n)
{
    tr_tensor *output = NULL;
    (void)!tr_forward_many(module, inputs, n, &output, 1);
    return output ? output : tr__tensor_failed();
}
