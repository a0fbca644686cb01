/* The reduction kernels of every instruction set that this processor has, against plain loops over scalars. */
#include "base/half.h"
#include "base/isa.h"
#include "comm/algo/reduce.h"
#include "numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS_MOST = 5, COUNT_MOST = 1031 };

/* Small whole numbers, so that the order of folding does not matter and everything is exact. */
static double sample(tr_dtype dtype, int rank, int64_t i)
{
    int n = (int)((i * 7 + rank * 3 + (i >> 5)) % 11);
    if (dtype == TR_BOOL) return n % 3 == 0;
    return dtype == TR_U8 ? n % 5 : n % 5 - 2;
}

static double fold(tr_dtype dtype, tr_reduce_op op, double a, double b)
{
    if (op >= TR_BAND) {
        int x = (int)a, y = (int)b;
        return op == TR_BAND ? x & y : op == TR_BOR ? x | y : x ^ y;
    }
    bool any = op == TR_SUM || op == TR_MAX;
    if (dtype == TR_BOOL) return any ? (a != 0 || b != 0) : (a != 0 && b != 0);
    return op == TR_MIN ? fmin(a, b) : op == TR_MAX ? fmax(a, b) : op == TR_PROD ? a * b : a + b;
}

static double want(tr_dtype dtype, tr_reduce_op op, int ranks, int64_t i)
{
    double value = sample(dtype, 0, i);
    for (int r = 1; r < ranks; r++) value = fold(dtype, op, value, sample(dtype, r, i));
    if (op != TR_AVG) return value;
    if (!tr_dtype_is_float(dtype)) return trunc(value / ranks);
    return dtype == TR_F64 ? value * (1.0 / ranks) : (double)((float)value * (float)(1.0 / ranks));
}

static void check(const tr__reduce_table *table, tr_dtype dtype, tr_reduce_op op, int ranks, int64_t count,
                  size_t shift)
{
    static _Alignas(64) unsigned char memory[RANKS_MOST][8 * COUNT_MOST + 64], result[8 * COUNT_MOST + 64], wanted[8];
    size_t size = tr_dtype_size(dtype);
    const void *in[RANKS_MOST];
    void *out[RANKS_MOST + 1];
    for (int r = 0; r < ranks; r++) {
        memset(memory[r], 0xee, sizeof memory[r]);
        in[r] = out[r] = memory[r] + shift;
        for (int64_t i = 0; i < count; i++) put(dtype, out[r], i, sample(dtype, r, i));
    }
    memset(result, 0xee, sizeof result);
    out[ranks] = result + shift; /* in place on every rank, and into memory of its own */
    (*table)[dtype][op](in, ranks, out, ranks + 1, count);
    for (int k = 0; k <= ranks; k++) {
        const unsigned char *base = k < ranks ? memory[k] : result;
        for (int64_t i = 0; i < count; i++) {
            put(dtype, wanted, 0, want(dtype, op, ranks, i));
            if (get(dtype, wanted, 0) != get(dtype, out[k], i))
                fail_msg("%s op %d, %d ranks, element %d of %d: %g, not %g", tr_dtype_name(dtype), (int)op, ranks,
                         (int)i, (int)count, get(dtype, out[k], i), get(dtype, wanted, 0));
        }
        for (size_t b = 0; b < shift; b++) assert_int_equal(base[b], 0xee);
        for (size_t b = 0; b < 32; b++) assert_int_equal(base[shift + size * (size_t)count + b], 0xee);
    }
}

static void check_table(const tr__reduce_table *table)
{
    static const int64_t counts[] = {0, 1, 3, 15, 16, 63, 64, 65, 255, 256, 257, COUNT_MOST};
    for (int dtype = 0; dtype < TR_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < TR_REDUCE_OP_COUNT; op++) {
            if (!(*table)[dtype][op]) {
                assert_true((dtype == TR_BOOL && op == TR_AVG) || (op >= TR_BAND && tr_dtype_is_float(dtype)));
                continue;
            }
            for (int ranks = 1; ranks <= RANKS_MOST; ranks++)
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                    check(table, dtype, op, ranks, counts[c], c % 2 ? tr_dtype_size(dtype) : 0);
        }
    }
}

#if defined(__x86_64__)
static const tr__reduce_table *const avx2 = &tr__reduce_avx2, *const avx512 = &tr__reduce_avx512;
#else
static const tr__reduce_table *const avx2 = NULL, *const avx512 = NULL;
#endif

static void plain_kernels(void **state)
{
    (void)state;
    check_table(&tr__reduce_plain);
}

static void need(const char *instructions, bool here)
{
    if (here) return;
    print_message("this processor has no %s: skipped\n", instructions);
    skip();
}

static void avx2_kernels(void **state)
{
    (void)state;
    need("AVX2", tr__has_avx2());
    check_table(avx2);
}

static void avx512_kernels(void **state)
{
    (void)state;
    need("AVX-512 (F, BW, VL, DQ)", tr__has_avx512());
    check_table(avx512);
}

static void nan_passes_through(void **state)
{
    (void)state;
    for (int op = 0; op < TR_REDUCE_OP_COUNT; op++) {
        for (int where = 0; where < 3; where++) {
            for (int dtype = TR_F32; dtype <= TR_BF16; dtype++) {
                if (!tr__reduce_find(dtype, op)) continue;
                double memory[3][40];
                const void *in[3] = {memory[0], memory[1], memory[2]};
                void *out = memory[0];
                for (int r = 0; r < 3; r++)
                    for (int i = 0; i < 40; i++) put(dtype, memory[r], i, r == where && i == 33 ? (double)NAN : 1);
                tr__reduce_find(dtype, op)(in, 3, &out, 1, 40);
                assert_true(isnan(get(dtype, out, 33)));
                assert_false(isnan(get(dtype, out, 32)));
            }
        }
    }
}

/* Every bf16 and f16 comes out of a maximum with itself as it went in, and sums are rounded as base/half.h does. */
static void half_floats_are_rounded_alike(void **state)
{
    (void)state;
    static uint16_t a[65536], b[65536], out[65536];
    for (int dtype = TR_F16; dtype <= TR_BF16; dtype++) {
        const void *in[2] = {a, b};
        void *to = out;
        for (int i = 0; i < 65536; i++) {
            a[i] = (uint16_t)i;
            b[i] = (uint16_t)(i * 40503u + 977u);
        }
        tr__reduce_find(dtype, TR_SUM)(in, 2, &to, 1, 65536);
        for (int i = 0; i < 65536; i++) {
            float sum = dtype == TR_F16 ? tr__f16_to_f32(a[i]) + tr__f16_to_f32(b[i])
                                        : tr__bf16_to_f32(a[i]) + tr__bf16_to_f32(b[i]);
            uint16_t wanted = dtype == TR_F16 ? tr__f32_to_f16(sum) : tr__f32_to_bf16(sum);
            if (isnan(sum))
                assert_true(isnan(get(dtype, out, i)));
            else
                assert_int_equal(out[i], wanted);
        }
    }
}

static void integers_wrap(void **state)
{
    (void)state;
    int64_t a = INT64_MAX, b = 1, sum;
    int32_t c = INT32_MAX, d = INT32_MAX, average;
    void *out = &sum;
    tr__reduce_find(TR_I64, TR_SUM)((const void *[]){&a, &b}, 2, &out, 1, 1);
    assert_true(sum == INT64_MIN);
    out = &average;
    tr__reduce_find(TR_I32, TR_AVG)((const void *[]){&c, &d}, 2, &out, 1, 1);
    assert_true(average == INT32_MAX); /* folded in 64 bits */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_kernels),
        cmocka_unit_test(avx2_kernels),
        cmocka_unit_test(avx512_kernels),
        cmocka_unit_test(nan_passes_through),
        cmocka_unit_test(half_floats_are_rounded_alike),
        cmocka_unit_test(integers_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
