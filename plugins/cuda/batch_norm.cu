/*
 * Batch normalisation of each channel over the N numbers that all images have of it:
 *   y = xhat weight + bias, xhat = (x - mean) rstd, rstd = 1/sqrt(var + eps), var = mean((x - mean)^2)
 *   dbias = sum of g, dweight = sum of g xhat, dx = weight rstd (g - dbias/N - xhat dweight/N)
 * With mean and variance given they are constants: dx = weight rstd g.
 * batch_norm_relu: y = max(0, xhat weight + bias + residual); g is masked where y <= 0, and is the residual's gradient then.
 *
 * Blocks make a channel's sums, or parts of them; a second launch adds the parts in an order that only depends on the
 * shape and makes of each channel's sums a line, which a third launch applies: y = (x - centre) of_x + rest + g of_g.
 *
 * Channels-last images are rows of channels: a thread has a pack of 16 bytes of them, and walks over rows. What lies
 * otherwise is read element by element.
 */
#include "families.h"
#include "thread_group.h"

namespace {

constexpr int64_t PART = 2048, MOST_PARTS = 256;
constexpr int64_t SUMMING_BLOCKS = 4 * 132, WRITING_BLOCKS = 2 * 132; /* of rows: on an H100's 132 multiprocessors */

/* A vector of the channels, of any float dtype. */
struct channel_vector {
    const void *at; /* NULL: none */
    tr_dtype dtype;
    int64_t step;
    template <class C> __device__ C of(int64_t channel, C otherwise) const
    {
        return at ? load_as<C>(dtype, at, channel * step) : otherwise;
    }
};

channel_vector vector_of(const job &j, int i)
{
    return j.has_in(i) ? channel_vector{j.in(i).data, j.in(i).dtype, j.in(i).stride[0]}
                       : channel_vector{nullptr, TR_F32, 0};
}

/* ---- How tensors lie --------------------------------------------------------------------------------------------- */

template <class T> constexpr int PACK = 16 / sizeof(T);

/* N tensors as rows of channels, in packs. */
template <class T, int N> struct packed_rows {
    T *at[N];
    int64_t step[N]; /* elements from row to row */
    __device__ pack<std::remove_const_t<T>, PACK<T>> &of(int k, int64_t row, int64_t p) const
    {
        return *(pack<std::remove_const_t<T>, PACK<T>> *)(at[k] + row * step[k] + p * PACK<T>);
    }
};

/* Takes x as the k'th of them; false: it lies otherwise. */
template <class T, int N> bool take_rows(packed_rows<T, N> &rows, int k, const tr_device_tensor &x)
{
    axis channel = axis_in(x, 1u << 1), others = axis_in(x, ~(1u << 1));
    rows.at[k] = (T *)x.data;
    rows.step[k] = others.stride[0];
    return channel.n % PACK<T> == 0 && channel.stride[0] == 1 && others.n > 0 && others.ndim == 1 &&
           rows.step[k] % PACK<T> == 0 && (uintptr_t)x.data % 16 == 0;
}

template <class T> bool lies_in_rows(const tr_device_tensor &x)
{
    packed_rows<const T, 1> rows;
    return take_rows(rows, 0, x);
}

/* Blocks of threads for rows of so many packs: threadIdx.x has the pack, y the row. */
struct row_threads {
    dim3 block;
    int64_t columns; /* blocks side by side */

    explicit row_threads(int64_t packs)
    {
        unsigned x = 1;
        while (x < 32 && x < packs) x *= 2;
        block = dim3(x, BLOCK / x);
        columns = parts_of(packs, x);
    }
};

/* x with its channel's number beside each element, for walks: neighbours in dimension 1 lie 1 apart. */
tr_device_tensor channel_numbers(const tr_device_tensor &x)
{
    tr_device_tensor t = x;
    t.dtype = TR_U8;
    t.data = nullptr;
    for (int d = 0; d < t.shape.ndim; d++) t.stride[d] = d == 1;
    return t;
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* A channel's two sums, of N = 1 tensor, x: of its numbers about a centre, which is the channel's first so that a large
 * mean does not round the variance away, and of their squares; as a part, their mean and the sum of squares about it.
 * Of N = 2, x and g: of g, and of g times x about its mean. Of N = 3, x, g and y: the same of g masked where y <= 0. */

/* Of each channel: y = (x - centre) of_x + rest + g of_g. */
template <class C> struct lines { C *centre, *of_x, *rest, *of_g; };

/* A channel's numbers in chunks of `each`, which are dealt out to parts in turn; and the memory for those and the lines. */
template <class C> struct cuts {
    int64_t channels, numbers, parts, each; /* numbers: of a channel */
    int64_t rounds, left, rest;             /* every part has so many whole chunks, the first `left` one more; the rest */
    two<C> *of_part;                        /* [parts, channels] */
    lines<C> line;

    void deal(int64_t most_parts, int64_t chunk)
    {
        each = chunk;
        parts = most(1, least(most_parts, parts_of(numbers, each)));
        rounds = numbers / each / parts;
        left = numbers / each % parts;
        rest = numbers % each;
    }
    __device__ int64_t numbers_of(int64_t part) const
    {
        return (rounds + (part < left)) * each + (part == left ? rest : 0);
    }
};

template <int N, class C> __device__ inline void add_to(two<C> &s, C x, C g, C centre)
{
    s.first += N == 1 ? x - centre : g;
    s.second += (N == 1 ? x - centre : g) * (x - centre);
}

template <int N, class C> __device__ inline two<C> part_of(two<C> s, C centre, int64_t numbers)
{
    if (N != 1 || numbers <= 0) return s;
    C mean = s.first / (C)numbers, less = s.first * mean;
    return two<C>{centre + mean, s.second < C(INFINITY) ? s.second - less : s.second + (s.first - s.first)}; /* it overflows */
}

template <int N> constexpr int DEEP = 4 / N; /* rows that a thread reads at once */

/* Blocks side by side in y are parts. masked: where the masked g goes, of N = 3, if it is wanted. */
template <class T, int N>
__global__ void __launch_bounds__(BLOCK, 4)
sum_rows(cuts<compute_of<T>> cut, packed_rows<const T, N> in, const compute_of<T> *mean, packed_rows<T, 1> masked)
{
    using C = compute_of<T>;
    constexpr int V = PACK<T>;
    __shared__ C shared[2 * V][BLOCK + 4]; /* 4: fewer threads meet at a bank */
    int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, packs = cut.channels / V;
    two<C> s[V];
#pragma unroll
    for (int i = 0; i < V; i++) s[i] = two<C>{C(0), C(0)};
    if (p < packs) {
        C centre[V];
        pack<T, V> first = in.of(0, 0, p);
#pragma unroll
        for (int i = 0; i < V; i++) centre[i] = N == 1 ? (C)wide(first.at[i]) : mean[p * V + i];
        unsigned rows = (unsigned)cut.numbers, step = gridDim.y * (unsigned)cut.each;
        for (unsigned row = blockIdx.y * (unsigned)cut.each + threadIdx.y; row < rows; row += DEEP<N> * step) {
            pack<T, V> read[DEEP<N>][N];
#pragma unroll
            for (int d = 0; d < DEEP<N>; d++)
#pragma unroll
                for (int k = 0; k < N; k++)
                    if (row + d * step < rows) read[d][k] = in.of(k, row + d * step, p);
#pragma unroll
            for (int d = 0; d < DEEP<N>; d++)
                if (row + d * step < rows) {
                    pack<T, V> &g = read[d][N > 1];
                    if constexpr (N == 3) {
#pragma unroll
                        for (int i = 0; i < V; i++)
                            g.at[i] = wide(read[d][2].at[i]) <= C(0) ? T() : g.at[i];
                        if (masked.at[0]) masked.of(0, row + d * step, p) = g;
                    }
#pragma unroll
                    for (int i = 0; i < V; i++)
                        add_to<N, C>(s[i], wide(read[d][0].at[i]), wide(g.at[i]), centre[i]);
                }
        }
    }
    unsigned own = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int i = 0; i < V; i++) {
        shared[2 * i][own] = s[i].first;
        shared[2 * i + 1][own] = s[i].second;
    }
    __syncthreads();
    for (unsigned k = own; k < blockDim.x * V; k += BLOCK) {
        int64_t c = (int64_t)blockIdx.x * blockDim.x * V + k;
        if (c >= packs * V) break;
        two<C> all = {C(0), C(0)};
#pragma unroll 4
        for (unsigned at = k / V; at < BLOCK; at += blockDim.x)
            all = both_of()(all, two<C>{shared[k % V * 2][at], shared[k % V * 2 + 1][at]});
        cut.of_part[blockIdx.y * cut.channels + c] = part_of<N>(all, (C)wide(in.at[0][c]), cut.numbers_of(blockIdx.y));
    }
}

/* The tensors' elements, wherever they are. */
template <class T, int N> struct strided {
    const T *at[N];
    axis channel[N], others[N];
};

template <class T, int N>
__global__ void sum_strided(cuts<compute_of<T>> cut, strided<T, N> in, const compute_of<T> *mean)
{
    using C = compute_of<T>;
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * cut.each, n = cut.channels;
    int64_t end = begin + cut.numbers_of(blockIdx.y);
    two<C> s = {C(0), C(0)};
    C centre = C(0);
    if (c < n && begin < end) {
        const T *x = in.at[0] + in.channel[0].at(c), *g = in.at[N - 1] + in.channel[N - 1].at(c);
        centre = N == 1 ? (C)wide(x[0]) : mean[c];
        for (int64_t i = begin + threadIdx.y; i < end; i += blockDim.y)
            add_to<N, C>(s, wide(x[in.others[0].at(i)]), wide(g[in.others[N - 1].at(i)]), centre);
    }
    s = reduce_in_group(s, both_of());
    if (threadIdx.y == 0 && c < n) cut.of_part[blockIdx.y * n + c] = part_of<N>(s, centre, end - begin);
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

template <class C> struct affine_vectors { channel_vector weight, bias; C eps; };

/* Blocks of 8 channels, 32 threads for each. */
constexpr int CHANNELS_OF_BLOCK = 8;
const dim3 finishing(CHANNELS_OF_BLOCK, BLOCK / CHANNELS_OF_BLOCK);

/* All threads of a channel get the sum of theirs. */
template <class A, class F> __device__ inline A add_in_block(A value, const F &add)
{
    __shared__ A shared[BLOCK / 32][CHANNELS_OF_BLOCK];
    constexpr int LANES = 32 / CHANNELS_OF_BLOCK; /* of a warp, for a channel */
    for (int mask = 16; mask >= CHANNELS_OF_BLOCK; mask /= 2) value = add(value, from_lane(value, mask));
    if (threadIdx.y % LANES == 0) shared[threadIdx.y / LANES][threadIdx.x] = value;
    __syncthreads();
    value = shared[0][threadIdx.x];
#pragma unroll
    for (int warp = 1; warp < BLOCK / 32; warp++) value = add(value, shared[warp][threadIdx.x]);
    __syncthreads(); /* before the next call writes there */
    return value;
}

/* f(p, sums) for this thread's parts of channel c. */
template <class C, class F> __device__ inline void each_part(const cuts<C> &cut, int64_t c, const F &f)
{
    each_loaded<8, two<C>>(threadIdx.y, cut.parts, blockDim.y, [&](int64_t p) { return cut.of_part[p * cut.channels + c]; },
                           [&](two<C> part, int64_t p) { f(p, part); });
}

/* Parts are merged as Chan, Golub, LeVeque 1979 have it for two. */
template <class C> __global__ void finish_moments(cuts<C> cut, affine_vectors<C> a, C *mean_to, C *var_to)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, c = at < cut.channels ? at : 0;
    C weight = a.weight.of(c, C(1)), bias = a.bias.of(c, C(0));
    C about = cut.of_part[c].first, apart = 0, squares = 0, numbers = (C)(cut.numbers ? cut.numbers : 1);
    each_part(cut, c, [&](int64_t p, two<C> part) { apart += (C)cut.numbers_of(p) * (part.first - about); });
    C mean = about + add_in_block(apart, plus_of()) / numbers;
    each_part(cut, c, [&](int64_t p, two<C> part) {
        squares += part.second + (C)cut.numbers_of(p) * (part.first - mean) * (part.first - mean);
    });
    squares = add_in_block(squares, plus_of());
    if (at >= cut.channels || threadIdx.y) return;
    C var = squares < C(0) ? C(0) : squares / numbers;
    mean_to[c] = mean;
    var_to[c] = var;
    cut.line.centre[c] = mean;
    cut.line.of_x[c] = weight / sqrt(var + a.eps);
    cut.line.rest[c] = bias;
}

template <class C>
__global__ void take_moments(lines<C> line, affine_vectors<C> a, C *mean_to, C *var_to, channel_vector mean,
                             channel_vector var, int64_t n)
{
    FOR_EACH_OF(c, n)
    {
        mean_to[c] = line.centre[c] = mean.of(c, C(0));
        var_to[c] = var.of(c, C(1));
        line.of_x[c] = a.weight.of(c, C(1)) / sqrt(var_to[c] + a.eps);
        line.rest[c] = a.bias.of(c, C(0));
    }
}

/* The lines of dx. Frozen ones are of g alone, which then is their x. */
template <class C>
__global__ void finish_sums(cuts<C> cut, affine_vectors<C> a, const C *mean, const C *var, bool frozen,
                            into_vector dweight, into_vector dbias)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, c = at < cut.channels ? at : 0;
    C centre = mean[c], around = var[c], weight = a.weight.of(c, C(1)); /* whose loads are under way with the parts' */
    C dweight_before = dweight.before<C>(c), dbias_before = dbias.before<C>(c);
    two<C> s = {C(0), C(0)};
    each_part(cut, c, [&](int64_t, two<C> part) { s = both_of()(s, part); });
    s = add_in_block(s, both_of());
    if (at >= cut.channels || threadIdx.y) return;
    C rstd = 1 / sqrt(around + a.eps), scale = weight * rstd, numbers = (C)cut.numbers;
    dweight.put(c, dweight_before + s.second * rstd);
    dbias.put(c, dbias_before + s.first);
    cut.line.centre[c] = frozen ? C(0) : centre;
    cut.line.of_x[c] = frozen ? scale : -scale * rstd * rstd * s.second / numbers;
    cut.line.rest[c] = frozen ? C(0) : -scale * s.first / numbers;
    cut.line.of_g[c] = scale;
}

template <class T, int V> __device__ inline void read_line(compute_of<T> (&to)[V], const compute_of<T> *from, int64_t p)
{
    using C = compute_of<T>;
#pragma unroll
    for (int i = 0; i < V; i += PACK<C>) {
        pack<C, PACK<C>> read = *(const pack<C, PACK<C>> *)(from + p * V + i);
#pragma unroll
        for (int k = 0; k < PACK<C>; k++) to[i + k] = read.at[k];
    }
}

/* Of N = 1 tensor, x, or of N = 2, x and g. RELU: the second is a residual, and y = max(0, what x gives + it). From the last row
 * on, which the second-level cache still has of the sums. */
template <class T, int N, bool RELU>
__global__ void __launch_bounds__(BLOCK, 5 - N)
apply_to_rows(packed_rows<T, 1> out, packed_rows<const T, N> in, lines<compute_of<T>> line, int64_t packs, int rows)
{
    using C = compute_of<T>;
    constexpr int V = PACK<T>;
    int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int step = (int)(gridDim.y * blockDim.y);
    if (p >= packs) return;
    C centre[V], of_x[V], rest[V], of_g[V];
    read_line<T>(centre, line.centre, p);
    read_line<T>(of_x, line.of_x, p);
    read_line<T>(rest, line.rest, p);
    if constexpr (N == 2 && !RELU) read_line<T>(of_g, line.of_g, p);
    for (int row = rows - 1 - (int)(blockIdx.y * blockDim.y + threadIdx.y); row >= 0; row -= DEEP<N> * step) {
        pack<T, V> read[DEEP<N>][N];
#pragma unroll
        for (int d = 0; d < DEEP<N>; d++)
#pragma unroll
            for (int k = 0; k < N; k++)
                if (row >= d * step) read[d][k] = in.of(k, row - d * step, p);
#pragma unroll
        for (int d = 0; d < DEEP<N>; d++) {
            if (row < d * step) break;
            pack<T, V> y;
#pragma unroll
            for (int i = 0; i < V; i++) {
                C value = (wide(read[d][0].at[i]) - centre[i]) * of_x[i] + rest[i];
                if constexpr (N == 2) value += wide(read[d][1].at[i]) * (RELU ? C(1) : of_g[i]);
                y.at[i] = narrow<T>(RELU && value <= C(0) ? C(0) : value);
            }
            out.of(0, row - d * step, p) = y;
        }
    }
}

template <class T, int N, bool RELU>
__global__ void apply_strided(T *y, const T *x, const T *g, walk<N + 2> w, lines<compute_of<T>> line)
{
    using C = compute_of<T>;
    FOR_EACH_OF(i, w.count)
    {
        int64_t place[N + 2];
        w.at((uint32_t)i, place);
        int64_t c = place[N + 1];
        C value = (wide(x[place[1]]) - line.centre[c]) * line.of_x[c] + line.rest[c];
        if constexpr (N == 2) value += wide(g[place[N]]) * (RELU ? C(1) : line.of_g[c]);
        y[place[0]] = narrow<T>(RELU && value <= C(0) ? C(0) : value);
    }
}

/* ---- batch_norm_move: running statistics ------------------------------------------------------------------------- */

/* The running statistics are what is added to, after they have been multiplied by `stays`. */
template <class C>
__global__ void move_statistics(into_vector to_mean, into_vector to_var, int64_t *batches, channel_vector mean,
                                channel_vector var, int64_t n, C stays, C of_mean, C of_var)
{
    if (batches && blockIdx.x == 0 && threadIdx.x == 0) *batches += 1;
    FOR_EACH_OF(c, n)
    {
        C new_mean = stays * to_mean.before<C>(c) + of_mean * mean.of(c, C(0));
        C new_var = stays * to_var.before<C>(c) + of_var * var.of(c, C(0));
        to_mean.put(c, new_mean);
        to_var.put(c, new_var);
    }
}

/* ---- The host's side --------------------------------------------------------------------------------------------- */

template <class C> size_t room_of(const cuts<C> &c)
{
    return sizeof(C) * (size_t)(4 * c.channels) + sizeof(two<C>) * (size_t)(c.channels * c.parts);
}

/* Lines first: where channels come in packs they lie at multiples of 16 bytes. */
template <class C> void place(cuts<C> &c, C *room)
{
    int64_t n = c.channels;
    c.line = lines<C>{room, room + n, room + 2 * n, room + 3 * n};
    c.of_part = (two<C> *)(room + 4 * n);
}

/* How the sums of N tensors of one shape are made. */
template <class T, int N> struct summing {
    cuts<compute_of<T>> cut;
    dim3 grid, block;
    bool in_rows;
    packed_rows<const T, N> rows;
    strided<T, N> elements;

    explicit summing(const tr_device_tensor *const (&in)[N]) : in_rows(true)
    {
        for (int k = 0; k < N; k++) {
            elements.at[k] = (const T *)in[k]->data;
            elements.channel[k] = axis_in(*in[k], 1u << 1);
            elements.others[k] = axis_in(*in[k], ~(1u << 1));
            in_rows = take_rows(rows, k, *in[k]) && in_rows;
        }
        const axis &channel = elements.channel[0], &others = elements.others[0];
        cut.channels = channel.n;
        cut.numbers = others.n;
        row_threads threads(channel.n / PACK<T>);
        thread_groups groups = groups_of(channel.n, others.n, channel.stride[0] < others.stride[others.ndim - 1]);
        int64_t parts = most(1, least(least(parts_of(others.n, PART), MOST_PARTS), parts_of(1024, groups.blocks)));
        int64_t deep = parts_of(others.n, DEEP<N> * (int64_t)threads.block.y);
        if (in_rows) cut.deal(least(deep, most(1, SUMMING_BLOCKS / threads.columns)), threads.block.y);
        else cut.deal(parts, most(1, parts_of(others.n, parts)));
        block = in_rows ? threads.block : groups.block;
        grid = dim3((unsigned)(in_rows ? threads.columns : groups.blocks), (unsigned)cut.parts);
    }
    /* masked: of N = 3, which lie in rows. */
    tr_status run(const job &j, const compute_of<T> *mean, const packed_rows<T, 1> &masked = {}) const
    {
        if constexpr (N < 3)
            if (!in_rows) return LAUNCH(j, (sum_strided<T, N>), grid, block, 0, cut, elements, mean);
        return LAUNCH(j, (sum_rows<T, N>), grid, block, 0, cut, rows, mean, masked);
    }
};

template <class T, int N, bool RELU = false>
tr_status apply(const job &j, const tr_device_tensor &y, const tr_device_tensor *const (&in)[N],
                const lines<compute_of<T>> &line)
{
    packed_rows<T, 1> out;
    packed_rows<const T, N> rows;
    bool in_rows = take_rows(out, 0, y);
    for (int k = 0; k < N; k++) in_rows = take_rows(rows, k, *in[k]) && in_rows;
    if (in_rows) {
        int64_t packs = y.shape.dim[1] / PACK<T>, n = numel(y) / y.shape.dim[1];
        row_threads threads(packs);
        int64_t down = most(1, WRITING_BLOCKS * (5 - N) / threads.columns);
        dim3 grid((unsigned)threads.columns, (unsigned)least(down, parts_of(n, threads.block.y)));
        return LAUNCH(j, (apply_to_rows<T, N, RELU>), grid, threads.block, 0, out, rows, line, packs, (int)n);
    }
    tr_device_tensor numbers = channel_numbers(y);
    const tr_device_tensor *tensors[N + 2] = {&y, in[0]};
    if (N == 2) tensors[2] = in[N - 1];
    tensors[N + 1] = &numbers;
    loop l = loop_of(y.shape, tensors, N + 2);
    if (l.count == 0) return TR_OK;
    return LAUNCH(j, (apply_strided<T, N, RELU>), grid_for(l.count), BLOCK, 0, (T *)l.data[0], (const T *)l.data[1],
                  (const T *)l.data[N], walk<N + 2>(l), line);
}

template <class T> tr_status batch_norm(const job &j, bool relu)
{
    using C = compute_of<T>;
    const tr_device_tensor &x = j.in(0);
    const tr_batch_norm_attrs &attrs = j.attrs<tr_batch_norm_attrs>();
    C *mean = (C *)j.out(1).data, *var = (C *)j.out(2).data;
    affine_vectors<C> a = {vector_of(j, 1), vector_of(j, 2), (C)attrs.eps};
    summing<T, 1> s({&x});
    scratch memory(j, room_of(s.cut));
    TRY(memory.status());
    place(s.cut, memory.template as<C>());
    int64_t n = s.cut.channels;
    if (attrs.frozen) {
        TRY(LAUNCH(j, take_moments<C>, grid_for(n), BLOCK, 0, s.cut.line, a, mean, var, vector_of(j, 3), vector_of(j, 4), n));
    } else {
        TRY(s.run(j, nullptr));
        TRY(LAUNCH(j, finish_moments<C>, (unsigned)parts_of(n, finishing.x), finishing, 0, s.cut, a, mean, var));
    }
    if (!relu) return apply<T, 1>(j, j.out(0), {&x}, s.cut.line);
    if (!j.has_in(5)) return apply<T, 1, true>(j, j.out(0), {&x}, s.cut.line);
    return apply<T, 2, true>(j, j.out(0), {&x, &j.in(5)}, s.cut.line);
}

/* in: x, g and, of N = 3, y; masked: where the masked g goes then, or NULL. */
template <class T, int N>
tr_status grad_of(const job &j, const tr_device_tensor *const (&in)[N], const tr_device_tensor *masked)
{
    using C = compute_of<T>;
    const tr_batch_norm_attrs &attrs = j.attrs<tr_batch_norm_attrs>();
    const int64_t dense[] = {1};
    staged mean(j, j.in(3), sizeof(C) == 8 ? TR_F64 : TR_F32, dense), var(j, j.in(4), mean.view().dtype, dense);
    TRY(mean.status());
    TRY(var.status());
    const C *means = (const C *)mean.view().data, *vars = (const C *)var.view().data;
    affine_vectors<C> a = {vector_of(j, 2), channel_vector{nullptr, TR_F32, 0}, (C)attrs.eps};
    summing<T, N> s(in);
    packed_rows<T, 1> to = {};
    scratch memory(j, room_of(s.cut));
    TRY(memory.status());
    place(s.cut, memory.template as<C>());
    if (masked) take_rows(to, 0, *masked);
    TRY(s.run(j, means, to));
    TRY(LAUNCH(j, finish_sums<C>, (unsigned)parts_of(s.cut.channels, finishing.x), finishing, 0, s.cut, a, means, vars,
               attrs.frozen, vector_to(j, 1, attrs.accumulate_weight), vector_to(j, 2, attrs.accumulate_bias)));
    if (!j.has_out(0)) return TR_OK;
    const tr_device_tensor *g = masked ? masked : in[1];
    if (attrs.frozen) return apply<T, 1>(j, j.out(0), {g}, s.cut.line);
    return apply<T, 2>(j, j.out(0), {in[0], g}, s.cut.line);
}

struct masked_of {
    template <class C> __device__ C operator()(C g, C y) const { return y <= C(0) ? C(0) : g; }
};

/* The masked g is the residual's gradient; where there is none, it lies where dx will be. */
template <class T> tr_status batch_norm_relu_grad(const job &j)
{
    const tr_device_tensor &g = j.in(0), &x = j.in(1), &y = j.in(5);
    const tr_device_tensor *to = j.has_out(3) ? &j.out(3) : j.has_out(0) ? &j.out(0) : nullptr;
    if (lies_in_rows<T>(g) && lies_in_rows<T>(x) && lies_in_rows<T>(y) && (!to || lies_in_rows<T>(*to)))
        return grad_of<T, 3>(j, {&x, &g, &y}, to);
    scratch memory(j, to ? 0 : (size_t)numel(x) * sizeof(T));
    TRY(memory.status());
    tr_device_tensor masked = to ? *to : dense_view(memory.as<void>(), x.dtype, x.shape);
    const tr_device_tensor in[] = {g, y};
    TRY(map_into<2>(j, masked, in, masked_of()));
    return grad_of<T, 2>(j, {&x, &masked}, nullptr);
}

} // namespace

static tr_status run_batch_norm(const job &j, bool relu)
{
    if (numel(j.in(0)) > INDEX_LIMIT) return TR_DECLINED;
    if (j.in(0).shape.dim[1] == 0) return TR_OK;
    return for_float(j.in(0).dtype, [&](auto t) { return batch_norm<typename decltype(t)::type>(j, relu); });
}

tr_status cuda_batch_norm(const job &j) { return run_batch_norm(j, false); }
tr_status cuda_batch_norm_relu(const job &j) { return run_batch_norm(j, true); }

tr_status cuda_batch_norm_move(const job &j)
{
    const tr_batch_norm_move_attrs &a = j.attrs<tr_batch_norm_move_attrs>();
    int64_t n = numel(j.in(0));
    return for_compute(j.in(0).dtype, [&](auto t) {
        using C = typename decltype(t)::type;
        return LAUNCH(j, move_statistics<C>, grid_for(n), BLOCK, 0, vector_to(j, 0, true), vector_to(j, 1, true),
                      j.has_out(2) ? (int64_t *)j.out(2).data : nullptr, vector_of(j, 0), vector_of(j, 1), n,
                      (C)(1 - a.momentum), (C)a.momentum, (C)(a.momentum * a.unbiased));
    });
}

static tr_status run_batch_norm_grad(const job &j, bool relu)
{
    if (numel(j.in(1)) > INDEX_LIMIT) return TR_DECLINED;
    if (j.in(1).shape.dim[1] == 0) return TR_OK;
    return for_float(j.in(1).dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        return relu ? batch_norm_relu_grad<T>(j) : grad_of<T, 2>(j, {&j.in(1), &j.in(0)}, nullptr);
    });
}

tr_status cuda_batch_norm_grad(const job &j) { return run_batch_norm_grad(j, false); }
tr_status cuda_batch_norm_relu_grad(const job &j) { return run_batch_norm_grad(j, true); }
