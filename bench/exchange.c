/*
 * Our half of bench/peer/exchange.py, which sees whether torchvision, Hugging Face and we read each other's models:
 *
 *     exchange write NAME MODEL.safetensors        a model after three steps of training: resnet18, vit, bert, …
 *     exchange logits NAME MODEL INPUTS LOGITS     what the one in MODEL says to the tensor "x" of INPUTS (and "mask", of BERT)
 */
#include <trireme/trireme.h>

#include <stdio.h>
#include <string.h>

enum { BATCH = 4, WORDS = 16, VOCAB = 64, CLASSES = 10 };

static tr_module *resnet18(void)
{
    return tr_resnet18(.classes = CLASSES, .seed = 3);
}

static tr_module *vit(void)
{
    return tr_vit(.classes = CLASSES, .image = 64, .patch = 16, .layers = 3, .heads = 4, .dim = 64, .seed = 3);
}

static tr_module *bert(tr_bert_head head)
{
    return tr_bert(.head = head, .vocab = VOCAB, .positions = 32, .layers = 3, .heads = 4, .dim = 64, .classes = CLASSES, .seed = 3);
}

static tr_module *bert_masked(void)
{
    return bert(TR_BERT_MASKED_LM);
}

static tr_module *bert_classifier(void)
{
    return bert(TR_BERT_CLASSIFIER);
}

static tr_module *gpt2(void)
{
    return tr_gpt(.vocab = VOCAB, .context = 32, .layers = 3, .heads = 4, .dim = 64, .seed = 3);
}

static const struct model {
    const char *name;
    tr_module *(*make)(void);
    bool reads, writes; /* words, not images; and predicts words, not classes */
} models[] = {
    {"resnet18", resnet18, false, false},
    {"vit", vit, false, false},
    {"bert", bert_masked, true, true},
    {"bert_classifier", bert_classifier, true, false},
    {"gpt2", gpt2, true, true},
};

static tr_status write_model(const struct model *m, const char *path)
{
    tr_module *net = m->make();
    tr_optimizer *sgd = tr_sgd(tr_parameters(net), .lr = 0.01, .momentum = 0.9);
    tr_tensor *ids = tr_reshape(tr_arange(BATCH * WORDS, TR_I64, tr_cpu(0)), TR_SHAPE(BATCH, WORDS));
    tr_tensor *y = m->writes ? ids : tr_arange(BATCH, TR_I64, tr_cpu(0));
    for (uint64_t i = 0; i < 3; i++) {
        TR_SCOPE;
        tr_tensor *x = m->reads ? ids : tr_randn(i, TR_SHAPE(BATCH, 3, 64, 64));
        tr_zero_grad(sgd);
        tr_status status = tr_backward(tr_cross_entropy(tr_forward(net, x), y));
        if (status == TR_OK) status = tr_step(sgd);
        if (status != TR_OK) return status;
    }
    return tr_safetensors_save(path, tr_state_dict(net));
}

static tr_status write_logits(const struct model *m, const char *model, const char *inputs, const char *logits)
{
    TR_NO_GRAD;
    tr_module *net = m->make();
    tr_status status = tr_load_state_dict(net, tr_safetensors_load(model));
    if (status == TR_OK) status = tr_eval(net);
    if (status != TR_OK) return status;
    tr_tensor_list *in = tr_safetensors_load(inputs), *out = tr_list_new();
    tr_tensor *x = tr_list_find(in, "x"), *mask = tr_list_find(in, "mask");
    status = tr_list_add(out, "logits", mask ? tr_forward(net, x, mask) : tr_forward(net, x));
    return status == TR_OK ? tr_safetensors_save(logits, out) : status;
}

int main(int argc, char **argv)
{
    TR_SCOPE;
    for (size_t i = 0; argc > 3 && i < sizeof models / sizeof *models; i++) {
        if (strcmp(argv[2], models[i].name) != 0) continue;
        if (argc == 4 && strcmp(argv[1], "write") == 0) {
            TR_CHECK(write_model(&models[i], argv[3]));
            return 0;
        }
        if (argc == 6 && strcmp(argv[1], "logits") == 0) {
            TR_CHECK(write_logits(&models[i], argv[3], argv[4], argv[5]));
            return 0;
        }
    }
    fprintf(stderr, "usage: exchange write NAME MODEL | exchange logits NAME MODEL INPUTS LOGITS\n");
    return 2;
}
