/*
 * DataParallel: one batch on several devices of a process (Krizhevsky 2014).
 *
 *   x [batch, …] -- shares of rows --> replica 0 on device 0 --> y0 \
 *                                  --> replica 1 on device 1 --> y1  joined: y [batch, …] on device 0
 *
 * Devices of the CPU reach each other's memory: shares are views, and replicas share the parameters. On other devices shares are
 * copied, and so are parameters that were written to since the forward before (mirror.h).
 *
 * Each replica records a graph of its own, from leaves of its own. In the caller's graph all of them are one node, whose
 * backward runs theirs. A node has few inputs and a module has many parameters, so those hang behind it in a chain: nodes
 * that take a few parameters each and hand on a token, which carries the order and no numbers. Their backwards add up what
 * the replicas' graphs have left.
 */
#include "autograd/engine.h"
#include "nn/module.h"
#include "ops/op.h"
#include "ops/segment.h"
#include "parallel/object_tensor.h"
#include "parallel/dist/rpc.h"
#include "parallel/mirror.h"
#include "parallel/workers.h"
#include "tensor/numbers.h"

#include <trireme/parallel.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    HOLDER, TOKEN, FIRST,         /* inputs of both ops: what holds the run, the token of those before, and then */
    MOST = TR_OP_MAX_INPUTS - FIRST, /* tensors of the module's inputs, or parameters */
};

typedef struct data_parallel {
    tr_module *inner;           /* the tree's reference */
    tr_tensor_list *parameters; /* kept */
    tr_device *devices;
    int count;
    tr__mirror **mirrors;       /* [count]; NULL: the device reaches the parameters' memory; else kept */
    tr__workers *workers;       /* kept */
} data_parallel;

typedef struct replica {
    tr_device device;
    int64_t begin, end;       /* rows of the batch */
    tr_module *module;        /* during the forward, whose scope has it */
    tr_tensor *inputs[MOST];  /* its share of them: leaves of its graph, kept */
    tr_tensor **leaves;       /* for each parameter, kept */
    tr_tensor *output;        /* kept */
    int64_t first_row, rows;  /* of the joined output */
} replica;

/* One forward: what its backward needs. */
typedef struct run {
    tr__object object;
    tr__workers *workers;         /* kept */
    tr_tensor_list *parameters; /* kept */
    unsigned *versions;         /* of the parameters' storages at the forward */
    int count, n_inputs;
    replica *replicas;
} run;

static void run_destroy(void *self)
{
    run *r = self;
    for (int i = 0; i < r->count && r->replicas; i++) {
        replica *p = &r->replicas[i];
        for (int k = 0; k < MOST; k++) tr__unref(p->inputs[k]);
        for (int k = 0; p->leaves && k < tr_list_count(r->parameters); k++) tr__unref(p->leaves[k]);
        tr__unref(p->output);
        free(p->leaves);
    }
    free(r->replicas);
    free(r->versions);
    tr__unref(r->parameters);
    tr__unref(r->workers);
}

static const tr__type run_type = {"data parallel run", sizeof(run), run_destroy};

static unsigned version_of(const run *r, int i)
{
    return tr__version(tr_list_at(r->parameters, i));
}

/* What the replicas do at the same time: a forward or a backward. */
typedef struct replica_job {
    tr_status (*work)(const struct replica_job *job, replica *p);
    run *run;
    tr_tensor *const *inputs; /* forward: of the whole batch, NULLs among them */
    tr_tensor *gradient;      /* backward: of the joined output, */
    bool retain, as_now;      /* as the backward that this is in */
} replica_job;

static tr_status in_replica(tr_status status, const replica *p, int member)
{
    if (status == TR_OK) return TR_OK;
    char name[16];
    return tr__fail_context(status, "data_parallel: replica %d on %s", member, tr_device_name(p->device, name));
}

static tr_status member_works(void *arg, int member)
{
    const replica_job *job = arg;
    replica *p = &job->run->replicas[member];
    return in_replica(job->work(job, p), p, member);
}

static tr_status run_job(replica_job *job)
{
    return tr__workers_run(job->run->workers, job->run->count, member_works, job);
}

/* Rows [begin, end) of x in place, outside the graph; as a tensor of device if that can use their memory. */
static tr_tensor *rows_for(const tr_tensor *x, int64_t begin, int64_t end, tr_device device)
{
    tr_shape shape = x->shape;
    shape.dim[0] = end - begin;
    tr_tensor *rows = tr__tensor_view(x, shape, x->stride, x->offset + begin * x->stride[0]);
    return !tr__bad(rows) && tr__one_memory(device, tr__device_of(x)) ? tr__tensor_on(rows, device) : rows;
}

/* The same rows, readable on device: copied there unless it can use x's memory. */
static tr_tensor *rows_on(const tr_tensor *x, int64_t begin, int64_t end, tr_device device)
{
    return tr_to(rows_for(x, begin, end, device), device);
}

/* ---- The replicas' backwards ------------------------------------------------------------------------------------------- */

static tr_status backward_of(const replica_job *job, replica *p)
{
    const run *r = job->run;
    /* What a backward that failed has left would count twice. */
    for (int i = 0; i < tr_list_count(r->parameters); i++) tr_clear_grad(p->leaves[i]);
    for (int i = 0; i < r->n_inputs; i++)
        if (p->inputs[i]) tr_clear_grad(p->inputs[i]);
    if (!p->output->requires_grad) return TR_OK;
    tr_tensor *gradient = rows_on(job->gradient, p->first_row, p->first_row + p->rows, p->device);
    TR__TRY(tr_status_of(gradient));
    if (p->output->shape.ndim == 0) gradient = tr_reshape(gradient, TR_SCALAR);
    return tr__backward_to_leaves(&(tr_backward_options){.size = sizeof(tr_backward_options), .root = p->output, .gradient = gradient,
        .retain_graph = job->retain}, job->as_now);
}

/* The gradient of input i: the replicas' shares, in their places. */
static tr_status input_gradient(run *r, int i, tr_shape shape, tr_tensor **out)
{
    const tr_tensor *like = r->replicas[0].inputs[i];
    tr_tensor *whole = *out = tr__tensor_new(shape, like->dtype, r->replicas[0].device);
    TR__TRY(tr_status_of(whole));
    for (int k = 0; k < r->count; k++) {
        const replica *p = &r->replicas[k];
        tr_tensor *place = rows_for(whole, p->begin, p->end, p->device), *share = tr_grad(p->inputs[i]);
        TR__TRY(tr_status_of(place));
        TR__TRY(share ? tr_copy_into(place, share) : tr_fill(place, 0));
    }
    return TR_OK;
}

static tr_tensor *new_token(tr_device device)
{
    return tr_zeros(TR_SCALAR, .device = device);
}

static tr_status join_backward(tr_backward_call *call)
{
    run *r = tr__object_of_tensor(call->inputs[HOLDER]);
    replica_job job = {.work = backward_of, .run = r, .gradient = call->grad_outputs[0], .retain = tr__retains(call),
        .as_now = tr__as_now(call)};
    for (int i = 0; i < tr_list_count(r->parameters) && !job.as_now; i++)
        if (r->versions[i] != version_of(r, i))
            return tr__fail(TR_STATE, "data_parallel: \"%s\" was written to after the forward, and backward needs it as it was",
                tr_list_name(r->parameters, i));
    TR__TRY(run_job(&job));
    for (int i = 0; i < r->n_inputs; i++)
        if (call->needs[FIRST + i])
            TR__TRY(input_gradient(r, i, tr__input_shape(call, FIRST + i), &call->grad_inputs[FIRST + i]));
    if (call->needs[TOKEN]) call->grad_inputs[TOKEN] = new_token(r->replicas[0].device);
    return TR_OK;
}

/* ---- Adding up the parameters' gradients -------------------------------------------------------------------------------- */

enum { BLOCK = 512, WORTH_THREADS = 1 << 16 /* elements */ };

/* Of a few parameters, from number `first` on: where their sums go. */
typedef struct sum_job {
    run *run;
    int first, n;
    tr_tensor *target[MOST]; /* NULL: no gradient arrived */
    bool accumulate[MOST];
} sum_job;

/* Elements [begin, end) of parameter i's gradient, in the order of the replicas. */
static void sum_range(const sum_job *job, int i, int64_t begin, int64_t end)
{
    tr_tensor *target = job->target[i];
    size_t size = tr_dtype_size(target->dtype);
    double sum[BLOCK], more[BLOCK];
    for (int64_t at = begin, n; at < end; at += n) {
        n = end - at < BLOCK ? end - at : BLOCK;
        char *to = (char *)tr__ptr(target) + (size_t)at * size;
        bool any = job->accumulate[i];
        if (any) tr__read_f64(sum, target->dtype, to, 1, n);
        for (int k = 0; k < job->run->count; k++) {
            const tr_tensor *share = tr_grad(job->run->replicas[k].leaves[job->first + i]);
            if (!share) continue;
            const char *from = (const char *)tr__ptr(share) + (size_t)at * size;
            tr__read_f64(any ? more : sum, target->dtype, from, 1, n);
            for (int64_t e = 0; any && e < n; e++) sum[e] += more[e];
            any = true;
        }
        tr__write_f64(target->dtype, to, 1, sum, n);
    }
}

static tr_status sum_member(void *arg, int member)
{
    const sum_job *job = arg;
    for (int i = 0; i < job->n; i++) {
        if (!job->target[i]) continue;
        int64_t n = tr__numel(job->target[i]->shape), count = job->run->count;
        sum_range(job, i, n * member / count, n * (member + 1) / count);
    }
    return TR_OK;
}

/* Parameter i's gradient, of replicas that do not reach each other's memory: their shares come to the first device, one after
 * the other. */
static tr_status sum_copies(const sum_job *job, int i)
{
    TR_SCOPE;
    TR_NO_GRAD;
    tr_tensor *target = job->target[i], *sum = job->accumulate[i] ? tr__widened(target) : NULL;
    for (int k = 0; k < job->run->count; k++) {
        tr_tensor *share = tr_grad(job->run->replicas[k].leaves[job->first + i]);
        if (!share) continue;
        share = tr__widened(tr_to(share, tr__device_of(target)));
        sum = sum ? tr_add(sum, share) : share;
    }
    return tr_copy_into(target, sum);
}

static tr_status sum_all(sum_job *job)
{
    bool copies = false;
    for (int k = 0; k < job->run->count; k++) copies |= job->run->replicas[k].device.kind != TR_CPU;
    if (copies) {
        for (int i = 0; i < job->n; i++)
            if (job->target[i]) TR__TRY(sum_copies(job, i));
        return TR_OK;
    }
    int64_t elements = 0;
    for (int i = 0; i < job->n; i++) elements += job->target[i] ? tr__numel(job->target[i]->shape) : 0;
    if (elements >= WORTH_THREADS) return tr__workers_run(job->run->workers, job->run->count, sum_member, job);
    for (int member = 0; member < job->run->count; member++) TR__TRY(sum_member(job, member));
    return TR_OK;
}

static bool any_gradient(const run *r, int i)
{
    for (int k = 0; k < r->count; k++)
        if (tr_grad(r->replicas[k].leaves[i])) return true;
    return false;
}

static tr_status parameters_backward(tr_backward_call *call)
{
    run *r = tr__object_of_tensor(call->inputs[HOLDER]);
    sum_job job = {.run = r, .first = *(const int *)call->attrs, .n = call->n_inputs - FIRST};
    for (int i = 0; i < job.n; i++) {
        if (!call->needs[FIRST + i] || !any_gradient(r, job.first + i)) continue;
        job.target[i] = tr__grad_target(call, FIRST + i, &job.accumulate[i]);
        TR__TRY(tr_status_of(job.target[i]));
        call->grad_inputs[FIRST + i] = job.target[i];
    }
    TR__TRY(sum_all(&job));
    for (int i = 0; i < job.n; i++)
        for (int k = 0; k < r->count; k++) tr_clear_grad(r->replicas[k].leaves[job.first + i]);
    if (call->needs[TOKEN]) call->grad_inputs[TOKEN] = new_token(r->replicas[0].device);
    return TR_OK;
}

/* ---- The nodes ---------------------------------------------------------------------------------------------------------- */

static tr_status parameters_infer(tr_op_call *call)
{
    return tr_op_output(call, 0, TR_SCALAR, TR_F32);
}

static tr_status parameters_forward(tr_op_call *call)
{
    return tr_fill(call->outputs[0], 0);
}

static const tr_op parameters_op = {
    .size = sizeof(tr_op),
    .name = "data_parallel_parameters",
    .attrs_size = sizeof(int),
    .infer = parameters_infer,
    .forward = parameters_forward,
    .backward = parameters_backward,
    .saves_inputs = 1u << HOLDER,
    .flags = TR__OP_ANYWHERE,
};

static tr_status join_infer(tr_op_call *call)
{
    run *r = tr__object_of_tensor(call->inputs[HOLDER]);
    const tr_tensor *first = r->replicas[0].output;
    tr_shape shape = first->shape.ndim ? first->shape : TR_SHAPE(1);
    shape.dim[0] = 0;
    for (int k = 0; k < r->count; k++) {
        replica *p = &r->replicas[k];
        const tr_tensor *y = p->output;
        tr_shape alike = y->shape; /* but for the rows */
        if (alike.ndim && first->shape.ndim) alike.dim[0] = first->shape.dim[0];
        if (!tr__shape_equal(alike, first->shape) || y->dtype != first->dtype)
            return tr__fail(TR_SHAPE, "data_parallel: outputs do not fit together: replica 0 gave %s %s and replica %d %s %s",
                tr_dtype_name(first->dtype), TR__TEXT(first->shape), k, tr_dtype_name(y->dtype), TR__TEXT(y->shape));
        p->first_row = shape.dim[0];
        p->rows = y->shape.ndim ? y->shape.dim[0] : 1;
        shape.dim[0] += p->rows;
    }
    return tr_op_output(call, 0, shape, first->dtype);
}

static tr_status join_forward(tr_op_call *call)
{
    run *r = tr__object_of_tensor(call->inputs[HOLDER]);
    for (int k = 0; k < r->count; k++) {
        const replica *p = &r->replicas[k];
        tr_tensor *place = rows_for(call->outputs[0], p->first_row, p->first_row + p->rows, p->device);
        TR__TRY(tr_status_of(place));
        TR__TRY(tr_copy_into(place, p->output));
    }
    return TR_OK;
}

static const tr_op join_op = {
    .size = sizeof(tr_op),
    .name = "data_parallel",
    .infer = join_infer,
    .forward = join_forward,
    .backward = join_backward,
    .saves_inputs = 1u << HOLDER,
    .flags = TR__OP_ANYWHERE,
};

/* Records the parameters, a few per node, whose last token leads to them all, and the inputs. */
static tr_tensor *join(run *r, tr_tensor *const *inputs, int n_inputs)
{
    tr_tensor *all[TR_OP_MAX_INPUTS] = {[HOLDER] = tr__object_tensor(r, r->replicas[0].device)};
    if (tr__bad(all[HOLDER])) return all[HOLDER];
    int parameters = tr_grad_enabled() ? tr_list_count(r->parameters) : 0;
    for (int first = 0, n; first < parameters; first += n) {
        tr_tensor *few[TR_OP_MAX_INPUTS] = {[HOLDER] = all[HOLDER], [TOKEN] = all[TOKEN]};
        for (n = 0; n < MOST && first + n < parameters; n++) few[FIRST + n] = tr_list_at(r->parameters, first + n);
        all[TOKEN] = tr_apply(&parameters_op, &first, few, FIRST + n, NULL);
    }
    for (int i = 0; i < n_inputs; i++) all[FIRST + i] = inputs[i];
    return tr_apply(&join_op, NULL, all, FIRST + n_inputs, NULL);
}

/* ---- The replicas' forwards ---------------------------------------------------------------------------------------------- */

static tr_status forward_of(const replica_job *job, replica *p)
{
    const run *r = job->run;
    for (int i = 0; i < r->n_inputs; i++) {
        const tr_tensor *x = job->inputs[i];
        if (!x) continue;
        tr_tensor *share = rows_on(x, p->begin, p->end, p->device);
        p->inputs[i] = tr_keep(x->requires_grad ? tr_require_grad(share) : share);
        TR__TRY(tr_status_of(share));
    }
    uint64_t before = tr__samples_before(0); /* the replica's own count has them */
    p->output = tr_keep(tr_forward_n(p->module, p->inputs, r->n_inputs));
    tr__samples_before(before);
    return tr_status_of(p->output);
}

static tr_status set_up_run(run *r, const data_parallel *d, int64_t rows, int n_inputs)
{
    int n = tr_list_count(d->parameters);
    r->workers = tr_keep(d->workers);
    r->parameters = tr_keep(d->parameters);
    r->n_inputs = n_inputs;
    r->count = rows < d->count ? (int)rows : d->count;
    r->replicas = calloc((size_t)r->count, sizeof *r->replicas);
    r->versions = calloc((size_t)n + 1, sizeof *r->versions);
    if (!r->replicas || !r->versions) return tr__fail(TR_NO_MEMORY, "data_parallel: out of memory");
    for (int i = 0; i < n; i++) r->versions[i] = version_of(r, i);
    for (int i = 0; i < r->count; i++) {
        replica *p = &r->replicas[i];
        *p = (replica){.device = d->devices[i], .begin = rows * i / r->count, .end = rows * (i + 1) / r->count};
        p->leaves = calloc((size_t)n + 1, sizeof(tr_tensor *));
        if (!p->leaves) return tr__fail(TR_NO_MEMORY, "data_parallel: out of memory");
    }
    return TR_OK;
}

static tr_status check_meets(tr__walk *walk, tr_module *module)
{
    if (tr__is_remote_module(module))
        return tr__fail(TR_UNSUPPORTED, "data_parallel: \"%s\" is a remote module: replicas would call it from threads that are in no "
            "distributed context; wrap what is in front of it and what is behind it", walk->path);
    if (!module->meets) return TR_OK;
    return tr__fail(TR_UNSUPPORTED, "data_parallel: \"%s\", a %s, calls other ranks in its forward: replicas would do so at the "
        "same time, in no order; give each rank one device", walk->path, module->name);
}

/* Replicas share a group, whose collectives go in one order. */
static tr_status check_alone(tr_module *module)
{
    return tr__module_walk(module, &(tr__walk){.module = check_meets});
}

/* Before the first of them runs: it may write to the buffers that the others copy. */
static tr_status make_replicas(run *r, const data_parallel *d)
{
    TR__TRY(check_alone(d->inner)); /* it may have become such since it was wrapped */
    for (int i = 0; i < r->count; i++) {
        replica *p = &r->replicas[i];
        if (d->mirrors[i]) TR__TRY(in_replica(tr__mirror_leaves(d->mirrors[i], p->leaves), p, i));
        p->module = tr__module_replica(d->inner, p->device, p->begin, r->parameters, p->leaves);
        TR__TRY(in_replica(tr_status_of(p->module), p, i));
    }
    return TR_OK;
}

/* Gives the inputs on the first device, and how many rows all of them have. */
static tr_status take_inputs(const data_parallel *d, tr_tensor *const *inputs, int n, tr_tensor **taken, int64_t *rows)
{
    if (n > MOST) return tr__fail(TR_INVALID, "data_parallel: it takes up to %d inputs, not %d", MOST, n);
    int first = -1;
    for (int i = 0; i < n; i++) {
        tr_tensor *x = inputs[i];
        taken[i] = x ? tr_to(x, d->devices[0]) : NULL;
        if (!x) continue;
        TR__TRY(tr_status_of(taken[i]));
        if (x->shape.ndim == 0) return tr__fail(TR_SHAPE, "data_parallel: input %d is a scalar: it has no rows to split", i);
        if (first < 0) first = i;
        if (x->shape.dim[0] != inputs[first]->shape.dim[0])
            return tr__fail(TR_SHAPE, "data_parallel: inputs %d and %d, %s and %s, have different numbers of rows", first, i,
                TR__TEXT(inputs[first]->shape), TR__TEXT(x->shape));
    }
    if (first < 0) return tr__fail(TR_INVALID, "data_parallel: it takes an input to split, not %s", n ? "NULL" : "none");
    *rows = inputs[first]->shape.dim[0];
    return TR_OK;
}

static tr_tensor *forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const data_parallel *d = self->state;
    tr_tensor *taken[MOST];
    int64_t rows = 0;
    if (take_inputs(d, inputs, n, taken, &rows) != TR_OK) return tr__tensor_failed();
    if (rows < 2 || d->count == 1) return tr_forward_n(d->inner, taken, n);
    if (tr__segment_runs()) {
        /* Recomputed, a stretch fills what it did not keep in the order in which it saves, in one thread: replica 0 would save
         * into the caller's stretch, the others keep all they have. */
        tr__fail(TR_UNSUPPORTED, "data_parallel: it runs in a stretch that is to be recomputed, which cannot go over several "
            "threads: set recompute on modules inside it");
        return tr__tensor_failed();
    }
    run *r = tr__object_new(&run_type);
    if (tr_status_of(r) != TR_OK || set_up_run(r, d, rows, n) != TR_OK) return tr__tensor_failed();
    if (make_replicas(r, d) != TR_OK) return tr__tensor_failed();
    if (run_job(&(replica_job){.work = forward_of, .run = r, .inputs = taken}) != TR_OK) return tr__tensor_failed();
    return join(r, taken, n);
}

/* ---- Building ------------------------------------------------------------------------------------------------------------ */

static void release(void *state)
{
    data_parallel *d = state;
    tr_release(d->parameters);
    tr_release(d->workers);
    for (int i = 0; d->mirrors && i < d->count; i++) tr_release(d->mirrors[i]);
    free(d->mirrors);
    free(d->devices);
}

static tr_status check_module(tr__walk *walk, tr_module *module)
{
    (void)walk;
    if (module->forward != forward) return TR_OK;
    return tr__fail(TR_UNSUPPORTED, "data_parallel: the module has one that is data_parallel already, at \"%s\"", walk->path);
}

/* The given devices, or the default ones. */
static tr_status list_devices(data_parallel *d, const tr_data_parallel_options *o, tr_device own)
{
    int all = tr_device_count(own.kind);
    if (o->count < 0 || (o->devices && o->count == 0))
        return tr__fail(TR_INVALID, "data_parallel: %d devices: at least 1", o->count);
    if (!o->devices && o->count > all)
        return tr__fail(TR_DEVICE, "data_parallel: %d devices: this process has %d of the module's kind%s", o->count, all,
            own.kind == TR_CPU ? " (TRIREME_CPU_DEVICES sets how many)" : "");
    d->count = o->count ? o->count : all;
    d->devices = calloc((size_t)d->count, sizeof *d->devices);
    if (!d->devices) return tr__fail(TR_NO_MEMORY, "data_parallel: out of memory");
    for (int i = 0; i < d->count; i++) {
        int place = i == 0 ? own.index : i <= own.index ? i - 1 : i;
        d->devices[i] = o->devices ? o->devices[i] : (tr_device){own.kind, place};
    }
    return TR_OK;
}

static tr_status check_devices(const data_parallel *d)
{
    char name[16], other[16];
    for (int i = 0; i < d->count; i++) {
        tr_status status = tr__device_check(d->devices[i]);
        if (status != TR_OK) return tr__fail_context(status, "data_parallel");
        for (int k = 0; k < i; k++)
            if (tr_device_equal(d->devices[i], d->devices[k]))
                return tr__fail(TR_INVALID, "data_parallel: %s is given twice", tr_device_name(d->devices[i], name));
    }
    for (int i = 0; i < tr_list_count(d->parameters); i++) {
        tr_device at = tr__device_of(tr_list_at(d->parameters, i));
        if (!tr_device_equal(at, d->devices[0]))
            return tr__fail(TR_DEVICE, "data_parallel: \"%s\" is on %s and the first device is %s: tr_module_to() moves the "
                "module there", tr_list_name(d->parameters, i), tr_device_name(at, name),
                tr_device_name(d->devices[0], other));
    }
    return TR_OK;
}

static tr_status make_mirrors(data_parallel *d)
{
    d->mirrors = calloc((size_t)d->count, sizeof *d->mirrors);
    if (!d->mirrors) return tr__fail(TR_NO_MEMORY, "data_parallel: out of memory");
    for (int i = 1; i < d->count; i++) {
        if (tr__one_memory(d->devices[i], d->devices[0])) continue;
        d->mirrors[i] = tr_keep(tr__mirror_new(d->parameters, d->devices[i]));
        TR__TRY(tr_status_of(d->mirrors[i]));
    }
    return TR_OK;
}

static tr_status build(data_parallel *d, const tr_data_parallel_options *o)
{
    TR__TRY(tr_status_of(o->module));
    if (!o->module) return tr__fail(TR_INVALID, "data_parallel: it takes a module, not NULL");
    TR__TRY(tr__module_walk(o->module, &(tr__walk){.module = check_module}));
    d->parameters = tr_keep(tr_parameters(o->module));
    TR__TRY(tr_status_of(d->parameters));
    tr_tensor *first = tr_list_at(d->parameters, 0);
    TR__TRY(list_devices(d, o, first ? tr__device_of(first) : tr_cpu(0)));
    TR__TRY(check_devices(d));
    if (d->count > 1) TR__TRY(check_alone(o->module));
    TR__TRY(make_mirrors(d));
    d->workers = tr_keep(tr__workers_new(d->count));
    return tr_status_of(d->workers);
}

tr_module *tr_data_parallel_with(const tr_data_parallel_options *options)
{
    tr_module *module = tr_module_new("data_parallel", sizeof(data_parallel), forward);
    if (tr_status_of(module) != TR_OK) return module;
    tr_module_on_release(module, release);
    data_parallel *d = module->state;
    TR_SCOPE;
    if (build(d, options) != TR_OK) {
        tr__object_break(module);
        return module;
    }
    d->inner = tr_module_add(module, "", options->module);
    return module;
}
