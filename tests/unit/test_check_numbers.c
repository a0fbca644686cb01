/*
 * TRIREME_CHECK=nan names the first op that makes a NaN; with inf also infinities. The environment is read once, so the
 * program runs itself again for the second.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

#include <trireme/trireme.h>

static void assert_named(tr_status status, const char *part)
{
    assert_int_equal(status, TR_INVALID);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

static tr_tensor *with(float value)
{
    float x[6] = {1, 2, 3, 4, 5, 6};
    x[5] = value;
    return tr_from(x, TR_SHAPE(2, 3));
}

static void test_the_op_that_makes_a_nan(void **state)
{
    (void)state;
    TR_SCOPE;
    TR_CHECK(tr_status_of(tr_log(with(3))));
    assert_named(tr_status_of(tr_exp(tr_log(with(-1)))),
        "log: its output 0, f32 [2, 3], has a NaN at [1, 2]; its inputs have none");
    assert_named(tr_status_of(tr_log(tr_transpose(with(-1), 0, 1))), "f32 [3, 2], has a NaN at [2, 1]");
    assert_named(tr_status_of(tr_sqrt(tr_cast(with(-1), TR_BF16))), "sqrt: its output 0, bf16 [2, 3]");
    TR_CHECK(tr_status_of(tr_exp(with(1000)))); /* infinity is no NaN */
}

static void test_a_nan_that_came_in(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_named(tr_status_of(tr_add(with(1), with(NAN))),
        "add: its output 0, f32 [2, 3], has a NaN at [1, 2]; its input 1 had one already, at [1, 2]");
}

static void test_backward(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_require_grad(with(0));
    tr_tensor *loss = tr_sum(tr_mul(tr_sqrt(x), tr_zeros(TR_SHAPE(2, 3)))); /* at 0: 0 / (2 sqrt(0)) */
    TR_CHECK(tr_status_of(loss));
    assert_named(tr_backward(loss), "backward of sqrt: ");
}

static tr_tensor *log_of(tr_tensor *x)
{
    return tr_log(x);
}

static void test_the_module_is_named(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = tr_sequential(tr_activation_layer(tr_relu), tr_sequential(tr_activation_layer(log_of)));
    tr_tensor *y = tr_forward(net, tr_neg(with(1)));
    TR_CHECK(tr_status_of(y)); /* log(0) */
    assert_named(tr_status_of(tr_forward(net, tr_mul(with(1), with(NAN)))), "mul: ");
}

static void test_infinities(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_named(tr_status_of(tr_exp(with(1000))), "exp: its output 0, f32 [2, 3], has an infinity at [1, 2]");
    assert_named(tr_status_of(tr_log(with(-1))), "has a NaN at [1, 2]");
    assert_true(tr__check_asks("1") && tr__check_asks("inf") && !tr__check_asks("in") && !tr__check_asks("nan"));
}

/* Each in a process of its own, for the environment is read once. */
static void test_settings_that_make_no_sense(void **state)
{
    (void)state;
    static const struct { const char *name, *value, *says; } cases[] = {
        {"TRIREME_CHECK", "nan,foo", "TRIREME_CHECK=nan,foo: \"foo\" is neither 1 nor nan, inf, sync, wire or replicas"},
        {"TRIREME_CHECK", "NaN", "TRIREME_CHECK=NaN: \"NaN\" is neither"},
        {"TRIREME_ISA", "avx", "TRIREME_ISA=avx is neither generic nor avx2, avx512, avx512bf16 or amx"},
        {"TRIREME_THREADS", "abc", "TRIREME_THREADS=abc is not a whole number of 1 or more"},
        {"TRIREME_THREADS", "-3", "TRIREME_THREADS=-3 is not a whole number"},
        {"TRIREME_CPU_DEVICES", "x", "TRIREME_CPU_DEVICES=x is not a whole number"},
        {"LOCAL_WORLD_SIZE", "0", "LOCAL_WORLD_SIZE=0 is not a whole number of 1 or more"},
        {"LOCAL_WORLD_SIZE", "2x", "LOCAL_WORLD_SIZE=2x is not a whole number"},
        {"LOCAL_WORLD_SIZE", "3", NULL},
        {"TRIREME_CPU_DEVICES", "", NULL},
        {"TRIREME_CHECK", "0,nan,", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *says = cases[i].says;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            setenv(cases[i].name, cases[i].value, 1);
            tr_status status = tr_status_of(tr_zeros(TR_SHAPE(2)));
            bool told = says ? status == TR_INVALID && strstr(tr_error_message(), says) : status == TR_OK;
            if (says) told = told && tr_set_threads(1) == TR_INVALID;
            _exit(told ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status) fail_msg("%s=%s", cases[i].name, cases[i].value);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    const struct CMUnitTest nans[] = {
        cmocka_unit_test(test_settings_that_make_no_sense), /* before there are threads */
        cmocka_unit_test(test_the_op_that_makes_a_nan),
        cmocka_unit_test(test_a_nan_that_came_in),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_the_module_is_named),
    };
    const struct CMUnitTest infinities[] = {cmocka_unit_test(test_infinities)};
    if (getenv("TRIREME_CHECK")) return cmocka_run_group_tests(infinities, NULL, NULL);
    setenv("TRIREME_CHECK", "nan", 1);
    int failed = cmocka_run_group_tests(nans, NULL, NULL);
    if (failed) return failed;
    setenv("TRIREME_CHECK", "1,inf", 1);
    execv("/proc/self/exe", argv);
    return 1;
}
