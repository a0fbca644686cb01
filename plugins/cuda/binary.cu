/* Elementwise ops of two or three inputs: arithmetic, comparisons, where, losses. */
#include "activations.h"
#include "elementwise.h"
#include "families.h"

/* NaN in either input stays NaN. Integers wrap around: they are added as unsigned numbers, whose overflow is defined.
 */

NUMBERS(add, 2, (C x, C y), x + y, (int64_t)((uint64_t)x + (uint64_t)y))
NUMBERS(sub, 2, (C x, C y), x - y, (int64_t)((uint64_t)x - (uint64_t)y))
NUMBERS(mul, 2, (C x, C y), x * y, (int64_t)((uint64_t)x * (uint64_t)y))
NUMBERS(maximum, 2, (C x, C y), x > y || x != x ? x : y, x > y ? x : y)
NUMBERS(minimum, 2, (C x, C y), x < y || x != x ? x : y, x < y ? x : y)

FLOATS(div, 2, NONE, (C x, C y), x / y)
FLOATS(maximum_grad, 3, NONE, (C g, C x, C y), x < y ? C(0) : x == y ? C(0.5) * g : g)

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

template <class C> __device__ C huber(C off, C bound)
{
    C size = fabs(off);
    return size <= bound ? C(0.5) * off * off : bound * (size - C(0.5) * bound);
}

FLOATS(mse_loss, 2, NONE, (C x, C y), (x - y) * (x - y))
FLOATS(mse_loss_grad, 3, NONE, (C g, C x, C y), 2 * g * (x - y))
FLOATS(huber_loss, 2, tr_huber_loss_attrs, (C x, C y), huber(x - y, (C)a.delta))
FLOATS(huber_loss_grad, 3, tr_huber_loss_attrs, (C g, C x, C y), g * held(x - y, (C)-a.delta, (C)a.delta))
FLOATS(bce_with_logits, 2, NONE, (C x, C y), x * (C(x > 0) - y) + log1p(exp(-fabs(x))))
FLOATS(bce_with_logits_grad, 3, NONE, (C g, C x, C y), g * (1 / (1 + exp(-x)) - y))
