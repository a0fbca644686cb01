/* Two micro-batches in flight, as a 1F1B pipeline has them: forward 0, forward 1, backward 0, forward 2, backward 1, … The
 * gradients add up to those of one large batch. */
#include <trireme/trireme.h>

#include <math.h>
#include <stdio.h>

enum { MICRO = 4, ROWS = 3 };

static tr_tensor *forward(tr_module *net, tr_tensor *x, int64_t i)
{
    tr_tensor *y = tr_forward(net, tr_slice(x, 0, i * ROWS, (i + 1) * ROWS));
    return tr_sum(tr_mul(y, y));
}

int main(void)
{
    tr_module *net = tr_sequential(tr_linear(5, 7, .seed = 3), tr_activation_layer(tr_gelu), tr_linear(7, 2, .seed = 4));
    tr_tensor *weight = tr_list_find(tr_parameters(net), "0.weight");
    tr_tensor *x = tr_randn(5, TR_SHAPE(MICRO * ROWS, 5));

    /* The whole batch at once. */
    tr_tensor *y = tr_forward(net, x);
    TR_CHECK(tr_backward(tr_sum(tr_mul(y, y))));
    float whole[35], pieces[35];
    TR_CHECK(tr_copy_out(tr_grad(weight), whole, sizeof whole));
    for (int i = 0; i < tr_list_count(tr_parameters(net)); i++) tr_clear_grad(tr_list_at(tr_parameters(net), i));

    /* One forward ahead of the backward. Losses are kept, not scoped: first in is first out here. */
    tr_tensor *in_flight[2];
    for (int i = 0; i < MICRO + 1; i++) {
        TR_SCOPE;
        if (i < MICRO) in_flight[i % 2] = tr_keep(forward(net, x, i));
        if (i == 0) continue;
        TR_CHECK(tr_backward(in_flight[(i - 1) % 2]));
        tr_release(in_flight[(i - 1) % 2]);
    }
    TR_CHECK(tr_copy_out(tr_grad(weight), pieces, sizeof pieces));

    float worst = 0;
    for (int i = 0; i < 35; i++) worst = fmaxf(worst, fabsf(whole[i] - pieces[i]) / (1 + fabsf(whole[i])));
    printf("largest difference %g\n", (double)worst);
    return worst < 1e-5f ? 0 : 1;
}
