/*
 * Pooling of images: a thread per output; of gradients a thread per pixel, which looks for the windows that it lies in.
 * Where channels are neighbours in memory a thread has a pack of 16 bytes of them, V, else V = 1.
 */
#include "elementwise.h"
#include "families.h"

namespace {

struct images { void *data; int64_t stride[4]; };
struct range { int begin, end; };

/* Rows or columns: of the images, and of what is made of them. */
struct side {
    int size, outputs, kernel, stride, padding;
    divisor by_stride, by_size, by_outputs;
    bool adaptive; /* as many windows as there are outputs, of about the same size, cover the image */
    bool small;    /* products of places and sizes serve divisors */

    side(int64_t n, int64_t windows, const tr_pool2d_attrs &a, bool of_line)
        : size((int)n), outputs((int)windows), kernel(of_line ? 1 : (int)a.kernel), stride(of_line ? 1 : (int)a.stride),
          padding(of_line ? 0 : (int)a.padding), by_stride(most(stride, 1)), by_size(most(n, 1)),
          by_outputs(most(windows, 1)), adaptive(a.out_height > 0 && !of_line),
          small((n + 1) * (windows + 1) < INDEX_LIMIT)
    {
    }
    /* Output o's window, cut to the image. */
    __device__ range window(int o) const
    {
        if (adaptive) return shares(o, size, by_outputs);
        range r = {o * stride - padding, o * stride - padding + kernel};
        return range{r.begin < 0 ? 0 : r.begin, r.end > size ? size : r.end};
    }
    /* The outputs whose windows hold place i. */
    __device__ range outputs_of(int i) const
    {
        if (adaptive) return shares(i, outputs, by_size);
        int first = i + padding - kernel + 1, last = (int)by_stride.quotient((uint32_t)(i + padding));
        range r = {first > 0 ? (int)by_stride.quotient((uint32_t)(first - 1)) + 1 : 0, last + 1};
        return range{r.begin, r.end > outputs ? outputs : r.end};
    }
    /* What a mean counts: zeros around the image, too. */
    __device__ int length(range window) const { return adaptive ? window.end - window.begin : kernel; }

private:
    /* From i n / by to (i + 1) n / by rounded up. */
    __device__ range shares(int i, int n, const divisor &by) const
    {
        if (small) {
            uint32_t begin = (uint32_t)i * (uint32_t)n;
            return range{(int)by.quotient(begin), (int)by.quotient(begin + (uint32_t)n + by.by - 1)};
        }
        return range{(int)((int64_t)i * n / by.by), (int)(((int64_t)(i + 1) * n + by.by - 1) / by.by)};
    }
};

struct pooling { side rows, columns; }; /* windows of one row, as the images of a line have: of 1 in rows */

/* The elements of [n, c, height, width] in packs of channels, channels last: where the e'th lies. */
struct spot { int64_t n, c; int y, x; };
struct grid_of_packs {
    int64_t count;
    int64_t packs, height, width;
    divisor by_packs, by_height, by_width;

    grid_of_packs(const tr_shape &s, int v)
        : count(numel(s) / v), packs(s.dim[1] / v), height(s.dim[2]), width(s.dim[3]), by_packs(packs),
          by_height(height), by_width(width)
    {
    }
    __device__ spot at(int64_t e, int v) const
    {
        if (count > INDEX_LIMIT) {
            int64_t pixel = e / packs, row = pixel / width;
            return spot{row / height, (e - pixel * packs) * v, (int)(row % height), (int)(pixel % width)};
        }
        uint32_t pixel = by_packs.quotient((uint32_t)e), row = by_width.quotient(pixel), n = by_height.quotient(row);
        return spot{n, (int64_t)((uint32_t)e - pixel * by_packs.by) * v, (int)(row - n * by_height.by),
                    (int)(pixel - row * by_width.by)};
    }
};

__device__ int64_t plane(const images &i, const spot &s) { return s.n * i.stride[0] + s.c * i.stride[1]; }
__device__ int64_t within(const images &i, int y, int x) { return y * i.stride[2] + x * i.stride[3]; }
template <int V, class T> __device__ const pack<T, V> &read(const T *at) { return *(const pack<T, V> *)at; }
template <int V, class T> __device__ pack<T, V> &to(const images &i, const spot &s)
{
    return *(pack<T, V> *)((T *)i.data + plane(i, s) + within(i, s.y, s.x));
}

/* Reads packs from column k on, those that there are, so that their loads are under way together. */
template <int AHEAD, int V, class T>
__device__ inline void read_ahead(pack<T, V> (&to)[AHEAD], const T *row, int64_t step, int k, range columns)
{
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
        if (k + a < columns.end) to[a] = read<V>(row + (k + a) * step);
}

/* Rows of windows of 3, and of means over images of 7; and of the windows of 3 that lie 2 apart, those that hold a pixel. */
constexpr int MAX_AHEAD = 3, AVG_AHEAD = 7, GRAD_AHEAD = 2;

/* The first of the largest; NaN is larger than all. at: its place in h*w. */
template <class T, int V>
__global__ void __launch_bounds__(BLOCK, 3) max_pool(images y, images at, images x, pooling p, grid_of_packs grid)
{
    FOR_EACH_OF(e, grid.count)
    {
        spot s = grid.at(e, V);
        range rows = p.rows.window(s.y), columns = p.columns.window(s.x);
        const T *from = (const T *)x.data + plane(x, s);
        pack<T, V> top = read<V>(from + within(x, rows.begin, columns.begin));
        pack<int32_t, V> best;
#pragma unroll
        for (int c = 0; c < V; c++) best.at[c] = rows.begin * p.columns.size + columns.begin;
        for (int i = rows.begin; i < rows.end; i++)
            for (int k = columns.begin; k < columns.end; k += MAX_AHEAD) {
                pack<T, V> value[MAX_AHEAD];
                read_ahead(value, from + within(x, i, 0), x.stride[3], k, columns);
#pragma unroll
                for (int a = 0; a < MAX_AHEAD; a++) {
                    if (k + a >= columns.end) break;
#pragma unroll
                    for (int c = 0; c < V; c++) {
                        compute_of<T> before = wide(top.at[c]);
                        bool larger = !(wide(value[a].at[c]) <= before || before != before);
                        top.at[c] = larger ? value[a].at[c] : top.at[c];
                        best.at[c] = larger ? i * p.columns.size + k + a : best.at[c];
                    }
                }
            }
        to<V, T>(y, s) = top;
        to<V, int32_t>(at, s) = best;
    }
}

template <class T, int V> __global__ void max_pool_grad(images dx, images g, images at, pooling p, grid_of_packs grid)
{
    FOR_EACH_OF(e, grid.count)
    {
        spot s = grid.at(e, V);
        range rows = p.rows.outputs_of(s.y), columns = p.columns.outputs_of(s.x);
        const T *from = (const T *)g.data + plane(g, s);
        const int32_t *places = (const int32_t *)at.data + plane(at, s);
        compute_of<T> sum[V] = {};
        pack<T, V> made;
        for (int oy = rows.begin; oy < rows.end; oy++)
            for (int ox = columns.begin; ox < columns.end; ox += GRAD_AHEAD) {
                pack<int32_t, V> place[GRAD_AHEAD];
                pack<T, V> arrived[GRAD_AHEAD];
                read_ahead(place, places + within(at, oy, 0), at.stride[3], ox, columns);
                read_ahead(arrived, from + within(g, oy, 0), g.stride[3], ox, columns);
#pragma unroll
                for (int a = 0; a < GRAD_AHEAD; a++)
#pragma unroll
                    for (int c = 0; c < V; c++)
                        if (ox + a < columns.end && place[a].at[c] == s.y * p.columns.size + s.x)
                            sum[c] += wide(arrived[a].at[c]);
            }
#pragma unroll
        for (int c = 0; c < V; c++) made.at[c] = narrow<T>(sum[c]);
        to<V, T>(dx, s) = made;
    }
}

template <class T, int V> __global__ void avg_pool(images y, images x, pooling p, grid_of_packs grid)
{
    FOR_EACH_OF(e, grid.count)
    {
        spot s = grid.at(e, V);
        range rows = p.rows.window(s.y), columns = p.columns.window(s.x);
        const T *from = (const T *)x.data + plane(x, s);
        compute_of<T> sum[V] = {}, size = (compute_of<T>)((int64_t)p.rows.length(rows) * p.columns.length(columns));
        pack<T, V> made;
        for (int i = rows.begin; i < rows.end; i++)
            for (int k = columns.begin; k < columns.end; k += AVG_AHEAD) {
                pack<T, V> value[AVG_AHEAD];
                read_ahead(value, from + within(x, i, 0), x.stride[3], k, columns);
#pragma unroll
                for (int a = 0; a < AVG_AHEAD; a++) {
                    if (k + a >= columns.end) break;
#pragma unroll
                    for (int c = 0; c < V; c++) sum[c] += wide(value[a].at[c]);
                }
            }
#pragma unroll
        for (int c = 0; c < V; c++) made.at[c] = narrow<T>(sum[c] / size);
        to<V, T>(y, s) = made;
    }
}

template <class T, int V> __global__ void avg_pool_grad(images dx, images g, pooling p, grid_of_packs grid)
{
    FOR_EACH_OF(e, grid.count)
    {
        spot s = grid.at(e, V);
        range rows = p.rows.outputs_of(s.y), columns = p.columns.outputs_of(s.x);
        const T *from = (const T *)g.data + plane(g, s);
        compute_of<T> sum[V] = {};
        pack<T, V> made;
        for (int oy = rows.begin; oy < rows.end; oy++)
            for (int ox = columns.begin; ox < columns.end; ox++) {
                compute_of<T> height = (compute_of<T>)p.rows.length(p.rows.window(oy));
                compute_of<T> share = 1 / (height * (compute_of<T>)p.columns.length(p.columns.window(ox)));
                pack<T, V> arrived = read<V>(from + within(g, oy, ox));
#pragma unroll
                for (int c = 0; c < V; c++) sum[c] += wide(arrived.at[c]) * share;
            }
#pragma unroll
        for (int c = 0; c < V; c++) made.at[c] = narrow<T>(sum[c]);
        to<V, T>(dx, s) = made;
    }
}

/* ---- The host's side --------------------------------------------------------------------------------------------- */

images images_of(const tr_device_tensor &x)
{
    return images{x.data, {x.stride[0], x.stride[1], x.stride[2], x.stride[3]}};
}

/* Can v neighbouring channels of x be moved at once? */
bool has_packs(const tr_device_tensor &x, int v)
{
    bool packs = x.shape.dim[1] % v == 0 && x.stride[1] == 1 && (uintptr_t)x.data % (v * host->dtype_size(x.dtype)) == 0;
    for (int d = 0; d < 4; d++) packs = packs && (d == 1 || x.shape.dim[d] == 1 || x.stride[d] % v == 0);
    return packs;
}

/* run(type, v, p, grid) for the pooling of x, or its gradient, whose elements or those of `made` are the threads'. */
template <class F>
tr_status pool(const job &j, const tr_device_tensor &x, const tr_device_tensor &y, const tr_device_tensor &made,
               const tr_device_tensor *at, const F &run)
{
    const tr_pool2d_attrs &a = j.attrs<tr_pool2d_attrs>();
    if (numel(made) == 0) return TR_OK;
    if (most(x.shape.dim[2], y.shape.dim[2]) > INDEX_LIMIT / 2 || most(x.shape.dim[3], y.shape.dim[3]) > INDEX_LIMIT / 2)
        return TR_DECLINED;
    pooling p = {side(x.shape.dim[2], y.shape.dim[2], a, a.line), side(x.shape.dim[3], y.shape.dim[3], a, false)};
    return for_float(x.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        constexpr int V = 16 / sizeof(T);
        if (has_packs(x, V) && has_packs(y, V) && (!at || has_packs(*at, V)))
            return run(t, std::integral_constant<int, V>(), p, grid_of_packs(made.shape, V));
        return run(t, std::integral_constant<int, 1>(), p, grid_of_packs(made.shape, 1));
    });
}

/* A kernel's template arguments, in what pool() calls. */
#define OF_PACKS(kernel) (kernel<typename decltype(t)::type, decltype(v)::value>)

} // namespace

tr_status cuda_max_pool2d(const job &j)
{
    const tr_device_tensor &x = j.in(0), &y = j.out(0), &at = j.out(1);
    return pool(j, x, y, y, &at, [&](auto t, auto v, const pooling &p, const grid_of_packs &grid) {
        return LAUNCH(j, OF_PACKS(max_pool), grid_for(grid.count), BLOCK, 0, images_of(y), images_of(at), images_of(x),
                      p, grid);
    });
}

tr_status cuda_max_pool2d_grad(const job &j)
{
    const tr_device_tensor &g = j.in(0), &at = j.in(1), &dx = j.out(0);
    return pool(j, dx, g, dx, &at, [&](auto t, auto v, const pooling &p, const grid_of_packs &grid) {
        return LAUNCH(j, OF_PACKS(max_pool_grad), grid_for(grid.count), BLOCK, 0, images_of(dx), images_of(g),
                      images_of(at), p, grid);
    });
}

tr_status cuda_avg_pool2d(const job &j)
{
    const tr_device_tensor &x = j.in(0), &y = j.out(0);
    return pool(j, x, y, y, nullptr, [&](auto t, auto v, const pooling &p, const grid_of_packs &grid) {
        return LAUNCH(j, OF_PACKS(avg_pool), grid_for(grid.count), BLOCK, 0, images_of(y), images_of(x), p, grid);
    });
}

tr_status cuda_avg_pool2d_grad(const job &j)
{
    const tr_device_tensor &g = j.in(0), &dx = j.out(0);
    return pool(j, dx, g, dx, nullptr, [&](auto t, auto v, const pooling &p, const grid_of_packs &grid) {
        return LAUNCH(j, OF_PACKS(avg_pool_grad), grid_for(grid.count), BLOCK, 0, images_of(dx), images_of(g), p, grid);
    });
}
