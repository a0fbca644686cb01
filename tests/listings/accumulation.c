/* Gradient accumulation, evaluation without a graph, and a hook that sees each gradient when it is final. */
#include <trireme/trireme.h>

#include <math.h>
#include <stdio.h>

static tr_status on_gradient(tr_tensor *leaf, tr_tensor *grad, void *user)
{
    (void)leaf;
    *(double *)user += tr_item(tr_sum(grad));
    return TR_OK;
}

int main(void)
{
    tr_tensor *w = tr_ones(TR_SHAPE(3), .requires_grad = true);
    double seen = 0;
    int hook = tr_grad_hook_add(w, on_gradient, &seen);
    for (int micro = 0; micro < 4; micro++) {
        TR_SCOPE;
        TR_CHECK(tr_backward(tr_sum(tr_affine(w, 0.25, 0)))); /* a quarter each: adds up to 1 per element */
    }
    tr_grad_hook_remove(w, hook);
    double total = tr_item(tr_sum(tr_grad(w)));
    {
        TR_NO_GRAD;
        if (tr_requires_grad(tr_affine(w, 2, 0))) return 1;
    }
    if (!tr_requires_grad(tr_affine(w, 2, 0)) || tr_requires_grad(tr_detach(w))) return 1;
    tr_clear_grad(w);
    printf("accumulated %g, hooks saw %g\n", total, seen);
    return fabs(total - 3) < 1e-6 && fabs(seen - (0.75 + 1.5 + 2.25 + 3)) < 1e-6 && !tr_grad(w) ? 0 : 1;
}
