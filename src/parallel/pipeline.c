/*
 * Pipelines: a module in stages on devices or ranks, a batch in micro-batches that follow each other through them (Huang et al.,
 * GPipe, NeurIPS 2019; Narayanan et al., PipeDream, SOSP 2019).
 *
 *   x ── micro-batches ──> stage 0 ── activations ──> stage 1 ──> … ──> loss
 *                          stage 0 <── gradients ──── stage 1 <── … <──
 *
 * Each stage records a graph of its own per micro-batch, from a leaf that holds what came in to what goes out, and does its
 * actions in the order of its schedule; it waits for its neighbours only where it needs what they send.
 */
#include "autograd/engine.h"
#include "base/given.h"
#include "comm/group/agree.h"
#include "nn/module.h"
#include "parallel/workers.h"
#include "parallel/ddp.h"
#include "parallel/pipeline_link.h"
#include "parallel/pipeline_schedule.h"
#include "parallel/spread.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct stage {
    int index;                    /* among all stages */
    tr_module *module;            /* kept */
    tr_device device;
    tr__pipeline_action *actions; /* [2 * micro_batches] */
    tr_tensor **in, **out;        /* [micro_batches], kept, from forward to backward */
} stage;

struct tr_pipeline {
    tr__object object;
    stage *stages;      /* of this process */
    int count, total;   /* of them, and of all */
    int micro_batches;
    tr_pipeline_schedule schedule;
    tr_loss_function loss;
    void *user;
    tr_group *group;    /* kept; or NULL: all stages are here */
    bool compared;      /* the ranks' options: in the first step, which is the first call that all make */
    tr__workers *workers; /* kept; a member per stage */
    tr__link *link;     /* kept */
};

static void forget(stage *s, int micro)
{
    tr__unref(s->in[micro]);
    tr__unref(s->out[micro]);
    s->in[micro] = s->out[micro] = NULL;
}

static void destroy(void *self)
{
    tr_pipeline *p = self;
    for (int i = 0; i < p->count && p->stages; i++) {
        tr_release(p->stages[i].module);
        free(p->stages[i].actions);
        free(p->stages[i].in);
        free(p->stages[i].out);
    }
    free(p->stages);
    tr_release(p->workers);
    tr_release(p->link);
    tr_release(p->group);
}

static const tr__type pipeline_type = {"pipeline", sizeof(tr_pipeline), destroy};

/* ---- What a stage does ----------------------------------------------------------------------------------------------- */

typedef struct job {
    tr_pipeline *pipe;
    tr_tensor *x, *y; /* the batch, where it is needed */
    bool forward;     /* alone: the caller is under TR_NO_GRAD */
    double loss;      /* of the batch; written by the last stage */
} job;

static bool is_last(const tr_pipeline *p, const stage *s)
{
    return s->index == p->total - 1;
}

/* The micro-batch's rows of t, on the stage's device. */
static tr_tensor *rows_of(const job *j, const stage *s, tr_tensor *t, int micro)
{
    TR_NO_GRAD;
    int64_t rows = t->shape.dim[0] / j->pipe->micro_batches;
    return tr_to(tr_slice(tr_detach(t), 0, micro * rows, (micro + 1) * rows), s->device);
}

static tr_status take_input(const job *j, stage *s, int micro, tr_tensor **out)
{
    if (s->index == 0) {
        *out = rows_of(j, s, j->x, micro);
        return tr_status_of(*out);
    }
    TR_NO_GRAD;
    tr_tensor *came = NULL;
    TR__TRY(j->pipe->link->receive(j->pipe->link, s->index - 1, s->index, micro, s->device, &came));
    *out = tr_to(tr_detach(came), s->device);
    tr_release(came);
    return tr_status_of(tr_dtype_is_float((*out)->dtype) ? tr_require_grad(*out) : *out);
}

/* The micro-batch's part of the batch's mean loss. */
static tr_status take_loss(job *j, const stage *s, tr_tensor *y, int micro, tr_tensor **out)
{
    tr_pipeline *p = j->pipe;
    tr_tensor *target = j->y ? rows_of(j, s, j->y, micro) : NULL;
    TR__TRY(tr_status_of(target));
    tr_tensor *loss = p->loss(y, target, p->user);
    if (!loss) return tr__fail(TR_INVALID, "the loss function returned NULL");
    TR__TRY(tr_status_of(loss));
    if (tr__numel(loss->shape) != 1) return tr__fail(TR_SHAPE, "the loss is %s, not a scalar", TR__TEXT(loss->shape));
    *out = tr_affine(loss, 1.0 / p->micro_batches, 0);
    TR__TRY(tr_status_of(*out));
    j->loss += tr_item(*out);
    return TR_OK;
}

static tr_status do_forward(job *j, stage *s, int micro)
{
    tr_pipeline *p = j->pipe;
    tr_tensor *x = NULL;
    TR__TRY(take_input(j, s, micro, &x));
    s->in[micro] = tr_keep(x);
    /* Dropouts draw what they would draw for these rows in the whole batch. */
    uint64_t before = tr__samples_before(x->shape.ndim ? (uint64_t)x->shape.dim[0] * (uint64_t)micro : 0);
    tr_tensor *y = tr_forward(s->module, x);
    tr__samples_before(before);
    TR__TRY(tr_status_of(y));
    if (is_last(p, s))
        TR__TRY(take_loss(j, s, y, micro, &y));
    else
        TR__TRY(p->link->send(p->link, s->index, s->index + 1, micro, y));
    s->out[micro] = tr_keep(y);
    if (j->forward) forget(s, micro);
    return TR_OK;
}

/* The gradient of what went out: 1 for the loss; from the next stage, NULL where none has arrived there. */
static tr_status take_gradient(const job *j, const stage *s, int micro, tr_tensor **out)
{
    tr_pipeline *p = j->pipe;
    TR_NO_GRAD;
    if (is_last(p, s)) {
        const tr_tensor *loss = s->out[micro];
        *out = tr_ones(loss->shape, .dtype = loss->dtype, .device = s->device);
        return tr_status_of(*out);
    }
    tr_tensor *came = NULL;
    TR__TRY(p->link->receive(p->link, s->index + 1, s->index, micro, s->device, &came));
    *out = came ? tr_to(tr_detach(came), s->device) : NULL;
    tr_release(came);
    return tr_status_of(*out);
}

static tr_status do_backward(job *j, stage *s, int micro)
{
    tr_pipeline *p = j->pipe;
    tr_tensor *gradient = NULL;
    TR__TRY(take_gradient(j, s, micro, &gradient));
    if (gradient && s->out[micro]->requires_grad) TR__TRY(tr_backward(s->out[micro], .gradient = gradient));
    if (s->index > 0) TR__TRY(p->link->send(p->link, s->index, s->index - 1, micro, tr_grad(s->in[micro])));
    forget(s, micro);
    return TR_OK;
}

/* A stage's actions in their order. DDP exchanges gradients once: in the last backward. */
static tr_status member(void *arg, int number)
{
    job *j = arg;
    stage *s = &j->pipe->stages[number];
    int n = 2 * j->pipe->micro_batches;
    bool exchange = tr__ddp_exchange(s->module, false), was = tr_set_grad(!j->forward);
    tr_status status = TR_OK;
    for (int i = 0; i < n && status == TR_OK; i++) {
        TR_SCOPE;
        tr__pipeline_action a = s->actions[i];
        if (a.backward && j->forward) continue;
        if (i == n - 1) tr__ddp_exchange(s->module, exchange);
        status = a.backward ? do_backward(j, s, a.micro) : do_forward(j, s, a.micro);
        if (status == TR_OK) continue;
        char name[16];
        tr__fail_context(status, "pipeline: stage %d on %s, %s of micro-batch %d", s->index, tr_device_name(s->device, name),
            a.backward ? "backward" : "forward", a.micro);
    }
    tr__ddp_exchange(s->module, exchange);
    tr_set_grad(was);
    if (status != TR_OK) j->pipe->link->give_up(j->pipe->link);
    return status;
}

/* ---- A step ---------------------------------------------------------------------------------------------------------- */

static tr_status check_rows(const tr_pipeline *p, const char *name, const tr_tensor *t)
{
    TR__TRY(tr_status_of(t));
    int m = p->micro_batches;
    if (!t) return tr__fail(TR_INVALID, "pipeline: %s is NULL", name);
    if (t->shape.ndim == 0) return tr__fail(TR_SHAPE, "pipeline: %s is a scalar: it has no rows", name);
    int64_t rows = t->shape.dim[0], fits = m;
    if (rows > 0 && rows % m == 0) return TR_OK;
    while (rows > 0 && rows % fits) fits--;
    return tr__fail(TR_SHAPE, "pipeline: %d micro-batches do not divide the %" PRId64 " rows of %s%s%" PRId64 "%s", m, rows, name,
        rows ? ": " : "; a multiple of ", fits, rows ? " would" : " would do");
}

static tr_status check_batch(const tr_pipeline *p, const tr_tensor *x, const tr_tensor *y)
{
    bool first = p->stages[0].index == 0, last = is_last(p, &p->stages[p->count - 1]);
    if (first) TR__TRY(check_rows(p, "x", x));
    if (last && y) TR__TRY(check_rows(p, "y", y));
    if (!first || !last || !y || x->shape.dim[0] == y->shape.dim[0]) return TR_OK;
    return tr__fail(TR_SHAPE, "pipeline: x %s and y %s have different numbers of rows", TR__TEXT(x->shape), TR__TEXT(y->shape));
}

static tr_status check_stages(const tr_pipeline *p)
{
    for (int i = 0; i < p->count; i++) {
        TR_SCOPE;
        TR__TRY(tr__gradients_stay("pipeline", tr_parameters(p->stages[i].module), "gradients of all micro-batches are added up"));
    }
    return TR_OK;
}

/* A rank that expects another number of micro-batches would wait for what nobody sends; and the others for one whose pipeline could
 * not be made. */
static tr_status compare_options(tr_pipeline *p, tr_status own)
{
    if (!p->group || p->compared) return own;
    tr__facts facts = {0};
    tr__facts_say(&facts, "micro_batches", "%d", p->micro_batches);
    tr__facts_say(&facts, "schedule", "%s", p->schedule == TR_GPIPE ? "GPipe" : "1F1B");
    TR__TRY(tr__agree_once(p->group, "pipeline", own, &facts));
    p->compared = true;
    return TR_OK;
}

tr_status tr_pipeline_step_at(tr_pipeline *pipe, tr_tensor *x, tr_tensor *y, double *loss, const char *file, int line)
{
    TR__CALLED_AT(file, line);
    if (!pipe) return tr__fail(TR_INVALID, "pipeline: it is NULL");
    TR__TRY(compare_options(pipe, tr_status_of(pipe)));
    job j = {.pipe = pipe, .x = x, .y = y, .forward = !tr_grad_enabled()};
    pipe->link->forward = j.forward;
    tr_status status = check_batch(pipe, x, y);
    if (status == TR_OK) status = check_stages(pipe);
    if (status == TR_OK) status = tr__workers_run(pipe->workers, pipe->count, member, &j);
    if (status != TR_OK && pipe->group) pipe->link->give_up(pipe->link); /* other ranks have begun the step */
    for (int i = 0; i < pipe->count; i++)
        for (int m = 0; m < pipe->micro_batches; m++) forget(&pipe->stages[i], m);
    TR__TRY(pipe->link->end(pipe->link, status));
    if (pipe->group) TR__TRY(tr_broadcast(pipe->group, &j.loss, 1, .dtype = TR_F64, .root = pipe->total - 1));
    if (loss) *loss = j.loss;
    return TR_OK;
}

/* ---- Building -------------------------------------------------------------------------------------------------------- */

/* All of a stage lies on one device; one without tensors goes where the stage before it is. */
static tr_status find_device(stage *s, const tr_tensor_list *state, tr_device before)
{
    s->device = before;
    for (int i = 0; i < tr_list_count(state); i++) {
        tr_device at = tr__device_of(tr_list_at(state, i));
        char a[16], b[16];
        if (i > 0 && !tr_device_equal(at, s->device))
            return tr__fail(TR_DEVICE, "pipeline: stage %d has \"%s\" on %s and \"%s\" on %s: a stage lies on one device", s->index,
                tr_list_name(state, 0), tr_device_name(s->device, a), tr_list_name(state, i), tr_device_name(at, b));
        s->device = at;
    }
    return TR_OK;
}

/* Stages work at the same time: what two have would get the gradients of both at once. */
static tr_status check_untied(const tr_pipeline *p, const stage *s, const tr_tensor_list *state)
{
    for (int i = 0; i < s->index && p->count > 1; i++) {
        const tr_tensor_list *other = tr_state_dict(p->stages[i].module);
        for (int k = 0; k < tr_list_count(state); k++)
            for (int l = 0; l < tr_list_count(other); l++)
                if (tr_list_at(state, k) == tr_list_at(other, l))
                    return tr__fail(TR_INVALID, "pipeline: stages %d and %d share \"%s\": put it into one of them", i, s->index,
                        tr_list_name(state, k));
    }
    return TR_OK;
}

/* Looks for a group among the modules of a stage. */
typedef struct search {
    const tr_pipeline *pipe;
    int stage;
    const void *group;
    bool found;
} search;

static const void *group_of(const tr_module *module)
{
    return module->meets ? module->meets : tr__ddp_group(module);
}

static tr_status note_group(tr__walk *walk, tr_module *module)
{
    search *s = walk->user;
    s->found |= group_of(module) == s->group;
    return TR_OK;
}

static tr_status check_group(tr__walk *walk, tr_module *module)
{
    search *s = walk->user;
    s->group = group_of(module);
    for (int i = 0; i < s->stage && s->group; i++) {
        TR__TRY(tr__module_walk(s->pipe->stages[i].module, &(tr__walk){.module = note_group, .user = s}));
        if (s->found)
            return tr__fail(TR_UNSUPPORTED, "pipeline: stages %d and %d talk to other ranks over one group, where their threads' "
                "calls would have no order: give each a group of its own, with tr_group_split()", i, s->stage);
    }
    return TR_OK;
}

static tr_status add_stage(tr_pipeline *p, tr_module *module, int index, tr_pipeline_schedule schedule)
{
    size_t m = (size_t)p->micro_batches;
    stage *s = &p->stages[p->count];
    tr_device before = p->count ? p->stages[p->count - 1].device : tr_cpu(0);
    *s = (stage){.index = index, .module = tr_keep(module)};
    p->count++;
    if (!module) return tr__fail(TR_INVALID, "pipeline: stage %d is NULL", index);
    tr_tensor_list *state = tr_state_dict(module);
    TR__TRY(tr_status_of(state));
    TR__TRY(find_device(s, state, before));
    TR__TRY(check_untied(p, s, state));
    /* Stages work at the same time, and a group's calls go in one order on all ranks. */
    search own = {.pipe = p, .stage = p->count - 1};
    TR__TRY(tr__module_walk(module, &(tr__walk){.module = check_group, .user = &own}));
    /* Over a group the other ranks have the rest of the model: what is told of its gradients is summed over the stages. */
    tr_tensor_list *parameters = tr_parameters(module);
    TR__TRY(tr_status_of(parameters));
    for (int i = 0; p->group && i < tr_list_count(parameters); i++)
        TR__TRY(tr__spread_over(&tr_list_at(parameters, i)->leaf->stages, p->group));
    s->actions = calloc(2 * m, sizeof *s->actions);
    s->in = calloc(m, sizeof(tr_tensor *));
    s->out = calloc(m, sizeof(tr_tensor *));
    if (!s->actions || !s->in || !s->out) return tr__fail(TR_NO_MEMORY, "pipeline: out of memory");
    tr__pipeline_schedule(schedule, index, p->total, p->micro_batches, s->actions);
    return TR_OK;
}

static tr_status check_options(const tr_pipeline_options *o)
{
    if (!o->stages || o->count < 1) return tr__fail(TR_INVALID, "pipeline: %d stages: at least 1", o->stages ? o->count : 0);
    if (o->group && o->count != 1)
        return tr__fail(TR_INVALID, "pipeline: over a group each rank gives its one stage, not %d", o->count);
    if (o->schedule != TR_1F1B && o->schedule != TR_GPIPE)
        return tr__fail(TR_INVALID, "pipeline: no schedule %d: TR_1F1B or TR_GPIPE", (int)o->schedule);
    if (!o->loss && (!o->group || tr_rank(o->group) == tr_world_size(o->group) - 1))
        return tr__fail(TR_INVALID, "pipeline: the last stage needs a .loss");
    return TR_OK;
}

static tr_status build(tr_pipeline *p, const tr_pipeline_options *o)
{
    TR__TRY(tr_status_of(o->group));
    p->group = tr_keep(o->group);
    TR__TRY(check_options(o));
    p->loss = o->loss;
    p->user = o->user;
    p->schedule = o->schedule;
    p->total = o->group ? tr_world_size(o->group) : o->count;
    p->micro_batches = TR__OR(o, micro_batches, 4);
    if (p->micro_batches < 1) return tr__fail(TR_INVALID, "pipeline: %d micro-batches: at least 1", p->micro_batches);
    p->stages = calloc((size_t)o->count, sizeof *p->stages);
    if (!p->stages) return tr__fail(TR_NO_MEMORY, "pipeline: out of memory");
    for (int i = 0; i < o->count; i++)
        TR__TRY(add_stage(p, o->stages[i], o->group ? tr_rank(o->group) : i, o->schedule));
    p->link = tr_keep(o->group ? tr__link_ranks(o->group) : tr__link_threads(p->total, p->micro_batches));
    TR__TRY(tr_status_of(p->link));
    p->workers = tr_keep(tr__workers_new(p->count));
    return tr_status_of(p->workers);
}

tr_pipeline *tr_pipeline_new_with(const tr_pipeline_options *options)
{
    tr_pipeline *p = tr__object_new(&pipeline_type);
    if (p->object.error) return p;
    TR_SCOPE;
    if (build(p, options) != TR_OK) tr__object_break(p);
    return p;
}
