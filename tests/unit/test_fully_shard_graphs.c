/* Fully sharded parameters in graphs of any form: the gradients of a plain module, also where it has none, or a failure. */
#include "comm_ranks.h"

#include "parallel/fully_shard.h"

#include <trireme/trireme.h>

#include <math.h>

/* ---- A module that shows and does what modules should not ------------------------------------------------------------ */

enum { WRITES = 1, SKIPS = 2 };

typedef struct probe {
    tr_tensor *weight, *bias; /* no weight: it saves nothing */
    int does;
    tr_tensor *mean, *view; /* of its forward: an auxiliary loss, and what shows the weight */
} probe;

static tr_tensor *probe_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    probe *p = tr_module_state(self);
    if (p->does & SKIPS) return inputs[0];
    if (p->does & WRITES) {
        TR_NO_GRAD;
        if (tr_copy_into(p->bias, tr_affine(p->bias, 1, 1)) != TR_OK) return tr_tensor_fail(TR_STATE, "cannot write");
    }
    if (!p->weight) return tr_add(inputs[0], p->bias);
    tr_tensor *y = tr_linear_op(inputs[0], p->weight, .bias = p->bias);
    tr_release(p->mean);
    tr_release(p->view);
    p->mean = tr_keep(tr_mean(y));
    p->view = tr_keep(tr_detach(p->weight));
    return tr_tanh(y);
}

static void probe_release(void *state)
{
    probe *p = state;
    tr_release(p->mean);
    tr_release(p->view);
}

static tr_module *probe_new(bool has_weight)
{
    tr_module *module = tr_module_new("probe", sizeof(probe), probe_forward);
    probe *p = tr_module_state(module);
    tr_module_on_release(module, probe_release);
    if (has_weight) p->weight = tr_module_parameter(module, "weight", tr_randn(3, TR_SHAPE(4, 4)));
    p->bias = tr_module_parameter(module, "bias", tr_zeros(TR_SHAPE(4)));
    return module;
}

static probe *probe_of(tr_module *net, const char *path)
{
    return tr_module_state(tr_module_find(net, path));
}

static tr_module *make_one(void)
{
    return probe_new(true);
}

static tr_module *make_two(void)
{
    return tr_sequential(probe_new(true), tr_linear(4, 3, .seed = 2));
}

/* ---- Refused ---------------------------------------------------------------------------------------------------------------- */

/* A view that outlives the memory which it shows. */
static void keep_a_view(rank *r)
{
    tr_module *net = make_one();
    OK(tr_fully_shard(net, r->group));
    OK(tr_backward(tr_mean(tr_forward(net, tr_ones(TR_SHAPE(2, 4))))));
    tr_tensor *view = probe_of(net, "")->view;
    float values[16];
    OK(tr_status_of(view));
    CHECK(!tr_data(view));
    CHECK(tr_status_of(tr_sum(view)) == TR_STATE);
    SAYS("sum: [4, 4] shows a parameter whose memory is not here");
    CHECK(tr_copy_out(view, values, sizeof values) == TR_STATE);
    CHECK(tr_copy_into(tr_zeros(TR_SHAPE(4, 4)), view) == TR_STATE);
    CHECK(tr_copy_into(view, tr_zeros(TR_SHAPE(4, 4))) == TR_STATE);
    CHECK(tr_fill(view, 0) == TR_STATE);
    OK(tr_leave(r->group));
}

static void what_would_be_wrong_is_refused(void **state)
{
    (void)state;
    run(2, keep_a_view, NULL);
}

/* ---- Lists of a part, and evaluations -------------------------------------------------------------------------------------- */

/* With the list of another module a rank's own shards are never taken for whole tensors. */
static void unshard_a_part(rank *r)
{
    tr_module *net = tr_sequential(tr_linear(8, 8, .seed = 1), tr_linear(8, 8, .seed = 2)), *part = tr_module_find(net, "1");
    OK(tr_fully_shard(tr_module_find(net, "0"), r->group));
    OK(tr_fully_shard(net, r->group));
    tr_tensor_list *whole = tr_unshard_state(net, tr_state_dict(part));
    OK(tr_status_of(whole));
    CHECK(tr_numel(tr_list_find(whole, "weight")) == 64 && tr_numel(tr_list_find(whole, "bias")) == 8);
    tr_optimizer *opt = tr_adamw(tr_parameters(part));
    OK(tr_status_of(tr_unshard_state(part, tr_optimizer_state(opt))));
    CHECK(tr_status_of(tr_unshard_state(net, tr_optimizer_state(opt))) != TR_OK);
    SAYS("unshard_state: the module has no \"weight.");
}

static void lists_of_a_part_are_whole_or_refused(void **state)
{
    (void)state;
    run(2, unshard_a_part, NULL);
}

/* A rank whose last batch has duplicates alone computes it, as the others need its shards. */
static void evaluate(rank *r)
{
    tr_module *nets[2] = {make_two(), make_two()};
    OK(tr_fully_shard(tr_module_find(nets[1], "0"), r->group));
    OK(tr_fully_shard(nets[1], r->group));
    for (int n = 5; n < 10; n++) {
        TR_SCOPE;
        tr_score score[2] = {{0}};
        tr_dataset *set = tr_dataset_tensors(tr_randn(1, TR_SHAPE(n, 4)), tr_zeros(TR_SHAPE(n), .dtype = TR_I64));
        OK(tr_evaluate(nets[0], tr_loader_new(set, .batch = 2), .score = &score[0]));
        OK(tr_evaluate(nets[1], tr_loader_new(set, .batch = 2, .group = r->group), .group = r->group, .score = &score[1]));
        CHECK(score[0].count == n && score[1].count == n);
        CHECK(score[0].correct == score[1].correct && fabs(score[0].loss - score[1].loss) < 1e-5);
    }
    OK(tr_leave(r->group));
}

static void evaluations_count_each_sample_once(void **state)
{
    (void)state;
    run(2, evaluate, NULL);
    run(3, evaluate, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_would_be_wrong_is_refused),
        cmocka_unit_test(lists_of_a_part_are_whole_or_refused),
        cmocka_unit_test(evaluations_count_each_sample_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
