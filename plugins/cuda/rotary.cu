/*
 * Rotary position embedding: at position p, pair i of d/2 is turned by p base^(-2i/d). Cosines and sines are made once
 * per call, in double, for all heads and samples.
 */
#include "families.h"

template <class C> struct turned { C cosine, sine; };

template <class C> __global__ void fill_turns(turned<C> *turns, int64_t seq, int64_t pairs, tr_rotary_attrs a)
{
    FOR_EACH_OF(e, seq * pairs)
    {
        int64_t t = e / pairs, i = e % pairs;
        double angle = (double)(a.first + t) * pow(a.base, -(double)i / (double)pairs) * (a.back ? -1 : 1);
        turns[e] = turned<C>{(C)cos(angle), (C)sin(angle)};
    }
}

struct rotary_rows { axis x, y; int64_t x_step, y_step, seq, pairs; };

template <class T>
__global__ void rotary(T *y, const T *x, const turned<compute_of<T>> *turns, rotary_rows r, bool interleaved)
{
    using C = compute_of<T>;
    int64_t apart = interleaved ? 1 : r.pairs, next = interleaved ? 2 : 1;
    FOR_EACH_OF(e, r.x.n * r.pairs)
    {
        int64_t row = e / r.pairs, i = e % r.pairs, first = i * next, second = first + apart;
        turned<C> turn = turns[row % r.seq * r.pairs + i];
        const T *from = x + r.x.at(row);
        T *to = y + r.y.at(row);
        C a = wide(from[first * r.x_step]), b = wide(from[second * r.x_step]);
        to[first * r.y_step] = narrow<T>(a * turn.cosine - b * turn.sine);
        to[second * r.y_step] = narrow<T>(b * turn.cosine + a * turn.sine);
    }
}

tr_status cuda_rotary(const job &j)
{
    const tr_device_tensor &x = j.in(0), &y = j.out(0);
    const tr_rotary_attrs &a = j.attrs<tr_rotary_attrs>();
    uint32_t others = ~(1u << (x.shape.ndim - 1));
    rotary_rows r = {axis_in(x, others), axis_in(y, others), stride_at(x, -1),
                     stride_at(y, -1),   size_at(x, -2),     size_at(x, -1) / 2};
    if (r.x.n * r.pairs == 0) return TR_OK;
    return for_float(x.dtype, [&](auto t) -> tr_status {
        using T = typename decltype(t)::type;
        using C = compute_of<T>;
        scratch memory(j, sizeof(turned<C>) * (size_t)(r.seq * r.pairs));
        TRY(memory.status());
        turned<C> *turns = memory.template as<turned<C>>();
        TRY(LAUNCH(j, fill_turns<C>, grid_for(r.seq * r.pairs), BLOCK, 0, turns, r.seq, r.pairs, a));
        return LAUNCH(j, rotary<T>, grid_for(r.x.n * r.pairs), BLOCK, 0, (T *)y.data, (const T *)x.data, turns, r,
                      a.interleaved);
    });
}
