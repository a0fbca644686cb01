/* Fully sharded parameters where they cannot be: ranks that differ or fail, and what refuses them. */
#include "comm_ranks.h"
#include "dist_nets.h"

#include "parallel/fully_shard.h"

#include <trireme/trireme.h>

#include <stdlib.h>

/* ---- Ranks that fail ----------------------------------------------------------------------------------------------- */

enum { NEVER, IN_FORWARD, IN_BACKWARD };

typedef struct trouble {
    int when;
} trouble;

static tr_status like_input(tr_op_call *call)
{
    return tr_op_output(call, 0, tr_shape_of(call->inputs[0]), tr_dtype_of(call->inputs[0]));
}

static tr_status copy_forward(tr_op_call *call)
{
    return tr_copy_into(call->outputs[0], call->inputs[0]);
}

static tr_status fail_backward(tr_backward_call *call)
{
    (void)call;
    return tr_fail(TR_STATE, "trouble in backward");
}

static const tr_op troubled = {.size = sizeof(tr_op), .name = "troubled", .infer = like_input, .forward = copy_forward,
    .backward = fail_backward};

static tr_tensor *trouble_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const trouble *t = tr_module_state(self);
    if (t->when == IN_FORWARD) return tr_tensor_fail(TR_STATE, "trouble in forward");
    return t->when == IN_BACKWARD ? tr_apply(&troubled, NULL, inputs, 1, NULL) : inputs[0];
}

static tr_module *trouble_new(int when)
{
    tr_module *module = tr_module_new("trouble", sizeof(trouble), trouble_forward);
    ((trouble *)tr_module_state(module))->when = when;
    return module;
}

/* Three units, and something between the last two that may fail. */
static tr_module *make_net(int when)
{
    return tr_sequential(tr_linear(4, 5, .seed = 1), tr_linear(5, 6, .seed = 2), trouble_new(when), tr_linear(6, 3, .seed = 3));
}

static tr_status shard(tr_module *net, tr_group *group)
{
    TR__TRY(tr_fully_shard(tr_module_find(net, "0"), group));
    TR__TRY(tr_fully_shard(tr_module_find(net, "1"), group));
    return tr_fully_shard(net, group);
}

static bool is_here(tr_module *net, const char *path)
{
    const tr__unit *u = (const tr__unit *)(const void *)tr_module_find(net, path)->around;
    return u->whole->parameters->storage->data || u->whole->gradients;
}

/* The one that fails has its own words; the others name it. Nobody waits, and no memory stays. */
static void fail_in_the_middle(rank *r)
{
    int when = *(const int *)r->arg;
    bool fails = r->number == 1;
    tr_module *net = make_net(fails ? when : NEVER);
    OK(shard(net, r->group));
    tr_tensor *y = tr_forward(net, tr_ones(TR_SHAPE(2, 4)));
    tr_status status = tr_status_of(y);
    if (status == TR_OK) status = tr_backward(tr_mean(y));
    if (status == TR_OK) { /* its part was done when the other failed */
        TR_NO_GRAD;
        status = tr_status_of(tr_forward(net, tr_ones(TR_SHAPE(2, 4))));
    }
    CHECK(status == (fails ? TR_STATE : TR_PEER));
    if (!fails) SAYS("rank 1 (pid ");
    SAYS(when == IN_FORWARD ? "trouble in forward" : "trouble in backward");
    CHECK(!is_here(net, "0") && !is_here(net, "1") && !is_here(net, ""));
    CHECK(tr_barrier(r->group) != TR_OK);
    CHECK(tr_status_of(tr_forward(net, tr_ones(TR_SHAPE(2, 4)))) != TR_OK);
    CHECK(!is_here(net, ""));
}

static void a_failure_of_one_rank_ends_all(void **state)
{
    (void)state;
    for (int when = IN_FORWARD; when <= IN_BACKWARD; when++) {
        run(2, fail_in_the_middle, &when);
        run(3, fail_in_the_middle, &when);
        run_tcp(2, fail_in_the_middle, NULL, &when);
    }
}

static tr_tensor *auxiliary_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    tr_tensor **state = tr_module_state(self); /* the parameter, then the loss */
    tr_tensor *y = tr_mul(inputs[0], state[0]);
    state[1] = tr_keep(tr_mean(y));
    return y;
}

/* The backward of an auxiliary loss meets no node of the unit's, only its parameters. */
static void fail_beside_the_unit(rank *r)
{
    bool fails = r->number == 1;
    tr_module *net = tr_module_new("auxiliary", 2 * sizeof(tr_tensor *), auxiliary_forward);
    tr_tensor **state = tr_module_state(net);
    state[0] = tr_module_parameter(net, "weight", tr_ones(TR_SHAPE(4)));
    OK(tr_fully_shard(net, r->group));
    OK(tr_status_of(tr_forward(net, tr_ones(TR_SHAPE(2, 4)))));
    tr_tensor *loss = fails ? tr_apply(&troubled, NULL, &state[1], 1, NULL) : state[1];
    tr_status status = tr_backward(loss);
    tr_release(state[1]);
    if (fails) wait_until_given_up(r);
    CHECK(status == (fails ? TR_STATE : TR_PEER));
    SAYS("trouble in backward");
    if (!fails) say_given_up(r);
}

static void a_failure_beside_a_unit_is_told(void **state)
{
    (void)state;
    run(2, fail_beside_the_unit, NULL);
}

/* A rank that goes, in the midst of a step. */
static void leave_early(rank *r)
{
    tr_module *net = make_net(NEVER);
    OK(shard(net, r->group));
    tr_tensor *y = tr_forward(net, tr_ones(TR_SHAPE(2, 4)));
    OK(tr_status_of(y));
    if (r->number == 1) {
        OK(tr_leave(r->group));
        return;
    }
    CHECK(tr_backward(tr_mean(y)) == TR_PEER);
    SAYS("rank 1");
    CHECK(!is_here(net, "0") && !is_here(net, "1") && !is_here(net, ""));
}

static void a_rank_that_leaves_ends_a_backward(void **state)
{
    (void)state;
    run(2, leave_early, NULL);
}

/* ---- Ranks that differ ---------------------------------------------------------------------------------------------- */

static void differ(rank *r)
{
    bool other = r->number == 1;
    tr_module *net = other ? tr_linear(4, 6) : tr_linear(4, 5);
    CHECK(tr_fully_shard(net, r->group) == TR_MISMATCH);
    SAYS("fully_shard: ranks differ: ");
    SAYS("\"weight\" f32 [6, 4] on rank 1");
    net = make_net(NEVER);
    CHECK(tr_fully_shard(net, r->group, .keep_after_forward = other) == TR_MISMATCH);
    SAYS("keep_after_forward is off on rank 0, on on rank 1");
    net = tr_sequential(tr_linear(4, 5), tr_activation_layer(other ? tr_relu : tr_gelu));
    CHECK(tr_fully_shard(net, r->group) == TR_MISMATCH);
    SAYS("activation (gelu) on rank 0, activation (relu) on rank 1");
    CHECK(tr_fully_shard(other ? NULL : net, r->group) == (other ? TR_INVALID : TR_PEER));
    OK(tr_fully_shard(make_net(NEVER), r->group)); /* the group is sound */
    OK(tr_leave(r->group));
}

static void ranks_that_differ_are_a_mismatch(void **state)
{
    (void)state;
    run(2, differ, NULL);
}

/* Other units come in another order: never a wrong sum. */
static void take_other_ways(rank *r)
{
    tr_module *a = tr_linear(4, 4, .seed = 1), *b = tr_linear(4, 4, .seed = 2);
    OK(tr_fully_shard(a, r->group));
    OK(tr_fully_shard(b, r->group));
    tr_tensor *y = tr_forward(r->number == 1 ? b : a, tr_ones(TR_SHAPE(1, 4)));
    CHECK(tr_status_of(y) == TR_MISMATCH);
    SAYS("module 1 at ");
    CHECK(!strstr(tr_error_message(), "fully_shard_run.c")); /* the program's lines */
}

static void other_units_at_a_time_are_a_mismatch(void **state)
{
    (void)state;
    run(2, take_other_ways, NULL);
}

/* ---- What refuses it ----------------------------------------------------------------------------------------------------- */

static tr_tensor *show_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)inputs;
    (void)n;
    return tr_reshape(*(tr_tensor **)tr_module_state(self), TR_SHAPE(-1));
}

static void refuse(rank *r)
{
    tr_module *net = make_net(NEVER);
    OK(shard(net, r->group));
    tr_tensor_list *p = tr_parameters(net);
    CHECK(tr_status_of(tr_ddp(net, r->group)) == TR_UNSUPPORTED);
    SAYS("ddp: \"0.weight\" is sharded by tr_fully_shard()");
    CHECK(tr_status_of(tr_lamb(p)) == TR_UNSUPPORTED);
    SAYS("lamb looks at whole parameters");
    tr_optimizer *opt = tr_adamw(p);
    CHECK(tr_shard_optimizer(opt, r->group) == TR_UNSUPPORTED);
    SAYS("shard_optimizer: \"0.weight\" is sharded by tr_fully_shard()");
    CHECK(tr_fully_shard(net, r->group) == TR_STATE);
    SAYS("\"sequential\" is sharded already");
    CHECK(tr_fully_shard(tr_module_find(net, "3"), r->group) == TR_STATE);
    SAYS("\"weight\" is sharded with a module around this one already");
    CHECK(tr_status_of(tr_forward(tr_data_parallel(net), tr_ones(TR_SHAPE(2, 4)))) == TR_UNSUPPORTED);
    SAYS("calls other ranks in its forward");
    CHECK(tr_module_to(net, tr_cpu(1)) == TR_STATE);
    SAYS("tr_module_to: an optimizer, DDP or tr_fully_shard() holds \"0.weight\" already: move a module before");
    CHECK(tr_status_of(tr_unshard_state(net, NULL)) == TR_INVALID);
    CHECK(tr_status_of(tr_unshard_state(NULL, tr_list_new())) == TR_INVALID);
    CHECK(tr_status_of(tr_shard_state(net, NULL)) == TR_INVALID);
}

static void refuse_before(rank *r)
{
    tr_module *net = make_net(NEVER);
    CHECK(tr_fully_shard(net, NULL) == TR_INVALID);
    OK(tr_status_of(tr_adamw(tr_parameters(net))));
    CHECK(tr_fully_shard(net, r->group) == TR_STATE);
    SAYS("an optimizer or DDP holds \"0.weight\" already");
    net = tr_column_linear(4, 6, .group = r->group, .seed = 1);
    CHECK(tr_fully_shard(net, r->group) == TR_UNSUPPORTED);
    SAYS("\"weight\" is a shard of what several ranks have together already");
    net = tr_sequential(tr_linear(4, 5), tr_linear(5, 3, .dtype = TR_F64));
    CHECK(tr_fully_shard(net, r->group) == TR_UNSUPPORTED);
    SAYS("\"1.weight\" is f64 on cpu:0, and \"0.weight\" f32 on cpu:0");
    OK(tr_fully_shard(tr_module_find(net, "1"), r->group)); /* apart they are two units */
    OK(tr_fully_shard(net, r->group));
    net = tr_module_new("holder", 0, NULL);
    tr_module *tied = tr_module_add(net, "tied", tr_linear(4, 4));
    CHECK(tr_fully_shard(net, r->group) == TR_INVALID);
    SAYS("\"holder\" has no forward");
    tr_tensor *weight = tr_list_find(tr_parameters(tied), "weight");
    OK(tr_fully_shard(tied, r->group));
    tr_module *user = tr_module_new("user", sizeof(tr_tensor *), show_forward);
    *(tr_tensor **)tr_module_state(user) = tr_module_parameter(user, "weight", tr_randn(1, TR_SHAPE(2, 2)));
    CHECK(tr_status_of(tr_module_parameter(user, "other", weight)) == TR_STATE); /* its memory is away */
    SAYS("the memory of this parameter is on other ranks");
    OK(tr_leave(r->group));
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    run(2, refuse, NULL);
    run(2, refuse_before, NULL);
}

/* These break the group: the others would wait. */
static void use_outside(rank *r)
{
    int which = *(const int *)r->arg;
    tr_tensor *x = tr_ones(TR_SHAPE(2, 4));
    if (which == 0) { /* a part of a unit alone */
        tr_module *net = tr_sequential(tr_linear(4, 4), tr_linear(4, 4));
        OK(tr_fully_shard(net, r->group));
        CHECK(tr_status_of(tr_forward(tr_module_find(net, "0"), x)) == TR_STATE);
        SAYS("a module whose forward is not under way");
    } else if (which == 1) {
        tr_module *net = make_net(NEVER);
        OK(shard(net, r->group));
        tr_optimizer *opt = tr_adamw(tr_parameters(net));
        OK(tr_step_in_backward(opt, true));
        CHECK(tr_status_of(tr_forward(net, x)) == TR_UNSUPPORTED || r->number == 1);
        SAYS("tr_step_in_backward()");
    } else if (which == 2) { /* an output that would show memory that goes */
        tr_module *net = tr_module_new("show", sizeof(tr_tensor *), show_forward);
        *(tr_tensor **)tr_module_state(net) = tr_module_parameter(net, "weight", tr_randn(1, TR_SHAPE(4, 4)));
        OK(tr_fully_shard(net, r->group));
        CHECK(tr_status_of(tr_forward(net, x)) != TR_OK);
        SAYS("shows a parameter");
    } else { /* a step between forward and backward */
        tr_module *net = make_net(NEVER);
        OK(shard(net, r->group));
        tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 1);
        OK(tr_backward(tr_sum(tr_forward(net, x))));
        tr_tensor *y = tr_forward(net, x);
        OK(tr_step(opt));
        CHECK(tr_backward(tr_sum(y)) != TR_OK);
        SAYS("written to after the forward");
    }
}

static void what_is_used_outside_its_forward_is_an_error(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++) run(2, use_outside, &which);
}

/* A distributed context, whose gradients are not at the leaves. */
static void walk_in_a_context(rank *r)
{
    dist_worker w;
    OK(dist_begin(&w, r->group));
    tr_group *own = tr_group_split(r->group, 0, r->number);
    tr_module *net = make_net(NEVER);
    OK(shard(net, own));
    {
        TR_DIST_CONTEXT(w.rpc, context);
        tr_status status = tr_dist_backward(context, tr_mean(tr_forward(net, tr_ones(TR_SHAPE(2, 4)))));
        CHECK(status == TR_UNSUPPORTED || status == TR_PEER);
        SAYS("fully_shard: a distributed context keeps gradients of whole parameters");
    }
    CHECK(!is_here(net, "0") && !is_here(net, "1") && !is_here(net, ""));
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

static void distributed_contexts_are_refused(void **state)
{
    (void)state;
    run(DIST_WORKERS, walk_in_a_context, NULL);
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_of_one_rank_ends_all),
        cmocka_unit_test(a_failure_beside_a_unit_is_told),
        cmocka_unit_test(a_rank_that_leaves_ends_a_backward),
        cmocka_unit_test(ranks_that_differ_are_a_mismatch),
        cmocka_unit_test(other_units_at_a_time_are_a_mismatch),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(what_is_used_outside_its_forward_is_an_error),
        cmocka_unit_test(distributed_contexts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
