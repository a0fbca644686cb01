/* Pooling of images: a thread per output; of gradients a thread per pixel, which looks for the windows that it lies in.
 */
#include "families.h"

namespace {

struct images { void *data; int64_t stride[4]; };
struct range { int64_t begin, end; };

struct pooling {
    int64_t n, c, h, w, oh, ow; /* x: [n, c, h, w], y: [n, c, oh, ow] */
    int64_t kernel, stride, padding;
    bool line;     /* windows are of one row, as images are */
    bool adaptive; /* as many windows as there are outputs, of about the same size, cover the image */

    /* Output o's window, cut to the image. */
    __device__ range window(int64_t o, int64_t outputs, int64_t size) const
    {
        if (adaptive) return range{o * size / outputs, ((o + 1) * size + outputs - 1) / outputs};
        range r = {o * stride - padding, o * stride - padding + kernel};
        if (r.begin < 0) r.begin = 0;
        if (r.end > size) r.end = size;
        return r;
    }
    __device__ range rows(int64_t oy) const { return line ? range{oy, oy + 1} : window(oy, oh, h); }
    __device__ range columns(int64_t ox) const { return window(ox, ow, w); }

    /* The outputs whose windows hold place i. */
    __device__ range outputs_of(int64_t i, int64_t outputs, int64_t size) const
    {
        if (adaptive) return range{i * outputs / size, ((i + 1) * outputs + size - 1) / size};
        int64_t first = i + padding - kernel + 1;
        range r = {first > 0 ? (first + stride - 1) / stride : 0, (i + padding) / stride + 1};
        if (r.end > outputs) r.end = outputs;
        return r;
    }
    __device__ range rows_of(int64_t y) const { return line ? range{y, y + 1} : outputs_of(y, oh, h); }
    __device__ range columns_of(int64_t x) const { return outputs_of(x, ow, w); }

    /* What the sum over a window is divided by for its mean: zeros around the image count. */
    __device__ int64_t size_of(range rows, range columns) const
    {
        if (adaptive) return (rows.end - rows.begin) * (columns.end - columns.begin);
        return line ? kernel : kernel * kernel;
    }
};

images images_of(const tr_device_tensor &x)
{
    return images{x.data, {x.stride[0], x.stride[1], x.stride[2], x.stride[3]}};
}

pooling pooling_of(const tr_device_tensor &x, const tr_device_tensor &y, const tr_pool2d_attrs &a)
{
    return pooling{x.shape.dim[0], x.shape.dim[1], x.shape.dim[2], x.shape.dim[3], y.shape.dim[2],  y.shape.dim[3],
                   a.kernel,       a.stride,       a.padding,      a.line,         a.out_height > 0};
}

/* Where the e'th element of [n, c, height, width] lies: channels last, as images do. */
struct spot { int64_t n, c, y, x; };
__device__ spot spot_of(int64_t e, int64_t c, int64_t height, int64_t width)
{
    spot s;
    s.c = e % c;
    e /= c;
    s.x = e % width;
    e /= width;
    s.y = e % height;
    s.n = e / height;
    return s;
}
__device__ int64_t plane(const images &i, const spot &s) { return s.n * i.stride[0] + s.c * i.stride[1]; }
__device__ int64_t within(const images &i, int64_t y, int64_t x) { return y * i.stride[2] + x * i.stride[3]; }

/* The first of the largest; NaN is larger than all. at: its place in h*w. */
template <class T> __global__ void max_pool(images y, images at, images x, pooling p)
{
    FOR_EACH_OF(e, p.n * p.c * p.oh * p.ow)
    {
        spot s = spot_of(e, p.c, p.oh, p.ow);
        range rows = p.rows(s.y), columns = p.columns(s.x);
        const T *from = (const T *)x.data + plane(x, s);
        int64_t best = rows.begin * p.w + columns.begin;
        compute_of<T> top = wide(from[within(x, rows.begin, columns.begin)]);
        for (int64_t i = rows.begin; i < rows.end; i++)
            for (int64_t k = columns.begin; k < columns.end; k++) {
                compute_of<T> value = wide(from[within(x, i, k)]);
                if (value <= top || top != top) continue;
                top = value;
                best = i * p.w + k;
            }
        ((T *)y.data)[plane(y, s) + within(y, s.y, s.x)] = narrow<T>(top);
        ((int32_t *)at.data)[plane(at, s) + within(at, s.y, s.x)] = (int32_t)best;
    }
}

template <class T> __global__ void max_pool_grad(images dx, images g, images at, pooling p)
{
    FOR_EACH_OF(e, p.n * p.c * p.h * p.w)
    {
        spot s = spot_of(e, p.c, p.h, p.w);
        range rows = p.rows_of(s.y), columns = p.columns_of(s.x);
        const T *from = (const T *)g.data + plane(g, s);
        const int32_t *places = (const int32_t *)at.data + plane(at, s);
        compute_of<T> sum = 0;
        for (int64_t oy = rows.begin; oy < rows.end; oy++)
            for (int64_t ox = columns.begin; ox < columns.end; ox++)
                if (places[within(at, oy, ox)] == s.y * p.w + s.x) sum += wide(from[within(g, oy, ox)]);
        ((T *)dx.data)[plane(dx, s) + within(dx, s.y, s.x)] = narrow<T>(sum);
    }
}

template <class T> __global__ void avg_pool(images y, images x, pooling p)
{
    FOR_EACH_OF(e, p.n * p.c * p.oh * p.ow)
    {
        spot s = spot_of(e, p.c, p.oh, p.ow);
        range rows = p.rows(s.y), columns = p.columns(s.x);
        const T *from = (const T *)x.data + plane(x, s);
        compute_of<T> sum = 0;
        for (int64_t i = rows.begin; i < rows.end; i++)
            for (int64_t k = columns.begin; k < columns.end; k++) sum += wide(from[within(x, i, k)]);
        ((T *)y.data)[plane(y, s) + within(y, s.y, s.x)] = narrow<T>(sum / (compute_of<T>)p.size_of(rows, columns));
    }
}

template <class T> __global__ void avg_pool_grad(images dx, images g, pooling p)
{
    FOR_EACH_OF(e, p.n * p.c * p.h * p.w)
    {
        spot s = spot_of(e, p.c, p.h, p.w);
        range rows = p.rows_of(s.y), columns = p.columns_of(s.x);
        const T *from = (const T *)g.data + plane(g, s);
        compute_of<T> sum = 0;
        for (int64_t oy = rows.begin; oy < rows.end; oy++)
            for (int64_t ox = columns.begin; ox < columns.end; ox++)
                sum += wide(from[within(g, oy, ox)]) / (compute_of<T>)p.size_of(p.rows(oy), p.columns(ox));
        ((T *)dx.data)[plane(dx, s) + within(dx, s.y, s.x)] = narrow<T>(sum);
    }
}

} // namespace

tr_status cuda_max_pool2d(const job &j)
{
    const tr_device_tensor &x = j.in(0), &y = j.out(0);
    pooling p = pooling_of(x, y, j.attrs<tr_pool2d_attrs>());
    if (numel(y) == 0) return TR_OK;
    return for_float(x.dtype, [&](auto t) {
        return LAUNCH(j, max_pool<typename decltype(t)::type>, grid_for(numel(y)), BLOCK, 0, images_of(y),
                      images_of(j.out(1)), images_of(x), p);
    });
}

tr_status cuda_max_pool2d_grad(const job &j)
{
    const tr_device_tensor &g = j.in(0), &dx = j.out(0);
    pooling p = pooling_of(dx, g, j.attrs<tr_pool2d_attrs>());
    if (numel(dx) == 0) return TR_OK;
    return for_float(g.dtype, [&](auto t) {
        return LAUNCH(j, max_pool_grad<typename decltype(t)::type>, grid_for(numel(dx)), BLOCK, 0, images_of(dx),
                      images_of(g), images_of(j.in(1)), p);
    });
}

tr_status cuda_avg_pool2d(const job &j)
{
    const tr_device_tensor &x = j.in(0), &y = j.out(0);
    pooling p = pooling_of(x, y, j.attrs<tr_pool2d_attrs>());
    if (numel(y) == 0) return TR_OK;
    return for_float(x.dtype, [&](auto t) {
        return LAUNCH(j, avg_pool<typename decltype(t)::type>, grid_for(numel(y)), BLOCK, 0, images_of(y), images_of(x),
                      p);
    });
}

tr_status cuda_avg_pool2d_grad(const job &j)
{
    const tr_device_tensor &g = j.in(0), &dx = j.out(0);
    pooling p = pooling_of(dx, g, j.attrs<tr_pool2d_attrs>());
    if (numel(dx) == 0) return TR_OK;
    return for_float(g.dtype, [&](auto t) {
        return LAUNCH(j, avg_pool_grad<typename decltype(t)::type>, grid_for(numel(dx)), BLOCK, 0, images_of(dx),
                      images_of(g), p);
    });
}
