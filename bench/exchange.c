/*
 * Our half of bench/peer/exchange.py, which sees whether torchvision and we read each other's ResNet-18:
 *
 *     exchange write MODEL.safetensors           a ResNet-18 of 10 classes, after three steps of training
 *     exchange logits MODEL IMAGES LOGITS        what the one in MODEL says to the tensor "images" of IMAGES
 */
#include <trireme/trireme.h>

#include <stdio.h>
#include <string.h>

static tr_status write_model(const char *path)
{
    tr_module *net = tr_resnet18(.classes = 10, .seed = 3);
    tr_optimizer *sgd = tr_sgd(tr_parameters(net), .lr = 0.01, .momentum = 0.9);
    for (uint64_t i = 0; i < 3; i++) {
        TR_SCOPE;
        tr_tensor *x = tr_randn(i, TR_SHAPE(4, 3, 64, 64)), *y = tr_arange(4, TR_I64, tr_cpu(0));
        tr_zero_grad(sgd);
        tr_status status = tr_backward(tr_cross_entropy(tr_forward(net, x), y));
        if (status == TR_OK) status = tr_step(sgd);
        if (status != TR_OK) return status;
    }
    return tr_safetensors_save(path, tr_state_dict(net));
}

static tr_status write_logits(const char *model, const char *images, const char *logits)
{
    TR_NO_GRAD;
    tr_module *net = tr_resnet18(.classes = 10);
    tr_status status = tr_load_state_dict(net, tr_safetensors_load(model));
    if (status == TR_OK) status = tr_eval(net);
    if (status != TR_OK) return status;
    tr_tensor_list *out = tr_list();
    status = tr_list_add(out, "logits", tr_forward(net, tr_list_find(tr_safetensors_load(images), "images")));
    return status == TR_OK ? tr_safetensors_save(logits, out) : status;
}

int main(int argc, char **argv)
{
    TR_SCOPE;
    if (argc == 3 && strcmp(argv[1], "write") == 0)
        TR_CHECK(write_model(argv[2]));
    else if (argc == 5 && strcmp(argv[1], "logits") == 0)
        TR_CHECK(write_logits(argv[2], argv[3], argv[4]));
    else
        return fprintf(stderr, "usage: exchange write MODEL | exchange logits MODEL IMAGES LOGITS\n"), 2;
    return 0;
}
