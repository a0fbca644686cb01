/*
 * The same answer as torchvision's and Hugging Face's models: logits in evaluation and training mode, loss, every gradient,
 * running statistics, ten steps of AdamW with the small ones, from tests/recorded/models.safetensors (record_models.py says how it was made). Names and shapes of
 * the state dicts must be theirs, or nothing is found.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "recorded.h"

#include <trireme/trireme.h>

/* Number `at` of tensor number `tensor` in -0.5 … 0.5, as in record_models.py. */
static double hashed(uint32_t tensor, uint32_t at)
{
    uint32_t h = at * 2654435761u + tensor * 0x9e3779b9u;
    h ^= h >> 15;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    return h / 4294967296.0 - 0.5;
}

static bool ends_with(const char *name, const char *end)
{
    size_t a = strlen(name), b = strlen(end);
    return a >= b && strcmp(name + a - b, end) == 0;
}

/* What record_models.py puts into tensor number i, by its name and shape. */
static void fill(tr_tensor *t, const char *name, uint32_t i)
{
    float *values = tr_data(t);
    double width = sqrt(24 * (double)tr_size(t, 0) / (double)tr_numel(t)), scale = ends_with(name, "bn3.weight") ? 0.25 : 1;
    for (int64_t k = 0; k < tr_numel(t); k++) {
        double u = hashed(i, (uint32_t)k);
        if (ends_with(name, "running_var"))
            values[k] = (float)(1 + u);
        else if (tr_ndim(t) > 1)
            values[k] = (float)(u * width);
        else
            values[k] = (float)(ends_with(name, "weight") ? (1 + 0.4 * u) * scale : 0.2 * u);
    }
}

/* The names in a model's metadata, one after the other: *at moves on; NULL at the end. */
static const char *next_name(const char **at, char name[256])
{
    size_t length = strcspn(*at, " ");
    if (length == 0) return NULL;
    snprintf(name, 256, "%.*s", (int)length, *at);
    *at += length + ((*at)[length] == ' ');
    return name;
}

static const char *names_of(const tr_tensor_list *file, const char *model, const char *suffix)
{
    char key[64];
    snprintf(key, sizeof key, "%s%s", model, suffix);
    return tr_list_metadata(file, key);
}

static void fill_model(tr_module *net, const tr_tensor_list *file, const char *model)
{
    TR_CHECK(tr_status_of(net));
    tr_tensor_list *state = tr_state_dict(net);
    char name[256];
    for (uint32_t first = 0; first <= 500; first += 500) {
        const char *names = names_of(file, model, first ? ".statistics" : "");
        for (uint32_t i = first; next_name(&names, name); i++) {
            tr_tensor *t = tr_list_find(state, name);
            if (!t) fail_msg("%s has no %s", model, name);
            fill(t, name, i);
        }
    }
}

static void assert_close(const char *model, const char *what, const tr_tensor *got, const tr_tensor *expected,
    double tolerance)
{
    double distance = recorded_distance(got, expected);
    if (!(distance <= tolerance)) fail_msg("%s: %s is off by %g of the largest", model, what, distance);
}

static tr_tensor *gradient(tr_tensor *parameter)
{
    return tr_grad(parameter);
}

static tr_tensor *itself(tr_tensor *parameter)
{
    return parameter;
}

/* Each parameter's norm, or its gradient's, and the product with random numbers, which sees what a norm does not. what:
 * "train" or "adamw" */
static void compare_digests(tr_module *net, const tr_tensor_list *file, const char *model, const char *what,
    tr_tensor *(*of)(tr_tensor *parameter), double tolerance)
{
    tr_tensor_list *own = tr_parameters(net);
    tr_tensor *norms = recorded_find(file, "%s.%s.norm", model, what), *dots = recorded_find(file, "%s.%s.dot", model, what);
    const char *names = names_of(file, model, "");
    char name[256];
    int count = 0;
    for (; next_name(&names, name); count++) {
        TR_SCOPE;
        tr_tensor *t = of(tr_list_find(own, name));
        if (!t) fail_msg("%s: %s has no gradient", model, name);
        const float *values = tr_data(tr_contiguous(t));
        double squares = 0, dot = 0;
        for (int64_t k = 0; k < tr_numel(t); k++) {
            squares += (double)values[k] * (double)values[k];
            dot += (double)values[k] * hashed(1000 + (uint32_t)count, (uint32_t)k);
        }
        double norm = (double)((float *)tr_data(norms))[count], expected = (double)((float *)tr_data(dots))[count];
        double bound = tolerance * norm + 1e-5; /* some are 0: softmax does not see the keys' bias, nor a norm its input's */
        if (!(fabs(sqrt(squares) - norm) <= bound && fabs(dot - expected) <= bound))
            fail_msg("%s: %s of %s has norm %g and product %g, not %g and %g", model, what, name, sqrt(squares), dot,
                norm, expected);
    }
    assert_int_equal(count, tr_list_count(own));
}

/* Ten steps of AdamW on the same batch, from where fill_model() began. */
static void compare_training(tr_module *net, const tr_tensor_list *file, const char *model, tr_tensor **inputs, int n,
    double tolerance)
{
    enum { STEPS = 10 };
    tr_tensor *targets = recorded_find(file, "%s.targets", model);
    tr_optimizer *optimizer =
        tr_adamw(tr_parameters(net), .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1);
    float losses[STEPS];
    for (int i = 0; i < STEPS; i++) {
        TR_SCOPE;
        tr_zero_grad(optimizer);
        tr_tensor *loss = tr_cross_entropy(tr_forward_n(net, inputs, n), targets);
        TR_CHECK(tr_backward(loss));
        TR_CHECK(tr_step(optimizer));
        losses[i] = (float)tr_item(loss);
    }
    assert_close(model, "losses", tr_from(losses, TR_SHAPE(STEPS)), recorded_find(file, "%s.adamw.loss", model), tolerance);
    compare_digests(net, file, model, "adamw", itself, tolerance);
}

/* inputs: n of them. tolerance: in training; logits of evaluation are ten times as close. */
static void compare(const char *model, tr_module *net, tr_tensor **inputs, int n, double tolerance)
{
    tr_tensor_list *file = recorded("models");
    fill_model(net, file, model);
    tr_tensor *targets = recorded_find(file, "%s.targets", model);

    TR_CHECK(tr_eval(net));
    assert_close(model, "logits", tr_forward_n(net, inputs, n), recorded_find(file, "%s.logits", model), tolerance / 10);
    TR_CHECK(tr_train(net));
    tr_tensor *logits = tr_forward_n(net, inputs, n);
    assert_close(model, "training logits", logits, recorded_find(file, "%s.train.logits", model), tolerance);
    tr_tensor *loss = tr_cross_entropy(logits, targets);
    assert_close(model, "loss", loss, recorded_find(file, "%s.train.loss", model), tolerance);
    TR_CHECK(tr_backward(loss));
    compare_digests(net, file, model, "train", gradient, tolerance);
    char losses[64];
    snprintf(losses, sizeof losses, "%s.adamw.loss", model);
    if (tr_list_find(file, losses)) compare_training(net, file, model, inputs, n, tolerance);

    char first[256];
    const char *statistics = names_of(file, model, ".statistics");
    if (next_name(&statistics, first))
        assert_close(model, first, tr_list_find(tr_state_dict(net), first), recorded_find(file, "%s.train.mean", model),
            tolerance);
}

/* -1 … 1 */
static tr_tensor *random_floats(uint32_t number, tr_shape shape)
{
    tr_tensor *x = tr_empty(shape);
    float *values = tr_data(x);
    for (int64_t k = 0; k < tr_numel(x); k++) values[k] = (float)(2 * hashed(number, (uint32_t)k));
    return x;
}

static tr_tensor *images(uint32_t number, int64_t count)
{
    return random_floats(number, TR_SHAPE(count, 3, 64, 64));
}

static void test_resnet18(void **state)
{
    (void)state;
    TR_SCOPE;
    /* Images whose numbers keep away from kinks: Winograd's noise of 1e-6 puts others' gradients off by up to 1e-2. */
    compare("resnet18", tr_resnet18(.classes = 10), (tr_tensor *[]){images(2027, 4)}, 1, 1e-4);
}

static void test_resnet50(void **state)
{
    (void)state;
    TR_SCOPE;
    /* 53 layers with kinks blow f32 noise up: PyTorch's own f32 gradients are off by up to 1.4e-2 here. */
    compare("resnet50", tr_resnet50(.classes = 10), (tr_tensor *[]){images(2000, 4)}, 1, 2e-2);
}

static void test_vgg(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_vgg11(.classes = 10, .batch_norm = true, .dropout = 0);
    compare("vgg11_bn", net, (tr_tensor *[]){images(2000, 2)}, 1, 1e-4);
}

static void test_bert(void **state)
{
    (void)state;
    TR_SCOPE;
    static const char *const models[] = {"bert_mlm", "bert_classifier"};
    tr_tensor_list *file = recorded("models");
    for (int i = 0; i < 2; i++) {
        tr_module *net = tr_bert(.head = i ? TR_BERT_CLASSIFIER : TR_BERT_MASKED_LM, .vocab = 32, .positions = 16,
            .layers = 2, .heads = 2, .dim = 16, .classes = 5);
        tr_tensor *inputs[] = {
            recorded_find(file, "%s.input_ids", models[i]),
            recorded_find(file, "%s.attention_mask", models[i]),
            recorded_find(file, "%s.token_type_ids", models[i]),
        };
        compare(models[i], net, inputs, 3, 2e-5);
    }
}

/* Gradients of a BERT's parameters after a loss, copied. */
static tr_tensor_list *gradients(tr_module *net, tr_tensor *loss)
{
    tr_tensor_list *all = tr_parameters(net), *copies = tr_list_new();
    for (int i = 0; i < tr_list_count(all); i++) tr_clear_grad(tr_list_at(all, i));
    TR_CHECK(tr_backward(loss));
    for (int i = 0; i < tr_list_count(all); i++)
        TR_CHECK(tr_list_add(copies, tr_list_name(all, i), tr_cast(tr_grad(tr_list_at(all, i)), TR_F64)));
    return copies;
}

/* Logits of the asked places only give the loss and the gradients of all logits. */
/* Where the gradients of two biases are zero, their dropouts' masks are: how many of the 64 are alike. */
static int alike(const tr_tensor_list *parameters, const char *a, const char *b)
{
    float x[64], y[64];
    int n = 0;
    TR_CHECK(tr_copy_out(tr_grad(tr_list_find(parameters, a)), x, sizeof x));
    TR_CHECK(tr_copy_out(tr_grad(tr_list_find(parameters, b)), y, sizeof y));
    for (int i = 0; i < 64; i++) n += (x[i] == 0) == (y[i] == 0);
    return n;
}

static void test_dropouts_of_bert_have_masks_of_their_own(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_bert(.vocab = 8, .positions = 4, .layers = 1, .heads = 1, .dim = 64, .inner = 16, .dropout = 0.5,
        .head = TR_BERT_CLASSIFIER);
    TR_CHECK(tr_seed(net, 3, .step = 1));
    tr_tensor *y = tr_forward(net, tr_full(3, TR_SHAPE(1, 1), .dtype = TR_I32));
    TR_CHECK(tr_backward(y, .gradient = random_floats(5, tr_shape_of(y))));
    const tr_tensor_list *parameters = tr_parameters(net);
    assert_true(alike(parameters, "bert.encoder.layer.0.attention.output.dense.bias", "bert.encoder.layer.0.output.dense.bias") < 60);
    assert_true(alike(parameters, "bert.embeddings.LayerNorm.bias", "bert.pooler.dense.bias") < 60);
}

static void test_bert_loss(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_bert(.head = TR_BERT_MASKED_LM, .vocab = 19, .positions = 6, .layers = 2, .heads = 2, .dim = 16);
    tr_tensor *ids = tr_from(((const int32_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}), TR_SHAPE(2, 6), .dtype = TR_I32);
    tr_tensor *mask = tr_from(((const bool[]){1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}), TR_SHAPE(2, 6), .dtype = TR_BOOL);
    const int64_t asked[] = {-100, 2, -100, -100, 18, -100, 0, -100, -100, 7, -100, -100};
    tr_tensor *labels = tr_from(asked, TR_SHAPE(2, 6), .dtype = TR_I64);
    tr_tensor *whole = tr_cross_entropy(tr_forward(net, ids, mask), labels), *loss = tr_bert_loss(net, ids, mask, NULL, labels);
    assert_close("bert_loss", "loss", loss, whole, 1e-6);
    tr_tensor_list *expected = gradients(net, whole), *ours = gradients(net, loss);
    for (int i = 0; i < tr_list_count(expected); i++)
        assert_close("bert_loss", tr_list_name(expected, i), tr_list_at(ours, i), tr_list_at(expected, i), 1e-6);

    tr_tensor *none = tr_full(-100, TR_SHAPE(2, 6), .dtype = TR_I64);
    loss = tr_bert_loss(net, ids, NULL, NULL, none);
    assert_true(isnan(tr_item(loss)));
    ours = gradients(net, loss);
    for (int i = 0; i < tr_list_count(ours); i++) assert_true(tr_item(tr_sum(tr_abs(tr_list_at(ours, i)))) == 0);
}

static void test_vit(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_vit(.classes = 10, .image = 16, .patch = 4, .layers = 2, .heads = 2, .dim = 16, .inner = 32);
    tr_tensor *x = random_floats(2000, TR_SHAPE(4, 3, 16, 16)), *logits = tr_forward(net, x);
    for (int64_t k = 0; k < tr_numel(logits); k++) assert_true(((float *)tr_data(logits))[k] == 0);
    compare("vit", net, &x, 1, 2e-5);
}

static void test_transformer(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *file = recorded("models");
    tr_tensor *src = random_floats(2000, TR_SHAPE(3, 5, 16)), *tgt = random_floats(2001, TR_SHAPE(3, 4, 16));
    tr_tensor *near = recorded_find(file, "transformer_norm_first.src_mask");
    tr_module *net = tr_transformer(.dim = 16, .heads = 2, .layers = 2, .inner = 32, .causal = true);
    compare("transformer", net,
        (tr_tensor *[]){src, tgt, recorded_find(file, "transformer.src_keys"), NULL,
            recorded_find(file, "transformer.memory_keys")}, 5, 2e-5);
    net = tr_transformer(.dim = 16, .heads = 2, .layers = 1, .decoder_layers = 2, .inner = 32, .causal = true,
        .norm_first = true, .activation = TR_GELU_EXACT);
    compare("transformer_norm_first", net,
        (tr_tensor *[]){src, tgt, tr_reshape(near, TR_SHAPE(1, 1, 5, 5)), NULL,
            recorded_find(file, "transformer_norm_first.memory_keys")}, 5, 2e-5);
}

/* An encoder and a decoder are the halves of a whole one; dropout drops, the same for the same seed. */
static void test_halves_of_a_transformer(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *src = random_floats(1, TR_SHAPE(2, 5, 16)), *tgt = random_floats(2, TR_SHAPE(2, 4, 16));
    tr_module *whole = tr_transformer(.dim = 16, .heads = 2, .layers = 2, .dropout = 0.2, .activation = TR_GELU, .seed = 3);
    tr_module *encoder = tr_transformer_encoder(.dim = 16, .heads = 2, .layers = 2, .activation = TR_GELU, .final_norm = true);
    tr_module *decoder = tr_transformer_decoder(.dim = 16, .heads = 2, .layers = 2, .activation = TR_GELU, .final_norm = true);
    tr_module *halves = tr_module_new("halves", 0, NULL);
    tr_module_add(halves, "encoder", encoder);
    tr_module_add(halves, "decoder", decoder);
    TR_CHECK(tr_load_state_dict(halves, tr_state_dict(whole)));
    TR_CHECK(tr_eval(whole));
    tr_tensor *expected = tr_forward(whole, src, tgt);
    assert_close("halves", "output", tr_forward(decoder, tgt, tr_forward(encoder, src)), expected, 1e-6);
    TR_CHECK(tr_train(whole));
    TR_CHECK(tr_seed(whole, 1));
    tr_tensor *once = tr_forward(whole, src, tgt);
    assert_true(recorded_distance(once, expected) > 0.1);
    TR_CHECK(tr_seed(whole, 1));
    assert_true(recorded_distance(tr_forward(whole, src, tgt), once) == 0);
}

/* The model fails with that status and message. */
static void refuses(tr_status status, const char *message, const void *object)
{
    assert_int_equal(tr_status_of(object), status);
    if (!strstr(tr_error_message(), message)) fail_msg("\"%s\" says nothing of \"%s\"", tr_error_message(), message);
}

static void test_refusals(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_zeros(TR_SHAPE(2, 3, 8));
    tr_module *net = tr_transformer(.dim = 8, .heads = 2, .layers = 1);
    refuses(TR_INVALID, "a multiple of heads: 10 is not one of 3", tr_transformer(.dim = 10, .heads = 3));
    refuses(TR_INVALID, "layers -1", tr_transformer_encoder(.layers = -1));
    refuses(TR_INVALID, "not 1 inputs", tr_forward(net, x));
    refuses(TR_SHAPE, "x is [2, 8]: it must be [batch, seq, dim]", tr_forward(net, tr_zeros(TR_SHAPE(2, 8)), x));
    refuses(TR_INVALID, "a bool mask or none", tr_forward(net, x, x, x));
    refuses(TR_INVALID, "memory is NULL", tr_forward(tr_transformer_decoder(.dim = 8, .heads = 2, .layers = 1), x, NULL));
    refuses(TR_INVALID, "16 is not one of 3", tr_vit(.image = 16, .patch = 3));
    net = tr_vit(.classes = 2, .image = 8, .patch = 4, .layers = 1, .heads = 1, .dim = 8);
    refuses(TR_SHAPE, "images must be [batch, 3, 8, 8], they are [1, 3, 8, 12]", tr_forward(net, tr_zeros(TR_SHAPE(1, 3, 8, 12))));
    tr_vit_options vit = {.size = sizeof vit};
    assert_int_equal(tr_vit_preset("vit", &vit), TR_NOT_FOUND);
    assert_non_null(strstr(tr_error_message(), "there are vit_nano, vit_b_16, vit_b_32, vit_l_16, vit_l_32 and vit_h_14"));
    tr_bert_options bert = {.size = sizeof bert};
    TR_CHECK(tr_bert_preset("large", &bert));
    assert_int_equal(bert.layers, 24);
    assert_int_equal(bert.vocab, 30522);
    tr_gpt_options gpt = {.size = sizeof gpt};
    TR_CHECK(tr_gpt_preset("gpt2-xl", &gpt));
    assert_int_equal(gpt.dim, 1600);
}

static void test_errors(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *bert = tr_bert(.vocab = 8, .positions = 4, .layers = 1, .heads = 1, .dim = 8);
    tr_tensor *ids = tr_zeros(TR_SHAPE(2, 3), .dtype = TR_I64);
    assert_int_equal(tr_status_of(tr_forward(bert, ids)), TR_OK);
    assert_int_equal(tr_status_of(tr_forward(bert, tr_zeros(TR_SHAPE(2, 5), .dtype = TR_I64))), TR_SHAPE);
    assert_non_null(strstr(tr_error_message(), "a sequence of 5 tokens does not fit 4 positions"));
    assert_int_equal(tr_status_of(tr_forward(bert, ids, tr_ones(TR_SHAPE(2, 2), .dtype = TR_BOOL))), TR_SHAPE);
    assert_non_null(strstr(tr_error_message(), "the mask is [2, 2], the ids [2, 3]"));
    assert_int_equal(tr_status_of(tr_forward(bert, ids, NULL, NULL, tr_zeros(TR_SHAPE(1), .dtype = TR_I64))), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "for the masked-LM head only"));
    assert_int_equal(tr_status_of(tr_bert_loss(bert, ids, NULL, NULL, NULL)), TR_INVALID);
    bert = tr_bert(.head = TR_BERT_MASKED_LM, .vocab = 8, .positions = 4, .layers = 1, .heads = 1, .dim = 8);
    assert_int_equal(tr_status_of(tr_forward(bert, ids, NULL, NULL, tr_full(6, TR_SHAPE(1), .dtype = TR_I64))), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "is outside the 6 elements"));
    assert_int_equal(tr_status_of(tr_bert(.dim = 10, .heads = 3)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_forward(tr_resnet18(), tr_zeros(TR_SHAPE(3, 64, 64)))), TR_SHAPE);
    assert_non_null(strstr(tr_error_message(), "[batch, channels, height, width]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bert),
        cmocka_unit_test(test_dropouts_of_bert_have_masks_of_their_own),
        cmocka_unit_test(test_bert_loss),
        cmocka_unit_test(test_resnet18),
        cmocka_unit_test(test_resnet50),
        cmocka_unit_test(test_vgg),
        cmocka_unit_test(test_vit),
        cmocka_unit_test(test_transformer),
        cmocka_unit_test(test_halves_of_a_transformer),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
