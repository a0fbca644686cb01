#include "kernel.h"

axis axis_of(int ndim, const int64_t *dim, const int64_t *stride)
{
    axis a = {};
    a.n = a.ndim = 1;
    a.dim[0] = 1;
    for (int i = 0, filled = 0; i < ndim; i++) {
        a.n *= dim[i];
        if (dim[i] == 1) continue;
        int last = a.ndim - 1;
        if (filled && a.stride[last] == dim[i] * stride[i]) {
            a.dim[last] *= dim[i];
            a.stride[last] = stride[i];
            continue;
        }
        if (filled) last = a.ndim++;
        a.dim[last] = dim[i];
        a.stride[last] = stride[i];
        filled = 1;
    }
    for (int d = 0; d < a.ndim; d++) a.by[d] = divisor(a.dim[d] > 0 && a.dim[d] <= INDEX_LIMIT ? a.dim[d] : 1);
    return a;
}

axis axis_in(const tr_device_tensor &x, uint32_t dims)
{
    int64_t dim[TR_MAX_DIMS], stride[TR_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < x.shape.ndim; d++) {
        if (!(dims >> d & 1)) continue;
        dim[n] = x.shape.dim[d];
        stride[n++] = x.stride[d];
    }
    return axis_of(n, dim, stride);
}

/* ---- Loops ------------------------------------------------------------------------------------------------------- */

static void remove_dim(loop &l, int d)
{
    for (; d + 1 < l.ndim; d++) {
        l.dim[d] = l.dim[d + 1];
        for (int k = 0; k < l.n; k++) l.stride[k][d] = l.stride[k][d + 1];
    }
    l.ndim--;
}

static void swap_dims(loop &l, int d, int e)
{
    int64_t size = l.dim[d];
    l.dim[d] = l.dim[e];
    l.dim[e] = size;
    for (int k = 0; k < l.n; k++) {
        int64_t step = l.stride[k][d];
        l.stride[k][d] = l.stride[k][e];
        l.stride[k][e] = step;
    }
}

static bool mergeable(const loop &l, int d)
{
    for (int k = 0; k < l.n; k++)
        if (l.stride[k][d] != l.stride[k][d + 1] * l.dim[d + 1]) return false;
    return true;
}

loop loop_of(const tr_shape &shape, const tr_device_tensor *const *tensors, int n)
{
    loop l = {};
    l.ndim = shape.ndim;
    l.n = n;
    l.count = 1;
    for (int d = 0; d < shape.ndim; d++) l.count *= l.dim[d] = shape.dim[d];
    for (int k = 0; k < n; k++) {
        const tr_device_tensor &x = *tensors[k];
        int missing = shape.ndim - x.shape.ndim;
        l.data[k] = (char *)x.data;
        l.bytes[k] = host->dtype_size(x.dtype);
        for (int d = missing; d < shape.ndim; d++)
            l.stride[k][d] = x.shape.dim[d - missing] == 1 && shape.dim[d] != 1 ? 0 : x.stride[d - missing];
    }
    for (int d = l.ndim; d-- > 0;)
        if (l.dim[d] == 1) remove_dim(l, d);
    for (int d = 1; d < l.ndim; d++) /* the smallest step of what is written last */
        for (int e = d; e > 0 && l.stride[0][e - 1] < l.stride[0][e]; e--) swap_dims(l, e - 1, e);
    for (int d = l.ndim - 1; d-- > 0;)
        if (mergeable(l, d)) {
            l.dim[d + 1] *= l.dim[d];
            remove_dim(l, d);
        }
    if (l.ndim) return l;
    l.ndim = 1; /* one number */
    l.dim[0] = 1;
    for (int k = 0; k < n; k++) l.stride[k][0] = 1;
    return l;
}

bool loop_is_flat(const loop &l)
{
    if (l.ndim != 1 || l.stride[0][0] != 1) return false;
    for (int k = 1; k < l.n; k++)
        if (l.stride[k][0] != 1 && l.stride[k][0] != 0) return false;
    return true;
}
