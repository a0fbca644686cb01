/* The random numbers of tensors: what Box-Muller says of Philox's words, in every dtype, by any number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/rng.h"
#include "tensor/random.h"

#include <trireme/trireme.h>

enum { N = 20003 };

/* The mathematics in double, from the words that the fast one in f32 gets. */
static double normal_at(uint64_t seed, int64_t i)
{
    tr__philox r = tr__philox_at(seed, 0, (uint64_t)i / 4);
    int pair = (int)(i % 4) & ~1;
    double radius = sqrt(-2 * log((double)tr__uniform_open(r.word[pair])));
    double angle = 2 * 3.14159265358979323846 * (double)tr__uniform(r.word[pair + 1]);
    return radius * (i % 2 ? sin(angle) : cos(angle));
}

static void test_normals_are_those_of_box_and_muller(void **state)
{
    (void)state;
    TR_SCOPE;
    const float *x = tr_data(tr_randn(9, TR_SHAPE(N)));
    for (int64_t i = 0; i < N; i++) assert_true(fabs((double)x[i] - normal_at(9, i)) < 2e-6);
}

static void test_scale_and_shift(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *a = tr_empty(TR_SHAPE(7, 11)), *u = tr_rand(4, TR_SHAPE(77));
    assert_int_equal(tr__fill_random(a, TR__UNIFORM, 4, 2, -1), TR_OK);
    for (int i = 0; i < 77; i++) assert_true(((float *)tr_data(a))[i] == 2 * ((float *)tr_data(u))[i] - 1);
}

static void test_other_dtypes_round_the_same_numbers(void **state)
{
    (void)state;
    TR_SCOPE;
    const float *x = tr_data(tr_randn(3, TR_SHAPE(N)));
    const double *d = tr_data(tr_randn(3, TR_SHAPE(N), .dtype = TR_F64));
    const uint16_t *b = tr_data(tr_randn(3, TR_SHAPE(N), .dtype = TR_BF16));
    for (int i = 0; i < N; i++) {
        assert_true(d[i] == (double)x[i]);
        assert_int_equal(b[i], tr__f32_to_bf16(x[i]));
    }
}

/* Also where few bits are left: downwards, by less than the dtype's last place below 1. */
static void test_uniform_numbers_are_below_one(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    static const tr_dtype dtypes[] = {TR_F32, TR_BF16, TR_F16};
    static const float steps[] = {0x1p-30F, 0x1p-8F, 0x1p-11F};
    for (int k = 0; k < 3; k++) {
        TR_SCOPE;
        const float *exact = tr_data(tr_rand(1, TR_SHAPE(MANY)));
        const float *x = tr_data(tr_cast(tr_rand(1, TR_SHAPE(MANY), .dtype = dtypes[k]), TR_F32));
        for (int i = 0; i < MANY; i++) assert_true(x[i] >= 0 && x[i] < 1 && x[i] <= exact[i] && exact[i] - x[i] < steps[k]);
    }
}

static void test_threads_draw_the_same_numbers(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_int_equal(tr_set_threads(1), TR_OK);
    tr_tensor *one = tr_randn(3, TR_SHAPE(N));
    assert_int_equal(tr_set_threads(3), TR_OK);
    tr_tensor *three = tr_randn(3, TR_SHAPE(N));
    assert_int_equal(tr_set_threads(0), TR_OK);
    assert_memory_equal(tr_data(one), tr_data(three), N * sizeof(float));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normals_are_those_of_box_and_muller),
        cmocka_unit_test(test_scale_and_shift),
        cmocka_unit_test(test_other_dtypes_round_the_same_numbers),
        cmocka_unit_test(test_uniform_numbers_are_below_one),
        cmocka_unit_test(test_threads_draw_the_same_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
