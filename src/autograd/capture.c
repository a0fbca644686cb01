/*
 * Captured steps: which graph is for which inputs, when it is captured, and what a launch is told of the host's
 * state.
 *
 *   run 1        the function, op by op: what is made once (arenas, plans of kernels) is made
 *   run 2        the function, captured; the graph is launched
 *   run 3, …     copies of the inputs to the graph's own, new attributes for its live kernels, the launch
 *
 * What the function leaves on the host must be there after a launch, too: sources count the run, and leaves have the
 * gradients that they had at the end of the capture. Where a gradient was added to one that was there, the next
 * launch needs one, too.
 */
#include "autograd/capture.h"

#include "base/given.h"
#include "base/memory.h"
#include "base/profile.h"
#include "ops/node.h"
#include "tensor/kernel.h"

#include <trireme/autograd.h>

#include <stdlib.h>
#include <string.h>

/* A leaf whose gradient the function cleared, wrote or added to. */
typedef struct touched_leaf {
    tr_tensor *leaf;
    tr_tensor *grad; /* at the end of the capture, a reference */
    bool reads;      /* the first thing that happened depended on whether there was one */
    bool before, after; /* was there a gradient? */
} touched_leaf;

typedef struct known_source {
    tr__live_source source; /* with a reference to its object */
    uint64_t number, digest;
} known_source;

typedef struct kind_of_input {
    bool given;
    tr_shape shape;
    tr_dtype dtype;
} kind_of_input;

/* What is run with inputs of one kind. capture comes first: a thread's tr__capture is that of one of these. */
typedef struct variant {
    tr__capture capture; /* .graph NULL: there is none yet */
    struct variant *next;
    tr_device device;
    tr_dtype autocast;
    bool grad_mode;
    int n;
    kind_of_input *kinds;
    int called;          /* runs op by op */
    bool declined;       /* the device does not capture it, whenever it is asked */
    tr_tensor **inputs;  /* the graph's own, references; NULL where none is given, or there is no graph */
    tr_tensor *output;   /* the graph's own, a reference, or NULL */
    known_source *sources;
    int n_sources, n_leaves;
    size_t sources_room, leaves_room;
    touched_leaf *leaves;
} variant;

struct tr_captured_step {
    tr__object object;
    tr_step_function step;
    void *user;
    tr_device device;
    int warmup, graphs;
    variant *first; /* the latest used */
    int count;
    tr_captured_counts counts;
};

/* ---- Variants ---------------------------------------------------------------------------------------------------- */

/* The graph goes, with what it holds. */
static void drop_graph(variant *v)
{
    tr__capture_free(&v->capture);
    for (int i = 0; i < v->n; i++) {
        tr__unref(v->inputs[i]);
        v->inputs[i] = NULL;
    }
    tr__unref(v->output);
    v->output = NULL;
    for (int i = 0; i < v->n_sources; i++) tr__unref(v->sources[i].source.object);
    for (int i = 0; i < v->n_leaves; i++) {
        tr__unref(v->leaves[i].leaf);
        tr__unref(v->leaves[i].grad);
    }
    v->n_sources = v->n_leaves = 0;
}

static void free_variant(variant *v)
{
    if (!v) return;
    if (v->inputs) drop_graph(v);
    free(v->inputs);
    free(v->kinds);
    free(v->sources);
    free(v->leaves);
    free(v);
}

static kind_of_input kind_of(const tr_tensor *x)
{
    return x ? (kind_of_input){true, x->shape, x->dtype} : (kind_of_input){0};
}

static bool is_for(const variant *v, tr_device device, tr_tensor *const *inputs, int n)
{
    bool same = v->n == n && tr_device_equal(v->device, device) && v->autocast == tr_autocast() &&
        v->grad_mode == tr__grad_mode();
    for (int i = 0; i < n && same; i++) {
        kind_of_input kind = kind_of(inputs[i]);
        same = kind.given == v->kinds[i].given &&
            (!kind.given || (kind.dtype == v->kinds[i].dtype && tr__shape_equal(kind.shape, v->kinds[i].shape)));
    }
    return same;
}

static variant *new_variant(tr_device device, tr_tensor *const *inputs, int n)
{
    variant *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    v->kinds = calloc((size_t)n + 1, sizeof *v->kinds);
    v->inputs = calloc((size_t)n + 1, sizeof *v->inputs);
    if (!v->kinds || !v->inputs) {
        free_variant(v);
        return NULL;
    }
    v->device = device;
    v->autocast = tr_autocast();
    v->grad_mode = tr__grad_mode();
    v->n = n;
    for (int i = 0; i < n; i++) v->kinds[i] = kind_of(inputs[i]);
    return v;
}

/* The variant for these inputs, which becomes the first; of too many the one longest unused goes. NULL without
 * memory. */
static variant *find_variant(tr_captured_step *c, tr_device device, tr_tensor *const *inputs, int n)
{
    variant **at = &c->first;
    while (*at && !is_for(*at, device, inputs, n)) at = &(*at)->next;
    variant *v = *at;
    if (v) {
        *at = v->next;
    } else {
        v = new_variant(device, inputs, n);
        if (!v) return NULL;
        if (c->count == c->graphs) {
            for (at = &c->first; *at && (*at)->next;) at = &(*at)->next;
            free_variant(*at);
            *at = NULL;
        } else {
            c->count++;
        }
    }
    v->next = c->first;
    c->first = v;
    return v;
}

/* ---- While the function is captured ------------------------------------------------------------------------------ */

uint64_t tr__capture_source(const tr__live_source *source)
{
    variant *v = (variant *)(void *)tr__capture_now();
    if (!v) return 0;
    if (!tr__grow(&v->sources, (size_t)v->n_sources, &v->sources_room, sizeof *v->sources)) return 0;
    /* Process-wide: numbers, none of which is given twice, as attributes of an earlier capture may be met again. */
    static atomic_uint_least64_t last;
    known_source *known = &v->sources[v->n_sources++];
    *known = (known_source){.source = *source, .number = atomic_fetch_add(&last, 1) + 1};
    tr__ref(source->object);
    if (source->type->digest) known->digest = source->type->digest(source);
    return known->number;
}

static tr_status touch_leaf(tr__capture *capture, tr_tensor *leaf, bool reads)
{
    variant *v = (variant *)(void *)capture;
    for (int i = 0; i < v->n_leaves; i++)
        if (v->leaves[i].leaf == leaf) return TR_OK;
    if (!tr__grow(&v->leaves, (size_t)v->n_leaves, &v->leaves_room, sizeof *v->leaves))
        return tr__fail(TR_NO_MEMORY, "capture: out of memory");
    v->leaves[v->n_leaves++] = (touched_leaf){.leaf = tr__ref(leaf), .reads = reads, .before = leaf->leaf->has_grad};
    return TR_OK;
}

/* ---- Capturing --------------------------------------------------------------------------------------------------- */

/* The graph's own inputs, which each run is given by a copy. */
static tr_status make_inputs(variant *v)
{
    for (int i = 0; i < v->n; i++) {
        if (!v->kinds[i].given) continue;
        TR_SCOPE;
        tr_tensor *x = tr__tensor_new(v->kinds[i].shape, v->kinds[i].dtype, v->device);
        TR__TRY(tr_status_of(x));
        v->inputs[i] = tr_keep(x);
    }
    return TR_OK;
}

static tr_status call_function(const tr_captured_step *c, tr_tensor *const *inputs, int n, tr_tensor **output)
{
    uint64_t failures = tr__failures();
    *output = NULL;
    tr_status status = c->step(inputs, n, output, c->user);
    if (status != TR_OK) return tr__fail_unsaid(status, failures);
    return tr_status_of(*output);
}

/* What the function makes is released before the capture ends: its memory serves later parts of the graph. */
static tr_status call_captured(const tr_captured_step *c, variant *v)
{
    TR_SCOPE;
    tr_tensor *made;
    TR__TRY(call_function(c, v->inputs, v->n, &made));
    if (!made) return TR_OK;
    TR__TRY(tr__capture_check_device(tr__device_of(made)));
    tr_tensor *output = tr_detach(made);
    TR__TRY(tr_status_of(output));
    v->output = tr_keep(output);
    return TR_OK;
}

/* As if the function had not been called. */
static void take_back(variant *v)
{
    for (int i = 0; i < v->n_sources; i++)
        if (v->sources[i].source.type->count) v->sources[i].source.type->count(&v->sources[i].source, -1);
    for (int i = 0; i < v->n_leaves; i++) {
        tr__leaf *leaf = v->leaves[i].leaf->leaf;
        leaf->has_grad = v->leaves[i].before && leaf->grad;
    }
}

static tr_status capture(tr_captured_step *c, variant *v)
{
    TR__TRY(make_inputs(v));
    TR__TRY(tr_device_synchronize(v->device)); /* what ops have kept for later is of no use to the graph */
    TR__TRY(tr_device_trim(v->device));
    TR__TRY(tr__capture_begin(&v->capture, v->device));
    v->capture.leaf = touch_leaf;
    tr_status status = tr__capture_end(&v->capture, call_captured(c, v));
    if (status != TR_OK) {
        take_back(v);
        return tr__fail_context(status, "capture");
    }
    for (int i = 0; i < v->n_leaves; i++) {
        const tr__leaf *leaf = v->leaves[i].leaf->leaf;
        v->leaves[i].after = leaf->has_grad;
        v->leaves[i].grad = leaf->grad ? tr__ref(leaf->grad) : NULL;
    }
    return TR_OK;
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

/* Is all as the graph expects it? */
static bool holds(const variant *v)
{
    for (int i = 0; i < v->n_sources; i++) {
        const known_source *s = &v->sources[i];
        if (s->source.type->digest && s->source.type->digest(&s->source) != s->digest) return false;
    }
    for (int i = 0; i < v->n_leaves; i++) {
        const touched_leaf *t = &v->leaves[i];
        if (t->reads && t->leaf->leaf->has_grad != t->before) return false;
        if (t->before && t->reads && t->leaf->leaf->grad != t->grad) return false;
    }
    return true;
}

static const tr__live_source *source_of(const variant *v, uint64_t number)
{
    for (int i = 0; i < v->n_sources; i++)
        if (v->sources[i].number == number) return &v->sources[i].source;
    return NULL;
}

/* The sources count the run, and the live kernels get its attributes. */
static tr_status renew(variant *v)
{
    const tr__capture *capture = &v->capture;
    for (int i = 0; i < v->n_sources; i++)
        if (v->sources[i].source.type->count) v->sources[i].source.type->count(&v->sources[i].source, 1);
    for (int i = 0; i < capture->n_lives; i++) {
        const tr__live_kernel *live = &capture->lives[i];
        const tr__live_source *source = source_of(v, live->source);
        if (!source) return tr__fail(TR_INTERNAL, "capture: a kernel's source is gone");
        TR__TRY(source->type->renew(source, live->attrs));
        TR__TRY(capture->table->graph_set(v->device.index, capture->graph, live->number, live->attrs));
    }
    return TR_OK;
}

/* The gradients that the function would have left. */
static void leave_gradients(const variant *v)
{
    for (int i = 0; i < v->n_leaves; i++) {
        tr__leaf *leaf = v->leaves[i].leaf->leaf;
        leaf->has_grad = v->leaves[i].after;
        if (leaf->grad == v->leaves[i].grad) continue;
        tr__unref(leaf->grad);
        leaf->grad = v->leaves[i].grad ? tr__ref(v->leaves[i].grad) : NULL;
    }
}

/* A copy of the graph's output, which its next launch overwrites. */
static tr_status give_out(const variant *v, tr_tensor **output)
{
    if (!output || !v->output) return TR_OK;
    TR_NO_GRAD;
    tr_tensor *copy = tr__tensor_new(v->output->shape, v->output->dtype, v->device);
    TR__TRY(tr_status_of(copy));
    TR__TRY(tr_copy_into(copy, v->output));
    *output = copy;
    return TR_OK;
}

static tr_status launch(variant *v, tr_tensor *const *inputs, bool fresh, tr_tensor **output)
{
    if (!fresh) TR__TRY(renew(v)); /* a fresh one has been counted, and its kernels have their attributes */
    for (int i = 0; i < v->n; i++)
        if (inputs[i]) TR__TRY(tr_copy_into(v->inputs[i], inputs[i]));
    TR__TRY(v->capture.table->graph_launch(v->device.index, v->capture.graph));
    if (!fresh) leave_gradients(v);
    return give_out(v, output);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static tr_status check_inputs(const tr_captured_step *c, tr_tensor *const *inputs, int n, tr_device *device)
{
    const tr_tensor *first = NULL;
    *device = c->device;
    for (int i = 0; i < n; i++) {
        const tr_tensor *x = inputs[i];
        char a[16], b[16];
        if (!x) continue;
        TR__TRY(tr_status_of(x));
        if (x->requires_grad)
            return tr__fail(TR_INVALID, "captured_run: input %d requires a gradient, and would get none: tr_detach() it",
                i);
        if (!first) *device = tr__device_of(x);
        else if (!tr_device_equal(tr__device_of(x), tr__device_of(first)))
            return tr__fail(TR_DEVICE, "captured_run: input %d is on %s, and one before it on %s: move it with tr_to()",
                i, tr_device_name(tr__device_of(x), a), tr_device_name(tr__device_of(first), b));
        first = x;
    }
    return TR_OK;
}

static tr_status run_op_by_op(tr_captured_step *c, tr_tensor *const *inputs, int n, tr_tensor **output)
{
    TR_SCOPE;
    tr_tensor *made;
    TR__TRY(call_function(c, inputs, n, &made));
    c->counts.called++;
    if (!output || !made) return TR_OK;
    *output = tr_escape(tr_detach(made));
    return tr_status_of(*output);
}

tr_status tr_captured_run_n(tr_captured_step *c, tr_tensor **output, tr_tensor *const *inputs, int n)
{
    tr_device device;
    if (output) *output = NULL;
    if (!c) return tr__fail(TR_INVALID, "captured_run: it takes what tr_capture() made, not NULL");
    TR__TRY(tr_status_of(c));
    if (n < 0 || (n > 0 && !inputs)) return tr__fail(TR_INVALID, "captured_run: %d inputs at NULL", n);
    TR__TRY(check_inputs(c, inputs, n, &device));
    bool graphs = tr__capture_possible(device) && !tr__capture_now() && !tr__profiling() && !tr__checks_numbers() &&
        !tr__waits_for_kernels();
    if (!graphs) return run_op_by_op(c, inputs, n, output);
    variant *v = find_variant(c, device, inputs, n);
    if (!v) return tr__fail(TR_NO_MEMORY, "captured_run: out of memory");
    if (v->called < c->warmup || v->declined) {
        if (!v->declined) v->called++;
        return run_op_by_op(c, inputs, n, output);
    }
    if (v->capture.graph && !holds(v)) drop_graph(v);
    bool fresh = !v->capture.graph;
    tr_status status = fresh ? capture(c, v) : TR_OK;
    if (status != TR_OK) drop_graph(v);
    v->declined = status == TR_DECLINED;
    if (v->declined) return run_op_by_op(c, inputs, n, output);
    TR__TRY(status);
    TR__TRY(launch(v, inputs, fresh, output));
    if (fresh) c->counts.captured++;
    else c->counts.launched++;
    return TR_OK;
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static void destroy(void *self)
{
    tr_captured_step *c = self;
    while (c->first) {
        variant *gone = c->first;
        c->first = gone->next;
        free_variant(gone);
    }
}

static const tr__type captured_step_type = {"captured_step", sizeof(tr_captured_step), destroy};

tr_captured_step *tr_capture_with(const tr_capture_options *o)
{
    if (!o->step) return tr__object_fail(&captured_step_type, TR_INVALID, "capture: it takes a function, not NULL");
    if (o->warmup < 0 || o->graphs < 0)
        return tr__object_fail(&captured_step_type, TR_INVALID,
            "capture: warmup is %d and graphs %d: they must be at least 1", o->warmup, o->graphs);
    tr_captured_step *c = tr__object_new(&captured_step_type);
    if (tr__error_of(c)) return c;
    c->step = o->step;
    c->user = o->user;
    c->device = o->device;
    c->warmup = o->warmup ? o->warmup : 1;
    c->graphs = o->graphs ? o->graphs : 4;
    return c;
}

tr_status tr_captured_count(const tr_captured_step *c, tr_captured_counts *out)
{
    if (!c || !out)
        return tr__fail(TR_INVALID, "captured_count: it takes a captured step and room for its counts, not NULL");
    TR__TRY(tr_status_of(c));
    tr_captured_counts counts = c->counts;
    size_t theirs = out->size;
    memcpy(out, &counts, theirs < sizeof counts ? theirs : sizeof counts);
    out->size = theirs;
    return TR_OK;
}
