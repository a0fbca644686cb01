/*
 * Steps in backward under DDP: on each number of ranks the bits of a step after backward, for elementwise and whole rules, with tied
 * weights, a module that is called twice, recompute, frozen parameters and such as take no part; with memory for a few buckets of gradients instead of all; and a
 * backward that fails on one rank is a failure of all, which says what was updated.
 */
#include "comm_ranks.h"

#include "autograd/arena.h"
#include "parallel/bucket_pool.h"

#include <trireme/trireme.h>

#include <stdlib.h>
#include <string.h>

enum { VOCAB = 40, SEQ = 6, STEPS = 4 };

/* ---- The same bits ----------------------------------------------------------------------------------------------- */

typedef struct training {
    tr_module *net, *ddp;
    tr_optimizer *optimizer;
} training;

typedef enum shape { TIED, DEEP, TWICE, PARTIAL } shape;

/* What a case varies. */
typedef struct variant {
    shape net;
    int rule;
    double bucket_mb;
    bool retain;
    int device; /* cpu:… */
} variant;

static tr_module *make_net(shape s)
{
    if (s == TIED) {
        tr_module *net = tr_gpt(.vocab = VOCAB, .context = SEQ, .layers = 2, .heads = 2, .dim = 16, .dropout = 0.1, .seed = 3);
        TR_CHECK(tr_set_recompute(tr_module_find(net, "h.0"), true));
        return net;
    }
    tr_module *net = tr_sequential(tr_linear(32, 64, .seed = 1), tr_relu_layer());
    for (uint64_t i = 0; i < 12; i++)
        tr_module_add(net, (char[]){(char)('a' + i), 0}, tr_linear(64, 64, .seed = 10 + i));
    return net;
}

static tr_optimizer *make_optimizer(tr_tensor_list *p, int rule)
{
    if (rule == 0) return tr_sgd(p, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.01);
    if (rule == 1) return tr_adamw(p, .lr = 1e-2, .weight_decay = 0.1);
    return rule == 2 ? tr_lamb(p) : tr_adam(p, .lr = 1e-2, .weight_decay = 0.1);
}

static tr_tensor *mean_square(tr_tensor *x)
{
    return tr_mean(tr_mul(x, x));
}

/* Of TWICE the layers "a" and "g" are called twice; of PARTIAL the layer "k" takes part on rank 0 only and
 * "l" on none, and "c" is frozen in every other step. */
static tr_tensor *loss_of(const training *t, const rank *r, shape s, int step)
{
    uint64_t sample = (uint64_t)(step * r->world + r->number);
    TR_CHECK(tr_seed(t->net, 1, .step = (uint64_t)step, .first_sample = (uint64_t)r->number * 3));
    if (s == TIED) {
        tr_tensor *ids = tr_cast(tr_affine(tr_rand(sample, TR_SHAPE(3, SEQ)), VOCAB - 1, 0), TR_I32);
        return tr_cross_entropy(tr_forward(t->ddp, ids), ids);
    }
    tr_tensor *x = tr_to(tr_randn(sample, TR_SHAPE(5, 32)), tr__device_of(tr_list_at(tr_parameters(t->net), 0)));
    if (s == DEEP) return mean_square(tr_forward(t->ddp, x));
    if (s == TWICE) {
        tr_tensor *y = tr_forward(t->ddp, x); /* and once more through two of its layers */
        for (const char *name = "ag"; *name; name++) y = tr_forward(tr_module_find(t->net, (char[]){*name, 0}), y);
        return mean_square(y);
    }
    tr_module *c = tr_module_find(t->net, "c");
    TR_CHECK(tr_freeze(c, step % 2));
    x = tr_forward(tr_module_find(t->net, "0"), x);
    for (char name[] = "a"; *name <= (r->number ? 'j' : 'k'); ++*name) x = tr_forward(tr_module_find(t->net, name), x);
    return mean_square(x);
}

static tr_status begin(training *t, const rank *r, const variant *v)
{
    t->net = make_net(v->net);
    TR__TRY(tr_module_to(t->net, tr_cpu(v->device)));
    t->optimizer = make_optimizer(tr_parameters(t->net), v->rule);
    t->ddp = tr_ddp(t->net, r->group, .bucket_mb = v->bucket_mb, .check_every = 2);
    return tr_status_of(t->ddp);
}

static tr_status take_step(const training *t, const rank *r, const variant *v, int step)
{
    TR_SCOPE;
    tr_zero_grad(t->optimizer);
    TR__TRY(tr_backward(loss_of(t, r, v->net, step), .retain_graph = v->retain));
    return tr_step(t->optimizer);
}

static const char *difference(tr_tensor_list *a, tr_tensor_list *b)
{
    for (int i = 0; i < tr_list_count(a); i++) {
        tr_tensor *s = tr_list_at(a, i), *t = tr_list_at(b, i);
        if (memcmp(tr_data(s), tr_data(t), (size_t)tr_numel(s) * tr_dtype_size(tr_dtype_of(s))) != 0) return tr_list_name(a, i);
    }
    return NULL;
}

static int gradients_of(const training *t)
{
    tr_tensor_list *list = tr_parameters(t->net);
    int n = 0;
    for (int i = 0; i < tr_list_count(list); i++) n += tr_list_at(list, i)->leaf->has_grad;
    return n;
}

static void train_both_ways(rank *r)
{
    TR_SCOPE;
    const variant *v = r->arg;
    training after, in;
    OK(begin(&after, r, v));
    OK(begin(&in, r, v));
    OK(tr_step_in_backward(in.optimizer, true));
    for (int step = 0; step < STEPS; step++) {
        OK(take_step(&after, r, v, step));
        OK(take_step(&in, r, v, step));
        CHECK(gradients_of(&after) > 0);
        CHECK(gradients_of(&in) == 0);
        CHECK(!difference(tr_parameters(after.net), tr_parameters(in.net)));
    }
    CHECK(!difference(tr_optimizer_state(after.optimizer), tr_optimizer_state(in.optimizer)));
    /* Off and on again, between backwards. */
    OK(tr_step_in_backward(in.optimizer, false));
    OK(take_step(&after, r, v, STEPS));
    OK(take_step(&in, r, v, STEPS));
    CHECK(gradients_of(&in) > 0);
    CHECK(tr_list_at(tr_parameters(in.net), 0)->leaf->arena->gradients->storage->kind == TR__SHARED);
    tr_zero_grad(in.optimizer);
    OK(tr_step_in_backward(in.optimizer, true));
    OK(take_step(&after, r, v, STEPS + 1));
    OK(take_step(&in, r, v, STEPS + 1));
    CHECK(!difference(tr_parameters(after.net), tr_parameters(in.net)));
    OK(tr_leave(r->group));
}

static void it_changes_no_bit(void **state)
{
    (void)state;
    const variant all[] = {{TIED, 0, 0.002, false, 0}, {TIED, 1, 25, false, 0}, {DEEP, 1, 0.02, false, 1}, {DEEP, 2, 1e-9, false, 0},
        {DEEP, 0, 0.02, true, 0}, {DEEP, 3, 0.02, false, 0},
        {TWICE, 0, 0.02, false, 0}, {TWICE, 3, 0.02, false, 0}, {PARTIAL, 0, 0.02, false, 0}, {PARTIAL, 1, 0.02, false, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int world = 2; world <= 3; world++) run(world, train_both_ways, &all[i]);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* The memory that gradients were in. */
typedef struct seen {
    const void *storages[64];
    int n;
    double bytes;
} seen;

static tr_status note(tr_tensor *leaf, tr_tensor *grad, void *user)
{
    (void)leaf;
    seen *s = user;
    for (int i = 0; i < s->n; i++)
        if (s->storages[i] == grad->storage) return TR_OK;
    s->storages[s->n++] = grad->storage;
    s->bytes += (double)grad->storage->bytes;
    return TR_OK;
}

static void count_memory(rank *r)
{
    TR_SCOPE;
    const variant v = {DEEP, 1, 0.02, false, 0}; /* a bucket for every two layers of 16 KiB */
    training t;
    seen before = {0}, in = {0};
    OK(begin(&t, r, &v));
    tr_tensor_list *list = tr_parameters(t.net);
    double all = 0;
    for (int step = 0; step < 2; step++) OK(take_step(&t, r, &v, step));
    for (int i = 0; i < tr_list_count(list); i++) {
        all += 4.0 * (double)tr_numel(tr_list_at(list, i));
        CHECK(tr_grad_hook_add(tr_list_at(list, i), note, &before) >= 0);
    }
    OK(take_step(&t, r, &v, 2));
    CHECK(before.n == 1 && before.bytes >= all);
    for (int i = 0; i < tr_list_count(list); i++) CHECK(tr_grad_hook_add(tr_list_at(list, i), note, &in) >= 0);
    tr_zero_grad(t.optimizer);
    OK(tr_step_in_backward(t.optimizer, true));
    CHECK(!tr_list_at(list, 0)->leaf->arena->gradients);
    for (int step = 3; step < 6; step++) {
        in = (seen){0};
        OK(take_step(&t, r, &v, step));
        CHECK(in.n >= 1 && in.bytes < all / 2);
    }
    OK(tr_leave(r->group));
}

static void gradients_share_the_memory_of_a_few_buckets(void **state)
{
    (void)state;
    run(2, count_memory, NULL);
}

/* A block that is too small is replaced while the list of blocks is full. */
static void a_pool_replaces_small_blocks(void **state)
{
    (void)state;
    tr__bucket_pool pool = {0};
    tr_tensor *small = tr__bucket_pool_take(&pool, TR_F32, tr_cpu(0), 8);
    assert_int_equal(tr_status_of(small), TR_OK);
    while (pool.n < pool.room) assert_int_equal(tr_status_of(tr__bucket_pool_take(&pool, TR_F32, tr_cpu(0), 16)), TR_OK);
    size_t full = pool.n;
    tr__bucket_pool_give(&pool, small);
    tr_tensor *large = tr__bucket_pool_take(&pool, TR_F32, tr_cpu(0), 1000);
    assert_int_equal(tr_numel(large), 1000);
    assert_int_equal(pool.n, full);
    tr__bucket_pool_give(&pool, large);
    assert_ptr_equal(tr__bucket_pool_take(&pool, TR_F32, tr_cpu(0), 900), large);
    tr_tensor *elsewhere = tr__bucket_pool_take(&pool, TR_F32, tr_cpu(1), 1);
    assert_int_equal(tr__device_of(elsewhere).index, 1);
    tr__bucket_pool_free(&pool);
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static tr_status give_up(tr_tensor *leaf, tr_tensor *grad, void *user)
{
    (void)leaf, (void)grad;
    return *(bool *)user ? tr__fail(TR_IO, "the hook gives up") : TR_OK;
}

static void fail_on_rank_1(rank *r)
{
    TR_SCOPE;
    const variant v = {DEEP, 1, 0.02, false, 0};
    training t;
    bool gives_up = false;
    OK(begin(&t, r, &v));
    OK(tr_step_in_backward(t.optimizer, true));
    CHECK(tr_grad_hook_add(tr_list_find(tr_parameters(t.net), "0.weight"), give_up, &gives_up) >= 0);
    for (int step = 0; step < 2; step++) OK(take_step(&t, r, &v, step));
    gives_up = r->number == 1;
    tr_zero_grad(t.optimizer);
    tr_status status = tr_backward(loss_of(&t, r, v.net, 2));
    CHECK(status == (r->number == 1 ? TR_IO : TR_PEER));
    SAYS("the hook gives up");
    CHECK(r->number == 1 || strstr(tr_error_message(), "rank 1"));
    SAYS("adamw steps in backward, and had updated ");
    CHECK(gradients_of(&t) == 0);
    CHECK(tr_step(t.optimizer) == TR_STATE);
    SAYS("load a checkpoint");
}

static void a_backward_that_fails_fails_everywhere(void **state)
{
    (void)state;
    run(2, fail_on_rank_1, NULL);
}

static void refuse(rank *r)
{
    TR_SCOPE;
    const variant v = {DEEP, 0, 1, false, 0};
    training t;
    OK(begin(&t, r, &v));
    OK(tr_step_in_backward(t.optimizer, true));
    OK(tr_ddp_sync(t.ddp, false));
    CHECK(tr_backward(loss_of(&t, r, v.net, 0)) == TR_UNSUPPORTED);
    SAYS("tr_ddp_sync() is off, and an optimizer steps parameter [");
    OK(tr_ddp_sync(t.ddp, true));
    OK(take_step(&t, r, &v, 0)); /* nothing had gone out: the ranks still agree */
    CHECK(tr_status_of(tr_ddp(t.net, r->group)) == TR_UNSUPPORTED);
    SAYS("steps \"0.weight\" in backward");
    OK(tr_step_in_backward(t.optimizer, false));
    OK(tr_status_of(tr_ddp(t.net, r->group)));
    CHECK(tr_step_in_backward(t.optimizer, true) == TR_UNSUPPORTED);
    SAYS("\"0.weight\" is in two tr_ddp()s");
    OK(tr_leave(r->group));
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    run(2, refuse, NULL);
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_changes_no_bit),
        cmocka_unit_test(gradients_share_the_memory_of_a_few_buckets),
        cmocka_unit_test(a_pool_replaces_small_blocks),
        cmocka_unit_test(a_backward_that_fails_fails_everywhere),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
