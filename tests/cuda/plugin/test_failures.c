/*
 * What a program is told when something fails long after it was enqueued, and when a device's memory is used up: by the op
 * that caused it, with TRIREME_CHECK=sync, and by the module that asked; and when a trainer finds out. Each case is a process
 * of its own, as the device is lost then.
 */
#include <trireme/trireme.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static tr_device gpu(void)
{
    tr_device device;
    if (tr_device_parse("cuda:0", &device) == TR_OK) return device;
    fprintf(stderr, "%s\n", tr_error_message());
    _exit(1);
}

/* In a process of its own. seed: of the emulator, from the environment of the test. */
static void in_a_child(const char *check, const char *more, void (*body)(void))
{
    char emulator[256];
    const char *own = getenv("CUDA_EMULATOR");
    snprintf(emulator, sizeof emulator, "%s %s", own ? own : "", more);
    pid_t child = fork();
    if (child == 0) {
        setenv("CUDA_EMULATOR", emulator, 1);
        if (check) setenv("TRIREME_CHECK", check, 1);
        body();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Ends the child in another way than by cmocka, which waits in the parent. */
#define MUST(condition)                                                                                    \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "line %d: " #condition ": %s\n", __LINE__, tr_error_message());                \
            _exit(1);                                                                                      \
        }                                                                                                  \
    } while (0)

/* The third kernel fails: fill, relu, gelu, tanh. */
static void waiting_for_each(void)
{
    TR_SCOPE;
    tr_tensor *x = tr_full(1, TR_SHAPE(8), .device = gpu()), *a = tr_relu(x);
    MUST(tr_status_of(a) == TR_OK);
    tr_tensor *b = tr_gelu(x);
    MUST(tr_status_of(b) == TR_DEVICE);
    MUST(strstr(tr_error_message(), "gelu on cuda:0: cuda: waiting for a stream: a kernel failed before it"));
}

static void not_waiting(void)
{
    TR_SCOPE;
    tr_tensor *x = tr_full(1, TR_SHAPE(8), .device = gpu()), *a = tr_relu(x), *b = tr_gelu(x), *c = tr_tanh(b);
    MUST(tr_status_of(a) == TR_OK);
    MUST(tr_status_of(c) == TR_OK); /* nothing has run */
    float numbers[8];
    MUST(tr_copy_out(c, numbers, sizeof numbers) == TR_DEVICE);
    MUST(!strstr(tr_error_message(), "gelu"));
    MUST(strstr(tr_error_message(), "TRIREME_CHECK=sync waits after each op and names the one that failed"));
}

static void a_kernel_that_fails_late_is_named_when_each_is_waited_for(void **state)
{
    (void)state;
    in_a_child("sync", "fail=kernel:3", waiting_for_each);
    in_a_child(NULL, "fail=kernel:3", not_waiting);
}

static void asking_for_too_much(void)
{
    TR_SCOPE;
    tr_module *net = tr_sequential(tr_linear(4, 4), tr_sequential(tr_relu_layer(), tr_linear(4, 3000)));
    MUST(tr_module_to(net, gpu()) == TR_OK);
    tr_tensor *x = tr_zeros(TR_SHAPE(20000, 4), .device = gpu());
    MUST(tr_status_of(tr_forward(net, x)) == TR_NO_MEMORY); /* 240 MB of 64 */
    MUST(strstr(tr_error_message(), "sequential.1.1: linear: no memory for 240000000 bytes on cuda:0: tensors hold "));
    MUST(strstr(tr_error_message(), "a smaller batch takes less"));
}

static void who_asks_for_too_much_memory_is_named(void **state)
{
    (void)state;
    in_a_child(NULL, "memory_mb=64", asking_for_too_much);
}

static tr_status a_sample(const tr_sample_call *call, tr_sample *out)
{
    out->x = tr_rand((uint64_t)call->index, TR_SHAPE(4));
    out->y = tr_scalar(call->index % 3, TR_I64);
    return tr_status_of(out->x);
}

static tr_status see(tr_tensor *leaf, tr_tensor *grad, void *user)
{
    (void)leaf, (void)grad;
    *(bool *)user = true;
    return TR_OK;
}

/* The first kernel of the step fails when somebody waits: backward has been enqueued by then. */
static void training(void)
{
    TR_SCOPE;
    bool seen = false, stop = false;
    tr_metrics_row row;
    tr_module *net = tr_linear(4, 3);
    MUST(tr_module_to(net, gpu()) == TR_OK);
    tr_trainer *trainer = tr_classifier_trainer(net, tr_dataset_new(12, a_sample), .global_batch = 6, .steps = 2);
    MUST(tr_status_of(trainer) == TR_OK);
    MUST(tr_grad_hook_add(tr_list_at(tr_parameters(net), 0), see, &seen) >= 0);
    MUST(tr_trainer_step(trainer, &row, &stop) != TR_OK);
    MUST(seen);
}

static void a_trainer_waits_for_the_loss_behind_backward(void **state)
{
    (void)state;
    in_a_child(NULL, "fail=kernel:1", training);
}

int main(void)
{
    setenv("TRIREME_PLUGINS", PLUGIN, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_that_fails_late_is_named_when_each_is_waited_for),
        cmocka_unit_test(who_asks_for_too_much_memory_is_named),
        cmocka_unit_test(a_trainer_waits_for_the_loss_behind_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
