// The same API from C++20: named optional arguments, scopes, lambdas as hooks.
#include <trireme/trireme.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

static tr_status count(tr_tensor *, tr_tensor *, void *user)
{
    ++*static_cast<int *>(user);
    return TR_OK;
}

static tr_status half_infer(tr_op_call *call)
{
    return tr_op_output(call, 0, tr_shape_of(call->inputs[0]), TR_F32);
}

static tr_status half_forward(tr_op_call *call)
{
    const float *x = static_cast<const float *>(tr_data(call->inputs[0]));
    float *y = static_cast<float *>(tr_data(call->outputs[0]));
    for (std::int64_t i = 0; i < tr_numel(call->inputs[0]); i++) y[i] = x[i] / 2;
    return TR_OK;
}

static const tr_op half = {.size = sizeof(tr_op), .name = "half", .infer = half_infer, .forward = half_forward};

int main()
{
    tr_tensor *six = tr_full(6, TR_SHAPE(1));
    if (tr_item(tr_apply(&half, nullptr, &six, 1, nullptr)) != 3) return 1;

    tr_module *net = tr_sequential(tr_linear(4, 8, .no_bias = true, .seed = 1), tr_activation_layer(tr_relu), tr_linear(8, 3));
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-2, .weight_decay = 0.1);
    tr_sgd_options options{}; // what the macro fills in, by hand, as a binding does
    options.size = sizeof options;
    options.parameters = tr_parameters(net);
    options.lr = 0.1;
    TR_CHECK(tr_status_of(tr_sgd_with(&options)));

    int hooks = 0;
    tr_tensor *weight = tr_list_find(tr_parameters(net), "0.weight");
    if (tr_grad_hook_add(weight, count, &hooks) < 0) return 1;

    double first = 0, last = 0;
    tr_tensor *x = tr_randn(3, TR_SHAPE(6, 4)), *y = tr_zeros(TR_SHAPE(6), .dtype = TR_I64);
    tr_sample sample;
    TR_CHECK(tr_dataset_at(tr_dataset_tensors(x, y, .more = {y, nullptr, x}), 5, &sample));
    if (sample.more[1] || tr_numel(sample.more[2]) != 4) return 1;
    for (int step = 0; step < 20; step++) {
        TR_SCOPE;
        tr_tensor *loss = tr_cross_entropy(tr_forward(net, x), y);
        tr_zero_grad(opt);
        TR_CHECK(tr_backward(loss));
        TR_CHECK(tr_clip_grad_norm(opt, 1.0, nullptr));
        TR_CHECK(tr_step(opt));
        last = tr_item(loss);
        if (step == 0) first = last;
    }
    char folder[] = "/tmp/trireme-cpp20-XXXXXX", csv[64], path[4096];
    if (!mkdtemp(folder)) return 1;
    std::snprintf(csv, sizeof csv, "%s/metrics.csv", folder);
    tr_metrics *metrics = tr_metrics_open(csv, .item = "sample");
    tr_metrics_row row{};
    row.step = 20;
    row.loss = last;
    TR_CHECK(tr_metrics_add(metrics, &row));
    TR_CHECK(tr_checkpoint_save(folder, 20, tr_state_dict(net), tr_optimizer_state(opt), .metrics = metrics));
    TR_CHECK(tr_checkpoint_find(folder, path, &row.step));
    TR_CHECK(tr_status_of(tr_metrics_open(csv, .checkpoint = path, .item = "sample")));
    if (std::system((std::string("rm -r ") + folder).c_str())) return 1;

    tr_group *alone = tr_join();
    // Options that come before .file:
    TR_CHECK(tr_status_of(tr_ddp(tr_linear(2, 2), alone, .bucket_mb = 1, .compress = TR_BF16, .modules_may_differ = true)));
    float one = 1;
    TR_CHECK(tr_all_reduce(alone, &one, 1, .op = TR_AVG));
    float block[2] = {1, 2}, all[2];
    std::int64_t counts[1] = {2};
    TR_CHECK(tr_all_gather(alone, block, all, 2));
    TR_CHECK(tr_reduce_scatter(alone, block, all, 2, .dtype = TR_F32, .op = TR_MAX));
    TR_CHECK(tr_all_to_all_v(alone, block, all, .in_counts = counts, .out_counts = counts));
    TR_CHECK(tr_wait(tr_gather_v_async(alone, block, all, 2, .root = 0, .out_counts = counts)));
    tr_collective list[] = {TR_COLLECTIVE(TR_ALL_REDUCE, .out = &one, .count = 1), TR_COLLECTIVE(TR_BARRIER)};
    TR_CHECK(tr_run_list(alone, list, 2));
    TR_CHECK(tr_agree(alone, "lr", 0.1));
    TR_CHECK(tr_agree(alone, "folds", 5));
    TR_CHECK(tr_agree(alone, "preset", "nano"));
    TR_CHECK(tr_barrier(alone));
    TR_CHECK(tr_leave(alone));
    std::printf("loss %.4f -> %.4f, %d hooks\n", first, last, hooks);
    return last < first && hooks == 20 ? 0 : 1;
}
