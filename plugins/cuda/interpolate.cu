/*
 * Images in another size. An output pixel is a weighted sum of 1, 2 x 2 or 4 x 4 pixels; where they lie is computed
 * once per row and column. Going back, a pixel finds the outputs that read it: as taps never go backwards, they are
 * neighbours.
 */
#include "families.h"

namespace {

constexpr int MOST_TAPS = 4;

/* The rows (or columns) that an output reads: at[0] <= at[1] <= …; those that are not used repeat the last, with weight
 * 0. */
struct taps {
    int32_t at[MOST_TAPS];
    double weight[MOST_TAPS];
};

struct line_of_taps { int64_t outputs, size; double scale; };

/* Keys 1981 with a = -3/4: the weight of what is `distance` away. */
__device__ double cubic(double distance)
{
    const double a = -0.75, d = fabs(distance);
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? a * (((d - 5) * d + 8) * d - 4) : 0;
}

__device__ taps single_tap(int64_t at)
{
    int32_t i = (int32_t)at;
    return taps{{i, i, i, i}, {1, 0, 0, 0}};
}

__device__ taps taps_of(tr_interpolation mode, bool align_corners, const line_of_taps &l, int64_t o)
{
    bool nearest = mode == TR_INTERPOLATE_NEAREST;
    double scale = l.scale; /* when it counts: as on the CPU (src/ops/interpolate.c) */
    if (l.outputs == l.size ? mode != TR_INTERPOLATE_BICUBIC : nearest && l.outputs == 2 * l.size) scale = 0;
    if (nearest) { /* in f32, as PyTorch: where it rounds, the neighbour is the same */
        float step = scale > 0 ? (float)(1 / scale) : (float)l.size / (float)l.outputs;
        int64_t at = (int64_t)floorf((float)o * step);
        return single_tap(at < l.size ? at : l.size - 1);
    }
    double step = scale > 0 ? 1 / scale : (double)l.size / (double)l.outputs,
           place = ((double)o + 0.5) * step - 0.5;
    if (align_corners) place = l.outputs > 1 ? (double)o * (double)(l.size - 1) / (double)(l.outputs - 1) : 0;
    bool linear = mode == TR_INTERPOLATE_BILINEAR;
    if (linear && place < 0) place = 0;
    int64_t first = (int64_t)floor(place);
    if (first > l.size - 1) first = l.size - 1;
    double beyond = place - (double)first;
    if (beyond > 1) beyond = 1;
    if (l.size == 1) return single_tap(0);
    if (linear) {
        int32_t next = (int32_t)(first + (first < l.size - 1));
        return taps{{(int32_t)first, next, next, next}, {1 - beyond, beyond, 0, 0}};
    }
    taps t;
    for (int k = 0; k < MOST_TAPS; k++) {
        int64_t at = first - 1 + k;
        t.at[k] = (int32_t)(at < 0 ? 0 : at < l.size ? at : l.size - 1);
        t.weight[k] = cubic(beyond + 1 - k);
    }
    return t;
}

__global__ void fill_taps(taps *rows, taps *columns, tr_interpolation mode, bool align_corners, line_of_taps down,
                          line_of_taps along)
{
    FOR_EACH_OF(i, down.outputs + along.outputs)
    {
        if (i < down.outputs) rows[i] = taps_of(mode, align_corners, down, i);
        else columns[i - down.outputs] = taps_of(mode, align_corners, along, i - down.outputs);
    }
}

struct resized {
    int64_t n, c, h, w, oh, ow;
    int64_t x[4], y[4]; /* strides */
    const taps *rows, *columns;
    int down, along; /* taps that are used of rows, and of columns */
};

template <class T> __global__ void interpolate(T *y, const T *x, resized r)
{
    using C = compute_of<T>;
    FOR_EACH_OF(e, r.n * r.c * r.oh * r.ow)
    {
        int64_t c = e % r.c, ox = e / r.c % r.ow, oy = e / r.c / r.ow % r.oh, n = e / r.c / r.ow / r.oh;
        const taps &down = r.rows[oy], &along = r.columns[ox];
        const T *from = x + n * r.x[0] + c * r.x[1];
        C sum = 0;
        for (int k = 0; k < r.along; k++) {
            C blended = 0;
            for (int i = 0; i < r.down; i++)
                blended += (C)down.weight[i] * wide(from[down.at[i] * r.x[2] + along.at[k] * r.x[3]]);
            sum += (C)along.weight[k] * blended;
        }
        y[n * r.y[0] + c * r.y[1] + oy * r.y[2] + ox * r.y[3]] = narrow<T>(sum);
    }
}

/* The first output whose tap k lies at `place` or behind. */
__device__ int64_t first_at(const taps *table, int64_t outputs, int k, int64_t place)
{
    int64_t low = 0, high = outputs;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (table[middle].at[k] < place) low = middle + 1;
        else high = middle;
    }
    return low;
}

__device__ double weight_at(const taps &t, int count, int64_t place)
{
    double weight = 0;
    for (int k = 0; k < count; k++) weight += t.at[k] == place ? t.weight[k] : 0;
    return weight;
}

template <class T> __global__ void interpolate_grad(T *dx, const T *g, resized r)
{
    using C = compute_of<T>;
    FOR_EACH_OF(e, r.n * r.c * r.h * r.w)
    {
        int64_t c = e % r.c, ix = e / r.c % r.w, iy = e / r.c / r.w % r.h, n = e / r.c / r.w / r.h;
        const T *from = g + n * r.y[0] + c * r.y[1];
        int64_t row_end = first_at(r.rows, r.oh, 0, iy + 1), column = first_at(r.columns, r.ow, r.along - 1, ix);
        int64_t column_end = first_at(r.columns, r.ow, 0, ix + 1);
        C sum = 0;
        for (int64_t oy = first_at(r.rows, r.oh, r.down - 1, iy); oy < row_end; oy++) {
            C gathered = 0;
            for (int64_t ox = column; ox < column_end; ox++)
                gathered += (C)weight_at(r.columns[ox], r.along, ix) * wide(from[oy * r.y[2] + ox * r.y[3]]);
            sum += (C)weight_at(r.rows[oy], r.down, iy) * gathered;
        }
        dx[n * r.x[0] + c * r.x[1] + iy * r.x[2] + ix * r.x[3]] = narrow<T>(sum);
    }
}

/* x and y, or their gradients. */
tr_status run(const job &j, const tr_device_tensor &x, const tr_device_tensor &y, bool gradient)
{
    const tr_interpolate_attrs &a = j.attrs<tr_interpolate_attrs>();
    const int used = a.mode == TR_INTERPOLATE_NEAREST ? 1 : a.mode == TR_INTERPOLATE_BILINEAR ? 2 : MOST_TAPS;
    resized r = {x.shape.dim[0], x.shape.dim[1], x.shape.dim[2], x.shape.dim[3], y.shape.dim[2], y.shape.dim[3],
                 {x.stride[0], x.stride[1], x.stride[2], x.stride[3]}, {y.stride[0], y.stride[1], y.stride[2], y.stride[3]},
                 nullptr, nullptr, x.shape.dim[2] == 1 ? 1 : used, x.shape.dim[3] == 1 ? 1 : used};
    int64_t count = numel(gradient ? x : y);
    if (count == 0) return TR_OK;
    scratch memory(j, sizeof(taps) * (size_t)(r.oh + r.ow));
    TRY(memory.status());
    taps *rows = memory.as<taps>(), *columns = rows + r.oh;
    TRY(LAUNCH(j, fill_taps, grid_for(r.oh + r.ow), BLOCK, 0, rows, columns, a.mode, a.align_corners,
        line_of_taps{r.oh, r.h, a.scale_height}, line_of_taps{r.ow, r.w, a.scale_width}));
    r.rows = rows;
    r.columns = columns;
    return for_float(x.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        if (gradient)
            return LAUNCH(j, interpolate_grad<T>, grid_for(count), BLOCK, 0, (T *)x.data, (const T *)y.data, r);
        return LAUNCH(j, interpolate<T>, grid_for(count), BLOCK, 0, (T *)y.data, (const T *)x.data, r);
    });
}

} // namespace

tr_status cuda_interpolate(const job &j) { return run(j, j.in(0), j.out(0), false); }
tr_status cuda_interpolate_grad(const job &j) { return run(j, j.out(0), j.in(0), true); }
