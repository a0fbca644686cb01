/* AMX: its instructions, the machine's or those of the double, against Intel's manual in scalars; and what our kernels leave. */
#include "amx_double.h"
#include "ops/cpu/gemm/gemm.h"

#include <trireme/autograd.h>

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define skip_without() (print_message("this needs a compiler that knows AMX, and AMX or AVX512_BF16\n"), skip())

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
    if (!amx_double()) skip_without();
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

/* A state that is in use makes switching threads dearer. */
static void kernels_release_the_tiles(void **state)
{
    (void)state;
    if (!amx_double()) skip_without();
    TR_SCOPE;
    tr_tensor *x = tr_ones(TR_SHAPE(40, 70), .dtype = TR_BF16), *w = tr_ones(TR_SHAPE(50, 70), .dtype = TR_BF16);
    tr_tensor *y = tr_zeros(TR_SHAPE(40, 50), .dtype = TR_BF16);
    tr_op_call call = {tr__op(linear), &(tr_linear_attrs){0}, 4, 1, (tr_tensor *[]){x, w, NULL, NULL}, &y};
    tr__gemm p = tr__gemm_of(&call);
    int64_t done = amx_double_done();
    assert_true(tr__gemm_amx(&(tr__gemm_task){.p = &p}));
    assert_true(done == -1 || amx_double_done() > done);
    assert_true(tr_item(tr_min(y)) == 70 && tr_item(tr_max(y)) == 70);
    assert_int_equal(amx_palette(), 0);
}

/* Memory that ends where its page does, before one that must not be touched; ones in bf16. */
static void *at_end_of_page(int64_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)n * sizeof(uint16_t), room = (bytes + page - 1) / page * page;
    char *memory = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    assert_int_equal(mprotect(memory + room, page, PROT_NONE), 0);
    uint16_t *numbers = (uint16_t *)(void *)(memory + room - bytes);
    for (int64_t i = 0; i < n; i++) numbers[i] = 0x3f80;
    return numbers;
}

/* Nothing beyond a matrix is read or written: of sizes that fill tiles and that do not, of either order. */
static void kernels_stay_within_their_matrices(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{32, 32, 32}, {33, 47, 46}, {16, 48, 64}, {49, 17, 200}, {1, 1, 1}, {63, 31, 45},
        {31, 80, 102}};
    if (!amx_double()) skip_without();
    for (int variant = 0; variant < 7 * 4; variant++) {
        TR_SCOPE;
        int64_t m = sizes[variant / 4][0], n = sizes[variant / 4][1], k = sizes[variant / 4][2];
        bool turned = variant & 1, in_out = variant & 2;
        tr_tensor *x = tr_empty(turned ? TR_SHAPE(k, m) : TR_SHAPE(m, k), .dtype = TR_BF16);
        tr_tensor *y = tr_empty(TR_SHAPE(m, n), .dtype = TR_BF16);
        tr_tensor *w = tr_empty(in_out ? TR_SHAPE(k, n) : TR_SHAPE(n, k), .dtype = TR_BF16);
        if (turned) x = tr_transpose(x, 0, 1);
        tr_op_call call = {tr__op(linear), &(tr_linear_attrs){.in_out = in_out}, 4, 1, (tr_tensor *[]){x, w, NULL, NULL}, &y};
        tr__gemm p = tr__gemm_of(&call);
        p.a.data = at_end_of_page(m * k);
        p.b.data = at_end_of_page(n * k);
        p.c.data = at_end_of_page(m * n);
        assert_true(tr__gemm_amx(&(tr__gemm_task){.p = &p}));
        for (int64_t i = 0; i < m * n; i++) assert_true(tr__load(TR_BF16, p.c.data, i) == (double)k);
    }
}

#else

static void instructions_do_what_the_manual_says(void **state)
{
    (void)state;
    skip_without();
}

static void kernels_release_the_tiles(void **state)
{
    (void)state;
    skip_without();
}

static void kernels_stay_within_their_matrices(void **state)
{
    (void)state;
    skip_without();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instructions_do_what_the_manual_says),
        cmocka_unit_test(kernels_release_the_tiles),
        cmocka_unit_test(kernels_stay_within_their_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
