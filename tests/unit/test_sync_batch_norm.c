/* Batch norm over the ranks of a group: outputs, running statistics and gradients are those of one process with the
 * whole batch, however it is shared out, alone and in a net under DDP; and those that PyTorch gives the whole batch, from
 * tests/recorded/sync_batch_norm.safetensors (record_sync_batch_norm.py). */
#include "comm_ranks.h"
#include "recorded.h"

#include "tensor/tensor.h"

#include <trireme/trireme.h>

#include <math.h>
#include <stdlib.h>

enum { BATCH = 6, CHANNELS = 3, SIDE = 4 };

static double worst(tr_tensor *a, tr_tensor *b)
{
    tr_tensor *one = tr_cast(tr_detach(a), TR_F64), *other = tr_cast(tr_detach(b), TR_F64);
    tr_tensor *difference = tr_max(tr_abs(tr_sub(one, other)));
    return tr_status_of(difference) == TR_OK ? tr_item(difference) : (double)INFINITY;
}

/* Channels-last or row-major, far from zero; the same on every rank. */
static tr_tensor *images(uint64_t seed, tr_dtype dtype, bool last)
{
    tr_tensor *rows = tr_affine(tr_randn(seed, TR_SHAPE(BATCH, SIDE, SIDE, CHANNELS), .dtype = TR_F64), 2, 5);
    tr_tensor *x = tr_permute(tr_cast(rows, dtype), (const int[]){0, 3, 1, 2}, 4);
    return last ? x : tr_contiguous(x);
}

typedef struct norm {
    tr_tensor *x, *weight, *bias, *mean, *var, *y;
} norm;

/* Samples [begin, end) of the batch through the op; backward from the same samples of g. */
static tr_status normalize(norm *n, tr_group *group, tr_dtype dtype, bool last, int64_t begin, int64_t end)
{
    n->x = tr_require_grad(tr_slice(images(1, dtype, last), 0, begin, end));
    n->weight = tr_require_grad(tr_cast(tr_rand(2, TR_SHAPE(CHANNELS)), dtype));
    n->bias = tr_require_grad(tr_cast(tr_rand(3, TR_SHAPE(CHANNELS)), dtype));
    n->mean = tr_zeros(TR_SHAPE(CHANNELS));
    n->var = tr_ones(TR_SHAPE(CHANNELS));
    n->y = group ? tr_sync_batch_norm_op(group, n->x, .weight = n->weight, .bias = n->bias, .running_mean = n->mean,
                                         .running_var = n->var, .training = true, .eps = 1e-3)
                 : tr_batch_norm_op(n->x, .weight = n->weight, .bias = n->bias, .running_mean = n->mean,
                                    .running_var = n->var, .training = true, .eps = 1e-3);
    tr_tensor *g = tr_slice(images(4, dtype, false), 0, begin, end);
    return tr_backward(tr_sum(tr_mul(n->y, g)));
}

/* A rank's gradient of a parameter is its part: their sum is the whole's. */
static tr_tensor *summed(tr_group *group, tr_tensor *grad)
{
    return tr_all_reduce_op(group, tr_cast(grad, TR_F64));
}

static void check_dtype(rank *r, tr_dtype dtype, bool last, const int64_t *bounds, double bound)
{
    TR_SCOPE;
    norm whole, own;
    int64_t begin = bounds[r->number], end = bounds[r->number + 1];
    OK(normalize(&whole, NULL, dtype, last, 0, BATCH));
    OK(normalize(&own, r->group, dtype, last, begin, end));
    CHECK(worst(own.mean, whole.mean) < bound && worst(own.var, whole.var) < bound);
    CHECK(worst(summed(r->group, tr_grad(own.weight)), tr_grad(whole.weight)) < 100 * bound);
    CHECK(worst(summed(r->group, tr_grad(own.bias)), tr_grad(whole.bias)) < 100 * bound);
    if (begin == end) return;
    CHECK(worst(own.y, tr_slice(whole.y, 0, begin, end)) < bound);
    CHECK(worst(tr_grad(own.x), tr_slice(tr_grad(whole.x), 0, begin, end)) < 10 * bound);
}

static void shares(rank *r)
{
    static const int64_t two[] = {0, 2, BATCH}, three[] = {0, 3, 3, BATCH}; /* the second of three has nothing */
    const int64_t *bounds = r->world == 2 ? two : three;
    for (int last = 0; last < 2; last++) {
        check_dtype(r, TR_F32, last, bounds, 1e-5);
        check_dtype(r, TR_F64, last, bounds, 1e-6); /* running statistics are f32 */
        check_dtype(r, TR_BF16, last, bounds, 0.06);
    }
}

static void test_as_one_process(void **state)
{
    (void)state;
    run(2, shares, NULL);
    run(3, shares, NULL);
}

/* ---- PyTorch's --------------------------------------------------------------------------------------------------- */

enum { STEPS = 2 };

/* A step over samples [begin, end): forward and backward, compared with the recorded ones of these samples. */
static void recorded_step(rank *r, const tr_tensor_list *file, const norm *n, int step, int64_t begin, int64_t end)
{
    TR_SCOPE;
    tr_tensor *weight = tr_require_grad(tr_detach(n->weight)), *bias = tr_require_grad(tr_detach(n->bias));
    tr_tensor *x = tr_require_grad(tr_contiguous(tr_slice(recorded_find(file, "%d.x", step), 0, begin, end)));
    tr_tensor *y = tr_sync_batch_norm_op(r->group, x, .weight = weight, .bias = bias, .running_mean = n->mean,
                                         .running_var = n->var, .training = true, .momentum = 0.3, .eps = 1e-3);
    OK(tr_backward(tr_sum(tr_mul(y, tr_slice(recorded_find(file, "%d.g", step), 0, begin, end)))));
    CHECK(recorded_distance(summed(r->group, tr_grad(weight)), recorded_find(file, "%d.dweight", step)) < 1e-5);
    CHECK(recorded_distance(summed(r->group, tr_grad(bias)), recorded_find(file, "%d.dbias", step)) < 1e-5);
    if (begin == end) return;
    CHECK(recorded_distance(y, tr_slice(recorded_find(file, "%d.y", step), 0, begin, end)) < 1e-5);
    CHECK(recorded_distance(tr_grad(x), tr_slice(recorded_find(file, "%d.dx", step), 0, begin, end)) < 1e-5);
}

static void as_recorded(rank *r)
{
    static const int64_t two[] = {0, 2, BATCH}, three[] = {0, 3, 3, BATCH};
    const int64_t *bounds = r->world == 2 ? two : three, begin = bounds[r->number], end = bounds[r->number + 1];
    TR_SCOPE;
    tr_tensor_list *file = recorded("sync_batch_norm");
    norm n = {.weight = recorded_find(file, "weight"),
              .bias = recorded_find(file, "bias"),
              .mean = tr_zeros(TR_SHAPE(CHANNELS)),
              .var = tr_ones(TR_SHAPE(CHANNELS))};
    for (int step = 0; step < STEPS; step++) recorded_step(r, file, &n, step, begin, end);
    CHECK(recorded_distance(n.mean, recorded_find(file, "running_mean")) < 1e-5);
    CHECK(recorded_distance(n.var, recorded_find(file, "running_var")) < 1e-5);
    tr_tensor *x = recorded_find(file, "%d.x", STEPS - 1);
    tr_tensor *y = tr_sync_batch_norm_op(r->group, x, .weight = n.weight, .bias = n.bias, .running_mean = n.mean,
                                         .running_var = n.var, .eps = 1e-3);
    CHECK(recorded_distance(y, recorded_find(file, "evaluated")) < 1e-5);
}

static void test_as_pytorch(void **state)
{
    (void)state;
    run(2, as_recorded, NULL);
    run(3, as_recorded, NULL);
}

/* ---- A net ---------------------------------------------------------------------------------------------------------
 */

static tr_module *net_new(void)
{
    return tr_sequential(tr_conv2d(CHANNELS, 4, 3, .padding = 1, .seed = 1), tr_batch_norm2d(4, .relu = true),
                         tr_conv2d(4, 4, 3, .seed = 2), tr_batch_norm2d(4), tr_flatten_layer(),
                         tr_linear(16, 5, .seed = 3));
}

static tr_tensor *loss_of(tr_module *net, int64_t begin, int64_t end)
{
    tr_tensor *x = tr_slice(images(7, TR_F32, false), 0, begin, end);
    tr_tensor *y = tr_slice(tr_arange(BATCH, TR_I64, tr_cpu(0)), 0, begin, end);
    return tr_mean(
        tr_mul(tr_forward(net, x), tr_forward(net, tr_add(x, tr_cast(tr_reshape(y, TR_SHAPE(-1, 1, 1, 1)), TR_F32)))));
}

static void nets(rank *r)
{
    TR_SCOPE;
    tr_module *alone = net_new(), *shared = net_new();
    OK(tr_convert_sync_batch_norm(shared, r->group));
    tr_module *ddp = tr_ddp(shared, r->group, .bucket_mb = 1e-4);
    tr_optimizer *one = tr_sgd(tr_parameters(alone), .lr = 0.1, .momentum = 0.9);
    tr_optimizer *all = tr_sgd(tr_parameters(shared), .lr = 0.1, .momentum = 0.9);
    int64_t share = BATCH / r->world, begin = share * r->number;
    for (int step = 0; step < 4; step++) {
        TR_SCOPE;
        tr_zero_grad(one);
        tr_zero_grad(all);
        OK(tr_backward(loss_of(alone, 0, BATCH)));
        OK(tr_backward(loss_of(ddp, begin, begin + share)));
        OK(tr_step(one));
        OK(tr_step(all));
    }
    tr_tensor_list *expected = tr_state_dict(alone), *got = tr_state_dict(shared);
    CHECK(tr_list_count(expected) == tr_list_count(got));
    for (int i = 0; i < tr_list_count(got); i++) CHECK(worst(tr_list_at(got, i), tr_list_at(expected, i)) < 1e-3);
    OK(tr_eval(alone));
    OK(tr_eval(ddp));
    CHECK(worst(loss_of(ddp, 0, 2), loss_of(alone, 0, 2)) < 1e-3);
}

static void test_a_net_under_ddp(void **state)
{
    (void)state;
    run(2, nets, NULL);
    run(3, nets, NULL);
}

/* As the plain one does: in f32, from x of 16 bits. */
static void under_autocast(rank *r)
{
    TR_SCOPE;
    TR_AUTOCAST(TR_BF16);
    tr_module *alone = net_new(), *shared = net_new();
    OK(tr_convert_sync_batch_norm(shared, r->group));
    int64_t share = BATCH / r->world, begin = share * r->number;
    tr_tensor *one = loss_of(alone, 0, BATCH), *part = loss_of(shared, begin, begin + share);
    OK(tr_backward(one));
    OK(tr_backward(part));
    /* The loss is a mean of as many on each rank. */
    CHECK(fabs(tr_item(summed(r->group, tr_detach(part))) / r->world - tr_item(one)) < 0.02 * fabs(tr_item(one)));
    for (int i = 0; i < tr_list_count(tr_parameters(alone)); i++) {
        tr_tensor *expected = tr_grad(tr_list_at(tr_parameters(alone), i));
        tr_tensor *got = tr_affine(summed(r->group, tr_grad(tr_list_at(tr_parameters(shared), i))), 1.0 / r->world, 0);
        CHECK(worst(got, expected) < 0.03);
    }
}

static void test_under_autocast(void **state)
{
    (void)state;
    run(2, under_autocast, NULL);
}

static void refusals(rank *r)
{
    TR_SCOPE;
    tr_tensor *x = tr_zeros(TR_SHAPE(r->number == 0 ? 1 : 0, 2));
    CHECK(tr_status_of(tr_sync_batch_norm_op(NULL, x, .training = true)) == TR_INVALID);
    CHECK(tr_status_of(tr_sync_batch_norm_op(r->group, tr_zeros(TR_SHAPE(3)), .training = true)) == TR_SHAPE);
    SAYS("[batch, channels");
    CHECK(tr_status_of(tr_sync_batch_norm_op(r->group, x, .weight = tr_ones(TR_SHAPE(3)), .training = true)) ==
          TR_SHAPE);
    SAYS("weight is");
    CHECK(tr_status_of(tr_sync_batch_norm_op(r->group, x, .training = true)) == TR_SHAPE);
    SAYS("all ranks together have 1 numbers for each channel");
    CHECK(tr_convert_sync_batch_norm(NULL, r->group) == TR_INVALID);
    /* Without .training it is the plain one. */
    tr_tensor *y = tr_sync_batch_norm_op(r->group, tr_ones(TR_SHAPE(2, 2)), .running_mean = tr_ones(TR_SHAPE(2)),
                                         .running_var = tr_ones(TR_SHAPE(2)));
    CHECK(worst(y, tr_zeros(TR_SHAPE(2, 2))) == 0);
}

/* The others would wait for its moments. */
static void one_without_x(rank *r)
{
    TR_SCOPE;
    tr_tensor *x = r->number ? tr_ones(TR_SHAPE(4, 2)) : tr_tensor_fail(TR_IO, "the disk is full");
    CHECK(tr_status_of(tr_sync_batch_norm_op(r->group, x, .training = true)) == (r->number ? TR_PEER : TR_IO));
    if (r->number) SAYS("rank 0 (pid ");
    SAYS("the disk is full");
    CHECK(tr_barrier(r->group) != TR_OK);
}

static void test_x_in_error_on_one_rank(void **state)
{
    (void)state;
    run(3, one_without_x, NULL);
}

static tr_tensor *loss_function(tr_tensor *y, tr_tensor *targets, void *user)
{
    (void)targets, (void)user;
    return tr_mean(y);
}

static tr_module *shared_norm(tr_group *group)
{
    tr_module *module = tr_sequential(tr_linear(2, 2), tr_batch_norm1d(2));
    return tr_convert_sync_batch_norm(module, group) == TR_OK ? module : NULL;
}

/* Threads of a rank that would call collectives of one group at the same time. */
static void threads_over_one_group(rank *r)
{
    TR_SCOPE;
    CHECK(tr_status_of(tr_data_parallel(shared_norm(r->group), .count = 2)) == TR_UNSUPPORTED);
    SAYS("\"1\", a batch_norm1d, calls other ranks");
    CHECK(tr_status_of(tr_data_parallel(tr_column_linear(2, 2, .group = r->group), .count = 2)) == TR_UNSUPPORTED);
    SAYS("column_linear, calls other ranks");
    OK(tr_status_of(tr_data_parallel(shared_norm(r->group), .count = 1)));
    tr_module *late = tr_sequential(tr_linear(2, 2), tr_batch_norm1d(2)), *model = tr_data_parallel(late, .count = 2);
    OK(tr_convert_sync_batch_norm(late, r->group));
    CHECK(tr_status_of(tr_forward(model, tr_ones(TR_SHAPE(4, 2)))) == TR_UNSUPPORTED);
    tr_group *second = tr_group_split(r->group, 0, r->number);
    tr_module *stages[] = {shared_norm(r->group), tr_linear(2, 2), tr_ddp(tr_linear(2, 2), r->group)};
    CHECK(tr_status_of(tr_pipeline_new(stages, 3, .loss = loss_function)) == TR_UNSUPPORTED);
    SAYS("stages 0 and 2 talk to other ranks over one group");
    stages[2] = tr_ddp(tr_linear(2, 2), second);
    OK(tr_status_of(tr_pipeline_new(stages, 3, .loss = loss_function)));
    OK(tr_leave(second));
}

static void test_threads_share_no_group(void **state)
{
    (void)state;
    run(2, threads_over_one_group, NULL);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    run(2, refusals, NULL);
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_one_process),
        cmocka_unit_test(test_as_pytorch),
        cmocka_unit_test(test_a_net_under_ddp),
        cmocka_unit_test(test_under_autocast),
        cmocka_unit_test(test_threads_share_no_group),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_x_in_error_on_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
