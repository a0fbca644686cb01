/*
 * The same answer as PyTorch: outputs and gradients of functions from tests/recorded/functions.safetensors
 * (record_functions.py says how they were made), in f64 and in f32.
 */
#include "recorded.h"
#include "torch_cases.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CASE(name, call) \
    static tr_tensor *name(tr_tensor **in) { tr_tensor *x = in[0]; return call; }

CASE(silu, tr_silu(x))
CASE(mish, tr_mish(x))
CASE(softplus, tr_softplus(x))
CASE(log_sigmoid, tr_log_sigmoid(x))
CASE(hardswish, tr_hardswish(x))
CASE(hardsigmoid, tr_hardsigmoid(x))
CASE(selu, tr_selu(x))
CASE(leaky_relu, tr_leaky_relu(x, 0.1))
CASE(elu, tr_elu(x, 0.7))
CASE(clamp, tr_clamp(x, -0.5, 1))
CASE(power, tr_pow(x, 1.7))
CASE(cube, tr_pow(x, 3))
CASE(sine, tr_sin(x))
CASE(cosine, tr_cos(x))

static const torch_case cases[] = {
    {"silu", silu},
    {"mish", mish},
    {"softplus", softplus},
    {"logsigmoid", log_sigmoid},
    {"hardswish", hardswish},
    {"hardsigmoid", hardsigmoid},
    {"selu", selu},
    {"leaky_relu", leaky_relu},
    {"elu", elu},
    {"clamp", clamp},
    {"pow", power},
    {"pow_cube", cube},
    {"sin", sine},
    {"cos", cosine},
};

static void check_in(tr_dtype dtype, double tolerance)
{
    TR_SCOPE;
    torch_cases_check(recorded("functions"), cases, sizeof cases / sizeof *cases, dtype, tolerance);
}

static void f64_is_as_in_pytorch(void **state)
{
    (void)state;
    check_in(TR_F64, 1e-12);
}

static void f32_is_as_in_pytorch(void **state)
{
    (void)state;
    check_in(TR_F32, 2e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f64_is_as_in_pytorch),
        cmocka_unit_test(f32_is_as_in_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
