/* DDP with threads as ranks: n ranks give what one rank gives that sees the whole batch. */
#include "autograd/arena.h"
#include "tensor/tensor.h"

#include <trireme/trireme.h>

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 4, BATCH = 24, STEPS = 4 };

/* What a rank does, and what it saw. */
typedef struct rank {
    tr_store *store;
    int rank, world_size;
    double bucket_mb;
    bool optimizer_first; /* the optimizer lays the arena out, DDP moves it */
    int micro;            /* micro-batches per step, exchanged at the last one */
    tr_status status;
    char message[256];
    float weights[4096];
    size_t count;
} rank;

static tr_module *make_net(uint64_t seed)
{
    return tr_sequential(tr_linear(6, 16, .seed = seed), tr_activation_layer(tr_gelu), tr_layer_norm(16),
        tr_linear(16, 16, .seed = seed + 1), tr_activation_layer(tr_tanh), tr_linear(16, 3, .seed = seed + 2));
}

static tr_status train_step(rank *r, tr_module *ddp, tr_optimizer *opt, tr_tensor *x, tr_tensor *y)
{
    int64_t rows = BATCH / r->world_size / r->micro;
    tr_zero_grad(opt);
    for (int m = 0; m < r->micro; m++) {
        TR_SCOPE;
        int64_t from = r->rank * rows * r->micro + m * rows;
        if (r->micro > 1) TR__TRY(tr_ddp_sync(ddp, m == r->micro - 1));
        tr_tensor *loss = tr_cross_entropy(tr_forward(ddp, tr_slice(x, 0, from, from + rows)), tr_slice(y, 0, from, from + rows));
        TR__TRY(tr_backward(tr_affine(loss, 1.0 / r->micro, 0)));
    }
    return tr_step(opt);
}

static tr_status train(rank *r)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = r->store, .rank = r->rank, .world_size = r->world_size);
    TR__TRY(tr_status_of(group));
    tr_module *net = make_net((uint64_t)r->rank * 100 + 1);
    tr_optimizer *opt = r->optimizer_first ? tr_adamw(tr_parameters(net), .lr = 1e-2) : NULL;
    tr_module *ddp = tr_ddp(net, group, .bucket_mb = r->bucket_mb ? r->bucket_mb : 25);
    TR__TRY(tr_status_of(ddp));
    if (!opt) opt = tr_adamw(tr_parameters(net), .lr = 1e-2);
    tr_tensor *x = tr_randn(50, TR_SHAPE(BATCH, 6)), *y = tr_argmax(tr_slice(x, 1, 0, 3), 1);
    for (int step = 0; step < STEPS; step++) TR__TRY(train_step(r, ddp, opt, x, y));
    tr_tensor_list *list = tr_parameters(net);
    for (int i = 0; i < tr_list_count(list); i++) {
        tr_tensor *p = tr_list_at(list, i);
        size_t n = (size_t)tr_numel(p);
        TR__TRY(tr_copy_out(p, r->weights + r->count, n * sizeof(float)));
        r->count += n;
    }
    return tr_leave(group);
}

static void *run(void *arg)
{
    rank *r = arg;
    r->status = train(r);
    if (r->status != TR_OK) strncpy(r->message, tr_error_message(), sizeof r->message - 1);
    return NULL;
}

/* Runs world_size ranks like `like`, and returns rank 0's result; all ranks must end with the same bits. */
static void run_ranks(rank *ranks, int world_size, rank like)
{
    TR_SCOPE;
    pthread_t threads[MOST_RANKS];
    like.store = tr_store_memory();
    like.world_size = world_size;
    for (int i = 0; i < world_size; i++) {
        ranks[i] = like;
        ranks[i].rank = i;
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < world_size; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < world_size; i++) {
        if (ranks[i].status != TR_OK) fail_msg("rank %d: %s", i, ranks[i].message);
        assert_int_equal(ranks[i].count, ranks[0].count);
        assert_memory_equal(ranks[i].weights, ranks[0].weights, ranks[0].count * sizeof(float));
    }
}

static rank ranks[MOST_RANKS], alone[1];

static void assert_like_one_rank(void)
{
    run_ranks(alone, 1, (rank){.micro = 1});
    for (size_t i = 0; i < alone->count; i++) assert_true(fabsf(alone->weights[i] - ranks[0].weights[i]) < 2e-5f);
}

static void any_number_of_ranks_is_like_one(void **state)
{
    (void)state;
    for (int world_size = 2; world_size <= MOST_RANKS; world_size++) {
        run_ranks(ranks, world_size, (rank){.micro = 1});
        assert_like_one_rank();
    }
}

static void any_size_of_bucket_will_do(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        run_ranks(ranks, 2, (rank){.micro = 1, .bucket_mb = (double[]){1e-9, 5e-4, 1e-3}[i]});
        assert_like_one_rank();
    }
}

static void the_optimizer_may_come_first(void **state)
{
    (void)state;
    run_ranks(ranks, 2, (rank){.micro = 1, .optimizer_first = true});
    assert_like_one_rank();
}

static void micro_batches_exchange_once(void **state)
{
    (void)state;
    run_ranks(ranks, 2, (rank){.micro = 3, .bucket_mb = 1e-3});
    assert_like_one_rank();
}

/* ---- A parameter that takes no part, on one rank only -------------------------------------------------------------------- */

typedef struct partial {
    tr_status (*what)(struct partial *);
    tr_store *store;
    int rank;
    double seen[2];
    tr_status status;
    char message[512];
} partial;

typedef struct branches {
    tr_module *left, *right;
} branches;

static tr_tensor *branch_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const branches *b = tr_module_state(self);
    tr_tensor *y = tr_forward(b->left, inputs[0]);
    return tr_item(tr_slice(tr_reshape(inputs[0], TR_SHAPE(-1)), 0, 0, 1)) > 0 ? tr_add(y, tr_forward(b->right, inputs[0])) : y;
}

static tr_status partly(partial *p)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = p->store, .rank = p->rank, .world_size = 2);
    tr_module *net = tr_module_new("branches", sizeof(branches), branch_forward);
    branches *b = tr_module_state(net);
    b->left = tr_module_add(net, "left", tr_linear(1, 1, .no_bias = true));
    b->right = tr_module_add(net, "right", tr_linear(1, 1, .no_bias = true));
    tr_module *ddp = tr_ddp(net, group, .bucket_mb = 1e-9);
    TR__TRY(tr_backward(tr_sum(tr_forward(ddp, tr_full(p->rank ? 4 : -2, TR_SHAPE(1, 1))))));
    p->seen[0] = tr_item(tr_grad(tr_list_at(tr_parameters(net), 0)));
    p->seen[1] = tr_item(tr_grad(tr_list_at(tr_parameters(net), 1)));
    return tr_leave(group);
}

static void *run_partly(void *arg)
{
    partial *p = arg;
    p->status = p->what(p);
    return NULL;
}

static void run_both(tr_status (*what)(partial *), partial parts[2])
{
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        parts[i] = (partial){.what = what, .store = store, .rank = i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_partly, &parts[i]), 0);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) assert_int_equal(parts[i].status, TR_OK);
}

static void what_takes_no_part_counts_as_zero(void **state)
{
    (void)state;
    partial parts[2];
    run_both(partly, parts);
    for (int i = 0; i < 2; i++) {
        assert_true(parts[i].seen[0] == (4 - 2) / 2.0); /* d(wx)/dw = x, averaged */
        assert_true(parts[i].seen[1] == (4 + 0) / 2.0);
    }
}

/* ---- Frozen parameters ---------------------------------------------------------------------------------------------------- */

/* Which of three layers learn: has each changed since `before`, which is brought up to date? Bits. */
static int changed(tr_module *net, float before[3])
{
    int bits = 0;
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d.weight", i);
        const float *now = tr_data(tr_list_find(tr_parameters(net), name));
        bits |= (now[0] != before[i]) << i;
        before[i] = now[0];
    }
    return bits;
}

static tr_status step_of(partial *p, tr_module *ddp, tr_optimizer *opt)
{
    TR_SCOPE;
    tr_zero_grad(opt);
    TR__TRY(tr_backward(tr_sum(tr_forward(ddp, tr_randn((uint64_t)p->rank + 7, TR_SHAPE(2, 4))))));
    return tr_step(opt);
}

/* The second layer is frozen, then the first one too, and the second let go. AdamW has weight decay and, from the second step
 * on, momentum. */
static tr_status freeze_and_let_go(partial *p, tr_group *group, bool before_ddp)
{
    TR_SCOPE;
    tr_module *net = tr_sequential(tr_linear(4, 4), tr_linear(4, 4), tr_linear(4, 4));
    if (before_ddp) TR__TRY(tr_freeze(tr_module_find(net, "1"), true));
    tr_module *ddp = tr_ddp(net, group);
    if (!before_ddp) TR__TRY(tr_freeze(tr_module_find(net, "1"), true));
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-2, .weight_decay = 0.1);
    float values[3] = {0};
    (void)changed(net, values);
    TR__TRY(step_of(p, ddp, opt));
    p->seen[0] = changed(net, values); /* 1 is frozen */
    TR__TRY(tr_freeze(tr_module_find(net, "0"), true));
    TR__TRY(step_of(p, ddp, opt));
    p->seen[0] = 10 * p->seen[0] + changed(net, values); /* 0 and 1 are */
    TR__TRY(tr_freeze(tr_module_find(net, "1"), false));
    TR__TRY(step_of(p, ddp, opt));
    p->seen[0] = 10 * p->seen[0] + changed(net, values); /* 0 is */
    p->seen[1] = values[1] + 10.0 * values[2];
    return TR_OK;
}

static tr_status freeze_before(partial *p)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = p->store, .rank = p->rank, .world_size = 2);
    TR__TRY(freeze_and_let_go(p, group, true));
    return tr_leave(group);
}

static tr_status freeze_after(partial *p)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = p->store, .rank = p->rank, .world_size = 2);
    TR__TRY(freeze_and_let_go(p, group, false));
    return tr_leave(group);
}

static void what_is_frozen_stays_and_the_rest_learns(void **state)
{
    (void)state;
    for (int after = 0; after < 2; after++) {
        partial parts[2];
        run_both(after ? freeze_after : freeze_before, parts);
        assert_true(parts[0].seen[0] == 546 && parts[1].seen[0] == 546);
        assert_true(parts[0].seen[1] == parts[1].seen[1]);
    }
}

/* After a backward of all, rank 1 freezes a layer by itself: with one bucket, and with one for each parameter. */
static tr_status freeze_alone(partial *p)
{
    for (int small = 0; small < 2; small++) {
        TR_SCOPE;
        tr_group *group = tr_join(.store = p->store, .name = small ? "small" : "large", .rank = p->rank, .world_size = 2);
        tr_module *net = tr_sequential(tr_linear(4, 4), tr_linear(4, 4), tr_linear(4, 4));
        tr_module *ddp = tr_ddp(net, group, .bucket_mb = small ? 1e-9 : 25);
        tr_optimizer *opt = tr_sgd(tr_parameters(net));
        TR__TRY(step_of(p, ddp, opt));
        if (p->rank) TR__TRY(tr_freeze(tr_module_find(net, "1"), true));
        tr_status status = step_of(p, ddp, opt);
        if (status != TR_MISMATCH) return status == TR_OK ? tr_fail(TR_INTERNAL, "no mismatch") : status;
        const char *here = p->rank ? "here 2 of 6 are frozen, the first is \"1.weight\"" : "here 0 of 6 are frozen";
        if (!strstr(tr_error_message(), here)) return TR_INTERNAL;
        (void)!tr_leave(group);
    }
    return TR_OK;
}

static void what_one_rank_freezes_alone_is_a_mismatch(void **state)
{
    (void)state;
    partial parts[2];
    run_both(freeze_alone, parts);
}

/* ---- Ranks whose modules differ ---------------------------------------------------------------------------------- */

static tr_module *make_pair(tr_module *first, tr_module *second)
{
    return tr_sequential(first, second);
}

static tr_module *make_frozen(tr_module *module)
{
    return tr_freeze(module, true) == TR_OK ? module : NULL;
}

/* All ranks but the last have linear layers of 6 by 4 and 4 by 2. */
static tr_module *make_other(int kind)
{
    switch (kind) {
    case 0: return make_pair(tr_linear(6, 4), tr_activation_layer(tr_gelu)); /* one module fewer */
    case 1: return tr_sequential(tr_linear(6, 4), tr_linear(4, 2), tr_linear(2, 2));
    case 2: return make_pair(tr_linear(6, 4), tr_linear(4, 3));
    case 3: return make_pair(tr_linear(6, 4), tr_linear(4, 2, .dtype = TR_BF16));
    case 4: return tr_sequential(tr_linear(6, 4), tr_activation_layer(tr_gelu), tr_linear(4, 2));
    case 5: return make_pair(tr_linear(6, 4), tr_batch_norm2d(4));
    default: return make_pair(tr_linear(6, 4), make_frozen(tr_linear(4, 2)));
    }
}

static const char *const differences[] = {
    "number of tensors is 4 on ranks 0 and 1, 2 on rank 2; tensor 3 is \"1.weight\" f32 [2, 4] on ranks 0 and 1, "
    "no such value on rank 2; ",
    "number of tensors is 4 on ranks 0 and 1, 6 on rank 2; tensor 5 is no such value on ranks 0 and 1, "
    "\"2.weight\" f32 [2, 2] on rank 2; ",
    "tensor 3 is \"1.weight\" f32 [2, 4] on ranks 0 and 1, \"1.weight\" f32 [3, 4] on rank 2; ",
    "tensor 3 is \"1.weight\" f32 [2, 4] on ranks 0 and 1, \"1.weight\" bf16 [2, 4] on rank 2; ",
    "tensor 3 is \"1.weight\" f32 [2, 4] on ranks 0 and 1, \"2.weight\" f32 [2, 4] on rank 2; ",
    "tensor 3 is \"1.weight\" f32 [2, 4] on ranks 0 and 1, \"1.weight\" f32 [4] on rank 2; ",
    "tensor 3 is \"1.weight\" f32 [2, 4] on ranks 0 and 1, \"1.weight\" f32 [2, 4] without gradient on rank 2; ",
};
enum { DIFFERENCES = sizeof differences / sizeof *differences };

static void *wrap_different(void *arg)
{
    TR_SCOPE;
    partial *p = arg;
    tr_group *group = tr_join(.store = p->store, .rank = p->rank, .world_size = 3);
    for (int kind = 0; kind < DIFFERENCES && p->status == TR_OK; kind++) {
        tr_module *net = p->rank == 2 ? make_other(kind) : make_pair(tr_linear(6, 4), tr_linear(4, 2));
        tr_status status = tr_status_of(tr_ddp(net, group));
        const char *text = tr_error_message(), *begin = "ddp: ranks differ: ";
        bool said = strncmp(text, begin, strlen(begin)) == 0 && strstr(text, differences[kind]);
        if (status != TR_MISMATCH || !said) p->status = tr__fail(TR_INTERNAL, "difference %d: %s", kind, text);
    }
    tr_module *net = tr_sequential(tr_linear(6, 4), tr_dropout_layer(p->rank == 2 ? 0.5 : 0.1));
    bool told = tr_status_of(tr_ddp(net, group)) == TR_MISMATCH &&
                strstr(tr_error_message(), "model.1 is dropout (p 0.1) on ranks 0 and 1, dropout (p 0.5) on rank 2");
    if (!told && p->status == TR_OK) p->status = tr__fail(TR_INTERNAL, "dropouts that differ: %s", tr_error_message());
    if (p->status == TR_OK) p->status = tr_status_of(tr_ddp(net, group, .modules_may_differ = true));
    tr_module *square = tr_sequential(tr_linear(4, 4, .in_out = p->rank == 2));
    told = tr_status_of(tr_ddp(square, group)) == TR_MISMATCH &&
        strstr(tr_error_message(), "model.0 is linear on ranks 0 and 1, linear (in_out) on rank 2");
    if (!told && p->status == TR_OK) p->status = tr__fail(TR_INTERNAL, "weights the other way: %s", tr_error_message());
    /* What one rank alone cannot do: none waits for it. */
    tr_module *stepped = make_net(1);
    tr_optimizer *opt = tr_sgd(tr_parameters(stepped));
    if (p->status == TR_OK) p->status = tr_step_in_backward(opt, p->rank == 2);
    told = tr_status_of(tr_ddp(stepped, group)) == TR_MISMATCH &&
        strstr(tr_error_message(), "steps in backward is off on ranks 0 and 1, on on rank 2");
    if (!told && p->status == TR_OK) p->status = tr__fail(TR_INTERNAL, "steps in backward: %s", tr_error_message());
    told = tr_status_of(tr_ddp(make_net(1), group, .bucket_mb = p->rank == 2 ? -1 : 25)) == TR_MISMATCH &&
        strstr(tr_error_message(), "bucket_mb is 25 on ranks 0 and 1, -1 on rank 2");
    if (!told && p->status == TR_OK) p->status = tr__fail(TR_INTERNAL, "buckets: %s", tr_error_message());
    /* The group is whole. */
    tr_module *ddp = tr_ddp(make_net(1), group);
    if (p->status == TR_OK) p->status = tr_status_of(ddp);
    if (p->status == TR_OK) p->status = tr_leave(group);
    if (p->status != TR_OK) strncpy(p->message, tr_error_message(), sizeof p->message - 1);
    return NULL;
}

static void the_first_difference_of_modules_is_named_on_all_ranks(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    pthread_t threads[3];
    partial parts[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = (partial){.store = store, .rank = i};
        assert_int_equal(pthread_create(&threads[i], NULL, wrap_different, &parts[i]), 0);
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++)
        if (parts[i].status != TR_OK) fail_msg("rank %d: %s", i, parts[i].message);
}

/* ---- A backward that fails on one rank --------------------------------------------------------------------------------- */

static tr_status refuse(tr_tensor *leaf, tr_tensor *gradient, void *user)
{
    (void)leaf, (void)gradient, (void)user;
    return tr_fail(TR_FORMAT, "the hook does not like it");
}

/* Whatever its status: to the others it is a rank that they lost. before: the module has not begun to exchange gradients. */
static tr_status fail_on_rank_1(const partial *p, bool before)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = p->store, .rank = p->rank, .world_size = 2);
    tr_module *net = make_net(1), *ddp = tr_ddp(net, group, .bucket_mb = 1e-9);
    tr_tensor *y = tr_forward(ddp, tr_ones(TR_SHAPE(4, 6))), *scale = tr_require_grad(tr_ones(tr_shape_of(y)));
    tr_tensor *refused = before ? scale : tr_list_at(tr_parameters(net), 0);
    if (p->rank == 1 && tr_grad_hook_add(refused, refuse, NULL) < 0) return TR_INTERNAL;
    tr_status status = tr_backward(tr_sum(tr_mul(y, scale)));
    const char *says = "gave up group 'world': ddp: backward failed: the hook does not like it";
    bool right = p->rank == 1 ? status == TR_FORMAT && !strcmp(tr_error_message(), "the hook does not like it")
                              : status == TR_PEER && strstr(tr_error_message(), "rank 1 (pid ") &&
                                    strstr(tr_error_message(), says);
    if (!right) return tr__fail(TR_INTERNAL, "%s: %s", tr_status_name(status), tr_error_message());
    right = tr_barrier(group) == status; /* and so for ever */
    return right ? TR_OK : tr__fail(TR_INTERNAL, "then: %s", tr_error_message());
}

static tr_status fail_within(partial *p)
{
    return fail_on_rank_1(p, false);
}

static tr_status fail_before(partial *p)
{
    return fail_on_rank_1(p, true);
}

static void a_rank_whose_backward_fails_is_lost_to_the_others(void **state)
{
    (void)state;
    partial parts[2];
    run_both(fail_within, parts);
    run_both(fail_before, parts);
}

/* The same mistake on all ranks, behind new parameters: it is found before anything is sent, and the group is sound. */
static tr_status walk_a_graph_again(partial *p)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = p->store, .rank = p->rank, .world_size = 2);
    tr_module *net = make_net(1), *head = make_net(2), *ddp = tr_ddp(net, group), *other = tr_ddp(head, group);
    tr_tensor *y = tr_forward(ddp, tr_ones(TR_SHAPE(4, 6))), *z = tr_forward(other, tr_ones(TR_SHAPE(4, 6)));
    TR__TRY(tr_backward(tr_sum(y)));
    for (int i = 0; i < 2; i++) {
        tr_status status = tr_backward(tr_add(tr_sum(y), tr_sum(z)));
        if (status != TR_STATE || !strstr(tr_error_message(), "retain_graph"))
            return tr__fail(TR_INTERNAL, "%s: %s", tr_status_name(status), tr_error_message());
    }
    TR__TRY(tr_backward(tr_sum(z)));
    TR__TRY(tr_backward(tr_sum(tr_forward(ddp, tr_ones(TR_SHAPE(4, 6))))));
    return tr_leave(group);
}

static void a_backward_of_a_graph_that_is_used_up_leaves_the_group_sound(void **state)
{
    (void)state;
    partial parts[2];
    run_both(walk_a_graph_again, parts);
}

/* ---- Two modules over one group -------------------------------------------------------------------------------------------- */

typedef struct tower {
    tr_tensor *weights[3];
    int used;
} tower;

static tr_tensor *tower_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const tower *t = tr_module_state(self);
    tr_tensor *y = tr_sum(tr_mul(t->weights[0], inputs[0]));
    for (int i = 1; i < t->used; i++) y = tr_add(y, tr_sum(tr_mul(t->weights[i], inputs[0])));
    return y;
}

static tr_module *make_tower(int used)
{
    tr_module *module = tr_module_new("tower", sizeof(tower), tower_forward);
    tower *t = tr_module_state(module);
    t->used = used;
    for (int i = 0; i < 3; i++)
        t->weights[i] = tr_module_parameter(module, (const char *[]){"a", "b", "c"}[i], tr_zeros(TR_SHAPE(64)));
    return module;
}

/* All buckets are as large. On rank 1 the second tower's last weight takes no part: its buckets wait for the end there. */
static tr_status two_towers(partial *p)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = p->store, .rank = p->rank, .world_size = 2);
    tr_module *first = tr_ddp(make_tower(3), group, .bucket_mb = 1e-9);
    tr_module *second = tr_ddp(make_tower(p->rank ? 2 : 3), group, .bucket_mb = 1e-9);
    tr_tensor *x = tr_ones(TR_SHAPE(64)), *y = tr_affine(x, 100, 0);
    tr_tensor *even = tr_add(tr_forward(first, x), tr_forward(first, y));
    TR__TRY(tr_backward(even)); /* each learns its buckets */
    TR__TRY(tr_backward(tr_forward(second, y)));
    tr_status status = tr_backward(tr_add(tr_forward(first, x), tr_forward(second, y)));
    if (status != TR_MISMATCH || !strstr(tr_error_message(), " of module 1 at ")) return status == TR_OK ? TR_INTERNAL : status;
    (void)!tr_leave(group);
    return TR_OK;
}

static void buckets_of_two_modules_do_not_meet(void **state)
{
    (void)state;
    partial parts[2];
    run_both(two_towers, parts);
}

/* ---- Running statistics -------------------------------------------------------------------------------------------------- */

/* seen: the running mean after a forward, and after its backward. */
static tr_status normed(partial *p)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = p->store, .rank = p->rank, .world_size = 2);
    tr_module *net = tr_batch_norm2d(1), *ddp = tr_ddp(net, group);
    tr_tensor *x = tr_affine(tr_randn(1, TR_SHAPE(2, 1, 2, 2)), 1, p->rank ? 10 : -10);
    tr_tensor *y = tr_forward(ddp, x), *mean = tr_list_find(tr_state_dict(net), "running_mean");
    p->seen[0] = tr_item(mean);
    TR__TRY(tr_backward(tr_sum(y)));
    p->seen[1] = tr_item(mean);
    return tr_leave(group);
}

static void running_statistics_become_those_of_rank_0(void **state)
{
    (void)state;
    partial parts[2];
    run_both(normed, parts);
    assert_true(parts[0].seen[0] < -0.5 && parts[1].seen[0] > 0.5);
    assert_true(parts[0].seen[1] == parts[0].seen[0] && parts[1].seen[1] == parts[0].seen[0]);
}

/* Two norms' buffers, of two dtypes, lie side by side with their values; seen: the second's running mean and count. */
static tr_status normed_twice(partial *p)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = p->store, .rank = p->rank, .world_size = 2);
    tr_module *net = tr_sequential(tr_batch_norm2d(3), tr_batch_norm2d(3));
    tr_tensor_list *state = tr_state_dict(net);
    tr_tensor *mean = tr_list_find(state, "1.running_mean"), *count = tr_list_find(state, "1.num_batches_tracked");
    TR__TRY(tr_fill(count, 5 + p->rank));
    TR__TRY(tr_fill(mean, 7));
    tr_module *ddp = tr_ddp(net, group);
    TR__TRY(tr_status_of(ddp));
    if (mean->storage != count->storage || mean->storage != tr_list_find(state, "0.running_var")->storage)
        return tr_fail(TR_INTERNAL, "buffers lie apart");
    if (tr_item(count) != 5 || tr_item(tr_mean(mean)) != 7 || tr_item(tr_mean(tr_list_find(state, "0.running_var"))) != 1)
        return tr_fail(TR_INTERNAL, "buffers lost their values");
    TR__TRY(tr_backward(tr_sum(tr_forward(ddp, tr_randn((uint64_t)p->rank, TR_SHAPE(2, 3, 2, 2))))));
    p->seen[0] = tr_item(tr_sum(mean));
    p->seen[1] = tr_item(count);
    return tr_leave(group);
}

/* With buffers of their own, ranks differ and nothing says so. */
static tr_status normed_by_itself(partial *p)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = p->store, .rank = p->rank, .world_size = 2);
    tr_module *net = tr_batch_norm2d(1), *ddp = tr_ddp(net, group, .local_buffers = true, .check_every = 1);
    tr_tensor *x = tr_affine(tr_randn(1, TR_SHAPE(2, 1, 2, 2)), 1, p->rank ? 10 : -10), *mean = tr_list_find(tr_state_dict(net), "running_mean");
    TR__TRY(tr_backward(tr_sum(tr_forward(ddp, x))));
    p->seen[0] = tr_item(mean);
    return tr_leave(group);
}

static void buffers_travel_together_or_not_at_all(void **state)
{
    (void)state;
    partial parts[2];
    run_both(normed_twice, parts);
    assert_true(parts[0].seen[0] == parts[1].seen[0] && parts[0].seen[1] == 6 && parts[1].seen[1] == 6);
    run_both(normed_by_itself, parts);
    assert_true(parts[0].seen[0] < -0.5 && parts[1].seen[0] > 0.5);
}

/* A module with several outputs keeps them: the gradient of the last state is averaged, too. */
static tr_status recurrent(partial *p)
{
    TR_SCOPE;
    tr_group *group = tr_join(.store = p->store, .rank = p->rank, .world_size = 2);
    tr_module *net = tr_lstm(2, 3, .seed = 1), *ddp = tr_ddp(net, group);
    tr_tensor *x = tr_full(1 + p->rank, TR_SHAPE(1, 4, 2)), *outputs[3];
    TR__TRY(tr_forward_many(ddp, &x, 1, outputs, 3));
    TR__TRY(tr_backward(tr_sum(outputs[2])));
    p->seen[0] = tr_item(tr_sum(tr_grad(tr_list_find(tr_parameters(net), "weight_ih_l0"))));
    return tr_leave(group);
}

static void several_outputs_are_passed_on(void **state)
{
    (void)state;
    partial parts[2];
    run_both(recurrent, parts);
    assert_true(parts[0].seen[0] == parts[1].seen[0] && parts[0].seen[0] != 0);
}

static void wrong_arguments_are_errors(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_group *group = tr_join();
    tr_module *net = make_net(1);
    assert_int_equal(tr_status_of(tr_ddp(net, NULL)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_ddp(NULL, group)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_ddp(net, group, .bucket_mb = -1)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_ddp(net, group, .bucket_mb = 0)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_ddp(tr_linear(0, 1), group)), TR_INVALID);
    assert_int_equal(tr_ddp_sync(net, true), TR_INVALID);
    assert_int_equal(tr_ddp_sync(tr_ddp(net, group), false), TR_OK);
    assert_int_equal(tr_all_reduce_tensor(group, tr_transpose(tr_ones(TR_SHAPE(2, 3)), 0, 1), TR_SUM), TR_SHAPE);
    /* A state dict is that of the wrapped module. */
    assert_non_null(tr_list_find(tr_state_dict(tr_ddp(net, group)), "0.weight"));
    assert_int_equal(tr_leave(group), TR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_is_like_one),
        cmocka_unit_test(any_size_of_bucket_will_do),
        cmocka_unit_test(the_optimizer_may_come_first),
        cmocka_unit_test(micro_batches_exchange_once),
        cmocka_unit_test(what_takes_no_part_counts_as_zero),
        cmocka_unit_test(what_is_frozen_stays_and_the_rest_learns),
        cmocka_unit_test(what_one_rank_freezes_alone_is_a_mismatch),
        cmocka_unit_test(the_first_difference_of_modules_is_named_on_all_ranks),
        cmocka_unit_test(a_rank_whose_backward_fails_is_lost_to_the_others),
        cmocka_unit_test(a_backward_of_a_graph_that_is_used_up_leaves_the_group_sound),
        cmocka_unit_test(buckets_of_two_modules_do_not_meet),
        cmocka_unit_test(running_statistics_become_those_of_rank_0),
        cmocka_unit_test(buffers_travel_together_or_not_at_all),
        cmocka_unit_test(several_outputs_are_passed_on),
        cmocka_unit_test(wrong_arguments_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
