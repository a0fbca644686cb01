/* What ranks of a trainer are told: each difference is refused on all ranks, with both values, unless it is meant. */
#include "comm_ranks.h"

#include "data/content.h"
#include "data/text/text.h"

#include <trireme/trireme.h>

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { SAMPLES = 12, CONTEXT = 8 };

static char folder[64], text_path[80], other_path[80];

static void write_text(const char *path, char letter)
{
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < 100; i++) fprintf(f, "%c%c%c: %d times %d is %d;\n", letter, letter, letter, i, i % 7, i * (i % 7));
    if (!f || fclose(f)) abort();
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/trireme-settings-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(text_path, sizeof text_path, "%s/text", folder);
    snprintf(other_path, sizeof other_path, "%s/other", folder);
    write_text(text_path, 'a');
    write_text(other_path, 'b');
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* ---- The trainer of texts ------------------------------------------------------------------------------------------ */

static tr_module *small_gpt(int heads)
{
    return tr_gpt(.vocab = 256, .context = CONTEXT, .layers = 1, .heads = heads, .dim = 8, .dropout = 0.1, .seed = 1);
}

/* Trains two steps where it can be made. */
static tr_status train(rank *r, const tr_trainer_options *given, tr_module *model, const char *path)
{
    TR_SCOPE;
    tr_trainer_options o = *given;
    o.size = sizeof o;
    o.model = model;
    o.text = tr_text_load(path);
    o.group = r->group;
    if (!o.context) o.context = CONTEXT;
    if (!o.steps) o.steps = 2;
    tr_trainer *t = tr_trainer_new_with(&o);
    tr_status status = tr_status_of(t);
    return status == TR_OK ? tr_fit(t) : status;
}

static tr_optimizer *make_adamw(tr_tensor_list *parameters, void *user)
{
    (void)user;
    return tr_adamw(parameters, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1, .decay_matrices_only = true);
}

static tr_optimizer *make_amsgrad(tr_tensor_list *parameters, void *user)
{
    (void)user;
    return tr_adamw(parameters, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1, .decay_matrices_only = true, .amsgrad = true);
}

static tr_optimizer *make_groups(tr_tensor_list *parameters, void *user)
{
    tr_optimizer *o = make_adamw(parameters, user);
    tr_tensor_list *first = tr_list_new();
    TR_CHECK(tr_list_add(first, tr_list_name(parameters, 0), tr_list_at(parameters, 0)));
    TR_CHECK(tr_param_group(o, first, .lr_scale = 0.5));
    return o;
}

static tr_tensor *own_loss(tr_module *net, tr_tensor *x, tr_tensor *y, void *user)
{
    (void)user;
    return tr_cross_entropy(tr_forward(net, x), y);
}

static const tr_masking masking = {.begin = -1, .end = -1, .mask = 0, .vocab = 256};

static const struct {
    tr_trainer_options own[2]; /* of ranks 0 and 1 */
    const char *says;
} options[] = {
    {{{.lr = 0.1, .min_lr = 0.01}, {.lr = 0.2, .min_lr = 0.01}}, "trainer: ranks differ: lr is 0.1 on rank 0, 0.2 on rank 1; tell "},
    {{{.lr = 0.1}, {.lr = 0.2}}, "lr is 0.1 on rank 0, 0.2 on rank 1; min_lr is 0.01 on rank 0, 0.02 on rank 1; tell all ranks the "
                                 "same, or name in allow_different what is meant to differ"},
    {{{.seed = 1}, {.seed = UINT64_MAX}}, "seed is 1 on rank 0, 18446744073709551615 on rank 1"},
    {{{.clip = 1}, {.clip = TR_ZERO}}, "clip is 1 on rank 0, 0 on rank 1"},
    {{{.steps = 2}, {.steps = 3}}, "steps is 2 on rank 0, 3 on rank 1"},
    {{{.warmup_steps = 0}, {.warmup_steps = 1}}, "warmup_steps is 0 on rank 0, 1 on rank 1"},
    {{{.global_batch = 4}, {.global_batch = 6}}, "global_batch is 4 on rank 0, 6 on rank 1"},
    {{{.check_replicas = 7}, {.check_replicas = 8}}, "check_replicas is 7 on rank 0, 8 on rank 1"},
    {{{.stop_on_spike = true}, {.stop_on_spike = false}}, "stop_on_spike is yes on rank 0, no on rank 1"},
    {{{.clip = TR_ZERO, .step_in_backward = true}, {.clip = TR_ZERO}}, "step_in_backward is yes on rank 0, no on rank 1"},
    {{{.autocast = 0}, {.autocast = TR_BF16}}, "autocast is f32 on rank 0, bf16 on rank 1"},
    {{{.context = 8}, {.context = 4}}, "context is 8 on rank 0, 4 on rank 1"},
    {{{.validation_windows = 1}, {.validation_windows = 2}}, "validation_windows is 1 on rank 0, 2 on rank 1"},
    {{{.masking = NULL}, {.masking = &masking}}, "masking is none on rank 0, begin -1, end -1, mask 0, vocab 256, share 0 on rank 1"},
    {{{.beta2 = 0.99}, {.beta2 = 0.999}}, "optimizer.beta2 is 0.99 on rank 0, 0.999 on rank 1"},
    {{{.weight_decay = 0.1}, {.weight_decay = TR_ZERO}}, "differ: optimizer.weight_decay is 0.1 on rank 0, 0 on rank 1; "},
    {{{.optimizer = make_adamw}, {.optimizer = make_amsgrad}},
     "optimizer.state is exp_avg, exp_avg_sq on rank 0, exp_avg, exp_avg_sq, max_exp_avg_sq on rank 1"},
    {{{.optimizer = make_adamw}, {.optimizer = make_groups}}, "optimizer.parameters is 16 (10 with a rate or decay of their own, CRC-32C "},
    {{{.loss = NULL}, {.loss = own_loss}}, "loss is cross-entropy on rank 0, the program's on rank 1"},
    {{{.resume = NULL}, {.resume = "/nowhere"}}, "resume is not from a checkpoint on rank 0, from a checkpoint on rank 1"},
    {{{.allow_different = "lr"}, {.allow_different = "lr, seed"}}, "allow_different is lr on rank 0, lr, seed on rank 1"},
};

static void different_options(rank *r)
{
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        TR_SCOPE;
        CHECK(train(r, &options[i].own[r->number], small_gpt(2), text_path) == TR_MISMATCH);
        SAYS(options[i].says);
    }
    TR_SCOPE;
    OK(train(r, &(tr_trainer_options){.seed = 1}, small_gpt(2), text_path)); /* the group goes on */
}

static void each_option_is_compared(void **state)
{
    (void)state;
    run(2, different_options, NULL);
}

static void different_texts(rank *r)
{
    TR_SCOPE;
    const tr_trainer_options none = {0};
    CHECK(train(r, &none, small_gpt(2), r->number == 2 ? other_path : text_path) == TR_MISMATCH);
    SAYS("trainer: ranks differ: data is ");
    SAYS(" on ranks 0 and 1, ");
    CHECK(train(r, &none, small_gpt(r->number == 2 ? 1 : 2), text_path) == TR_MISMATCH);
    SAYS("model.h.0.attn is attention (heads 2) on ranks 0 and 1, attention (heads 1) on rank 2; tell ");
}

static void texts_and_models_are_compared(void **state)
{
    (void)state;
    run(3, different_texts, NULL);
}

static void what_is_meant(rank *r)
{
    TR_SCOPE;
    const char *both = r->number ? other_path : text_path;
    OK(train(r, &(tr_trainer_options){.lr = r->number ? 0.01 : 0.02, .allow_different = " data,,lr min-lr", .check_replicas = -1}, small_gpt(2), both));
    OK(train(r, &(tr_trainer_options){.beta2 = r->number ? 0.9 : 0.99, .allow_different = "optimizer", .check_replicas = -1}, small_gpt(2), text_path));
    OK(train(r, &(tr_trainer_options){.beta2 = r->number ? 0.9 : 0.99, .allow_different = "optimizer.beta2", .check_replicas = -1}, small_gpt(2),
        text_path));
    OK(train(r, &(tr_trainer_options){.micro_batch = r->number + 1}, small_gpt(2), text_path)); /* memory may differ */

    CHECK(train(r, &(tr_trainer_options){.lr = r->number ? 0.01 : 0.02, .allow_different = "lr"}, small_gpt(2), text_path) ==
        TR_MISMATCH);
    SAYS("trainer: ranks differ: min_lr is 0.002 on rank 0, 0.001 on rank 1");
    CHECK(train(r, &(tr_trainer_options){.allow_different = "lr, dat"}, small_gpt(2), text_path) == TR_INVALID);
    SAYS("there is no setting \"dat\" that ranks compare: there are allow_different, resume, model, tokenizer, data, context, "
         "validation_windows, masking, optimizer, loss, global_batch, steps, warmup_steps, lr, min_lr, clip, seed, autocast, "
         "check_replicas, stop_on_spike, step_in_backward");
}

static void what_is_meant_may_differ(void **state)
{
    (void)state;
    run(2, what_is_meant, NULL);
}

static void stop_elsewhere(rank *r)
{
    TR_SCOPE;
    tr_trainer *t = tr_trainer_new(small_gpt(2), tr_text_load(text_path), .context = CONTEXT, .steps = 4, .group = r->group);
    CHECK(tr_fit(t, .stop_at = r->number + 1) == TR_MISMATCH);
    SAYS("fit: ranks differ: stop_at is 1 on rank 0, 2 on rank 1");
    CHECK(tr_fit(t, .validate_every = r->number + 2) == TR_MISMATCH);
    SAYS("fit: ranks differ: validate_every is 2 on rank 0, 3 on rank 1");
    OK(tr_fit(t));
}

static void ranks_stop_and_validate_together(void **state)
{
    (void)state;
    run(2, stop_elsewhere, NULL);
}

/* ---- The trainer of classifiers ------------------------------------------------------------------------------------ */

/* x: [4], y: i64; of sample `changed` the last element is another. */
static tr_dataset *rows(int changed)
{
    tr_tensor *x = tr_rand(7, TR_SHAPE(SAMPLES, 4)), *y = tr_zeros(TR_SHAPE(SAMPLES), .dtype = TR_I64);
    if (changed >= 0) ((float *)tr_data(x))[changed * 4 + 3] = 2;
    return tr_dataset_tensors(x, y);
}

static tr_status numbered(const tr_sample_call *call, tr_sample *out)
{
    out->x = tr_full((double)call->index + (call->user ? 0.5 : 0), TR_SHAPE(4));
    out->y = tr_scalar(0, TR_I64);
    return tr_status_of(out->x);
}

static tr_status fails(const tr_sample_call *call, tr_sample *out)
{
    (void)call, (void)out;
    return tr_fail(TR_IO, "the disk is gone");
}

static tr_status scale(const tr_sample_call *call, tr_sample *sample)
{
    sample->x = tr_affine(sample->x, call->user ? 2 : 1, 0);
    return TR_OK;
}

static const int64_t order[2][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}};
static int something;

static tr_dataset *set_of(int which, int other)
{
    void *user = other ? &something : NULL;
    switch (which) {
    case 0: return rows(other ? 5 : -1);
    case 1: return tr_dataset_slice(rows(-1), 2 * other, 2 * other + 6);
    case 2: return tr_dataset_subset(rows(-1), order[other], 4);
    case 3: return tr_dataset_map(rows(-1), scale, user);
    case 4: return tr_dataset_new(SAMPLES, numbered, user);
    case 5: return tr_dataset_new(SAMPLES, other ? fails : numbered);
    default: return tr_dataset_new(SAMPLES - 2 * other, numbered);
    }
}
static const char *const sets[] = {
    "data is 12 samples of f32 [4] (CRC-32C ",
    "data is 6 samples of f32 [4] (CRC-32C ",
    "data is 4 samples of f32 [4] (CRC-32C ",
    "differ: data.samples is CRC-32C ",
    " of samples 0, 6 and 11 of f32 [4] (0 cannot be made) on rank 0, CRC-32C ",
    " of samples 0, 6 and 11 (3 cannot be made) on rank 1",
    "data is 12 samples (CRC-32C 00000000) on rank 0, 10 samples (CRC-32C 00000000) on rank 1",
};
enum { SETS = sizeof sets / sizeof *sets };

static void different_sets(rank *r)
{
    for (int i = 0; i < SETS; i++) {
        TR_SCOPE;
        tr_module *net = tr_linear(4, 2);
        CHECK(tr_status_of(tr_classifier_trainer(net, set_of(i, r->number), .group = r->group, .global_batch = 2)) == TR_MISMATCH);
        SAYS(sets[i]);
        tr_dataset *good = set_of(i, 0);
        OK(tr_status_of(tr_classifier_trainer(net, good, .group = r->group, .global_batch = 2)));
        CHECK(tr_status_of(tr_classifier_trainer(net, good, .validation = set_of(i, r->number), .group = r->group,
            .global_batch = 2)) == TR_MISMATCH);
        SAYS("trainer: ranks differ: validation");
        OK(tr_status_of(tr_classifier_trainer(net, good, .validation = set_of(i, r->number), .group = r->group, .global_batch = 2,
            .allow_different = "validation")));
        OK(tr_status_of(tr_classifier_trainer(net, set_of(i, r->number), .group = r->group, .global_batch = 2, .steps = 3,
            .allow_different = "data")));
    }
    TR_SCOPE;
    tr_dataset *set = rows(-1);
    CHECK(tr_status_of(tr_classifier_trainer(tr_linear(4, 2), set, .validation = r->number ? NULL : set, .group = r->group,
        .global_batch = 2)) == TR_MISMATCH);
    SAYS("none on rank 1");
    CHECK(tr_status_of(tr_classifier_trainer(tr_linear(4, 2), set, .group = r->group, .global_batch = 2,
        .on_bad = r->number ? TR_SKIP : TR_FAIL)) == TR_MISMATCH);
    SAYS("on_bad is fail on rank 0, skip on rank 1");
    CHECK(tr_status_of(tr_classifier_trainer(tr_linear(4, 2), set, .group = r->group, .global_batch = 2,
        .momentum = r->number ? 0.5 : 0.9)) == TR_MISMATCH);
    SAYS("optimizer.momentum is 0.9 on rank 0, 0.5 on rank 1");
    OK(tr_status_of(tr_classifier_trainer(tr_linear(4, 2), set, .group = r->group, .global_batch = 2, .workers = r->number + 1)));
}

static void datasets_are_compared(void **state)
{
    (void)state;
    run(2, different_sets, NULL);
}

/* Alone nobody compares, and a program's function is not called. */
static void nothing_is_asked_for_alone(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_dataset *set = tr_dataset_new(SAMPLES, fails);
    assert_int_equal(tr_status_of(tr_classifier_trainer(tr_linear(4, 2), set, .global_batch = 2, .allow_different = "data.samples")),
        TR_OK);
    FAILS(TR_INVALID, tr_status_of(tr_classifier_trainer(tr_linear(4, 2), set, .allow_different = "context", .global_batch = 2)),
        "no setting \"context\"");
}

static tr_optimizer *make_none(tr_tensor_list *parameters, void *user)
{
    (void)parameters, (void)user;
    return NULL;
}

static void an_optimizer_is_needed(void **state)
{
    (void)state;
    TR_SCOPE;
    FAILS(TR_INVALID, tr_status_of(tr_trainer_new(small_gpt(2), tr_text_load(text_path), .context = CONTEXT, .optimizer = make_none)),
        "returned NULL");
}

/* ---- Models -------------------------------------------------------------------------------------------------------- */

static tr_module *net_of(int which, int other)
{
    tr_module *own = tr_module_new("own", 0, NULL);
    switch (which) {
    case 0: return tr_sequential(tr_linear(4, 4), tr_activation_layer(other ? tr_gelu : tr_relu));
    case 1: return tr_sequential(tr_layer_norm(4, .eps = other ? 1e-6 : 1e-5));
    case 2: return tr_sequential(tr_conv2d(1, 2, 3, .stride = 1 + other));
    case 3: return tr_sequential(tr_max_pool2d_layer(2 + other), tr_linear(4, 2));
    case 4: return tr_multihead_attention(4, 2, .causal = other);
    case 5: return tr_sequential(tr_linear(4, 2), tr_dropout_layer(other ? 0.1 : 0.2));
    case 6: {
        tr_module *net = tr_sequential(tr_linear(4, 2), tr_linear(2, 2));
        TR_CHECK(tr_freeze(tr_module_find(net, "0"), other));
        return net;
    }
    default:
        tr_module_detail(own, "mode %d", other);
        return tr_sequential(tr_linear(4, 2), own);
    }
}
static const char *const nets[] = {
    "model.1 is activation (relu) on rank 0, activation (gelu) on rank 1; tell",
    "model.0 is layer_norm (eps 1e-05) on rank 0, layer_norm (eps 1e-06) on rank 1; tell",
    "model.0 is conv2d (stride 1, padding 0 and 0, dilation 1, groups 1) on rank 0, conv2d (stride 2, ",
    "model.0 is max_pool2d (kernel 2, stride 2, padding 0) on rank 0, max_pool2d (kernel 3, ",
    "in 4 tensors (heads 2) on rank 0, multihead_attention of 80 elements in 4 tensors (heads 2, causal) on rank 1",
    "model.1 is dropout (p 0.2) on rank 0, dropout (p 0.1) on rank 1; tell",
    "model.0.weight is f32 [2, 4] on rank 0, f32 [2, 4] (frozen) on rank 1; ",
    "model.1 is own (mode 0) on rank 0, own (mode 1) on rank 1; tell",
};

static void different_nets(rank *r)
{
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) {
        TR_SCOPE;
        tr_trainer *t = tr_classifier_trainer(net_of((int)i, r->number), rows(-1), .group = r->group, .global_batch = 2);
        CHECK(tr_status_of(t) == TR_MISMATCH);
        SAYS(nets[i]);
    }
}

static void modules_are_compared(void **state)
{
    (void)state;
    run(2, different_nets, NULL);
}

static void without_a_trainer(rank *r)
{
    TR_SCOPE;
    tr_module *net = tr_linear(4, 2);
    CHECK(tr_status_of(tr_ddp(net, r->group, .bucket_mb = r->number ? 25 : 0.5)) == TR_MISMATCH);
    SAYS("ddp: ranks differ: bucket_mb is 0.5 on rank 0, 25 on rank 1");
    tr_optimizer *rule = r->number ? tr_adam(tr_parameters(net)) : tr_sgd(tr_parameters(net));
    CHECK(tr_shard_optimizer(rule, r->group) == TR_MISMATCH);
    SAYS("shard_optimizer: ranks differ: optimizer is sgd on rank 0, adam on rank 1");
    tr_optimizer *decay = tr_sgd(tr_parameters(net), .weight_decay = r->number);
    CHECK(tr_shard_optimizer(decay, r->group) == TR_MISMATCH);
    SAYS("shard_optimizer: ranks differ: optimizer.weight_decay is 0 on rank 0, 1 on rank 1");
    tr_optimizer *rate = tr_sgd(tr_parameters(net), .lr = r->number ? 0.2 : 0.1);
    CHECK(tr_shard_optimizer(rate, r->group) == TR_MISMATCH); /* replicas would stay alike, at two rates: nothing else finds it */
    SAYS("shard_optimizer: ranks differ: lr is 0.1 on rank 0, 0.2 on rank 1");
    OK(tr_shard_optimizer(tr_sgd(tr_parameters(net)), r->group));
}

static void ddp_and_shards_compare_their_options(void **state)
{
    (void)state;
    run(2, without_a_trainer, NULL);
}

/* ---- What data consists of ----------------------------------------------------------------------------------------- */

static uint32_t sum_of(const void *data, size_t bytes, bool sampled)
{
    tr__content content = {0};
    tr__content_add(&content, data, bytes);
    assert_int_equal(content.sampled, sampled);
    return content.crc32c;
}

static void large_data_is_sampled(void **state)
{
    (void)state;
    const size_t whole = 64 << 20, bytes = whole + 1000;
    char *data = calloc(1, bytes);
    assert_non_null(data);
    uint32_t of_whole = sum_of(data, whole, false), of_more = sum_of(data, bytes, true);
    data[whole / 3] = 1;
    assert_int_not_equal(sum_of(data, whole, false), of_whole);
    data[whole / 3] = 0;
    assert_int_equal(sum_of(data, bytes, true), of_more);
    assert_int_not_equal(sum_of(data, bytes - 1, true), of_more);
    data[0] = 1;
    assert_int_not_equal(sum_of(data, bytes, true), of_more);
    data[0] = 0;
    data[bytes - 1] = 1; /* the last piece ends it */
    assert_int_not_equal(sum_of(data, bytes, true), of_more);
    free(data);
}

/* The same tokens and merges, from files of two kinds, are the same tokenizer; another merge is another one. */
static void tokenizers_are_told_apart(void **state)
{
    (void)state;
    TR_SCOPE;
    char path[128], again[TR__TOKENIZER_TEXT], first[TR__TOKENIZER_TEXT], other[TR__TOKENIZER_TEXT];
    tr_tokenizer *trained = tr_tokenizer_train(tr_text_load(text_path), .vocab = 280);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(tr_tokenizer_save(trained, path), TR_OK);
    tr__tokenizer_text(trained, first);
    assert_string_equal(tr__tokenizer_text(tr_tokenizer_load(path), again), first);
    assert_string_not_equal(tr__tokenizer_text(tr_tokenizer_train(tr_text_load(other_path), .vocab = 280), other), first);
    assert_int_equal(strncmp(first, "280 tokens (CRC-32C ", 20), 0);

    tr_text *text = tr_text_load(text_path, .tokenizer = trained);
    assert_string_equal(text->tokenizer, first);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_option_is_compared),
        TEST(texts_and_models_are_compared),
        TEST(what_is_meant_may_differ),
        TEST(ranks_stop_and_validate_together),
        TEST(datasets_are_compared),
        TEST(nothing_is_asked_for_alone),
        TEST(an_optimizer_is_needed),
        TEST(modules_are_compared),
        TEST(ddp_and_shards_compare_their_options),
        TEST(large_data_is_sampled),
        TEST(tokenizers_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
