/* The engine: order, accumulation, hooks, errors, saved tensors, arenas. */
#include "autograd/arena.h"
#include "autograd/engine.h"

#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tr_tensor *leaf(double value)
{
    return tr_full(value, TR_SHAPE(3), .dtype = TR_F64, .requires_grad = true);
}

static double grad_at(const tr_tensor *t, int64_t i)
{
    TR_SCOPE;
    return tr_grad(t) ? tr_item(tr_slice(tr_reshape(tr_grad(t), TR_SHAPE(-1)), 0, i, i + 1)) : (double)NAN;
}

static void a_tensor_that_is_used_often_gets_every_share(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = leaf(3);
    tr_tensor *y = tr_mul(x, x);                       /* x^2 */
    tr_tensor *z = tr_add(tr_mul(y, x), tr_add(x, y)); /* x^3 + x + x^2 */
    assert_int_equal(tr_backward(tr_sum(z)), TR_OK);
    assert_true(grad_at(x, 0) == 3 * 9 + 1 + 6);
}

static void gradients_accumulate_until_they_are_cleared(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = leaf(1);
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(tr_backward(tr_sum(tr_affine(x, 2, 0))), TR_OK);
        assert_true(grad_at(x, 2) == 2 * i);
    }
    tr_clear_grad(x);
    assert_null(tr_grad(x));
    /* The root itself a leaf; a gradient given. */
    assert_int_equal(tr_backward(x, .gradient = tr_full(5, TR_SHAPE(3), .dtype = TR_F64)), TR_OK);
    assert_true(grad_at(x, 1) == 5);
}

static void a_gradient_is_not_shared_between_leaves(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *a = leaf(1), *b = leaf(2);
    assert_int_equal(tr_backward(tr_sum(tr_add(a, b))), TR_OK);
    assert_ptr_not_equal(tr_data(tr_grad(a)), tr_data(tr_grad(b)));
    assert_int_equal(tr_backward(tr_sum(tr_add(a, a))), TR_OK);
    assert_true(grad_at(a, 0) == 3 && grad_at(b, 0) == 1);
}

static void a_graph_runs_once_unless_it_is_kept(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = leaf(2), *y = tr_sum(tr_mul(x, x));
    assert_int_equal(tr_backward(y, .retain_graph = true), TR_OK);
    assert_int_equal(tr_backward(y), TR_OK);
    assert_true(grad_at(x, 0) == 8);
    assert_int_equal(tr_backward(y), TR_STATE);
    assert_non_null(strstr(tr_error_message(), "retain_graph"));
}

static void what_was_saved_must_not_change(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = leaf(2), *y = tr_sum(tr_mul(x, x));
    assert_int_equal(tr_fill(x, 3), TR_OK);
    assert_int_equal(tr_backward(y), TR_STATE);
    assert_non_null(strstr(tr_error_message(), "backward of mul: it needs a tensor [3] that was written to after the forward"));
    assert_int_equal(tr_backward(tr_sum(tr_affine(x, 1, 0))), TR_OK); /* saves nothing */
}

static void cheap_outputs_are_made_again(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_randn(1, TR_SHAPE(64, 64), .dtype = TR_F64, .requires_grad = true);
    tr_tensor *w = tr_randn(2, TR_SHAPE(64, 64), .dtype = TR_F64, .requires_grad = true);
    size_t before, with_both, after, peak;
    tr_tensor *y;
    {
        TR_SCOPE;
        tr__cpu_memory(0, &before, &peak);
        tr_tensor *g = tr_gelu(tr_clamp(x, -99, 99)); /* one after the other */
        tr__cpu_memory(0, &with_both, &peak);
        y = tr_escape(tr_matmul(g, w)); /* needs g for w's gradient */
    }
    tr__cpu_memory(0, &after, &peak);
    assert_true(with_both == before + 2 * 64 * 64 * 8);
    assert_true(after == before + 64 * 64 * 8); /* y only */
    tr_tensor *weights = tr_randn(3, TR_SHAPE(64, 64), .dtype = TR_F64);
    assert_int_equal(tr_backward(y, .gradient = weights), TR_OK);
    TR_NO_GRAD;
    tr_tensor *expected = tr_matmul(tr_transpose(tr_gelu(x), 0, 1), weights);
    tr_tensor *difference = tr_max(tr_abs(tr_sub(expected, tr_grad(w))));
    assert_true(tr_item(difference) < 1e-12);
}

/* Backward needs what the consumer saw, be it that a cheap op's output was written to before that, or after it. */
static void cheap_outputs_that_were_written_to_are_kept(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = leaf(2), *w = leaf(1), *y = tr_clamp(x, 0, INFINITY);
    assert_int_equal(tr_fill(tr_slice(y, 0, 0, 1), 100), TR_OK);
    tr_tensor *z = tr_mul(y, w);
    assert_int_equal(tr_backward(tr_sum(z)), TR_OK);
    assert_true(grad_at(w, 0) == 100 && grad_at(w, 1) == 2 && grad_at(w, 2) == 2);

    tr_clear_grad(w);
    tr_tensor *before = tr_clamp(x, 0, INFINITY), *product = tr_mul(before, w);
    assert_int_equal(tr_fill(before, 100), TR_OK);
    assert_int_equal(tr_backward(tr_sum(product)), TR_OK);
    assert_true(grad_at(w, 0) == 2);
    tr_tensor *kept = tr_clamp(x, 0, INFINITY);
    assert_int_equal(tr_fill(kept, 100), TR_OK);
    product = tr_mul(kept, w);
    assert_int_equal(tr_fill(kept, 3), TR_OK);
    assert_int_equal(tr_backward(tr_sum(product)), TR_STATE);
}

static void roots_are_checked(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = leaf(1);
    assert_int_equal(tr_backward(NULL), TR_INVALID);
    assert_int_equal(tr_backward(tr_ones(TR_SHAPE(1))), TR_STATE);
    assert_int_equal(tr_backward(tr_affine(x, 2, 0)), TR_SHAPE);
    assert_int_equal(tr_backward(tr_affine(x, 2, 0), .gradient = tr_ones(TR_SHAPE(4), .dtype = TR_F64)), TR_SHAPE);
    assert_int_equal(tr_backward(tr_sum(tr_add(x, tr_ones(TR_SHAPE(2), .dtype = TR_F64)))), TR_SHAPE);
    assert_non_null(strstr(tr_error_message(), "add"));
    assert_int_equal(tr_status_of(tr_require_grad(tr_affine(x, 2, 0))), TR_STATE);
}

/* ---- Hooks ---------------------------------------------------------------------------------------------------------------- */

typedef struct order {
    int count;
    tr_tensor *leaves[8];
} order;

static tr_status note(tr_tensor *t, tr_tensor *grad, void *user)
{
    order *o = user;
    assert_ptr_equal(grad, tr_grad(t));
    o->leaves[o->count++] = t;
    return TR_OK;
}

static tr_status refuse(tr_tensor *t, tr_tensor *grad, void *user)
{
    (void)t, (void)grad, (void)user;
    return tr_fail(TR_CANCELLED, "the hook says no");
}

static void hooks_fire_once_when_a_gradient_is_final(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *a = leaf(1), *b = leaf(2), *c = leaf(3);
    order o = {0};
    tr_tensor *leaves[] = {a, b, c};
    int numbers[3];
    for (int i = 0; i < 3; i++) numbers[i] = tr_grad_hook_add(leaves[i], note, &o);
    tr_tensor *y = tr_mul(tr_mul(tr_mul(a, a), b), c); /* c last in the forward: first in backward */
    tr_tensor *z = tr_sum(tr_add(tr_mul(y, a), b));    /* a and b are used twice */
    assert_int_equal(tr_backward(z), TR_OK);
    assert_int_equal(o.count, 3);
    assert_ptr_equal(o.leaves[0], c);
    assert_ptr_equal(o.leaves[1], b);
    assert_ptr_equal(o.leaves[2], a);
    tr_grad_hook_remove(a, numbers[0]);
    assert_int_equal(tr_backward(tr_sum(a)), TR_OK);
    assert_int_equal(o.count, 3);
    assert_true(tr_grad_hook_add(b, refuse, NULL) > numbers[1]);
    assert_int_equal(tr_backward(tr_sum(b)), TR_CANCELLED);
    assert_string_equal(tr_error_message(), "the hook says no");
    assert_int_equal(tr_grad_hook_add(y, note, &o), -1);
}

typedef struct remover {
    int next; /* a hook */
    int calls;
} remover;

static tr_status remove_next(tr_tensor *t, tr_tensor *grad, void *user)
{
    remover *r = user;
    (void)grad;
    r->calls++;
    tr_grad_hook_remove(t, r->next);
    return TR_OK;
}

static tr_status clear(tr_tensor *t, tr_tensor *grad, void *user)
{
    (void)grad, (void)user;
    tr_clear_grad(t);
    return TR_OK;
}

static tr_status read_first(tr_tensor *t, tr_tensor *grad, void *user)
{
    (void)t;
    TR_SCOPE;
    *(double *)user = tr_item(tr_slice(grad, 0, 0, 1));
    return TR_OK;
}

static void hooks_remove_hooks_and_clear_gradients(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = leaf(1);
    remover first = {0}, second = {0};
    double seen = 0;
    int self = tr_grad_hook_add(x, remove_next, &first);
    first.next = tr_grad_hook_add(x, remove_next, &second);
    assert_true(tr_grad_hook_add(x, clear, NULL) > 0 && tr_grad_hook_add(x, read_first, &seen) > 0);
    assert_int_equal(tr_backward(tr_sum(x)), TR_OK);
    assert_true(first.calls == 1 && second.calls == 0 && seen == 1);
    assert_null(tr_grad(x));
    first.next = self; /* itself */
    assert_int_equal(tr_backward(tr_sum(tr_affine(x, 2, 0))), TR_OK);
    assert_int_equal(tr_backward(tr_sum(tr_affine(x, 3, 0))), TR_OK);
    assert_true(first.calls == 2 && second.calls == 0 && seen == 3);
}

/* Detached backwards of a leaf in other threads, as where a worker serves several distributed ones. */
typedef struct passer {
    pthread_t thread;
    tr_tensor *leaf;
    atomic_bool *over;
} passer;

static tr_status use_user(tr_tensor *t, tr_tensor *grad, void *user)
{
    (void)t, (void)grad;
    atomic_fetch_add((atomic_int *)user, 1);
    return TR_OK;
}

static tr_status take_gradient(void *user, tr_tensor *t, tr_tensor *grad, tr_tensor **sum)
{
    (void)user, (void)t;
    *sum = grad;
    return TR_OK;
}

static tr_status complete_gradient(void *user, tr_tensor *t)
{
    (void)user, (void)t;
    return TR_OK;
}

static void *pass_by(void *arg)
{
    TR_SCOPE;
    const passer *p = arg;
    const tr__gradient_sink sink = {.leaf = take_gradient, .complete = complete_gradient};
    tr_tensor *gradient = tr_ones(TR_SHAPE(3), .dtype = TR_F64);
    const tr__edge edge = {.leaf = p->leaf};
    while (!atomic_load(p->over)) {
        tr__backward *b = tr__backward_new(&sink, false);
        tr_status status = tr__backward_expect(b, edge);
        if (status == TR_OK) status = tr__backward_arrive(b, edge, gradient);
        if (tr__backward_free(b, status) != TR_OK) abort();
    }
    return NULL;
}

static void hooks_come_and_go_beside_backwards(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { THREADS = 2, TURNS = 20000, AT_ONCE = 3 };
    tr_tensor *x = leaf(1);
    atomic_bool over = false;
    atomic_int calls = 0;
    passer passers[THREADS];
    int numbers[AT_ONCE];
    for (int i = 0; i < THREADS; i++) {
        passers[i] = (passer){.leaf = x, .over = &over};
        assert_int_equal(pthread_create(&passers[i].thread, NULL, pass_by, &passers[i]), 0);
    }
    for (int turn = 0; turn < TURNS || !atomic_load(&calls); turn++) {
        for (int i = 0; i < AT_ONCE; i++) numbers[i] = tr_grad_hook_add(x, use_user, &calls);
        for (int i = 0; i < AT_ONCE; i++) tr_grad_hook_remove(x, numbers[i]);
    }
    atomic_store(&over, true);
    for (int i = 0; i < THREADS; i++) pthread_join(passers[i].thread, NULL);
    assert_null(x->leaf->hooks);
}

static tr_status note_end(void *user, tr_status status)
{
    *(tr_status *)user = status + 1000;
    return TR_OK;
}

static tr_status ask_for_end(tr_tensor *t, tr_tensor *grad, void *user, tr__backward *backward)
{
    (void)t, (void)grad;
    return tr__backward_on_end(backward, (tr__backward_callback){.finish = note_end, .user = user});
}

static void the_end_of_a_backward_is_told_also_when_it_fails(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *a = leaf(1), *b = leaf(2);
    tr_status ended = 0;
    assert_true(tr__leaf_hook_add(b, ask_for_end, &ended) >= 0);
    tr_tensor *y = tr_sum(tr_mul(tr_mul(a, a), b));
    assert_int_equal(tr_backward(y), TR_OK);
    assert_int_equal(ended, 1000 + TR_OK);
    tr_grad_hook_add(a, refuse, NULL);
    assert_int_equal(tr_backward(tr_sum(tr_mul(tr_mul(a, a), b))), TR_CANCELLED);
    assert_int_equal(ended, 1000 + TR_CANCELLED);
}

typedef struct ending {
    int finished;
    const tr__backward *given_up; /* which one */
} ending;

static tr_status count_end(void *user, tr_status status)
{
    ((ending *)user)->finished++;
    return status;
}

static void note_giving_up(void *user, const tr__backward *backward, tr_status status)
{
    (void)status;
    ((ending *)user)->given_up = backward;
}

/* What an ending needs lives as long as another thread may call it: when it is done itself, others may not be. */
static void what_endings_hold_outlives_them(void **state)
{
    (void)state;
    ending e = {0};
    tr_tensor *held = tr_keep(leaf(1));
    int64_t refs = tr__refs(held);
    tr__backward *backward = tr__backward_new(NULL, false);
    assert_non_null(backward);
    const tr__backward_callback ending_callback = {.finish = count_end, .cancel = note_giving_up, .user = &e, .held = held};
    assert_int_equal(tr__backward_on_end(backward, ending_callback), TR_OK);
    assert_int_equal(tr__backward_finish(backward, TR_OK), TR_OK);
    assert_int_equal(tr__refs(held), refs + 1);
    tr__backward_cancel(backward, TR_CANCELLED);
    assert_ptr_equal(e.given_up, backward);
    assert_int_equal(tr__backward_free(backward, TR_CANCELLED), TR_CANCELLED);
    assert_int_equal(e.finished, 1);
    assert_int_equal(tr__refs(held), refs);
    tr_release(held);
}

/* ---- Long graphs and failing ops ----------------------------------------------------------------------------------------- */

static void a_long_chain_neither_overflows_nor_leaks(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_scalar(1, TR_F64);
    tr_require_grad(x);
    tr_tensor *y = tr_keep(x);
    for (int i = 0; i < 200000; i++) {
        TR_SCOPE;
        tr_tensor *next = tr_keep(tr_affine(y, 1, 0));
        tr_release(y);
        y = next;
    }
    assert_int_equal(tr_backward(y), TR_OK);
    assert_true(tr_item(tr_grad(x)) == 1);
    tr_release(y);
}

/* What a cheap op made of a cheap op's output is not recomputed from the chain's start: that took as many calls, one in the other,
 * as the chain has nodes, for each of them. */
static void a_long_chain_of_cheap_ops_does_not_overflow(void **state)
{
    (void)state;
    enum { N = 50000 };
    TR_SCOPE;
    tr_tensor *x = leaf(1), *y = tr_keep(x);
    size_t before, after, peak;
    tr__cpu_memory(0, &before, &peak);
    for (int i = 0; i < N; i++) {
        TR_SCOPE;
        tr_tensor *next = tr_keep(tr_clamp(tr_leaky_relu(y, 0.5), 0, 2));
        tr_release(y);
        y = next;
    }
    tr__cpu_memory(0, &after, &peak);
    assert_true(after - before < (size_t)(2 * N / 3 + 2) * 64); /* every third output, in the least that is allocated */
    assert_int_equal(tr_backward(tr_sum(y)), TR_OK);
    assert_true(grad_at(x, 0) == 1 && grad_at(x, 2) == 1);
    tr_release(y);
}

static tr_status one_infer(tr_op_call *call)
{
    return tr_op_output(call, 0, tr_shape_of(call->inputs[0]), tr_dtype_of(call->inputs[0]));
}

static tr_status one_forward(tr_op_call *call)
{
    return tr_copy_into(call->outputs[0], call->inputs[0]);
}

static tr_status wrong_backward(tr_backward_call *call)
{
    call->grad_inputs[0] = tr_ones(TR_SHAPE(7), .dtype = TR_F64);
    return TR_OK;
}

static tr_status unsaved_backward(tr_backward_call *call)
{
    call->grad_inputs[0] = tr_mul(call->grad_outputs[0], call->inputs[0]);
    return TR_OK;
}

static void a_wrong_backward_is_found(void **state)
{
    (void)state;
    TR_SCOPE;
    static const tr_op wrong = {.size = sizeof(tr_op), .name = "wrong", .infer = one_infer, .forward = one_forward,
        .backward = wrong_backward};
    tr_tensor *x = leaf(1);
    assert_int_equal(tr_backward(tr_sum(tr_apply(&wrong, NULL, &x, 1, NULL))), TR_SHAPE);
    assert_string_equal(tr_error_message(), "wrong: its backward gave input 0, f64 [3], a gradient of another shape, f64 [7]");
    tr_tensor *seven = tr_ones(TR_SHAPE(7), .requires_grad = true);
    assert_int_equal(tr_backward(tr_sum(tr_apply(&wrong, NULL, &seven, 1, NULL))), TR_DTYPE);
    assert_string_equal(tr_error_message(), "wrong: its backward gave input 0, f32 [7], a gradient of another dtype, f64 [7]");
    static const tr_op unsaved = {.size = sizeof(tr_op), .name = "unsaved", .infer = one_infer, .forward = one_forward,
        .backward = unsaved_backward};
    assert_int_equal(tr_backward(tr_sum(tr_apply(&unsaved, NULL, &x, 1, NULL))), TR_INVALID);
    assert_string_equal(tr_error_message(), "unsaved: its backward (it has the inputs and outputs that .saves_inputs and "
                                            ".saves_outputs name): mul: input 1 is NULL");
}

/* ---- Arenas --------------------------------------------------------------------------------------------------------------- */

static tr_tensor_list *three_parameters(void)
{
    tr_tensor_list *list = tr_list_new();
    assert_int_equal(tr_list_add(list, "a", tr_randn(1, TR_SHAPE(3, 5), .requires_grad = true)), TR_OK);
    assert_int_equal(tr_list_add(list, "d", tr_randn(2, TR_SHAPE(4), .dtype = TR_F64, .requires_grad = true)), TR_OK);
    assert_int_equal(tr_list_add(list, "b", tr_randn(3, TR_SHAPE(5, 40), .requires_grad = true)), TR_OK);
    return list;
}

static void arenas_move_values_and_gradients(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *list = three_parameters();
    tr_tensor *a = tr_list_at(list, 0), *b = tr_list_at(list, 2);
    float before[15], after[15];
    assert_int_equal(tr_copy_out(a, before, sizeof before), TR_OK);
    assert_int_equal(tr_backward(tr_sum(a)), TR_OK);
    assert_int_equal(tr__arena_build(list), TR_OK);
    assert_int_equal(tr_copy_out(a, after, sizeof after), TR_OK);
    assert_memory_equal(before, after, sizeof before);
    assert_true(grad_at(a, 14) == 1);

    tr__arena *arena = a->leaf->arena;
    assert_ptr_equal(arena, b->leaf->arena);
    assert_ptr_not_equal(arena, tr_list_at(list, 1)->leaf->arena);
    assert_int_equal(arena->n_slots, 2);
    assert_int_equal(tr__arena_slot_of(b)->offset, 32);
    assert_int_equal(arena->count, 32 + 224);
    assert_ptr_equal((float *)tr_data(arena->parameters) + 32, tr_data(b));
    assert_null(tr_grad(b));

    /* Gradients are written in place, the first one over what is there, the next ones added. */
    tr_tensor *x = tr_randn(4, TR_SHAPE(2, 3)), *y = tr_matmul(tr_matmul(x, a), b);
    assert_int_equal(tr_backward(tr_sum(y), .retain_graph = true), TR_OK);
    assert_ptr_equal(tr_data(tr_grad(b)), (float *)tr_data(arena->gradients) + 32);
    double once = grad_at(b, 3);
    assert_int_equal(tr_backward(tr_sum(y)), TR_OK);
    assert_true(fabs(grad_at(b, 3) - 2 * once) < 1e-5);
    tr_clear_grad(b);
    assert_null(tr_grad(b));
    assert_int_equal(tr__arena_zero_missing(b), TR_OK);
    assert_true(grad_at(b, 3) == 0);

    double a_grad = grad_at(a, 0);
    assert_int_equal(tr__arena_share(arena), TR_OK);
    assert_true(arena->gradients->storage->kind == TR__SHARED);
    assert_true(grad_at(a, 0) == a_grad);
    assert_int_equal(tr_backward(tr_sum(a)), TR_OK);
    assert_true(fabs(grad_at(a, 0) - a_grad - 1) < 1e-6);
}

static void an_arena_outlives_or_forgets_its_leaves(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *kept;
    {
        TR_SCOPE;
        tr_tensor_list *list = three_parameters();
        assert_int_equal(tr__arena_build(list), TR_OK);
        kept = tr_escape(tr_list_at(list, 0));
        tr_keep(kept);
    }
    assert_null(kept->leaf->arena->slots[1].leaf);
    assert_int_equal(tr_backward(tr_sum(kept)), TR_OK);
    tr_release(kept);

    tr_tensor_list *plain = tr_list_new();
    assert_int_equal(tr_list_add(plain, "x", tr_ones(TR_SHAPE(2))), TR_OK);
    assert_int_equal(tr__arena_build(plain), TR_STATE);
    assert_non_null(strstr(tr_error_message(), "\"x\""));
}

/* Writes straight into the target that it is given, as kernels of parameters do. */
static tr_status target_backward(tr_backward_call *call)
{
    bool accumulate;
    tr_tensor *to = tr__grad_target(call, 0, &accumulate);
    call->grad_inputs[0] = to;
    return tr_copy_into(to, accumulate ? tr_add(to, call->grad_outputs[0]) : call->grad_outputs[0]);
}

/* A gradient is a tensor like others to a graph that reads it: of one that was added to since, backward says so, and a write to
 * another leaf's does not matter. As without an arena. */
static void a_graph_knows_whether_a_gradient_that_it_reads_was_written_to(void **state)
{
    (void)state;
    enum { ALONE, ARENA, SHARED, KINDS, N = 3 };
    for (int kind = 0; kind < KINDS; kind++) {
        TR_SCOPE;
        tr_tensor *p[N], *x = tr_ones(TR_SHAPE(3, 2)), *h = x, *sum = tr_zeros(TR_SCALAR);
        tr_tensor_list *list = tr_list_new();
        for (int i = 0; i < N; i++) {
            p[i] = tr_full(1 + i, TR_SHAPE(2, 2), .requires_grad = true);
            assert_int_equal(tr_list_add(list, (char[]){(char)('a' + i), 0}, p[i]), TR_OK);
        }
        if (kind != ALONE) assert_int_equal(tr__arena_build(list), TR_OK);
        if (kind == SHARED) assert_int_equal(tr__arena_share(p[0]->leaf->arena), TR_OK);
        for (int i = 0; i < N; i++) h = tr_linear_op(h, p[i]);
        assert_int_equal(tr_backward(tr_sum(h)), TR_OK);
        for (int i = 0; i < N; i++) sum = tr_add(sum, tr_sum(tr_mul(tr_grad(p[i]), p[i])));
        assert_int_equal(tr_backward(sum), TR_OK); /* adds to each gradient, when its node has run */
        assert_true(grad_at(p[0], 0) == 144 && grad_at(p[1], 3) == 72 && grad_at(p[2], 1) == 48);

        tr_tensor *v = tr_ones(TR_SHAPE(2, 2), .requires_grad = true), *y = tr_sum(tr_mul(tr_grad(p[0]), v));
        assert_int_equal(tr_backward(tr_sum(tr_linear_op(x, p[1]))), TR_OK);
        assert_int_equal(tr_backward(y, .retain_graph = true), TR_OK);
        assert_true(grad_at(v, 0) == 144);
        assert_int_equal(tr_backward(tr_sum(tr_linear_op(x, p[0]))), TR_OK);
        for (int as_now = 0; as_now < 2; as_now++) /* a gradient is no parameter */
            assert_int_equal(tr__backward_to_leaves(&(tr_backward_options){.size = sizeof(tr_backward_options), .root = y,
                .retain_graph = true}, as_now), TR_STATE);
        assert_true(grad_at(v, 0) == 144);
    }
}

static void targets_and_plain_gradients_mix(void **state)
{
    (void)state;
    static const tr_op direct = {.size = sizeof(tr_op), .name = "direct", .infer = one_infer, .forward = one_forward,
        .backward = target_backward};
    for (int arena = 0; arena < 2; arena++)
        for (int mix = 0; mix < 8; mix++) {
            TR_SCOPE;
            tr_tensor *x = tr_full(2, TR_SHAPE(3), .dtype = TR_F64, .requires_grad = true);
            tr_tensor_list *list = tr_list_new();
            assert_int_equal(tr_list_add(list, "x", x), TR_OK);
            if (arena) assert_int_equal(tr__arena_build(list), TR_OK);
            for (int round = 1; round <= 2; round++) {
                tr_tensor *sum = tr_zeros(TR_SHAPE(3), .dtype = TR_F64);
                for (int i = 0; i < 3; i++) {
                    tr_tensor *part = mix >> i & 1 ? tr_apply(&direct, NULL, &x, 1, NULL) : tr_affine(x, 1, 0);
                    sum = tr_add(sum, tr_affine(part, pow(10, i), 0));
                }
                assert_int_equal(tr_backward(tr_sum(sum)), TR_OK);
                assert_true(grad_at(x, 1) == 111 * round);
            }
        }
}

static tr_tensor *wrong_gradient(tr_tensor *const *inputs, int n, void *user)
{
    (void)n, (void)user;
    return tr_add(tr_mul(inputs[0], tr_detach(inputs[0])), inputs[1]);
}

static void grad_check_finds_what_is_wrong(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *inputs[] = {leaf(2), leaf(3)};
    assert_int_equal(tr_grad_check(wrong_gradient, inputs, 2, NULL, 1e-6), TR_MISMATCH);
    assert_non_null(strstr(tr_error_message(), "input 0"));
    inputs[0] = tr_ones(TR_SHAPE(3), .requires_grad = true);
    assert_int_equal(tr_grad_check(wrong_gradient, inputs, 2, NULL, 1e-6), TR_DTYPE);
}

static tr_tensor *nothing(tr_tensor *const *inputs, int n, void *user)
{
    (void)inputs, (void)n, (void)user;
    return NULL;
}

static void grad_check_takes_no_null_for_a_result(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = leaf(2);
    assert_int_equal(tr_grad_check(nothing, &x, 1, NULL, 1e-6), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "grad_check: the function returned NULL"));
}

/* The gradient that a leaf has, given to a backward to it, is added to it like any other. */
static void a_gradient_may_be_given_to_its_own_leaf(void **state)
{
    (void)state;
    for (int arena = 0; arena < 2; arena++)
        for (int direct = 0; direct < 2; direct++) {
            TR_SCOPE;
            tr_tensor *x = tr_full(5, TR_SHAPE(2), .dtype = TR_F64, .requires_grad = true);
            tr_tensor_list *list = tr_list_new();
            assert_int_equal(tr_list_add(list, "x", x), TR_OK);
            if (arena) assert_int_equal(tr_status_of(tr_sgd(list)), TR_OK);
            assert_int_equal(tr_backward(tr_sum(tr_affine(x, 3, 0))), TR_OK);
            tr_tensor *y = direct ? x : tr_add(x, tr_zeros(TR_SHAPE(2), .dtype = TR_F64)), *grad = tr_grad(x);
            assert_int_equal(tr_backward(y, .gradient = grad, .retain_graph = true), TR_OK);
            assert_true(grad_at(x, 0) == 6 && grad_at(x, 1) == 6);
            tr_keep(grad);
            tr_clear_grad(x);
            assert_int_equal(tr_backward(y, .gradient = grad), TR_OK);
            assert_true(grad_at(x, 0) == 6 && grad_at(x, 1) == 6);
            tr_release(grad);
        }
}

/* ---- Gradients over what was saved ------------------------------------------------------------------------------------------ */

enum { ROWS = 16, CLASSES = 1111, FEATURES = 8 };

/* The bytes that backward takes beyond the graph, and w's gradient. held: logits stay in the caller's scope. */
static int64_t backward_of_logits(tr_dtype dtype, bool held, bool retain, tr_tensor *w, tr_tensor **logits)
{
    tr_tensor *x = tr_cast(tr_randn(1, TR_SHAPE(ROWS, FEATURES)), dtype), *loss;
    tr_tensor *ids = tr_cast(tr_affine(tr_rand(2, TR_SHAPE(ROWS)), CLASSES - 1, 0), TR_I32);
    {
        TR_SCOPE;
        tr_tensor *y = tr_matmul(x, w);
        if (held) *logits = tr_escape(y);
        loss = tr_escape(tr_cross_entropy(y, ids, .label_smoothing = 0.1));
    }
    int64_t peak, kept;
    tr__memory_watch watch = tr__memory_watch_begin(0);
    assert_int_equal(tr_backward(loss, .retain_graph = retain), TR_OK);
    tr__memory_watch_end(&watch, &peak, &kept);
    if (retain) assert_int_equal(tr_backward(loss), TR_OK);
    return peak;
}

static void logits_that_nobody_has_become_their_gradient(void **state)
{
    (void)state;
    const tr_dtype dtypes[] = {TR_F32, TR_F64, TR_BF16};
    for (int d = 0; d < 3; d++) {
        TR_SCOPE;
        tr_dtype dtype = dtypes[d];
        tr_tensor *w[3], *logits = NULL;
        int64_t peak[3];
        for (int k = 0; k < 3; k++) {
            w[k] = tr_require_grad(tr_cast(tr_randn(3, TR_SHAPE(FEATURES, CLASSES)), dtype));
            peak[k] = backward_of_logits(dtype, k == 1, k == 2, w[k], &logits);
        }
        int64_t bytes = ROWS * CLASSES * (int64_t)tr_dtype_size(dtype);
        assert_true(peak[0] + bytes / 2 < peak[1]);
        TR_NO_GRAD;
        tr_tensor *x = tr_cast(tr_randn(1, TR_SHAPE(ROWS, FEATURES)), dtype), *again = tr_matmul(x, w[1]);
        assert_true(tr_item(tr_max(tr_abs(tr_sub(tr_detach(logits), again)))) == 0); /* those in use stay */
        assert_true(tr_item(tr_max(tr_abs(tr_grad(w[0])))) > 0);
        assert_true(tr_item(tr_max(tr_abs(tr_sub(tr_grad(w[0]), tr_grad(w[1]))))) == 0);
        assert_true(tr_item(tr_max(tr_abs(tr_sub(tr_add(tr_grad(w[0]), tr_grad(w[0])), tr_grad(w[2]))))) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_that_is_used_often_gets_every_share),
        cmocka_unit_test(gradients_accumulate_until_they_are_cleared),
        cmocka_unit_test(a_gradient_is_not_shared_between_leaves),
        cmocka_unit_test(a_graph_runs_once_unless_it_is_kept),
        cmocka_unit_test(what_was_saved_must_not_change),
        cmocka_unit_test(cheap_outputs_are_made_again),
        cmocka_unit_test(cheap_outputs_that_were_written_to_are_kept),
        cmocka_unit_test(roots_are_checked),
        cmocka_unit_test(hooks_fire_once_when_a_gradient_is_final),
        cmocka_unit_test(hooks_remove_hooks_and_clear_gradients),
        cmocka_unit_test(hooks_come_and_go_beside_backwards),
        cmocka_unit_test(the_end_of_a_backward_is_told_also_when_it_fails),
        cmocka_unit_test(what_endings_hold_outlives_them),
        cmocka_unit_test(a_long_chain_neither_overflows_nor_leaks),
        cmocka_unit_test(a_long_chain_of_cheap_ops_does_not_overflow),
        cmocka_unit_test(a_wrong_backward_is_found),
        cmocka_unit_test(arenas_move_values_and_gradients),
        cmocka_unit_test(an_arena_outlives_or_forgets_its_leaves),
        cmocka_unit_test(a_graph_knows_whether_a_gradient_that_it_reads_was_written_to),
        cmocka_unit_test(targets_and_plain_gradients_mix),
        cmocka_unit_test(grad_check_finds_what_is_wrong),
        cmocka_unit_test(grad_check_takes_no_null_for_a_result),
        cmocka_unit_test(a_gradient_may_be_given_to_its_own_leaf),
        cmocka_unit_test(logits_that_nobody_has_become_their_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
