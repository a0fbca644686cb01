#include "ops/segment.h"

#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot {
    tr_shape shape;
    tr_dtype dtype;
    bool released;  /* by its node */
    tr__saved kept; /* empty until f has run again */
} slot;

/* An input of f: its value, and where its gradient goes. */
typedef struct input {
    bool given;
    tr__saved value;
    tr__edge edge;
} input;

/* A leaf that f's ops read, saved or not: it must be unchanged when f runs again. */
typedef struct noted_leaf {
    tr_tensor *leaf;
    tr__saved kept; /* its elements and their version at the forward */
} noted_leaf;

/* A call of a TR__OP_JOINT op in f, whatever graph it is in. */
typedef struct joint_call {
    const tr_op *op;
    void *attrs;
} joint_call;

struct tr__recompute_segment {
    atomic_int refs;
    uint64_t number;
    pthread_mutex_t lock; /* of the slots: backwards on several threads may share a graph */
    tr__segment_code code; /* with a reference to what it holds */
    tr_dtype autocast;
    int n_inputs;
    input *inputs;
    slot *slots;
    int n_slots;
    size_t slot_room;
    bool filled;
    noted_leaf *leaves;
    int n_leaves;
    size_t leaf_room;
    joint_call *joint_calls;
    int n_joint_calls;
    size_t joint_call_room;
    char *draws; /* attributes of random ops, each in a multiple of 16 bytes */
    size_t draws_size;
};

/* A run of f on this thread. */
typedef struct tr__segment_running {
    tr__recompute_segment *segment;
    bool replay;
    int next_slot;
    size_t next_draw;
    struct tr__segment_running *outer;
} run;

static atomic_uint_fast64_t next_number = 1;
static _Thread_local run *running __attribute__((tls_model("initial-exec")));
static _Thread_local bool replays_elsewhere;

static void drop_leaves(tr__recompute_segment *s)
{
    for (int i = 0; i < s->n_leaves; i++) {
        tr__saved_drop_tensor(&s->leaves[i].kept);
        tr__unref(s->leaves[i].leaf);
    }
    s->n_leaves = 0;
}

/* ---- Making and freeing --------------------------------------------------------------------------------------------------- */

static void drop_segment(tr__recompute_segment *s, tr__node **unreferenced)
{
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    for (int i = 0; i < s->n_inputs; i++) {
        tr__saved_release(&s->inputs[i].value, unreferenced);
        tr__node_drop(s->inputs[i].edge.node, unreferenced);
        tr__unref(s->inputs[i].edge.leaf);
    }
    drop_leaves(s);
    tr__unref(s->code.held);
    pthread_mutex_destroy(&s->lock);
    free(s->inputs);
    free(s->slots);
    free(s->leaves);
    for (int i = 0; i < s->n_joint_calls; i++) free(s->joint_calls[i].attrs);
    free(s->joint_calls);
    free(s->draws);
    free(s);
}

/* Saves an input as a node would: by recomputing it, or in the segment around this one. */
static tr_status keep_input(input *in, tr_tensor *x)
{
    if (!x) return TR_OK;
    in->given = true;
    if (x->requires_grad) in->edge = tr__edge_keep(tr__edge_to(x));
    return tr__saved_set(&in->value, x, true);
}

static tr__recompute_segment *new_segment(tr__segment_code code, tr_tensor *const *inputs, int n)
{
    tr__recompute_segment *s = calloc(1, sizeof *s);
    input *room = calloc((size_t)n + 1, sizeof *room);
    if (!s || !room) {
        free(s);
        free(room);
        tr__fail(TR_NO_MEMORY, "checkpoint: out of memory");
        return NULL;
    }
    *s = (tr__recompute_segment){.code = code, .inputs = room, .n_inputs = n, .autocast = tr_autocast()};
    tr__ref(code.held);
    atomic_init(&s->refs, 1);
    s->number = atomic_fetch_add_explicit(&next_number, 1, memory_order_relaxed);
    pthread_mutex_init(&s->lock, NULL);
    tr_status status = TR_OK;
    for (int i = 0; i < n && status == TR_OK; i++) status = keep_input(&s->inputs[i], inputs[i]);
    if (status == TR_OK) return s;
    tr__node *unreferenced = NULL;
    drop_segment(s, &unreferenced);
    tr__nodes_free(unreferenced);
    return NULL;
}

static tr_status call(const tr__segment_code *f, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    if (f->many) return f->many(inputs, n, f->user, outputs);
    outputs[0] = f->one(inputs, n, f->user);
    return tr_status_of(outputs[0]);
}

static tr_status run_recorded(tr__segment_code f, tr_tensor *const *inputs, int n, tr_tensor **outputs, int n_outputs)
{
    tr__recompute_segment *s = new_segment(f, inputs, n);
    if (!s) {
        for (int i = 0; i < n_outputs; i++) outputs[i] = tr__tensor_failed();
        return tr_status_of(outputs[0]);
    }
    run r = {.segment = s, .outer = running};
    running = &r;
    tr_status status = call(&f, inputs, n, outputs);
    running = r.outer;
    tr__node *unreferenced = NULL;
    drop_segment(s, &unreferenced); /* the nodes have it */
    tr__nodes_free(unreferenced);
    return status;
}

tr_status tr__segment_run(tr__segment_code f, tr_tensor *const *inputs, int n, tr_tensor **outputs, int n_outputs)
{
    TR_SCOPE;
    tr_status status = tr__grad_mode() ? run_recorded(f, inputs, n, outputs, n_outputs) : call(&f, inputs, n, outputs);
    for (int i = 0; i < n_outputs; i++) outputs[i] = tr_escape(outputs[i]);
    return status;
}

bool tr__segment_runs(void)
{
    return running;
}

tr__segment_state tr__segment_switch(tr__segment_state to)
{
    tr__segment_state before = {running, replays_elsewhere};
    running = to.running;
    replays_elsewhere = to.replays;
    return before;
}

bool tr__segment_replays(void)
{
    if (replays_elsewhere) return true;
    for (const run *r = running; r; r = r->outer)
        if (r->replay) return true;
    return false;
}

/* ---- Leaves -------------------------------------------------------------------------------------------------------------- */

static tr_status note_leaf(tr__recompute_segment *s, tr_tensor *leaf)
{
    for (int i = s->n_leaves - 1; i >= 0; i--)
        if (s->leaves[i].leaf == leaf) return TR_OK;
    if (!tr__grow(&s->leaves, (size_t)s->n_leaves, &s->leaf_room, sizeof *s->leaves))
        return tr__fail(TR_NO_MEMORY, "checkpoint: out of memory");
    noted_leaf *noted = &s->leaves[s->n_leaves++];
    *noted = (noted_leaf){.leaf = tr__ref(leaf)};
    return tr__saved_keep(&noted->kept, leaf);
}

tr_status tr__segment_note(tr_tensor *leaf)
{
    for (const run *r = running; r; r = r->outer)
        if (!r->replay) TR__TRY(note_leaf(r->segment, leaf));
    return TR_OK;
}

/* ---- Joint calls --------------------------------------------------------------------------------------------------------- */

static tr_status note_joint(tr__recompute_segment *s, const tr_op_call *call)
{
    size_t bytes = call->op->attrs_size;
    void *attrs = malloc(bytes);
    if (!attrs || !tr__grow(&s->joint_calls, (size_t)s->n_joint_calls, &s->joint_call_room, sizeof *s->joint_calls)) {
        free(attrs);
        return tr__fail(TR_NO_MEMORY, "checkpoint: out of memory");
    }
    s->joint_calls[s->n_joint_calls++] = (joint_call){call->op, memcpy(attrs, call->attrs, bytes)};
    return TR_OK;
}

tr_status tr__segment_note_joint(const tr_op_call *call)
{
    for (const run *r = running; r; r = r->outer)
        if (!r->replay) TR__TRY(note_joint(r->segment, call));
    return TR_OK;
}

void tr__segment_tell(tr__recompute_segment *s)
{
    pthread_mutex_lock(&s->lock);
    bool filled = s->filled;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_joint_calls && !filled; i++) {
        const joint_call *call = &s->joint_calls[i];
        (void)!call->op->backward(&(tr_backward_call){.op = call->op, .attrs = call->attrs, .n_inputs = 1});
    }
    for (int i = 0; i < s->n_inputs && !filled; i++)
        if (s->inputs[i].value.segment) tr__segment_tell(s->inputs[i].value.segment);
}

/* ---- Slots --------------------------------------------------------------------------------------------------------------- */

static tr_status add_slot(tr__recompute_segment *s, const tr_tensor *t)
{
    if (!tr__grow(&s->slots, (size_t)s->n_slots, &s->slot_room, sizeof *s->slots))
        return tr__fail(TR_NO_MEMORY, "checkpoint: out of memory");
    s->slots[s->n_slots++] = (slot){.shape = t->shape, .dtype = t->dtype};
    return TR_OK;
}

static tr_status fill_slot(run *r, const tr_tensor *t)
{
    int k = r->next_slot++;
    if (k >= r->segment->n_slots)
        return tr__fail(TR_STATE, "checkpoint: computed again, the function saves more than the %d tensors that it saved first; "
            "it must do the same both times", r->segment->n_slots);
    slot *s = &r->segment->slots[k];
    if (!tr__shape_equal(s->shape, t->shape) || s->dtype != t->dtype)
        return tr__fail(TR_STATE, "checkpoint: computed again, the function saves %s %s where it saved %s %s first; it must do "
            "the same both times", tr_dtype_name(t->dtype), TR__TEXT(t->shape), tr_dtype_name(s->dtype), TR__TEXT(s->shape));
    return s->released ? TR_OK : tr__saved_keep(&s->kept, t);
}

bool tr__segment_saves(tr__saved *saved, const tr_tensor *t, tr_status *status)
{
    run *r = running;
    if (!r) return false;
    if (r->replay) {
        *status = fill_slot(r, t); /* for the nodes of the forward; this one is discarded */
        return true;
    }
    *status = add_slot(r->segment, t);
    if (*status != TR_OK) return true;
    atomic_fetch_add_explicit(&r->segment->refs, 1, memory_order_relaxed);
    saved->segment = r->segment;
    saved->output = r->segment->n_slots - 1;
    return true;
}

uint64_t tr__segment_number(void)
{
    return running ? running->segment->number : 0;
}

void tr__segment_release(tr__saved *saved, tr__node **unreferenced)
{
    tr__recompute_segment *s = saved->segment;
    pthread_mutex_lock(&s->lock);
    slot *mine = &s->slots[saved->output];
    tr__saved kept = mine->kept;
    mine->kept = (tr__saved){0};
    mine->released = true;
    pthread_mutex_unlock(&s->lock);
    tr__saved_drop_tensor(&kept);
    drop_segment(s, unreferenced);
}

/* ---- Recomputing ------------------------------------------------------------------------------------------------------- */

/* An input as f got it: with its node, so that f saves the same tensors as in its first run. */
static tr_tensor *input_again(const input *in, bool as_now)
{
    if (!in->given) return NULL;
    if (in->edge.leaf) {
        tr__scope_ref(in->edge.leaf);
        return in->edge.leaf;
    }
    tr_tensor *value = tr__saved_get(&in->value, as_now);
    if (tr__bad(value)) {
        tr__unref(value);
        return tr__tensor_failed();
    }
    tr_tensor *x = tr__tensor_view(value, value->shape, value->stride, value->offset);
    tr__unref(value);
    if (tr__bad(x) || !in->edge.node) return x;
    x->node = tr__node_keep(in->edge.node);
    x->output = in->edge.output;
    x->requires_grad = true;
    return x;
}

static tr_status run_again(tr__recompute_segment *s, tr_tensor **inputs, bool as_now)
{
    /* f reads a leaf itself, not what was saved: an optimizer may have moved it into an arena, with its version. */
    for (int i = 0; i < s->n_leaves && !as_now; i++) {
        const tr_tensor *leaf = s->leaves[i].leaf;
        if (tr__version(leaf) == s->leaves[i].kept.version) continue;
        return tr__fail(TR_STATE, "checkpoint: a tensor %s that the function reads again was written to after the "
            "forward", TR__TEXT(leaf->shape));
    }
    for (int i = 0; i < s->n_inputs; i++) {
        inputs[i] = input_again(&s->inputs[i], as_now);
        TR__TRY(tr_status_of(inputs[i]));
    }
    run r = {.segment = s, .replay = true}, *outer = running;
    bool grad = tr__grad_mode_set(true);
    tr_dtype autocast = tr_set_autocast(s->autocast);
    running = &r;
    tr_tensor *outputs[TR__SEGMENT_OUTPUTS] = {NULL};
    tr_status status = call(&s->code, inputs, s->n_inputs, outputs);
    running = outer;
    tr__grad_mode_set(grad);
    tr_set_autocast(autocast);
    for (int i = 0; i < TR__SEGMENT_OUTPUTS && status == TR_OK; i++) status = outputs[i] ? tr_status_of(outputs[i]) : TR_OK;
    if (status == TR_OK && r.next_slot < s->n_slots)
        return tr__fail(TR_STATE, "checkpoint: computed again, the function saves %d tensors, not the %d that it saved first; it "
            "must do the same both times", r.next_slot, s->n_slots);
    return status;
}

static tr_status fill(tr__recompute_segment *s, bool as_now)
{
    TR_SCOPE;
    tr_tensor **inputs = calloc((size_t)s->n_inputs + 1, sizeof *inputs);
    if (!inputs) return tr__fail(TR_NO_MEMORY, "checkpoint: out of memory");
    tr_status status = run_again(s, inputs, as_now);
    free(inputs);
    s->filled = status == TR_OK;
    for (int k = 0; k < s->n_slots && !s->filled; k++) {
        tr__saved_drop_tensor(&s->slots[k].kept);
        s->slots[k].kept = (tr__saved){0};
    }
    if (s->filled) drop_leaves(s); /* f does not run again: its leaves may be written to now */
    return status;
}

tr_tensor *tr__segment_get(const tr__saved *saved, bool as_now)
{
    tr__recompute_segment *s = saved->segment;
    pthread_mutex_lock(&s->lock);
    tr_status status = s->filled ? TR_OK : fill(s, as_now);
    tr_tensor *t = NULL;
    if (status == TR_OK) t = tr__saved_get(&s->slots[saved->output].kept, as_now);
    pthread_mutex_unlock(&s->lock);
    if (t) return t;
    TR_SCOPE;
    return tr_keep(tr__tensor_failed());
}

/* ---- Random numbers ---------------------------------------------------------------------------------------------------------- */

static const void *draw(run *r, const void *attrs, size_t size)
{
    if (!r || !attrs) return attrs;
    tr__recompute_segment *s = r->segment;
    size_t room = (size + 15) / 16 * 16;
    if (r->replay) {
        const char *own = s->draws + r->next_draw;
        if (r->next_draw + room > s->draws_size) return attrs; /* f does other things this time: its slots will not match */
        r->next_draw += room;
        return own;
    }
    attrs = draw(r->outer, attrs, size); /* an outer segment that runs again decides */
    char *draws = realloc(s->draws, s->draws_size + room);
    if (!draws) {
        tr__fail(TR_NO_MEMORY, "checkpoint: out of memory");
        return NULL;
    }
    memcpy(draws + s->draws_size, attrs, size);
    s->draws = draws;
    s->draws_size += room;
    return attrs;
}

const void *tr__segment_draw(const void *attrs, size_t size)
{
    return running ? draw(running, attrs, size) : attrs;
}
