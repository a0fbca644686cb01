/*
 * matmul, linear and linear's gradients, by cuBLASLt, or by the product of gemm.h, which takes any strides. An activation
 * on the way into a product is applied to a copy; its slope on the way out is applied in place, or, GELU's to 16-bit numbers,
 * by cuBLASLt.
 */
#include "activations.h"
#include "elementwise.h"
#include "families.h"
#include "gemm.h"
#include "product.h"

/* ---- Calls as products ------------------------------------------------------------------------------------------- */

static matrix_view view_of(const tr_device_tensor &x, int first_row, int rows, int columns)
{
    return matrix_view{x.dtype, x.data, axis_of(rows, x.shape.dim + first_row, x.stride + first_row),
        axis_of(columns, x.shape.dim + first_row + rows, x.stride + first_row + rows)};
}

/* x: [..., n]: all dimensions but the last are rows. */
static matrix_view matrix_of(const tr_device_tensor &x)
{
    return view_of(x, 0, x.shape.ndim - 1, 1);
}

static matrix_view transposed(const matrix_view &m)
{
    return matrix_view{m.dtype, m.data, m.column, m.row};
}

/* One product. */
static product product_of(const matrix_view &a, const matrix_view &b, const matrix_view &c)
{
    const axis one = axis_of(0, nullptr, nullptr);
    return product{a, b, c, one, one, one, nullptr, {}, {}, false};
}

/* The leading dimensions of x, broadcast to those of the product. */
static axis batch_of(const tr_device_tensor &x, int own_dims, const tr_shape &batch)
{
    int64_t stride[TR_MAX_DIMS];
    int missing = batch.ndim - (x.shape.ndim - own_dims);
    for (int d = 0; d < batch.ndim; d++)
        stride[d] = d < missing || (x.shape.dim[d - missing] == 1 && batch.dim[d] != 1) ? 0 : x.stride[d - missing];
    return axis_of(batch.ndim, batch.dim, stride);
}

static product matmul_product(const job &j)
{
    const tr_device_tensor &a = j.in(0), &b = j.in(1), &c = j.out(0);
    int a_dims = a.shape.ndim > 1 ? 2 : 1, b_dims = b.shape.ndim > 1 ? 2 : 1, b_lead = b.shape.ndim - b_dims;
    if (b_lead == 0) /* the leading dimensions of a are rows like the others */
        return product_of(matrix_of(a), view_of(b, 0, 1, b_dims - 1), view_of(c, 0, a.shape.ndim - 1, b_dims - 1));
    tr_shape batch = c.shape;
    batch.ndim -= (a_dims - 1) + (b_dims - 1);
    product p = product_of(view_of(a, a.shape.ndim - a_dims, a_dims - 1, 1), view_of(b, b_lead, 1, b_dims - 1),
                           view_of(c, batch.ndim, a_dims - 1, b_dims - 1));
    p.a_batch = batch_of(a, a_dims, batch);
    p.b_batch = batch_of(b, b_dims, batch);
    p.c_batch = axis_of(batch.ndim, c.shape.dim, c.stride);
    return p;
}

/* ---- The own product --------------------------------------------------------------------------------------------- */

template <class C> struct epilogue {
    matrix_view c, residual;
    axis batch;
    const void *bias;
    tr_dtype bias_dtype;
    int64_t bias_step;
    bool accumulate;

    __device__ void operator()(int64_t n, int64_t i, int64_t k, C sum, unsigned) const
    {
        int64_t at = batch.at(n) + c.row.at(i) + c.column.at(k);
        if (bias) sum += load_as<C>(bias_dtype, bias, k * bias_step);
        if (residual.data) sum += load_as<C>(residual.dtype, residual.data, residual.row.at(i) + residual.column.at(k));
        if (accumulate) sum += load_as<C>(c.dtype, c.data, at);
        store_as<C>(c.dtype, c.data, at, sum);
    }
};

static int64_t inner_stride(const axis &a)
{
    return a.stride[a.ndim - 1];
}

template <class T> static tr_status own_product(const job &j, const product &p)
{
    using C = compute_of<T>;
    gemm::matrix<T> a = {(const T *)p.a.data, p.a.row, p.a.column, p.a_batch,
                         inner_stride(p.a.column) <= inner_stride(p.a.row)};
    gemm::matrix<T> b = {(const T *)p.b.data, p.b.column, p.b.row, p.b_batch,
                         inner_stride(p.b.row) < inner_stride(p.b.column)};
    epilogue<C> out = {p.c, p.residual, p.c_batch, p.bias ? p.bias->data : nullptr, p.bias ? p.bias->dtype : TR_F32,
        p.bias ? p.bias->stride[0] : 0, p.accumulate};
    return gemm::run<C>(j, p.c_batch.n, p.a.row.n, p.b.column.n, p.a.column.n, a, b, out);
}

static tr_status run_whole(const job &j, const product &p)
{
    tr_status status = cublaslt_product(j, p);
    if (status != TR_DECLINED || p.gelu_input.data) return status;
    return for_float(p.a.dtype, [&](auto t) { return own_product<typename decltype(t)::type>(j, p); });
}

/* ---- Odd sizes -----------------------------------------------------------------------------------------------------
 * cuBLASLt's fast kernels take 16-bit matrices whose rows begin at, and have, a multiple of 8 numbers; on an H200 the others
 * take five times as long. The library lets rows begin there (src/ops/matmul.c); a large product of which one size is no
 * multiple, as GPT-2's of 50257 words, is computed in two: of as many as are, and of the rest. */

enum { PACK = 8, WORTH_SPLITTING = 512 };

/* Do rows, or columns where those are neighbours, begin at multiples? */
static bool is_aligned(const matrix_view &m)
{
    if (m.row.ndim != 1 || m.column.ndim != 1) return false;
    return (m.column.stride[0] == 1 ? m.row : m.column).stride[0] % PACK == 0;
}

/* Is this size of two matrices no multiple of PACK, and one of them contiguous along it? */
static bool is_odd(const axis &in_one, const axis &in_other)
{
    return in_one.n % PACK != 0 && (in_one.stride[0] == 1 || in_other.stride[0] == 1);
}

/* n rows or columns of m. */
static matrix_view part_of(const matrix_view &m, axis matrix_view::*along, int64_t first, int64_t n)
{
    matrix_view part = m;
    part.data = (char *)m.data + first * (m.*along).stride[0] * (int64_t)host->dtype_size(m.dtype);
    part.*along = axis_of(1, &n, (m.*along).stride);
    return part;
}

static tr_device_tensor tensor_of(const matrix_view &m)
{
    tr_device_tensor t = dense_view(m.data, m.dtype, tr_shape{2, {m.row.n, m.column.n}});
    t.stride[0] = m.row.stride[0];
    t.stride[1] = m.column.stride[0];
    return t;
}

/* Adds up the parts' products in f32, and rounds once. */
static tr_status run_inner_parts(const job &j, const product &p)
{
    bool rounds = p.c.dtype != TR_F32;
    int64_t n = p.a.column.n, whole = n - n % PACK, one = 1, width = p.c.column.n;
    scratch memory(j, rounds ? (size_t)(p.c.row.n * width) * sizeof(float) : 0);
    TRY(memory.status());
    product first = p, rest;
    if (rounds)
        first.c = matrix_view{TR_F32, memory.as<void>(), axis_of(1, &p.c.row.n, &width), axis_of(1, &width, &one)};
    if (rounds && p.accumulate) TRY(copy_into(j, tensor_of(first.c), tensor_of(p.c)));
    rest = first;
    first.a = part_of(p.a, &matrix_view::column, 0, whole);
    first.b = part_of(p.b, &matrix_view::row, 0, whole);
    TRY(run_whole(j, first));
    rest.a = part_of(p.a, &matrix_view::column, whole, n - whole);
    rest.b = part_of(p.b, &matrix_view::row, whole, n - whole);
    rest.bias = nullptr;
    rest.accumulate = true;
    TRY(run_whole(j, rest));
    return rounds ? copy_into(j, tensor_of(p.c), tensor_of(first.c)) : TR_OK;
}

static tr_status run_product(const job &j, const product &p)
{
    int64_t rows = p.a.row.n, columns = p.b.column.n;
    if (p.c_batch.n != 1 || p.residual.data || p.gelu_input.data || host->dtype_size(p.a.dtype) != 2 ||
        least(least(rows, columns), p.a.column.n) < WORTH_SPLITTING || !is_aligned(p.a) || !is_aligned(p.b) || !is_aligned(p.c))
        return run_whole(j, p);
    if (is_odd(p.a.column, p.b.row)) return run_inner_parts(j, p);
    bool by_rows = is_odd(p.a.row, p.c.row);
    if (!by_rows && !is_odd(p.b.column, p.c.column)) return run_whole(j, p);
    int64_t n = by_rows ? rows : columns, whole = n - n % PACK;
    for (int rest = 0; rest < 2; rest++) {
        int64_t first = rest ? whole : 0, count = rest ? n - whole : whole;
        axis matrix_view::*along = by_rows ? &matrix_view::row : &matrix_view::column;
        product part = p;
        (by_rows ? part.a : part.b) = part_of(by_rows ? p.a : p.b, along, first, count);
        part.c = part_of(p.c, along, first, count);
        tr_device_tensor bias = p.bias ? *p.bias : tr_device_tensor{};
        bias.data = (char *)bias.data + (by_rows ? 0 : first * bias.stride[0] * (int64_t)host->dtype_size(bias.dtype));
        bias.shape.dim[0] = by_rows ? bias.shape.dim[0] : count;
        if (p.bias) part.bias = &bias;
        TRY(run_product(j, part));
    }
    return TR_OK;
}

tr_status cuda_matmul(const job &j)
{
    return run_product(j, matmul_product(j));
}

/* ---- linear ------------------------------------------------------------------------------------------------------ */

struct activation_of {
    tr_activation_kind kind;
    template <class C> __device__ C operator()(C x) const { return activated(kind, x); }
};

/* x, or in memory of its own what the activation makes of it. */
class input {
public:
    input(const job &j, const tr_device_tensor &x, tr_activation_kind kind)
        : memory(j, kind ? (size_t)numel(x) * host->dtype_size(x.dtype) : 0), tensor(x), state(memory.status())
    {
        if (!kind || state != TR_OK) return;
        tensor = dense_view(memory.as<void>(), x.dtype, x.shape);
        state = map_into<1>(j, tensor, &x, activation_of{kind});
    }
    tr_status status() const { return state; }
    const tr_device_tensor &view() const { return tensor; }

private:
    scratch memory;
    tr_device_tensor tensor;
    tr_status state;
};

/* Parameters may be f32 beside x of 16 bits: they are rounded to its dtype. */
tr_status cuda_linear(const job &j)
{
    const tr_linear_attrs &a = j.attrs<tr_linear_attrs>();
    input x(j, j.in(0), a.activation);
    staged weight(j, j.in(1), j.in(0).dtype, nullptr);
    TRY(x.status());
    TRY(weight.status());
    matrix_view w = matrix_of(weight.view());
    product p = product_of(matrix_of(x.view()), a.in_out ? w : transposed(w), matrix_of(j.out(0)));
    if (j.has_in(2)) p.bias = &j.in(2);
    if (j.has_in(3)) p.residual = matrix_of(j.in(3));
    return run_product(j, p);
}

/* (dx +) product * f'(x) */
struct slope_of {
    tr_activation_kind kind;
    template <class C> __device__ C operator()(C product, C x) const { return times_slope(kind, product, x); }
    template <class C> __device__ C operator()(C product, C x, C dx) const { return dx + (*this)(product, x); }
};

tr_status cuda_linear_grad_input(const job &j)
{
    const tr_linear_attrs &a = j.attrs<tr_linear_attrs>();
    const tr_device_tensor &dx = j.out(0);
    staged weight(j, j.in(1), j.in(0).dtype, nullptr);
    TRY(weight.status());
    matrix_view w = matrix_of(weight.view());
    product p = product_of(matrix_of(j.in(0)), a.in_out ? transposed(w) : w, matrix_of(dx));
    /* cuBLASLt's own slope of GELU is good to five digits or so, which 16-bit numbers do not show. */
    if (a.activation == TR_GELU && !a.accumulate && host->dtype_size(dx.dtype) == 2) {
        p.gelu_input = matrix_of(j.in(2));
        tr_status status = run_product(j, p);
        if (status != TR_DECLINED) return status;
        p.gelu_input = {};
    }
    scratch memory(j, a.activation ? (size_t)numel(dx) * host->dtype_size(dx.dtype) : 0);
    TRY(memory.status());
    tr_device_tensor made = a.activation ? dense_view(memory.as<void>(), dx.dtype, dx.shape) : dx;
    p.c = matrix_of(made);
    p.accumulate = a.accumulate && !a.activation;
    TRY(run_product(j, p));
    if (!a.activation) return TR_OK;
    const tr_device_tensor in[] = {made, j.in(2), dx};
    return a.accumulate ? map_into<3>(j, dx, in, slope_of{a.activation}) : map_into<2>(j, dx, in, slope_of{a.activation});
}

tr_status cuda_linear_grad_weight(const job &j)
{
    const tr_linear_attrs &a = j.attrs<tr_linear_attrs>();
    const tr_device_tensor &g = j.in(0);
    if (j.has_out(1)) TRY(sum_onto(j, g, ((uint32_t)1 << (g.shape.ndim - 1)) - 1, j.out(1), a.accumulate_bias));
    if (!j.has_out(0)) return TR_OK;
    input x(j, j.in(1), a.activation);
    TRY(x.status());
    /* dw: [in, out] = x^T g, or [out, in] = g^T x */
    const tr_device_tensor &left = a.in_out ? x.view() : g, &right = a.in_out ? g : x.view();
    product p = product_of(transposed(matrix_of(left)), matrix_of(right), matrix_of(j.out(0)));
    p.accumulate = a.accumulate;
    return run_product(j, p);
}
