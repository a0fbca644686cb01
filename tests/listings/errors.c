/* Errors: an expression is checked once, at its end; the message says what, with which values. */
#include <trireme/trireme.h>

#include <stdio.h>
#include <string.h>

static int expect(tr_status status, tr_status expected, const char *words)
{
    printf("%s: %s\n", tr_status_name(status), tr_error_message());
    return status == expected && strstr(tr_error_message(), words) ? 0 : 1;
}

int main(void)
{
    int wrong = 0;
    tr_tensor *x = tr_ones(TR_SHAPE(32, 784)), *w = tr_ones(TR_SHAPE(512, 10));
    wrong += expect(tr_status_of(tr_softmax(tr_relu(tr_matmul(x, w)), -1)), TR_SHAPE, "[32, 784]");
    wrong += expect(tr_status_of(tr_reshape(x, TR_SHAPE(5, -1))), TR_SHAPE, "[32, 784]");
    wrong += expect(tr_status_of(tr_linear(0, 3)), TR_INVALID, "0");
    wrong += expect(tr_backward(tr_sum(x)), TR_STATE, "gradient");
    wrong += expect(tr_status_of(tr_zeros(TR_SHAPE(2), .device = tr_cpu(99))), TR_DEVICE, "cpu:99");

    /* A module built of a part in error is in error, and so is what it returns. */
    tr_module *net = tr_sequential(tr_linear(784, 10), tr_linear(-1, 3));
    wrong += expect(tr_status_of(tr_forward(net, x)), TR_INVALID, "-1");
    wrong += expect(tr_step(tr_adamw(tr_parameters(net))), TR_INVALID, "-1");

    tr_device device;
    wrong += expect(tr_device_parse("gpu", &device), TR_DEVICE, "gpu");
    wrong += expect(tr_status_of(NULL) == TR_OK ? tr_fail(TR_END, "NULL means none, not failed") : TR_OK, TR_END, "none");
    return wrong;
}
