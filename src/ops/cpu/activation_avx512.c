#include "ops/cpu/activation_avx512.h"

#include "ops/cpu/activations.h"

#define EACH(expression)                                           \
    for (int64_t i = 0; i < n; i += WIDTH) vec_store(to + i, expression); \
    break;

void tr__activate_avx512(tr_activation_kind f, float *x, int64_t n)
{
    float *to = x;
    switch (f) {
    case TR_RELU: EACH(relu_value(vec_load(x + i)))
    case TR_GELU: EACH(gelu_value(vec_load(x + i)))
    case TR_GELU_EXACT: EACH(gelu_exact_value(vec_load(x + i)))
    case TR_NO_ACTIVATION:
    case TR_ACTIVATION_COUNT: break;
    }
}

void tr__times_slope_avx512(tr_activation_kind f, float *g, const float *x, int64_t n)
{
    float *to = g;
    switch (f) {
    case TR_RELU: EACH(relu_times_slope(vec_load(g + i), vec_load(x + i)))
    case TR_GELU: EACH(gelu_times_slope(vec_load(g + i), vec_load(x + i)))
    case TR_GELU_EXACT: EACH(gelu_exact_times_slope(vec_load(g + i), vec_load(x + i)))
    case TR_NO_ACTIVATION:
    case TR_ACTIVATION_COUNT: break;
    }
}
