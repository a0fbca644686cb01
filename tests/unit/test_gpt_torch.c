/*
 * The same answer as PyTorch: a tiny GPT-2 and its logits, loss, every gradient, and every weight after ten steps of
 * AdamW and of SGD, from tests/recorded/gpt.safetensors (record_gpt.py says how it was made, and with which settings).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "recorded.h"

#include <trireme/trireme.h>

enum { STEPS = 10 };

/* The model that was recorded, with its weights. */
static tr_module *model(const tr_tensor_list *file)
{
    tr_module *gpt = tr_gpt(.vocab = 32, .context = 16, .layers = 2, .heads = 2, .dim = 16, .seed = 1);
    tr_tensor_list *own = tr_state_dict(gpt), *start = tr_list_new();
    for (int i = 0; i < tr_list_count(own); i++)
        TR_CHECK(tr_list_add(start, tr_list_name(own, i), recorded_find(file, "init.%s", tr_list_name(own, i))));
    TR_CHECK(tr_load_state_dict(gpt, start));
    return gpt;
}

static void assert_close(const char *what, const tr_tensor *a, const tr_tensor *b, double tolerance)
{
    double distance = recorded_distance(a, b);
    if (!(distance <= tolerance)) fail_msg("%s: off by %g of the largest", what, distance);
}

static tr_tensor *loss_of(tr_module *gpt, const tr_tensor_list *file)
{
    return tr_cross_entropy(tr_forward(gpt, tr_list_find(file, "ids")), tr_list_find(file, "targets"));
}

static void test_logits_loss_and_gradients(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *file = recorded("gpt");
    tr_module *gpt = model(file);
    tr_tensor *logits = tr_forward(gpt, tr_list_find(file, "ids"));
    assert_close("logits", logits, tr_list_find(file, "logits"), 2e-6);
    tr_tensor *loss = tr_cross_entropy(logits, tr_list_find(file, "targets"));
    assert_close("loss", loss, tr_list_find(file, "loss"), 1e-6);
    TR_CHECK(tr_backward(loss));
    tr_tensor_list *own = tr_parameters(gpt);
    assert_int_equal(tr_list_count(own), 2 + 2 * 12 + 2);
    for (int i = 0; i < tr_list_count(own); i++)
        assert_close(tr_list_name(own, i), tr_grad(tr_list_at(own, i)), recorded_find(file, "grad.%s", tr_list_name(own, i)), 1e-5);
}

static void test_gradient_norm(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *file = recorded("gpt");
    tr_module *gpt = model(file);
    tr_optimizer *optimizer = tr_sgd(tr_parameters(gpt), .lr = 1);
    TR_CHECK(tr_backward(loss_of(gpt, file)));
    double norm, after, expected = tr_item(tr_list_find(file, "clip.norm"));
    TR_CHECK(tr_clip_grad_norm(optimizer, 0.5 * expected, &norm));
    assert_true(fabs(norm - expected) <= 1e-5 * expected);
    TR_CHECK(tr_clip_grad_norm(optimizer, expected, &after));
    assert_true(fabs(after - 0.5 * expected) <= 1e-5 * expected);
}

static void train_and_compare(const char *kind, tr_module *gpt, tr_optimizer *optimizer, const tr_tensor_list *file,
    double tolerance)
{
    TR_CHECK(tr_status_of(optimizer));
    float losses[STEPS];
    for (int i = 0; i < STEPS; i++) {
        TR_SCOPE;
        tr_zero_grad(optimizer);
        tr_tensor *loss = loss_of(gpt, file);
        TR_CHECK(tr_backward(loss));
        TR_CHECK(tr_step(optimizer));
        losses[i] = (float)tr_item(loss);
    }
    assert_close("losses", tr_from(losses, TR_SHAPE(STEPS)), recorded_find(file, "%s.loss", kind), 5e-6);
    tr_tensor_list *own = tr_parameters(gpt);
    for (int i = 0; i < tr_list_count(own); i++)
        assert_close(tr_list_name(own, i), tr_list_at(own, i), recorded_find(file, "%s.%s", kind, tr_list_name(own, i)), tolerance);
}

static void test_ten_steps_of_adamw(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *file = recorded("gpt");
    tr_module *gpt = model(file);
    train_and_compare("adamw", gpt,
        tr_adamw(tr_parameters(gpt), .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1), file,
        2e-5);
}

static void test_ten_steps_of_sgd(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *file = recorded("gpt");
    tr_module *gpt = model(file);
    train_and_compare("sgd", gpt,
        tr_sgd(tr_parameters(gpt), .lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true), file,
        2e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_loss_and_gradients),
        cmocka_unit_test(test_gradient_norm),
        cmocka_unit_test(test_ten_steps_of_adamw),
        cmocka_unit_test(test_ten_steps_of_sgd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
