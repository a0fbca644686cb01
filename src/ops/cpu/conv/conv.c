#include "ops/cpu/conv/conv.h"

#include "base/isa.h"
#include "tensor/loop.h"

#include <string.h>

/* ---- Padded images ------------------------------------------------------------------------------------------------ */

typedef struct padding {
    const char *from;
    char *to;
    int64_t h, padding, pixels, edge; /* pixels, edge: bytes of a row, and of the padding on each side of it */
} padding;

/* Rows of the padded images. */
static void pad_rows(void *arg, int64_t begin, int64_t end)
{
    const padding *p = arg;
    int64_t high = p->h + 2 * p->padding, wide = p->pixels + 2 * p->edge;
    for (int64_t row = begin; row < end; row++) {
        int64_t y = row % high - p->padding;
        char *to = p->to + row * wide;
        bool inside = y >= 0 && y < p->h;
        memset(to, 0, (size_t)(inside ? p->edge : wide));
        if (!inside) continue;
        memcpy(to + p->edge, p->from + (row / high * p->h + y) * p->pixels, (size_t)p->pixels);
        memset(to + p->edge + p->pixels, 0, (size_t)p->edge);
    }
}

tr_tensor *tr__conv_padded(tr_tensor *x, const tr__conv2d *s, tr_dtype dtype)
{
    x = tr__staged_images(x, dtype, true);
    if (tr__bad(x) || s->padding == 0) return x;
    tr_shape shape = TR_SHAPE(s->n, s->c, s->h + 2 * s->padding, s->w + 2 * s->padding);
    int64_t stride[TR_MAX_DIMS], pixel = s->c * (int64_t)tr_dtype_size(dtype);
    tr__channels_last(shape, stride);
    tr_tensor *to = tr__tensor_new_strided(shape, stride, dtype, tr__device_of(x));
    if (tr__bad(to)) return to;
    padding p = {tr__ptr(x), tr__ptr(to), s->h, s->padding, s->w * pixel, s->padding * pixel};
    tr__pool_for(tr__pool_of(x), s->n * shape.dim[2], 8, pad_rows, &p);
    return to;
}

/* ---- Winograd and direct ---------------------------------------------------------------------------------------------- */

/* Half an AVX-512 vector of channels goes to the AVX2 kernels: the processor starts at least as many of their instructions
 * per cycle. */
const tr__direct_kernels *tr__direct_kernels_for(const tr__conv2d *s)
{
#if defined(__x86_64__)
    if (tr__has_avx512() && s->k <= tr__direct_avx2.vector) return &tr__direct_avx2;
#endif
    (void)s;
    return &TR__OF_MACHINE(tr__direct);
}

static tr__winograd_images images_of(const tr_tensor *t)
{
    return (tr__winograd_images){t->dtype, tr__ptr(t), t->shape.dim[2], t->shape.dim[3], t->shape.dim[1]};
}

/* Forward, and the gradient of x. */
static tr_status to_images(const tr_op_call *call, tr__winograd *w)
{
    tr_tensor *out = call->outputs[0], *from = tr__staged_images(call->inputs[0], out->dtype, true),
              *to = tr__staged_images(out, out->dtype, false), *weight = tr__staged(call->inputs[1], TR_F32, NULL, true),
              *bias = w->gradient || !call->inputs[2] ? NULL : tr__staged(call->inputs[2], TR_F32, NULL, true);
    TR__TRY_ALL(from, to, weight, bias);
    w->from = images_of(from);
    w->to = images_of(to);
    w->weight = tr__ptr(weight);
    w->bias = bias ? tr__ptr(bias) : NULL;
    if (!TR__OF_MACHINE(tr__winograd).convolve(w)) return tr__fail(TR_NO_MEMORY, "conv2d: no memory to transform %s by %s",
        TR__TEXT(from->shape), TR__TEXT(weight->shape));
    return tr__unstage(out, to);
}

static tr_status to_weight(const tr_op_call *call, tr__winograd *w)
{
    const tr_conv2d_attrs *a = call->attrs;
    tr_dtype dtype = call->inputs[0]->dtype;
    tr_tensor *dy = tr__staged_images(call->inputs[0], dtype, true), *x = tr__staged_images(call->inputs[1], dtype, true),
              *out = call->outputs[0], *dweight = tr__staged(out, TR_F32, NULL, a->accumulate);
    TR__TRY_ALL(dy, x, dweight);
    w->from = images_of(x);
    w->to = images_of(dy);
    w->dweight = tr__ptr(dweight);
    w->accumulate = a->accumulate;
    if (!TR__OF_MACHINE(tr__winograd).grad_weight(w)) return tr__fail(TR_NO_MEMORY, "conv2d: no memory to transform %s and %s",
        TR__TEXT(x->shape), TR__TEXT(dy->shape));
    return tr__unstage(out, dweight);
}

tr_status tr__winograd_conv(const tr_op_call *call, const tr__conv2d *s)
{
    tr__winograd w = {.n = s->n, .offset = -s->padding, .device = tr__device_of(call->outputs[0])};
    if (call->op == tr__op(conv2d_grad_weight)) return to_weight(call, &w);
    w.gradient = call->op == tr__op(conv2d_grad_input);
    if (w.gradient) w.offset = s->padding - (s->kh - 1);
    return to_images(call, &w);
}

static tr_status direct_forward(const tr_op_call *call, tr__direct *d)
{
    tr_tensor *x = tr__conv_padded(call->inputs[0], &d->s, TR_F32),
              *weight = tr__staged_images(call->inputs[1], TR_F32, true),
              *bias = call->inputs[2] ? tr__staged(call->inputs[2], TR_F32, NULL, true) : NULL, *out = call->outputs[0],
              *y = tr__staged_images(out, TR_F32, false);
    TR__TRY_ALL(x, weight, y, bias);
    d->x = tr__ptr(x);
    d->weight = tr__ptr(weight);
    d->bias = bias ? tr__ptr(bias) : NULL;
    d->y = tr__ptr(y);
    if (!tr__direct_kernels_for(&d->s)->convolve(d)) return tr__fail(TR_NO_MEMORY, "conv2d: no memory to pack a weight %s",
        TR__TEXT(weight->shape));
    return tr__unstage(out, y);
}

static tr_status direct_grad_weight(const tr_op_call *call, tr__direct *d, tr_dtype dtype)
{
    d->accumulate = ((const tr_conv2d_attrs *)call->attrs)->accumulate;
    tr_tensor *dy = tr__staged_images(call->inputs[0], dtype, true), *x = tr__conv_padded(call->inputs[1], &d->s, dtype),
              *out = call->outputs[0], *sums = tr__staged_images(out, TR_F32, d->accumulate);
    TR__TRY_ALL(dy, x, sums);
    d->x = tr__ptr(x);
    d->y = tr__ptr(dy);
    d->dweight = tr__ptr(sums);
    bool (*kernel)(const tr__direct *d) = tr__direct_kernels_for(&d->s)->grad_weight;
#if defined(__x86_64__)
    if (dtype == TR_BF16) kernel = tr__direct_avx512bf16;
#endif
    if (kernel(d)) return tr__unstage(out, sums);
    return tr__fail(TR_NO_MEMORY, "conv2d: no memory to sum the gradient of a weight %s", TR__TEXT(out->shape));
}

tr_status tr__direct_conv(const tr_op_call *call, const tr__conv2d *s, bool vnni)
{
    tr__direct d = {.s = *s, .device = tr__device_of(call->outputs[0])};
    return call->op == tr__op(conv2d) ? direct_forward(call, &d) : direct_grad_weight(call, &d, vnni ? TR_BF16 : TR_F32);
}

/* ---- By gemm: implicit im2col, one row of taps at a time --------------------------------------------------------------- */

static tr__axis plain_axis(int64_t n, int64_t stride)
{
    return tr__axis_of(1, &n, &stride);
}

static void *at(const tr_tensor *t, int64_t element)
{
    return (char *)tr__ptr(t) + element * (int64_t)tr_dtype_size(t->dtype);
}

/* im2col without a copy: the pixels under taps [ky, 0 … kw) of each output, [n oh ow, kw c]. */
static tr__matrix im2col(const tr_tensor *padded, const tr__conv2d *s, int64_t ky)
{
    int64_t row = padded->shape.dim[3] * s->c;
    int64_t places[] = {s->n, s->oh, s->ow}, strides[] = {padded->shape.dim[2] * row, s->stride * row, s->stride * s->c};
    return (tr__matrix){padded->dtype, at(padded, ky * row), tr__axis_of(3, places, strides), plain_axis(s->kw * s->c, 1)};
}

/* y, or its gradient: [n oh ow, k]. */
static tr__matrix outputs(const tr_tensor *y, const tr__conv2d *s)
{
    return (tr__matrix){y->dtype, tr__ptr(y), plain_axis(s->n * s->oh * s->ow, s->k), plain_axis(s->k, 1)};
}

/* Row ky of the taps of a weight that lies as [k, kh, kw, c]: [k, kw c]. */
static tr__matrix row_of_taps(const tr_tensor *weight, const tr__conv2d *s, int64_t ky)
{
    int64_t row = s->kw * s->c;
    return (tr__matrix){weight->dtype, at(weight, ky * row), plain_axis(s->k, s->kh * row), plain_axis(row, 1)};
}

/* c = a b (+ bias) (+ c), on all threads of the device. */
static tr_status multiply(tr__gemm_kernel kernel, tr__matrix a, tr__matrix b, tr__matrix c, const tr_tensor *bias,
    bool accumulate, tr_device device)
{
    tr__axis one = plain_axis(1, 0);
    tr__gemm p = {.a = a, .b = b, .c = c, .bias = bias, .accumulate = accumulate, .a_batch = one, .b_batch = one,
        .c_batch = one};
    if (kernel(&(tr__gemm_task){.p = &p, .device = device, .pool = tr__cpu_pool(device)})) return TR_OK;
    return tr__fail(TR_NO_MEMORY, "conv2d: no memory to pack %lld x %lld x %lld", (long long)a.row.n,
        (long long)a.column.n, (long long)b.column.n);
}

/* Channels-last, of its own dtype. */
static tr_tensor *as_images(tr_tensor *t, bool values)
{
    return tr__staged_images(t, t->dtype, values);
}

static tr_status gemm_forward(const tr_op_call *call, const tr__conv2d *s, tr__gemm_kernel kernel)
{
    tr_tensor *x = as_images(call->inputs[0], true), *weight = as_images(call->inputs[1], true), *out = call->outputs[0],
              *y = as_images(out, false);
    TR__TRY_ALL(x, weight, y);
    TR__TRY(multiply(kernel, im2col(x, s, 0), tr__matrix_transposed(row_of_taps(weight, s, 0)), outputs(y, s), call->inputs[2],
        false, tr__device_of(x)));
    return tr__unstage(out, y);
}

/* One tap only: with more, several outputs add to the same pixel. */
static tr_status gemm_grad_input(const tr_op_call *call, const tr__conv2d *s, tr__gemm_kernel kernel)
{
    tr_tensor *dy = as_images(call->inputs[0], true), *weight = as_images(call->inputs[1], true), *out = call->outputs[0],
              *dx = as_images(out, false);
    TR__TRY_ALL(dy, weight, dx);
    if (s->stride > 1) TR__TRY(tr_fill(dx, 0));
    TR__TRY(multiply(kernel, outputs(dy, s), row_of_taps(weight, s, 0), im2col(dx, s, 0), NULL, false, tr__device_of(dy)));
    return tr__unstage(out, dx);
}

typedef struct transposing {
    const float *from;     /* [k, taps, c] */
    float *to;             /* [k, c, taps] */
    int64_t taps, c;
    bool accumulate;
} transposing;

static void transpose_taps(void *arg, int64_t begin, int64_t end)
{
    const transposing *t = arg;
    for (int64_t k = begin; k < end; k++) {
        const float *from = t->from + k * t->taps * t->c;
        float *to = t->to + k * t->taps * t->c;
        for (int64_t c = 0; c < t->c; c++)
            for (int64_t tap = 0; tap < t->taps; tap++, to++) *to = from[tap * t->c + c] + (t->accumulate ? *to : 0);
    }
}

static tr_status gemm_grad_weight(const tr_op_call *call, const tr__conv2d *s, tr__gemm_kernel kernel)
{
    bool accumulate = ((const tr_conv2d_attrs *)call->attrs)->accumulate;
    tr_tensor *out = call->outputs[0], *to = tr__staged(out, TR_F32, NULL, accumulate);
    TR__TRY(tr_status_of(to));
    bool transpose = s->kh * s->kw > 1;
    tr_tensor *dy = as_images(call->inputs[0], true), *x = tr__conv_padded(call->inputs[1], s, call->inputs[1]->dtype),
              *sums = transpose ? tr__tensor_new(to->shape, TR_F32, tr__device_of(to)) : to;
    TR__TRY_ALL(dy, x, sums);
    for (int64_t ky = 0; ky < s->kh; ky++)
        TR__TRY(multiply(kernel, tr__matrix_transposed(outputs(dy, s)), im2col(x, s, ky), row_of_taps(sums, s, ky), NULL,
            accumulate && !transpose, tr__device_of(x)));
    if (transpose) { /* to (+)= sums, which lie as [k, kh, kw, c] */
        transposing t = {tr__ptr(sums), tr__ptr(to), s->kh * s->kw, s->c, accumulate};
        tr__pool_for(tr__pool_of(to), s->k, TR__GRAIN / (t.taps * t.c + 1) + 1, transpose_taps, &t);
    }
    return tr__unstage(out, to);
}

tr_status tr__conv_gemm(const tr_op_call *call, const tr__conv2d *s, tr__gemm_kernel kernel)
{
    if (call->op == tr__op(conv2d)) return gemm_forward(call, s, kernel);
    return (call->op == tr__op(conv2d_grad_input) ? gemm_grad_input : gemm_grad_weight)(call, s, kernel);
}
