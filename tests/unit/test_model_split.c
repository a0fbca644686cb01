/* One graph over several devices, and DDP over modules that span them: the numbers of one device. */
#include "comm_ranks.h"

#include "tensor/tensor.h"

#include <trireme/trireme.h>

#include <math.h>
#include <stdlib.h>

enum { PARTS = 3, BATCH = 24, STEPS = 4 };

/* Three layers, each where it lies; the first layer's output goes to the second and, around it, to the third. */
typedef struct split {
    tr_module *part[PARTS];
} split;

static tr_tensor *split_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const split *s = tr_module_state(self);
    tr_device at[PARTS];
    for (int i = 0; i < PARTS; i++) at[i] = tr_device_of(tr_list_at(tr_parameters(s->part[i]), 0));
    tr_tensor *first = tr_gelu(tr_forward(s->part[0], tr_to(inputs[0], at[0])));
    tr_tensor *second = tr_tanh(tr_forward(s->part[1], tr_to(first, at[1])));
    tr_tensor *both = tr_add(tr_to(first, at[2]), tr_to(second, at[2]));
    return tr_to(tr_forward(s->part[2], both), at[0]);
}

/* devices: on so many, round and round. */
static tr_module *make_net(int devices, uint64_t seed)
{
    tr_module *net = tr_module_new("split", sizeof(split), split_forward);
    split *s = tr_module_state(net);
    int64_t widths[] = {6, 16, 16, 3};
    for (int i = 0; i < PARTS; i++) {
        s->part[i] = tr_linear(widths[i], widths[i + 1], .seed = seed + (uint64_t)i);
        if (tr_module_to(s->part[i], tr_cpu(i % devices)) != TR_OK) return tr_module_fail(TR_DEVICE, "%s", tr_error_message());
        tr_module_add(net, (const char *[]){"a", "b", "c"}[i], s->part[i]);
    }
    return net;
}

static tr_status train(tr_module *net, int64_t begin, int64_t end)
{
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-2);
    tr_tensor *x = tr_randn(50, TR_SHAPE(BATCH, 6)), *y = tr_argmax(tr_slice(x, 1, 0, 3), 1);
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        tr_zero_grad(opt);
        TR__TRY(tr_backward(tr_cross_entropy(tr_forward(net, tr_slice(x, 0, begin, end)), tr_slice(y, 0, begin, end))));
        TR__TRY(tr_clip_grad_norm(opt, 0.5, NULL));
        TR__TRY(tr_step(opt));
    }
    return TR_OK;
}

static double apart(tr_module *a, tr_module *b)
{
    TR_NO_GRAD;
    tr_tensor_list *x = tr_parameters(a), *y = tr_parameters(b);
    double worst = 0;
    for (int i = 0; i < tr_list_count(x); i++) {
        tr_tensor *p = tr_to(tr_list_at(x, i), tr_cpu(0)), *q = tr_to(tr_list_at(y, i), tr_cpu(0));
        worst = fmax(worst, tr_item(tr_max(tr_abs(tr_sub(p, q)))));
    }
    return worst;
}

static void a_graph_may_span_devices(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *one = make_net(1, 1);
    assert_int_equal(train(one, 0, BATCH), TR_OK);
    for (int devices = 2; devices <= PARTS; devices++) {
        tr_module *net = make_net(devices, 1);
        assert_int_equal(train(net, 0, BATCH), TR_OK);
        assert_true(apart(net, one) < 1e-6); /* the same kernels in the same order */
        for (int i = 0; i < PARTS; i++) {
            tr_tensor *p = tr_list_at(tr_parameters(net), 2 * i);
            assert_true(tr_device_equal(tr_device_of(p), tr_cpu(i % devices)));
            assert_true(tr_device_equal(tr_device_of(tr_grad(p)), tr_cpu(i % devices)));
        }
    }
}

static void devices_that_are_mixed_up_are_named(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = make_net(2, 1);
    const split *s = tr_module_state(net);
    tr_tensor *x = tr_ones(TR_SHAPE(2, 16));
    FAILS(TR_DEVICE, tr_status_of(tr_forward(s->part[1], x)), "inputs on cpu:0 and cpu:1");
    FAILS(TR_DEVICE, tr_status_of(tr_to(x, tr_cpu(7))), "cpu:0 to cpu:2");
    FAILS(TR_DEVICE, tr_module_to(net, tr_cpu(7)), "TRIREME_CPU_DEVICES");
}

/* A backward that puts its gradient where its input is not. */
static tr_status away_infer(tr_op_call *call)
{
    return tr_op_output(call, 0, tr_shape_of(call->inputs[0]), TR_F32);
}

static tr_status away_forward(tr_op_call *call)
{
    return tr_copy_into(call->outputs[0], call->inputs[0]);
}

static tr_status away_backward(tr_backward_call *call)
{
    call->grad_inputs[0] = tr_to(call->grad_outputs[0], tr_cpu(1));
    return TR_OK;
}

static const tr_op away = {sizeof(tr_op), "away", 0, away_infer, away_forward, away_backward, 0, 0, 0};

static void a_gradient_on_another_device_is_an_error(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_ones(TR_SHAPE(2), .requires_grad = true);
    FAILS(TR_DEVICE, tr_backward(tr_sum(tr_apply(&away, NULL, &x, 1, NULL))), "input 0, on cpu:0, a gradient on cpu:1");
}

static void train_rank(rank *r)
{
    int64_t rows = BATCH / r->world, first = rows * r->number;
    for (int small = 0; small < 2; small++) {
        TR_SCOPE;
        tr_module *one = make_net(1, 1), *net = make_net(PARTS, 1 + (uint64_t)r->number); /* rank 0's weights count */
        OK(train(one, 0, BATCH));
        OK(train(tr_ddp(net, r->group, .bucket_mb = small ? 1e-9 : 25), first, first + rows));
        CHECK(apart(net, one) < 2e-5);
    }
    OK(tr_leave(r->group));
}

static void ddp_takes_modules_that_span_devices(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) run(world, train_rank, NULL);
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "3", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_may_span_devices),
        cmocka_unit_test(devices_that_are_mixed_up_are_named),
        cmocka_unit_test(a_gradient_on_another_device_is_an_error),
        cmocka_unit_test(ddp_takes_modules_that_span_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
