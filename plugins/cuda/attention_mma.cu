/*
 * Attention of 16-bit numbers on tensor cores, for heads of up to 128: the formulas are attention.cu's. A block of four
 * warps has ROWS rows of one (batch, head), 16 to a warp, and walks over the other side in tiles that are copied while
 * the tile before is worked on. Scores stay in registers: as the fragments that one mma makes them they are the left
 * operand of the next. Products are summed in float; weights and ds are rounded to 16 bits on their way into a product.
 *
 * Backward runs over queries for dq and over keys for dk and dv, which computes scores twice and adds in a fixed order.
 */
#include "attention.h"

namespace {

constexpr int THREADS = 128, ROWS = 64;
constexpr float LOG2_E = 1.4426950408889634f;

template <class T> __device__ unsigned pair_of(float x, float y)
{
    if constexpr (std::is_same_v<T, __half>) return bits_as<unsigned>(__floats2half2_rn(x, y));
    else return bits_as<unsigned>(__floats2bfloat162_rn(x, y));
}

/* ---- Tiles of rows of D elements in shared memory ---------------------------------------------------------------- */

/* Where 8 elements of a row lie: rows' order of them differs, so that ldmatrix finds eight rows in different banks. */
template <int D> __device__ int place(int row, int chunk)
{
    return row * D + (chunk ^ row % 8) * 8;
}

/* tile[r][d] = x[first + r][d] for N rows; zeros outside. */
template <class T, int D, int N>
__device__ void copy_tile(T *tile, const heads &x, int64_t base, int first, int rows, int dim)
{
    const T *from = (const T *)x.data + base;
#pragma unroll
    for (int e = threadIdx.x; e < N * D / 8; e += THREADS) {
        int row = e / (D / 8), chunk = e % (D / 8);
        bool inside = first + row < rows && chunk * 8 < dim;
        tr_cp_async16(tile + place<D>(row, chunk), from + (first + row) * x.stride[2] + chunk * 8, inside);
    }
}

/* s[16, N] += the warp's rows of own times other^T. */
template <class T, int D, int N> __device__ void add_scores(float (&s)[N / 8][4], const T *own, const T *other)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        unsigned x[4], y[4];
        tr_ldmatrix<4>(x, own + place<D>(warp * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            tr_ldmatrix<4>(y, other + place<D>(n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            tr_mma<T>(s[2 * n], x, {y[0], y[1]});
            tr_mma<T>(s[2 * n + 1], x, {y[2], y[3]});
        }
    }
}

/* sum[16, D] += p[16, N] other. */
template <class T, int D, int N>
__device__ void add_product(float (&sum)[D / 8][4], const float (&p)[N / 8][4], const T *other)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        const float(&left)[4] = p[2 * k], (&right)[4] = p[2 * k + 1];
        unsigned y[4], x[4] = {pair_of<T>(left[0], left[1]), pair_of<T>(left[2], left[3]),
                               pair_of<T>(right[0], right[1]), pair_of<T>(right[2], right[3])};
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            tr_ldmatrix<4, true>(y, other + place<D>(k * 16 + lane % 16, 2 * n + lane / 16));
            tr_mma<T>(sum[2 * n], x, {y[0], y[1]});
            tr_mma<T>(sum[2 * n + 1], x, {y[2], y[3]});
        }
    }
}

/* ---- Rows of a warp: a thread has parts of the rows `row` and row + 8, two columns of each 8 --------------------- */

__device__ int row_of_thread(int first) { return first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ int column_of_thread() { return threadIdx.x % 4 * 2; }

/* May some of these queries not see some of these keys? */
__device__ bool is_edge(const attention &a, int query, int queries, int key, int keys)
{
    return a.mask.data || query + queries > a.queries || key + keys > a.keys ||
           (a.causal && key + keys - 1 > query + a.keys - a.queries);
}

/* The scores of what is not seen become -infinity. BY_KEY: rows are keys, columns queries. */
template <int N, bool BY_KEY>
__device__ void hide(float (&s)[N / 8][4], const attention &a, int64_t mask_base, int row, int column)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = row + e / 2 * 8, c = column + n * 8 + e % 2;
            if (!may_see(a, mask_base, BY_KEY ? c : r, BY_KEY ? r : c)) s[n][e] = -INFINITY;
        }
}

/* to[row] = x * factor; x[..][2 h], x[..][2 h + 1] are of row + 8 h. */
template <class T, int D>
__device__ void store_rows(const heads &to, int64_t base, const float (&x)[D / 8][4], const float (&factor)[2], int row,
                           int rows, int dim)
{
    for (int h = 0; h < 2; h++) {
        if (row + 8 * h >= rows) continue;
        T *at = (T *)to.data + base + (row + 8 * h) * to.stride[2] + column_of_thread();
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            if (n * 8 < dim)
                *(unsigned *)(at + n * 8) = pair_of<T>(x[n][2 * h] * factor[h], x[n][2 * h + 1] * factor[h]);
    }
}

/* Which (batch, head) and which rows a block works on; blocks with many keys to see come first. */
struct block_place {
    int64_t batch, head;
    int first;
    __device__ block_place(const attention &a, int tiles, bool last_first)
    {
        int number = blockIdx.x / tiles, tile = blockIdx.x % tiles;
        batch = number / a.heads_n;
        head = number % a.heads_n;
        first = (last_first ? tiles - 1 - tile : tile) * ROWS;
    }
    __device__ int64_t of(const heads &x) const { return x.at(batch, head); }
};

/* The end of the keys that queries from `first` on, ROWS of them, see. */
__device__ int end_of_keys(const attention &a, int first)
{
    int last = first + ROWS < a.queries ? first + ROWS : (int)a.queries;
    int end = a.causal ? last + (int)(a.keys - a.queries) : (int)a.keys;
    return end < a.keys ? end : (int)a.keys;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* s: scores of another N keys, as powers of two; becomes weights relative to the highest score so far. out and sum hold
 * what the keys before gave, relative to `top`. */
template <int D, int N>
__device__ void soften(float (&s)[N / 8][4], float (&out)[D / 8][4], float (&top)[2], float (&sum)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float highest = top[h], added = 0;
#pragma unroll
        for (int n = 0; n < N / 8; n++) highest = fmaxf(highest, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        highest = row_max<4>(highest);
        float base = highest == -INFINITY ? 0.0f : highest, shrink = tr_exp2(top[h] - base);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) added += s[n][e] = tr_exp2(s[n][e] - base);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            out[n][2 * h] *= shrink;
            out[n][2 * h + 1] *= shrink;
        }
        sum[h] = sum[h] * shrink + added; /* of this thread's columns */
        top[h] = highest;
    }
}

constexpr int KEYS = 64;

template <class T, int D>
__global__ void __launch_bounds__(THREADS) forward_mma(const __grid_constant__ attention a, int tiles)
{
#if defined(TR_CUDA_EMULATED) || __CUDA_ARCH__ >= 800
    TR_DYNAMIC_SHARED(T, shared);
    T *q = shared, *others = q + ROWS * D; /* [2 stages][k, v][KEYS][D] */
    block_place at(a, tiles, a.causal);
    int dim = (int)a.dim, keys = (int)a.keys, end = end_of_keys(a, at.first), row = row_of_thread(at.first);
    int64_t of_k = at.of(a.k), of_v = at.of(a.v);
    float out[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {}, scale = (float)a.scale * LOG2_E;

    copy_tile<T, D, ROWS>(q, a.q, at.of(a.q), at.first, (int)a.queries, dim);
    copy_tile<T, D, KEYS>(others, a.k, of_k, 0, keys, dim);
    copy_tile<T, D, KEYS>(others + KEYS * D, a.v, of_v, 0, keys, dim);
    tr_cp_async_commit();
    for (int key = 0, stage = 0; key < end; key += KEYS, stage ^= 1) {
        T *k = others + stage * 2 * KEYS * D, *next = others + (stage ^ 1) * 2 * KEYS * D;
        tr_cp_async_wait<0>();
        __syncthreads(); /* this tile is there, and the last one has been read */
        if (key + KEYS < end) {
            copy_tile<T, D, KEYS>(next, a.k, of_k, key + KEYS, keys, dim);
            copy_tile<T, D, KEYS>(next + KEYS * D, a.v, of_v, key + KEYS, keys, dim);
            tr_cp_async_commit();
        }
        float s[KEYS / 8][4] = {};
        add_scores<T, D, KEYS>(s, q, k);
#pragma unroll
        for (int e = 0; e < KEYS / 2; e++) s[e / 4][e % 4] *= scale;
        if (is_edge(a, at.first, ROWS, key, KEYS))
            hide<KEYS, false>(s, a, at.of(a.mask), row, key + column_of_thread());
        soften<D, KEYS>(s, out, top, sum);
        add_product<T, D, KEYS>(out, s, k + KEYS * D);
    }
    tr_cp_async_wait<0>(); /* of a block that sees no key */
    for (int h = 0; h < 2; h++) {
        sum[h] = row_sum<4>(sum[h]);
        bool none = sum[h] == 0.0f; /* no key was seen */
        if (threadIdx.x % 4 == 0 && row + 8 * h < a.queries)
            ((float *)a.lse.data)[at.of(a.lse) + (row + 8 * h) * a.lse.stride[2]] =
                none ? -INFINITY : top[h] / LOG2_E + logf(sum[h]);
        sum[h] = none ? 0.0f : 1.0f / sum[h];
    }
    store_rows<T, D>(a.o, at.of(a.o), out, sum, row, (int)a.queries, dim);
#endif
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* lse, as a power of two, or delta of a query; 0 past the last query. */
__device__ float term_of(const attention &a, const float *delta, const block_place &at, int query, bool is_lse)
{
    if (query >= a.queries) return 0;
    if (!is_lse) return delta[(at.batch * a.heads_n + at.head) * a.queries + query];
    return ((const float *)a.lse.data)[at.of(a.lse) + query * a.lse.stride[2]] * LOG2_E;
}

/* BY_KEY: rows are keys, which walk over queries, for dk and dv; otherwise rows are queries, which walk over keys, for
 * dq. Either way
 *   s = own[0] other[0]^T    dp = own[1] other[1]^T    dq or dk = ds other[0]    dv = p other[1]
 * with [0]: q or k, [1]: g or v. N: rows of a tile of the other side. */
template <class T, int D, int N, bool BY_KEY>
__global__ void __launch_bounds__(THREADS, D == 64 && !BY_KEY ? 3 : 2)
backward_mma(const __grid_constant__ attention a, const float *delta, int tiles)
{
#if defined(TR_CUDA_EMULATED) || __CUDA_ARCH__ >= 800
    TR_DYNAMIC_SHARED(T, shared);
    T *own = shared, *others = own + 2 * ROWS * D; /* [2][ROWS][D], [2 stages][2][N][D] */
    float *columns = (float *)(others + 4 * N * D); /* [2 stages][lse, delta][N] of the other side's queries */
    const heads &own0 = BY_KEY ? a.k : a.q, &own1 = BY_KEY ? a.v : a.g;
    const heads &other0 = BY_KEY ? a.q : a.k, &other1 = BY_KEY ? a.g : a.v;
    block_place at(a, tiles, !BY_KEY && a.causal);
    int dim = (int)a.dim, rows = (int)(BY_KEY ? a.keys : a.queries), others_n = (int)(BY_KEY ? a.queries : a.keys);
    int row = row_of_thread(at.first), column = column_of_thread(), t = threadIdx.x;
    /* With a causal mask the first query that sees a key of the block's is first + queries - keys. */
    int begin = BY_KEY && a.causal ? at.first + (int)(a.queries - a.keys) : 0;
    int end = BY_KEY ? others_n : end_of_keys(a, at.first);
    float lse[2], of_delta[2], sum[D / 8][4] = {}, of_v[BY_KEY ? D / 8 : 1][4] = {}, scale = (float)a.scale * LOG2_E;
    begin = begin > 0 ? begin / N * N : 0;

    copy_tile<T, D, ROWS>(own, own0, at.of(own0), at.first, rows, dim);
    copy_tile<T, D, ROWS>(own + ROWS * D, own1, at.of(own1), at.first, rows, dim);
    copy_tile<T, D, N>(others, other0, at.of(other0), begin, others_n, dim);
    copy_tile<T, D, N>(others + N * D, other1, at.of(other1), begin, others_n, dim);
    tr_cp_async_commit();
    if (BY_KEY && t < 2 * N) columns[t] = term_of(a, delta, at, begin + t % N, t < N);
    for (int h = 0; h < 2 && !BY_KEY; h++) {
        lse[h] = term_of(a, delta, at, row + 8 * h, true);
        of_delta[h] = term_of(a, delta, at, row + 8 * h, false);
    }
    for (int other = begin, stage = 0; other < end; other += N, stage ^= 1) {
        T *tile = others + stage * 2 * N * D, *next = others + (stage ^ 1) * 2 * N * D;
        const float *of_column = columns + stage * 2 * N + column;
        float carried = 0, s[N / 8][4] = {}, dp[N / 8][4] = {};
        bool more = other + N < end;
        tr_cp_async_wait<0>();
        __syncthreads(); /* this tile is there, and the last one has been read */
        if (more) {
            copy_tile<T, D, N>(next, other0, at.of(other0), other + N, others_n, dim);
            copy_tile<T, D, N>(next + N * D, other1, at.of(other1), other + N, others_n, dim);
            tr_cp_async_commit();
            if (BY_KEY && t < 2 * N) carried = term_of(a, delta, at, other + N + t % N, t < N);
        }
        add_scores<T, D, N>(s, own, tile);
        add_scores<T, D, N>(dp, own + ROWS * D, tile + N * D);
#pragma unroll
        for (int e = 0; e < N / 2; e++) /* element e % 4 of s[e / 4] */
            s[e / 4][e % 4] = s[e / 4][e % 4] * scale - (BY_KEY ? of_column[e / 4 * 8 + e % 2] : lse[e % 4 / 2]);
        if (BY_KEY ? is_edge(a, other, N, at.first, ROWS) : is_edge(a, at.first, ROWS, other, N))
            hide<N, BY_KEY>(s, a, at.of(a.mask), row, other + column);
#pragma unroll
        for (int e = 0; e < N / 2; e++) {
            float p = tr_exp2(s[e / 4][e % 4]);
            s[e / 4][e % 4] = p;
            dp[e / 4][e % 4] =
                p * (dp[e / 4][e % 4] - (BY_KEY ? of_column[N + e / 4 * 8 + e % 2] : of_delta[e % 4 / 2]));
        }
        if constexpr (BY_KEY) add_product<T, D, N>(of_v, s, tile + N * D);
        add_product<T, D, N>(sum, dp, tile);
        if (BY_KEY && more && t < 2 * N) columns[(stage ^ 1) * 2 * N + t] = carried;
    }
    tr_cp_async_wait<0>(); /* of a block that sees nothing */
    const heads &to = BY_KEY ? a.dk : a.dq;
    const float factor[2] = {(float)a.scale, (float)a.scale}, one[2] = {1, 1};
    store_rows<T, D>(to, at.of(to), sum, factor, row, rows, dim);
    if constexpr (BY_KEY) store_rows<T, D>(a.dv, at.of(a.dv), of_v, one, row, rows, dim);
#endif
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* Vectors of 16 bytes are copied. */
bool is_aligned(const heads &x)
{
    return (uintptr_t)x.data % 16 == 0 && x.stride[0] % 8 == 0 && x.stride[1] % 8 == 0 && x.stride[2] % 8 == 0 &&
           (x.stride[3] == 1 || !x.data);
}

/* f(type, size) for the call's dtype and the least size of heads that has kernels. */
template <class F> tr_status for_kernels(const attention &a, F f)
{
    auto by_size = [&](auto type) {
        return a.dim <= 64 ? f(type, std::integral_constant<int, 64>()) : f(type, std::integral_constant<int, 128>());
    };
    return a.dtype == TR_F16 ? by_size(type_of<__half>()) : by_size(type_of<__nv_bfloat16>());
}

} // namespace

bool fits_tensor_cores(const job &j, const attention &a)
{
    int major = 0;
    if ((a.dtype != TR_F16 && a.dtype != TR_BF16) || a.dim % 8 || a.dim > 128) return false;
    if (most(a.queries, a.keys) > INT32_MAX / 4) return false;
    for (const heads *x : {&a.q, &a.k, &a.v, &a.o, &a.g, &a.dq, &a.dk, &a.dv})
        if (!is_aligned(*x)) return false;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, j.call.index) == cudaSuccess && major >= 8;
}

tr_status attention_forward_mma(const job &j, const attention &a)
{
    int64_t tiles = parts_of(a.queries, ROWS), blocks = a.batch * a.heads_n * tiles;
    if (blocks > GRID_LIMIT) return TR_DECLINED;
    if (blocks == 0) return TR_OK;
    return for_kernels(a, [&](auto type, auto size) -> tr_status {
        using T = typename decltype(type)::type;
        constexpr int D = decltype(size)::value;
        constexpr size_t bytes = sizeof(T) * (ROWS + 4 * KEYS) * D;
        auto kernel = forward_mma<T, D>;
        TRY(allow_shared(j, kernel, bytes));
        return LAUNCH(j, kernel, (unsigned)blocks, (unsigned)THREADS, bytes, a, (int)tiles);
    });
}

tr_status attention_backward_mma(const job &j, const attention &a, const float *delta)
{
    int64_t heads_n = a.batch * a.heads_n, query_tiles = parts_of(a.queries, ROWS), key_tiles = parts_of(a.keys, ROWS);
    if (heads_n * most(query_tiles, key_tiles) > GRID_LIMIT) return TR_DECLINED;
    return for_kernels(a, [&](auto type, auto size) -> tr_status {
        using T = typename decltype(type)::type;
        constexpr int D = decltype(size)::value, N = D == 64 ? 64 : 32; /* registers are short */
        constexpr size_t bytes = sizeof(T) * (2 * ROWS + 4 * N) * D + sizeof(float) * 4 * N;
        auto by_query = backward_mma<T, D, N, false>, by_key = backward_mma<T, D, N, true>;
        TRY(allow_shared(j, by_query, bytes));
        TRY(allow_shared(j, by_key, bytes));
        if (heads_n * query_tiles > 0)
            TRY(LAUNCH(j, by_query, (unsigned)(heads_n * query_tiles), (unsigned)THREADS, bytes, a, delta,
                       (int)query_tiles));
        if (heads_n * key_tiles == 0) return TR_OK;
        return LAUNCH(j, by_key, (unsigned)(heads_n * key_tiles), (unsigned)THREADS, bytes, a, delta, (int)key_tiles);
    });
}
