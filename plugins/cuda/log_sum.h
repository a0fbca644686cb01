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

/* exp(x) for numbers of T: of 16 bits, it has some 22. */
template <class T> __device__ inline compute_of<T> exp_for(compute_of<T> x)
{
    if constexpr (sizeof(T) == 2) return tr_exp2(x * 1.4426950408889634f);
    else return exp(x);
}

/* With N numbers of T more. NaN among them makes the sum NaN. */
template <class T, int N, class C> __device__ inline log_sum<C> with_numbers(log_sum<C> s, const C (&x)[N])
{
    C top = s.top;
    for (int e = 0; e < N; e++) top = fmax(top, x[e]);
    C base = top == minus_infinity<C>() ? C(0) : top, sum = s.sum * exp_for<T>(s.top - base);
    for (int e = 0; e < N; e++) sum += exp_for<T>(x[e] - base);
    return log_sum<C>{top, sum};
}

struct log_sums_of {
    template <class C> __device__ log_sum<C> operator()(log_sum<C> a, log_sum<C> b) const
    {
        C top = a.top > b.top || a.top != a.top ? a.top : b.top;
        if (top == minus_infinity<C>()) return log_sum<C>{top, a.sum + b.sum};
        return log_sum<C>{top, a.sum * exp(a.top - top) + b.sum * exp(b.top - top)};
    }
};

#endif
