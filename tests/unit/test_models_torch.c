/*
 * The same answer as torchvision's and Hugging Face's models: logits in evaluation and training mode, loss, every gradient,
 * running statistics, from tests/recorded/models.safetensors (record_models.py says how it was made). Names and shapes of
 * the state dicts must be theirs, or nothing is found.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Each gradient's norm, and its product with random numbers, which sees what a norm does not. */
static void compare_gradients(tr_module *net, const tr_tensor_list *file, const char *model, double tolerance)
{
    tr_tensor_list *own = tr_parameters(net);
    tr_tensor *norms = recorded_find(file, "%s.train.norm", model), *dots = recorded_find(file, "%s.train.dot", model);
    const char *names = names_of(file, model, "");
    char name[256];
    int count = 0;
    for (; next_name(&names, name); count++) {
        TR_SCOPE;
        tr_tensor *g = tr_grad(tr_list_find(own, name));
        if (!g) fail_msg("%s: %s has no gradient", model, name);
        const float *values = tr_data(tr_contiguous(g));
        double squares = 0, dot = 0;
        for (int64_t k = 0; k < tr_numel(g); k++) {
            squares += (double)values[k] * (double)values[k];
            dot += (double)values[k] * hashed(1000 + (uint32_t)count, (uint32_t)k);
        }
        double norm = (double)((float *)tr_data(norms))[count], expected = (double)((float *)tr_data(dots))[count];
        double bound = tolerance * norm + 1e-5; /* some are 0: softmax does not see the keys' bias, nor a norm its input's */
        if (!(fabs(sqrt(squares) - norm) <= bound && fabs(dot - expected) <= bound))
            fail_msg("%s: the gradient of %s has norm %g and product %g, not %g and %g", model, name, sqrt(squares), dot,
                norm, expected);
    }
    assert_int_equal(count, tr_list_count(own));
}

/* inputs: n of them. tolerance: of logits and statistics in training, gradients; those of evaluation are ten times
 * as close. */
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
    compare_gradients(net, file, model, tolerance);

    char first[256];
    const char *statistics = names_of(file, model, ".statistics");
    if (next_name(&statistics, first))
        assert_close(model, first, tr_list_find(tr_state_dict(net), first), recorded_find(file, "%s.train.mean", model),
            tolerance);
}

static tr_tensor *images(int64_t count)
{
    int64_t n = count * 3 * 64 * 64;
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t k = 0; k < n; k++) values[k] = (float)(2 * hashed(2000, (uint32_t)k));
    tr_tensor *x = tr_from(values, TR_SHAPE(count, 3, 64, 64));
    free(values);
    return x;
}

static void test_resnet18(void **state)
{
    (void)state;
    TR_SCOPE;
    compare("resnet18", tr_resnet18(.classes = 10), (tr_tensor *[]){images(4)}, 1, 1e-4);
}

static void test_resnet50(void **state)
{
    (void)state;
    TR_SCOPE;
    /* 53 layers with kinks blow f32 noise up: PyTorch's own f32 gradients are off by up to 1.4e-2 here. */
    compare("resnet50", tr_resnet50(.classes = 10), (tr_tensor *[]){images(4)}, 1, 2e-2);
}

static void test_vgg(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_vgg11(.classes = 10, .batch_norm = true, .dropout = TR_ZERO);
    compare("vgg11_bn", net, (tr_tensor *[]){images(2)}, 1, 1e-4);
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
    assert_int_equal(tr_status_of(tr_bert(.dim = 10, .heads = 3)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_forward(tr_resnet18(), tr_zeros(TR_SHAPE(3, 64, 64)))), TR_SHAPE);
    assert_non_null(strstr(tr_error_message(), "[batch, channels, height, width]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bert),
        cmocka_unit_test(test_resnet18),
        cmocka_unit_test(test_resnet50),
        cmocka_unit_test(test_vgg),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
