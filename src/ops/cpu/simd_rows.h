/* Rows of f32 for the SIMD kernels: where they lie, or converted and gathered into a buffer. */
#ifndef TR_OPS_CPU_SIMD_ROWS_H
#define TR_OPS_CPU_SIMD_ROWS_H

#include "ops/cpu/vec.h"
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

static inline const float *row_in(const tr__rows *x, int64_t r, float *buffer)
{
    char *place = row_place(x, r);
    if (is_direct(x)) return (const float *)place;
    tr__read_f32(buffer, x->dtype, place, x->stride, x->n);
    return buffer;
}

/* Where to write row r; row_done() brings it to its place. */
static inline float *row_out(const tr__rows *x, int64_t r, float *buffer)
{
    return is_direct(x) ? (float *)row_place(x, r) : buffer;
}

static inline void row_done(const tr__rows *x, int64_t r, const float *buffer)
{
    if (!is_direct(x)) tr__write_f32(x->dtype, row_place(x, r), x->stride, buffer, x->n);
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
