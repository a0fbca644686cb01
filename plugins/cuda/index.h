/*
 * From positions to places in memory: division by numbers that are known at launch, axes (several dimensions read as
 * one), and loops over the elements of a shape with several tensors walked along.
 */
#ifndef TRIREME_CUDA_INDEX_H
#define TRIREME_CUDA_INDEX_H

#include "numbers.h"

/* n / by and n % by for 0 <= n < 2^31, by a product and a shift (Granlund & Montgomery 1994). */
struct divisor {
    uint32_t by, magic, shift;

    divisor() : by(1), magic(1), shift(0) {}
    explicit divisor(int64_t d) : by((uint32_t)d), shift(0)
    {
        while (((uint64_t)1 << shift) < by) shift++;
        magic = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << shift) - by)) / by + 1);
    }
    __host__ __device__ uint32_t quotient(uint32_t n) const
    {
        uint32_t high = (uint32_t)(((uint64_t)n * magic) >> 32);
        return (high + n) >> shift;
    }
};

constexpr int64_t INDEX_LIMIT = 0x7fffffff; /* divisors serve numbers below it */

/* Dimensions read as one. Neighbours that strides allow to merge are merged, so ndim is 1 wherever it can be. */
struct axis {
    int64_t n;
    int ndim; /* at least 1 */
    divisor by[TR_MAX_DIMS];
    int64_t dim[TR_MAX_DIMS], stride[TR_MAX_DIMS];

    /* Elements from the start to position i. */
    __host__ __device__ int64_t at(int64_t i) const
    {
        if (ndim == 1) return i * stride[0];
        int64_t offset = 0;
        if (n > INDEX_LIMIT) {
            for (int d = ndim - 1; d > 0; d--) {
                offset += i % dim[d] * stride[d];
                i /= dim[d];
            }
            return offset + i * stride[0];
        }
        uint32_t rest = (uint32_t)i;
        for (int d = ndim - 1; d > 0; d--) {
            uint32_t next = by[d].quotient(rest);
            offset += (int64_t)(rest - next * by[d].by) * stride[d];
            rest = next;
        }
        return offset + (int64_t)rest * stride[0];
    }
};

axis axis_of(int ndim, const int64_t *dim, const int64_t *stride);
/* The dimensions of x in the mask, as one. */
axis axis_in(const tr_device_tensor &x, uint32_t dims);

/* ---- Loops ------------------------------------------------------------------------------------------------------- */

constexpr int LOOP_TENSORS = 4;

/* The elements of a shape, whose tensors broadcast to it; the first is the one that is written, in the order of its
 * memory. Dimensions that lie one after the other in all of them are taken as one. */
struct loop {
    int ndim, n; /* n: tensors */
    int64_t count;
    int64_t dim[TR_MAX_DIMS];
    int64_t stride[LOOP_TENSORS][TR_MAX_DIMS]; /* elements */
    char *data[LOOP_TENSORS];
    size_t bytes[LOOP_TENSORS];
};

loop loop_of(const tr_shape &shape, const tr_device_tensor *const *tensors, int n);
/* Is every tensor one run of elements, or one number? */
bool loop_is_flat(const loop &l);

/* What a kernel gets of a loop of N tensors: fewer than 2^31 elements. */
template <int N> struct walk {
    int ndim;
    uint32_t count;
    divisor by[TR_MAX_DIMS];
    int64_t stride[N][TR_MAX_DIMS];

    walk(const loop &l) : ndim(l.ndim), count((uint32_t)l.count)
    {
        for (int d = 0; d < l.ndim; d++) {
            by[d] = divisor(l.dim[d]);
            for (int k = 0; k < N; k++) stride[k][d] = l.stride[k][d];
        }
    }
    /* Elements from each tensor's start to position i. */
    __device__ void at(uint32_t i, int64_t place[N]) const
    {
        for (int k = 0; k < N; k++) place[k] = 0;
        for (int d = ndim - 1; d >= 0; d--) {
            uint32_t next = d ? by[d].quotient(i) : 0;
            uint32_t digit = i - next * by[d].by;
            for (int k = 0; k < N; k++) place[k] += (int64_t)digit * stride[k][d];
            i = next;
        }
    }
};

/* Calls f(part) for parts of a loop that together are all of it, each of at most INDEX_LIMIT elements. */
template <class F> tr_status loop_in_parts(const loop &l, F f)
{
    if (l.count == 0) return TR_OK;
    if (l.count <= INDEX_LIMIT) return f(l);
    int widest = 0;
    for (int d = 1; d < l.ndim; d++)
        if (l.dim[d] > l.dim[widest]) widest = d;
    loop half = l;
    int64_t first = l.dim[widest] / 2;
    half.dim[widest] = first;
    half.count = l.count / l.dim[widest] * first;
    tr_status status = loop_in_parts(half, f);
    if (status != TR_OK) return status;
    half.dim[widest] = l.dim[widest] - first;
    half.count = l.count - half.count;
    for (int k = 0; k < l.n; k++) half.data[k] += first * l.stride[k][widest] * (int64_t)l.bytes[k];
    return loop_in_parts(half, f);
}

#endif
