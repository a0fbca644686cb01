/*
 * Attention: o = softmax(q k^T * scale + mask) v, and its gradients, after Dao et al. (FlashAttention, 2022; -2, 2023):
 * the [queries, keys] matrix is never stored. Forward keeps lse, the log-sum-exp of each query's scores, from which
 * backward makes the probabilities again:
 *
 *   p = exp(q k^T * scale - lse)   delta = rowsum(g * o)   ds = p * (g v^T - delta)
 *   dq = ds k * scale              dk = ds^T q * scale     dv = p^T g
 *
 * A query that sees no key gives zeros and gets no gradient. Backward runs once over queries, for dq, and once over
 * keys, for dk and dv: what it writes is added up by one block in a fixed order.
 *
 * A block of 128 threads has ROWS rows of one (batch, head) and walks over the other side ROWS at a time, through
 * shared memory; LANES threads share a row. DIM is the heads' size, rounded up.
 */
#include "attention.h"

#include "elementwise.h"

/* ---- Calls as heads ---------------------------------------------------------------------------------------------- */

static heads heads_of(const tr_device_tensor &x)
{
    heads h = {x.data, {0, 0, 0, 0}};
    for (int d = 0; d < x.shape.ndim; d++) h.stride[d] = x.stride[d];
    return h;
}

/* Broadcast to [batch, heads, queries, keys]. */
static heads mask_of(const tr_device_tensor &mask)
{
    heads h = {mask.data, {0, 0, 0, 0}};
    for (int d = 0; d < mask.shape.ndim; d++)
        h.stride[4 - mask.shape.ndim + d] = mask.shape.dim[d] == 1 ? 0 : mask.stride[d];
    return h;
}

/* x: [batch, seq, parts * heads * dim]: the heads of one part. */
static heads packed_part(const tr_device_tensor &x, int part, int64_t n, int64_t dim)
{
    int64_t one = x.stride[2], from = part * n * dim * one;
    return heads{(char *)x.data + from * (int64_t)host->dtype_size(x.dtype),
                 {x.stride[0], dim * one, x.stride[1], one}};
}

/* The call's tensors as heads. packed: q, k and v are the parts of one tensor, and so are their gradients. */
static attention attention_of(const job &j, bool packed, bool grad)
{
    const tr_attention_attrs &attrs = j.attrs<tr_attention_attrs>();
    const tr_device_tensor *in = j.call.inputs + grad, *kept = in + (packed ? 1 : 4); /* kept: o and lse, of gradients */
    const tr_device_tensor &q = in[0], &k = in[packed ? 0 : 1];
    attention a = {};
    a.dtype = q.dtype;
    a.batch = q.shape.dim[0];
    a.heads_n = packed ? attrs.heads : q.shape.dim[1];
    a.queries = q.shape.dim[packed ? 1 : 2];
    a.keys = k.shape.dim[packed ? 1 : 2];
    a.dim = packed ? q.shape.dim[2] / 3 / a.heads_n : q.shape.dim[3];
    a.causal = attrs.causal;
    bool given = attrs.scale != 0 || signbit(attrs.scale); /* TR_ZERO means zero */
    a.scale = given ? attrs.scale : a.dim ? 1 / sqrt((double)a.dim) : 1;
    auto part = [&](const tr_device_tensor *of, int i) {
        return packed ? packed_part(*of, i, a.heads_n, a.dim) : heads_of(of[i]);
    };
    a.q = part(in, 0);
    a.k = part(in, 1);
    a.v = part(in, 2);
    if (!packed && j.has_in(grad + 3)) a.mask = mask_of(in[3]);
    a.o = part(grad ? kept : j.call.outputs, 0);
    a.lse = heads_of(grad ? kept[1] : j.out(1));
    if (!grad) return a;
    a.g = part(j.call.inputs, 0);
    a.dq = part(j.call.outputs, 0);
    a.dk = part(j.call.outputs, 1);
    a.dv = part(j.call.outputs, 2);
    return a;
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

constexpr int ATTENTION_THREADS = 128;
constexpr int BLOCKS = 4; /* on a multiprocessor at once: what its shared memory has room for */

/* ROWS for a size: four tiles of ROWS * DIM numbers take 32 KB. */
template <class C, int DIM> struct tile_of {
    static constexpr int FIT = (int)(8192 / sizeof(C)) / DIM;
    static constexpr int ROWS = FIT > 32 ? 32 : FIT;
    static constexpr int LANES = ATTENTION_THREADS / ROWS; /* at most 32, so they are of one warp */
    static constexpr int WIDTH = DIM + 1;                  /* so that neighbouring rows lie in different banks */
    static constexpr int SIZE = ROWS * WIDTH;
};

/* tile[r][d] = x[first + r][d]; zeros outside. */
template <class C, int DIM>
__device__ void load_tile(C *tile, const attention &a, const heads &x, int64_t base, int64_t first, int64_t rows)
{
    for (int e = threadIdx.x; e < tile_of<C, DIM>::ROWS * DIM; e += ATTENTION_THREADS) {
        int r = e / DIM, d = e % DIM;
        bool inside = first + r < rows && d < a.dim;
        tile[r * tile_of<C, DIM>::WIDTH + d] =
            inside ? load_as<C>(a.dtype, x.data, base + (first + r) * x.stride[2] + d * x.stride[3]) : C(0);
    }
}

template <class C, int DIM> __device__ C dot_rows(const C *a, const C *b)
{
    C sum = 0;
#pragma unroll 8
    for (int d = 0; d < DIM; d++) sum += a[d] * b[d];
    return sum;
}

/* Which (batch, head) and which rows a block works on. */
struct block_place { int64_t batch, head, first; };
__device__ static block_place place_of(const attention &a, int64_t tiles, int rows)
{
    int64_t number = blockIdx.x / tiles;
    return block_place{number / a.heads_n, number % a.heads_n, blockIdx.x % tiles * rows};
}

/* The end of the keys that so many queries from `first` on see. */
__device__ static int64_t end_of_keys(const attention &a, int64_t first, int queries)
{
    int64_t last = first + queries < a.queries ? first + queries : a.queries;
    return a.causal ? last + a.keys - a.queries : a.keys;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

template <class C, int DIM>
__global__ void __launch_bounds__(ATTENTION_THREADS, BLOCKS)
attention_forward(const __grid_constant__ attention a, int64_t tiles)
{
    using tile = tile_of<C, DIM>;
    constexpr int ROWS = tile::ROWS, LANES = tile::LANES, PER_LANE = (DIM + LANES - 1) / LANES,
                  KEYS = (ROWS + LANES - 1) / LANES;
    TR_DYNAMIC_SHARED(C, shared);
    C *q = shared, *k = q + tile::SIZE, *v = k + tile::SIZE, *p = v + tile::SIZE; /* p: [ROWS][ROWS + 1] */
    const C infinity = C(INFINITY);
    block_place at = place_of(a, tiles, ROWS);
    int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int64_t i = at.first + row, mask_base = a.mask.at(at.batch, at.head);
    int64_t end = end_of_keys(a, at.first, ROWS);
    C top = -infinity, sum = 0, out[PER_LANE] = {};

    load_tile<C, DIM>(q, a, a.q, a.q.at(at.batch, at.head), at.first, a.queries);
    for (int64_t key = 0; key < end; key += ROWS) {
        __syncthreads(); /* the last tile has been read */
        load_tile<C, DIM>(k, a, a.k, a.k.at(at.batch, at.head), key, a.keys);
        load_tile<C, DIM>(v, a, a.v, a.v.at(at.batch, at.head), key, a.keys);
        __syncthreads();

        C score[KEYS], highest = top;
        bool seen[KEYS];
        for (int e = 0; e < KEYS; e++) {
            int c = lane + e * LANES;
            seen[e] = c < ROWS && may_see(a, mask_base, i, key + c);
            score[e] = seen[e] ? dot_rows<C, DIM>(q + row * tile::WIDTH, k + c * tile::WIDTH) * (C)a.scale : -infinity;
            highest = score[e] > highest ? score[e] : highest;
        }
        highest = row_max<LANES>(highest);
        C shrink = top == highest ? C(1) : exp(top - highest), added = 0;
        for (int e = 0; e < KEYS; e++) {
            int c = lane + e * LANES;
            C weight = seen[e] ? exp(score[e] - highest) : C(0);
            if (c < ROWS) p[row * (ROWS + 1) + c] = weight;
            added += weight;
        }
        sum = sum * shrink + row_sum<LANES>(added);
        top = highest;
        __syncthreads();
        for (int e = 0; e < PER_LANE; e++) {
            int d = lane + e * LANES;
            C value = out[e] * shrink;
            if (d < DIM)
                for (int c = 0; c < ROWS; c++) value += p[row * (ROWS + 1) + c] * v[c * tile::WIDTH + d];
            out[e] = value;
        }
    }
    if (i >= a.queries) return;
    bool none = sum == C(0); /* no key was seen */
    for (int e = 0; e < PER_LANE; e++) {
        int64_t d = lane + e * LANES;
        if (d < a.dim)
            store_as<C>(a.dtype, a.o.data, a.o.at(at.batch, at.head) + i * a.o.stride[2] + d * a.o.stride[3],
                none ? C(0) : out[e] / sum);
    }
    if (lane == 0)
        ((C *)a.lse.data)[a.lse.at(at.batch, at.head) + i * a.lse.stride[2]] = none ? -infinity : top + log(sum);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* delta: [batch * heads, queries] = rowsum(g * o), by blockDim.x neighbouring lanes each. packed: rows are read by 16 bytes. */
template <class T>
__global__ void attention_delta(compute_of<T> *delta, const __grid_constant__ attention a, bool packed)
{
    using C = compute_of<T>;
    constexpr int V = 16 / sizeof(T);
    int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, packs = packed ? a.dim / V : 0;
    bool mine = i < a.queries;
    for (int64_t batch = blockIdx.z; batch < a.batch; batch += gridDim.z)
        for (int64_t head = blockIdx.y; head < a.heads_n; head += gridDim.y) {
            const T *g = (const T *)a.g.data + a.g.at(batch, head) + i * a.g.stride[2],
                    *o = (const T *)a.o.data + a.o.at(batch, head) + i * a.o.stride[2];
            C sum = 0;
            for (int64_t p = threadIdx.x; mine && p < packs; p += blockDim.x) {
                pack<T, V> of_g = ((const pack<T, V> *)g)[p], of_o = ((const pack<T, V> *)o)[p];
#pragma unroll
                for (int e = 0; e < V; e++) sum += wide(of_g.at[e]) * wide(of_o.at[e]);
            }
            for (int64_t d = packs * V + threadIdx.x; mine && d < a.dim; d += blockDim.x)
                sum += wide(g[d * a.g.stride[3]]) * wide(o[d * a.o.stride[3]]);
            for (int mask = blockDim.x / 2; mask; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
            if (mine && threadIdx.x == 0) delta[(batch * a.heads_n + head) * a.queries + i] = sum;
        }
}

static bool in_packs(const heads &x, int64_t each)
{
    return (uintptr_t)x.data % 16 == 0 && x.stride[3] == 1 && x.stride[0] % each == 0 && x.stride[1] % each == 0 &&
           x.stride[2] % each == 0;
}

static tr_status find_delta(const job &j, const attention &a, void *delta)
{
    if (a.batch * a.heads_n * a.queries == 0) return TR_OK;
    return for_float(a.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        constexpr int64_t V = 16 / sizeof(T);
        bool packed = in_packs(a.g, V) && in_packs(a.o, V);
        unsigned lanes = 1;
        while (lanes < 32 && lanes < (packed ? parts_of(a.dim, V) : a.dim)) lanes *= 2;
        dim3 block(lanes, BLOCK / lanes);
        dim3 grid((unsigned)parts_of(a.queries, block.y), (unsigned)least(a.heads_n, GRID_YZ_LIMIT),
                  (unsigned)least(a.batch, GRID_YZ_LIMIT));
        return LAUNCH(j, attention_delta<T>, grid, block, 0, (compute_of<T> *)delta, a, packed);
    });
}

/* BY_KEY: rows are keys, which walk over queries, for dk and dv; otherwise rows are queries, which walk over keys, for dq. Either
 * way, with [0]: q or k, [1]: g or v,
 *   ds = p * (own[1] other[1]^T - delta)    dq or dk = ds other[0] * scale    dv = p other[1] */
template <class C, int DIM, bool BY_KEY>
__global__ void __launch_bounds__(ATTENTION_THREADS, BLOCKS)
attention_backward(const __grid_constant__ attention a, const C *delta, int64_t tiles)
{
    using tile = tile_of<C, DIM>;
    constexpr int ROWS = tile::ROWS, LANES = tile::LANES, PER_LANE = (DIM + LANES - 1) / LANES,
                  EACH = (ROWS + LANES - 1) / LANES;
    TR_DYNAMIC_SHARED(C, shared);
    C *own0 = shared, *own1 = own0 + tile::SIZE, *other0 = own1 + tile::SIZE, *other1 = other0 + tile::SIZE;
    C *ds = other1 + tile::SIZE, *p = ds + ROWS * (ROWS + 1); /* both [ROWS][other ROWS + 1]; p: by key */
    const heads &of_own0 = BY_KEY ? a.k : a.q, &of_own1 = BY_KEY ? a.v : a.g;
    const heads &of_other0 = BY_KEY ? a.q : a.k, &of_other1 = BY_KEY ? a.g : a.v;
    block_place at = place_of(a, tiles, ROWS);
    int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int64_t rows = BY_KEY ? a.keys : a.queries, others = BY_KEY ? a.queries : a.keys, i = at.first + row;
    /* With a causal mask the first query that sees a key of the block's is at.first + queries - keys. */
    int64_t first = BY_KEY && a.causal ? at.first + a.queries - a.keys : 0, end = BY_KEY ? others : end_of_keys(a, at.first, ROWS);
    int64_t mask_base = a.mask.at(at.batch, at.head);
    const C *lse = (const C *)a.lse.data + a.lse.at(at.batch, at.head);
    C own_lse = 0, own_delta = 0, sum[PER_LANE] = {}, of_v[BY_KEY ? PER_LANE : 1] = {};
    delta += (at.batch * a.heads_n + at.head) * a.queries;
    if (!BY_KEY && i < rows) {
        own_lse = lse[i * a.lse.stride[2]];
        own_delta = delta[i];
    }

    load_tile<C, DIM>(own0, a, of_own0, of_own0.at(at.batch, at.head), at.first, rows);
    load_tile<C, DIM>(own1, a, of_own1, of_own1.at(at.batch, at.head), at.first, rows);
    for (int64_t other = first > 0 ? first / ROWS * ROWS : 0; other < end; other += ROWS) {
        __syncthreads(); /* the last tile has been read */
        load_tile<C, DIM>(other0, a, of_other0, of_other0.at(at.batch, at.head), other, others);
        load_tile<C, DIM>(other1, a, of_other1, of_other1.at(at.batch, at.head), other, others);
        __syncthreads();
        for (int e = 0; e < EACH; e++) {
            int c = lane + e * LANES;
            int64_t query = BY_KEY ? other + c : i, key = BY_KEY ? i : other + c;
            if (c >= ROWS) continue;
            C weight = 0, made = 0;
            if (may_see(a, mask_base, query, key)) {
                C score = dot_rows<C, DIM>(own0 + row * tile::WIDTH, other0 + c * tile::WIDTH) * (C)a.scale;
                weight = exp(score - (BY_KEY ? lse[query * a.lse.stride[2]] : own_lse));
                made = weight * (dot_rows<C, DIM>(own1 + row * tile::WIDTH, other1 + c * tile::WIDTH) -
                                 (BY_KEY ? delta[query] : own_delta)) * (C)a.scale;
            }
            ds[row * (ROWS + 1) + c] = made;
            if (BY_KEY) p[row * (ROWS + 1) + c] = weight;
        }
        __syncthreads();
        for (int e = 0; e < PER_LANE; e++) {
            int d = lane + e * LANES;
            if (d < DIM)
                for (int c = 0; c < ROWS; c++) {
                    if constexpr (BY_KEY) of_v[e] += p[row * (ROWS + 1) + c] * other1[c * tile::WIDTH + d];
                    sum[e] += ds[row * (ROWS + 1) + c] * other0[c * tile::WIDTH + d];
                }
        }
    }
    if (i >= rows) return;
    const heads &to = BY_KEY ? a.dk : a.dq;
    for (int e = 0; e < PER_LANE; e++) {
        int64_t d = lane + e * LANES;
        if (d >= a.dim) continue;
        store_as<C>(a.dtype, to.data, to.at(at.batch, at.head) + i * to.stride[2] + d * to.stride[3], sum[e]);
        if constexpr (BY_KEY)
            store_as<C>(a.dtype, a.dv.data, a.dv.at(at.batch, at.head) + i * a.dv.stride[2] + d * a.dv.stride[3], of_v[e]);
    }
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* f(size) for the least DIM that has room for heads of dim. */
template <class F> static tr_status for_dim(const attention &a, F f)
{
    if (a.dim <= 32) return f(std::integral_constant<int, 32>());
    if (a.dim <= 64) return f(std::integral_constant<int, 64>());
    if (a.dim <= 128) return f(std::integral_constant<int, 128>());
    if (a.dim <= 256) return f(std::integral_constant<int, 256>());
    return host->fail(TR_UNSUPPORTED, "heads of %lld numbers: the kernels of cuda take at most 256", (long long)a.dim);
}

static tr_status run_forward(const job &j, const attention &a)
{
    if (fits_tensor_cores(j, a)) {
        tr_status status = cudnn_attention(j, a);
        if (status == TR_DECLINED) status = attention_forward_mma(j, a);
        if (status != TR_DECLINED) return status;
    }
    return for_compute(a.dtype, [&](auto type) {
        return for_dim(a, [&](auto dim) -> tr_status {
            using C = typename decltype(type)::type;
            using tile = tile_of<C, decltype(dim)::value>;
            int64_t tiles = parts_of(a.queries, tile::ROWS), blocks = a.batch * a.heads_n * tiles;
            size_t bytes = sizeof(C) * (3 * tile::SIZE + tile::ROWS * (tile::ROWS + 1));
            if (blocks == 0) return TR_OK;
            auto kernel = attention_forward<C, decltype(dim)::value>;
            TRY(allow_shared(j, kernel, bytes));
            return LAUNCH(j, kernel, (unsigned)blocks, ATTENTION_THREADS, bytes, a, tiles);
        });
    });
}

static tr_status run_backward(const job &j, const attention &a)
{
    bool fits = fits_tensor_cores(j, a);
    tr_status by_cudnn = fits ? cudnn_attention_grad(j, a) : TR_DECLINED;
    if (by_cudnn != TR_DECLINED) return by_cudnn;
    return for_compute(a.dtype, [&](auto type) {
        return for_dim(a, [&](auto dim) -> tr_status {
            using C = typename decltype(type)::type;
            using tile = tile_of<C, decltype(dim)::value>;
            int64_t rows = a.batch * a.heads_n * a.queries, of_one = sizeof(C);
            int64_t query_tiles = parts_of(a.queries, tile::ROWS), key_tiles = parts_of(a.keys, tile::ROWS);
            size_t square = tile::ROWS * (tile::ROWS + 1), bytes = sizeof(C) * (4 * tile::SIZE + 2 * square);
            scratch memory(j, (size_t)(rows * of_one));
            TRY(memory.status());
            C *delta = memory.template as<C>();
            TRY(find_delta(j, a, delta));
            if constexpr (std::is_same_v<C, float>) {
                tr_status status = fits ? attention_backward_mma(j, a, delta) : TR_DECLINED;
                if (status != TR_DECLINED) return status;
            }
            auto by_query = attention_backward<C, decltype(dim)::value, false>;
            auto by_key = attention_backward<C, decltype(dim)::value, true>;
            TRY(allow_shared(j, by_query, bytes));
            TRY(allow_shared(j, by_key, bytes));
            if (rows)
                TRY(LAUNCH(j, by_query, (unsigned)(a.batch * a.heads_n * query_tiles), ATTENTION_THREADS, bytes, a,
                           delta, query_tiles));
            if (a.batch * a.heads_n * a.keys == 0) return TR_OK;
            return LAUNCH(j, by_key, (unsigned)(a.batch * a.heads_n * key_tiles), ATTENTION_THREADS, bytes, a, delta,
                          key_tiles);
        });
    });
}

tr_status cuda_attention(const job &j) { return run_forward(j, attention_of(j, false, false)); }
tr_status cuda_attention_grad(const job &j) { return run_backward(j, attention_of(j, false, true)); }
tr_status cuda_self_attention(const job &j) { return run_forward(j, attention_of(j, true, false)); }
tr_status cuda_self_attention_grad(const job &j) { return run_backward(j, attention_of(j, true, true)); }
