/*
 * Runs of elements, converted: how kernels read and write any dtype at any stride. Strides are in elements.
 */
#ifndef TR_TENSOR_NUMBERS_H
#define TR_TENSOR_NUMBERS_H

#include "tensor/tensor.h"

/* to[i] = from[i * stride]; to_f32 and to_f64 take every dtype, to_i64 the integers and bool. */
void tr__read_f32(float *to, tr_dtype dtype, const void *from, int64_t stride, int64_t n);
void tr__read_f64(double *to, tr_dtype dtype, const void *from, int64_t stride, int64_t n);
void tr__read_i64(int64_t *to, tr_dtype dtype, const void *from, int64_t stride, int64_t n);

/* to[i * stride] = from[i]; f32 and f64 go to every dtype (integers truncate and saturate, NaN is 0), i64 to the integers (which
 * wrap around) and bool. */
void tr__write_f32(tr_dtype dtype, void *to, int64_t stride, const float *from, int64_t n);
void tr__write_f64(tr_dtype dtype, void *to, int64_t stride, const double *from, int64_t n);
void tr__write_i64(tr_dtype dtype, void *to, int64_t stride, const int64_t *from, int64_t n);

/* Elements of `bytes` bytes each (1, 2, 4 or 8) from the other byte order to this one's. */
void tr__swap_bytes(void *elements, size_t bytes, int64_t n);

#endif
