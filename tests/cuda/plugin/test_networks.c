/* ctest: timeout=400
 *
 * Whole networks on cuda:0 and cuda:1, through the library's public interface, which finds the emulated plug-in by
 * TRIREME_PLUGINS: the losses are the CPU's to 1e-4 of their size.
 */
#include "files.h"

#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 8, STEPS = 3, MOST = 2 * STEPS };

#define OK(expression)                                                     \
    do {                                                                   \
        if ((expression) != TR_OK) fail_msg("%s", tr_error_message());     \
    } while (0)

static tr_device device(const char *name)
{
    tr_device d;
    OK(tr_device_parse(name, &d));
    return d;
}

static void assert_losses(const double *got, const double *expected, int n)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - expected[i]) <= 1e-4 * (1 + fabs(expected[i]))))
            fail_msg("loss %d is %.9g, not %.9g", i, got[i], expected[i]);
}

/* Sample i: x is noise, its class i modulo 10. */
static tr_status noise(const tr_sample_call *call, tr_sample *out)
{
    out->x = tr_randn((uint64_t)call->index, TR_SHAPE(1, 28, 28));
    out->y = out->more[3] = tr_scalar((double)(call->index % 10), TR_I64);
    return tr_status_of(out->x);
}

/* Trains the model over an epoch of STEPS batches that a loader brings to the device. */
static void train_epoch(tr_module *model, tr_optimizer *opt, tr_device at, double *losses)
{
    tr_loader *loader = tr_loader_new(tr_dataset_new(BATCH * STEPS, noise), .batch = BATCH, .workers = 2, .device = at);
    tr_batch b;
    tr_status status;
    int step = 0;
    while ((status = tr_loader_next(loader, &b)) == TR_OK) {
        TR_SCOPE;
        tr_zero_grad(opt);
        tr_tensor *loss = tr_cross_entropy(tr_forward(model, b.x), b.more[3]);
        OK(tr_backward(loss));
        OK(tr_step(opt));
        assert_true(step < STEPS);
        losses[step++] = tr_item(loss);
    }
    assert_int_equal(status, TR_END);
    assert_int_equal(step, STEPS);
}

static void lenet(tr_device at, double *losses)
{
    TR_SCOPE;
    tr_module *net = tr_lenet(.seed = 4);
    OK(tr_module_to(net, at));
    train_epoch(net, tr_adamw(tr_parameters(net), .lr = 1e-3), at, losses);
}

static void lenet_has_the_losses_of_the_cpu(void **state)
{
    (void)state;
    double expected[STEPS], got[STEPS];
    lenet(tr_cpu(0), expected);
    lenet(device("cuda:0"), got);
    assert_losses(got, expected, STEPS);
    assert_true(fabs(got[1] - got[0]) > 1e-3); /* it learns */
}

/* On the first of `count` devices, or on all of them. */
static void gpt(const tr_device *devices, int count, double *losses)
{
    TR_SCOPE;
    tr_device at = devices[0];
    tr_module *net = tr_gpt(.vocab = 17, .context = 12, .layers = 2, .heads = 2, .dim = 16, .dropout = 0.1, .seed = 3);
    OK(tr_module_to(net, at));
    tr_module *model = count > 1 ? tr_data_parallel(net, .devices = devices, .count = count) : net;
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-2, .weight_decay = 0.1);
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        tr_tensor *ids = tr_argmax(tr_rand((uint64_t)step, TR_SHAPE(2, 13, 17)), 2);
        tr_tensor *x = tr_to(tr_slice(ids, 1, 0, 12), at), *y = tr_to(tr_slice(ids, 1, 1, 13), at);
        tr_zero_grad(opt);
        OK(tr_seed(net, 5, .step = step));
        tr_tensor *loss = tr_cross_entropy(tr_forward(model, x), y);
        OK(tr_backward(loss));
        OK(tr_clip_grad_norm(opt, 1, NULL));
        OK(tr_step(opt));
        losses[step] = tr_item(loss);
    }
}

static void a_gpt_with_dropout_has_the_losses_of_the_cpu(void **state)
{
    (void)state;
    tr_device cpu = tr_cpu(0), cuda[] = {device("cuda:1"), device("cuda:0")};
    double expected[STEPS], got[STEPS];
    gpt(&cpu, 1, expected);
    for (int count = 1; count <= 2; count++) {
        gpt(cuda, count, got);
        assert_losses(got, expected, STEPS);
    }
}

/* 256 + 1 is not a bf16, and 256 + 1 + 1 is: what was there and the replicas' shares are added in f32. */
static void gradients_of_replicas_are_rounded_once(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_device both[] = {device("cuda:0"), device("cuda:1")};
    tr_tensor *x = tr_ones(TR_SHAPE(2, 1), .dtype = TR_BF16, .device = both[0]);
    tr_module *net = tr_linear(1, 1, .no_bias = true, .dtype = TR_BF16), *model;
    OK(tr_module_to(net, both[0]));
    model = tr_data_parallel(net, .devices = both, .count = 2);
    OK(tr_backward(tr_affine(tr_sum(tr_slice(tr_forward(model, x), 0, 0, 1)), 256, 0)));
    tr_optimizer *opt = tr_sgd(tr_parameters(model)); /* its arena accumulates in place */
    OK(tr_status_of(opt));
    OK(tr_backward(tr_sum(tr_forward(model, x))));
    assert_true(tr_item(tr_grad(tr_list_at(tr_parameters(net), 0))) == 258);
}

/* Gradients of x, the weight and the bias of a language model's last layer, on the CPU. Logits of a device begin their rows at
 * multiples of 64. */
static void last_layer(tr_device at, tr_tensor *gradients[3])
{
    enum { TOKENS = 512, WORDS = 521 };
    tr_module *head = tr_linear(TOKENS, WORDS, .seed = 6);
    OK(tr_module_to(head, at));
    tr_tensor *x = tr_require_grad(tr_to(tr_randn(7, TR_SHAPE(TOKENS, TOKENS)), at));
    tr_tensor *y = tr_to(tr_argmax(tr_rand(8, TR_SHAPE(TOKENS, WORDS)), 1), at);
    {
        TR_SCOPE;
        TR_AUTOCAST(TR_BF16);
        tr_tensor *logits = tr_forward(head, x);
        assert_int_equal(tr_stride(logits, 0), at.kind == TR_CPU ? WORDS : 576);
        OK(tr_backward(tr_escape(tr_cross_entropy(logits, y))));
    }
    gradients[0] = tr_to(tr_grad(x), tr_cpu(0));
    for (int i = 1; i < 3; i++) gradients[i] = tr_to(tr_grad(tr_list_at(tr_parameters(head), i - 1)), tr_cpu(0));
}

static void words_of_any_number_have_the_gradients_of_the_cpu(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *expected[3], *got[3];
    last_layer(tr_cpu(0), expected);
    last_layer(device("cuda:0"), got);
    for (int i = 0; i < 3; i++) {
        double size = tr_item(tr_max(tr_abs(expected[i]))), far = tr_item(tr_max(tr_abs(tr_sub(got[i], expected[i]))));
        if (!(far <= 0x1p-7 * size)) fail_msg("gradient %d is off by %g of %g", i, far, size);
    }
}

/* On the CPU: y, the gradients of x, the residual, weight and bias, and the running statistics. */
enum { NORMED = 7 };
static void norm_with_residual(tr_device at, tr_tensor *made[NORMED])
{
    tr_tensor *in[4];
    for (int i = 0; i < 4; i++) {
        tr_tensor *x = tr_randn((uint64_t)i, i < 2 ? TR_SHAPE(3, 5, 6, 8) : TR_SHAPE(8));
        in[i] = tr_require_grad(tr_to(i < 2 ? tr_permute(x, (int[]){0, 3, 1, 2}, 4) : x, at));
    }
    tr_tensor *mean = tr_zeros(TR_SHAPE(8), .device = at), *var = tr_ones(TR_SHAPE(8), .device = at);
    tr_tensor *y = tr_batch_norm_op(in[0], .residual = in[1], .weight = in[2], .bias = in[3], .running_mean = mean,
        .running_var = var, .training = true, .relu = true);
    OK(tr_backward(y, .gradient = tr_to(tr_permute(tr_randn(4, TR_SHAPE(3, 5, 6, 8)), (int[]){0, 3, 1, 2}, 4), at)));
    for (int i = 0; i < NORMED; i++)
        made[i] = tr_to(i == 0 ? y : i < 5 ? tr_grad(in[i - 1]) : i == 5 ? mean : var, tr_cpu(0));
}

static void a_norm_with_a_residual_has_the_numbers_of_the_cpu(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *expected[NORMED], *got[NORMED];
    norm_with_residual(tr_cpu(0), expected);
    norm_with_residual(device("cuda:0"), got);
    for (int i = 0; i < NORMED; i++) {
        double far = tr_item(tr_max(tr_abs(tr_sub(got[i], expected[i]))));
        if (!(far <= 1e-5 * tr_item(tr_max(tr_abs(expected[i]))))) fail_msg("number %d is off by %g", i, far);
    }
}

/* An epoch, a checkpoint, and an epoch of what was loaded from it on `second`. */
static void train_resumed(tr_device first, tr_device second, double *losses)
{
    TR_SCOPE;
    char path[4096], folder[4096];
    static int saved;
    int64_t step;
    snprintf(folder, sizeof folder, "%s-%d", files_path("checkpoints"), saved++);
    tr_module *net = tr_lenet(.seed = 9), *again = tr_lenet(.seed = 10);
    OK(tr_module_to(net, first));
    OK(tr_module_to(again, second));
    tr_optimizer *opt = tr_adamw(tr_parameters(net)), *resumed = tr_adamw(tr_parameters(again));
    train_epoch(net, opt, first, losses);
    OK(tr_checkpoint_save(folder, STEPS, tr_state_dict(net), tr_optimizer_state(opt)));
    tr_tensor_list *model, *of_optimizer;
    OK(tr_checkpoint_find_whole(folder, path, &step));
    assert_int_equal(step, STEPS);
    OK(tr_checkpoint_load(path, &model, &of_optimizer));
    OK(tr_load_state_dict(again, model));
    OK(tr_optimizer_load(resumed, of_optimizer));
    train_epoch(again, resumed, second, losses + STEPS);
}

static void a_checkpoint_moves_between_devices(void **state)
{
    (void)state;
    double expected[MOST], there[MOST], back[MOST];
    train_resumed(tr_cpu(0), tr_cpu(0), expected);
    train_resumed(device("cuda:0"), tr_cpu(0), back);
    train_resumed(tr_cpu(0), device("cuda:1"), there);
    assert_losses(back, expected, MOST);
    assert_losses(there, expected, MOST);
}

static void tensors_of_two_devices_do_not_mix(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *a = tr_ones(TR_SHAPE(2), .device = device("cuda:0"));
    tr_tensor *b = tr_ones(TR_SHAPE(2), .device = device("cuda:1"));
    assert_int_equal(tr_status_of(tr_add(a, b)), TR_DEVICE);
    assert_non_null(strstr(tr_error_message(), "cuda:0"));
    assert_non_null(strstr(tr_error_message(), "cuda:1"));
}

int main(void)
{
    setenv("TRIREME_PLUGINS", PLUGIN, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lenet_has_the_losses_of_the_cpu),
        cmocka_unit_test(a_gpt_with_dropout_has_the_losses_of_the_cpu),
        cmocka_unit_test(gradients_of_replicas_are_rounded_once),
        cmocka_unit_test(words_of_any_number_have_the_gradients_of_the_cpu),
        cmocka_unit_test(a_norm_with_a_residual_has_the_numbers_of_the_cpu),
        cmocka_unit_test(a_checkpoint_moves_between_devices),
        cmocka_unit_test(tensors_of_two_devices_do_not_mix),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
