/*
 * Checks gradients by directional derivatives: for f's weighted sum s(x) = <w, f(x)> and a random direction u,
 * (s(x + hu) - s(x - hu)) / 2h must equal <grad s, u>. One direction tries every element of an input at once.
 */
#include "autograd/engine.h"
#include "base/rng.h"
#include "tensor/tensor.h"

#include <math.h>

enum { DIRECTIONS = 3 };

static tr_tensor *weighted_sum(tr_grad_function f, tr_tensor *const *inputs, int n, void *user)
{
    tr_tensor *y = f(inputs, n, user);
    if (!y) return tr__tensor_fail(TR_INVALID, "grad_check: the function returned NULL");
    if (tr__bad(y)) return y;
    tr_tensor *w = tr_randn(77, y->shape, .dtype = y->dtype, .device = tr__device_of(y));
    return tr_sum(tr_mul(y, w));
}

static tr_status shifted(tr_grad_function f, tr_tensor *const *inputs, int n, void *user, int i, tr_tensor *u, double h, double *out)
{
    TR_SCOPE;
    TR_NO_GRAD;
    tr_tensor *moved = tr_add(inputs[i], tr_affine(u, h, 0));
    tr_tensor *saved = tr_empty(inputs[i]->shape, .dtype = TR_F64, .device = tr__device_of(inputs[i]));
    TR__TRY(tr_copy_into(saved, inputs[i]));
    TR__TRY(tr_copy_into(inputs[i], moved));
    tr_tensor *sum = weighted_sum(f, inputs, n, user);
    TR__TRY(tr_copy_into(inputs[i], saved));
    TR__TRY(tr_status_of(sum));
    *out = tr_item(sum);
    return TR_OK;
}

static tr_status check_direction(tr_grad_function f, tr_tensor *const *inputs, int n, void *user, double tolerance, int i, int k)
{
    TR_SCOPE;
    tr_tensor *u = tr_randn(tr__mix(1234, (uint64_t)(i * DIRECTIONS + k)), inputs[i]->shape, .dtype = TR_F64,
        .device = tr__device_of(inputs[i]));
    const double h = 1e-5;
    double up, down, analytic = 0;
    TR__TRY(shifted(f, inputs, n, user, i, u, h, &up));
    TR__TRY(shifted(f, inputs, n, user, i, u, -h, &down));
    if (tr_grad(inputs[i])) {
        TR_NO_GRAD;
        tr_tensor *dot = tr_sum(tr_mul(tr_grad(inputs[i]), u));
        TR__TRY(tr_status_of(dot));
        analytic = tr_item(dot);
    }
    double numeric = (up - down) / (2 * h), scale = fmax(1.0, fmax(fabs(numeric), fabs(analytic)));
    if (fabs(numeric - analytic) <= tolerance * scale) return TR_OK;
    return tr__fail(TR_MISMATCH, "grad_check: input %d %s, direction %d: the gradient says %.10g, differences say %.10g", i,
        TR__TEXT(inputs[i]->shape), k, analytic, numeric);
}

tr_status tr_grad_check(tr_grad_function f, tr_tensor *const *inputs, int n, void *user, double tolerance)
{
    if (!f || (n > 0 && !inputs)) return tr__fail(TR_INVALID, "grad_check: the %s NULL", f ? "inputs are" : "function is");
    for (int i = 0; i < n; i++) {
        TR__TRY(tr_status_of(inputs[i]));
        if (inputs[i] && inputs[i]->requires_grad && inputs[i]->dtype != TR_F64)
            return tr__fail(TR_DTYPE, "grad_check: input %d is %s: it works in f64", i, tr_dtype_name(inputs[i]->dtype));
        if (inputs[i]) tr_clear_grad(inputs[i]);
    }
    {
        TR_SCOPE;
        TR__TRY(tr_backward(weighted_sum(f, inputs, n, user)));
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; inputs[i] && inputs[i]->requires_grad && k < DIRECTIONS; k++)
            TR__TRY(check_direction(f, inputs, n, user, tolerance, i, k));
    return TR_OK;
}
