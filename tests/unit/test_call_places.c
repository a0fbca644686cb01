/* Collectives that the library makes are told as made where the program called it. */
#include "comm_ranks.h"
#include "dist_nets.h"

#include <trireme/trireme.h>

/* "… at tests/unit/test_call_places.c:31)": the failure that rank 1 has left names a line of this file. */
#define TELLS(lines)                                                                                  \
    do {                                                                                              \
        char place[80];                                                                               \
        snprintf(place, sizeof place, "test_call_places.c:%d)", (lines));                             \
        SAYS(place);                                                                                  \
        CHECK(!strstr(tr_error_message(), "src/"));                                                   \
    } while (0)

typedef enum call {
    EVALUATE, BACKWARD, FIT, STEP, MAKE_DDP, MAKE_TRAINER, MAKE_MESH, MAKE_LOADER, MAKE_SAMPLER,
    PIPELINE, CLIP, UNSCALE, SCALED_STEP, SHARD, SHARDED_STEP, SHARDED_STATE, SPLIT, LIST, START_RPC, CALLS
} call;

static tr_tensor *mean_loss(tr_tensor *y, tr_tensor *target, void *user)
{
    (void)target, (void)user;
    return tr_mean(y);
}

/* Rank 1 leaves before the call; rank 0 fails in it. */
static void lose_a_rank(rank *r)
{
    TR_SCOPE;
    call which = *(const call *)r->arg;
    tr_tensor *x = tr_randn(1, TR_SHAPE(8, 4)), *y = tr_zeros(TR_SHAPE(8), .dtype = TR_I64);
    tr_dataset *set = tr_dataset_tensors(x, y);
    tr_module *net = tr_linear(4, 2, .seed = 1), *ddp = NULL;
    tr_trainer *trainer = NULL;
    tr_pipeline *pipe = NULL;
    tr_optimizer *opt = NULL;
    tr_grad_scaler *scaler = tr_grad_scaler_new();
    if (which == CLIP || which == UNSCALE || which == SCALED_STEP) {
        OK(tr_mark_shard(tr_list_at(tr_parameters(net), 0), r->group));
        opt = tr_sgd(tr_parameters(net), .lr = 1);
        OK(tr_backward(tr_scale_loss(scaler, tr_mean(tr_forward(net, x)))));
    }
    if (which == SHARD || which == SHARDED_STEP || which == SHARDED_STATE) {
        opt = tr_adam(tr_parameters(net));
        OK(tr_backward(tr_mean(tr_forward(net, x))));
        if (which != SHARD) OK(tr_shard_optimizer(opt, r->group));
    }
    if (which == PIPELINE) {
        net = r->number ? tr_linear(2, 4, .seed = 2) : net;
        pipe = tr_pipeline_new(&net, 1, .loss = mean_loss, .group = r->group);
        OK(tr_pipeline_step(pipe, x, NULL, NULL));
    }
    if (which == BACKWARD) ddp = tr_ddp(net, r->group);
    tr_loader *loader = which == EVALUATE ? tr_loader_new(set, .batch = 4, .group = r->group) : NULL;
    int made = __LINE__ + 2;
    if (which == FIT || which == STEP)
        trainer = tr_classifier_trainer(net, set, .group = r->group, .global_batch = 8, .steps = 2);
    OK(tr_status_of(ddp));
    OK(tr_status_of(trainer));
    if (r->number == 1) {
        OK(tr_leave(r->group));
        return;
    }
    tr_score score;
    tr_metrics_row row;
    switch (which) {
    case EVALUATE:
        CHECK(tr_evaluate(net, loader, .score = &score) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case BACKWARD:
        CHECK(tr_backward(tr_mean(tr_forward(ddp, x))) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case FIT:
        CHECK(tr_fit(trainer) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case STEP:
        CHECK(tr_trainer_step(trainer, &row, &(bool){false}) == TR_PEER);
        TELLS(made);
        break;
    case MAKE_DDP:
        CHECK(tr_status_of(tr_ddp(net, r->group)) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case MAKE_TRAINER:
        CHECK(tr_status_of(tr_classifier_trainer(net, set, .group = r->group, .global_batch = 8)) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case MAKE_MESH:
        CHECK(tr_status_of(tr_mesh_new(r->group, .dp = 2)) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case MAKE_LOADER:
        CHECK(tr_status_of(tr_loader_new(set, .group = r->group)) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case MAKE_SAMPLER:
        CHECK(tr_status_of(tr_distributed_sampler(8, .group = r->group)) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case PIPELINE:
        CHECK(tr_pipeline_step(pipe, x, NULL, NULL) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case CLIP:
        CHECK(tr_clip_grad_norm(opt, 1, NULL) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case UNSCALE:
        CHECK(tr_unscale_grad(scaler, opt, NULL) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case SCALED_STEP:
        CHECK(tr_scaled_step(scaler, opt) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case SHARD:
        CHECK(tr_shard_optimizer(opt, r->group) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case SHARDED_STEP:
        CHECK(tr_step(opt) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case SHARDED_STATE:
        CHECK(tr_status_of(tr_optimizer_state(opt)) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case SPLIT:
        CHECK(tr_status_of(tr_group_split(r->group, 0, 0)) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case LIST:
        CHECK(tr_status_of(tr_group_new(r->group, (int[]){1, 0}, 2)) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    case START_RPC:
        CHECK(tr_status_of(tr_rpc_start(r->group, .name = "front")) == TR_PEER);
        TELLS(__LINE__ - 1);
        break;
    default: CHECK(false);
    }
}

static void a_line_of_the_program_is_told(void **state)
{
    (void)state;
    for (call which = EVALUATE; which < CALLS; which++) run(2, lose_a_rank, &which);
}

/* Buckets go out in hooks and at the end, on whichever thread runs the worker's part. */
static void lose_a_trainer(rank *r)
{
    TR_SCOPE;
    dist_worker w = {0};
    OK(dist_begin(&w, r->group));
    tr_group *trainers = tr_group_split(r->group, 0, r->number);
    tr_module *ddp = tr_ddp(dist_net(0), trainers, .bucket_mb = 1e-9);
    tr_tensor *x = tr_ones(TR_SHAPE(2, DIST_WIDTH), .dtype = TR_F64);
    OK(tr_barrier(r->group));
    {
        TR_DIST_CONTEXT(w.rpc, context);
        OK(tr_dist_backward(context, tr_sum(tr_forward(ddp, x))));
        if (r->number == 1) OK(tr_leave(trainers));
        else CHECK(tr_dist_backward(context, tr_sum(tr_forward(ddp, x))) == TR_PEER);
        if (r->number == 0) TELLS(__LINE__ - 1);
    }
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

static void a_distributed_backward_is_told(void **state)
{
    (void)state;
    run(2, lose_a_trainer, NULL);
}

/* A place holds as long as the call, and no longer: a function that has none tells the library's own line. */
static void after_the_call_it_is_forgotten(rank *r)
{
    TR_SCOPE;
    tr_module *ddp = tr_ddp(tr_linear(4, 2, .seed = 1), r->group);
    OK(tr_backward(tr_mean(tr_forward(ddp, tr_ones(TR_SHAPE(2, 4))))));
    if (r->number == 1) {
        OK(tr_leave(r->group));
        return;
    }
    CHECK(tr_check_replicas(r->group, tr_parameters(ddp)) == TR_PEER);
    SAYS("src/parallel/replicas.c:");
}

static void a_place_ends_with_its_call(void **state)
{
    (void)state;
    run(2, after_the_call_it_is_forgotten, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_of_the_program_is_told),
        cmocka_unit_test(a_distributed_backward_is_told),
        cmocka_unit_test(a_place_ends_with_its_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
