/* A module of one's own: a gated block with two linear layers and a scale that it learns. */
#include <trireme/trireme.h>

#include <stdio.h>

typedef struct gated {
    tr_module *value, *gate;
    tr_tensor *scale; /* [1] */
} gated;

static tr_tensor *gated_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    gated *g = tr_module_state(self);
    tr_tensor *y = tr_mul(tr_forward(g->value, inputs[0]), tr_sigmoid(tr_forward(g->gate, inputs[0])));
    return tr_mul(y, g->scale);
}

static tr_module *gated_new(int64_t dim)
{
    tr_module *m = tr_module_new("gated", sizeof(gated), gated_forward);
    gated *g = tr_module_state(m);
    g->value = tr_module_add(m, "value", tr_linear(dim, dim, .seed = 1));
    g->gate = tr_module_add(m, "gate", tr_linear(dim, dim, .seed = 2));
    g->scale = tr_module_parameter(m, "scale", tr_ones(TR_SHAPE(1)));
    return m;
}

int main(void)
{
    tr_module *net = tr_sequential(gated_new(8), gated_new(8));
    tr_tensor_list *parameters = tr_parameters(net);
    for (int i = 0; i < tr_list_count(parameters); i++) printf("%s\n", tr_list_name(parameters, i));

    TR_CHECK(tr_backward(tr_mean(tr_forward(net, tr_randn(3, TR_SHAPE(4, 8))))));
    tr_tensor *scale = tr_list_find(parameters, "1.scale");
    return tr_list_count(parameters) == 10 && scale && tr_grad(scale) ? 0 : 1;
}
