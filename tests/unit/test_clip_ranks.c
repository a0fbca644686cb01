/* Clipping where ranks have parts of a model: shards of parameters, stages of a pipeline, shares of the optimizer, or all of
 * them give the norm and the weights of one process. */
#include "comm_ranks.h"

#include "tensor/tensor.h"

#include <trireme/trireme.h>

#include <math.h>

enum { VOCAB = 24, DIM = 12, HIDDEN = 24, CLASSES = 12, BATCH = 16, STEPS = 4, STAGES = 2, MICRO_BATCHES = 2 };
static const double most = 0.1; /* gradients are larger: every step is clipped */

/* ---- The model, and one process that has it all --------------------------------------------------------------------- */

/* tp NULL: the whole layers. The biases of row layers and the norm are the same on all ranks. */
static tr_module *make_stage(int stage, tr_group *tp)
{
    if (stage == 0 && !tp)
        return tr_sequential(tr_embedding(VOCAB, DIM, .seed = 5), tr_linear(DIM, HIDDEN, .seed = 6), tr_activation_layer(tr_gelu),
            tr_linear(HIDDEN, DIM, .seed = 7), tr_layer_norm(DIM));
    if (stage == 0)
        return tr_sequential(tr_vocab_parallel_embedding(VOCAB, DIM, .group = tp, .seed = 5),
            tr_column_linear(DIM, HIDDEN, .group = tp, .seed = 6), tr_activation_layer(tr_gelu),
            tr_row_linear(HIDDEN, DIM, .group = tp, .seed = 7), tr_layer_norm(DIM));
    if (!tp) return tr_sequential(tr_linear(DIM, HIDDEN, .seed = 8), tr_activation_layer(tr_tanh), tr_linear(HIDDEN, CLASSES, .seed = 9));
    return tr_sequential(tr_column_linear(DIM, HIDDEN, .group = tp, .seed = 8), tr_activation_layer(tr_tanh),
        tr_row_linear(HIDDEN, CLASSES, .group = tp, .seed = 9));
}

static tr_tensor *ids(void)
{
    return tr_cast(tr_affine(tr_rand(4, TR_SHAPE(BATCH)), VOCAB - 0.01, 0), TR_I32);
}

static tr_tensor *targets(void)
{
    return tr_argmax(tr_randn(3, TR_SHAPE(BATCH, CLASSES)), 1);
}

/* Of plain SGD the weights show what the gradients were scaled by. */
static tr_optimizer *make_optimizer(tr_module *net)
{
    return tr_sgd(tr_parameters(net), .lr = 0.5);
}

typedef struct one_process {
    tr_module *stages[STAGES];
    double norms[STEPS];
} one_process;

static tr_status train_alone(one_process *alone)
{
    for (int s = 0; s < STAGES; s++) alone->stages[s] = make_stage(s, NULL);
    tr_module *net = tr_sequential(alone->stages[0], alone->stages[1]);
    tr_optimizer *opt = make_optimizer(net);
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        tr_zero_grad(opt);
        TR__TRY(tr_backward(tr_cross_entropy(tr_forward(net, ids()), targets())));
        TR__TRY(tr_clip_grad_norm(opt, most, &alone->norms[step]));
        if (!(alone->norms[step] > most)) return tr_fail(TR_INTERNAL, "a norm of %g is not clipped", alone->norms[step]);
        TR__TRY(tr_step(opt));
    }
    return TR_OK;
}

/* Are a stage's parameters this rank's part of those of one process? */
static void compare(rank *r, tr_group *tp, tr_module *stage, tr_module *whole)
{
    tr_tensor_list *parts = tr_parameters(stage), *all = tr_parameters(whole);
    CHECK(tr_list_count(parts) == tr_list_count(all));
    for (int i = 0; i < tr_list_count(parts); i++) {
        TR_NO_GRAD;
        tr_tensor *p = tr_list_at(parts, i), *w = tr_list_at(all, i);
        for (int d = 0; d < tr_ndim(p); d++) {
            int64_t n = tr_size(p, d), first = n == tr_size(w, d) ? 0 : n * tr_rank(tp);
            w = tr_slice(w, d, first, first + n);
        }
        CHECK(tr_item(tr_max(tr_abs(tr_sub(p, w)))) < 1e-5);
    }
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------------- */

typedef struct box {
    int dp, tp, pp;
    bool shard; /* the optimizer, over the data parallel ranks */
} box;

typedef struct part {
    tr_module *stages[STAGES]; /* NULL: another rank's */
    tr_module *net;            /* of those that are here */
    tr_pipeline *pipe;         /* NULL: all are */
} part;

static tr_tensor *mean_loss(tr_tensor *output, tr_tensor *target, void *user)
{
    (void)user;
    return tr_cross_entropy(output, target);
}

static part make_part(const tr_mesh *mesh, const box *b)
{
    tr_group *tp = tr_mesh_group(mesh, TR_MESH_TP), *pp = tr_mesh_group(mesh, TR_MESH_PP);
    part p = {0};
    for (int s = 0; s < STAGES; s++) p.stages[s] = b->pp == 1 || tr_rank(pp) == s ? make_stage(s, tp) : NULL;
    tr_module *here = b->pp == 1 ? tr_sequential(p.stages[0], p.stages[1]) : p.stages[tr_rank(pp)];
    p.net = tr_ddp(here, tr_mesh_group(mesh, TR_MESH_DP));
    if (b->pp > 1) p.pipe = tr_pipeline_new(&p.net, 1, .group = pp, .loss = mean_loss, .micro_batches = MICRO_BATCHES);
    return p;
}

static tr_status backward(const part *p, tr_group *dp)
{
    int64_t rows = BATCH / tr_world_size(dp), first = rows * tr_rank(dp);
    tr_tensor *x = tr_slice(ids(), 0, first, first + rows), *y = tr_slice(targets(), 0, first, first + rows);
    return p->pipe ? tr_pipeline_step(p->pipe, x, y, NULL) : tr_backward(tr_cross_entropy(tr_forward(p->net, x), y));
}

/* The norm is that of one process, and the same bits on all ranks, which scale alike. */
static void check_norm(rank *r, double norm, double expected)
{
    double least = norm, largest = norm;
    OK(tr_all_reduce(r->group, &least, 1, .dtype = TR_F64, .op = TR_MIN));
    OK(tr_all_reduce(r->group, &largest, 1, .dtype = TR_F64, .op = TR_MAX));
    CHECK(least == largest);
    CHECK(fabs(norm - expected) < 1e-5 * expected);
}

static void train_part(rank *r)
{
    const box *b = r->arg;
    one_process alone;
    OK(train_alone(&alone));
    tr_mesh *mesh = tr_mesh_new(r->group, .dp = b->dp, .tp = b->tp, .pp = b->pp);
    tr_group *dp = tr_mesh_group(mesh, TR_MESH_DP);
    part p = make_part(mesh, b);
    tr_optimizer *opt = make_optimizer(p.net);
    OK(tr_status_of(opt));
    if (b->shard) OK(tr_shard_optimizer(opt, dp));
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        double norm = 0;
        tr_zero_grad(opt);
        OK(backward(&p, dp));
        OK(tr_clip_grad_norm(opt, most, &norm));
        check_norm(r, norm, alone.norms[step]);
        CHECK(!r->failure[0]);
        OK(tr_step(opt));
    }
    for (int s = 0; s < STAGES && !r->failure[0]; s++)
        if (p.stages[s]) compare(r, tr_mesh_group(mesh, TR_MESH_TP), p.stages[s], alone.stages[s]);
    CHECK(!r->failure[0]);
    OK(tr_mesh_leave(mesh));
    OK(tr_leave(r->group));
}

static void run_box(box b)
{
    run(b.dp * b.tp * b.pp, train_part, &b);
}

static void shards_of_parameters_count_in_one_norm(void **state)
{
    (void)state;
    for (int tp = 1; tp <= 4; tp++) run_box((box){.dp = 1, .tp = tp, .pp = 1});
}

static void sharded_optimizers_take_the_norm_of_one(void **state)
{
    (void)state;
    run_box((box){.dp = 2, .tp = 1, .pp = 1, .shard = true});
    run_box((box){.dp = 4, .tp = 1, .pp = 1, .shard = true});
}

static void stages_on_ranks_count_in_one_norm(void **state)
{
    (void)state;
    run_box((box){.dp = 1, .tp = 1, .pp = 2});
}

static void meshes_count_all_once(void **state)
{
    (void)state;
    run_box((box){.dp = 2, .tp = 2, .pp = 1});
    run_box((box){.dp = 2, .tp = 2, .pp = 1, .shard = true});
    run_box((box){.dp = 2, .tp = 1, .pp = 2});
    run_box((box){.dp = 1, .tp = 2, .pp = 2});
    run_box((box){.dp = 2, .tp = 2, .pp = 2, .shard = true});
}

static void stages_in_a_process_count_in_one_norm(void **state)
{
    (void)state;
    TR_SCOPE;
    one_process alone;
    assert_int_equal(train_alone(&alone), TR_OK);
    tr_module *stages[STAGES] = {make_stage(0, NULL), make_stage(1, NULL)};
    tr_pipeline *pipe = tr_pipeline_new(stages, STAGES, .loss = mean_loss, .micro_batches = MICRO_BATCHES);
    tr_optimizer *opt = make_optimizer(tr_sequential(stages[0], stages[1]));
    for (int step = 0; step < STEPS; step++) {
        double norm;
        tr_zero_grad(opt);
        assert_int_equal(tr_pipeline_step(pipe, ids(), targets(), NULL), TR_OK);
        assert_int_equal(tr_clip_grad_norm(opt, most, &norm), TR_OK);
        assert_true(fabs(norm - alone.norms[step]) < 1e-5 * norm);
        assert_int_equal(tr_step(opt), TR_OK);
    }
}

/* ---- Parameters of a program's own ----------------------------------------------------------------------------------------- */

/* Each rank has two of the elements 1, 2, 3, …, and 10, which all have. Gradients are the values. */
static void clip_own(rank *r)
{
    float two[] = {(float)(2 * r->number + 1), (float)(2 * r->number + 2)}, common = 10;
    tr_module *net = tr_module_new("own", 0, NULL);
    tr_tensor *shard = tr_module_parameter(net, "shard", tr_from(two, TR_SHAPE(2)));
    tr_tensor *whole = tr_module_parameter(net, "whole", tr_from(&common, TR_SHAPE(1)));
    OK(tr_mark_shard(shard, r->group));
    OK(tr_mark_shard(shard, r->group)); /* again changes nothing */
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 1);
    OK(tr_backward(tr_affine(tr_add(tr_sum(tr_mul(shard, shard)), tr_sum(tr_mul(whole, whole))), 0.5, 0)));
    double norm, squares = 100;
    for (int i = 1; i <= 2 * r->world; i++) squares += i * i;
    OK(tr_clip_grad_norm(opt, 1, &norm));
    CHECK(fabs(norm - sqrt(squares)) < 1e-9);
    CHECK(fabs(tr_item(tr_grad(whole)) - 10 / norm) < 1e-6);

    CHECK(tr_mark_shard(NULL, r->group) == TR_INVALID);
    CHECK(tr_mark_shard(shard, NULL) == TR_INVALID);
    CHECK(tr_mark_shard(tr_ones(TR_SHAPE(2)), r->group) == TR_INVALID);
    SAYS("the tensor [2] is no parameter");
    OK(tr_leave(r->group));
    if (r->world > 1) CHECK(tr_clip_grad_norm(opt, 1, &norm) == TR_STATE); /* who has the other shards has gone */
}

static void shards_of_a_programs_own_are_marked(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) run(world, clip_own, NULL);
}

/* ---- What is not finite, and what is refused --------------------------------------------------------------------------------- */

static void overflow_on_one(rank *r)
{
    tr_module *net = make_stage(1, r->group);
    tr_optimizer *opt = make_optimizer(net);
    tr_grad_scaler *scaler = tr_grad_scaler_new(.scale = 4);
    tr_tensor *loss = tr_cross_entropy(tr_forward(net, tr_randn(1, TR_SHAPE(BATCH, DIM))), targets());
    OK(tr_backward(tr_scale_loss(scaler, loss)));
    if (r->number == 1) OK(tr_fill(tr_grad(tr_list_at(tr_parameters(net), 0)), INFINITY));
    CHECK(tr_clip_grad_norm(opt, 1, NULL) == TR_INVALID);
    SAYS("the norm is inf, nothing was changed");
    SAYS(r->number == 1 ? "\"0.weight\" is the first" : "another rank's is not");
    bool finite = true;
    OK(tr_unscale_grad(scaler, opt, &finite));
    CHECK(!finite);
    if (r->number == 1) CHECK(tr_unscale_grad(scaler, opt, NULL) == TR_STATE); /* alone: no call of the others' meets it */
    OK(tr_scaled_step(scaler, opt)); /* is left out on both */
    CHECK(!tr_update_scale(scaler) && tr_grad_scale(scaler) == 2);
    OK(tr_barrier(r->group));
    OK(tr_leave(r->group));
}

static void what_overflows_on_one_rank_is_known_to_all(void **state)
{
    (void)state;
    run(2, overflow_on_one, NULL);
}

/* A bad argument on one rank: the ranks that have other parts of the model hear of it, wherever those are, and clip again. */
static void refuse_on_one(rank *r)
{
    tr_mesh *mesh = tr_mesh_new(r->group, .dp = 1, .tp = 2, .pp = 2);
    tr_group *dp = tr_mesh_group(mesh, TR_MESH_DP);
    part p = make_part(mesh, &(box){.dp = 1, .tp = 2, .pp = 2});
    tr_optimizer *opt = make_optimizer(p.net);
    tr_grad_scaler *scaler = tr_grad_scaler_new(.scale = 1);
    OK(backward(&p, dp));
    for (int bad = 0; bad < r->world; bad++) {
        bool fails = r->number == bad;
        CHECK(tr_clip_grad_norm(opt, fails ? -1 : 1, NULL) == (fails ? TR_INVALID : TR_PEER));
        SAYS("tr_clip_grad_norm: max_norm must be more than 0, not -1");
        if (!fails) SAYS(" failed: ");
        CHECK(tr_unscale_grad(fails ? NULL : scaler, opt, NULL) == (fails ? TR_INVALID : TR_PEER));
        SAYS("tr_unscale_grad: it takes a scaler and an optimizer, not NULL");
        CHECK(tr_scaled_step(fails ? NULL : scaler, opt) == (fails ? TR_INVALID : TR_PEER));
        SAYS("tr_scaled_step: it takes a scaler and an optimizer, not NULL");
    }
    OK(tr_clip_grad_norm(opt, 1, NULL));
    OK(tr_mesh_leave(mesh));
    OK(tr_leave(r->group));
}

static void a_bad_argument_of_one_rank_is_known_to_all(void **state)
{
    (void)state;
    run(4, refuse_on_one, NULL);
}

static void make_refused(rank *r)
{
    tr_module *net = tr_column_linear(DIM, HIDDEN, .group = r->group, .no_bias = true);
    CHECK(tr_status_of(tr_lamb(tr_parameters(net))) == TR_UNSUPPORTED);
    SAYS("lamb: \"weight\" is a shard of what several ranks have together");
    CHECK(tr_status_of(tr_lars(tr_parameters(net))) == TR_UNSUPPORTED);
    CHECK(tr_status_of(tr_muon(tr_parameters(net))) == TR_UNSUPPORTED);
    tr_rpc *rpc = tr_rpc_start(r->group);
    OK(tr_dist_start(rpc));
    tr_rref *weight = tr_rref_new(rpc, tr_value_tensor(tr_list_at(tr_parameters(net), 0)));
    tr_dist_optimizer *opt = tr_dist_optimizer_new(rpc, &weight, 1, TR_DIST_SGD(.lr = 1));
    OK(tr_status_of(opt));
    TR_DIST_CONTEXT(rpc, context);
    CHECK(tr_dist_clip_grad_norm(opt, context, 1, NULL) == TR_UNSUPPORTED);
    SAYS("tr_dist_clip_grad_norm: parameter 0 is a shard");
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(rpc));
}

static void what_would_take_a_shard_for_the_whole_is_refused(void **state)
{
    (void)state;
    run(2, make_refused, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_of_parameters_count_in_one_norm),
        cmocka_unit_test(sharded_optimizers_take_the_norm_of_one),
        cmocka_unit_test(stages_on_ranks_count_in_one_norm),
        cmocka_unit_test(meshes_count_all_once),
        cmocka_unit_test(stages_in_a_process_count_in_one_norm),
        cmocka_unit_test(shards_of_a_programs_own_are_marked),
        cmocka_unit_test(what_overflows_on_one_rank_is_known_to_all),
        cmocka_unit_test(a_bad_argument_of_one_rank_is_known_to_all),
        cmocka_unit_test(what_would_take_a_shard_for_the_whole_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
