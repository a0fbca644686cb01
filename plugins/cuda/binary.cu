/* Elementwise ops of two or three inputs: arithmetic, comparisons, where, losses. */
#include "activations.h"
#include "elementwise.h"
#include "families.h"

/* NaN in either input stays NaN. Integers wrap around: they are added as unsigned numbers, whose overflow is defined.
 */

#define BINARY(name, float_expression, integer_expression)                                                    \
    struct name##_of {                                                                                        \
        __device__ float operator()(float a, float b) const { return float_expression; }                     \
        __device__ double operator()(double a, double b) const { return float_expression; }                  \
        __device__ int64_t operator()(int64_t a, int64_t b) const { return integer_expression; }             \
    };                                                                                                        \
    tr_status cuda_##name(const job &j) { return elementwise_any<2>(j, name##_of()); }

BINARY(add, a + b, (int64_t)((uint64_t)a + (uint64_t)b))
BINARY(sub, a - b, (int64_t)((uint64_t)a - (uint64_t)b))
BINARY(mul, a *b, (int64_t)((uint64_t)a * (uint64_t)b))
BINARY(maximum, a > b || a != a ? a : b, a > b ? a : b)
BINARY(minimum, a < b || a != a ? a : b, a < b ? a : b)

struct div_of {
    template <class C> __device__ C operator()(C a, C b) const { return a / b; }
};
tr_status cuda_div(const job &j) { return elementwise_floats<2>(j, div_of()); }

struct maximum_grad_of {
    template <class C> __device__ C operator()(C g, C a, C b) const { return a < b ? C(0) : a == b ? C(0.5) * g : g; }
};
tr_status cuda_maximum_grad(const job &j) { return elementwise_floats<3>(j, maximum_grad_of()); }

/* ---- Comparisons: a, b of one dtype -> bool ---------------------------------------------------------------------- */

#define COMPARISON(name, operation)                                                      \
    struct name##_of {                                                                   \
        template <class C> __device__ bool operator()(C a, C b) const { return a operation b; } \
    };                                                                                   \
    tr_status cuda_##name(const job &j)                                                  \
    {                                                                                    \
        return for_wide(j.in(0).dtype, [&](auto t) {                                     \
            return elementwise_into<typename decltype(t)::type, 2>(j, j.out(0), j.call.inputs, name##_of()); \
        });                                                                              \
    }
COMPARISON(equal, ==)
COMPARISON(not_equal, !=)
COMPARISON(less, <)
COMPARISON(less_equal, <=)
COMPARISON(greater, >)
COMPARISON(greater_equal, >=)

/* ---- where: mask, a, b -> a where the mask is true, b elsewhere; elements move as bits --------------------------- */

template <class T> __global__ void where_kernel(T *out, const uint8_t *mask, const T *a, const T *b, walk<4> w)
{
    FOR_EACH_OF(i, w.count)
    {
        int64_t place[4];
        w.at((uint32_t)i, place);
        out[place[0]] = mask[place[1]] ? a[place[2]] : b[place[3]];
    }
}

tr_status cuda_where(const job &j)
{
    const tr_device_tensor *tensors[] = {&j.out(0), &j.in(0), &j.in(1), &j.in(2)};
    loop l = loop_of(j.out(0).shape, tensors, 4);
    return loop_in_parts(l, [&](const loop &part) {
        return for_bytes(part.bytes[0], [&](auto t) {
            using T = typename decltype(t)::type;
            return LAUNCH(j, where_kernel<T>, grid_for(part.count), BLOCK, 0, (T *)part.data[0],
                (const uint8_t *)part.data[1], (const T *)part.data[2], (const T *)part.data[3], walk<4>(part));
        });
    });
}

/* ---- Losses, element by element ---------------------------------------------------------------------------------- */

struct mse_loss_of {
    template <class C> __device__ C operator()(C x, C y) const { return (x - y) * (x - y); }
};
struct mse_loss_grad_of {
    template <class C> __device__ C operator()(C g, C x, C y) const { return 2 * g * (x - y); }
};
struct huber_loss_of {
    double delta;
    template <class C> __device__ C operator()(C x, C y) const
    {
        C d = x - y, bound = (C)delta, size = fabs(d);
        return size <= bound ? C(0.5) * d * d : bound * (size - C(0.5) * bound);
    }
};
struct huber_loss_grad_of {
    double delta;
    template <class C> __device__ C operator()(C g, C x, C y) const { return g * held(x - y, (C)-delta, (C)delta); }
};
struct bce_with_logits_of {
    template <class C> __device__ C operator()(C x, C y) const { return x * (C(x > 0) - y) + log1p(exp(-fabs(x))); }
};
struct bce_with_logits_grad_of {
    template <class C> __device__ C operator()(C g, C x, C y) const { return g * (1 / (1 + exp(-x)) - y); }
};

tr_status cuda_mse_loss(const job &j) { return elementwise_floats<2>(j, mse_loss_of()); }
tr_status cuda_mse_loss_grad(const job &j) { return elementwise_floats<3>(j, mse_loss_grad_of()); }
tr_status cuda_huber_loss(const job &j)
{
    return elementwise_floats<2>(j, huber_loss_of{j.attrs<tr_huber_loss_attrs>().delta});
}
tr_status cuda_huber_loss_grad(const job &j)
{
    return elementwise_floats<3>(j, huber_loss_grad_of{j.attrs<tr_huber_loss_attrs>().delta});
}
tr_status cuda_bce_with_logits(const job &j) { return elementwise_floats<2>(j, bce_with_logits_of()); }
tr_status cuda_bce_with_logits_grad(const job &j) { return elementwise_floats<3>(j, bce_with_logits_grad_of()); }
