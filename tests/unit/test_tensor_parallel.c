/* Collectives as ops, meshes, and layers in slices: ranks as threads give what the whole layers give on one. */
#include "comm_ranks.h"

#include "tensor/tensor.h"

#include <trireme/trireme.h>

#include <math.h>
#include <stdlib.h>

static double worst(tr_tensor *a, tr_tensor *b)
{
    tr_tensor *difference = tr_max(tr_abs(tr_sub(tr_detach(a), tr_detach(b))));
    return tr_status_of(difference) == TR_OK ? tr_item(difference) : (double)INFINITY;
}

static tr_tensor *slice_of(tr_tensor *t, int dim, const rank *r)
{
    int64_t n = tr_size(t, dim) / r->world;
    return tr_slice(t, dim, r->number * n, (r->number + 1) * n);
}

/* ---- Ops ----------------------------------------------------------------------------------------------------------- */

/* What each rank has of x, and of the gradient of y; integers, so that sums are exact. */
static tr_tensor *numbers(int64_t seed, int of_rank, int64_t rows, int64_t columns)
{
    float values[2 * 12 * 12];
    for (int64_t i = 0; i < 2 * rows * columns; i++) values[i] = (float)((i * 7 + of_rank * 13 + seed * 5) % 11 - 5);
    return tr_from(values, TR_SHAPE(2, rows, columns));
}

static tr_tensor *sum_of(int64_t seed, int ranks, int64_t rows, int64_t columns)
{
    tr_tensor *sum = numbers(seed, 0, rows, columns);
    for (int k = 1; k < ranks; k++) sum = tr_add(sum, numbers(seed, k, rows, columns));
    return sum;
}

static tr_tensor *joined(int64_t seed, int ranks, int dim, int64_t rows, int64_t columns)
{
    tr_tensor *parts[RANKS_MOST];
    for (int k = 0; k < ranks; k++) parts[k] = numbers(seed, k, rows, columns);
    return tr_cat(parts, ranks, dim);
}

/* The op's output and gradient, whose expected values are computed from all ranks' numbers. x: strided. */
static void check_op(rank *r, tr_collective_op_kind kind, int dim)
{
    TR_SCOPE;
    int W = r->world;
    bool widens = kind == TR_GATHER_FROM_OP || kind == TR_ALL_GATHER_OP;
    bool narrows = kind == TR_SCATTER_TO_OP || kind == TR_REDUCE_SCATTER_OP;
    int64_t x_rows = narrows && dim == 1 ? 2 * W : 2, x_columns = narrows && dim == 2 ? 3 * W : 3;
    int64_t y_rows = widens && dim == 1 ? 2 * W : 2, y_columns = widens && dim == 2 ? 3 * W : 3;
    tr_tensor *x = tr_contiguous(tr_transpose(numbers(1, r->number, x_rows, x_columns), 1, 2));
    x = tr_require_grad(x);
    tr_tensor *y = tr_collective_op(kind, r->group, tr_transpose(x, 1, 2), dim, __FILE__, __LINE__);
    OK(tr_status_of(y));

    tr_tensor *sum = sum_of(1, W, x_rows, x_columns), *mine = numbers(1, r->number, x_rows, x_columns);
    tr_tensor *expected = kind == TR_COPY_TO_OP     ? mine
                          : kind == TR_ALL_REDUCE_OP ? sum
                          : kind == TR_SCATTER_TO_OP ? slice_of(mine, dim, r)
                          : widens                   ? joined(1, W, dim, 2, 3)
                                                     : slice_of(sum, dim, r);
    CHECK(worst(y, expected) == 0);

    tr_tensor *dy = numbers(2, r->number, y_rows, y_columns), *dy_sum = sum_of(2, W, y_rows, y_columns);
    OK(tr_backward(y, .gradient = dy));
    tr_tensor *dx = kind == TR_COPY_TO_OP     ? dy_sum
                    : kind == TR_ALL_REDUCE_OP ? dy
                    : narrows                  ? joined(2, W, dim, 2, 3)
                    : kind == TR_GATHER_FROM_OP ? slice_of(dy, dim, r)
                                                : slice_of(dy_sum, dim, r);
    CHECK(worst(tr_transpose(tr_grad(x), 1, 2), dx) == 0);
}

static void check_ops(rank *r)
{
    for (int dim = 1; dim <= 2; dim++)
        for (int kind = TR_COPY_TO_OP; kind <= TR_REDUCE_SCATTER_OP; kind++) {
            check_op(r, (tr_collective_op_kind)kind, dim);
            if (r->failure[0]) return;
        }
    tr_tensor *x = numbers(0, 0, 2, 3);
    CHECK(tr_status_of(tr_scatter_to_op(r->group, x, 3)) == TR_SHAPE);
    CHECK(tr_status_of(tr_all_reduce_op(NULL, x)) == TR_INVALID);
    CHECK(tr_status_of(tr_all_reduce_op(r->group, NULL)) == TR_INVALID);
    if (r->world == 4) {
        CHECK(tr_status_of(tr_reduce_scatter_op(r->group, x, -1)) == TR_SHAPE);
        SAYS("dimension 2 of [2, 2, 3] does not divide by 4 ranks");
    }
    OK(tr_leave(r->group));
}

/* The others would wait for what it has not got. */
static void give_what_is_in_error(rank *r)
{
    bool fails = r->number == 1;
    tr_tensor *x = fails ? tr_tensor_fail(TR_IO, "the disk is full") : numbers(0, 0, 2, 3);
    CHECK(tr_status_of(tr_all_reduce_op(r->group, x)) == (fails ? TR_IO : TR_PEER));
    if (!fails) SAYS("rank 1 (pid ");
    SAYS("the disk is full");
    CHECK(tr_barrier(r->group) != TR_OK);
}

static void a_tensor_in_error_on_one_rank_fails_on_all(void **state)
{
    (void)state;
    run(3, give_what_is_in_error, NULL);
}

static tr_status refuse(tr_tensor *leaf, tr_tensor *gradient, void *user)
{
    (void)leaf, (void)gradient, (void)user;
    return tr_fail(TR_FORMAT, "the hook does not like it");
}

/* A backward that fails on one rank before it comes to the layer where the others wait for it. */
static void fail_behind(rank *r)
{
    bool fails = r->number == 1;
    tr_tensor *x = tr_require_grad(tr_ones(TR_SHAPE(2, 4))), *own = tr_require_grad(tr_ones(TR_SHAPE(2, 4)));
    if (fails) CHECK(tr_grad_hook_add(own, refuse, NULL) >= 0);
    tr_tensor *y = tr_copy_to_op(r->group, x);
    CHECK(tr_backward(tr_sum(tr_mul(tr_relu(y), own))) == (fails ? TR_FORMAT : TR_PEER));
    if (!fails) SAYS("rank 1 (pid ");
    SAYS("the hook does not like it");
    CHECK(tr_barrier(r->group) != TR_OK);
}

static tr_tensor *sum_of_ranks(tr_tensor *const *inputs, int n, void *group)
{
    (void)n;
    return tr_all_reduce_op(group, inputs[0]);
}

/* The same with a sum that needs no gradient, of which no backward knows. */
static tr_tensor *times_sum_of_ranks(tr_tensor *const *inputs, int n, void *group)
{
    (void)n;
    return tr_tanh(tr_mul(inputs[0], tr_all_reduce_op(group, tr_ones(TR_SHAPE(2, 4)))));
}

static tr_tensor *tanh_of_product(tr_tensor *const *inputs, int n, void *unused)
{
    (void)n, (void)unused;
    return tr_tanh(tr_mul(inputs[0], inputs[1]));
}

static tr_tensor *with_a_part_inside(tr_tensor *const *inputs, int n, void *group)
{
    (void)n;
    return tr_checkpoint(tanh_of_product, (tr_tensor *[]){inputs[0], tr_all_reduce_op(group, tr_ones(TR_SHAPE(2, 4)))}, 2, NULL);
}

/* The others run the all_reduce again there, though its backward needs nobody. */
static void fail_behind_recompute(rank *r)
{
    bool fails = r->number == 1;
    tr_tensor *x = tr_require_grad(tr_ones(TR_SHAPE(2, 4))), *own = tr_require_grad(tr_ones(TR_SHAPE(2, 4)));
    if (fails) CHECK(tr_grad_hook_add(own, refuse, NULL) >= 0);
    tr_tensor *y = tr_checkpoint(*(const tr_checkpoint_function *)r->arg, &x, 1, r->group);
    CHECK(tr_backward(tr_sum(tr_mul(y, own))) == (fails ? TR_FORMAT : TR_PEER));
    if (!fails) SAYS("rank 1 (pid ");
    SAYS("the hook does not like it");
    CHECK(tr_barrier(r->group) != TR_OK);
}

static void a_backward_that_fails_on_one_rank_fails_on_all(void **state)
{
    (void)state;
    run(3, fail_behind, NULL);
    const tr_checkpoint_function recomputed[] = {sum_of_ranks, times_sum_of_ranks, with_a_part_inside};
    for (int i = 0; i < 3; i++) run(3, fail_behind_recompute, &recomputed[i]);
}

static void ops_are_each_others_backward(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) run(world, check_ops, NULL);
}

/* ---- Layers -------------------------------------------------------------------------------------------------------- */

enum { VOCAB = 24, DIM = 12, HIDDEN = 24, CLASSES = 12, BATCH = 10, STEPS = 4 };

/* The group may be NULL: whole layers. other_ends: columns give whole outputs, rows take whole inputs. */
static tr_module *make_net(tr_group *group, bool other_ends)
{
    if (!group)
        return tr_sequential(tr_embedding(VOCAB, DIM, .seed = 5), tr_linear(DIM, HIDDEN, .seed = 6), tr_activation_layer(tr_gelu),
            tr_linear(HIDDEN, CLASSES, .seed = 7));
    return tr_sequential(tr_vocab_parallel_embedding(VOCAB, DIM, .group = group, .seed = 5),
        tr_column_linear(DIM, HIDDEN, .group = group, .gather_output = other_ends, .seed = 6), tr_activation_layer(tr_gelu),
        tr_row_linear(HIDDEN, CLASSES, .group = group, .input_whole = other_ends, .seed = 7));
}

static tr_status train(tr_module *net, int64_t begin, int64_t end)
{
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-2);
    tr_tensor *ids = tr_cast(tr_affine(tr_rand(4, TR_SHAPE(BATCH)), VOCAB - 0.01, 0), TR_I32);
    tr_tensor *x = tr_slice(ids, 0, begin, end), *y = tr_argmax(tr_slice(tr_randn(3, TR_SHAPE(BATCH, CLASSES)), 0, begin, end), 1);
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        tr_zero_grad(opt);
        TR__TRY(tr_backward(tr_cross_entropy(tr_forward(net, x), y)));
        TR__TRY(tr_step(opt));
    }
    return TR_OK;
}

/* Is each parameter of net this rank's part of the one of the same name? */
static void compare(rank *r, tr_group *tp, tr_module *net, tr_module *whole)
{
    tr_tensor_list *parts = tr_parameters(net), *all = tr_parameters(whole);
    CHECK(tr_list_count(parts) == tr_list_count(all));
    for (int i = 0; i < tr_list_count(parts); i++) {
        tr_tensor *p = tr_list_at(parts, i), *w = tr_list_find(all, tr_list_name(parts, i));
        CHECK(w && tr_ndim(p) == tr_ndim(w));
        for (int d = 0; d < tr_ndim(p); d++) {
            int64_t n = tr_size(p, d), first = n == tr_size(w, d) ? 0 : n * tr_rank(tp);
            w = tr_slice(w, d, first, first + n);
        }
        CHECK(worst(p, w) < 1e-5);
    }
}

static void train_slices(rank *r)
{
    for (int other_ends = 0; other_ends < 2; other_ends++) {
        TR_SCOPE;
        tr_module *whole = make_net(NULL, false), *net = make_net(r->group, other_ends);
        compare(r, r->group, net, whole);
        OK(train(whole, 0, BATCH));
        OK(train(net, 0, BATCH));
        compare(r, r->group, net, whole);
        if (r->failure[0]) return;
    }
    OK(tr_leave(r->group));
}

static void layers_in_slices_are_the_whole_layers(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) run(world, train_slices, NULL);
}

/* ---- Meshes -------------------------------------------------------------------------------------------------------- */

static void check_mesh(rank *r)
{
    tr_mesh *mesh = tr_mesh_new(r->group, .tp = 2, .pp = 2); /* dp: what is left */
    OK(tr_status_of(mesh));
    int tp = r->number % 2, dp = r->number / 2 % 2, pp = r->number / 4;
    tr_group *groups[] = {tr_mesh_group(mesh, TR_MESH_DP), tr_mesh_group(mesh, TR_MESH_TP), tr_mesh_group(mesh, TR_MESH_PP)};
    int places[] = {dp, tp, pp}, strides[] = {2, 1, 4};
    for (int i = 0; i < 3; i++) {
        CHECK(tr_world_size(groups[i]) == 2 && tr_rank(groups[i]) == places[i]);
        int64_t sum = r->number;
        OK(tr_all_reduce(groups[i], &sum, 1, .dtype = TR_I64));
        CHECK(sum == 2 * r->number + (places[i] ? -strides[i] : strides[i]));
    }
    CHECK(tr_status_of(tr_mesh_group(mesh, TR_MESH_AXES)) == TR_INVALID);
    OK(tr_mesh_leave(mesh));
    OK(tr_leave(r->group));
}

static void a_mesh_is_a_box_of_ranks(void **state)
{
    (void)state;
    run(8, check_mesh, NULL);
}

static void check_boxes(rank *r)
{
    CHECK(tr_status_of(tr_mesh_new(r->group, .tp = r->number < 2 ? 2 : 3)) == TR_MISMATCH);
    SAYS("mesh: ranks differ: tp is 2 on ranks 0 and 1, 3 on ranks 2, 3, 4 and 5");
    CHECK(tr_status_of(tr_mesh_new(r->group, .tp = r->number ? 1 : 7)) == TR_MISMATCH);
    CHECK(tr_status_of(tr_mesh_new(r->group, .dp = 2, .tp = 2)) == TR_INVALID);
    SAYS("makes 4 ranks and the world has 6: the product must be 6");
    CHECK(tr_status_of(tr_mesh_new(r->group, .tp = 4)) == TR_INVALID);
    SAYS("6 ranks do not divide by tp 4 x pp 1 = 4: 8 ranks would");
    CHECK(tr_status_of(tr_mesh_new(r->group, .tp = -1)) == TR_INVALID);
    /* Their product, modulo 2^64, is 6. */
    CHECK(tr_status_of(tr_mesh_new(r->group, .dp = 1056175639, .tp = 177602, .pp = 393365)) == TR_INVALID);
    SAYS("mesh: dp 1056175639: the world has 6 ranks");
    CHECK(tr_status_of(tr_mesh_new(NULL)) == TR_INVALID);
    CHECK(tr_status_of(tr_mesh_group(tr_mesh_new(NULL), TR_MESH_DP)) == TR_INVALID);
    OK(tr_leave(r->group));
}

static void boxes_that_do_not_fit_are_errors(void **state)
{
    (void)state;
    run(6, check_boxes, NULL);
}

/* Data and tensor parallel at once: the batch in halves, each layer in halves. */
static void train_on_mesh(rank *r)
{
    tr_mesh *mesh = tr_mesh_new(r->group, .dp = 2, .tp = 2);
    OK(tr_status_of(mesh));
    tr_group *tp = tr_mesh_group(mesh, TR_MESH_TP), *dp = tr_mesh_group(mesh, TR_MESH_DP);
    tr_module *whole = make_net(NULL, false), *net = make_net(tp, false);
    int64_t half = BATCH / 2, first = tr_rank(dp) * half;
    OK(train(whole, 0, BATCH));
    OK(train(tr_ddp(net, dp), first, first + half));
    compare(r, tp, net, whole);
    if (r->failure[0]) return;
    OK(tr_mesh_leave(mesh));
    OK(tr_leave(r->group));
}

static void data_and_tensor_parallel_go_together(void **state)
{
    (void)state;
    run(4, train_on_mesh, NULL);
}

/* ---- Without seeds --------------------------------------------------------------------------------------------------- */

/* The slices of a layer without a seed fit together, as the ranks' threads have made as many modules before. */
static void check_unseeded(rank *r)
{
    tr_module *column = tr_column_linear(4, 8, .group = r->group), *other = tr_column_linear(4, 8, .group = r->group);
    tr_tensor *x = tr_randn(1, TR_SHAPE(3, 4));
    tr_tensor *bias = tr_list_find(tr_parameters(tr_row_linear(8, 4, .group = r->group)), "bias");
    tr_tensor *weight = tr_list_find(tr_parameters(column), "weight");
    CHECK(worst(tr_forward(column, x), tr_forward(other, x)) > 0);
    tr_tensor *all = tr_empty(TR_SHAPE(8, 4)), *biases = tr_empty(TR_SHAPE(2, 4));
    OK(tr_all_gather_tensor(r->group, tr_detach(weight), all));
    OK(tr_all_gather_tensor(r->group, tr_detach(bias), biases));
    CHECK(worst(tr_slice(all, 0, 0, 4), tr_slice(all, 0, 4, 8)) > 0); /* two slices, not the same twice */
    CHECK(worst(tr_slice(biases, 0, 0, 1), tr_slice(biases, 0, 1, 2)) == 0); /* of one whole layer */
    OK(tr_leave(r->group));
}

static void slices_without_a_seed_fit_together(void **state)
{
    (void)state;
    run(2, check_unseeded, NULL);
}

/* ---- Errors -------------------------------------------------------------------------------------------------------- */

static void check_errors(rank *r)
{
    CHECK(tr_status_of(tr_column_linear(4, 7, .group = r->group)) == TR_INVALID);
    SAYS("7 outputs do not divide by 2 ranks: 8 would");
    CHECK(tr_status_of(tr_row_linear(5, 8, .group = r->group)) == TR_INVALID);
    SAYS("5 inputs do not divide by 2 ranks: 6 would");
    CHECK(tr_status_of(tr_vocab_parallel_embedding(0, 8, .group = r->group)) == TR_INVALID);
    CHECK(tr_status_of(tr_column_linear(4, 8)) == TR_INVALID);
    SAYS("it takes a .group");
    CHECK(tr_status_of(tr_column_linear(0, 8, .group = r->group)) == TR_INVALID);
    tr_module *embedding = tr_vocab_parallel_embedding(8, 4, .group = r->group);
    int32_t outside[] = {3, 8};
    CHECK(tr_status_of(tr_forward(embedding, tr_from(outside, TR_SHAPE(2), .dtype = TR_I32))) == TR_INVALID);
    SAYS("id 8 at 1: there are 8 rows");
    CHECK(tr_status_of(tr_forward(embedding, tr_ones(TR_SHAPE(2)))) == TR_DTYPE);
    OK(tr_leave(r->group));
}

static void layers_that_do_not_divide_are_errors(void **state)
{
    (void)state;
    run(2, check_errors, NULL);
}

/* Rank 1 has other layers: both ranks are told at the first forward that talks to the group, with the values. The group goes on. */
static void check_other_layers(rank *r)
{
    int odd = r->number;
    tr_tensor *x = tr_ones(TR_SHAPE(2, 4)), *ids = tr_zeros(TR_SHAPE(3), .dtype = TR_I64);
    tr_module *column = tr_column_linear(4, odd ? 16 : 8, .group = r->group, .seed = 3);
    OK(tr_status_of(tr_forward(column, x))); /* without a collective */
    tr_module *row = tr_row_linear(odd ? 16 : 8, 3, .group = r->group, .seed = 4);
    CHECK(tr_status_of(tr_forward(row, tr_forward(column, x))) == TR_MISMATCH);
    SAYS("row_linear: ranks differ: in_features is 8 on rank 0, 16 on rank 1");
    CHECK(tr_status_of(tr_forward(row, tr_forward(column, x))) == TR_MISMATCH);
    row = tr_row_linear(8, 3, .group = r->group, .no_bias = odd, .input_whole = true, .seed = 4);
    CHECK(tr_status_of(tr_forward(row, tr_ones(TR_SHAPE(2, 8)))) == TR_MISMATCH);
    SAYS("row_linear: ranks differ: bias is on on rank 0, off on rank 1");
    column = tr_column_linear(4, 8, .group = r->group, .gather_output = true, .no_bias = odd, .seed = 3);
    CHECK(tr_status_of(tr_forward(column, x)) == TR_MISMATCH);
    SAYS("column_linear: ranks differ: bias is on on rank 0, off on rank 1");
    tr_module *embedding = tr_vocab_parallel_embedding(odd ? 6 : 8, 4, .group = r->group, .seed = 3);
    CHECK(tr_status_of(tr_forward(embedding, ids)) == TR_MISMATCH);
    SAYS("vocab_parallel_embedding: ranks differ: rows is 8 on rank 0, 6 on rank 1");
    OK(tr_leave(r->group));
}

static void other_layers_on_one_rank_are_a_mismatch(void **state)
{
    (void)state;
    run(2, check_other_layers, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_are_each_others_backward),
        cmocka_unit_test(a_tensor_in_error_on_one_rank_fails_on_all),
        cmocka_unit_test(a_backward_that_fails_on_one_rank_fails_on_all),
        cmocka_unit_test(layers_in_slices_are_the_whole_layers),
        cmocka_unit_test(a_mesh_is_a_box_of_ranks),
        cmocka_unit_test(boxes_that_do_not_fit_are_errors),
        cmocka_unit_test(data_and_tensor_parallel_go_together),
        cmocka_unit_test(slices_without_a_seed_fit_together),
        cmocka_unit_test(layers_that_do_not_divide_are_errors),
        cmocka_unit_test(other_layers_on_one_rank_are_a_mismatch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
