/*
 * Recurrent layers against what PyTorch recorded (tests/recorded/record_recurrent.py): outputs, last states, all gradients; what
 * they refuse; dropout between layers; and modules with several outputs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "recorded.h"
#include "torch_cases.h"

#include <trireme/trireme.h>

static void assert_failed(tr_status got, tr_status status, const char *part)
{
    assert_int_equal(got, status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

/* The outputs one behind the other, as the file has them. */
static tr_tensor *run(tr_module *layer, tr_tensor *const *in, int n, int n_outputs)
{
    tr_tensor *outputs[3];
    TR_CHECK(tr_forward_many(layer, in, n, outputs, n_outputs));
    for (int i = 0; i < n_outputs; i++) outputs[i] = tr_flatten(outputs[i], 0, -1);
    return tr_cat(outputs, n_outputs, 0);
}

static void check_layer(const char *name, tr_module *layer, int n_outputs)
{
    const tr_tensor_list *file = recorded("recurrent");
    torch_load(layer, file, name);
    tr_tensor *in[3];
    int n = 0;
    for (tr_tensor *x; n < 3 && (x = torch_find(file, name, "in", n)) != NULL; n++) in[n] = tr_require_grad(tr_detach(x));
    tr_tensor *y = run(layer, in, n, n_outputs);
    torch_compare(name, "the output", y, torch_find(file, name, "out", -1), 1e-12);
    TR_CHECK(tr_backward(y, .gradient = torch_find(file, name, "gout", -1)));
    for (int i = 0; i < n; i++) torch_compare(name, "the gradient", tr_grad(in[i]), torch_find(file, name, "gin", i), 1e-12);
    torch_compare_gradients(layer, file, name);
}

static void layers_are_as_in_pytorch(void **state)
{
    (void)state;
    TR_SCOPE;
    check_layer("rnn", tr_rnn(4, 6, .dtype = TR_F64), 2);
    check_layer("rnn_relu", tr_rnn(4, 6, .relu = true, .no_bias = true, .dtype = TR_F64), 2);
    check_layer("lstm", tr_lstm(4, 6, .dtype = TR_F64), 3);
    check_layer("lstm_deep", tr_lstm(4, 6, .layers = 2, .bidirectional = true, .dtype = TR_F64), 3);
    check_layer("gru", tr_gru(4, 6, .dtype = TR_F64), 2);
    check_layer("gru_deep", tr_gru(4, 6, .layers = 3, .bidirectional = true, .no_bias = true, .dtype = TR_F64), 2);
}

/* A text read in two halves, with the state handed on, is a text read at once. */
static void states_are_handed_on(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *lstm = tr_lstm(3, 4, .layers = 2, .seed = 1);
    tr_tensor *x = tr_randn(2, TR_SHAPE(2, 6, 3)), *whole = tr_forward(lstm, x), *first[3], *second[3];
    TR_CHECK(tr_forward_many(lstm, (tr_tensor *[]){tr_slice(x, 1, 0, 4)}, 1, first, 3));
    TR_CHECK(tr_forward_many(lstm, (tr_tensor *[]){tr_slice(x, 1, 4, 6), first[1], first[2]}, 3, second, 3));
    tr_tensor *joined = tr_cat((tr_tensor *[]){first[0], second[0]}, 2, 1);
    assert_true(tr_item(tr_max(tr_abs(tr_sub(joined, whole)))) < 1e-6);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *lstm = tr_lstm(3, 4), *gru = tr_gru(3, 4);
    tr_tensor *x = tr_ones(TR_SHAPE(2, 5, 3)), *h = tr_zeros(TR_SHAPE(1, 2, 4)), *y[3];
    assert_failed(tr_status_of(tr_forward(lstm, tr_ones(TR_SHAPE(2, 5, 4)))), TR_SHAPE, "lstm: x is [2, 5, 4]: it must be [batch, seq, 3]");
    assert_failed(tr_status_of(tr_forward(lstm, tr_ones(TR_SHAPE(2, 0, 3)))), TR_SHAPE, "with a step or more");
    assert_failed(tr_status_of(tr_forward(lstm, x, h)), TR_INVALID, "lstm: it takes x, or x and the states h and c, not 2 inputs");
    assert_failed(tr_status_of(tr_forward(gru, x, h, h)), TR_INVALID, "gru: it takes x, or x and a state h, not 3 inputs");
    assert_failed(tr_status_of(tr_forward(lstm, x, h, tr_zeros(TR_SHAPE(2, 2, 4)))), TR_SHAPE,
        "lstm: the state c is [2, 2, 4]: it must be [1, 2, 4]");
    assert_failed(tr_forward_many(gru, &x, 1, y, 3), TR_INVALID, "gru: it has 2 outputs, not 3");
    for (int i = 0; i < 3; i++) assert_int_equal(tr_status_of(y[i]), TR_INVALID);
    assert_failed(tr_status_of(tr_lstm(0, 4)), TR_INVALID, "lstm: input and hidden must be positive, not 0 and 4");
    assert_failed(tr_status_of(tr_rnn(3, 4, .layers = 17)), TR_INVALID, "rnn: layers must be 1 to 16, not 17");
    assert_failed(tr_status_of(tr_gru(3, 4, .dropout = 1)), TR_INVALID, "gru: dropout must be in [0, 1), it is 1");
    assert_failed(tr_status_of(tr_lstm(3, 4, .relu = true)), TR_INVALID, "lstm: .relu is an option of tr_rnn() alone");
}

static void dropout_lies_between_layers(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *plain = tr_gru(3, 4, .layers = 2, .seed = 1), *drops = tr_gru(3, 4, .layers = 2, .dropout = 0.5, .seed = 1);
    tr_tensor *x = tr_randn(2, TR_SHAPE(2, 5, 3));
    assert_failed(tr_status_of(tr_forward(drops, x)), TR_STATE, "dropout_l0: dropout: no random numbers");
    TR_CHECK(tr_seed(drops, 7));
    assert_true(tr_item(tr_max(tr_abs(tr_sub(tr_forward(plain, x), tr_forward(drops, x))))) > 0);
    TR_CHECK(tr_eval(drops));
    assert_true(tr_item(tr_max(tr_abs(tr_sub(tr_forward(plain, x), tr_forward(drops, x))))) == 0);
    assert_int_equal(tr_list_count(tr_state_dict(drops)), 8);
}

/* ---- Several outputs ------------------------------------------------------------------------------------------------- */

static tr_status halves(tr_module *self, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    (void)self;
    if (n != 1) return tr_fail(TR_INVALID, "halves: it takes one input, not %d", n);
    return tr_split(inputs[0], 2, 0, outputs);
}

static tr_status forgets_one(tr_module *self, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    (void)self, (void)n;
    outputs[1] = inputs[0];
    return TR_OK;
}

static void a_module_has_several_outputs(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *m = tr_module_new_many("halves", 0, 2, halves);
    tr_tensor *x = tr_require_grad(tr_from(((float[]){1, 2, 3, 4}), TR_SHAPE(4))), *y[2];
    TR_CHECK(tr_forward_many(m, &x, 1, y, 2));
    assert_true(((const float *)tr_data(y[1]))[1] == 4);
    TR_CHECK(tr_backward(tr_sum(tr_mul(y[0], y[1])))); /* 1*3 + 2*4 */
    const float *g = tr_data(tr_grad(x));
    assert_true(g[0] == 3 && g[1] == 4 && g[2] == 1 && g[3] == 2);
    assert_int_equal(tr_numel(tr_forward(m, x)), 2); /* the first */
    assert_int_equal(tr_numel(tr_forward(tr_sequential(m, tr_relu_layer()), x)), 2);

    /* The error has the path, and is every output's; what is in error is passed on. */
    tr_tensor *odd = tr_ones(TR_SHAPE(3));
    assert_failed(tr_forward_many(m, &odd, 1, y, 2), TR_SHAPE, "halves: ");
    assert_int_equal(tr_status_of(y[0]), TR_SHAPE);
    assert_int_equal(tr_status_of(y[1]), TR_SHAPE);
    assert_failed(tr_status_of(tr_forward(tr_sequential(tr_relu_layer(), m), odd)), TR_SHAPE, "1: halves: ");
    assert_failed(tr_forward_many(m, &y[0], 1, y, 2), TR_SHAPE, "halves: ");
    assert_failed(tr_forward_many(tr_module_new_many("forgets", 0, 2, forgets_one), &x, 1, y, 2), TR_INVALID,
        "forgets: its forward left an output NULL");
    assert_failed(tr_status_of(tr_module_new_many("none", 0, 9, halves)), TR_INVALID, "none: a module has a forward and 1 to 8 outputs, not 9");
    assert_failed(tr_forward_many(tr_relu_layer(), &x, 1, y, 2), TR_INVALID, "activation: it has 1 outputs, not 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_as_in_pytorch),
        cmocka_unit_test(states_are_handed_on),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(dropout_lies_between_layers),
        cmocka_unit_test(a_module_has_several_outputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
