/* Multi-head attention (Vaswani et al. 2017), with the names and the start of PyTorch's. */
#include "nn/module.h"

#include "base/rng.h"

#include <inttypes.h>
#include <math.h>

typedef struct attention {
    tr_tensor *in_weight, *in_bias; /* [3*dim, dim], [3*dim]: of queries, keys and values, one behind the other */
    tr_module *out_proj;
    int64_t dim;
    int heads;
    bool causal;
} attention;

/* Part i of the input projection, by heads: x: [batch, seq, dim] -> [batch, heads, seq, dim/heads] */
static tr_tensor *project(const attention *a, tr_tensor *x, int i)
{
    if (tr_ndim(x) != 3)
        return tr_tensor_fail(TR_SHAPE, "an input is %s: it must be [batch, seq, dim]", TR__TEXT(tr_shape_of(x)));
    tr_tensor *weight = tr_slice(a->in_weight, 0, i * a->dim, (i + 1) * a->dim);
    tr_tensor *bias = tr_slice(a->in_bias, 0, i * a->dim, (i + 1) * a->dim);
    tr_tensor *y = tr_linear_op(x, weight, .bias = bias);
    tr_shape by_heads = TR_SHAPE(tr_size(x, 0), tr_size(x, 1), a->heads, a->dim / a->heads);
    return tr_transpose(tr_reshape(y, by_heads), 1, 2);
}

/* query: [batch, queries, dim], key, value: [batch, keys, dim], mask: [batch, keys] or as tr_attention() takes it
 * -> [batch, queries, dim] */
static tr_tensor *attend(const attention *a, tr_tensor *query, tr_tensor *key, tr_tensor *value, tr_tensor *mask)
{
    if (mask && tr_ndim(mask) == 2) mask = tr_reshape(mask, TR_SHAPE(tr_size(mask, 0), 1, 1, tr_size(mask, 1)));
    tr_tensor *q = project(a, query, 0), *k = project(a, key, 1), *v = project(a, value, 2);
    tr_tensor *o = tr_attention(q, k, v, .causal = a->causal, .mask = mask);
    return tr_reshape(tr_transpose(o, 1, 2), tr_shape_of(query));
}

static tr_tensor *attention_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const attention *a = self->state;
    tr_tensor *mask = n % 2 || n < 2 ? NULL : inputs[n - 1];
    if (n < 1 || n > 4 || (mask && tr_dtype_of(mask) != TR_BOOL))
        return tr_tensor_fail(TR_INVALID, "%s: it takes one input, or query, key and value, and behind them a bool mask or "
            "none, not %d inputs%s", self->name, n, mask ? " of which the last is another" : "");
    for (int i = 0; i < (n > 2 ? 3 : 1); i++)
        if (!inputs[i]) return tr_tensor_fail(TR_INVALID, "%s: input %d is NULL", self->name, i);
    tr_tensor *x = inputs[0], *o;
    if (n > 2) o = attend(a, x, inputs[1], inputs[2], mask);
    else if (mask) o = attend(a, x, x, x, mask);
    else o = tr_self_attention(tr_linear_op(x, a->in_weight, .bias = a->in_bias), a->heads, .causal = a->causal);
    return tr_forward(a->out_proj, o);
}

/* As a linear layer, but with a bias of zeros. */
static tr_module *out_projection(const tr_multihead_attention_options *o, uint64_t seed)
{
    tr_module *linear = tr_linear(o->dim, o->dim, .seed = seed, .dtype = o->dtype);
    tr_tensor *bias = tr_status_of(linear) == TR_OK ? tr_list_find(tr_parameters(linear), "bias") : NULL;
    if (!bias || tr_fill(bias, 0) == TR_OK) return linear;
    return (tr_module *)tr__object_failed(&tr__module_type);
}

tr_module *tr_multihead_attention_with(const tr_multihead_attention_options *o)
{
    if (o->dim < 1 || o->heads < 1 || o->dim % o->heads)
        return tr_module_fail(TR_INVALID, "multihead_attention: dim must be a multiple of heads, both positive: %" PRId64
            " and %d", o->dim, o->heads);
    TR_SCOPE;
    tr_module *module = tr_module_new("multihead_attention", sizeof(attention), attention_forward);
    attention *a = tr_module_state(module);
    if (!a) return tr_escape(module);
    a->dim = o->dim;
    a->heads = o->heads;
    a->causal = o->causal;
    tr_module_detail(module, "heads %d%s", a->heads, a->causal ? ", causal" : "");
    uint64_t seed = tr__seed_of(o, o->seed);
    double bound = sqrt(6 / (4.0 * (double)o->dim)); /* Xavier's, of dim inputs and 3*dim outputs */
    a->in_weight = tr_module_parameter(module, "in_proj_weight",
        tr__init_uniform(TR_SHAPE(3 * o->dim, o->dim), o->dtype, tr__mix(seed, 0), bound));
    a->in_bias = tr_module_parameter(module, "in_proj_bias", tr_zeros(TR_SHAPE(3 * o->dim), .dtype = o->dtype));
    a->out_proj = tr_module_add(module, "out_proj", out_projection(o, tr__mix(seed, 1)));
    return tr_escape(module);
}
