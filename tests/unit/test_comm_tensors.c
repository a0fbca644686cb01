/* Collectives on tensors, with threads as ranks. */
#include "comm_ranks.h"

#include <trireme/parallel.h>

static tr_tensor *filled(int64_t n, double first)
{
    tr_tensor *t = tr_empty(TR_SHAPE(n));
    for (int64_t i = 0; i < n; i++) ((float *)tr_data(t))[i] = (float)(first + (double)i);
    return t;
}

static float at(const tr_tensor *t, int64_t i)
{
    return ((const float *)tr_data(t))[i];
}

static void on_tensors(rank *r)
{
    TR_SCOPE;
    tr_group *g = r->group;
    int n = r->number, w = r->world, last = w - 1;
    tr_tensor *one = filled(2, n * 10), *all = tr_zeros(TR_SHAPE(w, 2)), *back = tr_zeros(TR_SHAPE(2));
    OK(tr_all_gather_tensor(g, one, all));
    for (int p = 0; p < w; p++) CHECK(at(all, 2 * p) == (float)(p * 10) && at(all, 2 * p + 1) == (float)(p * 10 + 1));
    OK(tr_reduce_scatter_tensor(g, all, back, TR_SUM));
    CHECK(at(back, 0) == (float)(w * n * 10));
    OK(tr_gather_tensor(g, one, n == last ? all : NULL, last));
    OK(tr_scatter_tensor(g, n == last ? all : NULL, back, last));
    CHECK(at(back, 1) == (float)(n * 10 + 1));
    OK(tr_all_to_all_tensor(g, filled(2 * w, n * 100), all));
    for (int p = 0; p < w; p++) CHECK(at(all, 2 * p) == (float)(p * 100 + 2 * n));
    OK(tr_all_reduce_tensor(g, back, TR_MAX));
    CHECK(at(back, 0) == (float)(last * 10));
    OK(tr_reduce_tensor(g, one, TR_SUM, 0));
    CHECK(n != 0 || at(one, 0) == (float)(w * last * 5));
    OK(tr_broadcast_tensor(g, one, 0));
    CHECK(at(one, 0) == (float)(w * last * 5));
    if (w > 1 && n == 0) OK(tr_send_tensor(g, filled(2, 77), 1, 4));
    if (n == 1) OK(tr_recv_tensor(g, back, 0, 4));
    CHECK(n != 1 || at(back, 1) == 78);
    OK(tr_leave(g));
}

static void tensors_can_be_given(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world++) run(world, on_tensors, NULL);
}

/* Started together, waited for later: an all_gather beside an all_reduce, and a send that meets its receive. */
static void start_on_tensors(rank *r)
{
    TR_SCOPE;
    tr_group *g = r->group;
    int n = r->number, w = r->world;
    tr_tensor *one = filled(2, n * 10), *all = tr_zeros(TR_SHAPE(w, 2)), *sum = filled(2, n), *got = tr_zeros(TR_SHAPE(2));
    tr_work *gather = tr_all_gather_tensor_async(g, one, all), *reduce = tr_all_reduce_tensor_async(g, sum, TR_SUM);
    tr_work *sent = tr_send_tensor_async(g, one, (n + 1) % w, 3), *received = tr_recv_tensor_async(g, got, (n + w - 1) % w, 3);
    OK(tr_wait(reduce));
    OK(tr_wait(gather));
    OK(tr_wait(received));
    OK(tr_wait(sent));
    CHECK(at(sum, 1) == (float)(w * (w - 1) / 2 + w));
    for (int p = 0; p < w; p++) CHECK(at(all, 2 * p + 1) == (float)(p * 10 + 1));
    CHECK(at(got, 0) == (float)((n + w - 1) % w * 10));
    tr_tensor *theirs;
    tr_work *kept;
    {
        TR_SCOPE; /* which takes the tensor, but for the work */
        theirs = filled(2, n);
        kept = tr_keep(tr_all_reduce_tensor_async(g, theirs, TR_SUM));
    }
    OK(tr_wait(kept));
    OK(tr_status_of(theirs));
    CHECK(at(theirs, 1) == (float)(w * (w - 1) / 2 + w));
    tr_release(kept);
    CHECK(tr_wait(tr_all_gather_tensor_async(g, one, tr_ones(TR_SHAPE(7)))) == TR_SHAPE);
    SAYS("the output [7] should have");
    OK(tr_leave(g)); /* who is gone without it fails the receive of a rank that is late */
}

static void tensors_can_be_started(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) run(world, start_on_tensors, NULL);
}

static void give_wrong_tensors(rank *r)
{
    TR_SCOPE;
    tr_group *g = r->group;
    tr_tensor *two = tr_ones(TR_SHAPE(2)), *three = tr_ones(TR_SHAPE(3));
    CHECK(tr_all_gather_tensor(g, two, three) == TR_SHAPE);
    SAYS("all_gather: the output [3] should have 4 elements");
    CHECK(tr_scatter_tensor(g, three, two, 0) == TR_SHAPE);
    SAYS("scatter: the input [3] should have 4 elements");
    CHECK(tr_all_to_all_tensor(g, three, three) == TR_SHAPE);
    CHECK(tr_all_gather_tensor(g, tr_ones(TR_SHAPE(2), .dtype = TR_I64), tr_ones(TR_SHAPE(4))) == TR_DTYPE);
    CHECK(tr_all_reduce_tensor(g, tr_transpose(tr_ones(TR_SHAPE(2, 3)), 0, 1), TR_SUM) == TR_SHAPE);
    SAYS("tr_copy_into()");
    CHECK(tr_all_reduce_tensor(g, NULL, TR_SUM) == TR_INVALID);
    SAYS("all_reduce: there is no tensor: it is NULL, as tr_grad() is before a backward");
    OK(tr_barrier(g));
    /* A call that does not match is said to be here, not in the library. */
    CHECK(tr_all_reduce_tensor(g, r->number ? two : three, TR_SUM) == TR_MISMATCH);
    SAYS("test_comm_tensors.c:");
}

static void tensors_that_do_not_fit_are_errors(void **state)
{
    (void)state;
    run(2, give_wrong_tensors, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_can_be_given),
        cmocka_unit_test(tensors_can_be_started),
        cmocka_unit_test(tensors_that_do_not_fit_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
