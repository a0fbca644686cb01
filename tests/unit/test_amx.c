/* AMX: its instructions, the machine's or those of the double, against Intel's manual in scalars. */
#include "amx_double.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__x86_64__) && (__GNUC__ >= 11 || (defined(__clang_major__) && __clang_major__ >= 12))

#define AMX __attribute__((noinline, target("amx-tile,amx-bf16")))

typedef struct shapes {
    uint8_t palette, start_row, zeros[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} shapes;

enum { STEPS = 16, COLUMNS = 16, ROWS = 16, ROW = 24, A = 16, B = 160 }; /* ROW: from a row in memory to the next */

/* c (+)= a b, whose steps are pairs, from a + A and b + B on; with the registers 3, 6 and 5. */
AMX static void multiply(const shapes *s, const uint32_t *a, const uint32_t *b, float *c, bool add, shapes *kept)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*s));
    if (add) __asm__ volatile("tileloadd (%0,%1,4), %%tmm3" : : "r"(c), "r"((int64_t)ROW) : "memory");
    else __asm__ volatile("tilezero %%tmm3" : :);
    __asm__ volatile("tileloaddt1 64(%0,%1,2), %%tmm6" : : "r"(a), "r"((int64_t)(2 * ROW)) : "memory");
    __asm__ volatile("tileloadd 640(%0,%1,1), %%tmm5" : : "r"(b), "r"((int64_t)(4 * ROW)) : "memory");
    __asm__ volatile("tdpbf16ps %%tmm5, %%tmm6, %%tmm3" : :);
    __asm__ volatile("tilestored %%tmm3, (%0,%1,1)" : : "r"(c), "r"((int64_t)(4 * ROW)) : "memory");
    __asm__ volatile("sttilecfg %0" : "=m"(*kept));
    __asm__ volatile("tilerelease" : :);
}

static float flushed(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

/* The upper or lower half of a pair. */
static float number(uint32_t pair, int half)
{
    uint32_t bits = half ? pair & 0xffff0000 : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return flushed(x);
}

static float expected(const uint32_t *a, const uint32_t *b, int steps, float c)
{
    float sum[2] = {0, 0};
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < steps; k++) sum[half] = flushed(fmaf(number(a[k], half), number(b[k * ROW], half), sum[half]));
    return flushed(flushed(c) + flushed(sum[0] + sum[1]));
}

/* bf16 of all exponents whose products and sums stay finite, some of them 0 or denormal. */
static uint16_t random_bf16(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint32_t bits = (uint32_t)(*state >> 33);
    uint32_t exponent = bits % 5 == 0 ? (bits >> 8) % 188 : 120 + (bits >> 8) % 14;
    return (uint16_t)((bits & 0x8000) | exponent << 7 | (bits >> 24 & 0x7f));
}

static void instructions_do_what_the_manual_says(void **state)
{
    (void)state;
    if (!amx_double()) skip();
    uint64_t random = 1;
    for (int trial = 0; trial < 500; trial++) {
        int rows = 1 + trial % ROWS, steps = 1 + trial / 3 % STEPS, columns = 1 + trial / 7 % COLUMNS;
        static uint32_t a[A + ROWS * ROW], b[B + STEPS * ROW];
        static float c[ROWS * ROW], before[ROWS * ROW];
        for (int i = 0; i < ROWS * ROW; i++) {
            a[A + i] = random_bf16(&random) | (uint32_t)random_bf16(&random) << 16;
            b[B + i] = random_bf16(&random) | (uint32_t)random_bf16(&random) << 16;
            before[i] = c[i] = (float)i / 7 - 20;
        }
        if (trial % 11 == 0) before[0] = c[0] = 1e-40f;
        shapes s = {.palette = 1}, kept;
        s.rows[3] = s.rows[6] = (uint8_t)rows;
        s.rows[5] = (uint8_t)steps;
        s.row_bytes[3] = s.row_bytes[5] = (uint16_t)(4 * columns);
        s.row_bytes[6] = (uint16_t)(4 * steps);
        bool add = trial % 2;
        multiply(&s, a, b, c, add, &kept);
        assert_memory_equal(&kept, &s, sizeof s);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < ROW; j++) {
                float right = before[i * ROW + j];
                if (i < rows && j < columns) right = expected(a + A + i * ROW, b + B + j, steps, add ? right : 0);
                if (c[i * ROW + j] != right)
                    fail_msg("trial %d: [%d][%d] of %d x %d x %d is %a, expected %a", trial, i, j, rows, columns, steps,
                        (double)c[i * ROW + j], (double)right);
            }
    }
}

#else

static void instructions_do_what_the_manual_says(void **state)
{
    (void)state;
    skip();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instructions_do_what_the_manual_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
