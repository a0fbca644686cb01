/*
 * Convolutions of images as products (gemm.h): their matrices are never stored, loaders read them from the images.
 *
 *   y  [n oy ox, ko]   = patches [n oy ox, ky kx c] weight [ky kx c, ko]
 *   dx [n iy ix, c]    = where outputs that saw a pixel lie [n iy ix, ky kx ko] weight [ky kx ko, c]
 *   dw [ko, ky kx c]   = g [ko, n oy ox] patches [n oy ox, ky kx c]
 *
 * for each group of channels. Transposed convolution is the second of these. cuDNN is asked first, with everything
 * channels-last.
 */
#include "conv.h"
#include "elementwise.h"
#include "families.h"
#include "gemm.h"
#include "thread_group.h"

namespace {

conv_sizes sizes_of(const tr_device_tensor &x, const tr_device_tensor &weight, const tr_device_tensor &y,
               const tr_conv2d_attrs &a)
{
    return conv_sizes{x.shape.dim[0], x.shape.dim[1], x.shape.dim[2], x.shape.dim[3],
                      weight.shape.dim[0], weight.shape.dim[2], weight.shape.dim[3], y.shape.dim[2], y.shape.dim[3],
                      a.groups, a.stride, a.padding, a.dilation};
}

/* A number of three digits, the first the most significant. */
struct digits {
    divisor second, third;
    digits(int64_t of_second, int64_t of_third) : second(most(of_second, 1)), third(most(of_third, 1)) {}
    __device__ void of(int64_t number, int &a, int &b, int &c) const
    {
        uint32_t rest = third.quotient((uint32_t)number);
        c = (int)((uint32_t)number - rest * third.by);
        a = (int)second.quotient(rest);
        b = (int)(rest - (uint32_t)a * second.by);
    }
};

struct strides { int64_t at[4]; };
strides strides_of(const tr_device_tensor &x)
{
    return strides{{x.stride[0], x.stride[1], x.stride[2], x.stride[3]}};
}

/* What the image shows at an output's place and a tap. */
template <class T> struct patches {
    const T *x;
    strides step;
    digits pixels, taps; /* (n, oy, ox), (ky, kx, c) */
    int h, w, stride, padding, dilation;
    int64_t group; /* elements between groups */

    struct pixel { int64_t base; int y, x; };
    struct tap { int64_t base; int y, x; };
    __device__ pixel pixel_of(int64_t i) const
    {
        int n, oy, ox;
        pixels.of(i, n, oy, ox);
        return pixel{n * step.at[0], oy * stride - padding, ox * stride - padding};
    }
    __device__ tap tap_of(int64_t k) const
    {
        int ky, kx, c;
        taps.of(k, ky, kx, c);
        return tap{c * step.at[1], ky * dilation, kx * dilation};
    }
    __device__ compute_of<T> at(const pixel &p, const tap &t) const
    {
        int y = p.y + t.y, column = p.x + t.x;
        if (y < 0 || y >= h || column < 0 || column >= w) return compute_of<T>(0);
        return wide(x[p.base + t.base + y * step.at[2] + column * step.at[3]]);
    }
};

template <class T> struct pixels_by_taps {
    patches<T> of;
    bool by_k;
    using line = typename patches<T>::pixel;
    __device__ line line_of(int64_t group, int64_t i) const
    {
        line p = of.pixel_of(i);
        p.base += group * of.group;
        return p;
    }
    __device__ compute_of<T> load(const line &p, int64_t k) const { return of.at(p, of.tap_of(k)); }
};

template <class T> struct taps_by_pixels {
    patches<T> of;
    bool by_k;
    using line = typename patches<T>::tap;
    __device__ line line_of(int64_t group, int64_t i) const
    {
        line t = of.tap_of(i);
        t.base += group * of.group;
        return t;
    }
    __device__ compute_of<T> load(const line &t, int64_t k) const { return of.at(of.pixel_of(k), t); }
};

/* What outputs that saw a pixel by a tap have: g at (pixel + padding - tap)/stride, where that divides. */
template <class T> struct seen_by {
    const T *g;
    strides step;
    digits pixels, taps; /* (n, iy, ix), (ky, kx, ko) */
    int oh, ow, stride, padding, dilation;
    int64_t group;
    bool by_k;
    struct line { int64_t base; int y, x; };
    __device__ line line_of(int64_t of, int64_t i) const
    {
        int n, y, x;
        pixels.of(i, n, y, x);
        return line{n * step.at[0] + of * group, y + padding, x + padding};
    }
    __device__ compute_of<T> load(const line &l, int64_t k) const
    {
        int ky, kx, ko;
        taps.of(k, ky, kx, ko);
        int y = l.y - ky * dilation, x = l.x - kx * dilation;
        if (y < 0 || x < 0 || y % stride || x % stride || y / stride >= oh || x / stride >= ow) return compute_of<T>(0);
        return wide(g[l.base + ko * step.at[1] + y / stride * step.at[2] + x / stride * step.at[3]]);
    }
};

/* Weights by taps, or g by pixels: a line is a channel. */
template <class T> struct by_digits {
    const T *data;
    digits of_k;
    int64_t outer, step[3], group; /* elements between neighbours: lines, in the digits of k, and groups */
    bool by_k;
    using line = int64_t;
    __device__ line line_of(int64_t of, int64_t i) const { return of * group + i * outer; }
    __device__ compute_of<T> load(line at, int64_t k) const
    {
        int a, b, c;
        of_k.of(k, a, b, c);
        return wide(data[at + a * step[0] + b * step[1] + c * step[2]]);
    }
};

/* Writes images: [n y x, channel of the group] (+ bias). */
template <class C> struct into_images {
    tr_dtype dtype, bias_dtype;
    void *to;
    const void *bias; /* NULL: none */
    strides step;
    digits pixels;
    int64_t channels, bias_step; /* of a group */
    __device__ void operator()(int64_t group, int64_t i, int64_t j, C sum, unsigned) const
    {
        int n, y, x;
        pixels.of(i, n, y, x);
        int64_t channel = group * channels + j;
        if (bias) sum += load_as<C>(bias_dtype, bias, channel * bias_step);
        store_as<C>(dtype, to, n * step.at[0] + channel * step.at[1] + y * step.at[2] + x * step.at[3], sum);
    }
};

/* Writes weights: [ko, ky kx c]. */
template <class C> struct into_weights {
    tr_dtype dtype;
    void *to;
    strides step;
    digits taps;
    int64_t outs; /* output channels of a group */
    bool accumulate;
    __device__ void operator()(int64_t group, int64_t i, int64_t j, C sum, unsigned) const
    {
        int ky, kx, c;
        taps.of(j, ky, kx, c);
        int64_t at = (group * outs + i) * step.at[0] + c * step.at[1] + ky * step.at[2] + kx * step.at[3];
        if (accumulate) sum += load_as<C>(dtype, to, at);
        store_as<C>(dtype, to, at, sum);
    }
};

/* Pixels and taps are counted in 31 bits. */
bool is_countable(const conv_sizes &s)
{
    int64_t taps = s.kh * s.kw;
    return s.n * most(s.h * s.w, s.oh * s.ow) <= INDEX_LIMIT && taps * most(s.c, s.k) <= INDEX_LIMIT;
}

template <class T> patches<T> patches_of(const tr_device_tensor &x, const conv_sizes &s)
{
    int64_t channels = s.c / s.groups;
    return patches<T>{(const T *)x.data, strides_of(x),  digits(s.oh, s.ow), digits(s.kw, channels), (int)s.h, (int)s.w,
                      (int)s.stride,     (int)s.padding, (int)s.dilation,    channels * x.stride[1]};
}

template <class T>
tr_status forward(const job &j, const conv_sizes &s, const tr_device_tensor &x, const tr_device_tensor &weight,
    const tr_device_tensor *bias, const tr_device_tensor &y)
{
    using C = compute_of<T>;
    int64_t channels = s.c / s.groups, outs = s.k / s.groups;
    pixels_by_taps<T> a = {patches_of<T>(x, s), x.stride[1] == 1};
    by_digits<T> b = {(const T *)weight.data, digits(s.kw, channels), weight.stride[0],
                      {weight.stride[2], weight.stride[3], weight.stride[1]}, outs * weight.stride[0], weight.stride[1] == 1};
    into_images<C> out = {y.dtype,       bias ? bias->dtype : TR_F32, y.data, bias ? bias->data : nullptr,
                          strides_of(y), digits(s.oh, s.ow),          outs,   bias ? bias->stride[0] : 0};
    return gemm::run<C>(j, s.groups, s.n * s.oh * s.ow, outs, s.kh * s.kw * channels, a, b, out);
}

/* bias: of dx, where this is a transposed convolution. */
template <class T>
tr_status grad_input(const job &j, const conv_sizes &s, const tr_device_tensor &g, const tr_device_tensor &weight,
    const tr_device_tensor *bias, const tr_device_tensor &dx)
{
    using C = compute_of<T>;
    int64_t channels = s.c / s.groups, outs = s.k / s.groups;
    seen_by<T> a = {(const T *)g.data, strides_of(g),  digits(s.h, s.w), digits(s.kw, outs), (int)s.oh,       (int)s.ow,
                    (int)s.stride,     (int)s.padding, (int)s.dilation,  outs * g.stride[1], g.stride[1] == 1};
    by_digits<T> b = {(const T *)weight.data, digits(s.kw, outs), weight.stride[1],
                      {weight.stride[2], weight.stride[3], weight.stride[0]}, outs * weight.stride[0], false};
    into_images<C> out = {dx.dtype, bias ? bias->dtype : TR_F32, dx.data, bias ? bias->data : nullptr, strides_of(dx),
        digits(s.h, s.w), channels, bias ? bias->stride[0] : 0};
    return gemm::run<C>(j, s.groups, s.n * s.h * s.w, channels, s.kh * s.kw * outs, a, b, out);
}

template <class T>
tr_status grad_weight(const job &j, const conv_sizes &s, const tr_device_tensor &g, const tr_device_tensor &x,
                      const tr_device_tensor &dweight, bool accumulate)
{
    using C = compute_of<T>;
    int64_t channels = s.c / s.groups, outs = s.k / s.groups;
    by_digits<T> a = {(const T *)g.data, digits(s.oh, s.ow), g.stride[1], {g.stride[0], g.stride[2], g.stride[3]},
                      outs * g.stride[1], g.stride[1] != 1};
    taps_by_pixels<T> b = {patches_of<T>(x, s), x.stride[1] != 1};
    into_weights<C> out = {dweight.dtype, dweight.data, strides_of(dweight), digits(s.kw, channels), outs, accumulate};
    return gemm::run<C>(j, s.groups, outs, s.kh * s.kw * channels, s.n * s.oh * s.ow, a, b, out);
}

const tr_device_tensor *given(const job &j, int i)
{
    return j.has_in(i) ? &j.in(i) : nullptr;
}

/* ---- By cuDNN ---------------------------------------------------------------------------------------------------- */

struct channels_last {
    int64_t stride[4];
    explicit channels_last(const tr_device_tensor &x)
        : stride{x.shape.dim[1] * x.shape.dim[2] * x.shape.dim[3], 1, x.shape.dim[1] * x.shape.dim[3], x.shape.dim[1]}
    {
    }
};

/* What a convolution gives images (forward: y of x, else x of y), and adds a bias per channel to; where they lie otherwise
 * than cuDNN makes them, by way of memory of its own. */
tr_status images_by_cudnn(const job &j, conv_kind kind, const conv_sizes &s, const tr_device_tensor &from,
    const tr_device_tensor &weight, const tr_device_tensor *bias, const tr_device_tensor &to)
{
    if (!cudnn_serves(to.dtype) || to.dtype != from.dtype) return TR_DECLINED;
    channels_last order(to);
    bool in_place = lies_so(to, to.dtype, order.stride);
    staged image(j, from, from.dtype, channels_last(from).stride);
    staged filter(j, weight, from.dtype, channels_last(weight).stride);
    scratch memory(j, in_place ? 0 : (size_t)numel(to) * host->dtype_size(to.dtype));
    TRY(image.status());
    TRY(filter.status());
    TRY(memory.status());
    tr_device_tensor made = dense_view(in_place ? to.data : memory.as<void>(), to.dtype, to.shape);
    memcpy(made.stride, order.stride, sizeof order.stride);
    void *read = image.view().data, *x = kind == CONV_FORWARD ? read : made.data,
         *y = kind == CONV_FORWARD ? made.data : read;
    TRY(cudnn_convolve(j, kind, s, from.dtype, x, filter.view().data, y));
    if (!bias) return in_place ? TR_OK : copy_into(j, to, made);
    staged added(j, *bias, to.dtype, nullptr);
    TRY(added.status());
    tr_device_tensor in[] = {made, added.view()};
    in[1].shape.ndim = 3; /* [channels, 1, 1] */
    in[1].shape.dim[1] = in[1].shape.dim[2] = 1;
    in[1].stride[1] = in[1].stride[2] = 0;
    return map_into<2>(j, to, in, plus_of());
}

/* dweight (+)= of g and x; where it lies otherwise than cuDNN makes it, by way of memory of its own. */
tr_status weights_by_cudnn(const job &j, const conv_sizes &s, const tr_device_tensor &g, const tr_device_tensor &x,
                           const tr_device_tensor &dweight, bool accumulate)
{
    channels_last order(dweight);
    if (!cudnn_serves(x.dtype) || g.dtype != x.dtype) return TR_DECLINED;
    bool in_place = !accumulate && lies_so(dweight, x.dtype, order.stride);
    staged image(j, x, x.dtype, channels_last(x).stride);
    staged gradient(j, g, x.dtype, channels_last(g).stride);
    scratch memory(j, in_place ? 0 : (size_t)numel(dweight) * host->dtype_size(x.dtype));
    TRY(image.status());
    TRY(gradient.status());
    TRY(memory.status());
    tr_device_tensor made = dense_view(in_place ? dweight.data : memory.as<void>(), x.dtype, dweight.shape);
    memcpy(made.stride, order.stride, sizeof order.stride);
    TRY(cudnn_convolve(j, CONV_GRAD_WEIGHT, s, x.dtype, image.view().data, made.data, gradient.view().data));
    if (in_place) return TR_OK;
    if (!accumulate) return copy_into(j, dweight, made);
    staged same(j, made, dweight.dtype, nullptr);
    TRY(same.status());
    tr_device_tensor in[] = {dweight, same.view()};
    return map_into<2>(j, dweight, in, plus_of());
}

} // namespace

tr_status cuda_conv2d(const job &j)
{
    const tr_device_tensor &x = j.in(0), &y = j.out(0);
    conv_sizes s = sizes_of(x, j.in(1), y, j.attrs<tr_conv2d_attrs>());
    tr_status status = images_by_cudnn(j, CONV_FORWARD, s, x, j.in(1), given(j, 2), y);
    if (status != TR_DECLINED) return status;
    if (!is_countable(s)) return TR_DECLINED;
    staged weight(j, j.in(1), x.dtype, nullptr);
    TRY(weight.status());
    return for_float(x.dtype, [&](auto t) {
        return forward<typename decltype(t)::type>(j, s, x, weight.view(), given(j, 2), y);
    });
}

static tr_status run_grad_input(const job &j, const tr_conv2d_attrs &a, const tr_device_tensor *bias)
{
    const tr_device_tensor &g = j.in(0), &dx = j.out(0);
    conv_sizes s = sizes_of(dx, j.in(1), g, a);
    tr_status status = images_by_cudnn(j, CONV_GRAD_INPUT, s, g, j.in(1), bias, dx);
    if (status != TR_DECLINED) return status;
    if (!is_countable(s)) return TR_DECLINED;
    staged weight(j, j.in(1), g.dtype, nullptr);
    TRY(weight.status());
    return for_float(g.dtype, [&](auto t) {
        return grad_input<typename decltype(t)::type>(j, s, g, weight.view(), bias, dx);
    });
}

tr_status cuda_conv2d_grad_input(const job &j)
{
    return run_grad_input(j, j.attrs<tr_conv2d_attrs>(), nullptr);
}

/* x is what a gradient of conv2d's output is there. */
tr_status cuda_conv_transpose2d(const job &j)
{
    return run_grad_input(j, j.attrs<tr_conv_transpose2d_attrs>().conv, given(j, 2));
}

/* Without outputs[0] this is the gradient of the bias alone. */
tr_status cuda_conv2d_grad_weight(const job &j)
{
    const tr_device_tensor &g = j.in(0), &x = j.in(1);
    const tr_conv2d_attrs &a = j.attrs<tr_conv2d_attrs>();
    if (j.has_out(1)) TRY(sum_onto(j, g, 1u | 4u | 8u, j.out(1), a.accumulate_bias));
    if (!j.has_out(0)) return TR_OK;
    conv_sizes s = sizes_of(x, j.out(0), g, a);
    tr_status status = weights_by_cudnn(j, s, g, x, j.out(0), a.accumulate);
    if (status != TR_DECLINED) return status;
    if (!is_countable(s)) return TR_DECLINED;
    return for_float(x.dtype, [&](auto t) {
        return grad_weight<typename decltype(t)::type>(j, s, g, x, j.out(0), a.accumulate);
    });
}
