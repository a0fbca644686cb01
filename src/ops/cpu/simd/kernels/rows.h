/* Rows of f32 for the SIMD kernels: where they lie, or converted and gathered into a buffer. */
#ifndef TR_OPS_CPU_SIMD_KERNELS_ROWS_H
#define TR_OPS_CPU_SIMD_KERNELS_ROWS_H

#include "ops/cpu/simd/lanes.h"
#include "ops/rows.h"

#include "tensor/loop.h"
#include "tensor/numbers.h"

enum { ROW_MAX = 4096 }; /* elements that a buffer has room for */

static inline bool is_direct(const tr__rows *x)
{
    return x->dtype == TR_F32 && (x->stride == 1 || x->n <= 1);
}

/* f64 is left to the reference, as are long rows that need a buffer. */
static inline bool can_do(const tr__rows *x)
{
    return x->dtype != TR_F64 && (is_direct(x) || x->n <= ROW_MAX);
}

static inline char *row_place(const tr__rows *x, int64_t r)
{
    return x->data + tr__axis_at(&x->others, r) * (int64_t)tr_dtype_size(x->dtype);
}

/* Numbers next to each other, of which buffer has room for whole vectors. */
LANES_INLINE void widen(tr_dtype dtype, const char *from, int64_t n, float *buffer)
{
    for (int64_t i = 0; i < n; i += WIDTH) vec_store(buffer + i, lanes_load(dtype, from, i, n - i));
}

LANES_INLINE void narrow(tr_dtype dtype, char *to, int64_t n, const float *buffer)
{
    for (int64_t i = 0; i < n; i += WIDTH) lanes_store(dtype, to, i, n - i, vec_load(buffer + i));
}

/* Numbers [first, first + n) of row r; all of it, or no more than a buffer has room for. */
static inline const float *row_part_in(const tr__rows *x, int64_t r, int64_t first, int64_t n, float *buffer)
{
    char *place = row_place(x, r) + first * x->stride * (int64_t)tr_dtype_size(x->dtype);
    if (is_direct(x)) return (const float *)place;
    if (x->stride == 1 && x->dtype == TR_BF16) widen(TR_BF16, place, n, buffer);
    else if (x->stride == 1 && x->dtype == TR_F16) widen(TR_F16, place, n, buffer);
    else tr__read_f32(buffer, x->dtype, place, x->stride, n);
    return buffer;
}

static inline const float *row_in(const tr__rows *x, int64_t r, float *buffer)
{
    return row_part_in(x, r, 0, x->n, buffer);
}

/* Where to write numbers of row r from the first on; row_part_done() brings them to their place. */
static inline float *row_part_out(const tr__rows *x, int64_t r, int64_t first, float *buffer)
{
    return is_direct(x) ? (float *)row_place(x, r) + first : buffer;
}

static inline void row_part_done(const tr__rows *x, int64_t r, int64_t first, int64_t n, const float *buffer)
{
    if (is_direct(x)) return;
    char *place = row_place(x, r) + first * x->stride * (int64_t)tr_dtype_size(x->dtype);
    if (x->stride == 1 && x->dtype == TR_BF16) narrow(TR_BF16, place, n, buffer);
    else if (x->stride == 1 && x->dtype == TR_F16) narrow(TR_F16, place, n, buffer);
    else tr__write_f32(x->dtype, place, x->stride, buffer, n);
}

static inline float *row_out(const tr__rows *x, int64_t r, float *buffer)
{
    return row_part_out(x, r, 0, buffer);
}

static inline void row_done(const tr__rows *x, int64_t r, const float *buffer)
{
    row_part_done(x, r, 0, x->n, buffer);
}

/* How many numbers of a row that is x's and y's are taken at a time. */
static inline int64_t row_part(const tr__rows *x, const tr__rows *y, int64_t first)
{
    int64_t left = x->n - first;
    return (is_direct(x) && is_direct(y)) || left < ROW_MAX ? left : ROW_MAX;
}

/* FOR_VECTORS(n, statements): runs them for i = 0, WIDTH, … below n, with m lanes that count: WIDTH, but fewer in the
 * last vector. They stand twice, so that in whole vectors m is a constant. */
#define FOR_VECTORS(n, ...)                          \
    do {                                             \
        int64_t i = 0;                               \
        for (; i + WIDTH <= (n); i += WIDTH) {       \
            const int64_t m = WIDTH;                 \
            __VA_ARGS__                              \
        }                                            \
        if (i < (n)) {                               \
            const int64_t m = (n) - i;               \
            __VA_ARGS__                              \
        }                                            \
    } while (0)

static inline vec load_lanes(const float *from, int64_t m)
{
    return m == WIDTH ? vec_load(from) : vec_load_part(from, m);
}

static inline void store_lanes(float *to, vec x, int64_t m)
{
    if (m == WIDTH)
        vec_store(to, x);
    else
        vec_store_part(to, x, m);
}

/* x in the first m lanes, fill in the others. */
static inline vec keep_lanes(vec x, int64_t m, float fill)
{
    return m == WIDTH ? x : vec_keep_part(x, m, fill);
}

static inline float row_top(const float *x, int64_t n)
{
    vec top = vec_all(-__builtin_inff());
    FOR_VECTORS(n, top = vec_max(top, keep_lanes(load_lanes(x + i, m), m, -__builtin_inff())););
    return vec_top(top);
}

static inline float row_sum(const float *x, int64_t n)
{
    vec a = {0}, b = {0}, c = {0}, d = {0};
    int64_t i = 0;
    for (; i + 4 * WIDTH <= n; i += 4 * WIDTH) {
        a += vec_load(x + i);
        b += vec_load(x + i + WIDTH);
        c += vec_load(x + i + 2 * WIDTH);
        d += vec_load(x + i + 3 * WIDTH);
    }
    for (; i + WIDTH <= n; i += WIDTH) a += vec_load(x + i);
    if (i < n) b += vec_load_part(x + i, n - i);
    return vec_sum((a + b) + (c + d));
}

#endif
