#include "ops/cpu/conv/conv.h"

#include "ops/cpu/conv/conv_gemm.h"
#include "ops/cpu/conv/direct.h"
#include "ops/cpu/conv/direct_vnni.h"
#include "ops/cpu/simd/isa.h"
#include "ops/cpu/conv/winograd.h"

enum {
    WINOGRAD_TILES = 16, /* with fewer, transforming the weight does not pay */
    FEW_CHANNELS = 8,    /* most channels of x for a direct convolution, */
    LEAST_RUN = 3,       /* least numbers in a row of taps, */
    LEAST_TAPS = 64,     /* and in all taps, where outputs of many channels are limited by memory */
};

/* 3 x 3 taps, whole vectors of channels, and outputs that fill their tiles so far that a third of the work is saved. */
static bool suits_winograd(const tr__conv2d *s)
{
    if (s->kh != 3 || s->kw != 3 || s->stride != 1 || s->dilation != 1 || s->groups != 1) return false;
    if (s->c == 0 || s->k == 0 || s->c % TR__WINOGRAD_CHANNELS || s->k % TR__WINOGRAD_CHANNELS) return false;
    int64_t tiles = ((s->oh + 3) / 4) * ((s->ow + 3) / 4);
    return s->n * tiles >= WINOGRAD_TILES && 9 * s->oh * s->ow >= 36 * tiles * 3 / 2;
}

/* Half an AVX-512 vector of channels goes to the AVX2 kernels: the processor starts at least as many of their instructions
 * per cycle. */
static const tr__direct_kernels *direct_kernels(const tr__conv2d *s)
{
#if defined(__x86_64__)
    if (tr__has_avx512() && s->k <= tr__direct_avx2.vector) return &tr__direct_avx2;
#endif
    (void)s;
    return &TR__OF_MACHINE(tr__direct);
}

/* Few channels in. Where the processor has bf16 dot products, oneDNN's bf16 convolutions take half as long as these, which
 * compute in f32; its gradients of weights do not. */
static bool suits_direct(const tr_op_call *call, const tr__conv2d *s)
{
    if (call->op == tr__op(conv2d_grad_input) || s->groups != 1 || s->dilation != 1 || !s->n || !s->oh || !s->ow) return false;
    if (s->c > FEW_CHANNELS || s->kw * s->c < LEAST_RUN || s->k == 0) return false;
    const tr__direct_kernels *kernels = direct_kernels(s);
    if (s->k < kernels->panel) return true;
    if (s->k % kernels->vector) return false;
    if (call->op == tr__op(conv2d_grad_weight)) return true;
    return s->kh * s->kw * s->c >= LEAST_TAPS && !(call->outputs[0]->dtype == TR_BF16 && tr__has_avx512bf16());
}

bool tr__cpu_conv_preferred(const tr_op_call *call)
{
    if (!call->outputs[0] || call->outputs[0]->dtype == TR_F64) return false;
    tr__conv2d s = tr__conv2d_of(call);
    return suits_winograd(&s) || suits_direct(call, &s) || tr__conv_gemm_preferred(call, &s);
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
    TR__TRY(tr_status_of(from));
    TR__TRY(tr_status_of(to));
    TR__TRY(tr_status_of(weight));
    if (bias) TR__TRY(tr_status_of(bias));
    w->from = images_of(from);
    w->to = images_of(to);
    w->weight = tr__ptr(weight);
    w->bias = bias ? tr__ptr(bias) : NULL;
    if (!TR__OF_MACHINE(tr__winograd).convolve(w)) return tr__fail(TR_NO_MEMORY, "conv2d: no memory to transform %s by %s",
        TR__TEXT(from->shape), TR__TEXT(weight->shape));
    return to == out ? TR_OK : tr__copy_elements(out, to);
}

static tr_status to_weight(const tr_op_call *call, tr__winograd *w)
{
    const tr_conv2d_attrs *a = call->attrs;
    tr_dtype dtype = call->inputs[0]->dtype;
    tr_tensor *dy = tr__staged_images(call->inputs[0], dtype, true), *x = tr__staged_images(call->inputs[1], dtype, true),
              *out = call->outputs[0], *dweight = tr__staged(out, TR_F32, NULL, a->accumulate);
    TR__TRY(tr_status_of(dy));
    TR__TRY(tr_status_of(x));
    TR__TRY(tr_status_of(dweight));
    w->from = images_of(x);
    w->to = images_of(dy);
    w->dweight = tr__ptr(dweight);
    w->accumulate = a->accumulate;
    if (!TR__OF_MACHINE(tr__winograd).grad_weight(w)) return tr__fail(TR_NO_MEMORY, "conv2d: no memory to transform %s and %s",
        TR__TEXT(x->shape), TR__TEXT(dy->shape));
    return dweight == out ? TR_OK : tr__copy_elements(out, dweight);
}

static tr_status direct_forward(const tr_op_call *call, tr__direct *d)
{
    tr_tensor *x = tr__conv_padded(call->inputs[0], &d->s, TR_F32),
              *weight = tr__staged_images(call->inputs[1], TR_F32, true),
              *bias = call->inputs[2] ? tr__staged(call->inputs[2], TR_F32, NULL, true) : NULL, *out = call->outputs[0],
              *y = tr__staged_images(out, TR_F32, false);
    TR__TRY(tr_status_of(x));
    TR__TRY(tr_status_of(weight));
    TR__TRY(tr_status_of(y));
    if (bias) TR__TRY(tr_status_of(bias));
    d->x = tr__ptr(x);
    d->weight = tr__ptr(weight);
    d->bias = bias ? tr__ptr(bias) : NULL;
    d->y = tr__ptr(y);
    if (!direct_kernels(&d->s)->convolve(d)) return tr__fail(TR_NO_MEMORY, "conv2d: no memory to pack a weight %s",
        TR__TEXT(weight->shape));
    return y == out ? TR_OK : tr__copy_elements(out, y);
}

static tr_status no_memory_for(const tr_tensor *dweight)
{
    return tr__fail(TR_NO_MEMORY, "conv2d: no memory to sum the gradient of a weight %s", TR__TEXT(dweight->shape));
}

static bool suits_vnni(const tr_op_call *call, const tr__conv2d *s)
{
    return call->inputs[0]->dtype == TR_BF16 && tr__has_avx512bf16() && s->ow % 2 == 0 && s->k % TR__VNNI_CHANNELS == 0;
}

#if defined(__x86_64__)
static tr_status vnni_grad_weight(const tr_op_call *call, const tr__direct *d)
{
    tr__direct_vnni p = {.s = d->s, .device = d->device, .pool = d->pool};
    p.accumulate = ((const tr_conv2d_attrs *)call->attrs)->accumulate;
    tr_tensor *dy = tr__staged_images(call->inputs[0], TR_BF16, true), *out = call->outputs[0],
              *x = tr__conv_padded(call->inputs[1], &d->s, TR_BF16),
              *sums = tr__staged_images(out, TR_F32, p.accumulate);
    TR__TRY(tr_status_of(dy));
    TR__TRY(tr_status_of(x));
    TR__TRY(tr_status_of(sums));
    p.x = tr__ptr(x);
    p.dy = tr__ptr(dy);
    p.dweight = tr__ptr(sums);
    if (!tr__direct_vnni_avx512bf16(&p)) return no_memory_for(out);
    return sums == out ? TR_OK : tr__copy_elements(out, sums);
}
#else
static tr_status vnni_grad_weight(const tr_op_call *call, const tr__direct *d)
{
    (void)call, (void)d;
    return TR_DECLINED;
}
#endif

static tr_status direct_grad_weight(const tr_op_call *call, tr__direct *d)
{
    if (suits_vnni(call, &d->s)) return vnni_grad_weight(call, d);
    d->accumulate = ((const tr_conv2d_attrs *)call->attrs)->accumulate;
    tr_tensor *dy = tr__staged_images(call->inputs[0], TR_F32, true),
              *x = tr__conv_padded(call->inputs[1], &d->s, TR_F32),
              *out = call->outputs[0], *sums = tr__staged_images(out, TR_F32, d->accumulate);
    TR__TRY(tr_status_of(dy));
    TR__TRY(tr_status_of(x));
    TR__TRY(tr_status_of(sums));
    d->x = tr__ptr(x);
    d->y = tr__ptr(dy);
    d->dweight = tr__ptr(sums);
    if (!direct_kernels(&d->s)->grad_weight(d)) return no_memory_for(out);
    return sums == out ? TR_OK : tr__copy_elements(out, sums);
}

static tr_status direct(const tr_op_call *call, const tr__conv2d *s)
{
    tr_device device = tr__device_of(call->outputs[0]);
    tr__direct d = {.s = *s, .device = device, .pool = tr__cpu_pool(device)};
    return (call->op == tr__op(conv2d) ? direct_forward : direct_grad_weight)(call, &d);
}

static tr_status winograd(const tr_op_call *call, const tr__conv2d *s)
{
    tr_device device = tr__device_of(call->outputs[0]);
    tr__winograd w = {.n = s->n, .offset = -s->padding, .device = device, .pool = tr__cpu_pool(device)};
    if (call->op == tr__op(conv2d_grad_weight)) return to_weight(call, &w);
    w.gradient = call->op == tr__op(conv2d_grad_input);
    if (w.gradient) w.offset = s->padding - (s->kh - 1);
    return to_images(call, &w);
}

tr_status tr__cpu_conv(tr_op_call *call)
{
    if (!tr__cpu_conv_preferred(call)) return TR_DECLINED;
    TR_SCOPE;
    tr__conv2d s = tr__conv2d_of(call);
    TR__TRY((suits_winograd(&s) ? winograd : suits_direct(call, &s) ? direct : tr__conv_gemm)(call, &s));
    if (call->op != tr__op(conv2d_grad_weight) || !call->outputs[1]) return TR_OK;
    const tr_conv2d_attrs *a = call->attrs;
    return tr__conv2d_bias_gradient(call->inputs[0], call->outputs[1], a->accumulate_bias);
}
