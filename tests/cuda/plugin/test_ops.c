/* ctest: timeout=400
 *
 * Every kernel of the CUDA plug-in, run by the emulator, against the CPU's: each op that the op cases run, forward and
 * backward, in every dtype, from strided inputs, with gradients in any layout, of empty inputs and under autocast, is
 * run by both on the same inputs. The linker puts `by_both` in the place of the CPU's kernels.
 */
#include "on_device.h"
#include "op_cases.h"

#include "ops/batch_norm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

extern const tr__kernel __real_tr__cpu_kernels[TR__OP_COUNT];

static bool seen[TR__OP_COUNT];
static char running[128]; /* the case, for messages */

/* Compositions of other ops on a device: their parts are compared. */
static bool is_composed(const char *op)
{
    return strcmp(op, "cat") == 0 || strcmp(op, "pad") == 0 || strcmp(op, "to") == 0;
}

static bool has_special_numbers;

/* What the CPU's kernels and CUDA's leave out or multiply by 0 differs, or in what order they add large numbers. */
static bool is_of_many_ways(const char *op)
{
    static const char *const ops[] = {"attention", "batch_norm", "conv", "cross_entropy", "interpolate", "self_attention", "sum"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (strncmp(op, ops[i], strlen(ops[i])) == 0) return true;
    return false;
}

static tr_status by_cpu(tr_op_call *call)
{
    tr__kernel faster = __real_tr__cpu_kernels[call->op - tr__ops];
    tr_status status = faster ? faster(call) : TR_DECLINED;
    return status == TR_DECLINED ? call->op->forward(call) : status;
}

/* An f32 output of 16-bit inputs was made of numbers that one of the two has rounded. */
static double tolerance_of(const tr_op_call *call, const tr_tensor *y)
{
    static const double tolerances[TR_DTYPE_COUNT] = {
        [TR_F32] = 2e-6, [TR_F64] = 1e-13, [TR_BF16] = 0x1p-7, [TR_F16] = 0x1p-10};
    double tolerance = tolerances[y->dtype];
    for (int i = 0; i < call->n_inputs && tr_dtype_is_float(y->dtype); i++) {
        const tr_tensor *x = call->inputs[i];
        if (x && tr_dtype_is_float(x->dtype) && tolerances[x->dtype] > tolerance) tolerance = tolerances[x->dtype];
    }
    return tolerance;
}

static tr_status by_both(tr_op_call *call)
{
    static bool inside; /* the CPU's kernels may run other ops, which go to the CPU alone */
    const char *op = call->op->name;
    if (inside || is_composed(op) || (has_special_numbers && is_of_many_ways(op))) return by_cpu(call);
    device_copies copies = {0};
    tr_device_tensor inputs[TR_OP_MAX_INPUTS], outputs[TR_OP_MAX_OUTPUTS];
    for (int i = 0; i < call->n_inputs; i++) inputs[i] = on_device_view(&copies, call->inputs[i]);
    for (int i = 0; i < call->n_outputs; i++) outputs[i] = on_device_view(&copies, call->outputs[i]);
    inside = true;
    tr_status status = by_cpu(call);
    inside = false;
    if (status == TR_OK) {
        const char *kernel = call->op == tr__op(cast) ? "copy" : op;
        const tr_kernel_entry *entry = on_device_kernel(kernel);
        bool has_none = entry && entry->attrs_size == 0; /* rows without attributes have a byte of them */
        seen[call->op - tr__ops] = true;
        on_device_run(kernel, call->attrs, has_none ? 0 : call->op->attrs_size, inputs, call->n_inputs, outputs,
                      call->n_outputs);
    }
    for (int i = 0; status == TR_OK && i < call->n_outputs; i++) {
        if (!call->outputs[i]) continue;
        char what[256], *back = on_device_back(&copies, call->outputs[i]);
        snprintf(what, sizeof what, "%s: %s: output %d", running, op, i);
        on_device_compare(what, call->outputs[i], back, tolerance_of(call, call->outputs[i]));
        free(back);
    }
    on_device_free(&copies);
    return status;
}

#define OP(name, ...) [TR__OP_##name] = by_both,
const tr__kernel __wrap_tr__cpu_kernels[TR__OP_COUNT] = {
#include "ops/ops.def"
};

/* What an element of the gradient that arrives is; 0: as the others. */
static double special_gradient;

/* How the gradient that arrives lies in memory; of the second, the inputs are strided, too. */
enum { DENSE, SPREAD, ONE_ROW, ONE_NUMBER, LAYOUTS };

static tr_tensor *gradient_for(tr_tensor *out, const void *user)
{
    int layout = *(const int *)user;
    tr_shape shape = tr_shape_of(out), first = shape;
    if (layout == ONE_NUMBER) first = TR_SCALAR;
    if (layout == ONE_ROW && first.ndim) first.dim[0] = 1;
    tr_tensor *g = tr_cast(tr_cast(tr_randn(99, first, .dtype = TR_F64), TR_BF16), tr_dtype_of(out));
    if (special_gradient != 0) tr__store(g->dtype, tr_data(g), tr_numel(g) / 2, special_gradient);
    return layout == SPREAD ? op_case_spread(g) : tr_expand(g, shape);
}

static void run(const op_case *c, tr_dtype dtype, tr_dtype round_to, int64_t batch, int layout)
{
    TR_SCOPE;
    tr_tensor *in[OP_CASE_INPUTS] = {0};
    snprintf(running, sizeof running, "%s (%s, layout %d)", c->name, tr_dtype_name(dtype), layout);
    op_case_inputs(c, (op_variant){dtype, round_to, batch, layout == SPREAD}, true, in);
    (void)op_case_run(c, in, gradient_for, &layout);
}

static void kernels_agree_with_the_cpu(tr_dtype dtype)
{
    for (const op_case *c = op_cases; c < op_cases + op_case_count; c++)
        for (int layout = DENSE; layout < LAYOUTS; layout++) run(c, dtype, dtype, 1, layout);
}

static void f32(void **state) { (void)state; kernels_agree_with_the_cpu(TR_F32); }
static void bf16(void **state) { (void)state; kernels_agree_with_the_cpu(TR_BF16); }
static void f16(void **state) { (void)state; kernels_agree_with_the_cpu(TR_F16); }
static void f64(void **state) { (void)state; kernels_agree_with_the_cpu(TR_F64); }

static void empty_inputs(void **state)
{
    (void)state;
    for (const op_case *c = op_cases; c < op_cases + op_case_count; c++)
        if (!c->not_empty) run(c, TR_F32, TR_F32, 0, DENSE);
}

static void autocast(void **state)
{
    (void)state;
    tr_dtype before = tr_set_autocast(TR_BF16);
    for (const op_case *c = op_cases; c < op_cases + op_case_count; c++) run(c, TR_F32, TR_BF16, 1, DENSE);
    tr_set_autocast(before);
}

/* Of each input, and of the gradient that arrives, an element is NaN, infinite or large. */
static void numbers_at_the_end(void **state)
{
    (void)state;
    static const double numbers[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 1e30, -1e30};
    const int dense = DENSE;
    has_special_numbers = true;
    for (const op_case *c = op_cases; c < op_cases + op_case_count; c++)
        for (int i = -1; i < c->n; i++)
            for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
                TR_SCOPE;
                tr_tensor *in[OP_CASE_INPUTS] = {0};
                op_case_inputs(c, (op_variant){TR_F32, TR_F32, 1, false}, true, in);
                if (i >= 0 && !tr_dtype_is_float(tr_dtype_of(in[i]))) continue;
                snprintf(running, sizeof running, "%s (%g in input %d)", c->name, numbers[k], i);
                if (i >= 0) tr__store(TR_F32, tr_data(in[i]), tr_numel(in[i]) / 2, numbers[k]);
                special_gradient = i < 0 ? numbers[k] : 0;
                (void)op_case_run(c, in, gradient_for, &dense);
                special_gradient = 0;
            }
    has_special_numbers = false;
    TR_SCOPE;
    snprintf(running, sizeof running, "1e30 or infinity");
    for (int place = 0; place < 2; place++) { /* the first, which sums are about, or another */
        tr_tensor *x = tr_randn(1, TR_SHAPE(20, 16)), *line = tr_randn(2, TR_SHAPE(1, 2, 9));
        ((float *)tr_data(x))[place * 16 * 7] = 1e30f;
        ((float *)tr_data(line))[place * 5] = INFINITY;
        assert_int_equal(tr_status_of(tr_batch_norm_op(x, .training = true)), TR_OK);
        assert_int_equal(tr_status_of(tr_batch_norm_op(tr_slice(x, 1, 0, 3), .training = true)), TR_OK);
        assert_int_equal(tr_status_of(tr_interpolate(line, .width = 18, .mode = TR_INTERPOLATE_BILINEAR)), TR_OK);
    }
}

static void every_op_was_compared(void **state)
{
    (void)state;
    for (int i = 0; i < TR__OP_COUNT; i++)
        if (!(tr__ops[i].flags & TR__OP_VIEW) && !is_composed(tr__ops[i].name) && !seen[i])
            fail_msg("%s was not run", tr__ops[i].name);
}

/* The kernel "copy" makes of x what tr_contiguous() makes on the CPU, which is no op and so is not run by both. dtype: of
 * what it makes. */
static void compare_contiguous(tr_tensor *x, tr_dtype dtype)
{
    tr_tensor *y = tr_contiguous(tr_cast(x, dtype));
    device_copies copies = {0};
    assert_int_equal(tr_status_of(y), TR_OK);
    tr_device_tensor from = on_device_view(&copies, x), to = on_device_view(&copies, y);
    on_device_run("fill", &(tr_fill_attrs){7}, sizeof(tr_fill_attrs), NULL, 0, &to, 1);
    on_device_run("copy", NULL, 0, &from, 1, &to, 1);
    char *back = on_device_back(&copies, y);
    on_device_compare("copy: output 0", y, back, 0);
    free(back);
    on_device_free(&copies);
}

/* Larger than a block's part, so that several blocks share a sum, and rows of more than a chunk are sorted. */
static void sizes_that_blocks_share(void **state)
{
    (void)state;
    TR_SCOPE;
    snprintf(running, sizeof running, "large");
    tr_tensor *x = tr_randn(3, TR_SHAPE(5, 6000)), *images = tr_randn(4, TR_SHAPE(12, 2, 30, 30));
    assert_int_equal(tr_status_of(tr_sum(x)), TR_OK);
    assert_int_equal(tr_status_of(tr_sum(x, -1)), TR_OK);
    assert_int_equal(tr_status_of(tr_sum(tr_transpose(x, 0, 1), 0)), TR_OK);
    assert_int_equal(tr_status_of(tr_max(x)), TR_OK);
    assert_int_equal(tr_status_of(tr_sort(x, -1)), TR_OK);
    compare_contiguous(tr_transpose(tr_randn(7, TR_SHAPE(70, 6000)), 0, 1), TR_F32); /* by tiles */
    for (int low = 0; low < 2; low++) { /* weights of convolutions, as cuDNN has them, and back: low tiles, and narrow ones */
        tr_dtype from = low ? TR_F16 : TR_F32, to = low ? TR_F32 : TR_BF16;
        tr_tensor *weight = tr_randn(8, TR_SHAPE(3, 150, 3, 3), .dtype = from);
        compare_contiguous(tr_permute(weight, (int[]){0, 2, 3, 1}, 4), to);
        weight = tr_randn(8, TR_SHAPE(3, 3, 3, 150), .dtype = to);
        compare_contiguous(tr_permute(weight, (int[]){0, 3, 1, 2}, 4), from);
    }
    assert_int_equal(tr_status_of(tr_matmul(tr_slice(x, 0, 0, 2), tr_transpose(x, 0, 1))), TR_OK); /* shares k */
    assert_int_equal(tr_status_of(tr_batch_norm_op(images, .training = true)), TR_OK);
    compare_contiguous(tr_permute(images, (int[]){0, 2, 3, 1}, 4), TR_F32);
    tr_tensor *ids = tr_arange(100, TR_I64, tr_cpu(0)); /* more than are compared each with all */
    tr_tensor *index = tr_expand(tr_cast(tr_affine(tr_cast(ids, TR_F64), 0.07, 0), TR_I64), TR_SHAPE(3, 100));
    assert_int_equal(
        tr_status_of(tr_scatter_add(tr_randn(5, TR_SHAPE(3, 7)), -1, index, tr_randn(6, TR_SHAPE(3, 100)))), TR_OK);
    assert_int_equal(tr_status_of(tr_put_along(tr_randn(5, TR_SHAPE(3, 7)), -1, index, tr_randn(6, TR_SHAPE(3, 100)))),
                     TR_OK);
}

/* A number of words that is no multiple of 8, in rows that begin at one: products in two parts. */
static void words_of_any_number(void **state)
{
    (void)state;
    TR_SCOPE;
    snprintf(running, sizeof running, "521 words");
    tr_tensor *tokens = tr_randn(8, TR_SHAPE(512, 512), .dtype = TR_BF16);
    tr_tensor *words = tr_randn(9, TR_SHAPE(521, 512), .dtype = TR_BF16);
    tr_tensor *bias = tr_randn(10, TR_SHAPE(521), .dtype = TR_BF16);
    tr_tensor *logits = tr_slice(tr_zeros(TR_SHAPE(512, 576), .dtype = TR_BF16), 1, 0, 521);
    tr_tensor *turned = tr_contiguous(tr_transpose(words, 0, 1)), *inputs[] = {tokens, words, bias, NULL};
    TR_CHECK(tr__op_run(tr__op(linear), &(tr_linear_attrs){0}, inputs, 4, &logits, 1));
    for (int in_out = 0; in_out < 2; in_out++) {
        const tr_linear_attrs attrs = {.in_out = in_out};
        tr_tensor *weight = in_out ? turned : words, *dx = tr__tensor_new_like(tokens);
        tr_tensor *of_weight[] = {tr__tensor_new_like(weight), tr__tensor_new_like(bias)};
        TR_CHECK(tr__op_run(tr__op(linear_grad_input), &attrs, (tr_tensor *[]){logits, weight}, 2, &dx, 1));
        TR_CHECK(tr__op_run(tr__op(linear_grad_weight), &attrs, (tr_tensor *[]){logits, tokens}, 2, of_weight, 2));
    }
}

/* Channels that kernels move in packs of 16 bytes: several blocks of them and rows in parts; others that are not so aligned. */
static void channels_in_packs(void **state)
{
    (void)state;
    static const struct {
        int64_t channels, batch, height, width;
    } sizes[] = {{16, 2, 9, 8}, {304, 11, 2, 3}, {40, 5, 20, 23}, {12, 2, 5, 6}};
    static const tr_dtype dtypes[] = {TR_F32, TR_F64, TR_F16, TR_BF16};
    for (size_t c = 0; c < 4 * sizeof sizes / sizeof *sizes; c++) {
        TR_SCOPE;
        tr_dtype dtype = dtypes[c % 4];
        int64_t n = sizes[c / 4].channels, batch = sizes[c / 4].batch, h = sizes[c / 4].height, w = sizes[c / 4].width;
        snprintf(running, sizeof running, "%d channels in %s", (int)n, tr_dtype_name(dtype));
        tr_tensor *rows = tr_affine(tr_randn(1, TR_SHAPE(batch, h, w, n), .dtype = dtype), 0.7, 3);
        tr_tensor *x = tr_require_grad(tr_permute(rows, (int[]){0, 3, 1, 2}, 4));
        tr_tensor *more = tr_permute(tr_randn(5, TR_SHAPE(batch, h, w, n), .dtype = dtype), (int[]){0, 3, 1, 2}, 4);
        more = tr_require_grad(more);
        tr_tensor *weight = tr_require_grad(tr_rand(2, TR_SHAPE(n), .dtype = dtype));
        tr_tensor *bias = tr_require_grad(tr_randn(3, TR_SHAPE(n), .dtype = dtype));
        tr_tensor *mean = tr_full(2.5, TR_SHAPE(n), .dtype = dtype), *var = tr_full(0.5, TR_SHAPE(n), .dtype = dtype);
        tr_tensor *made[] = {tr_batch_norm_op(x, .weight = weight, .bias = bias, .training = true),
            tr_batch_norm_op(x, .weight = weight, .bias = bias, .running_mean = mean, .running_var = var),
            tr_batch_norm_op(x, .weight = weight, .bias = bias, .training = true, .relu = true),
            tr_batch_norm_op(x, .weight = weight, .bias = bias, .training = true, .relu = true, .residual = more),
            tr_batch_norm_op(x, .bias = bias, .running_mean = mean, .running_var = var, .relu = true),
            tr_batch_norm_op(x, .weight = weight, .running_mean = mean, .running_var = var, .relu = true, .residual = more),
            tr_batch_norm_op(tr_detach(x), .weight = weight, .bias = bias, .training = true, .relu = true),
            tr_max_pool2d(x, 3, .stride = 2, .padding = 1), tr_avg_pool2d(x, 2), tr_adaptive_avg_pool2d(x, 1, 1),
            tr_adaptive_avg_pool2d(x, 3, 2)};
        for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
            tr_shape s = tr_shape_of(made[i]); /* a gradient in rows, as a convolution gives it, and then a row-major one */
            tr_tensor *g = tr_randn(4, TR_SHAPE(s.dim[0], s.dim[2], s.dim[3], s.dim[1]), .dtype = dtype);
            tr_tensor *in_rows = tr_permute(g, (int[]){0, 3, 1, 2}, 4);
            assert_int_equal(tr_backward(made[i], .gradient = in_rows, .retain_graph = true), TR_OK);
            assert_int_equal(tr_backward(made[i], .gradient = tr_contiguous(in_rows)), TR_OK);
        }
        for (int64_t first = 0; first < 2; first++) { /* whole packs of channels, but 12 apart, or from the second on */
            x = tr_slice(tr_permute(rows, (int[]){0, 3, 1, 2}, 4), 1, first, first + (n - 1) / 8 * 8);
            assert_int_equal(tr_status_of(tr_batch_norm_op(x, .training = true)), TR_OK);
            assert_int_equal(tr_status_of(tr_max_pool2d(x, 2)), TR_OK);
            assert_int_equal(tr_status_of(tr_avg_pool2d(x, 2)), TR_OK);
        }
    }
}

/* Of which only the first window is there, however far the next would be. */
static void strides_beyond_the_image(void **state)
{
    (void)state;
    TR_SCOPE;
    snprintf(running, sizeof running, "strides beyond the image");
    tr_tensor *x = tr_require_grad(tr_randn(1, TR_SHAPE(1, 8, 5, 11)));
    tr_tensor *made[] = {tr_avg_pool2d(x, 1, .stride = INT32_MAX), tr_max_pool2d(x, 1, .stride = INT32_MAX)};
    for (int i = 0; i < 2; i++) assert_int_equal(tr_backward(tr_sum(made[i])), TR_OK);
}

/* Sums of columns that blocks share, rows that several warps hold, that begin anywhere and that are long, and ids of many
 * positions. */
static void rows_and_columns_of_training(void **state)
{
    (void)state;
    static const tr_dtype dtypes[] = {TR_F32, TR_F64, TR_F16, TR_BF16};
    for (int d = 0; d < 4; d++) {
        snprintf(running, sizeof running, "rows and columns in %s", tr_dtype_name(dtypes[d]));
        for (int64_t columns = 263; columns <= 265; columns++) {
            TR_SCOPE;
            tr_tensor *x = tr_affine(tr_randn(3, TR_SHAPE(270, columns), .dtype = dtypes[d]), 0.5, 1);
            assert_int_equal(tr_status_of(tr_sum(x, 0)), TR_OK);
            assert_int_equal(tr_status_of(tr_sum(tr_slice(x, 1, 1, columns - 1), 0)), TR_OK);
        }
        static const int64_t rows[][2] = {{70, 264}, {3, 2056}, {2, 16400}};
        for (int k = 0; k < 3; k++) {
            TR_SCOPE;
            tr_tensor *x = tr_require_grad(tr_randn(1, TR_SHAPE(rows[k][0], rows[k][1]), .dtype = dtypes[d]));
            tr_tensor *w = tr_require_grad(tr_randn(2, TR_SHAPE(rows[k][1]), .dtype = dtypes[d]));
            tr_tensor *b = tr_require_grad(tr_randn(3, TR_SHAPE(rows[k][1]), .dtype = dtypes[d]));
            tr_tensor *y = tr_layer_norm_op(x, w, b, 1e-5);
            assert_int_equal(tr_backward(tr_sum(tr_mul(y, y))), TR_OK);
        }
        for (int64_t classes = 8199; classes <= 8200; classes++) {
            TR_SCOPE;
            tr_tensor *x = tr_require_grad(tr_randn(1, TR_SHAPE(9, classes), .dtype = dtypes[d]));
            tr_tensor *ids = tr_arange(9, TR_I64, tr_cpu(0));
            assert_int_equal(tr_backward(tr_cross_entropy(x, ids, .label_smoothing = 0.1)), TR_OK);
        }
        for (int64_t size = 23; size <= 24; size++) {
            TR_SCOPE;
            tr_tensor *table = tr_require_grad(tr_randn(1, TR_SHAPE(13, size), .dtype = dtypes[d]));
            tr_tensor *ids = tr_zeros(TR_SHAPE(350), .dtype = TR_I64), *y = tr_embedding_op(ids, table);
            assert_int_equal(tr_backward(tr_sum(tr_mul(y, y))), TR_OK);
            for (int64_t i = 0; i < 350; i++) ((int64_t *)ids->storage->data)[i] = i * i % 13; /* up to 54 times each */
            y = tr_embedding_op(ids, table);
            assert_int_equal(tr_backward(tr_sum(tr_mul(y, y))), TR_OK);
        }
    }
}

/* Heads of each size that has kernels of its own, and more queries and keys than a tile has. */
static void attention_of_all_head_sizes(void **state)
{
    (void)state;
    enum { CAUSAL = 1, MASKED = 2 };
    static const struct {
        tr_dtype dtype;
        int64_t queries, keys, dim;
        int how;
    } calls[] = {{TR_F32, 35, 35, 1, CAUSAL}, {TR_F32, 35, 35, 33, 0}, {TR_F32, 35, 35, 64, CAUSAL},
        {TR_F32, 35, 35, 65, 0}, {TR_F32, 35, 35, 128, CAUSAL}, {TR_F32, 35, 35, 129, 0}, {TR_F32, 35, 35, 256, 0},
        {TR_F64, 35, 35, 64, 0}, {TR_F64, 35, 35, 129, CAUSAL}, {TR_F64, 35, 35, 256, 0},
        {TR_BF16, 35, 35, 60, 0}, {TR_BF16, 35, 35, 136, CAUSAL}, /* not on tensor cores */
        {TR_BF16, 128, 128, 64, CAUSAL}, {TR_F16, 128, 256, 128, 0}, {TR_BF16, 256, 128, 40, 0}, /* cuDNN's */
        {TR_BF16, 130, 130, 64, CAUSAL}, {TR_BF16, 100, 200, 40, CAUSAL}, {TR_BF16, 70, 129, 128, 0},
        {TR_BF16, 200, 100, 72, CAUSAL}, {TR_F16, 65, 140, 64, MASKED}, {TR_F16, 129, 129, 128, CAUSAL | MASKED}};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        TR_SCOPE;
        tr_tensor *x[3], *mask = NULL;
        snprintf(running, sizeof running, "attention of %d by %d by %d in %s", (int)calls[c].queries,
                 (int)calls[c].keys, (int)calls[c].dim, tr_dtype_name(calls[c].dtype));
        for (int i = 0; i < 3; i++) {
            tr_shape shape = TR_SHAPE(2, 2, i == 0 ? calls[c].queries : calls[c].keys, calls[c].dim);
            x[i] = tr_require_grad(tr_randn((uint64_t)i, shape, .dtype = calls[c].dtype));
        }
        if (calls[c].how & MASKED)
            mask = tr_less(tr_rand(9, TR_SHAPE(2, calls[c].queries, calls[c].keys)), tr_full(0.6, TR_SCALAR));
        tr_tensor *o = tr_attention(x[0], x[1], x[2], .causal = calls[c].how & CAUSAL, .mask = mask);
        assert_int_equal(tr_backward(tr_sum(tr_mul(o, o))), TR_OK);
    }
}

/* By one kernel, in any dtypes, beside the CPU's several ops. */
static void running_statistics(void **state)
{
    (void)state;
    static const tr_dtype dtypes[][2] = {{TR_F32, TR_F32}, {TR_F64, TR_F64}, {TR_F32, TR_BF16}, {TR_BF16, TR_F64}};
    for (int d = 0; d < 4; d++) {
        TR_SCOPE;
        tr_tensor *x = tr_affine(tr_randn(5, TR_SHAPE(6, 300), .dtype = dtypes[d][0]), 2, 1);
        tr_tensor *mean = tr_rand(6, TR_SHAPE(300), .dtype = dtypes[d][1]), *var = tr_rand(7, TR_SHAPE(300), .dtype = dtypes[d][1]);
        tr_tensor *batches = tr_full(4, TR_SCALAR, .dtype = TR_I64), *moved[] = {mean, var, batches};
        device_copies copies = {0};
        tr_device_tensor out[3];
        for (int i = 0; i < 3; i++) out[i] = on_device_view(&copies, moved[i]);
        const tr_batch_norm_op_options options = {.size = sizeof options, .x = x, .running_mean = mean, .running_var = var,
            .training = true, .momentum = 0.3};
        tr_tensor *inputs[3] = {x}, *outputs[TR_OP_MAX_OUTPUTS];
        tr_tensor *y = tr_apply(tr__op(batch_norm), &(tr_batch_norm_attrs){.eps = 1e-5}, inputs, 3, outputs);
        assert_int_equal(tr_status_of(y), TR_OK);
        tr_device_tensor in[] = {on_device_view(&copies, outputs[1]), on_device_view(&copies, outputs[2])};
        const tr_batch_norm_move_attrs attrs = {.momentum = 0.3, .unbiased = 6.0 / 5};
        on_device_run("batch_norm_move", &attrs, sizeof attrs, in, 2, out, 3);
        assert_int_equal(tr_status_of(tr__batch_norm(&options, batches)), TR_OK);
        for (int i = 0; i < 3; i++) {
            char *back = on_device_back(&copies, moved[i]);
            on_device_compare("batch_norm_move", moved[i], back, dtypes[d][1] == TR_BF16 ? 0x1p-7 : 1e-6);
            free(back);
        }
        on_device_free(&copies);
    }
}

/* Twice the same gradients, bit for bit: nothing is added up in the order in which blocks happen to come. */
static void attention_adds_in_a_fixed_order(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { Q, K, V, O, G, DQ, DK, DV, TENSORS };
    const tr_attention_attrs attrs = {.causal = true};
    device_copies copies = {0};
    tr_device_tensor at[TENSORS];
    tr_tensor *x[TENSORS], *lse = tr_rand(0, TR_SHAPE(2, 2, 384));
    char *first[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        x[i] = tr_randn((uint64_t)i, TR_SHAPE(2, 2, 384, 64), .dtype = TR_BF16);
        at[i] = on_device_view(&copies, x[i]);
    }
    const tr_device_tensor none = on_device_view(&copies, NULL), sums = on_device_view(&copies, lse);
    on_device_run("attention", &attrs, sizeof attrs, (tr_device_tensor[]){at[Q], at[K], at[V], none}, 4,
                  (tr_device_tensor[]){at[O], sums}, 2);
    for (int run = 0; run < 2; run++) {
        on_device_run("attention_grad", &attrs, sizeof attrs,
                      (tr_device_tensor[]){at[G], at[Q], at[K], at[V], none, at[O], sums}, 7, at + DQ, 3);
        for (int i = DQ; i < TENSORS; i++) {
            char *back = on_device_back(&copies, x[i]);
            if (run) assert_memory_equal(back, first[i], x[i]->storage->bytes);
            if (run) free(first[i]);
            first[i] = back;
        }
    }
    for (int i = DQ; i < TENSORS; i++) free(first[i]);
    on_device_free(&copies);
}

/* Random numbers are the CPU's bit for bit, of any dtype, and so is a fill. */
static void random_numbers_and_fills(void **state)
{
    (void)state;
    static const tr_dtype dtypes[] = {TR_F32, TR_F64, TR_F16, TR_BF16};
    for (int d = 0; d < 4; d++)
        for (int normal = 0; normal < 2; normal++) {
            TR_SCOPE;
            tr_tensor *x = normal ? tr_randn(11, TR_SHAPE(1003), .dtype = dtypes[d])
                                  : tr_rand(11, TR_SHAPE(1003), .dtype = dtypes[d]);
            device_copies copies = {0};
            tr_device_tensor y = on_device_view(&copies, x);
            on_device_run("fill", &(tr_fill_attrs){7}, sizeof(tr_fill_attrs), NULL, 0, &y, 1);
            char *back = on_device_back(&copies, x);
            for (int64_t i = 0; i < 1003; i++) assert_true(tr__load(dtypes[d], back, i) == 7);
            free(back);
            on_device_run("random", &(tr_random_attrs){.seed = 11, .scale = 1, .normal = normal},
                          sizeof(tr_random_attrs), NULL, 0, &y, 1);
            back = on_device_back(&copies, x);
            assert_memory_equal(back, x->storage->data, 1003 * tr_dtype_size(dtypes[d]));
            free(back);
            on_device_free(&copies);
        }
}

#define TEST(name) cmocka_unit_test_teardown(name, on_device_failed)

/* Arguments: --go-on, which tells all failures of a test rather than the first; the one test to run. */
int main(int argc, char **argv)
{
    bool go_on = argc > 1 && strcmp(argv[1], "--go-on") == 0;
    if (go_on) on_device_go_on();
    if (argc > 1 + go_on) cmocka_set_test_filter(argv[1 + go_on]);
    setenv("TRIREME_CPU_DEVICES", "2", 1); /* for the op that copies between devices */
    setenv("TRIREME_CUDA_CACHE", "0", 1);  /* so that each block's end is known */
    if (tr_set_threads(1) != TR_OK) return 1;
    const struct CMUnitTest tests[] = {
        TEST(f32),
        TEST(bf16),
        TEST(f16),
        TEST(f64),
        TEST(empty_inputs),
        TEST(autocast),
        TEST(numbers_at_the_end),
        TEST(every_op_was_compared),
        TEST(sizes_that_blocks_share),
        TEST(words_of_any_number),
        TEST(channels_in_packs),
        TEST(strides_beyond_the_image),
        TEST(running_statistics),
        TEST(rows_and_columns_of_training),
        TEST(attention_of_all_head_sizes),
        TEST(attention_adds_in_a_fixed_order),
        TEST(random_numbers_and_fills),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
