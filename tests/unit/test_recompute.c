/*
 * Recompute: gradients are those of a net that keeps its activations, to the last bit; with dropout, nested, under DDP; with
 * less memory; and what cannot be computed again is an error.
 */
#include "comm_ranks.h"

#include "device/device.h"

#include <trireme/trireme.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 4, WIDTH = 32, BATCH = 8, MOST = 30000 };

static tr_module *make_block(uint64_t seed)
{
    return tr_sequential(tr_layer_norm(WIDTH), tr_linear(WIDTH, 2 * WIDTH, .seed = seed), tr_activation_layer(tr_gelu),
        tr_dropout_layer(0.3), tr_linear(2 * WIDTH, WIDTH, .seed = seed + 1));
}

/* A net of blocks with what happens to every one of them. */
static tr_module *make_net(bool recompute)
{
    tr_module *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = make_block(10 * (uint64_t)i + 1);
        TR_CHECK(tr_set_recompute(blocks[i], recompute));
    }
    return tr_sequential(blocks[0], blocks[1], blocks[2], blocks[3]);
}

static tr_tensor *batch(void)
{
    return tr_randn(5, TR_SHAPE(BATCH, WIDTH));
}

static int64_t gradients(tr_module *net, float *to)
{
    tr_tensor_list *p = tr_parameters(net);
    int64_t n = 0;
    for (int i = 0; i < tr_list_count(p); i++) {
        tr_tensor *g = tr_grad(tr_list_at(p, i));
        if (!g || n + tr_numel(g) > MOST) return -1;
        TR_CHECK(tr_copy_out(g, to + n, (size_t)tr_numel(g) * sizeof *to));
        n += tr_numel(g);
    }
    return n;
}

/* tanh(x + bias): no op saves the bias, and none records it while it is frozen. */
static tr_tensor *shifted_tanh(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    tr_tensor *const *bias = tr_module_state(self);
    return tr_tanh(tr_add(inputs[0], *bias));
}

static void a_leaf_that_no_op_saves_must_not_change(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        TR_SCOPE;
        bool nested = k % 2, frozen = k / 2;
        tr_module *net = tr_module_new("shifted", sizeof(tr_tensor *), shifted_tanh);
        tr_tensor **bias = tr_module_state(net);
        *bias = tr_module_parameter(net, "bias", tr_zeros(TR_SHAPE(1)));
        TR_CHECK(tr_set_recompute(net, true));
        if (nested) net = tr_sequential(net, tr_relu_layer());
        TR_CHECK(tr_set_recompute(net, true));
        TR_CHECK(tr_freeze(net, frozen));
        tr_tensor *x = tr_full(0.5, TR_SHAPE(1), .requires_grad = true), *y = tr_forward(net, x);
        TR_CHECK(tr_fill(*bias, 2));
        assert_int_equal(tr_backward(y), TR_STATE);
        assert_non_null(strstr(tr_error_message(), "written to after the forward"));
        TR_CHECK(tr_backward(tr_forward(net, x)));
    }
}

/* An optimizer that is made after the forward moves the parameters into its arena, where a write is seen as well. */
static void a_leaf_that_moves_must_not_change(void **state)
{
    (void)state;
    enum { NOT_WRITTEN, WRITTEN_BEFORE, WRITTEN_AFTER, CASES };
    for (int how = 0; how < CASES; how++) {
        TR_SCOPE;
        tr_module *net = tr_module_new("shifted", sizeof(tr_tensor *), shifted_tanh);
        tr_tensor **bias = tr_module_state(net);
        *bias = tr_module_parameter(net, "bias", tr_zeros(TR_SHAPE(1)));
        TR_CHECK(tr_set_recompute(net, true));
        tr_tensor *x = tr_full(0.5, TR_SHAPE(1), .requires_grad = true), *y = tr_forward(net, x);
        if (how == WRITTEN_BEFORE) TR_CHECK(tr_fill(*bias, 2));
        tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 1);
        TR_CHECK(tr_status_of(opt));
        if (how == WRITTEN_AFTER) TR_CHECK(tr_fill(*bias, 2));
        tr_status status = tr_backward(y);
        assert_int_equal(status, how == NOT_WRITTEN ? TR_OK : TR_STATE);
        if (status != TR_OK) assert_non_null(strstr(tr_error_message(), "written to after the forward"));
        else assert_true(fabs(tr_item(tr_grad(*bias)) - (1 - tanh(0.5) * tanh(0.5))) < 1e-6);
        TR_CHECK(tr_backward(tr_forward(net, x)));
    }
}

/* The gradients after a forward and a backward between which other random numbers are asked for. */
static int64_t gradients_of(tr_module *net, float *to)
{
    TR_SCOPE;
    TR_CHECK(tr_seed(net, 7, .step = 3));
    tr_tensor *loss = tr_mean(tr_forward(net, batch()));
    TR_CHECK(tr_status_of(loss));
    TR_CHECK(tr_seed(net, 8, .step = 4));
    TR_CHECK(tr_backward(loss));
    return gradients(net, to);
}

static void assert_same_gradients(tr_module *a, tr_module *b)
{
    float *x = calloc(2 * MOST, sizeof *x), *y = x + MOST;
    int64_t n = gradients_of(a, x);
    assert_true(n > 0 && gradients_of(b, y) == n);
    assert_memory_equal(x, y, (size_t)n * sizeof *x);
    free(x);
}

static void blocks_give_the_same_bits(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_same_gradients(make_net(false), make_net(true));
}

static void nested_blocks_give_the_same_bits(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = make_net(true);
    TR_CHECK(tr_set_recompute(net, true));
    assert_same_gradients(make_net(false), net);
}

/* An LSTM has three outputs, and a dropout within: two of them go on, and of one the gradient does not arrive. */
static float *gradients_of_lstm(bool recompute, int64_t *n)
{
    TR_SCOPE;
    tr_module *net = tr_lstm(3, 4, .layers = 2, .dropout = 0.5, .seed = 5);
    TR_CHECK(tr_set_recompute(net, recompute));
    TR_CHECK(tr_seed(net, 7, .step = 3));
    tr_tensor *x = tr_randn(1, TR_SHAPE(2, 5, 3)), *y[3];
    TR_CHECK(tr_forward_many(net, &x, 1, y, 3));
    TR_CHECK(tr_seed(net, 8, .step = 4));
    TR_CHECK(tr_backward(tr_add(tr_sum(tr_mul(y[0], y[0])), tr_sum(y[2]))));
    float *to = calloc(MOST, sizeof *to);
    *n = gradients(net, to);
    return to;
}

static void modules_of_several_outputs(void **state)
{
    (void)state;
    int64_t kept = 0, recomputed = 0;
    float *a = gradients_of_lstm(false, &kept), *b = gradients_of_lstm(true, &recomputed);
    assert_true(kept > 0 && kept == recomputed);
    assert_memory_equal(a, b, (size_t)kept * sizeof *a);
    free(a);
    free(b);
}

/* f = sum over attention and products of both inputs, one of which is a parameter. */
static tr_tensor *attend(tr_tensor *const *inputs, int n, void *calls)
{
    assert_int_equal(n, 3);
    assert_null(inputs[2]);
    ++*(int *)calls;
    tr_tensor *q = tr_reshape(tr_relu(tr_matmul(inputs[0], inputs[1])), TR_SHAPE(1, 2, 4, WIDTH));
    return tr_attention(q, tr_tanh(q), tr_exp(tr_affine(q, 0.1, 0)), .causal = true);
}

static void functions_of_tensors(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *w = tr_require_grad(tr_randn(1, TR_SHAPE(WIDTH, WIDTH))), *grads[2];
    for (int kept = 0; kept < 2; kept++) {
        int calls = 0;
        /* The input is what a cheap op made, which a node recomputes on its own. */
        tr_tensor *inputs[] = {tr_gelu(tr_matmul(batch(), w)), w, NULL};
        tr_tensor *y = kept ? attend(inputs, 3, &calls) : tr_checkpoint(attend, inputs, 3, &calls);
        tr_clear_grad(w);
        TR_CHECK(tr_backward(tr_sum(y), .retain_graph = true));
        assert_int_equal(calls, kept ? 1 : 2);
        TR_CHECK(tr_backward(tr_sum(y)));
        assert_int_equal(calls, kept ? 1 : 2); /* a graph that is kept keeps what was computed again */
        grads[kept] = tr_affine(tr_grad(w), 1, 0);
    }
    assert_memory_equal(tr_data(grads[0]), tr_data(grads[1]), WIDTH * WIDTH * sizeof(float));
    TR_NO_GRAD;
    int calls = 0;
    tr_tensor *inputs[] = {batch(), w, NULL};
    assert_false(tr_requires_grad(tr_checkpoint(attend, inputs, 3, &calls)));
    assert_int_equal(calls, 1);
    assert_int_equal(tr_status_of(tr_checkpoint(NULL, inputs, 3, &calls)), TR_INVALID);
}

static void batch_norms_move_their_statistics_once(void **state)
{
    (void)state;
    TR_SCOPE;
    float mean[2][3];
    for (int recompute = 0; recompute < 2; recompute++) {
        tr_module *net = tr_sequential(tr_batch_norm2d(3), tr_activation_layer(tr_relu));
        TR_CHECK(tr_set_recompute(net, recompute));
        TR_CHECK(tr_backward(tr_sum(tr_forward(net, tr_rand(1, TR_SHAPE(2, 3, 4, 4))))));
        const tr_tensor_list *values = tr_state_dict(net);
        assert_true(tr_item(tr_list_find(values, "0.num_batches_tracked")) == 1);
        TR_CHECK(tr_copy_out(tr_list_find(values, "0.running_mean"), mean[recompute], sizeof *mean));
    }
    assert_memory_equal(mean[0], mean[1], sizeof *mean);
}

/* ---- Any nesting --------------------------------------------------------------------------------------------------------- */

/* A small net at random, and its modules, each after those inside it. */
enum { NETS = 300, NET_WIDTH = 4, NET_MODULES = 128, NET_DEPTH = 4 };
typedef struct random_net {
    uint64_t random;
    tr_module *modules[NET_MODULES];
    int n;
} random_net;

static int random_below(random_net *net, int n)
{
    net->random = net->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((net->random >> 33) % (unsigned)n);
}

/* f(x) * x, where f is the module inside. */
static tr_tensor *gated(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    return tr_mul(tr_forward(*(tr_module **)tr_module_state(self), inputs[0]), inputs[0]);
}

static tr_module *random_layer(random_net *net)
{
    switch (random_below(net, 9)) {
    case 0: return tr_linear(NET_WIDTH, NET_WIDTH, .seed = (uint64_t)net->n + 1);
    case 1: return tr_layer_norm(NET_WIDTH);
    case 2: return tr_rms_norm(NET_WIDTH);
    case 3: return tr_dropout_layer(0.3);
    case 4: return tr_activation_layer(tr_tanh);
    case 5: return tr_activation_layer(tr_relu);
    case 6: return tr_activation_layer(tr_softplus);
    case 7: return tr_activation_layer(tr_silu);
    default: return tr_activation_layer(tr_gelu);
    }
}

static tr_module *random_module(random_net *net, int depth)
{
    tr_module *inside[4], *made;
    int kind = depth == NET_DEPTH ? 0 : random_below(net, 8);
    if (kind < 3 && depth > 0) {
        made = random_layer(net);
    } else if (kind == 3) {
        made = tr_module_new("gated", sizeof(tr_module *), gated);
        *(tr_module **)tr_module_state(made) = tr_module_add(made, "inside", random_module(net, depth + 1));
    } else {
        int count = random_below(net, 4) + 1;
        for (int i = 0; i < count; i++) inside[i] = random_module(net, depth + 1);
        made = tr_sequential_n(inside, count);
    }
    TR_CHECK(tr_status_of(made));
    assert_true(net->n < NET_MODULES);
    return net->modules[net->n++] = made;
}

static int64_t bytes_in_use(void)
{
    size_t in_use, peak;
    tr__cpu_memory(0, &in_use, &peak);
    return (int64_t)in_use;
}

/* The gradients of the outermost module and of a scale in front of it, and what the graph takes before backward. */
static int64_t gradients_at_random(const random_net *net, uint64_t seed, bool low, bool retain, float *to, int64_t *kept)
{
    TR_SCOPE;
    tr_module *root = net->modules[net->n - 1];
    tr_tensor *scale = tr_full(1.25, TR_SHAPE(NET_WIDTH), .requires_grad = true), *x = tr_randn(seed, TR_SHAPE(2, NET_WIDTH));
    tr_tensor_list *p = tr_parameters(root);
    for (int i = 0; i < tr_list_count(p); i++) tr_clear_grad(tr_list_at(p, i));
    TR_CHECK(tr_seed(root, seed));
    tr_tensor *input = tr_mul(x, scale);
    int64_t before = bytes_in_use();
    tr_set_autocast(low ? TR_BF16 : TR_F32);
    tr_tensor *y = tr_forward(root, input);
    tr_set_autocast(TR_F32);
    *kept = bytes_in_use() - before;
    for (int i = 0; i < 1 + retain; i++) {
        tr_status status = tr_backward(tr_sum(y), .retain_graph = retain && i == 0);
        if (status != TR_OK) fail_msg("net %d: %s", (int)seed, tr_error_message());
    }
    int64_t n = tr_list_count(p) ? gradients(root, to) : 0;
    assert_true(n >= 0 && n + NET_WIDTH <= MOST);
    TR_CHECK(tr_copy_out(tr_grad(scale), to + n, NET_WIDTH * sizeof *to));
    return n + NET_WIDTH;
}

/* Modules that recompute and are inside one another at random, against the same net that keeps its activations. */
static void any_nesting_gives_the_same_bits(void **state)
{
    (void)state;
    float *a = calloc(2 * MOST, sizeof *a), *b = a + MOST;
    for (uint64_t seed = 1; seed <= NETS; seed++) {
        TR_SCOPE;
        random_net net = {.random = seed};
        random_module(&net, 0);
        bool low = random_below(&net, 2), retain = random_below(&net, 2), outermost = random_below(&net, 2);
        int64_t kept, kept_by_root, kept_nested;
        int64_t n = gradients_at_random(&net, seed, low, retain, a, &kept);
        TR_CHECK(tr_set_recompute(net.modules[net.n - 1], true));
        assert_int_equal(gradients_at_random(&net, seed, low, retain, b, &kept_by_root), n);
        assert_memory_equal(a, b, (size_t)n * sizeof *a);
        for (int i = 0; i < net.n - 1; i++) TR_CHECK(tr_set_recompute(net.modules[i], random_below(&net, 2)));
        TR_CHECK(tr_set_recompute(net.modules[net.n - 1], outermost));
        assert_int_equal(gradients_at_random(&net, seed, low, retain, b, &kept_nested), n);
        assert_memory_equal(a, b, (size_t)n * sizeof *a);
        if (outermost) assert_int_equal(kept_nested, kept_by_root); /* what is inside keeps nothing of its own */
    }
    free(a);
}

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

static tr_tensor *deep(tr_tensor *const *inputs, int n, void *user)
{
    (void)n, (void)user;
    tr_tensor *x = inputs[0];
    for (int i = 0; i < 8; i++) {
        TR_SCOPE;
        x = tr_escape(tr_tanh(tr_mul(x, x)));
    }
    return x;
}

/* What the device's memory had to hold at most for 6 stretches of 16 ops; the peak never falls, so the smaller comes first. */
static size_t peak_of(bool recompute)
{
    TR_SCOPE;
    tr_tensor *x = tr_require_grad(tr_rand(1, TR_SHAPE(256, 1024)));
    size_t before, in_use, peak;
    tr__cpu_memory(0, &before, &peak);
    tr_tensor *y = x;
    for (int i = 0; i < 6; i++) {
        TR_SCOPE;
        y = tr_escape(recompute ? tr_checkpoint(deep, &y, 1, NULL) : deep(&y, 1, NULL));
    }
    TR_CHECK(tr_backward(tr_sum(y)));
    tr__cpu_memory(0, &in_use, &peak);
    return peak - before;
}

static void peak_memory_is_lower(void **state)
{
    (void)state;
    size_t again = peak_of(true), kept = peak_of(false);
    assert_true(again > 0 && again * 2 < kept); /* 6 stretches and one of 16 against 6 x 16 */
}

/* ---- DDP ----------------------------------------------------------------------------------------------------------------- */

static void train_with_both(rank *r)
{
    static _Thread_local float grads[2][MOST];
    int64_t n[2];
    for (int recompute = 0; recompute < 2; recompute++) {
        TR_SCOPE;
        tr_module *net = make_net(recompute), *ddp = tr_ddp(net, r->group, .bucket_mb = 0.005);
        OK(tr_seed(net, 3));
        OK(tr_backward(tr_mean(tr_forward(ddp, tr_randn((uint64_t)r->number + 1, TR_SHAPE(BATCH, WIDTH))))));
        n[recompute] = gradients(net, grads[recompute]);
    }
    CHECK(n[0] > 0 && n[0] == n[1]);
    CHECK(memcmp(grads[0], grads[1], (size_t)n[0] * sizeof(float)) == 0);
    OK(tr_leave(r->group));
}

static void ddp_gives_the_same_bits(void **state)
{
    (void)state;
    run(2, train_with_both, NULL);
}

/* ---- Errors -------------------------------------------------------------------------------------------------------------- */

static tr_tensor *more_each_time(tr_tensor *const *inputs, int n, void *calls)
{
    (void)n;
    tr_tensor *y = inputs[0];
    for (int i = ++*(int *)calls; i > 0; i--) y = tr_tanh(tr_mul(y, y));
    return y;
}

static tr_tensor *fails_later(tr_tensor *const *inputs, int n, void *calls)
{
    (void)n;
    if (++*(int *)calls > 1) return tr_matmul(inputs[0], tr_ones(TR_SHAPE(5, 5)));
    return tr_tanh(inputs[0]);
}

static void assert_refused(tr_tensor *y, const char *part)
{
    TR_CHECK(tr_status_of(y));
    assert_int_not_equal(tr_backward(tr_sum(y)), TR_OK);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

static void what_cannot_be_computed_again(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_require_grad(tr_rand(1, TR_SHAPE(2, 3)));
    int calls = 0;
    assert_refused(tr_checkpoint(more_each_time, &x, 1, &calls), "saves more than the");
    calls = 0;
    assert_refused(tr_checkpoint(fails_later, &x, 1, &calls), "inner sizes differ");
    calls = 0;
    tr_tensor *input = tr_rand(2, TR_SHAPE(2, 3)), *both[] = {tr_add(x, input)};
    tr_tensor *y = tr_checkpoint(more_each_time, both, 1, &calls);
    calls = 0;
    TR_CHECK(tr_fill(both[0], 1));
    assert_refused(y, "written to after the forward");
    assert_int_equal(tr_set_recompute(NULL, true), TR_INVALID);
}

/* A cheap op at its end, as BERT's blocks have: the activation that recomputes what the next block begins with. */
static tr_tensor *ends_cheaply(tr_tensor *const *inputs, int n, void *user)
{
    (void)n, (void)user;
    tr_tensor *x = inputs[0];
    for (int i = 0; i < 8; i++) x = tr_tanh(tr_mul(x, x));
    return tr_silu(tr_softplus(x));
}

/* Blocks are filled one after the other, not all for the last one. */
static void a_block_does_not_make_those_before_it_run(void **state)
{
    (void)state;
    int64_t peak[2], kept;
    for (int k = 0; k < 2; k++) {
        TR_SCOPE;
        tr_tensor *x = tr_rand(1, TR_SHAPE(1 << 16), .requires_grad = true), *y = x;
        for (int i = 0; i < (k ? 12 : 3); i++) y = tr_checkpoint(ends_cheaply, &y, 1, NULL);
        tr_tensor *sum = tr_sum(y);
        tr__memory_watch watch = tr__memory_watch_begin(0);
        assert_int_equal(tr_backward(sum), TR_OK);
        tr__memory_watch_end(&watch, &peak[k], &kept);
    }
    assert_true(peak[1] < peak[0] + (1 << 18));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_leaf_that_no_op_saves_must_not_change),
        cmocka_unit_test(a_leaf_that_moves_must_not_change),
        cmocka_unit_test(peak_memory_is_lower), /* first, as the peak never falls */
        cmocka_unit_test(blocks_give_the_same_bits),
        cmocka_unit_test(nested_blocks_give_the_same_bits),
        cmocka_unit_test(any_nesting_gives_the_same_bits),
        cmocka_unit_test(modules_of_several_outputs),
        cmocka_unit_test(functions_of_tensors),
        cmocka_unit_test(batch_norms_move_their_statistics_once),
        cmocka_unit_test(ddp_gives_the_same_bits),
        cmocka_unit_test(a_block_does_not_make_those_before_it_run),
        cmocka_unit_test(what_cannot_be_computed_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
