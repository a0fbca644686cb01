/* Attention against the textbook: softmax(q k^T * scale + mask) v in f64, for every kernel, shape, mask and layout.
 * ctest: timeout=300 */
#include "amx_double.h"
#include "base/isa.h"
#include "ops/cpu/attention/attention.h"

#include <trireme/autograd.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct attention_case {
    int64_t batch, heads, queries, keys, dim;
} attention_case;

static const attention_case cases[] = {
    {1, 1, 1, 1, 1},     {2, 3, 5, 5, 4},      {1, 2, 16, 16, 16},   {1, 1, 33, 33, 7},     {1, 2, 64, 64, 64},
    {2, 2, 100, 100, 64}, {1, 1, 257, 257, 48}, {1, 1, 129, 129, 80}, {1, 1, 70, 70, 128},  {1, 1, 65, 65, 256},
    {1, 1, 20, 20, 300}, {1, 2, 3, 90, 32},    {1, 2, 90, 3, 32},    {1, 1, 1, 600, 64},    {1, 1, 130, 700, 24},
    {1, 1, 640, 640, 16}, {0, 2, 4, 4, 8},      {1, 1, 0, 4, 8},      {1, 1, 4, 0, 8},
};
enum { CASES = sizeof cases / sizeof *cases };

static tr_tensor *converted(tr_tensor *x, tr_dtype dtype)
{
    tr_tensor *y = tr_empty(x->shape, .dtype = dtype);
    assert_int_equal(tr_copy_into(y, x), TR_OK);
    return y;
}

static double at(const tr_tensor *x, int64_t i)
{
    return tr__load(x->dtype, tr__ptr(x), i);
}

static void assert_close(tr_tensor *x, tr_tensor *expected, double tolerance, const char *what, int number)
{
    if (tr_status_of(x) != TR_OK || tr_status_of(expected) != TR_OK) fail_msg("%s", tr_error_message());
    assert_true(tr__shape_equal(x->shape, expected->shape));
    x = converted(x, TR_F64);
    expected = converted(expected, TR_F64);
    double worst = 0, scale = 1;
    for (int64_t i = 0; i < tr_numel(x); i++) {
        scale = fmax(scale, fabs(at(expected, i)));
        double off = fabs(at(x, i) - at(expected, i));
        worst = off >= 0 ? fmax(worst, off) : INFINITY;
    }
    if (worst > tolerance * scale)
        fail_msg("case %d: %s is off by %g (values to %g) in %s", number, what, worst, scale, TR__TEXT(x->shape));
}

/* bool [shape], true with probability 0.7. */
static tr_tensor *random_mask(uint64_t seed, tr_shape shape)
{
    tr_tensor *numbers = tr_rand(seed, shape), *mask = tr_empty(shape, .dtype = TR_BOOL);
    uint8_t *allowed = tr__ptr(mask);
    for (int64_t i = 0; i < tr_numel(mask); i++) allowed[i] = at(numbers, i) < 0.7;
    return mask;
}

static bool visible(const attention_case *c, const tr_tensor *mask, bool causal, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (causal && j > i + c->keys - c->queries) return false;
    if (!mask) return true;
    int64_t stride[TR_MAX_DIMS];
    tr__broadcast_strides(mask, TR_SHAPE(c->batch, c->heads, c->queries, c->keys), stride);
    return at(mask, b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3]) != 0;
}

/* f64, row-major inputs: scores in full, softmax, times v. */
static tr_tensor *textbook(const attention_case *c, const tr_tensor *q, const tr_tensor *k, const tr_tensor *v,
    const tr_tensor *mask, bool causal, double scale)
{
    tr_tensor *o = tr_zeros(q->shape, .dtype = TR_F64);
    const double *from_q = tr__ptr(q), *from_k = tr__ptr(k), *from_v = tr__ptr(v);
    double *out = tr__ptr(o), *weights = calloc((size_t)c->keys + 1, sizeof *weights);
    for (int64_t row = 0; row < c->batch * c->heads * c->queries; row++) {
        int64_t head = row / c->queries, i = row % c->queries;
        double sum = 0, max = -INFINITY;
        for (int64_t j = 0; j < c->keys; j++) {
            weights[j] = -INFINITY;
            if (!visible(c, mask, causal, head / c->heads, head % c->heads, i, j)) continue;
            double dot = 0;
            for (int64_t d = 0; d < c->dim; d++) dot += from_q[row * c->dim + d] * from_k[(head * c->keys + j) * c->dim + d];
            weights[j] = dot * scale;
            max = fmax(max, weights[j]);
        }
        for (int64_t j = 0; j < c->keys && max > -INFINITY; j++) sum += weights[j] = exp(weights[j] - max);
        for (int64_t j = 0; j < c->keys && max > -INFINITY; j++)
            for (int64_t d = 0; d < c->dim; d++)
                out[row * c->dim + d] += weights[j] / sum * from_v[(head * c->keys + j) * c->dim + d];
    }
    free(weights);
    return o;
}

static tr_tensor *queries(const attention_case *c, uint64_t seed, tr_dtype dtype)
{
    return converted(tr_randn(seed, TR_SHAPE(c->batch, c->heads, c->queries, c->dim)), dtype);
}

static tr_tensor *keys(const attention_case *c, uint64_t seed, tr_dtype dtype)
{
    return converted(tr_randn(seed, TR_SHAPE(c->batch, c->heads, c->keys, c->dim)), dtype);
}

/* x: [b, h, t, d] as a view of [b, t, h, d] memory, as a projection leaves it. */
static tr_tensor *interleaved(tr_tensor *x)
{
    const int64_t *n = x->shape.dim;
    tr_tensor *y = tr_transpose(tr_empty(TR_SHAPE(n[0], n[2], n[1], n[3]), .dtype = x->dtype), 1, 2);
    assert_int_equal(tr_copy_into(y, x), TR_OK);
    return y;
}

static tr_shape mask_shape(const attention_case *c, int kind)
{
    switch (kind) {
    case 1: return TR_SHAPE(c->batch, c->heads, c->queries, c->keys);
    case 2: return TR_SHAPE(c->batch, 1, 1, c->keys);
    default: return TR_SHAPE(c->queries, c->keys);
    }
}

static void attention_is_the_textbook(void **state)
{
    (void)state;
    static const struct { tr_dtype dtype; double tolerance; } dtypes[] = {
        {TR_F32, 5e-6}, {TR_F64, 1e-13}, {TR_BF16, 1e-2}, {TR_F16, 2e-3}};
    for (int variant = 0; variant < CASES * 4 * 2 * 4; variant++) {
        TR_SCOPE;
        const attention_case *c = cases + variant / 32;
        int d = variant % 4, mask_kind = variant / 8 % 4;
        if (amx_leaves_out(dtypes[d].dtype)) continue;
        bool causal = variant / 4 % 2;
        tr_tensor *q = queries(c, 1, dtypes[d].dtype), *k = keys(c, 2, dtypes[d].dtype), *v = keys(c, 3, dtypes[d].dtype);
        tr_tensor *mask = mask_kind ? random_mask(4, mask_shape(c, mask_kind)) : NULL;
        double given = (double[]){0, 0.3, -0.3}[variant % 3], scale = given != 0 ? given : 1 / sqrt((double)c->dim);
        tr_tensor *expected = textbook(c, converted(q, TR_F64), converted(k, TR_F64), converted(v, TR_F64), mask, causal, scale);
        tr_tensor *o = given != 0 ? tr_attention(q, k, v, .mask = mask, .causal = causal, .scale = given)
                                : tr_attention(q, k, v, .mask = mask, .causal = causal);
        assert_close(o, expected, dtypes[d].tolerance, "o", variant);
        o = tr_attention(interleaved(q), interleaved(k), interleaved(v), .mask = mask, .causal = causal, .scale = scale);
        assert_close(o, expected, dtypes[d].tolerance, "o of interleaved heads", variant);
    }
}

/* The gradients of q, k, v for the gradient g, all computed in dtype, or by the reference in f64. */
static void gradients(const attention_case *c, tr_dtype dtype, bool exact, tr_tensor *mask, bool causal, bool strided,
    tr_tensor *grads[3])
{
    tr_tensor *in[4] = {queries(c, 1, dtype), keys(c, 2, dtype), keys(c, 3, dtype), queries(c, 5, dtype)};
    for (int i = 0; i < 4; i++) {
        if (exact) in[i] = converted(in[i], TR_F64);
        if (strided) in[i] = interleaved(in[i]);
        if (i < 3) tr_require_grad(in[i]);
    }
    tr_tensor *o = tr_attention(in[0], in[1], in[2], .mask = mask, .causal = causal);
    TR_CHECK(tr_backward(o, .gradient = in[3]));
    for (int i = 0; i < 3; i++) grads[i] = tr_grad(in[i]);
}

static void gradients_are_those_of_f64(void **state)
{
    (void)state;
    static const struct { tr_dtype dtype; double tolerance; } dtypes[] = {{TR_F32, 5e-6}, {TR_BF16, 3e-2}, {TR_F16, 4e-3}};
    for (int variant = 0; variant < CASES * 3 * 2 * 4; variant++) {
        TR_SCOPE;
        const attention_case *c = cases + variant / 24;
        int d = variant % 3, mask_kind = variant / 6 % 4;
        if (amx_leaves_out(dtypes[d].dtype)) continue;
        bool causal = variant / 3 % 2;
        tr_tensor *mask = mask_kind ? random_mask(4, mask_shape(c, mask_kind)) : NULL;
        tr_tensor *fast[3], *exact[3];
        gradients(c, dtypes[d].dtype, false, mask, causal, variant % 2, fast);
        gradients(c, dtypes[d].dtype, true, mask, causal, false, exact);
        for (int i = 0; i < 3; i++) assert_close(fast[i], exact[i], dtypes[d].tolerance, (const char *[]){"dq", "dk", "dv"}[i], variant);
    }
}

static void run_all(const tr__attention_kernels *kernels, tr_op_call *call)
{
    tr__attention a = tr__attention_of(call);
    size_t floats = (a.grad ? kernels->backward_scratch : kernels->forward_scratch)(&a);
    float *scratch = aligned_alloc(64, (floats * sizeof *scratch + 63) / 64 * 64);
    int64_t n = a.batch * a.heads;
    for (int64_t i = 0; i < n; i++) (a.grad ? kernels->backward : kernels->forward)(&a, i, i + 1 < n ? i + 1 : i, scratch);
    free(scratch);
}

/* The kernels for every machine that this one can stand in for. */
static void all_machines_agree(void **state)
{
    (void)state;
    if (tr__isa_allowed() == TR__ISA_AMX) {
        print_message("skipped: the run without AMX compares all kernels\n");
        skip();
    }
    const tr__attention_kernels *kernels[5] = {&tr__attention_generic};
    static const struct { tr_dtype dtype; double forward, backward; } dtypes[] = {{TR_F32, 5e-6, 5e-6}, {TR_BF16, 1e-2, 3e-2}};
#if defined(__x86_64__)
    if (tr__has_avx2()) kernels[1] = &tr__attention_avx2;
    if (tr__has_avx512()) kernels[2] = &tr__attention_avx512;
    if (tr__has_avx512bf16()) kernels[3] = &tr__attention_avx512bf16;
    if (amx_double()) kernels[4] = &tr__attention_amx;
#endif
    for (int variant = 0; variant < CASES * 2 * 2 * 5; variant++) {
        TR_SCOPE;
        const tr__attention_kernels *of_machine = kernels[variant % 5];
        int d = variant / 5 % 2;
        if (!of_machine || (variant % 5 > 2 && d == 0)) continue; /* the last two are for bf16 alone */
        const attention_case *c = cases + variant / 20;
        tr_dtype dtype = dtypes[d].dtype;
        tr_attention_attrs attrs = {.causal = variant / 10 % 2};
        tr_tensor *mask = variant / 5 % 4 ? random_mask(4, mask_shape(c, 1)) : NULL, *exact[3];
        tr_tensor *q = queries(c, 1, dtype), *k = keys(c, 2, dtype), *v = keys(c, 3, dtype), *g = queries(c, 5, dtype);
        tr_tensor *out[2] = {queries(c, 1, dtype), tr_zeros(TR_SHAPE(c->batch, c->heads, c->queries))};
        tr_tensor *in[4] = {q, k, v, mask}, *grads[3] = {queries(c, 1, dtype), keys(c, 1, dtype), keys(c, 1, dtype)};
        run_all(of_machine, &(tr_op_call){tr__op(attention), &attrs, 4, 2, in, out});
        tr_tensor *full = textbook(c, converted(q, TR_F64), converted(k, TR_F64), converted(v, TR_F64), mask, attrs.causal,
            1 / sqrt((double)c->dim));
        assert_close(out[0], full, dtypes[d].forward, "o", variant);
        tr_tensor *of_grad[7] = {g, q, k, v, mask, out[0], out[1]};
        run_all(of_machine, &(tr_op_call){tr__op(attention_grad), &attrs, 7, 3, of_grad, grads});
        if (variant % 5 == 4) assert_int_equal(amx_palette(), 0);
        gradients(c, dtype, true, mask, attrs.causal, false, exact);
        for (int i = 0; i < 3; i++) assert_close(grads[i], exact[i], dtypes[d].backward, (const char *[]){"dq", "dk", "dv"}[i], variant);
    }
}

static tr_tensor *attention_of(tr_tensor *const *in, int n, void *user)
{
    return tr_attention(in[0], in[1], in[2], .mask = n > 3 ? in[3] : NULL, .causal = *(bool *)user);
}

static tr_tensor *self_attention_of(tr_tensor *const *in, int n, void *user)
{
    (void)n;
    return tr_self_attention(in[0], 2, .causal = *(bool *)user);
}

static void reference_has_gradients(void **state)
{
    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        TR_SCOPE;
        tr_tensor *in[4] = {
            tr_randn(1, TR_SHAPE(2, 2, 5, 3), .dtype = TR_F64, .requires_grad = true),
            tr_randn(2, TR_SHAPE(2, 2, 7, 3), .dtype = TR_F64, .requires_grad = true),
            tr_randn(3, TR_SHAPE(2, 2, 7, 3), .dtype = TR_F64, .requires_grad = true),
            random_mask(4, TR_SHAPE(5, 7)),
        };
        TR_CHECK(tr_grad_check(attention_of, in, 3, &(bool){causal}, 1e-6));
        TR_CHECK(tr_grad_check(attention_of, in, 4, &(bool){causal}, 1e-6));
        tr_tensor *qkv = tr_randn(5, TR_SHAPE(2, 6, 24), .dtype = TR_F64, .requires_grad = true);
        TR_CHECK(tr_grad_check(self_attention_of, &qkv, 1, &(bool){causal}, 1e-6));
    }
}

/* self_attention(qkv) is attention of its parts, forward and backward. */
static void self_attention_is_attention(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{2, 7, 2, 8}, {1, 64, 3, 64}, {2, 130, 2, 32}, {1, 300, 1, 20}, {1, 40, 2, 260}};
    for (int variant = 0; variant < 20; variant++) {
        TR_SCOPE;
        const int64_t *s = shapes[variant / 4];
        bool causal = variant & 1;
        tr_dtype dtype = variant & 2 ? TR_F64 : TR_F32;
        tr_tensor *qkv = tr_require_grad(converted(tr_randn(1, TR_SHAPE(s[0], s[1], 3 * s[2] * s[3])), dtype));
        tr_tensor *same = tr_require_grad(converted(qkv, dtype)), *part[3];
        tr_tensor *g = converted(tr_randn(2, TR_SHAPE(s[0], s[1], s[2] * s[3])), dtype);
        tr_tensor *o = tr_self_attention(qkv, (int)s[2], .causal = causal);
        TR_CHECK(tr_split(same, 3, -1, part));
        for (int i = 0; i < 3; i++) part[i] = tr_transpose(tr_reshape(part[i], TR_SHAPE(s[0], s[1], s[2], s[3])), 1, 2);
        tr_tensor *heads = tr_attention(part[0], part[1], part[2], .causal = causal);
        tr_tensor *expected = tr_reshape(tr_transpose(heads, 1, 2), TR_SHAPE(s[0], s[1], s[2] * s[3]));
        assert_close(o, tr_contiguous(expected), 2e-6, "o", variant);
        TR_CHECK(tr_backward(o, .gradient = g));
        TR_CHECK(tr_backward(expected, .gradient = g));
        assert_close(tr_grad(qkv), tr_grad(same), 5e-6, "dqkv", variant);
    }
}

/* Rows that see nothing, by mask or for being causal with fewer keys than queries: zeros, and zero gradients. */
static void blind_queries_give_zeros(void **state)
{
    (void)state;
    TR_SCOPE;
    attention_case c = {1, 1, 80, 40, 64};
    tr_tensor *grads[3], *mask = tr_ones(TR_SHAPE(80, 40), .dtype = TR_BOOL);
    memset((char *)tr__ptr(mask) + 70 * 40, 0, 5 * 40);
    tr_tensor *o = tr_attention(queries(&c, 1, TR_F32), keys(&c, 2, TR_F32), keys(&c, 3, TR_F32), .mask = mask, .causal = true);
    gradients(&c, TR_F32, false, mask, true, false, grads);
    for (int64_t row = 0; row < 80; row++) {
        bool blind = row < 40 || (row >= 70 && row < 75);
        for (int64_t d = 0; d < 64; d++) {
            assert_int_equal(at(o, row * 64 + d) == 0, blind);
            if (blind) assert_true(at(grads[0], row * 64 + d) == 0);
        }
    }
    for (int i = 1; i < 3; i++)
        for (int64_t d = 0; d < 40 * 64; d++) assert_true(isfinite(at(grads[i], d)));
}

static void nan_is_not_lost(void **state)
{
    (void)state;
    TR_SCOPE;
    attention_case c = {1, 1, 64, 64, 64};
    for (int of = 0; of < 3; of++) {
        tr_tensor *in[3] = {queries(&c, 1, TR_F32), keys(&c, 2, TR_F32), keys(&c, 3, TR_F32)};
        ((float *)tr__ptr(in[of]))[20 * 64 + 3] = NAN;
        tr_tensor *o = tr_attention(in[0], in[1], in[2], .causal = true);
        assert_true(isnan(at(o, 20 * 64 + 3)));
        if (of < 2) assert_false(isnan(at(o, 19 * 64 + 3))); /* a value's NaN also reaches weights of zero */
    }
}

static void large_scores_do_not_overflow(void **state)
{
    (void)state;
    TR_SCOPE;
    attention_case c = {1, 1, 40, 600, 64};
    tr_tensor *q = tr_affine(queries(&c, 1, TR_F32), 100, 0), *k = tr_affine(keys(&c, 2, TR_F32), 10, 0), *v = keys(&c, 3, TR_F32);
    tr_tensor *expected = textbook(&c, converted(q, TR_F64), converted(k, TR_F64), converted(v, TR_F64), NULL, false, 0.125);
    assert_close(tr_attention(q, k, v), expected, 1e-3, "o", 0);
}

/* Where scores lie so far apart, or beyond what f32 holds, one key has all the weight. */
static void huge_scores_choose_one_key(void **state)
{
    (void)state;
    static const struct { double size, scale; } sizes[] = {{1e5, 0.125}, {1e15, 0.125}, {3e7, 1e30}, {1e4, -1e4}};
    for (int s = 0; s < 4; s++) {
        TR_SCOPE;
        attention_case c = {1, 1, 40, 600, 64};
        double size = sizes[s].size, scale = sizes[s].scale;
        tr_tensor *in[3] = {queries(&c, 1, TR_F32), keys(&c, 2, TR_F32), keys(&c, 3, TR_F32)};
        tr_tensor *exact[3], *g = queries(&c, 5, TR_F32);
        for (int i = 0; i < 2; i++) in[i] = tr_affine(in[i], size, 0);
        for (int i = 0; i < 3; i++) {
            exact[i] = tr_require_grad(converted(in[i], TR_F64));
            in[i] = tr_require_grad(tr_detach(in[i]));
        }
        tr_tensor *o = tr_attention(in[0], in[1], in[2], .scale = scale);
        assert_close(o, textbook(&c, exact[0], exact[1], exact[2], NULL, false, scale), 1e-6, "o", s);
        TR_CHECK(tr_backward(o, .gradient = g));
        TR_CHECK(tr_backward(tr_attention(exact[0], exact[1], exact[2], .scale = scale), .gradient = converted(g, TR_F64)));
        for (int i = 0; i < 2; i++)
            for (int64_t j = 0; j < tr_numel(in[i]); j++) assert_true(isfinite(at(tr_grad(in[i]), j)));
        if (scale < 1e30) assert_close(tr_grad(in[2]), tr_grad(exact[2]), 1e-6, "dv", s); /* else lse is infinite, and there are none */
    }
}

/* Keys whose scores are equal, or whole numbers apart, share the weight however large the scores are: all numbers are exact in
 * bf16, and all products in f32. Keys 0 and 599 have the top score alone, or every fifth has. */
static void large_scores_share_the_weight(void **state)
{
    (void)state;
    for (int variant = 0; variant < 2 * 2 * 2 * 2; variant++) {
        TR_SCOPE;
        tr_dtype dtype = variant & 1 ? TR_BF16 : TR_F32;
        bool two = variant & 2, causal = variant & 8;
        float size = variant & 4 ? 1024 : 16384;
        attention_case c = {1, 1, 40, 600, 16};
        tr_tensor *in[4] = {tr_zeros(TR_SHAPE(1, 1, 40, 16)), tr_zeros(TR_SHAPE(1, 1, 600, 16)), keys(&c, 3, TR_F32),
            queries(&c, 5, TR_F32)};
        float *q = tr__ptr(in[0]), *k = tr__ptr(in[1]);
        for (int64_t i = 0; i < 40; i++, q += 16) {
            q[0] = i % 3 ? size : -size;
            q[1] = 2;
        }
        for (int64_t j = 0; j < 600; j++, k += 16) {
            k[0] = two && j != 0 && j != 599 ? 0 : 1464; /* 1.5e6 or 2.4e7 together */
            k[1] = two ? 0 : (float)-(j % 5);
        }
        tr_tensor *exact[4];
        for (int i = 0; i < 4; i++) {
            in[i] = tr_require_grad(converted(in[i], dtype));
            exact[i] = tr_require_grad(converted(in[i], TR_F64));
        }
        TR_CHECK(tr_backward(tr_attention(in[0], in[1], in[2], .scale = 1, .causal = causal), .gradient = in[3]));
        TR_CHECK(tr_backward(tr_attention(exact[0], exact[1], exact[2], .scale = 1, .causal = causal), .gradient = exact[3]));
        assert_close(tr_grad(in[2]), tr_grad(exact[2]), dtype == TR_F32 ? 2e-6 : 1e-2, "dv", variant);
    }
}

/* With a few queries, as where text is generated, a tile of AMX would be empty but for a row or two. */
static void few_queries_take_no_tiles(void **state)
{
    (void)state;
    amx_everywhere = true;
    for (int n = 1; n <= 16 && tr__has_amx() && amx_double_done() >= 0; n += 5) {
        TR_SCOPE;
        attention_case c = {1, 2, n, 40, 32};
        for (int packed = 0; packed < 2; packed++) {
            int64_t done = amx_double_done();
            tr_tensor *q = tr_require_grad(queries(&c, 1, TR_BF16)), *k = keys(&c, 2, TR_BF16);
            if (packed) q = tr_require_grad(converted(tr_randn(1, TR_SHAPE(2, n, 3 * 2 * 32)), TR_BF16));
            tr_tensor *o = packed ? tr_self_attention(q, 2) : tr_attention(q, k, k);
            assert_int_equal(amx_double_done() > done, n == 16);
            done = amx_double_done();
            TR_CHECK(tr_backward(o, .gradient = tr_detach(o)));
            assert_int_equal(amx_double_done() > done, n == 16);
        }
    }
    amx_everywhere = false;
}

static void a_failed_mask_fails(void **state)
{
    (void)state;
    TR_SCOPE;
    attention_case c = {1, 1, 4, 4, 8};
    tr_tensor *q = queries(&c, 1, TR_F32), *bad = tr_reshape(random_mask(1, TR_SHAPE(4, 4)), TR_SHAPE(5, 5));
    assert_int_not_equal(tr_status_of(tr_attention(q, q, q, .mask = bad)), TR_OK);
    assert_int_equal(tr_status_of(tr_attention(q, q, q, .mask = tr_zeros(TR_SHAPE(4, 4)))), TR_DTYPE);
    assert_int_equal(tr_status_of(tr_attention(q, q, q, .mask = random_mask(1, TR_SHAPE(4, 5)))), TR_SHAPE);
    assert_int_equal(tr_status_of(tr_attention(q, q, tr_randn(1, TR_SHAPE(1, 1, 5, 8)))), TR_SHAPE);
    assert_int_equal(tr_status_of(tr_self_attention(tr_randn(1, TR_SHAPE(1, 4, 25)), 4)), TR_SHAPE);
    assert_int_equal(tr_status_of(tr_self_attention(tr_randn(1, TR_SHAPE(1, 4, 24)), 0)), TR_INVALID);
}

static void one_and_two_threads_agree(void **state)
{
    (void)state;
    TR_SCOPE;
    attention_case c = {2, 3, 200, 200, 64};
    tr_tensor *results[2][4];
    for (int threads = 1; threads <= 2; threads++) {
        TR_CHECK(tr_set_threads(threads));
        results[threads - 1][3] = tr_attention(queries(&c, 1, TR_F32), keys(&c, 2, TR_F32), keys(&c, 3, TR_F32), .causal = true);
        gradients(&c, TR_F32, false, NULL, true, false, results[threads - 1]);
    }
    for (int i = 0; i < 4; i++)
        assert_memory_equal(tr__ptr(results[0][i]), tr__ptr(results[1][i]), (size_t)tr_numel(results[0][i]) * sizeof(float));
    TR_CHECK(tr_set_threads(0));
}

/* Heads that are views of [batch, seq, dim] give heads that are: no copy puts them together again, forward or backward. */
static void results_lie_as_the_heads_do(void **state)
{
    (void)state;
    const tr_dtype dtypes[] = {TR_F32, TR_BF16, TR_F64};
    for (int d = 0; d < 3; d++) {
        TR_SCOPE;
        tr_tensor *in[2][3], *out[2];
        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < 3; i++) {
                tr_tensor *x = tr_cast(tr_randn((uint64_t)i + 1, TR_SHAPE(2, 70, 3, 16)), dtypes[d]);
                x = tr_transpose(x, 1, 2);
                in[k][i] = tr_require_grad(k ? tr_contiguous(x) : x);
            }
            out[k] = tr_attention(in[k][0], in[k][1], in[k][2], .causal = true);
            TR_CHECK(tr_backward(tr_sum(tr_mul(out[k], out[k]))));
        }
        assert_true(tr_is_contiguous(tr_transpose(out[0], 1, 2)) && tr_is_contiguous(out[1]));
        TR_NO_GRAD;
        assert_true(tr_item(tr_max(tr_abs(out[0]))) > 0);
        assert_true(tr_item(tr_max(tr_abs(tr_sub(out[0], out[1])))) == 0);
        for (int i = 0; i < 3; i++) {
            assert_true(tr_item(tr_max(tr_abs(tr_grad(in[0][i])))) > 0);
            assert_true(tr_item(tr_max(tr_abs(tr_sub(tr_grad(in[0][i]), tr_grad(in[1][i]))))) == 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_the_textbook),
        cmocka_unit_test(gradients_are_those_of_f64),
        cmocka_unit_test(all_machines_agree),
        cmocka_unit_test(reference_has_gradients),
        cmocka_unit_test(self_attention_is_attention),
        cmocka_unit_test(blind_queries_give_zeros),
        cmocka_unit_test(nan_is_not_lost),
        cmocka_unit_test(large_scores_do_not_overflow),
        cmocka_unit_test(huge_scores_choose_one_key),
        cmocka_unit_test(large_scores_share_the_weight),
        cmocka_unit_test(few_queries_take_no_tiles),
        cmocka_unit_test(a_failed_mask_fails),
        cmocka_unit_test(one_and_two_threads_agree),
        cmocka_unit_test(results_lie_as_the_heads_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
