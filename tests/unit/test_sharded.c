/* Sharded optimizers: the same bits as optimizers that are not, with a share of their state on each rank. */
#include "comm_ranks.h"

#include "optim/optimizer.h"

#include <trireme/trireme.h>

#include <stdlib.h>

enum { BATCH = 24, STEPS = 3, WEIGHTS = 1024, STATE = 4096, KINDS_OF_OPTIMIZERS = 16 };

static tr_module *make_net(void)
{
    return tr_sequential(tr_linear(6, 17, .seed = 1), tr_activation_layer(tr_gelu), tr_layer_norm(17), tr_linear(17, 3, .seed = 2));
}

static tr_optimizer *make_optimizer(int kind, tr_module *net)
{
    tr_tensor_list *p = tr_parameters(net);
    switch (kind) {
    case 0: return tr_adamw(p, .lr = 1e-2, .decay_matrices_only = true);
    case 1: return tr_adam(p, .lr = 1e-2);
    case 2: return tr_sgd(p, .lr = 0.1);
    case 3: return tr_sgd(p, .lr = 0.1, .momentum = 0.9);
    case 4: return tr_sgd(p, .lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1);
    case 5: return tr_rmsprop(p, .lr = 1e-2);
    case 6: return tr_adagrad(p, .lr = 1e-1);
    case 7: return tr_adamax(p, .lr = 1e-2);
    case 8: return tr_nadam(p, .lr = 1e-2);
    case 9: return tr_radam(p, .lr = 1e-2, .beta2 = 0.8);
    case 10: return tr_adadelta(p);
    case 11: return tr_rprop(p);
    case 12: return tr_adamw(p, .lr = 1e-2, .amsgrad = true, .bf16_state = true);
    case 13: return tr_sgd(p, .lr = 0.1, .momentum = 0.9, .bf16_state = true);
    case 14: return tr_lion(p, .lr = 1e-3, .bf16_state = true);
    default: return tr_lion(p, .lr = 1e-3);
    }
}

static tr_status train(rank *r, tr_module *ddp, tr_optimizer *opt, int steps)
{
    tr_tensor *all = tr_randn(50, TR_SHAPE(BATCH, 6)), *targets = tr_argmax(tr_slice(all, 1, 0, 3), 1);
    int64_t rows = BATCH / r->world, first = r->number * rows;
    tr_tensor *x = tr_slice(all, 0, first, first + rows), *y = tr_slice(targets, 0, first, first + rows);
    for (int step = 0; step < steps; step++) {
        TR_SCOPE;
        tr_zero_grad(opt);
        TR__TRY(tr_backward(tr_cross_entropy(tr_forward(ddp, x), y)));
        TR__TRY(tr_step(opt));
    }
    return TR_OK;
}

/* All of a list's values, one after the other, as f32; how many. */
static int64_t read_all(tr_tensor_list *list, float *to, int64_t room)
{
    int64_t n = 0;
    for (int i = 0; i < tr_list_count(list); i++) {
        TR_SCOPE;
        TR_NO_GRAD;
        tr_tensor *t = tr_cast(tr_detach(tr_list_at(list, i)), TR_F32);
        int64_t more = tr_numel(t);
        if (n + more > room || tr_copy_out(t, to + n, (size_t)more * sizeof *to) != TR_OK) return -1;
        n += more;
    }
    return n;
}

static int64_t state_elements(const tr_optimizer *o)
{
    int64_t n = 0;
    for (int i = 0; i < o->n_parts; i++)
        for (int k = 0; k < o->n_states; k++) n += tr_numel(o->parts[i].state[k]);
    return n;
}

static void compare_kinds(rank *r)
{
    for (int kind = 0; kind < KINDS_OF_OPTIMIZERS; kind++) {
        TR_SCOPE;
        static _Thread_local float weights[2][WEIGHTS], states[2][STATE];
        int64_t n_weights = 0, n_states = 0;
        int64_t full = 0;
        for (int sharded = 0; sharded < 2; sharded++) {
            TR_SCOPE;
            tr_module *net = make_net(), *ddp = tr_ddp(net, r->group);
            tr_optimizer *opt = make_optimizer(kind, net);
            if (sharded) OK(tr_shard_optimizer(opt, r->group));
            OK(train(r, ddp, opt, STEPS));
            n_weights = read_all(tr_parameters(net), weights[sharded], WEIGHTS);
            n_states = read_all(tr_optimizer_state(opt), states[sharded], STATE);
            CHECK(n_weights > 0 && n_states >= 0);
            if (!sharded) full = state_elements(opt);
            CHECK(!sharded || state_elements(opt) <= full / r->world + opt->n_states * 2 * TR__ARENA_ALIGN);
        }
        CHECK(memcmp(weights[0], weights[1], (size_t)n_weights * sizeof(float)) == 0);
        CHECK(memcmp(states[0], states[1], (size_t)n_states * sizeof(float)) == 0);
    }
    OK(tr_leave(r->group));
}

static void every_optimizer_gives_the_same_bits(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++)
        if (BATCH % world == 0) run(world, compare_kinds, NULL);
}

/* ---- Others in the arena ------------------------------------------------------------------------------------------------ */

/* The parameters at the ends of an arena are sharded; the one between them is each rank's own. */
static void keep_others(rank *r)
{
    enum { SIDE = 8 };
    TR_SCOPE;
    float own[SIDE * SIDE], ends[2][2 * SIDE * SIDE];
    for (int sharded = 0; sharded < 2; sharded++) {
        TR_SCOPE;
        tr_module *net = tr_sequential(tr_linear(SIDE, SIDE, .seed = 1, .no_bias = true),
            tr_linear(SIDE, SIDE, .seed = 2, .no_bias = true), tr_linear(SIDE, SIDE, .seed = 3, .no_bias = true));
        tr_tensor_list *all = tr_parameters(net), *mine = tr_list_new();
        OK(tr_status_of(tr_sgd(all, .lr = 0.1))); /* lays out one arena for them */
        for (int i = 0; i < 3; i += 2) OK(tr_list_add(mine, tr_list_name(all, i), tr_list_at(all, i)));
        tr_optimizer *opt = tr_adamw(mine, .lr = 1e-2);
        CHECK(opt->n_parts == 2);
        if (sharded) OK(tr_shard_optimizer(opt, r->group));
        tr_tensor *y = tr_forward(net, tr_randn(5, TR_SHAPE(4, SIDE)));
        OK(tr_backward(tr_mean(tr_mul(y, y))));
        OK(tr_fill(tr_detach(tr_list_at(all, 1)), 10.0 + r->number));
        OK(tr_step(opt));
        CHECK(read_all(mine, ends[sharded], 2 * SIDE * SIDE) == 2 * SIDE * SIDE);
        OK(tr_copy_out(tr_list_at(all, 1), own, sizeof own));
        for (int i = 0; i < SIDE * SIDE; i++) CHECK(own[i] == 10.0f + (float)r->number);
    }
    CHECK(memcmp(ends[0], ends[1], sizeof ends[0]) == 0);
    OK(tr_leave(r->group));
}

static void parameters_of_others_stay_as_they_are(void **state)
{
    (void)state;
    run(2, keep_others, NULL);
    run(3, keep_others, NULL);
}

/* ---- Checkpoints fit any number of ranks ------------------------------------------------------------------------------- */

typedef struct saved {
    tr_tensor_list *weights, *state;
} saved;

static tr_tensor_list *copy_of(tr_tensor_list *list)
{
    tr_tensor_list *copy = tr_list_new();
    for (int i = 0; i < tr_list_count(list); i++) {
        tr_tensor *t = tr_list_at(list, i), *c = tr_empty(tr_shape_of(t), .dtype = tr_dtype_of(t));
        if (tr_copy_into(c, t) != TR_OK || tr_list_add(copy, tr_list_name(list, i), c) != TR_OK) return NULL;
    }
    return copy;
}

static void save(rank *r)
{
    saved *out = (saved *)r->arg;
    tr_module *net = make_net(), *ddp = tr_ddp(net, r->group);
    tr_optimizer *opt = make_optimizer(0, net);
    OK(tr_shard_optimizer(opt, r->group));
    OK(train(r, ddp, opt, STEPS));
    tr_tensor_list *state = tr_optimizer_state(opt); /* of all ranks, on all ranks */
    OK(tr_status_of(state));
    if (r->number == 0) *out = (saved){tr_keep(copy_of(tr_state_dict(net))), tr_keep(copy_of(state))};
    OK(tr_leave(r->group));
}

static void resume(rank *r)
{
    const saved *from = r->arg;
    float weights[WEIGHTS], unbroken[WEIGHTS];
    tr_module *net = make_net(), *ddp = tr_ddp(net, r->group), *other = make_net(), *other_ddp = tr_ddp(other, r->group);
    tr_optimizer *opt = make_optimizer(0, net), *whole = make_optimizer(0, other);
    OK(tr_shard_optimizer(opt, r->group));
    OK(tr_load_state_dict(net, from->weights));
    OK(tr_optimizer_load(opt, from->state));
    OK(train(r, ddp, opt, STEPS));
    OK(train(r, other_ddp, whole, 2 * STEPS));
    int64_t n = read_all(tr_parameters(net), weights, WEIGHTS);
    CHECK(n > 0 && read_all(tr_parameters(other), unbroken, WEIGHTS) == n);
    for (int64_t i = 0; i < n; i++) CHECK(weights[i] - unbroken[i] < 2e-5f && unbroken[i] - weights[i] < 2e-5f);
    OK(tr_leave(r->group));
}

static void checkpoints_fit_any_number_of_ranks(void **state)
{
    (void)state;
    saved s = {0};
    run(3, save, &s);
    assert_non_null(s.state);
    for (int world = 1; world <= 4; world++) run(world, resume, &s);
    tr_release(s.weights);
    tr_release(s.state);
}

/* ---- Errors ------------------------------------------------------------------------------------------------------------ */

static void check_errors(rank *r)
{
    tr_module *net = make_net();
    tr_optimizer *opt = make_optimizer(0, net);
    CHECK(tr_shard_optimizer(NULL, r->group) == TR_INVALID);
    CHECK(tr_shard_optimizer(opt, NULL) == TR_INVALID);
    OK(tr_shard_optimizer(opt, r->group));
    CHECK(tr_shard_optimizer(opt, r->group) == TR_STATE);
    SAYS("sharded already");
    CHECK(tr_shard_optimizer(tr_lamb(tr_parameters(net)), r->group) == TR_UNSUPPORTED);
    SAYS("shard_optimizer: lamb looks at whole parameters");
    tr_module *layer = r->number ? tr_linear(3, 3) : tr_linear(9, 1); /* as many elements */
    CHECK(tr_shard_optimizer(tr_adam(tr_parameters(layer)), r->group) == TR_MISMATCH);
    SAYS("shard_optimizer: ranks differ: tensor 1 is \"weight\" f32 [1, 9] on rank 0, \"weight\" f32 [3, 3] on rank 1; ");
    /* What one rank alone cannot shard is a mismatch on all: none waits for it. */
    tr_tensor_list *p = tr_parameters(make_net());
    CHECK(tr_shard_optimizer(r->number ? tr_lamb(p) : tr_adam(p), r->group) == TR_MISMATCH);
    SAYS("optimizer is adam on rank 0, lamb on rank 1; ");
    CHECK(tr_shard_optimizer(r->number ? opt : make_optimizer(0, make_net()), r->group) == TR_MISMATCH);
    SAYS("optimizer is adamw on rank 0, adamw, sharded on rank 1");
    tr_optimizer *other = make_optimizer(0, make_net());
    OK(tr_step_in_backward(other, r->number));
    CHECK(tr_shard_optimizer(other, r->group) == TR_MISMATCH);
    SAYS("steps in backward is off on rank 0, on on rank 1");
    OK(tr_step_in_backward(other, true));
    CHECK(tr_shard_optimizer(other, r->group) == TR_UNSUPPORTED);
    OK(tr_leave(r->group));
    CHECK(tr_step(opt) == TR_STATE); /* what gathers has gone */
}

/* The others would wait for its shards. */
static void step_without_a_scaler(rank *r)
{
    bool fails = r->number == 1;
    tr_module *net = make_net();
    tr_optimizer *opt = make_optimizer(0, net);
    OK(tr_shard_optimizer(opt, r->group));
    for (int i = 0; i < tr_list_count(tr_parameters(net)); i++) {
        tr_tensor *p = tr_list_at(tr_parameters(net), i);
        OK(tr_backward(tr_sum(p)));
    }
    CHECK(tr_scaled_step(fails ? NULL : tr_grad_scaler_new(.scale = 1), opt) == (fails ? TR_INVALID : TR_PEER));
    if (!fails) SAYS("rank 1 (pid ");
    SAYS("tr_scaled_step: it takes a scaler and an optimizer, not NULL");
    CHECK(tr_barrier(r->group) != TR_OK);
}

static void a_step_that_fails_on_one_rank_ends_on_all(void **state)
{
    (void)state;
    run(3, step_without_a_scaler, NULL);
    run_tcp(2, step_without_a_scaler, NULL, NULL);
}

/* A mistake of all ranks is no reason to give the group up. */
static void step_twice(rank *r)
{
    tr_module *net = make_net();
    tr_optimizer *opt = make_optimizer(0, net);
    tr_grad_scaler *scaler = tr_grad_scaler_new(.scale = 1);
    OK(tr_shard_optimizer(opt, r->group));
    OK(tr_backward(tr_sum(tr_list_at(tr_parameters(net), 0))));
    OK(tr_scaled_step(scaler, opt));
    CHECK(tr_scaled_step(scaler, opt) == TR_STATE);
    SAYS("tr_scaled_step: the optimizer has been stepped already");
    CHECK(tr_update_scale(scaler));
    OK(tr_scaled_step(scaler, opt));
    OK(tr_leave(r->group));
}

static void a_second_scaled_step_leaves_the_group_as_it_is(void **state)
{
    (void)state;
    run(2, step_twice, NULL);
}

static void wrong_arguments_are_errors(void **state)
{
    (void)state;
    run(2, check_errors, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_optimizer_gives_the_same_bits),
        cmocka_unit_test(parameters_of_others_stay_as_they_are),
        cmocka_unit_test(checkpoints_fit_any_number_of_ranks),
        cmocka_unit_test(a_step_that_fails_on_one_rank_ends_on_all),
        cmocka_unit_test(a_second_scaled_step_leaves_the_group_as_it_is),
        cmocka_unit_test(wrong_arguments_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
