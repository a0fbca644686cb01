/* LeNet-5 (LeCun, Bottou, Bengio, Haffner 1998), with ReLU for its tanh and max pooling for its averages. */
#include "seeds.h"
#include "sizes.h"

#include <trireme/models.h>

typedef struct lenet {
    tr_module *conv1, *conv2, *fc1, *fc2, *fc3;
} lenet;

/* images: [batch, 1, 28, 28] -> logits: [batch, classes] */
static tr_tensor *lenet_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const lenet *l = tr_module_state(self);
    if (n != 1 || !inputs[0]) return tr_tensor_fail(TR_INVALID, "lenet: it takes one input, images");
    tr_shape shape = tr_shape_of(inputs[0]);
    char text[160];
    if (shape.ndim != 4 || shape.dim[1] != 1 || shape.dim[2] != 28 || shape.dim[3] != 28)
        return tr_tensor_fail(TR_SHAPE, "lenet: images must be [batch, 1, 28, 28], they are %s", tr_shape_text(shape, text));
    tr_tensor *x = tr_max_pool2d(tr_relu(tr_forward(l->conv1, inputs[0])), 2); /* [batch, 6, 14, 14] */
    x = tr_max_pool2d(tr_relu(tr_forward(l->conv2, x)), 2);                    /* [batch, 16, 5, 5] */
    x = tr_reshape(x, TR_SHAPE(shape.dim[0], 16 * 5 * 5));
    x = tr_relu(tr_forward(l->fc1, x));
    return tr_forward(l->fc3, tr_relu(tr_forward(l->fc2, x)));
}

tr_module *tr_lenet_with(const tr_lenet_options *o)
{
    int classes = TR__SIZE_OR(o, classes, 10);
    if (classes < 1) return tr_module_fail(TR_INVALID, "lenet: classes must be positive, not %d", classes);
    TR_SCOPE;
    tr_module *module = tr_module_new("lenet", sizeof(lenet), lenet_forward);
    lenet *l = tr_module_state(module);
    if (!l) return tr_escape(module);
    uint64_t seed = tr__model_seed(o, o->seed);
    l->conv1 = tr_module_add(module, "conv1", tr_conv2d(1, 6, 5, .padding = 2, .seed = tr__layer_seed(seed, 0)));
    l->conv2 = tr_module_add(module, "conv2", tr_conv2d(6, 16, 5, .seed = tr__layer_seed(seed, 1)));
    l->fc1 = tr_module_add(module, "fc1", tr_linear(16 * 5 * 5, 120, .seed = tr__layer_seed(seed, 2)));
    l->fc2 = tr_module_add(module, "fc2", tr_linear(120, 84, .seed = tr__layer_seed(seed, 3)));
    l->fc3 = tr_module_add(module, "fc3", tr_linear(84, classes, .seed = tr__layer_seed(seed, 4)));
    return tr_escape(module);
}
