/*
 * Muon (Jordan et al. 2024) as torch.optim.Muon has it. For a matrix p [rows, columns] with gradient g:
 *
 *   b <- b + (g - b)(1 - momentum)            momentum_buffer
 *   d  = g + (b - g) momentum                 b itself without Nesterov
 *   o  = d / max(|d|, eps), then `iterations` times: a = o o^T, o <- 3.4445 o + (-4.7750 a + 2.0315 a a) o
 *   p <- p (1 - lr decay) - lr ratio o        ratio: sqrt(max(1, rows/columns)), or 0.2 sqrt(max(rows, columns))
 *
 * The iteration (Newton and Schulz's, of fifth order) takes d's singular values to about 1. PyTorch computes it in bf16; here
 * it is f32, or f64 for f64.
 */
#include "optim/kernel.h"

enum { MOMENTUM = TR__OWN, EPS, ITERATIONS, PLAIN, MATCH_ADAMW };

/* Makes b and d, and measures d. */
#define MUON(name, P, S, read, write, root)                                                       \
    static void name##_measure(const tr__update *u, int64_t begin, int64_t end, double sums[2])   \
    {                                                                                             \
        const double *settings = u->optimizer->settings;                                          \
        const S rest = (S)(1 - settings[MOMENTUM]), mix = (S)(settings[PLAIN] ? 1 : settings[MOMENTUM]); \
        const P *restrict gradient = u->gradients;                                                \
        S *restrict b = u->state[0], *restrict d = (S *)u->direction;                             \
        for (int64_t i = begin; i < end; i++) {                                                   \
            S g = read(gradient[i]);                                                              \
            b[i] = b[i] + (g - b[i]) * rest;                                                      \
            d[i] = g + (b[i] - g) * mix;                                                          \
        }                                                                                         \
        sums[0] += TR__SQUARES(S)(d + begin, end - begin);                                        \
    }                                                                                             \
    static void name(const tr__update *u, int64_t begin, int64_t end)                             \
    {                                                                                             \
        const S step = (S)(u->lr * u->factor), keep = (S)(1 - u->lr * u->weight_decay);           \
        P *restrict p = u->parameters;                                                            \
        const S *restrict o = u->direction;                                                       \
        for (int64_t i = begin; i < end; i++) p[i] = write(read(p[i]) * keep - step * o[i]);      \
    }
TR__UPDATE_KERNELS(MUON, muon)

/* d / norm, [rows, columns], with its singular values taken to about 1. */
static tr_tensor *orthogonalized(tr_tensor *d, double norm, int iterations)
{
    bool tall = d->shape.dim[0] > d->shape.dim[1];
    tr_tensor *o = tr_affine(tall ? tr_transpose(d, 0, 1) : d, 1 / norm, 0); /* the products are of the short side */
    for (int i = 0; i < iterations; i++) {
        tr_tensor *a = tr_matmul(o, tr_transpose(o, 0, 1));
        tr_tensor *b = tr_add(tr_affine(a, -4.7750, 0), tr_affine(tr_matmul(a, a), 2.0315, 0));
        o = tr_add(tr_affine(o, 3.4445, 0), tr_matmul(b, o));
    }
    return tr_contiguous(tall ? tr_transpose(o, 0, 1) : o);
}

/* The direction is o, the factor its ratio. */
static tr_status prepare(tr__update *u)
{
    TR_NO_GRAD;
    const double *settings = u->optimizer->settings;
    tr_dtype dtype = u->leaf->dtype == TR_F64 ? TR_F64 : TR_F32;
    tr_tensor *d = tr_empty(u->leaf->shape, .dtype = dtype, .device = tr__device_of(u->leaf));
    TR__TRY(tr_status_of(d));
    double sums[2], rows = (double)d->shape.dim[0], columns = (double)d->shape.dim[1];
    u->direction = tr__ptr(d);
    u->on_device.direction = d;
    TR__TRY(tr__measure(u, sums));
    tr_tensor *o = orthogonalized(d, fmax(sqrt(sums[0]), settings[EPS]), (int)settings[ITERATIONS]);
    TR__TRY(tr_status_of(o));
    u->direction = tr__ptr(o);
    u->on_device.direction = o;
    u->factor = settings[MATCH_ADAMW] ? 0.2 * sqrt(fmax(rows, columns)) : sqrt(fmax(1, rows / columns));
    return TR_OK;
}

static const tr__optimizer_rule rule = {
    .name = "muon",
    .state_names = {"momentum_buffer"},
    .kernel = TR__KERNELS_OF(muon),
    .measure = TR__MEASURES_OF(muon),
    .prepare = prepare,
    .whole = true,
    .dimensions = 2,
};

tr_optimizer *tr_muon_with(const tr_muon_options *o)
{
    int iterations = TR__OR(o, iterations, 5);
    if (iterations < 1 || iterations > 100)
        return tr__optimizer_fail(TR_INVALID, "muon: iterations must be in 1 ... 100, not %d", iterations);
    const tr__hyper *hypers = TR__HYPERS_OF(o, 1e-3, TR__OR(o, weight_decay, 0.1),
        [MOMENTUM] = {"momentum", TR__OR(o, momentum, 0.95), TR__AMOUNT},
        [EPS] = {"eps", TR__OR(o, eps, 1e-7), TR__POSITIVE},
        [ITERATIONS] = {"iterations", iterations, TR__AMOUNT},
        [PLAIN] = {"plain", o->plain, TR__FLAG},
        [MATCH_ADAMW] = {"match_adamw", o->match_adamw, TR__FLAG});
    return tr__optimizer_new(&rule, o->parameters, hypers, false);
}
