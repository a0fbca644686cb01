/* Modules: their tree, state dicts, errors, modes, seeds; the layers; GPT-2's shape. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/object.h"
#include "nn/module.h"

#include <trireme/trireme.h>

static void assert_failed(const void *object, tr_status status, const char *part)
{
    assert_int_equal(tr_status_of(object), status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

static void assert_begins(const void *object, const char *words)
{
    assert_int_not_equal(tr_status_of(object), TR_OK);
    if (strncmp(tr_error_message(), words, strlen(words)) != 0) fail_msg("\"%s\" does not begin with \"%s\"", tr_error_message(), words);
}

static void assert_refused(tr_status got, tr_status status, const char *part)
{
    assert_int_equal(got, status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

static double at(const tr_tensor *t, int64_t i)
{
    return (double)((const float *)tr_data(t))[i];
}

static bool same_values(const tr_tensor *a, const tr_tensor *b)
{
    size_t bytes = (size_t)tr_numel(a) * tr_dtype_size(tr_dtype_of(a));
    return tr_numel(a) == tr_numel(b) && memcmp(tr_data(a), tr_data(b), bytes) == 0;
}

/* ---- The tree --------------------------------------------------------------------------------------------------- */

static void test_paths_in_the_order_of_adding(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *inner = tr_module_new("inner", 0, NULL);
    tr_tensor *w = tr_module_parameter(inner, "w", tr_ones(TR_SHAPE(2)));
    tr_module *outer = tr_module_new("outer", 0, NULL);
    tr_module_buffer(outer, "mean", tr_zeros(TR_SHAPE(3)));
    tr_module_add(outer, "part", inner);
    tr_module_parameter(outer, "scale", tr_ones(TR_SHAPE(1)));
    tr_module_parameter(outer, "again", w); /* tied: stands under its first name */
    TR_CHECK(tr_status_of(outer));

    tr_tensor_list *parameters = tr_parameters(outer), *all = tr_state_dict(outer);
    assert_int_equal(tr_list_count(parameters), 2);
    assert_string_equal(tr_list_name(parameters, 0), "part.w");
    assert_string_equal(tr_list_name(parameters, 1), "scale");
    assert_ptr_equal(tr_list_at(parameters, 0), w);
    assert_true(tr_requires_grad(w));
    assert_int_equal(tr_list_count(all), 3);
    assert_string_equal(tr_list_name(all, 0), "mean");
}

/* A child named "" is seen through: how DDP wraps. */
static void test_a_wrapper_adds_nothing_to_paths(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_sequential(tr_linear(2, 2), tr_linear(2, 2));
    tr_module *wrapper = tr_module_new("wrapper", 0, NULL);
    tr_module_add(wrapper, "", net);
    tr_tensor_list *a = tr_state_dict(net), *b = tr_state_dict(wrapper);
    assert_int_equal(tr_list_count(b), 4);
    for (int i = 0; i < 4; i++) assert_string_equal(tr_list_name(a, i), tr_list_name(b, i));
    assert_string_equal(tr_list_name(b, 3), "1.bias");
}

static void test_modules_are_found_by_their_paths(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *gpt = tr_gpt(.vocab = 8, .context = 4, .layers = 2, .heads = 1, .dim = 4);
    tr_module *wrapper = tr_module_add(tr_module_new("wrapper", 0, NULL), "", gpt);
    TR_CHECK(tr_status_of(wrapper));
    assert_ptr_equal(tr_module_find(gpt, ""), gpt);
    assert_string_equal(tr_module_name(tr_module_find(gpt, "h.1")), "block");
    assert_ptr_not_equal(tr_module_find(gpt, "h.1"), tr_module_find(gpt, "h.0"));
    assert_non_null(tr_module_find(gpt, "h.1.mlp.c_fc"));
    assert_ptr_equal(tr_module_find(wrapper, "ln_f"), tr_module_find(gpt, "ln_f"));
    assert_null(tr_module_find(gpt, "h.2"));
    assert_null(tr_module_find(gpt, "h.1.mlp.c_fc.weight")); /* a parameter */
    assert_null(tr_module_find(gpt, "ln"));
}

static void test_a_module_outlives_its_scope_when_kept(void **state)
{
    (void)state;
    tr_module *net;
    {
        TR_SCOPE;
        net = tr_keep(tr_sequential(tr_linear(3, 4, .seed = 1), tr_activation_layer(tr_relu), tr_linear(4, 1, .seed = 2)));
    }
    TR_SCOPE;
    assert_int_equal(tr_list_count(tr_parameters(net)), 4);
    TR_CHECK(tr_status_of(tr_forward(net, tr_ones(TR_SHAPE(2, 3)))));
    tr_release(net);
}

static void test_what_cannot_be_added(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *m = tr_module_new("m", 0, NULL);
    assert_failed(tr_module_parameter(m, "a.b", tr_ones(TR_SHAPE(1))), TR_INVALID, "a.b");
    assert_failed(m, TR_INVALID, "a.b");
    assert_failed(tr_forward(m, tr_ones(TR_SHAPE(1))), TR_INVALID, "a.b");
    assert_failed(tr_parameters(m), TR_INVALID, "a.b");

    m = tr_module_new("m", 0, NULL);
    tr_module_parameter(m, "x", tr_ones(TR_SHAPE(1)));
    assert_failed(tr_module_buffer(m, "x", tr_ones(TR_SHAPE(1))), TR_INVALID, "already");

    m = tr_module_new("m", 0, NULL);
    assert_failed(tr_module_parameter(m, "ids", tr_zeros(TR_SHAPE(1), .dtype = TR_I64)), TR_DTYPE, "ids");

    m = tr_module_new("m", 0, NULL);
    tr_module *child = tr_module_new("child", 0, NULL);
    tr_module_add(m, "child", child);
    assert_failed(tr_module_add(child, "up", m), TR_INVALID, "cannot be a part");
    assert_failed(tr_module_add(m, "bad", tr_linear(0, 3)), TR_INVALID, "in_features");
    assert_failed(m, TR_INVALID, "in_features");

    m = tr_module_new("m", 0, NULL);
    assert_null(tr_module_parameter(m, "none", NULL));
    TR_CHECK(tr_status_of(m));
}

/* ---- Running ---------------------------------------------------------------------------------------------------- */

static tr_tensor *runs_kept(tr_module *self, tr_tensor *const *inputs, int n)
{
    return tr_forward_n(*(tr_module **)tr_module_state(self), inputs, n);
}

static tr_tensor *fails(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)self;
    (void)n;
    return tr_matmul(inputs[0], inputs[0]);
}

static tr_tensor *returns_null(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)self;
    (void)inputs;
    (void)n;
    return NULL;
}

static void count_down(void *state)
{
    --**(int **)state;
}

static void test_a_state_is_released_once(void **state)
{
    (void)state;
    int held = 1;
    {
        TR_SCOPE;
        tr_module *m = tr_module_new("holder", sizeof(int *), NULL);
        *(int **)tr_module_state(m) = &held;
        tr_module_on_release(m, count_down);
        tr_module *around = tr_sequential(m);
        TR_CHECK(tr_status_of(around));
        assert_int_equal(held, 1);
        tr_module_on_release(tr_module_fail(TR_INVALID, "no module"), count_down); /* does nothing */
    }
    assert_int_equal(held, 0);
}

static void test_errors_tell_the_way(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_sequential(tr_module_new("square", 0, fails));
    tr_tensor *y = tr_forward(net, tr_ones(TR_SHAPE(2, 3)));
    assert_failed(y, TR_SHAPE, "sequential.0: square: matmul");
    assert_failed(tr_forward(net, y), TR_SHAPE, "sequential.0: square: matmul"); /* passed on, not told twice */
    assert_begins(tr_forward(tr_sequential(tr_relu_layer(), tr_sequential(tr_relu_layer(), tr_linear(4, 2))), tr_ones(TR_SHAPE(2, 3))),
        "sequential.1.1: linear: ");
    tr_tensor *image = tr_ones(TR_SHAPE(2, 3, 32, 32));
    tr_module *resnet = tr_resnet18(.classes = 10);
    TR_CHECK(tr_status_of(tr_forward(resnet, image)));
    assert_begins(tr_forward(tr_sequential(resnet, tr_linear(11, 2)), image), "sequential.1: linear: ");
    assert_begins(tr_forward(resnet, tr_ones(TR_SHAPE(2, 4, 32, 32))), "conv1: conv2d: ");
    tr_module *named = tr_module_new("named", sizeof(tr_module *), runs_kept);
    *(tr_module **)tr_module_state(named) = tr_module_add(named, "body", tr_sequential(tr_relu_layer(), tr_linear(4, 2)));
    assert_begins(tr_forward(named, tr_ones(TR_SHAPE(2, 3))), "body.1: linear: ");

    /* A wrapper counts as what it wraps. An error of a module that is not among its parts gets its name in front. */
    tr_module *wrapper = tr_module_new("wrapper", sizeof(tr_module *), runs_kept);
    *(tr_module **)tr_module_state(wrapper) = tr_module_add(wrapper, "", tr_sequential(tr_relu_layer(), tr_linear(4, 2)));
    assert_begins(tr_forward(wrapper, tr_ones(TR_SHAPE(2, 3))), "sequential.1: linear: ");
    assert_begins(tr_forward(tr_sequential(wrapper), tr_ones(TR_SHAPE(2, 3))), "sequential.0.1: linear: ");
    tr_module *owner = tr_module_new("owner", sizeof(tr_module *), runs_kept);
    *(tr_module **)tr_module_state(owner) = net;
    assert_begins(tr_forward(tr_sequential(tr_relu_layer(), owner), tr_ones(TR_SHAPE(2, 3))),
        "sequential.1: owner: sequential.0: square: matmul");
    assert_failed(tr_forward(tr_module_new("list", 0, NULL), tr_ones(TR_SHAPE(1))), TR_INVALID, "no forward");
    assert_failed(tr_forward(tr_module_new("void", 0, returns_null), tr_ones(TR_SHAPE(1))), TR_INVALID, "NULL");
    assert_failed(tr_forward((tr_module *)NULL, tr_ones(TR_SHAPE(1))), TR_INVALID, "NULL");
    assert_failed(tr_forward(tr_linear(2, 2), NULL), TR_INVALID, "one input");
    assert_failed(tr_tensor_fail(TR_DTYPE, "swish: %d", 7), TR_DTYPE, "swish: 7");
    assert_failed(tr_module_fail(TR_INVALID, "net: %s", "no"), TR_INVALID, "net: no");
}

static void test_what_a_forward_makes_goes_when_it_returns(void **state)
{
    (void)state;
    TR_SCOPE;
    TR_NO_GRAD;
    tr_module *layers[16];
    for (int i = 0; i < 16; i++) layers[i] = tr_activation_layer(tr_exp);
    tr_module *net = tr_sequential_n(layers, 16);
    tr_tensor *x = tr_zeros(TR_SHAPE(1 << 20)); /* 4 MiB; each layer makes as much again */
    size_t before, after, peak_before, peak;
    tr__cpu_memory(0, &before, &peak_before);
    TR_CHECK(tr_status_of(tr_forward(net, x)));
    tr__cpu_memory(0, &after, &peak);
    assert_true(after <= before + (5u << 20));
    assert_true(peak == peak_before || peak <= before + (9u << 20));
}

/* A module that returns its input, as a dropout in evaluation, at the end of others. */
static void test_a_module_that_changes_nothing(void **state)
{
    (void)state;
    TR_SCOPE;
    TR_NO_GRAD;
    tr_module *linear = tr_linear(3, 2, .seed = 1);
    tr_module *net = tr_sequential(linear, tr_dropout_layer(0.5), tr_dropout_layer(0.5));
    TR_CHECK(tr_eval(net));
    tr_tensor *x = tr_randn(1, TR_SHAPE(4, 3)), *y = tr_forward(net, x), *expected = tr_forward(linear, x);
    TR_CHECK(tr_status_of(y));
    assert_memory_equal(tr_data(y), tr_data(expected), 8 * sizeof(float));
}

/* The compiler only warns of tr_relu in the place of tr_relu_layer(). */
static void test_an_op_is_no_module(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_sequential(tr_linear(3, 2), (tr_module *)(void *)tr_relu);
    assert_int_equal(tr_status_of(net), TR_INVALID);
    assert_string_equal(tr_error_message(),
        "sequential: \"1\" is no module: where it is an op, such as tr_relu, give tr_relu_layer()");
}

/* Modules in a row run, whatever else the row has been given. */
static void test_a_sequential_with_tensors_of_its_own(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_sequential(tr_relu_layer());
    tr_module_parameter(net, "scale", tr_ones(TR_SHAPE(1)));
    tr_module_add(net, "tanh", tr_activation_layer(tr_tanh));
    tr_module_buffer(net, "count", tr_ones(TR_SHAPE(1)));
    assert_true(fabs(tr_item(tr_forward(net, tr_ones(TR_SHAPE(1)))) - tanh(1)) < 1e-6);
    tr_module *bare = tr_sequential_n(NULL, 0);
    tr_module_buffer(bare, "count", tr_ones(TR_SHAPE(1)));
    assert_true(tr_item(tr_forward(bare, tr_full(3, TR_SHAPE(1)))) == 3);
}

static void test_linear(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *torch = tr_linear(3, 2, .seed = 5), *conv = tr_linear(3, 2, .in_out = true, .init_std = 0.02, .seed = 5);
    tr_tensor_list *a = tr_parameters(torch), *b = tr_parameters(conv);
    assert_int_equal(tr_size(tr_list_find(a, "weight"), 0), 2);
    assert_int_equal(tr_size(tr_list_find(b, "weight"), 0), 3);
    for (int i = 0; i < 6; i++) assert_true(fabs(at(tr_list_find(a, "weight"), i)) <= 1 / sqrt(3));
    assert_true(at(tr_list_find(a, "bias"), 0) != 0);
    assert_true(at(tr_list_find(b, "bias"), 0) == 0);
    assert_int_equal(tr_list_count(tr_parameters(tr_linear(3, 2, .no_bias = true))), 1);

    tr_tensor *x = tr_from(((float[]){1, 0, 0}), TR_SHAPE(1, 3)), *r = tr_full(10, TR_SHAPE(1, 2));
    tr_tensor *y = tr_forward(torch, x), *z = tr_forward(torch, x, r);
    double expected = at(tr_list_find(a, "weight"), 3) + at(tr_list_find(a, "bias"), 1);
    assert_true(fabs(at(y, 1) - expected) < 1e-6);
    assert_true(fabs(at(z, 1) - expected - 10) < 1e-5);
    y = tr_forward(conv, x);
    assert_true(fabs(at(y, 1) - at(tr_list_find(b, "weight"), 1)) < 1e-6);
    assert_failed(tr_linear(3, 2, .init_std = -1), TR_INVALID, "init_std");
    tr_tensor *zero = tr_list_find(tr_parameters(tr_linear(3, 2, .init_std = 0)), "weight");
    for (int i = 0; i < 6; i++) assert_true(at(zero, i) == 0);
}

static double difference(tr_tensor *a, tr_tensor *b)
{
    return tr_item(tr_max(tr_abs(tr_sub(a, b))));
}

static void test_norms(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *rms = tr_rms_norm(6), *group = tr_group_norm(2, 4, .eps = 1e-3);
    tr_tensor *rows = tr_randn(1, TR_SHAPE(3, 6)), *images = tr_randn(2, TR_SHAPE(2, 4, 3, 3));
    assert_int_equal(tr_list_count(tr_state_dict(rms)), 1);
    assert_int_equal(tr_list_count(tr_state_dict(group)), 2);
    assert_int_equal(tr_fill(tr_list_find(tr_state_dict(rms), "weight"), 3), TR_OK);
    assert_int_equal(tr_fill(tr_list_find(tr_state_dict(group), "bias"), 1), TR_OK);
    assert_true(difference(tr_forward(rms, rows), tr_affine(tr_rms_norm_op(rows, NULL, 1e-6), 3, 0)) < 1e-6);
    assert_true(difference(tr_forward(group, images), tr_affine(tr_group_norm_op(images, 2, NULL, NULL, 1e-3), 1, 1)) < 1e-6);
    assert_failed(tr_rms_norm(0), TR_INVALID, "rms_norm: dim must be positive, not 0");
    assert_failed(tr_rms_norm(4, .eps = -1), TR_INVALID, "rms_norm: eps must not be negative");
    assert_failed(tr_group_norm(3, 4), TR_INVALID, "group_norm: 4 channels do not divide into 3 groups");
    assert_failed(tr_group_norm(2, 4, .eps = -1), TR_INVALID, "group_norm: eps must not be negative");
}

static void test_init_depends_on_the_seed_alone(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *a = tr__init_normal(TR_SHAPE(1000), TR_F32, 7, 0.02);
    tr_tensor *b = tr__init_normal(TR_SHAPE(10, 100), TR_F32, 7, 0.02);
    assert_true(same_values(a, b));
    assert_false(same_values(a, tr__init_normal(TR_SHAPE(1000), TR_F32, 8, 0.02)));
    double sum = 0, squares = 0;
    for (int i = 0; i < 1000; i++) {
        sum += at(a, i);
        squares += at(a, i) * at(a, i);
    }
    assert_true(fabs(sum / 1000) < 0.002);
    assert_true(fabs(sqrt(squares / 1000) - 0.02) < 0.002);
    tr_tensor *u = tr__init_uniform(TR_SHAPE(1000), TR_F64, 7, 0.5);
    assert_int_equal(tr_dtype_of(u), TR_F64);
    for (int i = 0; i < 1000; i++) assert_true(fabs(((double *)tr_data(u))[i]) <= 0.5);
    assert_int_equal(tr_dtype_of(tr_list_at(tr_parameters(tr_linear(2, 2, .dtype = TR_BF16)), 0)), TR_BF16);
}

enum { MODELS = 10 };

/* Model i without a seed; those that a thread makes count from 0. */
static tr_module *unseeded(int i)
{
    switch (i) {
    case 0: return tr_linear(8, 16);
    case 1: return tr_embedding(8, 16);
    case 2: return tr_multihead_attention(8, 2);
    case 3: return tr_conv2d(2, 4, 3);
    case 4: return tr_conv_transpose1d(2, 4, 3);
    case 5: return tr_lenet();
    case 6: return tr_gpt(.vocab = 8, .context = 4, .layers = 2, .heads = 1, .dim = 8);
    case 7: return tr_bert(.vocab = 8, .positions = 4, .layers = 1, .heads = 1, .dim = 8);
    case 8: return tr_transformer(.dim = 8, .heads = 2, .layers = 1);
    default: return tr_vit(.image = 8, .patch = 4, .layers = 1, .heads = 1, .dim = 8);
    }
}

static tr_tensor *first_matrix(tr_module *module)
{
    tr_tensor_list *parameters = tr_parameters(module);
    for (int i = 0; i < tr_list_count(parameters); i++)
        if (tr_ndim(tr_list_at(parameters, i)) == 2) return tr_list_at(parameters, i);
    return tr_list_at(parameters, 0);
}

static void *make_all(void *seeds)
{
    for (int i = 0; i < MODELS; i++) {
        TR_SCOPE;
        (void)unseeded(i);
    }
    *(uint64_t *)seeds = tr_next_seed();
    return NULL;
}

static void *draw_as_many(void *seeds)
{
    for (int i = 0; i <= MODELS; i++) *(uint64_t *)seeds = tr_next_seed();
    return NULL;
}

static void test_without_seeds_no_two_start_alike(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *given = tr_linear(8, 16, .seed = 3);
    for (int i = 0; i < MODELS; i++) assert_false(same_values(first_matrix(unseeded(i)), first_matrix(unseeded(i))));
    assert_true(same_values(first_matrix(given), first_matrix(tr_linear(8, 16, .seed = 3)))); /* whatever was made between */

    /* Layers of one model differ, too: BERT's query, key, value and what follows are of one size. */
    tr_tensor_list *parameters = tr_parameters(unseeded(7));
    tr_tensor *squares[8];
    int n = 0;
    for (int i = 0; i < tr_list_count(parameters); i++) {
        tr_tensor *p = tr_list_at(parameters, i);
        if (tr_ndim(p) == 2 && strstr(tr_list_name(parameters, i), "attention")) squares[n++] = p;
    }
    assert_int_equal(n, 4);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) assert_false(same_values(squares[i], squares[j]));
}

/* Every thread begins anew, and a model takes one seed, however many layers it has: so ranks start alike. */
static void test_threads_count_their_modules(void **state)
{
    (void)state;
    uint64_t after[3];
    void *(*work[])(void *) = {make_all, make_all, draw_as_many};
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, work[i], &after[i]), 0);
        pthread_join(thread, NULL);
    }
    assert_true(after[0] == after[1]);
    assert_true(after[0] == after[2]);
    TR_SCOPE;
    tr_module *net = tr_linear(3, 4, .seed = after[2]);
    assert_false(same_values(first_matrix(net), first_matrix(tr_linear(3, 4))));
}

static void test_dropout_draws_by_path_and_seed(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *a = tr_dropout_layer(0.5), *b = tr_dropout_layer(0.5), *net = tr_module_new("net", 0, NULL);
    tr_module_add(net, "a", a);
    tr_module_add(net, "b", b);
    tr_tensor *x = tr_ones(TR_SHAPE(4, 100));
    assert_failed(tr_forward(a, x), TR_STATE, "tr_seed");
    TR_CHECK(tr_seed(net, 1, .step = 3));
    tr_tensor *first = tr_forward(a, x);
    assert_false(same_values(first, tr_forward(b, x)));
    assert_true(same_values(first, tr_forward(a, x)));
    TR_CHECK(tr_seed(net, 1, .step = 4));
    assert_false(same_values(first, tr_forward(a, x)));
    /* The second half of a batch, as another rank has it, is dropped as in the whole. */
    TR_CHECK(tr_seed(net, 1, .step = 3, .first_sample = 2));
    tr_tensor *half = tr_forward(a, tr_ones(TR_SHAPE(2, 100)));
    assert_memory_equal(tr_data(half), (char *)tr_data(first) + 200 * sizeof(float), 200 * sizeof(float));
    TR_CHECK(tr_eval(net));
    assert_false(tr_module_training(a));
    assert_ptr_equal(tr_forward(a, x), x);
    TR_CHECK(tr_train(net));
    assert_true(tr_module_training(a));
    assert_failed(tr_dropout_layer(1), TR_INVALID, "[0, 1)");
}

/* ---- State dicts ------------------------------------------------------------------------------------------------ */

static void test_load_state_dict(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *a = tr_sequential(tr_linear(2, 3, .seed = 1)), *b = tr_sequential(tr_linear(2, 3, .seed = 2));
    tr_tensor *weight = tr_list_find(tr_state_dict(b), "0.weight");
    TR_CHECK(tr_load_state_dict(b, tr_state_dict(a)));
    assert_ptr_equal(weight, tr_list_find(tr_state_dict(b), "0.weight"));
    assert_true(same_values(weight, tr_list_find(tr_state_dict(a), "0.weight")));
}

static void test_a_state_that_does_not_fit_changes_nothing(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_sequential(tr_linear(2, 3, .seed = 1), tr_linear(3, 3, .seed = 2));
    tr_tensor *bias = tr_list_find(tr_state_dict(net), "0.bias");
    double before = at(bias, 0);
    tr_tensor_list *given = tr_list_new();
    TR_CHECK(tr_list_add(given, "0.bias", tr_full(9, TR_SHAPE(3))));
    TR_CHECK(tr_list_add(given, "0.weight", tr_ones(TR_SHAPE(2, 3))));
    TR_CHECK(tr_list_add(given, "1.weight", tr_ones(TR_SHAPE(3, 3))));
    TR_CHECK(tr_list_add(given, "head.weight", tr_ones(TR_SHAPE(3, 3))));
    tr_status status = tr_load_state_dict(net, given);
    assert_refused(status, TR_NOT_FOUND, "1 missing (1.bias)");
    assert_refused(status, TR_NOT_FOUND, "(head.weight)");
    assert_refused(status, TR_NOT_FOUND, "0.weight: [2, 3], where the module has [3, 2]");
    assert_true(at(bias, 0) == before);
    assert_refused(tr_load_state_dict(net, tr_list_new()), TR_NOT_FOUND, "4 missing (0.weight, 0.bias, 1.weight, …)");
    assert_refused(tr_load_state_dict(net, NULL), TR_INVALID, "NULL");
}

/* As another library names things: a prefix, a mask, a head of other classes, in f16. */
static tr_tensor_list *foreign_state(void)
{
    tr_tensor_list *given = tr_list_new();
    TR_CHECK(tr_list_add(given, "model.0.weight", tr_full(5, TR_SHAPE(3, 2), .dtype = TR_F16)));
    TR_CHECK(tr_list_add(given, "model.0.bias", tr_full(6, TR_SHAPE(3))));
    TR_CHECK(tr_list_add(given, "model.0.mask", tr_ones(TR_SHAPE(3))));
    TR_CHECK(tr_list_add(given, "model.1.weight", tr_full(7, TR_SHAPE(10, 3))));
    TR_CHECK(tr_list_add(given, "old.bias", tr_full(8, TR_SHAPE(3))));
    return given;
}

static void test_names_are_changed_and_parts_loaded(void **state)
{
    (void)state;
    TR_SCOPE;
    const tr_rename rules[] = {{"model.*", "*"}, {"*.mask", NULL}, {"old.bias", "1.bias"}, {NULL, NULL}};
    tr_module *net = tr_sequential(tr_linear(2, 3, .seed = 1), tr_linear(3, 3, .seed = 2));
    tr_tensor_list *own = tr_state_dict(net), *given = foreign_state();
    tr_tensor *head = tr_list_find(own, "1.weight");
    double before = at(head, 0), weight = at(tr_list_find(own, "0.weight"), 0);
    tr_load_report report;

    tr_status status = tr_load_state_dict(net, given, .rename = rules, .report = &report);
    assert_refused(status, TR_SHAPE, "1 of another shape (1.weight: [10, 3], where the module has [3, 3])");
    assert_int_equal(report.loaded, 0);
    assert_int_equal(report.mismatched, 1);
    assert_true(at(tr_list_find(own, "0.weight"), 0) == weight);
    assert_refused(tr_load_state_dict(net, given, .rename = rules, .partial = "1.bias x.*"), TR_SHAPE, "1.weight");
    assert_refused(tr_load_state_dict(net, given, .partial = "*"), TR_NOT_FOUND, "4 missing");

    TR_CHECK(tr_load_state_dict(net, given, .rename = rules, .partial = "x.* 1.*", .report = &report));
    assert_true(at(tr_list_find(own, "0.weight"), 0) == 5 && at(tr_list_find(own, "0.bias"), 2) == 6);
    assert_true(at(tr_list_find(own, "1.bias"), 1) == 8 && at(head, 0) == before);
    assert_int_equal(report.loaded, 3);
    assert_int_equal(report.cast, 1);
    assert_int_equal(report.missing + report.extra, 0);
    assert_int_equal(report.mismatched, 1);
    assert_string_equal(report.text, "3 of 4 loaded; 1 of them cast (0.weight: f16 to f32); "
                                     "1 of another shape (1.weight: [10, 3], where the module has [3, 3])");

    const tr_rename prefix[] = {{"model.*", "*"}, {NULL, NULL}};
    TR_CHECK(tr_load_state_dict(net, given, .rename = prefix, .partial = "*", .report = &report));
    assert_int_equal(report.loaded, 2);
    assert_int_equal(report.missing, 1);
    assert_int_equal(report.extra, 2);

    TR_CHECK(tr_list_add(given, "\x1b[2J", tr_zeros(TR_SHAPE(1)))); /* names are a file's */
    TR_CHECK(tr_load_state_dict(net, given, .rename = rules, .partial = "*", .report = &report));
    assert_non_null(strstr(report.text, "that the module does not have (?[2J)"));
}

/* However long they are. */
static void test_long_names_of_parts(void **state)
{
    (void)state;
    TR_SCOPE;
    char name[300], partial[320];
    snprintf(name, sizeof name, "%0299d", 7);
    snprintf(partial, sizeof partial, "bias %s weight", name);
    tr_module *net = tr_linear(2, 3);
    tr_tensor_list *given = tr_list_new();
    TR_CHECK(tr_list_add(given, "bias", tr_full(9, TR_SHAPE(3))));
    TR_CHECK(tr_list_add(given, name, tr_ones(TR_SHAPE(3))));
    TR_CHECK(tr_load_state_dict(net, given, .partial = partial));
    assert_true(at(tr_list_find(tr_state_dict(net), "bias"), 0) == 9);
    partial[sizeof "bias 0" - 1] = '*';
    TR_CHECK(tr_load_state_dict(net, given, .partial = partial));
    partial[sizeof "bias 0" - 2] = '1';
    assert_refused(tr_load_state_dict(net, given, .partial = partial), TR_NOT_FOUND, "1 that the module does not have");
    assert_refused(tr_load_state_dict(net, given, .partial = "weigh *00 bias"), TR_NOT_FOUND, "1 missing (weight)");
}

static void test_names_that_become_one(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_linear(2, 3);
    const tr_rename rules[] = {{"model.*.*", "weight"}, {"model.*", "weight"}, {NULL, NULL}};
    assert_refused(tr_load_state_dict(net, foreign_state(), .rename = rules), TR_INVALID,
        "tr_load_state_dict: .rename: a list has two tensors named \"weight\"");
}

static void test_a_failure_leaves_no_report_of_another(void **state)
{
    (void)state;
    TR_SCOPE;
    const tr_rename rules[] = {{"model.*", "weight"}, {NULL, NULL}};
    tr_module *net = tr_linear(2, 3), *modules[] = {tr_linear(-1, 3), net, net, net};
    tr_tensor_list *states[] = {foreign_state(), tr_state_dict(modules[0]), foreign_state(), NULL};
    for (int k = 0; k < 4; k++) {
        tr_load_report report = {7, 7, 7, 7, 7, "7 of 7 loaded"};
        assert_true(tr_load_state_dict(modules[k], states[k], .rename = rules, .report = &report) != TR_OK);
        assert_int_equal(report.loaded + report.cast + report.missing + report.extra + report.mismatched, 0);
        assert_string_equal(report.text, "");
    }
}

static void test_moving_keeps_the_tensors(void **state)
{
    (void)state;
    assert_int_equal(tr_device_count(TR_CPU), 2); /* main() has asked for them */
    TR_SCOPE;
    tr_module *net = tr_linear(2, 3, .seed = 1);
    tr_tensor *weight = tr_list_find(tr_parameters(net), "weight");
    TR_CHECK(tr_backward(tr_sum(tr_forward(net, tr_ones(TR_SHAPE(1, 2))))));
    double before = at(weight, 0);
    TR_CHECK(tr_module_to(net, tr_cpu(1)));
    assert_true(tr_device_equal(tr_device_of(weight), tr_cpu(1)));
    assert_true(tr_device_equal(tr_device_of(tr_grad(weight)), tr_cpu(1)));
    assert_true(at(weight, 0) == before);
    assert_true(at(tr_grad(weight), 0) == 1);
    TR_CHECK(tr_status_of(tr_sgd(tr_parameters(net))));
    assert_refused(tr_module_to(net, tr_cpu(0)), TR_STATE, "weight");
    assert_refused(tr_module_to(net, tr_cpu(7)), TR_DEVICE, "cpu:7");
}

/* ---- GPT-2 ------------------------------------------------------------------------------------------------------ */

static void test_gpt_names_and_start(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *gpt = tr_gpt(.layers = 2, .heads = 4, .dim = 64, .context = 32, .seed = 3);
    TR_CHECK(tr_status_of(gpt));
    static const char *const names[] = {"wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias",
        "h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias", "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias",
        "h.0.ln_2.weight", "h.0.ln_2.bias", "h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.bias", "h.0.mlp.c_proj.weight",
        "h.0.mlp.c_proj.bias"};
    tr_tensor_list *own = tr_state_dict(gpt);
    assert_int_equal(tr_list_count(own), 2 + 2 * 12 + 2);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) assert_string_equal(tr_list_name(own, (int)i), names[i]);
    assert_string_equal(tr_list_name(own, 27), "ln_f.bias");
    tr_tensor *fc = tr_list_find(own, "h.1.mlp.c_fc.weight"), *projection = tr_list_find(own, "h.1.mlp.c_proj.weight");
    assert_int_equal(tr_size(fc, 0), 64); /* [in, out] */
    double wide = 0, narrow = 0, n = 64 * 256;
    for (int64_t i = 0; i < (int64_t)n; i++) {
        wide += at(fc, i) * at(fc, i);
        narrow += at(projection, i) * at(projection, i);
    }
    assert_true(fabs(sqrt(wide / n) - 0.02) < 0.0005);
    assert_true(fabs(sqrt(narrow / n) - 0.02 / sqrt(4)) < 0.0003);
    assert_false(same_values(fc, tr_list_find(own, "h.0.mlp.c_fc.weight")));
}

static void test_gpt_refuses(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_failed(tr_gpt(.dim = 65, .heads = 4), TR_INVALID, "65");
    assert_failed(tr_gpt(.layers = -1), TR_INVALID, "layers -1");
    assert_failed(tr_gpt(.dropout = 1.5), TR_INVALID, "dropout");
    tr_module *gpt = tr_gpt(.layers = 1, .heads = 1, .dim = 8, .context = 4);
    assert_failed(tr_forward(gpt, tr_zeros(TR_SHAPE(1, 5), .dtype = TR_I32)), TR_SHAPE, "5 tokens");
    assert_failed(tr_forward(gpt, tr_zeros(TR_SHAPE(5), .dtype = TR_I32)), TR_SHAPE, "[5]");
    assert_failed(tr_forward(gpt, tr_full(256, TR_SHAPE(1, 4), .dtype = TR_I32)), TR_INVALID, "256");
    tr_gpt_options options = {.size = sizeof options};
    TR_CHECK(tr_gpt_preset("gpt2", &options));
    assert_int_equal(options.vocab, 50257);
    assert_refused(tr_gpt_preset("giant", &options), TR_NOT_FOUND, "nano");
}

static void test_gpt_drops_in_training_only(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *gpt = tr_gpt(.layers = 2, .heads = 2, .dim = 16, .context = 8, .dropout = 0.2, .seed = 1);
    tr_module *plain = tr_gpt(.layers = 2, .heads = 2, .dim = 16, .context = 8, .seed = 1);
    tr_tensor *ids = tr_reshape(tr_arange(16, TR_I32, tr_cpu(0)), TR_SHAPE(2, 8));
    assert_failed(tr_forward(gpt, ids), TR_STATE, "drop: dropout: no random numbers");
    TR_CHECK(tr_seed(gpt, 9, .step = 1));
    tr_tensor *dropped = tr_forward(gpt, ids);
    TR_CHECK(tr_backward(tr_mean(dropped)));
    assert_true(same_values(dropped, tr_forward(gpt, ids)));
    /* Two ranks with half the batch each draw what one rank does. */
    TR_CHECK(tr_seed(gpt, 9, .step = 1, .first_sample = 1));
    tr_tensor *second = tr_forward(gpt, tr_slice(ids, 0, 1, 2));
    for (int64_t i = 0; i < 8 * 256; i++) assert_true(fabs(at(second, i) - at(dropped, 8 * 256 + i)) < 1e-5);
    TR_CHECK(tr_eval(gpt));
    tr_tensor *a = tr_forward(gpt, ids), *b = tr_forward(plain, ids);
    assert_true(same_values(a, b));
    assert_false(same_values(a, dropped));
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1); /* counted once, at the first use */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moving_keeps_the_tensors),
        cmocka_unit_test(test_paths_in_the_order_of_adding),
        cmocka_unit_test(test_a_wrapper_adds_nothing_to_paths),
        cmocka_unit_test(test_modules_are_found_by_their_paths),
        cmocka_unit_test(test_a_module_outlives_its_scope_when_kept),
        cmocka_unit_test(test_what_cannot_be_added),
        cmocka_unit_test(test_a_state_is_released_once),
        cmocka_unit_test(test_errors_tell_the_way),
        cmocka_unit_test(test_what_a_forward_makes_goes_when_it_returns),
        cmocka_unit_test(test_a_module_that_changes_nothing),
        cmocka_unit_test(test_an_op_is_no_module),
        cmocka_unit_test(test_a_sequential_with_tensors_of_its_own),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_init_depends_on_the_seed_alone),
        cmocka_unit_test(test_without_seeds_no_two_start_alike),
        cmocka_unit_test(test_threads_count_their_modules),
        cmocka_unit_test(test_dropout_draws_by_path_and_seed),
        cmocka_unit_test(test_load_state_dict),
        cmocka_unit_test(test_names_are_changed_and_parts_loaded),
        cmocka_unit_test(test_long_names_of_parts),
        cmocka_unit_test(test_names_that_become_one),
        cmocka_unit_test(test_a_failure_leaves_no_report_of_another),
        cmocka_unit_test(test_a_state_that_does_not_fit_changes_nothing),
        cmocka_unit_test(test_gpt_names_and_start),
        cmocka_unit_test(test_gpt_refuses),
        cmocka_unit_test(test_gpt_drops_in_training_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
