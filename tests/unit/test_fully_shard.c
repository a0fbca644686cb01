/* Fully sharded parameters: the bits of DDP, with a shard of the parameters, gradients and moments on each rank. */
#include "comm_ranks.h"
#include "files.h"

#include "optim/optimizer.h"
#include "parallel/fully_shard.h"

#include <trireme/trireme.h>

#include <math.h>

enum { STEPS = 3, BATCH = 12, ROOM = 1 << 20 };

/* ---- Nets ---------------------------------------------------------------------------------------------------------- */

/* A net, the parts of it that are units of their own, and what it takes. */
typedef struct kind {
    const char *name;
    tr_module *(*make)(uint64_t seed);
    const char *units[6];
    tr_tensor *(*inputs)(void);
    const char *recomputed; /* this part; NULL: none */
    const char *frozen;
} kind;

static tr_module *make_mlp(uint64_t seed)
{
    return tr_sequential(tr_linear(7, 33, .seed = seed), tr_activation_layer(tr_gelu), tr_layer_norm(33),
        tr_linear(33, 1, .seed = seed + 1, .no_bias = true), tr_linear(1, 19, .seed = seed + 2),
        tr_linear(19, 3, .seed = seed + 3));
}

static tr_tensor *mlp_inputs(void)
{
    return tr_randn(50, TR_SHAPE(BATCH, 7));
}

static tr_module *make_conv(uint64_t seed)
{
    return tr_sequential(tr_conv2d(2, 5, 3, .padding = 1, .seed = seed), tr_batch_norm2d(5), tr_activation_layer(tr_relu),
        tr_conv2d(5, 4, 3, .seed = seed + 1), tr_batch_norm2d(4), tr_flatten_layer(), tr_linear(64, 3, .seed = seed + 2));
}

static tr_tensor *images(void)
{
    return tr_randn(51, TR_SHAPE(BATCH, 2, 6, 6));
}

static tr_module *make_gpt(uint64_t seed)
{
    tr_gpt_options o = {.size = sizeof o};
    if (tr_gpt_preset("nano", &o) != TR_OK) return NULL;
    o.vocab = 50;
    o.dim = 32;
    o.layers = 3;
    o.seed = seed;
    return tr_gpt_with(&o); /* the head is tied to wte */
}

static tr_tensor *tokens(void)
{
    return tr_argmax(tr_randn(52, TR_SHAPE(BATCH, 8, 50)), 2);
}

/* Its unit, the LSTM, has three outputs. */
static tr_module *make_recurrent(uint64_t seed)
{
    return tr_sequential(tr_lstm(5, 6, .seed = seed), tr_flatten_layer(), tr_linear(24, 3, .seed = seed + 1));
}

static tr_tensor *sequences(void)
{
    return tr_randn(54, TR_SHAPE(BATCH, 4, 5));
}

static const kind kinds[] = {
    {.name = "mlp", .make = make_mlp, .units = {"0", "2", "4"}, .inputs = mlp_inputs},
    {.name = "mlp in one unit", .make = make_mlp, .inputs = mlp_inputs},
    {.name = "mlp whose root has nothing left", .make = make_mlp, .units = {"0", "2", "3", "4", "5"}, .inputs = mlp_inputs},
    {.name = "frozen parts", .make = make_mlp, .units = {"0", "4", "5"}, .inputs = mlp_inputs, .frozen = "4"},
    {.name = "frozen in a unit", .make = make_mlp, .inputs = mlp_inputs, .frozen = "3"},
    {.name = "conv", .make = make_conv, .units = {"0", "3"}, .inputs = images},
    {.name = "recurrent", .make = make_recurrent, .units = {"0"}, .inputs = sequences},
    {.name = "gpt", .make = make_gpt, .units = {"h.0", "h.1", "h.2"}, .inputs = tokens},
    {.name = "recomputed unit", .make = make_gpt, .units = {"h.0", "h.1", "h.2"}, .inputs = tokens, .recomputed = "h.1"},
    {.name = "recomputed root", .make = make_gpt, .units = {"h.0", "h.2"}, .inputs = tokens, .recomputed = ""},
    {.name = "units within units", .make = make_gpt, .units = {"h.0.ln_1", "h.0", "h.1.mlp.c_fc", "h.1"}, .inputs = tokens},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static tr_status shard(tr_module *net, const kind *k, bool keeps, tr_group *group)
{
    for (int i = 0; i < 6 && k->units[i]; i++)
        TR__TRY(tr_fully_shard(tr_module_find(net, k->units[i]), group, .keep_after_forward = keeps));
    return tr_fully_shard(net, group);
}

/* Of rows [first, first + n) of the batch. */
static tr_tensor *loss_of(tr_module *net, const kind *k, int64_t first, int64_t n)
{
    tr_tensor *x = tr_slice(k->inputs(), 0, first, first + n), *y = tr_forward(net, x);
    if (k->inputs == tokens) {
        y = tr_reshape(y, TR_SHAPE(n * 8, 50));
        return tr_cross_entropy(y, tr_reshape(x, TR_SHAPE(n * 8)));
    }
    tr_tensor *targets = tr_argmax(tr_randn(53, TR_SHAPE(BATCH, 3)), 1);
    return tr_cross_entropy(y, tr_slice(targets, 0, first, first + n));
}

/* ---- Training ------------------------------------------------------------------------------------------------------- */

typedef struct way {
    tr_optimizer *(*optimizer)(tr_tensor_list *parameters);
    double max_norm; /* 0: no clipping */
    int micro;       /* backwards per step */
    bool evaluates;  /* between the steps */
    bool keeps;      /* .keep_after_forward */
    bool autocasts;  /* to bf16 */
} way;

static tr_optimizer *adamw(tr_tensor_list *p) { return tr_adamw(p, .lr = 1e-2, .decay_matrices_only = true); }
static tr_optimizer *sgd(tr_tensor_list *p) { return tr_sgd(p, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.1); }

static tr_status train(const rank *r, tr_module *net, const kind *k, const way *w, tr_optimizer *opt, int steps)
{
    int64_t rows = BATCH / r->world / w->micro, first = r->number * rows * w->micro;
    TR_AUTOCAST(w->autocasts ? TR_BF16 : TR_F32);
    for (int step = 0; step < steps; step++) {
        TR_SCOPE;
        tr_zero_grad(opt);
        for (int m = 0; m < w->micro; m++)
            TR__TRY(tr_backward(tr_affine(loss_of(net, k, first + m * rows, rows), 1.0 / w->micro, 0)));
        if (w->max_norm > 0) TR__TRY(tr_clip_grad_norm(opt, w->max_norm, NULL));
        TR__TRY(tr_step(opt));
        if (!w->evaluates) continue;
        TR__TRY(tr_eval(net));
        {
            TR_NO_GRAD;
            TR__TRY(tr_status_of(loss_of(net, k, first, rows)));
        }
        TR__TRY(tr_status_of(loss_of(net, k, first, rows))); /* and with a graph that nobody walks */
        TR__TRY(tr_train(net));
    }
    return TR_OK;
}

/* All of a list's values as f32, one after the other; how many. */
static int64_t read_all(const tr_tensor_list *list, float *to)
{
    int64_t n = 0;
    for (int i = 0; i < tr_list_count(list); i++) {
        TR_SCOPE;
        TR_NO_GRAD;
        tr_tensor *t = tr_cast(tr_detach(tr_list_at(list, i)), TR_F32);
        if (n + tr_numel(t) > ROOM || tr_copy_out(t, to + n, (size_t)tr_numel(t) * sizeof *to) != TR_OK) return -1;
        n += tr_numel(t);
    }
    return n;
}

static tr_status prepare(tr_module *net, const kind *k)
{
    if (k->recomputed) TR__TRY(tr_set_recompute(*k->recomputed ? tr_module_find(net, k->recomputed) : net, true));
    return k->frozen ? tr_freeze(tr_module_find(net, k->frozen), true) : TR_OK;
}

/* One process that has the whole batch, whose net has rank 0's values. */
static void compare_with_one(rank *r, const kind *k, const way *w, const float *values)
{
    TR_SCOPE;
    rank alone = {.world = 1};
    float *own = tr_data(tr_empty(TR_SHAPE(ROOM)));
    tr_module *net = k->make(100);
    tr_status status = prepare(net, k);
    if (status == TR_OK) status = train(&alone, net, k, w, w->optimizer(tr_parameters(net)), STEPS);
    int64_t n = status == TR_OK ? read_all(tr_state_dict(net), own) : -1;
    int64_t apart = -1;
    for (int64_t i = 0; i < n && apart < 0; i++)
        if (!(fabsf(own[i] - values[i]) < 1e-4f)) apart = i;
    OK(status);
    CHECK(n > 0 && apart < 0);
}

/* Trains one net with DDP and one sharded; both whole states must have the same bits. */
static void compare(rank *r, const kind *k, const way *w)
{
    TR_SCOPE;
    float *values[2] = {tr_data(tr_empty(TR_SHAPE(ROOM))), tr_data(tr_empty(TR_SHAPE(ROOM)))};
    int64_t n[2] = {0};
    for (int sharded = 0; sharded < 2; sharded++) {
        TR_SCOPE;
        tr_module *net = k->make((uint64_t)(r->number + 1) * 100); /* rank 0's values count */
        OK(prepare(net, k));
        tr_module *run = sharded ? net : tr_ddp(net, r->group);
        if (sharded) OK(shard(net, k, w->keeps, r->group));
        tr_tensor_list *p = tr_parameters(net);
        tr_optimizer *opt = w->optimizer(p);
        OK(train(r, run, k, w, opt, STEPS));
        tr_tensor_list *state = tr_optimizer_state(opt), *whole = tr_state_dict(net);
        if (sharded && r->world > 1) {
            CHECK(tr_list_numel(p) < tr_list_numel(tr_unshard_state(net, p)));
            whole = tr_unshard_state(net, whole);
            state = tr_unshard_state(net, state);
        }
        OK(tr_status_of(whole));
        OK(tr_status_of(state));
        n[sharded] = read_all(whole, values[sharded]);
        CHECK(n[sharded] > 0);
        n[sharded] += read_all(state, values[sharded] + n[sharded]);
    }
    CHECK(n[0] == n[1]);
    for (int64_t i = 0; i < n[0]; i++) {
        bool exact = w->micro == 1 && !(w->max_norm > 0);
        bool same = exact ? values[0][i] == values[1][i] : fabsf(values[0][i] - values[1][i]) < 1e-4f;
        if (!same)
            snprintf(r->failure, sizeof r->failure, "%s: value %lld of %lld is %.9g with DDP and %.9g sharded, on rank %d of %d",
                k->name, (long long)i, (long long)n[0], values[0][i], values[1][i], r->number, r->world);
        if (!same) break;
    }
    /* A batch norm sees the rank's rows; AdamW makes steps of rounding errors where a gradient is zero. */
    if (!r->failure[0] && k->inputs != images && w->optimizer == sgd && !w->autocasts) compare_with_one(r, k, w, values[1]);
}

static void every_kind(rank *r)
{
    for (int i = 0; i < N_KINDS && !r->failure[0]; i++) compare(r, &kinds[i], r->arg);
    if (!r->failure[0]) OK(tr_leave(r->group));
}

static void all_worlds(const way *w)
{
    for (int world = 1; world <= 4; world++) run(world, every_kind, w);
}

static void the_bits_are_those_of_ddp(void **state)
{
    (void)state;
    all_worlds(&(way){.optimizer = adamw, .micro = 1});
    all_worlds(&(way){.optimizer = sgd, .micro = 1});
    run(2, every_kind, &(way){.optimizer = sgd, .micro = 1, .autocasts = true});
    run_tcp(2, every_kind, NULL, &(way){.optimizer = sgd, .micro = 1});
}

static void it_clips_and_accumulates(void **state)
{
    (void)state;
    all_worlds(&(way){.optimizer = sgd, .micro = 1, .max_norm = 0.5});
    run(2, every_kind, &(way){.optimizer = sgd, .micro = 3});
}

static void it_evaluates_between_steps(void **state)
{
    (void)state;
    run(3, every_kind, &(way){.optimizer = adamw, .micro = 1, .evaluates = true});
}

/* ---- Graphs ----------------------------------------------------------------------------------------------------------- */

/* The gradients of a list whole, as f32. */
static int64_t read_gradients(tr_module *net, float *to, bool sharded)
{
    tr_tensor_list *p = tr_parameters(net), *g = tr_list_new();
    for (int i = 0; i < tr_list_count(p); i++)
        if (tr_list_add(g, tr_list_name(p, i), tr_grad(tr_list_at(p, i))) != TR_OK) return -1;
    return read_all(sharded ? tr_unshard_state(net, g) : g, to);
}

/* Two forwards and one backward; a graph that is walked twice, and while another waits; a part that runs alone. */
static tr_status walk_graphs(tr_module *net, tr_module *run)
{
    TR_SCOPE;
    tr_tensor *x = tr_randn(60, TR_SHAPE(4, 7)), *z = tr_randn(61, TR_SHAPE(4, 19));
    tr_tensor *y = tr_add(tr_forward(run, x), tr_mul(tr_forward(run, tr_affine(x, 2, 0)), tr_forward(run, x)));
    TR__TRY(tr_backward(tr_mean(tr_mul(y, y)), .retain_graph = true));
    tr_tensor *other = tr_mean(tr_forward(run, tr_affine(x, -1, 0)));
    TR__TRY(tr_backward(tr_mean(y)));
    TR__TRY(tr_backward(other));
    return run == net ? tr_backward(tr_mean(tr_forward(tr_module_find(net, "5"), z))) : TR_OK;
}

static void compare_graphs(rank *r)
{
    static _Thread_local float values[2][4096];
    int64_t n[2] = {0};
    for (int sharded = 0; sharded < 2; sharded++) {
        TR_SCOPE;
        kind k = kinds[0];
        k.units[3] = "5";
        tr_module *net = k.make(100);
        tr_module *run = sharded ? net : tr_ddp(net, r->group);
        if (sharded) OK(shard(net, &k, false, r->group));
        OK(walk_graphs(net, run));
        if (!sharded) OK(tr_backward(tr_mean(tr_forward(tr_module_find(net, "5"), tr_randn(61, TR_SHAPE(4, 19))))));
        n[sharded] = read_gradients(net, values[sharded], sharded);
    }
    CHECK(n[0] > 0 && n[0] == n[1]);
    for (int64_t i = 0; i < n[0]; i++) CHECK(fabsf(values[0][i] - values[1][i]) < 1e-5f);
    OK(tr_leave(r->group));
}

static void graphs_may_have_any_form(void **state)
{
    (void)state;
    run(2, compare_graphs, NULL);
    run(3, compare_graphs, NULL);
}

typedef struct half {
    tr_module *used;
} half;

static tr_tensor *half_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    return tr_forward(((half *)tr_module_state(self))->used, inputs[0]);
}

/* What takes no part has a gradient of zero, as with DDP. */
static void leave_a_half_out(rank *r)
{
    tr_module *net = tr_module_new("half", sizeof(half), half_forward);
    ((half *)tr_module_state(net))->used = tr_module_add(net, "used", tr_linear(4, 3, .seed = 1));
    tr_module_add(net, "unused", tr_linear(5, 9, .seed = 2));
    OK(tr_fully_shard(net, r->group));
    OK(tr_backward(tr_sum(tr_forward(net, tr_ones(TR_SHAPE(2, 4))))));
    float values[4 * 3 + 3 + 5 * 9 + 9];
    CHECK(read_gradients(net, values, true) == (int64_t)(sizeof values / sizeof *values));
    for (int i = 0; i < 15; i++) CHECK(values[i] == 2);
    for (int i = 15; i < 15 + 54; i++) CHECK(values[i] == 0);
    OK(tr_leave(r->group));
}

static void what_takes_no_part_has_zeros(void **state)
{
    (void)state;
    run(3, leave_a_half_out, NULL);
}

typedef struct watcher {
    const tr_module *unit;
    int recomputed, gathered; /* how often, and in how many of these backward had gathered the unit */
} watcher;

static tr_tensor *watch(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    watcher *w = tr_module_state(self);
    w->recomputed += tr_recomputing();
    w->gathered += tr_recomputing() && ((const tr__unit *)(const void *)w->unit->around)->running;
    return inputs[0];
}

/* Backward gathers it once: then the forward runs again. */
static void recompute_a_unit(rank *r)
{
    tr_module *w = tr_module_new("watch", sizeof(watcher), watch);
    tr_module *part = tr_sequential(tr_linear(7, 5, .seed = 1), tr_activation_layer(tr_gelu), w, tr_linear(5, 7, .seed = 2));
    tr_module *net = tr_sequential(tr_linear(7, 7, .seed = 3), part, tr_linear(7, 2, .seed = 4));
    watcher *seen = tr_module_state(w);
    seen->unit = part;
    OK(tr_set_recompute(part, true));
    OK(tr_fully_shard(part, r->group));
    OK(tr_fully_shard(net, r->group));
    OK(tr_backward(tr_mean(tr_forward(net, mlp_inputs()))));
    CHECK(seen->recomputed == 1 && seen->gathered == 1);
    OK(tr_leave(r->group));
}

static void a_unit_is_gathered_before_it_is_recomputed(void **state)
{
    (void)state;
    run(2, recompute_a_unit, NULL);
}

/* ---- Memory ----------------------------------------------------------------------------------------------------------- */

enum { WIDTH = 256, DEPTH = 6 };

static bool is_here(tr_module *net, const char *path)
{
    const tr__unit *u = (const tr__unit *)(const void *)tr_module_find(net, path)->around;
    return u->whole->parameters->storage->data != NULL;
}

static int64_t bytes_in_use(bool peak)
{
    tr_device_memory m = {.size = sizeof m};
    return tr_device_memory_of(tr_cpu(0), &m) == TR_OK ? (peak ? m.peak : m.in_use) : -1;
}

/* All ranks' tensors are on one device: each rank reads its counters between barriers, while no rank allocates or frees. */
static void count_bytes(rank *r)
{
    tr_module *layers[DEPTH + 1];
    for (int i = 0; i <= DEPTH; i++) layers[i] = tr_linear(WIDTH, i < DEPTH ? WIDTH : 8, .no_bias = true, .seed = (uint64_t)i + 1);
    tr_module *net = tr_sequential_n(layers, DEPTH + 1);
    const int64_t layer = WIDTH * WIDTH * (int64_t)sizeof(float), ranks = r->world;
    OK(tr_barrier(r->group));
    int64_t before = bytes_in_use(false);
    OK(tr_barrier(r->group));
    for (int i = 0; i < DEPTH; i++) OK(tr_fully_shard(tr_module_find(net, (char[]){(char)('0' + i), 0}), r->group));
    OK(tr_fully_shard(net, r->group));
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 0.1, .momentum = 0.9);
    OK(tr_status_of(opt));
    OK(tr_barrier(r->group));
    /* Of all ranks together: parameters once, not `ranks` times; gradients once, and momentum once. */
    int64_t sharded = bytes_in_use(false);
    CHECK(sharded - before < DEPTH * layer * (3 - ranks) + layer);
    OK(tr_barrier(r->group));
    OK(tr_device_reset_peak(tr_cpu(0)));
    OK(tr_barrier(r->group));
    for (int i = 0; i < 2; i++) {
        TR_SCOPE;
        tr_tensor *y = tr_forward(net, tr_randn(1, TR_SHAPE(1, WIDTH)));
        for (int k = 0; k < DEPTH; k++) CHECK(!is_here(net, (char[]){(char)('0' + k), 0}));
        CHECK(is_here(net, "")); /* the root stays for its backward */
        OK(tr_backward(tr_mean(y)));
        CHECK(!is_here(net, ""));
        OK(tr_step(opt));
        tr_zero_grad(opt);
    }
    OK(tr_barrier(r->group));
    /* At a time a rank has the parameters and the gradients of one layer, and those of the small root. */
    CHECK(bytes_in_use(true) - sharded < ranks * 5 * layer / 2);
    OK(tr_barrier(r->group));
    {
        TR_NO_GRAD;
        OK(tr_status_of(tr_forward(net, tr_randn(1, TR_SHAPE(1, WIDTH)))));
        CHECK(!is_here(net, ""));
    }
    OK(tr_barrier(r->group));
    CHECK(bytes_in_use(false) - sharded < layer);
    OK(tr_leave(r->group));
}

static void memory_comes_and_goes(void **state)
{
    (void)state;
    run(2, count_bytes, NULL);
    run(3, count_bytes, NULL);
}

static void keep_a_unit(rank *r)
{
    tr_module *net = kinds[0].make(1);
    OK(tr_fully_shard(tr_module_find(net, "0"), r->group, .keep_after_forward = true));
    OK(tr_fully_shard(tr_module_find(net, "4"), r->group));
    OK(tr_fully_shard(net, r->group));
    tr_tensor *y = tr_forward(net, mlp_inputs());
    CHECK(is_here(net, "0") && !is_here(net, "4") && is_here(net, ""));
    OK(tr_backward(tr_mean(y)));
    CHECK(!is_here(net, "0") && !is_here(net, "4") && !is_here(net, ""));
    OK(tr_leave(r->group));
}

static void a_unit_may_stay_until_backward(void **state)
{
    (void)state;
    run(2, keep_a_unit, NULL);
    run(2, every_kind, &(way){.optimizer = sgd, .micro = 1, .keeps = true});
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------------------- */

static const way steady = {.optimizer = sgd, .micro = 1};

static void save(rank *r)
{
    const kind *k = &kinds[0];
    tr_module *net = k->make(100);
    OK(shard(net, k, false, r->group));
    tr_optimizer *opt = sgd(tr_parameters(net));
    OK(train(r, net, k, &steady, opt, STEPS));
    tr_tensor_list *model = tr_unshard_state(net, tr_state_dict(net)), *state = tr_unshard_state(net, tr_optimizer_state(opt));
    if (r->number == 0) OK(tr_checkpoint_save(files_path("saved"), STEPS, model, state));
    OK(tr_leave(r->group));
}

/* Loads into a net that is sharded, or with one rank into a plain one, and goes on. */
static void resume(rank *r)
{
    static _Thread_local float values[2][4096];
    const kind *k = &kinds[0];
    tr_tensor_list *model, *state;
    char path[4096];
    int64_t step = 0;
    OK(tr_checkpoint_find(r->arg, path, &step));
    OK(tr_checkpoint_load(path, &model, &state));
    tr_module *net = k->make(7), *other = k->make(100);
    OK(shard(net, k, false, r->group));
    tr_optimizer *opt = sgd(tr_parameters(net));
    OK(tr_load_state_dict(net, tr_shard_state(net, model)));
    OK(tr_optimizer_load(opt, tr_shard_state(net, state)));
    OK(train(r, net, k, &steady, opt, STEPS));
    rank alone = {.world = 1};
    OK(train(&alone, other, k, &steady, sgd(tr_parameters(other)), 2 * STEPS));
    int64_t n = read_all(tr_unshard_state(net, tr_state_dict(net)), values[0]);
    CHECK(n > 0 && read_all(tr_state_dict(other), values[1]) == n);
    for (int64_t i = 0; i < n; i++) CHECK(fabsf(values[0][i] - values[1][i]) < 1e-4f);
    OK(tr_leave(r->group));
}

static void checkpoints_fit_any_number_of_ranks(void **state)
{
    (void)state;
    run(3, save, NULL);
    for (int world = 1; world <= 4; world++) run(world, resume, files_path("saved"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_ddp),
        cmocka_unit_test(it_clips_and_accumulates),
        cmocka_unit_test(it_evaluates_between_steps),
        cmocka_unit_test(graphs_may_have_any_form),
        cmocka_unit_test(what_takes_no_part_has_zeros),
        cmocka_unit_test(a_unit_is_gathered_before_it_is_recomputed),
        cmocka_unit_test(memory_comes_and_goes),
        cmocka_unit_test(a_unit_may_stay_until_backward),
        cmocka_unit_test(checkpoints_fit_any_number_of_ranks),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
