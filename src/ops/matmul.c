/*
 * Matrix products: matmul (with broadcast leading dimensions) and linear (with bias and residual), and linear's gradients.
 *
 * The reference kernel works in f64 whatever the dtype, in blocks that fit the cache, through any strides.
 */
#include "device/capture.h"
#include "ops/family.h"
#include "ops/gemm.h"
#include "ops/node.h"

#include <string.h>

/* ---- Shapes ------------------------------------------------------------------------------------------------------- */

/* a: [..., m, k], b: [..., k, n]; a may be [k] (read as [1, k]), b may be [k] (read as [k, 1]). */
tr_status tr__matmul_infer(tr_op_call *call)
{
    const tr_tensor *a = call->inputs[0], *b = call->inputs[1];
    TR__TRY(tr__float_input(call, 0));
    TR__TRY(tr__same(call, 0, 1));
    if (a->shape.ndim == 0 || b->shape.ndim == 0)
        return tr__fail(TR_SHAPE, "matmul: both need at least one dimension: %s x %s", TR__TEXT(a->shape), TR__TEXT(b->shape));
    int64_t inner = tr_size(b, b->shape.ndim == 1 ? 0 : -2);
    if (tr_size(a, -1) != inner)
        return tr__fail(TR_SHAPE, "matmul: inner sizes differ: %s x %s", TR__TEXT(a->shape), TR__TEXT(b->shape));
    tr_shape out, a_lead = a->shape, b_lead = b->shape;
    a_lead.ndim = a->shape.ndim > 2 ? a->shape.ndim - 2 : 0;
    b_lead.ndim = b->shape.ndim > 2 ? b->shape.ndim - 2 : 0;
    TR__TRY(tr__broadcast("matmul: leading dimensions", a_lead, b_lead, &out));
    if (a->shape.ndim > 1) out.dim[out.ndim++] = tr_size(a, -2);
    if (b->shape.ndim > 1) out.dim[out.ndim++] = tr_size(b, -1);
    return tr_op_output(call, 0, out, a->dtype);
}

/* On a device the rows of a large 16-bit output begin at multiples of 64 elements, also where its last dimension is no multiple of
 * 8, as a vocabulary of 50257: the fast gemms there need aligned rows. */
static tr_status output_in_rows(tr_op_call *call, tr_shape shape, tr_dtype dtype)
{
    enum { STEP = 64, WORTH = 512 };
    tr_device device = tr__device_of(call->inputs[0]);
    int64_t *last = &shape.dim[shape.ndim - 1], n = *last;
    if (device.kind == TR_CPU || tr_dtype_size(dtype) != 2 || n % 8 == 0 || n < WORTH || tr__numel(shape) / n < WORTH)
        return tr_op_output(call, 0, shape, dtype);
    *last = (n + STEP - 1) / STEP * STEP;
    tr_tensor *out = tr__tensor_new(shape, dtype, device);
    if (!tr__bad(out)) out->shape.dim[shape.ndim - 1] = n;
    return tr__output_made(call, 0, out);
}

tr_status tr__linear_infer(tr_op_call *call)
{
    const tr_linear_attrs *attrs = call->attrs;
    const tr_tensor *x = call->inputs[0], *w = call->inputs[1], *bias = call->inputs[2], *residual = call->inputs[3];
    TR__TRY(tr__float_input(call, 0));
    TR__TRY(tr__parameter_input(call, 1));
    if ((unsigned)attrs->activation >= TR_ACTIVATION_COUNT)
        return tr__fail(TR_INVALID, "linear: %d is no activation; TR_GELU_EXACT is the last", (int)attrs->activation);
    if (x->shape.ndim < 1 || w->shape.ndim != 2 || tr_size(x, -1) != w->shape.dim[attrs->in_out ? 0 : 1])
        return tr__fail(TR_SHAPE, "linear: input %s does not fit weight %s, which is %s", TR__TEXT(x->shape),
            TR__TEXT(w->shape), attrs->in_out ? "[in, out]" : "[out, in]");
    int64_t out = w->shape.dim[attrs->in_out ? 1 : 0];
    tr_shape shape = x->shape;
    shape.dim[shape.ndim - 1] = out;
    if (bias) {
        TR__TRY(tr__parameter_input(call, 2));
        if (!tr__shape_equal(bias->shape, TR_SHAPE(out)))
            return tr__fail(TR_SHAPE, "linear: bias is %s, it should be [%lld]", TR__TEXT(bias->shape), (long long)out);
    }
    if (residual) {
        TR__TRY(tr__same(call, 0, 3));
        if (!tr__shape_equal(residual->shape, shape))
            return tr__fail(TR_SHAPE, "linear: residual is %s, it should be %s", TR__TEXT(residual->shape), TR__TEXT(shape));
    }
    return output_in_rows(call, shape, x->dtype);
}

/* ---- Products as matrices ------------------------------------------------------------------------------------------ */

tr__axis tr__axis_of(int ndim, const int64_t *dim, const int64_t *stride)
{
    tr__axis axis = {.n = 1, .ndim = 1, .dim = {1}};
    for (int i = 0, filled = 0; i < ndim; i++) {
        axis.n *= dim[i];
        if (dim[i] == 1) continue;
        int last = axis.ndim - 1;
        if (filled && axis.stride[last] == dim[i] * stride[i]) {
            axis.dim[last] *= dim[i];
            axis.stride[last] = stride[i];
            continue;
        }
        if (filled) last = axis.ndim++;
        axis.dim[last] = dim[i];
        axis.stride[last] = stride[i];
        filled = 1;
    }
    return axis;
}

static tr__matrix matrix_view(const tr_tensor *x, int first_row, int rows, int columns)
{
    return (tr__matrix){
        .dtype = x->dtype,
        .data = tr__ptr(x),
        .row = tr__axis_of(rows, x->shape.dim + first_row, x->stride + first_row),
        .column = tr__axis_of(columns, x->shape.dim + first_row + rows, x->stride + first_row + rows),
    };
}

tr__matrix tr__matrix_of(const tr_tensor *x)
{
    return matrix_view(x, 0, x->shape.ndim - 1, 1);
}

static const tr__axis one_product = {.n = 1, .ndim = 1, .dim = {1}};

static tr__axis batch_axis(const tr_tensor *x, int own_dims, tr_shape batch)
{
    tr_tensor leading = {.shape = x->shape};
    leading.shape.ndim -= own_dims;
    memcpy(leading.stride, x->stride, sizeof leading.stride);
    int64_t stride[TR_MAX_DIMS];
    tr__broadcast_strides(&leading, batch, stride);
    return tr__axis_of(batch.ndim, batch.dim, stride);
}

static tr__gemm matmul_product(const tr_op_call *call)
{
    const tr_tensor *a = call->inputs[0], *b = call->inputs[1], *c = call->outputs[0];
    int a_dims = a->shape.ndim > 1 ? 2 : 1, b_dims = b->shape.ndim > 1 ? 2 : 1;
    int a_lead = a->shape.ndim - a_dims, b_lead = b->shape.ndim - b_dims;
    tr__gemm p = {.b = matrix_view(b, b_lead, 1, b_dims - 1)};
    if (b_lead == 0) { /* the leading dimensions of a are rows like the others */
        p.a = tr__matrix_of(a);
        p.c = matrix_view(c, 0, a->shape.ndim - 1, b_dims - 1);
        p.a_batch = p.b_batch = p.c_batch = one_product;
        return p;
    }
    tr_shape batch = c->shape;
    batch.ndim -= (a_dims - 1) + (b_dims - 1);
    p.a = matrix_view(a, a_lead, a_dims - 1, 1);
    p.c = matrix_view(c, batch.ndim, a_dims - 1, b_dims - 1);
    p.a_batch = batch_axis(a, a_dims, batch);
    p.b_batch = batch_axis(b, b_dims, batch);
    p.c_batch = tr__axis_of(batch.ndim, c->shape.dim, c->stride);
    return p;
}

tr__gemm tr__gemm_of(const tr_op_call *call)
{
    if (call->op == tr__op(matmul)) return matmul_product(call);
    const tr_linear_attrs *attrs = call->attrs;
    tr__gemm p = {.a_batch = one_product, .b_batch = one_product, .c_batch = one_product};
    p.a = tr__matrix_of(call->inputs[0]);
    p.b = tr__matrix_of(call->inputs[1]);
    p.accumulate = attrs->accumulate;
    if (call->outputs[0]) p.c = tr__matrix_of(call->outputs[0]);
    if (call->op == tr__op(linear)) {
        if (!attrs->in_out) p.b = tr__matrix_transposed(p.b);
        p.bias = call->inputs[2];
        if (call->inputs[3]) p.residual = tr__matrix_of(call->inputs[3]);
        p.accumulate = false;
        p.a_activation = attrs->activation;
    } else if (call->op == tr__op(linear_grad_input)) {
        if (attrs->in_out) p.b = tr__matrix_transposed(p.b);
        p.slope = attrs->activation;
        if (p.slope) p.slope_at = tr__matrix_of(call->inputs[2]);
    } else if (attrs->in_out) { /* dw: [in, out] = x^T g */
        tr__matrix g = p.a;
        p.a = tr__matrix_transposed(p.b);
        p.b = g;
        p.a_activation = attrs->activation;
    } else { /* dw: [out, in] = g^T x */
        p.a = tr__matrix_transposed(p.a);
        p.b_activation = attrs->activation;
    }
    return p;
}

/* ---- Reference ----------------------------------------------------------------------------------------------------- */

enum { ROWS = 32, COLUMNS = 64, DEPTH = 128 }; /* of a block: 32 KB of a, 64 KB of b, 16 KB of c, in f64 */

typedef struct blocks {
    const tr__gemm *p;
    int64_t row_blocks; /* per product */
} blocks;

static void load_block(const tr__matrix *m, int64_t offset, int64_t row, int64_t rows, int64_t column, int64_t columns,
    double *out, int64_t ld)
{
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = offset + tr__axis_at(&m->row, row + i);
        for (int64_t j = 0; j < columns; j++)
            out[i * ld + j] = tr__load(m->dtype, m->data, at + tr__axis_at(&m->column, column + j));
    }
}

static void multiply_blocks(const double *a, const double *b, int64_t rows, int64_t depth, double *c)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < depth; k++) {
            double scale = a[i * DEPTH + k];
            for (int64_t j = 0; j < COLUMNS; j++) c[i * COLUMNS + j] += scale * b[k * COLUMNS + j];
        }
    }
}

static void store_block(const tr__gemm *p, int64_t offset, int64_t row, int64_t rows, int64_t column, int64_t columns,
    const double *c)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            int64_t at = offset + tr__axis_at(&p->c.row, row + i) + tr__axis_at(&p->c.column, column + j);
            double value = c[i * COLUMNS + j];
            if (p->bias) value += tr__load(p->bias->dtype, tr__ptr(p->bias), (column + j) * p->bias->stride[0]);
            if (p->residual.data) {
                const tr__matrix *r = &p->residual;
                value += tr__load(r->dtype, r->data, tr__axis_at(&r->row, row + i) + tr__axis_at(&r->column, column + j));
            }
            if (p->accumulate) value += tr__load(p->c.dtype, p->c.data, at);
            tr__store(p->c.dtype, p->c.data, at, value);
        }
    }
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void multiply_rows(void *arg, int64_t begin, int64_t end)
{
    const blocks *work = arg;
    const tr__gemm *p = work->p;
    int64_t m = p->a.row.n, n = p->b.column.n, k = p->a.column.n;
    double a[ROWS * DEPTH], b[DEPTH * COLUMNS], c[ROWS * COLUMNS];
    for (int64_t block = begin; block < end; block++) {
        int64_t product = block / work->row_blocks, i = block % work->row_blocks * ROWS, rows = least(ROWS, m - i);
        int64_t at_a = tr__axis_at(&p->a_batch, product), at_b = tr__axis_at(&p->b_batch, product);
        int64_t at_c = tr__axis_at(&p->c_batch, product);
        for (int64_t j = 0; j < n; j += COLUMNS) {
            int64_t columns = least(COLUMNS, n - j);
            memset(c, 0, sizeof c);
            if (columns < COLUMNS) memset(b, 0, sizeof b);
            for (int64_t at = 0; at < k; at += DEPTH) {
                int64_t depth = least(DEPTH, k - at);
                load_block(&p->a, at_a, i, rows, at, depth, a, DEPTH);
                load_block(&p->b, at_b, at, depth, j, columns, b, COLUMNS);
                multiply_blocks(a, b, rows, depth, c);
            }
            store_block(p, at_c, i, rows, j, columns, c);
        }
    }
}

tr_status tr__bias_gradient(const tr_op_call *call)
{
    if (call->op != tr__op(linear_grad_weight) || call->n_outputs < 2 || !call->outputs[1]) return TR_OK;
    TR_SCOPE;
    tr_tensor *g = call->inputs[0];
    uint32_t rows = (1u << (g->shape.ndim - 1)) - 1;
    return tr__sum_onto(g, rows, call->outputs[1], ((const tr_linear_attrs *)call->attrs)->accumulate_bias);
}

static tr_status reference(tr_op_call *call)
{
    tr__gemm p = tr__gemm_of(call);
    blocks work = {&p, (p.a.row.n + ROWS - 1) / ROWS};
    tr__pool_for(tr__pool_of(call->inputs[0]), p.c_batch.n * work.row_blocks, 1, multiply_rows, &work);
    return TR_OK;
}

tr_status tr__matmul_forward(tr_op_call *call) { return reference(call); }

/* Where no kernel takes the activation along, it is an op of its own before or after the product, by the best kernels. */
static const struct { const tr_op *value, *grad; } activations[TR_ACTIVATION_COUNT] = {
    [TR_RELU] = {tr__op(relu), tr__op(relu_grad)},
    [TR_GELU] = {tr__op(gelu), tr__op(gelu_grad)},
    [TR_GELU_EXACT] = {tr__op(gelu_exact), tr__op(gelu_exact_grad)},
};

static tr_linear_attrs without_activation(const tr_op_call *call)
{
    tr_linear_attrs attrs = *(const tr_linear_attrs *)call->attrs;
    attrs.activation = TR_NO_ACTIVATION;
    return attrs;
}

/* The same call with inputs[which] activated beforehand. */
static tr_status activate_first(tr_op_call *call, int which)
{
    TR_SCOPE;
    const tr_linear_attrs *attrs = call->attrs, plain = without_activation(call);
    tr_tensor *inputs[TR_OP_MAX_INPUTS] = {NULL}, *y = tr__tensor_new_like(call->inputs[which]);
    memcpy(inputs, call->inputs, sizeof *inputs * (size_t)call->n_inputs);
    TR__TRY(tr__op_run(activations[attrs->activation].value, NULL, &inputs[which], 1, &y, 1));
    inputs[which] = y;
    return tr__op_run(call->op, &plain, inputs, call->n_inputs, call->outputs, call->n_outputs);
}

tr_status tr__linear_forward(tr_op_call *call)
{
    return ((const tr_linear_attrs *)call->attrs)->activation ? activate_first(call, 0) : reference(call);
}

tr_status tr__linear_grad_input_forward(tr_op_call *call)
{
    const tr_linear_attrs *attrs = call->attrs;
    if (!attrs->activation) return reference(call);
    TR_SCOPE;
    tr_linear_attrs plain = without_activation(call);
    tr_tensor *dx = call->outputs[0], *of_product = tr__tensor_new_like(dx);
    tr_tensor *sum = attrs->accumulate ? tr__tensor_new_like(dx) : dx;
    plain.accumulate = false;
    TR__TRY(tr__op_run(call->op, &plain, call->inputs, 2, &of_product, 1));
    TR__TRY(tr__op_run(activations[attrs->activation].grad, NULL, (tr_tensor *[]){of_product, call->inputs[2]}, 2, &sum, 1));
    return sum == dx ? TR_OK : tr__add_onto(dx, sum);
}

tr_status tr__linear_grad_weight_forward(tr_op_call *call)
{
    if (call->outputs[0] && ((const tr_linear_attrs *)call->attrs)->activation) return activate_first(call, 1);
    if (call->outputs[0]) TR__TRY(reference(call));
    return tr__bias_gradient(call);
}

/* ---- Gradients ----------------------------------------------------------------------------------------------------- */

/* c = a b: da = g b^T, db = a^T g, each summed over what was broadcast. Vectors take part as matrices: [..., k] read as
 * [..., k, 1] or [..., 1, k]. */
tr_status tr__matmul_backward(tr_backward_call *call)
{
    tr_tensor *a = call->inputs[0], *b = call->inputs[1], *g = call->grad_outputs[0];
    if (!g) return TR_OK;
    tr_shape a_shape = a->shape, b_shape = b->shape;
    if (b_shape.ndim == 1) {
        b = tr_unsqueeze(b, 1);
        g = tr_unsqueeze(g, -1);
    }
    if (a_shape.ndim == 1) {
        a = tr_unsqueeze(a, 0);
        g = tr_unsqueeze(g, -2);
    }
    if (call->needs[0]) {
        tr_tensor *da = tr__sum_to(tr_matmul(g, tr_transpose(b, -1, -2)), a->shape);
        call->grad_inputs[0] = a_shape.ndim == 1 ? tr_reshape(da, a_shape) : da;
        TR__TRY(tr_status_of(call->grad_inputs[0]));
    }
    if (!call->needs[1]) return TR_OK;
    if (b->shape.ndim == 2 && a->shape.ndim > 2) { /* one product over all rows rather than a sum of many */
        int64_t rows = 1;
        for (int d = 0; d < a->shape.ndim - 1; d++) rows *= a->shape.dim[d];
        a = tr_reshape(a, TR_SHAPE(rows, tr_size(a, -1)));
        g = tr_reshape(g, TR_SHAPE(rows, tr_size(g, -1)));
    }
    tr_tensor *db = tr__sum_to(tr_matmul(tr_transpose(a, -1, -2), g), b->shape);
    call->grad_inputs[1] = b_shape.ndim == 1 ? tr_reshape(db, b_shape) : db;
    return tr_status_of(call->grad_inputs[1]);
}

enum { LARGE_GRADIENT = 64 << 20, GRADIENT_BLOCK = 16 << 20 }; /* bytes */

/* Is the gradient of a large weight computed by blocks of rows? *consumer: who takes these one by one, so that there need not be
 * memory for all of it, or NULL. On the CPU they are the same blocks when nobody does: a gemm chooses its kernel by shape, and
 * whether an optimizer steps in backward is not to change a bit. Not behind an activation, which would be computed again for
 * each block, and not in a captured step, whose launches each count as a parameter's step. */
static bool goes_by_rows(const tr_backward_call *call, tr__grad_consumer **consumer)
{
    const tr_linear_attrs *attrs = call->attrs;
    const tr__backward_step *step = (const tr__backward_step *)(const void *)call;
    const tr__input *weight = &step->node->inputs[1];
    size_t bytes = (size_t)tr__numel(weight->shape) * tr_dtype_size(weight->dtype);
    *consumer = NULL;
    if (!step->sole[1] || attrs->in_out || attrs->activation || bytes < LARGE_GRADIENT || tr__capture_now()) return false;
    *consumer = tr__takes_rows(call, 1);
    return *consumer || weight->device.kind == TR_CPU;
}

/* g: [..., n], in rows; the weight: [n, k]. Into `whole` as attrs says, or, where there is a consumer, to it. */
static tr_status give_weight_by_rows(const tr_backward_call *call, const tr_linear_attrs *attrs, tr_tensor *g, tr_tensor *whole,
    tr__grad_consumer *consumer)
{
    const tr__input *weight = &((const tr__backward_step *)(const void *)call)->node->inputs[1];
    int64_t n = weight->shape.dim[0], k = weight->shape.dim[1];
    int64_t rows = GRADIENT_BLOCK / (k * (int64_t)tr_dtype_size(weight->dtype)) / 64 * 64; /* gemms take whole tiles */
    if (rows < 64) rows = 64;
    for (int64_t first = 0; first < n; first += rows) {
        TR_SCOPE;
        int64_t end = first + rows < n ? first + rows : n;
        tr_tensor *some = tr_contiguous(tr_slice(g, g->shape.ndim - 1, first, end));
        tr_tensor *dw = whole ? tr_slice(whole, 0, first, end)
                              : tr__tensor_new(TR_SHAPE(end - first, k), weight->dtype, weight->device);
        TR__TRY_ALL(some, dw);
        TR__TRY(tr__op_run(tr__op(linear_grad_weight), attrs, (tr_tensor *[]){some, call->inputs[0]}, 2,
            (tr_tensor *[]){dw, NULL}, 2));
        if (consumer) TR__TRY(consumer->consume_rows(consumer, dw, first));
    }
    return TR_OK;
}

/* y = f(x) w^T + bias + residual: dx = g w * f'(x), dw = g^T f(x), dbias = the rows of g summed, dresidual = g. */
tr_status tr__linear_backward(tr_backward_call *call)
{
    tr_tensor *g = call->grad_outputs[0];
    if (!g) return TR_OK;
    if (call->needs[3]) call->grad_inputs[3] = g;
    if (!call->needs[0] && !call->needs[1] && !call->needs[2]) return TR_OK;
    if (tr__device_of(g).kind == TR_CPU || !tr__is_in_rows(g)) g = tr_contiguous(g);
    TR__TRY(tr_status_of(g));
    if (call->needs[0]) {
        tr_linear_attrs attrs = *(const tr_linear_attrs *)call->attrs;
        tr_tensor *dx = tr__grad_target(call, 0, &attrs.accumulate);
        tr_tensor *inputs[] = {g, call->inputs[1], call->inputs[0]};
        TR__TRY(tr__op_run(tr__op(linear_grad_input), &attrs, inputs, attrs.activation ? 3 : 2, &dx, 1));
        call->grad_inputs[0] = dx;
    }
    if (!call->needs[1] && !call->needs[2]) return TR_OK;
    tr_linear_attrs attrs = *(const tr_linear_attrs *)call->attrs;
    tr_tensor *dw = NULL, *db = NULL;
    tr__grad_consumer *consumer;
    bool by_rows = goes_by_rows(call, &consumer);
    if (call->needs[1] && !consumer) dw = tr__grad_target(call, 1, &attrs.accumulate);
    if (call->needs[2]) db = tr__grad_target(call, 2, &attrs.accumulate_bias);
    TR__TRY_ALL(dw, db);
    tr_tensor *at_once[2] = {by_rows ? NULL : dw, db};
    if (at_once[0] || at_once[1])
        TR__TRY(tr__op_run(tr__op(linear_grad_weight), &attrs, (tr_tensor *[]){g, call->inputs[0]}, 2, at_once, 2));
    call->grad_inputs[1] = dw;
    call->grad_inputs[2] = db;
    return by_rows ? give_weight_by_rows(call, &attrs, g, dw, consumer) : TR_OK;
}

/* ---- Public functions ---------------------------------------------------------------------------------------------- */

tr_tensor *tr_matmul(tr_tensor *a, tr_tensor *b)
{
    return tr_apply(tr__op(matmul), NULL, (tr_tensor *[]){a, b}, 2, NULL);
}

tr_tensor *tr_linear_op_with(const tr_linear_op_options *o)
{
    tr_linear_attrs attrs = {.in_out = o->in_out, .activation = o->activation};
    /* Under autocast a residual keeps its dtype: only the product is low. */
    bool apart = o->residual && tr_autocast() != TR_F32;
    tr_tensor *inputs[] = {o->x, o->weight, o->bias, apart ? NULL : o->residual};
    tr_tensor *y = tr_apply(tr__op(linear), &attrs, inputs, 4, NULL);
    return apart ? tr_add(o->residual, y) : y;
}
