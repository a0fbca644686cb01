#include "ops/cpu/conv/conv.h"

#include "base/isa.h"
#include "ops/cpu/conv/conv_gemm.h"

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
    tr_device device = tr__device_of(call->outputs[0]);
    tr__winograd w = {.n = s->n, .offset = -s->padding, .device = device, .pool = tr__cpu_pool(device)};
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
    tr_device device = tr__device_of(call->outputs[0]);
    tr__direct d = {.s = *s, .device = device, .pool = tr__cpu_pool(device)};
    return call->op == tr__op(conv2d) ? direct_forward(call, &d) : direct_grad_weight(call, &d, vnni ? TR_BF16 : TR_F32);
}
