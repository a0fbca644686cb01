/* What the op cases are tried on, and what they give. */
#include "op_cases.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

static tr_tensor *integers(uint64_t seed, tr_shape shape, const op_input *input)
{
    tr_dtype dtype = input->values == OP_IDS32 ? TR_I32 : input->values == OP_MASK ? TR_BOOL : TR_I64;
    int64_t limit = input->values == OP_MASK ? 3 : input->limit, row = shape.ndim ? shape.dim[shape.ndim - 1] : 1;
    tr_tensor *t = tr_empty(shape, .dtype = dtype);
    for (int64_t i = 0; i < tr_numel(t); i++) {
        int64_t value = (int64_t)(tr__mix(seed, (uint64_t)i) % (uint64_t)limit);
        if (dtype == TR_I32) ((int32_t *)tr_data(t))[i] = (int32_t)value;
        if (dtype == TR_BOOL) ((bool *)tr_data(t))[i] = value > 0 || i % row == 0;
        if (dtype == TR_I64) ((int64_t *)tr_data(t))[i] = input->values == OP_LABELS && i % 5 == 1 ? -100 : value;
    }
    return t;
}

/* The numbers from -4 to 4 in equal steps, shuffled; their sizes differ, too. */
static tr_tensor *apart(uint64_t seed, tr_shape shape)
{
    tr_tensor *x = tr_empty(shape, .dtype = TR_F64);
    int64_t n = tr_numel(x);
    double *value = tr_data(x);
    for (int64_t i = 0; i < n; i++) {
        int64_t other = (int64_t)(tr__mix(seed, (uint64_t)i) % (uint64_t)(i + 1));
        value[i] = value[other];
        value[other] = 8 * ((double)i + 0.25) / (double)n - 4;
    }
    return x;
}

static tr_tensor *floats(uint64_t seed, tr_shape shape, op_values values)
{
    switch (values) {
    case OP_WIDE: return tr_affine(tr_randn(seed, shape, .dtype = TR_F64), 4, 0);
    case OP_POSITIVE: return tr_affine(tr_rand(seed, shape, .dtype = TR_F64), 2, 0.5);
    case OP_APART: return apart(seed, shape);
    case OP_GRID:
        return tr_affine(tr_cast(tr_cast(tr_affine(tr_rand(seed, shape, .dtype = TR_F64), 6, 0), TR_I64), TR_F64), 0.5,
                         -1);
    default: return tr_randn(seed, shape, .dtype = TR_F64);
    }
}

tr_tensor *op_case_spread(tr_tensor *x)
{
    tr_shape shape = tr_shape_of(x), spread = {.ndim = shape.ndim};
    int order[TR_MAX_DIMS];
    if (shape.ndim == 0) return x;
    if (shape.ndim == 1) { /* every other element of memory */
        tr_tensor *memory = tr_full(77, TR_SHAPE(shape.dim[0], 2), .dtype = tr_dtype_of(x));
        tr_tensor *place = tr_reshape(tr_slice(memory, 1, 1, 2), shape);
        TR_CHECK(tr_copy_into(place, x));
        return place;
    }
    for (int d = 0; d < shape.ndim; d++) {
        order[d] = shape.ndim - 1 - d;
        spread.dim[d] = shape.dim[order[d]];
    }
    spread.dim[0] += 1;
    spread.dim[spread.ndim - 1] += 3;
    tr_tensor *memory = tr_full(77, spread, .dtype = tr_dtype_of(x));
    tr_tensor *place = tr_permute(
        tr_slice(tr_slice(memory, 0, 1, spread.dim[0]), -1, 0, spread.dim[spread.ndim - 1] - 3), order, shape.ndim);
    TR_CHECK(tr_copy_into(place, x));
    return place;
}

/* By name (FNV-1a), so that a case's values stay what they are when another one is added or moved. */
static uint64_t seed_of(const char *name)
{
    uint64_t hash = 14695981039346656037u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 1099511628211u;
    return hash;
}

void op_case_inputs(const op_case *c, op_variant variant, bool requires_grad, tr_tensor **in)
{
    TR_NO_GRAD;
    for (int i = 0; i < c->n; i++) {
        const op_input *input = &c->inputs[i];
        tr_shape shape = input->shape;
        uint64_t seed = tr__mix(seed_of(c->name), (uint64_t)i);
        if (shape.ndim && !input->fixed) shape.dim[0] *= variant.batch;
        bool is_float = input->values <= OP_GRID;
        tr_tensor *x = is_float ? floats(seed, shape, input->values) : integers(seed, shape, input);
        if (is_float) x = tr_cast(tr_cast(x, variant.round_to), variant.dtype);
        if (variant.strided) x = op_case_spread(x);
        in[i] = is_float && requires_grad ? tr_require_grad(tr_detach(x)) : x;
    }
}

int64_t op_case_batch(const op_case *c, int64_t elements)
{
    TR_NO_GRAD;
    tr_tensor *in[OP_CASE_INPUTS] = {0};
    op_case_inputs(c, (op_variant){TR_F32, TR_F32, 1, false}, false, in);
    int64_t most = tr_numel(c->run(in));
    for (int i = 0; i < c->n; i++)
        if (tr_numel(in[i]) > most && !c->inputs[i].fixed) most = tr_numel(in[i]);
    return elements / most + 1;
}

static tr_tensor *as_f64(tr_tensor *t)
{
    return tr_contiguous(tr_cast(t, TR_F64));
}

op_result op_case_run(const op_case *c, tr_tensor *const *in, tr_tensor *(*gradient)(tr_tensor *out, const void *user),
    const void *user)
{
    op_result r = {0};
    tr_tensor *out = c->run(in);
    if (tr_status_of(out) != TR_OK) fail_msg("%s: %s", c->name, tr_error_message());
    if (tr_requires_grad(out) && tr_backward(out, .gradient = gradient(out, user)) != TR_OK)
        fail_msg("%s: %s", c->name, tr_error_message());
    TR_NO_GRAD;
    r.out = as_f64(out);
    for (int i = 0; i < c->n; i++)
        if (tr_grad(in[i])) r.grads[i] = as_f64(tr_grad(in[i]));
    return r;
}
