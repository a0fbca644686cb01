/*
 * Optimizers that step in backward: the bits of a step after it, for every rule, with tied weights, recompute, groups and
 * schedules; without memory for all gradients; and what cannot be had is refused before anything has changed.
 */
#include "comm_ranks.h"

#include "autograd/arena.h"
#include "device/device.h"

#include <trireme/trireme.h>

#include <stdlib.h>
#include <string.h>

enum { VOCAB = 40, SEQ = 6, STEPS = 4, MOST = 100000 };

/* ---- The same bits ------------------------------------------------------------------------------------------------------- */

#define OPTIMIZERS(X)                                                                          \
    X(tr_sgd(p, .lr = 0.1))                                                                    \
    X(tr_sgd(p, .lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1))            \
    X(tr_adam(p, .amsgrad = true))                                                             \
    X(tr_adamw(p, .lr = 1e-2, .weight_decay = 0.1, .decay_matrices_only = true))               \
    X(tr_adamw(p, .lr = 1e-2, .bf16_state = true))                                             \
    X(tr_sgd(p, .lr = 0.1, .momentum = 0.9, .bf16_state = true))                               \
    X(tr_adamax(p))                                                                            \
    X(tr_nadam(p))                                                                             \
    X(tr_radam(p, .beta2 = 0.8))                                                               \
    X(tr_rmsprop(p, .momentum = 0.5, .centered = true, .eps = 1e-3))                           \
    X(tr_adagrad(p))                                                                           \
    X(tr_adadelta(p))                                                                          \
    X(tr_rprop(p))                                                                             \
    X(tr_lion(p))                                                                              \
    X(tr_lamb(p))                                                                              \
    X(tr_lars(p))

static tr_optimizer *make_optimizer(int kind, tr_tensor_list *p)
{
    int at = 0;
#define ONE(call) \
    if (at++ == kind) return call;
    OPTIMIZERS(ONE)
#undef ONE
    return NULL;
}
enum {
#define ONE(call) +1
    RULES = 0 OPTIMIZERS(ONE)
#undef ONE
};

/* A GPT, whose head is its embedding; its first block is recomputed. */
static tr_module *make_gpt(void)
{
    tr_module *net = tr_gpt(.vocab = VOCAB, .context = SEQ, .layers = 2, .heads = 2, .dim = 16, .dropout = 0.1, .seed = 3);
    TR_CHECK(tr_set_recompute(tr_module_find(net, "h.0"), true));
    return net;
}

static tr_tensor *loss_of(tr_module *net, int step)
{
    tr_tensor *ids = tr_cast(tr_affine(tr_rand((uint64_t)step, TR_SHAPE(3, SEQ)), VOCAB - 1, 0), TR_I32);
    TR_CHECK(tr_seed(net, 1, .step = (uint64_t)step));
    return tr_cross_entropy(tr_forward(net, ids), ids);
}

static void take_step(tr_module *net, tr_optimizer *opt, int step)
{
    TR_SCOPE;
    TR_CHECK(tr_set_lr(opt, 1e-2 / (1 + step)));
    tr_zero_grad(opt);
    TR_CHECK(tr_backward(loss_of(net, step)));
    TR_CHECK(tr_step(opt));
}

static void assert_same(tr_tensor_list *a, tr_tensor_list *b)
{
    assert_true(tr_list_count(a) > 0 && tr_list_count(a) == tr_list_count(b));
    for (int i = 0; i < tr_list_count(a); i++) {
        TR_SCOPE;
        static char x[8 * MOST], y[8 * MOST];
        tr_tensor *s = tr_list_at(a, i), *t = tr_list_at(b, i);
        size_t bytes = (size_t)tr_numel(s) * tr_dtype_size(tr_dtype_of(s));
        assert_true(bytes > 0 && bytes <= sizeof x);
        TR_CHECK(tr_copy_out(s, x, bytes));
        TR_CHECK(tr_copy_out(t, y, bytes));
        if (memcmp(x, y, bytes) != 0) fail_msg("%s differs", tr_list_name(a, i));
    }
}

static bool differ(tr_tensor_list *a, tr_tensor_list *b)
{
    bool any = false;
    for (int i = 0; i < tr_list_count(a); i++)
        any |= tr_item(tr_max(tr_abs(tr_sub(tr_detach(tr_list_at(a, i)), tr_detach(tr_list_at(b, i)))))) > 0;
    return any;
}

static void group(tr_optimizer *opt, tr_module *net)
{
    tr_tensor_list *some = tr_list_new();
    TR_CHECK(tr_list_add(some, "a", tr_list_find(tr_parameters(net), "wte.weight")));
    TR_CHECK(tr_list_add(some, "b", tr_list_find(tr_parameters(net), "h.1.ln_1.bias")));
    TR_CHECK(tr_param_group(opt, some, .lr_scale = 0.3));
}

static void every_rule_gives_the_same_bits(void **state)
{
    (void)state;
    assert_true(RULES == 16);
    for (int kind = 0; kind < RULES; kind++) {
        TR_SCOPE;
        tr_module *nets[2] = {make_gpt(), make_gpt()}, *first = make_gpt();
        tr_optimizer *opts[2];
        for (int k = 0; k < 2; k++) {
            opts[k] = make_optimizer(kind, tr_parameters(nets[k]));
            group(opts[k], nets[k]);
        }
        TR_CHECK(tr_step_in_backward(opts[1], true));
        TR_CHECK(tr_step_in_backward(opts[1], true));
        for (int step = 0; step < STEPS; step++)
            for (int k = 0; k < 2; k++) take_step(nets[k], opts[k], step);
        assert_same(tr_parameters(nets[0]), tr_parameters(nets[1]));
        assert_true(differ(tr_parameters(first), tr_parameters(nets[1])));
        if (tr_list_count(tr_optimizer_state(opts[0])) > 0)
            assert_same(tr_optimizer_state(opts[0]), tr_optimizer_state(opts[1]));
    }
}

static void take_step_of_two(tr_module *net, tr_optimizer *a, tr_optimizer *b, int step)
{
    TR_SCOPE;
    TR_CHECK(tr_backward(loss_of(net, step)));
    TR_CHECK(tr_step(a));
    TR_CHECK(tr_step(b));
    tr_zero_grad(a);
    tr_zero_grad(b);
}

/* Muon has the matrices of the blocks, AdamW the rest; one of them, both or none steps in backward. */
static void two_optimizers_of_one_net(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *nets[4];
    for (int k = 0; k < 4; k++) {
        nets[k] = make_gpt();
        tr_tensor_list *all = tr_parameters(nets[k]), *matrices = tr_list_new(), *others = tr_list_new();
        for (int i = 0; i < tr_list_count(all); i++) {
            tr_tensor *t = tr_list_at(all, i);
            bool inner = tr_shape_of(t).ndim == 2 && strncmp(tr_list_name(all, i), "h.", 2) == 0;
            TR_CHECK(tr_list_add(inner ? matrices : others, tr_list_name(all, i), t));
        }
        tr_optimizer *muon = tr_muon(matrices, .lr = 0.02), *adamw = tr_adamw(others, .lr = 0.01);
        TR_CHECK(tr_step_in_backward(muon, k & 1));
        TR_CHECK(tr_step_in_backward(adamw, k & 2));
        for (int step = 0; step < STEPS; step++) take_step_of_two(nets[k], muon, adamw, step);
    }
    for (int k = 1; k < 4; k++) assert_same(tr_parameters(nets[0]), tr_parameters(nets[k]));
}

/* f(x, weights) of a parameter that is read again after its gradient is final: by another product, which it does not learn
 * from, by a stretch that is computed again, and by one where no op saves it. */
static tr_tensor *shifted(tr_tensor *const *inputs, int n, void *bias)
{
    (void)n;
    return tr_add(tr_tanh(tr_matmul(inputs[0], inputs[1])), bias);
}

static tr_tensor *read_again(tr_tensor *x, tr_tensor *v, tr_tensor *w, tr_tensor *b)
{
    tr_tensor *h = tr_matmul(tr_matmul(x, v), tr_detach(w));
    tr_tensor *inputs[] = {h, w};
    tr_tensor *y = tr_checkpoint(shifted, inputs, 2, b);
    return tr_sum(tr_mul(tr_add(tr_matmul(y, w), b), y));
}

static void what_is_read_again_waits(void **state)
{
    (void)state;
    for (int retain = 0; retain < 2; retain++) {
        TR_SCOPE;
        tr_tensor_list *lists[2];
        for (int k = 0; k < 2; k++) {
            lists[k] = tr_list_new();
            for (int i = 0; i < 3; i++)
                TR_CHECK(tr_list_add(lists[k], (char[]){(char)('a' + i), 0},
                    tr_require_grad(tr_randn((uint64_t)i + 1, i < 2 ? TR_SHAPE(8, 8) : TR_SHAPE(8)))));
            tr_optimizer *opt = tr_sgd(lists[k], .lr = 0.1, .momentum = 0.9);
            TR_CHECK(tr_step_in_backward(opt, k));
            for (int step = 0; step < STEPS; step++) {
                TR_SCOPE;
                tr_tensor *x = tr_randn(20 + (uint64_t)step, TR_SHAPE(4, 8));
                tr_tensor *y = read_again(x, tr_list_at(lists[k], 0), tr_list_at(lists[k], 1), tr_list_at(lists[k], 2));
                tr_zero_grad(opt);
                TR_CHECK(tr_backward(y, .retain_graph = retain));
                TR_CHECK(tr_step(opt));
            }
        }
        assert_same(lists[0], lists[1]);
    }
}

static void it_can_be_switched_and_restored(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *nets[3] = {make_gpt(), make_gpt(), make_gpt()};
    tr_optimizer *opts[3];
    for (int k = 0; k < 2; k++) opts[k] = tr_adamw(tr_parameters(nets[k]));
    for (int step = 0; step < 2 * STEPS; step++) {
        TR_CHECK(tr_step_in_backward(opts[1], step / 2 % 2));
        for (int k = 0; k < 2; k++) take_step(nets[k], opts[k], step);
        assert_true(step / 2 % 2 || tr_grad(tr_list_at(tr_parameters(nets[1]), 0)));
        tr_zero_grad(opts[1]);
    }
    assert_same(tr_parameters(nets[0]), tr_parameters(nets[1]));
    /* From one that steps in backward to one that does not, and the other way. */
    opts[2] = tr_adamw(tr_parameters(nets[2]));
    TR_CHECK(tr_load_state_dict(nets[2], tr_state_dict(nets[1])));
    TR_CHECK(tr_optimizer_load(opts[2], tr_optimizer_state(opts[1])));
    TR_CHECK(tr_step_in_backward(opts[1], false));
    TR_CHECK(tr_step_in_backward(opts[2], true));
    for (int k = 0; k < 3; k++) take_step(nets[k], opts[k], 2 * STEPS);
    assert_same(tr_parameters(nets[0]), tr_parameters(nets[1]));
    assert_same(tr_parameters(nets[0]), tr_parameters(nets[2]));
}

/* An optimizer that has gone leaves parameters that learn under another, and without any. */
static void parameters_outlive_it(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *nets[2] = {make_gpt(), make_gpt()};
    for (int k = 0; k < 2; k++) {
        {
            TR_SCOPE;
            tr_optimizer *first = tr_sgd(tr_parameters(nets[k]), .lr = 0.1);
            TR_CHECK(tr_step_in_backward(first, k));
            take_step(nets[k], first, 0);
            tr_zero_grad(first);
        }
        TR_CHECK(tr_backward(loss_of(nets[k], 1)));
        TR_CHECK(tr_backward(loss_of(nets[k], 2)));
        tr_tensor *grad = tr_grad(tr_list_at(tr_parameters(nets[k]), 0));
        assert_true(grad && tr_status_of(grad) == TR_OK);
        tr_optimizer *second = tr_adamw(tr_parameters(nets[k]));
        assert_ptr_equal(tr_grad(tr_list_at(tr_parameters(nets[k]), 0)), grad);
        TR_CHECK(tr_step(second));
        take_step(nets[k], second, 3);
    }
    assert_same(tr_parameters(nets[0]), tr_parameters(nets[1]));
}

static tr_status freeze_other(tr_tensor *leaf, tr_tensor *grad, void *net)
{
    (void)leaf, (void)grad;
    return tr_freeze(tr_module_find(net, "wte"), true);
}

static void what_is_frozen_stays(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *nets[2] = {make_gpt(), make_gpt()}, *first = make_gpt();
    for (int k = 0; k < 2; k++) {
        tr_tensor_list *p = tr_parameters(nets[k]);
        tr_optimizer *opt = tr_sgd(p, .lr = 0.1);
        TR_CHECK(tr_step_in_backward(opt, k));
        assert_true(tr_grad_hook_add(tr_list_find(p, "ln_f.weight"), freeze_other, nets[k]) >= 0);
        take_step(nets[k], opt, 0); /* frozen in the middle of it */
        take_step(nets[k], opt, 1);
    }
    assert_same(tr_parameters(nets[0]), tr_parameters(nets[1]));
    assert_false(differ(tr_parameters(tr_module_find(first, "wte")), tr_parameters(tr_module_find(nets[1], "wte"))));
}

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

enum { LAYERS = 16, WIDTH = 256 };

/* The most that a step of a deep net takes beyond what there was before it, in bytes of a layer's weights; what the optimizer
 * made is *kept. */
static double peak_of(bool in_backward, double *kept)
{
    TR_SCOPE;
    const double layer = WIDTH * WIDTH * sizeof(float);
    tr_module *net = tr_sequential(tr_linear(WIDTH, WIDTH, .seed = 1));
    for (int i = 1; i < LAYERS; i++) net = tr_sequential(net, tr_linear(WIDTH, WIDTH, .activation = TR_RELU, .seed = 2));
    tr__memory_watch making = tr__memory_watch_begin(0);
    int64_t peak, stays;
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 0.1);
    TR_CHECK(tr_step_in_backward(opt, in_backward));
    tr__memory_watch_end(&making, &peak, &stays);
    *kept = (double)stays / layer;
    tr_tensor *x = tr_rand(1, TR_SHAPE(2, WIDTH));
    tr__memory_watch step = tr__memory_watch_begin(0);
    {
        TR_SCOPE;
        TR_CHECK(tr_backward(tr_mean(tr_forward(net, x))));
        TR_CHECK(tr_step(opt));
    }
    tr__memory_watch_end(&step, &peak, &stays);
    assert_true((double)stays < 0.1 * layer);
    return (double)peak / layer;
}

/* Of a layer with 69 MB of weights, its gradient goes by rows: the step is the same, without memory for all of it. */
static void a_large_weight_goes_by_rows(void **state)
{
    (void)state;
    enum { IN = 4200, OUT = 4100, MB = 1 << 20 };
    for (int rule = 0; rule < 3; rule++) {
        TR_SCOPE;
        tr_module *nets[2];
        tr_optimizer *opts[2];
        for (int k = 0; k < 2; k++) {
            nets[k] = tr_sequential(tr_linear(IN, OUT, .seed = 1), tr_linear(OUT, 3, .seed = 2));
            opts[k] = make_optimizer(rule == 0 ? 1 : rule == 1 ? 3 : 4, tr_parameters(nets[k]));
        }
        TR_CHECK(tr_step_in_backward(opts[1], true));
        for (int step = 0; step < 2; step++) {
            for (int k = 0; k < 2; k++) {
                TR_SCOPE;
                tr_tensor *x = tr_randn((uint64_t)step, TR_SHAPE(5, IN)), *y = tr_forward(nets[k], x);
                tr_zero_grad(opts[k]);
                tr__memory_watch watch = tr__memory_watch_begin(0);
                TR_CHECK(tr_backward(tr_mean(tr_mul(y, y))));
                int64_t peak, kept;
                tr__memory_watch_end(&watch, &peak, &kept);
                if (k) assert_true(peak < 30 * MB);
                TR_CHECK(tr_step(opts[k]));
            }
        }
        for (int i = 0; i < 4; i++) {
            TR_SCOPE;
            TR_NO_GRAD;
            tr_tensor *a = tr_list_at(tr_parameters(nets[0]), i), *b = tr_list_at(tr_parameters(nets[1]), i);
            assert_true(tr_item(tr_max(tr_abs(tr_sub(a, b)))) == 0);
        }
    }
}

static void gradients_take_no_memory(void **state)
{
    (void)state;
    double kept, peak = peak_of(false, &kept);
    assert_true(kept > LAYERS - 0.5 && kept < LAYERS + 1); /* the parameters have moved, the gradients are new */
    double rest = peak; /* activations, and what kernels work in */
    peak = peak_of(true, &kept);
    assert_true(kept > -0.5 && kept < 1);
    assert_true(peak > 0.9 && peak < rest + 2.5); /* of sixteen */
}

/* ---- Refusals ------------------------------------------------------------------------------------------------------------ */

static void assert_fails(tr_status status, tr_status expected, const char *part)
{
    if (status != expected || !strstr(tr_error_message(), part))
        fail_msg("status %d: \"%s\" lacks \"%s\"", status, tr_error_message(), part);
}

static void what_it_cannot_do(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = make_gpt(), *first = make_gpt();
    tr_tensor_list *p = tr_parameters(net);
    tr_optimizer *opt = tr_adamw(p), *other;
    TR_CHECK(tr_backward(loss_of(net, 0)));
    assert_fails(tr_step_in_backward(NULL, true), TR_INVALID, "NULL");
    assert_fails(tr_step_in_backward(opt, true), TR_STATE, "\"wte.weight\" has a gradient: call tr_zero_grad() before");
    tr_zero_grad(opt);
    {
        TR_SCOPE;
        tr_optimizer *two = tr_sgd(p);
        assert_fails(tr_step_in_backward(two, true), TR_STATE, "another optimizer has \"wte.weight\"");
    }
    TR_CHECK(tr_step_in_backward(opt, true));
    other = tr_sgd(p);
    assert_fails(tr_status_of(other), TR_STATE, "another optimizer steps \"wte.weight\" in backward");
    tr_grad_scaler *scaler = tr_grad_scaler_new();
    assert_fails(tr_clip_grad_norm(opt, 1, NULL), TR_UNSUPPORTED, "adamw steps in backward");
    assert_fails(tr_scaled_step(scaler, opt), TR_UNSUPPORTED, "before any of them is used");
    assert_fails(tr_unscale_grad(scaler, opt, NULL), TR_UNSUPPORTED, "before any of them is used");
    assert_false(differ(tr_parameters(first), p)); /* none of these has changed anything */

    TR_CHECK(tr_backward(loss_of(net, 0)));
    assert_fails(tr_status_of(tr_grad(tr_list_at(p, 0))), TR_STATE, "uses its gradient up");
    tr_module *now = make_gpt();
    TR_CHECK(tr_load_state_dict(now, tr_state_dict(net)));
    assert_true(differ(tr_parameters(first), p));
    assert_fails(tr_backward(loss_of(net, 1)), TR_STATE, "cannot be added up; call tr_step() after each");
    assert_same(tr_parameters(now), p);
    TR_CHECK(tr_step(opt));
    TR_CHECK(tr_backward(loss_of(net, 1)));
    TR_CHECK(tr_step(opt));
    assert_true(differ(tr_parameters(now), p));
}

static tr_tensor *loss_of_pair(tr_tensor *y, tr_tensor *target, void *user)
{
    (void)user;
    return tr_mse_loss(y, target);
}

static void pipelines_refuse_it(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *a = tr_linear(4, 4, .seed = 1), *b = tr_linear(4, 4, .seed = 2);
    tr_pipeline *pipe = tr_pipeline_new((tr_module *[]){a, b}, 2, .loss = loss_of_pair, .micro_batches = 2);
    TR_CHECK(tr_status_of(pipe));
    tr_tensor *x = tr_rand(1, TR_SHAPE(4, 4));
    TR_CHECK(tr_pipeline_step(pipe, x, x, NULL));
    tr_optimizer *opt = tr_sgd(tr_parameters(b), .lr = 0.1);
    tr_zero_grad(opt);
    TR_CHECK(tr_step_in_backward(opt, true));
    assert_fails(tr_pipeline_step(pipe, x, x, NULL), TR_UNSUPPORTED, "steps \"weight\" in backward");
}

static void ranks_refuse_it(rank *r)
{
    TR_SCOPE;
    tr_module *late = tr_linear(4, 4, .seed = 1);
    tr_optimizer *opt = tr_sgd(tr_parameters(late), .lr = 0.1), *sharded = tr_sgd(tr_parameters(tr_linear(4, 4)), .lr = 0.1);
    OK(tr_step_in_backward(opt, true));
    CHECK(tr_status_of(tr_ddp(late, r->group)) == TR_UNSUPPORTED);
    CHECK(strstr(tr_error_message(), "steps \"weight\" in backward"));
    CHECK(tr_shard_optimizer(opt, r->group) == TR_UNSUPPORTED);
    OK(tr_shard_optimizer(sharded, r->group));
    CHECK(tr_step_in_backward(sharded, true) == TR_UNSUPPORTED);
    OK(tr_leave(r->group));
}

static void groups_refuse_it(void **state)
{
    (void)state;
    run(2, ranks_refuse_it, NULL);
}

/* ---- Failures ------------------------------------------------------------------------------------------------------------ */

static tr_status give_up(tr_tensor *leaf, tr_tensor *grad, void *seen)
{
    tr_tensor *now = tr_grad(leaf);
    *(bool *)seen = now == grad && tr_status_of(grad) == TR_OK && tr_numel(grad) == tr_numel(leaf);
    return tr__fail(TR_IO, "the hook gives up");
}

static void a_backward_that_fails_says_what_it_did(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = make_gpt(), *first = make_gpt();
    tr_tensor_list *p = tr_parameters(net);
    tr_optimizer *opt = tr_sgd(p, .lr = 0.1);
    TR_CHECK(tr_step_in_backward(opt, true));
    bool seen = false;
    size_t before, after, peak;
    tr__cpu_memory(0, &before, &peak);
    for (int late = 0; late < 2; late++) { /* the first gradient that is final; one of the last ones */
        TR_SCOPE;
        tr_tensor *leaf = tr_list_find(p, late ? "h.0.ln_1.weight" : "ln_f.weight");
        int hook = tr_grad_hook_add(leaf, give_up, &seen);
        seen = false;
        assert_int_equal(tr_backward(loss_of(net, 0)), TR_IO);
        assert_true(seen);
        assert_int_equal(late, strstr(tr_error_message(), "sgd steps in backward, and had updated") != NULL);
        assert_int_equal(late, differ(tr_parameters(first), p));
        if (late) assert_fails(tr_step(opt), TR_STATE, "load a checkpoint");
        else TR_CHECK(tr_step(opt));
        tr_grad_hook_remove(leaf, hook);
    }
    tr__cpu_memory(0, &after, &peak);
    assert_true(after < before + 64);
    take_step(net, opt, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_gives_the_same_bits),
        cmocka_unit_test(two_optimizers_of_one_net),
        cmocka_unit_test(what_is_read_again_waits),
        cmocka_unit_test(it_can_be_switched_and_restored),
        cmocka_unit_test(parameters_outlive_it),
        cmocka_unit_test(what_is_frozen_stays),
        cmocka_unit_test(gradients_take_no_memory),
        cmocka_unit_test(a_large_weight_goes_by_rows),
        cmocka_unit_test(what_it_cannot_do),
        cmocka_unit_test(pipelines_refuse_it),
        cmocka_unit_test(groups_refuse_it),
        cmocka_unit_test(a_backward_that_fails_says_what_it_did),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
