/* NULL where something is needed: each function answers with TR_INVALID and says which argument it was. */
#include <trireme/tools.h>

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static tr_status same_shape(tr_op_call *call)
{
    return tr_op_output(call, 0, tr_shape_of(call->inputs[0]), TR_F32);
}

static tr_status does_nothing(tr_op_call *call)
{
    (void)call;
    return TR_OK;
}

static tr_status gives_the_second(tr_op_call *call)
{
    return tr_op_output(call, 1, TR_SHAPE(3), TR_F32);
}

static tr_status apply(const tr_op *op)
{
    tr_tensor *x = tr_ones(TR_SHAPE(3));
    return tr_status_of(tr_apply(op, NULL, &x, 1, NULL));
}

static tr_status hook(tr_grad_hook function)
{
    tr_tensor *leaf = tr_ones(TR_SHAPE(3), .requires_grad = true);
    return tr_grad_hook_add(leaf, function, NULL) == -1 ? TR_INVALID : TR_OK;
}

static tr_tensor *identity(tr_tensor *const *inputs, int n, void *user)
{
    (void)n, (void)user;
    return inputs[0];
}

/* Words: of the latest message, which is that of the call whose status this is. */
static void refused(tr_status status, const char *words)
{
    if (!strstr(tr_error_message(), words)) fail_msg("\"%s\" does not say \"%s\"", tr_error_message(), words);
    assert_int_equal(status, TR_INVALID);
}

#define OP(...) apply(&(tr_op){__VA_ARGS__})

static void null_is_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_ones(TR_SHAPE(2, 2)), *none = NULL, *out;
    tr_tensor_list *list = tr_list_new();
    tr_module *net = tr_linear(2, 2);
    tr_group *alone = tr_join(.world_size = 1);
    tr_device device;
    const size_t size = sizeof(tr_op);
    refused(apply(NULL), "tr_apply: the op is NULL");
    refused(OP(.size = size, .infer = same_shape, .forward = does_nothing), "tr_apply: the op has no .name");
    refused(OP(.size = size, .name = "mine", .infer = same_shape), "mine: the op has no .forward");
    refused(OP(.size = size, .name = "mine", .forward = does_nothing), "mine: the op has no .infer");
    refused(OP(.name = "mine", .infer = same_shape, .forward = does_nothing), "mine: the op's .size is 0: it is sizeof(tr_op), ");
    refused(OP(.size = size, .name = "mine", .infer = does_nothing, .forward = does_nothing), "mine: its infer did not make output 0");
    refused(OP(.size = size, .name = "mine", .infer = gives_the_second, .forward = does_nothing),
        "mine: its infer did not make output 0: tr_op_output(call, 0, shape, dtype)");
    static const tr_op mine = {.size = sizeof(tr_op), .name = "mine", .infer = same_shape, .forward = does_nothing};
    refused(tr_status_of(tr_apply(&mine, NULL, NULL, 1, NULL)), "mine: inputs is NULL");
    refused(tr_status_of(tr_einsum(NULL, x, x)), "einsum: the equation is NULL");
    refused(tr_status_of(tr_cat(NULL, 2, 0)), "cat: parts is NULL");
    refused(tr_status_of(tr_stack(NULL, 2, 0)), "stack: parts is NULL");
    refused(tr_status_of(tr_permute(x, NULL, 2)), "permute: the order is NULL");
    refused(tr_copy_out_element(0, x, NULL, 16), "copy_out: the memory to copy to is NULL");
    refused(tr_list_add(list, NULL, x), "list_add: the name is NULL");
    refused(tr_list_set_metadata(list, NULL, "x"), "list_set_metadata: the key is NULL");
    refused(tr_list_set_metadata(list, "x", NULL), "list_set_metadata: the value is NULL");
    refused(tr_module_find(net, NULL) ? TR_OK : tr_fail(TR_INVALID, "none"), "none");
    refused(tr_forward_many(net, NULL, 1, NULL, 1), "tr_forward_many: outputs is NULL");
    refused(tr_forward_many(net, NULL, 1, &out, 1), "tr_forward_many: inputs is NULL");
    refused(tr_status_of(tr_forward_n(net, NULL, 1)), "tr_forward_many: inputs is NULL");
    refused(tr_status_of(tr_forward(net, none)), "linear: it takes one input, which is NULL");
    refused(tr_status_of(tr_forward((tr_module *)(void *)x, x)), "tr_forward: not a module, but a tensor");
    refused(tr_status_of(tr_sequential_n(NULL, 2)), "sequential: the modules are NULL");
    refused(tr_grad_check(NULL, &x, 1, NULL, 1e-3), "grad_check: the function is NULL");
    refused(tr_grad_check(identity, NULL, 1, NULL, 1e-3), "grad_check: the inputs are NULL");
    refused(hook(NULL), "grad_hook_add: the hook is NULL");
    refused(tr_status_of(tr_scale_loss(tr_grad_scaler_new(), NULL)), "tr_scale_loss: the loss is NULL");
    refused(tr_device_parse(NULL, &device), "device_parse: the text is NULL");
    refused(tr_device_parse("cpu", NULL), "device_parse: out is NULL");
    refused(tr_device_kind_named(NULL, &device.kind), "device_kind_named: the name is NULL");
    refused(tr_device_kind_named("cpu", NULL), "device_kind_named: out is NULL");
    refused(tr_device_describe(tr_cpu(0), NULL), "device_describe: out is NULL");
    refused(tr_device_memory_of(tr_cpu(0), NULL), "device_memory_of: out is NULL");
    refused(tr_checkpoint_verify(NULL), "checkpoint_verify: the path is NULL");
    refused(tr_safetensors_save("/tmp/trireme-none", NULL), "safetensors_save: the list is NULL");
    refused(tr_safetensors_save(NULL, list), "the path of the file to write is NULL");
    refused(tr_agree((tr_group *)NULL, "a", 3), "tr_agree: the group is NULL");
    refused(tr_agree(alone, NULL, 3), "tr_agree: the name is NULL");
    assert_true(tr_list_count(list) == 0 && tr_list_metadata_count(list) == 0);
}

static void null_is_refused_by_the_tools(void **state)
{
    (void)state;
    TR_SCOPE;
    const char *const argv[] = {"true", NULL};
    tr_cluster *cluster = tr_cluster_open(NULL);
    tr_cluster_job job;
    refused(tr_cluster_check(NULL, NULL, NULL, NULL), "cluster_check: the cluster is NULL");
    refused(tr_cluster_run(NULL, argv), "cluster_run: the cluster is NULL");
    refused(tr_cluster_status(NULL, NULL, &job), "cluster_status: the cluster is NULL");
    refused(tr_cluster_status(cluster, NULL, NULL), "cluster_status: out is NULL");
    refused(tr_cluster_logs(NULL, NULL, false, NULL, NULL), "cluster_logs: the cluster is NULL");
    refused(tr_cluster_logs(cluster, NULL, false, NULL, NULL), "cluster_logs: the function is NULL");
    refused(tr_cluster_stop(NULL, NULL, 0), "cluster_stop: the cluster is NULL");
    assert_int_equal(tr_cluster_count(NULL), 0);
    assert_null(tr_cluster_host_at(NULL, 0));
    refused(tr_status_of(tr_progress_new(NULL)), "progress: the stream is NULL");
    refused(tr_chart_svg("/tmp/trireme-none", NULL, NULL, 0), "chart_svg: the title is NULL");
    refused(tr_predict(TR_ALL_REDUCE, NULL, 4, 4, NULL, NULL), "tr_predict: seconds is NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(null_is_refused), cmocka_unit_test(null_is_refused_by_the_tools)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
