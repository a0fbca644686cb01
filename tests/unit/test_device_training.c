/*
 * Training on a device against the CPU: optimizers, clipping, DDP, models split over devices. The build says which plug-in
 * and which kind: the toy (tests/device/toy.c) here, the emulated CUDA plug-in in cuda/training; and in cuda/nccl_training, that
 * ranks of devices meet over NCCL.
 */
#include <trireme/trireme.h>

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef BACKEND
#define BACKEND NULL
#endif
/* The GPUs of a second rank that has two. Ranks over NCCL share none, not even as threads: who waits for all that runs on one
 * would wait for the other rank, which may wait for it. */
#ifndef SECOND_PAIR
#define SECOND_PAIR KIND ":1", KIND ":0"
#endif
enum { RANKS = 2, BATCH = 24, STEPS = 5, WEIGHTS = 6 * 16 + 16 + 16 * 3 + 3 };

#define OK(expression)                                                     \
    do {                                                                   \
        if ((expression) != TR_OK) fail_msg("%s", tr_error_message());     \
    } while (0)
#define TRY(expression)                                    \
    do {                                                   \
        tr_status try_ = (expression);                     \
        if (try_ != TR_OK) return try_;                    \
    } while (0)

static tr_device device(const char *name)
{
    tr_device d;
    OK(tr_device_parse(name, &d));
    return d;
}

/* Where the two layers are, and what trains them. */
typedef struct run {
    tr_status (*body)(struct run *r);
    const char *first, *second; /* devices */
    const char *other;          /* NULL, or where the second replica of a tr_data_parallel() is; the first is on `first` */
    tr_store *store;            /* NULL: one rank, without DDP */
    int rank, ranks;
    bool sharded, in_backward;
    tr_status status;
    char message[256];
    double losses[STEPS], norms[STEPS];
    float weights[WEIGHTS];
} run;

typedef struct two_layers {
    tr_module *first, *second;
} two_layers;

static tr_tensor *split_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const two_layers *s = tr_module_state(self);
    tr_tensor *bias = tr_list_at(tr_parameters(s->second), 1);
    tr_tensor *hidden = tr_relu(tr_forward(s->first, inputs[0]));
    return tr_forward(s->second, tr_to(hidden, tr_device_of(bias)));
}

static tr_module *make_net(const run *r)
{
    tr_module *net = tr_module_new("two layers", sizeof(two_layers), split_forward);
    two_layers *s = tr_module_state(net);
    tr_device first, second;
    s->first = tr_linear(6, 16, .seed = 1);
    s->second = tr_linear(16, 3, .seed = 2);
    tr_module_add(net, "first", s->first);
    tr_module_add(net, "second", s->second);
    if (tr_device_parse(r->first, &first) != TR_OK || tr_device_parse(r->second, &second) != TR_OK ||
        tr_module_to(s->first, first) != TR_OK || tr_module_to(s->second, second) != TR_OK)
        return tr_module_fail(TR_DEVICE, "%s", tr_error_message());
    return net;
}

static tr_group *join(const run *r)
{
    const char *backend = strcmp(r->first, "cpu") == 0 ? NULL : BACKEND;
    tr_device first;
    if (tr_device_parse(r->first, &first) != TR_OK) first = tr_cpu(0);
    return tr_join(.store = r->store, .rank = r->rank, .world_size = r->ranks, .backend = backend, .device = first);
}

static tr_status train(run *r)
{
    TR_SCOPE;
    tr_group *group = r->store ? join(r) : NULL;
    tr_module *net = make_net(r);
    TRY(tr_status_of(net));
    tr_device first, second, both[2];
    TRY(tr_device_parse(r->first, &first));
    TRY(tr_device_parse(r->second, &second));
    both[0] = first;
    if (r->other) TRY(tr_device_parse(r->other, &both[1]));
    tr_module *model = r->other ? tr_data_parallel(net, .devices = both, .count = 2) : net;
    if (group) model = tr_ddp(model, group, .bucket_mb = 1e-4);
    TRY(tr_status_of(model));
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3);
    if (r->sharded) TRY(tr_shard_optimizer(opt, group));
    if (r->in_backward) TRY(tr_step_in_backward(opt, true));
    tr_tensor *all = tr_randn(50, TR_SHAPE(BATCH, 6)), *labels = tr_argmax(tr_slice(all, 1, 0, 3), 1);
    int64_t rows = BATCH / r->ranks, at = rows * r->rank;
    tr_tensor *x = tr_to(tr_slice(all, 0, at, at + rows), first), *y = tr_to(tr_slice(labels, 0, at, at + rows), second);
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        tr_zero_grad(opt);
        tr_tensor *loss = tr_cross_entropy(tr_forward(model, x), y);
        TRY(tr_backward(loss));
        r->losses[step] = tr_item(loss);
        if (!r->in_backward) TRY(tr_clip_grad_norm(opt, 0.5, &r->norms[step]));
        TRY(tr_step(opt));
    }
    size_t count = 0;
    for (int i = 0; i < 4; i++) {
        tr_tensor *p = tr_list_at(tr_parameters(net), i);
        TRY(tr_copy_out(p, r->weights + count, (size_t)tr_numel(p) * sizeof(float)));
        count += (size_t)tr_numel(p);
    }
    return group ? tr_leave(group) : TR_OK;
}

static void *run_body(void *arg)
{
    run *r = arg;
    r->status = r->body(r);
    if (r->status != TR_OK) snprintf(r->message, sizeof r->message, "%s", tr_error_message());
    return NULL;
}

static void run_alone(run *r, tr_status (*body)(run *r))
{
    r->body = body;
    run_body(r);
}

static void assert_alike(const run *got, const run *expected)
{
    if (got->status != TR_OK) fail_msg("%s", got->message);
    for (int i = 0; i < STEPS && got->ranks == expected->ranks; i++) {
        assert_true(fabs(got->losses[i] - expected->losses[i]) < 1e-5);
        assert_true(fabs(got->norms[i] - expected->norms[i]) < 1e-5);
    }
    for (int i = 0; i < WEIGHTS; i++)
        if (!(fabsf(got->weights[i] - expected->weights[i]) < 2e-5f))
            fail_msg("weight %d is %g, not %g", i, (double)got->weights[i], (double)expected->weights[i]);
}

static run on_cpu(bool in_backward)
{
    run r = {.first = "cpu", .second = "cpu", .ranks = 1, .in_backward = in_backward};
    run_alone(&r, train);
    if (r.status != TR_OK) fail_msg("%s", r.message);
    return r;
}

static void an_mlp_has_the_losses_of_the_cpu(void **state)
{
    (void)state;
    run expected = on_cpu(false), r = {.first = KIND ":0", .second = KIND ":0", .ranks = 1};
    run_alone(&r, train);
    assert_alike(&r, &expected);
    assert_true(r.losses[STEPS - 1] < r.losses[0]);
}

static void an_optimizer_steps_in_backward(void **state)
{
    (void)state;
    run expected = on_cpu(true), r = {.first = KIND ":1", .second = KIND ":1", .ranks = 1, .in_backward = true};
    run_alone(&r, train);
    assert_alike(&r, &expected);
}

static void a_model_may_be_split_over_devices(void **state)
{
    (void)state;
    run expected = on_cpu(false), r = {.first = KIND ":0", .second = KIND ":1", .ranks = 1};
    run_alone(&r, train);
    assert_alike(&r, &expected);
    run mixed = {.first = "cpu", .second = KIND ":1", .ranks = 1};
    run_alone(&mixed, train);
    assert_alike(&mixed, &expected);
}

static void run_ranks(run *ranks, tr_status (*body)(run *r))
{
    TR_SCOPE;
    pthread_t threads[RANKS];
    tr_store *store = tr_store_memory();
    for (int i = 0; i < RANKS; i++) {
        ranks[i].store = store;
        ranks[i].rank = i;
        ranks[i].ranks = RANKS;
        ranks[i].body = body;
        assert_int_equal(pthread_create(&threads[i], NULL, run_body, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < RANKS; i++)
        if (ranks[i].status != TR_OK) fail_msg("rank 0: %s; rank 1: %s", ranks[0].message, ranks[1].message);
}

static void ddp_over_two_devices_is_like_one_rank(void **state)
{
    (void)state;
    run expected = on_cpu(false);
    for (int sharded = 0; sharded < 2; sharded++) {
        run ranks[RANKS] = {{.first = KIND ":0", .second = KIND ":0", .sharded = sharded},
            {.first = KIND ":1", .second = KIND ":1", .sharded = sharded}};
        run_ranks(ranks, train);
        for (int i = 0; i < RANKS; i++) assert_alike(&ranks[i], &expected);
        assert_memory_equal(ranks[0].weights, ranks[1].weights, sizeof ranks->weights);
    }
    static const char *const pair[] = {SECOND_PAIR};
    run hybrid[RANKS] = {{.first = KIND ":0", .second = KIND ":1"}, {.first = pair[0], .second = pair[1]}};
    run_ranks(hybrid, train);
    for (int i = 0; i < RANKS; i++) assert_alike(&hybrid[i], &expected);
}

static void gradients_are_scaled_and_unscaled(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *w = tr_require_grad(tr_full(2, TR_SHAPE(3), .device = device(KIND ":0")));
    tr_tensor_list *list = tr_list_new();
    OK(tr_list_add(list, "w", w));
    tr_optimizer *opt = tr_sgd(list, .lr = 1);
    tr_grad_scaler *scaler = tr_grad_scaler_new(.scale = 1024);
    OK(tr_backward(tr_scale_loss(scaler, tr_sum(tr_mul(w, w), TR_ALL_DIMS))));
    bool finite = false;
    OK(tr_unscale_grad(scaler, opt, &finite));
    assert_true(finite);
    OK(tr_scaled_step(scaler, opt));
    assert_true(tr_item(tr_slice(w, 0, 0, 1)) == 2 - 4);
    assert_true(tr_update_scale(scaler));

    OK(tr_fill(w, INFINITY));
    tr_zero_grad(opt);
    OK(tr_backward(tr_scale_loss(scaler, tr_sum(tr_mul(w, w), TR_ALL_DIMS))));
    OK(tr_unscale_grad(scaler, opt, &finite));
    assert_false(finite);
}

/* ---- Replicas in one process ---------------------------------------------------------------------------------------------- */

static void replicas_on_two_devices_are_like_one(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{KIND ":0", KIND ":1"}, {KIND ":1", "cpu"}, {"cpu", KIND ":0"}};
    for (int in_backward = 0; in_backward < 2; in_backward++) {
        run expected = on_cpu(in_backward);
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
            run r = {.first = pairs[i][0], .second = pairs[i][0], .other = pairs[i][1], .ranks = 1, .in_backward = in_backward};
            run_alone(&r, train);
            assert_alike(&r, &expected);
        }
    }
    static const char *const pair[] = {SECOND_PAIR};
    run expected = on_cpu(false);
    run ranks[RANKS] = {{.first = KIND ":0", .second = KIND ":0", .other = KIND ":1"},
        {.first = pair[0], .second = pair[0], .other = pair[1]}};
    run_ranks(ranks, train);
    for (int i = 0; i < RANKS; i++) assert_alike(&ranks[i], &expected);
}

/* A second forward must not copy unchanged parameters again: it would write to what the first forward's graph has saved. */
static void replicas_copy_parameters_that_were_written_to(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_device both[] = {device(KIND ":0"), device(KIND ":1")};
    tr_tensor *x = tr_ones(TR_SHAPE(4, 1), .device = both[0]);
    tr_module *net = tr_linear(1, 1, .no_bias = true), *model;
    OK(tr_module_to(net, both[0]));
    model = tr_data_parallel(net, .devices = both, .count = 2);
    tr_tensor *w = tr_list_at(tr_parameters(net), 0);
    for (int value = 2; value < 4; value++) {
        OK(tr_fill(w, value));
        tr_tensor *in = tr_require_grad(tr_affine(x, 3, 0)), *y[2];
        for (int i = 0; i < 2; i++) {
            y[i] = tr_sum(tr_forward(model, in), TR_ALL_DIMS);
            assert_true(tr_item(y[i]) == 4 * 3 * value);
        }
        for (int i = 0; i < 2; i++) OK(tr_backward(y[i]));
        assert_true(tr_item(tr_grad(w)) == 2 * 4 * 3);
        assert_true(tr_item(tr_sum(tr_grad(in), TR_ALL_DIMS)) == 2 * 4 * value);
        tr_clear_grad(w);
    }
    tr_tensor *y = tr_sum(tr_forward(model, x), TR_ALL_DIMS);
    OK(tr_fill(w, 5));
    assert_int_equal(tr_backward(y), TR_STATE);
    assert_non_null(strstr(tr_error_message(), "\"weight\" was written to after the forward"));
}

static void replicas_take_a_whole_module(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_device both[] = {device(KIND ":0"), device(KIND ":1")}, twice[] = {both[1], both[1]};
    tr_module *net = tr_sequential(tr_linear(1, 1));
    tr_tensor *x = tr_ones(TR_SHAPE(4, 1), .device = both[0]);
    OK(tr_module_to(net, both[0]));
    tr_module *model = tr_data_parallel(net); /* all devices of its kind */
    assert_true(tr_size(tr_forward(model, x), 0) == 4);
    tr_module *late = tr_linear(1, 1);
    OK(tr_module_to(late, both[0]));
    tr_module_add(net, "late", late);
    assert_int_equal(tr_status_of(tr_forward(model, x)), TR_STATE);
    assert_non_null(strstr(tr_error_message(), "finish it before"));
    OK(tr_freeze(late, true));
    assert_int_equal(tr_status_of(tr_forward(model, x)), TR_STATE);
    assert_non_null(strstr(tr_error_message(), "\"weight\" was added after its replicas were set up: finish it before"));
    assert_int_equal(tr_status_of(tr_data_parallel(late, .devices = twice, .count = 2)), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), KIND ":1 is given twice"));
}

/* ---- Collectives ----------------------------------------------------------------------------------------------------------- */

/* Buffers of a device by hand: in place, in blocks, of unequal lengths, to and from a rank. */
static tr_status collectives(run *r)
{
    TR_SCOPE;
    tr_group *group = join(r);
    tr_device at;
    TRY(tr_status_of(group));
    TRY(tr_device_parse(r->first, &at));
    tr_tensor *x = tr_full(r->rank + 1, TR_SHAPE(100), .device = at), *both = tr_zeros(TR_SHAPE(200), .device = at);
    for (int i = 0; i < 5; i++) TRY(tr_all_reduce_tensor(group, x, TR_SUM)); /* 3, 6, 12, 24, 48 */
    if (tr_item(tr_slice(x, 0, 99, 100)) != 48) return tr_fail(TR_INTERNAL, "all_reduce gave %g", tr_item(tr_slice(x, 0, 99, 100)));
    TRY(tr_fill(x, r->rank + 5));
    TRY(tr_all_gather_tensor(group, x, both));
    if (fabs(tr_item(tr_mean(both, TR_ALL_DIMS)) - 5.5) > 1e-4) return tr_fail(TR_INTERNAL, "all_gather gave %g", tr_item(tr_mean(both, TR_ALL_DIMS)));
    TRY(tr_reduce_scatter_tensor(group, both, x, TR_SUM));
    if (tr_item(tr_slice(x, 0, 0, 1)) != 2 * (r->rank + 5)) return tr_fail(TR_INTERNAL, "reduce_scatter");
    if (r->rank == 0) TRY(tr_send_tensor(group, x, 1, 0));
    else TRY(tr_recv_tensor(group, x, 0, 0));
    if (tr_item(tr_slice(x, 0, 50, 51)) != 10) return tr_fail(TR_INTERNAL, "recv gave %g", tr_item(tr_slice(x, 0, 50, 51)));
    tr_tensor *elsewhere = tr_zeros(TR_SHAPE(200));
    if (tr_all_gather_tensor(group, x, elsewhere) != TR_DEVICE) return tr_fail(TR_INTERNAL, "two devices in a collective");
    return tr_leave(group);
}

/* x, the same on all ranks, through two layers of which each rank has a part: the gradient of the sum of squares. */
static tr_status tensor_parallel(run *r)
{
    TR_SCOPE;
    tr_group *group = join(r);
    tr_device at;
    TRY(tr_status_of(group));
    TRY(tr_device_parse(r->first, &at));
    tr_module *column = tr_column_linear(6, 8, .group = group, .seed = 1), *row = tr_row_linear(8, 4, .group = group, .seed = 2);
    TRY(tr_module_to(column, at));
    TRY(tr_module_to(row, at));
    tr_tensor *x = tr_require_grad(tr_randn(3, TR_SHAPE(5, 6), .device = at));
    tr_tensor *y = tr_forward(row, tr_relu(tr_forward(column, x)));
    TRY(tr_backward(tr_sum(tr_mul(y, y), TR_ALL_DIMS)));
    TRY(tr_copy_out(tr_grad(x), r->weights, 30 * sizeof(float)));
    return tr_leave(group);
}

static void collectives_stage_the_memory_of_devices(void **state)
{
    (void)state;
    run ranks[RANKS] = {{.first = KIND ":0"}, {.first = KIND ":1"}};
    run_ranks(ranks, collectives);
}

static void layers_are_split_over_ranks_of_devices(void **state)
{
    (void)state;
    run on_cpus[RANKS] = {{.first = "cpu"}, {.first = "cpu"}}, on_toys[RANKS] = {{.first = KIND ":0"}, {.first = KIND ":1"}};
    run_ranks(on_cpus, tensor_parallel);
    run_ranks(on_toys, tensor_parallel);
    for (int i = 0; i < RANKS; i++)
        for (int k = 0; k < 30; k++) assert_true(fabsf(on_toys[i].weights[k] - on_cpus[0].weights[k]) < 1e-5f);
}

/* Each rank's rows of a batch, normalised over all ranks': y, then the gradient of its sum's square, then the running mean. */
static tr_status sync_norm(run *r)
{
    enum { CHANNELS = 3 };
    TR_SCOPE;
    tr_group *group = join(r);
    tr_device at;
    TRY(tr_status_of(group));
    TRY(tr_device_parse(r->first, &at));
    int64_t rows = BATCH / r->ranks;
    tr_tensor *all = tr_affine(tr_randn(5, TR_SHAPE(BATCH, CHANNELS)), 2, 5);
    tr_tensor *x = tr_require_grad(tr_to(tr_slice(all, 0, rows * r->rank, rows * (r->rank + 1)), at));
    tr_tensor *mean = tr_zeros(TR_SHAPE(CHANNELS), .device = at), *var = tr_ones(TR_SHAPE(CHANNELS), .device = at);
    tr_tensor *weight = tr_rand(6, TR_SHAPE(CHANNELS), .device = at), *bias = tr_rand(7, TR_SHAPE(CHANNELS), .device = at);
    tr_tensor *y = tr_sync_batch_norm_op(group, x, .weight = weight, .bias = bias, .running_mean = mean, .running_var = var,
        .training = true);
    TRY(tr_backward(tr_sum(tr_mul(tr_mul(y, y), y))));
    size_t bytes = (size_t)rows * CHANNELS * sizeof(float);
    TRY(tr_copy_out(y, r->weights, bytes));
    TRY(tr_copy_out(tr_grad(x), r->weights + rows * CHANNELS, bytes));
    TRY(tr_copy_out(mean, r->weights + 2 * rows * CHANNELS, CHANNELS * sizeof(float)));
    return tr_leave(group);
}

static void batch_norms_are_synchronised_over_ranks_of_devices(void **state)
{
    (void)state;
    if (strcmp(KIND, "cuda") != 0) {
        print_message("the toy device has no synchronised batch norm; cuda/training runs this on the plug-in: skipped\n");
        skip();
    }
    run on_cpus[RANKS] = {{.first = "cpu"}, {.first = "cpu"}}, on_devices[RANKS] = {{.first = KIND ":0"}, {.first = KIND ":1"}};
    run_ranks(on_cpus, sync_norm);
    run_ranks(on_devices, sync_norm);
    for (int i = 0; i < RANKS; i++)
        for (int k = 0; k < WEIGHTS; k++) assert_true(fabsf(on_devices[i].weights[k] - on_cpus[i].weights[k]) < 1e-4f);
}

/* ---- Pipelines -------------------------------------------------------------------------------------------------------------- */

static tr_tensor *mean_loss(tr_tensor *output, tr_tensor *target, void *user)
{
    (void)user;
    return tr_cross_entropy(output, target);
}

/* Two stages, each on a rank; or, without a store, both on one device. */
static tr_status pipeline(run *r)
{
    TR_SCOPE;
    tr_group *group = r->store ? join(r) : NULL;
    tr_module *net = make_net(r), *stages[] = {NULL, NULL};
    TRY(tr_status_of(net));
    const two_layers *both = tr_module_state(net);
    stages[0] = tr_sequential(both->first, tr_activation_layer(tr_relu));
    stages[1] = both->second;
    tr_module *own = group ? stages[r->rank] : net;
    tr_optimizer *opt = tr_sgd(tr_parameters(own), .lr = 0.1);
    tr_tensor *x = tr_randn(50, TR_SHAPE(BATCH, 6)), *y = tr_argmax(tr_slice(x, 1, 0, 3), 1);
    tr_device at;
    TRY(tr_device_parse(r->first, &at));
    x = tr_to(x, at);
    y = tr_to(y, at);
    tr_pipeline *pipe = tr_pipeline_new(group ? &own : stages, group ? 1 : 2, .group = group, .micro_batches = 4, .loss = mean_loss);
    TRY(tr_status_of(pipe));
    for (int step = 0; step < STEPS; step++) {
        tr_zero_grad(opt);
        TRY(tr_pipeline_step(pipe, x, y, &r->losses[step]));
        TRY(tr_step(opt));
    }
    return group ? tr_leave(group) : TR_OK;
}

static void stages_on_ranks_of_devices_are_like_one_device(void **state)
{
    (void)state;
    run expected = {.first = "cpu", .second = "cpu", .ranks = 1};
    run ranks[RANKS] = {{.first = KIND ":0", .second = KIND ":0"}, {.first = KIND ":1", .second = KIND ":1"}};
    run_alone(&expected, pipeline);
    if (expected.status != TR_OK) fail_msg("%s", expected.message);
    run_ranks(ranks, pipeline);
    for (int i = 0; i < RANKS; i++)
        for (int step = 0; step < STEPS; step++) assert_true(fabs(ranks[i].losses[step] - expected.losses[step]) < 1e-5);
}

int main(void)
{
    setenv("TRIREME_PLUGINS", PLUGIN, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_mlp_has_the_losses_of_the_cpu),
        cmocka_unit_test(an_optimizer_steps_in_backward),
        cmocka_unit_test(a_model_may_be_split_over_devices),
        cmocka_unit_test(ddp_over_two_devices_is_like_one_rank),
        cmocka_unit_test(replicas_on_two_devices_are_like_one),
        cmocka_unit_test(replicas_copy_parameters_that_were_written_to),
        cmocka_unit_test(replicas_take_a_whole_module),
        cmocka_unit_test(gradients_are_scaled_and_unscaled),
        cmocka_unit_test(collectives_stage_the_memory_of_devices),
        cmocka_unit_test(layers_are_split_over_ranks_of_devices),
        cmocka_unit_test(batch_norms_are_synchronised_over_ranks_of_devices),
        cmocka_unit_test(stages_on_ranks_of_devices_are_like_one_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
