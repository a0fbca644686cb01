/* Fully sharded parameters in graphs of any form: the gradients of a plain module, also where it has none, or a failure. */
#include "comm_ranks.h"

#include "parallel/fully_shard.h"

#include <trireme/trireme.h>

#include <math.h>

enum { ROOM = 4096 };

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

/* ---- Walks: what plain modules and sharded ones must do alike --------------------------------------------------------- */

typedef struct scene {
    const char *name;
    tr_module *(*make)(void);
    const char *units[3];
    bool keeps;
    tr_dtype autocast; /* 0: f32 */
    tr_status (*walk)(tr_module *net, tr_tensor *x);
} scene;

static tr_module *make_one(void)
{
    return probe_new(true);
}

static tr_module *make_two(void)
{
    return tr_sequential(probe_new(true), tr_linear(4, 3, .seed = 2));
}

/* What is recomputed is no unit. */
static tr_module *make_frozen(void)
{
    tr_module *block = tr_sequential(tr_linear(4, 4, .seed = 1), tr_activation_layer(tr_tanh), probe_new(false),
        tr_activation_layer(tr_tanh));
    if (tr_set_recompute(block, true) != TR_OK || tr_freeze(block, true) != TR_OK) return NULL;
    return tr_sequential(tr_linear(4, 4, .seed = 2), block, tr_linear(4, 1, .seed = 3));
}

static tr_status walk_all(tr_module *net, tr_tensor *x)
{
    return tr_backward(tr_mean(tr_forward(net, x)));
}

static tr_status walk_auxiliary(tr_module *net, tr_tensor *x)
{
    TR__TRY(tr_status_of(tr_forward(net, x)));
    const char *path = tr_module_find(net, "0") ? "0" : "";
    TR__TRY(tr_backward(probe_of(net, path)->mean));
    TR__TRY(tr_status_of(tr_forward(net, x)));
    return tr_backward(probe_of(net, path)->mean); /* on top */
}

/* A discriminator's own loss waits while it is frozen for the generator's. */
static tr_status walk_frozen_between(tr_module *net, tr_tensor *x)
{
    tr_tensor *own = tr_mean(tr_forward(net, x));
    TR__TRY(tr_freeze(net, true));
    TR__TRY(tr_backward(tr_mean(tr_forward(net, tr_require_grad(tr_ones(TR_SHAPE(2, 4)))))));
    TR__TRY(tr_freeze(net, false));
    return tr_backward(own);
}

static tr_status walk_while_frozen(tr_module *net, tr_tensor *x)
{
    tr_tensor *own = tr_mean(tr_forward(net, x));
    TR__TRY(tr_freeze(net, true));
    TR__TRY(tr_backward(tr_mean(tr_forward(net, tr_require_grad(tr_ones(TR_SHAPE(2, 4)))))));
    return tr_backward(own);
}

static tr_status walk_one_frozen(tr_module *net, tr_tensor *x)
{
    tr_tensor *own = tr_mean(tr_forward(net, x)), *bias = tr_list_find(tr_parameters(net), "0.bias");
    TR__TRY(tr_freeze(tr_module_find(net, "0"), true));
    TR__TRY(tr_status_of(tr_require_grad(bias)));
    TR__TRY(tr_status_of(tr_forward(net, x)));
    return tr_backward(own);
}

/* Learns again, after the forward. */
static tr_status walk_thawed(tr_module *net, tr_tensor *x)
{
    TR__TRY(tr_freeze(net, true));
    tr_tensor *y = tr_mean(tr_forward(net, tr_require_grad(tr_ones(TR_SHAPE(2, 4)))));
    TR__TRY(tr_freeze(net, false));
    TR__TRY(tr_status_of(tr_forward(net, x)));
    return tr_backward(y);
}

static const scene scenes[] = {
    {.name = "auxiliary loss of a root", .make = make_one, .walk = walk_auxiliary},
    {.name = "auxiliary loss of a unit that stays", .make = make_two, .units = {"0"}, .keeps = true, .walk = walk_auxiliary},
    {.name = "frozen for another backward", .make = make_one, .walk = walk_frozen_between},
    {.name = "frozen for another backward, two units", .make = make_two, .units = {"0"}, .walk = walk_frozen_between},
    {.name = "frozen in backward", .make = make_one, .walk = walk_while_frozen},
    {.name = "frozen in backward, two units", .make = make_two, .units = {"0"}, .walk = walk_while_frozen},
    {.name = "one frozen in backward", .make = make_two, .walk = walk_one_frozen},
    {.name = "learns again after the forward", .make = make_one, .walk = walk_thawed},
    {.name = "learns again, two units", .make = make_two, .units = {"0"}, .walk = walk_thawed},
    {.name = "frozen and recomputed", .make = make_frozen, .units = {"0"}, .walk = walk_all},
    {.name = "frozen and recomputed in bf16", .make = make_frozen, .units = {"0"}, .autocast = TR_BF16, .walk = walk_all},
};
enum { N_SCENES = sizeof scenes / sizeof *scenes };

/* Which parameters have gradients, as a string of 0 and 1, and these whole; how many elements. */
static int64_t read_gradients(tr_module *net, bool sharded, char *which, float *to)
{
    TR_NO_GRAD;
    tr_tensor_list *p = tr_parameters(net), *g = tr_list_new();
    for (int i = 0; i < tr_list_count(p); i++) {
        tr_tensor *grad = tr_grad(tr_list_at(p, i));
        *which++ = grad ? '1' : '0';
        if (grad && tr_list_add(g, tr_list_name(p, i), grad) != TR_OK) return -1;
    }
    *which = 0;
    if (sharded) g = tr_unshard_state(net, g);
    int64_t n = 0;
    for (int i = 0; i < tr_list_count(g); i++) {
        tr_tensor *t = tr_list_at(g, i);
        if (n + tr_numel(t) > ROOM || tr_copy_out(t, to + n, (size_t)tr_numel(t) * sizeof *to) != TR_OK) return -1;
        n += tr_numel(t);
    }
    return tr_status_of(g) == TR_OK ? n : -1;
}

static void compare(rank *r, const scene *s)
{
    TR_SCOPE;
    char which[2][64];
    float *values[2] = {tr_data(tr_empty(TR_SHAPE(ROOM))), tr_data(tr_empty(TR_SHAPE(ROOM)))};
    int64_t n[2];
    for (int sharded = 0; sharded < 2; sharded++) {
        tr_module *net = s->make();
        for (int i = 0; sharded && i < 3 && s->units[i]; i++)
            OK(tr_fully_shard(tr_module_find(net, s->units[i]), r->group, .keep_after_forward = s->keeps));
        if (sharded) OK(tr_fully_shard(net, r->group));
        TR_AUTOCAST(s->autocast ? s->autocast : TR_F32);
        OK(s->walk(net, tr_randn(1, TR_SHAPE(2, 4))));
        n[sharded] = read_gradients(net, sharded, which[sharded], values[sharded]);
    }
    CHECK(n[0] >= 0 && n[0] == n[1]);
    CHECK(strcmp(which[0], which[1]) == 0);
    for (int64_t i = 0; i < n[0]; i++) CHECK(fabsf(values[0][i] - values[1][i]) < 1e-6f);
}

static void every_scene(rank *r)
{
    for (int i = 0; i < N_SCENES && !r->failure[0]; i++) {
        char failure[sizeof r->failure];
        compare(r, &scenes[i]);
        snprintf(failure, sizeof failure, "%s", r->failure);
        if (*failure) snprintf(r->failure, sizeof r->failure, "%s: %.1500s", scenes[i].name, failure);
    }
    if (!r->failure[0]) OK(tr_leave(r->group));
}

static void gradients_are_those_of_a_plain_module(void **state)
{
    (void)state;
    run(2, every_scene, NULL);
    run(3, every_scene, NULL);
}

/* ---- Some ranks alone use a part ---------------------------------------------------------------------------------------- */

/* It takes no part on the others, whose gradient is zero: with one unit the average is right, else units come in another order. */
static void skip_in_a_unit(rank *r)
{
    tr_module *net = tr_sequential(tr_linear(4, 4, .seed = 1), probe_new(true), tr_linear(4, 3, .seed = 2));
    probe_of(net, "1")->does = r->number ? SKIPS : 0;
    bool two_units = *(const int *)r->arg;
    if (two_units) OK(tr_fully_shard(tr_module_find(net, "0"), r->group));
    OK(tr_fully_shard(net, r->group));
    tr_tensor *x = tr_ones(TR_SHAPE(2, 4));
    tr_status status = tr_backward(tr_mean(tr_forward(net, x)));
    CHECK(status == (two_units ? TR_MISMATCH : TR_OK));
    if (two_units) return;
    tr_tensor_list *g = tr_list_new();
    OK(tr_list_add(g, "1.weight", tr_grad(tr_list_find(tr_parameters(net), "1.weight"))));
    float sharded[16], alone[16];
    OK(tr_copy_out(tr_list_at(tr_unshard_state(net, g), 0), sharded, sizeof sharded));
    net = tr_sequential(tr_linear(4, 4, .seed = 1), probe_new(true), tr_linear(4, 3, .seed = 2));
    OK(tr_backward(tr_mean(tr_forward(net, x))));
    OK(tr_copy_out(tr_grad(tr_list_find(tr_parameters(net), "1.weight")), alone, sizeof alone));
    for (int i = 0; i < 16; i++) CHECK(fabsf(sharded[i] - alone[i] / (float)r->world) < 1e-6f);
    OK(tr_leave(r->group));
}

static tr_tensor *choose_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    tr_tensor *y = tr_forward(tr_module_find(self, "all"), inputs[0]);
    return *(const int *)tr_module_state(self) ? y : tr_forward(tr_module_find(self, "some"), y);
}

/* A unit of its own is gathered on some ranks alone. */
static void skip_a_unit(rank *r)
{
    tr_module *net = tr_module_new("choose", sizeof(int), choose_forward);
    *(int *)tr_module_state(net) = r->number;
    tr_module_add(net, "all", tr_linear(4, 4, .seed = 1));
    tr_module_add(net, "some", tr_linear(4, 4, .seed = 2));
    OK(tr_fully_shard(tr_module_find(net, "all"), r->group));
    OK(tr_fully_shard(tr_module_find(net, "some"), r->group));
    tr_tensor *y = tr_forward(net, tr_ones(TR_SHAPE(2, 4)));
    tr_status status = tr_status_of(y);
    if (status == TR_OK) status = tr_backward(tr_mean(y));
    CHECK(status == TR_MISMATCH);
    SAYS("module 1 at ");
    CHECK(!strstr(tr_error_message(), "fully_shard_run.c")); /* the program's lines */
}

static void a_part_of_some_ranks_is_right_or_a_mismatch(void **state)
{
    (void)state;
    for (int two_units = 0; two_units < 2; two_units++) run(2, skip_in_a_unit, &two_units);
    run(3, skip_in_a_unit, &(int){0});
    run(2, skip_a_unit, NULL);
}

/* ---- Refused ---------------------------------------------------------------------------------------------------------------- */

/* A weight behind the root, in the loss. */
static void use_behind(rank *r)
{
    tr_module *net = make_one();
    OK(tr_fully_shard(net, r->group));
    tr_tensor *x = tr_ones(TR_SHAPE(2, 4)), *y = tr_forward(net, x);
    OK(tr_status_of(y));
    CHECK(tr_status_of(tr_linear_op(y, probe_of(net, "")->weight)) == TR_STATE);
    SAYS("a module whose forward is not under way");
    OK(tr_backward(tr_mean(y)));
    OK(tr_leave(r->group));
}

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

static void write_in_forward(rank *r)
{
    tr_module *net = make_one();
    probe_of(net, "")->does = WRITES;
    OK(tr_fully_shard(net, r->group));
    CHECK(tr_status_of(tr_forward(net, tr_ones(TR_SHAPE(2, 4)))) != TR_OK);
    SAYS("the forward of \"probe\" wrote to its parameter [4], which would be lost");
}

/* Steps between forward and backward: where the memory stays, and where what is recomputed saves no parameter. */
static void step_between(rank *r)
{
    bool recomputes = *(const int *)r->arg;
    tr_module *block = tr_sequential(probe_new(!recomputes), tr_activation_layer(tr_tanh));
    tr_module *net = tr_sequential(block, probe_new(false));
    OK(tr_set_recompute(block, recomputes));
    if (recomputes) OK(tr_fully_shard(tr_module_find(net, "0.0"), r->group));
    OK(tr_fully_shard(net, r->group));
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 1);
    tr_tensor *x = tr_ones(TR_SHAPE(2, 4));
    OK(tr_backward(tr_mean(tr_forward(net, x))));
    tr_tensor *y = tr_forward(net, x);
    OK(tr_step(opt));
    CHECK(tr_backward(tr_mean(y)) != TR_OK);
    SAYS(recomputes ? "a parameter [4] with which the module is to be computed again was written to after the forward"
        : "written to after the forward");
}

static void step_in_backward(rank *r)
{
    tr_module *net = make_one();
    OK(tr_fully_shard(net, r->group));
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 1);
    tr_tensor *y = tr_mean(tr_forward(net, tr_ones(TR_SHAPE(2, 4))));
    OK(tr_step_in_backward(opt, true));
    CHECK(tr_backward(y) != TR_OK);
    SAYS("an optimizer steps the parameter [4, 4] in backward");
}

static void what_would_be_wrong_is_refused(void **state)
{
    (void)state;
    run(2, use_behind, NULL);
    run(2, keep_a_view, NULL);
    run(2, write_in_forward, NULL);
    for (int recomputes = 0; recomputes < 2; recomputes++) run(2, step_between, &recomputes);
    run(2, step_in_backward, NULL);
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
        cmocka_unit_test(gradients_are_those_of_a_plain_module),
        cmocka_unit_test(a_part_of_some_ranks_is_right_or_a_mismatch),
        cmocka_unit_test(what_would_be_wrong_is_refused),
        cmocka_unit_test(lists_of_a_part_are_whole_or_refused),
        cmocka_unit_test(evaluations_count_each_sample_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
