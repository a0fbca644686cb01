/* DDP's buckets follow the order in which gradients become final, whatever the order in which parameters were registered. */
#include "base/clock.h"
#include "comm/record/record.h"
#include "comm_ranks.h"

#include <trireme/trireme.h>

#include <stdlib.h>
#include <unistd.h>

enum { LINKS = 6, LINK = 64 /* elements */, LINK_BYTES = LINK * sizeof(float), RANKS = 3, BACKWARDS = 3 };

/* A chain of products with weights: the i-th is number order[i]. One may be left out. */
typedef struct chain {
    tr_tensor *weights[LINKS];
    const int *order;
    int without;
} chain;

static const int in_order[LINKS] = {0, 1, 2, 3, 4, 5}, backwards[LINKS] = {5, 4, 3, 2, 1, 0}, mixed[LINKS] = {3, 0, 5, 1, 4, 2};

static tr_tensor *chain_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const chain *c = tr_module_state(self);
    tr_tensor *y = inputs[0];
    for (int i = 0; i < LINKS; i++)
        if (i != c->without) y = tr_mul(y, c->weights[c->order[i]]);
    return tr_sum(y);
}

static tr_module *make_chain(const int *order)
{
    tr_module *net = tr_module_new("chain", sizeof(chain), chain_forward);
    chain *c = tr_module_state(net);
    c->order = order;
    c->without = -1;
    for (int i = 0; i < LINKS; i++) {
        int position = 0;
        while (order[position] != i) position++;
        c->weights[i] = tr_module_parameter(net, (char[]){(char)('a' + i), 0}, tr_randn((uint64_t)position, TR_SHAPE(LINK)));
    }
    return net;
}

/* What a trial of several backwards is to do, and what rank 0 saw in it. */
typedef struct trial {
    const int *order;
    double bucket_bytes;
    bool one_strays; /* rank 1's first backward goes another way */
    bool one_leaves; /* in its last backward rank 1 leaves a weight out */
    int64_t sent[BACKWARDS][LINKS];                /* elements that were on their way when a gradient was final, in that order */
    float gradients[RANKS][BACKWARDS][LINKS][LINK]; /* in the order of execution */
} trial;

/* A backward of a rank, as hooks of its parameters see it. */
typedef struct watch {
    int rank, finals;
    int64_t since, sent[LINKS];
} watch;

static tr_status note_sent(tr_tensor *leaf, tr_tensor *gradient, void *user)
{
    (void)leaf, (void)gradient;
    watch *w = user;
    tr__records records = {0};
    tr_status status = tr__records_read(getpid(), &records);
    int64_t *sent = &w->sent[w->finals++];
    for (int i = 0; i < records.count; i++) {
        const tr__record *r = &records.list[i];
        for (int k = 0; k < r->call_count && r->rank == w->rank; k++)
            if (r->calls[k].signature.kind == TR_ALL_REDUCE && r->calls[k].posted >= w->since)
                *sent += r->calls[k].signature.count;
    }
    tr__records_free(&records);
    return status;
}

static void try_chain(rank *r)
{
    TR_SCOPE;
    trial *t = (trial *)r->arg;
    r->group = join_group(r, "order");
    tr_module *net = make_chain(t->order), *ddp = tr_ddp(net, r->group, .bucket_mb = t->bucket_bytes / (1 << 20));
    OK(tr_status_of(ddp));
    chain *c = tr_module_state(net);
    watch w = {.rank = r->number};
    for (int i = 0; i < LINKS; i++) CHECK(tr_grad_hook_add(c->weights[i], note_sent, &w) >= 0);
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-2);

    for (int backward = 0; backward < BACKWARDS; backward++) {
        TR_SCOPE;
        c->order = t->one_strays && r->number == 1 && backward == 0 ? in_order : t->order;
        c->without = t->one_leaves && r->number == 1 && backward == BACKWARDS - 1 ? 2 : -1;
        w.since = tr__now_ns();
        w.finals = 0;
        memset(w.sent, 0, sizeof w.sent);
        tr_zero_grad(opt);
        OK(tr_backward(tr_forward(ddp, tr_randn((uint64_t)r->number + 60, TR_SHAPE(LINK)))));
        if (r->number == 0) memcpy(t->sent[backward], w.sent, sizeof w.sent);
        for (int i = 0; i < LINKS; i++)
            OK(tr_copy_out(tr_grad(c->weights[t->order[i]]), t->gradients[r->number][backward][i], LINK_BYTES));
        OK(tr_step(opt));
    }
    OK(tr_leave(r->group));
}

/* All ranks end with the same bits. */
static trial *run_trial(const int *order, double bucket_bytes, bool one_strays, bool one_leaves)
{
    trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    *t = (trial){.order = order, .bucket_bytes = bucket_bytes, .one_strays = one_strays, .one_leaves = one_leaves};
    TR_SCOPE;
    run_on(tr_store_memory(), RANKS, try_chain, t);
    for (int i = 1; i < RANKS; i++) assert_memory_equal(t->gradients[i], t->gradients[0], sizeof t->gradients[0]);
    return t;
}

/* Nothing is sent while the order is learned; after that each bucket but the last goes out with its last gradient. */
static void any_order_of_execution_overlaps(void **state)
{
    (void)state;
    trial *like = run_trial(in_order, LINK_BYTES, false, false);
    for (int i = 0; i < LINKS; i++) {
        assert_int_equal(like->sent[0][i], 0);
        assert_int_equal(like->sent[1][i], LINK * (i < LINKS - 1 ? i + 1 : LINKS - 1));
        assert_int_equal(like->sent[2][i], like->sent[1][i]);
    }
    const int *const orders[] = {backwards, mixed};
    for (int i = 0; i < 2; i++) {
        trial *other = run_trial(orders[i], LINK_BYTES, false, false);
        assert_memory_equal(other->sent, like->sent, sizeof like->sent);
        assert_memory_equal(other->gradients, like->gradients, sizeof like->gradients);
        free(other);
    }
    free(like);
}

/* Two weights per bucket: those that lie apart go out one by one, and no later. */
static void parameters_that_lie_apart_go_out_no_later(void **state)
{
    (void)state;
    static const int64_t pairs[LINKS] = {0, 2, 2, 4, 4, 4};
    trial *like = run_trial(in_order, 2 * LINK_BYTES, false, false), *back = run_trial(backwards, 2 * LINK_BYTES, false, false);
    trial *other = run_trial(mixed, 2 * LINK_BYTES, false, false);
    for (int i = 0; i < LINKS; i++) {
        assert_int_equal(like->sent[1][i], pairs[i] * LINK);
        assert_int_equal(back->sent[1][i], like->sent[1][i]);
        assert_true(other->sent[1][i] >= like->sent[1][i]);
    }
    assert_memory_equal(back->gradients, like->gradients, sizeof like->gradients);
    assert_memory_equal(other->gradients, like->gradients, sizeof like->gradients);
    free(like);
    free(back);
    free(other);
}

static void all_ranks_take_the_order_of_rank_0(void **state)
{
    (void)state;
    trial *like = run_trial(mixed, LINK_BYTES, false, false), *strayed = run_trial(mixed, LINK_BYTES, true, false);
    assert_memory_equal(strayed->sent, like->sent, sizeof like->sent);
    free(like);
    free(strayed);
}

/* What took part when the order was learned may be left out later: its bucket waits for the end, on that rank. */
static void the_graph_may_change(void **state)
{
    (void)state;
    trial *like = run_trial(mixed, LINK_BYTES, false, false), *changed = run_trial(mixed, LINK_BYTES, false, true);
    assert_memory_equal(changed->sent, like->sent, sizeof like->sent);
    assert_memory_equal(changed->gradients[0][1], like->gradients[0][1], sizeof like->gradients[0][1]);
    assert_memory_not_equal(changed->gradients[0][2], like->gradients[0][2], sizeof like->gradients[0][2]);
    free(like);
    free(changed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_of_execution_overlaps),
        cmocka_unit_test(parameters_that_lie_apart_go_out_no_later),
        cmocka_unit_test(all_ranks_take_the_order_of_rank_0),
        cmocka_unit_test(the_graph_may_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
