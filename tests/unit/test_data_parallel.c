/* DataParallel over logical CPU devices: n devices give what one gives. */
#include "autograd/arena.h"
#include "tensor/tensor.h"

#include <trireme/trireme.h>

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DEVICES = 4, BATCH = 22, STEPS = 4, WEIGHTS = 4096 };

#define FAILS(status_, expression, words)                                                                         \
    do {                                                                                                          \
        assert_int_equal((expression), status_);                                                                  \
        if (!strstr(tr_error_message(), words)) fail_msg("'%s' says nothing of '%s'", tr_error_message(), words); \
    } while (0)

static tr_module *make_net(void)
{
    return tr_sequential(tr_linear(6, 16, .seed = 1), tr_activation_layer(tr_gelu), tr_layer_norm(16), tr_dropout_layer(0.25),
        tr_linear(16, 16, .seed = 2), tr_activation_layer(tr_tanh), tr_linear(16, 3, .seed = 3));
}

static void read_weights(tr_module *net, float *to)
{
    tr_tensor_list *list = tr_parameters(net);
    memset(to, 0, WEIGHTS * sizeof *to);
    for (int i = 0; i < tr_list_count(list); i++) {
        tr_tensor *p = tr_list_at(list, i);
        assert_int_equal(tr_copy_out(p, to, (size_t)tr_numel(p) * sizeof *to), TR_OK);
        to += tr_numel(p);
    }
}

static void assert_close(const float *a, const float *b, size_t n, float bound)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) < bound)) fail_msg("%zu: %g and %g", i, (double)a[i], (double)b[i]);
}

/* Trains on `devices` devices (0: without the wrapper) and gives the weights. */
static void train(int devices, bool optimizer_first, float *weights)
{
    TR_SCOPE;
    tr_module *net = make_net();
    tr_optimizer *opt = optimizer_first ? tr_adamw(tr_parameters(net), .lr = 1e-2) : NULL;
    tr_module *model = devices ? tr_data_parallel(net, .count = devices) : net;
    if (!opt) opt = tr_adamw(tr_parameters(model), .lr = 1e-2);
    tr_tensor *x = tr_randn(50, TR_SHAPE(BATCH, 6)), *y = tr_argmax(tr_slice(x, 1, 0, 3), 1);
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        assert_int_equal(tr_seed(model, 9, .step = (uint64_t)step, .first_sample = 100), TR_OK);
        tr_zero_grad(opt);
        assert_int_equal(tr_backward(tr_cross_entropy(tr_forward(model, x), y)), TR_OK);
        assert_int_equal(tr_step(opt), TR_OK);
    }
    read_weights(net, weights);
}

static float weights[WEIGHTS], expected[WEIGHTS];

static void any_number_of_devices_is_like_one(void **state)
{
    (void)state;
    train(0, true, expected);
    for (int devices = 1; devices <= DEVICES; devices++)
        for (int first = 0; first < 2; first++) {
            train(devices, first, weights);
            assert_close(weights, expected, WEIGHTS, 2e-5f);
        }
}

/* Tied weights, pointers between modules, i64 inputs, a loss over all positions. */
static void train_gpt(bool wrapped, float *loss)
{
    TR_SCOPE;
    tr_module *net = tr_gpt(.vocab = 32, .context = 8, .layers = 2, .heads = 2, .dim = 16, .seed = 3);
    tr_module *model = wrapped ? tr_data_parallel(net) : net;
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 0.5);
    assert_int_equal(tr_status_of(opt), TR_OK);
    tr_tensor *ids = tr_cast(tr_affine(tr_rand(4, TR_SHAPE(6, 9)), 31, 0), TR_I64);
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        tr_zero_grad(opt);
        tr_tensor *y = tr_cross_entropy(tr_forward(model, tr_slice(ids, 1, 0, 8)), tr_slice(ids, 1, 1, 9));
        assert_int_equal(tr_backward(y), TR_OK);
        assert_int_equal(tr_step(opt), TR_OK);
        loss[step] = (float)tr_item(y);
    }
}

static void a_gpt_with_tied_weights_is_the_same(void **state)
{
    (void)state;
    float one[STEPS], several[STEPS];
    train_gpt(false, one);
    train_gpt(true, several);
    assert_close(several, one, STEPS, 1e-4f);
    assert_true(one[STEPS - 1] < one[0]);
}

/* Images, kept channels-last, and a batch norm whose statistics are fixed. */
static void train_images(bool wrapped, float *to)
{
    TR_SCOPE;
    tr_module *net = tr_sequential(tr_conv2d(3, 8, 3, .padding = 1, .seed = 1), tr_batch_norm2d(8), tr_relu_layer(),
        tr_max_pool2d_layer(2), tr_conv2d(8, 4, 3, .seed = 2), tr_flatten_layer(), tr_linear(16, 5, .seed = 3));
    tr_module *model = wrapped ? tr_data_parallel(net, .count = 3) : net;
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 0.1, .momentum = 0.9);
    assert_int_equal(tr_eval(model), TR_OK);
    tr_tensor *x = tr_randn(4, TR_SHAPE(10, 3, 8, 8)), *y = tr_argmax(tr_randn(5, TR_SHAPE(10, 5)), 1);
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        tr_zero_grad(opt);
        assert_int_equal(tr_backward(tr_cross_entropy(tr_forward(model, x), y)), TR_OK);
        assert_int_equal(tr_step(opt), TR_OK);
    }
    read_weights(net, to);
}

static void a_convolution_net_is_the_same(void **state)
{
    (void)state;
    train_images(false, expected);
    train_images(true, weights);
    assert_close(weights, expected, WEIGHTS, 2e-5f);
}

/* ---- Gradients ----------------------------------------------------------------------------------------------------------- */

typedef struct seen {
    int times;
    double sum;
} seen;

static tr_status count_hook(tr_tensor *leaf, tr_tensor *grad, void *user)
{
    (void)leaf;
    seen *s = user;
    s->times++;
    s->sum = tr_item(tr_sum(grad));
    return TR_OK;
}

static void hooks_see_the_sum_once_also_of_what_is_used_outside(void **state)
{
    (void)state;
    for (int outside = 0; outside < 2; outside++) {
        TR_SCOPE;
        tr_module *net = tr_linear(1, 1, .no_bias = true), *model = tr_data_parallel(net);
        tr_tensor *w = tr_list_at(tr_parameters(net), 0), *y = tr_sum(tr_forward(model, tr_ones(TR_SHAPE(10, 1))));
        seen s = {0};
        assert_true(tr_grad_hook_add(w, count_hook, &s) >= 0);
        if (outside) y = tr_add(y, tr_sum(tr_affine(w, 5, 0)));
        assert_int_equal(tr_backward(y), TR_OK);
        assert_int_equal(s.times, 1);
        assert_true(s.sum == (outside ? 15 : 10));
        assert_true(tr_item(tr_grad(w)) == s.sum);
    }
}

static void gradients_accumulate_and_graphs_can_be_kept(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_linear(1, 1, .no_bias = true), *model = tr_data_parallel(net);
    tr_tensor *w = tr_list_at(tr_parameters(net), 0), *y = tr_sum(tr_forward(model, tr_ones(TR_SHAPE(10, 1))));
    assert_int_equal(tr_backward(y, .retain_graph = true), TR_OK);
    assert_int_equal(tr_backward(y), TR_OK);
    assert_true(tr_item(tr_grad(w)) == 20);
    FAILS(TR_STATE, tr_backward(y), "retain_graph");
    y = tr_sum(tr_forward(model, tr_ones(TR_SHAPE(10, 1))));
    assert_int_equal(tr_fill(w, 3), TR_OK);
    FAILS(TR_STATE, tr_backward(y), "written to");
}

static void inputs_get_gradients(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = make_net(), *model = tr_data_parallel(net);
    assert_int_equal(tr_eval(model), TR_OK);
    tr_tensor *grads[2];
    for (int i = 0; i < 2; i++) {
        tr_tensor *x = tr_randn(50, TR_SHAPE(BATCH, 6), .requires_grad = true);
        tr_tensor *y = tr_forward(i ? model : net, tr_affine(x, 2, 0));
        assert_int_equal(tr_backward(tr_sum(tr_mul(y, y))), TR_OK);
        grads[i] = tr_grad(x);
    }
    assert_true(tr_item(tr_max(tr_abs(tr_sub(grads[0], grads[1])))) < 1e-5);
    assert_true(tr_item(tr_max(tr_abs(grads[0]))) > 1e-2);
}

static void without_a_graph_nothing_is_recorded(void **state)
{
    (void)state;
    TR_SCOPE;
    TR_NO_GRAD;
    tr_module *net = make_net(), *model = tr_data_parallel(net);
    assert_int_equal(tr_eval(model), TR_OK);
    tr_tensor *x = tr_randn(50, TR_SHAPE(BATCH, 6)), *y = tr_forward(model, x);
    assert_int_equal(tr_status_of(y), TR_OK);
    assert_false(tr_requires_grad(y));
    assert_true(tr_item(tr_max(tr_abs(tr_sub(y, tr_forward(net, x))))) < 1e-6);
}

/* Twice the same: what the first run leaves behind would show in the second. */
static void nothing_is_left_behind(void **state)
{
    (void)state;
    size_t used[DEVICES][2], peak;
    for (int run = 0; run < 2; run++) {
        {
            TR_SCOPE;
            tr_module *model = tr_data_parallel(tr_linear(64, 64));
            tr_tensor *x = tr_ones(TR_SHAPE(64, 64));
            tr_tensor *dropped = tr_sum(tr_forward(model, x)), *walked = tr_sum(tr_forward(model, x));
            assert_int_equal(tr_status_of(dropped), TR_OK); /* a graph that no backward walks */
            assert_int_equal(tr_backward(walked), TR_OK);
        }
        for (int i = 0; i < DEVICES; i++) tr__cpu_memory(i, &used[i][run], &peak);
    }
    for (int i = 0; i < DEVICES; i++) assert_int_equal(used[i][0], used[i][1]);
}

/* ---- A program's own modules ---------------------------------------------------------------------------------------------- */

typedef struct probe {
    tr_tensor *weight, *sum;
    atomic_int *runs;  /* shared by the replicas */
    double refused;    /* fails on a share that has it in its first element */
    bool scalar;
} probe;

static tr_tensor *probe_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const probe *p = tr_module_state(self);
    atomic_fetch_add(p->runs, 1);
    if (p->refused != 0 && tr_item(tr_slice(inputs[0], 0, 0, 1)) == p->refused) return tr_tensor_fail(TR_INVALID, "refuses %g", p->refused);
    if (tr_copy_into(p->sum, tr_sum(inputs[0])) != TR_OK) return tr_tensor_fail(TR_INTERNAL, "no sum");
    tr_tensor *y = tr_mul(inputs[0], p->weight);
    if (n == 2) y = tr_add(y, inputs[1]);
    return p->scalar ? tr_sum(y) : y;
}

static atomic_int runs;

static tr_module *make_probe(probe **out)
{
    tr_module *module = tr_module_new("probe", sizeof(probe), probe_forward);
    probe *p = *out = tr_module_state(module);
    p->weight = tr_module_parameter(module, "weight", tr_full(2, TR_SHAPE(1)));
    p->sum = tr_module_buffer(module, "sum", tr_zeros(TR_SCALAR));
    p->runs = &runs;
    atomic_store(&runs, 0);
    return module;
}

static void small_batches_take_fewer_replicas(void **state)
{
    (void)state;
    TR_SCOPE;
    probe *p;
    tr_module *model = tr_data_parallel(make_probe(&p));
    for (int rows = 1; rows <= DEVICES + 2; rows++) {
        atomic_store(&runs, 0);
        tr_tensor *y = tr_forward(model, tr_ones(TR_SHAPE(rows, 1)));
        assert_int_equal(tr_size(y, 0), rows);
        assert_int_equal(atomic_load(&runs), rows < DEVICES ? rows : DEVICES);
    }
    tr_tensor *none = tr_forward(model, tr_ones(TR_SHAPE(0, 3)));
    assert_int_equal(tr_status_of(none), TR_OK);
    assert_true(tr_ndim(none) == 2 && tr_size(none, 0) == 0);
}

static void buffers_are_those_of_the_first_replica(void **state)
{
    (void)state;
    TR_SCOPE;
    probe *p;
    tr_module *model = tr_data_parallel(make_probe(&p));
    assert_int_equal(tr_status_of(tr_forward(model, tr_arange(8, TR_F32, tr_cpu(0)))), TR_OK);
    assert_true(tr_item(p->sum) == 0 + 1);
}

static void scalars_become_a_vector(void **state)
{
    (void)state;
    TR_SCOPE;
    probe *p;
    tr_module *model = tr_data_parallel(make_probe(&p));
    p->scalar = true; /* read at each forward */
    tr_tensor *y = tr_forward(model, tr_arange(8, TR_F32, tr_cpu(0)), tr_ones(TR_SHAPE(8)));
    float got[DEVICES];
    assert_int_equal(tr_copy_out(y, got, sizeof got), TR_OK);
    for (int i = 0; i < DEVICES; i++) assert_true(got[i] == (float)(2 * (4 * i + 1) + 2));
    assert_int_equal(tr_backward(tr_mean(y)), TR_OK);
    assert_true(tr_item(tr_grad(p->weight)) == 28.0 / DEVICES);
}

static void a_replica_that_fails_is_named_and_the_others_end(void **state)
{
    (void)state;
    TR_SCOPE;
    probe *p;
    tr_module *model = tr_data_parallel(make_probe(&p));
    p->refused = 4;
    tr_tensor *x = tr_arange(8, TR_F32, tr_cpu(0));
    FAILS(TR_INVALID, tr_status_of(tr_forward(model, x)), "replica 2 on cpu:2: probe: refuses 4");
    assert_int_equal(atomic_load(&runs), DEVICES);
    p->refused = 0;
    assert_int_equal(tr_backward(tr_sum(tr_forward(model, x))), TR_OK);
    assert_true(tr_item(tr_grad(p->weight)) == 28);
}

static tr_status fail_infer(tr_op_call *call)
{
    return tr_op_output(call, 0, tr_shape_of(call->inputs[0]), TR_F32);
}

static tr_status fail_forward(tr_op_call *call)
{
    return tr_copy_into(call->outputs[0], call->inputs[0]);
}

static tr_status fail_backward(tr_backward_call *call)
{
    return tr_fail(TR_INVALID, "no gradient for %g", tr_item(tr_slice(call->inputs[0], 0, 0, 1)));
}

static const tr_op failing = {sizeof(tr_op), "failing", 0, fail_infer, fail_forward, fail_backward, 1, 0, 0};

static tr_tensor *apply_failing(tr_tensor *x)
{
    return tr_apply(&failing, NULL, &x, 1, NULL);
}

static void a_backward_that_fails_is_named(void **state)
{
    (void)state;
    TR_SCOPE;
    probe *p;
    tr_module *model = tr_data_parallel(tr_sequential(make_probe(&p), tr_activation_layer(apply_failing)), .count = 2);
    tr_tensor *y = tr_forward(model, tr_arange(8, TR_F32, tr_cpu(0)));
    FAILS(TR_INVALID, tr_backward(tr_sum(y)), "replica 0 on cpu:0: no gradient for 0");
}

static tr_tensor *call_module(tr_tensor *const *inputs, int n, void *module)
{
    return tr_forward_n(module, inputs, n);
}

static void recompute_goes_on_modules_inside(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = make_net(), *model = tr_data_parallel(net);
    tr_tensor *x = tr_randn(50, TR_SHAPE(BATCH, 6));
    float gradient[2][6 * 16];
    assert_int_equal(tr_eval(net), TR_OK);
    FAILS(TR_UNSUPPORTED, tr_status_of(tr_checkpoint(call_module, &x, 1, model)), "set recompute on modules inside");
    assert_int_equal(tr_set_recompute(model, true), TR_OK);
    FAILS(TR_UNSUPPORTED, tr_status_of(tr_forward(model, x)), "set recompute on modules inside");
    assert_int_equal(tr_set_recompute(model, false), TR_OK);
    for (int inside = 0; inside < 2; inside++) {
        assert_int_equal(tr_set_recompute(net, inside), TR_OK);
        tr_tensor *weight = tr_list_at(tr_parameters(net), 0), *y = tr_forward(model, x);
        tr_clear_grad(weight);
        assert_int_equal(tr_backward(tr_mean(tr_mul(y, y))), TR_OK);
        assert_int_equal(tr_copy_out(tr_grad(weight), gradient[inside], sizeof gradient[inside]), TR_OK);
    }
    assert_memory_equal(gradient[0], gradient[1], sizeof gradient[0]);
}

static void the_module_must_be_finished(void **state)
{
    (void)state;
    TR_SCOPE;
    for (int frozen = 0; frozen < 2; frozen++) {
        tr_module *net = tr_sequential(tr_linear(1, 1)), *model = tr_data_parallel(net);
        assert_int_equal(tr_freeze(net, frozen), TR_OK);
        tr_module_add(net, "late", tr_linear(1, 1));
        FAILS(TR_STATE, tr_status_of(tr_forward(model, tr_ones(TR_SHAPE(8, 1)))), "finish it before");
    }
}

static void wrong_arguments_are_errors(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = make_net();
    tr_device list[] = {tr_cpu(0), tr_cpu(9)}, twice[] = {tr_cpu(0), tr_cpu(1), tr_cpu(0)}, other[] = {tr_cpu(1), tr_cpu(2)};
    FAILS(TR_DEVICE, tr_status_of(tr_data_parallel(net, .devices = list, .count = 2)), "cpu:0 to cpu:3");
    FAILS(TR_DEVICE, tr_status_of(tr_data_parallel(net, .count = 5)), "this process has 4");
    FAILS(TR_INVALID, tr_status_of(tr_data_parallel(net, .devices = twice, .count = 3)), "cpu:0 is given twice");
    FAILS(TR_DEVICE, tr_status_of(tr_data_parallel(net, .devices = other, .count = 2)), "\"0.weight\" is on cpu:0");
    FAILS(TR_INVALID, tr_status_of(tr_data_parallel(net, .devices = list)), "at least 1");
    FAILS(TR_INVALID, tr_status_of(tr_data_parallel(NULL)), "not NULL");
    FAILS(TR_UNSUPPORTED, tr_status_of(tr_data_parallel(tr_sequential(tr_data_parallel(net)))), "at \"0\"");
    FAILS(TR_INVALID, tr_status_of(tr_data_parallel(tr_linear(0, 1))), "positive");
    tr_module *model = tr_data_parallel(net);
    FAILS(TR_SHAPE, tr_status_of(tr_forward(model, tr_ones(TR_SCALAR))), "input 0 is a scalar");
    FAILS(TR_SHAPE, tr_status_of(tr_forward(model, tr_ones(TR_SHAPE(2, 6)), tr_ones(TR_SHAPE(3, 1)))), "[2, 6] and [3, 1]");
    FAILS(TR_STATE, tr_status_of(tr_forward(model, tr_ones(TR_SHAPE(8, 6)))), "call tr_seed");
    assert_non_null(tr_list_find(tr_state_dict(model), "0.weight"));
    /* A module that is elsewhere begins with its own device. */
    assert_int_equal(tr_module_to(net, tr_cpu(2)), TR_OK);
    assert_int_equal(tr_eval(net), TR_OK);
    tr_tensor *y = tr_forward(tr_data_parallel(net, .count = 3), tr_ones(TR_SHAPE(8, 6)));
    assert_int_equal(tr_status_of(y), TR_OK);
    assert_true(tr_device_equal(tr_device_of(y), tr_cpu(2)));
}

/* ---- Ranks that have several devices each --------------------------------------------------------------------------------- */

typedef struct hybrid {
    tr_store *store;
    int rank, ranks;
    float weights[WEIGHTS];
    tr_status status;
} hybrid;

static tr_status train_hybrid(hybrid *h)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = h->store, .rank = h->rank, .world_size = h->ranks);
    tr_module *net = make_net();
    tr_module *model = tr_ddp(tr_data_parallel(net, .count = 2), group, .bucket_mb = 1e-3);
    tr_optimizer *opt = tr_sgd(tr_parameters(model), .lr = 0.1, .momentum = 0.9);
    tr_tensor *x = tr_randn(50, TR_SHAPE(24, 6)), *y = tr_argmax(tr_slice(x, 1, 0, 3), 1);
    int64_t rows = 24 / h->ranks, first = h->rank * rows;
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        TR_CHECK(tr_seed(model, 9, .step = (uint64_t)step, .first_sample = (uint64_t)first));
        tr_zero_grad(opt);
        tr_tensor *out = tr_forward(model, tr_slice(x, 0, first, first + rows));
        TR_CHECK(tr_backward(tr_cross_entropy(out, tr_slice(y, 0, first, first + rows))));
        TR_CHECK(tr_step(opt));
    }
    read_weights(net, h->weights);
    return tr_leave(group);
}

static void *run_hybrid(void *arg)
{
    hybrid *h = arg;
    h->status = train_hybrid(h);
    return NULL;
}

static hybrid both[2], single;

static void ranks_with_several_devices_are_like_one(void **state)
{
    (void)state;
    TR_SCOPE;
    single = (hybrid){.store = tr_store_memory(), .ranks = 1};
    run_hybrid(&single);
    tr_store *store = tr_store_memory();
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        both[i] = (hybrid){.store = store, .rank = i, .ranks = 2};
        assert_int_equal(pthread_create(&threads[i], NULL, run_hybrid, &both[i]), 0);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(both[i].status, TR_OK);
        assert_close(both[i].weights, single.weights, WEIGHTS, 2e-5f);
    }
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "4", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_devices_is_like_one),
        cmocka_unit_test(a_gpt_with_tied_weights_is_the_same),
        cmocka_unit_test(a_convolution_net_is_the_same),
        cmocka_unit_test(hooks_see_the_sum_once_also_of_what_is_used_outside),
        cmocka_unit_test(gradients_accumulate_and_graphs_can_be_kept),
        cmocka_unit_test(inputs_get_gradients),
        cmocka_unit_test(without_a_graph_nothing_is_recorded),
        cmocka_unit_test(nothing_is_left_behind),
        cmocka_unit_test(small_batches_take_fewer_replicas),
        cmocka_unit_test(buffers_are_those_of_the_first_replica),
        cmocka_unit_test(scalars_become_a_vector),
        cmocka_unit_test(a_replica_that_fails_is_named_and_the_others_end),
        cmocka_unit_test(a_backward_that_fails_is_named),
        cmocka_unit_test(recompute_goes_on_modules_inside),
        cmocka_unit_test(the_module_must_be_finished),
        cmocka_unit_test(wrong_arguments_are_errors),
        cmocka_unit_test(ranks_with_several_devices_are_like_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
