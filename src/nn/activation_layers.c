/* Activations as modules: of a function, with arguments, and PReLU, which learns one. */
#include "nn/module.h"

#include "base/given.h"

#include <inttypes.h>

/* ---- Of a function ----------------------------------------------------------------------------------------------- */

typedef struct activation {
    tr_tensor *(*function)(tr_tensor *x);
} activation;

static tr_tensor *activation_forward(tr_module *self, tr_tensor *x)
{
    const activation *a = self->state;
    return a->function(x);
}

/* Addresses differ between processes. */
static const char *name_of(tr_tensor *(*function)(tr_tensor *x))
{
    static const struct {
        tr_tensor *(*function)(tr_tensor *x);
        const char *name;
    } known[] = {{tr_relu, "relu"}, {tr_gelu, "gelu"}, {tr_gelu_exact, "gelu_exact"}, {tr_silu, "silu"}, {tr_mish, "mish"},
        {tr_tanh, "tanh"}, {tr_sigmoid, "sigmoid"}, {tr_selu, "selu"}, {tr_softplus, "softplus"}, {tr_softsign, "softsign"},
        {tr_hardswish, "hardswish"}, {tr_hardsigmoid, "hardsigmoid"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].function == function) return known[i].name;
    return "of the program";
}

tr_module *tr_activation_layer(tr_tensor *(*function)(tr_tensor *x))
{
    if (!function) return tr_module_fail(TR_INVALID, "activation: the function is NULL");
    tr_module *module = tr__layer_of("activation", &(activation){function}, sizeof(activation), activation_forward);
    tr_module_detail(module, "%s", name_of(function));
    return module;
}

tr_module *tr_relu_layer(void)
{
    return tr_activation_layer(tr_relu);
}

/* ---- With arguments ------------------------------------------------------------------------------------------------ */

/* The function, and what it takes besides x: one number, two, or a dimension. */
typedef struct with_arguments {
    tr_tensor *(*of_one)(tr_tensor *x, double a);
    tr_tensor *(*of_two)(tr_tensor *x, double a, double b);
    tr_tensor *(*of_dim)(tr_tensor *x, int dim);
    double a, b;
    int dim;
} with_arguments;

static tr_tensor *with_arguments_forward(tr_module *self, tr_tensor *x)
{
    const with_arguments *w = self->state;
    if (w->of_one) return w->of_one(x, w->a);
    return w->of_two ? w->of_two(x, w->a, w->b) : w->of_dim(x, w->dim);
}

static tr_module *layer_of(const char *name, with_arguments state)
{
    tr_module *module = tr__layer_of(name, &state, sizeof state, with_arguments_forward);
    tr_module_detail(module, "%.9g, %.9g, dimension %d", state.a, state.b, state.dim);
    return module;
}

tr_module *tr_leaky_relu_layer(double slope)
{
    return layer_of("leaky_relu", (with_arguments){.of_one = tr_leaky_relu, .a = slope});
}

tr_module *tr_elu_layer(double alpha)
{
    return layer_of("elu", (with_arguments){.of_one = tr_elu, .a = alpha});
}

tr_module *tr_celu_layer(double alpha)
{
    if (!(alpha > 0)) return tr_module_fail(TR_INVALID, "celu: alpha must be positive, it is %g", alpha);
    return layer_of("celu", (with_arguments){.of_one = tr_celu, .a = alpha});
}

tr_module *tr_clamp_layer(double least, double most)
{
    if (!(least <= most))
        return tr_module_fail(TR_INVALID, "clamp: the least value, %g, must not be above the most, %g", least, most);
    return layer_of("clamp", (with_arguments){.of_two = tr_clamp, .a = least, .b = most});
}

tr_module *tr_glu_layer(int dim)
{
    return layer_of("glu", (with_arguments){.of_dim = tr_glu, .dim = dim});
}

tr_module *tr_softmax_layer(int dim)
{
    return layer_of("softmax", (with_arguments){.of_dim = tr_softmax, .dim = dim});
}

tr_module *tr_log_softmax_layer(int dim)
{
    return layer_of("log_softmax", (with_arguments){.of_dim = tr_log_softmax, .dim = dim});
}

/* ---- PReLU --------------------------------------------------------------------------------------------------------- */

typedef struct prelu {
    tr_tensor *weight; /* [1] or [channels] */
} prelu;

/* x: [batch, channels, …] -> as x */
static tr_tensor *prelu_forward(tr_module *self, tr_tensor *x)
{
    const prelu *p = self->state;
    return tr_prelu_op(x, p->weight);
}

tr_module *tr_prelu_with(const tr_prelu_options *o)
{
    if (o->channels < 0) return tr_module_fail(TR_INVALID, "prelu: channels must not be negative, not %" PRId64, o->channels);
    TR_SCOPE;
    tr_module *module = tr__layer_new("prelu", sizeof(prelu), prelu_forward);
    prelu *p = tr_module_state(module);
    if (!p) return tr_escape(module);
    p->weight = tr_module_parameter(module, "weight",
        tr_full(TR__OR(o, init, 0.25), TR_SHAPE(o->channels ? o->channels : 1), .dtype = o->dtype));
    return tr_escape(module);
}
