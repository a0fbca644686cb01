/*
 * What exchanges DDP's buckets in place of an all_reduce: gradients that travel in 16 bits, against the same sum made by hand, and a
 * program's own hooks, at once and with work under way, in plain backwards, with steps in backward and with micro-batches.
 */
#include "comm_ranks.h"

#include <trireme/trireme.h>

#include <stdlib.h>

enum { IN = 6, ROWS = 4, STEPS = 3, MOST_ELEMENTS = 1024 };

static tr_module *make_net(void)
{
    return tr_sequential(tr_linear(IN, 16, .seed = 1), tr_activation_layer(tr_gelu), tr_layer_norm(16),
        tr_linear(16, 16, .seed = 2), tr_activation_layer(tr_tanh), tr_linear(16, 3, .seed = 3));
}

/* A loss on samples that each rank and each step has of its own. */
static tr_tensor *loss_of(tr_module *net, const rank *r, int step)
{
    tr_tensor *x = tr_randn((uint64_t)(100 * step + r->number), TR_SHAPE(ROWS, IN));
    tr_tensor *y = tr_forward(net, x);
    return tr_mean(tr_mul(y, y));
}

/* ---- 16 bits ------------------------------------------------------------------------------------------------------- */

/* What every rank is to have of a gradient: the ranks' numbers rounded to dtype, added in f32, their average rounded again. */
static void check_average(rank *r, tr_tensor *mine, tr_tensor *averaged, tr_dtype dtype)
{
    static _Thread_local float all[RANKS_MOST * MOST_ELEMENTS], found[MOST_ELEMENTS];
    int64_t n = tr_numel(mine);
    CHECK(n <= MOST_ELEMENTS);
    OK(tr_copy_out(tr_cast(tr_cast(mine, dtype), TR_F32), found, (size_t)n * sizeof *found));
    OK(tr_all_gather(r->group, found, all, n));
    OK(tr_copy_out(averaged, found, (size_t)n * sizeof *found));
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < r->world; k++) sum += all[k * n + i];
        float average = sum / (float)r->world;
        tr_tensor *rounded = tr_cast(tr_cast(tr_from(&average, TR_SHAPE(1)), dtype), TR_F32);
        CHECK(tr_item(rounded) == (double)found[i]);
    }
}

static void average_in_16_bits(rank *r)
{
    tr_dtype dtype = *(const tr_dtype *)r->arg;
    tr_module *net = make_net(), *local = make_net();
    tr_module *ddp = tr_ddp(net, r->group, .bucket_mb = 5e-4, .compress = dtype);
    OK(tr_status_of(ddp));
    tr_tensor_list *averaged = tr_parameters(net), *mine = tr_parameters(local);
    tr_optimizer *first = tr_sgd(averaged, .lr = 0.1), *second = tr_sgd(mine, .lr = 0.1); /* which never step */
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        tr_zero_grad(first);
        tr_zero_grad(second);
        OK(tr_backward(loss_of(ddp, r, step)));
        OK(tr_backward(loss_of(local, r, step)));
        for (int i = 0; i < tr_list_count(mine); i++)
            check_average(r, tr_grad(tr_list_at(mine, i)), tr_grad(tr_list_at(averaged, i)), dtype);
        if (r->failure[0]) return;
    }
}

static void gradients_travel_in_16_bits(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        run(world, average_in_16_bits, (tr_dtype[]){TR_BF16});
        run(world, average_in_16_bits, (tr_dtype[]){TR_F16});
    }
    run_tcp(3, average_in_16_bits, NULL, (tr_dtype[]){TR_BF16});
}

/* ---- The same bits -------------------------------------------------------------------------------------------------- */

typedef enum exchange { PLAIN, AT_ONCE, UNDER_WAY, COMPRESSED } exchange;

typedef struct variant {
    exchange how;
    bool in_backward;
    int micro;
} variant;

typedef struct calls {
    int started, finished, next, broken;
} calls;

static void see(calls *c, const tr_ddp_bucket *b)
{
    bool right = b->index == c->next && b->count > 1 && tr_numel(b->gradients) > 0 && tr_dtype_of(b->gradients) == TR_F32;
    c->broken += !right;
    c->next = (c->next + 1) % b->count;
}

static tr_status average_at_once(const tr_ddp_bucket *b, tr_work **work, void *user)
{
    calls *c = user;
    c->broken += *work != NULL;
    see(c, b);
    c->started++;
    return tr_all_reduce_tensor(b->group, b->gradients, TR_AVG);
}

static tr_status post_sum(const tr_ddp_bucket *b, tr_work **work, void *user)
{
    ((calls *)user)->started++;
    *work = tr_all_reduce_tensor_async(b->group, b->gradients, TR_SUM);
    return TR_OK;
}

static tr_status divide(const tr_ddp_bucket *b, void *user)
{
    see(user, b);
    ((calls *)user)->finished++;
    return tr_copy_into(b->gradients, tr_affine(b->gradients, 1.0 / tr_world_size(b->group), 0));
}

/* Trains, and gives all weights, one behind the other. */
static int train(rank *r, variant v, calls *c, float *weights)
{
    TR_SCOPE;
    tr_module *net = make_net();
    tr_ddp_hook hook = {.start = v.how == AT_ONCE ? average_at_once : post_sum, .finish = v.how == AT_ONCE ? NULL : divide, .user = c};
    tr_module *ddp = tr_ddp(net, r->group, .bucket_mb = 5e-4, .compress = v.how == COMPRESSED ? TR_BF16 : TR_F32,
        .hook = v.how == AT_ONCE || v.how == UNDER_WAY ? &hook : NULL);
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-2);
    bool well = !v.in_backward || tr_step_in_backward(opt, true) == TR_OK;
    for (int step = 0; step < STEPS && well; step++) {
        tr_zero_grad(opt);
        for (int m = 0; m < v.micro && well; m++) {
            TR_SCOPE;
            well = v.micro == 1 || tr_ddp_sync(ddp, m == v.micro - 1) == TR_OK;
            well = well && tr_backward(loss_of(ddp, r, step * v.micro + m)) == TR_OK;
        }
        well = well && tr_step(opt) == TR_OK;
    }
    int n = 0;
    tr_tensor_list *list = tr_parameters(net);
    for (int i = 0; i < tr_list_count(list) && well; i++) {
        int64_t count = tr_numel(tr_list_at(list, i));
        well = n + count <= MOST_ELEMENTS && tr_copy_out(tr_list_at(list, i), weights + n, (size_t)count * sizeof *weights) == TR_OK;
        n += (int)count;
    }
    return well ? n : -1;
}

static void compare_variants(rank *r)
{
    static _Thread_local float one[MOST_ELEMENTS], other[MOST_ELEMENTS];
    for (int micro = 1; micro <= 2; micro++) {
        calls c = {0};
        int n = train(r, (variant){PLAIN, false, micro}, NULL, one);
        CHECK(n > 0);
        /* On two ranks halving the sum is the average, bit for bit. */
        CHECK(train(r, (variant){AT_ONCE, false, micro}, &c, other) == n && !memcmp(one, other, (size_t)n * sizeof *one));
        CHECK(c.started > STEPS && !c.finished && !c.broken);
        CHECK(train(r, (variant){UNDER_WAY, false, micro}, &c, other) == n && !memcmp(one, other, (size_t)n * sizeof *one));
        CHECK(c.finished > STEPS && c.started == 2 * c.finished && !c.broken);
        if (micro > 1) continue; /* gradients of several backwards are not to be stepped in one */
        CHECK(train(r, (variant){UNDER_WAY, true, 1}, &c, other) == n && !memcmp(one, other, (size_t)n * sizeof *one));
        CHECK(train(r, (variant){COMPRESSED, false, 1}, NULL, other) == n && memcmp(one, other, (size_t)n * sizeof *one));
        CHECK(train(r, (variant){COMPRESSED, true, 1}, NULL, one) == n && !memcmp(one, other, (size_t)n * sizeof *one));
    }
}

static void hooks_see_each_bucket_once_and_in_order(void **state)
{
    (void)state;
    run(2, compare_variants, NULL);
}

/* ---- Failures ------------------------------------------------------------------------------------------------------ */

static tr_status refuse(const tr_ddp_bucket *b, tr_work **work, void *user)
{
    (void)b, (void)work, (void)user;
    return tr_fail(TR_FORMAT, "the hook has no codebook");
}

static void fail_on_rank_1(rank *r)
{
    calls c = {0};
    tr_ddp_hook hook = {.start = r->number == 1 ? refuse : post_sum, .finish = divide, .user = &c};
    tr_module *ddp = tr_ddp(make_net(), r->group, .bucket_mb = 5e-4, .hook = &hook);
    tr_status status = tr_backward(loss_of(ddp, r, 0));
    CHECK(status == (r->number == 1 ? TR_FORMAT : TR_PEER));
    SAYS("the hook has no codebook");
    CHECK(tr_barrier(r->group) == status);
}

static void a_hook_that_fails_is_named_on_all_ranks(void **state)
{
    (void)state;
    run(3, fail_on_rank_1, NULL);
}

static void give_other_options(rank *r)
{
    tr_ddp_hook hook = {.start = average_at_once, .user = NULL};
    CHECK(tr_status_of(tr_ddp(make_net(), r->group, .compress = r->number ? TR_BF16 : TR_F32)) == TR_MISMATCH);
    SAYS("compress is off on rank 0, bf16 on rank 1");
    CHECK(tr_status_of(tr_ddp(make_net(), r->group, .hook = r->number ? &hook : NULL)) == TR_MISMATCH);
    SAYS("hook is off on rank 0, on on rank 1");
    CHECK(tr_status_of(tr_ddp(make_net(), r->group, .compress = TR_I32)) == TR_INVALID);
    SAYS(".compress is i32");
    CHECK(tr_status_of(tr_ddp(make_net(), r->group, .compress = TR_BF16, .hook = &hook)) == TR_INVALID);
    SAYS("not both");
    CHECK(tr_status_of(tr_ddp(make_net(), r->group, .hook = &(tr_ddp_hook){.finish = divide})) == TR_INVALID);
    SAYS("no .start");
    OK(tr_barrier(r->group));
}

static void options_that_do_not_go_together_are_refused(void **state)
{
    (void)state;
    run(2, give_other_options, NULL);
}

/* A program that was built before there were hooks hands over a shorter struct, behind which lies anything. */
static void pass_older_options(rank *r)
{
    tr_ddp_options o;
    memset(&o, 0xff, sizeof o);
    memset(&o, 0, offsetof(tr_ddp_options, compress));
    o.size = offsetof(tr_ddp_options, compress);
    o.module = make_net();
    o.group = r->group;
    tr_module *ddp = tr_ddp_with(&o);
    OK(tr_status_of(ddp));
    OK(tr_backward(loss_of(ddp, r, 0)));
}

static void older_programs_have_no_hook(void **state)
{
    (void)state;
    run(2, pass_older_options, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_travel_in_16_bits),
        cmocka_unit_test(hooks_see_each_bucket_once_and_in_order),
        cmocka_unit_test(a_hook_that_fails_is_named_on_all_ranks),
        cmocka_unit_test(options_that_do_not_go_together_are_refused),
        cmocka_unit_test(older_programs_have_no_hook),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
