/* The usual loop: a small network fits y = sin(x), and stops as soon as it is good enough. `break` leaves a scope. */
#include <trireme/trireme.h>

#include <math.h>
#include <stdio.h>

int main(void)
{
    tr_module *net = tr_sequential(tr_linear(1, 32, .seed = 1), tr_activation_layer(tr_tanh), tr_linear(32, 1, .seed = 2));
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-2, .weight_decay = 0);

    float xs[64], ys[64];
    for (int i = 0; i < 64; i++) {
        xs[i] = (float)i / 10.0f - 3.2f;
        ys[i] = sinf(xs[i]);
    }
    tr_tensor *x = tr_from(xs, TR_SHAPE(64, 1)); /* [64, 1] */
    tr_tensor *y = tr_from(ys, TR_SHAPE(64, 1));

    double loss_value = 1;
    int step;
    for (step = 0; step < 5000; step++) {
        TR_SCOPE; /* what this block makes goes when it ends */
        tr_tensor *error = tr_sub(tr_forward(net, x), y);
        tr_tensor *loss = tr_mean(tr_mul(error, error));
        tr_zero_grad(opt);
        TR_CHECK(tr_backward(loss));
        TR_CHECK(tr_step(opt));
        loss_value = tr_item(loss);
        if (loss_value < 1e-3) break;
    }
    printf("loss %.6f after %d steps\n", loss_value, step);
    return loss_value < 1e-3 ? 0 : 1;
}
