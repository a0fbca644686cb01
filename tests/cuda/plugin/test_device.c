/*
 * The CUDA plug-in's device table: memory is kept and counted, failures say what to do, ids out of range are reported
 * at the next wait. The emulator's environment variable says which call of CUDA's fails, so each such case runs in a
 * process of its own.
 */
#include "on_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void assert_message(const char *part)
{
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

static tr_device_memory memory_now(void)
{
    tr_device_memory m = {.size = sizeof m};
    assert_int_equal(on_device()->memory(0, &m), TR_OK);
    return m;
}

static void memory_is_kept_for_later(void **state)
{
    (void)state;
    void *a, *b, *c;
    tr_device_memory before = memory_now();
    assert_int_equal(on_device()->allocate(0, NULL, 3000, &a), TR_OK);
    assert_int_equal(on_device()->allocate(0, NULL, 5000, &b), TR_OK);
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_int_equal((uintptr_t)b % 256, 0);
    tr_device_memory held = memory_now();
    assert_int_equal(held.in_use - before.in_use, 3072 + 5120);
    assert_true(held.reserved >= held.in_use);
    on_device()->release(0, NULL, a, 3000);
    assert_int_equal(on_device()->allocate(0, NULL, 2900, &c), TR_OK);
    assert_ptr_equal(a, c); /* in the order of the stream, so at once */
    on_device()->release(0, NULL, c, 2900);
    on_device()->release(0, NULL, b, 5000);
    assert_int_equal(memory_now().in_use, before.in_use);
    assert_int_equal(memory_now().reserved, held.reserved);
    on_device()->trim(0);
    assert_int_equal(memory_now().reserved, before.reserved);
    assert_true(memory_now().peak >= held.in_use);
    on_device()->reset_peak(0);
    assert_int_equal(memory_now().peak, before.in_use);
}

static void memory_of_one_stream_does_not_serve_another_before_it_ends(void **state)
{
    (void)state;
    tr_device_stream *stream;
    void *a, *b, *c;
    assert_int_equal(on_device()->stream_new(0, &stream), TR_OK);
    assert_int_equal(on_device()->allocate(0, stream, 4096, &a), TR_OK);
    on_device()->release(0, stream, a, 4096);
    assert_int_equal(on_device()->allocate(0, NULL, 4096, &b), TR_OK);
    assert_ptr_not_equal(a, b);
    on_device()->stream_free(0, stream);
    assert_int_equal(on_device()->allocate(0, NULL, (2 << 20) - 512, &c), TR_OK); /* all but one piece of a segment */
    on_device()->release(0, NULL, c, (2 << 20) - 512);
    on_device()->release(0, NULL, b, 4096);
    on_device()->trim(0);
}

static void streams_and_events_order_copies(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    tr_device_stream *stream;
    tr_device_event *event;
    void *memory, *pinned;
    bool done;
    assert_int_equal(on_device()->stream_new(0, &stream), TR_OK);
    assert_int_equal(on_device()->event_new(0, &event), TR_OK);
    assert_int_equal(on_device()->event_done(0, event, &done), TR_OK);
    assert_true(done); /* never recorded */
    assert_int_equal(on_device()->allocate(0, stream, N, &memory), TR_OK);
    assert_int_equal(on_device()->host_allocate(N, &pinned), TR_OK);
    assert_int_equal(on_device()->set_bytes(0, stream, memory, 0x5a, N), TR_OK);
    assert_int_equal(on_device()->event_record(0, stream, event), TR_OK);
    assert_int_equal(on_device()->stream_wait(0, NULL, event), TR_OK);
    assert_int_equal(on_device()->copy_out(0, NULL, pinned, memory, N), TR_OK);
    assert_int_equal(on_device()->stream_synchronize(0, NULL), TR_OK);
    for (int i = 0; i < N; i++) assert_int_equal(((unsigned char *)pinned)[i], 0x5a);
    assert_int_equal(on_device()->event_done(0, event, &done), TR_OK);
    assert_true(done);
    on_device()->release(0, NULL, memory, N);
    on_device()->host_release(pinned, N);
    on_device()->event_free(0, event);
    on_device()->stream_free(0, stream);
}

static void ids_outside_are_reported_at_the_next_wait(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *table = tr_ones(TR_SHAPE(9, 4)),
              *ids = tr_from(((int64_t[]){3, 8, 12, -1}), TR_SHAPE(4), .dtype = TR_I64), *y = tr_ones(TR_SHAPE(4, 4));
    device_copies copies = {0};
    tr_device_tensor in[] = {on_device_view(&copies, table), on_device_view(&copies, ids)},
                     out = on_device_view(&copies, y);
    const tr_kernel_entry *entry = on_device_kernel("embedding");
    tr_kernel_call call = {
        .size = sizeof call, .op = "embedding", .n_inputs = 2, .n_outputs = 1, .inputs = in, .outputs = &out};
    assert_int_equal(entry->run(&call), TR_OK);
    assert_int_equal(on_device()->synchronize(0), TR_INVALID);
    assert_message("embedding: id ");
    assert_message("is outside the 9 rows");
    assert_int_equal(on_device()->synchronize(0), TR_OK); /* once */
    on_device_free(&copies);
}

static void heads_that_are_too_large_are_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *q = tr_ones(TR_SHAPE(1, 1, 2, 300)), *lse = tr_ones(TR_SHAPE(1, 1, 2));
    device_copies copies = {0};
    tr_device_tensor v = on_device_view(&copies, q), l = on_device_view(&copies, lse), in[] = {v, v, v, {0}},
                     out[] = {v, l};
    const tr_kernel_entry *entry = on_device_kernel("attention");
    tr_kernel_call call = {.size = sizeof call,
                           .op = "attention",
                           .attrs = &(tr_attention_attrs){0},
                           .attrs_size = entry->attrs_size,
                           .n_inputs = 4,
                           .n_outputs = 2,
                           .inputs = in,
                           .outputs = out};
    assert_int_equal(entry->run(&call), TR_UNSUPPORTED);
    assert_message("heads of 300 numbers");
    on_device_free(&copies);
}

/* ---- With an emulator that is set up otherwise: this program again, in that environment, with the case's name
 * ------------ */

static void too_much_memory(void)
{
    void *memory;
    assert_int_equal(on_device()->allocate(0, NULL, (size_t)1 << 40, &memory), TR_NO_MEMORY);
    assert_message("cuda:0 has no room for 1099511.6 MB more: tensors hold 0.0 MB");
    assert_message("a smaller batch needs less");
    assert_int_equal(on_device()->allocate(0, NULL, 512, &memory), TR_OK); /* the device still works */
    on_device()->release(0, NULL, memory, 512);
}

static void refuses_to_open(const char *message)
{
    extern const tr_device_table tr_device_plugin;
    static tr_device_host host = {
        .size = sizeof host, .fail = tr_fail, .dtype_size = tr_dtype_size, .dtype_name = tr_dtype_name};
    assert_int_equal(tr_device_plugin.open(&host), TR_DEVICE);
    assert_message(message);
    assert_int_equal(tr_device_plugin.count(), 0);
}

static void no_driver(void)
{
    refuses_to_open("cuda: this host has no NVIDIA driver: install one that knows CUDA 13.0");
}

static void an_old_driver(void)
{
    refuses_to_open("cuda: the NVIDIA driver knows CUDA 12.4, and this plug-in was built with CUDA 13.0: "
                    "install a newer driver, or build with an older toolkit");
}

static void no_gpu(void)
{
    refuses_to_open("cuda: the driver finds no GPU: CUDA_VISIBLE_DEVICES may hide it");
}

static void no_runtime(void)
{
    refuses_to_open("cuda: asking how many GPUs there are: ");
}

static tr_status fill_three(void)
{
    TR_SCOPE;
    device_copies copies = {0};
    tr_device_tensor y = on_device_view(&copies, tr_ones(TR_SHAPE(3)));
    const tr_kernel_entry *entry = on_device_kernel("fill");
    tr_kernel_call call = {.size = sizeof call, .op = "fill", .attrs = &(tr_fill_attrs){7},
        .attrs_size = entry->attrs_size, .n_outputs = 1, .outputs = &y};
    tr_status status = entry->run(&call);
    if (status == TR_OK) status = on_device()->stream_synchronize(0, NULL);
    on_device_free(&copies);
    return status;
}

/* The message says how to find the op, as the call that reports a failed kernel need not be the one that caused it. */
static void a_failing_launch(void)
{
    assert_int_equal(fill_three(), TR_DEVICE);
    assert_message("cuda: fill_kernel<T>: a kernel failed before it");
    assert_message("The device is lost to this process; TRIREME_CHECK=sync waits after each op and names the one");
}

/* Whatever the device says of it. */
static void a_failing_kernel(void)
{
    assert_int_equal(fill_three(), TR_DEVICE);
    assert_message("cuda: waiting for a stream: a kernel failed before it");
}

static void no_such_device(void)
{
    void *memory;
    assert_int_equal(on_device()->allocate(3, NULL, 512, &memory), TR_DEVICE);
    assert_message("cuda:3: there is no such device: there are 2");
}

static void kept_memory_makes_room(void)
{
    const size_t bytes = 40 << 20, more = 50 << 20; /* of 64 MB */
    void *memory;
    assert_int_equal(on_device()->allocate(0, NULL, bytes, &memory), TR_OK);
    assert_int_equal(on_device()->allocate(0, NULL, more, &(void *){NULL}), TR_NO_MEMORY);
    on_device()->release(0, NULL, memory, bytes);
    assert_int_equal(on_device()->allocate(0, NULL, more, &memory), TR_OK);
    on_device()->release(0, NULL, memory, more);
}

static void a_failing_allocation(void)
{
    void *memory;
    assert_int_equal(on_device()->allocate(0, NULL, 512, &memory), TR_NO_MEMORY);
    assert_message("cuda:0 has no room");
    assert_int_equal(on_device()->allocate(0, NULL, 512, &memory), TR_OK);
    on_device()->release(0, NULL, memory, 512);
}

/* All elements of y are to be this number. */
static void assert_all(const device_copies *copies, const tr_tensor *y, float expected)
{
    char *back = on_device_back(copies, y);
    for (int64_t i = 0; i < tr_numel(y); i++) assert_true(((float *)back)[i] == expected);
    free(back);
}

static tr_status run_of_two(device_copies *copies, const char *op, const tr_tensor *a, const tr_tensor *b, const tr_tensor *y,
    const void *attrs, size_t attrs_size)
{
    tr_device_tensor in[] = {on_device_view(copies, a), on_device_view(copies, b)}, out = on_device_view(copies, y);
    tr_kernel_call call = {.size = sizeof call, .op = op, .attrs = attrs, .attrs_size = attrs_size, .n_inputs = 2,
        .n_outputs = 1, .inputs = in, .outputs = &out};
    return on_device_kernel(op)->run(&call);
}

/* [2, k] by [k, 2] ones, of which all the first are x: k x each. */
static tr_status multiply(int64_t k, double x, float expected)
{
    TR_SCOPE;
    device_copies copies = {0};
    tr_tensor *y = tr_ones(TR_SHAPE(2, 2));
    tr_status status =
        run_of_two(&copies, "matmul", tr_full(x, TR_SHAPE(2, k)), tr_ones(TR_SHAPE(k, 2)), y, NULL, 0);
    if (status == TR_OK) assert_all(&copies, y, expected);
    on_device_free(&copies);
    return status;
}

/* A product that failed leaves nothing behind that would let the next one fail. */
static void a_failing_product(void)
{
    assert_int_equal(multiply(3, 1, 3), TR_DEVICE);
    assert_message("cuda: cublasLtMat");
    assert_message(": CUBLAS_STATUS_EXECUTION_FAILED");
    assert_int_equal(multiply(3, 1, 3), TR_OK);
    assert_int_equal(multiply(3, 1, 3), TR_OK);
}

/* Images of ones, n x 1 x 3 x width, by weights of ones, channels x 1 x 2 x 2: 4 each. */
static tr_status convolve_into(device_copies *copies, int64_t width, int64_t stride, const tr_tensor *y)
{
    tr_conv2d_attrs attrs = {.stride = stride, .dilation = 1, .groups = 1};
    tr_shape shape = tr_shape_of(y);
    return run_of_two(copies, "conv2d", tr_ones(TR_SHAPE(shape.dim[0], 1, 3, width)),
                      tr_ones(TR_SHAPE(shape.dim[1], 1, 2, 2)), y, &attrs, sizeof attrs);
}

static tr_status convolve_of(int64_t n, int64_t channels, int64_t width, int64_t stride)
{
    TR_SCOPE;
    device_copies copies = {0};
    tr_tensor *y = tr_ones(TR_SHAPE(n, channels, 1 / stride + 1, (width - 2) / stride + 1));
    tr_status status = convolve_into(&copies, width, stride, y);
    if (status == TR_OK) assert_all(&copies, y, 4);
    on_device_free(&copies);
    return status;
}

static tr_status convolve(void)
{
    return convolve_of(1, 1, 3, 1);
}

static void a_failing_convolution(void)
{
    assert_int_equal(convolve(), TR_DEVICE);
    assert_message("cuda: cuDNN: ");
    assert_message(": CUDNN_STATUS_EXECUTION_FAILED");
    assert_int_equal(convolve(), TR_OK);
    assert_int_equal(convolve(), TR_OK);
}

/* y lies otherwise than cuDNN makes it, which is asked all the same. */
static void a_convolution_by_channels(void)
{
    assert_int_equal(convolve_of(1, 2, 3, 1), TR_DEVICE);
    assert_message("cuda: cuDNN: cudnnBackendExecute");
    assert_int_equal(convolve_of(1, 2, 3, 1), TR_OK);
}

/* The double has no other engine for this stride. */
static void an_engine_that_compiles(void)
{
    assert_int_equal(convolve_of(1, 1, 3, 5), TR_DEVICE);
    assert_message("cuda: cuDNN: cudnnBackendExecute");
    assert_int_equal(convolve_of(1, 1, 3, 5), TR_OK);
}

/* What comes first while a graph is captured is planned there, and stays planned until the graph goes, however many
 * others come. */
static void plans_of_a_graph(void)
{
    TR_SCOPE;
    device_copies copies = {0};
    tr_device_graph *graph = NULL;
    tr_tensor *a = tr_ones(TR_SHAPE(2, 3)), *b = tr_ones(TR_SHAPE(3, 2)), *product = tr_ones(TR_SHAPE(2, 2)),
              *image = tr_ones(TR_SHAPE(1, 1, 3, 3)), *weight = tr_ones(TR_SHAPE(1, 1, 2, 2)),
              *y = tr_ones(TR_SHAPE(1, 1, 2, 2));
    const tr_tensor *all[] = {a, b, product, image, weight, y};
    tr_conv2d_attrs attrs = {.stride = 1, .dilation = 1, .groups = 1};
    for (int i = 0; i < 6; i++) (void)on_device_view(&copies, all[i]);
    assert_int_equal(on_device()->capture_begin(0, &graph), TR_OK);
    assert_int_equal(run_of_two(&copies, "matmul", a, b, product, NULL, 0), TR_OK);
    assert_int_equal(run_of_two(&copies, "conv2d", image, weight, y, &attrs, sizeof attrs), TR_OK);
    assert_int_equal(on_device()->capture_end(0, graph), TR_OK);
    for (int i = 0; i < 16 * 16 * 17; i++) assert_int_equal(convolve_of(1 + i % 16, 1 + i / 16 % 16, 2 + i / 256, 1), TR_OK);
    assert_int_equal(on_device()->graph_launch(0, graph), TR_OK);
    assert_all(&copies, product, 3);
    assert_all(&copies, y, 4);
    on_device()->graph_free(0, graph);
    on_device_free(&copies);
}

static void an_engine_that_fails(void)
{
    assert_int_equal(convolve_of(1, 1, 3, 5), TR_OK);
}

static tr_status attend(void)
{
    TR_SCOPE;
    device_copies copies = {0};
    tr_tensor *q = tr_ones(TR_SHAPE(1, 1, 2, 128), .dtype = TR_BF16), *lse = tr_ones(TR_SHAPE(1, 1, 2));
    tr_device_tensor v = on_device_view(&copies, q), in[] = {v, v, v, {0}}, out[] = {v, on_device_view(&copies, lse)};
    tr_kernel_call call = {.size = sizeof call, .op = "attention", .attrs = &(tr_attention_attrs){.scale = 1},
        .attrs_size = sizeof(tr_attention_attrs), .n_inputs = 4, .n_outputs = 2, .inputs = in, .outputs = out};
    tr_status status = on_device_kernel("attention")->run(&call);
    on_device_free(&copies);
    return status;
}

/* More shared memory is asked for once, and again when that failed. */
static void shared_memory_is_asked_for_once(void)
{
    for (int i = 0; i < 3; i++) assert_int_equal(attend(), TR_OK);
}

static void shared_memory_that_is_refused(void)
{
    assert_int_equal(attend(), TR_DEVICE);
    for (int i = 0; i < 3; i++) assert_int_equal(attend(), TR_OK);
}

/* Where an engine cannot be asked about, or takes no graph, there are the plug-in's own kernels. */
static void no_cudnn(void)
{
    assert_int_equal(convolve(), TR_OK);
}

static void no_cublaslt(void)
{
    assert_int_equal(multiply(3, 1, 3), TR_OK);
}

/* The double finds no algorithm, or says of one that it is not to be used, where k % 11 is 10 or 5; where k % 26 or
 * k % 34 is 0 it refuses what it has found itself. */
static void products_without_an_algorithm(void)
{
    static const int64_t sizes[] = {10, 5, 3, 26, 34, 10, 5, 26, 34};
    for (int i = 0; i < 9; i++) assert_int_equal(multiply(sizes[i], 0.5, 0.5f * (float)sizes[i]), TR_OK);
}

static void tf32(void)
{
    setenv("TRIREME_CUDA_MATMUL", "tf32", 1);
    assert_int_equal(multiply(3, 1 + 0x1p-10, 3 + 3 * 0x1p-10f), TR_OK);
    assert_int_equal(multiply(3, 1 + 0x1p-12, 3), TR_OK);
}

static void an_unknown_way_to_multiply(void)
{
    setenv("TRIREME_CUDA_MATMUL", "fast", 1);
    assert_int_equal(multiply(3, 1, 3), TR_INVALID);
    assert_message("TRIREME_CUDA_MATMUL is \"fast\": it may be tf32, or unset");
}

static const struct {
    const char *name, *emulator;
    void (*run)(void);
} apart[] = {
    {"too much memory", "seed=1 memory_mb=64", too_much_memory},
    {"no driver", "devices=0", no_driver},
    {"an old driver", "driver=12040", an_old_driver},
    {"no GPU", "devices=0 driver=13000", no_gpu},
    {"no runtime", "fail=cudaGetDeviceCount:1", no_runtime},
    {"a failing launch", "fail=cudaLaunchKernel:1", a_failing_launch},
    {"a failing kernel", "fail=kernel:1", a_failing_kernel},
    {"a failing link", "fail=kernel:1 error=220", a_failing_kernel},
    {"a contained failure", "fail=kernel:1 error=226", a_failing_kernel},
    {"a leak of tensor memory", "fail=kernel:1 error=721", a_failing_kernel},
    {"a failing device beside it", "fail=kernel:1 error=911", a_failing_kernel},
    {"no such device", "devices=2", no_such_device},
    {"memory that is kept makes room", "seed=1 memory_mb=64", kept_memory_makes_room},
    {"a failing allocation", "fail=cudaMalloc:1 fail=cudaDeviceSynchronize:1", a_failing_allocation},
    {"a failing product", "fail=cublasLtMatmul:1", a_failing_product},
    {"a failing heuristic", "fail=cublasLtMatmulAlgoGetHeuristic:1", a_failing_product},
    {"a failing layout", "fail=cublasLtMatrixLayoutCreate:3", a_failing_product},
    {"no cuBLASLt", "fail=libcublasLt:1", no_cublaslt},
    {"a failing convolution", "fail=cudnnBackendExecute:1", a_failing_convolution},
    {"a failing descriptor", "fail=cudnnBackendCreateDescriptor:3", a_failing_convolution},
    {"a failing graph", "fail=cudnnBackendFinalize:6", a_failing_convolution},
    {"a convolution by channels", "fail=cudnnBackendExecute:1", a_convolution_by_channels},
    {"an engine that compiles", "fail=cudnnBackendExecute:1", an_engine_that_compiles},
    {"plans of a graph", "seed=1", plans_of_a_graph},
    {"shared memory is asked for once", "fail=libcudnn:1 fail=cudaFuncSetAttribute:2", shared_memory_is_asked_for_once},
    {"shared memory that is refused", "fail=libcudnn:1 fail=cudaFuncSetAttribute:1", shared_memory_that_is_refused},
    {"a failing handle", "fail=cudnnCreate:1", a_failing_convolution},
    {"no cuDNN", "fail=libcudnn:1", no_cudnn},
    {"a failing fallback", "fail=cudnnBackendFinalize:8", a_failing_convolution},
    {"an engine that fails", "fail=cudnnBackendFinalize:9", an_engine_that_fails},
    {"an engine that cannot be asked", "fail=cudnnBackendGetAttribute:8", no_cudnn},
    {"products without an algorithm", "seed=1", products_without_an_algorithm},
    {"a cuBLASLt that lacks a function", "fail=dlsym:2", no_cublaslt},
    {"a cuDNN that lacks a function", "fail=dlsym:2", no_cudnn},
    {"tf32", "seed=1", tf32},
    {"an unknown way to multiply", "seed=1", an_unknown_way_to_multiply},
};
enum { APART = sizeof apart / sizeof *apart };

static int chosen;
static void run_chosen(void **state)
{
    (void)state;
    apart[chosen].run();
}

static void failures_say_what_to_do(void **state)
{
    (void)state;
    for (int i = 0; i < APART; i++) {
        pid_t child = fork();
        if (child == 0) {
            setenv("CUDA_EMULATOR", apart[i].emulator, 1);
            execl("/proc/self/exe", "test_device", apart[i].name, (char *)NULL);
            _exit(127);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status != 0) fail_msg("\"%s\" failed", apart[i].name);
    }
}

/* An argument: the one case apart, or the one test, to run. */
int main(int argc, char **argv)
{
    for (; argc > 1 && chosen < APART; chosen++) {
        if (strcmp(argv[1], apart[chosen].name) != 0) continue;
        const struct CMUnitTest one[] = {cmocka_unit_test(run_chosen)};
        return cmocka_run_group_tests(one, NULL, NULL);
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_kept_for_later),
        cmocka_unit_test(memory_of_one_stream_does_not_serve_another_before_it_ends),
        cmocka_unit_test(streams_and_events_order_copies),
        cmocka_unit_test(ids_outside_are_reported_at_the_next_wait),
        cmocka_unit_test(heads_that_are_too_large_are_refused),
        cmocka_unit_test(failures_say_what_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
