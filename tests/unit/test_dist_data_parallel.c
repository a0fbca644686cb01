/* Modules under tr_data_parallel() in distributed contexts: each worker's layer runs on two devices, and leaves in the context the
 * gradients of one process on one device. */
#include "dist_ranks.h"

#include <trireme/parallel.h>

#include <stdlib.h>

/* A worker, whose layer is under DataParallel. */
typedef struct member {
    dist_worker w;
    tr_module *inner;
} member;

static void begin(rank *r, member *m)
{
    OK(dist_begin(&m->w, r->group));
    m->inner = m->w.net;
    m->w.net = tr_data_parallel(m->inner);
    OK(tr_status_of(m->w.net));
    OK(tr_barrier(r->group));
}

static void end(rank *r, member *m)
{
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(m->w.rpc));
}

/* They are in the context, not at the leaves. */
static void check_context(rank *r, member *m, tr_module *const *nets)
{
    check_grads(r, &m->w, nets);
    for (int k = 0; k < DIST_PARAMETERS; k++) CHECK(!tr_grad(tr_list_at(tr_parameters(m->inner), k)));
}

/* ---- Backward ------------------------------------------------------------------------------------------------------------ */

static void run_pattern(rank *r, member *m, dist_pattern pattern, tr_dist_mode mode)
{
    TR_SCOPE;
    tr_module *nets[DIST_WORKERS];
    make_twins(nets);
    TR_DIST_CONTEXT(m->w.rpc, context);
    tr_tensor *x = dist_input(), *loss = dist_loss(&m->w, pattern, x), *twin = dist_loss_here(nets, pattern, x);
    CHECK(dist_difference(loss, twin) < 1e-12);
    for (int round = 0; round < 2; round++) {
        OK(tr_dist_backward(context, loss, .mode = mode, .retain_graph = round == 0));
        OK(tr_backward(twin, .retain_graph = round == 0));
        check_context(r, m, nets);
    }
}

static void run_patterns(rank *r)
{
    member m;
    begin(r, &m);
    for (int pattern = 0; r->number == 0 && pattern < DIST_PATTERN_COUNT && !r->failure[0]; pattern++)
        for (int mode = TR_DIST_FAST; mode <= TR_DIST_SMART && !r->failure[0]; mode++)
            run_pattern(r, &m, (dist_pattern)pattern, (tr_dist_mode)mode);
    end(r, &m);
}

static void every_pattern_leaves_the_gradients_of_one_process(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_patterns, NULL);
}

/* All workers train at the same time, each in contexts of its own through all layers. */
static void run_own_contexts(rank *r)
{
    member m;
    begin(r, &m);
    for (int i = 0; i < 20 && !r->failure[0]; i++) {
        TR_SCOPE;
        tr_module *nets[DIST_WORKERS];
        make_twins(nets);
        tr_tensor *x = tr_randn((uint64_t)(r->number * 100 + i), TR_SHAPE(5, DIST_WIDTH), .dtype = TR_F64), *twin = x;
        TR_DIST_CONTEXT(m.w.rpc, context);
        for (int k = 0; k < DIST_WORKERS; k++) {
            x = tr_future_tensor(tr_rpc_sync(m.w.rpc, tr_rpc_name(m.w.rpc, k), "layer", x));
            twin = tr_tanh(tr_forward(nets[k], twin));
        }
        OK(tr_dist_backward(context, tr_sum(x), .mode = i % 2 ? TR_DIST_SMART : TR_DIST_FAST));
        OK(tr_backward(tr_sum(twin)));
        check_context(r, &m, nets);
    }
    end(r, &m);
}

static void contexts_at_the_same_time_do_not_mix(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_own_contexts, NULL);
}

/* ---- Steps ---------------------------------------------------------------------------------------------------------------- */

/* Optimizers at the owners, after the backward or while it goes on, step as one does in one process. */
static void train(rank *r, member *m, bool early)
{
    enum { ALL = DIST_WORKERS * DIST_PARAMETERS };
    TR_SCOPE;
    tr_module *nets[DIST_WORKERS];
    tr_rref *parameters[ALL];
    make_twins(nets);
    tr_module *twin = tr_sequential(nets[0], nets[1], nets[2]);
    OK(dist_parameters(&m->w, parameters));
    for (int i = 0; i < ALL; i++) /* they begin as they are there */
        OK(tr_copy_into(tr_list_at(tr_parameters(twin), i), tr_future_tensor(tr_rref_to_here(parameters[i]))));
    tr_optimizer *twin_opt = tr_adamw(tr_parameters(twin), .lr = 0.1);
    tr_dist_optimizer *opt = tr_dist_optimizer_new(m->w.rpc, parameters, ALL, TR_DIST_ADAMW(.lr = 0.1));
    for (int step = 0; step < 4; step++) {
        TR_SCOPE;
        TR_DIST_CONTEXT(m->w.rpc, context);
        tr_zero_grad(twin_opt);
        if (early) OK(tr_dist_step_in_backward(opt, context));
        OK(tr_dist_backward(context, dist_loss(&m->w, DIST_FAN, dist_input())));
        OK(tr_backward(dist_loss_here(nets, DIST_FAN, dist_input())));
        OK(tr_dist_step(opt, context));
        OK(tr_step(twin_opt));
    }
    for (int i = 0; i < ALL; i++) {
        tr_tensor *there = tr_detach(tr_future_tensor(tr_rref_to_here(parameters[i])));
        CHECK(dist_difference(there, tr_detach(tr_list_at(tr_parameters(twin), i))) < 1e-12);
    }
}

static void run_steps(rank *r)
{
    member m;
    begin(r, &m);
    for (int early = 0; r->number == 0 && early < 2 && !r->failure[0]; early++) train(r, &m, early);
    end(r, &m);
}

static void optimizers_step_as_in_one_process(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_steps, NULL);
}

/* Parameters that another trainer steps between the forward and the backward are taken as they are then, as without replicas. */
static void run_written_to(rank *r)
{
    member m;
    begin(r, &m);
    if (r->number == 0) {
        TR_SCOPE;
        tr_tensor *gradients[2], *x = tr_randn(1, TR_SHAPE(6, DIST_WIDTH), .dtype = TR_F64);
        for (int wrapped = 0; wrapped < 2; wrapped++) {
            tr_module *net = tr_sequential(dist_net(3), tr_activation_layer(tr_tanh), dist_net(4));
            tr_tensor *first = tr_list_at(tr_parameters(net), 0), *later = tr_list_at(tr_parameters(net), 2);
            tr_module *model = wrapped ? tr_data_parallel(net) : net;
            TR_DIST_CONTEXT(m.w.rpc, context);
            tr_tensor *y = tr_forward(model, x), *loss = tr_sum(tr_mul(y, y));
            OK(tr_fill(tr_detach(later), 0.25));
            OK(tr_dist_backward(context, loss));
            gradients[wrapped] = tr_affine(tr_dist_grad(context, first), 1, 0);
            OK(tr_status_of(gradients[wrapped]));
        }
        CHECK(dist_difference(gradients[0], gradients[1]) < 1e-12);
    }
    end(r, &m);
}

static void parameters_that_were_stepped_are_taken_as_they_are(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_written_to, NULL);
}

/* ---- Together with others --------------------------------------------------------------------------------------------------- */

/* All workers are trainers whose replicas under DDP run on two devices each: the mean over the workers is in each one's context. */
static void run_ddp(rank *r)
{
    member m;
    begin(r, &m);
    tr_group *trainers = tr_group_split(r->group, 0, r->number);
    tr_module *twin = dist_net(9), *net = dist_net(9), *ddp = tr_ddp(tr_data_parallel(net), trainers);
    OK(tr_status_of(ddp));
    tr_tensor *losses = NULL;
    for (int k = 0; k < r->world; k++) {
        tr_tensor *y = tr_forward(twin, tr_randn(50 + (uint64_t)k, TR_SHAPE(5, DIST_WIDTH), .dtype = TR_F64)), *loss = tr_sum(tr_mul(y, y));
        losses = losses ? tr_add(losses, loss) : loss;
    }
    OK(tr_backward(tr_affine(losses, 1.0 / r->world, 0)));
    for (int mode = TR_DIST_FAST; mode <= TR_DIST_SMART; mode++) {
        TR_SCOPE;
        TR_DIST_CONTEXT(m.w.rpc, context);
        tr_tensor *y = tr_forward(ddp, tr_randn(50 + (uint64_t)r->number, TR_SHAPE(5, DIST_WIDTH), .dtype = TR_F64));
        OK(tr_dist_backward(context, tr_sum(tr_mul(y, y)), .mode = (tr_dist_mode)mode));
        for (int i = 0; i < DIST_PARAMETERS; i++) {
            tr_tensor *got = tr_dist_grad(context, tr_list_at(tr_parameters(net), i));
            CHECK(got && dist_difference(got, tr_grad(tr_list_at(tr_parameters(twin), i))) < 1e-12);
        }
    }
    end(r, &m);
}

static void ddp_averages_what_the_devices_add_up(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_ddp, NULL);
}

static void run_remote_inside(rank *r)
{
    member m;
    begin(r, &m);
    if (r->number == 0) {
        TR_SCOPE;
        tr_module *there = tr_remote_module(tr_remote(m.w.rpc, "w1", "net"));
        CHECK(tr_status_of(tr_data_parallel(tr_sequential(m.inner, there))) == TR_UNSUPPORTED);
        SAYS("data_parallel: \"1\" is a remote module");
    }
    end(r, &m);
}

static void remote_modules_inside_are_refused(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_remote_inside, NULL);
}

/* Replicas, too, run in the mode of who called, and draw as in one process. */
static void run_in_callers_mode(rank *r)
{
    member m;
    OK(dist_begin(&m.w, r->group));
    m.w.net = tr_data_parallel(tr_sequential(dist_net(1), tr_dropout_layer(0.5)));
    OK(tr_barrier(r->group));
    if (r->number == 0) {
        TR_SCOPE;
        tr_module *net = tr_sequential(tr_remote_module(tr_remote(m.w.rpc, "w1", "net")));
        tr_module *twin = tr_sequential(tr_sequential(dist_net(1), tr_dropout_layer(0.5)));
        tr_tensor *x = tr_randn(3, TR_SHAPE(5, DIST_WIDTH), .dtype = TR_F64);
        OK(tr_seed(net, 9, .step = 2));
        OK(tr_seed(twin, 9, .step = 2));
        for (int evaluate = 0; evaluate < 2; evaluate++) {
            CHECK(dist_difference(tr_detach(tr_forward(net, x)), tr_detach(tr_forward(twin, x))) < 1e-12);
            OK(tr_eval(net));
            OK(tr_eval(twin));
        }
    }
    end(r, &m);
}

static void replicas_run_in_the_callers_mode(void **state)
{
    (void)state;
    run(DIST_WORKERS, run_in_callers_mode, NULL);
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_leaves_the_gradients_of_one_process),
        cmocka_unit_test(contexts_at_the_same_time_do_not_mix),
        cmocka_unit_test(optimizers_step_as_in_one_process),
        cmocka_unit_test(parameters_that_were_stepped_are_taken_as_they_are),
        cmocka_unit_test(ddp_averages_what_the_devices_add_up),
        cmocka_unit_test(remote_modules_inside_are_refused),
        cmocka_unit_test(replicas_run_in_the_callers_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
