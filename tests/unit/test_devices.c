/* Devices that plug-ins bring, by the toy (tests/device/toy.c), which is asynchronous and whose memory the host cannot touch. */
#include "device/device.h"
#include "op_cases.h"
#include "ops/batch_norm.h"

#include <trireme/trireme.h>

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static tr_device toy(int index)
{
    tr_device device;
    char name[16];
    snprintf(name, sizeof name, "toy:%d", index);
    if (tr_device_parse(name, &device) != TR_OK) fail_msg("%s", tr_error_message());
    return device;
}

#define FAILS(status_, expression, words)                                                                     \
    do {                                                                                                      \
        assert_int_equal((expression), status_);                                                              \
        if (!strstr(tr_error_message(), words)) fail_msg("'%s' says nothing of '%s'", tr_error_message(), words); \
    } while (0)
#define OK(expression)                                                     \
    do {                                                                   \
        if ((expression) != TR_OK) fail_msg("%s", tr_error_message());     \
    } while (0)

/* In the line that calls it. */
#define assert_close(got, expected, tolerance) assert_close_at(__LINE__, (got), (expected), (tolerance))
static void assert_close_at(int line, const tr_tensor *got, const tr_tensor *expected, double tolerance)
{
    TR_SCOPE;
    OK(tr_status_of(got));
    OK(tr_status_of(expected));
    assert_int_equal(tr_numel(got), tr_numel(expected));
    size_t n = (size_t)tr_numel(got);
    double *x = malloc(n * sizeof *x + 1), *y = malloc(n * sizeof *y + 1);
    OK(tr_copy_out(tr_cast((tr_tensor *)tr_to((tr_tensor *)got, tr_cpu(0)), TR_F64), x, n * sizeof *x));
    OK(tr_copy_out(tr_cast((tr_tensor *)tr_to((tr_tensor *)expected, tr_cpu(0)), TR_F64), y, n * sizeof *y));
    for (size_t i = 0; i < n; i++)
        if (!(fabs(x[i] - y[i]) <= tolerance * (1 + fabs(y[i])))) fail_msg("line %d: element %zu: %.9g, not %.9g", line, i, x[i], y[i]);
    free(x);
    free(y);
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static void devices_have_names_and_properties(void **state)
{
    (void)state;
    char text[16];
    tr_device_kind kind;
    tr_device_properties p = {.size = sizeof p};
    tr_device_memory m = {.size = sizeof m};
    assert_string_equal(tr_device_name(toy(1), text), "toy:1");
    OK(tr_device_kind_named("toy", &kind));
    assert_int_equal(kind, toy(0).kind);
    assert_true(kind > TR_CUDA);
    assert_string_equal(tr_device_kind_name(kind), "toy");
    assert_int_equal(tr_device_count(kind), 2);
    OK(tr_device_describe(toy(0), &p));
    assert_string_equal(p.name, "toy");
    OK(tr_device_memory_of(toy(0), &m));
    assert_true(m.available > 0);
    OK(tr_device_describe(tr_cpu(0), &p));
    assert_true(p.memory_bytes > 0 && p.compute_units == tr_threads(tr_cpu(0)));
    OK(tr_device_memory_of(tr_cpu(0), &m));
    OK(tr_device_trim(tr_cpu(0)));
    OK(tr_device_synchronize(tr_cpu(0)));

    tr_device device;
    FAILS(TR_DEVICE, tr_device_parse("toy:2", &device), "this process has toy:0 to toy:1");
    FAILS(TR_DEVICE, tr_device_parse("cpu:1", &device), "this process has cpu:0 alone");
    FAILS(TR_DEVICE, tr_device_parse("tpu:1", &device), "there is no device tpu:1");
    FAILS(TR_INVALID, tr_device_parse("toy:", &device), "\"toy:\" is no device");
    FAILS(TR_INVALID, tr_device_parse("../toy", &device), "\"../toy\" is no device");
    FAILS(TR_DEVICE, tr_device_synchronize((tr_device){(tr_device_kind)15, 0}), "there is no device");
}

static void the_caller_gets_as_much_of_a_struct_as_it_knows(void **state)
{
    (void)state;
    tr_device_memory m = {.size = offsetof(tr_device_memory, peak), .peak = 77};
    OK(tr_device_memory_of(toy(0), &m));
    assert_int_equal(m.peak, 77);
    assert_int_equal(m.size, offsetof(tr_device_memory, peak));
}

/* In a process of its own, as plug-ins are opened once. Must come before the first question. */
static void assert_plugins_say(const char *plugins, const char *device, const char *words)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        tr_device out;
        setenv("TRIREME_PLUGINS", plugins, 1);
        bool right = tr_device_parse(device, &out) == TR_DEVICE && strstr(tr_error_message(), words);
        if (!right) fprintf(stderr, "'%s' says nothing of '%s'\n", tr_error_message(), words);
        bool again = tr_device_parse(device, &out) == TR_DEVICE && strstr(tr_error_message(), words);
        _exit(right && again ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void a_plugin_that_cannot_be_used_says_why(void **state)
{
    (void)state;
    assert_plugins_say("/nowhere/libtoy.so", "toy:0", "there is no device toy:0: the plug-in /nowhere/libtoy.so cannot be opened: ");
    assert_plugins_say(LATER, "later:0", "has version 2 of the device interface, and this library takes version 1: build the plug-in");
    assert_plugins_say(LACKING, "lacking:0", "has no function count()");
    assert_plugins_say(DRIVERLESS, "driverless:0", "the driver is version 11, and 12 is needed");
    assert_plugins_say(TOY ":" DRIVERLESS, "driverless", "there is no device driverless: driverless (");
    assert_plugins_say(TOY ":" TOY, "toy:7", "this process has toy:0 to toy:1");
    assert_plugins_say("", "toy:0", "TRIREME_PLUGINS lists no plug-in that brings them, and there is no /");
    assert_plugins_say(DRIVERLESS, "cuda:0", "this process has no cuda devices");
}

/* ---- Memory and copies ------------------------------------------------------------------------------------------- */

static void the_host_cannot_read_a_device(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_ones(TR_SHAPE(3), .device = toy(0));
    assert_null(tr_data(x));
    assert_true(tr_item(tr_slice(x, 0, 1, 2)) == 1);
    char text[64];
    tr_format(x, text, sizeof text);
    assert_string_equal(text, "f32 [3] {1, 1, 1}");
}

/* DLPack has no number for the toy, whose memory is not the CPU's. */
static void other_libraries_are_not_given_a_device_that_they_do_not_know(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *t = tr_ones(TR_SHAPE(2, 3), .device = toy(1));
    OK(tr_status_of(t));
    struct DLManagedTensorVersioned *managed = NULL;
    struct DLManagedTensor *older = NULL;
    FAILS(TR_DEVICE, tr_to_dlpack(t, &managed), "dlpack: memory of toy:1 cannot be shown to other libraries");
    FAILS(TR_DEVICE, tr_to_dlpack_unversioned(t, &older), "move it to the CPU");
    assert_true(!managed && !older);
}

/* Each copy reads what the last one before it wrote, whatever runs late. */
static void copies_come_in_the_order_of_the_calls(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        TR_SCOPE;
        float numbers[1000], back[1000];
        for (int i = 0; i < 1000; i++) numbers[i] = (float)(i + round);
        tr_tensor *a = tr_from(numbers, TR_SHAPE(1000), .device = toy(0));
        memset(numbers, 0, sizeof numbers); /* the caller's again as soon as the call has returned */
        tr_tensor *b = tr_to(tr_affine(a, 2, 1), toy(1));
        OK(tr_fill(a, -1));
        tr_tensor *c = tr_to(tr_add(b, b), toy(0));
        OK(tr_fill(b, -1));
        OK(tr_copy_out(c, back, sizeof back));
        for (int i = 0; i < 1000; i++) assert_true(back[i] == 4 * (float)(i + round) + 2);
    }
}

static void memory_that_is_given_back_is_not_overwritten_too_early(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *sum = tr_zeros(TR_SHAPE(500), .device = toy(1));
    for (int i = 0; i < 50; i++) {
        TR_SCOPE;
        sum = tr_escape(tr_add(sum, tr_to(tr_full(i, TR_SHAPE(500), .device = toy(i % 2)), toy(1))));
    }
    assert_close(sum, tr_full(50 * 49 / 2, TR_SHAPE(500)), 0);
}

static void values_of_any_layout_and_dtype_go_both_ways(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_randn(1, TR_SHAPE(4, 5, 6)), *turned = tr_permute(x, (int[]){2, 0, 1}, 3);
    tr_tensor *there = tr_to(turned, toy(0));
    assert_close(there, turned, 0);
    assert_close(tr_permute(tr_to(x, toy(1)), (int[]){2, 0, 1}, 3), turned, 0);
    tr_tensor *wide = tr_zeros(TR_SHAPE(6, 4, 5), .dtype = TR_F64, .device = toy(0));
    OK(tr_copy_into(wide, turned)); /* converted by the CPU */
    assert_close(wide, turned, 0);
    OK(tr_copy_into(tr_permute(wide, (int[]){1, 2, 0}, 3), tr_slice(x, 1, 0, 1))); /* broadcast into a view */
    assert_close(wide, tr_permute(tr_expand(tr_slice(x, 1, 0, 1), TR_SHAPE(4, 5, 6)), (int[]){2, 0, 1}, 3), 0);
    OK(tr_copy_into(turned, tr_slice(wide, 0, 0, 1))); /* and back, from another dtype and shape */
    assert_close(turned, tr_expand(tr_slice(wide, 0, 0, 1), TR_SHAPE(6, 4, 5)), 0);
    OK(tr_copy_into(tr_slice(tr_to(x, toy(1)), 0, 0, 2), tr_to(tr_slice(x, 0, 2, 4), toy(0))));
    assert_close(tr_cast(tr_to(x, toy(0)), TR_I64), tr_cast(x, TR_I64), 0);
    assert_close(tr_cat((tr_tensor *[]){there, there}, 2, 1), tr_cat((tr_tensor *[]){tr_to(there, tr_cpu(0)),
        tr_to(there, tr_cpu(0))}, 2, 1), 0);
    assert_close(tr_pad(tr_to(x, toy(0)), .before = {1, 0, 2}, .value = 3), tr_pad(x, .before = {1, 0, 2}, .value = 3), 0);
    OK(tr_copy_into(tr_slice(there, 0, 1, 6), tr_slice(there, 0, 0, 5))); /* the two overlap */
    assert_close(tr_slice(there, 0, 1, 2), tr_slice(there, 0, 0, 1), 0);
}

static void random_numbers_are_those_of_the_cpu(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_close(tr_randn(7, TR_SHAPE(999), .device = toy(0)), tr_randn(7, TR_SHAPE(999)), 1e-6);
    assert_close(tr_rand(8, TR_SHAPE(999), .device = toy(1)), tr_rand(8, TR_SHAPE(999)), 0);
}

static void memory_is_counted_and_may_run_out(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_device_memory before = {.size = sizeof before}, during = before, after = before;
    OK(tr_device_synchronize(toy(0)));
    OK(tr_device_memory_of(toy(0), &before));
    tr_scope_push();
    OK(tr_status_of(tr_zeros(TR_SHAPE(1 << 20), .device = toy(0))));
    OK(tr_device_memory_of(toy(0), &during));
    assert_int_equal(during.in_use - before.in_use, 4 << 20);
    FAILS(TR_NO_MEMORY, tr_status_of(tr_empty(TR_SHAPE(5, 1 << 20), .device = toy(0))),
        "no memory for 20971520 bytes on toy:0: tensors hold ");
    tr_tensor *y = tr_empty(TR_SHAPE(2, 1 << 20), .device = toy(0)); /* 4 + 8 of 16 MiB */
    OK(tr_status_of(y));
    tr_escape(y);
    tr_scope_pop();
    OK(tr_status_of(tr_empty(TR_SHAPE(2, 1 << 19), .device = toy(0)))); /* what was just given back is waited for */
    OK(tr_device_memory_of(toy(0), &after));
    assert_true(after.peak >= 12 << 20);
    OK(tr_device_reset_peak(toy(0)));
    OK(tr_device_memory_of(toy(0), &after));
    assert_int_equal(after.peak, after.in_use);
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

static bool lacks_kernel(tr_status status)
{
    return status == TR_UNSUPPORTED && strstr(tr_error_message(), "no kernel for toy:");
}

/* Output and gradients of a case on a device; false: there is no kernel for it. */
static bool run_case(const op_case *c, tr_tensor *const *cpu_inputs, tr_device device, tr_tensor **out, tr_tensor **in)
{
    for (int i = 0; i < c->n; i++) {
        in[i] = tr_to(cpu_inputs[i], device);
        if (tr_dtype_is_float(tr_dtype_of(in[i]))) in[i] = tr_require_grad(tr_detach(in[i]));
        OK(tr_status_of(in[i]));
    }
    *out = c->run(in);
    if (lacks_kernel(tr_status_of(*out))) return false;
    if (tr_status_of(*out) == TR_DEVICE) return false; /* the case makes tensors of its own, on the CPU */
    OK(tr_status_of(*out));
    if (!tr_dtype_is_float(tr_dtype_of(*out))) return true;
    tr_tensor *weights = tr_to(tr_cast(tr_randn(3, tr_shape_of(*out)), tr_dtype_of(*out)), device);
    tr_status status = tr_backward(tr_sum(tr_mul(*out, weights), TR_ALL_DIMS));
    if (status != TR_OK && !lacks_kernel(status)) fail_msg("%s: %s", c->name, tr_error_message());
    return status == TR_OK;
}

static void op_cases_with_kernels_agree_with_the_cpu(void **state)
{
    (void)state;
    int agreed = 0;
    for (const op_case *c = op_cases; c < op_cases + op_case_count; c++)
        for (int strided = 0; strided < 2; strided++) {
            TR_SCOPE;
            tr_tensor *cpu[OP_CASE_INPUTS] = {0}, *in[OP_CASE_INPUTS] = {0}, *here[OP_CASE_INPUTS] = {0}, *got, *expected;
            op_case_inputs(c, (op_variant){TR_F32, TR_F32, 1, strided}, false, cpu);
            if (!run_case(c, cpu, toy(strided), &got, in)) continue;
            assert_true(run_case(c, cpu, tr_cpu(0), &expected, here));
            assert_close(got, expected, 1e-5);
            for (int i = 0; i < c->n; i++) {
                assert_int_equal(tr_grad(in[i]) != NULL, tr_grad(here[i]) != NULL);
                if (tr_grad(in[i])) assert_close(tr_grad(in[i]), tr_grad(here[i]), 2e-5);
            }
            agreed++;
        }
    printf("%d of %d op cases ran on the toy\n", agreed, 2 * op_case_count);
    assert_true(agreed >= 40);
}

static void a_missing_kernel_is_an_error_that_names_op_and_device(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_randn(1, TR_SHAPE(2, 3), .device = toy(1));
    FAILS(TR_UNSUPPORTED, tr_status_of(tr_gelu(x)), "gelu: no kernel for toy:1");
    FAILS(TR_UNSUPPORTED, tr_status_of(tr_relu(tr_cast(x, TR_BF16))), "no kernel for toy:1 takes f32 [2, 3]");
    FAILS(TR_DEVICE, tr_status_of(tr_add(x, tr_to(x, toy(0)))), "add: inputs on toy:1 and toy:0");
    FAILS(TR_DEVICE, tr_status_of(tr_add(x, tr_to(x, tr_cpu(0)))), "add: inputs on toy:1 and cpu:0");
}

static void a_kernel_that_fails_is_reported_by_the_next_wait(void **state)
{
    (void)state;
    TR_SCOPE;
    int64_t targets[] = {0, 5};
    tr_tensor *logits = tr_zeros(TR_SHAPE(2, 3), .device = toy(0));
    OK(tr_status_of(tr_cross_entropy(logits, tr_from(targets, TR_SHAPE(2), .dtype = TR_I64, .device = toy(0)))));
    FAILS(TR_INVALID, tr_device_synchronize(toy(0)), "a target is outside the classes");
    OK(tr_device_synchronize(toy(0)));
}

/* ---- Kernels of the program's own -------------------------------------------------------------------------------- */

static int declined;

static tr_status decline(const tr_kernel_call *call)
{
    assert_string_equal(call->op, "twice");
    assert_int_equal(call->index, 1);
    assert_int_equal(*(const int *)call->attrs, 4);
    assert_int_equal(call->inputs[0].shape.dim[1], 3);
    declined++;
    return TR_DECLINED;
}

static tr_status decline_all(const tr_kernel_call *call)
{
    (void)call;
    return TR_DECLINED;
}

static tr_status fail_at_once(const tr_kernel_call *call)
{
    (void)call;
    return tr_fail(TR_INTERNAL, "this device has no twos");
}

static tr_status twice_infer(tr_op_call *call)
{
    return tr_op_output(call, 0, tr_shape_of(call->inputs[0]), TR_F32);
}

static tr_status twice_forward(tr_op_call *call)
{
    return tr_copy_into(call->outputs[0], tr_add(call->inputs[0], call->inputs[0]));
}

static void a_program_registers_kernels_for_its_own_op(void **state)
{
    (void)state;
    TR_SCOPE;
    static const tr_op twice = {.size = sizeof(tr_op), .name = "twice", .attrs_size = sizeof(int), .infer = twice_infer,
        .forward = twice_forward};
    tr_tensor *x = tr_randn(1, TR_SHAPE(2, 3), .device = toy(1));
    FAILS(TR_UNSUPPORTED, tr_status_of(tr_apply(&twice, &(int){4}, &x, 1, NULL)), "twice: no kernel for toy:1");
    OK(tr_kernel_register("toy", &(tr_kernel_entry){"twice", sizeof(int), fail_at_once}));
    OK(tr_kernel_register("toy", &(tr_kernel_entry){"twice", sizeof(int), decline})); /* is asked first */
    FAILS(TR_INTERNAL, tr_status_of(tr_apply(&twice, &(int){4}, &x, 1, NULL)), "twice on toy:1: this device has no twos");
    assert_int_equal(declined, 1);
    OK(tr_kernel_register("toy", &(tr_kernel_entry){"twice", 99, decline}));
    FAILS(TR_DEVICE, tr_status_of(tr_apply(&twice, &(int){4}, &x, 1, NULL)), "takes attributes of 99 bytes, and the op's have 4");
    FAILS(TR_INVALID, tr_kernel_register("cpu", &(tr_kernel_entry){"twice", 4, decline}), "is its `forward`");
    FAILS(TR_INVALID, tr_kernel_register("Toy", &(tr_kernel_entry){"twice", 4, decline}), "\"Toy\" is no kind of device");
}

static void what_kernels_decline_is_done_in_several_steps(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_randn(1, TR_SHAPE(2, 3)), *low = tr_cast(tr_randn(2, TR_SHAPE(3)), TR_BF16);
    tr_tensor *there = tr_to(x, toy(0)), *low_there = tr_to(low, toy(0));
    {
        TR_AUTOCAST(TR_BF16); /* which adds f32 and bf16 as they are */
        assert_close(tr_add(there, low_there), tr_add(x, low), 1e-6);
    }
    OK(tr_kernel_register("toy", &(tr_kernel_entry){"batch_norm_move", sizeof(tr_batch_norm_move_attrs), decline_all}));
    tr_tensor *mean = tr_randn(3, TR_SHAPE(4)), *var = tr_rand(4, TR_SHAPE(4)), *batches = tr_full(6, TR_SCALAR, .dtype = TR_I64,
        .device = toy(0));
    const tr_batch_norm_op_options options = {.size = sizeof options, .running_mean = tr_zeros(TR_SHAPE(4), .device = toy(0)),
        .running_var = tr_ones(TR_SHAPE(4), .device = toy(0)), .momentum = 0.25};
    OK(tr__batch_norm_move(&options, tr_to(mean, toy(0)), tr_to(var, toy(0)), 5, batches));
    assert_close(options.running_mean, tr_affine(mean, 0.25, 0), 1e-6);
    assert_close(options.running_var, tr_affine(var, 0.25 * 5 / 4, 0.75), 1e-6);
    assert_true(tr_item(batches) == 7);
}

static void an_optimizer_without_a_kernel_says_so(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_linear(2, 2, .seed = 1);
    OK(tr_module_to(net, toy(0)));
    assert_int_equal(tr_status_of(tr_adamw(tr_parameters(net))), TR_UNSUPPORTED);
    assert_non_null(strstr(tr_error_message(), "is on toy:0, which has no kernel adamw_step"));
}

static tr_status double_it(tr_tensor *const *inputs, int n, tr_tensor **output, void *user)
{
    (void)n;
    ++*(int *)user;
    *output = tr_add(inputs[0], inputs[0]);
    return TR_OK;
}

static void a_device_without_graphs_runs_captured_steps_op_by_op(void **state)
{
    (void)state;
    TR_SCOPE;
    int calls = 0;
    tr_captured_step *step = tr_capture(double_it, &calls);
    for (int i = 0; i < 4; i++) {
        tr_tensor *y, *x = tr_full(i, TR_SHAPE(3), .device = toy(0));
        OK(tr_captured_run(step, &y, x));
        assert_close(y, tr_full(2.0 * i, TR_SHAPE(3)), 0);
    }
    assert_int_equal(calls, 4);
    tr_captured_counts counts = {.size = sizeof counts};
    OK(tr_captured_count(step, &counts));
    assert_int_equal(counts.called, 4);
    assert_int_equal(counts.captured + counts.launched, 0);
}

static tr_tensor *product(tr_tensor *const *inputs, int n, void *user)
{
    (void)n, (void)user;
    return tr_mul(inputs[0], inputs[1]);
}

static void gradients_are_checked_where_the_inputs_are(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *inputs[2];
    for (int i = 0; i < 2; i++)
        inputs[i] = tr_require_grad(tr_to(tr_randn((uint64_t)i + 1, TR_SHAPE(3, 4), .dtype = TR_F64), toy(1)));
    OK(tr_grad_check(product, inputs, 2, NULL, 1e-6));
}

int main(void)
{
    const struct CMUnitTest before[] = {cmocka_unit_test(a_plugin_that_cannot_be_used_says_why)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_have_names_and_properties),
        cmocka_unit_test(the_caller_gets_as_much_of_a_struct_as_it_knows),
        cmocka_unit_test(the_host_cannot_read_a_device),
        cmocka_unit_test(other_libraries_are_not_given_a_device_that_they_do_not_know),
        cmocka_unit_test(copies_come_in_the_order_of_the_calls),
        cmocka_unit_test(memory_that_is_given_back_is_not_overwritten_too_early),
        cmocka_unit_test(values_of_any_layout_and_dtype_go_both_ways),
        cmocka_unit_test(random_numbers_are_those_of_the_cpu),
        cmocka_unit_test(memory_is_counted_and_may_run_out),
        cmocka_unit_test(op_cases_with_kernels_agree_with_the_cpu),
        cmocka_unit_test(a_missing_kernel_is_an_error_that_names_op_and_device),
        cmocka_unit_test(a_kernel_that_fails_is_reported_by_the_next_wait),
        cmocka_unit_test(a_program_registers_kernels_for_its_own_op),
        cmocka_unit_test(what_kernels_decline_is_done_in_several_steps),
        cmocka_unit_test(an_optimizer_without_a_kernel_says_so),
        cmocka_unit_test(a_device_without_graphs_runs_captured_steps_op_by_op),
        cmocka_unit_test(gradients_are_checked_where_the_inputs_are),
    };
    int failed = cmocka_run_group_tests(before, NULL, NULL);
    setenv("TRIREME_PLUGINS", TOY, 1);
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
