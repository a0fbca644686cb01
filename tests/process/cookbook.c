/* The functions of docs/cookbook.md, on three classes of points that a small net can tell apart. */
#include <cookbook.c>

#include <stdlib.h>

static tr_status point(const tr_sample_call *call, tr_sample *out)
{
    int64_t label = call->index % 3;
    out->x = tr_affine(tr_randn(call->seed, TR_SHAPE(2)), 0.1, (double)label); /* [2] */
    out->y = tr_scalar((double)label, TR_I64);
    return TR_OK;
}

static void check(bool holds, const char *what)
{
    if (holds) return;
    printf("failed: %s\n", what);
    exit(1);
}

static tr_module *parallel_layers(tr_group *tp)
{
    tr_module *net = tr_module_new("layers", 0, NULL);
    tr_module_add(net, "up", tr_column_linear(4, 8, .group = tp, .seed = 5));
    tr_module_add(net, "down", tr_row_linear(8, 4, .group = tp, .seed = 6));
    return net;
}

static tr_tensor *through(tr_module *net)
{
    tr_tensor *h = tr_relu(tr_forward(tr_module_find(net, "up"), tr_ones(TR_SHAPE(2, 4))));
    return tr_mean(tr_forward(tr_module_find(net, "down"), h));
}

static void check_same(const tr_tensor_list *a, const tr_tensor_list *b, const char *what)
{
    check(tr_list_count(a) == tr_list_count(b), what);
    for (int i = 0; i < tr_list_count(a); i++) {
        tr_tensor *x = tr_list_at(a, i), *y = tr_list_find(b, tr_list_name(a, i));
        check(y && tr_numel(x) == tr_numel(y) && tr_item(tr_max(tr_abs(tr_sub(tr_cast(x, TR_F64), tr_cast(y, TR_F64))))) < 1e-6, what);
    }
}

/* On as many ranks as there are, on one, and back. */
static void change_the_number_of_slices(tr_group *world)
{
    TR_SCOPE;
    tr_group *alone = tr_group_split(world, tr_rank(world), 0);
    tr_module *cut = parallel_layers(world), *whole = parallel_layers(alone);
    tr_optimizer *of_cut = tr_adam(tr_parameters(cut)), *of_whole = tr_adam(tr_parameters(whole));
    TR_CHECK(tr_backward(through(cut)));
    TR_CHECK(tr_step(of_cut));
    tr_tensor_list *model = join_slices(tr_state_dict(cut), world), *state = join_slices(tr_optimizer_state(of_cut), world);
    TR_CHECK(tr_backward(through(whole)));
    TR_CHECK(tr_step(of_whole));
    check_same(model, tr_state_dict(whole), "joined slices are the whole layers");
    check_same(state, tr_optimizer_state(of_whole), "and their moments those of one optimizer");
    TR_CHECK(tr_load_state_dict(whole, cut_slices(model, alone)));
    TR_CHECK(tr_optimizer_load(of_whole, cut_slices(state, alone)));
    tr_module *again = parallel_layers(world);
    tr_optimizer *of_again = tr_adam(tr_parameters(again));
    TR_CHECK(tr_load_state_dict(again, cut_slices(tr_state_dict(whole), world)));
    TR_CHECK(tr_optimizer_load(of_again, cut_slices(tr_optimizer_state(of_whole), world)));
    check_same(tr_state_dict(again), tr_state_dict(cut), "cut again they are the slices");
    check_same(tr_optimizer_state(of_again), tr_optimizer_state(of_cut), "and so are their moments");
}

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    char path[4096], best[4096];
    job j = {.world = tr_join()};
    bool first = tr_rank(j.world) == 0;
    tr_dataset *set = tr_dataset_new(240, point, .name = "points");
    j.net = tr_sequential(tr_linear(2, 32, .seed = 1), tr_relu_layer(), tr_linear(32, 3, .seed = 2));
    j.ddp = tr_ddp(j.net, j.world);
    j.opt = tr_adamw(tr_parameters(j.net), .lr = 1e-2);
    j.loader = tr_loader_new(set, .batch = 20, .shuffle = true, .group = j.world);
    TR_CHECK(tr_status_of(j.loader));

    slow_down_the_first_layer(&j);
    accumulate(&j, 3);
    check(clipped_step(&j, 0, 10) > 0, "a gradient has a norm");
    TR_CHECK(tr_check_replicas(j.world, tr_parameters(j.net)));
    check(mean_over_all_ranks(&j, 6, 1 + tr_rank(j.world)) == 12.0 / (1 + tr_world_size(j.world)), "a mean over the ranks");
    check(sizes_that_do_not_fit() == 0, "sizes that do not fit are an error");

    TR_CHECK(tr_set_lr(j.opt, 5e-2)); /* the schedule has left its own */
    snprintf(path, sizeof path, "%s/best", argv[1]);
    tr_loader *validation = tr_loader_new(set, .batch = 20, .group = j.world);
    int epochs = train_until_it_stops_improving(&j, validation, path);
    tr_score score;
    TR_CHECK(tr_evaluate(j.net, validation, .group = j.world, .score = &score));
    tr_tensor_list *saved;
    TR_CHECK(tr_checkpoint_find_best(path, best, NULL, NULL));
    TR_CHECK(tr_checkpoint_load(best, &saved, NULL));
    check(tr_item(tr_sum(tr_abs(tr_sub(tr_list_find(saved, "0.weight"), tr_list_find(tr_parameters(j.net), "0.weight"))))) == 0,
        "the net is that of the best checkpoint");
    check(score.accuracy > 0.95, "it learns to tell the points apart");
    if (first) printf("%d epochs, accuracy %.3f\n", epochs, score.accuracy);

    tr_optimizer *critic = tr_sgd(tr_parameters(tr_linear(2, 2)), .lr = 0.1, .momentum = 0.9);
    snprintf(path, sizeof path, "%s/two-%d.safetensors", argv[1], tr_rank(j.world));
    save_two(path, j.opt, critic);
    load_two(path, j.opt, critic);

    snprintf(path, sizeof path, "%s/net-%d.safetensors", argv[1], tr_rank(j.world));
    TR_CHECK(tr_safetensors_save(path, tr_state_dict(j.net)));
    tr_module *tuned = fine_tune(path, 5);
    check(!tr_requires_grad(tr_list_find(tr_parameters(tuned), "0.weight")), "the body is frozen");
    check(tr_item(tr_sum(tr_sub(tr_list_find(tr_parameters(tuned), "0.weight"), tr_list_find(tr_parameters(j.net), "0.weight")))) == 0,
        "the body has the loaded weights");

    tr_module *net = tr_lstm(1, 16), *head = tr_linear(16, 1);
    tr_module *both = tr_sequential(net, head); /* for its list of parameters */
    double loss = learn_to_remember(net, head, tr_adam(tr_parameters(both), .lr = 1e-2), 300);
    check(loss < 0.03, "a recurrent net learns what came two steps before"); /* 1/12 is the variance of what it is to say */
    if (first) printf("remembers with %.4f\n", loss);

    int ranks = tr_world_size(j.world), rank = tr_rank(j.world);
    tr_mesh *mesh = tr_mesh_new(j.world, .pp = ranks); /* each rank is a stage */
    snprintf(path, sizeof path, "%s/parts", argv[1]);
    j.net = tr_linear(2, 2 + rank);
    j.opt = tr_sgd(tr_parameters(j.net), .momentum = 0.9);
    tr_tensor *bias = tr_list_find(tr_parameters(j.net), "bias");
    check(resume_parts(&j, mesh, path) == 0, "there is nothing to resume from");
    TR_CHECK(tr_fill(bias, 10 + rank));
    save_parts(&j, mesh, path, 10);
    if (first && ranks > 1) { /* and ended before the others had saved theirs */
        char folder[256];
        part_folder(path, mesh, folder);
        TR_CHECK(tr_fill(bias, 20));
        TR_CHECK(tr_checkpoint_save(folder, 20, tr_state_dict(j.net), tr_optimizer_state(j.opt)));
    }
    TR_CHECK(tr_fill(bias, -1));
    check(resume_parts(&j, mesh, path) == 10 && tr_item(tr_max(bias)) == 10 + rank, "all parts go on from the older checkpoint");
    save_parts(&j, mesh, path, 20);
    check(resume_parts(&j, mesh, path) == 20, "and save again what one had saved");
    TR_CHECK(tr_mesh_leave(mesh));
    change_the_number_of_slices(j.world);
    TR_CHECK(tr_leave(j.world));
    return 0;
}
