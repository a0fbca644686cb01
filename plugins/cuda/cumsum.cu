/* Running sums along one dimension: a thread per line where there are many lines or they are short, else a block per
 * line. */
#include "families.h"
#include "thread_group.h"

constexpr int ITEMS = 4, SHORT = 64, MANY = 1 << 14;

/* Sums of integers wrap around. */
template <class T> using summed = std::conditional_t<is_float<T>, compute_of<T>, uint64_t>;

struct lines {
    axis x, y; /* of lines */
    int64_t n, x_step, y_step;
    bool reverse;
};

template <class To, class T> __global__ void cumsum_of_threads(To *y, const T *x, lines l)
{
    FOR_EACH_OF(line, l.x.n)
    {
        summed<T> sum = 0;
        const T *from = x + l.x.at(line);
        To *to = y + l.y.at(line);
        for (int64_t k = 0; k < l.n; k++) {
            int64_t i = l.reverse ? l.n - 1 - k : k;
            sum += (summed<T>)wide(from[i * l.x_step]);
            to[i * l.y_step] = narrow<To>((compute_of<To>)sum);
        }
    }
}

/* What the threads before this one have, and all together in *total. */
template <class A> __device__ static A sum_before(A mine, A *total)
{
    __shared__ A shared[2][BLOCK];
    int from = 0;
    shared[0][threadIdx.x] = mine;
    __syncthreads();
    for (unsigned step = 1; step < BLOCK; step *= 2, from = 1 - from) {
        A sum = shared[from][threadIdx.x];
        if (threadIdx.x >= step) sum = shared[from][threadIdx.x - step] + sum;
        shared[1 - from][threadIdx.x] = sum;
        __syncthreads();
    }
    A before = threadIdx.x ? shared[from][threadIdx.x - 1] : A(0);
    *total = shared[from][BLOCK - 1];
    __syncthreads();
    return before;
}

template <class To, class T> __global__ void cumsum_of_blocks(To *y, const T *x, lines l)
{
    using A = summed<T>;
    for (int64_t line = blockIdx.x; line < l.x.n; line += gridDim.x) {
        const T *from = x + l.x.at(line);
        To *to = y + l.y.at(line);
        A carried = 0;
        for (int64_t tile = 0; tile < l.n; tile += BLOCK * ITEMS) {
            A sum[ITEMS], total, before = 0;
            int64_t first = tile + threadIdx.x * ITEMS;
            for (int k = 0; k < ITEMS; k++) {
                int64_t i = l.reverse ? l.n - 1 - (first + k) : first + k;
                if (first + k < l.n) before += (A)wide(from[i * l.x_step]);
                sum[k] = before;
            }
            before = carried + sum_before(before, &total);
            for (int k = 0; k < ITEMS && first + k < l.n; k++) {
                int64_t i = l.reverse ? l.n - 1 - (first + k) : first + k;
                to[i * l.y_step] = narrow<To>((compute_of<To>)(before + sum[k]));
            }
            carried += total;
        }
    }
}

tr_status cuda_cumsum(const job &j)
{
    const tr_device_tensor &x = j.in(0), &y = j.out(0);
    const tr_cumsum_attrs &a = j.attrs<tr_cumsum_attrs>();
    uint32_t others = ~(1u << a.dim);
    lines l = {axis_in(x, others),  axis_in(y, others),  size_at(x, a.dim),
               stride_at(x, a.dim), stride_at(y, a.dim), a.reverse};
    if (l.x.n * l.n == 0) return TR_OK;
    bool by_threads = l.n <= SHORT || l.x.n >= MANY;
    return for_any(x.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        using To = std::conditional_t<is_float<T>, T, int64_t>;
        if (by_threads)
            return LAUNCH(j, (cumsum_of_threads<To, T>), grid_for(l.x.n), BLOCK, 0, (To *)y.data, (const T *)x.data, l);
        return LAUNCH(j, (cumsum_of_blocks<To, T>), (unsigned)least(l.x.n, GRID_LIMIT), BLOCK, 0, (To *)y.data,
            (const T *)x.data, l);
    });
}
