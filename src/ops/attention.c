/*
 * Attention: o = softmax(q k^T * scale + mask) v, and its gradients, after Dao et al. (FlashAttention, 2022; -2, 2023): the
 * [queries, keys] matrix is never stored. Forward keeps lse, the log-sum-exp of each query's scores, from which backward
 * makes the probabilities again:
 *
 *   p = exp(q k^T * scale - lse)   delta = rowsum(g * o)   ds = p * (g v^T - delta)
 *   dq = ds k * scale              dk = ds^T q * scale     dv = p^T g
 *
 * A query that sees no key gives zeros and gets no gradient.
 *
 * The reference kernel computes one (batch, head) at a time in f64, whatever the dtype and the strides.
 */
#include "ops/attention.h"

#include "ops/family.h"

#include <math.h>
#include <string.h>

/* ---- Shapes ------------------------------------------------------------------------------------------------------- */

static tr_status check_mask(const tr_tensor *mask, tr_shape scores)
{
    if (!mask) return TR_OK;
    if (mask->dtype != TR_BOOL)
        return tr__fail(TR_DTYPE, "attention: the mask is %s, it should be bool (true: may look)", tr_dtype_name(mask->dtype));
    bool fits = mask->shape.ndim <= scores.ndim;
    for (int i = 1; fits && i <= mask->shape.ndim; i++) {
        int64_t size = mask->shape.dim[mask->shape.ndim - i];
        fits = size == 1 || size == scores.dim[scores.ndim - i];
    }
    if (fits) return TR_OK;
    return tr__fail(TR_SHAPE, "attention: mask %s does not broadcast to [batch, heads, queries, keys] %s",
        TR__TEXT(mask->shape), TR__TEXT(scores));
}

static tr_status check_heads(const tr_op_call *call)
{
    const tr_tensor *q = call->inputs[0], *k = call->inputs[1], *v = call->inputs[2];
    TR__TRY(tr__float_input(call, 0));
    TR__TRY(tr__same(call, 0, 1));
    TR__TRY(tr__same(call, 0, 2));
    bool fits = q->shape.ndim == 4 && k->shape.ndim == 4 && tr__shape_equal(k->shape, v->shape);
    for (int d = 0; fits && d < 4; d++) fits = d == 2 || q->shape.dim[d] == k->shape.dim[d];
    if (!fits)
        return tr__fail(TR_SHAPE,
            "%s: q %s, k %s, v %s should be [batch, heads, queries, dim] and twice [batch, heads, keys, dim]",
            call->op->name, TR__TEXT(q->shape), TR__TEXT(k->shape), TR__TEXT(v->shape));
    return check_mask(call->inputs[3], TR_SHAPE(q->shape.dim[0], q->shape.dim[1], q->shape.dim[2], k->shape.dim[2]));
}

static tr_dtype lse_dtype(tr_dtype dtype) { return dtype == TR_F64 ? TR_F64 : TR_F32; }

/* Heads that are views of [batch, seq, heads * dim] give such ones: putting them together again copies nothing. */
tr_status tr__attention_infer(tr_op_call *call)
{
    TR__TRY(check_heads(call));
    const tr_tensor *q = call->inputs[0];
    tr_shape lse = q->shape;
    lse.ndim = 3;
    TR__TRY(tr__output_like(call, 0, q, q->shape, q->dtype));
    return tr_op_output(call, 1, lse, lse_dtype(q->dtype));
}

tr_status tr__self_attention_infer(tr_op_call *call)
{
    const tr_attention_attrs *attrs = call->attrs;
    const tr_tensor *x = call->inputs[0];
    TR__TRY(tr__float_input(call, 0));
    if (attrs->heads < 1) return tr__fail(TR_INVALID, "%s: heads is %d, it should be at least 1", call->op->name, attrs->heads);
    if (x->shape.ndim != 3 || x->shape.dim[2] % (3 * (int64_t)attrs->heads) != 0)
        return tr__fail(TR_SHAPE, "%s: qkv is %s, it should be [batch, seq, 3 * heads * dim] with heads = %d",
            call->op->name, TR__TEXT(x->shape), attrs->heads);
    int64_t batch = x->shape.dim[0], seq = x->shape.dim[1];
    TR__TRY(tr_op_output(call, 0, TR_SHAPE(batch, seq, x->shape.dim[2] / 3), x->dtype));
    return tr_op_output(call, 1, TR_SHAPE(batch, attrs->heads, seq), lse_dtype(x->dtype));
}

/* ---- Calls as heads ------------------------------------------------------------------------------------------------ */

/* As heads: x, [batch, heads, rows, …]; or where that many are packed, part of x, [batch, rows, parts * heads * dim]. */
static tr__heads heads_of(const tr_tensor *x, int part, int64_t packed, int64_t dim)
{
    tr__heads h = {.data = tr__ptr(x)};
    memcpy(h.stride, x->stride, sizeof(int64_t) * (size_t)(x->shape.ndim < 4 ? x->shape.ndim : 4));
    if (!packed) return h;
    int64_t one = x->stride[2], from = part * packed * dim * one;
    return (tr__heads){(char *)h.data + from * (int64_t)tr_dtype_size(x->dtype), {x->stride[0], dim * one, x->stride[1], one}};
}

/* The inputs are q, k, v and a mask, or all packed into one; then those of gradients. */
tr__attention tr__attention_of(const tr_op_call *call)
{
    const tr_attention_attrs *attrs = call->attrs;
    bool packed_grad = call->op == tr__op(self_attention_grad), grad = packed_grad || call->op == tr__op(attention_grad);
    bool is_packed = packed_grad || call->op == tr__op(self_attention);
    tr_tensor *const *in = call->inputs + grad, *const *out = call->outputs, *const *saved = in + (is_packed ? 1 : 4);
    const int64_t *q = in[0]->shape.dim, packed = is_packed ? attrs->heads : 0;
    tr__attention a = {.batch = q[0], .heads = q[1], .queries = q[2], .dim = q[3]};
    if (packed) a = (tr__attention){.batch = q[0], .heads = packed, .queries = q[1], .dim = q[2] / 3 / packed};
    a.keys = packed ? a.queries : in[1]->shape.dim[2];
    a.q = heads_of(in[0], 0, packed, a.dim);
    a.k = heads_of(in[packed ? 0 : 1], 1, packed, a.dim);
    a.v = heads_of(in[packed ? 0 : 2], 2, packed, a.dim);
    a.o = heads_of(grad ? saved[0] : out[0], 0, packed, a.dim);
    a.lse = heads_of(grad ? saved[1] : out[1], 0, 0, a.dim);
    if (!packed && in[3]) { /* the mask, broadcast to the scores */
        a.mask.data = tr__ptr(in[3]);
        int64_t stride[TR_MAX_DIMS];
        tr__broadcast_strides(in[3], TR_SHAPE(a.batch, a.heads, a.queries, a.keys), stride);
        memcpy(a.mask.stride, stride, sizeof a.mask.stride);
    }
    if (grad) {
        a.g = heads_of(call->inputs[0], 0, packed, a.dim);
        a.dq = heads_of(out[0], 0, packed, a.dim);
        a.dk = heads_of(out[packed ? 0 : 1], 1, packed, a.dim);
        a.dv = heads_of(out[packed ? 0 : 2], 2, packed, a.dim);
    }
    a.dtype = call->inputs[0]->dtype;
    a.device = tr__device_of(call->inputs[0]);
    a.causal = attrs->causal;
    a.grad = grad;
    bool given = attrs->scale != 0 || signbit(attrs->scale); /* TR_ZERO means zero */
    a.scale = given ? attrs->scale : a.dim ? 1 / sqrt((double)a.dim) : 1;
    return a;
}

/* ---- Running by heads ---------------------------------------------------------------------------------------------- */

typedef struct task {
    const tr__attention *a;
    const tr__attention_kernels *kernels;
} task;

static void run_heads(void *arg, int64_t begin, int64_t end, void *scratch)
{
    const task *work = arg;
    const tr__attention *a = work->a;
    for (int64_t i = begin; i < end; i++)
        (a->grad ? work->kernels->backward : work->kernels->forward)(a, i, i + 1 < end ? i + 1 : i, scratch);
}

tr_status tr__attention_run(const tr_op_call *call, const tr__attention_kernels *kernels)
{
    tr__attention a = tr__attention_of(call);
    task work = {.a = &a, .kernels = kernels};
    size_t bytes = sizeof(float) * (a.grad ? kernels->backward_scratch : kernels->forward_scratch)(&a);
    if (tr__cpu_for(a.device, a.batch * a.heads, 1, bytes, run_heads, &work)) return TR_OK;
    return tr__fail(TR_NO_MEMORY, "%s: no memory for the %zu bytes that a head of %lld queries and %lld keys takes",
        call->op->name, bytes, (long long)a.queries, (long long)a.keys);
}

/* ---- Reference ----------------------------------------------------------------------------------------------------- */

/* [rows, dim] of one (batch, head), in f64. */
static void load_head(const tr__attention *a, const tr__heads *x, int64_t number, int64_t rows, double *out)
{
    int64_t at = tr__head_at(a, x, number);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < a->dim; d++)
            out[i * a->dim + d] = tr__load(a->dtype, x->data, at + i * x->stride[2] + d * x->stride[3]);
}

static void store_head(const tr__attention *a, const tr__heads *x, int64_t number, int64_t rows, const double *from)
{
    int64_t at = tr__head_at(a, x, number);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < a->dim; d++)
            tr__store(a->dtype, x->data, at + i * x->stride[2] + d * x->stride[3], from[i * a->dim + d]);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void add_scaled(double *y, double scale, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += scale * x[i];
}

static bool may_look(const tr__attention *a, int64_t number, int64_t i, int64_t j)
{
    const uint8_t *mask = a->mask.data;
    return !mask || mask[tr__head_at(a, &a->mask, number) + i * a->mask.stride[2] + j * a->mask.stride[3]];
}

static int64_t lse_at(const tr__attention *a, int64_t number, int64_t i)
{
    return tr__head_at(a, &a->lse, number) + i * a->lse.stride[2];
}

/* scores[j] = exp(q·k_j * scale - max) of the keys that q may see, 0 of others; returns their log-sum-exp, -inf for none. */
static double weigh(const tr__attention *a, int64_t number, int64_t i, const double *q, const double *k,
    double *scores)
{
    double max = -INFINITY, sum = 0;
    int64_t seen = tr__keys_seen(a, i), visible = 0;
    for (int64_t j = 0; j < seen; j++) {
        scores[j] = -INFINITY;
        if (!may_look(a, number, i, j)) continue;
        visible++;
        scores[j] = dot(q, k + j * a->dim, a->dim) * a->scale;
        if (scores[j] > max) max = scores[j];
    }
    for (int64_t j = 0; j < seen; j++) {
        scores[j] = visible ? exp(scores[j] - max) : 0;
        sum += scores[j];
    }
    for (int64_t j = 0; j < seen; j++) scores[j] = visible ? scores[j] / sum : 0;
    return visible ? max + log(sum) : -INFINITY;
}

static size_t forward_scratch(const tr__attention *a)
{
    return sizeof(double) / sizeof(float) * (size_t)(2 * (a->queries + a->keys) * a->dim + a->keys + 1);
}

static void forward_head(const tr__attention *a, int64_t number, int64_t next, float *scratch)
{
    (void)next;
    double *q = (double *)(void *)scratch, *o = q + a->queries * a->dim, *k = o + a->queries * a->dim, *v = k + a->keys * a->dim;
    double *scores = v + a->keys * a->dim;
    load_head(a, &a->q, number, a->queries, q);
    load_head(a, &a->k, number, a->keys, k);
    load_head(a, &a->v, number, a->keys, v);
    memset(o, 0, sizeof *o * (size_t)(a->queries * a->dim));
    for (int64_t i = 0; i < a->queries; i++) {
        double lse = weigh(a, number, i, q + i * a->dim, k, scores);
        tr__store(lse_dtype(a->dtype), a->lse.data, lse_at(a, number, i), lse);
        for (int64_t j = 0; j < tr__keys_seen(a, i); j++) add_scaled(o + i * a->dim, scores[j], v + j * a->dim, a->dim);
    }
    store_head(a, &a->o, number, a->queries, o);
}

/* What backward reads and writes of one (batch, head). */
typedef struct head_grads {
    double *q, *o, *g, *dq; /* [queries, dim] */
    double *k, *v, *dk, *dv; /* [keys, dim] */
} head_grads;

static void backward_query(const tr__attention *a, int64_t number, int64_t i, const head_grads *h)
{
    const double *q = h->q + i * a->dim, *g = h->g + i * a->dim;
    double delta = dot(g, h->o + i * a->dim, a->dim);
    double lse = tr__load(lse_dtype(a->dtype), a->lse.data, lse_at(a, number, i));
    for (int64_t j = 0; j < tr__keys_seen(a, i); j++) {
        if (!may_look(a, number, i, j)) continue;
        const double *k = h->k + j * a->dim, *v = h->v + j * a->dim;
        double p = exp(dot(q, k, a->dim) * a->scale - lse), ds = p * (dot(g, v, a->dim) - delta) * a->scale;
        add_scaled(h->dv + j * a->dim, p, g, a->dim);
        add_scaled(h->dq + i * a->dim, ds, k, a->dim);
        add_scaled(h->dk + j * a->dim, ds, q, a->dim);
    }
}

static size_t backward_scratch(const tr__attention *a)
{
    return sizeof(double) / sizeof(float) * (size_t)(4 * (a->queries + a->keys) * a->dim + 1);
}

static void backward_head(const tr__attention *a, int64_t number, int64_t next, float *scratch)
{
    (void)next;
    int64_t of_queries = a->queries * a->dim, of_keys = a->keys * a->dim;
    head_grads h = {.dq = (double *)(void *)scratch};
    h.dk = h.dq + of_queries;
    h.dv = h.dk + of_keys;
    h.q = h.dv + of_keys;
    h.o = h.q + of_queries;
    h.g = h.o + of_queries;
    h.k = h.g + of_queries;
    h.v = h.k + of_keys;
    memset(h.dq, 0, sizeof *h.dq * (size_t)(of_queries + 2 * of_keys));
    load_head(a, &a->q, number, a->queries, h.q);
    load_head(a, &a->o, number, a->queries, h.o);
    load_head(a, &a->g, number, a->queries, h.g);
    load_head(a, &a->k, number, a->keys, h.k);
    load_head(a, &a->v, number, a->keys, h.v);
    for (int64_t i = 0; i < a->queries; i++) backward_query(a, number, i, &h);
    store_head(a, &a->dq, number, a->queries, h.dq);
    store_head(a, &a->dk, number, a->keys, h.dk);
    store_head(a, &a->dv, number, a->keys, h.dv);
}

tr_status tr__attention_forward(tr_op_call *call)
{
    return tr__attention_run(call, &(tr__attention_kernels){forward_scratch, forward_head, backward_scratch, backward_head});
}

/* ---- Gradients ----------------------------------------------------------------------------------------------------- */

tr_status tr__attention_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0];
    if (!g) return TR_OK;
    tr_tensor *grads[3];
    for (int i = 0; i < 3; i++) /* as the input lies, so that going back to its rows copies nothing */
        grads[i] = call->grad_inputs[i] = tr__tensor_new_like(call->inputs[i]);
    tr_tensor *const *in = call->inputs;
    return tr__op_run(tr__op(attention_grad), call->attrs,
        (tr_tensor *[]){g, in[0], in[1], in[2], in[3], call->outputs[0], call->outputs[1]}, 7, grads, 3);
}

tr_status tr__self_attention_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0];
    if (!g) return TR_OK;
    tr_tensor *dqkv = call->grad_inputs[0] = tr__tensor_new(call->inputs[0]->shape, g->dtype, tr__device_of(g));
    return tr__op_run(tr__op(self_attention_grad), call->attrs,
        (tr_tensor *[]){g, call->inputs[0], call->outputs[0], call->outputs[1]}, 4, &dqkv, 1);
}

/* ---- Public functions ---------------------------------------------------------------------------------------------- */

/* The keys that each sample has, as a mask [batch, 1, 1, keys]. */
static tr_tensor *mask_of_lengths(tr_tensor *lengths, const tr_tensor *k)
{
    int64_t batch = tr_size(k, 0), keys = tr_size(k, 2);
    if (tr__bad(lengths)) return tr__tensor_pass(lengths);
    bool numbers = lengths->dtype == TR_I64 || lengths->dtype == TR_I32;
    if (!numbers || lengths->shape.ndim != 1 || lengths->shape.dim[0] != batch)
        return tr__tensor_fail(TR_SHAPE, "attention: lengths are %s %s: they must be i64 or i32, [%lld], one for each sample",
            tr_dtype_name(lengths->dtype), TR__TEXT(lengths->shape), (long long)batch);
    tr_tensor *places = tr_reshape(tr_arange(keys, TR_I64, tr__device_of(lengths)), TR_SHAPE(1, 1, 1, keys));
    return tr_less(places, tr_reshape(tr_cast(lengths, TR_I64), TR_SHAPE(batch, 1, 1, 1)));
}

/* A mask for [batch, heads, …] as one for [batch * groups, heads / groups, …]. */
static tr_tensor *mask_of_groups(tr_tensor *mask, int64_t batch, int64_t heads, int64_t groups)
{
    tr_shape shape = mask->shape;
    bool shared = shape.ndim < 2 || shape.ndim > 4; /* by all heads; or it is refused */
    if (!shared && (shape.ndim < 3 || shape.dim[shape.ndim - 3] == 1)) shared = shape.ndim < 4 || shape.dim[0] == 1;
    if (shared) return mask;
    tr_shape whole = TR_SHAPE(batch, heads, shape.dim[shape.ndim - 2], shape.dim[shape.ndim - 1]);
    return tr_reshape(tr_expand(mask, whole), TR_SHAPE(batch * groups, heads / groups, whole.dim[2], whole.dim[3]));
}

/* Fewer heads of k and v than of q: each serves as many heads of q, one after the other. With q as
 * [batch * groups, heads / groups, queries, dim], k and v broadcast over the heads of a group. */
static tr_tensor *grouped(const tr_attention_attrs *attrs, tr_tensor *const *in)
{
    tr_shape q = in[0]->shape, k = in[1]->shape;
    int64_t batch = q.dim[0], groups = k.dim[1], each = q.dim[1] / groups;
    tr_tensor *parts[4] = {tr_reshape(in[0], TR_SHAPE(batch * groups, each, q.dim[2], q.dim[3]))};
    for (int i = 1; i < 3; i++)
        parts[i] = tr_expand(tr_reshape(in[i], TR_SHAPE(batch * groups, 1, k.dim[2], k.dim[3])),
            TR_SHAPE(batch * groups, each, k.dim[2], k.dim[3]));
    if (in[3]) parts[3] = mask_of_groups(in[3], batch, q.dim[1], groups);
    return tr_reshape(tr_apply(tr__op(attention), attrs, parts, 4, NULL), q);
}

static bool is_grouped(tr_tensor *const *in)
{
    for (int i = 0; i < 4; i++)
        if (i < 3 ? !in[i] || tr__bad(in[i]) || in[i]->shape.ndim != 4 : in[i] && tr__bad(in[i])) return false;
    const int64_t *q = in[0]->shape.dim, *k = in[1]->shape.dim;
    return tr__shape_equal(in[1]->shape, in[2]->shape) && q[0] == k[0] && k[1] > 0 && q[1] > k[1] && q[1] % k[1] == 0;
}

tr_tensor *tr_attention_with(const tr_attention_options *o)
{
    tr_attention_attrs attrs = {.causal = o->causal, .scale = TR__PASS(o, scale)};
    tr_tensor *in[] = {o->q, o->k, o->v, o->mask};
    if (o->lengths && o->k && !tr__bad(o->k)) {
        tr_tensor *mask = mask_of_lengths(o->lengths, o->k);
        in[3] = o->mask ? tr_minimum(o->mask, mask) : mask;
    }
    return is_grouped(in) ? grouped(&attrs, in) : tr_apply(tr__op(attention), &attrs, in, 4, NULL);
}

tr_tensor *tr_self_attention_with(const tr_self_attention_options *o)
{
    tr_attention_attrs attrs = {.heads = o->heads, .causal = o->causal, .scale = TR__PASS(o, scale)};
    return tr_apply(tr__op(self_attention), &attrs, (tr_tensor *[]){o->qkv}, 1, NULL);
}
