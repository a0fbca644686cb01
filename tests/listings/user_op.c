/* An operation of one's own, with its backward: y = x * sigmoid(b x) ("swish", Ramachandran et al. 2017). */
#include <trireme/trireme.h>

#include <math.h>
#include <stdio.h>

typedef struct swish_attrs {
    double b;
} swish_attrs;

static tr_status swish_infer(tr_op_call *call)
{
    tr_tensor *x = call->inputs[0];
    if (tr_dtype_of(x) != TR_F64 || !tr_is_contiguous(x)) return tr_fail(TR_DTYPE, "swish: takes contiguous f64");
    return tr_op_output(call, 0, tr_shape_of(x), TR_F64);
}

static tr_status swish_forward(tr_op_call *call)
{
    double b = ((const swish_attrs *)call->attrs)->b;
    const double *x = tr_data(call->inputs[0]);
    double *y = tr_data(call->outputs[0]);
    for (int64_t i = 0; i < tr_numel(call->inputs[0]); i++) y[i] = x[i] / (1 + exp(-b * x[i]));
    return TR_OK;
}

/* dy/dx = s + b x s (1 - s) with s = sigmoid(b x), composed of ops of the library */
static tr_status swish_backward(tr_backward_call *call)
{
    double b = ((const swish_attrs *)call->attrs)->b;
    tr_tensor *x = call->inputs[0], *s = tr_sigmoid(tr_affine(x, b, 0));
    tr_tensor *slope = tr_add(s, tr_mul(tr_affine(x, b, 0), tr_mul(s, tr_affine(s, -1, 1))));
    call->grad_inputs[0] = tr_mul(call->grad_outputs[0], slope);
    return TR_OK;
}

static const tr_op swish_op = {
    .size = sizeof(tr_op),
    .name = "swish",
    .attrs_size = sizeof(swish_attrs),
    .infer = swish_infer,
    .forward = swish_forward,
    .backward = swish_backward,
    .saves_inputs = 1,
};

static tr_tensor *swish(tr_tensor *x, double b)
{
    return tr_apply(&swish_op, &(swish_attrs){b}, &x, 1, NULL);
}

static tr_tensor *checked(tr_tensor *const *inputs, int n, void *user)
{
    (void)n, (void)user;
    return swish(swish(inputs[0], 1.5), 0.5);
}

int main(void)
{
    tr_tensor *x = tr_randn(1, TR_SHAPE(3, 5), .dtype = TR_F64, .requires_grad = true);
    TR_CHECK(tr_grad_check(checked, &x, 1, NULL, 1e-6));
    tr_status status = tr_status_of(swish(tr_ones(TR_SHAPE(2)), 1));
    printf("%s\n", tr_error_message());
    return status == TR_DTYPE ? 0 : 1;
}
