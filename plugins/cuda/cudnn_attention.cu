/*
 * Attention by cuDNN, for what its fused kernels are made of: 16-bit numbers without a mask but the causal one. cuDNN
 * knows no attention: it finds the pattern in a graph of single operations, which has to be the one that it expects,
 *
 *   forward:   s = q k^T * scale, hidden above the diagonal    lse = max + log(sum(exp(s - max)))    o = softmax(s) v
 *   backward:  p = exp(q k^T * scale - lse), hidden    dv = p^T g    ds = (g v^T - delta) * p * scale
 *              dk = ds^T q    dq = ds k    with delta = rowsum(g * o)
 *
 * where dq is a product of its own, not added up in another tensor on the way: so cuDNN stores ds and adds in a fixed
 * order. (Its engines' notes are the same for either.) Statistics are as attention.cu has them, so that either's forward
 * goes with the other's backward.
 */
#include "attention.h"
#include "cudnn_plan.h"

#include <atomic>
#include <float.h>
#include <stdio.h>

namespace {

enum { Q, K, V, O, G, DQ, DK, DV, TENSORS };
enum { LSE = TENSORS, DELTA, SCALE, HIDDEN, ONE, IDS, FIRST_INNER = 32 }; /* a tensor's id is 1 more */

/* All that a plan depends on. */
struct shape {
    int64_t device, backward, dtype, causal, batch, heads_n, queries, keys, dim;
    int64_t strides[TENSORS][3]; /* of batches, heads and rows */
};

/* A tensor's rows and columns, and how far these lie apart. */
struct matrix { int64_t rows, columns, row, column; };

struct graph {
    cudnn_plan &to;
    const shape &s;
    std::vector<const descriptor *> operations = {};
    int64_t inner_n = FIRST_INNER;

    descriptor &add(int64_t id, int type, const matrix &m, int64_t batch, int64_t head, tensor_kind kind)
    {
        int64_t dims[] = {s.batch, s.heads_n, m.rows, m.columns}, strides[] = {batch, head, m.row, m.column};
        return to.tensor(id + 1, type, dims, strides, id == LSE ? sizeof(float) : 16, kind);
    }
    int type() const { return cudnn_type_of(s.dtype); }
    descriptor &given(int64_t id, bool transposed = false)
    {
        int64_t rows = id == K || id == V || id == DK || id == DV ? s.keys : s.queries;
        const int64_t *strides = s.strides[id];
        matrix m = transposed ? matrix{s.dim, rows, 1, strides[2]} : matrix{rows, s.dim, strides[2], 1};
        return add(id, type(), m, strides[0], strides[1], tensor_kind::MEMORY);
    }
    descriptor &per_query(int64_t id, tensor_kind kind)
    {
        return add(id, CUDNN_DATA_FLOAT, {s.queries, 1, 1, 1}, s.heads_n * s.queries, s.queries, kind);
    }
    descriptor &number(int64_t id)
    {
        int64_t ones[] = {1, 1, 1, 1};
        return to.tensor(id + 1, CUDNN_DATA_FLOAT, ones, ones, 16, tensor_kind::NUMBER);
    }
    /* What goes from operation to operation: of a number for each query, of each query and dimension, of each pair. */
    descriptor &inner_per_query() { return per_query(inner_n++, tensor_kind::INNER); }
    descriptor &inner(int64_t columns, int of)
    {
        return add(inner_n++, of, {s.queries, columns, columns, 1}, s.heads_n * s.queries * columns,
                   s.queries * columns, tensor_kind::INNER);
    }
    descriptor &pairs(int of = CUDNN_DATA_FLOAT) { return inner(s.keys, of); }

    descriptor &finish(descriptor &op)
    {
        op.finalize();
        operations.push_back(&op);
        return op;
    }
    /* y = mode(x, b, t), in this type; returns y. */
    descriptor &each(int mode, descriptor &y, const descriptor &x, const descriptor *b = nullptr,
                     const descriptor *t = nullptr, int computed = CUDNN_DATA_FLOAT, int64_t axis = -1)
    {
        descriptor &how = to.add(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
        how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
        how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, computed);
        if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
        how.finalize();
        descriptor &op = to.add(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
        op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
        op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
        op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
        if (b) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
        if (t) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *t);
        finish(op);
        return y;
    }
    descriptor &reduce(int mode, descriptor &y, const descriptor &x)
    {
        descriptor &how = to.add(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
        how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
        how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode);
        how.finalize();
        descriptor &op = to.add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
        op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
        op.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
        op.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
        finish(op);
        return y;
    }
    descriptor &multiply(descriptor &c, const descriptor &a, const descriptor &b)
    {
        descriptor &how = to.add(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
        how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
        how.finalize();
        descriptor &op = to.add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
        op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
        op.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
        op.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
        op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
        finish(op);
        return c;
    }
    descriptor &reshape(descriptor &y, const descriptor &x)
    {
        descriptor &op = to.add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
        op.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
        op.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
        finish(op);
        return y;
    }
    /* Of pairs, in 16 bits. */
    descriptor &transpose(const descriptor &x)
    {
        return reshape(add(inner_n++, type(), {s.keys, s.queries, 1, s.keys}, s.heads_n * s.queries * s.keys,
                           s.queries * s.keys, tensor_kind::INNER), x);
    }
    /* Scores above the diagonal become HIDDEN. */
    descriptor &hide(descriptor &scores)
    {
        if (!s.causal) return scores;
        descriptor &query = each(CUDNN_POINTWISE_GEN_INDEX, pairs(CUDNN_DATA_INT32), scores, nullptr, nullptr,
                                 CUDNN_DATA_FLOAT, 2);
        descriptor &key = each(CUDNN_POINTWISE_GEN_INDEX, pairs(CUDNN_DATA_INT32), scores, nullptr, nullptr,
                               CUDNN_DATA_FLOAT, 3);
        descriptor &seen = each(CUDNN_POINTWISE_CMP_GE, pairs(CUDNN_DATA_BOOLEAN), query, &key, nullptr,
                                CUDNN_DATA_BOOLEAN);
        return each(CUDNN_POINTWISE_BINARY_SELECT, pairs(), scores, &number(HIDDEN), &seen);
    }

    void forward()
    {
        descriptor &products = multiply(pairs(), given(Q), given(K, true));
        descriptor &scores = hide(each(CUDNN_POINTWISE_MUL, pairs(), products, &number(SCALE)));
        descriptor &top = reduce(CUDNN_REDUCE_TENSOR_MAX, inner_per_query(), scores);
        descriptor &less = each(CUDNN_POINTWISE_SUB, pairs(), scores, &top);
        descriptor &weights = each(CUDNN_POINTWISE_EXP, pairs(), less);
        descriptor &sum = reduce(CUDNN_REDUCE_TENSOR_ADD, inner_per_query(), weights);
        descriptor &log = each(CUDNN_POINTWISE_LOG, inner_per_query(), sum);
        each(CUDNN_POINTWISE_ADD, per_query(LSE, tensor_kind::MEMORY), top, &log);
        multiply(given(O), each(CUDNN_POINTWISE_DIV, pairs(type()), weights, &sum), given(V));
    }

    void backward()
    {
        descriptor &q = given(Q), &k = given(K, true), &g = given(G), &scale = number(SCALE);
        descriptor &both = each(CUDNN_POINTWISE_MUL, inner(s.dim, CUDNN_DATA_FLOAT), g, &given(O));
        descriptor &sum = reduce(CUDNN_REDUCE_TENSOR_ADD, inner_per_query(), both);
        descriptor &delta = each(CUDNN_POINTWISE_MUL, per_query(DELTA, tensor_kind::MEMORY), sum, &number(ONE));
        descriptor &scores = each(CUDNN_POINTWISE_MUL, pairs(), multiply(pairs(), q, k), &scale);
        descriptor &less = each(CUDNN_POINTWISE_SUB, pairs(), scores, &per_query(LSE, tensor_kind::MEMORY));
        descriptor &weights = each(CUDNN_POINTWISE_EXP, pairs(), hide(less));
        multiply(given(DV), transpose(weights), g);
        descriptor &dp = multiply(pairs(), g, given(V, true));
        descriptor &moved = each(CUDNN_POINTWISE_SUB, pairs(), dp, &delta);
        descriptor &weighted = each(CUDNN_POINTWISE_MUL, pairs(), moved, &weights);
        descriptor &ds = each(CUDNN_POINTWISE_MUL, pairs(), weighted, &scale);
        multiply(given(DK), transpose(ds), q);
        const int64_t *of_k = s.strides[K];
        descriptor &rows = add(inner_n++, type(), {s.keys, s.dim, of_k[2], 1}, of_k[0], of_k[1], tensor_kind::INNER);
        multiply(given(DQ), ds, reshape(rows, k));
    }
};

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

plan_table<shape, cudnn_plan, cudnnHandle_t> &known = *new plan_table<shape, cudnn_plan, cudnnHandle_t>;

/* A shape's kernels are compiled when it first comes, which takes half a second: sizes that change from call to call, as of
 * a text that grows, are not worth that, nor are few rows. And 9.10.0 and 9.10.1 are known to be wrong. */
bool is_worth(const attention &a)
{
    constexpr int64_t TILE = 128;
    if (a.queries % TILE || a.keys % TILE || !cudnn()) return false;
    size_t version = cudnn()->cudnnGetVersion();
    return version != 91000 && version != 91001;
}

/* A number for each query, without gaps? */
bool is_dense(const attention &a)
{
    return a.lse.stride[2] == 1 && a.lse.stride[1] == a.queries &&
           (a.batch == 1 || a.lse.stride[0] == a.heads_n * a.queries);
}

/* What becomes of a shape, for who reads the log; a refused descriptor has told why. */
void tell(const shape &s, const cudnn_plan &made, cudnnStatus_t status)
{
    char text[256];
    snprintf(text, sizeof text,
             "cuda: attention%s of %lld x %lld heads, %lld queries, %lld keys, %lld wide%s: cuDNN %s, workspace %lld: %s",
             s.backward ? " backward" : "", (long long)s.batch, (long long)s.heads_n, (long long)s.queries,
             (long long)s.keys, (long long)s.dim, s.causal ? ", causal" : "",
             made.execution ? "computes it" : "does not", (long long)made.workspace,
             cudnn()->cudnnGetErrorString(status));
    if (host->log) host->log(TR_LOG_DEBUG, text);
}

tr_status attend(const job &j, const attention &a, bool backward)
{
    if (a.mask.data || (a.causal && a.queries != a.keys) || !is_dense(a) ||
        a.batch * a.heads_n * a.queries * a.keys * a.dim == 0 || !is_worth(a))
        return TR_DECLINED;
    const heads *const tensors[] = {&a.q, &a.k, &a.v, &a.o, &a.g, &a.dq, &a.dk, &a.dv};
    shape asked = {j.call.index, backward, a.dtype, a.causal, a.batch, a.heads_n, a.queries, a.keys, a.dim, {}};
    void *data[IDS];
    int64_t ids[IDS], n = 0;
    float scale = (float)a.scale, hidden = -FLT_MAX, one = 1;
    auto name = [&](int id, void *at) { ids[n] = id + 1, data[n++] = at; };
    for (int t = 0; t < (backward ? TENSORS : G); t++) {
        memcpy(asked.strides[t], tensors[t]->stride, sizeof asked.strides[t]);
        name(t, tensors[t]->data);
    }
    name(LSE, a.lse.data);
    name(SCALE, &scale);
    if (a.causal) name(HIDDEN, &hidden);

    std::lock_guard<std::mutex> held(known.lock);
    cudnnHandle_t handle;
    cudnn_plan *chosen;
    TRY(known.find(asked, &handle, &chosen, create_cudnn, [&](cudnnHandle_t of, cudnn_plan &made) {
        graph described = {made, asked};
        backward ? described.backward() : described.forward();
        tell(asked, made, made.make(of, described.operations, false)); /* what fails has no engine */
        return TR_OK;
    }));
    if (!chosen->execution) return TR_DECLINED;
    if (!backward) return run_plan(j, handle, *chosen, n, ids, data);
    scratch delta(j, sizeof(float) * (size_t)(a.batch * a.heads_n * a.queries));
    TRY(delta.status());
    name(DELTA, delta.as<void>());
    name(ONE, &one);
    return run_plan(j, handle, *chosen, n, ids, data);
}

} // namespace

tr_status cudnn_attention(const job &j, const attention &a) { return attend(j, a, false); }

/* How many pairs of a query and a key ds may have at once: 2 bytes for each, of a 512th of the device's memory. */
static int64_t most_pairs(int index)
{
    static std::atomic<int64_t> known_pairs[MOST_DEVICES];
    std::atomic<int64_t> &pairs = known_pairs[index];
    size_t available = 0, total = 0;
    if (!pairs && cudaMemGetInfo(&available, &total) == cudaSuccess) pairs = (int64_t)(total / 512 / 2);
    return pairs;
}

/* In parts: of several batches, or of heads of one. */
tr_status cudnn_attention_grad(const job &j, const attention &a)
{
    int64_t at_once = most(1, most_pairs(j.call.index) / most(1, a.queries * a.keys));
    int64_t heads_n = least(a.heads_n, at_once), batch = heads_n < a.heads_n ? 1 : at_once / most(1, heads_n);
    for (int64_t b = 0; b < a.batch; b += batch)
        for (int64_t h = 0; h < a.heads_n; h += heads_n) {
            attention part = a;
            part.batch = least(batch, a.batch - b);
            part.heads_n = least(heads_n, a.heads_n - h);
            for (heads *x : {&part.q, &part.k, &part.v, &part.o, &part.g, &part.dq, &part.dk, &part.dv, &part.lse})
                x->data = (char *)x->data + x->at(b, h) * (int64_t)(x == &part.lse ? sizeof(float) : 2);
            TRY(attend(j, part, true));
        }
    return TR_OK;
}
