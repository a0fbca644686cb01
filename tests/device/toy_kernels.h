/*
 * The toy's kernels: plain loops over f32 and f64 in double, as a worker runs them. A kernel of the table declines what it does
 * not take, and enqueues the loop; the loop answers NULL, or what went wrong, which whoever waits next is told.
 */
#ifndef TR_TESTS_DEVICE_TOY_KERNELS_H
#define TR_TESTS_DEVICE_TOY_KERNELS_H

#include <trireme/device.h>
#include <trireme/kernels.h>

#include <math.h>
#include <string.h>

typedef const char *(*toy_kernel)(const tr_kernel_call *c);
tr_status toy_enqueue(const tr_kernel_call *call, toy_kernel kernel);

typedef const tr_device_tensor tensor;

static inline int64_t numel(tr_shape s)
{
    int64_t n = 1;
    for (int d = 0; d < s.ndim; d++) n *= s.dim[d];
    return n;
}

static inline double from_bf16(uint16_t half)
{
    float x;
    uint32_t bits = (uint32_t)half << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline double load(tensor *t, int64_t at)
{
    switch (t->dtype) {
    case TR_F32: return ((const float *)t->data)[at];
    case TR_F64: return ((const double *)t->data)[at];
    case TR_BF16: return from_bf16(((const uint16_t *)t->data)[at]);
    case TR_I64: return (double)((const int64_t *)t->data)[at];
    case TR_I32: return ((const int32_t *)t->data)[at];
    default: return ((const unsigned char *)t->data)[at];
    }
}

static inline void store(tensor *t, int64_t at, double x)
{
    switch (t->dtype) {
    case TR_F32: ((float *)t->data)[at] = (float)x; break;
    case TR_F64: ((double *)t->data)[at] = x; break;
    case TR_I64: ((int64_t *)t->data)[at] = (int64_t)x; break;
    case TR_I32: ((int32_t *)t->data)[at] = (int32_t)x; break;
    case TR_BOOL: ((bool *)t->data)[at] = x != 0; break;
    default: ((unsigned char *)t->data)[at] = (unsigned char)x; break;
    }
}

/* Where element i, row-major, of the shape that t is broadcast to lies in t. Dimensions of `skip` do not count. */
static inline int64_t place(tensor *t, tr_shape s, int64_t i, uint32_t skip)
{
    int64_t at = 0;
    for (int d = s.ndim, e = t->shape.ndim; d-- > 0; i /= s.dim[d]) {
        if (skip >> d & 1 && t->shape.ndim < s.ndim) continue;
        if (--e >= 0 && t->shape.dim[e] != 1) at += i % s.dim[d] * t->stride[e];
    }
    return at;
}

static inline double get(tensor *t, tr_shape s, int64_t i) { return load(t, place(t, s, i, 0)); }
static inline void put(tensor *t, int64_t i, double x) { store(t, place(t, t->shape, i, 0), x); }

/* Row r, column k of a tensor read as a matrix [..., n]. */
static inline double cell(tensor *t, int64_t n, int64_t r, int64_t k) { return get(t, t->shape, r * n + k); }

#define EACH(y) for (int64_t i = 0, n_ = numel((y)->shape); i < n_; i++)
#define X (get(&c->inputs[0], c->outputs->shape, i))
#define Y (get(&c->inputs[1], c->outputs->shape, i))
#define ATTRS(type) ((const type *)c->attrs)
#define ELEMENTWISE(name, value)                               \
    static inline const char *name##_loop(const tr_kernel_call *c) \
    {                                                          \
        EACH(c->outputs) put(c->outputs, i, (value));          \
        return NULL;                                           \
    }
ELEMENTWISE(fill, ATTRS(tr_fill_attrs)->value)
ELEMENTWISE(copy, X)
ELEMENTWISE(add, X + Y)
ELEMENTWISE(sub, X - Y)
ELEMENTWISE(mul, X * Y)
ELEMENTWISE(div, X / Y)
ELEMENTWISE(neg, -X)
ELEMENTWISE(exp, exp(X))
ELEMENTWISE(log, log(X))
ELEMENTWISE(tanh, tanh(X))
ELEMENTWISE(affine, X * ATTRS(tr_affine_attrs)->scale + ATTRS(tr_affine_attrs)->shift)
ELEMENTWISE(relu, X > 0 || isnan(X) ? X : 0)
ELEMENTWISE(relu_grad, Y != 0 ? X : 0)
ELEMENTWISE(tanh_grad, X * (1 - Y * Y))

/* Philox4x32-10, four numbers of a counter; uniform, or normal by Box-Muller. */
static inline const char *random_loop(const tr_kernel_call *c)
{
    const tr_random_attrs *a = c->attrs;
    EACH(c->outputs) {
        uint32_t k0 = (uint32_t)a->seed, k1 = (uint32_t)(a->seed >> 32), w[4] = {(uint32_t)(i / 4), (uint32_t)((uint64_t)i >> 34), 0, 0};
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
            uint64_t x = (uint64_t)0xD2511F53u * w[0], y = (uint64_t)0xCD9E8D57u * w[2];
            memcpy(w, (uint32_t[]){(uint32_t)(y >> 32) ^ w[1] ^ k0, (uint32_t)y, (uint32_t)(x >> 32) ^ w[3] ^ k1, (uint32_t)x}, sizeof w);
        }
        int j = (int)(i % 4), pair = j & 2;
        double radius = sqrt(-2 * log(((w[pair] >> 8) + 1) * 0x1p-24)), angle = 2 * M_PI * (w[pair + 1] >> 8) * 0x1p-24;
        double number = !a->normal ? (w[j] >> 8) * 0x1p-24 : j & 1 ? radius * sin(angle) : radius * cos(angle);
        put(c->outputs, i, number * (double)a->scale + (double)a->shift);
    }
    return NULL;
}

/* sum, and mean: every element of x is added to the one of y that it belongs to. */
static inline const char *sum_of(const tr_kernel_call *c, double scale)
{
    tensor *x = c->inputs, *y = c->outputs;
    uint32_t dims = ATTRS(tr_reduce_attrs)->dims;
    EACH(y) put(y, i, 0);
    EACH(x) {
        int64_t at = place(y, x->shape, i, dims);
        store(y, at, load(y, at) + get(x, x->shape, i) * scale);
    }
    return NULL;
}
static inline const char *sum_loop(const tr_kernel_call *c) { return sum_of(c, 1); }
static inline const char *mean_loop(const tr_kernel_call *c)
{
    return sum_of(c, (double)numel(c->outputs->shape) / (double)numel(c->inputs->shape));
}

static inline const char *sum_squares_loop(const tr_kernel_call *c)
{
    EACH(c->inputs) store(c->outputs, 0, load(c->outputs, 0) + pow(load(c->inputs, i * c->inputs->stride[0]), 2));
    return NULL;
}

/* y [m, n] (+)= sum over k of a(i, k) b(k, j); a and b may be read transposed. */
static inline void multiply(tensor *y, tensor *a, int64_t a_width, bool a_turned, tensor *b, bool b_turned, int64_t m, int64_t n,
    int64_t depth, bool add, tr_activation_kind of_a, tr_activation_kind of_b)
{
    int64_t b_width = b_turned ? depth : n;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = add ? cell(y, n, i, j) : 0;
            for (int64_t k = 0; k < depth; k++) {
                double p = a_turned ? cell(a, a_width, k, i) : cell(a, a_width, i, k);
                double q = b_turned ? cell(b, b_width, j, k) : cell(b, b_width, k, j);
                sum += (of_a && p < 0 ? 0 : p) * (of_b && q < 0 ? 0 : q);
            }
            put(y, i * n + j, sum);
        }
}

static inline const char *matmul_loop(const tr_kernel_call *c)
{
    tensor *a = c->inputs, *b = c->inputs + 1, *y = c->outputs;
    multiply(y, a, a->shape.dim[1], false, b, false, a->shape.dim[0], b->shape.dim[1], a->shape.dim[1], false, 0, 0);
    return NULL;
}

static inline const char *linear_loop(const tr_kernel_call *c)
{
    const tr_linear_attrs *a = c->attrs;
    tensor *x = c->inputs, *w = c->inputs + 1, *y = c->outputs;
    int64_t k = x->shape.dim[x->shape.ndim - 1], n = y->shape.dim[y->shape.ndim - 1], m = numel(y->shape) / n;
    multiply(y, x, k, false, w, !a->in_out, m, n, k, false, a->activation, 0);
    for (int64_t i = 0; i < m * n && c->n_inputs > 2; i++)
        put(y, i, get(y, y->shape, i) + (c->inputs[2].data ? load(&c->inputs[2], i % n * c->inputs[2].stride[0]) : 0) +
            (c->n_inputs > 3 && c->inputs[3].data ? get(&c->inputs[3], y->shape, i) : 0));
    return NULL;
}

static inline const char *linear_grad_input_loop(const tr_kernel_call *c)
{
    const tr_linear_attrs *a = c->attrs;
    tensor *g = c->inputs, *w = c->inputs + 1, *dx = c->outputs;
    int64_t n = g->shape.dim[g->shape.ndim - 1], k = dx->shape.dim[dx->shape.ndim - 1], m = numel(g->shape) / n;
    multiply(dx, g, n, false, w, a->in_out, m, k, n, a->accumulate, 0, 0);
    for (int64_t i = 0; i < m * k && a->activation; i++)
        if (get(&c->inputs[2], dx->shape, i) <= 0) put(dx, i, 0);
    return NULL;
}

static inline const char *linear_grad_weight_loop(const tr_kernel_call *c)
{
    const tr_linear_attrs *a = c->attrs;
    tensor *g = c->inputs, *x = c->inputs + 1, *dw = c->outputs, *db = c->outputs + 1;
    int64_t n = g->shape.dim[g->shape.ndim - 1], k = x->shape.dim[x->shape.ndim - 1], m = numel(g->shape) / n;
    if (dw->data && a->in_out) multiply(dw, x, k, true, g, false, k, n, m, a->accumulate, a->activation, 0);
    else if (dw->data) multiply(dw, g, n, true, x, false, n, k, m, a->accumulate, 0, a->activation);
    for (int64_t j = 0; j < n && c->n_outputs > 1 && db->data; j++) {
        double sum = a->accumulate_bias ? get(db, db->shape, j) : 0;
        for (int64_t r = 0; r < m; r++) sum += cell(g, n, r, j);
        put(db, j, sum);
    }
    return NULL;
}

/* logits: [..., n], targets -> loss, top, log_sum, count; the mean. */
static inline const char *cross_entropy_loop(const tr_kernel_call *c)
{
    const tr_cross_entropy_attrs *a = c->attrs;
    tensor *x = c->inputs, *y = c->outputs;
    int64_t n = x->shape.dim[x->shape.ndim - 1], rows = numel(x->shape) / n;
    double sum = 0, counted = 0;
    for (int64_t r = 0; r < rows; r++) {
        int64_t target = (int64_t)get(&c->inputs[1], c->inputs[1].shape, r);
        double top = -INFINITY, all = 0;
        if (target != a->ignore_index && (target < 0 || target >= n)) return "cross_entropy: a target is outside the classes";
        for (int64_t k = 0; k < n; k++) top = fmax(top, cell(x, n, r, k));
        for (int64_t k = 0; k < n; k++) all += exp(cell(x, n, r, k) - top);
        put(&y[1], r, top);
        put(&y[2], r, log(all));
        if (target != a->ignore_index) sum += top - cell(x, n, r, target) + log(all), counted++;
    }
    store(y, 0, sum / counted);
    store(&y[3], 0, counted);
    return NULL;
}

static inline const char *cross_entropy_grad_loop(const tr_kernel_call *c)
{
    tensor *g = c->inputs, *x = g + 1, *targets = g + 2, *top = g + 3, *log_sum = g + 4, *count = g + 5;
    int64_t n = x->shape.dim[x->shape.ndim - 1];
    EACH(x) {
        int64_t r = i / n, target = (int64_t)get(targets, targets->shape, r);
        double p = exp(get(x, x->shape, i) - get(top, top->shape, r) - get(log_sum, log_sum->shape, r)) - (i % n == target);
        put(c->outputs, i, target == ATTRS(tr_cross_entropy_attrs)->ignore_index ? 0 : p * load(g, 0) / load(count, 0));
    }
    return NULL;
}

static inline const char *sgd_step_loop(const tr_kernel_call *c)
{
    const tr_step_attrs *a = c->attrs;
    tensor *g = c->inputs, *p = c->outputs, *b = c->outputs + 1;
    double momentum = a->settings[2], dampening = a->settings[3], nesterov = a->settings[4];
    EACH(p) {
        double x = load(p, i), d = load(g, i) + a->weight_decay * x;
        if (b->data) {
            store(b, i, a->step == 1 ? d : momentum * load(b, i) + (1 - dampening) * d);
            d = nesterov != 0 ? d + momentum * load(b, i) : load(b, i);
        }
        store(p, i, x - a->lr * d);
    }
    return NULL;
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static inline bool takes(const tr_kernel_call *c)
{
    for (int i = 0; i < c->n_inputs + c->n_outputs; i++) {
        tensor *t = i < c->n_inputs ? &c->inputs[i] : &c->outputs[i - c->n_inputs];
        bool converts = strcmp(c->op, "copy") == 0 && t == c->inputs;
        if (t->data && (t->dtype == TR_F16 || (t->dtype == TR_BF16 && !converts))) return false;
    }
    if (strcmp(c->op, "matmul") == 0) return c->inputs[0].shape.ndim == 2 && c->inputs[1].shape.ndim == 2;
    if (strcmp(c->op, "linear_grad_input") == 0 && ATTRS(tr_linear_attrs)->accumulate && ATTRS(tr_linear_attrs)->activation) return false;
    if (strncmp(c->op, "linear", 6) == 0) return ATTRS(tr_linear_attrs)->activation <= TR_RELU;
    if (strncmp(c->op, "cross_entropy", 13) != 0) return true;
    return ATTRS(tr_cross_entropy_attrs)->smoothing == 0 && ATTRS(tr_cross_entropy_attrs)->reduction == TR_REDUCE_MEAN;
}

#define KERNELS(K)                                                                                                     \
    K(fill, sizeof(tr_fill_attrs)) K(copy, 0) K(random, sizeof(tr_random_attrs)) K(add, 0) K(sub, 0) K(mul, 0)         \
    K(div, 0) K(neg, 0) K(exp, 0) K(log, 0) K(tanh, 0) K(affine, sizeof(tr_affine_attrs)) K(relu, 0) K(relu_grad, 0)   \
    K(tanh_grad, 0) K(sum, sizeof(tr_reduce_attrs)) K(mean, sizeof(tr_reduce_attrs)) K(sum_squares, 0) K(matmul, 0)    \
    K(linear, sizeof(tr_linear_attrs)) K(linear_grad_input, sizeof(tr_linear_attrs))                                   \
    K(linear_grad_weight, sizeof(tr_linear_attrs)) K(cross_entropy, sizeof(tr_cross_entropy_attrs))                    \
    K(cross_entropy_grad, sizeof(tr_cross_entropy_attrs)) K(sgd_step, sizeof(tr_step_attrs))
#define ENQUEUE(name, bytes)                                                      \
    static tr_status enqueue_##name(const tr_kernel_call *c)                      \
    {                                                                             \
        return takes(c) ? toy_enqueue(c, name##_loop) : TR_DECLINED;              \
    }
KERNELS(ENQUEUE)
#define ENTRY(name, bytes) {#name, bytes, enqueue_##name},
static const tr_kernel_entry toy_kernels[] = {KERNELS(ENTRY)};

#endif
