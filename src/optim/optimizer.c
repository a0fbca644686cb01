#include "optim/optimizer.h"
#include "optim/bf16_state.h"

#include "autograd/capture.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "tensor/kernel.h"
#include "tensor/match.h"

#include <trireme/kernels.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void destroy(void *self)
{
    tr_optimizer *o = self;
    tr__in_backward_end(o);
    for (int i = 0; o->parameters && i < o->count; i++)
        if (o->parameters[i].leaf) atomic_fetch_sub(&o->parameters[i].leaf->leaf->optimizers, 1);
    for (int i = 0; i < o->n_parts; i++) {
        for (int k = 0; k < TR__STATES; k++) tr__unref(o->parts[i].state[k]);
        tr__unref(o->parts[i].arena);
    }
    free(o->parts);
    free(o->parameters);
    free(o->place);
    tr__unref(o->list);
    tr__unref(o->sharing);
}

const tr__type tr__optimizer_type = {"optimizer", sizeof(tr_optimizer), destroy};

/* ---- Making ------------------------------------------------------------------------------------------------------ */

/* What a rule's kernels on devices are called: "sgd_step". */
static const char *kernel_name(char name[64], const char *rule, const char *what)
{
    snprintf(name, 64, "%s_%s", rule, what);
    return name;
}

static tr_status check_parameter(const tr_optimizer *o, const char *name, const tr_tensor *t)
{
    const char *rule = o->rule->name;
    if (!tr__is_parameter(t))
        return tr__fail(TR_INVALID, "%s: \"%s\" is no parameter: a leaf that requires a gradient", rule, name);
    char kernel[64];
    if (tr__device_of(t).kind != TR_CPU && !tr__has_kernel(tr__device_of(t), kernel_name(kernel, rule, "step")))
        return tr__fail(TR_UNSUPPORTED, "%s: \"%s\" is on %s, which has no kernel %s", rule, name,
            tr_device_name(tr__device_of(t), (char[16]){0}), kernel);
    if (t->leaf->consumer)
        return tr__fail(TR_STATE, "%s: another optimizer steps \"%s\" in backward, and leaves no gradient", rule, name);
    if (!o->rule->kernel[t->dtype])
        return tr__fail(TR_DTYPE, "%s: \"%s\" is %s: parameters must be f32, f64 or bf16", rule, name,
            tr_dtype_name(t->dtype));
    if (o->settings[TR__BF16_STATE] && t->dtype == TR_F64)
        return tr__fail(TR_DTYPE, "%s: \"%s\" is f64, whose state is, too: .bf16_state is for parameters in f32 and bf16", rule, name);
    if (o->rule->whole && t->leaf->shards)
        return tr__fail(TR_UNSUPPORTED, "%s: \"%s\" is a shard of what several ranks have together, and %s looks at whole parameters; "
            "elementwise rules (sgd, adam, lion, ...) take shards", rule, name, rule);
    if (o->rule->dimensions && t->shape.ndim != o->rule->dimensions)
        return tr__fail(TR_SHAPE, "%s: \"%s\" is %s: it takes parameters of %d dimensions; give the others to another "
            "optimizer", rule, name, TR__TEXT(t->shape), o->rule->dimensions);
    return TR_OK;
}

/* Copies the list, so that what the caller adds to it later does no harm. */
static tr_status take_list(tr_optimizer *o, const tr_tensor_list *list)
{
    if (!list || tr_list_count(list) == 0)
        return tr__fail(TR_INVALID, "%s: there are no parameters to optimize", o->rule->name);
    o->list = tr_keep(tr_list_new());
    o->count = tr_list_count(list);
    for (int i = 0; i < o->count; i++) {
        tr_tensor *t = tr_list_at(list, i);
        TR__TRY(check_parameter(o, tr_list_name(list, i), t));
        for (int k = 0; k < i; k++)
            if (tr_list_at(list, k) == t)
                return tr__fail(TR_INVALID, "%s: \"%s\" and \"%s\" are the same parameter", o->rule->name,
                    tr_list_name(list, k), tr_list_name(list, i));
        TR__TRY(tr_list_add(o->list, tr_list_name(list, i), t));
    }
    return tr__arena_build(o->list);
}

static int by_place(const void *x, const void *y)
{
    const tr__optimized *a = x, *b = y;
    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return (a->count > b->count) - (a->count < b->count); /* an empty one lies before the one that begins where it does */
}

/* Does q begin where p and its gap end? Then no foreign parameter lies between them. */
static bool adjacent(const tr__optimized *p, const tr__optimized *q)
{
    int64_t end = (p->offset + p->count + TR__ARENA_ALIGN - 1) / TR__ARENA_ALIGN * TR__ARENA_ALIGN;
    return p->leaf->leaf->arena == q->leaf->leaf->arena && q->offset == end;
}

/* Cuts the sorted parameters into parts. */
static tr_status make_parts(tr_optimizer *o)
{
    for (int i = 0; i < o->count; i++) {
        tr__optimized *p = &o->parameters[i];
        if (i == 0 || !adjacent(p - 1, p)) {
            tr__optimizer_part *parts = realloc(o->parts, ((size_t)o->n_parts + 1) * sizeof *parts);
            if (!parts) return tr__fail(TR_NO_MEMORY, "%s: out of memory", o->rule->name);
            o->parts = parts;
            parts[o->n_parts++] = (tr__optimizer_part){.arena = tr__ref(p->leaf->leaf->arena), .begin = p->offset};
        }
        p->part = o->n_parts - 1;
        o->parts[p->part].end = p->offset + p->count;
    }
    return TR_OK;
}

static tr_status find_places(tr_optimizer *o, bool decay_matrices_only)
{
    o->parameters = calloc((size_t)o->count, sizeof *o->parameters);
    o->place = calloc((size_t)o->count, sizeof *o->place);
    if (!o->parameters || !o->place) return tr__fail(TR_NO_MEMORY, "%s: out of memory", o->rule->name);
    for (int i = 0; i < o->count; i++) {
        tr_tensor *leaf = tr_list_at(o->list, i);
        const tr__arena_slot *slot = tr__arena_slot_of(leaf);
        tr__optimized *p = &o->parameters[i];
        /* Until they are sorted, part is the arena's number, and steps says which entry of the list it is. */
        *p = (tr__optimized){.leaf = leaf, .offset = slot->offset, .count = slot->count, .steps = i};
        /* Arenas are in the order in which the list meets them: the same on all ranks. */
        while (tr_list_at(o->list, p->part)->leaf->arena != leaf->leaf->arena) p->part++;
        atomic_fetch_add(&leaf->leaf->optimizers, 1);
        p->lr_scale = 1;
        p->weight_decay = decay_matrices_only && leaf->shape.ndim < 2 ? 0 : o->settings[TR__DECAY];
    }
    qsort(o->parameters, (size_t)o->count, sizeof *o->parameters, by_place);
    for (int i = 0; i < o->count; i++) {
        o->place[o->parameters[i].steps] = i;
        o->parameters[i].steps = 0;
    }
    return make_parts(o);
}

/* Zeros; on the CPU they take no memory before the first step, which a step in backward makes when activations have gone. */
static tr_tensor *zeros(int64_t count, tr_dtype dtype, tr_device device)
{
    if (device.kind != TR_CPU) return tr_zeros(TR_SHAPE(count), .dtype = dtype, .device = device);
    tr_tensor *t = tr_empty(TR_SHAPE(count), .dtype = dtype, .device = device);
    if (tr__bad(t)) return t;
    size_t bytes = (size_t)count * tr_dtype_size(dtype);
    if (t->storage->kind == TR__OWNED) tr__pages_zero(tr__ptr(t), bytes);
    else memset(tr__ptr(t), 0, bytes); /* it may be shared, and shared pages keep what they hold */
    return t;
}

static tr_status make_state(tr_optimizer *o)
{
    for (int i = 0; i < o->n_parts; i++) {
        tr__optimizer_part *part = &o->parts[i];
        const tr_tensor *like = part->arena->parameters;
        part->from = part->begin;
        part->to = part->end;
        tr_dtype dtype = like->dtype == TR_F64 ? TR_F64 : o->settings[TR__BF16_STATE] ? TR_BF16 : TR_F32;
        for (int k = 0; k < o->n_states; k++) {
            part->state[k] = tr_keep(zeros(part->end - part->begin, dtype, tr__device_of(like)));
            TR__TRY(tr_status_of(part->state[k]));
        }
    }
    return TR_OK;
}

bool tr__is_amount(double x)
{
    return x >= 0 && isfinite(x);
}

static tr_status check_hyper(const char *rule, const tr__hyper *hyper)
{
    static const char *const domains[TR__DOMAINS] = {
        [TR__FLAG] = "",
        [TR__FINITE] = "finite",
        [TR__AMOUNT] = "0 or more",
        [TR__FRACTION] = "in [0, 1)",
        [TR__SHARE] = "in [0, 1]",
        [TR__POSITIVE] = "more than 0",
    };
    double x = hyper->value;
    const bool lies[TR__DOMAINS] = {
        [TR__FLAG] = true,
        [TR__FINITE] = isfinite(x),
        [TR__AMOUNT] = tr__is_amount(x),
        [TR__FRACTION] = x >= 0 && x < 1,
        [TR__SHARE] = x >= 0 && x <= 1,
        /* In f32, too, in which it may be added: without it an element whose gradients were all 0 becomes 0/0. */
        [TR__POSITIVE] = (float)x > 0 && isfinite(x),
    };
    if (lies[hyper->domain]) return TR_OK;
    return tr__fail(TR_INVALID, "%s: %s must be %s, not %g", rule, hyper->name, domains[hyper->domain], x);
}

tr_optimizer *tr__optimizer_new(const tr__optimizer_rule *rule, const tr_tensor_list *parameters,
    const tr__hyper hypers[TR__HYPERS], bool decay_matrices_only)
{
    for (int i = 0; i < TR__HYPERS; i++)
        if (check_hyper(rule->name, &hypers[i]) != TR_OK) return tr__object_failed(&tr__optimizer_type);
    tr_optimizer *o = tr__object_new(&tr__optimizer_type);
    if (o->object.error) return o;
    o->rule = rule;
    for (int i = 0; i < TR__HYPERS; i++) {
        o->settings[i] = hypers[i].value;
        o->setting_names[i] = hypers[i].name;
    }
    o->lr = o->settings[TR__LR];
    while (o->n_states < TR__STATES && rule->state_names[o->n_states]) o->n_states++;
    tr_status status = tr_status_of(parameters);
    if (status == TR_OK) {
        TR_SCOPE;
        status = take_list(o, parameters);
        if (status == TR_OK) status = find_places(o, decay_matrices_only);
        if (status == TR_OK) status = make_state(o);
    }
    if (status != TR_OK) tr__object_break(o);
    return o;
}

/* ---- Stepping ---------------------------------------------------------------------------------------------------- */

/* A gradient to step by: of what was frozen since a forward, its backward may have left one that does not count. */
static bool has_grad(const tr__optimized *p)
{
    return p->leaf->leaf->has_grad && p->leaf->requires_grad;
}

bool tr__next_stretch(const tr_optimizer *o, bool alike, int *at, tr__stretch *out)
{
    const tr__optimized *p = o->parameters;
    while (*at < o->count && !has_grad(&p[*at])) ++*at;
    if (*at == o->count) return false;
    int first = *at, last = first;
    const tr__optimized *like = &p[first], *next = like + 1; /* alike: one call of the rule's kernel may update both */
    while (last + 1 < o->count && adjacent(&p[last], next) && has_grad(next) &&
           (!alike || (!o->rule->whole && like->steps == next->steps && like->lr_scale == next->lr_scale &&
                          like->weight_decay == next->weight_decay))) {
        last++;
        next++;
    }
    *at = last + 1;
    *out = (tr__stretch){&o->parts[p[first].part], first, last, p[first].offset, p[last].offset + p[last].count};
    return true;
}

enum { BLOCK = 1024, GRAIN = 16 }; /* elements that stay together, and how many such blocks are worth a thread */

typedef struct pass {
    tr__update_kernel kernel;
    const tr__update *update;
} pass;

static void run_blocks(void *arg, int64_t begin, int64_t end)
{
    const pass *p = arg;
    int64_t last = end * BLOCK;
    if (last > p->update->count) last = p->update->count;
    if (p->update->optimizer->settings[TR__BF16_STATE]) tr__update_bf16_state(p->kernel, p->update, begin * BLOCK, last);
    else p->kernel(p->update, begin * BLOCK, last);
}

static char *element(const tr_tensor *t, int64_t i)
{
    return (char *)tr__ptr(t) + (size_t)i * tr_dtype_size(t->dtype);
}

/* Elements begin to end of t, which is flat. */
static tr_tensor *range_of(const tr_tensor *t, int64_t begin, int64_t count)
{
    return tr__tensor_view(t, TR_SHAPE(count), NULL, t->offset + begin);
}

static tr_step_attrs attrs_of(const tr__update *u)
{
    tr_step_attrs attrs = {.step = u->step, .lr = u->lr, .weight_decay = u->weight_decay, .factor = u->factor,
        .place = u->place};
    for (int i = 0; i < TR__HYPERS; i++) attrs.settings[i] = u->optimizer->settings[i];
    return attrs;
}

/* The run as tensors; that of `gradients` begins at its first element when it is one parameter's own. */
static tr_status show_to_device(tr__update *u, const tr__optimizer_part *part, const tr_tensor *gradients, int64_t begin)
{
    u->on_device.parameters = range_of(part->arena->parameters, begin, u->count);
    u->on_device.gradients = range_of(gradients, gradients == part->arena->gradients ? begin : 0, u->count);
    TR__TRY(tr_status_of(u->on_device.parameters));
    TR__TRY(tr_status_of(u->on_device.gradients));
    for (int k = 0; k < u->optimizer->n_states; k++) {
        u->on_device.state[k] = range_of(part->state[k], begin - part->from, u->count);
        TR__TRY(tr_status_of(u->on_device.state[k]));
    }
    return TR_OK;
}

/* ---- In a captured step ------------------------------------------------------------------------------------------ */

/* The parameters of a run still are to be treated alike, and all of the optimizer's are what and where they were. */
static uint64_t digest_of(const tr__live_source *source)
{
    const tr_optimizer *o = source->object;
    const tr__optimized *like = &o->parameters[source->first];
    uint64_t digest = 0;
    for (int i = 0; i < o->count; i++) {
        const tr__optimized *p = &o->parameters[i];
        bool alike = p->steps == like->steps && p->lr_scale == like->lr_scale && p->weight_decay == like->weight_decay;
        bool inside = i >= source->first && i <= source->last;
        digest = tr__mix(digest, (uint64_t)(uintptr_t)tr__ptr(p->leaf) + 2 * p->leaf->requires_grad + (inside && alike));
    }
    return digest;
}

static void add_steps(tr_optimizer *o, int first, int last, int by)
{
    for (int i = first; i <= last; i++) o->parameters[i].steps += by;
}

static void count_steps(const tr__live_source *source, int by)
{
    add_steps(source->object, source->first, source->last, by);
}

/* The attributes that tr_step() would give the kernel in this run. It writes to the parameters. */
static tr_status renew_step(const tr__live_source *source, void *attrs)
{
    const tr_optimizer *o = source->object;
    const tr__optimized *like = &o->parameters[source->first], *last = &o->parameters[source->last];
    tr__update update = {.optimizer = o, .leaf = like->leaf, .place = ((const tr_step_attrs *)attrs)->place,
        .step = like->steps, .lr = o->lr * like->lr_scale, .weight_decay = like->weight_decay};
    if (o->rule->prepare) TR__TRY(o->rule->prepare(&update));
    *(tr_step_attrs *)attrs = attrs_of(&update);
    const tr_tensor *parameters = o->parts[like->part].arena->parameters;
    size_t size = tr_dtype_size(parameters->dtype);
    tr__storage_touch(parameters->storage, (size_t)like->offset * size, (size_t)(last->offset + last->count) * size);
    return TR_OK;
}

static const tr__live_source_type step_source = {.digest = digest_of, .count = count_steps, .renew = renew_step};

static tr_status step_on_device(const tr__update *u, const tr__stretch *s)
{
    char name[64];
    tr_step_attrs attrs = attrs_of(u);
    const tr_tensor *inputs[] = {u->on_device.gradients, u->on_device.direction};
    const tr_tensor *outputs[] = {u->on_device.parameters, u->on_device.state[0], u->on_device.state[1], u->on_device.state[2]};
    tr__capture *capture = tr__capture_now();
    if (capture)
        capture->source = tr__capture_source(
            &(tr__live_source){.object = (void *)u->optimizer, .first = s->first, .last = s->last, .type = &step_source});
    return tr__run_kernel(kernel_name(name, u->optimizer->rule->name, "step"), tr__device_of(u->on_device.parameters), &attrs,
        sizeof attrs, inputs, 2, outputs, 1 + TR__STATES);
}

/* ---- A step of a run --------------------------------------------------------------------------------------------- */

/* own: the gradient of its elements alone; NULL: it is in the arena. */
static tr_status update_stretch(tr_optimizer *o, const tr__stretch *s, const tr_tensor *own)
{
    const tr__optimizer_part *part = s->part;
    const tr_tensor *parameters = part->arena->parameters;
    const tr__optimized *like = &o->parameters[s->first];
    int64_t begin = s->begin > part->from ? s->begin : part->from, end = s->end < part->to ? s->end : part->to;
    if (begin >= end) return TR_OK; /* another rank's */
    TR_SCOPE;
    tr__update update = {
        .optimizer = o,
        .leaf = like->leaf,
        .count = end - begin,
        .place = begin,
        .step = like->steps,
        .lr = o->lr * like->lr_scale,
        .weight_decay = like->weight_decay,
    };
    const tr_tensor *gradients = own ? own : part->arena->gradients;
    bool on_cpu = tr__device_of(parameters).kind == TR_CPU;
    if (on_cpu) {
        update.parameters = element(parameters, begin);
        update.gradients = element(gradients, own ? 0 : begin);
        for (int k = 0; k < o->n_states; k++) update.state[k] = element(part->state[k], begin - part->from);
    } else {
        TR__TRY(show_to_device(&update, part, gradients, begin));
    }
    if (o->rule->prepare) TR__TRY(o->rule->prepare(&update));
    pass p = {o->rule->kernel[parameters->dtype], &update};
    if (on_cpu) tr__pool_for(tr__pool_of(parameters), (update.count + BLOCK - 1) / BLOCK, GRAIN, run_blocks, &p);
    else TR__TRY(step_on_device(&update, s));
    size_t element_size = tr_dtype_size(parameters->dtype);
    tr__storage_touch(parameters->storage, (size_t)begin * element_size, (size_t)end * element_size);
    return TR_OK;
}

static void measure(const void *arg, int64_t begin, int64_t end, double sums[2])
{
    const tr__update *u = arg;
    u->optimizer->rule->measure[u->leaf->dtype](u, begin, end, sums);
}

static tr_status measure_on_device(const tr__update *u, double sums[2])
{
    char name[64];
    tr_step_attrs attrs = attrs_of(u);
    tr_device device = tr__device_of(u->on_device.parameters);
    tr_tensor *both = tr__tensor_new(TR_SHAPE(2), TR_F64, device);
    TR__TRY(tr_status_of(both));
    const tr_tensor *inputs[] = {u->on_device.gradients, u->on_device.parameters};
    const tr_tensor *outputs[] = {both, u->on_device.state[0], u->on_device.state[1], u->on_device.state[2], u->on_device.direction};
    TR__TRY(tr__run_kernel(kernel_name(name, u->optimizer->rule->name, "measure"), device, &attrs, sizeof attrs, inputs, 2,
        outputs, 2 + TR__STATES));
    return tr_copy_out(both, sums, 2 * sizeof *sums);
}

tr_status tr__measure(const tr__update *update, double sums[2])
{
    if (update->on_device.parameters) return measure_on_device(update, sums);
    sums[0] = sums[1] = 0;
    return tr__sum_blocks(tr__pool_of(update->leaf), update->count, measure, update, sums);
}

tr_status tr__optimizer_tell(const tr_optimizer *o, tr_status status)
{
    if (status != TR_OK && o->give_up) o->give_up(o->sharing);
    return status;
}

/* What the other ranks have updated. */
static tr_status gather_parameters(tr_optimizer *o)
{
    TR_SCOPE;
    for (int i = 0; i < o->n_parts; i++) {
        const tr__optimizer_part *part = &o->parts[i];
        tr_tensor *all = part->arena->parameters;
        tr_tensor *flat = tr__tensor_view(all, TR_SHAPE(part->end - part->begin), NULL, all->offset + part->begin);
        TR__TRY(tr_status_of(flat));
        TR__TRY(o->gather(o->sharing, part, flat));
        tr__touch(flat);
    }
    return TR_OK;
}

/* Steps on end in one scope, which holds more objects at each, and memory that grows with them: a training loop without a
 * TR_SCOPE, where what a step makes stays until the scope around the loop ends. The log says so, once. */
static void watch_scope(tr_optimizer *o)
{
    enum { STEPS = 100, BYTES = 64 << 20, EACH = 2 }; /* EACH: more than a loss that is meant to stay */
    size_t held;
    uint64_t scope = tr__scope_innermost(&held);
    bool grows = scope == o->scope_watch.scope && held > o->scope_watch.held;
    int steps = grows ? o->scope_watch.steps + 1 : 0;
    o->scope_watch.scope = scope;
    o->scope_watch.held = held;
    o->scope_watch.steps = steps;
    if (o->scope_watch.told || !(steps == 1 || (steps && steps % STEPS == 0))) return;

    tr_device_memory memory = {.size = sizeof memory};
    tr_device device = tr__device_of(o->parameters[0].leaf);
    char name[16];
    if (tr_device_memory_of(device, &memory) != TR_OK) return;
    if (steps == 1) {
        o->scope_watch.held_first = held;
        o->scope_watch.bytes = memory.in_use;
    }
    if (memory.in_use - o->scope_watch.bytes < BYTES || held - o->scope_watch.held_first < EACH * (size_t)steps) return;
    o->scope_watch.told = true;
    tr__log(TR_LOG_WARN, "tr_step: %d steps in one scope, which now holds %zu objects more than at the first, and on %s %.0f MB "
        "more are in use: put TR_SCOPE; at the start of the training loop's body, and what a step makes goes at its end",
        steps, held - o->scope_watch.held_first, tr_device_name(device, name), 1e-6 * (double)(memory.in_use - o->scope_watch.bytes));
}

static tr_status step(tr_optimizer *o)
{
    tr__stretch s;
    for (int at = 0; tr__next_stretch(o, true, &at, &s);) {
        add_steps(o, s.first, s.last, 1);
        TR__TRY(update_stretch(o, &s, NULL));
    }
    return o->gather ? gather_parameters(o) : TR_OK;
}

tr_status tr_step_at(tr_optimizer *optimizer, const char *file, int line)
{
    TR__CALLED_AT(file, line);
    if (!optimizer) return tr__fail(TR_INVALID, "tr_step: the optimizer is NULL");
    TR__TRY(tr_status_of(optimizer));
    watch_scope(optimizer);
    return optimizer->in_backward ? tr__in_backward_step(optimizer) : tr__optimizer_tell(optimizer, step(optimizer));
}

tr_status tr__step_one(tr_optimizer *o, int i)
{
    return tr__step_at(o, o->place[i]);
}

tr_status tr__step_at(tr_optimizer *o, int at)
{
    const tr__optimized *p = &o->parameters[at];
    const tr__stretch s = {&o->parts[p->part], at, at, p->offset, p->offset + p->count};
    add_steps(o, at, at, 1);
    return update_stretch(o, &s, o->in_backward ? p->leaf->leaf->grad : NULL);
}

tr_status tr__step_rows(tr_optimizer *o, int at, const tr_tensor *gradient, int64_t first)
{
    const tr__optimized *p = &o->parameters[at];
    int64_t begin = p->offset + first * (p->count / p->leaf->shape.dim[0]);
    const tr__stretch s = {&o->parts[p->part], at, at, begin, begin + tr__numel(gradient->shape)};
    if (first == 0) add_steps(o, at, at, 1);
    return update_stretch(o, &s, gradient);
}

void tr_zero_grad(tr_optimizer *optimizer)
{
    if (!optimizer || tr__error_of(optimizer)) return;
    for (int i = 0; i < optimizer->count; i++) tr_clear_grad(optimizer->parameters[i].leaf);
}

tr_status tr_set_lr(tr_optimizer *optimizer, double lr)
{
    if (!optimizer) return tr__fail(TR_INVALID, "tr_set_lr: the optimizer is NULL");
    TR__TRY(tr_status_of(optimizer));
    if (!(lr >= 0) || isinf(lr)) return tr__fail(TR_INVALID, "tr_set_lr: a learning rate is 0 or more, not %g", lr);
    optimizer->lr = lr;
    return TR_OK;
}

double tr_lr(const tr_optimizer *optimizer)
{
    return optimizer && !tr__error_of(optimizer) ? optimizer->lr : 0;
}

/* ---- Saving and restoring ---------------------------------------------------------------------------------------- */

static tr_status add_named(tr_tensor_list *list, const char *name, const char *suffix, tr_tensor *t)
{
    char *full = NULL;
    if (asprintf(&full, "%s.%s", name, suffix) < 0) return tr__fail(TR_NO_MEMORY, "out of memory for names");
    tr_status status = tr_list_add(list, full, t);
    free(full);
    return status;
}

/* The state k of a part, [end - begin]. Where ranks share the work it is put together here, a copy. */
static tr_status whole_state(const tr_optimizer *o, const tr__optimizer_part *part, int k, tr_tensor **out)
{
    tr_tensor *own = part->state[k];
    *out = own;
    if (!o->gather) return TR_OK;
    *out = tr_empty(TR_SHAPE(part->end - part->begin), .dtype = own->dtype, .device = tr__device_of(own));
    TR__TRY(tr_status_of(*out));
    TR__TRY(tr_copy_into(tr_slice(*out, 0, part->from - part->begin, part->to - part->begin), own));
    return o->gather(o->sharing, part, *out);
}

/* For each part its states, whole: whole[part][k]. */
typedef tr_tensor *states[TR__STATES];

static tr_status whole_states(const tr_optimizer *o, states **whole)
{
    *whole = calloc((size_t)o->n_parts, sizeof **whole);
    tr_status status = *whole ? TR_OK : tr__fail(TR_NO_MEMORY, "%s: out of memory", o->rule->name);
    for (int i = 0; i < o->n_parts && status == TR_OK; i++)
        for (int k = 0; k < o->n_states && status == TR_OK; k++) status = whole_state(o, &o->parts[i], k, &(*whole)[i][k]);
    return tr__optimizer_tell(o, status);
}

static tr_status list_state(const tr_optimizer *o, states *whole, tr_tensor_list *state)
{
    for (int i = 0; i < o->count; i++) {
        const tr__optimized *p = &o->parameters[o->place[i]];
        const tr__optimizer_part *part = &o->parts[p->part];
        const char *name = tr_list_name(o->list, i);
        for (int k = 0; k < o->n_states; k++) {
            tr_tensor *flat = whole[p->part][k];
            tr_tensor *view = tr__tensor_view(flat, p->leaf->shape, NULL, flat->offset + p->offset - part->begin);
            TR__TRY(add_named(state, name, o->rule->state_names[k], view));
        }
        if (o->n_states == 0) continue;
        TR__TRY(add_named(state, name, "step", tr_from(&p->steps, TR_SCALAR, .dtype = TR_I64)));
    }
    return TR_OK;
}

tr_tensor_list *tr_optimizer_state_at(tr_optimizer *optimizer, const char *file, int line)
{
    TR__CALLED_AT(file, line);
    if (!optimizer) return tr__object_fail(&tr__list_type, TR_INVALID, "tr_optimizer_state: the optimizer is NULL");
    if (tr__error_of(optimizer)) return tr__object_pass(&tr__list_type, optimizer);
    tr_tensor_list *state = tr_list_new();
    TR_SCOPE;
    states *whole;
    tr_status status = whole_states(optimizer, &whole);
    if (status == TR_OK) status = list_state(optimizer, whole, state);
    free(whole);
    if (status != TR_OK) tr__object_break(state);
    return state;
}

/* In the list that list_state() makes, the step count of parameter i comes after its state tensors. */
static int step_at(const tr_optimizer *o, int i)
{
    return (o->n_states + 1) * (i + 1) - 1;
}

static tr_status load(tr_optimizer *o, states *whole, const tr_tensor_list *state)
{
    tr_tensor_list *own = tr_list_new();
    TR__TRY(list_state(o, whole, own));
    TR__TRY(tr__list_match("tr_optimizer_load", "the optimizer", own, state, NULL, NULL));
    if (o->n_states == 0) return TR_OK;
    for (int i = 0; i < o->count; i++) {
        const char *name = tr_list_name(own, step_at(o, i));
        double steps = tr_item(tr_list_find(state, name));
        if (!(steps >= 0 && steps <= 0x1p53))
            return tr__fail(TR_FORMAT, "tr_optimizer_load: nothing was changed, %s is %g", name, steps);
    }
    TR__TRY(tr__list_copy(own, state));
    for (int i = 0; o->gather && i < o->n_parts; i++) { /* this rank's shard of what was written to the whole states */
        const tr__optimizer_part *part = &o->parts[i];
        for (int k = 0; k < o->n_states; k++)
            TR__TRY(tr_copy_into(part->state[k], tr_slice(whole[i][k], 0, part->from - part->begin, part->to - part->begin)));
    }
    for (int i = 0; i < o->count; i++)
        o->parameters[o->place[i]].steps = (int64_t)tr_item(tr_list_at(own, step_at(o, i)));
    return TR_OK;
}

tr_status tr_optimizer_load_at(tr_optimizer *optimizer, const tr_tensor_list *state, const char *file, int line)
{
    TR__CALLED_AT(file, line);
    if (!optimizer) return tr__fail(TR_INVALID, "tr_optimizer_load: the optimizer is NULL");
    TR__TRY(tr_status_of(optimizer));
    TR_SCOPE;
    states *whole;
    tr_status status = whole_states(optimizer, &whole);
    if (status == TR_OK) status = load(optimizer, whole, state);
    free(whole);
    return status;
}
