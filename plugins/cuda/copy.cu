/* Moving numbers: copies between any dtypes and strides, fills, and elements taken by their numbers. */
#include "elementwise.h"
#include "families.h"

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* Between f32 and the 16-bit floats, as autocast does it. Both aligned to 16 bytes. */
template <class To, class From> __global__ void convert_flat(To *to, const From *from, int64_t count)
{
    constexpr int V = 4;
    int64_t packs = count / V;
    FOR_EACH_OF(p, packs)
    {
        pack<From, V> x = ((const pack<From, V> *)from)[p];
        pack<To, V> y;
        for (int i = 0; i < V; i++) y.at[i] = narrow<To>(wide(x.at[i]));
        ((pack<To, V> *)to)[p] = y;
    }
    for (int64_t i = packs * V + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x)
        to[i] = narrow<To>(wide(from[i]));
}

/* Between any dtypes; from's is computed in C. */
template <class C>
__global__ void convert_strided(tr_dtype to_dtype, void *to, tr_dtype from_dtype, const void *from,
                                const __grid_constant__ walk<2> w)
{
    FOR_EACH_OF(i, w.count)
    {
        int64_t place[2];
        w.at((uint32_t)i, place);
        store_as<C>(to_dtype, to, place[0], load_wide<C>(from_dtype, from, place[1]));
    }
}

/* Elements of one dtype, as bits. */
template <class T> __global__ void copy_strided(T *to, const T *from, const __grid_constant__ walk<2> w)
{
    FOR_EACH_OF(i, w.count)
    {
        int64_t place[2];
        w.at((uint32_t)i, place);
        to[place[0]] = from[place[1]];
    }
}

/* The same where both lie in rows without gaps, as slices do: nothing is divided. */
template <class T>
__global__ void copy_rows(T *to, const T *from, int64_t rows, int64_t columns, int64_t to_row, int64_t from_row)
{
    for (int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
        T *y = to + r * to_row;
        const T *x = from + r * from_row;
#pragma unroll 4
        for (int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c < columns; c += (int64_t)gridDim.x * blockDim.x)
            y[c] = x[c];
    }
}

/* A transposed copy: both sides are read and written along their own contiguous dimension, by way of a tile, which is
 * wide where the matrix is low, and high where it is narrow.
 * to: [.., rows, columns] with columns contiguous; from has rows contiguous. */
constexpr int TILE = 32;

struct tile_sizes {
    divisor rows, columns;
    tile_sizes(int64_t of_rows, int64_t of_columns)
        : rows(least(of_rows, of_columns < TILE ? TILE * TILE / of_columns : TILE)),
          columns(least(of_columns, TILE * TILE / rows.by))
    {
    }
};

template <class To, class From>
__global__ void transpose(To *to, const From *from, int64_t rows, int64_t columns, int64_t to_row, int64_t from_column,
                          const __grid_constant__ tile_sizes sizes, axis to_others, axis from_others)
{
    __shared__ To tile[TILE * TILE * 3 / 2]; /* rows of an odd number of elements: no bank is asked twice */
    unsigned count = sizes.rows.by * sizes.columns.by, pitch = sizes.columns.by | 1;
    int64_t tiles = (columns + sizes.columns.by - 1) / sizes.columns.by;
    int64_t row0 = blockIdx.x / tiles * sizes.rows.by, column0 = blockIdx.x % tiles * sizes.columns.by;
    for (int64_t other = blockIdx.y; other < to_others.n; other += gridDim.y) {
        To *y = to + to_others.at(other);
        const From *x = from + from_others.at(other);
        for (unsigned i = threadIdx.x; i < count; i += BLOCK) {
            unsigned c = sizes.rows.quotient(i), r = i - c * sizes.rows.by;
            if (row0 + r >= rows || column0 + c >= columns) continue;
            From element = x[(column0 + c) * from_column + row0 + r];
            if constexpr (std::is_same_v<To, From>) tile[r * pitch + c] = element;
            else tile[r * pitch + c] = narrow<To>(wide(element));
        }
        __syncthreads();
        for (unsigned i = threadIdx.x; i < count; i += BLOCK) {
            unsigned r = sizes.columns.quotient(i), c = i - r * sizes.columns.by;
            if (row0 + r < rows && column0 + c < columns) y[(row0 + r) * to_row + column0 + c] = tile[r * pitch + c];
        }
        __syncthreads();
    }
}

/* Launches the transposed copy, where the elements lie so that it serves: `from` is contiguous along another dimension than
 * `to`, whose last one that is. */
template <class To, class From> static tr_status launch_transpose(const job &j, const loop &l)
{
    int64_t dim[TR_MAX_DIMS], to[TR_MAX_DIMS], from[TR_MAX_DIMS];
    int last = l.ndim - 1, n = 0, d = 0;
    if (l.ndim < 2 || l.stride[0][last] != 1 || l.stride[1][last] <= 1) return TR_DECLINED;
    while (d < last && l.stride[1][d] != 1) d++;
    if (d == last || l.dim[d] * l.dim[last] < BLOCK) return TR_DECLINED;
    for (int e = 0; e < last; e++) {
        if (e == d) continue;
        dim[n] = l.dim[e];
        to[n] = l.stride[0][e];
        from[n++] = l.stride[1][e];
    }
    axis to_others = axis_of(n, dim, to), from_others = axis_of(n, dim, from);
    tile_sizes sizes(l.dim[d], l.dim[last]);
    int64_t tiles = parts_of(l.dim[d], sizes.rows.by) * parts_of(l.dim[last], sizes.columns.by);
    if (tiles > GRID_LIMIT) return TR_DECLINED;
    dim3 grid((unsigned)tiles, (unsigned)least(to_others.n, GRID_YZ_LIMIT));
    return LAUNCH(j, (transpose<To, From>), grid, BLOCK, 0, (To *)l.data[0], (const From *)l.data[1], l.dim[d],
                  l.dim[last], l.stride[0][d], l.stride[1][last], sizes, to_others, from_others);
}

/* TR_DECLINED: convert_strided() serves. */
template <class To, class From> static tr_status convert_fast(const job &j, const loop &l)
{
    if (!loop_is_flat(l) || l.stride[1][0] != 1) return launch_transpose<To, From>(j, l);
    if (((uintptr_t)l.data[0] | (uintptr_t)l.data[1]) % 16 != 0) return TR_DECLINED;
    return LAUNCH(j, (convert_flat<To, From>), grid_for(l.count, 4 * BLOCK), BLOCK, 0, (To *)l.data[0],
                  (const From *)l.data[1], l.count);
}

static tr_status convert_loop(const job &j, const loop &l, tr_dtype to, tr_dtype from)
{
    tr_status status = to == TR_BF16 && from == TR_F32   ? convert_fast<bf16, float>(j, l)
                       : to == TR_F32 && from == TR_BF16 ? convert_fast<float, bf16>(j, l)
                       : to == TR_F16 && from == TR_F32  ? convert_fast<f16, float>(j, l)
                       : to == TR_F32 && from == TR_F16  ? convert_fast<float, f16>(j, l)
                                                         : TR_DECLINED;
    if (status != TR_DECLINED) return status;
    return loop_in_parts(l, [&](const loop &part) {
        return for_wide(from, [&](auto t) {
            return LAUNCH(j, convert_strided<typename decltype(t)::type>, grid_for(part.count), BLOCK, 0, to,
                          (void *)part.data[0], from, (const void *)part.data[1], walk<2>(part));
        });
    });
}

tr_status copy_into(const job &j, const tr_device_tensor &y, const tr_device_tensor &x)
{
    const tr_device_tensor *tensors[] = {&y, &x};
    loop l = loop_of(y.shape, tensors, 2);
    if (l.count == 0) return TR_OK;
    if (x.dtype != y.dtype) return convert_loop(j, l, y.dtype, x.dtype);
    return for_bytes(l.bytes[0], [&](auto t) { /* as bits */
        using T = typename decltype(t)::type;
        if (loop_is_flat(l) && l.stride[1][0] == 1)
            return check_cuda(
                cudaMemcpyAsync(l.data[0], l.data[1], (size_t)l.count * sizeof(T), cudaMemcpyDeviceToDevice, j.stream),
                "copy");
        tr_status status = launch_transpose<T, T>(j, l);
        if (status != TR_DECLINED) return status;
        if (l.ndim == 2 && l.stride[0][1] == 1 && l.stride[1][1] == 1 && l.dim[1] >= 64) {
            dim3 grid((unsigned)least(parts_of(l.dim[1], 8 * BLOCK), GRID_LIMIT), (unsigned)least(l.dim[0], GRID_YZ_LIMIT));
            return LAUNCH(j, copy_rows<T>, grid, BLOCK, 0, (T *)l.data[0], (const T *)l.data[1], l.dim[0], l.dim[1],
                l.stride[0][0], l.stride[1][0]);
        }
        return loop_in_parts(l, [&](const loop &part) {
            return LAUNCH(j, copy_strided<T>, grid_for(part.count), BLOCK, 0, (T *)part.data[0],
                          (const T *)part.data[1], walk<2>(part));
        });
    });
}

tr_status cuda_copy(const job &j)
{
    return copy_into(j, j.out(0), j.in(0));
}

/* ---- Fills ------------------------------------------------------------------------------------------------------- */

template <class T> __global__ void fill_kernel(T *to, T value, walk<1> w)
{
    FOR_EACH_OF(i, w.count)
    {
        int64_t place[1];
        w.at((uint32_t)i, place);
        to[place[0]] = value;
    }
}

tr_status fill(const job &j, const tr_device_tensor &y, double value)
{
    const tr_device_tensor *tensors[] = {&y};
    loop l = loop_of(y.shape, tensors, 1);
    return loop_in_parts(l, [&](const loop &part) {
        return for_any(y.dtype, [&](auto t) {
            using T = typename decltype(t)::type;
            if (loop_is_flat(part) && value == 0 && !signbit(value))
                return check_cuda(cudaMemsetAsync(part.data[0], 0, (size_t)part.count * sizeof(T), j.stream), "fill");
            return LAUNCH(j, fill_kernel<T>, grid_for(part.count), BLOCK, 0, (T *)part.data[0], from_double<T>(value),
                walk<1>(part));
        });
    });
}

tr_status cuda_fill(const job &j)
{
    return fill(j, j.out(0), j.attrs<tr_fill_attrs>().value);
}
