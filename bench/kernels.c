/*
 * bench/kernels [REPEATS [NAME]]: how fast the matrix kernels run on one thread, at the shapes of GPT mini (batch 8 x seq 256, 6
 * heads, 384 wide), and convolutions at those of ResNets, beside oneDNN's own sgemm on a large square in the same run.
 * Convolutions count the operations of their definition, however they are computed. The cases take turns, so that a busy
 * machine slows all of them, and time given to other programs is not counted; the best and the median are printed.
 * With NAME, only of cases whose name contains it.
 */
#include "ops/onednn/engine.h"
#include "ops/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 2048, BATCH = 8, SEQ = 256, HEADS = 6, WIDE = 384, SQUARE = 1536, CASES = 64, MOST_REPEATS = 1000 };

typedef struct bench_case {
    char name[64];
    double gigaflop;
    const tr_op *op; /* NULL: oneDNN's sgemm of SQUARE */
    _Alignas(16) char attrs[64];
    tr_tensor *in[TR_OP_MAX_INPUTS], *out[TR_OP_MAX_OUTPUTS];
    double seconds[MOST_REPEATS];
} bench_case;

static bench_case cases[CASES];
static int count;

/* in and out end with NULL where they are shorter than an op's most. */
static const char *wanted = "";

static void add(const char *what, const char *shape, double gigaflop, const tr_op *op, const void *attrs,
    tr_tensor *const in[TR_OP_MAX_INPUTS], tr_tensor *const out[TR_OP_MAX_OUTPUTS])
{
    bench_case *c = &cases[count];
    snprintf(c->name, sizeof c->name, "%-12s %s", what, shape);
    count += !op || strstr(c->name, wanted);
    c->gigaflop = gigaflop;
    c->op = op;
    if (attrs) memcpy(c->attrs, attrs, op->attrs_size);
    memcpy(c->in, in, sizeof c->in);
    memcpy(c->out, out, sizeof c->out);
}

static tr_tensor *random_numbers(tr_shape shape, tr_dtype dtype)
{
    tr_tensor *x = tr_empty(shape, .dtype = dtype);
    TR_CHECK(tr_copy_into(x, tr_randn(1, shape)));
    return x;
}

#define LIST(...) ((tr_tensor *[TR_OP_MAX_INPUTS]){__VA_ARGS__})

static void add_linear(const char *name, int64_t in, int64_t out, bool in_out, bool residual, tr_dtype dtype)
{
    double gigaflop = 2e-9 * ROWS * (double)in * (double)out;
    tr_tensor *x = random_numbers(TR_SHAPE(ROWS, in), dtype), *y = random_numbers(TR_SHAPE(ROWS, out), dtype);
    tr_tensor *w = random_numbers(in_out ? TR_SHAPE(in, out) : TR_SHAPE(out, in), dtype);
    tr_tensor *bias = random_numbers(TR_SHAPE(out), dtype), *added = residual ? random_numbers(y->shape, dtype) : NULL;
    tr_tensor *g = random_numbers(y->shape, dtype), *dx = random_numbers(x->shape, dtype);
    tr_tensor *dw = random_numbers(w->shape, dtype), *dbias = random_numbers(bias->shape, dtype);
    tr_linear_attrs attrs = {.in_out = in_out}, grad_attrs = {.in_out = in_out, .accumulate = true, .accumulate_bias = true};
    char shape[48];
    snprintf(shape, sizeof shape, "%s %lld -> %lld %s", name, (long long)in, (long long)out, tr_dtype_name(dtype));
    add("linear", shape, gigaflop, tr__op(linear), &attrs, LIST(x, w, bias, added), LIST(y));
    add("grad input", shape, gigaflop, tr__op(linear_grad_input), &attrs, LIST(g, w), LIST(dx));
    add("grad weight", shape, gigaflop, tr__op(linear_grad_weight), &grad_attrs, LIST(g, x), LIST(dw, dbias));
}

static void add_attention(bool causal, tr_dtype dtype)
{
    /* A product of one head; of a causal one, the half that counts. */
    double product = 2e-9 * BATCH * WIDE * SEQ * (causal ? (SEQ + 1) / 2.0 : SEQ);
    tr_shape shape = TR_SHAPE(BATCH, SEQ, WIDE), packed = TR_SHAPE(BATCH, SEQ, 3 * WIDE);
    tr_tensor *qkv = random_numbers(packed, dtype), *o = random_numbers(shape, dtype), *g = random_numbers(shape, dtype);
    tr_tensor *lse = tr_zeros(TR_SHAPE(BATCH, HEADS, SEQ)), *dqkv = random_numbers(packed, dtype);
    tr_attention_attrs attrs = {.heads = HEADS, .causal = causal};
    char text[48];
    snprintf(text, sizeof text, "%s%s", causal ? "causal " : "", tr_dtype_name(dtype));
    add("attention", text, 2 * product, tr__op(self_attention), &attrs, LIST(qkv), LIST(o, lse));
    add("grad", text, 5 * product, tr__op(self_attention_grad), &attrs, LIST(g, qkv, o, lse), LIST(dqkv));
}

static tr_tensor *random_images(int64_t n, int64_t c, int64_t size)
{
    int64_t stride[TR_MAX_DIMS];
    tr_shape shape = TR_SHAPE(n, c, size, size);
    tr__channels_last(shape, stride);
    tr_tensor *x = tr__tensor_new_strided(shape, stride, TR_F32, tr_cpu(0));
    TR_CHECK(tr_copy_into(x, tr_randn(1, shape)));
    return x;
}

/* Eight images of c channels to k. */
static void add_convolution(int64_t c, int64_t size, int64_t k, int64_t taps, int stride)
{
    tr_conv2d_attrs attrs = {.stride = stride, .padding = (int)(taps / 2), .dilation = 1, .groups = 1};
    int64_t made = (size + 2 * attrs.padding - taps) / stride + 1;
    double gigaflop = 2e-9 * BATCH * (double)(made * made * c * k * taps * taps);
    tr_tensor *x = random_images(BATCH, c, size), *y = random_images(BATCH, k, made);
    tr_tensor *w = random_numbers(TR_SHAPE(k, c, taps, taps), TR_F32);
    tr_tensor *dx = random_images(BATCH, c, size), *dw = random_numbers(w->shape, TR_F32);
    char shape[48];
    snprintf(shape, sizeof shape, "%lldx%lld %lld -> %lld, size %lld, stride %d", (long long)taps, (long long)taps,
        (long long)c, (long long)k, (long long)size, stride);
    add("conv", shape, gigaflop, tr__op(conv2d), &attrs, LIST(x, w), LIST(y));
    add("grad input", shape, gigaflop, tr__op(conv2d_grad_input), &attrs, LIST(y, w), LIST(dx));
    add("grad weight", shape, gigaflop, tr__op(conv2d_grad_weight), &attrs, LIST(y, x), LIST(dw));
}

static void add_convolutions(void)
{
    add_convolution(3, 224, 64, 7, 2);
    add_convolution(64, 56, 64, 3, 1);
    add_convolution(128, 28, 128, 3, 1);
    add_convolution(256, 14, 256, 3, 1);
    add_convolution(512, 7, 512, 3, 1);
    add_convolution(64, 56, 128, 3, 2);
    add_convolution(256, 14, 512, 3, 2);
    add_convolution(64, 56, 128, 1, 2);
    add_convolution(64, 56, 256, 1, 1);
    add_convolution(512, 28, 128, 1, 1);
    add_convolution(512, 7, 2048, 1, 1);
}

static void add_cases(void)
{
    tr_tensor *a = random_numbers(TR_SHAPE(SQUARE, SQUARE), TR_F32), *c = random_numbers(TR_SHAPE(SQUARE, SQUARE), TR_F32);
    add("sgemm", "of oneDNN, 1536 cubed", 2e-9 * SQUARE * SQUARE * SQUARE, NULL, NULL, LIST(a, a), LIST(c));
    add_linear("c_attn", WIDE, 3 * WIDE, true, false, TR_F32);
    add_linear("attn.c_proj", WIDE, WIDE, true, true, TR_F32);
    add_linear("c_fc", WIDE, 4 * WIDE, true, false, TR_F32);
    add_linear("mlp.c_proj", 4 * WIDE, WIDE, true, true, TR_F32);
    add_linear("head [out, in]", WIDE, 256, false, false, TR_F32);
    add_linear("c_fc [out, in]", WIDE, 4 * WIDE, false, false, TR_F32);
    add_attention(true, TR_F32);
    add_attention(false, TR_F32);
    add_linear("c_fc", WIDE, 4 * WIDE, true, false, TR_BF16);
    add_attention(true, TR_BF16);
    add_convolutions();
}

static void run(const bench_case *c)
{
    if (c->op) {
        TR_CHECK(tr__op_run(c->op, c->attrs, c->in, TR_OP_MAX_INPUTS, c->out, TR_OP_MAX_OUTPUTS));
        return;
    }
    int threads = tr__onednn_enter();
    dnnl_status_t status = dnnl_sgemm('N', 'N', SQUARE, SQUARE, SQUARE, 1, tr__ptr(c->in[0]), SQUARE, tr__ptr(c->in[1]), SQUARE,
        0, tr__ptr(c->out[0]), SQUARE);
    tr__onednn_leave(threads);
    TR_CHECK(tr__onednn_fail(status, "sgemm"));
}

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int n, char **arguments)
{
    int repeats = n > 1 ? atoi(arguments[1]) : 20;
    if (repeats < 1 || repeats > MOST_REPEATS) {
        fprintf(stderr, "usage: kernels [REPEATS [NAME]]: 1 to %d, not \"%s\"\n", MOST_REPEATS, arguments[1]);
        return 2;
    }
    if (n > 2) wanted = arguments[2];
    TR_SCOPE;
    TR_CHECK(tr_set_threads(1));
    add_cases();
    for (int i = 0; i < count; i++) run(&cases[i]); /* code made, memory touched */
    for (int repeat = 0; repeat < repeats; repeat++) {
        for (int i = 0; i < count; i++) {
            double start = thread_seconds();
            run(&cases[i]);
            cases[i].seconds[repeat] = thread_seconds() - start;
        }
    }
    printf("%-44s %9s %9s %9s %9s\n", "GFLOP/s", "best", "of sgemm", "median", "of sgemm");
    for (int i = 0; i < count; i++) {
        bench_case *c = &cases[i];
        qsort(c->seconds, (size_t)repeats, sizeof *c->seconds, ascending);
        double best = c->seconds[0] / c->gigaflop, median = c->seconds[repeats / 2] / c->gigaflop;
        double top = cases[0].seconds[0] / cases[0].gigaflop, usual = cases[0].seconds[repeats / 2] / cases[0].gigaflop;
        printf("%-44s %9.1f %8.0f%% %9.1f %8.0f%%\n", c->name, 1 / best, 100 * top / best, 1 / median, 100 * usual / median);
    }
    return 0;
}
