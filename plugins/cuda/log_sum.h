/* log(sum(exp(x))) without overflow, as the largest number and the sum of exp(x - top): their sum would round the rest
 * away. */
#ifndef TRIREME_CUDA_LOG_SUM_H
#define TRIREME_CUDA_LOG_SUM_H

#include "thread_group.h"

template <class C> struct log_sum { C top, sum; };

template <class C> __device__ inline C minus_infinity()
{
    return C(-INFINITY);
}

/* NaN among the numbers makes the top NaN. Where there is nothing but -infinity, the sum is 0. */
template <class C> __device__ inline log_sum<C> with_number(log_sum<C> s, C x)
{
    if (x > s.top || x != x)
        return log_sum<C>{x, s.top == minus_infinity<C>() ? C(1) + (x - x) : s.sum * exp(s.top - x) + exp(x - x)};
    if (s.top == minus_infinity<C>()) return s;
    s.sum += exp(x - s.top);
    return s;
}

struct log_sums_of {
    template <class C> __device__ log_sum<C> operator()(log_sum<C> a, log_sum<C> b) const
    {
        C top = a.top > b.top || a.top != a.top ? a.top : b.top;
        if (top == minus_infinity<C>()) return log_sum<C>{top, C(0)};
        return log_sum<C>{top, a.sum * exp(a.top - top) + b.sum * exp(b.top - top)};
    }
};

#endif
