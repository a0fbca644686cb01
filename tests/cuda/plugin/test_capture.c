/* ctest: timeout=400
 *
 * Captured steps on the emulated cuda:0: steps that launch a graph leave the numbers of steps that run op by op, bit
 * for bit, whatever changes between runs; what cannot be captured is refused, and nothing has happened then. Between
 * runs memory is asked for, filled with NaN and given back, so that a graph whose memory somebody else gets computes
 * NaN.
 */
#include <trireme/trireme.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RUNS = 8, FEATURES = 6, CLASSES = 3, MOST_NUMBERS = 20000 };

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

static void assert_message(const char *part)
{
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

/* ---- A training -------------------------------------------------------------------------------------------------- */

typedef struct training {
    tr_module *net, *first;
    tr_optimizer *opt;
    tr_captured_step *step;
    tr_device at;
    bool outside; /* gradients are cleared and the optimizer steps outside of the step */
} training;

static tr_status forward_and_backward(tr_tensor *const *inputs, int n, tr_tensor **loss, void *user)
{
    const training *t = user;
    if (n != 2) return tr_fail(TR_INVALID, "%d inputs", n);
    *loss = tr_cross_entropy(tr_forward(t->net, inputs[0]), inputs[1]);
    /* Numbers of the graph's own, which it copies from pinned memory. */
    *loss = tr_add(*loss, tr_sum(tr_arange(2, tr_dtype_of(*loss), t->at)));
    return tr_backward(*loss);
}

static tr_status whole_step(tr_tensor *const *inputs, int n, tr_tensor **loss, void *user)
{
    const training *t = user;
    tr_zero_grad(t->opt);
    TRY(forward_and_backward(inputs, n, loss, user));
    return tr_step(t->opt);
}

typedef tr_optimizer *(*make_optimizer)(tr_module *net);

static tr_optimizer *adamw(tr_module *net)
{
    return tr_adamw(tr_parameters(net), .lr = 1e-2, .weight_decay = 0.1, .decay_matrices_only = true);
}

static training start(tr_device at, make_optimizer make)
{
    training t = {.at = at};
    t.first = tr_linear(FEATURES, 20, .seed = 1);
    t.net = tr_sequential(t.first, tr_activation_layer(tr_gelu), tr_dropout_layer(0.3),
        tr_linear(20, CLASSES, .seed = 2));
    OK(tr_module_to(t.net, at));
    t.opt = make(t.net);
    OK(tr_status_of(t.opt));
    return t;
}

/* Memory that nobody has is used up by others. Copied there, as the emulator's kernels take their time. */
static void disturb(tr_device at)
{
    TR_SCOPE;
    static const int64_t sizes[] = {1, 100, 500, 3000, 20000, 300000};
    for (size_t i = 0; i < 4 * sizeof sizes / sizeof *sizes; i++)
        OK(tr_status_of(tr_to(tr_full(NAN, TR_SHAPE(sizes[i % (sizeof sizes / sizeof *sizes)])), at)));
}

/* What a run is given, for its number. */
static void run(training *t, int64_t number, int64_t rows, float *loss)
{
    TR_SCOPE;
    tr_tensor *x = tr_to(tr_randn(100 + (uint64_t)number, TR_SHAPE(rows, FEATURES)), t->at), *given;
    tr_tensor *y = tr_to(tr_argmax(tr_rand(200 + (uint64_t)number, TR_SHAPE(rows, CLASSES)), 1), t->at);
    OK(tr_seed(t->net, 7, .step = (uint64_t)number, .first_sample = 3 * (uint64_t)number));
    OK(tr_set_lr(t->opt, tr_cosine_lr(number, 1e-2, RUNS, .warmup_steps = 3)));
    if (t->outside) tr_zero_grad(t->opt);
    OK(tr_captured_run(t->step, &given, x, y));
    if (t->outside) OK(tr_step(t->opt));
    OK(tr_copy_out(given, loss, sizeof *loss));
    disturb(t->at);
}

/* Parameters, buffers and state of the optimizer, one after the other. */
static int64_t numbers_of(const training *t, char *out)
{
    TR_SCOPE;
    int64_t at = 0;
    tr_tensor_list *lists[] = {tr_state_dict(t->net), tr_optimizer_state(t->opt)};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < tr_list_count(lists[k]); i++) {
            const tr_tensor *x = tr_list_at(lists[k], i);
            size_t bytes = (size_t)tr_numel(x) * tr_dtype_size(tr_dtype_of(x));
            assert_true((size_t)at + bytes <= MOST_NUMBERS * sizeof(float));
            if (bytes) OK(tr_copy_out(x, (void *)(out + at), bytes));
            at += (int64_t)bytes;
        }
    return at;
}

static void assert_counts(const training *t, int64_t called, int64_t captured, int64_t launched)
{
    tr_captured_counts n = {.size = sizeof n};
    OK(tr_captured_count(t->step, &n));
    if (n.called != called || n.captured != captured || n.launched != launched)
        fail_msg("%d called, %d captured, %d launched", (int)n.called, (int)n.captured, (int)n.launched);
}

static void assert_same_numbers(const training *a, const training *b)
{
    static char of_a[MOST_NUMBERS * sizeof(float)], of_b[MOST_NUMBERS * sizeof(float)];
    int64_t n = numbers_of(a, of_a);
    assert_int_equal(n, numbers_of(b, of_b));
    assert_true(n > 0);
    assert_memory_equal(of_a, of_b, (size_t)n);
}

/* What a test does to both trainings before a run. */
typedef void (*meddle)(training *t, int64_t number);

/* Trains op by op and captured, and holds one against the other after each run. .warmup = RUNS: op by op. */
static void compare(make_optimizer make, bool outside, const int64_t *rows, meddle before, int64_t called,
    int64_t captured)
{
    TR_SCOPE;
    training plain = start(device("cuda:0"), make), graphs = start(device("cuda:0"), make);
    plain.outside = graphs.outside = outside;
    tr_step_function step = outside ? forward_and_backward : whole_step;
    plain.step = tr_capture(step, &plain, .warmup = RUNS);
    graphs.step = tr_capture(step, &graphs);
    for (int64_t i = 0; i < RUNS; i++) {
        float expected, got;
        if (before) before(&plain, i);
        run(&plain, i, rows[i], &expected);
        if (before) before(&graphs, i);
        run(&graphs, i, rows[i], &got);
        assert_memory_equal(&got, &expected, sizeof got);
        assert_same_numbers(&plain, &graphs);
    }
    assert_counts(&plain, RUNS, 0, 0);
    assert_counts(&graphs, called, captured, RUNS - called - captured);
}

static const int64_t alike[RUNS] = {8, 8, 8, 8, 8, 8, 8, 8};

static void graphs_leave_the_numbers_of_ops(void **state)
{
    (void)state;
    compare(adamw, false, alike, NULL, 1, 1);
}

static void other_shapes_have_graphs_of_their_own(void **state)
{
    (void)state;
    compare(adamw, false, (int64_t[RUNS]){8, 8, 5, 8, 5, 5, 8, 5}, NULL, 2, 2);
}

static void gradients_are_those_of_the_run(void **state)
{
    (void)state;
    compare(adamw, true, alike, NULL, 1, 1);
}

/* ---- Optimizers -------------------------------------------------------------------------------------------------- */

static tr_optimizer *momentum(tr_module *net)
{
    return tr_sgd(tr_parameters(net), .lr = 0.1, .momentum = 0.9, .nesterov = true);
}
static tr_optimizer *rmsprop(tr_module *net)
{
    return tr_rmsprop(tr_parameters(net), .centered = true, .momentum = 0.5);
}
static tr_optimizer *amsgrad(tr_module *net) { return tr_adam(tr_parameters(net), .amsgrad = true); }
static tr_optimizer *nadam(tr_module *net) { return tr_nadam(tr_parameters(net), .weight_decay = 0.1); }
static tr_optimizer *radam(tr_module *net) { return tr_radam(tr_parameters(net)); }
static tr_optimizer *adagrad(tr_module *net) { return tr_adagrad(tr_parameters(net), .lr_decay = 0.1); }
static tr_optimizer *lion(tr_module *net) { return tr_lion(tr_parameters(net)); }
static tr_optimizer *bf16_state(tr_module *net)
{
    return tr_adamw(tr_parameters(net), .lr = 1e-2, .decay_matrices_only = true, .bf16_state = true);
}
static tr_optimizer *in_backward(tr_module *net)
{
    tr_optimizer *opt = adamw(net);
    OK(tr_step_in_backward(opt, true));
    return opt;
}

static void optimizers_count_the_runs(void **state)
{
    (void)state;
    make_optimizer all[] = {momentum, amsgrad, nadam, radam, rmsprop, adagrad, lion, bf16_state, in_backward};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) compare(all[i], false, alike, NULL, 1, 1);
}

/* ---- What makes a graph useless ---------------------------------------------------------------------------------- */

static tr_tensor *first_weight(const training *t)
{
    return tr_list_at(tr_parameters(t->net), 0);
}

static void freeze_in_between(training *t, int64_t number)
{
    if (number == 4) OK(tr_freeze(t->first, true));
    if (number == 6) OK(tr_freeze(t->first, false));
}

static void regroup_in_between(training *t, int64_t number)
{
    TR_SCOPE;
    tr_tensor_list *some = tr_list_new();
    OK(tr_list_add(some, "weight", first_weight(t)));
    if (number == 4) OK(tr_param_group(t->opt, some, .lr_scale = 0.5, .weight_decay = 0.3));
}

static void add_to_gradients_in_between(training *t, int64_t number)
{
    t->outside = number != 5; /* adds to the gradients of run 4 */
    if (number == 5) OK(tr_step(t->opt));
}

static void changes_of_the_parameters_are_captured_anew(void **state)
{
    (void)state;
    compare(adamw, false, alike, freeze_in_between, 1, 3);
    compare(momentum, false, alike, regroup_in_between, 1, 2);
    compare(adamw, true, alike, add_to_gradients_in_between, 1, 3);
}

static void of_too_many_graphs_the_oldest_goes(void **state)
{
    (void)state;
    TR_SCOPE;
    training t = start(device("cuda:0"), adamw);
    float loss;
    tr_device_memory before = {.size = sizeof before}, after = {.size = sizeof after};
    int64_t rows[] = {2, 2, 2, 3, 3, 2, 4, 4, 2, 3};
    OK(tr_device_memory_of(t.at, &before));
    {
        TR_SCOPE;
        t.step = tr_capture(whole_step, &t, .graphs = 2);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) run(&t, (int64_t)i, rows[i], &loss);
        assert_counts(&t, 4, 3, 3); /* 3 had to go for 4, and was new again */
    }
    OK(tr_device_memory_of(t.at, &after));
    assert_int_equal(after.in_use, before.in_use);
}

/* ---- What cannot be captured ------------------------------------------------------------------------------------- */

static tr_group *one_rank;
static int sin_to_commit;
static const struct {
    const char *what, *message;
} sins[] = {
    {"reads", "capture: a captured step reads a tensor on the host (tr_item()"},
    {"reads and does not look", "reads a tensor on the host"},
    {"clips", "reads a tensor on the host"},
    {"copies from the host", "step copies from the host, which each run would repeat with the numbers of now"},
    {"draws", "a captured step draws random numbers, which would be the same in each run: nothing"},
    {"drops out", "dropout: a captured step would use the same random numbers in each run: use a module"},
    {"second device", "a captured step uses cuda:1 beside cuda:0: capture what runs on one device"},
    {"waits", "a captured step waits for the device"},
    {"fails", "capture: of its own"},
    {"asks a group", "a captured step calls a group of ranks"},
};
enum { SINS = sizeof sins / sizeof *sins };

static tr_status sinful_step(tr_tensor *const *inputs, int n, tr_tensor **loss, void *user)
{
    const training *t = user;
    TRY(whole_step(inputs, n, loss, user));
    tr_captured_counts counts = {.size = sizeof counts};
    OK(tr_captured_count(t->step, &counts));
    if (counts.called == 0) return TR_OK; /* only when it is captured */
    double norm;
    switch (sin_to_commit) {
    case 0: return tr_item(*loss) > 0 ? TR_OK : tr_fail(TR_STATE, "%s", tr_error_message());
    case 1: return tr_item(*loss) > 1e9 ? TR_INVALID : TR_OK;
    case 2: return tr_clip_grad_norm(t->opt, 1, &norm);
    case 3: return tr_copy_into(*loss, tr_scalar(1, TR_F32));
    case 4: return tr_status_of(tr_rand(3, TR_SHAPE(4), .device = t->at));
    case 5: return tr_status_of(tr_dropout(inputs[0], 0.5, .seed = 1));
    case 6: return tr_status_of(tr_zeros(TR_SHAPE(2), .device = device("cuda:1")));
    case 7: return tr_device_synchronize(t->at);
    case 8: return tr_fail(TR_INVALID, "of its own");
    default: return tr_barrier(one_rank);
    }
}

/* The failed run has left no trace: the next ones, op by op, have the numbers of a training without it. */
static void what_cannot_be_captured_is_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    one_rank = tr_join(.store = tr_store_memory(), .rank = 0, .world_size = 1);
    OK(tr_status_of(one_rank));
    for (sin_to_commit = 0; sin_to_commit < SINS; sin_to_commit++) {
        TR_SCOPE;
        training plain = start(device("cuda:0"), adamw), graphs = start(device("cuda:0"), adamw);
        float loss;
        plain.step = tr_capture(whole_step, &plain, .warmup = RUNS);
        graphs.step = tr_capture(sinful_step, &graphs);
        run(&plain, 0, 8, &loss);
        run(&graphs, 0, 8, &loss);
        tr_tensor *x = tr_zeros(TR_SHAPE(8, FEATURES), .device = graphs.at);
        tr_tensor *y = tr_zeros(TR_SHAPE(8), .dtype = TR_I64, .device = graphs.at), *given = x;
        if (tr_captured_run(graphs.step, &given, x, y) == TR_OK)
            fail_msg("a step that %s was captured", sins[sin_to_commit].what);
        assert_message(sins[sin_to_commit].message);
        assert_null(given);
        assert_same_numbers(&plain, &graphs);
        graphs.step = tr_capture(whole_step, &graphs, .warmup = RUNS);
        run(&plain, 1, 8, &loss);
        run(&graphs, 1, 8, &loss);
        assert_same_numbers(&plain, &graphs);
    }
    OK(tr_leave(one_rank));
}

static void inputs_are_checked(void **state)
{
    (void)state;
    TR_SCOPE;
    training t = start(device("cuda:0"), adamw);
    t.step = tr_capture(whole_step, &t);
    tr_tensor *here = tr_zeros(TR_SHAPE(8, FEATURES), .device = t.at), *there = tr_zeros(TR_SHAPE(8)), *given;
    assert_int_equal(tr_captured_run(t.step, &given, here, there), TR_DEVICE);
    assert_message("captured_run: input 1 is on cpu:0, and one before it on cuda:0");
    assert_int_equal(tr_captured_run(t.step, &given, tr_require_grad(here)), TR_INVALID);
    assert_message("captured_run: input 0 requires a gradient");
    assert_int_equal(tr_status_of(tr_capture(NULL, NULL)), TR_INVALID);
    assert_message("capture: it takes a function, not NULL");
    assert_int_equal(tr_status_of(tr_capture(whole_step, &t, .graphs = -1)), TR_INVALID);
    assert_message("graphs -1");
}

/* ---- Elsewhere, and larger nets ---------------------------------------------------------------------------------- */

static void on_the_cpu_each_run_calls_the_function(void **state)
{
    (void)state;
    TR_SCOPE;
    training t = start(tr_cpu(0), adamw);
    t.step = tr_capture(whole_step, &t);
    float loss;
    for (int64_t i = 0; i < 4; i++) run(&t, i, 8, &loss);
    assert_counts(&t, 4, 0, 0);
}

typedef struct network {
    tr_module *net;
    tr_optimizer *opt;
    tr_dtype autocast;
} network;

static tr_status network_step(tr_tensor *const *inputs, int n, tr_tensor **loss, void *user)
{
    const network *t = user;
    (void)n;
    TR_AUTOCAST(t->autocast);
    tr_zero_grad(t->opt);
    *loss = tr_cross_entropy(tr_forward(t->net, inputs[0]), inputs[1]);
    TRY(tr_backward(*loss));
    return tr_step(t->opt);
}

/* Batch norm's statistics go on, too, and what is recomputed has the numbers that its forward drew. */
static tr_module *convolutional(void)
{
    return tr_sequential(tr_conv2d(1, 4, 3, .seed = 5), tr_batch_norm2d(4, .relu = true), tr_flatten_layer(),
        tr_dropout_layer(0.2), tr_linear(4 * 6 * 6, 5, .seed = 6));
}

static tr_module *transformer(void)
{
    tr_module *net = tr_gpt(.vocab = 5, .context = 9, .layers = 2, .heads = 2, .dim = 8, .dropout = 0.1, .seed = 3);
    OK(tr_set_recompute(net, true));
    return net;
}

static void train_network(bool text, int warmup, tr_dtype autocast, float *losses, training *out)
{
    tr_device at = device("cuda:0");
    network t = {.net = text ? transformer() : convolutional(), .autocast = autocast};
    OK(tr_module_to(t.net, at));
    t.opt = tr_adamw(tr_parameters(t.net), .lr = 1e-2);
    tr_captured_step *step = tr_capture(network_step, &t, .warmup = warmup);
    *out = (training){.net = t.net, .opt = t.opt, .step = step, .at = at};
    for (int i = 0; i < RUNS; i++) {
        TR_SCOPE;
        tr_tensor *image = tr_randn((uint64_t)i, TR_SHAPE(3, 1, 8, 8)), *loss;
        tr_tensor *ids = tr_argmax(tr_rand((uint64_t)i, TR_SHAPE(3, 9, 5)), 2);
        tr_tensor *classes = tr_argmax(tr_rand(9, TR_SHAPE(3, 5)), 1);
        tr_tensor *x = tr_to(text ? ids : image, at), *y = tr_to(text ? ids : classes, at);
        OK(tr_seed(t.net, 5, .step = (uint64_t)i));
        OK(tr_captured_run(step, &loss, x, y));
        OK(tr_copy_out(loss, &losses[i], sizeof *losses));
        disturb(at);
    }
}

static void networks_have_the_numbers_of_ops(void **state)
{
    (void)state;
    for (int text = 0; text < 2; text++)
        for (int low = 0; low < 2; low++) {
            TR_SCOPE;
            float expected[RUNS], got[RUNS];
            training plain, graphs;
            train_network(text, RUNS, low ? TR_BF16 : TR_F32, expected, &plain);
            train_network(text, 1, low ? TR_BF16 : TR_F32, got, &graphs);
            assert_memory_equal(got, expected, sizeof got);
            assert_true(got[0] != got[RUNS - 1]);
            assert_same_numbers(&plain, &graphs);
            assert_counts(&graphs, 1, 1, RUNS - 2);
        }
}

int main(int argc, char **argv)
{
    setenv("TRIREME_PLUGINS", PLUGIN, 0); /* a GPU's where scripts/gpu-check says so */
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_leave_the_numbers_of_ops),
        cmocka_unit_test(other_shapes_have_graphs_of_their_own),
        cmocka_unit_test(gradients_are_those_of_the_run),
        cmocka_unit_test(optimizers_count_the_runs),
        cmocka_unit_test(changes_of_the_parameters_are_captured_anew),
        cmocka_unit_test(of_too_many_graphs_the_oldest_goes),
        cmocka_unit_test(what_cannot_be_captured_is_refused),
        cmocka_unit_test(inputs_are_checked),
        cmocka_unit_test(on_the_cpu_each_run_calls_the_function),
        cmocka_unit_test(networks_have_the_numbers_of_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
